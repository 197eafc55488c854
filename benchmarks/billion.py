"""Most attended words by all heads of a decoder of a billion parameters, in two precisions, against bare passes.

It runs on a GPU if there is one.

`python -m benchmarks.billion [--json FILE]`; it writes 7 GB of random weights to a temporary folder.
"""

import os
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch

from attention import Encoder, EncoderSpec, Options
from benchmarks.extraction import BareForward
from benchmarks.harness import Report, Settings, Treebanks, command, first_sentences, timed
from benchmarks.memory import AnonymousPeak
from benchmarks.streaming import Streamed, decoder

SENTENCES, PARTS = 200, 8
"""Sentences, and parts in which the two sides alternate: one round of a side takes minutes."""
LAYERS, HEADS, SIZE = 22, 32, 2048

Precision = Literal["float32", "bfloat16"]


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """Streams of a model of a billion parameters against its bare forward passes."""
    treebanks = Treebanks.choose(settings, folder, report, "its dev split")
    most = min(settings.limit or SENTENCES, SENTENCES)
    sentences = first_sentences([treebanks.dev], folder / "sentences.conllu", most)
    for precision in get_args(Precision):
        _measure(sentences, folder / precision, precision, report)


def _measure(sentences: Path, folder: Path, precision: Precision, report: Report) -> None:
    folder.mkdir()
    kind = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, precision))  # of the saved weights
    try:
        model = decoder(folder / "model", layers=LAYERS, heads=HEADS, size=SIZE, inner=11 * SIZE // 4, longest=2048)
    finally:
        torch.set_default_dtype(kind)
    encoder = Encoder(EncoderSpec(str(model), dtype=precision), "cuda" if torch.cuda.is_available() else "cpu")
    streamed = Streamed(sentences, encoder, folder, Options())
    bare = BareForward(encoder, streamed.items)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in encoder.model.parameters())
    ours, theirs, peak = list[float](), list[float](), 0
    if len(streamed) != len(bare):
        raise RuntimeError("a sentence is cut into parts, so the two sides read other batches")
    size = max(len(streamed) // PARTS, 1)
    if encoder.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for side in (streamed, bare):
        side(slice(1))  # the weights are read from their file
    for start in range(0, len(streamed), size):
        share = slice(start, start + size)
        with AnonymousPeak(os.getpid()) as seen:
            ours.append(timed(partial(streamed, share))())
        peak = max(peak, seen.bytes)
        theirs.append(timed(partial(bare, share))())
    meaning = f"most attended words of all {LAYERS * HEADS} heads ÷ bare sdpa passes, both in {precision}, in turns"
    report.ratio(f"{precision}_to_bare_forward", [sum(ours)], [sum(theirs)], meaning, wanted="≤ 1.15")
    report.seconds(f"{precision}_bare_forward_s", [sum(theirs)], "the bare passes")
    report.figure(f"{precision}_weights_mb", weights / 1e6, "weights, mapped from their file")
    if encoder.device.type == "cuda":
        beside = torch.cuda.max_memory_allocated() - 2 * weights  # of both sides
        report.figure("gpu", torch.cuda.get_device_name(), "both sides run on it")
        report.figure(f"{precision}_gpu_peak_mb", beside / 1e6, "peak of its memory beside the weights of both sides")
    report.figure(f"{precision}_peak_mb", peak / 1e6, "peak of all other memory of the process", wanted="≤ 2,000")
    if precision == get_args(Precision)[0]:
        report.figure("sentences", len(streamed.items), "read")


main = command("billion", measure)
