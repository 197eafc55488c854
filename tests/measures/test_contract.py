"""The loop over the batches of a datamodule, and what a measurement may ask of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from datamodules import AttentionBatch, CoreferenceDataModule, DependencyDataModule
from measures import Measure, measure
from metrics.rows import ItemRows
from results import Estimate, Result
from results.errors import UserError

MakeData = Callable[..., DependencyDataModule]
SMALL = 20
"""Padded cells of a batch, so that each split has several."""


class Lengths(Measure[DependencyDataModule]):
    """The words of each sentence of test, read as batches of a few."""

    experiment = "lengths"
    takes = DependencyDataModule

    def prepare(self) -> None:
        self.data.read_only(frozenset())
        self.rows, self.steps = ItemRows({"words": None}), list[str]()

    def begin(self) -> None:
        self.steps.append("begin")
        assert torch.is_inference_mode_enabled()
        assert not self.training

    def update(self, batch: AttentionBatch) -> None:
        self.steps.append(batch.split)
        if batch.split == "test":
            self.rows.update(index=batch.index, words=batch.lengths)

    def outcome(self) -> Result:
        found = self.rows.take()
        words = float(found["words"].sum())
        return Result(self.experiment, {"words": Estimate(words, unit="count")}, headline=["words"])


def test_each_batch_is_read_once_dev_before_test(make_data: MakeData) -> None:
    measurement, data = Lengths(), make_data(max_cells=SMALL)
    result = measure(measurement, data)
    assert result is not None
    assert result.numbers["words"] == sum(data.splits["test"].lengths)
    assert measurement.steps[0] == "begin"
    splits = measurement.steps[1:]
    assert splits == sorted(splits, key=["dev", "test"].index)
    assert min(splits.count(split) for split in ("dev", "test")) > 2


def test_a_limit_leaves_some_batches_of_each_dataloader_or_is_refused(make_data: MakeData) -> None:
    measurement = Lengths()
    measure(measurement, make_data(max_cells=SMALL), limit=1)
    assert measurement.steps == ["begin", "dev", "test"]
    for limit in (0.001, 0):
        with pytest.raises(UserError, match=rf"limit_test_batches {limit} selects none of \d+ batches"):
            measure(Lengths(), make_data(), limit=limit)


@pytest.mark.parametrize("data", [None, CoreferenceDataModule("sample")], ids=["none", "other"])
def test_data_that_a_measurement_does_not_take_are_named(data: Any) -> None:  # noqa: ANN401
    found = "no data are given" if data is None else "CoreferenceDataModule has none"
    with pytest.raises(UserError, match=f"Lengths needs gold arcs, but {found}. Give --data DependencyDataModule"):
        measure(Lengths(), data)
