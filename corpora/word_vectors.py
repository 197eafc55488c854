"""Reader of files of word vectors: the text formats of GloVe and word2vec, and the binary format of word2vec.

A text has a row for each word: the word and its values, separated by single blanks. The first line of word2vec's
formats, the header, has the number of rows and of the values of each. GloVe has no header.

Rows are read one by one and only those of wanted words are kept, so that the memory depends on the corpus and not on
the file. gensim reads whole files, stops at the number of rows in the header, and keeps a byte-order mark.
"""

import gzip
import re
import shlex
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attention_probing.corpora.sentence import CorpusError
from attention_probing.results.errors import pluralize

_MOST_VALUES = 1 << 14  # of a vector; the input embeddings of the largest language models have as many
_BLOCK = 1 << 20  # bytes read at a time, and the longest row
_SMALL = 1 << 24  # bytes that any .gz may unpack to
_MOST_TIMES = 20  # that a larger .gz may grow; word vectors grow two or three times
_MARK = b"\xef\xbb\xbf"  # byte-order mark of some editors; in the middle of a file where two were joined
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_HEADER = re.compile(rb"([+-]?[0-9]{1,40})[ \t]+([+-]?[0-9]{1,40})\s*")
_MOST_ROWS = 10**12
_REMEDY = (
    "Name a text file with a word and its values in each line, separated by single blanks, or a file in the binary "
    "format of word2vec; fetch it again if it is cut off"
)

RawRow = tuple[int, bytes, bytes]
"""Number of a row, counted from 1 (of a text that of its line), the word, and its values, as they are in the file."""


@dataclass(frozen=True, eq=False)
class WordRows:
    """Rows of a file of word vectors.

    The entries of `audit` are:

    - `rows`: rows of the file.
    - `rows_not_utf8`: rows left out because their word is not UTF-8.
    - `words_with_blanks`: rows whose word has blanks inside, such as `. . .`; they are kept like others.
    - `rows_repeated`: rows left out because an earlier row has the same wanted word.

    Attributes:
        words: The wanted words that have a row, in the order of the file.
        matrix: Their values, float32 `[words, size]`.
        audit: Counts by name, as listed above.
    """

    words: tuple[str, ...]
    matrix: NDArray[np.float32]
    audit: Mapping[str, int]


def read_word_vectors(path: Path, words: Collection[str]) -> WordRows:
    """Return the rows of the wanted words in a file of word vectors.

    A word in a text may have blanks inside, but a number at its end only without them: it could be one value too many.
    Without a header, all rows have as many values as the first.

    A file is binary if it has a header and its second line is not a row of text. All of its rows must then fit this
    format, in number and in length.

    Args:
        path: The file; it is unpacked if its name ends in `.gz`.
        words: Words whose rows are read.

    Raises:
        CorpusError: The file is in none of the formats, a row has another number of values than the header or the first
            row, the number of rows is not that of the header, the values of a wanted word are not finite numbers, a
            `.gz` is damaged or unpacks to far more bytes than word vectors do, or the file cannot be read.
    """
    with _open_unpacked(path) as file:
        blocks = _blocks(path, file)
        start = next(blocks, b"")
        layout = _Layout.of(path, start)
        rows = layout.rows(chain([start], blocks))
        vectors: dict[str, NDArray[np.float32]] = {}
        audit = {"rows": 0, "rows_not_utf8": 0, "words_with_blanks": 0, "rows_repeated": 0}
        for number, raw, values in rows:
            audit["rows"] += 1
            audit["words_with_blanks"] += b" " in raw
            try:
                word = raw.decode("utf-8")
            except UnicodeDecodeError:
                audit["rows_not_utf8"] += 1
                continue
            if word not in words:
                continue
            if word in vectors:
                audit["rows_repeated"] += 1
                continue
            vectors[word] = layout.vector(number, word, values)
    layout.check_number(audit["rows"])
    matrix = np.array(list(vectors.values()), np.float32).reshape(len(vectors), layout.size)
    return WordRows(tuple(vectors), matrix, audit)


def check_word_vectors(path: Path) -> None:
    """Raise an error if the beginning of a file is not that of word vectors; it takes no time, however large the file.

    Raises:
        CorpusError: The beginning is in none of the formats, a vector has more than 16,384 values, or the file cannot
            be read.
    """
    with _open_unpacked(path) as file:
        _Layout.of(path, next(_blocks(path, file), b""))


@contextmanager
def _open_unpacked(path: Path) -> Iterator[BufferedIOBase]:
    """Open a file, unpacked; raise a CorpusError if it cannot be read or is a damaged .gz."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as unpacked:
                yield unpacked
        else:
            with path.open("rb") as file:
                yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError.at(path, None, f"the .gz file is damaged ({error})", "Fetch it again") from error
    except OSError as error:
        wrong = f"the file cannot be read ({error.strerror})"
        raise CorpusError.at(path, None, wrong, "Check the path and its permissions") from error


def _blocks(path: Path, file: BufferedIOBase) -> Iterator[bytes]:
    """Yield the unpacked content; raise a CorpusError if there is far more of it than word vectors have."""
    most = max(_SMALL, _MOST_TIMES * path.stat().st_size)
    unpacked = 0
    while block := file.read(_BLOCK):
        unpacked += len(block)
        if unpacked > most:
            wrong = f"the .gz file unpacks to more than {most:,} bytes, {_MOST_TIMES} times its size or more"
            raise CorpusError.at(path, None, wrong, "Word vectors do not: check its source, or unpack it yourself")
        yield block


@dataclass(frozen=True)
class _Layout:
    """Format of a file.

    Attributes:
        path: The file, for messages.
        form: `text` or `binary`.
        size: Number of values of a row.
        promised: Number of rows in the header; None without a header.
        header: Length of the header in bytes, 0 without one.
    """

    path: Path
    form: Literal["text", "binary"]
    size: int
    promised: int | None
    header: int

    @classmethod
    def of(cls, path: Path, start: bytes) -> "_Layout":
        """Return the format of a file from its first block.

        Raises:
            CorpusError: The beginning fits no format.
        """
        first, end, rest = start.partition(b"\n")
        if len(first) >= _BLOCK:
            raise CorpusError.at(path, 1, f"the line has more than {_BLOCK:,} bytes", _REMEDY)
        header = _HEADER.fullmatch(first.removeprefix(_MARK))
        if header is None:
            size = _count_numbers(first)
            if not size:
                wrong = "the first line is neither a word and its values nor the header of word2vec's formats"
                raise CorpusError.at(path, 1, wrong, _remedy(path, start))
            cls._check_size(path, size)
            return cls(path, "text", size, None, 0)
        promised = int(header[1])
        size = int(header[2])
        if not 0 <= promised <= _MOST_ROWS:
            raise CorpusError.at(path, 1, f"the header promises {promised:,} rows", _REMEDY)
        cls._check_size(path, size)
        second = rest.partition(b"\n")[0].rstrip()
        numbers = _count_numbers(second)
        is_text = numbers > 0 and numbers in (size, second.count(b" "))
        return cls(path, "text" if is_text else "binary", size, promised, len(first + end))

    @staticmethod
    def _check_size(path: Path, size: int) -> None:
        if not 1 <= size <= _MOST_VALUES:
            wrong = f"by the first line a word has {pluralize(size, 'value')}, but 1 to {_MOST_VALUES:,} can be read"
            raise CorpusError.at(path, 1, wrong, _REMEDY)

    def rows(self, blocks: Iterator[bytes]) -> Iterator[RawRow]:
        """Yield the rows of the whole content.

        Raises:
            CorpusError: A row has another length.
        """
        if self.form == "text":
            return self._text_rows(blocks)
        return self._binary_rows(blocks)

    def _text_rows(self, blocks: Iterator[bytes]) -> Iterator[RawRow]:
        for line, raw in enumerate(self._lines(blocks), start=1):
            row = raw.removeprefix(_MARK).rstrip()
            if not row or (line == 1 and self.header):
                continue
            word, _, values = row.partition(b" ")
            if row.count(b" ") != self.size:
                if _count_numbers(row) != self.size:
                    raise self._other_size(line, row)
                word, *numbers = row.rsplit(b" ", self.size)
                values = b" ".join(numbers)
                if b"" in word.split(b" "):
                    raise self._error(line, "the row has two blanks in succession", _REMEDY)
            yield line, word, values

    def _other_size(self, line: int, row: bytes) -> CorpusError:
        """Return the error for a row with another number of values than the header or the first row."""
        first = "the header"
        remedy = "Fetch the file again if it is cut off"
        if self.promised is None:
            first = "the first row"
            remedy = (
                "Fetch the file again if it is cut off; if the word of the first row ends in a number, write the "
                "header of word2vec before it, which is the number of rows, a blank, and the number of values"
            )
        wrong = f"the row has {pluralize(_count_numbers(row), 'value')}, but by {first} it has {self.size}"
        return self._error(line, wrong, remedy)

    def _lines(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        rest = b""
        number = 1
        for block in blocks:
            *lines, rest = (rest + block).split(b"\n")
            number += len(lines)
            if len(rest) > _BLOCK:
                raise self._error(number, f"the line has more than {_BLOCK:,} bytes", _REMEDY)
            yield from lines
        yield rest

    def _binary_rows(self, blocks: Iterator[bytes]) -> Iterator[RawRow]:
        length = 4 * self.size  # bytes of the values
        number = 0
        rest = b""
        skipped = self.header
        for block in blocks:
            rest += block[skipped:]
            skipped = 0
            start = 0
            while (blank := rest.find(b" ", start)) >= 0 and len(rest) > blank + length:
                number += 1
                word = rest[start:blank].removeprefix(b"\n")  # some programs end a row with one
                if b"\n" in word:
                    raise self._not_binary(f"row {number:,} has a line break in its word")
                start = blank + 1 + length
                yield number, word, rest[blank + 1 : start]
            rest = rest[start:]
            if len(rest) > _BLOCK + length:
                raise self._not_binary(f"row {number + 1:,} has a word of more than {_BLOCK:,} bytes")
        if rest.strip():
            raise self._not_binary(f"the file ends within row {number + 1:,} of {self.promised:,}")

    def _not_binary(self, fault: str) -> CorpusError:
        wrong = f"line 2 is not a word and its {pluralize(self.size, 'value')}; read as the binary format, {fault}"
        return CorpusError.at(self.path, None, wrong, _REMEDY)

    def vector(self, number: int, word: str, values: bytes) -> NDArray[np.float32]:
        """Return the values of a row, float32 `[size]`.

        Raises:
            CorpusError: A value is not a finite number.
        """
        try:
            vector = self._parse(values)
        except ValueError as error:
            raise self._error(number, f"a value of the word {word!r} is not a number ({error})", _REMEDY) from None
        if not np.isfinite(vector).all():
            raise self._error(number, f"a value of the word {word!r} is infinite or not a number", _REMEDY)
        return vector

    def _parse(self, values: bytes) -> NDArray[np.float32]:
        if self.form == "binary":
            return np.frombuffer(values, "<f4")
        with np.errstate(over="ignore"):  # an infinite value is refused
            return np.array([float(value) for value in values.split(b" ")]).astype(np.float32)

    def check_number(self, rows: int) -> None:
        """Raise a CorpusError if the number of rows is not the one in the header."""
        if self.promised is None or rows == self.promised:
            return
        wrong = f"the header promises {pluralize(self.promised, 'row')}, but the file has {rows:,}"
        remedy = f"Fetch the file again if it is cut off; if its rows are right, write {rows} into the header"
        raise CorpusError.at(self.path, 1, wrong, remedy)

    def _error(self, number: int, wrong: str, remedy: str) -> CorpusError:
        if self.form == "text":
            return CorpusError.at(self.path, number, wrong, remedy)
        return CorpusError.at(self.path, None, f"row {number:,}: {wrong}", remedy)


def _count_numbers(row: bytes) -> int:
    """Return the number of values at the end of a row, after its word.

    If the word ends in a number, this counts as a value: nothing tells them apart.
    """
    _, *parts = row.rstrip().split(b" ")
    numbers = 0
    for part in reversed(parts):
        if not _is_number(part):
            break
        numbers += 1
    return numbers


def _is_number(value: bytes) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _remedy(path: Path, start: bytes) -> str:
    if start.startswith(_UTF16):
        return f"It is in UTF-16; convert it: `{_converted(path, 'iconv -f UTF-16 -t UTF-8')}`"
    return _REMEDY


def latin_remedy(path: Path) -> str:
    """Return the advice to convert a file in Latin-1, for a message about words that are not UTF-8."""
    with _open_unpacked(path) as file:
        form = _Layout.of(path, next(_blocks(path, file), b"")).form
    if form == "binary":
        load = f"KeyedVectors.load_word2vec_format({str(path)!r}, binary=True, encoding='latin1')"
        return f"If all of its words are in Latin-1, convert it with gensim: {load}.save_word2vec_format('new.txt')"
    command = _converted(path, "iconv -f LATIN1 -t UTF-8")
    return f"If all of its words are in Latin-1, convert it: `{command}`"


def _converted(path: Path, command: str) -> str:
    """Return the command line that writes a converted copy of a file."""
    source = shlex.quote(str(path))
    target = shlex.quote(f"{path.stem}.new{path.suffix}")
    if path.suffix == ".gz":
        return f"zcat {source} | {command} | gzip > {target}"
    return f"{command} {source} > {target}"
