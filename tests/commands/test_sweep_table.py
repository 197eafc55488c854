import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from attention_probing.commands.seeds import averaged, estimate_from_counts
from attention_probing.commands.sweep_plan import columns_of
from attention_probing.commands.sweep_rows import Row, Run, Sweep
from attention_probing.commands.sweep_table import collect, range_answer
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.differences import difference, paired_bootstrap
from attention_probing.metrics.seeds import pool_seeds, seeds_margin
from attention_probing.metrics.statistics import two_columns
from attention_probing.results import Estimate, Provenance, Result, Table
from attention_probing.results.record import NAN, Record, read_record
from attention_probing.results.writer import write_scores
from tests.metrics.subsets import subsets


def run(seed: int, config: str = "a.yaml") -> Run:
    return Run("fit", Path(config), config, (), seed)


def row_of(*seeds: int, score: str = "uas") -> Row:
    return Row(("a",), {seed: (run(seed),) for seed in seeds}, {"uas": score})


def made(tmp_path: Path, rows: list[Row], records: Mapping[str, Record]) -> tuple[Result, Provenance]:
    columns = columns_of(["probe"], list(rows[0].scores), [], "here")
    return collect(Sweep("table", ("probe",), tuple(rows), columns), records, tmp_path)


def told(result: Result, what: str) -> list[str]:
    """The faults or warnings of a table."""
    found = result.audit[what]
    assert isinstance(found, list)
    return found


def line_of(tmp_path: Path, row: Row, records: Mapping[str, Record]) -> dict[Hashable, Any]:
    """The one line of the table."""
    (line,) = made(tmp_path, [row], records)[0].tables["table"].frame.to_dict("records")
    return line


def record(
    tmp_path: Path,
    key: str,
    scores: Mapping[str, float | Estimate],
    epochs: float = NAN,
    items: pd.DataFrame | None = None,
    **data: str,
) -> Record:
    """What a run leaves, read again."""
    folder = tmp_path / "runs" / key / "Probe" / "version_0"
    estimates = {
        name: score
        if isinstance(score, Estimate)
        else Estimate(score, unit="bits" if name == "codelength" else "fraction")
        for name, score in scores.items()
    }
    corpus = {"corpus": data["corpus"]} if "corpus" in data else {}
    splits = {"test": {"file": "t.conllu", "sha256": data.get("sha", "1"), **corpus}}
    audit = {} if np.isnan(epochs) else {"epochs": epochs}
    ratios = {} if items is None else {"uas": ("correct", "scored")}
    result = Result("probe", estimates, items=items, ratios=ratios, audit=audit, shares=tuple(ratios))
    write_scores(folder, result, Provenance({"name": data.get("encoder", "tiny")}, splits, {}))
    return read_record(folder / "results.json")


def items(correct: list[float], scored: list[int], order: list[int] | None = None) -> pd.DataFrame:
    frame = pd.DataFrame({"sentence": range(len(correct)), "id": "x", "scored": scored, "correct": correct})
    return frame.iloc[order] if order else frame


def mean_of(counts: Sequence[Sequence[float] | np.ndarray], scored: Sequence[int] | np.ndarray, draws: int) -> Estimate:
    """The mean of a share over seeds, from the right ones of each item in each seed."""
    columns = [np.column_stack([right, scored]).astype(float) for right in counts]
    return pool_seeds([resample(two_columns(share=True), one, "fraction", draws=draws) for one in columns])


def test_one_seed_has_the_interval_of_its_run(tmp_path: Path) -> None:
    row = Row(("right branching",), {0: (run(0),)}, {"uas": "right.uas"})
    scores = {"right.uas": Estimate(0.3, 0.2, 0.4, unit="fraction")}
    result = made(tmp_path, [row], {run(0).key: record(tmp_path, run(0).key, scores)})[0]
    (line,) = result.tables["table"].frame.to_dict("records")
    assert list(line) == ["probe", "seeds", "epochs", "uas", "low", "high", "sd"]
    assert [line[name] for name in ("probe", "seeds", "uas", "low", "high")] == ["right branching", 1, 0.3, 0.2, 0.4]
    assert pd.isna(line["epochs"])
    assert np.isnan(line["sd"])
    assert result.numbers == {
        **{f"right branching.uas{end}": value for end, value in {"": 0.3, ".low": 0.2, ".high": 0.4}.items()},
        "right branching.uas.sd": pytest.approx(NAN, nan_ok=True),
    }


def test_seeds_and_their_counts_are_averaged_per_item(tmp_path: Path) -> None:
    row = row_of(0, 1)
    scored = [3, 9, 5, 1] * 3
    counts = [[1.0, 4, 5, 0] * 3, [2.0, 8, 0, 1] * 3]
    records = {
        run(0).key: record(tmp_path, run(0).key, {"uas": 30 / 54}, 3.0, items(counts[0], scored)),
        # Items are matched by what they are, not by where they stand.
        run(1).key: record(
            tmp_path, run(1).key, {"uas": 33 / 54}, 5.0, items(counts[1], scored, [2, 0, 3, 1, *range(4, 12)])
        ),
    }
    line = line_of(tmp_path, row, records)
    low, high = mean_of(counts, scored, 1000).interval
    assert line["uas"] == pytest.approx(10.5 / 18)
    assert (line["low"], line["high"]) == pytest.approx((low, high))
    assert 0 < low < high < 1
    assert line["sd"] == pytest.approx(np.std([10 / 18, 11 / 18], ddof=1))
    assert (line["seeds"], line["epochs"]) == (2, 4)


def test_differences_are_those_of_shared_seeds_and_items_after_holm(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    scored = random.integers(3, 9, 40)
    right = {
        (name, seed): np.minimum(random.binomial(scored, chance), scored).astype(float)
        for name, chance in (("a", 0.4), ("b", 0.6), ("c", 0.45))
        for seed in (0, 1)
    }
    seeds = {"a": (0, 1), "b": (0, 1), "c": (1,)}
    rows = [Row((name,), {seed: (run(seed, name),) for seed in own}, {"uas": "uas"}) for name, own in seeds.items()]
    records = {}
    for row in rows:
        for seed, (one,) in row.runs.items():
            own = items(right[row.name, seed].tolist(), scored.tolist()).assign(id=[f"s{place}" for place in range(40)])
            own = own.iloc[1:] if row.name == "c" else own  # of which one item is missing
            records[one.key] = record(tmp_path, one.key, {"uas": own["correct"].sum() / own["scored"].sum()}, items=own)
    columns = columns_of(["probe"], ["uas"], [], "here")
    sweep = Sweep("table", ("probe",), tuple(rows), columns, reference={"probe": "a"})
    result = collect(sweep, records, tmp_path)[0]
    b, c = result.tables["table_differences"].frame.to_dict("records")
    ends = [f"{100 * result.numbers[f'{name}.uas']:.1f} % ({name})" for name in "ab"]
    clear = sum(line["p_holm"] < 0.05 for line in (b, c))
    assert result.answer == (
        f"Over 3 rows uas goes from {ends[0]} to {ends[1]}; {clear or 'none'} of 2 rows differ from their reference "
        "(p < .05 after Holm)."
    )
    of_b = [[right[name, 0], right[name, 1]] for name in "ba"]
    of_c = [[right["c", 1][1:]], [right["a", 1][1:]]]  # the seed that both have
    for line, sides, of, left_out in ((b, of_b, scored, 0), (c, of_c, scored[1:], 1)):
        found = difference(*(mean_of(counts, of, 10_000) for counts in sides))
        expected = (found.value, found.low, found.high, found.p)
        assert [line[name] for name in ("difference", "low", "high", "p")] == pytest.approx(expected)
        assert (line["items"], line["left_out"]) == (40 - left_out, left_out)
    alone = paired_bootstrap(of_c[0][0], scored[1:], of_c[1][0], scored[1:], share=True)
    assert (c["low"], c["high"], c["p"]) == pytest.approx((alone.low, alone.high, alone.p))
    assert b["p"] < c["p"] < 1
    assert [b["p_holm"], c["p_holm"]] == pytest.approx([2 * b["p"], max(c["p"], 2 * b["p"])])


@pytest.mark.parametrize("seeds", [1, 3])
def test_differences_of_rows_are_over_documents(tmp_path: Path, seeds: int) -> None:
    random = np.random.default_rng(3)
    documents, scored = np.repeat(np.arange(10), 3), random.integers(3, 9, 30)
    rows = [Row((name,), {seed: (run(seed, name),) for seed in range(seeds)}, {"uas": "uas"}) for name in "ab"]
    records, sums = {}, dict[str, list[np.ndarray]](a=[], b=[])
    for row, chance in zip(rows, (0.4, 0.5), strict=True):
        for [one] in row.runs.values():
            right = random.binomial(scored, chance).astype(float)
            own = items(right.tolist(), scored.tolist()).assign(id=[f"s{n}" for n in range(30)], document=documents)
            records[one.key] = record(tmp_path, one.key, {"uas": right.sum() / scored.sum()}, items=own)
            sums[row.name].append(np.bincount(documents, right))
    columns = columns_of(["probe"], ["uas"], [], "here")
    sweep = Sweep("table", ("probe",), tuple(rows), columns, reference={"probe": "a"})
    [line] = collect(sweep, records, tmp_path)[0].tables["table_differences"].frame.to_dict("records")
    of = np.bincount(documents, scored)
    found = difference(*(mean_of(sums[name], of, 1) for name in "ba"))
    expected = (found.value, found.low, found.high, found.p)
    assert [line[name] for name in ("difference", "low", "high", "p")] == pytest.approx(expected)
    if seeds == 1:  # exact: a multiple of one of 2^9
        assert (line["p"] * 2**9) % 1 == 0


@pytest.mark.parametrize("marked", ["both", "one"])
def test_rows_are_paired_by_item_whatever_their_order_and_documents(tmp_path: Path, marked: str) -> None:
    """An older run has no documents; then those of the other count."""
    random = np.random.default_rng(8)
    documents, scored = np.sort(random.integers(16, size=60)), random.integers(4, 9, 60)
    right = random.binomial(scored, 0.5)
    sides = {"a": right.astype(float), "b": np.minimum(right + (random.random(60) < 0.3), scored).astype(float)}
    rows = [Row((name,), {0: (run(0, name),)}, {"uas": "uas"}) for name in "ab"]
    records = {}
    for row in rows:
        own = items(sides[row.name].tolist(), scored.tolist()).assign(id=[f"s{n}" for n in range(60)])
        if marked == "both" or row.name == "a":
            own = own.assign(document=documents)
        if row.name == "a":
            own = own.sample(frac=1, random_state=0)
        key = row.runs[0][0].key
        records[key] = record(tmp_path, key, {"uas": own["correct"].sum() / own["scored"].sum()}, items=own)
    columns = columns_of(["probe"], ["uas"], [], "here")
    sweep = Sweep("table", ("probe",), tuple(rows), columns, reference={"probe": "a"})
    [line] = collect(sweep, records, tmp_path)[0].tables["table_differences"].frame.to_dict("records")
    expected = paired_bootstrap(sides["b"], scored, sides["a"], scored, share=True, units=documents)
    found = [line[name] for name in ("difference", "low", "high", "p")]
    assert found == pytest.approx([expected.value, expected.low, expected.high, expected.p])
    assert line["p"] < 0.01


def test_the_interval_of_numbers_without_counts_covers_seeds_and_items() -> None:
    runs = [Estimate(value, value - 0.1, value + 0.2, unit="ratio") for value in (0.5, 0.6, 0.9)]
    found = averaged(runs)
    mean, sd = np.mean([0.5, 0.6, 0.9]), np.std([0.5, 0.6, 0.9], ddof=1)
    margin = seeds_margin(float(sd), 3)
    assert margin == pytest.approx(stats.t.ppf(0.975, 2) * sd / np.sqrt(3))
    assert (found.value, found.sd) == pytest.approx((mean, sd))
    assert found.interval == pytest.approx((mean - np.hypot(0.1, margin), mean + np.hypot(0.2, margin)))
    assert np.isnan(averaged(runs[:2]).interval).all()  # two seeds say too little of a third
    assert averaged(runs[:1]).interval == pytest.approx((0.4, 0.7))
    assert np.isnan(averaged([*runs, Estimate(0.5, unit="ratio")]).interval).all()


def test_an_item_that_a_seed_lacks_has_no_counts_in_it() -> None:
    names = [f"s{n}" for n in range(12)]
    random = np.random.default_rng(0)
    frames = []
    for _ in range(2):
        of = random.integers(4, 9, 12)
        counts = {"numerator": random.binomial(of, 0.5), "denominator": of, "unit": [n // 2 for n in range(12)]}
        frames.append(pd.DataFrame(counts, index=pd.Index(names, name="id")))
    frames[1] = frames[1].drop("s4").iloc[::-1]
    found = estimate_from_counts(frames, "fraction", share=False)
    values = [frame["numerator"].sum() / frame["denominator"].sum() for frame in frames]
    assert found.value == pytest.approx(np.mean(values))
    assert found.units == 6
    of_units = [frame.groupby("unit")[["numerator", "denominator"]].sum() for frame in frames]
    for draw, picks in zip(found.draws, subsets(6, 1), strict=True):
        ratios = [frame.loc[picks, "numerator"].sum() / frame.loc[picks, "denominator"].sum() for frame in of_units]
        assert draw == pytest.approx(np.mean(ratios))


def test_the_range_of_rows_has_no_intervals() -> None:
    low, high = (Estimate(value, value - 0.1, value + 0.1, unit="fraction") for value in (0.25, 0.75))
    assert range_answer("uas", {"b": high, "a": low, "c": high}) == "over 3 rows uas goes from 25.0 % (a) to 75.0 % (c)"
    assert range_answer("uas", {"a": low}) == "uas of a is 25.0 % [15.0, 35.0]"
    alike = {"a": low, "b": replace(low, value=0.2501)}
    assert range_answer("uas", alike) == "uas is 25.0 % in all 2 rows"
    assert range_answer("uas", {}) == "undefined"


@pytest.mark.parametrize(
    ("scores", "answer"),
    [
        ({"a": "x", "b": "x"}, "Over 4 rows all goes from 10.0 % (a × 0) to 40.0 % (b × 1)."),
        (
            {"a": "x", "b": "y"},
            "Over 2 rows x goes from 10.0 % (a × 0) to 20.0 % (a × 1); over 2 rows y goes from 30.0 % (b × 0) to "
            "40.0 % (b × 1).",
        ),
        (
            {name: name for name in "abcde"},
            "The rows have 5 different scores as all, which are not compared with each other.",
        ),
    ],
)
def test_rows_of_a_grid_with_different_scores_have_no_common_range(
    scores: Mapping[str, str], answer: str, tmp_path: Path
) -> None:
    rows = []
    records = {}
    for place, (question, score) in enumerate(scores.items()):
        for model in (0, 1):
            one = run(0, f"{question}{model}")
            rows.append(Row((question, str(model)), {0: (one,)}, {"all": score}))
            records[one.key] = record(tmp_path, one.key, {score: 0.1 * (2 * place + model + 1)})
    columns = columns_of(["question", "model"], ["all"], [], "here")
    result, _ = collect(Sweep("table", ("question", "model"), tuple(rows), columns), records, tmp_path)
    assert result.answer == answer


def test_rows_that_cannot_be_compared_are_told(tmp_path: Path) -> None:
    rows = [Row((name,), {0: (run(0, name),)}, {"uas": "uas"}) for name in ("a", "b", "c")]
    own = {"a": [*"wxyz"], "b": [*"abcd"], "c": [*"aacd"]}
    records = {
        row.runs[0][0].key: record(
            tmp_path, row.name, {"uas": 0.5}, items=items([1.0, 1, 1, 1], [2, 2, 2, 2]).assign(id=own[row.name])
        )
        for row in rows
    }
    columns = columns_of(["probe"], ["uas"], [], "here")
    result, _ = collect(Sweep("table", ("probe",), tuple(rows), columns, reference={"probe": "b"}), records, tmp_path)
    assert result.tables["table_differences"].frame.empty
    disjoint, twins = (line for line in told(result, "faults") if "compared" in line or "share" in line)
    assert disjoint == "`a` and `b` share no item of uas"
    assert re.match("`c` is not compared with `b` by uas: .* 1 item has the same id as another item", twins)


def test_rows_on_two_files_are_not_compared_by_their_lines(tmp_path: Path) -> None:
    rows = [Row((name,), {0: (run(0, name),)}, {"uas": "uas"}) for name in "ab"]
    numbered = items([1.0, 1, 1, 1], [2, 2, 2, 2]).assign(id=["1", "2", "3", "4"])
    records = {run(0, name).key: record(tmp_path, name, {"uas": 0.5}, items=numbered, sha=name) for name in "ab"}
    columns = columns_of(["probe"], ["uas"], [], "here")
    result, _ = collect(Sweep("table", ("probe",), tuple(rows), columns, reference={"probe": "b"}), records, tmp_path)
    (fault,) = told(result, "faults")
    assert re.match("`a` is not compared with `b` by uas: .* identified by numbers of lines alone", fault)


def test_seeds_whose_items_are_not_known_have_no_interval(tmp_path: Path) -> None:
    row = row_of(0, 1)
    records = {
        run(0).key: record(tmp_path, run(0).key, {"uas": Estimate(0.5, 0.4, 0.6, unit="fraction")}, 1.0),
        run(1).key: record(tmp_path, run(1).key, {"uas": 0.7}, 2.0, items([1.4], [2])),
    }
    line = line_of(tmp_path, row, records)
    assert line["uas"] == pytest.approx(0.6)
    assert np.isnan([line["low"], line["high"]]).all()
    assert line["epochs"] == 1.5


def test_the_first_of_several_runs_that_has_a_score_gives_it(tmp_path: Path) -> None:
    row = Row(("a",), {0: (run(0, "a"), run(0, "b"))}, {"uas": "uas", "bits": "codelength", "more": ""})
    records = {
        run(0, "a").key: record(tmp_path, "1", {"uas": 0.5}, 4.0),
        run(0, "b").key: record(tmp_path, "2", {"uas": 0.9, "codelength": 8.0}, 2.0),
    }
    result, _ = made(tmp_path, [row], records)
    (line,) = result.tables["table"].frame.to_dict("records")
    assert (line["uas"], line["bits"], line["epochs"]) == (0.5, 8.0, 4)
    assert np.isnan(line["more"])
    assert told(result, "faults") == []
    runs = result.tables["table_runs"].frame
    assert runs["folder"].tolist() == ["1/Probe/version_0", "2/Probe/version_0"]
    assert runs["epochs"].tolist() == [4, 2]
    assert runs["bits"].tolist() == pytest.approx([NAN, 8.0], nan_ok=True)


def test_a_seed_of_which_a_run_is_missing_does_not_count(tmp_path: Path) -> None:
    row = Row(("a",), {0: (run(0, "a"), run(0, "b")), 1: (run(1, "a"), run(1, "b"))}, {"uas": "uas"})
    nothing = Row(("b",), {0: (run(0, "c"),)}, {"uas": "uas"})
    records = {one.key: record(tmp_path, one.key, {"uas": 0.1}) for one in (run(0, "a"), run(1, "a"), run(1, "b"))}
    records[run(0, "a").key] = record(tmp_path, "other", {"uas": 0.9})
    result = made(tmp_path, [row, nothing], records)[0]
    assert result.tables["table"].frame["seeds"].tolist() == [1, 0]
    assert result.tables["table"].frame["uas"].tolist() == pytest.approx([0.1, NAN], nan_ok=True)


def with_table(tmp_path: Path, key: str, test: float) -> Record:
    """What a run leaves that has a table with intervals."""
    frame = pd.DataFrame({"relation": ["all", "obj"], "layer": [1, 2], "test": [0.4, test]})
    frame = frame.assign(low=frame["test"] - 0.1, high=frame["test"] + 0.1)
    table = Table(frame, {"test": "fraction"}, interval="test")
    folder = tmp_path / "runs" / key / "Heads" / "version_0"
    write_scores(folder, Result("heads", {}, {"best_heads": table}), Provenance({}, {}, {}))
    return read_record(folder / "results.json")


def test_a_score_may_be_a_cell_of_a_table(tmp_path: Path) -> None:
    row = row_of(0, 1, score="best_heads:test[relation=obj]")
    records = {run(seed).key: with_table(tmp_path, run(seed).key, test) for seed, test in ((0, 0.5), (1, 0.7))}
    result, _ = made(tmp_path, [row], records)
    [line] = result.tables["table"].frame.to_dict("records")
    assert [line[name] for name in ("uas", "low", "high")] == pytest.approx([0.6, NAN, NAN], nan_ok=True)
    assert result.tables["table"].units["uas"] == "fraction"
    assert result.tables["table_runs"].frame["uas"].tolist() == [0.5, 0.7]
    assert not told(result, "faults")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("best_heads:test[relation=amod]", r"has not one row with a number in `test` where relation=amod: 0 rows"),
        ("heads:test[relation=obj]", r"row `a`, seed 0: .* no score `heads:test\[relation=obj\]`"),
    ],
)
def test_a_cell_that_is_not_there_is_a_fault(place: str, said: str, tmp_path: Path) -> None:
    result, _ = made(tmp_path, [row_of(0, score=place)], {run(0).key: with_table(tmp_path, run(0).key, 0.5)})
    [fault] = told(result, "faults")
    assert re.search(said, fault)
    assert np.isnan(result.tables["table"].frame["uas"].item())


def test_other_data_and_what_all_runs_share(tmp_path: Path) -> None:
    rows = [Row((name,), {0: (run(0, name),)}, {"uas": "uas"}) for name in ("a", "b", "c")]
    kinds = [("1", "tiny"), ("2", "tiny"), ("1", "large")]
    records = {
        run(0, name).key: record(tmp_path, name, {"uas": 0.5}, sha=sha, encoder=encoder)
        for name, (sha, encoder) in zip("abc", kinds, strict=True)
    }
    result, provenance = made(tmp_path, rows, records)
    assert told(result, "warnings") == ["t.conllu differs between rows: a, c | b"]
    assert provenance.encoder == {}
    alike, provenance = made(tmp_path, rows[:1], {run(0, "a").key: records[run(0, "a").key]})
    assert told(alike, "warnings") == []
    assert provenance.encoder == {"name": "tiny"}
    assert provenance.data == {"test": {"file": "t.conllu", "sha256": "1"}}


@pytest.mark.parametrize(
    ("corpora", "said"),
    [
        ("trec sst2", []),
        ("trec trec", ["trec t.conllu differs between rows: a | b"]),
        ("mine/{split}.tsv yours/{split}.tsv", ["t.conllu differs between rows: a | b"]),
    ],
)
def test_files_of_two_public_corpora_are_not_compared(tmp_path: Path, corpora: str, said: list[str]) -> None:
    rows = [Row((name,), {0: (run(0, name),)}, {"uas": "uas"}) for name in "ab"]
    records = {
        run(0, name).key: record(tmp_path, name, {"uas": 0.5}, sha=name, corpus=corpus)
        for name, corpus in zip("ab", corpora.split(), strict=True)
    }
    assert told(made(tmp_path, rows, records)[0], "warnings") == said


def test_rows_on_different_items_are_told(tmp_path: Path) -> None:
    rows = [Row((name,), {0: (run(0, name),)}, {"uas": "uas", "same": "uas"}) for name in "abcd"]
    numbered = pd.DataFrame({"id": [f"s{n}" for n in range(9)], "scored": 2, "correct": 1.0})
    kept = {"a": numbered, "b": numbered.iloc[[0, 1, 2, 3, 4, 6, 7, 8]], "c": numbered, "d": None}
    records = {
        run(0, name).key: record(tmp_path, name, {"uas": 0.5}, items=None if frame is None else frame.reset_index())
        for name, frame in kept.items()
    }
    (warning,) = told(made(tmp_path, rows, records)[0], "warnings")
    assert warning.startswith("the rows have different items for uas, same: 9 in a, c | 8 in b; 8 are shared. ")
    assert "--common" in warning
    assert told(made(tmp_path, [rows[0], *rows[2:]], records)[0], "warnings") == []


def test_rows_without_a_common_item_are_not_advised_to_compare_those(tmp_path: Path) -> None:
    rows = [Row((name,), {0: (run(0, name),)}, {"uas": "uas"}) for name in "ab"]
    numbered = pd.DataFrame({"id": [f"s{n}" for n in range(9)], "scored": 2, "correct": 1.0})
    kept = {"a": numbered.iloc[:4], "b": numbered.iloc[4:]}
    records = {
        run(0, name).key: record(tmp_path, name, {"uas": 0.5}, items=frame.reset_index())
        for name, frame in kept.items()
    }
    (warning,) = told(made(tmp_path, rows, records)[0], "warnings")
    assert warning == (
        "the rows have different items for uas: 4 in a | 5 in b; 0 are shared. No two of them can be compared: test "
        "them on the same data"
    )


def test_rows_of_two_corpora_are_not_told_to_share_items(tmp_path: Path) -> None:
    rows = [Row((name,), {0: (run(0, name),)}, {"uas": "uas"}) for name in "abc"]
    numbered = pd.DataFrame({"id": [f"s{n}" for n in range(9)], "scored": 2, "correct": 1.0}).reset_index()
    records = {
        run(0, name).key: record(tmp_path, name, {"uas": 0.5}, items=numbered[:number], sha=corpus, corpus=corpus)
        for name, number, corpus in (("a", 3, "english"), ("b", 4, "german"), ("c", 5, "german"))
    }
    assert told(made(tmp_path, rows[:2], records)[0], "warnings") == []
    (warning,) = told(made(tmp_path, rows, records)[0], "warnings")
    assert warning.startswith("the rows have different items for uas: 4 in b | 5 in c; 4 are shared. ")


def test_runs_of_two_states_of_the_program_are_told_apart(tmp_path: Path) -> None:
    row = row_of(0, 1)
    records = {one.key: record(tmp_path, one.key, {"uas": 0.5}) for one in (run(0), run(1))}
    assert told(made(tmp_path, [row], records)[0], "warnings") == []
    other = records[run(1).key]
    versions = {**other.versions, "source_sha256": "another"}
    records[run(1).key] = other.model_copy(update={"versions": versions})
    (warning,) = told(made(tmp_path, [row], records)[0], "warnings")
    assert "the program was changed between these runs" in warning


@pytest.mark.parametrize(
    ("epochs", "seeds", "others"),
    [(3.0, (0,), True), (3.0, (0, 1), False), (NAN, (0,), False)],  # a measurement has no epochs
)
def test_one_trained_seed_does_not_stand_for_others(
    tmp_path: Path, epochs: float, seeds: tuple[int, ...], others: bool
) -> None:
    rows = []
    records = {}
    for name, chance in (("a", 0.2), ("b", 0.8)):
        rows.append(Row((name,), {seed: (run(seed, name),) for seed in seeds}, {"uas": "uas"}))
        for seed in seeds:
            right = np.random.default_rng(seed).binomial(5, chance, 40)
            counts = items(right.tolist(), [5] * 40).assign(id=[f"s{place}" for place in range(40)])
            key = run(seed, name).key
            records[key] = record(tmp_path, key, {"uas": right.sum() / 200}, epochs, counts)
    columns = columns_of(["probe"], ["uas"], [], "here")
    sweep = Sweep("table", ("probe",), tuple(rows), columns, reference={"probe": "a"})
    answer = collect(sweep, records, tmp_path)[0].answer
    assert "; 1 of 1 row differs from its reference (p < .05 after Holm)" in answer
    assert answer.endswith("; a row with one seed says nothing about other seeds.") == others


def test_the_warnings_of_runs_are_repeated_once_for_each_row(tmp_path: Path) -> None:
    rows = [Row((name,), {seed: (run(seed, name),) for seed in (0, 1)}, {"uas": "uas"}) for name in ("a", "b", "c")]
    records = {}
    for row in rows:
        for seed in (0, 1):
            key = run(seed, row.name).key
            plain = record(tmp_path, key, {"uas": 0.5})
            warning = f"the best epoch on dev ({4 + seed}) is the last"
            is_warned = row.name == "a" or (row.name == "b" and seed == 1)
            audit = {"warnings": [warning]} if is_warned else {}
            records[key] = plain.model_copy(update={"audit": audit})
    warnings = told(made(tmp_path, rows, records)[0], "warnings")
    assert warnings == ["a, b (1 of 2 runs): the best epoch on dev is the last"]
