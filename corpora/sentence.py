"""Sentences with dependency trees, and the error class of all corpus readers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from attention_probing.results.errors import UserError, pluralize


class CorpusError(UserError):
    """Error in a corpus; `CorpusError.at` makes its message from file, line, fault and remedy."""


@dataclass(frozen=True, slots=True)
class RunningText:
    """Text of a sentence as it was written, with the places of its words.

    The words of a multiword token divide its characters: each word but the last takes those with which its form begins
    (the first word at least one), and the last word takes the rest. German `zum` is `zu` and `m` for its words `zu` and
    `dem`. A word may get no character.

    Attributes:
        text: The text, without blanks around it.
        starts: 0-based index of the first character of each word, in ascending order; equal for words without a
            character.
        respelled: Number of words of multiword tokens that are not the joined forms of their words.
        unlike_comment: True if the comment `# text` of the sentence is another text; False also without the comment.
    """

    text: str
    starts: tuple[int, ...]
    respelled: int = 0
    unlike_comment: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """Characters of each word, with the blank after it."""
        return tuple(self.text[start:end] for start, end in pairwise((*self.starts, len(self.text))))


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of n ≥ 1 syntactic words with its dependency tree; every column has n entries.

    Attributes:
        id: Name of the sentence, unique within its file.
        words: Word forms as in the corpus.
        heads: Position of each word's head, counted from 1; 0 for a root.
        relations: Full label of the arc between each word and its head, subtype included (`nmod:poss`).
        upos: Universal part of speech of each word (the coarse tag of a CoNLL-X file).
        xpos: Tag of each word in the treebank's own tag set (the fine tag of a CoNLL-X file); `_` for none.
        running: Text of the sentence; None if it was not read, or the format does not have it.
        document: Number of the sentence's document in the file, from 0; -1 if the file marks no documents.

    Raises:
        ValueError: The columns differ in length, or there is no word.
    """

    id: str
    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    upos: tuple[str, ...]
    xpos: tuple[str, ...]
    running: RunningText | None = None
    document: int = -1

    def __post_init__(self) -> None:
        # The reader, which knows file and line, checks that the heads form a tree.
        n = len(self.words)
        if n == 0:
            raise ValueError(f"Sentence {self.id!r} has no words.")
        if not n == len(self.heads) == len(self.relations) == len(self.upos) == len(self.xpos):
            raise ValueError(
                f"Sentence {self.id!r} has {n} words, {len(self.heads)} heads, {len(self.relations)} relations, "
                f"{len(self.upos)} upos and {len(self.xpos)} xpos: all five must be of one length."
            )

    def __len__(self) -> int:
        return len(self.words)

    def conllu(self, text: str | None = None, misc: Sequence[str] = ()) -> str:
        """Return the sentence in CoNLL-U, with the blank line that ends it.

        Args:
            text: Comment `text`; None for none.
            misc: Column MISC of each word; `_` by default.
        """
        lines = [f"# sent_id = {self.id}"]
        if text is not None:
            lines.append(f"# text = {text}")
        if not misc:
            misc = ["_"] * len(self)
        columns = zip(self.words, self.upos, self.xpos, self.heads, self.relations, misc, strict=True)
        for place, (word, upos, xpos, head, relation, other) in enumerate(columns, start=1):
            lines.append(f"{place}\t{word}\t_\t{upos}\t{xpos}\t_\t{head}\t{relation}\t_\t{other}")
        return "\n".join([*lines, "", ""])


@dataclass(frozen=True)
class Treebank:
    """The sentences of one treebank file, and the counts of its reader.

    The entries of `audit` are:

    - `sentences` and `words`: sentences and words returned.
    - `range_rows` and `empty_rows`: rows dropped, for multiword tokens such as `3-4` and for empty nodes such as
      `8.1`.
    - `multiple_roots`: sentences with several roots, which are kept.
    - `duplicates`: sentences with the same words as an earlier one.
    - `generated_ids`: sentences without `sent_id`, to which the reader gave a name.
    - `repeated_ids`: sentences whose `sent_id` occurred before, to which the reader added a suffix.
    - `comment_blocks`: blocks of comments without a row.
    - `documents`: documents with a sentence, as marked by `# newdoc`; 0 if none is marked.

    Attributes:
        sentences: Sentences in the order of the file, at least one.
        audit: Counts by name, as listed above.
    """

    sentences: tuple[Sentence, ...]
    audit: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.sentences)

    def check_heads(self, path: Path) -> None:
        """Check that every head is a word of its sentence, or 0 for a root.

        The readers of this package check it while they know the line; a reader of your own may not.

        Args:
            path: File of the treebank, for the message.

        Raises:
            CorpusError: A head is out of range.
        """
        for sentence in self.sentences:
            words = len(sentence)
            if min(sentence.heads) >= 0 and max(sentence.heads) <= words:
                continue
            for word, head in zip(sentence.words, sentence.heads, strict=True):
                if not 0 <= head <= words:
                    raise CorpusError(
                        f"{path}: sentence {sentence.id!r}: the word {word!r} has head {head}, but the sentence has "
                        f"{pluralize(words, 'word')}. Let the reader of the format return heads from 1 to {words}, "
                        "and 0 for a root."
                    )


def find_cycle(heads: Sequence[int]) -> tuple[int, ...]:
    """Return a cycle in a list of heads, as positions of words, each followed by its head; () if there is none.

    The time is linear in the number of words.

    Args:
        heads: Position of each word's head; positions count from 1, and 0 stands for the root.
    """
    walk_of = [0] * (len(heads) + 1)  # the walk that first passed the word; the root belongs to none
    for start in range(1, len(heads) + 1):
        word = start
        while word and not walk_of[word]:
            walk_of[word] = start
            word = heads[word - 1]
        if word and walk_of[word] == start:
            cycle = [word]
            word = heads[word - 1]
            while word != cycle[0]:
                cycle.append(word)
                word = heads[word - 1]
            return tuple(cycle)
    return ()


# Words are plain strings, which Parquet dictionary-encodes itself. Labels are few, and models read their codes: one
# flat int32 array that NumPy views without a copy.
_LABELS = pa.list_(pa.dictionary(pa.int32(), pa.string()))
SENTENCE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("words", pa.list_(pa.string()), nullable=False),
        pa.field("heads", pa.list_(pa.int32()), nullable=False),
        pa.field("relations", _LABELS, nullable=False),
        pa.field("upos", _LABELS, nullable=False),
        pa.field("xpos", _LABELS, nullable=False),
        pa.field("document", pa.int32(), nullable=False),
    ]
)


def to_table(sentences: Iterable[Sentence]) -> pa.Table:
    """Return an Arrow table with one row for each sentence, in one chunk.

    The columns are those of `SENTENCE_SCHEMA`, one for each field of `Sentence`. The dictionaries of relations
    and tags are sorted, so that the table depends on the sentences alone.

    All columns but `id` and `document` are lists with an entry for each word, and have the same offsets. Models
    therefore read the integer codes of all relations as one array,
    `table["relations"].chunk(0).values.indices`, and divide it into sentences by the offsets of
    `table["heads"].chunk(0)`.
    """
    rows = list(sentences)
    offsets = pa.array(np.cumsum([0, *map(len, rows)]), pa.int32())
    columns = []
    for field in SENTENCE_SCHEMA:
        values = [getattr(row, field.name) for row in rows]
        if not pa.types.is_list(field.type):
            columns.append(pa.array(values, field.type))
            continue
        by_word = list(chain.from_iterable(values))
        if field.type == _LABELS:
            columns.append(pa.ListArray.from_arrays(offsets, _encode_labels(by_word)))
        else:
            columns.append(pa.ListArray.from_arrays(offsets, pa.array(by_word, field.type.value_type)))
    return pa.Table.from_arrays(columns, schema=SENTENCE_SCHEMA)


def _encode_labels(labels: Sequence[str]) -> pa.DictionaryArray:
    """Return the labels as codes into the sorted distinct labels."""
    distinct = sorted(set(labels))
    codes = {label: code for code, label in enumerate(distinct)}
    indices = pa.array([codes[label] for label in labels], pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array(distinct, pa.string()))
