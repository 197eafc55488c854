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

    Batches stay on the device of the encoder. Threads may read at the same time. Each keeps what it has read last.

    Args:
        items: Items of the corpus, cut into the encoder's pieces.
        manifest: Manifest that the store would have.
        encoder: The encoder.
    """

    def __init__(self, items: Items, manifest: Manifest, encoder: LoadedEncoder) -> None:
        self.items = items
        self.labels = items.labels
        self.manifest = manifest
        self.encoder = encoder
        self.workers = workers_of(encoder, items)
        self._last = local()
        self._allowance = Allowance(24 << 20)

    @property
    def device(self) -> torch.device:
        """Device of the encoder, on which batches stay."""
        return self.encoder.device

    @property
    def groups(self) -> Iterator[list[int]]:
        """Items that share forward passes in a store: read together, they have the same numbers here."""
        for shard in self.items.shards:
            yield from batches(self.items, shard, self.encoder.device.type)

    def read(self, quantity: str, item: int) -> Tensor:
        """Compute a quantity of an item, and return it on the CPU; see `Store.read`."""
        return super().read(quantity, item).cpu()

    def each(self, quantity: str, items: Iterable[int]) -> Iterator[tuple[int, Tensor]]:
        """Yield a quantity of each item, in the order of `groups`; see `Store.each`."""
        to_read = set(items)
        groups = (group for group in self.groups if to_read.intersection(group))
        for group, tensors in in_order(partial(self._compute, quantity), groups, self.workers):
            for item in group:
                if item in to_read:
                    yield item, unpack_weights(tensors[tensor_name(quantity, item)].cpu())

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
            sizes = (len(self.items.layers), len(self.items.heads))
            positions_of_none = torch.zeros(0, 0, 2, *sizes, dtype=torch.int32, device=self.device)
            return positions_of_none, torch.zeros(0, *sizes, 0, device=self.device)
        by_item: dict[int, tuple[Tensor, Tensor]] = {}
        run = partial(find_most_attended, self.encoder, self.items)
        for batch in self._batches(items):
            words_of_batch = within_memory(run, self.encoder, self.items, batch)
            by_item |= dict(zip(batch, words_of_batch, strict=True))
        self._allowance.check()
        positions = []
        peaks = []
        for item in items:
            positions_of_item, peaks_of_item = by_item[item]
            positions.append(positions_of_item)
            peaks.append(peaks_of_item.permute(2, 0, 1))  # words first, to be padded
        padded_peaks = pad_sequence(peaks, batch_first=True)
        return pad_sequence(positions, batch_first=True), padded_peaks.permute(0, 2, 3, 1)

    def _batches(self, items: Iterable[int]) -> Iterator[list[int]]:
        """Yield the forward passes over some items, ordered as in a shard."""
        order = sorted(dict.fromkeys(items), key=lambda item: -len(self.items.inputs[item]))
        return batches(self.items, order, self.encoder.device.type)

    def _view(self, quantity: str, item: int) -> Tensor:
        return self._compute(quantity, [item])[tensor_name(quantity, item)]

    def _compute(self, quantity: str, items: Sequence[int]) -> dict[str, Tensor]:
        """Return tensors on the device by name, among them those of a quantity of some items."""
        by_name: dict[str, Tensor] = getattr(self._last, "by_name", {})
        if any(tensor_name(quantity, item) not in by_name for item in items):
            by_name = {}
            self._last.by_name = by_name
            for batch in self._batches(items):
                tensors_of_items = run_pass(self.encoder, self.items, batch, self.device)
                for item, tensors in zip(batch, tensors_of_items, strict=True):
                    for name, tensor in zip(self.items.shapes(item), tensors, strict=True):
                        by_name[tensor_name(name, item)] = tensor
            self._allowance.check()
        return by_name


def make_stream(items: Items, cache: Path, digests: Digests, encoder: LoadedEncoder | None = None) -> Store:
    """Return a stream in place of the store that `make_store` would make of the same arguments."""
    identity = items.extraction.identity(digests)
    assert encoder is not None
    no_file = Part("", 0, "")
    manifest = items.manifest(identity, encoder, no_file, *[no_file] * len(items.shards))
    return_free_memory()  # of masks that were as large as the longest text
    return Stream(items, manifest, encoder)
