"""Grammar of the sample corpora: generates documents and reviews from `sample.yaml`, which explains its notation."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain, pairwise
from random import Random
from typing import Any, TypeVar

import yaml

DOCUMENTS = {"train": 400, "dev": 50, "test": 50}
SENTENCES = 5  # of a document
# Words of a sentence, punctuation included.
SHORTEST = 3
LONGEST = 30

GLUED = frozenset({",", ".", "?", "n't", "'s"})
"""Words without a blank before them."""

_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the C library may not be there; "no" stays a word
_GRAMMAR = yaml.load(files("attention_probing.corpora").joinpath("sample.yaml").read_text("utf-8"), _LOADER)
_TAGS: dict[str, str] = {}  # by word, or by symbol
for _tag, _words in _GRAMMAR["tags"].items():
    _TAGS |= dict.fromkeys(_words.split(), _tag)
_KINDS = {kind: {"KIND": kind, **_GRAMMAR["any_kind"], **rules} for kind, rules in _GRAMMAR["kinds"].items()}
_RULES = {**_GRAMMAR["rules"], **_GRAMMAR["words"], "RELATION": "", "PLURAL": False}
_ITEM = re.compile(
    r"(?:(?P<case>[a-z]+)\+)?(?P<symbol>[^\s/:@]+)(?:/(?P<tag>[^\s:@]+))?(?::(?P<relation>[a-z:]+))?(?:@(?P<target>\d))?"
)

Scope = dict[str, Any]  # definitions by symbol, and properties of the current phrase
CastMention = tuple[str, list["Word"]]  # the pronoun of a member of the cast, and the words that refer to it
T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Word:
    """A word of a generated dependency tree.

    Attributes:
        form: Spelling.
        tag: Part-of-speech tag of the Penn Treebank.
        relation: Dependency relation to the head; empty until the word is attached.
        head: Head word; None for the root, and until the word is attached.
    """

    form: str
    tag: str
    relation: str = ""
    head: "Word | None" = None


def join_words(words: Sequence[Word]) -> str:
    """Return the words as running text."""
    parts = []
    for word in words:
        parts.append(word.form if word.form in GLUED else f" {word.form}")
    return "".join(parts).lstrip()


def find_upos(word: Word) -> str:
    """Return the universal part of speech of a word, by its tag or its relation."""
    relation = word.relation or "root"
    for key, upos in _GRAMMAR["upos"].items():
        if key in (word.tag, relation):
            return str(upos)
    return "VERB"


@cache
def _parse_templates(*alternatives: str) -> list[list[dict[str, str]]]:
    """Return each template as the parts of its items, repeated by its weight."""
    templates = []
    for alternative in alternatives:
        weight = "1"
        template = alternative
        if alternative[:1].isdecimal():
            weight, _, template = alternative.partition(" ")
        items = [match.groupdict("") for match in _ITEM.finditer(template)]
        templates += [items] * int(weight)
    return templates


def _add_s(base: str) -> str:
    if base.endswith(("s", "x", "ch", "sh", "o")):
        return f"{base}es"
    return f"{base}s"


def _list_verbs() -> Iterator[dict[str, Any]]:
    """Yield the definitions of each verb, for each kind of subject and object."""
    for line in _GRAMMAR["verbs"]:
        subjects, verbs, objects, rest = map(str.strip, line.split("|"))
        for entry in verbs.split():
            base = entry.partition("/")[0]
            forms = {"VBZ": [f"{_add_s(base)}|{base}/VBZ|VBP"]}
            for tag, form in _inflect(entry).items():
                forms[tag] = [f"{form}/{tag}"]
            for subject in subjects.split():
                for kind in objects.split() or [""]:
                    yield {
                        "KIND": subject,
                        "SUBJECT": [subject],
                        "OF": kind,
                        "OBJECT": [f"{kind}:obj" if kind else ""],
                        "REST": [rest],
                        **forms,
                    }


def _inflect(entry: str) -> dict[str, str]:
    """Return the forms of a verb by tag; an irregular one has its past, and a participle that differs, behind `/`."""
    base, *irregular = entry.split("/")
    stem = base.removesuffix("e")
    past = irregular[0] if irregular else f"{stem}ed"
    participle = irregular[-1] if irregular else f"{stem}ed"
    return {"VB": base, "VBD": past, "VBN": participle, "VBG": f"{stem}ing"}


_VERBS = list(_list_verbs())


class Grammar:
    """Seeded generator of documents and reviews by the grammar of the sample corpus.

    No sentence of a document and no review is generated twice. The only source of randomness is
    `Random.random`, whose sequence for a seed is the same in every Python version.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed).random
        self._cast: list[Mapping[str, str]] = []
        self._mentions: list[CastMention] = []
        self._taken: set[str] = set()  # words of the current sentence, and the nouns of the cast
        self._texts: set[str] = set()

    def document(self) -> tuple[list[list[Word]], list[CastMention]]:
        """Generate a document; return its sentences, and the mentions of the entities that it is about.

        A sentence is a list of words that are attached to their heads. A mention is a pair: the pronoun of an
        entity (`she`, `he` or `it`), which identifies the entity in the document, and the words of the mention.
        """
        self._cast = []
        self._mentions = []
        self._taken = set()
        for alternatives in _GRAMMAR["cast"]:
            member = self._pick(alternatives)
            definitions = {"NN": _KINDS[member["KIND"]]["NN"], **member}
            self._cast.append({symbol: self._take_word(words) for symbol, words in definitions.items()})
        sentences: list[list[Word]] = []
        while len(sentences) < SENTENCES:
            mentions_before = len(self._mentions)
            self._taken = {member["NN"] for member in self._cast}
            words = self._expand("SENTENCE", {**_RULES, "SAID": set()})
            if SHORTEST <= len(words) <= LONGEST and self._spell_new_text(words):
                sentences.append(words)
            else:
                del self._mentions[mentions_before:]
        return sentences, self._mentions

    def review(self, label: str) -> list[Word]:
        """Generate a review, and return its words; the words of its rationale have the relation `rationale`.

        Args:
            label: `positive` or `negative`.
        """
        while True:
            self._taken = set()
            domain = self._pick(_GRAMMAR["domains"])
            noun = self._pick(domain["NOUN"].split())
            rules = {**_RULES, **_GRAMMAR["reviews"], **domain, **_GRAMMAR["labels"][label], "NOUN": noun}
            words = self._expand("REVIEW", rules)
            if self._spell_new_text(words):
                return words

    def _spell_new_text(self, words: list[Word]) -> bool:
        """Spell the words as in a text; return True if the text is new."""
        for before, word in pairwise([Word(".", "."), *words]):
            if before.form.lower() == "a" and word.form[0] in "aeiou":
                before.form += "n"
            if before.form == ".":
                word.form = word.form[0].upper() + word.form[1:]
        text = join_words(words).lower()
        is_new = text not in self._texts
        self._texts.add(text)
        return is_new

    def _pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def _take_word(self, words: str) -> str:
        """Return one of the words and mark it as taken; prefers words that are not taken."""
        options = words.split()
        free = [word for word in options if word not in self._taken]
        word = self._pick(free or options)
        self._taken.add(word)
        return word

    def _expand(self, symbol: str, scope: Scope) -> list[Word]:
        """Return the words of a symbol by its definition in the scope; the caller attaches words without a head."""
        outer, _, inner = symbol.partition(".")
        if inner or symbol in _KINDS:
            return self._expand(inner or "NP", self._enter(outer, scope))
        if symbol == "CAST":
            return self._mention(scope)
        plural = symbol == "NNS"
        definition = scope["NN" if plural else symbol]
        if isinstance(definition, str):
            form = self._take_word(definition)
            if plural:
                form = _add_s(form)
            return [Word(form, _TAGS.get(symbol, symbol))]
        template = self._pick(_parse_templates(*definition))
        return self._fill(template, dict(scope))

    def _enter(self, name: str, scope: Scope) -> Scope:
        """Return the scope with the definitions of a kind, or of a verb for the current kind."""
        if name == "SOME":
            name = self._pick(list(_KINDS))
        if name in _KINDS:
            return {**scope, **_KINDS[name]}
        place = {"ANY": None, "DOES": "KIND", "DONE": "OF"}[name]
        if place is None:
            return {**scope, **self._pick(_VERBS), "SAID": set()}
        verbs = [verb for verb in _VERBS if verb[place] == scope["KIND"]]
        return {**scope, **self._pick(verbs), "SAID": set(scope["SAID"])}

    def _mention(self, scope: Scope) -> list[Word]:
        """Return a mention of a member of the cast, once a clause unless it is an owner; else another noun phrase."""
        is_owner = scope["RELATION"] == "nmod:poss"
        candidates = []
        for member in self._cast:
            if member["KIND"] == scope["KIND"] and (is_owner or member["PRP"] not in scope["SAID"]):
                candidates.append(member)
        if not candidates:
            return self._expand("OWNER" if is_owner else "NOUN", scope)
        member = self._pick(candidates)
        pronoun = member["PRP"]
        scope["SAID"].add(pronoun)
        mentioned_before = any(pronoun == other for other, _ in self._mentions)
        words = self._expand("AGAIN" if mentioned_before else "FIRST", {**scope, **member})
        self._mentions.append((pronoun, list(words)))
        return words

    def _fill(self, items: Sequence[Mapping[str, str]], scope: Scope) -> list[Word]:
        """Return the words of a template, attached by its items; a noun sets the number of words that agree with it."""
        # The subject first: words that agree with it may stand before it.
        subjects = [place for place, item in enumerate(items) if "nsubj" in item["relation"]]
        others = [place for place, item in enumerate(items) if "nsubj" not in item["relation"]]
        parts: list[list[Word]] = [[] for _ in items]
        for place in subjects + others:
            words = self._expand_item(items[place], scope)
            for top in _unattached(words):
                is_subject = not top.relation or "nsubj" in top.relation
                if is_subject and top.tag in ("NN", "NNS", "NNP", "PRP"):
                    is_joined = any(word.relation == "conj" and word.head is top for word in words)
                    scope["PLURAL"] = is_joined or top.tag == "NNS"
            parts[place] = words
        _attach(items, [_unattached(words) for words in parts])
        return list(chain.from_iterable(parts))

    def _expand_item(self, item: Mapping[str, str], scope: Scope) -> list[Word]:
        """Return the words of an item: a pronoun in its case, an owner with the possessive ending."""
        symbol = item["symbol"]
        relation = item["relation"]
        if len(symbol) > 1 and symbol.isupper():
            inner = scope
            if relation:
                inner = {**scope, "RELATION": relation}
            words = self._expand(symbol, inner)
        else:
            forms, tags = _list_forms(item)
            number = -1 if scope["PLURAL"] else 0
            words = [Word(forms[number], tags[number])]
        for top in _unattached(words):
            top.relation = top.relation or relation
            if top.tag == "PRP" and relation and "nsubj" not in relation:
                accusative, possessive = _GRAMMAR["pronouns"][top.form].split()
                if relation == "nmod:poss":
                    top.form = possessive
                    top.tag = "PRP$"
                else:
                    top.form = accusative
            elif relation == "nmod:poss":
                words.append(Word("'s", "POS", "case", top))
            if item["case"]:
                words.insert(0, Word(item["case"], "IN", "case", top))
        return words


def _list_forms(item: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the forms of a word that stands in a template itself, and their tags."""
    forms = item["symbol"].split("|")
    tag = item["tag"] or _TAGS.get(forms[0], "_")
    return forms, tag.split("|")


def _unattached(words: Sequence[Word]) -> list[Word]:
    return [word for word in words if word.head is None]


def _attach(items: Sequence[Mapping[str, str]], tops: Sequence[Sequence[Word]]) -> None:
    """Attach the words of a template: to the first word of the item that theirs names, else to the root, if it is one.

    Args:
        items: Items of the template.
        tops: Words of each item that have no head yet.
    """
    roots = []
    for item, tops_of_item in zip(items, tops, strict=True):
        if not item["target"]:
            roots += [top for top in tops_of_item if not top.relation]
    root = roots[0] if len(roots) == 1 else None
    for item, tops_of_item in zip(items, tops, strict=True):
        governor = root
        if item["target"]:
            governor = tops[int(item["target"]) - 1][0]
        for top in tops_of_item:
            top.head = governor if top is not governor else None


@cache
def sample_vocabulary() -> Mapping[str, frozenset[str]]:
    """Return every word that the grammar can generate, in lower case, in alphabetical order.

    Each word has its tags of the Penn Treebank (`_` for a word without one), and the symbols of the grammar that list
    it, for instance `NN` and `KIN` for a noun of compounds or `GOOD` for a word of praise.
    """
    tags: defaultdict[str, set[str]] = defaultdict(set)
    of_documents = [_RULES, *_KINDS.values(), *_VERBS, *chain(*_GRAMMAR["cast"])]
    of_reviews = [_GRAMMAR["reviews"], *_GRAMMAR["domains"]]
    for scope in of_documents + of_reviews:
        for symbol, definition in scope.items():
            if isinstance(definition, list):
                _add_literals(definition, tags)
            elif isinstance(definition, str) and symbol not in ("KIND", "OF", "RELATION"):
                _add_listed_words(symbol, definition, tags)
    for pronouns in _GRAMMAR["pronouns"].values():
        accusative, possessive = pronouns.split()
        tags[accusative].add("PRP")
        tags[possessive].add("PRP$")
    tags["'s"].add("POS")
    tags["an"] |= tags["a"]
    return {word: frozenset(tags[word]) for word in sorted(tags)}


def _add_listed_words(symbol: str, words: str, tags: defaultdict[str, set[str]]) -> None:
    """Add the words that a symbol lists, with its tag, and the plural of its nouns."""
    for word in words.split():
        tags[word.lower()] |= {symbol, _TAGS.get(symbol, symbol)}
        if symbol == "NN":
            tags[_add_s(word)].add("NNS")


def _add_literals(templates: Sequence[str], tags: defaultdict[str, set[str]]) -> None:
    """Add the words that stand in templates themselves, with their tags."""
    for item in chain.from_iterable(_parse_templates(*templates)):
        if item["case"]:
            tags[item["case"]].add("IN")
        symbol = item["symbol"]
        if len(symbol) == 1 or not symbol.isupper():
            forms, form_tags = _list_forms(item)
            for place, form in enumerate(forms):
                tags[form.lower()].add(form_tags[min(place, len(form_tags) - 1)])
