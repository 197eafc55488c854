"""Errors of the user's input, and suggestions for misspelt names."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Self


class UserError(ValueError):
    """An error of the input: the command line prints it without a traceback."""

    @classmethod
    def at(cls, path: Path | str, line: int | None, wrong: str, remedy: str) -> Self:
        """`<path>:<line>: <what is wrong>. <remedy>.`, or without the line, which counts from 1."""
        place = f"{path}:{line}" if line is not None else f"{path}"
        return cls(f"{place}: {wrong}. {remedy}.")


def near(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Suggest one or two known names that are similar to `name`, or nothing; `prefix` is shown before each."""
    found = [f"`{prefix}{one}`" for one in difflib.get_close_matches(name, set(known), n=2)]
    return f" (did you mean {' or '.join(found)}?)" if found else ""
