"""Tests that classify only some words of a text: rationales (ERASER, DeYoung et al. 2020) and single words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor

from datamodules import ClassificationDataModule
from fidelity.checkpoints import Checkpoint
from fidelity.classified import ClassifiedBatch, Removal, classify, ranks_of
from fidelity.comparison import CheckpointResult, by_variant, over_seeds
from fidelity.experiment import FidelityTest, Measurements, Score, means, proportions
from fidelity.removal import BOUNDS, EVERY_LENGTH, SHARES, EveryLength, chosen_width, sets_read
from fidelity.saliency import RANKINGS, Explainer, Saliency
from metrics.bootstrap import mean
from models import gathered
from results import Figure, Flags, Floats, HeatMap, Integers, Spreads, Table
from results.errors import UserError, check_values, counted

PLAUSIBILITY = ("auprc", "average_precision", "token_f1")
IOU = ("iou_precision", "iou_recall")
MEANS = ("comprehensiveness", "sufficiency", *PLAUSIBILITY)
SAMPLE = 20  # texts that choose the width of the beam search: the shortest whose bounds are not exact
OVERLAP = 0.5
"""Least intersection ÷ union of a predicted span and a marked one (DeYoung et al. 2020, §4.1)."""


class Rationale(FidelityTest):
    """Faithfulness and plausibility of rationales (DeYoung et al. 2020).

    A rationale is the words that a ranking puts first.

    Let p be the probability of the class predicted for the full text x, and r the words of a rationale.
    Comprehensiveness is p(x) − p(x without r), high if r is needed; sufficiency is p(x) − p(r alone),
    low if r is enough. Both are averaged over several lengths of the rationale, `fractions`. The AOPC of
    DeYoung et al. (§5) divides the sum over k lengths by k + 1, the mean here divides it by k: with five
    lengths, AOPC is 5/6 of the mean. A rationale has at least one word, and leaves at least one.
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
            computes one (`fidelity.saliency.Explainer`).
        fractions: Lengths of the rationales, as fractions of the words, between 0 and 1; the number of
            words is rounded up.
        draws: Number of random orders, 1 or more; the columns of `random` are means over them.
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

    def __init__(
        self,
        rankings: Sequence[str | Explainer] = RANKINGS,
        fractions: Sequence[float] = (0.01, 0.05, 0.1, 0.2, 0.5),
        draws: int = 5,
        removal: Removal = "delete",
        every_length: EveryLength | None = None,
    ) -> None:
        check_values(self, removal=removal)
        self.take(rankings, draws)
        if not fractions or not all(0 < fraction < 1 for fraction in fractions):
            raise UserError(
                f"rationale: fractions is {list(fractions)}, but must be shares of the words between 0 and 1, for "
                "instance [0.1, 0.5]."
            )
        self.fractions, self.removal, self.every_length = tuple(fractions), removal, every_length
        self._beam = every_length.beam if every_length else None
        columns = (*MEANS, *(EVERY_LENGTH if every_length else ()))
        self._means = [f"{ranking}.{column}" for ranking in self.names for column in columns]

    def begin(
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        if self.every_length is None:
            return
        split = data.splits["test"]
        words = split.word_counts
        self._beam = self.every_length.beam
        longer = np.flatnonzero(words > self.every_length.exact)
        if self._beam is None and len(longer):
            sample = split[sorted(longer[np.argsort(words[longer], kind="stable")][:SAMPLE].tolist())].to(device)
            found = [classify(one, sample, self.level, seed=seed, vocabulary=data.vocabulary)[1] for one in checkpoints]
            self._beam = chosen_width([one for one in found if one is not None], self.removal)
        every = replace(self.every_length, beam=self._beam)
        counts = words if self.read is None else words[self.read]
        reads = sum(sets_read(count, every.width(count)) for count in counts.tolist() if count > 1)
        rank_zero_info(
            f"rationale: for each of {counted(len(checkpoints), 'classifier')}, the worst and the best orders of "
            f"{counted(len(counts), 'text')} take up to {reads:,} shortened texts. A lower `exact` or `beam` takes "
            "fewer, and so does `texts` of Fidelity."
        )

    def audit(self) -> Mapping[str, object]:
        """Return the width of the beam search, `beam`, if texts are too long for exact bounds."""
        return {"beam": self._beam} if self._beam else {}

    def columns(self, classes: int) -> Sequence[str]:
        spans = (f"{ranking}.{column}" for ranking in self.names for column in IOU)
        return [*self._means, *spans, "gold", *(BOUNDS if self.every_length else ())]

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        words = classified.words
        by_ranking = [saliency.rankings(ranking, self.draws) for ranking in self.rankings]
        values = torch.cat(by_ranking).masked_fill(~words, -torch.inf)
        # [orders, batch, positions] from 0 for the highest; the earlier of equal words comes first.
        ranks = ranks_of(values)
        gold = classified.to_positions(classified.batch.rationale.float()) > 0
        as_many = ranks < gold.sum(1)[:, None]
        found = {
            **self._erased(classified, ranks),
            **dict(zip(IOU, span_overlap(as_many & words, gold), strict=True)),
            "auprc": torch.stack([auprc(order, gold, words) for order in values]),
            "average_precision": torch.stack([average_precision(order, gold, words) for order in values]),
            # With as many words as are marked, precision, recall and F1 are equal.
            "token_f1": (gold & as_many).sum(-1) / gold.sum(1),
        }
        numbers = {"gold": gold.sum(1)}
        if self.every_length:
            every = replace(self.every_length, beam=self._beam)
            areas, bounds = every.measure(classified, ranks, self.removal)
            found |= dict(zip(EVERY_LENGTH, areas, strict=True))
            numbers |= bounds
        parts = [len(orders) for orders in by_ranking]
        for column, of_orders in found.items():
            for ranking, value in zip(self.names, torch.split(of_orders, parts), strict=True):
                numbers[f"{ranking}.{column}"] = value.mean(0)
        return Measurements(numbers)

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


def span_overlap(predicted: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
    """Return the share of predicted spans that overlap a marked span, and their number divided by that of marked spans.

    A span is a longest sequence of neighbouring positions. Two spans overlap if their intersection is at least half of
    their union; then no third one overlaps either of them. Both shares are nan for texts without marked words.

    Args:
        predicted: Bool `[orders, batch, positions]`, True for words of a rationale.
        gold: Bool `[batch, positions]`, True for marked words.

    Returns:
        Precision and recall, both float64 `[orders, batch]`.
    """
    found = torch.full((2, *predicted.shape[:2]), torch.nan, dtype=torch.float64)
    chosen, marked = predicted.cpu().numpy(), gold.cpu().numpy()
    for text in np.flatnonzero(marked.any(1)):
        true = _spans(marked[text])
        for order in range(len(chosen)):
            own = _spans(chosen[order, text])
            shared = (np.minimum(own[:, None, 1], true[:, 1]) - np.maximum(own[:, None, 0], true[:, 0])).clip(0)
            union = np.ptp(own, axis=1)[:, None] + np.ptp(true, axis=1) - shared
            right = int((shared >= OVERLAP * union).any(1).sum())
            found[:, order, text] = torch.tensor([right / max(len(own), 1), right / len(true)])
    return found[0].to(predicted.device), found[1].to(predicted.device)


def _spans(flags: Flags) -> Integers:
    """Return the first position of each span and the position after its last, int64 `[spans, 2]`."""
    return np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)


def _f1_of_means(values: Floats, weights: Floats) -> Floats:
    """Return the F1 of mean precision and mean recall, the columns, in each draw."""
    precision, recall = (mean(column[:, None], weights) for column in values.T)
    return np.asarray(2 * precision * recall / np.maximum(precision + recall, np.finfo(np.float64).tiny))


def auprc(values: Tensor, gold: Tensor, words: Tensor) -> Tensor:
    """Return the area under the precision–recall curve by trapezoids, `[batch]`, as in ERASER.

    The curve begins at recall 0 with precision 1, as in scikit-learn. Words of equal value are one point of
    the curve. The area is nan without a gold word. Two examples: if all words have the same value, the area
    is the mean of 1 and the share of gold words; if a single gold word is ranked second, the area is .25,
    whereas `average_precision` is .5.

    Args:
        values: Scores that rank the positions, `[batch, positions]`.
        gold: Bool `[batch, positions]`, True for marked words.
        words: Bool `[batch, positions]`, True for positions that contain a word; others are ignored.
    """
    order = values.masked_fill(~words, -torch.inf).argsort(dim=-1, descending=True)
    # After the last word recall stays 1, so padding adds nothing.
    precision, recall = (points.gather(-1, order) for points in precision_recall(values, gold, words))
    pad = torch.nn.functional.pad
    return torch.trapezoid(pad(precision, (1, 0), value=1.0), pad(recall, (1, 0)), dim=-1)


def average_precision(values: Tensor, gold: Tensor, words: Tensor) -> Tensor:
    """Return the average precision of a ranking of words, `[batch]`; nan without a gold word.

    It is the mean, over the gold words, of the precision among the words ranked at least as high.

    Args:
        values: Scores that rank the positions, `[batch, positions]`.
        gold: Bool `[batch, positions]`, True for marked words.
        words: Bool `[batch, positions]`, True for positions that contain a word.
    """
    precision, _ = precision_recall(values, gold, words)
    return torch.where(gold, precision, 0).sum(-1) / gold.sum(-1)


def precision_recall(values: Tensor, gold: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Return precision and recall of the marked words, with the value of each position as the threshold.

    With a threshold, the words whose value is at least the threshold count as predicted. The entry at
    a position takes the value of this position as the threshold; at a position without a word, all
    words count as predicted. Recall is nan for a text without a marked word.

    Args:
        values: Scores of the positions, `[batch, positions]`.
        gold: Bool `[batch, positions]`, True for marked words.
        words: Bool `[batch, positions]`, True for positions that contain a word.

    Returns:
        Precision and recall, both float64 `[batch, positions]`.
    """
    values = values.masked_fill(~words, -torch.inf)
    as_high = (values[:, None, :] >= values[:, :, None]) & words[:, None, :]  # [batch, down to, positions]
    found = (as_high & gold[:, None, :]).sum(-1).double()
    return found / as_high.sum(-1), found / gold.sum(-1, keepdim=True)


class SingleToken(FidelityTest):
    """Probability of the predicted class if the input is one word of the text alone (Tutek & Šnajder 2020).

    If hidden states represent their own words, some words alone make the class likely and others do not. If
    they mix the words of the text, every word alone gives a similar probability. Delimiters stay.

    Columns and scores: `full`, the probability given the full text; `mean` and `spread`, the mean and
    standard deviation over words of the probability given one word; `agree`, the share of words for which
    the classifier decides as for the full text. Columns without a score: `min` and `max`, the lowest and
    highest probability given one word.

    The figure `single_token.text` shows the words of one text, the first of test with 8 to 15 tokens.
    """

    name = "single_token"
    headline = ("spread", "agree")
    _shown: Integers = np.empty(0, np.int64)  # index of the shown text, if there is one

    def begin(
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        self._data = data
        lengths = data.splits["test"].lengths
        self._shown = np.flatnonzero((lengths >= 8) & (lengths <= 15))[:1]
        self._alone: dict[str, list[tuple[str, float]]] = {}  # by checkpoint, each word and P(gold label)

    def columns(self, classes: int) -> Sequence[str]:
        return ("full", "mean", "spread", "min", "max", "agree")

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        words = classified.words
        alone = classified.reread(torch.eye(words.size(1), dtype=torch.bool, device=words.device)[:, None] & words)
        probability = classified.of_predicted(alone).T  # [batch, positions], nan without a word
        mean = probability.nanmean(1)
        same = (alone.argmax(-1) == classified.predicted).T & words
        self._keep(classified, alone)
        return Measurements(
            {
                "full": classified.confidence,
                "mean": mean,
                # Over all words of the text, not over a sample of them: no correction.
                "spread": (probability - mean[:, None]).square().nanmean(1).sqrt(),
                "min": probability.nan_to_num(torch.inf).amin(1),
                "max": probability.nan_to_num(-torch.inf).amax(1),
                "agree": same.sum(1) / words.sum(1),
            }
        )

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        return means(("spread", "mean", "full", "agree"))

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return the figures `single_token.spread` and `single_token.text`.

        The first has a violin of the column `spread` for each variant, over the texts, taken together from
        all seeds of a variant. The second shows one text: the probability of its gold label given each of
        its words alone, for the first checkpoint of each variant.
        """
        spreads = {variant: values["spread"].tolist() for variant, values in over_seeds(results, self.name).items()}
        label = "standard deviation of P(class) over the words of a text"
        texts = {"texts": list(spreads.values())}
        found: dict[str, Figure] = {
            "single_token.spread": Spreads("Each word alone", tuple(spreads), texts, label, unit="ratio")
        }
        kept = dict(gathered(list(self._alone.items())))
        rows = {variant: kept[ours[0].name] for variant, ours in by_variant(results).items() if ours[0].name in kept}
        if rows:
            words = [word for word, _ in next(iter(rows.values()))]
            values = np.array([[probability for _, probability in row] for row in rows.values()])
            gold = self._data.labels[self._data.splits["test"].labels[self._shown[0]]]
            axes = "classifier", "word", f"P({gold})"
            found["single_token.text"] = HeatMap(
                "Each word of a text alone", values, list(rows), words, *axes, unit="fraction", limits=(0, 1)
            )
        return found

    def _keep(self, classified: ClassifiedBatch, alone: Tensor) -> None:
        """Keep P(gold label) of each word of the shown text alone, if the text is in the batch and has flat attention.

        Args:
            classified: The texts.
            alone: Probabilities given the word at each position alone, `[positions, batch, classes]`.
        """
        batch = classified.batch
        if classified.words.size(1) != batch.tokens.size(1):
            return  # positions are sentences
        for place in np.flatnonzero(np.isin(batch.index.cpu(), self._shown)):
            forms = self._data.splits["test"].forms(int(self._shown[0]))
            gold = alone[:, place, batch.labels[place]].tolist()
            words = classified.words[place].nonzero().flatten().tolist()
            self._alone[classified.checkpoint.name] = [(forms[at] or "?", gold[at]) for at in words]
