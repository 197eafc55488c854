"""Antecedent selection (Clark et al. 2019, §4.3): does an attention head attend to an earlier mention of the cluster?

A window is one input of the encoder, with its mentions ordered by (start, −end, cluster). The candidates of a mention
are the head words of earlier mentions, except its own head word. A candidate is gold if it heads an earlier mention of
the same cluster. A *link* is a mention with a gold candidate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attention_probing.metrics.attachment import sums_by
from attention_probing.metrics.bootstrap import bootstrap_ratio
from attention_probing.metrics.stability import ChoiceStability, choose_again
from attention_probing.results import Estimate, Flags, Floats, Integers

ANTECEDENT_DIRECTIONS = ("mention→antecedent", "antecedent→mention")
"""Names along the axis of directions: attention from the mention's head word, and attention to it."""

ANTECEDENT_GROUPS = ("all", "pronoun", "proper", "nominal")
"""Groups of links that an accuracy is reported for; the three types have the codes 0, 1 and 2."""

TYPES = len(ANTECEDENT_GROUPS)
"""Number of mention types; links of the last, the unknown type with code 3, count in the group `all` alone."""


@dataclass(frozen=True, eq=False)
class Links:
    """Links of one window: its mentions that have an earlier mention of the same cluster, with another head word.

    Both mentions must be in the window. U is the number of distinct head words of all mentions of the window.

    Attributes:
        heads: Positions of the head words in the window, `[U]`, 0-based, ascending.
        mention: Index of each link's mention in the window, `[links]`, ascending.
        source: Index, in `heads`, of the head word of each link's mention, `[links]`.
        type: Mention type of each link, `[links]`: 0 pronoun, 1 proper, 2 nominal, 3 unknown.
        candidates: Bool `[links, U]`, True for head words of earlier mentions, except the link's own head word.
        gold: Bool `[links, U]`, True for the candidates that are head words of earlier mentions of the link's
            cluster.
    """

    heads: Integers
    mention: Integers
    source: Integers
    type: Integers
    candidates: Flags
    gold: Flags

    def __len__(self) -> int:
        return int(self.mention.size)


def find_links(head_words: Integers, clusters: Integers, types: Integers) -> Links:
    """Return the links of one window: its mentions that have an antecedent in the window.

    A mention is left out if all earlier mentions of its cluster lie in other windows or share its head word.

    Args:
        head_words: 0-based position of the head word of each mention, `[mentions]`.
        clusters: Cluster of each mention, `[mentions]`.
        types: Type of each mention, `[mentions]`: 0 pronoun, 1 proper, 2 nominal, 3 unknown.
    """
    order = np.arange(head_words.size)[:, None]
    heads, first, head = np.unique(head_words, return_index=True, return_inverse=True)
    others = head[:, None] != np.arange(heads.size)
    # Index of the first mention of each cluster with each head word; the number of mentions if there is none.
    numbers, cluster = np.unique(clusters, return_inverse=True)
    first_of_cluster = np.full((numbers.size, heads.size), head_words.size)
    np.minimum.at(first_of_cluster, (cluster, head), order[:, 0])
    candidates = (first < order) & others
    gold = (first_of_cluster[cluster] < order) & others
    mention = np.flatnonzero(gold.any(axis=1))
    return Links(
        heads=heads.astype(np.int64),
        mention=mention,
        source=head[mention],
        type=types[mention].astype(np.int64),
        candidates=candidates[mention],
        gold=gold[mention],
    )


class Choices(NamedTuple):
    """Choices of an antecedent by every attention head for every link, bool `[2, layers, heads, links]`.

    The first axis is the direction of attention: mention→antecedent, then antecedent→mention.

    Attributes:
        right: True if the chosen word is gold.
        without_weight: True if all candidates have weight zero, for instance because of a causal mask; False for a
            link without candidates.
    """

    right: Tensor
    without_weight: Tensor


def antecedent_hits(weights: Tensor, links: Links) -> Choices:
    """Choose, for every attention head and link, the candidate with the greatest weight.

    On a tie the last candidate is chosen. A choice with weight zero is wrong.

    Args:
        weights: Attention between the head words of `links.heads`, `[layers, heads, U, U]`, axes from
            and to.
        links: The links of the window.

    Returns:
        Two tensors, bool `[2, layers, heads, links]`: True for right choices, and True where all
        candidates have weight zero. The first axis is the direction of attention: mention→antecedent,
        then antecedent→mention.
    """
    return _hits(weights, weights.mT, links, links.candidates, links.gold)


def antecedent_hits_among_words(rows: Tensor, columns: Tensor, links: Links) -> Choices:
    """Choose an antecedent for each link: of all words before its head word, that of greatest weight.

    The choice is made for every attention head and both directions of attention. Words are candidates
    whether they head a mention or not. On a tie the last is chosen; a choice with weight zero is
    wrong.

    A gold candidate after the link's head word (the head of a longer mention that begins earlier)
    cannot be chosen. A link without another gold candidate is therefore always wrong.

    Args:
        rows: Attention from each head word to the n words of the window, `[layers, heads, U, n]`.
        columns: Attention from the n words to each head word, `[layers, heads, U, n]`.
        links: The links of the window.

    Returns:
        Two tensors, each bool `[2, layers, heads, links]`, with `rows` at index 0 of the first axis
        and `columns` at 1: True if the choice is right; and True if all candidates have weight zero.
    """
    words = rows.shape[-1]
    before = np.arange(words) < links.heads[links.source][:, None]
    gold = np.zeros((len(links), words), dtype=np.bool_)
    gold[:, links.heads] = links.gold
    return _hits(rows, columns, links, before, gold & before)


def _hits(rows: Tensor, columns: Tensor, links: Links, candidates: Flags, gold: Flags) -> Choices:
    """Choose by the greatest weight among `candidates` `[links, c]` in two tensors `[layers, heads, U, c]`."""
    if not len(links):
        none = torch.zeros(2, *rows.shape[:2], 0, dtype=torch.bool, device=rows.device)
        return Choices(none, none)
    source = torch.tensor(links.source, device=rows.device)
    barred = torch.tensor(~candidates, device=rows.device)
    right = torch.tensor(gold, device=rows.device)
    each = torch.arange(len(links), device=rows.device)
    hits = []
    without_weight = []
    for weights in (rows, columns):
        scores = weights[:, :, source].masked_fill(barred, -torch.inf)  # [layers, heads, links, c]
        # `max` returns the first of equals; on the flipped axis that is the last. Without candidates the word is wrong.
        most, chosen = scores.flip(-1).max(-1)
        chosen = scores.size(-1) - 1 - chosen
        hits.append(right[each, chosen] & (most > 0))
        without_weight.append((most <= 0) & (most > -torch.inf))
    return Choices(torch.stack(hits), torch.stack(without_weight))


def count_by_type(flags: Tensor, types: Tensor) -> Tensor:
    """Count the links with a flag by mention type, int64 `[…, 4]`.

    Args:
        flags: Bool `[…, links]`, for instance True for the right choices of each predictor.
        types: Mention type of each link, `[links]`.
    """
    of_type = types == torch.arange(TYPES, device=types.device)[:, None]
    return (flags[..., None, :] & of_type).sum(-1)


def accuracies(
    hits: Integers, links: Integers, units: Sequence[str] | None = None, *, draws: int = 1000, seed: int = 0
) -> Estimate[Floats]:
    """Return the accuracy of each predictor on the `ANTECEDENT_GROUPS`, with 95 % intervals.

    Documents are resampled, because the links of one document share its clusters and are not
    independent.

    Args:
        hits: Number of right choices of each predictor in each document, `[documents, ..., 4]`. The
            axes `...` are of predictors, the last axis is the mention type: pronoun, proper, nominal, unknown.
        links: Number of links in each document by mention type, `[documents, 4]`.
        units: Name of the whole document of each, if documents are divided into parts; None if each is a whole one.
        draws: Number of resamples.
        seed: Seed of the resampling.

    Returns:
        Accuracies `[..., 4]`: all links, then pronouns, proper and nominal mentions; nan for a group
        without links.
    """
    names = range(len(links)) if units is None else units
    right = _sum_units(count_groups(hits), names)
    same_for_all_predictors = (1,) * (hits.ndim - 2)
    total = _sum_units(count_groups(links), names)
    total = total.reshape(len(total), *same_for_all_predictors, -1)
    return bootstrap_ratio(right, np.broadcast_to(total, right.shape), share=True, draws=draws, seed=seed)


def choose_predictors_again(
    hits: Integers, links: Integers, units: Sequence[str], *, seed: int = 0
) -> list[ChoiceStability]:
    """Choose the most accurate predictor anew on resamples of the documents, for each of the `ANTECEDENT_GROUPS`.

    Args:
        hits: Number of right choices of each predictor in each document, `[documents, predictors, 4]`.
        links: Number of links in each document by mention type, `[documents, 4]`.
        units: Name of the whole document of each.
        seed: Seed of the resamples.
    """
    right = _sum_units(count_groups(hits), units)
    total = _sum_units(count_groups(links), units)
    stabilities = []
    for group in range(len(ANTECEDENT_GROUPS)):
        stabilities.append(choose_again(right[..., group], total[:, group], seed))
    return stabilities


def count_groups(counts: Integers) -> Integers:
    """Return counts by `ANTECEDENT_GROUPS`, `[…, 4]`, from counts by mention type, `[…, 4]`.

    The sum over all types comes first, and the unknown type is left out.
    """
    everything = counts.sum(axis=-1, keepdims=True)
    return np.concatenate([everything, counts[..., :-1]], axis=-1)


def _sum_units(counts: Integers, units: Sequence[object]) -> Floats:
    """Sum counts `[documents, …]` of documents that belong to the same unit."""
    rows = counts.reshape(len(counts), -1)
    sums = sums_by(np.asarray(units), rows.astype(np.float64))
    return sums.reshape(-1, *counts.shape[1:])
