"""The contract of a measurement, and the loop that runs one on any number of devices."""

import math
from collections.abc import Mapping, Sequence
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypedDict, Unpack, cast, overload

import torch
from jsonargparse import Namespace
from rich.progress import track
from torch import nn
from torch.utils.data import DataLoader

from attention_probing.attention import Encoder, EncoderSpec
from attention_probing.attention.extraction import return_free_memory
from attention_probing.datamodules import CorpusDataModule, TextDataModule
from attention_probing.datamodules.batches import Ranks, run_seed
from attention_probing.datamodules.corpus import Data, data_for
from attention_probing.measures.devices import OneProcess
from attention_probing.models.checkpoints import datamodule_from
from attention_probing.results import Result
from attention_probing.results.errors import UserError, check_numbers, setting
from attention_probing.results.progress import Progress

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Measure(nn.Module, Generic[Data]):
    """A measurement: it reads the batches of a datamodule, and computes one `Result` from them.

    Subclasses set `experiment` and `takes`, and implement `begin`, `update` and `result`. Metrics and models are
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
    def data_of(cls, arguments: Namespace | Self, given: Namespace | None) -> Namespace | None:
        """Return the settings of the datamodule: the given ones, or those that a measurement or its arguments imply."""
        return given

    def begin(self) -> None:
        """Check the data, create metrics, load models and train those that must be trained.

        It is called once, when the datamodule is set up, outside of inference mode. Afterwards all submodules are moved
        to the device; a model that is needed there earlier, `begin` moves itself.
        """

    def reads_batch(self, batch: object) -> bool:
        """Return True if the measurement reads this batch, of a datamodule with several kinds of batches."""
        return isinstance(batch, self.takes.batch)

    def update(self, batch: Any) -> None:  # noqa: ANN401 - the batch of the datamodule
        """Measure one batch of dev or test, usually by updating metrics; by default ignore it."""

    def result(self) -> Result | None:
        """Return the result; called once in every process, after all batches. Processes but the first may return None.

        Every process must call `compute` of every metric, because metrics gather from all processes.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement result().")


STREAMED = "texts are read as they come, so their number is not known before"
"""Reason that a loop over a stream of texts has no total."""

Corpus = str | Path | Mapping[str, str]
Reader = str | Encoder | EncoderSpec | None
Given = Corpus | CorpusDataModule[Any] | None


class _Loop(TypedDict, total=False):
    fabric: "Fabric | None"
    limit: float | None
    bar: bool


@overload
def measure(
    corpus: Given = ..., encoder: Reader = ..., measurements: Measure[Any] = ..., **loop: Unpack[_Loop]
) -> Result: ...
@overload
def measure(
    corpus: Given = ..., encoder: Reader = ..., measurements: Sequence[Measure[Any]] = ..., **loop: Unpack[_Loop]
) -> list[Result]: ...
def measure(
    corpus: Given = None,
    encoder: Reader = None,
    measurements: Measure[Any] | Sequence[Measure[Any]] = (),
    *,
    fabric: "Fabric | None" = None,
    limit: float | None = None,
    bar: bool = False,
) -> Result | list[Result]:
    """Run measurements over the dev and test batches of a corpus.

    Args:
        corpus: A corpus as the datamodule of the measurements takes it, such as `sample`, a name of `probing
            fetch --list` or a path with `{split}`; or a datamodule. None for the data of a measurement's checkpoint.
        encoder: Encoder of a corpus that is given by name or path; None for the default.
        measurements: One measurement, or several, which share the loaded data.
        fabric: Launched `lightning_fabric.Fabric` with the devices; None for the CPU.
        limit: Number of batches that are read of each dataloader, or a fraction below 1; None for all.
        bar: True to show a progress bar, False to log the progress.

    Returns:
        The result of one measurement, or the results of several in a list; the same in every process.

    Raises:
        UserError: The data do not fit a measurement, or `limit` leaves no batch.
    """
    if isinstance(measurements, Measure):
        return measure(corpus, encoder, [measurements], fabric=fabric, limit=limit, bar=bar)[0]
    if not measurements:
        raise UserError("No measurement is given. Give one, or a list: measurements=[SingleHeads()].")
    if encoder is not None and (corpus is None or isinstance(corpus, CorpusDataModule)):
        raise UserError("`encoder` needs the name or path of a corpus: a datamodule and a checkpoint name their own.")
    devices = OneProcess() if fabric is None else fabric
    made, results, data = dict[Any, Any](), list[Result](), cast("Any", corpus)
    for measurement in measurements:
        if corpus is None:
            settings = measurement.data_of(measurement, None)
            data = settings and datamodule_from(settings)
        elif not isinstance(corpus, CorpusDataModule):
            kind = measurement.takes
            data = made[kind] = made.get(kind) or _made(kind, corpus, encoder)
        result = devices.broadcast(run_measurement(measurement, data, devices, limit=limit, bar=bar))
        assert result is not None  # the first process has one
        results.append(result)
    return results


def _made(kind: Any, corpus: Corpus, encoder: Reader) -> Any:  # noqa: ANN401 - a datamodule and its class
    """Return a datamodule of this class for a corpus; one of texts where any will do."""
    kind = TextDataModule if kind is CorpusDataModule else kind
    known = signature(kind).parameters
    option = next((name for name in ("corpus", "corpora") if name in known), None)
    if option is None:
        raise UserError(f"{kind.__name__} needs {kind.holds}, not a single corpus: make one, and give it as `corpus`.")
    spec = encoder.source.spec if isinstance(encoder, Encoder) else encoder
    spec = EncoderSpec(spec) if isinstance(spec, str) else spec
    options: dict[str, Any] = {option: str(corpus) if isinstance(corpus, Path) else corpus}
    if spec is not None:
        options["tokenizer" if "tokenizer" in known else "encoder"] = spec
    return kind(**options)


def run_measurement(
    measurement: Measure[Any],
    data: CorpusDataModule[Any],
    devices: "Fabric | OneProcess",
    *,
    limit: float | None,
    bar: bool,
) -> Result | None:
    """Run one measurement over a datamodule, as `measure` does; processes but the first may return None."""
    measurement.data = data_for(type(measurement).__name__, measurement.takes, data)
    measurement.device, measurement.ranks = devices.device, Ranks(devices.global_rank, devices.world_size)
    data.place(measurement.ranks, measurement.device)
    data.setup("test")
    measurement.begin()
    measurement.to(devices.device).eval()
    loaders = data.test_dataloader()
    limits = [_limited(loader, limit) for loader in loaders]
    with torch.inference_mode(), devices.autocast():
        total = None if None in limits else sum(filter(None, limits))
        progress = Progress("Measuring, batches", total or math.inf, "" if total else STREAMED)
        found = (one for loader, most in zip(loaders, limits, strict=True) for one in islice(loader, most))
        for batch in track(found, "Measuring" if total else f"Measuring; {STREAMED}", total, disable=not bar):
            if measurement.reads_batch(batch):
                measurement.update(batch.to(devices.device))
            if not bar:
                progress.advance()
        return_free_memory()  # of the forward passes, which the statistics do not need
        return measurement.result()


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
            f"{setting('trainer.limit_test_batches', limit)} selects none of {total} batches. Give a number of "
            f"batches from 1 or "
            "a fraction that leaves at least one, or leave the option out to read all."
        )
    return None if math.isinf(most) else int(most)
