"""Noun phrases of the sample treebank, as dependency trees in the manner of Universal Dependencies.

A `Node` is a word with the words that depend on it before and after; reading a tree in order gives the sentence.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from corpora.grammar.lexicon import KINDS, PRONOUNS, WORDS, Noun

T = TypeVar("T")


class Dice:
    """Seeded choices, the same on every machine: they use `Random.random` alone, whose sequence is guaranteed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed).random

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self._random() < probability

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options, each equally likely."""
        return options[int(self._random() * len(options))]

    def weigh(self, weights: Mapping[T, float]) -> T:
        """Return one of the keys, in proportion to its weight."""
        point = self._random() * sum(weights.values())
        for option, weight in weights.items():
            point -= weight
            if point < 0:
                return option
        return option


@dataclass(slots=True)
class Node:
    """A word, its relation to the word it depends on, and its dependents before and after it, in order."""

    form: str
    upos: str
    relation: str
    lemma: str
    left: list["Node"] = field(default_factory=list)
    right: list["Node"] = field(default_factory=list)

    def flatten(self, head: "Node | None" = None) -> Iterator[tuple["Node", "Node | None"]]:
        """Yield every word of the tree with its head, in the order of the sentence."""
        for child in self.left:
            yield from child.flatten(self)
        yield self, head
        for child in self.right:
            yield from child.flatten(self)


def word(form: str, upos: str, relation: str, lemma: str | None = None) -> Node:
    """Return a word without dependents; its lemma is its form unless given."""
    return Node(form, upos, relation, lemma or form)


def comma() -> Node:
    """Return a comma, which depends on the unit that it sets off."""
    return word(",", "PUNCT", "punct")


@dataclass(frozen=True, slots=True)
class Nominal:
    """A noun phrase and what a verb or a pronoun must agree with."""

    node: Node
    kind: str
    person: int = 3
    plural: bool = False


class Phrases(ABC):
    """Grammar of noun phrases; the kinds of noun are those of `corpora.grammar.lexicon`.

    `depth` bounds recursion: a phrase at depth 0 has no clause inside. `used` holds the nouns and verbs of the sentence
    so far, so that none is repeated; `negative` is set while a negated clause is built.
    """

    def __init__(self, dice: Dice) -> None:
        self.dice = dice
        self.used: set[str] = set()
        self.negative = False

    @abstractmethod
    def clause_on(self, nominal: Nominal, noun: str, depth: int) -> Node | None:
        """Return a clause that modifies a noun (relative, participle, infinitive), None if none fits its kind."""

    def nominal(self, kind: str, relation: str, depth: int, *, lexical: bool = False, not_person: int = 3) -> Nominal:
        """Return a noun phrase of a kind, with its relation set.

        Args:
            kind: A key of `KINDS`, or `city`.
            relation: To its head; subjects take the subject form of a pronoun.
            depth: Levels of clauses allowed inside.
            lexical: No pronoun and no coordination.
            not_person: 1 or 2 keeps pronouns of that person out, so that nobody sees himself.
        """
        if kind == "city":
            found = Nominal(word(self.fresh(WORDS["cities"]), "PROPN", relation), kind)
        elif not lexical and self.dice.chance(0.3 if kind == "person" else 0.07):
            found = self.pronoun(kind, relation, not_person)
        elif kind == "person" and self.dice.chance(0.22):
            found = Nominal(self.name(), kind)
            if depth > 0 and self.dice.chance(0.12) and (clause := self.clause_on(found, "", depth - 1)):
                # About a name a relative clause only comments: it stands between commas.
                clause.left.insert(0, comma())
                clause.right.append(comma())
                found.node.right.append(clause)
        elif not lexical and depth > 0 and self.dice.chance(0.1):
            found = self.coordination(kind)
        else:
            found = self.common(kind, depth)
        found.node.relation = relation
        return found

    def pronoun(self, kind: str, relation: str, not_person: int) -> Nominal:
        """Return a personal pronoun in the case that the relation asks for; for people, at times an indefinite one."""
        subject = relation.startswith("nsubj")
        if kind == "person" and subject and self.dice.chance(0.08):
            return Nominal(word(self.dice.pick(("someone", "everyone", "nobody")), "PRON", relation), kind)
        weights = (
            {"he": 5, "she": 5, "they": 4, "I": 4, "we": 3, "you": 2} if kind == "person" else {"it": 3, "they": 2}
        )
        person = {"I": 1, "we": 1, "you": 2}
        if not_person != 3:
            weights = {base: weight for base, weight in weights.items() if person.get(base, 3) != not_person}
        base = self.dice.weigh(weights)
        node = word(PRONOUNS[base][0 if subject else 1], "PRON", relation, base)
        return Nominal(node, kind, person.get(base, 3), base in ("we", "they", "you"))

    def name(self) -> Node:
        """Return a first name, at times with a surname, which is flat on it."""
        node = word(self.fresh(WORDS["first names"]), "PROPN", "")
        if self.dice.chance(0.35):
            node.right.append(word(self.dice.pick(WORDS["last names"]), "PROPN", "flat"))
        return node

    def coordination(self, kind: str) -> Nominal:
        """Return two or three noun phrases joined by "and": later ones depend on the first, "and" on its successor."""
        first, *rest = (self.nominal(kind, "conj", 0, lexical=True) for _ in range(self.dice.weigh({2: 4, 3: 1})))
        for i, conjunct in enumerate(rest, start=1):
            conjunction = [word("and", "CCONJ", "cc")] if i == len(rest) else []
            conjunct.node.left[:0] = [comma(), *conjunction] if len(rest) > 1 else conjunction
        first.node.right.extend(conjunct.node for conjunct in rest)
        return Nominal(first.node, kind, 3, True)

    def common(self, kind: str, depth: int, *, bare: bool = False, owned: bool = False) -> Nominal:
        """Return a common noun with all that may stand around it.

        `bare` lets nothing follow it; `owned` lets no other noun own it, because it is an owner itself.
        """
        noun = self.fresh(KINDS[kind].nouns)
        plural = self.dice.chance(KINDS[kind].plural)
        seldom = KINDS[kind].public or noun.singular in WORDS["free"]
        opening = self.determiner(plural=plural, owners=4 if seldom else 16, owner_noun=not owned)
        return self.expanded(noun, kind, opening, depth, plural=plural, bare=bare)

    def expanded(
        self, noun: Noun, kind: str, opening: list[Node], depth: int, *, plural: bool, bare: bool = False
    ) -> Nominal:
        """Return a noun after its determiner, with adjectives and a compound, and a phrase or a clause behind it."""
        node = word(noun.plural if plural else noun.singular, "NOUN", "", noun.singular)
        node.left = [*opening, *self.adjectives(kind)]
        if noun.modifiers and self.dice.chance(0.22):
            node.left.append(word(self.dice.pick(noun.modifiers), "NOUN", "compound"))
        found = Nominal(node, kind, 3, plural)
        if bare:
            return found
        if self.dice.chance(0.16 if depth > 0 else 0.06):
            owned = bool(opening) and opening[0].relation == "nmod:poss"
            links = [link for link in KINDS[kind].links if not (owned and link[1] in ("person", "organization"))]
            preposition, other = self.dice.pick(links or KINDS["building"].links)
            node.right.append(self.prepositional(preposition, other, "nmod", 0, lexical=True))
        elif depth > 0 and self.dice.chance(0.22) and (clause := self.clause_on(found, noun.singular, depth - 1)):
            node.right.append(clause)
        return found

    def determiner(self, *, plural: bool, owners: float, owner_noun: bool) -> list[Node]:
        """Return what opens a noun phrase: article, demonstrative, quantifier, number or possessor; maybe nothing."""
        if plural:
            weights = {
                "the": 36,
                "": 9,
                "some": 9,
                "these": 3,
                "those": 2,
                "number": 12,
                "quantity": 9,
                "owner": owners,
            }
        else:
            weights = {"the": 42, "a": 28, "owner": owners, "this": 3, "that": 2, "every": 2, "another": 2}
        match self.dice.weigh(weights):
            case "":
                return []
            case "number":
                return [word(self.dice.pick(WORDS["numerals"]), "NUM", "nummod")]
            case "quantity":
                return [word(self.dice.pick(("many", "several")), "ADJ", "amod")]
            case "owner":
                return [self.possessor(noun=owner_noun and self.dice.chance(0.4))]
            case "some" if self.negative:
                return [word("any", "DET", "det")]
            case form:
                lemma = {"these": "this", "those": "that"}.get(form, form)
                return [word(form, "DET", "det", lemma)]

    def possessor(self, *, noun: bool) -> Node:
        """Return a possessive pronoun, or a person with the possessive ending, which is its case."""
        if not noun:
            base = self.dice.weigh({"I": 3, "you": 2, "he": 4, "she": 4, "we": 2, "they": 3})
            return word(PRONOUNS[base][2], "PRON", "nmod:poss")
        found = (
            Nominal(self.name(), "person") if self.dice.chance(0.4) else self.common("person", 0, bare=True, owned=True)
        )
        found.node.relation = "nmod:poss"
        ending = "'" if found.plural and found.node.form.endswith("s") else "'s"
        found.node.right.append(word(ending, "PART", "case", "'s"))
        return found.node

    def adjectives(self, kind: str) -> list[Node]:
        """Return up to two adjectives before a noun, in their usual order, at times with an adverb of degree."""
        slots = KINDS[kind].adjectives
        count = self.dice.weigh({0: 66, 1: 29, 2: 5})
        chosen = sorted({self.dice.pick(range(len(slots))) for _ in range(count)})
        degree = 0.1 if len(chosen) == 1 else 0.0
        return [self.graded(word(self.fresh(slots[slot]), "ADJ", "amod"), degree) for slot in chosen]

    def graded(self, adjective: Node, probability: float) -> Node:
        """Add an adverb of degree to an adjective that can have one."""
        if adjective.form not in WORDS["ungradable"] and self.dice.chance(probability):
            adjective.left.append(word(self.dice.pick(WORDS["degrees"]), "ADV", "advmod"))
        return adjective

    def prepositional(
        self, preposition: str, kind: str, relation: str, depth: int, *, lexical: bool = False, not_person: int = 3
    ) -> Node:
        """Return a noun phrase after a preposition, which is its case; for the options see `nominal`."""
        node = self.nominal(kind, relation, depth, lexical=lexical, not_person=not_person).node
        node.left.insert(0, word(preposition, "ADP", "case"))
        return node

    def place(self, relation: str) -> Node:
        """Return where something is: a place or a city with the preposition it takes."""
        if self.dice.chance(0.2):
            return self.prepositional("in", "city", relation, 0)
        found = self.common(self.dice.weigh({"building": 3, "area": 1}), 0, bare=True)
        lemma = found.node.lemma
        usual = "at" if lemma in WORDS["at"] else "on" if lemma in WORDS["on"] else "in"
        preposition = self.dice.weigh({usual: 9, "near": 1})
        found.node.left.insert(0, word(preposition, "ADP", "case"))
        found.node.relation = relation
        return found.node

    def fresh(self, options: Sequence[T]) -> T:
        """Return an option that the sentence has not used, unless twenty picks find none."""
        for _ in range(20):
            option = self.dice.pick(options)
            key = option.singular if isinstance(option, Noun) else str(option)
            if key not in self.used:
                break
        self.used.add(key)
        return option
