"""Metrics that are exact on any number of devices: they gather rows of numbers and sum nothing before."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics import Metric

from metrics.attachment import Arcs


class ExactMetric(Metric):
    """A metric whose state is exact on any number of devices: integers that are summed, or rows that are gathered."""

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    def _wrap_compute(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        """Sync around `compute`, and leave its result alone.

        torchmetrics' own wrapper walks into the result to squeeze tensors, refuses frozen dataclasses, and warns when
        a device had no batch.
        """

        @wraps(compute)
        def synced() -> Any:  # noqa: ANN401
            with self.sync_context(
                dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync, should_unsync=self._should_unsync
            ):
                return compute()

        return synced


class Rows(ExactMetric):
    """Gathers rows of numbers, in any order of batches; `update` of a subclass appends them, `compute` reads `joined`.

    The first of the columns is the index of the item. The first `keys` columns identify a row; rows are sorted by them.
    """

    rows: list[Tensor] | Tensor  # one tensor [rows, columns] a batch; torchmetrics joins them when it syncs

    def __init__(self, columns: int, keys: int, dtype: torch.dtype) -> None:
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
        # A device without a batch would send an empty vector of floats, which does not fit the matrices of the others.
        if isinstance(self.rows, list) and not self.rows:
            self.rows.append(torch.empty(0, self.columns, dtype=self.kind, device=self.device))
        super().sync(dist_sync_fn, process_group, should_sync, distributed_available)


class ItemRows(Rows):
    """Gathers `width` numbers per item, for instance per sentence or text."""

    def __init__(self, width: int) -> None:
        super().__init__(1 + width, keys=1, dtype=torch.float32)
        self.width = width

    def update(self, index: Tensor, values: Tensor) -> None:
        """Add the values `[batch, width]` of items `[batch]`; both are stored in float32, so an index is below 2²⁴."""
        if values.shape != (len(index), self.width):
            raise ValueError(f"values must be {[len(index), self.width]}, and they are {list(values.shape)}")
        self.append(torch.cat([index[:, None].float(), values.float()], dim=1))

    def compute(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return indices `[items]` in ascending order and numbers `[items, width]`; ValueError for repeated items."""
        rows = self.joined().astype(np.float64)
        return rows[:, 0].astype(np.int64), rows[:, 1:]


class ArcPredictions(Rows):
    """Gathers gold arcs and `width` predictions for each word; None for one, its head."""

    def __init__(self, width: int | None = None) -> None:
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

        `sentence`, the index in its split, and `lengths` are `[batch]`, `predicted` is `[batch, n]` or `[batch, n,
        width]`, and the others are `[batch, n]`; heads are 0 for ROOT.
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
        # int32: half the bytes of int64, and enough.
        gold = torch.stack([column.int() for column in columns], dim=-1)
        numbers = predicted.int().view(*heads.shape, self.width or 1)
        self.append(torch.cat([gold, numbers], dim=-1)[place <= length])

    def compute(self) -> tuple[Arcs, NDArray[Any]]:
        """Return the arcs and the predictions, `[words]` or `[words, width]`; ValueError for repeated sentences."""
        rows = self.joined()
        sentence, word, length, head, relation, punctuation = rows[:, :6].T.astype(np.int64)
        predicted = rows[:, 6:] if self.width is not None else rows[:, 6].astype(np.int64)
        return Arcs(sentence, word, length, head, relation, punctuation.astype(np.bool_)), predicted
