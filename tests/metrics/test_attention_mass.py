import math

import pytest
import torch
from torch import Tensor

from attention_probing.metrics.attention_mass import NOTHING, STATISTICS, TokenKinds, surface_statistics
from tests.metrics.attention_mass import KINDS, statistics

LENGTHS = (9, 1, 6, 2)
TIME = max(LENGTHS)


def tokens() -> TokenKinds:
    """Of four inputs: the second is one token, the third has no delimiters, and the last no punctuation."""
    real = torch.arange(TIME) < torch.tensor(LENGTHS)[:, None]
    start, end, punctuation = (torch.zeros_like(real) for _ in range(3))
    start[[0, 1, 3], 0] = True
    end[0, [4, 8]] = True
    end[3, 1] = True
    punctuation[0, 6] = True
    punctuation[2, [0, 3]] = True
    return TokenKinds(real, start, end, punctuation)


def attention(causal: bool, sharpness: float) -> Tensor:
    """Of three heads, padded as eager attention is: rows of the padding attend to real tokens."""
    scores = sharpness * torch.randn(len(LENGTHS), 3, TIME, TIME, generator=torch.Generator().manual_seed(2))
    seen = tokens().real[:, None, None].expand_as(scores)
    return scores.masked_fill(~(seen.tril() if causal else seen), -torch.inf).softmax(-1)


def named(found: Tensor) -> dict[str, Tensor]:
    return dict(zip(STATISTICS, found.unbind(-1), strict=True))


@pytest.mark.parametrize("smoothed", [False, True])
@pytest.mark.parametrize("sharpness", [1.0, 12.0])
@pytest.mark.parametrize("causal", [False, True])
def test_every_statistic_equals_loops_over_tokens(causal: bool, sharpness: float, smoothed: bool) -> None:
    weights, kinds = attention(causal, sharpness), tokens()
    found = surface_statistics(weights, kinds, smoothed)
    for item, length in enumerate(LENGTHS):
        of_item = {kind: getattr(kinds, kind)[item, :length].tolist() for kind in KINDS}
        for head in range(3):
            expected = statistics(weights[item, head, :length, :length].double().tolist(), of_item, smoothed)
            assert dict(zip(STATISTICS, found[item, head].tolist(), strict=True)) == pytest.approx(
                expected, abs=2e-5, nan_ok=True
            )


def test_uniform_attention_has_the_entropy_of_its_tokens() -> None:
    kinds = tokens()
    found = named(surface_statistics(attention(False, 0.0), kinds))
    sizes = torch.tensor(LENGTHS)
    torch.testing.assert_close(found["entropy"][:, 0], sizes.log())
    torch.testing.assert_close(found["start_entropy"][[0, 3], 0], sizes[[0, 3]].log())
    torch.testing.assert_close(found["self"][:, 0], 1 / sizes)
    torch.testing.assert_close(found["end"][0, 0], torch.tensor(2 / 9))
    torch.testing.assert_close(found["entropy_without_first"][[0, 2, 3], 0], (sizes[[0, 2, 3]] - 1).log())


def test_a_tiny_remainder_is_renormalised_exactly_and_none_is_left_out() -> None:
    """Two rows leave 1e-5 beside the first position, unevenly; one leaves less than float32 resolves."""
    rest = 1e-5
    row = [1 - rest, 0.75 * rest, 0.25 * rest]
    weights = torch.tensor([row, row, [1.0, NOTHING / 4, NOTHING / 4]])[None, None]
    real = torch.ones(1, 3, dtype=torch.bool)
    nothing = torch.zeros_like(real)
    found = named(surface_statistics(weights, TokenKinds(real, nothing, nothing, torch.tensor([[False, True, False]]))))
    for sink in ("first", "heaviest"):
        assert float(found[f"punctuation_without_{sink}"]) == pytest.approx(0.75, rel=1e-5)
        assert float(found[f"self_without_{sink}"]) == pytest.approx(0.375, rel=1e-5)
        expected = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
        assert float(found[f"entropy_without_{sink}"]) == pytest.approx(expected, rel=1e-5)
    assert math.isnan(float(found["start_without_first"]))
    alone = named(surface_statistics(torch.ones(1, 1, 1, 1), TokenKinds(*[torch.ones(1, 1, dtype=torch.bool)] * 4)))
    assert float(alone["first"]) == 1
    assert math.isnan(float(alone["entropy_without_first"]))
