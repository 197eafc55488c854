"""The head word and the type of a span that refers to something, by the best evidence a corpus has.

The parse bits of CoNLL-2012, one a word, are the bracketed tree of a sentence with every word and
its tag replaced by `*`: `(TOP(S(NP*`, `*)`, `(VP*)))`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from corpora.conllu import blocks, read_treebank
from corpora.document import MentionType
from corpora.sentence import CorpusError, Sentence
from corpora.tables import tables, words

Way = Literal["parse", "constituents", "last_noun", "last_word", "heuristic"]
WAYS: tuple[Way, ...] = ("parse", "constituents", "last_noun", "last_word", "heuristic")

_BIT = re.compile(r"((?:\([^()*\s]*)*)\*(\)*)")
_NP_LIKE = {"NP", "WHNP"}
_NOUN_LIKE = {"NX", "NML"}  # nouns within a noun phrase, grouped
_CLAUSES = {"S", "SBAR", "SBARQ", "SINV", "SQ"}
_POSTMODIFIERS = _CLAUSES | {"PP", "WHPP", "VP", "RRC", "PRN"}
_NOUNS = {"NOUN", "PROPN", "PRP", "WP", "PRON"}  # beside NN*; a pronoun heads its phrase as a noun does
_PUNCTUATION = {",", ":", ".", "``", "''", "-LRB-", "-RRB-", "HYPH", "POS", "PUNCT"}
_PRONOUN_TAGS = {"PRP", "PRP$", "WP", "WP$", "PRON"}
_PROPER_TAGS = {"NNP", "NNPS", "PROPN"}
_WORDS = {name: frozenset(words(text)) for name, text in tables("mentions.yaml").items()}


@dataclass(slots=True)
class Constituent:
    """A phrase of the words `start` to `end` (exclusive), with phrases and single words (their places) below it."""

    label: str
    start: int
    end: int
    children: list["Constituent | int"]


class ParseBitError(ValueError):
    """Parse bits that are no tree; `word` is the position of the first wrong one, from 0."""

    def __init__(self, word: int, wrong: str) -> None:
        super().__init__(wrong)
        self.word = word


@dataclass
class Tokens:
    """A sentence of n ≥ 1 words as a CoNLL-2012 file has it; every column has n entries."""

    words: tuple[str, ...]
    tags: tuple[str, ...]  # _ for none
    bits: tuple[str, ...]  # the parse column
    lines: tuple[int, ...]  # of the file, counted from 1
    parse: Sentence | None = None  # the dependency tree, where one is at hand

    @cached_property
    def tree(self) -> Constituent | None:
        """Constituents; None without a bracket in the parse column. Raises `ParseBitError` if they are no tree."""
        return read_constituents(self.bits) if any("(" in bit for bit in self.bits) else None


class Head(NamedTuple):
    """The head word of a span, the way it was found, and the number of words that the dependency tree offered."""

    word: int
    way: Way
    candidates: int = 1


def find_head(sentence: Tokens, start: int, end: int) -> Head:
    """Return the head of the words `start` to `end` (exclusive), by the first of these ways that is open.

    - `parse`: the word whose head in the dependency tree lies outside the span; of several the leftmost.
    - `constituents`: the head of the smallest constituent (see `constituent_head`).
    - `last_noun`: by part of speech, the last noun of the span; without a noun, the last pronoun.
    - `last_word`: the parts of speech have neither.
    - `heuristic`: no parts of speech, so the last word before the first preposition, relative pronoun or comma behind
      the span's first word. Punctuation and a possessive 's are no words here, unless there is nothing else.

    Raises:
        ParseBitError: The constituents are needed, and are no tree.
    """
    if sentence.parse is not None:
        heads = sentence.parse.heads  # counted from 1; the root's is 0
        free = [word for word in range(start, end) if not start < heads[word] <= end]
        return Head(free[0], "parse", len(free))
    if sentence.tree is not None:
        return Head(constituent_head(sentence.tree, sentence.tags, start, end), "constituents")
    tags = sentence.tags[start:end]
    if "_" in tags:
        return Head(start + _head_by_heuristic(sentence.words[start:end]), "heuristic")
    for wanted in (_is_noun, _PRONOUN_TAGS.__contains__):
        if places := [place for place, tag in enumerate(tags, start) if wanted(tag)]:
            return Head(places[-1], "last_noun")
    return Head(end - 1, "last_word")


def find_type(sentence: Tokens, start: int, end: int, head: int) -> tuple[MentionType, bool]:
    """Return the type of a span with this head, and True if a heuristic gives it because the part of speech is missing.

    The head's tag, or its UPOS in the dependency tree where the corpus has no tag, decides: a personal, possessive or
    wh-pronoun is a pronoun, and so is a demonstrative that stands alone; a proper noun is proper, all else nominal.
    The heuristic: a pronoun is one of a closed list; a capitalised head that does not begin its sentence is proper.
    """
    word = sentence.words[head]
    tag = sentence.tags[head]
    if tag == "_" and sentence.parse is not None:
        tag = sentence.parse.upos[head]
    if end - start == 1 and word.lower() in _WORDS["demonstratives"]:
        return "pronoun", tag == "_"
    if tag != "_":
        return ("pronoun" if tag in _PRONOUN_TAGS else "proper" if tag in _PROPER_TAGS else "nominal"), False
    if word.lower() in _WORDS["pronouns"]:
        return "pronoun", True
    return ("proper" if head > 0 and word[0].isupper() else "nominal"), True


def _is_noun(tag: str) -> bool:
    return tag.startswith("NN") or tag in {"NOUN", "PROPN"}


def _head_by_heuristic(words: Sequence[str]) -> int:
    stops, clitics = _WORDS["stops"], _WORDS["clitics"]
    stop = next((place for place in range(1, len(words)) if words[place].lower() in stops), len(words))
    real = [place for place in range(stop) if words[place] not in clitics and any(map(str.isalnum, words[place]))]
    return real[-1] if real else stop - 1


def attach_parses(path: Path, sentences: Sequence[Tokens], parses: Path) -> None:
    """Set the dependency tree of every sentence of `path` from the file `parses`; raise where they differ."""
    trees = read_treebank(parses).sentences
    remedy = "Heads are taken from the parses of the very same sentences and words: correct one file, or move it away"
    for number, (sentence, tree) in enumerate(zip(sentences, trees, strict=False)):
        if sentence.words != tree.words:
            pairs = zip(sentence.words, tree.words, strict=False)
            shorter = min(len(sentence.words), len(tree.words))
            place = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), shorter)
            shown = [
                f"is {words[place]!r}" if place < len(words) else f"is missing behind {words[-1]!r}"
                for words in (sentence.words, tree.words)
            ]
            there = f"{parses}:{_line_of(parses, number, min(place, len(tree) - 1))}"
            wrong = f"word {place + 1} of sentence {number + 1} {shown[0]}, but {shown[1]} in {there}"
            raise CorpusError.at(path, sentence.lines[min(place, len(sentence.lines) - 1)], wrong, remedy)
        sentence.parse = tree
    if len(sentences) > len(trees):
        line = _line_of(parses, len(trees) - 1, len(trees[-1]) - 1)
        wrong = f"sentence {len(trees) + 1} has no parse: {parses}:{line} is the end of the last"
        raise CorpusError.at(path, sentences[len(trees)].lines[0], wrong, remedy)
    if len(trees) > len(sentences):
        line = _line_of(parses, len(sentences), 0)
        wrong = f"this is the end of the last sentence, but {parses}:{line} begins sentence {len(sentences) + 1}"
        raise CorpusError.at(path, sentences[-1].lines[-1], wrong, remedy)


def _line_of(treebank: Path, sentence: int, word: int) -> int:
    """Return the line of a word, both counted from 0, in a treebank that was read before without an error."""
    rows = ([row for row in block if not row[1].startswith("#")] for block in blocks(treebank))
    wanted = next(islice(filter(None, rows), sentence, None))
    return next(number for number, line in wanted if line.partition("\t")[0] == str(word + 1))


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

    The head child of the smallest constituent that spans them, cut to the span, is followed down to a word. A short
    form of the rules of Collins 1999, "Head-Driven Statistical Models for Natural Language Parsing", appendix A; the
    head child of a phrase is the first found of

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
    return children[next(place for place in _head_places(label, names) if place is not None)]


def _head_places(label: str, names: list[str]) -> Iterator[int | None]:
    """Yield the place that each rule of `constituent_head` gives, or None; the last always gives one."""

    def first(wanted: set[str]) -> int | None:
        return next((i for i, name in enumerate(names) if name[1:-1] in wanted and name[0] == "<"), None)

    if label == "VP" or label in _CLAUSES:
        yield first({"VP"})
        yield first(_CLAUSES) if label != "VP" else None
        yield next((i for i, name in enumerate(names) if name.startswith("VB") or name == "VERB"), None)
    cut = next((i for i in range(1, len(names)) if names[i][1:-1] in _POSTMODIFIERS and names[i][0] == "<"), len(names))
    yield _last_noun(names[:cut])
    yield first(_NP_LIKE)
    yield next((i for i in reversed(range(cut)) if names[i] in {"CD", "NUM", "<QP>"}), None)
    yield next((i for i in reversed(range(cut)) if names[i] not in _PUNCTUATION), cut - 1)


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
