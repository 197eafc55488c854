import math

import pytest
import torch
from torch import Tensor

from probes.base import Sizes
from probes.head_selection import AttentionOnlyProbe
from results import HeatMap
from tests.probes.batches import random_batch


def probe(layers: int = 2, heads: int = 3) -> AttentionOnlyProbe:
    model = AttentionOnlyProbe()
    model.build(Sizes(tuple(range(layers)), tuple(range(heads))))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model


def score(model: AttentionOnlyProbe, attention: Tensor, n: int, i: int, j: int) -> float:
    """Score of head i for word j, term by term as the paper writes it; i = 0 is ROOT."""
    total, weights, start, end = 0.0, model.weight.detach(), model.start.item(), model.end.item()
    for layer in range(attention.size(0)):
        for head in range(attention.size(1)):
            alpha = attention[layer, head].double()
            forth, back = (float(weight) for weight in weights[:, layer, head])
            if i:
                total += forth * float(alpha[j, i]) + back * float(alpha[i, j])
            else:
                total += forth * (start * float(alpha[j, 0]) + end * float(alpha[j, n + 1]))
                total += back * (start * float(alpha[0, j]) + end * float(alpha[n + 1, j]))
    return total


def test_scores_equal_the_formula_term_by_term() -> None:
    model, batch = probe(), random_batch([5, 2, 1, 4])
    scores = model(batch).detach()
    assert scores.shape == (4, 5, 6)
    for row, n in enumerate(batch.lengths.tolist()):
        for j in range(1, n + 1):
            for i in range(n + 1):
                assert float(scores[row, j - 1, i]) == pytest.approx(
                    score(model, batch.attention[row], n, i, j), abs=1e-4
                )
            assert torch.isneginf(scores[row, j - 1, n + 1 :]).all()


def test_padding_changes_nothing() -> None:
    model, alone, padded = probe(), random_batch([3]), random_batch([3, 9])
    torch.testing.assert_close(model(padded)[:1, :3, :4], model(alone), rtol=0, atol=1e-6)


def test_loss_is_summed_over_real_words() -> None:
    model, batch = probe(), random_batch([4, 2])
    expected = 0.0
    for row, n in enumerate(batch.lengths.tolist()):
        for j in range(1, n + 1):
            scores = [score(model, batch.attention[row], n, i, j) for i in range(n + 1)]
            expected += math.log(sum(map(math.exp, scores))) - scores[int(batch.heads[row, j - 1])]
    loss = model.training_step(batch, 0)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_predictions_never_leave_the_sentence() -> None:
    model, batch = probe(), random_batch([7, 3, 1])
    predicted = model.predict_step(batch, 0)
    assert (predicted[batch.mask] <= batch.lengths[:, None].expand_as(predicted)[batch.mask]).all()
    assert (predicted[batch.mask] >= 0).all()
    assert (predicted[~batch.mask] == -1).all()


def test_it_finds_a_head_that_one_attention_head_points_at() -> None:
    batch = random_batch([6, 6, 5, 4, 6, 3], seed=5)
    for row, n in enumerate(batch.lengths.tolist()):
        for j in range(1, n + 1):
            gold = int(batch.heads[row, j - 1])
            batch.attention[row, 1, 2, j] = 0
            batch.attention[row, 1, 2, j, gold] = 1
    model = AttentionOnlyProbe()
    model.build(Sizes((0, 1), (0, 1, 2)))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for _ in range(60):
        optimizer.zero_grad()
        model.training_step(batch, 0).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert (model.predict(batch, tree=False).heads[batch.mask] == batch.heads[batch.mask]).all()
    assert model.weight[0, 1, 2] == model.weight.max()


def test_figures_hold_the_weights_of_each_direction_with_labels_from_one() -> None:
    model = AttentionOnlyProbe()
    model.bind(Sizes((1, 4), (0, 2, 5)), {})
    with torch.no_grad():
        model.weight.copy_(torch.arange(12.0).view(2, 2, 3))
    figures = model.figures()
    forth, back = figures["weights_dependent_to_head"], figures["weights_head_to_dependent"]
    assert isinstance(forth, HeatMap)
    assert isinstance(back, HeatMap)
    assert forth.values.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert back.values.tolist() == [[6, 7, 8], [9, 10, 11]]
    assert (forth.row_labels, forth.column_labels) == (["2", "5"], ["1", "3", "6"])
