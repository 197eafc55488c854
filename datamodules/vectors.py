"""Word vectors for the words of a corpus: found by name, read once, and stored in a file that is mapped into memory."""

import glob
import io
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from attention_probing.attention import Encoder, EncoderSpec, resolve
from attention_probing.attention.source import EncoderSource
from attention_probing.attention.word_embeddings import embed_words, embeddings_identity
from attention_probing.corpora.files import no_file
from attention_probing.corpora.word_vectors import check_word_vectors, latin_remedy, read_word_vectors
from attention_probing.datamodules.tokenization import Vocabulary
from attention_probing.results.digests import Digests, digest
from attention_probing.results.errors import UserError, refuse_lack_of_memory, setting
from attention_probing.results.files import keep, read_kept, remove_leftovers
from attention_probing.results.options import checked
from attention_probing.results.progress import inform, warn

VECTORS_VERSION = 5  # part of every key: raise it when what is kept of a file would come out differently
ENCODER = "encoder"  # the name that stands for the encoder's own input embeddings
SUBSET = ".subset.txt.gz"  # suffix of a file that holds some rows of a larger one

_ACCEPTED = (
    "Name a text file of GloVe or word2vec (plain or .gz), a .kv of gensim, `encoder`, vectors of gensim's downloader "
    "(for instance glove-wiki-gigaword-50), or glove.6B.50d, a file of https://nlp.stanford.edu/projects/glove in the "
    "data root"
)
MIN_COVERAGE = 0.5
"""Warn if vectors cover a smaller share of the tokens of a corpus."""


@checked
@dataclass(frozen=True)
class VectorSpec:
    """Name of word vectors.

    Words are looked up in lower case. Only with the name `encoder` does the case depend on the tokenizer.

    Args:
        name: One of four: the path of a file; `encoder`, for the input embeddings of an encoder; the
            name of a file in `glove/` of the data root, without `.txt`, such as `glove.6B.50d`; or a
            name of gensim's downloader. A file is in the text or binary format of GloVe or word2vec
            (plain or .gz, with or without a header), or a `.kv` of gensim. If `glove/` has only a file
            with a subset of the rows, that file is read.
        allow_pickle: Permit opening a `.kv`, which is a pickle. A pickle can run any program: allow it
            only for files that you trust.
    """

    name: str = "glove.6B.50d"
    allow_pickle: bool = False


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Vectors of the words of a corpus, and the row of each word.

    The entries of `audit` are:

    - `file`: name of the file of vectors, or `encoder`.
    - `size`: number of dimensions of a vector.
    - `types` and `tokens`: numbers of distinct forms and of all tokens of the corpus; `types_covered`
      and `tokens_covered`: numbers of types and tokens with a vector.
    - `coverage`: fraction of the tokens with a vector, 0–1.
    - `rows`, only for a text or binary file: number of its rows; `rows_not_utf8` and `rows_repeated`: rows
      left out, see `corpora.word_vectors.WordRows`.
    - `types_all_unknown`, only for `encoder`: number of types whose pieces are all the unknown token.

    Attributes:
        index: Row in `matrix` of every word with a vector, in the form in which it is looked up.
        matrix: float32 `[words with a vector + 1, size]`; the last row, −1, is zero and stands for
            unknown words.
        lowercase: True if words are looked up in lower case.
        identity: Name and SHA-256 of the file, or the encoder's identity, and `lowercase`; the same for
            every corpus.
        audit: Facts and counts by name, as listed above.
    """

    index: Mapping[str, int]
    matrix: NDArray[np.float32]
    audit: Mapping[str, object]
    lowercase: bool = False
    identity: Mapping[str, object] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of dimensions of a word vector."""
        return int(self.matrix.shape[1])

    def rows(self, words: Sequence[str]) -> NDArray[np.int64]:
        """Return the row in `matrix` of each word, int64 `[words]`; −1, the row of zeros, for an unknown word."""
        if self.lowercase:
            words = [word.lower() for word in words]
        return np.array([self.index.get(word, -1) for word in words], np.int64)


def load_vectors(
    spec: VectorSpec,
    words: Mapping[str, int],
    *,
    root: Path,
    cache: Path,
    source: EncoderSource | None = None,
    encoder: Callable[[], Encoder] | None = None,
) -> WordVectors:
    """Return the word vectors for the words of a corpus.

    The vectors of these words are read from the file once and then cached.

    Args:
        spec: Name and options of the vectors.
        words: Count of every form in the corpus.
        root: Data root, under which `glove/` lies.
        cache: Cache folder; its `vectors/` holds the cached vectors.
        source: Files of an encoder, needed if `spec.name` is `encoder`: the vectors are then its input embeddings.
        encoder: Function that loads this encoder; None for `Encoder(source)`.

    Raises:
        UserError: The vectors are absent or malformed, or the cache cannot be written.
    """
    lowercase = spec.name != ENCODER
    counts: Counter[str] = Counter()
    for word, count in words.items():
        counts[word.lower() if lowercase else word] += count
    wanted = sorted(counts.keys() - {""})
    digests = Digests(cache)
    try:
        if spec.name == ENCODER:
            origin = _embeddings_of(source, encoder, digests)
        else:
            origin = _file_of_vectors(spec, root, digests)
        vectors = _cached_vectors(origin, wanted, lowercase, cache / "vectors")
    except OSError as error:
        remedy = f"Check permissions and disk, or name another folder than {cache} with {setting('data.cache')}"
        raise UserError.at(error.filename or cache, None, error.strerror or str(error), remedy) from error
    coverage = _coverage(counts, vectors)
    _report(origin, vectors, coverage)
    return replace(
        vectors,
        lowercase=lowercase,
        identity={**origin.identity, "lowercase": lowercase},
        audit={"file": origin.name, "size": vectors.size, **coverage, **vectors.audit},
    )


class _VectorOrigin(NamedTuple):
    """Place that word vectors are read from.

    Attributes:
        name: Name of the file, or `encoder`.
        identity: Name and hash of the file, or identity of the encoder.
        read: Function that returns the vectors of some words.
        path: Path of the file; None for an encoder.
    """

    name: str
    identity: Mapping[str, object]
    read: Callable[[Sequence[str]], WordVectors]
    path: Path | None = None


def _embeddings_of(
    source: EncoderSource | None, encoder: Callable[[], Encoder] | None, digests: Digests
) -> _VectorOrigin:
    """Return the input embeddings of an encoder as an origin of word vectors."""
    if source is None:
        raise UserError(
            f"{setting('data.vectors.name')} is `{ENCODER}`, the input embeddings of the encoder, but the data "
            f"have no encoder. Name other vectors, or set {setting('encoder')}."
        )
    return _VectorOrigin(ENCODER, embeddings_identity(source, digests), partial(_embed, source, encoder))


def _file_of_vectors(spec: VectorSpec, root: Path, digests: Digests) -> _VectorOrigin:
    """Find a file of word vectors, and return it as their origin."""
    path, *beside = find_vectors(spec, root)
    hashes = list(digests.of([path, *beside]).values())
    sha256 = digest("\n".join(hashes).encode()) if beside else hashes[0]
    identity = {"file": path.name, "sha256": sha256}
    return _VectorOrigin(path.name, identity, partial(read_vectors, path), path)


def _coverage(counts: Counter[str], vectors: WordVectors) -> dict[str, float]:
    """Return the entries of `WordVectors.audit` on the words of a corpus that have a vector."""
    covered = [count for word, count in counts.items() if word in vectors.index]
    tokens = counts.total()
    tokens_covered = sum(covered)
    return {
        "types": len(counts),
        "types_covered": len(covered),
        "tokens": tokens,
        "tokens_covered": tokens_covered,
        "coverage": tokens_covered / tokens if tokens else 1.0,
    }


def _report(origin: _VectorOrigin, vectors: WordVectors, coverage: Mapping[str, float]) -> None:
    """Log the coverage of a corpus; warn if it is low, and of rows that are not UTF-8."""
    share = "{coverage:.1%} of {tokens:,} tokens ({types_covered:,} of {types:,} types)".format(**coverage)
    if coverage["coverage"] < MIN_COVERAGE:
        remedy = "Name vectors that fit the corpus's language"
        if origin.path is not None and origin.name.endswith(SUBSET):
            full = f"{origin.name.removesuffix(SUBSET)}.txt"
            remedy = f"Put the full {full} into {origin.path.parent}, or name other vectors"
        warn(f"{origin.name}: the word vectors cover only {share}. {remedy}.")
    left_out = vectors.audit.get("rows_not_utf8")
    if origin.path is not None and left_out:
        remedy = latin_remedy(origin.path)
        warn(f"{origin.path}: rows left out, because their words are not UTF-8: {left_out}. {remedy}.")
    inform(f"Word vectors: {origin.name}, {vectors.size} values, {share}.")


def _embed(source: EncoderSource, encoder: Callable[[], Encoder] | None, wanted: Sequence[str]) -> WordVectors:
    """Return the encoder's input embeddings of the words that have a piece."""
    if encoder is None:
        encoder = partial(Encoder, source)
    embedded = embed_words(encoder(), wanted)
    has_piece = np.flatnonzero(embedded.pieces)
    index = {wanted[place]: row for row, place in enumerate(has_piece.tolist())}
    audit = {"types_all_unknown": int(embedded.unknown.sum())}
    return WordVectors(index, embedded.vectors[has_piece], audit)


def _cached_vectors(origin: _VectorOrigin, wanted: Sequence[str], lowercase: bool, folder: Path) -> WordVectors:
    """Return the kept vectors of these words, with a last row of zeros; read them if none are kept undamaged."""
    source = {name: value for name, value in origin.identity.items() if name != "file"}
    key = {
        "version": VECTORS_VERSION,
        "source": source,
        "words": digest("\n".join(wanted).encode()),
        "lowercase": lowercase,
    }
    path = folder / f"{digest(json.dumps(key, sort_keys=True).encode())[:20]}.pt"
    if read_kept(path) is not None:
        saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        words, audit = json.loads(saved["content"])
        index = {word: row for row, word in enumerate(words)}
        return WordVectors(index, saved["vectors"].numpy(), audit)
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    vectors = origin.read(wanted)
    matrix = np.pad(vectors.matrix, ((0, 1), (0, 0)))
    words_and_audit = json.dumps([list(vectors.index), vectors.audit])
    content = io.BytesIO()
    torch.save({"vectors": torch.from_numpy(matrix), "content": words_and_audit}, content)
    keep(path, content.getbuffer())
    return replace(vectors, matrix=matrix)


def find_vectors(spec: VectorSpec, root: Path, *, fetch: bool = True) -> list[Path]:
    """Return the path of a file of word vectors, followed by the paths of the files that belong to it.

    gensim stores the arrays of a `.kv` in `.npy` files beside it.

    Args:
        spec: Name or path of the vectors, and permission to open a pickle.
        root: Data root, under which `glove/` lies.
        fetch: Permit gensim's downloader to download the file.

    Raises:
        UserError: There is no such file and it cannot be downloaded; it is no regular file; its beginning
            is not that of word vectors; or it is a `.kv`, which is a pickle, and `spec.allow_pickle` is
            False.
    """
    path = Path(spec.name).expanduser()
    folder = root / "glove"
    full = folder / f"{spec.name}.txt"
    candidates = [path, full, folder / f"{spec.name}.txt.gz", folder / f"{spec.name}{SUBSET}"]
    files = [candidate for candidate in candidates if candidate.is_file()]
    if files:
        path = files[0]
    elif path.exists() and not path.is_dir():
        raise no_file(path)
    elif path.suffix or len(path.parts) > 1 or path.exists():
        wrong = f"there is no such file of word vectors; {full} does not exist either"
        raise UserError.at(path, None, wrong, _ACCEPTED)
    else:
        path = _download(spec.name, fetch)
    if path.suffix != ".kv":
        check_word_vectors(path)
    elif not spec.allow_pickle:
        remedy = (
            f"If you trust its source, allow it with {setting('data.vectors.allow_pickle', 'true')}, which no "
            "config may set; else convert it with KeyedVectors.save_word2vec_format"
        )
        raise UserError.at(path, None, "this file is a pickle, and opening a pickle can run any program", remedy)
    return [path, *sorted(path.parent.glob(f"{glob.escape(path.name)}.*npy"))]


def _download(name: str, fetch: bool) -> Path:
    from gensim import downloader  # here, as gensim takes a second to import, and most runs need none of it

    folder = Path(downloader.BASE_DIR) / name
    downloaded = sorted(folder.glob("*.gz"))
    if downloaded:
        return downloaded[0]  # gensim would ask the network for its index again
    if not fetch:
        remedy = f"Download it first: `python -m gensim.downloader --download {name}`. {_ACCEPTED}"
        raise UserError.at(name, None, "no such local file; the run would have to download it with gensim", remedy)
    logging.getLogger(downloader.__name__).setLevel(logging.CRITICAL)  # without a network it logs a whole traceback
    try:
        return Path(downloader.load(name, return_path=True))  # else it would import a program from the network
    except Exception as error:  # it raises nothing narrower
        downloaded = sorted(folder.glob("*.gz"))
        if downloaded:  # another process was first, which makes gensim stumble
            return downloaded[0]
        wrong = f"no such local file, and gensim's downloader failed ({type(error).__name__}: {error})"
        remedy = f"Check the name and the network, or put the file into {folder}. {_ACCEPTED}"
        raise UserError.at(name, None, wrong, remedy) from error


def read_vectors(path: Path, wanted: Collection[str]) -> WordVectors:
    """Return the vectors of the wanted words in a file of word vectors, in the order of the file.

    Words that the file lacks are left out. The matrix has no last row of zeros yet; `load_vectors` adds
    it.

    Raises:
        UserError: The file is malformed.
    """
    inform(f"{path.name}: reading {path.stat().st_size / 1e6:,.0f} MB of word vectors, and caching those of the words.")
    wanted = frozenset(wanted)
    try:
        if path.suffix == ".kv":
            return _read_kv(path, wanted)
        rows = read_word_vectors(path, wanted)
    except MemoryError as error:
        refuse_lack_of_memory(error, path)
        raise
    index = {word: row for row, word in enumerate(rows.words)}
    return WordVectors(index, rows.matrix, rows.audit)


def _read_kv(path: Path, wanted: Collection[str]) -> WordVectors:
    from gensim.models import KeyedVectors  # here, as gensim takes a second to import, and most runs need none of it

    try:
        vectors = KeyedVectors.load(str(path), mmap="r")
        # Known words alone: fastText makes up vectors from a word's letters, and coverage would always be 1.
        words = [word for word in vectors.index_to_key if word in wanted]
        rows = [vectors.key_to_index[word] for word in words]
        matrix = np.asarray_chkfinite(vectors.vectors[rows], np.float32)
    except Exception as error:  # whatever a pickle may raise
        refuse_lack_of_memory(error, path)
        wrong = f"the word vectors cannot be read ({type(error).__name__}: {error})"
        remedy = "Fetch the file again if it is cut off; it needs its .npy files"
        raise UserError.at(path, None, wrong, remedy) from error
    index = {word: row for row, word in enumerate(words)}
    return WordVectors(index, matrix, {})


def vocabulary_vectors(
    spec: VectorSpec,
    vocabulary: Vocabulary,
    frequencies: NDArray[np.int64],
    source: EncoderSource | None,
    *,
    root: Path,
    cache: Path,
) -> WordVectors:
    """Return the word vectors of a vocabulary.

    If `spec.name` is `encoder` and the vocabulary holds pieces, the result has the input embeddings of all
    pieces of `source`. In all other cases `load_vectors` looks up the entries that occur in train and are
    not special tokens. For a vocabulary of words, the name `encoder` means the input embeddings of the
    default encoder, that of `EncoderSpec()`.

    Args:
        spec: Name and options of the vectors.
        vocabulary: The vocabulary.
        frequencies: Frequency of each entry in train, int64 `[vocabulary]`.
        source: Encoder whose pieces the vocabulary holds; None for words.
        root: Data root, under which `glove/` lies.
        cache: Folder in which converted vectors are cached.

    Raises:
        UserError: The vectors are absent or malformed, or the cache cannot be written.
    """
    if spec.name == ENCODER and source is not None:
        encoder = Encoder(source)
        matrix = encoder.embeddings.cpu().numpy()
        size = min(len(matrix), len(encoder.tokenizer))
        pieces = encoder.tokenizer.convert_ids_to_tokens(list(range(size)))
        index = {piece: row for row, piece in enumerate(pieces) if piece is not None}
        identity = {**embeddings_identity(source, Digests(cache)), "lowercase": False}
        audit = {"file": ENCODER, "size": matrix.shape[1]}
        return WordVectors(index, np.pad(matrix, ((0, 1), (0, 0))), audit, identity=identity)
    counts: dict[str, int] = {}
    for number, (word, count) in enumerate(zip(vocabulary.words, frequencies.tolist(), strict=True)):
        if count and number not in vocabulary.specials:
            counts[word] = count
    default = resolve(EncoderSpec()) if spec.name == ENCODER else None
    return load_vectors(spec, counts, root=root, cache=cache, source=default)
