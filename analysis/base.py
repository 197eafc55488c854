"""What every analysis of attention is: an object that sees the weights of each layer as they pass, and sums."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, TypeAlias

import numpy as np
from torch import Tensor, nn

from attention import Encoder
from datamodules import SegmentBatch, TextDataModule
from metrics.moments import Means
from results import Estimate, Figure, Floats, Result, Unit

HeadNumbers: TypeAlias = Means | Estimate[Floats]
"""A number of every head, `[layers, heads]`: sums over inputs whose groups are halves in turn, or a finished number."""


def without_interval(values: Floats, unit: Unit) -> Estimate[Floats]:
    """Wrap numbers whose intervals are unknown: nan."""
    missing = np.full(values.shape, np.nan)
    return Estimate(values, missing, missing, unit=unit)


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

    def by_head(self) -> Mapping[str, HeadNumbers]:
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
