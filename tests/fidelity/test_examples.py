"""Example texts: who is shown, and that every token has the number of its slot."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fidelity.examples import Example, example_page, examples_of
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


def test_a_heading_names_the_text_its_class_and_what_each_variant_predicts() -> None:
    split = SimpleNamespace(ids=("3", "17"), labels=[0, 1], forms=lambda text: [None, "Xyz"])
    data: Any = SimpleNamespace(
        splits={"test": split}, labels=("bad", "good"), tokenizer=None, text=lambda split, text: (None, ["a", "<unk>"])
    )
    checkpoints: list[Any] = [SimpleNamespace(name=f"{name}-0", variant=name) for name in ("base", "tying")]
    found = [
        Example(1, "tying-0", 1, 0.9, {"attention": [0.2, 0.8]}),
        Example(1, "base-0", 0, 0.75124, {"attention": [0.5, 0.5]}),
    ]
    (text,) = example_page(found, data, checkpoints).texts
    assert text.name == "Text 17 of test"
    assert text.caption == "gold good, base predicts bad (P = 0.751), tying predicts good (P = 0.900)"
    assert text.words == ("a", "Xyz")
    assert text.rows == {"base: attention": [0.5, 0.5], "tying: attention": [0.2, 0.8]}
