"""Readers of CoNLL-U and CoNLL-X files: return sentences with their trees, and validate every row.

The `conllu` library parses ids and heads. It accepts rows with missing columns and does not report line numbers, so
this module splits the file into blocks and checks the rows itself. Only one block is in memory beside the result.

CoNLL-U: https://universaldependencies.org/format.html. CoNLL-X: Buchholz and Marsi 2006, "CoNLL-X shared task on
multilingual dependency parsing", §3.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from os.path import commonprefix
from pathlib import Path
from typing import Literal

from conllu.exceptions import ParseException
from conllu.parser import parse_comment_line, parse_id_value, parse_int_value

from attention_probing.corpora.lines import infer_format, read_lines
from attention_probing.corpora.sentence import CorpusError, RunningText, Sentence, Treebank, find_cycle
from attention_probing.results.errors import pluralize, setting
from attention_probing.results.progress import warn

# Part of the key under which attention over a corpus is stored. Raise it with every change that makes the same file
# give other sentences; else stores made before the change would be taken for current ones.
READER_VERSION: int = 3
TEXTS_VERSION: int = 2  # the same of `RunningText`, which is read for some stores only

TreebankFormat = Literal["conllu", "conllx"]
Id = int | tuple[int, str, int] | None  # 7; 3-4 as (3, "-", 4); 8.1 as (8, ".", 1); _
Block = list[tuple[int, str]]  # line number, counted from 1, and text of each line

_NEW_DOCUMENT = re.compile(r"#\s*newdoc\b")
_TEXT = re.compile(r"#\s*text\s*=(.*)")
_CONTROL = re.compile(r"[\x01-\x08\x0b-\x1f\x7f-\x9f]")
_SUFFIXES: dict[str, TreebankFormat] = {".conllu": "conllu", ".conll": "conllx", ".conllx": "conllx"}
_LONGEST = 1 << 17  # characters of a row, all its columns together; a comment may be longer
_DIGITS = 1_000
_NUMBER = re.compile(rf"\d{{{_DIGITS}}}")  # Python refuses one of 4,300 digits
_COLUMNS = 10
_COUNTS = """sentences words range_rows empty_rows multiple_roots duplicates generated_ids repeated_ids comment_blocks
documents"""
_PLACES = (1, 3, 4, 7)  # of the columns that are text
_NAMES: dict[TreebankFormat, tuple[str, ...]] = {
    "conllu": ("FORM", "UPOS", "XPOS", "DEPREL"),
    "conllx": ("FORM", "CPOSTAG", "POSTAG", "DEPREL"),
}
# The library matches every number with a regular expression; nearly all are among these.
_NUMBERS = {str(number): number for number in range(512)}


def read_treebank(path: Path, *, texts: bool = False) -> Treebank:
    """Read the sentences of a CoNLL-U or CoNLL-X file, and count dropped rows and irregularities.

    Multiword tokens (`3-4`) and empty nodes (`8.1`) are dropped and counted. Some violations of the formats are
    accepted: several roots (counted), a missing last blank line, CRLF line ends, a byte-order mark. A sentence
    without `sent_id` is named `<stem>-<ordinal>`; a repeated `sent_id` gets a suffix `.2`, `.3`, … (counted).
    A comment `# newdoc` begins a document; sentences before the first one are a document of their own.

    Args:
        path: The file, in UTF-8. Its suffix says the format: .conllu; .conll or .conllx.
        texts: True to read the text of each sentence too, from `SpaceAfter=No` in column MISC of CoNLL-U, and to
            compare it with the comment `# text`.

    Raises:
        CorpusError: The file is missing, empty, in another encoding, or breaks the format, or `texts` is True for
            CoNLL-X; the message names file, line and remedy.
    """
    path = Path(path)
    reader = _Reader(path, infer_format(path, _SUFFIXES), texts=texts)
    if texts and reader.format == "conllx":
        raise no_text(path, "Give a CoNLL-U file")
    sentences = tuple(sentence for sentence, _ in reader.with_rows())
    if not sentences:
        raise CorpusError.at(path, None, "the file holds no sentence", "Check that it is the file you meant")
    reader.audit["documents"] = len({sentence.document for sentence in sentences if sentence.document >= 0})
    if reader.audit["documents"] and sentences[0].document < 0:
        # The first sentences stand before the first mark.
        sentences = tuple(replace(sentence, document=sentence.document + 1) for sentence in sentences)
        reader.audit["documents"] += 1
    return Treebank(sentences, reader.audit)


def sentences_with_rows(
    path: Path, audit: Counter[str], *, format: TreebankFormat | None = None
) -> Iterator[tuple[Sentence, Block]]:
    """Yield each sentence of a CoNLL-U or CoNLL-X file with its rows; only one sentence is in memory.

    The rows are (line number, line) pairs, without comment lines but with the rows of multiword tokens and
    empty nodes. Unlike `read_treebank`, it accepts a file without sentences, and leaves a repeated `sent_id`
    unchanged.

    Args:
        path: The file, in UTF-8.
        audit: Receives the counts of dropped rows (`range_rows` for multiword tokens, `empty_rows` for empty nodes)
            and of sentences with `multiple_roots`.
        format: `conllu` or `conllx`; None takes it from the suffix.

    Raises:
        CorpusError: The file is missing, in another encoding, or breaks the format.
    """
    reader = _Reader(path, format or infer_format(path, _SUFFIXES), unique=False)
    for sentence_and_rows in reader.with_rows():
        for name in ("range_rows", "empty_rows", "multiple_roots"):
            audit[name] += reader.audit[name]
            reader.audit[name] = 0
        yield sentence_and_rows


def no_text(path: Path, remedy: str) -> CorpusError:
    """Return the error for a corpus whose format has no running text.

    Args:
        path: The file.
        remedy: Advice for a reader who needs the running text.
    """
    wrong = (
        f"the format does not say where a blank stands between two words, as "
        f"{setting('data.options.spacing', 'text')} needs"
    )
    return CorpusError.at(path, None, wrong, f"{remedy}, or leave the option out")


def blocks(path: Path) -> Iterator[Block]:
    """Yield the blocks of consecutive non-blank lines of a file, as (line number, line) pairs without line ends.

    Raises:
        CorpusError: The file cannot be read as UTF-8 text, or a row that is no comment has a control character, which
            a tokenizer would drop, a number of 1,000 digits, or 131,072 characters.
    """
    block: Block = []
    for number, line in read_lines(path):
        if not line.startswith("#"):
            _check_row(path, number, line)
        if line and (not line.isspace() or "\t" in line):
            block.append((number, line))
        elif block:
            yield block
            block = []
    if block:
        yield block


def _check_row(path: Path, number: int, line: str) -> None:
    """Raise a CorpusError if a row is too long, or has characters that no column should have."""
    if len(line) >= _LONGEST:
        remedy = "Correct it, if columns or rows were joined, or remove its sentence"
        raise CorpusError.at(path, number, f"the row has {_LONGEST:,} characters or more", remedy)
    if len(line) >= _DIGITS and _NUMBER.search(line):
        raise CorpusError.at(path, number, f"the line has a number of {_DIGITS:,} digits or more", "Correct it")
    control = _CONTROL.search(line)
    if control is not None:
        wrong = f"character {control.start() + 1} of the line is the control character U+{ord(control[0]):04X}"
        raise CorpusError.at(path, number, wrong, "Remove it")


def _running_text(block: Block, rows: Block) -> RunningText:
    """Return the text of a sentence.

    Args:
        block: Its lines.
        rows: Those of its words, multiword tokens and empty nodes.
    """
    text = ""
    starts: list[int] = []
    respelled = 0
    token = _Token("", 0, 0)
    for _, line in rows:
        columns = line.split("\t")
        position, _, end = columns[0].partition("-")
        if "." in position:
            continue
        if end or int(position) > token.last:  # a token, which has one word or several
            token = _Token(columns[1], len(text), int(end or position))
            text += token.surface
            if "SpaceAfter=No" not in columns[9].split("|"):
                text += " "
        if not end:
            starts.append(token.add_word(columns[1]))
            if int(position) == token.last and not token.is_spelled:
                respelled += len(token.forms)
    text = text.rstrip()
    return RunningText(text, tuple(starts), respelled, _differs_from_comment(text, block))


@dataclass
class _Token:
    """A token of running text, whose characters its words divide; see `RunningText`.

    Attributes:
        surface: The token as it is written.
        start: Index of its first character in the text.
        last: Number of its last word.
        forms: Forms of its words so far.
        used: Number of its characters that belong to these words.
    """

    surface: str
    start: int
    last: int
    forms: list[str] = field(default_factory=list)
    used: int = 0

    def add_word(self, form: str) -> int:
        """Return the index in the text of the first character of the next word."""
        start = self.start + self.used
        common = len(commonprefix([form, self.surface[self.used :]]))  # noqa: RUF071 # of characters
        if not self.forms:
            common = max(common, 1)
        self.used += common
        self.forms.append(form)
        return start

    @property
    def is_spelled(self) -> bool:
        """True if the forms of the words, put together, are the token."""
        return "".join(self.forms) == self.surface


def _differs_from_comment(text: str, block: Block) -> bool:
    """Return True if a comment `# text` of a sentence is another text, apart from the kind of its white space."""
    for _, line in block:
        comment = _TEXT.match(line)
        if comment is not None and comment[1].split() != text.split():
            return True
    return False


class _Reader:
    """Reader of one file; with `unique` it finds repeated names and texts, with `texts` it reads running text."""

    def __init__(self, path: Path, format: TreebankFormat, *, unique: bool = True, texts: bool = False) -> None:
        self.path = path
        self._running = texts
        self._unique = unique
        self.format = format
        self.audit = dict.fromkeys(_COUNTS.split(), 0)
        self._strings: dict[str, str] = {}
        self._names: set[str] = set()
        self._texts: set[tuple[str, ...]] = set()
        self._document = -1  # before the first mark of a document

    def with_rows(self) -> Iterator[tuple[Sentence, Block]]:
        """Yield the sentences of the file, each with its rows; only one block is in memory."""
        for block in blocks(self.path):
            rows = [(number, line) for number, line in block if not line.startswith("#")]
            if any(_NEW_DOCUMENT.match(line) for _, line in block):
                self._document += 1
            if rows:
                self.audit["sentences"] += 1
                sentence = self._sentence(block, rows)
                self.audit["words"] += len(sentence)
                yield sentence, rows
            else:
                self.audit["comment_blocks"] += 1

    def _sentence(self, block: Block, rows: Block) -> Sentence:
        intern = self._strings.setdefault
        words: list[str] = []
        heads: list[int] = []
        relations: list[str] = []
        upos: list[str] = []
        xpos: list[str] = []
        numbers: list[int] = []  # the line of each word
        # End and line of the last multiword token.
        span_end = 0
        span_line = 0
        for number, line in rows:
            position, form, coarse_tag, fine_tag, head, relation = self._values(number, line)
            if position != len(words) + 1:
                end = self._count_dropped(number, position, len(words))
                if end:
                    span_end = end
                    span_line = number
                continue
            if head is None:
                raise self._missing(number, f"word {position} ({form}) has no head", "HEAD")
            if relation == "_":
                raise self._missing(number, f"word {position} ({form}) has no relation", "DEPREL")
            words.append(intern(form, form))
            heads.append(head)
            relations.append(intern(relation, relation))
            upos.append(intern(coarse_tag, coarse_tag))
            xpos.append(intern(fine_tag, fine_tag))
            numbers.append(number)
        if not words:
            wrong = f"the sentence has no words, only rows with ids such as {rows[0][1].partition(chr(9))[0]}"
            raise self._error(rows[0][0], wrong, "Add its words with the ids 1, 2, 3, …, or remove the sentence")
        if span_end > len(words):
            wrong = f"the multiword token ends at word {span_end}, but the sentence has {pluralize(len(words), 'word')}"
            raise self._error(span_line, wrong, "Correct its range in column ID")
        self._check_tree(words, heads, numbers)
        text = tuple(words)
        if self._unique:
            self.audit["duplicates"] += text in self._texts
            self._texts.add(text)
        return Sentence(
            id=self._name(block),
            words=text,
            heads=tuple(heads),
            relations=tuple(relations),
            upos=tuple(upos),
            xpos=tuple(xpos),
            running=_running_text(block, rows) if self._running else None,
            document=self._document,
        )

    def _missing(self, number: int, wrong: str, column: str) -> CorpusError:
        return self._error(number, wrong, f"Fill column {column}; a root has head 0 and relation root")

    def _values(self, number: int, line: str) -> tuple[Id, str, str, str, int | None, str]:
        """Check and parse one row: id, form, both tags, head and relation; id and head None stand for `_`."""
        columns = line.split("\t")
        if len(columns) != _COLUMNS:
            wrong = f"the row has {len(columns)} columns instead of {_COLUMNS}"
            if len(columns) == 1:
                wrong = f"the row has no tab, but must have {_COLUMNS} columns"
            raise self._error(number, wrong, f"Separate {_COLUMNS} columns by one tab each, with _ for an empty one")
        form, upos, xpos, relation = values = [columns[place] for place in _PLACES]
        for name, value in zip(_NAMES[self.format], values, strict=True):
            if not value or value.isspace():
                raise self._error(number, f"column {name} is empty", "Fill the column, or write _ for no value")
        try:
            position = _NUMBERS.get(columns[0]) or parse_id_value(columns[0])
        except ParseException:
            remedy = "Write 1, 2, 3, …; in CoNLL-U also 3-4 for a multiword token, and 8.1 for an empty node"
            raise self._error(number, f"id {columns[0]!r} is not valid", remedy) from None
        try:
            head = _NUMBERS.get(columns[6]) or parse_int_value(columns[6])
        except ParseException:
            remedy = "Write the position of the head, 0 for a root"
            raise self._error(number, f"head {columns[6]!r} is not a number", remedy) from None
        return position, form, upos, xpos, head, relation

    def _count_dropped(self, number: int, position: Id, last: int) -> int:
        """Count a dropped row; return the last word of a multiword token, 0 for an empty node."""
        match position, self.format:
            case (int(start), "-", int(end)), "conllu" if start == last + 1:
                self.audit["range_rows"] += 1
                return end
            case (int(before), ".", int()), "conllu" if before == last:
                self.audit["empty_rows"] += 1
                return 0
            case (tuple(), "conllx"):
                kind = "a multiword token" if "-" in position else "an empty node"
                wrong = (
                    f"the id {_format_id(position)} is that of {kind}, but the file is read as CoNLL-X, which has none"
                )
                remedy = "To read it as CoNLL-U, set its `format` to conllu, or rename it to end in .conllu"
                raise self._error(number, wrong, remedy)
        remedy = f"The next word must have the number {last + 1}; a blank line must separate two sentences"
        raise self._error(number, f"the id is {_format_id(position)} after word {last}", remedy)

    def _check_tree(self, words: list[str], heads: list[int], numbers: list[int]) -> None:
        """Raise CorpusError for heads out of range, cycles and sentences without a root, at the line of the word."""
        n = len(words)
        for i, head in enumerate(heads):
            if not 0 <= head <= n:
                wrong = f"word {i + 1} ({words[i]}) has head {head}, but the sentence has {pluralize(n, 'word')}"
                raise self._error(numbers[i], wrong, f"Write a number from 0 (the root) to {n} in column HEAD")
        roots = heads.count(0)
        cycle = find_cycle(heads)
        if cycle:
            names = [f"{i} ({words[i - 1]})" for i in (*cycle, cycle[0])]
            wrong = f"the heads form a cycle: {' → '.join(names)}"
            if len(cycle) == 1:
                wrong = f"word {names[0]} is its own head"
            remedy = "Correct column HEAD"
            if not roots:
                wrong = f"the sentence has no root; {wrong}"
                remedy = "Correct column HEAD; the root must have head 0"
            raise self._error(numbers[cycle[0] - 1], wrong, remedy)
        self.audit["multiple_roots"] += roots > 1

    def _name(self, block: Block) -> str:
        """Return the `sent_id` or a generated name; with `unique`, one that is unique in the file."""
        name = _find_name(block)
        if name is None:
            name = f"{self.path.stem}-{self.audit['sentences']}"
            self.audit["generated_ids"] += 1
        if not self._unique:
            return name
        if name in self._names:
            self.audit["repeated_ids"] += 1
            names = (f"{name}.{number}" for number in count(2))
            name = next(new for new in names if new not in self._names)
        self._names.add(name)
        return name

    def _error(self, line: int, wrong: str, remedy: str) -> CorpusError:
        return CorpusError.at(self.path, line, wrong, remedy)


def _find_name(block: Block) -> str | None:
    """Return the `sent_id` in the comments of a sentence; None if it has none."""
    for _, line in block:
        if not line.startswith("#") or "sent_id" not in line:
            continue  # parsing takes longer
        for key, value in parse_comment_line(line):
            if key == "sent_id" and value:
                return str(value)
    return None


def _format_id(position: Id) -> str:
    """Return an id as it is written in the file."""
    if position is None:
        return "_"
    if isinstance(position, tuple):
        return "".join(map(str, position))
    return str(position)


def warn_of_roots(name: Path | str, audit: Mapping[str, int]) -> None:
    """Log a warning if a treebank has trees with several roots; Universal Dependencies allows one.

    Args:
        name: File or name of the treebank, for the message.
        audit: Counts of the treebank's reader; `multiple_roots` is the number of such trees.
    """
    several = audit.get("multiple_roots", 0)
    if several:
        warn(
            f"{name}: {pluralize(several, 'sentence')} with more than one root: a tree of Universal Dependencies has "
            f"one. They are read as they are; check column HEAD."
        )


def warn_of_texts(path: Path, audit: Mapping[str, int]) -> None:
    """Log a warning if running text is not that of the comments `# text`; both are read with `spacing: text` alone.

    Args:
        path: The corpus file, for the message.
        audit: Counts of the items; `texts_unlike_comment` is the number of such sentences.
    """
    unlike = audit.get("texts_unlike_comment", 0)
    if unlike:
        warn(
            f"{path}: the running text of {pluralize(unlike, 'sentence')}, made from column FORM and SpaceAfter=No in "
            "column MISC, is not the text in the comment `# text`, and is read as it is. Correct them: validate.py of "
            "Universal Dependencies names their lines."
        )
