"""The page of example texts: their words coloured by each measure, with the decisions of each variant."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from torch import Tensor

from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity.classified import ClassifiedBatch, to_tokens
from attention_probing.results import ColouredText, ColouredTexts


class Example(NamedTuple):
    """Text for the example page, with the decision of the first classifier of a variant.

    Attributes:
        text: Index of the text in the split.
        variant: Name of the variant.
        predicted: Predicted class.
        confidence: Probability of the predicted class.
        rows: Values of the tokens, `[tokens]`, by name of the measure, for instance `attention`.
    """

    text: int
    variant: str
    predicted: int
    confidence: float
    rows: Mapping[str, Sequence[float]]


def examples_of(classified: ClassifiedBatch, values: Mapping[str, Tensor], rows: Sequence[int]) -> list[Example]:
    """Return texts of a batch for the example page, with the decision and the values of their tokens.

    Args:
        classified: The texts, with the decisions of a classifier.
        values: Values of the words by name, `[batch, positions]`.
        rows: Rows of the texts in the batch.
    """
    batch = classified.batch
    of_tokens = {}
    for name, of_positions in values.items():
        of_tokens[name] = to_tokens(of_positions.detach(), classified.token_to_position)
    examples = []
    for row in rows:
        length = int(batch.lengths[row])
        example = Example(
            text=int(batch.index[row]),
            variant=classified.checkpoint.variant,
            predicted=int(classified.predicted[row]),
            confidence=float(classified.confidence[row]),
            rows={name: of_measure[row, :length].tolist() for name, of_measure in of_tokens.items()},
        )
        examples.append(example)
    return examples


def example_page(examples: Sequence[Example], data: ClassificationDataModule, variants: Sequence[str]) -> ColouredTexts:
    """Return the example page, with one entry for each text.

    An entry has the gold label of the text. For each variant it also has the predicted label with its
    probability, and the text coloured by each measure.

    Args:
        examples: Example texts with the decisions of all variants, in any order.
        data: Datamodule with the words and labels of the texts.
        variants: Names of all variants.
    """
    split = data.splits["test"]
    in_order = sorted(examples, key=lambda example: (example.text, variants.index(example.variant)))
    texts = []
    for text, examples_of_text in groupby(in_order, key=lambda example: example.text):
        caption = f"gold {data.labels[split.labels[text]]}"
        rows = {}
        for example in examples_of_text:
            label = data.labels[example.predicted]
            caption += f", {example.variant} predicts {label} (P = {example.confidence:.3f})"
            for name, row in example.rows.items():
                rows[f"{example.variant}: {name}"] = row
        words = _printed_words(data, text)
        texts.append(ColouredText(f"Text {split.ids[text]} of test", caption, words, rows))
    return ColouredTexts("Example texts", tuple(texts))


def _printed_words(data: ClassificationDataModule, text: int) -> tuple[str, ...]:
    """Return the words of a text of test; words outside the vocabulary are shown as in the text."""
    split = data.splits["test"]
    words = split.readable(text)
    if data.tokenizer is not None:
        return tuple(words)
    return tuple(form or word for form, word in zip(split.forms(text), words, strict=True))
