"""Compare two results of the same experiment, key by key: which values, intervals and p-values changed, and verdicts.

    python docs/scripts/changed_intervals.py BEFORE AFTER [--list]

BEFORE and AFTER are folders of runs. A verdict is whether an interval contains 0, or a p-value is below .05; with
`--list` every key whose verdict changed is printed, and every key that only one of the two has.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from attention_probing.results.record import find_record

ENDS = (".low", ".high")


def numbers_of(run: Path) -> Iterator[tuple[str, float]]:
    """Yield every number of a run with its key: scores, then cells of tables by the texts of their rows."""
    record = find_record(run)
    for name, value in record.numbers.items():
        yield name, math.nan if value is None else float(value)
    for table in record.tables:
        frame = record.table(table)
        interval = record.columns[table].interval
        frame = frame.rename(columns={end: f"{interval}.{end}" for end in ("low", "high", "sd")} if interval else {})
        texts = [name for name in frame if not pd.api.types.is_float_dtype(frame[name]) and name not in ("n", "n_dev")]
        for _, row in frame.iterrows():
            where = ";".join(str(row[name]) for name in texts if name not in ("head", "direction", "best_offset"))
            for name in frame.columns.difference(texts):
                yield f"{table}[{where}]:{name}", float(row[name])


def is_p(key: str) -> bool:
    """Return True for a p-value."""
    name = key.rpartition(":")[2]
    return name == "p" or name.endswith(".p") or name.startswith("p_") or name.endswith("_p_holm")


def main() -> None:
    """Print counts of what changed, and the keys if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    before, after = (dict(numbers_of(run)) for run in (options.before, options.after))
    both = before.keys() & after.keys()
    intervals = [key.removesuffix(".low") for key in both if key.endswith(".low")]
    plain = [key for key in both if not key.endswith(ENDS) and not is_p(key)]
    values = [key for key in plain if not np.isclose(before[key], after[key], rtol=1e-6, equal_nan=True)]
    print(f"values: {len(plain)} in both, {len(values)} differ")
    ratios, verdicts, gone = [], [], []
    for key in intervals:
        old, new = ((one[f"{key}.low"], one.get(f"{key}.high", math.nan)) for one in (before, after))
        if math.isnan(new[0]) and not math.isnan(old[0]):
            gone.append(f"{key}: [{old[0]:.4g}, {old[1]:.4g}] is left out")
        elif not math.isnan(old[0]):
            if old[1] > old[0]:
                ratios.append((new[1] - new[0]) / (old[1] - old[0]))
            if (old[0] <= 0 <= old[1]) != (new[0] <= 0 <= new[1]):
                verdicts.append(f"{key}: [{old[0]:.4g}, {old[1]:.4g}] → [{new[0]:.4g}, {new[1]:.4g}]")
    quarters = np.quantile(ratios, [0.05, 0.5, 0.95]).round(2).tolist() if ratios else []
    print(f"intervals: {len(intervals)} in both; width after ÷ before: 5 %, median, 95 %: {quarters}")
    print(f"intervals left out now: {len(gone)}; that now contain 0, or no longer do: {len(verdicts)}")
    p_values = [key for key in both if is_p(key)]
    flipped = [key for key in p_values if (before[key] < 0.05) != (after[key] < 0.05)]
    lost = sum(before[key] < 0.05 for key in flipped)
    print(f"p-values: {len(p_values)} in both; below .05 before only: {lost}, after only: {len(flipped) - lost}")
    print(f"keys before only: {len(before.keys() - after.keys())}, after only: {len(after.keys() - before.keys())}")
    if options.list:
        listed = [*(f"value {key}: {before[key]:.6g} → {after[key]:.6g}" for key in values), *gone, *verdicts]
        listed += [f"{key}: {before[key]:.3g} → {after[key]:.3g}" for key in flipped]
        listed += [f"before only: {key}" for key in before.keys() - after.keys()]
        listed += [f"after only: {key}" for key in after.keys() - before.keys()]
        print("\n".join(sorted(listed)))


if __name__ == "__main__":
    main()
