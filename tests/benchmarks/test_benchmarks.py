"""Each benchmark as the command line runs it, on a few sentences of the sample."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from attention_probing.attention import Encoder, EncoderSpec, resolve
from attention_probing.corpora.conllu import read_treebank
from attention_probing.datamodules import AttentionBatch, DependencyDataModule
from attention_probing.models import RecurrentEncoder
from benchmarks import (
    ablation,
    classifier_training,
    extraction,
    head_distances,
    heads,
    job,
    models,
    prediction,
    probe_training,
    start,
    streaming,
    surface,
)
from benchmarks.extraction import TimedExtraction
from benchmarks.heads import HeadByHead, OnePass
from benchmarks.memory import Ended
from benchmarks.probe_training import DataPass, PlainData
from benchmarks.reference import Reference
from tests.benchmarks.conftest import Measured, Numbers

pytestmark = pytest.mark.usefixtures("_bundle")
# Of each benchmark its ratios, as quotients of figures where these are reported, and what it counted.
BENCHMARKS: dict[ModuleType, tuple[dict[str, str], Numbers]] = {
    extraction: (
        {"to_bare_forward": "extraction_s / bare_forward_s", "over_reference": "", "bytes": ""},
        {"sentences": 30, "reference_sentences": 30},
    ),
    probe_training: (
        {
            "epoch_over_data_pass": "epoch_s / data_pass_s",
            "epoch_over_cast": "epoch_s / cast_s",
            "data_pass_over_cast": "data_pass_s / cast_s",
            "words_epoch_over_data_pass": "words_epoch_s / words_data_pass_s",
            "words_epoch_over_cast": "words_epoch_s / cast_s",
            "over_batch_of_one": "batch_of_one_s / batches_s",
        },
        {"sentences": 30},
    ),
    classifier_training: ({"packed_over_epoch": "packed_epoch_s / epoch_s"}, {"texts": 30}),
    head_distances: ({"over_reference": "reference_s / streamed_s"}, {"segments": 16, "heads": 72}),
    start: ({"to_torch": "measure_s / torch_s", "to_lightning": "measure_s / lightning_s"}, {}),
    surface: ({"to_bare_forward": "surface_s / bare_forward_s", "capture_to_bare_forward": ""}, {"segments": 30}),
    ablation: ({"over_reference": "reference_s / ablation_s"}, {"texts": 30, "heads": 72}),
    models: (
        {"all-MiniLM-L6-v2_permutation_to_passes": "all-MiniLM-L6-v2_permutation_s / all-MiniLM-L6-v2_passes_s"},
        {"all-MiniLM-L6-v2_sentences": 30},
    ),
    heads: (
        {
            "over_reference": "reference_s / one_pass_s",
            "stability_over_pass": "",
            "permutations_over_reference": "permutations_reference_s / permutations_s",
            "reduction_over_product": "reduction_product_s / reduction_s",
        },
        {"sentences": 30, "predictors": 144},
    ),
    prediction: (
        {
            f"all-MiniLM-L6-v2_{name}": f"all-MiniLM-L6-v2_predicted_{name} / all-MiniLM-L6-v2_measured_{name}"
            for name in ("memory_mb", "disk_mb", "passes_s")
        },
        {},
    ),
    streaming: (
        dict.fromkeys(("to_bare_forward", "all_layers_to_bare_forward", "stream_over_store"), ""),
        {"sentences": 30},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("module", BENCHMARKS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_benchmark_reports_its_ratios(module: ModuleType, measured: Measured) -> None:
    name, ratios, figures = measured(module.main, "--limit", "30", "--no-memory")
    quotients, counts = BENCHMARKS[module]
    assert name == module.__name__.rpartition(".")[2]
    assert ratios.keys() >= quotients.keys()
    for ratio, (above, slash, below) in ((ratio, quotient.partition(" / ")) for ratio, quotient in quotients.items()):
        assert not slash or ratios[ratio] == pytest.approx((ratios | figures)[above] / (ratios | figures)[below])
    assert figures.items() >= counts.items()
    assert all(value > 0 for figure, value in figures.items() if figure.endswith("_s"))
    assert all(value < 1e-3 for figure, value in figures.items() if figure.endswith("_difference"))


def test_peaks_are_compared(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in ("_against_forward", "_against_reference"):
        monkeypatch.setattr(extraction, stage, lambda *_: None)

    def ran(kind: str, cache: Path, *, train: Path, quantity: str) -> Ended:
        assert quantity == "attention"
        assert not cache.exists(), "a run that finds its stores complete extracts nothing"
        return Ended({}, {"small.conllu": 400.0, "large.conllu": 420.0}[train.name])

    monkeypatch.setattr(extraction, "run_job", ran)
    _, ratios, figures = measured(extraction.main, "--limit", "10")
    assert ratios == {"peak_rss_large_over_small": 1.05}
    assert (figures["peak_rss_mb_small"], figures["peak_rss_mb_large"]) == (400, 420)


def test_peaks_of_streams_are_compared(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in ("_against_forward", "_against_store", "_rounding"):
        monkeypatch.setattr(streaming, stage, lambda *_: None)
    monkeypatch.setattr(streaming, "decoder", lambda *_, **__: resolve(EncoderSpec()).folder)
    monkeypatch.setattr(streaming, "LONG", 400)
    read: list[list[int]] = []

    def ran(kind: str, _: Path, *, train: Path, dev: Path, encoder: Path | None = None) -> Ended:
        read.append([len(sentence) for sentence in read_treebank(train).sentences])
        return Ended({}, 500.0 + max(read[-1]))

    monkeypatch.setattr(streaming, "run_job", ran)
    _, _, figures = measured(streaming.main)
    assert [len(lengths) for lengths in read] == [200, 2000, 20, 1]
    assert 300 < read[-1][0] < 400
    assert figures["long_over_short_mb"] == read[-1][0] - max(read[-2])


def test_packed_sequences_give_the_same_states() -> None:
    """Both sides of the ratio do the same."""
    ours, packed = RecurrentEncoder(hidden=classifier_training.HIDDEN), classifier_training.PackedEncoder()
    ours.build(5)
    packed.build(5)
    for direction, network in zip(("", "_reverse"), ours.networks[0], strict=True):  # type: ignore[call-overload]
        for name, parameter in network.named_parameters():
            getattr(packed.network, f"{name}{direction}").data.copy_(parameter)
    embedded, mask = torch.randn(3, 7, 5), torch.arange(7) < torch.tensor([[7], [2], [5]])
    with torch.no_grad():
        torch.testing.assert_close(packed(embedded, mask), ours(embedded, mask), atol=1e-6, rtol=0)


def test_a_job_trains_and_prints_its_seconds(few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert job.main(["fit", str(tmp_path / "cache"), str(few), "--dev", str(few), "--started", "0"]) == 0
    seconds = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert seconds.keys() == {"startup_s", "ready_s", "fit_s"}
    assert min(seconds.values()) > 0


def test_a_data_pass_reads_every_training_batch(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = job.datamodule(tmp_path / "cache", few, few, batch_size=2)
    seen: list[int] = []
    step = DataPass.training_step

    def counted(self: DataPass, batch: AttentionBatch, batch_idx: int) -> None:
        seen.extend(batch.index.tolist())
        step(self, batch, batch_idx)

    monkeypatch.setattr(DataPass, "training_step", counted)
    assert probe_training.epoch(DataPass, data)() > 0
    assert sorted(seen) == list(range(6))


def test_a_plain_cast_reads_the_same_weights_as_a_data_pass(few: Path, tmp_path: Path) -> None:
    data = job.datamodule(tmp_path / "cache", few, few, batch_size=2)
    data.setup("fit")
    batches = [batch.attention for batch in data.train_dataloader()]
    plain = list(PlainData(data).train_dataloader())
    assert len(plain) == len(batches)
    for packed, weights in zip(plain, batches, strict=True):
        unpacked = torch.where(packed > 0, packed * 2.0**-15, -packed * 2.0**-44)
        assert torch.equal(unpacked, weights)


def test_both_sides_equal_a_count_word_by_word(few: Path, tmp_path: Path) -> None:
    data = DependencyDataModule({"dev": str(few)}, encoder=EncoderSpec(), cache=str(tmp_path))
    data.setup("validate")
    ours, reference = OnePass(data), HeadByHead(data)
    for _ in range(2):  # a second round counts nothing twice
        ours()
        reference()
    store = data.splits["dev"].store
    right, total = [0] * 144, 0
    for item, sentence in enumerate(read_treebank(few).sentences):
        weights = store.read("attention", item).flatten(0, 1).tolist()
        for word, (gold, label) in enumerate(zip(sentence.heads, sentence.relations, strict=True), start=1):
            if label != "det":
                continue
            total += 1
            others = [other for other in range(1, len(sentence) + 1) if other != word]
            for k in range(72):
                forth = max(others, key=lambda other: weights[k][word][other])
                back = max(others, key=lambda other: weights[k][other][word])
                right[k] += forth == gold and weights[k][word][forth] > 0
                right[72 + k] += back == gold and weights[k][back][word] > 0
    assert total > 0
    assert reference.counts["det"] == ours.counts["det"] == [(hits, total) for hits in right]
    assert reference.counts == ours.counts
    assert ours.counts["all"][0][1] == sum(map(len, read_treebank(few).sentences))


def test_a_store_that_differs_is_refused(few: Path, tmp_path: Path) -> None:
    encoder = Encoder(resolve(EncoderSpec()))
    ours = TimedExtraction(few, encoder, tmp_path)
    ours()
    assert ours.store is not None
    reference = Reference(ours.treebank, encoder, tmp_path / "reference.npz")
    reference()
    assert 0 < reference.check(ours.store) < 1e-3

    with np.load(reference.target) as saved:
        arrays = dict(saved)
    arrays["3"][2, 1, 0, 0] += 0.01
    np.savez(reference.target, **arrays)
    with pytest.raises(RuntimeError, match="differs from the reference's by 1"):
        reference.check(ours.store)
    del arrays["3"]
    np.savez(reference.target, **arrays)
    with pytest.raises(RuntimeError, match="5 sentences by the reference, 6 in the store"):
        reference.check(ours.store)
