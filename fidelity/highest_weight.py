"""Values of texts in bins of their highest attention weight (Jain & Wallace 2019, fig. 6)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from torch import Tensor

from attention_probing.fidelity.classified import ClassifiedBatch
from attention_probing.fidelity.contract import (
    CheckpointResult,
    frames_by_variant,
)
from attention_probing.results import Floats, Spreads, Table, Unit

WEIGHT_BINS = ("0–.25", ".25–.5", ".5–.75", ".75–1")  # of the highest weight of a text (Jain & Wallace 2019, fig. 6)


def max_attention(classified: ClassifiedBatch) -> Tensor:
    """Return the highest attention weight of each text, `[batch]`, after averaging over heads."""
    return classified.attention.amax(-1)


def by_max_attention(results: Sequence[CheckpointResult], test: str, column: str) -> Mapping[str, Sequence[Floats]]:
    """Return the values of a test's column by variant, in bins of the texts' highest attention weight.

    The texts of all seeds of a variant are taken together. Texts whose value is nan are left out.

    Args:
        results: Results of all checkpoints.
        test: Name of the test.
        column: Name of the column.

    Returns:
        For each variant, four arrays of values, `[texts]`: one for each quarter of the range of the
        highest weight, from 0–.25 to .75–1.
    """
    by_bin: dict[str, list[Floats]] = {}
    for variant, rows in frames_by_variant(results, test).items():
        defined = rows[["max_attention", column]].dropna()
        highest = defined["max_attention"].to_numpy(np.float64)
        values = defined[column].to_numpy(np.float64)
        # The last bin includes 1.
        bins = np.minimum(highest * len(WEIGHT_BINS), len(WEIGHT_BINS) - 1).astype(np.int64)
        by_bin[variant] = [values[bins == place] for place in range(len(WEIGHT_BINS))]
    return by_bin


def bin_table(values: Mapping[str, Sequence[Floats]], what: str, unit: Unit) -> Table:
    """Return a table of the mean and median value, one row for each variant and bin that has texts.

    Columns: `variant`; `max_attention`, the bin of the texts' highest attention weight, such as
    `.25–.5`; `texts`, the number of values; `mean_<what>` and `median_<what>`.

    Args:
        values: Values `[texts]` of each bin by variant, from `by_max_attention`.
        what: Name of the values in the last two columns.
        unit: Unit of the values.
    """
    rows = []
    for variant, by_bin in values.items():
        for name, of_bin in zip(WEIGHT_BINS, by_bin, strict=True):
            if len(of_bin):
                rows.append((variant, name, len(of_bin), of_bin.mean(), np.median(of_bin)))
    columns = [f"mean_{what}", f"median_{what}"]
    frame = pd.DataFrame(rows, columns=["variant", "max_attention", "texts", *columns])
    return Table(frame, dict.fromkeys(columns, unit))


def violins(title: str, values: Mapping[str, Sequence[Floats]], label: str) -> Spreads:
    """Return a figure with one violin for each variant and bin of the texts' highest attention weight.

    Args:
        title: Title of the figure.
        values: Values `[texts]` of each bin by variant, from `by_max_attention`.
        label: Label of the axis of the values.
    """
    series = {}
    for variant, by_bin in values.items():
        series[variant] = [of_bin.tolist() for of_bin in by_bin]
    return Spreads(
        title, WEIGHT_BINS, series, label, unit="ratio", category_label="highest attention weight of the text"
    )
