"""The fixed baselines of Clark et al. (2019), in the same tables and figures as what is compared with them."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from metrics.attachment import (
    Arcs,
    Floats,
    Integers,
    attached,
    attachment_scores,
    best_offsets,
    edges_found,
    left_branching,
    offset_heads,
    relation_accuracies,
    right_branching,
    uniform_attached,
    uniform_edges_found,
)
from metrics.heads import ALL, PLAIN
from results import Bars, Estimate, Table, Unit

FRACTION: Unit = "fraction"
SHOWN = 25
"""Relations in the figure: the most frequent ones."""


def baseline_scores(dev: Arcs, test: Arcs, relations: int) -> dict[str, Estimate]:
    """Scores on test of every baseline, as `offset.uas`, `right_branching.uas`, …; the offset is chosen on dev."""
    offset, _ = best_offsets(dev, relations)
    heads: dict[str, Integers] = {
        "offset": offset_heads(test, offset),
        "right_branching": right_branching(test),
        "left_branching": left_branching(test),
    }
    scores = attachment_scores(test, uniform_attached(test), uniform_edges_found(test), prefix="uniform.")
    for name, predicted in heads.items():
        scores |= attachment_scores(test, attached(test, predicted), edges_found(test, predicted), prefix=f"{name}.")
    return scores


def relation_table(dev: Arcs, test: Arcs, relations: tuple[str, ...], found: Floats | None) -> Table:
    """Accuracy per relation of a probe beside the best fixed offset of that relation, chosen on dev, scored on test.

    Args:
        dev: gold arcs on which each relation's offset is chosen.
        test: gold arcs that are scored.
        relations: names of the labels.
        found: `[words]` of test, 1 where the probe found the head; None without a probe.

    Returns:
        Columns `relation, n, probe, low, high, offset, best_offset`: accuracies as fractions, the interval of the
        probe, and the offset itself as `best_offset`. Without a probe the interval is the offset's.
    """
    overall, own = best_offsets(dev, len(relations))
    by_offset = np.zeros(len(test))
    for k in np.unique(own[test.relation]):
        chosen = own[test.relation] == k
        by_offset[chosen] = attached(test, offset_heads(test, int(k)))[chosen]
    table = relation_accuracies(test, by_offset, relations)
    # The rows over all relations: one offset for all words, not each relation's own.
    single = relation_accuracies(test, attached(test, offset_heads(test, overall)), relations)
    over_all = ~table["relation"].isin(relations)
    table[over_all] = single[over_all]
    number = {name: place for place, name in enumerate(relations)}
    offsets = [int(own[number[name]]) if name in number else overall for name in table["relation"]]
    probe = table if found is None else relation_accuracies(test, found, relations)
    frame = pd.DataFrame(
        {
            "relation": table["relation"],
            "n": table["n"],
            "probe": np.nan if found is None else probe["accuracy"],
            "low": probe["low"],
            "high": probe["high"],
            "offset": table["accuracy"],
            "best_offset": offsets,
        }
    )
    units = dict.fromkeys(("probe", "offset"), FRACTION)
    return Table(frame, units, interval="offset" if found is None else "probe")


def rows_of(table: Table, relations: Sequence[str]) -> Table:
    """The rows over all words, and those of the relations that were named, in their order; all rows where none was."""
    if not relations:
        return table
    order = {name: place for place, name in enumerate((ALL, PLAIN, *relations))}
    shown = table.frame[table.frame["relation"].isin(order)]
    return table.rows(
        shown.sort_values("relation", key=lambda column: column.map(order), kind="stable", ignore_index=True)
    )


def relation_bars(table: Table) -> Bars:
    """The most frequent relations of a `relation_table`, as bars."""
    shown = table.frame.head(SHOWN)
    probed = bool(shown["probe"].notna().any())
    series = {"probe": shown["probe"].tolist()} if probed else {}
    series["best fixed offset"] = shown["offset"].tolist()
    interval = (shown["low"].tolist(), shown["high"].tolist())
    return Bars(
        title="Words with the right head, per relation",
        categories=tuple(shown["relation"]),
        series=series,
        label="accuracy (%)",
        intervals={next(iter(series)): interval},
        unit="fraction",
    )
