"""Datamodule of documents with coreference read by an encoder; a batch has the attention of one window's mentions."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.utils.data import Dataset

from attention_probing.attention import AlignmentError, Encoder, Extraction, Items, Store
from attention_probing.attention.alignment import AlignedPieces, count_words, join_sentences, split_words
from attention_probing.attention.source import EncoderSource
from attention_probing.attention.specification import Candidates, TooLong
from attention_probing.corpora.conll2012 import treebank_of
from attention_probing.corpora.conllu import warn_of_texts
from attention_probing.corpora.document import (
    MENTION_TYPES,
    Document,
    Documents,
    Mention,
    Window,
    anaphoric,
    cut_window,
    windows_from_table,
    windows_to_table,
)
from attention_probing.corpora.formats import document_reader
from attention_probing.corpora.mentions import KNOWN_TAGS, warn_of_tags
from attention_probing.corpora.registry import CORPORA, locate
from attention_probing.corpora.sample import SAMPLE_VERSION, write_sample_documents
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.splits import SPLITS, Split
from attention_probing.datamodules.attention import AttentionDataModule
from attention_probing.datamodules.batches import AntecedentBatch, BatchLoader, EncoderOf, check_batch
from attention_probing.datamodules.corpus import mapping_of
from attention_probing.datamodules.gold import GoldShuffle
from attention_probing.datamodules.limits import LEFT_OUT, Limit
from attention_probing.results import Provenance
from attention_probing.results.errors import UserError, pluralize, setting
from attention_probing.results.options import checked

_COUNTS = (
    "windows",
    "windows_without_mentions",
    "links",
    "lost_links",
    "skipped_too_long",
    "skipped_mentions",
    "skipped_links",
)


def cut_documents(extraction: Extraction, documents: Documents, encoder: Encoder | None) -> Items:
    """Cut every document into windows of whole sentences, and return the windows as inputs of the encoder.

    A window has as many consecutive sentences as fit into the encoder's limit. Windows do not overlap,
    and those without a mention are left out. Without an encoder every document is one window. The
    `audit` of the result has the counts of the corpus reader and these counts:

    - `windows` and `windows_without_mentions`: windows kept and windows left out.
    - `links`: mentions whose cluster has an earlier mention in the document.
    - `lost_links`: links in the windows whose earlier mentions are all outside the window.
    - `skipped_too_long`, `skipped_mentions`, `skipped_links`: sentences left out because they exceed
      the limit, and the mentions and links in these sentences.
    - `words_without_piece`: words of the kept windows that the tokenizer cuts into no piece.
    - `words_with_unknown_token`: words of the kept windows with the unknown token, or without a piece.
    - `words_cut_apart`: words of the kept windows whose pieces differ from those in running text.
    - `spelled_…`: words of the kept windows by how their pieces spell them, see `attention.alignment.spelling`.
    - with `spacing: text`, `pieces_across_words`, `words_without_own_piece`, `words_respelled` and
      `texts_unlike_comment`: pieces that extend over several words, words in which no piece begins, words of multiword
      tokens that their forms do not spell, and sentences whose comment `# text` in the treebank is another text.

    Args:
        extraction: Specification of the extraction, with the policy for sentences over the limit.
        documents: Documents of a corpus file.
        encoder: The encoder, whose tokenizer and length limit are used; None for none.

    Raises:
        AlignmentError: A sentence is over the limit, and the policy is not to skip it.
        UserError: The encoder lacks a layer or head, or no window is left.
    """
    layers, heads, _ = extraction.chosen(encoder)
    counts = Counter(dict.fromkeys(_COUNTS, 0))
    windows: list[Window] = []
    inputs: list[AlignedPieces] = []
    for number, document in enumerate(documents.documents):
        counts["links"] += sum(anaphoric(document.mentions))
        pieces = None
        limit = 0
        if encoder is not None:
            pieces = split_words(encoder.tokenizer, document.sentences, consecutive=True, texts=document.texts)
            limit = encoder.max_length
        for start, stop in _window_bounds(document, pieces, limit, extraction.options.too_long, counts):
            window = cut_window(number, document, start, stop)
            if not window.text.mentions:
                counts["windows_without_mentions"] += 1
                continue
            counts["windows"] += 1
            counts["lost_links"] += window.lost
            windows.append(window)
            if encoder is not None and pieces is not None:
                joined = join_sentences(pieces[start:stop])
                inputs.append(joined)
                counts.update(count_words(encoder.tokenizer, joined, window.words, document.texts[start:stop]))
    if not windows:
        if encoder is not None and counts["skipped_mentions"]:
            raise UserError(
                f"{extraction.corpus}: all mentions are in sentences of more than {encoder.max_length} pieces, which "
                "were skipped. Choose an encoder that takes longer inputs."
            )
        raise UserError(
            f"{extraction.corpus}: no mention in {pluralize(len(documents), 'document')}. Check that coreference is "
            "annotated in this file."
        )
    head_words = tuple(window.head_words for window in windows)
    audit = {**documents.audit, **counts}
    return Items(extraction, "windows", windows_to_table(windows), audit, tuple(inputs), head_words, layers, heads)


def _window_bounds(
    document: Document, pieces: Sequence[AlignedPieces] | None, limit: int, too_long: TooLong, counts: Counter[str]
) -> Iterator[tuple[int, int]]:
    """Yield the first sentence of each window and the sentence after its last; without pieces, one window."""
    if pieces is None:
        yield 0, len(document.sentences)
        return
    start = 0  # first sentence of the window
    length = 0  # pieces of the window
    for place, sentence in enumerate(pieces):
        if len(sentence) > limit:
            if too_long != "skip":
                raise AlignmentError(_too_long(document, place, sentence, limit))
            _count_skipped(document, place, counts)
            if start < place:
                yield start, place
            start = place + 1  # a window has no gaps
            length = 0
            continue
        if start < place:
            length += int(sentence.inside.sum())
        else:
            length = len(sentence)
        if length > limit:
            yield start, place
            start = place
            length = len(sentence)
    if start < len(pieces):
        yield start, len(pieces)


def _count_skipped(document: Document, place: int, counts: Counter[str]) -> None:
    """Count a sentence that is left out, with its mentions and links."""
    counts["skipped_too_long"] += 1
    for mention, is_link in zip(document.mentions, anaphoric(document.mentions), strict=True):
        if mention.sentence == place:
            counts["skipped_mentions"] += 1
            counts["skipped_links"] += is_link


def _too_long(document: Document, place: int, whole: AlignedPieces, limit: int) -> str:
    """Return the message for a sentence over the limit."""
    mentions = sum(mention.sentence == place for mention in document.mentions)
    return (
        f"document {document.id}: sentence {place + 1} of {pluralize(len(document.sentences[place]), 'word')} has "
        f"{len(whole)} pieces and {pluralize(mentions, 'mention')}, but the encoder takes at most {limit}. "
        f"Leave such sentences out, and count them, with {setting('data.options.too_long', 'skip')}."
    )


class CoreferenceSplit(Dataset[AntecedentBatch]):
    """Dataset of the windows of one split, indexed by batches of one window: `split[[3]]` is an `AntecedentBatch`.

    A window is a stretch of whole sentences of one document that fits into the encoder.

    Args:
        data: Datamodule with the options; no reference to it is kept.
        store: Store of the attention for the split's file.
        split: Name of the split.
        encoder: Role of the encoder whose attention the store holds: `given`, `before` fine-tuning, or
            `random_init`.

    Attributes:
        windows: Windows of the split, in the order of the corpus.
        documents: Ids of the split's documents, in the order of the corpus.
        lengths: int64 `[windows]`, number of words of each window.
    """

    def __init__(self, data: "CoreferenceDataModule", store: Store, split: Split, encoder: EncoderOf = "given") -> None:
        self.split = split
        self.store = store
        self.encoder = encoder
        self._candidates = data.candidates
        self._vectors = data.vectors
        windows = windows_from_table(store.labels)
        documents = data.documents_of(split, windows, store.manifest.audit.get(LEFT_OUT, 0))
        self._items = [item for item, window in enumerate(windows) if window.number in documents]
        self.windows = [windows[item] for item in self._items]
        if data.shuffle is not None:
            self.windows = exchange_clusters(self.windows, split, data.shuffle)
        self.lengths = np.array([len(window) for window in self.windows], np.int64)
        ids: dict[int, str] = {}  # by number of the document
        for window in self.windows:
            ids[window.number] = window.text.id
        self.documents = tuple(ids.values())
        self._places = {number: place for place, number in enumerate(ids)}

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, indices: list[int]) -> AntecedentBatch:
        """Return the batch of one window, or of none."""
        check_batch(indices)
        assert len(indices) <= 1
        window = self.windows[indices[0]] if indices else None
        documents: list[int] = []
        heads: tuple[int, ...] = ()
        clusters: list[int] = []
        types: list[int] = []
        if window is not None:
            documents.append(self._places[window.number])
            heads = window.mention_heads
            for mention in window.text.mentions:
                clusters.append(mention.cluster)
                types.append(MENTION_TYPES.index(mention.type))
        return AntecedentBatch(
            index=torch.tensor(indices, dtype=torch.int64),
            document=torch.tensor(documents, dtype=torch.int64),
            head_words=torch.tensor(heads, dtype=torch.int64),
            clusters=torch.tensor(clusters, dtype=torch.int64),
            types=torch.tensor(types, dtype=torch.int64),
            weights=self._weights(indices, window),
            vectors=self._vectors_of(window),
            window=window,
            split=self.split,
            encoder=self.encoder,
        )

    def _weights(self, indices: list[int], window: Window | None) -> Tensor:
        """Return the attention between the head words of a window; zeros without a window or an encoder."""
        manifest = self.store.manifest
        if window is not None and manifest.shards:
            return self.store.read("antecedent", self._items[indices[0]])
        layers = len(manifest.layers)
        heads = len(manifest.heads)
        head_words = len(window.head_words) if window is not None else 0
        if self._candidates == "words":
            length = len(window) if window is not None else 0
            return torch.zeros(2, layers, heads, head_words, length)
        return torch.zeros(layers, heads, head_words, head_words)

    def _vectors_of(self, window: Window | None) -> Tensor:
        """Return the word vectors of the head words of a window, `[head words, size]`."""
        words: list[str] = []
        if window is not None:
            words = [window.words[place] for place in window.head_words]
        if self._vectors is None:
            return torch.zeros(len(words), 0)
        rows = self._vectors.rows(words)
        return torch.from_numpy(self._vectors.matrix[rows])

    @property
    def counts(self) -> dict[str, int]:
        """Five counts of the split: `documents`, `windows`, `mentions`, `links` and `lost_links`.

        A link is a mention with an earlier mention of its cluster in the document. It is lost if all
        such mentions are outside its window.
        """
        counts = {"documents": len(self.documents), "windows": len(self.windows)}
        mentions = 0
        links_in_windows = 0
        lost = 0
        for window in self.windows:
            mentions += len(window.text.mentions)
            links_in_windows += sum(anaphoric(window.text.mentions))
            lost += window.lost
        return {**counts, "mentions": mentions, "links": links_in_windows + lost, "lost_links": lost}


def exchange_clusters(windows: Sequence[Window], split: Split, shuffle: GoldShuffle) -> list[Window]:
    """Give each mention the cluster of another mention of its type in its window; return the windows.

    So the clusters of a window keep their sizes and the types of their mentions. The counts of lost links stay those of
    the corpus.

    Args:
        windows: Windows of a split.
        split: Name of the split.
        shuffle: Draws of the mentions.
    """
    mentions: list[Mention] = []
    classes: list[tuple[int, int]] = []
    for place, window in enumerate(windows):
        for mention in window.text.mentions:
            mentions.append(mention)
            classes.append((place, MENTION_TYPES.index(mention.type)))
    others = shuffle.draw(split, np.array(classes, np.int64).reshape(-1, 2))
    exchanged = []
    for mention, other in zip(mentions, others.tolist(), strict=True):
        exchanged.append(replace(mention, cluster=mentions[other].cluster))

    following = iter(exchanged)
    changed = []
    for window in windows:
        mentions_of_window = tuple(islice(following, len(window.text.mentions)))
        changed.append(replace(window, text=replace(window.text, mentions=mentions_of_window)))
    return changed


def divide_documents(genres: Mapping[int, str], shares: Sequence[float], seed: int) -> tuple[frozenset[int], ...]:
    """Divide documents at random into parts, so that every part has nearly its share of every genre.

    Genres are divided one after the other, in alphabetical order, each with its documents shuffled.
    The sizes of the parts grow by one document at a time: the next one goes to the part that is furthest
    below its share of all documents so far, those of earlier genres included; on a tie, to the first such
    part. A part with too few documents of one genre is therefore served first in the next genre. For
    example, of two equal parts, the first gets one more document of the first genre of odd size, and the
    second gets one more of the next such genre.

    Args:
        genres: Genre of each document, by the index of the document.
        shares: Fraction of the documents for each part; the fractions add up to 1.
        seed: Seed of the draw.

    Returns:
        Indices of the documents of each part.
    """
    random = np.random.default_rng(seed)
    parts: list[set[int]] = [set() for _ in shares]
    sizes = [0] * len(shares)
    for genre in sorted(set(genres.values())):
        of_genre = [number for number, other in genres.items() if other == genre]
        numbers = random.permutation(sorted(of_genre))
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
    """Datamodule of the attention between the mentions of documents; a training batch is one window.

    A window is a stretch of whole sentences of one document that fits into the encoder. The head words of
    mentions are read from a `.conllu` file of the same name beside the corpus, if there is one. See
    `AttentionDataModule` and `CorpusDataModule` for the other options.

    Args:
        corpus: `sample` for documents that this package generates, a name of
            `probing fetch --list`, a path with `{split}` in the place of train, dev and
            test, a mapping from these three to paths, or one path. If the corpus is one file, its
            documents are divided into splits within each genre; `limit` then bounds the largest split.
        candidates: Words among which the antecedent of a mention is sought: the head words of the other
            `mentions`, or all `words` of the window.
        parts: If the corpus is one file, the fractions of its documents for dev and test, or for train,
            dev and test.
        tags: Mapping from a tag of the corpus to the tag of Universal Dependencies or the Penn Treebank that it
            means, such as `{PPER: PRON, NE: PROPN}`. In a corpus with another tag set, only tags of this mapping
            decide the head and the type of a mention.

    Raises:
        CorpusError: The fractions do not add up to 1, or a value of `tags` is no such tag; on `setup`, a corpus is
            absent or malformed.
        UserError: On `setup`, word vectors are absent or malformed.
    """

    unit = "windows"
    limited = "documents"
    holds = "mentions"
    exchanges = "mentions"
    file_warnings = (warn_of_texts,)
    batch = AntecedentBatch
    suffix = "conll"
    sample = (f"sample-{SAMPLE_VERSION}", write_sample_documents)
    splits: dict[Split, CoreferenceSplit]
    random_splits: dict[Split, CoreferenceSplit]

    @checked
    def __init__(
        self,
        corpus: str | dict[str, str] = "ontogum",
        candidates: Candidates = "mentions",
        parts: tuple[float, ...] = (0.5, 0.5),
        tags: dict[str, str] | None = None,
        **shared: Any,  # noqa: ANN401 # options of AttentionDataModule
    ) -> None:
        super().__init__(corpus, **shared)
        if len(parts) not in (2, 3) or min(parts) <= 0 or abs(sum(parts) - 1) > 1e-6:
            raise CorpusError(
                f"{setting('data.parts')} is {list(parts)}, but must be the shares of dev and test, or of train, dev "
                "and test, with the sum 1, such as [0.5,0.25,0.25]."
            )
        # YAML reads ON, a tag of the Chinese Treebank, as true.
        for tag, meaning in (tags or {}).items():
            if isinstance(tag, str) and meaning in KNOWN_TAGS:
                continue
            wanted = "a tag of the file, in quotes, and one of Universal Dependencies or the Penn Treebank, as PRON"
            raise CorpusError(f"{setting('data.tags')} has {tag!r}: {meaning!r}, but must have {wanted}.")
        self.candidates = candidates
        self.shares = parts
        self.tags = tags or {}

    def files(self) -> Mapping[str, Path]:
        """Return the corpus file of every split; if the corpus is one file, all splits have the same path."""
        single = self._single_file()
        if single is None:
            return super().files()
        return dict.fromkeys(SPLITS[-len(self.shares) :], single)

    def _texts(self, stores: Mapping[Split, Store]) -> dict[Split, pa.ChunkedArray]:
        # The parts of one file have one store, but different documents.
        if self._single_file() is not None:
            return {}
        return super()._texts(stores)

    def _single_file(self) -> Path | None:
        """Return the file of a corpus in one file; None for other corpora."""
        if not isinstance(self.corpus, str) or "{split}" in self.corpus:
            return None
        if self.corpus in CORPORA:
            return locate(self.corpus, self.root).get("all")
        path = Path(self.corpus).expanduser()
        return path if path.suffix or path.is_file() else None  # the reader reports a missing file

    def extraction(self, path: Path, source: EncoderSource | None) -> Extraction:
        reader = dict(document_reader(path).identity)
        if self.tags:
            reader["tags"] = self.tags
        companion = treebank_of(path)
        return Extraction(path, reader, source, self.options, candidates=self.candidates, companion=companion)

    def read(self, path: Path) -> Documents:
        return document_reader(path).read(path, self.tags, texts=self.options.spacing == "text")

    def warn_of_file(self, path: Path, store: Store) -> None:
        super().warn_of_file(path, store)
        audit = store.manifest.audit
        warn_of_tags(path, audit, store.labels["tags"].combine_chunks().values.to_pylist())

    def items(self, extraction: Extraction, corpus: Documents, encoder: Encoder | None) -> Items:
        return cut_documents(extraction, corpus, encoder)

    def make_splits(self, stores: Mapping[Split, Store], encoder: EncoderOf = "given") -> dict[Split, CoreferenceSplit]:
        splits = {}
        for split, store in stores.items():
            splits[split] = CoreferenceSplit(self, store, split, encoder)
        return splits

    @property
    def limit_of_file(self) -> Limit:
        most = self.limit.most
        if most is None or self._single_file() is None:
            return self.limit
        # So many that the largest split has the limit, and the others their share.
        return replace(self.limit, most=max(int(most / max(self.shares)), len(self.shares)))

    @property
    def missing_remedy(self) -> str:
        if self._single_file() is None:
            return super().missing_remedy
        return f"Split its documents into three parts: {setting('data.parts', '[0.5,0.25,0.25]')}"

    def documents_of(self, split: Split, windows: Sequence[Window], left_out: int = 0) -> frozenset[int]:
        """Return the documents of a split, as 0-based indices among all documents of the corpus file.

        Args:
            split: Name of the split.
            windows: All windows of the file.
            left_out: Number of documents of the file beyond `limit`.

        Raises:
            CorpusError: The corpus is one file with too few documents for its splits.
        """
        if self._single_file() is None:
            return frozenset(window.number for window in windows)
        genres = {window.number: window.text.genre for window in windows}
        names = SPLITS[-len(self.shares) :]
        parts = dict(zip(names, divide_documents(genres, self.shares, seed=0), strict=True))
        if not all(parts.values()):
            count = f"{len(genres)} documents with mentions are"
            if len(genres) == 1:
                count = "one document with mentions is"
            within = ""
            remedy = "Give"
            if left_out:
                within = f" within {setting('data.limit', self.limit.most)}"
                remedy = "Raise the limit, or give"
            raise CorpusError(
                f"{self.corpus}: {count} too few to be split into {', '.join(names[:-1])} and {names[-1]} "
                f"({setting('data.parts')}){within}. {remedy} one file per split: {mapping_of(self)}."
            )
        return parts[split]

    @property
    def provenance(self) -> Provenance:
        """Description of encoder, files and documents for the results, with counts of what was dropped or replaced.

        If the corpus is one file, `audit[split]` has the counts of the split, and `audit["file"]` the counts of the
        file.
        """
        provenance = super().provenance
        data = cast(dict[str, dict[str, object]], provenance.data)
        audit = cast(dict[str, object], provenance.audit)
        is_divided = self._single_file() is not None
        for split, windows in self.splits.items():
            manifest = windows.store.manifest
            parses_sha256 = manifest.identity.get("companion_sha256")
            if parses_sha256:
                data[split]["parses_sha256"] = parses_sha256
            data[split] |= {"documents": len(windows.documents), "windows": len(windows)}
            if is_divided:
                data[split]["ids"] = list(windows.documents)
                audit[split] = windows.counts
                audit["file"] = dict(manifest.audit)
        return provenance

    def _batches(self, data: CoreferenceSplit, *, shuffle: bool = False) -> BatchLoader[AntecedentBatch]:
        # Windows share no words: nothing is gained by padding them together.
        return self._serve(data, shuffle=shuffle, max_cells=0, max_items=1)
