"""Training of the probes over arcs: an epoch against reading the data alone, the peak of memory.

`python -m benchmarks.probe_training [--json FILE]`
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from attention_probing.datamodules import AttentionBatch, DependencyDataModule, VectorSpec
from attention_probing.probes import AttentionOnlyProbe, AttentionWordsProbe
from benchmarks.harness import Report, Settings, Treebanks, alternate, command
from benchmarks.job import datamodule, fit
from benchmarks.memory import run_job

VECTOR_SIZE = 50


class DataPass(LightningModule):
    """Reads every training batch, in float32, and does nothing with it."""

    automatic_optimization = False

    def training_step(self, batch: AttentionBatch | Tensor, batch_idx: int) -> None:
        """Nothing: the batch is there."""

    def validation_step(self, batch: AttentionBatch, batch_idx: int) -> None:
        """Never called; without it Lightning warns that the data have a dev split."""

    def configure_optimizers(self) -> list[Optimizer]:
        """None at all."""
        return []


class PlainCast(Dataset[Tensor]):
    """The same batches read as plain float16 and cast to float32 by safetensors and torch alone.

    The floor of a data pass: there is nothing to unpack, there are no labels, and the views of the files are made
    beforehand.
    """

    def __init__(self, data: DependencyDataModule) -> None:
        store = data.stores["train"]
        self._views: dict[str, Tensor] = {}
        for part in store.manifest.shards:
            self._views |= load_file(store.folder / part.file)  # maps the file

    def __getitem__(self, items: list[int]) -> Tensor:
        """A batch in float32, as it is packed."""
        views = [self._views[f"attention.{item}"] for item in items]
        size = max(view.size(-1) for view in views)
        half = torch.zeros(len(views), *views[0].shape[:2], size, size, dtype=torch.float16)
        for row, view in zip(half, views, strict=True):
            row[:, :, : view.size(-1), : view.size(-1)] = view
        return half.float()


class PlainData(LightningDataModule):
    """The batches of a datamodule as `PlainCast` reads them."""

    def __init__(self, data: DependencyDataModule) -> None:
        super().__init__()
        self._cast, self._data = PlainCast(data), data

    def train_dataloader(self) -> DataLoader[Tensor]:
        """In the order of the datamodule."""
        return DataLoader(self._cast, sampler=self._data.train_dataloader().sampler, batch_size=None)

    def val_dataloader(self) -> DataLoader[AttentionBatch]:
        """Of the datamodule; nothing is read from it."""
        return self._data.val_dataloader()


class EpochTimer(Callback):
    """Seconds of the training epoch, without the start of the Trainer."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self.seconds = -time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop it."""
        self.seconds += time.perf_counter()


def epoch(module: Callable[[], LightningModule], data: LightningDataModule) -> Callable[[], float]:
    """Something that trains a new module for one epoch, and returns the epoch's seconds."""

    def seconds() -> float:
        timer = EpochTimer()
        fit(module(), data, timer, validate=False)
        return timer.seconds

    return seconds


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """Training of the probes over arcs: an epoch against reading the data alone, the peak of memory."""
    treebanks = Treebanks.choose(settings, folder, report, "the first sentences of its train split")
    cache = folder / "cache"
    large, small = (datamodule(cache, train, treebanks.dev) for train in (treebanks.large, treebanks.small))
    single = datamodule(cache, treebanks.small, treebanks.dev, batch_size=1)
    worded = datamodule(
        cache, treebanks.large, treebanks.dev, vectors=random_vectors(treebanks, folder / "vectors.txt")
    )
    for data in (large, small, single, worded):
        data.setup("fit")
    if settings.memory:
        _memory(treebanks, cache, len(large.stores["train"]), len(small.stores["train"]), report)

    epoch(DataPass, large)()  # every page is mapped once before anything is timed
    whole = alternate(
        settings.rounds,
        training=epoch(AttentionOnlyProbe, large),
        data_pass=epoch(DataPass, large),
        cast=epoch(DataPass, PlainData(large)),
    )
    report.figure("sentences", len(large.stores["train"]), "trained on")
    read = sum(path.stat().st_size for path in large.stores["train"].folder.glob("*.safetensors")) / 1e9
    report.figure("epoch_gb_per_s", read / min(whole["training"]), "attention on the disk ÷ the quickest epoch")
    report.seconds("epoch_s", whole["training"], "a training epoch of the attention-only probe")
    report.seconds("data_pass_s", whole["data_pass"], "the same batches read into float32, in the same Trainer")
    report.seconds("cast_s", whole["cast"], "the same bytes read as plain float16 and cast by torch alone, likewise")
    report.ratio("epoch_over_data_pass", whole["training"], whole["data_pass"], "the one ÷ the other")
    # The denominator above is ours, and would hide what slows every read.
    report.ratio("epoch_over_cast", whole["training"], whole["cast"], "the one ÷ the other", wanted="≤ 4.5")
    report.ratio("data_pass_over_cast", whole["data_pass"], whole["cast"], "the one ÷ the other", wanted="≤ 1.15")

    words = alternate(settings.rounds, training=epoch(AttentionWordsProbe, worded), data_pass=epoch(DataPass, worded))
    report.figure("words_epoch_gb_per_s", read / min(words["training"]), "attention on the disk ÷ the quickest epoch")
    size = worded.vectors.size if worded.vectors is not None else 0
    report.seconds("words_epoch_s", words["training"], f"an epoch with word vectors, {size} numbers each")
    report.seconds("words_data_pass_s", words["data_pass"], "the same batches, vectors among them, read into float32")
    report.ratio("words_epoch_over_data_pass", words["training"], words["data_pass"], "the one ÷ the other")
    report.ratio("words_epoch_over_cast", words["training"], whole["cast"], "the one ÷ the cast above", wanted="≤ 10")

    part = alternate(
        settings.rounds, batches=epoch(AttentionOnlyProbe, small), single=epoch(AttentionOnlyProbe, single)
    )
    meaning = f"an epoch over {len(small.stores['train']):,} sentences, one a batch"
    report.seconds("batch_of_one_s", part["single"], meaning)
    report.seconds("batches_s", part["batches"], "an epoch over the same, in batches bounded by cells")
    report.ratio("over_batch_of_one", part["single"], part["batches"], "the one ÷ the other", wanted="≥ 10")


def random_vectors(treebanks: Treebanks, path: Path) -> VectorSpec:
    """Random vectors, of as many numbers as those the configs name, for every word of the treebanks."""
    rows = (
        line.split("\t") for file in (treebanks.large, treebanks.dev) for line in file.read_text("utf-8").split("\n")
    )
    forms = sorted({row[1].lower() for row in rows if len(row) == 10} - {""})
    numbers = np.random.default_rng(0).standard_normal((len(forms), VECTOR_SIZE)).round(3)
    with path.open("w", encoding="utf-8") as file:
        for form, vector in zip(forms, numbers.tolist(), strict=True):
            if " " not in form and "\u00a0" not in form:
                file.write(f"{form} {' '.join(map(str, vector))}\n")
    return VectorSpec(str(path))


def _memory(treebanks: Treebanks, cache: Path, large: int, small: int, report: Report) -> None:
    peaks = []
    for size, train, sentences in (("small", treebanks.small, small), ("large", treebanks.large, large)):
        peaks.append(run_job("fit", cache, train=train, dev=treebanks.dev).peak_mb)
        meaning = f"peak anonymous memory of a training on {sentences:,} sentences"
        report.figure(f"peak_rss_mb_{size}", peaks[-1], meaning)
    report.ratio("peak_rss_large_over_small", peaks[1:], peaks[:1], "the one peak ÷ the other", wanted="0.9 – 1.1")


main = command("probe_training", measure)
