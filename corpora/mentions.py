"""The head word and the type of a span that refers to something, by the best evidence a corpus has.

Which evidence was used is counted by the reader: heads found by a parse and heads found by a list of prepositions are
not the same data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from corpora.conllu import blocks, read_treebank
from corpora.constituents import Constituent, constituent_head, read_constituents
from corpora.document import MentionType
from corpora.sentence import CorpusError, Sentence

Way = Literal["parse", "constituents", "last_noun", "last_word", "heuristic"]
WAYS: tuple[Way, ...] = ("parse", "constituents", "last_noun", "last_word", "heuristic")

_PRONOUN_TAGS = {"PRP", "PRP$", "WP", "WP$", "PRON"}
_PROPER_TAGS = {"NNP", "NNPS", "PROPN"}
_DEMONSTRATIVES = {"this", "that", "these", "those"}
# For text without parts of speech, older English included. Indefinite ones (somebody) are nouns to taggers, and here.
# fmt: off
_PRONOUNS = {
    "i", "me", "my", "mine", "myself", "we", "us", "our", "ours", "ourselves", "ourself", "you", "your", "yours",
    "yourself", "yourselves", "thou", "thee", "thy", "thine", "thyself", "ye", "he", "him", "his", "himself", "she",
    "her", "hers", "herself", "it", "its", "itself", "they", "them", "their", "theirs", "themselves", "'em", "who",
    "whom", "whose", "which", "whoever", "whomever", "whosoever",
}
# fmt: on
_RELATIVE_PRONOUNS = {"who", "whom", "whose", "which", "that"}
# Not among them, because they are adjectives, nouns or conjunctions as often: as, like, outside, past, round, than, ….
# fmt: off
_PREPOSITIONS = {
    "about", "above", "across", "after", "against", "along", "amid", "amidst", "among", "amongst", "around", "at",
    "before", "behind", "below", "beneath", "beside", "besides", "between", "beyond", "by", "concerning", "despite",
    "down", "during", "except", "for", "from", "in", "into", "near", "of", "off", "on", "onto", "out", "over",
    "since", "through", "throughout", "till", "to", "toward", "towards", "under", "underneath", "until", "unto",
    "up", "upon", "via", "with", "within", "without",
}
# fmt: on
_STOPS = _PREPOSITIONS | _RELATIVE_PRONOUNS | {","}
_CLITICS = {"'s", "’s"}


@dataclass
class Tokens:
    """A sentence of n ≥ 1 words as a CoNLL-2012 file has it; every column has n entries.

    Attributes:
        words: Word forms.
        tags: Parts of speech; `_` for none.
        bits: The parse column, as it stands.
        lines: The line of each word in the file, counted from 1.
        parse: The sentence's dependency tree, where one is at hand.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    bits: tuple[str, ...]
    lines: tuple[int, ...]
    parse: Sentence | None = None

    @cached_property
    def tree(self) -> Constituent | None:
        """The constituents; None without a bracket in the parse column. Raises `ParseBitError` if they are no tree."""
        return read_constituents(self.bits) if any("(" in bit for bit in self.bits) else None


class Head(NamedTuple):
    """The head word of a span, the way it was found, and between how many words the dependency tree left the choice."""

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
        return Head(start + _guess(sentence.words[start:end]), "heuristic")
    for wanted in (_is_noun, _PRONOUN_TAGS.__contains__):
        if places := [place for place, tag in enumerate(tags, start) if wanted(tag)]:
            return Head(places[-1], "last_noun")
    return Head(end - 1, "last_word")


def find_type(sentence: Tokens, start: int, end: int, head: int) -> tuple[MentionType, bool]:
    """Return the type of a span with that head, and whether it had to be guessed for want of a part of speech.

    The head's tag, or its UPOS in the dependency tree where the corpus has no tag, decides: a personal, possessive or
    wh-pronoun is a pronoun, and so is a demonstrative that stands alone; a proper noun is proper, all else nominal.
    Guessed: a pronoun is one of a closed list; a capitalised head that does not begin its sentence is proper.
    """
    word = sentence.words[head]
    if end - start == 1 and word.lower() in _DEMONSTRATIVES:
        return "pronoun", _tag(sentence, head) == "_"
    tag = _tag(sentence, head)
    if tag != "_":
        return ("pronoun" if tag in _PRONOUN_TAGS else "proper" if tag in _PROPER_TAGS else "nominal"), False
    if word.lower() in _PRONOUNS:
        return "pronoun", True
    return ("proper" if head > 0 and word[0].isupper() else "nominal"), True


def _is_noun(tag: str) -> bool:
    return tag.startswith("NN") or tag in {"NOUN", "PROPN"}


def _tag(sentence: Tokens, word: int) -> str:
    tag = sentence.tags[word]
    return sentence.parse.upos[word] if tag == "_" and sentence.parse is not None else tag


def _guess(words: Sequence[str]) -> int:
    stop = next((place for place in range(1, len(words)) if words[place].lower() in _STOPS), len(words))
    real = [place for place in range(stop) if words[place] not in _CLITICS and any(map(str.isalnum, words[place]))]
    return real[-1] if real else stop - 1


def attach_parses(path: Path, sentences: Sequence[Tokens], parses: Path) -> None:
    """Give every sentence of the file `path` its dependency tree of the file `parses`.

    Raises:
        CorpusError: `parses` is no treebank, or the two files differ in a word or a sentence; the message names both
            places.

    """
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
            raise CorpusError.at(
                path,
                sentence.lines[min(place, len(sentence.lines) - 1)],
                f"word {place + 1} of sentence {number + 1} {shown[0]}, but {shown[1]} in "
                f"{parses}:{_line_of(parses, number, min(place, len(tree) - 1))}",
                remedy,
            )
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
    found = (
        rows
        for block in blocks(treebank)
        if (rows := [(number, line) for number, line in block if not line.startswith("#")])
    )
    rows = next(rows for place, rows in enumerate(found) if place == sentence)
    return next(number for number, line in rows if line.partition("\t")[0] == str(word + 1))
