"""Choices on resamples of their data, against choosing again in plain loops."""

import numpy as np
import pytest

from attention_probing.metrics.stability import (
    NO_CHOICE,
    RESAMPLES,
    ChoiceStability,
    choose_again,
    choose_from_shortlist_again,
    count_choices,
    draw_resamples,
    set_overlap,
    stability_columns,
    warn_of_choice,
)
from attention_probing.results import Floats
from tests.resampled import choose_by_hand

NAN = float("nan")


def name(candidate: int) -> str:
    return f"head {candidate}"


def simulate_heads(accuracies: list[float], seed: int, units: int = 60, words: int = 20) -> tuple[Floats, Floats]:
    """Words that heads find in each document, each with its accuracy, and all words."""
    rng = np.random.default_rng(seed)
    found = rng.binomial(words, accuracies, size=(units, len(accuracies)))
    return found.astype(np.float64), np.full(units, float(words))


def winner(found: Floats) -> int:
    return int(found.sum(axis=0).argmax())


def test_a_resample_has_as_many_units_and_depends_on_the_seed_alone() -> None:
    times = draw_resamples(40, seed=3)
    assert times.shape == (RESAMPLES, 40)
    assert set(times.sum(axis=1).tolist()) == {40}
    assert (times == draw_resamples(40, seed=3)).all()
    assert (times != draw_resamples(40, seed=4)).any()
    # Of a multinomial distribution: the mean is 1, the variance 1 − 1/40.
    assert times.mean() == 1
    assert times.var() == pytest.approx(1 - 1 / 40, abs=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_choices_equal_choosing_again_in_loops(seed: int) -> None:
    """Few words, so that many choices are ties and some resamples have no word at all."""
    rng = np.random.default_rng(seed)
    counted = rng.integers(0, 3, 8) * (rng.random(8) < 0.4 + 0.2 * seed)
    found = rng.binomial(counted[:, None], 0.4, size=(8, 5))
    again = choose_again(found.astype(np.float64), counted.astype(np.float64), seed)
    times, tied, without = choose_by_hand(found.tolist(), [[n] * 5 for n in counted.tolist()], seed)
    assert again.times.tolist() == times
    assert again.tied.tolist() == tied
    assert RESAMPLES - sum(times) == without
    assert again.is_defined == (np.count_nonzero(counted) > 1)


def test_candidates_may_count_different_things() -> None:
    """Shares decide, not what is found: one candidate finds all of few, the other half of many."""
    found = np.array([[2.0, 5.0], [1.0, 4.0], [0.0, 9.0]])
    counted = np.array([[2.0, 10.0], [1.0, 8.0], [0.0, 18.0]])
    again = choose_again(found, counted, seed=1)
    times, tied, without = choose_by_hand(found.tolist(), counted.tolist(), seed=1)
    assert (again.times.tolist(), again.tied.tolist(), without) == (times, tied, 0)
    # Where only the third unit is drawn, the first candidate has nothing and is not chosen.
    assert 0 < again.times[1] < 15


def test_a_head_far_above_the_others_is_always_chosen_again() -> None:
    found, counted = simulate_heads([0.3] * 20 + [0.9], seed=0)
    again = choose_again(found, counted)
    assert again.describe(20, name) == (100, "")


def test_two_equal_heads_share_the_choices() -> None:
    """Over 60 samples each of two equally good heads has half of the choices, the others have none."""
    shares = []
    for seed in range(60):
        found, counted = simulate_heads([0.5, 0.2, 0.5], seed)
        shares.append(choose_again(found, counted, seed).times)
    first, worse, second = np.mean(shares, axis=0)
    assert worse == 0
    assert first == pytest.approx(50, abs=12)
    assert second == pytest.approx(50, abs=12)


def test_heads_that_find_the_same_words_are_named_as_equals() -> None:
    found, counted = simulate_heads([0.5, 0.2], seed=0)
    twice = found[:, [1, 0, 0, 0]]
    assert choose_again(twice, counted).describe(1, name) == (100, "2 as good")


def test_without_a_better_head_no_choice_is_stable() -> None:
    """Of 144 equal heads, one returns in half of the resamples in at most 1 of 20 samples; k is still far above 1."""
    again = []
    for seed in range(100):
        found, counted = simulate_heads([0.2] * 144, seed)
        again.append(choose_again(found, counted, seed).times[winner(found)])
    assert np.mean(np.array(again) >= 50) <= 0.05
    assert 15 < np.mean(again) < 30  # the best on these data is the best on many of their resamples: it is no chance


def test_rivals_are_named_most_often_chosen_first() -> None:
    stability = ChoiceStability(np.array([9, 50, 9, 12, 1, 9]), np.zeros(6, np.int64))
    assert stability.describe(1, name) == (50, "head 3 12, head 0 9, head 2 9, none 10")
    everywhere = ChoiceStability(np.array([60, 40]), np.array([40, 60]))
    assert everywhere.rivals(0, name) == "head 1 40, 1 as good"


@pytest.mark.parametrize("seed", range(3))
def test_a_shortlist_is_made_anew_on_each_resample(seed: int) -> None:
    rng = np.random.default_rng(seed)
    estimates = rng.normal(0, 1, (12, 20))
    candidates = np.argsort(-np.abs(estimates.sum(0)))[:5]
    effects = estimates[:, candidates] + rng.normal(0, 1, (12, 5))
    expected = [0] * 5
    for times in draw_resamples(12, seed):
        sizes = np.abs(times @ estimates)
        listed = set(np.argsort(-sizes)[:5].tolist())
        known = [place for place in range(5) if candidates[place] in listed]
        if known:
            expected[max(known, key=lambda place: float(times @ effects[:, place]))] += 1
    found = choose_from_shortlist_again(effects, candidates, estimates, seed)
    assert found.times.tolist() == expected
    assert expected != choose_again(effects, np.ones(12), seed).times.tolist()


def test_words_of_one_unit_cannot_be_resampled() -> None:
    again = choose_again(np.array([[3.0, 1.0], [0.0, 0.0]]), np.array([4.0, 0.0]))
    assert again.describe(0, name) == NO_CHOICE


def test_a_number_that_is_undefined_is_never_chosen() -> None:
    again = count_choices(np.array([[NAN, 0.0], [1.0, 0.0], [NAN, NAN]]))
    assert again.times.tolist() == [1, 1]


def test_columns_have_whole_numbers_and_blanks() -> None:
    columns = stability_columns([(38, "head 1 62"), NO_CHOICE])
    assert str(columns["chosen"].dtype) == "Int64"
    assert columns["chosen"].isna().tolist() == columns["rivals"].isna().tolist() == [False, True]
    assert columns["rivals"][0] == "head 1 62"


@pytest.mark.parametrize("seed", range(3))
def test_the_overlap_of_sets_is_that_of_pythons_sets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chosen = rng.random(6) < 0.4
    resampled = rng.random((30, 6)) < 0.4
    chosen[:] &= seed > 0  # an empty set
    overlaps = []
    for row in resampled:
        one, other = set(np.flatnonzero(chosen)), set(np.flatnonzero(row))
        overlaps.append(len(one & other) / len(one | other) if one | other else 1.0)
    assert set_overlap(chosen, resampled) == pytest.approx(np.mean(overlaps))


@pytest.mark.parametrize("times", [50, 100, NAN, None])
def test_only_a_choice_that_returns_in_fewer_than_half_is_mentioned(times: float | None) -> None:
    assert warn_of_choice(times) == ""
    assert warn_of_choice(49) == " (chosen again in 49 of 100 resamples of dev)"
