"""Whole sentences of the sample treebank: statements, joined and subordinate clauses, questions, orders."""

from dataclasses import replace

from corpora.grammar import lexicon
from corpora.grammar.clauses import Clauses
from corpora.grammar.inflection import BE, Mood, verb_chain
from corpora.grammar.phrases import Node, Nominal, comma, word
from corpora.grammar.verbs import EVENTS

CONJUNCTIONS = {
    "past": ("because", "although", "since", "before", "after", "when", "while"),
    "present": ("because", "although", "if", "unless", "since"),
    "future": ("because", "if", "unless", "when", "before", "after"),
}
OPENINGS = ("unfortunately", "fortunately", "surprisingly", "perhaps")


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
            opening = word(self.dice.pick(OPENINGS), "ADV", "advmod")
        root = self.clause(time, 2)
        if opening:
            opening.right.append(comma())
            root.left.insert(0, opening)
        return root

    def complex(self, time: str) -> Node:
        """Return a clause with an adverbial clause before or after it: finite, of purpose, or a gerund."""
        if self.dice.chance(0.65):
            conjunction = self.dice.pick(CONJUNCTIONS[time])
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
            noun = self.fresh(lexicon.NOUNS[kind])
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
        noun = self.fresh(lexicon.NOUNS[kind])
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
