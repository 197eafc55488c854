"""Base of every experiment: a test over the data of a run that ends in one result."""

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from pytorch_lightning import LightningModule

from datamodules.corpus import CorpusDataModule, part_of
from processes.ranks import run_seed
from results import Result, UserError
from results.errors import check_numbers

Data = TypeVar("Data", bound=CorpusDataModule[Any])


class Experiment(LightningModule, Generic[Data]):
    """A test over the batches of one datamodule that ends in one `Result`.

    Subclasses set `experiment` and `takes`, and implement `prepare`, `update` and `outcome`.

    Args:
        seed: seed of all random draws; None for the seed of the run.

    Attributes:
        experiment: name in `results.json`.
        takes: required class of the datamodule, or of one part of a composite datamodule.
        result: the result after a test; None on ranks that return none.
        counts_progress: True if the experiment logs its own progress, in steps smaller than batches.
    """

    experiment: ClassVar[str]
    takes: ClassVar[type[CorpusDataModule[Any]]]
    counts_progress: ClassVar[bool] = False
    example_input_array = None

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        if seed is not None:  # subclasses with their own seed pass None
            check_numbers(self, least=0, seed=seed)
        self._seed = seed
        self.result: Result | None = None

    def prepare(self) -> None:
        """Build the state of the experiment, and refuse unsuitable data; called after the set-up of the datamodule."""

    def reads_batch(self, batch: object) -> bool:
        """Return True if the experiment reads a batch, in a run with several kinds of batches."""
        return isinstance(batch, self.takes.batch)

    def update(self, batch: Any) -> None:  # noqa: ANN401 - the batch of the datamodule
        """Process one batch of `test`."""
        raise NotImplementedError(f"{type(self).__name__} must implement update().")

    def outcome(self) -> Result | None:
        """Return the result after all batches; every rank calls it and may return None."""
        raise NotImplementedError(f"{type(self).__name__} must implement outcome().")

    @property
    def data(self) -> Data:
        """Datamodule of the run, or its part of class `takes`; raises UserError if there is none."""
        given = self.trainer.datamodule  # type: ignore[attr-defined]
        data = part_of(given, self.takes)
        if data is None:
            raise UserError(
                f"{type(self).__name__} needs {self.takes.holds}, but {type(given).__name__} has none. Use "
                f"{self.takes.__name__}."
            )
        return data  # type: ignore[return-value]

    @property
    def seed(self) -> int:
        """Seed of all random draws."""
        return run_seed(self._seed)

    def setup(self, stage: str) -> None:
        """Call `prepare`."""
        self.prepare()

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:  # noqa: ANN401
        """Call `update`."""
        self.update(batch)

    def on_test_epoch_end(self) -> None:
        """Fill `result`."""
        self.result = self.outcome()


def check_names(option: str, names: Sequence[str]) -> None:
    """Raise UserError if a list of tests or analyses is empty or has duplicates."""
    if not names or len(set(names)) < len(names):
        raise UserError(f"--model.init_args.{option} must be a non-empty list without duplicates, not {list(names)}.")
