"""Classifiers that come back from their checkpoints alone."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from datamodules import ClassificationDataModule
from fidelity.checkpoints import load
from models import TextClassifier
from results.errors import UserError
from tests.fidelity.trained import Data, fitted


@pytest.fixture(scope="module")
def texts(runs: Path) -> Data:
    """What the runs were trained on, set up for a test."""
    corpus, cache = runs.parent / "texts" / "{split}.tsv", runs.parent / "stores"
    data = ClassificationDataModule(str(corpus), positive="good", cache=str(cache))
    data.setup("test")
    return data


def one(runs: Path, name: str) -> Path:
    (found,) = (runs / name).rglob("*.ckpt")
    return found


def test_a_classifier_says_what_it_said_when_it_was_tested(runs: Path, texts: Data) -> None:
    (found,) = load([one(runs, "base-0")], texts)
    expected = pd.read_parquet(next((runs / "base-0").rglob("items.parquet")))["probability.good"]
    with torch.no_grad():
        probabilities = found.model(texts.splits["test"][list(range(len(expected)))]).logits.softmax(-1)
    torch.testing.assert_close(probabilities[:, 1].numpy(), expected.to_numpy("float32"), atol=1e-6, rtol=0)
    assert not found.model.training
    assert not any(parameter.requires_grad for parameter in found.model.parameters())


def test_variants_of_one_name_are_told_apart_by_what_differs(runs: Path, texts: Data) -> None:
    found = load([runs], texts)
    assert [checkpoint.name for checkpoint in found] == [
        "base, attention AdditiveAttention, seed 0",
        "base, attention AdditiveAttention, seed 1",
        "base, attention DotAttention, seed 0",
        "tying, regularizers.0.weight 0.1, seed 0",
        "tying, regularizers.0.weight 1.0, seed 0",
    ]


def test_options_of_a_class_tell_apart_those_that_have_it(runs: Path, texts: Data) -> None:
    """α is an option of sparse attention alone, and its other options are equal."""
    sparse = [
        fitted(
            runs.parent,
            f"sparse-{alpha}",
            f"--model.init_args.attention={{class_path: EntmaxAttention, init_args: {{alpha: {alpha}}}}}",
        )
        for alpha in (1.5, 2)
    ]
    assert [checkpoint.variant for checkpoint in load([one(runs, "base-0"), *sparse], texts)] == [
        "base, attention AdditiveAttention",
        "base, attention EntmaxAttention, attention.alpha 1.5",
        "base, attention EntmaxAttention, attention.alpha 2.0",
    ]


def test_two_checkpoints_of_one_training_are_no_two_seeds(runs: Path, texts: Data, tmp_path: Path) -> None:
    first, last, copy = one(runs, "base-0"), tmp_path / "last.ckpt", tmp_path / "copy.ckpt"
    torch.save({**torch.load(first, weights_only=True), "epoch": 7}, last)
    with pytest.raises(
        UserError, match=r"last\.ckpt and .* have the same settings and seed \(base, seed 0\)\. Give only one"
    ):
        load([first, last], texts)
    shutil.copy(first, copy)
    with pytest.raises(UserError, match=r"copy\.ckpt and .*are the same checkpoint\. Give only one"):
        load([first, copy], texts)


def saved(**content: object) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def of_config(config: object) -> Callable[[bytes], bytes]:
    """The checkpoint of a classifier that says this of its run."""
    run = {"state_dict": {}, "epoch": 0, "pytorch-lightning_version": "2.6"}
    return lambda whole: saved(**run, **{TextClassifier.checkpoint_key: {}, "config": config})


def flipped(whole: bytes) -> bytes:
    """One bit of a weight: PyTorch would load it."""
    content = bytearray(whole)
    weights = torch.load(io.BytesIO(whole), weights_only=True)["state_dict"]["decision.weight"]
    content[content.index(weights.numpy().tobytes())] ^= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (of_config("- a"), "the checkpoint does not contain the configuration of its model"),
        (
            of_config("model: 3\ndata: {}\nseed_everything: 0"),
            "the checkpoint does not contain the configuration of its model",
        ),
        (lambda whole: b"no checkpoint", "this is not a checkpoint of a run"),
        (lambda whole: whole[:2000], "the checkpoint is damaged: it cannot be read as a zip archive"),
        (flipped, r"the checkpoint is damaged: its part .*data/\d+ has a wrong checksum"),
        (lambda whole: saved(state_dict={}), "this is not a checkpoint of a run"),
        (
            lambda whole: saved(**{"state_dict": {}, "epoch": 0, "pytorch-lightning_version": "2.6"}),
            r"this is not a checkpoint of a text classifier.*train\.py fit",
        ),
    ],
)
def test_what_is_no_checkpoint_is_named(
    made: Callable[[bytes], bytes], message: str, runs: Path, texts: Data, tmp_path: Path
) -> None:
    path = tmp_path / "given.ckpt"
    path.write_bytes(made(one(runs, "base-0").read_bytes()))
    with pytest.raises(UserError, match=rf"given\.ckpt: {message}"):
        load([path], texts)


def test_data_that_it_was_not_trained_on_are_refused_by_the_name_of_the_file(runs: Path, tmp_path: Path) -> None:
    other = ClassificationDataModule(
        str(runs.parent / "texts" / "{split}.tsv"), positive="good", min_count=12, cache=str(tmp_path)
    )
    other.setup("test")
    with pytest.raises(UserError, match=r"\.ckpt: The checkpoint was trained on other data \(difference in vocabulary"):
        load([one(runs, "base-0")], other)
