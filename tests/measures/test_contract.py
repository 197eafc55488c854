"""The loop over the batches of a datamodule, and what a measurement may ask of it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attention_probing.attention import Encoder, EncoderSpec
from attention_probing.datamodules import (
    AtlasDataModule,
    AttentionBatch,
    ClassificationDataModule,
    CoreferenceDataModule,
    CorpusDataModule,
    DependencyDataModule,
    PairDataModule,
    TextDataModule,
    TextSource,
)
from attention_probing.measures import AttentionAnalyses, Clusters, Measure, Surface, measure
from attention_probing.metrics.rows import Rows
from attention_probing.results import Estimate, Result
from attention_probing.results.errors import UserError

MakeData = Callable[..., DependencyDataModule]
SMALL = 20
"""Padded cells of a batch, so that each split has several."""


class Lengths(Measure[DependencyDataModule]):
    """The words of each sentence of test, read as batches of a few."""

    experiment = "lengths"
    takes = DependencyDataModule

    def begin(self) -> None:
        assert not torch.is_inference_mode_enabled()
        self.data.read_only(frozenset())
        self.rows = Rows()
        self.steps = ["begin"]

    def update(self, batch: AttentionBatch) -> None:
        assert torch.is_inference_mode_enabled()
        assert not self.training
        self.steps.append(batch.split)
        if batch.split == "test":
            self.rows.add(batch.index, words=batch.lengths)

    def result(self) -> Result:
        found = self.rows.take()
        words = float(found["words"].sum())
        return Result(self.experiment, {"words": Estimate(words, unit="count")}, headline=["words"])


def test_each_batch_is_read_once_dev_before_test(make_data: MakeData) -> None:
    measurement, data = Lengths(), make_data(max_cells=SMALL)
    result = measure(data, measurements=measurement)
    assert result.numbers["words"] == sum(data.splits["test"].lengths)
    assert measurement.steps[0] == "begin"
    splits = measurement.steps[1:]
    assert splits == sorted(splits, key=["dev", "test"].index)
    assert min(splits.count(split) for split in ("dev", "test")) > 2


class Attention(Measure[DependencyDataModule]):
    """The attention of all words together."""

    experiment = "attention"
    takes = DependencyDataModule

    def begin(self) -> None:
        self.total = 0.0

    def update(self, batch: AttentionBatch) -> None:
        self.total += float(batch.attention.sum())

    def result(self) -> Result:
        return Result(self.experiment, {"total": Estimate(self.total, unit="ratio")})


def test_a_measurement_reads_all_fields_whatever_the_one_before_it_left_out(make_data: MakeData) -> None:
    alone = measure(make_data(), measurements=Attention()).numbers["total"]
    assert alone > 0
    _, after = measure(make_data(), measurements=[Lengths(), Attention()])
    assert after.numbers["total"] == alone


def test_an_encoder_whose_weights_were_changed_in_memory_is_refused(bert: Path, corpus: str) -> None:
    encoder = Encoder(EncoderSpec(str(bert)))
    measure(corpus, encoder, Attention())
    with torch.no_grad():
        next(encoder.model.parameters()).mul_(2)
    with pytest.raises(UserError, match=r"were changed after it had been loaded.*Encoder\.from_model"):
        measure(corpus, encoder, Attention())


def test_a_limit_leaves_some_batches_of_each_dataloader_or_is_refused(make_data: MakeData) -> None:
    measurement = Lengths()
    measure(make_data(max_cells=SMALL), measurements=measurement, limit=1)
    assert measurement.steps == ["begin", "dev", "test"]
    for limit in (0.001, 0):
        with pytest.raises(UserError, match=rf"`limit={limit}` selects none of \d+ batches"):
            measure(make_data(), measurements=Lengths(), limit=limit)


@pytest.mark.parametrize("data", [None, CoreferenceDataModule("sample")], ids=["none", "other"])
def test_data_that_a_measurement_does_not_take_are_named(data: Any) -> None:  # noqa: ANN401
    found = "no data are given" if data is None else "CoreferenceDataModule has none"
    with pytest.raises(UserError, match=f"Lengths needs gold arcs, but {found}. Give DependencyDataModule"):
        measure(data, measurements=Lengths())


class Made(Measure[Any]):
    """Reads nothing."""

    experiment = "made"

    def __init__(self, takes: type) -> None:
        super().__init__()
        self.takes = takes  # type: ignore[misc]

    def result(self) -> Result:
        return Result(self.experiment, {})


def test_a_corpus_is_read_by_the_encoder_however_both_are_given(
    make_data: MakeData, bert: Path, corpus: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBING_CACHE", cache)
    data = make_data()
    words = measure(data, measurements=Lengths()).numbers
    files = {split: str(path) for split, path in data.files().items()}
    for given, encoder in ((corpus, str(bert)), (Path(corpus), EncoderSpec(str(bert))), (files, Encoder(str(bert)))):
        measurement = Lengths()
        assert measure(given, encoder, measurement).numbers == words
        assert measurement.data.encoder == EncoderSpec(str(bert))


@pytest.mark.filterwarnings("error:The `srun` command is available")
def test_python_needs_no_task_of_slurm(make_data: MakeData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), os.pathsep)
    monkeypatch.setenv("SLURM_NTASKS", "2")  # as in a notebook of a job
    monkeypatch.setenv("SLURM_JOB_NAME", "notebook")
    assert measure(make_data(), measurements=Lengths()).experiment == "lengths"
    monkeypatch.delenv("SLURM_NTASKS")
    assert measure(make_data(), measurements=Lengths()).experiment == "lengths"


def test_several_measurements_share_the_data_of_a_class(
    bert: Path, corpus: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBING_CACHE", cache)
    first, second = Lengths(), Lengths()
    one, two = measure(corpus, str(bert), [first, second])
    assert first.data is second.data
    assert one.numbers == two.numbers == {"words": sum(first.data.splits["test"].lengths)}
    assert [result.experiment for result in measure(first.data, measurements=[Lengths()])] == ["lengths"]


def test_measurements_of_maps_share_one_pass(bert: Path, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = TextDataModule([TextSource("sample", limit=9)], EncoderSpec(str(bert)), cache=cache, max_length=48)
    capture, passes = Encoder.capture, list[Encoder]()

    def counted(self: Encoder, *args: Any, **options: Any) -> None:  # noqa: ANN401
        passes.append(self)
        capture(self, *args, **options)

    monkeypatch.setattr(Encoder, "capture", counted)
    surface, clusters = measure(data, measurements=[Surface(), Clusters()])
    assert len(passes) == len(list(data.test_dataloader()[0]))
    assert surface.experiment == "surface"
    assert "behaviour" in clusters.tables["clusters"].frame  # of `Surface` in the same pass
    merged = measure(data, measurements=AttentionAnalyses([Surface(), Clusters()]))
    assert surface.numbers | clusters.numbers == merged.numbers
    with pytest.raises(UserError, match="Lengths does not read the attention maps"):
        AttentionAnalyses([Lengths()])


@pytest.mark.parametrize(
    ("takes", "made"),
    [
        *((kind, kind) for kind in (DependencyDataModule, CoreferenceDataModule, PairDataModule)),
        (ClassificationDataModule, ClassificationDataModule),
        (CorpusDataModule, TextDataModule),
    ],
)
def test_a_corpus_becomes_the_datamodule_that_a_measurement_takes(
    takes: type, made: type[CorpusDataModule[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made, "setup", lambda self, stage: None)
    monkeypatch.setattr(made, "test_dataloader", lambda self: [])
    measurement = Made(takes)
    measure("my-{split}.tsv", "gpt2", measurement)
    assert type(measurement.data) is made
    files = {path.name for path in measurement.data.files().values()}
    assert files <= {"my-train.tsv", "my-dev.tsv", "my-test.tsv", "my-{split}.tsv"}
    assert files
    reader = "tokenizer" if made is ClassificationDataModule else "encoder"
    assert getattr(measurement.data, reader) == EncoderSpec("gpt2")


def test_what_cannot_be_measured_in_python_is_refused(make_data: MakeData) -> None:
    with pytest.raises(UserError, match=r"^No measurement is given\. Give .* measurements=\[SingleHeads\(\)\]\.$"):
        measure("sample")
    for corpus in (None, make_data()):
        with pytest.raises(UserError, match="`encoder` needs the name or path of a corpus"):
            measure(corpus, "gpt2", Lengths())
    with pytest.raises(UserError, match="AtlasDataModule needs texts, a treebank and documents, not a single corpus"):
        measure("sample", None, Made(AtlasDataModule))


class Incomplete(Measure[Any]):
    """Says neither what it takes nor what it finds."""

    experiment = "incomplete"


class WithoutResult(Incomplete):
    takes = DependencyDataModule


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Incomplete, "Incomplete must set `takes`, the class of its datamodule"),
        (WithoutResult, "WithoutResult must implement `result`"),
    ],
)
def test_a_class_that_is_not_complete_is_told_before_the_data_are_read(kind: type[Measure[Any]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        measure("no-such-corpus", measurements=kind())
