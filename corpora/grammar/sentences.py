"""Clauses and whole sentences of the sample treebank, as dependency trees in the manner of Universal Dependencies.

Arguments, adjuncts, auxiliaries, copula and markers all depend on the lexical verb or on the nonverbal predicate.
"""

from dataclasses import replace

from corpora.grammar.lexicon import KINDS, PATTERNS, WORDS, Frame
from corpora.grammar.phrases import Node, Nominal, comma, word
from corpora.grammar.verbs import ACTS, BE, EVENTS, Mood, Verbs, verb_chain


class Clauses(Verbs):
    """Grammar of clauses: finite and not, and those that modify a noun."""

    def clause(self, time: str, depth: int, *, plain: bool = False) -> Node:
        """Return a finite declarative clause of any kind."""
        weights = {"verb": 68, "passive": 11, "adjective": 11}
        if depth > 0:
            weights |= {"place": 6, "role": 0 if time == "future" else 4}
        match self.dice.weigh(weights):
            case "verb":
                kind = self.dice.weigh(
                    {"person": 64, "animal": 12, "organization": 12, "event": 5, "thing": 3, "idea": 4}
                )
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
        """Return a clause with an active verb.

        Args:
            subject: Its node has the relation already.
            frame: The verb and what it takes.
            mood: Its inflection; a question inverts subject and auxiliary.
            depth: Levels of clauses allowed inside.
            front: What opens the clause: a question word, a relative pronoun.
            gap: The object is missing, because `front` or the noun that the clause modifies stands for it.
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
        shape = self.dice.weigh(
            {
                self.statement: 42,
                self.complex: 18,
                self.compound: 10,
                self.joined_verbs: 9,
                self.polar_question: 7,
                self.wh_question: 7,
                self.order: 4,
                self.existential: 4,
            }
        )
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
            frame = self.one_of(
                [frame for frame in self.frames(kind, deliberate=conjunction == "while") if not frame.stative]
            )
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
            opening = [word("which", "DET", "det")]
            noun = self.fresh(KINDS[kind].nouns)
            node = self.expanded(noun, kind, opening, 0, plural=self.dice.chance(0.2), bare=True).node
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
