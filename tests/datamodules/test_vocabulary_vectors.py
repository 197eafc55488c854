from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from attention.encoder import Encoder, EncoderSpec, resolve
from attention.tokenizer import TextTokenizer
from datamodules.vectors import VectorSpec
from datamodules.vocabulary import build_vocabulary, piece_vocabulary
from datamodules.vocabulary_vectors import vocabulary_vectors

WORDS = build_vocabulary(Counter({"fox": 3, "the": 2, "never": 1, "<s>": 7}), min_count=1, max_words=None)


def table(bert: Path) -> np.ndarray:
    embedding = Encoder(resolve(EncoderSpec(str(bert))))._model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    return np.asarray(embedding.weight.detach().numpy())


def test_words_that_occur_are_looked_up_and_weighed_by_their_counts(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("fox 1 2\n<s> 3 4\n<unk> 5 6\nthe 7 8\n", encoding="utf-8")
    frequencies = np.array([0, 4, 0, 9, 9, 0, 3, 0, 1])  # of the specials, fox, the and never
    spec = VectorSpec(str(tmp_path / "v.txt"))
    found = vocabulary_vectors(spec, WORDS, frequencies, None, root=tmp_path, cache=tmp_path)
    assert dict(found.index) == {"fox": 0}
    assert (found.audit["tokens"], found.audit["tokens_covered"]) == (4, 3)


def test_an_encoders_vectors_of_its_own_pieces_are_the_rows_of_its_table(bert: Path, tmp_path: Path) -> None:
    source = resolve(EncoderSpec(str(bert)))
    own = piece_vocabulary(TextTokenizer(source))
    frequencies = np.zeros(len(own), np.int64)
    found = vocabulary_vectors(VectorSpec("encoder"), own, frequencies, source, root=tmp_path, cache=tmp_path)
    rows = found.rows(own.words)
    assert rows.tolist() == list(range(len(own)))
    assert np.array_equal(found.matrix[rows], table(bert))
    assert not found.matrix[-1].any()


def test_an_encoders_vectors_of_words_are_those_of_the_default_encoder(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def stand_in(spec: EncoderSpec) -> object:
        asked.append(spec)
        return resolve(EncoderSpec(str(bert)))

    monkeypatch.setattr("datamodules.vocabulary_vectors.resolve", stand_in)
    frequencies = np.array([0, 0, 0, 0, 0, 0, 3, 2, 1])
    found = vocabulary_vectors(VectorSpec("encoder"), WORDS, frequencies, None, root=tmp_path, cache=tmp_path)
    assert asked == [EncoderSpec()]
    tokenizer = TextTokenizer(resolve(EncoderSpec(str(bert))))
    pieces = [tokenizer.pieces.index(piece) for piece in ("n", "##e", "##v", "##e", "##r")]
    slow = sum(table(bert)[piece] for piece in pieces) / len(pieces)
    assert np.allclose(found.matrix[found.rows(["never"])[0]], slow, atol=1e-6)
    assert (found.rows(["<s>", "<unk>"]) == -1).all()
