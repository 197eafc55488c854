"""Tables of accuracies by relation: of a probe beside fixed offsets, and the rows that a user has asked for."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attention_probing.metrics.attachment import (
    ALL,
    PLAIN,
    Arcs,
    attached,
    best_offsets,
    offset_heads,
    relation_accuracies,
)
from attention_probing.results import Bars, Floats, Table, Unit
from attention_probing.results.errors import list_first

MOST_RELATIONS = 25
"""Most relations in the figure; the most frequent ones are shown."""


def relation_table(dev: Arcs, test: Arcs, relations: tuple[str, ...], hits: Floats | None) -> Table:
    """Return the accuracy of a probe on each relation, beside the best fixed offset for the relation.

    The offset is chosen on dev, and both are scored on test.

    Args:
        dev: Gold arcs of dev.
        test: Gold arcs of test.
        relations: Names of the relations.
        hits: Float64 `[words]` over test, 1.0 where the probe finds the head; None without a probe.

    Returns:
        Table with columns `relation, n, probe, low, high, offset, best_offset`. `probe` and `offset` are
        accuracies, and `best_offset` is the chosen distance from a word to its head. The interval is that
        of `probe`, or of `offset` if there is no probe.
    """
    overall, of_relations = best_offsets(dev, len(relations))
    by_offset = attached(test, offset_heads(test, of_relations[test.relation]))
    offset = relation_accuracies(test, by_offset, relations)
    # The rows over all relations: one offset for all words, not each relation's own.
    single = relation_accuracies(test, attached(test, offset_heads(test, overall)), relations)
    over_all = ~offset["relation"].isin(relations)
    offset[over_all] = single[over_all]
    offsets = dict(zip(relations, of_relations.tolist(), strict=True))

    frame = offset[["relation", "n"]].copy()
    frame["probe"] = np.nan
    interval = "offset"
    predictor = offset
    main = ["relation", "offset"]
    if hits is not None:
        predictor = relation_accuracies(test, hits, relations)
        frame["probe"] = predictor["accuracy"]
        interval = "probe"
        main = ["relation", "probe", "offset"]
    frame["low"] = predictor["low"]
    frame["high"] = predictor["high"]
    frame["offset"] = offset["accuracy"]
    frame["best_offset"] = [offsets.get(name, overall) for name in frame["relation"]]
    return Table(frame, dict.fromkeys(("probe", "offset"), "fraction"), interval, main)


def explain_offsets(table: Table) -> str:
    """Return why the fixed offset is above the probe for some relations; empty if it is above its interval for none.

    The relations are named in the order of this gap, the widest first.

    Args:
        table: Table of `relation_table`, with rows for relations and for all words.
    """
    frame = table.frame
    if frame["probe"].isna().all():
        return ""
    above = frame["offset"] > frame["high"]
    rows = frame[above & ~frame["relation"].isin([ALL, PLAIN])]
    if rows.empty:
        return ""
    gap = rows["offset"] - rows["probe"]
    widest_first = gap.sort_values(ascending=False, kind="stable").index
    names = rows.loc[widest_first, "relation"].tolist()
    return (
        "Each offset is chosen for the relation of its row; the probe is not told the relation of a word. The offset "
        f"is above the interval of the probe in {list_first(names)}."
    )


def keep_relations(table: Table, relations: Sequence[str], *, blank: bool = False) -> Table:
    """Return a table with only the rows of some relations, in the order of `relations`.

    The row for all words and the row for all words but punctuation are kept too, and come first.

    Args:
        table: Table with a column `relation`.
        relations: Relations to keep; if empty, the whole table is returned.
        blank: Add a row with n = 0 and nothing else for each relation that the table lacks.
    """
    if not relations:
        return table
    if blank:
        known = set(table.frame["relation"])
        table = _with_blank_rows(table, [name for name in relations if name not in known])
    order = [ALL, PLAIN, *relations]
    rows = table.frame[table.frame["relation"].isin(order)]
    place = rows["relation"].map(order.index)
    return table.rows(place.sort_values(kind="stable").index.tolist())


def blank_relations(table: Table) -> dict[str, list[str]]:
    """Return the audit entry `blank_relations`, the relations of a table without words; empty if there are none."""
    names = table.frame.loc[table.frame["n"] == 0, "relation"].tolist()
    return {"blank_relations": names} if names else {}


def _with_blank_rows(table: Table, relations: Sequence[str]) -> Table:
    """Add a row for each of these relations, with n = 0 and without any other number."""
    if not relations:
        return table
    frame = table.frame
    rows = len(frame)
    # Integers that pandas would turn into floats where one is missing.
    integers = frame.select_dtypes("integer").columns
    frame = frame.astype(dict.fromkeys(integers, "Int64")).reindex(range(rows + len(relations)))
    frame.loc[rows:, "relation"] = list(relations)
    frame["n"] = frame["n"].fillna(0).astype(np.int64)
    units: dict[str, Unit | Sequence[Unit]] = {}
    for name, unit in table.units.items():
        if isinstance(unit, str):
            units[name] = unit
        else:
            units[name] = [*unit, *[unit[0]] * len(relations)]
    return replace(table, frame=frame, units=units)


def relation_bars(table: Table) -> Bars:
    """Return a bar chart of the accuracies in the first 25 rows of a table from `relation_table` that are not blank.

    The bars are the accuracy of the probe, if there is one, and of the best fixed offset.
    """
    rows = table.rows(np.flatnonzero(table.frame["n"] > 0)[:MOST_RELATIONS].tolist())
    series = {}
    if rows.frame["probe"].notna().any():
        series["probe"] = "probe"
    series["best fixed offset"] = "offset"
    return Bars.from_table("Words with the right head, per relation", rows, "relation", series, "accuracy (%)")
