"""Word vectors over the vocabulary of a corpus, converted once for each set of its splits, memory-mapped after."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_info

from attention.digest import Digests, digest
from attention.embeddings import EMBEDDINGS_VERSION, embed_pieces, embed_words
from attention.encoder import Encoder, Source
from datamodules.vector_cache import converted
from datamodules.vector_files import VectorError, files_of, read_vectors
from datamodules.vector_names import SUBSET, find_vectors

if TYPE_CHECKING:  # gensim takes a second to import, and most runs need none of it
    from gensim.models import KeyedVectors

ENCODER = "encoder"
"""The name that stands for the encoder's own input embeddings."""
VECTORS_VERSION = 1
"""Part of every key: raise it when what is kept of a file would come out differently."""

_NAMED = 20
"""Digits of a key in a folder's name."""


@dataclass(frozen=True)
class VectorSpec:
    """Which word vectors.

    Args:
        name: a text file of GloVe or word2vec (plain or .gz, with a header or without), a `.kv` of gensim (a pickle:
            open none that you distrust), `encoder` for the encoder's own input embeddings, `glove.6B.50d` (100d, 200d,
            300d) for the file under the data root's `glove/` or else the subset that stands there, or vectors of
            gensim's downloader.
        lowercase: look words up in lower case; not applied to `encoder`, whose tokenizer decides.
        min_coverage: refuse vectors that know a smaller share of the corpus's tokens, 0–1.
    """

    name: str = "glove.6B.50d"
    lowercase: bool = True
    min_coverage: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.min_coverage <= 1:
            raise VectorError(f"min_coverage: {self.min_coverage} is no share of the tokens. Give a number in 0–1.")


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Vectors of the words of a corpus.

    Attributes:
        matrix: float32 `[types + 1, size]`, memory-mapped; the last row is zero, so that the row −1 is one of zeros.
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
        """Row of the matrix for each word: int64 `[len(words)]`, −1 where the word is unknown."""
        forms = (word.lower() for word in words) if self.lowercase else words
        return np.fromiter((self.index.get(form, -1) for form in forms), np.int64, len(words))


def load_vectors(
    spec: VectorSpec,
    words: Mapping[str, int],
    *,
    root: Path,
    cache: Path,
    digests: Digests,
    encoder: Callable[[], Encoder] | None,
    source: Source | None = None,
) -> WordVectors:
    """Find the vectors of a corpus's words, converting their file the first time.

    Args:
        spec: which vectors.
        words: count of every form in the corpus.
        root: data root, under which `glove/` lies.
        cache: folder of the stores; the converted vectors go to `vectors/` in it.
        digests: hashes of files.
        encoder: loads the encoder, for `encoder`; None without one.
        source: of that encoder; with it, vectors that were converted before are found without loading the encoder.

    Raises:
        VectorError: there are no such vectors, their file is malformed, they know less than `min_coverage` of the
            tokens, or `cache` cannot be written.
        EncoderError, AlignmentError: of `encoder`, the encoder cannot be loaded, or has no vectors of its words.
    """
    lowercase = spec.lowercase and spec.name != ENCODER
    counts: Counter[str] = Counter()
    for word, count in words.items():
        counts[word.lower() if lowercase else word] += count
    try:
        if spec.name == ENCODER:
            origin = _from_encoder(encoder, source, digests)
        else:
            origin = _from_file(find_vectors(spec.name, root), digests)
        wanted = counts.keys() - {""}
        key = _key(origin, wanted, lowercase)
        known = converted(cache / "vectors" / key, lambda scratch: origin.read(wanted, scratch), digests)
    except OSError as error:
        raise VectorError.at(
            error.filename or cache,
            None,
            error.strerror or str(error),
            f"{cache / 'vectors'} must be writable and have room: else name another folder by data.init_args.cache",
        ) from error
    audit = _coverage(counts, known.index)
    vectors = WordVectors(
        matrix=known.matrix,
        index=known.index,
        lowercase=lowercase,
        identity={**origin.identity, "lowercase": lowercase},
        audit={"file": origin.file, "size": known.matrix.shape[1], **audit, **known.counted},
    )
    share = (
        f"{audit['coverage']:.1%} of {audit['tokens']:,} tokens "
        f"({audit['types_covered']:,} of {audit['types']:,} types)"
    )
    if audit["coverage"] < spec.min_coverage:
        raise VectorError.at(
            origin.file,
            None,
            f"these word vectors know {share}, less than vectors.min_coverage {spec.min_coverage:g}",
            f"{origin.remedy}, or lower --data.init_args.vectors.min_coverage",
        )
    rank_zero_info(f"Word vectors: {origin.file}, {vectors.size} values, {share}.")
    return vectors


def piece_vectors(encoder: Encoder, digests: Digests) -> WordVectors:
    """The encoder's input embeddings of its own pieces, by their spelling.

    Raises:
        EncoderError: the encoder embeds its input by something other than a table.
    """
    matrix = embed_pieces(encoder)
    pieces = encoder.tokenizer.convert_ids_to_tokens(list(range(min(len(matrix), len(encoder.tokenizer)))))
    return WordVectors(
        matrix=np.concatenate((matrix, np.zeros_like(matrix[:1]))),
        index={piece: row for row, piece in enumerate(pieces) if piece is not None},
        lowercase=False,
        identity={"encoder": {**encoder.source.identity(digests), "version": EMBEDDINGS_VERSION}, "lowercase": False},
        audit={"file": ENCODER, "size": matrix.shape[1]},
    )


class _Origin(NamedTuple):
    """Where vectors come from, and how those of some words are read, with a scratch file to write to."""

    file: str
    identity: Mapping[str, object]
    read: Callable[[Set[str], Path], tuple["KeyedVectors", Mapping[str, int]]]
    remedy: str


def _from_file(path: Path, digests: Digests) -> _Origin:
    hashes = [digests.one(file) for file in files_of(path)]

    def read(wanted: Set[str], scratch: Path) -> tuple["KeyedVectors", Mapping[str, int]]:
        rank_zero_info(f"{path.name}: converting {path.stat().st_size / 1e6:,.0f} MB of word vectors, for these words.")
        return read_vectors(path, wanted, scratch)

    remedy = "Name vectors that fit the corpus's language and letter case"
    if path.name.endswith(SUBSET):
        remedy = f"Put the full {path.name.removesuffix(SUBSET)}.txt into {path.parent}, name other vectors"
    sha256 = hashes[0] if len(hashes) == 1 else digest("\n".join(hashes).encode())
    return _Origin(path.name, {"file": path.name, "sha256": sha256}, read, remedy)


def _from_encoder(encoder: Callable[[], Encoder] | None, source: Source | None, digests: Digests) -> _Origin:
    if encoder is None:
        raise VectorError("encoder: these are the word vectors of an encoder, and there is none. Name other vectors.")

    def read(wanted: Set[str], scratch: Path) -> tuple["KeyedVectors", Mapping[str, int]]:
        from gensim.models import KeyedVectors

        words = sorted(wanted)
        embedded = embed_words(encoder(), words)
        known = np.flatnonzero(embedded.pieces)
        found = KeyedVectors(embedded.vectors.shape[1])
        found.add_vectors([words[place] for place in known], embedded.vectors[known])
        return found, {"types_all_unknown": int(embedded.unknown.sum())}

    identity = (source or encoder().source).identity(digests)
    return _Origin(ENCODER, {"encoder": {**identity, "version": EMBEDDINGS_VERSION}}, read, "Name other vectors")


def _coverage(counts: Counter[str], index: Mapping[str, int]) -> dict[str, float]:
    covered = [count for word, count in counts.items() if word in index]
    tokens = counts.total()
    return {
        "types": len(counts),
        "types_covered": len(covered),
        "tokens": tokens,
        "tokens_covered": sum(covered),
        "coverage": sum(covered) / tokens if tokens else 1.0,
    }


def _key(origin: _Origin, wanted: Set[str], lowercase: bool) -> str:
    body = {
        "version": VECTORS_VERSION,
        "source": {name: value for name, value in origin.identity.items() if name != "file"},
        "words": digest("\n".join(sorted(wanted)).encode()),
        "lowercase": lowercase,
    }
    return digest(json.dumps(body, sort_keys=True).encode())[:_NAMED]
