"""The metric that gathers arcs: what was predicted of every word, in rows of integers."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metrics.attachment import Arcs
from metrics.rows import Rows

Gathered = tuple[Arcs, NDArray[Any]]
"""Gold arcs, and what was predicted of each of their words."""


class ArcPredictions(Rows):
    """Gathers gold arcs and what was predicted of each word.

    Args:
        width: Numbers predicted of each word; None for one, its head.
    """

    def __init__(self, width: int | None = None) -> None:
        """Start without a word."""
        super().__init__(6 + (width or 1), keys=2, dtype=torch.int)
        self.width = width

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
        self.append(torch.cat([gold, numbers], dim=-1)[place <= length])

    def compute(self) -> Gathered:
        """Join all rows.

        Returns:
            The arcs, and `[words]` or `[words, width]` what was predicted; both empty when nothing was added.

        Raises:
            ValueError: A sentence was added more than once.
        """
        rows = self.joined()
        sentence, word, length, head, relation, punctuation = rows[:, :6].T.astype(np.int64)
        predicted = rows[:, 6:] if self.width is not None else rows[:, 6].astype(np.int64)
        return Arcs(sentence, word, length, head, relation, punctuation.astype(np.bool_)), predicted

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
