"""Each benchmark as the command line runs it, on a few sentences of the sample."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attention import Store
from benchmarks import classifier_training, extraction, job, probe_training, store
from benchmarks.harness import first_sentences
from benchmarks.memory import Ended
from benchmarks.probe_training import DataPass
from corpora.sample import write_sample_treebank
from datamodules import AttentionBatch
from models import RecurrentEncoder

pytestmark = pytest.mark.usefixtures("_bundle")


def _measured(
    main: Callable[[list[str]], int], tmp_path: Path, *options: str
) -> tuple[str, dict[str, float], dict[str, float]]:
    target = tmp_path / "out.json"
    assert main(["--json", str(target), "--corpus", "sample", "--rounds", "1", *options]) == 0
    content = json.loads(target.read_text())
    assert content.keys() == {"benchmark", "machine", "ratios", "figures"}
    return content["benchmark"], content["ratios"], content["figures"]


@pytest.mark.slow
def test_extraction(tmp_path: Path) -> None:
    name, ratios, figures = _measured(extraction.main, tmp_path, "--limit", "30", "--no-memory")
    assert name == "extraction"
    assert ratios.keys() == {"to_bare_forward", "to_bare_side_by_side", "over_reference", "bytes"}
    assert 1 < ratios["bytes"] < 1.05  # a few sentences weigh little beside the labels and the manifest
    assert ratios["to_bare_forward"] == pytest.approx(figures["extraction_s"] / figures["bare_forward_s"])
    assert figures["sentences"] == figures["reference_sentences"] == 30
    assert 0 < figures["reference_difference"] < 1e-3


def test_peaks_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in ("_against_forward", "_against_reference"):
        monkeypatch.setattr(extraction, stage, lambda *_: None)

    def ran(kind: str, cache: Path, *, train: Path, dev: Path | None = None) -> Ended:
        assert not cache.exists(), "a run that finds its stores complete extracts nothing"
        return Ended({}, {"small.conllu": 400.0, "large.conllu": 420.0}[train.name])

    monkeypatch.setattr(extraction, "run_job", ran)
    _, ratios, figures = _measured(extraction.main, tmp_path, "--limit", "10")
    assert ratios == {"peak_rss_large_over_small": 1.05}
    assert (figures["peak_rss_mb_small"], figures["peak_rss_mb_large"]) == (400, 420)


def test_probe_training(tmp_path: Path) -> None:
    name, ratios, figures = _measured(probe_training.main, tmp_path, "--limit", "30", "--no-memory")
    assert name == "probe_training"
    assert ratios.keys() == {"epoch_over_data_pass", "words_epoch_over_data_pass", "over_batch_of_one"}
    for kind in ("", "words_"):
        ratio = figures[f"{kind}epoch_s"] / figures[f"{kind}data_pass_s"]
        assert ratios[f"{kind}epoch_over_data_pass"] == pytest.approx(ratio)
        assert figures[f"{kind}epoch_gb_per_s"] > 0
    assert ratios["over_batch_of_one"] == pytest.approx(figures["batch_of_one_s"] / figures["batches_s"])
    assert figures["sentences"] == 30


def test_classifier_training(tmp_path: Path) -> None:
    name, ratios, figures = _measured(classifier_training.main, tmp_path, "--limit", "40", "--no-memory")
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
def test_store(tmp_path: Path) -> None:
    name, ratios, figures = _measured(store.main, tmp_path, "--limit", "30")
    assert name == "store"
    assert ratios["reads_to_numpy_memmap"] == pytest.approx(figures["memmap_reads_per_s"] / figures["reads_per_s"])
    assert min(figures["ready_s"], figures["first_ready_s"]) > 0
    assert figures["startup_s"] > 0.5  # importing PyTorch
    assert figures["sequential_gb_per_s"] > 0
    assert figures["labels_bytes"] > 0


def _opened(tmp_path: Path) -> Store:
    whole = write_sample_treebank(tmp_path)["dev"]
    data = job.datamodule(tmp_path / "cache", first_sentences([whole], tmp_path / "train.conllu", 6))
    data.setup("fit")
    return data.stores["train"]


@pytest.mark.slow
def test_a_plain_map_reads_what_the_store_reads(tmp_path: Path) -> None:
    opened = _opened(tmp_path)
    plain = store.PlainMap(opened)
    for item in range(6):
        assert torch.equal(plain.read(item), opened.read("attention", item))
    items = [3, 0, 3]
    expected = sum(float(opened.read("attention", item).float().sum()) for item in items)
    assert store.total(plain.read, items) == pytest.approx(expected)


def test_a_job_trains_and_prints_its_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = write_sample_treebank(tmp_path)["dev"]
    train = first_sentences([whole], tmp_path / "train.conllu", 6)
    assert job.main(["fit", str(tmp_path / "cache"), str(train), "--dev", str(train), "--started", "0"]) == 0
    seconds = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert seconds.keys() == {"startup_s", "ready_s", "fit_s"}
    assert min(seconds.values()) > 0


def test_a_data_pass_reads_every_training_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write_sample_treebank(tmp_path)["dev"]
    train = first_sentences([whole], tmp_path / "train.conllu", 6)
    data = job.datamodule(tmp_path / "cache", train, train, max_sentences=2)
    seen: list[int] = []
    step = DataPass.training_step

    def counted(self: DataPass, batch: AttentionBatch, batch_idx: int) -> None:
        seen.extend(batch.index.tolist())
        step(self, batch, batch_idx)

    monkeypatch.setattr(DataPass, "training_step", counted)
    assert probe_training.epoch(DataPass, data)() > 0
    assert sorted(seen) == list(range(6))
