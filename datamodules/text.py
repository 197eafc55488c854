"""Texts of any kind as segments that an encoder reads, streamed: nothing of them is kept."""

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_info, rank_zero_only
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from attention import AlignmentError, Encoder, EncoderError, EncoderSpec, resolve
from attention.inputs import Segment, Segmenter, WordPieces
from corpora.labelled import Columns
from corpora.lines import format_of
from corpora.registry import CORPORA, data_root, no_file
from corpora.registry import Split as CorpusSplit
from corpora.sample import SAMPLE_VERSION, write_sample_text
from corpora.sentence import CorpusError
from corpora.texts import (
    OPTION,
    Passage,
    Text,
    read_enhanced,
    read_framenet,
    read_links,
    read_plain,
    read_sentences,
    read_texts,
)
from datamodules.batches import BatchLoader, EncoderOf, SegmentBatch, Split, batch_bounds, padder
from datamodules.corpus import CorpusDataModule, corpus_of, warn_of_roots
from results import Provenance
from results.digests import Digests
from results.errors import check_numbers, check_values, from_options, near

TextFormat = Literal["text", "tsv", "csv", "jsonl", "conllu", "conllx", "links", "enhanced", "framenet"]

log = logging.getLogger(__name__)

_DEFAULT_ENCODER = EncoderSpec()
_SUFFIXES: dict[str, TextFormat] = {
    ".txt": "text",
    ".raw": "text",
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".conllu": "conllu",
    ".conll": "conllx",
    ".conllx": "conllx",
}
_SPLITS: tuple[CorpusSplit, ...] = ("test", "dev", "all", "train")  # that which is preferred first
_AT_ONCE = 64  # texts that the tokenizer is given
_WINDOW = 1024  # segments that are sorted by length
CELLS = {"cpu": 2**16, "cuda": 2**20}
"""Bound of a batch by kind of device: what keeps the weights of one layer in a core's cache, and a GPU busy."""
_SHORTEST = 2  # words of a segment
LEFT_OUT = 0.05
"""Share of sentences or pairs that did not fit above which there is a warning."""


@dataclass(frozen=True)
class TextSource:
    """One corpus of texts, and how it is read.

    Args:
        corpus: `sample` for the embedded text, and with `format: conllu` for the test split of the embedded treebank; a
            name of the registry; or a file: plain text, a paragraph on each line (`.txt`, `.raw`), labelled texts or
            pairs of texts (`.tsv`, `.csv`, `.jsonl`), a treebank (`.conllu`, `.conllx`), or word links.
        name: of the corpus in tables; by default that of the registry, or the stem of the file.
        split: of a corpus of the registry, or of such a path; by default test where there is one, else dev, else all.
        format: by default what the suffix says. Word links have none of their own: `links` for a TSV of them,
            `enhanced` for those of column DEPS of a CoNLL-U file, `framenet` for `frameIndex.xml` in the folder of
            FrameNet; see `corpora.texts`.
        columns: of labelled texts; by default those of the registry, else `text` alone. Labels are read where they are
            named: `{text: text, label: label}`.
        header: whether TSV and CSV name their columns; by default what the registry says, else true.
        packing: each passage is a segment of its own (`single`), or two that follow one another are packed into one, as
            in BERT's pre-training (`pairs`).
        limit: most segments; None for all.
    """

    corpus: str = "sample"
    name: str | None = None
    split: Literal["train", "dev", "test", "all"] | None = None
    format: TextFormat | None = None
    columns: Columns | None = None
    header: bool | None = None
    packing: Literal["single", "pairs"] = "single"
    limit: int | None = None

    def __post_init__(self) -> None:
        check_values(self, **vars(self))
        check_numbers(self, least=1, limit=self.limit)

    @classmethod
    def from_options(cls, given: object) -> "TextSource":
        """Return the corpus of a name or a file, or of a mapping of options; a UserError where these do not fit."""
        options = {"corpus": given} if isinstance(given, str) else given
        if not isinstance(options, Mapping) or "corpus" not in options:
            raise CorpusError(
                f"{OPTION}: {given!r} names no corpus. Give a name, a file, or a mapping such as "
                f"{{corpus: my.txt, packing: pairs}}."
            )
        if (columns := options.get("columns")) is not None:
            options = {**options, "columns": from_options(Columns, columns, f"{OPTION}.columns", label=None)}
        return from_options(cls, options, OPTION)


Sources = str | dict[str, Any] | list[Any]
"""Corpora as a command line or a config gives them: a corpus, the options of a `TextSource`, or several of either."""


def read_sources(given: Sources | TextSource) -> tuple[TextSource, ...]:
    """Return one corpus or several as `TextSource`s; a list may hold these too.

    jsonargparse must not know the type: it would read a file that is named alone as a config, and lay a list of the
    command line over that of the config, option by option.

    Raises:
        UserError: an unknown option, or one with another value than it can have.
    """
    return tuple(
        one if isinstance(one, TextSource) else TextSource.from_options(one)
        for one in (given if isinstance(given, list) else [given])
    )


@dataclass(frozen=True)
class _Corpus:
    """A source with its name, its file, and its options filled in."""

    source: TextSource
    name: str
    path: Path

    @classmethod
    def from_source(cls, source: TextSource, root: str | Path | None, cache: Path) -> "_Corpus":
        """Find a corpus; a CorpusError if it is neither embedded, nor of the registry, nor a path."""
        known = CORPORA.get(source.corpus)
        if known is None and source.split is not None and "{split}" not in source.corpus:
            raise CorpusError(
                f"{source.corpus}: only corpora of the registry, and paths with {{split}} in them, have splits. Leave "
                f"`{OPTION}.split` out."
            )
        if source.corpus == "sample":
            name = "sample-test.conllu" if source.format == "conllu" else "sample.txt"
            return cls(source, source.name or "sample", cache / f"sample-{SAMPLE_VERSION}" / name)
        if known is None:
            path = Path(source.corpus.replace("{split}", source.split or "test")).expanduser()
            if not path.suffix and not path.exists():
                raise CorpusError(
                    f"{source.corpus}: neither `sample`, nor a file, nor a corpus of the registry"
                    f"{near(source.corpus, (*CORPORA, 'sample'))}: {', '.join(CORPORA)}. Give {OPTION} one of them."
                )
            return cls(source, source.name or path.stem, path)
        preferred = (source.split,) if source.split else ("test", "dev", "all")
        if not (found := [known.splits[split] for split in _SPLITS if split in preferred and split in known.splits]):
            raise CorpusError(
                f"{known.name}: the corpus has no split {' or '.join(preferred)}; there are {', '.join(known.splits)}. "
                f"Name one of them with `{OPTION}.split`."
            )
        columns = replace(Columns(label=None), **known.columns) if known.columns else Columns()
        header = known.header if source.header is None else source.header
        filled = replace(source, columns=source.columns or columns, header=header)
        return cls(filled, source.name or known.name, data_root(root) / found[0].path)

    def texts(self, audit: Counter[str]) -> Iterator[Text]:
        """Yield the texts of the file; count what is left out."""
        form: TextFormat = self.source.format or format_of(
            self.path, _SUFFIXES, f"`{OPTION} '{{corpus: {self.source.corpus}, format: …}}'`"
        )
        match form:
            case "text":
                return read_plain(self.path, audit)
            case "conllu" | "conllx":
                return read_sentences(self.path, audit, form)
            case "links":
                return read_links(self.path)
            case "enhanced":
                return read_enhanced(self.path, audit)
            case "framenet":
                return read_framenet(self.path, audit)
        columns, header = self.source.columns or Columns(label=None), self.source.header in (None, True)
        known = CORPORA.get(self.source.corpus)
        malformed: Literal["error", "skip"] = "skip" if known is not None and "malformed" in known.skip else "error"
        return read_texts(self.path, audit, columns=columns, format=form, header=header, malformed=malformed)


Stretch = tuple[Passage, WordPieces]
"""Consecutive words of one passage, and their pieces."""


@dataclass(frozen=True)
class TextSegment:
    """A segment and what it was made of."""

    passages: Text
    segment: Segment


class Segments:
    """The segments of one corpus, in the order of its file.

    A passage with more pieces than fit is cut at word boundaries into consecutive stretches. Packed in pairs, a stretch
    takes half of a segment, and the last one of an odd number is cut in two. A sentence whose tree or links are known,
    and a pair of texts, are not cut: too long, they are left out.

    Counted are `passages` read, `segments`, their `words`, `tokens` and `words_with_unknown`; `too_long` and
    `too_short` (fewer than two words) what was left out; `words_cut` what alone had more pieces than fit; and what the
    reader counts.
    """

    def __init__(self, corpus: _Corpus, segmenter: Segmenter, max_length: int) -> None:
        self._corpus, self._segmenter = corpus, segmenter
        self._most = max_length
        self._pairs = corpus.source.packing == "pairs"
        passages = 2 if self._pairs else 1
        if self._room(passages) < 2 * passages:
            raise CorpusError(f"max_length: {max_length} leaves no room for two words. Give a larger number.")

    def read(self, audit: Counter[str]) -> Iterator[TextSegment]:
        """Read the file, and count."""
        packed = self._packed(audit) if self._pairs else self._stretches(audit)
        for stretches in islice(packed, self._corpus.source.limit):
            passages, pieces = zip(*stretches, strict=True)
            segment = self._segmenter.write(pieces)
            audit["segments"] += 1
            audit["words"] += sum(part.words for part in pieces)
            audit["tokens"] += len(segment)
            audit["words_with_unknown"] += segment.unknown
            yield TextSegment(passages, segment)

    def _room(self, passages: int) -> int:
        """Pieces that a segment has room for, beside its delimiters."""
        return self._most - self._segmenter.delimiters(passages)

    def _pieces(self, audit: Counter[str]) -> Iterator[tuple[Stretch, ...]]:
        """Yield the texts as they are read, in pieces."""
        texts = self._corpus.texts(audit)
        while chunk := list(islice(texts, _AT_ONCE)):
            passages = [passage for text in chunk for passage in text]
            audit["passages"] += len(passages)
            try:
                pieces = iter(self._segmenter.split([passage.words for passage in passages]))
            except AlignmentError as error:
                raise AlignmentError(f"{self._corpus.path}: {error}") from error
            for text in chunk:
                yield tuple((passage, next(pieces)) for passage in text)

    def _stretches(self, audit: Counter[str]) -> Iterator[tuple[Stretch, ...]]:
        """Yield one stretch for each segment or half of it, or the two of a pair."""
        for text in self._pieces(audit):
            if len(text) == 2 and self._pairs:
                wrong = "a pair of texts is a segment of its own, and cannot be packed with another"
                raise CorpusError.at(self._corpus.path, text[0][0].line, wrong, "Give this corpus `packing: single`")
            room = self._room(2) // 2 if self._pairs else self._room(len(text))
            if len(text) == 2 or text[0][0].whole:
                too_long = sum(len(pieces) for _, pieces in text) > room
                too_short = sum(pieces.words for _, pieces in text) < _SHORTEST
                audit["too_long"] += too_long
                audit["too_short"] += too_short
                if not (too_long or too_short):
                    yield text
                continue
            for stretch in self._cut(*text[0], room, audit):
                audit["too_short"] += (too_short := stretch[1].words < _SHORTEST)
                if not too_short:
                    yield (stretch,)

    def _cut(self, passage: Passage, pieces: WordPieces, room: int, audit: Counter[str]) -> list[Stretch]:
        """Return the stretches of a passage that fit into the room."""
        pieces, cut = pieces.shortened(room)
        audit["words_cut"] += cut
        return _parted(passage, pieces, pieces.stretches(room))

    def _packed(self, audit: Counter[str]) -> Iterator[tuple[Stretch, ...]]:
        """Yield two stretches that follow one another for each segment."""
        stretches = (stretch for (stretch,) in self._stretches(audit))
        for first in stretches:
            if (second := next(stretches, None)) is not None:
                yield first, second
            elif not first[0].whole:
                middle = first[1].words // 2
                yield tuple(_parted(*first, [(0, middle), (middle, first[1].words)]))
            else:
                audit["unpaired"] += 1


def _parted(passage: Passage, pieces: WordPieces, places: Sequence[tuple[int, int]]) -> list[Stretch]:
    """Return the words between these places, each part a passage of its own where there are several."""
    if len(places) == 1:
        return [(passage, pieces)]
    return [
        (replace(passage, id=f"{passage.id}:{number}", words=passage.words[first:last]), pieces.between(first, last))
        for number, (first, last) in enumerate(places, start=1)
    ]


def segment_batch(
    segments: Sequence[TextSegment],
    index: Sequence[int],
    corpus: str,
    *,
    pad: int,
    encoder: EncoderOf = "given",
) -> SegmentBatch:
    """Return the batch of some segments with these numbers, padded to the longest; there may be none."""
    written = [one.segment for one in segments]
    lengths = np.array([len(segment) for segment in written], np.int64)
    padded = padder(np.append(0, lengths.cumsum()), range(len(written)))

    def side_by_side(field: str, dtype: type[np.generic], blank: int) -> Tensor:
        parts: list[NDArray[Any]] = [np.empty(0, dtype), *(getattr(segment, field) for segment in written)]
        return padded(np.concatenate(parts), blank) if written else torch.from_numpy(parts[0].reshape(0, 0))

    return SegmentBatch(
        index=torch.tensor(index, dtype=torch.int64),
        lengths=torch.from_numpy(lengths),
        tokens=side_by_side("ids", np.int64, pad),
        segments=side_by_side("segments", np.int64, 0),
        start=side_by_side("start", np.bool_, 0),
        end=side_by_side("end", np.bool_, 0),
        punctuation=side_by_side("punctuation", np.bool_, 0),
        words=side_by_side("words", np.int64, -1),
        passages=tuple(one.passages for one in segments),
        corpus=corpus,
        encoder=encoder,
    )


def _bounds(lengths: Sequence[int], max_cells: int) -> list[tuple[int, int]]:
    """Return start and stop of every batch among segments of ascending length."""
    return batch_bounds(np.square(np.array(lengths, np.int64)), max_cells, len(lengths))


class TextStream(IterableDataset[SegmentBatch]):
    """The batches of this rank, one corpus after the other, of segments of like length.

    Every rank reads all texts, and takes its share of the batches: these are the same on any number of ranks. A window
    of segments is held at a time. A rank without a batch gets one without a segment, because one that never ran its
    loop would miss the collective at the end.

    Args:
        corpora: the segments of each, by its name.
        audits: of each corpus; filled anew by every pass.
        max_cells: bound of batch · longest²; a segment that exceeds it alone makes a batch of its own.
        pad: id of the padding.
    """

    def __init__(
        self,
        corpora: Mapping[str, Segments],
        audits: dict[str, Counter[str]],
        *,
        max_cells: int,
        pad: int,
        encoder: EncoderOf,
        rank: int,
        world: int,
    ) -> None:
        super().__init__()
        self._corpora, self._audits = corpora, audits
        self._max_cells, self._pad, self._encoder = max_cells, pad, encoder
        self._rank, self._world = rank, world

    def __iter__(self) -> Iterator[SegmentBatch]:
        mine = 0
        for number, (name, batch) in enumerate(self._batches()):
            if number % self._world == self._rank:
                mine += 1
                index, segments = zip(*batch, strict=True)
                yield segment_batch(segments, index, name, pad=self._pad, encoder=self._encoder)
        if not mine:
            yield segment_batch((), (), next(iter(self._corpora)), pad=self._pad, encoder=self._encoder)

    def _batches(self) -> Iterator[tuple[str, list[tuple[int, TextSegment]]]]:
        """Yield the batches of all ranks: a corpus, and segments with their numbers."""
        before = 0
        for name, corpus in self._corpora.items():
            audit = self._audits[name] = Counter()
            numbered = enumerate(corpus.read(audit), start=before)
            while window := list(islice(numbered, _WINDOW)):
                before = window[-1][0] + 1
                window.sort(key=lambda each: len(each[1].segment))
                for start, stop in _bounds([len(each.segment) for _, each in window], self._max_cells):
                    yield name, window[start:stop]


class TextDataModule(CorpusDataModule[SegmentBatch]):
    """Text segments of one or more corpora, through one encoder, at the level of its tokens.

    Texts are streamed: no store is made, and memory does not grow with a corpus. They are for `test` alone.

    Args:
        corpora: what is read: `sample` for the embedded text, a name of the registry, a file, or a mapping; see
            `TextSource`. Several as a list.
        encoder: the encoder.
        root: folder of the public corpora; else `$PROBING_DATA`, else `./data`.
        cache: folder of the embedded text; else `$PROBING_CACHE`, else `./stores`.
        max_length: most pieces of a segment, delimiters included; the encoder's own limit where that is less.
        max_cells: bound of a batch, in padded cells: batch · longest²; None for `CELLS` of the device.
        before: what the encoder was before its fine-tuning: everything is read through it too, batch by batch.
        random_init: everything is read through the same encoder with all weights but the embeddings drawn anew too.
        rank_timeout: seconds without a sign of life after which another device is given up.

    Attributes:
        encoders: the given one, that `before`, and with `random_init` that of random weights; filled by `setup`.
        names: of the corpora, in their order; as in the batches.

    Raises:
        CorpusError: an option out of range, an unknown corpus; on `setup`, one that is absent or has no segment.
        EncoderError: on `setup`, the encoder cannot be had, or separates no two passages, or that `before` has other
            layers, heads or pieces.
    """

    unit = "segments"
    holds = "text segments"
    batch = SegmentBatch

    def __init__(
        self,
        corpora: Sources = "sample",
        encoder: EncoderSpec = _DEFAULT_ENCODER,
        root: str | None = None,
        cache: str | None = None,
        max_length: int = 128,
        max_cells: int | None = None,
        before: EncoderSpec | None = None,
        random_init: bool = False,
        rank_timeout: float = 120.0,
    ) -> None:
        self.sources = read_sources(corpora)
        super().__init__(
            ", ".join(source.corpus for source in self.sources), root, cache, None, 0, None, rank_timeout, "run"
        )
        self._corpora = tuple(_Corpus.from_source(source, root, self.cache) for source in self.sources)
        self.names = tuple(corpus.name for corpus in self._corpora)
        if len(set(self.names)) < max(len(self.names), 1):
            raise CorpusError(
                f"corpora: {', '.join(self.names) or 'none'}. Name one or more, and give those that are called alike a "
                f"`name` each."
            )
        check_numbers(self, least=1, max_length=max_length, max_cells=max_cells)
        self.encoder, self.max_length, self.random_init = encoder, max_length, random_init
        self.before = before
        self._most_cells = max_cells
        self.encoders: dict[EncoderOf, Encoder] = {}
        self._most = max_length  # of pieces of a segment; after `setup` within the encoders' limits
        self._segments: dict[str, Segments] = {}
        self._audits: dict[str, Counter[str]] = {}
        self._digests: dict[Path, str] = {}
        self._identities: dict[EncoderOf, Mapping[str, object]] = {}

    @property
    def max_cells(self) -> int:
        """Bound of a batch, in padded cells, once the encoder is set up."""
        return self._most_cells or CELLS.get(self.encoders["given"].device.type, CELLS["cuda"])

    @property
    def needed_encoders(self) -> tuple[EncoderSpec, ...]:
        """The encoder whose attention is read, and that before its fine-tuning."""
        return (self.encoder,) if self.before is None else (self.encoder, self.before)

    def files(self) -> Mapping[str, Path]:
        """Return the file of every corpus, by name; write embedded ones where they are not whole."""
        for corpus in self._corpora:
            if corpus.source.corpus == "sample":
                write_sample_text(corpus.path.parent)
        return {corpus.name: corpus.path for corpus in self._corpora}

    def splits_of(self, stage: str, files: Mapping[str, Path]) -> tuple[list[Split], list[Split]]:
        """Return no splits: a corpus of texts is read as a whole; a CorpusError if the stage is not `test`."""
        if stage != "test":
            raise CorpusError(
                f"{type(self).__name__}: its texts are for experiments without training. Run `python train.py test`."
            )
        return [], []

    def absent(self, stages: Iterable[str]) -> list[CorpusError]:
        """Return a fault for each file that is not there."""
        paths = dict.fromkeys(path for path in self.files().values() if not path.is_file())
        return [no_file(path) for path in paths]

    def setup(self, stage: str) -> None:
        """Load the encoders, and read the first segment of every corpus.

        Raises:
            CorpusError: a file is absent or malformed, or holds no segment of two words.
            EncoderError: an encoder cannot be had, separates no two passages, or is not what the given one was before.
        """
        self.splits_of(stage, {})
        if self.encoders:
            return
        entered = time.perf_counter()
        if absent := self.absent([stage]):
            raise absent[0]
        device = self.trainer.strategy.root_device if self.trainer is not None else torch.device("cpu")
        digests = Digests(self.cache)
        specs: dict[EncoderOf, EncoderSpec] = {"given": self.encoder}
        if self.before is not None:
            specs["before"] = self.before
        if self.random_init:
            specs["random_init"] = replace(self.encoder, weights="random")
        for which, spec in specs.items():
            source = resolve(spec)
            self.encoders[which] = Encoder(source, device)
            self._identities[which] = source.identity(digests)
        given = self.encoders["given"]
        most = self._most = min(self.max_length, *(encoder.max_length for encoder in self.encoders.values()))
        if "before" in self.encoders:
            _check_before(self.encoders["before"], given)
        segmenter = Segmenter(given)
        self._segments = {corpus.name: Segments(corpus, segmenter, most) for corpus in self._corpora}
        for corpus in self._corpora:
            audit: Counter[str] = Counter()
            if next(self._segments[corpus.name].read(audit), None) is None:
                raise CorpusError.at(corpus.path, None, "the file holds no segment of two words", _why(audit))
        self._digests = digests.of(dict.fromkeys(self.files().values()))
        rank_zero_info(
            f"Ready {time.perf_counter() - entered:.1f} s after entering setup: {', '.join(self.names)} in segments of "
            f"at most {most} tokens."
        )

    @property
    def provenance(self) -> Provenance:
        """Encoders, files, and counts of what was read, cut and left out."""
        described: dict[str, dict[str, object]] = {
            which: {**encoder.description, **self._identities[which]} for which, encoder in self.encoders.items()
        }
        given = described.pop("given")
        data = {
            corpus.name: {
                **corpus_of(corpus.path),
                "file": corpus.path.name,
                "sha256": self._digests[corpus.path],
                "segments": self._audits.get(corpus.name, Counter())["segments"],
            }
            for corpus in self._corpora
        }
        return Provenance({**given, **described}, data, {name: dict(audit) for name, audit in self._audits.items()})

    def _loader(self, split: Split, *, shuffle: bool = False) -> BatchLoader[SegmentBatch]:
        raise CorpusError(f"{type(self).__name__} has no split {split}. Run `python train.py test`.")

    def warn_of_left_out(self) -> None:
        """Warn where much of what a pass has read did not fit, or is no tree; every process may call it."""
        for name, audit in self._audits.items():
            warn_of_roots(name, audit)
            left_out, read = audit["too_long"], audit["too_long"] + audit["segments"]
            if left_out > LEFT_OUT * read:
                rank_zero_only(log.warning)(
                    f"{name}: {left_out} of {read} sentences or pairs of texts have more pieces than fit, and were "
                    f"left out: the results are of the shorter ones. Raise --data.init_args.max_length "
                    f"({self.max_length}), or choose an encoder that takes longer inputs."
                )

    def only(self, names: Collection[str]) -> "TextDataModule":
        """Return the same data with these corpora alone."""
        chosen = copy(self)
        both = zip(self.sources, self._corpora, strict=True)
        kept = [(source, corpus) for source, corpus in both if corpus.name in names]
        chosen.sources, chosen._corpora = tuple(source for source, _ in kept), tuple(corpus for _, corpus in kept)
        chosen.names = tuple(corpus.name for corpus in chosen._corpora)
        return chosen

    def passages(self) -> Iterator[Text]:
        """Yield all texts of the corpora, before any is cut or left out."""
        for corpus in self._corpora:
            yield from corpus.texts(Counter())

    def has_split(self, split: CorpusSplit) -> bool:
        """Return whether every corpus has such a split: it is of the registry, or a path with `{split}` in it."""
        return all(
            split in CORPORA[source.corpus].splits if source.corpus in CORPORA else "{split}" in source.corpus
            for source in self.sources
        )

    def drawn(self, split: CorpusSplit | None, most: int, seed: int) -> Iterator[SegmentBatch]:
        """Draw at most `most` segments of another split of each corpus, the same on every rank, to fit something to.

        Without a split they are of what a test reads.

        Raises:
            CorpusError: a corpus is a file of its own, or has no such split.
        """
        for source in self.sources:
            if split is not None and source.corpus not in CORPORA and "{split}" not in source.corpus:
                raise CorpusError(
                    f"{source.corpus}: a file has no {split} split. Give {OPTION} a path with {{split}} in it, or a "
                    f"corpus of the registry ({', '.join(CORPORA)})."
                )
        given = self.encoders["given"]
        segmenter, longest = Segmenter(given), self._most
        for source in self.sources:
            read = source if split is None else replace(source, split=split, limit=None)
            corpus = _Corpus.from_source(read, self.root, self.cache)
            random, kept = np.random.default_rng(seed), list[TextSegment]()
            # Vitter's algorithm R: each segment is kept with one probability, and nothing but these is held.
            for number, segment in enumerate(Segments(corpus, segmenter, longest).read(Counter())):
                if number < most:
                    kept.append(segment)
                elif (place := int(random.integers(number + 1))) < most:
                    kept[place] = segment
            kept.sort(key=lambda one: len(one.segment))
            for start, stop in _bounds([len(one.segment) for one in kept], self.max_cells):
                yield segment_batch(kept[start:stop], range(start, stop), corpus.name, pad=given.pad_id)

    def test_dataloader(self) -> list[DataLoader[SegmentBatch]]:  # type: ignore[override]
        """Return all texts, each once, through the given encoder; then through the random one, if asked for.

        Who reads what was `before` shows it the batches of the given one.
        """
        return [
            DataLoader(
                TextStream(
                    self._segments,
                    self._audits,
                    max_cells=self.max_cells,
                    pad=encoder.pad_id,
                    encoder=which,
                    rank=self.ranks.rank,
                    world=self.ranks.world,
                ),
                batch_size=None,
                pin_memory=torch.cuda.is_available(),
            )
            for which, encoder in self.encoders.items()
            if which != "before"
        ]


def _check_before(before: Encoder, given: Encoder) -> None:
    """Refuse an encoder whose heads or pieces are not those that the given one can have come from."""
    names = before.source.spec.name, given.source.spec.name
    shapes = [(one.layers, one.heads) for one in (before, given)]
    vocabularies = [one.tokenizer.get_vocab() for one in (before, given)]
    if shapes[0] == shapes[1] and vocabularies[0] == vocabularies[1]:
        return
    fault = (
        f"{names[0]} has {shapes[0][0]} layers of {shapes[0][1]} heads, and {names[1]} has {shapes[1][0]} of "
        f"{shapes[1][1]}"
        if shapes[0] != shapes[1]
        else f"the tokenizers of {names[0]} and {names[1]} have different pieces"
    )
    raise EncoderError(
        f"{fault}: the second was not made of the first by fine-tuning. Name in --data.init_args.before.name the "
        f"encoder that it was made of."
    )


def _why(audit: Counter[str]) -> str:
    read = ", ".join(f"{name} {count}" for name, count in sorted(audit.items()) if count)
    return f"Check that it is the file you meant, and the option max_length ({read or 'nothing was read'})"
