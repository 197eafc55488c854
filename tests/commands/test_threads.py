"""How PyTorch's threads wait: the choice at the start, and what OpenMP itself says of it when PyTorch loads it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from commands import threads

ROOT = Path(__file__).parent.parent.parent
OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")


@pytest.mark.parametrize(
    ("others", "cores", "own", "policy"),
    [(0, 2, 2, None), (1, 2, 2, "PASSIVE"), (9, 2, 1, None), (56, 64, 8, None), (57, 64, 8, "PASSIVE")],
)
def test_threads_sleep_where_others_leave_too_few_cores(others: int, cores: int, own: int, policy: str | None) -> None:
    assert threads.wait_policy(others, cores, own) == policy


BUSY = "0.1 0.2 0.3 99/100 4242\n"


@pytest.mark.parametrize(
    ("own", "policy"), [({}, "PASSIVE"), ({"GOMP_SPINCOUNT": "5"}, None), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")]
)
def test_the_users_own_choice_stays(
    own: dict[str, str], policy: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "busy").write_text(BUSY)
    monkeypatch.setattr(threads, "LOAD", tmp_path / "busy")
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "2"} | own)
    threads.choose()
    assert os.environ.get("OMP_WAIT_POLICY") == policy


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc and the OpenMP of GCC are those of Linux")
def test_openmp_takes_the_choice() -> None:
    program = f"""
from pathlib import Path
read_text, Path.read_text = Path.read_text, lambda path: {BUSY!r}
from commands import threads
Path.read_text = read_text
import torch
"""
    process = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in OWN}
        | {"OMP_DISPLAY_ENV": "verbose", "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", process.stderr)) == {"0"}
