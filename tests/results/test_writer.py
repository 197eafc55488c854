import csv
import dataclasses
import errno
import hashlib
import io
import json
import math
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import pytorch_lightning as pl
import torch
from matplotlib.figure import Figure as Canvas
from pandas.testing import assert_frame_equal
from pytorch_lightning.loggers import CSVLogger, Logger
from rich.console import Console
from torch.utils.data import DataLoader

from attention_probing.commands.writer import ResultWriter
from attention_probing.results import (
    Bars,
    ColouredText,
    ColouredTexts,
    Curves,
    Estimate,
    HeatMap,
    Provenance,
    Result,
    Table,
    publication,
    writer,
)
from attention_probing.results.figure_files import FigureFiles
from attention_probing.results.latex import latex_table
from attention_probing.results.tables import LEGEND
from attention_probing.results.texts import html_page
from attention_probing.results.writer import write

pytestmark = pytest.mark.filterwarnings("ignore:GPU available but not used")

EXAMPLES = ColouredTexts("Examples", (ColouredText("7", "gold 1", ("ein", "schöner"), {"attention": [0.1, 0.9]}),))
TABLE = pd.DataFrame(
    {"relation": ["det", 'a, "b"', "[unused1]"], "n": [3, 2, 1], "accuracy": [1 / 3, 0.1, float("nan")]}
)
ITEMS = pd.DataFrame({"sentence": [0, 1], "correct": [0.1, 0.2]})
PROVENANCE = Provenance(
    encoder={"name": "tiny", "layers": np.int64(2), "heads": (4, 4)},
    data={
        "test": {"corpus": "en_ewt-ud", "path": Path("data/ud"), "sentences": 2, "loss": float("nan")},
        "dev": {"corpus": "en_ewt-ud"},
    },
    audit={"too_long": 1, "range_rows": np.array([3, 4])},
)
RESULT = Result(
    experiment="probe",
    answer="The probe finds 30.0 % [25.0, 35.0] of the heads.",
    scores={
        "uas": Estimate(0.1 + 0.2, 0.25, np.float64(0.35), unit="fraction"),
        "empty": Estimate(float("nan"), unit="nats"),
    },
    tables={
        "relations": Table(TABLE, {"accuracy": "fraction"}, main=("relation", "accuracy")),
        "others": Table(TABLE[["n"]]),
    },
    headline=("uas",),
    figures={
        "relations": Bars("Relations", ("det", "obj"), {"probe": [0.5, 0.6]}, "Accuracy", unit="fraction"),
        "weights": HeatMap("Weights", np.eye(2), ["1", "2"], ["1", "2"], "Layer", "Head", "Weight", unit="ratio"),
        "curve": Curves("Curve", "ε", "JSD", {"base": ([0.01, 0.1], [0.2, 0.3])}, log_x=True),
        "examples": EXAMPLES,
    },
    audit={"too_long": 2, "unscored": 0},
    items=ITEMS,
    ratios={"uas": ("correct", "sentence")},
    shares=("uas",),
)
COLUMNS = {
    "relations": {"numeric": ["n", "accuracy"], "units": {"accuracy": "fraction"}, "interval": None},
    "others": {"numeric": ["n"], "units": {}, "interval": None},
    "relations.data": {"numeric": ["value"], "units": {"value": "fraction"}, "interval": None},
    "weights.data": {"numeric": ["value"], "units": {"value": "ratio"}, "interval": None},
    "curve.data": {"numeric": ["x", "y"], "units": {"x": "ratio", "y": "ratio"}, "interval": None},
    "examples.data": {"numeric": ["text", "value"], "units": {"value": "ratio"}, "interval": None},
}
UNDRAWN = dataclasses.replace(RESULT, figures={})
ALL = FigureFiles(formats=("png", "pdf", "csv"))
DRAWN = {f"figures/{name}.png" for name in RESULT.figures.keys() - {"examples"}} | {"figures/examples.html"}
FILES = {"items.parquet", "page.html", "results.bib", "results.json"}
FILES |= {f"{name}.{suffix}" for name in ("relations", "tables/others") for suffix in ("csv", "tex")}


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


class Numbers(pl.LightningDataModule):
    def test_dataloader(self) -> DataLoader[torch.Tensor]:
        return DataLoader(torch.arange(4.0))  # type: ignore[arg-type]


class SourcedNumbers(Numbers):
    @property
    def provenance(self) -> Provenance:
        return PROVENANCE


class Bare(pl.LightningModule):
    def test_step(self, batch: torch.Tensor) -> None:
        pass


class Adding(Bare):
    """Sums the batches, so that its result can only come from the end of the epoch."""

    def __init__(self, result: Result = UNDRAWN) -> None:
        super().__init__()
        self.last, self.result = result, cast(Result | None, None)
        self.total = 0.0

    def test_step(self, batch: torch.Tensor) -> None:
        self.total += float(batch.sum())

    def on_test_epoch_end(self) -> None:
        total = Estimate(self.total, unit="count")
        self.result = dataclasses.replace(self.last, scores={**self.last.scores, "sum": total})


class Silent(Bare):
    result: Result | None = None


def trainer_with(console: Console, root: Path, logger: Logger | bool = False) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu",
        logger=logger,
        default_root_dir=root,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ResultWriter(console)],
    )


def run(module: pl.LightningModule, data: Numbers, root: Path, logger: Logger | bool = False) -> str:
    """Test the module in a real trainer; returns what was printed."""
    console = Console(width=120, color_system=None, force_terminal=False)
    with console.capture() as printed:
        trainer_with(console, root, logger).test(module, data, verbose=False)
    return printed.get()


def record_of(folder: Path) -> dict[str, object]:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not strict JSON")

    record = json.loads((folder / "results.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert isinstance(record, dict)
    return record


@pytest.mark.slow
def test_a_test_run_writes_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "17")
    printed = run(Adding(RESULT), SourcedNumbers(), tmp_path)
    assert files_of(tmp_path) == FILES | DRAWN
    record = record_of(tmp_path)
    versions = record.pop("versions")
    assert isinstance(versions, dict)
    assert versions["numpy"] == np.__version__
    assert versions["pytorch-lightning"] == version("pytorch-lightning")
    sums = record.pop("checksums")
    assert isinstance(sums, dict)
    numbers = {name for name in files_of(tmp_path) if name.endswith((".csv", ".tex", ".parquet", ".yaml"))}
    assert sums.keys() == numbers | {"results.json"}
    for name in numbers:
        assert sums[name] == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    whole = json.dumps(record | {"versions": versions}, sort_keys=True)
    assert sums["results.json"] == hashlib.sha256(whole.encode()).hexdigest()
    assert record == {
        "schema": 3,
        "answer": RESULT.answer,
        "experiment": "probe",
        "scores": {"uas": 0.1 + 0.2, "uas.low": 0.25, "uas.high": 0.35, "empty": None, "sum": 6.0},
        "units": {"uas": "fraction", "empty": "nats", "sum": "count"},
        "tables": {"relations": "relations.csv", "others": "tables/others.csv"},
        "latex": {"relations": "relations.tex", "others": "tables/others.tex"},
        "columns": {name: COLUMNS[name] for name in RESULT.tables},
        "figures": {
            "relations": "figures/relations.png",
            "weights": "figures/weights.png",
            "curve": "figures/curve.png",
            "examples": "figures/examples.html",
        },
        "figure_data": {},
        "captions": {name: f"{figure.title} (tiny; en_ewt-ud, test)" for name, figure in RESULT.figures.items()},
        "items": "items.parquet",
        "ratios": {"uas": ["correct", "sentence"]},
        "shares": ["uas"],
        "audit": {"data.too_long": 1, "range_rows": [3, 4], "too_long": 2, "unscored": 0},
        "seed": 17,
        "encoder": {"name": "tiny", "layers": 2, "heads": [4, 4]},
        "data": {
            "test": {"corpus": "en_ewt-ud", "path": "data/ud", "sentences": 2, "loss": None},
            "dev": {"corpus": "en_ewt-ud"},
        },
        "config": None,
    }
    # To the last digit.
    with (tmp_path / "relations.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [
            ["relation", "n", "accuracy"],
            ["det", "3", repr(1 / 3)],
            ['a, "b"', "2", "0.1"],
            ["[unused1]", "1", ""],
        ]
    assert (tmp_path / "relations.tex").read_bytes().decode() == latex_table(
        RESULT.tables["relations"],
        "probe",
        "relations",
        f"{RESULT.figures['relations'].title} (tiny; en_ewt-ud, test)",
    )
    assert (tmp_path / "figures/examples.html").read_bytes().decode() == html_page(
        dataclasses.replace(EXAMPLES, title="Examples (tiny; en_ewt-ud, test)")
    )
    assert_frame_equal(pd.read_parquet(tmp_path / "items.parquet"), ITEMS)
    said, table, scores, end = printed.split("\n\n")
    assert said == RESULT.answer
    assert [line.split() for line in table.splitlines()] == [
        ["relations"],
        ["relation", "n", "accuracy"],
        ["─" * len(table.splitlines()[1])],
        ["det", "3*", "33.3"],
        ["a,", '"b"', "2*", "10.0"],
        ["[unused1]", "1*", "–"],
    ]
    # Of the scores, only the main ones; the others are counted below.
    assert [line.split() for line in scores.splitlines()[3:]] == [["uas", "30.0", "[25.0,", "35.0]"]]
    assert end.splitlines() == [
        "Audit: data: too_long 1; range_rows [3, 4]; too_long 2; 1 count that is 0.",
        "Warning: fewer than 20 items, marked * where printed: 3 rows of relations.csv. Such intervals are wide.",
        LEGEND,
        "More: 2 scores in results.json, others.csv in tables/.",
        f"Written to {tmp_path}",
    ]


def test_a_score_that_a_printed_table_has_is_not_printed_again() -> None:
    table = Table(pd.DataFrame({"score": ["uas"], "value": [0.3]}), {"value": "fraction"}, main=("score", "value"))
    console = Console(width=80, color_system=None, force_terminal=False)
    with console.capture() as printed:
        result = Result("probe", RESULT.scores, {"t": table}, headline=("uas",), answer=RESULT.answer)
        publication.print_result(result, {}, console)
    assert printed.get().count("uas") == 1
    assert printed.get().splitlines()[-1] == "More: 1 score in results.json."


@pytest.mark.slow
def test_a_quiet_run_prints_its_headline_and_its_folder(tmp_path: Path) -> None:
    console = Console(width=60, color_system=None, force_terminal=False)
    trainer = trainer_with(console, tmp_path)
    trainer.callbacks[0]._options["quiet"] = True  # type: ignore[attr-defined]
    with console.capture() as printed:
        trainer.test(Adding(), SourcedNumbers(), verbose=False)
    assert printed.get().splitlines() == [RESULT.answer, "uas 30.0 [25.0, 35.0]", f"Written to {tmp_path}"]


def test_scores_of_some_batches_are_marked(tmp_path: Path) -> None:
    console = Console(width=120, color_system=None, force_terminal=False)
    trainer = trainer_with(console, tmp_path)
    trainer.limit_test_batches = limit = 0.5
    with console.capture() as captured:
        trainer.test(Adding(), SourcedNumbers(), verbose=False)
    printed = captured.get()
    assert "Warning: fewer than 20 items, marked * where printed: 3 rows of relations.csv. Such" in printed
    assert f"Warning: the scores are of some test batches only: --trainer.limit_test_batches {limit}" in printed
    assert cast(dict[str, object], record_of(tmp_path)["audit"])["limit_test_batches"] == limit


@pytest.mark.parametrize("module", [Silent(), Bare()], ids=["without a result", "without the attribute"])
def test_a_module_without_a_result_is_named_and_skipped(module: Bare, tmp_path: Path) -> None:
    printed = run(module, SourcedNumbers(), tmp_path)
    assert f"Warning: {type(module).__name__} has no result after its test, so nothing is written" in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_beside_the_logs_of_a_run_and_with_data_of_unknown_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    folder = tmp_path / "demo" / "run"

    class Configured(Adding):
        def on_test_start(self) -> None:
            (folder / "config.yaml").touch()  # as the command line does

    printed = run(Configured(), Numbers(), tmp_path / "root", CSVLogger(tmp_path, name="demo", version="run"))
    assert "Warning: Numbers has no `provenance`: results.json lacks encoder and data" in printed
    record = record_of(folder)
    assert (record["config"], record["seed"], record["encoder"], record["data"]) == ("config.yaml", None, {}, {})
    assert record["audit"] == RESULT.audit


class Closed(io.StringIO):
    """An output that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class Ascii(io.TextIOWrapper):
    """An output that knows nothing beyond ASCII."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="ascii")


@pytest.mark.parametrize(("output", "fault"), [(Closed, SystemExit), (Ascii, UnicodeEncodeError)])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of an output closed by the collector
def test_what_cannot_be_printed_is_written(
    output: type[io.StringIO | Ascii], fault: type[BaseException], tmp_path: Path
) -> None:
    class Named(Adding):
        def on_test_epoch_end(self) -> None:
            super().on_test_epoch_end()
            assert self.result is not None
            self.result.audit["schöner"] = 1  # type: ignore[index]

    trainer = trainer_with(Console(file=output(), width=120), tmp_path)
    with pytest.raises(fault):
        trainer.test(Named(RESULT), datamodule=Numbers(), verbose=False)
    record = record_of(tmp_path)
    assert isinstance(record["scores"], dict)
    assert record["scores"]["sum"] == 6.0
    assert record["figures"] == {}
    assert files_of(tmp_path) == FILES - {"page.html", "results.bib"}


class TestWrite:
    @pytest.mark.slow
    def test_the_same_result_gives_the_same_bytes_with_and_without_figures(self, tmp_path: Path) -> None:
        written = []
        for how in (ALL, ALL, dataclasses.replace(ALL, titles=False), FigureFiles(), FigureFiles(formats=())):
            shutil.rmtree(tmp_path)
            assert not write(tmp_path, RESULT, PROVENANCE, figures=how)
            written.append({name: (tmp_path / name).read_bytes() for name in files_of(tmp_path)})
        first, same, untitled, pictures, undrawn = written
        assert first == same
        drawings = {name.replace(".png", ".pdf") for name in DRAWN if name.endswith(".png")}
        assert {name for name in first if first[name] != untitled[name]} == {
            *(name for name in DRAWN if name.endswith(".png")),
            "page.html",
        }
        numbers = {f"figures/{name}.data.csv" for name in RESULT.figures}
        assert first.keys() - pictures.keys() == drawings | numbers
        assert pictures.keys() - undrawn.keys() == DRAWN
        changed = {"results.json", "page.html"}
        for fewer in (pictures, undrawn):
            assert {name: fewer[name] for name in fewer.keys() - changed}.items() <= first.items()
        content = json.loads(first["results.json"])
        assert content["figure_data"] == {name: f"figures/{name}.data.csv" for name in RESULT.figures}
        assert content["columns"] == COLUMNS
        assert content["checksums"].keys() > numbers

    @pytest.mark.parametrize(("formats", "file"), [(("pdf", "csv"), "figures/weights.pdf"), (("csv",), None)])
    def test_a_figure_without_a_picture_is_named_on_the_page(
        self, formats: tuple[Any, ...], file: str | None, tmp_path: Path
    ) -> None:
        weights = {"weights": RESULT.figures["weights"]}
        assert not write(
            tmp_path, dataclasses.replace(RESULT, figures=weights), PROVENANCE, figures=FigureFiles(formats=formats)
        )
        assert record_of(tmp_path)["figures"] == ({"weights": file} if file else {})
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert "data:image/png" not in page
        assert page.count('href="figures/weights.pdf"') == (2 if file else 0)  # below its caption, and among the files
        assert 'href="figures/weights.data.csv"' in page

    @pytest.mark.slow
    def test_a_failed_run_leaves_no_record(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path, UNDRAWN, PROVENANCE)

        def fail(*arguments: object) -> str:
            raise RuntimeError("the disk is full")

        monkeypatch.setattr(writer, "latex_table", fail)
        with pytest.raises(RuntimeError, match="disk is full"):
            write(tmp_path, UNDRAWN, PROVENANCE)
        assert files_of(tmp_path) == FILES - {"results.json", "page.html", "relations.tex"}

    @pytest.mark.slow
    def test_a_full_disk_while_a_figure_is_drawn_leaves_the_scores(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save = Canvas.savefig

        def fill(canvas: Canvas, name: str, **options: Any) -> None:  # noqa: ANN401
            if Path(name).name == "weights.pdf":
                assert json.loads((tmp_path / "results.json").read_text())["figures"] == {}
                Path(name).write_bytes(b"half")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            save(canvas, name, **options)

        monkeypatch.setattr(Canvas, "savefig", fill)
        with pytest.raises(OSError, match=r"No space left on device: '.*/weights'"):
            write(tmp_path, RESULT, PROVENANCE, figures=ALL)
        drawn = {f"figures/relations.{suffix}" for suffix in ("png", "pdf", "data.csv")}
        assert files_of(tmp_path) == FILES - {"page.html", "results.bib"} | drawn
        assert record_of(tmp_path)["scores"] == {**RESULT.numbers, "empty": None}

    def test_a_figure_that_cannot_be_drawn_is_told_and_left_out(self, tmp_path: Path) -> None:
        wrong = Bars("Wrong", ("a", "b"), {"x": [0.5]}, "", unit="fraction")
        figures = {"wrong": wrong, "weights": RESULT.figures["weights"]}
        faults = write(tmp_path, dataclasses.replace(RESULT, figures=figures), PROVENANCE)
        assert "is shorter than" in faults.pop("wrong")
        assert not faults
        assert record_of(tmp_path)["figures"] == {"weights": "figures/weights.png"}

    def test_a_table_of_many_rows_has_no_latex(self, tmp_path: Path) -> None:
        folder = tmp_path / "new" / "folder"
        for rows, files in ((3, {"long": "tables/long.tex"}), (41, {})):
            write(folder, Result("bare", {}, {"long": Table(pd.DataFrame({"n": range(rows)}))}), PROVENANCE)
            record = record_of(folder)
            assert (record["latex"], record["figures"], record["items"]) == (files, {}, None)
            # Nor one that an earlier result has left.
            assert (folder / "tables/long.tex").exists() == bool(files)
        assert len(pd.read_csv(folder / "tables/long.csv")) == 41

    def test_what_json_cannot_say_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match=r"result\.audit\.heads\[1\] is a set"):
            write(tmp_path, Result("probe", {}, audit={"heads": [1, {2}]}), PROVENANCE)
        with pytest.raises(ValueError, match=r"result\.audit\.loss is infinite"):
            write(tmp_path, Result("probe", {}, audit={"loss": np.float32(math.inf)}), PROVENANCE)
        assert not list(tmp_path.iterdir())
