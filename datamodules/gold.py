"""Gold of a corpus that is given to other items: a world in which nothing links the texts with their annotation."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from attention_probing.corpora.splits import SPLITS, Split
from attention_probing.results import Integers
from attention_probing.results.errors import pluralize, setting
from attention_probing.results.progress import warn

Gold = Literal["given", "shuffled"]
"""Whose gold the items have: their own, or that of other items; see `CorpusDataModule`."""
KEPT_SHARE = 0.1
"""Warn if a larger share of the items keep their own gold. With all arcs of the test split of UD EWT it is 1.1 %."""


class GoldShuffle:
    """Draws, for each item of a split, another item whose gold it gets.

    Every item is drawn once. No item gets its own gold as long as its class has another one: what is left of a finding
    would else be that of the items that keep theirs. Each split has draws of its own, the same whenever they are asked
    for.

    Args:
        seed: Seed of the draws.
        unit: Plural noun for the items that exchange their gold.

    Attributes:
        audit: Number of items that were drawn for, and of those that kept their own gold, by split.
    """

    def __init__(self, seed: int, unit: str) -> None:
        self.seed = seed
        self.unit = unit
        self.audit: dict[Split, Mapping[str, int]] = {}

    def generator(self, split: Split) -> np.random.Generator:
        """Return the generator of the draws of a split."""
        return np.random.default_rng([self.seed, SPLITS.index(split)])

    def draw(self, split: Split, classes: ArrayLike) -> Integers:
        """Return the index of the item whose gold each item gets, int64 `[items]`; see `other_of_class`.

        Args:
            split: Split of the items.
            classes: Class of each item, within which gold is exchanged, `[items]` or `[items, keys]`.
        """
        others = other_of_class(classes, self.generator(split))
        self.count(split, len(others), int((others == np.arange(len(others))).sum()))
        return others

    def count(self, split: Split, items: int, kept: int) -> None:
        """Note how many items of a split kept their own gold; log a warning, once, if they are many."""
        if split in self.audit:
            return
        self.audit[split] = {"items": items, "kept": kept}
        if kept > KEPT_SHARE * items:
            warn(
                f"{kept:,} of {pluralize(items, self.unit.removesuffix('s'))} of {split} keep their own gold under "
                f"{setting('data.gold', 'shuffled')}, for lack of others of their kind. So part of what the real data "
                "show is left. Give more data."
            )

    @property
    def description(self) -> str:
        """What is said of the gold in captions and answers."""
        return "with shuffled gold"

    @property
    def counts(self) -> dict[str, object]:
        """Entry of the audit of a datamodule: `gold`, with the counts of each split."""
        of_splits: dict[str, object] = {"shuffled": self.unit}
        for split, numbers in self.audit.items():
            of_splits[split] = numbers
        return {"gold": of_splits}


def other_of_class(classes: ArrayLike, rng: np.random.Generator) -> Integers:
    """Return for each item another one of its class, drawn at random, int64 `[items]`; each item is drawn once.

    An item that is alone in its class gets itself.

    Args:
        classes: Class of each item, `[items]`, or several keys that make it, `[items, keys]`.
        rng: Generator of random numbers.
    """
    keys = np.asarray(classes)
    _, numbers = np.unique(keys, axis=0, return_inverse=True)
    numbers = numbers.ravel()
    # In a random order within its class each item gets the next one, the last gets the first.
    order = np.lexsort((rng.random(len(numbers)), numbers))
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    following = np.arange(1, len(order) + 1)
    following[starts + sizes - 1] = starts
    others = np.empty(len(order), np.int64)
    others[order] = order[following]
    return others


def classes_of_length(lengths: ArrayLike, most: int = 10) -> Integers:
    """Return classes of items by their length, `[items]`: at most ten, of about equally many items, 20 at least.

    Args:
        lengths: Length of each item, `[items]`.
        most: Largest number of classes.
    """
    known = np.asarray(lengths)
    number = int(np.clip(len(known) // 20, 1, most))
    inner = np.quantile(known, np.arange(1, number) / number) if number > 1 else []
    return np.searchsorted(inner, known, side="right").astype(np.int64)
