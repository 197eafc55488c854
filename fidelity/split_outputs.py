"""Outputs and attention of a classifier for all texts of a split."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from attention_probing.corpora.splits import Split
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity.classified import levels_of
from attention_probing.models import (
    TextClassifier,
)
from attention_probing.models.text_classifier import Output


class SplitOutputs(NamedTuple):
    """Outputs of a classifier for all texts of a split.

    Attributes:
        probabilities: Probabilities of the classes, `[texts, classes]`.
        weights: Attention for each text, `[positions, heads]`.
    """

    probabilities: Tensor
    weights: Sequence[Tensor]

    def select(self, texts: Tensor, positions: int) -> tuple[Tensor, Tensor]:
        """Return the outputs for a batch of texts, with attention padded to a common number of positions.

        Args:
            texts: Indices of the texts in the split, int64 `[batch]`.
            positions: Number of positions after padding.

        Returns:
            Probabilities `[batch, classes]`, and attention `[heads, batch, positions]`, 0 in the
            padding.
        """
        weights = pad_sequence([self.weights[text] for text in texts.tolist()], batch_first=True)
        weights = pad(weights, (0, 0, 0, positions - weights.size(1)))
        return self.probabilities[texts], weights.permute(2, 0, 1)


@torch.no_grad()
def collect_outputs(
    model: TextClassifier, data: ClassificationDataModule, device: torch.device, split: Split = "train"
) -> SplitOutputs:
    """Classify all texts of a split; return the outputs."""
    probabilities: dict[int, Tensor] = {}
    weights: dict[int, Tensor] = {}
    for batch in data.splits[split].batches(data.eval_tokens):
        batch = batch.to(device)
        output: Output = model(batch)
        first_level = levels_of(output, None)[0]
        mask = output.levels[first_level].mask
        places = torch.arange(1, mask.size(1) + 1, device=device)
        sizes = (mask * places).amax(1).tolist()  # up to the last position with weight
        probabilities_of_batch = output.logits.softmax(-1)
        weights_of_batch = attention_of(output).permute(1, 2, 0)  # [batch, positions, levels]
        for row, text in enumerate(batch.index.tolist()):
            probabilities[text] = probabilities_of_batch[row]
            weights[text] = weights_of_batch[row, : sizes[row]].clone()
    order = sorted(weights)
    in_order = torch.stack([probabilities[text] for text in order])
    return SplitOutputs(in_order, [weights[text] for text in order])


def attention_of(output: Output) -> Tensor:
    """Return the attention weights in an output, `[levels, batch, positions]`.

    The levels are the sentence level if there is one, else all levels.
    """
    return torch.stack([output.levels[name].weights for name in levels_of(output, None)])
