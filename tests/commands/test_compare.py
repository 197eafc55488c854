import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from rich.console import Console

from attention_probing.commands.compare import compare, compare_answer, main
from attention_probing.commands.scored_runs import (
    ScoredRun,
    group_seeds,
    list_cautions,
    restrict_to_same_items,
    select_score,
)
from attention_probing.commands.seeds import over_seeds
from attention_probing.metrics.bootstrap import bootstrap_ratio, resample
from attention_probing.metrics.differences import difference, paired_bootstrap, with_interval_and_p
from attention_probing.metrics.p_values import holm
from attention_probing.metrics.seeds import pool_seeds, seeds_margin
from attention_probing.metrics.statistics import proportion, two_columns
from attention_probing.results import Estimate, Provenance, Result, Table
from attention_probing.results.digests import checksums
from attention_probing.results.errors import UserError
from attention_probing.results.record import find_record
from attention_probing.results.writer import write

SENTENCES = 60


def items(seed: int, gain: float = 0.0) -> pd.DataFrame:
    """Items of one treebank; `seed` decides which words are right."""
    shape = np.random.default_rng(99)
    scored, ease = shape.integers(1, 25, SENTENCES), shape.beta(3, 2, SENTENCES)
    right = np.random.default_rng(seed).binomial(scored, np.clip(ease + gain, 0, 1))
    names = [f"text-{number}" for number in range(SENTENCES)]
    return pd.DataFrame(
        {"sentence": np.arange(SENTENCES), "id": names, "scored": scored, "correct": right.astype(np.float64)}
    )


def config(seeds: int = 0, folder: str = "runs", **model: object) -> dict[str, Any]:
    return {
        "seed_everything": seeds,
        "trainer": {"max_epochs": 4, "default_root_dir": folder, "callbacks": [{"init_args": {"dirpath": folder}}]},
        "model": {"class_path": "AttentionOnlyProbe", "init_args": {"learning_rate": 0.01, **model}},
        "data": {"init_args": {"cache": folder, "root": None, "seed": seeds, "encoder": {"name": "a", "seed": seeds}}},
    }


def make_run(
    folder: Path,
    frame: pd.DataFrame,
    settings: Mapping[str, object] | None,
    *,
    sha256: str = "1",
    ratios: Mapping[str, tuple[str, str]] | None = None,
    shares: Sequence[str] = ("uas",),
    limit: Mapping[str, object] | None = None,
) -> Path:
    """A run's folder, as the callback leaves it."""
    folder.mkdir(parents=True)
    if settings is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    pairs = {"uas": ("correct", "scored")} if ratios is None else ratios
    scores = {
        name: Estimate(frame[right].sum() / frame[of].sum(), unit="fraction") for name, (right, of) in pairs.items()
    }
    scores["loss"] = Estimate(2.5, unit="nats")
    test = {"file": "test.conllu", "sha256": sha256, **(limit or {})}
    data = {"train": {"file": "train.conllu", "sha256": "0"}, "test": test}
    declared = [name for name in shares if name in pairs]
    result = Result("attention_only", scores, items=frame, ratios=pairs, shares=declared)
    write(folder, result, Provenance({"name": "a"}, data, {}))
    return folder


def counts_of(frame: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    return frame["correct"], frame["scored"]


def over_seeds_by_hand(frames: Sequence[pd.DataFrame], draws: int = 10_000) -> Estimate:
    """The mean of uas over runs on the same items, as a mean of estimates."""
    columns = [np.column_stack(counts_of(frame)) for frame in frames]
    return pool_seeds([resample(two_columns(share=True), one, "fraction", draws=draws) for one in columns])


def test_the_interval_of_runs_with_unequal_denominators_is_that_of_their_mean(tmp_path: Path) -> None:
    """F1 of three seeds, of which one predicts little: its denominators are smaller."""
    sides = {0: (np.zeros(SENTENCES), np.full(SENTENCES, 1.0)), 1: (np.full(SENTENCES, 4.0), np.full(SENTENCES, 6.0))}
    sides[2] = np.full(SENTENCES, 2.0), np.full(SENTENCES, 6.0)
    names = [f"text-{number}" for number in range(SENTENCES)]
    for seed, (right, of) in sides.items():
        right[: SENTENCES // 2] += seed
        frame = pd.DataFrame({"id": names, "right": right, "of": of})
        make_run(tmp_path / str(seed), frame, config(seed), ratios={"f1": ("right", "of")})
    records = [find_record(tmp_path / str(seed)) for seed in sides]
    table, apart = compare(group_seeds([select_score(record, "f1") for record in records]))
    assert apart == []
    (line,) = table.frame.to_dict("records")
    mean = np.mean([right.sum() / of.sum() for right, of in sides.values()])
    assert line["f1"] == pytest.approx(mean)
    columns = [np.column_stack(side) for side in sides.values()]
    parts = [resample(two_columns(share=False), one, "fraction", draws=10_000) for one in columns]
    expected = pool_seeds(parts)
    assert expected.low < mean < expected.high
    assert [line["f1.low"], line["f1.high"]] == pytest.approx(expected.interval)
    # Two seeds of which one has 0 % and the other 75 % say nothing of a third.
    assert expected.interval[1] - expected.interval[0] > 1
    found = over_seeds(records, "f1")
    again = pool_seeds([resample(two_columns(share=False), one, "fraction") for one in columns])
    assert [found.value, found.low, found.high] == pytest.approx([mean, *again.interval])


def change_record(run: Path, **changes: object) -> bool:
    content = json.loads((run / "results.json").read_text())
    return (run / "results.json").write_text(json.dumps({**content, **changes})) > 0


def seal(run: Path, **changes: object) -> None:
    """Change the record, and let it have the checksums of the files as they are now."""
    content = json.loads((run / "results.json").read_text()) | changes
    change_record(run, **changes, checksums=checksums(run, content))


def read(run: Path) -> ScoredRun:
    return select_score(find_record(run), "uas")


def numbers(difference: Estimate) -> list[float | None]:
    return [difference.value, difference.low, difference.high, difference.p]


def run_main(*arguments: object) -> str:
    text = StringIO()
    assert main([str(argument) for argument in arguments], console=Console(file=text, width=200)) == 0
    return text.getvalue()


def test_two_runs_are_compared_as_the_tests_say(tmp_path: Path) -> None:
    a, b = items(1), items(2, gain=0.05)
    first = make_run(tmp_path / "Probe" / "version_0", a, config())
    second = make_run(tmp_path / "Words" / "version_0", b, config(learning_rate=0.5))
    printed = run_main(first, second / "results.json", "--json", tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["score"], found["items"], found["warnings"]) == ("uas", SENTENCES, [])
    assert f"{second} has model.learning_rate 0.5 (not 0.01)." in printed
    reference, other = found["lines"]
    assert [line["run"] for line in found["lines"]] == ["Probe/version_0", "Words/version_0"]
    assert [line["seeds"] for line in found["lines"]] == [1, 1]
    for line, frame in ((reference, a), (other, b)):
        low, high = bootstrap_ratio(frame["correct"], frame["scored"], share=True, draws=10_000).interval
        assert line["uas"] == pytest.approx(frame["correct"].sum() / frame["scored"].sum())
        assert [line["uas.low"], line["uas.high"]] == [float(low), float(high)]
        assert line["sd"] is None
    assert reference["difference"] is reference["permutation.p"] is None
    expected = paired_bootstrap(*counts_of(b), *counts_of(a), share=True)
    names = ("difference", "difference.low", "difference.high", "permutation.p")
    assert [other[key] for key in names] == numbers(expected)
    assert not other.keys() & {"holm.p", "bootstrap.p", "difference.p"}
    assert other["runs"][0]["folder"] == str(second)
    # The table says the same, ×100, but for p, which has two significant digits.
    row = next(line for line in printed.splitlines() if line.startswith("Words/version_0"))
    assert f"{100 * other['uas']:.1f} [" in row
    assert f"{100 * expected.value:.1f} [" in row
    assert row.split()[-1] == f"{expected.p:.2f}".removeprefix("0")
    assert f"{SENTENCES} items, matched by id" in printed
    of_first = [100 * reference[f"uas{end}"] for end in ("", ".low", ".high")]
    apart = [100 * other[f"difference{end}"] for end in ("", ".low", ".high")]
    assert printed.splitlines()[0] == (
        f"Over {SENTENCES} items the uas of Probe/version_0 is {{:.1f}} % [{{:.1f}}, {{:.1f}}]; ".format(*of_first)
        + "the difference of Words/version_0 is "
        + "{:+.1f} points [{:.1f}, {:.1f}], p = ".format(*apart)
        + f"{other['permutation.p']:.2f}".removeprefix("0")
        + ", of these two runs: other seeds may differ."
    )


def test_seeds_of_one_config_are_one_line(tmp_path: Path) -> None:
    frames = [items(seed) for seed in (1, 2, 3)]
    runs = [make_run(tmp_path / f"a{seed}", frame, config(seed, f"runs{seed}")) for seed, frame in enumerate(frames)]
    others = [items(seed, gain=0.03) for seed in (4, 5)]
    runs += [make_run(tmp_path / f"b{seed}", frame, config(seed, decay=0.5)) for seed, frame in enumerate(others)]
    groups = group_seeds([read(run) for run in runs])
    assert [[run.folder.name for run in group] for group in groups] == [["a0", "a1", "a2"], ["b0", "b1"]]
    table, apart = compare(groups)
    reference, other = table.frame.to_dict("records")
    assert (reference["run"], reference["seeds"], other["seeds"]) == ("a0", 3, 2)
    scores = [frame["correct"].sum() / frame["scored"].sum() for frame in frames]
    assert reference["uas"] == pytest.approx(np.mean(scores))
    assert reference["sd"] == pytest.approx(np.std(scores, ddof=1))
    means = [over_seeds_by_hand(group) for group in (frames, others)]
    assert [reference["uas.low"], reference["uas.high"]] == pytest.approx(means[0].interval)
    expected = difference(means[1], means[0])
    assert other["difference"] == pytest.approx(other["uas"] - reference["uas"])
    found = [other[key] for key in ("difference", "difference.low", "difference.high", "permutation.p")]
    assert found == pytest.approx(numbers(expected)) == numbers(apart[0])
    answer = compare_answer(table, apart, "uas", SENTENCES)
    assert "a0 (mean of 3 seeds)" in answer
    assert "b0 (mean of 2 seeds)" in answer
    assert "other seeds may differ" not in answer


def test_the_interval_of_seeds_that_differ_much_covers_other_seeds(tmp_path: Path) -> None:
    frames = [items(1, gain=gain) for gain in (0.0, 0.3, -0.2)]
    runs = [make_run(tmp_path / f"a{seed}", frame, config(seed)) for seed, frame in enumerate(frames)]
    [line] = compare(group_seeds([read(run) for run in runs]))[0].frame.to_dict("records")
    right, of = sum(frame["correct"] for frame in frames) / 3, frames[0]["scored"]
    low, high = bootstrap_ratio(right, of, share=True).interval
    assert line["uas.high"] - line["uas.low"] > 3 * (high - low)
    students = seeds_margin(line["sd"], 3)
    assert (line["uas.high"] - line["uas.low"]) / 2 == pytest.approx(students, rel=0.4)


def test_items_of_a_document_are_drawn_together(tmp_path: Path) -> None:
    documents = np.sort(np.random.default_rng(1).integers(15, size=SENTENCES))
    frames = [items(seed, gain).assign(document=documents) for seed, gain in ((1, 0.0), (2, 0.06))]
    runs = [make_run(tmp_path / name, frame, config(of=name)) for name, frame in zip("ab", frames, strict=True)]
    table, apart = compare([[read(run)] for run in runs])
    sums = [frame.groupby("document")[["correct", "scored"]].sum() for frame in frames]
    expected = paired_bootstrap(*counts_of(sums[1]), *counts_of(sums[0]), share=True)
    assert numbers(apart[0]) == pytest.approx(numbers(expected))
    other = table.frame.to_dict("records")[1]
    assert other["permutation.p"] == apart[0].p != paired_bootstrap(*counts_of(frames[1]), *counts_of(frames[0])).p
    interval = bootstrap_ratio(*counts_of(sums[1]), share=True, draws=10_000).interval
    assert (other["uas.low"], other["uas.high"]) == pytest.approx(interval)


def test_a_run_without_documents_is_compared_by_those_of_the_other(tmp_path: Path) -> None:
    """Such as a run of a version that did not read them."""
    documents = np.sort(np.random.default_rng(1).integers(15, size=SENTENCES))
    frames = [items(1).iloc[::-1], items(2, 0.06).assign(document=documents)]
    runs = [make_run(tmp_path / name, frame, config(of=name)) for name, frame in zip("ab", frames, strict=True)]
    sums = [frame.groupby(documents)[["correct", "scored"]].sum() for frame in (items(1), frames[1])]
    expected = paired_bootstrap(*counts_of(sums[1]), *counts_of(sums[0]), share=True)
    order, _ = restrict_to_same_items([read(runs[1]), read(runs[0])], common=False)
    _, [apart] = compare([[order[1]], [order[0]]])
    assert numbers(apart) == pytest.approx(numbers(expected))


@pytest.mark.parametrize("shares", [("uas",), ()])
def test_only_declared_shares_have_the_interval_of_few_items(shares: Sequence[str], tmp_path: Path) -> None:
    frame = items(1).assign(scored=1, correct=(np.arange(SENTENCES) < 3).astype(float))
    other = frame.assign(correct=(np.arange(SENTENCES) < 4).astype(float))
    runs = [
        make_run(tmp_path / name, of_run, config(of=name), shares=shares)
        for name, of_run in (("a", frame), ("b", other))
    ]
    table, [apart] = compare([[read(run)] for run in runs])
    decisions = resample(proportion, frame[["correct"]].to_numpy(), "fraction")
    found = table.estimate(0, "uas").interval
    assert (found == pytest.approx(decisions.interval)) == bool(shares)
    expected = paired_bootstrap(*counts_of(other), *counts_of(frame), share=bool(shares))
    assert apart.interval == pytest.approx(expected.interval)


def test_the_answer_names_the_largest_of_several_differences_only_if_it_is_significant(tmp_path: Path) -> None:
    gains = (0.0, 0.3, 0.02, -0.05)
    runs = [make_run(tmp_path / f"r{n}", items(n, gain), config(of=n)) for n, gain in enumerate(gains)]
    every = [read(run) for run in runs]
    table, apart = compare([[run] for run in every])
    at_once = with_interval_and_p(apart[0], tests=3)
    assert (at_once.p or 1) < 0.05
    answer = compare_answer(table, apart, "uas", SENTENCES)
    clear = int((table.frame["holm.p"] < 0.05).sum())
    ends = [100 * end for end in (at_once.value, *at_once.interval)]
    assert answer.split("; ")[1:] == [
        f"{clear} of 3 other runs differ (p < .05 after Holm)",
        "the largest difference is that of r1, {:+.1f} points [{:.1f}, {:.1f}], p < .001.".format(*ends),
    ]
    table, apart = compare([[every[0]], [every[2]], [every[0]]])
    assert table.frame["holm.p"].iloc[1] > 0.05
    answer = compare_answer(table, apart, "uas", SENTENCES)
    assert answer.endswith("; none of 2 other runs differ (p < .05 after Holm).")
    table, apart = compare([[every[0]]])
    assert "; " not in compare_answer(table, apart, "uas", SENTENCES)


def test_what_differs_in_more_than_seeds_is_another_line(tmp_path: Path) -> None:
    frame = items(1)
    folders = [
        make_run(tmp_path / "one", frame, config(0)),
        make_run(tmp_path / "again", frame, config(0)),  # the same seed: nothing that a mean over seeds is made of
        make_run(tmp_path / "seed", frame, config(1)),
        make_run(tmp_path / "split", frame, {**config(2), "split_seed": 1}),  # decides which items there are
        make_run(tmp_path / "own seed", frame, config(5, seed=8)),
        make_run(tmp_path / "other own seed", frame, config(5, seed=9)),
        make_run(tmp_path / "data", frame, config(3), sha256="2"),
        make_run(tmp_path / "bare", frame, None),
        make_run(tmp_path / "barer", frame, None),
    ]
    runs = [read(folder) for folder in folders]
    groups = [[run.folder.name for run in group] for group in group_seeds(runs)]
    alone = [["data"], ["bare"], ["barer"]]
    assert groups == [["one", "seed"], ["again"], ["split"], ["own seed", "other own seed"], *alone]
    told = list_cautions(runs)
    assert len(told) == 3
    assert "data and" in told[0]
    assert "read different files, or items of them, for test" in told[0]
    assert "bare has no config.yaml" in told[1]


def test_several_comparisons_are_corrected(tmp_path: Path) -> None:
    gains = (0.0, 0.03, 0.05, 0.05)
    runs = [make_run(tmp_path / f"r{n}", items(n, gain), config(decay=n)) for n, gain in enumerate(gains)]
    frame = compare(group_seeds([read(run) for run in runs]))[0].frame
    p, corrected = frame["permutation.p"].to_numpy(), frame["holm.p"].to_numpy()
    assert np.isnan([p[0], corrected[0]]).all()
    assert corrected[1:].tolist() == holm(p[1:].tolist()).tolist()
    assert (corrected[1:] >= p[1:]).all()


def test_items_in_another_order_and_with_other_numbers_are_the_same_by_id(tmp_path: Path) -> None:
    a, b = items(1), items(2)
    turned = b.iloc[::-1].assign(sentence=np.arange(SENTENCES))
    straight = [make_run(tmp_path / "a", a, config()), make_run(tmp_path / "b", b, config(decay=1))]
    shuffled = make_run(tmp_path / "c", turned, config(decay=2))
    tables = [
        compare([[run] for run in restrict_to_same_items([read(straight[0]), read(other)], common=False)[0]])[0]
        for other in (straight[1], shuffled)
    ]
    pd.testing.assert_frame_equal(tables[0].frame.drop(columns="run"), tables[1].frame.drop(columns="run"))


def test_other_items_are_counted_in_the_error(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", items(1).iloc[2:], config(0))
    b = make_run(tmp_path / "b", items(2).iloc[:50], config(1))
    with pytest.raises(
        UserError,
        match=r"a and .*b were .*: 10 \(text-50, text-51, text-52 and 7 more\) only in the former, 2 "
        r"\(text-0, text-1\) only in the latter, 48 in both; --common compares",
    ):
        main([str(a), str(b)])
    c = make_run(tmp_path / "c", items(2).drop(columns="id"), config(decay=1))
    with pytest.raises(UserError, match=r"items of .*a are identified by id, those of .*c by sentence"):
        main([str(a), str(c)])


@pytest.mark.parametrize("names", [[str(line) for line in range(2, SENTENCES + 2)], None])
def test_texts_of_two_files_are_not_paired_by_their_lines(names: list[str] | None, tmp_path: Path) -> None:
    frames = [items(seed).drop(columns="id") for seed in (1, 2)]
    if names is not None:
        frames = [frame.assign(id=names) for frame in frames]
    a = make_run(tmp_path / "a", frames[0], config(0))
    b = make_run(tmp_path / "b", frames[1], config(1), sha256="2")
    for more in ([], ["--common"]):
        with pytest.raises(
            UserError,
            match=r"a and .*b cannot be compared: they were scored on different files, and their items are identified "
            r"by numbers of lines alone, .*Test both runs on one file, or name a column of ids with ",
        ):
            main([str(a), str(b), *more])
    same = make_run(tmp_path / "same", frames[1], config(decay=1))
    assert f"{SENTENCES} items" in run_main(a, same)


def test_common_items_are_compared_when_asked(tmp_path: Path) -> None:
    a, b, c = items(1).iloc[2:], items(2, gain=0.05).iloc[:50], items(3)
    frames = {"a": a, "b": b, "c": c}
    runs = [make_run(tmp_path / name, frame, config(decay=name)) for name, frame in frames.items()]
    printed = run_main(*runs, "--common", "--json", tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["items"] == 48
    kept = [frame[frame["id"].isin([f"text-{n}" for n in range(2, 50)])] for frame in frames.values()]
    for line, frame in zip(found["lines"], kept, strict=True):
        assert line["uas"] == pytest.approx(frame["correct"].sum() / frame["scored"].sum())
    expected = paired_bootstrap(*counts_of(kept[1]), *counts_of(kept[0]))
    assert found["lines"][1]["permutation.p"] == expected.p
    assert found["warnings"][0] == (
        f"{runs[0]}: 10 (text-50, text-51, text-52 and 7 more) of 58 items are left out, because not all "
        f"runs have them; its uas is {found['lines'][0]['uas']:.4g} without and "
        f"{a['correct'].sum() / a['scored'].sum():.4g} with them"
    )
    told = [warning.split()[:2] for warning in found["warnings"]]
    assert told == [[f"{run}:", left] for run, left in zip(runs, ("10", "2", "12"), strict=True)]
    assert "48 items, matched by id" in printed
    other = make_run(tmp_path / "other", items(1).assign(id=lambda frame: "x" + frame["id"]), config(decay=9))
    for more in ([], ["--common"]):  # which is not advised where nothing is common
        with pytest.raises(UserError, match=r"a and .*other have no item in common\. Compare runs that were scored on"):
            main([str(runs[0]), str(other), *more])


def test_items_are_not_paired_by_their_numbers_within_different_limits(tmp_path: Path) -> None:
    numbered = items(1).drop(columns="id")
    limits = {"a": {"limit": 58}, "b": {"limit": 58, "limit_seed": 1}, "c": {"limit": 58}}
    runs = [make_run(tmp_path / name, numbered, config(decay=name), limit=limit) for name, limit in limits.items()]
    with pytest.raises(
        UserError, match=r"a and .*b cannot be compared: .* numbered within --data\.limit, which differs"
    ):
        main([str(runs[0]), str(runs[1]), "--common"])
    assert f"{SENTENCES} items" in run_main(runs[0], runs[2])
    named = [make_run(tmp_path / f"{name}-id", items(1), config(decay=name), limit=limits[name]) for name in "ab"]
    printed = run_main(*named)
    assert f"{SENTENCES} items" in printed
    assert "read different files, or items of them, for" in " ".join(printed.split())


def swept(folder: Path) -> Path:
    """A sweep that has ended: two seeds of a row, in either of which the first of two runs has no such score."""
    lines = []
    for row, seeds in {"words": (0, 1), "no words": (0,)}.items():
        for seed in seeds:
            for kind, pairs in (("control", {}), ("probe", None)):
                place = f"{row}{seed}{kind}/Probe/version_0"
                frame = items(seed, gain=0.05 * len(row))
                settings = {**config(seed, of=row, kind=kind), "ckpt_path": f"{row}{seed}.ckpt"}  # as of `needs`
                make_run(folder / "runs" / place, frame, settings, ratios=pairs)
                lines.append({"probe": row, "seed": seed, "command": "fit", "config": "a.yaml", "folder": place})
    write(
        folder,
        Result("t", {}, {"t": Table(pd.DataFrame({"probe": [1]})), "t_runs": Table(pd.DataFrame(lines))}),
        Provenance({}, {}, {}),
    )
    return folder


def test_a_row_of_a_sweep_is_named_as_in_its_table(tmp_path: Path) -> None:
    folder = swept(tmp_path / "out")
    alone = make_run(tmp_path / "alone", items(5), config(decay=7))
    printed = run_main(f"{folder}:words", f"{folder}:no words", alone, "--score", "uas", "--json", tmp_path / "t.json")
    lines = json.loads((tmp_path / "t.json").read_text())["lines"]
    assert [line["seeds"] for line in lines] == [2, 1, 1]
    assert [line["run"] for line in lines[:2]] == ["out:words", "out:no words"]
    assert [Path(run["folder"]).parts[-3] for run in lines[0]["runs"]] == ["words0probe", "words1probe"]
    assert "out:no words" in printed
    for wrong in (folder, f"{folder}:"):
        with pytest.raises(UserError, match="words, no words"):
            main([str(wrong)])
    with pytest.raises(UserError, match=r"has no row 'wrods' \(did you mean `words`\?\); there are: words, no words"):
        main([f"{folder}:wrods"])
    with pytest.raises(UserError, match="alone is not the folder of a finished sweep"):
        main([f"{alone}:words"])


def test_other_denominators_are_told(tmp_path: Path) -> None:
    a = items(1)
    b = a.assign(scored=a["scored"] + (a["sentence"] < 7))
    runs = [make_run(tmp_path / "a", a, config()), make_run(tmp_path / "b", b, config(decay=1))]
    printed = " ".join(run_main(*runs).split())  # it is as wide as the terminal
    assert f"Warning: in 7 items the denominators of {runs[1]} and {runs[0]} differ, so the two" in printed
    assert "as expected" not in printed
    shuffled = config()
    shuffled["data"]["init_args"]["gold"] = "shuffled"
    twin = make_run(tmp_path / "twin", b, shuffled)
    printed = " ".join(run_main(runs[0], twin).split())
    assert "over the same words or mentions, as expected with shuffled gold" in printed


EXPECTED = "Give a run folder, a results.json, or SWEEP_DIR:ROW"


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (shutil.rmtree, rf"run: there is no such file or folder\. {EXPECTED}"),
        (lambda run: (run / "items.parquet").unlink(), "items.parquet with the counts per test item is missing"),
        (
            lambda run: seal(run, ratios={}),
            r"results\.json: .* cannot be compared item by item; no score has such counts",
        ),
        (lambda run: (run / "config.yaml").write_text("a: ["), r"config.yaml was changed after the run"),
    ],
)
def test_a_run_that_cannot_be_compared_is_named(harm: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    harm(make_run(tmp_path / "run", items(1), config()))
    with pytest.raises(UserError, match=message):
        main([str(tmp_path / "run")])


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (items(1).replace("text-1", "text-0"), "1 item has the same id as another item"),
        (items(1).drop(columns=["id", "sentence"]), "has no column id, sentence or document"),
        (items(1).assign(scored=[*[np.nan] * 9, *[25.0] * (SENTENCES - 9)]), "a count of uas is not a finite number"),
    ],
)
def test_items_that_cannot_be_compared_are_named(frame: pd.DataFrame, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        main([str(make_run(tmp_path / "run", frame, config()))])


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ("uass", r"uass cannot be compared item by item \(did you mean `uas`\?\); choose a score with counts"),
        ("loss", "loss cannot be compared item by item; choose a score with counts per item: uas"),
        ("uas", "run is named twice"),
    ],
)
def test_a_score_without_counts_and_a_run_named_twice_are_refused(tmp_path: Path, score: str, message: str) -> None:
    run = make_run(tmp_path / "run", items(1), config())
    with pytest.raises(UserError, match=message):
        main([str(run), str(run / "results.json"), "--score", score])


@pytest.mark.parametrize(
    ("ratios", "remedy"),
    [
        (("heads.uas",), "Compare runs of the same experiment"),
        (("heads.uas", "uas_with_punctuation"), "Give --score uas_with_punctuation"),
    ],
)
def test_runs_of_different_scores_are_told_once(tmp_path: Path, ratios: Sequence[str], remedy: str) -> None:
    counts = ("correct", "scored")
    probe = make_run(
        tmp_path / "probe", items(1), config(), ratios=dict.fromkeys(("uas", "uas_with_punctuation"), counts)
    )
    heads = make_run(tmp_path / "heads", items(2), config(), ratios=dict.fromkeys(ratios, counts))
    has = f"{probe} has uas, uas_with_punctuation and {heads} has {', '.join(ratios)}"
    with pytest.raises(UserError, match=re.escape(f"uas has counts per item in one run alone: {has}. {remedy}")):
        main([str(probe), str(heads)])
