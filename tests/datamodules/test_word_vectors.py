import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np
import pytest
from gensim.models import KeyedVectors

from attention.digest import Digests
from attention.encoder import Encoder, EncoderSpec, Source, embed_words, resolve
from attention.tokenizer import TextTokenizer
from corpora.conllu import read_treebank
from datamodules import VectorError, VectorSpec
from datamodules.tokenization import build_vocabulary, piece_vocabulary
from datamodules.vectors import Found, WordVectors, load_vectors, read_vectors, vocabulary_vectors
from tests import tiny
from tests.datamodules.test_vectors import lines, write

COUNTS = {"The": 3, "the": 2, "fox": 1, "Café": 1, "unheard": 2, "of": 1}
ENCODERS: dict[str, Callable[[Path], Path]] = {
    "bert": tiny.save_bert,
    "roberta": tiny.save_roberta,
    "gpt2": tiny.save_gpt2,
    "llama": tiny.save_llama,
}


class Files:
    """A data root and a cache in one folder."""

    def __init__(self, folder: Path) -> None:
        self.root, self.cache = folder / "root", folder / "cache"

    def load(
        self,
        name: str,
        counts: Mapping[str, int] = COUNTS,
        source: Source | None = None,
        encoder: Callable[[], Encoder] | None = None,
        **options: object,
    ) -> WordVectors:
        spec = VectorSpec(name, **options)  # type: ignore[arg-type]
        return load_vectors(spec, counts, root=self.root, cache=self.cache, source=source, encoder=encoder)

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

    def recorded(path: Path, wanted: Collection[str]) -> Found:
        seen.append(path.name)
        return read_vectors(path, wanted)

    monkeypatch.setattr("datamodules.vectors.read_vectors", recorded)
    return seen


# Rows


def test_rows_of_the_matrix(files: Files, text: str) -> None:
    vectors = files.load(text)
    rows = vectors.rows(["The", "THE", "fox", "unheard", "CAFÉ", "filler", ""])
    assert rows.dtype == np.int64
    expected = [[0.5, -1, 0.2], [0.5, -1, 0.2], [1, 2, 3], [0, 0, 0], [0.25, 0, -0.125], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(vectors.matrix[rows], np.array(expected, np.float32))
    assert (rows == -1).tolist() == [False, False, False, True, False, True, True]
    assert vectors.rows([]).shape == (0,)
    assert vectors.size == 3


def test_letter_case_can_count(files: Files, text: str) -> None:
    vectors = files.load(text, lowercase=False, min_coverage=0.0)
    assert vectors.matrix[vectors.rows(["The"])].tolist() == [[9, 9, 9]]
    assert vectors.rows(["Café", "THE"]).tolist() == [-1, -1]


def test_of_the_corpus_only(files: Files, text: str) -> None:
    vectors = files.load(text, {"fox": 1})
    assert vectors.matrix.tolist() == [[1, 2, 3], [0, 0, 0]]
    assert vectors.rows(["the"]).tolist() == [-1]


# Audit


def test_types_and_tokens_are_counted_as_they_are_looked_up(files: Files, text: str) -> None:
    write(Path(text), lines() + b"fox 4 5 6\n")
    assert files.load(text).audit == {
        "file": "v.txt",
        "size": 3,
        "types": 5,  # the, fox, café, unheard, of
        "types_covered": 3,
        "tokens": 10,
        "tokens_covered": 7,
        "coverage": 0.7,
        "repeated_rows": 1,
    }
    sensitive = files.load(text, lowercase=False).audit
    assert {name: sensitive[name] for name in ("types", "types_covered", "tokens_covered")} == {
        "types": 6,
        "types_covered": 3,  # The, the, fox
        "tokens_covered": 6,
    }


def test_coverage_is_of_the_counts_at_hand_though_the_conversion_is_an_old_one(
    files: Files, text: str, conversions: list[str]
) -> None:
    assert files.load(text, {"fox": 1, "unheard": 1}).audit["coverage"] == 0.5
    assert files.load(text, {"fox": 3, "unheard": 1}).audit["coverage"] == 0.75
    assert conversions == ["v.txt"]


def test_low_coverage_is_refused_and_the_bound_is_still_allowed(files: Files, text: str) -> None:
    with pytest.raises(VectorError) as refused:
        files.load(text, min_coverage=0.71)
    assert str(refused.value) == (
        "v.txt: these word vectors know 70.0% of 10 tokens (3 of 5 types), less than vectors.min_coverage 0.71. Name "
        "vectors that fit the corpus's language and letter case, or lower --data.init_args.vectors.min_coverage."
    )
    assert files.load(text, min_coverage=0.7).audit["coverage"] == 0.7


def test_low_coverage_of_a_subset_says_where_the_full_file_belongs(files: Files) -> None:
    write(files.root / "glove" / "glove.6B.50d.subset.txt.gz", packed=True)
    with pytest.raises(VectorError) as refused:
        files.load("glove.6B.50d", {"unheard": 1})
    assert str(refused.value) == (
        "glove.6B.50d.subset.txt.gz: these word vectors know 0.0% of 1 tokens (0 of 1 types), less than "
        f"vectors.min_coverage 0.5. Put the full glove.6B.50d.txt into {files.root}/glove, name other vectors, or "
        "lower --data.init_args.vectors.min_coverage."
    )
    assert files.load("glove.6B.50d", {"unheard": 1}, min_coverage=0.0).matrix.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("bound", [-0.1, 50, float("nan")])
def test_a_bound_that_is_no_share_is_refused(bound: float) -> None:
    with pytest.raises(VectorError, match=r"min_coverage: .* is no share of the tokens\. Give a number in 0–1\."):
        VectorSpec(min_coverage=bound)


# Identity and conversion


def test_identity_tells_files_apart_and_not_corpora(files: Files, text: str) -> None:
    first = files.load(text).identity
    assert set(first) == {"file", "sha256", "lowercase"}
    assert files.load(text, {"fox": 1}).identity == first
    assert files.load(text, lowercase=False).identity != first
    write(Path(text), lines() + b"more 1 1 1\n")
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
    files.load(str(moved), lowercase=False)
    assert len(conversions) == 3
    write(moved, lines() + b"new 1 1 1\n")
    assert files.load(str(moved), {**COUNTS, "new": 1}).rows(["new"]).tolist() != [-1]
    assert len(conversions) == 4


def test_a_kv_is_told_apart_by_the_arrays_beside_it(files: Files, tmp_path: Path) -> None:
    vectors = KeyedVectors(2)
    vectors.add_vectors(["fox"], np.array([[1, 2]], np.float32))
    identities = []
    for value in (1, 5):
        vectors.vectors[:] = value
        vectors.save(str(tmp_path / "v.kv"), separately=["vectors"])
        found = files.load(str(tmp_path / "v.kv"), {"fox": 1}, allow_pickle=True)
        assert found.matrix[found.rows(["fox"])].tolist() == [[value, value]]
        identities.append(found.identity)
    assert identities[0] != identities[1]


def test_a_cache_that_cannot_be_written(files: Files, text: str) -> None:
    files.cache.mkdir()
    (files.cache / "vectors").touch()
    with pytest.raises(VectorError) as refused:
        files.load(text)
    assert str(refused.value) == (
        f"{files.cache}/vectors: File exists. {files.cache}/vectors must be writable and have room: else name another "
        f"folder by data.init_args.cache."
    )


def test_a_malformed_file_leaves_nothing_behind(files: Files, text: str) -> None:
    write(Path(text), b"the 1 2\nfox 1\n")
    with pytest.raises(VectorError, match=r"v\.txt:2: 'fox 1' is not a word"):
        files.load(text)
    assert files.kept == []


@pytest.mark.parametrize("damage", ["cut off", "a vector", "a word", "a count", "something else"])
def test_damage_is_named_and_mended(
    damage: str, files: Files, text: str, conversions: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    first = files.load(text)
    (path,) = files.kept
    whole = path.read_bytes()
    altered = {
        "cut off": whole[:-5],
        "a vector": whole[:-14] + bytes([whole[-14] ^ 1]) + whole[-13:],
        "a word": whole.replace(b"fox", b"fix"),
        "a count": whole.replace(b'repeated_rows\\": 0', b'repeated_rows\\": 1'),
        "something else": b"{}",
    }
    assert altered[damage] != whole
    path.write_bytes(altered[damage])
    again = files.load(text)
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == [f"{path}: damaged word vectors; they are made anew."]
    assert np.array_equal(first.matrix, again.matrix)
    assert (first.index, first.audit) == (again.index, again.audit)
    assert files.kept == [path]
    assert len(conversions) == 2
    files.load(text)
    assert len(conversions) == 2


# The encoder's own


@pytest.mark.parametrize("name", ENCODERS)
def test_the_encoders_own_embeddings(name: str, files: Files, tmp_path: Path) -> None:
    source = resolve(EncoderSpec(str(ENCODERS[name](tmp_path / name))))
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
    assert {name: vectors.audit[name] for name in ("types_covered", "coverage", "types_all_unknown")} == {
        "types_covered": 2,
        "coverage": 0.7,
        "types_all_unknown": 1,
    }


def test_the_encoder_is_not_loaded_again_for_what_was_converted(files: Files, bert: Path) -> None:
    source = resolve(EncoderSpec(str(bert)))
    loaded = []

    def encoder() -> Encoder:
        loaded.append(source)
        return Encoder(source)

    first = files.load("encoder", source=source, encoder=encoder)
    assert len(loaded) == 1
    assert files.load("encoder", source=source, encoder=encoder).audit == first.audit
    assert len(loaded) == 1


def test_an_encoders_embeddings_without_an_encoder(files: Files) -> None:
    with pytest.raises(VectorError, match=r"^encoder: .* there is none\. Name other vectors\.$"):
        files.load("encoder")


# Of a vocabulary

WORDS = build_vocabulary(Counter({"fox": 3, "the": 2, "never": 1, "<s>": 7}), min_count=1, max_words=None)


def test_words_of_a_vocabulary_are_looked_up_and_weighed_by_their_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "v.txt", b"fox 1 2\n<s> 3 4\n<unk> 5 6\nthe 7 8\n")
    frequencies = np.array([0, 4, 0, 9, 9, 0, 3, 0, 1])  # of the specials, fox, the and never
    found = vocabulary_vectors(VectorSpec(str(path)), WORDS, frequencies, None, root=tmp_path, cache=tmp_path)
    assert dict(found.index) == {"fox": 0}
    assert (found.audit["tokens"], found.audit["tokens_covered"]) == (4, 3)
    assert json.loads(json.dumps(found.audit)) == found.audit


def test_an_encoders_vectors_of_its_own_pieces_are_the_rows_of_its_table(bert: Path, tmp_path: Path) -> None:
    source = resolve(EncoderSpec(str(bert)))
    own = piece_vocabulary(TextTokenizer(source))
    frequencies = np.zeros(len(own), np.int64)
    found = vocabulary_vectors(VectorSpec("encoder"), own, frequencies, source, root=tmp_path, cache=tmp_path)
    rows = found.rows(own.words)
    assert rows.tolist() == list(range(len(own)))
    assert np.array_equal(found.matrix[rows], Encoder(source).embeddings.numpy())
    assert not found.matrix[-1].any()


def test_an_encoders_vectors_of_words_are_those_of_the_default_encoder(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def stand_in(spec: EncoderSpec) -> Source:
        asked.append(spec)
        return resolve(EncoderSpec(str(bert)))

    monkeypatch.setattr("datamodules.vectors.resolve", stand_in)
    frequencies = np.array([0, 0, 0, 0, 0, 0, 3, 2, 1])
    found = vocabulary_vectors(VectorSpec("encoder"), WORDS, frequencies, None, root=tmp_path, cache=tmp_path)
    assert asked == [EncoderSpec()]
    source = resolve(EncoderSpec(str(bert)))
    pieces = [TextTokenizer(source).pieces.index(piece) for piece in ("n", "##e", "##v", "##e", "##r")]
    slow = Encoder(source).embeddings.numpy()[pieces].mean(0)
    assert np.allclose(found.matrix[found.rows(["never"])[0]], slow, atol=1e-6)
    assert (found.rows(["<s>", "<unk>"]) == -1).all()


# Real data


def test_the_shipped_subset_knows_nine_tokens_of_ten_of_ewt(tmp_path: Path, public_data: Callable[..., Path]) -> None:
    root = public_data()
    sentences = read_treebank(public_data("ud", "en_ewt-ud-dev.conllu")).sentences
    counts = Counter(word for sentence in sentences for word in sentence.words)
    files = Files(tmp_path)
    files.root = root
    vectors = files.load("glove.6B.50d", counts)
    if vectors.audit["file"] != "glove.6B.50d.subset.txt.gz":
        pytest.skip("the full glove.6B.50d.txt stands there")
    assert (vectors.size, vectors.audit["tokens"], vectors.audit["repeated_rows"]) == (50, 25147, 0)
    assert vectors.audit["coverage"] == pytest.approx(0.914, abs=0.01)
    the = vectors.matrix[vectors.rows(["The"])[0]]
    np.testing.assert_allclose(the[:4], [0.418, 0.24968, -0.41242, 0.1217], atol=1e-6)
