"""Input embeddings of single words, from the vocabulary of an encoder."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from attention_probing.attention.alignment import split_words
from attention_probing.attention.encoder import LoadedEncoder
from attention_probing.attention.source import EncoderSource
from attention_probing.results.digests import Digests

EMBEDDINGS_VERSION = 2  # raise it when the embedding of a word changes


@dataclass(frozen=True, eq=False)
class WordEmbeddings:
    """Input embeddings of single words.

    Attributes:
        vectors: Mean of the embeddings of each word's pieces, float32 `[words, size]`; zeros for a word without
            pieces.
        pieces: Number of each word's pieces, int64 `[words]`.
        unknown: Bool `[words]`, True for a word that has pieces, all of which are the unknown token.
    """

    vectors: NDArray[np.float32]
    pieces: NDArray[np.int64]
    unknown: NDArray[np.bool_]


def embed_words(encoder: LoadedEncoder, words: Sequence[str]) -> WordEmbeddings:
    """Return the mean input embedding of the pieces of each word, cut as if another word preceded it.

    Raises:
        AlignmentError: A word has no pieces, and there is no unknown token.
        EncoderError: The input embedding of the encoder is not a table.
    """
    unknown_token = encoder.tokenizer.unk_token_id
    ids = [np.zeros(0, np.int32)]  # so that there is an array to join also without words
    pieces = []
    unknown = []
    for aligned in split_words(encoder.tokenizer, [[word, word] for word in words]):
        ids_of_word = aligned.ids[aligned.positions == 2]
        if aligned.unknown:  # the word has no pieces, and split_words has put the unknown token in its place
            ids_of_word = ids_of_word[:0]
        ids.append(ids_of_word)
        pieces.append(len(ids_of_word))
        unknown.append(len(ids_of_word) > 0 and bool((ids_of_word == unknown_token).all()))
    flat = torch.from_numpy(np.concatenate(ids).astype(np.int64)).to(encoder.device)
    starts = torch.from_numpy(np.cumsum(pieces, dtype=np.int64) - pieces).to(encoder.device)
    with torch.inference_mode():
        vectors = nn.functional.embedding_bag(flat, encoder.embeddings, starts, mode="mean").cpu().numpy()
    return WordEmbeddings(vectors, np.array(pieces, np.int64), np.array(unknown, np.bool_))


def embeddings_identity(source: EncoderSource, digests: Digests) -> dict[str, object]:
    """Return the values that identify the input embeddings of an encoder, for the key of converted vectors.

    They are the values of `EncoderSource.identity`, and the version of the code that embeds words.

    Args:
        source: Files of the encoder.
        digests: Cache of the SHA-256 of files.

    Raises:
        EncoderError: The folder has no weights, or the weights of the installed default encoder have
            another hash than expected.
    """
    return {"encoder": {**source.identity(digests), "version": EMBEDDINGS_VERSION}}
