"""Run an experiment: `python train.py {fit,validate,test,predict} --config configs/….yaml`."""

import io
import json
import shutil
import sys
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import count
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.utilities import rank_zero_info, rank_zero_only
from rich.console import Console
from rich.text import Text

# LightningCLI finds by its short name whatever is imported here.
import datamodules  # noqa: F401
import fidelity
import models  # noqa: F401
import probes  # noqa: F401
from attention import AlignmentError, EncoderError, StoreError
from corpora.sentence import CorpusError
from datamodules import VectorError
from datamodules.base import STAGES
from fidelity.checkpoints import FidelityError, data_settings, files_of
from models import ModelError
from probes.base import ProbeError
from reports import ResultWriter


class RunError(ValueError):
    """A command line that names what is not there."""


EXPECTED = (
    AlignmentError,
    CorpusError,
    EncoderError,
    FidelityError,
    ModelError,
    ProbeError,
    RunError,
    StoreError,
    VectorError,
)
"""Faults of the input: told in a line, without a traceback."""


class RunConfig(SaveConfigCallback):
    """Writes `config.yaml` into the run's folder, and removes the folder of a run that ended before it began."""

    def __init__(self, parser: LightningArgumentParser, config: Namespace, folder: Path) -> None:
        super().__init__(parser, config, save_to_log_dir=False)
        self.folder = folder

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called on the first process, once the data are set up."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            # jsonargparse 4.49 deprecates what Lightning 2.6 uses as well; without it `encoder: null` would be lost.
            warnings.filterwarnings("ignore", message=r"\s*skip_none .* deprecated")
            self.parser.save(self.config, self.folder / "config.yaml", skip_none=False, overwrite=True)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep how the run was made, as the text of its `config.yaml`: a checkpoint is of use without its folder."""
        config = self.folder / "config.yaml"
        if config.is_file():
            checkpoint["config"] = config.read_text(encoding="utf-8")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The folder is this run's own, and no other's; a fault of the input is found before anything is computed."""
        begun = any(self.folder.rglob("*.ckpt")) or (self.folder / "results.json").exists()
        early = isinstance(exception, EXPECTED) or not (self.folder / "config.yaml").exists()
        if trainer.is_global_zero and early and not begun:
            shutil.rmtree(self.folder, ignore_errors=True)


class ProbingCLI(LightningCLI):
    """LightningCLI with one folder per run, the best checkpoint kept, and its test after the training."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the checkpoint, configurable as any other part, and what figures look like."""
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.set_defaults({"checkpoint.monitor": "val_uas", "checkpoint.mode": "max"})
        parser.add_argument(
            "--figures.titles",
            type=bool,
            default=True,
            help="Whether figures bear their titles; results.json has them under `captions` in any case.",
        )

    def before_instantiate_classes(self) -> None:
        """Look for the checkpoint before anything is loaded or computed.

        Raises:
            RunError: there is no such file, or trained classifiers are to be trained.
        """
        path = self._get(self.config, "ckpt_path")
        if path is not None and path not in ("best", "last", "hpc", "registry") and not Path(path).exists():
            raise RunError(f"{path}: there is no such checkpoint. Training leaves them in checkpoints/ of its run.")
        model = self._get(self.config, "model")
        if model.class_path.rpartition(".")[2] == fidelity.Fidelity.__name__:
            if path is not None:
                raise RunError("Fidelity takes no --ckpt_path: --model.init_args.checkpoints '[a.ckpt, b.ckpt]'.")
            self._before_fidelity(model.init_args.checkpoints)

    def _before_fidelity(self, checkpoints: list[str] | str) -> None:
        """Take the data from the first checkpoint, where the command line names none."""
        if self.subcommand != "test":
            raise RunError(f"Fidelity tests classifiers that are trained already: test, and not {self.subcommand}.")
        if self._get(self.config, "data") is None and checkpoints:
            first = checkpoints if isinstance(checkpoints, str) else checkpoints[0]
            self.config[self.subcommand].data = data_settings(files_of([Path(first).expanduser()])[0])

    def instantiate_trainer(self, **kwargs: object) -> Trainer:
        """Put loggers, checkpoints and results into a folder of this run under `--trainer.default_root_dir`."""
        settings = self._get(self.config_init, "trainer")
        folder = run_folder(Path(settings["default_root_dir"]), type(self.model))
        if settings.get("logger") in (None, True):
            kwargs["logger"] = [CSVLogger(folder, "", ""), TensorBoardLogger(folder, "", "tensorboard")]
        self.save_config_kwargs = {"folder": folder}
        trainer: Trainer = super().instantiate_trainer(**kwargs)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, ResultWriter):
                callback.folder = folder
                callback.titles = self._get(self.config, "figures.titles")
        for checkpoint in _checkpoints(trainer):
            checkpoint.dirpath = checkpoint.dirpath or str(folder / "checkpoints")
        return trainer

    def after_fit(self) -> None:
        """Test the best checkpoint, when there is one, and something to test on."""
        test = self.datamodule.files().get("test")
        if test is None or not test.is_file():
            rank_zero_info(f"Not tested: there is no test split{'' if test is None else f' at {test}'}.")
        elif any(callback.best_model_path for callback in _checkpoints(self.trainer)):
            self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path="best")
        else:
            rank_zero_info("Not tested: nothing was validated, so that no checkpoint is the best.")


def _checkpoints(trainer: Trainer) -> list[ModelCheckpoint]:
    return [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]


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


# Lightning 2.6 walks through batches by what torch 2.13 deprecates.
warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated")


class CheckedCLI(ProbingCLI):
    """Goes as far as nothing is loaded, computed or written: options and classes are valid, the data are there."""

    def instantiate_trainer(self, **kwargs: object) -> Trainer:
        """Make a trainer that leaves no trace, once the files of the run and of its test are there.

        Raises:
            RunError: a split has no file.
        """
        files = self._get(self.config_init, "data").files()
        for split in dict.fromkeys((*STAGES[str(self.subcommand)], "test")):
            if split not in files or not files[split].is_file():
                where = f" at {files[split]}" if split in files else ""
                raise RunError(f"There is no {split} split{where}, and the run needs it.")
        self.save_config_callback = None
        trainer: Trainer = LightningCLI.instantiate_trainer(self, logger=False, callbacks=[])
        return trainer

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing."""


def check(commands: Sequence[list[str]]) -> list[str | None]:
    """What is wrong with each of these command lines; None where nothing is. A sweep asks it before its first run."""
    found: list[str | None] = []
    for args in commands:
        said = io.StringIO()
        try:
            with redirect_stderr(said), redirect_stdout(said):
                main(args, cli=CheckedCLI)
        except SystemExit:  # of the command line's parser
            found.append(said.getvalue().partition("error: ")[2].strip())
        except Exception as error:
            expected = fault(error)
            found.append(f"{type(error).__name__}: {error}" if expected is None else str(expected))
        else:
            found.append(None)
    return found


def main(args: list[str] | None = None, *, cli: type[ProbingCLI] = ProbingCLI) -> ProbingCLI:
    """Run the command line `args`, by default the program's own."""
    return cli(
        subclass_mode_model=True,
        subclass_mode_data=True,
        seed_everything_default=0,
        # An option that is cut short would be taken for another: --trainer.max_ep for --trainer.max_epochs.
        parser_kwargs={"allow_abbrev": False, **{stage: {"allow_abbrev": False} for stage in STAGES}},
        save_config_callback=RunConfig,
        trainer_defaults={
            "default_root_dir": "runs",
            "use_distributed_sampler": False,  # the datamodules share the batches themselves, each item once
            "callbacks": [ResultWriter()],
        },
        args=args,
    )


def fault(error: BaseException | None) -> BaseException | None:
    """The fault of the input behind an error: what a constructor raises comes wrapped by the command line's parser."""
    while error is not None and not isinstance(error, EXPECTED):
        error = error.__cause__ or error.__context__
    return error


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        del sys.argv[1:]
        json.dump(check(json.load(sys.stdin)), sys.stdout)
        sys.exit()
    try:
        main()
    except Exception as error:
        if (found := fault(error)) is None:
            raise
        Console(stderr=True).print(Text.assemble(("Error: ", "bold red"), str(found)), soft_wrap=True)
        sys.exit(1)
