"""Rows of numbers, one for each item, gathered from any number of devices."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attention_probing.metrics.gathered import gather_items
from attention_probing.results.errors import pluralize

ITEM = "item"
"""Name of the column that identifies the items."""


class Rows(nn.Module):
    """Rows of named numbers, one row for each item, from batches in any order and on any number of devices.

    Floating-point numbers are kept in single precision, flags as 0 and 1, and integers as they are given.

    Attributes:
        over_devices: False to leave out the rows of other processes, which may work on something else.
    """

    over_devices = True

    def __init__(self) -> None:
        super().__init__()
        self._batches: list[dict[str, Tensor]] = []
        self._real: list[Tensor | None] = []

    def add(self, items: Tensor, *, real: Tensor | None = None, **columns: Tensor) -> None:
        """Add the items of a batch.

        Args:
            items: Numbers that identify the items, int64 `[items]`, such as their index in the split; or several
                numbers for each item, `[items, numbers]`, such as the sentence and the word.
            real: Bool `[items]`, False for items of the padding, which `take` leaves out: here a GPU would wait. None
                for items without padding.
            **columns: Numbers of the items by name, `[items]` or `[items, …]`.

        Raises:
            ValueError: A column has another number of rows, or other names than in the batches before.
        """
        for name, column in columns.items():
            if len(column) != len(items):
                raise ValueError(f"The column {name} has {len(column)} rows, but there are {len(items)} items.")
        batch = {ITEM: items.to(torch.int64, copy=True)}
        for name, column in columns.items():
            batch[name] = _to_kept_type(column.detach())
        if self._batches and batch.keys() != self._batches[0].keys():
            raise ValueError(f"The columns must be {list(self._batches[0])}, but are {list(batch)}.")
        self._batches.append(batch)
        self._real.append(None if real is None else real.clone())

    def take(self) -> dict[str, NDArray[Any]]:
        """Return every column of all devices by name, sorted by item, and forget all rows.

        Every process must call it.

        Returns:
            Columns `[items]` or `[items, …]`; `item` has the numbers that identify the items. Floating-point numbers
            are float64. Without any batch there is no other column.

        Raises:
            ValueError: An item was added more than once.
        """
        batches = []
        for batch, real in zip(self._batches, self._real, strict=True):
            on_host = {name: column.cpu().numpy() for name, column in batch.items()}
            if real is not None:
                is_real = real.cpu().numpy()
                on_host = {name: column[is_real] for name, column in on_host.items()}
            batches.append(on_host)
        self._batches.clear()
        self._real.clear()
        if self.over_devices:
            batches = gather_items(batches)
        if not batches:
            return {ITEM: np.empty(0, np.int64)}
        table = {}
        for name in batches[0]:
            table[name] = np.concatenate([batch[name] for batch in batches])
        keys = table[ITEM].reshape(len(table[ITEM]), -1)
        order = np.lexsort(keys.T[::-1])
        _refuse_repeated(keys[order])
        for name, column in table.items():
            ordered = column[order]
            table[name] = ordered.astype(np.float64) if ordered.dtype == np.float32 else ordered
        return table


def _to_kept_type(column: Tensor) -> Tensor:
    """Return a copy of a column in the type in which it is kept, so that nothing else of the batch stays in memory."""
    dtype = column.dtype
    if column.is_floating_point():
        dtype = torch.float32
    elif dtype == torch.bool:
        dtype = torch.int64
    return column.to(dtype, copy=True)


def _refuse_repeated(keys: NDArray[np.int64]) -> None:
    """Raise ValueError if two rows of the sorted keys, `[items, numbers]`, are equal."""
    repeated = keys[1:][(keys[1:] == keys[:-1]).all(axis=1), 0]
    if repeated.size:
        raise ValueError(
            f"{pluralize(np.unique(repeated).size, 'item')} came more than once, the first with the number "
            f"{int(repeated[0])}, so the scores would count an item twice. Take the rows between epochs, "
            "and use no sampler that repeats items on several devices (Trainer(use_distributed_sampler=False))."
        )
