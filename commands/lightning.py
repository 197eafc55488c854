"""Command line of fit, validate, test and predict: a LightningCLI that makes a folder for each run."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Literal

from jsonargparse import Namespace
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.utilities.model_helpers import is_overridden
from rich.console import Console

from attention_probing.commands.command_line import CommandLine
from attention_probing.commands.faults import find_user_error, full_disk, not_installed, trainer_fault
from attention_probing.commands.lightning_private import PublicCLI
from attention_probing.commands.measure import QUIET, TRUST, Inspect
from attention_probing.commands.parser import Parser
from attention_probing.commands.state import RunState, open_state, run_digest, sources_of
from attention_probing.commands.tasks import check_tasks, refuse_shell
from attention_probing.commands.training import (
    MetricsFile,
    Resume,
    RunCheckpoints,
    RunConfig,
    best_checkpoint,
    model_checkpoints,
)
from attention_probing.datamodules.corpus import CorpusDataModule
from attention_probing.models import TrainedModule, TrainingError, ignore_signals, refuse_untrained
from attention_probing.models.checkpoints import (
    CHECKPOINTS,
    checkpoint_file,
    configured_model,
    read_checkpoint,
    warn_of_interrupted_training,
)
from attention_probing.models.progress import ProgressLines
from attention_probing.results.errors import UserError, lacks_memory
from attention_probing.results.figure_files import FigureFiles
from attention_probing.results.files import is_full
from attention_probing.results.progress import inform, quiet
from attention_probing.results.settings import in_a_line, named_leaves

METHODS = {"fit": "training_step", "validate": "validation_step", "test": "test_step", "predict": "predict_step"}
"""Method by command; a model supports a command if it overrides the method."""

KEYWORDS = ("best", "last", "registry")
"""Values of `--ckpt_path` that Lightning resolves itself."""


class LightningParser(Parser, LightningArgumentParser):
    """Parser of the options of a Trainer, a LightningModule and a LightningDataModule."""


class ProbingCLI(PublicCLI):
    """Command line of the program: a LightningCLI that makes a folder for each run.

    After `fit`, it tests the best checkpoint. Further keyword arguments are options of LightningCLI.

    Args:
        line: The command line.
        writer: Class of the callback that writes the results; None to write no results.
    """

    def __init__(
        self,
        line: CommandLine,
        writer: Callable[..., Callback] | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        self.line = line
        self.writer = writer
        super().__init__(
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            parser_class=LightningParser,
            save_config_callback=None,  # RunConfig writes it into the folder of the run
            trainer_defaults={
                "default_root_dir": "runs",
                "enable_model_summary": False,  # a table of internal modules; RunConfig logs the number of parameters
                "use_distributed_sampler": False,  # the datamodules share the batches, each item once
            },
            **options,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of `ModelCheckpoint` (`--checkpoint.*`), and of the run, such as `--resume` and `--trust`."""
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.set_defaults(
            {
                "checkpoint.monitor": "val_uas",
                "checkpoint.mode": "max",
                "checkpoint.enable_version_counter": False,  # an epoch that is repeated writes the same file again
            }
        )
        parser.add_class_arguments(FigureFiles, "figures")
        parser.add_argument("--quiet", action="store_true", help=QUIET)
        use = "Continue an unfinished run of the same command (auto), or begin a new run (never)."
        parser.add_argument("--resume", type=Literal["auto", "never"], default="auto", help=use)
        parser.add_argument("--trust", type=list[str] | str | None, default=None, help=TRUST)

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return, for each command, the arguments of the `Trainer` method that are not command-line options."""
        arguments = LightningCLI.subcommands()
        for names in arguments.values():
            names.add("weights_only")
        return arguments

    def parse_arguments(self, parser: LightningArgumentParser, args: object) -> None:
        """Parse the command line with the parser of its command alone: that of all commands checks each value thrice.

        Raises:
            SettingsError: A config file grants a permission that only the command line may grant.
        """
        command = self.line.command
        of_command = self.parser_of(command)
        settings = of_command.parse_line(self.line)
        self.attach(of_command)
        self.config = Namespace(subcommand=command, **{command: settings})  # type: ignore[no-untyped-call]

    def before_instantiate_classes(self) -> None:
        """Check `--ckpt_path` before anything is loaded; a folder becomes its only checkpoint.

        Raises:
            UserError: The file does not exist, the folder has no checkpoint or several, or it is `best`.
        """
        path = self.settings.ckpt_path
        self.checkpoint = None
        if path is not None and path not in KEYWORDS:
            self.checkpoint = checkpoint_file(path)
            self.settings.ckpt_path = str(self.checkpoint)  # Lightning does not read a folder
        if path == "best":
            raise UserError("--ckpt_path best: a new run has no checkpoint yet. Name a file in checkpoints/ of a run.")

    def check_model(self) -> None:
        """Check that the model supports the command, and that it fits the checkpoint of `--ckpt_path`.

        Without `--ckpt_path`, for commands other than `fit`, also check that a model that must be trained first
        has been trained.

        Raises:
            UserError: The model does not support the command, or the checkpoint is of another model.
            TrainingError: The model was not trained, or the file of `--ckpt_path` is damaged or not a
                checkpoint of a run.
        """
        commands = [command for command, step in METHODS.items() if is_overridden(step, self.model)]
        if self.subcommand not in commands:
            names = " or ".join(f"`probing {command}`" for command in commands)
            raise UserError(f"{type(self.model).__name__} cannot {self.subcommand}. Run it with {names}.")
        if self.checkpoint is not None:
            check_checkpoint(self.checkpoint, self.plain_settings["model"], str(self.subcommand))
        needs_training = isinstance(self.model, TrainedModule) and not self.model.may_come_trained
        if needs_training and self.settings.ckpt_path is None and self.subcommand != "fit":
            refuse_untrained(self.model)  # before hours of extraction

    def instantiate_classes(self) -> None:
        """Make the objects of the settings.

        Raises:
            UserError: A class of the settings, such as a logger, needs a package that is not installed.
        """
        try:
            super().instantiate_classes()
        except (ImportError, ValueError) as error:
            message = not_installed(error)
            if message is None:
                raise
            raise UserError(message) from error

    def instantiate_trainer(self, **kwargs: object) -> Trainer:
        """Make the trainer; its logs, checkpoints and results go to the folder of the run.

        The folder lies below `--trainer.default_root_dir`. It is new unless the command continues an unfinished
        run.

        Raises:
            UserError: The trainer cannot be made from its options, SLURM started a wrong number of tasks, or the
                folder cannot be made; see also `check_model`.
        """
        self.check_model()
        settings = self.objects.trainer
        logs_by_default = settings.get("logger") in (None, True)
        if logs_by_default:
            kwargs["logger"] = False  # added below: the trainer knows the rank, and rank 0 makes their folder
        parent = Path(settings["default_root_dir"]) / type(self.model).__name__
        # Lightning looks there for a checkpoint that SLURM would continue; it is to find none of other programs.
        kwargs["default_root_dir"] = str(parent)
        trainer = self.make_trainer(**kwargs)
        check_tasks(trainer.num_devices, trainer.num_nodes)
        ignore_signals(trainer)
        self.state = self._open_state(trainer, parent)
        folder = self.state.run
        self.checkpoints = RunCheckpoints()
        trainer.strategy.checkpoint_io = self.checkpoints
        for checkpoint in model_checkpoints(trainer):
            checkpoint.dirpath = checkpoint.dirpath or str(folder / CHECKPOINTS)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            parser = self.parser_of(str(self.subcommand))
            callbacks.append(RunConfig(folder, parser, self.settings, self.checkpoints))
            if logs_by_default:
                trainer.loggers = [MetricsFile(self.state.log), TensorBoardLogger(folder / "tensorboard", "", "")]
        callbacks.append(Resume(self.state, self.checkpoints))
        if trainer.progress_bar_callback is None:
            callbacks.append(ProgressLines())
        if self.writer is not None:
            callbacks.insert(0, self.writer(folder=folder, quiet=self.settings.quiet, figures=self.objects.figures))
        return trainer

    def _open_state(self, trainer: Trainer, parent: Path) -> RunState:
        """Return the state of an unfinished run of the same command, or of a new run; rank 0 locks it."""
        digest = self._digest(trainer)
        resume = self.settings.resume == "auto"
        if trainer.is_global_zero:
            state, self._lock = open_state(parent, digest, resume)
            return state
        unfinished = None
        if resume:
            unfinished = RunState.find(parent, digest)
        return unfinished or RunState(parent / f"state-{digest}")

    def _digest(self, trainer: Trainer) -> str:
        """Return the digest of the run's options, of this program, and of the data files."""
        options = dict(self.plain_settings)
        options["sources"] = sources_of(self.datamodule)
        return run_digest(str(self.subcommand), options, trainer.world_size)

    def make_trainer(self, **kwargs: object) -> Trainer:
        """Make the trainer, without a progress bar if there is no terminal.

        Raises:
            UserError: The trainer cannot be made from its options.
        """
        refuse_shell()
        if self.settings.quiet or not Console().is_terminal:
            kwargs["enable_progress_bar"] = False
        try:
            trainer: Trainer = super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, ImportError, RuntimeError, TypeError, ValueError) as error:
            raise trainer_fault(error) from error
        return trainer

    def run_command(self) -> None:
        """Run the command, and delete the saved state of the run if the command ends without an error.

        Raises:
            UserError: The disk is full, or the trainer rejects an option that it checks only when it runs, for
                example a fraction of batches that selects none.
        """
        try:
            with ExitStack() as stack:
                if self.settings.quiet:
                    stack.enter_context(quiet(progress=True))
                super().run_command()
            if self.trainer.is_global_zero:
                self.state.clear()
        except MisconfigurationException as error:
            raise trainer_fault(error) from error
        except OSError as error:
            if not is_full(error):
                raise
            raise full_disk(self.state.run, error) from error
        finally:
            if self.trainer.is_global_zero:
                self._lock.release()

    def fit(self, **options: Any) -> None:  # noqa: ANN401 # arguments of Trainer.fit
        """Train the model, or continue the interrupted training of this run; skip a training that had already ended.

        Raises:
            TrainingError: Lightning cannot restore the training from the checkpoint.
        """
        saved = self.state.training
        if saved is not None and saved.ended:
            self.datamodule.trainer = self.trainer
            self.datamodule.setup("fit")  # the audit of the test also counts the training split
            return
        remedy = "leave out --ckpt_path"
        if saved is not None:
            options["ckpt_path"] = saved.checkpoint
            remedy = f"delete {self.state.folder} to train anew"
        try:
            self.trainer.fit(**options)
        except Exception as error:
            # A checkpoint that was received may hold anything; Lightning and PyTorch raise what they meet in it.
            if not self.checkpoints.loading or find_user_error(error) is not None or lacks_memory(error):
                raise
            raise TrainingError(
                f"{options['ckpt_path']}: training cannot be continued from this checkpoint "
                f"({type(error).__name__}: {in_a_line(str(error))}). Give the model and the optimizer that it was "
                f"trained with, or {remedy}."
            ) from error

    def after_fit(self) -> None:
        """Test the best checkpoint of a training, if there is one and the data have a test split.

        If not, log the reason.
        """
        best = best_checkpoint(self.trainer)
        saved = self.state.training
        if saved is not None and saved.ended:
            best = saved.best
            self.model.epochs_run = saved.epochs
        test = None
        if isinstance(self.datamodule, CorpusDataModule):
            test = self.datamodule.files().get("test")
        if test is None:
            inform("Not tested: the data have no test split.")
        elif not test.is_file():
            inform(f"Not tested: the file of the test split is missing ({test}).")
        elif best:
            inform(f"Testing the best checkpoint, {Path(best).name}")
            self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path=best)
        else:
            inform("Not tested: no validation ran, so there is no best checkpoint.")


class CheckedCLI(ProbingCLI):
    """Command line that only checks options, classes and the existence of the data files; it runs nothing.

    No model or data are loaded. The only file that may be written is the sample corpus, in the cache. All command
    lines of a process share the parser, because making it takes most of the time.

    Args:
        line: The command line.
        writer: Ignored.
        inspect: Function that reads the data files too; None for none.
    """

    _parsers: ClassVar[dict[str, Any]] = {}

    def __init__(self, line: CommandLine, writer: object = None, inspect: Inspect | None = None) -> None:
        self.inspect = inspect
        super().__init__(line, load_from_checkpoint_support=False)

    def setup_parser(
        self, add_subcommands: bool, main_kwargs: dict[str, Any], subparser_kwargs: dict[str, Any]
    ) -> None:
        """Make the parser, or reuse the one that the first `CheckedCLI` of this process made."""
        if not self._parsers:
            before = set(vars(self))
            super().setup_parser(add_subcommands, main_kwargs, subparser_kwargs)
            for name, value in vars(self).items():
                if name not in before:
                    self._parsers[name] = value
        vars(self).update(self._parsers)

    def instantiate_trainer(self, **kwargs: object) -> None:  # type: ignore[override]
        """Check the model and the data files; make no trainer, because its devices may be those of another machine.

        Raises:
            CorpusError: The data lack a split, or its file does not exist.
            UserError: See `check_model`.
        """
        self.check_model()
        if isinstance(self.datamodule, CorpusDataModule):  # not of another package
            stages = (str(self.subcommand), "test")
            for absent in self.datamodule.absent(stages):
                raise absent
            if self.inspect is not None:
                self.inspect(self.datamodule, stages)

    def run_command(self) -> None:
        """Do nothing: the command line is only checked."""


def check_checkpoint(path: Path, model: Mapping[str, Any], command: str) -> None:
    """Check that the model of a checkpoint is the model of a command line.

    The class must be the same, and for `fit`, which continues the training, the constructor arguments too.

    Args:
        path: The checkpoint.
        model: `class_path` and `init_args` of --model.
        command: Command of the program.

    Raises:
        UserError: The models differ.
        TrainingError: The file is damaged, or it is not a checkpoint of a run.
    """
    content = read_checkpoint(path)
    trained_model = configured_model(path, content)
    trained_kind = trained_model.get("class_path", "").rpartition(".")[2]
    kind = model.get("class_path", "").rpartition(".")[2]
    if trained_kind and trained_kind != kind:
        raise UserError(
            f"{path}: this is a checkpoint of {trained_kind}, but --model is {kind}. Give --config the config.yaml of "
            "its run, which lies beside checkpoints/."
        )
    if command != "fit":
        warn_of_interrupted_training(path, content)
        return  # the module's own check suffices for scoring
    options = dict(named_leaves(trained_model.get("init_args", {})))
    for name, value in named_leaves(model.get("init_args", {})):
        if name in options and options[name] != value:
            raise UserError(
                f"{path}: the checkpoint was trained with --model.{name} {options[name]}, but here it is {value}. "
                "Give the value of the checkpoint, or leave out --ckpt_path to train a new model."
            )
