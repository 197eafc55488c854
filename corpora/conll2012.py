"""Readers of CoNLL-2011 and CoNLL-2012 files: return documents with their mentions, and validate every row.

Format: Pradhan et al. 2012, "CoNLL-2012 Shared Task: Modeling Multilingual Unrestricted Coreference in OntoNotes", and
https://conll.cemantix.org/2012/data.html. The columns used are 3 (number of the word in its sentence), 4 (word), 5
(part of speech), 6 (parse bit) and the last (coreference). The columns of predicate arguments before the last, one for
each predicate of the sentence, are ignored.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from attention_probing.corpora.conllu import Block, blocks, no_text
from attention_probing.corpora.document import Document, Documents, Mention
from attention_probing.corpora.mentions import (
    UNKNOWN,
    ParseBitError,
    TaggedSentence,
    attach_parses,
    find_head,
    find_meanings,
    find_type,
)
from attention_probing.corpora.sentence import CorpusError

# Part of the key under which attention over documents is stored. Raise it with every change that makes the same files
# give other documents, heads or types; else stores made before the change would be taken for current ones.
DOCUMENTS_VERSION: int = 2

_COLUMNS = 12  # eleven and the coreference; more with every predicate
_NOTHING = {"", "-", "_"}
_BEGIN = re.compile(r"#begin document \((.+)\);\s*part\s+([0-9]+)\s*")
_END = re.compile(r"#end document\s*")
_BRACKET = re.compile(r"\(([0-9]+)\)?|([0-9]+)\)")
_BLANKS = re.compile(" +")
_GENRES = (re.compile(r"(?:AMAL)?GUM_([^_]+)_"), re.compile(r"([a-z]{2})/"))  # GUM_academic_art, bc/cctv/00/cctv_0001
_COUNTS = """documents sentences words mentions clusters singletons crossing spans_in_two_clusters repeated_mentions
documents_without_mentions heads_by_parse heads_by_constituents heads_by_last_noun heads_by_last_word heads_by_heuristic
several_heads types_by_heuristic unknown_tags heads_by_unknown_tags types_unknown"""


class _Span(NamedTuple):
    sentence: int
    start: int
    end: int
    cluster: int  # its number in the file


@dataclass
class _Text:
    name: str
    part: str
    line: int
    sentences: list[TaggedSentence]
    spans: list[_Span]


def treebank_of(path: Path) -> Path | None:
    """Return the `.conllu` file of the same name beside a file of documents; None if there is none."""
    beside = path.with_suffix(".conllu")
    if beside != path and beside.is_file():
        return beside
    return None


def read_documents(path: Path, tags: Mapping[str, str] | None = None, *, texts: bool = False) -> Documents:
    """Read the documents of a CoNLL-2011 or CoNLL-2012 file; find head and type of every mention.

    Columns are separated by one tab each or by blanks. There are at least 12, and the same number in all
    rows of a sentence; `-`, `_` or nothing in the last column means "no coreference". Mentions may nest or
    cross, also within a cluster, a span may be in several clusters, and a document may have no mention.
    Comments, CRLF line ends and a byte-order mark are accepted.

    The reader counts, in `audit` of the result, `documents`, `sentences`, `words`, `mentions`,
    `clusters`, and:

    - `documents_without_mentions`.
    - `singletons`: clusters of one mention.
    - `crossing`: pairs of spans that overlap without nesting.
    - `spans_in_two_clusters`: spans in two clusters or more.
    - `repeated_mentions`: mentions dropped because an earlier one has the same span and cluster.
    - `heads_by_<method>`: mentions whose head was found by this method of `corpora.mentions.find_head`.
    - `several_heads`: mentions with several candidates for the head in the dependency tree.
    - `types_by_heuristic`: mentions whose type comes from a heuristic.
    - `unknown_tags`: words with a tag whose meaning is unknown, see `corpora.mentions.find_meanings`.
    - `heads_by_unknown_tags`: mentions whose head was found without a dependency tree, if the head or a later word of
      the mention has an unknown tag.
    - `types_unknown`: mentions whose head has an unknown tag.

    Args:
        path: The file, in UTF-8. Heads are read from the treebank of the same sentences, word for word, that
            `treebank_of` finds beside it; a word without a known tag takes its UPOS. Without a treebank, heads
            come from the parse column, the parts of speech, or a heuristic (see `corpora.mentions`).
        tags: Mapping from a tag of the file to the tag of Universal Dependencies or the Penn Treebank that it means.
        texts: True to take the text of the sentences from the treebank.

    Raises:
        CorpusError: A file is missing, empty, in another encoding, or breaks the format, the treebank differs from the
            documents, or `texts` is True and there is no treebank; the message names file, line and remedy.
    """
    path = Path(path)
    texts_of_file = list(_Reader(path).texts())
    if not texts_of_file:
        raise CorpusError.at(path, None, "the file holds no document", "Check that it is the file you meant")
    sentences = list(chain.from_iterable(text.sentences for text in texts_of_file))
    parses = treebank_of(path)
    if parses is not None:
        attach_parses(path, sentences, parses, texts=texts)
    elif texts:
        raise no_text(path, "Put the treebank of these documents beside the file, with the suffix .conllu")
    find_meanings(sentences, tags or {})
    audit = Counter(dict.fromkeys(_COUNTS.split(), 0))
    parts = Counter(text.name for text in texts_of_file)
    lines: dict[str, int] = {}  # of the names
    documents = []
    for text in texts_of_file:
        name = text.name if parts[text.name] == 1 else f"{text.name}:{text.part}"
        if name in lines:  # a document may be named as another one's part
            wrong = (
                f"this document and that at line {lines[name]} are both called {name}, as a part of a document is "
                "called NAME:PART"
            )
            raise CorpusError.at(path, text.line, wrong, "Rename one of them in its `#begin document`")
        lines[name] = text.line
        documents.append(_make_document(path, name, text, audit))
    return Documents(tuple(documents), audit)


def _make_document(path: Path, name: str, text: _Text, audit: Counter[str]) -> Document:
    """Return the document with heads and types; clusters are numbered by their first mentions."""
    mentions = _make_mentions(path, text, audit)
    _count_document(text, mentions, audit)
    running = []
    for sentence in text.sentences:
        if sentence.parse is not None and sentence.parse.running is not None:
            running.append(sentence.parse.running)
    return Document(
        id=name,
        genre=_find_genre(name),
        sentences=tuple(sentence.words for sentence in text.sentences),
        tags=tuple(sentence.tags for sentence in text.sentences),
        mentions=tuple(mentions),
        texts=tuple(running),
    )


def _make_mentions(path: Path, text: _Text, audit: Counter[str]) -> list[Mention]:
    """Return the mentions of a document with their heads and types; count how these were found."""
    spans = sorted(set(text.spans), key=lambda span: (span.sentence, span.start, -span.end, span.cluster))
    numbers: dict[int, int] = {}  # of the clusters, in the order of their first mentions
    mentions = []
    for span in spans:
        sentence = text.sentences[span.sentence]
        try:
            head, method, candidates = find_head(sentence, span.start, span.end)
        except ParseBitError as error:
            remedy = "Correct column 6, the parse, of the sentence, or write - in this column of all its rows"
            raise CorpusError.at(path, sentence.lines[error.word], str(error), remedy) from None
        kind, by_heuristic = find_type(sentence, span.start, span.end, head)
        cluster = numbers.setdefault(span.cluster, len(numbers))
        mentions.append(Mention(span.sentence, span.start, span.end, head, kind, cluster))
        unknown_tag = any(tag.startswith(UNKNOWN) for tag in sentence.tags[head : span.end])
        audit[f"heads_by_{method}"] += 1
        audit["several_heads"] += candidates > 1
        audit["types_by_heuristic"] += by_heuristic
        audit["types_unknown"] += kind == "unknown"
        audit["heads_by_unknown_tags"] += unknown_tag and method != "parse"
    mentions.sort(key=lambda mention: (mention.sentence, mention.start, -mention.end, mention.cluster))
    return mentions


def _count_document(text: _Text, mentions: Sequence[Mention], audit: Counter[str]) -> None:
    """Count sentences, words, mentions and clusters of a document."""
    audit["documents"] += 1
    audit["documents_without_mentions"] += not mentions
    audit["sentences"] += len(text.sentences)
    for sentence in text.sentences:
        audit["words"] += len(sentence.tags)
        audit["unknown_tags"] += sum(tag.startswith(UNKNOWN) for tag in sentence.tags)
    sizes = Counter(mention.cluster for mention in mentions)
    audit["mentions"] += len(mentions)
    audit["repeated_mentions"] += len(text.spans) - len(mentions)
    audit["clusters"] += len(sizes)
    audit["singletons"] += sum(size == 1 for size in sizes.values())
    places = Counter((mention.sentence, mention.start, mention.end) for mention in mentions)
    audit["crossing"] += _count_crossing(places)
    audit["spans_in_two_clusters"] += sum(clusters > 1 for clusters in places.values())


def _find_genre(name: str) -> str:
    """Return the genre in the name of a document; empty if it has none."""
    for pattern in _GENRES:
        match = pattern.match(name)
        if match is not None:
            return match[1]
    return ""


def _count_crossing(places: Iterable[tuple[int, int, int]]) -> int:
    """Return the number of pairs of spans (sentence, start, end) that overlap without nesting."""
    by_sentence = defaultdict(list)
    for sentence, start, end in places:
        by_sentence[sentence].append((start, end))
    count = 0
    for spans in by_sentence.values():
        for start, end in spans:
            count += sum(start < other_start < end < other_end for other_start, other_end in spans)
    return count


def _split_row(line: str) -> list[str]:
    """Return the columns of a row, which are separated by one tab each or by blanks."""
    if "\t" in line:
        return line.split("\t")
    return _BLANKS.split(line.strip(" "))


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: _Text | None = None
        self._lines: dict[tuple[str, int], int] = {}
        self._strings: dict[str, str] = {}

    def texts(self) -> Iterator[_Text]:
        """Yield each document of the file when it ends."""
        for block in blocks(self.path):
            rows: Block = []
            for number, line in block:
                if not line.startswith("#"):
                    rows.append((number, line))
                elif begin := _BEGIN.fullmatch(line):
                    self._read_sentence(rows)
                    rows = []
                    self._begin(number, name=begin[1], part=begin[2])
                elif _END.fullmatch(line):
                    self._read_sentence(rows)
                    rows = []
                    yield self._end(number)
                elif line.startswith(("#begin", "#end")):
                    remedy = "Write `#begin document (NAME); part 000` or `#end document`"
                    raise self._error(number, f"the line {line!r} is malformed", remedy)
            self._read_sentence(rows)
        if self._open is not None:
            wrong = f"the document {self._open.name} begins here, but has no `#end document`"
            remedy = "If the file is cut off, fetch it again; else write `#end document` after the last sentence"
            raise self._error(self._open.line, wrong, remedy)

    def _begin(self, number: int, name: str, part: str) -> None:
        if self._open is not None:
            wrong = f"a document begins here, but {self._open.name} of line {self._open.line} has not ended"
            raise self._error(number, wrong, "Write `#end document` before this line")
        if (name, int(part)) in self._lines:
            line = self._lines[name, int(part)]
            wrong = f"document {name}, part {part}, occurs already at line {line}"
            raise self._error(number, wrong, "Remove one of the two, or give it another part number")
        self._lines[name, int(part)] = number
        self._open = _Text(name, part, number, [], [])

    def _end(self, number: int) -> _Text:
        text = self._open
        self._open = None
        if text is None:
            remedy = "Remove the line, or write the missing `#begin document (NAME); part 000`"
            raise self._error(number, "this `#end document` ends a document that has not begun", remedy)
        if not text.sentences:
            wrong = f"the document {text.name}, which begins here, has no sentences"
            raise self._error(text.line, wrong, "Remove it, or check whether its text was lost")
        return text

    def _read_sentence(self, rows: Block) -> None:
        """Read one sentence into the open document."""
        if not rows:
            return
        if self._open is None:
            remedy = "Put `#begin document (NAME); part 000` before the text and `#end document` after it"
            raise self._error(rows[0][0], "there is text outside a document", remedy)
        intern = self._strings.setdefault
        words: list[str] = []
        tags: list[str] = []
        bits: list[str] = []
        marks: list[tuple[int, str]] = []  # line and coreference of each word
        width = 0
        for number, line in rows:
            cells = _split_row(line)
            if words and len(cells) != width:
                wrong = f"the row has {len(cells)} columns, but the rows before it in the sentence have {width}"
                remedy = "All rows of a sentence need the same number of columns; put back tabs stripped at the end"
                raise self._error(number, wrong, remedy)
            width = len(cells)
            if width < _COLUMNS:
                wrong = f"the row has {width} columns, but the format needs at least {_COLUMNS}"
                raise self._error(number, wrong, "Separate columns by one tab or by blanks, with - for an empty one")
            _, _, place, word, tag, bit = cells[:6]
            if place != str(len(words)):
                wrong = f"the word has number {place!r} in column 3 instead of {len(words)}"
                remedy = "Number the words of a sentence 0, 1, 2, …, and put a blank line between sentences"
                raise self._error(number, wrong, remedy)
            if not word or word.isspace():
                raise self._error(number, "column 4, the word, is empty", "Fill it")
            tag = "_" if tag in _NOTHING else tag
            words.append(intern(word, word))
            tags.append(intern(tag, tag))
            bits.append(intern(bit, bit))
            marks.append((number, cells[-1].strip(" ")))
        index = len(self._open.sentences)
        lines = tuple(number for number, _ in marks)
        self._open.sentences.append(TaggedSentence(tuple(words), tuple(tags), tuple(bits), lines))
        for start, end, cluster in self._read_spans(marks):
            self._open.spans.append(_Span(index, start, end, cluster))

    def _read_spans(self, marks: Sequence[tuple[int, str]]) -> list[tuple[int, int, int]]:
        """Return the mentions of a sentence as (start, end, cluster); the bracket opened last closes first."""
        spans: list[tuple[int, int, int]] = []
        opened: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # line and first word by cluster
        for word, (line, cell) in enumerate(marks):
            if cell in _NOTHING:
                continue
            for bracket in cell.split("|"):
                match = _BRACKET.fullmatch(bracket)
                if match is None:
                    remedy = (
                        "Examples: `(5` opens a mention of cluster 5, `5)` closes it, `(5)` is a one-word mention, "
                        "`(5|(7` opens two"
                    )
                    raise self._error(line, f"the coreference column contains {cell!r}, which is malformed", remedy)
                cluster = int(match[1] or match[2])
                if bracket.startswith("("):
                    opened[cluster].append((line, word))
                if bracket.endswith(")"):
                    if not opened[cluster]:
                        wrong = f"{bracket} closes a mention of cluster {cluster}, but none is open in the sentence"
                        raise self._error(line, wrong, f"Write ({cluster} at the first word of the mention")
                    _, start = opened[cluster].pop()
                    spans.append((start, word + 1, cluster))
        unclosed = []
        for cluster, starts in opened.items():
            unclosed += [(line, cluster) for line, _ in starts]
        if unclosed:
            line, cluster = min(unclosed)
            wrong = f"the mention ({cluster} opens here, but is not closed in its sentence, up to line {marks[-1][0]}"
            raise self._error(line, wrong, f"Write {cluster}) at the last word of the mention")
        return spans

    def _error(self, line: int, wrong: str, remedy: str) -> CorpusError:
        return CorpusError.at(self.path, line, wrong, remedy)
