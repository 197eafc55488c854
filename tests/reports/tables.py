import pandas as pd

from results import Table, Unit


def table(frame: pd.DataFrame, interval: str | None = None, **units: Unit) -> Table:
    """Floats are fractions, but those of another unit, and the ends of intervals."""
    ends = {f"{name}.{end}" for name in frame for end in ("low", "high", "sd")}
    ends |= {"low", "high", "sd"} if interval else set()
    floats = [str(name) for name in frame if pd.api.types.is_float_dtype(frame[name]) and name not in ends]
    return Table(frame, {**dict.fromkeys(floats, "fraction"), **units}, interval)
