from collections.abc import Callable, Iterator

import pytest

from corpora.grammar.phrases import Dice, Node
from corpora.grammar.sentences import CONJUNCTIONS, Sentences


@pytest.fixture
def grammar() -> Sentences:
    return Sentences(Dice(0))


def several(grammar: Sentences, shape: Callable[[str], Node], times: tuple[str, ...]) -> Iterator[tuple[str, Node]]:
    for time in times * 25:
        grammar.used, grammar.timed = set(), False
        yield time, shape(time)


def test_only_questions_end_in_a_question_mark(grammar: Sentences) -> None:
    marks = set()
    for _ in range(300):
        root = grammar.sentence()
        assert (root.relation, root.right[-1].relation) == ("root", "punct")
        first = next(node for node, _ in root.flatten())
        asks = first.upos == "AUX" and first in root.left and first.lemma != "do"
        asks = asks or first.lemma in ("who", "what", "which", "where", "why", "how")
        mark = root.right[-1].form
        marks.add(mark)
        assert mark == "?" or not asks
    assert marks == {".", "?"}


def test_polar_questions_begin_with_the_auxiliary(grammar: Sentences) -> None:
    for _, root in several(grammar, grammar.polar_question, ("past", "present", "future")):
        assert root.left[0].upos == "AUX"
        assert root.left[1].relation == "nsubj"
        assert root.left[1].form != "I" or root.upos != "VERB"  # "Am I late?", but not "Do I read it?"
        assert not any(node.lemma == "not" for node in root.left)


def test_wh_questions_begin_with_the_question_word(grammar: Sentences) -> None:
    relations = set()
    for _, root in several(grammar, grammar.wh_question, ("past", "present", "future")):
        first, second = root.left[:2] if len(root.left) > 1 else (root.left[0], root)
        relations.add(first.relation)
        if first.relation == "nsubj":
            assert first.form == "who"
        else:
            assert second.upos == "AUX"  # inverted
        if first.relation == "obj":
            assert not any(node.relation == "obj" for node in root.right)
    assert relations == {"nsubj", "obj", "advmod"}


def test_orders_have_no_subject_and_the_base_form(grammar: Sentences) -> None:
    for _, root in several(grammar, grammar.order, ("past", "future")):
        assert root.form == root.lemma
        assert {node.relation for node in root.left} <= {"discourse", "aux", "advmod"}
        assert not any(node.lemma == "you" for node in root.right)


def test_there_is_what_there_is_and_agrees_with_it(grammar: Sentences) -> None:
    for time, root in several(grammar, grammar.existential, ("past", "present", "future")):
        assert root.left[0].relation == "expl"
        assert [node.relation for node in root.right] == ["nsubj", "obl"]
        subject = root.right[0]
        plural = subject.form != subject.lemma
        expected = {"past": ("was", "were"), "present": ("is", "are"), "future": ("be", "be")}[time][plural]
        assert (root.form, root.upos) == (expected, "VERB")
        assert subject.left[0].form not in ("the", "this")


def test_adverbial_clauses_have_their_mark_and_fronted_ones_a_comma(grammar: Sentences) -> None:
    seen = set()
    for _, root in several(grammar, grammar.complex, ("past", "present", "future")):
        (adverbial,) = (node for node in (*root.left, *root.right) if node.relation == "advcl")
        mark = next(node for node in adverbial.left if node.relation != "punct")
        assert (mark.relation, mark.upos) in {("mark", "SCONJ"), ("mark", "PART"), ("advmod", "ADV")}
        assert (mark.form == "when") == (mark.upos == "ADV")
        fronted = adverbial in root.left
        assert fronted == (bool(adverbial.right) and adverbial.right[-1].form == ",")
        if mark.form == "to":
            assert adverbial.form == adverbial.lemma
        seen.add(mark.form)
    assert seen == {*CONJUNCTIONS["past"], *CONJUNCTIONS["present"], *CONJUNCTIONS["future"], "to", "without"}


def test_what_comes_first_of_a_future_is_in_the_present(grammar: Sentences) -> None:
    for conjunction in ("if", "unless", "when", "before", "after"):
        for _ in range(20):
            grammar.used = set()
            clause = grammar.subordinate(conjunction, "future")
            assert not any(node.lemma == "will" for node in clause.left)


def test_joined_verbs_share_subject_and_inflection(grammar: Sentences) -> None:
    counts = set()
    for _, root in several(grammar, grammar.joined_verbs, ("past", "present", "future")):
        joined = [node for node in root.right if node.relation == "conj"]
        counts.add(len(joined))
        assert [any(child.relation == "cc" for child in node.left) for node in joined] == [False] * (
            len(joined) - 1
        ) + [True]
        assert not any(child.relation.startswith(("nsubj", "aux")) for node in joined for child in node.left)
        assert not any(node.lemma in ("not", "never", "rarely") for node in root.left)
        for node in joined:
            gerunds = [verb.form.endswith("ing") and verb.form != verb.lemma for verb in (node, root)]
            assert gerunds[0] == gerunds[1]
            assert (node.form == node.lemma) == (root.form == root.lemma) or {node.form, root.form} & {
                "put",
                "read",
                "run",
            }
    assert counts == {1, 2}


def test_joined_clauses_keep_their_subjects(grammar: Sentences) -> None:
    for _, root in several(grammar, grammar.compound, ("past", "present", "future")):
        (other,) = (node for node in root.right if node.relation == "conj")
        assert [node.form for node in other.left[:1]] == [","]
        assert other.left[1].form in ("and", "but")
        assert any(node.relation.startswith("nsubj") for node in other.left)
