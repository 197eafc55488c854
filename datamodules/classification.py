"""Datamodule of a labelled corpus as batches of tokens, for text classifiers."""

import time
from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention_probing.attention import resolve
from attention_probing.attention.encoder import EncoderOption, specification_of
from attention_probing.attention.inputs import PIECES_VERSION, TextTokenizer
from attention_probing.attention.source import EncoderSource
from attention_probing.corpora.eraser import ERASER_COLUMNS
from attention_probing.corpora.formats import LABELLED, LabelledFormat
from attention_probing.corpora.labelled import Columns, LabelledTexts, read_labelled
from attention_probing.corpora.records import RecordFormat, warn_of_records
from attention_probing.corpora.registry import CORPORA, Corpus, MainScore
from attention_probing.corpora.sample import SAMPLE_VERSION, write_sample_reviews
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.shortcuts import Planting
from attention_probing.corpora.splits import SPLITS, Split, corpus_of
from attention_probing.datamodules import tokenization
from attention_probing.datamodules.batches import BatchLoader, TextBatch
from attention_probing.datamodules.corpus import CorpusDataModule
from attention_probing.datamodules.gold import GoldShuffle, classes_of_length
from attention_probing.datamodules.labels import Labels, describe_labels, find_labels, label_numbers, label_values
from attention_probing.datamodules.planting import check_planted_words, plant_shortcuts
from attention_probing.datamodules.text_split import TextSplit
from attention_probing.datamodules.tokenization import (
    Punctuation,
    TokenizedTexts,
    TokenOptions,
    Vocabulary,
)
from attention_probing.datamodules.vectors import vocabulary_vectors
from attention_probing.datamodules.warnings import count_shared, has_many_rare, warn_of_rare, warn_of_split
from attention_probing.results import Integers, Provenance
from attention_probing.results.digests import Digests
from attention_probing.results.errors import pluralize, setting
from attention_probing.results.options import Positive, checked
from attention_probing.results.progress import inform

SCORES: Mapping[bool, tuple[MainScore, ...]] = {
    False: ("accuracy", "f1", "auroc", "mcc"),
    True: ("pearson", "spearman"),
}
"""Scores of a classification (False) and of a regression (True); the first is the default."""

EVAL_TOKENS = 16384
"""Largest number of tokens of a pass without gradients, padding included."""

_UNKNOWN = Corpus("", {}, "", "", "")
_JITTER = 0.1
"""Jitter of the lengths by which training texts are put into batches; see `LengthBatches`."""


def _default_columns(known: Corpus, format: str | None) -> Columns:
    """Return the columns of a corpus of the registry, of ERASER, or the defaults."""
    if format == "eraser":
        return ERASER_COLUMNS
    return Columns(**known.columns)


def _choose_score(score: MainScore | None, known: Corpus, regression: bool) -> MainScore:
    """Return the main score: the given one, else that of the registry, else accuracy or pearson."""
    possible = SCORES[regression]
    if score is not None and score not in possible:
        kind = "regression" if regression else "classification"
        raise CorpusError(
            f"{setting('data.score')} is {score}, but must be a score of a {kind}: {' or '.join(possible)}."
        )
    if score is not None:
        return score
    if known.score in possible:
        return known.score
    return possible[0]


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
            columns in the registry, else those of ERASER or `text` and `label`. In Python also a mapping, such as
            `{"text": "review", "label": "stars"}`. With `columns.split`, the labels are
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
    limited = "texts"
    holds = "labelled texts"
    exchanges = "texts"
    batch = TextBatch
    suffix = "tsv"
    divides = (
        ". If it has a column that says train, dev or test of each text, name that column: "
        f"{setting('data.columns.split', 'split')}; without one, add it, and draw the splits at random"
    )
    always = ("train",)
    splits: dict[Split, TextSplit]
    sample = (f"reviews-{SAMPLE_VERSION}", write_sample_reviews)

    @checked
    def __init__(
        self,
        corpus: str | dict[str, str] = "sample",
        format: LabelledFormat | None = None,
        columns: Columns | None = None,
        tokenizer: EncoderOption | None = None,
        punctuation: Punctuation = "attached",
        min_count: Positive = 1,
        max_length: Positive | None = 1000,
        delimiters: bool = False,
        sentence_separator: str | None = None,
        positive: str | None = None,
        regression: bool | None = None,
        score: MainScore | None = None,
        batch_size: Positive = 32,
        shortcut: Planting | None = None,
        **shared: Any,  # noqa: ANN401 # options of CorpusDataModule
    ) -> None:
        super().__init__(corpus, **shared)
        known = _UNKNOWN
        if isinstance(corpus, str):
            known = CORPORA.get(corpus, _UNKNOWN)
        given: object = columns
        if isinstance(given, dict):  # in Python alone: the command line checks the names by the annotation
            columns = Columns(**given)
        self.columns = columns or _default_columns(known, format)
        if self.columns.label is None:
            raise CorpusError(
                f"{setting('data.columns.label')} is null, but a classifier needs labels. Name their column."
            )
        self.format = format
        self._skip = known.skip
        self._known_labels = known.labels if columns is None else ()
        self.regression = known.regression if regression is None else regression
        if self.regression and shortcut is not None:
            raise CorpusError(
                f"{setting('data.shortcut')}: a shortcut decides between classes, but these labels are numbers. "
                f"Leave it out."
            )
        self.shortcut = shortcut
        self.score = _choose_score(score, known, self.regression)
        self.tokenizer = None if tokenizer is None else specification_of(tokenizer)
        self.token_options = TokenOptions(punctuation, delimiters, sentence_separator, max_length)
        self.min_count = min_count
        default_positive = "positive" if corpus == "sample" else "1"
        self.positive_label = positive or known.positive or default_positive
        self.batch_size = batch_size
        self.eval_tokens = EVAL_TOKENS
        self.labels: tuple[str, ...] = ()
        self.positive: int | None = None
        self.tokenizer_source: EncoderSource | None = None
        self.vocabulary: Vocabulary
        self._pieces: TextTokenizer | None = None
        self._audit: dict[Split, dict[str, object]] = {}
        self._contents: dict[Split, pa.Array] = {}

    def files(self) -> Mapping[str, Path]:
        is_path = isinstance(self.corpus, str) and self.corpus not in ("sample", *CORPORA)
        if is_path and "{split}" not in self.corpus:
            path = Path(str(self.corpus)).expanduser()
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
        if self.format is not None and self.format in LABELLED:
            return LABELLED[self.format](path, self.columns)
        columns = self.columns
        if self.corpus == "sample":
            columns = replace(columns, rationale="rationale")
        if not columns.split:
            split = None
        form = cast(RecordFormat | None, self.format)
        corpus = read_labelled(path, columns=columns, format=form, split=split, skip=self._skip)
        if self._known_labels:
            self._check_labels(path, corpus)
        return corpus

    def _check_labels(self, path: Path, corpus: LabelledTexts) -> None:
        """Raise a CorpusError if a text has a label that the registry does not know."""
        for text in corpus.texts:
            if text.label not in self._known_labels:
                wrong = f"label {text.label!r} is not a label of {self.corpus} ({', '.join(self._known_labels)})"
                wrong += ", so this is not the original file"
                remedy = f"Replace it: {CORPORA[str(self.corpus)].recipe}"
                raise CorpusError.at(path, text.line, wrong, remedy)

    def setup(self, stage: str) -> None:
        """Read and tokenize the splits of a stage.

        The first call also fixes the labels and the vocabulary. The labels are the classes of train; the
        vocabulary has words of train or, with a tokenizer, its pieces. Then it loads the word vectors of
        this vocabulary, if any.
        """
        files = self.files()
        reads, prepares = self.splits_of(stage, files)
        missing = [split for split in (*reads, *prepares) if split not in self.splits]
        if not missing:
            return
        began = time.perf_counter()
        if self.tokenizer is not None and self._pieces is None:
            self.tokenizer_source = resolve(self.tokenizer)
            self._pieces = TextTokenizer(self.tokenizer_source)
        corpora = {split: self.read(files[split], split) for split in missing}
        if "train" in corpora and not self.regression:
            of_labels = corpora["train"]
            if self.columns.split:  # of questions, the rare answers may all be in dev and test
                of_labels = self.read(files["train"])
            self.labels, self.positive = find_labels(files["train"], of_labels.texts, self.positive_label)
        for split in missing:  # after the labels were found, of which a small draw may lack one
            corpora[split] = exchange_labels(self.limit.apply(corpora[split]), split, self.shuffle)
        labels: dict[Split, Labels] = {}
        for split in missing:  # before the texts of any split are tokenized
            path = files[split]
            texts = corpora[split].texts
            if self.regression:
                labels[split] = label_values(path, texts)
            else:
                labels[split] = label_numbers(path, texts, self.labels)
        for split in missing:
            self._open(split, files, corpora[split], labels[split])
        if self.vector_spec is not None and self.vectors is None:
            frequencies = self.splits["train"].frequencies(len(self.vocabulary))
            self.vectors = vocabulary_vectors(
                self.vector_spec,
                self.vocabulary,
                frequencies,
                self.tokenizer_source,
                root=self.root,
                cache=self.cache,
            )
        sizes = ", ".join(pluralize(len(self.splits[split]), f"{split} text") for split in missing)
        kinds = "numbers as labels" if self.regression else f"{len(self.labels)} labels"
        tokens = f"a vocabulary of {pluralize(len(self.vocabulary), 'token')}"
        inform(f"Data ready in {time.perf_counter() - began:.1f} s: {sizes}, {kinds}, {tokens}.")

    def _open(self, split: Split, files: Mapping[str, Path], corpus: LabelledTexts, labels: Labels) -> None:
        """Plant shortcuts in a split, tokenize it, number its tokens, and audit it."""
        path = files[split]
        # A text of train that differs in case alone has been seen, too.
        contents = [f"{text.text}\x1f{text.pair or ''}".lower() for text in corpus.texts]
        self._contents[split] = pa.array(contents)
        if self.shortcut is not None:
            corpus = plant_shortcuts(self.shortcut, path, corpus, split, self.labels, self._pieces, self.token_options)
            labels = label_numbers(path, corpus.texts, self.labels)
        words, tokens, cut = tokenization.tokenize(corpus.texts, self._pieces, self.token_options)
        if split == "train":
            self.vocabulary = self._build_vocabulary(tokens)
            if self.shortcut is not None:
                planted_words = self.shortcut.words(self.labels)
                check_planted_words(path, planted_words, self.vocabulary, self._pieces)
        data = TextSplit(split, corpus.texts, labels, words, tokens, cut, self.vocabulary, self._pieces)
        self.splits[split] = data
        shared = count_shared(self._contents_beside(split, files), split)
        warn_of_records(str(self.corpus if self._known_labels else path), corpus.audit)
        warn_of_split(split, shared, len(data), self.unit)
        data.warn_of_unknown(str(path))
        self._warn_of_vocabulary(data, str(path))
        counts_of_labels = describe_labels(labels, self.labels)
        self._audit[split] = {**corpus.audit, **data.counts, **shared, "labels": counts_of_labels}

    def _warn_of_vocabulary(self, data: TextSplit, where: str) -> None:
        """Warn of tokens of a split that train has too seldom; once if train itself has many unknown tokens."""
        train = self.splits.get("train")
        if self._pieces is not None or train is None:
            return
        if not train.counts["unknown_tokens"]:
            data.warn_of_untrained(where)
        elif data is train or not has_many_rare(train.counts):
            warn_of_rare(where, data.counts, self.min_count)

    def _build_vocabulary(self, tokens: TokenizedTexts) -> Vocabulary:
        """Return the vocabulary of train, or that of the tokenizer."""
        if self._pieces is None:
            return tokenization.build_vocabulary(tokens.counts, min_count=self.min_count)
        return tokenization.piece_vocabulary(self._pieces)

    def _contents_beside(self, split: Split, files: Mapping[str, Path]) -> dict[Split, pa.Array]:
        """Return the texts of a split and of the splits in other files, by split.

        Two splits of one file are the same by intention, except with a column of splits.
        """
        contents = {}
        for other, texts in self._contents.items():
            if other == split or self.columns.split or files[other] != files[split]:
                contents[other] = texts
        return contents

    def tokenizer_fault(self, source: EncoderSource) -> str | None:
        """Return why an encoder cannot read the tokens of the texts; None if its tokenizer gives the same tokens.

        Args:
            source: Files of the encoder.
        """
        if self._pieces is None:
            return "the tokens of the data are words"
        tokenizer = TextTokenizer(source)
        same_rules = tokenizer.rules == self._pieces.rules
        if not same_rules or tokenization.piece_vocabulary(tokenizer).digest != self.vocabulary.digest:
            return f"its tokenizer is not the tokenizer of the data, {self._pieces.name}"
        longest = max(int(split.lengths.max()) for split in self.splits.values())
        if longest > tokenizer.max_length:
            return f"it reads {tokenizer.max_length} tokens, but a text has {longest}"
        return None

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
        files = self.files()
        digests = Digests(self.cache)
        encoder: dict[str, object] = {}
        source = self.tokenizer_source
        if source is not None:
            name = source.spec.name
            if source.origin == "folder":
                name = source.folder.resolve().name
            encoder = {"name": name, "origin": source.origin, **source.identity(digests)}
        data: dict[str, object] = {}
        audit: dict[str, object] = {"vocabulary": len(self.vocabulary)}
        if self.vectors is not None:
            data["vectors"] = dict(self.vectors.identity)
            audit["vectors"] = dict(self.vectors.audit)
        if self.limit.most is not None:
            audit["limit"] = str(self.limit)
        if self.shuffle is not None:
            audit |= self.shuffle.counts
            data["gold"] = self.shuffle.description
        for split in SPLITS:
            if split not in self.splits:
                continue
            path = files[split]
            entries: dict[str, object] = {**corpus_of(path), "file": path.name, "sha256": digests.of_file(path)}
            if self.shortcut is not None:
                entries["shortcut"] = asdict(self.shortcut)
            if self.format == "eraser":  # annotations name documents, which are other files
                entries["tokens_sha256"] = self.splits[split].digest
            entries["texts"] = len(self.splits[split])
            entries |= self.limit.identity
            data[split] = entries
            audit[split] = self._audit[split]
        return Provenance(encoder, data, audit)

    def _batches(self, data: TextSplit, *, shuffle: bool = False) -> BatchLoader[TextBatch]:
        if shuffle:
            return self._serve(data, shuffle=True, max_cells=None, max_items=self.batch_size, jitter=_JITTER)
        return self._serve(data, shuffle=False, max_cells=self.eval_tokens, max_items=len(data), cells="tokens")


def exchange_labels(corpus: LabelledTexts, split: Split, shuffle: GoldShuffle | None) -> LabelledTexts:
    """Give each text the label of another text of about the same length; return the texts.

    Args:
        corpus: Texts of a split.
        split: Name of the split.
        shuffle: Draws of the texts; None to leave each text its own label.
    """
    if shuffle is None:
        return corpus
    lengths = [len(text.text.split()) + len((text.pair or "").split()) for text in corpus.texts]
    others = shuffle.draw(split, classes_of_length(lengths))
    texts = []
    for text, other in zip(corpus.texts, others.tolist(), strict=True):
        texts.append(replace(text, label=corpus.texts[other].label))
    return replace(corpus, texts=tuple(texts))


def mask_tokens(data: ClassificationDataModule, chosen: Mapping[Split, NDArray[np.bool_]]) -> ClassificationDataModule:
    """Return a datamodule, set up, with the mask token in the place of some tokens of its texts.

    Args:
        data: Datamodule, set up, whose vocabulary has a mask token.
        chosen: Bool `[tokens]` by split, over the tokens of all its texts; True for the tokens to replace. The result
            has these splits.
    """
    mask = data.vocabulary.mask
    assert mask is not None
    changed = copy(data)
    changed.splits = {split: data.splits[split].replace_tokens(flags, mask) for split, flags in chosen.items()}
    return changed


def class_counts(data: ClassificationDataModule) -> Integers:
    """Return the number of train texts with each label, int64 `[classes]`."""
    return np.bincount(data.splits["train"].labels, minlength=len(data.labels))
