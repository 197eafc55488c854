import copy
import pickle
from dataclasses import fields

import numpy as np
import pytest
import torch

from metrics.attachment import Arcs, Integers
from metrics.rows import ArcPredictions, ItemRows
from tests.metrics.samples import arcs, column, item_rows, padded_batch, random_arcs, random_predictions


class TestItemRows:
    def test_the_order_and_size_of_batches_do_not_matter(self) -> None:
        sentences = [4, 0, 17, 2, 9]
        expected = item_rows(sorted(sentences))
        for batches in ([sentences], [[2], [17, 4], [], [9, 0]]):
            metric = ItemRows(3)
            for batch in batches:
                metric.update(*item_rows(batch))
            for again in (metric, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
                found, values = again.compute()
                np.testing.assert_array_equal(found, expected[0].numpy())
                np.testing.assert_array_equal(values, expected[1].double().numpy())

    def test_without_an_item_it_is_empty(self) -> None:
        metric = ItemRows(3)
        metric.update(*item_rows([]))
        assert [part.shape for part in metric.compute()] == [(0,), (0, 3)]

    def test_an_item_seen_twice_is_refused_until_a_reset(self) -> None:
        metric = ItemRows(3)
        metric.update(*item_rows([5, 1]))
        metric.update(*item_rows([5]))
        with pytest.raises(ValueError, match=r"1 items were added more than once.* number 5: .*sampler"):
            metric.compute()
        metric.reset()
        metric.update(*item_rows([5]))
        assert metric.compute()[0].tolist() == [5]

    def test_other_widths_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"must be \[2, 4\], and they are \[2, 3\]"):
            ItemRows(4).update(*item_rows([0, 1]))


def assert_same(one: tuple[Arcs, Integers], other: tuple[Arcs, Integers]) -> None:
    for field in fields(Arcs):
        got, expected = getattr(one[0], field.name), getattr(other[0], field.name)
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    assert one[1].shape == other[1].shape
    np.testing.assert_array_equal(one[1], other[1])


GOLD = random_arcs(11, seed=11)
NUMBERS: list[int] = np.unique(GOLD.sentence).tolist()


@pytest.mark.parametrize("width", [None, 1, 5])
class TestArcPredictions:
    def test_the_order_and_size_of_batches_do_not_matter(self, width: int | None) -> None:
        data = GOLD, random_predictions(GOLD, width)
        for seed, size in enumerate((1, 3, 11)):
            metric = ArcPredictions(width)
            shuffled = np.random.default_rng(seed).permutation(NUMBERS).tolist()
            for start in range(0, len(shuffled), size):
                metric.update(*padded_batch(*data, shuffled[start : start + size]))
                metric.update(*padded_batch(*data, []))  # a batch without a sentence adds nothing
            same = (metric, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.to(torch.float64))
            for again in same:
                assert_same(again.compute(), data)
        assert width is not None or metric.compute()[1].dtype == np.int64

    def test_without_an_update_and_after_a_reset_it_is_empty(self, width: int | None) -> None:
        data, metric = (GOLD, random_predictions(GOLD, width)), ArcPredictions(width)
        empty = arcs([]), np.zeros((0,) if width is None else (0, width), np.int64)
        for _ in range(2):
            assert_same(metric.compute(), empty)
            metric.update(*padded_batch(*data, NUMBERS))
            assert_same(metric.compute(), data)
            metric.reset()

    def test_a_sentence_seen_twice_is_refused(self, width: int | None) -> None:
        data, metric = (GOLD, random_predictions(GOLD, width)), ArcPredictions(width)
        for batch in (NUMBERS[:2], NUMBERS[1:2]):
            metric.update(*padded_batch(*data, batch))
        with pytest.raises(ValueError, match=f"1 items were added more than once.* number {NUMBERS[1]}: .*sampler"):
            metric.compute()

    def test_parts_of_different_shapes_are_refused(self, width: int | None) -> None:
        sentence, heads, relations, marks, lengths, predicted = padded_batch(
            GOLD, random_predictions(GOLD, width), NUMBERS[:1]
        )
        metric = ArcPredictions(width)
        for wrong in (predicted[:, :-1], predicted[..., None]):
            with pytest.raises(ValueError, match=r"must all be \[batch, n\], and predicted \(1, \d"):
                metric.update(sentence, heads, relations, marks, lengths, wrong)
        with pytest.raises(ValueError, match=r"must all be \[batch, n\]"):
            metric.update(sentence, heads, relations[:, 1:], marks, lengths, predicted)
        assert len(metric.compute()[0]) == 0


def test_another_width_than_promised_is_refused() -> None:
    with pytest.raises(ValueError, match=r"predicted \(1, 2, 3\)"):
        ArcPredictions(3).update(*padded_batch(arcs([[2, 0]]), column([[2, 1]]), [0]))
