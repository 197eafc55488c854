"""What every analysis of attention is: an object that sees the weights of each layer as they pass, and sums."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from torch import Tensor, nn

from attention import Encoder
from datamodules import SegmentBatch, TextDataModule
from metrics.moments import Floats, Interval, Means
from results import Figure, Result, Unit


@dataclass(frozen=True, eq=False)
class ByHead:
    """A number of every head, `[layers, heads]`.

    Attributes:
        interval: The means over all inputs, with their intervals.
        unit: Of the number.
        halves: The means over each half of the inputs, where they were taken apart.
        differences: Those from the encoder before its fine-tuning on the same inputs, where there is one.
    """

    interval: Interval
    unit: Unit
    halves: tuple[Floats, Floats] | None = None
    differences: Means | None = None

    @classmethod
    def constant(cls, values: Floats, unit: Unit) -> Self:
        """Wrap numbers `[layers, heads]` without intervals."""
        nothing = np.full(values.shape, np.nan)
        return cls(Interval(values, nothing, nothing, np.zeros(values.shape, np.int64)), unit)

    @classmethod
    def of(cls, means: Means, unit: Unit) -> Self:
        """Of numbers whose groups are halves in turn: the two halves, or those of one corpus after the other."""
        halves = means.over(slice(0, None, 2)).value, means.over(slice(1, None, 2)).value
        return cls(means.over(), unit, halves, means.differences)


class Analysis(nn.Module):
    """Sees attention pass, layer by layer, and keeps sums of it in metrics, which are its submodules.

    Subclasses have a `name` and fill `begin`, `update` or `end`, and `result`. What is kept does not grow with the
    number of inputs.

    Attributes:
        name: of the analysis, unique in a run.
        needs: names of the analyses that must be named before it: their results are made of the same pass.
        compares: whether it is of two encoders, the given one and that before its fine-tuning. It then sees the weights
            of all layers of the one and then of the other, of the same inputs, as `batch.encoder` says, before `end`.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    compares: ClassVar[bool] = False

    def begin(self, data: TextDataModule, encoder: Encoder) -> None:
        """Make the states for this encoder; refuse texts or an encoder that do not fit with a UserError."""

    def update(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        """Take in the weights of a 0-based layer, `[batch, heads, from, to]`, valid during the call alone.

        Every row sums to one, and the columns of the padding are zero. The rows of the padding have no meaning.
        """

    def end(self, batch: SegmentBatch) -> None:
        """Take in what is left of a batch, once all layers have passed."""

    def by_head(self) -> Mapping[str, ByHead]:
        """What it knows of each head, for the atlas; every process takes part."""
        return {}

    def classes(self) -> Mapping[str, Sequence[str]]:
        """Names of the kind that each head is of, layer by layer, for the atlas; every process takes part."""
        return {}

    def result(self, others: Mapping[str, "Analysis"]) -> Result:
        """Scores, tables and figures; every process takes part. `others` are those that were named before, by name."""
        raise TypeError(f"{type(self).__name__} does not say what comes out.")


def of_corpora(figures: Mapping[str, Figure], corpora: Sequence[str]) -> Mapping[str, Figure]:
    """The figures with the corpora that they are of in their titles, where these are not all of the run."""
    if not corpora:
        return figures
    return {name: replace(one, title=f"{one.title} ({', '.join(corpora)})") for name, one in figures.items()}
