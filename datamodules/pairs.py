"""Datamodule of minimal pairs as tokens of a decoder."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
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
from attention_probing.datamodules.batches import BatchLoader, PairBatch
from attention_probing.datamodules.corpus import DEFAULT_SPEC, CorpusDataModule
from attention_probing.datamodules.warnings import warn_of_unknown
from attention_probing.results import Provenance
from attention_probing.results.digests import Digests
from attention_probing.results.errors import UserError, check_names, one_of, setting
from attention_probing.results.options import Positive, checked
from attention_probing.results.progress import inform


class PairSplit(Dataset[PairBatch]):
    """Minimal pairs as tokens, indexed by lists of pairs.

    A sentence is read as in lm-evaluation-harness: a blank before it, no delimiters of the tokenizer, and in front the
    start token, or the end token of a tokenizer without one.

    Args:
        path: File of the pairs, for messages.
        pairs: The pairs.
        encoder: The decoder.

    Attributes:
        pairs: The pairs.
        encoder: The decoder.
        lengths: Number of tokens of each pair: twice those of the longer sentence, with the start token, int64
            `[pairs]`.

    Raises:
        UserError: The encoder is no decoder, its tokenizer has neither of these tokens, or a sentence is too long.
    """

    def __init__(self, path: Path, pairs: Sequence[MinimalPair], encoder: Encoder) -> None:
        self.pairs = tuple(pairs)
        self.encoder = encoder
        tokenizer = encoder.tokenizer
        name = encoder.source.spec.name
        if not encoder.causal:
            raise UserError(
                f"{name} is no decoder: it sees the words on both sides, and gives a sentence no probability. Name a "
                f"decoder with a language-modelling head (gpt2) with {setting('encoder')}."
            )
        start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        if start is None:
            raise UserError(
                f"{name}: the tokenizer has no start and no end token, so nothing comes before the first token of a "
                f"sentence, and it has no probability. Name another encoder with {setting('encoder')}."
            )
        sentences = []
        for pair in pairs:
            sentences += [f" {pair.good}", f" {pair.bad}"]
        tokens = tokenizer(sentences, add_special_tokens=False, verbose=False)["input_ids"]
        unknown = sum(tokenizer.unk_token_id in ids for ids in tokens)
        warn_of_unknown(path, unknown, len(tokens), "sentences", name)
        self._ids = []
        for ids in tokens:
            if ids[:1] != [start]:
                ids = [start, *ids]
            self._ids.append(torch.tensor(ids))
        longer = np.array([len(ids) for ids in self._ids], np.int64).reshape(-1, 2).max(1)
        if longer.max() > encoder.max_length:
            wrong = f"a sentence has {longer.max()} tokens, but {name} reads {encoder.max_length}"
            raise CorpusError.at(path, pairs[longer.argmax()].line, wrong, "Remove the pair, or name another encoder")
        self.lengths = 2 * longer

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, items: list[int]) -> PairBatch:
        ids = []
        for item in items:
            ids += [self._ids[2 * item], self._ids[2 * item + 1]]
        return PairBatch(
            index=torch.tensor(items, dtype=torch.int64),
            lengths=torch.tensor([len(sentence) for sentence in ids], dtype=torch.int64),
            tokens=pad_sequence(ids, True, self.encoder.pad_id) if ids else torch.zeros(0, 0, dtype=torch.int64),
        )

    @property
    def bounds(self) -> dict[str, Any]:
        """Options of `LengthBatches` that bound a batch."""
        encoder = self.encoder
        longest = int(self.lengths.max()) // 2
        # Logits are the largest tensor of a pass. Two copies of a batch run at once.
        most = pieces_at_once(encoder.device, longest, encoder.heads, len(encoder.tokenizer)) // 2
        return {"max_cells": max(most, 1), "max_items": len(self), "cells": "tokens"}


class PairDataModule(CorpusDataModule[PairBatch]):
    """Datamodule of minimal pairs, for measurements of a decoder.

    Args:
        corpus: `blimp`, or a JSONL, TSV or CSV file, see `corpora.pairs.read_pairs`.
        encoder: The decoder.
        fields: Fields of grammar to read; None for all.
        per_paradigm: Largest number of pairs of each paradigm, the first of the file; None for all.
        root: Folder of the public corpora; else `$PROBING_DATA`, else `./data`.
        cache: Folder for the checksums of files; else `$PROBING_CACHE`, else `./stores`.
        columns: Names of the columns in a file of another project; None for those of BLiMP.

    Attributes:
        audit: Counts of the reader, see `corpora.pairs.read_pairs`; empty before `read`.

    Raises:
        UserError: On `setup`, the file is absent or malformed, a field is unknown, or the decoder cannot read the
            pairs.
    """

    holds = "minimal pairs"
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
    ) -> None:
        super().__init__(corpus, root, cache)
        if fields is not None:
            check_names(setting("data.fields"), fields)
        self.encoder = specification_of(encoder)
        self.fields = fields
        self.per_paradigm = per_paradigm
        self.columns = columns or PairColumns()
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
            if pair.field in fields and place < most:
                chosen.append(pair)
        return tuple(chosen)

    def setup(self, stage: str) -> None:
        """Load the decoder, and read and tokenize the pairs."""
        self.splits_of(stage, {})
        if self.splits:
            return
        entered = time.perf_counter()
        pairs = PairSplit(self.files()["test"], self.read(), Encoder(resolve(self.encoder), self.device))
        self.splits["test"] = pairs
        seconds = time.perf_counter() - entered
        inform(f"Data ready in {seconds:.1f} s: {len(pairs):,} minimal pairs, read by {self.encoder.name}.")

    def test_dataloader(self) -> list[BatchLoader[PairBatch]]:
        """Return one loader of all pairs."""
        return [self._serve(self.splits["test"], shuffle=False, **self.splits["test"].bounds)]

    @property
    def provenance(self) -> Provenance:
        """Description of the decoder and the file, with counts of the pairs by field, and those of the reader."""
        path = self.files()["test"]
        digests = Digests(self.cache)
        split = self.splits["test"]
        encoder = {**split.encoder.description, **split.encoder.source.identity(digests)}
        data = {**corpus_of(path), "file": path.name, "sha256": digests.of_file(path), "pairs": len(split)}
        fields = Counter(pair.field for pair in split.pairs)
        return Provenance(encoder, {"test": data}, {"test": {**fields, **self.audit}})
