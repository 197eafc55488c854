"""The page of example texts."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attention_probing.fidelity.examples import Example, example_page, examples_of
from tests.fidelity.tiny import KINDS, Kind, classified


@pytest.mark.parametrize("kind", KINDS)
def test_a_chosen_text_has_a_number_for_each_token_that_of_its_position(kind: Kind) -> None:
    found = classified(kind, time=12)
    positions = torch.arange(found.mask.numel(), dtype=torch.float64).view(found.mask.shape)
    examples = examples_of(found, {"places": positions}, [2, 4])
    assert [example.text for example in examples] == [2, 4]
    for row, example in zip((2, 4), examples, strict=True):
        units = found.token_to_position[row, : int(found.batch.lengths[row])].tolist()
        expected = [float(positions[row, unit]) if unit >= 0 else 0.0 for unit in units]
        assert list(example.rows["places"]) == expected
        assert example.predicted == int(found.predicted[row])
        assert example.confidence == pytest.approx(float(found.confidence[row]))


def test_a_heading_names_the_text_its_class_and_what_each_variant_predicts() -> None:
    split = SimpleNamespace(
        ids=("3", "17"), labels=[0, 1], forms=lambda text: [None, "Xyz"], readable=lambda text: ["a", "<unk>"]
    )
    data: Any = SimpleNamespace(splits={"test": split}, labels=("bad", "good"), tokenizer=None)
    found = [
        Example(1, "tying", 1, 0.9, {"attention": [0.2, 0.8]}),
        Example(1, "base", 0, 0.75124, {"attention": [0.5, 0.5]}),
    ]
    (text,) = example_page(found, data, ["base", "tying"]).texts
    assert text.name == "Text 17 of test"
    assert text.caption == "gold good, base predicts bad (P = 0.751), tying predicts good (P = 0.900)"
    assert text.words == ("a", "Xyz")
    assert text.rows == {"base: attention": [0.5, 0.5], "tying: attention": [0.2, 0.8]}
