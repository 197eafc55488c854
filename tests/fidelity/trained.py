"""Small classifiers that the program itself has trained on a tiny corpus, for what begins at their checkpoints."""

from pathlib import Path

import train
from datamodules import ClassificationDataModule
from tests.models.corpora import write_texts

ROOT = Path(__file__).parents[2]
WARNINGS = (
    "ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning",
    "ignore:The '.*' does not have many workers",
    "ignore:The number of training batches",
    "ignore:The dirpath has changed",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:LightningCLI's args parameter is intended",
)
"""Lightning 2.6 calls what jsonargparse 4.49 deprecates, and gives advice on workers and small data."""


def fitted(folder: Path, name: str, *options: str, seed: int = 0, epochs: int = 2) -> Path:
    """Train one on the texts in `folder`, which are written the first time; returns the folder of its run."""
    texts = folder / "texts"
    if not texts.exists():
        texts.mkdir()
        write_texts(texts)
    train.main(
        [
            "fit",
            f"--seed_everything={seed}",
            "--model=AttentionClassifier",
            "--model.init_args.encoder=RecurrentEncoder",
            "--model.init_args.encoder.init_args.hidden=4",
            "--model.init_args.attention=AdditiveAttention",
            "--model.init_args.embedding.size=8",
            "--model.init_args.learning_rate=0.02",
            "--data=ClassificationDataModule",
            f"--data.init_args.corpus={texts / '{split}.tsv'}",
            "--data.init_args.positive=good",
            f"--data.init_args.cache={folder / 'stores'}",
            f"--trainer.default_root_dir={folder / name}",
            f"--trainer.max_epochs={epochs}",
            "--trainer.accelerator=cpu",
            "--trainer.enable_progress_bar=false",
            "--checkpoint.monitor=val_f1",
            *options,
        ]
    )
    return folder / name


def texts_of(folder: Path) -> ClassificationDataModule:
    """The texts that they were trained on, set up for a test."""
    data = ClassificationDataModule(
        str(folder / "texts" / "{split}.tsv"), positive="good", cache=str(folder / "stores")
    )
    data.setup("test")
    return data
