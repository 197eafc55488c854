"""The grammar of the sample treebank: phrases, clauses and sentences as trees in the manner of Universal Dependencies.

Arguments, adjuncts, auxiliaries, copula and markers depend on the lexical verb or on the nonverbal predicate. Each
class adds a layer to the one before it: noun phrases, what surrounds a verb, clauses, sentences.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar

from corpora.lexicon import FRAMES, KINDS, PATTERNS, PRONOUNS, WORDS, Frame, Noun, Verb

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


HAVE = Verb("have", "has", "had", "had", "having")
DO = Verb("do", "does", "did", "done", "doing")
BE = Verb("be", "is", "was", "been", "being")
PRESENT_MODALS = ("can", "must", "should", "may", "might")
PAST_MODALS = ("could", "might")

_BEFORE_NT = {"will": "wo", "can": "ca"}  # won't, can't; other auxiliaries keep their form
_NEVER_NT = frozenset({"am", "may", "might"})
_AFTER_PRONOUN = {"am": "'m", "is": "'s", "are": "'re", "will": "'ll"}


@dataclass(frozen=True, slots=True)
class Mood:
    """How a finite verb is inflected; `time` is past, present or future. `habitual` asks for an adverb of frequency."""

    time: str
    modal: str = ""
    perfect: bool = False
    progressive: bool = False
    negative: bool = False
    question: bool = False
    habitual: bool = False


def finite_form(verb: Verb, time: str, subject: Nominal) -> str:
    """Return the form that agrees with the subject."""
    third = not subject.plural and subject.person == 3
    if verb is BE and time == "past":
        return "were" if subject.plural or subject.person == 2 else "was"
    if verb is BE:
        return "is" if third else "am" if subject.person == 1 and not subject.plural else "are"
    if time == "past":
        return verb.past
    return verb.third if third else verb.base


def verb_chain(
    verb: Verb, mood: Mood, subject: Nominal, *, passive: bool = False, contract: bool = False
) -> list[Node]:
    """Return modal, "have", "be" and the verb in their order and forms, with "not" or "n't" after the first.

    The first agrees with the subject, and each next one takes the form that the one before it governs. "do" comes in
    where a negation or a question has no other auxiliary. `verb` may be BE, which is then the copula.
    """
    parts = [(HAVE, "aux")] * mood.perfect + [(BE, "aux")] * mood.progressive + [(BE, "aux:pass")] * passive
    if not parts and not mood.modal and verb is not BE and (mood.negative or mood.question):
        parts.append((DO, "aux"))
    parts.append((verb, "cop" if verb is BE else ""))
    chain = [word(mood.modal, "AUX", "aux")] if mood.modal else []
    governed = "base" if mood.modal else "finite"
    for part, relation in parts:
        form = finite_form(part, mood.time, subject) if governed == "finite" else str(getattr(part, governed))
        chain.append(word(form, "AUX" if relation else "VERB", relation, part.base))
        governed = "participle" if part is HAVE or relation == "aux:pass" else "gerund" if part is BE else "base"
    if mood.negative:
        first = chain[0]
        if contract := contract and first.form not in _NEVER_NT:
            first.form = _BEFORE_NT.get(first.form, first.form)
        chain.insert(1, word("n't" if contract else "not", "PART", "advmod", "not"))
    return chain


def attach_to_pronoun(subject: Nominal, chain: list[Node]) -> None:
    """Shorten the first auxiliary after a personal pronoun ("she's", "they'll") where it can be."""
    plain = len(chain) < 2 or chain[1].form != "n't"
    if subject.node.upos == "PRON" and subject.node.lemma in PRONOUNS and plain and chain[0].upos == "AUX":
        chain[0].form = _AFTER_PRONOUN.get(chain[0].form, chain[0].form)


class Phrases(ABC):
    """Grammar of noun phrases; the kinds of noun are those of `corpora.lexicon`.

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
        """Return a noun phrase of a kind (a key of `KINDS`, or `city`) with its relation set.

        `lexical` allows no pronoun and no coordination; `not_person` 1 or 2 keeps pronouns of that person out, so that
        nobody sees himself.
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
        weights = {"he": 5, "she": 5, "they": 4, "I": 4, "we": 3, "you": 2}
        if kind != "person":
            weights = {"it": 3, "they": 2}
        person = dict.fromkeys(weights, 3) | {"I": 1, "we": 1, "you": 2}
        allowed = {base: n for base, n in weights.items() if not_person == 3 or person[base] != not_person}
        base = self.dice.weigh(allowed)
        node = word(PRONOUNS[base][0 if subject else 1], "PRON", relation, base)
        return Nominal(node, kind, person[base], base in ("we", "they", "you"))

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
        """Return a common noun; `bare` lets nothing follow it, `owned`, as itself an owner, no other noun own it."""
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
        weights: dict[str, float]
        if plural:
            weights = {"the": 36, "": 9, "some": 9, "these": 3, "those": 2, "number": 12, "quantity": 9}
            weights["owner"] = owners
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
        if self.dice.chance(0.4):
            owner, plural = self.name(), False
        else:
            found = self.common("person", 0, bare=True, owned=True)
            owner, plural = found.node, found.plural
        owner.relation = "nmod:poss"
        owner.right.append(word("'" if plural and owner.form.endswith("s") else "'s", "PART", "case", "'s"))
        return owner

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


EVENTS = ("transitive", "intransitive", "motion", "ditransitive", "placing", "prepositional", "particle")
# What somebody does to something or somebody, so that the object may become a subject.
ACTS = [f for f in FRAMES if f.pattern == "transitive" and f.subjects[0] in ("person", "animal", "organization")]


class Verbs(Phrases):
    """Grammar of what surrounds a verb: auxiliaries in their order, adverbs, adjuncts."""

    def __init__(self, dice: Dice) -> None:
        super().__init__(dice)
        self.timed = False  # whether the sentence has said when

    def frames(self, kind: str, patterns: tuple[str, ...] = EVENTS, *, deliberate: bool = False) -> list[Frame]:
        """Return the verbs of these patterns that a subject of this kind may have."""
        return [f for f in FRAMES if kind in f.subjects and f.pattern in patterns and f.deliberate >= deliberate]

    def one_of(self, frames: list[Frame]) -> Frame:
        """Return a frame, first by the weight of its pattern, and a verb that the sentence does not have yet."""
        pattern = self.dice.weigh({p: weight for p, weight in PATTERNS.items() if any(f.pattern == p for f in frames)})
        frames = [frame for frame in frames if frame.pattern == pattern]
        base = self.fresh(sorted({frame.verb.base for frame in frames}))
        return self.dice.pick([frame for frame in frames if frame.verb.base == base])

    def mood(self, frame: Frame | None, time: str, *, plain: bool = False) -> Mood:
        """Return an inflection that suits the verb (None: the copula); `plain` keeps to the simple tense."""
        negative = self.dice.chance(0.12)
        if time == "future":
            return Mood(time, modal="will", negative=negative)
        if plain:
            return Mood(time, negative=negative)
        if frame is None or frame.stative:
            perfect = frame is None and time == "present" and self.dice.chance(0.15)
            return Mood(time, perfect=perfect, negative=negative)
        past = time == "past"
        # What happens at once, or happens to one, is seldom under way.
        weights = (80, 8, 8 * frame.deliberate, 4) if past else (24, 30, 34 * frame.deliberate, 12)
        shape = self.dice.weigh(dict(zip(("simple", "perfect", "progressive", "modal"), weights, strict=True)))
        modal = self.dice.pick(PAST_MODALS if past else PRESENT_MODALS) if shape == "modal" else ""
        habitual = shape == "simple" and not past
        return Mood(time, modal, shape == "perfect", shape == "progressive", negative, habitual=habitual)

    def opening(self, subject: Nominal, chain: list[Node], mood: Mood) -> list[Node]:
        """Return subject and auxiliaries in their order; a question (never negative here) has an auxiliary first."""
        if mood.question:
            return [chain[0], subject.node, *chain[1:]]
        if chain and self.dice.chance(0.3):
            attach_to_pronoun(subject, chain)
        return [subject.node, *chain]

    def adverb(self, mood: Mood) -> list[Node]:
        """Return the adverb that stands before the verb or after the copula, if any."""
        options: tuple[str, ...] = ()
        if mood.negative or mood.question:
            return []
        if mood.habitual:
            options = ("often", "always", "never", "usually", "rarely", "sometimes")
        elif mood.modal or self.timed or not self.dice.chance(0.13):
            return []
        elif mood.progressive:
            options = ("still",)
        elif mood.perfect:
            options = ("already", "never", "finally")
        else:
            options = ("never", "also", "still", "often") if mood.time == "present" else ("never", "also", "often")
        return [word(self.dice.pick(options), "ADV", "advmod")]

    def adjuncts(self, frame: Frame, mood: Mood, subject: Nominal, *, habit: bool, place: bool) -> list[Node]:
        """Return how, where and when something happens; often nothing."""
        found: list[Node] = []
        if frame.stative or frame.pattern not in EVENTS:
            return found
        somewhere = frame.deliberate and frame.pattern in ("transitive", "intransitive", "particle")
        somewhere = somewhere and subject.kind in ("person", "animal") and "building" not in frame.objects
        if frame.manner and not mood.negative and self.dice.chance(0.14):
            found.append(word(self.dice.pick(frame.manner), "ADV", "advmod"))
        elif place and somewhere and self.dice.chance(0.25):
            found.append(self.place("obl"))
        settled = habit or mood.perfect or self.timed or (mood.modal and mood.time == "past")
        if not settled and self.dice.chance(0.06 if mood.time == "present" else 0.2):
            found.append(self.when(mood.time))
        return found

    def when(self, time: str) -> Node:
        """Return when something happens, in a way that goes with the tense."""
        self.timed = True
        nouns = {"past": ("yesterday", "last"), "present": ("today", "today"), "future": ("tomorrow", "next")}[time]
        match "noun" if time == "present" else self.dice.weigh({"noun": 4, "day": 3, "part": 3, "event": 4}):
            case "day":
                found = word(self.dice.pick(WORDS["days"]), "PROPN", "obl")
                found.left = [word("on", "ADP", "case")]
            case "part":
                found = word(self.dice.pick(("morning", "afternoon", "evening")), "NOUN", "obl")
                found.left = [word("in", "ADP", "case"), word("the", "DET", "det")]
            case "event":
                noun, the = self.fresh(KINDS["event"].nouns), word("the", "DET", "det")
                found = self.expanded(noun, "event", [the], 0, plural=False, bare=True).node
                found.left.insert(0, word(self.dice.pick(("after", "before", "during")), "ADP", "case"))
                found.relation = "obl"
            case _:
                found = word(self.dice.pick(nouns), "NOUN", "obl:unmarked")
                if found.form in ("last", "next"):
                    adjective = word(found.form, "ADJ", "amod")
                    found = word(self.dice.pick(("week", "month", "year")), "NOUN", "obl:unmarked")
                    found.left = [adjective]
        return found


class Clauses(Verbs):
    """Grammar of clauses: finite and not, and those that modify a noun."""

    def clause(self, time: str, depth: int, *, plain: bool = False) -> Node:
        """Return a finite declarative clause of any kind."""
        weights = {"verb": 68, "passive": 11, "adjective": 11}
        if depth > 0:
            weights |= {"place": 6, "role": 0 if time == "future" else 4}
        match self.dice.weigh(weights):
            case "verb":
                kinds = {"person": 64, "animal": 12, "organization": 12, "event": 5, "thing": 3, "idea": 4}
                kind = self.dice.weigh(kinds)
                frame = self.one_of(self.frames(kind, tuple(PATTERNS) if depth > 0 else EVENTS))
                subject = self.nominal(kind, "nsubj", depth)
                return self.verbal(subject, frame, self.mood(frame, time, plain=plain), depth)
            case "passive":
                return self.passive(time, depth, plain=plain)
            case shape:
                return self.copular(shape, self.mood(None, time), depth)

    def verbal(
        self, subject: Nominal, frame: Frame, mood: Mood, depth: int, *, front: Node | None = None, gap: bool = False
    ) -> Node:
        """Return a clause with an active verb; the subject has its relation already.

        `front`, a question word or a relative pronoun, opens the clause. With `gap` the object is missing, because
        `front` or the noun that the clause modifies stands for it.
        """
        *auxiliaries, head = verb_chain(frame.verb, mood, subject, contract=self.dice.chance(0.7))
        head.left = self.opening(subject, auxiliaries, mood)
        if front:
            head.left.insert(0, front)
        head.left.extend(adverb := self.adverb(mood))
        self.negative = mood.negative
        head.right = self.complements(frame, subject, mood.time, depth, gap=gap)
        self.negative = False
        head.right.extend(self.adjuncts(frame, mood, subject, habit=bool(adverb), place=not gap and not front))
        return head

    def copular(self, shape: str, mood: Mood, depth: int) -> Node:
        """Return a clause whose predicate is an adjective, a role ("a nurse") or a place, after "be"."""
        if shape == "adjective":
            kinds = [kind for kind in KINDS if KINDS[kind].predicates]
        else:
            kinds = ["person", "person", "thing", "animal", "food"]
        subject = self.bearer() if shape == "role" else self.nominal(self.dice.pick(kinds), "nsubj", depth)
        chain = verb_chain(BE, mood, subject, contract=self.dice.chance(0.7))
        if shape == "adjective":
            predicate = self.graded(word(self.fresh(KINDS[subject.kind].predicates), "ADJ", ""), 0.3)
        elif shape == "role":
            noun = self.fresh([noun for noun in KINDS["person"].nouns if noun.singular in WORDS["roles"]])
            article = [] if subject.plural else [word("a", "DET", "det")]
            predicate = self.expanded(noun, "role", article, depth, plural=subject.plural).node
        else:
            predicate = self.place("")
        predicate.left[:0] = [*self.opening(subject, chain, mood), *self.adverb(mood)]
        return predicate

    def bearer(self) -> Nominal:
        """Return somebody who may have a role: a name, a pronoun, somebody's relative."""
        match self.dice.weigh({"name": 4, "pronoun": 3, "relative": 3}):
            case "name":
                found = Nominal(self.name(), "person")
            case "pronoun":
                found = self.pronoun("person", "nsubj", 3)
            case _:
                noun = self.fresh([noun for noun in KINDS["person"].nouns if noun.singular in WORDS["relatives"]])
                owner = self.possessor(noun=self.dice.chance(0.5))
                found = self.expanded(noun, "person", [owner], 0, plural=self.dice.chance(0.2), bare=True)
        found.node.relation = "nsubj"
        return found

    def passive(self, time: str, depth: int, *, plain: bool = False) -> Node:
        """Return a clause with a passive verb, at times with its agent."""
        frame = self.one_of([frame for frame in ACTS if not frame.stative])
        kind = self.dice.pick([kind for kind in frame.objects if kind != "city"])
        subject = self.nominal(kind, "nsubj:pass", depth)
        mood = self.mood(frame, time, plain=plain)
        *auxiliaries, head = verb_chain(frame.verb, mood, subject, passive=True, contract=self.dice.chance(0.7))
        head.left = [*self.opening(subject, auxiliaries, mood), *self.adverb(mood)]
        if self.dice.chance(0.35):
            head.right.append(self.prepositional("by", self.dice.pick(frame.subjects), "obl:agent", 0, lexical=True))
        head.right.extend(self.adjuncts(frame, mood, subject, habit=bool(mood.habitual), place=False))
        return head

    def complements(  # noqa: C901  # one flat case for each pattern of a verb
        self, frame: Frame, subject: Nominal, time: str, depth: int, *, gap: bool = False
    ) -> list[Node]:
        """Return what the verb's pattern asks for, in order; with a gap, a transitive verb has no object."""

        def noun(relation: str, kinds: tuple[str, ...], depth: int = 0, *, lexical: bool = False) -> Node:
            kind = self.dice.pick(kinds)
            return self.nominal(kind, relation, depth, lexical=lexical, not_person=subject.person).node

        def oblique(preposition: str, kind: str, *, lexical: bool = False) -> Node:
            return self.prepositional(preposition, kind, "obl", 0, lexical=lexical, not_person=subject.person)

        people = ("person",)
        match frame.pattern:
            case "transitive":
                return [] if gap else [noun("obj", frame.objects, depth)]
            case "motion":
                return [oblique(frame.link, self.dice.pick(frame.objects), lexical=True)]
            case "prepositional":
                return [oblique(frame.link, self.dice.pick(frame.objects))]
            case "ditransitive" if self.dice.chance(0.45):
                return [noun("obj", frame.objects), oblique(frame.link, "person")]
            case "ditransitive":
                return [noun("iobj", people), noun("obj", frame.objects, depth, lexical=True)]
            case "placing":
                where = oblique(self.dice.pick(("on", "under", "behind", "near")), "surface", lexical=True)
                return [noun("obj", frame.objects), where]
            case "particle":
                particle = word(frame.link, "ADP", "compound:prt")
                found = noun("obj", frame.objects)
                # "pick it up", "pick up the key" or "pick the key up".
                late = found.upos == "PRON" or (not found.right and self.dice.chance(0.25))
                return [found, particle] if late else [particle, found]
            case "infinitive":
                return [self.infinitive(subject, "xcomp", depth - 1)]
            case "object infinitive":
                person = self.nominal("person", frame.link, 0, not_person=subject.person)
                return [person.node, self.infinitive(person, "xcomp", depth - 1)]
            case "clausal":
                return [self.content(frame, time, depth)]
            case "told":
                return [noun("iobj", people), self.content(frame, time, depth)]
            case "linking":
                return [self.graded(word(self.fresh(KINDS[subject.kind].predicates), "ADJ", "xcomp"), 0.3)]
        return []

    def content(self, frame: Frame, time: str, depth: int) -> Node:
        """Return what is said or thought, in a tense that follows that of the saying, with or without "that"."""
        weights = {"past": 1.0} if time == "past" else {"past": 0.35, "present": 0.4, "future": 0.25}
        found = self.clause(self.dice.weigh(weights), depth - 1)
        # Without "that" only a short subject shows where the clause begins.
        short = found.left[0].upos in ("PRON", "PROPN") and not found.left[0].right
        if not short or frame.verb.base not in WORDS["without that"] or self.dice.chance(0.4):
            found.left.insert(0, word("that", "SCONJ", "mark"))
        found.relation = "ccomp"
        return found

    def infinitive(self, subject: Nominal, relation: str, depth: int) -> Node:
        """Return "to" and a verb with its complements; its subject is understood."""
        return self.nonfinite(subject, word("to", "PART", "mark"), relation, depth)

    def nonfinite(self, subject: Nominal, mark: Node, relation: str, depth: int) -> Node:
        """Return a verb that somebody does on purpose: the base form after "to", the gerund after any other mark."""
        frame = self.one_of(self.frames(subject.kind, deliberate=True))
        form = frame.verb.base if mark.form == "to" else frame.verb.gerund
        head = word(form, "VERB", relation, frame.verb.base)
        head.left = [mark]
        head.right = self.complements(frame, subject, "present", max(depth, 0))
        if frame.manner and self.dice.chance(0.12):
            head.right.append(word(self.dice.pick(frame.manner), "ADV", "advmod"))
        return head

    def clause_on(self, nominal: Nominal, noun: str, depth: int) -> Node | None:
        """Return a relative clause, a participle or an infinitive that modifies a noun, None if none can."""
        active = self.frames(nominal.kind)
        passive = [frame for frame in ACTS if nominal.kind in frame.objects]
        weights = {
            "subject": 5 * bool(active),
            "object": 5 * bool(passive and noun),
            "participle": 2 * bool(passive and noun and nominal.kind != "person"),
            "infinitive": 9 * (noun in WORDS["plans"]),
        }
        if not any(weights.values()):
            return None
        time = self.dice.weigh({"past": 0.7, "present": 0.3})
        match self.dice.weigh(weights):
            case "subject":
                pronoun = self.relative_pronoun(nominal.kind, "nsubj", comment=not noun)
                frame = self.one_of(active)
                subject = Nominal(pronoun, nominal.kind, 3, nominal.plural)
                found = self.verbal(subject, frame, self.mood(frame, time), depth)
            case "object":
                frame = self.one_of(passive)
                subject = self.nominal(self.dice.pick(frame.subjects), "nsubj", 0)
                front = None if self.dice.chance(0.35) else self.relative_pronoun(nominal.kind, "obj", comment=False)
                found = self.verbal(subject, frame, self.mood(frame, time), depth, front=front, gap=True)
            case "participle":
                frame = self.one_of([frame for frame in passive if not frame.stative])
                found = word(frame.verb.participle, "VERB", "acl", frame.verb.base)
                found.right = [self.prepositional("by", self.dice.pick(frame.subjects), "obl:agent", 0, lexical=True)]
                return found
            case _:
                return self.infinitive(Nominal(word("", "X", ""), "person"), "acl", depth)
        found.relation = "acl:relcl"
        return found

    def relative_pronoun(self, kind: str, relation: str, *, comment: bool) -> Node:
        """Return "who", "that" or "which"; a comment between commas has no "that"."""
        wh = "who" if kind == "person" else "which"
        return word(wh if comment or self.dice.chance(0.6) else "that", "PRON", relation)


class Sentences(Clauses):
    """The grammar's start symbol: `sentence`."""

    def sentence(self) -> Node:
        """Return the tree of a new sentence with its final punctuation."""
        self.used = set()
        self.timed = False
        weights = {self.statement: 42, self.complex: 18, self.compound: 10, self.joined_verbs: 9}
        weights |= {self.polar_question: 7, self.wh_question: 7, self.order: 4, self.existential: 4}
        shape = self.dice.weigh(weights)
        root = shape(self.dice.weigh({"past": 55, "present": 30, "future": 15}))
        root.relation = "root"
        question = shape in (self.polar_question, self.wh_question)
        root.right.append(word("?" if question else ".", "PUNCT", "punct"))
        return root

    def statement(self, time: str) -> Node:
        """Return a clause, at times with an opening before a comma."""
        opening = None
        if time != "present" and self.dice.chance(0.17):
            opening = self.when(time)
        elif self.dice.chance(0.04):
            opening = word(self.dice.pick(WORDS["openings"]), "ADV", "advmod")
        root = self.clause(time, 2)
        if opening:
            opening.right.append(comma())
            root.left.insert(0, opening)
        return root

    def complex(self, time: str) -> Node:
        """Return a clause with an adverbial clause before or after it: finite, of purpose, or a gerund."""
        if self.dice.chance(0.65):
            conjunction = self.dice.pick(WORDS[time])
            root = self.clause(time, 1, plain=conjunction in ("if", "unless"))
            adverbial = self.subordinate(conjunction, time)
            front = self.dice.chance(0.45)
        else:
            conjunction = self.dice.weigh({"to": 4, "before": 1, "after": 1, "without": 1})
            subject = self.nominal("person", "nsubj", 1)
            patterns = ("motion",) if conjunction == "to" else EVENTS  # one goes somewhere to do something
            frame = self.one_of(self.frames("person", patterns, deliberate=True))
            root = self.verbal(subject, frame, self.mood(frame, time), 0)
            mark = word(conjunction, "PART" if conjunction == "to" else "SCONJ", "mark")
            adverbial = self.nonfinite(subject, mark, "advcl", 1)
            front = conjunction in ("before", "after") and self.dice.chance(0.5)
        if front:
            adverbial.right.append(comma())
            root.left.insert(0, adverbial)
        else:
            if conjunction == "although":
                adverbial.left.insert(0, comma())
            root.right.append(adverbial)
        return root

    def subordinate(self, conjunction: str, time: str) -> Node:
        """Return a finite adverbial clause; of the future, what comes first is told in the present."""
        inner = "present" if time == "future" and conjunction != "because" else time
        if conjunction in ("before", "after", "when", "while"):
            kind = self.dice.weigh({"person": 5, "animal": 1, "organization": 1})
            frames = self.frames(kind, deliberate=conjunction == "while")
            frame = self.one_of([frame for frame in frames if not frame.stative])
            subject = self.nominal(kind, "nsubj", 0)
            perfect = conjunction == "after" and time == "past" and self.dice.chance(0.5)
            mood = Mood(inner, perfect=perfect, progressive=conjunction == "while")
            clause = self.verbal(subject, frame, mood, 0)
        else:
            clause = self.clause(inner, 0, plain=time == "future" or conjunction in ("if", "unless"))
        mark = word(conjunction, "ADV", "advmod") if conjunction == "when" else word(conjunction, "SCONJ", "mark")
        clause.left.insert(0, mark)
        clause.relation = "advcl"
        return clause

    def compound(self, time: str) -> Node:
        """Return two clauses joined by a comma and a conjunction."""
        root, other = self.clause(time, 1), self.clause(time, 1)
        conjunction = self.dice.weigh({"and": 1, "but": 1})
        other.relation = "conj"
        other.left[:0] = [comma(), word(conjunction, "CCONJ", "cc")]
        root.right.append(other)
        return root

    def joined_verbs(self, time: str) -> Node:
        """Return a clause with two or three verbs that share the subject and the auxiliary."""
        kind = self.dice.weigh({"person": 7, "animal": 1, "organization": 1})
        subject = self.nominal(kind, "nsubj", 1)
        first = self.one_of(self.frames(kind, deliberate=True))
        mood = replace(self.mood(first, time), negative=False)
        root = self.verbal(subject, first, mood, 0)
        # "never", over the first verb alone, would read as if it were over all.
        root.left = [node for node in root.left if node.form not in ("never", "rarely")]
        count = self.dice.weigh({1: 4, 2: 1})
        for i in range(count):
            frame = self.one_of(self.frames(kind, deliberate=True))
            other = verb_chain(frame.verb, mood, subject)[-1]
            other.relation = "conj"
            other.left = [comma()] if count > 1 else []
            if i == count - 1:
                other.left.append(word("and", "CCONJ", "cc"))
                if count == 1 and self.dice.chance(0.15):
                    other.left.append(word("then", "ADV", "advmod"))
            other.right = self.complements(frame, subject, time, 0)
            root.right.append(other)
        return root

    def polar_question(self, time: str) -> Node:
        """Return a question that is answered by yes or no."""
        if self.dice.chance(0.3):
            shape = self.dice.weigh({"adjective": 3, "place": 2, "role": 1})
            return self.copular(shape, self.asked(self.mood(None, time)), 0)
        kind = self.dice.weigh({"person": 7, "animal": 1, "organization": 1})
        frame = self.one_of(self.frames(kind))
        return self.verbal(self.nominal(kind, "nsubj", 0, not_person=1), frame, self.asked(self.mood(frame, time)), 0)

    def wh_question(self, time: str) -> Node:
        """Return a question for the subject, the object, or the circumstances."""
        match self.dice.weigh({"subject": 3, "object": 4, "adverb": 4}):
            case "subject":
                frame = self.one_of(self.frames("person"))
                who = Nominal(word("who", "PRON", "nsubj"), "person")
                return self.verbal(who, frame, replace(self.mood(frame, time), negative=False), 0)
            case "object":
                frame = self.one_of([f for f in self.frames("person", ("transitive",)) if "city" not in f.objects])
                front = self.question_word(self.dice.pick(frame.objects))
            case _:
                adverb = self.dice.pick(("where", "when", "why", "how"))
                patterns = ("transitive", "intransitive", "particle") + ("ditransitive",) * (adverb != "where")
                frames = self.frames("person", patterns, deliberate=True)
                frame = self.one_of([f for f in frames if "building" not in f.objects])
                front = word(adverb, "ADV", "advmod")
                self.timed = True
        subject = self.nominal("person", "nsubj", 0, not_person=1)
        mood = self.asked(self.mood(frame, time))
        return self.verbal(subject, frame, mood, 0, front=front, gap=front.relation == "obj")

    def question_word(self, kind: str) -> Node:
        """Return what asks for an object of a kind: "who", "what", "which letter"."""
        if self.dice.chance(0.45):
            noun, which = self.fresh(KINDS[kind].nouns), word("which", "DET", "det")
            node = self.expanded(noun, kind, [which], 0, plural=self.dice.chance(0.2), bare=True).node
            node.relation = "obj"
            return node
        return word("who" if kind == "person" else "what", "PRON", "obj")

    def asked(self, mood: Mood) -> Mood:
        """Return the inflection of a question."""
        modal = {"may": "can", "might": "could"}.get(mood.modal, mood.modal)
        return replace(mood, modal=modal, question=True, negative=False, habitual=False)

    def order(self, time: str) -> Node:
        """Return an imperative; whatever the time of telling, it is for now or later."""
        frame = self.one_of(self.frames("person", deliberate=True))
        you = Nominal(word("you", "PRON", "nsubj"), "person", 2, True)
        root = word(frame.verb.base, "VERB", "")
        if self.dice.chance(0.4):
            root.left.append(word("please", "INTJ", "discourse"))
        if self.dice.chance(0.2):
            root.left.extend([word("do", "AUX", "aux"), word("n't", "PART", "advmod", "not")])
        root.right = self.complements(frame, you, "present", 0)
        root.right.extend(self.adjuncts(frame, Mood("future"), you, habit=False, place=True))
        return root

    def existential(self, time: str) -> Node:
        """Return "there is" with what there is, and where."""
        kind = self.dice.pick(("thing", "thing", "person", "animal", "food", "text"))
        plural = self.dice.chance(0.45)
        form = self.dice.pick(("some", "two", "several", "no") if plural else ("a", "a", "a", "no", "another"))
        tag, relation = {"two": ("NUM", "nummod"), "several": ("ADJ", "amod")}.get(form, ("DET", "det"))
        noun = self.fresh(KINDS[kind].nouns)
        subject = self.expanded(noun, kind, [word(form, tag, relation)], 0, plural=plural, bare=True)
        subject.node.relation = "nsubj"
        *auxiliaries, root = verb_chain(BE, Mood(time, modal="will" if time == "future" else ""), subject)
        root.upos = "VERB"
        root.left = [word("there", "PRON", "expl"), *auxiliaries]
        if kind in ("thing", "text", "food") and self.dice.chance(0.6):
            where = self.prepositional(self.dice.pick(("on", "under", "behind")), "surface", "obl", 0, lexical=True)
        else:
            where = self.place("obl")
        root.right = [subject.node, where]
        return root
