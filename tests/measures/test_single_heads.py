"""Heads as predictors of governors, and baselines without attention, against counting in the store and by hand."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any, Literal

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_array_equal

from attention_probing.attention import EncoderSpec, Options
from attention_probing.attention.quantities import QuantityName
from attention_probing.attention.store import Store
from attention_probing.corpora.conllu import read_treebank
from attention_probing.corpora.sentence import Sentence
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import AttentionBatch, DependencyDataModule
from attention_probing.datamodules.dependency import DependencySplit
from attention_probing.measures import Baselines, Measure, SingleHeads
from attention_probing.measures.best_heads import ChosenHeads, heads_answer
from attention_probing.measures.ensembles import choose_ensembles, ensemble_hits, find_governors
from attention_probing.measures.head_roles import head_roles
from attention_probing.metrics.attachment import Arcs, add_arcs, attached, baseline_scores, take_arcs, uniform_attached
from attention_probing.metrics.bootstrap import bootstrap_ratio, resamples
from attention_probing.metrics.heads import DIRECTIONS, Predictions, most_attended
from attention_probing.metrics.relations import relation_bars, relation_table
from attention_probing.metrics.rows import Rows
from attention_probing.results import AttentionLines, Bars, Estimate, Flags, HeatMap, Result, Table, Unit
from attention_probing.results.errors import UserError
from attention_probing.results.heads import HeadNames
from tests.attention.extractions import Extraction
from tests.measures.intervals import interval_by_hand, p_at, signed_interval_by_hand, sums_of_subsets
from tests.metrics.samples import arcs
from tests.tiny import save_gemma3, save_mistral, save_modernbert
from tests.trainers import changed, scored

BEST = "relation n head direction dev test low high offset best_offset random_init"
BEST += " n_dev dev_gap over_offset over_offset.low over_offset.high p_offset p_holm p_shuffled"
NAMES = HeadNames((0, 1), (0, 1, 2, 3))
FORTH, BACK = DIRECTIONS

MakeData = Callable[..., DependencyDataModule]
RunConfig = Callable[..., tuple[Any, dict[str, Any], Path]]


def probe(**options: Any) -> SingleHeads:  # noqa: ANN401
    return changed(SingleHeads(**options), permutations=9, minimum=1)


@pytest.fixture(scope="module")
def result(make_data: MakeData) -> Result:
    return scored(probe(), make_data(random_init=True))


@pytest.fixture(scope="module")
def paper(make_data: MakeData) -> Result:
    return scored(probe(mode="paper"), make_data(random_init=True))


class Counted:
    """A split, and what every head says in it, read off the store one word after the other."""

    def __init__(
        self, module: DependencyDataModule, corpus: str, name: Literal["dev", "test"], random: bool = False
    ) -> None:
        path = Path(corpus.replace("{split}", name))
        self.sentences: tuple[Sentence, ...] = read_treebank(path).sentences
        store = (module.random_splits if random else module.splits)[name].store
        self.weights = [store.read("attention", item).flatten(0, 1).double().numpy() for item in range(len(store))]

    def names(self, predictor: int, item: int, word: int) -> int:
        weights = self.weights[item][predictor % 8]
        weights = weights if predictor < 8 else weights.T
        others = [other for other in range(1, len(self.sentences[item]) + 1) if other != word]
        best = max(others, key=lambda other: weights[word, other], default=-1)
        return best if best > 0 and weights[word, best] > 0 else -1

    def words(self, relation: str) -> Iterator[tuple[int, int, int]]:
        """Sentence, position and gold head of each word of a relation."""
        for item, sentence in enumerate(self.sentences):
            for word, (gold, label) in enumerate(zip(sentence.heads, sentence.relations, strict=True), start=1):
                if relation in ("all", label) or (relation == "all (no punctuation)" and label != "punct"):
                    yield item, word, gold

    def right(self, predictor: int, relation: str) -> tuple[int, int]:
        found = [self.names(predictor, item, word) == gold for item, word, gold in self.words(relation)]
        return sum(found), len(found)

    def by_sentence(self, predictor: int, relation: str) -> pd.DataFrame:
        """Right words and all words of the relation in each sentence."""
        found = [(item, self.names(predictor, item, word) == gold) for item, word, gold in self.words(relation)]
        counts = pd.DataFrame(found, columns=["sentence", "right"]).groupby("sentence")["right"].agg(["sum", "size"])
        return counts.reindex(range(len(self.sentences)), fill_value=0)

    def by_offset(self, relation: str) -> dict[int, float]:
        """Share of the words whose head is at each fixed offset, the nearest first, ahead before behind."""
        words = list(self.words(relation))
        return {k: sum(gold - word == k for _, word, gold in words if gold) / len(words) for k in (1, -1, 2, -2, 3, -3)}

    def best(self, relation: str) -> int:
        counts = [self.right(k, relation)[0] for k in range(16)]
        return counts.index(max(counts))

    def accuracy(self, predictor: int, relation: str) -> float:
        right, total = self.right(predictor, relation)
        return right / total

    def tree_edges(self, head: int) -> tuple[int, int]:
        """Gold edges in the maximum spanning trees of a head, and all of them; without punctuation."""
        found = total = 0
        for item, sentence in enumerate(self.sentences):
            plain = [place for place, label in enumerate(sentence.relations, start=1) if label != "punct"]
            graph: nx.Graph[int] = nx.Graph()
            weights = self.weights[item][head]
            for i, j in combinations(plain, 2):
                graph.add_edge(i, j, weight=weights[i, j] + weights[j, i])
            tree = {frozenset(edge) for edge in nx.maximum_spanning_tree(graph).edges}
            gold = [frozenset((word, sentence.heads[word - 1])) for word in plain if sentence.heads[word - 1] in plain]
            total += len(gold)
            found += sum(edge in tree for edge in gold)
        return found, total


ROLES = (
    "head confidence offset offset_share positional relation direction margin syntactic accuracy low high fixed_offset"
)


@pytest.fixture(scope="module")
def splits(make_data: MakeData, corpus: str) -> tuple[Counted, Counted]:
    module = make_data()
    module.setup("test")
    return Counted(module, corpus, "dev"), Counted(module, corpus, "test")


@pytest.fixture(scope="module")
def random_splits(make_data: MakeData, corpus: str) -> tuple[Counted, Counted]:
    module = make_data(random_init=True)
    module.setup("test")
    return Counted(module, corpus, "dev", random=True), Counted(module, corpus, "test", random=True)


def test_the_tables_have_the_columns_that_others_read(result: Result) -> None:
    assert {name: " ".join(map(str, table.frame)) for name, table in result.tables.items()} == {
        "best_heads": BEST,
        "best_heads_by_length": "relation length n head direction accuracy offset",
        "heads": "relation n direction head layer number dev test",
        "roles": ROLES,
        "random_init.roles": ROLES,
        "trees": "head dev test",
        "ensembles": "relation n direction heads dev test low high single",
        "no_op": "head relation direction sentences with without difference low high",
    }
    assert len(result.tables["heads"].frame) == 16 * len(result.tables["best_heads"].frame)
    assert set(result.tables["heads"].frame["relation"]) == set(result.tables["best_heads"].frame["relation"])
    assert result.audit == {
        "mode": "held_out",
        "units": "17 sentences, taken as independent: no documents are marked (# newdoc)",
        "permutations": 9,
        "predictions_without_weight": {"dev": 0, "test": 0},
    }


def test_the_best_heads_equal_counting_in_the_store(
    result: Result, splits: tuple[Counted, Counted], random_splits: tuple[Counted, Counted]
) -> None:
    dev, test = splits
    random_dev, random_test = random_splits
    table = result.tables["best_heads"].frame
    relations = {"det", "nsubj", "obj", "nmod:poss", "punct"}  # all words of `root` depend on ROOT
    assert set(table["relation"]) == {"all", "all (no punctuation)", *relations}
    for _, row in table.iterrows():
        k = dev.best(row["relation"])
        assert (row["head"], row["direction"]) == (NAMES.head(k % 8), DIRECTIONS[k // 8])
        assert (row["dev"], row["test"]) == (dev.accuracy(k, row["relation"]), test.accuracy(k, row["relation"]))
        assert row["n"] == test.right(k, row["relation"])[1]
        own = test.by_sentence(k, row["relation"])
        interval = bootstrap_ratio(own["sum"], own["size"], share=True, seed=0).interval
        assert_array_equal([row["low"], row["high"]], interval)
        on_dev = dev.by_offset(row["relation"])
        assert row["best_offset"] == max(on_dev, key=lambda offset: on_dev[offset])
        assert row["n_dev"] == dev.right(k, row["relation"])[1]
        assert row["dev_gap"] == pytest.approx(row["dev"] - on_dev[row["best_offset"]])
        assert row["offset"] == test.by_offset(row["relation"])[row["best_offset"]]
        best_random = random_dev.best(row["relation"])
        assert row["random_init"] == random_test.accuracy(best_random, row["relation"])
    assert (table["random_init"] != table["test"]).any()
    assert table["p_shuffled"].notna().any()
    for name in ("best_heads", "best_heads_by_length", "heads", "ensembles"):
        assert "root" not in set(result.tables[name].frame["relation"])


def gains_by_sentence(scored: Counted, row: dict[Any, Any], heads: Sequence[int]) -> dict[int, list[int]]:
    """Words of a relation that each head finds, minus those that its offset finds, by sentence that has any."""
    sums: dict[int, list[int]] = {}
    for item, word, gold in scored.words(row["relation"]):
        fixed = gold > 0 and gold - word == row["best_offset"]
        own = sums.setdefault(item, [0] * len(heads))
        for place, k in enumerate(heads):
            own[place] += int(gold > 0 and scored.names(k, item, word) == gold) - fixed
    return sums


def holm_by_hand(p_values: pd.Series) -> list[float]:
    tested = sorted(p_values.dropna())
    corrected = []
    for place in range(len(tested)):
        steps = [min(1, p * (len(tested) - k)) for k, p in enumerate(tested[: place + 1])]
        corrected.append(max(steps))
    return corrected


def test_the_head_is_compared_with_the_offset_by_subsets_of_the_sentences(
    result: Result, splits: tuple[Counted, Counted]
) -> None:
    dev, test = splits
    table = result.tables["best_heads"].frame
    subsets = [np.flatnonzero(one).tolist() for some in resamples(17, 200 * len(table), 0) for one in some]
    for row in table.to_dict("records"):
        gains = gains_by_sentence(test, row, [dev.best(row["relation"])])
        words = pd.Series([item for item, _, _ in test.words(row["relation"])]).value_counts()
        draws = []
        for subset in subsets:
            total = sum(int(words.get(item, 0)) for item in subset)
            more = sum(gains[item][0] for item in subset if item in gains)
            draws.append(more / total if total else np.nan)
        assert row["over_offset"] == pytest.approx(row["test"] - row["offset"])
        assert row["p_offset"] == pytest.approx(p_at(0, draws))
        # The interval is that of the subsets, or wider, because few words differ.
        low, high = interval_by_hand(draws)
        ends = row["over_offset.low"], row["over_offset.high"]
        assert ends == pytest.approx((np.fmin(ends[0], low), np.fmax(ends[1], high)), nan_ok=True)
        gained = [gains.get(item, [0])[0] for item in range(17)]
        of = [int(words.get(item, 0)) for item in range(17)]
        expected = bootstrap_ratio(gained, of, share=True, compared=True, draws=len(subsets)).interval
        assert ends == pytest.approx(expected, nan_ok=True)
    assert sorted(table["p_holm"].dropna()) == pytest.approx(holm_by_hand(table["p_offset"]))


def test_if_dev_is_scored_the_best_head_has_no_interval_and_p_chooses_anew(
    paper: Result, splits: tuple[Counted, Counted]
) -> None:
    dev = splits[0]
    table = paper.tables["best_heads"].frame
    assert table[["test", "low", "high", "over_offset.low", "over_offset.high"]].isna().all(axis=None)
    for row in table.to_dict("records"):
        gains = gains_by_sentence(dev, row, range(16))
        assert row["over_offset"] == pytest.approx(row["dev"] - row["offset"]) == pytest.approx(row["dev_gap"])
        signs = np.random.default_rng(0).integers(2, size=(200 * len(table), len(gains)), dtype=np.int8)
        observed = max(map(sum, zip(*gains.values(), strict=True)))
        beaten = 0
        for draw in signs:
            flipped = [
                [gain if sign else -gain for gain in own] for own, sign in zip(gains.values(), draw, strict=True)
            ]
            beaten += max(map(sum, zip(*flipped, strict=True))) >= observed
        assert row["p_offset"] == pytest.approx((1 + beaten) / (1 + len(signs)))
    assert sorted(table["p_holm"].dropna()) == pytest.approx(holm_by_hand(table["p_offset"]))
    assert paper.tables["ensembles"].frame[["test", "low", "high"]].isna().all(axis=None)


def test_all_heads_and_their_maps_equal_counting_in_the_store(
    result: Result, paper: Result, splits: tuple[Counted, Counted]
) -> None:
    table, of_dev = result.tables["heads"].frame, paper.tables["heads"].frame
    assert list(of_dev["dev"]) == [
        splits[0].accuracy(place % 16, name) for place, name in enumerate(of_dev["relation"])
    ]
    for place, row in enumerate(table.to_dict("records")):
        k, relation = place % 16, row["relation"]
        assert (row["direction"], row["head"]) == (DIRECTIONS[k // 8], f"{row['layer']}-{row['number']}")
        assert (row["layer"], row["number"], row["n"]) == (k % 8 // 4 + 1, k % 4 + 1, splits[1].right(k, relation)[1])
        assert (row["dev"], row["test"]) == tuple(split.accuracy(k, relation) for split in splits)
    maps = {name: one for name, one in result.figures.items() if isinstance(one, HeatMap)}
    assert {"heads_all", "heads_all_no_punctuation", "heads_nmod_poss"} < maps.keys()
    highest = max(one.values.max() for one in maps.values())
    for one in maps.values():
        relation, _, direction = one.title.removeprefix("Accuracy of each head: ").rpartition(", ")
        own = table[(table["relation"] == relation) & (table["direction"] == direction)]
        assert one.values.ravel().tolist() == own["test"].tolist()
        best = result.tables["best_heads"].frame.set_index("relation").loc[relation]
        assert (NAMES.place(str(best["head"])), best["direction"]) == (one.marked, direction)
        assert one.limits == (min(one.values.min() for one in maps.values()), highest)


def test_accuracy_by_length_equals_counting(result: Result, splits: tuple[Counted, Counted]) -> None:
    dev, test = splits
    found = {
        (row["relation"], row["length"]): row for row in result.tables["best_heads_by_length"].frame.to_dict("records")
    }
    bounds = {"1": (1, 1), "2": (2, 2), "3–5": (3, 5), "6+": (6, 98)}
    for best, (length, (shortest, longest)) in product(
        result.tables["best_heads"].frame.to_dict("records"), bounds.items()
    ):
        k = dev.best(best["relation"])
        words = [
            (test.names(k, item, word) == gold, gold - word == best["best_offset"])
            for item, word, gold in test.words(best["relation"])
            if gold and shortest <= abs(gold - word) <= longest
        ]
        if words:
            row = found.pop((best["relation"], length))
            assert (row["n"], row["head"], row["direction"]) == (len(words), best["head"], best["direction"])
            assert [row["accuracy"], row["offset"]] == np.mean(words, axis=0).tolist()
    assert not found


def test_attention_to_delimiters_where_the_function_of_a_head_applies_equals_counting(
    result: Result, splits: tuple[Counted, Counted]
) -> None:
    roles, table, test = result.tables["roles"].frame, result.tables["no_op"].frame, splits[1]
    roles = roles[roles["syntactic"]].reset_index()
    assert table[["head", "relation", "direction"]].equals(roles[["head", "relation", "direction"]])
    assert set(table["direction"]) == set(DIRECTIONS)
    differences: list[float] = []
    for row, head in zip(table.to_dict("records"), roles["index"], strict=True):
        pairs = []
        for weights, sentence in zip(test.weights, test.sentences, strict=True):
            arcs = [
                (dependent, governor)
                for dependent, (governor, label) in enumerate(
                    zip(sentence.heads, sentence.relations, strict=True), start=1
                )
                if label == row["relation"] and governor
            ]
            applies = {arc[DIRECTIONS.index(row["direction"])] for arc in arcs}
            shares: dict[bool, list[float]] = {True: [], False: []}
            for word, label in enumerate(sentence.relations, start=1):
                if label != "punct":
                    shares[word in applies].append(float(weights[head][word, 0] + weights[head][word, -1]))
            if shares[True] and shares[False]:
                pairs.append((np.mean(shares[True]), np.mean(shares[False])))
        assert row["sentences"] == len(pairs)
        own = [float(without - of) for of, without in pairs]
        differences += own
        if pairs:
            assert [row["with"], row["without"]] == pytest.approx(np.mean(pairs, axis=0).tolist(), abs=1e-4)
            assert row["difference"] == pytest.approx(np.mean(own), abs=1e-4)
            if len(pairs) < 7:  # too few for an interval
                assert np.isnan([row["low"], row["high"]]).all()
            elif len(pairs) > 8:
                assert row["low"] <= row["difference"] <= row["high"]
    score = result.scores["no_op"]
    assert score.value == pytest.approx(np.mean(differences), abs=1e-4)
    assert score.low is not None
    assert score.low < score.value


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


def test_only_heads_that_were_chosen_in_another_treebank_are_compared_with_its_own_offset(
    make_data: MakeData, corpus: str, splits: tuple[Counted, Counted]
) -> None:
    own = {"test": corpus.replace("{split}", "test")}
    table = scored(probe(trees=False), make_data(corpus=own, transfer_from=corpus)).tables["best_heads"].frame
    for row in table.to_dict("records"):
        offsets = splits[1].by_offset(row["relation"])
        assert row["own_offset"] == max(offsets.values())
        assert offsets[row["best_own_offset"]] == row["own_offset"] >= row["offset"]
        assert row["over_offset"] == pytest.approx(row["test"] - row["own_offset"])


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
        "p_holm": [0.0004, 0.0004, 0.0008, 0.25, 0.0004],
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
        f"Chosen on dev, {WORDS}; the best head with random weights 9.4 %. In 1 of 2 relations heads beat the offset "
        "(p < .05 after Holm over 5 rows, n ≥ 20); the widest gap on dev is in `det`: head 3-9 finds 70.5 % "
        "[65.0, 76.1] of 241 words, the best fixed offset 35.7 % (+34.8 points [28.0, 41.0], p < .001)."
    )
    few = best_of("test", n=[19] * 5)
    assert heads_answer(few).endswith(
        " of 19 words, the best fixed offset 30.9 % (+10.0 points [9.3, 10.7], p < .001); "
        "the best head with random weights 9.4 %."
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


def test_the_scores_are_those_of_the_head_chosen_on_dev(result: Result, splits: tuple[Counted, Counted]) -> None:
    dev, test = splits
    k = dev.best("all (no punctuation)")
    assert result.numbers["heads.uas"] == test.accuracy(k, "all (no punctuation)")
    assert result.numbers["heads.uas_with_punctuation"] == test.accuracy(k, "all")
    for name in ("heads.uas", "heads.uuas", "heads.tree_uuas", "random_init.uas"):
        assert result.numbers[f"{name}.low"] <= result.numbers[name] <= result.numbers[f"{name}.high"]
    items = result.items
    assert items is not None
    assert list(items["id"]) == [f"tiny-test-{index}" for index in range(17)]
    assert items["correct"].sum() / items["scored"].sum() == result.numbers["heads.uas"]
    on_dev = [dev.tree_edges(head) for head in range(8)]
    head = max(range(8), key=lambda k: (on_dev[k][0], -k))
    found, total = test.tree_edges(head)
    assert result.numbers["heads.tree_uuas"] == found / total
    assert result.tables["trees"].frame["dev"].tolist() == [found / total for found, total in on_dev]


def test_the_relations_that_are_named_are_shown_with_the_same_numbers(result: Result, make_data: MakeData) -> None:
    chosen = ("nsubj", "det")
    found = scored(probe(relations=chosen), make_data(random_init=True))
    names = ["all", "all (no punctuation)", *chosen]
    for name in ("best_heads", "best_heads_by_length", "heads", "ensembles"):
        table = result.tables[name].frame
        rows = [row for relation in names for row in table[table["relation"] == relation].to_dict("records")]
        assert {row["relation"] for row in rows} == set(names[2:] if name == "ensembles" else names)
        pd.testing.assert_frame_equal(found.tables[name].frame, pd.DataFrame(rows, columns=list(table)))
    bars = found.figures["best_heads"]
    assert isinstance(bars, Bars)
    assert len(bars.categories) == 4
    maps = {name for name, figure in found.figures.items() if isinstance(figure, HeatMap)}
    assert maps == {"heads_all", "heads_all_no_punctuation", "heads_nsubj", "heads_det"}
    pd.testing.assert_frame_equal(found.tables["roles"].frame, result.tables["roles"].frame)
    best = found.tables["best_heads"].frame.set_index("relation")
    own = {
        f"heads.{name}{end}": best.loc[name, column]
        for name in ("all", *chosen)
        for end, column in (("", "test"), (".low", "low"), (".high", "high"))
    }
    assert found.numbers == {**result.numbers, **own}
    assert found.items is not None
    for name in ("all", *chosen):
        right, words = (found.items[column].sum() for column in found.ratios[f"heads.{name}"])
        assert (right / words, words) == (best.loc[name, "test"], best.loc[name, "n"])


def test_a_relation_that_the_corpus_lacks_has_a_blank_row(
    make_data: MakeData, caplog: pytest.LogCaptureFixture
) -> None:
    without = scored(probe(relations=("nsubj", "det")), make_data(random_init=True))
    with caplog.at_level("WARNING"):
        found = scored(probe(relations=("nsubj", "flat", "det")), make_data(random_init=True))
    assert "no word of the corpus has the relation 'flat': such rows are blank. The relations are" in caplog.text
    best = found.tables["best_heads"]
    assert best.frame["relation"].tolist() == ["all", "all (no punctuation)", "nsubj", "flat", "det"]
    blank = best.frame.iloc[3]
    assert blank["n"] == 0
    assert blank.drop(["relation", "n"]).isna().all()
    # Nothing is counted, corrected, ranked or drawn but the rows with words.
    rest = best.rows([0, 1, 2, 4])
    pd.testing.assert_frame_equal(rest.frame, without.tables["best_heads"].frame, check_dtype=False)
    assert list(rest.units["p_holm"]) == list(without.tables["best_heads"].units["p_holm"])
    assert found.answer == without.answer
    assert found.figures.keys() == without.figures.keys()
    bars = found.figures["best_heads"]
    assert isinstance(bars, Bars)
    assert len(bars.categories) == 4
    for name in ("best_heads_by_length", "heads", "ensembles"):
        pd.testing.assert_frame_equal(found.tables[name].frame, without.tables[name].frame)
    ends = {f"heads.flat{end}" for end in ("", ".low", ".high")}
    assert {name: number for name, number in found.numbers.items() if name not in ends} == without.numbers
    assert np.isnan(found.numbers["heads.flat"])
    assert found.audit["blank_relations"] == ["flat"]
    assert "blank_relations" not in without.audit


def test_a_relation_that_only_dev_has_is_a_blank_row_of_the_baselines(
    make_data: MakeData, corpus: str, tmp_path: Path
) -> None:
    files = {split: tmp_path / f"{split}.conllu" for split in ("train", "dev", "test")}
    for split, path in files.items():
        content = Path(corpus.replace("{split}", split)).read_text(encoding="utf-8")
        path.write_text(content.replace("\tdet\t", "\tflat\t") if split == "dev" else content, encoding="utf-8")
    data = make_data(corpus={split: str(path) for split, path in files.items()})
    found = scored(Baselines(relations=("flat", "obj")), data)
    [*_, blank, obj] = found.tables["relations"].frame.to_dict("records")
    assert (blank.pop("relation"), blank.pop("n")) == ("flat", 0)
    assert pd.isna(list(blank.values())).all()
    assert obj["n"] > 0
    assert isinstance(obj["best_offset"], int)
    assert found.audit["blank_relations"] == ["flat"]
    bars = found.figures["relations"]
    assert isinstance(bars, Bars)
    assert bars.categories == ("all", "all (no punctuation)", "obj")


def test_a_device_without_a_sentence_adds_nothing(make_data: MakeData, monkeypatch: pytest.MonkeyPatch) -> None:
    module, alone = probe(), scored(probe(), make_data())
    update = SingleHeads.update

    def with_an_empty_batch(self: SingleHeads, batch: AttentionBatch) -> None:
        update(self, self.data.splits["dev"][[]])
        update(self, batch)

    monkeypatch.setattr(SingleHeads, "update", with_an_empty_batch)
    assert scored(module, make_data()).numbers == alone.numbers
    assert not [name for name in alone.scores if name.startswith("random_init")]
    assert alone.tables["best_heads"].frame["random_init"].isna().all()


@pytest.mark.parametrize("quantity", ["attention", "norms", "norms_residual", "rollout"])
def test_the_heads_furthest_above_the_best_offset_are_drawn(
    quantity: QuantityName, make_data: MakeData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attention_probing.measures.head_figures.WORDS", range(4, 9))
    data = make_data(options=Options(quantity=quantity))
    result = scored(changed(probe(), maps=0, ensemble=1), data)
    scored_split, predictions, names = opened(data, "test")
    best = result.tables["best_heads"].frame
    margin = best["test"] - best["offset"]
    order = best.loc[margin.sort_values(kind="stable", ascending=False).index, "relation"]
    drawings = {name: one for name, one in result.figures.items() if isinstance(one, AttentionLines)}
    assert len(drawings) == 3
    ranks = []
    for name, lines in drawings.items():
        head, relation, direction = re.match(r"Head (\S+) \(layer-head\).*, (\S+), (\S+)$", lines.title).groups()  # type: ignore[union-attr]
        row = best[best["relation"] == relation].iloc[0]
        assert (row["head"], row["direction"], name.rpartition("_")[2]) == (head, direction, head)
        ranks.append(order[~order.str.startswith("all")].tolist().index(relation))
        # In no sentence of a readable length does the head find more arcs of the relation.
        column = predictions.predicted[
            :, DIRECTIONS.index(direction) * len(names) + [*map(names.head, range(len(names)))].index(head)
        ]
        right = predictions.groups[relation] & (column == predictions.arcs.head)
        right &= np.isin(predictions.arcs.length, range(4, 9))
        item = int(np.bincount(predictions.arcs.sentence[right]).argmax())
        assert lines.words == ("[start]", *scored_split.store.labels["words"][item].as_py(), "[end]")
        here = predictions.groups[relation] & (predictions.arcs.sentence == item) & (predictions.arcs.head > 0)
        pairs = {(int(predictions.arcs.word[k]), int(predictions.arcs.head[k])) for k in np.flatnonzero(here)}
        assert lines.arcs == {pair if direction == FORTH else pair[::-1] for pair in pairs}
        assert 0 <= lines.weights.min() <= lines.weights.max() <= 1 + 1e-3
        if quantity == "attention":
            stored = scored_split.store.read("attention", item)[names.place(head)]
            assert_array_equal(lines.weights, stored.double().numpy())
    assert ranks == sorted(ranks)
    assert result.tables["roles"].units["confidence"] == ("ratio" if "norms" in quantity else "fraction")


def test_a_treebank_of_roots_is_refused(make_data: MakeData, corpus: str, tmp_path: Path) -> None:
    """Sentences of one word have no arc."""
    words = "".join(f"1\t{word}\t_\tNOUN\t_\t_\t0\troot\t_\t_\n\n" for word in ("fox", "dogs", "coffee"))
    (tmp_path / "roots.conllu").write_text(words, encoding="utf-8")
    data = make_data(corpus={"dev": corpus.replace("{split}", "dev"), "test": str(tmp_path / "roots.conllu")})
    with pytest.raises(UserError, match=r"roots\.conllu: no word depends on another word.* a treebank"):
        scored(probe(), data)


@pytest.mark.parametrize("save", [save_mistral, save_gemma3, save_modernbert])
def test_baselines_are_of_what_the_heads_may_attend_to(
    save: Callable[[Path], Path], make_data: MakeData, tmp_path: Path
) -> None:
    data = make_data(encoder=EncoderSpec(str(save(tmp_path / "one"))))
    windowed = scored(probe(), data)
    ways = list(product((False, True), range(2)))  # backwards or not, in each layer
    found: dict[tuple[str, bool, int], list[float]] = {}
    splits: tuple[Split, ...] = ("dev", "test")
    for split, (back, layer) in product(splits, ways):
        reach, before = data.splits[split].reach, 0
        for item, n in enumerate(data.splits[split].lengths.tolist()):
            [heads], [punctuation] = (getattr(data.splits[split][[item]], name) for name in ("heads", "punctuation"))
            assert reach is not None
            ends = reach[before : before + n, layer].tolist()
            before += n
            for word, (head, left_out) in enumerate(zip(heads.tolist(), punctuation.tolist(), strict=True), start=1):
                pairs = [((j, word) if back else (word, j)) for j in range(1, n + 1)]
                seen = [i if back else j for i, j in pairs if ends[i - 1][0] <= j <= ends[i - 1][1]]
                if not left_out:
                    found.setdefault((split, back, layer), []).append(float(head in seen or not head) / len(seen))
    best = max(ways, key=lambda way: np.mean(found["dev", *way]))
    assert len({np.mean(found["dev", *way]) for way in ways}) > 1
    assert windowed.scores["uniform.uas"].value == pytest.approx(np.mean(found["test", *best]))


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (probe(), {"encoder": None}, "SingleHeads needs attention, but `encoder` is null"),
        (
            Baselines(),
            {"random_init": True},
            "`random_init` is true, but Baselines has no such control",
        ),
        (
            probe(relations=("nsbj", "x")),
            {},
            "`relations`: no word of the corpus has the relation 'nsbj', 'x'; the relations are ",
        ),
    ],
)
def test_what_cannot_be_run_is_refused(
    module: Measure[Any], options: dict[str, Any], message: str, make_data: MakeData
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        scored(module, make_data(**options))


def opened(data: DependencyDataModule, split: Split = "dev") -> tuple[DependencySplit, Predictions, HeadNames]:
    """A split with the predictions of all heads."""
    data.setup("test")
    words = Rows()
    for batch in chain(*data.test_dataloader()):
        if batch.split == split:
            add_arcs(words, batch, heads=most_attended(batch.attention, batch.lengths).flatten(2))
    arcs, columns = take_arcs(words)
    return data.splits[split], Predictions(arcs, data.relations, columns["heads"]), HeadNames(data.layers, data.heads)


def test_roles_know_positional_and_syntactic_heads() -> None:
    """Heads that see the first word, on which all words depend; 2-4 looks back by one, nine times of ten."""
    first = np.array([2, *[1] * 9])
    back = np.array([2, *range(1, 10)])
    ahead = np.array([*range(2, 11), 1])  # nobody looks back at the last word
    predicted = np.tile(np.column_stack([*[first] * 7, back, *[first] * 7, ahead]), (2, 1))

    def roles(minimum: int, *others: str) -> tuple[pd.DataFrame, dict[str, Estimate]]:
        names = [["root", "obj", *others], ["root", "det", "obj", *others[1:]]]
        known = ("root", "obj", "det", "amod", "punct")
        gold = arcs(
            [[0, *[1] * 9]] * 2,
            relations=[[known.index(name) for name in one] for one in names],
            punctuation=[[name == "punct" for name in one] for one in names],
        )
        drawn = Predictions(gold, known, predicted)
        table, shares = head_roles(ChosenHeads(drawn, drawn, NAMES), np.zeros((2, 4)), minimum)
        return table.frame.set_index("head"), shares

    table, shares = roles(3, *["amod"] * 8)
    columns = ["offset", "offset_share", "positional", "relation", "syntactic"]
    # Of fifteen of them two are three words behind the first word: no offset finds more.
    assert list(table.loc["1-2", columns]) == [-9, 0.1, False, "amod", True]
    assert list(table.loc["1-2", ["accuracy", "fixed_offset", "margin"]]) == pytest.approx([1, 2 / 15, 13 / 15])
    # The last word of either sentence, at which nobody looks back, has its head from 2-4, the other way round.
    assert list(table.loc["2-4", [*columns, "margin"]]) == [-1, 0.9, True, "amod", False, 0]
    assert (shares["positional_heads"].value, shares["syntactic_heads"].value) == (1 / 8, 7 / 8)
    # Punctuation is no relation that makes a head syntactic, and neither is the arc to ROOT.
    assert set(roles(2, *["punct"] * 8)[0]["relation"]) == {"obj"}
    # With a higher minimum no relation is left, and no head is syntactic.
    table, shares = roles(99, *["amod"] * 8)
    assert table["margin"].isna().all()
    assert shares["syntactic_heads"].value == 0


# Ensembles

RELATIONS = ("nsubj", "obj", "det", "punct", "root")
HEADS = 8


@pytest.fixture(scope="module")
def store(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Arcs]:
    """Ten sentences of 1 to 12 words through the tiny BERT; arcs that three of its heads know between them."""
    extraction = Extraction(tmp_path_factory.mktemp("ensembles"), bert)
    sentences, store = extraction.treebank.sentences, extraction.prepare()
    heads = []
    for item, sentence in enumerate(sentences):
        weights = store.read("attention", item).flatten(0, 1)[[1, 4, 6], 1:-1, 1:-1].float().sum(0)
        known = (weights - 9 * torch.eye(len(sentence))).argmax(-1) + 1
        # Roots stay as they are in the treebank, and about a quarter of the other words do.
        heads.append(
            [head if head == 0 or head % 4 == 1 else int(known[place]) for place, head in enumerate(sentence.heads)]
        )
    relations = [[RELATIONS.index(name) for name in sentence.relations] for sentence in sentences]
    return store, arcs(heads, relations=relations)


def found_by(store: Store, gold: Arcs, words: Flags, direction: int, heads: tuple[int, ...]) -> list[float]:
    """One word after the other, and among all other words in turn."""
    right = []
    for row in np.flatnonzero(words):
        word, n = int(gold.word[row]), int(gold.length[row])
        weights = store.read("attention", int(gold.sentence[row])).flatten(0, 1).double()
        best, most = -1, -1.0
        for other in range(1, n + 1):
            pairs = [weights[head, word, other] if direction == 0 else weights[head, other, word] for head in heads]
            mean = sum(map(float, pairs)) / len(heads)
            if other != word and mean > most:
                best, most = other, mean
        right.append(float(best == gold.head[row]))
    return right


def chosen_by_hand(store: Store, gold: Arcs, words: Flags, direction: int, most: int) -> tuple[tuple[int, ...], int]:
    """Try every head that is not in yet."""
    heads: tuple[int, ...] = ()
    reached = -1.0
    while len(heads) < most:
        others = [head for head in range(HEADS) if head not in heads]
        tried = {head: sum(found_by(store, gold, words, direction, (*heads, head))) for head in others}
        best = max(tried, key=lambda head: (tried[head], -head))
        if tried[best] <= reached:
            break
        heads, reached = (*heads, best), tried[best]
    return heads, int(reached)


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("relation", [*RELATIONS, "all"])
def test_the_choice_equals_trying_all_heads(store: tuple[Store, Arcs], relation: str, direction: int) -> None:
    attention, gold = store
    every = np.ones(len(gold), dtype=np.bool_)
    words = every if relation == "all" else gold.relation == RELATIONS.index(relation)
    group = (words, direction)
    [alone] = [found] = choose_ensembles(attention, gold, [group], 1)
    for most in (1, 4):
        [found] = choose_ensembles(attention, gold, [group], most)
        assert found == chosen_by_hand(attention, gold, words, direction, most)
        [right] = ensemble_hits(attention, gold, [group], [found[0]])
        assert right.tolist() == found_by(attention, gold, words, direction, found[0])
        assert right.sum() == found[1]
    # On words it was not chosen on.
    [right] = ensemble_hits(attention, gold, [(every, direction)], [found[0]])
    assert right.tolist() == found_by(attention, gold, every, direction, found[0])
    if relation == "all" and direction == 0:  # there are ensembles better than their first head
        assert found[0][0] == alone[0][0]
        assert found[1] > alone[1]
    [(heads, _)] = choose_ensembles(attention, gold, [group], 99)
    assert len(set(heads)) == len(heads) <= HEADS


def test_ensembles_of_several_relations_are_those_of_each_alone(store: tuple[Store, Arcs]) -> None:
    attention, gold = store
    groups = [(gold.relation == code, direction) for code in range(len(RELATIONS)) for direction in (0, 1)]
    together = choose_ensembles(attention, gold, groups, 4)
    assert together == [choose_ensembles(attention, gold, [group], 4)[0] for group in groups]
    assert len({heads for heads, _ in together}) > 2
    hits = ensemble_hits(attention, gold, groups, [heads for heads, _ in together])
    assert [right.sum() for right in hits] == [found for _, found in together]


def test_a_word_alone_has_no_head_to_find(store: tuple[Store, Arcs]) -> None:
    attention, gold = store
    words = gold.length == 1
    assert words.sum() == 1
    assert choose_ensembles(attention, gold, [(words, 0)], 4) == [((0,), 0)]
    [right] = ensemble_hits(attention, gold, [(words, 1)], [(2, 5)])
    assert right.tolist() == [0]

    # Nor has one to which nothing has any weight.
    weights = torch.tensor([[-torch.inf, 0.0, 0.0], [0.0, -torch.inf, 0.5]])
    assert find_governors(weights, torch.tensor([2, 3])).tolist() == [False, True]


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
