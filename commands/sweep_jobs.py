"""Runs of a sweep as processes on this machine, or as jobs of an array on SLURM; each run has its own folder.

Every job imports this module, so it imports little itself.
"""

import ctypes
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit
from submitit.helpers import DelayedSubmission

from attention_probing.results.digests import file_digest
from attention_probing.results.errors import UserError

SEED = "PL_GLOBAL_SEED"
"""Variable of the environment in which Lightning keeps the seed of a run."""
PATIENCE = 60
"""Seconds between the signal that ends a run on this machine and the signal that kills it."""


def results_of(folder: Path) -> Path | None:
    """Return the path of `results.json` below the folder of a run in a sweep; None if the run is unfinished."""
    for path in sorted(folder.glob("*/*/results.json")):
        is_finished = not any(path.parent.glob("state-*"))
        if is_finished:
            return path
    return None


@dataclass(frozen=True)
class Call:
    """Call of the program for one run of a sweep; called itself, it is the function of a SLURM job.

    Attributes:
        folder: Folder of the run.
        config: Config of the run.
        digest: SHA-256 of the config when the sweep was read.
        command: Words of the command line.
        identity: Values that determine the scores of the run; see `commands.sweep_rows.Run.identity`.
        threads: Number of threads of the run; None for those that it takes by itself.
        first: Shell command that must succeed before the run begins; empty for none.
    """

    folder: Path
    config: Path
    digest: str
    command: list[str]
    identity: dict[str, object]
    threads: int | None = None
    first: str = ""

    def start(self) -> "subprocess.Popen[bytes]":
        """Start the run in a session of its own; it gets SIGTERM when this process ends, however it ends (on Linux).

        The request is written to `run.json`, and all output to `output.txt`. SLURM_* and SUBMITIT_* are not in the
        environment of the run; otherwise Lightning would treat the run as a task of the enclosing job.

        Raises:
            UserError: The config was changed.
        """
        if file_digest(self.config) != self.digest:
            raise UserError(f"{self.config} was changed after the sweep had begun. Begin the sweep again")
        request = {**self.identity, "config": str(self.config), "arguments": self.command}
        text = json.dumps(request, indent=2, ensure_ascii=False)
        (self.folder / "run.json").write_text(f"{text}\n", encoding="utf-8")
        command = self.command
        if self.first:
            command = ["sh", "-c", f"{{ {self.first}; }} && exec {shlex.join(self.command)}"]
        with (self.folder / "output.txt").open("wb") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment(),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def _environment(self) -> dict[str, str]:
        environment = {}
        for name, value in os.environ.items():
            if not name.startswith(("SLURM_", "SUBMITIT_")) and name != SEED:
                environment[name] = value
        environment["PYTHONUTF8"] = "1"
        environment["PYTHONUNBUFFERED"] = "1"  # so that an error is the last line of the output
        if self.threads is not None:
            environment.setdefault("OMP_NUM_THREADS", str(self.threads))
        return environment

    def __call__(self) -> None:
        """Run in a SLURM job, and exit with the code of the run; a run that was ended by a signal is requeued."""
        if results_of(self.folder) is not None:
            return
        code = self.start().wait()
        if results_of(self.folder) is None:
            if -code in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2) and _is_running_on_slurm():
                signal.raise_signal(signal.SIGUSR2)  # submitit's handler requeues the job
            sys.exit(code or 1)

    def checkpoint(self) -> DelayedSubmission:
        """Return the job that submitit submits when the job is requeued: the same call again."""
        return DelayedSubmission(self)


def _end_with_parent() -> None:
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _is_running_on_slurm() -> bool:
    """Return True in a SLURM job that is not cancelled."""
    command = ["squeue", "--noheader", "--format=%T", f"--jobs={submitit.JobEnvironment().job_id}"]
    return "RUNNING" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


class Executor(ABC):
    """Place where the runs of a sweep are executed, each in its own folder.

    Attributes:
        limit: Largest number of runs at a time.
        threads: Number of threads of each run; None for those that it takes by itself.
        interval: Seconds between two calls of `refresh`.
    """

    limit: int
    threads: int | None = None
    interval: float

    @abstractmethod
    def start(self, calls: Sequence[Call]) -> None:
        """Start runs, or raise UserError if that is impossible."""

    def refresh(self) -> None:  # noqa: B027 # nothing to do where the state of a run is known at any time
        """Ask which runs are going."""

    @abstractmethod
    def is_going(self, folder: Path) -> bool:
        """Return True if the run in a folder was going at the last `refresh`, or has been started since."""

    @abstractmethod
    def ending(self, folder: Path) -> str:
        """Return a phrase that describes how the run in a folder ended, for messages."""

    def stop(self) -> None:  # noqa: B027 # jobs of a cluster outlive this process
        """End the runs that end with this process, and wait for them."""


class Processes(Executor):
    """Runs as processes on this machine, which end with this process and share its cores.

    submitit's local executor is not used: it starts two more interpreters for each run, knows no limit on the runs at
    a time, and its jobs outlive this process.

    Args:
        limit: Largest number of runs at a time.
    """

    interval = 0.05

    def __init__(self, limit: int) -> None:
        self.limit = limit
        if limit > 1:
            has_affinity = hasattr(os, "sched_getaffinity")
            cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
            self.threads = max(1, cores // limit)
        self._processes: dict[Path, subprocess.Popen[bytes]] = {}

    def start(self, calls: Sequence[Call]) -> None:
        """Start the processes of runs."""
        for call in calls:
            self._processes[call.folder] = call.start()

    def is_going(self, folder: Path) -> bool:
        """Return True if the process of the run in a folder is going."""
        return folder in self._processes and self._processes[folder].poll() is None

    def ending(self, folder: Path) -> str:
        """Return the exit code of the process, or the signal that ended it."""
        code = self._processes[folder].wait()
        if code >= 0:
            return f"exit code {code}"
        name = signal.Signals(-code).name
        if -code == signal.SIGKILL:
            return f"killed by {name} (often: out of memory)"
        return f"killed by {name}"

    def stop(self) -> None:
        """End the processes that are going, and wait for them."""
        going = [process for process in self._processes.values() if process.poll() is None]
        for process in going:
            os.killpg(process.pid, signal.SIGTERM)
        for process in going:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


class SlurmJobs(Executor):
    """Runs as jobs on SLURM, which outlive this process; all runs that are started together are one array.

    The states of the jobs come from squeue and scontrol, because submitit only uses sacct, which needs accounting.

    Args:
        folder: Folder for the files of submitit.
        options: Options of the jobs, named as in submitit; see docs/cluster.md.

    Raises:
        UserError: There is no SLURM, or an option is unknown.
    """

    limit = sys.maxsize
    interval = 5.0

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        parameters: dict[str, Any] = {"timeout_min": 240, "max_num_timeout": 3, **options}
        parameters["additional_parameters"] = {"requeue": True, **parameters.get("additional_parameters", {})}
        timeouts = parameters.pop("max_num_timeout")
        of_slurm = {f"slurm_{name}": value for name, value in parameters.items()}
        try:
            self._executor = submitit.AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=timeouts)
            self._executor.update_parameters(name="sweep", **of_slurm)
        except (NameError, RuntimeError, TypeError) as error:
            raise _slurm_error(error) from None
        self._listed: set[str] = set()  # ids of the jobs that are not known to have ended
        self._queued: set[str] = set()  # by the last answer of squeue

    def start(self, calls: Sequence[Call]) -> None:
        """Submit runs; the id of each job is written to `job.txt` in the folder of its run.

        Raises:
            UserError: sbatch refuses them.
        """
        try:
            with redirect_stderr(io.StringIO()):  # submitit prints the message of sbatch that its error has too
                jobs = self._executor.submit_array(calls)
        except RuntimeError as error:
            raise _slurm_error(error) from None
        for job, call in zip(jobs, calls, strict=True):
            (call.folder / "job.txt").write_text(job.job_id, encoding="utf-8")
            self._queued.add(job.job_id)
        self._listed |= self._queued

    def refresh(self) -> None:
        """Ask squeue which jobs are going."""
        command = ["squeue", "--noheader", "--array", "--me", "--format=%i"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode == 0:  # else SLURM is busy
            before = self._queued
            self._queued = set(answer.stdout.split())
            self._listed = before | self._queued  # an ended job once more: its files may arrive late

    def is_going(self, folder: Path) -> bool:
        """Return True if the job of the run in a folder was queued or running at the last `refresh`, or is newer."""
        return _job_of(folder) in self._listed

    def ending(self, folder: Path) -> str:
        """Return the final state of the job of the run in a folder."""
        job = _job_of(folder)
        command = ["scontrol", "--oneliner", "show", "job", job]
        answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        state = re.search(r"JobState=(\S+)", answer)
        if state is None:
            return f"job {job} was killed"
        return f"job {job} ended as {state[1]}"


def _slurm_error(error: Exception) -> UserError:
    return UserError(f"--executor slurm: {' '.join(str(error).split())}")


def _job_of(folder: Path) -> str:
    """Return the id of the job of the run in a folder; empty without a job."""
    file = folder / "job.txt"
    return file.read_text(encoding="utf-8") if file.is_file() else ""
