"""The words of `lexicon.yaml`: kinds of noun, verbs with their frames, closed classes."""

from collections.abc import Mapping
from dataclasses import dataclass

from corpora.tables import tables, words


@dataclass(frozen=True, slots=True)
class Noun:
    """A countable noun and the nouns that may modify it."""

    singular: str
    plural: str
    modifiers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """What may be said of a kind of thing; `adjectives` by slot, `links` are prepositions and the kind behind each."""

    nouns: tuple[Noun, ...]
    adjectives: tuple[tuple[str, ...], ...]
    predicates: tuple[str, ...]
    links: tuple[tuple[str, ...], ...]
    plural: float
    public: bool


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb's five forms."""

    base: str
    third: str
    past: str
    participle: str
    gerund: str


@dataclass(frozen=True, slots=True)
class Frame:
    """A verb with what it takes.

    `pattern` names the complements (see `Clauses.complements`), `subjects` and `objects` the kinds of noun that may
    fill the places, `link` its particle or preposition, `manner` adverbs that fit. A stative verb has no progressive;
    only what is deliberate can be ordered, planned or tried.
    """

    verb: Verb
    pattern: str
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    link: str
    manner: tuple[str, ...]
    stative: bool
    deliberate: bool


_TABLES = tables("lexicon.yaml")
WORDS: Mapping[str, tuple[str, ...]] = {name: words(text) for name, text in _TABLES["words"].items()}
# Person and number → subject form, object form, possessive form.
PRONOUNS: Mapping[str, tuple[str, ...]] = {base: words(forms) for base, forms in _TABLES["pronouns"].items()}
PATTERNS: Mapping[str, float] = {name: float(weight) for name, weight in _TABLES["patterns"].items()}


def s_form(base: str) -> str:
    """Return the form in -s, of a noun or of a verb."""
    if base.endswith(("s", "x", "ch", "sh", "o")):
        return base + "es"
    return base[:-1] + "ies" if base.endswith("y") and base[-2] not in "aeiou" else base + "s"


def _noun(entry: str) -> Noun:
    forms, _, modifiers = entry.partition(":")
    singular, _, plural = forms.partition("/")
    return Noun(singular, plural or s_form(singular), words(modifiers, ","))


def _kind(entry: Mapping[str, str]) -> Kind:
    return Kind(
        nouns=tuple(map(_noun, words(entry.get("nouns", "")))),
        adjectives=tuple(map(words, words(entry["adjectives"], "|"))),
        predicates=words(entry.get("predicates", "")),
        links=tuple(map(words, words(entry["links"], "|"))),
        plural=float(entry.get("plural", 0.3)),
        public="public" in entry,
    )


def verb_of(entry: str) -> Verb:
    """Return the five forms of a verb, given as in the table."""
    base, *irregular = entry.split("/")
    stem = base + base[-1] if base in WORDS["doubled"] else base
    if base.endswith("e"):
        regular = base + "d"
    else:
        regular = base[:-1] + "ied" if base.endswith("y") and base[-2] not in "aeiou" else stem + "ed"
    past = irregular[0] if irregular else regular
    gerund = base[:-1] if base.endswith("e") and not base.endswith("ee") else stem
    return Verb(base, s_form(base), past, irregular[-1] if irregular else regular, gerund + "ing")


def _frame(pattern: str, entry: str, group: Mapping[str, str]) -> Frame:
    verb, stative = verb_of(entry), "stative" in group
    return Frame(
        verb=verb,
        pattern=pattern,
        subjects=words(group["who"]),
        objects=words(group.get("what", "")),
        link=group.get("link", ""),
        manner=words(group.get("how", "")),
        stative=stative or verb.base in WORDS["no progressive"],
        deliberate=not stative and verb.base not in WORDS["unintended"],
    )


KINDS: Mapping[str, Kind] = {name: _kind(entry) for name, entry in _TABLES["kinds"].items()}
FRAMES: tuple[Frame, ...] = tuple(
    _frame(pattern, entry, group)
    for pattern, groups in _TABLES["frames"].items()
    for group in groups
    for entry in group["verbs"].split()
)
