from typing import Literal

import pytest
import torch

from datamodules import AttentionBatch
from probes.base import Sizes
from probes.head_selection import AttentionWordsProbe
from tests.probes.batches import random_batch

DIM = 5


def probe(root: Literal["zero", "learned"] = "zero", bias: bool = True) -> AttentionWordsProbe:
    model = AttentionWordsProbe(bias=bias, root=root)
    model.build(Sizes((0, 1), (0, 1, 2), DIM))
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=random))
    return model


def literal(model: AttentionWordsProbe, batch: AttentionBatch, row: int) -> torch.Tensor:
    """The paper's formula over the whole tensor of pairs, `[n+1, n+1, 2·dim]`, ROOT at place 0; `[n, n+1]`."""
    n, heads = int(batch.lengths[row]), 6
    alpha = batch.attention[row].double().flatten(0, 1)[:, : n + 2, : n + 2]
    start, end = model.start.double(), model.end.double()
    # ROOT's row and column are mixed from those of the two delimiters.
    mixed = torch.zeros(heads, n + 1, n + 1, dtype=torch.double)
    mixed[:, 1:, 1:] = alpha[:, 1:-1, 1:-1]
    mixed[:, 1:, 0] = start * alpha[:, 1:-1, 0] + end * alpha[:, 1:-1, n + 1]
    mixed[:, 0, 1:] = start * alpha[:, 0, 1:-1] + end * alpha[:, n + 1, 1:-1]
    words = torch.zeros(n + 1, DIM, dtype=torch.double)
    words[1:] = batch.vectors[row, :n].double()
    if model.root == "learned":
        words[0] = model.root_vector.double()
    pairs = torch.cat([words[:, None].expand(-1, n + 1, -1), words[None].expand(n + 1, -1, -1)], dim=2)
    if model.root == "zero":
        pairs[:, 0] = 0
    weight = torch.cat([model.dependent, model.head]).double()  # [2·dim, 2·heads]
    by_pair = (pairs @ weight).view(n + 1, n + 1, 2, heads) + model.bias.double()
    scores = torch.einsum("jik,kji->ji", by_pair[:, :, 0], mixed) + torch.einsum("jik,kij->ji", by_pair[:, :, 1], mixed)
    return scores[1:]


@pytest.mark.parametrize("root", ["zero", "learned"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_factored_score_is_the_literal_formula(root: Literal["zero", "learned"], bias: bool) -> None:
    model, batch = probe(root, bias), random_batch([5, 2, 1, 4], vectors=DIM)
    scores = model(batch).detach()
    assert scores.shape == (4, 5, 6)
    for row, n in enumerate(batch.lengths.tolist()):
        torch.testing.assert_close(
            scores[row, :n, : n + 1].double(), literal(model, batch, row).detach(), atol=1e-5, rtol=1e-5
        )
        assert (scores[row, :, n + 1 :] == -torch.inf).all()


def test_its_gradient_is_that_of_the_literal_formula() -> None:
    model, batch = probe("learned"), random_batch([5, 2, 4], vectors=DIM)
    parameters = list(model.parameters())
    found = torch.autograd.grad(model.cross_entropy(batch).sum(), parameters)
    loss = torch.zeros((), dtype=torch.double)
    for row, n in enumerate(batch.lengths.tolist()):
        logits = literal(model, batch, row)
        loss = loss - logits.log_softmax(1)[torch.arange(n), batch.heads[row, :n]].sum()
    for factored, slow in zip(found, torch.autograd.grad(loss, parameters), strict=True):
        torch.testing.assert_close(factored, slow, atol=1e-5, rtol=1e-4)


def test_without_biases_only_the_words_weigh() -> None:
    model, batch = probe(bias=False), random_batch([4], vectors=DIM)
    batch.vectors.zero_()
    assert (model(batch) == 0).all()


def test_words_tell_apart_what_attention_does_not() -> None:
    """The same attention everywhere; who heads whom follows from the words alone."""
    batch = random_batch([4] * 6, vectors=DIM, seed=3)
    batch.attention.fill_(1 / 6)
    batch.heads[:] = torch.tensor([0, 1, 1, 1])
    batch.vectors[:] = torch.eye(DIM)[:4]
    model = AttentionWordsProbe()
    model.build(Sizes((0, 1), (0, 1, 2), DIM))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.1)
    for _ in range(100):
        optimizer.zero_grad()
        model.training_step(batch, 0).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert (model.predict(batch, tree=False).heads == batch.heads).all()
