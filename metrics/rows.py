"""Rows of numbers, one for each item, gathered from any number of devices."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from attention_probing.metrics.attachment import Arcs
from attention_probing.metrics.gathered import Gathered, gather_items
from attention_probing.results.errors import UserError, pluralize

ITEM = "item"
"""Name of the column that identifies the items."""
LONGEST = 32_766
"""Most words of a sentence: a position and an offset fit 16 bits, and one number is left for none."""


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

    def add(self, items: Tensor, **columns: Tensor) -> None:
        """Add the items of a batch.

        Args:
            items: Numbers that identify the items, int64 `[items]`, such as their index in the split; or several
                numbers for each item, `[items, numbers]`, such as the sentence and the word.
            **columns: Numbers of the items by name, `[items]` or `[items, …]`.

        Raises:
            ValueError: A column has another number of rows, or other names than in the batches before.
        """
        for name, column in columns.items():
            if len(column) != len(items):
                raise ValueError(f"The column {name} has {len(column)} rows, but there are {len(items)} items.")
        batch = {ITEM: items.long()}
        for name, column in columns.items():
            batch[name] = _to_kept_type(column.detach())
        if self._batches and batch.keys() != self._batches[0].keys():
            raise ValueError(f"The columns must be {list(self._batches[0])}, but are {list(batch)}.")
        self._batches.append(batch)

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
        for batch in self._batches:
            batches.append({name: column.cpu().numpy() for name, column in batch.items()})
        self._batches.clear()
        if self.over_devices:
            batches = gather_items(batches)
        if not batches:
            return {ITEM: np.empty(0, np.int64)}
        table = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
        keys = table[ITEM].reshape(len(table[ITEM]), -1)
        order = np.lexsort(keys.T[::-1])
        _refuse_repeated(keys[order])
        for name, column in table.items():
            ordered = column[order]
            table[name] = ordered.astype(np.float64) if ordered.dtype == np.float32 else ordered
        return table


def _to_kept_type(column: Tensor) -> Tensor:
    """Return the numbers of a column in the type in which they are kept."""
    if column.is_floating_point():
        return column.float()
    return column.long() if column.dtype == torch.bool else column


def _refuse_repeated(keys: NDArray[np.int64]) -> None:
    """Raise ValueError if two rows of the sorted keys, `[items, numbers]`, are equal."""
    repeated = keys[1:][(keys[1:] == keys[:-1]).all(axis=1), 0]
    if repeated.size:
        raise ValueError(
            f"{pluralize(np.unique(repeated).size, 'item')} came more than once, the first with the number "
            f"{int(repeated[0])}, so the scores would count an item twice. Take the rows between epochs, "
            "and use no sampler that repeats items on several devices (Trainer(use_distributed_sampler=False))."
        )


class ItemRows(Gathered[dict[str, NDArray[Any]]]):
    """Accumulator of named columns of numbers for each item of a split, from batches in any order.

    Args:
        columns: Width of each column but the keys, by name: None for one number per item, k for k
            numbers.
        keys: Names of further columns, of one number each, that identify an item; the items are sorted
            by them.
        dtype: Type of all columns, keys included; a key in float32 must be below 2²⁴.
    """

    rows: list[Tensor]  # one tensor [items, numbers] a batch

    def __init__(
        self, columns: Mapping[str, int | None], keys: Sequence[str] = ("index",), dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.columns: dict[str, int | None] = {**dict.fromkeys(keys), **columns}
        self.keys, self.kind = len(keys), dtype
        self.add_rows("rows", self._nothing)

    @property
    def _widths(self) -> list[int]:
        return [1 if width is None else width for width in self.columns.values()]

    def update(self, **values: Tensor) -> None:
        """Add a batch of items.

        Args:
            **values: All columns by name, `[items]` or `[items, width]`.

        Raises:
            ValueError: A name or a shape differs from the columns of the metric.
        """
        items = len(next(iter(values.values())))
        wanted = {name: [items] if width is None else [items, width] for name, width in self.columns.items()}
        if (found := {name: list(value.shape) for name, value in values.items()}) != wanted:
            raise ValueError(f"the columns must be {wanted}, but are {found}")
        parts = [
            values[name].to(self.kind).reshape(items, width) for name, width in zip(wanted, self._widths, strict=True)
        ]
        self.rows.append(torch.cat(parts, dim=1).detach())

    def total(self) -> dict[str, NDArray[Any]]:
        """Return every column by name, `[items]` or `[items, width]`.

        The items are sorted by the key columns. The key columns are int64.

        Raises:
            ValueError: An item was added more than once.
        """
        rows: NDArray[Any] = np.concatenate([part.cpu().numpy() for part in self.rows or [self._nothing()]])
        rows = rows[np.lexsort(rows[:, : self.keys].T[::-1])]
        twice = rows[1:][(rows[1:, : self.keys] == rows[:-1, : self.keys]).all(axis=1), 0]
        if twice.size:
            raise ValueError(
                f"{pluralize(np.unique(twice).size, 'item')} came more than once, the first with the number "
                f"{int(twice[0])}, so the scores would count an item twice. Reset the metric between epochs, "
                "and use no sampler that repeats items on several devices (Trainer(use_distributed_sampler=False))."
            )
        if rows.dtype == np.float32:
            rows = rows.astype(np.float64)
        columns = np.split(rows, list(accumulate(self._widths))[:-1], axis=1)
        found = {
            name: column[:, 0] if width is None else column
            for column, (name, width) in zip(columns, self.columns.items(), strict=True)
        }
        return found | {name: found[name].astype(np.int64) for name in list(found)[: self.keys]}

    def _nothing(self) -> Tensor:
        return torch.empty(0, sum(self._widths), dtype=self.kind, device=self.device)


class ArcRows(ItemRows):
    """Accumulator that has, for every word, its gold arc and named predictions.

    Keyword arguments give the width of each prediction by name: None for one number per word, k for k numbers. One
    number per word is kept as int32. Predictions with k numbers take most of the memory, so they are kept as int16, two
    in each int32, because no backend of torch.distributed gathers int16.
    """

    def __init__(self, **predicted: int | None) -> None:
        gold = dict.fromkeys(("document", "length", "head", "relation", "punctuation"))
        kept = {name: None if width is None else (width + 1) // 2 for name, width in predicted.items()}
        super().__init__({**gold, **kept}, keys=("sentence", "word"), dtype=torch.int)
        self._several = {name: width for name, width in predicted.items() if width is not None}

    def add(self, batch: Any, **predicted: Tensor) -> None:  # noqa: ANN401 - of a room above
        """Add the gold arcs of a batch, and the predictions for its words; the padding is left out.

        Args:
            batch: Sentences padded to n words, with the tensors `index` (of the sentence in its split) and `lengths`,
                `[batch]`, `documents` (-1 for none), `[batch]`; `heads` (0 for ROOT), `relations` and `punctuation`,
                `[batch, n]`.
            **predicted: Predictions by name, `[batch, n]` or `[batch, n, width]`.

        Raises:
            UserError: A sentence has more than 32,766 words, and there are predictions of several predictors.
        """
        heads = batch.heads
        if self._several and heads.size(1) > LONGEST:
            raise UserError(
                f"Sentence {int(batch.index[batch.lengths.argmax()]) + 1:,} of a split has {heads.size(1):,} words, "
                f"but arcs are scored in sentences of at most {LONGEST:,} words. Cut it into several sentences."
            )
        word = torch.arange(1, heads.size(1) + 1, device=heads.device).expand_as(heads)
        length = batch.lengths.long()[:, None].expand_as(heads)
        columns = {
            "sentence": batch.index[:, None].expand_as(heads),
            "word": word,
            "document": batch.documents[:, None].expand_as(heads),
            "length": length,
            "head": heads,
            "relation": batch.relations,
            "punctuation": batch.punctuation,
            **{name: _paired(column) if name in self._several else column for name, column in predicted.items()},
        }
        real = word <= length
        self.update(**{name: column[real] for name, column in columns.items()})

    def arcs(self) -> tuple[Arcs, dict[str, NDArray[Any]]]:
        """Return all gold arcs, and the predictions by name, `[words]` or int16 `[words, width]`; reset the metric.

        Raises:
            ValueError: A sentence was added more than once.
        """
        found = self.take()
        names = ("sentence", "document", "word", "length", "head", "relation")
        gold = {name: found.pop(name).astype(np.int64) for name in names}
        for name, width in self._several.items():
            found[name] = found[name].view(np.int16)[:, :width]
        return Arcs(**gold, punctuation=found.pop("punctuation").astype(np.bool_)), found


def _paired(values: Tensor) -> Tensor:
    """Return small integers `[..., k]` as int16, two in each int32; a zero follows an odd number of them."""
    return pad(values.short(), (0, values.size(-1) % 2)).contiguous().view(torch.int)
