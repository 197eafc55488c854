"""Files of word vectors, read through gensim: nothing but the wanted rows is parsed.

Every other line is still checked, so that a file that is cut off or malformed is never taken for a sound one.
"""

import gzip
import zlib
from collections.abc import Iterable, Mapping, Set
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # gensim takes a second to import, and most runs need none of it
    from gensim.models import KeyedVectors

ACCEPTED = (
    "Name a text file of GloVe or word2vec (plain or .gz), a .kv of gensim, `encoder` for the encoder's own "
    "embeddings, glove.6B.50d (100d, 200d, 300d) for the file under the data root, or vectors of gensim's downloader "
    "such as glove-wiki-gigaword-50"
)
_SNIFFED = 1 << 12
_HEADER = 40
_CONTROL = frozenset(range(32)) - frozenset(b"\t\n\r")
_FETCH_AGAIN = "Fetch the file again"


class VectorError(ValueError):
    """Word vectors that cannot be had; the message is `<path>:<line>: <what is wrong>. <remedy>`, or has no line."""

    @classmethod
    def at(cls, path: Path | str, line: int | None, wrong: str, remedy: str) -> "VectorError":
        """Build the error for one place; `line` counts from 1, `wrong` and `remedy` end without a full stop."""
        place = f"{path}:{line}" if line is not None else f"{path}"
        return cls(f"{place}: {wrong}. {remedy}.")


def files_of(path: Path) -> list[Path]:
    """The file itself, and the arrays that gensim has stored beside a .kv."""
    return [path, *(sorted(path.parent.glob(f"{path.name}.*npy")) if path.suffix == ".kv" else ())]


def read_vectors(path: Path, wanted: Set[str], scratch: Path) -> tuple["KeyedVectors", Mapping[str, int]]:
    """The vectors of those wanted words that the file knows, in its order, and what was counted on the way.

    The format is told by the content: gzip or plain, word2vec's text or binary format, with or without the header of
    counts, which GloVe's files lack. A name in .kv is gensim's own; that is a pickle, so open none that you distrust.

    Args:
        path: the file.
        wanted: words as they stand in the file.
        scratch: where the wanted lines may be written meanwhile.

    Returns:
        The vectors, and of a text file `repeated_rows`: lines for a wanted word that already had one; the first counts.

    Raises:
        VectorError: the file is malformed.
        OSError: it cannot be read, or `scratch` not be written.
    """
    if path.suffix == ".kv":
        return _restricted(_read_native(path), wanted, path), {}
    try:
        if _is_binary(path):
            return _restricted(_read_binary(path), wanted, path), {}
        return _read_text(path, wanted, scratch)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise VectorError.at(path, None, f"the file is cut off or damaged ({error})", _FETCH_AGAIN) from error


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == b"PK\x03\x04":
        raise VectorError.at(path, None, "this is a zip archive", "Unpack it, and name one of the files in it")
    return gzip.open(path) if magic.startswith(b"\x1f\x8b") else path.open("rb")


def _header(line: bytes) -> tuple[int, int] | None:
    """Number of rows and their size, if this is a header of the word2vec format."""
    fields = line.split()
    return (int(fields[0]), int(fields[1])) if len(fields) == 2 and all(map(bytes.isdigit, fields)) else None


def _is_binary(path: Path) -> bool:
    with _open(path) as file:
        header, rest = file.readline(_SNIFFED), file.read(_SNIFFED)
    return _header(header) is not None and not _CONTROL.isdisjoint(rest)


def _read_text(path: Path, wanted: Set[str], scratch: Path) -> tuple["KeyedVectors", Mapping[str, int]]:
    from gensim.models import KeyedVectors

    vocabulary = {word.encode() for word in wanted}
    lines: dict[bytes, int] = {}
    header: tuple[int, int] | None = None
    number = size = repeated = 0
    with _open(path) as file, scratch.open("wb") as rows:
        rows.write(b" " * _HEADER + b"\n")  # counted at the end; without a header gensim leaves the file open
        for number, raw in enumerate(file, 1):
            line = raw.rstrip()
            if number == 1:
                header = _header(line)
                size = header[1] if header else line.count(b" ")
                if size < 1:
                    raise VectorError.at(path, 1, f"no vector, but {_shown(line)}", ACCEPTED)
                if header:
                    continue
            if line.count(b" ") != size:
                raise _miscounted(path, number, line, size, header)
            token = _token(path, number, line)
            if token in lines:
                repeated += 1
            elif token in vocabulary:
                lines[token] = number
                rows.write(line + b"\n")
        rows.seek(0)
        rows.write(f"{len(lines)} {size}".encode())
    _check_count(path, number, header)
    if not lines:
        return KeyedVectors(size), {"repeated_rows": 0}
    return _load(path, scratch, lines.values()), {"repeated_rows": repeated}


def _check_count(path: Path, lines: int, header: tuple[int, int] | None) -> None:
    """Refuse a file without a vector, or with other than as many as its header says."""
    if lines == (1 if header else 0):
        raise VectorError.at(path, None, "the file holds no vectors", ACCEPTED)
    if header and header[0] != lines - 1:
        raise VectorError.at(
            path,
            1,
            f"the header says {header[0]:,} rows, but {lines - 1:,} follow",
            "Fetch the file again if it is cut off; else correct the header, or delete it",
        )


def _token(path: Path, number: int, line: bytes) -> bytes:
    """The word of a line, which must be UTF-8."""
    token = line.partition(b" ")[0]
    try:
        token.decode()
    except UnicodeDecodeError:
        raise VectorError.at(
            path, number, f"the word {_shown(token)} is not UTF-8", "Convert the file, with iconv for one"
        ) from None
    return token


def _load(path: Path, scratch: Path, numbers: Iterable[int]) -> "KeyedVectors":
    """Vectors of the `scratch` file, whose rows stood in the lines `numbers` of `path`."""
    from gensim.models import KeyedVectors

    try:
        found = KeyedVectors.load_word2vec_format(str(scratch))
        sound = bool(np.isfinite(found.vectors).all())
    except ValueError as error:
        raise _not_a_number(path, scratch, numbers) or error from None
    if not sound:
        raise _not_a_number(path, scratch, numbers) or VectorError.at(path, None, "a value is not finite", _FETCH_AGAIN)
    return found


def _shown(text: bytes) -> str:
    return repr(text[:40].decode(errors="backslashreplace")) + ("…" if len(text) > 40 else "")


def _miscounted(path: Path, number: int, line: bytes, size: int, header: tuple[int, int] | None) -> VectorError:
    """What to say of a line that has other than `size` values."""
    fields = line.split(b" ")
    values = f"{len(fields) - 1} value{'' if len(fields) == 2 else 's'}"
    surplus = fields[1 : len(fields) - size]
    if len(fields) > size + 1 and not all(map(_is_number, surplus)):
        token = b" ".join(fields[: len(fields) - size])
        return VectorError.at(
            path,
            number,
            f"the word {_shown(token)} has a blank in it, as some of glove.840B have",
            f"No word of a corpus is written so: leave such lines out, as with `awk 'NF == {size + 1}'`",
        )
    if header and number == 2:
        return VectorError.at(
            path,
            1,
            f"the header says {size} values a row, but the first row has {values}",
            "Correct the header, or delete it",
        )
    against = f"the header says {size}" if header else f"line 1 has {size}"
    return VectorError.at(
        path,
        number,
        f"{values} after the word {_shown(fields[0])}, but {against}",
        "Fetch the file again if it is cut off; else mend the line: a word and its values, one blank between",
    )


def _is_number(text: bytes) -> bool:
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.float32(text.decode())))
    except ValueError:
        return False


def _not_a_number(path: Path, scratch: Path, numbers: Iterable[int]) -> VectorError | None:
    """The first of the lines in `scratch`, whose numbers in `path` are given, of which a value is not a number."""
    with scratch.open("rb") as rows:
        rows.readline()
        for row, number in zip(rows, numbers, strict=True):
            token, *values = row.rstrip().split(b" ")
            for place, value in enumerate(values, 1):
                if not _is_number(value):
                    return VectorError.at(
                        path,
                        number,
                        f"value {place} of the word {_shown(token)} is {_shown(value)}, not a finite number",
                        "Fetch the file again, or mend the line",
                    )
    return None


def _read_binary(path: Path) -> "KeyedVectors":
    from gensim.models import KeyedVectors

    try:
        return KeyedVectors.load_word2vec_format(str(path), binary=True)
    except (ValueError, AssertionError) as error:
        raise VectorError.at(
            path, None, f"gensim cannot read it as word2vec's binary format ({error})", _FETCH_AGAIN
        ) from error


def _read_native(path: Path) -> "KeyedVectors":
    from gensim.models import KeyedVectors

    try:
        loaded = KeyedVectors.load(str(path), mmap="r")
    except Exception as error:  # whatever a pickle may raise
        raise VectorError.at(
            path,
            None,
            f"gensim cannot load it ({type(error).__name__}: {error})",
            "Save the vectors with KeyedVectors.save, and keep the .npy files beside the .kv",
        ) from error
    if not isinstance(loaded, KeyedVectors):
        raise VectorError.at(
            path, None, f"it holds a {type(loaded).__name__}, not KeyedVectors", "Save that model's `wv` instead"
        )
    return loaded


def _restricted(loaded: "KeyedVectors", wanted: Set[str], path: Path) -> "KeyedVectors":
    # Not those that fastText would make up from a word's letters: coverage would always be 1.
    order = sorted(wanted & loaded.key_to_index.keys(), key=loaded.key_to_index.__getitem__)
    found = loaded.vectors_for_all(order, allow_inference=False)
    broken = [word for word, vector in zip(order, found.vectors, strict=True) if not np.isfinite(vector).all()]
    if broken:
        wrong = f"the vectors of {len(broken)} of the corpus's words are not finite, that of {broken[0]!r} for one"
        raise VectorError.at(path, None, wrong, _FETCH_AGAIN)
    return found
