"""Slow, obvious versions of what is tested: one sentence at a time, word by word, in loops."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerFast

from attention_probing.attention import Encoder
from attention_probing.attention.source import EncoderSpec, resolve
from tests import tiny

Floats = NDArray[np.float64]

ENCODERS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "bert": (tiny.save_bert, ""),
    "roberta": (tiny.save_roberta, " "),
    "gpt2": (tiny.save_gpt2, " "),
    "llama": (tiny.save_llama, ""),
}
"""How each is made, and the blank that stands before a word that is cut alone."""


def load(folder: Path, **spec: Any) -> Encoder:  # noqa: ANN401
    return Encoder(resolve(EncoderSpec(str(folder), **spec)))


def split(tokenizer: PreTrainedTokenizerFast, words: Sequence[str], blank: str) -> tuple[list[int], list[int]]:
    """Ids and positions of a sentence: each word is cut alone, and the delimiters go around."""
    before, after = delimiters(tokenizer)
    ids, positions = list(before), [0] * len(before)
    for place, word in enumerate(words):
        pieces = tokenizer(blank + word, add_special_tokens=False)["input_ids"] or [tokenizer.unk_token_id]
        ids += pieces
        positions += [place + 1] * len(pieces)
    return ids + after, positions + [len(words) + 1] * len(after)


def delimiters(tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """What the tokenizer writes before and after a text."""
    bare = tokenizer(" the", add_special_tokens=False)["input_ids"]
    whole = tokenizer(" the")["input_ids"]
    start = next(place for place in range(len(whole)) if whole[place : place + len(bare)] == bare)
    return whole[:start], whole[start + len(bare) :]


@cache
def _model(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def attention(folder: Path, ids: Sequence[int]) -> Floats:
    """The weights of every layer, `[layers, heads, pieces, pieces]`, as transformers itself returns them."""
    with torch.inference_mode():
        layers = _model(folder)(input_ids=torch.tensor([list(ids)]), output_attentions=True).attentions
    stacked: Floats = torch.stack([weights[0] for weights in layers]).double().numpy()
    return stacked


def hidden(folder: Path, ids: Sequence[int]) -> Floats:
    """All hidden states, `[layers+1, pieces, size]`, as transformers itself returns them."""
    with torch.inference_mode():
        states = _model(folder)(input_ids=torch.tensor([list(ids)]), output_hidden_states=True).hidden_states
    stacked: Floats = torch.stack([state[0] for state in states]).double().numpy()
    return stacked


def of_words(states: Floats, positions: Sequence[int], words: int, from_pieces: str = "mean") -> Floats:
    """Hidden states of pieces `[layers, pieces, size]` to those of words: averaged, or the first piece's."""
    result = np.zeros((len(states), words, states.shape[2]))
    for word in range(words):
        pieces = [piece for piece, position in enumerate(positions) if position == word + 1]
        if from_pieces == "first":
            pieces = pieces[:1]
        for piece in pieces:
            result[:, word] += states[:, piece] / len(pieces)
    return result


def reduced(weights: Floats, positions: Sequence[int], words: int, from_pieces: str = "mean") -> Floats:
    """Weights over pieces `[..., from, to]` to weights over words: attention to is summed, attention from averaged."""
    weights = np.ascontiguousarray(np.moveaxis(weights, (-2, -1), (0, 1)))  # the numbers of a pair lie together
    result = np.zeros((words + 2, words + 2, *weights.shape[2:]))
    pieces = [[piece for piece, position in enumerate(positions) if position == word] for word in range(words + 2)]
    for source in range(words + 2):
        rows = pieces[source][:1] if from_pieces == "first" else pieces[source]
        for target in range(words + 2):
            for row in rows:
                for column in pieces[target]:
                    result[source, target] += weights[row, column] / len(rows)
    return np.moveaxis(result, (0, 1), (-2, -1))
