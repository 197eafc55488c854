"""Word vectors of the words of a corpus: converted once for each set of its splits, mapped into memory afterwards."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_info
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from attention.digest import Digests, digest
from attention.encoder import EMBEDDINGS_VERSION, Encoder, EncoderSpec, Source, embed_words, resolve
from datamodules.tokenization import Vocabulary
from datamodules.vectors import ENCODER, SUBSET, Found, VectorError, VectorSpec, find_vectors, read_vectors
from results.files import remove_leftovers, write_atomically

VECTORS_VERSION = 2
"""Part of every key: raise it when what is kept of a file would come out differently."""

_DIGITS = 20
"""Digits of a key in a file's name."""

log = logging.getLogger(__name__)


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
        """Row of the matrix for each word: int64 `[len(words)]`, −1 where the word is unknown."""
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
        EncoderError, AlignmentError: of `encoder`, the encoder cannot be loaded, or has no vectors of its words.
    """
    lowercase = spec.lowercase and spec.name != ENCODER
    counts: Counter[str] = Counter()
    for word, count in words.items():
        counts[word.lower() if lowercase else word] += count
    try:
        if spec.name == ENCODER:
            origin = _from_encoder(source, encoder, Digests(cache))
        else:
            origin = _from_file(find_vectors(spec, root), Digests(cache))
        known = _converted(origin, sorted(counts.keys() - {""}), lowercase, cache / "vectors")
    except OSError as error:
        raise VectorError.at(
            error.filename or cache,
            None,
            error.strerror or str(error),
            f"{cache / 'vectors'} must be writable and have room: else name another folder by data.init_args.cache",
        ) from error
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
        raise VectorError.at(
            origin.file,
            None,
            f"these word vectors know {share}, less than vectors.min_coverage {spec.min_coverage:g}",
            f"{origin.remedy}, or lower --data.init_args.vectors.min_coverage",
        )
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
    """Find the vectors of those words of a vocabulary that occur.

    Args:
        spec: which vectors; `encoder` are those of the default encoder where the vocabulary holds words.
        vocabulary: the words, or pieces.
        frequencies: int64 `[vocabulary]`, how often each occurs in train.
        source: the encoder whose pieces the vocabulary holds; None for words.
        root: data root, under which `glove/` lies.
        cache: folder of the stores.

    Raises:
        VectorError: see `load_vectors`.
        EncoderError: the encoder cannot be loaded, or has no table of embeddings.
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


def _piece_vectors(encoder: Encoder, digests: Digests) -> WordVectors:
    """The encoder's input embeddings of its own pieces, by their spelling."""
    matrix = encoder.embeddings.cpu().numpy()
    pieces = encoder.tokenizer.convert_ids_to_tokens(list(range(min(len(matrix), len(encoder.tokenizer)))))
    return WordVectors(
        matrix=np.pad(matrix, ((0, 1), (0, 0))),
        index={piece: row for row, piece in enumerate(pieces) if piece is not None},
        lowercase=False,
        identity={"encoder": {**encoder.source.identity(digests), "version": EMBEDDINGS_VERSION}, "lowercase": False},
        audit={"file": ENCODER, "size": matrix.shape[1]},
    )


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

    identity = {**source.identity(digests), "version": EMBEDDINGS_VERSION}
    return _Origin(ENCODER, {"encoder": identity}, read, "Name other vectors")


def _converted(origin: _Origin, wanted: Sequence[str], lowercase: bool, folder: Path) -> Found:
    """The kept vectors of these words, with a last row of zeros; converted first where there are none, or damaged."""
    body = {
        "version": VECTORS_VERSION,
        "source": {name: value for name, value in origin.identity.items() if name != "file"},
        "words": digest("\n".join(wanted).encode()),
        "lowercase": lowercase,
    }
    path = folder / f"{digest(json.dumps(body, sort_keys=True).encode())[:_DIGITS]}.safetensors"
    if path.exists():
        if (kept := _reopen(path)) is not None:
            return kept
        log.warning("%s: damaged word vectors; they are made anew.", path)
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    found = origin.read(wanted)
    found = replace(found, matrix=np.pad(found.matrix, ((0, 1), (0, 0))))
    content = json.dumps([list(found.index), found.counted])
    metadata = {"content": content, "sha256": digest(content.encode() + found.matrix.tobytes())}
    write_atomically(path, save({"vectors": torch.from_numpy(found.matrix)}, metadata))
    return found


def _reopen(path: Path) -> Found | None:
    """What was kept there; None where it is not what was written."""
    try:
        with safe_open(path, "pt") as file:
            matrix, metadata = file.get_tensor("vectors").numpy(), file.metadata()
        content = metadata["content"]
        if metadata["sha256"] != digest(content.encode() + matrix.tobytes()):
            return None
        words, counted = json.loads(content)
    except (OSError, SafetensorError, TypeError, KeyError):
        return None
    return Found({word: row for row, word in enumerate(words)}, matrix, counted)
