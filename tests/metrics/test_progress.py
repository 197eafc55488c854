"""What is told of a long computation, by a clock that the test holds."""

import logging

import pytest

from metrics.progress import Progress, counted


def test_a_line_now_and_then_with_the_time_to_go(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    monkeypatch.setattr("metrics.progress.time.monotonic", lambda: now)
    monkeypatch.setattr(logging.getLogger("pytorch_lightning"), "propagate", True)
    with caplog.at_level(logging.INFO, "pytorch_lightning.progress"):
        work = Progress("Something long", 40)
        for _ in range(40):
            now += 4
            work.advance()
    # Every 12 s, the first time that 10 have passed; the end is told by what comes after.
    assert len(caplog.messages) == 13
    assert caplog.messages[0] == "Something long: 8% in 0:00:12, about 0:02:28 to go."
    assert caplog.messages[-1] == "Something long: 98% in 0:02:36, about 0:00:04 to go."


def test_what_is_short_is_not_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("pytorch_lightning"), "propagate", True)
    work = Progress("Something short", 3)
    for _ in range(3):
        work.advance()
    assert not caplog.messages


def test_one_of_a_thing_is_not_several() -> None:
    assert [counted(number, "text") for number in (0, 1, 2, 1821)] == ["0 texts", "1 text", "2 texts", "1,821 texts"]
    assert [counted(number, "batch", "batches") for number in (1, 2)] == ["1 batch", "2 batches"]
