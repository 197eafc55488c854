"""Trainings that processes share, here threads: each is made once, and all have the same in the end."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from attention_probing.datamodules import DependencyDataModule
from attention_probing.measures.nested import train_copy
from attention_probing.measures.trainings import Best, Training, run_trainings
from attention_probing.probes import AttentionOnlyProbe
from attention_probing.results.errors import UserError

COSTS = [1.0, 5.0, 2.0, 2.0, 4.0]


def best(place: int) -> Best:
    return Best({"weight": torch.full((2,), float(place))}, 3, 2, 0.5 * place, True)


@pytest.fixture
def trainings(tmp_path: Path) -> Callable[[list[int]], list[Training]]:
    """Trainings that note in a list which of them take place."""

    def make(made: list[int]) -> list[Training]:
        def train(place: int) -> Callable[[], Best]:
            return lambda: made.append(place) or best(place)  # type: ignore[func-returns-value]

        return [
            Training(f"number {place}", tmp_path / f"{place}.ckpt", train(place), cost)
            for place, cost in enumerate(COSTS)
        ]

    return make


def test_each_training_is_made_by_one_process_and_had_by_all(
    trainings: Callable[[list[int]], list[Training]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attention_probing.results.locks.POLL", 0.01)
    made: list[list[int]] = [[], []]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda process: run_trainings(trainings(made[process])), range(2)))
    assert sorted(made[0] + made[1]) == [0, 1, 2, 3, 4]
    for bests in found:
        assert [one.state["weight"].tolist() for one in bests] == [[place, place] for place in range(5)]
        assert [one[1:] for one in bests] == [best(place)[1:] for place in range(5)]
    again: list[int] = []
    run_trainings(trainings(again))
    assert again == []


def test_the_longest_begins_first_and_one_without_a_file_is_made_in_its_turn(
    trainings: Callable[[list[int]], list[Training]],
) -> None:
    made: list[int] = []
    first, *others = trainings(made)
    found = run_trainings([first._replace(file=None), *others])
    assert made == [1, 4, 2, 3, 0]
    assert [one.value for one in found] == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_what_is_trained_is_announced(
    trainings: Callable[[list[int]], list[Training]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "pytorch_lightning"):
        run_trainings(trainings([])[:2])
        first, *results = caplog.messages
        assert first == "Trains 2 models, the longest first."
        assert [message.partition(":")[0] for message in results] == ["number 1", "number 0"]
        caplog.clear()
        run_trainings(trainings([])[:2])
        found = [message.partition(",")[0] for message in caplog.messages]
        assert found == ["number 0: found in the saved state", "number 1: found in the saved state"]


def test_a_training_inside_a_measurement_logs_its_progress(
    make_data: Callable[..., DependencyDataModule], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("attention_probing.results.progress.FIRST", 0.0)
    data = make_data(seed=0)
    with caplog.at_level("INFO"):
        train_copy(AttentionOnlyProbe(), data, monitor="val_uas", mode="max", max_epochs=2, patience=2, seed=0)
    assert any(message.startswith("Training, batches: ") for message in caplog.messages)


def test_a_cache_that_cannot_be_written_is_named_before_any_training(tmp_path: Path) -> None:
    (tmp_path / "roar").touch()  # nor can a folder be made there
    begun: list[bool] = []
    training = Training("one", tmp_path / "roar" / "one.ckpt", lambda: begun.append(True))  # type: ignore[arg-type, return-value]
    with pytest.raises(UserError, match=r"roar: no trained model can be kept there \(.*\)\. Give `cache`"):
        run_trainings([training])
    assert not begun
