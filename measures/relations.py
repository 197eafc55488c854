"""Attention between words that are linked, for instance by semantic frames (Kovaleva et al. 2019, §4.2)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attention import Encoder
from attention.capture import uniform_attention
from corpora.texts import Link, Passage
from datamodules import SegmentBatch, TextDataModule
from measures.attention_analyses import Analysis
from measures.by_head import HeadMeans, best_head, by_name, head_rows
from metrics.moments import Means
from results import Estimate, Floats, Result, Table, Unit
from results.errors import UserError
from results.heads import head_map, head_name

ALL = "all"
"""Label of the links of all labels together."""

WAYS = ("attention", "forward", "backward")
"""Larger of both directions; from the start of a link to its end; from the end to the start."""
_UNITS: Mapping[str, Unit] = dict.fromkeys(WAYS, "fraction")

_ANSWER = ("label", "layer", "head", "attention", "uniform")

PERCENTILE = 99
"""Heads above this percentile of their label are listed (Kovaleva et al. 2019, §4.2)."""
MAX_WORDS, MAX_ELEMENT, MIN_DISTANCE = 12, 3, 2
"""Largest number of words of a passage and of one end of a link, and least distance between its ends, 1 for neighbours
(ibid.)."""


@dataclass(frozen=True)
class Cells:
    """Cells (from, to) of the attention maps of a batch, each with an owner; maxima are taken by owner.

    An owner is for instance one relation label in one segment. A cell that counts for several owners is
    listed once for each.

    Attributes:
        owners: Number of owners.
        owner: Index of the owner of each cell, int64 `[cells]`.
        segment: Index of the cell's segment in the batch, int64 `[cells]`.
        source: Token position that attends, int64 `[cells]`.
        target: Token position that is attended to, int64 `[cells]`.
    """

    owners: int
    owner: Tensor
    segment: Tensor
    source: Tensor
    target: Tensor

    @classmethod
    def from_rows(cls, owners: int, rows: Iterable[tuple[int, int, int, int]], device: torch.device) -> Self:
        """Create cells from a tuple of four indices for each cell.

        Args:
            owners: Number of owners.
            rows: For each cell the index of its owner, the index of its segment in the batch, and the
                positions of the attending token and of the token attended to.
            device: Device of the tensors.
        """
        columns = np.array(list(rows), np.int64).reshape(-1, 4).T
        return cls(owners, *torch.from_numpy(np.ascontiguousarray(columns)).to(device))

    def largest(self, weights: Tensor) -> Tensor:
        """Return the largest attention weight in the cells of each owner, `[owners, heads]`.

        An owner is for instance one relation label in one segment. An owner without cells gets nan.

        Args:
            weights: Attention weights `[batch, heads, from, to]`.
        """
        found = weights[self.segment, :, self.source, self.target]
        blank = weights.new_full((self.owners, weights.size(1)), torch.nan)
        owner = self.owner[:, None].expand_as(found)
        return blank.scatter_reduce(0, owner, found, "amax", include_self=False)


def tokens_of_words(batch: SegmentBatch) -> list[list[list[int]]]:
    """Return the positions of the tokens of each word in each segment of a batch.

    The result is a list of segments; each is a list of words, and each word a list of positions.
    """
    found = []
    for words, passages in zip(batch.words.tolist(), batch.passages, strict=True):
        tokens: list[list[int]] = [[] for passage in passages for _ in passage.words]
        for place, word in enumerate(words):
            if word >= 0:
                tokens[word].append(place)
        found.append(tokens)
    return found


def token_pairs(tokens: list[list[int]], sources: Iterable[int], targets: Iterable[int]) -> list[tuple[int, int]]:
    """Return all pairs of a token of a source word and a token of a target word, as positions in a segment.

    Args:
        tokens: Positions of the tokens of each word of the segment.
        sources: Indices of the source words.
        targets: Indices of the target words.
    """
    starts, ends = ([place for word in words for place in tokens[word]] for words in (sources, targets))
    return list(product(starts, ends))


class Relations(Analysis):
    """Attention between linked words, for instance of one semantic frame (Kovaleva et al. 2019, §4.2).

    A link joins one or several words at its start with one or several at its end, and has a label. In a
    treebank without links, the arcs of the trees are the links: each goes from the dependent to its
    governor, and its label is the relation.

    The attention of a head along a link is its largest weight between a token at the start of the link
    and a token at its end, in either direction. On a segment (one passage, or two) the largest over the
    segment's links is taken, and averaged over the segments that have links. This is done for the links
    of each label, and for all links together. A direction in which a decoder cannot attend along any of these links is
    left out.

    As in the paper, links are left out if they are in a passage of more than `MAX_WORDS` words, have
    more than `MAX_ELEMENT` words at one end, or have ends less than `MIN_DISTANCE` words apart. The
    audit counts the links that are left out, over all texts of the corpus.

    Raises:
        UserError: The texts have no links, or all links are left out. In `result`: no segment that was
            read has a link.
    """

    name = "relations"

    def begin(self, data: TextDataModule, encoder: Encoder) -> None:
        self._counts = Counter(dict.fromkeys(("links", "long_passage", "long_element", "near"), 0))
        labels = set()
        for passage in chain.from_iterable(data.passages()):
            for link in _links_of(passage):
                reason = _left_out(passage, link)
                self._counts.update(["links", *([reason] if reason else [])])
                labels |= set() if reason else {link.label}
        if not labels:
            raise UserError(
                f"{type(self).__name__} found no links between words in the texts, or left all of them out "
                f"({', '.join(f'{name}: {count}' for name, count in self._counts.items())}). Give a treebank "
                "(--data.init_args.corpora ud_english_ewt), or a corpus whose `format` is links, enhanced or framenet."
            )
        self._labels = [ALL, *sorted(labels)]
        self._encoder = encoder
        self._numbers = HeadMeans(encoder, _UNITS, groups=2 * len(self._labels), uniform=encoder.layers)

    def update(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        if not layer:
            self._groups, self._cells = self._places(batch)
        self._numbers.add(self._measured(weights))

    def end(self, batch: SegmentBatch) -> None:
        masks, of_layers = self._encoder.allowed(batch.mask)
        self._numbers.close(self._groups, self._measured(uniform_attention(masks))[:, of_layers])

    def _places(self, batch: SegmentBatch) -> tuple[Tensor, Cells]:
        """Return the group of each label of each segment `[owners]`, and the cells from starts to ends of links."""
        groups: list[int] = []
        cells: list[tuple[int, int, int, int]] = []
        tokens, index = tokens_of_words(batch), batch.index.tolist()
        for row, passages in enumerate(batch.passages):
            owners: dict[str, int] = {}
            first = 0
            for passage in passages:
                for link in _links_of(passage):
                    if _left_out(passage, link) is None:
                        sides = ([first + word for word in side] for side in (link.start, link.end))
                        pairs = token_pairs(tokens[row], *sides)
                        for label in (ALL, link.label):
                            if label not in owners:
                                owners[label] = len(groups)
                                groups.append(2 * self._labels.index(label) + index[row] % 2)
                            cells += [(owners[label], row, *pair) for pair in pairs]
                first += len(passage.words)
        device = batch.tokens.device
        return torch.tensor(groups, dtype=torch.int64, device=device), Cells.from_rows(len(groups), cells, device)

    def _measured(self, weights: Tensor) -> Tensor:
        """Return the largest weights of each owner in each of `WAYS`, float64 `[owners, heads, ways]`."""
        forward, backward = (self._cells.largest(one) for one in (weights.double(), weights.double().mT))
        return torch.stack([torch.maximum(forward, backward), forward, backward], -1)

    def by_head(self) -> Mapping[str, Means]:
        """Return the mean attention of each head along links of any label, under the key `relations`.

        The attention on a segment is the largest weight from the start of a link to its end, or back. It
        is averaged over the segments that have links.
        """
        return {"relations": self._numbers.means().select(slice(2)).at(0)}

    def result(self, others: Mapping[str, Analysis]) -> Result:
        means, uniform, frames = self._numbers.means(), self._numbers.means("uniform"), list[pd.DataFrame]()
        for number, label in enumerate(self._labels):
            groups = slice(2 * number, 2 * number + 2)
            ways = by_name(means, WAYS, groups)
            if ways["attention"].inputs.any():
                frames.append(_rows(label, ways, uniform.over(groups).value[:, 0]))
        if not frames:
            raise UserError(
                f"{type(self).__name__}: the segments that were read contain no link within the bounds. Read more of "
                "them (`limit` in --data.init_args.corpora) or longer ones (--data.init_args.max_length)."
            )
        frame = pd.concat(frames, ignore_index=True)
        units: dict[str, Unit] = dict.fromkeys((*WAYS, "uniform"), "fraction")
        every = by_name(means, WAYS, slice(2))["attention"]
        place, best = best_head(every)
        bounds = frame.groupby("label")["attention"].transform("quantile", PERCENTILE / 100)
        listed = frame[frame["attention"] > bounds]
        listed = listed.sort_values(["passages", "label", "attention"], ascending=[False, True, False])
        figure = head_map("Attention along links", every.value, marked=place, value_label="largest weight")
        bounded = {"max_words": MAX_WORDS, "max_element": MAX_ELEMENT, "min_distance": MIN_DISTANCE}
        return Result(
            experiment=self.name,
            scores={f"{self.name}.{ALL}": best},
            headline=[f"{self.name}.{ALL}"],
            tables={
                "relations": Table(frame, units),
                "relation_heads": Table(listed.reset_index(drop=True), units, answer=_ANSWER),
            },
            figures={"relations": figure},
            audit={**bounded, "labels": len(frames) - 1, "best_head": head_name(*place), **self._counts},
        )


def _left_out(passage: Passage, link: Link) -> str | None:
    """Return the reason why a link is left out; None for a link within the bounds."""
    if len(passage.words) > MAX_WORDS:
        return "long_passage"
    if max(len(link.start), len(link.end)) > MAX_ELEMENT:
        return "long_element"
    return "near" if min(abs(one - other) for one in link.start for other in link.end) < MIN_DISTANCE else None


def _links_of(passage: Passage) -> Sequence[Link]:
    """Return the links of a passage by its corpus, or else the arcs of its tree, from dependent to head."""
    if passage.links is not None:
        return passage.links
    if passage.sentence is None:
        return ()
    words = enumerate(zip(passage.sentence.heads, passage.sentence.relations, strict=True))
    return [Link(relation, (word,), (head - 1,)) for word, (head, relation) in words if head]


def _rows(label: str, ways: Mapping[str, Estimate[Floats]], uniform: Floats) -> pd.DataFrame:
    """Return the rows of a label by head, beside its uniform attention in each layer."""
    frame = head_rows({**ways, "passages": ways["attention"].inputs})
    frame.insert(0, "label", label)
    return frame.assign(uniform=uniform[frame["layer"] - 1])
