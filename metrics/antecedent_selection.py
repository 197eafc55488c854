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

    A mention is no link if the earlier mentions of its cluster lie in other windows or share its head word. Shapes that
    differ, and unknown types, raise ValueError.
    """
    if not head_words.shape == clusters.shape == types.shape or head_words.ndim != 1:
        raise ValueError(
            "head words, clusters and types must all be [mentions]: got "
            f"{[column.shape for column in (head_words, clusters, types)]}"
        )
    _check_types(types)
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
    """Let every head choose the candidate with the greatest weight for every link; the last of equals wins.

    `weights` `[layers, heads, U, U]` is attention from and to head words, in the order of `links.heads`; another
    shape raises ValueError.
    """
    size = links.heads.size
    if weights.ndim != 4 or weights.shape[2:] != (size, size):
        raise ValueError(
            f"weights must be [layers, heads, {size}, {size}], one row and column per head word of the window: "
            f"got {tuple(weights.shape)}"
        )
    return _hits(weights, weights.mT, links, links.candidates, links.gold)


def antecedent_hits_among_words(rows: Tensor, columns: Tensor, links: Links) -> Choices:
    """Choose among all words before the link's head word, as `antecedent_hits` does among candidates.

    A gold candidate after the link's head word (the head of a longer mention that begins earlier) cannot be chosen: a
    link without another one is always wrong. Both `[layers, heads, U, n]`, `rows` are attention from each head word to
    the n words of the window, and `columns` that of the n words to each head word; other shapes raise ValueError.
    """
    size, words = links.heads.size, rows.shape[-1]
    if rows.ndim != 4 or rows.shape != columns.shape or rows.shape[2] != size or (links.heads >= words).any():
        raise ValueError(
            f"rows and columns must both be [layers, heads, {size}, words], where the last head word is word "
            f"{links.heads.max(initial=-1)} counted from 0: got {tuple(rows.shape)} and {tuple(columns.shape)}"
        )
    before = np.arange(words) < links.heads[links.source][:, None]
    gold = np.zeros((len(links), words), dtype=np.bool_)
    gold[:, links.heads] = links.gold
    return _hits(rows, columns, links, before, gold & before)


def _hits(rows: Tensor, columns: Tensor, links: Links, candidates: Flags, gold: Flags) -> Choices:
    """Take the greatest weight among `candidates` `[links, c]` in two tensors `[layers, heads, U, c]`."""
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
    """Counts, per document and mention type, the links and those that each predictor has right, as integers.

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
            **right: by kind of predictor, the links it has right, bool `[predictors, links]`.

        Raises:
            ValueError: there is no such document or type, or a shape differs.
        """
        if not 0 <= document < len(self.links):
            raise ValueError(f"document {document} of {len(self.links)}: they are counted from 0")
        wanted = {name: [number, types.numel()] for name, number in self.predictors.items()}
        found = {name: list(flags.shape) for name, flags in right.items()}
        if types.ndim != 1 or found != wanted or any(flags.dtype != torch.bool for flags in right.values()):
            raise ValueError(f"bool {wanted} and types [links] are needed: got {found} and {list(types.shape)}")
        _check_types(types.cpu().numpy())
        device = self.links.device
        of_type = types.to(device) == torch.arange(TYPES, device=device)[:, None]
        self.links[document] += of_type.sum(-1)
        flags = torch.cat([right[name].to(device) for name in wanted])
        self.right[document] += (flags[:, None, :] & of_type).sum(-1)

    def compute(self) -> tuple[dict[str, Tensor], Tensor]:
        """Return right choices by kind `[documents, predictors, 3]`, and links `[documents, 3]`, both int64."""
        parts = torch.split(self.right.clone(), list(self.predictors.values()), dim=1)
        return dict(zip(self.predictors, parts, strict=True)), self.links.clone()


def accuracies(hits: Tensor, links: Tensor, *, draws: int = 1000, seed: int = 0) -> Estimate[Floats]:
    """Return accuracies `[..., 4]` of `ANTECEDENT_GROUPS`, nan without a link, with intervals over documents.

    The links of one document share its clusters and are not independent. By mention type, `hits` `[documents, ..., 3]`
    are right choices, and `links` `[documents, 3]` all; other shapes raise ValueError.
    """
    if links.ndim != 2 or hits.ndim < 2 or (hits.shape[0], hits.shape[-1]) != links.shape:
        shapes = f"{list(hits.shape)} and {list(links.shape)}"
        raise ValueError(f"hits must be [documents, ..., types] and links [documents, types]: got {shapes}")
    right = _with_all(hits.cpu().numpy())
    total = _with_all(links.cpu().numpy()).reshape(len(links), *[1] * (hits.ndim - 2), -1)
    total = np.broadcast_to(total, right.shape)
    return bootstrap_ratio(right, total, draws=draws, seed=seed)


def _with_all(counts: NDArray[Any]) -> NDArray[Any]:
    """Put the sum over the types before them: `[..., 3]` to `[..., 4]`."""
    return np.concatenate([counts.sum(axis=-1, keepdims=True), counts], axis=-1)


def _check_types(types: NDArray[Any]) -> None:
    wrong = (types < 0) | (types >= TYPES)
    if wrong.any():
        raise ValueError(f"mention type {types[wrong][0]}: 0 is a pronoun, 1 a proper name, 2 a nominal")
