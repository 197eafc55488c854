"""The attention-only probe of Clark et al. (2019, §5)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from datamodules import AttentionBatch
from probes.arc_probe import ArcProbe
from probes.bound import Sizes
from probes.scorers import attention_scores, candidates
from results import Figure, HeatMap, on_one_scale


class AttentionOnlyProbe(ArcProbe):
    """Scores head i of word j by a weighted sum over attention heads: `Σ_k w_k α^k[j,i] + u_k α^k[i,j]`.

    ROOT is scored by the delimiters, `start` and `end` being two learned scalars that all heads share:
    `start·α[j,0] + end·α[j,n+1]` in the place of α[j,i], and `start·α[0,j] + end·α[n+1,j]` in the place of α[i,j].
    The word itself stays a candidate, as in the paper. `2LH + 2` parameters.

    The original trains one epoch on batches of one sentence; the batches here are larger, and the epochs are the
    configuration's.
    """

    experiment = "attention_only"

    def build(self, sizes: Sizes) -> None:
        """`weight` is `[2, layers, heads]`: from the dependent to the head, and back."""
        self.weight = nn.Parameter(torch.zeros(2, len(sizes.layers), len(sizes.heads)))
        self.start, self.end = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))

    def forward(self, batch: AttentionBatch) -> Tensor:
        """Scores `[batch, n, n+1]` of the candidates of every word, ROOT first; -inf where there is no candidate."""
        scores = attention_scores(batch.attention.flatten(1, 2), self.weight.flatten(1))
        return candidates(scores, batch.lengths, self.start, self.end)

    def figures(self) -> Mapping[str, Figure]:
        """The learned weights, one map per direction, in one scale of colours."""
        layers, heads = self.sizes.layers, self.sizes.heads
        titles = ("dependent → head", "head → dependent")
        maps = {
            f"weights_{title.replace(' → ', '_to_')}": HeatMap(
                title=f"Learned weights, {title}",
                values=weight.double().cpu().numpy(),
                row_labels=[str(layer + 1) for layer in layers],
                column_labels=[str(head + 1) for head in heads],
                row_label="layer",
                column_label="head",
                value_label="weight",
                diverging=True,
                unit="ratio",
            )
            for title, weight in zip(titles, self.weight.detach(), strict=True)
        }
        return on_one_scale(maps)
