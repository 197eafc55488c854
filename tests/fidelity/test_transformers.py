"""Folders of transformers as classifiers of every test: nothing but their files, and texts."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoConfig, PreTrainedTokenizerFast

import train
from attention import EncoderSpec
from datamodules import ClassificationDataModule
from fidelity import Correlation, SetErasure
from fidelity.checkpoints import Checkpoint, files_of, load
from fidelity.classified import ClassifiedBatch, classify
from fidelity.rationale import Rationale
from fidelity.saliency import Saliency
from models import TransformerClassifier
from models.export import main as export
from results.errors import UserError
from tests import tiny
from tests.fidelity.trained import ROOT

QUICK = f"--config={ROOT / 'configs' / 'fidelity' / 'quick.yaml'}"
LABELS = ("drink", "other")


def write(folder: Path, labels: tuple[str, ...] = LABELS, *, pairs: bool = False) -> str:
    """Texts, or pairs of them, of words that the tokenizers know; returns their path with `{split}` in it."""
    random = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)

    def text(number: int) -> str:
        words = random.choice([*tiny.FAMILIAR[:5], *tiny.BROKEN[:2]], random.integers(2, 7)).tolist()
        return " ".join([*words, "coffee" if number % len(labels) == 0 else "dogs"])

    for split, texts in (("train", 48), ("dev", 8), ("test", 14)):
        lines = ["label\ttext\tpair" if pairs else "label\ttext"]
        for number in range(texts):
            second = [" ".join(random.choice(tiny.FAMILIAR[:5], 3))] if pairs else []
            lines.append("\t".join([labels[number % len(labels)], text(number), *second]))
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "{split}.tsv")


def save_distilbert(folder: Path) -> Path:
    tokenizer = tiny.bert_tokenizer()
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 64}
    return tiny.save(folder, tiny.build("distilbert", 0, vocab_size=len(tokenizer), **sizes), tokenizer)


SAVE: Mapping[str, Callable[[Path], Path]] = {
    "bert": tiny.save_bert,
    "roberta": tiny.save_roberta,
    "distilbert": save_distilbert,
    "gpt2": tiny.save_gpt2,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Classifiers of two classes, as others would have written them."""
    home = tmp_path_factory.mktemp("models")
    return {name: tiny.add_head(save(home / f"my-{name}"), 2) for name, save in SAVE.items()}


def options(corpus: str, cache: Path) -> list[str]:
    named = ["--data=ClassificationDataModule", f"--data.init_args.corpus={corpus}"]
    return [*named, "--data.init_args.positive=drink", f"--data.init_args.cache={cache}"]


QUIET = ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.devices=1")


def command(checkpoints: list[Path | str], *further: str, folder: Path) -> list[str]:
    given = f"--model.init_args.checkpoints=[{','.join(map(str, checkpoints))}]"
    return ["test", QUICK, given, f"--trainer.default_root_dir={folder}", "--figures.draw=false", *QUIET, *further]


def run_over(checkpoints: list[Path | str], *further: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of a run over the classifiers, and its `results.json`."""
    train.main(command(checkpoints, *further, folder=folder))
    (path,) = folder.rglob("results.json")
    return path.parent, json.loads(path.read_text(encoding="utf-8"))


def only(*names: str) -> str:
    return f"--model.init_args.tests=[{','.join(f'{{class_path: {name}}}' for name in names)}]"


def data_of(corpus: str, tokenizer: Path | None, cache: Path, **further: Any) -> ClassificationDataModule:  # noqa: ANN401
    spec = None if tokenizer is None else EncoderSpec(str(tokenizer))
    data = ClassificationDataModule(corpus, tokenizer=spec, positive="drink", cache=str(cache), **further)
    data.setup("test")
    return data


@pytest.fixture(scope="module")
def checkpoint(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT that `train.py fit` has fine-tuned."""
    home = tmp_path_factory.mktemp("fit")
    bare = tiny.save_bert(home / "bare")
    words = ["fit", "--model=TransformerClassifier", "--model.init_args.learning_rate=3e-3", *QUIET]
    words += [*options(corpus, home / "stores"), f"--data.init_args.tokenizer.name={bare}", "--trainer.max_epochs=2"]
    train.main([*words, "--checkpoint.monitor=val_f1", f"--trainer.default_root_dir={home / 'runs'}"])
    (found,) = home.rglob("epoch*.ckpt")
    return found


def test_an_exported_folder_has_the_scores_of_its_checkpoint(
    checkpoint: Path, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "exported"
    assert export([str(checkpoint), str(folder)]) == 0
    _, expected = run_over([checkpoint], folder=tmp_path / "of-run")
    run, found = run_over([folder], *options(corpus, tmp_path), folder=tmp_path / "of-folder")
    assert found["scores"] == expected["scores"]  # to the last bit: the same weights, texts and random numbers
    assert len(found["scores"]) > 100
    table = pd.read_csv(run / found["tables"]["fidelity"])
    assert table[["checkpoint", "variant"]].to_numpy().tolist() == [["exported", "exported"]]
    (audit,) = found["audit"]["checkpoints"].values()
    assert audit["file"] == str(folder)
    assert audit["classes_of_the_head"] == "drink = drink, other = other"
    assert f"name: {folder}" in (run / "config.yaml").read_text(encoding="utf-8")  # the tokenizer that was used
