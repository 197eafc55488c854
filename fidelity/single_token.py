"""Each word of a text alone (Tutek & Šnajder 2020, §5)."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from attention_probing.fidelity.classified import ClassifiedBatch
from attention_probing.fidelity.contract import (
    CheckpointResult,
    FidelityTest,
    Reading,
    Score,
    frames_by_variant,
    means,
)
from attention_probing.fidelity.saliency import Saliency
from attention_probing.results import Figure, Spreads


class SingleToken(FidelityTest):
    """Probability of the predicted class if the input is one word of the text alone (Tutek & Šnajder 2020).

    If hidden states represent their own words, some words alone make the class likely and others do not. If
    they mix the words of the text, every word alone gives a similar probability. Delimiters stay.

    Columns and scores: `full`, the probability given the full text; `mean` and `spread`, the mean and
    standard deviation over words of the probability given one word; `agree`, the share of words for which
    the classifier decides as for the full text. Columns without a score: `min` and `max`, the lowest and
    highest probability given one word. The words of the example texts are coloured by the probability given each.
    """

    name = "single_token"
    readings: ClassVar = {"agree": Reading(claim="on average {} of the words of a text, each alone, give its decision")}

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Mapping[str, Tensor]:
        words = classified.words
        itself = torch.eye(words.size(1), dtype=torch.bool, device=words.device)
        alone = classified.reread(itself[:, None] & words)
        probability = classified.of_predicted(alone).T  # [batch, positions], nan without a word
        mean = probability.nanmean(1)
        agrees = (alone.argmax(-1) == classified.predicted).T & words
        classified.highlights[self.name] = probability.nan_to_num(0)
        return {
            "full": classified.confidence,
            "mean": mean,
            # Over all words of the text, not over a sample of them: no correction.
            "spread": (probability - mean[:, None]).square().nanmean(1).sqrt(),
            "agree": agrees.sum(1) / words.sum(1),
            "min": probability.nan_to_num(torch.inf).amin(1),
            "max": probability.nan_to_num(-torch.inf).amax(1),
        }

    def scores(self) -> Mapping[str, Score]:
        return means(("spread", "mean", "full")) | means(["agree"], main=True)

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return the figure `single_token.spread`.

        It has a violin of the column `spread` for each variant, over the texts, taken together from all seeds of a
        variant.
        """
        spreads = {}
        for variant, rows in frames_by_variant(results, self.name).items():
            spreads[variant] = rows["spread"].tolist()
        series = {"texts": list(spreads.values())}
        label = "standard deviation of P(class) over the words of a text"
        figure = Spreads("Each word alone", tuple(spreads), series, label, unit="ratio")
        return {"single_token.spread": figure}
