"""Attention heads by their names: `6-1` is the first head of the sixth layer."""

import re
from collections.abc import Iterable
from itertools import product

from attention_probing.results.errors import UserError

Head = tuple[int, int]
"""0-based layer and head."""

Heads = frozenset[Head]

_HEAD = re.compile(r"([1-9]\d*)(?:-([1-9]\d*))?")


def parse_heads(names: Iterable[str | int], layers: int, heads: int, option: str) -> Heads:
    """Parse names of attention heads, counted from 1: `6-1`, `6` for all heads of a layer, `all` for all of the model.

    Args:
        names: The names.
        layers: Number of layers of the model.
        heads: Number of heads of each layer.
        option: Option that holds the names, for messages.

    Returns:
        Set of 0-based (layer, head) pairs.

    Raises:
        UserError: A name has another form, or there is no such head.
    """
    parsed: set[Head] = set()
    for name in names:
        if name == "all":
            parsed.update(product(range(layers), range(heads)))
            continue
        match = _HEAD.fullmatch(str(name))
        if match is None:
            raise UserError(
                f"{option}: {name!r} is not a head. Write layer-head, both from 1, such as 6-1; a layer alone, such "
                "as 6; or all."
            )
        layer = int(match[1])
        head = int(match[2] or 0)
        if layer > layers or head > heads:
            raise UserError(
                f"{option}: {name} does not exist; there are {layers} layers of {heads} heads, counted from 1."
            )
        if head:
            parsed.add((layer - 1, head - 1))
        else:
            parsed.update(product([layer - 1], range(heads)))
    return frozenset(parsed)
