"""Export of a fine-tuned transformer to plain files of transformers, which can be loaded without this package.

`python -m models.export CHECKPOINT FOLDER` writes config, weights (safetensors) and tokenizer to a new folder:

- `AutoModelForSequenceClassification.from_pretrained(FOLDER)` and `AutoModel.from_pretrained(FOLDER)` load it;
- `--data.init_args.tokenizer.name FOLDER` tests the classifier, and `--data.init_args.encoder.name FOLDER` reads the
  attention of its encoder.
"""

import argparse
import sys
from pathlib import Path

from attention.encoder import resolve, save_model
from models.transformer import TransformerClassifier
from results import UserError
from training.checkpoints import checkpoint_file


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


def main(arguments: list[str] | None = None) -> int:
    """Run `python -m models.export CHECKPOINT FOLDER`, and return its exit code.

    Args:
        arguments: Command-line arguments; None for those of the process.
    """
    parser = argparse.ArgumentParser(
        prog="python -m models.export", description="Write a fine-tuned transformer as plain files of transformers."
    )
    parser.add_argument("checkpoint", help="a file from checkpoints/ of a run of TransformerClassifier")
    parser.add_argument("folder", help="where the files are written; it must not exist")
    given = parser.parse_args(arguments)
    try:
        export(TransformerClassifier.load_from_checkpoint(checkpoint_file(given.checkpoint)), given.folder)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"Written to {given.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
