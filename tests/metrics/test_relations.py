"""Baselines of arcs, by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from attention_probing.metrics.attachment import Arcs, attached, baseline_scores, uniform_attached
from attention_probing.metrics.relations import explain_offsets, relation_bars, relation_table
from tests.metrics.samples import arcs

KNOWN = ("det", "nsubj", "punct", "root")


def words(*sentences: str) -> Arcs:
    """Arcs of sentences of `form→head/relation` with blanks between."""
    ends = [[word.partition("→")[2].split("/") for word in sentence.split()] for sentence in sentences]
    return arcs(
        [[int(head) for head, _ in sentence] for sentence in ends],
        relations=[[KNOWN.index(relation) for _, relation in sentence] for sentence in ends],
        punctuation=[[relation == "punct" for _, relation in sentence] for sentence in ends],
    )


# In dev a determiner's head is the next word, a subject's the one after it: offsets +1 and +2.
NEAR_DEV = words("the→2/det dog→4/nsubj now→2/det barks→0/root .→4/punct", "a→2/det cat→4/nsubj the→2/det sat→0/root")


NEAR_TEST = words(
    "the→2/det dog→3/nsubj barks→0/root .→3/punct", "the→3/det big→3/det dog→5/nsubj now→3/det ran→0/root"
)


def cells(table: pd.DataFrame, relation: str, columns: list[str]) -> list[float]:
    """The cells of one row."""
    return table[table["relation"] == relation][columns].to_numpy(dtype=np.float64)[0].tolist()  # type: ignore[no-any-return]


def test_offsets_are_chosen_on_dev_and_scored_on_test() -> None:
    made = relation_table(NEAR_DEV, NEAR_TEST, KNOWN, None)
    assert list(relation_bars(made).series) == ["best fixed offset"]
    table = made.frame
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
    found = attached(NEAR_TEST, NEAR_TEST.head)
    found[0] = 0
    made = relation_table(NEAR_DEV, NEAR_TEST, KNOWN, found)
    bars = relation_bars(made)
    assert (list(bars.series), list(bars.intervals)) == (["probe", "best fixed offset"], ["probe"])
    table = made.frame
    assert list(table) == ["relation", "n", "probe", "low", "high", "offset", "best_offset"]
    low, probe, high = cells(table, "det", ["low", "probe", "high"])
    assert probe == 0.75
    assert low <= probe <= high
    assert cells(table, "nsubj", ["probe", "low", "high"]) == [1, pytest.approx(0.025**0.5), 1]  # two of two


def test_a_note_names_the_relations_whose_offset_is_above_the_probe() -> None:
    # The probe finds nothing, so that both relations with an offset that is right for all words lie below it.
    always = words(*["the→2/det dog→3/nsubj barks→0/root .→3/punct"] * 20)
    right = attached(always, always.head)
    for wrong, named in ((right * 0, "det, nsubj, punct"), (right * (always.relation != 1), "nsubj"), (right, "")):
        note = explain_offsets(relation_table(always, always, KNOWN, wrong))
        assert note.endswith(f"above the interval of the probe in {named}.") if named else not note
    assert explain_offsets(relation_table(always, always, KNOWN, None)) == ""


def test_baselines_by_hand() -> None:
    found = baseline_scores(NEAR_DEV, NEAR_TEST, len(KNOWN))
    scores = {end: number for name, one in found.items() for end, number in one.columns(name).items()}
    # Without punctuation: 8 words. Next word: "the dog", "dog barks", "big dog". The last word's head is ROOT under
    # right-branching: "ran". Previous word: "now" after "dog". The first word is the root of no sentence.
    assert scores["offset.uas"] == 3 / 8
    assert scores["right_branching.uas"] == 4 / 8
    assert scores["left_branching.uas"] == 1 / 8
    assert scores["offset.uas_with_punctuation"] == 3 / 9
    assert scores["left_branching.uas_with_punctuation"] == 2 / 9
    # Each word's head is one of n candidates: 3 scored words of a sentence of 4, 5 of 5.
    assert scores["uniform.uas"] == pytest.approx((3 / 4 + 5 / 5) / 8)


def test_uniform_attention_on_test_without_a_window_is_over_every_word() -> None:
    """Sentences of one split alone may be longer than the window of the layers."""
    near = np.stack([np.maximum(NEAR_DEV.word - 1, 1), np.minimum(NEAR_DEV.word + 1, NEAR_DEV.length)], -1)
    whole = np.stack([np.ones_like(NEAR_DEV.word), NEAR_DEV.length], -1)
    dev = replace(NEAR_DEV, reach=np.stack([whole, near], 1))
    found, plain = (baseline_scores(one, NEAR_TEST, len(KNOWN)) for one in (dev, NEAR_DEV))
    assert uniform_attached(dev)[:, ~dev.punctuation].sum(1).argmax() > 0
    assert found["uniform.uas"] == plain["uniform.uas"]
