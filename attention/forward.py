"""Shards through the encoder: forward passes of bounded size, reduced to words inside the attention function."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention.alignment import Pieces, most_central, reduce, reduction
from attention.encoder import Encoder
from attention.memory import Allowance
from attention.options import Options, StoreError
from attention.parallel import in_order
from attention.plan import Plan
from attention.store import pack_weights, tensor_name

BATCH_PIECES = {"cpu": 512, "cuda": 16384}
"""Bound of one forward pass by kind of device, padding included: what keeps a core's caches and a GPU's cores busy."""
BATCH_CELLS = {"cpu": 2**16, "cuda": 2**22}
"""Bound of pieces × pieces, padding included: what keeps the weights of one layer small."""
WORKERS = 8
"""Most forward passes at once on a CPU."""
MEMORY = {"cpu": 2 << 30, "cuda": 8 << 30}
"""Bytes that what is kept of all passes in flight may take, unless that of one window alone is more."""

_ROW_TOLERANCE = 1e-3


def shapes(planned: Plan, shard: int) -> dict[str, tuple[int, ...]]:
    """What a shard holds, in its order: `<quantity>.<item>`, shaped as the plan says."""
    return {
        tensor_name(quantity, item): shape
        for item in _longest_first(planned, shard)
        for quantity, shape in planned.shapes(item).items()
    }


def extract(
    encoder: Encoder, planned: Plan, shards: Iterable[int], options: Options
) -> Generator[tuple[int, str, Tensor], None, None]:
    """Shard, name and tensor of everything the shards hold, by the `shapes` of each and in the order of those.

    Raises:
        StoreError: a row that does not sum to one, or a hidden state that is too large for the precision.
    """
    on_gpu = encoder.device.type == "cuda"

    def compute(job: tuple[int, list[tuple[int, int]]]) -> list[tuple[Tensor, ...]]:
        _, batch = job
        parts = [planned.windows[item][part] for item, part in batch]
        # The current GPU is a thread's own, and some kernels look at nothing else.
        with torch.cuda.device(encoder.device) if on_gpu else nullcontext():
            reduced = forward(encoder, parts, planned, options)
            kept = [planned.select(batch, reduced.attention)]
            if planned.hidden.layers:
                states = reduced.hidden.cpu()
                kept.append([of[:, : part.words] for of, part in zip(states, parts, strict=True)])
            return list(zip(*kept, strict=True))

    jobs = ((shard, batch) for shard in shards for batch in batches(planned, shard, encoder.device.type))
    allowance = Allowance()
    for (shard, batch), found in in_order(compute, jobs, _workers(encoder, planned)):
        for (item, part), blocks in zip(batch, found, strict=True):
            cut, kept = planned.windows[item], planned.shapes(item)
            if len(cut) > 1:
                if part == 0:  # an item's windows follow one another: there is never more than one such item
                    whole = tuple(block.new_zeros(shape) for block, shape in zip(blocks, kept.values(), strict=True))
                    owners = most_central(cut, cut[-1].first + cut[-1].words)
                _place(whole[0], blocks[0], cut[part], owners == part)
                for target, block in zip(whole[1:], blocks[1:], strict=True):
                    _place_states(target, block, cut[part], owners == part)
                blocks = whole
            if part == len(cut) - 1:
                for quantity, block in zip(kept, blocks, strict=True):
                    yield shard, tensor_name(quantity, item), block
        allowance.check()


def _workers(encoder: Encoder, planned: Plan) -> int:
    if encoder.device.type != "cpu" or not encoder.reentrant:
        return 1
    longest = max(len(window) for cut in planned.windows for window in cut)
    # Of every pass there may be a result that waits beside the one that is computed.
    fit = MEMORY["cpu"] // (2 * _bytes(planned, longest, longest))
    return max(min(torch.get_num_threads(), WORKERS, fit), 1)


def _bytes(planned: Plan, pieces: int, longest: int) -> int:
    """What is kept of a pass over so many pieces takes, in windows of at most `longest`.

    Of every pair of pieces its reduced weights twice over, and four intermediate results of one layer; of every piece
    its reduced hidden states twice over.
    """
    weights = len(planned.layers) * len(planned.heads) * 2 * 4 + len(planned.heads) * 4 * 4
    return pieces * (longest * weights + len(planned.hidden.layers) * planned.hidden.size * 2 * 4)


def batches(planned: Plan, shard: int, device: str) -> Iterator[list[tuple[int, int]]]:
    """Cut the (item, window) pairs of a shard into forward passes within the bounds of a kind of device."""
    bounds = (BATCH_PIECES, BATCH_CELLS, MEMORY)
    most_pieces, most_cells, memory = (bound.get(device, bound["cuda"]) for bound in bounds)
    # For the most workers there can be, so that the cut, and with it every bit, does not depend on the machine.
    room = memory // (2 * (WORKERS if device == "cpu" else 1))
    batch: list[tuple[int, int]] = []
    longest = 0
    for item in _longest_first(planned, shard):
        for part, window in enumerate(planned.windows[item]):
            longest = max(longest, len(window))
            size = (len(batch) + 1) * longest
            full = size > most_pieces or size * longest > most_cells or _bytes(planned, size, longest) > room
            if batch and full:
                yield batch
                batch, longest = [], len(window)
            batch.append((item, part))
    yield batch


def _longest_first(planned: Plan, shard: int) -> list[int]:
    """The items of a shard, so that those of a forward pass are of about one length."""
    return sorted(planned.items(shard), key=lambda item: -max(map(len, planned.windows[item])))


def pad(parts: Sequence[Pieces], encoder: Encoder) -> dict[str, Tensor]:
    """The model's inputs, padded on the right: `input_ids` and `attention_mask`, int64 `[batch, pieces]`."""
    ids = torch.full((len(parts), max(map(len, parts))), encoder.pad_id)
    mask = torch.zeros_like(ids)
    for index, part in enumerate(parts):
        ids[index, : len(part)] = torch.from_numpy(part.ids)
        mask[index, : len(part)] = 1
    return {"input_ids": ids.to(encoder.device), "attention_mask": mask.to(encoder.device)}


@dataclass(frozen=True)
class Reduced:
    """One forward pass over words, on the encoder's device.

    Attributes:
        attention: `[batch, layers, heads, slots, slots]`, packed as `attention.store.pack_weights` says.
        hidden: `[batch, layers', words, size]`; not zero behind the words of a shorter window.
    """

    attention: Tensor
    hidden: Tensor


def forward(encoder: Encoder, parts: Sequence[Pieces], planned: Plan, options: Options) -> Reduced:
    """One forward pass, reduced layer by layer.

    Raises:
        StoreError: a row that does not sum to one, or a hidden state that is too large for the precision.
    """
    rows, columns = reduction(parts, options.from_pieces, encoder.device)
    slots = rows.size(2)
    reduced = torch.empty(
        len(parts), len(planned.layers), len(planned.heads), slots, slots, dtype=options.dtype, device=encoder.device
    )
    every = len(planned.heads) == encoder.heads
    real = rows.sum(3)
    states, means = planned.hidden, rows[:, 0, 1:-1]
    hidden = torch.empty(
        len(parts), len(states.layers), slots - 2, states.size, dtype=options.dtype, device=encoder.device
    )
    largest = torch.zeros(len(states.layers), device=encoder.device)
    rows = rows.expand(-1, len(planned.heads), -1, -1).contiguous()
    worst = torch.zeros((), device=encoder.device)

    def receive(layer: int, weights: Tensor) -> None:
        nonlocal worst
        words = reduce(weights if every else weights[:, list(planned.heads)], rows, columns)
        worst = torch.maximum(worst, (words.sum(3) - real).abs().max())
        reduced[:, planned.layers.index(layer)] = pack_weights(words, options.dtype)

    def receive_state(number: int, state: Tensor) -> None:
        words, place = means @ state, states.layers.index(number)
        largest[place] = words.abs().max()
        hidden[:, place] = words

    encoder.capture(pad(parts, encoder), receive, frozenset(planned.layers), receive_state, frozenset(states.layers))
    if not float(worst) <= _ROW_TOLERANCE:  # also when it is not a number
        raise StoreError(f"{encoder.source.spec.name}: a row of attention sums to 1 ± {float(worst):.1e}.")
    if states.layers:
        _check_range(largest, states.layers, encoder, options)
    return Reduced(reduced, hidden)


def _check_range(largest: Tensor, layers: Sequence[int], encoder: Encoder, options: Options) -> None:
    """Hidden states are finite, and stay so in the precision of the store."""
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


def _place_states(target: Tensor, block: Tensor, window: Pieces, owned: NDArray[np.bool_]) -> None:
    """Copy the hidden states of a window's own words."""
    words = torch.from_numpy(owned.nonzero()[0])
    target[:, words] = block[:, words - window.first]


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
