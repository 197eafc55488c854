"""Small classifiers that were trained on a tiny corpus: by the program itself, or for recipes of theirs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pytorch_lightning.utilities.seed import isolate_rng

from attention_probing.commands import launch
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity.checkpoints import Checkpoint, classifier_of
from attention_probing.fidelity.classified import classify
from attention_probing.fidelity.contract import CheckpointResult, FidelityTest
from attention_probing.fidelity.recipe import Recipe
from attention_probing.measures.trainings import nested_trainer
from attention_probing.metrics.bootstrap import resample
from attention_probing.results.digests import digest
from attention_probing.results.progress import quiet
from tests.fidelity.tiny import measurements
from tests.models.corpora import write_texts


def fitted(folder: Path, name: str, *options: str, seed: int = 0, epochs: int = 2) -> Path:
    """Train one on the texts in `folder`, which are written the first time; returns the folder of its run."""
    texts = folder / "texts"
    if not texts.exists():
        texts.mkdir()
        write_texts(texts)
    launch.main(
        [
            "fit",
            f"--seed_everything={seed}",
            "--model=AttentionClassifier",
            "--model.encoder=RecurrentEncoder",
            "--model.encoder.init_args.hidden=4",
            "--model.attention=AdditiveAttention",
            "--model.embedding.size=8",
            "--model.learning_rate=0.02",
            "--data=ClassificationDataModule",
            f"--data.corpus={texts / '{split}.tsv'}",
            "--data.positive=good",
            f"--data.cache={folder / 'stores'}",
            f"--trainer.default_root_dir={folder / name}",
            f"--trainer.max_epochs={epochs}",
            "--trainer.accelerator=cpu",
            "--trainer.enable_progress_bar=false",
            "--figures.formats=[]",
            "--checkpoint.monitor=val_f1",
            *options,
        ]
    )
    return folder / name


Data = ClassificationDataModule
Checkpoints = list[Checkpoint]
CPU = torch.device("cpu")
CLIP = 5.0
BATCH_SIZE = 16


def texts_in(folder: Path, more: str = "") -> Data:
    """Texts with delimiters, so that not every token may get attention, and more lines of train; set up."""
    corpus = write_texts(folder)
    with (folder / "train.tsv").open("a", encoding="utf-8") as file:
        file.write(more)
    data = ClassificationDataModule(
        corpus, positive="good", cache=str(folder / "stores"), delimiters=True, batch_size=7, seed=3
    )
    data.setup("test")
    return data


def config_of(seed: int = 0, attention: str = "AdditiveAttention", **options: object) -> dict[str, Any]:
    init_args: dict[str, object] = {
        "encoder": {"class_path": "RecurrentEncoder", "init_args": {"hidden": 4}},
        "attention": {"class_path": attention},
        "embedding": {"size": 6},
        "learning_rate": 0.02,
        "dropout": 0.1,
    }
    return {
        "seed_everything": seed,
        "model": {"class_path": "AttentionClassifier", "init_args": init_args | options},
        "data": {"class_path": "ClassificationDataModule", "init_args": {"batch_size": BATCH_SIZE}},
        "trainer": {"gradient_clip_val": CLIP, "gradient_clip_algorithm": None, "max_epochs": 2},
    }


def checkpoint_of(data: Data, config: Mapping[str, Any], variant: str = "base", epochs: int = 6) -> Checkpoint:
    seed = config["seed_everything"]
    model = classifier_of(Path("base.ckpt"), config)
    with isolate_rng(), quiet():
        torch.manual_seed(seed)
        nested_trainer(CPU, max_epochs=epochs).fit(model, datamodule=data)
    data.trainer = model.trainer = None
    model.eval().requires_grad_(False)
    name = f"{variant}, seed {seed}"
    return Checkpoint(Path(f"{name}.ckpt"), digest(name.encode()), config, name, variant, model)


def recipe_of(checkpoint: Checkpoint, data: Data, **options: int) -> Recipe:
    chosen = {"max_epochs": 3, "patience": 2, "seed": 0} | options
    return Recipe(checkpoint, data, CPU, chosen["max_epochs"], chosen["patience"], chosen["seed"])


def refuse_training(monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
    """As if a run were killed in the training that follows on this many."""
    whole, done = Recipe.fit, [0]

    def fit(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if done[0] == after:
            raise KeyboardInterrupt
        done[0] += 1
        return whole(*args, **kwargs)

    monkeypatch.setattr(Recipe, "fit", fit)


def result_of(test: FidelityTest, checkpoint: Checkpoint, data: Data) -> CheckpointResult:
    """What the experiment makes of the numbers of the texts."""
    frames = []
    for batch in data.test_dataloader()[1]:
        classified = classify(checkpoint, batch, seed=0, vocabulary=data.vocabulary)[1]
        assert classified is not None
        columns = {name: values.numpy() for name, values in measurements(test, classified).items()}
        frames.append(pd.DataFrame(columns, index=classified.batch.index.tolist()))
    frame = pd.concat(frames).reindex(range(len(data.splits["test"]))).add_prefix(f"{test.name}.")
    scores = {}
    for name, score in test.scores().items():
        values = frame.reindex(columns=[f"{test.name}.{column}" for column in score.columns])
        scores[f"{test.name}.{name}"] = resample(score.statistic, values.to_numpy(np.float64), score.unit)
    return CheckpointResult(checkpoint.name, checkpoint.variant, checkpoint.seed, frame, scores)
