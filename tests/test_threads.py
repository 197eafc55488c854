"""What OpenMP itself says, when PyTorch loads it, of how its threads wait."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")


@pytest.mark.parametrize("module", ["train", "benchmarks.job"])
@pytest.mark.skipif(sys.platform != "linux", reason="the count is one of the OpenMP of GCC")
@pytest.mark.parametrize(
    ("own", "turns"), [({}, "0"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "30000000000")]
)
def test_threads_sleep_unless_the_user_says_otherwise(own: dict[str, str], turns: str, module: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in OWN}
    told = subprocess.run(
        [sys.executable, "-c", f"import {module}"],
        cwd=ROOT,
        env=environment | {"OMP_DISPLAY_ENV": "verbose"} | own,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", told.stderr)) == {turns}
