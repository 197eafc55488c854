from pathlib import Path

import pytest

from attention.memory import Allowance, return_free_memory


def test_memory_is_returned_once_it_has_grown_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statm, returned = tmp_path / "statm", []

    def size(resident: int, shared: int) -> None:
        statm.write_text(f"999999 {resident} {shared} 1 0 1 0\n")

    def shrink() -> None:
        returned.append(statm.read_text())
        size(1500, 500)

    monkeypatch.setattr("attention.memory._STATM", statm)
    monkeypatch.setattr("attention.memory.return_free_memory", shrink)
    monkeypatch.setattr("attention.memory.os.sysconf", {"SC_PAGE_SIZE": 10}.__getitem__)
    size(1200, 400)
    allowance = Allowance(5000)
    for resident, shared, times in [(1300, 400, 0), (9000, 8000, 0), (1701, 401, 0), (1701, 400, 1), (2000, 500, 1)]:
        size(resident, shared)
        allowance.check()
        assert len(returned) == times
    size(2001, 500)
    allowance.check()
    assert len(returned) == 2


def test_where_the_system_does_not_say_nothing_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attention.memory._STATM", tmp_path / "absent")
    monkeypatch.setattr("attention.memory.return_free_memory", lambda: pytest.fail("there was no reason"))
    Allowance(0).check()


def test_free_memory_can_be_returned_at_any_time() -> None:
    return_free_memory()
    return_free_memory()
