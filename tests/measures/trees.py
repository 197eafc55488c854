"""Passages with tags, trees and links over words that the tiny tokenizers know, or cut."""

from corpora.sentence import Sentence
from corpora.texts import Link, Passage


def passage(text: str, links: tuple[Link, ...] | None = None, *, tree: bool = True) -> Passage:
    """Of words `form/UPOS/relation/head` with blanks between."""
    forms, upos, relations, heads = zip(*(word.split("/") for word in text.split()), strict=True)
    sentence = Sentence("s", forms, tuple(map(int, heads)), relations, upos, ("_",) * len(upos))
    return Passage("s", forms, 1, sentence=sentence if tree else None, links=links)


TREES = (
    passage(
        "the/DET/det/2 foxglove/NOUN/nsubj/3 drinks/VERB/root/0 not/ADV/advmod/3 coffee/NOUN/obj/3 ,/PUNCT/punct/3"
    ),
    passage("he/PRON/nsubj:pass/2 overslept/VERB/root/0"),
    passage("dogs/NOUN/nsubj/3 ,/PUNCT/punct/1 overdrinks/VERB/root/0 him/PRON/obj/3 ./PUNCT/punct/3"),
    passage("smallest/ADJ/amod/2 guests/NOUN/root/0"),
    passage("it/PRON/nsubj/3 never/ADV/advmod/3 jumps/VERB/root/0 lazy/ADJ/xcomp/3"),
)
