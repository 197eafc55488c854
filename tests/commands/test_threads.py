"""How PyTorch's threads wait: the choice at the start, and what OpenMP itself says of it when PyTorch loads it."""

import ast
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


def test_where_the_system_does_not_tell_the_machine_counts_as_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strange").write_text("0.1 0.2\n")
    for name in ("absent", "strange"):
        monkeypatch.setattr(threads, "LOAD", tmp_path / name)
        assert threads.running() == 1


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


@pytest.mark.parametrize("module", ["commands/lightning.py", "benchmarks/__init__.py"])
def test_the_choice_comes_before_torch_is_loaded(module: str) -> None:
    imported = [
        node.names[0].name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.parse((ROOT / module).read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    light = sys.stdlib_module_names
    heavy = [name for name in imported if name.partition(".")[0] not in light and name != "processes"]
    assert "commands.threads" in heavy[:1]


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
