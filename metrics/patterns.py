"""The five patterns of attention maps (Kovaleva et al. 2019, §4.1), by rules that are corrected for chance.

Kovaleva et al. name the classes and show examples; they classify with a network trained on maps labelled by hand, and
published neither. The rules here do not come from the paper.
"""

from typing import NamedTuple

import torch
from torch import Tensor

PATTERNS = ("vertical", "diagonal", "vertical_diagonal", "block", "heterogeneous")
"""Attention to a few tokens; to the token itself and its neighbours; both; within its segment; anything else."""

VERTICAL, DIAGONAL, BOTH, BLOCK, HETEROGENEOUS = range(len(PATTERNS))
COLUMNS = 3  # most columns of a vertical pattern
CLEAR = 0.5  # smallest share, above chance, of a pattern
MIXED = 0.25  # smallest share of the weaker of vertical and diagonal in a map that is both
REMAINING = 0.3  # smallest remaining mass in which a block is possible
BOUNDARY = 0.25  # smallest share of a block that nearness does not explain

_NOTHING = 1e-6  # larger than the rounding error of float32 sums that should be zero


class Structure(NamedTuple):
    """Vertical, diagonal and block shares of each attention map, as `structure` computes them.

    Each field is float64 `[batch, heads]`. A mass is the mean attention weight per row, from 0 to 1.
    All fields but `remaining` are corrected for chance: 0 is the share expected by chance, 1 is
    everything.

    Attributes:
        vertical: Mass on the heaviest columns, at most three.
        diagonal: Mass on the token itself and its two neighbours, outside the heaviest columns.
        block: Share of the remaining mass that stays within the segment of the attending token.
            Chance is uniform attention.
        boundary: The same share, but chance is a map that ignores segments and has the same
            remaining mass at each distance between tokens.
        remaining: Mass outside both the heaviest columns and the diagonal, not corrected.
    """

    vertical: Tensor
    diagonal: Tensor
    block: Tensor
    boundary: Tensor
    remaining: Tensor


class _Masses(NamedTuple):
    """Mean mass of the rows on each column, `[batch, heads, time]`, and how much of it has |i−j| ≤ 1."""

    all: Tensor
    near: Tensor


def structure(weights: Tensor, lengths: Tensor, delimiters: Tensor, segments: Tensor, allowed: Tensor) -> Structure:
    """Return the vertical, diagonal and block shares of each attention map, corrected for chance.

    A mass is the mean attention weight per row: the sum of the weights in some part of the map, over the
    rows of the L real tokens, divided by L. The shares, before correction, are:

    - `vertical`: mass on the k = min(3, delimiters + 1) heaviest columns, on a tie the first.
    - `diagonal`: mass on |i−j| ≤ 1 outside these columns.
    - `remaining`: mass outside these columns with |i−j| > 1.
    - `block`: share of the remaining mass that stays in the segment of the row's token; zero if nothing
      remains, or if the input has one segment.
    - `boundary`: the same as `block`, but corrected for another chance.

    All but `remaining` are corrected for chance: a share x becomes (x − e) / (1 − e), where e is the
    share expected by chance. It becomes zero if e = 1.

    For `vertical`, `diagonal` and `block`, e is the share in a map in which each token attends uniformly
    to its `allowed` tokens. For `vertical` this is k / L if every token may attend to all. In a causal
    encoder it is the mean over rows i = 1, …, L of c_i / i, where c_i is the number of the k columns at
    or before i.

    For `boundary`, e is the share in a map that has the same remaining mass at each distance |i−j| but
    ignores segments. In such a map, the part of the mass at a distance that stays in a segment is the
    share of all pairs at this distance that lie in one segment.

    Args:
        weights: Attention `[batch, heads, from, to]`, zero in the columns of the padding.
        lengths: Number of real tokens, int64 `[batch]`.
        delimiters: Number of delimiters, int64 `[batch]`.
        segments: Segment of each token, 0 or 1, int64 `[batch, time]`.
        allowed: Bool `[batch, 1, from, to]`, True for the real tokens that each token may attend to.
    """
    time = weights.size(-1)
    places = torch.arange(time, device=weights.device)
    real = places < lengths[:, None]
    uniform = allowed / allowed.sum(-1, keepdim=True).clamp(min=1)
    rows = (real / lengths[:, None])[:, None]
    masses = _masses(weights, rows)
    order = masses.all.masked_fill(~real[:, None], -1.0).argsort(dim=-1, descending=True, stable=True)[..., :COLUMNS]
    number = (delimiters + 1).clamp(max=COLUMNS)
    heavy = torch.arange(order.size(-1), device=weights.device) < number[:, None]
    others = torch.ones_like(masses.all).scatter(-1, order, 1.0 - heavy[:, None].expand_as(order).double())

    def outside(masses: _Masses) -> Tensor:
        return ((masses.all - masses.near) * others).sum(-1).clamp(min=0.0)

    even = _masses(uniform, rows)
    vertical, vertical_chance = ((maps.all * (1 - others)).sum(-1) for maps in (masses, even))
    diagonal, diagonal_chance = ((maps.near * others).sum(-1) for maps in (masses, even))
    remaining = outside(masses)
    block = boundary = torch.zeros_like(remaining)
    if bool(segments.any()):
        same = (segments[:, None, :, None] == segments[:, None, None]).float()
        stays = outside(_masses(weights * same, rows))
        chance = outside(_masses(uniform * same, rows))
        by_distance = outside(_masses(weights * _near_pairs(real, segments), rows))
        block = _beyond(stays, remaining * _part(chance, outside(even)), remaining)
        boundary = _beyond(stays, by_distance, remaining)
    return Structure(
        vertical=_beyond(vertical, vertical_chance),
        diagonal=_beyond(diagonal, diagonal_chance),
        block=block,
        boundary=boundary,
        remaining=remaining,
    )


def _near_pairs(real: Tensor, segments: Tensor) -> Tensor:
    """Return the share of pairs at each pair's distance that lie in one segment, `[batch, 1, from, to]`."""
    places = torch.arange(real.size(1), device=real.device)
    distance = (places[:, None] - places).abs()
    first, second = ((real & (segments == segment)).sum(1)[:, None, None] for segment in (0, 1))
    of_one = (first - distance).clamp(min=0) + (second - distance).clamp(min=0)
    return (of_one / (first + second - distance).clamp(min=1)).unsqueeze(1)


def _part(some: Tensor, whole: Tensor) -> Tensor:
    """Return `some` divided by `whole`; one where there is nothing, so that nothing is beyond chance."""
    return torch.where(whole > _NOTHING, some / whole.clamp(min=_NOTHING), 1.0)


def _beyond(mass: Tensor, chance: Tensor, most: Tensor | float = 1.0) -> Tensor:
    """Return (x − e) / (1 − e) of two parts of `most`; zero where all of it is chance."""
    room = most - chance
    return torch.where(room > _NOTHING, (mass - chance) / room.clamp(min=_NOTHING), 0.0)


def _masses(weights: Tensor, rows: Tensor) -> _Masses:
    """Return masses of maps `[batch, heads, from, to]`, whose rows have the weights `rows` `[batch, 1, time]`."""
    time = weights.size(-1)
    whole = (rows[:, :, None].to(weights.dtype) @ weights).squeeze(2).double()
    near = torch.zeros_like(whole)
    for offset in (-1, 0, 1):
        # Rows in which this column exists.
        start = max(-offset, 0)
        end = time - max(offset, 0)
        near[..., start + offset : end + offset] += weights.diagonal(offset, -2, -1).double() * rows[..., start:end]
    return _Masses(whole, near)


def by_rules(shares: Structure, pairs: Tensor, boundary: bool = True) -> tuple[Tensor, Tensor]:
    """Return the pattern of each attention map, and its distance to the nearest threshold.

    The rules, in order, on the fields of `Structure`:

    - vertical + diagonal ≥ .5: `vertical_diagonal` if the smaller of the two is at least a quarter of
        their sum, else `vertical` or `diagonal`, whichever is larger.
    - block ≥ .5, remaining ≥ .3 and boundary ≥ .25, in an input with two segments: `block`.
    - Otherwise: `heterogeneous`.

    Near tokens are mostly in the same segment. Without the condition on `boundary`, a wide diagonal band
    could therefore count as a block.

    Args:
        shares: Shares by `structure`.
        pairs: Bool `[batch]`, True for inputs with two segments.
        boundary: False leaves out the condition on `boundary`.

    Returns:
        Indices in `PATTERNS`, int64 `[batch, heads]`; and the distances, float64 `[batch, heads]`, to
        the nearest threshold beyond which the map would have another pattern.
    """
    vertical, diagonal, block, beyond, remaining = shares
    total = vertical + diagonal
    smaller = torch.minimum(vertical, diagonal)
    structured = total - CLEAR
    mixed = smaller - MIXED * total
    conditions = [block - CLEAR, remaining - REMAINING]
    if boundary:
        conditions.append(beyond - BOUNDARY)
    blocks = torch.stack(conditions).amin(0)
    blocks = blocks.masked_fill(~pairs[:, None], -torch.inf)
    lines = torch.where(mixed >= 0, BOTH, torch.where(vertical >= diagonal, VERTICAL, DIAGONAL))
    others = torch.where(blocks >= 0, BLOCK, HETEROGENEOUS)
    nearest = torch.where(structured >= 0, mixed.abs(), blocks.abs())
    return torch.where(structured >= 0, lines, others), torch.minimum(structured.abs(), nearest)
