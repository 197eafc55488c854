import pytest

from corpora.grammar.frames import verb_of
from corpora.grammar.inflection import BE, Mood, attach_to_pronoun, finite_form, verb_chain
from corpora.grammar.phrases import PRONOUNS, Nominal, word

PERSON = {"I": (1, False), "you": (2, True), "she": (3, False), "we": (1, True), "they": (3, True)}


def subject(pronoun: str) -> Nominal:
    person, plural = PERSON[pronoun]
    return Nominal(word(PRONOUNS[pronoun][0], "PRON", "nsubj", pronoun), "person", person, plural)


@pytest.mark.parametrize(
    ("pronoun", "present", "past", "writes"),
    [
        ("I", "am", "was", "write"),
        ("you", "are", "were", "write"),
        ("she", "is", "was", "writes"),
        ("we", "are", "were", "write"),
        ("they", "are", "were", "write"),
    ],
)
def test_finite_verbs_agree(pronoun: str, present: str, past: str, writes: str) -> None:
    write = verb_of("write/wrote/written")
    assert finite_form(BE, "present", subject(pronoun)) == present
    assert finite_form(BE, "past", subject(pronoun)) == past
    assert finite_form(write, "present", subject(pronoun)) == writes
    assert finite_form(write, "past", subject(pronoun)) == "wrote"


@pytest.mark.parametrize(
    ("mood", "passive", "expected"),
    [
        (Mood("present"), False, "writes"),
        (Mood("past"), False, "wrote"),
        (Mood("past", negative=True), False, "did not write"),
        (Mood("present", question=True), False, "does write"),
        (Mood("future", modal="will"), False, "will write"),
        (Mood("future", modal="will", negative=True), False, "will not write"),
        (Mood("present", perfect=True), False, "has written"),
        (Mood("past", progressive=True, negative=True), False, "was not writing"),
        (Mood("present", modal="must", perfect=True, progressive=True), False, "must have been writing"),
        (Mood("past"), True, "was written"),
        (Mood("present", progressive=True), True, "is being written"),
        (Mood("past", perfect=True, negative=True), True, "had not been written"),
        (Mood("past", question=True), True, "was written"),
    ],
)
def test_auxiliaries_stand_in_order_and_govern_forms(mood: Mood, passive: bool, expected: str) -> None:
    chain = verb_chain(verb_of("write/wrote/written"), mood, subject("she"), passive=passive)
    assert " ".join(node.form for node in chain) == expected
    assert (chain[-1].upos, chain[-1].lemma) == ("VERB", "write")
    *auxiliaries, _ = (node for node in chain if node.upos != "PART")
    assert [node.relation for node in auxiliaries] == ["aux"] * (len(auxiliaries) - passive) + ["aux:pass"] * passive


def test_the_copula_needs_no_do() -> None:
    chain = verb_chain(BE, Mood("present", negative=True), subject("they"))
    assert [(node.form, node.relation) for node in chain] == [("are", "cop"), ("not", "advmod")]
    perfect = verb_chain(BE, Mood("present", perfect=True), subject("she"))
    assert [(node.form, node.relation) for node in perfect] == [("has", "aux"), ("been", "cop")]


@pytest.mark.parametrize(
    ("pronoun", "mood", "expected"),
    [
        ("she", Mood("future", modal="will", negative=True), "wo n't write"),
        ("she", Mood("present", modal="can", negative=True), "ca n't write"),
        ("she", Mood("present", modal="may", negative=True), "may not write"),
        ("I", Mood("present", progressive=True, negative=True), "am not writing"),
        ("they", Mood("present", negative=True), "do n't write"),
    ],
)
def test_not_contracts_where_english_lets_it(pronoun: str, mood: Mood, expected: str) -> None:
    chain = verb_chain(verb_of("write/wrote/written"), mood, subject(pronoun), contract=True)
    assert " ".join(node.form for node in chain) == expected
    assert [node.lemma for node in chain if node.upos == "PART"] == ["not"]


@pytest.mark.parametrize(
    ("pronoun", "mood", "contract", "expected"),
    [
        ("she", Mood("present", progressive=True), False, "'s writing"),
        ("they", Mood("future", modal="will"), False, "'ll write"),
        ("I", Mood("present", progressive=True, negative=True), False, "'m not writing"),
        ("she", Mood("present", progressive=True, negative=True), True, "is n't writing"),
        ("she", Mood("present", perfect=True), False, "has written"),
        ("she", Mood("present"), False, "writes"),
    ],
)
def test_auxiliaries_attach_to_pronouns(pronoun: str, mood: Mood, contract: bool, expected: str) -> None:
    chain = verb_chain(verb_of("write/wrote/written"), mood, subject(pronoun), contract=contract)
    attach_to_pronoun(subject(pronoun), chain)
    assert " ".join(node.form for node in chain) == expected


def test_auxiliaries_do_not_attach_to_nouns() -> None:
    dog = Nominal(word("dog", "NOUN", "nsubj"), "animal")
    chain = verb_chain(verb_of("run/ran/run"), Mood("present", progressive=True), dog)
    attach_to_pronoun(dog, chain)
    assert [node.form for node in chain] == ["is", "running"]
