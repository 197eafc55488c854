"""Datamodule of texts of any kind as segments for an encoder; texts are streamed, and none is stored."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from attention_probing.attention import Encoder, EncoderError, EncoderSpec, resolve
from attention_probing.attention.inputs import Segmenter
from attention_probing.attention.quantities import QuantityName
from attention_probing.corpora import registry
from attention_probing.corpora.conllu import warn_of_roots
from attention_probing.corpora.files import no_file
from attention_probing.corpora.records import warn_of_records
from attention_probing.corpora.sample import write_sample_text
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.splits import Split, corpus_of
from attention_probing.corpora.texts import OPTION, Text
from attention_probing.datamodules.batches import EncoderOf, SegmentBatch
from attention_probing.datamodules.corpus import DEFAULT_ENCODER, CorpusDataModule
from attention_probing.datamodules.segments import Segments, TextSegment, segment_batch, segment_bounds
from attention_probing.datamodules.text_sources import SourceFile, Sources, TextSource, can_split, read_sources
from attention_probing.datamodules.warnings import warn_of_unknown
from attention_probing.results import Provenance
from attention_probing.results.digests import Digests
from attention_probing.results.errors import check_numbers, check_values, setting
from attention_probing.results.progress import inform, warn

_WINDOW = 1024  # segments that are sorted by length
CELLS = {"cpu": 2**16, "cuda": 2**20}
"""Bound of a batch by kind of device: small enough for a core's cache, large enough to keep a GPU busy."""
LEFT_OUT = 0.05
"""Warn if a larger share of the sentences or pairs of texts was left out for their length."""


class TextStream(IterableDataset[SegmentBatch]):
    """Dataset that yields this rank's batches of segments of similar length, corpus by corpus.

    Every rank reads all texts and takes its share of the batches. The batches are the same on any number
    of ranks. Segments are sorted by length in groups of `_WINDOW`, and only one group is in memory at a
    time. A rank that gets no batch at all yields one empty batch, so that it too takes part in the
    collective operation that follows the loop over the batches.

    Args:
        data: Datamodule, after `setup`; every pass over the texts counts its `audits` anew.
        encoder: Role of the encoder whose attention will be read: `given`, `before` fine-tuning, or
            `random_init`.
    """

    def __init__(self, data: "TextDataModule", encoder: EncoderOf) -> None:
        super().__init__()
        self._data, self._encoder = data, encoder

    def __iter__(self) -> Iterator[SegmentBatch]:
        ranks, mine = self._data.ranks, 0
        made: dict[str, Any] = {"pad": self._data.encoders[self._encoder].pad_id, "encoder": self._encoder}
        for number, (name, batch) in enumerate(self._batches()):
            if number % ranks.world == ranks.rank:
                mine += 1
                index, segments = zip(*batch, strict=True)
                yield segment_batch(segments, index, name, **made)
        if not mine:
            yield segment_batch((), (), self._data.names[0], **made)

    def _batches(self) -> Iterator[tuple[str, list[tuple[int, TextSegment]]]]:
        """Yield the batches of all ranks: the name of a corpus, and segments with their numbers."""
        before = 0
        for name, corpus in self._data.segments().items():
            audit = self._data.audits[name] = Counter()
            numbered = enumerate(corpus.read(audit), start=before)
            while window := list(islice(numbered, _WINDOW)):
                before = window[-1][0] + 1
                window.sort(key=lambda each: len(each[1].segment))
                for start, stop in segment_bounds([len(each.segment) for _, each in window], self._data.max_cells):
                    yield name, window[start:stop]


class TextDataModule(CorpusDataModule[SegmentBatch]):
    """Datamodule of text segments from one or more corpora, as tokens of one encoder.

    Texts are streamed: no store is made, and memory does not grow with a corpus. Only a `test` reads
    them.

    Args:
        corpora: `sample` for a text that this package generates, a name of
            `probing fetch --list`, a file, or a mapping; see `TextSource`. A list names
            several corpora.
        encoder: The encoder.
        root: Folder of the public corpora; else `$PROBING_DATA`, else `./data`.
        cache: Folder of the sample text; else `$PROBING_CACHE`, else `./stores`.
        max_length: Largest number of pieces of a segment, delimiters included; the encoder's own limit
            if that is less.
        max_cells: Upper bound of the size of a batch in cells of its padded attention matrices,
            `batch · longest²`; None for 65,536 on a CPU, else 1,048,576.
        before: The encoder before its fine-tuning. Its attention to the same batches is read too.
        random_init: Also read everything through the same encoder with random weights; only its
            embeddings stay pretrained.
        quantity: What analyses read between two tokens: raw `attention`, or `norms`; see
            `attention.quantities`. Each analysis says which it takes.

    Attributes:
        encoders: The encoders by role, after `setup`.
        audits: Counts of the last pass over the texts, by corpus; `Segments` lists them.

    Raises:
        CorpusError: An option is out of range, or a corpus unknown; on `setup`, a corpus is absent or
            has no segment.
        EncoderError: On `setup`, the encoder is not found or cannot separate two passages, or `before`
            differs from it in layers, heads or pieces.
    """

    unit = "segments"
    holds = "text segments"
    batch = SegmentBatch

    def __init__(
        self,
        corpora: Sources = "sample",
        encoder: EncoderSpec = DEFAULT_ENCODER,
        root: str | None = None,
        cache: str | None = None,
        max_length: int = 128,
        max_cells: int | None = None,
        before: EncoderSpec | None = None,
        random_init: bool = False,
        quantity: QuantityName = "attention",
    ) -> None:
        super().__init__("", root, cache)
        check_values(self, quantity=quantity)
        self._corpora = tuple(SourceFile(source, root, self.cache) for source in read_sources(corpora))
        if not self.names:
            raise CorpusError(f"{setting(OPTION)} is empty. Name at least one corpus.")
        if twins := [name for name, count in Counter(self.names).items() if count > 1]:
            raise CorpusError(
                f"{setting(OPTION)}: several corpora are called {twins[0]}. Give each a `name` of its own, such as "
                f"{{corpus: "
                f"{self.sources[self.names.index(twins[0])].corpus}, name: other}}."
            )
        check_numbers(self, least=1, max_length=max_length, max_cells=max_cells)
        self.encoder, self.max_length, self.random_init = encoder, max_length, random_init
        self.before, self._max_cells, self.quantity = before, max_cells, quantity
        self.encoders: dict[EncoderOf, Encoder] = {}
        self.audits: dict[str, Counter[str]] = {}

    @property
    def sources(self) -> tuple[TextSource, ...]:
        """The corpora that the datamodule was given, each as a `TextSource`, in the given order.

        Options left as None stay None: `columns` is not filled in from the registry.
        """
        return tuple(corpus.given for corpus in self._corpora)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the corpora in the given order; the attribute `corpus` of a batch is one of them."""
        return tuple(corpus.name for corpus in self._corpora)

    @property
    def max_cells(self) -> int:
        """Largest size of a batch in cells of its padded attention matrices, `batch · longest²`.

        `longest` is the number of tokens of the batch's longest segment. A batch of one segment may exceed the
        bound. If the bound was not given, it depends on the device of the encoder, which is known after `setup`.
        """
        return self._max_cells or CELLS.get(self.encoders["given"].device.type, CELLS["cuda"])

    def files(self) -> Mapping[str, Path]:
        """Return the file of every corpus, by name of the corpus.

        If a corpus is `sample`, its files are first generated if they are absent or damaged.
        """
        for corpus in self._corpora:
            if corpus.source.corpus == "sample":
                write_sample_text(corpus.path.parent)
        return {corpus.name: corpus.path for corpus in self._corpora}

    def splits_of(self, stage: str, files: Mapping[str, Path]) -> tuple[list[Split], list[Split]]:
        """Check that the stage is `test`, and return two empty lists, because each corpus is one file.

        In other datamodules the lists have the splits to read and the splits to prepare.

        Raises:
            CorpusError: The stage is not `test`.
        """
        if stage != "test":
            raise CorpusError(f"{type(self).__name__} is for measurements alone. Run `probing measure`.")
        return [], []

    def absent(self, stages: Iterable[str]) -> list[CorpusError]:
        return [no_file(path) for path in dict.fromkeys(self.files().values()) if not path.is_file()]

    def segments(self, *corpora: SourceFile) -> dict[str, Segments]:
        """Return the `Segments` of each corpus, by its name; call it after `setup`.

        Args:
            corpora: The corpora; by default, all corpora of the datamodule.
        """
        segmenter = Segmenter(self.encoders["given"])
        return {corpus.name: Segments(corpus, segmenter, self.max_length) for corpus in corpora or self._corpora}

    def setup(self, stage: str) -> None:
        """Load the encoders, and check that every corpus has a segment to read.

        Raises:
            CorpusError: A file is absent or malformed, or holds no segment of two words.
            EncoderError: An encoder is not found or cannot separate two passages, or the encoder `before` fine-tuning
                differs from the given one in layers, heads or pieces.
        """
        self.splits_of(stage, {})
        if self.encoders:
            return
        entered = time.perf_counter()
        if absent := self.absent([stage]):
            raise absent[0]
        specs: dict[EncoderOf, EncoderSpec] = {"given": self.encoder}
        if self.before is not None:
            specs["before"] = self.before
        if self.random_init:
            specs["random_init"] = replace(self.encoder, weights="random")
        self.encoders = {which: Encoder(resolve(spec), self.device) for which, spec in specs.items()}
        digests = Digests(self.cache)
        encoders = self.encoders.items()
        self._described = {which: {**one.description, **one.source.identity(digests)} for which, one in encoders}
        self.max_length = min(self.max_length, *(encoder.max_length for encoder in self.encoders.values()))
        if "before" in self.encoders:
            _check_before(self.encoders["before"], self.encoders["given"])
        for name, segments in self.segments().items():
            audit: Counter[str] = Counter()
            if next(segments.read(audit), None) is None:
                raise _no_segment(self.files()[name], audit)
        self._sha256 = {corpus.name: corpus.sha256(digests) for corpus in self._corpora}
        ready = f"{', '.join(self.names)} in segments of at most {self.max_length} tokens"
        inform(f"Data ready in {time.perf_counter() - entered:.1f} s: {ready}.")

    @property
    def provenance(self) -> Provenance:
        """Description of encoders and files for the results, with counts of the texts read, cut and left out."""
        described: dict[str, dict[str, object]] = {str(which): one for which, one in self._described.items()}
        given = described.pop("given")
        data = {
            corpus.name: {
                **corpus_of(corpus.path),
                "file": corpus.path.name,
                "sha256": self._sha256[corpus.name],
                "segments": self.audits.get(corpus.name, Counter())["segments"],
            }
            for corpus in self._corpora
        }
        return Provenance({**given, **described}, data, {name: dict(audit) for name, audit in self.audits.items()})

    def only(self, names: Collection[str]) -> "TextDataModule":
        """Return a copy of the datamodule that has only the named corpora."""
        chosen = copy(self)
        chosen._corpora = tuple(corpus for corpus in self._corpora if corpus.name in names)
        return chosen

    def passages(self) -> Iterator[Text]:
        """Yield the one or two passages of each segment that a test reads, of all corpora; call it after `setup`."""
        for segments in self.segments().values():
            yield from (segment.passages for segment in segments.read(Counter()))

    def has_split(self, split: registry.SplitOrAll) -> bool:
        """Return True if every corpus has this split; see `TextSource`."""
        return all(can_split(source, split) for source in self.sources)

    def drawn(self, split: registry.SplitOrAll | None, most: int, seed: int) -> Iterator[SegmentBatch]:
        """Draw segments of each corpus at random, and yield them in batches; every rank draws the same segments.

        Args:
            split: Split of the corpora to draw from; None for the texts that a test reads.
            most: Largest number of segments drawn from each corpus.
            seed: Seed of the draw.

        Raises:
            CorpusError: A corpus is a single file, or has no such split.
        """
        if split is not None and (lacking := [name for name in self.names if not self.only([name]).has_split(split)]):
            raise CorpusError(
                f"{lacking[0]} has no {split} split, but the command needs one. Give {setting(OPTION)} a path with "
                f"`{{split}}` "
                f"in it, for instance `my/{{split}}.txt`, or a corpus of `probing fetch --list` that has it."
            )
        for source in self.sources:
            read = source if split is None else replace(source, split=split, limit=None)
            corpus = SourceFile(read, self.root, self.cache)
            random, kept = np.random.default_rng(seed), list[TextSegment]()
            # Vitter's algorithm R keeps each segment with the same probability, and holds no other.
            for number, segment in enumerate(self.segments(corpus)[corpus.name].read(Counter())):
                if number < most:
                    kept.append(segment)
                elif (place := int(random.integers(number + 1))) < most:
                    kept[place] = segment
            kept.sort(key=lambda one: len(one.segment))
            for start, stop in segment_bounds([len(one.segment) for one in kept], self.max_cells):
                pad = self.encoders["given"].pad_id
                yield segment_batch(kept[start:stop], range(start, stop), corpus.name, pad=pad)

    def test_dataloader(self) -> list[DataLoader[SegmentBatch]]:  # type: ignore[override]
        """Return loaders of all texts: for the given encoder and, with `random_init`, the random one.

        A loader yields each text once. The encoder `before` (the encoder before its fine-tuning) needs
        no loader of its own, because it reads the same batches as the given encoder.
        """
        return [
            DataLoader(TextStream(self, which), batch_size=None, pin_memory=torch.cuda.is_available())
            for which in self.encoders
            if which != "before"
        ]


def _no_segment(path: Path, audit: Counter[str]) -> CorpusError:
    """Return the error of a file without a segment, by the counts of its reader."""
    if not audit["passages"]:
        return CorpusError.at(path, None, "the file holds no text", "Check that it is the file you meant")
    read = ", ".join(f"{name} {count}" for name, count in sorted(audit.items()) if count)
    remedy = "Check that it is the file you meant"
    if audit["too_long"] or audit["words_cut"]:
        remedy = f"Raise {setting('data.max_length')}, or choose an encoder that takes longer inputs"
    return CorpusError.at(path, None, f"no segment of the file has two words (counts of its reader: {read})", remedy)


def _check_before(before: Encoder, given: Encoder) -> None:
    """Raise an EncoderError if the given encoder cannot be a fine-tuned `before`: other heads or pieces."""
    first, second = names = before.source.spec.name, given.source.spec.name
    shapes = [f"{one.layers} layers of {one.heads} heads" for one in (before, given)]
    if shapes[0] != shapes[1]:
        fault = f"{first} has {shapes[0]}, but {second} has {shapes[1]}"
    elif before.tokenizer.get_vocab() != given.tokenizer.get_vocab():
        fault = f"the tokenizers of {' and '.join(names)} have different pieces"
    else:
        return
    raise EncoderError(
        f"{fault}, so {second} was not fine-tuned from {first}. Set {setting('data.before.name')} to the encoder from "
        f"which {second} was fine-tuned."
    )


def warn_of_left_out(data: TextDataModule) -> None:
    """Log warnings if many texts were left out as too long, trees have several roots, or records of a table are odd.

    Only rank 0 logs.
    """
    for name, audit in data.audits.items():
        warn_of_roots(name, audit)
        warn_of_records(name, audit)
        warn_of_unknown(name, audit["words_with_unknown"], audit["words"], "words", data.encoder.name)
        left_out, read = audit["too_long"], audit["too_long"] + audit["segments"]
        if left_out > LEFT_OUT * read:
            warn(
                f"{name}: {left_out} of {read} sentences or pairs of texts have more pieces than fit, and were left "
                f"out: the results describe the shorter ones. Raise {setting('data.max_length')} "
                f"({data.max_length}), or choose "
                "an encoder that takes longer inputs."
            )
