"""The metric that gathers arcs: what was predicted of every word, in rows of integers."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics import Metric

from metrics.attachment import Arcs

Gathered = tuple[Arcs, NDArray[Any]]
"""Gold arcs, and what was predicted of each of their words."""


class ArcPredictions(Metric):
    """Gathers gold arcs and what was predicted of each word, from any number of devices, in any order of batches.

    The state is rows of integers, concatenated over batches and devices and sorted by (sentence, word) at the end. No
    floating-point sum depends on how a split was divided, so every score is the same on one device and on eight.

    Args:
        width: Numbers predicted of each word; None for one, its head.
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    rows: list[Tensor] | Tensor  # one tensor [words, 6 + width] a batch; torchmetrics joins them when it syncs

    def __init__(self, width: int | None = None) -> None:
        """Start without a word."""
        super().__init__()
        self.width = width
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def update(
        self,
        sentence: Tensor,
        heads: Tensor,
        relations: Tensor,
        punctuation: Tensor,
        lengths: Tensor,
        predicted: Tensor,
    ) -> None:
        """Add a batch; only words before the sentence's length are kept.

        Args:
            sentence: `[batch]` index of the sentence in its split.
            heads: `[batch, n]` gold heads, 0 for ROOT.
            relations: `[batch, n]` index of the relation.
            punctuation: `[batch, n]` whether the word is punctuation.
            lengths: `[batch]` number of words.
            predicted: `[batch, n]` predicted heads, or `[batch, n, width]`.
        """
        shape = heads.shape if self.width is None else (*heads.shape, self.width)
        if not heads.shape == relations.shape == punctuation.shape or predicted.shape != shape:
            raise ValueError(
                f"heads, relations and punctuation must all be [batch, n], and predicted {tuple(shape)}: got "
                f"{[tuple(part.shape) for part in (heads, relations, punctuation, predicted)]}"
            )
        place = torch.arange(1, heads.shape[1] + 1, device=heads.device).expand_as(heads)
        length = lengths.long()[:, None].expand_as(heads)
        columns = [sentence[:, None].expand_as(heads), place, length, heads, relations, punctuation]
        # Half the bytes of torch's own integers, and no number here needs more.
        gold = torch.stack([column.int() for column in columns], dim=-1)
        numbers = predicted.int().view(*heads.shape, self.width or 1)
        assert isinstance(self.rows, list)
        self.rows.append(torch.cat([gold, numbers], dim=-1)[place <= length])

    def compute(self) -> Gathered:
        """Join all rows.

        Returns:
            The arcs, and `[words]` or `[words, width]` what was predicted; both empty when nothing was added.

        Raises:
            ValueError: A sentence was added more than once.
        """
        parts = [self.rows] if isinstance(self.rows, Tensor) else self.rows
        rows = torch.cat(parts).cpu().numpy() if parts else np.empty((0, 6 + (self.width or 1)), dtype=np.int32)
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        twice = rows[1:][(rows[1:, :2] == rows[:-1, :2]).all(axis=1), 0]
        if twice.size:
            raise ValueError(
                f"{np.unique(twice).size} sentences were added more than once, the first of them sentence {twice[0]}: "
                "the scores would count them twice. Reset the metric between epochs, and use a sampler that repeats "
                "no item to even out the devices (Trainer(use_distributed_sampler=False))."
            )
        sentence, word, length, head, relation, punctuation = rows[:, :6].T.astype(np.int64)
        predicted = rows[:, 6:] if self.width is not None else rows[:, 6].astype(np.int64)
        return Arcs(sentence, word, length, head, relation, punctuation.astype(np.bool_)), predicted

    def sync(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any | None = None,  # noqa: ANN401 - torchmetrics' own signature
        should_sync: bool = True,
        distributed_available: Callable[..., Any] | None = None,
    ) -> None:
        """Gather the rows of all devices."""
        # For a device without a batch torchmetrics would send an empty vector of floats, which does not fit the
        # others' matrices of integers.
        if isinstance(self.rows, list) and not self.rows:
            self.rows.append(torch.empty(0, 6 + (self.width or 1), dtype=torch.int, device=self.device))
        super().sync(dist_sync_fn, process_group, should_sync, distributed_available)

    def _wrap_compute(self, compute: Callable[[], Gathered]) -> Callable[[], Gathered]:
        """Sync around `compute`, and leave its result alone.

        torchmetrics' own wrapper walks into the result to squeeze tensors and refuses frozen dataclasses; it also
        warns when a device had no batch, which is no fault here.
        """

        @wraps(compute)
        def synced() -> Gathered:
            with self.sync_context(
                dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync, should_unsync=self._should_unsync
            ):
                return compute()

        return synced
