"""What a classifier hands to a fidelity test: its decision, and the attention that the decision was made of."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

WORD, SENTENCE = "word", "sentence"
"""Names of the attention over words, and over the sentences of a hierarchical model."""


class ModelError(ValueError):
    """A classifier that cannot be built or run as it is."""


@dataclass(frozen=True)
class Level:
    """One level of attention over a batch.

    Attributes:
        weights: `[batch, slots]`; they sum to one over the mask, or over each group of slots, and are 0 elsewhere.
        mask: bool `[batch, slots]`, slots that may get weight.
        hidden: `[batch, slots, dim]`, what the weights average.
        groups: int64 `[batch, slots]`, slots among which the weights sum to one, as the words of a sentence are in a
            hierarchical model; -1 outside the mask. None: all slots of a text are one group.
    """

    weights: Tensor
    mask: Tensor
    hidden: Tensor
    groups: Tensor | None = None


@dataclass(frozen=True)
class Output:
    """What a classifier says of a batch.

    Attributes:
        logits: `[batch, classes]`.
        levels: lowest first: `word`; of a hierarchical model `word` and `sentence`; of a transformer `6-1`, layer and
            head counted from 1.
        embedded: `[batch, time, size]`, what the encoder read.
    """

    logits: Tensor
    levels: Mapping[str, Level]
    embedded: Tensor


def given(imposed: Mapping[str, Tensor], levels: Collection[str]) -> Mapping[str, Tensor]:
    """The imposed weights themselves.

    Raises:
        ModelError: they are of a level that the model does not have.
    """
    if strange := sorted(imposed.keys() - set(levels)):
        raise ModelError(f"There is no attention {strange[0]} to impose weights on; there is {', '.join(levels)}.")
    return imposed
