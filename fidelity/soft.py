"""Soft erasure: words lose a random part of their embedding, the larger the less important they are."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fidelity.classified import ClassifiedBatch, to_tokens
from fidelity.experiment import FidelityTest, Measurements, Score, means, proportions
from fidelity.saliency import RANKINGS, Explainer, Saliency

AMOUNTS = tuple(tenth / 10 for tenth in range(1, 10))
"""Shares ρ of the embedded numbers that the form with equal amounts keeps, or removes, in expectation."""
COLUMNS = ("sufficiency", "comprehensiveness", "equal_sufficiency", "equal_comprehensiveness")


class SoftRationale(FidelityTest):
    """Soft sufficiency and comprehensiveness (Zhao & Aletras 2023, §3), and a form with equal amounts.

    Each number of each embedded token is kept or set to 0 at random. Tokens of a word share its score s, the
    ranking's value scaled to 0 for the lowest and 1 for the highest word of the text; delimiters are kept whole. Let
    p be the probability of the class predicted for the full text, p′ the same for the changed text, and
    w = max(0, p − p′) for the text whose words are all zeros, which is 1 − S0 in the paper.

    - `sufficiency` keeps a number with probability s: 1 − max(0, p − p′) / w. High if the important parts are enough.
    - `comprehensiveness` keeps it with probability 1 − s: max(0, p − p′) / w. High if they are needed.

    Both are clipped to the range from 0 to 1. Where w is 0 they are nan, and `undefined` is the share of such texts.

    A ranking with many high scores keeps more of the text, and is more sufficient for this alone. `equal_sufficiency`
    and `equal_comprehensiveness`, which are ours, keep or remove with the probability min(1, c·s). c is such that the
    expected share of numbers is ρ, the same for all rankings; the values are means over ρ = .1, .2, … .9. Where all
    words with s > 0 are fewer than that, they are kept or removed whole, and the others evenly with what is missing.
    If all words have the same value, s is 0 for all, so that the first two are 0, and the equal forms are even.

    The released code has seven ways to scale the scores, of which this is one, and its classes contradict each other
    and the paper on which of s and 1 − s is the probability of keeping. Here it is as in the paper.

    Columns and scores are named `<ranking>.<measure>`; scores are means over the texts. All rankings, and all ρ, use
    the same random numbers, so that their differences are paired.

    Args:
        rankings: Rankings of the words, each once; `file:PATH` reads one (`fidelity.explanations`). `random` gives
            each word a uniform random score.
        draws: Number of random masks of each text, 1 in the paper; with several, the columns are means over them, and
            each mask of `random` has scores of its own.
    """

    name = "soft"
    headline = (".equal_sufficiency", ".equal_comprehensiveness")
    directions: ClassVar = {  # the first two also depend on the amount that a ranking keeps or removes
        "sufficiency": "",
        "comprehensiveness": "",
        "equal_sufficiency": "↑",
        "equal_comprehensiveness": "↑",
    }

    def __init__(self, rankings: Sequence[str | Explainer] = RANKINGS, draws: int = 1) -> None:
        self.take(rankings, draws)

    def columns(self, classes: int) -> Sequence[str]:
        return [*(f"{ranking}.{column}" for ranking in self.names for column in COLUMNS), "undefined"]

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        inside = classified.token_to_position >= 0
        noise = classified.token_noise(self.name, self.draws, classified.output.embedded.size(-1))
        nothing = torch.zeros((1, 1, *inside.shape), dtype=torch.float64, device=inside.device)
        whole = falls(classified, nothing, noise[:1])[0, 0]
        numbers, whole = {"undefined": whole == 0}, whole.masked_fill(whole == 0, torch.nan)
        for ranking, name in zip(self.rankings, self.names, strict=True):
            values = scaled(saliency.rankings(ranking, self.draws).detach().double(), classified.words)
            scores = to_tokens(values, classified.token_to_position).expand(self.draws, -1, -1)
            for form, parts in (("", scores[None]), ("equal_", equal_amounts(scores, inside))):
                enough, needed = (falls(classified, keep, noise) / whole for keep in (parts, 1 - parts))
                numbers[f"{name}.{form}sufficiency"] = (1 - enough).clamp(0, 1).mean((0, 1))
                numbers[f"{name}.{form}comprehensiveness"] = needed.clamp(0, 1).mean((0, 1))
        return Measurements(numbers)

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        return means(self.columns(classes)) | proportions(["undefined"])


def scaled(values: Tensor, words: Tensor) -> Tensor:
    """Scale the values of the words of each text to the range from 0 to 1; all 0 if they are equal, and elsewhere.

    Args:
        values: Values of the positions, `[orders, batch, positions]`.
        words: Bool `[batch, positions]`, True for positions with a word.
    """
    low = values.masked_fill(~words, torch.inf).amin(-1, keepdim=True)
    high = values.masked_fill(~words, -torch.inf).amax(-1, keepdim=True)
    found: Tensor = (values - low) / (high - low)
    return found.masked_fill(~words | (high == low), 0)


def equal_amounts(scores: Tensor, inside: Tensor, amounts: Sequence[float] = AMOUNTS) -> Tensor:
    """Return probabilities min(1, c·s) whose sum over the tokens is the same for all scores.

    Where c would be infinite, tokens with a score have probability 1, and the others share the rest evenly.

    Args:
        scores: Scores s from 0 to 1, float64 `[..., batch, time]`, 0 outside the words.
        inside: Bool `[batch, time]`, True for tokens of words.
        amounts: Sums, as shares of the number of tokens of words.

    Returns:
        Probabilities `[amounts, ..., batch, time]`, 0 outside the words.
    """
    count = inside.sum(-1, keepdim=True)
    shares = torch.tensor(amounts, dtype=scores.dtype, device=scores.device)
    wanted = shares.view(-1, *[1] * scores.dim()) * count
    # With c, the k highest scores have probability 1, and the others share the rest of the sum: the first such k.
    ordered = scores.sort(dim=-1, descending=True).values
    below = ordered.flip(-1).cumsum(-1).flip(-1)
    factors = (wanted - torch.arange(scores.size(-1), device=scores.device)) / below
    fits = (factors * ordered <= 1) & (below > 0)
    factor = factors.gather(-1, fits.int().argmax(-1, keepdim=True))
    positive = scores > 0
    many = positive.sum(-1, keepdim=True)
    even = torch.where(positive, 1, (wanted - many) / (count - many))
    return torch.where(fits.any(-1, keepdim=True), (factor * scores).clamp(max=1), even).masked_fill(~inside, 0)


@torch.no_grad()
def falls(classified: ClassifiedBatch, keep: Tensor, noise: Tensor) -> Tensor:
    """Return max(0, p − p′) for texts with parts of their embedded words, float64 `[forms, draws, batch]`.

    Args:
        classified: The texts.
        keep: Probability that a number of a token is kept, `[forms, draws, batch, time]`; delimiters stay whole.
        noise: Uniform random numbers, `[draws, batch, time, size]`; a number is kept where they are below `keep`.
    """
    inside = (classified.token_to_position >= 0)[..., None]
    found = []
    for form in keep:
        for probabilities, random in zip(form, noise, strict=True):
            embedded = classified.output.embedded.masked_fill(inside & (random >= probabilities[..., None]), 0)
            logits = classified.checkpoint.model(classified.batch, embedded=embedded).logits
            found.append(classified.confidence - classified.of_predicted(logits.softmax(-1)))
    return torch.stack(found).double().clamp(min=0).view(*keep.shape[:3])
