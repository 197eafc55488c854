import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from attention import EncoderSpec, Options
from datamodules import DependencyDataModule
from datamodules.dependency import DependencySplit
from heads.experiment import ExperimentError
from heads.single_heads import (
    Drawing,
    Names,
    Predictions,
    best_bars,
    best_heads,
    check_drawing,
    draw_sentence,
    examples,
    relation_maps,
)
from metrics.heads import DIRECTIONS, most_attended
from metrics.rows import ArcPredictions
from results import AttentionLines, Figure, HeatMap
from tests.heads.hand_drawn import DEV, NAMES, TEST, counted, predictions
from tests.tiny import save_gpt2

FORTH, BACK = DIRECTIONS


def table(scored: Predictions | None = None, control: tuple[Predictions, Predictions] | None = None) -> pd.DataFrame:
    dev = predictions(DEV)
    return best_heads(dev, dev if scored is None else scored, control, NAMES, permutations=1, seed=0).frame


def heat_map(figures: Mapping[str, Figure], name: str) -> HeatMap:
    figure = figures[name]
    assert isinstance(figure, HeatMap)
    return figure


def test_bars_show_what_was_scored_beside_its_controls() -> None:
    best = table(predictions(TEST))
    bars = best_bars(best)
    assert "chosen on dev" in bars.title
    assert bars.category_label.endswith("(layer-head)")
    # Without root, which nothing ever finds; no head finds amod either, but an offset does.
    assert bars.categories[2:] == ("nsubj 1-1", "amod 1-2", "det 2-1", "obj 1-2")
    best = best[best["relation"] != "root"]
    assert list(bars.series) == ["best head", "best fixed offset"]
    assert bars.series["best head"] == best["test"].tolist()
    assert bars.series["best fixed offset"] == best["offset"].tolist()
    np.testing.assert_array_equal(bars.intervals["best head"], [best["low"], best["high"]])


def test_bars_of_paper_mode_show_dev() -> None:
    dev = predictions(DEV)
    best = table(None, (dev, dev))
    bars = best_bars(best)
    assert "one split" in bars.title
    best = best[best["relation"] != "root"]
    assert list(bars.series) == ["best head", "best fixed offset", "best head, random weights"]
    assert bars.series["best head"] == best["dev"].tolist()
    assert bars.series["best head, random weights"] == best["dev"].tolist()


def test_maps_hold_the_accuracy_of_every_head_in_the_best_ones_direction() -> None:
    test = predictions(TEST)
    best = table(test)
    figures = relation_maps(test, best, NAMES, 5)
    assert list(figures) == [
        "heads_all",
        "heads_all_no_punctuation",
        "heads_nsubj",
        "heads_amod",
        "heads_det",
    ]
    highest = max(np.nanmax(heat_map(figures, name).values) for name in figures)
    assert {heat_map(figures, name).limits for name in figures} == {(0.0, highest)}
    for name, way, marked in (("nsubj", 0, (0, 0)), ("det", 1, (1, 0)), ("all", 0, (0, 1))):
        figure = heat_map(figures, f"heads_{name}")
        assert figure.marked == marked
        assert figure.title == f"{name}, {DIRECTIONS[way]}"
        for head in range(4):
            right, total = counted(TEST, name, head + 4 * way)
            assert figure.values[head // 2, head % 2] == right / total


def test_maps_name_the_layers_and_heads_of_the_encoder() -> None:
    dev, names = predictions(DEV), Names((1, 4), (0, 2))
    best = best_heads(dev, dev, None, names, permutations=1, seed=0).frame
    figure = heat_map(relation_maps(dev, best, names, 3), "heads_det")
    assert (figure.row_labels, figure.column_labels, figure.marked) == (["2", "5"], ["1", "3"], (1, 0))


@pytest.fixture(scope="module")
def split(bert: Path, corpus: str, cache: str) -> tuple[DependencySplit, Predictions, Names]:
    return opened(DependencyDataModule(corpus, encoder=EncoderSpec(str(bert)), cache=cache))


def opened(data: DependencyDataModule) -> tuple[DependencySplit, Predictions, Names]:
    """Dev with the predictions of all heads."""
    data.setup("validate")
    metric = ArcPredictions(2 * len(data.layers) * len(data.heads))
    for batch in data.val_dataloader():
        found = most_attended(batch.attention, batch.lengths).flatten(2)
        metric.update(batch.index, batch.heads, batch.relations, batch.punctuation, batch.lengths, found)
    arcs, rows = metric.compute()
    return data.splits["dev"], Predictions(arcs, data.relations, rows), Names(data.layers, data.heads)


def sentences(split: DependencySplit) -> Iterator[tuple[str, list[str], torch.Tensor]]:
    for item, name in enumerate(split.ids):
        yield name, split.store.labels["words"][item].as_py(), split.store.read("attention", item)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("relation", [None, "all", "det", "root", "all (no punctuation)"])
def test_a_drawing_holds_the_heads_weights_and_the_gold_arcs(
    split: tuple[DependencySplit, Predictions, Names], relation: str | None, direction: str
) -> None:
    data, scored, names = split
    arcs = scored.arcs
    drawn = 0
    for item, (name, words, attention) in enumerate(sentences(data)):
        wanted = Drawing("2-3", name, relation, FORTH if direction == FORTH else BACK)
        lines = draw_sentence(wanted, scored, names, data)
        assert lines.title.startswith("Head 2-3 (layer-head)")
        assert lines.words == ("[start]", *words, "[end]")
        np.testing.assert_array_equal(lines.weights, attention[1, 2].double().numpy())
        expected = set()
        for row in np.flatnonzero(arcs.sentence == item).tolist():
            label = scored.relations[arcs.relation[row]]
            wrong = relation == "all (no punctuation)" and label == "punct"
            if arcs.head[row] > 0 and not wrong and (relation in (None, label) or str(relation).startswith("all")):
                pair = (int(arcs.word[row]), int(arcs.head[row]))
                expected.add(pair if direction == FORTH else pair[::-1])
        assert lines.arcs == expected
        drawn += len(expected)
    assert (drawn > 0) == (relation != "root")


def test_delimiters_are_drawn_where_the_tokenizer_writes_them(corpus: str, tmp_path: Path) -> None:
    encoder = EncoderSpec(str(save_gpt2(tmp_path / "gpt2")))
    data, scored, names = opened(
        DependencyDataModule(corpus, encoder=encoder, options=Options(layers=(2,)), cache=str(tmp_path))
    )
    for name, words, attention in sentences(data):
        lines = draw_sentence(Drawing("2-1", name), scored, names, data)
        assert lines.words == tuple(words)
        np.testing.assert_array_equal(lines.weights, attention[0, 0, 1:-1, 1:-1].double().numpy())
        assert all(scored.arcs.head[scored.arcs.sentence == data.ids.index(name)][i] == j + 1 for i, j in lines.arcs)
    with pytest.raises(ExperimentError, match="no head '1-1'"):
        check_drawing(Drawing("1-1", data.ids[0]), names, data, scored.relations)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Drawing("3-1", "tiny-dev-0"), "no head '3-1'; heads are called layer-head, from "),
        (Drawing("0-1", "tiny-dev-0"), "no head '0-1'"),
        (Drawing("1", "tiny-dev-0"), "no head '1'"),
        (Drawing("1-1-1", "tiny-dev-0"), "no head '1-1-1'"),
        (Drawing("one-1", "tiny-dev-0"), "no head 'one-1'"),
        (Drawing("1-1", "tiny-test-0"), "no sentence 'tiny-test-0'"),
        (Drawing("1-1", "tiny-dev-0", "dobj"), "no relation 'dobj'"),
    ],
)
def test_what_cannot_be_drawn_is_named(
    split: tuple[DependencySplit, Predictions, Names], wanted: Drawing, message: str
) -> None:
    data, scored, names = split
    with pytest.raises(ExperimentError, match=re.escape(message)):
        check_drawing(wanted, names, data, scored.relations)


def test_examples_show_the_heads_furthest_above_the_best_offset(
    split: tuple[DependencySplit, Predictions, Names], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, scored, names = split
    monkeypatch.setattr("heads.single_heads._WORDS", range(4, 9))
    best = best_heads(scored, scored, None, names, permutations=1, seed=0).frame
    margins = {
        row["relation"]: row["dev"] - row["offset"]
        for _, row in best.iterrows()
        if not row["relation"].startswith("all")
    }
    found = examples(scored, best, names, data, minimum=1)
    assert len(found) == 3
    order = sorted(margins, key=lambda name: -margins[name])
    assert [order.index(str(one.relation)) for one in found] == sorted(order.index(str(one.relation)) for one in found)
    for one in found:
        row = best[best["relation"] == one.relation].iloc[0]
        assert (one.head, one.direction) == (row["head"], row["direction"])
        # In no sentence of a readable length does the head find more arcs of the relation.
        hits = {name: 0 for name, words, _ in sentences(data) if 4 <= len(words) <= 8}
        layer, head = map(int, one.head.split("-"))
        column = scored.predicted[:, DIRECTIONS.index(one.direction) * len(names) + (layer - 1) * 4 + head - 1]
        for place, item in enumerate(scored.arcs.sentence.tolist()):
            same = scored.relations[scored.arcs.relation[place]] == one.relation
            if same and data.ids[item] in hits and column[place] == scored.arcs.head[place]:
                hits[data.ids[item]] += 1
        assert hits[one.sentence] == max(hits.values()) > 0
        assert isinstance(draw_sentence(one, scored, names, data), AttentionLines)
