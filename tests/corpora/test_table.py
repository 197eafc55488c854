from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpora.sentence import Sentence
from corpora.table import SCHEMA, from_table, to_table

SENTENCES = (
    Sentence("a-1", ("Zoë", "smiled", "."), (2, 0, 2), ("nsubj", "root", "punct"), ("PROPN", "VERB", "PUNCT")),
    Sentence("a-2", ("_",), (0,), ("root",), ("SYM",)),
    Sentence("a-3", ("her", "dog"), (2, 0), ("nmod:poss", "root"), ("PRON", "NOUN")),
    Sentence("a-4", ("👩\u200d🔬", "New York"), (0, 1), ("root", "flat"), ("X", "PROPN")),
)


def parquet(table: pa.Table, path: Path) -> pa.Table:
    pq.write_table(table, path, compression="zstd", row_group_size=2)
    return pq.read_table(path)


def test_sentences_come_back_from_the_table_and_from_parquet(tmp_path: Path) -> None:
    table = to_table(SENTENCES)
    assert table.schema == SCHEMA
    assert from_table(table) == SENTENCES
    assert from_table(parquet(table, tmp_path / "x.parquet")) == SENTENCES


def test_slices_and_concatenations_with_other_labels_come_back() -> None:
    table = to_table(SENTENCES)
    assert from_table(table.slice(1, 2)) == SENTENCES[1:3]
    assert from_table(pa.concat_tables([to_table(SENTENCES[2:]), to_table(SENTENCES[:2])])) == (
        *SENTENCES[2:],
        *SENTENCES[:2],
    )


def test_no_sentences_are_a_table_too(tmp_path: Path) -> None:
    table = to_table([])
    assert from_table(table) == ()
    assert from_table(parquet(table, tmp_path / "x.parquet")) == ()
    assert from_table(to_table(SENTENCES).slice(0, 0)) == ()


def test_flat_arrays_are_views_cut_by_the_offsets(tmp_path: Path) -> None:
    table = parquet(to_table(iter(SENTENCES)), tmp_path / "x.parquet").combine_chunks()
    heads = table["heads"].chunk(0)
    relations = table["relations"].chunk(0).values
    np.testing.assert_array_equal(heads.offsets.to_numpy(), [0, 3, 4, 6, 8])
    flat = heads.values.to_numpy(zero_copy_only=True)
    assert flat.dtype == np.int32
    np.testing.assert_array_equal(flat, [2, 0, 2, 0, 2, 0, 0, 1])
    codes = relations.indices.to_numpy(zero_copy_only=True)
    labels = relations.dictionary.to_pylist()
    assert [labels[code] for code in codes] == [label for s in SENTENCES for label in s.relations]


def test_equal_sentences_make_equal_bytes(tmp_path: Path) -> None:
    parquet(to_table(SENTENCES), tmp_path / "a.parquet")
    parquet(to_table([s for s in SENTENCES]), tmp_path / "b.parquet")
    parquet(to_table(SENTENCES[::-1]), tmp_path / "c.parquet")
    first, second, other = ((tmp_path / f"{name}.parquet").read_bytes() for name in "abc")
    assert first == second != other
    assert to_table(SENTENCES)["relations"].chunk(0).values.dictionary.to_pylist() == sorted(
        {label for s in SENTENCES for label in s.relations}
    )


def test_another_table_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the columns heads, upos"):
        from_table(to_table(SENTENCES).drop_columns(["heads", "upos"]))
