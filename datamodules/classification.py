"""A labelled corpus as batches of tokens, for text classifiers."""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
from pytorch_lightning import LightningDataModule
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor

from attention.digest import Digests
from attention.encoder import EncoderSpec, Source, resolve
from attention.tokenizer import PIECES_VERSION, TextTokenizer
from corpora.labelled import Columns, LabelledTexts, read_labelled
from corpora.registry import data_root
from corpora.reviews import REVIEWS_VERSION, write_sample_reviews
from corpora.sentence import CorpusError
from datamodules.base import (
    SPLITS,
    STAGES,
    Split,
    corpus_files,
    count_shared,
    splits_ahead,
    warn_of_shared,
)
from datamodules.batch import TextBatch
from datamodules.labels import find_labels, label_numbers
from datamodules.sampling import Batches, BatchLoader, LengthBatches, run_seed
from datamodules.texts import TextSplit, cut_texts
from datamodules.tokenization import Numbers, Punctuation, tokenize
from datamodules.vectors import VectorSpec
from datamodules.vocabulary import Vocabulary, build_vocabulary, piece_vocabulary
from datamodules.word_vectors import WordVectors, vocabulary_vectors
from results import Provenance

_MAPPING = "--data.init_args.corpus '{train: a.tsv, dev: b.tsv, test: c.tsv}'"
_DEFAULT_COLUMNS = Columns()
_JITTER = 0.1
"""Share of its length by which a text may be taken for longer or shorter when it looks for neighbours in training."""


class ClassificationDataModule(LightningDataModule):
    """Labelled texts, or pairs of texts, as tokens.

    The train split is always read: labels and vocabulary are those of train.

    Args:
        corpus: `sample` for the embedded reviews, a name of `python -m corpora.registry --list`, one path with
            `{split}` in the place of train, dev and test, or a mapping from these three to paths.
        root: folder of the public corpora and word vectors; else `$PROBING_DATA`, else `./data`.
        format: `tsv`, `csv` or `jsonl`; by default what the suffix says.
        columns: which columns hold text, label and the rest.
        header: whether TSV and CSV name their columns; without, `columns` numbers them from 1.
        empty: what becomes of texts that are empty.
        tokenizer: the encoder whose pieces are the tokens, with its own delimiters; None for words; see `punctuation`.
        lowercase: whether words are read in lower case; a tokenizer decides itself.
        punctuation: `attached`, for texts that are tokenised; `apart` makes marks and clitics of raw text words.
        min_count: words that are rarer in train are unknown.
        max_words: bound of the words in the vocabulary; None for none.
        vectors: word vectors; None for none.
        max_length: most tokens of a text, delimiters included; None, or more than the encoder takes, for its own limit.
        too_long: what becomes of a text that is longer: its end is cut, that of the longer text of a pair first.
        delimiters: whether words get a token before and behind a text.
        sentence_separator: the word between sentences, which is dropped; None for the rule of `read_words`.
        positive: of two labels the one that F1 is about, a string; None for `1`, and `positive` of the sample.
        batch_size: most texts of a training batch.
        eval_tokens: bound of an evaluation batch, in padded tokens.
        cache: folder of what is converted or written once; else `$PROBING_CACHE`, else `./stores`.
        workers: processes that read batches ahead; 0 reads in the training process.
        seed: of the order of the training batches; None for that of the run.

    Attributes:
        labels: those of train, sorted.
        positive: place of the positive label, where there are two labels; else None.
        class_counts: int64 `[classes]`, texts of each label in train.
        vocabulary: what the tokens are numbers of.
        tokenizer_source: where the tokenizer lies; None for words.
        vectors: the word vectors of the words that train has.
        splits: what has been read.

    Raises:
        CorpusError: an option out of range; on `setup` a corpus that is absent or malformed, with one label only, with
            two of which none is the positive one, or with a label that train lacks; a text that is too long.
        EncoderError: the tokenizer cannot be had.
        VectorError: word vectors that are absent, malformed, or know too few of the words, on `setup`.
    """

    def __init__(
        self,
        corpus: str | dict[str, str] = "sample",
        root: str | None = None,
        format: Literal["tsv", "csv", "jsonl"] | None = None,
        columns: Columns = _DEFAULT_COLUMNS,
        header: bool = True,
        empty: Literal["error", "skip"] = "error",
        tokenizer: EncoderSpec | None = None,
        lowercase: bool = True,
        punctuation: Punctuation = "attached",
        min_count: int = 1,
        max_words: int | None = None,
        vectors: VectorSpec | None = None,
        max_length: int | None = 1000,
        too_long: Literal["truncate", "error"] = "truncate",
        delimiters: bool = False,
        sentence_separator: str | None = None,
        positive: str | None = None,
        batch_size: int = 32,
        eval_tokens: int = 16384,
        cache: str | None = None,
        workers: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        bounds = {"min_count": min_count, "max_words": max_words, "max_length": max_length, "batch_size": batch_size}
        for name, value in {**bounds, "eval_tokens": eval_tokens}.items():
            if value is not None and value < 1:
                raise CorpusError(f"{name}: {value} is less than 1. Give --data.init_args.{name} a positive number.")
        self.corpus, self.root = corpus, data_root(root)
        self.format, self.columns, self.header, self.empty = format, columns, header, empty
        self.tokenizer, self.lowercase, self.punctuation = tokenizer, lowercase, punctuation
        self.min_count, self.max_words = min_count, max_words
        self.vector_spec = vectors
        self.max_length, self.too_long = max_length, too_long
        self.delimiters, self.sentence_separator = delimiters, sentence_separator
        self.positive_label = positive or ("positive" if corpus == "sample" else "1")
        self.batch_size, self.eval_tokens = batch_size, eval_tokens
        self.cache = Path(cache or os.environ.get("PROBING_CACHE") or "stores").expanduser()
        self.workers, self.seed = workers, seed
        self.splits: dict[Split, TextSplit] = {}
        self.labels: tuple[str, ...] = ()
        self.positive: int | None = None
        self.tokenizer_source: Source | None = None
        self.vectors: WordVectors | None = None
        self.vocabulary: Vocabulary
        self._pieces: TextTokenizer | None = None
        self._audit: dict[Split, dict[str, object]] = {}
        self._contents: dict[Split, pa.Array] = {}

    def files(self) -> Mapping[str, Path]:
        """The corpus file of every split there is."""
        if self.corpus == "sample":
            folder = self.cache / f"reviews-{REVIEWS_VERSION}"
            written: dict[str, Path] = {split: folder / f"reviews-{split}.tsv" for split in SPLITS}
            return written if all(path.exists() for path in written.values()) else write_sample_reviews(folder)
        return corpus_files(self.corpus, self.root, _MAPPING)

    def read(self, path: Path) -> LabelledTexts:
        """Parse one file."""
        columns = replace(self.columns, rationale="rationale") if self.corpus == "sample" else self.columns
        return read_labelled(path, columns=columns, format=self.format, header=self.header, empty=self.empty)

    def setup(self, stage: str) -> None:
        """Read the splits of a stage; the first time, find labels, vocabulary and vectors in train."""
        files = self.files()
        alone = stage == "fit" and (self.trainer is None or self.trainer.limit_val_batches == 0)
        stages = STAGES[stage]
        if missing := [split for split in ("train", *(() if alone else stages)) if split not in files]:
            raise CorpusError(f"The corpus has no {missing[0]} split, and it is needed. Name its file: {_MAPPING}.")
        stages = (*stages, *splits_ahead(stage, files, self.trainer))
        wanted = [split for split in dict.fromkeys(("train", *stages)) if split in files and split not in self.splits]
        if not wanted:
            return
        entered = time.perf_counter()
        if self.tokenizer is not None and self._pieces is None:
            self.tokenizer_source = resolve(self.tokenizer)
            self._pieces = TextTokenizer(self.tokenizer_source)
        read = {split: self.read(files[split]) for split in wanted}
        if "train" in read:
            self.labels, self.positive = find_labels(files["train"], read["train"].texts, self.positive_label)
        numbers = {split: label_numbers(files[split], read[split].texts, self.labels) for split in wanted}
        for split in wanted:
            self._open(split, files[split], read[split], numbers[split])
        if self.vector_spec is not None and self.vectors is None:
            self.vectors = vocabulary_vectors(
                self.vector_spec,
                self.vocabulary,
                self.splits["train"].frequencies(len(self.vocabulary)),
                self.tokenizer_source,
                root=self.root,
                cache=self.cache,
            )
        held = ", ".join(f"{split} {len(self.splits[split])} texts" for split in wanted)
        known = f"{len(self.labels)} labels, {len(self.vocabulary)} in the vocabulary"
        rank_zero_info(f"Ready {time.perf_counter() - entered:.1f} s after entering setup: {held}; {known}.")

    def _open(self, split: Split, path: Path, read: LabelledTexts, labels: Numbers) -> None:
        words, whole = tokenize(
            read.texts,
            self._pieces,
            lowercase=self.lowercase,
            punctuation=self.punctuation,
            delimiters=self.delimiters,
            sentence_separator=self.sentence_separator,
        )
        tokens, lost = cut_texts(path, read.texts, whole, self._limit, self.too_long)
        if split == "train" and self._pieces is not None:
            self.vocabulary = piece_vocabulary(self._pieces)
        elif split == "train":
            self.vocabulary = build_vocabulary(tokens.counts, min_count=self.min_count, max_words=self.max_words)
        data = self.splits[split] = TextSplit(split, read.texts, labels, words, tokens, lost, self.vocabulary)
        # A text that differs in case alone is one that train has given away.
        self._contents[split] = pa.array([f"{text.text}\x1f{text.pair or ''}".lower() for text in read.texts])
        shared = count_shared(self._contents, split)
        warn_of_shared(split, shared, len(data), "texts")
        self._audit[split] = {
            **read.audit,
            **data.counts,
            **shared,
            "labels": dict(zip(self.labels, np.bincount(labels, minlength=len(self.labels)).tolist(), strict=True)),
        }

    @property
    def _limit(self) -> int | None:
        own = None if self._pieces is None else self._pieces.max_length
        return min((limit for limit in (self.max_length, own) if limit is not None), default=None)

    @property
    def class_counts(self) -> Numbers:
        """Texts of each label in train, int64 `[classes]`."""
        return np.bincount(self.splits["train"].labels, minlength=len(self.labels))

    def word_vectors(self) -> tuple[Tensor, Tensor] | None:
        """Vectors of the vocabulary, float32 `[vocabulary, size]`, and which are known, bool `[vocabulary]`.

        What is unknown has zeros, and so have the specials of words. None without vectors.
        """
        if self.vectors is None:
            return None
        rows = self.vectors.rows(self.vocabulary.words)
        return torch.from_numpy(self.vectors.matrix[rows]), torch.from_numpy(rows >= 0)

    def text(self, split: Split, item: int) -> tuple[str, tuple[str, ...]]:
        """Name of a text, and its tokens as the vocabulary spells them, delimiters included."""
        data = self.splits[split]
        return data.ids[item], tuple(self.vocabulary.words[number] for number in data.tokens(item))

    @property
    def identity(self) -> Mapping[str, object]:
        """What trained parameters depend on: a classifier fits no other tokens and no other labels."""
        tokenizer = None
        if self.tokenizer_source is not None:
            texts = self.tokenizer_source.identity(Digests(self.cache))["texts_sha256"]
            tokenizer = {"texts_sha256": texts, "version": PIECES_VERSION}
        return {
            "vocabulary": self.vocabulary.digest,
            "labels": list(self.labels),
            "tokenizer": tokenizer,
            "delimiters": self.delimiters,
        }

    @property
    def provenance(self) -> Provenance:
        """Which tokenizer, which files, and what was dropped, cut or is unknown."""
        files, digests = self.files(), Digests(self.cache)
        encoder: dict[str, object] = {}
        if (source := self.tokenizer_source) is not None:
            name = source.folder.resolve().name if source.origin == "folder" else source.spec.name
            encoder = {"name": name, "origin": source.origin, **source.identity(digests)}
        data: dict[str, object] = {}
        audit: dict[str, object] = {"vocabulary": len(self.vocabulary)}
        if self.vectors is not None:
            data["vectors"], audit["vectors"] = dict(self.vectors.identity), dict(self.vectors.audit)
        for split in SPLITS:
            if split in self.splits:
                sha256 = digests.one(files[split])
                data[split] = {"file": files[split].name, "sha256": sha256, "texts": len(self.splits[split])}
                audit[split] = self._audit[split]
        return Provenance(encoder, data, audit)

    def train_dataloader(self) -> BatchLoader[TextBatch]:
        """Shuffled batches of the train split."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> BatchLoader[TextBatch]:
        """The dev split, each text once."""
        return self._loader("dev")

    def test_dataloader(self) -> list[BatchLoader[TextBatch]]:
        """The dev split, for what is chosen, and the test split, for what is reported."""
        return [self._loader("dev"), self._loader("test")]

    def predict_dataloader(self) -> Batches[TextBatch]:
        """The test split, each text once."""
        return Batches(self._loader("test"))

    def _loader(self, split: Split, *, shuffle: bool = False) -> BatchLoader[TextBatch]:
        data, trainer = self.splits[split], self.trainer
        batches = LengthBatches(
            data.lengths,
            max_cells=None if shuffle else self.eval_tokens,
            max_sentences=self.batch_size if shuffle else len(data),
            shuffle=shuffle,
            cells="tokens",
            jitter=_JITTER if shuffle else 0.0,
            seed=run_seed(self.seed),
            rank=trainer.global_rank if trainer is not None else 0,
            world=trainer.world_size if trainer is not None else 1,
        )
        if shuffle and trainer is not None:
            batches.resume(trainer)
        return BatchLoader(data, batches, self.workers)
