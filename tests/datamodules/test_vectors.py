import gzip
import json
import logging
import os
import pickle
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np
import pytest
from gensim import downloader
from gensim.models import FastText, KeyedVectors

from attention_probing.attention import Encoder
from attention_probing.attention.inputs import TextTokenizer
from attention_probing.attention.source import EncoderSource, EncoderSpec, resolve
from attention_probing.attention.word_embeddings import embed_words
from attention_probing.corpora.word_vectors import latin_remedy
from attention_probing.datamodules import VectorSpec
from attention_probing.datamodules.tokenization import build_vocabulary, piece_vocabulary
from attention_probing.datamodules.vectors import (
    WordVectors,
    find_vectors,
    load_vectors,
    read_vectors,
    vocabulary_vectors,
)
from attention_probing.results.digests import Digests
from attention_probing.results.errors import UserError
from tests import tiny

TEXT = "the 0.5 -1 2e-1\nfox 1 2 3\ncafé 0.25 0 -0.125\nThe 9 9 9\nfiller 1 1 1\nfox 4 5 6\n".encode()
"""Rows of three values; the last repeats a word."""


def write(path: Path, content: bytes = TEXT, *, packed: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    return path


WANTED = {"the", "fox", "café", "absent"}
UNREADABLE = ": the word vectors cannot be read"
NO_FORMAT = ":1: the first line is neither a word and its values nor the header of word2vec's formats"


@pytest.fixture
def native() -> KeyedVectors:
    vectors = KeyedVectors(3)
    vectors.add_vectors(["fox", "filler", "the"], np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.float32))
    return vectors


def read(path: Path, wanted: set[str] = WANTED) -> tuple[dict[str, list[float]], Mapping[str, object]]:
    """The values of every wanted word that is known, in the order of the rows, and what was counted."""
    found = read_vectors(path, wanted)
    assert list(found.index.values()) == list(range(len(found.matrix)))
    assert found.matrix.dtype == np.float32
    return {word: found.matrix[row].tolist() for word, row in found.index.items()}, found.audit


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as refused:
        read_vectors(path, WANTED)
    assert str(refused.value).startswith(str(path))
    return str(refused.value).removeprefix(str(path))


def find(name: str, root: Path) -> Path:
    [path] = find_vectors(VectorSpec(name), root)
    return path


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("header", [False, True])
def test_text(tmp_path: Path, packed: bool, header: bool) -> None:
    content = b"6 3\n" * header + TEXT
    found, _ = read(write(tmp_path / ("v.txt.gz" if packed else "v.txt"), content, packed=packed))
    expected = {"the": [0.5, -1, float(np.float32(0.2))], "fox": [1, 2, 3], "café": [0.25, 0, -0.125]}
    assert list(found.items()) == list(expected.items())


@pytest.mark.parametrize("suffix", [".bin", ".bin.gz"])
def test_the_binary_format_of_word2vec(tmp_path: Path, native: KeyedVectors, suffix: str) -> None:
    native.save_word2vec_format(str(tmp_path / "plain"), binary=True)
    content = (tmp_path / "plain").read_bytes()
    path = write(tmp_path / f"v{suffix}", content, packed=suffix.endswith("gz"))
    found, audit = read(path)
    assert found == {"fox": [1, 2, 3], "the": [7, 8, 9]}
    assert audit == {"rows": 3, "rows_not_utf8": 0, "words_with_blanks": 0, "rows_repeated": 0}
    write(tmp_path / "v.bin", content[:-5])
    assert "the file ends within row 3 of 3" in refusal(tmp_path / "v.bin")


def test_fasttext_makes_up_no_vectors_of_words_that_it_has_not_seen(tmp_path: Path) -> None:
    model = FastText([["the", "fox"]] * 3, vector_size=4, min_count=1, bucket=50, epochs=1, seed=0)
    model.wv.save(str(tmp_path / "v.kv"))
    assert model.wv["foxes"].any()  # it would
    assert read(tmp_path / "v.kv", {"fox", "foxes"}) == ({"fox": model.wv["fox"].tolist()}, {})


class Program:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_a_kv_is_refused_unopened_unless_it_is_allowed(tmp_path: Path) -> None:
    left = tmp_path / "left behind"
    path = write(tmp_path / "v.kv", pickle.dumps(Program(left)))
    with pytest.raises(UserError, match=r"this file is a pickle.*`allow_pickle=True`.*; else"):
        find_vectors(VectorSpec(str(path)), tmp_path)
    assert not left.exists()
    find_vectors(VectorSpec(str(path), allow_pickle=True), tmp_path)
    assert refusal(path).startswith(f"{UNREADABLE} (AttributeError: ")  # it holds no vectors
    assert left.exists()


def test_a_path_or_a_file_of_the_data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "v.txt")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in (str(path), "~/v.txt", "v.txt"):
        assert find(name, tmp_path / "root").resolve() == path
    for name in ("glove.6B.50d.subset.txt.gz", "glove.6B.50d.txt.gz", "glove.6B.50d.txt"):
        path = write(tmp_path / "glove" / name, packed=name.endswith(".gz"))
        assert find("glove.6B.50d", tmp_path) == path


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of gensim's downloader, which reaches nothing."""
    monkeypatch.setattr(downloader, "BASE_DIR", str(tmp_path / "gensim-data"))
    monkeypatch.setattr(downloader, "load", unreachable())
    return tmp_path / "gensim-data"


def unreachable(before: Callable[[], object] = lambda: None) -> Callable[..., str]:
    def load(*arguments: object, **options: object) -> str:
        before()
        raise OSError("no route to host")

    return load


def test_what_gensim_downloads(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = base / "glove-twitter-25" / "glove-twitter-25.gz"

    def load(name: str, return_path: bool) -> str:
        assert name == "glove-twitter-25"
        assert return_path  # else it would import a program from the network
        return str(write(path, packed=True))

    monkeypatch.setattr(downloader, "load", load)
    assert find("glove-twitter-25", tmp_path) == path
    monkeypatch.setattr(downloader, "load", unreachable())  # what was downloaded before needs no network
    assert find("glove-twitter-25", tmp_path) == path
    path.unlink()  # another process downloads it at the same time
    monkeypatch.setattr(downloader, "load", unreachable(lambda: write(path, packed=True)))
    assert find("glove-twitter-25", tmp_path) == path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("glove.6B.200d", r"^glove.6B.200d: there is no such file .*{root}/glove/glove.6B.200d.txt does not exist"),
        # A path that is no file is not looked for in the network.
        *(
            (name, f"^{re.escape(name)}: there is no such file of word vectors; .* does not exist either\\. Name")
            for name in ("glove.6B.50d.txt", "some/vectors", "v.kv", ".")
        ),
        (
            "glove-twitter-25",
            r"^glove.* gensim's downloader failed \(OSError: no route to host\)\. .* into {base}",
        ),
    ],
)
def test_vectors_that_are_absent(name: str, message: str, base: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message.replace("{root}", str(tmp_path)).replace("{base}", str(base))):
        find_vectors(VectorSpec(name), tmp_path)


# Of the words of a corpus

COUNTS = {"The": 3, "the": 2, "fox": 1, "Café": 1, "unheard": 2, "of": 1}


class Files:
    """A data root and a cache in one folder."""

    def __init__(self, folder: Path) -> None:
        self.root, self.cache = folder / "root", folder / "cache"

    def load(
        self,
        name: str,
        counts: Mapping[str, int] = COUNTS,
        source: EncoderSource | None = None,
        **options: bool,
    ) -> WordVectors:
        spec = VectorSpec(name, **options)
        return load_vectors(spec, counts, root=self.root, cache=self.cache, source=source)

    @property
    def kept(self) -> list[Path]:
        """All that lies in the folder of converted vectors."""
        return sorted((self.cache / "vectors").iterdir())


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def text(tmp_path: Path) -> str:
    return str(write(tmp_path / "v.txt"))


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The file of every conversion."""
    seen: list[str] = []

    def recorded(path: Path, wanted: Collection[str]) -> WordVectors:
        seen.append(path.name)
        return read_vectors(path, wanted)

    monkeypatch.setattr("attention_probing.datamodules.vectors.read_vectors", recorded)
    return seen


def test_rows_of_the_matrix(files: Files, text: str) -> None:
    vectors = files.load(text)
    rows = vectors.rows(["The", "THE", "fox", "unheard", "CAFÉ", "filler", ""])
    assert rows.dtype == np.int64
    expected = [[0.5, -1, 0.2], [0.5, -1, 0.2], [1, 2, 3], [0, 0, 0], [0.25, 0, -0.125], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(vectors.matrix[rows], np.array(expected, np.float32))
    assert (rows == -1).tolist() == [False, False, False, True, False, True, True]
    assert vectors.rows([]).shape == (0,)
    assert vectors.size == 3
    assert files.load(text, {"fox": 1}).matrix.tolist() == [[1, 2, 3], [0, 0, 0]]  # of the corpus only


@pytest.mark.parametrize("name", ["v.txt", "glove.6B.50d"])
def test_low_coverage_is_told(name: str, files: Files, text: str, caplog: pytest.LogCaptureFixture) -> None:
    write(files.root / "glove" / "glove.6B.50d.subset.txt.gz", packed=True)
    remedy = {
        "v.txt": "Name vectors that fit the corpus's language",
        "glove.6B.50d": f"Put the full glove.6B.50d.txt into {files.root}/glove, or name other vectors",
    }
    chosen, audit = text if name == "v.txt" else name, {"types": 5, "types_covered": 3, "tokens": 10}
    assert files.load(chosen).audit.items() >= {**audit, "tokens_covered": 7, "coverage": 0.7, "size": 3}.items()
    assert not [message for message in caplog.messages if "cover only" in message]
    files.load(chosen, {**COUNTS, "unheard": 9})
    [told] = [message for message in caplog.messages if "cover only" in message]
    assert told.partition(": ")[2] == (
        f"the word vectors cover only 41.2% of 17 tokens (3 of 5 types). {remedy[name]}."
    )


def test_identity_tells_files_apart_and_not_corpora(files: Files, text: str, conversions: list[str]) -> None:
    first = files.load(text).identity
    assert set(first) == {"file", "sha256", "lowercase"}
    for count in (1, 3):  # coverage is of the counts at hand, though the conversion is an old one
        one = files.load(text, {"fox": count, "unheard": 1})
        assert (one.identity, one.audit["coverage"]) == (first, count / (count + 1))
    assert conversions == ["v.txt"] * 2
    write(Path(text), TEXT + b"more 1 1 1\n")
    assert files.load(text).identity != first
    assert json.loads(json.dumps(first)) == first


def test_a_file_is_converted_once_for_each_vocabulary(files: Files, text: str, conversions: list[str]) -> None:
    first = files.load(text)
    again = files.load(text)
    assert conversions == ["v.txt"]
    assert np.array_equal(first.matrix, again.matrix)
    assert (first.index, first.audit, first.identity) == (again.index, again.audit, again.identity)
    moved = Path(text).rename(Path(text).with_name("moved.txt"))
    assert files.load(str(moved)).identity["file"] == "moved.txt"
    assert len(conversions) == 1
    files.load(str(moved), {**COUNTS, "café": 1})  # no new word, as they are looked up
    assert len(conversions) == 1
    files.load(str(moved), {**COUNTS, "new": 1})
    assert len(conversions) == 2
    write(moved, TEXT + b"new 1 1 1\n")
    assert files.load(str(moved), {**COUNTS, "new": 1}).rows(["new"]).tolist() != [-1]
    assert len(conversions) == 3


def test_a_kv_and_the_arrays_beside_it(files: Files, tmp_path: Path, native: KeyedVectors) -> None:
    path, identities = tmp_path / "v.kv", []
    for value in (1, 5):
        native.vectors[:] = value
        native.save(str(path), separately=["vectors"])
        found = files.load(str(path), {"fox": 1}, allow_pickle=True)
        assert found.matrix[found.rows(["fox"])].tolist() == [[value] * 3]
        identities.append(found.identity)
    assert identities[0] != identities[1]
    assert find_vectors(VectorSpec(str(path), allow_pickle=True), tmp_path) == [path, tmp_path / "v.kv.vectors.npy"]


def test_a_cache_that_cannot_be_written(files: Files, text: str) -> None:
    files.cache.mkdir()
    (files.cache / "vectors").touch()
    with pytest.raises(UserError, match=r"/vectors: File exists\. Check permissions and disk, or name another folder"):
        files.load(text)


def test_damage_is_mended(files: Files, text: str, conversions: list[str], caplog: pytest.LogCaptureFixture) -> None:
    first = files.load(text)
    [path] = files.kept
    path.write_bytes(path.read_bytes().replace(first.matrix[0].tobytes(), first.matrix[1].tobytes()))
    again = files.load(text)
    warned = [
        record.message for record in caplog.records if record.levelno == logging.WARNING and "cache" in record.message
    ]
    assert warned[0] == f"{path} is damaged, and is made again."
    [aside] = path.parent.glob("*.old-*")
    assert warned[1:] == [f"What was there is now {aside}."]
    aside.unlink()
    assert np.array_equal(first.matrix, again.matrix)
    assert (first.index, first.audit, files.kept, len(conversions)) == (again.index, again.audit, [path], 2)
    files.load(text)
    assert len(conversions) == 2


@pytest.mark.parametrize("header", [b"", b"4 3\n"])
@pytest.mark.parametrize("place", range(3))
def test_words_with_blanks_are_read_and_counted(header: bytes, place: int, tmp_path: Path) -> None:
    rows = [b"the 1 2 3\n", b"at name@domain.com 4 5 6\n", b"fox 7 8 9\n"]
    rows.insert(place, b". . . -1 0.5 2e1 \n")  # also as the first row, from which the number of values is known
    found, audit = read(write(tmp_path / "v.txt", header + b"".join(rows)), {"the", "fox", ". . ."})
    assert found == {"the": [1, 2, 3], "fox": [7, 8, 9], ". . .": [-1, 0.5, 20]}
    assert audit == {"rows": 4, "rows_not_utf8": 0, "words_with_blanks": 2, "rows_repeated": 0}


DAMAGED: list[tuple[bytes, str]] = [
    (b"the 1 2 3\nfox 1 2\n", ":2: the row has 2 values, but by the first row it has 3"),
    (b"the 1 2\n. . . 1\n", ":2: the row has 1 value, but by the first row it has 2"),
    (b"the 1 2\n. . O.5 1 2 x\n", ":2: the row has 0 values, but by the first row it has 2"),
    (b"the 1 2\nroute 66 1 2\n", ":2: the row has 3 values, but by the first row it has 2. Fetch the file again if"),
    (b"route 66 1 2\nthe 1 2\n", ":2: the row has 2 values, but by the first row it has 3. Fetch the file again if"),
    (b"2 2\nthe 1 2\nroute 66 1 2\n", ":3: the row has 3 values, but by the header it has 2. Fetch the file again if"),
    (b"the 1 2\nfox  1 2\n", ":2: the row has two blanks in succession. Name a text file with a word and its values"),
    (b"9 2\nthe 1 2\nfox 1\n", ":3: the row has 1 value, but by the header it has 2"),
    (b"the 1 2\nfox 1 O.5\n", ":2: a value of the word 'fox' is not a number (could not convert"),
    (b"the 1 2\nfox 1 nan\n", ":2: a value of the word 'fox' is infinite or not a number"),
    (b"the 1 2\nfox 1 1e99\n", ":2: a value of the word 'fox' is infinite or not a number"),
    (b"3 2\nthe 1 2\nfox 1 2\n", ":1: the header promises 3 rows, but the file has 2. Fetch the file again"),
    (b"3 2\nthe one two\nfox 1 2\n", ": line 2 is not a word and its 2 values; read as the binary format, the file e"),
    (
        b"3 2\nthe one two\nfox\n 1 2 3 4 5 6",
        ": line 2 is not a word and its 2 values; read as the binary format, row 2",
    ),
    (b"2 2\nthe \0\0\x80\x7f\0\0\0\0fox 12345678", ": row 1: a value of the word 'the' is infinite"),
    (b"the only text\n", NO_FORMAT),
    (b"the\n", NO_FORMAT),
    (b"", NO_FORMAT),
    ("the 1 2\n".encode("utf-16"), f"{NO_FORMAT}. It is in UTF-16; convert it: `iconv -f UTF-16 -t UTF-8 "),
    (b"PK\x03\x04\xff more\n", NO_FORMAT),
    (pickle.dumps(Program(Path("left behind"))), NO_FORMAT),
]


def test_a_file_that_is_damaged_or_of_something_else_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for content, fault in DAMAGED:
        assert refusal(write(tmp_path / "v.txt", content)).startswith(fault)
    assert not Path("left behind").exists()
    path = write(tmp_path / "v.txt.gz", TEXT, packed=True)
    for packed in (b"x", path.read_bytes()[:-9]):
        assert refusal(write(path, packed)).startswith(": the .gz file is damaged (")


WHOLE = b"the 1 2\na\xe9 3 4\nt\0he 5 6\nfox 7 8\n"
"""A row of a word in Latin-1, and one of a word with a NUL."""


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("header", [b"", b"4 2\n"])
def test_odd_words_are_left_out_and_counted_and_no_word_is_lost(
    mark: bytes, header: bytes, files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "v.vec", mark + header + WHOLE.replace(b"fox", mark + b"fox"))
    vectors = files.load(str(path), {"the": 1, "fox": 1, "t\0he": 1})
    assert vectors.matrix[vectors.rows(["the", "fox", "t\0he"])].tolist() == [[1, 2], [7, 8], [5, 6]]
    assert vectors.audit.items() >= {"rows": 4, "rows_not_utf8": 1, "rows_repeated": 0, "coverage": 1.0}.items()
    files.load(str(path), {"the": 1, "fox": 1, "t\0he": 1})  # from the cache
    command = f"iconv -f LATIN1 -t UTF-8 {path} > v.new.vec"
    message = (
        f"{path}: rows left out, because their words are not UTF-8: 1. If all of its words are in Latin-1, convert it: "
    )
    told = [message for message in caplog.messages if "not UTF-8" in message]
    assert told == [f"{message}`{command}`."] * 2


def test_rows_of_a_word_that_is_repeated_are_counted(tmp_path: Path) -> None:
    assert read(write(tmp_path / "v.txt"))[1] == {
        "rows": 6,
        "rows_not_utf8": 0,
        "words_with_blanks": 0,
        "rows_repeated": 1,
    }


@pytest.mark.parametrize("end", [b"", b"\n"])  # gensim writes none, word2vec does
def test_a_binary_file_is_told_from_a_text_by_its_rows(tmp_path: Path, end: bytes) -> None:
    values = np.array([[1.1, 2.3], [-3.7, 0.3], [1.7, 0.1], [0.7, 0.9], [1.3, -2.9]], np.float32)
    assert b"\0" not in values.tobytes()
    words = ["the", "fox", "caf\xe9", "of", "a"]
    rows = [word.encode("latin-1") + b" " + row.tobytes() + end for word, row in zip(words, values, strict=True)]
    found, audit = read(write(tmp_path / "v.bin", b"5 2\n" + b"".join(rows)), {"the", "fox", "a"})
    assert found == {"the": values[0].tolist(), "fox": values[1].tolist(), "a": values[4].tolist()}
    assert audit == {"rows": 5, "rows_not_utf8": 1, "words_with_blanks": 0, "rows_repeated": 0}
    assert "binary=True, encoding='latin1')" in latin_remedy(tmp_path / "v.bin")  # iconv would damage the values
    for promised in (4, 6):
        told = refusal(write(tmp_path / "v.bin", b"%d 2\n" % promised + b"".join(rows)))
        assert told.startswith(f":1: the header promises {promised} rows, but the file has 5. ")
        assert told.endswith("write 5 into the header.")


def test_a_file_larger_than_a_block_is_read_as_gensim_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attention_probing.corpora.word_vectors._BLOCK", 61)
    vectors = KeyedVectors(5)
    words = [f"w{number}" for number in range(40)]
    vectors.add_vectors(words, np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32))
    for binary in (False, True):
        path = tmp_path / f"v.{binary}"
        vectors.save_word2vec_format(str(path), binary=binary)
        found, _ = read(path, set(words))
        assert found == {word: vectors[word].tolist() for word in words}


def test_a_bound_is_known_before_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = b"a " + b"1 " * 600_000
    for content, fault in [
        (b"1000000000 1000000\nthe 1 2\n", ":1: by the first line a word has 1,000,000 values, but 1 to 16,384 can"),
        (b"3 0\nthe\n", ":1: by the first line a word has 0 values"),
        (b"1000000000 2\nthe 1 2\n", ":1: the header promises 1,000,000,000 rows, but the file has 1"),
        (long, ":1: the line has more than 1,048,576 bytes"),
        (b"the 1 2\n" + long * 3, ":2: the line has more than 1,048,576 bytes"),
        (
            b"2 3\n" + b"a" * 4_000_000,
            ": line 2 is not a word and its 3 values; read as the binary format, row 1 has a",
        ),
    ]:
        assert refusal(write(tmp_path / "v.txt", content)).startswith(fault)
    path = write(tmp_path / "v.txt.gz", b"the 1 2\n" * 200_000, packed=True)
    assert read(path)[0] == {"the": [1, 2]}
    monkeypatch.setattr("attention_probing.corpora.word_vectors._SMALL", 1_000_000)
    assert refusal(path).startswith(": the .gz file unpacks to more than 1,000,000 bytes, 20 times its size or more.")


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    assert refusal(tmp_path) == ": the file cannot be read (Is a directory). Check the path and its permissions."


def test_a_pipe_a_device_and_what_is_no_vectors_are_refused_unread(files: Files, tmp_path: Path) -> None:
    pipe = tmp_path / "v.vec"
    os.mkfifo(pipe)
    for path, kind in [(pipe, "pipe"), (Path("/dev/zero"), "device")]:
        with pytest.raises(UserError, match=rf"^{path}: the file cannot be read \(it is a {kind}, not a regular file"):
            files.load(str(path))
    zeros = tmp_path / "zeros.vec"
    with zeros.open("wb") as file:
        file.truncate(1 << 40)  # without a block on the disk; its checksum would take an hour
    with pytest.raises(UserError, match=rf"^{zeros}:1: the line has more than"):
        files.load(str(zeros))


@pytest.mark.parametrize("save", [tiny.save_bert, tiny.save_roberta, tiny.save_gpt2, tiny.save_llama])
def test_the_encoders_own_embeddings(save: Callable[[Path], Path], files: Files, tmp_path: Path) -> None:
    source = resolve(EncoderSpec(str(save(tmp_path / "encoder"))))
    encoder = Encoder(source)
    vectors = files.load("encoder", source=source)
    words = list(COUNTS)
    assert vectors.matrix[vectors.rows(words)].tolist() == embed_words(encoder, words).vectors.tolist()
    assert vectors.audit["file"] == "encoder"
    assert (vectors.audit["types"], vectors.audit["coverage"]) == (6, 1.0)  # no lower-casing, whatever lowercase says
    assert not vectors.lowercase
    assert vectors.identity["lowercase"] is False
    identity = vectors.identity["encoder"]
    assert isinstance(identity, dict)
    assert identity.items() >= source.identity(Digests(files.cache)).items()


def test_words_without_pieces_are_not_covered_and_the_unknown_token_is_counted(files: Files, bert: Path) -> None:
    vectors = files.load("encoder", {"fox": 6, "\u200d": 3, "漢": 1}, resolve(EncoderSpec(str(bert))))
    assert vectors.rows(["fox", "\u200d", "漢"]).tolist() == [0, -1, 1]
    assert [vectors.audit[name] for name in ("types_covered", "coverage", "types_all_unknown")] == [2, 0.7, 1]


def test_an_encoders_embeddings_without_an_encoder(files: Files) -> None:
    with pytest.raises(UserError, match=r"^`vectors` is `encoder`, .* the data have no encoder\. Name other vectors"):
        files.load("encoder")


# Of a vocabulary

WORDS = build_vocabulary(Counter({"fox": 3, "the": 2, "never": 1, "<s>": 7}), min_count=1)


def test_an_encoders_vectors_of_its_own_pieces_are_the_rows_of_its_table(bert: Path, tmp_path: Path) -> None:
    source = resolve(EncoderSpec(str(bert)))
    own = piece_vocabulary(TextTokenizer(source))
    frequencies = np.zeros(len(own), np.int64)
    found = vocabulary_vectors(VectorSpec("encoder"), own, frequencies, source, root=tmp_path, cache=tmp_path)
    rows = found.rows(own.words)
    assert rows.tolist() == list(range(len(own)))
    assert np.array_equal(found.matrix[rows], Encoder(source).embeddings.numpy())
    assert not found.matrix[-1].any()


def test_the_default_encoders_vectors(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = resolve(EncoderSpec(str(bert)))
    monkeypatch.setattr("attention_probing.datamodules.vectors.resolve", {EncoderSpec(): source}.__getitem__)
    frequencies = np.array([0, 0, 0, 0, 0, 0, 3, 2, 1])
    found = vocabulary_vectors(VectorSpec("encoder"), WORDS, frequencies, None, root=tmp_path, cache=tmp_path)
    pieces = [TextTokenizer(source).pieces.index(piece) for piece in ("n", "##e", "##v", "##e", "##r")]
    slow = Encoder(source).embeddings.numpy()[pieces].mean(0)
    assert np.allclose(found.matrix[found.rows(["never"])[0]], slow, atol=1e-6)
    assert (found.rows(["<s>", "<unk>"]) == -1).all()


@pytest.mark.parametrize("header", [b"-3 2", b"99999999999999999999 2"])
def test_a_header_of_impossible_rows_is_called_one(header: bytes, tmp_path: Path) -> None:
    told = refusal(write(tmp_path / "v.vec", header + b"\nthe 1 2\n"))
    assert told.startswith(":1: the header promises ")
