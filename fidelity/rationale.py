"""Tests that classify only some words of a text: rationales (ERASER, DeYoung et al. 2020) and single words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import auc, precision_recall_curve
from torch import Tensor

from fidelity.classified import ClassifiedBatch, Removal, ranks_of
from fidelity.comparison import CheckpointResult, over_seeds
from fidelity.experiment import FidelityTest, Measurements, Score, means, proportions
from fidelity.removal import BOUNDS, EVERY_LENGTH, SHARES, EveryLength
from fidelity.saliency import RANKINGS, Explainer, Saliency
from metrics.bootstrap import mean
from results import Figure, Flags, Floats, Integers, Spreads, Table
from results.errors import check_values

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

    With `every_length`, the words are also removed one after the other: `aopc` of the ranking, and its
    place between the worst and the best order of the text, `naopc`, of the reversed ranking
    `naopc_ascending` (`fidelity.removal.EveryLength`). The scores `exact`, `coincide` and `widened` are shares
    of the texts: with exact bounds; with equal bounds, whose `naopc` is nan; with bounds that a ranking has
    widened.

    Columns and scores are named `<ranking>.<measure>`; scores are means over the texts. The column
    `gold` counts the marked words.

    Args:
        rankings: Rankings of the words, each once; `file:PATH` reads one (`fidelity.explanations`), an object
            computes one (`fidelity.saliency.Explainer`). The columns of `random` are means over five orders.
        removal: What becomes of removed words: `delete` closes the gap, as in ERASER; `mask` puts the mask
            token into their places, as Edin et al. (2025) do. A classifier that has never read the mask
            token treats it as it treats its initial embedding.
        every_length: Settings of the columns and scores `aopc`, `naopc` and `naopc_ascending`; None leaves
            them out, for they read thousands of texts for each.
    """

    name = "rationale"
    headline = (".comprehensiveness", ".naopc")
    directions: ClassVar = {
        **{"comprehensiveness": "↑", "sufficiency": "↓", "aopc": "↑", "naopc": "↑", "naopc_ascending": "↓"},
        **dict.fromkeys(("auprc", "iou_f1", "token_f1"), "↑"),
    }
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
        columns = (*MEANS, *(EVERY_LENGTH if every_length else ()))
        self._means = [f"{ranking}.{column}" for ranking in self.names for column in columns]

    def columns(self, classes: int) -> Sequence[str]:
        spans = (f"{ranking}.{column}" for ranking in self.names for column in IOU)
        return [*self._means, *spans, "gold", *(BOUNDS if self.every_length else ())]

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

    `iou_precision` is the share of predicted spans that overlap a marked span, and `iou_recall` their number divided by
    that of marked spans. A span is a longest sequence of neighbouring positions. Two spans overlap if their
    intersection is at least half of their union; then no third one overlaps either of them.

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
    headline = ("spread", "agree")

    def columns(self, classes: int) -> Sequence[str]:
        return ("full", "mean", "spread", "min", "max", "agree")

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
