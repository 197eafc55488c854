"""Attention of the decoder of encoder-decoders, against transformers' own, piece by piece."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

from attention_probing.attention import Encoder, EncoderError, Options
from attention_probing.results import UserError
from attention_probing.results.view import View
from tests import tiny
from tests.attention.reference import load

SIZES = {
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4},
    "bart": {
        **{"d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40},
        **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64},
    },
}
SOURCE, TARGET = ["The", "foxglove", "sleeps", "unbelievably"], ["dogs", "overdrink", "coffee"]


@pytest.fixture(scope="module", params=sorted(SIZES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = tiny.roberta_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "decoder_start_token_id": 0, "pad_token_id": 1, **SIZES[request.param]}
    return tiny.save(tmp_path_factory.mktemp(request.param), tiny.build(request.param, 0, **sizes), tokenizer)


@pytest.mark.parametrize("part", ["cross", "decoder"])
def test_it_is_the_models_own_reduced_word_by_word(folder: Path, part: str) -> None:
    encoder = load(folder)
    [found] = encoder.attention([SOURCE], part=part, targets=[TARGET])  # type: ignore[arg-type]
    tokenizer, model = encoder.tokenizer, AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    read = tokenizer([[f" {word}" for word in SOURCE]], is_split_into_words=True)
    written = tokenizer([[f" {word}" for word in TARGET]], is_split_into_words=True)
    labels, words = torch.tensor(written["input_ids"]), written.word_ids(0)
    shifted = torch.cat([torch.zeros(1, 1, dtype=torch.int64), labels[:, :-1]], 1)
    with torch.inference_mode():
        own = model(input_ids=torch.tensor(read["input_ids"]), decoder_input_ids=shifted, output_attentions=True)
    layers = own.cross_attentions if part == "cross" else own.decoder_attentions
    columns = read.word_ids(0) if part == "cross" else [None, *words[:-1]]
    assert found.sizes["layer"] == 2
    assert found["from"].to_numpy().tolist() == [*TARGET, "</s>"]
    assert found["to"].to_numpy().tolist() == (["<s>", *SOURCE, "</s>"] if part == "cross" else ["<pad> <s>", *TARGET])
    names = ["start", *range(len(SOURCE)), "end"] if part == "cross" else ["start", *range(len(TARGET))]
    for layer, head in np.ndindex(2, 4):
        weights = layers[layer][0, head].numpy()
        for row, word in enumerate([*range(len(TARGET)), None]):
            pieces = [place for place, of in enumerate(words) if of == word and place]
            for column, name in enumerate(names):
                ends = [0, 1] if part == "decoder" else [0] if name == "start" else [len(columns) - 1]
                inside = [
                    place for place, of in enumerate(columns)
                    if of == name or (of is None and name in ("start", "end") and place in ends)
                ]  # fmt: skip
                expected = np.mean([sum(weights[piece, place] for place in inside) for piece in pieces])
                assert float(found[layer, head, row, column]) == pytest.approx(float(expected), abs=1e-6)
    np.testing.assert_allclose(found.sum("to"), 1, atol=1e-5)


def test_what_cannot_be_is_refused(folder: Path, bert: Path) -> None:
    encoder = load(folder)
    with pytest.raises(EncoderError, match=r"is not an encoder-decoder"):
        load(bert).attention([SOURCE], part="cross", targets=[TARGET])
    with pytest.raises(UserError, match=r"1 sentence, but 2 targets"):
        encoder.attention([SOURCE], part="cross", targets=[TARGET, TARGET])
    with pytest.raises(UserError, match=r"attention: part is 'crosss', but must be .*encoder.*cross"):
        encoder.attention([SOURCE], part="crosss", targets=[TARGET])  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"`targets` needs part='cross'"):
        encoder.attention([SOURCE], targets=[TARGET])
    found = encoder.attention([SOURCE], part="decoder", targets=[TARGET])
    for shown in (lambda: View.from_attention(found), lambda: found.lines(0, 1, 1)):
        with pytest.raises(UserError, match=r"one text to another|between two texts"):
            shown()
    with pytest.raises(UserError, match=r"Leave out options"):
        encoder.attention([SOURCE], part="cross", targets=[TARGET], options=Options())
    with pytest.raises(UserError, match=r"targets"):
        encoder.attention([SOURCE], part="cross")
    with pytest.raises(UserError, match=r"part"):
        encoder.attention([SOURCE], part="both")  # type: ignore[arg-type]
    long = Encoder(encoder.source)
    long.max_length = 4
    with pytest.raises(UserError, match=r"The source has .* pieces, but .* takes at most 4"):
        long.attention([SOURCE], part="cross", targets=[TARGET])
