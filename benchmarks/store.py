"""The store of attention: how soon a second run is ready, and how fast it is read, against a plain memory map.

`python -m benchmarks.store [--json FILE]`
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attention import Store
from attention.store import tensor_name, unpack_weights
from benchmarks.harness import Report, Settings, Treebanks, alternate, command, timed
from benchmarks.job import datamodule
from benchmarks.memory import run_job

READS = 2000


class PlainMap:
    """The same tensors through `numpy.memmap`, their places in the files looked up beforehand."""

    def __init__(self, store: Store) -> None:
        self._places: dict[str, tuple[np.memmap[tuple[int], np.dtype[np.float16]], int, int, list[int]]] = {}
        for part in store.manifest.shards:
            path = store.folder / part.file
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size))
            # Copy-on-write, because PyTorch warns of arrays that cannot be written; reading copies nothing.
            values = np.memmap(path, np.float16, "c", offset=8 + size)
            for name, entry in header.items():
                start, stop = (offset // 2 for offset in entry["data_offsets"])
                self._places[name] = values, start, stop, entry["shape"]

    def read(self, item: int) -> Tensor:
        """What `Store.read("attention", item)` gives."""
        values, start, stop, shape = self._places[tensor_name("attention", item)]
        return unpack_weights(torch.from_numpy(values[start:stop].reshape(shape)))


def total(read: Callable[[int], Tensor], items: Sequence[int]) -> float:
    """Read all items, and sum all they hold, so that every byte is touched."""
    return sum(float(read(item).sum(dtype=torch.float32)) for item in items)


@contextmanager
def one_thread() -> Iterator[None]:
    """Sum in this thread alone: sharing sums of this size among threads would be most of what is measured."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """The store of attention: how soon a second run is ready, and how fast it is read, against a plain memory map."""
    treebanks = Treebanks.choose(settings, folder, report, "train and dev are opened, train is read")
    cache = folder / "cache"
    data = datamodule(cache, treebanks.large, treebanks.dev)
    first = timed(lambda: data.setup("fit"))()
    later = [run_job("setup", cache, train=treebanks.large, dev=treebanks.dev).seconds for _ in range(settings.rounds)]
    store = data.stores["train"]
    size = sum(part.bytes for part in store.manifest.shards)
    report.figure("sentences", len(store), "in the store of train")
    report.figure("first_ready_s", first, "from entering setup to its end, all still to be extracted")
    meaning = f"the same in a second run, a new process; the slowest of {settings.rounds}"
    report.figure("ready_s", max(seconds["ready_s"] for seconds in later), meaning, wanted="≤ 5")
    meaning = "from the start of that process to setup: imports"
    report.seconds("startup_s", [seconds["startup_s"] for seconds in later], meaning)
    report.figure("store_bytes", size, "all shards of train")
    report.figure("labels_bytes", store.manifest.labels.bytes, "words, heads, relations and tags of train")

    def ours(item: int) -> Tensor:
        return store.read("attention", item)

    plain = PlainMap(store)
    items = np.random.default_rng(0).integers(len(store), size=READS).tolist()
    with one_thread():
        sums = total(ours, items), total(plain.read, items)  # and the pages of both are warm from here on
        if not math.isclose(*sums, rel_tol=1e-6):
            raise RuntimeError(f"The store and a plain memory map of its files hold different numbers: {sums}.")
        seconds = alternate(
            settings.rounds,
            ours=timed(lambda: total(ours, items)),
            plain=timed(lambda: total(plain.read, items)),
            sequential=timed(lambda: total(ours, range(len(store)))),
        )
    meaning = f"{READS:,} random sentences read and summed from warm pages ÷ the same through numpy.memmap"
    report.ratio("reads_to_numpy_memmap", seconds["ours"], seconds["plain"], meaning)
    report.figure("reads_per_s", READS / min(seconds["ours"]), "random sentences read and summed, one thread")
    report.figure("memmap_reads_per_s", READS / min(seconds["plain"]), "the same through numpy.memmap")
    meaning = "all sentences in order, read and summed"
    report.figure("sequential_gb_per_s", size / min(seconds["sequential"]) / 1e9, meaning)


main = command("store", measure)
