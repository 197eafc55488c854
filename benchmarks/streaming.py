"""Attention on forward passes alone: against bare passes, and against a store; peaks of memory, of a long text too.

`python -m benchmarks.streaming [--json FILE]`
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaModel, PreTrainedModel

from attention_probing.attention import Encoder, EncoderSpec, Options, resolve
from attention_probing.attention.extraction import in_order
from attention_probing.attention.stream import Stream, make_stream
from attention_probing.corpora.conllu import read_treebank
from attention_probing.corpora.sentence import Sentence
from attention_probing.results.digests import Digests
from benchmarks.extraction import BareForward, TimedExtraction
from benchmarks.harness import Report, Settings, Treebanks, alternate, command, first_sentences, timed
from benchmarks.job import run_heads
from benchmarks.memory import run_job

SMALL, LARGE, LONG = 200, 2000, 8192
"""Sentences of the two files whose peaks of memory are compared, and pieces of the long text."""


def decoder(folder: Path, *, layers: int, heads: int, size: int, inner: int | None = None, longest: int = 1024) -> Path:
    """Save a decoder of Llama's shape with random weights and the tokenizer of the default encoder."""
    tokenizer = AutoTokenizer.from_pretrained(resolve(EncoderSpec()).folder)
    tokenizer.model_max_length = longest
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size,
        intermediate_size=inner or 4 * size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=longest,
    )
    model: PreTrainedModel = LlamaModel(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """Streams against bare forward passes and against a store; peaks of memory."""
    treebanks = Treebanks.choose(settings, folder, report, "its dev split")
    _against_forward(treebanks, settings, folder, report)
    _against_store(treebanks, settings, folder, report)
    _rounding(treebanks, folder, report)
    if settings.memory:
        _memory(treebanks, folder, report)


class Streamed:
    """The most attended words of every sentence, of some layers, on forward passes alone."""

    def __init__(self, treebank: Path, encoder: Encoder, folder: Path, options: Options) -> None:
        self.items = TimedExtraction(treebank, encoder, folder, options).items()
        stream = make_stream(self.items, folder, Digests(folder), encoder)
        assert isinstance(stream, Stream)
        self._stream, self._groups = stream, list(stream.groups)

    def __len__(self) -> int:
        return len(self._groups)

    def __call__(self, share: slice = slice(None)) -> None:
        """Run all passes once, or a share of them."""
        for _ in in_order(self._stream.most_attended, self._groups[share], self._stream.workers):
            pass

    def positions(self) -> Iterator[Tensor]:
        """Yield the most attended words of each sentence, flattened."""
        for group, (positions, _) in in_order(self._stream.most_attended, self._groups, self._stream.workers):
            yield from (found[: self.items.words(item)].flatten() for item, found in zip(group, positions, strict=True))


def _against_forward(treebanks: Treebanks, settings: Settings, folder: Path, report: Report) -> None:
    encoder = Encoder(str(decoder(folder / "decoder", layers=12, heads=12, size=384)))
    one = Streamed(treebanks.dev, encoder, folder, Options(layers=(encoder.layers,)))
    every = Streamed(treebanks.dev, encoder, folder, Options())
    bare = BareForward(encoder, every.items)
    seconds = alternate(settings.rounds, bare=timed(bare), one=timed(one), every=timed(every))
    report.figure("sentences", len(one.items), "read")
    meaning = "bare sdpa passes of a decoder of 12 layers over the same batches"
    report.seconds("bare_forward_s", seconds["bare"], meaning)
    meaning = "most attended words of its last layer ÷ the bare passes"
    report.ratio("to_bare_forward", seconds["one"], seconds["bare"], meaning)
    report.ratio("all_layers_to_bare_forward", seconds["every"], seconds["bare"], "those of all 12 layers ÷ the same")


def _against_store(treebanks: Treebanks, settings: Settings, folder: Path, report: Report) -> None:
    files = {"dev": treebanks.dev, "test": first_sentences([treebanks.small], folder / "test.conllu", LARGE // 2)}

    def heads(store: Literal["disk", "stream"]) -> None:
        with TemporaryDirectory(dir=folder) as cache:
            run_heads(Path(cache), files, EncoderSpec(), store)

    seconds = alternate(settings.rounds, disk=timed(lambda: heads("disk")), stream=timed(lambda: heads("stream")))
    meaning = "the heads experiment, without trees and ensembles, streamed ÷ extracted and read"
    report.ratio("stream_over_store", seconds["stream"], seconds["disk"], meaning, wanted="≤ 1.0")
    report.seconds("streamed_heads_s", seconds["stream"], "the heads experiment, streamed")


def _rounding(treebanks: Treebanks, folder: Path, report: Report) -> None:
    """How many of the most attended words depend on the precision of the scores before softmax."""
    sentences = first_sentences([treebanks.dev], folder / "rounding.conllu", SMALL)
    specs = (EncoderSpec(dtype="bfloat16"), EncoderSpec(dtype="bfloat16", scores="float32"))
    model, single = (
        torch.cat([*Streamed(sentences, Encoder(spec), folder, Options(precision="float32")).positions()])
        for spec in specs
    )
    report.figure(
        "different_argmax_pct",
        100 * float((model != single).double().mean()),
        f"of most attended words differ if the default encoder in bfloat16 has scores in float32; {SMALL} sentences",
    )


def _memory(treebanks: Treebanks, folder: Path, report: Report) -> None:
    test = first_sentences([treebanks.dev], folder / "few.conllu", 20)
    peaks = []
    for size, most in (("small", SMALL), ("large", LARGE)):
        train = first_sentences([treebanks.large], folder / f"heads-{size}.conllu", most)
        peaks.append(run_job("heads", folder, train=train, dev=test).peak_mb)
        meaning = f"peak anonymous memory of the experiment on {most:,} sentences"
        report.figure(f"peak_rss_mb_{size}", peaks[-1], meaning)
    report.ratio("peak_rss_large_over_small", peaks[1:], peaks[:1], "the one peak ÷ the other", wanted="0.9 – 1.1")
    model = decoder(folder / "long", layers=32, heads=32, size=256, longest=LONG)
    text = joined(treebanks.dev, folder / "long.conllu", Encoder(str(model)), LONG)
    short, long = (run_job("heads", folder, train=train, dev=test, encoder=model).peak_mb for train in (test, text))
    report.figure("peak_rss_mb_short", short, "peak of 20 sentences through 1,024 heads: weights and program")
    report.figure("peak_rss_mb_long", long, f"peak of one text of about {LONG:,} pieces through the same heads")
    report.figure("long_over_short_mb", long - short, "the difference of the two", wanted="≤ 1,000")


def joined(treebank: Path, target: Path, encoder: Encoder, pieces: int) -> Path:
    """Write sentences of a treebank as one, of at most so many pieces; their roots become its roots."""
    kept = list[Sentence]()
    sentences = read_treebank(treebank).sentences * 8  # more than enough
    pieces -= 2  # delimiters
    for sentence in sentences:
        words = encoder.tokenizer(list(sentence.words), is_split_into_words=True, add_special_tokens=False)
        pieces -= len(words["input_ids"])
        if pieces < 0:
            break
        kept.append(sentence)
    heads, words, relations = list[int](), list[str](), list[str]()
    for sentence in kept:
        heads += [head + len(words) if head else 0 for head in sentence.heads]
        words += sentence.words
        relations += sentence.relations
    none = ("_",) * len(words)
    whole = Sentence("joined", tuple(words), tuple(heads), tuple(relations), none, none)
    target.write_text(whole.conllu(), encoding="utf-8")
    return target


main = command("streaming", measure)
