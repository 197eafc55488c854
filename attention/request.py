"""What is wanted of a corpus, and the key under which it is kept."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from attention.alignment import ALIGNMENT_VERSION, FromPieces
from attention.digest import Digests, digest
from attention.encoder import Source
from attention.store import FORMAT
from corpora.sentence import Treebank

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
        precision: on disk; the forward pass is always in float32.
        too_long: a sentence over the encoder's limit is an `error`, is skipped (`skip`), or is read in overlapping
            windows (`window`), each word's row taken from the window in which it lies most central, with zeros for
            the words outside that window.
        from_pieces: the row of a word in several pieces is their `mean` (Clark et al. 2019, §4.1) or the `first`
            piece's (their released code).
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
                raise ValueError(f"{name}: {chosen}. Give different numbers from 1 on, in ascending order.")

    @property
    def dtype(self) -> torch.dtype:
        """The precision as torch names it."""
        return torch.float16 if self.precision == "float16" else torch.float32


@dataclass(frozen=True)
class Request:
    """One corpus file through one encoder.

    Args:
        corpus: the file.
        read: parses it; called only when the store is not complete.
        reader: what identifies the parser, its version included.
        encoder: where the encoder lies; None keeps the labels alone.
        options: what is taken from it.
    """

    corpus: Path
    read: Callable[[Path], Treebank]
    reader: Mapping[str, object]
    encoder: Source | None
    options: Options

    def identity(self, digests: Digests) -> dict[str, object]:
        """Everything that decides the bytes of the store."""
        identity: dict[str, object] = {
            "format": FORMAT,
            "corpus_sha256": digests.one(self.corpus),
            "reader": dict(self.reader),
            "encoder": None,
        }
        if self.encoder is not None:
            identity |= {
                "encoder": self.encoder.identity(digests),
                "alignment": ALIGNMENT_VERSION,
                "options": {
                    "layers": self.options.layers,
                    "heads": self.options.heads,
                    "precision": self.options.precision,
                    "too_long": self.options.too_long,
                    "from_pieces": self.options.from_pieces,
                },
                "quantities": ["attention"],
            }
        return identity


def key(identity: Mapping[str, object]) -> str:
    """Name of the folder of a store."""
    return digest(json.dumps(identity, sort_keys=True).encode())[:24]
