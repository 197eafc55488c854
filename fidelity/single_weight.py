"""The largest weight erased, against another: does the decision hang on what is attended to most?"""

from collections.abc import Mapping, Sequence

import pandas as pd
import torch

from fidelity.base import FidelityTest, Measured, Score, Subject
from fidelity.reading import Reading
from fidelity.summary import by_variant
from fidelity.weights import renormalised
from metrics.bootstrap import mean
from metrics.distributions import jsd
from results import Curves, Figure, Table


class SingleWeight(FidelityTest):
    """What happens to the decision without the largest weight, and without a random other (Serrano & Smith 2019, §4).

    One weight is set to zero and those that are left are scaled to sum to one. Of equal largest weights that which
    stands first is taken. Several heads lose the weight of the same slot; which is largest, and by how much, is said
    by the mean over the heads.

    Scores: `flips_top` and `flips_random`, the share of decisions that are another without the one and without the
    other; `delta_js`, the mean of how much further the probabilities move without the largest (JSD, in nats).
    """

    name = "single_weight"

    def columns(self, classes: int) -> Sequence[str]:
        """Differences `delta_js`, in nats, and `delta_weight`; `flips_top` and `flips_random`, 0 or 1."""
        return ["delta_js", "delta_weight", "flips_top", "flips_random"]

    @torch.no_grad()
    def measure(self, reading: Reading) -> Measured:
        """See `FidelityTest`."""
        attention = reading.attention.masked_fill(~reading.mask, -torch.inf)
        largest = attention.argsort(dim=-1, descending=True, stable=True)[:, 0]
        # The first of the others in a random order; what is outside the mask is behind them all.
        noise = reading.noise(self.name, 1)[0].scatter(1, largest[:, None], torch.inf)
        chosen = torch.stack([largest, noise.argmin(-1)])
        erased = torch.zeros_like(chosen[..., None].expand(-1, -1, attention.size(1)), dtype=torch.bool)
        erased = erased.scatter(-1, chosen[..., None], True)[:, None]
        probabilities = reading.decide(renormalised(reading.weights.masked_fill(erased, 0), reading.groups))
        top, other = jsd(reading.probabilities, probabilities)
        weight_of_top, weight_of_other = attention.gather(1, chosen.T).T
        flips_top, flips_random = (probabilities.argmax(-1) != reading.predicted).double()
        return Measured(
            {
                "delta_js": top - other,
                "delta_weight": weight_of_top - weight_of_other,
                "flips_top": flips_top,
                "flips_random": flips_random,
            }
        )

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        """See the class."""
        shares = {name: Score([name], mean, "fraction") for name in ("flips_top", "flips_random")}
        return {**shares, "delta_js": Score(["delta_js"], mean, "nats")}

    def tables(self, subjects: Sequence[Subject]) -> Mapping[str, Table]:
        """How often the decision flips without both, one or none of the weights.

        Shares of the texts, a row for each checkpoint.
        """
        rows = []
        for subject in subjects:
            top, other = self._of(subject, "flips_top"), self._of(subject, "flips_random")
            rows.append(
                {
                    "checkpoint": subject.name,
                    "texts": len(top),
                    "both": ((top == 1) & (other == 1)).mean(),
                    "top_only": ((top == 1) & (other == 0)).mean(),
                    "random_only": ((top == 0) & (other == 1)).mean(),
                    "neither": ((top == 0) & (other == 0)).mean(),
                }
            )
        shares = ("both", "top_only", "random_only", "neither")
        return {f"{self.name}_flips": Table(pd.DataFrame(rows), dict.fromkeys(shares, "fraction"))}

    def figures(self, subjects: Sequence[Subject]) -> Mapping[str, Figure]:
        """The texts by the two differences, under the first checkpoint of each variant."""
        points = {
            variant: (self._of(ours[0], "delta_weight").tolist(), self._of(ours[0], "delta_js").tolist())
            for variant, ours in by_variant(subjects).items()
        }
        return {
            self.name: Curves(
                "The largest weight erased, against a random other",
                "difference of the two weights",
                "difference of the two JSD (nats)",
                points=points,
            )
        }

    def _of(self, subject: Subject, column: str) -> "pd.Series[float]":
        return subject.values[f"{self.name}.{column}"].dropna()
