"""What is said of faults of the input."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A fault of the input: it is told in a line with its remedy, without a traceback."""


def near(name: str, known: Iterable[str], prefix: str = "") -> str:
    """A question after the name that was meant, where one or two are like it; `prefix` is shown before each."""
    found = [f"`{prefix}{one}`" for one in difflib.get_close_matches(name, set(known), n=2)]
    return f" (did you mean {' or '.join(found)}?)" if found else ""
