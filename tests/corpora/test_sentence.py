import random
from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attention_probing.corpora.sentence import SENTENCE_SCHEMA, CorpusError, Sentence, find_cycle, to_table


@pytest.mark.parametrize("short", ["heads", "relations", "upos", "xpos"])
def test_columns_of_other_lengths_are_refused_with_their_lengths(short: str) -> None:
    relations, upos, xpos = (("X",) * (1 if name == short else 2) for name in ("relations", "upos", "xpos"))
    with pytest.raises(ValueError, match=f"'s1' has 2 words.* 1 {short}"):
        Sentence("s1", ("a", "dog"), (0,) * (1 if short == "heads" else 2), relations, upos, xpos)


def test_an_error_names_path_and_line_when_there_is_one() -> None:
    assert str(CorpusError.at(Path("a.conllu"), 7, "wrong", "Do this")) == "a.conllu:7: wrong. Do this."
    assert str(CorpusError.at("a.conllu", None, "wrong", "Do this")) == "a.conllu: wrong. Do this."


def test_find_cycle_agrees_with_networkx_on_random_heads() -> None:
    draw = random.Random(0)
    cyclic = 0
    for _ in range(500):
        n = draw.randint(1, 8)
        heads = [draw.randint(0, n) for _ in range(n)]
        graph = nx.DiGraph((i, head) for i, head in enumerate(heads, start=1) if head)
        cycle = find_cycle(heads)
        assert bool(cycle) == (not nx.is_directed_acyclic_graph(graph))
        for word, following in zip(cycle, (*cycle[1:], *cycle[:1]), strict=True):
            assert heads[word - 1] == following
        cyclic += bool(cycle)
    assert 100 < cyclic < 400


# As a table

SENTENCES = (
    Sentence(
        "a-1", ("Zoë", "ran", "."), (2, 0, 2), ("nsubj", "root", "punct"), ("X", "VERB", "X"), ("NNP", "VBD", ".")
    ),
    Sentence("a-2", ("_",), (0,), ("root",), ("SYM",), ("_",)),
    Sentence("a-3", ("her", "dog"), (2, 0), ("nmod:poss", "root"), ("PRON", "NOUN"), ("PRP$", "NN"), None, 7),
    Sentence("a-4", ("👩\u200d🔬", "New York"), (0, 1), ("root", "flat"), ("X", "PROPN"), ("NN", "NNP")),
)


def parquet(table: pa.Table, path: Path) -> pa.Table:
    pq.write_table(table, path, compression="zstd", row_group_size=2)
    return pq.read_table(path)


def test_a_table_holds_the_sentences_also_through_parquet(tmp_path: Path) -> None:
    for sentences in (SENTENCES, ()):
        table = to_table(sentences)
        assert table.schema == SENTENCE_SCHEMA
        columns = []
        for s in sentences:
            of_words = [list(column) for column in (s.words, s.heads, s.relations, s.upos, s.xpos)]
            columns.append([s.id, *of_words, s.document])
        assert table.to_pylist() == [dict(zip(SENTENCE_SCHEMA.names, values, strict=True)) for values in columns]
        assert parquet(table, tmp_path / "x.parquet").to_pylist() == table.to_pylist()


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
    for name, sentences in zip("abc", (SENTENCES, list(SENTENCES), SENTENCES[::-1]), strict=True):
        parquet(to_table(sentences), tmp_path / name)
    first, second, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == second != other
