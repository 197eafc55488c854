"""What readers of coreference corpora return: documents, the mentions in them, and what is known of each word."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

MentionType = Literal["pronoun", "proper", "nominal"]
MENTION_TYPES: tuple[MentionType, ...] = ("pronoun", "proper", "nominal")


@dataclass(frozen=True, slots=True)
class Mention:
    """A span that refers to something; a span that stands in two clusters is two mentions.

    Attributes:
        sentence: 0-based sentence of the document.
        start: 0-based first word in the sentence.
        end: One behind the last word.
        head: 0-based word in the sentence that stands for the span, `start <= head < end`.
        type: What the head is.
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
    """The documents of one file in their order, and what the reader counted on the way.

    Attributes:
        documents: At least one.
        audit: Counts by name, said in the reader.
    """

    documents: tuple[Document, ...]
    audit: Mapping[str, int]

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.documents)
