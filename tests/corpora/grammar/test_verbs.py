import pytest

from corpora.grammar.frames import FRAMES, Frame
from corpora.grammar.inflection import Mood
from corpora.grammar.phrases import Dice, Nominal, word
from corpora.grammar.sentences import Sentences
from corpora.grammar.verbs import ACTS


@pytest.fixture
def grammar() -> Sentences:
    return Sentences(Dice(0))


def frame_of(base: str, pattern: str = "transitive") -> Frame:
    return next(frame for frame in FRAMES if frame.verb.base == base and frame.pattern == pattern)


def test_states_have_no_progressive_and_events_do(grammar: Sentences) -> None:
    own, read, lose = frame_of("own"), frame_of("read"), frame_of("lose")
    assert not any(grammar.mood(own, time).progressive for time in ("past", "present") for _ in range(200))
    assert not any(grammar.mood(lose, "present").progressive for _ in range(200))
    assert any(grammar.mood(read, "present").progressive for _ in range(200))


def test_the_tense_is_the_one_asked_for(grammar: Sentences) -> None:
    read = frame_of("read")
    for _ in range(100):
        assert grammar.mood(read, "future").modal == "will"
        plain = grammar.mood(read, "past", plain=True)
        assert plain == Mood("past", negative=plain.negative)
        assert grammar.mood(None, "present").modal == ""


def test_only_fitting_subjects_get_a_verb_and_acts_are_done_by_somebody(grammar: Sentences) -> None:
    assert {frame.verb.base for frame in grammar.frames("event")} >= {"begin", "surprise"}
    assert "read" not in {frame.verb.base for frame in grammar.frames("animal")}
    assert grammar.frames("surface") == []
    assert all(frame.deliberate for frame in grammar.frames("person", deliberate=True))
    assert all(frame.objects and frame.subjects[0] in ("person", "animal", "organization") for frame in ACTS)


def test_a_question_inverts_the_first_auxiliary(grammar: Sentences) -> None:
    anna = Nominal(word("Anna", "PROPN", "nsubj"), "person")
    chain = [word("has", "AUX", "aux", "have"), word("been", "AUX", "aux", "be")]
    assert [n.form for n in grammar.opening(anna, list(chain), Mood("present", question=True))] == [
        "has",
        "Anna",
        "been",
    ]
    assert [n.form for n in grammar.opening(anna, list(chain), Mood("present"))] == ["Anna", "has", "been"]


@pytest.mark.parametrize(
    ("time", "only"), [("past", {"yesterday", "last"}), ("present", {"today"}), ("future", {"tomorrow", "next"})]
)
def test_when_goes_with_the_tense(grammar: Sentences, time: str, only: set[str]) -> None:
    named = set()
    for _ in range(150):
        found = grammar.when(time)
        assert grammar.timed
        first = next(node for node, _ in found.flatten())
        if found.relation == "obl:unmarked":
            named.add(first.form)
        else:
            assert (found.relation, first.relation) == ("obl", "case")
    assert named == only


def test_negation_and_questions_have_no_adverb_of_frequency(grammar: Sentences) -> None:
    assert grammar.adverb(Mood("past", negative=True)) == grammar.adverb(Mood("past", question=True)) == []
    assert [node.relation for node in grammar.adverb(Mood("present", habitual=True))] == ["advmod"]
    grammar.timed = True
    assert not any(grammar.adverb(Mood("past")) for _ in range(100))
