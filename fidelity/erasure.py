"""Weights erased one after the other, in the order of a ranking, until the decision is another."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fidelity.base import FidelityTest, Measured, Score, Subject
from fidelity.checkpoints import FidelityError
from fidelity.edits import rows_of
from fidelity.reading import Reading
from fidelity.saliency import RANKINGS, Ranking
from fidelity.summary import by_variant
from fidelity.weights import renormalised
from metrics.charts import Spreads
from metrics.resampling import Floats, mean, median
from metrics.results import Figure

RANDOM: Literal["random"] = "random"
CELLS = 1 << 21
"""Most weights, or hidden values that they are multiplied with, of one pass."""
FIRST_ROUND = 4
"""Erased weights that are tried in the first round."""


class SetErasure(FidelityTest):
    """How many weights must go before the decision flips (Serrano & Smith 2019, §5).

    Weights are set to zero in the order of a ranking, the highest first, and those that are left are scaled to sum to
    one. The shorter it takes, the better the ranking knows what the decision hangs on. Of every text:

    - `<ranking>.fraction`: share of its weights that are gone when the decision flips first;
    - `<ranking>.mass`: share of the attention that these had;
    - `<ranking>.never`: whether it never flips. The last weight always stays, and both shares are then 1.

    Several heads lose the weights of the same slots. With attention over the words of each sentence, all words of the
    text stand in one order, and a sentence that has lost all its words leaves a zero vector.

    Scores: `<ranking>.median_fraction` and `<ranking>.median_mass` over the texts, `<ranking>.never_flips`, and
    `<ranking>.below_random`, the median fraction of random orders less that of the ranking.

    Args:
        rankings: what the weights are ordered by; see `fidelity.saliency.Ranking`.
        draws: random orders of every text; its fraction, mass and never-flip are their means.

    Raises:
        FidelityError: there is no ranking, one stands there twice, or there are no draws.
    """

    name = "erasure"

    def __init__(self, rankings: Sequence[Ranking] = RANKINGS, draws: int = 5) -> None:
        if not rankings or len(set(rankings)) < len(rankings):
            raise FidelityError(f"erasure: name one or more rankings, each once, and not {list(rankings)}.")
        if draws < 1:
            raise FidelityError(f"erasure: {draws} random orders are too few: draws: 5 as in the paper, or 1.")
        self.rankings, self.draws = tuple(rankings), draws

    def columns(self, classes: int) -> Sequence[str]:
        """See the class."""
        return [f"{ranking}.{column}" for ranking in self.rankings for column in ("fraction", "mass", "never")]

    def measure(self, reading: Reading) -> Measured:
        """See `FidelityTest`."""
        orders = [reading.saliency.rankings(ranking, self.draws).detach() for ranking in self.rankings]
        ends = np.cumsum([len(draws) for draws in orders])[:-1].tolist()
        together = torch.cat(orders)
        numbers = {}
        for column, values in _shares(reading, together, first_flips(reading, together)).items():
            for ranking, draws in zip(self.rankings, values.tensor_split(ends), strict=True):
                numbers[f"{ranking}.{column}"] = draws.mean(0)
        return Measured(numbers)

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        """See the class."""
        scores = {}
        for ranking in self.rankings:
            scores[f"{ranking}.median_fraction"] = Score([f"{ranking}.fraction"], median)
            scores[f"{ranking}.never_flips"] = Score([f"{ranking}.never"], mean)
            scores[f"{ranking}.median_mass"] = Score([f"{ranking}.mass"], median)
            if RANDOM in self.rankings and ranking != RANDOM:
                columns = [f"{RANDOM}.fraction", f"{ranking}.fraction"]
                scores[f"{ranking}.below_random"] = Score(columns, _median_below)
        return scores

    def figures(self, subjects: Sequence[Subject]) -> Mapping[str, Figure]:
        """The fractions of each ranking as boxes, all seeds of a variant together, and how often nothing flips."""
        variants = by_variant(subjects)
        never = self._of_texts(variants, "never")
        return {
            self.name: Spreads(
                "Weights erased when the decision flips (all of them where it never does)",
                tuple(ranking.replace("_", " ") for ranking in self.rankings),
                self._of_texts(variants, "fraction"),
                "fraction erased",
                kind="box",
                category_label="ranking",
                rates={
                    name: [float(np.mean(values)) if values else np.nan for values in found]
                    for name, found in never.items()
                },
                rate_label="never flips",
                percent=True,
            )
        }

    def _of_texts(self, variants: Mapping[str, Sequence[Subject]], column: str) -> dict[str, list[list[float]]]:
        """A column of each ranking `[rankings][texts]`, of all checkpoints of a variant one after the other."""
        names = [f"{self.name}.{ranking}.{column}" for ranking in self.rankings]
        return {
            variant: [[value for subject in ours for value in subject.values[name].dropna().tolist()] for name in names]
            for variant, ours in variants.items()
        }


@torch.no_grad()
def first_flips(reading: Reading, rankings: Tensor) -> Tensor:
    """How many weights are erased when the decision is another for the first time.

    Every round tries twice as many numbers of erased weights as the one before, of all texts under all orders, in
    passes of bounded size. What has flipped, or has nothing more to lose, takes no part in the next.

    Args:
        reading: the texts.
        rankings: `[orders, batch, slots]`, the highest goes first, and of equals that which stands first; -inf outside
            the mask.

    Returns:
        int64 `[orders, batch]`; 0 where the decision never flips.
    """
    ranks = rankings.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    slots = reading.mask.sum(1)
    found = torch.zeros_like(ranks[..., 0])
    heads, _, longest = reading.weights.shape
    hidden = reading.output.levels[reading.names[0]].hidden.size(-1)
    # Of one number of erased weights of one text: its weights, or the averages that they make, of every group.
    cells = heads * (int(reading.groups.max()) + 1) * max(longest, hidden)
    start, size = 1, FIRST_ROUND
    while bool((left := (found == 0) & (start < slots)).any()):
        size = min(size, max(CELLS // (cells * len(ranks)), 1))
        counts = torch.arange(start, min(start + size, int(slots.max())), device=slots.device)
        for texts, orders in _passes(left, cells * size):
            some = replace(reading, batch=rows_of(reading.batch, texts), output=rows_of(reading.output, texts))
            # [counts, orders, heads, texts, slots]
            erased = ranks[orders, texts][:, None] < counts[:, None, None, None, None]
            classes = some.decide(renormalised(some.weights.masked_fill(erased, 0), some.groups)).argmax(-1)
            flipped = (classes != some.predicted) & (counts[:, None, None] < slots[texts])
            first = torch.where(flipped.any(0), start + flipped.int().argmax(0), 0)
            found[orders, texts] = torch.where(left[orders, texts], first, found[orders, texts])
        start, size = start + size, 2 * size
    return found


def _passes(left: Tensor, cells: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Texts, int64 `[texts]`, and their orders, `[orders, texts]`, that take part in each pass.

    Texts with as many orders go together; one that has fewer than the others gets some that do not take part.

    Args:
        left: bool `[orders, batch]`, what takes part.
        cells: of one text under one order.
    """
    many = left.sum(0)
    texts = many.argsort(descending=True)[: int((many > 0).sum())]
    while len(texts):
        orders = int(many[texts[0]])
        some, texts = texts.tensor_split([max(CELLS // (cells * orders), 1)])
        yield some, left[:, some].int().argsort(dim=0, descending=True, stable=True)[:orders]


def _shares(reading: Reading, rankings: Tensor, erased: Tensor) -> dict[str, Tensor]:
    """Fraction and mass of what is erased, and whether the decision never flips: each float64 `[orders, batch]`."""
    never = erased == 0
    order = rankings.argsort(dim=-1, descending=True, stable=True)
    mass = reading.attention.double().expand(rankings.shape).gather(-1, order).cumsum(-1)
    # Slots outside the mask have none, so that the last is the mass of all.
    gone = mass.gather(-1, (erased - 1).clamp(min=0)[..., None]).squeeze(-1) / mass[..., -1]
    fractions = erased.double() / reading.mask.sum(1)
    return {"fraction": fractions.masked_fill(never, 1), "mass": gone.masked_fill(never, 1), "never": never.double()}


def _median_below(values: Floats, weights: Floats) -> Floats:
    """Median of the first column less that of the second."""
    return median(values[:, :1], weights) - median(values[:, 1:], weights)
