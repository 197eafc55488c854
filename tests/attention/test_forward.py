import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from attention_probing.attention import Encoder
from attention_probing.attention.alignment import AlignedPieces, FromPieces, Reduction
from attention_probing.attention.extraction import (
    BATCH_CELLS,
    BATCH_PIECES,
    MEMORY,
    Allowance,
    batches,
    extract,
    forward,
    in_order,
    shapes,
)
from attention_probing.attention.specification import Extraction, Items, Options
from attention_probing.attention.store import NO_HIDDEN, HiddenLayers, unpack_weights
from attention_probing.corpora.sentence import Treebank
from attention_probing.results.errors import UserError
from tests import tiny
from tests.attention import reference
from tests.attention.extractions import LENGTHS, items_of
from tests.attention.reference import ENCODERS, load

FLOAT32 = Options(precision="float32")


@pytest.fixture(scope="module")
def encoder(folders: dict[str, Path]) -> Encoder:
    return load(folders["bert"])


@pytest.fixture(autouse=True)
def _one_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attention_probing.attention.specification.SHARDS", 1)


def extracted(encoder: Encoder, items: Items, shard: int = 0) -> dict[str, Tensor]:
    found = {name: tensor for _, name, tensor in extract(encoder, items, [shard])}
    assert list(shapes(items, shard).items()) == [(name, tuple(tensor.shape)) for name, tensor in found.items()]
    return found


EVERY_STATE = (0, 1, 2)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("from_pieces", ["mean", "first"])
def test_a_shard_holds_the_models_own_attention_and_states_over_words(
    name: str, from_pieces: FromPieces, folders: dict[str, Path]
) -> None:
    """Against the slow way: one sentence at a time, what transformers returns, reduced in loops."""
    encoder, blank, treebank = load(folders[name]), ENCODERS[name][1], tiny.treebank((3, 1, 8, 5))
    exact_options = Options(precision="float32", from_pieces=from_pieces)
    exact = extracted(encoder, items_of(treebank, encoder, exact_options, EVERY_STATE))
    half = extracted(encoder, items_of(treebank, encoder, Options(from_pieces=from_pieces), EVERY_STATE))
    for item, sentence in enumerate(treebank.sentences):
        n = len(sentence)
        ids, positions = reference.split(encoder.tokenizer, sentence.words, blank)
        wanted = reference.reduced(reference.attention(folders[name], ids), positions, n, from_pieces)
        single, rounded = exact[f"attention.{item}"], half[f"attention.{item}"]
        assert (single.dtype, rounded.dtype) == (torch.float32, torch.float16)
        assert single.shape == rounded.shape == (2, 4, n + 2, n + 2)
        np.testing.assert_allclose(single.numpy(), wanted, rtol=0, atol=1e-6)
        np.testing.assert_allclose(unpack_weights(rounded).numpy(), wanted, rtol=2**-11, atol=1e-6)
        wanted = reference.of_words(reference.hidden(folders[name], ids), positions, n, from_pieces)
        single, rounded = exact[f"hidden.{item}"], half[f"hidden.{item}"]
        assert (single.dtype, rounded.dtype) == (torch.float32, torch.float16)
        np.testing.assert_allclose(single.numpy(), wanted, rtol=0, atol=1e-5)
        np.testing.assert_allclose(rounded.numpy(), wanted, rtol=2**-10, atol=2**-14)


def test_a_subset_is_the_slice_of_the_whole(folders: dict[str, Path]) -> None:
    encoder, treebank = load(folders["gpt2"]), tiny.treebank((3, 7))
    whole = extracted(encoder, items_of(treebank, encoder, FLOAT32, EVERY_STATE))
    for layers, heads, hidden in ((None, (2,), (0,)), ((2,), None, (0, 2)), ((1,), (1, 4), (2,)), ((1,), (1,), ())):
        options = Options(precision="float32", layers=layers, heads=heads)
        part = extracted(encoder, items_of(treebank, encoder, options, hidden))
        assert len(part) == (4 if hidden else 2)
        chosen = [layer - 1 for layer in layers or (1, 2)], [head - 1 for head in heads or (1, 2, 3, 4)]
        for item in range(2):
            wanted = whole[f"attention.{item}"][chosen[0]][:, chosen[1]]
            torch.testing.assert_close(part[f"attention.{item}"], wanted, rtol=0, atol=1e-6)
            if hidden:
                states = whole[f"hidden.{item}"][list(hidden)]
                torch.testing.assert_close(part[f"hidden.{item}"], states, rtol=0, atol=1e-6)


def test_a_shard_depends_on_its_own_sentences_alone_and_its_attention_not_on_hidden_states(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attention_probing.attention.specification.SHARDS", 3)
    sentences = tiny.treebank(LENGTHS).sentences
    others = tuple(
        sentence if item in (0, 4, 8) else replace(sentence, words=sentence.words[::-1])
        for item, sentence in enumerate(sentences)
    )
    first, second, beside = (
        extracted(encoder, items_of(Treebank(some, {}), encoder, FLOAT32, hidden), 1)
        for some, hidden in ((sentences, ()), (others, ()), (sentences, EVERY_STATE))
    )
    assert first.keys() == second.keys() == {f"attention.{item}" for item in (0, 4, 8)}
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.equal(first[name], beside[name]) for name in first)


def test_threads_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BATCH_PIECES, "cpu", 24)
    encoder = load(tiny.save_bert(tmp_path))
    items = items_of(tiny.treebank((22, 4, 23, 1, 2, 20, 3)), encoder, Options(), EVERY_STATE)
    alone = extracted(encoder, items)
    assert len(alone) == 14
    for threads in (2, 3):
        torch.set_num_threads(threads)  # `one_thread` sets it back
        several = extracted(encoder, items)
        assert torch.get_num_threads() == threads
        assert all(torch.equal(several[name], alone[name]) for name in alone)


def fake_items(
    *lengths: int,
    heads: tuple[int, ...] = (0,),
    layers: tuple[int, ...] = (0,),
    hidden: HiddenLayers = NO_HIDDEN,
    states: int = 0,
) -> Items:
    """Items of so many pieces."""
    inputs = tuple(AlignedPieces(np.zeros(n, np.int32), np.zeros(n, np.int32), 1) for n in lengths)
    extraction = Extraction(Path("corpus"), {}, None)
    return Items(extraction, "sentences", pa.table({}), {}, inputs, (), layers, heads, hidden, states)


def passes_of(items: Items, device: str) -> list[list[int]]:
    """The passes over the first shard."""
    return list(batches(items, items.shards[0], device))


@pytest.mark.parametrize(
    ("sentences", "shards"), [(0, 0), (1, 1), (40, 4), (300, 32), (2_000, 32), (20_000, 107)]
)  # of about 16 pieces
def test_shards_hold_equally_many_pieces_in_items_of_like_length(
    sentences: int, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attention_probing.attention.specification.SHARDS", 32)
    monkeypatch.setattr("attention_probing.attention.specification.MOST_PIECES", 3_000)
    lengths = np.random.default_rng(0).integers(3, 30, sentences)
    found = fake_items(*lengths.tolist()).shards
    assert len(found) == shards
    assert [item for shard in found for item in shard] == np.argsort(-lengths, kind="stable").tolist()
    for shard in found:
        assert abs(lengths[shard].sum() - lengths.sum() / shards) < 2 * lengths.max()


@pytest.mark.parametrize("most", [8, 40, 512])
def test_batches_hold_every_item_once_and_stay_within_bounds(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(0).integers(3, 30, 200).tolist()
    monkeypatch.setitem(BATCH_PIECES, "cpu", most)
    found = passes_of(fake_items(*lengths), "cpu")
    assert sorted(item for batch in found for item in batch) == list(range(len(lengths)))
    sizes = [[lengths[item] for item in batch] for batch in found]
    assert [size for batch in sizes for size in batch] == sorted(lengths, reverse=True)
    for batch, following in zip(sizes, [*sizes[1:], []], strict=True):
        assert len(batch) * batch[0] <= most or len(batch) == 1
        if following:  # one more would have been too much
            assert (len(batch) + 1) * batch[0] > most


FIVE = (100,) * 5


def test_batches_of_long_items_are_bounded_by_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BATCH_CELLS, "cpu", 2 * 100**2)
    assert [len(batch) for batch in passes_of(fake_items(*FIVE), "cpu")] == [2, 2, 1]
    assert [len(batch) for batch in passes_of(fake_items(10**4), "cpu")] == [1]


MANY = tuple(range(32))
LARGE: dict[str, tuple[dict[str, object], int]] = {
    # For one item of 100 pieces: reduced weights twice in single precision, four intermediate results.
    "heads": ({"heads": MANY, "layers": MANY}, 100**2 * (32 * 32 * 2 * 4 + 32 * 4 * 4)),
    # Weights of one head of one layer, the two states that are stored twice over, and the states of all 32 layers.
    "states": (
        {"hidden": HiddenLayers((1, 2), 4096), "states": 33},
        100 * (100 * (2 * 4 + 4 * 4) + 2 * 4096 * 2 * 4 + 33 * 4096 * 4),
    ),
}


@pytest.mark.parametrize("what", LARGE)
def test_batches_of_much_that_is_kept_are_bounded_by_memory(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, one = LARGE[what]
    for budget, sizes in ((4 * one, [2, 2, 1]), (4 * one - 1, [1] * 5), (1, [1] * 5)):  # two passes of two items each
        monkeypatch.setitem(MEMORY, "cuda", budget)
        found = passes_of(fake_items(*FIVE, **kept), "cuda")  # type: ignore[arg-type]
        assert [len(batch) for batch in found] == sizes


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (lambda words: words * 0.99, r"must sum to 1, but one sum is off by 1\.0e-02"),
        (lambda words: words * float("nan"), "weights that are nan"),
    ],
    ids=["too little", "not a number"],
)
def test_a_row_that_does_not_sum_to_one_is_an_error(
    broken: Callable[[Tensor], Tensor], named: str, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    words_of = Reduction.words

    def break_one(factors: Reduction, maps: Tensor) -> Tensor:
        words = words_of(factors, maps)
        words[1, 2, 3] = broken(words[1, 2, 3])
        return words

    monkeypatch.setattr(Reduction, "words", break_one)
    items = items_of(tiny.treebank((4, 4, 4)), encoder, FLOAT32)
    with pytest.raises(UserError, match=named):
        forward(encoder, items.inputs, items)


def test_states_beyond_half_precision_are_refused_with_the_remedy(tmp_path: Path) -> None:
    tiny.save_bert(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["encoder.layer.1.output.LayerNorm.weight"].fill_(1e5)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    encoder, treebank = load(tmp_path), tiny.treebank((3, 4))
    exact = extracted(encoder, items_of(treebank, encoder, FLOAT32, EVERY_STATE))
    largest = max(float(exact[f"hidden.{item}"].abs().max()) for item in range(2))
    assert largest > 65504
    found = re.escape(f"layer 2 reach {largest:.4g}, but float16 ends at 65504")
    with pytest.raises(UserError, match=rf"{found}\. .*`precision='float32'`"):
        extracted(encoder, items_of(treebank, encoder, Options(), EVERY_STATE))
    extracted(encoder, items_of(treebank, encoder, Options(), (0, 1)))  # the others fit


def test_states_that_are_not_numbers_are_refused(folders: dict[str, Path]) -> None:
    encoder = load(folders["bert"])
    assert encoder.state_size == 32  # it was sound when it was looked at
    behind_the_attention = encoder.model.get_submodule("encoder.layer.1.output.dense")
    behind_the_attention.register_forward_hook(lambda module, args, output: output * float("nan"))
    with pytest.raises(UserError, match=r"a hidden state of layer 2 is (nan|inf), not finite"):
        extracted(encoder, items_of(tiny.treebank((3, 4)), encoder, FLOAT32, (1, 2)))


@pytest.fixture
def _four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    assert torch.get_num_threads() == 4  # given back
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_four_threads")
@pytest.mark.parametrize(("workers", "share"), [(1, 4), (2, 2), (3, 1), (8, 1)])
def test_workers_share_the_threads_and_give_them_back(workers: int, share: int) -> None:
    found = list(in_order(lambda _: (torch.get_num_threads(), threading.get_ident()), range(20), workers))
    assert {threads for _, (threads, _) in found} == {share}
    assert 1 <= len({worker for _, (_, worker) in found}) <= workers
    with ThreadPoolExecutor(1) as later:
        assert later.submit(torch.get_num_threads).result() == 4


@pytest.mark.usefixtures("_four_threads")
def test_no_more_is_taken_than_is_soon_wanted() -> None:
    taken: list[int] = []
    jobs = (taken.append(job) or job for job in range(100))  # type: ignore[func-returns-value]
    with closing(in_order(lambda job: job, jobs, 2)) as results:
        for wanted in range(5):
            assert next(results) == (wanted, wanted)
            assert len(taken) <= wanted + 4


@pytest.mark.usefixtures("_four_threads")
def test_an_error_comes_where_its_result_would_have() -> None:
    results = in_order(lambda job: 1 // job, [2, 1, 0, 1], 2)
    assert [next(results), next(results)] == [(2, 0), (1, 1)]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_memory_is_returned_once_it_has_grown_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statm, returned = tmp_path / "statm", Mock(side_effect=lambda: size(1500, 500))

    def size(resident: int, shared: int) -> None:
        statm.write_text(f"999999 {resident} {shared} 1 0 1 0\n")

    monkeypatch.setattr("attention_probing.results.memory._STATM", statm)
    monkeypatch.setattr("attention_probing.attention.extraction.return_free_memory", returned)
    monkeypatch.setattr("attention_probing.results.memory.os.sysconf", {"SC_PAGE_SIZE": 10}.__getitem__)
    size(1200, 400)
    allowance = Allowance(5000)
    steps = [(1300, 400, 0), (9000, 8000, 0), (1701, 401, 0), (1701, 400, 1), (2000, 500, 1), (2001, 500, 2)]
    for resident, shared, times in steps:
        size(resident, shared)
        allowance.check()
        assert returned.call_count == times
    monkeypatch.setattr("attention_probing.results.memory._STATM", tmp_path / "absent")  # the system does not say
    Allowance(0).check()
    assert returned.call_count == 2
