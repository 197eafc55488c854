"""Numbered lines of a text file, decoded one by one so that every error names its line."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from attention_probing.corpora.files import no_file, unreadable
from attention_probing.corpora.sentence import CorpusError
from attention_probing.results.files import check_regular

BYTE_ORDER_MARK = "\ufeff"
"""Mark at the beginning of files of some editors."""

LONGEST_LINE = 1 << 21
"""Bytes of a line, and characters of a field of CSV, below which they must be: about 400,000 words, for which a
tokenizer takes half a gigabyte."""

LONGEST_WORD = 1 << 20
"""Characters below which a word must be; text of languages without blanks may be one word."""

Name = TypeVar("Name", bound=str)


def read_lines(path: Path, audit: Counter[str] | None = None, longest: int = LONGEST_LINE) -> Iterator[tuple[int, str]]:
    r"""Yield the number, counted from 1, and the text of each line of a UTF-8 file; only `\n` or `\r\n` ends a line.

    A byte-order mark at the beginning of the file is dropped.

    Args:
        path: The file.
        audit: Receives the count `invisible_characters` of byte-order marks at the beginning of later lines, where
            files were joined; they are dropped, too. With None they stay.
        longest: Number of bytes below which a line must be.

    Raises:
        CorpusError: The file is missing, cannot be read or is no regular file, or a line is not UTF-8, holds a NUL
            byte, or is too long.
    """
    if "\0" in str(path):
        raise CorpusError.at(repr(str(path)), None, "the path contains a NUL character", "Remove it from the path")
    try:
        # Read as bytes: an error then has a line number, and only \n ends a line.
        with check_regular(path).open("rb") as lines:
            for number, raw in enumerate(iter(partial(lines.readline, longest), b""), start=1):
                if len(raw) == longest:
                    wrong = f"the line has {longest:,} bytes or more"
                    remedy = "Check that it is the text file you meant; if it is, break its text into lines"
                    raise CorpusError.at(path, number, wrong, remedy)
                try:
                    line = raw.decode("utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    raise _not_utf8(path, number, raw, error) from None
                if "\0" in line:
                    remedy = "Check that it is the text file you meant; if it is in UTF-16, convert it to UTF-8"
                    raise CorpusError.at(path, number, "the line holds a NUL byte", remedy)
                if line.startswith(BYTE_ORDER_MARK):
                    line = _without_mark(number, line, audit)
                yield number, line
    except OSError as error:
        raise unreadable(path, error) from None


def check_words(path: Path, line: int, text: str) -> None:
    """Raise a CorpusError if a text has a word so long that a tokenizer would take gigabytes for it.

    Args:
        path: The file.
        line: Line of the file at which the text starts.
        text: The text, with white space between its words.
    """
    if len(text) < LONGEST_WORD:
        return
    longest = max(map(len, text.split()), default=0)
    if longest >= LONGEST_WORD:
        wrong = f"a word has {longest:,} characters, but must have fewer than {LONGEST_WORD:,}"
        raise CorpusError.at(path, line, wrong, "Separate the words of the text by blanks, or remove it")


def _without_mark(number: int, line: str, audit: Counter[str] | None) -> str:
    if number > 1:
        if audit is None:
            return line
        audit["invisible_characters"] += 1
    return line.removeprefix(BYTE_ORDER_MARK)


def infer_format(path: Path, suffixes: Mapping[str, Name], option: str | None = None) -> Name:
    """Return the format that belongs to the suffix of a file.

    Args:
        path: The file.
        suffixes: Name by suffix, in lower case with its dot.
        option: Name of the option that sets the format, as messages say it. If the suffix is unknown, the error message
            advises this option. With None it advises to give the file a known suffix.

    Raises:
        CorpusError: The suffix is unknown, or there is no such file.
    """
    suffix = path.suffix.lower()
    if suffix in suffixes:
        return suffixes[suffix]
    if not path.is_file():
        raise no_file(path)
    wrong = f"the format cannot be inferred from the suffix {path.suffix!r}"
    if not path.suffix:
        wrong = "the format cannot be inferred, because the file name has no suffix"
    names: list[str] = list(suffixes)
    remedy = "Give the file the suffix"
    if option is not None:
        names = list(dict.fromkeys(suffixes.values()))
        remedy = f"Name the format with {option}:"
    *others, last = names
    remedy = f"{remedy} {', '.join(others)} or {last}"
    if option is None:
        remedy += ". Another format needs a reader: see docs/howto/add.md"
    raise CorpusError.at(path, None, wrong, remedy)


def _not_utf8(path: Path, number: int, raw: bytes, error: UnicodeDecodeError) -> CorpusError:
    encoding = "LATIN1"
    if number == 1 and raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "UTF-16"
    source = shlex.quote(str(path))
    target = shlex.quote(f"{path.stem}.utf8{path.suffix}")
    return CorpusError.at(
        path,
        number,
        f"byte 0x{raw[error.start]:02x} at position {error.start + 1} of the line is not valid UTF-8",
        f"Convert the file to UTF-8; if it is in {encoding}: `iconv -f {encoding} -t UTF-8 {source} > {target}`",
    )
