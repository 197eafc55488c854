"""Shortened texts against lists that are shortened by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from datamodules import TextBatch
from fidelity import edits
from fidelity.edits import passes, rows_of, shortened
from models.interface import Level, Output
from tests.models.batches import VOCABULARY, batch_of

TEXTS = [[3, 7, 8, 9, 10, 11, 12, 4], [10], [11, 12, 7, 5, 13, 14, 8]]
SENTENCES = [[-1, 0, 0, 1, 2, 2, 3, -1], [0], [0, 0, 1, -1, 2, 2, 2]]
SPECIAL = [[number < 0 for number in numbers] for numbers in SENTENCES]


def batch() -> TextBatch:
    made = batch_of(TEXTS, time=10, special=SPECIAL, sentences=SENTENCES, labels=[2, 0, 1])
    made.segments[2, 4:7] = 1
    made.rationale[0, 2] = made.rationale[2, 5] = True
    return replace(made, index=torch.tensor([40, 41, 42]))


def kept(*rows: Sequence[int]) -> Tensor:
    keep = torch.zeros(len(rows), 10, dtype=torch.bool)
    for row, places in enumerate(rows):
        keep[row, list(places)] = True
    return keep


def test_what_stays_moves_together_with_all_that_belongs_to_it() -> None:
    rows, keep = torch.tensor([2, 0, 0, 1]), kept([0, 3, 5, 6], [0, 1, 4, 5, 7], [0, 6, 7], [0])
    found = shortened(batch(), rows, keep, VOCABULARY.pad)
    pad = VOCABULARY.pad
    assert found.index.tolist() == [42, 40, 40, 41]
    assert found.labels.tolist() == [1, 2, 2, 0]
    assert found.lengths.tolist() == [4, 5, 3, 1]
    assert found.tokens.tolist() == [
        [11, 5, 14, 8, pad],
        [3, 7, 10, 11, 4],
        [3, 12, 4, pad, pad],
        [10, pad, pad, pad, pad],
    ]
    # No number of a sentence is left out: of the first text the second is gone, of the second the second and fourth.
    assert found.sentences.tolist() == [[0, -1, 1, 1, -1], [-1, 0, 1, 1, -1], [-1, 0, -1, -1, -1], [0, -1, -1, -1, -1]]
    assert found.segments.tolist() == [[0, 0, 1, 1, 0], [0] * 5, [0] * 5, [0] * 5]
    assert found.special.tolist() == [
        [False, True, False, False, False],
        [True, False, False, False, True],
        [True, False, True, False, False],
        [False] * 5,
    ]
    assert found.rationale.nonzero().tolist() == [[0, 2]]


def test_keeping_everything_changes_nothing() -> None:
    whole = batch()
    found = shortened(whole, torch.arange(3), whole.mask, VOCABULARY.pad)
    assert found.split == whole.split
    for name, value in vars(found).items():
        if name != "split":
            assert torch.equal(value, getattr(whole, name)[:, :8] if value.dim() == 2 else getattr(whole, name)), name


@pytest.mark.parametrize("rows", [torch.tensor([2, 0]), torch.tensor([True, False, True])])
def test_rows_are_taken_of_everything(rows: Tensor) -> None:
    hidden = torch.arange(3.0 * 10 * 2).view(3, 10, 2)
    whole = Output(
        torch.arange(6.0).view(3, 2), {"word": Level(hidden[..., 0], batch().mask, hidden, batch().sentences)}, hidden
    )
    found = rows_of(whole, rows)
    assert torch.equal(found.logits, whole.logits[rows])
    assert torch.equal(found.embedded, hidden[rows])
    level = found.levels["word"]
    assert level.groups is not None
    assert torch.equal(level.groups, batch().sentences[rows])
    assert torch.equal(level.hidden, hidden[rows])
    assert rows_of(Level(hidden[..., 0], batch().mask, hidden), rows).groups is None


def test_passes_hold_every_text_once_and_no_more_tokens_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edits, "PASS", 24)
    lengths = torch.tensor([3, 30, 1, 8, 8, 2, 3, 12, 5])
    found = list(passes(lengths))
    assert sorted(torch.cat(found).tolist()) == list(range(9))
    assert all(len(some) == 1 or len(some) * int(lengths[some].max()) <= 24 for some in found)
    assert len(found) == 4  # 30 | 12 8 | 8 5 3 | 3 2 1
