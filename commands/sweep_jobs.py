"""Runs of a sweep as jobs on this machine or on SLURM, through submitit; each run has its own folder.

Every job imports this module, so it imports little itself.
"""

import ctypes
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import submitit
from filelock import FileLock
from submitit.core.utils import JobPaths
from submitit.helpers import DelayedSubmission

from results.locks import held

STATE = "*/state-*"
"""State of an unfinished run in its folder, from which the same command continues."""
PATIENCE = 60
"""Seconds between the signal that ends a run on this machine and the signal that kills it."""


def results_of(folder: Path) -> Path | None:
    """Return the path of `results.json` below the folder of a run in a sweep; None if the run is unfinished."""
    found = sorted(folder.glob("*/*/results.json"))
    return next((path for path in found if not any(path.parent.glob("state-*"))), None)


def environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment variables for a child run.

    They are the variables of this process with three differences:

    - SLURM_* and SUBMITIT_* are left out, because with them Lightning would treat the run as a task of
      the enclosing job;
    - PL_GLOBAL_SEED is left out;
    - PYTHONUTF8 is 1.

    Args:
        changes: Variables to set; a variable with the value None is removed.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SUBMITIT_"))}
    known = {**own, "PYTHONUTF8": "1", "PL_GLOBAL_SEED": None, **changes}
    return {name: value for name, value in known.items() if value is not None}


@dataclass
class Attempt:
    """Job that calls train.py for one run of a sweep.

    A job that is requeued after a signal continues from the saved state of the run.

    Attributes:
        folder: Folder of the run.
        config: Config of the run.
        digest: SHA-256 of the config when the sweep was read.
        command: Words of the command line.
        identity: Values that determine the scores of the run; see `commands.sweep_plan.Run.identity`.
        changes: Environment variables to set; a variable with the value None is removed.
        patience: Seconds from the signal that asks the run to end to the signal that kills it; 0 never
            kills it.
        sweep: Lock that the sweep holds as long as it lives; when it is free, the run gets SIGTERM. None for a run
            that outlives its sweep.
    """

    folder: Path
    config: Path
    digest: str
    command: list[str]
    identity: dict[str, object]
    changes: dict[str, str | None]
    patience: int
    sweep: Path | None = None

    def __call__(self) -> None:
        """Wait until no other process has the run, run it unless it is finished, and exit with its code."""
        stopped: list[int] = []
        children: list[subprocess.Popen[bytes]] = []

        def forward(number: int, _: object) -> None:
            stopped.append(number)
            signal.alarm(self.patience)
            for child in children:
                child.send_signal(number)

        handlers: dict[int, Any] = dict.fromkeys((signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2), forward)
        handlers |= dict.fromkeys((signal.SIGINT, signal.SIGHUP), lambda *_: None)  # the sweep handles them
        handlers[signal.SIGALRM] = lambda *_: os.killpg(children[0].pid, signal.SIGKILL) if children else None
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)
        while (lock := held(self.folder / "lock")) is None and not stopped:
            time.sleep(1)
        code, begun = 0, lock is not None and not stopped and results_of(self.folder) is None
        if lock is not None:
            if begun:
                code = self._train(stopped, children)
            lock.release()
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)
        done = results_of(self.folder) is not None
        if stopped and not done and _is_running_on_slurm():
            # submitit's handler asks for the checkpoint and requeues the job.
            signal.raise_signal(getattr(signal, "SIG" + os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")))
        if not begun and not done:
            self._end(f"stopped by {signal.Signals(stopped[0]).name} before it began", 128 + stopped[0])
        if code or not done:
            killed = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            self._end(killed + (" (often: out of memory)" if code == -signal.SIGKILL else ""), code)

    def _train(self, stopped: list[int], children: list[subprocess.Popen[bytes]]) -> int:
        self._prepare()
        with (self.folder / "output.txt").open("ab") as output, (self.folder / "errors.txt").open("ab") as errors:
            child = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment(self.changes),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        children.append(child)
        for number in stopped:
            child.send_signal(number)
        while self.sweep is not None and not stopped:
            with suppress(subprocess.TimeoutExpired):
                return child.wait(0.5)
            if (free := held(self.sweep)) is not None:  # the sweep was killed
                free.release()
                signal.raise_signal(signal.SIGTERM)
        return child.wait()

    def checkpoint(self) -> DelayedSubmission:
        """Return the job that submitit submits when the job is requeued: the same call again."""
        return DelayedSubmission(self)

    def _prepare(self) -> None:
        """Remove files of an attempt without a state, and write `run.json`."""
        if hashlib.sha256(self.config.read_bytes()).hexdigest() != self.digest:
            self._end(f"{self.config} was changed after the sweep had begun; begin the sweep again", 1)
        for log in ("errors.txt", "output.txt"):
            (self.folder / log).unlink(missing_ok=True)
        for left in self.folder.iterdir():
            if left.is_dir() and any(left.glob("version_*")) and not any(left.glob(STATE)):  # not a folder of the user
                shutil.rmtree(left)
        asked = {**self.identity, "config": str(self.config), "arguments": self.command}
        (self.folder / "run.json").write_text(json.dumps(asked, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def _end(self, how: str, code: int) -> None:
        (self.folder / "ended.txt").write_text(how, encoding="utf-8")
        sys.exit(code if code > 0 else 128 - code)


def _end_with_parent() -> None:
    """Let the kernel send SIGTERM to this process when its parent has ended, however it ended; only Linux does."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _is_running_on_slurm() -> bool:
    """Return True in a SLURM job that is not cancelled."""
    if os.environ["SUBMITIT_EXECUTOR"] != "slurm":
        return False
    command = ["squeue", "--noheader", "--format=%T", f"--jobs={submitit.JobEnvironment().job_id}"]
    return "RUNNING" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


@dataclass
class Slurm:
    """Options of SLURM jobs, named as in submitit; see docs/cluster.md."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    mem_gb: float | None = None
    timeout_min: int = 240
    max_num_timeout: int = 3
    signal_delay_s: int = 90
    array_parallelism: int = 256
    setup: list[str] = field(default_factory=list)
    additional_parameters: dict[str, str] = field(default_factory=dict)


class Jobs:
    """Runs that are submitted as jobs, with the states of the jobs.

    Jobs run on this machine or as an array on SLURM. States on SLURM come from squeue and scontrol,
    because submitit only uses sacct, which needs accounting.

    Args:
        folder: Folder for the files of submitit.
        limit: Largest number of jobs at a time on this machine; ignored on SLURM. `submit` does not
            enforce it: its caller reads the attribute `limit`.
        slurm: Options of the SLURM jobs; None runs the jobs on this machine.
    """

    poll = 5.0

    def __init__(self, folder: Path, limit: int, slurm: Slurm | None = None) -> None:
        self.folder, self.slurm, self.limit = folder, slurm, sys.maxsize if slurm else limit
        self.interval = self.poll if slurm else 0.2  # seconds between two queries of the states
        self._local: dict[str, submitit.Job[None]] = {}
        self._listed: dict[str, str] = {}
        options: dict[str, Any] = {"timeout_min": 365 * 24 * 60}
        own = {}
        if slurm is not None:
            options = {f"slurm_{name}": value for name, value in asdict(slurm).items() if value not in (None, [])}
            own["slurm_max_num_timeout"] = options.pop("slurm_max_num_timeout")
            options["slurm_additional_parameters"] = {"requeue": True, **slurm.additional_parameters}
        self._executor = submitit.AutoExecutor(folder, cluster="slurm" if slurm else "local", **own)
        self._executor.update_parameters(name="sweep", **options)
        self.alive = None if slurm else folder / f"sweep-{os.getpid()}"
        self._lock: FileLock | None = None

    def submit(self, attempts: Sequence[Attempt]) -> list[str]:
        """Submit runs as jobs, and return the ids of the jobs.

        Each id is also written to `job.txt` in the folder of the run.
        """
        if self.alive is not None:
            self._lock = self._lock or held(self.alive)  # until this process ends
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))  # jobs inherit it
        try:
            jobs = self._executor.submit_array(attempts)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for job, attempt in zip(jobs, attempts, strict=True):
            self._local[job.job_id] = job
            (attempt.folder / "job.txt").write_text(job.job_id, encoding="utf-8")
        return [job.job_id for job in jobs]

    def states(self) -> dict[str, str]:
        """Return the state of each unfinished job, such as `RUNNING`, by its id.

        On SLURM these are all jobs of the user in squeue. A job that has left squeue is returned one
        more time, with its last state, because its files may arrive late from another machine. If squeue
        fails, the result repeats the jobs that squeue listed last. All jobs from `submit` then have the
        state `UNKNOWN`.
        """
        if self.slurm is None:
            return {name: "RUNNING" for name, job in self._local.items() if not job.done()}
        command = ["squeue", "--noheader", "--array", "--me", "--format=%i %T"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode:
            return self._listed | dict.fromkeys(self._local, "UNKNOWN")  # SLURM is busy
        before, self._listed = self._listed, dict(line.split() for line in found.stdout.splitlines())
        return before | self._listed  # files of other machines may arrive late: list an ended job once more

    def why(self, name: str) -> str:
        """Return a phrase that describes the end of a job that has written no `ended.txt`, for messages.

        The phrase has the final state of the job on SLURM, from scontrol. Without such a state, it says
        that the job was killed.

        Args:
            name: Id of the job.
        """
        command = ["scontrol", "--oneliner", "show", "job", name]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout if self.slurm else ""
        state = re.search(r"JobState=(\S+)", found)
        return f"job {name} ended as {state[1]}" if state else f"job {name} was killed"

    def cancel(self, name: str) -> None:
        """Cancel a job if it is still pending.

        Args:
            name: Id of the job.
        """
        subprocess.run(["scancel", "--state=PENDING", name], check=False)

    def log(self, name: str) -> Path:
        """Return the path of submitit's error log of a job.

        Args:
            name: Id of the job.
        """
        return JobPaths(self.folder, name).stderr

    def stop(self) -> None:
        """End the jobs on this machine and wait for them; jobs on SLURM continue."""
        if self.slurm is None:
            for name in self.states():
                os.kill(int(name), signal.SIGTERM)
            while self.states():
                time.sleep(self.interval)
