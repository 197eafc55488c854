"""Soft erasure against loops over tokens and dimensions, and against numbers worked out by hand."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from zlib import crc32

import numpy as np
import pytest
import torch

from fidelity import SoftRationale
from fidelity.checkpoints import Checkpoint
from fidelity.classified import ClassifiedBatch, classify
from fidelity.explanations import FILE
from fidelity.saliency import RANKINGS, Saliency
from fidelity.soft import AMOUNTS, COLUMNS, equal_amounts, falls, scaled
from models import AttentionClassifier, EmbeddingSpec, NoEncoder, UniformAttention
from models.text_model import TextSizes
from tests.fidelity import tiny
from tests.fidelity.tiny import TEXTS, Kind, classified, close, measurements, saliency_of
from tests.models.batches import VOCABULARY, batch_of

SOME = ("random", "attention", "leave_one_out")


def given(*orders: list[float]) -> Saliency:
    """Stands in for a saliency whose only ranking has these values."""
    return cast(Saliency, SimpleNamespace(rankings=lambda ranking, draws: torch.tensor(orders)[:, None]))


def slow_amounts(scores: list[float], total: float) -> list[float]:
    """min(1, c·s) with the sum `total`, by bisection; what is missing without bound on c is shared evenly."""
    positive = sum(score > 0 for score in scores)
    if total >= positive:
        return [1.0 if score > 0 else (total - positive) / (len(scores) - positive) for score in scores]
    low, high = 0.0, 1e40
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(min(1, middle * score) for score in scores) < total else (low, middle)
    return [min(1, low * score) for score in scores]


def slow_fall(one: ClassifiedBatch, keep: dict[int, float], noise: np.ndarray) -> float:
    """max(0, p − p′) of a text whose tokens keep each number with a probability, by token."""
    embedded = one.output.embedded.clone()
    for token, probability in keep.items():
        for place in range(embedded.size(2)):
            if float(noise[token, place]) >= probability:
                embedded[0, token, place] = 0
    changed = one.checkpoint.model(one.batch, embedded=embedded).logits.softmax(-1)[0, int(one.predicted)]
    return max(0.0, float(one.confidence) - float(changed))


def slow_measures(one: ClassifiedBatch, orders: list[list[float]], draws: int) -> list[float]:
    """The four columns of a text, from the values of its positions in each order."""
    positions = one.token_to_position[0].tolist()
    tokens = {token: position for token, position in enumerate(positions) if position >= 0}
    seed = (one.seed, crc32(b"soft"), int(one.batch.index))
    shape = (draws, len(positions), one.output.embedded.size(-1))
    noise = np.random.default_rng(seed).random(shape, np.float32)
    whole = slow_fall(one, dict.fromkeys(tokens, 0.0), noise[0])
    if whole == 0:
        return [math.nan] * 4
    found: dict[str, list[float]] = {column: [] for column in COLUMNS}
    for draw in range(draws):
        values = orders[draw % len(orders)]
        inside = [values[position] for position in set(tokens.values())]
        low, high = min(inside), max(inside)
        s = {token: (values[position] - low) / (high - low) for token, position in tokens.items()}
        forms = [("", s)]
        for amount in AMOUNTS:
            forms.append(("equal_", dict(zip(s, slow_amounts(list(s.values()), amount * len(s)), strict=True))))
        for form, keep in forms:
            fall = slow_fall(one, keep, noise[draw])
            found[f"{form}sufficiency"].append(min(max((whole - fall) / whole, 0), 1))
            fall = slow_fall(one, {token: 1 - probability for token, probability in keep.items()}, noise[draw])
            found[f"{form}comprehensiveness"].append(min(max(fall / whole, 0), 1))
    return [float(np.mean(found[column])) for column in COLUMNS]


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_the_measures_are_those_of_loops_over_tokens_and_dimensions(kind: Kind) -> None:
    draws = 2
    numbers = measurements(SoftRationale(SOME, draws=draws), classified(kind, time=9)).numbers
    defined = 0
    for row in range(len(TEXTS)):
        one = classified(kind, [row])
        for ranking in SOME:
            orders = saliency_of(one).rankings(ranking, draws)[:, 0].tolist()
            expected = slow_measures(one, orders, draws)
            for column, value in zip(COLUMNS, expected, strict=True):
                assert float(numbers[f"{ranking}.{column}"][row]) == pytest.approx(value, abs=1e-6, nan_ok=True)
            assert bool(numbers["undefined"][row]) == math.isnan(expected[0])
            defined += not math.isnan(expected[0])
    assert defined > 0


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_a_text_alone_is_measured_as_in_a_batch(kind: Kind) -> None:
    test = SoftRationale(draws=2)
    together = measurements(test, classified(kind, time=9)).numbers
    assert list(together) != []
    assert set(together) == set(test.columns(3))
    for row, one in enumerate(tiny.one_by_one(kind)):
        for column, values in measurements(test, one).numbers.items():
            close(together[column][row : row + 1].double(), values.double(), 1e-6)


def test_probabilities_of_equal_amounts_by_hand() -> None:
    scores = torch.tensor(
        [[1, 0.5, 0.25, 0.25, 0], [1, 0.5, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.float64
    )  # the last token is a delimiter
    inside = torch.tensor([[True] * 4 + [False]] * 3)
    half, most, nearly = equal_amounts(scores, inside, (0.5, 0.75, 0.9)).tolist()
    assert half == [[1, 0.5, 0.25, 0.25, 0], [1, 1, 0, 0, 0], [0.5] * 4 + [0]]
    assert most == [[1, 1, 0.5, 0.5, 0], [1, 1, 0.5, 0.5, 0], [0.75] * 4 + [0]]
    for row, expected in zip(nearly, ([1, 1, 0.8, 0.8, 0], [1, 1, 0.8, 0.8, 0], [0.9] * 4 + [0]), strict=True):
        assert row == pytest.approx(expected)


def test_every_ranking_keeps_the_same_expected_amount() -> None:
    random = torch.Generator().manual_seed(0)
    inside = torch.arange(30) < torch.randint(2, 31, (40, 1), generator=random)
    even = torch.rand(40, 30, dtype=torch.float64, generator=random)
    for values in (even, even**20, (even - 0.7).clamp(min=0), torch.zeros_like(even), (even > 0.5).double()):
        scores = scaled(values[None], inside)[0]
        assert ((scores >= 0) & (scores <= 1)).all()
        found = equal_amounts(scores, inside)
        for amount, probabilities in zip(AMOUNTS, found, strict=True):
            close(probabilities.sum(1), amount * inside.sum(1).double(), 1e-9)
            assert ((probabilities >= 0) & (probabilities <= 1 + 1e-12)).all()
            assert (probabilities[~inside] == 0).all()
            for row in range(40):
                own = inside[row]
                expected = slow_amounts(scores[row, own].tolist(), amount * int(own.sum()))
                assert probabilities[row, own].tolist() == pytest.approx(expected, abs=1e-6)
    # The original form keeps more under one ranking than under another.
    kept = [float(scaled(values[None], inside)[0].sum() / inside.sum()) for values in (even, even**20)]
    assert kept[0] > 3 * kept[1]


def test_the_numbers_that_are_kept_are_as_many_as_expected() -> None:
    found = classified("flat")
    inside, kept = found.token_to_position >= 0, []
    noise = found.token_noise("soft", 400, 5)
    for ranking in ("attention", "leave_one_out", "random"):
        values = scaled(saliency_of(found).rankings(ranking, 1).detach(), found.words)[0]
        for amount, keep in zip(AMOUNTS, equal_amounts(values, inside), strict=True):
            share = ((noise < keep[..., None]) & inside[..., None]).double().mean((0, 3)).sum() / inside.sum()
            kept.append(abs(float(share) - amount))
    assert max(kept) < 0.01  # standard error below .003


def linear(embeddings: list[float], weight: float, bias: float) -> Checkpoint:
    """Logits (0, bias + weight · mean of the words), for embeddings of one number of the words a, b, …."""
    model = AttentionClassifier(NoEncoder(), UniformAttention(), EmbeddingSpec(size=1))
    model.build(TextSizes(2, VOCABULARY))
    first = VOCABULARY.words.index("a")
    with torch.no_grad():
        model.embedding.rows.weight[first : first + len(embeddings), 0] = torch.tensor(embeddings)
        model.decision.weight.copy_(torch.tensor([[0.0], [weight]]))
        model.decision.bias.copy_(torch.tensor([0.0, bias]))
    model = model.double().eval().requires_grad_(False)
    return Checkpoint(Path("a.ckpt"), "0" * 64, {"seed_everything": 0}, "linear, seed 0", "linear", model)


def classified_words(checkpoint: Checkpoint, count: int, level: Any = None) -> ClassifiedBatch:  # noqa: ANN401
    first = VOCABULARY.words.index("a")
    batch = batch_of([list(range(first, first + count))])
    _, found = classify(checkpoint, batch, level, seed=0, vocabulary=VOCABULARY)
    assert found is not None
    return found


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_a_linear_classifier_by_hand() -> None:
    """Words 3, 1 and −1 of weight 2 / 3 each, and bias −1; the ranking gives all to the first word."""
    found = classified_words(linear([3.0, 1.0, -1.0], 2.0, -1.0), 3)
    numbers = SoftRationale(["attention"]).measure(found, given([5.0, 2.0, 2.0])).numbers
    full, nothing = sigmoid(2 * 3 / 3 - 1), sigmoid(-1)
    alone, without = sigmoid(2 * 3 / 3 - 1), sigmoid(2 * 0 / 3 - 1)
    assert float(numbers["attention.sufficiency"]) == pytest.approx(1 - (full - alone) / (full - nothing))
    assert float(numbers["attention.comprehensiveness"]) == pytest.approx((full - without) / (full - nothing))
    numbers = SoftRationale(["attention"]).measure(found, given([2.0, 5.0, 2.0])).numbers
    alone, without = sigmoid(2 * 1 / 3 - 1), sigmoid(2 * 2 / 3 - 1)
    assert float(numbers["attention.sufficiency"]) == pytest.approx(1 - (full - alone) / (full - nothing))
    assert float(numbers["attention.comprehensiveness"]) == pytest.approx((full - without) / (full - nothing))
    # Without the second and third words p is what it was, and without the third alone it rises: clipped to the range.
    numbers = SoftRationale(["attention"]).measure(found, given([2.0, 2.0, 5.0])).numbers
    assert float(numbers["attention.comprehensiveness"]) == 0
    assert float(numbers["attention.sufficiency"]) == 0


def test_equal_values_remove_nothing_and_are_even_in_equal_amounts() -> None:
    found = classified_words(linear([3.0, 1.0, -1.0], 2.0, -1.0), 3)
    numbers = SoftRationale(["attention"]).measure(found, given([1.0, 1.0, 1.0])).numbers
    assert float(numbers["attention.sufficiency"]) == 0
    assert float(numbers["attention.comprehensiveness"]) == 0
    noise = found.token_noise("soft", 1, 1)
    even = torch.tensor(AMOUNTS, dtype=torch.float64).view(-1, 1, 1, 1).expand(-1, 1, 1, 3)
    whole = sigmoid(1) - sigmoid(-1)
    enough = (1 - falls(found, even, noise) / whole).clamp(0, 1).mean()
    assert float(numbers["attention.equal_sufficiency"]) == pytest.approx(float(enough))


@pytest.mark.parametrize(("weight", "bias"), [(0.0, 1.0), (2.0, 1.0)])
def test_a_text_that_loses_nothing_without_its_words_is_undefined_and_counted(weight: float, bias: float) -> None:
    found = classified_words(linear([-1.0, 0.5], weight, bias), 2)  # with a weight, the words speak against the class
    test = SoftRationale(["attention"])
    numbers = test.measure(found, given([1.0, 2.0])).numbers
    assert float(numbers["undefined"]) == 1
    assert all(values.isnan().all() for name, values in numbers.items() if name != "undefined")
    assert test.scores(2, None).keys() == {"undefined", *(f"attention.{column}" for column in COLUMNS)}


def test_delimiters_and_padding_are_kept_whole() -> None:
    found = classified("transformer", time=9)
    given_embedded: list[torch.Tensor] = []

    def model(batch: Any, *, embedded: torch.Tensor) -> Any:  # noqa: ANN401
        given_embedded.append(embedded)
        return found.output

    watched = replace(found, checkpoint=replace(found.checkpoint, model=cast(Any, model)))
    keep = torch.zeros(1, 1, *found.batch.tokens.shape, dtype=torch.float64)
    falls(watched, keep, found.token_noise("soft", 1, found.output.embedded.size(-1)))
    outside = found.token_to_position < 0
    assert torch.equal(given_embedded[0][outside], found.output.embedded[outside])
    assert (given_embedded[0][~outside] == 0).all()


def test_rankings_share_the_mask_and_a_file_is_named_as_elsewhere() -> None:
    test = SoftRationale(["attention", f"{FILE}my/scores.jsonl"])
    assert test.columns(2)[4:] == [*(f"scores.{column}" for column in COLUMNS), "undefined"]
    found = classified("flat")
    one, other = (measurements(SoftRationale([name]), found).numbers for name in RANKINGS[:2])
    both = measurements(SoftRationale(RANKINGS[:2]), found).numbers
    for alone in (one, other):
        for name, values in alone.items():
            close(both[name].double(), values.double())
