"""A reading against the classifier itself, text by text."""

import pytest
import torch

from fidelity.checkpoints import FidelityError
from fidelity.reading import read
from models.interface import SENTENCE, WORD
from tests.fidelity import tiny
from tests.fidelity.tiny import TEXTS, Kind, checkpoint, close, reading
from tests.models.batches import VOCABULARY, batch_of

KINDS: tuple[Kind, ...] = ("flat", "han", "transformer")


@pytest.mark.parametrize("kind", KINDS)
def test_its_own_weights_give_its_own_decision(kind: Kind) -> None:
    found = reading(kind, time=9)
    close(found.decide(found.weights), found.probabilities)
    several = torch.stack([found.weights, found.weights.flip(1)])
    assert found.decide(several).shape == (2, len(TEXTS), tiny.CLASSES)
    close(found.decide(several)[0], found.probabilities)
    close(found.confidence, found.probabilities.max(-1).values)
    close(found.attention, found.weights.sum(0) / len(found.names))


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_with_words_left_out_is_read_as_one_that_never_had_them(kind: Kind) -> None:
    found = reading(kind, time=9)
    random = torch.Generator().manual_seed(3)
    keep = torch.rand(12, *found.words.shape, generator=random) < 0.6
    keep[0], keep[1, 2] = True, False
    changed = found.reread(keep)
    for copy in range(12):
        for row in range(len(TEXTS)):
            text = tiny.texts(kind, [row])
            length = int(text.lengths)
            units = found.units[row, :length].tolist()
            stays = [unit < 0 or bool(keep[copy, row, unit]) for unit in units]
            if not any(stay and unit >= 0 for stay, unit in zip(stays, units, strict=True)):
                assert changed[copy, row].isnan().all()
                continue
            tokens = [token for token, stay in zip(text.tokens[0].tolist(), stays, strict=False) if stay]
            special = [one for one, stay in zip(text.special[0].tolist(), stays, strict=False) if stay]
            old = [one for one, stay in zip(text.sentences[0].tolist(), stays, strict=False) if stay]
            sentences = [sorted(set(old) - {-1}).index(one) if one >= 0 else -1 for one in old]
            alone = batch_of([tokens], special=[special], sentences=[sentences])
            expected = tiny.classifier(kind)(alone).logits.softmax(-1)[0]
            close(changed[copy, row], expected)
    close(changed[0], found.probabilities)
    assert changed[1, 2].isnan().all()


def test_the_words_of_each_kind_are_tokens_or_sentences_without_delimiters() -> None:
    assert reading("flat").words.sum(1).tolist() == [len(text) for text in TEXTS]
    assert reading("han").words.sum(1).tolist() == [max(numbers) + 1 for numbers in tiny.SENTENCES]
    assert reading("han", level=WORD).words.sum(1).tolist() == [len(text) for text in TEXTS]
    bert = reading("transformer")
    assert bert.names == ("2-1", "2-2", "2-3", "2-4")
    assert bert.words.sum(1).tolist() == [len(text) - 2 for text in tiny.PIECES]
    assert bert.mask.sum(1).tolist() == [len(text) for text in tiny.PIECES]
    assert not bert.words[:, 0].any()
    assert reading("transformer", level="2-3").weights.shape[0] == 1


def test_values_go_from_tokens_to_sentences_and_back() -> None:
    found = reading("han", [2])  # sentences of one, three, two and one word
    values = torch.tensor([[1.0, 2, 3, 4, 5, 6, 7]])
    assert found.over_slots(values).tolist() == [[1, 9, 11, 7]]
    assert found.over_tokens(torch.tensor([[1.0, 2, 3, 4]])).tolist() == [[1, 2, 2, 2, 3, 3, 4]]
    assert found.over_tokens(torch.tensor([[[True, False, True, False]]])).tolist() == [
        [[True, *[False] * 3, True, True, False]]
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_the_same_in_any_batch_and_another_for_any_other_purpose_seed_and_text(kind: Kind) -> None:
    together, wide = reading(kind).noise("a", 4), reading(kind, time=12).noise("a", 4)
    mask = reading(kind).mask
    for row in range(len(TEXTS)):
        alone = reading(kind, [row])
        assert torch.equal(alone.noise("a", 4)[:, 0][:, alone.mask[0]], together[:, row, mask[row]])
        assert torch.equal(alone.noise("a", 2), alone.noise("a", 4)[:2])
    assert torch.equal(wide[..., : mask.size(1)][:, mask], together[:, mask])
    assert (together[:, ~mask] == 2).all()
    assert (together[:, mask] < 1).all()
    assert len(set(together[:, mask].flatten().tolist())) == 4 * int(mask.sum())
    for other in (reading(kind).noise("b", 4), reading(kind, seed=1).noise("a", 4)):
        assert not (other[:, mask] == together[:, mask]).any()


def test_texts_of_one_word_are_classified_and_not_tested() -> None:
    batch = batch_of([[7], [8, 9], [10], [11, 12, 7]])
    output, found = read(checkpoint("flat"), batch, None, seed=0, pad=VOCABULARY.pad)
    assert output.logits.shape == (4, tiny.CLASSES)
    assert found is not None
    assert found.batch.index.tolist() == [1, 3]
    close(found.probabilities, output.logits[[1, 3]].softmax(-1))
    close(found.decide(found.weights), found.probabilities)
    assert read(checkpoint("flat"), batch_of([[7], [8]]), None, seed=0, pad=VOCABULARY.pad)[1] is None
    one_sentence = batch_of([[7, 8, 9], [8, 9]], sentences=[[0, 0, 0], [0, 1]])
    found = read(checkpoint("han"), one_sentence, None, seed=0, pad=VOCABULARY.pad)[1]
    assert found is not None
    assert found.batch.index.tolist() == [1]


def test_levels_are_those_asked_for_and_one_that_is_not_there_is_refused() -> None:
    assert reading("han").names == (SENTENCE,)
    assert reading("flat").names == (WORD,)
    with pytest.raises(FidelityError, match=r"--model\.init_args\.level: there is no 7-1, only 2-1, 2-2, 2-3, 2-4"):
        reading("transformer", level="7-1")


def test_a_test_of_one_distribution_refuses_one_for_each_sentence() -> None:
    for kind in KINDS:
        reading(kind).one_distribution("Adversary")
    with pytest.raises(FidelityError, match=r"Adversary .* han, seed 0 has one for each sentence .*level sentence"):
        reading("han", level=WORD).one_distribution("Adversary")
