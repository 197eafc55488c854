"""Types of options, and the check of values against them.

An option says its values in its annotation, such as `share: Share = 0.1`; `checked` compares them at each call.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from inspect import isfunction, signature
from math import isfinite
from numbers import Integral, Real
from os import PathLike
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from attention_probing.results.errors import UserError, near, one_of
from attention_probing.results.settings import explain_new_name

Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Bounds:
    """Bounds of a number in an annotation, such as `Annotated[int, Bounds(least=1)]`; the number is finite.

    Attributes:
        above: Bound that the number exceeds.
        least: Least allowed value.
        below: Bound below which the number is.
        most: Greatest allowed value.
    """

    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None

    def __str__(self) -> str:
        parts = []
        if self.above is not None:
            parts.append(f"above {self.above}")
        if self.least is not None:
            parts.append(f"at least {self.least}")
        if self.below is not None:
            parts.append(f"below {self.below}")
        if self.most is not None:
            parts.append(f"at most {self.most}")
        return " and ".join(parts)

    __repr__ = __str__  # `--help` prints it

    def allow(self, value: float) -> bool:
        """Return True if a finite number is within the bounds."""
        if self.above is not None and value <= self.above:
            return False
        if self.least is not None and value < self.least:
            return False
        if self.below is not None and value >= self.below:
            return False
        return self.most is None or value <= self.most


Positive = Annotated[int, Bounds(least=1)]
"""A number of things, 1 or more."""
NonNegative = Annotated[int, Bounds(least=0)]
"""A number of things, or a seed."""
Several = Annotated[int, Bounds(least=2)]
"""A number of things, 2 or more."""
Rate = Annotated[float, Bounds(least=0)]
"""A factor that may be 0, such as a learning rate or the weight of a loss."""
Factor = Annotated[float, Bounds(above=0)]
"""A factor that may not be 0, such as a decay."""
Share = Annotated[float, Bounds(above=0, most=1)]
"""A share of things, at most all of them."""
Probability = Annotated[float, Bounds(least=0, below=1)]
"""A probability that is not 1, such as a dropout."""


def checked(function: Function) -> Function:
    """Decorate a function, or a dataclass, so that each call checks the arguments against their annotations.

    The check covers numbers and their `Bounds`, choices (`Literal`), strings, booleans and sequences of them. Arguments
    annotated with other classes are not checked.

    Args:
        function: The function, usually `__init__`; of a class its `__init__` is decorated.
    """
    if isinstance(function, type):
        function.__init__ = checked(function.__init__)  # type: ignore[misc]
        return function

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401
        owner = type(args[0]) if function.__name__ == "__init__" else function
        _refuse_old_names(owner.__name__, options)
        arguments = signature(function).bind_partial(*args, **options).arguments
        _check(owner.__name__, _hints(function), arguments)
        return function(*args, **options)

    return call  # type: ignore[return-value]


def _refuse_old_names(owner: str, options: Collection[str]) -> None:
    """Raise UserError for an option that has another name since version 3.0."""
    for option in options:
        message = explain_new_name(owner, option)
        if message is not None:
            raise UserError(f"{owner}: {message}")


def check_options(of: object, **values: object) -> None:
    """Raise UserError if a value is not one that its annotation allows, in `__init__` of the class or of a base.

    It is for classes whose arguments Lightning collects from the frames of their constructors, which `checked` would
    hide; other functions are decorated with `checked`.

    Args:
        of: Object whose `__init__` has the options as arguments, or a function that has them.
        **values: Values of the options by name.
    """
    if isfunction(of):
        _check(of.__name__, _hints(of), values)
        return
    hints: dict[str, object] = {}
    for kind in reversed(type(of).__mro__):
        if "__init__" in vars(kind):
            hints |= _hints(vars(kind)["__init__"])
    _check(type(of).__name__, hints, values)


@cache
def _hints(function: Any) -> dict[str, object]:  # noqa: ANN401
    """Return the annotations of a function; those that name what only type checkers import are left out."""
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:
        annotations = getattr(function, "__annotations__", {})
        return {name: hint for name, hint in annotations.items() if not isinstance(hint, str)}


def _check(name: str, hints: Mapping[str, object], values: Mapping[str, object]) -> None:
    for option, value in values.items():
        allowed = misfit(value, hints.get(option, Any))
        if allowed is not None:
            raise UserError(f"{name}: {option} is {value!r}, but must be {allowed}.")


def from_options(kind: Callable[..., Made], options: object, where: str, **defaults: object) -> Made:
    """Create an object from a mapping of options.

    Only the names of the options are checked here; the constructor of the object checks the values.

    Args:
        kind: Class of the object.
        options: Options by name.
        where: Option of the user that contains the mapping, for messages.
        **defaults: Values of options that `options` leaves out, in place of the defaults of the class.

    Raises:
        UserError: `options` is not a mapping, or has an option that the class does not have.
    """
    names = list(signature(kind).parameters)
    if not isinstance(options, Mapping):
        raise UserError(f"{where} is {options!r}, but must be a mapping with keys among {', '.join(names)}.")
    for name in options:
        if name not in names:
            hint = near(str(name), names)
            raise UserError(f"{where}: unknown option {name!r}{hint}; the possible options are {', '.join(names)}.")
    return kind(**{**defaults, **options})


KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "NoneType": "null",
    "dict": "a mapping, {name: …}",
    "list": "a list, such as [{}]",
    "tuple": "a list, such as [{}]",
}
"""Types in the words of messages; `{}` is the value that was given instead of a list."""
_PLAIN: Mapping[object, Any] = {bool: bool, int: Integral, float: Real, str: str | PathLike, NoneType: NoneType}


def misfit(value: object, hint: Any) -> str | None:  # noqa: ANN401 # of any kind
    """Return a description of the values that a type annotation allows; None if it allows this value.

    Args:
        value: The value.
        hint: The annotation; keys of a mapping, and values of classes that `checked` does not check, are not checked.
    """
    kind = get_origin(hint)
    inside = get_args(hint)
    if kind is Annotated:
        return _misfit_of_number(value, *inside)
    if kind is Literal:
        return None if value in inside else one_of(value, map(str, inside))
    if kind in (Union, UnionType):
        return _misfit_of_union(value, inside)
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return _misfit_of_mapping(value, inside[1])
    if isinstance(kind, type) and issubclass(kind, Sequence):
        is_pair = kind is tuple and inside[1:] != (...,)
        return None if is_pair else _misfit_of_list(value, inside[0])
    is_truth = isinstance(value, bool) and hint in (int, float)  # in Python, True is an int
    if is_truth or not isinstance(value, _PLAIN.get(hint, object)):
        return KINDS[hint.__name__]
    return None


def _misfit_of_union(value: object, hints: Sequence[Any]) -> str | None:
    faults = []
    for hint in hints:
        fault = misfit(value, hint)
        if fault is None:
            return None
        if hint is not NoneType:
            faults.append(fault)
    if all(hint is NoneType or get_origin(hint) is Literal for hint in hints):
        choices: list[str] = []
        for hint in hints:
            choices.extend(map(str, get_args(hint)))
        return one_of(value, choices)
    return " or ".join(dict.fromkeys(faults))


def _misfit_of_list(value: object, hint: object) -> str | None:
    if isinstance(value, str | Mapping) or not isinstance(value, Collection):
        return "a list"
    for item in value:
        fault = misfit(item, hint)
        if fault is not None:
            return f"a list, each {fault}"
    return None


def _misfit_of_mapping(value: object, hint: object) -> str | None:
    if not isinstance(value, Mapping):
        return KINDS["dict"]
    for item in value.values():
        fault = misfit(item, hint)
        if fault is not None:
            return f"a mapping to {fault}"
    return None


def _misfit_of_number(value: Any, hint: object, *bounds: object) -> str | None:  # noqa: ANN401
    """Return a description of the numbers that are allowed; None if they include the value."""
    fault = misfit(value, hint)
    if fault is not None:
        return fault
    for bound in bounds:
        if not isinstance(bound, Bounds):
            continue
        if not isfinite(value):
            return f"a finite number {bound}"
        if not bound.allow(value):
            return str(bound)
    return None
