"""The contract of a measurement, and the loop that runs one on any number of devices."""

import math
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic

import torch
from jsonargparse import Namespace
from lightning_fabric import Fabric
from rich.progress import track
from torch import nn
from torch.utils.data import DataLoader

from attention.extraction import return_free_memory
from datamodules.batches import Ranks, run_seed
from datamodules.corpus import Data, data_for
from results import Result
from results.errors import UserError, check_numbers
from results.progress import Progress


class Measure(nn.Module, Generic[Data]):
    """A measurement: it reads the batches of a datamodule, and computes one `Result` from them.

    Subclasses set `experiment` and `takes`, and implement `prepare`, `update` and `outcome`. Metrics and models are
    submodules, which `measure` moves to the device; metrics gather over the devices.

    Args:
        seed: Seed of all random draws; None for the seed of the run.

    Attributes:
        experiment: Name of the measurement in `results.json`.
        takes: Class of the datamodule, or of the part of a composite datamodule, that the measurement reads.
        seed: Seed of all random draws of the measurement.
        data: The datamodule. `measure` sets it and the attributes below.
        device: Device of this process.
        ranks: Rank of this process, and number of processes.
        kept: Folder in which trained models are kept while the measurement runs; None keeps none.
    """

    experiment: ClassVar[str]
    takes: ClassVar[type[Any]]
    data: Data

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        if seed is not None:
            check_numbers(self, least=0, seed=seed)
        self.seed = run_seed(seed)
        self.device, self.ranks = torch.device("cpu"), Ranks()
        self.kept: Path | None = None

    @classmethod
    def data_of(cls, arguments: Namespace, given: Namespace | None) -> Namespace | None:
        """Return the settings of the datamodule: those of `--data`, or those that the arguments imply, or None."""
        return given

    def prepare(self) -> None:
        """Check the data, and create metrics and models; called after `setup` of the datamodule."""

    def begin(self) -> None:
        """Do what must be done on the device before the first batch, such as training models."""

    def reads_batch(self, batch: object) -> bool:
        """Return True if the measurement reads this batch, of a datamodule with several kinds of batches."""
        return isinstance(batch, self.takes.batch)

    def update(self, batch: Any) -> None:  # noqa: ANN401 - the batch of the datamodule
        """Measure one batch of dev or test, usually by updating metrics; by default ignore it."""

    def outcome(self) -> Result | None:
        """Return the result; called once in every process, after all batches. Processes but the first may return None.

        Every process must call `compute` of every metric, because metrics gather from all processes.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement outcome().")


def measure(
    measurement: Measure[Any],
    data: Any,  # noqa: ANN401 - any datamodule; `data_for` checks its class
    fabric: Fabric | None = None,
    *,
    limit: float | None = None,
    bar: bool = False,
) -> Result | None:
    """Run a measurement over the dev and test batches of a datamodule, and return its result.

    Args:
        measurement: The measurement.
        data: The datamodule.
        fabric: Launched Fabric with the devices; None for the CPU.
        limit: Number of batches that are read of each dataloader, or a fraction below 1; None for all.
        bar: True to show a progress bar, False to log the progress.

    Returns:
        The result; None in processes that have none.

    Raises:
        UserError: The datamodule does not fit the measurement, or `limit` leaves no batch.
    """
    if fabric is None:
        (fabric := Fabric(accelerator="cpu", devices=1)).launch()
    measurement.data = data_for(type(measurement).__name__, measurement.takes, data)
    measurement.device, measurement.ranks = fabric.device, Ranks(fabric.global_rank, fabric.world_size)
    data.place(measurement.ranks, measurement.device)
    data.setup("test")
    measurement.prepare()
    measurement.to(fabric.device).eval()
    loaders = data.test_dataloader()
    limits = [_limited(loader, limit) for loader in loaders]
    with torch.inference_mode(), fabric.autocast():
        measurement.begin()
        total = None if None in limits else sum(filter(None, limits))
        progress = Progress("Measuring, batches", total or math.inf)
        found = (one for loader, most in zip(loaders, limits, strict=True) for one in islice(loader, most))
        for batch in track(found, "Measuring", total, disable=not bar):
            if measurement.reads_batch(batch):
                measurement.update(batch.to(fabric.device))
            if not bar:
                progress.advance()
        return_free_memory()  # of the forward passes, which the statistics do not need
        return measurement.outcome()


def _limited(loader: DataLoader[Any], limit: float | None) -> int | None:
    """Return how many batches of a loader are read; None for all of a stream, whose number is unknown."""
    try:
        batches: float = len(loader)
    except TypeError:
        batches = math.inf
    most = batches if limit is None else min(batches, limit) if limit >= 1 else batches * limit
    if most < 1 or (limit is not None and math.isinf(most)):
        total = "an unknown number of" if math.isinf(batches) else f"{batches:.0f}"
        raise UserError(
            f"--trainer.limit_test_batches {limit} selects none of {total} batches. Give a number of batches from 1 or "
            "a fraction that leaves at least one, or leave the option out to read all."
        )
    return None if math.isinf(most) else int(most)
