import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from metrics.rows import ItemRows
from tests.metrics.item_rows import gather_shares, rows


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
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            jobs = [
                pool.submit(gather_shares, rank, tmp_path / "meet", [share[rank] for share in shares])
                for rank in range(2)
            ]
            for job in jobs:
                for found, values in job.result():
                    np.testing.assert_array_equal(found, sentences)
                    np.testing.assert_array_equal(values, rows(sentences)[1].double().numpy())
