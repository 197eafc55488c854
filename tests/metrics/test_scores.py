import os
from pathlib import Path

import conllu
import numpy as np
import pytest

from metrics.attachment import (
    Arcs,
    attached,
    edges_found,
    offset_heads,
    right_branching,
    uniform_attached,
    uniform_edges_found,
)
from metrics.bootstrap import bootstrap_ratio
from metrics.scores import attachment_scores, relation_accuracies, sentence_scores
from results import numbers
from tests.metrics.samples import arcs, column, random_arcs

LABELS = ("root", "det", "nsubj", "punct", "iobj")

# the dog barked . / she left
GOLD = arcs(
    [[2, 3, 0, 3], [2, 0]],
    relations=[[1, 2, 0, 3], [2, 0]],
    punctuation=[[False, False, False, True], [False, False]],
    sentences=[4, 9],
)
PREDICTED = column([[2, 1, 0, 3], [0, 1]])


class TestAttachmentScores:
    def test_hand_worked(self) -> None:
        scores = attachment_scores(GOLD, attached(GOLD, PREDICTED), edges_found(GOLD, PREDICTED), prefix="probe.")
        # Right: the, barked, the full stop; of five words without punctuation two. Edges: {the, dog} and {she, left},
        # not {dog, barked}.
        assert scores["probe.uas"].value == pytest.approx(2 / 5)
        assert scores["probe.uas_with_punctuation"].value == pytest.approx(3 / 6)
        assert scores["probe.uuas"].value == pytest.approx(2 / 3)
        assert set(scores) == {"probe.uas", "probe.uuas", "probe.uas_with_punctuation"}

    def test_intervals_are_those_of_sentences(self) -> None:
        gold = random_arcs(60, seed=1)
        predicted = np.where(np.random.default_rng(0).random(len(gold)) < 0.5, gold.head, 0)
        right, edges = attached(gold, predicted), edges_found(gold, predicted)
        scores = attachment_scores(gold, right, edges, seed=5)
        keep = {"uas": ~gold.punctuation, "uuas": ~np.isnan(edges), "uas_with_punctuation": np.full(len(gold), True)}
        for name, scored in keep.items():
            values = edges if name == "uuas" else right
            numbers = sorted(set(gold.sentence.tolist()))
            numerator = [values[scored & (gold.sentence == number)].sum() for number in numbers]
            denominator = [(scored & (gold.sentence == number)).sum() for number in numbers]
            low, high = bootstrap_ratio(numerator, denominator, seed=5)
            assert scores[name].value == pytest.approx(values[scored].mean())
            assert (scores[name].low, scores[name].high) == pytest.approx((float(low), float(high)))
            assert low < scores[name].value < high

    def test_nothing_to_score_is_nan(self) -> None:
        gold = arcs([[0]], punctuation=[[True]])
        scores = attachment_scores(gold, attached(gold, gold.head), edges_found(gold, gold.head))
        assert scores.pop("uas_with_punctuation").value == 1.0
        assert np.isnan(list(numbers(scores).values())).all()
        empty = arcs([])
        assert np.isnan(list(numbers(attachment_scores(empty, np.zeros(0), np.zeros(0))).values())).all()


class TestRelationAccuracies:
    def test_hand_worked(self) -> None:
        table = relation_accuracies(GOLD, attached(GOLD, PREDICTED), LABELS)
        assert list(table.columns) == ["relation", "n", "accuracy", "low", "high"]
        # iobj does not occur; root and nsubj are equally frequent and stay in the order of the labels.
        assert table["relation"].tolist() == ["all", "all (no punctuation)", "root", "nsubj", "det", "punct"]
        assert table["n"].tolist() == [6, 5, 2, 2, 1, 1]
        np.testing.assert_allclose(table["accuracy"], [3 / 6, 2 / 5, 1 / 2, 0, 1, 1])
        # det and punct occur in one sentence each.
        assert table["low"].isna().tolist() == [False, False, False, False, True, True]

    def test_against_a_loop(self) -> None:
        gold = random_arcs(80, seed=2, relations=4)
        right = uniform_attached(gold)
        table = relation_accuracies(gold, right, LABELS, seed=3)
        numbers = sorted(set(gold.sentence.tolist()))
        for index, label in enumerate(LABELS[:4]):
            of = gold.relation == index
            numerator = [right[of & (gold.sentence == number)].sum() for number in numbers]
            denominator = [(of & (gold.sentence == number)).sum() for number in numbers]
            low, high = bootstrap_ratio(numerator, denominator, seed=3)
            row = table[table["relation"] == label][["n", "accuracy", "low", "high"]].to_numpy()
            np.testing.assert_allclose(row, [[of.sum(), right[of].mean(), float(low), float(high)]])
        assert table["n"].iloc[2:].is_monotonic_decreasing
        assert table["n"].tolist()[:2] == [len(gold), (~gold.punctuation).sum()]

    def test_a_relation_without_a_label_is_refused(self) -> None:
        with pytest.raises(ValueError, match="relation 3 of the arcs has no label: there are 3"):
            relation_accuracies(GOLD, attached(GOLD, PREDICTED), LABELS[:3])

    def test_no_words(self) -> None:
        table = relation_accuracies(arcs([]), np.zeros(0), LABELS)
        assert table["n"].tolist() == [0, 0]
        assert table["accuracy"].isna().all()


def test_sentence_scores() -> None:
    table = sentence_scores(GOLD, attached(GOLD, PREDICTED), edges_found(GOLD, PREDICTED))
    assert table.to_dict("list") == {
        "sentence": [4, 9],
        "words": [4, 2],
        "scored": [3, 2],
        "correct": [2.0, 0.0],
        "correct_with_punctuation": [3.0, 0.0],
        "edges": [2, 1],
        "edges_found": [1.0, 1.0],
    }


def read_arcs(path: Path) -> tuple[Arcs, list[str]]:
    heads, relations, punctuation = [], [], []
    labels: dict[str, int] = {}
    for sentence in conllu.parse(path.read_text(encoding="utf-8")):
        words = [token for token in sentence if isinstance(token["id"], int)]
        heads.append([word["head"] for word in words])
        relations.append([labels.setdefault(word["deprel"], len(labels)) for word in words])
        punctuation.append([word["deprel"] == "punct" for word in words])
    return arcs(heads, relations=relations, punctuation=punctuation), list(labels)


def test_baselines_on_ewt_are_the_known_ones() -> None:
    """The test split of UD English EWT: 30.9 at +1, 6.6 at −1 unclipped, 31.9 right-branching."""
    root = os.environ.get("PROBING_DATA")
    path = Path(root or "") / "ud" / "en_ewt-ud-test.conllu"
    if root is None or not path.exists():
        pytest.skip("needs UD English EWT: PROBING_DATA is not set or has no ud/en_ewt-ud-test.conllu")
    gold, labels = read_arcs(path)
    known = {"following": offset_heads(gold, 1), "previous": offset_heads(gold, -1), "right": right_branching(gold)}
    scores = {
        name: attachment_scores(gold, attached(gold, heads), edges_found(gold, heads)) for name, heads in known.items()
    }
    assert {name: round(100 * each["uas"].value, 1) for name, each in scores.items()} == {
        "following": 30.9,
        "previous": 6.6,
        "right": 31.9,
    }
    uniform = numbers(attachment_scores(gold, uniform_attached(gold), uniform_edges_found(gold)))
    assert uniform["uas.low"] < uniform["uas"] < uniform["uas.high"] < 0.1
    table = relation_accuracies(gold, attached(gold, known["following"]), labels)
    assert table["n"].iloc[0] == 25094 == table["n"].iloc[2:].sum()
