"""Small files of word vectors."""

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

VECTORS: Mapping[str, Sequence[str]] = {
    "the": ("0.5", "-1", "2e-1"),
    "fox": ("1", "2", "3"),
    "café": ("0.25", "0", "-0.125"),
    "The": ("9", "9", "9"),
    "filler": ("no", "number", "here"),
}
"""Five rows of three values; the last would not survive parsing."""


def lines(vectors: Mapping[str, Sequence[str]] = VECTORS, header: bool = False) -> bytes:
    rows = [" ".join((word, *values)) for word, values in vectors.items()]
    if header:
        rows.insert(0, f"{len(rows)} {len(next(iter(vectors.values())))}")
    return "".join(f"{row}\n" for row in rows).encode()


def write(path: Path, content: bytes = b"", *, packed: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content or lines()) if packed else content or lines())
    return path
