"""Inflection and the tables of the sample treebank's grammar; what it generates is tested in `test_sample`."""

from dataclasses import astuple

import pytest

from corpora.grammar import Mood, Nominal, attach_to_pronoun, verb_chain, word
from corpora.lexicon import FRAMES, KINDS, PATTERNS, PRONOUNS, WORDS, Verb, s_form, verb_of

NOUNS = {name for name, kind in KINDS.items() if kind.nouns}
PERSON = {"I": (1, False), "you": (2, True), "she": (3, False), "we": (1, True), "they": (3, True)}


def subject(pronoun: str) -> Nominal:
    person, plural = PERSON[pronoun]
    return Nominal(word(PRONOUNS[pronoun][0], "PRON", "nsubj", pronoun), "person", person, plural)


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


FORMS = {
    "walk": "walk walks walked walked walking",
    "bake": "bake bakes baked baked baking",
    "carry": "carry carries carried carried carrying",
    "enjoy": "enjoy enjoys enjoyed enjoyed enjoying",
    "watch": "watch watches watched watched watching",
    "agree": "agree agrees agreed agreed agreeing",
    "plan": "plan plans planned planned planning",
    "put/put": "put puts put put putting",
    "buy/bought": "buy buys bought bought buying",
    "write/wrote/written": "write writes wrote written writing",
    "begin/began/begun": "begin begins began begun beginning",
}


def test_a_verb_has_its_five_forms() -> None:
    assert {entry: " ".join(astuple(verb_of(entry))) for entry in FORMS} == FORMS


def test_a_verb_has_the_same_forms_in_every_frame() -> None:
    forms: dict[str, Verb] = {}
    for frame in FRAMES:
        assert forms.setdefault(frame.verb.base, frame.verb) == frame.verb


def test_frames_speak_of_known_patterns_and_kinds() -> None:
    assert {frame.pattern for frame in FRAMES} == set(PATTERNS)
    for frame in FRAMES:
        assert set(frame.subjects) <= NOUNS, frame
        assert set(frame.objects) <= NOUNS | {"city"}, frame
        assert frame.subjects
        needs_link = frame.pattern in ("motion", "ditransitive", "prepositional", "particle", "object infinitive")
        assert bool(frame.link) == needs_link, frame
        assert not (frame.stative and frame.pattern == "transitive" and frame.deliberate), frame


def test_the_s_form_follows_the_spelling_rules() -> None:
    bases = "dog box watch story key go house dress"
    assert " ".join(map(s_form, bases.split())) == "dogs boxes watches stories keys goes houses dresses"


def test_irregular_plurals_are_those_of_the_dictionary() -> None:
    plurals = {noun.singular: noun.plural for kind in KINDS.values() for noun in kind.nouns}
    irregular = {noun: plural for noun, plural in plurals.items() if plural != s_form(noun)}
    assert irregular == {
        "child": "children",
        "woman": "women",
        "man": "men",
        "goose": "geese",
        "mouse": "mice",
        "wolf": "wolves",
        "knife": "knives",
        "radio": "radios",
        "scarf": "scarves",
        "shelf": "shelves",
    }
    assert all(plural != noun for noun, plural in plurals.items())


def test_nouns_are_listed_once_and_tables_speak_of_known_kinds() -> None:
    singulars = [noun.singular for kind in KINDS.values() for noun in kind.nouns]
    assert len(singulars) == len(set(singulars)) > 150
    assert set(KINDS) == NOUNS | {"role"}
    assert {name for name, kind in KINDS.items() if kind.predicates} == NOUNS
    assert {other for kind in KINDS.values() for _, other in kind.links} <= NOUNS | {"city"}
    assert {word for name in ("roles", "relatives", "free", "at", "on", "plans") for word in WORDS[name]} <= set(
        singulars
    )
