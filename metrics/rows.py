"""State that is exact on any number of devices: rows, joined and sorted, and nothing summed before."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics import Metric

from metrics.attachment import Arcs


class Rows(Metric):
    """Gathers rows of numbers from any number of devices, in any order of batches.

    No floating-point sum depends on how a split was divided, so every score is the same on one device and on eight.
    Subclasses fill `update`, which appends to `rows`, and `compute`, which reads `joined`.

    Args:
        columns: Numbers in a row; the first is the index of the item.
        keys: Leading columns that tell rows apart, and by which they are sorted.
        dtype: Of the rows.
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    rows: list[Tensor] | Tensor  # one tensor [rows, columns] a batch; torchmetrics joins them when it syncs

    def __init__(self, columns: int, keys: int, dtype: torch.dtype) -> None:
        """Start without a row."""
        super().__init__()
        self.columns, self.keys, self.kind = columns, keys, dtype
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def append(self, rows: Tensor) -> None:
        """Add the rows of a batch, `[rows, columns]`."""
        assert isinstance(self.rows, list)
        self.rows.append(rows.to(self.kind))

    def joined(self) -> NDArray[Any]:
        """All rows, sorted by their keys.

        Raises:
            ValueError: A row was added more than once.
        """
        parts = [self.rows] if isinstance(self.rows, Tensor) else self.rows
        whole = torch.cat(parts) if parts else torch.empty(0, self.columns, dtype=self.kind)
        rows: NDArray[Any] = whole.cpu().numpy()
        rows = rows[np.lexsort(rows[:, : self.keys].T[::-1])]
        twice = rows[1:][(rows[1:, : self.keys] == rows[:-1, : self.keys]).all(axis=1), 0]
        if twice.size:
            raise ValueError(
                f"{np.unique(twice).size} items were added more than once, the first of them number "
                f"{int(twice[0])}: the scores would count them twice. Reset the metric between epochs, and use a "
                "sampler that repeats no item to even out the devices (Trainer(use_distributed_sampler=False))."
            )
        return rows

    def sync(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any | None = None,  # noqa: ANN401 - torchmetrics' own signature
        should_sync: bool = True,
        distributed_available: Callable[..., Any] | None = None,
    ) -> None:
        """Gather the rows of all devices."""
        # For a device without a batch torchmetrics would send an empty vector of floats, which does not fit the
        # others' matrices.
        if isinstance(self.rows, list) and not self.rows:
            self.rows.append(torch.empty(0, self.columns, dtype=self.kind, device=self.device))
        super().sync(dist_sync_fn, process_group, should_sync, distributed_available)


class ItemRows(Rows):
    """Gathers a row of numbers of every item: a sentence, a text.

    Args:
        width: Numbers in a row.
    """

    def __init__(self, width: int) -> None:
        """Start without an item."""
        super().__init__(1 + width, keys=1, dtype=torch.float32)
        self.width = width

    def update(self, index: Tensor, values: Tensor) -> None:
        """Add a batch.

        Args:
            index: `[batch]` place of the item in its split, below 2²⁴.
            values: `[batch, width]`; kept in float32.
        """
        if values.shape != (len(index), self.width):
            raise ValueError(f"values must be {[len(index), self.width]}, and they are {list(values.shape)}")
        self.append(torch.cat([index[:, None].float(), values.float()], dim=1))

    def compute(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Join all rows.

        Returns:
            `[items]` their indices in ascending order, and `[items, width]` their numbers.

        Raises:
            ValueError: An item was added more than once.
        """
        rows = self.joined().astype(np.float64)
        return rows[:, 0].astype(np.int64), rows[:, 1:]


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
