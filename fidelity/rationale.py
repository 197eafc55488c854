"""Tests that classify only some words of a text: rationales (DeYoung et al. 2020), orders of removal, single words."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import auc, precision_recall_curve
from torch import Tensor

from attention_probing.fidelity.classified import ClassifiedBatch, Removal, ranks_of
from attention_probing.fidelity.comparison import CheckpointResult, over_seeds
from attention_probing.fidelity.experiment import FidelityTest, Measurements, Score, means, proportions
from attention_probing.fidelity.saliency import RANKINGS, Explainer, Saliency
from attention_probing.metrics.statistics import mean
from attention_probing.results import Figure, Flags, Floats, Integers, Spreads, Table
from attention_probing.results.errors import check_numbers, check_values

EQUAL = 1e-6
"""Sums of n falls that differ by less than n times this are equal: probabilities are in single precision."""
TOGETHER = 64  # texts of equal length that are searched at the same time
EVERY_LENGTH = ("aopc", "naopc", "naopc_ascending")
"""Columns of each ranking."""
SHARES = ("exact", "coincide", "widened")
BOUNDS = ("lower", "upper", *SHARES)
"""Columns of each text; the means of the last three are scores."""


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

    exact: int = 14
    beam: int = 5

    def __post_init__(self) -> None:
        check_numbers(self, least=1, exact=self.exact, beam=self.beam)

    def width(self, words: int) -> int | None:
        """Return the width of the beam for a text; None if its bounds are exact."""
        return None if words <= self.exact else self.beam

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
        removal: How words are removed, see `Rationale`.
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


PLAUSIBILITY = ("auprc", "average_precision", "token_f1")
IOU = ("iou_precision", "iou_recall")
MEANS = ("comprehensiveness", "sufficiency", *PLAUSIBILITY)
OVERLAP = 0.5
"""Least intersection ÷ union of a predicted span and a marked one (DeYoung et al. 2020, §4.1)."""


class Rationale(FidelityTest):
    """Faithfulness and plausibility of rationales (DeYoung et al. 2020).

    A rationale is the words that a ranking puts first.

    Let p be the probability of the class predicted for the full text x, and r the words of a rationale.
    Comprehensiveness is p(x) − p(x without r), high if r is needed; sufficiency is p(x) − p(r alone),
    low if r is enough. Both are averaged over five lengths of the rationale, 1, 5, 10, 20 and 50 % of the
    words, rounded up. The AOPC of DeYoung et al. (§5) divides the sum over k lengths by k + 1, the mean here
    divides it by k: AOPC is 5/6 of the mean. A rationale has at least one word, and leaves at least one.
    `random` is the baseline.

    Plausibility needs a corpus that marks the deciding words. `auprc` and `average_precision` are the
    area under the precision–recall curve by trapezoids and by steps; ERASER reports both. `token_f1` is
    the F1 of a rationale with as many words as are marked. `iou_f1` compares the spans of neighbouring
    words in this rationale with the marked spans: a span is right if its intersection with a marked span
    is at least half of their union. As in ERASER it is the F1 of the mean precision and the mean recall
    over texts. All are nan for texts without marked words. If the tested attention is over sentences,
    sentences take the place of words, and a sentence with a marked word is marked.

    With `every_length`, the words are also removed one after the other (`fidelity.rationale.EveryLength`). `aopc` is
    the AOPC of the ranking. `naopc` is its normalised AOPC: 0 for the worst order of the text, 1 for the best.
    `naopc_ascending` is the normalised AOPC of the reversed ranking. The scores `exact`, `coincide` and `widened`
    are the shares of texts with exact bounds, with equal bounds (whose `naopc` is nan), and with bounds that were
    widened to include a ranking.

    Columns and scores are named `<ranking>.<measure>`; scores are means over the texts. The column
    `gold` counts the marked words.

    Args:
        rankings: Rankings of the words, each once; `file:PATH` reads one (`fidelity.explanations`), an object
            computes one (`fidelity.saliency.Explainer`). The columns of `random` are means over five orders.
        removal: How words are removed: `delete` closes the gap, as in ERASER; `mask` replaces them by the mask
            token, as in Edin et al. (2025). A classifier that was trained without the mask token reads its
            initial embedding.
        every_length: Settings of the columns and scores `aopc`, `naopc` and `naopc_ascending`; None omits
            them; they classify thousands of changed copies of each text.
    """

    name = "rationale"
    headline = (".comprehensiveness", ".naopc")
    directions: ClassVar = {
        **{"comprehensiveness": "↑", "sufficiency": "↓", "aopc": "↑", "naopc": "↑", "naopc_ascending": "↓"},
        **dict.fromkeys(("auprc", "iou_f1", "token_f1"), "↑"),
    }
    claims: ClassVar = {
        "comprehensiveness": "finds the words whose removal costs most",
        "naopc": "orders words best (NAOPC)",
    }
    beside: ClassVar = {"comprehensiveness": ("sufficiency",), "naopc": ("comprehensiveness", "sufficiency")}
    fractions = (0.01, 0.05, 0.1, 0.2, 0.5)

    def __init__(
        self,
        rankings: Sequence[str | Explainer] = RANKINGS,
        removal: Removal = "delete",
        every_length: EveryLength | None = None,
    ) -> None:
        check_values(self, removal=removal)
        self.take(rankings=rankings)
        self.removal, self.every_length = removal, every_length
        self.further = ("gold", *(BOUNDS if every_length else ()))
        columns = (*MEANS, *(EVERY_LENGTH if every_length else ()))
        self._means = [f"{ranking}.{column}" for ranking in self.names for column in columns]

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        words = classified.words
        orders = [saliency.rankings(ranking, self.draws) for ranking in self.rankings]
        values = torch.cat(orders).masked_fill(~words, -torch.inf)
        # [orders, batch, positions] from 0 for the highest; the earlier of equal words comes first.
        ranks = ranks_of(values)
        gold = classified.to_positions(classified.batch.rationale.float()) > 0
        as_many = ranks < gold.sum(1)[:, None]
        found = {
            **self._erased(classified, ranks),
            **plausibility(values, as_many & words, gold, words),
            # With as many words as are marked, precision, recall and F1 are equal.
            "token_f1": (gold & as_many).sum(-1) / gold.sum(1),
        }
        numbers = {"gold": gold.sum(1)}
        if self.every_length:
            areas, bounds = self.every_length.measure(classified, ranks, self.removal)
            found |= dict(zip(EVERY_LENGTH, areas, strict=True))
            numbers |= bounds
        return Measurements(numbers | self.means_of(orders, **found))

    def _erased(self, classified: ClassifiedBatch, ranks: Tensor) -> Mapping[str, Tensor]:
        """Return comprehensiveness and sufficiency, each `[orders, batch]`."""
        words = classified.words
        # The published formula also counts the rationale of no words, and divides by one more.
        top = ranks[:, None] < rationale_lengths(words.sum(1), self.fractions)[..., None]
        keep = torch.stack([words & ~top, words & top])  # [2, orders, fractions, batch, positions]
        probability = classified.of_predicted(classified.reread(keep.flatten(0, 2), self.removal))
        without, alone = (classified.confidence - probability.view(keep.shape[:-1])).mean(2)
        return {"comprehensiveness": without, "sufficiency": alone}

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        spans = {
            f"{ranking}.iou_f1": Score([f"{ranking}.{column}" for column in IOU], _f1_of_means, "fraction")
            for ranking in self.names
        }
        return means(self._means) | proportions(SHARES if self.every_length else ()) | spans

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return the table `rationale.plausibility`; none if the corpus marks no words.

        It has a row for each checkpoint, number of marked words in the text (1, 2, or 3 and more) and
        ranking. The row has the number of texts and the means of `auprc`, `average_precision` and
        `token_f1`. The number of marked words matters for rankings that score one word at a time: they miss
        words that can replace each other, or that decide only together.
        """
        rows = [
            {"checkpoint": result.name, "deciding words": size, "texts": len(values), "ranking": ranking}
            | {name: values[f"{ranking}.{name}"].mean() for name in PLAUSIBILITY}
            for result in results
            for size, values in _by_size(result.columns(self.name))
            for ranking in self.names
        ]
        table = Table(pd.DataFrame(rows), dict.fromkeys(PLAUSIBILITY, "fraction")) if rows else None
        return {f"{self.name}.plausibility": table} if table else {}


def _by_size(values: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the texts with marked words, by the number of these."""
    gold = values["gold"]
    for size, texts in (("1", gold == 1), ("2", gold == 2), ("3 or more", gold > 2)):
        if texts.any():
            yield size, values[texts]


def rationale_lengths(words: Tensor, fractions: Sequence[float]) -> Tensor:
    """Return the number of words in the rationale of each text, int64 `[fractions, batch]`.

    It is rounded up, and is at least one and at most all words but one.

    Args:
        words: Number of words of each text, int64 `[batch]`.
        fractions: Lengths of the rationales, as fractions of the words.
    """
    shares = torch.tensor(fractions, dtype=torch.float64, device=words.device)[:, None] * words
    # In floating point .07 · 100 is a little more than 7.
    lengths = (shares - 1e-9).ceil().long().clamp(min=1)
    return torch.minimum(lengths, words - 1)


def plausibility(values: Tensor, predicted: Tensor, gold: Tensor, words: Tensor) -> dict[str, Tensor]:
    """Return the agreement of rankings with marked words, each measure float64 `[orders, batch]`.

    All are nan for texts without marked words. `auprc` is the area under the precision–recall curve by trapezoids, as
    in ERASER; words of equal value are one point of the curve. `average_precision` is the area by steps: the mean, over
    the marked words, of the precision among the words ranked at least as high. If a single marked word is ranked
    second, it is .5, and `auprc` is .25.

    `iou_precision` is the share of predicted spans that overlap a marked span. `iou_recall` is the number of these
    predicted spans divided by the number of marked spans. A span is a maximal sequence of neighbouring positions. Two
    spans overlap if their intersection is at least half of their union, so a predicted span overlaps at most one marked
    span, and a marked span at most one predicted span.

    Args:
        values: Scores that rank the positions, `[orders, batch, positions]`.
        predicted: Bool `[orders, batch, positions]`, True for words of a rationale.
        gold: Bool `[batch, positions]`, True for marked words.
        words: Bool `[batch, positions]`, True for positions that contain a word; others are ignored.
    """
    names = ("auprc", "average_precision", *IOU)
    found = np.full((*predicted.shape[:2], len(names)), np.nan)
    scores, chosen, marked, inside = (one.cpu().numpy() for one in (values, predicted, gold, words))
    for text in np.flatnonzero(marked.any(1)):
        true, own_words = _spans(marked[text]), inside[text]
        for order in range(len(chosen)):
            own = _spans(chosen[order, text])
            shared = (np.minimum(own[:, None, 1], true[:, 1]) - np.maximum(own[:, None, 0], true[:, 0])).clip(0)
            union = np.ptp(own, axis=1)[:, None] + np.ptp(true, axis=1) - shared
            right = int((shared >= OVERLAP * union).any(1).sum())
            precision, recall, _ = precision_recall_curve(marked[text, own_words], scores[order, text, own_words])
            areas = auc(recall, precision), -(np.diff(recall) * precision[:-1]).sum()
            found[order, text] = *areas, right / max(len(own), 1), right / len(true)
    return dict(zip(names, torch.from_numpy(found).to(gold.device).unbind(-1), strict=True))


def _spans(flags: Flags) -> Integers:
    """Return the first position of each span and the position after its last, int64 `[spans, 2]`."""
    return np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)


def _f1_of_means(values: Floats, weights: Floats) -> Floats:
    """Return the F1 of mean precision and mean recall, the columns, in each draw."""
    precision, recall = (mean(column[:, None], weights) for column in values.T)
    return np.asarray(2 * precision * recall / np.maximum(precision + recall, np.finfo(np.float64).tiny))


class SingleToken(FidelityTest):
    """Probability of the predicted class if the input is one word of the text alone (Tutek & Šnajder 2020).

    If hidden states represent their own words, some words alone make the class likely and others do not. If
    they mix the words of the text, every word alone gives a similar probability. Delimiters stay.

    Columns and scores: `full`, the probability given the full text; `mean` and `spread`, the mean and
    standard deviation over words of the probability given one word; `agree`, the share of words for which
    the classifier decides as for the full text. Columns without a score: `min` and `max`, the lowest and
    highest probability given one word. The words of the example texts are coloured by the probability given each.
    """

    name = "single_token"
    headline = ("agree",)
    claims: ClassVar = {"agree": "on average {} of the words of a text, each alone, give its decision"}
    further = ("min", "max")

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        words = classified.words
        alone = classified.reread(torch.eye(words.size(1), dtype=torch.bool, device=words.device)[:, None] & words)
        probability = classified.of_predicted(alone).T  # [batch, positions], nan without a word
        mean = probability.nanmean(1)
        same = (alone.argmax(-1) == classified.predicted).T & words
        return Measurements(
            {
                "full": classified.confidence,
                "mean": mean,
                # Over all words of the text, not over a sample of them: no correction.
                "spread": (probability - mean[:, None]).square().nanmean(1).sqrt(),
                "min": probability.nan_to_num(torch.inf).amin(1),
                "max": probability.nan_to_num(-torch.inf).amax(1),
                "agree": same.sum(1) / words.sum(1),
            },
            {self.name: probability.nan_to_num(0)},
        )

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        return means(("spread", "mean", "full", "agree"))

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return the figure `single_token.spread`.

        It has a violin of the column `spread` for each variant, over the texts, taken together from all seeds of a
        variant.
        """
        spreads = {variant: values["spread"].tolist() for variant, values in over_seeds(results, self.name).items()}
        label = "standard deviation of P(class) over the words of a text"
        texts = {"texts": list(spreads.values())}
        return {"single_token.spread": Spreads("Each word alone", tuple(spreads), texts, label, unit="ratio")}
