from collections.abc import Callable
from pathlib import Path

import pytest

from attention.encoder import Encoder, EncoderError, EncoderSpec, resolve
from attention.tokenizer import TextTokenizer
from tests.tiny import save_bert, save_gpt2, save_llama, save_roberta


def tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer(resolve(EncoderSpec(str(folder))))


def test_texts_are_cut_as_the_encoder_was_trained_to_read_them(bert: Path) -> None:
    own = tokenizer(bert)
    texts = ["The café foxglove .", "fox", "lazy dogs"]
    pairs = [None, "the dogs", None]
    for text, pair, found in zip(texts, pairs, own.split(texts, pairs), strict=True):
        expected = own._tokenizer(text, pair, return_offsets_mapping=True)
        assert found.ids.tolist() == expected["input_ids"]
        assert [None if source < 0 else source for source in found.sources.tolist()] == expected.sequence_ids()
        spans = zip(found.sources.tolist(), found.ends.tolist(), expected["offset_mapping"], strict=True)
        assert all(end == stop - 1 for source, end, (_, stop) in spans if source >= 0)
        assert not found.blank


@pytest.mark.parametrize("save", [save_bert, save_roberta, save_gpt2, save_llama])
def test_the_limit_is_that_of_the_loaded_encoder(save: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = save(tmp_path)
    assert tokenizer(folder).max_length == Encoder(resolve(EncoderSpec(str(folder)))).max_length == 64


@pytest.mark.parametrize(
    ("save", "around"),
    [
        (save_bert, ("[CLS]", "[SEP]", "[SEP]")),
        (save_roberta, ("<s>", "</s>", "</s>")),
        (save_gpt2, (None, None, None)),
        (save_llama, ("<s>", None, "<s>")),
    ],
)
def test_delimiters_are_those_that_it_puts(
    save: Callable[[Path], Path], around: tuple[str | None, ...], tmp_path: Path
) -> None:
    own = tokenizer(save(tmp_path))
    numbers = (own.start, own.end, own.separator)
    assert tuple(None if number is None else own.pieces[number] for number in numbers) == around


@pytest.mark.parametrize(("save", "end"), [(save_gpt2, "<|endoftext|>"), (save_llama, "</s>")])
def test_batches_are_filled_by_the_end_of_a_text_where_there_is_no_padding_piece(
    save: Callable[[Path], Path], end: str, tmp_path: Path
) -> None:
    """The piece 0 is one of texts, `<unk>` of Llama and `!` of GPT-2, and the embedding of padding is never trained."""
    own = tokenizer(save(tmp_path))
    assert own._tokenizer.pad_token is None
    assert own.pieces[own.pad] == end


def test_no_weights_are_read(bert: Path, tmp_path: Path) -> None:
    for path in bert.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    assert tokenizer(tmp_path).pieces == tokenizer(bert).pieces


def test_a_text_without_a_piece_becomes_the_unknown_one(bert: Path) -> None:
    own = tokenizer(bert)
    [found] = own.split(["\u200d"], [None])
    assert [own.pieces[number] for number in found.ids] == ["[CLS]", "[UNK]", "[SEP]"]
    assert found.sources.tolist() == [-1, 0, -1]
    assert found.blank


def test_a_text_without_a_piece_is_named_where_nothing_can_stand_for_it(bert: Path) -> None:
    own = tokenizer(bert)
    own._tokenizer.unk_token = None
    with pytest.raises(EncoderError, match=r"the text '\\u200d' yields no piece.*Remove the text"):
        own.split(["fox", "\u200d"], [None, None])
