"""Documents with mentions, from coreference corpora, and windows of documents."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import Any, Literal

import pyarrow as pa

from attention_probing.corpora.sentence import RunningText

MentionType = Literal["pronoun", "proper", "nominal", "unknown"]
MENTION_TYPES: tuple[MentionType, ...] = ("pronoun", "proper", "nominal", "unknown")

WINDOWS_VERSION = 1
"""Part of the key of every store of windows: raise it when windows are cut or written differently."""

_NUMBERS = pa.list_(pa.int32())
_MENTION = ("sentence", "start", "end", "head", "cluster")
WINDOW_SCHEMA = pa.schema(
    [
        pa.field("document", pa.string(), nullable=False),
        pa.field("genre", pa.string(), nullable=False),
        pa.field("number", pa.int32(), nullable=False),
        pa.field("first", pa.int32(), nullable=False),
        pa.field("lost", pa.int32(), nullable=False),
        pa.field("words", pa.list_(pa.string()), nullable=False),
        pa.field("tags", pa.list_(pa.string()), nullable=False),
        pa.field("offsets", _NUMBERS, nullable=False),  # first word of each sentence, and the number of words
        *(pa.field(name, _NUMBERS, nullable=False) for name in _MENTION),
        pa.field("type", pa.list_(pa.int8()), nullable=False),  # a place in MENTION_TYPES
    ]
)


@dataclass(frozen=True, slots=True)
class Mention:
    """Mention of a cluster: a span of words. A span in two clusters is two mentions.

    Attributes:
        sentence: 0-based index of the mention's sentence in the document.
        start: 0-based index of the first word in the sentence.
        end: Index of the last word + 1.
        head: 0-based index of the head word in the sentence, `start <= head < end`.
        type: Pronoun, proper or nominal, according to the head word; unknown if the meaning of its tag is unknown.
        cluster: 0-based number of the cluster in the document.
    """

    sentence: int
    start: int
    end: int
    head: int
    type: MentionType
    cluster: int


@dataclass(frozen=True, slots=True)
class Document:
    """One document, or one part of a document that the corpus divides.

    Attributes:
        id: Name of the document, with the number of its part if there are several; unique within the corpus.
        genre: Genre, taken from the name; empty if the name has none.
        sentences: Words of each sentence; at least one sentence, and one word in each.
        tags: Part-of-speech tag of every word, shaped like `sentences`: a tag of Universal Dependencies or of the Penn
            Treebank, `_` for none, or `?` followed by a tag whose meaning is unknown.
        mentions: Mentions in the order of `(sentence, start, -end, cluster)`; singletons are clusters of one
            mention.
        texts: Running text of each sentence, if it was read.
    """

    id: str
    genre: str
    sentences: tuple[tuple[str, ...], ...]
    tags: tuple[tuple[str, ...], ...]
    mentions: tuple[Mention, ...]
    texts: tuple[RunningText, ...] = ()


@dataclass(frozen=True)
class Documents:
    """The documents of one corpus file, and the counts of its reader.

    Attributes:
        documents: Documents in the order of the file, at least one.
        audit: Counts by name; see `read_documents`.
    """

    documents: tuple[Document, ...]
    audit: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.documents)


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive whole sentences of one document, as one input of an encoder.

    Attributes:
        number: 0-based index of the document in its corpus.
        first: 0-based index of the window's first sentence in the document.
        lost: Number of mentions in the window whose antecedents are all outside it: no earlier mention
            of the cluster is in the window, but at least one is before the window.
        text: The sentences of the window as a document. The `sentence` of its mentions counts from 0 in
            the window; clusters keep their numbers.
    """

    number: int
    first: int
    lost: int
    text: Document

    def __len__(self) -> int:
        return sum(map(len, self.text.sentences))

    @property
    def words(self) -> tuple[str, ...]:
        """Words of all sentences of the window, in order."""
        return tuple(chain.from_iterable(self.text.sentences))

    @property
    def mention_heads(self) -> tuple[int, ...]:
        """0-based position of each mention's head word among all words of the window."""
        starts = _offsets(self.text.sentences)
        return tuple(starts[mention.sentence] + mention.head for mention in self.text.mentions)

    @property
    def head_words(self) -> tuple[int, ...]:
        """0-based positions in the window of the words that are the head of a mention, ascending, each once."""
        return tuple(sorted(set(self.mention_heads)))


def _offsets(sentences: Sequence[Sequence[str]]) -> list[int]:
    """Return the position of each sentence's first word among the words of all, and the number of words."""
    return list(accumulate(map(len, sentences), initial=0))


def whole_documents(ids: Sequence[str]) -> list[str]:
    """Return the name of the whole document of each document: parts are named `NAME:PART` by the reader.

    Args:
        ids: Names of documents, and of parts of documents.
    """
    stems = [re.sub(r":[0-9]+$", "", name) for name in ids]
    parts = Counter(stems)
    names = []
    for stem, name in zip(stems, ids, strict=True):
        names.append(stem if parts[stem] > 1 else name)
    return names


def anaphoric(mentions: Iterable[Mention]) -> list[bool]:
    """Return, for each mention, True if an earlier mention belongs to the same cluster."""
    clusters: set[int] = set()  # of earlier mentions
    has_antecedent = []
    for mention in mentions:
        has_antecedent.append(mention.cluster in clusters)
        clusters.add(mention.cluster)
    return has_antecedent


def cut_window(number: int, document: Document, start: int, stop: int) -> Window:
    """Return the window of a document with its sentences `start` to `stop - 1` and the mentions in them.

    Args:
        number: 0-based index of the document in its corpus.
        document: The document.
        start: 0-based index of the first sentence.
        stop: Index of the last sentence + 1.
    """
    inside = [mention for mention in document.mentions if start <= mention.sentence < stop]
    clusters_before = {mention.cluster for mention in document.mentions if mention.sentence < start}
    lost = 0
    for mention, has_antecedent in zip(inside, anaphoric(inside), strict=True):
        if not has_antecedent and mention.cluster in clusters_before:
            lost += 1
    text = Document(
        id=document.id,
        genre=document.genre,
        sentences=document.sentences[start:stop],
        tags=document.tags[start:stop],
        mentions=tuple(replace(mention, sentence=mention.sentence - start) for mention in inside),
    )
    return Window(number, start, lost, text)


def windows_to_table(windows: Iterable[Window]) -> pa.Table:
    """Return an Arrow table with one row for each window; `windows_from_table` reads it.

    The columns are those of `WINDOW_SCHEMA`: the fields of the window and of its document, the words and tags
    of all sentences in one list each, the bounds of the sentences, and a list for each field of
    `Mention`.
    """
    return pa.Table.from_pylist([_row(window) for window in windows], schema=WINDOW_SCHEMA)


def _row(window: Window) -> dict[str, object]:
    text = window.text
    mentions = text.mentions
    row: dict[str, object] = {
        "document": text.id,
        "genre": text.genre,
        "number": window.number,
        "first": window.first,
        "lost": window.lost,
        "words": window.words,
        "tags": tuple(chain.from_iterable(text.tags)),
        "offsets": _offsets(text.sentences),
        "type": [MENTION_TYPES.index(mention.type) for mention in mentions],
    }
    for name in _MENTION:
        row[name] = [getattr(mention, name) for mention in mentions]
    return row


def windows_from_table(table: pa.Table) -> tuple[Window, ...]:
    """Return the windows of a table made by `windows_to_table`, also if it was sliced or read from a Parquet file."""
    rows = table.select(WINDOW_SCHEMA.names).to_pylist()
    return tuple(map(_window, rows))


def _window(row: Mapping[str, Any]) -> Window:
    words: list[tuple[str, ...]] = []
    tags: list[tuple[str, ...]] = []
    for start, stop in pairwise(row["offsets"]):
        words.append(tuple(row["words"][start:stop]))
        tags.append(tuple(row["tags"][start:stop]))
    mentions = []
    columns = [row[name] for name in (*_MENTION, "type")]
    for sentence, start, end, head, cluster, code in zip(*columns, strict=True):
        mentions.append(Mention(sentence, start, end, head, MENTION_TYPES[code], cluster))
    text = Document(row["document"], row["genre"], tuple(words), tuple(tags), tuple(mentions))
    return Window(row["number"], row["first"], row["lost"], text)
