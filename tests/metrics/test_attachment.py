from dataclasses import fields, replace

import numpy as np
import pytest

from metrics.attachment import (
    OFFSETS,
    Arcs,
    attached,
    best_offsets,
    edges_found,
    left_branching,
    offset_heads,
    right_branching,
    uniform_attached,
    uniform_edges_found,
)
from tests.metrics.samples import arcs, column, random_arcs, slow_edges_found

NAN = float("nan")

# the  dog  barked  loudly  .
DOG = arcs([[2, 3, 0, 3, 3]], punctuation=[[False, False, False, False, True]])


class TestArcs:
    def test_empty_columns_are_arcs(self) -> None:
        assert len(arcs([])) == 0

    @pytest.mark.parametrize(
        ("name", "values", "message"),
        [
            ("word", [2, 1, 3, 4, 5], "row 1 is word 2"),
            ("word", [1, 2, 3, 4, 4], "row 5 is word 4"),
            ("length", [6, 6, 6, 6, 6], "sentence 0 is not the words 1 to 6 in order.* it has 5 rows"),
            ("sentence", [0, 0, 0, 0, 1], "sentence 0 is not the words 1 to 5 in order.* it has 4 rows"),
            ("sentence", [1, 1, 1, 0, 0], "not sorted"),
            ("head", [2, 3, 0, 6, 3], r"word 4 of sentence 0 \(5 words\) has the impossible gold head 6"),
            ("head", [2, 3, 0, -1, 3], "impossible gold head -1"),
            ("head", [2, 3, 0, 3], r"head has the shape \(4,\)"),
        ],
    )
    def test_columns_that_are_not_whole_sentences_are_refused(self, name: str, values: list[int], message: str) -> None:
        columns = {field.name: getattr(DOG, field.name) for field in fields(Arcs)}
        with pytest.raises(ValueError, match=message):
            Arcs(**(columns | {name: np.array(values)}))


class TestFormulas:
    def test_hand_drawn_sentence(self) -> None:
        predicted = column([[2, 1, 0, 5, 4]])
        # dog → the draws {dog, the} a second time, not {dog, barked}; loudly and the full stop draw no gold edge.
        assert attached(DOG, predicted).tolist() == [1, 0, 1, 0, 0]
        np.testing.assert_array_equal(edges_found(DOG, predicted), [1, 0, NAN, 0, NAN])

    def test_an_edge_is_found_from_its_head_too(self) -> None:
        # Only barked → dog draws a gold edge, {dog, barked}.
        np.testing.assert_array_equal(edges_found(DOG, column([[3, 5, 2, 1, 1]])), [0, 1, NAN, 0, NAN])

    def test_an_edge_drawn_by_punctuation_does_not_count(self) -> None:
        # A word under a comma: the comma's own prediction is the only one that draws their edge.
        gold = arcs([[2, 0]], punctuation=[[False, True]])
        np.testing.assert_array_equal(edges_found(gold, column([[0, 1]])), [0, NAN])
        np.testing.assert_array_equal(edges_found(gold, column([[2, 1]])), [1, NAN])

    @pytest.mark.parametrize("seed", range(5))
    def test_edges_equal_sets_of_pairs(self, seed: int) -> None:
        gold = random_arcs(30, seed)
        rng = np.random.default_rng(seed)
        # Wrong, right, own, ROOT, and outside on both sides; often the reverse of a gold arc.
        predicted = rng.integers(-2, gold.length + 3)
        predicted = np.where(rng.random(len(gold)) < 0.3, gold.head, predicted)
        reverse = {(int(s), int(h)): int(w) for s, w, h in zip(gold.sentence, gold.word, gold.head, strict=True)}
        for row in np.flatnonzero(rng.random(len(gold)) < 0.3):
            predicted[row] = reverse.get((int(gold.sentence[row]), int(gold.word[row])), 0)
        found = edges_found(gold, predicted)
        np.testing.assert_array_equal(found, slow_edges_found(gold, predicted))
        assert {0.0, 1.0} <= set(found[~np.isnan(found)])

    def test_uniform_is_the_mean_of_uniform_draws(self) -> None:
        gold = random_arcs(12, seed=3)
        rng = np.random.default_rng(0)
        draws = 4000
        heads, edges = np.zeros(len(gold)), np.zeros(len(gold))
        for _ in range(draws):
            # One of n places: the n − 1 other words and ROOT, which stands for the word itself.
            place = rng.integers(1, gold.length + 1)
            predicted = np.where(place == gold.word, 0, place)
            heads += attached(gold, predicted)
            edges += edges_found(gold, predicted)
        tolerance = 4.5 * 0.5 / np.sqrt(draws)
        np.testing.assert_allclose(heads / draws, uniform_attached(gold), atol=tolerance)
        np.testing.assert_allclose(edges / draws, uniform_edges_found(gold), atol=tolerance)

    def test_a_lone_word_is_under_root_for_certain(self) -> None:
        assert uniform_attached(arcs([[0]])).tolist() == [1.0]

    def test_predictions_of_another_shape_are_refused(self) -> None:
        for formula in (attached, edges_found):
            with pytest.raises(ValueError, match=r"predicted has the shape \(5, 1\)"):
                formula(DOG, np.zeros((5, 1), dtype=np.int64))


class TestBaselines:
    def test_offsets_are_not_clipped(self) -> None:
        gold = arcs([[2, 3, 0], [0]])
        assert offset_heads(gold, 1).tolist() == [2, 3, -1, -1]
        # Position 0 is ROOT, which no offset may hit.
        assert offset_heads(gold, -1).tolist() == [-1, 1, 2, -1]
        assert offset_heads(gold, -3).tolist() == [-1, -1, -1, -1]

    def test_branching(self) -> None:
        gold = arcs([[2, 3, 0], [0]])
        assert right_branching(gold).tolist() == [2, 3, 0, 0]
        assert left_branching(gold).tolist() == [0, 1, 2, 0]

    @pytest.mark.parametrize("seed", range(5))
    def test_best_offsets_equal_counting(self, seed: int) -> None:
        gold = random_arcs(20, seed, relations=9)
        hits = {k: gold.head == gold.word + k for k in OFFSETS}

        def best(among: np.ndarray) -> int:
            return max(OFFSETS, key=lambda k: ((hits[k] & (gold.head > 0) & among).sum(), -abs(k), k))

        overall, per_relation = best_offsets(gold, 11)
        assert overall == best(~gold.punctuation)
        assert per_relation.tolist() == [best(gold.relation == r) for r in range(9)] + [overall] * 2

    def test_ties_go_to_the_nearer_then_to_the_following_word(self) -> None:
        # Relation 1: one arc at −1 and one at +1. Relation 2: one at −2 and one at +1. Relation 3: never in reach.
        gold = arcs(
            [[2, 0, 2, 1, 0, 0, 0, 0, 0], [3, 1, 4, 0, 0, 0, 0]],
            relations=[[1, 0, 1, 3, 0, 0, 0, 0, 0], [0, 0, 2, 0, 0, 0, 0]],
        )
        gold = replace(gold, head=np.where(gold.relation == 3, 9, gold.head))
        overall, per_relation = best_offsets(gold, 5)
        assert per_relation.tolist()[1:] == [1, 1, 1, overall]


def test_a_word_that_is_its_own_head_has_no_edge() -> None:
    sentence, word, length, head = (np.array(column) for column in ([0, 0, 0], [1, 2, 3], [3, 3, 3], [1, 1, 0]))
    arcs = Arcs(sentence, word, length, head, np.zeros(3, np.int64), np.zeros(3, bool))
    assert attached(arcs, np.array([1, 2, 0])).tolist() == [1, 0, 1]
    found = edges_found(arcs, np.array([1, 1, 1]))
    assert np.isnan(found[[0, 2]]).all()
    assert found[1] == 1
