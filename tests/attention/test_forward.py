from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from attention.alignment import FromPieces, Pieces, reduce
from attention.encoder import Encoder, EncoderError, EncoderSpec, resolve
from attention.forward import BATCH_CELLS, BATCH_PIECES, MEMORY, _workers, batches, extract, forward, pad, shapes
from attention.options import Options, StoreError
from attention.plan import Plan, SentencePlan, plan
from attention.store import unpack_weights
from corpora.sentence import Sentence, Treebank
from tests import tiny
from tests.attention import reference
from tests.attention.extractions import LENGTHS, small_shards

ENCODERS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "bert": (tiny.save_bert, ""),
    "roberta": (tiny.save_roberta, " "),
    "gpt2": (tiny.save_gpt2, " "),
    "llama": (tiny.save_llama, ""),
}
"""How each is made, and the blank that stands before a word that is cut alone."""

FLOAT32 = Options(precision="float32")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save(tmp_path_factory.mktemp(name)) for name, (save, _) in ENCODERS.items()}


@pytest.fixture(scope="module")
def encoder(folders: dict[str, Path]) -> Encoder:
    return Encoder(resolve(EncoderSpec(str(folders["bert"]))))


def tensors_of(encoder: Encoder, sentences: Sequence[Sentence], options: Options) -> list[Tensor]:
    found = extracted(encoder, plan(Treebank(tuple(sentences), {}), encoder, options), 0, options)
    assert found.keys() == {f"attention.{item}" for item in range(len(sentences))}
    return [found[f"attention.{item}"] for item in range(len(sentences))]


def extracted(encoder: Encoder, planned: Plan, shard: int, options: Options) -> dict[str, Tensor]:
    found = {name: tensor for _, name, tensor in extract(encoder, planned, [shard], options)}
    assert list(shapes(planned, shard).items()) == [(name, tuple(tensor.shape)) for name, tensor in found.items()]
    return found


def expected(folder: Path, blank: str, sentence: Sentence, from_pieces: str = "mean") -> reference.Floats:
    """The slow way: one sentence at a time, transformers' own weights, reduced in loops."""
    tokenizer = Encoder(resolve(EncoderSpec(str(folder)))).tokenizer
    ids, slots = reference.split(tokenizer, sentence.words, blank)
    return reference.reduced(reference.attention(folder, ids), slots, len(sentence), from_pieces)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("from_pieces", ["mean", "first"])
def test_a_shard_holds_the_models_own_attention_over_words(
    name: str, from_pieces: FromPieces, folders: dict[str, Path]
) -> None:
    encoder = Encoder(resolve(EncoderSpec(str(folders[name]))))
    sentences = tiny.treebank((3, 1, 8, 5)).sentences
    exact = tensors_of(encoder, sentences, Options(precision="float32", from_pieces=from_pieces))
    half = tensors_of(encoder, sentences, Options(from_pieces=from_pieces))
    for sentence, single, rounded in zip(sentences, exact, half, strict=True):
        n = len(sentence)
        wanted = expected(folders[name], ENCODERS[name][1], sentence, from_pieces)
        assert (single.dtype, rounded.dtype) == (torch.float32, torch.float16)
        assert single.shape == rounded.shape == (2, 4, n + 2, n + 2)
        np.testing.assert_allclose(single.numpy(), wanted, rtol=0, atol=1e-6)
        np.testing.assert_allclose(unpack_weights(rounded).numpy(), wanted, rtol=2**-11, atol=1e-6)


@pytest.mark.parametrize(("name", "absent"), [("gpt2", (0, -1)), ("llama", (-1,))])
def test_delimiters_that_the_tokenizer_lacks_are_zero(
    name: str, absent: tuple[int, ...], folders: dict[str, Path]
) -> None:
    encoder = Encoder(resolve(EncoderSpec(str(folders[name]))))
    for attention in tensors_of(encoder, tiny.treebank((3, 7)).sentences, Options()):
        for slot in absent:
            assert not attention[:, :, slot].any()
            assert not attention[..., slot].any()
        words = unpack_weights(attention[:, :, 1:-1])
        torch.testing.assert_close(words.sum(-1), torch.ones(words.shape[:-1]), rtol=0, atol=5e-3)


def test_rows_of_a_long_sentence_come_from_the_window_in_which_they_are_most_central(tmp_path: Path) -> None:
    folder = tiny.save_bert(tmp_path, max_length=16)
    encoder = Encoder(resolve(EncoderSpec(str(folder))))
    options = Options(precision="float32", too_long="window")
    sentences = tiny.treebank((25, 4, 40)).sentences
    planned = plan(Treebank(sentences, {}), encoder, options)
    found = tensors_of(encoder, sentences, options)
    for item, sentence in enumerate(sentences):
        n = len(sentence)
        parts = planned.windows[item]
        assert (len(parts) > 1) == (n > 4)
        blocks = [
            reference.reduced(reference.attention(folder, part.ids.tolist()), part.slots.tolist(), part.words)
            for part in parts
        ]
        wanted = np.zeros((2, 4, n + 2, n + 2))
        for slot in range(n + 2):
            chosen = window_of(slot, n, parts)
            first, words = parts[chosen].first, parts[chosen].words
            row = blocks[chosen][:, :, {0: 0, n + 1: words + 1}.get(slot, slot - first)]
            wanted[:, :, slot, 0] = row[..., 0]
            wanted[:, :, slot, first + 1 : first + words + 1] = row[..., 1:-1]
            wanted[:, :, slot, n + 1] = row[..., -1]
        np.testing.assert_allclose(found[item].numpy(), wanted, rtol=0, atol=1e-6)
        np.testing.assert_allclose(found[item].sum(-1).numpy(), 1, rtol=0, atol=1e-5)


def window_of(slot: int, n: int, parts: Sequence[Pieces]) -> int:
    """Where a row comes from: the delimiters from the ends, a word from where it is farthest from both edges."""
    if slot == 0:
        return 0
    if slot == n + 1:
        return len(parts) - 1
    depths = [min(slot - 1 - part.first, part.first + part.words - slot) for part in parts]
    return depths.index(max(depths))


def test_a_subset_is_the_slice_of_the_whole(encoder: Encoder) -> None:
    sentences = tiny.treebank((3, 7)).sentences
    whole = tensors_of(encoder, sentences, FLOAT32)
    for layers, heads in ((None, (2,)), ((2,), None), ((1,), (1, 4))):
        part = tensors_of(encoder, sentences, Options(precision="float32", layers=layers, heads=heads))
        for few, every in zip(part, whole, strict=True):
            wanted = every[[layer - 1 for layer in layers or (1, 2)]][:, [head - 1 for head in heads or (1, 2, 3, 4)]]
            torch.testing.assert_close(few, wanted, rtol=0, atol=1e-6)


def test_a_shard_depends_on_its_own_sentences_alone(encoder: Encoder) -> None:
    sentences = tiny.treebank(LENGTHS).sentences
    with small_shards():
        one = plan(Treebank(sentences, {}), encoder, FLOAT32)
        other = plan(Treebank((*tiny.treebank((11, 11, 2, 1), seed=5).sentences, *sentences[4:]), {}), encoder, FLOAT32)
        first, second = extracted(encoder, one, 1, FLOAT32), extracted(encoder, other, 1, FLOAT32)
    assert first.keys() == second.keys() == {f"attention.{item}" for item in (4, 5, 6, 7)}
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_shards_follow_one_another_whole(encoder: Encoder) -> None:
    with small_shards():
        planned = plan(tiny.treebank(LENGTHS), encoder, FLOAT32)
        found = [(shard, name) for shard, name, _ in extract(encoder, planned, [0, 2], FLOAT32)]
        assert found == [(shard, name) for shard in (0, 2) for name in shapes(planned, shard)]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_bit(threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BATCH_PIECES, "cpu", 24)
    encoder = Encoder(resolve(EncoderSpec(str(tiny.save_bert(tmp_path, max_length=16)))))
    options = Options(too_long="window")
    planned = plan(tiny.treebank((25, 4, 40, 1, 2, 30, 3)), encoder, options)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = extracted(encoder, planned, 0, options)
        assert torch.get_num_threads() == threads
        torch.set_num_threads(1)
        alone = extracted(encoder, planned, 0, options)
    finally:
        torch.set_num_threads(before)
    assert len(found) == 7
    assert all(torch.equal(found[name], alone[name]) for name in alone)


# Batches


def planned_lengths(lengths: Sequence[int]) -> Plan:
    """A plan of sentences of one window each, of so many pieces."""
    windows = tuple((Pieces(np.zeros(n, np.int32), np.zeros(n, np.int32), 1),) for n in lengths)
    return SentencePlan(windows, (0,), (0,), {}, ())


@pytest.mark.parametrize("most", [8, 40, 512])
def test_batches_hold_every_window_once_and_stay_within_bounds(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(0).integers(3, 30, 200).tolist()
    planned = planned_lengths(lengths)
    pairs = [(item, 0) for item in range(len(lengths))]
    monkeypatch.setitem(BATCH_PIECES, "cpu", most)
    found = list(batches(planned, 0, "cpu"))
    assert sorted(pair for batch in found for pair in batch) == pairs
    sizes = [[lengths[item] for item, _ in batch] for batch in found]
    assert [size for batch in sizes for size in batch] == sorted(lengths, reverse=True)
    for batch, following in zip(sizes, [*sizes[1:], []], strict=True):
        assert len(batch) * batch[0] <= most or len(batch) == 1
        if following:  # one more would have been too much
            assert (len(batch) + 1) * batch[0] > most


def test_batches_of_long_windows_are_bounded_by_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BATCH_CELLS, "cpu", 2 * 100**2)
    found = list(batches(planned_lengths([100] * 5), 0, "cpu"))
    assert [len(batch) for batch in found] == [2, 2, 1]
    assert [len(batch) for batch in batches(planned_lengths([10**4]), 0, "cpu")] == [1]


def test_batches_of_many_heads_are_bounded_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = planned_lengths([100] * 5).windows
    heads = tuple(range(32))
    # Two passes of two windows each: reduced weights twice in single precision, four intermediate results.
    bytes_of_two = 2 * 100**2 * (32 * 32 * 2 * 4 + 32 * 4 * 4)
    for budget, sizes in ((2 * bytes_of_two, [2, 2, 1]), (2 * bytes_of_two - 1, [1] * 5), (1, [1] * 5)):
        monkeypatch.setitem(MEMORY, "cuda", budget)
        found = batches(SentencePlan(windows, heads, heads, {}, ()), 0, "cuda")
        assert [len(batch) for batch in found] == sizes


def test_a_device_without_bounds_of_its_own_has_those_of_a_gpu() -> None:
    planned = planned_lengths([100] * 50)
    assert list(batches(planned, 0, "mps")) == list(batches(planned, 0, "cuda"))
    assert len(list(batches(planned, 0, "mps"))) == 1 < len(list(batches(planned, 0, "cpu")))


def test_windows_of_a_sentence_follow_one_another() -> None:
    def pieces(length: int) -> Pieces:
        return Pieces(np.zeros(length, np.int32), np.zeros(length, np.int32), 1)

    windows = ((pieces(5),), (pieces(9), pieces(3)), (pieces(9), pieces(9), pieces(1)), (pieces(7),))
    [batch] = batches(SentencePlan(windows, (0,), (0,), {}, ()), 0, "cpu")
    assert batch == [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 0), (0, 0)]


def test_fewer_passes_run_at_once_when_one_window_is_large(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = tuple(range(32))
    planned = SentencePlan(planned_lengths([3, 100, 7]).windows, heads, heads, {}, ())
    one = 100**2 * (32 * 32 * 2 * 4 + 32 * 4 * 4)
    monkeypatch.setattr("attention.forward.torch.get_num_threads", lambda: 64)
    for budget, workers in ((2 * one * 64, 8), (2 * one * 5, 5), (2 * one * 5 - 1, 4), (one, 1)):
        monkeypatch.setitem(MEMORY, "cpu", budget)
        assert _workers(encoder, planned) == workers
    monkeypatch.setattr("attention.forward.torch.get_num_threads", lambda: 3)
    monkeypatch.setitem(MEMORY, "cpu", 2 * one * 64)
    assert _workers(encoder, planned) == 3


def test_padding_is_on_the_right_and_masked(encoder: Encoder) -> None:
    parts = [Pieces(np.array(ids, np.int32), np.zeros(len(ids), np.int32), 1) for ids in ([5, 6, 7], [8])]
    found = pad(parts, encoder)
    assert found["input_ids"].tolist() == [[5, 6, 7], [8, encoder.pad_id, encoder.pad_id]]
    assert found["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


# Rows that do not sum to one


@pytest.mark.parametrize(
    ("broken", "named"),
    [(lambda words: words * 0.99, r"1 ± 1\.0e-02"), (lambda words: words * float("nan"), r"1 ± nan")],
    ids=["too little", "not a number"],
)
def test_a_row_that_does_not_sum_to_one_is_an_error(
    broken: Callable[[Tensor], Tensor], named: str, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_one(weights: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        words = reduce(weights, rows, columns)
        words[1, 2, 3] = broken(words[1, 2, 3])
        return words

    monkeypatch.setattr("attention.forward.reduce", break_one)
    planned = plan(tiny.treebank((4, 4, 4)), encoder, FLOAT32)
    with pytest.raises(StoreError, match=f"a row of attention sums to {named}"):
        forward(encoder, [parts[0] for parts in planned.windows], planned, FLOAT32)


def test_weights_that_are_not_numbers_are_an_error(tmp_path: Path) -> None:
    tokenizer = tiny.bert_tokenizer()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = tiny.build("bert", 0, vocab_size=len(tokenizer), **sizes)
    with torch.no_grad():
        model.get_submodule("encoder.layer.1.attention.self.query").get_parameter("bias").fill_(float("nan"))
    with pytest.raises(EncoderError, match="differs from its own eager attention by nan"):
        Encoder(resolve(EncoderSpec(str(tiny.save(tmp_path, model, tokenizer)))))
