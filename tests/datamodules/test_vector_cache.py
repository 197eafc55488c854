import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from gensim.models import KeyedVectors

from attention.digest import Digests, temporary
from datamodules.vector_cache import Converted, converted
from datamodules.vector_files import VectorError

WORDS = ["the", "fox"]
VALUES = np.array([[1, 2, 3], [4, 5, 6]])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "vectors" / "key"


def convert(scratch: Path) -> tuple[KeyedVectors, Mapping[str, int]]:
    scratch.write_text("meanwhile")
    vectors = KeyedVectors(3, dtype=np.float64)
    vectors.add_vectors(WORDS, VALUES)
    return vectors, {"repeated_rows": 7}


def unwanted(scratch: Path) -> tuple[KeyedVectors, Mapping[str, int]]:
    raise AssertionError("converted again")


def at(home: Path, make: Callable[[Path], tuple[KeyedVectors, Mapping[str, int]]] = convert) -> Converted:
    return converted(home, make, Digests(home.parent.parent))


def check(found: Converted) -> None:
    np.testing.assert_array_equal(found.matrix, [*VALUES, [0, 0, 0]])
    assert found.matrix.dtype == np.float32
    assert isinstance(found.matrix, np.memmap)
    assert not found.matrix.flags.writeable
    assert found.index == {"the": 0, "fox": 1}
    assert found.counted == {"repeated_rows": 7}


def files(home: Path) -> list[str]:
    """All that lies there, and beside it."""
    return sorted(str(path.relative_to(home.parent)) for path in home.parent.rglob("*"))


WHOLE = ["key", "key/manifest.json", "key/words.kv", "key/words.kv.vectors.npy"]


def test_what_was_converted_is_there_the_next_time(home: Path) -> None:
    check(at(home))
    assert files(home) == WHOLE
    check(at(home, unwanted))


def test_the_same_vectors_are_the_same_bytes(home: Path) -> None:
    at(home)
    at(home.with_name("other"))
    for path in home.iterdir():
        assert path.read_bytes() == (home.with_name("other") / path.name).read_bytes()


@pytest.mark.parametrize("name", ["manifest.json", "words.kv", "words.kv.vectors.npy"])
@pytest.mark.parametrize("cut", [True, False], ids=["cut off", "altered"])
def test_damage_is_named_and_mended(name: str, cut: bool, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    at(home)
    content = bytearray((home / name).read_bytes())
    content[-2] ^= 1
    (home / name).write_bytes(content[: len(content) // 2] if cut else content)
    with caplog.at_level(logging.WARNING):
        check(at(home))
    assert [record.message for record in caplog.records] == [f"{home}: damaged word vectors; they were made anew."]
    assert files(home) == WHOLE
    check(at(home, unwanted))


@pytest.mark.parametrize("content", [[], {}, {"files": []}, {"files": {}}, {"files": {"absent": "0"}, "counted": {}}])
def test_a_manifest_of_something_else_is_damage(content: object, home: Path) -> None:
    at(home)
    (home / "manifest.json").write_text(json.dumps(content))
    check(at(home))


def test_a_conversion_that_fails_leaves_nothing(home: Path) -> None:
    def fail(scratch: Path) -> tuple[KeyedVectors, Mapping[str, int]]:
        scratch.write_text("half")
        raise VectorError("malformed")

    with pytest.raises(VectorError, match="malformed"):
        at(home, fail)
    assert files(home) == []


def test_of_two_processes_at_once_the_first_ones_vectors_stay(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count()
    monkeypatch.setattr(
        "datamodules.vector_cache.temporary", lambda path: path.with_name(f".{path.name}.{next(numbers)}.tmp")
    )
    inode = 0

    def overtaken(scratch: Path) -> tuple[KeyedVectors, Mapping[str, int]]:
        nonlocal inode
        check(at(home))
        inode = home.stat().st_ino
        return convert(scratch)

    check(at(home, overtaken))
    assert home.stat().st_ino == inode
    assert files(home) == WHOLE


def test_what_a_killed_run_left_goes_after_a_day(home: Path) -> None:
    for name, hours in (("old", 25), ("young", 23)):
        folder = home.with_name(f".{name}.host.1.tmp")
        folder.mkdir(parents=True)
        (folder / "scratch").touch()
        os.utime(folder, (time.time() - hours * 3600,) * 2)
    at(home)
    assert [name for name in files(home) if name.startswith(".")] == [".young.host.1.tmp", ".young.host.1.tmp/scratch"]


def test_what_a_killed_run_of_the_same_process_number_left_is_overwritten(home: Path) -> None:
    left = temporary(home)
    left.mkdir(parents=True)
    (left / "words.kv").write_text("half")
    check(at(home))
    assert files(home) == WHOLE


def test_a_folder_in_which_nothing_can_stay(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datamodules.vector_cache._MANIFEST", "absent/manifest.json")
    with pytest.raises(FileNotFoundError):
        at(home)
    assert files(home) == []
