"""The loop that runs measurements over the batches of a datamodule, on any number of devices."""

import math
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast, overload

import torch
from rich.progress import Progress as Bar
from torch.utils.data import DataLoader

from attention_probing.attention import Encoder, EncoderSpec
from attention_probing.attention.encoder import specification_of
from attention_probing.attention.extraction import return_free_memory
from attention_probing.datamodules import CorpusDataModule, TextDataModule
from attention_probing.datamodules.batches import Ranks
from attention_probing.datamodules.corpus import data_for
from attention_probing.measures.attention_analyses import AttentionAnalyses
from attention_probing.measures.contract import MapMeasure, Measure, check_measurement, ignore
from attention_probing.measures.devices import OneProcess
from attention_probing.models.checkpoints import datamodule_from
from attention_probing.results import Result
from attention_probing.results.errors import UserError, setting
from attention_probing.results.progress import Progress

if TYPE_CHECKING:
    from lightning_fabric import Fabric

STREAMED = "texts are read as they come, so their number is not known before"
"""Reason that a loop over a stream of texts has no total."""

CorpusLike = str | Path | Mapping[str, str]
EncoderLike = str | Encoder | EncoderSpec | None
Given = CorpusLike | CorpusDataModule[Any] | None


class _Loop(TypedDict, total=False):
    fabric: "Fabric | None"
    limit: float | None
    bar: bool


@overload
def measure(
    corpus: Given = ..., encoder: EncoderLike = ..., measurements: Measure[Any] = ..., **loop: Unpack[_Loop]
) -> Result: ...
@overload
def measure(
    corpus: Given = ..., encoder: EncoderLike = ..., measurements: Sequence[Measure[Any]] = ..., **loop: Unpack[_Loop]
) -> list[Result]: ...
def measure(
    corpus: Given = None,
    encoder: EncoderLike = None,
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
        measurements: One measurement, or several, which share the loaded data. Those of attention maps, such as
            `Surface` and `Clusters`, also share one pass of the encoder over the texts.
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
    for measurement in measurements:
        check_measurement(measurement)
    if encoder is not None and (corpus is None or isinstance(corpus, CorpusDataModule)):
        raise UserError("`encoder` needs the name or path of a corpus: a datamodule and a checkpoint name their own.")
    devices = OneProcess() if fabric is None else fabric
    datamodules = dict[Any, Any]()
    map_measures = [measurement for measurement in measurements if isinstance(measurement, MapMeasure)]
    results = dict[Measure[Any], Result | None]()
    for measurement in measurements:
        if measurement in results:
            continue  # it has shared a pass
        data = _data_of(measurement, corpus, encoder, datamodules)
        if isinstance(measurement, MapMeasure):
            results_of_maps = run_together(map_measures, data, devices, limit=limit, bar=bar)
            results.update(zip(map_measures, results_of_maps, strict=True))
        else:
            results[measurement] = run_measurement(measurement, data, devices, limit=limit, bar=bar)
    return [cast("Result", devices.broadcast(results[measurement])) for measurement in measurements]


def _data_of(measurement: Measure[Any], corpus: Given, encoder: EncoderLike, datamodules: dict[Any, Any]) -> Any:  # noqa: ANN401 - a datamodule
    """Return the data of a measurement; `datamodules` keeps those that are made of the corpus, by class."""
    if corpus is None:
        return _implied_data(measurement)
    if isinstance(corpus, CorpusDataModule):
        return corpus
    kind = measurement.takes
    if kind not in datamodules:
        datamodules[kind] = _make_datamodule(kind, corpus, encoder)
    return datamodules[kind]


def _implied_data(measurement: Measure[Any]) -> Any:  # noqa: ANN401 - a datamodule
    """Return the data of a measurement's checkpoint; None without one."""
    settings = measurement.data_of(measurement, None)
    return None if settings is None else datamodule_from(settings)


def _make_datamodule(kind: Any, corpus: CorpusLike, encoder: EncoderLike) -> Any:  # noqa: ANN401 - a datamodule and its class
    """Return a datamodule of this class for a corpus; one of texts where any will do."""
    if kind is CorpusDataModule:
        kind = TextDataModule
    parameters = signature(kind).parameters
    corpus_options = [name for name in ("corpus", "corpora") if name in parameters]
    if not corpus_options:
        raise UserError(f"{kind.__name__} needs {kind.holds}, not a single corpus: make one, and give it as `corpus`.")
    options: dict[str, Any] = {corpus_options[0]: str(corpus) if isinstance(corpus, Path) else corpus}
    if encoder is not None:
        encoder_option = "tokenizer" if "tokenizer" in parameters else "encoder"
        options[encoder_option] = specification_of(encoder)
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
    if isinstance(measurement, MapMeasure):
        return run_together([measurement], data, devices, limit=limit, bar=bar)[0]
    _read_batches(measurement, data, devices, limit, bar=bar)
    with torch.inference_mode(), devices.autocast():
        return measurement.result()


def begin_measurement(measurement: Measure[Any], data: CorpusDataModule[Any], devices: "Fabric | OneProcess") -> None:
    """Set up the data on the devices, and begin a measurement."""
    measurement.data = data_for(type(measurement).__name__, measurement.takes, data)
    measurement.check_data(data)
    measurement.device = devices.device
    measurement.ranks = Ranks(devices.global_rank, devices.world_size)
    data.place(measurement.ranks, measurement.device)
    data.setup("test")
    measurement.begin()


def run_together(
    measurements: Sequence[Measure[Any]],
    data: CorpusDataModule[Any],
    devices: "Fabric | OneProcess",
    *,
    limit: float | None,
    bar: bool,
) -> list[Result]:
    """Run measurements of attention maps in one pass over the texts; return the result of each."""
    analyses = AttentionAnalyses(list(measurements))
    _read_batches(analyses, data, devices, limit, bar=bar)
    with torch.inference_mode(), devices.autocast():
        return analyses.results()


def _read_batches(
    measurement: Measure[Any],
    data: CorpusDataModule[Any],
    devices: "Fabric | OneProcess",
    limit: float | None,
    *,
    bar: bool,
) -> None:
    """Set up the data, begin a measurement, and show it all batches."""
    begin_measurement(measurement, data, devices)
    measurement.to(devices.device).eval()
    loaders = data.test_dataloader()
    limits = [_batches_to_read(loader, limit) for loader in loaders]
    known_limits = [most for most in limits if most is not None]
    total = sum(known_limits) if len(known_limits) == len(limits) else None
    progress = _BatchProgress(total, bar=bar)
    measurement.advance = progress.advance
    with torch.inference_mode(), devices.autocast(), progress.bar:
        for batch in _batches(loaders, limits):
            measurement.update(batch.to(devices.device))
            progress.end_batch()
    measurement.advance = ignore
    return_free_memory()  # of the forward passes, which the statistics do not need


class _BatchProgress:
    """Progress over batches, which is shown as a bar, or logged; a batch may be finished in parts.

    Args:
        total: Number of batches; None if it is not known.
        bar: True for a bar.
    """

    def __init__(self, total: int | None, *, bar: bool) -> None:
        title = "Measuring"
        reason = ""
        if not total:
            title = f"Measuring; {STREAMED}"
            reason = STREAMED
        self.bar = Bar(disable=not bar)
        self._task = self.bar.add_task(title, total=total)
        self._lines = Progress("Measuring, batches", total or math.inf, reason)
        self._is_shown = bar
        self._share = 0.0  # of the batch

    def advance(self, share: float) -> None:
        """Add a share of the batch that is finished."""
        share = min(share, 1 - self._share)
        self._share += share
        if self._is_shown:
            self.bar.advance(self._task, share)
        else:
            self._lines.advance(share)

    def end_batch(self) -> None:
        """Add what is left of the batch."""
        self.advance(1 - self._share)
        self._share = 0.0


def _batches(loaders: Sequence[DataLoader[Any]], limits: Sequence[int | None]) -> Iterator[Any]:
    """Yield the batches of all dataloaders, of each at most its limit."""
    for loader, most in zip(loaders, limits, strict=True):
        yield from islice(loader, most)


def _batches_to_read(loader: DataLoader[Any], limit: float | None) -> int | None:
    """Return how many batches of a loader are read; None for all of a stream, whose number is unknown."""
    try:
        batches: float = len(loader)
    except TypeError:
        batches = math.inf
    if limit is None:
        most = batches
    elif limit >= 1:
        most = min(batches, limit)
    else:
        most = batches * limit
    is_share_of_stream = limit is not None and math.isinf(most)
    if most < 1 or is_share_of_stream:
        total = "an unknown number of" if math.isinf(batches) else f"{batches:.0f}"
        raise UserError(
            f"{setting('trainer.limit_test_batches', limit)} selects none of {total} batches. Give a number of batches "
            "from 1 or a fraction that leaves at least one, or leave the option out to read all."
        )
    return None if math.isinf(most) else int(most)
