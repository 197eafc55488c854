"""One user's run in a process of its own: `python -m benchmarks.job KIND CACHE TRAIN …`; for the kinds see `main`.

Prints one line of JSON: `startup_s`, from the start of the process to the first line of the job, `ready_s`, from
entering the datamodule's `setup` to its end, and under `fit` `fit_s`, one epoch of training with its validation. Under
`distances` TRAIN is a corpus of texts, of which `--limit` segments are read, and `test_s` a whole measurement of all
distances between heads. Under `heads` it is one of single heads, streamed, scored on TRAIN; DEV is the test split.
Under `dry` it is what `--dry` predicts of the stores of TRAIN and DEV, and under `stores` what making them takes.
"""

import argparse
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer

from attention_probing.attention import EncoderSpec, Options, Store, make_store
from attention_probing.attention.quantities import QuantityName
from attention_probing.commands.dry import predict
from attention_probing.datamodules import DependencyDataModule, TextDataModule, TextSource
from attention_probing.measures import AttentionAnalyses, Clusters, SingleHeads, Surface, measure
from attention_probing.probes import AttentionOnlyProbe
from attention_probing.results.memory import peak_resident_bytes, resident_bytes


def datamodule(
    cache: Path,
    train: Path,
    dev: Path | None = None,
    quantity: QuantityName = "attention",
    encoder: EncoderSpec = EncoderSpec(),  # noqa: B008 - frozen
    **options: Any,  # noqa: ANN401 - a DependencyDataModule's own
) -> DependencyDataModule:
    """The treebank in these files, by default through the default encoder."""
    files = {"train": str(train)} | ({"dev": str(dev)} if dev is not None else {})
    attention = Options(quantity=quantity)
    return DependencyDataModule(files, encoder=encoder, options=attention, cache=str(cache), **options)


def fit(
    module: LightningModule, data: LightningDataModule, *callbacks: Callback, validate: bool, devices: int = 1
) -> None:
    """One epoch on the CPU, nothing written and, but for warnings, nothing said; with several devices under DDP."""
    trainer = _quiet_trainer(
        strategy="ddp" if devices > 1 else "auto",
        devices=devices,
        max_epochs=1,
        callbacks=list(callbacks),
        limit_val_batches=None if validate else 0,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, datamodule=data)


def _say_nothing() -> None:
    for name in ("pytorch_lightning", "lightning_fabric", "attention_probing"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _quiet_trainer(**options: Any) -> Trainer:  # noqa: ANN401 - a Trainer's own
    _say_nothing()
    return Trainer(
        accelerator="cpu",
        plugins=LightningEnvironment(),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        **options,
    )


def test_distances(data: TextDataModule) -> None:
    """Distances between all heads on the CPU, nothing written and, but for warnings, nothing said."""
    _say_nothing()
    measure(data, measurements=AttentionAnalyses([Surface(), Clusters()]))


def run_heads(
    cache: Path,
    files: Mapping[str, Path],
    encoder: EncoderSpec,
    store: Literal["disk", "stream"],
    permutations: int = 1,
) -> None:
    """Single heads on the CPU, chosen and scored on dev, without trees and ensembles; nothing written or said."""
    corpus = {split: str(path) for split, path in files.items()}
    data = DependencyDataModule(corpus, encoder=encoder, cache=str(cache), store=store)
    module = SingleHeads(mode="paper", trees=False)
    module.permutations = permutations
    _say_nothing()
    measure(data, measurements=module)


def predict_stores(cache: Path, train: Path, dev: Path, encoder: EncoderSpec) -> dict[str, float]:
    """What `--dry` predicts of the stores of two files, in megabytes and seconds."""
    before = resident_bytes()
    prediction = predict(datamodule(cache, Path(train), dev, encoder=encoder), "fit", "cpu")
    largest = max(costs.layer for costs in prediction.costs.values())
    return {
        "weights_mb": prediction.encoder.weights / 1e6,
        "layer_mb": largest / 1e6,
        "memory_mb": (prediction.memory - before) / 1e6,
        "disk_mb": prediction.disk / 1e6,
        "passes_s": float(prediction.seconds or 0),
    }


def make_stores(cache: Path, train: Path, dev: Path, encoder: EncoderSpec) -> dict[str, float]:
    """Make the stores of two files; return what it took, in megabytes and seconds."""
    data = datamodule(cache, Path(train), dev, encoder=encoder)
    passes: list[float] = []
    make = make_store

    def timed_store(*given: Any) -> Store:  # noqa: ANN401 - its own arguments
        begun = time.process_time()  # of all threads; the pauses for other programs do not count
        store = make(*given)
        passes.append((time.process_time() - begun) / torch.get_num_threads())
        return store

    before = resident_bytes()
    with patch("attention_probing.datamodules.attention.make_store", timed_store):
        data.setup("fit")
    files = cache.rglob("*.safetensors")
    disk = sum(file.stat().st_size for file in files)
    return {"memory_mb": (peak_resident_bytes() - before) / 1e6, "disk_mb": disk / 1e6, "passes_s": sum(passes)}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.job")
    parser.add_argument("kind", choices=("setup", "fit", "distances", "heads", "dry", "stores"))
    parser.add_argument("cache", type=Path)
    parser.add_argument("train")
    parser.add_argument("--dev", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--quantity", default="attention")
    parser.add_argument("--encoder", default=EncoderSpec.name)
    parser.add_argument("--started", type=float, default=time.monotonic(), help="monotonic clock before the process")
    given = parser.parse_args(arguments)
    if given.kind == "heads":
        begun = time.monotonic()
        run_heads(given.cache, {"dev": Path(given.train), "test": given.dev}, EncoderSpec(given.encoder), "stream")
        print(json.dumps({"test_s": time.monotonic() - begun}))
        return 0
    if given.kind in ("dry", "stores"):
        count = predict_stores if given.kind == "dry" else make_stores
        print(json.dumps(count(given.cache, given.train, given.dev, EncoderSpec(given.encoder))))
        return 0
    data: TextDataModule | DependencyDataModule
    if given.kind == "distances":
        data = TextDataModule([TextSource(given.train, packing="pairs", limit=given.limit)], cache=str(given.cache))
    else:
        data = datamodule(given.cache, Path(given.train), given.dev, quantity=given.quantity)
    begun = time.monotonic()
    data.setup("test" if given.kind == "distances" else "fit")
    ready = time.monotonic()
    seconds = {"startup_s": begun - given.started, "ready_s": ready - begun}
    if isinstance(data, TextDataModule):
        test_distances(data)
        seconds["test_s"] = time.monotonic() - ready
    elif given.kind == "fit":
        fit(AttentionOnlyProbe(), data, validate=True)
        seconds["fit_s"] = time.monotonic() - ready
    print(json.dumps(seconds))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
