import pytest

from corpora.grammar.frames import FRAMES, Verb, verb_of
from corpora.grammar.lexicon import NOUNS
from corpora.grammar.verbs import PATTERNS


@pytest.mark.parametrize(
    ("entry", "forms"),
    [
        ("walk", "walk walks walked walked walking"),
        ("bake", "bake bakes baked baked baking"),
        ("carry", "carry carries carried carried carrying"),
        ("enjoy", "enjoy enjoys enjoyed enjoyed enjoying"),
        ("watch", "watch watches watched watched watching"),
        ("agree", "agree agrees agreed agreed agreeing"),
        ("plan", "plan plans planned planned planning"),
        ("put/put", "put puts put put putting"),
        ("buy/bought", "buy buys bought bought buying"),
        ("write/wrote/written", "write writes wrote written writing"),
        ("begin/began/begun", "begin begins began begun beginning"),
    ],
)
def test_a_verb_has_its_five_forms(entry: str, forms: str) -> None:
    assert verb_of(entry) == Verb(*forms.split())


def test_a_verb_has_the_same_forms_in_every_frame() -> None:
    forms: dict[str, Verb] = {}
    for frame in FRAMES:
        assert forms.setdefault(frame.verb.base, frame.verb) == frame.verb


def test_frames_speak_of_known_patterns_and_kinds() -> None:
    assert {frame.pattern for frame in FRAMES} == set(PATTERNS)
    for frame in FRAMES:
        assert set(frame.subjects) <= set(NOUNS), frame
        assert set(frame.objects) <= set(NOUNS) | {"city"}, frame
        assert frame.subjects
        needs_link = frame.pattern in ("motion", "ditransitive", "prepositional", "particle", "object infinitive")
        assert bool(frame.link) == needs_link, frame
        assert not (frame.stative and frame.pattern == "transitive" and frame.deliberate), frame
