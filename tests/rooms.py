"""The names that the packages of the program export, which are imported when they are used."""

from types import ModuleType
from typing import Any


def exports(*rooms: ModuleType) -> dict[str, Any]:
    """Return what rooms export, by name."""
    return {name: getattr(room, name) for room in rooms for name in room.__all__}
