"""Datamodule of texts of any kind as segments for an encoder; texts are streamed, and none is stored."""

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
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset

from attention_probing.attention import AlignmentError, Encoder, EncoderError, EncoderSpec, resolve
from attention_probing.attention.alignment import WORDS_APART
from attention_probing.attention.inputs import Segment, Segmenter, WordPieces
from attention_probing.attention.quantities import QuantityName
from attention_probing.corpora import registry, texts
from attention_probing.corpora.conllu import warn_of_roots
from attention_probing.corpora.files import no_file
from attention_probing.corpora.framenet import HALVES, framenet_files, read_framenet
from attention_probing.corpora.labelled import Columns
from attention_probing.corpora.lines import format_of
from attention_probing.corpora.records import warn_of_records
from attention_probing.corpora.registry import CORPORA, data_root
from attention_probing.corpora.sample import SAMPLE_VERSION, write_sample_text
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.splits import Split, corpus_of
from attention_probing.corpora.texts import OPTION, Passage, Text
from attention_probing.datamodules.batches import EncoderOf, SegmentBatch, batch_bounds
from attention_probing.datamodules.corpus import DEFAULT_ENCODER, CorpusDataModule
from attention_probing.datamodules.warnings import warn_of_unknown
from attention_probing.results import Provenance
from attention_probing.results.digests import Digests, digest
from attention_probing.results.errors import check_numbers, check_values, from_options, near, setting
from attention_probing.results.progress import inform, warn

TextFormat = Literal["text", "tsv", "csv", "jsonl", "conllu", "conllx", "links", "enhanced", "framenet"]

_SUFFIXES: dict[str, TextFormat] = {
    **{".txt": "text", ".raw": "text", ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl"},
    **{".conllu": "conllu", ".conll": "conllx", ".conllx": "conllx"},
}
_AT_ONCE = 64  # texts in one call of the tokenizer
_WINDOW = 1024  # segments that are sorted by length
CELLS = {"cpu": 2**16, "cuda": 2**20}
"""Bound of a batch by kind of device: small enough for a core's cache, large enough to keep a GPU busy."""
_SHORTEST = 2  # words of a segment
LEFT_OUT = 0.05
"""Warn if a larger share of the sentences or pairs of texts was left out for their length."""


@dataclass(frozen=True)
class TextSource:
    """One corpus of texts, and the options to read it.

    Args:
        corpus: One of three: `sample`, a text that this package generates; a name of
            `probing fetch --list`; or a file. A file is plain text with one paragraph per
            line (`.txt`, `.raw`), labelled texts or pairs of texts (`.tsv`, `.csv`, `.jsonl`), a
            treebank (`.conllu`, `.conllx`, `.conll`), or sentences with labelled links between words.
            With `format: conllu`, `sample` is the test split of the generated treebank.
        name: Name in tables; None for the name in the registry, or the stem of the file.
        split: Split of a corpus of the registry, or of a path with `{split}` in it; None for test. If a
            corpus of the registry has no test split, None stands for dev, or else for the whole corpus. Of
            FrameNet, `dev` and `test` are two halves of the sentences, and None is all.
        format: Format of the file; None for the format that the suffix implies. A file of word links
            needs a format: `links` for a TSV file, `enhanced` for column DEPS of a CoNLL-U file,
            `framenet` for `frameIndex.xml` in the folder of a release of FrameNet; see `corpora.texts` and
            `corpora.framenet`.
        columns: Columns of labelled texts, by name or, in a file without a header, by number; None for the
            columns in the registry, else `text` alone. Labels are read if their column is named:
            `{text: text, label: label}`.
        packing: `single` makes each passage a segment; `pairs` packs two consecutive passages into one
            segment, as in BERT's pre-training.
        limit: Largest number of segments; None for all. Those of FrameNet are drawn from all frames; of other
            corpora they are the first of the file.
    """

    corpus: str = "sample"
    name: str | None = None
    split: Literal["train", "dev", "test", "all"] | None = None
    format: TextFormat | None = None
    columns: Columns | None = None
    packing: Literal["single", "pairs"] = "single"
    limit: int | None = None

    def __post_init__(self) -> None:
        check_values(self, **vars(self))
        check_numbers(self, least=1, limit=self.limit)


Sources = str | dict[str, Any] | list[Any]
"""Corpora on the command line or in a config: a corpus, the options of a `TextSource`, or a list of these."""


def read_sources(given: Sources | TextSource) -> tuple[TextSource, ...]:
    """Return a `TextSource` for each corpus in the option `corpora` of `TextDataModule`.

    The option is parsed here and not by jsonargparse, which would take a single file name for a config,
    and would merge a list on the command line into the list in the config.

    Args:
        given: Value of the option: a corpus or a list of them. A corpus is a name, a file, or the
            options of a `TextSource`.

    Raises:
        UserError: An option is unknown, or has a value that is not allowed.
    """
    return tuple(map(_source, given if isinstance(given, list) else [given]))


def _source(given: object) -> TextSource:
    """Return a `TextSource`; make it from the name of a corpus or from options if needed."""
    if isinstance(given, TextSource):
        return given
    options = {"corpus": given} if isinstance(given, str) else given
    if not isinstance(options, Mapping) or "corpus" not in options:
        raise CorpusError(
            f"{setting(OPTION)}: {given!r} contains no `corpus`. Give a name, a file, or a mapping such as "
            f"{{corpus: my.txt, "
            "packing: pairs}."
        )
    if (columns := options.get("columns")) is not None:
        options = {**options, "columns": from_options(Columns, columns, f"{OPTION}.columns", label=None)}
    return from_options(TextSource, options, OPTION)


class _Corpus:
    """A source with its name, its file, and the options that the registry knows filled in."""

    def __init__(self, source: TextSource, root: str | Path | None, cache: Path) -> None:
        self.given = self.source = source
        self.known = CORPORA.get(source.corpus)
        if self.known is not None:
            self.path = data_root(root) / self._file(self.known)
            columns = replace(Columns(label=None), **self.known.columns) if self.known.columns else Columns()
            self.source = replace(source, columns=source.columns or columns)
        elif source.split is not None and not _can_split(source, source.split):
            if source.format == "framenet":
                raise CorpusError(
                    f"{setting(OPTION)}: FrameNet has the splits {', '.join(HALVES)} and all, not {source.split}."
                )
            raise CorpusError(
                f"{source.corpus}: this is neither a corpus of the registry{near(source.corpus, CORPORA)} nor a path "
                f"with `{{split}}` in it, so it has no splits. Correct the name, or leave "
                f"{setting(OPTION + '.split')} out."
            )
        elif source.corpus == "sample":
            file = "sample-test.conllu" if source.format == "conllu" else "sample.txt"
            self.path = cache / f"sample-{SAMPLE_VERSION}" / file
        else:
            self.path = Path(source.corpus.replace("{split}", source.split or "test")).expanduser()
            if not self.path.suffix and not self.path.exists():
                registry.find(source.corpus)  # raises the error of a name that there is not
        own = source.corpus if self.known is not None or source.corpus == "sample" else self.path.stem
        self.name = source.name or own

    def _file(self, known: registry.Corpus) -> str:
        """Return the path of the wanted split below the data root."""
        preferred: tuple[registry.SplitOrAll, ...] = ("test", "dev", "all")
        if self.source.split:
            preferred = (self.source.split,)
        for split in preferred:
            if split in known.splits:
                return known.splits[split].path
        raise CorpusError(
            f"{known.name}: the corpus has no split {' or '.join(preferred)}; its splits are "
            f"{', '.join(known.splits)}. Name one of them with {setting(OPTION + '.split')}."
        )

    def texts(self, audit: Counter[str]) -> Iterator[Text]:
        """Yield the texts of the file; count the texts left out."""
        option = setting(OPTION, f"{{corpus: {self.source.corpus}, format: …}}")
        form: TextFormat = self.source.format or format_of(self.path, _SUFFIXES, option)
        match form:
            case "text":
                return texts.read_plain(self.path, audit)
            case "conllu" | "conllx":
                return texts.read_sentences(self.path, audit, form)
            case "links":
                return texts.read_links(self.path, audit)
            case "enhanced":
                return texts.read_enhanced(self.path, audit)
            case "framenet":
                half = next((half for half in HALVES if half == self.source.split), None)
                return read_framenet(self.path, audit, half)
        columns = self.source.columns or Columns(label=None)
        skips = self.known is not None and "malformed" in self.known.skip
        return texts.read_texts(self.path, audit, columns=columns, format=form, skip_malformed=skips)

    def sha256(self, digests: Digests) -> str:
        """Return the SHA-256 of the file; of FrameNet, that of the names and checksums of all files that are read."""
        if self.source.format != "framenet":
            return digests.one(self.path)
        found = digests.of(framenet_files(self.path))
        return digest("".join(f"{path.name} {sha256}\n" for path, sha256 in found.items()).encode())


def _can_split(source: TextSource, split: registry.SplitOrAll) -> bool:
    """Return True if the source has this split, by the registry, by `{split}` in its path, or as a half of FrameNet."""
    if source.corpus in CORPORA:
        return split in CORPORA[source.corpus].splits
    if source.format == "framenet":
        return split in (*HALVES, "all")
    return "{split}" in source.corpus


Stretch = tuple[Passage, WordPieces]
"""Consecutive words of one passage, and their pieces."""


@dataclass(frozen=True)
class TextSegment:
    """Segment of text, which is one input of an encoder, with its passages.

    Attributes:
        passages: The one or two passages as words.
        segment: Tokens of the passages, with delimiters.
    """

    passages: Text
    segment: Segment


class Segments:
    """Segments of one corpus, in the order of its file; a segment is one input of the encoder.

    With `packing: single`, each passage or pair of texts is a segment. A passage over the length limit
    is cut at word boundaries into consecutive stretches, and each stretch is a segment. With
    `packing: pairs`, passages are cut into stretches of at most half the limit, and two consecutive
    stretches make a segment. If the number of stretches is odd, the last one is cut in two.

    Two kinds of text are never cut, but left out if they are over the limit: pairs of texts, and
    sentences with a known tree or links.

    `read` counts:

    - `passages` of the corpus, and `segments` made of them.
    - `words` and `tokens` of the segments, and `words_with_unknown`: words whose pieces include the
      unknown token.
    - `words_cut_apart`: words of the passages whose pieces differ from those in running text.
    - `too_long`: texts left out because they are over the limit and must not be cut.
    - `too_short`: stretches left out because they have fewer than two words.
    - `words_cut`: words that alone exceed the limit.
    - `unpaired`: with `packing: pairs`, a last sentence left out because no partner is left for it and
      it must not be cut.
    - The counts of the corpus reader.

    Args:
        corpus: The corpus.
        segmenter: Tokenizer that makes segments.
        max_length: Largest number of pieces of a segment, delimiters included.
    """

    def __init__(self, corpus: _Corpus, segmenter: Segmenter, max_length: int) -> None:
        self._corpus, self._segmenter = corpus, segmenter
        self._max_length = max_length
        self._pairs = corpus.source.packing == "pairs"
        passages = 2 if self._pairs else 1
        if (lacking := 2 * passages - self._room(passages)) > 0:
            raise CorpusError(
                f"{setting('data.max_length')} is {max_length}, too few tokens for two words of each text and the "
                f"delimiters. Give {max_length + lacking} or more."
            )

    def read(self, audit: Counter[str]) -> Iterator[TextSegment]:
        """Yield the segments of the corpus in the order of its file.

        Args:
            audit: Receives the counts that are listed at the class.
        """
        packed = self._packed(audit) if self._pairs else self._stretches(audit)
        for stretches in islice(packed, self._corpus.source.limit):
            passages, pieces = zip(*stretches, strict=True)
            segment = self._segmenter.write(pieces)
            words = sum(part.words for part in pieces)
            audit.update(segments=1, words=words, tokens=len(segment), words_with_unknown=segment.unknown)
            yield TextSegment(passages, segment)

    def _room(self, passages: int) -> int:
        """Return the pieces that fit into a segment beside its delimiters."""
        return self._max_length - self._segmenter.delimiters(passages)

    def _pieces(self, audit: Counter[str]) -> Iterator[tuple[Stretch, ...]]:
        """Yield the texts in order, each as its passages with their pieces."""
        stream = self._corpus.texts(audit)
        while chunk := list(islice(stream, _AT_ONCE)):
            passages = [passage for text in chunk for passage in text]
            audit["passages"] += len(passages)
            try:
                cut = self._segmenter.split([passage.words for passage in passages])
            except AlignmentError as error:
                raise AlignmentError(f"{self._corpus.path}: {error}") from error
            audit[WORDS_APART] += sum(pieces.apart for pieces in cut)
            stretches = zip(passages, cut, strict=True)
            for text in chunk:
                yield tuple(islice(stretches, len(text)))

    def _stretches(self, audit: Counter[str]) -> Iterator[tuple[Stretch, ...]]:
        """Yield one stretch for each segment or half segment, or the two stretches of a pair of texts."""
        for text in self._pieces(audit):
            if len(text) == 2 and self._pairs:
                wrong = "this text is a pair of texts, which `packing: pairs` cannot pack together with other texts"
                remedy = f"Set `packing: single` for this corpus in {setting(OPTION)}"
                raise CorpusError.at(self._corpus.path, text[0][0].line, wrong, remedy)
            room = self._room(2) // 2 if self._pairs else self._room(len(text))
            if len(text) == 2 or text[0][0].whole:
                too_long = sum(len(pieces) for _, pieces in text) > room
                audit["too_long"] += too_long
                stretches = [] if too_long else [text]
            else:
                passage, (pieces, cut) = text[0][0], text[0][1].shortened(room)
                audit["words_cut"] += cut
                stretches = [(stretch,) for stretch in _parted(passage, pieces, pieces.stretches(room))]
            for stretch in stretches:
                audit["too_short"] += (too_short := sum(pieces.words for _, pieces in stretch) < _SHORTEST)
                if not too_short:
                    yield stretch

    def _packed(self, audit: Counter[str]) -> Iterator[tuple[Stretch, ...]]:
        """Yield two consecutive stretches for each segment."""
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
    """Return the words between these places; each part of several is a passage with an id of its own."""
    if len(places) == 1:
        return [(passage, pieces)]
    return [
        (replace(passage, id=f"{passage.id}:{number}", words=passage.words[first:last]), pieces.between(first, last))
        for number, (first, last) in enumerate(places, start=1)
    ]


def segment_batch(
    segments: Sequence[TextSegment], index: Sequence[int], corpus: str, *, pad: int, encoder: EncoderOf = "given"
) -> SegmentBatch:
    """Return a batch of segments, padded to the longest; without segments, an empty batch.

    Args:
        segments: Segments of the batch.
        index: Index of each segment among all segments of the run.
        corpus: Name of their corpus.
        pad: Id of the padding token.
        encoder: Role of the encoder whose attention is to be read: `given`, `before` fine-tuning, or `random_init`.
    """

    def padded(field: str, blank: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        columns = [torch.from_numpy(getattr(one.segment, field)) for one in segments]
        return pad_sequence(columns, True, blank) if columns else torch.zeros(0, 0, dtype=dtype)

    return SegmentBatch(
        index=torch.tensor(index, dtype=torch.int64),
        lengths=torch.tensor([len(one.segment) for one in segments], dtype=torch.int64),
        tokens=padded("ids", pad),
        segments=padded("segments"),
        start=padded("start", dtype=torch.bool),
        end=padded("end", dtype=torch.bool),
        punctuation=padded("punctuation", dtype=torch.bool),
        words=padded("words", -1),
        passages=tuple(one.passages for one in segments),
        corpus=corpus,
        encoder=encoder,
    )


def _bounds(lengths: Sequence[int], max_cells: int) -> list[tuple[int, int]]:
    """Return start and stop of every batch of segments in ascending order of length."""
    return batch_bounds(np.square(np.array(lengths, np.int64)), max_cells, len(lengths))


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
                for start, stop in _bounds([len(each.segment) for _, each in window], self._data.max_cells):
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
        self._corpora = tuple(_Corpus(source, root, self.cache) for source in read_sources(corpora))
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

    def segments(self, *corpora: _Corpus) -> dict[str, Segments]:
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
        return all(_can_split(source, split) for source in self.sources)

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
            corpus = _Corpus(read, self.root, self.cache)
            random, kept = np.random.default_rng(seed), list[TextSegment]()
            # Vitter's algorithm R keeps each segment with the same probability, and holds no other.
            for number, segment in enumerate(self.segments(corpus)[corpus.name].read(Counter())):
                if number < most:
                    kept.append(segment)
                elif (place := int(random.integers(number + 1))) < most:
                    kept[place] = segment
            kept.sort(key=lambda one: len(one.segment))
            for start, stop in _bounds([len(one.segment) for one in kept], self.max_cells):
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
