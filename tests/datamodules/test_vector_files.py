import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
from gensim.models import FastText, KeyedVectors

from datamodules.vector_files import VectorError, files_of, read_vectors
from tests.datamodules.vector_texts import VECTORS, lines, write

WANTED = {"the", "fox", "café", "absent"}
KNOWN = ("the", "fox", "café")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


@pytest.fixture
def native() -> KeyedVectors:
    vectors = KeyedVectors(3)
    vectors.add_vectors(["fox", "filler", "the"], np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.float32))
    return vectors


def refusal(path: Path, scratch: Path, wanted: set[str] = WANTED) -> str:
    with pytest.raises(VectorError) as refused:
        read_vectors(path, wanted, scratch)
    assert str(refused.value).startswith(str(path))
    return str(refused.value).removeprefix(str(path))


# What is read


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b" \n"], ids=["unix", "dos", "trailing blank"])
def test_text(tmp_path: Path, scratch: Path, packed: bool, header: bool, end: bytes) -> None:
    content = lines(header=header).replace(b"\n", end)
    found, counted = read_vectors(write(tmp_path / "v.txt", content, packed=packed), WANTED, scratch)
    assert found.index_to_key == list(KNOWN)  # the filler, whose values are no numbers, was never parsed
    np.testing.assert_array_equal(found.vectors, np.array([VECTORS[word] for word in KNOWN], np.float32))
    assert counted == {"repeated_rows": 0}


def test_a_last_line_without_its_end(tmp_path: Path, scratch: Path) -> None:
    found, _ = read_vectors(write(tmp_path / "v.txt", b"the 1 2\nfox 3 4"), WANTED, scratch)
    assert found["fox"].tolist() == [3, 4]


def test_of_repeated_rows_the_first_counts(tmp_path: Path, scratch: Path) -> None:
    path = write(tmp_path / "v.txt", b"the 1 2\nfox 3 4\nthe 5 6\nother 1 1\nother 1 1\nthe x y\n")
    found, counted = read_vectors(path, WANTED, scratch)
    assert found["the"].tolist() == [1, 2]
    assert counted == {"repeated_rows": 2}


def test_words_are_told_apart_by_letter_case_and_by_uncommon_blanks(tmp_path: Path, scratch: Path) -> None:
    path = write(tmp_path / "v.txt", "THE 1 2\na\u00a0b 3 4\na\u0085b 5 6\n5 7 8\n".encode())
    found, _ = read_vectors(path, {"the", "a\u00a0b", "a\u0085b", "5"}, scratch)
    assert {word: found[word].tolist() for word in found.index_to_key} == {
        "a\u00a0b": [3, 4],
        "a\u0085b": [5, 6],
        "5": [7, 8],
    }


@pytest.mark.parametrize("header", [False, True])
def test_no_word_known(tmp_path: Path, scratch: Path, header: bool) -> None:
    found, _ = read_vectors(write(tmp_path / "v.txt", lines(header=header)), {"absent"}, scratch)
    assert found.vectors.shape == (0, 3)


@pytest.mark.parametrize("suffix", [".bin", ".bin.gz"])
def test_the_binary_format_of_word2vec(tmp_path: Path, scratch: Path, native: KeyedVectors, suffix: str) -> None:
    plain = tmp_path / "plain"
    native.save_word2vec_format(str(plain), binary=True)
    path = write(tmp_path / f"v{suffix}", plain.read_bytes(), packed=suffix.endswith("gz"))
    found, counted = read_vectors(path, WANTED, scratch)
    assert {word: found[word].tolist() for word in found.index_to_key} == {"fox": [1, 2, 3], "the": [7, 8, 9]}
    assert counted == {}


def test_a_kv_of_gensim_and_the_arrays_beside_it(tmp_path: Path, scratch: Path, native: KeyedVectors) -> None:
    path = tmp_path / "v.kv"
    native.save(str(path), separately=["vectors"])
    assert files_of(path) == [path, tmp_path / "v.kv.vectors.npy"]
    found, counted = read_vectors(path, WANTED, scratch)
    assert {word: found[word].tolist() for word in found.index_to_key} == {"fox": [1, 2, 3], "the": [7, 8, 9]}
    assert counted == {}


def test_fasttext_makes_up_no_vectors_of_words_that_it_has_not_seen(tmp_path: Path, scratch: Path) -> None:
    model = FastText([["the", "fox"]] * 3, vector_size=4, min_count=1, bucket=50, epochs=1, seed=0)
    model.wv.save(str(tmp_path / "v.kv"))
    assert model.wv["foxes"].any()  # it would
    found, _ = read_vectors(tmp_path / "v.kv", {"fox", "foxes"}, scratch)
    assert found.index_to_key == ["fox"]
    np.testing.assert_array_equal(found["fox"], model.wv["fox"])


# What is refused


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"the 1 2\nfox 1\n", ":2: 1 value after the word 'fox', but line 1 has 2. Fetch the file again if it is cut"),
        (b"the 1 2\nfox 1 2 3\n", ":2: 3 values after the word 'fox', but line 1 has 2. Fetch"),
        (b"the 1 2\n\nfox 1 2\n", ":2: 0 values after the word '', but line 1 has 2. Fetch"),
        (b"the 1 2\nfox\t1\t2\n", ":2: 0 values after the word 'fox\\t1\\t2', but line 1 has 2. Fetch"),
        (b"2 2\nthe 1 2\nfox 1\n", ":3: 1 value after the word 'fox', but the header says 2. Fetch"),
        (b"1 2\nthe 1 2\nfox 1 2\n", ":1: the header says 1 rows, but 2 follow. Fetch the file again if it is cut off"),
        (b"3 2\nthe 1 2\nfox 1 2\n", ":1: the header says 3 rows, but 2 follow. Fetch"),
        (b"2 3\nthe 1 2\nfox 1 2\n", ":1: the header says 3 values a row, but the first row has 2 values. Correct"),
        (b"the 1 2\n. . . 1 2\n", ":2: the word '. . .' has a blank in it, as some of glove.840B have. No word of"),
        (b"the 1 2\nat name@domain.com 1 2\n", ":2: the word 'at name@domain.com' has a blank in it"),
        (b"the 1 2\nfox 1 O.5\n", ":2: value 2 of the word 'fox' is 'O.5', not a finite number. Fetch the file again"),
        (b"filler a b\nfox 1 2\nthe nan 2\n", ":3: value 1 of the word 'the' is 'nan', not a finite number. Fetch"),
        (b"the 1 inf\n", ":1: value 2 of the word 'the' is 'inf', not a finite number. Fetch"),
        (b"the 1 \xff2\n", ":1: value 2 of the word 'the' is '\\\\xff2', not a finite number. Fetch"),
        (b"the 1 2\nf\xf6x 1 2\n", ":2: the word 'f\\\\xf6x' is not UTF-8. Convert the file, with iconv for one."),
        (b"\n", ":1: no vector, but ''. Name a text file of GloVe or word2vec"),
        (b"<!DOCTYPE\n", ":1: no vector, but '<!DOCTYPE'. Name a text file of GloVe or word2vec"),
        (b"0 50\n", ": the file holds no vectors. Name a text file of GloVe or word2vec"),
        (b"PK\x03\x04 and more\n", ": this is a zip archive. Unpack it, and name one of the files in it."),
    ],
)
def test_a_malformed_file(tmp_path: Path, scratch: Path, content: bytes, message: str) -> None:
    assert refusal(write(tmp_path / "v.txt", content), scratch).startswith(message)


def test_an_empty_file(tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "v.txt").touch()
    assert refusal(tmp_path / "v.txt", scratch).startswith(": the file holds no vectors. Name a text file")


def test_the_remedy_for_words_with_blanks_leaves_a_file_that_can_be_read(tmp_path: Path, scratch: Path) -> None:
    path = write(tmp_path / "v.txt", b"4 2\nthe 1 2\n. . . 1 2\nat x 1 2\nfox 3 4\n")
    assert "`awk 'NF == 3'`" in refusal(path, scratch)
    kept = [line for line in path.read_bytes().splitlines(True) if len(line.split()) == 3]  # as awk would
    found, _ = read_vectors(write(path, b"".join(kept)), WANTED, scratch)
    assert found.index_to_key == ["the", "fox"]


def test_a_gzip_file_that_is_cut_off(tmp_path: Path, scratch: Path) -> None:
    whole = gzip.compress(lines())
    assert refusal(write(tmp_path / "v.txt.gz", whole[:-12]), scratch).startswith(": the file is cut off or damaged (")


def test_a_gzip_file_that_is_damaged(tmp_path: Path, scratch: Path) -> None:
    whole = bytearray(gzip.compress(lines()))
    whole[-6] ^= 1  # in the checksum
    assert refusal(write(tmp_path / "v.txt.gz", bytes(whole)), scratch).startswith(": the file is cut off or damaged (")


def test_a_binary_file_that_is_cut_off(tmp_path: Path, scratch: Path, native: KeyedVectors) -> None:
    native.save_word2vec_format(str(tmp_path / "v.bin"), binary=True)
    path = write(tmp_path / "v.bin", (tmp_path / "v.bin").read_bytes()[:-5])
    assert refusal(path, scratch).startswith(": the file is cut off or damaged (unexpected end of input")


def test_vectors_that_are_not_finite(tmp_path: Path, scratch: Path, native: KeyedVectors) -> None:
    native.vectors[[0, 2], 1] = np.nan
    native.save(str(tmp_path / "v.kv"))
    message = ": the vectors of 2 of the corpus's words are not finite, that of 'fox' for one. Fetch the file again."
    assert refusal(tmp_path / "v.kv", scratch) == message


def test_a_kv_without_its_arrays(tmp_path: Path, scratch: Path, native: KeyedVectors) -> None:
    native.save(str(tmp_path / "v.kv"), separately=["vectors"])
    (tmp_path / "v.kv.vectors.npy").unlink()
    message = refusal(tmp_path / "v.kv", scratch)
    assert message.startswith(": gensim cannot load it (FileNotFoundError: ")
    assert message.endswith("Save the vectors with KeyedVectors.save, and keep the .npy files beside the .kv.")


def test_a_kv_that_is_no_pickle(tmp_path: Path, scratch: Path) -> None:
    assert refusal(write(tmp_path / "v.kv"), scratch).startswith(": gensim cannot load it (UnpicklingError: ")


def test_a_kv_that_is_a_pickle_of_something_else(tmp_path: Path, scratch: Path) -> None:
    path = write(tmp_path / "v.kv", pickle.dumps({"the": [1, 2]}))
    assert refusal(path, scratch).startswith(": gensim cannot load it (AttributeError: ")


def test_a_kv_that_is_a_whole_model(tmp_path: Path, scratch: Path) -> None:
    FastText([["the", "fox"]], vector_size=4, min_count=1, bucket=50, epochs=1).save(str(tmp_path / "v.kv"))
    message = refusal(tmp_path / "v.kv", scratch)
    assert message == ": it holds a FastText, not KeyedVectors. Save that model's `wv` instead."
