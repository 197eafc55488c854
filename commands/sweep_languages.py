"""Languages of a plan: the first axis of its grid, and the rows that take what was learned on the source language.

A plan with `languages` says in one line for each language where its corpus is. The rows of the grid are made for every
language. Where a row names `$source` or `$source_corpus`, it takes what was chosen or trained on the source language.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from attention_probing.corpora.registry import find
from attention_probing.corpora.sentence import CorpusError
from attention_probing.results.errors import UserError, near

AXIS = "language"
"""Name of the axis, and of the first column of the table."""
SOURCE = "$source"
"""Name of the source language, in a row of the plan."""
SOURCE_CORPUS = "$source_corpus"
"""Corpus of the source language, in a row of the plan."""

Corpora = Mapping[str, Any]
"""Corpus of each language, as the option `corpus` of the data takes it: a text, or files by split."""
Labels = tuple[str, ...]

_EXAMPLE = "Write NAME=CORPUS, such as Finnish=my/fi-{split}.conllu"


def read_languages(words: Sequence[str]) -> dict[str, Any]:
    """Return the corpus of each language that the command line names.

    Args:
        words: `NAME=CORPUS` for each language. CORPUS is what the option `corpus` takes; the path of one file stands
            for a corpus with a test split alone.

    Raises:
        UserError: A word has no name or no corpus, or a name stands twice.
    """
    corpora: dict[str, Any] = {}
    for word in words:
        name, _, corpus = word.strip().rstrip(",").partition("=")
        if not name or not corpus:
            raise UserError(f"--languages: {word!r} does not name a language and its corpus. {_EXAMPLE}")
        if name in corpora:
            raise UserError(f"--languages names {name} more than once. Give each language once")
        corpora[name] = _read_corpus(name, corpus)
    return corpora


def _read_corpus(name: str, text: str) -> object:
    """Return the value of the option `corpus` that a text of the command line stands for."""
    if re.match(r"\{.*: ", text):
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError:
            raise UserError(
                f"--languages: the files of {name} are {text}, which is no mapping. Write "
                f"'{name}={{train: a.conllu, dev: b.conllu, test: c.conllu}}'"
            ) from None
    is_one_file = bool(Path(text).suffix) and "{split}" not in text
    return {"test": text} if is_one_file else text


def find_source(corpora: Corpora, source: str, where: str) -> str:
    """Return the name of the source language: the given one, else the first.

    Args:
        corpora: Corpus of each language.
        source: Name of the source language; empty for the first.
        where: Beginning of the message.

    Raises:
        UserError: It is none of the languages.
    """
    if not source:
        return next(iter(corpora))
    if source not in corpora:
        raise UserError(
            f"{where}: the source language is {source}{near(source, corpora)}, but the languages are "
            f"{', '.join(corpora)}. Name one of them, or add {source} with its corpus"
        )
    return source


def make_language_axis(corpora: Corpora, source: str) -> dict[str, Any]:
    """Return the values of the axis of languages; the source language is the first, because others need its rows."""
    axis = {}
    for name in dict.fromkeys([source, *corpora]):
        axis[name] = {"set": {"data.corpus": corpora[name]}}
    return axis


def fill_in_source(rows: Mapping[Labels, Sequence[Any]], corpora: Corpora, source: str) -> dict[Labels, list[Any]]:
    """Return the entries of the rows that apply to their language, with the source language filled in.

    A row that takes what was learned on the source language does not apply to the source itself. A row that learns on
    its own language does not apply to one whose corpus has a test split alone.

    Args:
        rows: Entries of each row, by its labels, of which the first is the language.
        corpora: Corpus of each language.
        source: Name of the source language.
    """
    filled = {}
    for labels, entries in rows.items():
        language = labels[0]
        applies = not has_test_alone(corpora[language])
        if SOURCE in str(entries):
            applies = language != source
        if applies:
            filled[labels] = [_fill_in(entry, source, corpora[source]) for entry in entries]
    return filled


def has_test_alone(corpus: object) -> bool:
    """Return True for a corpus with a test split alone: files by split, or a name of `probing fetch --list`."""
    if isinstance(corpus, str) and "{split}" not in corpus:
        with suppress(CorpusError):  # of an unknown name, which the check of the runs reports
            corpus = find(corpus).splits
    return isinstance(corpus, Mapping) and list(corpus) == ["test"]


def _fill_in(value: Any, source: str, corpus: object) -> Any:  # noqa: ANN401 # any part of a plan
    """Return a part of a plan with the source language and its corpus in place of `$source` and `$source_corpus`."""
    if value == SOURCE_CORPUS:
        return corpus
    if isinstance(value, str):
        return value.replace(SOURCE, source)
    if isinstance(value, Mapping):
        return {name: _fill_in(part, source, corpus) for name, part in value.items()}
    if isinstance(value, list):
        return [_fill_in(part, source, corpus) for part in value]
    return value
