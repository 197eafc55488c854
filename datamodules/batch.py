"""What a datamodule hands to a probe: every field with its shape."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class AttentionBatch:
    """Some sentences of one split, padded to the longest of them, n words.

    Attributes:
        index: int64 `[batch]`, positions of the sentences in their split.
        lengths: int64 `[batch]`, words of each sentence.
        heads: int64 `[batch, n]`, gold heads, 1-based, 0 = root; -1 in the padding.
        relations: int64 `[batch, n]`, labels as numbers; -1 in the padding.
        punctuation: bool `[batch, n]`, words that UAS leaves out; False in the padding.
        attention: `[batch, layers, heads, n+2, n+2]`, axes from and to, in the precision of the store. Slot 0 is the
            start delimiter, slots 1…length are the words, slot length+1 is the end delimiter; zeros behind it.
    """

    index: Tensor
    lengths: Tensor
    heads: Tensor
    relations: Tensor
    punctuation: Tensor
    attention: Tensor

    @property
    def mask(self) -> Tensor:
        """Bool `[batch, n]`, True where a word is real."""
        return torch.arange(self.heads.size(1), device=self.lengths.device) < self.lengths[:, None]

    def to(self, device: torch.device, non_blocking: bool = False) -> "AttentionBatch":
        """The batch on another device."""
        return replace(
            self, **{f.name: getattr(self, f.name).to(device, non_blocking=non_blocking) for f in fields(self)}
        )

    def pin_memory(self) -> "AttentionBatch":
        """The batch in page-locked memory, for copies to a GPU that overlap with its work."""
        return replace(self, **{f.name: getattr(self, f.name).pin_memory() for f in fields(self)})
