"""Orders in which words are removed one after the other, against the best and the worst order (Edin et al. 2025)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attention_probing.fidelity.classified import ClassifiedBatch, Removal
from attention_probing.results import Flags, Floats, Integers
from attention_probing.results.options import Positive, checked

EQUAL = 1e-6
"""Sums of n falls that differ by less than n times this are equal: probabilities are in single precision."""
TEXTS_OF_SEARCH = 64  # texts of equal length that are searched at the same time
EVERY_LENGTH = ("aopc", "naopc", "naopc_ascending")
"""Columns of each ranking."""
SHARE_COLUMNS = ("exact", "coincide", "widened")
"""Columns of each text whose shares are scores."""
Falls = Callable[[Integers, Flags], Floats]
"""Function that returns the fall of the class probability for each set of removed words, `[sets]`.

Its arguments are the index of the text of each set, `[sets]`, and the removed words, bool `[sets, words]`."""


def removal_bounds(words: int, falls: Falls, width: int | None = None, texts: int = 1) -> tuple[Floats, Floats]:
    """Return the lowest and the highest sum of falls over all orders in which words can be removed.

    A fall is the decrease of the class probability when some words are removed. An order of n words has n − 1 falls:
    after the removal of its first word, of its first two, and so on; its last word is never removed. A fall depends
    only on the set of removed words, not on their order. It is therefore enough to keep the lowest and the highest
    sum for each set, and 2ⁿ sets are classified instead of n! orders.

    Args:
        words: Number of words n of every text, at least 2.
        falls: Function that computes the falls of all sets of one size in one call.
        width: Width w of a beam search, which keeps for each text and size of set the w sets with the lowest sums and
            the w sets with the highest sums. None keeps all sets: then the bounds are exact.
        texts: Number of texts.

    Returns:
        Lowest and highest sum of each text, each `[texts]`.
    """
    owner = np.arange(texts)
    removed = np.zeros((texts, words), np.bool_)
    lowest = np.zeros(texts)
    highest = np.zeros(texts)
    for _ in range(words - 1):
        before, owner, removed, place = _add_a_word(owner, removed)
        low = np.full(len(removed), np.inf)
        high = np.full(len(removed), -np.inf)
        np.minimum.at(low, place, lowest[before])
        np.maximum.at(high, place, highest[before])
        fall = falls(owner, removed)
        lowest = low + fall
        highest = high + fall
        if width is not None:
            beam = _is_among_first(lowest, owner, width) | _is_among_first(-highest, owner, width)
            owner = owner[beam]
            removed = removed[beam]
            lowest = lowest[beam]
            highest = highest[beam]
    least = np.full(texts, np.inf)
    most = np.full(texts, -np.inf)
    np.minimum.at(least, owner, lowest)
    np.maximum.at(most, owner, highest)
    return least, most


def _add_a_word(owner: Integers, removed: Flags) -> tuple[Integers, Integers, Flags, Integers]:
    """Add each word to each set of removed words that lacks it, and return every new set of a text once.

    Args:
        owner: Index of the text of each set, `[sets]`.
        removed: The removed words, `[sets, words]`.

    Returns:
        Four arrays: the set that each addition begins from, `[additions]`; the texts of the new sets, `[new sets]`;
        the new sets, `[new sets, words]`; and the new set that each addition leads to, `[additions]`.
    """
    before, word = np.nonzero(~removed)
    larger = removed[before]
    larger[np.arange(len(larger)), word] = True
    # Compared as bytes: rows of booleans take longer to sort.
    packed = np.concatenate([owner[before, None].view(np.uint8), np.packbits(larger, axis=1)], axis=1)
    keys = packed.view(f"V{packed.shape[1]}").ravel()
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    return before, owner[before[first]], larger[first], place


def _is_among_first(values: Floats, owner: Integers, width: int) -> Flags:
    """Return True for the lowest values of each text, as many as `width`."""
    ranks = pd.Series(values).groupby(owner).rank(method="first")
    return (ranks <= width).to_numpy()


@checked
@dataclass(frozen=True)
class EveryLength:
    """Removal of one word after the other, in the order of a ranking, against the best and the worst order.

    Let p be the probability of the class predicted for the full text of n words. The area over the perturbation curve
    (AOPC) of an order is the mean over k = 1…n of the fall of p when its first k words are removed (Samek et al.
    2017). If removed words are deleted, k ends at n − 1, because a text without words cannot be classified. AOPCs of
    different models have different ranges. The normalised AOPC (NAOPC) of Edin et al. (2025) is
    (AOPC − lowest) / (highest − lowest); the lowest and the highest AOPC are those over all orders of the words of the
    text. The fall at k = n is the same for all orders, so it cancels.

    Args:
        exact: Largest number of words n for which the bounds are exact; this classifies 2ⁿ changed texts.
        beam: Width of the beam search for longer texts, which may miss the best or the worst order. If a ranking or
            its reverse is outside the bounds found, they are widened to include it, and the text is counted as
            `widened`. The bounds then depend on the rankings: compare only classifiers with the same rankings.
    """

    exact: Positive = 14
    beam: Positive = 5

    def width(self, words: int) -> int | None:
        """Return the width of the beam for a text; None if its bounds are exact."""
        return None if words <= self.exact else self.beam

    def changed_copies(self, words: int, orders: int, removal: Removal) -> int:
        """Return the largest number of changed copies of a text that are classified.

        Args:
            words: Number of words n of the text.
            orders: Number of orders, which are also reversed.
            removal: How words are removed, see `Rationale`.
        """
        copies = 2 * orders * (words - 1)
        if removal == "mask":
            copies += 1  # without words
        width = self.width(words)
        if width is None:
            subsets: int = 2**words
            return copies + subsets - 2
        copies += words  # sets of one word
        for size in range(1, words - 1):
            of_size = min(math.comb(words, size), 2 * width)
            copies += min(math.comb(words, size + 1), of_size * (words - size))
        return copies

    def measure(self, classified: ClassifiedBatch, ranks: Tensor, removal: Removal) -> tuple[Tensor, dict[str, Tensor]]:
        """Return AOPC and normalised AOPC of several orders of the words of each text.

        Args:
            classified: The texts.
            ranks: Rank of each word in each order, from 0, int64 `[orders, batch, positions]`. Positions without a
                word have higher ranks than all words.
            removal: How words are removed, see `Rationale`.

        Returns:
            Two values:

            - float64 `[3, orders, batch]`: AOPC, NAOPC, and NAOPC of the reversed order. NAOPC is nan if the bounds
              coincide.
            - Columns `[batch]` by name: `lower` and `upper` are the bounds of AOPC; `exact`, `coincide` and `widened`
              are 1.0 for texts whose bounds are exact, are equal, or were widened, else 0.0.
        """
        words = classified.words
        count = words.sum(1)
        sums = _sum_falls(classified, ranks, removal)
        widths = [self.width(size) for size in count.tolist()]
        searched_lower, searched_upper = search_bounds(classified, widths, removal)
        lower = torch.minimum(searched_lower, sums.amin((0, 1)))
        upper = torch.maximum(searched_upper, sums.amax((0, 1)))
        equal = EQUAL * (count - 1)
        is_exact = count <= self.exact
        coincide = upper - lower < equal
        is_wider = (lower < searched_lower - equal) | (upper > searched_upper + equal)
        naopc = (sums - lower) / (upper - lower)
        naopc = naopc.masked_fill(coincide, torch.nan)
        # The last fall, of a text without words, is the same for all orders.
        last_fall = torch.zeros_like(lower)
        falls = count - 1
        if removal == "mask":  # a text without words can be read
            every_text = torch.arange(len(count), device=words.device)
            last_fall = _falls(classified, every_text, torch.zeros_like(words), removal)
            falls = count
        columns = {
            "lower": (lower + last_fall) / falls,
            "upper": (upper + last_fall) / falls,
            "exact": is_exact.double(),
            "coincide": coincide.double(),
            "widened": (~is_exact & is_wider).double(),
        }
        aopc = (sums[0] + last_fall) / falls
        return torch.stack([aopc, *naopc]), columns


def _sum_falls(classified: ClassifiedBatch, ranks: Tensor, removal: Removal) -> Tensor:
    """Return the sum of falls of each order, and of each reversed order, float64 `[2, orders, batch]`.

    Args:
        classified: The texts.
        ranks: Rank of each word in each order; see `EveryLength.measure`.
        removal: How words are removed.
    """
    words = classified.words
    count = words.sum(1)
    sums = torch.zeros(2, *ranks.shape[:2], dtype=torch.float64, device=words.device)
    for size in range(1, words.size(1)):  # of the removed set
        rows = (count > size).nonzero().squeeze(1)
        ranks_of_rows = ranks[:, rows]
        is_first = ranks_of_rows < size
        is_last = ranks_of_rows >= count[rows, None] - size
        keep = words[rows] & ~torch.stack([is_first, is_last])  # [2, orders, rows, positions]
        fall = _falls(classified, rows.repeat(2 * len(ranks)), keep.flatten(0, 2), removal)
        sums[:, :, rows] += fall.view(keep.shape[:-1])
    return sums


def search_bounds(classified: ClassifiedBatch, widths: Sequence[int | None], removal: Removal) -> Tensor:
    """Return the lowest and the highest sum of falls of each text over all orders, float64 `[2, batch]`.

    Args:
        classified: The texts.
        widths: Width of the beam search of each text; None for exact sums. See `removal_bounds`.
        removal: How words are removed, see `Rationale`.
    """
    device = classified.words.device
    counts = classified.words.sum(1).tolist()
    alike: dict[tuple[int, int | None], list[int]] = {}
    for text, size in enumerate(zip(counts, widths, strict=True)):
        alike.setdefault(size, []).append(text)
    bounds = torch.zeros(2, len(counts), dtype=torch.float64, device=device)
    for (_, width), texts_of_size in alike.items():
        for start in range(0, len(texts_of_size), TEXTS_OF_SEARCH):
            texts = torch.tensor(texts_of_size[start : start + TEXTS_OF_SEARCH], device=device)
            bounds[:, texts] = _bounds(classified, texts, width, removal).to(device)
    return bounds


def _bounds(classified: ClassifiedBatch, texts: Tensor, width: int | None, removal: Removal) -> Tensor:
    """Return the bounds of `search_bounds`, `[2, texts]`, for texts with equally many words."""
    words = classified.words[texts]
    places = words.nonzero()[:, 1].view(len(texts), -1)

    def falls(owner: Integers, removed: Flags) -> Floats:
        rows = torch.from_numpy(owner).to(words.device)
        stays = torch.from_numpy(~removed).to(words.device)
        keep = words[rows].scatter(1, places[rows], stays)
        return _falls(classified, texts[rows], keep, removal).cpu().numpy()

    bounds = removal_bounds(places.size(1), falls, width, len(texts))
    return torch.from_numpy(np.stack(bounds))


def _falls(classified: ClassifiedBatch, rows: Tensor, keep: Tensor, removal: Removal) -> Tensor:
    """Return the fall of the probability of the predicted class in copies of some texts, float64 `[copies]`."""
    probabilities = classified.reread_rows(rows, keep, removal)
    of_predicted = probabilities.gather(1, classified.predicted[rows, None]).squeeze(1)
    return (classified.confidence[rows] - of_predicted).double()
