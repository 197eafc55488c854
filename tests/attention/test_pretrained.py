"""Word-level attention of real pretrained models, against a slow loop over their own eager attention."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from attention_probing.attention import Encoder, EncoderSpec, Options, resolve
from attention_probing.attention.alignment import LONG, AlignedPieces, join_sentences, reduction, split_words
from attention_probing.attention.extraction import forward, pad
from attention_probing.attention.source import Dtype
from attention_probing.corpora.conllu import read_treebank
from attention_probing.corpora.sentence import Treebank
from tests.attention import reference
from tests.attention.extractions import items_of

Inputs = dict[str, Tensor]
MODELS = ("gemma-3-270m", "multilingual-e5-small", "smollm2-135m")
BATCHES = {"left": 10, "right": 10, "one": 1}
"""Sentences of a batch, by the side of its padding."""


def treebank(public_data: Callable[..., Path]) -> Treebank:
    sentences = read_treebank(public_data("ud", "en_ewt-ud-dev.conllu")).sentences
    return Treebank(sentences[:50], {})


def padded(parts: Sequence[AlignedPieces], encoder: Encoder, side: str) -> Inputs:
    inputs = pad(parts, encoder)
    if side == "left":
        shifts = [inputs["input_ids"].size(1) - len(part) for part in parts]
        inputs = {name: torch.stack([*map(torch.roll, rows, shifts)]) for name, rows in inputs.items()}
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(1) - 1).clamp_min(0)
    return inputs


def ours(encoder: Encoder, parts: Sequence[AlignedPieces], side: str, found: Treebank) -> list[Tensor]:
    """What a store gets, `[layers, heads, n+2, n+2]`; of a batch padded on the left, what a captured pass gives."""
    if side != "left":
        whole, _ = forward(encoder, parts, items_of(found, encoder, Options(precision="float32")))
        return [one[:, :, : part.words + 2, : part.words + 2] for one, part in zip(whole, parts, strict=True)]
    maps: list[Tensor] = []
    encoder.capture(
        padded(parts, encoder, side), lambda _, one: maps.append(one.clone()), frozenset(range(encoder.layers))
    )
    return [
        torch.cat([factors.words(one[row, None, :, -len(part) :, -len(part) :]) for one in maps])
        for row, part in enumerate(parts)
        for factors in [reduction([part], "mean", encoder.device)]
    ]


@torch.inference_mode()
def assert_equal(
    encoder: Encoder,
    own: PreTrainedModel,
    parts: Sequence[AlignedPieces],
    side: str,
    found: Treebank,
) -> list[np.ndarray]:
    """Compare a batch, and return the model's own attention over pieces, `[layers, heads, pieces, pieces]`."""
    inputs = padded(parts, encoder, side)
    layers = own(**inputs, output_attentions=True).attentions
    seen = []
    for row, (part, words) in enumerate(zip(parts, ours(encoder, parts, side, found), strict=True)):
        real = inputs["attention_mask"][row].bool()
        seen.append(torch.stack([one[row, :, real][..., real] for one in layers]).double().numpy())
        expected = reference.reduced(seen[-1], part.positions.tolist(), part.words)
        np.testing.assert_allclose(words.numpy(), expected, rtol=0, atol=1e-6)
    return seen


def loaded(folder: Path, dtype: Dtype = "float32") -> tuple[Encoder, PreTrainedModel]:
    own: PreTrainedModel = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=dtype)
    return Encoder(resolve(EncoderSpec(str(folder), dtype=dtype))), own.eval()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", MODELS)
def test_fifty_sentences_have_the_models_own_attention_over_words(
    name: str, pretrained: Callable[[str], Path], public_data: Callable[..., Path]
) -> None:
    encoder, own = loaded(pretrained(name))
    found = treebank(public_data)
    parts = split_words(encoder.tokenizer, [sentence.words for sentence in found.sentences])
    assert len(parts) == 50
    for side, size in BATCHES.items():
        for first in range(0, 50, size):
            assert_equal(encoder, own, parts[first : first + size], side, found)


@torch.inference_mode()
@pytest.mark.parametrize("name", MODELS)
def test_in_bfloat16_attention_is_no_farther_from_float32_than_the_models_own(
    name: str, pretrained: Callable[[str], Path], public_data: Callable[..., Path]
) -> None:
    """The model rounds its weights to eight bits after softmax, and ours are not; what follows is rounded otherwise."""
    encoder, own = loaded(pretrained(name), "bfloat16")
    _, precise = loaded(pretrained(name))
    found = treebank(public_data)
    parts = split_words(encoder.tokenizer, [sentence.words for sentence in found.sentences[:10]])
    inputs = padded(parts, encoder, "right")
    passes = [model(**inputs, output_attentions=True).attentions for model in (own, precise)]
    gaps = []
    for row, (part, words) in enumerate(zip(parts, ours(encoder, parts, "right", found), strict=True)):
        real = inputs["attention_mask"][row].bool()
        pieces = [torch.stack([one[row, :, real][..., real] for one in layers]).double().numpy() for layers in passes]
        rounded, exact = (reference.reduced(one, part.positions.tolist(), part.words) for one in pieces)
        pairs = ((words.numpy(), rounded), (words.numpy(), exact), (rounded, exact))
        gaps.append([np.abs(one - other).sum(-1).mean() / 2 for one, other in pairs])  # total variation distances
    to_own, to_exact, own_to_exact = np.mean(gaps, 0)
    assert to_exact < 1.02 * own_to_exact
    assert to_own < own_to_exact / 3


def test_a_text_beyond_the_window_has_the_models_own_attention_over_words(
    pretrained: Callable[[str], Path], public_data: Callable[..., Path]
) -> None:
    """Five of six layers of Gemma see no farther than 512 pieces."""
    encoder, own = loaded(pretrained("gemma-3-270m"))
    found = treebank(public_data)
    parts = split_words(encoder.tokenizer, [sentence.words for sentence in found.sentences], consecutive=True)
    count = next(n for n in range(50) if sum(map(len, parts[:n])) >= 800)
    text = join_sentences(parts[:count])
    assert len(text) >= max(700, LONG)
    [weights] = assert_equal(encoder, own, [text], "one", found)
    far = weights[:, :, 600:, :80].any(axis=(1, 2, 3))
    assert far.tolist() == [kind == "full_attention" for kind in own.config.layer_types]
