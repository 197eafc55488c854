"""Adversarial attention: attention that differs much from a classifier's and hardly changes its output."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import ClassVar, Literal

import pandas as pd
import torch
from torch import Tensor

from attention_probing.fidelity.classified import ClassifiedBatch, logits_under, require_one_distribution
from attention_probing.fidelity.contract import CheckpointResult, FidelityTest, Reading, Score, frames_by_variant, means
from attention_probing.fidelity.highest_weight import bin_table, by_max_attention, max_attention, violins
from attention_probing.fidelity.saliency import Saliency
from attention_probing.metrics.distributions import entropy, jsd, tvd
from attention_probing.results import Curves, Figure, Table
from attention_probing.results.options import NonNegative, checked

Search = Literal["best", "published"]
"""`best` takes the best of all searches, `published` only the search of the released code."""

DRAWN = 50  # draws evaluated together
PAIRS_OF_PASS = 2**20  # most pairs of positions compared together


class Adversary(FidelityTest):
    """Largest change of attention that leaves the output almost the same (Jain & Wallace 2019, §4.2.2).

    For every text, a search looks for attention whose Jensen–Shannon divergence (JSD) from the
    classifier's attention is as large as possible, while the total variation distance (TVD) between the
    two outputs stays within ε. The ε-max JSD of a text is the largest divergence found. It is at most
    ln 2, and 0 if no other attention is accepted. If the model has several heads, their attention is
    searched together, and the divergence is the mean over heads.

    The published search finds smaller divergences than random attention that is merely drawn like its
    starting points. `best` therefore takes the largest divergence of four searches:

    - the published search: AMSGrad on five attention distributions per text, of which only the results of
      the last step are candidates;
    - 500 random distributions, drawn like the starting points of the published search;
    - gradient ascent of the divergence from the best of these random distributions, once for ε = .01 and
      once for ε = .05; the attention at every step is a candidate;
    - with two classes only: all weight on one position, and all weight on two positions, for every pair,
      divided so that the TVD just stays within ε.

    The search over pairs finds the exact ε-max JSD if the logits are linear in the weights, as in every
    classifier here but the transformer. The accepted attention is then a polytope, and the divergence,
    which is convex, is largest at a corner. Every corner has weight on at most two positions. In all
    other cases the value is a lower bound of the ε-max JSD. docs/papers/jain2019.md has figures.

    Every score is a mean over the texts of the column with its name. The columns are:

    - `max_jsd`: the ε-max JSD for ε = .05;
    - `max_jsd_strict`: the ε-max JSD for ε = .01;
    - `max_jsd_published` and `max_jsd_strict_published`, only with `search: best`: the same two by the
      published search alone;
    - `tvd`: the TVD of the outputs under the attention chosen for `max_jsd`;
    - `max_attention`, not a score: the highest attention weight of the text;
    - `max_jsd_at_<ε>`, not a score: the ε-max JSD for further values of ε.

    The texts of a batch are searched together, but the result for a text does not depend on its batch:
    the losses are sums over texts, and Adam scales the gradient of each weight separately. Memory grows
    with 5 × tokens of a batch, and with 50 × tokens under `search: best`, as 50 draws are evaluated together. A
    transformer runs again at every step: lower `--model.eval_tokens` for it.

    Args:
        search: `best`, or `published` for the search of the released code alone.
        steps: Number of steps of AMSGrad.
    """

    name = "adversary"
    readings: ClassVar = {
        "max_jsd": Reading("↓", "the farthest attention found with nearly the same output is on average {} (JSD) away")
    }
    # As in the code released with the paper (github.com/successar/AttentionExplanation).
    copies = 5  # attention distributions that are optimised together
    epsilon = 0.01  # TVD of the output up to which the loss has no penalty
    learning_rate = 0.01  # of AMSGrad
    penalty = 500.0  # weight of distance above `epsilon` in the loss
    diversity = 1.0  # weight of the mean divergence between the K² pairs of copies in the loss
    spread = 3.0  # standard deviation of the first logits
    # Ours. Steps of .01 are too short to leave the neighbourhood of the start, and a penalty of 500 stops the copies
    # where they first meet the constraint.
    draws = 500
    ascents = 10
    ascent_steps = 100
    ascent_rate = 0.1
    ascent_penalty = 5.0
    # Pairs lie this share of the bound inside its edge, so that a rounded output is accepted.
    margin = 1e-3
    # TVD of the output up to which attention is accepted. The paper has one ε, .01. Its code penalises beyond .01 and
    # accepts up to .05, as here: the best copies lie at the boundary, some a little beyond it. `max_jsd_strict` is the
    # paper's.
    tolerance = 0.05
    epsilons = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # distances of the curve

    @checked
    def __init__(self, search: Search = "best", steps: NonNegative = 500) -> None:
        self.search = search
        self.steps = steps

    @property
    def _limits(self) -> list[float]:
        """All limits on the output distance, each once."""
        return list(dict.fromkeys([*self.epsilons, self.epsilon, self.tolerance]))

    def changed_copies(self, classified: ClassifiedBatch) -> float:
        _, texts, positions = classified.weights.shape
        copies = (self.steps + 1) * self.copies
        if self.search == "best":
            ascents = len({self.epsilon, self.tolerance}) * min(self.ascents, self.draws)
            copies += self.draws + ascents * self.ascent_steps
            if classified.probabilities.size(-1) == 2:
                copies += 2 * positions + 2 * len(self._limits)  # all weight on a position is classified twice
        return copies * texts

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Mapping[str, Tensor]:
        """Search adversarial attention for each text of a batch; see the class for the columns.

        The words of the example texts are coloured by the attention chosen for `max_jsd`, averaged over
        heads.
        """
        require_one_distribution(classified, self.name)
        farthest = Farthest(classified, self._limits, self.tolerance)
        farthest.offer(self.search_as_published(classified))
        published = dict(farthest.divergence)
        if self.search == "best":
            self._search_further(classified, farthest)
        classified.highlights[self.name] = farthest.weights.mean(0)
        columns = {
            "max_jsd": farthest.divergence[self.tolerance],
            "max_jsd_strict": farthest.divergence[self.epsilon],
        }
        if self.search == "best":
            columns["max_jsd_published"] = published[self.tolerance]
            columns["max_jsd_strict_published"] = published[self.epsilon]
        columns["tvd"] = farthest.distance
        columns["max_attention"] = max_attention(classified)
        for epsilon in self.epsilons:
            columns[_at(epsilon)] = farthest.divergence[epsilon]
        return columns

    def _search_further(self, classified: ClassifiedBatch, farthest: "Farthest") -> None:
        """Offer random attention, ascents from the best of it, and attention on one or two positions."""
        for limit, logits in self.draw_starts(classified, farthest).items():
            # Not all at once, so that a step needs no more memory than a published step.
            for start in logits.split(self.copies):  # type: ignore[no-untyped-call]
                self._ascend(classified, start, limit, farthest)
        if classified.probabilities.size(-1) == 2:
            for weights in pairs(classified, list(farthest.divergence), self.margin):
                farthest.offer(weights)

    def search_as_published(self, classified: ClassifiedBatch) -> Tensor:
        """Run the search of Jain & Wallace's (2019) released code.

        Returns:
            Attention after the last step, `[copies, heads, batch, positions]`.
        """
        logits = self.random_logits(classified, self.name, self.copies).requires_grad_()
        adam = torch.optim.Adam([logits], self.learning_rate, amsgrad=True, fused=True)
        for _ in range(self.steps):
            adam.zero_grad()
            self.loss(classified, logits.softmax(-1)).backward()  # type: ignore[no-untyped-call]
            adam.step()
        return logits.detach().softmax(-1)

    def random_logits(self, classified: ClassifiedBatch, purpose: str, count: int) -> Tensor:
        """Return random attention logits, `[count, heads, batch, positions]`.

        The logits of a text with L positions are log(1/L) plus normal noise with mean 0 and standard
        deviation `spread`, a constant of the class. Outside the mask the logits are the lowest float, so
        that weights and gradients are 0 there. The logits depend only on the seed, the text and
        `purpose`.

        Args:
            classified: The texts.
            purpose: Any string; different strings give independent draws.
            count: Number of draws for each text.
        """
        noise = classified.noise(purpose, count * len(classified.weights))
        # A uniform draw becomes a normal one; 0 would become -∞.
        normal: Tensor = torch.special.ndtri(noise.clamp(torch.finfo(noise.dtype).tiny, 1))
        positions = classified.mask.sum(-1, keepdim=True).to(noise.dtype)
        dtype = classified.weights.dtype
        logits = (self.spread * normal - positions.log()).to(dtype)
        logits = logits.masked_fill(~classified.mask, torch.finfo(dtype).min)
        return logits.view(count, *classified.weights.shape)

    def loss(self, classified: ClassifiedBatch, weights: Tensor) -> Tensor:
        """Return the loss that Jain & Wallace's (2019) search minimises, summed over the texts, a scalar.

        The search looks for attention that is far from the classifier's and from other results, with almost
        the same output. The loss of a text is the sum of three terms:

        - for each distribution, `penalty` times the excess over `epsilon` of the TVD between its output and
          the classifier's own;
        - for each distribution, minus its JSD from the classifier's attention;
        - once, minus `diversity` times the mean JSD over all ordered pairs of the distributions, pairs of
          a distribution and itself included.

        JSDs are averaged over heads.

        Args:
            classified: The texts, with the classifier's attention.
            weights: The distributions that are optimised together, `[copies, heads, batch, positions]`.
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

    def draw_starts(self, classified: ClassifiedBatch, farthest: "Farthest") -> Mapping[float, Tensor]:
        """Draw random attention, offer it to `farthest`, and return the best draws to start gradient ascents.

        There are two limits on the output distance, `epsilon` and `tolerance`. A draw is within a limit if
        the TVD between its output and the classifier's is at most the limit.

        Args:
            classified: The texts.
            farthest: Best candidates so far; all draws are offered to it, which updates it.

        Returns:
            For each limit, the attention logits of the best draws for each text,
            `[ascents, heads, batch, positions]`. Draws within the limit come first, sorted by divergence,
            largest first. The other draws follow, sorted by output distance, smallest first.
        """
        best: dict[float, tuple[Tensor, Tensor]] = {}  # ranks `[draws, batch]` and logits of the best draws
        for first in range(0, self.draws, DRAWN):
            count = min(DRAWN, self.draws - first)
            logits = self.random_logits(classified, f"{self.name} draws {first}", count)
            distance, divergence = farthest.offer(logits.softmax(-1))
            for limit in sorted({self.epsilon, self.tolerance}):
                ranks = torch.where(distance <= limit, divergence, -distance).nan_to_num(-math.inf)
                candidates = logits
                if limit in best:
                    earlier_ranks, earlier = best[limit]
                    ranks = torch.cat([earlier_ranks, ranks])
                    candidates = torch.cat([earlier, candidates])
                ranks, places = ranks.topk(min(self.ascents, len(ranks)), dim=0)
                places = places[:, None, :, None].expand(-1, *logits.shape[1:])
                best[limit] = ranks, candidates.gather(0, places)
        return {limit: logits for limit, (_, logits) in best.items()}

    def _ascend(self, classified: ClassifiedBatch, start: Tensor, limit: float, farthest: "Farthest") -> None:
        """Ascend the divergence from logits `[copies, heads, batch, positions]` within a limit; offer every step."""
        logits = start.clone().requires_grad_()
        own = classified.weights
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

    def scores(self) -> Mapping[str, Score]:
        scores = means(["max_jsd"], "nats", main=True) | means(["max_jsd_strict"], "nats")
        if self.search == "best":
            scores |= means(["max_jsd_published", "max_jsd_strict_published"], "nats")
        return scores | means(["tvd"])

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return the tables `adversary` and `adversary.curve` of the ε-max JSD.

        The table `adversary` gives the mean and median of the column `max_jsd` for each variant, in bins
        of the texts' highest attention weight. Its columns are those of `bin_table`. The table
        `adversary.curve` gives the mean over texts for each checkpoint and value of ε, in the columns
        `checkpoint`, `epsilon` and `max_jsd`.
        """
        curves = []
        for result in results:
            curve = self._curve(result.columns(self.name))
            curves.append(pd.DataFrame({"checkpoint": result.name, "epsilon": self.epsilons, "max_jsd": curve}))
        frame = pd.concat(curves, ignore_index=True)
        return {
            self.name: bin_table(by_max_attention(results, self.name, "max_jsd"), "jsd", "nats"),
            f"{self.name}.curve": Table(frame, {"epsilon": "ratio", "max_jsd": "nats"}),
        }

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return the figures `adversary` and `adversary.curve` of the ε-max JSD.

        The figure `adversary` has violins of the column `max_jsd`, in bins of the texts' highest
        attention weight. The figure `adversary.curve` has a line for each variant: the mean over texts
        as a function of ε, the accepted distance of the output. The texts of all seeds of a variant are
        taken together.
        """
        lines = {}
        for variant, rows in frames_by_variant(results, self.name).items():
            lines[variant] = (self.epsilons, self._curve(rows))
        values = by_max_attention(results, self.name, "max_jsd")
        title = "Adversarial attention, by accepted distance"
        axes = ("accepted TVD of the output", "mean ε-max JSD")
        return {
            self.name: violins("Adversarial attention", values, "ε-max JSD"),
            f"{self.name}.curve": Curves(title, *axes, lines, log_x=True, y_range=(0.0, math.log(2))),
        }

    def _curve(self, rows: pd.DataFrame) -> Sequence[float]:
        """Return the mean ε-max JSD of some texts for each ε."""
        columns = [_at(epsilon) for epsilon in self.epsilons]
        return rows[columns].mean().tolist()


def _divergence(p: Tensor, entropy_of_p: Tensor, q: Tensor, entropy_of_q: Tensor) -> Tensor:
    """Return JSD as the entropy of the mixture minus the mean entropy, so that each logarithm is taken once."""
    return entropy((p + q) / 2) - (entropy_of_p + entropy_of_q) / 2


def _at(epsilon: float) -> str:
    return f"max_jsd_at_{epsilon:g}"


class Farthest:
    """Attention with the largest divergence found so far for each text, under several limits on the output distance.

    Divergence is the JSD between candidate attention and the classifier's; distance is the TVD between the
    two outputs. The first candidate is the classifier's own attention, with divergence 0.

    Args:
        classified: The texts.
        bounds: The limits, each a largest accepted distance.
        chosen: The limit in `bounds` for which the attention itself is kept, not only its divergence.

    Attributes:
        divergence: Largest divergence within each limit, float64 `[batch]` by limit.
        weights: Attention with the largest divergence within `chosen`, `[heads, batch, positions]`.
        distance: Distance of the output under `weights`, `[batch]`.
    """

    def __init__(self, classified: ClassifiedBatch, bounds: Sequence[float], chosen: float) -> None:
        self._classified = classified
        self._chosen = chosen
        self.weights = classified.weights
        self.distance = torch.zeros_like(classified.confidence)
        self.divergence = dict.fromkeys(bounds, self.distance.double())

    @torch.no_grad()
    def offer(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Classify the texts under candidate attention, and keep the candidates with the largest divergences.

        Args:
            weights: Candidate attention, `[candidates, heads, batch, positions]`.

        Returns:
            Distance of the output and divergence of the attention, each `[candidates, batch]`.
        """
        classified = self._classified
        distance = tvd(classified.decide(weights), classified.probabilities)
        divergence = jsd(weights.double(), classified.weights.double()).mean(1)
        self.keep(weights, distance, divergence)
        return distance, divergence

    def keep(self, weights: Tensor, distance: Tensor, divergence: Tensor) -> None:
        """Update the largest divergences with candidates whose output distance and divergence are known.

        A candidate counts for a limit on the output distance if its distance is at most that limit.
        Candidates whose distance or divergence is nan are skipped.

        Args:
            weights: Candidate attention, `[candidates, heads, batch, positions]`.
            distance: Distance of the output, `[candidates, batch]`.
            divergence: Divergence of the attention, `[candidates, batch]`.
        """
        # With weights that sum to a little more than one, rounding may exceed ln 2.
        divergence = divergence.clamp(max=math.log(2))
        for bound, before in self.divergence.items():
            is_accepted = (distance <= bound) & ~divergence.isnan()
            best, candidate = divergence.masked_fill(~is_accepted, -1).max(0)
            self.divergence[bound] = torch.maximum(best, before)
            if bound == self._chosen:
                is_farther = best > before
                texts = torch.arange(len(candidate), device=candidate.device)
                best_weights = weights[candidate, :, texts].transpose(0, 1)
                self.weights = torch.where(is_farther[:, None], best_weights, self.weights)
                self.distance = torch.where(is_farther, distance[candidate, texts], self.distance)


def pairs(classified: ClassifiedBatch, bounds: Sequence[float], margin: float) -> Iterator[Tensor]:
    """Yield candidate attention on one or two positions, for a classifier with two classes.

    First there is a candidate for each position, with all weight on it. Then there are two candidates
    for each bound, with weight on two positions. One lowers the probability of class 1 by the bound, the
    other raises it by the bound. If several pairs of positions can do this, the pair with the largest
    JSD from the classifier's attention is taken. The shift of the probability is exact if the logits are
    linear in the weights. All heads get the same weights.

    For a position outside the mask of a text, the candidate is the classifier's own attention. If no pair
    of positions of a text shifts the probability by the bound, the candidate is the classifier's attention
    in the first head, for all heads.

    Args:
        classified: The texts.
        bounds: Accepted output distances: largest TVDs between the output and the classifier's.
        margin: Fraction of each bound that is left unused, so that rounding does not exceed the bound.

    Yields:
        Attention `[candidates, heads, batch, positions]`.
    """
    heads, texts, size = classified.weights.shape
    single = torch.eye(size, dtype=classified.weights.dtype, device=classified.mask.device)[:, None, None]
    logits = []
    for candidates in single.expand(-1, heads, texts, -1).split(DRAWN):  # type: ignore[no-untyped-call]
        # Positions outside the mask get no weight: the text keeps its own attention.
        is_inside = (candidates * classified.mask).sum(-1, keepdim=True) > 0
        weights = torch.where(is_inside, candidates, classified.weights)
        with torch.no_grad():
            of_classes = logits_under(classified, weights).double()
        logits.append(of_classes[..., 1] - of_classes[..., 0])
        yield weights
    by_position = torch.cat(logits).T  # [batch, positions]
    own = classified.probabilities[:, 1].double()
    for bound, sign in product(bounds, (-1, 1)):
        shifted = own + sign * bound * (1 - margin)
        best = _best_pairs(classified, by_position, shifted.clamp(0, 1).logit())
        yield best.to(single.dtype).expand(1, heads, -1, -1)


def _best_pairs(classified: ClassifiedBatch, logits: Tensor, edge: Tensor) -> Tensor:
    """Return the best pairs of `_best_pair`, computed for so many texts at a time that memory stays bounded."""
    texts, size = logits.shape
    together = max(PAIRS_OF_PASS // size**2, 1)
    weights = torch.zeros_like(logits)
    for first in range(0, texts, together):
        rows = slice(first, first + together)
        attention = classified.weights[:, rows].double()
        weights[rows] = _best_pair(attention, logits[rows], edge[rows], classified.mask[rows])
    return weights


def _best_pair(own: Tensor, logits: Tensor, edge: Tensor, mask: Tensor) -> Tensor:
    """Return weights `[batch, positions]` on the pair of positions farthest from `own` with a given logit.

    Args:
        own: Attention `[heads, batch, positions]`.
        logits: Logit of each position alone, `[batch, positions]`.
        edge: Logit of the mixture of the pair, `[batch]`.
        mask: Positions that may get weight, bool `[batch, positions]`.
    """
    one, other = torch.triu_indices(mask.size(1), mask.size(1), 1, device=mask.device)
    share = (edge[:, None] - logits[:, other]) / (logits[:, one] - logits[:, other])  # weight of the first
    possible = mask[:, one] & mask[:, other] & (share > 0) & (share < 1)
    share = share.where(possible, 0.5)
    # JSD is a sum over positions; positions without weight add own · ln 2 / 2.
    gains = [_gain(share, head[:, one]) + _gain(1 - share, head[:, other]) for head in own]
    gain = torch.stack(gains).mean(0)
    best = gain.masked_fill(~possible, -math.inf).argmax(1, keepdim=True)
    best_share = share.gather(1, best)
    weights = torch.zeros_like(logits)
    weights = weights.scatter(1, one[best], best_share)
    weights = weights.scatter(1, other[best], 1 - best_share)
    return torch.where(possible.any(1, keepdim=True), weights, own[0])


def _gain(weight: Tensor, own: Tensor) -> Tensor:
    """Return the gain in JSD by a position with a weight above 0, compared with no weight, own · ln 2 / 2."""
    middle = weight + own
    return (torch.xlogy(weight, 2 * weight / middle) + torch.xlogy(own, own / middle)) / 2
