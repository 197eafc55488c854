import torch

from probes.scorers import attention_scores, candidates, weighted_scores

BATCH, K, SLOTS = 3, 4, 5


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def test_attention_scores_pair_by_pair() -> None:
    attention, weight = random(BATCH, K, SLOTS, SLOTS).half(), random(2, K, seed=1)
    scores = attention_scores(attention, weight)
    for b in range(BATCH):
        for x in range(SLOTS):
            for y in range(SLOTS):
                there, back = attention[b, :, x, y].float(), attention[b, :, y, x].float()
                torch.testing.assert_close(scores[b, x, y], weight[0] @ there + weight[1] @ back)


def test_weighted_scores_pair_by_pair() -> None:
    attention = random(BATCH, K, SLOTS, SLOTS).half()
    first, second = random(BATCH, 2, K, SLOTS, seed=1), random(BATCH, 2, K, SLOTS, seed=2)
    scores = weighted_scores(attention, first, second)
    for b in range(BATCH):
        for x in range(SLOTS):
            for y in range(SLOTS):
                there = (first[b, 0, :, x] + second[b, 0, :, y]) @ attention[b, :, x, y].float()
                back = (first[b, 1, :, x] + second[b, 1, :, y]) @ attention[b, :, y, x].float()
                torch.testing.assert_close(scores[b, x, y], there + back)


def test_weights_that_are_the_same_everywhere_are_those_of_attention_alone() -> None:
    attention, weight = random(BATCH, K, SLOTS, SLOTS), random(2, K, seed=1)
    everywhere = weight[None, :, :, None].expand(BATCH, -1, -1, SLOTS)
    weighted = weighted_scores(attention, everywhere, torch.zeros(BATCH, 2, K, SLOTS))
    torch.testing.assert_close(weighted, attention_scores(attention, weight))


def test_root_is_mixed_from_the_delimiters_of_each_sentence() -> None:
    scores, lengths = random(2, 5, 5), torch.tensor([3, 1])
    start, end = torch.tensor(2.0), torch.tensor(-1.0)
    found = candidates(scores, lengths, start, end)
    assert found.shape == (2, 3, 4)
    torch.testing.assert_close(found[0, :, 0], 2 * scores[0, 1:4, 0] - scores[0, 1:4, 4])
    torch.testing.assert_close(found[1, :1, 0], 2 * scores[1, 1:2, 0] - scores[1, 1:2, 2])
    assert torch.equal(found[0, :, 1:], scores[0, 1:4, 1:4])
    assert torch.equal(found[1, :, 1], scores[1, 1:4, 1])
    assert (found[1, :, 2:] == -torch.inf).all()
