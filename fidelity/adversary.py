"""Other attention that leaves the output as it is: how far from its own a classifier's attention could be."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from fidelity.base import CheckpointResult, FidelityTest, Measurements, Score, means, over_seeds
from fidelity.checkpoints import FidelityError
from fidelity.classified import ClassifiedBatch
from fidelity.perturbation import bin_table, by_max_attention, max_attention, violins
from fidelity.saliency import Saliency
from metrics.distributions import entropy, jsd, tvd
from results import Curves, Figure, Table


class Adversary(FidelityTest):
    """Adversarial attention of every text (Jain & Wallace 2019, §4.2.2), all texts and copies of a batch at once.

    Searches, for each text, copies of its attention that are far from its own in Jensen–Shannon divergence while the
    output stays within ε of its own in total variation distance. The ε-max JSD of a text, at most ln 2, is the largest
    divergence among the accepted copies after the last step; its own attention, with divergence 0, is always accepted.
    Several heads are searched together, and their divergence is their mean.

    Scores, means over the texts: `max_jsd`, the ε-max JSD; `max_jsd_strict`, the same with `epsilon` as tolerance;
    `tvd`, the distance between the output under the attention chosen for `max_jsd` and the text's own. Columns: the
    same, `max_attention`, and `max_jsd_at_<ε>`, the ε-max JSD of the same copies with ε as tolerance.

    The value is a lower bound that depends on the start of the search. Use several `starts` where single texts of
    `items.parquet` matter; docs/papers/jain2019.md has figures. The result for a text does not depend on its batch:
    the loss is a sum over the texts without interaction, and Adam scales each weight by itself. Memory grows with
    copies × tokens of a batch; for a transformer, which runs anew at every step, lower `--model.init_args.eval_tokens`.

    Args:
        copies: searched for every text, K.
        steps: of AMSGrad.
        epsilon: distance of the outputs that is not penalised.
        tolerance: distance that is accepted after the last step.
        epsilons: distances of the curve.
        starts: searches of every text, one after the other, of `copies` each; the best copy of all of them counts. The
            copies of all starts are kept in memory.
    """

    name = "adversary"
    # As in the code released with the paper (github.com/successar/AttentionExplanation).
    learning_rate = 0.01  # of AMSGrad
    penalty = 500.0  # of distance above `epsilon`, in the loss
    diversity = 1.0  # weight of the mean divergence between the K² pairs of copies, in the loss
    spread = 3.0  # standard deviation of the logits that the search begins with

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
    ) -> None:
        if min(copies, starts) < 1 or steps < 0:
            raise FidelityError(
                f"adversary: copies {copies}, starts {starts} and steps {steps}: give 1 or more, as 5, 1 and 500."
            )
        if not epsilons or min(epsilon, tolerance, *epsilons) <= 0:
            raise FidelityError(
                f"adversary: epsilon {epsilon}, tolerance {tolerance} and epsilons {list(epsilons)} are distances: "
                f"give numbers above 0, as .01, .05 and [.01, .05]."
            )
        self.copies, self.steps, self.starts = copies, steps, starts
        self.epsilon, self.tolerance, self.epsilons = epsilon, tolerance, sorted(set(epsilons))

    def columns(self, classes: int) -> Sequence[str]:
        return ("max_jsd", "max_jsd_strict", "tvd", "max_attention", *map(_at, self.epsilons))

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        """Search, and choose among the copies; highlights the attention chosen for `max_jsd`."""
        weights = self.search(classified)
        with torch.no_grad():
            candidates = torch.cat([weights, classified.weights[None]])
            distance = tvd(classified.decide(candidates), classified.probabilities)
            distance[-1] = 0  # the own attention's, however a second pass rounds
            # Weights that sum to a little more than one may pass the bound by a rounding error.
            divergence = jsd(candidates.double(), classified.weights.double()).mean(1).clamp(max=math.log(2))

            def largest(accepted: float) -> tuple[Tensor, Tensor]:
                found = divergence.masked_fill(distance > accepted, -1).max(0)
                return found.values, found.indices

            best, which = largest(self.tolerance)
            texts = torch.arange(len(which), device=which.device)
            numbers = {
                "max_jsd": best,
                "max_jsd_strict": largest(self.epsilon)[0],
                "tvd": distance[which, texts],
                "max_attention": max_attention(classified),
                **{_at(epsilon): largest(epsilon)[0] for epsilon in self.epsilons},
            }
        return Measurements(numbers, {"adversary": candidates.mean(1)[which, texts]})

    def search(self, classified: ClassifiedBatch) -> Tensor:
        """The copies of all starts after the last step, `[starts × copies, heads, batch, positions]`."""
        classified.require_one_distribution(self.name)
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
        """Logits that the searches begin with, `[starts × copies, heads, batch, positions]`.

        log(1/L) + spread · N(0, 1) for a text of L positions, drawn for each text by itself; those of the first start
        do not depend on how many follow. Outside the mask they are the lowest number: weights and gradients are 0.
        """
        heads = len(classified.weights)
        noise = classified.noise(self.name, self.starts * self.copies * heads)
        # A uniform draw becomes a normal one; 0 would become -∞.
        normal: Tensor = torch.special.ndtri(noise.clamp(torch.finfo(noise.dtype).tiny, 1))
        drawn = self.spread * normal - classified.mask.sum(-1, keepdim=True).to(noise.dtype).log()
        dtype = classified.weights.dtype
        drawn = drawn.to(dtype).masked_fill(~classified.mask, torch.finfo(dtype).min)
        return drawn.view(self.starts * self.copies, *classified.weights.shape)

    def loss(self, classified: ClassifiedBatch, weights: Tensor) -> Tensor:
        """What the search makes small, a sum over the texts, of copies `[copies, heads, batch, positions]`."""
        own = classified.weights
        distance = tvd(classified.decide(weights), classified.probabilities)
        # JSD is the entropy of the mixture less the mean of the entropies: each logarithm is taken once.
        entropies = entropy(weights)
        from_own = entropy((weights + own) / 2) - (entropies + entropy(own)) / 2
        first, second = torch.triu_indices(self.copies, self.copies, 1, device=weights.device)
        between = entropy((weights[first] + weights[second]) / 2) - (entropies[first] + entropies[second]) / 2
        constraint = self.penalty * (distance - self.epsilon).relu()
        # A pair of a copy and itself has none, and each other stands twice among the K².
        diversity = self.diversity * 2 * between.sum() / self.copies**2
        loss: Tensor = constraint.sum() - (from_own.sum() + diversity) / len(own)
        return loss

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        return means(("max_jsd", "max_jsd_strict"), "nats") | means(["tvd"])

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
        axes = (f"accepted TVD of the output (searched at ε = {self.epsilon:g})", "mean ε-max JSD")
        return {
            self.name: violins("Adversarial attention", values, "ε-max JSD"),
            f"{self.name}.curve": Curves(title, *axes, lines, log_x=True, y_range=(0.0, math.log(2))),
        }

    def _curve(self, values: pd.DataFrame) -> Sequence[float]:
        return values[[_at(epsilon) for epsilon in self.epsilons]].mean().tolist()


def _at(epsilon: float) -> str:
    return f"max_jsd_at_{epsilon:g}"
