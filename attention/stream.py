"""Attention that is computed whenever it is read, by forward passes, in place of a store on disk."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from threading import local

from torch import Tensor

from attention.encoder import LoadedEncoder
from attention.extraction import batches, in_order, joined, run_pass, workers_of
from attention.specification import Items
from attention.store import Manifest, Part, Store, tensor_name, unpack_weights
from processes.ranks import Ranks
from results.digests import Digests


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
        self._last = local()

    @property
    def groups(self) -> Iterator[list[int]]:
        """Items that share forward passes in a store: read together, they have the same numbers here."""
        for shard in self.items.shards:
            group: list[int] = []
            for batch in batches(self.items, shard, self.encoder.device.type):
                group = list(dict.fromkeys([*group, *(item for item, _ in batch)]))
                item, part = batch[-1]
                if part == len(self.items.inputs[item]) - 1:  # otherwise the next pass has the rest of this item
                    yield group
                    group = []

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

    def _view(self, quantity: str, item: int) -> Tensor:
        return self._compute(quantity, [item])[tensor_name(quantity, item)]

    def _compute(self, quantity: str, wanted: Sequence[int]) -> dict[str, Tensor]:
        """Return tensors by name, these among them."""
        held: dict[str, Tensor] = getattr(self._last, "held", {})
        if any(tensor_name(quantity, item) not in held for item in wanted):
            self._last.held = held = {}
            order = sorted(wanted, key=lambda item: -max(map(len, self.items.inputs[item])))  # as in a shard
            jobs = ((0, batch) for batch in batches(self.items, order, self.encoder.device.type))
            found = ((job, run_pass(self.encoder, self.items, job)) for job in jobs)
            held.update({name: tensor for _, name, tensor in joined(self.items, found)})
        return held


def make_stream(
    items: Items, cache: Path, digests: Digests, encoder: LoadedEncoder | None = None, ranks: Ranks | None = None
) -> Store:
    """Return a stream in place of the store that `make_store` would make of the same arguments."""
    identity = items.extraction.identity(digests)
    assert encoder is not None
    shard = Part("", 0, "")
    return Stream(items, items.manifest(identity, encoder, shard, *([shard] * len(items.shards))), encoder)
