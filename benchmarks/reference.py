"""Extraction as the code released with Clark et al. (2019) goes about it, after its description: what ours is held to.

A forward pass returns all attention weights of a batch, over pieces and with the padding; NumPy then merges pieces to
words, one sentence and one head after the other, in a loop over the words; everything is kept until the end and saved
in float32. As there, inputs come in the order of the corpus, 16 at a time, and each is padded to 128 pieces. One thing
is kinder to it here than in the original, which cuts words into pieces one at a time: it gets our tokenising.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoModel

from attention_probing.attention import Encoder, Store
from attention_probing.attention.alignment import split_words
from attention_probing.attention.extraction import pad
from attention_probing.corpora.sentence import Treebank

BATCH, PADDED_TO = 16, 128
"""Sentences of a forward pass, and pieces of each, as in the original."""
TOLERANCE = 1e-3
"""Most by which two weights may differ: float16 keeps eleven bits of them."""


def merge(attention: NDArray[np.float32], words: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """One head's weights over pieces `[pieces, pieces]` to weights over words `[words, words]`, axes from and to.

    Attention to a word is the sum over its pieces, attention from it their mean. `words` are the positions of the
    pieces of every word, delimiters included.
    """
    to_words = np.stack([attention[:, pieces].sum(axis=1) for pieces in words], axis=1)
    return np.stack([to_words[pieces].mean(axis=0) for pieces in words])


class Reference:
    """Extraction of a treebank by `output_attentions=True` and a loop over heads and words.

    Args:
        treebank: No sentence longer than the encoder's limit.
        encoder: Its tokenizer and its files are used, its own model is not.
        target: The `.npz` file of all sentences.
    """

    def __init__(self, treebank: Treebank, encoder: Encoder, target: Path) -> None:
        self.treebank, self.encoder, self.target = treebank, encoder, target
        self._model = AutoModel.from_pretrained(
            encoder.source.folder, attn_implementation="eager", dtype=torch.float32
        ).eval()

    @torch.inference_mode()
    def __call__(self) -> None:
        """Extract, from tokenising to the file on disk."""
        pieces = split_words(self.encoder.tokenizer, [sentence.words for sentence in self.treebank.sentences])
        merged: dict[str, NDArray[np.float32]] = {}
        for first in range(0, len(pieces), BATCH):
            parts = pieces[first : first + BATCH]
            inputs = pad(parts, self.encoder)
            missing = max(PADDED_TO - inputs["input_ids"].size(1), 0)
            inputs = {name: nn.functional.pad(tensor, (0, missing)) for name, tensor in inputs.items()}
            layers = self._model(**inputs, output_attentions=True).attentions
            weights = np.stack([layer.numpy() for layer in layers], axis=1)  # [batch, layers, heads, pieces, pieces]
            for item, (part, maps) in enumerate(zip(parts, weights, strict=True), start=first):
                words = [np.flatnonzero(part.positions == place).tolist() for place in range(part.words + 2)]
                maps = maps[..., : len(part), : len(part)]
                merged[str(item)] = np.stack([[merge(head, words) for head in layer] for layer in maps])
        np.savez(self.target, **merged)  # type: ignore[arg-type] # numpy before 2.1 has no `allow_pickle`

    def check(self, store: Store) -> float:
        """The largest difference between any weight in the file and the same one in a store.

        Raises:
            RuntimeError: It is over the tolerance: the two do not compute the same, and no ratio means anything.
        """
        worst = 0.0
        with np.load(self.target) as saved:
            if len(saved.files) != len(store):
                raise RuntimeError(f"{len(saved.files)} sentences by the reference, {len(store)} in the store.")
            for item in range(len(store)):
                ours = store.read("attention", item).numpy()
                worst = max(worst, float(np.abs(saved[str(item)] - ours).max()))
        if not worst <= TOLERANCE:  # also when it is not a number
            raise RuntimeError(f"Attention differs from the reference's by {worst:.1e}, over {TOLERANCE:.0e}.")
        return worst
