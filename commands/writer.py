"""Callback of the Trainer that writes the result of a test, and predictions, into the run folder."""

from pathlib import Path
from typing import Any

import pandas as pd
from pytorch_lightning import Callback, LightningModule, Trainer
from rich.console import Console
from rich.text import Text

from attention_probing.results import Provenance
from attention_probing.results.publication import publish
from attention_probing.results.writer import save_parquet


class ResultWriter(Callback):
    """Callback that publishes the `result` of a module after a test, and writes predictions after `predict`.

    Only the first process writes. The `provenance` of the datamodule describes encoder and data. Predictions become
    `predictions.parquet`.

    Args:
        console: Console that prints the tables; None creates one for the terminal.
        folder: Run folder; None takes the folder of the logger, or the trainer's root folder without a logger.
        **options: `figures` and `quiet` of `results.publication.publish`.
    """

    def __init__(self, console: Console | None = None, *, folder: Path | None = None, **options: Any) -> None:  # noqa: ANN401
        # The default console is made later: it has locks, and spawned processes receive the callback pickled.
        self._console = console
        self.folder = folder
        self._options = options

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the predictions of the module to `predictions.parquet`, if it kept any."""
        folder = self._folder(trainer)
        predictions = getattr(pl_module, "predictions", None)
        if trainer.is_global_zero and isinstance(predictions, pd.DataFrame):
            folder.mkdir(parents=True, exist_ok=True)
            save_parquet(folder / "predictions.parquet", predictions)
            (self._console or Console()).print(Text(f"Written to {folder / 'predictions.parquet'}"), soft_wrap=True)

    def _folder(self, trainer: Trainer) -> Path:
        # Called on every process, because Lightning broadcasts the answer.
        return self.folder or Path(trainer.log_dir or trainer.default_root_dir)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write and print the result of the module, then draw its figures.

        If the module has no result, a warning is printed and nothing is written.
        """
        folder = self._folder(trainer)
        if not trainer.is_global_zero:
            return
        console = self._console or Console()
        result = getattr(pl_module, "result", None)
        if result is None:
            unwritten = f"Warning: {type(pl_module).__name__} has no result after its test, so nothing is written"
            console.print(Text(unwritten, "yellow"))
            return
        if trainer.progress_bar_callback is not None:  # otherwise its last line would be below what is printed
            trainer.progress_bar_callback.teardown(trainer, pl_module, "test")
        limit = trainer.limit_test_batches
        reads_all = isinstance(limit, float) and limit == 1.0  # the integer 1 is a single batch
        datamodule = getattr(trainer, "datamodule", None)
        provenance: Provenance | None = getattr(datamodule, "provenance", None)
        publish(
            folder,
            result,
            provenance or Provenance({}, {}, {}),
            limit=None if reads_all else limit,
            console=console,
            **self._options,
        )
        if provenance is None:  # a datamodule of the user's own
            unknown = f"Warning: {type(datamodule).__name__} has no `provenance`: results.json lacks encoder and data"
            console.print(Text(unknown, "yellow"))
