from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from attention_probing.corpora.conllu import read_treebank
from attention_probing.metrics.attachment import (
    LONGEST_SENTENCE,
    OFFSETS,
    Arcs,
    add_arcs,
    attached,
    attachment_scores,
    best_offsets,
    compare_found,
    count_found,
    count_gains,
    count_units,
    edges_found,
    found_shares,
    left_branching,
    offset_heads,
    relation_accuracies,
    right_branching,
    sentence_scores,
    sums_by,
    take_arcs,
    uniform_attached,
    uniform_edges_found,
)
from attention_probing.metrics.bootstrap import bootstrap_ratio
from attention_probing.metrics.differences import paired_bootstrap
from attention_probing.metrics.rows import Rows
from attention_probing.results import Flags, Floats, Integers, numbers
from tests.metrics.samples import arcs, column, padded_batch, random_arcs, random_predictions

NAN = float("nan")

# the  dog  barked  loudly  .
DOG = arcs([[2, 3, 0, 3, 3]], punctuation=[[False, False, False, False, True]])


def slow_edges_found(arcs: Arcs, predicted: Integers) -> list[float]:
    """Undirected edges as sets of two words, sentence by sentence."""
    found = []
    for row in range(len(arcs)):
        same = [other for other in range(len(arcs)) if arcs.sentence[other] == arcs.sentence[row]]
        drawn = {
            frozenset((int(arcs.word[other]), int(predicted[other])))
            for other in same
            if not arcs.punctuation[other]
            and 1 <= predicted[other] <= len(same)
            and predicted[other] != arcs.word[other]
        }
        if arcs.head[row] == 0 or arcs.punctuation[row]:
            found.append(NAN)
        else:
            found.append(float(frozenset((int(arcs.word[row]), int(arcs.head[row]))) in drawn))
    return found


class TestArcs:
    @pytest.mark.parametrize(
        ("name", "values", "message"),
        [
            ("word", [2, 1, 3, 4, 5], "row 1 is word 2"),
            ("word", [1, 2, 3, 4, 4], "row 5 is word 4"),
            ("length", [6, 6, 6, 6, 6], "sentence 0 must be words 1…6, one row each in order; there are 5 rows"),
            ("sentence", [0, 0, 0, 0, 1], "sentence 0 must be words 1…5, one row each in order; there are 4 rows"),
            ("sentence", [1, 1, 1, 0, 0], "not sorted"),
            (
                "head",
                [2, 3, 0, 6, 3],
                r"word 4 of sentence 0 \(5 words\) has the gold head 6, but a head must be from 0 \(ROOT\) to 5",
            ),
            ("head", [2, 3, 0, -1, 3], "has the gold head -1"),
        ],
    )
    def test_columns_that_are_not_whole_sentences_are_refused(self, name: str, values: list[int], message: str) -> None:
        columns = {field.name: getattr(DOG, field.name) for field in fields(Arcs)}
        with pytest.raises(ValueError, match=message):
            Arcs(**(columns | {name: np.array(values)}))


class TestFormulas:
    @pytest.mark.parametrize("seed", range(3))
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
        draws = 1500
        heads, edges = np.zeros(len(gold)), np.zeros(len(gold))
        for _ in range(draws):
            # One of n places: the n − 1 other words and ROOT, which stands for the word itself.
            place = rng.integers(1, gold.length + 1)
            predicted = np.where(place == gold.word, 0, place)
            heads += attached(gold, predicted)
            edges += edges_found(gold, predicted)
        tolerance = 4.5 * 0.5 / np.sqrt(draws)
        np.testing.assert_allclose(heads / draws, uniform_attached(gold)[0], atol=tolerance)
        np.testing.assert_allclose(edges / draws, uniform_edges_found(gold)[0], atol=tolerance)

    def test_uniform_draws_and_offsets_keep_to_what_heads_may_attend_to(self) -> None:
        gold = random_arcs(30, seed=4)
        random = np.random.default_rng(5)
        back, ahead = random.integers(0, 4, (2, len(gold), 2))  # two masks
        first = np.maximum(gold.word[:, None] - back, 1)
        last = np.minimum(gold.word[:, None] + ahead, gold.length[:, None])
        bounded = replace(gold, reach=np.stack([first, last], -1))

        def draws(row: int, mask: int, back: bool) -> set[int]:
            """Rows that a word may draw, itself standing for ROOT."""
            same = np.flatnonzero(gold.sentence == gold.sentence[row]).tolist()
            pairs = [(other, row) if back else (row, other) for other in same]
            seen = [first[i, mask] <= gold.word[j] <= last[i, mask] for i, j in pairs]
            return {other for other, found in zip(same, seen, strict=True) if found}

        ways = [(0, False), (1, False), (0, True), (1, True)]
        own, edges = uniform_attached(bounded), uniform_edges_found(bounded)
        for way, row in product(range(4), range(len(gold))):
            head = row if gold.head[row] == 0 else row + int(gold.head[row] - gold.word[row])
            drawn = (head, draws(row, *ways[way])), (row, draws(head, *ways[way]))
            chances = [(end in found) / len(found) for end, found in drawn]
            assert own[way, row] == pytest.approx(chances[0])
            missed = 1 - chances[0]
            if not gold.punctuation[head]:
                missed *= 1 - chances[1]
            scored = gold.head[row] and not gold.punctuation[row] and head != row
            assert edges[way, row] == pytest.approx(1 - missed if scored else NAN, nan_ok=True)
        for k, row in product((-3, -1, 2), range(len(gold))):
            found = offset_heads(gold, k)[row]
            seen = found > 0 and any(row + k in draws(row, *way) for way in ways)
            assert offset_heads(bounded, k)[row] == (found if seen else -1)
        whole = np.stack([np.ones_like(gold.word), gold.length], -1)[:, None]
        everything = replace(gold, reach=whole)
        for formula in (uniform_attached, uniform_edges_found):
            np.testing.assert_array_equal(formula(everything), np.concatenate([formula(gold)] * 2))


class TestBaselines:
    def test_offsets_are_not_clipped_and_chains_end_at_root(self) -> None:
        gold = arcs([[2, 3, 0], [0]])
        assert right_branching(gold).tolist() == [2, 3, 0, 0]
        assert left_branching(gold).tolist() == [0, 1, 2, 0]
        assert offset_heads(gold, 1).tolist() == [2, 3, -1, -1]
        # Position 0 is ROOT, which no offset may hit.
        assert offset_heads(gold, -1).tolist() == [-1, 1, 2, -1]
        assert offset_heads(gold, -3).tolist() == [-1, -1, -1, -1]

    @pytest.mark.parametrize("seed", range(5))
    def test_best_offsets_equal_counting(self, seed: int) -> None:
        gold = random_arcs(20, seed, relations=9)
        hits = {k: gold.head == gold.word + k for k in OFFSETS}

        def best(among: np.ndarray) -> int:
            return max(OFFSETS, key=lambda k: ((hits[k] & (gold.head > 0) & among).sum(), -abs(k), k))

        overall, per_relation = best_offsets(gold, 11)
        assert overall == best(~gold.punctuation)
        assert per_relation.tolist() == [best(gold.relation == r) for r in range(9)] + [overall] * 2


LABELS = ("root", "det", "nsubj", "punct", "iobj")

# the dog barked . / she left
GOLD = arcs(
    [[2, 3, 0, 3], [2, 0]],
    relations=[[1, 2, 0, 3], [2, 0]],
    punctuation=[[False, False, False, True], [False, False]],
    sentences=[4, 9],
)
PREDICTED = column([[2, 1, 0, 3], [0, 1]])


def over_units(gold: Arcs, values: Floats, scored: Flags, seed: int) -> list[float]:
    """Mean of the values of the scored words, and the ends of its interval over documents, or sentences if none."""
    assert gold.document is not None
    of_units = gold.sentence if gold.document[0] < 0 else gold.document
    words = [scored & (of_units == unit) for unit in sorted(set(of_units.tolist()))]
    found = [float(values[of].sum()) for of in words], [int(of.sum()) for of in words]
    return [float(values[scored].mean()), *bootstrap_ratio(*found, share=True, seed=seed).interval]


class TestAttachmentScores:
    def test_nothing_to_score_is_nan(self) -> None:
        gold = arcs([[0]], punctuation=[[True]])
        scores = attachment_scores(gold, attached(gold, gold.head), edges_found(gold, gold.head))
        assert scores.pop("uas_with_punctuation").value == 1.0
        assert np.isnan(list(numbers(scores).values())).all()
        empty = arcs([])
        table = relation_accuracies(empty, np.zeros(0), LABELS)
        assert table["n"].tolist() == [0, 0]
        assert table["accuracy"].isna().all()
        assert np.isnan(list(numbers(attachment_scores(empty, np.zeros(0), np.zeros(0))).values())).all()


class TestRelationAccuracies:
    @pytest.mark.parametrize("documents", [0, 25])
    def test_against_a_loop(self, documents: int) -> None:
        gold = random_arcs(80, seed=2, relations=4, documents=documents)
        [right] = uniform_attached(gold)
        table = relation_accuracies(gold, right, LABELS, seed=3)
        for index, label in enumerate(LABELS[:4]):
            of = gold.relation == index
            row = table[table["relation"] == label][["n", "accuracy", "low", "high"]].to_numpy()
            np.testing.assert_allclose(row, [[of.sum(), *over_units(gold, right, of, seed=3)]])
        assert table["n"].iloc[2:].is_monotonic_decreasing
        assert table["n"].tolist()[:2] == [len(gold), (~gold.punctuation).sum()]


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


def test_sentences_have_the_number_of_their_document_only_if_all_are_marked() -> None:
    marked = replace(GOLD, document=np.array([7, 7, 7, 7, 3, 3]))
    table = sentence_scores(marked, attached(GOLD, PREDICTED), edges_found(GOLD, PREDICTED))
    assert list(table)[:2] == ["document", "sentence"]
    assert table["document"].tolist() == [7, 3]
    for document in (None, np.full(6, -1), np.array([-1, -1, -1, -1, 0, 0])):
        gold = replace(GOLD, document=document)
        assert "document" not in sentence_scores(gold, attached(GOLD, PREDICTED), edges_found(GOLD, PREDICTED))
        assert gold.units.tolist() == [0, 1]
        assert gold.units_of_words.tolist() == [0, 0, 0, 0, 1, 1]


def test_intervals_of_attachment_are_over_documents() -> None:
    gold = random_arcs(60, seed=5, documents=20)
    assert gold.document is not None
    heads = np.where(np.random.default_rng(0).random(len(gold)) < 0.6, gold.head, -1)
    right, plain = attached(gold, heads), ~gold.punctuation
    scores = attachment_scores(gold, right, edges_found(gold, heads), seed=3)
    uas = scores["uas"]
    assert [uas.value, *uas.interval] == over_units(gold, right, plain, 3)
    assert uas.interval != tuple(over_units(replace(gold, document=np.full(len(gold), -1)), right, plain, 3)[1:])
    # Sums by unit are those of a dictionary.
    sums = dict.fromkeys(sorted(set(gold.document.tolist())), 0.0)
    for document, value in zip(gold.document.tolist(), right.tolist(), strict=True):
        sums[document] += value
    assert count_units(gold, right).tolist() == list(sums.values())
    names = np.array([f"d{9 - document % 10}" for document in gold.document])
    of_names = sums_by(names, right[:, None])[:, 0]
    assert of_names.tolist() == [right[names == name].sum() for name in sorted(set(names.tolist()))]
    assert sums_by(np.zeros(0), np.zeros((0, 2))).shape == (0, 2)


@pytest.mark.parametrize("documents", [0, 25])
def test_differences_from_a_baseline_are_paired_over_units(documents: int) -> None:
    gold = random_arcs(80, seed=2, relations=4, documents=documents)
    random = np.random.default_rng(1)
    found = [random.random(len(gold)) < 0.5, random.random(len(gold)) < 0.3]
    by_baseline = [random.random(len(gold)) < 0.4, random.random(len(gold)) < 0.3]
    words = [gold.relation == 1, ~gold.punctuation]
    share = found_shares(gold, found, words, seed=3)
    difference = compare_found(gold, found, by_baseline, words, draws=300, seed=3)
    assert difference.p is not None
    for place, (own, other, counted) in enumerate(zip(found, by_baseline, words, strict=True)):
        assert [share.value[place], *np.array(share.interval)[:, place]] == over_units(
            gold, own.astype(np.float64), counted, 3
        )
        sides = [own & counted, counted, other & counted, counted]
        expected = paired_bootstrap(*sides, share=True, units=gold.units_of_words, draws=300, seed=3)
        assert difference.value[place] == pytest.approx(own[counted].mean() - other[counted].mean())
        assert np.array(difference.interval)[:, place] == pytest.approx(expected.interval)
        assert difference.p[place] == expected.p

        gains = [0] * gold.number_of_units
        for row in np.flatnonzero(counted):
            gains[gold.units_of_words[row]] += int(own[row]) - int(other[row])
        assert count_gains(gold, own, other, counted).tolist() == gains


@pytest.mark.slow
def test_baselines_on_ewt_are_the_known_ones(public_data: Callable[..., Path]) -> None:
    """The test split of UD English EWT: 30.9 at +1, 6.6 at −1 unclipped, 31.9 right-branching."""
    sentences = read_treebank(public_data("ud", "en_ewt-ud-test.conllu")).sentences
    labels = sorted({relation for sentence in sentences for relation in sentence.relations})
    gold = arcs(
        [sentence.heads for sentence in sentences],
        relations=[[labels.index(relation) for relation in sentence.relations] for sentence in sentences],
        punctuation=[[relation == "punct" for relation in sentence.relations] for sentence in sentences],
    )
    known = {30.9: offset_heads(gold, 1), 6.6: offset_heads(gold, -1), 31.9: right_branching(gold)}
    for uas, heads in known.items():
        scores = attachment_scores(gold, attached(gold, heads), edges_found(gold, heads))
        assert round(100 * scores["uas"].value, 1) == uas
    uniform = numbers(attachment_scores(gold, uniform_attached(gold)[0], uniform_edges_found(gold)[0]))
    assert uniform["uas.low"] < uniform["uas"] < uniform["uas.high"] < 0.1
    table = relation_accuracies(gold, attached(gold, known[30.9]), labels)
    assert table["n"].iloc[0] == 25094 == table["n"].iloc[2:].sum()


def columns_of(arcs: Arcs) -> list[np.ndarray]:
    assert arcs.reach is None  # of an encoder, of which nothing was said
    return [getattr(arcs, field.name) for field in fields(Arcs) if field.name != "reach"]


def assert_same(one: tuple[Arcs, dict[str, np.ndarray]], other: tuple[Arcs, Integers]) -> None:
    for got, expected in zip(columns_of(one[0]), columns_of(other[0]), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    (predicted,) = one[1].values()
    assert predicted.shape == other[1].shape
    np.testing.assert_array_equal(predicted, other[1])


TREEBANK = random_arcs(11, seed=11, documents=4)
NUMBERS: list[int] = np.unique(TREEBANK.sentence).tolist()


def add(rows: Rows, sentences: list[int], predicted: Integers) -> None:
    batch, numbers = padded_batch(TREEBANK, predicted, sentences)
    add_arcs(rows, batch, heads=numbers)


@pytest.mark.parametrize("width", [None, 5])
class TestRowsOfArcs:
    @pytest.mark.parametrize("size", [1, 3, 11])
    def test_the_order_and_size_of_batches_do_not_matter(self, size: int, width: int | None) -> None:
        predicted = random_predictions(TREEBANK, width)
        rows = Rows()
        shuffled = np.random.default_rng(size).permutation(NUMBERS).tolist()
        for start in range(0, len(shuffled), size):
            add(rows, shuffled[start : start + size], predicted)
            add(rows, [], predicted)  # a batch without a sentence adds nothing
        assert_same(take_arcs(rows), (TREEBANK, predicted))
        empty, columns = take_arcs(rows)
        assert (len(empty), columns) == (0, {})

    def test_a_sentence_seen_twice_is_refused(self, width: int | None) -> None:
        predicted, rows = random_predictions(TREEBANK, width), Rows()
        for batch in (NUMBERS[:2], NUMBERS[1:2]):
            add(rows, batch, predicted)
        with pytest.raises(ValueError, match=f"1 item came more than once.* number {NUMBERS[1]}, .*sampler"):
            take_arcs(rows)


def test_numbers_of_several_predictors_take_two_bytes_each() -> None:
    predicted, rows = random_predictions(TREEBANK, 5), Rows()
    predicted[0] = LONGEST_SENTENCE
    add(rows, NUMBERS, predicted)
    gold, columns = take_arcs(rows)
    assert columns["heads"].dtype == np.int16
    assert_same((gold, columns), (TREEBANK, predicted))


@pytest.mark.parametrize("block", [1, 2, 100])
def test_what_candidates_find_is_counted_by_document(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents alternate, and one has no word that counts."""
    monkeypatch.setattr("attention_probing.metrics.attachment._BLOCK", block)
    gold = arcs([[0, 1], [0, 1, 2], [0], [2, 0]], documents=[1, 0, 2, 1])
    words = np.array([True, True, False, True, True, False, True, False])
    rng = np.random.default_rng(0)
    found = rng.random((5, 3)) < 0.5
    of_units, counted = count_found(gold, words, found)
    document = [1, 1, 0, 0, 1]
    assert counted.tolist() == [2, 3, 0]
    for unit in range(3):
        rows = [row for row, own in enumerate(document) if own == unit]
        assert of_units[unit].tolist() == [sum(int(found[row, k]) for row in rows) for k in range(3)]
