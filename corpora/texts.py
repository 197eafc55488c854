"""Passages of text in words, of whatever is read."""

from dataclasses import dataclass

from corpora.sentence import Sentence


@dataclass(frozen=True, slots=True)
class Link:
    """A labelled link between words of one passage.

    Attributes:
        label: For instance the name of a frame element, or of a relation.
        start: Places of the words that it leads from, counted from 0; one at least.
        end: Places of the words that it leads to.
    """

    label: str
    start: tuple[int, ...]
    end: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of text in words, with what is known of them.

    Attributes:
        id: Its name, unique within its file.
        words: One at least.
        line: The line of the file at which it starts, counted from 1.
        label: Of a labelled text; None without.
        sentence: Tags and tree of the words, where they come from a treebank.
        links: Labelled links between the words, where the corpus has such.
    """

    id: str
    words: tuple[str, ...]
    line: int
    label: str | None = None
    sentence: Sentence | None = None
    links: tuple[Link, ...] = ()
