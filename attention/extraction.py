"""A corpus through an encoder into a store: shared between ranks, resumable; on one kind of device always the same."""

import functools
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch import Tensor

from attention.digest import Digests, file_digest
from attention.encoder import Encoder
from attention.forward import extract, return_free_memory, shapes
from attention.specification import Extraction, Items
from attention.store import (
    FORMAT,
    MANIFEST,
    Manifest,
    Part,
    Store,
    StoreError,
    find_part,
    seal_part,
    store_key,
    write_shard,
)
from metrics.progress import Progress, is_logged
from processes import preemption
from processes.ranks import Ranks
from results.files import remove_leftovers, temporary, write_atomically

console = Console(stderr=True)

log = logging.getLogger(__name__)


def open_store(extraction: Extraction, cache: Path, digests: Digests) -> Store | None:
    """The complete store of an extraction below `cache`; None where there is none, or it is damaged.

    Raises:
        StoreError: what is damaged cannot be removed.
    """
    return Store.open(cache / store_key(extraction.identity(digests)), digests)


def make_store(
    items: Items, cache: Path, digests: Digests, encoder: Encoder | None = None, ranks: Ranks | None = None
) -> Store:
    """Make, resume or mend the store of these items.

    Rank r makes the shards r, r+world, …; then each rank waits for the others by looking at the folder, because a
    collective barrier would time out on a large corpus. The encoder is that which the items were cut for; without one
    labels alone are kept.

    Raises:
        LostRank: another rank gives no sign of life.
        StoreError: it does not fit on the disk or cannot be written there.
    """
    ranks = ranks or Ranks()
    identity = items.extraction.identity(digests)
    folder = cache / store_key(identity)
    if ranks.rank == 0:
        _name_earlier(cache, identity)
    with _failed_writes_explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
    parts: list[Part] | None = None
    with ranks.alive(folder):
        while parts is None:  # twice when another process took a part of ours for damaged while we replaced it
            if ranks.rank == 0 and find_part(folder, "labels", ".parquet", digests) is None:
                _write_labels(items, folder, digests)
            if items.inputs:
                assert encoder is not None
                _write_shards(items, folder, digests, encoder, ranks)
            parts = _collect(folder, items, digests, ranks)
    labels, *shards = parts
    manifest = Manifest(
        key=folder.name,
        identity=identity,
        encoder=encoder.description if encoder is not None else {},
        layers=items.layers,
        heads=items.heads,
        delimiters=items.delimiters,
        items=len(items),
        audit=items.audit,
        labels=labels,
        shards=tuple(shards),
        hidden=items.hidden,
    )
    with _failed_writes_explained(folder):
        write_atomically(folder / MANIFEST, manifest.dump())
    return Store(folder, manifest)


def _name_earlier(cache: Path, identity: Mapping[str, object]) -> None:
    """Say which stores of the same extraction an earlier version has left."""
    for number in range(1, FORMAT):
        folder = cache / store_key({**identity, "format": number})
        if folder.is_dir():
            log.warning(
                "%s: kept in format %d by an earlier version, and this one reads format %d: it is extracted anew. The "
                "old folder can be removed.",
                folder,
                number,
                FORMAT,
            )


def _write_labels(items: Items, folder: Path, digests: Digests) -> None:
    with _written(folder / "labels.parquet") as partial:
        pq.write_table(items.labels, partial, compression="zstd")
        seal_part(partial, file_digest(partial), "labels", ".parquet", digests)
    return_free_memory()


def missing_shards(items: Items, folder: Path, digests: Digests) -> list[int]:
    """Numbers of the shards that are not yet in the folder of a store; what is damaged is removed."""
    return [s for s in range(len(items.shards)) if find_part(folder, _stem(s), ".safetensors", digests) is None]


def _write_shards(items: Items, folder: Path, digests: Digests, encoder: Encoder, ranks: Ranks) -> None:
    corpus, dtype = items.extraction.corpus, items.extraction.options.dtype
    shards, missing = items.shards, missing_shards(items, folder, digests)
    mine = [shard for shard in missing if shard % ranks.world == ranks.rank]
    needed = sum(items.bytes(shard) for shard in missing)
    free = shutil.disk_usage(folder).free
    if needed > free:
        kept = "attention and hidden states" if items.hidden.layers else "attention"
        raise StoreError(
            f"{folder}: {decimal(needed)} are needed for the {kept} of {corpus.name}, and {decimal(free)} are "
            f"free. Free {decimal(needed - free)} more, put the stores elsewhere (--data.init_args.cache), or keep "
            f"fewer layers (--data.init_args.options.layers, --data.init_args.hidden)."
        )
    if ranks.rank == 0 and missing and is_logged():
        console.print(
            f"Extracting {corpus.name}: {len(items)} {items.unit}, "
            f"{len(missing)} of {len(shards)} shards, {needed / 1e6:.0f} MB of {free / 1e9:.0f} GB free → {folder}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    drawn, total = ranks.rank == 0 and console.is_terminal and is_logged(), sum(len(shards[shard]) for shard in mine)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Bar(*columns, console=console, refresh_per_second=1, transient=True, disable=not drawn) as bar,
        ThreadPoolExecutor(max_workers=1) as writer,
        closing(extract(encoder, items, mine)) as tensors,
    ):
        task = bar.add_task(items.unit, total=total)
        lines = Progress(f"Extracting {corpus.name}, {items.unit}", total)
        advance = functools.partial(bar.advance, task) if drawn else lines.advance
        sealed: Future[None] | None = None
        for shard, group in groupby(tensors, key=itemgetter(0)):
            preemption.check()
            with _written(folder / f"{_stem(shard)}.safetensors") as partial:
                sha = write_shard(partial, shapes(items, shard), dtype, _counted(group, advance))
                if sealed is not None:
                    sealed.result()
            # Waiting for the disk goes on while the next shard is computed.
            sealed = writer.submit(seal_part, partial, sha, _stem(shard), ".safetensors", digests)
        with _failed_writes_explained(folder):
            if sealed is not None:
                sealed.result()


def _counted(tensors: Iterable[tuple[int, str, Tensor]], advance: Callable[[], None]) -> Iterator[tuple[str, Tensor]]:
    for _, name, tensor in tensors:
        yield name, tensor
        if not name.startswith("hidden"):  # that is the one of attention, of which every item has one
            advance()


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    """A temporary file for `path`, which is removed where anything fails."""
    partial = temporary(path)
    with _failed_writes_explained(path.parent):
        try:
            yield partial
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


@contextmanager
def _failed_writes_explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{folder}: {error.strerror or error}. Finished shards are kept: run again to go on from there, or put the "
            f"stores elsewhere (--data.init_args.cache)."
        ) from error


def _stem(shard: int) -> str:
    return f"{shard:05d}"


def _collect(folder: Path, items: Items, digests: Digests, ranks: Ranks) -> list[Part] | None:
    """The labels and all shards, once every rank has done its part; None when one of this rank's own is missing."""
    wanted = [("labels", ".parquet"), *((_stem(shard), ".safetensors") for shard in range(len(items.shards)))]
    found: list[Part] = []
    for place, (stem, suffix) in enumerate(wanted):
        owner = max(place - 1, 0) % ranks.world
        look = functools.partial(find_part, folder, stem, suffix, digests)
        part = look() if owner == ranks.rank else ranks.wait_for(look, owner, folder / f"{stem}{suffix}")
        if part is None:
            return None
        found.append(part)
    return found
