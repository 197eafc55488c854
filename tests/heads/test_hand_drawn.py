"""Tables and figures of two splits drawn by hand, with attention in which one sees which of 2 × 2 heads is right.

1-1 mostly looks at the next word; 1-2 looks from subjects and objects at their verb; 2-1 from nouns at their
determiner, so that it is right the other way round; 2-2 looks nowhere. Whoever looks nowhere in particular gives all
words the same weight, and the first of them counts.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from heads.arc_evaluation import baseline_scores, relation_bars, relation_table
from heads.single_heads import ChosenHeads, Names, Predictions, best_bars
from metrics.attachment import Arcs, attached, uniform_attached
from metrics.bootstrap import bootstrap_ratio
from metrics.heads import DIRECTIONS, most_attended, permutation_p
from results import Estimate, Table
from tests.metrics.samples import arcs

RELATIONS = ("amod", "det", "nsubj", "obj", "punct", "root")
NAMES = Names((0, 1), (0, 1))


@dataclass(frozen=True)
class Drawn:
    """A sentence with its arcs, and who looks at whom, `from>to`, in 1-1, 1-2, 2-1 and 2-2."""

    words: str
    looks: tuple[str, str, str, str]

    @property
    def arcs(self) -> list[tuple[int, str]]:
        """Head and relation of each word."""
        ends = [word.partition("→")[2].split("/") for word in self.words.split()]
        return [(int(head), relation) for head, relation in ends]

    @property
    def attention(self) -> Tensor:
        """`[2, 2, n+2, n+2]`, most of it on the end delimiter and on the word itself."""
        n = len(self.arcs)
        weights = torch.full((4, n + 2, n + 2), 0.001)
        weights[:, :, n + 1] = 0.4
        weights[:, n + 1] = 0.4
        weights[:, range(n + 2), range(n + 2)] = 0.3
        for head, looks in enumerate(self.looks):
            for look in looks.split():
                start, end = map(int, look.split(">"))
                weights[head, start, end] = 0.2
        return weights.view(2, 2, n + 2, n + 2)


DEV = (
    Drawn("the→2/det dog→3/nsubj barks→0/root", ("1>2 2>3 3>2", "2>3", "2>1", "")),
    Drawn(
        "a→2/det cat→3/nsubj sees→0/root the→5/det dog→3/obj .→3/punct",
        ("1>2 2>3 3>4 4>3 5>6 6>5", "2>3 5>3 6>3", "2>1 5>4", ""),
    ),
)
TEST = (
    Drawn(
        "dogs→2/nsubj see→0/root the→5/det old→5/amod cat→2/obj",
        ("1>2 2>3 3>4 4>5 5>4", "1>3 5>2", "5>3", ""),
    ),
    Drawn("he→2/nsubj runs→0/root", ("1>2 2>1", "", "", "")),
    Drawn("Go→0/root", ("", "", "", "")),
)


def predictions(sentences: tuple[Drawn, ...]) -> Predictions:
    """All sentences in one batch, padded, through the kernel."""
    lengths = [len(sentence.arcs) for sentence in sentences]
    size = max(lengths) + 2
    attention = torch.zeros(len(sentences), 2, 2, size, size)
    for row, (sentence, n) in enumerate(zip(sentences, lengths, strict=True)):
        attention[row, ..., : n + 2, : n + 2] = sentence.attention
    found = most_attended(attention, torch.tensor(lengths)).flatten(2).numpy()
    predicted = np.concatenate([found[row, :n] for row, n in enumerate(lengths)])
    return Predictions(arcs_of(sentences, RELATIONS), RELATIONS, predicted)


def arcs_of(sentences: tuple[Drawn, ...], known: tuple[str, ...]) -> Arcs:
    relations = [[known.index(relation) for _, relation in sentence.arcs] for sentence in sentences]
    punctuation = [[relation == "punct" for _, relation in sentence.arcs] for sentence in sentences]
    heads = [[head for head, _ in sentence.arcs] for sentence in sentences]
    return arcs(heads, relations=relations, punctuation=punctuation)


FORTH, BACK = DIRECTIONS
NAN = float("nan")
COLUMNS = "relation n head direction dev test low high offset best_offset random_init p"
GROUPS = ("all", "all (no punctuation)", "root", "nsubj", "amod", "det", "obj")
"""Of test, the most frequent relations first."""


def chosen(sentences: tuple[Drawn, ...] = TEST) -> ChosenHeads:
    dev = predictions(DEV)
    return ChosenHeads(dev, dev if sentences is DEV else predictions(sentences), NAMES, seed=7)


def best(sentences: tuple[Drawn, ...] = TEST, random_init: ChosenHeads | None = None) -> pd.DataFrame:
    return chosen(sentences).best_heads(random_init, permutations=19).frame


def roles(sentences: tuple[Drawn, ...], minimum: int) -> tuple[Table, dict[str, Estimate]]:
    drawn = predictions(sentences)
    return ChosenHeads(drawn, drawn, NAMES).roles(np.zeros((2, 2)), minimum)


def names(table: pd.DataFrame) -> str:
    return " ".join(map(str, table))


def rows(table: pd.DataFrame, columns: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in table[columns.split()].itertuples(index=False)]


def test_the_best_heads_by_hand() -> None:
    table = best()
    assert names(table) == COLUMNS
    # On dev 1-2 finds dog and sees twice each way to their verb, the full stop, and as first words both determiners;
    # 1-1 has both subjects and as many determiners, and is the first of equals for nsubj; of roots no head has any.
    # No amod stands in dev: the best head of all words must do.
    assert rows(table, "relation n head direction") == [
        ("all", 8, "1-2", FORTH),
        ("all (no punctuation)", 8, "1-2", FORTH),
        ("root", 3, "1-1", FORTH),
        ("nsubj", 2, "1-1", FORTH),
        ("amod", 1, "1-2", FORTH),
        ("det", 1, "2-1", BACK),
        ("obj", 1, "1-2", FORTH),
    ]
    np.testing.assert_array_equal(table["dev"], [6 / 9, 5 / 8, 0, 1, NAN, 1, 1])
    # On test 1-2 is right about cat and, as there is but one other word, about he.
    np.testing.assert_array_equal(table["test"], [2 / 8, 2 / 8, 0, 1, 0, 1, 1])
    # Chosen on dev: an object stands two behind its verb there, and three behind on test.
    assert table["best_offset"].tolist() == [1, 1, 1, 1, 1, 1, -2]
    assert table["offset"].tolist() == [3 / 8, 3 / 8, 0, 1, 1, 0, 0]


def test_in_paper_mode_all_is_dev() -> None:
    table = best(DEV)
    assert table["offset"].tolist() == [5 / 9, 5 / 8, 1, 1, 0, 1, 1]
    assert table["best_offset"].tolist() == [1, 1, 1, 1, 1, -2, -3]
    assert (table["low"][0], table["high"][0]) == bootstrap_ratio([2, 4], [3, 6], seed=7).interval


def test_intervals_are_over_sentences() -> None:
    table = best()
    # Right words and all words of the three sentences.
    by_hand = {"all": ([1, 1, 0], [5, 2, 1]), "root": ([0, 0, 0], [1, 1, 1]), "det": ([1, 0, 0], [1, 0, 0])}
    for relation, low, high in rows(table[table["relation"].isin(by_hand)], "relation low high"):
        expected = bootstrap_ratio(*by_hand[str(relation)], seed=7)
        np.testing.assert_array_equal([low, high], expected.interval)
    assert table["low"].isna().tolist() == [False] * 4 + [True] * 3  # a single sentence has no spread


def test_p_is_that_of_what_was_reached_on_the_scored_split() -> None:
    table, test = best(), predictions(TEST)
    expected = permutation_p(test.arcs, test.predicted, test.groups, [2, 2, 0, 2, 0, 1, 1], permutations=19, seed=7)
    np.testing.assert_array_equal(table["p"], expected)
    assert np.isnan(table["p"][2])  # no root is ever found, and none is anywhere else


def test_roles_know_positional_and_syntactic_heads() -> None:
    # All words hang on the first, whom no offset finds often, and all the heads that look nowhere in particular; 2-2
    # looks back by one, nine times of ten.
    back = " ".join(f"{word}>{word - 1}" for word in range(2, 11))
    drawn = (
        Drawn("x→0/root y→1/obj " + "z→1/amod " * 8, ("", "", "", f"{back} 1>2")),
        Drawn("x→0/root z→1/det y→1/obj " + "z→1/amod " * 7, ("", "", "", f"{back} 1>2")),
    )
    table, shares = roles(drawn, minimum=3)
    columns = "head offset offset_share positional relation margin syntactic"
    found = {head: rest for head, *rest in rows(table.frame, columns)}
    # Of fifteen of them two are three words behind the first word: no offset finds more.
    assert found["1-2"] == [-9, 0.1, False, "amod", pytest.approx(1 - 2 / 15), True]
    by_head = table.frame.set_index("head")
    assert [by_head["accuracy"]["1-2"], by_head["fixed_offset"]["1-2"]] == [1.0, pytest.approx(2 / 15)]
    # Nobody looks back at the last word of either sentence, which so has its head from 2-2, the other way round.
    assert found["2-2"] == [-1, 0.9, True, "amod", 0, False]
    assert (shares["positional_heads"].value, shares["syntactic_heads"].value) == (0.25, 0.75)
    # Punctuation is no relation that makes a head syntactic, and neither is the arc to ROOT.
    marks = tuple(Drawn(one.words.replace("/amod", "/punct"), one.looks) for one in drawn)
    table, shares = roles(marks, minimum=2)
    assert set(table.frame["relation"]) == {"obj"}
    # With a higher minimum no relation is left, and no head is syntactic.
    table, shares = roles(drawn, minimum=99)
    assert table.frame["margin"].isna().all()
    assert shares["syntactic_heads"].value == 0


def test_heads_are_named_from_one_and_after_the_encoder() -> None:
    names = Names((1, 4), (0, 2, 5))
    assert [names.head(index) for index in range(6)] == ["2-1", "2-3", "2-6", "5-1", "5-3", "5-6"]
    assert len(names) == 6
    assert [names.place(names.head(index)) for index in range(6)] == list(product(range(2), range(3)))
    assert names.split(8) == (1, 2)


def test_bars_show_what_was_scored_beside_its_controls() -> None:
    table = best()
    bars = best_bars(chosen().best_heads(None, permutations=19))
    # Without root, which nothing ever finds; no head finds amod either, but an offset does.
    assert bars.categories[2:] == ("nsubj 1-1", "amod 1-2", "det 2-1", "obj 1-2")
    table = table[table["relation"] != "root"]
    assert list(bars.series) == ["best head", "best fixed offset"]
    assert bars.series["best head"] == table["test"].tolist()
    assert bars.series["best fixed offset"] == table["offset"].tolist()
    np.testing.assert_array_equal(bars.intervals["best head"], [table["low"], table["high"]])
    table = best(DEV, chosen(DEV))  # paper mode
    bars = best_bars(chosen(DEV).best_heads(chosen(DEV), permutations=19))
    assert list(bars.series) == ["best head", "best fixed offset", "best head, random weights"]
    expected = table[table["relation"] != "root"]["dev"].tolist()
    assert bars.series["best head"] == bars.series["best head, random weights"] == expected


# Offsets and baselines beside a probe

KNOWN = ("det", "nsubj", "punct", "root")


def words(*sentences: str) -> Arcs:
    return arcs_of(tuple(Drawn(sentence, ("", "", "", "")) for sentence in sentences), KNOWN)


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
    assert cells(table, "nsubj", ["probe", "low", "high"]) == [1, 1, 1]


def test_baselines_by_hand() -> None:
    found = baseline_scores(NEAR_DEV, NEAR_TEST, len(KNOWN))
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


def test_uniform_attention_on_test_without_a_window_is_over_every_word() -> None:
    """Sentences of one split alone may be longer than the window of the layers."""
    near = np.stack([np.maximum(NEAR_DEV.word - 1, 1), np.minimum(NEAR_DEV.word + 1, NEAR_DEV.length)], -1)
    whole = np.stack([np.ones_like(NEAR_DEV.word), NEAR_DEV.length], -1)
    dev = replace(NEAR_DEV, reach=np.stack([whole, near], 1))
    found, plain = (baseline_scores(one, NEAR_TEST, len(KNOWN)) for one in (dev, NEAR_DEV))
    assert uniform_attached(dev)[:, ~dev.punctuation].sum(1).argmax() > 0
    assert found["uniform.uas"] == plain["uniform.uas"]
