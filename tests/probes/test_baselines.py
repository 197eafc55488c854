import torch

from probes.base import Sizes
from probes.head_selection import FEATURES, DistancesWordsProbe, distances
from tests.probes.batches import random_batch


def by_hand(n: int, dependent: int, head: int) -> list[float]:
    """Ahead, behind, −2…+2, ROOT."""
    if head == 0:
        return [0.0] * 7 + [1.0]
    apart = head - dependent
    near = [float(apart == k) for k in (-2, -1, 0, 1, 2)]
    return [max(apart, 0) / n, max(-apart, 0) / n, *near, 0.0]


def test_features_of_every_pair() -> None:
    features = distances(torch.tensor([6, 3]), 6)
    assert features.shape == (2, 6, 7, FEATURES)
    for row, n in enumerate((6, 3)):
        for dependent in range(1, n + 1):
            for head in range(n + 1):
                expected = torch.tensor(by_hand(n, dependent, head))
                torch.testing.assert_close(features[row, dependent - 1, head], expected)


def test_the_sum_of_terms_is_one_layer_over_the_concatenation() -> None:
    torch.manual_seed(0)
    model, batch = DistancesWordsProbe(hidden=7), random_batch([4, 2], vectors=3)
    model.build(Sizes((), (), 3))
    scores = model(batch).detach()
    assert scores.shape == (2, 4, 5)
    layer = torch.cat([model.dependent.weight, model.head.weight, model.distance.weight], dim=1)
    for row, n in enumerate(batch.lengths.tolist()):
        for dependent in range(1, n + 1):
            for head in range(n + 1):
                of_head = batch.vectors[row, head - 1] if head else torch.zeros(3)
                whole = torch.cat(
                    [batch.vectors[row, dependent - 1], of_head, torch.tensor(by_hand(n, dependent, head))]
                )
                expected = model.score((layer @ whole + model.dependent.bias).tanh()).item()
                assert abs(scores[row, dependent - 1, head].item() - expected) < 1e-5
        assert (scores[row, :, n + 1 :] == -torch.inf).all()


def test_it_reads_no_attention() -> None:
    batch = random_batch([3], vectors=2)
    model = DistancesWordsProbe()
    model.build(Sizes((), (), 2))
    before = model(batch)
    batch.attention.zero_()
    assert torch.equal(model(batch), before)
