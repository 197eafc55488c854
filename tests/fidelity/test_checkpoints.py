"""Classifiers that come back from their checkpoints alone."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from datamodules import ClassificationDataModule
from fidelity.checkpoints import FidelityError, data_settings, load, read_config
from models import TextClassifier
from tests.fidelity.trained import WARNINGS, fitted, texts_of

pytestmark = [pytest.mark.filterwarnings(warning) for warning in WARNINGS]
TYING = "--model.init_args.regularizers=[{class_path: Tying, init_args: {weight: 0.1}}]"
STRONGER = "--model.init_args.regularizers=[{class_path: Tying, init_args: {weight: 1.0}}]"
DOT = "--model.init_args.attention=DotAttention"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base with two seeds, tying with two weights, and base with other attention."""
    folder = tmp_path_factory.mktemp("trained")
    fitted(folder, "base-1", seed=1, epochs=1)
    fitted(folder, "base-0", epochs=1)
    fitted(folder, "tying", TYING, epochs=1)
    fitted(folder, "stronger", STRONGER, epochs=1)
    fitted(folder, "dot", DOT, epochs=1)
    return folder


@pytest.fixture(scope="module")
def data(folder: Path) -> ClassificationDataModule:
    return texts_of(folder)


def one(folder: Path, name: str) -> Path:
    return next((folder / name).rglob("*.ckpt"))


def test_a_classifier_says_what_it_said_when_it_was_tested(folder: Path, data: ClassificationDataModule) -> None:
    (found,) = load([one(folder, "base-0")], data)
    items = next((folder / "base-0").rglob("items.parquet"))
    expected = pd.read_parquet(items)
    texts = len(expected)
    with torch.no_grad():
        probabilities = found.model(data.splits["test"][list(range(texts))]).logits.softmax(-1)
    torch.testing.assert_close(
        probabilities[:, 1].numpy(), expected["probability.good"].to_numpy("float32"), atol=1e-6, rtol=0
    )
    assert not found.model.training
    assert not any(parameter.requires_grad for parameter in found.model.parameters())


def test_those_of_one_configuration_are_one_variant_in_the_order_of_their_seeds(
    folder: Path, data: ClassificationDataModule
) -> None:
    found = load([one(folder, "base-1"), one(folder, "tying"), one(folder, "base-0")], data)
    assert [checkpoint.name for checkpoint in found] == ["base, seed 0", "base, seed 1", "tying, seed 0"]
    assert [checkpoint.variant for checkpoint in found] == ["base", "base", "tying"]
    assert [checkpoint.seed for checkpoint in found] == [0, 1, 0]


def test_variants_of_one_name_are_told_apart_by_what_differs(folder: Path, data: ClassificationDataModule) -> None:
    found = load([folder], data)
    assert [checkpoint.name for checkpoint in found] == [
        "base, attention AdditiveAttention, seed 0",
        "base, attention AdditiveAttention, seed 1",
        "base, attention DotAttention, seed 0",
        "tying, regularizers.0.weight 0.1, seed 0",
        "tying, regularizers.0.weight 1.0, seed 0",
    ]


def test_trainings_that_differ_in_more_than_the_seed_are_no_seeds_of_one_variant(
    folder: Path, data: ClassificationDataModule, tmp_path: Path
) -> None:
    longer = fitted(folder, "longer", "--data.init_args.batch_size=16", seed=2, epochs=2)
    found = load([one(folder, "base-0"), longer], data)
    assert [checkpoint.variant for checkpoint in found] == ["base, batch_size 32", "base, batch_size 16"]


def test_of_options_that_change_together_the_models_first_is_named(
    folder: Path, data: ClassificationDataModule
) -> None:
    slower = ["--model.init_args.learning_rate=0.01", "--model.init_args.decay=0.5"]
    fitted(folder, "later/slower", *slower, epochs=2)
    fitted(folder, "later/slower-again", *slower, epochs=2, seed=1)
    fitted(folder, "later/dropout", *slower, "--model.init_args.dropout=0.5", epochs=2)
    found = load([one(folder, "base-0"), folder / "later"], data)
    assert [checkpoint.variant for checkpoint in found] == [
        "base, decay 1.0, dropout 0.0",
        "base, decay 0.5, dropout 0.0",
        "base, decay 0.5, dropout 0.0",
        "base, decay 0.5, dropout 0.5",
    ]


def test_two_checkpoints_of_one_training_are_no_two_seeds(
    folder: Path, data: ClassificationDataModule, tmp_path: Path
) -> None:
    content = torch.load(one(folder, "base-0"), weights_only=True)
    torch.save({**content, "epoch": 7}, tmp_path / "last.ckpt")
    with pytest.raises(FidelityError, match=r"last\.ckpt and .* are both base, seed 0, .*one checkpoint of each train"):
        load([one(folder, "base-0"), tmp_path / "last.ckpt"], data)


def test_a_fresh_one_is_drawn_from_its_seed_and_leaves_the_random_numbers_alone(
    folder: Path, data: ClassificationDataModule
) -> None:
    (found,) = load([one(folder, "tying")], data)
    before = torch.random.get_rng_state()
    first, again, other = found.untrained(data, 3), found.untrained(data, 3), found.untrained(data, 4)
    assert torch.equal(torch.random.get_rng_state(), before)
    same = [torch.equal(a, b) for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True)]
    assert all(same)
    assert first.state_dict().keys() == found.model.state_dict().keys()
    for name in ("decision.weight", "embedding.rows.weight"):
        assert not torch.equal(first.state_dict()[name], other.state_dict()[name])
        assert not torch.equal(first.state_dict()[name], found.model.state_dict()[name])
    assert all(parameter.requires_grad for parameter in first.parameters())


def test_the_data_are_those_that_it_was_trained_on(folder: Path) -> None:
    settings = data_settings(one(folder, "base-0"))
    assert settings.class_path == "datamodules.ClassificationDataModule"
    assert settings.init_args.corpus == str(folder / "texts" / "{split}.tsv")
    assert settings.init_args.positive == "good"
    assert read_config(one(folder, "base-1"))["seed_everything"] == 1


def _text(folder: Path) -> Path:
    path = folder / "text.ckpt"
    path.write_text("no checkpoint")
    return path


def _cut(folder: Path) -> Path:
    path = folder / "cut.ckpt"
    path.write_bytes(one(folder, "base-0").read_bytes()[:2000])
    return path


def _flipped(folder: Path) -> Path:
    """One bit of a weight: PyTorch would load it."""
    content = bytearray(one(folder, "base-0").read_bytes())
    weights = torch.load(one(folder, "base-0"), weights_only=True)["state_dict"]["decision.weight"]
    content[content.index(weights.numpy().tobytes())] ^= 1
    path = folder / "flipped.ckpt"
    path.write_bytes(content)
    return path


def _plain(folder: Path) -> Path:
    path = folder / "plain.ckpt"
    torch.save({"state_dict": {}}, path)
    return path


def _other(folder: Path) -> Path:
    path = folder / "other.ckpt"
    torch.save({"state_dict": {}, "epoch": 0, "pytorch-lightning_version": "2.6"}, path)
    return path


def _empty(folder: Path) -> Path:
    path = folder / "empty"
    path.mkdir(exist_ok=True)
    return path


def _strange(config: object) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        path = _other(folder)
        torch.save(torch.load(path, weights_only=True) | {TextClassifier.checkpoint_key: {}, "config": config}, path)
        return path

    return made


@pytest.mark.parametrize(
    ("made", "message"),
    [
        *(
            (_strange(config), r"other\.ckpt: the checkpoint does not say how its model")
            for config in ("a: [b", "- a", None, "model: 3\ndata: {}\nseed_everything: 0")
        ),
        (lambda folder: folder / "absent.ckpt", r"absent\.ckpt: there is no such checkpoint.*checkpoints '\["),
        (_text, r"text\.ckpt: this is no checkpoint, or a damaged one"),
        (_cut, r"cut\.ckpt: this is no checkpoint, or a damaged one"),
        (_flipped, r"flipped\.ckpt: this is no checkpoint, or a damaged one \(.*data/\d+\)"),
        (_plain, r"plain\.ckpt: this is no checkpoint of a run"),
        (_other, r"other\.ckpt: this is no checkpoint of a text classifier.*train\.py fit"),
        (_empty, r"empty: there is no checkpoint \(\*\.ckpt\) in this folder"),
    ],
)
def test_what_is_no_checkpoint_is_named(
    made: Callable[[Path], Path], message: str, folder: Path, data: ClassificationDataModule, tmp_path: Path
) -> None:
    copied = tmp_path / "base-0"
    shutil.copytree(folder / "base-0", copied)
    with pytest.raises(FidelityError, match=message):
        load([made(tmp_path)], data)


def test_the_same_checkpoint_twice_is_refused(folder: Path, data: ClassificationDataModule, tmp_path: Path) -> None:
    copy = shutil.copy(one(folder, "base-0"), tmp_path / "copy.ckpt")
    with pytest.raises(FidelityError, match=r"copy\.ckpt and .*are the same checkpoint: name it once"):
        load([one(folder, "base-0"), Path(copy)], data)


def test_data_that_it_was_not_trained_on_are_refused_by_the_name_of_the_file(folder: Path, tmp_path: Path) -> None:
    other = ClassificationDataModule(
        str(folder / "texts" / "{split}.tsv"), positive="good", max_words=5, cache=str(tmp_path)
    )
    other.setup("test")
    with pytest.raises(FidelityError, match=r"\.ckpt: The checkpoint was trained on other data \(vocabulary differ"):
        load([one(folder, "base-0")], other)
