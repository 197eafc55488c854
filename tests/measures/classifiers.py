"""A tiny BERT that was fine-tuned on a few texts, by the program itself."""

from pathlib import Path

from attention_probing.commands import launch
from tests.models.corpora import write_texts


def fitted(folder: Path, encoder: Path) -> Path:
    """Train it on texts in the folder, which are written too; returns its checkpoint."""
    corpus = write_texts(folder, sizes=(61, 40, 29))
    launch.main(
        [
            "fit",
            "--seed_everything=0",
            "--model=TransformerClassifier",
            "--model.learning_rate=0.003",
            *data_arguments(corpus, encoder, folder / "stores"),
            "--data.batch_size=8",
            "--checkpoint.monitor=val_accuracy",
            f"--trainer.default_root_dir={folder / 'runs'}",
            "--trainer.max_epochs=25",
            "--trainer.accelerator=cpu",
            "--trainer.enable_progress_bar=false",
            "--figures.formats=[]",
        ]
    )
    [path] = (folder / "runs").rglob("checkpoints/*.ckpt")
    return path


def data_arguments(corpus: str, encoder: Path, cache: Path) -> list[str]:
    """What names these texts and their tokenizer on the command line."""
    return [
        "--data=ClassificationDataModule",
        f"--data.corpus={corpus}",
        f"--data.tokenizer.name={encoder}",
        "--data.positive=good",
        f"--data.cache={cache}",
    ]


def arguments(config: Path, checkpoint: Path, encoder: Path, cache: Path, *more: str) -> list[str]:
    """Arguments of a run of a config, on the texts that the checkpoint was trained on."""
    corpus = str(checkpoint.parents[4] / "{split}.tsv")
    given = [f"--model.checkpoint={checkpoint}", *data_arguments(corpus, encoder, cache)]
    return ["measure", f"--config={config}", *given, *more]
