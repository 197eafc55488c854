"""Attention weights that are erased until the decision flips (Serrano & Smith 2019)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from attention_probing.fidelity.classified import ClassifiedBatch, ranks_of, renormalise, select_classified
from attention_probing.fidelity.contract import (
    CheckpointResult,
    FidelityTest,
    Reading,
    Score,
    by_variant,
    frames_by_variant,
    means,
    proportions,
)
from attention_probing.fidelity.saliency import (
    RANKINGS,
    Explainer,
    Saliency,
    check_rankings,
    count_copies,
    count_orders,
    divide_among,
)
from attention_probing.metrics.distributions import jsd
from attention_probing.metrics.statistics import Ratio, median
from attention_probing.results import Curves, Figure, Floats, Spreads, Table
from attention_probing.results.options import checked

Last = Literal["erase", "keep"]  # rule for the last weight of a text
WEIGHTS_OF_PASS = 1 << 21  # most weights, or hidden values multiplied with them, in one pass
FIRST_ROUND = 4  # numbers of erased weights tried in the first round
RANDOM: Literal["random"] = "random"
_OF_ALL = (
    "erasing the highest weights first flips the median decision at {attention} of the weights, a random order at "
    "{random}"
)


class SingleWeight(FidelityTest):
    """Test of erasing the largest attention weight, or a random other weight (Serrano & Smith 2019, §4).

    The two erasures are separate: one weight is set to zero, and the others are scaled to sum to one. On
    a tie the first of the largest weights is erased. If the model has several heads, all lose the weight
    of the same position, the one with the largest mean over heads. Sparse attention may have its whole weight on
    one word: without it nothing is attended to, and the bias decides.

    Scores:

    - `flips_top` and `flips_random`: share of decisions that flip if the largest or if the random weight
      is erased;
    - `delta_js`: mean over texts of the JSD, in nats, between the outputs before and after erasing the
      largest weight, minus the same JSD for the random weight;
    - `alone`: share of texts in which no other weight is above 0.

    Columns: one for each score, and `delta_weight`, the largest weight minus the random weight.
    """

    name = "single_weight"
    readings: ClassVar = {"flips_top": Reading("↑", "the decision flips without the highest weight in {}")}

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Mapping[str, Tensor]:
        attention = classified.attention.masked_fill(~classified.mask, -torch.inf)
        largest = attention.argsort(dim=-1, descending=True, stable=True)[:, 0]
        # The first of the others in a random order; positions outside the mask come last.
        noise = classified.noise(self.name, 1)[0].scatter(1, largest[:, None], torch.inf)
        chosen = torch.stack([largest, noise.argmin(-1)])  # [2, batch]
        erased = one_hot(chosen, attention.size(1)).bool()[:, None]
        weights = renormalise(classified.weights.masked_fill(erased, 0), classified.groups)
        probabilities = classified.decide(weights)
        js_of_largest, js_of_other = jsd(classified.probabilities, probabilities)
        weight_of_largest, weight_of_other = attention.gather(1, chosen.T).T
        flips = (probabilities.argmax(-1) != classified.predicted).double()
        return {
            "flips_top": flips[0],
            "flips_random": flips[1],
            "alone": ((attention > 0).sum(-1) == 1).double(),
            "delta_js": js_of_largest - js_of_other,
            "delta_weight": weight_of_largest - weight_of_other,
        }

    def scores(self) -> Mapping[str, Score]:
        flips = proportions(("flips_top", "flips_random"), main=True)
        return flips | proportions(["alone"]) | means(["delta_js"], "nats")

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return the table `single_weight_flips`: how often each of the two erasures flips the decision.

        The largest weight and the random weight are erased separately. Each checkpoint has a row with the
        number of texts, and the share of texts whose decision flips in both cases (`both`), only without
        the largest weight (`top_only`), only without the random weight (`random_only`), or in neither case
        (`neither`).
        """
        cases = {"both": (1, 1), "top_only": (1, 0), "random_only": (0, 1), "neither": (0, 0)}
        rows = []
        for result in results:
            flips = result.columns(self.name)[["flips_top", "flips_random"]].dropna()
            row: dict[str, object] = {"checkpoint": result.name, "texts": len(flips)}
            for name, (top, other) in cases.items():
                row[name] = ((flips["flips_top"] == top) & (flips["flips_random"] == other)).mean()
            rows.append(row)
        return {f"{self.name}_flips": Table(pd.DataFrame(rows), dict.fromkeys(cases, "fraction"))}

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return the figure `single_weight`, a scatter plot with a point for each text.

        The x axis is the largest weight minus the random weight. The y axis is the JSD between the
        outputs before and after erasing the largest weight, minus the same JSD for the random weight.
        The plot shows the first checkpoint of each variant.
        """
        points = {}
        for variant, runs in by_variant(results).items():
            rows = runs[0].columns(self.name).dropna()
            points[variant] = (rows["delta_weight"].tolist(), rows["delta_js"].tolist())
        axes = ("difference of the two weights", "difference of the two JSD (nats)")
        return {self.name: Curves("The largest weight erased, against a random other", *axes, points=points)}


class SetErasure(FidelityTest):
    """Number of weights that must be erased until the decision flips (Serrano & Smith 2019, §5).

    Attention weights are set to zero in the order of a ranking, highest first, and the others are scaled
    to sum to one. The better a ranking, the fewer weights must be erased. Columns of every text:

    - `<ranking>.fraction`: share of the weights that are erased at the first flip;
    - `<ranking>.mass`: share of the attention that is erased at the first flip;
    - `<ranking>.never`: 0 if the decision flips, 1 if it never does; if it never does, fraction and mass
      are 1 as well.

    The ranking `random` has five orders, each with its own columns: `random.fraction_1` and so on.

    Scores for each ranking:

    - `median_fraction` and `median_mass`: medians over texts.
    - `never_flips`: share of texts whose decision never flips.
    - `last_flips`, only with `last: erase`: share of texts that flip only when no weight is left.
    - `below_random`: median fraction of random orders minus median fraction of the ranking. For either
      value of `last`, these medians include the decisions that never flip, with fraction 1.

    Scores of `random` are means over its orders. `support` is the mean over texts of the column `support`, the share of
    positions whose weight is above 0: all under softmax, fewer under sparse attention. Weights of 0 are equal: in the
    ranking `attention` they come last, in the order of the text.

    If the model has several heads, all lose the weights of the same positions. At the level of words of
    a hierarchical classifier, all words of the text are ranked together. A sentence whose weights are
    all erased gets a zero vector.

    If all weights are erased, the attended sum is zero. The decision then depends on what is left:

    - the bias of the last layer, in a flat classifier, and in a hierarchical one at the level of
      sentences;
    - the hidden states of sentences whose vector is zero, in a hierarchical classifier at the level of
      words;
    - the hidden state of the decision position from the layers below, in a transformer.

    Args:
        rankings: Rankings of the weights, each once; see `fidelity.saliency.RANKINGS`. `file:PATH` reads one
            (`fidelity.explanations`), an object computes one (`fidelity.saliency.Explainer`).
        last: With `erase`, the last weight is erased too, and `median_fraction`, `median_mass` and
            violins leave out decisions that never flip, as in the released code of the paper. With
            `keep`, one weight above 0 always stays, and decisions that have not flipped by then have fraction 1.
    """

    name = "erasure"
    readings: ClassVar = {
        "median_fraction": Reading(
            "↓",
            "flips decisions with the smallest share of weights erased",
            beside=("never_flips", "last_flips"),
            attention="of the decisions that flip, erasing the highest weights first flips the median one at "
            "{attention} of the weights, a random order at {random}",
        ),
        "never_flips": Reading("↓"),
    }
    why_at_most = "a decision that flips is not tried further"

    @checked
    def __init__(self, rankings: Sequence[str | Explainer] = RANKINGS, last: Last = "erase") -> None:
        self.rankings = check_rankings("erasure: rankings", rankings)
        self.last = last
        if last == "keep":  # decisions that never flip are in the median
            of_all = self.readings["median_fraction"]._replace(attention=_OF_ALL)
            self.readings = {**self.readings, "median_fraction": of_all}  # type: ignore[misc]

    def changed_copies(self, classified: ClassifiedBatch) -> float:
        longest = int(classified.mask.sum(1).max())
        numbers = longest if self.last == "erase" else longest - 1
        orders = count_orders(self.rankings, self.draws)
        return orders * len(classified.mask) * numbers + count_copies(self.rankings, classified)

    def _columns_of(self, ranking: str, column: str) -> list[str]:
        """Return the names of a column of a ranking, one for each of its orders."""
        name = f"{ranking}.{column}"
        if ranking != RANDOM:
            return [name]
        return [f"{name}_{order}" for order in range(1, self.draws + 1)]

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Mapping[str, Tensor]:
        rankings = {}
        for name, ranking in self.rankings.items():
            rankings[name] = saliency.rankings(ranking, self.draws).detach()
        orders = torch.cat(list(rankings.values()))
        erased = first_flips(classified, orders, self.last)
        columns = {"support": (classified.attention > 0).sum(1) / classified.mask.sum(1)}
        for column, values in _shares(classified, orders, erased).items():
            for ranking, values_of_ranking in divide_among(rankings, values).items():
                columns |= zip(self._columns_of(ranking, column), values_of_ranking, strict=True)
        return columns

    def scores(self) -> Mapping[str, Score]:
        scores = means(["support"])
        for ranking in self.rankings:
            fractions = self._columns_of(ranking, "fraction")
            masses = self._columns_of(ranking, "mass")
            never = self._columns_of(ranking, "never")
            scores[f"{ranking}.median_fraction"] = Score([*fractions, *never], self._median, "fraction", main=True)
            scores[f"{ranking}.never_flips"] = Score(never, _mean_of_all, "fraction")
            if self.last == "erase":
                scores[f"{ranking}.last_flips"] = Score([*masses, *never], _flips_at_last, "fraction")
            scores[f"{ranking}.median_mass"] = Score([*masses, *never], self._median, "fraction")
            if RANDOM in self.rankings and ranking != RANDOM:
                columns = [*self._columns_of(RANDOM, "fraction"), *fractions]
                scores[f"{ranking}.below_random"] = Score(columns, _median_below, "fraction")
        return scores

    def _median(self, values: Floats, weights: Floats) -> Floats:
        """Return the mean over draws of the median over texts; nan if no decision flips in one of the draws.

        The first half of the columns has the values of each draw, the second half its column `never`.
        """
        shares, never = np.split(values, 2, axis=1)
        counts = np.ones_like(never)
        if self.last == "erase":
            counts[never != 0] = 0
        medians = []
        for shares_of_draw, counts_of_draw in zip(shares.T, counts.T, strict=True):
            medians.append(median(shares_of_draw[:, None], weights * counts_of_draw))
        return np.asarray(np.mean(medians, axis=0))

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return the figure `erasure`: the share of weights erased when the decision flips, as violins.

        There is a violin over the texts for each ranking and variant. Seeds and random orders are
        taken together. Bars in a second panel show the share of decisions that never flip.
        """
        series: dict[str, list[list[float]]] = {}
        rates: dict[str, list[float]] = {}
        for variant, rows in frames_by_variant(results, self.name).items():
            series[variant] = []
            rates[variant] = []
            for ranking in self.rankings:
                fractions = rows[self._columns_of(ranking, "fraction")].dropna().to_numpy().ravel()
                never = rows[self._columns_of(ranking, "never")].dropna().to_numpy().ravel()
                rates[variant].append(float(never.mean()) if len(never) else np.nan)
                if self.last == "erase":
                    fractions = fractions[never == 0]
                series[variant].append(fractions.tolist())
        note = "decisions that never flip left out" if self.last == "erase" else "1 for decisions that never flip"
        figure = Spreads(
            f"Weights erased when the decision flips ({note})",
            tuple(ranking.replace("_", " ") for ranking in self.rankings),
            series,
            "fraction erased",
            category_label="ranking",
            rates=rates,
            rate_label="never flips",
            unit="fraction",
        )
        return {self.name: figure}


@torch.no_grad()
def first_flips(classified: ClassifiedBatch, rankings: Tensor, last: Last = "erase") -> Tensor:
    """Return the smallest number of erased weights that flips the decision, int64 `[orders, batch]`.

    It is 0 if no number flips the decision. The weights that remain are renormalised. All numbers 1, 2,
    3, … are tried, in rounds of at most twice as many numbers as in the round before. Texts that have
    flipped, or have no weight left, are left out of later rounds.

    Args:
        classified: The texts.
        rankings: Sort keys of one or more orders of erasure, `[orders, batch, positions]`; -inf outside
            the mask. The weight with the highest key is erased first; on a tie the first position.
        last: `erase` to erase the last weight of a text too, `keep` to stop before the last weight above 0.
    """
    ranks = ranks_of(rankings)
    most = classified.mask.sum(1)
    if last == "keep":
        most = most - 1
    first = torch.zeros_like(ranks[..., 0])
    heads, _, longest = classified.weights.shape
    hidden = classified.output.levels[classified.names[0]].hidden.size(-1)
    # For one number of erased weights of one text: its weights, or their averages, in every group.
    cells = heads * (int(classified.groups.max()) + 1) * max(longest, hidden)
    start = 1
    size = FIRST_ROUND
    unfinished = (first == 0) & (start <= most)
    while bool(unfinished.any()):
        size = min(size, max(WEIGHTS_OF_PASS // (cells * len(ranks)), 1))
        counts = torch.arange(start, min(start + size, int(most.max()) + 1), device=most.device)
        for texts, orders in _passes(unfinished, cells * size):
            in_pass = select_classified(classified, texts)
            flips = _flips(in_pass, ranks[orders, texts], counts, most[texts], last)
            flips_at = torch.where(flips.any(0), start + flips.int().argmax(0), 0)
            is_unfinished = unfinished[orders, texts]
            first[orders, texts] = torch.where(is_unfinished, flips_at, first[orders, texts])
        start += size
        size *= 2
        unfinished = (first == 0) & (start <= most)
    return first


def _flips(classified: ClassifiedBatch, ranks: Tensor, counts: Tensor, most: Tensor, last: Last) -> Tensor:
    """Return True where the decision flips without the first weights, bool `[counts, orders, batch]`.

    Args:
        classified: The texts.
        ranks: Rank of each weight, `[orders, batch, positions]`.
        counts: Numbers of erased weights, `[counts]`.
        most: Most weights that may be erased, `[batch]`.
        last: Rule for the last weight of a text.
    """
    erased = ranks[:, None] < counts[:, None, None, None, None]  # [counts, orders, heads, batch, positions]
    weights = renormalise(classified.weights.masked_fill(erased, 0), classified.groups)
    decisions = classified.decide(weights).argmax(-1)
    flips = (decisions != classified.predicted) & (counts[:, None, None] <= most)
    if last == "keep":
        flips &= (weights > 0).any(-1).any(-2)
    return flips


def _passes(unfinished: Tensor, cells: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the texts int64 `[texts]` and their unfinished orders `[orders, texts]` of each pass.

    Texts with similar numbers of orders share a pass; a text with fewer orders is filled up with finished ones.

    Args:
        unfinished: Bool `[orders, batch]`.
        cells: Numbers that a pass computes for one text and order.
    """
    orders_of_text = unfinished.sum(0)
    several = int((orders_of_text > 0).sum())
    texts = orders_of_text.argsort(descending=True)[:several]
    while len(texts):
        orders = int(orders_of_text[texts[0]])
        size = max(WEIGHTS_OF_PASS // (cells * orders), 1)
        in_pass = texts[:size]
        texts = texts[size:]
        unfinished_first = unfinished[:, in_pass].int().argsort(dim=0, descending=True, stable=True)
        yield in_pass, unfinished_first[:orders]


def _shares(classified: ClassifiedBatch, rankings: Tensor, erased: Tensor) -> dict[str, Tensor]:
    """Return fraction and mass of the erased weights, and `never`: each float64 `[orders, batch]`."""
    never = erased == 0
    order = rankings.argsort(dim=-1, descending=True, stable=True)
    ordered = classified.attention.double().expand(rankings.shape).gather(-1, order)
    # Positions outside the mask have no weight, so the last sum is the mass of all.
    sums = ordered.cumsum(-1)
    last_erased = (erased - 1).clamp(min=0)
    masses = sums.gather(-1, last_erased[..., None]).squeeze(-1) / sums[..., -1]
    # Rounding must not take what is left for nothing: 1 is the mass of all weights, and of no fewer. Rows are kept in
    # single precision.
    is_erased = torch.arange(sums.size(-1), device=sums.device) < erased[..., None]
    has_rest = (ordered.masked_fill(is_erased, 0) > 0).any(-1)
    masses = torch.where(has_rest, masses.clamp(max=1 - torch.finfo(torch.float32).eps), 1)
    fractions = erased.double() / classified.mask.sum(1)
    return {
        "fraction": fractions.masked_fill(never, 1),
        "mass": masses.masked_fill(never, 1),
        "never": never.double(),
    }


_mean_of_all = Ratio(lambda values: (values.mean(axis=1), np.ones(len(values))), share=True)


def _median_below(values: Floats, weights: Floats) -> Floats:
    """Return the mean over random orders of their medians, minus the median of the ranking, the last column."""
    medians = [median(column[:, None], weights) for column in values.T]
    return np.asarray(np.mean(medians[:-1], axis=0) - medians[-1])


def _flips_at_last(values: Floats, weights: Floats) -> Floats:
    """Return the share of texts that flip only without any weight; columns as for `SetErasure._median`."""
    masses, never = np.split(values, 2, axis=1)
    return _mean_of_all(((masses == 1) & (never == 0)).astype(np.float64), weights)
