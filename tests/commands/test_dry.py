"""What `--dry` predicts of a command line, and that it leaves nothing behind."""

from dataclasses import replace
from pathlib import Path

import pytest

from attention_probing import commands
from attention_probing.attention import EncoderSpec
from attention_probing.commands.dry import describe, predict
from attention_probing.datamodules import DependencyDataModule
from tests import tiny


@pytest.fixture
def line(tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a treebank and an encoder, given in an empty folder; the encoder's weights are not there."""
    trees = tiny.write_splits(tmp_path)
    folder = tmp_path / "model"
    folder.mkdir()
    for path in bert.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).symlink_to(path)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv("PROBING_CACHE", raising=False)
    return ["--corpus", trees, "--encoder", str(folder)]


@pytest.mark.parametrize(
    ("command", "data"),
    [
        (["measure", "clark2019/heads"], "dev, test"),
        (["fit", "demo", "--trainer.accelerator", "cpu"], "train, dev, test"),
    ],
    ids=["measure", "fit"],
)
def test_it_predicts_without_weights_and_leaves_nothing(
    command: list[str], data: str, line: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert commands.main([*command, *line, "--dry"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    names = [text.split(" ")[0] for text in said.splitlines() if text[:1].strip()]
    assert names == ["data", "encoder", "weights", "one", "passes", "memory", "store", "time", "Nothing"]
    assert f"{data}: " in said
    assert "2 layers × 4 heads" in said
    assert "Nothing was computed or stored, and no weights were read." in said
    assert not list(Path().iterdir())


def test_a_stream_stores_nothing(line: list[str]) -> None:
    _, trees, _, folder = line
    lines = {}
    for store in ("disk", "stream"):
        data = DependencyDataModule(trees, encoder=EncoderSpec(folder), store=store)
        prediction = predict(data, "test", "cpu")
        lines[store] = describe(prediction)
        assert prediction.memory > prediction.on_device > prediction.encoder.weights
    assert lines["stream"]["store"] == "nothing: the attention is streamed"
    assert lines["disk"]["store"].endswith("kB on disk")
    assert "for each reading" in lines["stream"]["time"]


def test_a_limit_holds(line: list[str]) -> None:
    _, trees, _, folder = line
    whole, few = (
        predict(DependencyDataModule(trees, encoder=EncoderSpec(folder), limit=most), "test", "cpu")
        for most in (None, 4)
    )
    assert 0 < few.costs["dev"].pieces < whole.costs["dev"].pieces
    assert few.disk < whole.disk


def test_random_weights_are_a_second_encoder(line: list[str]) -> None:
    _, trees, _, folder = line
    once, twice = (
        predict(DependencyDataModule(trees, encoder=EncoderSpec(folder), random_init=both), "fit", "cpu")
        for both in (False, True)
    )
    assert (once.encoders, twice.encoders) == (1, 2)
    assert twice.readings == {"train": 1, "dev": 2, "test": 2}
    costs = once.costs
    assert twice.disk - once.disk == costs["dev"].disk + costs["test"].disk
    assert twice.operations - once.operations == costs["dev"].operations + costs["test"].operations
    weights = once.encoder.weights
    spare = max(one.spare for one in costs.values())
    assert twice.on_device == max(once.on_device + weights, 3 * weights + spare)
    assert "and the same with untrained layers" in describe(twice)["encoder"]


def test_weights_and_tokenizer_are_read_one_after_the_other(line: list[str]) -> None:
    """The mapped file is gone when the tokenizer is read, and the tokenizer's garbage when the passes begin."""
    _, trees, _, folder = line
    given = predict(DependencyDataModule(trees, encoder=EncoderSpec(folder)), "test", "cpu")
    weights = given.encoder.weights
    much = 10**12
    mapped = replace(given, mapped=much)
    assert mapped.memory == given.start + weights + much
    reading = replace(given, reading=much)
    assert reading.memory == much + weights
    assert replace(mapped, reading=much).memory == max(mapped.memory, reading.memory)
    passing = replace(given, host=much)
    assert passing.memory == much + given.on_device


def test_each_encoder_has_a_tokenizer(line: list[str]) -> None:
    _, trees, _, folder = line
    data = DependencyDataModule(trees, encoder=EncoderSpec(folder), random_init=True)
    twice = replace(predict(data, "test", "cpu"), beside=0)
    assert replace(twice, beside=10**9).memory == twice.host + 10**9 + twice.on_device
    spare = max(one.spare for one in twice.costs.values())
    drawing = replace(twice, mapped=10**9)
    assert drawing.on_device == 2 * twice.encoder.weights + 10**9 + spare
    assert describe(drawing)["memory"].endswith("beside the pretrained ones, which are read again")
    once = predict(DependencyDataModule(trees, encoder=EncoderSpec(folder)), "test", "cpu")
    assert describe(once)["memory"].endswith("for program, tokenizer and corpus")


def test_a_gpu_that_is_not_here_has_memory_and_no_speed(line: list[str]) -> None:
    _, trees, _, folder = line
    prediction = predict(DependencyDataModule(trees, encoder=EncoderSpec(folder)), "test", "gpu")
    assert prediction.memory == prediction.on_device
    assert prediction.seconds is None
    assert "of each GPU at the peak" in describe(prediction)["memory"]
    assert describe(prediction)["time"].endswith("there is no GPU here to measure their speed")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "demo_classifier"], "--dry predicts data whose attention is stored or streamed"),
        (["fit", "demo", "--data.encoder", "null"], "--data.encoder is null, so there is no encoder"),
        (["measure", "clark2019/heads", "--corpus", "none-{split}.conllu"], "no such file"),
    ],
)
def test_what_cannot_be_predicted_is_told(
    words: list[str], message: str, line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main([*words, "--dry"]) == 1
    said = capsys.readouterr().err
    assert message in " ".join(said.split())
