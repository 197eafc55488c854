"""One process at a time at a folder."""

import errno
import os
import platform
import subprocess
from pathlib import Path

import pytest

from processes.ranks import acquire_lock


def test_a_lock_is_held_until_it_is_closed_everywhere(tmp_path: Path) -> None:
    lock = acquire_lock(tmp_path / "lock")
    assert lock is not None
    assert (tmp_path / "lock").read_text() == f"{platform.node()} {os.getpid()}"
    child = subprocess.Popen(["sleep", "60"], pass_fds=(lock,))
    os.close(lock)
    assert acquire_lock(tmp_path / "lock") is None
    child.kill()
    child.wait()
    again = acquire_lock(tmp_path / "lock")
    assert again is not None
    os.close(again)


@pytest.mark.parametrize(
    ("other", "jobs", "free"),
    [
        ("", "", True),
        (f"{platform.node()} 1", "", False),
        (f"{platform.node()} 99999999", "", True),
        ("elsewhere 1", "", False),
        ("SLURM 7", "70 7", False),
        ("SLURM 7", "70", True),
        ("SLURM 7", None, False),
    ],
)
@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_without_locks_an_owner_counts_as_long_as_it_goes_on(
    other: str, jobs: str | None, free: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: int) -> None:
        raise OSError(code, "no locks here")

    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nexit 1\n" if jobs is None else f"#!/bin/sh\nprintf '%s\\n' {jobs}\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("fcntl.flock", flock)
    (tmp_path / "lock").write_text(other)
    lock = acquire_lock(tmp_path / "lock")
    assert (lock is not None) == free
    if lock is not None:
        os.close(lock)
        monkeypatch.setenv("SLURM_JOB_ID", "8")
        assert acquire_lock(tmp_path / "lock") is None, "this process has it"
        monkeypatch.setenv("PROBING_OWNER", f"{platform.node()} {os.getpid()}")
        again = acquire_lock(tmp_path / "lock")
        assert again is not None
        os.close(again)
