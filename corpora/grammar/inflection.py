"""Finite verbs of the sample treebank: agreement, and the chain of auxiliaries."""

from dataclasses import dataclass

from corpora.grammar.frames import Verb
from corpora.grammar.phrases import PRONOUNS, Node, Nominal, word

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
