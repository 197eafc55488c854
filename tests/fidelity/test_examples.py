"""Example texts: who is shown, and that every token has the number of its slot."""

from dataclasses import replace

import pytest
import torch

from fidelity.examples import examples_of
from tests.fidelity import tiny
from tests.fidelity.tiny import Kind, reading


@pytest.mark.parametrize("kind", ["flat", "han", "transformer"])
def test_a_chosen_text_has_a_number_for_each_token_that_of_its_slot(kind: Kind) -> None:
    found = reading(kind, time=12)
    slots = torch.arange(found.mask.numel(), dtype=torch.float64).view(found.mask.shape)
    examples = examples_of(found, {"attention": found.attention, "places": slots}, {2, 4, 99})
    assert [example.text for example in examples] == [2, 4]
    for example in examples:
        units = found.units[example.text, : int(found.batch.lengths[example.text])].tolist()
        expected = [float(slots[example.text, unit]) if unit >= 0 else 0.0 for unit in units]
        assert list(example.rows["places"]) == expected
        assert set(example.rows) == {"attention", "gradient", "places"}
        assert example.predicted == int(found.predicted[example.text])
        assert example.confidence == pytest.approx(float(found.confidence[example.text]))


def test_texts_are_known_by_their_place_in_the_split_and_not_in_the_batch() -> None:
    found = reading("flat", [3, 1])
    moved = replace(found, batch=replace(found.batch, index=torch.tensor([70, 50])))
    (example,) = examples_of(moved, {"attention": moved.attention}, {50})
    assert example.text == 50
    assert len(example.rows["attention"]) == len(tiny.TEXTS[1])
    assert example.rows["attention"] == moved.attention[1, : len(tiny.TEXTS[1])].tolist()
