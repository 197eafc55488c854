"""Tiny encoders, texts and trees for them, and passes of batches through them as the experiment makes them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from attention_probing.attention import Encoder, EncoderSpec, resolve
from attention_probing.attention.inputs import Segmenter
from attention_probing.corpora.sentence import Sentence
from attention_probing.corpora.texts import Link, Passage
from attention_probing.datamodules import SegmentBatch
from attention_probing.datamodules.segments import TextSegment, segment_batch
from attention_probing.measures import MapMeasure
from tests import tiny

ENCODERS: dict[str, Callable[[Path], Path]] = {
    "bert": tiny.save_bert,
    "gpt2": tiny.save_gpt2,
    "llama": tiny.save_llama,
    "mistral": tiny.save_mistral,
    "gemma3": tiny.save_gemma3,
    "modernbert": tiny.save_modernbert,
}
_WINDOWED = {"mistral": (0, 1), "gemma2": (0,), "gemma3": (1,), "modernbert": (1,)}  # layers


def sees(kind: str, layer: int, row: int, column: int) -> bool:
    """Whether a token may attend to another in a layer of one of the `ENCODERS`, both without padding."""
    encodes = kind in ("bert", "modernbert")
    if layer not in _WINDOWED.get(kind, ()):
        return encodes or column <= row
    return abs(row - column) <= tiny.WINDOW // 2 if encodes else 0 <= row - column < tiny.WINDOW


def uniform(kind: str, layer: int, length: int) -> list[list[float]]:
    """Uniform attention `[from, to]` of a layer of one of the `ENCODERS` over an input without padding."""
    rows = [[float(sees(kind, layer, row, column)) for column in range(length)] for row in range(length)]
    return [[one / sum(row) for one in row] for row in rows]


def make_even(encoder: Encoder) -> None:
    """Set the queries to zero, so that all positions that a row may attend to have the same weight."""
    with torch.no_grad():
        for name, parameter in encoder.model.named_parameters():
            if any(part in name for part in ("query", "q_proj")):
                parameter.zero_()
            elif "Wqkv" in name:
                parameter[: len(parameter) // 3] = 0
            elif "c_attn" in name:
                parameter[..., : parameter.size(-1) // 3] = 0


def encoder(kind: str, folder: Path) -> Encoder:
    """A tiny encoder of one of the `ENCODERS`."""
    return Encoder(resolve(EncoderSpec(str(ENCODERS[kind](folder)))))


def batches(encoder: Encoder) -> list[SegmentBatch]:
    """Seven segments, of two passages for BERT: a padded batch, one without padding, and one of a single segment."""
    passages = [
        ("the fox , the dogs .", "coffee"),
        ("guests drink", "strong coffee"),
        ("the quick brown fox", "jumps over , and over ."),
        ("dogs", "sleep ."),
        ("the fox drinks", "coffee . the fox"),
        ("he missed yesterday , and the guests", "overslept"),
    ]
    two = "bert" in type(encoder.tokenizer).__name__.lower()
    texts = passages if two else [" ".join(pair) for pair in passages]
    return [
        batch_of(encoder, *texts[:4]),
        batch_of(encoder, texts[4], texts[4], first=4),
        batch_of(encoder, texts[5], first=6),
    ]


M = TypeVar("M", bound=MapMeasure)


def begin(analysis: M, encoder: Encoder, data: Any = None) -> M:  # noqa: ANN401 - or what stands for it
    """Begin an analysis alone, on an encoder and the data that it asks."""
    analysis.encoder = encoder
    analysis.data = data
    analysis.begin()
    return analysis


def show(encoder: Encoder, batch: SegmentBatch, *analyses: MapMeasure) -> list[Tensor]:
    """Let analyses see a batch; gives the weights of each layer, `[batch, heads, from, to]`."""
    passed: list[Tensor] = []

    def receive(layer: int, weights: Tensor) -> None:
        passed.append(weights.clone())
        for analysis in analyses:
            analysis.update_layer(batch, layer, weights)

    inputs = encoder.inputs(batch.tokens, batch.mask, batch.segments)
    encoder.capture(inputs, receive, frozenset(range(encoder.layers)))
    for analysis in analyses:
        analysis.update(batch)
    return passed


def batch_of(
    encoder: Encoder, *texts: str | Passage | tuple[str | Passage, ...], first: int = 0, corpus: str = "test"
) -> SegmentBatch:
    """A batch of these segments, numbered from `first`: words with blanks between, a passage, or a tuple of two."""
    segmenter = Segmenter(encoder)
    segments = []
    for text in texts:
        passages = text if isinstance(text, tuple) else (text,)
        read = tuple(one if isinstance(one, Passage) else Passage("text", tuple(one.split()), 1) for one in passages)
        written = segmenter.write(segmenter.split([passage.words for passage in read]))
        segments.append(TextSegment(read, written))
    return segment_batch(segments, range(first, first + len(segments)), corpus, pad=encoder.pad_id)


def passage(text: str, links: tuple[Link, ...] | None = None, *, tree: bool = True) -> Passage:
    """Of words `form/UPOS/relation/head` with blanks between."""
    forms, upos, relations, heads = zip(*(word.split("/") for word in text.split()), strict=True)
    sentence = Sentence("s", forms, tuple(map(int, heads)), relations, upos, ("_",) * len(upos))
    return Passage("s", forms, 1, sentence=sentence if tree else None, links=links)


TREES = (
    passage(
        "the/DET/det/2 foxglove/NOUN/nsubj/3 drinks/VERB/root/0 not/ADV/advmod/3 coffee/NOUN/obj/3 ,/PUNCT/punct/3"
    ),
    passage("he/PRON/nsubj:pass/2 overslept/VERB/root/0"),
    passage("dogs/NOUN/nsubj/3 ,/PUNCT/punct/1 overdrinks/VERB/root/0 him/PRON/obj/3 ./PUNCT/punct/3"),
    passage("smallest/ADJ/amod/2 guests/NOUN/root/0"),
    passage("it/PRON/nsubj/3 never/ADV/advmod/3 jumps/VERB/root/0 lazy/ADJ/xcomp/3"),
)
