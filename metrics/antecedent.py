"""Antecedent selection (Clark et al. 2019, §4.3): does a head attend to an earlier mention of the same cluster?

A window is what the encoder reads at once, and holds mentions in the order (start, −end, cluster). The candidates of a
mention are the head words of the mentions before it, without its own head word; those that head an earlier mention of
its cluster are gold. A *link* is a mention with a gold candidate, and one set of links serves heads and baselines.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics import Metric

from metrics.attachment import Flags, Floats, Integers
from metrics.bootstrap import bootstrap_ratio

ANTECEDENT_DIRECTIONS = ("mention→antecedent", "antecedent→mention")
"""What the axis of length 2 counts: attention from the mention's head word, and attention to it."""

ANTECEDENT_GROUPS = ("all", "pronoun", "proper", "nominal")
"""The groups of links that accuracies are given for; the three types have the codes 0, 1 and 2."""

TYPES = len(ANTECEDENT_GROUPS) - 1


@dataclass(frozen=True, eq=False)
class Links:
    """The links of one window; U is the number of distinct head words of its mentions.

    Attributes:
        heads: `[U]` the head words, 0-based places in the window, ascending.
        mention: `[links]` which mention of the window each link is, ascending.
        source: `[links]` its head word, an index into `heads`.
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
        """Count the links."""
        return int(self.mention.size)


def find_links(head_words: Integers, clusters: Integers, types: Integers) -> Links:
    """Find the links of one window.

    A mention whose cluster has an earlier mention only in another window, or only under the same head word, is no
    link: no head could be right about it.

    Args:
        head_words: `[mentions]` 0-based place of each mention's head word in the window; mentions in window order.
        clusters: `[mentions]` number of its cluster.
        types: `[mentions]` 0 pronoun, 1 proper, 2 nominal.

    Raises:
        ValueError: The three differ in shape, or a type is none of the codes.
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
    # Likewise the first mention of each cluster under each head word, one behind the last where there is none.
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
    """What every head chooses, `[2, layers, heads, links]` bool each: mention→antecedent, then antecedent→mention.

    Attributes:
        right: Whether the choice is right.
        without_weight: Whether there is none, because the head gives no candidate any weight, as behind a causal mask;
            False where a link has no candidate.
    """

    right: Tensor
    without_weight: Tensor


def antecedent_hits(weights: Tensor, links: Links) -> Choices:
    """Choose an antecedent for every link by the attention of every head, and mark the right choices.

    The choice is the candidate with the greatest weight; of equals the later one, which is the nearer as a rule.

    Args:
        weights: `[layers, heads, U, U]` attention from the first head word to the second, in the order of
            `links.heads`; any floating-point type, any device.
        links: The links of the window.

    Returns:
        On the device of `weights`, of mention→antecedent (the candidate that the mention's head word attends to most),
        then antecedent→mention (the one that attends most to it).

    Raises:
        ValueError: The last two dimensions of `weights` are not those of the window's head words.
    """
    size = links.heads.size
    if weights.ndim != 4 or weights.shape[2:] != (size, size):
        raise ValueError(
            f"weights must be [layers, heads, {size}, {size}], one row and column per head word of the window: "
            f"got {tuple(weights.shape)}"
        )
    return _hits(weights, weights.mT, links, links.candidates, links.gold)


def antecedent_hits_among_words(rows: Tensor, columns: Tensor, links: Links) -> Choices:
    """Do as `antecedent_hits`, where every word before the link's head word is a candidate.

    The gold words are the gold candidates. One that stands behind the link's head word (the head of a longer mention
    that begins earlier) is out of reach here: a link with no other is wrong whatever the head attends to.

    Args:
        rows: `[layers, heads, U, n]` attention from each head word to the n words of the window.
        columns: `[layers, heads, U, n]` attention of the n words to each head word.
        links: The links of the window.

    Raises:
        ValueError: `rows` and `columns` differ in shape, have not one row per head word, or are shorter than the
            window.
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
        # argmax takes the first of equals, hence the last when it reads backwards. A link without a candidate gets
        # some word that is not gold.
        most, chosen = scores.flip(-1).max(-1)
        # A head that gives no candidate any weight, as behind a causal mask, chooses none.
        hits.append(right[each, scores.size(-1) - 1 - chosen] & (most > 0))
        without_weight.append((most <= 0) & (most > -torch.inf))
    return Choices(torch.stack(hits), torch.stack(without_weight))


class AntecedentCounts(Metric):
    """Counts the right choices of every head and the links, per document and mention type.

    The counters are integers, summed over devices: the same on any number of them, as long as each window is seen
    once. What is not an encoder's head (a baseline) is counted as one layer of one head.

    Args:
        documents: Number of documents of the split.
        layers: Number of layers.
        heads: Number of heads of a layer.
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    hits: Tensor
    links: Tensor

    def __init__(self, documents: int, layers: int, heads: int) -> None:
        """Start without a link."""
        super().__init__()
        counts = torch.zeros(documents, 2, layers, heads, TYPES, dtype=torch.long)
        self.add_state("hits", default=counts, dist_reduce_fx="sum")
        self.add_state("links", default=counts[:, 0, 0, 0].clone(), dist_reduce_fx="sum")

    def update(self, document: int, hits: Tensor, types: Tensor) -> None:
        """Add a window.

        Args:
            document: 0-based document that the window belongs to.
            hits: `[2, layers, heads, links]` bool, whether each head's choice is right.
            types: `[links]` 0 pronoun, 1 proper, 2 nominal.

        Raises:
            ValueError: There is no such document, a shape does not fit, or a type is none of the codes.
        """
        documents, *size, _ = self.hits.shape
        if not 0 <= document < documents:
            raise ValueError(f"document {document} of {documents}: the metric was built for documents 0 to n - 1")
        if types.ndim != 1 or hits.shape != (*size, types.numel()) or hits.dtype != torch.bool:
            raise ValueError(
                f"hits must be bool {[*size, 'links']} and types [links]: got {hits.dtype} {list(hits.shape)} and "
                f"{list(types.shape)}"
            )
        _check_types(types.cpu().numpy())
        of_type = types.to(self.links.device) == torch.arange(TYPES, device=self.links.device)[:, None]
        self.links[document] += of_type.sum(-1)
        self.hits[document] += (hits.to(self.hits.device)[..., None, :] & of_type).sum(-1)

    def compute(self) -> tuple[Tensor, Tensor]:
        """Return the counts over all devices.

        Returns:
            `[documents, 2, layers, heads, 3]` right choices, and `[documents, 3]` links, both int64.
        """
        return self.hits.clone(), self.links.clone()

    def _wrap_compute(self, compute: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[], tuple[Tensor, Tensor]]:
        """Sync around `compute`; torchmetrics' own wrapper warns when a device had no window, no fault here."""

        @wraps(compute)
        def synced() -> tuple[Tensor, Tensor]:
            with self.sync_context(
                dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync, should_unsync=self._should_unsync
            ):
                return compute()

        return synced


Accuracies = tuple[Floats, Floats, Floats]
"""Antecedent selection accuracies `[..., 4]`, and the low and the high ends of their intervals."""


def accuracies(hits: Tensor, links: Tensor, *, draws: int = 1000, seed: int = 0) -> Accuracies:
    """Divide right choices by links, over all and by mention type, and bound the ratios by `bootstrap_ratio`.

    The unit of resampling is the document: links of one document share its clusters and are not independent.

    Args:
        hits: `[documents, ..., 3]` right choices per mention type, of one head or of many.
        links: `[documents, 3]` links per mention type.
        draws: Number of resamples.
        seed: Seed of the resampling.

    Returns:
        Accuracies `[..., 4]` over all links and over those of each type (`ANTECEDENT_GROUPS`), nan without a link; and
        the low and the high end of their 95 % intervals, nan with links in fewer than two documents.

    Raises:
        ValueError: The shapes do not fit.
    """
    if links.ndim != 2 or hits.ndim < 2 or (hits.shape[0], hits.shape[-1]) != links.shape:
        raise ValueError(
            f"hits must be [documents, ..., types] and links [documents, types]: got {list(hits.shape)} and "
            f"{list(links.shape)}"
        )
    right = _with_all(hits.cpu().numpy())
    total = _with_all(links.cpu().numpy()).reshape(len(links), *[1] * (hits.ndim - 2), -1)
    total = np.broadcast_to(total, right.shape)
    sums, totals = right.sum(axis=0, dtype=np.float64), total.sum(axis=0)
    low, high = bootstrap_ratio(right, total, draws=draws, seed=seed)
    return np.divide(sums, totals, out=np.full_like(sums, np.nan), where=totals != 0), low, high


def _with_all(counts: NDArray[Any]) -> NDArray[Any]:
    """Put the sum over the types before them: `[..., 3]` to `[..., 4]`."""
    return np.concatenate([counts.sum(axis=-1, keepdims=True), counts], axis=-1)


def _check_types(types: NDArray[Any]) -> None:
    wrong = (types < 0) | (types >= TYPES)
    if wrong.any():
        raise ValueError(f"mention type {types[wrong][0]}: 0 is a pronoun, 1 a proper name, 2 a nominal")
