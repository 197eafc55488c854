"""Runs on two tasks of a real SLURM, by the template as it stands."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from attention_probing.commands import CONFIGS, launch
from tests.cluster.conftest import Slurm
from tests.test_train import arguments
from tests.trainers import DEVICES

ROOT = Path(__file__).parents[2]
Submit = Callable[..., str]


@pytest.fixture
def submit(slurm: Slurm, corpus: str, bert: Path, cache: str) -> Submit:
    """Submit the template for a config, with other options of sbatch; the program is this Python's."""

    def submitted(config: str, runs: Path, *extra: str, sbatch: tuple[str, ...] = ()) -> str:
        own = {
            "PATH": f"{Path(sys.executable).parent}:{slurm.environment['PATH']}",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        command = [*arguments(CONFIGS / config, corpus, bert, cache, runs), *extra]
        options = ("--parsable", f"--output={slurm.folder}/%j.out", f"--chdir={ROOT}", "--partition=low", *sbatch)
        environment = slurm.environment
        slurm.environment = {**environment, **own}
        try:
            return slurm.run("sbatch", *options, str(CONFIGS / "trainer/slurm.sh"), *command)
        finally:
            slurm.environment = environment

    return submitted


def log_of(slurm: Slurm, job: str) -> str:
    path = slurm.folder / f"{job}.out"
    return path.read_text() if path.exists() else ""


def wait_for(slurm: Slurm, job: str, text: str, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while text not in log_of(slurm, job):
        assert time.monotonic() < end, log_of(slurm, job)
        assert slurm.state(job) not in ("COMPLETED", "FAILED", "CANCELLED"), log_of(slurm, job)
        time.sleep(0.1)


def scores(runs: Path) -> dict[str, float]:
    (record,) = runs.rglob("results.json")
    found: dict[str, float] = json.loads(record.read_text())["scores"]
    return found


PROBE = "clark2019/attention_only.yaml"
LONG = ("--trainer.max_epochs=120", "--data.batch_size=4")


@pytest.fixture(scope="module")
def whole(corpus: str, bert: Path, cache: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Scores of the run of these tests on two processes, left alone."""
    runs = tmp_path_factory.mktemp("whole")
    command = arguments(CONFIGS / PROBE, corpus, bert, cache, runs)
    launch.main([*command, *LONG, "--trainer.strategy=ddp_fork", "--trainer.devices=2"])
    return scores(runs)


def preempt(slurm: Slurm) -> None:
    """Let a job of a higher partition take the whole machine, and wait for its end."""
    assert slurm.wait(slurm.submit("sleep 1", "--partition=high", "--ntasks=2")) == "COMPLETED"


@DEVICES
def test_a_run_on_two_tasks_is_requeued_in_training_and_ends_with_the_same_scores(
    slurm: Slurm, submit: Submit, whole: dict[str, float], tmp_path: Path
) -> None:
    job = submit(PROBE, tmp_path, *LONG, "--trainer.strategy=ddp")
    wait_for(slurm, job, "Training AttentionOnlyProbe")
    time.sleep(1)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    wait_for(slurm, job, "Continues the unfinished run")
    assert slurm.wait(job, seconds=480) == "COMPLETED", log_of(slurm, job)
    assert "Training AttentionOnlyProbe" in log_of(slurm, job)
    assert scores(tmp_path) == whole
    assert not list(tmp_path.rglob("*state-*"))


@DEVICES
@pytest.mark.parametrize("partition", ["low", "sudden"])
def test_a_preempted_run_is_requeued_with_and_without_a_grace_time(
    slurm: Slurm, submit: Submit, whole: dict[str, float], tmp_path: Path, partition: str
) -> None:
    job = submit(PROBE, tmp_path, *LONG, "--trainer.strategy=ddp", sbatch=(f"--partition={partition}",))
    wait_for(slurm, job, "Training AttentionOnlyProbe")
    preempt(slurm)
    wait_for(slurm, job, "Continues the unfinished run")
    assert slurm.wait(job, seconds=480) == "COMPLETED", log_of(slurm, job)
    assert scores(tmp_path) == whole


@DEVICES
def test_a_killed_task_is_told_and_its_job_is_not_requeued(slurm: Slurm, submit: Submit, tmp_path: Path) -> None:
    job = submit(PROBE, tmp_path, *LONG, "--trainer.strategy=ddp")
    wait_for(slurm, job, "Training AttentionOnlyProbe")
    rows = [row.split() for row in slurm.run("scontrol", "listpids", job).splitlines()]
    pids = [int(pid) for pid, _, step, *_, rank in rows if (step, rank) == ("0", "1")]
    os.kill(pids[0], signal.SIGKILL)
    assert slurm.wait(job) == "FAILED"
    log = log_of(slurm, job)
    assert "task 1: Killed" in log
    assert "goes on from what is kept" in log


def test_a_cancelled_run_is_not_requeued(slurm: Slurm, submit: Submit, tmp_path: Path) -> None:
    job = submit(PROBE, tmp_path, *LONG, "--trainer.strategy=ddp")
    wait_for(slurm, job, "Training AttentionOnlyProbe")
    slurm.run("scancel", job)
    assert slurm.wait(job) == "CANCELLED"
    time.sleep(10)  # a requeued job would wait in the queue by now
    assert slurm.state(job) == "CANCELLED"


def test_more_tasks_than_devices_are_refused_and_nothing_is_removed(
    slurm: Slurm, tmp_path: Path, corpus: str, cache: str
) -> None:
    runs = tmp_path / "runs"
    older = runs / "Baselines" / "version_0" / "results.json"
    older.parent.mkdir(parents=True)
    older.write_text("{}")
    (runs / "hpc_ckpt_1.ckpt").write_bytes(b"of another run")
    config = CONFIGS / "clark2019/baselines.yaml"
    wrapped = (
        f"cd {ROOT}; srun {sys.executable} train.py measure --config {config} --trainer.accelerator cpu "
        f"--trainer.default_root_dir {runs} --data.corpus absent-{{split}}.conllu"
    )
    job = slurm.submit(wrapped, "--ntasks-per-node=2", "--nodes=1")
    assert slurm.wait(job, seconds=480) == "FAILED"
    assert "SLURM has 2 tasks, but the trainer needs 1" in log_of(slurm, job)
    assert older.exists()
    assert os.listdir(runs / "Baselines") == ["version_0"]
    wrapped = wrapped.replace("absent-{split}.conllu", f"'{corpus}' --data.cache {cache}")
    job = slurm.submit(wrapped, "--ntasks-per-node=1", "--nodes=1")
    assert slurm.wait(job, seconds=480) == "COMPLETED", log_of(slurm, job)  # the state of another run is not taken up
