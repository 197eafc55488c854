"""The labels of a corpus: those of train, and which of two is the positive one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from corpora.labelled import LabelledText
from corpora.sentence import CorpusError
from datamodules.tokenization import Numbers

_SHOWN = 20
"""Labels that a message names."""


def find_labels(path: Path, texts: Sequence[LabelledText], positive: str) -> tuple[tuple[str, ...], int | None]:
    """The labels of train in their order, and the place of the positive one where there are two.

    Raises:
        CorpusError: there is only one, or nearly one for each text, or there are two and the positive one is not
            among them.
    """
    labels = tuple(sorted({text.label for text in texts}))
    if len(labels) == 1:
        wrong = f"every text has the label {labels[0]!r}, and a classifier needs two"
        remedy = "Give another file for train, or name the column of the labels with --data.init_args.columns.label"
        raise CorpusError.at(path, None, wrong, remedy)
    if len(labels) > max(_SHOWN, len(texts) // 2):
        wrong = f"{len(texts)} texts have {len(labels)} labels, less than two texts for most of them"
        raise CorpusError.at(path, None, wrong, "Name the column of the labels with --data.init_args.columns.label")
    if len(labels) > 2:
        return labels, None
    if positive not in labels:
        wrong = f"the labels are {labels[0]!r} and {labels[1]!r}, and neither is the positive label {positive!r}"
        raise CorpusError.at(path, None, wrong, "Name the positive one with --data.init_args.positive")
    return labels, labels.index(positive)


def label_numbers(path: Path, texts: Sequence[LabelledText], labels: Sequence[str]) -> Numbers:
    """Place of each text's label among those of train, int64 `[texts]`.

    Raises:
        CorpusError: a label that train has not.
    """
    places = {label: place for place, label in enumerate(labels)}
    for text in texts:
        if text.label not in places:
            more = f" and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
            wrong = f"no text of train has the label {text.label!r}; there are {', '.join(labels[:_SHOWN])}{more}"
            raise CorpusError.at(path, text.line, wrong, "Correct or remove the record, or add such texts to train")
    return np.array([places[text.label] for text in texts], np.int64)
