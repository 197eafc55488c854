"""The most attended words of inputs of any length: a layer's weights never exist as a whole, only blocks of rows.

A decoder of 32 layers of 32 heads has 275 GB of attention to 8,192 tokens, but its most attended words are 0.1 GB.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from attention_probing.attention.alignment import AlignedPieces, PiecelessWords, keep_apart
from attention_probing.attention.capture import LayerCall, Mixture
from attention_probing.attention.encoder import LoadedEncoder
from attention_probing.attention.extraction import Allowance, check_sums, largest_fault, pad, read_layers, use_device
from attention_probing.attention.specification import Items
from attention_probing.attention.store import pack_weights, unpack_weights
from attention_probing.metrics.heads import MostAttended

BLOCK = {"cpu": 1 << 21, "cuda": 1 << 26}
"""Largest number of weights of a layer that exist at once, by kind of device; more if one word alone has more."""


def find_most_attended(encoder: LoadedEncoder, items: Items, batch: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Run the encoder once, and return the most attended words of some sentences, from weights as a store keeps them.

    If a pass reads a single long text, blocks of rows are computed one after the other, provided that the quantity is
    raw attention and the model calls transformers' attention function. They equal the rows of a store up to rounding.

    Args:
        encoder: The encoder.
        items: Sentences of a corpus.
        batch: 0-based indices of the sentences of the pass.

    Returns:
        For each sentence of n words, int32 `[n, 2, layers, heads]` and float32 `[layers, heads, n]`, on the encoder's
        device; see `positions` and `peaks` of `MostAttended`.

    Raises:
        UserError: The attention of a word does not sum to 1.
    """
    parts = [items.inputs[item] for item in batch]
    words = max(part.words for part in parts)
    layers = len(items.layers)
    heads = len(items.heads)
    positions = torch.empty(len(parts), words, 2, layers, heads, dtype=torch.int32, device=encoder.device)
    peaks = torch.empty(len(parts), layers, heads, words, device=encoder.device)
    lengths = torch.tensor([part.words for part in parts], device=encoder.device)

    def keep(place: int, blocks: Iterable[tuple[int, Tensor]]) -> None:
        most = MostAttended(lengths)
        for first, maps in blocks:
            most.add(unpack_weights(maps)[:, None], first)
        positions[:, :, :, place] = most.positions[:, :, :, 0]
        peaks[:, place] = most.peaks[:, 0]

    def keep_whole(place: int, maps: Tensor) -> None:
        keep(place, [(0, maps)])

    is_raw = items.extraction.options.quantity == "attention"
    with use_device(encoder.device):
        if is_raw and len(parts) == 1 and _rows_of(encoder, len(parts[0])) < len(parts[0]):
            _read_blocks(encoder, parts[0], items, keep)
        else:
            read_layers(encoder, parts, items, keep_whole)
    by_item = []
    for place, part in enumerate(parts):
        by_item.append((positions[place, : part.words], peaks[place, ..., : part.words]))
    return by_item


def _rows_of(encoder: LoadedEncoder, pieces: int) -> int:
    """Return the number of rows of a block."""
    return max(BLOCK.get(encoder.device.type, BLOCK["cuda"]) // (encoder.heads * pieces), 1)


def _read_blocks(
    encoder: LoadedEncoder,
    part: AlignedPieces,
    items: Items,
    keep: Callable[[int, Iterable[tuple[int, Tensor]]], None],
) -> None:
    """Run the encoder once, and pass on the attention between words of each layer in blocks; see `read_layers`."""
    options = items.extraction.options
    inputs = pad([part], encoder)
    worst = torch.zeros((), device=encoder.device)
    allowance = Allowance()

    def pack_rows(mixture: Mixture) -> Iterator[tuple[int, Tensor]]:
        nonlocal worst
        first_only = options.from_pieces == "first"
        for first, words in word_rows(mixture, part, items.heads, _rows_of(encoder, len(part)), first_only):
            words = words.to(encoder.device)  # from another one with a device_map
            worst = torch.maximum(worst, largest_fault(words.sum(-1) - 1, encoder, options))
            yield first, pack_weights(words, options.dtype)

    def measure(layer: int, call: LayerCall) -> Tensor:
        keep(items.layers.index(layer), pack_rows(call.mixture))
        allowance.check()
        return worst  # nothing else is kept

    encoder.capture(inputs, lambda *_: None, frozenset(items.layers), measure=measure)
    check_sums(worst, encoder, options)


def word_rows(
    mixture: Mixture, part: AlignedPieces, heads: Sequence[int], most: int, first_only: bool = False
) -> Iterator[tuple[int, Tensor]]:
    """Yield the attention of words, some rows at a time; see `attention.alignment` for the reduction from pieces.

    Args:
        mixture: Attention of one layer to one input, without padding.
        part: Pieces of the input.
        heads: The heads.
        most: Largest number of rows of pieces at once; more if one word has more.
        first_only: True for rows of the first piece of each word, False for the mean over its pieces.

    Yields:
        Position of the first row, and weights `[1, heads, rows, n+2]`. The rows have ascending positions without gaps.
    """
    device = mixture.value.device
    positions = part.words + 2
    places, readers = part.readers
    counts = np.bincount(readers, minlength=positions)
    ends = np.cumsum(counts)
    rows_of = torch.from_numpy(readers).to(device)
    owners = np.arange(positions)
    owners[part.pieceless] = part.positions[part.pieces_before]
    pieceless = PiecelessWords.of_owners(torch.from_numpy(owners)[None]).to(device)
    columns = torch.from_numpy(part.positions).long().to(device)  # with indices of 32 bits PyTorch is ten times slower
    # The tokenizer may write no start delimiter, and no end delimiter.
    low = int(counts[0] == 0)
    last = positions - int(counts[-1] == 0)
    while low < positions and counts[low]:
        start = int(ends[low] - counts[low])
        high = int(np.searchsorted(ends, start + most, side="right"))
        high = min(max(high, low + 1), last)
        end = int(ends[high - 1])
        some = places[start:end]
        weights = mixture.rows(slice(int(some[0]), int(some[-1]) + 1))
        if weights.size(2) < len(some):  # a word without a piece reads with the piece before it
            weights = weights[:, :, torch.from_numpy(some - some[0]).to(device)]
        if len(heads) < weights.size(1):
            weights = weights[:, list(heads)]
        words = weights.new_zeros(*weights.shape[:3], positions).index_add_(3, columns, weights)
        if first_only:
            firsts = ends[low:high] - counts[low:high] - start
            words = words[:, :, torch.from_numpy(firsts).to(device)]
        elif words.size(2) > high - low:
            pieces = torch.from_numpy(counts[low:high]).to(device)
            rows = words.new_zeros(*words.shape[:2], high - low, positions)
            words = rows.index_add_(2, rows_of[start:end] - low, words) / pieces[:, None]
        yield low, keep_apart(words, pieceless, low)
        low = high
