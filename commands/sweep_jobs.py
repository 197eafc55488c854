"""Runs of a sweep as processes on this machine, or as jobs of an array on SLURM; each run has its own folder.

Every job imports this module, so it imports little itself.
"""

import ctypes
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit
from submitit.helpers import DelayedSubmission

from attention_probing.results.digests import file_digest
from attention_probing.results.errors import UserError

PATIENCE = 60
"""Seconds between the signal that ends a run on this machine and the signal that kills it."""


def results_of(folder: Path) -> Path | None:
    """Return the path of `results.json` below the folder of a run in a sweep; None if the run is unfinished."""
    found = sorted(folder.glob("*/*/results.json"))
    return next((path for path in found if not any(path.parent.glob("state-*"))), None)


@dataclass(frozen=True)
class Call:
    """Call of the program for one run of a sweep; called itself, it is the function of a SLURM job.

    Attributes:
        folder: Folder of the run.
        config: Config of the run.
        digest: SHA-256 of the config when the sweep was read.
        command: Words of the command line.
        identity: Values that determine the scores of the run; see `commands.sweep_plan.Run.identity`.
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
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SUBMITIT_"))}
        own.pop("PL_GLOBAL_SEED", None)
        own |= {"PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}  # unbuffered: an error is the last line
        if self.threads is not None:
            own.setdefault("OMP_NUM_THREADS", str(self.threads))
        asked = {**self.identity, "config": str(self.config), "arguments": self.command}
        (self.folder / "run.json").write_text(json.dumps(asked, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        both = f"{{ {self.first}; }} && exec {shlex.join(self.command)}"
        with (self.folder / "output.txt").open("wb") as output:
            return subprocess.Popen(
                ["sh", "-c", both] if self.first else self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=own,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

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


class Processes:
    """Runs as processes on this machine, which end with this process.

    Args:
        limit: Largest number of runs at a time.
    """

    interval = 0.05
    """Seconds between two calls of `refresh`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._processes: dict[Path, subprocess.Popen[bytes]] = {}

    def start(self, calls: Sequence[Call]) -> None:
        """Start runs."""
        for call in calls:
            self._processes[call.folder] = call.start()

    def refresh(self) -> None:
        """Do nothing: the state of a process is known at any time."""

    def is_going(self, folder: Path) -> bool:
        """Return True if the run in a folder is going."""
        return folder in self._processes and self._processes[folder].poll() is None

    def ending(self, folder: Path) -> str:
        """Return a phrase that describes how the run in a folder ended, for messages."""
        code = self._processes[folder].wait()
        killed = " (often: out of memory)" if -code == signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{killed}" if code < 0 else f"exit code {code}"

    def stop(self) -> None:
        """End the runs that are going, and wait for them."""
        going = [process for process in self._processes.values() if process.poll() is None]
        for process in going:
            os.killpg(process.pid, signal.SIGTERM)
        for process in going:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


class SlurmJobs:
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
    """Seconds between two calls of `refresh`."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        known: dict[str, Any] = {"timeout_min": 240, "max_num_timeout": 3, **options}
        known["additional_parameters"] = {"requeue": True, **known.get("additional_parameters", {})}
        timeouts = known.pop("max_num_timeout")
        try:
            self._executor = submitit.AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=timeouts)
            self._executor.update_parameters(name="sweep", **{f"slurm_{name}": one for name, one in known.items()})
        except (NameError, RuntimeError, TypeError) as error:
            raise UserError(f"--executor slurm: {' '.join(str(error).split())}") from None
        self._listed: set[str] = set()  # ids of the jobs that are not known to have ended
        self._queued: set[str] = set()  # by the last answer of squeue

    def start(self, calls: Sequence[Call]) -> None:
        """Submit runs; the id of each job is written to `job.txt` in the folder of its run.

        Raises:
            UserError: sbatch refuses them.
        """
        try:
            jobs = self._executor.submit_array(calls)
        except RuntimeError as error:
            raise UserError(f"--executor slurm: {' '.join(str(error).split())}") from None
        for job, call in zip(jobs, calls, strict=True):
            (call.folder / "job.txt").write_text(job.job_id, encoding="utf-8")
            self._queued.add(job.job_id)
        self._listed |= self._queued

    def refresh(self) -> None:
        """Ask squeue which jobs are going."""
        command = ["squeue", "--noheader", "--array", "--me", "--format=%i"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode == 0:  # else SLURM is busy
            before, self._queued = self._queued, set(found.stdout.split())
            self._listed = before | self._queued  # an ended job once more: its files may arrive late

    def is_going(self, folder: Path) -> bool:
        """Return True if the run in a folder was going at the last `refresh`, or has been started since."""
        return self._job(folder) in self._listed

    def ending(self, folder: Path) -> str:
        """Return the final state of the job of the run in a folder, for messages."""
        command = ["scontrol", "--oneliner", "show", "job", job := self._job(folder)]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        state = re.search(r"JobState=(\S+)", found)
        return f"job {job} ended as {state[1]}" if state else f"job {job} was killed"

    def stop(self) -> None:
        """Do nothing: the jobs go on."""

    @staticmethod
    def _job(folder: Path) -> str:
        file = folder / "job.txt"
        return file.read_text(encoding="utf-8") if file.is_file() else ""
