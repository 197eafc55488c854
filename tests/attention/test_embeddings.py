from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from attention.encoder import Encoder, EncoderError, EncoderSpec, embed_words, resolve
from tests import tiny

ENCODERS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "bert": (tiny.save_bert, ""),
    "roberta": (tiny.save_roberta, " "),
    "gpt2": (tiny.save_gpt2, " "),
    "llama": (tiny.save_llama, ""),
}
"""How each is written, and what its tokenizer wants to see before a word."""
WORDS = (*tiny.FAMILIAR, *tiny.BROKEN, "The", "café", "fox")


@pytest.fixture(scope="module")
def bert_encoder(bert: Path) -> Encoder:
    return load(bert)


def load(folder: Path, **spec: object) -> Encoder:
    return Encoder(resolve(EncoderSpec(str(folder), **spec)))  # type: ignore[arg-type]


def table_of(model: PreTrainedModel) -> NDArray[np.float32]:
    table = model.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    weight: NDArray[np.float32] = table.weight.detach().numpy()
    return weight


@pytest.mark.parametrize("name", ENCODERS)
def test_a_word_is_the_mean_of_its_pieces_rows_of_the_table(name: str, tmp_path: Path) -> None:
    save, blank = ENCODERS[name]
    folder = save(tmp_path / name)
    found = embed_words(load(folder), WORDS)
    table = table_of(AutoModel.from_pretrained(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for place, word in enumerate(WORDS):
        ids = tokenizer(blank + word, add_special_tokens=False)["input_ids"]
        expected = sum(table[piece].astype(np.float64) for piece in ids) / len(ids)
        np.testing.assert_allclose(found.vectors[place], expected, atol=1e-6)
        assert found.pieces[place] == len(ids)
    assert (found.pieces > 1).any()
    assert found.vectors.dtype == np.float32


def test_of_an_encoder_decoder_the_shared_table_is_taken(tmp_path: Path) -> None:
    tokenizer = tiny.bert_tokenizer()
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 4}
    model = tiny.build("t5", 0, vocab_size=len(tokenizer), **sizes)
    found = embed_words(load(tiny.save(tmp_path, model, tokenizer)), ["fox"])
    table = table_of(model)
    np.testing.assert_array_equal(found.vectors[0], table[tokenizer.convert_tokens_to_ids("fox")])


def test_of_random_weights_the_pretrained_table_is_taken(bert: Path, bert_encoder: Encoder) -> None:
    drawn = embed_words(load(bert, weights="random"), WORDS)
    assert np.array_equal(drawn.vectors, embed_words(bert_encoder, WORDS).vectors)


def test_words_that_the_tokenizer_does_not_know(bert_encoder: Encoder) -> None:
    found = embed_words(bert_encoder, ["fox", "\u200d", "漢", "fox漢"])
    assert found.pieces.tolist() == [1, 0, 1, 2]  # a word without any piece, a word that is the unknown token
    assert found.unknown.tolist() == [False, False, True, False]
    assert not found.vectors[1].any()
    table = table_of(bert_encoder._model)
    np.testing.assert_array_equal(found.vectors[2], table[bert_encoder.tokenizer.convert_tokens_to_ids("[UNK]")])


def test_input_that_is_not_embedded_by_a_table_is_refused(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load(bert)
    monkeypatch.setattr(encoder._model, "get_input_embeddings", lambda: nn.Linear(2, 2))
    with pytest.raises(EncoderError, match=r"bert.*are a Linear, not a table of vectors\. Choose other"):
        embed_words(encoder, ["fox"])
