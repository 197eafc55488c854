"""Sentences with their dependency trees, and the error of every corpus reader."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from results.errors import UserError


class CorpusError(UserError):
    """A corpus that cannot be used; see `UserError.at` for the form of the message."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of n ≥ 1 syntactic words with its dependency tree; every column has n entries.

    Attributes:
        id: The sentence's name, unique within its file.
        words: Word forms as they stand in the corpus.
        heads: For each word the position of its head, counted from 1; 0 means that the word is a root.
        relations: For each word the full label of the arc to its head, subtype included (`nmod:poss`).
        upos: For each word its universal part of speech (the coarse tag of a CoNLL-X file).
        xpos: For each word its tag in the treebank's own tag set (the fine tag of a CoNLL-X file); `_` for none.

    Raises:
        ValueError: The columns differ in length, or there is no word.
    """

    id: str
    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    upos: tuple[str, ...]
    xpos: tuple[str, ...]

    def __post_init__(self) -> None:
        # That the heads form a tree is checked by the reader, which knows file and line.
        n = len(self.words)
        if n == 0:
            raise ValueError(f"Sentence {self.id!r} has no words.")
        if not n == len(self.heads) == len(self.relations) == len(self.upos) == len(self.xpos):
            raise ValueError(
                f"Sentence {self.id!r} has {n} words, {len(self.heads)} heads, {len(self.relations)} relations, "
                f"{len(self.upos)} upos and {len(self.xpos)} xpos: all five must be of one length."
            )

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True)
class Treebank:
    """The sentences of one file in their order, at least one, and the reader's counts.

    The `audit` counts `sentences` and `words` that are kept; rows dropped (`range_rows`, multiword tokens such as
    `3-4`, and `empty_rows`, empty nodes such as `8.1`); sentences with `multiple_roots`; `duplicates`, sentences whose
    words repeat those of an earlier one; `generated_ids` where there was no `sent_id`; `repeated_ids` that got a
    suffix; and `comment_blocks` without a row.
    """

    sentences: tuple[Sentence, ...]
    audit: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.sentences)


def find_cycle(heads: Sequence[int]) -> tuple[int, ...]:
    """Return a cycle among `heads` (0 = root): its positions from 1, each followed by its head; () for a forest.

    Every walk towards the root stops at a word that an earlier walk has passed: linear in the number of words.
    """
    walk_of = [0] * (len(heads) + 1)  # the walk that first passed the word; the root belongs to none
    for start in range(1, len(heads) + 1):
        word = start
        while word and not walk_of[word]:
            walk_of[word] = start
            word = heads[word - 1]
        if word and walk_of[word] == start:
            cycle = [word]
            while (word := heads[word - 1]) != cycle[0]:
                cycle.append(word)
            return tuple(cycle)
    return ()


# Words stay plain strings: Parquet dictionary-encodes them on disk by itself. Labels are few, and what trains on them
# wants integers: as dictionaries their codes are one flat int32 array that NumPy views without a copy.
_LABELS = pa.list_(pa.dictionary(pa.int32(), pa.string()))
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("words", pa.list_(pa.string()), nullable=False),
        pa.field("heads", pa.list_(pa.int32()), nullable=False),
        pa.field("relations", _LABELS, nullable=False),
        pa.field("upos", _LABELS, nullable=False),
        pa.field("xpos", _LABELS, nullable=False),
    ]
)


def to_table(sentences: Iterable[Sentence]) -> pa.Table:
    """Return a table with one row a sentence and the columns of `SCHEMA`, in one chunk.

    The label dictionaries are sorted, so that the table depends on the sentences alone. The list columns share their
    offsets: those of `table["heads"].chunk(0)` also cut the codes `table["relations"].chunk(0).values.indices`.
    """
    rows = list(sentences)
    offsets = pa.array(np.cumsum([0, *map(len, rows)]), pa.int32())

    def column(values: pa.Array) -> pa.Array:
        return pa.ListArray.from_arrays(offsets, values)

    def labels(values: list[str]) -> pa.Array:
        known = sorted(set(values))
        codes = {label: code for code, label in enumerate(known)}
        indices = pa.array([codes[value] for value in values], pa.int32())
        return pa.DictionaryArray.from_arrays(indices, pa.array(known, pa.string()))

    return pa.Table.from_arrays(
        [
            pa.array([row.id for row in rows], pa.string()),
            column(pa.array([word for row in rows for word in row.words], pa.string())),
            column(pa.array([head for row in rows for head in row.heads], pa.int32())),
            column(labels([relation for row in rows for relation in row.relations])),
            column(labels([tag for row in rows for tag in row.upos])),
            column(labels([tag for row in rows for tag in row.xpos])),
        ],
        schema=SCHEMA,
    )
