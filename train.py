"""Run an experiment: `python train.py {fit,validate,test,predict} --config configs/….yaml`."""

import os
import sys

import processes.threads  # noqa: F401 # before torch
from processes import preemption

if __name__ == "__main__":
    preemption.install()  # torch takes seconds to load
    if sys.argv[1:] == ["--check"]:  # what libraries print is no answer
        answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

# isort: split
import io
import json
import logging
import platform
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from importlib import import_module
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar, Literal

from jsonargparse import Namespace
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint, ProgressBar
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.strategies.launchers import _SubprocessScriptLauncher
from pytorch_lightning.utilities import rank_zero_info, rank_zero_only
from pytorch_lightning.utilities.model_helpers import is_overridden
from rich.console import Console
from torch.multiprocessing.spawn import ProcessRaisedException

import analysis  # noqa: F401 # LightningCLI finds by its short name whatever is imported
import datamodules  # noqa: F401
import fidelity  # noqa: F401
import heads  # noqa: F401
import models  # noqa: F401
import probes  # noqa: F401
from datamodules.corpus import CorpusDataModule
from fidelity import Fidelity
from processes.ranks import LostRank, run_name
from reports import ResultWriter
from reports.writer import source_digest
from results.command import print_fault
from results.errors import UserError, counted
from results.files import is_full
from training.config import leaves
from training.lifecycle import TrainedModule, configured_model, read_checkpoint
from training.nested import quiet
from training.parsing import (
    Parser,
    is_told_by_the_first,
    only_known_classes,
    refuse_permissions,
    trusted_modules,
    typed_options,
    without_options_of,
)
from training.preflight import Report, inspect
from training.progress import ProgressLines
from training.resume import (
    ContinuedCSVLogger,
    Resume,
    RunCheckpoints,
    RunInUse,
    RunState,
    ignore_signals,
    is_of_another,
    remove_run,
    run_digest,
)


class RunError(UserError):
    """A command line that cannot be run."""


STEPS = {
    "fit": ("training_step",),
    "validate": ("validation_step",),
    "test": ("test_step",),
    "predict": ("predict_step", "forward"),
}
"""A model can run a stage if it overrides one of these methods."""

NEEDS_ABOVE_ZERO = {
    "fit": ("max_epochs", "max_steps", "limit_train_batches"),
    "validate": ("limit_val_batches",),
    "test": ("limit_test_batches",),
    "predict": ("limit_predict_batches",),
}
"""Options of the trainer that leave a stage nothing to do where they are 0."""

KEYWORDS = ("last", "registry")
"""Values of `--ckpt_path` that Lightning understands and that are no file."""


class RunConfig(SaveConfigCallback):
    """Writes `config.yaml` into the folder of the run; removes the folder of a run that fails before it computes."""

    def __init__(self, parser: LightningArgumentParser, config: Namespace) -> None:
        super().__init__(parser, config, save_to_log_dir=False)
        self.folder: Path | None = None  # of the process that made it

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write the config; Lightning calls this on the first process, once the data are set up."""
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            # jsonargparse 4.49 deprecates what Lightning 2.6 uses as well; without it `encoder: null` would be lost.
            warnings.filterwarnings("ignore", message=r"\s*skip_none .* deprecated")
            self.parser.save(self.config, self.folder / "config.yaml", skip_none=False, overwrite=True)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what is trained, on what, and where the run is written."""
        if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= trainer.current_epoch:
            return  # nothing is
        count = sum(parameter.numel() for parameter in pl_module.parameters() if parameter.requires_grad)
        on = f"on {trainer.world_size} × {trainer.strategy.root_device.type}"
        rank_zero_info(f"Training {type(pl_module).__name__}, {count:,} parameters, {on}, in {self.folder}")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Store the text of `config.yaml` in the checkpoint, so that it can be used without its folder."""
        config = None if self.folder is None else self.folder / "config.yaml"
        if config is not None and config.is_file():
            checkpoint["config"] = config.read_text(encoding="utf-8")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove the folder that this process made, if nothing was computed yet."""
        if self.folder is None or not trainer.is_global_zero:  # a spawned process has a copy of what the first one knew
            return
        begun = any(self.folder.rglob("*.ckpt")) or (self.folder / "results.json").exists()
        early = (
            isinstance(exception, UserError | MisconfigurationException) or not (self.folder / "config.yaml").exists()
        )
        if early and not begun and not is_full(exception):
            remove_run(self.folder)


class ProbingCLI(LightningCLI):
    """LightningCLI with one folder for each run, which keeps the best checkpoint and tests it after the training."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of the checkpoint callback and of the figures."""
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.set_defaults({"checkpoint.monitor": "val_uas", "checkpoint.mode": "max"})
        parser.add_argument(
            "--figures.titles",
            type=bool,
            default=True,
            help="Whether figures bear their titles; results.json has them under `captions` in any case.",
        )
        parser.add_argument(
            "--figures.draw",
            type=bool,
            default=True,
            help="Whether figures are drawn; results.json and the tables are the same without.",
        )
        parser.add_argument(
            "--quiet",
            action="store_true",
            help="Print the scores that answer the question, the folder, and warnings: no progress and no tables.",
        )
        parser.add_argument(
            "--resume",
            type=Literal["auto", "never"],
            default="auto",
            help="Whether to continue an unfinished run of the same command, or to begin another one.",
        )
        parser.add_argument(
            "--trust",
            type=list[str] | str | None,
            default=None,
            help="Modules of your own whose classes configs and checkpoints may name.",
        )
        parser.add_argument(
            "--preflight", action="store_true", help="Run nothing: say whether the run can be made, and what it needs."
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The commands, each with what is no option of it. Of a checkpoint only weights and plain values are read."""
        return {name: {*skipped, "weights_only"} for name, skipped in LightningCLI.subcommands().items()}

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:  # noqa: ANN401 # the words, if any
        """Parse the command line; what it says of data whose class it does not name is of those of a checkpoint.

        Raises:
            RunError: a module of --trust is not there.
            SettingsError: a file permits what only the command line can permit.
        """
        words = sys.argv[1:] if args is None else args
        for module in (
            str(leaf) for name, value in typed_options(words) if name == "trust" for _, leaf in leaves(value)
        ):
            try:
                import_module(module)
            except ImportError as error:
                raise RunError(f"--trust {module}: the module cannot be imported ({error}).") from error
        rest = without_options_of("data", words)
        names_data = any(word.partition("=")[0] == "--data" for word in words)
        if words[:1] == ["test"] and rest != words and not names_data:
            self._take_data_of_checkpoint(parser, rest)
        try:
            self._parse(parser, args)
        finally:
            self._subcommand_parsers["test"].set_defaults({"data": None})  # the parser may serve another command line
        refuse_permissions(self.config[self.config.subcommand], words)

    def _parse(self, parser: LightningArgumentParser, args: Any) -> None:  # noqa: ANN401 # see LightningCLI
        super().parse_arguments(parser, args)

    def _take_data_of_checkpoint(self, parser: LightningArgumentParser, words: list[str]) -> None:
        """Make the data that a checkpoint was trained on the default, where a command line without --data tests one."""
        Parser.silent = True
        try:
            with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
                self._parse(parser, words)
        except SystemExit:
            return  # the whole line gives what is missing here, or has the same fault
        finally:
            Parser.silent = False
        settings = self.config[self.config.subcommand]
        if settings.data is None and (data := _data_of(settings.model)) is not None:
            self._subcommand_parsers["test"].set_defaults({"data": data.as_dict()})

    def before_instantiate_classes(self) -> None:
        """Check `--ckpt_path`, and that there is something to do, before anything is loaded or computed.

        Raises:
            RunError: there is no such file, or an option of the trainer leaves nothing to do.
        """
        trainer = self._get(self.config, "trainer")
        if idle := next((name for name in NEEDS_ABOVE_ZERO[str(self.subcommand)] if trainer[name] == 0), None):
            raise RunError(f"--trainer.{idle} 0: nothing would be done. Give 1 or more, or leave it out.")
        path = self._get(self.config, "ckpt_path")
        if path == "best":
            raise RunError("--ckpt_path best: a new run has none yet. Name a file in checkpoints/ of the run that has.")
        if path is not None and path not in KEYWORDS and not Path(path).is_file():
            raise RunError(f"{path}: there is no such checkpoint. Training leaves them in checkpoints/ of its run.")
        model = self._get(self.config, "model")
        if self.subcommand == "test" and self._get(self.config, "data") is None:
            self.config[self.subcommand].data = _data_of(model)

    def _parse_ckpt_path(self) -> None:
        """Do nothing: Lightning would silently replace the hyperparameters of the config by those of the checkpoint."""

    def _check_model(self) -> None:
        """Refuse a model that cannot run this stage, one that was not trained, and a checkpoint of another model.

        Raises:
            RunError: see above.
            TrainingError: the model was not trained; the checkpoint is damaged, or no checkpoint.
        """
        name, path = type(self.model).__name__, self._get(self.config, "ckpt_path")
        able = [stage for stage, steps in STEPS.items() if any(is_overridden(step, self.model) for step in steps)]
        if self.subcommand not in able:
            does = "trains nothing" if self.subcommand == "fit" else f"cannot {self.subcommand}"
            raise RunError(f"{name} {does}. Run it with `python train.py {' or '.join(able)}`.")
        if path is not None and "fit" not in able:
            raise RunError(f"{name} trains nothing, and takes no --ckpt_path: leave it out.")
        if self._checkpoint is not None:
            self._check_checkpoint(self._checkpoint)
        needs_training = isinstance(self.model, TrainedModule) and not self.model.may_come_trained
        if path is None and self.subcommand != "fit" and needs_training:
            self.model.refuse_untrained()  # before hours of extraction

    @property
    def _checkpoint(self) -> Path | None:
        """The file that `--ckpt_path` names, if it names one."""
        path = self._get(self.config, "ckpt_path")
        return None if path is None or path in KEYWORDS else Path(path)

    def _check_checkpoint(self, path: Path) -> None:
        self._dump_config()
        content = read_checkpoint(path)
        trained, given = configured_model(path, content), self.config_dump["model"]
        kind, own = (model.get("class_path", "").rpartition(".")[2] for model in (trained, given))
        if kind and kind != own:
            raise RunError(
                f"{path}: this is a checkpoint of {kind}, and --model is {own}. Give the --config of its run, which "
                f"lies beside checkpoints/."
            )
        if self.subcommand != "fit":
            return  # what the module itself checks suffices to read it, not to go on with its training
        options, now = dict(leaves(trained.get("init_args", {}))), dict(leaves(given.get("init_args", {})))
        if name := next((name for name in options.keys() & now.keys() if options[name] != now[name]), None):
            raise RunError(
                f"{path}: the checkpoint was trained with --model.init_args.{name} {options[name]}, which is "
                f"{now[name]} here. Give that of the checkpoint, or train anew without --ckpt_path."
            )
        epochs = self._get(self.config_init, "trainer")["max_epochs"]
        if epochs is not None and 0 <= epochs <= content["epoch"] + 1:
            seen = counted(content["epoch"] + 1, "epoch")
            rank_zero_info(f"{path} has seen {seen}, and --trainer.max_epochs is {epochs}: it is tested, not trained.")

    def instantiate_trainer(self, **kwargs: object) -> Trainer:
        """Put loggers, checkpoints and results into a folder of this run under `--trainer.default_root_dir`.

        Raises:
            RunError: the trainer cannot be made as asked, or SLURM started another number of processes than it wants,
                or the folder cannot be made; see `_check_model` and `_preflight` too.
        """
        settings = self._get(self.config_init, "trainer")
        if self._get(self.config, "preflight"):
            return self._preflight(Path(settings["default_root_dir"]))
        self._check_model()
        own_loggers = settings.get("logger") in (None, True)
        # The loggers come later: the trainer knows which process is the first, and that one makes their folder.
        trainer = self._trainer(**(kwargs | {"logger": False} if own_loggers else kwargs))
        check_tasks(trainer)
        ignore_signals(trainer)
        self._state = self._run_state(trainer, Path(settings["default_root_dir"]) / type(self.model).__name__)
        folder = self._state.run
        # On SLURM Lightning takes up any `hpc_ckpt_*.ckpt` that it finds there, of whatever run.
        trainer._default_root_dir = str(folder)  # type: ignore[attr-defined]
        trainer.strategy.checkpoint_io = RunCheckpoints(self._state)
        trainer.callbacks.append(Resume(self._state))  # type: ignore[attr-defined]
        if trainer.progress_bar_callback is None and not isinstance(self.model, Fidelity):  # it counts finer itself
            trainer.callbacks.append(ProgressLines())  # type: ignore[attr-defined]
        if own_loggers and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            # The progress bar shows the version of a logger.
            log = ContinuedCSVLogger(self._state)
            trainer.loggers = [log, TensorBoardLogger(folder / "tensorboard", "", "")]
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, RunConfig) and trainer.is_global_zero:
                callback.folder = folder
            if isinstance(callback, ResultWriter):
                callback.folder = folder
                callback.titles = self._get(self.config, "figures.titles")
                callback.draw, callback.quiet = (self._get(self.config, name) for name in ("figures.draw", "quiet"))
        for checkpoint in _checkpoints(trainer):
            checkpoint.dirpath = checkpoint.dirpath or str(folder / "checkpoints")
        return trainer

    def _preflight(self, runs: Path) -> Trainer:
        """Say whether the run can be made, and what it needs: a table, printed by the first of the tasks.

        Raises:
            RunError: all that stands in its way.
        """
        self.save_config_callback = None
        if not isinstance(self.datamodule, CorpusDataModule):
            raise RunError(
                f"{type(self.datamodule).__name__} has no files to look for: give --data one of datamodules/."
            )
        report, trainer, tasks = Report(), None, started_tasks()
        with report.part("model") as found:
            self._check_model()
            found.append(type(self.model).__name__)
        with report.part("devices") as found:
            trainer = self._trainer(logger=False, callbacks=[])
            found.append(
                f"{trainer.num_devices} × {trainer.strategy.root_device.type} on {counted(trainer.num_nodes, 'node')}"
            )
            check_tasks(trainer)
        if trainer is not None and not report.faults and (unfinished := self._requeued(trainer, runs)):
            rank_zero_info(f"This job was requeued, and goes on with the run in {unfinished.run}, which was checked.")
            return trainer
        inspect(report, self.model, self.datamodule, trainer, str(self.subcommand), tasks, runs, self._checkpoint)
        if tasks[0] == 0:
            Console().print(report.table(f"{self.subcommand}: preflight"))
        if report.faults or trainer is None:
            raise RunError("\n".join(report.faults) or "The first task says what is wrong.")
        return trainer

    def _requeued(self, trainer: Trainer, runs: Path) -> RunState | None:
        """The state of the run that a job of SLURM had begun before it was requeued, if it had."""
        if os.environ.get("SLURM_RESTART_COUNT", "0") == "0" or self._get(self.config, "resume") != "auto":
            return None
        try:
            return RunState.find(runs / type(self.model).__name__, self._digest(trainer))
        except (UserError, OSError):  # the check that follows tells what is wrong with the files
            return None

    def _run_state(self, trainer: Trainer, parent: Path) -> RunState:
        """Where the run keeps its state: in the folder of an unfinished run of the same command, or in a new one.

        Raises:
            RunError: another process is at this run, or no folder can be made.
        """
        digest = self._digest(trainer)
        launcher = trainer.strategy.launcher
        pass_on = launcher.kill if isinstance(launcher, _SubprocessScriptLauncher) else None
        # The name is of this run alone: one with the same command may go on beside it.
        os.environ.setdefault("PROBING_RUN", f"{platform.node()}-{os.getpid()}")
        preemption.share(parent / f".stop-{digest}.{run_name()}" if trainer.world_size > 1 else None, pass_on)
        found = RunState.find(parent, digest) if self._get(self.config, "resume") == "auto" else None
        if not trainer.is_global_zero:
            return found or RunState(parent / f"state-{digest}")
        state = found or RunState(new_folder(parent) / f"state-{digest}")
        try:
            if found is None:
                state.folder.mkdir()
            self._lock = state.lock()
            if found is not None:
                rank_zero_info(f"Continues the unfinished run in {state.run}; --resume never begins another one.")
                state.tidy()
        except RunInUse:
            raise RunError(
                f"{state.run}: another process is at this run. Wait for it, or begin one beside it with --resume never."
            ) from None
        except OSError as error:
            if found is not None and isinstance(error, FileNotFoundError):  # the other process has just ended
                return self._run_state(trainer, parent)
            raise RunError(
                f"{state.folder}: the state of the run cannot be read or written there ({error.strerror}). What is "
                f"kept there stays; give the same command again, once that is mended."
            ) from error
        return state

    def _digest(self, trainer: Trainer) -> str:
        return run_digest(str(self.subcommand), {**self.config_dump, "sources": self._sources()}, trainer.world_size)

    def _sources(self) -> list[object]:
        """What a run depends on beside its options: this program, and the files of the data as they are now."""
        data = self._get(self.config_init, "data")
        files = data.files() if hasattr(data, "files") else {}
        sizes = [[name, path.stat().st_size] for name, path in sorted(files.items()) if path.is_file()]
        return [source_digest(), sizes]

    def fit(self, **options: Any) -> None:  # noqa: ANN401 # those of Trainer.fit
        """Train, or continue the training of an unfinished run; a training that has ended is not repeated."""
        if self._state.left.ended is not None:
            self.datamodule.trainer = self.trainer
            self.datamodule.setup("fit")  # the audit of the test counts the training split too
            return
        if self._state.left.training is not None:
            options["ckpt_path"] = self._state.left.training
        self.trainer.fit(**options)

    def _run_subcommand(self, subcommand: str) -> None:
        """Run it, and forget the state of the run at its end.

        Raises:
            RunError: what the trainer finds only now, such as a fraction of batches that leaves none.
        """
        if self._get(self.config, "preflight"):
            return
        try:
            if self.trainer.world_size == 1:  # otherwise another process may wait for this one to get in touch
                preemption.check()
            with quiet("pytorch_lightning") if self._get(self.config, "quiet") else nullcontext():
                super()._run_subcommand(subcommand)
            if self.trainer.is_global_zero:
                self._state.clear()
                name = self._state.folder.name.replace("state-", ".stop-")
                for marker in self._state.run.parent.glob(f"{name}.*"):  # those of earlier attempts too
                    marker.unlink(missing_ok=True)
        except MisconfigurationException as error:
            raise RunError(_trainer_fault("auto", error)) from error
        except OSError as error:
            if not is_full(error):
                raise
            raise RunError(_full(self._state.run, error)) from error
        finally:
            if self.trainer.is_global_zero:
                os.close(self._lock)

    def _trainer(self, **kwargs: object) -> Trainer:
        if SLURMEnvironment.detect() and "SLURM_PROCID" not in os.environ:
            raise RunError("This is the shell of a SLURM allocation, which has no task: start the command with srun.")
        settings = self._get(self.config_init, "trainer")
        if self._get(self.config, "quiet") or not Console().is_terminal:
            kwargs["enable_progress_bar"] = False
        if {**settings, **kwargs}["enable_progress_bar"] is False:  # Lightning refuses bars that are configured then
            callbacks = settings["callbacks"] or []
            own = callbacks if isinstance(callbacks, list) else [callbacks]
            kwargs.setdefault("callbacks", [callback for callback in own if not isinstance(callback, ProgressBar)])
        try:
            trainer: Trainer = super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, ImportError, RuntimeError, TypeError, ValueError) as error:
            raise RunError(_trainer_fault(settings["accelerator"], error)) from error
        return trainer

    def after_fit(self) -> None:
        """Test the best checkpoint, when there is one, and something to test on."""
        if (ended := self._state.left.ended) is not None:
            best = str(self._state.run / ended["best"]) if ended["best"] else ""
            self.model.epochs_run = ended["epochs_run"]
        else:
            best = next((one.best_model_path for one in _checkpoints(self.trainer) if one.best_model_path), "")
            if self.trainer.is_global_zero:
                self._state.keep_trained(best, self.model.epochs_run)
        test = self.datamodule.files().get("test")
        if test is None or not test.is_file():
            rank_zero_info(f"Not tested: there is no test split{'' if test is None else f' at {test}'}.")
        elif best:
            rank_zero_info(f"Testing the best checkpoint, {Path(best).name}")
            self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path=best)
        else:
            rank_zero_info("Not tested: nothing was validated, so that no checkpoint is the best.")


def _data_of(model: Namespace) -> Namespace | None:
    """Settings of the data that a model is tested on by itself: what tests trained models takes them from these."""
    module, _, name = model.class_path.rpartition(".")
    data_of: Callable[[Namespace], Namespace | None] | None
    data_of = getattr(getattr(import_module(module), name), "data_of", None)
    return None if data_of is None else data_of(model.init_args)


def _checkpoints(trainer: Trainer) -> list[ModelCheckpoint]:
    return [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]


def _full(run: Path, error: OSError) -> str:
    """The message of a run that does not fit on the disk."""
    written = (
        "The scores are written: only figures or the page are missing. " if (run / "results.json").exists() else ""
    )
    return (
        f"{error.filename or run}: {error.strerror}. {written}Free some space, and give the same command again: it "
        f"goes on in {run}, from what is kept there."
    )


def _trainer_fault(accelerator: object, error: Exception) -> str:
    """The message of Lightning, with a remedy if an accelerator was asked for."""
    cpu = "" if accelerator in ("auto", "cpu") else f" Leave out --trainer.accelerator {accelerator}, or give cpu."
    return f"The options of --trainer cannot be met: {' '.join(str(error).split()).rstrip('.!')}.{cpu}"


def started_tasks() -> tuple[int, int]:
    """Number of this process, from 0, and of all that SLURM or torchrun has started for the run."""
    names = ("RANK", "WORLD_SIZE") if TorchElasticEnvironment.detect() else ("SLURM_PROCID", "SLURM_NTASKS")
    detected = TorchElasticEnvironment.detect() or (SLURMEnvironment.detect() and "SLURM_PROCID" in os.environ)
    rank, world = (int(os.environ[name]) for name in names) if detected else (0, 1)
    return rank, world


def check_tasks(trainer: Trainer) -> None:
    """Refuse a SLURM step with other than one task for each device.

    Its tasks would each run the whole experiment, or wait for tasks that never start.

    Raises:
        RunError: SLURM started more or fewer tasks than the trainer has devices on all its nodes.
    """
    if TorchElasticEnvironment.detect():  # it goes first in Lightning as well
        return
    if not SLURMEnvironment.detect():
        # Lightning takes no notice of SLURM in a job that is named as `salloc` names it; only srun sets this number.
        if (tasks := int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))) > 1:
            raise RunError(
                f"SLURM has {tasks} tasks, and each would be the whole run: the job is named "
                f"{SLURMEnvironment.job_name()}, and Lightning takes no notice of SLURM in such a job. Give srun "
                f"--ntasks 1, or salloc another --job-name."
            )
        return
    tasks, nodes = int(os.environ["SLURM_NTASKS"]), int(os.environ.get("SLURM_NNODES", "1"))
    if tasks != trainer.num_devices * trainer.num_nodes:
        options = f"--trainer.devices {tasks // nodes} --trainer.num_nodes {nodes}, or "
        raise RunError(
            f"SLURM has {counted(tasks, 'task')}, and the trainer wants {trainer.num_devices * trainer.num_nodes} "
            f"(devices × nodes: {trainer.num_devices} × {trainer.num_nodes}). Give "
            f"{'' if tasks % nodes else options}srun --nodes {trainer.num_nodes} --ntasks-per-node "
            f"{trainer.num_devices}."
        )


def new_folder(parent: Path) -> Path:
    """Make the folder `<parent>/version_<n>` of a new run.

    Raises:
        RunError: it cannot be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in count():
            folder = parent / f"version_{number}"
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            break
    except OSError as error:
        raise RunError(
            f"{parent}: no folder can be made there for the run ({error.strerror}). Give --trainer.default_root_dir a "
            f"folder that can be written."
        ) from error
    return folder


# Lightning 2.6 walks through batches by what torch 2.13 deprecates.
warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated")
# A run has a folder of its own, whatever checkpoint it begins with.
warnings.filterwarnings("ignore", message="The dirpath has changed")
# On the login node of a cluster, of every run that is meant for that machine alone.
warnings.filterwarnings("ignore", message="The `srun` command is available")
# The only values that are logged are those of whole epochs.
warnings.filterwarnings("ignore", message="The number of training batches .* logging interval")
# That of a run that is continued.
warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")
# What is logged is of all devices already.
warnings.filterwarnings("ignore", message="It is recommended to use .* when logging on epoch level in distributed")
# What Lightning itself says below warnings, of hardware, of files that it reads, and in advertisements. Our own lines
# go through the same logger.
for _name in ("pytorch_lightning.utilities.rank_zero", "lightning_fabric.utilities.seed"):
    logging.getLogger(_name).addFilter(
        lambda record: (
            record.levelno > logging.INFO
            or not {"pytorch_lightning", "lightning_fabric"}.intersection(Path(record.pathname).parts)
        )
    )


class CheckedCLI(ProbingCLI):
    """Checks that options and classes are valid and that the data exist; loads and computes nothing.

    Nothing is written either, except the sample corpus into the cache. Those of one process share the parser and the
    trainers, whose making takes longer than the rest.
    """

    _parsers: ClassVar[dict[str, Any]] = {}
    _trainers: ClassVar[dict[str, Trainer]] = {}

    def setup_parser(
        self, add_subcommands: bool, main_kwargs: dict[str, Any], subparser_kwargs: dict[str, Any]
    ) -> None:
        """Take the parser of the command lines before this one."""
        if not self._parsers:
            super().setup_parser(add_subcommands, main_kwargs, subparser_kwargs)
            self._parsers.update(vars(self))
        vars(self).update(self._parsers)

    def _parse(self, parser: LightningArgumentParser, args: Any) -> None:  # noqa: ANN401 # see LightningCLI
        """Parse by the parser of the command alone: that of all commands checks every value three times."""
        command, *options = args
        self.config = Namespace(subcommand=command, **{command: self._parser(command).parse_args(options)})  # type: ignore[no-untyped-call]

    def _add_instantiators(self) -> None:
        """Do nothing: they note the options in objects, for checkpoints."""

    def instantiate_trainer(self, **kwargs: object) -> Trainer:
        """Make a trainer that writes nothing, once the files of the run and of its test exist.

        Raises:
            RunError: the trainer cannot be made as asked; see `_check_model` too.
            CorpusError: the data lack a split, or its file is not there.
        """
        self._check_model()
        for fault in self.datamodule.absent((str(self.subcommand), "test")):
            raise fault
        self.save_config_callback = None
        asked = repr(self._get(self.config, "trainer"))
        if asked not in self._trainers:
            self._trainers[asked] = self._trainer(logger=False, callbacks=[])
        return self._trainers[asked]

    def _run_subcommand(self, subcommand: str) -> None:
        """Do not run."""


def check(args: list[str]) -> str | None:
    """Return the fault of a command line, None if it has none, without running it."""
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(said):
            main(args, cli=CheckedCLI)
    except SystemExit:  # of the command line's parser
        return said.getvalue().partition("error: ")[2].strip()
    except Exception as error:
        expected = fault(error)
        return f"{type(error).__name__}: {error}" if expected is None else str(expected)
    return None


def check_all(commands: Iterable[list[str]]) -> Iterator[str | None]:
    """Return the fault of each command line; a sweep asks for them before its first run. All cores take part."""
    # Forked, they share what took seconds to import. Parsing holds the lock of the interpreter: threads gain nothing.
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1), get_context("fork")) as pool:
        yield from pool.map(check, commands, chunksize=4)


def main(args: list[str] | None = None, *, cli: type[ProbingCLI] = ProbingCLI) -> ProbingCLI:
    """Run the command line `args`, by default the program's own."""
    with only_known_classes(trusted_modules(sys.argv[1:] if args is None else args), how="add --trust {}"):
        return cli(
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            parser_class=Parser,
            save_config_callback=RunConfig,
            trainer_defaults={
                "default_root_dir": "runs",
                "enable_model_summary": False,  # a table of internal modules; RunConfig counts the parameters
                "use_distributed_sampler": False,  # the datamodules share the batches themselves, each item once
                "callbacks": [ResultWriter()],
            },
            args=args,
        )


def fault(error: BaseException | None) -> BaseException | None:
    """What a user is told of an error without a traceback; the command line's parser wraps what constructors raise."""
    while error is not None and not isinstance(error, UserError | LostRank):
        if is_of_another(error):
            return LostRank(
                f"Another process of the run has ended or does not answer: look at its output. The same command goes "
                f"on from what is kept. ({_said_by(error)})"
            )
        error = error.__cause__  # not __context__: a bug that shows while a fault is handled has its traceback
    return error


def _said_by(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1 if isinstance(error, ProcessRaisedException) else 0]  # the last line of the traceback


def run(args: list[str] | None = None) -> int:
    """Run a command line and return its exit code; a fault of the input is printed in one line, without a traceback."""
    try:
        main(args)
    except Exception as error:
        found = fault(error)
        # Where one process has stopped for a signal, those that wait for it in a collective lose their connection.
        if isinstance(found, LostRank) and (number := preemption.requested()) is not None:
            return _interrupted(number)
        if found is None:
            raise
        if not is_told_by_the_first():
            print_fault(found)
        return 1
    except preemption.Interrupted as interrupted:
        return _interrupted(interrupted.signal)
    return 0


def _interrupted(number: signal.Signals) -> int:
    if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
        return 0  # any other code would have Lightning kill the first process, which is at its end too
    by_hand = number == signal.SIGINT  # of a terminal, which may itself be a job
    said = None if by_hand else preemption.requeue()
    print(said or f"Interrupted by {number.name}.", file=sys.stderr)
    return 128 + number


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        del sys.argv[1:]
        for found in check_all(json.load(sys.stdin)):
            print(json.dumps(found), file=answers, flush=True)
        sys.exit()
    code = run()
    preemption.ignore()
    sys.exit(code)
