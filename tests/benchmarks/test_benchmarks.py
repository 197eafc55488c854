"""Each benchmark as the command line runs it, on a few sentences of the sample."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from attention import Encoder, EncoderSpec, resolve
from benchmarks import classifier_training, extraction, heads, job, probe_training, store
from benchmarks.extraction import TimedExtraction
from benchmarks.heads import HeadByHead, OnePass, check
from benchmarks.memory import Ended
from benchmarks.probe_training import DataPass
from benchmarks.reference import Reference, merge
from corpora.conllu import read_treebank
from datamodules import AttentionBatch, DependencyDataModule
from models import RecurrentEncoder
from tests.benchmarks.conftest import Measured

pytestmark = pytest.mark.usefixtures("_bundle")


@pytest.mark.slow
def test_extraction(measured: Measured) -> None:
    name, ratios, figures = measured(extraction.main, "--limit", "30", "--no-memory")
    assert name == "extraction"
    assert ratios.keys() == {"to_bare_forward", "to_bare_side_by_side", "over_reference", "bytes"}
    assert 1 < ratios["bytes"] < 1.05  # a few sentences weigh little beside the labels and the manifest
    assert ratios["to_bare_forward"] == pytest.approx(figures["extraction_s"] / figures["bare_forward_s"])
    assert figures["sentences"] == figures["reference_sentences"] == 30
    assert 0 < figures["reference_difference"] < 1e-3


def test_peaks_are_compared(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in ("_against_forward", "_against_reference"):
        monkeypatch.setattr(extraction, stage, lambda *_: None)

    def ran(kind: str, cache: Path, *, train: Path, dev: Path | None = None) -> Ended:
        assert not cache.exists(), "a run that finds its stores complete extracts nothing"
        return Ended({}, {"small.conllu": 400.0, "large.conllu": 420.0}[train.name])

    monkeypatch.setattr(extraction, "run_job", ran)
    _, ratios, figures = measured(extraction.main, "--limit", "10")
    assert ratios == {"peak_rss_large_over_small": 1.05}
    assert (figures["peak_rss_mb_small"], figures["peak_rss_mb_large"]) == (400, 420)


def test_probe_training(measured: Measured) -> None:
    name, ratios, figures = measured(probe_training.main, "--limit", "30", "--no-memory")
    assert name == "probe_training"
    assert ratios.keys() == {"epoch_over_data_pass", "words_epoch_over_data_pass", "over_batch_of_one"}
    for kind in ("", "words_"):
        ratio = figures[f"{kind}epoch_s"] / figures[f"{kind}data_pass_s"]
        assert ratios[f"{kind}epoch_over_data_pass"] == pytest.approx(ratio)
        assert figures[f"{kind}epoch_gb_per_s"] > 0
    assert ratios["over_batch_of_one"] == pytest.approx(figures["batch_of_one_s"] / figures["batches_s"])
    assert figures["sentences"] == 30


def test_classifier_training(measured: Measured) -> None:
    name, ratios, figures = measured(classifier_training.main, "--limit", "40", "--no-memory")
    assert name == "classifier_training"
    assert ratios == {"packed_over_epoch": pytest.approx(figures["packed_epoch_s"] / figures["epoch_s"])}
    assert figures["texts"] == 40
    assert figures["tokens_per_s"] > 40 / figures["epoch_s"]


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


@pytest.mark.slow
def test_store(measured: Measured) -> None:
    name, ratios, figures = measured(store.main, "--limit", "30")
    assert name == "store"
    assert ratios["reads_to_numpy_memmap"] == pytest.approx(figures["memmap_reads_per_s"] / figures["reads_per_s"])
    assert min(figures["ready_s"], figures["first_ready_s"]) > 0
    assert figures["startup_s"] > 0.5  # importing PyTorch
    assert figures["sequential_gb_per_s"] > 0
    assert figures["labels_bytes"] > 0


@pytest.mark.slow
def test_a_plain_map_reads_what_the_store_reads(few: Path, tmp_path: Path) -> None:
    data = job.datamodule(tmp_path / "cache", few)
    data.setup("fit")
    opened = data.stores["train"]
    plain = store.PlainMap(opened)
    for item in range(6):
        assert torch.equal(plain.read(item), opened.read("attention", item))
    items = [3, 0, 3]
    expected = sum(float(opened.read("attention", item).float().sum()) for item in items)
    assert store.total(plain.read, items) == pytest.approx(expected)


def test_a_job_trains_and_prints_its_seconds(few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert job.main(["fit", str(tmp_path / "cache"), str(few), "--dev", str(few), "--started", "0"]) == 0
    seconds = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert seconds.keys() == {"startup_s", "ready_s", "fit_s"}
    assert min(seconds.values()) > 0


def test_a_data_pass_reads_every_training_batch(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = job.datamodule(tmp_path / "cache", few, few, max_sentences=2)
    seen: list[int] = []
    step = DataPass.training_step

    def counted(self: DataPass, batch: AttentionBatch, batch_idx: int) -> None:
        seen.extend(batch.index.tolist())
        step(self, batch, batch_idx)

    monkeypatch.setattr(DataPass, "training_step", counted)
    assert probe_training.epoch(DataPass, data)() > 0
    assert sorted(seen) == list(range(6))


@pytest.mark.slow
def test_heads(measured: Measured) -> None:
    name, ratios, figures = measured(heads.main, "--limit", "30", "--no-memory")
    assert name == "heads"
    assert ratios == {"over_reference": pytest.approx(figures["reference_s"] / figures["one_pass_s"])}
    assert (figures["corpus"], figures["sentences"], figures["predictors"]) == ("sample", 30, 144)


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


def test_a_single_different_count_is_refused() -> None:
    ours = {"all": [(3, 9), (4, 9)], "det": [(1, 2), (2, 2)]}
    check(ours, {"det": [(1, 2), (2, 2)], "all": [(3, 9), (4, 9)]})
    other = {
        "differ from the reference's on 1 relations, the first 'det'": {"det": [(1, 2), (1, 2)]},
        "differ .* 'all'": {"all": [(3, 9), (4, 10)]},
        r"not counted \['obj'\]": {"obj": [(0, 1), (0, 1)]},
    }
    for message, counts in other.items():
        with pytest.raises(RuntimeError, match=message):
            check(ours, ours | counts)


def test_merging_equals_a_triple_loop() -> None:
    attention = np.random.default_rng(0).dirichlet(np.ones(7), 7).astype(np.float32)
    words = [[0], [1, 2, 3], [4], [5], [6]]
    expected = np.zeros((5, 5))
    for i, sources in enumerate(words):
        for j, targets in enumerate(words):
            for source in sources:
                for target in targets:
                    expected[i, j] += attention[source, target] / len(sources)
    merged = merge(attention, words)
    np.testing.assert_allclose(merged, expected, atol=1e-6)
    np.testing.assert_allclose(merged.sum(1), 1, atol=1e-6)


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
    np.savez(reference.target, allow_pickle=False, **arrays)
    with pytest.raises(RuntimeError, match="differs from the reference's by 1"):
        reference.check(ours.store)
    del arrays["3"]
    np.savez(reference.target, allow_pickle=False, **arrays)
    with pytest.raises(RuntimeError, match="5 sentences by the reference, 6 in the store"):
        reference.check(ours.store)
