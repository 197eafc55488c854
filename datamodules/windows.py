"""One split of a corpus of documents: batches of one window; and how the documents of one file become splits."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.utils.data import Dataset

from attention.quantity import Candidates
from attention.store import Store
from corpora.document import MENTION_TYPES
from corpora.windows import Window, anaphoric
from datamodules.batch import AntecedentBatch
from datamodules.word_vectors import WordVectors


class CoreferenceSplit(Dataset[AntecedentBatch]):
    """Some documents of a store, indexed by batches of one window.

    Args:
        store: its weights.
        windows: all windows of the store.
        documents: numbers of the documents that belong to the split; None for all.
        candidates: what the store holds: attention between `mentions`, or between them and all `words`.
        vectors: of the words; None for none.

    Attributes:
        windows: those of the split, in the order of the corpus.
        documents: ids of its documents, in the order of the corpus.
    """

    def __init__(
        self,
        store: Store,
        windows: Sequence[Window],
        documents: frozenset[int] | None,
        candidates: Candidates,
        vectors: WordVectors | None = None,
    ) -> None:
        self.store = store
        self._candidates = candidates
        self._items = [item for item, window in enumerate(windows) if documents is None or window.number in documents]
        self.windows = [windows[item] for item in self._items]
        names = {window.number: window.text.id for window in self.windows}
        self.documents = tuple(names.values())
        self._places = {number: place for place, number in enumerate(names)}
        self._vectors = vectors
        if vectors is not None:
            heads = [[words[place] for place in window.head_words]
                     for window, words in ((window, window.words) for window in self.windows)]  # fmt: skip
            rows = vectors.rows([word for words in heads for word in words])
            self._rows = np.split(rows, np.cumsum([len(words) for words in heads])[:-1])

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, indices: list[int]) -> AntecedentBatch:
        """The batch of this one window, or of none."""
        if not isinstance(indices, list):
            raise TypeError(
                "A split is read by batches of one window. A Trainer that replaces the sampler asks for single items: "
                "give it use_distributed_sampler=False; the datamodule shares the windows between devices itself."
            )
        windows = [self.windows[index] for index in indices]
        assert len(windows) <= 1
        heads = [head for window in windows for head in window.mention_heads]
        mentions = [mention for window in windows for mention in window.text.mentions]
        manifest = self.store.manifest
        between = len(set(heads))
        if windows and manifest.shards:
            weights = self.store.read("antecedent", self._items[indices[0]])
        else:
            size, words = (len(manifest.layers), len(manifest.heads)), sum(map(len, windows))
            shape = (2, *size, between, words) if self._candidates == "words" else (*size, between, between)
            weights = torch.zeros(shape)
        vectors = torch.zeros(between, 0 if self._vectors is None else self._vectors.size)
        if windows and self._vectors is not None:
            vectors = torch.from_numpy(self._vectors.matrix[self._rows[indices[0]]])
        return AntecedentBatch(
            index=torch.tensor(indices, dtype=torch.int64),
            document=torch.tensor([self._places[window.number] for window in windows], dtype=torch.int64),
            head_words=torch.tensor(heads, dtype=torch.int64),
            clusters=torch.tensor([mention.cluster for mention in mentions], dtype=torch.int64),
            types=torch.tensor([MENTION_TYPES.index(mention.type) for mention in mentions], dtype=torch.int64),
            weights=weights,
            vectors=vectors,
            window=windows[0] if windows else None,
        )

    @property
    def counts(self) -> dict[str, int]:
        """Documents, windows, mentions, the links among these, and how many of them the cut into windows lost."""
        lost = sum(window.lost for window in self.windows)
        return {
            "documents": len(self.documents),
            "windows": len(self.windows),
            "mentions": sum(len(window.text.mentions) for window in self.windows),
            "links": sum(sum(anaphoric(window.text.mentions)) for window in self.windows) + lost,
            "lost_links": lost,
        }


def parted(genres: Mapping[int, str], shares: Sequence[float], seed: int) -> tuple[frozenset[int], ...]:
    """Part numbered documents so that every part has its share of every genre, as nearly as can be.

    Genre by genre, in the order of their names, every document goes to the part that is furthest behind its share of
    all documents so far, the first of equals: of two halves, the first gets the odd document of the first genre with
    an odd number, the second that of the second, and so on. Which documents these are is drawn.

    Args:
        genres: of every document, by its number.
        shares: of the parts; they add up to 1.
        seed: of the drawing.
    """
    random = np.random.default_rng(seed)
    parts: list[set[int]] = [set() for _ in shares]
    sizes = [0] * len(shares)
    for genre in sorted(set(genres.values())):
        numbers = random.permutation(sorted(number for number, other in genres.items() if other == genre))
        for _ in numbers:
            # Rounded, because thirds that add up to the same number must count as equals.
            behind = [round(share * (sum(sizes) + 1) - size, 9) for share, size in zip(shares, sizes, strict=True)]
            sizes[behind.index(max(behind))] += 1
        start = 0
        for part, size in zip(parts, sizes, strict=True):
            stop = start + size - len(part)
            part.update(numbers[start:stop].tolist())
            start = stop
    return tuple(frozenset(part) for part in parts)
