"""Antecedent selection (Clark et al. 2019, §4.3): does a head attend to an earlier mention of the same cluster?

A window is one input of the encoder, with its mentions ordered by (start, −end, cluster). The candidates of a mention
are the head words of earlier mentions, except its own head word. A candidate is gold if it heads an earlier mention of
the same cluster. A *link* is a mention with a gold candidate.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metrics.bootstrap import bootstrap_ratio
from metrics.rows import ExactMetric
from results import Estimate, Flags, Floats, Integers

ANTECEDENT_DIRECTIONS = ("mention→antecedent", "antecedent→mention")
"""The axis of length 2: attention from the mention's head word, and attention to it."""

ANTECEDENT_GROUPS = ("all", "pronoun", "proper", "nominal")
"""Groups of links with an accuracy of their own; the three types have the codes 0, 1 and 2."""

TYPES = len(ANTECEDENT_GROUPS) - 1


@dataclass(frozen=True, eq=False)
class Links:
    """The links of one window; U is the number of distinct head words of its mentions.

    Attributes:
        heads: `[U]` positions of the head words in the window, 0-based, ascending.
        mention: `[links]` index of each link's mention in the window, ascending.
        source: `[links]` index of its head word in `heads`.
        type: `[links]` 0 pronoun, 1 proper, 2 nominal.
        candidates: `[links, U]` whether the head word heads an earlier mention and is not the link's own.
        gold: `[links, U]` whether it is a candidate and heads an earlier mention of the same cluster.
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
    """Find the links of one window from columns `[mentions]`: position of the head word, cluster, and type.

    A mention is no link if the earlier mentions of its cluster lie in other windows or share its head word.
    """
    order = np.arange(head_words.size)[:, None]
    heads, first, own = np.unique(head_words, return_index=True, return_inverse=True)
    others = own[:, None] != np.arange(heads.size)
    # First mention of each cluster with each head word; the number of mentions where there is none.
    numbers, cluster = np.unique(clusters, return_inverse=True)
    first_of_cluster = np.full((numbers.size, heads.size), head_words.size)
    np.minimum.at(first_of_cluster, (cluster, own), order[:, 0])
    candidates = (first < order) & others
    gold = (first_of_cluster[cluster] < order) & others
    mention = np.flatnonzero(gold.any(axis=1))
    return Links(
        heads=heads.astype(np.int64),
        mention=mention,
        source=own[mention],
        type=types[mention].astype(np.int64),
        candidates=candidates[mention],
        gold=gold[mention],
    )


class Choices(NamedTuple):
    """The choices of every head, bool `[2, layers, heads, links]` each: mention→antecedent, then antecedent→mention."""

    right: Tensor
    without_weight: Tensor
    """Whether all candidates have weight zero, as behind a causal mask; False where a link has no candidate."""


def antecedent_hits(weights: Tensor, links: Links) -> Choices:
    """Choose, for every head and link, the candidate with the greatest weight; the last of equals wins.

    `weights` `[layers, heads, U, U]` is attention from and to head words, in the order of `links.heads`.
    """
    return _hits(weights, weights.mT, links, links.candidates, links.gold)


def antecedent_hits_among_words(rows: Tensor, columns: Tensor, links: Links) -> Choices:
    """Choose the word with the greatest weight among all words before the link's head word.

    A gold candidate after the link's head word (the head of a longer mention that begins earlier) cannot be chosen: a
    link without another one is always wrong.

    Args:
        rows: `[layers, heads, U, n]` attention from each head word to the n words of the window.
        columns: `[layers, heads, U, n]` attention from the n words to each head word.
        links: the links of the window.
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
    barred, right = torch.tensor(~candidates, device=rows.device), torch.tensor(gold, device=rows.device)
    each = torch.arange(len(links), device=rows.device)
    hits, without_weight = [], []
    for weights in (rows, columns):
        scores = weights[:, :, source].masked_fill(barred, -torch.inf)  # [layers, heads, links, c]
        # max returns the first of equals: flipped, the last. A link without a candidate gets a word that is not gold.
        most, chosen = scores.flip(-1).max(-1)
        hits.append(right[each, scores.size(-1) - 1 - chosen] & (most > 0))
        without_weight.append((most <= 0) & (most > -torch.inf))
    return Choices(torch.stack(hits), torch.stack(without_weight))


class AntecedentCounts(ExactMetric):
    """Integer counts, per document and mention type, of links and of each predictor's right choices.

    Keywords give the number of predictors of each kind, by the name of the kind.

    Args:
        documents: number of documents.
    """

    right: Tensor
    links: Tensor

    def __init__(self, documents: int, **predictors: int) -> None:
        super().__init__()
        self.predictors = predictors
        for name, shape in {"right": (documents, sum(predictors.values()), TYPES), "links": (documents, TYPES)}.items():
            self.add_state(name, default=torch.zeros(*shape, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, document: int, types: Tensor, **right: Tensor) -> None:
        """Add a window of a document, counted from 0.

        Args:
            document: place of the document.
            types: mention type of each link, `[links]`.
            **right: bool `[predictors, links]` by kind of predictor, True where the choice is right.
        """
        device = self.links.device
        of_type = types.to(device) == torch.arange(TYPES, device=device)[:, None]
        self.links[document] += of_type.sum(-1)
        flags = torch.cat([right[name].to(device) for name in self.predictors])
        self.right[document] += (flags[:, None, :] & of_type).sum(-1)

    def compute(self) -> tuple[dict[str, Tensor], Tensor]:
        """Return right choices by kind `[documents, predictors, 3]`, and links `[documents, 3]`, both int64."""
        parts = torch.split(self.right.clone(), list(self.predictors.values()), dim=1)
        return dict(zip(self.predictors, parts, strict=True)), self.links.clone()


def accuracies(hits: Tensor, links: Tensor, *, draws: int = 1000, seed: int = 0) -> Estimate[Floats]:
    """Return accuracies `[..., 4]` of `ANTECEDENT_GROUPS`, nan without a link, with intervals over documents.

    The links of one document share its clusters and are not independent. By mention type, `hits` `[documents, ..., 3]`
    are right choices, and `links` `[documents, 3]` all.
    """
    right = _with_all(hits.cpu().numpy())
    total = _with_all(links.cpu().numpy()).reshape(len(links), *[1] * (hits.ndim - 2), -1)
    total = np.broadcast_to(total, right.shape)
    return bootstrap_ratio(right, total, draws=draws, seed=seed)


def _with_all(counts: NDArray[Any]) -> NDArray[Any]:
    """Put the sum over the types before them: `[..., 3]` to `[..., 4]`."""
    return np.concatenate([counts.sum(axis=-1, keepdims=True), counts], axis=-1)
