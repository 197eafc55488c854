"""Replaced attention against one text, one shuffle and one forward pass at a time."""

import numpy as np
import pandas as pd
import pytest

from fidelity.classified import ClassifiedBatch
from fidelity.comparison import CheckpointResult
from fidelity.erasure import BINS, Permutation, Perturbation
from results import Spreads
from tests.fidelity import tiny
from tests.fidelity.tiny import (
    CLASSES,
    LEVELS,
    TEXTS,
    Kind,
    classified,
    measurements,
    scores_of,
    slow_decision,
    with_constants,
)


def slow_uniform(text: ClassifiedBatch) -> list[float]:
    """1 / n on each of the n positions of a group."""
    groups = text.groups[0].tolist()
    return slow_decision(text, [[1 / groups.count(group) if group >= 0 else 0 for group in groups]] * len(text.names))


def slow_shuffles(text: ClassifiedBatch, purpose: str, draws: int) -> list[list[float]]:
    """Each position of a group gives its weight to another: the one with the least noise to the first of them."""
    groups, found = text.groups[0].tolist(), []
    for noise in text.noise(purpose, draws)[:, 0].tolist():
        givers = list(range(len(groups)))
        for group in set(groups) - {-1}:
            members = [position for position, own in enumerate(groups) if own == group]
            for position, giver in zip(members, sorted(members, key=lambda position: noise[position]), strict=True):
                givers[position] = giver
        found.append(slow_decision(text, [[head[giver] for giver in givers] for head in text.weights[:, 0].tolist()]))
    return found


@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_decisions_under_replaced_attention_are_those_of_a_loop(kind: Kind, level: str | None) -> None:
    numbers = measurements(Perturbation(), classified(kind, time=9, level=level)).numbers
    for row in range(len(TEXTS)):
        text = classified(kind, [row], level=level)
        own = int(text.predicted)
        assert int(numbers["own"][row]) == own
        assert int(numbers["gold"][row]) == row % CLASSES
        flat, shuffled = [slow_uniform(text)], slow_shuffles(text, "perturbation", 10)
        for name, outputs in (("uniform", flat), ("permuted", shuffled)):
            classes = [int(np.argmax(output)) for output in outputs]
            for place in range(CLASSES):
                assert float(numbers[f"{name}_class_{place}"][row]) == pytest.approx(
                    classes.count(place) / len(classes)
                )
            changed = sum(one != own for one in classes) / len(classes)
            assert float(numbers[f"{name}_flips"][row]) == pytest.approx(changed)


@pytest.mark.parametrize("draws", [5, 6])
@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_the_median_distance_is_that_of_a_loop(kind: Kind, level: str | None, draws: int) -> None:
    numbers = measurements(
        with_constants(Permutation(), permutations=draws), classified(kind, time=9, level=level)
    ).numbers
    for row in range(len(TEXTS)):
        text = classified(kind, [row], level=level)
        own = text.probabilities[0].tolist()
        expected = np.median([tiny.slow_tvd(output, own) for output in slow_shuffles(text, "permutation", draws)])
        assert float(numbers["median_tvd"][row]) == pytest.approx(expected, abs=1e-9)
        highest = max(np.mean(text.weights[:, 0].tolist(), axis=0))
        assert float(numbers["max_attention"][row]) == pytest.approx(highest)


def test_drops_are_what_is_lost_and_are_positive_for_a_loss() -> None:
    test = Perturbation()
    # gold, own, uniform: class 0, class 1, flips; permuted: class 0, class 1, flips
    rows = [
        [1, 1, 0, 1, 0, 0.5, 0.5, 0.5],
        [1, 1, 1, 0, 1, 0.5, 0.5, 0.5],
        [0, 0, 1, 0, 0, 1.0, 0.0, 0.0],
        [0, 1, 1, 0, 1, 0.0, 1.0, 0.0],
    ]
    frame = pd.DataFrame(rows, columns=list(test.columns(2)))
    found = scores_of(test, frame)
    own = 2 * 2 / (2 + 3)
    assert found == pytest.approx(
        {
            "uniform_drop": own - 2 * 1 / (2 + 1),
            "permuted_drop": own - 2 * 1 / (2 + 2),
            # Of four texts three are right by themselves; uniform three again, permuted two: ½ + ½ + 1.
            "uniform_accuracy_drop": 0,
            "permuted_accuracy_drop": 0.25,
            "uniform_flips": 0.5,
            "permuted_flips": 0.25,
        }
    )
    # Class 0: right 1 of 2 gold and 1 found; with uniform attention 2 of 2 and 3.
    expected = (own + 2 * 1 / (2 + 1)) / 2 - (2 / 3 + 2 * 2 / (2 + 3)) / 2
    assert scores_of(test, frame, positive=None)["uniform_drop"] == pytest.approx(expected)


def result(variant: str, seed: int, *values: tuple[float, float]) -> CheckpointResult:
    highest, distances = zip(*values, strict=True)
    return tiny.checkpoint_result("permutation", variant, seed, {"max_attention": highest, "median_tvd": distances})


def test_texts_are_shown_by_their_highest_weight_all_seeds_of_a_variant_together() -> None:
    nan = float("nan")
    results = [
        result("base", 0, (0.2, 0.1), (0.25, 0.2), (1.0, 0.9), (nan, nan)),
        result("tying", 0, (0.8, 0.4), (0.1, 0.0), (0.1, 0.2), (0.1, 0.7)),
        result("base", 1, (0.74, 0.3), (0.5, 0.5), (0.24, 0.2), (nan, nan)),
    ]
    figure = Permutation().figures(results)["permutation"]
    assert isinstance(figure, Spreads)
    assert figure.categories == BINS
    assert {name: list(map(list, bins)) for name, bins in figure.series.items()} == {
        "base": [[0.1, 0.2], [0.2], [0.3, 0.5], [0.9]],
        "tying": [[0.0, 0.2, 0.7], [], [], [0.4]],
    }
    table = Permutation().tables(results)["permutation"].frame
    assert table["variant"].tolist() == ["base"] * 4 + ["tying"] * 2
    assert table["max_attention"].tolist() == [*BINS, BINS[0], BINS[3]]
    assert table["texts"].tolist() == [2, 1, 2, 1, 3, 1]
    np.testing.assert_allclose(table["mean_tvd"], [0.15, 0.2, 0.4, 0.9, 0.3, 0.4])
    np.testing.assert_allclose(table["median_tvd"], [0.15, 0.2, 0.4, 0.9, 0.2, 0.4])
