"""Planting of shortcuts in labelled texts, so that every planted word is read and can be told from others."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attention_probing.attention.inputs import TextTokenizer
from attention_probing.corpora.labelled import LabelledTexts
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.shortcuts import Planting
from attention_probing.corpora.splits import Split
from attention_probing.datamodules.tokenization import TokenOptions, Vocabulary, tokenize, unread_words
from attention_probing.results.errors import setting


def plant_shortcuts(
    shortcut: Planting,
    path: Path,
    corpus: LabelledTexts,
    split: Split,
    labels: Sequence[str],
    tokenizer: TextTokenizer | None,
    options: TokenOptions,
) -> LabelledTexts:
    """Plant shortcuts among the words that are read, so that `max_length` cuts no planted word.

    First they are planted before each text: whatever is still read of the text is then read with them anywhere in
    it. A tokenizer that depends on the neighbours of a word may need more pieces there, and the words of such a
    text stay before it.

    Args:
        shortcut: Rule by which the words are planted.
        path: File of the texts, for error messages.
        corpus: The texts.
        split: Split of the texts.
        labels: Labels of train.
        tokenizer: Tokenizer whose pieces are the tokens; None if tokens are words.
        options: Options for the tokens.

    Raises:
        CorpusError: A text contains a word that is spelled like a planted one, or has no room for the planted words.
    """
    lengths = np.array([len(text.text.split()) for text in corpus.texts], np.int64)
    within = np.zeros(len(corpus.texts), np.int64)
    for attempt in range(3):
        planted = shortcut.plant(path, corpus, split, labels, within.tolist())
        tokens = tokenize(planted.texts, tokenizer, options)
        unread = unread_words(planted.texts, tokenizer, options, tokens)
        words_from_last = []  # number of words of each text from the last planted one
        for text in planted.texts:
            last = max(text.rationale or (-1,))
            words_from_last.append(len(text.text.split()) - last)
        is_cut = words_from_last <= unread
        if attempt == 0:
            if is_cut.any():
                wrong = f"{setting('data.max_length')} leaves no room for the planted words"
                raise CorpusError.at(path, planted.texts[int(is_cut.argmax())].line, wrong, "Raise it")
            within = np.maximum(lengths - unread, 0)
        else:
            within = np.where(is_cut, 0, within)
    return planted


def check_planted_words(
    path: Path, words: Sequence[str], vocabulary: Vocabulary, tokenizer: TextTokenizer | None
) -> None:
    """Check that a classifier can tell the planted words apart from each other and from others.

    Args:
        path: File of the texts of train, for error messages.
        words: The planted words.
        vocabulary: The vocabulary.
        tokenizer: Tokenizer whose pieces the vocabulary holds; None for words.

    Raises:
        CorpusError: A planted word is unknown, or has the tokens of another one.
    """
    if tokenizer is None:
        tokens = [(number,) for number in vocabulary.numbers(words).tolist()]
        remedy = f"Raise {setting('data.shortcut.share')}, or lower {setting('data.shortcut.min_count')}"
    else:
        pieces_of_words = tokenizer.split(words, [None] * len(words))
        tokens = [tuple(pieces.ids[pieces.sources >= 0].tolist()) for pieces in pieces_of_words]
        remedy = f"Choose another {setting('data.tokenizer')}, or leave out {setting('data.shortcut')}"
    for word, ids in zip(words, tokens, strict=True):
        if vocabulary.unknown in ids or tokens.count(ids) > 1:
            raise CorpusError.at(path, None, f"the planted word {word!r} is not in the vocabulary", remedy)
