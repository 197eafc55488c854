"""What is in a YAML file, checked by hand: every fault is an error that says where it stands and what belongs there."""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import yaml

from reports.plan import SweepError


def load(path: Path) -> object:
    """Read a file; unlike YAML's own reader, a key that stands twice in a mapping is an error and not the later one.

    Raises:
        SweepError: The file is not there, not UTF-8 or not YAML.
    """
    try:
        content = path.read_text(encoding="utf-8")
        twins = list(_twins(yaml.compose(content, Loader=yaml.SafeLoader)))
        found: object = yaml.safe_load(content)
    except OSError as error:
        raise SweepError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SweepError(f"{path} is not UTF-8: {error}") from None
    except (yaml.YAMLError, ValueError) as error:  # the latter from what looks like a date and is none
        raise SweepError(f"{path} is not YAML: {error}") from None
    for line, name in twins:
        raise SweepError(f"{path}:{line}: `{name}` stands twice in one mapping")
    return found


def _twins(node: object) -> Iterator[tuple[int, str]]:
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    yield key.start_mark.line + 1, key.value
                seen.add(key.value)
            yield from _twins(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _twins(value)


def mapping(value: object, where: str, *, empty: bool = False) -> Mapping[str, object]:
    """A mapping from text; `empty` allows one of nothing."""
    if not isinstance(value, dict) or (not value and not empty):
        raise SweepError(f"{where} is a mapping{'' if empty else ' of at least one'}, `name: …`, not {value!r}")
    for name in value:
        if not isinstance(name, str):
            raise SweepError(f"{where}: the name {name!r} is read as {type(name).__name__}: write it in quotes")
    return value


def fields(value: object, known: Collection[str], where: str) -> Mapping[str, object]:
    """A mapping that has no names but these."""
    found = mapping(value, where, empty=True)
    for name in found:
        if name not in known:
            raise SweepError(f"{where}: there is no `{name}`{near(name, known)}; there are {', '.join(sorted(known))}")
    return found


def text(value: object, where: str) -> str:
    """Text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise SweepError(f"{where} is text, not {value!r}{'' if isinstance(value, str) else ': write it in quotes'}")
    return value


def texts(value: object, where: str) -> tuple[str, ...]:
    """A list of texts, each once."""
    if not isinstance(value, list) or not value:
        raise SweepError(f"{where} is a list of names, such as [uas], not {value!r}")
    found = tuple(text(name, f"{where}, item {place}") for place, name in enumerate(value, 1))
    if len(set(found)) < len(found):
        raise SweepError(f"{where} names something twice: {', '.join(found)}")
    return found


def integers(value: object, where: str) -> tuple[int, ...]:
    """A list of whole numbers from 0, each once."""
    whole = isinstance(value, list) and all(
        isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in value
    )
    if not isinstance(value, list) or not whole or not value or len(set(value)) < len(value):
        raise SweepError(f"{where} is a list of different whole numbers from 0, such as [0, 1, 2], not {value!r}")
    return tuple(value)


def near(name: str, known: Iterable[str], prefix: str = "") -> str:
    """A question after the name that was meant, where one or two are like it; `prefix` is shown before each."""
    found = [f"`{prefix}{one}`" for one in difflib.get_close_matches(name, set(known), n=2)]
    return f" (did you mean {' or '.join(found)}?)" if found else ""
