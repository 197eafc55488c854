"""Answers of fidelity tests, of results that are written out."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from attention_probing import fidelity
from attention_probing.fidelity.answer import answer
from attention_probing.fidelity.comparison import PRINTED, comparison_table, fidelity_table
from attention_probing.fidelity.contract import CheckpointResult, FidelityTest, Reading
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.differences import difference, with_interval_and_p
from attention_probing.metrics.seeds import pool_seeds
from attention_probing.metrics.statistics import mean, proportion
from attention_probing.results import Estimate
from attention_probing.results.tables import format_number
from tests.fidelity.tiny import Described
from tests.fidelity.written_out import (
    CLASSES_OF_TEXTS,
    JUDGED,
    JUDGED_RANKINGS,
    MAIN,
    RESULTS,
    SEVERAL,
    TEXTS,
    over_seeds_of,
    over_texts_and_seeds,
    slow,
)


def in_words(apart: Estimate) -> str:
    """A difference of two at once, with interval and p."""
    both = with_interval_and_p(apart, 2)
    assert apart.p is not None
    assert both.p == min(1, 2 * apart.p)
    low, high = (100 * end for end in both.interval)
    sign = "≤" if apart.p < 3 / 1001 else "="
    p = format_number(both.p, "p", missing="")
    return f"{100 * apart.value:+.1f} points [{low:.1f}, {high:.1f}], p {sign} {p}"


def test_the_answer_compares_attention_with_random_and_the_best_ranking_with_attention() -> None:
    assert PRINTED >= 20  # seven rankings by two measures, and six other scores
    down = Described("rationale", JUDGED_RANKINGS, {"naopc": "↓"}, {"naopc": "is lowest"})
    said = answer(RESULTS, [down], MAIN)
    values = {name: slow("base", name, "naopc")[0] for name in JUDGED_RANKINGS}
    over_seeds = {name: over_seeds_of("base", name, "naopc") for name in JUDGED_RANKINGS}
    to_random = difference(over_seeds["attention"], over_seeds["random"], same_runs=True)
    to_attention = difference(over_seeds["file.v2"], over_seeds["attention"], same_runs=True)
    # Their intervals would not hold for the best of several.
    assert said == (
        f"On 40 texts (means of up to 2 seeds), in base, attention has NAOPC {100 * values['attention']:.1f} %, "
        f"random words {100 * values['random']:.1f} %: attention is worse, difference {in_words(to_random)}. "
        f"In base, of 3 rankings, file.v2 is lowest: {100 * values['file.v2']:.1f} %; "
        f"difference to attention {in_words(to_attention)}."
    )
    # Attention is best, and compared with random alone; without a claim the measure is named; one variant has no name.
    up = answer(RESULTS[:2], JUDGED, MAIN)
    assert up == (
        f"On 40 texts (means of 2 seeds), attention has NAOPC {100 * values['attention']:.1f} %, "
        f"random words {100 * values['random']:.1f} %: difference {in_words(to_random)}. "
        "Of 3 rankings, attention has the best NAOPC."
    )


def test_a_reading_words_the_comparison_of_attention_with_random() -> None:
    words = "without attention {attention:points} are lost, without random words {random}"
    test = Described("rationale", JUDGED_RANKINGS, {"naopc": "↑"})
    test.readings["naopc"] = Reading("↑", attention=words)  # type: ignore[index]
    said = answer(RESULTS[:2], [test], MAIN)
    values = {name: f"{100 * slow('base', name, 'naopc')[0]:.1f}" for name in JUDGED_RANKINGS}
    start = f"without attention {values['attention']} points are lost, without random words {values['random']} %: "
    assert said.startswith(f"On 40 texts (means of 2 seeds), {start}difference +")


@pytest.mark.parametrize("test", [fidelity.Rationale(), fidelity.SetErasure()])
def test_readings_of_the_tests_name_both_numbers(test: FidelityTest) -> None:
    words = [reading.attention for reading in test.readings.values() if reading.claim]
    assert words
    for clause in words:
        assert clause.count("{attention") == clause.count("{random") == 1


def test_rankings_with_the_number_of_the_best_in_print_are_named() -> None:
    scores = RESULTS[0].scores
    best = scores["rationale.attention.naopc"]
    near = replace(best, value=best.value - 1e-6)
    said = answer([replace(RESULTS[0], scores={**scores, "rationale.file.v2.naopc": near})], JUDGED, MAIN)
    assert said.endswith(" Of 3 rankings, attention has the best NAOPC, like file.v2.")


def test_of_rankings_that_share_the_best_value_none_is_named() -> None:
    same = {"rationale.file.v2.naopc": RESULTS[0].scores["rationale.attention.naopc"]}
    equal = answer([replace(RESULTS[0], scores={**RESULTS[0].scores, **same})], JUDGED, MAIN)
    value = RESULTS[0].scores["rationale.attention.naopc"].value
    assert equal.endswith(f" Of 3 rankings, 2 share the best NAOPC (attention, file.v2): {100 * value:.1f} %.")


def shifted(attention: float, file: float) -> CheckpointResult:
    """NAOPC of two rankings that differ from random by a mean; the texts vary alike."""
    random = np.random.default_rng(3).normal(size=TEXTS) / 3
    spread = np.random.default_rng(4).normal(size=TEXTS) / 3
    values = {"random": random, "attention": random + attention + spread - spread.mean(), "file.v2": random + file}
    found = {f"rationale.{name}.naopc": resample(mean, column[:, None], "fraction") for name, column in values.items()}
    return replace(RESULTS[0], scores=found)


def test_a_ranking_that_is_not_significantly_better_than_random_is_not_named() -> None:
    none = " Of 3 rankings, none is better than random by NAOPC (p < .05, all at once)."
    ps = {}
    for attention in np.arange(0.005, 0.3, 0.005).tolist():
        one = shifted(attention, -0.5)
        apart = difference(one.scores["rationale.attention.naopc"], one.scores["rationale.random.naopc"])
        assert apart.p is not None
        ps[apart.p] = said = answer([one], JUDGED, MAIN)
        if 2 * apart.p < 0.05:
            assert " Of 3 rankings, attention has the best NAOPC." in said
            assert " %: difference +" in said
        else:
            assert said.endswith(none)
            assert " %: no significant difference, " in said
    # Between: alone it would be significant, as the best of two it is not.
    assert [p for p in ps if 0.025 < p < 0.05]
    assert min(ps) < 0.025
    worse = answer([shifted(-0.2, -0.5)], JUDGED, MAIN)  # random is best
    assert worse.endswith(none)
    assert " %: attention is worse, difference -" in worse


def test_rankings_that_are_not_compared_with_random_are_not_praised() -> None:
    alone = Described("rationale", ("attention", "file.v2"), {"naopc": "↑"})
    said = answer(RESULTS[:1], [alone], MAIN)
    assert said == "On 40 texts, of 2 rankings, none is compared with random words, so none is named."


@pytest.mark.parametrize("kind", ["worse", "one class", "as often right", "somewhat better", "clearly better"])
def test_rankings_of_a_classifier_at_chance_are_not_praised(kind: str) -> None:
    gold = np.array([0] * 22 + [1] * 18)
    predicted = np.zeros(TEXTS, dtype=int)
    if kind == "worse":
        predicted = 1 - gold
    if kind == "as often right":
        predicted[[0, 1, 22, 23]] = [1, 1, 1, 1]
    if kind == "somewhat better":  # five texts more: p = .06
        predicted[22:27] = 1
    if kind == "clearly better":
        predicted[22:] = 1
    values = RESULTS[0].values.assign(gold=gold, predicted=predicted)
    claims = Described("soft", (), {}, {"attention.only": "{} alone"})
    said = answer([replace(RESULTS[0], values=values)], [claims, JUDGED[1]], MAIN)
    if kind == "clearly better":
        assert "attention has the best NAOPC" in said
        assert "most frequent label" not in said
        return
    right = 100 * (gold == predicted).mean()
    assert said.startswith(f"The classifier is right on {right:.1f} % [")
    one_class = ", and predicts one class" * (kind == "one class")
    assert (
        f"] of 40 texts, not significantly better than always giving the most frequent label (55.0 %)"
        f"{one_class}: nothing can be concluded about attention in it, and no ranking is named."
    ) in said
    assert "best" not in said
    assert "alone" not in said  # no claim of a test


def test_texts_that_are_not_tested_tell_a_classifier_from_chance() -> None:
    gold = np.array([0] * 22 + [1] * 18)
    predicted = np.zeros(TEXTS, dtype=int)
    predicted[22:27] = 1  # five texts more than the most frequent label has: p = .06
    values = RESULTS[0].values.assign(gold=gold, predicted=predicted)
    few = replace(RESULTS[0], values=values)
    assert "nothing can be concluded" in answer([few], [JUDGED[1]], MAIN)
    right = pd.DataFrame({"gold": [0, 1] * 30, "predicted": [0, 1] * 30})
    assert "attention has the best NAOPC" in answer([replace(few, others=right)], [JUDGED[1]], MAIN)
    wrong = right.assign(predicted=1 - right["gold"])
    assert "of 100 texts, not significantly better than" in answer([replace(few, others=wrong)], [JUDGED[1]], MAIN)


def test_each_variant_at_chance_is_named_and_the_answer_stays_short() -> None:
    chance = {"predicted": 0}
    both = [replace(one, values=one.values.assign(**chance)) for one in RESULTS]
    said = answer(both, [JUDGED[1]], MAIN)
    right = resample(proportion, (CLASSES_OF_TEXTS == 0)[:, None], "fraction")
    low, high = (100 * end for end in pool_seeds([right, right]).interval)
    assert said == (
        f"Base is right on 50.0 % [{low:.1f}, {high:.1f}] of 40 texts, not significantly better than always "
        "giving the most frequent label (50.0 %), and predicts one class: nothing can be concluded "
        "about attention in it, and no ranking is named. Nor is tying above it."
    )
    # Of a variant above chance rankings are named.
    said = answer([*RESULTS[:2], both[2]], [JUDGED[1]], MAIN)
    assert said.startswith("Tying is right on 50.0 % [")
    assert "attention has the best NAOPC" in said


@pytest.mark.parametrize(("lost", "said"), [(0.05, "-5.0 points"), (-0.05, "+5.0 points"), (0.0, "0.0 points")])
def test_the_answer_says_in_which_direction_uniform_attention_changes_f1(lost: float, said: str) -> None:
    """`uniform_drop` is F1 of the classifier minus F1 with uniform attention."""
    drop = Estimate(lost, lost - 0.02, lost + 0.03, unit="fraction", draws=np.full(1000, lost), units=TEXTS)
    judged = [fidelity.Perturbation()]
    found = answer([replace(RESULTS[0], scores={"perturbation.uniform_drop": drop})], judged, ())
    ends = f"[{-100 * (lost + 0.03):.1f}, {-100 * (lost - 0.02):.1f}]"
    assert found == f"On 40 texts, uniform attention changes F1 by {said} {ends}."


def test_a_measure_that_the_first_variant_lacks_is_answered_for_the_first_that_has_it() -> None:
    f1 = {"f1": RESULTS[0].scores["rationale.attention.naopc"]}
    other = {name: score for name, score in RESULTS[0].scores.items() if name.endswith(".sufficiency")}
    tying, bare = replace(RESULTS[2], scores={**RESULTS[2].scores, **f1}), replace(RESULTS[0], scores=f1 | other)
    alone, both = answer([tying], JUDGED, MAIN), answer([bare, tying], JUDGED, MAIN)
    assert both == alone.replace("texts, ", "texts, in tying, ").replace("Of 3", "In tying, of 3")
    assert both != alone
    of_both, of_one = (fidelity_table(some, JUDGED, ["f1", *MAIN]).frame for some in ([bare, tying], [tying]))
    assert of_both["test"].tolist() == of_one["test"].tolist()
    assert of_both["base"].notna().tolist() == (of_both["test"] == "F1").tolist()


def test_the_answer_compares_a_claim_between_the_variants() -> None:
    claims = [
        Described("adversary", (), {}, {"absent": "never {}"}),
        Described("single_token", (), {}, {"spread": "single words spread by {}"}),
    ]
    rows = comparison_table(SEVERAL).frame.query("score == 'single_token.spread'").set_index("variant")
    base = rows.to_dict("index")["base"]
    tying = rows.to_dict("index")["tying"]
    groups = {name: [one for one in SEVERAL if one.variant == name] for name in ("base", "tying")}
    apart = difference(over_texts_and_seeds(groups["tying"]), over_texts_and_seeds(groups["base"]))
    at_once = with_interval_and_p(apart, 2)  # the largest of two differences
    ends = f"[{at_once.interval[0]:.4g}, {at_once.interval[1]:.4g}]"
    assert rows["p_holm"]["tying"] < 0.05 < rows["p_holm"]["mlm"]
    assert at_once.p is not None
    assert answer(SEVERAL, claims, ()) == (
        f"On 37 texts (means of up to 3 seeds), single words spread by {base['mean']:.4g} "
        f"(base); 1 of 2 variants differ from base (p < .05 after Holm); the largest difference "
        f"is that of tying, {tying['difference']:+.4g} {ends}, p = {format_number(at_once.p, 'p', missing='')}."
    )
    alone = SEVERAL[0].scores["single_token.spread"]
    said = f"{alone.value:.4g} [{alone.low:.4g}, {alone.high:.4g}]"
    assert answer(SEVERAL[:1], claims, ()) == f"On 37 texts, single words spread by {said}."
    # A difference of shares is in points, and a variant without the score is not compared.
    share = replace(alone, unit="fraction")
    drop = replace(SEVERAL[0], scores={"x.drop": share})
    lacking = replace(SEVERAL[1], scores={"x.drop": replace(share, value=np.nan, draws=share.draws * np.nan)})
    changes = [Described("x", (), {}, {"drop": "it changes F1 by {change}"})]
    low, high = (100 * end for end in share.interval)
    changed = f"it changes F1 by {-100 * share.value:+.1f} points [{-high:.1f}, {-low:.1f}]"
    assert answer([drop], changes, ()) == f"On 37 texts, {changed}."
    for both in ([drop, lacking], [lacking, drop]):
        assert answer(both, changes, ()) == f"On 37 texts, {changed} (base)."
    # The claims of tests behind the first that ranks are left to it, if it has an answer.
    claim = Described("soft", (), {}, {"attention.only": "{} alone"})
    assert answer(RESULTS, [claim, JUDGED[1]], MAIN).startswith("On 40 texts (means of up to 2 seeds), 1950.0 %")
    assert answer(RESULTS, [JUDGED[1], claim], MAIN).startswith(
        "On 40 texts (means of up to 2 seeds), in base, attention has NAOPC "
    )
    assert answer(RESULTS, [JUDGED[0], claim], MAIN).startswith("On 40 texts (means of up to 2 seeds), 1950.0 %")
    assert answer(RESULTS, [JUDGED[0]], MAIN) == ""
