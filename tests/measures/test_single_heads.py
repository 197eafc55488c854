"""Heads as predictors of governors, against counting in the store and by hand."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from attention_probing.attention import EncoderSpec, Options
from attention_probing.attention.quantities import QuantityName
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import AttentionBatch, DependencyDataModule
from attention_probing.datamodules.dependency import DependencySplit
from attention_probing.measures import Baselines, Measure, SingleHeads
from attention_probing.measures.best_heads import ChosenHeads
from attention_probing.measures.head_figures import stability_bars
from attention_probing.measures.head_roles import head_roles
from attention_probing.metrics.attachment import add_arcs, take_arcs
from attention_probing.metrics.bootstrap import bootstrap_ratio
from attention_probing.metrics.draws import resamples
from attention_probing.metrics.heads import DIRECTIONS, Predictions, most_attended
from attention_probing.metrics.rows import Rows
from attention_probing.metrics.stability import draw_resamples
from attention_probing.results import AttentionLines, Bars, Estimate, HeatMap, Result
from attention_probing.results.errors import UserError
from attention_probing.results.heads import HeadNames
from tests.measures.counted import CountedSplit, MakeData
from tests.measures.intervals import interval_by_hand, p_at
from tests.metrics.samples import arcs
from tests.tiny import save_gemma3, save_mistral, save_modernbert
from tests.trainers import changed, scored

BEST = "relation n head direction dev test low high offset best_offset random_init"
BEST += " n_dev dev_gap over_offset over_offset.low over_offset.high p_offset p_holm p_shuffled"
BEST += " chosen rivals random_init_chosen"
NAMES = HeadNames((0, 1), (0, 1, 2, 3))
FORTH, BACK = DIRECTIONS

RunConfig = Callable[..., tuple[Any, dict[str, Any], Path]]


def probe(**options: Any) -> SingleHeads:  # noqa: ANN401
    return changed(SingleHeads(**options), permutations=9, minimum=1)


@pytest.fixture(scope="module")
def result(make_data: MakeData) -> Result:
    return scored(probe(), make_data(random_init=True))


@pytest.fixture(scope="module")
def paper(make_data: MakeData) -> Result:
    return scored(probe(mode="paper"), make_data(random_init=True))


class Counted(CountedSplit):
    """A split, and what every head says in it, read off the store one word after the other."""

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
        for item in range(len(self.sentences)):
            tree = self.undirected(item, head)
            gold = self.edges(item)
            total += len(gold)
            found += sum(frozenset(edge) in tree for edge in gold)
        return found, total


ROLES = (
    "head confidence offset offset_share positional relation direction margin syntactic accuracy low high fixed_offset "
    "positional_again syntactic_again chosen rivals"
)


@pytest.fixture(scope="module")
def splits(make_data: MakeData, corpus: str) -> tuple[Counted, Counted]:
    return Counted.of_dev_and_test(make_data, corpus)


@pytest.fixture(scope="module")
def random_splits(make_data: MakeData, corpus: str) -> tuple[Counted, Counted]:
    return Counted.of_dev_and_test(make_data, corpus, random=True)


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
    trees = paper.tables["trees"].frame
    assert trees["test"].isna().all()
    assert paper.numbers["heads.tree_uuas"] == trees["dev"].max()
    assert np.isnan(paper.numbers["heads.tree_uuas.low"])


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
        expected = pd.DataFrame(rows, columns=list(table)).astype(table.dtypes)
        pd.testing.assert_frame_equal(found.tables[name].frame, expected)
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


def test_roles_on_resamples_are_those_of_the_drawn_sentences() -> None:
    """A resample is a split in which a sentence stands as often as it was drawn."""
    rng = np.random.default_rng(4)
    heads = np.array([[0, 1, 1, 2, 2, 1]] * 9)
    names = np.array([["root", *rng.permutation(["obj", "obj", "det", "det", "amod"])] for _ in range(9)])
    offsets = rng.choice([-1, -2, 1, 2], (9, 6, 8), p=[0.4, 0.2, 0.2, 0.2])
    offsets[..., 0] = -1  # one positional head, and one that is it on some resamples
    offsets[..., 1] = np.where(rng.random((9, 6)) < 0.92, 2, -1)
    follows = rng.random((9, 6, 8)) < np.linspace(0, 0.5, 8)
    forward = np.where(follows, heads[..., None], np.arange(1, 7)[:, None] + offsets)
    predicted = np.concatenate([forward, rng.integers(1, 7, (9, 6, 8))], axis=2)
    known = ("root", "obj", "det", "amod")

    def roles(drawn: Sequence[int]) -> tuple[pd.DataFrame, dict[str, Estimate]]:
        relations = [[known.index(name) for name in names[sentence]] for sentence in drawn]
        gold = arcs(heads[list(drawn)].tolist(), relations=relations, punctuation=[[False] * 6] * len(drawn))
        split = Predictions(gold, known, predicted[list(drawn)].reshape(-1, 16))
        table, scores = head_roles(ChosenHeads(split, split, NAMES, seed=3), np.zeros((2, 4)), 1)
        return table.frame, scores

    dev, scores = roles(range(9))
    again = dict.fromkeys(("positional_again", "syntactic_again", "chosen"), np.zeros(8, np.int64))
    overlaps: dict[str, list[float]] = {"positional": [], "syntactic": []}
    for times in draw_resamples(9, seed=3):
        frame, _ = roles(np.repeat(np.arange(9), times).tolist())
        same = (frame["relation"] == dev["relation"]) & (frame["direction"] == dev["direction"])
        again["chosen"] = again["chosen"] + same.to_numpy()
        for role, values in overlaps.items():
            again[f"{role}_again"] = again[f"{role}_again"] + frame[role].to_numpy()
            union = (frame[role] | dev[role]).sum()
            values.append((frame[role] & dev[role]).sum() / union if union else 1.0)
    for name, expected in again.items():
        assert dev[name].tolist() == expected.tolist()
        assert 0 < expected.min() < 100 or 0 < expected[1] < 100
    for role, values in overlaps.items():
        assert scores[f"{role}_heads.overlap"].value == pytest.approx(np.mean(values))
        assert 0 < np.mean(values) < 1
    assert dev["rivals"].str.contains(r"(?:obj|det|amod)[→←] \d").any()


def test_roles_of_one_document_are_not_resampled() -> None:
    gold = arcs([[0, 1, 1, 2]] * 3, relations=[[0, 1, 1, 1]] * 3, punctuation=[[False] * 4] * 3)
    split = Predictions(replace(gold, document=np.zeros(12, np.int64)), ("root", "obj"), np.ones((12, 16), np.int16))
    table, scores = head_roles(ChosenHeads(split, split, NAMES), np.zeros((2, 4)), 1)
    columns = ["positional_again", "syntactic_again", "chosen", "rivals"]
    assert table.frame[columns].isna().all(axis=None)
    assert np.isnan(scores["syntactic_heads.overlap"].value)


def test_bars_show_how_often_heads_are_chosen_again(result: Result) -> None:
    bars = result.figures["stability"]
    assert isinstance(bars, Bars)
    frame = result.tables["best_heads"].frame
    assert bars.categories == tuple(frame["relation"] + " " + frame["head"])
    assert bars.series["best head"] == frame["chosen"].tolist()
    assert bars.series["best head, untrained layers"] == frame["random_init_chosen"].tolist()
    assert bars.unit == "count"
    unknown = frame.assign(chosen=pd.array([None] * len(frame), dtype="Int64"))
    assert stability_bars(replace(result.tables["best_heads"], frame=unknown)) is None
