"""Evaluation of predicted governors against gold arcs, beside baselines without attention."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pandas as pd
from torch import Tensor

from attention_probing.datamodules import DependencyDataModule
from attention_probing.datamodules.dependency import Field
from attention_probing.metrics.attachment import (
    ALL,
    ATTACHMENT_RATIOS,
    PLAIN,
    Arcs,
    attached,
    attachment_scores,
    best_offsets,
    edges_found,
    left_branching,
    offset_heads,
    ratio_scores,
    relation_accuracies,
    right_branching,
    sentence_scores,
    take_arcs,
    uniform_attached,
    uniform_edges_found,
)
from attention_probing.metrics.rows import Rows
from attention_probing.results import Bars, Estimate, Floats, Integers, Result, Table, fill_sentence
from attention_probing.results.errors import UserError, setting
from attention_probing.results.progress import warn


def read_fields(data: DependencyDataModule, reads: Collection[str], reader: str, *, random_init: bool = False) -> None:
    """Limit the batches of a datamodule to the fields that an experiment reads.

    Args:
        data: The datamodule, after `setup`.
        reads: Names of the fields; gold arcs are always read.
        reader: Class name of the experiment, for messages.
        random_init: True if the experiment can also read batches of an encoder with random weights.

    Raises:
        UserError: The experiment reads attention or hidden states, and the data have no encoder; or the
            data have batches of an encoder with random weights, and `random_init` is False.
    """
    if data.random_init and not random_init:
        raise UserError(f"{setting('data.random_init')} is true, but {reader} has no such control. Set it to false.")
    if data.encoder_identity is None and (needs := set(reads) - {"vectors"}):
        needed = "hidden states" if needs == {"hidden"} else "attention"
        raise UserError(
            f"{reader} needs {needed}, but {setting('data.encoder')} is null. Name an encoder with "
            f"{setting('encoder')}."
        )
    data.read_only(cast("frozenset[Field]", frozenset(reads)))


def check_relations(wanted: Sequence[str], known: Sequence[str]) -> None:
    """Warn of the relations that the user has named and the corpus lacks, whose rows are blank (`rows_of`).

    Treebanks of some languages lack a relation, as the Japanese ones lack `flat`.

    Args:
        wanted: Relations that the user has named.
        known: Relations of the corpus.

    Raises:
        UserError: The corpus has none of the relations.
    """
    absent = [name for name in wanted if name not in known]
    if not absent:
        return
    wrong = f"{setting('model.relations')}: no word of the corpus has the relation {', '.join(map(repr, absent))}"
    if len(absent) == len(wanted):
        raise UserError(f"{wrong}; the relations are {', '.join(known)}.")
    warn(f"{wrong}: such rows are blank. The relations are {', '.join(known)}.")


@dataclass(frozen=True)
class PredictedArcs:
    """Predicted governors of the words of a batch.

    All are int64 `[batch, n]`, with arbitrary values in the padding.

    Attributes:
        heads: Best-scored head of each word, 0 for the root.
        tree: Head of each word in the best-scored tree; None if trees were not predicted.
    """

    heads: Tensor
    tree: Tensor | None = None


def evaluate_arcs(
    experiment: str,
    data: DependencyDataModule,
    dev: Rows,
    test: Rows,
    relations: Sequence[str] = (),
    audit: Mapping[str, object] | None = None,
) -> Result:
    """Return the attachment scores of predictions and baselines on test, with a table and a figure by relation.

    The scores are UAS and UUAS, both also for the predicted trees. `baseline_scores` lists the baselines. Free
    choices of a baseline, such as the fixed offset, are made on dev. Every process must call it.

    Args:
        experiment: Name of the experiment.
        data: The datamodule of the batches.
        dev: Words of dev, added by `add_arcs`.
        test: Words of test, added by `add_arcs`; the columns `heads` and `tree` are the fields of `PredictedArcs`.
            Without them the baselines alone are scored.
        relations: Relations shown in the table and the figure, in this order, after the row for
            all words and the row for all words but punctuation; empty for all relations. The row of a relation that no
            word of test has is blank, with n = 0.
        audit: Entries of the result's audit, by name.
    """
    arcs_of_dev, _ = take_arcs(dev)
    arcs, predicted = take_arcs(test)
    split = data.splits["test"]
    scores = baseline_scores(arcs_of_dev, arcs, len(data.relations))
    if "heads" in predicted:
        found = attached(arcs, predicted["heads"])
        items, ratios = sentence_counts(arcs, predicted, split.ids)
        scores = ratio_scores(items, ratios) | scores
        headline = ["uas", "uuas", "offset.uas"]
        text = "the probe finds the governors of {uas} of {n} words; the best fixed offset {offset.uas}"
    else:
        found, items, ratios = None, None, {}
        headline = ["offset.uas", "uniform.uas"]
        text = "the best fixed offset finds the governors of {offset.uas} of {n} words; uniform attention {uniform.uas}"
    text += "; right branching {right_branching.uas}; left branching {left_branching.uas}"
    table = relation_table(arcs_of_dev, arcs, data.relations, found)
    table = rows_of(table, relations, blank=True)
    return Result(
        experiment=experiment,
        scores=scores,
        tables={"relations": table},
        figures={"relations": relation_bars(table)},
        audit={"units": split.describe_units(), **blank_relations(table), **(audit or {})},
        items=items,
        ratios=ratios,
        shares=tuple(ratios),
        headline=headline,
        answer=fill_sentence(text, scores, n=int((~arcs.punctuation).sum())),
    )


def sentence_counts(
    test: Arcs, predicted: Mapping[str, Integers], ids: Sequence[str]
) -> tuple[pd.DataFrame, dict[str, tuple[str, str]]]:
    """Count gold arcs, and correctly predicted arcs, in each sentence.

    Args:
        test: Gold arcs.
        predicted: Predictions `heads` and `tree` for all words, each `[words]`; see `PredictedArcs`.
        ids: Id of each sentence of the split.

    Returns:
        A frame with a row of counts for each sentence, and a mapping from the name of each score, such
        as `uas` or `tree.uas`, to two columns of the frame: its numerator and its denominator.
    """
    heads = predicted["heads"]
    tree = predicted["tree"]
    items = sentence_scores(test, attached(test, heads), edges_found(test, heads))
    items.insert(1 + ("document" in items), "id", [ids[sentence] for sentence in items["sentence"]])
    of_trees = sentence_scores(test, attached(test, tree), edges_found(test, tree))
    items["tree_correct"] = of_trees["correct"]
    items["tree_edges_found"] = of_trees["edges_found"]
    ratios = {**ATTACHMENT_RATIOS, "tree.uas": ("tree_correct", "scored"), "tree.uuas": ("tree_edges_found", "edges")}
    return items, ratios


SHOWN = 25
"""Most relations in the figure; the most frequent ones are shown."""


def baseline_scores(dev: Arcs, test: Arcs, relations: int) -> dict[str, Estimate]:
    """Return the attachment scores of every baseline on test, such as `offset.uas` and `uniform.uuas`.

    The baselines are `offset`, the fixed offset that is best on dev; `right_branching`;
    `left_branching`; and `uniform`, uniform attention. If `Arcs.reach` limits the words that can be
    attended to, uniform attention differs by layer and direction. Its scores are then those of the
    layer and direction that are best on dev.

    Args:
        dev: Gold arcs of dev.
        test: Gold arcs of test.
        relations: Number of relations in the corpus.
    """
    offset, _ = best_offsets(dev, relations)
    heads: dict[str, Integers] = {
        "offset": offset_heads(test, offset),
        "right_branching": right_branching(test),
        "left_branching": left_branching(test),
    }
    # Without a reach all layers and directions are one way, and each split may be without.
    way = 0 if test.reach is None else int(uniform_attached(dev)[:, ~dev.punctuation].sum(1).argmax())
    scores = attachment_scores(test, uniform_attached(test)[way], uniform_edges_found(test)[way], prefix="uniform.")
    for name, predicted in heads.items():
        scores |= attachment_scores(test, attached(test, predicted), edges_found(test, predicted), prefix=f"{name}.")
    return scores


def relation_table(dev: Arcs, test: Arcs, relations: tuple[str, ...], found: Floats | None) -> Table:
    """Return the accuracy of a probe on each relation, beside the best fixed offset for the relation.

    The offset is chosen on dev, and both are scored on test.

    Args:
        dev: Gold arcs of dev.
        test: Gold arcs of test.
        relations: Names of the relations.
        found: Float64 `[words]` over test, 1.0 where the probe finds the head; None without a probe.

    Returns:
        Table with columns `relation, n, probe, low, high, offset, best_offset`. `probe` and `offset` are
        accuracies, and `best_offset` is the chosen distance from a word to its head. The interval is that
        of `probe`, or of `offset` if there is no probe.
    """
    overall, own = best_offsets(dev, len(relations))
    by_offset = attached(test, offset_heads(test, own[test.relation]))
    table = relation_accuracies(test, by_offset, relations)
    # The rows over all relations: one offset for all words, not each relation's own.
    single = relation_accuracies(test, attached(test, offset_heads(test, overall)), relations)
    over_all = ~table["relation"].isin(relations)
    table[over_all] = single[over_all]
    offset = dict(zip(relations, own.tolist(), strict=True))
    probe = table if found is None else relation_accuracies(test, found, relations)
    frame = pd.DataFrame(
        {
            "relation": table["relation"],
            "n": table["n"],
            "probe": np.nan if found is None else probe["accuracy"],
            "low": probe["low"],
            "high": probe["high"],
            "offset": table["accuracy"],
            "best_offset": [offset.get(name, overall) for name in table["relation"]],
        }
    )
    interval = "offset" if found is None else "probe"
    main = ["relation", *([] if found is None else ["probe"]), "offset"]
    return Table(frame, dict.fromkeys(("probe", "offset"), "fraction"), interval, main)


def rows_of(table: Table, relations: Sequence[str], *, blank: bool = False) -> Table:
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
    shown = table.frame[table.frame["relation"].isin(order)]
    place = shown["relation"].map(order.index)
    return table.rows(place.sort_values(kind="stable").index.tolist())


def blank_relations(table: Table) -> dict[str, list[str]]:
    """Return the audit entry `blank_relations`, the relations of a table without words; empty if there are none."""
    names = table.frame.loc[table.frame["n"] == 0, "relation"].tolist()
    return {"blank_relations": names} if names else {}


def _with_blank_rows(table: Table, relations: Sequence[str]) -> Table:
    """Add a row for each of these relations, with n = 0 and without any other number."""
    if not relations:
        return table
    frame, rows = table.frame, len(table.frame)
    # Integers that pandas would turn into floats where one is missing.
    whole = frame.select_dtypes("integer").columns
    frame = frame.astype(dict.fromkeys(whole, "Int64")).reindex(range(rows + len(relations)))
    frame.loc[rows:, "relation"] = list(relations)
    frame["n"] = frame["n"].fillna(0).astype(np.int64)
    units = {
        name: unit if isinstance(unit, str) else [*unit, *[unit[0]] * len(relations)]
        for name, unit in table.units.items()
    }
    return replace(table, frame=frame, units=units)


def relation_bars(table: Table) -> Bars:
    """Return a bar chart of the accuracies in the first 25 rows of a table from `relation_table` that are not blank.

    The bars are the accuracy of the probe, if there is one, and of the best fixed offset.
    """
    shown = table.rows(np.flatnonzero(table.frame["n"] > 0)[:SHOWN].tolist())
    probe = {"probe": "probe"} if shown.frame["probe"].notna().any() else {}
    series = {**probe, "best fixed offset": "offset"}
    return Bars.from_table("Words with the right head, per relation", shown, "relation", series, "accuracy (%)")
