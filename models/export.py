"""Export of a fine-tuned transformer to plain Hugging Face files, which can be loaded without this package.

`python train.py export CHECKPOINT FOLDER` writes config, weights (safetensors) and tokenizer to a new folder:

- `AutoModelForSequenceClassification.from_pretrained(FOLDER)` and `AutoModel.from_pretrained(FOLDER)` load it;
- `--data.init_args.tokenizer.name FOLDER` tests the classifier, and `--data.init_args.encoder.name FOLDER` reads the
  attention of its encoder.
"""

from pathlib import Path

from attention.encoder import resolve, save_model
from models.transformer import TransformerClassifier
from results import command


def export(classifier: TransformerClassifier, folder: str | Path) -> None:
    """Write a trained classifier to a new folder, in the format of transformers' `save_pretrained`.

    The names of the classes are written to config.json.

    Raises:
        TrainingError: The classifier is not trained.
        EncoderError: The folder exists, or cannot be written.
    """
    classifier.on_predict_start()
    sizes = classifier.sizes
    assert sizes.tokenizer is not None
    save_model(classifier.classifier.model, resolve(sizes.tokenizer), Path(folder).expanduser(), sizes.labels)


if __name__ == "__main__":
    command.moved("export")
