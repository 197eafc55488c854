"""Write a fine-tuned transformer as plain files of transformers.

`probing export CHECKPOINT FOLDER` writes config, weights (safetensors) and tokenizer to a new folder:

- `AutoModelForSequenceClassification.from_pretrained(FOLDER)` and `AutoModel.from_pretrained(FOLDER)` load it;
- `--encoder FOLDER` tests the classifier, or reads the attention of its encoder.
"""

from collections.abc import Sequence
from pathlib import Path

from attention_probing.attention.loading import save_model
from attention_probing.attention.source import resolve
from attention_probing.commands import parser_of
from attention_probing.models import refuse_untrained
from attention_probing.models.checkpoints import checkpoint_file
from attention_probing.models.transformer import TransformerClassifier


def export(classifier: TransformerClassifier, folder: str | Path) -> None:
    """Write a trained classifier to a new folder, in the format of transformers' `save_pretrained`.

    The names of the classes are written to config.json.

    Raises:
        TrainingError: The classifier is not trained.
        EncoderError: The folder exists, or cannot be written.
    """
    refuse_untrained(classifier)
    sizes = classifier.sizes
    assert sizes.tokenizer is not None
    save_model(classifier.classifier.model, resolve(sizes.tokenizer), Path(folder).expanduser(), sizes.labels)


def main(args: Sequence[str]) -> int:
    """Run the command, and return the exit code.

    Raises:
        UserError: The file is no checkpoint of a fine-tuned transformer, or the folder cannot be written.
    """
    parser = parser_of("export")
    parser.add_argument(
        "checkpoint", help="the folder of a run of TransformerClassifier, or a file from its checkpoints/"
    )
    parser.add_argument("folder", help="where the files are written; it must not exist")
    options = parser.parse_args(args)
    export(TransformerClassifier.load_from_checkpoint(checkpoint_file(options.checkpoint)), options.folder)
    print(f"Written to {options.folder}")
    return 0
