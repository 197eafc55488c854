"""Datamodule of minimal pairs as tokens of a decoder or of a masked language model."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from attention_probing.attention import Encoder, resolve
from attention_probing.attention.ablation import pieces_at_once
from attention_probing.attention.encoder import EncoderOption, specification_of
from attention_probing.corpora.pairs import MinimalPair, PairColumns, read_pairs
from attention_probing.corpora.records import warn_of_records
from attention_probing.corpora.registry import CORPORA, locate
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.splits import Split, corpus_of
from attention_probing.datamodules.batches import EMPTY, BatchLoader, Lengths, PairBatch
from attention_probing.datamodules.corpus import DEFAULT_SPEC, CorpusDataModule
from attention_probing.datamodules.gold import Gold, GoldShuffle
from attention_probing.datamodules.warnings import warn_of_unknown
from attention_probing.results import Provenance
from attention_probing.results.digests import Digests
from attention_probing.results.errors import UserError, check_names, one_of, setting
from attention_probing.results.options import Positive, checked
from attention_probing.results.progress import inform

Masking = Literal["word_l2r", "original"]
"""Tokens that are masked together with each token of a sentence (Kauf & Ivanova 2023): those of the same word to its
right, or none (Salazar et al. 2020, §2)."""


class PairSplit(Dataset[PairBatch]):
    """Minimal pairs as tokens, indexed by lists of pairs.

    For a decoder, a sentence is read as in lm-evaluation-harness: a blank before it, no delimiters of the tokenizer,
    and in front the start token, or the end token of a tokenizer without one. For a masked language model, it is read
    as in minicons: as it is, with the delimiters of the tokenizer.

    Args:
        path: File of the pairs, for messages.
        pairs: The pairs.
        encoder: The decoder, or the masked language model.
        masking: Tokens that are masked together with each token; a decoder masks none.

    Attributes:
        pairs: The pairs.
        encoder: The decoder, or the masked language model.
        masking: Tokens that are masked together; None for a decoder.
        texts: Number of texts that the model reads for each pair, int64 `[pairs]`: two sentences or, if tokens are
            masked, one text for each token of both; of two equal sentences only one is masked.
        lengths: Number of tokens of each pair, int64 `[pairs]`: those of all its texts, each as long as the longer
            sentence with its delimiters. Both sentences count as the one with more texts.
        longest: Number of tokens of the longest sentence, with its delimiters.

    Raises:
        UserError: A decoder's tokenizer has neither a start nor an end token, a sentence is too long or has no token to
            mask, or a decoder is to mask tokens as in the original.
    """

    def __init__(
        self, path: Path, pairs: Sequence[MinimalPair], encoder: Encoder, masking: Masking = "word_l2r"
    ) -> None:
        self.pairs = tuple(pairs)
        self.encoder = encoder
        self.masking = None if encoder.causal else masking
        name = encoder.source.spec.name
        if encoder.causal and masking != "word_l2r":
            raise UserError(
                f"{setting('data.masking', masking)} is for masked language models, but {name} is a decoder, which "
                "masks no token. Leave it out."
            )
        self._ids: list[Tensor] = []
        self._words: list[Tensor] = []  # of a masked language model: the word of each token, -1 for delimiters
        if encoder.causal:
            self._read_by_decoder(path)
        else:
            self._read_to_mask(path)
        longer = np.array([len(ids) for ids in self._ids], np.int64).reshape(-1, 2).max(1)
        if longer.max() > encoder.max_length:
            wrong = f"a sentence has {longer.max()} tokens, but {name} reads {encoder.max_length}"
            raise CorpusError.at(path, pairs[longer.argmax()].line, wrong, "Remove the pair, or name another encoder")
        self.longest = int(longer.max())
        self._shortest = min(len(ids) for ids in self._ids)
        by_sentence = self._count_texts(path)
        self.texts = by_sentence.sum(1)
        self.lengths = 2 * by_sentence.max(1) * longer

    def _sentences(self, before: str = "") -> list[str]:
        """Return all sentences, the acceptable one of each pair first, with a string before each."""
        sentences = []
        for pair in self.pairs:
            sentences += [before + pair.good, before + pair.bad]
        return sentences

    def _warn_of_unknown(self, path: Path, tokens: Sequence[Sequence[int]]) -> None:
        """Warn if many sentences contain the unknown token."""
        unknown = sum(self.encoder.tokenizer.unk_token_id in ids for ids in tokens)
        warn_of_unknown(path, unknown, len(tokens), "sentences", self.encoder.source.spec.name)

    def _read_by_decoder(self, path: Path) -> None:
        """Tokenize the sentences for a decoder."""
        tokenizer = self.encoder.tokenizer
        start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        if start is None:
            raise UserError(
                f"{self.encoder.source.spec.name}: the tokenizer has no start and no end token, so nothing comes "
                "before the first token of a sentence, and it has no probability. Name another encoder with "
                f"{setting('encoder')}."
            )
        tokens = tokenizer(self._sentences(" "), add_special_tokens=False, verbose=False)["input_ids"]
        self._warn_of_unknown(path, tokens)
        for ids in tokens:
            if ids[:1] != [start]:
                ids = [start, *ids]
            self._ids.append(torch.tensor(ids))

    def _read_to_mask(self, path: Path) -> None:
        """Tokenize the sentences for a masked language model."""
        encoded = self.encoder.tokenizer(self._sentences(), verbose=False)
        self._warn_of_unknown(path, encoded["input_ids"])
        for place, ids in enumerate(encoded["input_ids"]):
            words = [-1 if word is None else word for word in encoded.word_ids(place)]
            self._ids.append(torch.tensor(ids))
            self._words.append(torch.tensor(words))

    def _count_texts(self, path: Path) -> Lengths:
        """Return the number of texts that the model reads for the two sentences of each pair, `[pairs, 2]`."""
        if self.masking is None:
            return np.ones((len(self.pairs), 2), np.int64)
        to_mask = np.array([int((words >= 0).sum()) for words in self._words], np.int64).reshape(-1, 2)
        if not to_mask.all():
            pair = self.pairs[np.argmin(to_mask.min(1))]
            wrong = f"{self.encoder.source.spec.name} reads no token in a sentence, so nothing can be masked"
            raise CorpusError.at(path, pair.line, wrong, "Remove the pair, or name another encoder")
        for place in range(len(self.pairs)):
            if self._ids[2 * place].equal(self._ids[2 * place + 1]):
                to_mask[place, 1] = 0
        return to_mask

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, items: list[int]) -> PairBatch:
        sentences = []
        for item in items:
            sentences += [2 * item, 2 * item + 1]
        ids = [self._ids[place] for place in sentences]
        words = EMPTY
        if self.masking is not None:
            words = _padded([self._words[place] for place in sentences], -1)
        return PairBatch(
            index=torch.tensor(items, dtype=torch.int64),
            lengths=torch.tensor([len(sentence) for sentence in ids], dtype=torch.int64),
            tokens=_padded(ids, self.encoder.pad_id),
            words=words,
        )

    @property
    def logits_per_token(self) -> int:
        """Largest number of logits for each token of a batch; in a masked text, one position has logits."""
        vocabulary = len(self.encoder.tokenizer)
        return vocabulary if self.masking is None else vocabulary // self._shortest

    @property
    def bounds(self) -> dict[str, Any]:
        """Options of `LengthBatches` that bound a batch."""
        encoder = self.encoder
        # Logits are the largest tensor of a pass. Two copies of a batch run at once.
        most = pieces_at_once(encoder.device, self.longest, encoder.heads, self.logits_per_token) // 2
        return {"max_cells": max(most, 1), "max_items": len(self), "cells": "tokens"}


def _padded(sentences: Sequence[Tensor], blank: int) -> Tensor:
    """Return the numbers of some sentences, int64 `[sentences, time]`, with `blank` in the padding."""
    if not sentences:
        return torch.zeros(0, 0, dtype=torch.int64)
    return pad_sequence(list(sentences), True, blank)


class PairDataModule(CorpusDataModule[PairBatch]):
    """Datamodule of minimal pairs, for measurements of a decoder or of a masked language model.

    Args:
        corpus: `blimp`, or a JSONL, TSV or CSV file, see `corpora.pairs.read_pairs`.
        encoder: The decoder, or the masked language model. Its architecture says which it is.
        fields: Fields of grammar to read; None for all.
        per_paradigm: Largest number of pairs of each paradigm, the first of the file; None for all.
        root: Folder of the public corpora; else `$PROBING_DATA`, else `./data`.
        cache: Folder for the checksums of files; else `$PROBING_CACHE`, else `./stores`.
        columns: Names of the columns in a file of another project; None for those of BLiMP.
        masking: Tokens that a masked language model masks together: with each token those of the same word to its
            right, `word_l2r` (Kauf & Ivanova 2023), or each token alone, `original` (Salazar et al. 2020).
        gold: `shuffled` to take, for each pair by a coin, the unacceptable sentence for the acceptable one.

    Attributes:
        audit: Counts of the reader, see `corpora.pairs.read_pairs`; empty before `read`.

    Raises:
        UserError: On `setup`, the file is absent or malformed, a field is unknown, or the model cannot read the
            pairs.
    """

    holds = "minimal pairs"
    exchanges = "pairs"
    batch = PairBatch

    @checked
    def __init__(
        self,
        corpus: str = "blimp",
        encoder: EncoderOption = DEFAULT_SPEC,
        fields: Sequence[str] | None = None,
        per_paradigm: Positive | None = None,
        root: str | None = None,
        cache: str | None = None,
        columns: PairColumns | None = None,
        masking: Masking = "word_l2r",
        gold: Gold = "given",
    ) -> None:
        super().__init__(corpus, root, cache, gold=gold)
        if fields is not None:
            check_names(setting("data.fields"), fields)
        self.encoder = specification_of(encoder)
        self.fields = fields
        self.per_paradigm = per_paradigm
        self.columns = columns or PairColumns()
        self.masking = masking
        self.audit = Counter[str]()

    def files(self) -> Mapping[str, Path]:
        """Return the file of the pairs, under the key `test`."""
        name = str(self.corpus)
        path = Path(name).expanduser()
        if name in CORPORA:
            path = next(iter(locate(name, self.root).values()))
        return {"test": path}

    def splits_of(self, stage: str, files: Mapping[str, Path]) -> tuple[list[Split], list[Split]]:
        """Return the split `test`, which alone is read, and no split to prepare.

        Raises:
            CorpusError: The stage is not `test`.
        """
        if stage != "test":
            raise CorpusError(f"{type(self).__name__} is for measurements alone. Run `probing measure`.")
        return ["test"], []

    def read(self, option: str = "data.columns") -> tuple[MinimalPair, ...]:
        """Return the pairs of the file that the options choose; warn if some may have been read wrongly.

        Args:
            option: Option that holds `columns`, for error messages.

        Raises:
            CorpusError: The file is absent or malformed.
            UserError: A field is unknown.
        """
        self.audit = Counter()
        pairs = read_pairs(self.files()["test"], self.columns, option, self.audit)
        warn_of_records(str(self.corpus), self.audit)
        known = sorted({pair.field for pair in pairs})
        for field in self.fields or ():
            if field not in known:
                raise UserError(
                    f"{setting('data.fields')}: no pair has the field {field!r}. Give {one_of(field, known)}."
                )
        places = pd.DataFrame(pairs).groupby("paradigm").cumcount()
        most = self.per_paradigm or len(pairs)
        fields = self.fields or known
        chosen = []
        for pair, place in zip(pairs, places, strict=True):
            if pair.field not in fields:
                self.audit["left_out_by_fields"] += 1
            elif place >= most:
                self.audit["left_out_by_per_paradigm"] += 1
            else:
                chosen.append(pair)
        if self.shuffle is not None:
            return swap_sentences(chosen, self.shuffle)
        return tuple(chosen)

    def setup(self, stage: str) -> None:
        """Load the model, and read and tokenize the pairs."""
        self.splits_of(stage, {})
        if self.splits:
            return
        entered = time.perf_counter()
        encoder = Encoder(resolve(self.encoder), self.device)
        pairs = PairSplit(self.files()["test"], self.read(), encoder, self.masking)
        self.splits["test"] = pairs
        seconds = time.perf_counter() - entered
        counted = f"{len(pairs):,} minimal pairs"
        if pairs.masking is not None:
            counted += f" in {pairs.texts.sum():,} masked texts"
        inform(f"Data ready in {seconds:.1f} s: {counted}, read by {self.encoder.name}.")

    def test_dataloader(self) -> list[BatchLoader[PairBatch]]:
        """Return one loader of all pairs."""
        return [self._serve(self.splits["test"], shuffle=False, **self.splits["test"].bounds)]

    @property
    def provenance(self) -> Provenance:
        """Description of the model and the file, with counts of the pairs by field, and those of the reader."""
        path = self.files()["test"]
        digests = Digests(self.cache)
        split = self.splits["test"]
        encoder = {**split.encoder.description, **split.encoder.source.identity(digests)}
        test = {**corpus_of(path), "file": path.name, "sha256": digests.of_file(path), "pairs": len(split)}
        data: dict[str, object] = {"test": test}
        fields = Counter(pair.field for pair in split.pairs)
        audit: dict[str, object] = {"test": {**fields, **self.audit}}
        if self.shuffle is not None:
            audit |= self.shuffle.counts
            data["gold"] = self.shuffle.description
        return Provenance(encoder, data, audit)


def swap_sentences(pairs: Sequence[MinimalPair], shuffle: GoldShuffle) -> tuple[MinimalPair, ...]:
    """Return the pairs, in half of which, drawn by a coin, the unacceptable sentence is called the acceptable one."""
    coins = shuffle.generator("test").integers(2, size=len(pairs))
    swapped = []
    for pair, coin in zip(pairs, coins.tolist(), strict=True):
        swapped.append(replace(pair, good=pair.bad, bad=pair.good) if coin else pair)
    shuffle.count("test", len(pairs), 0)
    return tuple(swapped)
