import logging
from types import SimpleNamespace

import pytest

from metrics.progress import Progress


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged. Taken from the logger itself: which handlers a record reaches depends on pytest and Lightning."""
    found: list[str] = []
    monkeypatch.setattr(logging.getLogger("pytorch_lightning.progress"), "info", found.append)
    return found


def test_a_line_now_and_then_with_the_time_to_go(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    # The module's clock alone: pytest and its workers read the real one.
    monkeypatch.setattr("metrics.progress.time", SimpleNamespace(monotonic=lambda: now))
    work = Progress("Something long", 40)
    for _ in range(40):
        now += 4
        work.advance()
    # Every 12 s, the first time that 10 have passed, and none at the end.
    assert len(lines) == 13
    assert lines[0] == "Something long: 8% in 0:00:12, about 0:02:28 to go."
    assert lines[-1] == "Something long: 98% in 0:02:36, about 0:00:04 to go."
    Progress("Something short", 3).advance()
    assert len(lines) == 13
