"""Features of the attention of each head, against loops over its rows."""

import math

import pytest
import torch
from torch import Tensor

from attention_probing.metrics.attention_features import (
    ANSWER_FEATURES,
    FEATURE_UNITS,
    FEATURES,
    lookback_ratios,
    mean_features,
    row_features,
)
from attention_probing.metrics.distributions import renyi_entropy

LENGTHS = (5, 2, 4)


def maps(seed: int = 0, heads: int = 3) -> tuple[Tensor, Tensor]:
    """Attention of three texts, zero in the columns of the padding, and the mask of their tokens."""
    random = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    scores = 3 * torch.randn(len(LENGTHS), heads, max(LENGTHS), max(LENGTHS), generator=random, dtype=torch.float64)
    return scores.masked_fill(~mask[:, None, None], -torch.inf).softmax(-1), mask


def by_loops(weights: Tensor, n: int) -> list[float]:
    """The means over the first n rows of one map."""
    entropy = first = distance = 0.0
    for i in range(n):
        row = [float(weight) for weight in weights[i, :n]]
        entropy += -math.log(sum(weight**2 for weight in row)) / n
        first += row[0] / n
        distance += sum(weight * abs(i - j) for j, weight in enumerate(row)) / n
    return [entropy, first, distance]


def test_the_features_are_those_of_loops_over_real_rows() -> None:
    weights, mask = maps()
    found = mean_features(row_features(weights), mask)
    for text, n in enumerate(LENGTHS):
        for head in range(3):
            assert found[text, head].tolist() == pytest.approx(by_loops(weights[text, head], n))
    assert list(FEATURE_UNITS) == list(ANSWER_FEATURES) == [*FEATURES, "lookback"]


def test_known_rows_have_known_features() -> None:
    even, one = torch.full((4,), 0.25), torch.tensor([0.0, 0.0, 0.0, 1.0])
    weights = torch.stack([even, one])[None, None]
    features = row_features(torch.cat([weights, weights], 2))
    assert features[0, 0, 0].tolist() == pytest.approx([math.log(4), 0.25, 1.5])
    assert features[0, 0, 3].tolist() == pytest.approx([0, 0, 0])
    assert float(renyi_entropy(torch.tensor([0.5, 0.5, 0.0]))) == pytest.approx(math.log(2))


def test_a_row_whose_rest_went_to_a_sink_is_divided_by_its_sum() -> None:
    weights, mask = maps()
    whole, less = (mean_features(row_features(of), mask) for of in (weights, weights / 5))
    torch.testing.assert_close(less[..., 0::2], whole[..., 0::2])
    torch.testing.assert_close(less[..., 1], whole[..., 1] / 5)


def test_the_scratch_is_overwritten_and_the_weights_are_not() -> None:
    weights, _ = maps()
    before, scratch = weights.clone(), torch.full_like(weights, torch.nan)
    torch.testing.assert_close(row_features(weights, scratch=scratch), row_features(weights))
    torch.testing.assert_close(weights, before, rtol=0, atol=0)


def test_rows_that_belong_to_no_position_have_a_first_position_and_no_distance() -> None:
    """As the rows of two sentences, of words 1–2 and 3–5 of one text."""
    weights = torch.tensor([[0.0, 0.25, 0.75, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.5, 0.5, 0.0]])[None, None]
    features = row_features(weights, torch.tensor([[1, 3]]))
    assert features[0, 0, :, 0].tolist() == pytest.approx([-math.log(0.0625 + 0.5625), math.log(2)])
    assert features[0, 0, :, 1].tolist() == [0.25, 0.5]
    assert features[..., 2].isnan().all()


def test_lookback_is_that_of_loops_over_the_answer() -> None:
    random = torch.Generator().manual_seed(1)
    scores = torch.randn(3, 2, 6, 6, generator=random, dtype=torch.float64)
    weights = scores.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
    context = torch.tensor([1, 3, 5])
    found = lookback_ratios(weights, context)
    for text, n in enumerate(context.tolist()):
        for head in range(2):
            for row in range(6):
                if row < n:
                    assert math.isnan(found[text, head, row])
                    continue
                own = weights[text, head, row].tolist()
                to_context = sum(own[:n]) / n
                to_answer = sum(own[n : row + 1]) / (row + 1 - n)
                assert float(found[text, head, row]) == pytest.approx(to_context / (to_context + to_answer))
    even = torch.ones(1, 1, 4, 4).tril()
    even = even / even.sum(-1, keepdim=True)
    assert lookback_ratios(even, torch.tensor([2]))[0, 0, 2:].tolist() == pytest.approx([0.5, 0.5])
    torch.testing.assert_close(lookback_ratios(weights / 5, context), found, equal_nan=True)  # the rest to a sink
