import logging
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from attention_probing.models.progress import ProgressLines
from attention_probing.results.progress import Progress, wrap


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged. Taken from the logger itself: which handlers a record reaches depends on pytest and Lightning."""
    found: list[str] = []
    monkeypatch.setattr(logging.getLogger("attention_probing.progress"), "info", found.append)
    return found


def test_a_line_now_and_then_with_the_time_to_go(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    # The module's clock alone: pytest and its workers read the real one.
    monkeypatch.setattr("attention_probing.results.progress.time", SimpleNamespace(monotonic=lambda: now))
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


def test_what_has_no_total_says_why_and_a_bound_is_called_one(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("attention_probing.results.progress.time", SimpleNamespace(monotonic=lambda: now))
    work = Progress("Measuring, batches", float("inf"), "texts are streamed")
    now = 20.0
    work.advance(5000, "epoch 2")
    work.begin("Training, batches", 1000, "early stopping may end it before")
    now = 60.0
    work.advance(250)
    assert lines == [
        "Measuring, batches: 5,000 in 0:00:20, 250 a second, time left unknown: texts are streamed; epoch 2.",
        "Training, batches: 250 of at most 1,000 (25%) in 0:00:40, 6.25 a second, at most 0:02:00 to go: early "
        "stopping may end it before.",
    ]


def test_messages_are_as_wide_as_the_terminal_and_a_path_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    path = "/a/very/long/path/of/a/model/that/is/longer/than/a/line"
    record = logging.LogRecord(
        "attention_probing", logging.WARNING, "", 0, f"No unit is known of {path}. See it.", None, None
    )
    [handler] = logging.getLogger("attention_probing").handlers
    assert handler.format(record).splitlines() == ["Warning: No unit is known of", f"{path}.", "See it."]
    for level in (logging.INFO, logging.ERROR):
        record.levelno = level
        assert handler.format(record).startswith("No unit is known of\n/a/very")
    assert wrap("[unused1] is short") == "[unused1] is short"


def test_a_command_in_a_message_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    command = "    probing compare runs/SingleHeads/version_0 runs/SingleHeads/version_1"
    assert wrap(f"To compare two runs:\n{command}\nof one corpus") == f"To compare two runs:\n{command}\nof one corpus"
    assert wrap("To compare both of the runs") == "To compare both of\nthe runs"


def test_a_total_is_left_out_only_with_a_reason() -> None:
    with pytest.raises(ValueError, match="needs a reason"):
        Progress("Training, batches", float("inf"))


@pytest.mark.parametrize(
    ("epochs", "batches", "stops", "expected"),
    [
        (5, 20, False, "10 of 100 (10%)"),
        (5, 20, True, "10 of at most 100 (10%)"),
        (-1, 20, True, "time left unknown: the training has no largest number of epochs"),
        (-1, 20, False, "time left unknown: the training has no largest number of epochs"),
        (5, float("inf"), False, "time left unknown: the number of batches is not known before"),
    ],
)
def test_a_training_logs_its_largest_number_of_batches(
    lines: list[str], monkeypatch: pytest.MonkeyPatch, epochs: int, batches: float, stops: bool, expected: str
) -> None:
    now = 0.0
    monkeypatch.setattr("attention_probing.results.progress.time", SimpleNamespace(monotonic=lambda: now))
    trainer: Any = SimpleNamespace(
        early_stopping_callbacks=[object()] if stops else [],
        max_epochs=epochs,
        current_epoch=0,
        num_training_batches=batches,
        callback_metrics={},
    )
    progress = ProgressLines()
    progress.on_train_start(trainer, Mock())
    for _ in range(20):
        now += 1
        progress.on_train_batch_end(trainer)
    (line,) = lines
    assert expected in line
