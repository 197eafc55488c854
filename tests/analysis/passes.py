"""Tiny encoders, and passes of batches through them as the experiment makes them."""

from collections.abc import Callable, Iterator
from pathlib import Path

from torch import Tensor

from analysis import Analysis
from attention import Encoder, EncoderSpec, resolve
from datamodules import SegmentBatch
from metrics.rows import ExactMetric
from tests import tiny
from tests.analysis.segments import batch_of

ENCODERS: dict[str, Callable[[Path], Path]] = {
    "bert": tiny.save_bert,
    "gpt2": tiny.save_gpt2,
    "llama": tiny.save_llama,
}


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


def show(encoder: Encoder, batch: SegmentBatch, *analyses: Analysis) -> list[Tensor]:
    """Let analyses see a batch; gives the weights of each layer, `[batch, heads, from, to]`."""
    passed: list[Tensor] = []

    def receive(layer: int, weights: Tensor) -> None:
        passed.append(weights.clone())
        for analysis in analyses:
            analysis.update(batch, layer, weights)

    inputs = encoder.inputs(batch.tokens, batch.mask, batch.segments)
    encoder.capture(inputs, receive, frozenset(range(encoder.layers)))
    for analysis in analyses:
        analysis.end(batch)
    return passed


def summed(analysis: Analysis) -> Iterator[Tensor]:
    """The states of its metrics."""
    for metric in analysis.modules():
        if isinstance(metric, ExactMetric):
            yield from (state for state in metric.metric_state.values() if isinstance(state, Tensor))
