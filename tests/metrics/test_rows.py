import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch

from metrics.attachment import Arcs, Integers
from metrics.rows import ArcPredictions, ItemRows
from tests.metrics.gather import Data, compute, compute_shares, padded_batch
from tests.metrics.item_rows import gather_shares, rows
from tests.metrics.samples import arcs, column, random_arcs


class TestItemRows:
    def test_the_order_and_size_of_batches_do_not_matter(self) -> None:
        sentences = [4, 0, 17, 2, 9]
        expected = rows(sorted(sentences))
        for batches in ([sentences], [[2], [17, 4], [], [9, 0]]):
            metric = ItemRows(3)
            for batch in batches:
                metric.update(*rows(batch))
            for again in (metric, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
                found, values = again.compute()
                np.testing.assert_array_equal(found, expected[0].numpy())
                np.testing.assert_array_equal(values, expected[1].double().numpy())

    def test_without_an_item_it_is_empty(self) -> None:
        metric = ItemRows(3)
        metric.update(*rows([]))
        sentences, values = metric.compute()
        assert sentences.shape == (0,)
        assert values.shape == (0, 3)

    def test_an_item_seen_twice_is_refused_until_a_reset(self) -> None:
        metric = ItemRows(3)
        metric.update(*rows([5, 1]))
        metric.update(*rows([5]))
        with pytest.raises(ValueError, match=r"1 items were added more than once.* number 5: .*sampler"):
            metric.compute()
        metric.reset()
        metric.update(*rows([5]))
        assert metric.compute()[0].tolist() == [5]

    def test_other_widths_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"must be \[2, 4\], and they are \[2, 3\]"):
            ItemRows(4).update(*rows([0, 1]))

    def test_two_processes_equal_one(self, tmp_path: Path) -> None:
        sentences = list(range(7))
        # Unevenly; then with nothing for the second process: no batch at all, and one without a sentence.
        shares: list[tuple[list[list[int]], list[list[int]]]] = [
            ([[0, 5], [3, 2, 6]], [[4, 1]]),
            ([[*sentences]], []),
            ([[*sentences]], [[]]),
        ]
        with ProcessPoolExecutor(2, mp_context=get_context("forkserver")) as pool:
            jobs = [
                pool.submit(gather_shares, rank, tmp_path / "meet", [share[rank] for share in shares])
                for rank in range(2)
            ]
            for job in jobs:
                for found, values in job.result():
                    np.testing.assert_array_equal(found, sentences)
                    np.testing.assert_array_equal(values, rows(sentences)[1].double().numpy())


WIDTHS = (None, 1, 5)


def assert_same(one: tuple[Arcs, Integers], other: tuple[Arcs, Integers]) -> None:
    for field in fields(Arcs):
        got, expected = getattr(one[0], field.name), getattr(other[0], field.name)
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    assert one[1].shape == other[1].shape
    np.testing.assert_array_equal(one[1], other[1])


def sample(width: int | None = None, sentences: int = 11) -> tuple[Arcs, Integers]:
    gold = random_arcs(sentences, seed=sentences)
    rng = np.random.default_rng(0)
    if width is None:
        return gold, rng.integers(-1, gold.length + 1)
    return gold, rng.integers(-1, gold.length[:, None] + 1, size=(len(gold), width))


def numbers(gold: Arcs) -> list[int]:
    found: list[int] = np.unique(gold.sentence).tolist()
    return found


@pytest.mark.parametrize("width", WIDTHS)
class TestArcPredictions:
    def test_the_order_and_size_of_batches_do_not_matter(self, width: int | None) -> None:
        data = sample(width)
        for seed, size in enumerate((1, 3, 11)):
            metric = ArcPredictions(width)
            shuffled = np.random.default_rng(seed).permutation(numbers(data[0])).tolist()
            for start in range(0, len(shuffled), size):
                metric.update(*padded_batch(*data, shuffled[start : start + size]))
            assert_same(metric.compute(), data)

    def test_without_an_update_it_is_empty(self, width: int | None) -> None:
        shape = (0,) if width is None else (0, width)
        assert_same(ArcPredictions(width).compute(), (arcs([]), np.zeros(shape, np.int64)))

    def test_a_batch_without_a_sentence_adds_nothing(self, width: int | None) -> None:
        data = sample(width)
        metric = ArcPredictions(width)
        for batch in ([], numbers(data[0]), []):
            metric.update(*padded_batch(*data, batch))
        assert_same(metric.compute(), data)

    def test_a_sentence_seen_twice_is_refused(self, width: int | None) -> None:
        data = sample(width)
        first, second = numbers(data[0])[:2]
        metric = ArcPredictions(width)
        metric.update(*padded_batch(*data, [first, second]))
        metric.update(*padded_batch(*data, [second]))
        with pytest.raises(ValueError, match=f"1 items were added more than once.* number {second}: .*sampler"):
            metric.compute()

    def test_parts_of_different_shapes_are_refused(self, width: int | None) -> None:
        data = sample(width)
        sentence, heads, relations, punctuation, lengths, predicted = padded_batch(*data, numbers(data[0])[:1])
        metric = ArcPredictions(width)
        for wrong in (predicted[:, :-1], predicted[..., None]):
            with pytest.raises(ValueError, match=r"must all be \[batch, n\], and predicted \(1, \d"):
                metric.update(sentence, heads, relations, punctuation, lengths, wrong)
        with pytest.raises(ValueError, match=r"must all be \[batch, n\]"):
            metric.update(sentence, heads, relations[:, 1:], punctuation, lengths, predicted)
        assert len(metric.compute()[0]) == 0

    def test_it_starts_again_after_a_reset(self, width: int | None) -> None:
        data = sample(width)
        metric = ArcPredictions(width)
        for _ in range(2):
            metric.update(*padded_batch(*data, numbers(data[0])))
            assert_same(metric.compute(), data)
            metric.reset()
        assert len(metric.compute()[0]) == 0

    def test_copies_and_pickles_keep_the_state(self, width: int | None) -> None:
        data = sample(width)
        metric = ArcPredictions(width)
        metric.update(*padded_batch(*data, numbers(data[0])))
        metric.compute()
        assert_same(copy.deepcopy(metric).compute(), data)
        assert_same(pickle.loads(pickle.dumps(metric)).compute(), data)
        assert_same(metric.to(torch.float64).compute(), data)


def test_one_number_of_a_word_comes_in_torchs_own_integers() -> None:
    metric = ArcPredictions()
    metric.update(*padded_batch(*sample(), numbers(sample()[0])))
    assert metric.compute()[1].dtype == np.int64


def test_another_width_than_promised_is_refused() -> None:
    gold = arcs([[2, 0]])
    batch = padded_batch(gold, column([[2, 1]]), [0])
    with pytest.raises(ValueError, match=r"predicted \(1, 2, 3\)"):
        ArcPredictions(3).update(*batch)


def test_two_processes_equal_one_to_the_integer(tmp_path: Path) -> None:
    gold, heads = sample()
    data = Data(gold, heads, sample(5)[1])
    sentences = numbers(gold)
    assert len(sentences) % 2 == 1
    alone = compute(data, [sentences])
    assert_same(alone.heads, (gold, heads))
    assert_same(alone.several, (gold, data.several))
    # Unevenly, in batches of several sizes; then with nothing for the second process: a batch without a sentence, as
    # the sampler gives it.
    rounds: list[tuple[list[list[int]], list[list[int]]]] = [
        ([sentences[0:8:2], sentences[8:]], [sentences[1:8:2]]),
        ([sentences[:5], sentences[5:]], [[]]),
    ]
    with ProcessPoolExecutor(2, mp_context=get_context("forkserver")) as pool:
        jobs = [
            pool.submit(compute_shares, rank, 2, tmp_path / "rendezvous", [shares[rank] for shares in rounds], data)
            for rank in range(2)
        ]
        for job in jobs:
            for computed in job.result():
                assert_same(computed.heads, alone.heads)
                assert_same(computed.several, alone.several)
                assert torch.equal(computed.peaks, alone.peaks)
