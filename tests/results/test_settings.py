"""Settings in YAML: what is too much is refused before anything is composed."""

import os
from pathlib import Path

import pytest

from attention_probing.results.settings import ROOMS, SettingsError, named_leaves, own_class, read_yaml

EXCESS = {
    "a list of many values": (
        "a: [" + "1," * 20_000 + "]",
        ", line 1 is not valid YAML in UTF-8: it has more than 20,000",
    ),
    "a block of many values": ("- 1\n" * 20_000, ", line 20000 is not valid YAML in UTF-8: it has more than 20,000"),
    "brackets": ("a: " + "[" * 20_000 + "]" * 20_000, ", line 1 .*: its lists and mappings are more than 100 deep"),
    "a number in base 60": ("a: " + "1:" * 600 + "1", ", line 1 .*: a number has more than 1,000 digits"),
    "a number": ("a:\n - " + "7" * 1_001, ", line 2 .*: a number has more than 1,000 digits"),
    "a number in base 16": ("a: 0x" + "f" * 1_000, ", line 1 .*: a number has more than 1,000 digits"),
    "a long file": (
        "a: " + "b" * (1 << 22),
        r" cannot be read: it has 4,194,307 bytes, but at most 4,194,304 are read",
    ),
}


@pytest.mark.parametrize("kind", EXCESS)
def test_too_much_is_refused_with_its_line(kind: str, tmp_path: Path) -> None:
    content, fault = EXCESS[kind]
    path = tmp_path / "a.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError, match=f"^{path}{fault}"):
        read_yaml(path)


def test_as_much_as_settings_may_have_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    content = {"many": [1] * 19_000, "number": "9" * 1_001, "text": "1" + " a" * 600, "short": 60 * 60 + 1}
    deep = "[" * 98 + "]" * 98
    path.write_text(
        f"many: {content['many']}\nnumber: '{content['number']}'\ntext: {content['text']}\nshort: 1:0:1\ndeep: {deep}",
        encoding="utf-8",
    )
    found = read_yaml(path)
    assert isinstance(found, dict)
    assert str(found.pop("deep")) == deep
    assert found == content


def test_what_has_no_end_is_not_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    device = tmp_path / "device.yaml"
    device.symlink_to("/dev/zero")
    for path, kind in ((pipe, "pipe"), (device, "device")):
        with pytest.raises(SettingsError, match=f"^{path} cannot be read: it is a {kind}, not a regular file"):
            read_yaml(path)


ROOM = ROOMS[4]
"""measures"""


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("SingleHeads", "SingleHeads"),
        ("attention_probing.SingleHeads", "SingleHeads"),
        ("attention_probing.measures.single_heads.SingleHeads", "SingleHeads"),
        (f"{ROOM}.SingleHeads", "SingleHeads"),  # as version 1 wrote it
        (f"{ROOM}.single_heads.SingleHeads", "SingleHeads"),
        (f"{ROOMS[-1]}.SingleHeads", None),
        ("measures.mine.SingleHeads", None),
        ("models.mine.Probe", None),
        ("mine.SingleHeads", None),
        ("Probe", None),
    ],
)
def test_a_class_of_the_program_is_known_by_its_path(path: str, name: str | None) -> None:
    assert own_class(path) == name
    settings = {"model": {"class_path": path, "init_args": {"path": f"{ROOM}.SingleHeads"}}}
    expected = {"model.class_path": name or path, "model.init_args.path": f"{ROOM}.SingleHeads"}
    assert dict(named_leaves(settings)) == expected
