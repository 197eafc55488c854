import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

import commands
from commands.sweep import main
from commands.sweep_jobs import Attempt, Jobs
from commands.sweep_plan import read_sweep
from commands.sweep_run import Sweeper, end_of_log
from results.errors import UserError
from results.locks import held
from tests.commands.sweeps import write_program, write_spec

pytestmark = pytest.mark.slow  # every run is a process under two of submitit

ROOT = Path(__file__).parent.parent.parent
SPEC = """name: t
label: probe
scores: [uas]
seeds: [0, 1, 2]
rows:
  attention: {config: a.yaml}
  offset: {config: b.yaml, command: test, seeds: [0], scores: {uas: offset.uas}}
  same: {config: b.yaml, command: test, seeds: [0]}
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """submitit waits between two submissions, for the sake of schedulers."""
    monkeypatch.setattr("submitit.core.core.PicklingExecutor._throttle", lambda _: None)


def sweep(path: Path, *args: str) -> tuple[int, str]:
    """Run a sweep of the stand-in beside it; returns the exit code and what was printed."""
    console = Console(file=io.StringIO(), width=200, color_system=None)
    code = main([str(path), f"--out={path.parent / 'out'}", *args], program=write_program(path.parent), console=console)
    assert isinstance(console.file, io.StringIO)
    # On a machine that is at something else, too, runs take longer.
    return code, re.sub(r"\b\d+ s\b", "0 s", console.file.getvalue())


def calls(folder: Path) -> list[dict[str, Any]]:
    file = folder / "calls.txt"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def until(folder: Path, number: int) -> None:
    end = time.monotonic() + 60
    while len(calls(folder)) < number:
        assert time.monotonic() < end, f"{len(calls(folder))} runs were begun, not {number}"
        time.sleep(0.02)


def test_a_table_is_made_and_only_what_is_new_is_run_later(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, SPEC, a="a", b="b")
    code, text = sweep(spec)
    assert code == 0
    assert [(call["command"], Path(call["config"]).stem, call["seed_everything"]) for call in calls(tmp_path)] == [
        ("fit", "a", "0"),
        ("fit", "a", "1"),
        ("fit", "a", "2"),
        ("test", "b", "0"),
    ]
    table = pd.read_csv(tmp_path / "out" / "t.csv")
    assert list(table) == ["probe", "seeds", "epochs", "uas", "low", "high", "sd"]
    assert table["probe"].tolist() == ["attention", "offset", "same"]
    assert table["seeds"].tolist() == [3, 1, 1]
    assert table["epochs"].tolist() == [4, 3, 3]
    assert table["uas"].tolist() == pytest.approx([0.6, 0.25, 0.5])
    assert table["sd"].tolist() == pytest.approx([0.1, float("nan"), float("nan")], nan_ok=True)
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert record["experiment"] == "t"
    assert record["scores"]["attention.uas"] == pytest.approx(0.6)
    assert record["encoder"] == {"name": "tiny"}
    assert record["audit"] == {"runs": 4, "done": 4, "faults": [], "warnings": []}
    assert (tmp_path / "out" / record["config"]).read_text() == SPEC
    assert "attention & $3$" not in (tmp_path / "out" / record["latex"]["t"]).read_text()
    assert "attention & 3 & 4 & 60.0 & 10.0" in (tmp_path / "out" / record["latex"]["t"]).read_text()
    assert len(pd.read_csv(tmp_path / "out" / record["tables"]["t_runs"])) == 5
    lines = text.splitlines()
    assert lines[0] == "[1/4] attention, a, seed 0: begun"
    assert lines[1].startswith("[1/4] attention, a, seed 0: 0 s; uas 50.0")
    assert lines[7].startswith("[4/4] offset, same, b, seed 0: 0 s; offset.uas 25.0; uas 50.0")
    assert "4 runs: 4 done (4 begun now), 0 failed" in text

    # Nothing is run again.
    before = (tmp_path / "out" / "results.json").read_bytes()
    code, text = sweep(spec)
    assert code == 0
    assert len(calls(tmp_path)) == 4
    assert "[2/4] attention, a, seed 1: done before; uas 60.0" in text
    assert (tmp_path / "out" / "results.json").read_bytes() == before

    # Only what is new is run.
    # Another name of the config and of the row; another config of the same name; one more seed.
    (tmp_path / "a.yaml").rename(tmp_path / "renamed.yaml")
    text = SPEC.replace("attention: {config: a.yaml}", "renamed: {config: renamed.yaml, seeds: [1, 3]}")
    code, _ = sweep(write_spec(tmp_path, text, b="other bytes"))
    assert code == 0
    assert [(Path(call["config"]).stem, call["seed_everything"]) for call in calls(tmp_path)[4:]] == [
        ("renamed", "3"),
        ("b", "0"),
    ]


def test_a_failed_run_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    text = "scores: [uas]\nrows: {x: {config: fail.yaml}, y: {config: silent.yaml}, z: {config: afterwards.yaml}}\n"
    code, told = sweep(write_spec(tmp_path, text, fail="fail", silent="silent", afterwards="afterwards"))
    assert code == 1
    assert "[1/3] x, fail, seed 0: no results after 0 s: exit code 3; the end of " in told
    assert "    Error: nothing comes of nothing\n" in told
    assert "[2/3] y, silent, seed 0: no results after 0 s: exit code 0; the end of " in told
    assert "    Not tested: the test split is missing.\n" in told
    assert "[3/3] z, afterwards, seed 0: 0 s, then exit code 5, after its results; uas 50.0" in told
    assert "3 runs: 1 done (3 begun now), 2 failed" in told
    assert pd.read_csv(tmp_path / "out" / "spec.csv")["seeds"].tolist() == [0, 0, 1]
    # They are run again, and what was done is not.
    assert sweep(tmp_path / "spec.yaml")[0] == 1
    assert len(calls(tmp_path)) == 5


def test_no_run_is_begun_where_one_cannot_be(tmp_path: Path) -> None:
    rows = "{good: {config: a.yaml}, x: {config: b.yaml}, y: {config: c.yaml}, z: {config: d.yaml}}"
    spec = write_spec(
        tmp_path, f"scores: [uas]\nseeds: [0, 1]\nrows: {rows}\n", a="a", b="unfit", c="unfit", d="unfit 2"
    )
    with pytest.raises(UserError, match=r"no run was started, .*invalid:\nx, y: unfit\nz: unfit 2$"):
        sweep(spec)
    assert calls(tmp_path) == []
    for name in "bcd":
        (tmp_path / f"{name}.yaml").write_text(name)
    assert sweep(spec)[0] == 0
    assert len(calls(tmp_path)) == 8
    # What is done is not checked.
    checks = (tmp_path / "checks.txt").read_text()
    assert sweep(spec)[0] == 0
    assert (tmp_path / "checks.txt").read_text() == checks == "checked\nchecked\n"
    (tmp_path / "a.yaml").write_text("broken")
    with pytest.raises(
        UserError,
        match=r"the check of the command lines failed: .* --check ended with exit code 1:\nOh: the program is broken",
    ):
        sweep(spec)


def test_what_is_checked_is_told_while_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.progress.EVERY", 0.0)
    monkeypatch.setattr("results.progress.FIRST", 0.0, raising=False)
    said: list[str] = []
    monkeypatch.setattr("results.progress._log_line", said.append)
    rows = ", ".join(f"r{number}: {{config: a.yaml, set: {{a: {number}}}}}" for number in range(8))
    spec = write_spec(tmp_path, f"scores: [uas]\nrows: {{{rows}}}\n", a="a")
    jobs, console = Jobs(tmp_path / "jobs", 1), Console(file=io.StringIO())
    sweeper = Sweeper(read_sweep(spec), tmp_path / "out", jobs, write_program(tmp_path), console)
    assert sweeper.check(sweeper.runs) == {}
    assert [line.partition(" in ")[0] for line in said[:2]] == [
        f"Checking, command lines: {done} of 8 ({share}%)" for done, share in ((1, 12), (2, 25))
    ]
    assert len(said) == 7  # all but the last


def test_the_same_fault_again_ends_the_sweep(tmp_path: Path) -> None:
    configs = {"crash": "crash", "good": "a", "fail": "fail", "crash2": "crash 2", "late": "b"}
    rows = "\n".join(f"  {name}: {{config: {name}.yaml}}" for name in configs)
    spec = write_spec(tmp_path, f"scores: [uas]\nrows:\n{rows}\n", **configs)
    (tmp_path / "late.yaml").write_text("b")
    code, told = sweep(spec)
    assert code == 1
    # Those that fail otherwise are passed over.
    assert [Path(call["config"]).stem for call in calls(tmp_path)] == ["crash", "good", "fail", "crash2"]
    assert "not begun, because others failed: [5/5] late, late, seed 0" in told
    assert "5 runs: 1 done (4 begun now), 3 failed" in told
    # What was done before is in the table all the same.
    again = spec.read_text().replace("  good", "  later").replace("rows:\n", "rows:\n  crash3: {config: crash3.yaml}\n")
    write_spec(tmp_path, again, crash3="crash 3")
    assert sweep(spec)[0] == 1
    assert pd.read_csv(tmp_path / "out" / "spec.csv")["seeds"].tolist() == [0, 0, 1, 0, 0, 0]


def test_two_seeds_of_a_row_end_that_row_alone_and_what_is_killed_ends_none(tmp_path: Path) -> None:
    rows = "big: {config: crash.yaml}, k: {config: killed.yaml}, l: {config: killed2.yaml}"
    spec = write_spec(
        tmp_path,
        f"scores: [uas]\nseeds: [0, 1, 2]\nrows: {{{rows}, good: {{config: a.yaml, seeds: [0]}}}}\n",
        crash="crash",
        killed="warned killed",
        killed2="warned killed 2",
        a="a",
    )
    code, told = sweep(spec)
    assert code == 1
    begun = [Path(call["config"]).stem for call in calls(tmp_path)]
    assert begun == ["crash"] * 2 + ["killed"] * 3 + ["killed2"] * 3 + ["a"]
    assert "not begun, because others failed: [ 3/10] big, crash, seed 2" in told


def test_scores_that_are_not_there_and_results_that_cannot_be_read_are_faults(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, "scores: [usa]\nrows: {x: {config: a.yaml}}\n", a="")
    code, told = sweep(spec)
    assert code == 1
    assert "has no score `usa` (did you mean `uas`?)" in told
    next((tmp_path / "out" / "runs").rglob("results.json")).write_text("{}")
    code, told = sweep(spec)
    assert code == 1
    assert "is not the results.json of a run" in told
    assert f"To run it again, remove {next((tmp_path / 'out' / 'runs').iterdir())} and repeat" in told


def test_runs_at_a_time_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("PL_GLOBAL_SEED", "99")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    text = "scores: [uas]\nseeds: [0, 1, 2]\nrows: {x: {config: a.yaml}}\n"
    spec = write_spec(tmp_path, text, a="")
    assert sweep(spec, "--jobs=3", "--", "--a=1")[0] == 0
    assert {(call["threads"], call["a"]) for call in calls(tmp_path)} == {("2", "1")}
    assert sweep(spec, "--", "--a", "2")[0] == 0
    assert {(call["threads"], call["a"]) for call in calls(tmp_path)[3:]} == {(None, "2")}
    with pytest.raises(SystemExit):
        sweep(spec, "--jobs=0")


WAITING = "scores: [uas]\nrows: {one: {config: a.yaml}, two: {config: wait.yaml}, three: {config: wait2.yaml}}\n"


@contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    """Do something while a sweep runs here."""
    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()


def begin(spec: Path, apart: bool = False) -> "subprocess.Popen[bytes]":
    """A sweep of the stand-in in a process of its own."""
    code = f"import sys; from commands.sweep import main; main(sys.argv[1:], program={write_program(spec.parent)!r})"
    command = [sys.executable, "-c", code, str(spec), f"--out={spec.parent / 'out'}", "--jobs=2"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=ROOT, stdout=quiet, stderr=quiet, start_new_session=apart)


def test_a_killed_sweep_goes_on_from_where_it_was(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, WAITING, a="a", wait="wait", wait2="wait 2")
    first = begin(spec)
    until(tmp_path, 3)
    first.kill()
    first.wait()
    begun = [call["pid"] for call in calls(tmp_path)]
    gone(begun)
    (tmp_path / "go").touch()
    code, told = sweep(spec, "--jobs=2")
    assert code == 0
    assert sorted(Path(call["config"]).stem for call in calls(tmp_path)[3:]) == ["wait", "wait2"]
    assert "[1/3] one, a, seed 0: done before; uas 50.0" in told
    assert pd.read_csv(tmp_path / "out" / "spec.csv")["uas"].tolist() == [0.5, 0.5, 0.5]


def gone(processes: Iterable[int]) -> None:
    """Wait until processes have ended."""
    end = time.monotonic() + 20
    for process in processes:
        with suppress(ProcessLookupError):
            while time.monotonic() < end:
                os.kill(process, 0)
                time.sleep(0.05)
            pytest.fail(f"process {process} runs on")


def test_the_runs_of_a_sweep_whose_processes_are_all_killed_end(tmp_path: Path) -> None:
    sweeping = begin(write_spec(tmp_path, WAITING, a="a", wait="wait", wait2="wait 2"), apart=True)
    until(tmp_path, 3)
    os.killpg(sweeping.pid, signal.SIGKILL)
    sweeping.wait()
    gone(call["pid"] for call in calls(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_sweep_that_is_ended_ends_its_runs(number: signal.Signals, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, WAITING, a="a", wait="wait", wait2="wait 2")
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored
    terminate = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as the command does

    def end() -> None:
        until(tmp_path, 2)
        os.kill(os.getpid(), number)

    try:
        with meanwhile(end):
            if number == signal.SIGINT:
                assert sweep(spec)[0] == 130
            else:
                with pytest.raises(SystemExit):
                    sweep(spec)
    finally:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, terminate)
    with pytest.raises(ProcessLookupError):
        os.kill(calls(tmp_path)[1]["pid"], 0)
    assert not (tmp_path / "out" / "results.json").exists()


def test_sweeps_in_their_own_places_share_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    spec = write_spec(tmp_path, "name: one\nscores: [uas]\nrows: {x: {config: a.yaml}}\n", a="a", b="b")
    program, console = write_program(tmp_path), Console(file=io.StringIO())
    assert main([str(spec)], program=program, console=console) == 0
    write_spec(tmp_path, "name: two\nscores: [uas]\nrows: {y: {config: a.yaml}, z: {config: b.yaml}}\n")
    assert main([str(spec), "--table"], program=program, console=console) == 0
    assert len(calls(tmp_path)) == 1
    assert pd.read_csv(tmp_path / "runs" / "two" / "two.csv")["seeds"].tolist() == [1, 0]
    assert main([str(spec)], program=program, console=console) == 0
    assert [Path(call["config"]).stem for call in calls(tmp_path)] == ["a", "b"]
    folders = pd.read_csv(tmp_path / "runs" / "two" / "two_runs.csv")["folder"]
    assert folders[0].startswith("../../one/runs/")
    assert (tmp_path / "runs" / "two" / "runs" / folders[0] / "results.json").is_file()


def test_a_row_tests_the_checkpoints_of_others(tmp_path: Path) -> None:
    rows = "own: {config: a.yaml, seeds: [0, 1]}, lost: {config: fail.yaml}"
    rows += ", tests: {config: b.yaml, command: test, checkpoints: [':own']}"
    rows += ", unfit: {config: unfit.yaml, command: test, checkpoints: [':own']}"
    rows += ", nothing: {config: b.yaml, command: test, checkpoints: [':lost']}"
    spec = write_spec(tmp_path, f"scores: [uas]\nrows: {{{rows}}}\n", a="a", b="b", fail="fail", unfit="unfit")
    code, told = sweep(spec)
    assert code == 1
    (call,) = (call for call in calls(tmp_path) if call["command"] == "test")
    trained = [results.parent / "checkpoints" for results in (tmp_path / "out" / "runs").glob("*/*/*/results.json")]
    found = json.loads(call["model.init_args.checkpoints"])
    assert len(found) == 2
    assert {*map(Path, found)} < {*trained}
    assert "unfit, unfit, seed 0: invalid command line: unfit" in told
    assert "not begun, because others failed: [6/6] nothing, b, seed 0" in told


def test_the_program_itself_is_swept(corpus: str, cache: str, tmp_path: Path) -> None:
    config = ROOT / "configs" / "clark2019" / "baselines.yaml"
    row = f"{{config: {config}, command: measure, scores: {{uas: left_branching.uas}}}}"
    spec = write_spec(tmp_path, f"name: t\nscores: [uas]\nrows: {{left branching: {row}}}\n")
    options = [f"--data.init_args.corpus={corpus}", f"--data.init_args.cache={cache}", "--trainer.accelerator=cpu"]
    console = Console(file=io.StringIO(), width=200)
    assert main([str(spec), f"--out={tmp_path}/out", "--", *options], console=console) == 0
    table = pd.read_csv(tmp_path / "out" / "t.csv")
    (record,) = (json.loads(path.read_text()) for path in (tmp_path / "out" / "runs").rglob("results.json"))
    assert table["uas"].tolist() == [record["scores"]["left_branching.uas"]]
    assert table["low"].tolist() == [record["scores"]["left_branching.uas.low"]]
    assert table["epochs"].isna().all()


def test_a_fault_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.main(["sweep", str(tmp_path / "absent.yaml")])
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"Error: {tmp_path}/absent.yaml cannot be read: No such file or directory\n"


def attempt(tmp_path: Path, content: str = "", patience: int = 0) -> Attempt:
    """A call of the stand-in, as a job has it."""
    folder, config = tmp_path / "runs" / "key", tmp_path / "config.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    config.write_text(content, encoding="utf-8")
    digest = hashlib.sha256(content.encode()).hexdigest()
    options = [f"--config={config}", "--seed_everything=2", f"--trainer.default_root_dir={folder}"]
    return Attempt(folder, config, digest, [*write_program(tmp_path), "fit", *options], {"seed": 2}, {}, patience)


def test_a_run_leaves_its_results_and_what_it_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    one = attempt(tmp_path)
    left, kept = one.folder / "Probe" / "version_0", one.folder / "Other" / "version_0"
    for path in (left, kept):
        path.mkdir(parents=True)
    (kept / "state-1").mkdir()
    one()
    assert (left / "results.json").is_file()
    assert kept.exists(), "it has a state to go on from"
    asked = json.loads((one.folder / "run.json").read_text())
    assert (asked["seed"], asked["arguments"]) == (2, one.command)
    assert calls(tmp_path)[0]["foreign"] == [], "the run is no task of the job"
    one()
    assert len(calls(tmp_path)) == 1, "it is done"


def test_a_changed_config_is_refused(tmp_path: Path) -> None:
    one = attempt(tmp_path)
    one.config.write_text("changed")
    with pytest.raises(SystemExit):
        one()
    assert "config.yaml was changed after the sweep had begun" in (one.folder / "ended.txt").read_text()


@pytest.mark.parametrize("patience", [0, 1])
def test_a_signal_reaches_the_run(tmp_path: Path, patience: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    one = attempt(tmp_path, "wait deaf" if patience else "wait", patience)

    def end() -> None:
        until(tmp_path, 1)
        os.kill(os.getpid(), signal.SIGUSR1)

    with meanwhile(end), pytest.raises(SystemExit) as ended:
        one()
    how = "killed by SIGKILL (often: out of memory)" if patience else "killed by SIGUSR1"
    assert (one.folder / "ended.txt").read_text() == how
    assert ended.value.code == 128 + (signal.SIGKILL if patience else signal.SIGUSR1)
    assert one.checkpoint().function is one


def test_a_job_stopped_while_another_process_is_at_its_run_is_requeued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commands.sweep_jobs._is_running_on_slurm", lambda: True)
    requeued: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: requeued.append(number))  # as submitit's
    one = attempt(tmp_path)
    lock = held(one.folder / "lock")
    assert lock is not None

    def end() -> None:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    with meanwhile(end), pytest.raises(SystemExit) as ended:
        one()
    signal.signal(signal.SIGUSR2, before)
    lock.release()
    assert requeued
    assert ended.value.code == 128 + signal.SIGTERM
    assert (one.folder / "ended.txt").read_text() == "stopped by SIGTERM before it began"
    assert not (tmp_path / "calls.txt").exists()


LOGS = {
    "Warning: late\nerror: nothing in {}/a\nWarning: later\n": "error: nothing in /a",
    "Traceback (most recent call last):\n  File\n    code\nOh: no\nWarning: later\n": "Oh: no",
    "Traceback (most recent call last):\n" + 99 * "  File\n" + "Oh: no\n": "Oh: no",
    "Warning: much ado\n": "",
    "".join(f"line {n} {'é' * 99}\n" for n in range(999)): "",
}


@pytest.mark.parametrize("said", LOGS)
def test_of_a_log_the_end_is_shown_and_only_a_fault_is_one(said: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "errors.txt").write_text(said.format(folder), encoding="utf-8")
    shown, fault = end_of_log(folder, tmp_path / "job.txt")
    assert fault == LOGS[said]
    assert len(shown.splitlines()) <= 21
    assert shown.splitlines()[-1] == "    " + said.format(folder).splitlines()[-1]
