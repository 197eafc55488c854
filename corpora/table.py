"""Sentences ↔ one Arrow table, so that a store keeps its labels beside the attention and parses nothing again."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from corpora.sentence import Sentence

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
        ],
        schema=SCHEMA,
    )


def from_table(table: pa.Table) -> tuple[Sentence, ...]:
    """Return the sentences of a table made by `to_table`, also after a Parquet file, a slice or a concatenation.

    Raises:
        ValueError: The table lacks a column of `SCHEMA`.

    """
    if missing := [name for name in SCHEMA.names if name not in table.column_names]:
        raise ValueError(f"The table lacks the columns {', '.join(missing)}: it was not made by to_table.")
    table = table.select(SCHEMA.names).combine_chunks()
    if len(table) == 0:
        return ()
    ids, *lists = (column.chunk(0) for column in table.columns)
    # A slice keeps the offsets of the whole; flatten() gives the slice's own values.
    offsets = lists[0].offsets.to_numpy()
    bounds = (offsets - offsets[0]).tolist()
    words, heads, relations, tags = (_values(column.flatten()) for column in lists)
    return tuple(
        Sentence(name, tuple(words[i:j]), tuple(heads[i:j]), tuple(relations[i:j]), tuple(tags[i:j]))
        for name, i, j in zip(ids.to_pylist(), bounds[:-1], bounds[1:], strict=True)
    )


def _values(column: pa.Array) -> list[Any]:
    """Decode a flat column; equal strings become one object, as when a corpus is read."""
    if pa.types.is_integer(column.type):
        return list(column.to_numpy().tolist())
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    known = encoded.dictionary.to_pylist()
    return [known[code] for code in encoded.indices.to_numpy().tolist()]
