"""Soft erasure against loops over tokens, and equal amounts against a search for the factor."""

import math
from dataclasses import replace
from statistics import fmean
from zlib import crc32

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from attention_probing.fidelity import Explainer, SoftErasure
from attention_probing.fidelity.classified import ClassifiedBatch
from attention_probing.fidelity.soft_erasure import SHARES, equal_shares, scale_scores
from attention_probing.models.text_classifier import WORD
from tests.fidelity.tiny import (
    LEVELS,
    TEXTS,
    Kind,
    classified,
    close,
    copies_of,
    measurements,
    saliency_of,
    scores_of,
)

NAN = math.nan


def slow_share(scores: list[float], share: float) -> list[float]:
    """Probabilities min(1, c s) with the mean `share`, by halving the interval of c."""
    positive = sum(score > 0 for score in scores)
    missing = share * len(scores) - positive
    if missing >= 0:
        return [1.0 if score > 0 else missing / (len(scores) - positive) for score in scores]
    low, high = 0.0, 1e30
    for _ in range(300):
        middle = (low + high) / 2
        if fmean(min(1.0, middle * score) for score in scores) < share:
            low = middle
        else:
            high = middle
    return [min(1.0, high * score) for score in scores]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.75, 0.9])
def test_equal_amounts_are_those_of_the_factor_that_a_search_finds(share: float) -> None:
    random = np.random.default_rng(0)
    rows: list[list[float]] = [
        [1, 0, 0, 0],  # one word cannot be half of the text
        [1, 1, 0, 0],  # exactly half of it
        [1, 1, 1, 1],
        [1, 0.5, 0.25, 0],
        [1, 1e-9, 1e-9, 0],
        *random.random((20, 4)).tolist(),
        *(random.random((20, 4)) ** 8).tolist(),
    ]
    scores = torch.tensor([[*row, 0.0, 0.0] for row in rows], dtype=torch.float64)[None]
    words = torch.tensor([[True] * 4 + [False] * 2] * len(rows))
    found = equal_shares(scores, words, share)[0]
    for row, probabilities in zip(rows, found, strict=True):
        assert probabilities[:4].tolist() == pytest.approx(slow_share(row, share), abs=1e-7)
        assert probabilities[:4].mean().item() == pytest.approx(share, abs=1e-9)
        assert probabilities[4:].tolist() == [0, 0]


def test_scores_without_a_difference_share_equally_and_cannot_be_scaled() -> None:
    words = torch.tensor([[True, True, True, False]])
    scores = torch.tensor([[[0.2, 0.2, 0.2, -math.inf]], [[-1.0, 3.0, 1.0, 7.0]]])
    scaled = scale_scores(scores, words)
    close(scaled, torch.tensor([[[NAN, NAN, NAN, 0]], [[0, 1, 0.5, 0]]], dtype=torch.float64))
    shares = equal_shares(scaled, words, 0.3)
    close(shares[0], torch.tensor([[0.3, 0.3, 0.3, 0]], dtype=torch.float64))
    close(shares[1], torch.tensor([[0, 0.6, 0.3, 0]], dtype=torch.float64))


def slow_probability(text: ClassifiedBatch, keep: list[float], purpose: str) -> float:
    """Probability of the class of one text whose dimensions are kept with a probability for each position."""
    embedded = text.output.embedded.clone()
    _, time, size = embedded.shape
    random = np.random.default_rng((text.seed, crc32(f"soft.{purpose}".encode()), int(text.batch.index[0])))
    uniform = random.random((time, size), np.float32)
    for token in range(time):
        position = int(text.token_to_position[0, token])
        if position < 0:
            continue  # a delimiter
        for dimension in range(size):
            if not uniform[token, dimension] < keep[position]:
                embedded[0, token, dimension] = 0
    logits = text.checkpoint.model(text.batch, embedded=embedded).logits
    return float(logits.softmax(-1)[0, text.predicted[0]])


def slow_measures(text: ClassifiedBatch, scores: list[float]) -> dict[str, float]:
    """The five numbers of one order of the words of a text; positions without a word have the score -inf."""
    words = text.words[0].tolist()
    inside = [score for score, is_word in zip(scores, words, strict=True) if is_word]
    low, high = min(inside), max(inside)
    is_flat = low == high  # where every sentence has one word
    scaled = [1.0 if is_flat else (score - low) / (high - low) for score in inside]

    def lost(keep: list[float], purpose: str) -> float:
        values = iter(keep)
        of_positions = [next(values) if is_word else 0.0 for is_word in words]
        p = float(text.confidence[0])
        blank = slow_probability(text, [0.0] * len(words), "blank")
        if p - blank <= 1e-4:
            return NAN
        return min(1.0, max(0.0, p - slow_probability(text, of_positions, purpose)) / (p - blank))

    sufficient, needed = [], []
    for number, share in enumerate(SHARES):
        kept = slow_share(scaled, share)
        sufficient.append(1 - lost(kept, f"soft_ns_equal.{number}"))
        needed.append(lost([1 - keep for keep in kept], f"soft_nc_equal.{number}"))
    return {
        "soft_ns": NAN if is_flat else 1 - lost(scaled, "soft_ns.0"),
        "soft_nc": NAN if is_flat else lost([1 - score for score in scaled], "soft_nc.0"),
        "soft_ns_equal": fmean(sufficient),
        "soft_nc_equal": fmean(needed),
        "kept": NAN if is_flat or math.isnan(sufficient[0]) else fmean(scaled),
    }


@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_every_number_is_that_of_a_loop_over_tokens_and_dimensions(kind: Kind, level: str | None) -> None:
    rankings = ["random", "attention", "leave_one_out"]
    numbers = measurements(SoftErasure(rankings), classified(kind, time=9, level=level))
    for row in range(len(TEXTS)):
        alone = classified(kind, [row], level=level)
        for ranking in rankings:
            orders = saliency_of(alone).rankings(ranking, SoftErasure.draws)[:, 0].tolist()
            slow = [slow_measures(alone, scores) for scores in orders]
            for measure in slow[0]:
                expected = fmean(numbers_of_order[measure] for numbers_of_order in slow)
                value = numbers[f"{ranking}.{measure}"][row].item()
                assert value == pytest.approx(expected, abs=1e-6, nan_ok=True), (ranking, measure)


def test_a_decision_that_needs_no_words_is_undefined_and_counted() -> None:
    test = SoftErasure(["attention"])
    columns = measurements(test, classified("flat"))
    undefined = columns["undefined"].bool()
    assert undefined.any()
    assert not undefined.all()
    for measure in ("soft_nc_equal", "soft_ns_equal", "soft_nc", "soft_ns", "kept"):
        assert columns[f"attention.{measure}"].isnan().tolist() == undefined.tolist()


class Powers(Explainer):
    """Scores of leave-one-out to a power: the same order, other amounts."""

    def __init__(self, power: float) -> None:
        self.power = power
        self.name = f"power_{power:g}"

    def scores(self, classified: ClassifiedBatch) -> Tensor:
        values = saliency_of(classified).leave_one_out.clamp(min=0)
        return values**self.power


def test_published_amounts_follow_the_scores_and_equal_amounts_do_not() -> None:
    """With flatter scores `kept` rises, and Soft-NS with it, whatever the ranking is worth."""
    test = SoftErasure([Powers(0.1), Powers(4)])
    columns = measurements(test, classified("flat"))
    frame = pd.DataFrame({name: values.numpy() for name, values in columns.items()})
    found = scores_of(test, frame)
    assert found["power_0.1.kept"] > found["power_4.kept"] + 0.05
    assert found["power_0.1.soft_ns"] > found["power_4.soft_ns"]
    assert found["power_0.1.soft_ns_equal"] < found["power_4.soft_ns_equal"] + 0.05


def test_the_words_that_matter_are_found() -> None:
    columns = measurements(SoftErasure(["random", "leave_one_out"]), classified("flat"))
    for measure in ("soft_nc_equal", "soft_ns_equal"):
        gain = columns[f"leave_one_out.{measure}"] - columns[f"random.{measure}"]
        assert gain.nanmean() > 0.05


@pytest.mark.parametrize(("kind", "level"), [("flat", None), ("han", WORD), ("transformer", None)])
def test_the_number_of_copies_is_known_before(kind: Kind, level: str | None) -> None:
    taken, said = copies_of(SoftErasure(["random", "attention"]), classified(kind, level=level))
    assert taken == said == len(TEXTS) * (1 + 12 * 6)


def test_another_seed_has_other_draws() -> None:
    test = SoftErasure(["attention"])
    one = classified("flat", seed=0)
    other = replace(one, seed=1)
    first = measurements(test, one)["attention.soft_nc_equal"]
    second = measurements(test, other)["attention.soft_nc_equal"]
    assert not torch.equal(first.nan_to_num(), second.nan_to_num())
