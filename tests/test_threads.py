"""How PyTorch's threads wait: the choice at the start, and what OpenMP itself says of it when PyTorch loads it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import threads

ROOT = Path(__file__).parent.parent
OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")


@pytest.mark.parametrize(
    ("others", "cores", "own", "policy"),
    [
        (0, 2, 2, None),
        (1, 2, 2, "PASSIVE"),
        (1, 2, 1, None),
        (32, 64, 8, None),
        (57, 64, 8, "PASSIVE"),
        (0, 2, 4, "PASSIVE"),
        (9, 2, 1, None),
    ],
)
def test_threads_sleep_where_others_leave_too_few_cores(others: int, cores: int, own: int, policy: str | None) -> None:
    assert threads.wait_policy(others, cores, own) == policy


def test_where_the_system_does_not_tell_the_machine_counts_as_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "LOAD", tmp_path / "absent")
    assert threads.running() == 1
    (tmp_path / "strange").write_text("0.1 0.2\n")
    monkeypatch.setattr(threads, "LOAD", tmp_path / "strange")
    assert threads.running() == 1


@pytest.fixture
def busy() -> Iterator[None]:
    """Every core of the machine is used by another process."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.parametrize("module", ["train", "benchmarks.job"])
@pytest.mark.skipif(sys.platform != "linux", reason="/proc and the OpenMP of GCC are those of Linux")
@pytest.mark.parametrize(
    ("own", "turns"), [({}, "0"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "30000000000")]
)
@pytest.mark.usefixtures("busy")
def test_threads_sleep_beside_others_unless_the_user_says_otherwise(
    own: dict[str, str], turns: str, module: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in OWN}
    process = subprocess.run(
        [sys.executable, "-c", f"import {module}"],
        cwd=ROOT,
        env=environment | {"OMP_DISPLAY_ENV": "verbose", "OMP_NUM_THREADS": "2"} | own,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", process.stderr)) == {turns}
