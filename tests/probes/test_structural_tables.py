import math

import numpy as np
import pytest

from metrics.attachment import Floats
from probes.structural import Found, Pair, mean, sweep_map, sweep_table

LENGTHS = np.array([5, 3, 5, 9, 51, 9, 5])
PAIRS = [Pair(0, 4), Pair(0, 8), Pair(3, 4), Pair(3, 8)]


def found() -> tuple[Found, Floats]:
    """Six of seven sentences, four probes; as gathered, and the rows it is made of."""
    random = np.random.default_rng(0)
    total = random.integers(1, 9, 6).astype(np.float64)
    right = np.floor(random.random((6, 4)) * (total[:, None] + 1))
    correlation = random.uniform(-1, 1, (6, 4))
    correlation[2] = np.nan
    rows = np.column_stack([total, right, correlation])
    return Found.of(np.array([0, 1, 2, 3, 4, 5]), rows, LENGTHS), rows


def test_rows_come_apart_as_they_were_put_together() -> None:
    held, rows = found()
    assert held.words.tolist() == [5, 3, 5, 9, 51, 9]
    np.testing.assert_array_equal(held.total, rows[:, 0])
    np.testing.assert_array_equal(held.right, rows[:, 1:5])
    np.testing.assert_array_equal(held.correlation, rows[:, 5:])


def test_the_mean_correlation_is_one_over_lengths_from_5_to_50() -> None:
    held, rows = found()
    numerators, denominators = held.counts(share=False)
    # Of length 5 the first alone is known; of length 9 there are two.
    expected = [(rows[0, 5 + k] + (rows[3, 5 + k] + rows[5, 5 + k]) / 2) / 2 for k in range(4)]
    assert mean(numerators, denominators).tolist() == pytest.approx(expected)
    assert denominators[:, 1].tolist() == [0.5, 0, 0, 0.25, 0, 0.25]


def test_items_add_up_to_the_scores_of_their_probe() -> None:
    held, rows = found()
    items = held.items([f"id-{number}" for number in range(7)], 2, "edges", "edges_found")
    assert list(items)[:5] == ["sentence", "id", "words", "edges", "edges_found"]
    assert items["id"].tolist() == [f"id-{number}" for number in range(6)]
    assert items["edges_found"].sum() / items["edges"].sum() == mean(*held.counts(share=True))[2]
    assert items["spearman_weighted"].sum() / items["spearman_weight"].sum() == pytest.approx(
        mean(*held.mean_correlation())[2]
    )
    assert items["spearman"].isna().tolist() == [False, False, True, False, False, False]
    assert items["spearman"][3] == rows[3, 7]


def test_a_sweep_has_a_row_for_each_probe_and_a_map_with_the_chosen_one_framed() -> None:
    held, rows = found()
    share = rows[:, 1:5].sum(axis=0) / rows[:, 0].sum()
    table = sweep_table(PAIRS, [3, 1, 2, 4], held.counts(share=False), held.counts(share=True)).frame
    assert table["layer"].tolist() == [0, 0, 3, 3]
    assert table["epochs"].tolist() == [3, 1, 2, 4]
    np.testing.assert_allclose(table["test"], share)
    assert (table["low"] < table["test"]).all()
    assert (table["test"] < table["high"]).all()
    figure = sweep_map(table, 2, "uuas")
    np.testing.assert_allclose(figure.values, share.reshape(2, 2))
    assert (figure.row_labels, figure.column_labels, figure.marked) == (["0", "3"], ["4", "8"], (1, 0))


def test_where_there_is_nothing_to_find_the_score_is_nan() -> None:
    held = Found.of(np.array([0]), np.array([[0.0, 0.0, math.nan]]), np.array([1]))
    table = sweep_table(PAIRS[:1], [1], held.counts(share=True), held.counts(share=False)).frame
    assert table[["dev", "test", "low", "high"]].isna().all(axis=None)
