"""Readers of CoNLL-U and CoNLL-X files: return sentences with their trees, and validate every row.

The `conllu` library parses ids and heads. It accepts rows with missing columns and does not report line numbers, so
this module splits the file into blocks and checks the rows itself. Only one block is in memory beside the result.

CoNLL-U: https://universaldependencies.org/format.html. CoNLL-X: Buchholz and Marsi 2006, "CoNLL-X shared task on
multilingual dependency parsing", §3.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
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
    for found in reader.with_rows():
        for name in ("range_rows", "empty_rows", "multiple_roots"):
            audit[name] += reader.audit[name]
            reader.audit[name] = 0
        yield found


def no_text(path: Path, remedy: str) -> CorpusError:
    """Return the error for a corpus whose format has no running text.

    Args:
        path: The file.
        remedy: What to do, if the running text is wanted.
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
    text, last, respelled = "", 0, 0
    starts, forms = list[int](), list[str]()
    for _, line in rows:
        columns = line.split("\t")
        position, _, end = columns[0].partition("-")
        if "." in position:
            continue
        if end or int(position) > last:  # a token, which has one word or several
            last, surface, before, place, forms = int(end or position), columns[1], len(text), 0, []
            text += surface + ("" if "SpaceAfter=No" in columns[9].split("|") else " ")
        if not end:
            starts.append(before + place)
            place += len(commonprefix([columns[1], surface[place:]])) or not forms  # noqa: RUF071 # of characters
            forms.append(columns[1])
            respelled += len(forms) * (int(position) == last and "".join(forms) != surface)
    text = text.rstrip()
    return RunningText(text, tuple(starts), respelled, _differs_from_comment(text, block))


def _differs_from_comment(text: str, block: Block) -> bool:
    """Return True if a comment `# text` of a sentence is another text, apart from the kind of its white space."""
    for _, line in block:
        found = _TEXT.match(line)
        if found is not None and found[1].split() != text.split():
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
        span_end, span_line = 0, 0  # the last multiword token
        for number, line in rows:
            position, form, tag, own, head, relation = self._values(number, line)
            if position != len(words) + 1:
                end = self._dropped_until(number, position, len(words))
                if end:
                    span_end = end
                    span_line = number
                continue
            if head is None or relation == "_":
                missing, column = ("head", "HEAD") if head is None else ("relation", "DEPREL")
                remedy = f"Fill column {column}; a root has head 0 and relation root"
                raise self._error(number, f"word {position} ({form}) has no {missing}", remedy)
            words.append(intern(form, form))
            heads.append(head)
            relations.append(intern(relation, relation))
            upos.append(intern(tag, tag))
            xpos.append(intern(own, own))
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
        running = _running_text(block, rows) if self._running else None
        columns = text, tuple(heads), tuple(relations), tuple(upos), tuple(xpos)
        return Sentence(self._name(block), *columns, running, self._document)

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
        wrong, remedy = (
            f"id {columns[0]!r} is not valid",
            "Write 1, 2, 3, …; in CoNLL-U also 3-4 for a multiword token, and 8.1 for an empty node",
        )
        try:
            position = _NUMBERS.get(columns[0]) or parse_id_value(columns[0])
            wrong, remedy = f"head {columns[6]!r} is not a number", "Write the position of the head, 0 for a root"
            head = _NUMBERS.get(columns[6]) or parse_int_value(columns[6])
        except ParseException:
            raise self._error(number, wrong, remedy) from None
        return position, form, upos, xpos, head, relation

    def _dropped_until(self, number: int, position: Id, last: int) -> int:
        """Count a dropped row; return the last word of a multiword token, 0 for an empty node."""
        shown = "".join(map(str, position)) if isinstance(position, tuple) else "_" if position is None else position
        match position, self.format:
            case (int(start), "-", int(end)), "conllu" if start == last + 1:
                self.audit["range_rows"] += 1
                return end
            case (int(before), ".", int()), "conllu" if before == last:
                self.audit["empty_rows"] += 1
                return 0
            case (tuple(), "conllx"):
                kind = "a multiword token" if "-" in position else "an empty node"
                wrong = f"the id {shown} is that of {kind}, but the file is read as CoNLL-X, which has none"
                remedy = "To read it as CoNLL-U, set its `format` to conllu, or rename it to end in .conllu"
                raise self._error(number, wrong, remedy)
        remedy = f"The next word must have the number {last + 1}; a blank line must separate two sentences"
        raise self._error(number, f"the id is {shown} after word {last}", remedy)

    def _check_tree(self, words: list[str], heads: list[int], numbers: list[int]) -> None:
        """Raise CorpusError for heads out of range, cycles and sentences without a root, at the line of the word."""
        n = len(words)
        for i, head in enumerate(heads):
            if not 0 <= head <= n:
                wrong = f"word {i + 1} ({words[i]}) has head {head}, but the sentence has {pluralize(n, 'word')}"
                raise self._error(numbers[i], wrong, f"Write a number from 0 (the root) to {n} in column HEAD")
        roots = heads.count(0)
        if cycle := find_cycle(heads):
            if len(cycle) == 1:
                wrong = f"word {cycle[0]} ({words[cycle[0] - 1]}) is its own head"
            else:
                wrong = "the heads form a cycle: " + " → ".join(f"{i} ({words[i - 1]})" for i in (*cycle, cycle[0]))
            remedy = "Correct column HEAD" if roots else "Correct column HEAD; the root must have head 0"
            raise self._error(numbers[cycle[0] - 1], wrong if roots else f"the sentence has no root; {wrong}", remedy)
        self.audit["multiple_roots"] += roots > 1

    def _name(self, block: Block) -> str:
        """Return the `sent_id` or a generated name; with `unique`, one that is unique in the file."""
        given = [
            value
            for _, line in block
            if line.startswith("#") and "sent_id" in line
            for key, value in parse_comment_line(line)
            if key == "sent_id" and value
        ]
        name = given[0] if given else f"{self.path.stem}-{self.audit['sentences']}"
        self.audit["generated_ids"] += not given
        if not self._unique:
            return name
        if name in self._names:
            self.audit["repeated_ids"] += 1
            name = next(new for k in count(2) if (new := f"{name}.{k}") not in self._names)
        self._names.add(name)
        return name

    def _error(self, line: int, wrong: str, remedy: str) -> CorpusError:
        return CorpusError.at(self.path, line, wrong, remedy)


def warn_of_roots(name: Path | str, audit: Mapping[str, int]) -> None:
    """Log a warning if a treebank has trees with several roots; Universal Dependencies allows one.

    Args:
        name: File or name of the treebank, for the message.
        audit: Counts of the treebank's reader; `multiple_roots` is the number of such trees.
    """
    if count := audit.get("multiple_roots", 0):
        warn(
            f"{name}: {pluralize(count, 'sentence')} with more than one root: a tree of Universal Dependencies has "
            f"one. They are read as they are; check column HEAD."
        )


def warn_of_texts(path: Path, audit: Mapping[str, int]) -> None:
    """Log a warning if running text is not that of the comments `# text`; both are read with `spacing: text` alone.

    Args:
        path: The corpus file, for the message.
        audit: Counts of the items; `texts_unlike_comment` is the number of such sentences.
    """
    if count := audit.get("texts_unlike_comment", 0):
        warn(
            f"{path}: the running text of {pluralize(count, 'sentence')}, made from column FORM and SpaceAfter=No in "
            "column MISC, is not the text in the comment `# text`, and is read as it is. Correct them: validate.py of "
            "Universal Dependencies names their lines."
        )
