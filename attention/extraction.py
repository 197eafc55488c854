"""A corpus through an encoder into a store: shared between ranks, resumable; on one kind of device always the same."""

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import Tensor

from attention.alignment import AlignmentError
from attention.digest import Digests, remove_leftovers, temporary, write_atomically
from attention.encoder import Encoder
from attention.forward import extract, shapes
from attention.memory import return_free_memory
from attention.options import StoreError
from attention.plan import Plan
from attention.request import Request, key
from attention.shard import write_shard
from attention.store import FORMAT, MANIFEST, Manifest, Part, Store, find_part, seal_part

_POLL_SECONDS = 0.5

console = Console(stderr=True)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ranks:
    """This process among those that extract together.

    Attributes:
        rank: 0-based.
        world: how many there are.
        patience: seconds to wait for another rank's next shard.
    """

    rank: int = 0
    world: int = 1
    patience: float = 1800.0


def prepare(
    request: Request, cache: Path, digests: Digests, encoder: Callable[[], Encoder], ranks: Ranks | None = None
) -> Store:
    """The complete store of a request: opened if it is there, else made, resumed or mended.

    Rank r makes the shards r, r+world, …; then each rank waits for the others by looking at the folder, because a
    collective barrier would time out on a large corpus.

    Args:
        request: what is wanted.
        cache: folder of all stores.
        digests: remembers the hashes of files.
        encoder: loads the encoder; called only when the store is not complete.
        ranks: this process among those that share the work.

    Raises:
        StoreError: it does not fit on the disk or cannot be written there, or another rank stopped.
        AlignmentError: a sentence does not fit the encoder.
    """
    ranks = ranks or Ranks()
    identity = request.identity(digests)
    folder = cache / key(identity)
    if (store := Store.open(folder, digests)) is not None:
        return store
    if ranks.rank == 0:
        _name_earlier(cache, identity)
    corpus = request.read(request.corpus)
    loaded = encoder() if request.encoder is not None else None
    try:
        planned = request.quantity.plan(corpus, loaded, request.options)
    except (AlignmentError, StoreError) as error:
        raise type(error)(f"{request.corpus}: {error}") from error
    with _failed_writes_explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
    parts: list[Part] | None = None
    while parts is None:  # twice when another process took a part of ours for damaged while we replaced it
        if ranks.rank == 0 and find_part(folder, "labels", ".parquet", digests) is None:
            _write_labels(planned, folder, digests)
        if loaded is not None:
            _write_shards(request, planned, folder, digests, loaded, ranks)
        parts = _collect(folder, planned, digests, ranks)
    labels, *shards = parts
    manifest = Manifest(
        key=folder.name,
        identity=identity,
        encoder=loaded.description if loaded is not None else {},
        layers=planned.layers,
        heads=planned.heads,
        delimiters=planned.delimiters,
        items=len(planned),
        audit=planned.audit,
        labels=labels,
        shards=tuple(shards),
        hidden=planned.hidden,
    )
    with _failed_writes_explained(folder):
        write_atomically(folder / MANIFEST, manifest.dump())
    return Store(folder, manifest)


def _name_earlier(cache: Path, identity: Mapping[str, object]) -> None:
    """Say which stores of the same request an earlier version has left."""
    for number in range(1, FORMAT):
        folder = cache / key({**identity, "format": number})
        if folder.is_dir():
            log.warning(
                "%s: kept in format %d by an earlier version, and this one reads format %d: it is extracted anew. The "
                "old folder can be removed.",
                folder,
                number,
                FORMAT,
            )


def _write_labels(planned: Plan, folder: Path, digests: Digests) -> None:
    partial = temporary(folder / "labels.parquet")
    with _failed_writes_explained(folder), _removed_on_failure(partial):
        pq.write_table(planned.labels(), partial, compression="zstd")
        with partial.open("rb") as file:
            sha = hashlib.file_digest(file, "sha256").hexdigest()
        seal_part(partial, sha, "labels", ".parquet", digests)
    return_free_memory()


def _write_shards(
    request: Request, planned: Plan, folder: Path, digests: Digests, encoder: Encoder, ranks: Ranks
) -> None:
    missing = [s for s in range(planned.shards) if find_part(folder, _stem(s), ".safetensors", digests) is None]
    mine = [shard for shard in missing if shard % ranks.world == ranks.rank]
    needed = sum(planned.bytes(shard, request.options) for shard in missing)
    free = shutil.disk_usage(folder).free
    if needed > free:
        kept = "attention and hidden states" if planned.hidden.layers else "attention"
        raise StoreError(
            f"{folder}: {decimal(needed)} are needed for the {kept} of {request.corpus.name}, and {decimal(free)} are "
            f"free. Free {decimal(needed - free)} more, put the stores elsewhere (--data.init_args.cache), or keep "
            f"fewer layers (--data.init_args.options.layers, --data.init_args.hidden)."
        )
    if ranks.rank == 0 and missing:
        console.print(
            f"Extracting {request.corpus.name}: {len(planned)} {planned.unit}, "
            f"{len(missing)} of {planned.shards} shards, {needed / 1e6:.0f} MB of {free / 1e9:.0f} GB free → {folder}",
            highlight=False,
            markup=False,
        )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Progress(*columns, console=console, refresh_per_second=1, transient=True, disable=ranks.rank != 0) as progress,
        ThreadPoolExecutor(max_workers=1) as writer,
        closing(extract(encoder, planned, mine, request.options)) as tensors,
    ):
        task = progress.add_task(planned.unit, total=sum(len(planned.items(shard)) for shard in mine))
        sealed: Future[None] | None = None
        for shard, group in groupby(tensors, key=itemgetter(0)):
            partial = temporary(folder / f"{_stem(shard)}.safetensors")
            with _failed_writes_explained(folder), _removed_on_failure(partial):
                named = _counted(group, planned.quantity, progress, task)
                sha = write_shard(partial, shapes(planned, shard), request.options.dtype, named)
                if sealed is not None:
                    sealed.result()
            return_free_memory()
            # Waiting for the disk goes on while the next shard is computed.
            sealed = writer.submit(seal_part, partial, sha, _stem(shard), ".safetensors", digests)
        with _failed_writes_explained(folder):
            if sealed is not None:
                sealed.result()


def _counted(
    tensors: Iterable[tuple[int, str, Tensor]], quantity: str, progress: Progress, task: TaskID
) -> Iterator[tuple[str, Tensor]]:
    for _, name, tensor in tensors:
        yield name, tensor
        if name.startswith(quantity):  # of which every item has one
            progress.advance(task)


@contextmanager
def _removed_on_failure(partial: Path) -> Iterator[None]:
    try:
        yield
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


def _collect(folder: Path, planned: Plan, digests: Digests, ranks: Ranks) -> list[Part] | None:
    """The labels and all shards, once every rank has done its part; None when one of this rank's own is missing."""
    wanted = [("labels", ".parquet"), *((_stem(shard), ".safetensors") for shard in range(planned.shards))]
    found: list[Part] = []
    deadline = time.monotonic() + ranks.patience
    while len(found) < len(wanted):
        part = find_part(folder, *wanted[len(found)], digests)
        if part is not None:
            found.append(part)
            deadline = time.monotonic() + ranks.patience
        elif max(len(found) - 1, 0) % ranks.world == ranks.rank:
            return None
        elif time.monotonic() > deadline:
            raise StoreError(
                f"{folder}: waited {ranks.patience:.0f} s for {wanted[len(found)][0]}, which another rank was to "
                f"write. Look at that rank's output; a new run goes on with what is finished."
            )
        else:
            time.sleep(_POLL_SECONDS)
    return found
