"""Which sentences or texts go into which batch: alike in length, bounded, and on exactly one device each."""

import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Literal, NotRequired, TypedDict, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning import Trainer
from torch.utils.data import DataLoader, Dataset, Sampler

from processes import preemption

Lengths = NDArray[np.int64]
Item = TypeVar("Item")
BatchOf = Literal["run", "device"]
"""What a training batch is one of: the run, whose devices divide it, or each device, whose batches make a step."""


def run_seed(seed: int | None) -> int:
    """The seed itself, or for None that of the run: what `seed_everything` left behind, else 0."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed


class Bounds(TypedDict):
    """Those arguments of `LengthBatches` that are a datamodule's own."""

    max_cells: int | None
    max_sentences: int
    items: NotRequired[Sequence[int] | None]
    cells: NotRequired[Literal["pairs", "tokens"]]
    jitter: NotRequired[float]


class LengthBatches(Sampler[list[int]]):
    """Batches of sentences of like length.

    In training the sentences of one length are drawn anew every epoch, and so is the order of the batches. Every rank
    gets its share of each batch, which is empty where there are fewer sentences than ranks: a step is the same on any
    number of devices. With `batch_of` device the ranks get whole batches instead, equally many, the first serving twice
    when they do not divide evenly, because a rank without a batch would halt the others. In evaluation each sentence
    comes exactly once, on one rank, in a whole batch.

    Args:
        lengths: words of every sentence.
        items: positions of the sentences that take part; None for all.
        max_cells: bound of `batch * (longest + 2) ** 2`, or of `batch * longest` where `cells` says so; a sentence that
            exceeds it alone makes a batch of its own. None for no bound.
        max_sentences: bound of the sentences in a batch.
        shuffle: training if true.
        cells: what a batch is made of: `pairs` of words, delimiters included, or `tokens`.
        jitter: share of its length, 0–1, by which each sentence may be taken for longer or shorter in training, drawn
            anew every epoch: else the sentences of a rare length would meet the same neighbours in every epoch. With a
            bound of cells, which it would not keep, it is a `ValueError`.
        seed: of the shuffling, together with the epoch.
        rank: of this process, from 0.
        world: number of processes.
        batch_of: what a training batch is one of.
    """

    def __init__(
        self,
        lengths: Lengths,
        *,
        items: Sequence[int] | None = None,
        max_cells: int | None,
        max_sentences: int,
        shuffle: bool,
        cells: Literal["pairs", "tokens"] = "pairs",
        jitter: float = 0.0,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        batch_of: BatchOf = "run",
    ) -> None:
        if jitter and max_cells is not None:
            raise ValueError("batches of jittered lengths cannot be bounded in cells: give max_cells None")
        self._items = np.arange(len(lengths)) if items is None else np.asarray(items, np.int64)
        self._lengths = lengths[self._items]
        self._shuffle, self._jitter = shuffle, jitter
        self.seed = seed
        self._rank, self._world = rank, world
        self._divided = shuffle and batch_of == "run"
        self._skip = 0
        self._epoch = 0
        ascending = np.sort(self._lengths, kind="stable")
        costs = (ascending + 2) ** 2 if cells == "pairs" else ascending
        self._bounds = batch_bounds(costs, max_cells, max_sentences)

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before every epoch."""
        self._epoch = epoch

    def resume(self, trainer: Trainer) -> None:
        """Leave out the batches of an epoch that an interrupted run has seen: none, in a run that was not resumed."""
        limit = trainer.limit_train_batches  # a number of batches, or a share of them
        epoch = min(len(self), limit if isinstance(limit, int) else int(limit * len(self)))
        seen = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        self._epoch, self._skip = trainer.current_epoch, seen % max(epoch, 1)

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch."""
        return max(len(self._mine()), 1)

    def __iter__(self) -> Iterator[list[int]]:
        """Positions of the sentences of each batch of this rank."""
        random = np.random.default_rng([self.seed, self._epoch])
        order = random.permutation(len(self._lengths)) if self._shuffle else np.arange(len(self._lengths))
        taken_for = self._lengths[order].astype(np.float64)
        if self._shuffle and self._jitter:
            taken_for *= random.uniform(1 - self._jitter, 1 + self._jitter, len(order))
        order = self._items[order[np.argsort(taken_for, kind="stable")]]
        places = random.permutation(len(self._bounds)) if self._shuffle else np.arange(len(self._bounds))
        mine = self._mine()
        skip, self._skip = self._skip, 0
        for number in mine[skip:]:
            start, stop = self._bounds[places[number]]
            batch = order[start:stop]
            yield (batch[self._rank :: self._world] if self._divided else batch).tolist()
        if not mine:
            yield []  # a rank that never ran its loop would miss the collective at the end of the epoch

    def _mine(self) -> list[int]:
        count = len(self._bounds)
        if self._divided:
            return list(range(count))
        if self._shuffle:
            count = -(-count // self._world) * self._world
        return [number % len(self._bounds) for number in range(self._rank, count, self._world)]


class BatchLoader(DataLoader[Item]):
    """Serves the batches of a `LengthBatches` from a split that collates them itself.

    Its state tells Lightning that a run can go on in the middle of an epoch; see `LengthBatches.resume`.
    """

    def __init__(self, data: Dataset[Item], batches: LengthBatches, workers: int) -> None:
        super().__init__(
            data,
            sampler=batches,
            batch_size=None,  # the sampler yields whole batches: nothing to stack
            collate_fn=_unchanged,
            worker_init_fn=_leave_signals_to_the_main_process,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=torch.cuda.is_available(),
        )
        self._batches = batches

    def __iter__(self) -> Any:  # noqa: ANN401 # DataLoader's own iterators have a private type
        """The batches; each pass draws one number of PyTorch's generator, with or without workers."""
        if self._iterator is not None:  # workers that go on draw none, and all that is drawn later would be another
            torch.empty((), dtype=torch.int64).random_()
        return super().__iter__()

    def state_dict(self) -> dict[str, int]:
        """What the order of the batches depends on, beside the epoch."""
        return {"seed": self._batches.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Refuse, with a `ValueError`, to go on in an order of another seed."""
        if state["seed"] != self._batches.seed:
            raise ValueError(
                f"The interrupted run shuffled with seed {state['seed']}, this one with {self._batches.seed}: go on "
                f"with --data.init_args.seed {state['seed']}."
            )


class Batches(Generic[Item]):
    """The batches of a loader, without the loader: for predictions Lightning would replace its sampler."""

    def __init__(self, loader: BatchLoader[Item]) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._loader)


def check_batch(indices: object) -> None:
    """Refuse, with a `TypeError`, to read a split by anything but whole batches."""
    if not isinstance(indices, list):
        raise TypeError(
            "A split is read by whole batches. A Trainer that replaces the sampler asks for single items: give it "
            "use_distributed_sampler=False; the datamodule shares the batches between devices itself."
        )


def _leave_signals_to_the_main_process(_: int) -> None:
    """A signal to the whole group must not end the workers: the main process stops between two batches."""
    for number in preemption.SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _unchanged(batch: Any) -> Any:  # noqa: ANN401 # DataLoader types it for lists of items only
    return batch


def batch_bounds(costs: Lengths, max_cells: int | None, max_sentences: int) -> list[tuple[int, int]]:
    """Start and stop of every batch in the sentences sorted by length, given the ascending cost of each."""
    bounds, start = [], 0
    for stop in range(1, len(costs) + 1):
        full = stop == len(costs) or stop - start == max_sentences
        if full or (max_cells is not None and (stop - start + 1) * costs[stop] > max_cells):
            bounds.append((start, stop))
            start = stop
    return bounds
