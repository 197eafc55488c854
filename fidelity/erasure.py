"""Attention that is changed at test time, with unchanged hidden states: uniform, shuffled, or with weights erased."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from attention_probing.fidelity.classified import ClassifiedBatch, ranks_of, renormalised, selected
from attention_probing.fidelity.comparison import CheckpointResult, by_variant, over_seeds
from attention_probing.fidelity.experiment import FidelityTest, Measurements, Score, means, proportions
from attention_probing.fidelity.saliency import RANKINGS, Explainer, Saliency
from attention_probing.metrics.classification import accuracy_drop, f1_drop
from attention_probing.metrics.distributions import jsd, tvd
from attention_probing.metrics.statistics import Ratio, median
from attention_probing.results import Curves, Figure, Floats, Spreads, Table, Unit
from attention_probing.results.errors import check_values

BINS = ("0–.25", ".25–.5", ".5–.75", ".75–1")  # of the highest weight of a text (Jain & Wallace 2019, fig. 6)


class Perturbation(FidelityTest):
    """Decrease in F1 and accuracy if attention is replaced at test time (Tutek & Šnajder 2020, §5).

    There are two kinds of replacement: `uniform` gives every position the same weight, and `permuted`
    shuffles the weights within the text. At the level of words of a hierarchical model both happen
    within each sentence. All heads are shuffled in the same way.

    Scores for each kind: `<kind>_drop` and `<kind>_accuracy_drop`, the decrease in F1 and in accuracy;
    `<kind>_flips`, the share of decisions that change. With two classes F1 is the positive class's,
    else the mean over classes.

    Columns: `gold`, the label; `own`, the decision under the classifier's own attention;
    `<kind>_class_<n>`, the share of replacements under which the decision is class n; `<kind>_flips`,
    the share of replacements under which the decision is not `own`. For each text, `uniform` has one
    replacement, and `permuted` has ten shuffles, all of whose decisions count in F1.
    """

    name = "perturbation"
    headline = ("uniform_drop", "permuted_drop")
    directions: ClassVar = dict.fromkeys(headline, "↑")
    claims: ClassVar = {"uniform_drop": "uniform attention changes F1 by {change}"}
    kinds = ("uniform", "permuted")
    permutations = 10  # shuffles of every text

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        noise = classified.noise(self.name, self.permutations)
        uniform = renormalised((classified.groups >= 0).to(classified.weights.dtype), classified.groups)
        replaced = {
            "uniform": uniform.expand(1, *classified.weights.shape),
            "permuted": permuted(classified.weights, noise, classified.groups),
        }
        classes = classified.probabilities.size(-1)
        numbers = {"gold": classified.batch.labels, "own": classified.predicted}
        for kind, weights in replaced.items():
            decisions = classified.decide(weights).argmax(-1)  # [draws, batch]
            shares = one_hot(decisions, classes).double().mean(0)
            numbers |= dict(zip(_class_columns(kind, classes), shares.unbind(-1), strict=True))
            numbers[f"{kind}_flips"] = (decisions != classified.predicted).double().mean(0)
        return Measurements(numbers)

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        found = {}
        for kind in self.kinds:
            columns = ("gold", "own", *_class_columns(kind, classes))
            found[f"{kind}_drop"] = Score(columns, f1_drop(positive, classes), "fraction")
            found[f"{kind}_accuracy_drop"] = Score(columns, accuracy_drop, "fraction")
            found |= proportions([f"{kind}_flips"])
        return found


class Permutation(FidelityTest):
    """Change of the output when attention is shuffled (Jain & Wallace 2019, §4.2.1).

    If a decision depends on the weights, shuffling them changes the output. Peaked attention should
    react most, so the table and the figure bin the texts by their highest weight. There are two columns:

    - `median_tvd`: median over shuffles of the TVD (0 to 1) between the original and the new output;
    - `max_attention`: highest weight of the text, after averaging over heads.

    The score is the mean over texts of `median_tvd`.
    """

    name = "permutation"
    directions: ClassVar = {"median_tvd": "↑"}
    claims: ClassVar = {"median_tvd": "shuffled attention changes the output by {} (median TVD)"}
    further = ("max_attention",)
    permutations = 100  # shuffles of every text

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        weights = permuted(classified.weights, classified.noise(self.name, self.permutations), classified.groups)
        distances = tvd(classified.decide(weights), classified.probabilities)
        # Not torch.median: for an even number of shuffles it is the lower of the middle two.
        return Measurements({"median_tvd": distances.quantile(0.5, dim=0), "max_attention": max_attention(classified)})

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        return means(["median_tvd"])

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return the table `permutation`: mean and median of `median_tvd` over the texts of a bin.

        Texts are divided into bins by their highest attention weight. There is a row for each variant
        and bin; the columns are those of `bin_table`.
        """
        return {self.name: bin_table(by_max_attention(results, self.name, "median_tvd"), "tvd", "fraction")}

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return the figure `permutation`: violins of `median_tvd` for each variant.

        Texts are divided into bins by their highest attention weight, as in Jain & Wallace's Fig. 6.
        """
        values = by_max_attention(results, self.name, "median_tvd")
        return {self.name: violins("Attention shuffled", values, "median TVD of the output")}


def permuted(weights: Tensor, noise: Tensor, groups: Tensor) -> Tensor:
    """Shuffle attention weights within their distributions, in the same way for all heads.

    Args:
        weights: Attention `[heads, batch, positions]`.
        noise: Random numbers whose order gives the permutations, `[draws, batch, positions]`.
        groups: Index of the distribution that each position belongs to, int64 `[batch, positions]`;
            positions with -1 keep their weight.

    Returns:
        Shuffled weights `[draws, heads, batch, positions]`.
    """
    positions = groups.argsort(dim=-1, stable=True).expand(noise.shape)
    by_noise = noise.argsort(-1)
    # Sorted by group, then by noise: the n-th of them gives its weight to the n-th position of the group.
    givers = by_noise.gather(-1, groups.expand(noise.shape).gather(-1, by_noise).argsort(dim=-1, stable=True))
    source = torch.empty_like(givers).scatter_(-1, positions, givers)
    outside = groups < 0
    source = torch.where(outside, torch.arange(groups.size(-1), device=groups.device), source)
    shape = (noise.size(0), *weights.shape)
    return weights.expand(shape).gather(-1, source[:, None].expand(shape))


def max_attention(classified: ClassifiedBatch) -> Tensor:
    """Return the highest attention weight of each text, `[batch]`, after averaging over heads."""
    return classified.attention.amax(-1)


def by_max_attention(results: Sequence[CheckpointResult], test: str, column: str) -> Mapping[str, Sequence[Floats]]:
    """Return the values of a test's column by variant, in bins of the texts' highest attention weight.

    The texts of all seeds of a variant are taken together. Texts whose value is nan are left out.

    Args:
        results: Results of all checkpoints.
        test: Name of the test.
        column: Name of the column.

    Returns:
        For each variant, four arrays of values, `[texts]`: one for each quarter of the range of the
        highest weight, from 0–.25 to .75–1.
    """
    found: dict[str, list[Floats]] = {}
    for variant, values in over_seeds(results, test).items():
        pairs = values[["max_attention", column]].dropna().to_numpy(np.float64)
        # The last bin includes 1.
        bins = np.minimum(pairs[:, 0] * len(BINS), len(BINS) - 1).astype(np.int64)
        found[variant] = [pairs[bins == place, 1] for place in range(len(BINS))]
    return found


def bin_table(values: Mapping[str, Sequence[Floats]], what: str, unit: Unit) -> Table:
    """Return a table of the mean and median value, one row for each variant and bin that has texts.

    Columns: `variant`; `max_attention`, the bin of the texts' highest attention weight, such as
    `.25–.5`; `texts`, the number of values; `mean_<what>` and `median_<what>`.

    Args:
        values: Values `[texts]` of each bin by variant, from `by_max_attention`.
        what: Name of the values in the last two columns.
        unit: Unit of the values.
    """
    rows = [
        (variant, name, len(some), some.mean(), np.median(some))
        for variant, by_bin in values.items()
        for name, some in zip(BINS, by_bin, strict=True)
        if len(some)
    ]
    columns = [f"mean_{what}", f"median_{what}"]
    frame = pd.DataFrame(rows, columns=["variant", "max_attention", "texts", *columns])
    return Table(frame, dict.fromkeys(columns, unit))


def violins(title: str, values: Mapping[str, Sequence[Floats]], label: str) -> Spreads:
    """Return a figure with one violin for each variant and bin of the texts' highest attention weight.

    Args:
        title: Title of the figure.
        values: Values `[texts]` of each bin by variant, from `by_max_attention`.
        label: Label of the axis of the values.
    """
    series = {variant: [some.tolist() for some in by_bin] for variant, by_bin in values.items()}
    return Spreads(title, BINS, series, label, unit="ratio", category_label="highest attention weight of the text")


def _class_columns(kind: str, classes: int) -> Sequence[str]:
    return [f"{kind}_class_{number}" for number in range(classes)]


Last = Literal["erase", "keep"]  # rule for the last weight of a text
RANDOM: Literal["random"] = "random"
CELLS = 1 << 21  # most weights, or hidden values multiplied with them, in one pass
FIRST_ROUND = 4  # numbers of erased weights tried in the first round


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
    headline = ("flips_top", "flips_random")
    directions: ClassVar = {"flips_top": "↑"}
    claims: ClassVar = {"flips_top": "the decision flips without the highest weight in {}"}
    further = ("delta_weight",)

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        attention = classified.attention.masked_fill(~classified.mask, -torch.inf)
        largest = attention.argsort(dim=-1, descending=True, stable=True)[:, 0]
        # The first of the others in a random order; positions outside the mask come last.
        noise = classified.noise(self.name, 1)[0].scatter(1, largest[:, None], torch.inf)
        chosen = torch.stack([largest, noise.argmin(-1)])
        erased = torch.zeros_like(chosen[..., None].expand(-1, -1, attention.size(1)), dtype=torch.bool)
        erased = erased.scatter(-1, chosen[..., None], True)[:, None]
        probabilities = classified.decide(renormalised(classified.weights.masked_fill(erased, 0), classified.groups))
        top, other = jsd(classified.probabilities, probabilities)
        weight_of_top, weight_of_other = attention.gather(1, chosen.T).T
        flips = (probabilities.argmax(-1) != classified.predicted).double()
        alone = ((attention > 0).sum(-1) == 1).double()
        numbers = {"delta_js": top - other, "delta_weight": weight_of_top - weight_of_other, "alone": alone}
        return Measurements({**numbers, "flips_top": flips[0], "flips_random": flips[1]})

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        return proportions(("flips_top", "flips_random", "alone")) | means(["delta_js"], "nats")

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return the table `single_weight_flips`: how often each of the two erasures flips the decision.

        The largest weight and the random weight are erased separately. Each checkpoint has a row with the
        number of texts, and the share of texts whose decision flips in both cases (`both`), only without
        the largest weight (`top_only`), only without the random weight (`random_only`), or in neither case
        (`neither`).
        """
        shares = {"both": [1, 1], "top_only": [1, 0], "random_only": [0, 1], "neither": [0, 0]}
        rows = []
        for result in results:
            flips = result.columns(self.name)[["flips_top", "flips_random"]].dropna()
            row = {name: (flips == pair).all(axis=1).mean() for name, pair in shares.items()}
            rows.append({"checkpoint": result.name, "texts": len(flips), **row})
        return {f"{self.name}_flips": Table(pd.DataFrame(rows), dict.fromkeys(shares, "fraction"))}

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return the figure `single_weight`, a scatter plot with a point for each text.

        The x axis is the largest weight minus the random weight. The y axis is the JSD between the
        outputs before and after erasing the largest weight, minus the same JSD for the random weight.
        The plot shows the first checkpoint of each variant.
        """
        first = {variant: ours[0].columns(self.name).dropna() for variant, ours in by_variant(results).items()}
        points = {name: (own["delta_weight"].tolist(), own["delta_js"].tolist()) for name, own in first.items()}
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
    headline = (".median_fraction",)
    directions: ClassVar = {"median_fraction": "↓", "never_flips": "↓"}
    claims: ClassVar = {"median_fraction": "flips decisions with the smallest share of weights erased"}
    beside: ClassVar = {"median_fraction": ("never_flips", "last_flips")}

    def __init__(self, rankings: Sequence[str | Explainer] = RANKINGS, last: Last = "erase") -> None:
        check_values(self, last=last)
        self.take(rankings=rankings)
        self.last = last

    def _draws_of(self, ranking: str, column: str) -> list[str]:
        """Return the names of a column of a ranking, one for each of its orders."""
        name = f"{ranking}.{column}"
        return [f"{name}_{draw}" for draw in range(1, self.draws + 1)] if ranking == RANDOM else [name]

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        orders = [saliency.rankings(ranking, self.draws).detach() for ranking in self.rankings]
        together, parts = torch.cat(orders), [len(draws) for draws in orders]
        numbers = {"support": (classified.attention > 0).sum(1) / classified.mask.sum(1)}
        for column, values in _shares(classified, together, first_flips(classified, together, self.last)).items():
            for ranking, draws in zip(self.names, torch.split(values, parts), strict=True):
                numbers |= dict(zip(self._draws_of(ranking, column), draws, strict=True))
        return Measurements(numbers)

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        scores = means(["support"])
        for ranking in self.names:
            fractions, masses, never = (self._draws_of(ranking, column) for column in ("fraction", "mass", "never"))
            scores[f"{ranking}.median_fraction"] = Score([*fractions, *never], self._median, "fraction")
            scores[f"{ranking}.never_flips"] = Score(never, _mean_of_all, "fraction")
            if self.last == "erase":
                scores[f"{ranking}.last_flips"] = Score([*masses, *never], _flips_at_last, "fraction")
            scores[f"{ranking}.median_mass"] = Score([*masses, *never], self._median, "fraction")
            if RANDOM in self.names and ranking != RANDOM:
                columns = [*self._draws_of(RANDOM, "fraction"), *fractions]
                scores[f"{ranking}.below_random"] = Score(columns, _median_below, "fraction")
        return scores

    def _median(self, values: Floats, weights: Floats) -> Floats:
        """Return the mean over draws of the median over texts; nan if no decision flips in one of the draws.

        The first half of the columns has the values of each draw, the second half its column `never`.
        """
        found, never = np.split(values, 2, axis=1)
        counted = never == 0 if self.last == "erase" else np.ones_like(never)
        pairs = zip(found.T, counted.T, strict=True)
        return np.asarray(np.mean([median(one[:, None], weights * counts) for one, counts in pairs], axis=0))

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return the figure `erasure`: the share of weights erased when the decision flips, as violins.

        There is a violin over the texts for each ranking and variant. Seeds and random orders are
        taken together. Bars in a second panel show the share of decisions that never flip.
        """
        shown: dict[str, list[list[float]]] = {}
        rates: dict[str, list[float]] = {}
        for variant, values in over_seeds(results, self.name).items():
            for ranking in self.names:
                fractions, never = (
                    values[self._draws_of(ranking, column)].dropna().to_numpy().ravel()
                    for column in ("fraction", "never")
                )
                kept = fractions[never == 0] if self.last == "erase" else fractions
                shown.setdefault(variant, []).append(kept.tolist())
                rates.setdefault(variant, []).append(float(never.mean()) if len(never) else np.nan)
        left = "decisions that never flip left out" if self.last == "erase" else "1 for decisions that never flip"
        return {
            self.name: Spreads(
                f"Weights erased when the decision flips ({left})",
                tuple(ranking.replace("_", " ") for ranking in self.names),
                shown,
                "fraction erased",
                category_label="ranking",
                rates=rates,
                rate_label="never flips",
                unit="fraction",
            )
        }


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
    most = classified.mask.sum(1) - int(last == "keep")
    found = torch.zeros_like(ranks[..., 0])
    heads, _, longest = classified.weights.shape
    hidden = classified.output.levels[classified.names[0]].hidden.size(-1)
    # For one number of erased weights of one text: its weights, or their averages, in every group.
    cells = heads * (int(classified.groups.max()) + 1) * max(longest, hidden)
    start, size = 1, FIRST_ROUND
    while bool((left := (found == 0) & (start <= most)).any()):
        size = min(size, max(CELLS // (cells * len(ranks)), 1))
        counts = torch.arange(start, min(start + size, int(most.max()) + 1), device=most.device)
        for texts, orders in _passes(left, cells * size):
            some = selected(classified, texts)
            # [counts, orders, heads, texts, positions]
            erased = ranks[orders, texts][:, None] < counts[:, None, None, None, None]
            weights = renormalised(some.weights.masked_fill(erased, 0), some.groups)
            flipped = (some.decide(weights).argmax(-1) != some.predicted) & (counts[:, None, None] <= most[texts])
            if last == "keep":
                flipped &= (weights > 0).any(-1).any(-2)
            first = torch.where(flipped.any(0), start + flipped.int().argmax(0), 0)
            found[orders, texts] = torch.where(left[orders, texts], first, found[orders, texts])
        start, size = start + size, 2 * size
    return found


def _passes(left: Tensor, cells: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the texts int64 `[texts]` and their orders `[orders, texts]` of each pass, from `left` `[orders, batch]`.

    Texts with similar numbers of orders share a pass; a text with fewer orders is filled up with finished ones.
    """
    many = left.sum(0)
    texts = many.argsort(descending=True)[: int((many > 0).sum())]
    while len(texts):
        orders = int(many[texts[0]])
        some, texts = texts.tensor_split([max(CELLS // (cells * orders), 1)])
        yield some, left[:, some].int().argsort(dim=0, descending=True, stable=True)[:orders]


def _shares(classified: ClassifiedBatch, rankings: Tensor, erased: Tensor) -> dict[str, Tensor]:
    """Return fraction and mass of the erased weights, and `never`: each float64 `[orders, batch]`."""
    never = erased == 0
    order = rankings.argsort(dim=-1, descending=True, stable=True)
    ordered = classified.attention.double().expand(rankings.shape).gather(-1, order)
    # Positions outside the mask have no weight, so the last sum is the mass of all.
    mass = ordered.cumsum(-1)
    gone = mass.gather(-1, (erased - 1).clamp(min=0)[..., None]).squeeze(-1) / mass[..., -1]
    # Rounding must not take what is left for nothing: 1 is the mass of all weights, and of no fewer.
    rest = ordered.masked_fill(torch.arange(mass.size(-1), device=mass.device) < erased[..., None], 0)
    gone = torch.where((rest > 0).any(-1), gone.clamp(max=1 - torch.finfo(gone.dtype).eps), 1)
    fractions = erased.double() / classified.mask.sum(1)
    return {"fraction": fractions.masked_fill(never, 1), "mass": gone.masked_fill(never, 1), "never": never.double()}


_mean_of_all = Ratio(lambda values: (values.mean(axis=1), np.ones(len(values))), share=True)


def _median_below(values: Floats, weights: Floats) -> Floats:
    """Return the mean over random orders of their medians, minus the median of the ranking, the last column."""
    *of_random, of_ranking = (median(one[:, None], weights) for one in values.T)
    return np.asarray(np.mean(of_random, axis=0) - of_ranking)


def _flips_at_last(values: Floats, weights: Floats) -> Floats:
    """Return the share of texts that flip only without any weight; columns as for `SetErasure._median`."""
    masses, never = np.split(values, 2, axis=1)
    return _mean_of_all(((masses == 1) & (never == 0)).astype(np.float64), weights)
