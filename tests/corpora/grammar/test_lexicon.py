import pytest

from corpora.grammar import lexicon
from corpora.grammar.lexicon import s_form

KINDS = set(lexicon.NOUNS)


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("dog", "dogs"),
        ("box", "boxes"),
        ("watch", "watches"),
        ("story", "stories"),
        ("key", "keys"),
        ("go", "goes"),
        ("house", "houses"),
        ("dress", "dresses"),
    ],
)
def test_the_s_form_follows_the_spelling_rules(base: str, expected: str) -> None:
    assert s_form(base) == expected


def test_irregular_plurals_are_those_of_the_dictionary() -> None:
    plurals = {noun.singular: noun.plural for nouns in lexicon.NOUNS.values() for noun in nouns}
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
    singulars = [noun.singular for nouns in lexicon.NOUNS.values() for noun in nouns]
    assert len(singulars) == len(set(singulars)) > 150
    assert set(lexicon.PREDICATES) == KINDS
    assert set(lexicon.ADJECTIVES) == set(lexicon.LINKS) == KINDS | {"role"}
    assert set(lexicon.PLURALS) | lexicon.PUBLIC <= KINDS
    assert {kind for links in lexicon.LINKS.values() for _, kind in links} <= KINDS | {"city"}
    assert {*lexicon.ROLES, *lexicon.RELATIVES, *lexicon.FREE, *lexicon.AT, *lexicon.ON, *lexicon.PLANS} <= set(
        singulars
    )
