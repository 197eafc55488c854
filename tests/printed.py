"""A score in a sentence."""

import math

from attention_probing.results import Result


def share(result: Result, name: str) -> str:
    """A share and its interval, if it is known, in a sentence, from `results.json`'s numbers."""
    value, low, high = (100 * result.numbers[f"{name}{end}"] for end in ("", ".low", ".high"))
    if math.isnan(low):
        return f"{value:.1f} %"
    return f"{value:.1f} % [{low:.1f}, {high:.1f}]"
