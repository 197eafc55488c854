"""The grammar that writes the sample treebank: words, verbs with their frames, phrases, clauses, sentences."""

from collections.abc import Iterator

from corpora.grammar.phrases import Dice, Node
from corpora.grammar.sentences import Sentences

__all__ = ["Node", "trees"]


def trees(seed: int) -> Iterator[Node]:
    """Yield the trees of random sentences without end, the same ones for the same seed on every machine."""
    grammar = Sentences(Dice(seed))
    while True:
        yield grammar.sentence()
