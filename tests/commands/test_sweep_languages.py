import io
import json
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pytest
import yaml
from rich.console import Console

from attention_probing.commands import CONFIGS
from attention_probing.commands.sweep import check_all, divide_languages, main
from attention_probing.commands.sweep_languages import has_test_alone, read_languages
from attention_probing.commands.sweep_plan import make_sweep, read_plan, read_sweep, with_languages
from attention_probing.commands.sweep_transfer import KINDS, OWN, PROBE, TRANSFERRED, TRANSFERRED_PROBE, Languages
from attention_probing.corpora.sentence import Treebank
from attention_probing.datamodules import DependencyDataModule
from attention_probing.results import Provenance, Result, Table
from attention_probing.results.errors import UserError
from attention_probing.results.tables import data_table
from tests.commands.sweeps import write_program, write_spec

GRID = """scores: [uas]
languages: {Thai: ud_thai, Greek: 'el-{split}.conllu', Breton: {test: br.conllu}}
source: Greek
grid:
  axes:
    learned:
      own: {config: a.yaml}
      transferred heads: {config: a.yaml, command: measure, set: {data.transfer_from: $source_corpus}}
      transferred probe: {config: a.yaml, command: test, needs: {checkpoints: ':$source × own'}}
"""


def test_languages_are_the_first_axis_and_what_needs_the_source_gets_it(tmp_path: Path) -> None:
    sweep = read_sweep(write_spec(tmp_path, GRID, a="a"))
    assert sweep.labels == ("language", "learned")
    assert sweep.source == "Greek"
    assert [row.labels for row in sweep.rows] == [
        ("Greek", "own"),  # it needs nothing of itself, and others need it
        ("Thai", "own"),
        ("Thai", "transferred heads"),
        ("Thai", "transferred probe"),
        ("Breton", "transferred heads"),  # nothing can be learned on a test split alone
        ("Breton", "transferred probe"),
    ]
    runs = {row.labels: row.all_runs()[0] for row in sweep.rows}
    assert dict(runs["Thai", "transferred heads"].options) == {
        "data.init_args.corpus": "ud_thai",
        "data.init_args.transfer_from": "el-{split}.conllu",
    }
    assert dict(runs["Breton", "transferred heads"].options)["data.init_args.corpus"] == '{"test": "br.conllu"}'
    for language in ("Thai", "Breton"):
        assert runs[language, "transferred probe"].needed == [runs["Greek", "own"]]


def test_the_corpus_of_the_source_may_be_files_by_split(tmp_path: Path) -> None:
    files = {"train": "a.conllu", "dev": "b.conllu", "test": "c.conllu"}
    spec = write_spec(tmp_path, GRID, a="a")
    sweep = make_sweep(with_languages(read_plan(spec), spec, {"Greek": files, "Thai": "ud_thai"}, ""), spec)
    assert sweep.source == "Greek"
    (run,) = next(row for row in sweep.rows if row.labels == ("Thai", "transferred heads")).all_runs()
    assert json.loads(dict(run.options)["data.init_args.transfer_from"]) == files
    assert with_languages(read_plan(spec), spec, {"Lao": "ud_lao", "Thai": "ud_thai"}, "Thai").source == "Thai"
    assert with_languages(read_plan(spec), spec, None, "Thai").source == "Thai"


@pytest.mark.parametrize(
    ("corpus", "alone"),
    [
        ("ud_breton_keb", True),
        ("ud_german_gsd", False),
        ("ud_no_such", False),
        ("my/{split}.conllu", False),
        ({"test": "a.conllu"}, True),
        ({"dev": "b.conllu", "test": "a.conllu"}, False),
    ],
)
def test_a_corpus_with_a_test_split_alone_is_known_by_its_files(corpus: object, alone: bool) -> None:
    assert has_test_alone(corpus) == alone


def test_the_shipped_plan_has_the_kinds_that_are_compared_and_trains_the_source_once() -> None:
    sweep = read_sweep(CONFIGS / "languages.yaml")
    assert [row.labels[1] for row in sweep.rows if row.labels[0] == "German"] == list(KINDS)
    assert [row.labels[1] for row in sweep.rows if row.labels[0] == "English"] == [OWN, PROBE]
    assert len(sweep.rows) == 9 * len(KINDS) - 2
    (trained,) = {needed.key for row in sweep.rows for run in row.all_runs() for needed in run.needed}
    english = next(row for row in sweep.rows if row.labels == ("English", PROBE))
    assert [run.key for run in english.all_runs()] == [trained]
    for row in sweep.rows:
        (run,) = row.all_runs()
        learned_on = dict(run.options).get("data.init_args.transfer_from")
        assert learned_on == ("ud_english_ewt" if row.labels[1] in (TRANSFERRED, TRANSFERRED_PROBE) else None)


def test_languages_of_the_command_line() -> None:
    words = ["Greek=my/el-{split}.conllu,", "Yoruba=yo.conllu", "Thai={dev: b.conllu, test: c.conllu}", "Lao=ud_lao"]
    assert read_languages(words) == {
        "Greek": "my/el-{split}.conllu",
        "Yoruba": {"test": "yo.conllu"},
        "Thai": {"dev": "b.conllu", "test": "c.conllu"},
        "Lao": "ud_lao",
    }
    assert read_languages([]) == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["Greek"],
            r"--languages: 'Greek' does not name a language and its corpus. Write NAME=CORPUS, such as Finnish=",
        ),
        (["=a.conllu"], "'=a.conllu' does not name a language"),
        (["Thai=a", "Thai=b"], "--languages names Thai more than once"),
        (["Thai={dev: [}"], r"the files of Thai are \{dev: \[\}, which is no mapping. Write 'Thai=\{train: a.conllu, "),
    ],
)
def test_faults_of_languages_on_the_command_line(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_languages(words)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            GRID,
            ["--source=Thay"],
            r"--source: the source language is Thay \(did you mean `Thai`\?\), but the languages are",
        ),
        (
            GRID.replace("source: Greek", "source: Latin"),
            [],
            "spec.yaml: `source`: .* Latin, but the languages are Thai,",
        ),
        ("scores: [uas]\nrows: {a: {config: a.yaml}}\n", ["--source=Thai"], "--source: the plan .* has no `languages`"),
        (
            "scores: [uas]\nrows: {a: {config: a.yaml}}\n",
            ["--languages", "T=t"],
            "--languages: the plan .* has no `lang",
        ),
        (
            "scores: [uas]\nlanguages: {T: t}\nrows: {a: {config: a.yaml}}\n",
            [],
            "`languages` are the axis `language` of",
        ),
        (
            GRID.replace("learned:", "language:"),
            [],
            "`languages` are the axis `language` of a grid with one further axis. Give it a `grid` whose",
        ),
        (
            GRID + "    width: {narrow: {}, wide: {set: {model.width: 2}}}\n",
            [],
            "one further axis, whose values are compared within a language, but here it has 2: learned, width. Keep",
        ),
        (GRID.partition("  axes:")[0] + "  axes: {}\n", [], "but here it has none. Keep"),
        (
            GRID,
            ["--", "--languages", "T=t", "L=l"],
            "--languages is an option of the sweep itself. Write it before `--`",
        ),
        (GRID, ["--", "--corpus=x"], r"`--data.corpus` is set .* `language`. Name the languages and their"),
    ],
)
def test_faults_of_a_plan_of_languages(text: str, options: list[str], message: str, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, text, a="a")
    with pytest.raises(UserError, match=message):
        main([str(spec), f"--out={tmp_path}/out", *options])


@pytest.mark.parametrize("words", [["--dry"], ["--", "--dry"], ["--", "--encoder", "x", "--dry"]])
def test_the_costs_of_a_sweep_are_those_of_its_runs(words: list[str]) -> None:
    message = r"--dry is an option of one command, .*\.conllu --dry`, or .* `--trainer.fast_dev_run true`$"
    with pytest.raises(UserError, match=message):
        main(["languages", *words])


def sweep(path: Path, *words: str, faulty: str = "nothing") -> tuple[int, str]:
    """Run a sweep of the stand-in; a command line with the text `faulty` is invalid."""

    def check(lines: Iterable[list[str]]) -> list[str | None]:
        return [f"there is no {faulty}" if any(faulty in word for word in line) else None for line in lines]

    console = Console(file=io.StringIO(), width=200, color_system=None)
    program = write_program(path.parent)
    code = main([str(path), f"--out={path.parent / 'out'}", *words], program=program, console=console, check=check)
    assert isinstance(console.file, io.StringIO)
    return code, console.file.getvalue()


def test_a_language_whose_files_are_missing_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, GRID, a="checkpoint")
    code, printed = sweep(spec, faulty="ud_thai")
    assert code == 1
    assert re.search(r"Thai × own, a, seed 0: not begun: there is no ud_thai\n", printed)
    titles = r"\[\d/6\] Thai × own, a, seed 0, \[\d/6\] Thai × transferred heads, a, seed 0"
    assert re.search(rf"\nfailed: {titles}: there is no ud_thai\n", printed), "once for both"
    # The transferred probe needs another run, so it was not checked.
    assert "6 runs: 4 done (4 begun now), 2 failed" in printed
    table = pd.read_csv(tmp_path / "out" / "spec.csv").set_index(["language", "learned"])
    assert table["uas"].isna().to_dict() == {
        ("Greek", "own"): False,
        ("Thai", "own"): True,
        ("Thai", "transferred heads"): True,
        ("Thai", "transferred probe"): False,
        ("Breton", "transferred heads"): False,
        ("Breton", "transferred probe"): False,
    }
    code, printed = sweep(spec, "--table")
    assert code == 1
    assert re.search(rf"\nfailed before: {titles}: there is no ud_thai\n", printed)
    assert "6 runs: 4 done (0 begun now), 0 failed, 2 failed before" in printed
    # With the file there, only what is missing is run.
    code, printed = sweep(spec)
    assert code == 0
    assert "6 runs: 6 done (2 begun now), 0 failed" in printed


def test_without_the_source_no_run_is_begun(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, GRID, a="a")
    with pytest.raises(UserError, match=r"no run was started, .*\nGreek × own.*: there is no el-"):
        sweep(spec, faulty="el-")
    assert not (tmp_path / "calls.txt").exists()


def test_the_folder_keeps_the_languages_of_the_command_line(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, GRID, a="checkpoint")
    languages = ["--languages", "Lao=ud_lao", "Thai=ud_thai"]
    assert sweep(spec, *languages)[0] == 0
    code, printed = sweep(spec, "--table")
    assert code == 0
    assert "4 runs: 4 done (0 begun now), 0 failed" in printed
    assert pd.read_csv(tmp_path / "out" / "spec.csv")["language"].unique().tolist() == ["Lao", "Thai"]
    copy = tmp_path / "out" / "config.yaml"
    assert yaml.safe_load(copy.read_text())["source"] == "Lao"
    copy.rename(tmp_path / "again.yaml")
    keys = {run.key for row in read_sweep(tmp_path / "again.yaml").rows for run in row.all_runs()}
    assert keys == {path.name for path in (tmp_path / "out" / "runs").iterdir()}
    for damaged in ("{", "[]", '{"languages": 1}'):
        (tmp_path / "out" / "languages.json").write_text(damaged, encoding="utf-8")
        with pytest.raises(UserError, match=r"languages.json .* Give --languages and --source again"):
            sweep(spec, "--table")
        assert sweep(spec, "--table", *languages)[0] == 0
    assert sweep(spec)[0] == 0, "without --table, the languages are those of the plan"
    assert (tmp_path / "out" / "config.yaml").read_text() == GRID


def test_a_table_of_many_languages_is_divided_where_the_terminal_ends() -> None:
    names = [f"Language{number}" for number in range(9)]
    frame = pd.DataFrame({"relation": ["obj", "nsubj"], **dict.fromkeys(names, "8-5 62.7↑")})
    parts = divide_languages(Table(frame, main=frame.columns.tolist()), 80)
    assert [part.frame.columns.tolist() for part in parts] == [["relation", *names[:6]], ["relation", *names[6:]]]
    for part in parts:
        console = Console(file=io.StringIO(), width=80, color_system=None)
        console.print(data_table("own", part, "own.csv", 80))
        assert isinstance(console.file, io.StringIO)
        lines = console.file.getvalue().splitlines()
        assert len(lines) == 2 + 1 + 2, "title, head, rule, and a line for each relation"
        assert max(map(len, lines)) <= 80
    (whole,) = divide_languages(Table(frame, main=frame.columns.tolist()), 160)
    assert whole.frame.columns.tolist() == ["relation", *names]
    assert len(divide_languages(Table(frame, main=frame.columns.tolist()), 12)) == 9, "each alone where none fits"


@pytest.mark.slow
def test_own_languages_are_compared_in_one_command(
    corpus: str, bert: Path, cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the shipped plan and the program itself, with a language of test alone."""
    alone = corpus.format(split="test")
    words = ["--languages", f"Breton={alone}", f"Latin={corpus}", "--source=Latin"]
    options = [f"--encoder={bert}", f"--data.cache={cache}", "--trainer.accelerator=cpu"]
    assert main(["languages", f"--out={tmp_path}/out", *words, "--", *options]) == 0
    probes = pd.read_csv(tmp_path / "out/compared/probes.csv").set_index("language")
    assert list(probes.index) == ["Latin", "Breton"]
    # One corpus under two names: what is learned on one finds the same in the other.
    assert probes["transferred"].to_dict()["Breton"] == probes["uas"].to_dict()["Latin"]
    assert probes["uas"].isna().tolist() == [False, True]
    own = pd.read_csv(tmp_path / "out/compared/own.csv").set_index("relation")
    assert own.columns.tolist() == ["Latin"]
    (found,) = own.loc[["all"], "Latin"].astype(str)
    transfer = pd.read_csv(tmp_path / "out/compared/transfer.csv").set_index("relation")
    assert transfer["Breton"].to_dict()["all"] == f"({found.split()[1].rstrip('↑')})"
    printed = capsys.readouterr().out
    assert "Breton has a test split alone, so it has no own heads and no own probe." in printed
    assert len(pd.read_csv(tmp_path / "out/tables/languages_runs.csv")) == 4


def test_the_answer_of_languages_is_that_of_their_comparison_and_wrapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = f"The head of Greek is worse {'than the own one ' * 20}in 2 of 3 cells."

    def compare(languages: Languages) -> tuple[Result, Provenance]:
        assert languages.source == "Greek"
        audit = {"blank": [], "warnings": ["Thai, Breton have the same file"]}
        return Result("transfer", {}, audit=audit, answer=answer), Provenance({}, {}, {})

    monkeypatch.setattr("attention_probing.commands.sweep.compare_languages", compare)
    _, printed = sweep(write_spec(tmp_path, GRID, a="checkpoint"))
    assert " ".join(printed.split()).count(answer) == 1
    assert answer not in printed, "its lines end where the terminal ends"
    assert "goes from" not in printed
    assert "\nWarning: Thai, Breton have the same file\n" in printed
    assert json.loads((tmp_path / "out" / "results.json").read_text())["answer"] == answer


def test_a_damaged_file_of_a_language_is_found_before_the_first_run(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "el-dev.conllu"
    damaged.write_text("1\ta\n", encoding="utf-8")
    files = {split: corpus.format(split=split) for split in ("train", "dev", "test")}
    plan = CONFIGS / "languages.yaml"
    languages = {"Latin": corpus, "Greek": {**files, "dev": str(damaged)}}
    sweep = make_sweep(with_languages(read_plan(plan), plan, languages, "Latin"), plan)
    runs = {row.name: run for row in sweep.rows for run in row.all_runs() if not run.needs}
    reads: list[Path] = []
    read = DependencyDataModule.read

    def count(data: DependencyDataModule, path: Path) -> Treebank:
        reads.append(path)
        return read(data, path)

    monkeypatch.setattr(DependencyDataModule, "read", count)
    faults = dict(zip(runs, check_all((run.arguments for run in runs.values()), reads_files=True), strict=True))
    of_greek = faults["Greek × own heads"]
    assert of_greek is not None
    assert of_greek.startswith(f"{damaged}:1: the row has 2 columns instead of 10")
    assert faults == {
        "Latin × own heads": None,
        "Latin × own probe": None,
        "Greek × own heads": of_greek,
        "Greek × transferred heads": None,  # it reads test of Greek alone
        "Greek × own probe": of_greek,
    }
    assert sorted(reads) == sorted([damaged, *map(Path, files.values())]), "each once"
    reads.clear()
    assert set(check_all(run.arguments for run in runs.values())) == {None}
    assert not reads, "other plans do not read their files"
