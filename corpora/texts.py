"""Passages of text in words, of whatever is read: plain text, labelled texts, treebanks. Nothing read is kept."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from corpora.conllu import Format as TreebankFormat
from corpora.conllu import sentences_with_rows
from corpora.labelled import Columns, labelled_texts
from corpora.labelled import Format as LabelledFormat
from corpora.lines import numbered_lines
from corpora.sentence import Sentence

OPTION = "--data.init_args.corpora"
"""What holds the options of a corpus, for messages."""

_HEADING = re.compile(r"\s*=( .*)? =\s*")  # of WikiText: ` = = Career = = `


@dataclass(frozen=True, slots=True)
class Link:
    """A labelled link between words of one passage.

    Attributes:
        label: For instance the name of a frame element, or of a relation.
        start: Places of the words that it leads from, counted from 0; one at least.
        end: Places of the words that it leads to.
    """

    label: str
    start: tuple[int, ...]
    end: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of text in words, with what is known of them.

    Attributes:
        id: Its name; unique within its file, unless the file names two of its texts alike. Those of a pair share it.
        words: One at least.
        line: The line of the file at which it starts, counted from 1; of a corpus of several files a number.
        label: Of a labelled text; None without.
        sentence: Tags and tree of the words, where they come from a treebank.
        links: Labelled links between the words; None where the corpus does not say which there are.
    """

    id: str
    words: tuple[str, ...]
    line: int
    label: str | None = None
    sentence: Sentence | None = None
    links: tuple[Link, ...] | None = None

    @property
    def whole(self) -> bool:
        """Whether it must not be cut: what is known of its words would be lost."""
        return self.sentence is not None or self.links is not None


Text = tuple[Passage, ...]
"""One passage, or the two of a pair."""


def read_plain(path: Path, audit: Counter[str]) -> Iterator[Text]:
    """Yield the paragraphs of a text file, one a line, in words that stand between white space.

    Headings as WikiText writes them, ` = Title = `, are no paragraphs. `headings` and `empty_lines` are counted.

    Raises:
        CorpusError: The file is missing, in another encoding, or binary.
    """
    for number, line in numbered_lines(path):
        if not (words := tuple(line.split())):
            audit["empty_lines"] += 1
        elif _HEADING.fullmatch(line):
            audit["headings"] += 1
        else:
            yield (Passage(str(number), words, number),)


def read_texts(
    path: Path,
    audit: Counter[str],
    *,
    columns: Columns,
    format: LabelledFormat | None,
    header: bool,
    malformed: Literal["error", "skip"] = "error",
) -> Iterator[Text]:
    """Yield the texts of a TSV, CSV or JSONL file, or its pairs, in words that stand between white space.

    Texts without a word, or with a pair that has none, are left out and counted as `empty_texts`; `malformed` records
    likewise, where they are skipped. Errors are those of `corpora.labelled.labelled_texts`.
    """
    left_out = audit if malformed == "skip" else None
    texts = labelled_texts(path, columns=columns, format=format, header=header, option=OPTION, left_out=left_out)
    for text in texts:
        both = [text.text] if text.pair is None else [text.text, text.pair]
        found = tuple(Passage(text.id, tuple(one.split()), text.line, text.label or None) for one in both)
        if all(passage.words for passage in found):
            yield found
        else:
            audit["empty_texts"] += 1


def read_sentences(path: Path, audit: Counter[str], format: TreebankFormat) -> Iterator[Text]:
    """Yield the sentences of a CoNLL-U or CoNLL-X file.

    Rows of ranges and of empty nodes are left out, and counted as `range_rows` and `empty_rows`; so are sentences with
    `multiple_roots`, which are read. Errors are those of
    `corpora.conllu.read_treebank`.
    """
    for sentence, rows in sentences_with_rows(path, audit, format=format):
        yield (Passage(sentence.id, sentence.words, rows[0][0], sentence=sentence),)
