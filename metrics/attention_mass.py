"""Attention by kind of token, and its entropy (Clark et al. 2019, §3), with the attention sink and without."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attention_probing.results import Unit

MASSES = ("start", "end", "punctuation", "rest", "previous", "next", "self", "end_to_end", "other_to_end")
"""Mean attention of a row to the start delimiter, to the end delimiters, to `.` and `,`, to all other tokens but the
first; to the previous token, the next token and itself; to the end delimiters, in the mean over their rows and over
other rows."""
ENTROPIES = ("entropy", "start_entropy")
"""Mean entropy of a row, and entropy of the row of the start delimiter."""
SINKS = ("first", "heaviest", "heaviest_end", "sink")
"""Mean attention to the first position, to the column with most attention in this input and head (Xiao et al. 2023),
and to the end delimiter with most (Kovaleva et al. 2019, §4.4); 1 if the first of these is above ε, so that the mean
over inputs and heads is the sink rate (Gu et al. 2025, §3.2), else 0."""
EPSILON = 0.3
"""Mean attention to the first position above which a head is a sink on an input (Gu et al. 2025, §3.2)."""
VARIANTS = ("", "_without_first", "_without_heaviest")

VARIED = (*MASSES, *ENTROPIES)
PLAIN = (*VARIED, *SINKS)
"""The statistics with no sink removed."""
STATISTICS = (
    *PLAIN,
    *(f"{name}_without_first" for name in VARIED),
    *(f"{name}_without_heaviest" for name in VARIED),
)
"""Names of all statistics, in the order of the last axis of `surface_statistics`."""

UNITS: dict[str, Unit] = dict.fromkeys(STATISTICS, "fraction")
UNITS |= {name: "nats" for name in STATISTICS if "entropy" in name}

NOTHING = 2.0**-23
"""A row with at most this attention outside its sink counts as empty: float32 cannot tell the sink from one."""

_TINY = 2.0**-126  # the least normal float32: 0 ln 0 is 0 without a branch
_SMOOTHING = 1e-4


@dataclass(frozen=True, eq=False)
class TokenKinds:
    """Kinds of the tokens of some inputs, each bool `[batch, time]`; real tokens come before the padding.

    Attributes:
        real: True for tokens, False for padding.
        start: True for the start delimiter.
        end: True for end delimiters.
        punctuation: True for `.` and `,`.
    """

    real: Tensor
    start: Tensor
    end: Tensor
    punctuation: Tensor


def surface_statistics(weights: Tensor, tokens: TokenKinds, smoothed: bool = False, epsilon: float = EPSILON) -> Tensor:
    """Return statistics of the attention of every head on every input, in the order of `STATISTICS`.

    The statistics are mean attention to kinds of tokens, to the previous and next token, to the token
    itself and to attention sinks; and entropies. A mean is over the rows of the real tokens of an input,
    unless `MASSES` or `ENTROPIES` names other rows. A row without a previous or next token counts as 0
    in the mean attention to it.

    Some statistics leave out the column of an attention sink: `…_without_first` the column of the
    first position, and `…_without_heaviest` the column with most attention in this input and head.
    The rest of each row is rescaled to sum to one. Rows with all their weight in the left-out column are
    skipped, such as the first row of a decoder.

    Args:
        weights: float32 `[batch, heads, from, to]`, zero in the columns of the padding.
        tokens: Kinds of the tokens.
        smoothed: True to compute entropies of .9999 α + .0001 / n over n tokens, as Clark et al.'s
            released code does, unlike their paper.
        epsilon: Threshold ε of the sink rate.

    Returns:
        float32 `[batch, heads, statistics]`, masses as fractions and entropies in nats; nan if an
        input has no token of a kind, or if all rows are skipped.
    """
    start, end, punctuation, real = (
        kind.to(weights.dtype) for kind in (tokens.start, tokens.end, tokens.punctuation, tokens.real)
    )
    kinds = torch.stack([start, end, punctuation, real], 1)
    present = kinds[:, :3].any(-1)
    # A first token that is neither is a class of its own, which `rest` does not contain.
    kinds[:, 0, 0] += 1 - kinds[:, :3, 0].amax(1)
    received = (real[:, None, None] @ weights).squeeze(2)  # [batch, heads, to]
    to_ends = received.where(tokens.end[:, None], 0)
    sinks = torch.stack([received[..., 0], received.amax(-1), to_ends.amax(-1)], -1) / real.sum(-1)[:, None, None]
    is_sink = (sinks[..., :1] > epsilon).to(sinks.dtype)
    # Columns that a variant reads, [batch, heads, variants, to].
    columns = real[:, None, None].repeat(1, weights.size(1), len(VARIANTS), 1)
    columns[:, :, 1, 0] = 0
    columns[:, :, 2].scatter_(-1, received.argmax(-1, keepdim=True), 0)

    # Sums of what is left, not differences from what is taken away: exact where a sink takes nearly all.
    columns_of_kinds = columns[:, :, :, None] * kinds[:, None, None]
    masses = columns_of_kinds.flatten(2, 3) @ weights.mT
    masses = masses.reshape(*columns_of_kinds.shape[:4], -1)  # [batch, heads, variants, kinds, from]
    near = _near(weights.diagonal(-1, 2, 3), weights.diagonal(1, 2, 3), weights.diagonal(0, 2, 3))
    near = near[:, :, None] * _near(columns[..., :-1], columns[..., 1:], columns)
    totals = masses[:, :, :, 3]
    broad = totals * _entropies(weights, columns, totals, smoothed)

    # Rows in the mean: all, those of end delimiters, all others, and the start delimiter's.
    rows = torch.stack([real, end, real - end, start], 1)[:, None, None] * (totals > NOTHING)[:, :, :, None]
    shares = rows / totals.clamp_min(NOTHING)[:, :, :, None]
    sums = torch.cat([masses[:, :, :, :3], near, broad[:, :, :, None]], 3) @ shares.mT
    means = sums / rows.sum(-1)[:, :, :, None]  # [batch, heads, variants, numbers, rows]

    absent = torch.where(present, 0.0, torch.nan)[:, None, None]
    sinks[..., 2] += absent[:, 0, :, 1]  # of inputs without an end delimiter
    mass = means[..., :3, 0]
    rest = 1 - mass.sum(-1, keepdim=True)
    neighbours = means[..., 3:6, 0]
    to_end = means[..., 1, 1:3] + absent[..., 1:2]
    entropies = means[..., 6, 0:4:3]
    statistics = torch.cat([mass + absent, rest, neighbours, to_end, entropies], -1)
    plain, *others = statistics.unbind(2)
    return torch.cat([plain, sinks, is_sink, *others], -1)


def _near(previous: Tensor, following: Tensor, same: Tensor) -> Tensor:
    """Return a row's weight on the token before, the one behind and its own, `[…, 3, from]`, 0 where there is none."""
    near = same.new_zeros(*same.shape[:-1], 3, same.size(-1))
    near[..., 0, 1:] = previous
    near[..., 1, :-1] = following
    near[..., 2, :] = same
    return near


def _entropies(weights: Tensor, columns: Tensor, totals: Tensor, smoothed: bool) -> Tensor:
    """Return the entropy of each row and variant, `[batch, heads, variants, from]`: ln s - Σ p ln p / s, s = Σ p."""
    if smoothed:
        added = _SMOOTHING / columns[:, :1, :1].sum(-1, keepdim=True)
        weights = (1 - _SMOOTHING) * weights + added
        totals = (1 - _SMOOTHING) * totals + added * columns.sum(-1, keepdim=True)
    products = columns @ weights.clamp_min(_TINY).log_().mul_(weights).mT
    totals = totals.clamp_min(NOTHING)
    return totals.log() - products / totals
