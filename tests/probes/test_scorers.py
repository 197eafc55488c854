import torch

from probes.scorers import attention_scores, candidates, root_scores, weighted_scores

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
    first, second = random(BATCH, SLOTS, 2, K, seed=1), random(BATCH, SLOTS, 2, K, seed=2)
    scores = weighted_scores(attention, first, second)
    for b in range(BATCH):
        for x in range(SLOTS):
            for y in range(SLOTS):
                there = (first[b, x, 0] + second[b, y, 0]) @ attention[b, :, x, y].float()
                back = (first[b, x, 1] + second[b, y, 1]) @ attention[b, :, y, x].float()
                torch.testing.assert_close(scores[b, x, y], there + back)


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


def test_scores_of_root_alone_are_those_among_all() -> None:
    attention, weight, lengths = random(2, K, 5, 5).half(), random(2, K, seed=1), torch.tensor([3, 1])
    start, end = torch.tensor(2.0), torch.tensor(-1.0)
    whole = candidates(attention_scores(attention, weight), lengths, start, end)
    torch.testing.assert_close(root_scores(attention, weight, lengths, start, end), whole[:, :, 0])


def test_the_gradient_of_weighted_scores_is_that_of_the_sums() -> None:
    attention, weight = random(BATCH, K, SLOTS, SLOTS), random(BATCH, SLOTS, SLOTS, seed=3)
    terms = [random(BATCH, SLOTS, 2, K, seed=seed).requires_grad_() for seed in (1, 2)]
    found = torch.autograd.grad((weighted_scores(attention, *terms) * weight).sum(), terms)
    first, second = (term.permute(2, 0, 3, 1) for term in terms)  # [2, batch, K, positions] each
    out = ((first[0, :, :, :, None] + second[0, :, :, None, :]) * attention).sum(1)
    back = ((first[1, :, :, :, None] + second[1, :, :, None, :]) * attention.mT).sum(1)
    for kernel, plain in zip(found, torch.autograd.grad(((out + back) * weight).sum(), terms), strict=True):
        torch.testing.assert_close(kernel, plain)
