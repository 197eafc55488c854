"""Hidden states on their way through `attention.forward`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from attention.alignment import FromPieces
from attention.encoder import Encoder, EncoderSpec, resolve
from attention.forward import BATCH_PIECES, MEMORY, _workers, batches, extract, shapes
from attention.options import Options, StoreError
from attention.plan import Plan, SentencePlan, plan
from attention.store import Hidden
from corpora.sentence import Sentence, Treebank
from tests import tiny
from tests.attention import reference
from tests.attention.test_forward import ENCODERS, planned_lengths, window_of

FLOAT32 = Options(precision="float32")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save(tmp_path_factory.mktemp(name)) for name, (save, _) in ENCODERS.items()}


def load(folder: Path) -> Encoder:
    return Encoder(resolve(EncoderSpec(str(folder))))


def extracted(
    encoder: Encoder, sentences: Sequence[Sentence], options: Options, hidden: tuple[int, ...]
) -> dict[str, Tensor]:
    planned = plan(Treebank(tuple(sentences), {}), encoder, options, hidden)
    found = {name: tensor for _, name, tensor in extract(encoder, planned, [0], options)}
    assert list(shapes(planned, 0).items()) == [(name, tuple(tensor.shape)) for name, tensor in found.items()]
    return found


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("from_pieces", ["mean", "first"])
def test_a_shard_holds_the_models_own_states_over_words(
    name: str, from_pieces: FromPieces, folders: dict[str, Path]
) -> None:
    encoder, blank = load(folders[name]), ENCODERS[name][1]
    sentences = tiny.treebank((3, 1, 8, 5)).sentences
    exact = extracted(encoder, sentences, Options(precision="float32", from_pieces=from_pieces), (0, 1, 2))
    half = extracted(encoder, sentences, Options(from_pieces=from_pieces), (0, 1, 2))
    for item, sentence in enumerate(sentences):
        ids, slots = reference.split(encoder.tokenizer, sentence.words, blank)
        wanted = reference.of_words(reference.hidden(folders[name], ids), slots, len(sentence), from_pieces)
        single, rounded = exact[f"hidden.{item}"], half[f"hidden.{item}"]
        assert (single.dtype, rounded.dtype) == (torch.float32, torch.float16)
        np.testing.assert_allclose(single.numpy(), wanted, rtol=0, atol=1e-5)
        np.testing.assert_allclose(rounded.numpy(), wanted, rtol=2**-10, atol=2**-14)


def test_the_attention_is_what_it_is_without_hidden_states(folders: dict[str, Path]) -> None:
    encoder, sentences = load(folders["bert"]), tiny.treebank((3, 7, 5)).sentences
    plain = extracted(encoder, sentences, FLOAT32, ())
    beside = extracted(encoder, sentences, FLOAT32, (0, 1, 2))
    assert plain.keys() == {f"attention.{item}" for item in range(3)}
    assert beside.keys() == plain.keys() | {f"hidden.{item}" for item in range(3)}
    assert all(torch.equal(beside[name], plain[name]) for name in plain)


def test_a_subset_is_the_slice_of_the_whole(folders: dict[str, Path]) -> None:
    encoder, sentences = load(folders["gpt2"]), tiny.treebank((3, 7)).sentences
    whole = extracted(encoder, sentences, FLOAT32, (0, 1, 2))
    for hidden, layers in (((0,), None), ((2,), (1,)), ((0, 2), (2,)), ((1,), (1, 2))):
        part = extracted(encoder, sentences, Options(precision="float32", layers=layers), hidden)
        for item in range(2):
            torch.testing.assert_close(part[f"hidden.{item}"], whole[f"hidden.{item}"][list(hidden)], rtol=0, atol=1e-6)


def test_states_of_a_long_sentence_come_from_the_window_in_which_the_word_is_most_central(tmp_path: Path) -> None:
    folder = tiny.save_bert(tmp_path, max_length=16)
    encoder = load(folder)
    options = Options(precision="float32", too_long="window")
    sentences = tiny.treebank((25, 4, 40)).sentences
    planned = plan(Treebank(sentences, {}), encoder, options)
    found = extracted(encoder, sentences, options, (0, 2))
    for item, sentence in enumerate(sentences):
        parts = planned.windows[item]
        assert (len(parts) > 1) == (len(sentence) > 4)
        states = [
            reference.of_words(reference.hidden(folder, part.ids.tolist()), part.slots.tolist(), part.words)
            for part in parts
        ]
        for word in range(len(sentence)):
            chosen = window_of(word + 1, len(sentence), parts)
            wanted = states[chosen][[0, 2], word - parts[chosen].first]
            np.testing.assert_allclose(found[f"hidden.{item}"][:, word].numpy(), wanted, rtol=0, atol=1e-5)


def test_threads_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BATCH_PIECES, "cpu", 24)
    encoder = load(tiny.save_bert(tmp_path, max_length=16))
    sentences = tiny.treebank((25, 4, 40, 1, 2, 30, 3)).sentences
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(extracted(encoder, sentences, Options(too_long="window"), (0, 1, 2)))
    finally:
        torch.set_num_threads(before)
    alone = found[0]
    assert len(alone) == 14
    assert all(torch.equal(several[name], alone[name]) for several in found[1:] for name in alone)


# Memory


def with_states(planned: Plan, hidden: Hidden) -> SentencePlan:
    return SentencePlan(planned.windows, planned.layers, planned.heads, {}, (), hidden)


def test_batches_of_many_states_are_bounded_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, hidden = planned_lengths([100] * 5), Hidden(tuple(range(33)), 4096)
    planned = with_states(plain, hidden)
    # Two passes of two windows each: weights of one head of one layer as they were, and the states twice over.
    bytes_of_two = 2 * 100 * (100 * (1 * 2 * 4 + 4 * 4) + 33 * 4096 * 2 * 4)
    for budget, sizes in ((2 * bytes_of_two, [2, 2, 1]), (2 * bytes_of_two - 1, [1] * 5), (1, [1] * 5)):
        monkeypatch.setitem(MEMORY, "cuda", budget)
        assert [len(batch) for batch in batches(planned, 0, "cuda")] == sizes
    monkeypatch.setitem(MEMORY, "cuda", 2 * bytes_of_two)
    assert [len(batch) for batch in batches(plain, 0, "cuda")] == [5]


def test_fewer_passes_run_at_once_when_states_are_large(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load(folders["bert"])
    planned = with_states(planned_lengths([3, 100, 7]), Hidden(tuple(range(33)), 4096))
    one = 100 * (100 * (2 * 4 + 4 * 4) + 33 * 4096 * 2 * 4)
    monkeypatch.setattr("attention.forward.torch.get_num_threads", lambda: 64)
    for budget, workers in ((2 * one * 64, 8), (2 * one * 5, 5), (2 * one * 5 - 1, 4), (one, 1)):
        monkeypatch.setitem(MEMORY, "cpu", budget)
        assert _workers(encoder, planned) == workers


# Numbers that the store cannot hold


def scaled_bert(folder: Path, scale: float) -> Path:
    """Its second layer's output is so many times as large as a layer normalisation leaves it."""
    tokenizer = tiny.bert_tokenizer()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    model = tiny.build("bert", 0, vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)
    norm = model.get_submodule("encoder.layer.1.output.LayerNorm")
    with torch.no_grad():
        norm.get_parameter("weight").fill_(scale)
        norm.get_parameter("bias").zero_()
    return tiny.save(folder, model, tokenizer)


def test_states_beyond_half_precision_are_refused_with_the_remedy(tmp_path: Path) -> None:
    encoder = load(scaled_bert(tmp_path, 1e5))
    sentences = tiny.treebank((3, 4)).sentences
    with pytest.raises(StoreError) as error:
        extracted(encoder, sentences, Options(), (0, 1, 2))
    for part in ("layer 2 reach ", "float16 ends at 65504", "--data.init_args.options.precision float32"):
        assert part in str(error.value)
    exact = extracted(encoder, sentences, FLOAT32, (0, 1, 2))
    largest = max(float(exact[f"hidden.{item}"].abs().max()) for item in range(2))
    assert largest > 65504
    assert f"reach {largest:.4g}, " in str(error.value)
    extracted(encoder, sentences, Options(), (0, 1))  # the others fit


def test_states_just_within_half_precision_are_kept(tmp_path: Path) -> None:
    encoder = load(scaled_bert(tmp_path, 1e4))
    found = extracted(encoder, tiny.treebank((3, 4)).sentences, Options(), (2,))
    assert all(bool(tensor.isfinite().all()) for tensor in found.values())
    assert float(found["hidden.1"].abs().max()) > 1e4


def test_states_that_are_not_numbers_are_refused(folders: dict[str, Path]) -> None:
    encoder, sentences = load(folders["bert"]), tiny.treebank((3, 4)).sentences
    assert encoder.states.count == 3  # it was sound when it was looked at
    behind_the_attention = encoder._model.get_submodule("encoder.layer.1.output.dense")
    behind_the_attention.register_forward_hook(lambda module, args, output: output * float("nan"))
    with pytest.raises(StoreError, match="a hidden state of layer 2 is not a finite number"):
        extracted(encoder, sentences, FLOAT32, (1, 2))
