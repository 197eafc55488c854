"""Adversarial attention: attention that differs much from a classifier's and hardly changes its output."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import pandas as pd
import torch
from torch import Tensor

from fidelity.classified import ClassifiedBatch, require_one_distribution
from fidelity.comparison import CheckpointResult, over_seeds
from fidelity.experiment import FidelityTest, Measurements, Score, means
from fidelity.perturbation import bin_table, by_max_attention, max_attention, violins
from fidelity.saliency import Saliency
from metrics.distributions import entropy, jsd, tvd
from results import Curves, Figure, Table
from results.errors import check_numbers, check_values

Search = Literal["best", "published"]
"""`best` takes the best of all searches, `published` only the search of the released code."""

DRAWN = 50  # draws evaluated together
PAIRS = 2**20  # most pairs of positions compared together


class Adversary(FidelityTest):
    """Search adversarial attention for every text (Jain & Wallace 2019, §4.2.2), all texts of a batch at once.

    Adversarial attention is as far as possible from the classifier's attention on the text, in Jensen–Shannon
    divergence (JSD), while the output stays within ε of the original output, in total variation distance (TVD). The
    ε-max JSD of a text, at most ln 2, is the largest divergence found; it is 0 if no other attention is accepted. If
    the model has several heads, their attention is searched together, and the divergence is their mean. The published
    search finds smaller divergences than random draws from the distribution of its initial logits, so `best` takes the
    largest divergence of four searches:

    - the published search: AMSGrad on `copies` attention distributions per text, evaluated after the last step;
    - `draws` random distributions from the distribution of the initial logits;
    - gradient ascent from the best random distributions, for `epsilon` and for `tolerance`; every step is a candidate;
    - for two classes: every position alone, and every pair of positions, weighted so that the output lies at the edge
      of the accepted distance.

    The last search is exact if the logits are linear in the weights, as in every classifier here but the transformer:
    the accepted attention is then a polytope whose corners have weight on at most two positions, and the divergence,
    which is convex, is largest at a corner. Otherwise the value is a lower bound. docs/papers/jain2019.md has figures.

    Scores, means over the texts: `max_jsd`, the ε-max JSD; `max_jsd_strict`, the same with `epsilon` as tolerance;
    `tvd`, the distance of the output under the attention chosen for `max_jsd`; under `best` also `max_jsd_published`
    and `max_jsd_strict_published`, from the published search alone. Columns: the same, `max_attention`, and
    `max_jsd_at_<ε>`, the ε-max JSD with ε as tolerance.

    The result for a text does not depend on its batch: the losses are sums over texts, and Adam scales each weight by
    itself. Memory grows with copies × tokens of a batch, under `best` with max(copies, 50) × tokens, as 50 draws are
    evaluated together. A transformer runs again at every step: lower `--model.init_args.eval_tokens` for it.

    Args:
        search: `best`, or `published` for the search of the released code alone.
        copies: number K of attention distributions that a published search optimises together for each text.
        steps: number of steps of AMSGrad.
        epsilon: TVD of the output up to which the loss has no penalty.
        tolerance: TVD of the output up to which attention is accepted.
        starts: number of published searches for each text, each on `copies` distributions; the best of all counts. The
            distributions of all starts are kept in memory.
        draws: number of random distributions for each text; used by `best`.
    """

    name = "adversary"
    headline = ("max_jsd", "max_jsd_published")
    # As in the code released with the paper (github.com/successar/AttentionExplanation).
    learning_rate = 0.01  # of AMSGrad
    penalty = 500.0  # weight of distance above `epsilon` in the loss
    diversity = 1.0  # weight of the mean divergence between the K² pairs of copies in the loss
    spread = 3.0  # standard deviation of the first logits
    # Ours. Steps of .01 are too short to leave the neighbourhood of the start, and a penalty of 500 stops the copies
    # where they first meet the constraint.
    ascents, ascent_steps, ascent_rate, ascent_penalty = 10, 100, 0.1, 5.0
    # Pairs lie this share of the bound inside its edge, so that a rounded output is accepted.
    margin = 1e-3
    epsilons = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # distances of the curve

    def __init__(
        self,
        copies: int = 5,
        steps: int = 500,
        epsilon: float = 0.01,
        # The paper has one ε, .01. Its code penalises beyond .01 and accepts up to .05, as here: the best copies lie at
        # the boundary, some a little beyond it. `max_jsd_strict` is the paper's.
        tolerance: float = 0.05,
        starts: int = 1,
        search: Search = "best",
        draws: int = 500,
    ) -> None:
        check_values(self, search=search)
        check_numbers(self, least=1, copies=copies, starts=starts, draws=draws)
        check_numbers(self, least=0, steps=steps)
        check_numbers(self, above=0, epsilon=epsilon, tolerance=tolerance)
        self.search, self.draws = search, draws
        self.copies, self.steps, self.starts = copies, steps, starts
        self.epsilon, self.tolerance, self._limits = epsilon, tolerance, sorted({epsilon, tolerance})
        self._divergences = ["max_jsd", "max_jsd_strict"]
        if search == "best":
            self._divergences += ["max_jsd_published", "max_jsd_strict_published"]
        self._has_pairs = False

    def columns(self, classes: int) -> Sequence[str]:
        return (*self._divergences, "tvd", "max_attention", *map(_at, self.epsilons))

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        """Return the columns of a batch; the attention chosen for `max_jsd` colours the example texts."""
        require_one_distribution(classified, self.name)
        farthest = Farthest(classified, [*self.epsilons, self.epsilon, self.tolerance], self.tolerance)
        farthest.offer(self.published(classified))
        numbers = {"max_attention": max_attention(classified)}
        if self.search == "best":
            numbers["max_jsd_published"] = farthest.divergence[self.tolerance]
            numbers["max_jsd_strict_published"] = farthest.divergence[self.epsilon]
            for limit, start in self.draw(classified, farthest).items():
                # Not all at once, so that a step needs no more memory than a published step.
                for some in start.split(self.copies):  # type: ignore[no-untyped-call]
                    self._ascend(classified, some, limit, farthest)
            self._has_pairs = classified.probabilities.size(-1) == 2
            if self._has_pairs:
                for weights in pairs(classified, list(farthest.divergence), self.margin):
                    farthest.offer(weights)
        numbers |= {
            "max_jsd": farthest.divergence[self.tolerance],
            "max_jsd_strict": farthest.divergence[self.epsilon],
            "tvd": farthest.distance,
            **{_at(epsilon): farthest.divergence[epsilon] for epsilon in self.epsilons},
        }
        return Measurements(numbers, {"adversary": farthest.weights.mean(0)})

    def published(self, classified: ClassifiedBatch) -> Tensor:
        """Run the published search from every start; return the attention after the last step.

        Returns:
            Attention `[starts × copies, heads, batch, positions]`: `copies` distributions per start and text.
        """
        # One after the other, so that the memory of a step does not grow with their number.
        starts = self.start(classified).tensor_split(self.starts)
        return torch.cat([self._search(classified, start) for start in starts])

    def _search(self, classified: ClassifiedBatch, start: Tensor) -> Tensor:
        logits = start.clone().requires_grad_()
        adam = torch.optim.Adam([logits], self.learning_rate, amsgrad=True, fused=True)
        for _ in range(self.steps):
            adam.zero_grad()
            self.loss(classified, logits.softmax(-1)).backward()  # type: ignore[no-untyped-call]
            adam.step()
        return logits.detach().softmax(-1)

    def start(self, classified: ClassifiedBatch) -> Tensor:
        """Return the random initial logits of the published searches, `[starts × copies, heads, batch, positions]`.

        The logits of a start do not depend on later starts.
        """
        return self.drawn(classified, self.name, self.starts * self.copies)

    def drawn(self, classified: ClassifiedBatch, purpose: str, count: int) -> Tensor:
        """Return random attention logits, `[count, heads, batch, positions]`.

        Logits are log(1/L) + spread · N(0, 1) for a text of L positions, and the lowest float outside the mask, so that
        weights and gradients are 0 there. They depend on the seed, the text and `purpose`, which separates independent
        draws.
        """
        noise = classified.noise(purpose, count * len(classified.weights))
        # A uniform draw becomes a normal one; 0 would become -∞.
        normal: Tensor = torch.special.ndtri(noise.clamp(torch.finfo(noise.dtype).tiny, 1))
        drawn = self.spread * normal - classified.mask.sum(-1, keepdim=True).to(noise.dtype).log()
        dtype = classified.weights.dtype
        drawn = drawn.to(dtype).masked_fill(~classified.mask, torch.finfo(dtype).min)
        return drawn.view(count, *classified.weights.shape)

    def loss(self, classified: ClassifiedBatch, weights: Tensor) -> Tensor:
        """Return the loss of the published search, a scalar: the sum over the texts.

        For each text it is a penalty on output distances above `epsilon`, minus the divergences from the classifier's
        attention, minus the mean divergence between pairs of the K distributions that are optimised together.

        Args:
            classified: the texts, with the classifier's attention.
            weights: the K distributions for each text, `[copies, heads, batch, positions]`.
        """
        own = classified.weights
        distance = tvd(classified.decide(weights), classified.probabilities)
        entropies = entropy(weights)
        from_own = _divergence(weights, entropies, own, entropy(own))
        first, second = torch.triu_indices(self.copies, self.copies, 1, device=weights.device)
        between = _divergence(weights[first], entropies[first], weights[second], entropies[second])
        constraint = self.penalty * (distance - self.epsilon).relu()
        # The K² pairs have each pair of two copies twice; a copy and itself have divergence 0.
        diversity = self.diversity * 2 * between.sum() / self.copies**2
        loss: Tensor = constraint.sum() - (from_own.sum() + diversity) / len(own)
        return loss

    def draw(self, classified: ClassifiedBatch, farthest: "Farthest") -> Mapping[float, Tensor]:
        """Draw random attention and offer it to `farthest`; return the logits of the best draws, where ascents start.

        Returns:
            For `epsilon` and `tolerance`, logits `[ascents, heads, batch, positions]`: first the draws within this
            output distance, the largest divergence first, then the others, the smallest distance first.
        """
        kept: dict[float, tuple[Tensor, Tensor]] = {}
        for first in range(0, self.draws, DRAWN):
            logits = self.drawn(classified, f"{self.name} draws {first}", min(DRAWN, self.draws - first))
            distance, divergence = farthest.offer(logits.softmax(-1))
            for limit in self._limits:
                rank, found = torch.where(distance <= limit, divergence, -distance).nan_to_num(-math.inf), logits
                if limit in kept:
                    rank, found = (torch.cat(both) for both in zip(kept[limit], (rank, found), strict=True))
                rank, best = rank.topk(min(self.ascents, len(rank)), dim=0)
                kept[limit] = rank, found.gather(0, best[:, None, :, None].expand(-1, *logits.shape[1:]))
        return {limit: logits for limit, (_, logits) in kept.items()}

    def _ascend(self, classified: ClassifiedBatch, start: Tensor, limit: float, farthest: "Farthest") -> None:
        """Ascend the divergence from logits `[copies, heads, batch, positions]` within a limit; offer every step."""
        logits, own = start.clone().requires_grad_(), classified.weights
        own_entropy = entropy(own)
        adam = torch.optim.Adam([logits], self.ascent_rate, fused=True)
        for _ in range(self.ascent_steps):
            adam.zero_grad()
            weights = logits.softmax(-1)
            distance = tvd(classified.decide(weights), classified.probabilities)
            divergence = _divergence(weights, entropy(weights), own, own_entropy).mean(1)
            excess = (distance - limit).relu()
            (self.ascent_penalty * excess - divergence).sum().backward()  # type: ignore[no-untyped-call]
            farthest.keep(weights.detach(), distance.detach(), divergence.detach().double())
            adam.step()

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        return means(self._divergences, "nats") | means(["tvd"])

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return `adversary`, the ε-max JSD by the highest weight of the text, and `adversary.curve`, its mean by ε."""
        curves = [
            pd.DataFrame(
                {"checkpoint": one.name, "epsilon": self.epsilons, "max_jsd": self._curve(one.columns(self.name))}
            )
            for one in results
        ]
        frame = pd.concat(curves, ignore_index=True)
        return {
            self.name: bin_table(by_max_attention(results, self.name, "max_jsd"), "jsd", "nats"),
            f"{self.name}.curve": Table(frame, {"epsilon": "ratio", "max_jsd": "nats"}),
        }

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return `adversary`, violins of the ε-max JSD by the highest weight of the text, and `adversary.curve`.

        The curve is the mean ε-max JSD by accepted output distance, a line for each variant.
        """
        seeds = over_seeds(results, self.name)
        lines = {variant: (self.epsilons, self._curve(values)) for variant, values in seeds.items()}
        values = by_max_attention(results, self.name, "max_jsd")
        title = "Adversarial attention, by accepted distance"
        axes = ("accepted TVD of the output", "mean ε-max JSD")
        return {
            self.name: violins("Adversarial attention", values, "ε-max JSD"),
            f"{self.name}.curve": Curves(title, *axes, lines, log_x=True, y_range=(0.0, math.log(2))),
        }

    def audit(self) -> Mapping[str, object]:
        """Return `evaluations`, the number of times that the classifier decides on one text, by search.

        The entry `each_position` counts evaluations for each position of the text.
        """
        counts = {"published": self.starts * self.copies * (self.steps + 1)}  # and one after the last step
        if self.search == "best":
            ascents = min(self.ascents, self.draws)
            counts |= {"draws": self.draws, "ascent": len(self._limits) * ascents * self.ascent_steps}
        if self._has_pairs:
            bounds = len({*self.epsilons, self.epsilon, self.tolerance})
            # A position alone is evaluated for its pairs, and as a candidate.
            counts |= {"pairs": 2 * bounds, "each_position": 2}
        return {"evaluations": counts}

    def _curve(self, values: pd.DataFrame) -> Sequence[float]:
        return values[[_at(epsilon) for epsilon in self.epsilons]].mean().tolist()


def _divergence(p: Tensor, entropy_of_p: Tensor, q: Tensor, entropy_of_q: Tensor) -> Tensor:
    """Return JSD as the entropy of the mixture minus the mean entropy, so that each logarithm is taken once."""
    return entropy((p + q) / 2) - (entropy_of_p + entropy_of_q) / 2


def _at(epsilon: float) -> str:
    return f"max_jsd_at_{epsilon:g}"


class Farthest:
    """Candidate attention with the largest divergence so far for each text, for several bounds on the output distance.

    Divergence is the JSD of the attention from the classifier's, distance the TVD of the output. The first candidate is
    the classifier's attention, with divergence 0.

    Args:
        classified: the texts.
        bounds: largest accepted distances.
        chosen: the bound whose best attention is kept.

    Attributes:
        divergence: largest divergence by bound, float64 `[batch]`.
        weights: attention with the largest divergence within `chosen`, `[heads, batch, positions]`.
        distance: distance of the output under `weights`, `[batch]`.
    """

    def __init__(self, classified: ClassifiedBatch, bounds: Sequence[float], chosen: float) -> None:
        self._classified, self._chosen = classified, chosen
        self.weights, self.distance = classified.weights, torch.zeros_like(classified.confidence)
        self.divergence = dict.fromkeys(bounds, self.distance.double())

    @torch.no_grad()
    def offer(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Classify under candidate attention `[candidates, heads, batch, positions]`, and keep the best candidates.

        Returns:
            Distance of the output and divergence of the attention, each `[candidates, batch]`.
        """
        classified = self._classified
        distance = tvd(classified.decide(weights), classified.probabilities)
        divergence = jsd(weights.double(), classified.weights.double()).mean(1)
        self.keep(weights, distance, divergence)
        return distance, divergence

    def keep(self, weights: Tensor, distance: Tensor, divergence: Tensor) -> None:
        """Update the best candidates by attention that has been evaluated; nan as distance or divergence is skipped.

        Args:
            weights: candidate attention, `[candidates, heads, batch, positions]`.
            distance: distance of the output, `[candidates, batch]`.
            divergence: divergence of the attention, `[candidates, batch]`.
        """
        # With weights that sum to a little more than one, rounding may exceed ln 2.
        divergence = divergence.clamp(max=math.log(2))
        for bound, before in self.divergence.items():
            best, which = divergence.masked_fill(~(distance <= bound) | divergence.isnan(), -1).max(0)
            self.divergence[bound] = torch.maximum(best, before)
            if bound == self._chosen:
                farther, texts = best > before, torch.arange(len(which), device=which.device)
                found = weights[which, :, texts].transpose(0, 1)
                self.weights = torch.where(farther[:, None], found, self.weights)
                self.distance = torch.where(farther, distance[which, texts], self.distance)


def pairs(classified: ClassifiedBatch, bounds: Sequence[float], margin: float) -> Iterator[Tensor]:
    """Yield candidate attention for a classifier with two classes, `[candidates, heads, batch, positions]`.

    Candidates have all weight on one position; then, for each bound and each direction of the output, on the pair of
    positions that is farthest from the classifier's attention. The weights of a pair move the output by the bound,
    exactly if the logits are linear in the weights. All heads have the same weights.

    Args:
        classified: the texts.
        bounds: accepted output distances.
        margin: share of a bound that is left as room for rounding.
    """
    heads, texts, size = classified.weights.shape
    single = torch.eye(size, dtype=classified.weights.dtype, device=classified.mask.device)[:, None, None]
    logits = []
    for some in single.expand(-1, heads, texts, -1).split(DRAWN):  # type: ignore[no-untyped-call]
        # Positions outside the mask get no weight: the text keeps its own attention.
        some = torch.where((some * classified.mask).sum(-1, keepdim=True) > 0, some, classified.weights)
        with torch.no_grad():
            found = classified.logits(some).double()
        logits.append(found[..., 1] - found[..., 0])
        yield some
    by_position = torch.cat(logits).T  # [batch, positions]
    own = classified.probabilities[:, 1].double()
    together = max(PAIRS // size**2, 1)
    for bound in bounds:
        for sign in (-1, 1):
            edge = (own + sign * bound * (1 - margin)).clamp(0, 1).logit()
            found = torch.zeros_like(by_position)
            for first in range(0, texts, together):
                some = slice(first, first + together)
                attention, mask = classified.weights[:, some].double(), classified.mask[some]
                found[some] = _best_pair(attention, by_position[some], edge[some], mask)
            yield found.to(single.dtype).expand(1, heads, -1, -1)


def _best_pair(own: Tensor, logits: Tensor, edge: Tensor, mask: Tensor) -> Tensor:
    """Return weights `[batch, positions]` on the pair of positions farthest from `own` with a given logit.

    Args:
        own: attention `[heads, batch, positions]`.
        logits: logit of each position alone, `[batch, positions]`.
        edge: logit of the mixture of the pair, `[batch]`.
        mask: positions that may get weight, bool `[batch, positions]`.
    """
    one, other = torch.triu_indices(mask.size(1), mask.size(1), 1, device=mask.device)
    share = (edge[:, None] - logits[:, other]) / (logits[:, one] - logits[:, other])  # weight of the first
    possible = mask[:, one] & mask[:, other] & (share > 0) & (share < 1)
    share = share.where(possible, 0.5)
    # JSD is a sum over positions; positions without weight add own · ln 2 / 2.
    gain = torch.stack([_gain(share, head[:, one]) + _gain(1 - share, head[:, other]) for head in own]).mean(0)
    best = gain.masked_fill(~possible, -math.inf).argmax(1, keepdim=True)
    part = share.gather(1, best)
    found = torch.zeros_like(logits).scatter(1, one[best], part).scatter(1, other[best], 1 - part)
    return torch.where(possible.any(1, keepdim=True), found, own[0])


def _gain(weight: Tensor, own: Tensor) -> Tensor:
    """Return the gain in JSD by a position with a weight above 0, compared with no weight, own · ln 2 / 2."""
    middle = weight + own
    return (torch.xlogy(weight, 2 * weight / middle) + torch.xlogy(own, own / middle)) / 2
