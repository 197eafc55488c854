"""Names of attention heads, and the tables and maps with a number for each head."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from attention_probing.results import Floats, HeatMap, Table, Unit
from attention_probing.results.figures import TitlePart


def head_name(layer: int, head: int) -> str:
    """Return the name of an attention head, such as `6-1`: layer and head, both counted from 1.

    Args:
        layer: Layer, from 0.
        head: Attention head in the layer, from 0.
    """
    return f"{layer + 1}-{head + 1}"


@dataclass(frozen=True)
class HeadNames:
    """Names of the attention heads in a store, such as `6-1`: layer and head, both counted from 1.

    Attributes:
        layers: Numbers, from 0, of the layers in the store.
        heads: Numbers, from 0, of the attention heads that the store has of each layer.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]

    def head(self, index: int) -> str:
        """Return the name of an attention head.

        Args:
            index: Index of the head among all heads of the store, counted layer by layer from 0.
        """
        layer, head = divmod(index, len(self.heads))
        return head_name(self.layers[layer], self.heads[head])

    def place(self, head: str) -> tuple[int, int]:
        """Return the indices in `layers` and `heads` of the attention head with a given name."""
        layer, number = head.split("-")
        return self.layers.index(int(layer) - 1), self.heads.index(int(number) - 1)

    def __len__(self) -> int:
        return len(self.layers) * len(self.heads)

    def split(self, predictor: int) -> tuple[int, int]:
        """Return the direction of a predictor, and the index of its attention head.

        Direction 0 is attention from the dependent to its governor, 1 is attention from the
        governor to the dependent. The index counts the heads layer by layer from 0.

        Args:
            predictor: Index of the predictor, a column of `Predictions.predicted`.
        """
        return divmod(predictor, len(self))


def heads_table(
    kind: str, groups: Mapping[str, tuple[int, Floats, Floats | float]], directions: Sequence[str], names: HeadNames
) -> Table:
    """Return a table of accuracies with a row for each group, direction and attention head.

    Its columns are `<kind>, n, direction, head, dev, test`.

    Args:
        kind: Name of the column of groups.
        groups: For each group the number of words or mentions, and the accuracies on dev and on test, each
            `[2·heads]`: all heads in the first direction, then all in the second. A single nan stands for
            the accuracies on test if test is not scored.
        directions: Names of the two directions.
        names: Names of the attention heads.
    """
    heads = [names.head(index) for index in range(len(names))] * 2
    direction = np.repeat(directions, len(names))
    frames = []
    for group, (n, dev, test) in groups.items():
        columns = {kind: group, "n": n, "direction": direction, "head": heads, "dev": dev, "test": test}
        frames.append(pd.DataFrame(columns))
    return Table(pd.concat(frames, ignore_index=True), dict.fromkeys(("dev", "test"), "fraction"))


def head_map(
    title: str,
    values: Floats,
    names: HeadNames | None = None,
    marked: tuple[int, int] | None = None,
    value_label: str = "accuracy (%)",
    unit: Unit = "fraction",
    title_says: TitlePart | None = None,
) -> HeatMap:
    """Return a heat map of one number for each attention head.

    Args:
        title: Title of the figure.
        values: The numbers, `[layers, heads]`.
        names: Names of the heads; None if `values` has all heads of an encoder.
        marked: Row and column, from 0, of a cell to frame.
        value_label: Label of the colour bar.
        unit: Unit of the values.
        title_says: What the title has already of its sources.
    """
    layers: Sequence[int] = range(values.shape[0])
    heads: Sequence[int] = range(values.shape[1])
    if names is not None:
        layers = names.layers
        heads = names.heads
    return HeatMap(
        title=title,
        values=values,
        row_labels=[str(number + 1) for number in layers],
        column_labels=[str(number + 1) for number in heads],
        row_label="layer",
        column_label="head",
        value_label=value_label,
        unit=unit,
        marked=marked,
        title_says=title_says,
    )
