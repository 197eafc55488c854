"""Write a fine-tuned transformer as plain files of transformers."""

from collections.abc import Sequence

from commands import parser_of
from models.checkpoints import checkpoint_file
from models.export import export
from models.transformer import TransformerClassifier


def main(args: Sequence[str]) -> int:
    """Run the command, and return the exit code.

    Raises:
        UserError: The file is no checkpoint of a fine-tuned transformer, or the folder cannot be written.
    """
    parser = parser_of("export")
    parser.add_argument("checkpoint", help="a file from checkpoints/ of a run of TransformerClassifier")
    parser.add_argument("folder", help="where the files are written; it must not exist")
    options = parser.parse_args(args)
    export(TransformerClassifier.load_from_checkpoint(checkpoint_file(options.checkpoint)), options.folder)
    print(f"Written to {options.folder}")
    return 0
