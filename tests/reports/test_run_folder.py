import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from reports.plan import Run, SweepError
from reports.run_folder import Process, RunFolder, stop
from tests.reports.sweeps import write_program


def folder(tmp_path: Path, content: str = "") -> RunFolder:
    config = tmp_path / "config.yaml"
    config.write_text(content, encoding="utf-8")
    digest = hashlib.sha256(content.encode()).hexdigest()
    return RunFolder(Run("fit", config, digest, (("x", "1"),), 2), tmp_path / "runs" / "key")


def wait(process: Process | None) -> str:
    assert process is not None
    while (how := process.ended()) is None:
        time.sleep(0.02)
    return how


def until(path: Path) -> None:
    end = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end, f"{path} was not written"
        time.sleep(0.02)


def test_a_run_leaves_its_results_and_what_it_was_asked(tmp_path: Path) -> None:
    place = folder(tmp_path)
    assert place.results() is None
    assert wait(place.start(write_program(tmp_path), os.environ)) == "exit code 0"
    assert place.results() == tmp_path / "runs" / "key" / "Probe" / "version_0" / "results.json"
    asked = json.loads((place.path / "run.json").read_text())
    assert asked["options"] == [["x", "1"]]
    assert asked["seed"] == 2
    assert asked["config_sha256"] == place.run.digest
    assert asked["arguments"][2:] == [
        "fit",
        f"--config={tmp_path}/config.yaml",
        "--trainer.enable_progress_bar=false",
        "--seed_everything=2",
        "--x=1",
        f"--trainer.default_root_dir={place.path}",
    ]
    assert place.start(write_program(tmp_path), os.environ) is None, "it is done"


def test_what_an_attempt_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    place = folder(tmp_path)
    left, beside = place.path / "Probe" / "version_0" / "checkpoints", tmp_path / "runs" / "other" / "Probe"
    for path in (left, beside):
        path.mkdir(parents=True)
    (left / "a.ckpt").write_text("")
    assert wait(place.start(write_program(tmp_path), os.environ)) == "exit code 0"
    assert [path.name for path in place.path.glob("*/*")] == ["version_0"]
    assert not left.exists()
    assert beside.exists()


def test_a_run_that_goes_on_is_not_begun_again(tmp_path: Path) -> None:
    place, program = folder(tmp_path, "wait"), write_program(tmp_path)
    process = place.start(program, os.environ)
    until(tmp_path / "calls.txt")
    assert place.start(program, os.environ) is None
    (tmp_path / "go").touch()
    assert wait(process) == "exit code 0"
    assert len((tmp_path / "calls.txt").read_text().splitlines()) == 1


def test_the_lock_is_free_when_the_process_is_killed(tmp_path: Path) -> None:
    place, program = folder(tmp_path, "wait"), write_program(tmp_path)
    first = place.start(program, os.environ)
    until(tmp_path / "calls.txt")
    assert first is not None
    first.process.kill()
    assert wait(first) == "killed by SIGKILL (often: out of memory)"
    second = place.start(program, os.environ)
    (tmp_path / "go").touch()
    assert wait(second) == "exit code 0"


def test_a_changed_config_is_refused(tmp_path: Path) -> None:
    place = folder(tmp_path)
    place.run.config.write_text("changed")
    with pytest.raises(SweepError, match=r"config\.yaml was changed after the sweep had begun"):
        place.start(write_program(tmp_path), os.environ)
    place.run.config.write_text("")
    assert wait(place.start(write_program(tmp_path), os.environ)) == "exit code 0", "the lock was let go of"


@pytest.mark.parametrize(
    ("content", "how", "why"),
    [
        ("fail", "exit code 3", "the end of {}/errors.txt:\n    Error: nothing comes of nothing"),
        (
            "crash",
            "exit code 4",
            "the end of {}/errors.txt:\n    Traceback (most recent call last):\n      ado\n    Oh: nothing",
        ),
        ("silent", "exit code 0", "the end of {}/output.txt:\n    Not tested: there is no test split."),
        ("killed", "killed by SIGKILL (often: out of memory)", "it said nothing; its folder is {}"),
    ],
)
def test_why_a_run_failed(content: str, how: str, why: str, tmp_path: Path) -> None:
    place = folder(tmp_path, content)
    assert wait(place.start(write_program(tmp_path), os.environ)) == how
    assert place.why() == why.format(place.path)
    assert place.results() is None


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("Warning: late\nerror: nothing in {}/a\nWarning: later\n", "error: nothing in /a"),
        ("Traceback (most recent call last):\n  File\n    code\nOh: no\nWarning: later\n", "Oh: no"),
        ("Traceback (most recent call last):\n" + 99 * "  File\n" + "Oh: no\n", "Oh: no"),
        ("Warning: much ado\n", ""),
    ],
)
def test_only_what_names_a_fault_is_one(said: str, fault: str, tmp_path: Path) -> None:
    place = folder(tmp_path)
    place.path.mkdir(parents=True)
    (place.path / "errors.txt").write_text(said.format(place.path), encoding="utf-8")
    assert place.fault() == fault


def test_of_a_long_log_the_end_is_shown(tmp_path: Path) -> None:
    place = folder(tmp_path)
    place.path.mkdir(parents=True)
    (place.path / "errors.txt").write_text("".join(f"line {n} {'é' * 99}\n" for n in range(999)), encoding="utf-8")
    shown = place.why().splitlines()
    assert len(shown) == 21
    assert shown[-1].startswith("    line 998 ")


def test_runs_are_stopped(tmp_path: Path) -> None:
    process = folder(tmp_path, "wait").start(write_program(tmp_path), os.environ)
    until(tmp_path / "calls.txt")
    assert process is not None
    stop([process])
    assert process.ended() == "killed by SIGTERM"
