"""Words as means of the rows of their pieces."""

from pathlib import Path

import numpy as np
import pytest
from torch import nn
from transformers import AutoTokenizer

from attention_probing.attention.source import EncoderError
from attention_probing.attention.word_embeddings import embed_words
from tests import tiny
from tests.attention.reference import ENCODERS, load

WORDS = (*tiny.FAMILIAR, *tiny.BROKEN, "The", "café", "fox")


@pytest.mark.parametrize("name", ENCODERS)
def test_a_word_is_the_mean_of_its_pieces_rows_of_the_table(name: str, folders: dict[str, Path]) -> None:
    folder, blank = folders[name], ENCODERS[name][1]
    found = embed_words(load(folder), WORDS)
    table = load(folder).embeddings.numpy()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for place, word in enumerate(WORDS):
        ids = tokenizer(blank + word, add_special_tokens=False)["input_ids"]
        expected = sum(table[piece].astype(np.float64) for piece in ids) / len(ids)
        np.testing.assert_allclose(found.vectors[place], expected, atol=1e-6)
        assert found.pieces[place] == len(ids)
    assert (found.pieces > 1).any()
    assert found.vectors.dtype == np.float32


def test_words_that_the_tokenizer_does_not_know(bert: Path) -> None:
    bert_encoder = load(bert)
    found = embed_words(bert_encoder, ["fox", "\u200d", "漢", "fox漢"])
    assert found.pieces.tolist() == [1, 0, 1, 2]  # a word without any piece, a word that is the unknown token
    assert found.unknown.tolist() == [False, False, True, False]
    assert not found.vectors[1].any()
    table = bert_encoder.embeddings.numpy()
    np.testing.assert_array_equal(found.vectors[2], table[bert_encoder.tokenizer.convert_tokens_to_ids("[UNK]")])


def test_input_that_is_not_embedded_by_a_table_is_refused(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load(bert)
    monkeypatch.setattr(encoder.model, "get_input_embeddings", lambda: nn.Linear(2, 2))
    with pytest.raises(
        EncoderError, match=r"bert.*are a Linear, not a table of vectors\. Name other vectors with `vectors`"
    ):
        embed_words(encoder, ["fox"])
