"""Sweeps as arrays of jobs on a real SLURM without accounting."""

import io
import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from attention_probing.commands.sweep import main
from attention_probing.commands.sweep_jobs import SlurmJobs
from attention_probing.commands.sweep_run import PROGRAM
from tests.cluster.conftest import Slurm
from tests.commands.sweeps import nothing_wrong, write_program, write_spec

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def on_slurm(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """This process as on a login node."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environment[name])
    monkeypatch.setattr(SlurmJobs, "interval", 1.0)
    return slurm


def sweep(spec: Path, out: str, *args: str, program: list[str] | None = None) -> tuple[int, str]:
    """Run a sweep; returns the exit code and what was printed."""
    console = Console(file=io.StringIO(), width=200, color_system=None)
    words, check = [str(spec), f"--out={spec.parent / out}", *args], nothing_wrong if program else None
    code = main(words, program=program or PROGRAM, console=console, check=check)
    assert isinstance(console.file, io.StringIO)
    return code, console.file.getvalue()


SLURM = ("--executor=slurm", "--slurm.partition=low", "--slurm.cpus_per_task=1")


def meanwhile(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def restarts(out: Path) -> int:
    """How often jobs of a sweep were begun again."""
    logs = (out / "jobs").glob("*_log.out")
    return sum(log.read_text().count("Starting with") - 1 for log in logs)


def test_a_preempted_array_makes_the_table_of_this_machine(
    on_slurm: Slurm, corpus: str, cache: str, tmp_path: Path
) -> None:
    config = ROOT / "configs" / "clark2019" / "baselines.yaml"
    row = f"{{config: {config}, command: measure, scores: {{uas: left_branching.uas}}}}"
    spec = write_spec(tmp_path, f"name: t\nscores: [uas]\nseeds: [0, 1]\nrows: {{left: {row}}}\n")
    own = ("--", f"--data.corpus={corpus}", f"--data.cache={cache}", "--trainer.accelerator=cpu")

    def preempt() -> None:
        # Both have begun: a job that is preempted while Python starts has no handler of the signal yet.
        while len(list((tmp_path / "slurm" / "runs").glob("*/run.json"))) < 2:
            time.sleep(0.1)
        on_slurm.wait(on_slurm.submit("sleep 1", "--partition=high", "--ntasks=2"))

    thread = meanwhile(preempt)
    code, said = sweep(spec, "slurm", *SLURM, *own)
    thread.join()
    assert code == 0, said
    assert "2 runs: 2 done (2 begun now), 0 failed" in said
    assert restarts(tmp_path / "slurm") > 0, "the job in `high` came too late"
    code, said = sweep(spec, "local", "--jobs=2", *own)
    assert code == 0, said
    tables = [tmp_path / out / "t.csv" for out in ("slurm", "local")]
    assert tables[0].read_bytes() == tables[1].read_bytes()
    scores = [json.loads((tmp_path / out / "results.json").read_text())["scores"] for out in ("slurm", "local")]
    assert scores[0] == scores[1]


@pytest.mark.core
def test_failures_are_named_and_given_again_alone(on_slurm: Slurm, tmp_path: Path) -> None:
    rows = "good: {config: a.yaml}, bad: {config: fail.yaml}, killed: {config: killed.yaml}"
    spec = write_spec(tmp_path, f"scores: [uas]\nrows: {{{rows}}}\n", a="a", fail="fail", killed="killed")
    program = write_program(tmp_path)
    code, said = sweep(spec, "out", *SLURM, program=program)
    assert code == 1
    assert re.search(r"bad, fail, seed 0: .*, job \d+_1 ended as FAILED: Error: nothing comes of nothing", said)
    assert re.search(r"killed, killed, seed 0: .*, job \d+_2 ended as FAILED: no output", said)
    assert "3 runs: 1 done (3 begun now), 2 failed" in said
    assert pd.read_csv(tmp_path / "out" / "spec.csv")["seeds"].tolist() == [1, 0, 0]
    (job,) = {job.read_text().partition("_")[0] for job in (tmp_path / "out").glob("runs/*/job.txt")}
    assert set(on_slurm.state(job).split()) == {"COMPLETED", "FAILED"}, "one array, which says what failed"
    code, said = sweep(spec, "out", *SLURM, program=program)
    assert code == 1
    assert "3 runs: 1 done (2 begun now), 2 failed" in said


def test_queued_jobs_are_found_again_and_cancelled_ones_are_failures(on_slurm: Slurm, tmp_path: Path) -> None:
    rows = "one: {config: wait.yaml}, two: {config: wait2.yaml}, three: {config: wait3.yaml}"
    spec = write_spec(tmp_path, f"scores: [uas]\nrows: {{{rows}}}\n", wait="wait", wait2="wait 2", wait3="wait 3")
    program = write_program(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.sleep", interrupted := Interrupted(on_slurm))
        assert sweep(spec, "out", *SLURM, program=program)[0] == 130
    jobs = interrupted.jobs

    def let_go() -> None:
        time.sleep(3)
        on_slurm.run("scancel", jobs[2])
        (tmp_path / "go").touch()

    thread = meanwhile(let_go)
    code, said = sweep(spec, "out", *SLURM, program=program)
    thread.join()
    assert code == 1
    assert said.count(": begun before\n") == 3
    assert f"job {jobs[2]} ended as CANCELLED" in said
    assert "3 runs: 2 done (0 begun now), 1 failed" in said


class Interrupted:
    """Ctrl-C once the jobs are there."""

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm
        self.jobs: list[str] = []

    def __call__(self, _: float) -> None:
        self.jobs = sorted(self.slurm.run("squeue", "--noheader", "--array", "--format=%i").split())
        if len(self.jobs) == 3:
            raise KeyboardInterrupt


def test_what_sbatch_refuses_is_told(on_slurm: Slurm, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, "scores: [uas]\nrows: {x: {config: a.yaml}}\n", a="a")
    with pytest.raises(ValueError, match=r"--executor slurm: .*invalid partition specified: none"):
        sweep(spec, "out", "--executor=slurm", "--slurm.partition=none", program=write_program(tmp_path))


def test_the_fixture_submits_and_waits(slurm: Slurm) -> None:
    assert slurm.wait(slurm.submit("true")) == "COMPLETED"
    assert slurm.wait(slurm.submit("exit 3")) == "FAILED"
    job = slurm.submit("sleep 60")
    slurm.wait(job, "RUNNING")
    slurm.run("scancel", job)
    assert slurm.wait(job) == "CANCELLED"
