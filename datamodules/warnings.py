"""Warnings about data that make scores doubtful: few items, items of earlier splits, words unknown to the encoder."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from attention_probing.corpora.splits import SPLITS, Split
from attention_probing.results import FEW
from attention_probing.results.errors import pluralize, setting
from attention_probing.results.progress import warn

SHARED_SHARE = 0.05
"""Warn if a larger share of a split also stands in an earlier split. In the test split of UD EWT it is 4.5 %."""
UNKNOWN_SHARE = 0.01
"""Warn if a larger share of the words contains the unknown token."""


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


def warn_of_unknown(path: Path | str, count: int, total: int, unit: str, encoder: object) -> None:
    """Log a warning if more than the fraction `UNKNOWN_SHARE` of the words contain the tokenizer's unknown token.

    Args:
        path: The corpus, for the message.
        count: Number of words, or other units, that contain it.
        total: Number of all of them.
        unit: Name of the units in the plural, such as `words`.
        encoder: Name of the encoder, for the message.
    """
    if count > UNKNOWN_SHARE * total:
        warn(
            f"{path}: {count} of {total} {unit} ({count / total:.0%}) contain the unknown token of {encoder}, so the "
            f"encoder cannot see what they are. Choose an encoder that was trained on this language: "
            f"{setting('encoder')}."
        )
