"""Errors of the user's input, and suggestions for misspelt names."""

import difflib
from collections.abc import Iterable, Sequence
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


def check_new(what: str, given: Sequence[object]) -> None:
    """Raise UserError for new `texts` or `sentences` without anything to predict; each is a string, or its parts."""
    one = what.removesuffix("s")
    if isinstance(given, str):
        raise UserError(f"{what}: give a list, [{given[:40]!r}], not one {one} by itself.")
    if not given:
        raise UserError(f"{what}: there is none to predict.")
    for place, item in enumerate(given):
        parts = [item] if isinstance(item, str) else item
        if not isinstance(parts, Sequence) or not parts or not all(isinstance(part, str) for part in parts):
            raise UserError(f"{what}: number {place}, from 0, is {item!r}: give a string, or a sequence of strings.")
        if not all(part.strip() for part in parts):
            raise UserError(f"{what}: number {place}, from 0, is empty or has an empty part: leave it out.")
