"""Figures of single heads: bars of the best, maps of the accuracy of all, and their attention in example sentences."""

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from attention_probing.attention.words import drawable
from attention_probing.datamodules.dependency import DependencySplit
from attention_probing.measures.best_heads import ChosenHeads
from attention_probing.metrics.attachment import ALL, PLAIN
from attention_probing.metrics.heads import DIRECTIONS
from attention_probing.metrics.relations import MOST_RELATIONS
from attention_probing.metrics.stability import RESAMPLES
from attention_probing.results import AttentionLines, Bars, HeatMap, Integers, Table, on_one_scale
from attention_probing.results.figures import TitlePart
from attention_probing.results.heads import head_map

MOST_SENTENCES = 3
"""Most example sentences."""
WORDS = range(8, 19)
"""Words of an example sentence: enough to see something, few enough to read it."""


def accuracy_maps(heads: ChosenHeads, best: pd.DataFrame, most: int) -> Mapping[str, HeatMap]:
    """Return heat maps of the accuracy of every attention head, one for each group of words.

    The groups are those in the first rows of the table: all words, all words without punctuation,
    and then relations, the most frequent first. A group is skipped if no attention head (on dev) and
    no fixed offset finds any of its governors. A map shows the direction of the group's best
    head, and frames this head. All maps share one colour scale.

    Args:
        heads: Predictions of all heads on dev and on the scored split.
        best: Frame of the table that `ChosenHeads.best_heads` returns.
        most: Largest number of maps.

    Returns:
        The maps by name, `heads_<group>`; other characters than letters and digits become `_`.
    """
    figures: dict[str, HeatMap] = {}
    for _, row in find_rows_with_hits(best).head(most).iterrows():
        shape = (2, len(heads.names.layers), len(heads.names.heads))
        accuracies = heads.scored.accuracies(row["relation"]).reshape(shape)
        accuracy = accuracies[DIRECTIONS.index(row["direction"])]
        stem = "heads_" + re.sub("[^A-Za-z0-9]+", "_", row["relation"]).strip("_")
        if stem in figures:  # labels that differ in other letters alone
            stem += f"_{len(figures) + 1}"
        title = f"Accuracy of each head: {row['relation']}, {row['direction']}"
        figures[stem] = head_map(title, accuracy, heads.names, heads.names.place(row["head"]))
    return on_one_scale(figures)


def example_sentences(
    heads: ChosenHeads, best: pd.DataFrame, split: DependencySplit, minimum: int
) -> dict[str, AttentionLines]:
    """Draw the attention of up to three relations' best heads, each in one sentence (Clark et al. 2019, Fig. 5).

    The relations are those whose best head gains most over the best fixed offset. For each, the
    sentence of 8 to 18 words is chosen in which the head finds most arcs of the relation.

    Args:
        heads: Predictions of all heads on dev and on the scored split.
        best: Frame of the table that `ChosenHeads.best_heads` returns.
        split: The scored split.
        minimum: Least number of words of a relation.
    """
    arcs = heads.scored.arcs
    has_head = best["head"].notna()
    relations = best[has_head & ~best["relation"].isin([ALL, PLAIN]) & (best["n"] >= max(minimum, 1))]
    gain = relations["test"].fillna(relations["dev"]) - relations["offset"]
    order = gain.sort_values(ascending=False, kind="stable").index
    figures: dict[str, AttentionLines] = {}
    for _, row in relations.loc[order].iterrows():
        words = heads.scored.groups[row["relation"]]
        right = words & heads.hits(heads.heads[row["relation"]])
        right &= np.isin(arcs.length, WORDS)
        if not right.any():
            continue
        sentence = int(np.bincount(arcs.sentence[right]).argmax())
        linked = words & (arcs.sentence == sentence) & (arcs.head > 0)
        pairs = np.stack([arcs.word[linked], arcs.head[linked]], axis=1)
        if row["direction"] == DIRECTIONS[1]:
            pairs = pairs[:, ::-1]
        name = f"attention_{len(figures) + 1}_{row['head']}"
        figures[name] = draw_sentence(row, split, sentence, heads.names.place(row["head"]), pairs)
        if len(figures) == MOST_SENTENCES:
            break
    return figures


def draw_sentence(
    row: pd.Series, split: DependencySplit, sentence: int, head: tuple[int, int], arcs: Integers
) -> AttentionLines:
    """Return a drawing of the attention of one head in one sentence, delimiters included if the tokenizer writes them.

    Args:
        row: Row of the table that `ChosenHeads.best_heads` returns.
        split: The split with its stored attention.
        sentence: Index of the sentence in the split.
        head: Place of the head in the stored attention.
        arcs: Positions from and to, from 1, of the attention that is coloured, `[arcs, 2]`.
    """
    manifest = split.store.manifest
    words = split.store.labels["words"][sentence].as_py()
    first = 1 - manifest.delimiters["start"]
    last = len(words) + 1 + manifest.delimiters["end"]
    attention = split.store.read(manifest.maps_name, sentence)
    weights, what = drawable(attention[head].numpy(), manifest.quantity)
    return AttentionLines(
        title=f"Head {row['head']} (layer-head){what}, {row['relation']}, {row['direction']}",
        words=tuple(["[start]", *words, "[end]"][first:last]),
        weights=weights[first:last, first:last].astype(np.float64),
        arcs=frozenset((source, target) for source, target in (arcs - first).tolist()),
        from_label="attends",
        to_label="is attended to",
    )


def best_bars(best: Table) -> Bars | None:
    """Return a bar chart of the accuracy of the best attention head of each of the most frequent relations.

    Two more bars per relation show the accuracy of its best fixed offset and, if it was computed, of the
    best head of an encoder with random weights.

    Args:
        best: Table that `ChosenHeads.best_heads` returns.

    Returns:
        The chart; None if no head and no offset finds a governor.
    """
    rows = find_rows_with_hits(best.frame).index[:MOST_RELATIONS].tolist()
    if not rows:
        return None
    table = best.rows(rows)
    frame = table.frame
    series = {"best head": str(best.interval), "best fixed offset": "offset"}
    if frame["random_init"].notna().any():
        series["best head, untrained layers"] = "random_init"
    title = "Best single head per relation, chosen and scored on one split"
    title_says: TitlePart | None = None
    if best.interval == "test":
        title = "Best single head per relation, chosen on dev, scored on test"
        title_says = "split"
    table = replace(table, frame=frame.assign(name=frame["relation"] + " " + frame["head"]))
    label = "relation and its best head (layer-head)"
    return Bars.from_table(title, table, "name", series, "accuracy (%)", label, title_says=title_says)


def stability_bars(best: Table) -> Bars | None:
    """Return a bar chart of how often the best head of each of the most frequent relations is chosen again.

    A second bar per relation is of the best head of an encoder with random weights, if it was computed.

    Args:
        best: Table that `ChosenHeads.best_heads` returns.

    Returns:
        The chart; None if no head can be chosen again.
    """
    frame = best.frame
    is_defined = frame["chosen"].notna()
    rows = frame[is_defined & frame.index.isin(find_rows_with_hits(frame).index)].head(MOST_RELATIONS)
    if rows.empty:
        return None
    series = {"best head": rows["chosen"].astype(float).tolist()}
    if "random_init_chosen" in rows:
        series["best head, untrained layers"] = rows["random_init_chosen"].astype(float).tolist()
    return Bars(
        "Best single head per relation, chosen again on resamples of dev",
        tuple(rows["relation"] + " " + rows["head"]),
        series,
        f"times chosen in {RESAMPLES} resamples",
        unit="count",
        category_label="relation and its best head (layer-head)",
        title_says="split",
    )


def find_rows_with_hits(best: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of relations that some head or offset finds; relations to ROOT have none."""
    return best[(best["dev"].fillna(0.0) > 0) | (best["offset"] > 0)]
