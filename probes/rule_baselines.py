"""Rule-based predictors of antecedents: the nearest mention, the nearest with the same head word, and a short sieve.

Each baseline chooses, for every mention of a window, an earlier mention with another head word. `sieve` is a short form
of Stanford's multi-pass sieve (Lee et al. 2011): four passes instead of ten, one mention at a time instead of growing
clusters, no speakers, appositions or name lists. Clark et al. (2019, §4.3) compare their heads with a rule-based system
of this family; the scores here are not the scores of the published system.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from attention_probing.corpora.document import Mention

WordsOfSentences = Sequence[Sequence[str]]
Pass = Callable[[int, int], bool]


class Attributes(NamedTuple):
    """Number, gender and person of a mention; mentions of one entity should agree in them.

    Attributes:
        number: Grammatical number; None if unknown, which agrees with every number.
        gender: Grammatical gender; None if unknown, which agrees with every gender.
        person: Grammatical person; None if unknown, which agrees with every person.
    """

    number: Literal["singular", "plural"] | None = None
    gender: Literal["masculine", "feminine", "neuter"] | None = None
    person: Literal[1, 2, 3] | None = None


PRONOUNS: dict[str, Attributes] = {}
"""Number, gender and person of the pronouns, lower-cased; a pronoun outside the table is unknown in all three."""

for _words, _attributes_of_words in (
    ("i me my mine myself", Attributes("singular", None, 1)),
    ("we us our ours ourselves 's ’s", Attributes("plural", None, 1)),  # let's
    ("thou thee thy thine thyself yourself", Attributes("singular", None, 2)),
    ("you your yours", Attributes(None, None, 2)),
    ("ye yourselves", Attributes("plural", None, 2)),
    ("he him his himself", Attributes("singular", "masculine", 3)),
    ("she her hers herself", Attributes("singular", "feminine", 3)),
    ("it its itself", Attributes("singular", "neuter", 3)),
    ("they them their theirs themselves 'em ’em em these those", Attributes("plural", None, 3)),
    ("this that one oneself", Attributes("singular", None, 3)),
    ("who whom whose which", Attributes(None, None, 3)),
):
    PRONOUNS.update(dict.fromkeys(_words.split(), _attributes_of_words))

MASCULINE = """
    mr mister sir lord king prince duke baron emperor master monsieur father dad papa grandfather son grandson brother
    uncle nephew husband widower man gentleman boy lad fellow men gentlemen boys sons brothers
"""
FEMININE = """
    mrs ms miss madam madame mme mademoiselle lady dame queen princess duchess baroness countess empress mistress mother
    mom mum mamma mama grandmother daughter granddaughter sister aunt niece wife widow woman girl lass women ladies
    girls daughters sisters
"""
GENDERS: dict[str, Literal["masculine", "feminine"]] = {
    **dict.fromkeys(MASCULINE.split(), "masculine"),
    **dict.fromkeys(FEMININE.split(), "feminine"),
}
"""Gender of titles and nouns, lower-cased and without a full stop."""

OPENING = "a an the this that these those my your his her its our their thy thine"
"""Determiners and possessives at the beginning of a mention, which `sieve` ignores."""

BOUNDARIES = """
    of in on at by for from with without to into about over under between among against during after before behind near
    through like as who whom whose which that where when
"""
"""Prepositions and relative pronouns: an *and* behind the first of them does not coordinate the mention."""

POSSESSIVE_MARKERS = frozenset(("'s", "’s", "'", "’"))
_OPENING = frozenset(OPENING.split())
_BOUNDARIES = frozenset(BOUNDARIES.split())


def nearest(sentences: WordsOfSentences, tags: WordsOfSentences, mentions: Sequence[Mention]) -> list[int | None]:
    """Choose for each mention the nearest earlier mention.

    An earlier mention that has the same token of the text as its head is never chosen.

    Args:
        sentences: Words of each sentence of the window; not used.
        tags: Parts of speech of these words; not used.
        mentions: Mentions in window order.

    Returns:
        For each mention the index of the chosen mention in `mentions`; None if there is none.
    """
    return _choose(mentions)


def head_match(sentences: WordsOfSentences, tags: WordsOfSentences, mentions: Sequence[Mention]) -> list[int | None]:
    """Choose for each mention the nearest earlier mention with the same head word.

    If there is none, the nearest earlier mention is chosen. Case is ignored. A mention that has the same
    token of the text as its head is never chosen.

    Args:
        sentences: Words of each sentence of the window.
        tags: Parts of speech of these words; not used.
        mentions: Mentions in window order.

    Returns:
        For each mention the index of the chosen mention in `mentions`; None if there is none.
    """
    heads = [_head(sentences, mention) for mention in mentions]
    return _choose(mentions, lambda later, earlier: heads[later] == heads[earlier])


def sieve(sentences: WordsOfSentences, tags: WordsOfSentences, mentions: Sequence[Mention]) -> list[int | None]:
    """Choose for each mention an earlier mention by four passes of rules.

    The passes are tried in this order. The first pass that accepts any earlier mention decides: the
    nearest of the mentions that it accepts is chosen. A mention whose head is the same token is never
    accepted.

    1. Accepts mentions with the same words, apart from determiners and possessives at the beginning.
       Pronouns skip this pass.
    2. Accepts mentions with the same head word. Pronouns skip this pass.
    3. Accepts mentions that agree in number, gender and person.
    4. Accepts every mention.

    Case is ignored. Number, gender and person of pronouns are in `PRONOUNS`. Any other mention is
    plural if the tag of its head is NNS or NNPS or if *and* coordinates it, singular if the tag is NN
    or NNP, and of unknown number otherwise. Its gender is that of its head in `GENDERS`, or of a title
    before a proper name. Its person is the third, so that *I* and *you* agree with pronouns only.
    Without tags a modifier with *and* (a black and white cat) is mistaken for a coordination.

    Args:
        sentences: Words of each sentence of the window.
        tags: Parts of speech of these words, `_` in a corpus without tags.
        mentions: Mentions in window order.

    Returns:
        For each mention the index of the chosen mention in `mentions`; None if there is none.
    """
    pronoun = [mention.type == "pronoun" for mention in mentions]
    heads = [_head(sentences, mention) for mention in mentions]
    names = [_name(sentences, mention) for mention in mentions]
    attributes = [_attributes(sentences, tags, mention) for mention in mentions]
    return _choose(
        mentions,
        lambda later, earlier: not pronoun[later] and names[later] == names[earlier],
        lambda later, earlier: not pronoun[later] and heads[later] == heads[earlier],
        lambda later, earlier: _agree(attributes[later], attributes[earlier]),
    )


def _choose(mentions: Sequence[Mention], *passes: Pass) -> list[int | None]:
    """Choose the nearest earlier mention that the first successful pass accepts; or else the nearest."""
    words = [(mention.sentence, mention.head) for mention in mentions]
    antecedents: list[int | None] = []
    for later, word in enumerate(words):
        candidates = [earlier for earlier in reversed(range(later)) if words[earlier] != word]
        antecedents.append(_first_accepted(later, candidates, passes))
    return antecedents


def _first_accepted(later: int, candidates: Sequence[int], passes: Sequence[Pass]) -> int | None:
    """Return the first candidate of the first pass that accepts any, or else the first; None without a candidate."""
    for accepts in passes:
        for earlier in candidates:
            if accepts(later, earlier):
                return earlier
    return candidates[0] if candidates else None


def _head(sentences: WordsOfSentences, mention: Mention) -> str:
    return sentences[mention.sentence][mention.head].lower()


def _name(sentences: WordsOfSentences, mention: Mention) -> tuple[str, ...]:
    """Spell a mention without the determiners and possessives at its beginning, unless it has nothing else."""
    words = [word.lower() for word in sentences[mention.sentence][mention.start : mention.end]]
    for place, word in enumerate(words):
        if word not in _OPENING:
            return tuple(words[place:])
    return tuple(words)


def _agree(one: Attributes, other: Attributes) -> bool:
    return all(a is None or b is None or a == b for a, b in zip(one, other, strict=True))


def _attributes(sentences: WordsOfSentences, tags: WordsOfSentences, mention: Mention) -> Attributes:
    words = [word.lower() for word in sentences[mention.sentence][mention.start : mention.end]]
    head = mention.head - mention.start
    if mention.type == "pronoun":
        return PRONOUNS.get(words[head], Attributes())
    tag = tags[mention.sentence][mention.head]
    if _is_coordinated(words, head, tag):
        return Attributes("plural", None, 3)
    number: Literal["singular", "plural"] | None = None
    if tag in ("NN", "NNP", "NNS", "NNPS"):
        number = "plural" if tag.endswith("S") else "singular"
    naming = [words[head]]
    if mention.type == "proper":
        # Mrs. Bennet is a woman; what belongs to Mr. Bennet is no man.
        for word in reversed(words[:head]):
            if word in POSSESSIVE_MARKERS:
                break
            naming.append(word)
    for word in naming:
        gender = GENDERS.get(word.rstrip("."))
        if gender is not None:
            return Attributes(number, gender, 3)
    return Attributes(number, None, 3)


def _is_coordinated(words: Sequence[str], head: int, tag: str) -> bool:
    """Return True if *and* coordinates the head of a mention.

    The head is one of the coordinated nouns: the first in a treebank, the last where no tree says so. Before a head
    whose tag is known to be singular, *and* joins its modifiers.
    """
    for word in words[head + 1 :]:
        if word in _BOUNDARIES:
            break
        if word == "and":
            return True
    return tag not in ("NN", "NNP") and "and" in words[:head]
