"""Texts of any kind as segments that an encoder reads, streamed: nothing of them is kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from attention import Encoder
from corpora.labelled import Columns
from datamodules.base import CorpusDataModule
from datamodules.batch import EncoderOf, SegmentBatch

_DEFAULT_COLUMNS = Columns()


@dataclass(frozen=True)
class TextSource:
    """One corpus of texts, and how it is read.

    Args:
        corpus: `sample` for the embedded text, a name of the registry, or a file: plain text (`.txt`, `.raw`), labelled
            texts (`.tsv`, `.csv`, `.jsonl`), a treebank (`.conllu`) or word links (`format: links`).
        name: of the corpus in tables; by default that of the registry, or the stem of the file.
        split: of a corpus of the registry.
        format: by default what the suffix says.
        columns: of labelled texts.
        header: whether TSV and CSV name their columns.
        packing: each passage is a segment of its own (`single`), or two that follow one another are packed into one, as
            in BERT's pre-training (`pairs`).
        limit: most segments; None for all.
    """

    corpus: str = "sample"
    name: str | None = None
    split: Literal["train", "dev", "test", "all"] = "test"
    format: Literal["text", "tsv", "csv", "jsonl", "conllu", "links"] | None = None
    columns: Columns = _DEFAULT_COLUMNS
    header: bool = True
    packing: Literal["single", "pairs"] = "single"
    limit: int | None = None


class TextDataModule(CorpusDataModule[SegmentBatch]):
    """Text segments of one or more corpora, through one encoder, at the level of its tokens.

    Attributes:
        encoders: the given one, and with `random_init` that of random weights; filled by `setup`.
        names: of the corpora, in their order; as in the batches.
    """

    encoders: Mapping[EncoderOf, Encoder]
    names: tuple[str, ...]
