"""Small classifiers whose attention matters, and readings of a few texts under them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Literal

import torch
from torch import Tensor

from attention import EncoderSpec
from datamodules import TextBatch
from fidelity.checkpoints import Checkpoint
from fidelity.reading import Reading, read
from models import (
    AdditiveAttention,
    AttentionClassifier,
    EmbeddingSpec,
    HierarchicalClassifier,
    RecurrentEncoder,
    TextClassifier,
    TransformerClassifier,
)
from models.base import TextSizes
from tests import tiny
from tests.models.batches import VOCABULARY, batch_of

Kind = Literal["flat", "han", "transformer"]
CLASSES = 3
TEXTS = ([7, 8, 9, 12], [10, 11], [11, 12, 7, 9, 13, 14, 8], [15, 8, 10], [9, 9, 13, 7, 15], [14, 7])
"""Texts of at least two words."""
SENTENCES = ([0, 0, 1, 1], [0, 1], [0, 1, 1, 1, 2, 2, 3], [0, 1, 2], [0, 0, 0, 1, 1], [0, 1])
PIECES = ([2, 7, 8, 9, 3], [2, 10, 11, 3], [2, 11, 12, 7, 7, 13, 3], [2, 9, 8, 3], [2, 12, 12, 7, 3], [2, 13, 7, 10, 3])
"""For the transformer, between the delimiters of its tokenizer."""


@cache
def classifier(kind: Kind, dtype: torch.dtype = torch.float64) -> TextClassifier:
    """One of each kind, with parameters large enough for decisions to differ; in evaluation mode, without gradients.

    The transformer shows the four heads of its last layer.
    """
    torch.manual_seed(1)
    model: TextClassifier
    sizes = TextSizes(CLASSES, VOCABULARY)
    if kind == "flat":
        model = AttentionClassifier(RecurrentEncoder(hidden=4), AdditiveAttention(), EmbeddingSpec(size=5))
    elif kind == "han":
        model = HierarchicalClassifier(
            RecurrentEncoder("gru", 4), AdditiveAttention(), RecurrentEncoder("gru", 3), AdditiveAttention(),
            EmbeddingSpec(size=5),
        )  # fmt: skip
    else:
        folder = tiny.add_head(tiny.save_bert(Path(mkdtemp(prefix="tiny-bert-"))), CLASSES)
        model, sizes = TransformerClassifier(), replace(sizes, tokenizer=EncoderSpec(str(folder)))
    model.build(sizes)
    if kind != "transformer":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 1)
            model.embedding.rows.weight[VOCABULARY.pad] = 0  # type: ignore[union-attr, operator]
            # Decisions differ from text to text.
            logits = model.eval()(texts(kind)).logits
            model.decision.bias -= logits.mean(0)  # type: ignore[union-attr]
    return model.to(dtype).eval().requires_grad_(False)


def texts(kind: Kind, rows: Sequence[int] | None = None, time: int | None = None) -> TextBatch:
    """The texts, or some of them, padded to `time`; their places in the split are those in `TEXTS`."""
    chosen = list(range(len(TEXTS))) if rows is None else list(rows)
    if kind == "transformer":
        pieces = [PIECES[row] for row in chosen]
        special = [[piece in (2, 3) for piece in text] for text in pieces]
        made = batch_of(pieces, time=time, special=special)
    else:
        made = batch_of([TEXTS[row] for row in chosen], time=time, sentences=[SENTENCES[row] for row in chosen])
    return replace(made, index=torch.tensor(chosen), labels=torch.tensor(chosen) % CLASSES)


def checkpoint(kind: Kind, dtype: torch.dtype = torch.float64) -> Checkpoint:
    """The classifier as one that was loaded."""
    config = {"seed_everything": 0, "model": {}, "data": {}, "trainer": {}}
    return Checkpoint(Path("tiny.ckpt"), "0" * 64, config, f"{kind}, seed 0", kind, classifier(kind, dtype))


def reading(
    kind: Kind = "flat",
    rows: Sequence[int] | None = None,
    time: int | None = None,
    *,
    level: str | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Reading:
    """What is read of the texts, or of some of them."""
    batch = texts(kind, rows, time)
    _, found = read(checkpoint(kind, dtype), batch, level, seed=seed, pad=VOCABULARY.pad)
    assert found is not None
    return found


def one_by_one(kind: Kind = "flat", **options: str) -> list[Reading]:
    """A reading of each text alone."""
    return [reading(kind, [row], **options) for row in range(len(TEXTS))]  # type: ignore[arg-type]


def close(found: Tensor, expected: Tensor, atol: float = 1e-9) -> None:
    """Equal but for rounding, nan where the other is."""
    torch.testing.assert_close(found, expected, atol=atol, rtol=0, equal_nan=True)
