"""The commands of probing: their help, and their exit codes."""

import re
import resource
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest

from attention_probing import commands
from attention_probing.commands import COMMANDS, CONFIGS, RUNS, measure
from attention_probing.commands.command_line import CommandLine
from attention_probing.commands.sweep_run import PROGRAM
from attention_probing.results import UserError
from tests.test_train import PROBES

OTHERS = [name for name in COMMANDS if name not in RUNS]


def test_the_help_is_there_before_anything_that_takes_long_is_imported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-X", "importtime", PROGRAM[1], "--help"]
    asked = subprocess.run(command, capture_output=True, text=True, check=True, env={"COLUMNS": "80"})
    loaded = set(re.findall(r"([\w.]+)$", asked.stderr, re.MULTILINE))
    assert {"attention_probing.commands", "textwrap"} <= loaded
    assert not {"torch", "numpy", "pandas", "pytorch_lightning", "jsonargparse", "yaml", "rich"} & loaded
    monkeypatch.setenv("COLUMNS", "80")
    assert commands.main(["--help"]) == 0
    assert asked.stdout == capsys.readouterr().out


def test_the_help_has_the_commands_and_every_config_that_they_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert commands.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    listed = set(re.findall(r"[\w]+", said.partition("Configs")[2]))
    assert {path.stem for path in PROBES} <= listed
    assert not {"table3", "grid"} & listed  # of sweep


def test_a_command_is_a_file_that_says_what_it_does() -> None:
    assert {path.stem for path in Path(commands.__file__).parent.glob("*.py")} > {*OTHERS}
    assert COMMANDS.keys() >= {*RUNS}
    for name in OTHERS:
        said = str(import_module(f"attention_probing.commands.{name}").__doc__).partition("\n")[0]
        assert said[0].lower() + said[1:] == f"{COMMANDS[name]}."


@pytest.mark.parametrize("name", OTHERS)
def test_the_help_of_a_command_has_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        commands.main([name, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: probing {name} ")
    assert COMMANDS[name][1:] in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "Error: no command is given: write probing fit | validate | test | predict | measure | sweep | "),
        (["--config=x", "fit"], "Error: the first word is --config=x, which is no command: write probing fit"),
        (["run"], "Error: the first word is run, which is no command: write probing fit | "),
    ],
)
def test_a_word_that_is_no_command_is_told(words: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(fault)
    assert len(said.err.splitlines()) == 1


def test_a_fault_of_the_input_ends_a_command_with_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["compare", "absent"], ["fetch", "absent"], ["sweep", "absent"]):
        with pytest.raises(SystemExit) as ended:
            commands.main([words[0], str(tmp_path / words[1])])
        assert ended.value.code == 1
        said = capsys.readouterr().err
        assert said.startswith("Error: ")
        assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("fit", "The same command goes on from what is kept."),
        ("test", "The same command starts again."),
        (
            "measure",
            "The same command starts again. It uses what is kept: stores of attention, trained models.",
        ),
    ],
)
def test_ctrl_c_before_the_trainer_begins_is_told_in_a_line(
    command: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("attention_probing.commands.launch.run", Mock(side_effect=KeyboardInterrupt))
    assert commands.main([command]) == 130
    assert capsys.readouterr().err == f"Interrupted. {said}\n"


def test_measure_names_the_splits_there_are_before_it_loads_anything(tmp_path: Path) -> None:
    (tmp_path / "own-test.conllu").touch()
    line = [
        "measure",
        "--config",
        str(CONFIGS / "clark2019" / "heads.yaml"),
        "--data.corpus",
        f"{tmp_path}/own-{{split}}.conllu",
    ]
    with pytest.raises(UserError, match=r"own-dev.conllu: there is no such file.* The corpus has test\. Name its file"):
        measure.run(CommandLine.from_words(line))


def test_a_place_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No encoder and no plan is read for it, and the sample corpus is not written in part."""
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr("attention_probing.commands.sweep.Sweeper", Mock(side_effect=AssertionError))
    for words in (
        ["sweep", "tutek2020/grid", f"--out={file}/out"],
        ["compare", "absent", f"--json={file}/a.json"],
    ):
        with pytest.raises(SystemExit):
            commands.main(words)
        (told,) = capsys.readouterr().err.splitlines()
        assert told.startswith(f"Error: {file}{'/out' if words[0] == 'sweep' else ''}: nothing can be written there (")
        assert told.endswith(f"Give {words[-1].partition('=')[0]} a place that can be written.")
    words = ["measure", "clark2019/baselines", "--corpus=sample", f"--data.cache={file}"]
    assert commands.main([*words, f"--trainer.default_root_dir={tmp_path}"]) == 1
    assert "the sample corpus cannot be written (" in capsys.readouterr().err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("megabytes", [300, 1_400])
def test_too_little_memory_for_the_program_is_said_in_a_line(megabytes: int, tmp_path: Path) -> None:
    words = ["measure", "--config=clark2019/heads", "--corpus=sample", f"--trainer.default_root_dir={tmp_path}"]
    done = subprocess.run(
        [*PROGRAM, *words, f"--data.cache={tmp_path / 'cache'}"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20)),
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "there is not enough memory" in done.stderr.splitlines()[-1]
