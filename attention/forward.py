"""One shard through the encoder: forward passes of bounded size, reduced to words inside the attention function."""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention.alignment import Pieces, most_central, reduce, reduction
from attention.encoder import Encoder
from attention.plan import Plan
from attention.request import Options, StoreError
from attention.store import tensor_name

BATCH_PIECES = {"cpu": 1024, "cuda": 16384}
"""Bound of one forward pass by kind of device, padding included: what keeps a CPU's caches and a GPU's cores busy."""
BATCH_CELLS = 2**17
"""Bound of pieces × pieces, padding included: what keeps the weights of one layer small."""

_ROW_TOLERANCE = 1e-3


def shapes(planned: Plan, shard: int) -> dict[str, tuple[int, ...]]:
    """What a shard holds: `attention.<item>` `[layers, heads, n+2, n+2]`, axes from and to."""
    return {
        tensor_name("attention", item): (len(planned.layers), len(planned.heads), slots, slots)
        for item in planned.items(shard)
        for slots in [len(planned.sentences[item]) + 2]
    }


def extract(
    encoder: Encoder,
    planned: Plan,
    shard: int,
    options: Options,
    tensors: Mapping[str, Tensor],
    advance: Callable[[int], object] = lambda _: None,
) -> None:
    """Fill the tensors of one shard, which hold zeros, of the `shapes` it wants.

    Raises:
        StoreError: a row that does not sum to one.
    """
    items = planned.items(shard)
    owners = {
        item: most_central(cut, len(planned.sentences[item])) for item in items if len(cut := planned.windows[item]) > 1
    }
    pairs = [(item, part) for item in items for part in range(len(planned.windows[item]))]
    most = BATCH_PIECES.get(encoder.device.type, BATCH_PIECES["cuda"])
    for batch in batches(pairs, planned, most):
        parts = [planned.windows[item][part] for item, part in batch]
        reduced = forward(encoder, parts, planned, options).cpu()
        for (item, part), window, block in zip(batch, parts, reduced, strict=True):
            target, block = tensors[tensor_name("attention", item)], block[..., : window.words + 2, : window.words + 2]
            if item in owners:
                _place(target, block, window, owners[item] == part)
            else:
                target.copy_(block)
            advance(int(part == len(planned.windows[item]) - 1))


def return_free_memory() -> None:
    """Give back what allocators keep: no batch is like the one before, and memory would creep up with the corpus."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc; other C libraries keep less
    if trim is not None:
        trim(0)


def batches(parts: Sequence[tuple[int, int]], planned: Plan, most: int) -> Iterator[list[tuple[int, int]]]:
    """Cut (item, window) pairs, longest first, into forward passes of `most` pieces and `BATCH_CELLS` cells at most."""
    batch: list[tuple[int, int]] = []
    longest = 0
    for item, part in sorted(parts, key=lambda pair: -len(planned.windows[pair[0]][pair[1]])):
        longest = longest or len(planned.windows[item][part])
        size = (len(batch) + 1) * longest
        if batch and (size > most or size * longest > BATCH_CELLS):
            yield batch
            batch, longest = [], len(planned.windows[item][part])
        batch.append((item, part))
    if batch:
        yield batch


def pad(parts: Sequence[Pieces], encoder: Encoder) -> dict[str, Tensor]:
    """The model's inputs, padded on the right: `input_ids` and `attention_mask`, int64 `[batch, pieces]`."""
    ids = torch.full((len(parts), max(map(len, parts))), encoder.pad_id)
    mask = torch.zeros_like(ids)
    for index, part in enumerate(parts):
        ids[index, : len(part)] = torch.from_numpy(part.ids)
        mask[index, : len(part)] = 1
    return {"input_ids": ids.to(encoder.device), "attention_mask": mask.to(encoder.device)}


def forward(encoder: Encoder, parts: Sequence[Pieces], planned: Plan, options: Options) -> Tensor:
    """One forward pass, reduced layer by layer: `[batch, layers, heads, slots, slots]`, on the encoder's device.

    Raises:
        StoreError: a row that does not sum to one.
    """
    rows, columns = reduction(parts, options.from_pieces, encoder.device)
    slots = rows.size(1)
    reduced = torch.empty(
        len(parts), len(planned.layers), len(planned.heads), slots, slots, dtype=options.dtype, device=encoder.device
    )
    every = len(planned.heads) == encoder.heads
    real = rows.sum(2)[:, None]
    worst = torch.zeros((), device=encoder.device)

    def receive(layer: int, weights: Tensor) -> None:
        nonlocal worst
        words = reduce(weights if every else weights[:, list(planned.heads)], rows, columns)
        worst = torch.maximum(worst, (words.sum(3) - real).abs().max())
        reduced[:, planned.layers.index(layer)] = words

    encoder.capture(pad(parts, encoder), receive, frozenset(planned.layers))
    if not float(worst) <= _ROW_TOLERANCE:  # also when it is not a number
        raise StoreError(f"{encoder.source.spec.name}: a row of attention sums to 1 ± {float(worst):.1e}.")
    return reduced


def _place(target: Tensor, block: Tensor, window: Pieces, owned: NDArray[np.bool_]) -> None:
    """Copy the rows of a window's own words; the sentence's delimiters come from its first and last window."""
    words = target.size(-1) - 2
    sources = torch.from_numpy(owned.nonzero()[0]) - window.first + 1
    if window.first == 0:
        sources = torch.cat([torch.tensor([0]), sources])
    if window.first + window.words == words:
        sources = torch.cat([sources, torch.tensor([window.words + 1])])
    columns = torch.arange(window.words + 2) + window.first
    columns[0], columns[-1] = 0, words + 1
    rows = torch.where(sources == 0, 0, sources + window.first)
    target[..., rows[:, None], columns] = block[..., sources, :]
