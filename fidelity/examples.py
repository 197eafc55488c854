"""Example texts, coloured by attention, by saliency and by whatever else a test has found."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from datamodules import ClassificationDataModule
from fidelity.checkpoints import Checkpoint
from fidelity.reading import Reading
from results import ColouredText, ColouredTexts


class Example(NamedTuple):
    """A text under one classifier.

    Attributes:
        text: its place in the split.
        checkpoint: name of the classifier.
        predicted: its class.
        confidence: probability of that class.
        rows: by name, a number of each token.
    """

    text: int
    checkpoint: str
    predicted: int
    confidence: float
    rows: Mapping[str, Sequence[float]]


def examples_of(reading: Reading, colours: Mapping[str, Tensor], chosen: Collection[int]) -> list[Example]:
    """The chosen texts among those of a batch.

    Args:
        reading: the batch.
        colours: by name `[batch, slots]`, beside the gradient.
        chosen: places in the split.
    """
    rows = {"attention": colours["attention"], "gradient": reading.saliency.gradient, **colours}
    tokens = {name: reading.over_tokens(values.detach()).tolist() for name, values in rows.items()}
    found = []
    for place, text in enumerate(reading.batch.index.tolist()):
        if text in chosen:
            length = int(reading.batch.lengths[place])
            found.append(
                Example(
                    text,
                    reading.checkpoint.name,
                    int(reading.predicted[place]),
                    float(reading.confidence[place]),
                    {name: values[place][:length] for name, values in tokens.items()},
                )
            )
    return found


def example_page(
    found: Sequence[Example], data: ClassificationDataModule, checkpoints: Sequence[Checkpoint]
) -> ColouredTexts:
    """One page: every text under the first checkpoint of each variant."""
    first = {one.variant: one for one in reversed(checkpoints)}
    names = {one.name: one.variant for one in checkpoints if first[one.variant] is one}
    order = {name: place for place, name in enumerate(names)}
    shown = sorted((one for one in found if one.checkpoint in names), key=lambda one: (one.text, order[one.checkpoint]))
    split, labels = data.splits["test"], data.labels
    texts = []
    for text in dict.fromkeys(one.text for one in shown):
        here = [one for one in shown if one.text == text]
        said = "".join(
            f", {names[one.checkpoint]} predicts {labels[one.predicted]} (P = {one.confidence:.3f})" for one in here
        )
        rows = {f"{names[one.checkpoint]}: {name}": row for one in here for name, row in one.rows.items()}
        tokens = data.text("test", text)[1]
        # A word that the vocabulary has not is shown as it stands in the text; a piece is what the model sees.
        forms = split.forms(text) if data.tokenizer is None else [None] * len(tokens)
        words = tuple(form or token for form, token in zip(forms, tokens, strict=True))
        name, gold = f"Text {split.ids[text]} of test", labels[split.labels[text]]
        texts.append(ColouredText(name, f"gold {gold}{said}", words, rows))
    return ColouredTexts("Example texts", tuple(texts))
