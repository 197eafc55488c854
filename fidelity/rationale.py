"""Rationales, the words that a ranking puts first: faithfulness and plausibility (DeYoung et al. 2020)."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import auc, precision_recall_curve
from torch import Tensor

from attention_probing.fidelity.classified import ClassifiedBatch, Removal, ranks_of
from attention_probing.fidelity.contract import (
    CheckpointResult,
    FidelityTest,
    Reading,
    Score,
    means,
    proportions,
)
from attention_probing.fidelity.removal_orders import EVERY_LENGTH, SHARE_COLUMNS, EveryLength
from attention_probing.fidelity.saliency import (
    RANKINGS,
    Explainer,
    Saliency,
    check_rankings,
    count_copies,
    count_orders,
    mean_over_orders,
)
from attention_probing.metrics.statistics import mean
from attention_probing.results import Flags, Floats, Integers, Table, Unit
from attention_probing.results.options import checked

PLAUSIBILITY = ("auprc", "average_precision", "token_f1")
IOU = ("iou_precision", "iou_recall")
MEANS = ("comprehensiveness", "sufficiency", *PLAUSIBILITY)
"""Columns of each ranking whose means are scores."""
MAIN = ("comprehensiveness", "naopc")
"""Measures whose scores are main scores."""
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
    readings: ClassVar = {
        "comprehensiveness": Reading(
            "↑",
            "finds the words whose removal costs most",
            beside=("sufficiency",),
            attention="removing the words with most attention lowers P(class) by {attention:points}, "
            "random words by {random:points}",
        ),
        "sufficiency": Reading("↓"),
        "aopc": Reading("↑"),
        "naopc": Reading(
            "↑",
            "orders words best (NAOPC)",
            beside=("comprehensiveness", "sufficiency"),
            attention="words in the order of attention have a NAOPC of {attention}, in random order of {random}",
        ),
        "naopc_ascending": Reading("↓"),
        "auprc": Reading("↑"),
        "iou_f1": Reading("↑"),
        "token_f1": Reading("↑"),
    }
    fractions = (0.01, 0.05, 0.1, 0.2, 0.5)
    why_at_most = "equal copies are classified once"

    @checked
    def __init__(
        self,
        rankings: Sequence[str | Explainer] = RANKINGS,
        removal: Removal = "delete",
        every_length: EveryLength | None = None,
    ) -> None:
        self.rankings = check_rankings("rationale: rankings", rankings)
        self.removal = removal
        self.every_length = every_length

    def changed_copies(self, classified: ClassifiedBatch) -> float:
        sizes = classified.words.sum(1).tolist()
        orders = count_orders(self.rankings, self.draws)
        copies = count_copies(self.rankings, classified)
        copies += 2 * len(self.fractions) * orders * len(sizes)
        if self.every_length:
            copies += sum(self.every_length.changed_copies(size, orders, self.removal) for size in sizes)
        return copies

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Mapping[str, Tensor]:
        words = classified.words
        orders = {name: saliency.rankings(ranking, self.draws) for name, ranking in self.rankings.items()}
        keys = torch.cat(list(orders.values())).masked_fill(~words, -torch.inf)
        # [orders, batch, positions] from 0 for the highest; the earlier of equal words comes first.
        ranks = ranks_of(keys)
        gold = classified.to_positions(classified.batch.rationale.float()) > 0
        columns = {"gold": gold.sum(1)}
        measures = self._erase(classified, ranks)
        is_first = ranks < gold.sum(1)[:, None]  # as many as are marked
        measures |= plausibility(keys, is_first & words, gold, words)
        # With as many words as are marked, precision, recall and F1 are equal.
        measures["token_f1"] = (gold & is_first).sum(-1) / gold.sum(1)
        if self.every_length:
            areas, bounds = self.every_length.measure(classified, ranks, self.removal)
            measures |= zip(EVERY_LENGTH, areas, strict=True)
            columns |= bounds
        return columns | mean_over_orders(orders, measures)

    def _erase(self, classified: ClassifiedBatch, ranks: Tensor) -> dict[str, Tensor]:
        """Return comprehensiveness and sufficiency, each `[orders, batch]`."""
        words = classified.words
        # The published formula also counts the rationale of no words, and divides by one more.
        lengths = rationale_lengths(words.sum(1), self.fractions)
        rationale = ranks[:, None] < lengths[..., None]  # [orders, fractions, batch, positions]
        keep = torch.stack([words & ~rationale, words & rationale])
        probabilities = classified.of_predicted(classified.reread(keep.flatten(0, 2), self.removal))
        falls = classified.confidence - probabilities.view(keep.shape[:-1])
        comprehensiveness, sufficiency = falls.mean(2)
        return {"comprehensiveness": comprehensiveness, "sufficiency": sufficiency}

    def scores(self) -> Mapping[str, Score]:
        measures = [*MEANS]
        if self.every_length:
            measures += EVERY_LENGTH
        scores: dict[str, Score] = {}
        for ranking, measure in product(self.rankings, measures):
            scores |= means([f"{ranking}.{measure}"], main=measure in MAIN)
        if self.every_length:
            scores |= proportions(SHARE_COLUMNS)
        for ranking in self.rankings:
            columns = [f"{ranking}.{column}" for column in IOU]
            scores[f"{ranking}.iou_f1"] = Score(columns, _f1_of_means, "fraction")
        return scores

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return the table `rationale.plausibility`; none if the corpus marks no words.

        It has a row for each checkpoint, number of marked words in the text (1, 2, or 3 and more) and
        ranking. The row has the number of texts and the means of `auprc`, `average_precision` and
        `token_f1`. The number of marked words matters for rankings that score one word at a time: they miss
        words that can replace each other, or that decide only together.
        """
        rows = []
        for result in results:
            for size, texts in _by_size(result.columns(self.name)):
                for ranking in self.rankings:
                    row: dict[str, object] = {"checkpoint": result.name, "deciding words": size}
                    row |= {"texts": len(texts), "ranking": ranking}
                    for measure in PLAUSIBILITY:
                        row[measure] = texts[f"{ranking}.{measure}"].mean()
                    rows.append(row)
        if not rows:
            return {}
        units: dict[str, Unit] = dict.fromkeys(PLAUSIBILITY, "fraction")
        return {f"{self.name}.plausibility": Table(pd.DataFrame(rows), units)}


def _by_size(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the texts with marked words, by the number of these."""
    gold = rows["gold"]
    for size, has_size in (("1", gold == 1), ("2", gold == 2), ("3 or more", gold > 2)):
        if has_size.any():
            yield size, rows[has_size]


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
    agreement = np.full((*predicted.shape[:2], len(names)), np.nan)
    scores = values.cpu().numpy()
    rationales = predicted.cpu().numpy()
    marked = gold.cpu().numpy()
    inside = words.cpu().numpy()
    for text in np.flatnonzero(marked.any(1)):
        true = _spans(marked[text])
        is_word = inside[text]
        for order in range(len(rationales)):
            spans = _spans(rationales[order, text])
            right = _count_overlapping(spans, true)
            auprc, average_precision = _precision_recall_areas(marked[text, is_word], scores[order, text, is_word])
            iou_precision = right / max(len(spans), 1)
            iou_recall = right / len(true)
            agreement[order, text] = auprc, average_precision, iou_precision, iou_recall
    columns = torch.from_numpy(agreement).to(gold.device).unbind(-1)
    return dict(zip(names, columns, strict=True))


def _precision_recall_areas(marked: Flags, scores: Floats) -> tuple[float, float]:
    """Return the area under the precision–recall curve by trapezoids, and by steps; see `plausibility`."""
    precision, recall, _ = precision_recall_curve(marked, scores)
    by_steps = -(np.diff(recall) * precision[:-1]).sum()
    return auc(recall, precision), by_steps


def _count_overlapping(spans: Integers, true: Integers) -> int:
    """Return the number of spans that overlap one of the true spans; each is `[spans, 2]`, see `_spans`."""
    starts = np.maximum(spans[:, None, 0], true[:, 0])
    ends = np.minimum(spans[:, None, 1], true[:, 1])
    shared = (ends - starts).clip(0)
    union = np.ptp(spans, axis=1)[:, None] + np.ptp(true, axis=1) - shared
    return int((shared >= OVERLAP * union).any(1).sum())


def _spans(flags: Flags) -> Integers:
    """Return the first position of each span and the position after its last, int64 `[spans, 2]`."""
    changes = np.diff(flags.astype(np.int8), prepend=0, append=0)
    return np.flatnonzero(changes).reshape(-1, 2)


def _f1_of_means(values: Floats, weights: Floats) -> Floats:
    """Return the F1 of mean precision and mean recall, the columns, in each draw."""
    precision, recall = [mean(column[:, None], weights) for column in values.T]
    smallest = np.finfo(np.float64).tiny
    return np.asarray(2 * precision * recall / np.maximum(precision + recall, smallest))
