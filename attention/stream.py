"""Attention that is computed whenever it is read, by forward passes, in place of a store on disk."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from threading import local

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attention_probing.attention.encoder import LoadedEncoder
from attention_probing.attention.extraction import (
    Allowance,
    batches,
    in_order,
    return_free_memory,
    run_pass,
    within_memory,
    workers_of,
)
from attention_probing.attention.long_inputs import find_most_attended
from attention_probing.attention.specification import Items
from attention_probing.attention.store import Manifest, Part, Store, tensor_name, unpack_weights
from attention_probing.results.digests import Digests


class Stream(Store):
    """A store without files: whatever is read is computed by forward passes, in the precision of a store.

    Threads may read at the same time. Each keeps what it has read last.

    Args:
        items: Items of the corpus, cut into the encoder's pieces.
        manifest: Manifest that the store would have.
        encoder: The encoder.
    """

    def __init__(self, items: Items, manifest: Manifest, encoder: LoadedEncoder) -> None:
        self.items, self.labels, self.manifest, self.encoder = items, items.labels, manifest, encoder
        self.workers = workers_of(encoder, items)
        self._last, self._allowance = local(), Allowance(24 << 20)

    @property
    def groups(self) -> Iterator[list[int]]:
        """Items that share forward passes in a store: read together, they have the same numbers here."""
        for shard in self.items.shards:
            yield from batches(self.items, shard, self.encoder.device.type)

    def each(self, quantity: str, items: Iterable[int]) -> Iterator[tuple[int, Tensor]]:
        """Yield a quantity of each item, in the order of `groups`; see `Store.each`."""
        wanted = set(items)
        groups = (group for group in self.groups if wanted.intersection(group))
        for group, held in in_order(partial(self._compute, quantity), groups, self.workers):
            for item in group:
                if item in wanted:
                    yield item, unpack_weights(held[tensor_name(quantity, item)])

    def read_batch(self, quantity: str, items: Sequence[int], batch: Tensor, lowest: int = 0) -> None:
        """Compute a quantity of several items and copy it into a padded batch; see `Store.read_batch`."""
        self._compute(quantity, items)
        super().read_batch(quantity, items, batch, lowest)

    def most_attended(self, items: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the most attended words of some sentences, padded, without keeping the attention of several layers.

        Args:
            items: Indices of the sentences.

        Returns:
            int32 `[items, n, 2, layers, heads]` and `[items, layers, heads, n]`; see `positions` and `peaks` of
            `MostAttended`.
        """
        if not items:
            sizes = len(self.items.layers), len(self.items.heads)
            return torch.zeros(0, 0, 2, *sizes, dtype=torch.int32), torch.zeros(0, *sizes, 0)
        found: dict[int, tuple[Tensor, Tensor]] = {}
        run = partial(find_most_attended, self.encoder, self.items)
        for batch in self._batches(items):
            most = within_memory(run, self.encoder, self.items, batch)
            found |= dict(zip(batch, most, strict=True))
        self._allowance.check()
        positions = pad_sequence([found[item][0] for item in items], True)
        return positions, pad_sequence([found[item][1].permute(2, 0, 1) for item in items], True).permute(0, 2, 3, 1)

    def _batches(self, items: Iterable[int]) -> Iterator[list[int]]:
        """Yield the forward passes over some items, ordered as in a shard."""
        order = sorted(dict.fromkeys(items), key=lambda item: -len(self.items.inputs[item]))
        return batches(self.items, order, self.encoder.device.type)

    def _view(self, quantity: str, item: int) -> Tensor:
        return self._compute(quantity, [item])[tensor_name(quantity, item)]

    def _compute(self, quantity: str, wanted: Sequence[int]) -> dict[str, Tensor]:
        """Return tensors by name, these among them."""
        held: dict[str, Tensor] = getattr(self._last, "held", {})
        if any(tensor_name(quantity, item) not in held for item in wanted):
            self._last.held = held = {}
            for batch in self._batches(wanted):
                for item, tensors in zip(batch, run_pass(self.encoder, self.items, batch), strict=True):
                    names = (tensor_name(one, item) for one in self.items.shapes(item))
                    held |= dict(zip(names, tensors, strict=True))
            self._allowance.check()
        return held


def make_stream(items: Items, cache: Path, digests: Digests, encoder: LoadedEncoder | None = None) -> Store:
    """Return a stream in place of the store that `make_store` would make of the same arguments."""
    identity = items.extraction.identity(digests)
    assert encoder is not None
    shard = Part("", 0, "")
    return_free_memory()  # of masks that were as large as the longest text
    return Stream(items, items.manifest(identity, encoder, shard, *([shard] * len(items.shards))), encoder)
