from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from attention_probing.attention import AlignmentError, Encoder, EncoderError, EncoderSpec, Options, resolve
from attention_probing.attention.alignment import readable
from attention_probing.results import UserError
from attention_probing.results.view import View
from tests import tiny
from tests.attention import reference
from tests.attention.reference import ENCODERS
from tests.tiny import TEXTS

SENTENCES = (TEXTS[1], tuple(TEXTS[0].split()), "overdrinks")


@pytest.mark.parametrize("kind", ENCODERS)
def test_arrays_hold_what_a_loop_over_words_finds(kind: str, folders: dict[str, Path]) -> None:
    encoder, blank = Encoder(str(folders[kind])), ENCODERS[kind][1]
    start, end = (len(ids) > 0 for ids in reference.delimiters(encoder.tokenizer))
    found = encoder.attention(SENTENCES)
    for array, sentence in zip(found, SENTENCES, strict=True):
        words = sentence.split() if isinstance(sentence, str) else list(sentence)
        ids, positions = reference.split(encoder.tokenizer, words, blank)
        expected = reference.reduced(reference.attention(folders[kind], ids), positions, len(words))
        real = slice(0 if start else 1, len(words) + (2 if end else 1))
        np.testing.assert_allclose(array.to_numpy(), expected[..., real, real], atol=1e-6)
        assert array.dims == ("layer", "head", "from", "to")
        names = array["from"].to_numpy().tolist()
        assert names == array["to"].to_numpy().tolist()
        assert names[start : start + len(words)] == words
        assert array["to_word"].to_numpy().tolist() == list(range(len(words) + 2))[real]
        assert array.sel(layer=2, head=3).equals(array[1, 2])


def test_words_are_read_as_in_running_text(tmp_path: Path) -> None:
    """A tokenizer of Gemma's kind cuts a word without the blank before it otherwise."""
    encoder = Encoder(str(folder := tiny.save_gemma(tmp_path)))
    words = TEXTS[0].split()
    found, pieces = encoder.attention([words]), encoder.attention([words], over="pieces")
    encoded = encoder.tokenizer(" ".join(words))
    assert pieces[0]["to"].to_numpy().tolist() == readable(encoder.tokenizer, encoded["input_ids"])
    firsts = [place for place, piece in enumerate(encoded.tokens()) if piece.startswith("▁")]
    positions = [1 + sum(first <= place for first in firsts) for place in range(len(encoded.tokens()))]
    expected = reference.reduced(reference.attention(folder, encoded["input_ids"]), positions, len(words))
    np.testing.assert_allclose(found[0].to_numpy(), expected[..., 1:-1, 1:-1], atol=1e-6)
    assert found.audit["words_cut_apart"] == 0


@pytest.mark.parametrize("kind", ENCODERS)
def test_over_pieces_it_is_that_of_transformers(kind: str, folders: dict[str, Path]) -> None:
    encoder, blank = Encoder(str(folders[kind])), ENCODERS[kind][1]
    words = TEXTS[3].split()
    ids, positions = reference.split(encoder.tokenizer, words, blank)
    [array] = encoder.attention([words], over="pieces")
    np.testing.assert_allclose(array.to_numpy(), reference.attention(folders[kind], ids), atol=1e-6)
    assert array["from"].to_numpy().tolist() == readable(encoder.tokenizer, ids)
    assert array["from_word"].to_numpy().tolist() == positions


def test_options_choose_layers_heads_and_windows(bert: Path) -> None:
    encoder = Encoder(EncoderSpec(str(bert)))
    whole = encoder.attention([TEXTS[0]])[0]
    [chosen] = encoder.attention([TEXTS[0]], options=Options(layers=(2,), heads=(1, 4), precision="float32"))
    xr.testing.assert_allclose(chosen, whole.sel(layer=[2], head=[1, 4]), atol=1e-6)  # layer 1 is fused
    assert chosen["head"].to_numpy().tolist() == [1, 4]
    long = "fox " * 100
    with pytest.raises(AlignmentError, match=r"^sentence .* takes at most 64"):
        encoder.attention([long])
    some = encoder.attention([long, "the fox"], options=Options(too_long="skip"))
    assert (some.sentences, some.audit["skipped_too_long"]) == ((("the", "fox"),), 1)
    with pytest.raises(UserError, match=r"`layers` contains 9"):
        encoder.attention(["the fox"], options=Options(layers=(9,)))


def test_a_sentence_is_named_by_its_place_or_its_words(bert: Path) -> None:
    attention = Encoder(resolve(EncoderSpec(str(bert)))).attention(["the fox", "the dogs sleep", "a fox"])
    assert [attention.place(one) for one in (1, -1, "the  dogs sleep", ["a", "fox"])] == [1, 2, 1, 2]
    assert attention[1:][0].equals(attention[1])
    with pytest.raises(IndexError, match="No sentence has exactly the words 'the cat'"):
        attention.place("the cat")
    for wrong in (3, -4):
        with pytest.raises(IndexError, match=f"no sentence {wrong}: indices go from 0 to 2"):
            attention.place(wrong)
    with pytest.raises(IndexError, match="layer 9 is missing; available: 1, 2"):
        attention.lines(0, layer=9, head=1)
    lines = attention.lines(1, layer=2, head=3)
    np.testing.assert_array_equal(lines.weights, attention[1][1, 2])
    assert lines.words == ("[CLS]", "the", "dogs", "sleep", "[SEP]")


def test_one_sentence_may_be_given_by_itself_and_what_cannot_be_read_is_named(bert: Path) -> None:
    encoder = Encoder(str(bert))
    alone, listed = encoder.attention("the fox"), encoder.attention(["the fox"])
    assert alone.sentences == listed.sentences == (("the", "fox"),)
    assert alone[0].equals(listed[0])
    with pytest.raises(UserError, match=r"\[1\] is empty"):
        encoder.attention(["the fox", " "])
    with pytest.raises(EncoderError, match="no such folder"):
        Encoder("./nowhere")


@pytest.mark.parametrize(
    ("save", "start", "end"), [(tiny.save_bert, 1, 1), (tiny.save_llama, 1, 0), (tiny.save_gpt2, 0, 0)]
)
def test_views_mark_words_by_their_numbers(save: Callable[[Path], Path], start: int, end: int, tmp_path: Path) -> None:
    """Whichever delimiters the tokenizer writes: marks count words from 1, and views positions from 0."""
    encoder, words = Encoder(str(save(tmp_path / "encoder"))), ("the", "foxglove", "sleeps", ".")
    attention, pieces = (encoder.attention([words], over=over) for over in ("words", "pieces"))
    view = View.from_attention(
        attention, words, arcs=[(1, 2, "det")], clusters=[[(1, 3)]], saliency={"s": [1.0, 2.0, 3.0, 4.0]}, pieces=pieces
    )
    assert view.title == "the foxglove sleeps ."
    assert list(View.from_attention(pieces, words).words) == [str(piece) for piece in pieces[0]["from"].to_numpy()]
    with pytest.raises(UserError, match="arcs, clusters and saliency refer to words"):
        View.from_attention(pieces, words, arcs=[(1, 2, "det")])
    assert [view.words[place] for arc in view.arcs for place in arc[:2]] == ["the", "foxglove"]
    assert [tuple(view.words[slice(*span)]) for span in view.clusters[0]] == [("the", "foxglove")]
    assert list(view.saliency["s"]) == [0.0] * start + [1, 2, 3, 4] + [0.0] * end
    assert list(view.delimiters) == [0] * start + [4 + start] * end
    np.testing.assert_array_equal(view.values, attention[0])
    assert view.pieces is not None
    held = "".join(name for name, of in zip(view.pieces.names, view.pieces.of, strict=True) if of == start + 1)
    assert held.replace("#", "") == "foxglove"
    assert len(view.pieces.of) == len(pieces[0]["from"])
