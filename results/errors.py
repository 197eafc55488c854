"""Errors of the user's input, and the wording of messages: counts, suggestions for misspelt names."""

import difflib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Self, TypeVar

import yaml

Item = TypeVar("Item")
Made = TypeVar("Made")

MEANT: Mapping[str, Collection[str]] = {
    "lr": ["learning_rate"], "epochs": ["max_epochs"], "bs": ["batch_size"], "gpus": ["devices"],
    "max_sentences": ["batch_size", "limit"], "limit": ["per_paradigm"], "seed": ["seed_everything"],
    "model": ["encoder", "tokenizer"], "corpus": ["corpora", "treebank"], "corpora": ["corpus", "text"],
    "checkpoint": ["checkpoints", "ckpt_path"], "ckpt_path": ["checkpoints"],
}  # fmt: skip
"""Names of options, by names that other programs or other classes have for the same."""

_NO_MEMORY = re.compile(r"(?i)not enough memory|can(no|')t allocate|out of memory|bad_?alloc|os error 12\b|errno 12\b")

_ON_COMMAND_LINE: ContextVar[bool] = ContextVar("_ON_COMMAND_LINE", default=False)


@contextmanager
def command_line() -> Iterator[None]:
    """Within the block, `setting` names options of the command line; elsewhere it names arguments of Python."""
    token = _ON_COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _ON_COMMAND_LINE.reset(token)


def is_on_command_line() -> bool:
    """Return True within `command_line`."""
    return _ON_COMMAND_LINE.get()


def setting(name: str, value: object = None) -> str:
    """Name a setting in a message as its reader writes it: an option of the command line, or an argument of Python.

    Examples:
        `setting("data.store", "stream")` is `--data.store=stream` or `store='stream'`, and
        `setting("data", "DependencyDataModule")` is `--data DependencyDataModule` or `DependencyDataModule`.

    Args:
        name: Dotted name of the option.
        value: Value to give it, as the command line has it; None to name the option alone.
    """
    is_class = name in ("data", "model") and value is not None
    if not is_on_command_line():
        if is_class:
            return str(value)
        return _argument(name, value)
    if value is None:
        return f"--{name}"
    if is_class:
        return f"--{name} {value}"
    text = str(value)
    if "'" in text:
        text = f'"{text}"'
    elif text.startswith("{"):
        text = f"'{text}'"  # the shell takes braces and blanks for its own
    return f"--{name}={text}"


def _argument(name: str, value: object) -> str:
    """Return an argument of Python in backticks, with its value if there is one."""
    argument = name.removesuffix(".name").rpartition(".")[2]
    argument = argument.replace("limit_test_batches", "limit")
    if value is None:
        return f"`{argument}`"
    return f"`{argument}={_value(str(value))!r}`"


def _value(word: str) -> object:
    """Return the value of an option: a number, true, false, null, a list or a mapping; else the text as it is."""
    with suppress(ValueError, RecursionError, yaml.YAMLError):
        if re.match(r"\[|\{.*: ", word):
            return yaml.safe_load(word)
        return json.loads(word)
    return word


class UserError(ValueError):
    """Error in the user's input, which the command line prints without a traceback."""

    @classmethod
    def at(cls, path: Path | str, line: int | None, wrong: str, remedy: str) -> Self:
        """Create an error from its parts, with the message `<path>:<line>: <what is wrong>. <remedy>.` in one line.

        Args:
            path: File with the error.
            line: Line of the file, from 1; None to leave it out.
            wrong: What is wrong.
            remedy: What to do.
        """
        place = f"{path}:{line}" if line is not None else f"{path}"
        return cls(f"{place}: {shorten(wrong)}. {remedy}.")


_SHOWN = 600  # characters of a part of a message
_ENDING = 100  # characters of these after `…`


def shorten(text: str) -> str:
    """Return a part of a message, with `…` in place of the middle of one that shows a long value."""
    if len(text) <= _SHOWN:
        return text
    return f"{text[: _SHOWN - _ENDING]} … {text[-_ENDING:]}"


def lacks_memory(error: BaseException) -> bool:
    """Return True if an error, of Python, of the system or of PyTorch, reports a lack of memory."""
    for kind in type(error).__mro__:
        # By name: PyTorch, which has a class of its own, takes long to import.
        if kind.__name__ in ("MemoryError", "OutOfMemoryError"):
            return True
    return _NO_MEMORY.search(str(error)) is not None


def refuse_lack_of_memory(error: BaseException, source: object) -> None:
    """Raise UserError if an error while reading a source is a lack of memory, which is no fault of the source."""
    if lacks_memory(error):
        raise UserError(f"{source}: there is not enough memory. Free some, or give something smaller.") from error


def pluralize(number: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun, for instance `1 text` or `1,821 texts`.

    Args:
        number: The number.
        singular: The noun in the singular.
        plural: The noun in the plural; by default the singular with an s.
    """
    if number == 1:
        return f"1 {singular}"
    return f"{number:,} {plural or f'{singular}s'}"


_LISTED = 3  # names that a message lists


def list_first(names: Sequence[str]) -> str:
    """Join the first three names, and append the number of the others: `a, b, c and 5 more`."""
    joined = ", ".join(names[:_LISTED])
    more = len(names) - _LISTED
    return f"{joined} and {more} more" if more > 0 else joined


def near(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return ` (did you mean …?)` with the one or two correct names most similar to a name; empty without one.

    The similarity of two names is that of the whole names, or of their last dotted parts if that is lower; 1 for equal
    names, at least 0.65 for a suggestion. A correct name is also similar if its last part, or a word of that, hardly
    differs from the misspelt name (`ewt` and `ud_english_ewt`), and most similar if `MEANT` lists it for the misspelt
    one (`lr` and `learning_rate`). The second name may be less similar than the first by 0.15.

    Args:
        name: The misspelt name.
        names: The correct names.
        prefix: Text before each suggested name.
    """
    likeness = {correct: _likeness(name, correct) for correct in sorted(set(names))}
    best = sorted(likeness, key=lambda correct: -likeness[correct])[:2]
    suggestions = []
    for correct in best:
        if likeness[correct] >= max(0.65, likeness[best[0]] - 0.15):
            suggestions.append(f"`{prefix}{correct}`")
    return f" (did you mean {' or '.join(suggestions)}?)" if suggestions else ""


def _likeness(name: str, correct: str) -> float:
    """Return how similar a misspelt name is to a correct one, from 0 to 1, and 2 for names in `MEANT`; see `near`."""
    last = name.rpartition(".")[2]
    last_of_correct = correct.rpartition(".")[2]
    if last_of_correct in MEANT.get(last, ()):
        return 2.0
    likeness = min(_similarity(name, correct), _similarity(last, last_of_correct))
    for word in (last_of_correct, *re.split("[_/]", last_of_correct)):
        similarity = _similarity(name, word)
        if similarity > 0.85:
            likeness = max(likeness, similarity - 0.1)
    return likeness


def _similarity(first: str, second: str) -> float:
    return difflib.SequenceMatcher(None, first, second).ratio()


def one_of(value: object, names: Iterable[str]) -> str:
    """Return the phrase `one of …` with the correct names, for error messages.

    If one of them is similar to `value`, the phrase ends with a suggestion.
    """
    names = list(names)
    return f"one of {', '.join(names)}{near(str(value), names)}"


def new_items(option: str, items: str | Sequence[Item]) -> list[str | Item]:
    """Return the texts or sentences that a user wants predictions for, as a checked list.

    Each is a string, or a sequence of strings such as its words.

    Args:
        option: `texts` or `sentences`, for messages.
        items: One string, or a sequence of items.

    Raises:
        UserError: There is no item, or an item is empty.
    """
    checked: list[str | Item] = [items] if isinstance(items, str) else list(items)
    if not checked:
        raise UserError(f"{option} is empty: give at least one.")
    for place, item in enumerate(checked):
        parts = [item] if isinstance(item, str) else item
        if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
            raise UserError(f"{option}[{place}] is {item!r}; it must be a string or a sequence of strings.")
        if not "".join(parts).strip():
            raise UserError(f"{option}[{place}] is empty. Leave it out.")
        for number, part in enumerate(parts):
            if not part.strip():
                raise UserError(f"{option}[{place}][{number}] is empty. Leave it out.")
    return checked


def check_names(option: str, names: Sequence[object]) -> None:
    """Raise UserError if a list of names or numbers is empty or has duplicates.

    Args:
        option: Option that holds the list, for the message.
        names: The list.
    """
    if not names:
        raise UserError(f"{option} is empty. Give at least one.")
    for place, name in enumerate(names):
        if name in names[:place]:
            raise UserError(f"{option} lists {name} more than once. Give it once.")
