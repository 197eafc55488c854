"""Evaluation of predicted governors against gold arcs, beside baselines without attention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd
from torch import Tensor

from attention_probing.datamodules import DependencyDataModule
from attention_probing.metrics.attachment import (
    ATTACHMENT_RATIOS,
    Arcs,
    attached,
    baseline_scores,
    edges_found,
    ratio_scores,
    sentence_scores,
    take_arcs,
)
from attention_probing.metrics.relations import (
    blank_relations,
    explain_offsets,
    keep_relations,
    relation_bars,
    relation_table,
)
from attention_probing.metrics.rows import Rows
from attention_probing.results import Integers, Result, fill_sentence


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
    hits = None
    items = None
    ratios: dict[str, tuple[str, str]] = {}
    if "heads" in predicted:
        hits = attached(arcs, predicted["heads"])
        items, ratios = sentence_counts(arcs, predicted, split.ids)
        scores = ratio_scores(items, ratios) | scores
        headline = ["uas", "uuas", "offset.uas"]
        text = "the probe finds the governors of {uas} of {n} words; the best fixed offset {offset.uas}"
    else:
        headline = ["offset.uas", "uniform.uas"]
        text = "the best fixed offset finds the governors of {offset.uas} of {n} words; uniform attention {uniform.uas}"
    text += "; right branching {right_branching.uas}; left branching {left_branching.uas}"
    table = relation_table(arcs_of_dev, arcs, data.relations, hits)
    table = keep_relations(table, relations, blank=True)
    table = replace(table, note=explain_offsets(table))
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
