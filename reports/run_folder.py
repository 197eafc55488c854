"""One run of a sweep in its folder: what it was asked, whether it is done, and who is at it.

The folder is named by the run's key, so that a finished run is found again by what decides its numbers. While a run
goes on, its process itself holds a lock in the folder, which the system lets go of however the process ends: a run that
outlives a killed sweep is waited for, not begun again beside it, and several sweeps may share their runs.
"""

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reports.plan import Run, SweepError

PATIENCE = 10.0
"""Seconds that a run has to end by itself before it is killed."""

_TAIL = 20
"""Lines of a failed run's errors that are shown."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run.

    Attributes:
        run: What is to be run.
        path: `<sweep>/runs/<key>`: what was asked in `run.json`, what the run said in `output.txt` and `errors.txt`,
            and the folders that train.py makes.
    """

    run: Run
    path: Path

    def results(self) -> Path | None:
        """The run's `results.json`, written when scores and tables are; None as long as the run is not done."""
        return next(iter(sorted(self.path.glob("*/version_*/results.json"))), None)

    def start(self, program: Sequence[str], environment: Mapping[str, str]) -> "Process | None":
        """Begin the run, from the beginning; None when another process is at it, or has meanwhile finished it.

        Raises:
            SweepError: The config was changed since the sweep was read.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            if self.results() is not None:
                return None
            if hashlib.sha256(self.run.config.read_bytes()).hexdigest() != self.run.digest:
                raise SweepError(f"{self.run.config} was changed after the sweep had begun; begin the sweep again")
            for left in self.path.iterdir():
                if left.is_dir():  # of an attempt that did not end
                    shutil.rmtree(left)
            command = [*program, *self._arguments()]
            asked = {**self.run.identity, "config": str(self.run.config), "arguments": command}
            (self.path / "run.json").write_text(
                json.dumps(asked, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )
            with (self.path / "output.txt").open("wb") as output, (self.path / "errors.txt").open("wb") as errors:
                # A session of its own: an interrupt at the terminal is for the sweep, which then stops its runs.
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    env=dict(environment),
                    pass_fds=(lock,),
                    start_new_session=True,
                )
            return Process(self, process, time.monotonic())
        finally:
            os.close(lock)

    def _arguments(self) -> list[str]:
        quiet = ["--trainer.enable_progress_bar=false"]  # nobody watches a log; what the run itself says comes later
        command, config, *others = self.run.arguments
        return [command, config, *quiet, *others, f"--trainer.default_root_dir={self.path}"]

    def why(self) -> str:
        """The last lines of what the run said went wrong."""
        name, lines = self._said()
        if not lines:
            return f"it said nothing; its folder is {self.path}"
        return "\n".join([f"the end of {self.path / name}:", *(f"    {line}" for line in lines)])

    def fault(self) -> str:
        """The last line that names a fault, of train.py or of a traceback, without this folder; empty without one."""
        told, in_traceback = "", False
        for line in _lines(self.path / "errors.txt"):
            if line.startswith("Traceback (most recent call last)"):
                in_traceback = True
            elif line.lower().startswith("error:") or (in_traceback and not line.startswith(" ")):
                told, in_traceback = line, False
        return told.replace(str(self.path), "")

    def _said(self) -> tuple[str, list[str]]:
        for name in ("errors.txt", "output.txt"):
            if lines := _last_lines(self.path / name):
                return name, lines
        return "", []


@dataclass(frozen=True)
class Process:
    """A run that goes on."""

    folder: RunFolder
    process: "subprocess.Popen[bytes]"
    begun: float

    @property
    def seconds(self) -> float:
        """How long it has been going on."""
        return time.monotonic() - self.begun

    def ended(self) -> str | None:
        """How it ended, in words; None while it goes on."""
        code = self.process.poll()
        if code is None:
            return None
        if code < 0:
            killed = " (often: out of memory)" if code == -signal.SIGKILL else ""
            return f"killed by {signal.Signals(-code).name}{killed}"
        return f"exit code {code}"

    def fault(self) -> str:
        """The fault that it ended with; empty where it told none, or was killed: its last lines then say nothing."""
        return "" if (self.process.poll() or 0) < 0 else self.folder.fault()


def stop(processes: Sequence[Process]) -> None:
    """End runs, with all processes that they have begun."""
    for sign, patience in ((signal.SIGTERM, PATIENCE), (signal.SIGKILL, None)):
        going = [one.process for one in processes if one.process.poll() is None]
        for process in going:
            os.killpg(process.pid, sign)
        end = None if patience is None else time.monotonic() + patience
        for process in going:
            try:
                process.wait(None if end is None else max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue


def _lines(path: Path) -> list[str]:
    """The end of a log, without empty lines; of a line that progress was drawn over, what was drawn last."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - (1 << 14)))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return [line for line in lines if line]


def _last_lines(path: Path) -> list[str]:
    last = _lines(path)[-_TAIL:]
    # train.py tells its faults in this form; what stands before is how it is used, or what happened until then.
    told = [place for place, line in enumerate(last) if line.lower().startswith("error:")]
    return last[told[-1] :] if told else last
