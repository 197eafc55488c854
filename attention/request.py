"""What is wanted of a corpus, and the key under which it is kept."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from attention.alignment import ALIGNMENT_VERSION
from attention.digest import Digests, digest
from attention.encoder import Source
from attention.options import Options
from attention.quantity import ATTENTION, Quantity
from attention.store import FORMAT
from corpora.document import Documents
from corpora.sentence import Treebank


@dataclass(frozen=True)
class Request:
    """One corpus file through one encoder.

    Args:
        corpus: the file.
        read: parses it; called only when the store is not complete.
        reader: what identifies the parser, its version included.
        encoder: where the encoder lies; None keeps the labels alone.
        options: what is taken from it.
        quantity: what is kept of every item; it says which kind of corpus it wants.
        companion: a second file that `read` looks into.
    """

    corpus: Path
    read: Callable[[Path], Treebank | Documents]
    reader: Mapping[str, object]
    encoder: Source | None
    options: Options
    quantity: Quantity = ATTENTION
    companion: Path | None = None

    def identity(self, digests: Digests) -> dict[str, object]:
        """Everything that decides the bytes of the store."""
        identity: dict[str, object] = {
            "format": FORMAT,
            "corpus_sha256": digests.one(self.corpus),
            "reader": dict(self.reader),
            "encoder": None,
        }
        if self.companion is not None:
            identity["companion_sha256"] = digests.one(self.companion)
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
                **self.quantity.identity,
            }
        return identity


def key(identity: Mapping[str, object]) -> str:
    """Name of the folder of a store."""
    return digest(json.dumps(identity, sort_keys=True).encode())[:24]
