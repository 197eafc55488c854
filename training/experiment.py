"""Base class of every experiment: a test over the data of a run that ends in one result."""

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from pytorch_lightning import LightningModule

from attention.extraction import return_free_memory
from datamodules.batches import run_seed
from datamodules.corpus import CorpusDataModule, part_of
from results import Result, UserError
from results.errors import check_numbers

Data = TypeVar("Data", bound=CorpusDataModule[Any])


class Experiment(LightningModule, Generic[Data]):
    """LightningModule whose test computes one `Result` from the batches of one datamodule.

    Subclasses set `experiment` and `takes`, and implement `prepare`, `update` and `outcome`.

    Args:
        seed: Seed of all random draws; None for the seed of the run.

    Attributes:
        experiment: Name of the experiment in `results.json`.
        takes: Required class of the datamodule, or of one part of a composite datamodule.
        result: Result of the test; None before the test, and on ranks whose `outcome` is None.
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
        """Create the metrics of the experiment and check the data; called after `setup` of the datamodule."""

    def reads_batch(self, batch: object) -> bool:
        """Return True if the experiment uses this batch, in a run with several kinds of batches."""
        return isinstance(batch, self.takes.batch)

    def update(self, batch: Any) -> None:  # noqa: ANN401 - the batch of the datamodule
        """Process one test batch, usually by updating the metrics of the experiment."""
        raise NotImplementedError(f"{type(self).__name__} must implement update().")

    def outcome(self) -> Result | None:
        """Return the result of the experiment; called once on every rank, after all test batches.

        Some ranks may return None, for example if only rank 0 computes the result.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement outcome().")

    @property
    def data(self) -> Data:
        """Datamodule of the run; of a composite datamodule, the part that is an instance of `takes`.

        Raises:
            UserError: The run has no such datamodule.
        """
        given = self.trainer.datamodule  # type: ignore[attr-defined]
        data = part_of(given, self.takes)
        if data is None:
            found = "no data are given" if given is None else f"{type(given).__name__} has none"
            raise UserError(
                f"{type(self).__name__} needs {self.takes.holds}, but {found}. Give --data {self.takes.__name__}."
            )
        return data  # type: ignore[return-value]

    @property
    def seed(self) -> int:
        """Seed of all random draws of the experiment."""
        return run_seed(self._seed)

    def setup(self, stage: str) -> None:
        """Call `prepare`; Lightning calls this at the beginning of a stage."""
        self.prepare()

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:  # noqa: ANN401
        """Pass a test batch to `update`."""
        self.update(batch)

    def on_test_epoch_end(self) -> None:
        """Call `outcome` after all test batches, and store its value in `result`."""
        return_free_memory()  # of the forward passes, which the statistics do not need
        self.result = self.outcome()


def check_names(option: str, names: Sequence[object]) -> None:
    """Raise UserError if a list of names or numbers is empty or has duplicates.

    Args:
        option: Option that holds the list, for the message.
        names: The list.
    """
    if not names:
        raise UserError(f"{option} is empty. Give at least one.")
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise UserError(f"{option} lists {twice[0]} more than once. Give it once.")
