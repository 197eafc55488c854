"""Readers of passages (words with labels, trees or links) from plain text, labelled texts, treebanks and link corpora.

Links between words come from a table, or from the enhanced edges of Universal Dependencies; `corpora.framenet` reads
those of FrameNet. All readers are generators.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Literal

from conllu.parser import parse_paired_list_value

from attention_probing.corpora.conllu import TreebankFormat, sentences_with_rows
from attention_probing.corpora.labelled import Columns, LabelledFile
from attention_probing.corpora.lines import check_words, read_lines
from attention_probing.corpora.records import RecordFormat, is_quoted, read_rows, strip_invisible
from attention_probing.corpora.sentence import CorpusError, Sentence

OPTION = "data.corpora"
"""Option of the command line with the options of a corpus, for messages."""

_DIGITS = 9  # of the number of a word; Python refuses one of 4,300
_HEADING = re.compile(r"\s*=( .*)? =\s*")  # of WikiText: ` = = Career = = `
_COLUMNS = ("sentence", "label", "from", "to")
_DOCUMENT = "document"  # a column that a file of links may have
# Columns of CoNLL-U.
_ID = 0
_DEPS = 8

Half = Literal["dev", "test"]
HALVES: tuple[Half, ...] = ("dev", "test")
"""Halves of the passages of one file: heads that are chosen on one can be tested on the other."""


@dataclass(frozen=True, slots=True)
class Link:
    """A labelled link between words of one passage.

    Attributes:
        label: Name of the link, for instance a frame element or a relation.
        start: 0-based positions of the words from which the link goes, at least one.
        end: 0-based positions of the words to which it goes.
    """

    label: str
    start: tuple[int, ...]
    end: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of text as words, with its label, tree or links if the corpus has them.

    Attributes:
        id: Name of the passage in its file, shared by the two passages of a pair.
        words: Word forms, at least one.
        line: Line of the file at which the passage starts, counted from 1. In FrameNet it is the number of the sentence
            in the file of its lexical unit, from 1.
        label: Label of the text; None in a corpus without labels.
        sentence: The sentence with its tags and dependency tree; None if the corpus is not a treebank.
        links: Labelled links between the words; None in a corpus without links.
        document: Name or number of the document in its corpus; None if it is not known.
    """

    id: str
    words: tuple[str, ...]
    line: int
    label: str | None = None
    sentence: Sentence | None = None
    links: tuple[Link, ...] | None = None
    document: str | None = None

    @property
    def half(self) -> Half:
        """Half that the passage is drawn into, always the same.

        The passages of one document are in the same half, and so are equal passages without a document.
        """
        key = " ".join(self.words)
        if self.document is not None:
            key = f"document {self.document}"
        return HALVES[sha256(key.encode()).digest()[0] % 2]

    @property
    def whole(self) -> bool:
        """True if the passage must not be cut, because it has a tree or links."""
        return self.sentence is not None or self.links is not None


Text = tuple[Passage, ...]
"""One passage, or the two of a pair."""


def read_plain(path: Path, audit: Counter[str]) -> Iterator[Text]:
    """Yield the paragraphs of a plain-text file, one for each line, split into words at white space.

    Args:
        path: The file, in UTF-8.
        audit: Receives the counts of omitted lines: `headings` of WikiText (` = Title = `) and `empty_lines`, and
            of dropped byte-order marks, `invisible_characters`.

    Raises:
        CorpusError: The file is missing, in another encoding, or binary, or a word is too long.
    """
    for number, line in read_lines(path, audit):
        check_words(path, number, line)
        words = tuple(line.split())
        if not words:
            audit["empty_lines"] += 1
        elif _HEADING.fullmatch(line):
            audit["headings"] += 1
        else:
            yield (Passage(str(number), words, number),)


def read_texts(
    path: Path,
    audit: Counter[str],
    *,
    columns: Columns,
    format: RecordFormat | None = None,
    skip_malformed: bool = False,
) -> Iterator[Text]:
    """Yield the texts, or pairs of texts, of a TSV, CSV or JSONL file, split into words at white space.

    A text is a tuple of one passage, a pair is a tuple of two.

    Args:
        path: The file, in UTF-8.
        audit: Receives the counts of omitted records: `malformed`, with a wrong number of fields,
            `empty_texts`, where the text or its pair has no word, and `labels_left_out`; and the count
            `quoted_texts`, see `corpora.records.is_quoted`.
        columns: Columns to read.
        format: Format of the file; None takes it from the suffix.
        skip_malformed: Skip records with a wrong number of fields, and count them; else they are errors.

    Raises:
        CorpusError: The file is missing, in another encoding, malformed, lacks a column, or has an empty
            label.
    """
    file = LabelledFile(path, columns, format, OPTION)
    file.audit = audit
    for text in file.texts(audit if skip_malformed else None):
        label = text.label or None
        passages = [Passage(text.id, tuple(text.text.split()), text.line, label)]
        if text.pair is not None:
            passages.append(Passage(text.id, tuple(text.pair.split()), text.line, label))
        if all(passage.words for passage in passages):
            yield tuple(passages)
        else:
            audit["empty_texts"] += 1


def read_sentences(path: Path, audit: Counter[str], format: TreebankFormat) -> Iterator[Text]:
    """Yield the sentences of a CoNLL-U or CoNLL-X file as passages, with their trees.

    Args:
        path: The file, in UTF-8.
        audit: Receives the counts of dropped rows (`range_rows` for multiword tokens, `empty_rows` for empty
            nodes), and of sentences with `multiple_roots`, which are kept.
        format: `conllu` or `conllx`.

    Raises:
        CorpusError: The file is missing, in another encoding, or breaks the format.
    """
    for sentence, rows in sentences_with_rows(path, audit, format=format):
        document = _document_of(sentence)
        yield (Passage(sentence.id, sentence.words, rows[0][0], sentence=sentence, document=document),)


def _document_of(sentence: Sentence) -> str | None:
    """Return the number of a sentence's document; None in a treebank that marks no documents."""
    if sentence.document < 0:
        return None
    return str(sentence.document)


def read_links(path: Path, audit: Counter[str], half: Half | None = None) -> Iterator[Text]:
    """Yield the sentences of a TSV file of links, with the columns `sentence`, `label`, `from` and `to`.

    Each row is one link in a sentence, whose words are separated by white space. `from` and `to` name words by
    their numbers from 1 (`3`, or several: `3,4`), or one word by its form, if the form occurs once in the sentence.
    Consecutive rows with the same sentence make one passage. A column `document` may name the document of the
    sentence. Other columns are ignored.

    Args:
        path: The file, in UTF-8.
        audit: Receives the counts `quoted_texts` of sentences, see `corpora.records.is_quoted`, and
            `invisible_characters`, see `corpora.records.strip_invisible`, of the sentences that are read and of the
            header.
        half: Half of the sentences to read, see `Passage.half`; None reads all.

    Raises:
        CorpusError: The file is missing, in another encoding, lacks a column, or a row names a word that is not in
            the sentence.
    """
    for sentence, rows in groupby(_link_rows(path, audit), key=lambda row: row[1]["sentence"]):
        words = tuple(sentence.split())
        counts = Counter[str]()
        if is_quoted(sentence):
            counts["quoted_texts"] += 1
        links: list[Link] = []
        lines: list[int] = []
        document = None
        for line, row in rows:
            document = row.get(_DOCUMENT) or document
            start = _find_places(path, line, "from", row["from"], words)
            end = _find_places(path, line, "to", row["to"], words)
            links.append(Link(strip_invisible(row["label"], counts), start, end))
            lines.append(line)
        first = lines[0]
        passage = Passage(str(first), words, first, links=tuple(links), document=document)
        if half is None or passage.half == half:
            audit.update(counts)
            yield (passage,)


def _link_rows(path: Path, audit: Counter[str]) -> Iterator[tuple[int, dict[str, str]]]:
    names: list[str] = []
    for number, row in read_rows(path, "tsv", audit):
        fields = [field.strip() for field in row]
        if not names:
            names = [strip_invisible(field, audit) for field in fields]
            missing = [name for name in _COLUMNS if name not in names]
            if missing:
                wrong = f"the header has no column {missing[0]!r}"
                remedy = f"Name the columns {', '.join(_COLUMNS)} in the first line, separated by tabs"
                raise CorpusError.at(path, number, wrong, remedy)
            continue
        row_by_name = dict(zip(names, fields, strict=True))
        for name in _COLUMNS:
            if not row_by_name[name]:
                raise CorpusError.at(path, number, f"column {name!r} is empty", "Fill it, or remove the row")
        check_words(path, number, row_by_name["sentence"])
        yield number, row_by_name


def _find_places(path: Path, line: int, column: str, entry: str, words: tuple[str, ...]) -> tuple[int, ...]:
    """Return the 0-based positions of the words that an entry names."""
    numbers = [number.strip() for number in entry.split(",")]
    if all(number.isdecimal() for number in numbers):
        for number in numbers:
            if len(number) > _DIGITS or not 1 <= int(number) <= len(words):
                wrong = f"column {column!r} contains word number {number}, but there are {len(words)} in the sentence"
                raise CorpusError.at(path, line, wrong, "Count the words between white space from 1")
        return tuple(sorted({int(number) - 1 for number in numbers}))
    places = [place for place, word in enumerate(words) if word == entry]
    if not places:
        wrong = f"column {column!r}: the word {entry!r} is not in the sentence"
        remedy = "Write the word as in the sentence, or its number from 1 (several: 3,4)"
        raise CorpusError.at(path, line, wrong, remedy)
    if len(places) > 1:
        wrong = f"column {column!r}: the word {entry!r} is in the sentence {len(places)} times"
        remedy = f"Write its number: {' or '.join(str(place + 1) for place in places)}"
        raise CorpusError.at(path, line, wrong, remedy)
    return (places[0],)


def read_enhanced(path: Path, audit: Counter[str]) -> Iterator[Text]:
    """Yield the sentences of a CoNLL-U file with a link for each edge in column DEPS, from the dependent to its head.

    Args:
        path: The file, in UTF-8.
        audit: Receives the counts of `read_sentences`, and of omitted edges: `root_edges` and `empty_node_edges`.

    Raises:
        CorpusError: The file is missing, in another encoding, or breaks the format, or a word has no edge.
    """
    for sentence, rows in sentences_with_rows(path, audit, format="conllu"):
        links: list[Link] = []
        for line, row in rows:
            columns = row.split("\t")
            if columns[_ID].isdecimal():
                links += _edges(path, line, sentence, int(columns[_ID]) - 1, columns[_DEPS], audit)
            elif "." in columns[_ID]:
                audit["empty_node_edges"] += columns[_DEPS] != "_" and len(columns[_DEPS].split("|"))
        passage = Passage(sentence.id, sentence.words, rows[0][0], sentence=sentence, links=tuple(links))
        yield (replace(passage, document=_document_of(sentence)),)


def _edges(path: Path, line: int, sentence: Sentence, word: int, written: str, audit: Counter[str]) -> Iterator[Link]:
    """Yield the enhanced edges of one word."""
    edges = parse_paired_list_value(written)
    if edges is None:
        wrong = f"word {word + 1} ({sentence.words[word]}) has no enhanced dependency: its column DEPS is {written!r}"
        raise CorpusError.at(path, line, wrong, "Give a treebank with enhanced dependencies in column DEPS")
    if not isinstance(edges, list):  # what is malformed comes back as it is
        wrong = f"column DEPS of word {word + 1} ({sentence.words[word]}) is {written!r}, which is malformed"
        raise CorpusError.at(path, line, wrong, "Write head and relation of each edge, such as 4:nsubj|7:conj")
    for relation, head in edges:
        if not isinstance(head, int):  # 8.1 is a tuple
            audit["empty_node_edges"] += 1
        elif head == 0:
            audit["root_edges"] += 1
        elif head > len(sentence):
            wrong = f"word {word + 1} ({sentence.words[word]}) has the enhanced head {head}"
            wrong += f", but the last word is number {len(sentence)}"
            raise CorpusError.at(path, line, wrong, "Correct column DEPS")
        else:
            yield Link(relation, (word,), (head - 1,))
