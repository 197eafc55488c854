"""What is predicted of forward passes without weights, beside the same passes with weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attention_probing.attention import (
    Encoder,
    EncoderError,
    EncoderSpec,
    Extraction,
    Items,
    Options,
    cut_sentences,
    extraction,
    make_store,
    resolve,
)
from attention_probing.attention.costs import PlannedEncoder, Tally, predict_costs
from attention_probing.attention.extraction import batches, run_pass
from attention_probing.attention.long_inputs import find_most_attended
from attention_probing.results.digests import Digests
from tests import tiny

FAMILIES: dict[str, Callable[[Path], Path]] = {
    "bert": tiny.save_bert,
    "gpt2": tiny.save_gpt2,
    "llama": tiny.save_llama,
    "gemma3": tiny.save_gemma3,
    "modernbert": tiny.save_modernbert,
}


@pytest.fixture(scope="module", params=FAMILIES)
def encoders(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PlannedEncoder, Encoder]:
    """An encoder that is planned after its weights were deleted, and the same with its weights."""
    folder = FAMILIES[request.param](tmp_path_factory.mktemp(request.param) / "model")
    loaded = Encoder(str(folder))
    for path in loaded.source.weights:
        path.rename(folder.parent / path.name)
    planned = PlannedEncoder(resolve(EncoderSpec(str(folder))))
    for path in folder.parent.glob("*.safetensors"):
        path.rename(folder / path.name)
    return planned, loaded


def cut(encoder: Encoder, folder: Path, options: Options | None = None) -> Items:
    corpus = tiny.write_treebank(folder / "trees.conllu", 60)
    made = Extraction(corpus, {"name": "test"}, encoder.source, options or Options())
    return cut_sentences(made, tiny.treebank([3, 9, 9, 12, 17, 20, 2, 5] * 6), encoder)


def test_a_planned_encoder_has_the_sizes_of_the_loaded_one(encoders: tuple[PlannedEncoder, Encoder]) -> None:
    planned, loaded = encoders
    for name in ("layers", "heads", "attending", "max_length", "pad_id", "is_hybrid", "state_size"):
        assert getattr(planned, name) == getattr(loaded, name), name
    parameters = list(loaded.model.parameters())
    assert planned.parameters == sum(parameter.numel() for parameter in parameters)
    assert planned.weights == sum(one.numel() * one.element_size() for one in (*parameters, *loaded.model.buffers()))
    assert all(parameter.is_meta for parameter in planned.model.parameters())


def test_a_planned_pass_takes_what_the_real_pass_takes(
    encoders: tuple[PlannedEncoder, Encoder], tmp_path: Path
) -> None:
    planned, loaded = encoders
    items = cut(planned, tmp_path)
    batch = next(batches(items, items.shards[0], "cpu"))
    tallies = {}
    for encoder in encoders:
        with Tally(encoder.device) as tally:
            run_pass(encoder, items, batch, encoder.device)
        tallies[encoder] = tally
    assert tallies[planned].operations == tallies[loaded].operations > 0
    assert tallies[planned].peak == pytest.approx(tallies[loaded].peak, rel=0.02)


def test_costs_are_those_of_the_store(encoders: tuple[PlannedEncoder, Encoder], tmp_path: Path) -> None:
    planned, loaded = encoders
    costs = predict_costs(planned, cut(planned, tmp_path), "cpu")
    items = cut(loaded, tmp_path)
    store = make_store(items, tmp_path / "stores", Digests(tmp_path / "stores"), loaded)
    assert costs.disk == pytest.approx(sum(part.bytes for part in store.manifest.shards), rel=0.01)
    passes = [batch for shard in items.shards for batch in batches(items, shard, "cpu")]
    assert costs.passes == len(passes)
    assert costs.pieces == sum(map(len, items.inputs))
    of_passes = []
    operations = 0
    for batch in passes:
        of_passes.append(len(batch) * max(len(items.inputs[item]) for item in batch) ** 2)
        with Tally(loaded.device) as tally:
            run_pass(loaded, items, batch, loaded.device)
        operations += tally.operations
    assert costs.layer == max(of_passes) * loaded.heads * 4
    assert costs.attention == costs.layer * len(loaded.attending)
    assert costs.operations == pytest.approx(operations, rel=0.02)


def test_the_largest_pass_is_bounded_by_the_device(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extraction.BATCH_PIECES, "cpu", 60)
    planned = PlannedEncoder(resolve(EncoderSpec(str(bert))))
    items = cut(planned, tmp_path)
    on_cpu = predict_costs(planned, items, "cpu")
    on_gpu = predict_costs(planned, items, "cuda")
    assert on_gpu.passes < on_cpu.passes
    assert on_gpu.layer > on_cpu.layer
    assert on_gpu.workers == 1


def test_streamed_words_need_less_than_a_store(bert: Path, tmp_path: Path) -> None:
    planned = PlannedEncoder(resolve(EncoderSpec(str(bert))))
    items = cut(planned, tmp_path)
    with Tally() as stored:
        run_pass(planned, items, items.shards[0], planned.device)
    with Tally() as streamed:
        find_most_attended(planned, items, items.shards[0])
    assert 0 < streamed.peak < stored.peak


def test_a_tally_counts_the_living() -> None:
    """256 numbers, then 16 more while they live, then 64 after they are gone."""
    with Tally() as tally:
        states = torch.zeros(16, 16, device="meta")
        row = states.sum(0)
        del states
        matrix = torch.ones(8, 8, device="meta")
        assert tally.peak == 4 * (256 + 16)
        product = matrix.T @ matrix  # a view is no new tensor
        assert tally.turnover == 4 * (256 + 16 + 64 + 64)
    assert tally.operations == 2 * 8**3
    assert tally.peak == 4 * (256 + 16)
    with Tally() as of_view:
        assert matrix.view(64).is_meta
    assert of_view.peak == 0
    assert row.is_meta
    assert product.shape == (8, 8)


def test_what_bypasses_the_interface_is_refused(tmp_path: Path) -> None:
    model = tiny.build("xlnet", 0, d_model=16, n_layer=2, n_head=4, d_inner=32)
    folder = tiny.save(tmp_path / "xlnet", model, tiny.bert_tokenizer())
    with pytest.raises(
        EncoderError, match=r"its memory cannot be predicted without its weights \(.*\)\. Run it on a few"
    ):
        PlannedEncoder(resolve(EncoderSpec(str(folder))))


def test_a_tally_counts_the_tensors_of_one_device() -> None:
    """A tensor of the host, and its copy on the device: 16 numbers of 8 bytes, once on each."""
    for device in ("meta", "cpu"):
        with Tally(device) as tally:
            indices = torch.tensor([0] * 16)
            copied = indices.to("meta")
        assert tally.peak == 8 * 16, device
        assert copied.shape == indices.shape


def test_spare_memory_is_no_more_than_all_passes_allocate(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = PlannedEncoder(resolve(EncoderSpec(str(bert))))
    items = cut(planned, tmp_path)
    few = predict_costs(planned, items, "cpu")
    assert few.peak < few.spare < extraction.GROWTH
    monkeypatch.setattr("attention_probing.attention.costs.GROWTH", 1000)
    assert predict_costs(planned, items, "cpu").spare == 1000
    assert predict_costs(planned, items, "cuda").spare == 0
