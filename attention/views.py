"""`view`: attention of one text as a page that shows itself in a notebook."""

from collections.abc import Sequence
from pathlib import Path

from attention_probing.attention.alignment import split_words
from attention_probing.attention.quantities import QuantityName
from attention_probing.attention.source import EncoderSpec
from attention_probing.attention.specification import Options
from attention_probing.attention.words import Encoder
from attention_probing.results.errors import UserError, pluralize
from attention_probing.results.options import checked
from attention_probing.results.view import View


@checked
def view(
    text: str | Sequence[str],
    encoder: Encoder | EncoderSpec | str | Path | None = None,
    *,
    quantity: QuantityName = "attention",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> View:
    """Return the attention between the words of a text as a page, on which layers and heads are chosen.

    As the last line of a cell the page shows itself, in Jupyter and on Colab, without a network; its method `save`
    writes it to a file. For arcs, clusters or pieces besides, see `View.from_attention`.

    Args:
        text: The text, which is split at white space, or its words.
        encoder: Name or folder of an encoder, an `EncoderSpec`, or a loaded `Encoder`; None for the default encoder.
        quantity: What is measured between two words, such as `norms`; see `attention.quantities`.
        layers: Layers to show, counted from 1; None for all.
        heads: Heads of each layer to show, counted from 1; None for all.

    Raises:
        EncoderError: The encoder is not found, or its attention cannot be captured.
        UserError: The text is empty or too long, or there is no such layer, head or quantity.
    """
    words = list(text)
    if isinstance(text, str):
        words = text.split()
    if not "".join(words).strip():
        raise UserError("The text to view is empty. Give a string, or a list of words.")
    options = Options(
        layers=None if layers is None else tuple(sorted(set(layers))),
        heads=None if heads is None else tuple(sorted(set(heads))),
        precision="float32",
        quantity=quantity,
    )
    if encoder is None:
        encoder = EncoderSpec()
    if not isinstance(encoder, Encoder):
        spec = encoder if isinstance(encoder, EncoderSpec) else str(encoder)
        encoder = Encoder(spec)
    _check_fits(words, encoder, options)
    attention = encoder.attention([words], options=options)
    return View.from_attention(attention, notes=[f"Encoder: {encoder.source.spec.name}."])


def _check_fits(words: Sequence[str], encoder: Encoder, options: Options) -> None:
    """Raise UserError if the text is too long for the encoder, or if it has no such layer or head."""
    name = encoder.source.spec.name
    for option, numbers, most in (("layers", options.layers, encoder.layers), ("heads", options.heads, encoder.heads)):
        if numbers is not None and max(numbers) > most:
            raise UserError(f"view: {option} contains {max(numbers)}, but {name} has {most} {option}, counted from 1.")
    [pieces] = split_words(encoder.tokenizer, [words])
    if len(pieces) > encoder.max_length:
        raise UserError(
            f"The text has {pluralize(len(pieces), 'piece')}, but {name} reads at most {encoder.max_length}. View "
            "a part of it."
        )
