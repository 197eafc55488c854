"""Parse bits of CoNLL-2012 → constituents, and the word that heads a span of them.

The bits of a sentence, one a word, are its bracketed tree with every word and its tag replaced by `*`:
`(TOP(S(NP*`, `*)`, `(VP*)))`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_BIT = re.compile(r"((?:\([^()*\s]*)*)\*(\)*)")
_NP_LIKE = {"NP", "WHNP"}
_NOUN_LIKE = {"NX", "NML"}  # nouns within a noun phrase, grouped
_CLAUSES = {"S", "SBAR", "SBARQ", "SINV", "SQ"}
_POSTMODIFIERS = _CLAUSES | {"PP", "WHPP", "VP", "RRC", "PRN"}
_NOUNS = {"NOUN", "PROPN", "PRP", "WP", "PRON"}  # beside NN*; a pronoun heads its phrase as a noun does
_PUNCTUATION = {",", ":", ".", "``", "''", "-LRB-", "-RRB-", "HYPH", "POS", "PUNCT"}


@dataclass(slots=True)
class Constituent:
    """A phrase of the words `start` to `end` (exclusive), with phrases and single words (their places) below it."""

    label: str
    start: int
    end: int
    children: list["Constituent | int"]


class ParseBitError(ValueError):
    """Bits that are no tree; `word` is the 0-based place of the first that is wrong."""

    def __init__(self, word: int, wrong: str) -> None:
        super().__init__(wrong)
        self.word = word


def read_constituents(bits: Sequence[str]) -> Constituent:
    """Build the tree of a sentence under one nameless root; function tags are cut off (`NP-SBJ` is `NP`).

    Raises:
        ParseBitError: A bit is malformed, or the brackets do not match.

    """
    root = Constituent("", 0, len(bits), [])
    path = [root]
    for word, bit in enumerate(bits):
        found = _BIT.fullmatch(bit)
        if found is None:
            raise ParseBitError(word, f"the parse bit {bit!r} is malformed")
        for label in found[1].split("(")[1:]:
            phrase = Constituent(re.split("[-=]", label, maxsplit=1)[0], word, 0, [])
            path[-1].children.append(phrase)
            path.append(phrase)
        path[-1].children.append(word)
        for _ in found[2]:
            if len(path) == 1:
                raise ParseBitError(word, f"the parse bit {bit!r} closes a constituent that was never opened")
            path.pop().end = word + 1
    if len(path) > 1:
        raise ParseBitError(path[1].start, f"the constituent {path[1].label} that opens here is never closed")
    return root


def constituent_head(tree: Constituent, tags: Sequence[str], start: int, end: int) -> int:
    """Return the head word of the words `start` to `end` (exclusive) of a sentence, one of them.

    The smallest constituent that spans them is taken, what lies outside the span is cut off it, and the head child is
    followed down to a word. A short form of the rules of Collins 1999, "Head-Driven Statistical Models for Natural
    Language Parsing", appendix A; the head child of a phrase is the first found of

    1. the last noun or pronoun before any postmodifier (PP, S, SBAR, VP, RRC, PRN, …); of nouns joined by a
       conjunction or comma the first (*cats* in *cats and dogs*), which Collins does for conjunctions;
    2. the first noun phrase (*lid* in *[the lid] [of the box]*);
    3. the last number before any postmodifier;
    4. the last child before any postmodifier that is not punctuation; else the last one.

    In a clause or verb phrase that lies wholly in the span, the first verb phrase comes before all these, then (in a
    clause) the first clause, then the first verb. Collins takes a possessive's 's for the head; here the noun before it
    stands for the span.
    """
    node = tree
    while True:
        whole = start <= node.start and node.end <= end
        # Where one child holds the whole span, the others have nothing in it: so the smallest constituent is found.
        inside = [child for child in node.children if _start(child) < end and start < _end(child)]
        child = _head_child(node.label if whole else "", inside, tags)
        if isinstance(child, int):
            return child
        node = child


def _start(child: Constituent | int) -> int:
    return child if isinstance(child, int) else child.start


def _end(child: Constituent | int) -> int:
    return child + 1 if isinstance(child, int) else child.end


def _head_child(label: str, children: list[Constituent | int], tags: Sequence[str]) -> Constituent | int:
    # A phrase goes by its label in angle brackets, so that no tag of a word is taken for one.
    names = [tags[child] if isinstance(child, int) else f"<{child.label}>" for child in children]

    def first(wanted: set[str]) -> int | None:
        return next((i for i, name in enumerate(names) if name[1:-1] in wanted and name[0] == "<"), None)

    place: int | None = None
    if label == "VP" or label in _CLAUSES:
        place = first({"VP"})
        if place is None and label != "VP":
            place = first(_CLAUSES)
        if place is None:
            place = next((i for i, name in enumerate(names) if name.startswith("VB") or name == "VERB"), None)
    cut = next((i for i in range(1, len(names)) if names[i][1:-1] in _POSTMODIFIERS and names[i][0] == "<"), len(names))
    if place is None:
        place = _last_noun(names[:cut])
    if place is None:
        place = first(_NP_LIKE)
    if place is None:
        place = next((i for i in reversed(range(cut)) if names[i] in {"CD", "NUM", "<QP>"}), None)
    if place is None:
        place = next((i for i in reversed(range(cut)) if names[i] not in _PUNCTUATION), cut - 1)
    return children[place]


def _last_noun(names: list[str]) -> int | None:
    """Return the place of the last noun; where it ends a list of nouns, that of the list's first."""
    nouns = [name.startswith("NN") or name in _NOUNS or name[1:-1] in _NOUN_LIKE for name in names]
    place = next((i for i in reversed(range(len(names))) if nouns[i]), None)
    while place is not None:
        before = place - 1
        while before >= 0 and names[before] in {"CC", "CCONJ", "<CONJP>", ","}:
            before -= 1
        if before == place - 1 or before < 0 or not nouns[before]:
            break
        place = before
    return place
