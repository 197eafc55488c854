"""The names of scores, as docs/glossary.md explains them."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

GLOSSARY = Path(__file__).parents[1] / "docs/glossary.md"
OF_ANY_UNIT = {"of the score", "of the term"}


@cache
def explained() -> dict[re.Pattern[str], str]:
    """The scores of the tables under `Names of scores`, with what stands there as their unit."""
    text = GLOSSARY.read_text(encoding="utf-8").partition("## Names of scores")[2]
    found = {}
    for names, unit in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", text, re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", names):
            found[re.compile(re.sub(r"<\w+>", "[^ ]+?", re.escape(name)))] = unit.strip("`")
    return found


def unexplained(experiment: str, units: Mapping[str, str]) -> list[str]:
    """Scores that no line of the glossary explains with this unit; prefixes are those that it names."""
    left = []
    for name, unit in units.items():
        plain = re.sub(r"^(dev|random_init|before)\.", "", name)
        parts = plain.split(".")
        # Those of a variant begin with its name.
        names = [".".join(parts[place:]) for place in range(len(parts))] if experiment == "fidelity" else [plain]
        found = {of for pattern, of in explained().items() if any(pattern.fullmatch(one) for one in names)}
        if not found & {unit, *OF_ANY_UNIT}:
            left.append(f"{name} ({unit})")
    return left
