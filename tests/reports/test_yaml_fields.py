from collections.abc import Callable
from pathlib import Path

import pytest

from reports.plan import SweepError
from reports.yaml_fields import fields, integers, load, mapping, near, text, texts


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: {b: [1, x]}\n", encoding="utf-8")
    assert load(tmp_path / "a.yaml") == {"a": {"b": [1, "x"]}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("rows:\n  one: 1\n  two: 2\n  one: 3\n", r"a\.yaml:4: `one` stands twice in one mapping"),
        ("- {a: 1}\n- {a: 1, a: 1}\n", r"a\.yaml:2: `a` stands twice"),
        ("a: [1\n", r"a\.yaml is not YAML: .*line 2"),
        ("a: 2026-13-45\n", r"a\.yaml is not YAML: .*month"),
    ],
)
def test_faults_of_a_file(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(SweepError, match=f"(?s){message}"):
        load(tmp_path / "a.yaml")


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match=r"a\.yaml cannot be read: No such file"):
        load(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_bytes(b"\xff")
    with pytest.raises(SweepError, match=r"a\.yaml is not UTF-8"):
        load(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (mapping, [], "x is a mapping of at least one"),
        (mapping, {}, "x is a mapping of at least one"),
        (mapping, {False: 1}, "x: the name False is read as bool: write it in quotes"),
        (text, 1, "x is text, not 1: write it in quotes"),
        (text, " ", "x is text, not ' '"),
        (texts, "uas", r"x is a list of names, such as \[uas\], not 'uas'"),
        (texts, [], "x is a list of names"),
        (texts, ["a", 1], "x, item 2 is text, not 1"),
        (texts, ["a", "b", "a"], "x names something twice: a, b, a"),
        (integers, 1, "x is a list of different whole numbers"),
        (integers, [], "x is a list of different whole numbers"),
        (integers, [1, 1], "x is a list of different whole numbers"),
        (integers, [True], "x is a list of different whole numbers"),
        (integers, [-1], "x is a list of different whole numbers"),
        (integers, [0.5], "x is a list of different whole numbers"),
    ],
)
def test_faults_of_values(check: Callable[[object, str], object], value: object, message: str) -> None:
    with pytest.raises(SweepError, match=message):
        check(value, "x")


def test_sound_values_are_returned() -> None:
    assert mapping({"a": 1}, "x") == {"a": 1}
    assert mapping({}, "x", empty=True) == {}
    assert text("a", "x") == "a"
    assert texts(["b", "a"], "x") == ("b", "a")
    assert integers([2, 0], "x") == (2, 0)


def test_an_unknown_name_is_told_with_its_neighbour() -> None:
    with pytest.raises(SweepError, match=r"x: there is no `sedes` \(did you mean `seeds`\?\); there are rows, seeds"):
        fields({"sedes": 1}, {"seeds", "rows"}, "x")
    assert near("quite different", ["uas"]) == ""
