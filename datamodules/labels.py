"""Labels of texts as numbers: classes of a classification, values of a regression."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attention_probing.corpora.labelled import LabelledText
from attention_probing.corpora.sentence import CorpusError
from attention_probing.results import Integers
from attention_probing.results.errors import setting
from attention_probing.results.progress import warn

Labels = NDArray[np.int64] | NDArray[np.float32]


_SHOWN = 20  # labels in a message


def find_labels(path: Path, texts: Sequence[LabelledText], positive: str) -> tuple[tuple[str, ...], int | None]:
    """Return the labels of the train split and, if there are two, the index of the positive one.

    Log a warning if `-` or `-1`, with which SNLI marks texts without an agreed label, stands beside two other labels.

    Args:
        path: File of the texts, for error messages.
        texts: Texts of train.
        positive: The positive label; ignored if there are more than two labels.

    Returns:
        The sorted labels; and the index of the positive label in them, None if there are more than two.

    Raises:
        CorpusError: There is only one label, there are so many labels that the column is probably wrong,
            or `positive` is not one of the two labels.
    """
    labels = tuple(sorted({text.label for text in texts}))
    if len(labels) == 1:
        wrong = f"every text has the label {labels[0]!r}, but a classifier needs two labels"
        remedy = f"Give another file for train, or name the column of the labels with {setting('data.columns.label')}"
        raise CorpusError.at(path, None, wrong, remedy)
    if len(labels) > max(_SHOWN, len(texts) // 2):
        wrong = f"{len(labels)} different labels in {len(texts)} texts: this is probably not the label column"
        remedy = f"Name it with {setting('data.columns.label')} or, if the labels are numbers to predict"
        remedy += f", set {setting('data.regression', 'true')}"
        raise CorpusError.at(path, None, wrong, remedy)
    if len(labels) > 2:
        marks = [label for label in labels if label in ("-", "-1")]
        if marks:
            warn(
                f"{path}: the label {marks[0]} is a class like any other. If it means no label, as in SNLI, leave such "
                f"texts out: {setting('data.columns.leave_out', marks)}."
            )
        return labels, None
    if positive not in labels:
        wrong = f"the labels are {labels[0]!r} and {labels[1]!r}, but {setting('data.positive')} is {positive!r}"
        raise CorpusError.at(path, None, wrong, f"Set {setting('data.positive')} to one of the two")
    return labels, labels.index(positive)


def label_numbers(path: Path, texts: Sequence[LabelledText], labels: Sequence[str]) -> Integers:
    """Return the index of each text's label in `labels`, int64 `[texts]`.

    Args:
        path: File of the texts, for error messages.
        texts: Texts.
        labels: Labels of train.

    Raises:
        CorpusError: The label of a text is not in `labels`.
    """
    places = {label: place for place, label in enumerate(labels)}
    for text in texts:
        if text.label not in places:
            wrong = f"no text of train has the label {text.label!r}; train has {', '.join(labels[:_SHOWN])}"
            if len(labels) > _SHOWN:
                wrong += f" and {len(labels) - _SHOWN} more"
            remedy = (
                f"Correct the row, add such texts to train, or name the label in {setting('data.columns.leave_out')}"
            )
            raise CorpusError.at(path, text.line, wrong, remedy)
    return np.array([places[text.label] for text in texts], np.int64)


def label_values(path: Path, texts: Sequence[LabelledText]) -> NDArray[np.float32]:
    """Return the label of each text as a number, for a regression: float32 `[texts]`.

    Args:
        path: File of the texts, for error messages.
        texts: Texts.

    Raises:
        CorpusError: A label is not a finite number.
    """
    values = np.full(len(texts), np.nan, np.float32)
    for place, text in enumerate(texts):
        with suppress(ValueError):
            values[place] = float(text.label)
        if not np.isfinite(values[place]):
            wrong = f"the label {text.label!r} is not a finite number, which a regression needs"
            remedy = f"Name the column of the numbers with {setting('data.columns.label')}, or correct the row"
            raise CorpusError.at(path, text.line, wrong, remedy)
    return values


def describe_labels(labels: Labels, names: Sequence[str]) -> dict[str, float]:
    """Return the number of texts with each label, or the lowest, mean and highest label of a regression.

    Args:
        labels: Label of each text, from `label_numbers` or `label_values`.
        names: Labels of train; empty for a regression.
    """
    if not names:
        return {"lowest": float(labels.min()), "mean": float(labels.mean()), "highest": float(labels.max())}
    counts = np.bincount(labels, minlength=len(names)).tolist()
    return dict(zip(names, counts, strict=True))
