import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from models.attention import AdditiveAttention, Attention, DotAttention, UniformAttention

SIZE, SLOTS = 6, 7
KINDS: dict[str, Callable[[], Attention]] = {
    "additive": AdditiveAttention,
    "additive of 4": lambda: AdditiveAttention(4),
    "dot": DotAttention,
    "uniform": UniformAttention,
}


def built(name: str) -> Attention:
    torch.manual_seed(0)
    attention = KINDS[name]()
    attention.build(SIZE)
    return attention


def hidden_and_mask() -> tuple[Tensor, Tensor]:
    """Three texts: all slots, none, and some between others, as words between delimiters are."""
    random = torch.Generator().manual_seed(2)
    mask = torch.tensor([[1] * SLOTS, [0] * SLOTS, [0, 1, 1, 0, 1, 0, 0]], dtype=torch.bool)
    return torch.randn(3, SLOTS, SIZE, generator=random) * 5, mask


@torch.no_grad()
def score_by_hand(attention: Attention, state: Tensor) -> float:
    if isinstance(attention, AdditiveAttention):
        total = 0.0
        for row, bias, weight in zip(
            attention.projection.weight, attention.projection.bias, attention.query.weight[0], strict=True
        ):
            total += float(weight) * math.tanh(float(row.double() @ state.double()) + float(bias))
        return total
    if isinstance(attention, DotAttention):
        return sum(float(h) * float(q) for h, q in zip(state, attention.query.weight[0], strict=True)) / math.sqrt(SIZE)
    return 0.0


@pytest.mark.parametrize("name", KINDS)
def test_weights_are_the_softmax_of_the_scores_of_the_slots_that_may_get_any(name: str) -> None:
    attention = built(name)
    hidden, mask = hidden_and_mask()
    weights = attention(hidden, mask)
    for row in range(3):
        scores = [
            score_by_hand(attention, state) if may else None for state, may in zip(hidden[row], mask[row], strict=True)
        ]
        total = sum(math.exp(score) for score in scores if score is not None)
        expected = [0.0 if score is None else math.exp(score) / total for score in scores]
        torch.testing.assert_close(weights[row], torch.tensor(expected), atol=1e-6, rtol=1e-5)
    assert (weights[~mask] == 0).all()


def test_additive_attention_has_half_the_size_between_unless_another_is_asked_for() -> None:
    for name, between in (("additive", 3), ("additive of 4", 4)):
        attention = built(name)
        assert isinstance(attention, AdditiveAttention)
        assert attention.projection.weight.shape == (between, SIZE)


@pytest.mark.parametrize("name", KINDS)
def test_hidden_states_outside_the_mask_change_nothing_and_get_no_gradient(name: str) -> None:
    attention = built(name)
    hidden, mask = hidden_and_mask()
    dirty = hidden.masked_fill(~mask[..., None], 1e4).requires_grad_()
    torch.testing.assert_close(attention(dirty, mask), attention(hidden, mask), atol=0, rtol=0)
    if name != "uniform":
        with torch.autograd.set_detect_anomaly(True):
            (gradient,) = torch.autograd.grad(attention(dirty, mask)[:, 1].sum(), dirty)
        assert (gradient[~mask] == 0).all()
        assert gradient.isfinite().all()
        assert (gradient[0] != 0).any()


def test_scores_too_large_for_an_exponential_are_no_matter() -> None:
    attention = built("dot")
    assert isinstance(attention, DotAttention)
    weights = attention(torch.tensor([[[1e6] * SIZE, [0.0] * SIZE, [-1e6] * SIZE]]), torch.ones(1, 3, dtype=torch.bool))
    assert sorted(weights[0].tolist()) == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("name", KINDS)
def test_a_batch_without_a_text_has_no_weights(name: str) -> None:
    assert built(name)(torch.zeros(0, 0, SIZE), torch.zeros(0, 0, dtype=torch.bool)).shape == (0, 0)


def test_uniform_attention_learns_nothing() -> None:
    assert not list(built("uniform").parameters())
