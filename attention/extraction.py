"""Extraction of a corpus: forward passes whose attention is reduced to words and written to a store.

Forward passes have a bounded size, and are reduced inside the attention function. Any number of processes share the
work on a store, and an interrupted extraction resumes; equal inputs on one kind of device give equal bytes.
"""

import ctypes
import logging
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import groupby
from math import isfinite
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from filelock import FileLock
from rich.console import Console
from rich.filesize import decimal
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attention_probing.attention.alignment import AlignedPieces, reduction
from attention_probing.attention.encoder import LoadedEncoder
from attention_probing.attention.specification import Extraction, Items, Options
from attention_probing.attention.store import (
    LABELS,
    MANIFEST,
    Store,
    find_part,
    pack_weights,
    seal_part,
    store_key,
    tensor_name,
    write_shard,
)
from attention_probing.results.digests import Digests, file_digest
from attention_probing.results.errors import UserError, lacks_memory, pluralize, setting
from attention_probing.results.files import remove_leftovers, temporary_path, write_atomically
from attention_probing.results.locks import POLL, claim_missing, release
from attention_probing.results.memory import anonymous_bytes
from attention_probing.results.progress import Progress, is_logged

StoredTensors = list[tuple[Tensor, ...]]
"""Stored tensors of each item of a pass, by quantity."""

Job = TypeVar("Job")
ItemOutput = TypeVar("ItemOutput")

BATCH_PIECES = {"cpu": 512, "cuda": 16384}
"""Largest number of pieces of a forward pass by kind of device, padding included: a core's caches, a GPU's cores."""
BATCH_CELLS = {"cpu": 2**16, "cuda": 2**22}
"""Largest number of pieces × pieces, padding included: it bounds the weights of a layer."""
WORKERS = 8  # largest number of concurrent forward passes on a CPU
GROWTH = 48 << 20
"""Bytes by which a process may grow in the loop over passes before it gives free memory back to the system."""
MEMORY = {"cpu": 2 << 30, "cuda": 8 << 30}
"""Largest size in bytes of the tensors that all concurrent passes keep. A single input may take more."""

_ROW_TOLERANCE = 1e-3

console = Console(stderr=True)
log = logging.getLogger(__name__)


def is_reentrant(encoder: LoadedEncoder) -> bool:
    """Return True if two threads may run the encoder at once.

    They may not if a forward pass changes the frequencies of rotary positions (dynamic scaling, LongRoPE).
    """
    kinds = [str(getattr(module, "rope_type", "")) for module in encoder.model.modules()]
    return not any("dynamic" in kind or "longrope" in kind for kind in kinds)


def shapes(items: Items, shard: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a shard by its name, `<quantity>.<item>`, in the order of the file.

    A shard is one file of tensors of a store.

    Args:
        items: The items of the store.
        shard: 0-based index of the shard.
    """
    by_name = {}
    for item in items.shards[shard]:
        for quantity, shape in items.shapes(item).items():
            by_name[tensor_name(quantity, item)] = shape
    return by_name


def extract(
    encoder: LoadedEncoder, items: Items, shards: Iterable[int]
) -> Generator[tuple[int, str, Tensor], None, None]:
    """Run the encoder over the items of some shards, and yield the tensors to store.

    The tensors of a shard come in the order of `shapes`.

    Args:
        encoder: The encoder.
        items: The items of the store.
        shards: 0-based indices of the shards.

    Yields:
        Index of the shard, name of the tensor, and the tensor.

    Raises:
        UserError: A row of attention does not sum to one, or a hidden state is too large for the precision.
    """
    if items.extraction.options.measured.needs_parts:
        _ = encoder.parts  # found in a forward pass that no other thread may disturb

    def passes() -> Iterator[tuple[int, list[int]]]:
        for shard in shards:
            for batch in batches(items, items.shards[shard], encoder.device.type):
                yield shard, batch

    def run(shard_and_batch: tuple[int, list[int]]) -> StoredTensors:
        return run_pass(encoder, items, shard_and_batch[1], torch.device("cpu"))

    allowance = Allowance()
    for (shard, batch), tensors_of_items in in_order(run, passes(), workers_of(encoder, items)):
        for item, tensors in zip(batch, tensors_of_items, strict=True):
            for quantity, tensor in zip(items.shapes(item), tensors, strict=True):
                yield shard, tensor_name(quantity, item), tensor
            allowance.check()


def run_pass(encoder: LoadedEncoder, items: Items, batch: Sequence[int], device: torch.device) -> StoredTensors:
    """Run one forward pass over some items; return the tensors to store for each.

    They are the attention and, if the store has any, the hidden states.

    Args:
        encoder: The encoder.
        items: The items of the store.
        batch: 0-based indices of the items to read.
        device: Device of the returned tensors.

    Raises:
        UserError: The memory does not suffice for a single input; see also `extract`.
    """
    return within_memory(partial(_run_whole, encoder, items, device), encoder, items, batch)


def within_memory(
    run: Callable[[Sequence[int]], list[ItemOutput]], encoder: LoadedEncoder, items: Items, batch: Sequence[int]
) -> list[ItemOutput]:
    """Run a forward pass over some items, and return the result of each item.

    If the memory does not suffice, each half of the items is read in a pass of its own, and so on.

    Args:
        run: Function that runs a pass over items, given by their indices, and returns a result for each.
        encoder: The encoder.
        items: The items.
        batch: 0-based indices of the items to read.

    Raises:
        UserError: The memory does not suffice for a single input.
    """
    try:
        return run(batch)
    except RuntimeError as error:  # of a CPU; torch.OutOfMemoryError is one too
        if not lacks_memory(error):
            raise
    # Outside of the handler, whose traceback keeps the tensors of the pass.
    if encoder.device.type == "cuda":
        torch.cuda.empty_cache()
    if len(batch) == 1:
        pieces = pluralize(len(items.inputs[batch[0]]), "piece")
        raise UserError(
            f"{items.extraction.corpus}: one input of {pieces} does not fit into the memory of {encoder.device}. Keep "
            f"fewer layers ({setting('data.options.layers')}), a smaller type "
            f"({setting('data.encoder.dtype', 'bfloat16')}), or cut the input."
        )
    encoder.halved += 1
    log.warning("%s inputs do not fit into the memory of %s at once: the batch is halved.", len(batch), encoder.device)
    half = len(batch) // 2
    first = within_memory(run, encoder, items, batch[:half])
    return first + within_memory(run, encoder, items, batch[half:])


def _run_whole(encoder: LoadedEncoder, items: Items, device: torch.device, batch: Sequence[int]) -> StoredTensors:
    parts = [items.inputs[item] for item in batch]
    with use_device(encoder.device):
        attention, hidden = forward(encoder, parts, items)
        if items.extraction.candidates is None:
            attention = attention.to(device)  # all items in one copy; of candidates less than that is kept
        maps = [maps_of_item.to(device) for maps_of_item in items.select(batch, attention)]
        if not items.hidden.layers:
            return [(maps_of_item,) for maps_of_item in maps]
        states = []
        for states_of_item, part in zip(hidden.to(device), parts, strict=True):
            states.append(states_of_item[:, : part.words])
        return list(zip(maps, states, strict=True))


def use_device(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which a GPU is the current one of this thread; some kernels read only this."""
    if device.type == "cuda":
        return torch.cuda.device(device)
    return nullcontext()


def workers_of(encoder: LoadedEncoder, items: Items, device: str = "") -> int:
    """Return the number of forward passes to run at once.

    Args:
        encoder: The encoder.
        items: The items that it reads.
        device: Kind of device, `cpu` or `cuda`; by default that of the encoder.
    """
    kind = device or encoder.device.type
    if kind != "cpu" or not is_reentrant(encoder):
        return 1
    longest = max(map(len, items.inputs))
    # Every worker may have one finished pass beside the running one.
    fit = MEMORY["cpu"] // (2 * _bytes_of_pass(items, longest, longest))
    return max(min(torch.get_num_threads(), WORKERS, fit), 1)


def _bytes_of_pass(items: Items, pieces: int, longest: int) -> int:
    """Return the bytes of the tensors that a pass keeps over `pieces` pieces, in inputs padded to `longest`."""
    # For each pair of pieces: reduced weights twice, and four intermediate results of a layer.
    weights = 2 * len(items.layers) * len(items.heads) + 4 * len(items.heads)
    # For each piece: reduced states twice, and the states of all layers, which transformers returns at the end.
    states = 2 * len(items.hidden.layers) + items.states
    numbers = pieces * (longest * weights + states * items.hidden.size)
    return numbers * 4  # single precision


def batches(items: Items, order: Iterable[int], device: str) -> Iterator[list[int]]:
    """Yield the items of each forward pass over some items; its size is bounded by limits for the kind of device.

    Args:
        items: The items of the store.
        order: Indices of the items, in an order in which neighbours have similar lengths.
        device: Kind of device, `cpu` or `cuda`.
    """
    most_pieces = BATCH_PIECES.get(device, BATCH_PIECES["cuda"])
    most_cells = BATCH_CELLS.get(device, BATCH_CELLS["cuda"])
    # For the largest number of workers, so that the cut, and with it every bit, does not depend on the machine.
    workers = WORKERS if device == "cpu" else 1
    room = MEMORY.get(device, MEMORY["cuda"]) // (2 * workers)
    batch: list[int] = []
    longest = 0
    for item in order:
        length = len(items.inputs[item])
        longest = max(longest, length)
        size = (len(batch) + 1) * longest
        has_too_many_pieces = size > most_pieces or size * longest > most_cells
        if batch and (has_too_many_pieces or _bytes_of_pass(items, size, longest) > room):
            yield batch
            batch = []
            longest = length
        batch.append(item)
    if batch:
        yield batch


def pad(parts: Sequence[AlignedPieces], encoder: LoadedEncoder) -> dict[str, Tensor]:
    """Return the model's inputs for a batch of sentences, padded on the right.

    Args:
        parts: Pieces of each sentence.
        encoder: The encoder.

    Returns:
        `input_ids` and `attention_mask`, int64 `[batch, pieces]`, on the encoder's device.
    """
    ids_of_parts = [torch.from_numpy(part.ids).long() for part in parts]
    ids = pad_sequence(ids_of_parts, batch_first=True, padding_value=encoder.pad_id)
    lengths = torch.tensor([len(part) for part in parts])
    mask = torch.arange(ids.size(1)) < lengths[:, None]
    return {"input_ids": ids.to(encoder.device), "attention_mask": mask.long().to(encoder.device)}


def forward(encoder: LoadedEncoder, parts: Sequence[AlignedPieces], items: Items) -> tuple[Tensor, Tensor]:
    """Run the encoder once on a batch of inputs; return the attention and hidden states of words.

    The attention of each layer is reduced from pieces to words while the pass runs. A position is the
    start delimiter, a word or the end delimiter.

    Args:
        encoder: The encoder.
        parts: The inputs of the pass.
        items: Items of the store, which say what to keep (layers, heads, hidden states and precision).

    Returns:
        Attention `[batch, layers, heads, positions, positions]` in the format of
        `attention.store.pack_weights`, and hidden states `[batch, hidden layers, words, size]`,
        undefined after the last word of a shorter input. Both are on the encoder's device.

    Raises:
        UserError: The attention of a word does not sum to 1, or a hidden state is not finite or exceeds
            the precision of the store.
    """
    options = items.extraction.options
    states = items.hidden
    words = max(part.words for part in parts)
    positions = words + 2
    empty = partial(torch.empty, dtype=options.dtype, device=encoder.device)
    reduced = empty(len(parts), len(items.layers), len(items.heads), positions, positions)
    hidden = empty(len(parts), len(states.layers), words, states.size)
    largest = torch.zeros(len(states.layers), device=encoder.device)

    def keep(place: int, packed: Tensor) -> None:
        reduced[:, place] = packed

    def keep_state(place: int, words: Tensor) -> None:
        largest[place] = words.abs().max()
        hidden[:, place] = words

    read_layers(encoder, parts, items, keep, keep_state if states.layers else None)
    if states.layers:
        _check_range(largest, states.layers, encoder, options)
    return reduced, hidden


def read_layers(
    encoder: LoadedEncoder,
    parts: Sequence[AlignedPieces],
    items: Items,
    keep: Callable[[int, Tensor], None],
    keep_state: Callable[[int, Tensor], None] | None = None,
) -> None:
    """Run the encoder once on a batch of inputs, and pass on what is measured between words, layer by layer.

    Args:
        encoder: The encoder.
        parts: The inputs of the pass.
        items: Items of the store, which say what is measured.
        keep: Called with the index of each layer of `items.layers` and its maps between words `[batch, heads,
            positions, positions]`, in the format of `pack_weights`.
        keep_state: Called with the index of each hidden state of `items.hidden` and the states of words `[batch, words,
            size]`; None for no hidden states.

    Raises:
        UserError: The attention of a word does not sum to 1.
    """
    options = items.extraction.options
    measured = options.measured
    states = items.hidden.layers if keep_state else ()
    factors = reduction(parts, options.from_pieces, encoder.device)
    sums = factors.rows.sum(3)  # 1, and 0 in the padding
    means = factors.rows[:, 0, 1:-1]
    rows_by_head = factors.rows.expand(-1, len(items.heads), -1, -1).contiguous()
    factors = replace(factors, rows=rows_by_head)
    inputs = pad(parts, encoder)
    layer_parts = encoder.parts if measured.needs_parts else {}
    quantity = measured(layer_parts, inputs["attention_mask"].bool(), factors)
    heads_of_layer = encoder.heads if measured.has_heads else 1
    has_all_heads = len(items.heads) == heads_of_layer
    worst = torch.zeros((), device=encoder.device)

    def find_faults(words: Tensor) -> Tensor:
        if quantity.sums_to_one:
            return words.sum(3) - sums
        return words - words  # not 0 if it is not finite

    def receive(layer: int, maps: Tensor) -> None:
        nonlocal worst
        if not has_all_heads:
            maps = maps[:, list(items.heads)]
        words = quantity.words(maps)
        worst = torch.maximum(worst, largest_fault(find_faults(words), encoder, options))
        keep(items.layers.index(layer), pack_weights(words, options.dtype))

    def receive_state(number: int, state: Tensor) -> None:
        assert keep_state is not None
        keep_state(states.index(number), means @ state.float())

    encoder.capture(
        inputs,
        receive,
        frozenset(items.layers),
        receive_state,
        frozenset(states),
        measure=quantity.maps,
        lower=quantity.needs_lower,
    )
    check_sums(worst, encoder, options)


def largest_fault(off: Tensor, encoder: LoadedEncoder, options: Options) -> Tensor:
    """Return the largest fault among differences of sums from 1; below 0 for none.

    With sinks, sums of attention may be less than 1.
    """
    if encoder.has_sinks and options.quantity == "attention":
        return off.max()
    return off.abs().max()


def check_sums(worst: Tensor, encoder: LoadedEncoder, options: Options) -> None:
    """Raise UserError if a row of what is measured does not sum to 1.

    Args:
        worst: Largest number that `largest_fault` returned, at least 0; nan if a number is not finite.
        encoder: The encoder.
        options: The quantity.
    """
    if not float(worst) <= _ROW_TOLERANCE:  # also when it is not a number
        kind = f"numbers of {options.quantity}"
        remedy = "quantity, or other layers"
        if options.quantity == "attention":
            kind = "attention weights"
            remedy = "encoder"
        fault = f"the {kind} of a word must sum to 1, but one sum is off by {float(worst):.1e}"
        if worst.isnan():
            fault = f"the model computes {kind} that are nan"
        raise UserError(f"{encoder.source.spec.name}: {fault}. Choose another {remedy}.")


def _check_range(largest: Tensor, layers: Sequence[int], encoder: LoadedEncoder, options: Options) -> None:
    """Raise UserError for hidden states that are not finite, or exceed the precision of the store."""
    name = encoder.source.spec.name
    most = torch.finfo(options.dtype).max
    as_stored = largest.to(options.dtype).tolist()
    for layer, value, stored in zip(layers, largest.tolist(), as_stored, strict=True):
        if not isfinite(value):
            raise UserError(f"{name}: a hidden state of layer {layer} is {value}, not finite. Choose another encoder.")
        if not isfinite(stored):
            raise UserError(
                f"{name}: the hidden states of layer {layer} reach {value:.4g}, but {options.precision} ends at "
                f"{most:.0f}. Use single precision: {setting('data.options.precision', 'float32')}."
            )


def in_order(
    compute: Callable[[Job], ItemOutput], jobs: Iterable[Job], workers: int
) -> Generator[tuple[Job, ItemOutput], None, None]:
    """Call a function on every job in parallel threads; yield (job, result) pairs in the order of the jobs.

    Each thread gets an equal share of PyTorch's threads: one forward pass on each core keeps a CPU
    busier than one pass on all cores.

    Args:
        compute: The function.
        jobs: Its arguments.
        workers: Number of threads. While the caller handles one result, at most `workers` further
            results exist or are being computed.
    """
    threads = torch.get_num_threads()
    share = max(threads // workers, 1)
    pending: deque[tuple[Job, Future[ItemOutput]]] = deque()
    torch.set_num_threads(share)  # of the caller too: its threads would spin on cores that the passes need
    try:
        with ThreadPoolExecutor(workers, "forward", torch.set_num_threads, (share,)) as pool:
            for job in jobs:
                pending.append((job, pool.submit(compute, job)))
                if len(pending) > workers:
                    oldest_job, future = pending.popleft()
                    yield oldest_job, future.result()
            while pending:  # taken off one by one: a future keeps the tensors of its batch
                oldest_job, future = pending.popleft()
                yield oldest_job, future.result()
    finally:
        torch.set_num_threads(threads)  # later threads inherit the number that any thread has set last


def return_free_memory() -> None:
    """Return memory that the allocators of this process hold but do not use to the operating system.

    Without this, the unused memory would grow, because batches vary in shape.
    """
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # glibc's; other C libraries keep less
            trim(0)


class Allowance:
    """Monitor that returns free memory to the system when the process has grown by `growth` bytes.

    Call `check` after each batch. To return memory after every batch would be slow: the next batch
    would cause a page fault for each of its pages.

    Args:
        growth: Bytes by which the process may grow before free memory is returned.
    """

    def __init__(self, growth: int = GROWTH) -> None:
        self._growth = growth
        self._before = anonymous_bytes()

    def check(self) -> None:
        """Give free memory back to the system if the process has grown by more than `growth` bytes.

        Growth is measured since memory was last given back, or since the start.
        """
        if anonymous_bytes() - self._before > self._growth:
            return_free_memory()
            self._before = anonymous_bytes()


def open_store(extraction: Extraction, cache: Path, digests: Digests) -> Store | None:
    """Open the store of an extraction; return None if it is missing, incomplete or damaged.

    Args:
        extraction: Corpus, encoder and settings, which determine the name of the store.
        cache: Folder of all stores.
        digests: Cache of the SHA-256 of files.

    Raises:
        UserError: A damaged file cannot be removed.
    """
    return Store.open(cache / store_key(extraction.identity(digests)), digests)


def make_store(items: Items, cache: Path, digests: Digests, encoder: LoadedEncoder | None = None) -> Store:
    """Make, resume or repair the store of a corpus, and return it open.

    Several processes, of one run or of several, may make one store at the same time: each takes shards that no other
    holds, until all are there.

    Args:
        items: Items of the corpus, cut into the encoder's pieces.
        cache: Folder of all stores.
        digests: Cache of the SHA-256 of files.
        encoder: The encoder; None makes a store without attention, which holds only the words of the
            items with their trees or mentions.

    Raises:
        UserError: The store does not fit on the disk or cannot be written.
    """
    identity = items.extraction.identity(digests)
    folder = cache / store_key(identity)
    stems = [LABELS, *(f"{shard:05d}" for shard in range(len(items.shards)))]
    advance = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        while None in (parts := [find_part(folder, stem, digests) for stem in stems]):
            missing = [shard for shard, part in enumerate(parts[1:]) if part is None]
            if parts[0] is None:
                _write_labels(items, folder, digests)
            elif encoder is not None:
                if advance is None:
                    advance = _announce(items, folder, missing)
                if not _write_unheld(items, folder, digests, encoder, missing, advance):
                    time.sleep(POLL)  # other processes hold all that is missing
        remove_leftovers(folder)  # of processes that have ended since, whose shards this one took
        manifest = items.manifest(identity, encoder, *filter(None, parts))
        write_atomically(folder / MANIFEST, manifest.dump())
    except OSError as error:
        raise UserError(
            f"{folder}: the store cannot be written ({error.strerror or error}). Check permissions and disk, "
            f"then run again (finished shards are kept); or put the stores elsewhere ({setting('data.cache')})."
        ) from error
    return Store(folder, manifest)


def _write_labels(items: Items, folder: Path, digests: Digests) -> None:
    with _temporary(folder / f"{LABELS}.parquet") as path:
        pq.write_table(items.labels, path, compression="zstd")
        seal_part(path, file_digest(path), LABELS, ".parquet", digests)
    return_free_memory()


def _announce(items: Items, folder: Path, missing: Sequence[int]) -> Callable[[], None]:
    """Print what the missing shards need; return a function that counts finished items.

    Raises:
        UserError: They do not fit on the disk.
    """
    corpus = items.extraction.corpus
    needed = sum(map(items.bytes, missing))
    free = shutil.disk_usage(folder).free
    if needed > free:
        content = "attention and hidden states" if items.hidden.layers else "attention"
        raise UserError(
            f"{folder}: storing the {content} of {corpus.name} needs {decimal(needed)}, but only {decimal(free)} are "
            f"free. Free {decimal(needed - free)} more, put the stores elsewhere ({setting('data.cache')}), keep fewer "
            f"layers ({setting('data.options.layers')}, {setting('data.hidden')}), or write nothing and compute "
            f"attention whenever it is read ({setting('data.store', 'stream')})."
        )
    if is_logged():
        shards = f"{len(missing)} of {len(items.shards)} shards"
        space = f"{needed / 1e6:.0f} MB of {free / 1e9:.0f} GB free"
        line = f"Extracting {corpus.name}: {len(items)} {items.unit}, {shards}, {space} → {folder}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    total = sum(len(items.shards[shard]) for shard in missing)
    return Progress(f"Extracting {corpus.name}, {items.unit}", total).advance


def _write_unheld(
    items: Items,
    folder: Path,
    digests: Digests,
    encoder: LoadedEncoder,
    missing: Sequence[int],
    advance: Callable[[], None],
) -> int:
    """Write those of some missing shards that no other process is making; return their number."""
    locks: dict[int, FileLock] = {}  # the passes of a shard begin before the shard before it is written

    def claim_shards() -> Iterator[int]:
        checks = {}
        for shard in missing:
            path = folder / f"{shard:05d}.safetensors"
            checks[path] = partial(_is_made, path, digests)
        for path, lock in claim_missing(checks):
            shard = int(path.stem)
            locks[shard] = lock
            yield shard

    dtype = items.extraction.options.dtype
    written = 0
    try:
        with closing(extract(encoder, items, claim_shards())) as tensors:
            for shard, group in groupby(tensors, key=itemgetter(0)):
                with _temporary(folder / f"{shard:05d}.safetensors") as path:
                    sha = write_shard(path, shapes(items, shard), dtype, _count_items(group, advance))
                    seal_part(path, sha, f"{shard:05d}", ".safetensors", digests)
                release(locks.pop(shard))
                written += 1
    finally:
        for lock in locks.values():
            release(lock)
    return written


def _is_made(path: Path, digests: Digests) -> bool:
    return find_part(path.parent, path.stem, digests) is not None


def _count_items(
    tensors: Iterable[tuple[int, str, Tensor]], advance: Callable[[], None]
) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor, and count an item with each of its maps."""
    for _, name, tensor in tensors:
        yield name, tensor
        if not name.startswith("hidden"):  # every item has one other quantity
            advance()


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Yield a temporary file for `path`, which is removed if anything fails."""
    partial_path = temporary_path(path)
    try:
        yield partial_path
    except BaseException:
        partial_path.unlink(missing_ok=True)
        raise
