"""Datamodule of texts of any kind as segments for an encoder; texts are streamed, and none is stored."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset

from attention_probing.attention import Encoder, EncoderError, EncoderSpec, resolve
from attention_probing.attention.encoder import EncoderOption, specification_of
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
from attention_probing.datamodules.corpus import DEFAULT_SPEC, CorpusDataModule
from attention_probing.datamodules.segments import Segments, TextSegment, draw_sample, segment_batch, segment_bounds
from attention_probing.datamodules.text_sources import SourceFile, Sources, TextSource, can_split, read_sources
from attention_probing.datamodules.warnings import warn_of_unknown
from attention_probing.results import Provenance
from attention_probing.results.digests import Digests
from attention_probing.results.errors import setting
from attention_probing.results.options import Positive, check_options
from attention_probing.results.progress import inform, warn

_WINDOW = 1024  # segments that are sorted by length
SEGMENT_CELLS = {"cpu": 2**16, "cuda": 2**20}
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
        self._data = data
        self._encoder = encoder

    def __iter__(self) -> Iterator[SegmentBatch]:
        ranks = self._data.ranks
        pad = self._data.encoders[self._encoder].pad_id
        has_batch = False
        for number, (name, batch) in enumerate(self._batches()):
            if number % ranks.world == ranks.rank:
                has_batch = True
                index, segments = zip(*batch, strict=True)
                yield segment_batch(segments, index, name, pad=pad, encoder=self._encoder)
        if not has_batch:
            yield segment_batch((), (), self._data.names[0], pad=pad, encoder=self._encoder)

    def _batches(self) -> Iterator[tuple[str, list[tuple[int, TextSegment]]]]:
        """Yield the batches of all ranks: the name of a corpus, and segments with their numbers."""
        before = 0
        for name, corpus in self._data.segments().items():
            audit = self._data.audits[name] = Counter()
            numbered = enumerate(corpus.read(audit), start=before)
            while window := list(islice(numbered, _WINDOW)):
                before = window[-1][0] + 1
                window.sort(key=lambda item: len(item[1].segment))
                lengths = [len(text.segment) for _, text in window]
                for start, stop in segment_bounds(lengths, self._data.max_cells):
                    yield name, window[start:stop]


class TextDataModule(CorpusDataModule[SegmentBatch]):
    """Datamodule of text segments from one or more corpora, as tokens of one encoder.

    Texts are streamed: no store is made, and memory does not grow with a corpus. Only a `test` reads
    them.

    Args:
        corpora: `sample` for a text that this package generates, a name of
            `probing fetch --list`, a file, or a mapping; see `TextSource`. A list names
            several corpora.
        encoder: The encoder, or its name.
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
        limit: Largest number of segments of each corpus that names no `limit` of its own, see `TextSource`; None for
            all.

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
        encoder: EncoderOption = DEFAULT_SPEC,
        root: str | None = None,
        cache: str | None = None,
        max_length: Positive = 128,
        max_cells: Positive | None = None,
        before: EncoderOption | None = None,
        random_init: bool = False,
        quantity: QuantityName = "attention",
        limit: Positive | None = None,
    ) -> None:
        super().__init__("", root, cache, limit=limit, limit_by="first")
        # Not `checked`: Python may give `corpora` objects of TextSource, which are no settings.
        check_options(self, max_length=max_length, max_cells=max_cells, quantity=quantity)
        self._corpora = tuple(SourceFile(source, root, self.cache, limit) for source in read_sources(corpora))
        if not self.names:
            raise CorpusError(f"{setting(OPTION)} is empty. Name at least one corpus.")
        twins = [name for name, count in Counter(self.names).items() if count > 1]
        if twins:
            raise CorpusError(
                f"{setting(OPTION)}: several corpora are called {twins[0]}. Give each a `name` of its own, such as "
                f"{{corpus: {self.sources[self.names.index(twins[0])].corpus}, name: other}}."
            )
        self.encoder = specification_of(encoder)
        self.before = None if before is None else specification_of(before)
        self.random_init = random_init
        self.max_length = max_length
        self.quantity = quantity
        self._max_cells = max_cells
        self.encoders: dict[EncoderOf, Encoder] = {}
        self._described: dict[EncoderOf, dict[str, object]] = {}
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
        if self._max_cells is not None:
            return self._max_cells
        device = self.encoders["given"].device.type
        return SEGMENT_CELLS.get(device, SEGMENT_CELLS["cuda"])

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
        paths = dict.fromkeys(self.files().values())
        return [no_file(path) for path in paths if not path.is_file()]

    def segments(self, *corpora: SourceFile) -> dict[str, Segments]:
        """Return the `Segments` of each corpus, by its name; call it after `setup`.

        Args:
            corpora: The corpora; by default, all corpora of the datamodule.
        """
        segmenter = Segmenter(self.encoders["given"])
        segments = {}
        for corpus in corpora or self._corpora:
            segments[corpus.name] = Segments(corpus, segmenter, self.max_length)
        return segments

    def setup(self, stage: str) -> None:
        """Load the encoders, and check that every corpus has a segment to read.

        Raises:
            CorpusError: A file is absent or malformed, or holds no segment of two words.
            EncoderError: An encoder is not found or cannot separate two passages, or the encoder `before` fine-tuning
                differs from the given one in layers, heads or pieces.
        """
        self.splits_of(stage, {})  # checks the stage
        if self.encoders:
            return
        began = time.perf_counter()
        absent = self.absent([stage])
        if absent:
            raise absent[0]
        specs: dict[EncoderOf, EncoderSpec] = {"given": self.encoder}
        if self.before is not None:
            specs["before"] = self.before
        if self.random_init:
            specs["random_init"] = replace(self.encoder, weights="random")
        digests = Digests(self.cache)
        self.encoders = {role: Encoder(resolve(spec), self.device) for role, spec in specs.items()}
        for role, encoder in self.encoders.items():
            self._described[role] = {**encoder.description, **encoder.source.identity(digests)}
            self.max_length = min(self.max_length, encoder.max_length)
        if "before" in self.encoders:
            _check_before(self.encoders["before"], self.encoders["given"])
        for name, segments in self.segments().items():
            audit: Counter[str] = Counter()
            if next(segments.read(audit), None) is None:
                raise _no_segment(self.files()[name], audit)
        self._sha256 = {corpus.name: corpus.sha256(digests) for corpus in self._corpora}
        ready = f"{', '.join(self.names)} in segments of at most {self.max_length} tokens, read by {self.encoder.name}"
        inform(f"Data ready in {time.perf_counter() - began:.1f} s: {ready}.")

    @property
    def provenance(self) -> Provenance:
        """Description of encoders and files for the results, with counts of the texts read, cut and left out."""
        encoder: dict[str, object] = {}
        for role, description in self._described.items():
            if role == "given":
                encoder |= description
            else:
                encoder[role] = description
        data: dict[str, dict[str, object]] = {}
        for corpus in self._corpora:
            audit = self.audits.get(corpus.name, Counter())
            data[corpus.name] = {
                **corpus_of(corpus.path),
                "file": corpus.path.name,
                "sha256": self._sha256[corpus.name],
                "segments": audit["segments"],
            }
            if corpus.source.limit is not None:
                data[corpus.name]["limit"] = corpus.source.limit
        audits: dict[str, object] = {name: dict(audit) for name, audit in self.audits.items()}
        if self.limit.most is not None:
            audits["limit"] = f"the first {self.limit.most:,} segments of each corpus without a limit of its own"
        return Provenance(encoder, data, audits)

    def only(self, names: Collection[str]) -> "TextDataModule":
        """Return a copy of the datamodule that has only the named corpora."""
        chosen = copy(self)
        chosen._corpora = tuple(corpus for corpus in self._corpora if corpus.name in names)
        return chosen

    def passages(self) -> Iterator[Text]:
        """Yield the one or two passages of each segment that a test reads, of all corpora; call it after `setup`."""
        for segments in self.segments().values():
            for segment in segments.read(Counter()):
                yield segment.passages

    def has_split(self, split: registry.SplitOrAll) -> bool:
        """Return True if every corpus has this split; see `TextSource`."""
        return all(can_split(source, split) for source in self.sources)

    def draw_segments(self, split: registry.SplitOrAll | None, most: int, seed: int) -> Iterator[SegmentBatch]:
        """Draw segments of each corpus at random, and yield them in batches; every rank draws the same segments.

        Args:
            split: Split of the corpora to draw from; None for the texts that a test reads.
            most: Largest number of segments drawn from each corpus.
            seed: Seed of the draw.

        Raises:
            CorpusError: A corpus is a single file, or has no such split.
        """
        if split is not None:
            self._check_split(split)
        pad = self.encoders["given"].pad_id
        for source in self.sources:
            if split is not None:
                source = replace(source, split=split, limit=None)
            corpus = SourceFile(source, self.root, self.cache, None if split else self.limit.most)
            segments = self.segments(corpus)[corpus.name].read(Counter())
            sample = draw_sample(segments, most, seed)
            sample.sort(key=lambda text: len(text.segment))
            lengths = [len(text.segment) for text in sample]
            for start, stop in segment_bounds(lengths, self.max_cells):
                yield segment_batch(sample[start:stop], range(start, stop), corpus.name, pad=pad)

    def _check_split(self, split: registry.SplitOrAll) -> None:
        """Raise a CorpusError if a corpus has no such split."""
        for name, source in zip(self.names, self.sources, strict=True):
            if not can_split(source, split):
                raise CorpusError(
                    f"{name} has no {split} split, but the command needs one. Give {setting(OPTION)} a path with "
                    f"`{{split}}` in it, for instance `my/{{split}}.txt`, or a corpus of `probing fetch --list` that "
                    "has it."
                )

    def test_dataloader(self) -> list[DataLoader[SegmentBatch]]:  # type: ignore[override]
        """Return loaders of all texts: for the given encoder and, with `random_init`, the random one.

        A loader yields each text once. The encoder `before` (the encoder before its fine-tuning) needs
        no loader of its own, because it reads the same batches as the given encoder.
        """
        loaders = []
        for role in self.encoders:
            if role != "before":
                stream = TextStream(self, role)
                loaders.append(DataLoader(stream, batch_size=None, pin_memory=torch.cuda.is_available()))
        return loaders


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
    first = before.source.spec.name
    second = given.source.spec.name
    shape_before = f"{before.layers} layers of {before.heads} heads"
    shape_given = f"{given.layers} layers of {given.heads} heads"
    if shape_before != shape_given:
        fault = f"{first} has {shape_before}, but {second} has {shape_given}"
    elif before.tokenizer.get_vocab() != given.tokenizer.get_vocab():
        fault = f"the tokenizers of {first} and {second} have different pieces"
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
        left_out = audit["too_long"]
        read = left_out + audit["segments"]
        if left_out > LEFT_OUT * read:
            warn(
                f"{name}: {left_out} of {read} sentences or pairs of texts have more pieces than fit, and were left "
                f"out: the results describe the shorter ones. Raise {setting('data.max_length')} "
                f"({data.max_length}), or choose an encoder that takes longer inputs."
            )
