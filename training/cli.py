"""The command line: LightningCLI with a folder for each run, whose best checkpoint is tested after the training."""

import io
import logging
import os
import platform
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from jsonargparse import Namespace
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint, ProgressBar
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.utilities import rank_zero_info, rank_zero_only
from pytorch_lightning.utilities.model_helpers import is_overridden
from rich.console import Console

from datamodules.corpus import CorpusDataModule
from processes import preemption
from processes.progress import ProgressLines
from processes.ranks import LostRank, run_name
from results.command import print_fault
from results.errors import UserError, counted
from results.files import is_full
from training.checkpoints import configured_model, read_checkpoint
from training.config import leaves
from training.experiment import Experiment
from training.faults import fault, full_disk, is_told_by_the_first, trainer_fault
from training.lifecycle import TrainedModule
from training.lightning_private import CommandLine, ContinuedCSVLogger, ignore_signals, set_root, signal_started
from training.nested import quiet
from training.parsing import Parser, only_known_classes, refuse_permissions, trusted_modules, typed_options
from training.preflight import Report, check_tasks, inspect, refuse_shell, started_tasks, was_requeued
from training.resume import Resume
from training.run import RunCheckpoints, RunConfig, RunState, open_state, run_digest, source_digest

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


SWITCHES = {
    "--figures.titles": "Whether figures bear their titles; results.json has them under `captions` in any case.",
    "--figures.draw": "Whether figures are drawn; results.json and the tables are the same without.",
}
FLAGS = {
    "--quiet": "Print the scores that answer the question, the folder, and warnings: no progress and no tables.",
    "--preflight": "Run nothing: say whether the run can be made, and what it needs.",
}


class Writer(Protocol):
    """The callback that writes results; see `reports.ResultWriter`."""

    folder: Path | None
    titles: bool
    draw: bool
    quiet: bool


class ProbingCLI(CommandLine):
    """LightningCLI with one folder for each run, which keeps the best checkpoint and tests it after the training.

    Args:
        args: the command line; None for that of the program.
        writer: writes the results; None for none.
        options: further options of LightningCLI.
    """

    def __init__(self, args: list[str] | None, writer: Writer | None = None, **options: Any) -> None:  # noqa: ANN401
        self.writer = writer
        super().__init__(
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            parser_class=Parser,
            save_config_callback=None,  # RunConfig knows the folder of the run
            trainer_defaults={
                "default_root_dir": "runs",
                "enable_model_summary": False,  # a table of internal modules; RunConfig counts the parameters
                "use_distributed_sampler": False,  # the datamodules share the batches themselves, each item once
                "callbacks": [] if writer is None else [writer],
            },
            args=args,
            **options,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of the checkpoint callback, and those of a run beside the trainer's."""
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.set_defaults({"checkpoint.monitor": "val_uas", "checkpoint.mode": "max"})
        for name, use in SWITCHES.items():
            parser.add_argument(name, type=bool, default=True, help=use)
        for name, use in FLAGS.items():
            parser.add_argument(name, action="store_true", help=use)
        use = "Whether to continue an unfinished run of the same command, or to begin another one."
        parser.add_argument("--resume", type=Literal["auto", "never"], default="auto", help=use)
        use = "Modules of your own whose classes configs and checkpoints may name."
        parser.add_argument("--trust", type=list[str] | str | None, default=None, help=use)

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the commands, each with arguments of the Trainer that are no options, `weights_only` among them."""
        return {name: {*skipped, "weights_only"} for name, skipped in LightningCLI.subcommands().items()}

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:  # noqa: ANN401 # the words, if any
        """Parse the command line; options of data whose class it does not name change the data of a checkpoint.

        Raises:
            UserError: a module of --trust is not there.
            SettingsError: a file permits what only the command line can permit.
        """
        words: list[str] = sys.argv[1:] if args is None else args
        if not words or words[0] not in (*self.subcommands(), "-h", "--help"):
            names = " | ".join(self.subcommands())
            parser.error(
                f"the command comes first: python train.py {names}, then its options; --help lists the configs"
            )
        _import_trusted(words)
        if (data := self._data_to_change(parser, words)) is not None:
            self.parser_of("test").set_defaults({"data": data.as_dict()})
        try:
            self.parse(parser, args)
        finally:
            self.parser_of("test").set_defaults({"data": None})  # the parser may serve another command line
        refuse_permissions(self.settings, words)

    def parse(self, parser: LightningArgumentParser, args: Any) -> None:  # noqa: ANN401 # see LightningCLI
        """Parse the command line as it is."""
        super().parse_arguments(parser, args)

    def _data_to_change(self, parser: LightningArgumentParser, words: list[str]) -> Namespace | None:
        """Return the data that a tested checkpoint was trained on, for a command line that changes them by options."""
        rest = without_options_of("data", words)
        names_data = any(word.partition("=")[0] == "--data" for word in words)
        if words[:1] != ["test"] or rest == words or names_data:
            return None
        Parser.silent = True
        try:
            with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
                self.parse(parser, rest)
        except SystemExit:
            return None  # the whole line gives what is missing here, or has the same fault
        finally:
            Parser.silent = False
        return _data_of(self.settings.model) if self.settings.data is None else None

    def before_instantiate_classes(self) -> None:
        """Check `--ckpt_path`, and that there is something to do, before anything is loaded or computed.

        Raises:
            UserError: there is no such file, or an option of the trainer leaves nothing to do.
        """
        trainer, path = self.settings.trainer, self.settings.ckpt_path
        if idle := next((name for name in NEEDS_ABOVE_ZERO[str(self.subcommand)] if trainer[name] == 0), None):
            raise UserError(f"--trainer.{idle} 0: nothing would be done. Give 1 or more, or leave it out.")
        if path == "best":
            raise UserError(
                "--ckpt_path best: a new run has none yet. Name a file in checkpoints/ of the run that has."
            )
        if self.checkpoint is not None and not self.checkpoint.is_file():
            raise UserError(f"{path}: there is no such checkpoint. Training leaves them in checkpoints/ of its run.")
        if self.subcommand == "test" and self.settings.data is None:
            self.settings.data = _data_of(self.settings.model)

    @property
    def checkpoint(self) -> Path | None:
        """The file that `--ckpt_path` names, if it names one."""
        path = self.settings.ckpt_path
        return None if path is None or path in KEYWORDS else Path(path)

    def check_model(self) -> None:
        """Refuse a model that cannot run this stage, one that was not trained, and a checkpoint of another model.

        Raises:
            UserError: see above.
            TrainingError: the model was not trained; the checkpoint is damaged, or no checkpoint.
        """
        name, path = type(self.model).__name__, self.settings.ckpt_path
        able = [stage for stage, steps in STEPS.items() if any(is_overridden(step, self.model) for step in steps)]
        if self.subcommand not in able:
            does = "trains nothing" if self.subcommand == "fit" else f"cannot {self.subcommand}"
            raise UserError(f"{name} {does}. Run it with `python train.py {' or '.join(able)}`.")
        if path is not None and "fit" not in able:
            raise UserError(f"{name} trains nothing, and takes no --ckpt_path: leave it out.")
        if self.checkpoint is not None:
            max_epochs = self.objects.trainer["max_epochs"] if self.subcommand == "fit" else None
            check_checkpoint(self.checkpoint, self.plain_settings["model"], str(self.subcommand), max_epochs)
        needs_training = isinstance(self.model, TrainedModule) and not self.model.may_come_trained
        if path is None and self.subcommand != "fit" and needs_training:
            self.model.refuse_untrained()  # before hours of extraction

    def instantiate_trainer(self, **kwargs: object) -> Trainer:
        """Put loggers, checkpoints and results into a folder of this run under `--trainer.default_root_dir`.

        Raises:
            UserError: the trainer cannot be made as asked, or SLURM started another number of processes than it wants,
                or the folder cannot be made; see `check_model` and `preflight` too.
        """
        settings = self.objects.trainer
        runs = Path(settings["default_root_dir"])
        if self.settings.preflight:
            return self.preflight(runs)
        self.check_model()
        own_loggers = settings.get("logger") in (None, True)
        # The loggers come later: the trainer knows which process is the first, and that one makes their folder.
        trainer = self.make_trainer(**(kwargs | {"logger": False} if own_loggers else kwargs))
        check_tasks(trainer)
        ignore_signals(trainer)
        self.state = self._open_state(trainer, runs / type(self.model).__name__)
        self._equip(trainer, self.state.run, own_loggers)
        return trainer

    def _equip(self, trainer: Trainer, folder: Path, own_loggers: bool) -> None:
        """Give a trainer what writes into the folder of the run."""
        set_root(trainer, folder)
        trainer.strategy.checkpoint_io = RunCheckpoints(self.state)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for checkpoint in _checkpoints(trainer):
            checkpoint.dirpath = checkpoint.dirpath or str(folder / "checkpoints")
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            callbacks.append(RunConfig(folder, self.parser_of(str(self.subcommand)), self.settings))
            if own_loggers:  # without a version, which the progress bar would show
                log = ContinuedCSVLogger(folder, self.state.log_left)
                trainer.loggers = [log, TensorBoardLogger(folder / "tensorboard", "", "")]
        callbacks.append(Resume(self.state))
        counted_finer = isinstance(self.model, Experiment) and self.model.counts_progress
        if trainer.progress_bar_callback is None and not counted_finer:
            callbacks.append(ProgressLines())
        if self.writer is not None:
            self.writer.folder, self.writer.quiet = folder, self.settings.quiet
            self.writer.titles, self.writer.draw = self.settings.figures.titles, self.settings.figures.draw

    def preflight(self, runs: Path) -> Trainer:
        """Check whether the run can be made, and what it needs; the first task prints the table.

        Raises:
            UserError: all that stands in its way.
        """
        if not isinstance(self.datamodule, CorpusDataModule):
            raise UserError(
                f"{type(self.datamodule).__name__} has no files to look for: give --data one of datamodules/."
            )
        report, trainer, tasks = Report(), None, started_tasks()
        with report.part("model") as found:
            self.check_model()
            found.append(type(self.model).__name__)
        with report.part("devices") as found:
            trainer = self.make_trainer(logger=False, callbacks=[])
            found.append(
                f"{trainer.num_devices} × {trainer.strategy.root_device.type} on {counted(trainer.num_nodes, 'node')}"
            )
            check_tasks(trainer)
        if trainer is not None and not report.faults and (unfinished := self._requeued(trainer, runs)):
            rank_zero_info(f"This job was requeued, and goes on with the run in {unfinished.run}, which was checked.")
            return trainer
        inspect(report, self.model, self.datamodule, trainer, str(self.subcommand), tasks, runs, self.checkpoint)
        if tasks[0] == 0:
            Console().print(report.table(f"{self.subcommand}: preflight"))
        if report.faults or trainer is None:
            raise UserError("\n".join(report.faults) or "The first task says what is wrong.")
        return trainer

    def _requeued(self, trainer: Trainer, runs: Path) -> RunState | None:
        """Return the state of the run that a job of SLURM had begun before it was requeued, if it had."""
        if not was_requeued() or self.settings.resume != "auto":
            return None
        try:
            return RunState.find(runs / type(self.model).__name__, self._digest(trainer))
        except (UserError, OSError):  # the check that follows tells what is wrong with the files
            return None

    def _open_state(self, trainer: Trainer, parent: Path) -> RunState:
        """Return the state of an unfinished run of the same command, or of a new one; the first process locks it."""
        digest, resume = self._digest(trainer), self.settings.resume == "auto"
        # The name is of this run alone: one with the same command may go on beside it.
        os.environ.setdefault("PROBING_RUN", f"{platform.node()}-{os.getpid()}")
        marker = parent / f".stop-{digest}.{run_name()}" if trainer.world_size > 1 else None
        preemption.share(marker, partial(signal_started, trainer))
        if not trainer.is_global_zero:
            return (RunState.find(parent, digest) if resume else None) or RunState(parent / f"state-{digest}")
        state, self._lock = open_state(parent, digest, resume)
        return state

    def _digest(self, trainer: Trainer) -> str:
        """Return the digest of the run: of its options, this program, and the files of the data as they are now."""
        files = self.datamodule.files() if hasattr(self.datamodule, "files") else {}
        sizes = [[name, path.stat().st_size] for name, path in sorted(files.items()) if path.is_file()]
        sources = {"sources": [source_digest(), sizes]}
        return run_digest(str(self.subcommand), {**self.plain_settings, **sources}, trainer.world_size)

    def make_trainer(self, **kwargs: object) -> Trainer:
        """Make the trainer; without a progress bar where there is no terminal.

        Raises:
            UserError: it cannot be made as asked.
        """
        refuse_shell()
        settings = self.objects.trainer
        if self.settings.quiet or not Console().is_terminal:
            kwargs["enable_progress_bar"] = False
        if {**settings, **kwargs}["enable_progress_bar"] is False:  # Lightning refuses bars that are configured then
            callbacks = settings["callbacks"] or []
            own = callbacks if isinstance(callbacks, list) else [callbacks]
            kwargs.setdefault("callbacks", [callback for callback in own if not isinstance(callback, ProgressBar)])
        try:
            trainer: Trainer = super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, ImportError, RuntimeError, TypeError, ValueError) as error:
            raise trainer_fault(error, settings["accelerator"]) from error
        return trainer

    def run_command(self) -> None:
        """Run the command, and remove the state of the run at its end.

        Raises:
            UserError: what the trainer finds only now, such as a fraction of batches that leaves none.
        """
        if self.settings.preflight:
            return
        try:
            if self.trainer.world_size == 1:  # otherwise another process may wait for this one to get in touch
                preemption.check()
            with quiet("pytorch_lightning") if self.settings.quiet else nullcontext():
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
                os.close(self._lock)

    def fit(self, **options: Any) -> None:  # noqa: ANN401 # those of Trainer.fit
        """Train, or continue the training of an unfinished run; a training that has ended is not repeated."""
        if self.state.left.ended is not None:
            self.datamodule.trainer = self.trainer
            self.datamodule.setup("fit")  # the audit of the test counts the training split too
            return
        if self.state.left.training is not None:
            options["ckpt_path"] = self.state.left.training
        self.trainer.fit(**options)

    def after_fit(self) -> None:
        """Test the best checkpoint, when there is one, and something to test on."""
        if (ended := self.state.left.ended) is not None:
            best = str(self.state.run / ended["best"]) if ended["best"] else ""
            self.model.epochs_run = ended["epochs_run"]
        else:
            best = next((one.best_model_path for one in _checkpoints(self.trainer) if one.best_model_path), "")
            if self.trainer.is_global_zero:
                self.state.keep_trained(best, self.model.epochs_run)
        test = self.datamodule.files().get("test")
        if test is None or not test.is_file():
            rank_zero_info(f"Not tested: there is no test split{'' if test is None else f' at {test}'}.")
        elif best:
            rank_zero_info(f"Testing the best checkpoint, {Path(best).name}")
            self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path=best)
        else:
            rank_zero_info("Not tested: nothing was validated, so that no checkpoint is the best.")


class CheckedCLI(ProbingCLI):
    """Checks that options and classes are valid and that the data exist; loads and computes nothing.

    Nothing is written either, except the sample corpus into the cache. All command lines of a process share the parser
    and the trainers, whose making takes longer than the rest.
    """

    _parsers: ClassVar[dict[str, Any]] = {}
    _trainers: ClassVar[dict[str, Trainer]] = {}

    def __init__(self, args: list[str] | None, writer: Writer | None = None) -> None:
        # No checkpoint notes the options.
        super().__init__(args, writer, load_from_checkpoint_support=False)

    def setup_parser(
        self, add_subcommands: bool, main_kwargs: dict[str, Any], subparser_kwargs: dict[str, Any]
    ) -> None:
        """Take the parser of the command lines before this one."""
        if not self._parsers:
            before = set(vars(self))
            super().setup_parser(add_subcommands, main_kwargs, subparser_kwargs)
            self._parsers.update({name: value for name, value in vars(self).items() if name not in before})
        vars(self).update(self._parsers)

    def parse(self, parser: LightningArgumentParser, args: Any) -> None:  # noqa: ANN401 # see LightningCLI
        """Parse by the parser of the command alone: that of all commands checks every value three times."""
        command, *options = args
        self.config = Namespace(subcommand=command, **{command: self.parser_of(command).parse_args(options)})  # type: ignore[no-untyped-call]

    def instantiate_trainer(self, **kwargs: object) -> Trainer:
        """Make a trainer that writes nothing, once the files of the run and of its test exist.

        Raises:
            UserError: the trainer cannot be made as asked; see `check_model` too.
            CorpusError: the data lack a split, or its file is not there.
        """
        self.check_model()
        for absent in self.datamodule.absent((str(self.subcommand), "test")):
            raise absent
        asked = repr(self.settings.trainer)
        if asked not in self._trainers:
            self._trainers[asked] = self.make_trainer(logger=False, callbacks=[])
        return self._trainers[asked]

    def run_command(self) -> None:
        """Run nothing."""


def main(
    writer: Callable[[], Writer] | None, args: list[str] | None = None, *, cli: type[ProbingCLI] = ProbingCLI
) -> ProbingCLI:
    """Run the command line `args`, by default the program's own; `writer` makes what writes the results."""
    with only_known_classes(trusted_modules(sys.argv[1:] if args is None else args), how="add --trust {}"):
        return cli(args, None if writer is None else writer())


def run(writer: Callable[[], Writer], args: list[str] | None = None) -> int:
    """Run a command line and return its exit code; a fault of the input is printed in one line, without a traceback."""
    try:
        main(writer, args)
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


def check(args: list[str]) -> str | None:
    """Return the fault of a command line, None if it has none, without running it."""
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(said):
            main(None, args, cli=CheckedCLI)
    except SystemExit:  # of the command line's parser
        return said.getvalue().partition("error: ")[2].strip()
    except Exception as error:
        expected = fault(error)
        return f"{type(error).__name__}: {error}" if expected is None else str(expected)
    return None


def check_all(commands: Iterable[list[str]]) -> Iterator[str | None]:
    """Yield the fault of each command line; a sweep asks for them before its first run. All cores take part."""
    # Forked, they share what took seconds to import. Parsing holds the lock of the interpreter: threads gain nothing.
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1), get_context("fork")) as pool:
        yield from pool.map(check, commands, chunksize=4)


def check_checkpoint(path: Path, given: Mapping[str, Any], command: str, max_epochs: int | None) -> None:
    """Compare the model of a checkpoint with the one that a command line gives.

    Args:
        path: the checkpoint.
        given: `class_path` and `init_args` of --model.
        command: fit continues the training, for which all options must be the same.
        max_epochs: of the trainer.

    Raises:
        UserError: they differ.
        TrainingError: the checkpoint is damaged, or no checkpoint.
    """
    content = read_checkpoint(path)
    trained = configured_model(path, content)
    kind, own = (model.get("class_path", "").rpartition(".")[2] for model in (trained, given))
    if kind and kind != own:
        raise UserError(
            f"{path}: this is a checkpoint of {kind}, and --model is {own}. Give the --config of its run, which "
            f"lies beside checkpoints/."
        )
    if command != "fit":
        return  # what the module itself checks suffices to read it, not to go on with its training
    options, now = (dict(leaves(model.get("init_args", {}))) for model in (trained, given))
    if name := next((name for name in options.keys() & now.keys() if options[name] != now[name]), None):
        raise UserError(
            f"{path}: the checkpoint was trained with --model.init_args.{name} {options[name]}, which is "
            f"{now[name]} here. Give that of the checkpoint, or train anew without --ckpt_path."
        )
    if max_epochs is not None and 0 <= max_epochs <= content["epoch"] + 1:
        seen = counted(content["epoch"] + 1, "epoch")
        rank_zero_info(f"{path} has seen {seen}, and --trainer.max_epochs is {max_epochs}: it is tested, not trained.")


def without_options_of(part: str, words: Sequence[str]) -> list[str]:
    """Return a command line without its options of one part, such as --data.init_args.cache."""
    kept, left_out = list[str](), False
    for word in words:
        left_out = word.startswith(f"--{part}.") if word.startswith("--") else left_out
        if not left_out:
            kept.append(word)
    return kept


def _import_trusted(words: Sequence[str]) -> None:
    options = (value for name, value in typed_options(words) if name == "trust")
    for module in (str(leaf) for value in options for _, leaf in leaves(value)):
        try:
            import_module(module)
        except ImportError as error:
            raise UserError(f"--trust {module}: the module cannot be imported ({error}).") from error


def _data_of(model: Namespace) -> Namespace | None:
    """Return settings of the data that a model is tested on by itself; one that tests trained models has such."""
    module, _, name = model.class_path.rpartition(".")
    data_of: Callable[[Namespace], Namespace | None] | None
    data_of = getattr(getattr(import_module(module), name), "data_of", None)
    return None if data_of is None else data_of(model.init_args)


def _checkpoints(trainer: Trainer) -> list[ModelCheckpoint]:
    return [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]


def _interrupted(number: signal.Signals) -> int:
    if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
        return 0  # any other code would have Lightning kill the first process, which is at its end too
    by_hand = number == signal.SIGINT  # of a terminal, which may itself be a job
    said = None if by_hand else preemption.requeue()
    print(said or f"Interrupted by {number.name}.", file=sys.stderr)
    return 128 + number


for _message in (
    ".*LeafSpec.*is deprecated",  # Lightning 2.6 walks through batches by what torch 2.13 deprecates
    "The dirpath has changed",  # a run has a folder of its own, whatever checkpoint it begins with
    "The `srun` command is available",  # on the login node of a cluster, of every run that is meant for it alone
    "The number of training batches .* logging interval",  # the only values that are logged are of whole epochs
    "Checkpoint directory .* exists and is not empty",  # of a run that is continued
    "It is recommended to use .* when logging on epoch level in distributed",  # values are of all devices already
):
    warnings.filterwarnings("ignore", message=_message)
# Below warnings Lightning speaks of hardware, of files that it reads, and of its makers. Our lines use its logger.
for _name in ("pytorch_lightning.utilities.rank_zero", "lightning_fabric.utilities.seed"):
    logging.getLogger(_name).addFilter(
        lambda record: (
            record.levelno > logging.INFO
            or not {"pytorch_lightning", "lightning_fabric"}.intersection(Path(record.pathname).parts)
        )
    )
