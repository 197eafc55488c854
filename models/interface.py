"""What a classifier hands to a fidelity test: its decision, and the attention that the decision was made of."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from results.errors import UserError

WORD, SENTENCE = "word", "sentence"  # attention over words, and over the sentences of a hierarchical model


class ModelError(UserError):
    """A classifier that cannot be built or run as it is."""


@dataclass(frozen=True)
class Level:
    """One level of attention over a batch."""

    weights: Tensor
    """`[batch, positions]`; sum to one over the mask, or over each group of positions, and are 0 elsewhere."""
    mask: Tensor  # bool [batch, positions], positions that may get weight
    hidden: Tensor  # [batch, positions, dim], what the weights average
    groups: Tensor | None = None
    """Int64 `[batch, positions]`, positions whose weights sum to one, as the words of a sentence do in a hierarchical
    model; -1 outside the mask. None: all positions of a text are one group."""


@dataclass(frozen=True)
class Output:
    """What a classifier says of a batch."""

    logits: Tensor  # [batch, classes]
    levels: Mapping[str, Level]
    """Lowest first: `word`; of a hierarchical model `word` and `sentence`; of a transformer `6-1`, layer and head
    counted from 1."""
    embedded: Tensor  # [batch, time, size], what the encoder read


def checked_levels(imposed: Mapping[str, Tensor], levels: Collection[str], remedy: str = "") -> Mapping[str, Tensor]:
    """The imposed weights; a ModelError, with the remedy, where the model has no such level."""
    if strange := sorted(imposed.keys() - set(levels)):
        there_is = f"There is no attention {strange[0]} to impose weights on; there is {', '.join(levels)}."
        raise ModelError(f"{there_is} {remedy}".strip())
    return imposed
