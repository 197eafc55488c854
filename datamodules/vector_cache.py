"""Converted word vectors on disk: gensim's own format, memory-mapped, with a checksum of every file."""

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attention.digest import Digests, sync, temporary
from datamodules.vector_files import VectorError

if TYPE_CHECKING:  # gensim takes a second to import, and most runs need none of it
    from gensim.models import KeyedVectors

_VECTORS = "words.kv"
_MANIFEST = "manifest.json"
_NOTHING = ""
"""Key of the last row; no word of a corpus is empty."""
_ABANDONED = 24 * 3600
"""Seconds after which a folder that was still being written belongs to a run that was killed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Converted:
    """Vectors as they lie on disk.

    Attributes:
        matrix: float32 `[words + 1, size]`, memory-mapped; the last row is zero.
        index: row of every word.
        counted: what was counted when they were converted.
    """

    matrix: NDArray[np.float32]
    index: Mapping[str, int]
    counted: Mapping[str, int]


def converted(
    home: Path, convert: Callable[[Path], tuple["KeyedVectors", Mapping[str, int]]], digests: Digests
) -> Converted:
    """The vectors that lie in `home`; where they do not, or are damaged, those of `convert`, written there first.

    They are written to a folder beside it, which is then renamed: a killed run leaves nothing half-made, and of two
    processes at once the first one's folder stays.

    Args:
        home: folder of these vectors alone.
        convert: makes the vectors and counts; may write to the path it is given, which is removed afterwards.
        digests: hashes of files.

    Raises:
        OSError: the folder cannot be written.
        VectorError: somebody else altered it meanwhile.
    """
    if (found := _reopen(home, digests)) is not None:
        return found
    home.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(home.parent)
    partial, damaged = temporary(home), temporary(home.with_name(f"{home.name}.damaged"))
    for old in (partial, damaged):  # of a killed run whose process number was ours
        shutil.rmtree(old, ignore_errors=True)
    partial.mkdir()
    try:
        scratch = partial / "scratch"
        vectors, counted = convert(scratch)
        scratch.unlink(missing_ok=True)
        _write(partial, vectors, counted)
        if home.exists() and _reopen(home, digests) is None:
            log.warning("%s: damaged word vectors; they were made anew.", home)
            home.rename(damaged)
        with suppress(OSError):  # another process was first; what it wrote is looked at below
            partial.rename(home)
    finally:
        for old in (partial, damaged):
            shutil.rmtree(old, ignore_errors=True)
    if (found := _reopen(home, digests)) is None:
        raise VectorError.at(home, None, "the word vectors just written there are gone or altered", "Run again")
    return found


def _write(folder: Path, vectors: "KeyedVectors", counted: Mapping[str, int]) -> None:
    vectors.vectors = np.asarray(vectors.vectors, np.float32)
    vectors.add_vectors([_NOTHING], np.zeros((1, vectors.vector_size), np.float32))
    vectors.lifecycle_events = None  # times, and paths of this machine
    vectors.save(str(folder / _VECTORS), separately=["vectors"])
    files = sorted(folder.iterdir())
    manifest = {"files": {path.name: _sha256(path) for path in files}, "counted": dict(counted)}
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
    for path in (*files, folder / _MANIFEST):
        sync(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reopen(folder: Path, digests: Digests) -> Converted | None:
    """What lies there; None where it is not what was written."""
    from gensim.models import KeyedVectors

    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        files = {folder / name: sha256 for name, sha256 in manifest["files"].items()}
        if digests.of(files) != files:
            return None
        loaded = KeyedVectors.load(str(folder / _VECTORS), mmap="r")
        counted = {str(name): int(count) for name, count in manifest["counted"].items()}
    except (OSError, ValueError, AttributeError, TypeError, KeyError, ImportError):
        return None
    index = {word: row for word, row in loaded.key_to_index.items() if word != _NOTHING}
    return Converted(loaded.vectors, index, counted)


def _remove_abandoned(folder: Path) -> None:
    for path in folder.glob(".*.tmp"):
        with suppress(OSError):  # another process clears up too
            if time.time() - path.stat().st_mtime > _ABANDONED:
                shutil.rmtree(path)
