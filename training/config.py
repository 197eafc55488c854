"""The configuration of a run as plain settings: what makes two runs the same but for their seeds."""

from collections.abc import Iterator, Mapping

SEEDS = frozenset({"seed", "seed_everything"})
"""Names of options that are seeds, wherever they stand."""

PLACES = frozenset({"default_root_dir", "save_dir", "dirpath", "cache", "root"})
"""Names of options that say where something lies, not what it is."""


def leaves(node: object, at: str = "") -> Iterator[tuple[str, object]]:
    """The settings of a configuration by their dotted names."""
    if isinstance(node, Mapping | list):
        for key, inner in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from leaves(inner, f"{at}.{key}" if at else str(key))
    else:
        yield at, node


def settings(config: object) -> dict[str, object]:
    """What two runs have in common that differ in nothing but seeds and folders, which are None, by dotted names."""
    return {name: None if name.rpartition(".")[2] in SEEDS | PLACES else value for name, value in leaves(config)}


def seeds(config: object) -> dict[str, object]:
    """The seeds of a run by dotted names."""
    return {name: value for name, value in leaves(config) if name.rpartition(".")[2] in SEEDS}
