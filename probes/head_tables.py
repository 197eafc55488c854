"""The tables of single heads: the best of each relation beside its controls, all heads, and their roles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from metrics.attachment import OFFSETS, Arcs, Flags, Floats, Integers, offset_heads
from metrics.bootstrap import bootstrap_ratio
from metrics.heads import ALL, DIRECTIONS, LENGTHS, PLAIN, groups_of, hit_counts, offset_shares, permutation_p
from results import Estimate, Table, Unit

FRACTION: Unit = "fraction"
P: Unit = "p"
POSITIONAL, MARGIN = 0.9, 0.1
"""What makes a head positional, and a head syntactic (Voita et al. 2019, §5)."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """One split: its gold arcs, and what every predictor says of every word.

    Attributes:
        arcs: gold arcs.
        relations: names of their labels.
        predicted: `[words, K]` positions, predictors in the order way, layer, head.
    """

    arcs: Arcs
    relations: Sequence[str]
    predicted: NDArray[np.integer]

    @cached_property
    def groups(self) -> Mapping[str, Flags]:
        """Words of each relation that occurs, and of all."""
        return groups_of(self.arcs, self.relations)

    @cached_property
    def counts(self) -> Mapping[str, Integers]:
        """Hits of every predictor `[K]` in each group."""
        return dict(zip(self.groups, hit_counts(self.arcs, self.predicted, self.groups), strict=True))

    @cached_property
    def by_offset(self) -> "Predictions":
        """The fixed offsets as predictors, nearest first, ahead before behind."""
        ordered = sorted(OFFSETS, key=lambda k: (abs(k), -k))
        return Predictions(self.arcs, self.relations, np.stack([offset_heads(self.arcs, k) for k in ordered], axis=1))

    @property
    def without_weight(self) -> int:
        """Predictions of nothing, because no other word has any weight; of words that are not alone in a sentence."""
        return int(np.count_nonzero(self.predicted[self.arcs.length > 1] < 0))

    def column(self, predictor: int) -> Integers:
        """What one predictor says of every word, `[words]`."""
        return self.predicted[:, predictor].astype(np.int64)

    def best(self, group: str) -> int:
        """The predictor with most hits in a group, the first of equals; that of all words if the group is not here."""
        return int(self.counts.get(group, self.counts[PLAIN]).argmax())

    def accuracy(self, group: str, predictor: int) -> float:
        """Share of the group's words whose head the predictor names; nan if the group is not here."""
        if group not in self.groups:
            return float("nan")
        return float(self.counts[group][predictor] / np.count_nonzero(self.groups[group]))


@dataclass(frozen=True)
class Names:
    """How the heads of a store are called.

    Attributes:
        layers: 0-based layers it holds.
        heads: 0-based heads of each.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]

    def head(self, index: int) -> str:
        """`layer-head`, from 1, of a head counted layer by layer."""
        layer, head = divmod(index, len(self.heads))
        return f"{self.layers[layer] + 1}-{self.heads[head] + 1}"

    def __len__(self) -> int:
        return len(self.layers) * len(self.heads)

    def split(self, predictor: int) -> tuple[int, int]:
        """Direction and head of a predictor."""
        return divmod(predictor, len(self))


def best_heads(
    dev: Predictions,
    scored: Predictions,
    random_init: tuple[Predictions, Predictions] | None,
    names: Names,
    *,
    permutations: int,
    seed: int,
) -> Table:
    """The best predictor of every group, chosen on dev, beside its controls on the split that is scored.

    Args:
        dev: what the choice is made on.
        scored: what accuracies, intervals and p-values are of; dev itself where the original is to be reproduced.
        random_init: dev and the scored split through an encoder without training; None where there is none.
        names: of the heads.
        permutations: of `permutation_p`.
        seed: of bootstrap and permutations.

    Returns:
        `relation, n, head, direction, dev, test, low, high, offset, best_offset, random_init, p`: n words on the scored
        split; the interval is that of the scored accuracy, which is `dev` (and `test` is nan) when the two are one.
    """
    same = scored is dev
    groups = list(scored.groups)
    chosen = [dev.best(group) for group in groups]
    low, high = _intervals(scored, chosen, seed)
    offsets = [dev.by_offset.best(group) for group in groups]
    ordered = sorted(OFFSETS, key=lambda k: (abs(k), -k))
    reached = [int(scored.counts[group][k]) for group, k in zip(groups, chosen, strict=True)]
    columns = {
        "relation": groups,
        "n": [int(np.count_nonzero(words)) for words in scored.groups.values()],
        "head": [names.head(names.split(k)[1]) for k in chosen],
        "direction": [DIRECTIONS[names.split(k)[0]] for k in chosen],
        "dev": [dev.accuracy(group, k) for group, k in zip(groups, chosen, strict=True)],
        "test": [float("nan") if same else scored.accuracy(group, k) for group, k in zip(groups, chosen, strict=True)],
        "low": low,
        "high": high,
        "offset": [scored.by_offset.accuracy(group, k) for group, k in zip(groups, offsets, strict=True)],
        "best_offset": [ordered[k] for k in offsets],
        "random_init": [
            float("nan") if random_init is None else random_init[1].accuracy(group, random_init[0].best(group))
            for group in groups
        ],
        "p": permutation_p(scored.arcs, scored.predicted, scored.groups, reached, permutations=permutations, seed=seed),
    }
    units = {**dict.fromkeys(("dev", "test", "offset", "random_init"), FRACTION), "p": P}
    return Table(pd.DataFrame(columns), units, interval="dev" if same else "test")


def _intervals(scored: Predictions, chosen: Sequence[int], seed: int) -> tuple[Floats, Floats]:
    sentence = np.cumsum(scored.arcs.word == 1) - 1
    sentences = int(sentence[-1]) + 1 if len(sentence) else 0

    def count(of_words: Flags) -> Floats:
        return np.bincount(sentence, weights=of_words, minlength=sentences).astype(np.float64)

    hits = [
        words & (scored.predicted[:, k] == scored.arcs.head)
        for words, k in zip(scored.groups.values(), chosen, strict=True)
    ]
    right = np.stack([count(column) for column in hits], axis=1)
    total = np.stack([count(words) for words in scored.groups.values()], axis=1)
    return bootstrap_ratio(right, total, seed=seed)


def by_length(dev: Predictions, scored: Predictions, names: Names) -> Table:
    """Accuracy of the best heads and of the best offsets by the length of the arc, on the scored split.

    Returns:
        `relation, length, n, head, direction, accuracy, offset`; words under ROOT have no arc.
    """
    arcs = scored.arcs
    distance = np.where(arcs.head > 0, np.abs(arcs.head - arcs.word), 0)
    rows = []
    for group, words in scored.groups.items():
        k, offset = dev.best(group), dev.by_offset.best(group)
        direction, head = names.split(k)
        for name, (shortest, longest) in LENGTHS.items():
            inside = words & (distance >= shortest) & (distance <= longest)
            if n := int(np.count_nonzero(inside)):
                right = np.count_nonzero(scored.predicted[inside, k] == arcs.head[inside])
                fixed = np.count_nonzero(scored.by_offset.predicted[inside, offset] == arcs.head[inside])
                rows.append((group, name, n, names.head(head), DIRECTIONS[direction], right / n, fixed / n))
    frame = pd.DataFrame(rows, columns=["relation", "length", "n", "head", "direction", "accuracy", "offset"])
    return Table(frame, dict.fromkeys(("accuracy", "offset"), FRACTION))


def all_heads(dev: Predictions, scored: Predictions, names: Names) -> Table:
    """Every head, direction and relation: `relation, n, direction, head, layer, number, dev, test`."""
    same = scored is dev
    frames = []
    for group, words in scored.groups.items():
        k = np.arange(2 * len(names))
        heads = [names.head(index) for index in range(len(names))] * 2
        frames.append(
            pd.DataFrame(
                {
                    "relation": group,
                    "n": int(np.count_nonzero(words)),
                    "direction": np.repeat(DIRECTIONS, len(names)),
                    "head": heads,
                    "layer": [int(head.partition("-")[0]) for head in heads],
                    "number": [int(head.partition("-")[2]) for head in heads],
                    "dev": [dev.accuracy(group, int(place)) for place in k],
                    "test": [float("nan") if same else scored.accuracy(group, int(place)) for place in k],
                }
            )
        )
    return Table(pd.concat(frames, ignore_index=True), dict.fromkeys(("dev", "test"), FRACTION))


def roles(dev: Predictions, confidence: Floats, names: Names, *, minimum: int) -> tuple[Table, dict[str, Estimate]]:
    """What kind of head each is (Voita et al. 2019, §5), on dev, and how many of each kind there are.

    A head is positional if it looks at one offset for at least 90 % of the words, and syntactic if on some relation of
    at least `minimum` words it is 10 points better than the best fixed offset, in either direction.

    Args:
        dev: what all is read off.
        confidence: `[layers, heads]` of `RowPeaks`.
        names: of the heads.
        minimum: words of a relation that counts.

    Returns:
        `head, confidence, offset, offset_share, positional, relation, direction, margin, syntactic`, where
        `relation` is that of the greatest margin; and `positional_heads`, `syntactic_heads` as shares of all heads.
    """
    offset, share = offset_shares(dev.arcs, dev.predicted[:, : len(names)])
    relations = [name for name in dev.groups if name not in (ALL, PLAIN)]
    relations = [name for name in relations if np.count_nonzero(dev.groups[name]) >= minimum]
    rows = []
    for head in range(len(names)):
        margins = [
            (dev.accuracy(name, k) - dev.by_offset.accuracy(name, dev.by_offset.best(name)), name, direction)
            for name in relations
            for direction, k in zip(DIRECTIONS, (head, head + len(names)), strict=True)
        ]
        margin, relation, direction = max(margins, default=(float("nan"), "", ""))
        rows.append((names.head(head), share[head] >= POSITIONAL, relation, direction, margin, margin >= MARGIN))
    table = pd.DataFrame(rows, columns=["head", "positional", "relation", "direction", "margin", "syntactic"])
    table.insert(1, "confidence", confidence.flatten())
    table.insert(2, "offset", offset)
    table.insert(3, "offset_share", share)
    shares = {
        f"{kind}_heads": Estimate(float(table[kind].mean()), unit="fraction") for kind in ("positional", "syntactic")
    }
    return Table(table, dict.fromkeys(("confidence", "offset_share", "margin"), FRACTION)), shares
