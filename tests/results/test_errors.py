import math
from typing import Literal

import pytest

from attention_probing.results.errors import (
    UserError,
    check_numbers,
    check_values,
    command_line,
    from_options,
    near,
    setting,
)


@pytest.mark.parametrize(
    ("name", "value", "option", "argument"),
    [
        ("data.corpus", None, "--data.corpus", "`corpus`"),
        ("data.encoder.name", None, "--data.encoder.name", "`encoder`"),
        ("encoder", None, "--encoder", "`encoder`"),
        ("model.encoder.init_args.kernels", None, "--model.encoder.init_args.kernels", "`kernels`"),
        ("data.options.too_long", "skip", "--data.options.too_long=skip", "`too_long='skip'`"),
        ("data.regression", "true", "--data.regression=true", "`regression=True`"),
        ("data.parts", "[0.5,0.5]", "--data.parts=[0.5,0.5]", "`parts=[0.5, 0.5]`"),
        ("data.min_count", 2, "--data.min_count=2", "`min_count=2`"),
        ("corpus", "{train: a.tsv}", "--corpus='{train: a.tsv}'", "`corpus={'train': 'a.tsv'}`"),
        ("data.x", "[1, 2", "--data.x=[1, 2", "`x='[1, 2'`"),
        ("trainer.limit_test_batches", 0.1, "--trainer.limit_test_batches=0.1", "`limit=0.1`"),
        ("data", "DependencyDataModule", "--data DependencyDataModule", "DependencyDataModule"),
    ],
)
def test_a_setting_is_an_option_on_a_command_line_and_an_argument_in_python(
    name: str, value: object, option: str, argument: str
) -> None:
    assert setting(name, value) == argument
    with command_line():
        assert setting(name, value) == option
    assert setting(name, value) == argument


def test_what_looks_like_an_option_in_a_path_stays_as_it_is() -> None:
    assert str(UserError("/home/me/--data.old/en.conllu: no file.")) == "/home/me/--data.old/en.conllu: no file."


class Thing:
    """An object with options."""


@pytest.mark.parametrize("value", [0, 0.5, 0.99, None])
def test_a_number_within_its_bounds_passes(value: float | None) -> None:
    check_numbers(Thing(), least=0, below=1, share=value)


@pytest.mark.parametrize("value", [-0.1, 1, 2.5, float("nan"), float("inf"), -float("inf")])
def test_a_number_outside_its_bounds_is_named_with_them(value: float) -> None:
    wanted = f"{'' if math.isfinite(value) else 'a finite number '}at least 0 and below 1"
    with pytest.raises(UserError, match=rf"^Thing: share is {value}, but must be {wanted}\.$"):
        check_numbers(Thing(), least=0, below=1, epochs=0, share=value)


def test_without_bounds_a_number_must_be_finite() -> None:
    check_numbers(Thing(), share=-3)
    with pytest.raises(UserError, match=r"^Thing: share is nan, but must be a finite number\.$"):
        check_numbers(Thing(), share=math.nan)


class Given:
    def __init__(
        self,
        count: int = 1,
        share: float | None = 0.5,
        names: tuple[str, ...] = (),
        flag: bool = True,
        way: Literal["near", "far"] | None = None,
        ways: tuple[Literal["near", "far"], ...] = (),
        pair: tuple[int, str] = (1, ""),
    ) -> None:
        """Annotations of every kind."""


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
    ],
)
def test_values_of_other_types_are_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(UserError) as error:
        check_values(Given(), **{name: value})
    assert str(error.value) == message


class Own(Given):
    def __init__(self, thing: "Unknown", count: int = 1) -> None:  # type: ignore[name-defined] # noqa: F821
        """An annotation that is imported for type checkers alone."""


def test_annotations_that_cannot_be_read_leave_those_of_the_base() -> None:
    check_values(Own(thing=None), thing=object(), count=3)
    with pytest.raises(UserError, match=r"^Own: flag is 1, but must be true or false\.$"):
        check_values(Own(thing=None), flag=1)


def test_what_an_annotation_allows_passes() -> None:
    allowed: dict[str, object] = {
        "count": 3,
        "share": 1,
        "names": ["a"],
        "flag": False,
        "way": None,
        "ways": ("far",),
        "pair": "any",
    }
    check_values(Given(), **allowed, other=object())
    check_values(Given(), share=None, way="near")


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


@pytest.mark.parametrize(
    ("name", "known", "suggested"),
    [
        ("ewt", ["ud_english_ewt", "ud_german_gsd"], ["ud_english_ewt"]),
        ("ud_english_ewtt", ["ud_english_ewt", "ud_finnish_tdt"], ["ud_english_ewt"]),
        ("head", ["clark2019/heads", "clark2019/bags", "decoders/heads"], ["clark2019/heads", "decoders/heads"]),
        ("clark2019/head", ["clark2019/heads", "clark2019/bags"], ["clark2019/heads"]),
        ("ofset.uas", ["offset.uas", "right_branching.uas", "uas"], ["offset.uas"]),
        ("trainer.frobnicate", ["trainer.fast_dev_run", "trainer.max_epochs"], []),
        ("devices", ["trainer.devices", "trainer.precision"], ["trainer.devices"]),
        ("model.lr", ["learning_rate", "lower"], ["learning_rate"]),
        ("trainer.epochs", ["trainer.min_epochs", "trainer.max_epochs"], ["trainer.max_epochs"]),
        ("batch_size", ["max_sentences", "batch_size_of"], ["max_sentences"]),
        ("aaa", ["zzz"], []),
        ("aaa", [], []),
    ],
)
def test_near_names_are_suggested(name: str, known: list[str], suggested: list[str]) -> None:
    said = " or ".join(f"`--{one}`" for one in suggested)
    assert near(name, known, "--") == (f" (did you mean {said}?)" if suggested else "")
