"""Replaced attention against one text, one shuffle and one forward pass at a time."""

import numpy as np
import pandas as pd
import pytest
import torch

from fidelity.base import FidelityTest, Subject
from fidelity.checkpoints import FidelityError
from fidelity.perturbation import BINS, Permutation, Perturbation
from fidelity.reading import Reading
from metrics.bootstrap import resample
from models.interface import WORD
from results import Spreads
from tests.fidelity.tiny import CLASSES, TEXTS, Kind, close, one_by_one, reading

KINDS: list[tuple[Kind, str | None]] = [("flat", None), ("han", None), ("han", WORD), ("transformer", None)]


def slow_decision(text: Reading, weights: list[list[float]]) -> list[float]:
    """Probabilities of the classes when the whole model runs with other weights `[heads][slots]`."""
    imposed = {name: torch.tensor([head], dtype=torch.float64) for name, head in zip(text.names, weights, strict=True)}
    found: list[float] = text.model(text.batch, imposed=imposed).logits.softmax(-1)[0].tolist()
    return found


def slow_uniform(text: Reading) -> list[float]:
    """1 / n on each of the n slots of a group."""
    groups = text.groups[0].tolist()
    return slow_decision(text, [[1 / groups.count(group) if group >= 0 else 0 for group in groups]] * len(text.names))


def slow_shuffles(text: Reading, purpose: str, draws: int) -> list[list[float]]:
    """Each slot of a group gives its weight to another: the one with the least noise to the first of them."""
    groups, found = text.groups[0].tolist(), []
    for noise in text.noise(purpose, draws)[:, 0].tolist():
        givers = list(range(len(groups)))
        for group in set(groups) - {-1}:
            members = [slot for slot, own in enumerate(groups) if own == group]
            for slot, giver in zip(members, sorted(members, key=lambda slot: noise[slot]), strict=True):
                givers[slot] = giver
        found.append(slow_decision(text, [[head[giver] for giver in givers] for head in text.weights[:, 0].tolist()]))
    return found


def slow_tvd(p: list[float], q: list[float]) -> float:
    return sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


def columns_of(test: FidelityTest, found: Reading) -> torch.Tensor:
    """`[columns, batch]`, in their order; exactly those that the test promises."""
    numbers = test.measure(found).numbers
    columns = test.columns(CLASSES)
    assert set(numbers) == set(columns)
    return torch.stack([numbers[column].double() for column in columns])


@pytest.mark.parametrize(("kind", "level"), KINDS)
def test_decisions_under_replaced_attention_are_those_of_a_loop(kind: Kind, level: str | None) -> None:
    numbers = Perturbation(permutations=7).measure(reading(kind, time=9, level=level)).numbers
    for row in range(len(TEXTS)):
        text = reading(kind, [row], level=level)
        own = int(text.predicted)
        assert int(numbers["own"][row]) == own
        assert int(numbers["gold"][row]) == row % CLASSES
        flat, shuffled = [slow_uniform(text)], slow_shuffles(text, "perturbation", 7)
        for name, outputs in (("uniform", flat), ("permuted", shuffled)):
            classes = [int(np.argmax(output)) for output in outputs]
            for place in range(CLASSES):
                assert float(numbers[f"{name}_class_{place}"][row]) == pytest.approx(
                    classes.count(place) / len(classes)
                )
            changed = sum(one != own for one in classes) / len(classes)
            assert float(numbers[f"{name}_flips"][row]) == pytest.approx(changed)


def test_some_decisions_change_and_some_do_not() -> None:
    """Else the other tests would see little."""
    for name in ("uniform_flips", "permuted_flips"):
        flips = Perturbation(permutations=20).measure(reading("flat")).numbers[name]
        assert 0 < float(flips.mean()) < 1


@pytest.mark.parametrize("draws", [5, 6])
@pytest.mark.parametrize(("kind", "level"), KINDS)
def test_the_median_distance_is_that_of_a_loop(kind: Kind, level: str | None, draws: int) -> None:
    numbers = Permutation(permutations=draws).measure(reading(kind, time=9, level=level)).numbers
    for row in range(len(TEXTS)):
        text = reading(kind, [row], level=level)
        own = text.probabilities[0].tolist()
        expected = np.median([slow_tvd(output, own) for output in slow_shuffles(text, "permutation", draws)])
        assert float(numbers["median_tvd"][row]) == pytest.approx(expected, abs=1e-9)
        highest = max(np.mean(text.weights[:, 0].tolist(), axis=0))
        assert float(numbers["max_attention"][row]) == pytest.approx(highest)


@pytest.mark.parametrize("test", [Perturbation(permutations=9), Permutation(permutations=9)])
@pytest.mark.parametrize("kind", ["flat", "han", "transformer"])
def test_a_batch_gives_what_its_texts_give_alone(test: FidelityTest, kind: Kind) -> None:
    alone = torch.cat([columns_of(test, one) for one in one_by_one(kind)], 1)
    close(columns_of(test, reading(kind, time=11)), alone)


def test_another_seed_shuffles_otherwise() -> None:
    first, second = (Permutation(3).measure(reading("flat", seed=seed)).numbers["median_tvd"] for seed in (0, 1))
    assert not torch.allclose(first, second)


def frame_of(test: FidelityTest, classes: int, rows: list[list[float]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(test.columns(classes)))


def test_drops_are_what_is_lost_and_are_positive_for_a_loss() -> None:
    test = Perturbation()
    # gold, own, uniform: class 0, class 1, flips; permuted: class 0, class 1, flips
    frame = frame_of(
        test,
        2,
        [
            [1, 1, 0, 1, 0, 0.5, 0.5, 0.5],
            [1, 1, 1, 0, 1, 0.5, 0.5, 0.5],
            [0, 0, 1, 0, 0, 1.0, 0.0, 0.0],
            [0, 1, 1, 0, 1, 0.0, 1.0, 0.0],
        ],
    )
    found = {
        name: resample(score.statistic, frame[list(score.columns)].to_numpy(), score.unit, draws=10).value
        for name, score in test.scores(2, 1).items()
    }
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
    macro = test.scores(2, None)["uniform_drop"]
    # Class 0: right 1 of 2 gold and 1 found; with uniform attention 2 of 2 and 3.
    expected = (own + 2 * 1 / (2 + 1)) / 2 - (2 / 3 + 2 * 2 / (2 + 3)) / 2
    found_macro = resample(macro.statistic, frame[list(macro.columns)].to_numpy(), macro.unit)
    assert found_macro.value == pytest.approx(expected)


def subject(name: str, variant: str, values: list[tuple[float, float]]) -> Subject:
    frame = pd.DataFrame(values, columns=["permutation.max_attention", "permutation.median_tvd"])
    return Subject(name, variant, 0, 2, 1, frame, {})


def test_texts_are_shown_by_their_highest_weight_all_seeds_of_a_variant_together() -> None:
    nan = float("nan")
    subjects = [
        subject("base, 0", "base", [(0.2, 0.1), (0.25, 0.2), (1.0, 0.9), (nan, nan)]),
        subject("tying, 0", "tying", [(0.8, 0.4), (0.1, 0.0), (0.1, 0.2), (0.1, 0.7)]),
        subject("base, 1", "base", [(0.74, 0.3), (0.5, 0.5), (0.24, 0.2), (nan, nan)]),
    ]
    figure = Permutation().figures(subjects)["permutation"]
    assert isinstance(figure, Spreads)
    assert figure.kind == "violin"
    assert figure.categories == BINS
    assert {name: list(map(list, bins)) for name, bins in figure.series.items()} == {
        "base": [[0.1, 0.2], [0.2], [0.3, 0.5], [0.9]],
        "tying": [[0.0, 0.2, 0.7], [], [], [0.4]],
    }
    table = Permutation().tables(subjects)["permutation"].frame
    assert table["variant"].tolist() == ["base"] * 4 + ["tying"] * 2
    assert table["max_attention"].tolist() == [*BINS, BINS[0], BINS[3]]
    assert table["texts"].tolist() == [2, 1, 2, 1, 3, 1]
    np.testing.assert_allclose(table["mean_tvd"], [0.15, 0.2, 0.4, 0.9, 0.3, 0.4])
    np.testing.assert_allclose(table["median_tvd"], [0.15, 0.2, 0.4, 0.9, 0.2, 0.4])


@pytest.mark.parametrize("test", [Perturbation, Permutation])
def test_no_shuffle_at_all_is_refused(test: type[Perturbation | Permutation]) -> None:
    with pytest.raises(FidelityError, match="give 1 or more"):
        test(permutations=0)
