"""Values of options against their annotations."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from attention_probing.results.errors import UserError
from attention_probing.results.options import Factor, Positive, Probability, Share, check_options, checked, from_options


@checked
def train(
    epochs: Positive = 1, dropout: Probability | None = None, decay: Factor = 1, share: Share = 1
) -> float | None:
    """Return the dropout."""
    return dropout


@pytest.mark.parametrize("value", [0, 0.5, 0.99, None])
def test_a_number_within_its_bounds_passes(value: float | None) -> None:
    assert train(3, dropout=value, share=1) == value


@pytest.mark.parametrize("value", [-0.1, 1, 2.5, math.nan, math.inf, -math.inf])
def test_a_number_outside_its_bounds_is_named_with_them(value: float) -> None:
    wanted = "at least 0 and below 1"
    if not math.isfinite(value):
        wanted = f"a finite number {wanted}"
    with pytest.raises(UserError, match=rf"^train: dropout is {value}, but must be {wanted}\.$"):
        train(1, value)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"epochs": 0}, "epochs is 0, but must be at least 1"),
        ({"decay": 0.0}, "decay is 0.0, but must be above 0"),
        ({"share": 1.5}, "share is 1.5, but must be above 0 and at most 1"),
    ],
)
def test_a_number_at_an_open_bound_is_outside(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(UserError, match=rf"^train: {wrong}\.$"):
        train(**options)


class Given:
    """Options of every kind."""

    @checked
    def __init__(
        self,
        count: int = 1,
        share: float | None = 0.5,
        names: tuple[str, ...] = (),
        flag: bool = True,
        way: Literal["near", "far"] | None = None,
        ways: tuple[Literal["near", "far"], ...] = (),
        pair: tuple[int, str] = (1, ""),
        sizes: dict[str, Positive] | None = None,
    ) -> None:
        self.count = count


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", "3", "Given: count is '3', but must be a whole number."),
        ("count", True, "Given: count is True, but must be a whole number."),
        ("count", 2.5, "Given: count is 2.5, but must be a whole number."),
        ("share", "half", "Given: share is 'half', but must be a number."),
        ("names", "punct", "Given: names is 'punct', but must be a list."),
        ("names", ["a", 3], "Given: names is ['a', 3], but must be a list, each text."),
        ("flag", "no", "Given: flag is 'no', but must be true or false."),
        ("flag", 1, "Given: flag is 1, but must be true or false."),
        ("way", "nearer", "Given: way is 'nearer', but must be one of near, far (did you mean `near`?)."),
        ("ways", ["far", "close"], "Given: ways is ['far', 'close'], but must be a list, each one of near, far."),
        ("sizes", {"a": 0}, "Given: sizes is {'a': 0}, but must be a mapping to at least 1."),
    ],
)
def test_values_of_other_types_are_refused(name: str, value: object, message: str) -> None:
    options: dict[str, object] = {name: value}
    with pytest.raises(UserError) as error:
        Given(**options)  # type: ignore[arg-type]
    assert str(error.value) == message


def test_values_that_an_annotation_allows_pass() -> None:
    assert Given(3, 1, ("a",), False, None, ("far",)).count == 3
    assert Given(names=["a"], share=None, way="near", pair="any").count == 1  # type: ignore[arg-type]


class Own(Given):
    """A class with an annotation that is imported for type checkers alone."""

    @checked
    def __init__(self, thing: "Unknown", count: int = 1) -> None:  # type: ignore[name-defined] # noqa: F821
        super().__init__(count)


def test_annotations_that_cannot_be_read_leave_the_others() -> None:
    assert Own(object(), 3).count == 3
    with pytest.raises(UserError, match=r"^Own: count is '3', but must be a whole number\.$"):
        Own(object(), "3")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^Own: flag is 1, but must be true or false\.$"):
        check_options(Own(None), flag=1)


@checked
@dataclass(frozen=True)
class Layer:
    """A dataclass with a bound."""

    width: Positive = 1


def test_a_dataclass_is_checked_when_it_is_made() -> None:
    assert Layer(2) == Layer(width=2)
    with pytest.raises(UserError, match=r"^Layer: width is 0, but must be at least 1\.$"):
        Layer(0)


def test_an_object_is_made_of_a_mapping_of_its_options() -> None:
    made = from_options(Box, {"depth": 3}, "corpora.box", width=2)
    assert (made.width, made.depth) == (2, 3)
    assert from_options(Box, {"width": 5}, "corpora.box", width=2).width == 5
    with pytest.raises(
        UserError, match=r"^corpora\.box: unknown option 'dept' \(did you mean `depth`\?\); .* are width, depth"
    ):
        from_options(Box, {"dept": 3}, "corpora.box")
    with pytest.raises(
        UserError, match=r"^corpora\.box is \[1\], but must be a mapping with keys among width, depth\.$"
    ):
        from_options(Box, [1], "corpora.box")


class Box:
    def __init__(self, width: int = 1, depth: int = 1) -> None:
        self.width, self.depth = width, depth
