"""Other attention that leaves the output as it is: how far from its own a classifier's attention could be."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import pandas as pd
import torch
from torch import Tensor

from fidelity.base import CheckpointResult, FidelityTest, Measurements, Score, means, over_seeds
from fidelity.classified import ClassifiedBatch
from fidelity.perturbation import bin_table, by_max_attention, max_attention, violins
from fidelity.saliency import Saliency
from metrics.distributions import entropy, jsd, tvd
from results import Curves, Figure, Table
from results.errors import UserError, check_numbers, check_values

Search = Literal["best", "published"]
"""The best of all searches, or that of the released code alone."""

DRAWN = 50  # draws that are evaluated together
PAIRS = 2**20  # most pairs of positions that are compared together


class Adversary(FidelityTest):
    """Adversarial attention of every text (Jain & Wallace 2019, §4.2.2), all texts of a batch at once.

    Looks, for each text, for attention that is far from its own in Jensen–Shannon divergence while the output stays
    within ε of its own in total variation distance. The ε-max JSD of a text, at most ln 2, is the largest divergence
    that is found; its own attention, with divergence 0, is always accepted. Several heads are searched together, and
    their divergence is their mean. The published search ends below plain draws from its own start distribution, so
    `best` takes the largest divergence of four searches:

    - the published one: `copies` of AMSGrad, accepted after the last step;
    - `draws` from the distribution that it starts from;
    - gradient ascent from the `ascents` best draws, for `epsilon` and for `tolerance`; every step is a candidate;
    - with two labels, every pair of positions, weighted so that the output lies at the edge of what is accepted; and
      every position alone.

    The last is exact where the logits are linear in the weights, as of every classifier here but the transformer: the
    accepted attention is then a polytope whose corners have weight on at most two positions, and the divergence, which
    is convex, is largest at a corner. Otherwise the value is a lower bound. docs/papers/jain2019.md has figures.

    Scores, means over the texts: `max_jsd`, the ε-max JSD; `max_jsd_strict`, the same with `epsilon` as tolerance;
    `tvd`, the distance between the output under the attention chosen for `max_jsd` and the text's own; under `best`
    also `max_jsd_published` and `max_jsd_strict_published`, of the published search alone. Columns: the same,
    `max_attention`, and `max_jsd_at_<ε>`, the ε-max JSD with ε as tolerance.

    The result for a text does not depend on its batch: the losses are sums over the texts without interaction, and Adam
    scales each weight by itself. Memory grows with copies × tokens of a batch, under `best` with max(copies, 50) ×
    tokens, as 50 draws are evaluated together; for a transformer, which runs anew at every step, lower
    `--model.init_args.eval_tokens`.

    Args:
        search: `best`, or `published` for the search of the released code alone.
        copies: searched for every text, K.
        steps: of AMSGrad.
        epsilon: distance of the outputs that is not penalised.
        tolerance: distance that is accepted.
        epsilons: distances of the curve.
        starts: published searches of every text, one after the other, of `copies` each; the best copy of all of them
            counts. The copies of all starts are kept in memory.
        draws: evaluated for every text; used by `best`.
    """

    name = "adversary"
    headline = ("max_jsd", "max_jsd_published")
    # As in the code released with the paper (github.com/successar/AttentionExplanation).
    learning_rate = 0.01  # of AMSGrad
    penalty = 500.0  # of distance above `epsilon`, in the loss
    diversity = 1.0  # weight of the mean divergence between the K² pairs of copies, in the loss
    spread = 3.0  # standard deviation of the logits that the search begins with
    # Ours. A step of .01 is too short to leave the neighbourhood of the start, and a penalty of 500 holds the copies
    # where they first meet the constraint.
    ascents, ascent_steps, ascent_rate, ascent_penalty = 10, 100, 0.1, 5.0
    # Pairs lie this much inside the edge, so that a rounded output is accepted.
    margin = 1e-3

    def __init__(
        self,
        copies: int = 5,
        steps: int = 500,
        epsilon: float = 0.01,
        # The paper has one ε, .01. Its code penalises beyond .01 and accepts up to .05, as here: the penalty brings the
        # best copies to the boundary, where some lie a little beyond it. `max_jsd_strict` is the paper's.
        tolerance: float = 0.05,
        epsilons: Sequence[float] = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
        starts: int = 1,
        search: Search = "best",
        draws: int = 500,
    ) -> None:
        check_values(self, search=search)
        check_numbers(self, least=1, copies=copies, starts=starts, draws=draws)
        check_numbers(self, least=0, steps=steps)
        check_numbers(self, above=0, epsilon=epsilon, tolerance=tolerance)
        if not epsilons or not all(0 < one < math.inf for one in epsilons):
            raise UserError(f"Adversary: epsilons are {list(epsilons)}, and must be distances above 0, as [.01, .05].")
        self.search, self.draws = search, draws
        self.copies, self.steps, self.starts = copies, steps, starts
        self.epsilon, self.tolerance, self.epsilons = epsilon, tolerance, sorted(set(epsilons))
        self._has_pairs = False

    def columns(self, classes: int) -> Sequence[str]:
        return (*self._scored, "tvd", "max_attention", *map(_at, self.epsilons))

    @property
    def _scored(self) -> Sequence[str]:
        """Names of the scores in nats."""
        names = ("max_jsd", "max_jsd_strict")
        return (*names, *(f"{name}_published" for name in names)) if self.search == "best" else names

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        """Search, and choose among the candidates; highlights the attention chosen for `max_jsd`."""
        classified.require_one_distribution(self.name)
        farthest = Farthest(classified, [*self.epsilons, self.epsilon, self.tolerance], self.tolerance)
        farthest.offer(self.published(classified))
        numbers = {"max_attention": max_attention(classified)}
        if self.search == "best":
            numbers["max_jsd_published"] = farthest.divergence[self.tolerance]
            numbers["max_jsd_strict_published"] = farthest.divergence[self.epsilon]
            for limit, start in self.draw(classified, farthest).items():
                # Not all at once, so that a step needs no more memory than a published one.
                for some in start.split(self.copies):  # type: ignore[no-untyped-call]
                    self._ascend(classified, some, limit, farthest)
            self._has_pairs = classified.probabilities.size(-1) == 2
            if self._has_pairs:
                for weights in pairs(classified, farthest.bounds, self.margin):
                    farthest.offer(weights)
        numbers |= {
            "max_jsd": farthest.divergence[self.tolerance],
            "max_jsd_strict": farthest.divergence[self.epsilon],
            "tvd": farthest.distance,
            **{_at(epsilon): farthest.divergence[epsilon] for epsilon in self.epsilons},
        }
        return Measurements(numbers, {"adversary": farthest.weights.mean(0)})

    def published(self, classified: ClassifiedBatch) -> Tensor:
        """The copies of all starts after the last step, `[starts × copies, heads, batch, positions]`."""
        # One after the other, so that what a step needs in memory does not grow with their number.
        starts = self.start(classified).tensor_split(self.starts)
        return torch.cat([self._searched(classified, start) for start in starts])

    def _searched(self, classified: ClassifiedBatch, start: Tensor) -> Tensor:
        logits = start.clone().requires_grad_()
        adam = torch.optim.Adam([logits], self.learning_rate, amsgrad=True, fused=True)
        for _ in range(self.steps):
            adam.zero_grad()
            self.loss(classified, logits.softmax(-1)).backward()  # type: ignore[no-untyped-call]
            adam.step()
        return logits.detach().softmax(-1)

    def start(self, classified: ClassifiedBatch) -> Tensor:
        """Logits that the published searches begin with, `[starts × copies, heads, batch, positions]`.

        Those of the first start do not depend on how many follow.
        """
        return self.drawn(classified, self.name, self.starts * self.copies)

    def drawn(self, classified: ClassifiedBatch, purpose: str, count: int) -> Tensor:
        """Random logits, `[count, heads, batch, positions]`.

        log(1/L) + spread · N(0, 1) for a text of L positions, drawn for each text and purpose by itself. Outside the
        mask they are the lowest number: weights and gradients are 0.
        """
        noise = classified.noise(purpose, count * len(classified.weights))
        # A uniform draw becomes a normal one; 0 would become -∞.
        normal: Tensor = torch.special.ndtri(noise.clamp(torch.finfo(noise.dtype).tiny, 1))
        drawn = self.spread * normal - classified.mask.sum(-1, keepdim=True).to(noise.dtype).log()
        dtype = classified.weights.dtype
        drawn = drawn.to(dtype).masked_fill(~classified.mask, torch.finfo(dtype).min)
        return drawn.view(count, *classified.weights.shape)

    def loss(self, classified: ClassifiedBatch, weights: Tensor) -> Tensor:
        """What the search makes small, a sum over the texts, of copies `[copies, heads, batch, positions]`."""
        own = classified.weights
        distance = tvd(classified.decide(weights), classified.probabilities)
        entropies = entropy(weights)
        from_own = _divergence(weights, entropies, own, entropy(own))
        first, second = torch.triu_indices(self.copies, self.copies, 1, device=weights.device)
        between = _divergence(weights[first], entropies[first], weights[second], entropies[second])
        constraint = self.penalty * (distance - self.epsilon).relu()
        # A pair of a copy and itself has none, and each other stands twice among the K².
        diversity = self.diversity * 2 * between.sum() / self.copies**2
        loss: Tensor = constraint.sum() - (from_own.sum() + diversity) / len(own)
        return loss

    def draw(self, classified: ClassifiedBatch, farthest: "Farthest") -> Mapping[float, Tensor]:
        """Offer all draws; return logits of the best by limit, `[ascents, heads, batch, positions]`.

        Best are the accepted ones of the largest divergence, then the others of the smallest distance.
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

    @property
    def _limits(self) -> Sequence[float]:
        """The distances that the ascent is for."""
        return sorted({self.epsilon, self.tolerance})

    def _ascend(self, classified: ClassifiedBatch, start: Tensor, limit: float, farthest: "Farthest") -> None:
        """Climb from logits `[copies, heads, batch, positions]` within a limit, and keep every step."""
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
        return means(self._scored, "nats") | means(["tvd"])

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """`adversary`: ε-max JSD by the highest weight; `adversary.curve`: its mean by what is accepted."""
        curves = [
            pd.DataFrame({"checkpoint": one.name, "epsilon": self.epsilons, "max_jsd": self._curve(one.of(self.name))})
            for one in results
        ]
        frame = pd.concat(curves, ignore_index=True)
        return {
            self.name: bin_table(by_max_attention(results, self.name, "max_jsd"), "jsd", "nats"),
            f"{self.name}.curve": Table(frame, {"epsilon": "ratio", "max_jsd": "nats"}),
        }

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """`adversary`: violins by the highest weight; `adversary.curve`: a line for each variant over all its seeds."""
        seeds = over_seeds(results, self.name)
        lines = {variant: (self.epsilons, self._curve(values)) for variant, values in seeds.items()}
        values = by_max_attention(results, self.name, "max_jsd")
        title = "Adversarial attention, by what is accepted"
        axes = ("accepted TVD of the output", "mean ε-max JSD")
        return {
            self.name: violins("Adversarial attention", values, "ε-max JSD"),
            f"{self.name}.curve": Curves(title, *axes, lines, log_x=True, y_range=(0.0, math.log(2))),
        }

    def audit(self) -> Mapping[str, object]:
        """Evaluations of the classifier for each text by search, and `each_position` for each of its positions."""
        counts = {"published": self.starts * self.copies * (self.steps + 1)}  # and one after the last step
        if self.search == "best":
            ascents = min(self.ascents, self.draws)
            counts |= {"draws": self.draws, "ascent": len(self._limits) * ascents * self.ascent_steps}
        if self._has_pairs:
            bounds = len({*self.epsilons, self.epsilon, self.tolerance})
            # A position alone is evaluated for the pairs that it is in, and as a candidate.
            counts |= {"pairs": 2 * bounds, "each_position": 2}
        return {"evaluations": counts}

    def _curve(self, values: pd.DataFrame) -> Sequence[float]:
        return values[[_at(epsilon) for epsilon in self.epsilons]].mean().tolist()


def _divergence(p: Tensor, entropy_of_p: Tensor, q: Tensor, entropy_of_q: Tensor) -> Tensor:
    """JSD as the entropy of the mixture less the mean of the entropies, so that each logarithm is taken once."""
    return entropy((p + q) / 2) - (entropy_of_p + entropy_of_q) / 2


def _at(epsilon: float) -> str:
    return f"max_jsd_at_{epsilon:g}"


class Farthest:
    """The largest divergence of the candidates of every text so far, for each of some distances that are accepted.

    Begins with the texts' own attention.

    Args:
        classified: the texts.
        bounds: largest distances of the outputs.
        chosen: one of them, for which attention is kept.

    Attributes:
        divergence: by bound, float64 `[batch]`.
        weights: the attention of the largest divergence within `chosen`, `[heads, batch, positions]`.
        distance: of its output, `[batch]`.
    """

    def __init__(self, classified: ClassifiedBatch, bounds: Sequence[float], chosen: float) -> None:
        self._classified, self._chosen = classified, chosen
        self.weights, self.distance = classified.weights, torch.zeros_like(classified.confidence)
        self.divergence = dict.fromkeys(bounds, self.distance.double())

    @property
    def bounds(self) -> Sequence[float]:
        return list(self.divergence)

    @torch.no_grad()
    def offer(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate candidates `[candidates, heads, batch, positions]`: distance, divergence `[candidates, batch]`."""
        classified = self._classified
        distance = tvd(classified.decide(weights), classified.probabilities)
        divergence = jsd(weights.double(), classified.weights.double()).mean(1)
        self.keep(weights, distance, divergence)
        return distance, divergence

    def keep(self, weights: Tensor, distance: Tensor, divergence: Tensor) -> None:
        """Take note of evaluated candidates; none counts whose distance or divergence is nan."""
        # Weights that sum to a little more than one may pass the bound by a rounding error.
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
    """Attention to one position, and to the best pair of positions for each bound; classifiers of two labels.

    The weights of a pair bring the output to either end of what is accepted, less a margin in multiples of the bound,
    if the logits are linear in the weights. Yields candidates `[candidates, heads, batch, positions]`, the same for all
    heads.
    """
    heads, texts, size = classified.weights.shape
    single = torch.eye(size, dtype=classified.weights.dtype, device=classified.mask.device)[:, None, None]
    logits = []
    for some in single.expand(-1, heads, texts, -1).split(DRAWN):  # type: ignore[no-untyped-call]
        # A position outside the mask gets no weight, and the text keeps its own attention.
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
    """Weights `[batch, positions]` on the two positions whose mixture has a logit and is farthest from the attention.

    Args:
        own: attention `[heads, batch, positions]`.
        logits: of each position alone, `[batch, positions]`.
        edge: the logit of the mixture, `[batch]`.
        mask: positions that may get weight, bool `[batch, positions]`.
    """
    one, other = torch.triu_indices(mask.size(1), mask.size(1), 1, device=mask.device)
    share = (edge[:, None] - logits[:, other]) / (logits[:, one] - logits[:, other])  # of the one
    possible = mask[:, one] & mask[:, other] & (share > 0) & (share < 1)
    share = share.where(possible, 0.5)
    # JSD is a sum over the positions: those without weight add a multiple of what they had.
    gain = torch.stack([_gain(share, head[:, one]) + _gain(1 - share, head[:, other]) for head in own]).mean(0)
    best = gain.masked_fill(~possible, -math.inf).argmax(1, keepdim=True)
    part = share.gather(1, best)
    found = torch.zeros_like(logits).scatter(1, one[best], part).scatter(1, other[best], 1 - part)
    return torch.where(possible.any(1, keepdim=True), found, own[0])


def _gain(weight: Tensor, own: Tensor) -> Tensor:
    """Return the gain in JSD by a position with a weight above 0; without weight it adds own · ln 2 / 2."""
    middle = weight + own
    return (torch.xlogy(weight, 2 * weight / middle) + torch.xlogy(own, own / middle)) / 2
