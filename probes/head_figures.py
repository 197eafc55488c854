"""The figures of single heads: bars beside the controls, a map of all heads per relation, one sentence's attention."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from datamodules.dependency import DependencySplit
from metrics.attachment import Floats
from metrics.heads import ALL, DIRECTIONS, PLAIN, Direction
from probes.base import ProbeError
from probes.comparison import SHOWN
from probes.head_tables import Names, Predictions
from results import AttentionLines, Bars, HeatMap, on_one_scale

_EXAMPLES = 3
_WORDS = range(8, 19)
"""Words of a sentence that is drawn by itself: enough to see something, few enough to read it."""


@dataclass(frozen=True)
class Drawing:
    """A sentence of the scored split whose attention is drawn (Clark et al. 2019, Fig. 5).

    Args:
        head: `layer-head`, from 1.
        sentence: its id in the corpus.
        relation: whose arcs are coloured; None colours all.
        direction: the coloured lines run from the dependent to its head, or back.
    """

    head: str
    sentence: str
    relation: str | None = None
    direction: Direction = "dependent→head"


def best_bars(best: pd.DataFrame) -> Bars:
    """The most frequent relations of a table `best_heads`, beside the best offset and the best random head."""
    shown = _found(best).head(SHOWN)
    held_out = bool(shown["test"].notna().any())
    controls = {"best fixed offset": shown["offset"].tolist()}
    if shown["random_init"].notna().any():
        controls["best head, random weights"] = shown["random_init"].tolist()
    return Bars(
        title="Best single head per relation" + (", chosen on dev" if held_out else ", chosen and scored on one split"),
        categories=tuple(f"{name} {head}" for name, head in zip(shown["relation"], shown["head"], strict=True)),
        series={"best head": shown["test" if held_out else "dev"].tolist(), **controls},
        label="accuracy (%)",
        intervals={"best head": (shown["low"].tolist(), shown["high"].tolist())},
        category_label="relation and its best head (layer-head)",
        unit="fraction",
    )


def head_map(title: str, accuracy: Floats, names: Names, marked: tuple[int, int]) -> HeatMap:
    """Accuracies of all heads `[layers, heads]`, with a frame around one of them."""
    return HeatMap(
        title=title,
        values=accuracy,
        row_labels=[str(number + 1) for number in names.layers],
        column_labels=[str(number + 1) for number in names.heads],
        row_label="layer",
        column_label="head",
        value_label="accuracy (%)",
        unit="fraction",
        marked=marked,
    )


def _found(best: pd.DataFrame) -> pd.DataFrame:
    """Relations that some head or offset finds: no word can attend to ROOT."""
    return best[(best["dev"].fillna(0.0) > 0) | (best["offset"] > 0)]


def relation_maps(scored: Predictions, best: pd.DataFrame, names: Names, most: int) -> Mapping[str, HeatMap]:
    """Accuracy of every head on the most frequent relations, in the direction of the best head, which is marked.

    All maps have one scale of colours.
    """
    figures: dict[str, HeatMap] = {}
    size = len(names.layers), len(names.heads)
    for _, row in _found(best).head(most).iterrows():
        direction = DIRECTIONS.index(row["direction"])
        counts = scored.counts[row["relation"]].reshape(2, *size)[direction]
        layer, head = (int(number) - 1 for number in row["head"].split("-"))
        stem = "heads_" + re.sub("[^A-Za-z0-9]+", "_", row["relation"]).strip("_")
        if stem in figures:  # labels that differ in other letters alone
            stem += f"_{len(figures) + 1}"
        place = names.layers.index(layer), names.heads.index(head)
        figures[stem] = head_map(f"{row['relation']}, {row['direction']}", counts / row["n"], names, place)
    return on_one_scale(figures)


def examples(
    scored: Predictions, best: pd.DataFrame, names: Names, split: DependencySplit, minimum: int
) -> tuple[Drawing, ...]:
    """For the heads furthest above the best offset, the sentence in which they find most arcs of their relation.

    Relations of less than `minimum` words are left out.
    """
    relations = best[~best["relation"].isin([ALL, PLAIN]) & (best["n"] >= minimum)]
    accuracy = relations["test"].fillna(relations["dev"])
    order = (accuracy - relations["offset"]).sort_values(ascending=False, kind="stable").index
    found: list[Drawing] = []
    for _, row in relations.loc[order].iterrows():
        words = scored.groups[row["relation"]]
        layer, head = (int(number) - 1 for number in row["head"].split("-"))
        index = names.layers.index(layer) * len(names.heads) + names.heads.index(head)
        direction = DIRECTIONS.index(row["direction"])
        right = words & (scored.column(index + direction * len(names)) == scored.arcs.head)
        right &= np.isin(scored.arcs.length, _WORDS)
        if len(found) < _EXAMPLES and right.any():
            hits = np.bincount(scored.arcs.sentence[right])
            found.append(Drawing(row["head"], split.ids[int(hits.argmax())], row["relation"], DIRECTIONS[direction]))
    return tuple(found)


def check_drawing(wanted: Drawing, names: Names, split: DependencySplit, relations: Sequence[str]) -> None:
    """Refuse what cannot be drawn.

    Raises:
        ProbeError: there is no such head, sentence or relation.
    """
    if wanted.head not in [names.head(index) for index in range(len(names))]:
        raise ProbeError(
            f"drawings: there is no head {wanted.head!r}; heads are called layer-head, from {names.head(0)} to "
            f"{names.head(len(names) - 1)}."
        )
    if wanted.sentence not in split.ids:
        raise ProbeError(
            f"drawings: the split that is scored has no sentence {wanted.sentence!r}; they are called as "
            f"{split.ids[0]!r}, see items.parquet."
        )
    if wanted.relation is not None and wanted.relation not in {*relations, ALL, PLAIN}:
        raise ProbeError(f"drawings: there is no relation {wanted.relation!r} in the corpus.")


def draw_sentence(wanted: Drawing, scored: Predictions, names: Names, split: DependencySplit) -> AttentionLines:
    """One head's attention in one sentence, delimiters included where the tokenizer writes them."""
    layer, head = (int(number) - 1 for number in wanted.head.split("-"))
    place = names.layers.index(layer), names.heads.index(head)
    item = split.ids.index(wanted.sentence)
    arcs = scored.arcs
    here = (arcs.sentence == item) & (arcs.head > 0)
    if wanted.relation is not None:
        here &= scored.groups.get(wanted.relation, np.zeros(len(arcs), dtype=np.bool_))
    pairs = [(int(word), int(gold)) for word, gold in zip(arcs.word[here], arcs.head[here], strict=True)]
    if wanted.direction == DIRECTIONS[1]:
        pairs = [(gold, word) for word, gold in pairs]
    words = split.store.labels["words"][item].as_py()
    delimiters = split.store.manifest.delimiters
    first, last = 1 - delimiters["start"], len(words) + 1 + delimiters["end"]
    weights = split.store.read("attention", item)[place].numpy().astype(np.float64)
    gold_name = wanted.relation or "all arcs"
    return AttentionLines(
        title=f"Head {wanted.head} (layer-head), {gold_name}, {wanted.direction}",
        words=tuple(["[start]", *words, "[end]"][first:last]),
        weights=weights[first:last, first:last],
        arcs=frozenset((start - first, end - first) for start, end in pairs),
        from_label="attends",
        to_label="is attended to",
    )
