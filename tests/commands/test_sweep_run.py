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
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from attention_probing.commands import CONFIGS
from attention_probing.commands.sweep import check_all, main
from attention_probing.commands.sweep_jobs import Call, Processes, SlurmJobs
from attention_probing.commands.sweep_plan import NEEDS, read_sweep
from attention_probing.results.digests import digest
from attention_probing.results.errors import UserError
from tests.commands.sweeps import nothing_wrong, write_program, write_spec

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


def sweep(path: Path, *args: str) -> tuple[int, str]:
    """Run a sweep of the stand-in beside it; returns the exit code and what was printed."""
    console = Console(file=io.StringIO(), width=200, color_system=None)
    words = [str(path), f"--out={path.parent / 'out'}", *args]
    code = main(words, program=write_program(path.parent), console=console, check=nothing_wrong)
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
    assert r"attention & 60.0\rlap{$^\dagger$} & 3 & 4 & 10.0" in (tmp_path / "out" / record["latex"]["t"]).read_text()
    assert len(pd.read_csv(tmp_path / "out" / record["tables"]["t_runs"])) == 5
    lines = text.splitlines()
    assert lines[0].startswith(f"Runs to do: 4. Log of the first: {tmp_path}/out/runs/")
    assert Path(lines[0].rpartition(" ")[2]).is_file()
    assert lines[1] == "[1/4] attention, a, seed 0: begun"
    assert lines[2].startswith("[1/4] attention, a, seed 0: 0 s; uas 50.0")
    assert lines[8].startswith("[4/4] offset, same, b, seed 0: 0 s; offset.uas 25.0; uas 50.0")
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
    configs = {name: name for name in ("fail", "killed", "silent", "afterwards")}
    rows = ", ".join(f"{name}: {{config: {name}.yaml}}" for name in configs)
    code, told = sweep(write_spec(tmp_path, f"scores: [uas]\nrows: {{{rows}}}\n", **configs))
    assert code == 1
    said = r"\[1/4\] fail, fail, seed 0: no results after 0 s, exit code 3: Error: nothing comes of nothing \("
    assert re.search(said, told)
    assert "seed 0: no results after 0 s, killed by SIGKILL (often: out of memory): no output (" in told
    assert "seed 0: no results after 0 s, exit code 0: Not tested: the test split is missing. (" in told
    assert "[4/4] afterwards, afterwards, seed 0: 0 s; uas 50.0" in told
    assert "4 runs: 1 done (4 begun now), 3 failed" in told
    assert pd.read_csv(tmp_path / "out" / "spec.csv")["seeds"].tolist() == [0, 0, 0, 1]
    # The table alone has the reasons too, and counts them.
    code, told = sweep(tmp_path / "spec.yaml", "--table")
    assert code == 1
    assert "\nfailed before: [1/4] fail, fail, seed 0: exit code 3: Error: nothing comes of nothing\n" in told
    assert "4 runs: 1 done (0 begun now), 0 failed, 3 failed before\n" in told
    # They are run again, and what was done is not.
    assert sweep(tmp_path / "spec.yaml")[0] == 1
    assert len(calls(tmp_path)) == 7
    # A row that is run alone leaves the reasons of the others.
    code, told = sweep(tmp_path / "spec.yaml", "--row=silent")
    assert "4 runs: 1 done (1 begun now), 1 failed, 2 failed before\n" in told
    # A run that has come to its end has no reason any more.
    key = next((tmp_path / "out" / "runs").glob("*/failed.txt")).parent
    done = next((tmp_path / "out" / "runs").glob("*/Probe"))
    done.rename(key / "Probe")
    assert (
        "4 runs: 1 done (0 begun now), 0 failed, 2 failed before, 1 not finished\n"
        in sweep(tmp_path / "spec.yaml", "--table")[1]
    )


def test_no_run_is_begun_where_a_command_line_is_invalid(tmp_path: Path) -> None:
    rows = "good: {config: a.yaml}, x: {config: b.yaml}, y: {config: c.yaml}"
    rows += ", z: {config: a.yaml, needs: {checkpoints: [':good']}}"
    spec = write_spec(tmp_path, f"scores: [uas]\nseeds: [0, 1]\nrows: {{{rows}}}\n", a="a", b="b", c="c")
    asked: list[list[str]] = []

    def check(lines: Iterable[list[str]]) -> list[str | None]:
        asked.extend(lines)
        return [None if "a.yaml" in line[1] else "unfit" for line in lines]

    with pytest.raises(UserError, match=r"no run was started, .*invalid:\nx, y: unfit$"):
        main([str(spec), f"--out={tmp_path}/out"], program=write_program(tmp_path), check=check)
    assert calls(tmp_path) == []
    assert len(asked) == 3, "one for the seeds of a row, none for a run that reads others"


def test_a_score_that_no_run_has_is_named_after_the_first_run(tmp_path: Path) -> None:
    text = "scores: [uass]\nseeds: [0, 1]\nrows: {x: {config: a.yaml}, y: {config: b.yaml, scores: {uass: uas}}}\n"
    spec = write_spec(tmp_path, text, a="a", b="b")
    code, printed = sweep(spec)
    assert code == 1
    lines = printed.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("row `x`, seed 0: "))
    assert re.search(r"has no score `uass` \(did you mean `uas`.*\); the scores are uas, ", lines[first])
    assert lines[first - 1].startswith("[1/4] x, a, seed 0: 0 s")
    assert lines.count(lines[first]) == 2, "at once, and below the table"
    assert lines[first + 1] == "[2/4] x, a, seed 1: begun", "the other runs go on"
    assert len(calls(tmp_path)) == 4

    # One more seed of the row is not begun: its runs cannot have the score either.
    spec.write_text(text.replace("seeds: [0, 1]", "seeds: [0, 1, 2]"), encoding="utf-8")
    with pytest.raises(
        UserError, match=r"finished runs do not have the scores:\nrow `x`, seed 0: .*\nrow `x`, seed 1: "
    ):
        sweep(spec)
    assert len(calls(tmp_path)) == 4
    assert sweep(spec, "--row=y")[0] == 1, "the cells of x are empty"
    assert len(calls(tmp_path)) == 5


@pytest.mark.parametrize("words", [["--", "--a=1", "--table"], ["--table", "--", "--a=1"], ["--table"]])
def test_the_table_finds_runs_that_were_given_options(words: list[str], tmp_path: Path) -> None:
    spec = write_spec(tmp_path, "scores: [uas]\nrows: {x: {config: a.yaml}}\n", a="a")
    assert sweep(spec, "--", "--a=1")[0] == 0
    (tmp_path / "out" / "spec.csv").unlink()
    code, printed = sweep(spec, *words)
    assert code == 0
    assert "1 run: 1 done (0 begun now), 0 failed" in printed
    assert len(calls(tmp_path)) == 1
    assert pd.read_csv(tmp_path / "out" / "spec.csv")["uas"].tolist() == [0.5]
    assert ("Options of the runs, as last given: --a=1" in printed) == (words == ["--table"])


def test_the_table_names_a_damaged_file_of_options(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, "scores: [uas]\nrows: {x: {config: a.yaml}}\n", a="a")
    assert sweep(spec)[0] == 0
    for content in ("{", "[]"):
        (tmp_path / "out" / "options.json").write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=r"options\.json .*Give the options of the runs after `--`"):
            sweep(spec, "--table")
        assert sweep(spec, "--table", "--")[0] == 0


def test_the_command_lines_are_checked_by_train_py(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, "scores: [uas]\nrows: {x: {config: a.yaml}}\n", a="model: NoSuchProbe\n")
    with pytest.raises(UserError, match=r"invalid:\nx: .*NoSuchProbe"):
        main([str(spec), f"--out={tmp_path}/out"])


def test_a_plan_reads_no_file_of_settings_but_its_configs(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("user: secret-of-the-user\n", encoding="utf-8")
    config = CONFIGS / "demo.yaml"
    for option in ("data", "model", "config"):
        line = ["fit", f"--config={config}", f"--{option}={secret}"]
        (fault,) = check_all([line])
        assert fault is not None
        assert "only the command line may name a file of settings" in fault
        (fault,) = check_all([line], named=[secret])
        assert fault is None or "only the command line" not in fault
    secret.write_text("secret-of-the-user\n", encoding="utf-8")
    (fault,) = check_all([["fit", f"--config={secret}"]])
    assert fault == f"{secret}: this is not a config: it has no options, such as `model: …`"


def test_a_check_leaves_the_seed_of_the_sweep_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    line = ["fit", f"--config={CONFIGS / 'demo.yaml'}", "--seed_everything=5"]
    for seed in ("99", None):
        monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
        if seed is not None:
            monkeypatch.setenv("PL_GLOBAL_SEED", seed)
        assert check_all([line]) == [None]
        assert os.environ.get("PL_GLOBAL_SEED") == seed


def test_runs_at_a_time_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("PL_GLOBAL_SEED", "99")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    text = "scores: [uas]\nseeds: [0, 1, 2]\nrows: {x: {config: a.yaml}}\n"
    spec = write_spec(tmp_path, text, a="")
    assert sweep(spec, "--jobs=3", "--", "--a=1")[0] == 0
    assert {(call["threads"], call["a"]) for call in calls(tmp_path)} == {("2", "1")}
    assert calls(tmp_path)[0]["foreign"] == [], "the run is no task of a job"
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


def begin(spec: Path) -> "subprocess.Popen[bytes]":
    """A sweep of the stand-in in a process of its own."""
    given = f"program={write_program(spec.parent)!r}, check=lambda lines: [None] * len(lines)"
    code = f"import sys; from attention_probing.commands.sweep import main; main(sys.argv[1:], {given})"
    command = [sys.executable, "-c", code, str(spec), f"--out={spec.parent / 'out'}", "--jobs=2"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=ROOT, stdout=quiet, stderr=quiet)


@pytest.mark.slow
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
    assert main([str(spec)], program=program, console=console, check=nothing_wrong) == 0
    write_spec(tmp_path, "name: two\nscores: [uas]\nrows: {y: {config: a.yaml}, z: {config: b.yaml}}\n")
    assert main([str(spec), "--table"], program=program, console=console, check=nothing_wrong) == 0
    assert len(calls(tmp_path)) == 1
    assert pd.read_csv(tmp_path / "runs" / "two" / "two.csv")["seeds"].tolist() == [1, 0]
    assert main([str(spec)], program=program, console=console, check=nothing_wrong) == 0
    assert [Path(call["config"]).stem for call in calls(tmp_path)] == ["a", "b"]
    folders = pd.read_csv(tmp_path / "runs" / "two" / "tables" / "two_runs.csv")["folder"]
    assert folders[0].startswith("../../one/runs/")
    assert (tmp_path / "runs" / "two" / "runs" / folders[0] / "results.json").is_file()


def test_what_sbatch_says_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text("#!/bin/sh\necho there is no cluster >&2\nexit 1\n", encoding="utf-8")
    (programs / "srun").write_text("#!/bin/sh\n", encoding="utf-8")
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    printed = io.StringIO()
    call = Call(tmp_path, tmp_path / "a.yaml", "", ["true"], {})
    with redirect_stderr(printed), pytest.raises(UserError, match=r"^--executor slurm: there is no cluster$"):
        SlurmJobs(tmp_path / "jobs", {}).start([call])
    assert not printed.getvalue()


def test_a_row_tests_the_checkpoints_of_others(tmp_path: Path) -> None:
    rows = "own: {config: a.yaml, seeds: [0, 1]}, lost: {config: fail.yaml}"
    rows += ", tests: {config: b.yaml, command: test, needs: {checkpoints: [':own']}}"
    rows += ", nothing: {config: b.yaml, command: test, needs: {checkpoints: [':lost']}}"
    spec = write_spec(tmp_path, f"scores: [uas]\nrows: {{{rows}}}\n", a="a", b="b", fail="fail")
    code, told = sweep(spec)
    assert code == 1
    (call,) = (call for call in calls(tmp_path) if call["command"] == "test")
    trained = [results.parent / "checkpoints" for results in (tmp_path / "out" / "runs").glob("*/*/*/results.json")]
    found = json.loads(call["checkpoints"])
    assert len(found) == 2
    assert {*map(Path, found)} < {*trained}
    for text in (told, sweep(tmp_path / "spec.yaml", "--table")[1]):
        assert "not begun, because others failed: [5/5] nothing, b, seed 0" in text


def test_a_run_gets_what_the_run_of_its_seed_made(tmp_path: Path) -> None:
    rows = "tuned: {config: a.yaml, seeds: [0, 1]}"
    rows += ", heads off: {config: b.yaml, command: measure, needs: {checkpoints: ':tuned'}, seeds: [0, 1]}"
    rows += ", change: {config: b.yaml, command: measure, needs: {encoder: ':tuned'}, seeds: [1]}"
    rows += ", both: {config: b.yaml, command: measure, needs: {encoder: ':tuned', model.ablation: ':heads off'}}"
    spec = write_spec(tmp_path, f"scores: [uas]\nrows: {{{rows}}}\n", a="checkpoint", b="b")
    assert sweep(spec)[0] == 0
    runs = tmp_path / "out" / "runs"
    folders = [runs / run.key / "Probe" / "version_0" for row in read_sweep(spec).rows for run in row.all_runs()]
    first, second, off, *_ = folders
    assert [{name: call[name] for name in NEEDS if name in call} for call in calls(tmp_path)] == [
        {},
        {},
        {"checkpoints": str(first / "checkpoints" / "best.ckpt")},
        {"checkpoints": str(second / "checkpoints" / "best.ckpt")},
        {"encoder": str(second / "exported")},
        {"encoder": str(first / "exported"), "model.ablation": str(off)},
    ]
    assert (first / "exported").is_dir(), "by the given program"


@pytest.mark.slow
def test_the_program_itself_is_swept(corpus: str, cache: str, tmp_path: Path) -> None:
    config = CONFIGS / "clark2019" / "baselines.yaml"
    row = f"{{config: {config}, command: measure, scores: {{uas: left_branching.uas}}}}"
    spec = write_spec(tmp_path, f"name: t\nscores: [uas]\nrows: {{left branching: {row}}}\n")
    options = [f"--data.corpus={corpus}", f"--data.cache={cache}", "--trainer.accelerator=cpu"]
    console = Console(file=io.StringIO(), width=200)
    assert main([str(spec), f"--out={tmp_path}/out", "--", *options], console=console) == 0
    table = pd.read_csv(tmp_path / "out" / "t.csv")
    (record,) = (json.loads(path.read_text()) for path in (tmp_path / "out" / "runs").rglob("results.json"))
    assert table["uas"].tolist() == [record["scores"]["left_branching.uas"]]
    assert table["low"].tolist() == [record["scores"]["left_branching.uas.low"]]
    assert table["epochs"].isna().all()


def call(tmp_path: Path, content: str = "") -> Call:
    """A call of the stand-in, as a job has it."""
    folder, config = tmp_path / "runs" / "key", tmp_path / "config.yaml"
    folder.mkdir(parents=True)
    config.write_text(content, encoding="utf-8")
    options = [f"--config={config}", "--seed_everything=2", f"--trainer.default_root_dir={folder}"]
    return Call(folder, config, digest(content.encode()), [*write_program(tmp_path), "fit", *options], {"seed": 2})


def test_a_run_leaves_its_results_and_what_it_was_asked(tmp_path: Path) -> None:
    one = call(tmp_path)
    one()
    assert (one.folder / "Probe" / "version_0" / "results.json").is_file()
    asked = json.loads((one.folder / "run.json").read_text())
    assert (asked["seed"], asked["arguments"]) == (2, one.command)
    one()
    assert len(calls(tmp_path)) == 1, "it is done"


@pytest.mark.parametrize(("first", "begun"), [("true", 1), ("echo no encoder >&2; false", 0)])
def test_a_run_begins_after_the_command_that_must_succeed(first: str, begun: int, tmp_path: Path) -> None:
    one = replace(call(tmp_path), first=first)
    with suppress(SystemExit):
        one()
    assert len(calls(tmp_path)) == begun
    assert ("no encoder" in (one.folder / "output.txt").read_text()) != bool(begun)


def test_a_changed_config_is_refused(tmp_path: Path) -> None:
    one = call(tmp_path)
    one.config.write_text("changed")
    with pytest.raises(UserError, match=r"config\.yaml was changed after the sweep had begun"):
        one()


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_job_whose_run_was_ended_by_a_signal_is_requeued(
    cancelled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attention_probing.commands.sweep_jobs._is_running_on_slurm", lambda: not cancelled)
    requeued: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: requeued.append(number))  # as submitit's
    one = call(tmp_path, "wait")

    def end() -> None:
        until(tmp_path, 1)
        os.kill(calls(tmp_path)[0]["pid"], signal.SIGTERM)

    with meanwhile(end), pytest.raises(SystemExit):
        one()
    signal.signal(signal.SIGUSR2, before)
    assert bool(requeued) != cancelled
    assert one.checkpoint().function is one


def test_a_run_that_does_not_hear_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attention_probing.commands.sweep_jobs.PATIENCE", 0.1)
    jobs = Processes(1)
    jobs.start([one := call(tmp_path, "wait deaf")])
    until(tmp_path, 1)
    jobs.stop()
    assert jobs.ending(one.folder) == "killed by SIGKILL (often: out of memory)"
