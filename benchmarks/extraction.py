"""Extraction to disk against a bare forward pass and against the original way; its bytes, its peak of memory.

`python -m benchmarks.extraction [--json FILE]`
"""

import tempfile
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModel

from attention_probing.attention import (
    Encoder,
    EncoderSpec,
    Extraction,
    Items,
    Options,
    Store,
    cut_sentences,
    make_store,
    resolve,
)
from attention_probing.attention.extraction import WORKERS, batches, extract, in_order, pad, shapes
from attention_probing.attention.quantities import QuantityName
from attention_probing.attention.store import seal_part, write_shard
from attention_probing.corpora.conllu import read_treebank
from attention_probing.results.digests import Digests
from benchmarks.harness import Report, Settings, Treebanks, alternate, command, first_sentences, timed
from benchmarks.memory import run_job
from benchmarks.reference import Reference

REFERENCE_SENTENCES = 400
DEFAULT_OPTIONS = Options()


class TimedExtraction:
    """A parsed treebank into a store, each time into an empty folder.

    From tokenising to the manifest: forward passes with the reduction and the cast, SHA-256, fsync and rename of every
    shard. The encoder is loaded, and its files are hashed, beforehand.

    Attributes:
        store: The last one made.
    """

    def __init__(self, corpus: Path, encoder: Encoder, folder: Path, options: Options = DEFAULT_OPTIONS) -> None:
        self.treebank = read_treebank(corpus)
        self.encoder, self._folder = encoder, folder
        self._extraction = Extraction(corpus, {"name": "benchmark"}, encoder.source, options)
        self._digests = Digests(folder)
        self._extraction.identity(self._digests)
        self.store: Store | None = None

    def __call__(self) -> None:
        """Extract once more."""
        self.make(Path(tempfile.mkdtemp(dir=self._folder)))

    def make(self, cache: Path) -> Store:
        """Extract to this folder, or take part in that as one of several processes."""
        self.store = make_store(self.items(), cache, self._digests, self.encoder)
        return self.store

    def items(self) -> Items:
        """Tokenise and align."""
        return cut_sentences(self._extraction, self.treebank, self.encoder)


class BareForward:
    """The forward passes alone, by PyTorch's fused attention, over inputs that lie ready.

    Args:
        encoder: Its files are used, its own model is not.
        items: Inputs, as extraction on a CPU puts them into batches; or the batches.
    """

    def __init__(self, encoder: Encoder, items: Items | list[dict[str, Tensor]]) -> None:
        model = AutoModel.from_pretrained(encoder.source.folder, attn_implementation="sdpa", dtype=encoder.model.dtype)
        self._model = model.eval().to(encoder.device)
        if isinstance(items, Items):
            cut = [batch for shard in items.shards for batch in batches(items, shard, "cpu")]
            items = [pad([items.inputs[item] for item in batch], encoder) for batch in cut]
        self._inputs = items

    def __len__(self) -> int:
        return len(self._inputs)

    @torch.inference_mode()
    def __call__(self, share: slice = slice(None)) -> None:
        """Run all batches once, or a share of them, one after the other, each on all cores: what a script does."""
        for inputs in self._inputs[share]:
            self._model(**inputs)

    def side_by_side(self) -> None:
        """Run them as extraction runs its own, one on each core: what of the ratio is not due to that."""

        @torch.inference_mode()
        def run(inputs: dict[str, Tensor]) -> None:
            self._model(**inputs)

        for _ in in_order(run, self._inputs, min(torch.get_num_threads(), WORKERS)):
            pass


class Stages:
    """What extraction does at once, one stage after the other: all forward passes, then all that follows them."""

    def __init__(self, encoder: Encoder, items: Items, folder: Path) -> None:
        self._encoder, self._items, self._folder = encoder, items, folder
        self._digests = Digests(folder)
        self._written: dict[Path, str] = {}

    def forward(self) -> None:
        """All shards into files."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        self._written = {}
        dtype = self._items.extraction.options.dtype
        tensors = extract(self._encoder, self._items, range(len(self._items.shards)))
        for shard, group in groupby(tensors, key=itemgetter(0)):
            path = folder / f"partial-{shard}"
            named = ((name, tensor) for _, name, tensor in group)
            self._written[path] = write_shard(path, shapes(self._items, shard), dtype, named)

    def seal(self) -> None:
        """Wait for the disk and name them."""
        for shard, (path, sha) in enumerate(self._written.items()):
            seal_part(path, sha, str(shard), ".safetensors", self._digests)


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """Extraction to disk against a bare forward pass and against the original way; its bytes, its peak of memory."""
    treebanks = Treebanks.choose(settings, folder, report, "beginning of train for memory, dev for all else")
    encoder = Encoder(resolve(EncoderSpec()))
    _against_forward(settings, treebanks, encoder, folder, report)
    _against_reference(settings, treebanks, encoder, folder, report)
    if settings.memory:
        memory(treebanks, folder, report)


def _against_forward(settings: Settings, treebanks: Treebanks, encoder: Encoder, folder: Path, report: Report) -> None:
    extraction = TimedExtraction(treebanks.dev, encoder, folder)
    items = extraction.items()
    bare = BareForward(encoder, items)
    stages = Stages(encoder, items, folder)
    seconds = alternate(
        settings.rounds,
        bare=timed(bare),
        side_by_side=timed(bare.side_by_side),
        extraction=timed(extraction),
        plan=timed(extraction.items),
        forward=timed(stages.forward),
        seal=timed(stages.seal),
    )
    meaning = "extraction to disk ÷ bare sdpa forward passes over the same batches"
    report.ratio("to_bare_forward", seconds["extraction"], seconds["bare"], meaning, wanted="≤ 1.0")
    meaning = "extraction to disk ÷ the same bare passes run side by side, one on each core, as extraction does"
    report.ratio("to_bare_side_by_side", seconds["extraction"], seconds["side_by_side"], meaning)
    report.figure("sentences", len(items), "extracted")
    report.seconds("bare_forward_s", seconds["bare"], "the bare forward passes")
    report.seconds("extraction_s", seconds["extraction"], "extraction; alone, its stages take:")
    report.seconds("plan_s", seconds["plan"], "tokenising and alignment")
    meaning = "forward passes with capture, reduction and cast, hashed and written"
    report.seconds("captured_forward_s", seconds["forward"], meaning)
    report.seconds("seal_s", seconds["seal"], "fsync and rename, which extraction hides behind forward passes")
    store = extraction.store
    assert store is not None
    cells = sum((items.words(item) + 2) ** 2 for item in range(len(items)))
    stored = sum(path.stat().st_size for path in store.folder.iterdir())
    report.figure("store_bytes", stored, "all files of the store")
    meaning = "all files of the store ÷ Σ(n+2)² · layers · heads · 2 bytes"
    report.ratio("bytes", [stored], [cells * encoder.layers * encoder.heads * 2], meaning, wanted="≤ 1.01")


def _against_reference(
    settings: Settings, treebanks: Treebanks, encoder: Encoder, folder: Path, report: Report
) -> None:
    some = first_sentences([treebanks.dev], folder / "reference.conllu", REFERENCE_SENTENCES)
    extraction = TimedExtraction(some, encoder, folder)
    reference = Reference(extraction.treebank, encoder, folder / "reference.npz")
    seconds = alternate(settings.rounds, reference=timed(reference), extraction=timed(extraction))
    assert extraction.store is not None
    difference = reference.check(extraction.store)
    meaning = "output_attentions and a NumPy loop over heads and words ÷ extraction, both to disk"
    report.ratio("over_reference", seconds["reference"], seconds["extraction"], meaning, wanted="≥ 5")
    report.figure("reference_sentences", len(extraction.treebank), "that both extracted")
    report.seconds("reference_s", seconds["reference"], "the original way")
    report.figure("reference_difference", difference, "largest difference between weights of the two")


def memory(treebanks: Treebanks, folder: Path, report: Report, quantity: QuantityName = "attention") -> None:
    """Report the peak of memory of extraction from a small and from a large treebank."""
    peaks, of = [], "" if quantity == "attention" else f"{quantity}_"
    for size, train in (("small", treebanks.small), ("large", treebanks.large)):
        peaks.append(run_job("setup", folder / f"cache-{of}{size}", train=train, quantity=quantity).peak_mb)
        meaning = f"peak anonymous memory of a run over {len(read_treebank(train)):,} sentences"
        report.figure(f"{of}peak_rss_mb_{size}", peaks[-1], meaning)
    name = f"{of}peak_rss_large_over_small"
    report.ratio(name, peaks[1:], peaks[:1], "the one peak ÷ the other", wanted="0.9 – 1.1")


main = command("extraction", measure)
