"""What is taken from an encoder, and the error of what cannot be taken."""

from dataclasses import dataclass
from typing import Literal

import torch

from attention.alignment import FromPieces

TooLong = Literal["error", "skip", "window"]
Precision = Literal["float16", "float32"]


class StoreError(RuntimeError):
    """A store that cannot be made."""


@dataclass(frozen=True)
class Options:
    """What is taken from the encoder, and how.

    Args:
        layers: 1-based layers to keep; None keeps all.
        heads: 1-based heads of each layer to keep; None keeps all.
        precision: on disk; the forward pass is always in float32. `float16` keeps eleven bits of every weight from
            3.5e-18 on, so that two weights count as equal only where they differ by less than 2⁻¹⁰ of the greater.
        too_long: a sentence over the encoder's limit is an `error`, is skipped (`skip`), or is read in overlapping
            windows (`window`), each word's row taken from the window in which it lies most central, with zeros for
            the words outside that window. Coreference cuts no sentences, and refuses `window`.
        from_pieces: the row of a word in several pieces is their `mean` (Clark et al. 2019, §4.1) or the `first`
            piece's (their released code).

    Raises:
        StoreError: layers or heads that are no numbers from 1 on in ascending order.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    precision: Precision = "float16"
    too_long: TooLong = "error"
    from_pieces: FromPieces = "mean"

    def __post_init__(self) -> None:
        for name in ("layers", "heads"):
            chosen = getattr(self, name)
            if chosen is not None and (not chosen or list(chosen) != sorted(set(chosen)) or chosen[0] < 1):
                raise StoreError(
                    f"{name}: {list(chosen)}. Give --data.init_args.options.{name} different numbers from 1 on, in "
                    f"ascending order."
                )

    @property
    def dtype(self) -> torch.dtype:
        """The precision as torch names it."""
        return torch.float16 if self.precision == "float16" else torch.float32
