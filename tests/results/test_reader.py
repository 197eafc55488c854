import csv
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from attention_probing.commands import compare
from attention_probing.results import Bars, Estimate, Provenance, Result, Table
from attention_probing.results.digests import RECORD, checksums
from attention_probing.results.errors import UserError
from attention_probing.results.figure_files import FigureFiles
from attention_probing.results.reader import find_runs, load
from attention_probing.results.record import RecordError, compute_ratio, find_record, read_record
from attention_probing.results.writer import write, write_scores

SCORES = {
    "uas": Estimate(0.5, 0.4, 0.6, unit="fraction"),
    "loss": Estimate(2.5, unit="nats"),
    "uuas": Estimate(float("nan"), float("nan"), float("nan"), unit="fraction", p=0.25),
}


def run(folder: Path, rate: float, **scores: Estimate) -> None:
    folder.mkdir(parents=True)
    config = {
        "seed_everything": 3,
        "checkpoint": {"monitor": "val_uas"},
        "trainer": {"max_epochs": 2, "default_root_dir": "runs"},
        "model": {"class_path": "AttentionOnlyProbe", "init_args": {"learning_rate": rate}},
        "data": {
            "class_path": "DependencyDataModule",
            "init_args": {"cache": "stores", "options": {"layers": [3, 4]}, "encoder": {"name": "bert"}},
        },
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    encoder = {"name": "bert", "weights": "pretrained"}
    write(folder, Result("probe", scores or SCORES, audit={"epochs": 2}), Provenance(encoder, {}, {}))


def test_every_score_is_a_row_with_its_interval_unit_and_options(tmp_path: Path) -> None:
    run(tmp_path / "a" / "version_0", 0.1)
    run(tmp_path / "b [1]" / "version_0", 0.2, uas=Estimate(0.75, unit="fraction"))
    frame = load(str(tmp_path / "**"))
    assert frame["score"].tolist() == ["uas", "loss", "uuas", "uas"]
    assert frame["value"].tolist() == pytest.approx([0.5, 2.5, float("nan"), 0.75], nan_ok=True)
    first, loss, uuas, other = frame.to_dict("records")
    assert (first["low"], first["high"], first["unit"]) == (0.4, 0.6, "fraction")
    assert (loss["unit"], uuas["p"]) == ("nats", 0.25)
    assert pd.isna([loss["low"], loss["sd"], other["high"]]).all()
    assert frame["model.learning_rate"].tolist() == [0.1, 0.1, 0.1, 0.2]
    assert set(frame["model"]) == {"AttentionOnlyProbe"}
    assert first["data.options.layers.1"] == 4
    assert (first["trainer.max_epochs"], first["epochs"], first["encoder"]) == (2, 2, "bert")
    strange = {"data.cache", "trainer.default_root_dir", "checkpoint.monitor"}  # they change no number
    assert not strange & set(frame)
    assert frame["run"].unique().tolist() == [str(tmp_path / name / "version_0") for name in ("a", "b [1]")]
    both: list[str | Path] = [tmp_path / "a", str(tmp_path / "*" / "*" / "results.json")]
    same_runs: list[str | Path | list[str | Path]] = [tmp_path, both, [tmp_path / "a", tmp_path / "b [1]"]]
    # Of a sweep the runs are read, and not its table.
    (tmp_path / "sweep").mkdir()
    whole = Result("table", SCORES, {"table": Table(pd.DataFrame({"row": ["x"]})), "table_runs": Table(pd.DataFrame())})
    write_scores(tmp_path / "sweep", whole, Provenance({}, {}, {}))
    for same in same_runs:
        pd.testing.assert_frame_equal(load(same), frame)


def test_a_damaged_run_is_told_and_left_out(tmp_path: Path) -> None:
    run(tmp_path / "a", 0.1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "results.json").write_text("{", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"left out: .*b.results\.json is damaged: it is not valid JSON"):
        assert load(tmp_path)["run"].unique().tolist() == [str(tmp_path / "a")]
    with pytest.raises(RecordError, match="no run has scores"):
        load(tmp_path / "nowhere")


def test_one_table_of_all_runs_that_have_it(tmp_path: Path) -> None:
    for name, heads in (("a", ["3-1", "2-5"]), ("b", ["1-2", "4-4"])):
        best = Table(
            pd.DataFrame({"relation": ["obj", "None"], "head": heads, "test": [0.5, np.nan]}), {"test": "fraction"}
        )
        (tmp_path / name).mkdir()
        encoder = {"name": f"bert-{name}", "weights": "pretrained"}
        write(tmp_path / name, Result("heads", SCORES, {"best_heads": best}), Provenance(encoder, {}, {}))
    run(tmp_path / "probe", 0.1)
    frame = load(tmp_path, table="best_heads")
    assert frame.columns.tolist() == ["run", "seed", "encoder", "weights", "relation", "head", "test"]
    assert frame.query("relation == 'obj'")["head"].tolist() == ["3-1", "1-2"]
    assert frame["relation"].tolist() == ["obj", "None"] * 2, "a word, and no missing number"
    assert frame["test"].isna().tolist() == [False, True] * 2
    assert frame["encoder"].tolist() == ["bert-a", "bert-a", "bert-b", "bert-b"]
    with pytest.raises(RecordError, match=r"no run has a table best_head \(did you mean `?best_heads`?\?\)"):
        load(tmp_path, table="best_head")
    with pytest.raises(RecordError, match="no run has a table best_heads"):
        load(tmp_path / "probe", table="best_heads")


def test_a_table_without_rows_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    empty = Table(pd.DataFrame(columns=["head", "test"]))
    write(tmp_path, Result("heads", SCORES, {"no_op": empty}), Provenance({}, {}, {}))
    with pytest.raises(RecordError, match=rf"^{tmp_path}: the table no_op has no rows in any run\.$"):
        load(tmp_path, "no_op")


def test_a_config_is_verified_and_an_older_one_is_said_not_to_be(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, 0.1)
    frame = load(folder)
    path = folder / "config.yaml"
    whole = path.read_text(encoding="utf-8")
    for damaged in (whole.replace("0.1", "0.2"), whole.replace("model:", "modal:"), whole[:40], "", whole + "# more\n"):
        assert damaged != whole
        path.write_text(damaged, encoding="utf-8")
        with pytest.warns(UserWarning, match=rf"{path} was changed after the run"), pytest.raises(RecordError):
            load(folder)
    path.unlink()
    with pytest.warns(UserWarning, match=rf"^{path} is missing, so the options of the run are not known$"):
        assert "model.learning_rate" not in load(folder)
    path.write_text(whole, encoding="utf-8")
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    del record["checksums"]["config.yaml"]  # as versions before 1.1 wrote it
    (folder / RECORD).write_text(json.dumps(record), encoding="utf-8")
    with pytest.warns(UserWarning, match=rf"^{path} is not verified: results.json of an older version"):
        pd.testing.assert_frame_equal(load(folder), frame)
    (folder / RECORD).unlink()
    (folder / RECORD).symlink_to("/dev/zero")
    with pytest.raises(RecordError, match="cannot be read: it is a device, not a regular file"):
        read_record(folder / RECORD)


READERS: dict[str, Callable[[Path], object]] = {
    "load": load,
    "compare": lambda run: compare.main([str(run)]),
    "row of a sweep": lambda run: compare.main([f"{run}:x"]),
    "table": lambda run: find_record(run).table("probe_runs"),
}


def test_labels_that_look_like_numbers_stay_text(tmp_path: Path) -> None:
    frame = pd.DataFrame({"label": ["0", "001"], "n": [3, 4], "share": [0.5, float("nan")], "first": [True, False]})
    run(tmp_path / "a", 0.1)
    write(tmp_path / "a", Result("probe", {}, {"labels": Table(frame, {"share": "fraction"})}), Provenance({}, {}, {}))
    table = find_record(tmp_path / "a").table("labels")
    pd.testing.assert_frame_equal(table, frame, check_dtype=False)
    assert load(tmp_path / "a", table="labels")["label"].tolist() == ["0", "001"]


def digits(text: bytes) -> list[int]:
    """Places of some of the digits of a file."""
    found = [place for place, sign in enumerate(text) if chr(sign).isdigit()]
    return found[:: max(len(found) // 12, 1)]


@pytest.mark.parametrize(
    "file",
    [
        *("results.json", "config.yaml", "tables/probe_runs.csv", "main.csv", "main.tex", "figures/curve.data.csv"),
        "items.parquet",
    ],
)
def test_a_changed_digit_is_refused_by_every_reader(file: str, tmp_path: Path) -> None:
    items = pd.DataFrame({"id": ["a", "b"], "right": [1, 2], "of": [4, 4]})
    table = Table(pd.DataFrame({"seed": [1, 2], "uas": [0.5, -0.25]}), {"uas": "fraction"})
    tables = {"probe_runs": table, "main": replace(table, main=("uas",))}
    figures = {"curve": Bars("t", ("a", "b"), {"x": [0.125, 0.75]}, "y", unit="fraction")}
    scores = {"uas": Estimate(0.375, 0.25, 0.5, unit="fraction")}
    result = Result("probe", scores, tables, figures, items=items, ratios={"uas": ("right", "of")})
    (tmp_path / "config.yaml").write_text(
        "seed_everything: 3\nmodel: {class_path: x.Probe, init_args: {rate: 0.125}}\n"
    )
    write(tmp_path, result, Provenance({}, {}, {}), figures=FigureFiles(formats=("csv",)))
    find_record(tmp_path)
    path = tmp_path / file
    whole = path.read_bytes()
    places = range(4, len(whole), len(whole) // 8) if file == "items.parquet" else digits(whole)
    assert places
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        for name, read in READERS.items():
            told = "its SHA-256 differs|has no entry" if file == "results.json" else rf"{file} was changed after"
            warned = pytest.warns(UserWarning, match=told) if name == "load" else nullcontext()
            with warned, pytest.raises(RecordError, match="no run has" if name == "load" else told):
                read(tmp_path)
    path.write_bytes(whole)
    find_record(tmp_path)


def test_a_record_without_checksums_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "a", 0.1)
    content = json.loads((tmp_path / "a" / RECORD).read_text(encoding="utf-8"))
    (tmp_path / "a" / RECORD).write_text(json.dumps({**content, "checksums": {}, "seed": 7}), encoding="utf-8")
    with pytest.raises(RecordError, match=r"results\.json was changed after the run: its SHA-256 differs"):
        find_record(tmp_path / "a")


def test_a_record_that_names_a_file_elsewhere_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n", encoding="utf-8")
    run(tmp_path / "a", 0.1)
    path = tmp_path / "a" / RECORD
    content = json.loads(path.read_text(encoding="utf-8"))
    monkeypatch.setattr("attention_probing.results.digests.file_digest", lambda path: pytest.fail(f"{path} is read"))
    for name in ("../secret.csv", str(tmp_path / "secret.csv")):
        path.write_text(json.dumps({**content, "tables": {"x": name}}), encoding="utf-8")
        with pytest.raises(RecordError, match=r"names .*secret\.csv, which is not in its folder"):
            find_record(tmp_path / "a")


def sweep(folder: Path) -> dict[str, Any]:
    """Write a sweep of one run with all kinds of files, and return the content of its record."""
    run(folder / "runs" / "one", 0.1)
    items = pd.DataFrame({"id": ["a", "b"], "right": [1, 2], "of": [4, 4]})
    rows = pd.DataFrame({"row": ["x"], "seed": [1], "folder": ["one"], "uas": [0.375]})
    tables = {
        "p": Table(pd.DataFrame({"row": ["x"], "uas": [0.375]}), {"uas": ["fraction"]}),
        "p_runs": Table(rows, {"uas": "fraction"}, "uas"),
    }
    figures = {"curve": Bars("t", ("a", "b"), {"x": [0.125, 0.75]}, "y", unit="fraction")}
    result = Result("p", {"uas": Estimate(0.375, 0.25, 0.5, unit="fraction")}, tables, figures, {"epochs": 2}, items)
    provenance = Provenance({"name": "bert", "layers": 2}, {"test": {"file": "a.conllu", "sha256": "0"}}, {})
    write(folder, replace(result, ratios={"uas": ("right", "of")}, shares=("uas",)), provenance)
    content: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    return content


def seal(folder: Path, content: dict[str, Any]) -> None:
    """Write a record that somebody changed together with its checksums."""
    with suppress(AttributeError, TypeError, ValueError, KeyError, OSError):  # what stands there cannot be sealed
        content = {**content, "checksums": checksums(folder, content)}
    (folder / RECORD).write_text(json.dumps(content), encoding="utf-8")


def test_a_record_of_a_version_without_shares_is_read(tmp_path: Path) -> None:
    content = sweep(tmp_path)
    assert find_record(tmp_path).shares == ["uas"]
    del content["shares"]
    seal(tmp_path, content)
    record = find_record(tmp_path)
    assert record.shares == []
    assert record.counts("uas")["numerator"].tolist() == [1, 2]
    seal(tmp_path, {**content, "shares": "uas"})
    with pytest.raises(RecordError, match="`shares` is 'uas', but must be a list"):
        find_record(tmp_path)


@pytest.mark.parametrize(
    ("columns", "units"),
    [
        ({}, [0, 1, 2]),
        ({"document": [4, 7, 4]}, [4, 7, 4]),
        ({"document": ["a:1", "a:2", "b"], "whole_document": ["a", "a", "b"]}, ["a", "a", "b"]),
    ],
)
def test_the_counts_of_an_item_have_its_unit(
    columns: dict[str, list[object]], units: list[object], tmp_path: Path
) -> None:
    items = pd.DataFrame({**columns, "id": ["x", "y", "z"], "right": [1.0, 2.0, 0.0], "of": [4, 4, 2]})
    result = Result("p", {"uas": Estimate(0.3, unit="fraction")}, items=items, ratios={"uas": ("right", "of")})
    write_scores(tmp_path, result, Provenance({}, {}, {}))
    counts = find_record(tmp_path).counts("uas", by_id=True)
    assert list(counts) == ["numerator", "denominator", "unit"]
    assert counts["unit"].tolist() == units
    assert counts.index.tolist() == ["x", "y", "z"]
    assert compute_ratio(counts) == 0.3


def places(node: object, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every entry of nested mappings, and of the first of each list."""
    for key, inner in node.items() if isinstance(node, dict) else enumerate(node[:1] if isinstance(node, list) else ()):
        yield (*above, key)
        yield from places(inner, (*above, key))


def with_value(node: Any, place: Sequence[Any], value: object) -> Any:  # noqa: ANN401 # of any kind
    if not place:
        return value
    entries = list(node) if isinstance(node, list) else dict(node)
    entries[place[0]] = with_value(node[place[0]], place[1:], value)
    return entries


ODD: list[object] = [5, [1], {"x": 5}, None, float("inf"), 10**400, "\0", "x" * 300]


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:12])
def test_any_value_in_place_of_another_is_read_or_refused_in_a_line(value: object, tmp_path: Path) -> None:
    content = sweep(tmp_path)
    refused = set()
    for place in places(content):
        if place[0] == "versions" and place[1:] not in ((), ("source_sha256",)):
            continue
        changed = with_value(content, place, value)
        seal(tmp_path, changed)
        record, fault = None, ""
        try:
            record = find_record(tmp_path)
        except UserError as error:
            fault = str(error)
            refused.add(place[0])
        assert record is not None or (str(tmp_path) in fault and "\n" not in fault), place
        if record is not None:
            with suppress(UserError):
                record.counts("uas")
            with suppress(UserError):
                record.number("p:uas[row=x]")
        readers: list[Callable[[Path], object]] = [find_runs, lambda run: load(run / RECORD)]
        for read in readers:
            with warnings.catch_warnings(), suppress(UserError):
                warnings.simplefilter("ignore", UserWarning)
                read(tmp_path)
    assert refused or value == "x" * 300


@pytest.mark.parametrize(
    ("column", "cells", "message"),
    [
        ("seed", None, "p_runs.csv has no column 'seed'"),
        ("folder", None, "p_runs.csv has no column 'folder'"),
        ("folder", ["../../x"], r"leads out of the folder"),
        ("folder", ["../.."], r"leads out of the folder"),
    ],
)
def test_a_table_of_runs_that_names_no_runs_is_refused(
    column: str, cells: list[str] | None, message: str, tmp_path: Path
) -> None:
    content = sweep(tmp_path)
    frame = pd.read_csv(tmp_path / "tables/p_runs.csv")
    frame = frame.drop(columns=column) if cells is None else frame.assign(**{column: cells})
    frame.to_csv(tmp_path / "tables/p_runs.csv", index=False)
    seal(tmp_path, content)
    with pytest.raises(RecordError, match=message):
        find_runs(tmp_path)


WORDS = ["=1+1", "+1", "-x", "@SUM(1)", "\tb", "\rc", "'=d", "''+e", "'s", "plain", 'a, "b"', "-0.5"]


def test_words_of_tables_are_data_for_a_spreadsheet_and_come_back(tmp_path: Path) -> None:
    frame = pd.DataFrame({"=word": WORDS, "value": np.arange(len(WORDS)) - 2.5, "count": -1})
    result = Result("p", SCORES, {"t": Table(frame, {"value": "nats"})})
    write_scores(tmp_path, result, Provenance({}, {}, {}))
    with (tmp_path / "tables/t.csv").open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    assert [row[0][0] in "=+-@\t\r" for row in [head, *rows]] == [False] * (len(WORDS) + 1)
    assert [row[0] for row in rows] == [f"'{word}" if word.lstrip("'")[0] in "=+-@\t\r" else word for word in WORDS]
    assert [float(row[1]) for row in rows] == frame["value"].tolist(), "numbers are numbers"
    pd.testing.assert_frame_equal(load(tmp_path, table="t")[list(frame)], frame, check_dtype=False)
