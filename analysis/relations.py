"""Heads for labelled links between words, as frame-semantic ones (Kovaleva et al. 2019, §4.2)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from analysis.base import Analysis
from analysis.cells import Cells, between, tokens_of_words
from analysis.tables import best_head, head_map, head_rows, name_of
from attention import Encoder
from attention.capture import uniform_attention
from corpora.texts import Link, Passage
from datamodules import SegmentBatch, TextDataModule
from metrics.moments import Means, Moments
from results import Estimate, Floats, Result, Table, Unit
from results.errors import UserError, check_numbers

ALL = "all"
"""What links of all labels together are called."""

WAYS = ("attention", "forward", "backward")
"""In either direction; from where a link starts to where it ends; and back."""

_ANSWER = ("label", "layer", "head", "attention", "uniform")

PERCENTILE = 99
"""Of a label's heads, above which one is listed (Kovaleva et al. 2019, §4.2)."""


class Relations(Analysis):
    """The largest weight between the words of the links of a passage, by label and over all; means over passages.

    Words that are linked have all pairs of their tokens. In a treebank without links they are the arcs of the trees,
    each from the dependent to its head and labelled with its relation.

    The defaults of the bounds are those of the paper; None lifts one. What they leave out is counted in the audit, over
    all texts of the corpus.

    Args:
        max_words: most words of a passage.
        max_element: most words on one side of a link.
        min_distance: words from the nearest word of one side to that of the other, 1 for neighbours.

    Raises:
        UserError: the texts have no links, or none within the bounds; or, at the end, no segment has one.
    """

    name = "relations"

    def __init__(self, max_words: int | None = 12, max_element: int | None = 3, min_distance: int | None = 2) -> None:
        super().__init__()
        check_numbers(self, least=1, max_words=max_words, max_element=max_element)
        check_numbers(self, least=0, min_distance=min_distance)
        self.max_words, self.max_element, self.min_distance = max_words, max_element, min_distance
        self._passed: list[Tensor] = []

    def begin(self, data: TextDataModule, encoder: Encoder) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(("links", "long_passage", "long_element", "near"), 0))
        labels = {link.label for passage in chain.from_iterable(data.passages()) for link in self._links(passage)}
        if not labels:
            name = type(self).__name__
            if not self._counts["links"]:
                raise UserError(
                    f"{name}: the texts have no links between words. Read a treebank (--data.init_args.corpora "
                    f"ud_english_ewt), or give `format` links, enhanced or framenet in --data.init_args.corpora."
                )
            raise UserError(
                f"{name}: none of {self._counts['links']} links is within the bounds: {self._counts['long_passage']} "
                f"are in passages of more than {self.max_words} words, {self._counts['long_element']} have more than "
                f"{self.max_element} words on one side, {self._counts['near']} are less than {self.min_distance} words "
                f"long. Give larger `max_words` and `max_element`, a smaller `min_distance`, or null."
            )
        self._labels = [ALL, *sorted(labels)]
        self._encoder = encoder
        self._by_head = Moments(
            2 * len(self._labels), (encoder.layers, encoder.heads, len(WAYS)), "fraction", bounds=(0, 1)
        )
        self._uniform = Moments(2 * len(self._labels), (encoder.layers, len(WAYS)), "fraction", bounds=(0, 1))

    def _links(self, passage: Passage) -> Iterator[Link]:
        """The links of a passage that are within the bounds; the others are counted."""
        for link in _links_of(passage):
            reason = self._left_out(passage, link)
            self._counts["links"] += 1
            if reason is None:
                yield link
            else:
                self._counts[reason] += 1

    def _left_out(self, passage: Passage, link: Link) -> str | None:
        if self.max_words is not None and len(passage.words) > self.max_words:
            return "long_passage"
        if self.max_element is not None and max(len(link.start), len(link.end)) > self.max_element:
            return "long_element"
        distance = min(abs(one - other) for one in link.start for other in link.end)
        return "near" if self.min_distance is not None and distance < self.min_distance else None

    def update(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        if not layer:
            self._groups, self._cells = self._places(batch)
        self._passed.append(self._measured(weights))

    def end(self, batch: SegmentBatch) -> None:
        self._by_head.update(self._groups, torch.stack(self._passed, 1))
        self._passed.clear()
        masks, of_layers = self._encoder.allowed(batch.mask)
        self._uniform.update(self._groups, self._measured(uniform_attention(masks))[:, of_layers])

    def _places(self, batch: SegmentBatch) -> tuple[Tensor, tuple[Cells, Cells]]:
        """The group of each label of each segment `[owners]`, and the cells of its links, forward and backward."""
        groups: list[int] = []
        cells: list[tuple[int, int, int, int]] = []
        tokens, index = tokens_of_words(batch), batch.index.tolist()
        numbers = {label: number for number, label in enumerate(self._labels)}
        for row, passages in enumerate(batch.passages):
            owners: dict[str, int] = {}
            first = 0
            for passage in passages:
                for link in _links_of(passage):
                    if self._left_out(passage, link) is None:
                        sides = ([first + word for word in side] for side in (link.start, link.end))
                        pairs = between(tokens[row], *sides)
                        for label in (ALL, link.label):
                            if label not in owners:
                                owners[label] = len(groups)
                                groups.append(2 * numbers[label] + index[row] % 2)
                            cells += [(owners[label], row, *pair) for pair in pairs]
                first += len(passage.words)
        device = batch.tokens.device
        forward = Cells.of(len(groups), cells, device)
        backward = Cells(len(groups), forward.owner, forward.segment, forward.target, forward.source)
        return torch.tensor(groups, dtype=torch.int64, device=device), (forward, backward)

    def _measured(self, weights: Tensor) -> Tensor:
        """The largest weights in either direction, forward and backward, float64 `[owners, heads, ways]`."""
        forward, backward = (cells.largest(weights.double()) for cells in self._cells)
        return torch.stack([torch.maximum(forward, backward), forward, backward], -1)

    def _of(self, means: Means, label: int, way: int) -> Means:
        """The two halves of one label in one way."""
        return means.select(slice(2 * label, 2 * label + 2)).at(way)

    def by_head(self) -> Mapping[str, Means]:
        """Attention along the links of all labels, in either direction."""
        return {"relations": self._of(self._by_head.compute(), 0, 0)}

    def result(self, others: Mapping[str, Analysis]) -> Result:
        means, even = self._by_head.compute(), self._uniform.compute()
        found = {
            label: {way: self._of(means, number, place).over() for place, way in enumerate(WAYS)}
            for number, label in enumerate(self._labels)
        }
        found = {label: ways for label, ways in found.items() if ways[WAYS[0]].inputs.any()}
        if not found:
            raise UserError(
                f"{type(self).__name__}: the texts have links within the bounds, but no segment that was read has one. "
                f"Read more of them (`limit` in --data.init_args.corpora) or longer ones (--data.init_args.max_length)."
            )
        uniform = {label: self._of(even, self._labels.index(label), 0).over().value for label in found}
        frame = pd.concat([_rows(label, ways, uniform[label]) for label, ways in found.items()], ignore_index=True)
        units: dict[str, Unit] = dict.fromkeys((*WAYS, "uniform"), "fraction")
        place, best = best_head(found[ALL]["attention"])
        listed = frame[_above(frame)].sort_values(["passages", "label", "attention"], ascending=[False, True, False])
        return Result(
            experiment=self.name,
            scores={f"{self.name}.{ALL}": best},
            headline=[f"{self.name}.{ALL}"],
            tables={
                "relations": Table(frame, units),
                "relation_heads": Table(listed.reset_index(drop=True), units, answer=_ANSWER),
            },
            figures={
                "relations": head_map(
                    "Attention along links", found[ALL]["attention"].value, "largest weight", marked=place
                )
            },
            audit={
                "max_words": self.max_words or "none",
                "max_element": self.max_element or "none",
                "min_distance": self.min_distance or "none",
                "labels": len(found) - 1,
                "best_head": name_of(*place),
                **self._counts,
            },
        )


def _links_of(passage: Passage) -> Sequence[Link]:
    """The links of a passage: those that its corpus gives, else the arcs of its tree, from dependent to head."""
    if passage.links is not None:
        return passage.links
    if passage.sentence is None:
        return ()
    words = enumerate(zip(passage.sentence.heads, passage.sentence.relations, strict=True))
    return [Link(relation, (word,), (head - 1,)) for word, (head, relation) in words if head]


def _rows(label: str, ways: Mapping[str, Estimate[Floats]], uniform: Floats) -> pd.DataFrame:
    """Return the rows of a label by head, beside its uniform attention in each layer."""
    frame = head_rows({**ways, "passages": ways["attention"].inputs}, label=label)
    frame["uniform"] = uniform[frame["layer"] - 1]
    return frame[["label", *frame.columns.drop("label")]]


def _above(frame: pd.DataFrame) -> "pd.Series[bool]":
    """Rows of heads above the percentile of their label."""
    bound = frame.groupby("label")["attention"].transform(lambda values: np.percentile(values, PERCENTILE))
    return frame["attention"] > bound
