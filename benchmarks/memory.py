"""Anonymous memory of another process, and the fresh processes in which it is measured."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal


def anonymous_bytes(process: int) -> int:
    """Anonymous resident memory of a process, `RssAnon` of Linux: what it allocated; mapped files do not count.

    Raises:
        OSError: The process has ended, or the system has no /proc.
    """
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0  # it has ended, and its parent has not yet asked for its exit code


class AnonymousPeak:
    """While it is open, looks at the anonymous memory of a process again and again, and keeps the most it has seen.

    Args:
        process: Its number.
        interval: Seconds between two looks; what is freed sooner may be missed.

    Attributes:
        bytes: The peak so far.

    Raises:
        OSError: There is no such process, or no /proc, on entering.
    """

    def __init__(self, process: int, interval: float = 0.005) -> None:
        self.bytes = 0
        self._process, self._interval = process, interval
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "AnonymousPeak":
        self.bytes = anonymous_bytes(self._process)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(self._interval):
            try:
                self.bytes = max(self.bytes, anonymous_bytes(self._process))
            except OSError:
                return


@dataclass(frozen=True)
class Ended:
    """What a process of its own has measured.

    Attributes:
        seconds: By name, as `benchmarks.job` prints them.
        peak_mb: Its peak of anonymous memory, in megabytes of 10^6 bytes.
    """

    seconds: Mapping[str, float]
    peak_mb: float


def run_job(
    kind: Literal["setup", "fit", "distances", "heads", "dry", "stores"],
    cache: Path,
    *,
    train: Path | str,
    **options: Path | str | int,
) -> Ended:
    """Run `benchmarks.job` in a fresh process, as a user's run would be, with its options by name.

    Raises:
        CalledProcessError: It failed; its own message is on stderr.
    """
    command = [sys.executable, "-m", "benchmarks.job", kind, str(cache), str(train)]
    command += [f"--{name}={value}" for name, value in {**options, "started": time.monotonic()}.items()]
    root = Path(__file__).resolve().parent.parent
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process,
        AnonymousPeak(process.pid) as peak,
    ):
        output, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, output)
    return Ended(json.loads(output.splitlines()[-1]), peak.bytes / 1e6)
