"""Trees of single heads and their most attended words, against networkx and counting in the store."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from attention_probing.measures import HeadTrees, head_trees
from attention_probing.measures.head_trees import trees_answer
from attention_probing.metrics import p_values
from attention_probing.metrics.attachment import compare_found
from attention_probing.metrics.bootstrap import bootstrap_ratio
from attention_probing.metrics.p_values import holm
from attention_probing.metrics.trees import maximum_arborescence
from attention_probing.results import Estimate, Floats, Result, Table, Unit
from attention_probing.results.errors import UserError
from attention_probing.results.heads import HeadNames
from tests.measures.counted import CountedSplit, Edges, MakeData
from tests.resampled import choose_by_hand
from tests.trainers import scored

NAMES = HeadNames((0, 1), (0, 1, 2, 3))


class Counted(CountedSplit):
    """A split, and the edges that every head finds in it, sentence by sentence."""

    def rooted(self, item: int, predictor: int) -> Edges:
        """Edges of the best arborescence from the words without a governor that counts; its weight is networkx's."""
        direction, head = divmod(predictor, 8)
        weights = self.weights[item][head] if direction else self.weights[item][head].T  # [governor, dependent]
        plain = self.plain(item)
        has_governor = {word for word, _ in self.edges(item)}
        scores = np.full((len(plain), len(plain) + 1), -np.inf)
        graph: nx.DiGraph[int] = nx.DiGraph()
        for row, word in enumerate(plain):
            if word not in has_governor:
                scores[row, 0] = 0
                graph.add_edge(0, word, weight=0.0)
                continue
            for column, governor in enumerate(plain, 1):
                if governor != word:
                    scores[row, column] = weights[governor, word]
                    graph.add_edge(governor, word, weight=weights[governor, word])
        heads = maximum_arborescence(scores)
        worth = scores[np.arange(len(plain)), heads].sum()
        assert worth == pytest.approx(
            nx.maximum_spanning_arborescence(graph).size("weight")
        )  # many trees weigh as much
        return {frozenset((word, plain[head - 1])) for word, head in zip(plain, heads, strict=True) if head}

    def most_attended(self, item: int, head: int) -> Edges:
        """Edges from words other than punctuation to the word that each attends to most."""
        weights = self.weights[item][head]
        words = range(1, len(self.sentences[item]) + 1)
        found = set()
        for word in self.plain(item):
            others = [other for other in words if other != word]
            found.add(frozenset((word, max(others, key=lambda other: weights[word, other], default=0))))
        return found

    def neighbours(self, item: int) -> Edges:
        plain = self.plain(item)
        return {frozenset(pair) for pair in pairwise(plain)}

    def by_sentence(self, edges_of: Callable[[int], Edges], relation: str = "all") -> NDArray[np.int64]:
        """Edges found, and all edges, of each sentence, `[sentences, 2]`."""
        rows = []
        for item in range(len(self.sentences)):
            gold = self.edges(item, relation)
            found = edges_of(item) if gold else set()
            rows.append((sum(frozenset(edge) in found for edge in gold), len(gold)))
        return np.array(rows)

    def between(self, item: int, distance: int) -> Edges:
        """Edges between words so many words apart."""
        words = range(1, len(self.sentences[item]) + 1)
        return {frozenset((one, one + distance)) for one in words}

    def share(self, edges_of: Callable[[int], Edges], relation: str = "all") -> float:
        found, edges = self.by_sentence(edges_of, relation).sum(0)
        return float(found / edges)

    def at_distance(self, relation: str, distance: int) -> float:
        gold = [edge for item in range(len(self.sentences)) for edge in self.edges(item, relation)]
        return sum(abs(governor - word) == distance for word, governor in gold) / len(gold)


@pytest.fixture(scope="module")
def result(make_data: MakeData) -> Result:
    return scored(HeadTrees(), make_data(random_init=True))


@pytest.fixture(scope="module")
def splits(make_data: MakeData, corpus: str) -> tuple[Counted, Counted]:
    return Counted.of_dev_and_test(make_data, corpus)


@pytest.fixture(scope="module")
def random_splits(make_data: MakeData, corpus: str) -> tuple[Counted, Counted]:
    return Counted.of_dev_and_test(make_data, corpus, random=True)


def shares_of(split: Counted, tree: str) -> list[float]:
    """UUAS of every head, for trees from the gold root in every direction."""
    if tree == "undirected":
        return [split.share(partial(split.undirected, head=k)) for k in range(8)]
    return [split.share(partial(split.rooted, predictor=k)) for k in range(16)]


@pytest.mark.parametrize("tree", ["undirected", "rooted"])
def test_trees_equal_networkxs(
    tree: str, result: Result, splits: tuple[Counted, Counted], random_splits: tuple[Counted, Counted]
) -> None:
    dev, test = splits
    on_dev, on_test = shares_of(dev, tree), shares_of(test, tree)
    table = result.tables["trees"].frame
    own = table[table["tree"] == tree]
    assert own["dev"].tolist() == on_dev
    assert own["test"].tolist() == on_test
    assert own["head"].tolist() == [NAMES.head(k % 8) for k in range(len(own))]
    if tree == "rooted":
        assert own["direction"].tolist() == ["dependent→head"] * 8 + ["head→dependent"] * 8

    best = result.tables["best_trees"].frame.set_index("tree").loc[tree]
    k = on_dev.index(max(on_dev))
    assert (best["head"], best["dev"], best["test"]) == (NAMES.head(k % 8), on_dev[k], on_test[k])
    random_dev, random_test = (shares_of(split, tree) for split in random_splits)
    assert best["random_init"] == random_test[random_dev.index(max(random_dev))]
    edges_of = test.undirected if tree == "undirected" else test.rooted
    found = test.by_sentence(lambda item: edges_of(item, k))
    by_neighbours = test.by_sentence(test.neighbours)
    assert best["n"] == found[:, 1].sum()
    assert best["right_branching"] == by_neighbours[:, 0].sum() / best["n"]
    interval = bootstrap_ratio(found[:, 0], found[:, 1], share=True, seed=0).interval
    assert (best["low"], best["high"]) == interval
    gain = bootstrap_ratio(found[:, 0] - by_neighbours[:, 0], found[:, 1], share=True, compared=True, seed=0)
    assert best["over_right_branching"] == pytest.approx(best["test"] - best["right_branching"])
    ends = best["over_right_branching.low"], best["over_right_branching.high"]
    assert ends == pytest.approx(gain.interval)
    assert best["p"] == gain.p

    name = "heads.tree" if tree == "undirected" else "heads.rooted_tree"
    assert result.numbers[f"{name}_uuas"] == best["test"]
    assert result.numbers[f"{name}_over_right_branching"] == best["over_right_branching"]
    assert result.numbers["right_branching.tree_uuas"] == best["right_branching"]
    assert result.items is not None
    assert result.items[tree].tolist() == found[:, 0].tolist()
    assert result.items["edges"].tolist() == found[:, 1].tolist()
    assert NAMES.head(k % 8) in result.answer


def test_most_attended_words_equal_counting_by_relation(result: Result, splits: tuple[Counted, Counted]) -> None:
    dev, test = splits
    table = result.tables["relations"].frame
    assert set(table["relation"]) == {"all", "det", "nsubj", "obj", "nmod:poss"}
    for row in table.to_dict("records"):
        relation = row["relation"]
        on_dev = [dev.share(partial(dev.most_attended, head=k), relation) for k in range(8)]
        k = on_dev.index(max(on_dev))
        assert (row["head"], row["dev"]) == (NAMES.head(k), on_dev[k])
        assert row["test"] == test.share(partial(test.most_attended, head=k), relation)
        distances = [dev.at_distance(relation, distance) for distance in (1, 2, 3)]
        assert row["best_distance"] == 1 + distances.index(max(distances))
        assert row["distance"] == test.at_distance(relation, row["best_distance"])
        assert row["over_distance"] == pytest.approx(row["test"] - row["distance"])
        assert row["n"] == sum(len(test.edges(item, relation)) for item in range(len(test.sentences)))
        found = test.by_sentence(partial(test.most_attended, head=k), relation)
        at_best = test.by_sentence(partial(test.between, distance=row["best_distance"]), relation)
        own = bootstrap_ratio(found[:, 0], found[:, 1], share=True)
        assert (row["low"], row["high"]) == pytest.approx(own.interval, nan_ok=True)
        gain = bootstrap_ratio(found[:, 0] - at_best[:, 0], found[:, 1], share=True, compared=True)
        assert (row["over_distance.low"], row["over_distance.high"]) == pytest.approx(gain.interval, nan_ok=True)
        assert row["p"] == pytest.approx(gain.p, nan_ok=True)
    assert table["p_holm"].tolist() == pytest.approx(holm(table["p"].tolist()), nan_ok=True)
    assert (table["p_holm"] > table["p"]).any()
    assert result.numbers["heads.max_uuas"] == table["test"][0]


def check_choice(row: Mapping[Any, Any], dev: Counted, edges_of: list[Callable[[int], Edges]], relation: str) -> None:
    """Compare a row with choosing again among predictors, each given by the edges that it finds in a sentence."""
    by_sentence = np.stack([dev.by_sentence(edges, relation) for edges in edges_of], axis=2)  # [sentences, 2, heads]
    times, tied, without = choose_by_hand(by_sentence[:, 0].tolist(), by_sentence[:, 1].tolist(), seed=0)
    found = by_sentence[:, 0].sum(axis=0)
    k = int(found.argmax())
    assert row["chosen"] == times[k]
    rivals = sorted((number for place, number in enumerate(times) if number and place != k), reverse=True)[:3]
    numbers = [*rivals, *([without] if without else [])]
    as_good = sum(number >= 50 for number in tied)
    expected = [*map(str, numbers), *(["good"] if as_good else [])]
    assert [part.split()[-1] for part in row["rivals"].split(", ") if part] == expected


@pytest.mark.parametrize("tree", ["undirected", "rooted"])
def test_the_head_of_the_best_trees_is_chosen_again(tree: str, result: Result, splits: tuple[Counted, Counted]) -> None:
    dev, _ = splits
    edges_of: list[Callable[[int], Edges]] = [partial(dev.undirected, head=k) for k in range(8)]
    if tree == "rooted":
        edges_of = [partial(dev.rooted, predictor=k) for k in range(16)]
    [row] = result.tables["best_trees"].frame.query("tree == @tree").to_dict("records")
    check_choice(row, dev, edges_of, "all")


def test_the_heads_of_relations_are_chosen_again(result: Result, splits: tuple[Counted, Counted]) -> None:
    dev, _ = splits
    edges_of: list[Callable[[int], Edges]] = [partial(dev.most_attended, head=k) for k in range(8)]
    for row in result.tables["relations"].frame.to_dict("records"):
        check_choice(row, dev, edges_of, row["relation"])


def test_the_test_of_relations_draws_no_more_than_fits_into_memory(
    make_data: MakeData, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("obj", *(f"dep:{number}" for number in range(8)))  # with the row of all edges there are ten
    drawn = []

    def count_draws(*columns: Any, draws: int, seed: int) -> Estimate[Floats]:  # noqa: ANN401
        drawn.append(draws)
        return compare_found(*columns, draws=draws, seed=seed)

    monkeypatch.setattr(head_trees, "compare_found", count_draws)
    data = make_data()
    scored(HeadTrees(relations=names), data)
    monkeypatch.setattr(p_values, "_MOST_CELLS", 1500 * len(data.splits["test"]))
    scored(HeadTrees(relations=names), data)
    assert drawn == [1000, 2000, 1000, 1500]


def test_named_relations_are_rows_in_this_order(result: Result, make_data: MakeData) -> None:
    some = scored(HeadTrees(relations=("obj", "xcomp", "det")), make_data()).tables["relations"].frame
    assert list(some["relation"]) == ["all", "obj", "xcomp", "det"]
    absent = some[some["relation"] == "xcomp"].iloc[0]
    assert absent["n"] == 0
    assert absent.drop(["relation", "n"]).isna().all()
    some = some[some["relation"] != "xcomp"]
    assert some["random_init"].isna().all()
    whole = result.tables["relations"].frame.set_index("relation")
    assert some["test"].tolist() == whole["test"][["all", "obj", "det"]].tolist()


def test_a_relation_that_dev_lacks_is_blank(make_data: MakeData, corpus: str, tmp_path: Path) -> None:
    text = Path(corpus.replace("{split}", "dev")).read_text(encoding="utf-8").replace("\tobj\t", "\tnsubj\t")
    dev = tmp_path / "dev.conllu"
    dev.write_text(text, encoding="utf-8")
    files = {"train": corpus.replace("{split}", "train"), "dev": str(dev), "test": corpus.replace("{split}", "test")}
    result = scored(HeadTrees(), make_data(corpus=files))
    row = result.tables["relations"].frame.set_index("relation").loc["obj"]
    assert row["n"] > 0
    assert row.drop("n").isna().all()


def test_a_treebank_of_roots_is_refused(make_data: MakeData, corpus: str, tmp_path: Path) -> None:
    path = tmp_path / "roots.conllu"
    path.write_text("1\tthe\t_\tNOUN\t_\t_\t0\troot\t_\t_\n\n" * 3, encoding="utf-8")
    data = make_data(corpus={"dev": corpus.replace("{split}", "dev"), "test": str(path)})
    with pytest.raises(UserError, match=r"roots\.conllu: no word depends on another word.* a treebank"):
        scored(HeadTrees(), data)


def test_the_answer_counts_relations_of_enough_words(result: Result) -> None:
    best = result.tables["best_trees"]
    assert isinstance(best.estimate(0, "test"), Estimate)
    assert result.answer.startswith("Chosen on dev, the spanning trees of head ")
    assert "; from the gold root, those of head " in result.answer
    frame = pd.DataFrame(
        {
            "relation": ["all", "det", "obj", "nsubj", "amod", "xcomp"],
            "n": [900, 200, 200, 200, 3, 0],
            "over_distance": [0.1, 0.1, -0.1, 0.1, 0.1, np.nan],
            "p": [0.001, 0.001, 0.001, 0.04, 0.001, np.nan],
            "p_holm": [0.001, 0.001, 0.001, 0.08, 0.001, np.nan],
        }
    )
    units: dict[str, Unit] = {"over_distance": "fraction", "p": "p", "p_holm": "p"}
    answer = trees_answer(best, Table(frame, units))
    assert "beat the best distance in 1 of 3 relations (p < .05 after Holm, n ≥ 20)" in answer
    unstable = Table(best.frame.assign(chosen=[38, 50]), best.units, best.interval)
    answer = trees_answer(unstable, Table(frame, units))
    assert f"head {best.frame['head'][0]} (chosen again in 38 of 100 resamples of dev) find " in answer
    assert answer.count("chosen again") == 1
    none = frame.assign(over_distance=-0.1)
    assert "in none of 3 relations" in trees_answer(best, Table(none, units))
