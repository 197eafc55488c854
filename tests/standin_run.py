"""Runs on the stand-in accelerator and on the CPU, in a process of their own; prints scores and events as JSON.

The number of events for each batch goes to standard error.

`python -m tests.standin_run FOLDER [NAME …]`
"""

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.accelerators import CPUAccelerator
from pytorch_lightning.strategies import SingleDeviceStrategy

from attention_probing.attention import EncoderSpec
from attention_probing.datamodules import ClassificationDataModule, DependencyDataModule
from attention_probing.fidelity import Fidelity, Permutation, SingleWeight
from attention_probing.measures import SingleHeads
from attention_probing.measures.contract import Measure
from attention_probing.measures.devices import OneProcess
from attention_probing.measures.loop import run_measurement
from attention_probing.probes import AttentionOnlyProbe
from tests import standin, tiny
from tests.models.corpora import write_texts

LAYERS = 3
HEADS = 4


class Loop:
    """Events between the first batch of a loop and the end of its last, and the number of batches."""

    def __init__(self) -> None:
        self.batches = 0
        self._start = self._stop = 0

    def begin(self) -> None:
        self._start = len(standin.EVENTS)

    def end_batch(self) -> None:
        self.batches += 1
        self._stop = len(standin.EVENTS)

    def dump(self, result: Any) -> dict[str, Any]:  # noqa: ANN401 # a Result
        events = [asdict(event) for event in standin.EVENTS[self._start : self._stop]]
        scores = {name: score.value for name, score in result.scores.items()}
        return {"batches": self.batches, "events": events, "scores": scores}


def measured(measurement: Measure[Any], data: Any, device: torch.device) -> dict[str, Any]:  # noqa: ANN401
    """Run a measurement, and return its scores with the events of the loop over batches."""
    loop = Loop()
    begin = measurement.begin
    update = measurement.update

    def begin_loop() -> None:
        begin()
        measurement.to(device)
        loop.begin()

    def update_and_count(batch: Any) -> None:  # noqa: ANN401 # of the measurement
        if isinstance(measurement, Fidelity) and batch.split != "test":
            return  # it reads no other
        update(batch)
        loop.end_batch()

    measurement.begin = begin_loop  # type: ignore[method-assign]
    measurement.update = update_and_count  # type: ignore[method-assign]
    devices = OneProcess()
    devices.device = device
    result = run_measurement(measurement, data, devices, limit=None, bar=False)
    return loop.dump(result)


class SecondEpoch(Callback):
    """Callback that notes the batches of the second epoch in a loop."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.loop.begin()

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        if trainer.current_epoch == 1:
            self.loop.end_batch()


class StandinAccelerator(CPUAccelerator):
    """Lightning's accelerator of the stand-in device."""

    def setup_device(self, device: torch.device) -> None:
        """Accept any device."""


def trained(data: DependencyDataModule, device: torch.device) -> dict[str, Any]:
    """Train the attention-only probe for two epochs, and return its scores with the events of the second epoch."""
    loop = Loop()
    probe = AttentionOnlyProbe()
    torch.manual_seed(0)
    trainer = Trainer(
        accelerator=StandinAccelerator(),
        strategy=SingleDeviceStrategy(device),
        max_epochs=2,
        callbacks=[SecondEpoch(loop)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
    )
    trainer.fit(probe, datamodule=data)
    trainer.test(probe, datamodule=data, verbose=False)
    return loop.dump(probe.result)


def describe(run: dict[str, Any]) -> str:
    """Return the number of events of each kind for a batch."""
    counts = Counter(event["kind"] for event in run["events"])
    kinds = [f"{counts[kind] / run['batches']:.3g} {kind}" for kind in ("to device", "to host", "wait")]
    return f"{', '.join(kinds)}, in each of {run['batches']} batches"


def main(folder: Path, *names: str) -> None:
    """Run those of some names, by default all, and print the result of each by name and device."""
    device = standin.register()
    bert = tiny.save_bert(folder / "bert", layers=LAYERS, heads=HEADS)
    trees = tiny.write_splits(folder)
    classifier = tiny.add_head(tiny.save_bert(folder / "classifier", heads=HEADS), 2)
    texts = write_texts(folder)

    def treebank(store: str) -> DependencyDataModule:
        cache = str(folder / "stores")
        return DependencyDataModule(trees, encoder=EncoderSpec(str(bert)), store=store, cache=cache, max_cells=200)

    def classified() -> ClassificationDataModule:
        spec = EncoderSpec(str(classifier))
        cache = str(folder / "stores")
        return ClassificationDataModule(texts, tokenizer=spec, positive="good", cache=cache, batch_size=7)

    def fidelity() -> Fidelity:
        return Fidelity([str(classifier)], [Permutation(), SingleWeight()], eval_tokens=60)

    runs: dict[str, Callable[[torch.device], dict[str, Any]]] = {
        "heads, streamed": lambda where: measured(SingleHeads(trees=False), treebank("stream"), where),
        "trees, streamed": lambda where: measured(SingleHeads(), treebank("stream"), where),
        "trees, stored": lambda where: measured(SingleHeads(), treebank("disk"), where),
        "fit": lambda where: trained(treebank("disk"), where),
        "fidelity": lambda where: measured(fidelity(), classified(), where),
    }
    results = {}
    for name in names or runs:
        run = runs[name]
        results[name] = {"cpu": run(torch.device("cpu")), standin.NAME: run(device)}
        print(f"{name}: {describe(results[name][standin.NAME])}", file=sys.stderr)
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
