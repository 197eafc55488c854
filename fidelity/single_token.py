"""What each word says alone: the decision on a text of one word (Tutek & Šnajder 2020)."""

from collections.abc import Mapping, Sequence

import torch

from fidelity.base import CheckpointResult, FidelityTest, Measurements, Score, means, over_seeds
from fidelity.classified import ClassifiedBatch
from fidelity.saliency import Saliency
from results import Figure, Spreads


class SingleToken(FidelityTest):
    """The probability of the class that the full text gets, with each of its words alone as input.

    Where hidden states keep to their words, some words alone make the class likely and others do not; where they have
    mixed the words, each gives much the same probability (Tutek & Šnajder 2020). Delimiters stay.

    Columns and scores: `full`, the probability given the full text; `mean` and `spread`, mean and standard deviation
    over its words of the probability given the word alone; `agree`, the share of words that alone get the same class.
    Columns also: `min` and `max` over the words.
    """

    name = "single_token"
    headline = ("spread", "agree")

    def columns(self, classes: int) -> Sequence[str]:
        return ("full", "mean", "spread", "min", "max", "agree")

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        words = classified.words
        alone = classified.reread(torch.eye(words.size(1), dtype=torch.bool, device=words.device)[:, None] & words)
        probability = classified.of_predicted(alone).T  # [batch, positions], nan where there is no word
        mean = probability.nanmean(1)
        same = (alone.argmax(-1) == classified.predicted).T & words
        return Measurements(
            {
                "full": classified.confidence,
                "mean": mean,
                # Of all words of the text, not of a sample of them.
                "spread": (probability - mean[:, None]).square().nanmean(1).sqrt(),
                "min": probability.nan_to_num(torch.inf).amin(1),
                "max": probability.nan_to_num(-torch.inf).amax(1),
                "agree": same.sum(1) / words.sum(1),
            }
        )

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        return means(("spread", "mean", "full", "agree"))

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Violins of the spread within a text, one for each variant over all its seeds."""
        spreads = {variant: values["spread"].tolist() for variant, values in over_seeds(results, self.name).items()}
        label = "standard deviation of P(class) over the words of a text"
        texts = {"texts": list(spreads.values())}
        return {"single_token.spread": Spreads("Each word alone", tuple(spreads), texts, label, unit="ratio")}
