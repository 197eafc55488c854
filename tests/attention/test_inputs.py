from pathlib import Path

import pytest

from attention_probing.attention.inputs import TextTokenizer
from attention_probing.attention.source import EncoderError, EncoderSpec, resolve
from tests.attention.reference import load


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
        assert found.starts.tolist() == [start for start, _ in expected["offset_mapping"]]
        assert not found.blank


@pytest.mark.parametrize(
    ("name", "around", "pad"),
    [
        ("bert", ("[CLS]", "[SEP]", "[SEP]"), "[PAD]"),
        ("roberta", ("<s>", "</s>", "</s>"), "<pad>"),
        # The piece 0 of these is one of texts, `!` and `<unk>`, and the embedding of padding is never trained.
        ("gpt2", (None, None, None), "<|endoftext|>"),
        ("llama", ("<s>", None, "<s>"), "</s>"),
    ],
)
def test_the_limit_delimiters_and_padding_are_the_encoders(
    name: str, around: tuple[str | None, ...], pad: str, folders: dict[str, Path]
) -> None:
    own = tokenizer(folders[name])
    assert own.max_length == load(folders[name]).max_length == 64
    numbers = (own.start, own.end, own.separator)
    assert tuple(None if number is None else own.pieces[number] for number in numbers) == around
    assert own.pieces[own.pad] == pad
    assert (own._tokenizer.pad_token is None) == (name in ("gpt2", "llama"))


def test_a_text_without_a_piece_becomes_the_unknown_one(bert: Path) -> None:
    own = tokenizer(bert)
    [found] = own.split(["\u200d"], [None])
    assert [own.pieces[number] for number in found.ids] == ["[CLS]", "[UNK]", "[SEP]"]
    assert found.sources.tolist() == [-1, 0, -1]
    assert found.blank


def test_a_text_without_a_piece_is_named_where_nothing_can_stand_for_it(bert: Path) -> None:
    own = tokenizer(bert)
    own._tokenizer.unk_token = None
    with pytest.raises(EncoderError, match=r"no piece for the text '\\u200d'.*Remove the text"):
        own.split(["fox", "\u200d"], [None, None])
