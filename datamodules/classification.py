"""Datamodule of a labelled corpus as batches of tokens, for text classifiers."""

import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention_probing.attention import EncoderSpec, resolve
from attention_probing.attention.inputs import PIECES_VERSION, TextTokenizer
from attention_probing.attention.source import EncoderSource
from attention_probing.corpora.eraser import COLUMNS, read_eraser
from attention_probing.corpora.labelled import Columns, LabelledTexts, read_labelled
from attention_probing.corpora.records import warn_of_records
from attention_probing.corpora.registry import CORPORA, Corpus, Score
from attention_probing.corpora.sample import SAMPLE_VERSION, write_sample_reviews
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.shortcuts import Planting
from attention_probing.corpora.splits import SPLITS, Split, corpus_of
from attention_probing.datamodules import tokenization
from attention_probing.datamodules.batches import BatchLoader, TextBatch
from attention_probing.datamodules.corpus import CorpusDataModule
from attention_probing.datamodules.labels import Labels, find_labels, label_numbers, label_values
from attention_probing.datamodules.text_split import TextSplit
from attention_probing.datamodules.tokenization import (
    Numbers,
    Punctuation,
    TokenizedTexts,
    TokenOptions,
    Vocabulary,
    Words,
)
from attention_probing.datamodules.vectors import vocabulary_vectors
from attention_probing.datamodules.warnings import count_shared, warn_of_split
from attention_probing.results import Provenance
from attention_probing.results.digests import Digests
from attention_probing.results.errors import check_numbers, check_values, pluralize, setting
from attention_probing.results.progress import inform

SCORES: Mapping[bool, tuple[Score, ...]] = {False: ("accuracy", "f1", "auroc", "mcc"), True: ("pearson", "spearman")}
"""Scores of a classification (False) and of a regression (True); the first is the default."""

EVAL_TOKENS = 16384
"""Largest number of tokens of a pass without gradients, padding included."""

_UNKNOWN = Corpus("", {}, "", "", "")
_JITTER = 0.1
"""Jitter of the lengths by which training texts are put into batches; see `LengthBatches`."""


class ClassificationDataModule(CorpusDataModule[TextBatch]):
    """Datamodule of labelled texts, or of labelled pairs of texts, as tokens.

    Every stage reads the train split, which defines the labels and the vocabulary. See
    `CorpusDataModule` for the other options.

    Args:
        corpus: `sample` for reviews that this package generates, a name of
            `probing fetch --list`, one path with `{split}` in the place of train, dev and
            test, or a mapping from these three to paths. With `columns.split`, one path for all splits. With
            the format `eraser`, a folder with `train.jsonl`, `val.jsonl` and `test.jsonl`, or a mapping.
        format: `tsv`, `csv`, `jsonl`, or `eraser` for the files of ERASER; None for the format that the suffix
            implies.
        columns: Columns of text, label and the rest, by name or, in a file without a header, by number; None for the
            columns in the registry, else those of ERASER or `text` and `label`. With `columns.split`, the labels are
            those of all splits.
        tokenizer: Encoder whose pieces are the tokens, with its delimiters; None makes words in lower case the tokens.
        punctuation: `attached` splits at white space alone, for texts that are already tokenized;
            `apart` also separates punctuation marks and clitics from words, for raw text.
        min_count: Lowest frequency in train of a word in the vocabulary; rarer words are unknown.
        max_length: Largest number of tokens of a text, delimiters included; longer texts lose their end, first
            the longer text of a pair. None for no limit. The limit of the tokenizer's encoder holds as well.
        delimiters: Add a token before and after each text, if tokens are words.
        sentence_separator: Word that separates sentences and is dropped; None for the rule of
            `read_words`.
        positive: Label for which F1 is computed, if there are two labels. None for the registry's label;
            if the registry has none, for the label `1`; in the sample, for the label `positive`.
        regression: True if labels are numbers to predict; None for the registry's value, else False.
        score: Main score of the task; None for the registry's score, else accuracy, or pearson for a
            regression.
        batch_size: Largest number of texts in a training batch.
        shortcut: Rule by which words that decide the label are planted in the texts; None plants nothing. They are
            planted among the words that `max_length` leaves.

    Attributes:
        eval_tokens: Largest number of tokens in an evaluation batch, padding included. A measurement that holds
            several copies of a batch lowers it before the batches are made.
        labels: Sorted labels of train, with `columns.split` of all splits; empty for a regression.
        positive: Index of the positive label if there are two labels; else None.
        vocabulary: The vocabulary; the id of a token is an index into it.
        tokenizer_source: Files of the tokenizer; None if tokens are words.

    Raises:
        CorpusError: An option is out of range; on `setup`, a corpus, labels or texts cannot be used.
        EncoderError: On `setup`, a tokenizer is not found.
        UserError: On `setup`, word vectors are absent or malformed.
    """

    unit = "texts"
    holds = "labelled texts"
    batch = TextBatch
    suffix = "tsv"
    always = ("train",)
    splits: dict[Split, TextSplit]
    sample = (f"reviews-{SAMPLE_VERSION}", write_sample_reviews)

    def __init__(
        self,
        corpus: str | dict[str, str] = "sample",
        format: Literal["tsv", "csv", "jsonl", "eraser"] | None = None,
        columns: Columns | None = None,
        tokenizer: EncoderSpec | None = None,
        punctuation: Punctuation = "attached",
        min_count: int = 1,
        max_length: int | None = 1000,
        delimiters: bool = False,
        sentence_separator: str | None = None,
        positive: str | None = None,
        regression: bool | None = None,
        score: Score | None = None,
        batch_size: int = 32,
        shortcut: Planting | None = None,
        **shared: Any,  # noqa: ANN401 # options of CorpusDataModule
    ) -> None:
        super().__init__(corpus, **shared)
        check_values(self, format=format, punctuation=punctuation)
        check_numbers(self, least=1, min_count=min_count, max_length=max_length)
        check_numbers(self, least=1, batch_size=batch_size)
        known = CORPORA.get(corpus, _UNKNOWN) if isinstance(corpus, str) else _UNKNOWN
        self.columns = columns or (COLUMNS if format == "eraser" else Columns(**known.columns))
        if self.columns.label is None:
            raise CorpusError(
                f"{setting('data.columns.label')} is null, but a classifier needs labels. Name their column."
            )
        self.format, self._skip = format, known.skip
        self._known_labels = known.labels if columns is None else ()
        self.regression = known.regression if regression is None else regression
        if self.regression and shortcut is not None:
            raise CorpusError(
                f"{setting('data.shortcut')}: a shortcut decides between classes, but these labels are numbers. "
                f"Leave it out."
            )
        self.shortcut = shortcut
        possible = SCORES[self.regression]
        if score is not None and score not in possible:
            kind = "regression" if self.regression else "classification"
            raise CorpusError(
                f"{setting('data.score')} is {score}, but must be a score of a {kind}: {' or '.join(possible)}."
            )
        self.score = score or (known.score if known.score in possible else None) or possible[0]
        self.tokenizer = tokenizer
        self.token_options = TokenOptions(punctuation, delimiters, sentence_separator, max_length)
        self.min_count = min_count
        self.positive_label = positive or known.positive or ("positive" if corpus == "sample" else "1")
        self.batch_size, self.eval_tokens = batch_size, EVAL_TOKENS
        self.labels: tuple[str, ...] = ()
        self.positive: int | None = None
        self.tokenizer_source: EncoderSource | None = None
        self.vocabulary: Vocabulary
        self._pieces: TextTokenizer | None = None
        self._audit: dict[Split, dict[str, object]] = {}
        self._contents: dict[Split, pa.Array] = {}

    def files(self) -> Mapping[str, Path]:
        if isinstance(self.corpus, str) and self.corpus not in ("sample", *CORPORA) and "{split}" not in self.corpus:
            path = Path(self.corpus).expanduser()
            if self.columns.split is not None:
                return dict.fromkeys(SPLITS, path)
            if self.format == "eraser":
                return {"train": path / "train.jsonl", "dev": path / "val.jsonl", "test": path / "test.jsonl"}
        return super().files()

    def read(self, path: Path, split: Split | None = None) -> LabelledTexts:
        """Read one file of the corpus with the datamodule's options; return its labelled texts.

        Args:
            path: The file.
            split: Split to read of a file with a column of splits; None for all.
        """
        if self.format == "eraser":
            return read_eraser(path, self.columns)
        columns = replace(self.columns, rationale="rationale") if self.corpus == "sample" else self.columns
        split = split if columns.split else None
        read = read_labelled(path, columns=columns, format=self.format, split=split, skip=self._skip)
        for text in read.texts if self._known_labels else ():
            if text.label not in self._known_labels:
                wrong = f"label {text.label!r} is not a label of {self.corpus} ({', '.join(self._known_labels)})"
                wrong += ", so this is not the original file"
                remedy = f"Replace it: {CORPORA[str(self.corpus)].recipe}"
                raise CorpusError.at(path, text.line, wrong, remedy)
        return read

    def setup(self, stage: str) -> None:
        """Read and tokenize the splits of a stage.

        The first call also fixes the labels and the vocabulary. The labels are the classes of train; the
        vocabulary has words of train or, with a tokenizer, its pieces. Then it loads the word vectors of
        this vocabulary, if any.
        """
        files = self.files()
        reads, tested = self.splits_of(stage, files)
        wanted = [split for split in (*reads, *tested) if split not in self.splits]
        if not wanted:
            return
        entered = time.perf_counter()
        if self.tokenizer is not None and self._pieces is None:
            self.tokenizer_source = resolve(self.tokenizer)
            self._pieces = TextTokenizer(self.tokenizer_source)
        read = {split: self.read(files[split], split) for split in wanted}
        if "train" in read and not self.regression:
            # Of questions, the rare answers may all be in dev and test.
            known = self.read(files["train"]) if self.columns.split else read["train"]
            self.labels, self.positive = find_labels(files["train"], known.texts, self.positive_label)
        labels: dict[Split, Labels] = {}
        for split in wanted:  # before the texts of any split are tokenized
            path, texts = files[split], read[split].texts
            labels[split] = label_values(path, texts) if self.regression else label_numbers(path, texts, self.labels)
        for split in wanted:
            self._open(split, files, read[split], labels[split])
        if self.vector_spec is not None and self.vectors is None:
            counts, source = self.splits["train"].frequencies(len(self.vocabulary)), self.tokenizer_source
            self.vectors = vocabulary_vectors(
                self.vector_spec, self.vocabulary, counts, source, root=self.root, cache=self.cache
            )
        held = ", ".join(pluralize(len(self.splits[split]), f"{split} text") for split in wanted)
        kinds = "numbers as labels" if self.regression else f"{len(self.labels)} labels"
        tokens = f"a vocabulary of {pluralize(len(self.vocabulary), 'token')}"
        inform(f"Data ready in {time.perf_counter() - entered:.1f} s: {held}, {kinds}, {tokens}.")

    def _open(self, split: Split, files: Mapping[str, Path], read: LabelledTexts, labels: Labels) -> None:
        """Plant shortcuts in a split, tokenize it, number its tokens, and audit it."""
        # A text of train that differs in case alone has been seen, too.
        self._contents[split] = pa.array([f"{text.text}\x1f{text.pair or ''}".lower() for text in read.texts])
        if self.shortcut is not None:
            read = self._planted(split, files[split], read, self.shortcut)
            labels = label_numbers(files[split], read.texts, self.labels)
        words, tokens, lost = self._tokenized(read)
        if split == "train" and self._pieces is not None:
            self.vocabulary = tokenization.piece_vocabulary(self._pieces)
        elif split == "train":
            self.vocabulary = tokenization.build_vocabulary(tokens.counts, min_count=self.min_count)
        if split == "train" and self.shortcut is not None:
            self._check_planted(files[split], self.shortcut.words(self.labels))
        data = self.splits[split] = TextSplit(
            split, read.texts, labels, words, tokens, lost, self.vocabulary, self._pieces
        )
        # Two splits of one file are the same by intention.
        same = [] if self.columns.split else [one for one in self._contents if files[one] == files[split]]
        others = {one: texts for one, texts in self._contents.items() if one == split or one not in same}
        warn_of_records(str(self.corpus if self._known_labels else files[split]), read.audit)
        shared = count_shared(others, split)
        warn_of_split(split, shared, len(data), self.unit)
        data.warn_of_unknown(str(files[split]))
        train = self.splits.get("train")
        if self._pieces is None and train is not None and not train.counts["unknown_tokens"]:
            data.warn_of_untrained(str(files[split]))
        if self.regression:
            described = {"lowest": float(labels.min()), "mean": float(labels.mean()), "highest": float(labels.max())}
        else:
            described = dict(zip(self.labels, np.bincount(labels, minlength=len(self.labels)).tolist(), strict=True))
        self._audit[split] = {**read.audit, **data.counts, **shared, "labels": described}

    def _tokenized(self, read: LabelledTexts) -> tuple[Words, TokenizedTexts, Numbers]:
        return tokenization.tokenize(read.texts, self._pieces, self.token_options)

    def _planted(self, split: Split, path: Path, read: LabelledTexts, shortcut: Planting) -> LabelledTexts:
        """Plant shortcuts among the words that are read, so that `max_length` cuts no planted word.

        First they are planted before each text: whatever is still read of the text is then read with them anywhere in
        it. A tokenizer that depends on the neighbours of a word may need more pieces there, and the words of such a
        text stay before it.
        """
        within = np.zeros(len(read.texts), np.int64)
        for attempt in range(3):
            planted = shortcut.plant(path, read, split, self.labels, within.tolist())
            tokens = self._tokenized(planted)
            unread = tokenization.unread_words(planted.texts, self._pieces, self.token_options, tokens)
            after = [len(text.text.split()) - max(text.rationale or (-1,)) for text in planted.texts]
            cut = after <= unread
            if cut.any() and not attempt:
                wrong, remedy = f"{setting('data.max_length')} leaves no room for the planted words", "Raise it"
                raise CorpusError.at(path, planted.texts[int(cut.argmax())].line, wrong, remedy)
            within = np.where(cut, 0, within)
            if not attempt:
                within = np.maximum([len(text.text.split()) for text in read.texts] - unread, 0)
        return planted

    def _check_planted(self, path: Path, words: Sequence[str]) -> None:
        """Raise a CorpusError if a classifier cannot tell the planted words apart from each other or from others."""
        if self._pieces is None:
            found = [(number,) for number in self.vocabulary.numbers(words).tolist()]
            remedy = f"Raise {setting('data.shortcut.share')}, or lower {setting('data.shortcut.min_count')}"
        else:
            split = self._pieces.split(words, [None] * len(words))
            found = [tuple(one.ids[one.sources >= 0].tolist()) for one in split]
            remedy = f"Choose another {setting('data.tokenizer')}, or leave out {setting('data.shortcut')}"
        for word, own in zip(words, found, strict=True):
            if self.vocabulary.unknown in own or found.count(own) > 1:
                raise CorpusError.at(path, None, f"the planted word {word!r} is not in the vocabulary", remedy)

    def tokenizer_fault(self, source: EncoderSource) -> str | None:
        """Return why an encoder cannot read the tokens of the texts; None if its tokenizer gives the same tokens.

        Args:
            source: Files of the encoder.
        """
        if self._pieces is None:
            return "the tokens of the data are words"
        own = TextTokenizer(source)
        if (own.rules, tokenization.piece_vocabulary(own).digest) != (self._pieces.rules, self.vocabulary.digest):
            return f"its tokenizer is not the tokenizer of the data, {self._pieces.name}"
        longest = max(int(split.lengths.max()) for split in self.splits.values())
        return f"it reads {own.max_length} tokens, but a text has {longest}" if longest > own.max_length else None

    def word_vectors(self) -> tuple[Tensor, Tensor] | None:
        """Return the word vectors of the vocabulary, and a mask of the entries that have one.

        Returns:
            Vectors, float32 `[vocabulary, size]`, zeros for entries without one; and the mask, bool `[vocabulary]`.
            None if the datamodule has no word vectors.
        """
        if self.vectors is None:
            return None
        rows = self.vectors.rows(self.vocabulary.words)
        return torch.from_numpy(self.vectors.matrix[rows]), torch.from_numpy(rows >= 0)

    def text(self, split: Split, item: int) -> tuple[str, tuple[str, ...]]:
        """Return the id of a text, and the strings of its tokens, delimiters included.

        Args:
            split: Split of the text.
            item: Index of the text in the split.
        """
        data = self.splits[split]
        return data.ids[item], tuple(self.vocabulary.words[number] for number in data.tokens(item))

    @property
    def identity(self) -> Mapping[str, object]:
        """Values that identify vocabulary, labels, tokenizer and shortcut, by name.

        Trained parameters depend on them. The value of `tokenizer` is None if tokens are words, that of `shortcut` if
        nothing is planted.
        """
        tokenizer = None
        if self.tokenizer_source is not None:
            texts = self.tokenizer_source.identity(Digests(self.cache))["texts_sha256"]
            tokenizer = {"texts_sha256": texts, "version": PIECES_VERSION}
        return {
            "vocabulary": self.vocabulary.digest,
            "labels": list(self.labels),
            "tokenizer": tokenizer,
            "delimiters": self.token_options.delimiters,
            "shortcut": None if self.shortcut is None else asdict(self.shortcut),
        }

    @property
    def provenance(self) -> Provenance:
        """Provenance of the texts, which is written with the results.

        It describes the tokenizer's encoder, the word vectors and the file of each split, and counts
        what was dropped, cut or unknown.
        """
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
                known = {**corpus_of(files[split]), "file": files[split].name, "sha256": digests.one(files[split])}
                planted = {} if self.shortcut is None else {"shortcut": asdict(self.shortcut)}
                # Annotations name documents, which are other files.
                read = {"tokens_sha256": self.splits[split].digest} if self.format == "eraser" else {}
                data[split] = {**known, **planted, **read, "texts": len(self.splits[split])}
                audit[split] = self._audit[split]
        return Provenance(encoder, data, audit)

    def _batches(self, data: TextSplit, *, shuffle: bool = False) -> BatchLoader[TextBatch]:
        if shuffle:
            return self._serve(data, shuffle=True, max_cells=None, max_sentences=self.batch_size, jitter=_JITTER)
        return self._serve(data, shuffle=False, max_cells=self.eval_tokens, max_sentences=len(data), cells="tokens")


def masked(data: ClassificationDataModule, chosen: Mapping[Split, NDArray[np.bool_]]) -> ClassificationDataModule:
    """Return a datamodule, set up, with the mask token in the place of some tokens of its texts.

    Args:
        data: Datamodule, set up, whose vocabulary has a mask token.
        chosen: Bool `[tokens]` by split, over the tokens of all its texts; True for the tokens to replace. The result
            has these splits.
    """
    assert data.vocabulary.mask is not None
    found = copy(data)
    found.splits = {split: data.splits[split].replaced(some, data.vocabulary.mask) for split, some in chosen.items()}
    return found


def class_counts(data: ClassificationDataModule) -> Numbers:
    """Return the number of train texts with each label, int64 `[classes]`."""
    return np.bincount(data.splits["train"].labels, minlength=len(data.labels))
