"""Formats of corpora: the reader of each format, for each kind of data. A new format is a reader and one line here.

A reader of treebanks or documents has a version, which is part of the key under which attention over a file is stored.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, Literal, TypeVar

from attention_probing.corpora.conll2012 import DOCUMENTS_VERSION, read_documents
from attention_probing.corpora.conllu import READER_VERSION, read_treebank
from attention_probing.corpora.document import WINDOWS_VERSION, Documents
from attention_probing.corpora.eraser import read_eraser
from attention_probing.corpora.framenet import read_framenet
from attention_probing.corpora.labelled import Columns, LabelledTexts
from attention_probing.corpora.sentence import Treebank
from attention_probing.corpora.texts import Half, Text, read_enhanced, read_links, read_plain, read_sentences

Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Reader(Generic[Parsed]):
    """Reader of one format.

    Attributes:
        read: Function of a path, and of options of the kind of data, that returns the parsed file. It raises a
            CorpusError with file, line and remedy if the file breaks the format.
        identity: Name and version of the reader. Raise the version with every change that makes the same file give
            other items; else stores made before the change would be taken for current ones.
    """

    read: Callable[..., Parsed]
    identity: Mapping[str, object]


_CONLLU = Reader(read_treebank, {"name": "treebank", "version": READER_VERSION, "format": None})
_CONLL2012 = Reader(
    read_documents,
    {"name": "documents", "version": DOCUMENTS_VERSION, "windows": WINDOWS_VERSION, "parses": READER_VERSION},
)

TREEBANKS: Mapping[str, Reader[Treebank]] = {".conllu": _CONLLU, ".conll": _CONLLU, ".conllx": _CONLLU}
"""Reader of a treebank by the suffix of its file. Option: `texts`, True to read the running text of each sentence."""

DOCUMENTS: Mapping[str, Reader[Documents]] = {".conll": _CONLL2012}
"""Reader of documents with coreference by the suffix. Options: `tags`, the meaning of other tags; `texts`."""

TEXTS: Mapping[str, Callable[[Path, Counter[str]], Iterator[Text]]] = {
    "text": read_plain,
    "conllu": partial(read_sentences, format="conllu"),
    "conllx": partial(read_sentences, format="conllx"),
    "enhanced": read_enhanced,
}
"""Reader of texts by the name of the format, a function of the path and of the counter of what is left out."""

HALVED: Mapping[str, Callable[[Path, Counter[str], Half | None], Iterator[Text]]] = {
    "links": read_links,
    "framenet": read_framenet,
}
"""Reader of texts of one file that is drawn into halves, its splits dev and test, by the name of the format.

The reader is a function of the path, of the counter of what is left out, and of the half to read; None reads all.
"""

TABLES = ("tsv", "csv", "jsonl")
"""Formats of labelled texts in records, which have columns; see `corpora.labelled`."""

LabelledFormat = Literal["tsv", "csv", "jsonl", "eraser"]
"""Names of the formats of labelled texts for classifiers: `TABLES`, and those of `LABELLED`."""

LABELLED: Mapping[str, Callable[[Path, Columns], LabelledTexts]] = {"eraser": read_eraser}
"""Reader of labelled texts that are no table by the name of the format, a function of the path and the columns."""

TEXT_FORMATS = (*TEXTS, *TABLES, *HALVED)
"""Names of all formats of texts."""

TEXT_SUFFIXES: Mapping[str, str] = {
    ".txt": "text",
    ".raw": "text",
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".conllu": "conllu",
    ".conll": "conllx",
    ".conllx": "conllx",
}
"""Format of texts that the suffix of a file implies."""


def treebank_reader(path: Path) -> Reader[Treebank]:
    """Return the reader of a treebank; that of CoNLL-U, which reports the fault, for an unknown suffix."""
    return TREEBANKS.get(path.suffix.lower(), _CONLLU)


def document_reader(path: Path) -> Reader[Documents]:
    """Return the reader of documents with coreference; that of CoNLL-2012 for an unknown suffix."""
    return DOCUMENTS.get(path.suffix.lower(), _CONLL2012)
