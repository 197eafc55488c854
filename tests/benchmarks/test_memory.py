import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.memory import AnonymousPeak, anonymous_bytes, run_job

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")

MB = 10**6
# Both children hold their memory for half a second, then give it back and go on for a while.
ALLOCATES = "import time; held = bytearray(b'x' * 1) * 200_000_000; time.sleep(.5); del held; time.sleep(.3)"
MAPS = """
import mmap, sys, time
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
    sum(held[i] for i in range(0, len(held), 4096))
    time.sleep(.3)
"""


def _peak(*arguments: str) -> int:
    with subprocess.Popen([sys.executable, "-c", *arguments]) as process, AnonymousPeak(process.pid) as peak:
        process.wait()
    assert process.returncode == 0
    return peak.bytes


def test_the_peak_holds_what_was_allocated_and_freed_again() -> None:
    assert 200 * MB <= _peak(ALLOCATES) < 250 * MB


def test_mapped_files_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 200 * MB)
    assert _peak(MAPS, str(path)) < 50 * MB


def test_a_process_that_has_ended_has_no_memory() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    time.sleep(0.5)  # ended, not yet waited for: a zombie
    assert anonymous_bytes(process.pid) == 0
    process.wait()
    with pytest.raises(OSError, match="No such"):
        anonymous_bytes(process.pid)


def test_a_job_that_fails_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(subprocess.CalledProcessError, match="status 1"):
        run_job("setup", tmp_path, train=tmp_path / "train.conllu")
