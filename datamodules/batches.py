"""Batches of sentences, documents, texts and segments, and a sampler that groups items of similar length."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from attention_probing.attention.extraction import Allowance, in_order
from attention_probing.corpora.document import Window
from attention_probing.corpora.splits import Split
from attention_probing.corpora.texts import Passage

EncoderOf = Literal["given", "before", "random_init"]
"""Role of the encoder whose attention a batch holds: the given encoder, the same before its fine-tuning, or the same
with random weights."""
Lengths = NDArray[np.int64]
Item = TypeVar("Item")
EMPTY = torch.empty(0)


class Ranks(NamedTuple):
    """Place of this process in its run.

    Attributes:
        rank: Rank of this process, from 0.
        world: Number of processes.
    """

    rank: int = 0
    world: int = 1


def run_seed(seed: int | None) -> int:
    """Return the seed to use: `seed` if given, else the seed of the run set by `seed_everything`, else 0."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed


def padder(offsets: NDArray[np.integer[Any]], items: Sequence[int]) -> Callable[[NDArray[Any], int], Tensor]:
    """Return a function that collects the values of some items from a flat array into a padded tensor.

    Args:
        offsets: Boundaries of all items, `[all items + 1]`; item i has the values `offsets[i]:offsets[i+1]`.
        items: Indices of the items to collect.

    Returns:
        Function of a flat array and the padding value; it returns `[items, longest]`.
    """
    starts = offsets[items]
    lengths = np.diff(offsets)[items]
    time = np.arange(lengths.max(initial=0))
    is_real = time < lengths[:, None]
    places = np.where(is_real, starts[:, None] + time, 0)

    def pad(values: NDArray[Any], blank: int) -> Tensor:
        padded = np.where(is_real, values[places], values.dtype.type(blank))
        return torch.from_numpy(padded)

    return pad


class Batch:
    """Base class of batches: dataclasses whose tensors move to a device together."""

    def to(self, device: torch.device, non_blocking: bool = False) -> Self:
        """Return the batch on another device."""
        return self._move(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Return the batch in page-locked memory, from which a GPU copies while it computes."""
        return self._move(Tensor.pin_memory)

    def _move(self, move: Callable[[Tensor], Tensor]) -> Self:
        moved: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                moved[name] = move(value)
        return replace(self, **moved)  # type: ignore[type-var]


@dataclass(frozen=True)
class AttentionBatch(Batch):
    """Sentences of one split with their attention and dependency trees, padded to the longest, which has n words.

    Attributes:
        index: int64 `[batch]`, index of each sentence in the split.
        lengths: int64 `[batch]`, number of words of each sentence.
        heads: int64 `[batch, n]`, gold syntactic head of each word, 1-based, 0 = root; -1 in the padding.
        relations: int64 `[batch, n]`, relation ids, which are indices into `DependencyDataModule.relations`; -1 in
            the padding.
        punctuation: Bool `[batch, n]`, True for words that UAS leaves out; False in the padding.
        documents: int64 `[batch]`, number of each sentence's document in the split; -1 if no documents are marked.
        attention: float32 `[batch, layers, heads, n+2, n+2]`, axes from and to. Position 0 is the start delimiter,
            1…length are the words, length+1 is the end delimiter; later positions are zero. If no probe reads it,
            `[batch, layers, heads, 0, 0]`.
        hidden: `[batch, layers', n, size]`, hidden states in the precision in which they are stored; zeros in the
            padding. layers' = 0 if none are stored or read.
        vectors: float32 `[batch, n, size]`, word vectors; zeros for unknown words and in the padding. size = 0 if
            there are none or they are not read.
        split: Split of the sentences.
        encoder: Role of the encoder that computed `attention` and `hidden`: `given`, `before` fine-tuning, or
            `random_init`.
        most_attended: int32 `[batch, n, 2, layers, heads]`, the most attended words, if a stream returns them instead
            of `attention`; see `metrics.heads.MostAttended`. Else empty.
        peaks: float32 `[batch, layers, heads, n]`, the largest weight of each row, filled together with
            `most_attended`. Else empty.
    """

    index: Tensor
    lengths: Tensor
    heads: Tensor
    relations: Tensor
    punctuation: Tensor
    documents: Tensor
    attention: Tensor
    hidden: Tensor
    vectors: Tensor
    split: Split
    encoder: EncoderOf = "given"
    most_attended: Tensor = EMPTY
    peaks: Tensor = EMPTY

    @property
    def mask(self) -> Tensor:
        """Bool `[batch, n]`, True for words, False in the padding."""
        return torch.arange(self.heads.size(1), device=self.lengths.device) < self.lengths[:, None]


@dataclass(frozen=True)
class AntecedentBatch(Batch):
    """One window of a document, with m mentions that have U distinct head words; the batch may be empty.

    A window is a stretch of whole sentences that fits into the encoder. A device without a window gets an empty
    batch: `index` and `document` are `[0]`, and m = U = n = 0.

    Attributes:
        index: int64 `[1]`, index of the window in its split.
        document: int64 `[1]`, index of its document in the split.
        head_words: int64 `[m]`, 0-based position in the window of each mention's head word.
        clusters: int64 `[m]`, cluster of each mention, as numbered in the document.
        types: int64 `[m]`, type of each mention, an index into `MENTION_TYPES`: 0 pronoun, 1 proper, 2 nominal,
            3 unknown.
        weights: float32 `[layers, heads, U, U]`, attention between the distinct head words in ascending order, axes
            from and to. If antecedents are sought among all n words of the window, `[2, layers, heads, U, n]`:
            first the attention from the head words to all words, then to the head words from all words.
        vectors: float32 `[U, size]`, word vectors of the same head words; zeros for unknown words; size 0 if there
            are none.
        window: The window itself, which does not move to a device.
        split: Split of the window.
        encoder: Role of the encoder that computed `weights`: `given`, `before` fine-tuning, or `random_init`.
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
    """Labelled texts of one split as tokens, padded to the longest text; the batch may be empty.

    Tokens are words or pieces, and the delimiters around and between texts. A device without a text gets an empty
    batch, of tensors `[0]` and `[0, 0]`.

    Attributes:
        index: int64 `[batch]`, index of each text in its split.
        lengths: int64 `[batch]`, number of tokens of each text, delimiters included.
        tokens: int64 `[batch, time]`, ids in the vocabulary; the id `pad` in the padding.
        special: Bool `[batch, time]`, True for delimiters and separators; False in the padding.
        sentences: int64 `[batch, time]`, 0-based sentence of each token; -1 for special tokens and in the padding.
        segments: int64 `[batch, time]`, 0 in the text, 1 in the second text of a pair; a special token has the
            segment of the token before it; 0 in the padding.
        labels: int64 `[batch]`, indices into the labels of the datamodule; for a regression, float32 `[batch]`, the
            labels themselves.
        rationale: Bool `[batch, time]`, True for tokens of the human rationale; all False if the corpus has none.
        split: Split of the texts.
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
        """Bool `[batch, time]`, True for real tokens, delimiters included."""
        return torch.arange(self.tokens.size(1), device=self.lengths.device) < self.lengths[:, None]

    @property
    def words(self) -> Tensor:
        """Bool `[batch, time]`, True for the tokens that a classifier may attend to: all real tokens but delimiters."""
        return self.mask & ~self.special


@dataclass(frozen=True)
class SegmentBatch(Batch):
    """Text segments as inputs of an encoder, padded on the right to the longest; the batch may be empty.

    A segment holds one passage, or two: `[CLS] a [SEP] b [SEP]`, with the delimiters of the tokenizer.

    Attributes:
        index: int64 `[batch]`, index of each segment among all segments of the run.
        lengths: int64 `[batch]`, number of tokens of each segment, delimiters included.
        tokens: int64 `[batch, time]`, ids of the encoder's tokenizer; its padding id in the padding.
        segments: int64 `[batch, time]`, 0 in the first passage and its delimiters, 1 in the second passage and its
            delimiter; 0 in the padding.
        start: Bool `[batch, time]`, True for the delimiter before the first token.
        end: Bool `[batch, time]`, True for the delimiter after each passage.
        punctuation: Bool `[batch, time]`, True for tokens that are `.` or `,`.
        words: int64 `[batch, time]`, 0-based index of each token's word in the segment, where the words of the
            second passage follow those of the first; -1 for delimiters and in the padding.
        passages: The one or two passages of each segment, which do not move to a device.
        corpus: Name of the corpus of all segments.
        encoder: Role of the encoder whose attention is to be read: `given`, `before` fine-tuning, or `random_init`.
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
        """Bool `[batch, time]`, True for tokens and delimiters, False in the padding."""
        return torch.arange(self.tokens.size(1), device=self.lengths.device) < self.lengths[:, None]


@dataclass(frozen=True)
class PairBatch(Batch):
    """Minimal pairs as tokens, padded on the right to the longest sentence; the batch may be empty.

    The acceptable sentence of a pair stands before the unacceptable one.

    Attributes:
        index: int64 `[pairs]`, index of each pair among all pairs of the run.
        lengths: int64 `[2 · pairs]`, number of tokens of each sentence, with the start token or the delimiters.
        tokens: int64 `[2 · pairs, time]`, ids of the encoder's tokenizer; its padding id in the padding.
        words: int64 `[2 · pairs, time]`, 0-based word of each token, as the tokenizer divides the sentence into words;
            -1 for delimiters and in the padding. Size 0 for a decoder, which masks no words.
    """

    index: Tensor
    lengths: Tensor
    tokens: Tensor
    words: Tensor = EMPTY

    @property
    def mask(self) -> Tensor:
        """Bool `[2 · pairs, time]`, True for tokens, False in the padding."""
        return torch.arange(self.tokens.size(1), device=self.lengths.device) < self.lengths[:, None]


class LengthBatches(Sampler[list[int]]):
    """Sampler of batches of items of similar length; it yields each batch as a list of item indices.

    In training, items of equal length and the order of the batches are shuffled anew every epoch. Every
    rank gets its share of each batch, so that a step is the same on any number of devices; a share is
    empty if a batch has fewer items than there are ranks.

    In evaluation each item comes exactly once, on one rank, in a whole batch.

    Args:
        lengths: Length of every item.
        items: Indices of the items to use; None for all.
        max_cells: Upper bound of the number of cells of a batch, padding included; None for no bound. An
            item that alone exceeds the bound is a batch by itself.
        max_items: Largest number of items in a batch.
        shuffle: True for training, False for evaluation.
        cells: Kind of the cells in `max_cells`. With `pairs`, a cell is a pair of words or delimiters,
            and a batch has `batch · (longest + 2)²` cells. With `tokens`, a cell is a token, and a batch
            has `batch · longest` cells.
        jitter: Relative noise on the lengths in training, 0–1, drawn anew every epoch. Without it, items
            of a rare length would share a batch with the same items in every epoch. With it, batches may
            exceed `max_cells`.
        seed: Seed of the shuffling, used together with the epoch.
        rank: Rank of this process, from 0.
        world: Number of processes.
        groups: Batches of an evaluation, instead of computed ones; items outside `items` are removed from them.
    """

    def __init__(
        self,
        lengths: Lengths,
        *,
        items: Sequence[int] | None = None,
        groups: Iterable[Sequence[int]] = (),
        max_cells: int | None,
        max_items: int,
        shuffle: bool,
        cells: Literal["pairs", "tokens"] = "pairs",
        jitter: float = 0.0,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._items = np.arange(len(lengths))
        if items is not None:
            self._items = np.asarray(items, np.int64)
        self._lengths = lengths[self._items]
        self.seed = seed
        self._shuffle = shuffle
        self._jitter = jitter
        self._rank = rank
        self._world = world
        self._epoch = 0
        ascending = np.sort(self._lengths, kind="stable")
        costs = (ascending + 2) ** 2 if cells == "pairs" else ascending
        self._bounds = batch_bounds(costs, max_cells, max_items)
        self._order: NDArray[np.int64] | None = None
        batches = list(groups)
        if batches:
            grouped = np.concatenate(batches)
            is_used = np.isin(grouped, self._items)
            self._order = grouped[is_used]
            last = np.cumsum([len(batch) for batch in batches]) - 1  # of each batch
            ends = np.cumsum(is_used)[last].tolist()
            self._bounds = [(start, end) for start, end in pairwise([0, *ends]) if start < end]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, on which the order of the batches depends; Lightning calls this before every epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches of this rank in a whole epoch."""
        return max(len(self._mine()), 1)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the positions of the items of each batch of this rank."""
        random = np.random.default_rng([self.seed, self._epoch])
        order = self._items_by_length(random)
        places = np.arange(len(self._bounds))
        if self._shuffle:
            places = random.permutation(len(self._bounds))
        mine = self._mine()
        for number in mine:
            start, stop = self._bounds[places[number]]
            batch = order[start:stop]
            if self._shuffle:
                batch = batch[self._rank :: self._world]
            yield batch.tolist()
        if not mine:
            yield []  # a rank that never ran its loop would miss the collective at the end of the epoch

    def _items_by_length(self, random: np.random.Generator) -> NDArray[np.int64]:
        """Return the items in the order in which they are cut into batches."""
        order = np.arange(len(self._lengths))
        if self._shuffle:
            order = random.permutation(len(self._lengths))
        lengths = self._lengths[order].astype(np.float64)
        if self._shuffle and self._jitter:
            lengths *= random.uniform(1 - self._jitter, 1 + self._jitter, len(order))
        if self._order is not None:
            return self._order
        return self._items[order[np.argsort(lengths, kind="stable")]]

    def _mine(self) -> range:
        """Return the numbers of the batches of this rank."""
        if self._shuffle:
            return range(len(self._bounds))
        return range(self._rank, len(self._bounds), self._world)


class BatchLoader(DataLoader[Item]):
    """DataLoader of the batches of a `LengthBatches`.

    The dataset is indexed by a whole batch, that is by a list of items.

    Args:
        data: The dataset.
        batches: Sampler of the batches.
        threads: Number of threads that read batches ahead in the main process; None for none.
    """

    def __init__(self, data: Dataset[Item], batches: LengthBatches, threads: int | None = None) -> None:
        super().__init__(
            data,
            sampler=batches,
            batch_size=None,  # the sampler yields whole batches: nothing to stack
            pin_memory=torch.cuda.is_available(),
        )
        self._batches = batches
        self._threads = threads

    def __iter__(self) -> Any:  # noqa: ANN401 # DataLoader's own iterators have a private type
        """Yield the batches; each pass draws one number from PyTorch's generator."""
        if self._threads is None:
            return super().__iter__()
        torch.empty((), dtype=torch.int64).random_()  # as DataLoader does
        return self._read_ahead(self._threads)

    def _read_ahead(self, threads: int) -> Iterator[Item]:
        allowance = Allowance()
        for _, batch in in_order(self.dataset.__getitem__, self._batches, threads):
            yield batch
            allowance.check()


class Batches(Generic[Item]):
    """Iterable over the batches of a loader, for predictions; it hides the sampler, which Lightning would replace."""

    def __init__(self, loader: BatchLoader[Item]) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._loader)


def check_batch(indices: object) -> None:
    """Check that a dataset is indexed by a whole batch, that is by a list of item indices.

    Args:
        indices: Argument of the dataset's `__getitem__`.

    Raises:
        TypeError: It is not a list, because Lightning has replaced the batch sampler.
    """
    if not isinstance(indices, list):
        raise TypeError(
            "Lightning has replaced the batch sampler. Set Trainer(use_distributed_sampler=False): the datamodule "
            "distributes batches over devices itself."
        )


def batch_bounds(costs: Lengths, max_cells: int | None, max_items: int) -> list[tuple[int, int]]:
    """Divide items, sorted by cost, into batches of consecutive items.

    A batch costs its number of items times the cost of its most expensive item.

    Args:
        costs: Cost of each item, ascending.
        max_cells: Upper bound of the cost of a batch, None for no bound. An item that costs more alone
            is a batch by itself.
        max_items: Largest number of items in a batch.

    Returns:
        For each batch, the index of its first item in `costs`, and of the item after its last.
    """
    bounds = []
    start = 0
    for stop in range(1, len(costs) + 1):
        full = stop == len(costs) or stop - start == max_items
        if full or (max_cells is not None and (stop - start + 1) * costs[stop] > max_cells):
            bounds.append((start, stop))
            start = stop
    return bounds
