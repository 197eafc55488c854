"""Numbers of heads as rows of tables and as cells of maps."""

from collections.abc import Mapping
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heads import single_heads
from heads.single_heads import Names
from results import Estimate, Floats, HeatMap, Unit


def name_of(layer: int, head: int) -> str:
    """`layer-head`, counted from 1, of a 0-based layer and head."""
    return f"{layer + 1}-{head + 1}"


def head_rows(columns: Mapping[str, Estimate[Floats] | NDArray[np.generic]], **constant: object) -> pd.DataFrame:
    """A row for each head, layer by layer: `layer`, `head`, `constant` columns, and those of `[layers, heads]` arrays.

    An estimate becomes the columns `<name>`, `<name>.low` and `<name>.high`.
    """
    first = next(iter(columns.values()))
    layers, heads = (first.value if isinstance(first, Estimate) else first).shape
    places = np.array(list(product(range(1, layers + 1), range(1, heads + 1))))
    frame: dict[str, object] = {"layer": places[:, 0], "head": places[:, 1], **constant}
    for name, column in columns.items():
        if isinstance(column, Estimate):
            frame |= {end: number.ravel() for end, number in column.named(name).items()}
        else:
            frame[name] = column.ravel()
    return pd.DataFrame(frame)


def by_class(found: Mapping[str, Estimate[Floats]], value: str, label: str = "class") -> pd.DataFrame:
    """A row for each class and head, of estimates `[layers, heads]` by class.

    Columns are `layer`, `head`, the class, its value, `low`, `high`, and the number of `inputs` that the mean is over.
    Without a class the table has these columns and no rows.
    """
    columns = ["layer", "head", label, value, "low", "high", "inputs"]
    frames = [pd.DataFrame(columns=columns)] if not found else []
    for name, each in found.items():
        frame = head_rows({value: each, "inputs": each.inputs}, **{label: name})
        frames.append(frame.rename(columns={f"{value}.low": "low", f"{value}.high": "high"}))
    return pd.concat(frames, ignore_index=True)[columns]


def best_head(values: Estimate[Floats]) -> tuple[tuple[int, int], Estimate]:
    """The 0-based layer and head of the highest mean `[layers, heads]`, the first of equals, and its estimate.

    The interval is that of this head alone: it does not include that the head was chosen on the same inputs.
    """
    place = np.unravel_index(np.nan_to_num(values.value, nan=-np.inf).argmax(), values.value.shape)
    layer, head = (int(part) for part in place)
    return (layer, head), values[layer, head]


def head_map(
    title: str, values: Floats, value_label: str, unit: Unit = "fraction", marked: tuple[int, int] | None = None
) -> HeatMap:
    """Numbers of all heads of an encoder `[layers, heads]` as colours, with a frame around one of them."""
    layers, heads = values.shape
    return single_heads.head_map(
        title, values, Names(tuple(range(layers)), tuple(range(heads))), marked, value_label, unit
    )
