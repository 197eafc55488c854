"""Batches: every field of theirs with its shape, and samplers that group sentences or texts of like length.

A sampler bounds batches in size, and puts every item on exactly one device.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, NotRequired, Self, TypedDict, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning import Trainer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from corpora.document import Window
from corpora.texts import Passage
from processes import preemption

Split = Literal["train", "dev", "test"]
EncoderOf = Literal["given", "before", "random_init"]
"""The encoder whose attention a batch holds: the one asked for, the same before its fine-tuning, or one with random
weights."""
Lengths = NDArray[np.int64]
Item = TypeVar("Item")
BatchPer = Literal["run", "device"]
"""One training batch per run, whose devices divide it, or one per device; together these make a step."""


def padder(offsets: NDArray[np.integer[Any]], items: Sequence[int]) -> Callable[[NDArray[Any], int], Tensor]:
    """Return a function that puts values of some items, one behind the other in flat arrays, side by side.

    Args:
        offsets: `[all items + 1]`, the values of item i are `offsets[i]:offsets[i+1]`.
        items: which of them.

    Returns:
        `[items, longest]`, of such an array and of the value that stands in the padding.
    """
    starts, lengths = offsets[items], np.diff(offsets)[items]
    time = np.arange(lengths.max(initial=0))
    real = time < lengths[:, None]
    places = np.where(real, starts[:, None] + time, 0)
    return lambda values, blank: torch.from_numpy(np.where(real, values[places], values.dtype.type(blank)))


class Batch:
    """A batch, a dataclass whose tensors move to a device together."""

    def to(self, device: torch.device, non_blocking: bool = False) -> Self:
        """Return the batch on another device."""
        return self._moved(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Return the batch in page-locked memory, for copies to a GPU that overlap with its work."""
        return self._moved(Tensor.pin_memory)

    def _moved(self, move: Callable[[Tensor], Tensor]) -> Self:
        held: dict[str, Any] = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: move(value) for name, value in held.items()})  # type: ignore[type-var]


@dataclass(frozen=True)
class AttentionBatch(Batch):
    """Some sentences of one split, padded to the longest of them, n words.

    Attributes:
        index: int64 `[batch]`, positions of the sentences in their split.
        lengths: int64 `[batch]`, words of each sentence.
        heads: int64 `[batch, n]`, gold heads, 1-based, 0 = root; -1 in the padding.
        relations: int64 `[batch, n]`, labels as numbers; -1 in the padding.
        punctuation: bool `[batch, n]`, words that UAS leaves out; False in the padding.
        attention: float32 `[batch, layers, heads, n+2, n+2]`, axes from and to. Position 0 is the start
            delimiter, 1…length are the words, length+1 is the end delimiter; zeros behind it. For a probe that does not
            read it, `[batch, layers, heads, 0, 0]`.
        hidden: `[batch, layers', n, size]`, hidden states in the precision of the store, zeros in the padding; those
            of no layer where none are kept or read.
        vectors: float32 `[batch, n, size]`, word vectors; zeros for unknown words and in the padding, and of size 0
            where there are none or they are not read.
        split: the sentences are of.
        encoder: whose attention it is: `random_init` for that of an encoder with random weights, beside the given one.
    """

    index: Tensor
    lengths: Tensor
    heads: Tensor
    relations: Tensor
    punctuation: Tensor
    attention: Tensor
    hidden: Tensor
    vectors: Tensor
    split: Split
    encoder: EncoderOf = "given"

    @property
    def mask(self) -> Tensor:
        """Bool `[batch, n]`, True where a word is real."""
        return torch.arange(self.heads.size(1), device=self.lengths.device) < self.lengths[:, None]


@dataclass(frozen=True)
class AntecedentBatch(Batch):
    """One window of a document, with m mentions that have U different head words among them; or none.

    A device to which no window falls gets one batch without a window: `index` and `document` `[0]`, m = U = n = 0.

    Attributes:
        index: int64 `[1]`, position of the window in its split.
        document: int64 `[1]`, position of its document among those of the split.
        head_words: int64 `[m]`, 0-based place of each mention's head word in the window; mentions in their order.
        clusters: int64 `[m]`, cluster of each mention, as numbered in the document.
        types: int64 `[m]`, places in `MENTION_TYPES`: 0 pronoun, 1 proper, 2 nominal.
        weights: float32, attention between the head words, each once, in ascending order: `[layers, heads, U, U]`, axes
            from and to. With all n words of the window as candidates
            `[2, layers, heads, U, n]`: attention from the head words to all words, and to them from all words.
        vectors: float32 `[U, size]`, word vectors of the head words in the same order; zeros for unknown words, and of
            size 0 where there are none.
        window: the text, which stays where it is.
        split: the window is of.
        encoder: whose attention it is: `random_init` for that of an encoder with random weights, beside the given one.
    """

    index: Tensor
    document: Tensor
    head_words: Tensor
    clusters: Tensor
    types: Tensor
    weights: Tensor
    vectors: Tensor
    window: Window | None
    split: Split
    encoder: EncoderOf = "given"


@dataclass(frozen=True)
class TextBatch(Batch):
    """Some labelled texts of one split, padded to the longest of them; or none.

    Tokens are words or pieces, with what the tokenisation puts around and between them. A device to which no text
    falls gets one batch without a text: `[0]` and `[0, 0]`.

    Attributes:
        index: int64 `[batch]`, positions of the texts in their split.
        lengths: int64 `[batch]`, tokens of each text, delimiters included.
        tokens: int64 `[batch, time]`, numbers in the vocabulary; its `pad` in the padding.
        special: bool `[batch, time]`, delimiters and separators; False in the padding.
        sentences: int64 `[batch, time]`, 0-based sentence of each token, none of them without a token; -1 for
            specials and in the padding.
        segments: int64 `[batch, time]`, 0 in the text, 1 in its pair, and for a special what the token before it has;
            0 in the padding.
        labels: int64 `[batch]`, places in the labels of the datamodule; of a regression float32, the labels themselves.
        rationale: bool `[batch, time]`, tokens of the words that decide; all False where the corpus does not say.
        split: the texts are of.
    """

    index: Tensor
    lengths: Tensor
    tokens: Tensor
    special: Tensor
    sentences: Tensor
    segments: Tensor
    labels: Tensor
    rationale: Tensor
    split: Split

    @property
    def mask(self) -> Tensor:
        """Bool `[batch, time]`, True where a token is real, delimiters included."""
        return torch.arange(self.tokens.size(1), device=self.lengths.device) < self.lengths[:, None]

    @property
    def words(self) -> Tensor:
        """Bool `[batch, time]`, True on real tokens that are no delimiters: what attention may look at."""
        return self.mask & ~self.special


@dataclass(frozen=True)
class SegmentBatch(Batch):
    """Some text segments as an encoder reads them, padded on the right to the longest; one at least, or none.

    A segment is a passage, or two: `[CLS] a [SEP] b [SEP]`, with the delimiters of the tokenizer.

    Attributes:
        index: int64 `[batch]`, numbers of the segments among all of the run.
        lengths: int64 `[batch]`, tokens of each segment, delimiters included.
        tokens: int64 `[batch, time]`, ids of the encoder's tokenizer; its padding id in the padding.
        segments: int64 `[batch, time]`, 0 in the first passage and its delimiters, 1 in the second and its last one; 0
            in the padding.
        start: bool `[batch, time]`, the delimiter before the first token.
        end: bool `[batch, time]`, the delimiters behind each passage.
        punctuation: bool `[batch, time]`, tokens that are `.` or `,`.
        words: int64 `[batch, time]`, 0-based word of the segment that each token is, or is a piece of, those of the
            second passage behind those of the first; -1 for delimiters and in the padding.
        passages: what was read, one tuple for each segment, of one or two; they stay where they are.
        corpus: name of the corpus that all of them are of.
        encoder: whose attention is to be read.
    """

    index: Tensor
    lengths: Tensor
    tokens: Tensor
    segments: Tensor
    start: Tensor
    end: Tensor
    punctuation: Tensor
    words: Tensor
    passages: tuple[tuple[Passage, ...], ...]
    corpus: str
    encoder: EncoderOf = "given"

    @property
    def mask(self) -> Tensor:
        """Bool `[batch, time]`, True where a token is real, delimiters included."""
        return torch.arange(self.tokens.size(1), device=self.lengths.device) < self.lengths[:, None]


class Bounds(TypedDict):
    """Arguments of `LengthBatches` that differ by datamodule."""

    max_cells: int | None
    max_sentences: int
    items: NotRequired[Sequence[int] | None]
    cells: NotRequired[Literal["pairs", "tokens"]]
    jitter: NotRequired[float]


class LengthBatches(Sampler[list[int]]):
    """Batches of sentences of like length.

    In training the sentences of one length are drawn anew every epoch, and so is the order of the batches. Every rank
    gets its share of each batch, which is empty where there are fewer sentences than ranks: a step is the same on any
    number of devices. With a batch per device the ranks get whole batches instead, equally many, the first serving
    twice when they do not divide evenly, because a rank without a batch would halt the others. In evaluation each
    sentence comes exactly once, on one rank, in a whole batch.

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
        batch_per: whether the run or each device gets a training batch.
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
        batch_per: BatchPer = "run",
    ) -> None:
        if jitter and max_cells is not None:
            raise ValueError("batches of jittered lengths cannot be bounded in cells: give max_cells None")
        self._items = np.arange(len(lengths)) if items is None else np.asarray(items, np.int64)
        self._lengths = lengths[self._items]
        self._shuffle, self._jitter = shuffle, jitter
        self.seed = seed
        self._rank, self._world = rank, world
        self._divided = shuffle and batch_per == "run"
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
        """Return the batches of this rank in a whole epoch."""
        return max(len(self._mine()), 1)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the positions of the sentences of each batch of this rank."""
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
        """Yield the batches; each pass draws one number of PyTorch's generator, with or without workers."""
        if self._iterator is not None:  # workers that go on draw none, and all that is drawn later would be another
            torch.empty((), dtype=torch.int64).random_()
        return super().__iter__()

    def state_dict(self) -> dict[str, int]:
        """Return the seed of the order of the batches."""
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
    """Ignore signals in a worker: one to the whole group must not end it; the main process stops between batches."""
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
