"""Comparative sentences of answers, checked against random tables by a reading of their own."""

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest

from attention_probing.commands.compare import compare_answer
from attention_probing.commands.sweep_table import range_answer
from attention_probing.measures.best_heads import heads_answer
from attention_probing.measures.causal import causal_answer
from attention_probing.measures.change import change_answer
from attention_probing.measures.importance import importance_answer
from attention_probing.measures.linguistic import linguistic_answer
from attention_probing.measures.pairs import pairs_answer
from attention_probing.measures.surface_statistics import surface_answer
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.differences import difference, with_interval_and_p
from attention_probing.metrics.p_values import holm
from attention_probing.metrics.statistics import proportion
from attention_probing.results import Estimate, Table
from attention_probing.results.sentences import Difference, describe_differences
from attention_probing.results.tables import format_number

CASES = range(60)


def estimate(rng: np.random.Generator, unit: str = "fraction") -> Estimate:
    """A number with an interval, or without, or undefined."""
    value = float(np.round(rng.choice([rng.normal(0, 0.3), 0.1, 0.0]), 2))
    width = float(rng.choice([0.01, 0.05, 0.5]))
    kind = rng.integers(6)
    if kind == 0:
        return Estimate(np.nan, np.nan, np.nan, unit=unit)  # type: ignore[arg-type]
    if kind == 1:
        return Estimate(value, np.nan, np.nan, unit=unit)  # type: ignore[arg-type]
    return Estimate(value, value - width, value + width, unit=unit)  # type: ignore[arg-type]


def names_of(rng: np.random.Generator) -> list[str]:
    """One to seven names that no sentence has."""
    return [f"thing{place}" for place in range(int(rng.integers(1, 8)))]


def named(text: str) -> set[str]:
    return set(re.findall(r"thing\d", text))


def clearly_first(values: Mapping[str, Estimate], sign: int) -> set[str]:
    """Every number whose interval lies beyond those of all others, by comparing all pairs."""
    known = {name: one for name, one in values.items() if not np.isnan(one.value)}
    found = set()
    for name, one in known.items():
        ends = [sign * end for end in one.interval]
        beyond = []
        for other, rival in known.items():
            if other != name:
                rival_ends = [sign * end for end in rival.interval]
                beyond.append(min(ends) > max(rival_ends))  # False with a nan
        if len(known) > 1 and all(beyond) and not np.isnan(ends).any():
            found.add(name)
    return found


@pytest.mark.parametrize("case", CASES)
def test_extremes_are_named_only_if_their_intervals_are_clear_of_all_others(case: int) -> None:
    rng = np.random.default_rng(case)
    values = {name: estimate(rng) for name in names_of(rng)}
    most, least = clearly_first(values, 1), clearly_first(values, -1)
    text = change_answer(values)
    assert named(text) == most | least
    assert ("most in layer" in text) == bool(most)
    assert ("least in layer" in text) == bool(least)
    text = pairs_answer(values)
    assert set(re.findall(r"most in the field (thing\d)", text)) == most
    assert set(re.findall(r"fewest in the field (thing\d)", text)) == least
    assert named(importance_answer(values)) == most
    layers = {str(place + 1): one for place, one in enumerate(values.values())}
    shares = {"previous": Estimate(0.4, 0.3, 0.5, unit="fraction"), "next": Estimate(0.2, 0.1, 0.3, unit="fraction")}
    uniform = {name: np.full(len(layers), 0.1) for name in shares}
    text = surface_answer(shares, dict.fromkeys(shares, layers), uniform, dict.fromkeys(shares, 7))
    assert "40.0 % [30.0, 50.0] of attention goes to the previous" in text
    clear = clearly_first(layers, 1)
    assert set(re.findall(r"most in layer (\d)", text)) == clear
    if clear:
        (layer,) = clear
        assert f"most in layer {layer}, {format_number(layers[layer].value, 'fraction', missing='')} %" in text


def differences_of(rng: np.random.Generator, with_items: bool) -> tuple[list[Difference], list[Estimate], list[float]]:
    """Differences of runs over few or many texts, some equal; those alone, and their p-values after Holm."""
    texts = int(rng.choice([2, 3, 8, 40]))
    base = (rng.random(texts) < 0.7).astype(float)
    found: list[Estimate] = []
    for _ in names_of(rng):
        kind = rng.integers(4)
        other = base if kind == 0 else (rng.random(texts) < rng.choice([0.1, 0.7])).astype(float)
        if kind == 1 and found:
            found.append(found[-1])  # a tie
            continue
        both = [resample(proportion, one[:, None], "fraction", draws=999) for one in (other, base)]
        found.append(difference(*both))
    corrected = holm([np.nan if one.p is None else one.p for one in found]).tolist()
    family = []
    for place, one in enumerate(found):
        items = int(rng.choice([5, 19, 20, 400])) if with_items else None
        family.append(Difference(f"thing{place}", with_interval_and_p(one, tests=len(found)), items))
    return family, found, corrected


@pytest.mark.parametrize("with_items", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_largest_difference_is_significant_alone_at_the_top_and_of_enough_items(case: int, with_items: bool) -> None:
    rng = np.random.default_rng([case, with_items])
    family, found, corrected = differences_of(rng, with_items)
    text = describe_differences(family, corrected, "run", "differ")
    tested = [place for place, p in enumerate(corrected) if not np.isnan(p)]
    if not tested:
        assert text == "undefined"
        return
    if len(tested) == 1:
        assert named(text) == {f"thing{tested[0]}"}
        assert "largest" not in text
        return
    significant = sum(corrected[place] < 0.05 for place in tested)
    assert text.startswith(f"{significant or 'none'} of {len(tested)} runs differ (p < .05 after Holm)")
    enough = [place for place in tested if (family[place].items or 20) >= 20]
    sizes = sorted((abs(found[place].value) for place in enough), reverse=True)
    expected = set()
    for place in enough:
        p = found[place].p
        alone = len(sizes) > 1 and abs(found[place].value) == sizes[0] and sizes[0] > sizes[1] + 1e-12
        if alone and p is not None and len(found) * p < 0.05:
            expected.add(f"thing{place}")
    assert named(text) == expected
    for name in expected:
        low, high = (float(end) for end in re.findall(rf"{name}, \S+ points \[(\S+), (\S+)\]", text)[0])
        assert not low <= 0 <= high  # interval and p answer one question


@pytest.mark.parametrize("case", CASES)
def test_runs_are_compared_like_differences(case: int) -> None:
    rng = np.random.default_rng([case, 7])
    _, found, corrected = differences_of(rng, with_items=False)
    columns = {
        "run": [f"thing{place}" for place in range(len(found))],
        "seeds": 1,
        "accuracy": 0.5,
        "low": 0.4,
        "high": 0.6,
        "permutation.p": [one.p for one in found],
        "holm.p": corrected,
    }
    frame = pd.concat(
        [pd.DataFrame({"run": ["base"], "seeds": 1, "accuracy": 0.5, "low": 0.4, "high": 0.6}), pd.DataFrame(columns)]
    )
    units = {"accuracy": "fraction", "permutation.p": "p", "holm.p": "p"}
    table = Table(frame.reset_index(drop=True), units, interval="accuracy")  # type: ignore[arg-type]
    text = compare_answer(table, found, "accuracy", 40)
    assert text.startswith("Over 40 items the accuracy of base is 50.0 % [40.0, 60.0]")
    if len(found) == 1:
        assert "largest" not in text
        assert "of these two runs" in text or "undefined" in text or "thing0" not in text
    elif "largest" in text:
        (top,) = named(text)
        values = [abs(one.value) for one in found]
        assert values[int(top[-1])] == max(values)
        assert values.count(max(values)) == 1


def causal_table(rng: np.random.Generator) -> tuple[Table, dict[str, Estimate]]:
    """The table `causal` of two scores, with blanks."""
    rows, differences = [], {}
    for measure in ("probe", "loss"):
        family, found, corrected = differences_of(rng, with_items=True)
        for one, own, p in zip(family, found, corrected, strict=True):
            blank = rng.random() < 0.2
            value = np.nan if blank else own.value
            rows.append((measure, one.name, one.items, value, np.nan if blank else own.p, np.nan if blank else p))
            differences[f"{measure}.{one.name}"] = own
    frame = pd.DataFrame(rows, columns=["measure", "relation", "n", "beyond", "p", "p_holm"])
    return Table(frame, {"beyond": "fraction", "p": "p", "p_holm": "p"}), differences


@pytest.mark.parametrize("case", CASES)
def test_the_causal_check_names_relations_like_differences(case: int) -> None:
    table, differences = causal_table(np.random.default_rng([case, 3]))
    text = causal_answer(3, table, differences)
    for measure, own in table.frame.dropna(subset=["beyond", "p"]).groupby("measure"):
        if len(own) < 2:
            continue
        count = int((own["p_holm"] < 0.05).sum()) or "none"
        start = f"{count} of {len(own)} relations change the {measure} score (p < .05 after Holm)"
        assert start in text
        named_next = re.match(
            r"; the largest difference(?: \(n ≥ 20\))? is that of `(thing\d)`", text.partition(start)[2]
        )
        enough = own[own["n"] >= 20]
        sizes = enough["beyond"].abs()
        top = enough[sizes == sizes.max()]
        alone = len(enough) > 1 and len(top) == 1 and float(top["p"].iloc[0]) * len(own) < 0.05
        assert (named_next[1] if named_next else "") == (top["relation"].iloc[0] if alone else "")


def heads_table(rng: np.random.Generator, split: str) -> Table:
    """The table `best_heads` with ties, few words, negative gains and blanks."""
    relations = names_of(rng)
    rows = []
    for relation in ["all", "all (no punctuation)", *relations]:
        n, n_dev = (int(size) for size in rng.choice([3, 19, 20, 500], 2))
        gain = float(np.round(rng.choice([rng.normal(0, 0.3), 0.1, -0.2]), 2))
        blank = relation in relations and rng.random() < 0.2
        p = float(rng.choice([0.001, 0.2, 1.0]))
        gap = float(np.round(rng.choice([rng.normal(0, 0.3), 0.1]), 1))
        numbers = [0.5, 0.4, 0.6, 0.5 - gain, gain, gain - 0.1, gain + 0.1, p, min(1.0, p * rng.choice([1, 60])), gap]
        rows.append((relation, n, n_dev, "1-1", *(np.full(10, np.nan) if blank else numbers)))
    columns = ["relation", "n", "n_dev", "head", split, "low", "high", "offset", "over_offset", "over_offset.low"]
    columns += ["over_offset.high", "p_offset", "p_holm", "dev_gap"]
    frame = pd.DataFrame(rows, columns=columns).assign(random_init=np.nan, chosen=100)
    shares = ("offset", "over_offset", "dev_gap", "random_init", split)
    return Table(frame, {**dict.fromkeys(shares, "fraction"), "p_offset": "p", "p_holm": "p"}, split)


@pytest.mark.parametrize("split", ["test", "dev"])
@pytest.mark.parametrize("case", CASES)
def test_heads_beat_offsets_upwards_and_the_widest_gap_is_that_of_dev(case: int, split: str) -> None:
    rng = np.random.default_rng([case, split == "dev"])
    table = heads_table(rng, split)
    frame = table.frame.iloc[2:]
    punctuation = {str(frame["relation"].iloc[0])} if rng.random() < 0.3 else set[str]()
    text = heads_answer(table, punctuation)
    tested = frame[(frame["n"] >= 20) & frame["p_offset"].notna() & ~frame["relation"].isin(punctuation)]
    if tested.empty:
        assert "beat" not in text
        assert not named(text)
        return
    beat = tested[(tested["p_holm"] < 0.05) & (tested["over_offset"] > 0)]
    if len(tested) > 1:
        assert f"In {len(beat) or 'none'} of {len(tested)} relations" in text
    else:
        does = "beats" if len(beat) else "does not beat"
        assert re.search(
            rf"The head of `{tested['relation'].iloc[0]}`, the only relation( without punctuation)? that", text
        )
        assert f" that counts, {does} the offset (p < .05 after Holm over " in text
        return  # nothing is chosen among one
    enough = tested[tested["n_dev"] >= 20]
    widest = enough[enough["dev_gap"] == enough["dev_gap"].max()]
    expected = set()
    if split == "test" and len(enough) > 1 and len(widest) == 1 and widest["dev_gap"].iloc[0] > 0:
        expected = {*widest["relation"]} & {*beat["relation"]}
    assert named(text) == expected


@pytest.mark.parametrize("case", CASES)
def test_a_range_has_no_interval_and_no_ends_of_one_row_or_equal_rows(case: int) -> None:
    rng = np.random.default_rng([case, 5])
    found = {name: estimate(rng) for name in names_of(rng)}
    known = {name: one for name, one in found.items() if not np.isnan(one.value)}
    text = range_answer("uas", known)
    shown = {name: format_number(one.value, "fraction", missing="") for name, one in known.items()}
    if not known:
        assert text == "undefined"
    elif len(known) == 1:
        assert "goes from" not in text
        assert named(text) == {*known}
    elif len({*shown.values()}) == 1:
        assert "goes from" not in text
        assert not named(text)
    else:
        first, low, last, high = re.findall(r"goes from (\S+) % \((\w+)\) to (\S+) % \((\w+)\)", text)[0]
        assert float(first) == min(map(float, shown.values())), low
        assert float(last) == max(map(float, shown.values())), high
        assert "[" not in text


@pytest.mark.parametrize("case", range(40))
def test_heads_of_classes_are_named_with_intervals_that_hold_for_all(case: int) -> None:
    rng = np.random.default_rng([case, 9])
    best = {}
    for name in names_of(rng):
        value = float(rng.random())
        place = int(rng.integers(3)), int(rng.integers(4))
        best[name] = (place, Estimate(value, value - 0.1, value + 0.1, unit="fraction", inputs=12))
    uniform = {name: [0.1, 0.1, 0.1] for name in best}
    text = linguistic_answer(best, uniform)
    for name, ((layer, head), one) in best.items():
        low, high = (format_number(end, "fraction", missing="") for end in one.interval)
        assert f"[{low}, {high}] to {name} (head {layer + 1}-{head + 1}, uniform 10.0 %)" in text
    assert linguistic_answer({}, {}) == "No class of words is in the texts."
