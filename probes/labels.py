"""Labels of arcs, read off the attention along them."""

import torch
from torch import Tensor, nn

from datamodules import AttentionBatch


class RelationClassifier(nn.Module):
    """The relation of a word to its head, linear in all attention between the two, as `Linear(2k+1, relations)`.

    Beside the attention of all k heads from the word to its head, and back, there is one feature for ROOT, which is
    attended to at the start delimiter. It is trained at the gold heads, and asked at the predicted ones.

    Args:
        heads: number of attention heads, k.
        relations: number of relations.
    """

    def __init__(self, heads: int, relations: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * heads + 1, relations)

    def forward(self, batch: AttentionBatch, heads: Tensor) -> Tensor:
        """Logits `[batch, n, relations]` of the arcs to these heads, int64 `[batch, n]`, 0 = ROOT."""
        attention = batch.attention.flatten(1, 2)
        rows = torch.arange(heads.size(0), device=heads.device)[:, None]
        words = torch.arange(1, heads.size(1) + 1, device=heads.device).expand_as(heads)
        there, back = attention[rows, :, words, heads], attention[rows, :, heads, words]
        root = (heads == 0)[..., None]
        logits: Tensor = self.linear(torch.cat([there, back, root.to(there.dtype)], dim=-1).float())
        return logits
