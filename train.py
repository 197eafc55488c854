"""Run an experiment: `python train.py {fit,validate,test,predict} --config configs/….yaml`."""

import shutil
import sys
from itertools import count
from pathlib import Path

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.utilities import rank_zero_only
from rich.console import Console
from rich.text import Text

# LightningCLI finds by its short name whatever is imported here.
import datamodules  # noqa: F401
import probes  # noqa: F401
from attention import AlignmentError, EncoderError, StoreError
from corpora.sentence import CorpusError
from reports import ResultWriter

EXPECTED = (AlignmentError, CorpusError, EncoderError, StoreError)
"""Faults of the input: told in a line, without a traceback."""


class ProbingCLI(LightningCLI):
    """LightningCLI with one folder per run, the best checkpoint kept, and its test after the training."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the checkpoint, configurable as any other part."""
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.set_defaults({"checkpoint.monitor": "val_uas", "checkpoint.mode": "max"})

    def instantiate_trainer(self, **kwargs: object) -> Trainer:
        """Put loggers, checkpoints and results into a folder of this run under `--trainer.default_root_dir`."""
        settings = self._get(self.config_init, "trainer")
        if settings.get("logger") in (None, True):
            folder = run_folder(Path(settings["default_root_dir"]), type(self.model))
            kwargs["logger"] = [CSVLogger(folder, "", ""), TensorBoardLogger(folder, "", "tensorboard")]
        return super().instantiate_trainer(**kwargs)

    def after_fit(self) -> None:
        """Test the best checkpoint, when there is something to test on."""
        if "test" in self.datamodule.files():
            self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path="best")


class NoEmptyRun(Callback):
    """Removes the folder of a run that ended before it began, because of its input."""

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """`config.yaml` is written once data and model are set up."""
        folder = Path(trainer.log_dir or "")
        if isinstance(exception, EXPECTED) and trainer.is_global_zero and not (folder / "config.yaml").exists():
            shutil.rmtree(folder, ignore_errors=True)


def run_folder(root: Path, model: type[LightningModule]) -> Path:
    """A new folder `<root>/<model>/version_<n>`; only the first process makes it, and tells the others."""
    parent = root / model.__name__
    return rank_zero_only(_new_version, default=parent)(parent)


def _new_version(parent: Path) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    for number in count():
        folder = parent / f"version_{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        break
    return folder


def main(args: list[str] | None = None) -> ProbingCLI:
    """Run the command line `args`, by default the program's own."""
    return ProbingCLI(
        subclass_mode_model=True,
        subclass_mode_data=True,
        seed_everything_default=0,
        trainer_defaults={
            "default_root_dir": "runs",
            "use_distributed_sampler": False,  # the datamodules share the batches themselves, each item once
            "callbacks": [ResultWriter(), NoEmptyRun()],
        },
        args=args,
    )


if __name__ == "__main__":
    try:
        main()
    except EXPECTED as error:
        Console(stderr=True).print(Text.assemble(("Error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(1)
