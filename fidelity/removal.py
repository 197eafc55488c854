"""Removal of the words of a text one after the other: the best and the worst order (Edin et al. 2025)."""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb

import numpy as np
import torch
from torch import Tensor

from fidelity.classified import ClassifiedBatch, Removal
from results import Flags, Floats
from results.errors import check_numbers

EQUAL = 1e-6
"""Sums of falls that differ less are equal: probabilities are computed in single precision."""
EVERY_LENGTH = ("aopc", "naopc", "naopc_ascending")
"""Columns of each ranking."""
SHARES = ("exact", "coincide", "widened")
BOUNDS = ("lower", "upper", *SHARES)
"""Columns of each text; the means of the last three are scores."""


def removal_bounds(falls: Callable[[Flags], Floats], words: int, width: int | None = None) -> tuple[float, float]:
    """Return the lowest and the highest sum of falls over all orders in which words can be removed, all but the last.

    An order of n words has n − 1 falls: without its first word, without its first two, …. The words that an order
    has removed matter for what follows, and their order does not. So of all orders of the same words, the lowest and
    the highest sums suffice, and 2ⁿ sets of words are read in place of n! orders.

    Args:
        falls: Function that returns the fall of the class probability without some words, `[sets]`, from bool
            `[sets, words]`, True for removed words.
        words: Number of words n, at least 2.
        width: Number of sets of each size that are kept for the highest sum, and of those for the lowest (beam
            search); None keeps all, so that the bounds are exact.
    """
    removed, lowest, highest = np.zeros((1, words), np.bool_), np.zeros(1), np.zeros(1)
    for _ in range(words - 1):
        before, word = np.nonzero(~removed)
        larger = removed[before]
        larger[np.arange(len(larger)), word] = True
        removed, place = np.unique(larger, axis=0, return_inverse=True)
        low, high = np.full(len(removed), np.inf), np.full(len(removed), -np.inf)
        np.minimum.at(low, place, lowest[before])
        np.maximum.at(high, place, highest[before])
        fall = falls(removed)
        lowest, highest = low + fall, high + fall
        if width is not None:
            ends = (np.argsort(sums, kind="stable")[:width] for sums in (lowest, -highest))
            kept = np.union1d(*ends)
            removed, lowest, highest = removed[kept], lowest[kept], highest[kept]
    return float(lowest.min()), float(highest.max())


def sets_read(words: int, width: int | None) -> int:
    """Return the largest number of sets of words that `removal_bounds` reads."""
    if width is None:
        return int(2**words) - 2
    return sum(min(2 * width * (words - size), comb(words, size + 1)) for size in range(words - 1))


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
        beam: Width of the beam search for longer texts. It may miss the best order, so that the bounds are
            widened where a ranking is beyond them; these texts are counted.
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
        size = torch.arange(1, words.size(1), device=words.device)[:, None, None, None]  # of the removed set
        removed = torch.stack([ranks < size, ranks >= count[:, None] - size], 1)  # [sizes, 2, orders, batch, positions]
        keep = words & ~removed
        fall = _falls(classified, keep.flatten(0, 2), removal).view(keep.shape[:-1])
        fall = fall.masked_fill(size.view(-1, 1, 1, 1) >= count, 0)
        sums = fall.double().sum(0)  # [2, orders, batch]
        found = [self._bounds(classified, text, removal) for text in range(len(count))]
        bounds = torch.tensor(found, dtype=torch.float64, device=sums.device).T
        lower, upper = torch.minimum(bounds[0], sums.amin((0, 1))), torch.maximum(bounds[1], sums.amax((0, 1)))
        within = (sums - lower) / (upper - lower)
        coincide = upper - lower < EQUAL
        within = within.masked_fill(coincide, torch.nan)
        blank = _falls(classified, torch.zeros_like(words)[None], removal)[0].double()
        rest, lengths = (blank, count) if removal == "mask" else (torch.zeros_like(blank), count - 1)
        columns = {
            "lower": (lower + rest) / lengths,
            "upper": (upper + rest) / lengths,
            "exact": (count <= self.exact).double(),
            "coincide": coincide.double(),
            "widened": ((lower < bounds[0] - EQUAL) | (upper > bounds[1] + EQUAL)).double(),
        }
        return torch.stack([(sums[0] + rest) / lengths, *within]), columns

    def _bounds(self, classified: ClassifiedBatch, text: int, removal: Removal) -> tuple[float, float]:
        """Return bounds of the sum of the falls of a text."""
        places = classified.words[text].nonzero().squeeze(1)

        def falls(removed: Flags) -> Floats:
            rows = torch.full((len(removed),), text, device=places.device)
            keep = torch.zeros(len(removed), classified.words.size(1), dtype=torch.bool, device=places.device)
            keep[:, places] = torch.from_numpy(~removed).to(places.device)
            chosen = classified.predicted[text]
            probability = classified.reread_rows(rows, keep, removal)[:, chosen]
            return (classified.confidence[text] - probability).double().cpu().numpy()

        return removal_bounds(falls, len(places), self.width(len(places)))


def _falls(classified: ClassifiedBatch, keep: Tensor, removal: Removal) -> Tensor:
    """Return the fall of the probability of the predicted class in copies of the texts, `[copies, batch]`."""
    return classified.confidence - classified.of_predicted(classified.reread(keep, removal))
