"""Base of the measurements of trained classifiers: their checkpoints, and the data that these were trained on."""

from typing import ClassVar, Self

from jsonargparse import Namespace

from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity.checkpoints import (
    Checkpoint,
    check_paths,
    data_of_checkpoints,
    load_checkpoints,
    paths_of,
)
from attention_probing.measures.contract import Measure
from attention_probing.results.errors import UserError, setting


class ClassifierMeasure(Measure[ClassificationDataModule]):
    """Measurement of trained classifiers on labelled texts. Without `--data` it uses those of the first checkpoint.

    Args:
        checkpoints: One or several trained classifiers, see `Fidelity`.
        eval_tokens: Largest size of a batch, in tokens with padding; None for the datamodule's.

    Attributes:
        paths: Path of each checkpoint.
        checkpoints: The classifiers, after `load`.

    Raises:
        UserError: There is no such checkpoint.
    """

    takes = ClassificationDataModule
    question: ClassVar[str]
    """What the measurement asks of decisions, as a clause with its subject."""

    def __init__(self, checkpoints: list[str] | str, eval_tokens: int | None) -> None:
        super().__init__()
        self.paths = paths_of(checkpoints)
        check_paths(self.paths)  # before the data are read
        self.eval_tokens = eval_tokens
        self.checkpoints: list[Checkpoint] = []

    @classmethod
    def data_of(cls, arguments: Namespace | Self, given: Namespace | None) -> Namespace | None:
        paths = paths_of(arguments.checkpoints) if isinstance(arguments, Namespace) else arguments.paths
        return data_of_checkpoints(paths, given)

    def load(self, level: str | None = None) -> None:
        """Load the classifiers, and set the size of batches.

        Args:
            level: Level of attention, see `Fidelity`.

        Raises:
            UserError: The labels of the data are numbers to predict, not classes; or a checkpoint cannot be used, see
                `fidelity.checkpoints.load_checkpoints`.
        """
        if self.data.regression:
            raise UserError(
                f"{self.question}, but the labels of these data are numbers ({setting('data.regression')}). Give data "
                "whose labels are classes, and checkpoints trained on them."
            )
        self.checkpoints = load_checkpoints(self.paths, self.data, level)
        if self.eval_tokens is not None:
            self.data.eval_tokens = self.eval_tokens
