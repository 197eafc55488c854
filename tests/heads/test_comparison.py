import numpy as np
import pandas as pd
import pytest

from heads.experiment import baseline_scores, relation_bars, relation_table
from metrics.attachment import Arcs, attached

RELATIONS = ("det", "nsubj", "punct", "root")


def arcs(*sentences: str) -> Arcs:
    """`the→2/det dog→3/nsubj barks→0/root .→3/punct`, one string a sentence."""
    rows = []
    for index, sentence in enumerate(sentences):
        words = sentence.split()
        for place, word in enumerate(words, start=1):
            head, relation = word.partition("→")[2].split("/")
            rows.append((index, place, len(words), int(head), RELATIONS.index(relation)))
    sentence_, word_, length, heads, relations = np.array(rows, np.int64).T
    return Arcs(sentence_, word_, length, heads, relations, relations == RELATIONS.index("punct"))


# In dev a determiner's head is the next word, a subject's the one after it: offsets +1 and +2.
DEV = arcs("the→2/det dog→4/nsubj now→2/det barks→0/root .→4/punct", "a→2/det cat→4/nsubj the→2/det sat→0/root")
TEST = arcs("the→2/det dog→3/nsubj barks→0/root .→3/punct", "the→3/det big→3/det dog→5/nsubj now→3/det ran→0/root")


def cells(table: pd.DataFrame, relation: str, columns: list[str]) -> list[float]:
    """The cells of one row."""
    return table[table["relation"] == relation][columns].to_numpy(dtype=np.float64)[0].tolist()  # type: ignore[no-any-return]


def test_offsets_are_chosen_on_dev_and_scored_on_test() -> None:
    table = relation_table(DEV, TEST, RELATIONS, None).frame
    # By hand: det +1 or −1 (two each in dev; the positive wins) hits "the dog" and "big dog" of four; nsubj +2 hits
    # one of two; root has no right offset; punct −1 hits its only word.
    assert cells(table, "det", ["n", "offset", "best_offset"]) == [4, 0.5, 1]
    assert cells(table, "nsubj", ["n", "offset", "best_offset"]) == [2, 0.5, 2]
    assert cells(table, "punct", ["n", "offset", "best_offset"]) == [1, 1.0, -1]
    assert cells(table, "root", ["offset"]) == [0]
    # Over all words one offset serves: +1, right for "the", "dog" | "big" of nine words.
    assert cells(table, "all", ["n", "offset", "best_offset"]) == [9, pytest.approx(3 / 9), 1]
    assert table["probe"].isna().all()


def test_the_probe_stands_beside_the_offset_with_its_own_interval() -> None:
    found = attached(TEST, TEST.head)
    found[0] = 0
    table = relation_table(DEV, TEST, RELATIONS, found).frame
    assert list(table) == ["relation", "n", "probe", "low", "high", "offset", "best_offset"]
    low, probe, high = cells(table, "det", ["low", "probe", "high"])
    assert probe == 0.75
    assert low <= probe <= high
    assert cells(table, "nsubj", ["probe", "low", "high"]) == [1, 1, 1]


def test_baselines_by_hand() -> None:
    found = baseline_scores(DEV, TEST, len(RELATIONS))
    scores = {end: number for name, one in found.items() for end, number in one.named(name).items()}
    # Without punctuation: 8 words. Next word: "the dog", "dog barks", "big dog". The last word's head is ROOT under
    # right-branching: "ran". Previous word: "now" after "dog". The first word is the root of no sentence.
    assert scores["offset.uas"] == 3 / 8
    assert scores["right_branching.uas"] == 4 / 8
    assert scores["left_branching.uas"] == 1 / 8
    assert scores["offset.uas_with_punctuation"] == 3 / 9
    assert scores["left_branching.uas_with_punctuation"] == 2 / 9
    # Each word's head is one of n candidates: 3 scored words of a sentence of 4, 5 of 5.
    assert scores["uniform.uas"] == pytest.approx((3 / 4 + 5 / 5) / 8)
    for name in ("offset", "right_branching", "left_branching", "uniform"):
        assert scores[f"{name}.uas.low"] <= scores[f"{name}.uas"] <= scores[f"{name}.uas.high"]


def test_bars_show_what_there_is() -> None:
    without = relation_bars(relation_table(DEV, TEST, RELATIONS, None))
    assert list(without.series) == ["best fixed offset"]
    both = relation_bars(relation_table(DEV, TEST, RELATIONS, attached(TEST, TEST.head)))
    assert list(both.series) == ["probe", "best fixed offset"]
    assert list(both.intervals) == ["probe"]
    assert both.categories[0] == "all"
