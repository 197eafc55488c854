"""The best head of each relation, of few words and in a sentence."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from attention_probing.measures.best_heads import ChosenHeads, above_offset, heads_answer, note_on_p
from attention_probing.metrics import p_values
from attention_probing.metrics.attachment import Arcs
from attention_probing.metrics.heads import Predictions
from attention_probing.results import Estimate, Table, Unit
from attention_probing.results.heads import HeadNames
from tests.measures.intervals import interval_by_hand, p_at, signed_interval_by_hand, sums_of_subsets
from tests.resampled import choose_by_hand


def of_few(differences: list[int]) -> ChosenHeads:
    """Sentences of three words, in which the head finds as much more of the relation than the offset −1 does.

    The first word is ROOT, the second has no other head than the first, and the third has the first or the second one.
    """
    count = len(differences)
    sentence, word = np.repeat(np.arange(count), 3), np.tile([1, 2, 3], count)
    heads = [[0, 1, 2 if more <= 0 else 1] for more in differences]
    found = [[2, 1, {-1: 1, 0: 2, 1: 1}[more]] for more in differences]
    relation, nothing = np.tile([0, 1, 2], count), np.zeros(3 * count, np.bool_)
    gold = Arcs(sentence, word, np.full(3 * count, 3), np.concatenate(heads), relation, nothing)
    predicted = np.stack([np.concatenate(found), np.full(3 * count, -1)], axis=1)
    both = Predictions(gold, ["root", "first", "last"], predicted)
    return ChosenHeads(both, replace(both), HeadNames((0,), (0,)))


@pytest.mark.parametrize("differences", [[0] * 6, [0] * 5 + [1], [0] * 4 + [1, 1], [-1] + [0] * 5, [0] * 30])
def test_differences_of_few_words_have_the_wider_of_two_intervals(differences: list[int]) -> None:
    chosen = of_few(differences)
    [row] = chosen.best_heads(None, 9).frame.query("relation == 'last'").to_dict("records")
    assert (row["head"], row["best_offset"], row["n"]) == ("1-1", -1, len(differences))
    assert row["over_offset"] == pytest.approx(np.mean(differences))
    low, high = signed_interval_by_hand(differences)
    if len(differences) <= 12:
        draws = sums_of_subsets(differences, [1] * len(differences))
        assert row["p_offset"] == pytest.approx(p_at(0, draws))
        of_subsets = interval_by_hand(draws)
        low, high = np.fmin(low, of_subsets[0]), np.fmax(high, of_subsets[1])
    else:
        assert row["p_offset"] == 1
    assert (row["over_offset.low"], row["over_offset.high"]) == pytest.approx((low, high))
    if len(differences) < 20:  # the accuracy itself is a share of few words
        assert row["low"] < row["test"] - 0.1


@pytest.mark.parametrize(("most_cells", "draws"), [(30 * 2000, 2000), (1, 1000), (1 << 28, 3000)])
def test_a_test_draws_no_more_than_fits_into_memory(
    most_cells: int, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(p_values, "_MOST_CELLS", most_cells)
    chosen = ChosenHeads(of_few([0] * 30).scored, of_few([1] * 30).scored, HeadNames((0,), (0,)))
    [row] = chosen.best_heads(None, 3000).frame.query("relation == 'last'").to_dict("records")
    assert row["p_offset"] == pytest.approx(2 / (1 + draws))


def test_sentences_of_a_document_are_one_unit() -> None:
    chosen = ChosenHeads(of_few([0] * 12).scored, of_few([1] * 12).scored, HeadNames((0,), (0,)))
    documents = np.repeat(np.arange(12) // 2, 3)
    scored = replace(chosen.scored, arcs=replace(chosen.scored.arcs, document=documents))
    alone, together = (
        replace(chosen, scored=one).best_heads(None, 9).frame.set_index("relation").loc["last"]
        for one in (chosen.scored, scored)
    )
    assert alone["p_offset"] == 2 / 2**12
    assert together["p_offset"] == 2 / 2**6
    assert alone["n"] == together["n"] == 12


def test_a_relation_whose_words_all_depend_on_root_has_no_row() -> None:
    """`first` depends on a word but for one sentence, where it depends on ROOT and `root` does not."""
    chosen = of_few([0] * 6)
    assert "root" not in set(chosen.best_heads(None, 9).frame["relation"])
    heads = chosen.scored.arcs.head.copy()
    heads[:2] = [2, 0]
    scored = replace(chosen.scored, arcs=replace(chosen.scored.arcs, head=heads))
    frame = replace(chosen, scored=scored).best_heads(None, 9).frame.set_index("relation")
    assert frame.loc[["root", "first"], "n"].tolist() == [6, 6]
    # The head finds the one word of `root` that has a governor, and five of six words of `first`.
    assert frame.loc[["root", "first"], "test"].tolist() == pytest.approx([1 / 6, 5 / 6])


def test_without_a_word_but_punctuation_in_dev_no_head_is_chosen_for_plain_words() -> None:
    scored = of_few([0, 1, 1]).scored
    everywhere = np.ones(len(scored.arcs), np.bool_)
    dev = replace(scored, arcs=replace(scored.arcs, punctuation=everywhere))
    frame = ChosenHeads(dev, scored, HeadNames((0,), (0,))).best_heads(None, 9).frame.set_index("relation")
    assert frame.loc["all (no punctuation)"].drop(["n", "n_dev"]).isna().all()
    assert frame.loc["all", "head"] == "1-1"


def test_without_a_word_in_dev_no_head_is_chosen() -> None:
    scored = of_few([0, 1, 1]).scored
    dev = replace(scored, arcs=replace(scored.arcs, relation=np.minimum(scored.arcs.relation, 1)))
    chosen = ChosenHeads(dev, scored, HeadNames((0,), (0,)))
    frame = chosen.best_heads(None, 9).frame.set_index("relation")
    unseen = frame.loc[["last"]]
    assert unseen.drop(columns=["n", "n_dev"]).isna().all(axis=None)
    assert unseen[["n", "n_dev"]].to_numpy().tolist() == [[3, 0]]
    assert frame.drop("last")[["head", "test", "best_offset", "p_offset"]].notna().all(axis=None)
    items, _ = chosen.by_sentence(["first", "last"])
    assert items.sum()[["first.found", "first.words", "last.found", "last.words"]].tolist() == [3, 3, 0, 0]
    assert "last" not in set(chosen.by_length().frame["relation"])
    every = chosen.all_heads().frame
    assert every.loc[every["relation"] == "last", "dev"].isna().all()


def test_of_another_language_heads_are_compared_with_its_own_best_offset() -> None:
    """In dev the governor of `last` is the word before; in the language of test it is the word before that."""
    dev, scored = of_few([0] * 8), of_few([1] * 8)
    plain = ChosenHeads(dev.scored, scored.scored, HeadNames((0,), (0,)))
    abroad = replace(plain, transferred=True)
    rows = [one.best_heads(None, 9).frame.set_index("relation").loc["last"] for one in (plain, abroad)]
    for row in rows:
        assert (row["offset"], row["best_offset"], row["test"]) == (0, -1, 1)
    assert "own_offset" not in rows[0]
    assert (rows[0]["over_offset"], rows[0]["p_offset"]) == (1, 2 / 2**8)
    assert (rows[1]["own_offset"], rows[1]["best_own_offset"]) == (1, -2)
    assert (rows[1]["over_offset"], rows[1]["p_offset"]) == (0, 1)
    assert rows[1]["dev_gap"] == rows[0]["dev_gap"] == 0


def best_of(split: str, **changed: object) -> Table:
    """The table `best_heads` of words, a frequent relation, and one of 19 words."""
    columns: dict[str, object] = {
        "relation": ["all", "all (no punctuation)", "det", "obj", "dep"],
        "n": [1300, 1241, 241, 20, 19],
        "n_dev": [1300, 1241, 240, 20, 19],
        "dev_gap": [0.1, 0.1, 0.3, 0.2, 0.9],
        "head": ["3-2", "3-2", "3-9", "3-1", "1-1"],
        split: [0.4, 0.409, 0.705, 0.5, 1.0],
        "low": [0.3, 0.402, 0.65, 0.4, 0.9],
        "high": [0.5, 0.415, 0.761, 0.6, 1.0],
        "offset": [0.3, 0.309, 0.357, 0.4, 0.0],
        "over_offset": [0.1, 0.1, 0.348, 0.1, 1.0],
        "over_offset.low": [0.1, 0.093, 0.28, -0.1, 0.9],
        "over_offset.high": [0.1, 0.107, 0.41, 0.3, 1.0],
        "random_init": [0.1, 0.094, 0.1, 0.1, 0.1],
        "p_offset": [0.0004, 0.0004, 0.0004, 0.25, 0.0004],
        "p_holm": [0.0004, 0.0004, 0.0098, 0.25, 0.0004],
        "chosen": pd.array([100, 100, 50, 1, None], dtype="Int64"),
    }
    names = (split, "offset", "own_offset", "over_offset", "random_init", "dev_gap")
    units: dict[str, Unit] = {name: "fraction" for name in names if name in columns | changed}
    return Table(pd.DataFrame(columns | changed), {**units, "p_offset": "p", "p_holm": "p"}, split)


WORDS = (
    "head 3-2 finds the governors of 40.9 % [40.2, 41.5] of 1,241 words, the best fixed offset 30.9 % (+10.0 points "
    "[9.3, 10.7], p < .001)"
)


def test_the_answer_is_of_all_words_and_of_the_relation_with_the_widest_gap() -> None:
    assert heads_answer(best_of("test")) == (
        f"Chosen on dev, {WORDS}; the best head with untrained layers 9.4 %. In 1 of 2 relations heads beat the offset "
        "(p < .05 after Holm over 5 rows, n ≥ 20); the widest gap on dev is in `det`: head 3-9 finds 70.5 % "
        "[65.0, 76.1] of 241 words, the best fixed offset 35.7 % (+34.8 points [28.0, 41.0], p = .0098)."
    )
    few = best_of("test", n=[19] * 5)
    assert heads_answer(few).endswith(
        " of 19 words, the best fixed offset 30.9 % (+10.0 points [9.3, 10.7], p < .001); "
        "the best head with untrained layers 9.4 %."
    )


def test_a_head_that_is_significantly_worse_than_the_offset_is_not_counted() -> None:
    table = best_of("test")
    scores, finding = above_offset(table, ())
    assert scores == {"heads.above_offset": Estimate(1, unit="count")}
    assert finding.score == "heads.above_offset"
    assert finding.words.endswith(", of 2")
    assert note_on_p(table.frame) == ""

    worse = best_of("test", over_offset=[0.1, 0.1, -0.3, 0.1, -0.2], p_holm=[0.04, 0.06, 0.01, 0.01, 0.04])
    scores, _ = above_offset(worse, ())
    assert scores["heads.above_offset"].value == 1
    assert note_on_p(worse.frame) == "p_holm is two-sided: of 4 below .05, 2 are of heads below the offset."
    assert above_offset(worse, ("obj",))[0]["heads.above_offset"].value == 0
    assert above_offset(worse, ("obj", "det"))[1].score == "heads.uas"


def test_a_head_that_another_sample_would_replace_is_said_to_be_one() -> None:
    answer = heads_answer(best_of("test", chosen=[100, 38, 49, 100, 100]))
    assert "Chosen on dev, head 3-2 (chosen again in 38 of 100 resamples of dev) finds the governors of" in answer
    assert "in `det`: head 3-9 (chosen again in 49 of 100 resamples of dev) finds 70.5 %" in answer


def dev_of(hits: list[tuple[int, int]], documents: list[int] | None = None) -> ChosenHeads:
    """Sentences of two words; in each, two heads find the governor of the second word, or do not."""
    count = len(hits)
    found = [[(-1, -1), (first or -1, second or -1)] for first, second in hits]
    document = None if documents is None else np.repeat(documents, 2)
    arcs = Arcs(
        np.repeat(np.arange(count), 2),
        np.tile([1, 2], count),
        np.full(2 * count, 2),
        np.tile([0, 1], count),
        np.tile([0, 1], count),
        np.zeros(2 * count, np.bool_),
        document,
    )
    # Two heads in two directions; the second direction finds nothing.
    predicted = np.concatenate([np.reshape(found, (-1, 2)), np.full((2 * count, 2), -1)], axis=1)
    predictions = Predictions(arcs, ["root", "r"], predicted)
    return ChosenHeads(predictions, replace(predictions), HeadNames((0,), (0, 1)), seed=5)


@pytest.mark.parametrize("documents", [None, [0, 1, 0, 2, 2, 3, 1, 4]])
def test_heads_are_chosen_again_on_resampled_documents_or_sentences(documents: list[int] | None) -> None:
    hits = [(1, 0), (0, 1), (1, 0), (0, 1), (1, 1), (1, 0), (0, 1), (0, 0)]
    units = documents or list(range(len(hits)))
    found = np.zeros((max(units) + 1, 4))
    counted = np.zeros((max(units) + 1, 4))
    for unit, pair in zip(units, hits, strict=True):
        found[unit, :2] += pair
        counted[unit] += 1
    times, _, _ = choose_by_hand(found.tolist(), counted.tolist(), seed=5)
    assert 0 < times[1] < 100  # head 1-1 is the best on dev, or the first of equals
    row = dev_of(hits, documents).best_heads(None, 9).frame.set_index("relation").loc["r"]
    assert (row["head"], row["chosen"]) == ("1-1", times[0])
    assert row["rivals"] == f"1-2→ {times[1]}"


def test_of_one_document_no_head_can_be_chosen_again() -> None:
    frame = dev_of([(1, 0), (0, 1), (1, 1)], [0, 0, 0]).best_heads(None, 9).frame
    assert frame[["chosen", "rivals"]].isna().all(axis=None)
    assert frame["head"].notna().all()


def test_the_best_head_with_random_weights_is_chosen_again_too() -> None:
    """A head that always finds the governor is as stable with random weights: stability alone says nothing."""
    random = dev_of([(0, 1)] * 6)
    plain = dev_of([(1, 0)] * 3 + [(0, 1)] * 3)
    [row] = plain.best_heads(random, 9).frame.query("relation == 'r'").to_dict("records")
    assert row["random_init_chosen"] == 100
    assert row["chosen"] < 100
    assert "random_init_chosen" not in plain.best_heads(None, 9).frame


@pytest.mark.parametrize(
    ("changed", "count"),
    [
        pytest.param({"n_dev": [1300, 1241, 19, 20, 20]}, 1, id="few words in dev"),
        pytest.param({"dev_gap": [0.1, 0.1, 0.3, 0.3, 0.0]}, 1, id="a tie on dev"),
        pytest.param({"dev_gap": [0.1, 0.1, -0.1, -0.2, 0.0]}, 1, id="no gap on dev"),
        pytest.param({"dev_gap": [0.1, 0.1, 0.0, -0.2, 0.0]}, 1, id="a gap of nothing on dev"),
        pytest.param({"dev_gap": [0.1, 0.1, 0.2, 0.3, 0.0]}, 1, id="the widest on dev is not significant on test"),
        pytest.param({"over_offset": [0.1, 0.1, -0.3, 0.1, 0.0]}, 0, id="significantly below"),
    ],
)
def test_no_relation_is_named_that_is_not_clearly_ahead(changed: dict[str, object], count: int) -> None:
    heads = "heads" if count else "do heads"
    assert heads_answer(best_of("test", **changed)).endswith(
        f"In {count or 'none'} of 2 relations {heads} beat the offset (p < .05 after Holm over 5 rows, n ≥ 20)."
    )


@pytest.mark.parametrize(("over_offset", "does"), [(0.3, "beats"), (-0.3, "does not beat")])
def test_of_one_relation_the_answer_is_in_plain_words(over_offset: float, does: str) -> None:
    best = best_of("test", n=[1300, 1241, 241, 19, 19], over_offset=[0.1, 0.1, over_offset, 0.1, 0.0])
    relation = best.frame["relation"][2]
    assert heads_answer(best).endswith(
        f"The head of `{relation}`, the only relation that counts, {does} the offset (p < .05 after Holm over 5 rows, "
        "n ≥ 20)."
    )


def test_where_dev_is_scored_no_relation_is_named() -> None:
    nothing = dict.fromkeys(("low", "high", "over_offset.low", "over_offset.high", "random_init"), np.nan)
    assert heads_answer(best_of("dev", **nothing)) == (
        "Chosen and scored on dev, head 3-2 finds the governors of 40.9 % of 1,241 words, the best fixed offset 30.9 % "
        "(+10.0 points, p < .001 one-sided). In 1 of 2 relations heads beat the offset (p < .05 after Holm over 5 "
        "rows, n ≥ 20)."
    )


def test_of_another_language_the_answer_has_its_own_best_offset() -> None:
    answer = heads_answer(best_of("test", own_offset=[0.2, 0.35, 0.4, 0.4, 0.1]))
    assert "of 1,241 words, the best fixed offset of the target language 35.0 % (" in answer
    assert "of 241 words, the best fixed offset of the target language 40.0 % (" in answer
    assert "30.9" not in answer
