"""Word vectors of a vocabulary: of its words from any source, of an encoder's pieces from its own table too."""

from pathlib import Path

from attention.digest import Digests
from attention.encoder import Encoder, EncoderSpec, Source, resolve
from datamodules.tokenization import Numbers
from datamodules.vectors import ENCODER, VectorSpec, WordVectors, load_vectors, piece_vectors
from datamodules.vocabulary import Vocabulary


def vocabulary_vectors(
    spec: VectorSpec,
    vocabulary: Vocabulary,
    frequencies: Numbers,
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
        VectorError: see `datamodules.vectors.load_vectors`.
        EncoderError: the encoder cannot be loaded, or has no table of embeddings.
    """
    digests = Digests(cache)
    if spec.name == ENCODER and source is not None:
        return piece_vectors(Encoder(source), digests)
    counts = {
        word: count
        for number, (word, count) in enumerate(zip(vocabulary.words, frequencies.tolist(), strict=True))
        if count and number not in vocabulary.specials
    }
    own = resolve(EncoderSpec()) if spec.name == ENCODER else None
    return load_vectors(
        spec,
        counts,
        root=root,
        cache=cache,
        digests=digests,
        encoder=None if own is None else lambda: Encoder(own),
        source=own,
    )
