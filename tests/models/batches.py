"""Batches of texts, made by hand."""

from collections.abc import Sequence

import torch

from attention_probing.datamodules import TextBatch
from attention_probing.datamodules.tokenization import SPECIALS, Vocabulary

VOCABULARY = Vocabulary((*SPECIALS, *"abcdefghij"), *range(len(SPECIALS)))


def batch_of(
    texts: Sequence[Sequence[int]],
    *,
    time: int | None = None,
    special: Sequence[Sequence[bool]] | None = None,
    sentences: Sequence[Sequence[int]] | None = None,
    labels: Sequence[int] | None = None,
) -> TextBatch:
    """A batch of the given tokens, padded to `time`; by default without delimiters, and one sentence a text."""
    width = max(map(len, texts)) if time is None else time
    shape = (len(texts), width)
    tokens, numbers = torch.full(shape, VOCABULARY.pad), torch.full(shape, -1)
    specials = torch.zeros(shape, dtype=torch.bool)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(text)
        specials[row, : len(text)] = torch.tensor(special[row]) if special else False
        numbers[row, : len(text)] = torch.tensor(sentences[row]) if sentences else 0
    numbers[specials] = -1
    return TextBatch(
        index=torch.arange(len(texts)),
        lengths=torch.tensor([len(text) for text in texts]),
        tokens=tokens,
        special=specials,
        sentences=numbers,
        segments=torch.zeros(shape, dtype=torch.int64),
        labels=torch.tensor(labels) if labels is not None else torch.zeros(len(texts), dtype=torch.int64),
        rationale=torch.zeros(shape, dtype=torch.bool),
        split="test",
    )
