"""Warnings about data that make scores doubtful: few items, items of earlier splits, words unknown to the encoder."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from attention_probing.attention.alignment import spell_normalised
from attention_probing.attention.loading import load_tokenizer
from attention_probing.attention.source import EncoderSource
from attention_probing.corpora.splits import SPLITS, Split
from attention_probing.results import FEW
from attention_probing.results.errors import pluralize, setting
from attention_probing.results.progress import warn

SHARED_SHARE = 0.05
"""Warn if a larger share of a split also stands in an earlier split. In the test split of UD EWT it is 4.5 %."""
UNKNOWN_SHARE = 0.01
"""Warn if a larger share of the words contains the unknown token."""
RARE_SHARE = 0.2
"""Warn if a larger share of the tokens of texts is not in the vocabulary of train. With words that occur twice it is
9.5 % in the test split of SST-2, 7.2 % in the sample of IMDB, 11.7 % in that of AG News, 13.5 % in TREC; with 240 texts
of SST-2 for the training it is 38 %."""
NORMALISED_SHARE = 0.05
"""Warn if a larger share of the words loses letters to the tokenizer's normalisation. With all-MiniLM-L6-v2 it is 0 in
the test split of UD EWT, 7 % in German GSD, and 75 % in Vietnamese VTB."""
MULTILINGUAL = "intfloat/multilingual-e5-small"
"""Model that the warnings name: its tokenizer keeps the letters and marks of all scripts in XLM-R's vocabulary."""


def count_shared(texts: Mapping[Split, pa.Array | pa.ChunkedArray], split: Split) -> dict[str, int]:
    """Count the items of a split that also occur in earlier splits.

    Args:
        texts: Items of each split as strings.
        split: Name of the split.

    Returns:
        For each split of `texts` that comes before this one in the order train, dev, test: the number of
        items that also occur in it, under the key `also_in_<its name>`.
    """
    counts = {}
    for earlier in SPLITS[: SPLITS.index(split)]:
        if earlier in texts:
            repeated = pc.is_in(texts[split], texts[earlier])
            counts[f"also_in_{earlier}"] = int(pc.sum(repeated).as_py() or 0)
    return counts


def warn_of_split(split: Split, shared: Mapping[str, int], total: int, unit: str) -> None:
    """Log a warning if dev or test has few items, and one if many items of a split also occur in an earlier split.

    Args:
        split: Name of the split.
        shared: Counts from `count_shared`.
        total: Number of items of the split.
        unit: Plural noun for the items.
    """
    if total < FEW and split != "train":
        effect = "what is chosen on it is uncertain" if split == "dev" else "intervals are often too narrow"
        warn(f"{split} has {pluralize(total, unit.removesuffix('s'))}: {effect}. Give {FEW} or more.")
    for name, count in shared.items():
        if count > SHARED_SHARE * total:
            warn(
                f"{count} of {total} {unit} of {split} ({count / total:.0%}) also stand in "
                f"{name.removeprefix('also_in_')}: scores on {split} partly measure items that were seen before."
            )


def warn_of_unknown(
    path: Path | str, count: int, total: int, unit: str, encoder: object, example: str | None = None
) -> None:
    """Log a warning if more than the fraction `UNKNOWN_SHARE` of the words contain the tokenizer's unknown token.

    Args:
        path: The corpus, for the message.
        count: Number of words, or other units, that contain it.
        total: Number of all of them.
        unit: Name of the units in the plural, such as `words`.
        encoder: Name of the encoder, for the message.
        example: One of the words; None to give none.
    """
    if count <= UNKNOWN_SHARE * total:
        return
    such_as = "" if example is None else f", such as {example!r}"
    warn(
        f"{path}: {count} of {total} {unit} ({count / total:.0%}) contain the unknown token of {encoder}{such_as}, so "
        f"the encoder cannot see what they are. {_advise(encoder)}"
    )


def warn_of_words(path: Path, words: pa.Array, unknown: int, source: EncoderSource) -> None:
    """Log a warning if an encoder cannot see what many words are, and one if many lose letters before it reads them.

    Args:
        path: The corpus file, for the messages.
        words: Its words.
        unknown: Number of words that contain the tokenizer's unknown token.
        source: Files of the encoder.
    """
    is_foreign = pc.invert(pc.string_is_ascii(words))
    foreign = int(pc.sum(is_foreign).as_py() or 0)
    if max(foreign, unknown) <= UNKNOWN_SHARE * len(words):
        return  # loading the tokenizer takes time
    tokenizer = load_tokenizer(source)
    counts = pc.value_counts(words.filter(is_foreign)).to_pylist()
    counts.sort(key=lambda form: -form["counts"])
    with_unknown = None
    spelled = None
    normalised = 0
    for form in counts:
        word = form["values"]
        if with_unknown is None and tokenizer.unk_token_id in tokenizer(word, add_special_tokens=False)["input_ids"]:
            with_unknown = word
        normal = spell_normalised(tokenizer, word)
        if normal is not None:
            normalised += form["counts"]
            spelled = spelled or f"{word!r} as {normal!r}"
    warn_of_unknown(path, unknown, len(words), "words", source.spec.name, with_unknown)
    if normalised > NORMALISED_SHARE * len(words):
        warn(
            f"{path}: {normalised} of {len(words)} words ({normalised / len(words):.0%}) lose letters or marks to the "
            f"tokenizer of {source.spec.name}, which reads {spelled}, so the encoder cannot tell some words apart. "
            f"{_advise(source.spec.name)}"
        )


def has_many_rare(counts: Mapping[str, int]) -> bool:
    """Return True if more than the fraction `RARE_SHARE` of the tokens is unknown, by the `counts` of a `TextSplit`."""
    return counts["unknown_tokens"] > RARE_SHARE * counts["tokens"]


def warn_of_rare(where: str, counts: Mapping[str, int], min_count: int) -> None:
    """Log a warning if many tokens are unknown, see `has_many_rare`, because train has too few of them.

    Args:
        where: Description of the texts, for the message.
        counts: The `counts` of their `TextSplit`.
        min_count: Lowest frequency in train of a word in the vocabulary.
    """
    if not has_many_rare(counts):
        return
    unknown = counts["unknown_tokens"]
    tokens = counts["tokens"]
    warn(
        f"{where}: {unknown:,} of {tokens:,} tokens ({unknown / tokens:.0%}) are unknown, because they occur fewer "
        f"than {min_count} times in train, so a classifier cannot tell them apart. Train on more texts, lower "
        f"{setting('data.min_count')}, or read the pieces of a tokenizer: {setting('data.tokenizer.name')}."
    )


def _advise(encoder: object) -> str:
    """Return the advice to choose an encoder of the language, with a multilingual one unless it is that already."""
    advice = "Choose an encoder that was trained on this language"
    name = MULTILINGUAL.rpartition("/")[2]
    if str(encoder).endswith(name):
        return f"{advice}: {setting('encoder')}."
    return f"{advice}, such as {setting('encoder', MULTILINGUAL)}."
