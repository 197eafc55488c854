"""An encoder's own input embeddings as word vectors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attention.alignment import split_words
from attention.encoder import Encoder, EncoderError

EMBEDDINGS_VERSION = 1
"""Raise it when a word's embedding would come out differently."""


@dataclass(frozen=True, eq=False)
class WordEmbeddings:
    """The input embeddings of words that stand alone.

    Attributes:
        vectors: float32 `[words, size]`, the mean over a word's pieces; zeros for a word without any.
        pieces: int64 `[words]`, the number of its pieces.
        unknown: bool `[words]`, whether it has pieces and all of them are the unknown token.
    """

    vectors: NDArray[np.float32]
    pieces: NDArray[np.int64]
    unknown: NDArray[np.bool_]


def embed_words(encoder: Encoder, words: Sequence[str]) -> WordEmbeddings:
    """Cut each word into pieces as if it were a sentence, and average what the encoder's embedding table holds of them.

    The table alone: positions, segments and norms that an encoder adds before its first layer are left out.

    Raises:
        AlignmentError: a word without any piece, and a tokenizer without an unknown token.
        EncoderError: the encoder embeds its input by something other than a table.
    """
    table = _table(encoder)
    unknown_id = encoder.tokenizer.unk_token_id
    # A word that yields no piece is handed back as the unknown token, and counted in `unknown`.
    aligned = split_words(encoder.tokenizer, [[word] for word in words])
    ids = [part.ids[part.positions == 1] if not part.unknown else part.ids[:0] for part in aligned]
    pieces = np.array([len(own) for own in ids], np.int64)
    flat = torch.from_numpy(np.concatenate([*ids, np.zeros(0, np.int32)]).astype(np.int64)).to(encoder.device)
    starts = torch.from_numpy(np.cumsum(pieces) - pieces).to(encoder.device)
    with torch.inference_mode():
        vectors = nn.functional.embedding_bag(flat, table, starts, mode="mean")
    return WordEmbeddings(
        np.asarray(vectors.cpu().numpy(), np.float32),
        pieces,
        np.array([len(own) > 0 and bool((own == unknown_id).all()) for own in ids], np.bool_),
    )


def embed_pieces(encoder: Encoder) -> NDArray[np.float32]:
    """What the encoder's embedding table holds, float32 `[pieces, size]`, by the numbers of the pieces.

    Raises:
        EncoderError: the encoder embeds its input by something other than a table.
    """
    return np.asarray(_table(encoder).cpu().numpy(), np.float32)


def _table(encoder: Encoder) -> Tensor:
    table = encoder._model.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        raise EncoderError(
            f"{encoder.source.spec.name}: its input embeddings are a {type(table).__name__}, not a table of vectors. "
            f"Choose other word vectors."
        )
    return table.weight.detach().float()
