"""Soft erasure: part of each embedded word is set to zero, the more the less its score (Zhao & Aletras 2023)."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import ClassVar
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from attention_probing.datamodules.classification import EVAL_TOKENS
from attention_probing.fidelity.classified import ClassifiedBatch, passes, shorten_texts, to_tokens
from attention_probing.fidelity.contract import FidelityTest, Reading, Score, means, proportions
from attention_probing.fidelity.saliency import (
    RANKINGS,
    Explainer,
    Saliency,
    check_rankings,
    count_copies,
    count_orders,
    mean_over_orders,
)
from attention_probing.results.options import checked

SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Expected shares of the embedded words that are kept, or removed, with equal amounts."""
LEAST_FALL = 1e-4
"""Largest f(x₀) of a text without soft scores. The authors' code adds as much to it for Soft-NS."""
PUBLISHED = ("soft_ns", "soft_nc")
EQUAL = ("soft_ns_equal", "soft_nc_equal")


class SoftErasure(FidelityTest):
    """Soft normalised sufficiency and comprehensiveness (Zhao & Aletras 2023), as published and with equal amounts.

    `Rationale` removes whole words. Here each dimension of an embedded word is kept with a probability, and is 0
    otherwise. Let p be the probability of the class predicted for the full text, and f(x) = max(0, p − p(x)) its fall
    for a changed text x. With 0 for all words of the text, x is x₀. Then

        Soft-NC(x) = min(1, f(x) / f(x₀)),   Soft-NS(x) = 1 − min(1, f(x) / f(x₀)).

    As published, the scores of a text are scaled to 0 … 1; a word of score s keeps its dimensions with probability s
    for Soft-NS (`soft_ns`), and 1 − s for Soft-NC (`soft_nc`). A ranking with high scores thus keeps more for Soft-NS
    and less for Soft-NC; `kept` is the share that it keeps, the mean of s.

    `soft_ns_equal` and `soft_nc_equal` compare rankings at equal amounts, the means over five shares ρ: for Soft-NS the
    probabilities are min(1, c s), for Soft-NC 1 − min(1, c s), where c is such that a share ρ of the words is
    kept, or removed, in expectation. The measures π-Soft-NS and π-Soft-NC of Huang & Chan (2026, 2601.03089) fix the
    expected share, too; how they scale scores is not known to us, and min(1, c s) is ours.

    High values of all four speak for the ranking. Columns and scores are named `<ranking>.<measure>`; scores are means
    over the texts. `undefined` is the share of texts whose decision needs no words: f(x₀) is at most 0.0001, and they
    have no value, nor `kept`. A text whose scores are all equal cannot be scaled: it has `soft_ns_equal` and
    `soft_nc_equal` alone.

    Deviations from the code of Zhao & Aletras (cec6883): it sets vectors to 0 after a transformer has added positions.
    Here it is done before, as in that of Zhao & Shan (2024, 2402.00794) for decoders. It has seven ways to scale
    scores, and keeps with probability s in one class and 1 − s in another. Delimiters are kept here. As there, one draw
    is made for each text, ranking and share. Draws of different texts are independent, so intervals over texts contain
    their noise. All rankings of a text get the same random numbers.

    Args:
        rankings: Rankings of the words, as in `Rationale`; their scores matter here, not their order alone. The columns
            of `random` are means over five draws of uniform scores.
    """

    name = "soft"
    readings: ClassVar = {
        "soft_nc_equal": Reading(
            "↑",
            "finds the words that the decision needs (Soft-NC at equal amounts)",
            beside=("soft_ns_equal",),
            attention="soft erasure by attention loses {attention} of what the words add to P(class), by random "
            "scores {random}",
        ),
        "soft_ns_equal": Reading("↑"),
        "soft_nc": Reading("↑"),
        "soft_ns": Reading("↑"),
        "kept": Reading(),
    }

    @checked
    def __init__(self, rankings: Sequence[str | Explainer] = RANKINGS) -> None:
        self.rankings = check_rankings("soft: rankings", rankings)

    def changed_copies(self, classified: ClassifiedBatch) -> float:
        texts = len(classified.batch.index)
        orders = count_orders(self.rankings, self.draws)
        copies_of_order = len(PUBLISHED) + len(EQUAL) * len(SHARES)
        return count_copies(self.rankings, classified) + texts * (1 + copies_of_order * orders)

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Mapping[str, Tensor]:
        words = classified.words
        orders = {name: saliency.rankings(ranking, self.draws) for name, ranking in self.rankings.items()}
        scores = torch.cat(list(orders.values()))
        scaled = scale_scores(scores, words)
        is_flat = scaled.isnan().any(-1)  # [orders, batch]
        shares = torch.stack([equal_shares(scaled, words, share) for share in SHARES])
        kept_by = {
            "soft_ns": scaled[None],
            "soft_nc": 1 - scaled[None],
            "soft_ns_equal": shares,
            "soft_nc_equal": 1 - shares,
        }
        blank = _classify(classified, torch.zeros_like(words, dtype=torch.float64)[None], "blank")[0]
        whole = classified.confidence - blank
        whole = whole.masked_fill(whole <= LEAST_FALL, torch.nan)
        measures = {}
        for measure, keep in kept_by.items():
            copies = []
            for number, of_share in enumerate(keep):
                copies.append(_classify(classified, of_share, f"{measure}.{number}"))
            falls = (classified.confidence - torch.stack(copies)).clamp(min=0)
            lost = (falls / whole).clamp(max=1).mean(0)
            is_sufficiency = measure in ("soft_ns", "soft_ns_equal")
            measures[measure] = 1 - lost if is_sufficiency else lost
        for measure in PUBLISHED:
            measures[measure] = measures[measure].masked_fill(is_flat, torch.nan)
        kept = (scaled * words).sum(-1) / words.sum(-1)
        measures["kept"] = kept.masked_fill(whole.isnan(), torch.nan)  # over the texts of the other numbers
        columns = {"undefined": whole.isnan().double()}
        return columns | mean_over_orders(orders, measures)

    def scores(self) -> Mapping[str, Score]:
        scores: dict[str, Score] = {}
        for ranking, measure in product(self.rankings, (*EQUAL, *PUBLISHED, "kept")):
            scores |= means([f"{ranking}.{measure}"], main=measure == "soft_nc_equal")
        return scores | proportions(["undefined"])


def scale_scores(scores: Tensor, words: Tensor) -> Tensor:
    """Return scores of words scaled to 0 … 1 in each text, float64 `[orders, batch, positions]`.

    The lowest score of a text becomes 0, the highest 1. All are nan if they are equal. Positions without a word have 0.

    Args:
        scores: `[orders, batch, positions]`, with any values at positions without a word.
        words: Bool `[batch, positions]`, True for positions with a word.
    """
    scores = scores.double()
    lowest = scores.masked_fill(~words, torch.inf).amin(-1, keepdim=True)
    highest = scores.masked_fill(~words, -torch.inf).amax(-1, keepdim=True)
    scaled = (scores - lowest) / (highest - lowest)
    scaled = torch.where(highest > lowest, scaled, torch.nan)
    return scaled.masked_fill(~words, 0)


def equal_shares(scaled: Tensor, words: Tensor, share: float) -> Tensor:
    """Return probabilities min(1, c s) for scores s of words, whose mean over the words of each text is `share`.

    If the words with a positive score are too few for that, they get 1, and those of score 0 equal parts of the rest.
    Equal scores (nan) get `share` each.

    Args:
        scaled: Scores of at least 0, `[orders, batch, positions]`; 0 at positions without a word. See `scale_scores`.
        words: Bool `[batch, positions]`, True for positions with a word.
        share: Expected share of the words, between 0 and 1.

    Returns:
        float64 `[orders, batch, positions]`; 0 at positions without a word.
    """
    scores = scaled.nan_to_num(1) * words
    count = words.sum(-1)[:, None].double()
    target = share * count
    descending = scores.sort(dim=-1, descending=True).values
    # If k words get 1, the others share what is left in proportion to their scores.
    sums_of_others = descending.flip(-1).cumsum(-1).flip(-1)
    full = torch.arange(scores.size(-1), device=scores.device)
    factors = (target - full) / sums_of_others
    is_possible = (descending > 0) & (factors * descending <= 1)
    factor = factors.gather(-1, is_possible.long().argmax(-1, keepdim=True))
    proportional = (factor * scores).clamp(max=1)
    positive = scores > 0
    left = (target - positive.sum(-1, keepdim=True)) / (count - positive.sum(-1, keepdim=True))
    filled = torch.where(positive, 1.0, left).masked_fill(~words, 0)
    return torch.where(is_possible.any(-1, keepdim=True), proportional, filled)


@torch.no_grad()
def _classify(classified: ClassifiedBatch, keep: Tensor, purpose: str) -> Tensor:
    """Keep dimensions of the embedded words at random; return the probability of the predicted class.

    Args:
        classified: The texts.
        keep: Probability that a dimension of a word is kept, `[copies, batch, positions]`.
        purpose: Name of the random numbers, which all copies of a text share.

    Returns:
        float64 `[copies, batch]`.
    """
    batch = classified.batch
    embedded = classified.output.embedded.detach()
    has_position = classified.token_to_position >= 0
    keep_tokens = to_tokens(keep, classified.token_to_position).masked_fill(~has_position, 1)
    probabilities = keep.new_empty(keep.shape[:2], dtype=torch.float64)
    for rows in passes(batch.lengths, EVAL_TOKENS):
        texts = shorten_texts(batch, rows, batch.mask[rows], classified.vocabulary.pad)  # without needless padding
        time = texts.tokens.size(1)
        uniform = _uniform(classified, rows, (time, embedded.size(2)), purpose)
        for copy, keep_copy in enumerate(keep_tokens):
            is_kept = uniform < keep_copy[rows, :time, None]
            changed = embedded[rows, :time] * is_kept
            logits = classified.checkpoint.model(texts, embedded=changed).logits
            of_classes = logits.softmax(-1, dtype=torch.float64)
            probabilities[copy, rows] = of_classes.gather(1, classified.predicted[rows, None]).squeeze(1)
            classified.progress.advance(len(rows))
    return probabilities


def _uniform(classified: ClassifiedBatch, rows: Tensor, shape: tuple[int, int], purpose: str) -> Tensor:
    """Return uniform numbers in [0, 1) of some texts, float32 `[rows, time, size]`, the same in every batch."""
    numbers = np.empty((len(rows), *shape), np.float32)
    for place, text in enumerate(classified.batch.index[rows].tolist()):
        random = np.random.default_rng((classified.seed, crc32(f"soft.{purpose}".encode()), text))
        numbers[place] = random.random(shape, np.float32)
    return torch.from_numpy(numbers).to(classified.mask.device)
