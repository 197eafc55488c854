"""Scores of arcs: UAS and UUAS with intervals, accuracy per relation, counts per sentence.

Each takes what `metrics.attachment` says word by word (right or not, edge found or not), or the expectation of it
under a random baseline; both are averaged the same way.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from metrics.attachment import Arcs, Floats, Integers
from metrics.bootstrap import bootstrap_ratio
from results import Estimate, Unit, estimates

RATIOS = {
    "uas": ("correct", "scored"),
    "uuas": ("edges_found", "edges"),
    "uas_with_punctuation": ("correct_with_punctuation", "words"),
}
"""The scores that `sentence_scores` holds the counts of: right ones, and all that were scored."""


def attachment_scores(
    arcs: Arcs, attached: Floats, edges: Floats, *, prefix: str = "", seed: int = 0
) -> dict[str, Estimate]:
    """UAS and UUAS without punctuation, and UAS with it, as fractions with 95 % intervals over sentences.

    Args:
        arcs: Gold arcs.
        attached: `[words]` from `attached` or `uniform_attached`.
        edges: `[words]` from `edges_found` or `uniform_edges_found`; nan where there is no edge to find.
        prefix: Put before each name, for instance `offset.`.
        seed: Seed of the bootstrap.

    Returns:
        `uas`, `uuas` and `uas_with_punctuation`; nan where nothing was scored.
    """
    return ratio_scores(sentence_scores(arcs, attached, edges), RATIOS, prefix=prefix, seed=seed)


def ratio_scores(
    items: pd.DataFrame,
    ratios: Mapping[str, tuple[str, str]],
    *,
    unit: Unit = "fraction",
    prefix: str = "",
    seed: int = 0,
) -> dict[str, Estimate]:
    """Scores that are one column's sum over another's, with 95 % intervals over the rows.

    Args:
        items: One row per unit that was sampled independently, for instance a sentence.
        ratios: Numerator and denominator of each score.
        unit: Of the scores.
        prefix: Put before each name.
        seed: Seed of the bootstrap.

    Returns:
        Each score; nan where nothing was scored.
    """
    right = items[[numerator for numerator, _ in ratios.values()]].to_numpy(dtype=np.float64)
    scored = items[[denominator for _, denominator in ratios.values()]].to_numpy(dtype=np.float64)
    values = _ratio(right.sum(axis=0), scored.sum(axis=0))
    low, high = bootstrap_ratio(right, scored, seed=seed)
    return estimates([f"{prefix}{name}" for name in ratios], values, low, high, unit)


def relation_accuracies(arcs: Arcs, attached: Floats, relations: Sequence[str], *, seed: int = 0) -> pd.DataFrame:
    """Accuracy of each relation, with 95 % intervals over sentences.

    Args:
        arcs: Gold arcs.
        attached: `[words]` from `attached` or `uniform_attached`.
        relations: The labels that `arcs.relation` points into.
        seed: Seed of the bootstrap.

    Returns:
        Columns `relation, n, accuracy, low, high`. The first row is `all` (punctuation counted), the second
        `all (no punctuation)`; then the relations that occur, the most frequent first.

    Raises:
        ValueError: `arcs.relation` points past the labels.
    """
    labels = len(relations)
    if len(arcs) and not 0 <= arcs.relation.min() <= arcs.relation.max() < labels:
        raise ValueError(f"relation {arcs.relation.max()} of the arcs has no label: there are {labels} labels")
    sentence, sentences = _sentences(arcs)
    plain = ~arcs.punctuation
    cell = sentence * labels + arcs.relation
    cells = sentences * labels
    totals = np.column_stack(
        [
            np.bincount(sentence, minlength=sentences),
            np.bincount(sentence, weights=plain, minlength=sentences),
            np.bincount(cell, minlength=cells).reshape(sentences, labels),
        ]
    ).astype(np.float64)
    right = np.column_stack(
        [
            np.bincount(sentence, weights=attached, minlength=sentences),
            np.bincount(sentence, weights=attached * plain, minlength=sentences),
            np.bincount(cell, weights=attached, minlength=cells).reshape(sentences, labels),
        ]
    ).astype(np.float64)  # of no words at all bincount makes integers
    low, high = bootstrap_ratio(right, totals, seed=seed)
    n = totals.sum(axis=0).astype(np.int64)
    frequency = n[2:]
    order = np.argsort(-frequency, kind="stable")
    rows = np.concatenate([[0, 1], 2 + order[frequency[order] > 0]])
    return pd.DataFrame(
        {
            "relation": np.array(["all", "all (no punctuation)", *relations], dtype=object)[rows],
            "n": n[rows],
            "accuracy": _ratio(right.sum(axis=0), totals.sum(axis=0))[rows],
            "low": low[rows],
            "high": high[rows],
        }
    )


def sentence_scores(arcs: Arcs, attached: Floats, edges: Floats) -> pd.DataFrame:
    """One row per sentence: what was right in it, in counts that add up to the scores.

    Returns:
        Columns `sentence, words, scored` (words that are not punctuation), `correct` (of those),
        `correct_with_punctuation, edges` (gold edges that count), `edges_found`.
    """
    sentence, sentences = _sentences(arcs)
    plain = ~arcs.punctuation
    has_edge = plain & ~np.isnan(edges)
    return pd.DataFrame(
        {
            "sentence": arcs.sentence[arcs.word == 1],
            "words": np.bincount(sentence, minlength=sentences),
            "scored": count(arcs, plain).astype(np.int64),
            "correct": count(arcs, attached * plain),
            "correct_with_punctuation": count(arcs, attached),
            "edges": count(arcs, has_edge).astype(np.int64),
            "edges_found": count(arcs, np.where(has_edge, edges, 0.0)),
        }
    )


def count(arcs: Arcs, of_words: Floats | NDArray[np.bool_]) -> Floats:
    """Sum what is said of words `[words]` over each sentence `[sentences]`."""
    sentence, sentences = _sentences(arcs)
    return np.bincount(sentence, weights=of_words.astype(np.float64), minlength=sentences).astype(np.float64)


def _sentences(arcs: Arcs) -> tuple[Integers, int]:
    """`[words]` the running number of each word's sentence, from 0 without gaps, and how many there are."""
    first = arcs.word == 1
    return np.cumsum(first) - 1, int(first.sum())


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    return np.divide(numerator, denominator, out=np.full_like(numerator, np.nan), where=denominator != 0)
