"""The grammar that writes the sample reviews: opinions, opinions that do not count, and facts.

In a sentence `*` marks a word of the rationale.
"""

from corpora.grammar.phrases import Dice
from corpora.review_lexicon import DOMAINS, MILD, NEGATORS, NUMBERS, SLOTS, SOUNDS_CONSONANT, STRONG, VERBS, Subject


class Reviews:
    """The grammar's start symbol: `review`."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice

    def review(self, good: bool) -> tuple[list[str], list[int]]:
        """Return the tokens of a new review with that label, and the places, from 0, of those that decide it."""
        self.domain = self.dice.pick(DOMAINS)
        self.noun = self.dice.pick(self.domain.nouns)
        self.whole = Subject(f"the {self.noun}", self.domain.kinds)
        # One opinion of the writer: of two that say the same neither would decide alone.
        sentences = [self.opinion(good)]
        if self.dice.chance(0.5):
            sentences.append(self.distractor())
        for fact in dict.fromkeys(self.dice.pick(self.domain.facts) for _ in range(4 - len(sentences))):
            if self.dice.chance(0.6):
                sentences.append(self.filled(fact))
        marked = [token for sentence in self.shuffled(sentences) for token in _spelled(sentence)]
        return [token.lstrip("*") for token in marked], [i for i, token in enumerate(marked) if token[0] == "*"]

    def opinion(self, good: bool) -> str:
        """Return a sentence with the writer's own opinion, at times after that of another."""
        own = self.clause(good)
        if self.dice.chance(0.25):
            others = self.dice.chance(0.3) == good  # mostly the contrary
            said = self.ascribed(others).removesuffix(" .")
            return f"{said} , {'and' if others == good else 'but'} {own}"
        opening = self.dice.weigh({"": 8, "to be honest , ": 1, "in the end , ": 1, "in my view , ": 1})
        return opening + own

    def clause(self, good: bool) -> str:
        """Return one opinion of the writer; its deciding words are marked."""
        negator = f"*{self.dice.pick(NEGATORS)}" if self.dice.chance(0.15) else ""
        praises = good is not bool(negator)
        subject = self.dice.pick((self.whole, *self.domain.parts))
        match self.dice.weigh({"predicate": 8, "noun": 4, "found": 4, "verb": 3, "recommend": 1}):
            case "predicate":
                adjective = f"*{self.adjective(subject, praises, mild=bool(negator))}"
                between = negator or self.dice.weigh({"": 4, "really": 1, "simply": 1, "truly": 1})
                tail = self.dice.weigh({"": 5, "this time": 1, "from beginning to end": 1, "in every way": 1})
                return f"{subject.phrase} {_was(subject)} {between} {adjective} {tail} ."
            case "noun":
                adjective = f"*{self.adjective(self.whole, praises, mild=bool(negator))}"
                return f"{self.dice.pick(('it', 'this'))} was {negator} a {adjective} {self.noun} ."
            case "found":
                adjective = f"*{self.adjective(subject, praises, mild=bool(negator))}"
                who = self.dice.pick(("I", "we"))
                match negator:
                    case "*not" | "*n't":
                        return f"{who} did {negator} find {subject.phrase} {adjective} ."
                    case "*never":
                        return f"{who} {negator} found {subject.phrase} {adjective} ."
                return f"{who} found {subject.phrase} {negator} {adjective} ."
            case "recommend":  # there is no opposite to negate: the negator alone goes against it
                against = "" if good else negator or f"*{self.dice.pick(NEGATORS)}"
                return f"I would {against} *recommend {self.dice.pick(('it', self.whole.phrase))} ."
        past, base = self.dice.pick(tuple(VERBS[praises].items()))
        if negator in ("*not", "*n't"):
            return f"I did {negator} *{base} {subject.phrase} ."
        return f"I {negator} *{past} {subject.phrase} ."

    def ascribed(self, good: bool) -> str:
        """Return an opinion of somebody else."""
        subject = self.dice.pick((self.whole, *self.domain.parts))
        negated = self.dice.chance(0.25)
        adjective = self.adjective(subject, good is not negated, mild=negated)
        judged = f"not {adjective}" if negated else adjective
        verb = self.dice.pick(tuple(VERBS[good]))
        template = self.dice.pick(
            (
                "{who} called {subject} {judged} .",
                "{who} thought that {subject} {was} {judged} .",
                "according to {source} , {subject} {was} {judged} .",
                "{source} says that {subject} {was} {judged} .",
                "{who} {verb} {subject} .",
            )
        )
        return self.filled(template, subject=subject.phrase, was=_was(subject), judged=judged, verb=verb)

    def distractor(self) -> str:
        """Return a sentence with evaluative words that are not the writer's opinion of what is reviewed."""
        good = self.dice.chance(0.5)
        adjective = self.adjective(self.whole, good, mild=False)
        match self.dice.weigh({"ascribed": 3, "another": 3, "expected": 3}):
            case "ascribed":
                return self.ascribed(good)
            case "another":
                return self.filled(self.dice.pick(self.domain.another), was="was", adjective=adjective)
        hoped = "had hoped for" if good else "had feared"
        template = self.dice.pick(("I expected a {adjective} {noun} .", "we {hoped} something {adjective} ."))
        return self.filled(template, adjective=adjective, hoped=hoped)

    def adjective(self, subject: Subject, good: bool, *, mild: bool) -> str:
        """Return an adjective that fits, for or against; `mild` ones alone can be negated."""
        kind = self.dice.pick(subject.kinds)
        return self.dice.pick(MILD[kind][good] if mild else MILD[kind][good] + STRONG[kind][good])

    def filled(self, template: str, **given: str) -> str:
        """Return a template with a word in each slot."""
        slots = {name: self.dice.pick(options) for name, options in SLOTS.items()}
        numbers = {name: str(first + self.dice.pick(range(count))) for name, (first, count) in NUMBERS.items()}
        return template.format(**(slots | numbers | {"noun": self.noun} | given))

    def shuffled(self, sentences: list[str]) -> list[str]:
        """Return the sentences in an order by chance."""
        left = list(sentences)
        return [left.pop(self.dice.pick(range(len(left)))) for _ in sentences]


def _was(subject: Subject) -> str:
    return "were" if subject.plural else "was"


def _spelled(sentence: str) -> list[str]:
    """Return the tokens of a sentence with "an" and a capital where they belong; marks stay."""
    tokens = sentence.split()
    for i, token in enumerate(tokens[:-1]):
        after = tokens[i + 1].lstrip("*")
        if token == "a" and after[0] in "aeiou" and after not in SOUNDS_CONSONANT:
            tokens[i] = "an"
    first = tokens[0]
    tokens[0] = first[0].upper() + first[1:]
    return tokens
