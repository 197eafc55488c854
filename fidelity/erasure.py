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
from metrics.bootstrap import Floats, mean, median
from results import Figure, Spreads

Last = Literal["erase", "keep"]
"""What becomes of the last weight of a text."""
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
    - `<ranking>.never`: 1 where it never flips, and the other two are then 1 as well; 0 elsewhere.

    Of `random` every draw has columns of its own, `random.fraction_1` and so on.

    Several heads lose the weights of the same slots. With attention over the words of each sentence, all words of the
    text stand in one order, and a sentence that has lost all its words leaves a zero vector. Where all weights are
    gone, the attended sum is zero: a flat classifier, and a hierarchical one at the level of sentences, decide by the
    bias of their last layer; a hierarchical one at the level of words by what it makes of empty sentences; a
    transformer by what the position that it reads already holds, to which its heads add nothing.

    Scores, for each ranking: `median_fraction` and `median_mass`; `never_flips`, the share of texts that never flip;
    with the last weight erased `last_flips`, the share that flip when it goes, not before, and so have fraction 1; and
    `below_random`, the median fraction of random orders less its own. Both medians of `below_random` are over all
    texts, whatever `last` is: a decision that never flips counts as fraction 1. Were it left out, as
    `median_fraction` does with `last: erase`, the two would be over different texts. What is said of random orders is
    the mean over the draws of what is found with each of them: a ranking has one order as well.

    Args:
        rankings: what the weights are ordered by; see `fidelity.saliency.Ranking`.
        draws: random orders of every text.
        last: `erase`: the last weight goes too, and `median_fraction`, `median_mass` and boxes leave out decisions
            that never flip, as in the released code of the paper. `keep`: one weight always stays, and decisions that
            have not flipped by then count as fraction 1.

    Raises:
        FidelityError: there is no ranking, one stands there twice, or there are no draws.
    """

    name = "erasure"

    def __init__(self, rankings: Sequence[Ranking] = RANKINGS, draws: int = 5, last: Last = "erase") -> None:
        if not rankings or len(set(rankings)) < len(rankings):
            raise FidelityError(f"erasure: name one or more rankings, each once, and not {list(rankings)}.")
        if draws < 1:
            raise FidelityError(f"erasure: {draws} random orders are too few: draws: 5 as in the paper, or 1.")
        self.rankings, self.draws, self.last = tuple(rankings), draws, last

    def columns(self, classes: int) -> Sequence[str]:
        """See the class."""
        return [
            name
            for ranking in self.rankings
            for column in ("fraction", "mass", "never")
            for name in self._draws_of(ranking, column)
        ]

    def _draws_of(self, ranking: Ranking, column: str) -> list[str]:
        """Names of a column of a ranking, one for each of its orders."""
        name = f"{ranking}.{column}"
        return [f"{name}_{draw}" for draw in range(1, self.draws + 1)] if ranking == RANDOM else [name]

    def measure(self, reading: Reading) -> Measured:
        """See `FidelityTest`."""
        orders = [reading.saliency.rankings(ranking, self.draws).detach() for ranking in self.rankings]
        ends = np.cumsum([len(draws) for draws in orders])[:-1].tolist()
        together = torch.cat(orders)
        numbers: dict[str, Tensor] = {}
        for column, values in _shares(reading, together, first_flips(reading, together, self.last)).items():
            for ranking, draws in zip(self.rankings, values.tensor_split(ends), strict=True):
                numbers |= dict(zip(self._draws_of(ranking, column), draws, strict=True))
        return Measured(numbers)

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        """See the class."""
        scores = {}
        for ranking in self.rankings:
            fractions, masses, never = (self._draws_of(ranking, column) for column in ("fraction", "mass", "never"))
            scores[f"{ranking}.median_fraction"] = Score([*fractions, *never], self._median, "fraction")
            scores[f"{ranking}.never_flips"] = Score(never, _mean_of_all, "fraction")
            if self.last == "erase":
                scores[f"{ranking}.last_flips"] = Score([*fractions, *never], _flips_at_last, "fraction")
            scores[f"{ranking}.median_mass"] = Score([*masses, *never], self._median, "fraction")
            if RANDOM in self.rankings and ranking != RANDOM:
                columns = [*self._draws_of(RANDOM, "fraction"), *fractions]
                scores[f"{ranking}.below_random"] = Score(columns, _median_below, "fraction")
        return scores

    def _median(self, values: Floats, weights: Floats) -> Floats:
        """Median over the texts for each draw, the mean of these: nan where nothing flips in one of the draws.

        Columns are those of all draws, and behind them which of them never flip.
        """
        found, never = np.split(values, 2, axis=1)
        counted = never == 0 if self.last == "erase" else np.ones_like(never)
        pairs = zip(found.T, counted.T, strict=True)
        medians: Floats = np.mean([median(one[:, None], weights * counts) for one, counts in pairs], axis=0)
        return medians

    def figures(self, subjects: Sequence[Subject]) -> Mapping[str, Figure]:
        """The fractions of each ranking as boxes, all seeds and draws together, and how often nothing flips."""
        variants = by_variant(subjects)
        fractions, never = self._of_texts(variants, "fraction"), self._of_texts(variants, "never")
        shown = {
            name: [
                [value for value, stays in zip(*pair, strict=True) if self.last == "keep" or not stays]
                for pair in zip(found, never[name], strict=True)
            ]
            for name, found in fractions.items()
        }
        left = "decisions that never flip left out" if self.last == "erase" else "all of them where it never does"
        return {
            self.name: Spreads(
                f"Weights erased when the decision flips ({left})",
                tuple(ranking.replace("_", " ") for ranking in self.rankings),
                shown,
                "fraction erased",
                kind="box",
                category_label="ranking",
                rates={
                    name: [float(np.mean(values)) if values else np.nan for values in found]
                    for name, found in never.items()
                },
                rate_label="never flips",
                unit="fraction",
            )
        }

    def _of_texts(self, variants: Mapping[str, Sequence[Subject]], column: str) -> dict[str, list[list[float]]]:
        """A column of each ranking `[rankings][texts × draws]`, of all checkpoints of a variant one after the other."""
        of_rankings = [[f"{self.name}.{name}" for name in self._draws_of(ranking, column)] for ranking in self.rankings]
        return {
            variant: [
                [value for subject in ours for value in subject.values[names].dropna().to_numpy().ravel().tolist()]
                for names in of_rankings
            ]
            for variant, ours in variants.items()
        }


@torch.no_grad()
def first_flips(reading: Reading, rankings: Tensor, last: Last = "erase") -> Tensor:
    """How many weights are erased when the decision is another for the first time.

    Every round tries twice as many numbers of erased weights as the one before, of all texts under all orders, in
    passes of bounded size. What has flipped, or has nothing more to lose, takes no part in the next.

    Args:
        reading: the texts.
        rankings: `[orders, batch, slots]`, the highest goes first, and of equals that which stands first; -inf outside
            the mask.
        last: whether the last weight of a text goes too; with nothing left, the weights are zero.

    Returns:
        int64 `[orders, batch]`; 0 where the decision never flips.
    """
    ranks = rankings.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    most = reading.mask.sum(1) - int(last == "keep")
    found = torch.zeros_like(ranks[..., 0])
    heads, _, longest = reading.weights.shape
    hidden = reading.output.levels[reading.names[0]].hidden.size(-1)
    # Of one number of erased weights of one text: its weights, or the averages that they make, of every group.
    cells = heads * (int(reading.groups.max()) + 1) * max(longest, hidden)
    start, size = 1, FIRST_ROUND
    while bool((left := (found == 0) & (start <= most)).any()):
        size = min(size, max(CELLS // (cells * len(ranks)), 1))
        counts = torch.arange(start, min(start + size, int(most.max()) + 1), device=most.device)
        for texts, orders in _passes(left, cells * size):
            some = replace(reading, batch=rows_of(reading.batch, texts), output=rows_of(reading.output, texts))
            # [counts, orders, heads, texts, slots]
            erased = ranks[orders, texts][:, None] < counts[:, None, None, None, None]
            classes = some.decide(renormalised(some.weights.masked_fill(erased, 0), some.groups)).argmax(-1)
            flipped = (classes != some.predicted) & (counts[:, None, None] <= most[texts])
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


def _mean_of_all(values: Floats, weights: Floats) -> Floats:
    """Mean over texts and draws."""
    return mean(values.mean(1, keepdims=True), weights)


def _median_below(values: Floats, weights: Floats) -> Floats:
    """Mean of the medians of the random orders less that of the ranking, the last column; over all texts."""
    *of_random, of_ranking = (median(one[:, None], weights) for one in values.T)
    below: Floats = np.mean(of_random, axis=0) - of_ranking
    return below


def _flips_at_last(values: Floats, weights: Floats) -> Floats:
    """Share of the texts that flip when all weights are gone, not before; columns as for `SetErasure._median`."""
    fractions, never = np.split(values, 2, axis=1)
    return _mean_of_all(((fractions == 1) & (never == 0)).astype(np.float64), weights)
