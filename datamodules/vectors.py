"""Word vectors of the words of a corpus. gensim reads their files; what is read is kept, and mapped into memory."""

import glob
import gzip
import io
import json
import logging
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_info

from attention.digest import Digests, digest
from attention.encoder import EMBEDDINGS_VERSION, Encoder, EncoderSpec, Source, embed_words, resolve
from datamodules.tokenization import Vocabulary
from results.errors import UserError, check_numbers, check_values
from results.files import keep, kept, remove_leftovers

# gensim takes a second to import, and most runs need none of it: it is imported where it is used.

VECTORS_VERSION = 2  # part of every key: raise it when what is kept of a file would come out differently
ENCODER = "encoder"
"""The name that stands for the encoder's own input embeddings."""
SUBSET = ".subset.txt.gz"
"""How the name of a file ends that holds some rows of a larger one."""

_DIGITS = 20  # of a key in a file's name
_ACCEPTED = (
    "Name a text file of GloVe or word2vec (plain or .gz), a .kv of gensim, `encoder` for the encoder's own "
    "embeddings, glove.6B.50d (100d, 200d, 300d) for the file under the data root, or vectors of gensim's downloader "
    "such as glove-wiki-gigaword-50"
)
_FETCH_AGAIN = "Fetch the file again"
_SNIFFED = 1 << 12
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


class VectorError(UserError):
    """Word vectors that cannot be had; see `UserError.at` for the form of the message."""


@dataclass(frozen=True)
class VectorSpec:
    """Which word vectors.

    Args:
        name: a text or binary file of GloVe or word2vec (plain or .gz, with a header or without), a `.kv` of gensim,
            `encoder` for the encoder's own input embeddings, `glove.6B.50d` (100d, 200d, 300d) for the file under the
            data root's `glove/` or else its subset there, or vectors of gensim's downloader.
        lowercase: look words up in lower case; not applied to `encoder`, whose tokenizer decides.
        min_coverage: refuse vectors that know a smaller share of the corpus's tokens, 0–1.
        allow_pickle: open a pickle, such as a `.kv`. Opening a pickle can run any program: allow it only for files that
            you trust.
    """

    name: str = "glove.6B.50d"
    lowercase: bool = True
    min_coverage: float = 0.5
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        check_values(self, **vars(self))
        check_numbers(self, least=0, most=1, min_coverage=self.min_coverage)


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Vectors of the words of a corpus.

    Attributes:
        matrix: float32 `[types + 1, size]`; the last row is zero, so that the row −1 is one of zeros.
        index: row of every word that is known, as it is looked up.
        lowercase: whether words are looked up in lower case.
        identity: what decides the vectors, the same for every corpus: the file's name and SHA-256, or the encoder's
            identity, and `lowercase`.
        audit: which `file`, their `size`; of the corpus `types` and `tokens`, how many of each are covered, and the
            `coverage` of the tokens, 0–1. Types are distinct forms as they are looked up. Of a text file
            `repeated_rows`: lines for a word of the corpus that already had one; of `encoder` `types_all_unknown`:
            covered types that the tokenizer knows no piece of.
    """

    matrix: NDArray[np.float32]
    index: Mapping[str, int]
    lowercase: bool
    identity: Mapping[str, object]
    audit: Mapping[str, object]

    @property
    def size(self) -> int:
        """Values of a vector."""
        return int(self.matrix.shape[1])

    def rows(self, words: Sequence[str]) -> NDArray[np.int64]:
        """Row of the matrix for each word, int64 `[words]`; −1 where the word is unknown."""
        forms = (word.lower() for word in words) if self.lowercase else words
        return np.fromiter((self.index.get(form, -1) for form in forms), np.int64, len(words))


def load_vectors(
    spec: VectorSpec,
    words: Mapping[str, int],
    *,
    root: Path,
    cache: Path,
    source: Source | None = None,
    encoder: Callable[[], Encoder] | None = None,
) -> WordVectors:
    """Find the vectors of a corpus's words, converting their file the first time.

    Args:
        spec: which vectors.
        words: count of every form in the corpus.
        root: data root, under which `glove/` lies.
        cache: folder of the stores; the converted vectors go to `vectors/` in it.
        source: the encoder whose input embeddings the name `encoder` means; None without one.
        encoder: gives that encoder where it is loaded already; called only for a conversion.

    Raises:
        VectorError: there are no such vectors, their file is malformed, they know less than `min_coverage` of the
            tokens, or `cache` cannot be written.
        EncoderError, AlignmentError: the encoder cannot be loaded, or has no vectors of its words.
    """
    lowercase = spec.lowercase and spec.name != ENCODER
    counts: Counter[str] = Counter()
    for word, count in words.items():
        counts[word.lower() if lowercase else word] += count
    digests = Digests(cache)
    try:
        if spec.name == ENCODER:
            origin = _from_encoder(source, encoder, digests)
        else:
            origin = _from_file(find_vectors(spec, root), digests)
        known = _converted(origin, sorted(counts.keys() - {""}), lowercase, cache / "vectors")
    except OSError as error:
        remedy = f"{cache / 'vectors'} must be writable and have room: else name another folder by data.init_args.cache"
        raise VectorError.at(error.filename or cache, None, error.strerror or str(error), remedy) from error
    tokens = [count for word, count in counts.items() if word in known.index]
    audit = {
        "types": len(counts),
        "types_covered": len(tokens),
        "tokens": counts.total(),
        "tokens_covered": sum(tokens),
        "coverage": sum(tokens) / counts.total() if counts.total() else 1.0,
    }
    share = "{coverage:.1%} of {tokens:,} tokens ({types_covered:,} of {types:,} types)".format(**audit)
    if audit["coverage"] < spec.min_coverage:
        wrong = f"these word vectors know {share}, less than vectors.min_coverage {spec.min_coverage:g}"
        remedy = f"{origin.remedy}, or lower --data.init_args.vectors.min_coverage"
        raise VectorError.at(origin.file, None, wrong, remedy)
    size = known.matrix.shape[1]
    rank_zero_info(f"Word vectors: {origin.file}, {size} values, {share}.")
    return WordVectors(
        known.matrix,
        known.index,
        lowercase,
        identity={**origin.identity, "lowercase": lowercase},
        audit={"file": origin.file, "size": size, **audit, **known.counted},
    )


def vocabulary_vectors(
    spec: VectorSpec,
    vocabulary: Vocabulary,
    frequencies: NDArray[np.int64],
    source: Source | None,
    *,
    root: Path,
    cache: Path,
) -> WordVectors:
    """Find the vectors of those words of a vocabulary that occur, by their frequencies in train; see `load_vectors`.

    `encoder` are the vectors of the encoder whose pieces the vocabulary holds, `source`, and those of the
    default encoder where it holds words.
    """
    if spec.name == ENCODER and source is not None:
        return _piece_vectors(Encoder(source), Digests(cache))
    counts = {
        word: count
        for number, (word, count) in enumerate(zip(vocabulary.words, frequencies.tolist(), strict=True))
        if count and number not in vocabulary.specials
    }
    default = resolve(EncoderSpec()) if spec.name == ENCODER else None
    return load_vectors(spec, counts, root=root, cache=cache, source=default)


def _encoder_identity(source: Source, digests: Digests) -> Mapping[str, object]:
    return {"encoder": {**source.identity(digests), "version": EMBEDDINGS_VERSION}}


def _piece_vectors(encoder: Encoder, digests: Digests) -> WordVectors:
    """The encoder's input embeddings of its own pieces, by their spelling."""
    matrix = encoder.embeddings.cpu().numpy()
    pieces = encoder.tokenizer.convert_ids_to_tokens(list(range(min(len(matrix), len(encoder.tokenizer)))))
    return WordVectors(
        matrix=np.pad(matrix, ((0, 1), (0, 0))),
        index={piece: row for row, piece in enumerate(pieces) if piece is not None},
        lowercase=False,
        identity={**_encoder_identity(encoder.source, digests), "lowercase": False},
        audit={"file": ENCODER, "size": matrix.shape[1]},
    )


@dataclass(frozen=True, eq=False)
class Found:
    """The row of each word that is known, vectors, float32 `[words, size]`, and what was counted in reading them."""

    index: Mapping[str, int]
    matrix: NDArray[np.float32]
    counted: Mapping[str, int]


class _Origin(NamedTuple):
    """Where vectors come from, how those of some words are read, and what to do when they know too few."""

    file: str
    identity: Mapping[str, object]
    read: Callable[[Sequence[str]], Found]
    remedy: str


def _from_file(files: Sequence[Path], digests: Digests) -> _Origin:
    path, hashes = files[0], list(digests.of(files).values())

    def read(wanted: Sequence[str]) -> Found:
        rank_zero_info(f"{path.name}: converting {path.stat().st_size / 1e6:,.0f} MB of word vectors, for these words.")
        return read_vectors(path, frozenset(wanted))

    remedy = "Name vectors that fit the corpus's language and letter case"
    if path.name.endswith(SUBSET):
        remedy = f"Put the full {path.name.removesuffix(SUBSET)}.txt into {path.parent}, name other vectors"
    sha256 = hashes[0] if len(hashes) == 1 else digest("\n".join(hashes).encode())
    return _Origin(path.name, {"file": path.name, "sha256": sha256}, read, remedy)


def _from_encoder(source: Source | None, encoder: Callable[[], Encoder] | None, digests: Digests) -> _Origin:
    if source is None:
        raise VectorError("encoder: these are the word vectors of an encoder, and there is none. Name other vectors.")

    def read(wanted: Sequence[str]) -> Found:
        embedded = embed_words(encoder() if encoder is not None else Encoder(source), wanted)
        known = np.flatnonzero(embedded.pieces)
        words = {wanted[place]: row for row, place in enumerate(known.tolist())}
        return Found(words, embedded.vectors[known], {"types_all_unknown": int(embedded.unknown.sum())})

    return _Origin(ENCODER, _encoder_identity(source, digests), read, "Name other vectors")


def _converted(origin: _Origin, wanted: Sequence[str], lowercase: bool, folder: Path) -> Found:
    """The kept vectors of these words, with a last row of zeros; converted first where there are none, or damaged."""
    body = {
        "version": VECTORS_VERSION,
        "source": {name: value for name, value in origin.identity.items() if name != "file"},
        "words": digest("\n".join(wanted).encode()),
        "lowercase": lowercase,
    }
    path = folder / f"{digest(json.dumps(body, sort_keys=True).encode())[:_DIGITS]}.pt"
    if kept(path) is not None:
        saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        words, counted = json.loads(saved["content"])
        return Found({word: row for row, word in enumerate(words)}, saved["vectors"].numpy(), counted)
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    found = origin.read(wanted)
    found = replace(found, matrix=np.pad(found.matrix, ((0, 1), (0, 0))))
    content = io.BytesIO()
    words = json.dumps([list(found.index), found.counted])
    torch.save({"vectors": torch.from_numpy(found.matrix), "content": words}, content)
    keep(path, content.getbuffer())
    return found


def find_vectors(spec: VectorSpec, root: Path, *, fetch: bool = True) -> list[Path]:
    """The file of word vectors, found by its name, and the arrays that gensim has stored beside a `.kv`.

    Raises:
        VectorError: there is none, it cannot be downloaded, or must not be (`fetch`), or it is a pickle that is not
            allowed.
    """
    path = _locate(spec.name, root, fetch)
    if not spec.allow_pickle and _format(path) == "pickle":
        raise VectorError.at(
            path,
            None,
            "this file is a pickle, and opening a pickle can run any program",
            "If you trust where it comes from, allow it on the command line with --data.init_args.vectors.allow_pickle "
            "true (in Python VectorSpec(…, allow_pickle=True)); else name vectors in the format of word2vec, which "
            "gensim writes with KeyedVectors.save_word2vec_format",
        )
    return [path, *sorted(path.parent.glob(f"{glob.escape(path.name)}.*npy"))]


def _locate(name: str, root: Path, fetch: bool) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if name.startswith("glove.") and not name.endswith((".txt", ".gz")):
        places = [root / "glove" / f"{name}{suffix}" for suffix in (".txt", ".txt.gz", SUBSET)]
        for place in places:
            if place.is_file():
                return place
        raise VectorError.at(
            places[0],
            None,
            f"there is no such file, nor one packed by gzip, nor a subset ({SUBSET})",
            "Unpack the archive from https://nlp.stanford.edu/projects/glove/ there, or name other vectors: `encoder` "
            "are the encoder's own, glove-wiki-gigaword-50 is fetched by gensim",
        )
    if path.suffix or len(path.parts) > 1 or path.exists():
        raise VectorError.at(path, None, "there is no such file of word vectors", _ACCEPTED)
    return _download(name, fetch)


def _download(name: str, fetch: bool) -> Path:
    from gensim import downloader

    folder = Path(downloader.BASE_DIR) / name
    if there := sorted(folder.glob("*.gz")):
        return there[0]  # gensim would ask the network for its index again
    if not fetch:
        wrong = "no file has this name, and a run would ask gensim's downloader for it"
        remedy = f"Fetch it where there is a network (`python -m gensim.downloader --download {name}`). {_ACCEPTED}"
        raise VectorError.at(name, None, wrong, remedy)
    rank_zero_info(f"{name}: asking gensim's downloader for it.")
    its_log = logging.getLogger(downloader.__name__)
    level = its_log.level
    its_log.setLevel(logging.CRITICAL)  # without a network it logs a whole traceback
    try:
        known = sorted(model for model in downloader.info()["models"] if not model.startswith("__"))
        if name in known:
            return Path(downloader.load(name, return_path=True))  # else it would import a program from the network
    except Exception as error:  # it raises nothing narrower
        if there := sorted(folder.glob("*.gz")):  # another process was first, which makes gensim stumble
            return there[0]
        wrong = f"no file has this name, and gensim's downloader failed ({type(error).__name__}: {error})"
        remedy = f"Check the name and the network, or put the file into {folder}. {_ACCEPTED}"
        raise VectorError.at(name, None, wrong, remedy) from error
    finally:
        its_log.setLevel(level)
    wrong = f"no file has this name, and gensim's downloader has only {', '.join(known)}"
    raise VectorError.at(name, None, wrong, _ACCEPTED)


def read_vectors(path: Path, wanted: Collection[str]) -> Found:
    """Read the vectors of those wanted words that a file has, in its order; `find_vectors` has allowed the file.

    The content decides the format: gzip or plain, word2vec's text or binary format, with or without the header of
    counts, which GloVe's files lack. Only the wanted lines of a text file are parsed, but all are counted and checked.
    Of lines for the same wanted word the first is taken, and the others are counted as `repeated_rows`. A file that is
    cut off or malformed is a `VectorError`.
    """
    if (kind := _format(path)) == "text":
        return _read_text(path, wanted)
    words, rows, vectors = _load(path, kind)
    # Not those that fastText would make up from a word's letters: coverage would always be 1.
    known = [word for word in words if word in wanted]
    matrix = np.asarray(vectors[[rows[word] for word in known]], np.float32)
    if broken := [word for word, vector in zip(known, matrix, strict=True) if not np.isfinite(vector).all()]:
        wrong = f"the vectors of {len(broken)} of the corpus's words are not finite, that of {broken[0]!r} for one"
        raise VectorError.at(path, None, wrong, _FETCH_AGAIN)
    return Found({word: row for row, word in enumerate(known)}, matrix, {})


@contextmanager
def _opened(path: Path) -> Iterator[gzip.GzipFile | BufferedReader]:
    with path.open("rb") as file:
        magic = file.peek(4)[:4]
        if magic == b"PK\x03\x04":
            raise VectorError.at(path, None, "this is a zip archive", "Unpack it, and name one of the files in it")
        try:
            yield gzip.GzipFile(fileobj=file) if magic.startswith(b"\x1f\x8b") else file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise VectorError.at(path, None, f"the file is cut off or damaged ({error})", _FETCH_AGAIN) from error


def _format(path: Path) -> Literal["pickle", "binary", "text"]:
    with _opened(path) as file:
        first, following = file.readline(_SNIFFED), file.read(_SNIFFED)
    if path.suffix == ".kv" or first.startswith(b"\x80"):  # every pickle since protocol 2, and no UTF-8 text
        return "pickle"
    return "binary" if _header(first) and _CONTROL.search(following) else "text"


def _header(line: bytes) -> tuple[int, int] | None:
    """Number of rows and their size, if this is a header of the word2vec format."""
    fields = line.split()
    return (int(fields[0]), int(fields[1])) if len(fields) == 2 and all(map(bytes.isdigit, fields)) else None


def _load(path: Path, kind: Literal["pickle", "binary"]) -> tuple[list[str], Mapping[str, int], NDArray[np.float32]]:
    """The words, the row of each, and the vectors of a file."""
    from gensim.models import KeyedVectors

    try:
        if kind == "binary":
            loaded = KeyedVectors.load_word2vec_format(str(path), binary=True)
        else:
            loaded = KeyedVectors.load(str(path), mmap=None if path.suffix == ".gz" else "r")
    except Exception as error:  # whatever a pickle may raise
        wrong = f"gensim cannot load it ({type(error).__name__}: {error})"
        remedy = "Fetch the file again if it is cut off; a .kv needs the .npy files beside it"
        raise VectorError.at(path, None, wrong, remedy) from error
    if not isinstance(loaded, KeyedVectors):
        wrong = f"it holds a {type(loaded).__name__}, not KeyedVectors"
        raise VectorError.at(path, None, wrong, "Save that model's `wv` instead")
    return loaded.index_to_key, loaded.key_to_index, loaded.vectors


def _read_text(path: Path, wanted: Collection[str]) -> Found:
    vectors: dict[str, NDArray[np.float32]] = {}
    repeated = 0
    with _opened(path) as file:
        first = file.readline()
        header = _header(first)
        size = header[1] if header else first.rstrip().count(b" ")
        if first and not size:
            raise VectorError.at(path, 1, f"no vector, but {_shown(first.rstrip())}", _ACCEPTED)
        file.seek(len(first) if header else 0)
        number = start = 1 if header else 0
        for number, raw in enumerate(file, start + 1):
            line = raw.rstrip()
            try:
                word = _word(line, size)
                if word in vectors:
                    repeated += 1
                elif word in wanted:
                    vectors[word] = _values(line)
            except ValueError:
                wrong = f"{_shown(line)} is not a word in UTF-8 and {size} finite numbers, with one blank between"
                remedy = (
                    f"Fetch the file again if it is cut off. Some words of glove.840B have a blank in them, which no "
                    f"word of a corpus has: leave their lines out with `awk 'NF == {size + 1}'`. Else mend the line"
                )
                raise VectorError.at(path, number, wrong, remedy) from None
    if number == start:
        raise VectorError.at(path, None, "the file holds no vectors", _ACCEPTED)
    if header and header[0] != number - 1:
        wrong = f"the header says {header[0]:,} rows, but {number - 1:,} follow"
        remedy = "Fetch the file again if it is cut off; else correct the header, or delete it"
        raise VectorError.at(path, 1, wrong, remedy)
    matrix = np.array(list(vectors.values()), np.float32).reshape(-1, size)
    return Found({word: row for row, word in enumerate(vectors)}, matrix, {"repeated_rows": repeated})


def _word(line: bytes, size: int) -> str:
    word, blank, values = line.partition(b" ")
    if not blank or values.count(b" ") != size - 1:
        raise ValueError
    return word.decode()


def _values(line: bytes) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        values = np.array(line.split(b" ")[1:], np.float32)
    if not np.isfinite(values).all():
        raise ValueError
    return values


def _shown(text: bytes) -> str:
    return repr(text[:40].decode(errors="backslashreplace")) + ("…" if len(text) > 40 else "")
