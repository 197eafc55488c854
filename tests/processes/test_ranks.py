"""How the processes of a run wait for each other."""

import os
import time
from pathlib import Path

import pytest

from processes.ranks import Ranks, run_name


def test_signs_of_killed_ranks_are_removed_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    killed, living = tmp_path / ".alive-other-0", tmp_path / ".alive-other-1"
    for sign, age in ((killed, 60), (living, 1)):
        sign.touch()
        os.utime(sign, (time.time() - age, time.time() - age))
    with Ranks(0, 2).alive(tmp_path):
        assert len(list(tmp_path.iterdir())) == 3
    assert list(tmp_path.iterdir()) == [living]


def test_a_rank_that_froze_is_named_by_each_of_the_others(tmp_path: Path) -> None:
    with Ranks(1, 3, patience=4).alive(tmp_path):
        frozen = tmp_path / f".alive-{run_name()}-2"
        frozen.touch()
        os.utime(frozen, (time.time() - 60, time.time() - 60))
        with Ranks(0, 3, patience=4).alive(tmp_path):
            assert Ranks(0, 3, patience=4).frozen(tmp_path) == [2]
        assert Ranks(1, 3, patience=4).frozen(tmp_path) == [2], "the first has left"


def test_what_comes_soon_is_found_soon_and_what_comes_late_is_looked_for_twice_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    answers = iter([*[None] * 100, "found"])
    assert Ranks(0, 2).wait_for(lambda: next(answers), 1, tmp_path / "file") == "found"
    assert sum(pauses[:4]) < 0.1
    assert max(pauses) == pauses[-1] == 0.5


def test_processes_of_torchrun_have_one_name_for_their_run(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    for name, value in shared.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    names = set()
    for rank in range(2):
        monkeypatch.setenv("PROBING_RUN", f"node1-{1000 + rank}")  # each process has set its own
        names.add(run_name())
    assert names == {"node1-29500"}
