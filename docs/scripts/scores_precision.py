"""Attention of an encoder in bfloat16, with its own scores and with those in single precision, beside float32.

python docs/scripts/scores_precision.py ENCODER TREEBANK SENTENCES
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

from attention_probing.attention import Encoder, EncoderSpec
from attention_probing.corpora.conllu import read_treebank

name, treebank, count = sys.argv[1:]
sentences = [" ".join(sentence.words) for sentence in read_treebank(Path(treebank)).sentences[: int(count)]]


def maps(**precision: str) -> list[Tensor]:
    """Return the attention of all layers to each sentence, `[layers, heads, from, to]`."""
    encoder = Encoder(EncoderSpec(name, **precision))  # type: ignore[arg-type]
    found = []
    for sentence in sentences:
        layers: list[Tensor] = []
        ids = torch.tensor([encoder.tokenizer(sentence)["input_ids"][: encoder.max_length]])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

        def keep(_: int, one: Tensor, kept: list[Tensor] = layers) -> None:
            kept.append(one[0].clone())

        encoder.capture(inputs, keep, frozenset(range(encoder.layers)))
        found.append(torch.stack(layers))
    return found


def percent(parts: list[Tensor]) -> str:
    """Return the share of True in all tensors together, in %."""
    return f"{100 * torch.cat([part.flatten() for part in parts]).float().mean():.1f}"


full = maps()
for scores in ("model", "float32"):
    both = list(zip(full, maps(dtype="bfloat16", scores=scores), strict=True))
    apart = [100 * (one - other).abs().sum(-1) / 2 for one, other in both]
    print(f"scores {scores}: total variation distance {torch.cat([one.flatten() for one in apart]).mean():.2f} points")
    most = [(one.argmax(-1), other == other.amax(-1, keepdim=True)) for one, other in both]
    first = [tied.int().argmax(-1) == place for place, tied in most]
    last = [tied.size(-1) - 1 - tied.flip(-1).int().argmax(-1) == place for place, tied in most]
    inside = [tuple(maps[..., 1:-1, 1:-1] for maps in pair) for pair in both if pair[0].size(-1) > 2]
    between = [one.argmax(-1) == other.argmax(-1) for one, other in inside]
    print(f"  same most attended position: {percent(first)} %; {percent(last)} % if the last of equals counts")
    print(f"  rows with several greatest weights: {percent([tied.sum(-1) > 1 for _, tied in most])} %")
    print(f"  same most attended position, without the first and the last: {percent(between)} %")
top = [one.topk(2) for one in full if one.size(-1) > 1]
near = [values[..., 1] > 0.99 * values[..., 0] for values, _ in top]
ends = [(places.amin(-1) == 0) & (places.amax(-1) == places.size(-2) - 1) for _, places in top]
of = [end[one] for end, one in zip(ends, near, strict=True)]
print(f"float32: the two greatest weights differ by less than 1 % in {percent(near)} % of rows,")
print(f"  and are those of the first and the last position in {percent(of)} % of these")
