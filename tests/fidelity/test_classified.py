"""A classified batch against the classifier itself, and what holds for every test: its columns, options, any batch."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_probing.datamodules import TextBatch
from attention_probing.fidelity import (
    Adversary,
    ConsistentAdversary,
    Correlation,
    Fidelity,
    FidelityTest,
    Permutation,
    Perturbation,
    Rationale,
    SetErasure,
    Shortcut,
    SingleToken,
    SingleWeight,
    SoftErasure,
)
from attention_probing.fidelity.classified import classify, passes, shorten_texts
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.shares import share_interval
from attention_probing.models.text_classifier import WORD
from attention_probing.results import UserError
from tests.fidelity import tiny
from tests.fidelity.tiny import (
    KINDS,
    LEVELS,
    TEXTS,
    Kind,
    checkpoint,
    classified,
    close,
    measurements,
    prepared,
    with_constants,
)
from tests.models.batches import VOCABULARY, batch_of


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_with_words_left_out_is_read_as_one_that_never_had_them(kind: Kind) -> None:
    found = classified(kind, time=9)
    random = torch.Generator().manual_seed(3)
    keep = torch.rand(12, *found.words.shape, generator=random) < 0.6
    keep[0], keep[1, 2] = True, False
    changed = found.reread(keep)
    for copy in range(12):
        for row in range(len(TEXTS)):
            stays = keep[copy, row] & found.words[row]
            if stays.any():
                close(changed[copy, row], tiny.slow_reread(kind, row, stays.nonzero().flatten().tolist()))
            else:
                assert changed[copy, row].isnan().all()
    close(changed[0], found.probabilities)
    assert changed[1, 2].isnan().all()


def test_the_words_of_each_kind_are_tokens_or_sentences_without_delimiters() -> None:
    assert classified("flat").words.sum(1).tolist() == [len(text) for text in TEXTS]
    assert classified("han").words.sum(1).tolist() == [max(numbers) + 1 for numbers in tiny.SENTENCES]
    assert classified("han", level=WORD).words.sum(1).tolist() == [len(text) for text in TEXTS]
    bert = classified("transformer")
    assert bert.names == ("2-1", "2-2", "2-3", "2-4")
    assert bert.words.sum(1).tolist() == [len(text) - 2 for text in tiny.PIECES]
    assert bert.mask.sum(1).tolist() == [len(text) for text in tiny.PIECES]
    assert not bert.words[:, 0].any()
    assert classified("transformer", level="2-3").weights.shape[0] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_the_same_in_any_batch_and_another_for_any_other_purpose_seed_and_text(kind: Kind) -> None:
    together, wide = classified(kind).noise("a", 4), classified(kind, time=12).noise("a", 4)
    mask = classified(kind).mask
    for row in range(len(TEXTS)):
        alone = classified(kind, [row])
        assert torch.equal(alone.noise("a", 4)[:, 0][:, alone.mask[0]], together[:, row, mask[row]])
        assert torch.equal(alone.noise("a", 2), alone.noise("a", 4)[:2])
    assert torch.equal(wide[..., : mask.size(1)][:, mask], together[:, mask])
    assert (together[:, ~mask] == 2).all()
    assert (together[:, mask] < 1).all()
    assert len(set(together[:, mask].flatten().tolist())) == 4 * int(mask.sum())
    for other in (classified(kind).noise("b", 4), classified(kind, seed=1).noise("a", 4)):
        assert not (other[:, mask] == together[:, mask]).any()


def test_texts_of_one_word_are_classified_and_not_tested() -> None:
    batch = batch_of([[7], [8, 9], [10], [11, 12, 7]])
    output, found = classify(checkpoint("flat"), batch, seed=0, vocabulary=VOCABULARY)
    assert output.logits.shape == (4, tiny.CLASSES)
    assert found is not None
    assert found.batch.index.tolist() == [1, 3]
    close(found.probabilities, output.logits[[1, 3]].softmax(-1))
    close(found.decide(found.weights), found.probabilities)
    assert classify(checkpoint("flat"), batch_of([[7], [8]]), seed=0, vocabulary=VOCABULARY)[1] is None
    one_sentence = batch_of([[7, 8, 9], [8, 9]], sentences=[[0, 0, 0], [0, 1]])
    found = classify(checkpoint("han"), one_sentence, seed=0, vocabulary=VOCABULARY)[1]
    assert found is not None
    assert found.batch.index.tolist() == [1]


def test_a_level_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        UserError,
        match=r"`level`: '7-1' is no attention level of this classifier. Choose 2-1 or 2-2 or 2-3 or 2-4",
    ):
        classified("transformer", level="7-1")


CUT = [[3, 7, 8, 9, 10, 11, 12, 4], [10], [11, 12, 7, 5, 13, 14, 8]]
CUT_SENTENCES = [[-1, 0, 0, 1, 2, 2, 3, -1], [0], [0, 0, 1, -1, 2, 2, 2]]
CUT_SPECIAL = [[number < 0 for number in numbers] for numbers in CUT_SENTENCES]


def batch() -> TextBatch:
    made = batch_of(CUT, time=10, special=CUT_SPECIAL, sentences=CUT_SENTENCES, labels=[2, 0, 1])
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
    found = shorten_texts(batch(), rows, keep, VOCABULARY.pad)
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


def test_passes_hold_every_text_once_and_no_more_tokens_than_they_may() -> None:
    lengths = torch.tensor([3, 30, 1, 8, 8, 2, 3, 12, 5])
    found = list(passes(lengths, 24))
    assert sorted(torch.cat(found).tolist()) == list(range(9))
    assert all(len(some) == 1 or len(some) * int(lengths[some].max()) <= 24 for some in found)
    assert len(found) == 4  # 30 | 12 8 | 8 5 3 | 3 2 1


TESTS: list[FidelityTest] = [
    with_constants(Adversary(steps=5), copies=3, draws=20, ascents=2, ascent_steps=5),
    Correlation(),
    Permutation(),
    Perturbation(),
    Rationale(),
    SetErasure(),
    SingleToken(),
    SingleWeight(),
    SoftErasure(),
]


@pytest.mark.parametrize(("kind", "level"), LEVELS)
@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.name)
def test_a_text_alone_is_measured_as_in_a_padded_batch(test: FidelityTest, kind: Kind, level: str | None) -> None:
    if (test.name, level) == ("adversary", WORD):
        return  # refused: there are several distributions
    padded = measurements(test, classified(kind, time=12, level=level))
    read = {column for score in prepared(test).scores().values() for column in score.columns}
    assert read <= set(padded)
    for row in range(len(TEXTS)):
        alone = measurements(test, classified(kind, [row], level=level))
        for name, value in alone.items():
            # A correlation of numbers that hardly differ makes their rounding larger.
            close(padded[name][row], value[0], 1e-6 if test.name == "correlation" else 1e-9)


DECISIONS = {"flips_top", "flips_random", "alone", "uniform_flips", "permuted_flips", "undefined", "learnt"}


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("test", [*TESTS, Shortcut()], ids=lambda test: test.name)
def test_only_decisions_are_shares_of_few_texts(test: FidelityTest, value: float) -> None:
    """Distances that are all 0, or measures that are all 1, do not tell how they vary: they have no interval."""
    found = prepared(test).scores() if isinstance(test, Perturbation) else test.scores()
    for name, (columns, statistic, unit, _) in found.items():
        interval = resample(statistic, np.full((6, len(columns)), value), unit).interval
        if list(columns) == [name] and not name.endswith("precision_at_k"):
            exact = share_interval(np.full(6, value), np.ones(6))[1:]
            expected = exact if name in DECISIONS else (math.nan, math.nan)
            np.testing.assert_array_equal(interval, expected, name)
    read = {column for score in found.values() for column in score.columns}
    assert set(found) & DECISIONS == read & DECISIONS


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (ConsistentAdversary, {"strengths": ()}, "must be one or more different numbers"),
        (ConsistentAdversary, {"strengths": (0.1, 0.1)}, "must be one or more different numbers"),
        (ConsistentAdversary, {"strengths": (math.nan, 0.1)}, "must be one or more different numbers"),
        (Rationale, {"rankings": ["attention", "attention"]}, "rankings lists attention more than once"),
        (Correlation, {"saliencies": []}, "saliencies is empty"),
        (Fidelity, {"tests": [Perturbation()] * 2}, "`tests` lists perturbation more than once"),
        (Fidelity, {"tests": [], "checkpoints": []}, "`tests` is empty"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    make: Callable[..., object], options: dict[str, Sequence[object]], message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        make(**({"checkpoints": "a.ckpt"} if make is Fidelity else {}) | options)
