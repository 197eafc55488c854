"""Shards through the encoder: forward passes of bounded size, reduced to words inside the attention function."""

import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import torch
from torch import Tensor

from attention.alignment import Pieces, most_central, reduce, reduction
from attention.encoder import Encoder
from attention.specification import Items, Options
from attention.store import StoreError, pack_weights, tensor_name

Pass = tuple[int, list[tuple[int, int]]]
Kept = list[tuple[Tensor, ...]]

Job = TypeVar("Job")
Result = TypeVar("Result")

BATCH_PIECES = {"cpu": 512, "cuda": 16384}
"""Bound of one forward pass by kind of device, padding included: what keeps a core's caches and a GPU's cores busy."""
BATCH_CELLS = {"cpu": 2**16, "cuda": 2**22}
"""Bound of pieces × pieces, padding included: what keeps the weights of one layer small."""
WORKERS = 8  # most forward passes at once on a CPU
MEMORY = {"cpu": 2 << 30, "cuda": 8 << 30}
"""Bound in bytes of what is kept of all passes in flight. A single input may take more."""

_ROW_TOLERANCE = 1e-3
_STATM = Path("/proc/self/statm")


def shapes(items: Items, shard: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a shard in their order: shapes by the name `<quantity>.<item>`."""
    return {
        tensor_name(quantity, item): shape
        for item in items.shards[shard]
        for quantity, shape in items.shapes(item).items()
    }


def extract(encoder: Encoder, items: Items, shards: Iterable[int]) -> Generator[tuple[int, str, Tensor], None, None]:
    """Yield shard, name and tensor of everything that the shards hold, in the order of `shapes`.

    Raises:
        StoreError: a row that does not sum to one, or a hidden state that is too large for the precision.
    """
    jobs = ((shard, batch) for shard in shards for batch in batches(items, shard, encoder.device.type))
    allowance = Allowance()
    for (shard, batch), found in passes(encoder, items, jobs):
        for (item, part), blocks in zip(batch, found, strict=True):
            cut, kept = items.inputs[item], items.shapes(item)
            if len(cut) > 1:
                if part == 0:  # an item's parts follow one another: there is never more than one such item
                    whole = tuple(block.new_zeros(shape) for block, shape in zip(blocks, kept.values(), strict=True))
                    owners = most_central(cut, items.words(item))
                own = torch.from_numpy((owners == part).nonzero()[0])
                _place(whole[0], blocks[0], cut[part], own)
                for target, block in zip(whole[1:], blocks[1:], strict=True):
                    target[:, own] = block[:, own - cut[part].first]
                blocks = whole
            if part == len(cut) - 1:
                for quantity, block in zip(kept, blocks, strict=True):
                    yield shard, tensor_name(quantity, item), block
        allowance.check()


def passes(encoder: Encoder, items: Items, jobs: Iterable[Pass]) -> Generator[tuple[Pass, Kept], None, None]:
    """Forward passes over (item, part) pairs of shards: what is kept of each, in order, on the CPU."""
    on_gpu = encoder.device.type == "cuda"

    def compute(job: Pass) -> Kept:
        _, batch = job
        parts = [items.inputs[item][part] for item, part in batch]
        # The current GPU is a thread's own, and some kernels look at nothing else.
        with torch.cuda.device(encoder.device) if on_gpu else nullcontext():
            attention, hidden = forward(encoder, parts, items)
            kept = [items.select(batch, attention)]
            if items.hidden.layers:
                kept.append([of[:, : part.words] for of, part in zip(hidden.cpu(), parts, strict=True)])
            return list(zip(*kept, strict=True))

    return in_order(compute, jobs, _workers(encoder, items))


def _workers(encoder: Encoder, items: Items) -> int:
    if encoder.device.type != "cpu" or not encoder.reentrant:
        return 1
    longest = max(len(part) for cut in items.inputs for part in cut)
    # Of every pass there may be a result that waits beside the one that is computed.
    fit = MEMORY["cpu"] // (2 * _bytes(items, longest, longest))
    return max(min(torch.get_num_threads(), WORKERS, fit), 1)


def _bytes(items: Items, pieces: int, longest: int) -> int:
    """Bytes that are kept of a pass over so many pieces, in inputs that are padded to `longest`."""
    # Reduced weights of every pair of pieces twice, four intermediate results of a layer, reduced states twice.
    weights = len(items.layers) * len(items.heads) * 2 * 4 + len(items.heads) * 4 * 4
    return pieces * (longest * weights + len(items.hidden.layers) * items.hidden.size * 2 * 4)


def batches(items: Items, shard: int, device: str) -> Iterator[list[tuple[int, int]]]:
    """Cut the (item, part) pairs of a shard into forward passes within the bounds of a kind of device."""
    bounds = (BATCH_PIECES, BATCH_CELLS, MEMORY)
    most_pieces, most_cells, memory = (bound.get(device, bound["cuda"]) for bound in bounds)
    # For the most workers there can be, so that the cut, and with it every bit, does not depend on the machine.
    room = memory // (2 * (WORKERS if device == "cpu" else 1))
    batch: list[tuple[int, int]] = []
    longest = 0
    for item in items.shards[shard]:
        for part, pieces in enumerate(items.inputs[item]):
            longest = max(longest, len(pieces))
            size = (len(batch) + 1) * longest
            full = size > most_pieces or size * longest > most_cells or _bytes(items, size, longest) > room
            if batch and full:
                yield batch
                batch, longest = [], len(pieces)
            batch.append((item, part))
    yield batch


def pad(parts: Sequence[Pieces], encoder: Encoder) -> dict[str, Tensor]:
    """The model's inputs, padded on the right: `input_ids` and `attention_mask`, int64 `[batch, pieces]`."""
    ids = torch.full((len(parts), max(map(len, parts))), encoder.pad_id)
    mask = torch.zeros_like(ids)
    for index, part in enumerate(parts):
        ids[index, : len(part)] = torch.from_numpy(part.ids)
        mask[index, : len(part)] = 1
    return {"input_ids": ids.to(encoder.device), "attention_mask": mask.to(encoder.device)}


def forward(encoder: Encoder, parts: Sequence[Pieces], items: Items) -> tuple[Tensor, Tensor]:
    """One forward pass, reduced to words layer by layer, on the encoder's device.

    Returns:
        Attention `[batch, layers, heads, positions, positions]`, packed as `attention.store.pack_weights` says, and
        hidden states `[batch, layers', words, size]`, which are not zero behind the words of a shorter input.
    """
    options, states = items.extraction.options, items.hidden
    rows, columns = reduction(parts, options.from_pieces, encoder.device)
    batch, _, positions, _ = rows.shape
    empty = partial(torch.empty, dtype=options.dtype, device=encoder.device)
    reduced = empty(batch, len(items.layers), len(items.heads), positions, positions)
    hidden = empty(batch, len(states.layers), positions - 2, states.size)
    every = len(items.heads) == encoder.heads
    real, means = rows.sum(3), rows[:, 0, 1:-1]
    largest = torch.zeros(len(states.layers), device=encoder.device)
    rows = rows.expand(-1, len(items.heads), -1, -1).contiguous()
    worst = torch.zeros((), device=encoder.device)

    def receive(layer: int, weights: Tensor) -> None:
        nonlocal worst
        words = reduce(weights if every else weights[:, list(items.heads)], rows, columns)
        worst = torch.maximum(worst, (words.sum(3) - real).abs().max())
        reduced[:, items.layers.index(layer)] = pack_weights(words, options.dtype)

    def receive_state(number: int, state: Tensor) -> None:
        words, place = means @ state, states.layers.index(number)
        largest[place] = words.abs().max()
        hidden[:, place] = words

    encoder.capture(pad(parts, encoder), receive, frozenset(items.layers), receive_state, frozenset(states.layers))
    if not float(worst) <= _ROW_TOLERANCE:  # also when it is not a number
        raise StoreError(f"{encoder.source.spec.name}: a row of attention sums to 1 ± {float(worst):.1e}.")
    if states.layers:
        _check_range(largest, states.layers, encoder, options)
    return reduced, hidden


def _check_range(largest: Tensor, layers: Sequence[int], encoder: Encoder, options: Options) -> None:
    """Refuse hidden states that are not finite, or not in the precision of the store."""
    name = encoder.source.spec.name
    for layer, value, stored in zip(layers, largest.tolist(), largest.to(options.dtype).tolist(), strict=True):
        if not isfinite(value):
            raise StoreError(f"{name}: a hidden state of layer {layer} is not a finite number.")
        if not isfinite(stored):
            raise StoreError(
                f"{name}: the hidden states of layer {layer} reach {value:.4g}, and {options.precision} ends at "
                f"{torch.finfo(options.dtype).max:.0f}. Keep them in single precision: "
                f"--data.init_args.options.precision float32."
            )


def _place(target: Tensor, block: Tensor, part: Pieces, own: Tensor) -> None:
    """Copy the rows of a part's own words; the sentence's delimiters come from its first and last part."""
    words = target.size(-1) - 2
    sources = own - part.first + 1
    if part.first == 0:
        sources = torch.cat([torch.tensor([0]), sources])
    if part.first + part.words == words:
        sources = torch.cat([sources, torch.tensor([part.words + 1])])
    columns = torch.arange(part.words + 2) + part.first
    columns[0], columns[-1] = 0, words + 1
    rows = torch.where(sources == 0, 0, sources + part.first)
    target[..., rows[:, None], columns] = block[..., sources, :]


def in_order(
    compute: Callable[[Job], Result], jobs: Iterable[Job], workers: int
) -> Generator[tuple[Job, Result], None, None]:
    """Every job with its result, in order, `workers` of them computed at once on an equal share of the threads.

    A forward pass on each core keeps a CPU busier than one pass at a time on all of them. While the caller looks at a
    result, at most `workers` others exist, or are about to.
    """
    threads = torch.get_num_threads()
    share = max(threads // workers, 1)
    pending: deque[tuple[Job, Future[Result]]] = deque()
    try:
        with ThreadPoolExecutor(workers, "forward", torch.set_num_threads, (share,)) as pool:
            for job in jobs:
                if len(pending) > workers:
                    done, future = pending.popleft()
                    yield done, future.result()
                pending.append((job, pool.submit(compute, job)))
            while pending:
                done, future = pending.popleft()
                yield done, future.result()
    finally:
        torch.set_num_threads(threads)  # threads that are started later take over what any thread has set last


def return_free_memory() -> None:
    """Give back what allocators keep: no batch is like the one before, and memory would creep up with the corpus."""
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)  # glibc's; other C libraries keep less


class Allowance:
    """Lets memory grow by so many bytes before what is free of it is given back.

    Giving back after every batch would cost the next one as many page faults as it has pages.
    """

    def __init__(self, growth: int = 48 << 20) -> None:
        self._growth, self._before = growth, _anonymous_bytes()

    def check(self) -> None:
        """Give free memory back if the process has grown by more than it may."""
        if _anonymous_bytes() - self._before > self._growth:
            return_free_memory()
            self._before = _anonymous_bytes()


def _anonymous_bytes() -> int:
    """Resident memory that no file stands behind; 0 where the system does not say."""
    try:
        _, resident, shared, *_ = map(int, _STATM.read_text().split())
    except OSError:
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
