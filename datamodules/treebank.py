"""One split of a treebank: batches of its gold arcs, and of what the encoder and the word vectors say of its words."""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from attention.store import Store
from datamodules.batch import AttentionBatch, EncoderOf, Split
from datamodules.word_vectors import WordVectors

Field = Literal["attention", "hidden", "vectors"]
FIELDS: frozenset[Field] = frozenset(("attention", "hidden", "vectors"))
"""What a batch holds beside the gold arcs, when it is there and wanted."""

HeadsOf = Callable[[Sequence[str]], Sequence[int]]
"""From the words of a sentence to their heads, 1-based, 0 = root."""


class DependencySplit(Dataset[AttentionBatch]):
    """One split, indexed by whole batches, so that a batch is collated in one go from the mapped store.

    Args:
        store: its attention and its labels.
        names: what each relation of the corpus is called here: itself, or its base label.
        vocabulary: the names, in order.
        punctuation: names that UAS leaves out.
        split: what it is called.
        encoder: whose attention the store holds, for the batches.
        vectors: of the words; None for none.
        heads_of: other heads than those of the corpus.

    Attributes:
        reads: what its batches hold beside the arcs.
    """

    def __init__(
        self,
        store: Store,
        names: Mapping[str, str],
        vocabulary: Sequence[str],
        punctuation: Collection[str],
        split: Split,
        encoder: EncoderOf = "given",
        vectors: WordVectors | None = None,
        heads_of: HeadsOf | None = None,
    ) -> None:
        self.store, self.split, self.encoder = store, split, encoder
        self.reads: Set[Field] = FIELDS
        labels = store.labels.combine_chunks()
        self.ids: list[str] = labels["id"].to_pylist()
        column = labels["relations"].chunk(0)
        self._offsets = column.offsets.to_numpy()
        self._heads = labels["heads"].chunk(0).values.to_numpy()
        number = {name: place for place, name in enumerate(vocabulary)}
        own = relations_of(store)
        codes = column.values.indices.to_numpy()
        self._relations = np.array([number[names[label]] for label in own], np.int64)[codes]
        self._punctuation = np.array([base_label(label) in punctuation for label in own], bool)[codes]
        self.lengths = np.diff(self._offsets).astype(np.int64)
        self.punctuation_words = int(self._punctuation.sum())
        self._vectors = vectors
        if vectors is not None:
            words = labels["words"].chunk(0).values.dictionary_encode()
            self._rows = vectors.rows(words.dictionary.to_pylist())[words.indices.to_numpy()]
        if heads_of is not None:
            self._heads = np.array([head for item in range(len(self)) for head in heads_of(self.words(item))], np.int64)
            if len(self._heads) != self._offsets[-1]:
                raise ValueError(f"heads_of gives {len(self._heads)} heads to {self._offsets[-1]} words")

    def __len__(self) -> int:
        return len(self.lengths)

    def words(self, item: int) -> list[str]:
        """The words of a sentence."""
        words: list[str] = self.store.labels["words"][item].as_py()
        return words

    def __getitem__(self, indices: list[int]) -> AttentionBatch:
        """The batch of these sentences; what is read is copied once, from the mapped file to its place in the batch."""
        if not isinstance(indices, list):
            raise TypeError(
                "A split is read by whole batches. A Trainer that replaces the sampler asks for single items: give it "
                "use_distributed_sampler=False; the datamodule shares the batches between devices itself."
            )
        lengths = self.lengths[indices]
        words = int(lengths.max(initial=0))
        heads = np.full((len(indices), words), -1)
        relations = np.full((len(indices), words), -1)
        punctuation = np.zeros((len(indices), words), bool)
        for row, (item, n) in enumerate(zip(indices, lengths.tolist(), strict=True)):
            span = slice(self._offsets[item], self._offsets[item + 1])
            heads[row, :n] = self._heads[span]
            relations[row, :n] = self._relations[span]
            punctuation[row, :n] = self._punctuation[span]
        return AttentionBatch(
            index=torch.tensor(indices, dtype=torch.int64),
            lengths=torch.from_numpy(lengths),
            heads=torch.from_numpy(heads),
            relations=torch.from_numpy(relations),
            punctuation=torch.from_numpy(punctuation),
            attention=self._attention(indices, lengths.tolist(), words),
            hidden=self._hidden(indices, lengths.tolist(), words),
            vectors=self._vectors_of(indices, lengths.tolist(), words),
            split=self.split,
            encoder=self.encoder,
        )

    def _attention(self, indices: list[int], lengths: list[int], words: int) -> Tensor:
        manifest = self.store.manifest
        read = bool(manifest.shards) and "attention" in self.reads
        slots = words + 2 if read else 0
        shape = (len(indices), len(manifest.layers), len(manifest.heads), slots, slots)
        attention = _blank(shape, lengths, words, torch.float32)
        if read:
            for row, (item, n) in enumerate(zip(indices, lengths, strict=True)):
                attention[row, :, :, : n + 2, : n + 2] = self.store.read("attention", item)
        return attention

    def _hidden(self, indices: list[int], lengths: list[int], words: int) -> Tensor:
        manifest = self.store.manifest
        layers = len(manifest.hidden.layers) if "hidden" in self.reads else 0
        hidden = _blank((len(indices), layers, words, manifest.hidden.size), lengths, words, manifest.dtype)
        if layers:
            for row, (item, n) in enumerate(zip(indices, lengths, strict=True)):
                hidden[row, :, :n] = self.store.read("hidden", item)
        return hidden

    def _vectors_of(self, indices: list[int], lengths: list[int], words: int) -> Tensor:
        if self._vectors is None or "vectors" not in self.reads:
            return torch.zeros(len(indices), words, 0)
        rows = np.full((len(indices), words), -1)
        for row, (item, n) in enumerate(zip(indices, lengths, strict=True)):
            rows[row, :n] = self._rows[self._offsets[item] : self._offsets[item + 1]]
        return torch.from_numpy(self._vectors.matrix[rows])


def _blank(shape: tuple[int, ...], lengths: list[int], words: int, dtype: torch.dtype) -> Tensor:
    """Room for a batch: only what lies behind a sentence's end is ever cleared, and in most batches nothing does."""
    even = all(n == words for n in lengths)
    return (torch.empty if even else torch.zeros)(shape, dtype=dtype)


def relations_of(store: Store) -> list[str]:
    """The relations of a store as the corpus writes them, in the order of their codes."""
    labels: list[str] = store.labels.combine_chunks()["relations"].chunk(0).values.dictionary.to_pylist()
    return labels


def base_label(relation: str) -> str:
    """A relation without its subtype: `nmod` of `nmod:poss`."""
    return relation.partition(":")[0]
