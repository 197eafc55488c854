"""Removal of the words of a text one after the other: the best and the worst order (Edin et al. 2025)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fidelity.classified import ClassifiedBatch, Removal
from results import Flags, Floats, Integers
from results.errors import check_numbers

EQUAL = 1e-6
"""Sums of n falls that differ by less than n times this are equal: probabilities are in single precision."""
TOGETHER = 64  # texts of equal length that are searched at the same time
EVERY_LENGTH = ("aopc", "naopc", "naopc_ascending")
"""Columns of each ranking."""
SHARES = ("exact", "coincide", "widened")
BOUNDS = ("lower", "upper", *SHARES)
"""Columns of each text; the means of the last three are scores."""


Falls = Callable[[Integers, Flags], Floats]
"""Fall of the class probability without each set of words, `[sets]`, from the text of each set, `[sets]`, and its
removed words, bool `[sets, words]`."""


def removal_bounds(words: int, falls: Falls, width: int | None = None, texts: int = 1) -> tuple[Floats, Floats]:
    """Return the lowest and the highest sum of falls over all orders of removal; the last word always stays.

    An order of n words has n − 1 falls: without its first word, without its first two, …. The words that an order
    has removed matter for what follows, and their order does not. So of all orders of the same words, the lowest and
    the highest sums suffice, and 2ⁿ sets of words are read in place of n! orders.

    Args:
        words: Number of words n of every text, at least 2.
        falls: Function that reads all sets of one size together.
        width: Number of sets of each size that are kept for the highest sum, and of those for the lowest (beam
            search); None keeps all, so that the bounds are exact.
        texts: Number of texts.

    Returns:
        The two sums of each text, `[texts]`.
    """
    owner, removed = np.arange(texts), np.zeros((texts, words), np.bool_)
    lowest, highest = np.zeros(texts), np.zeros(texts)
    for _ in range(words - 1):
        before, word = np.nonzero(~removed)
        larger = removed[before]
        larger[np.arange(len(larger)), word] = True
        # Each set of a text once, compared as bytes: rows of booleans take longer to sort.
        packed = np.concatenate([owner[before, None].view(np.uint8), np.packbits(larger, axis=1)], axis=1)
        _, first, place = np.unique(packed.view(f"V{packed.shape[1]}").ravel(), return_index=True, return_inverse=True)
        owner, removed = owner[before[first]], larger[first]
        low, high = np.full(len(removed), np.inf), np.full(len(removed), -np.inf)
        np.minimum.at(low, place, lowest[before])
        np.maximum.at(high, place, highest[before])
        fall = falls(owner, removed)
        lowest, highest = low + fall, high + fall
        if width is not None:
            lows, highs = (pd.Series(one).groupby(owner).rank(method="first") <= width for one in (lowest, -highest))
            kept = (lows | highs).to_numpy()
            owner, removed, lowest, highest = owner[kept], removed[kept], lowest[kept], highest[kept]
    least, most = np.full(texts, np.inf), np.full(texts, -np.inf)
    np.minimum.at(least, owner, lowest)
    np.maximum.at(most, owner, highest)
    return least, most


@dataclass(frozen=True)
class EveryLength:
    """Removal of one word after the other, in the order of a ranking, against the best and the worst order.

    Let p be the probability of the class predicted for the full text of n words. The area over the perturbation curve
    (AOPC) of an order is the mean fall of p without its first k words, over k = 1…n (Samek et al. 2017); where no text
    without words can be read, over k = 1…n−1. AOPCs of different models have different ranges. The normalised AOPC
    (NAOPC) of Edin et al. (2025) is (AOPC − lowest) / (highest − lowest), over the AOPCs of all orders of the
    same words of the same text. With all words removed every order falls alike, so this cancels.

    Args:
        exact: Largest number of words of a text whose bounds are exact; 2ⁿ texts are read for them.
        beam: Width of the beam search for longer texts. The search may miss the best order, so that the bounds are
            widened where any of the rankings, or its reverse, is beyond them; these texts are counted. So compare
            classifiers with the same rankings.
    """

    exact: int = 14
    beam: int = 5

    def __post_init__(self) -> None:
        check_numbers(self, least=1, exact=self.exact, beam=self.beam)

    def width(self, words: int) -> int | None:
        """Return the width of the beam for a text; None if its bounds are exact."""
        return None if words <= self.exact else self.beam

    def measure(self, classified: ClassifiedBatch, ranks: Tensor, removal: Removal) -> tuple[Tensor, dict[str, Tensor]]:
        """Return AOPC and normalised AOPC of some orders of the words of each text.

        Args:
            classified: The texts.
            ranks: Place of each word in each order from 0, int64 `[orders, batch, positions]`; words come first.
            removal: What becomes of removed words.

        Returns:
            float64 `[3, orders, batch]`: AOPC, NAOPC, and NAOPC of the reversed order. NAOPC is nan where all orders
            fall alike. And columns `[batch]`: `lower` and `upper`, the bounds of AOPC; `exact`, `coincide` and
            `widened`, 1.0 for texts whose bounds are exact, are equal, or were widened.
        """
        words, count = classified.words, classified.words.sum(1)
        sums = torch.zeros(2, *ranks.shape[:2], dtype=torch.float64, device=words.device)
        for size in range(1, words.size(1)):  # of the removed set
            rows = (count > size).nonzero().squeeze(1)
            own = ranks[:, rows]
            removed = torch.stack([own < size, own >= count[rows, None] - size])  # [2, orders, rows, positions]
            keep = words[rows] & ~removed
            fall = _falls(classified, rows.repeat(2 * len(ranks)), keep.flatten(0, 2), removal)
            sums[:, :, rows] += fall.view(keep.shape[:-1])
        bounds = search_bounds(classified, [self.width(size) for size in count.tolist()], removal)
        lower, upper = torch.minimum(bounds[0], sums.amin((0, 1))), torch.maximum(bounds[1], sums.amax((0, 1)))
        equal, exact = EQUAL * (count - 1), count <= self.exact
        within = (sums - lower) / (upper - lower)
        coincide = upper - lower < equal
        within = within.masked_fill(coincide, torch.nan)
        rest, lengths = torch.zeros_like(lower), count - 1
        if removal == "mask":  # a text without words can be read
            everything = torch.arange(len(count), device=words.device)
            rest, lengths = _falls(classified, everything, torch.zeros_like(words), removal), count
        columns = {
            "lower": (lower + rest) / lengths,
            "upper": (upper + rest) / lengths,
            "exact": exact.double(),
            "coincide": coincide.double(),
            "widened": (~exact & ((lower < bounds[0] - equal) | (upper > bounds[1] + equal))).double(),
        }
        return torch.stack([(sums[0] + rest) / lengths, *within]), columns


def search_bounds(classified: ClassifiedBatch, widths: Sequence[int | None], removal: Removal) -> Tensor:
    """Return the lowest and the highest sum of falls of each text over all orders, float64 `[2, batch]`.

    Args:
        classified: The texts.
        widths: Width of the beam search of each text; None for exact sums. See `removal_bounds`.
        removal: What becomes of removed words.
    """
    counts, device = classified.words.sum(1).tolist(), classified.words.device
    alike: dict[tuple[int, int | None], list[int]] = {}
    for text, size in enumerate(zip(counts, widths, strict=True)):
        alike.setdefault(size, []).append(text)
    found = torch.zeros(2, len(counts), dtype=torch.float64, device=device)
    for (_, width), every in alike.items():
        for start in range(0, len(every), TOGETHER):
            texts = torch.tensor(every[start : start + TOGETHER], device=device)
            found[:, texts] = _bounds(classified, texts, width, removal).to(device)
    return found


def _bounds(classified: ClassifiedBatch, texts: Tensor, width: int | None, removal: Removal) -> Tensor:
    """Return what `search_bounds` returns, `[2, texts]`, for texts with equally many words."""
    words = classified.words[texts]
    places = words.nonzero()[:, 1].view(len(texts), -1)

    def falls(owner: Integers, removed: Flags) -> Floats:
        own, stays = (torch.from_numpy(one).to(words.device) for one in (owner, ~removed))
        keep = words[own].scatter(1, places[own], stays)
        return _falls(classified, texts[own], keep, removal).cpu().numpy()

    return torch.from_numpy(np.stack(removal_bounds(places.size(1), falls, width, len(texts))))


def _falls(classified: ClassifiedBatch, rows: Tensor, keep: Tensor, removal: Removal) -> Tensor:
    """Return the fall of the probability of the predicted class in copies of some texts, float64 `[copies]`."""
    probabilities = classified.reread_rows(rows, keep, removal)
    left = probabilities.gather(1, classified.predicted[rows, None]).squeeze(1)
    return (classified.confidence[rows] - left).double()
