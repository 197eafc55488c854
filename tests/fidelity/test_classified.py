"""A classified batch against the classifier itself; shortened texts and replaced weights against loops."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import fidelity.classified as classified_module
from datamodules import TextBatch
from fidelity.checkpoints import FidelityError
from fidelity.classified import classify, passes, permuted, renormalised, select_texts, shortened, uniform_weights
from models.interface import SENTENCE, WORD, Level, Output
from tests.fidelity import tiny
from tests.fidelity.tiny import KINDS, TEXTS, Kind, checkpoint, classified, close
from tests.models.batches import VOCABULARY, batch_of


@pytest.mark.parametrize("kind", KINDS)
def test_its_own_weights_give_its_own_decision(kind: Kind) -> None:
    found = classified(kind, time=9)
    close(found.decide(found.weights), found.probabilities)
    several = torch.stack([found.weights, found.weights.flip(1)])
    assert found.decide(several).shape == (2, len(TEXTS), tiny.CLASSES)
    close(found.decide(several)[0], found.probabilities)
    close(found.confidence, found.probabilities.max(-1).values)
    close(found.attention, found.weights.sum(0) / len(found.names))


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


def test_values_go_from_tokens_to_sentences_and_back() -> None:
    found = classified("han", [2])  # sentences of one, three, two and one word
    values = torch.tensor([[1.0, 2, 3, 4, 5, 6, 7]])
    assert found.to_positions(values).tolist() == [[1, 9, 11, 7]]
    assert found.to_tokens(torch.tensor([[1.0, 2, 3, 4]])).tolist() == [[1, 2, 2, 2, 3, 3, 4]]
    assert found.to_tokens(torch.tensor([[[True, False, True, False]]])).tolist() == [
        [[True, *[False] * 3, True, True, False]]
    ]


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
    output, found = classify(checkpoint("flat"), batch, None, seed=0, pad=VOCABULARY.pad)
    assert output.logits.shape == (4, tiny.CLASSES)
    assert found is not None
    assert found.batch.index.tolist() == [1, 3]
    close(found.probabilities, output.logits[[1, 3]].softmax(-1))
    close(found.decide(found.weights), found.probabilities)
    assert classify(checkpoint("flat"), batch_of([[7], [8]]), None, seed=0, pad=VOCABULARY.pad)[1] is None
    one_sentence = batch_of([[7, 8, 9], [8, 9]], sentences=[[0, 0, 0], [0, 1]])
    found = classify(checkpoint("han"), one_sentence, None, seed=0, pad=VOCABULARY.pad)[1]
    assert found is not None
    assert found.batch.index.tolist() == [1]


def test_levels_are_those_asked_for_and_one_that_is_not_there_is_refused() -> None:
    assert classified("han").names == (SENTENCE,)
    assert classified("flat").names == (WORD,)
    with pytest.raises(FidelityError, match=r"--model\.init_args\.level: there is no 7-1, only 2-1, 2-2, 2-3, 2-4"):
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
    found = select_texts(whole, rows)
    assert torch.equal(found.logits, whole.logits[rows])
    assert torch.equal(found.embedded, hidden[rows])
    level = found.levels["word"]
    assert level.groups is not None
    assert torch.equal(level.groups, batch().sentences[rows])
    assert torch.equal(level.hidden, hidden[rows])
    assert select_texts(Level(hidden[..., 0], batch().mask, hidden), rows).groups is None


def test_passes_hold_every_text_once_and_no_more_tokens_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classified_module, "PASS", 24)
    lengths = torch.tensor([3, 30, 1, 8, 8, 2, 3, 12, 5])
    found = list(passes(lengths))
    assert sorted(torch.cat(found).tolist()) == list(range(9))
    assert all(len(some) == 1 or len(some) * int(lengths[some].max()) <= 24 for some in found)
    assert len(found) == 4  # 30 | 12 8 | 8 5 3 | 3 2 1


GROUPS = torch.tensor([[0, 0, 0, 1, 1, -1], [-1, 0, 1, 1, 2, 2], [0, 0, -1, -1, -1, -1]])


def weights(*shape: int) -> Tensor:
    drawn = torch.rand(*shape, *GROUPS.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return drawn.masked_fill(GROUPS < 0, 0)


def members() -> list[tuple[int, list[int]]]:
    """Row and positions of each group."""
    rows = enumerate(GROUPS.tolist())
    return [
        (row, [position for position, one in enumerate(groups) if one == group])
        for row, groups in rows
        for group in range(max(groups) + 1)
    ]


def test_what_is_left_of_a_group_sums_to_one_and_an_empty_group_stays_zero() -> None:
    values = weights(2)
    values[:, 0, 3:5] = 0
    found = renormalised(values, GROUPS)
    assert found.isfinite().all()
    for row, positions in members():
        if row == 0 and positions == [3, 4]:
            assert not found[:, row, positions].any()
        else:
            expected = values[:, row, positions] / values[:, row, positions].sum(-1, keepdim=True)
            torch.testing.assert_close(found[:, row, positions], expected)
    assert not found[:, GROUPS < 0].any()


def test_the_gradient_of_a_group_with_nothing_left_is_a_number() -> None:
    values = weights().requires_grad_()
    renormalised(values * torch.tensor([1, 1, 1, 0, 0, 0]), GROUPS).square().sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert values.grad.isfinite().all()
    assert values.grad[0, :3].any()


def test_uniform_weights_are_equal_within_each_group() -> None:
    found = uniform_weights(GROUPS)
    for row, positions in members():
        assert found[row, positions].tolist() == [torch.tensor(1 / len(positions)).item()] * len(positions)
    assert not found[GROUPS < 0].any()


def test_a_shuffle_moves_weights_within_their_group_and_all_heads_alike() -> None:
    heads = weights(2)
    noise = torch.rand(50, *GROUPS.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = permuted(heads, noise, GROUPS)
    assert found.shape == (50, 2, *GROUPS.shape)
    for row, positions in members():
        for draw in range(50):
            # The position with the n-th lowest noise gives its weight to the n-th position.
            order = sorted(positions, key=lambda position: float(noise[draw, row, position]))
            for position, giver in zip(positions, order, strict=True):
                assert found[draw, :, row, position].tolist() == heads[:, row, giver].tolist()
    assert not found[..., GROUPS < 0].any()
