"""Files of word vectors: found by name, read by gensim. A pickle is opened only where the user allows it."""

import glob
import gzip
import logging
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from itertools import chain
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_info

from results.errors import UserError

if TYPE_CHECKING:  # gensim takes a second to import, and most runs need none of it
    from gensim.models import KeyedVectors

ENCODER = "encoder"
"""The name that stands for the encoder's own input embeddings."""
SUBSET = ".subset.txt.gz"
"""How the name of a file ends that holds some rows of a larger one."""

_ACCEPTED = (
    "Name a text file of GloVe or word2vec (plain or .gz), a .kv of gensim, `encoder` for the encoder's own "
    "embeddings, glove.6B.50d (100d, 200d, 300d) for the file under the data root, or vectors of gensim's downloader "
    "such as glove-wiki-gigaword-50"
)
_FETCH_AGAIN = "Fetch the file again"
_SNIFFED = 1 << 12
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


class VectorError(UserError):
    """Word vectors that cannot be had; the message is `<path>:<line>: <what is wrong>. <remedy>`, or has no line."""

    @classmethod
    def at(cls, path: Path | str, line: int | None, wrong: str, remedy: str) -> "VectorError":
        """Build the error for one place; `line` counts from 1, `wrong` and `remedy` end without a full stop."""
        place = f"{path}:{line}" if line is not None else f"{path}"
        return cls(f"{place}: {wrong}. {remedy}.")


@dataclass(frozen=True)
class VectorSpec:
    """Which word vectors.

    Args:
        name: a text or binary file of GloVe or word2vec (plain or .gz, with a header or without), a `.kv` of gensim,
            `encoder` for the encoder's own input embeddings, `glove.6B.50d` (100d, 200d, 300d) for the file under the
            data root's `glove/` or else its subset there, or vectors of gensim's downloader.
        lowercase: look words up in lower case; not applied to `encoder`, whose tokenizer decides.
        min_coverage: refuse vectors that know a smaller share of the corpus's tokens, 0–1.
        allow_pickle: open a pickle, such as a `.kv`. Opening a pickle can run any program: allow it only for files that
            you trust.
    """

    name: str = "glove.6B.50d"
    lowercase: bool = True
    min_coverage: float = 0.5
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.min_coverage <= 1:
            raise VectorError(f"min_coverage: {self.min_coverage} is no share of the tokens. Give a number in 0–1.")


def find_vectors(spec: VectorSpec, root: Path) -> list[Path]:
    """The file of word vectors, and the arrays that gensim has stored beside a `.kv`.

    Args:
        spec: its name is a path, `glove.*` under the data root, or a name of gensim's downloader.
        root: data root, under which `glove/` lies.

    Raises:
        VectorError: there is none, it cannot be downloaded, or it is a pickle that is not allowed.
    """
    path = _locate(spec.name, root)
    if not spec.allow_pickle and _is_pickle(path):
        raise VectorError.at(
            path,
            None,
            "this file is a pickle, and opening a pickle can run any program",
            "If you trust where it comes from, allow it with --data.init_args.vectors.allow_pickle true; else name "
            "vectors in the format of word2vec, which gensim writes with KeyedVectors.save_word2vec_format",
        )
    return [path, *sorted(path.parent.glob(f"{glob.escape(path.name)}.*npy"))]


def _locate(name: str, root: Path) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if name.startswith("glove.") and not name.endswith((".txt", ".gz")):
        places = [root / "glove" / f"{name}{suffix}" for suffix in (".txt", ".txt.gz", SUBSET)]
        for place in places:
            if place.is_file():
                return place
        raise VectorError.at(
            places[0],
            None,
            f"there is no such file, nor one packed by gzip, nor a subset ({SUBSET})",
            "Unpack the archive from https://nlp.stanford.edu/projects/glove/ there, or name other vectors: `encoder` "
            "are the encoder's own, glove-wiki-gigaword-50 is fetched by gensim",
        )
    if path.suffix or len(path.parts) > 1 or path.exists():
        raise VectorError.at(path, None, "there is no such file of word vectors", _ACCEPTED)
    return _download(name)


def _download(name: str) -> Path:
    from gensim import downloader

    folder = Path(downloader.BASE_DIR) / name
    if there := sorted(folder.glob("*.gz")):
        return there[0]  # gensim would ask the network for its index again
    rank_zero_info(f"{name}: asking gensim's downloader for it.")
    log = logging.getLogger(downloader.__name__)
    level = log.level
    log.setLevel(logging.CRITICAL)  # without a network it logs a whole traceback
    try:
        known = sorted(model for model in downloader.info()["models"] if not model.startswith("__"))
        if name in known:
            return Path(downloader.load(name, return_path=True))  # else it would import a program from the network
    except Exception as error:  # it raises nothing narrower
        if there := sorted(folder.glob("*.gz")):  # another process was first, which makes gensim stumble
            return there[0]
        raise VectorError.at(
            name,
            None,
            f"no file has this name, and gensim's downloader failed ({type(error).__name__}: {error})",
            f"Check the name and the network, or put the file into {folder}. {_ACCEPTED}",
        ) from error
    finally:
        log.setLevel(level)
    raise VectorError.at(
        name, None, f"no file has this name, and gensim's downloader has only {', '.join(known)}", _ACCEPTED
    )


@dataclass(frozen=True, eq=False)
class Found:
    """Vectors of some words.

    Attributes:
        index: row of each word that is known.
        matrix: float32 `[words, size]`.
        counted: what was counted when they were read.
    """

    index: Mapping[str, int]
    matrix: NDArray[np.float32]
    counted: Mapping[str, int]


def read_vectors(path: Path, wanted: Collection[str]) -> Found:
    """Read the vectors of those wanted words that a file has, in its order; `find_vectors` has allowed the file.

    The content decides the format: gzip or plain, word2vec's text or binary format, with or without the header of
    counts, which GloVe's files lack. Only the wanted lines of a text file are parsed, but all of them are checked: a
    file that is cut off or malformed is refused. In a text file `repeated_rows` are counted, lines for a wanted word
    that already had one: the first is taken.

    Raises:
        VectorError: the file is malformed.
        OSError: it cannot be read.
    """
    if not _is_pickle(path) and not _is_binary(path):
        return _read_text(path, wanted)
    loaded = _load(path)
    # Not those that fastText would make up from a word's letters: coverage would always be 1.
    known = [word for word in loaded.index_to_key if word in wanted]
    matrix = np.asarray(loaded.vectors[[loaded.key_to_index[word] for word in known]], np.float32)
    if broken := [word for word, vector in zip(known, matrix, strict=True) if not np.isfinite(vector).all()]:
        wrong = f"the vectors of {len(broken)} of the corpus's words are not finite, that of {broken[0]!r} for one"
        raise VectorError.at(path, None, wrong, _FETCH_AGAIN)
    return Found({word: row for row, word in enumerate(known)}, matrix, {})


@contextmanager
def _opened(path: Path) -> Iterator[gzip.GzipFile | BufferedReader]:
    with path.open("rb") as file:
        magic = file.peek(4)[:4]
        if magic == b"PK\x03\x04":
            raise VectorError.at(path, None, "this is a zip archive", "Unpack it, and name one of the files in it")
        try:
            yield gzip.GzipFile(fileobj=file) if magic.startswith(b"\x1f\x8b") else file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise VectorError.at(path, None, f"the file is cut off or damaged ({error})", _FETCH_AGAIN) from error


def _is_pickle(path: Path) -> bool:
    with _opened(path) as file:
        return path.suffix == ".kv" or file.read(1) == b"\x80"  # every pickle since protocol 2, and no UTF-8 text


def _is_binary(path: Path) -> bool:
    with _opened(path) as file:
        return _header(file.readline(_SNIFFED)) is not None and bool(_CONTROL.search(file.read(_SNIFFED)))


def _header(line: bytes) -> tuple[int, int] | None:
    """Number of rows and their size, if this is a header of the word2vec format."""
    fields = line.split()
    return (int(fields[0]), int(fields[1])) if len(fields) == 2 and all(map(bytes.isdigit, fields)) else None


def _load(path: Path) -> "KeyedVectors":
    from gensim.models import KeyedVectors

    try:
        if not _is_pickle(path):
            return KeyedVectors.load_word2vec_format(str(path), binary=True)
        loaded = KeyedVectors.load(str(path), mmap=None if path.suffix == ".gz" else "r")
    except Exception as error:  # whatever a pickle may raise
        wrong = f"gensim cannot load it ({type(error).__name__}: {error})"
        remedy = "Fetch the file again if it is cut off; a .kv needs the .npy files beside it"
        raise VectorError.at(path, None, wrong, remedy) from error
    if not isinstance(loaded, KeyedVectors):
        wrong = f"it holds a {type(loaded).__name__}, not KeyedVectors"
        raise VectorError.at(path, None, wrong, "Save that model's `wv` instead")
    return loaded


def _read_text(path: Path, wanted: Collection[str]) -> Found:
    lines: dict[str, tuple[int, bytes]] = {}  # of a word: the number of its line, and the line
    repeated = 0
    with _opened(path) as file:
        first = file.readline()
        header = _header(first)
        size = header[1] if header else first.rstrip().count(b" ")
        if first and not size:
            raise VectorError.at(path, 1, f"no vector, but {_shown(first.rstrip())}", _ACCEPTED)
        number = start = 1 if header else 0
        for number, raw in enumerate(file if header else chain([first] * bool(first), file), start + 1):
            line = raw.rstrip()
            try:
                word = line[: line.index(b" ")].decode()
            except ValueError:  # no blank, or not UTF-8
                raise _bad_line(path, number, line, size) from None
            if line.count(b" ") != size:
                raise _bad_line(path, number, line, size)
            if word in lines:
                repeated += 1
            elif word in wanted:
                lines[word] = number, line
    if number == start:
        raise VectorError.at(path, None, "the file holds no vectors", _ACCEPTED)
    if header and header[0] != number - 1:
        wrong = f"the header says {header[0]:,} rows, but {number - 1:,} follow"
        remedy = "Fetch the file again if it is cut off; else correct the header, or delete it"
        raise VectorError.at(path, 1, wrong, remedy)
    matrix = _parse([line for _, line in lines.values()], size)
    if matrix is None:
        number, line = next((number, line) for number, line in lines.values() if _parse([line], size) is None)
        raise _bad_line(path, number, line, size)
    return Found({word: row for row, word in enumerate(lines)}, matrix, {"repeated_rows": repeated})


def _parse(lines: Sequence[bytes], size: int) -> NDArray[np.float32] | None:
    """The vectors of these lines; None if a value is not a finite number."""
    from gensim.models import KeyedVectors

    if not lines:
        return np.zeros((0, size), np.float32)
    with NamedTemporaryFile() as file, np.errstate(over="ignore"):
        file.write(b"\n".join((b"%d %d" % (len(lines), size), *lines)))
        file.flush()
        try:
            matrix: NDArray[np.float32] = KeyedVectors.load_word2vec_format(file.name).vectors
        except ValueError:
            return None
    return matrix if np.isfinite(matrix).all() else None


def _bad_line(path: Path, number: int, line: bytes, size: int) -> VectorError:
    return VectorError.at(
        path,
        number,
        f"{_shown(line)} is not a word in UTF-8 and {size} finite numbers, with one blank between",
        f"Fetch the file again if it is cut off. Some words of glove.840B have a blank in them, which no word of a "
        f"corpus has: leave their lines out with `awk 'NF == {size + 1}'`. Else mend the line",
    )


def _shown(text: bytes) -> str:
    return repr(text[:40].decode(errors="backslashreplace")) + ("…" if len(text) > 40 else "")
