"""The options `limit` and `limit_by`: how many items of a corpus file are used, and which."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from attention_probing.corpora.document import Documents
from attention_probing.corpora.labelled import LabelledTexts
from attention_probing.corpora.sentence import Treebank

LimitBy = Literal["random", "first"]
"""How the items within a limit are chosen: drawn at random, or the first of the file."""

Corpus = TypeVar("Corpus", bound=Treebank | Documents | LabelledTexts)

LEFT_OUT = "left_out_by_limit"
"""Entry of the audit for the number of items beyond the limit."""


@dataclass(frozen=True)
class Limit:
    """Largest number of items that are used of each split of a corpus.

    Args:
        most: The number; None for all items.
        by: `random` to draw the items, `first` for the first of the file.
        seed: Seed of the draw. With one seed, a draw of fewer items is a part of a draw of more.
        unit: Plural noun for the items.
    """

    most: int | None = None
    by: LimitBy = "random"
    seed: int = 0
    unit: str = "sentences"

    def __str__(self) -> str:
        if self.by == "first":
            return f"the first {self.most:,} {self.unit} of each split"
        return f"{self.most:,} {self.unit} of each split, drawn with seed {self.seed}"

    @property
    def identity(self) -> dict[str, object]:
        """Values that determine which items of a file are used; empty without a limit."""
        if self.most is None:
            return {}
        if self.by == "first":
            return {"limit": self.most, "limit_by": self.by}
        return {"limit": self.most, "limit_by": self.by, "limit_seed": self.seed}

    def choose(self, count: int) -> list[int]:
        """Return the 0-based indices of the items to use of a file, in ascending order.

        Args:
            count: Number of items of the file.
        """
        if self.most is None or count <= self.most:
            return list(range(count))
        if self.by == "first":
            return list(range(self.most))
        drawn = np.random.default_rng(self.seed).permutation(count)[: self.most]
        return sorted(drawn.tolist())

    def apply(self, corpus: Corpus) -> Corpus:
        """Return a corpus with the items within the limit alone.

        The counts of its reader stay those of the whole file; `left_out_by_limit` counts the items left out.

        Args:
            corpus: Content of a file.
        """
        if self.most is None:
            return corpus
        name = _ITEMS[type(corpus)]
        items = getattr(corpus, name)
        chosen = tuple(items[place] for place in self.choose(len(items)))
        audit = {**corpus.audit, LEFT_OUT: len(items) - len(chosen)}
        changes: dict[str, Any] = {name: chosen, "audit": audit}
        return replace(corpus, **changes)


_ITEMS: Mapping[type, str] = {Treebank: "sentences", Documents: "documents", LabelledTexts: "texts"}
"""Attribute that holds the items, by class of the corpus."""
