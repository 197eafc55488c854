"""The verb of a clause: which one, how it is inflected, and what it may have beside its complements."""

from dataclasses import dataclass

from corpora.grammar.lexicon import FRAMES, KINDS, PATTERNS, PRONOUNS, WORDS, Frame, Verb
from corpora.grammar.phrases import Dice, Node, Nominal, Phrases, word

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
    parts = []
    if mood.perfect:
        parts.append((HAVE, "aux"))
    if mood.progressive:
        parts.append((BE, "aux"))
    if passive:
        parts.append((BE, "aux:pass"))
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
        contract = contract and first.form not in _NEVER_NT
        if contract:
            first.form = _BEFORE_NT.get(first.form, first.form)
        chain.insert(1, word("n't" if contract else "not", "PART", "advmod", "not"))
    return chain


def attach_to_pronoun(subject: Nominal, chain: list[Node]) -> None:
    """Shorten the first auxiliary after a personal pronoun ("she's", "they'll") where it can be."""
    plain = len(chain) < 2 or chain[1].form != "n't"
    if subject.node.upos == "PRON" and subject.node.lemma in PRONOUNS and plain and chain[0].upos == "AUX":
        chain[0].form = _AFTER_PRONOUN.get(chain[0].form, chain[0].form)


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
        weights = {
            "simple": 80 if past else 24,
            "perfect": 8 if past else 30,
            # What happens at once, or happens to one, is seldom under way.
            "progressive": (8 if past else 34) * frame.deliberate,
            "modal": 4 if past else 12,
        }
        match self.dice.weigh(weights):
            case "perfect":
                return Mood(time, perfect=True, negative=negative)
            case "progressive":
                return Mood(time, progressive=True, negative=negative)
            case "modal":
                return Mood(time, modal=self.dice.pick(PAST_MODALS if past else PRESENT_MODALS), negative=negative)
        return Mood(time, negative=negative, habitual=not past)

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
