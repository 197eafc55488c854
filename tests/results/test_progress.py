import logging
from types import SimpleNamespace

import pytest

from results.progress import Progress


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged. Taken from the logger itself: which handlers a record reaches depends on pytest and Lightning."""
    found: list[str] = []
    monkeypatch.setattr(logging.getLogger("pytorch_lightning.progress"), "info", found.append)
    return found


def test_a_line_now_and_then_with_the_time_to_go(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    # The module's clock alone: pytest and its workers read the real one.
    monkeypatch.setattr("results.progress.time", SimpleNamespace(monotonic=lambda: now))
    work = Progress("Something long", 40)
    for _ in range(40):
        now += 4
        work.advance()
    # The first when 10 s have passed, then one in 30 s, and none at the end.
    assert lines == [
        "Something long: 3 of 40 (8%) in 0:00:12, 0.25 a second, about 0:02:28 to go.",
        "Something long: 11 of 40 (28%) in 0:00:44, 0.25 a second, about 0:01:56 to go.",
        "Something long: 19 of 40 (48%) in 0:01:16, 0.25 a second, about 0:01:24 to go.",
        "Something long: 27 of 40 (68%) in 0:01:48, 0.25 a second, about 0:00:52 to go.",
        "Something long: 35 of 40 (88%) in 0:02:20, 0.25 a second, about 0:00:20 to go.",
    ]
    Progress("Something short", 3).advance()
    assert len(lines) == 5


def test_of_what_has_no_known_end_the_count_and_the_rate_are_logged(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("results.progress.time", SimpleNamespace(monotonic=lambda: now))
    work = Progress("Training, batches", float("inf"))
    now = 20.0
    work.advance(5000, "epoch 2")
    now = 60.0
    work.advance(241_000)
    assert lines == [
        "Training, batches: 5,000 in 0:00:20, 250 a second; epoch 2.",
        "Training, batches: 246,000 in 0:01:00, 4,100 a second.",
    ]
