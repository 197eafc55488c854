"""Documents with coreference through an encoder, as batches of one window with the attention between its mentions."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import Dataset

from attention import Encoder
from attention.alignment import AlignedPieces, AlignmentError, join_sentences, split_words
from attention.encoder import EncoderSource, EncoderSpec
from attention.specification import UNKNOWN_WORDS, Candidates, Extraction, Items, Options, TooLong
from attention.store import Store
from corpora.conll2012 import DOCUMENTS_VERSION, read_documents
from corpora.conllu import READER_VERSION
from corpora.document import (
    MENTION_TYPES,
    WINDOWS_VERSION,
    Document,
    Documents,
    Window,
    anaphoric,
    cut,
    windows_from_table,
    windows_to_table,
)
from corpora.registry import CORPORA, locate
from corpora.sample import SAMPLE_VERSION, write_sample_documents
from corpora.sentence import CorpusError, Treebank
from datamodules.batches import AntecedentBatch, BatchLoader, BatchPer, EncoderOf, Split, check_batch
from datamodules.corpus import SPLITS, AttentionDataModule
from datamodules.vectors import VectorSpec, WordVectors
from results import Provenance
from results.errors import UserError, check_numbers, check_values

_DEFAULT_ENCODER = EncoderSpec()
_DEFAULT_OPTIONS = Options()

_COUNTED = (
    *("windows", "windows_without_mentions", "links", "lost_links"),
    *("skipped_too_long", "skipped_mentions", "skipped_links", "words_without_piece", UNKNOWN_WORDS),
)
_SHOWN = 60  # characters of a mention in a message


def cut_documents(extraction: Extraction, documents: Documents, encoder: Encoder | None) -> Items:
    """Cut every document into windows of whole sentences, as many to a window as the encoder reads at once.

    Windows neither overlap nor go on from one document to the next; those without a mention are left out. Without an
    encoder every document is one window. The audit counts, beside what the reader counted,

    - `windows` and `windows_without_mentions`: what is kept, and what is left out,
    - `links`: mentions whose cluster has an earlier mention in the document,
    - `lost_links`: those in the windows whose earlier mentions all lie outside the window,
    - `skipped_too_long`, `skipped_mentions`, `skipped_links`: sentences left out, and what was in them,
    - `words_without_piece`: words in the windows that are kept that the tokenizer cuts into no piece,
    - `words_with_unknown_token`: words in them among whose pieces is the unknown token, those included.

    Raises:
        AlignmentError: a sentence over the limit, unless it is to be skipped.
        UserError: a layer or head that the encoder does not have, or no window left.
    """
    layers, heads, _ = extraction.chosen(encoder)
    found = Counter(dict.fromkeys(_COUNTED, 0))
    windows: list[Window] = []
    inputs: list[tuple[AlignedPieces, ...]] = []
    for number, document in enumerate(documents.documents):
        found["links"] += sum(anaphoric(document.mentions))
        pieces = split_words(encoder.tokenizer, document.sentences) if encoder is not None else None
        limit = encoder.max_length if encoder is not None else 0
        for start, stop in _bounds(document, pieces, limit, extraction.options.too_long, found):
            window = cut(number, document, start, stop)
            if not window.text.mentions:
                found["windows_without_mentions"] += 1
                continue
            found["windows"] += 1
            found["lost_links"] += window.lost
            windows.append(window)
            if pieces is not None:
                whole = join_sentences(pieces[start:stop])
                inputs.append((whole,))
                found["words_without_piece"] += whole.unknown
                found[UNKNOWN_WORDS] += whole.with_unknown
    if not windows:
        raise UserError(_nothing(documents, found, encoder))
    head_words = tuple(window.head_words for window in windows)
    audit = {**documents.audit, **found}
    return Items(extraction, "windows", windows_to_table(windows), audit, tuple(inputs), head_words, layers, heads)


def _bounds(
    document: Document, pieces: Sequence[AlignedPieces] | None, limit: int, too_long: TooLong, found: Counter[str]
) -> Iterator[tuple[int, int]]:
    """Yield the first sentence of each window and the one behind its last; without pieces there is one window."""
    if pieces is None:
        yield 0, len(document.sentences)
        return
    start = length = 0
    for place, whole in enumerate(pieces):
        if len(whole) > limit:
            if too_long != "skip":
                raise AlignmentError(_too_long(document, place, whole, limit, too_long))
            found["skipped_too_long"] += 1
            for mention, links in zip(document.mentions, anaphoric(document.mentions), strict=True):
                found["skipped_mentions"] += mention.sentence == place
                found["skipped_links"] += mention.sentence == place and links
            if start < place:
                yield start, place
            start, length = place + 1, 0  # a window has no gaps
            continue
        inside = int(whole.inside.sum())
        length = length + inside if start < place else len(whole)
        if length > limit:
            yield start, place
            start, length = place, len(whole)
    if start < len(pieces):
        yield start, len(pieces)


def _too_long(document: Document, place: int, whole: AlignedPieces, limit: int, too_long: TooLong) -> str:
    words = document.sentences[place]
    spans = [(m.end - m.start, words[m.start : m.end]) for m in document.mentions if m.sentence == place]
    mentions = "it has no mention"
    if spans:
        length, span = max(spans, key=lambda pair: pair[0])
        mentions = f"its longest mention has {length} words ({shorten(' '.join(span), _SHOWN, placeholder=' …')!r})"
    remedy = (
        "--data.init_args.options.too_long skip leaves such sentences out, and counts them, their mentions and links"
    )
    if too_long == "window":
        remedy = f"Coreference does not cut sentences, so `window` cannot help; {remedy}"
    return (
        f"document {document.id}, sentence {place + 1}: {len(words)} words, {len(whole)} pieces, over the limit of "
        f"{limit}; {mentions}. {remedy}."
    )


def _nothing(documents: Documents, found: Counter[str], encoder: Encoder | None) -> str:
    counts = f"{found['windows_without_mentions']} windows of {len(documents)} documents"
    if encoder is None or not found["skipped_too_long"]:
        return f"No mention in {counts}. Is coreference annotated in this corpus?"
    return (
        f"No mention in {counts}; {found['skipped_too_long']} sentences over {encoder.max_length} pieces, with "
        f"{found['skipped_mentions']} mentions, were skipped. Choose an encoder that takes longer inputs."
    )


class CoreferenceSplit(Dataset[AntecedentBatch]):
    """Some documents of a store, all or those of these numbers, indexed by batches of one window.

    Attributes:
        windows: those of the split, in the order of the corpus.
        documents: ids of its documents, in the order of the corpus.
    """

    def __init__(
        self,
        split: Split,
        store: Store,
        windows: Sequence[Window],
        documents: frozenset[int] | None,
        candidates: Candidates,
        encoder: EncoderOf = "given",
        vectors: WordVectors | None = None,
    ) -> None:
        self.split, self.store, self.encoder = split, store, encoder
        self._candidates = candidates
        self._items = [item for item, window in enumerate(windows) if documents is None or window.number in documents]
        self.windows = [windows[item] for item in self._items]
        names = {window.number: window.text.id for window in self.windows}
        self.documents = tuple(names.values())
        self._places = {number: place for place, number in enumerate(names)}
        self._vectors = vectors
        if vectors is not None:
            self._rows = []
            for window in self.windows:
                words = window.words
                self._rows.append(vectors.rows([words[place] for place in window.head_words]))

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, indices: list[int]) -> AntecedentBatch:
        """Return the batch of this one window, or of none."""
        check_batch(indices)
        windows = [self.windows[index] for index in indices]
        assert len(windows) <= 1
        heads = [head for window in windows for head in window.mention_heads]
        mentions = [mention for window in windows for mention in window.text.mentions]
        manifest, between = self.store.manifest, len(set(heads))
        vectors = torch.zeros(between, 0 if self._vectors is None else self._vectors.size)
        if windows and self._vectors is not None:
            vectors = torch.from_numpy(self._vectors.matrix[self._rows[indices[0]]])
        if windows and manifest.shards:
            weights = self.store.read("antecedent", self._items[indices[0]])
        else:
            size, words = (len(manifest.layers), len(manifest.heads)), sum(map(len, windows))
            shape = (2, *size, between, words) if self._candidates == "words" else (*size, between, between)
            weights = torch.zeros(shape)
        return AntecedentBatch(
            index=torch.tensor(indices, dtype=torch.int64),
            document=torch.tensor([self._places[window.number] for window in windows], dtype=torch.int64),
            head_words=torch.tensor(heads, dtype=torch.int64),
            clusters=torch.tensor([mention.cluster for mention in mentions], dtype=torch.int64),
            types=torch.tensor([MENTION_TYPES.index(mention.type) for mention in mentions], dtype=torch.int64),
            weights=weights,
            vectors=vectors,
            window=windows[0] if windows else None,
            split=self.split,
            encoder=self.encoder,
        )

    @property
    def counts(self) -> dict[str, int]:
        """Documents, windows, mentions, the links among these, and how many of them the cut into windows lost."""
        lost = sum(window.lost for window in self.windows)
        return {
            "documents": len(self.documents),
            "windows": len(self.windows),
            "mentions": sum(len(window.text.mentions) for window in self.windows),
            "links": sum(sum(anaphoric(window.text.mentions)) for window in self.windows) + lost,
            "lost_links": lost,
        }


def parted(genres: Mapping[int, str], shares: Sequence[float], seed: int) -> tuple[frozenset[int], ...]:
    """Part numbered documents, given by genre, so that every part has its share of every genre, nearly.

    Genre by genre, in the order of their names, every document goes to the part that is furthest behind its share of
    all documents so far, the first of equals: of two halves, the first gets the odd document of the first genre with
    an odd number, the second that of the second, and so on. The shares add up to 1; which documents go where is drawn.
    """
    random = np.random.default_rng(seed)
    parts: list[set[int]] = [set() for _ in shares]
    sizes = [0] * len(shares)
    for genre in sorted(set(genres.values())):
        numbers = random.permutation(sorted(number for number, other in genres.items() if other == genre))
        for _ in numbers:
            # Rounded, because thirds that add up to the same number must count as equals.
            behind = [round(share * (sum(sizes) + 1) - size, 9) for share, size in zip(shares, sizes, strict=True)]
            sizes[behind.index(max(behind))] += 1
        start = 0
        for part, size in zip(parts, sizes, strict=True):
            stop = start + size - len(part)
            part.update(numbers[start:stop].tolist())
            start = stop
    return tuple(frozenset(part) for part in parts)


class CoreferenceDataModule(AttentionDataModule[AntecedentBatch]):
    """Attention between the mentions of documents.

    Args:
        corpus: `sample` for the embedded documents, a name of `python -m corpora.registry --list`, a path with
            `{split}` in the place of train, dev and test, a mapping from these three to paths, or one path. The
            documents of a corpus in one file are parted, within each genre.
        root: folder of the public corpora; else `$PROBING_DATA`, else `./data`.
        parses: a treebank of the same sentences, which gives the heads of the mentions, a path that may have
            `{split}` in it; else the `.conllu` of the same name beside the corpus, if there is one.
        candidates: whether a mention's antecedent is sought among the head words of the other `mentions`, or among
            all `words` of the window.
        encoder: the encoder; None for what needs no attention: each document is one window then.
        options: what is taken from it, and what happens to sentences over its limit.
        vectors: word vectors; None for none.
        cache: folder of the stores; else `$PROBING_CACHE`, else `./stores`.
        workers: processes that read batches ahead; 0 reads in the training process.
        parts: shares of the documents of a corpus in one file: of dev and test, or of train, dev and test.
        split_seed: of the parting.
        random_init: whether a test reads the attention of the same encoder with random weights too.
        seed: of the order of the training windows; None for that of the run.
        rank_timeout: seconds without a sign of life after which another device is given up.
        batch_per: a training batch, which is one window, per `run`, so that a step is the same on any number of
            devices, and takes as long; or per `device`, so that a step is of one window for each device.

    Raises:
        CorpusError: shares that cannot be; a corpus that is absent or malformed, on `setup`.
        UserError: word vectors that are absent, malformed, or know too few of the words, on `setup`.
    """

    unit = "windows"
    holds = "mentions"
    batch = AntecedentBatch
    suffix = "conll"
    sample = (f"sample-{SAMPLE_VERSION}", write_sample_documents)

    def __init__(
        self,
        corpus: str | dict[str, str] = "ontogum",
        root: str | None = None,
        parses: str | None = None,
        candidates: Candidates = "mentions",
        encoder: EncoderSpec | None = _DEFAULT_ENCODER,
        options: Options = _DEFAULT_OPTIONS,
        vectors: VectorSpec | None = None,
        cache: str | None = None,
        workers: int = 0,
        parts: tuple[float, ...] = (0.5, 0.5),
        split_seed: int = 0,
        random_init: bool = False,
        seed: int | None = None,
        rank_timeout: float = 120.0,
        batch_per: BatchPer = "run",
    ) -> None:
        super().__init__(encoder, options, corpus, root, cache, vectors, workers, seed, rank_timeout, batch_per)
        check_values(self, candidates=candidates)
        if len(parts) not in (2, 3) or min(parts) <= 0 or abs(sum(parts) - 1) > 1e-6:
            raise CorpusError(
                f"parts: {list(parts)} are no shares of dev and test, or of train, dev and test, that add up to 1: "
                f"--data.init_args.parts [0.5,0.25,0.25]."
            )
        check_numbers(self, least=0, split_seed=split_seed)
        self.parses, self.candidates = parses, candidates
        self.parts, self.split_seed = parts, split_seed
        self.random_init = random_init
        self.splits: dict[Split, CoreferenceSplit] = {}
        self.random_splits: dict[Split, CoreferenceSplit] = {}

    def files(self) -> Mapping[str, Path]:
        """Return the corpus file of every split there is; splits that are parts of one file share it."""
        single = self._single()
        return super().files() if single is None else dict.fromkeys(SPLITS[-len(self.parts) :], single)

    def _single(self) -> Path | None:
        """Return the file of a corpus that comes as one piece."""
        if not isinstance(self.corpus, str) or "{split}" in self.corpus:
            return None
        if self.corpus in CORPORA:
            return locate(self.corpus, self.root).get("all")
        path = Path(self.corpus).expanduser()
        return path if path.is_file() else None

    def _parses(self, path: Path) -> Path | None:
        """Return the treebank that gives the heads of the mentions."""
        if self.parses is None:
            beside = path.with_suffix(".conllu")  # where the reader looks as well
            return beside if beside != path and beside.is_file() else None
        split = next(split for split, file in self.files().items() if file == path)
        return Path(self.parses.replace("{split}", split)).expanduser()

    def extraction(self, path: Path, source: EncoderSource | None) -> Extraction:
        """Attention between the mentions of each window."""
        versions = {"version": DOCUMENTS_VERSION, "windows": WINDOWS_VERSION, "parses": READER_VERSION}
        reader = {"name": "documents", **versions}
        return Extraction(path, reader, source, self.options, candidates=self.candidates, companion=self._parses(path))

    def read(self, path: Path) -> Documents:
        """Parse one file of documents."""
        return read_documents(path, self._parses(path))

    def items(self, extraction: Extraction, corpus: Treebank | Documents, encoder: Encoder | None) -> Items:
        """Cut documents into windows of whole sentences, the items."""
        assert isinstance(corpus, Documents)
        return cut_documents(extraction, corpus, encoder)

    def setup(self, stage: str) -> None:
        """Open the stores of a stage, and part the documents of a corpus in one file."""
        super().setup(stage)
        parted = self._single() is not None

        def opened(split: Split, store: Store, encoder: EncoderOf) -> CoreferenceSplit:
            windows = windows_from_table(store.labels)
            documents = self._part(split, windows) if parted else None
            return CoreferenceSplit(split, store, windows, documents, self.candidates, encoder, self.vectors)

        fresh = {split: store for split, store in self.stores.items() if split not in self.splits}
        self.splits |= {split: opened(split, store, "given") for split, store in fresh.items()}
        if self.random_init and stage == "test" and not self.random_splits:
            drawn = self._open_random()
            self.random_splits = {split: opened(split, store, "random_init") for split, store in drawn.items()}

    @property
    def _missing_remedy(self) -> str:
        if self._single() is None:
            return super()._missing_remedy
        return "Part its documents in three: --data.init_args.parts [0.5,0.25,0.25]"

    def _texts(self, stores: Mapping[Split, Store]) -> dict[Split, pa.ChunkedArray]:
        # Splits that are parts of one file have one store.
        return {} if self._single() is not None else super()._texts(stores)

    def _part(self, split: Split, windows: Sequence[Window]) -> frozenset[int]:
        genres = {window.number: window.text.genre for window in windows}
        names = SPLITS[-len(self.parts) :]
        parts = dict(zip(names, parted(genres, self.parts, self.split_seed), strict=True))
        if not all(parts.values()):
            count = "one document" if len(genres) == 1 else f"{len(genres)} documents"
            raise CorpusError(
                f"{self.corpus}: {count} with mentions cannot be parted into {', '.join(names[:-1])} and {names[-1]}. "
                f"Name the file of each: {self._mapping}."
            )
        return parts[split]

    @property
    def provenance(self) -> Provenance:
        """Encoder, files and documents, and counts of what was dropped, cut or replaced.

        Where one file is parted, the audit of a split counts what is in it, and `file` is the audit of the whole.
        """
        known, parted = super().provenance, self._single() is not None
        data, audit = dict(known.data), dict(known.audit)
        for split, held in self.splits.items():
            manifest, described = held.store.manifest, data[split]
            assert isinstance(described, dict)
            data[split] = {
                **described,
                **({"parses_sha256": sha} if (sha := manifest.identity.get("companion_sha256")) else {}),
                "documents": len(held.documents),
                "windows": len(held),
                **({"split_seed": self.split_seed, "ids": list(held.documents)} if parted else {}),
            }
            if parted:
                audit[split], audit["file"] = held.counts, dict(manifest.audit)
        return Provenance(known.encoder, data, audit)

    def test_dataloader(self) -> list[BatchLoader[AntecedentBatch]]:
        """Return dev, to choose by, and test, to report on; then both through the random encoder, if asked for."""
        return [*super().test_dataloader(), *map(self._windows, self.random_splits.values())]

    def _loader(self, split: Split, *, shuffle: bool = False) -> BatchLoader[AntecedentBatch]:
        return self._windows(self.splits[split], shuffle=shuffle)

    def _windows(self, data: CoreferenceSplit, *, shuffle: bool = False) -> BatchLoader[AntecedentBatch]:
        lengths = np.array([len(window) for window in data.windows], np.int64)
        # Windows share no words: nothing is gained by padding them together.
        return self._serve(data, lengths, shuffle=shuffle, max_cells=0, max_sentences=1)
