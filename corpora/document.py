"""Documents with mentions, as readers of coreference corpora return them, and windows of documents."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import Any, Literal

import pyarrow as pa

MentionType = Literal["pronoun", "proper", "nominal"]
MENTION_TYPES: tuple[MentionType, ...] = ("pronoun", "proper", "nominal")

WINDOWS_VERSION = 1
"""Part of the key of every store of windows. Raise it when windows are cut or written differently."""

_NUMBERS = pa.list_(pa.int32())
_MENTION = ("sentence", "start", "end", "head", "cluster")
SCHEMA = pa.schema(
    [
        pa.field("document", pa.string(), nullable=False),
        pa.field("genre", pa.string(), nullable=False),
        pa.field("number", pa.int32(), nullable=False),
        pa.field("first", pa.int32(), nullable=False),
        pa.field("lost", pa.int32(), nullable=False),
        pa.field("words", pa.list_(pa.string()), nullable=False),
        pa.field("tags", pa.list_(pa.string()), nullable=False),
        pa.field("offsets", _NUMBERS, nullable=False),  # of the sentences in the words, the end of the last among them
        *(pa.field(name, _NUMBERS, nullable=False) for name in _MENTION),
        pa.field("type", pa.list_(pa.int8()), nullable=False),  # a place in MENTION_TYPES
    ]
)


@dataclass(frozen=True, slots=True)
class Mention:
    """A span that refers to something; a span that stands in two clusters is two mentions.

    Attributes:
        sentence: 0-based sentence of the document.
        start: 0-based first word in the sentence; `end` is one behind the last.
        head: 0-based word in the sentence that stands for the span, `start <= head < end`; `type` is what it is.
        cluster: 0-based number of its cluster in the document.
    """

    sentence: int
    start: int
    end: int
    head: int
    type: MentionType
    cluster: int


@dataclass(frozen=True, slots=True)
class Document:
    """One document, or one part of it as the corpus cuts it.

    Attributes:
        id: Unique within the corpus: the document's name, and its part when there are several.
        genre: What the name says of the kind of text; empty when it says nothing.
        sentences: The words of each sentence, at least one sentence and one word in each.
        tags: Part of speech of every word as the corpus writes it, shaped as `sentences`; `_` where it has none.
        mentions: In the order of `(sentence, start, -end, cluster)`; singletons are clusters of one.
    """

    id: str
    genre: str
    sentences: tuple[tuple[str, ...], ...]
    tags: tuple[tuple[str, ...], ...]
    mentions: tuple[Mention, ...]


@dataclass(frozen=True)
class Documents:
    """The documents of one file in their order, at least one, and the reader's counts (`read_documents` names them)."""

    documents: tuple[Document, ...]
    audit: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.documents)


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive whole sentences of one document, which an encoder reads at once.

    Attributes:
        number: 0-based place of the document in its corpus.
        first: 0-based place of the window's first sentence in the document.
        lost: Mentions in the window whose cluster has an earlier mention in the document, but none in the window.
        text: The document without all other sentences. The sentences of its mentions count from 0 in the window; its
            clusters have the numbers they have in the document.
    """

    number: int
    first: int
    lost: int
    text: Document

    def __len__(self) -> int:
        return sum(map(len, self.text.sentences))

    @property
    def words(self) -> tuple[str, ...]:
        """Words of all sentences."""
        return tuple(chain.from_iterable(self.text.sentences))

    @property
    def mention_heads(self) -> tuple[int, ...]:
        """Position of each mention's head word in the window, from 0."""
        starts = _offsets(self.text.sentences)
        return tuple(starts[mention.sentence] + mention.head for mention in self.text.mentions)

    @property
    def head_words(self) -> tuple[int, ...]:
        """Positions of all head words in the window, each once, ascending."""
        return tuple(sorted(set(self.mention_heads)))


def _offsets(sentences: Sequence[Sequence[str]]) -> list[int]:
    """Return the position of each sentence's first word among the words of all, and the number of words."""
    return list(accumulate(map(len, sentences), initial=0))


def anaphoric(mentions: Iterable[Mention]) -> list[bool]:
    """Return for each mention whether an earlier one has the same cluster."""
    seen: set[int] = set()
    found = []
    for mention in mentions:
        found.append(mention.cluster in seen)
        seen.add(mention.cluster)
    return found


def cut(number: int, document: Document, start: int, stop: int) -> Window:
    """Return the window of the sentences `start` to `stop` - 1 of a document, the `number`-th of its corpus."""
    inside = [mention for mention in document.mentions if start <= mention.sentence < stop]
    before = {mention.cluster for mention in document.mentions if mention.sentence < start}
    mentions = tuple(replace(mention, sentence=mention.sentence - start) for mention in inside)
    lost = sum(not has and mention.cluster in before for mention, has in zip(inside, anaphoric(inside), strict=True))
    text = Document(document.id, document.genre, document.sentences[start:stop], document.tags[start:stop], mentions)
    return Window(number, start, lost, text)


def windows_to_table(windows: Iterable[Window]) -> pa.Table:
    """Return a table with one row a window and the columns of `SCHEMA`."""
    return pa.Table.from_pylist([_row(window) for window in windows], schema=SCHEMA)


def _row(window: Window) -> dict[str, object]:
    text = window.text
    return {
        "document": text.id,
        "genre": text.genre,
        "number": window.number,
        "first": window.first,
        "lost": window.lost,
        "words": window.words,
        "tags": tuple(chain.from_iterable(text.tags)),
        "offsets": _offsets(text.sentences),
        **{name: [getattr(mention, name) for mention in text.mentions] for name in _MENTION},
        "type": [MENTION_TYPES.index(mention.type) for mention in text.mentions],
    }


def windows_from_table(table: pa.Table) -> tuple[Window, ...]:
    """Return the windows of a table made by `windows_to_table`, also after a Parquet file or a slice.

    Raises:
        ValueError: The table lacks a column of `SCHEMA`.
    """
    if missing := [name for name in SCHEMA.names if name not in table.column_names]:
        raise ValueError(f"The table lacks the columns {', '.join(missing)}: it was not made by windows_to_table.")
    return tuple(map(_window, table.select(SCHEMA.names).to_pylist()))


def _window(row: Mapping[str, Any]) -> Window:
    bounds = [slice(*pair) for pair in pairwise(row["offsets"])]
    words, tags = (tuple(tuple(row[name][span]) for span in bounds) for name in ("words", "tags"))
    columns = zip(*(row[name] for name in (*_MENTION, "type")), strict=True)
    mentions = (
        Mention(sentence, start, end, head, MENTION_TYPES[code], cluster)
        for sentence, start, end, head, cluster, code in columns
    )
    text = Document(row["document"], row["genre"], words, tags, tuple(mentions))
    return Window(row["number"], row["first"], row["lost"], text)
