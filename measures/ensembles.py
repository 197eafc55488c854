"""Ensembles of attention heads, whose averaged attention finds governors (Limisiewicz et al. 2020, §4.2)."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention_probing.attention.store import Store
from attention_probing.measures.best_heads import ChosenHeads
from attention_probing.metrics.attachment import ALL, PLAIN, Arcs
from attention_probing.metrics.bootstrap import bootstrap_ratio
from attention_probing.metrics.heads import DIRECTIONS
from attention_probing.results import Flags, Floats, Table, Unit

Group = tuple[Flags, int]
"""Words of a relation, bool `[words]`, and a direction: 0 reads the attention from a word to its governor, 1 from
the governor to the word."""


def ensembles_table(
    heads: ChosenHeads, dev: Store, scored: Store, relations: Sequence[str], minimum: int, most: int
) -> Table:
    """Return the ensemble of each relation and direction, chosen on dev and scored on the scored split.

    Args:
        heads: Predictions of all heads on dev and on the scored split.
        dev: Stored attention of dev.
        scored: Stored attention of the scored split.
        relations: Names of the relations; empty for all.
        minimum: Least number of words of a relation on dev.
        most: Largest number of heads of an ensemble.

    Returns:
        Table with columns `relation, n, direction, heads, dev, test, low, high, single`. `dev` and `test` are the
        accuracies of the ensemble, and `single` is the accuracy of its first head alone on the scored split.
    """
    candidates = []
    for relation in relations or heads.groups:
        words_of_dev = np.count_nonzero(heads.dev.groups.get(relation, ()))
        is_relation = relation not in (ALL, PLAIN) and relation in heads.groups
        if is_relation and words_of_dev >= minimum:
            candidates.append((relation, 0))
            candidates.append((relation, 1))
    rows = []
    if candidates:
        groups_of_dev = [(heads.dev.groups[relation], direction) for relation, direction in candidates]
        chosen = choose_ensembles(dev, heads.dev.arcs, groups_of_dev, most)
        groups = [(heads.groups[relation], direction) for relation, direction in candidates]
        ensembles = [ensemble for ensemble, _ in chosen]
        hits = ensemble_hits(scored, heads.scored.arcs, groups, ensembles)
        for (relation, direction), (ensemble, right_on_dev), right in zip(candidates, chosen, hits, strict=True):
            on_dev = right_on_dev / np.count_nonzero(heads.dev.groups[relation])
            rows.append(_row(heads, relation, direction, ensemble, on_dev, right))
    columns = ["relation", "n", "direction", "heads", "dev", "test", "low", "high", "single"]
    units: dict[str, Unit] = dict.fromkeys(("dev", "test", "single"), "fraction")
    return Table(pd.DataFrame(rows, columns=columns), units, heads.split)


def _row(
    heads: ChosenHeads, relation: str, direction: int, ensemble: Sequence[int], on_dev: float, right: Floats
) -> tuple[object, ...]:
    """Return the row of an ensemble; `right` is 1.0 for each word of the relation whose governor it finds."""
    together = " + ".join(heads.names.head(head) for head in ensemble)
    first = ensemble[0] + direction * len(heads.names)
    single = heads.scored.accuracy(relation, first)
    test = np.nan
    low = np.nan
    high = np.nan
    if heads.split == "test":  # where dev is scored, no interval of one ensemble holds for the best of all
        units = heads.scored.arcs.units_of_words[heads.groups[relation]]
        unit = np.unique(units, return_inverse=True)[1]
        accuracy = bootstrap_ratio(np.bincount(unit, weights=right), np.bincount(unit), share=True, seed=heads.seed)
        test = float(right.mean())
        low = float(accuracy.interval[0])
        high = float(accuracy.interval[1])
    return (relation, len(right), DIRECTIONS[direction], together, on_dev, test, low, high, single)


def choose_ensembles(store: Store, arcs: Arcs, groups: Sequence[Group], most: int) -> list[tuple[tuple[int, ...], int]]:
    """Choose heads whose averaged attention finds more governors than each alone (Limisiewicz et al. 2020, §4.2).

    Attention heads are added one at a time, each time the one that helps most, until none helps or there are `most`.
    The attention is read once for each head that is added, for all groups together.

    Args:
        store: Stored attention of the sentences.
        arcs: Gold arcs of the sentences.
        groups: Words for which heads are chosen.
        most: Largest number of attention heads.

    Returns:
        For each group, indices of the chosen attention heads, counted layer by layer, in the order of the choice; and
        the number of its words whose governor they find.
    """
    chosen: list[tuple[int, ...]] = [()] * len(groups)
    reached = [-1] * len(groups)
    growing = dict(enumerate(groups))
    for _ in range(most):
        counts = _counts_with_one_more(store, arcs, growing, chosen)
        for group, right in counts.items():
            best = int(right.argmax())
            if int(right[best]) > reached[group]:
                chosen[group] = (*chosen[group], best)
                reached[group] = int(right[best])
            else:
                del growing[group]
        if not growing:
            break
    return list(zip(chosen, reached, strict=True))


def _counts_with_one_more(
    store: Store, arcs: Arcs, groups: Mapping[int, Group], chosen: Sequence[tuple[int, ...]]
) -> dict[int, Tensor]:
    """Count the governors that the ensemble of each group finds with one more head, int64 `[heads]`.

    The count is −1 for a head that is in the ensemble already.
    """
    counts: dict[int, Tensor] = {}
    for group, rows, weights in _weights_between_words(store, arcs, groups):
        ensemble = sum(weights[:, head, None] for head in chosen[group])
        gold = torch.from_numpy(arcs.head[rows])[:, None]
        right = find_governors(weights + ensemble, gold).sum(0)
        counts[group] = counts.get(group, 0) + right
    for group, right in counts.items():
        right[list(chosen[group])] = -1
    return counts


def ensemble_hits(store: Store, arcs: Arcs, groups: Sequence[Group], heads: Sequence[Sequence[int]]) -> list[Floats]:
    """Return, for each word of each group, 1.0 if the averaged attention of its heads finds its governor.

    Args:
        store: Stored attention of the sentences.
        arcs: Gold arcs of the sentences.
        groups: The words.
        heads: Indices of the attention heads of each group, counted layer by layer.

    Returns:
        For each group float64, one number for each True in its words, in the order of the arcs.
    """
    right = np.zeros((len(groups), len(arcs)))
    for group, rows, weights in _weights_between_words(store, arcs, dict(enumerate(groups))):
        ensemble = weights[:, list(heads[group])].sum(1)
        right[group, rows] = find_governors(ensemble, torch.from_numpy(arcs.head[rows])).numpy()
    return [right[group, words] for group, (words, _) in enumerate(groups)]


def find_governors(weights: Tensor, gold: Tensor) -> Tensor:
    """Return True where the gold governor `[...]` has the greatest weight of `[..., n]`; zeros predict nothing."""
    most, place = weights.max(-1)
    return (place + 1 == gold) & (most > 0)


def _weights_between_words(
    store: Store, arcs: Arcs, groups: Mapping[int, Group]
) -> Iterator[tuple[int, NDArray[np.int64], Tensor]]:
    """Yield, by sentence and group, rows of arcs, and weights between their words and all n words, `[rows, heads, n]`.

    The word itself is minus infinity. A word without another one is its own prediction, and wrong.
    """
    starts = np.flatnonzero(arcs.word == 1)
    first_row = dict(zip(arcs.sentence[starts].tolist(), starts.tolist(), strict=True))
    any_group = np.logical_or.reduce([words for words, _ in groups.values()])
    sentences = np.unique(arcs.sentence[any_group])
    for sentence, attention in store.each(store.manifest.maps_name, sentences.tolist()):
        weights = attention.flatten(0, 1)[..., 1:-1, 1:-1]
        weights.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
        start = first_row[sentence]
        for group, (words, direction) in groups.items():
            rows = start + np.flatnonzero(words[start : start + weights.size(-1)])
            if not len(rows):
                continue
            word = torch.from_numpy(arcs.word[rows]) - 1
            from_words = weights[:, word] if direction == 0 else weights[..., word].mT
            yield group, rows, from_words.transpose(0, 1)
