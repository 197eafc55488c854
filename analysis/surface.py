"""Surface statistics of every head (Clark et al. 2019, §3): neighbours, delimiters, punctuation, sinks, and breadth."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from analysis.base import Analysis, HeadNumbers, without_interval
from analysis.tables import head_map, head_rows
from attention import Encoder
from attention.capture import uniform_attention
from datamodules import SegmentBatch, TextDataModule
from metrics.attention_mass import PLAIN, STATISTICS, UNITS, TokenKinds, surface_statistics
from metrics.moments import Means, Moments
from results import Curves, Estimate, Figure, Floats, Result, Table, on_one_scale

ASKED = ("start", "end", "punctuation", "entropy")
"""What is printed of each layer, and what a quiet run prints."""

BEHAVIOURS = {
    "previous token": ("previous", 0.5),
    "next token": ("next", 0.5),
    "start delimiter": ("start", 0.6),
    "end delimiters": ("end", 0.6),
    "punctuation": ("punctuation", 0.6),
}
"""A head's behaviour is the first whose statistic is above its bound (Clark et al. 2019, figure 6)."""
BROAD = 3.8
"""Entropy in nats above which a head that has none of them is broad (ibid.), where every token sees the whole input.

In a layer that sees less of it, by a window or a causal mask, even attention has a lower entropy, and the bound is as
much lower: the same share of the entropy of even attention.
"""

_BY_LAYER = {
    "delimiters": ("Attention to delimiters and punctuation", ("start", "end", "punctuation")),
    "end_delimiters": ("Attention to end delimiters", ("end_to_end", "other_to_end")),
    "without_first": (
        "Attention, the first position removed",
        ("previous_without_first", "next_without_first", "end_without_first", "punctuation_without_first"),
    ),
    "entropy": ("Entropy of attention", ("entropy", "start_entropy", "entropy_without_first")),
}
_BY_HEAD = ("previous", "next", "self", "heaviest")
_LABELS = {
    "start": "start delimiter",
    "end": "end delimiters",
    "punctuation": "full stops and commas",
    "end_to_end": "from end delimiters",
    "other_to_end": "from other tokens",
    "heaviest": "heaviest column",
    "entropy": "all tokens",
    "start_entropy": "start delimiter",
    "entropy_without_first": "first position removed",
    "previous": "previous token",
    "next": "next token",
    "self": "the token itself",
}


class Surface(Analysis):
    """Where the attention of each head goes, and how broad it is: the `STATISTICS` of `metrics.attention_mass`.

    They stand beside those of uniform attention over what each token may attend to in the layer. The inputs are halved
    by their numbers, even and odd, for whoever asks how stable a mean is.

    Args:
        smoothed: take entropies of smoothed weights, as the code released with the paper does.
    """

    name = "surface"

    def __init__(self, smoothed: bool = False) -> None:
        super().__init__()
        self.smoothed = smoothed
        self._passed: list[Tensor] = []

    def begin(self, data: TextDataModule, encoder: Encoder) -> None:
        self._encoder = encoder
        count, units = len(STATISTICS), tuple(UNITS[name] for name in STATISTICS)
        bounds = (0, [1.0 if UNITS[name] == "fraction" else np.inf for name in STATISTICS])
        self._of_heads = Moments(2, (encoder.layers, encoder.heads, count), units, bounds=bounds)
        self._of_layers = Moments(2, (encoder.layers, count), units, bounds=bounds)
        self._of_model = Moments(2, (count,), units, bounds=bounds)
        # Even attention in every layer, and over the whole input.
        self._of_uniform = Moments(2, (encoder.layers + 1, count), units, bounds=bounds)

    def update(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        self._passed.append(surface_statistics(weights, _tokens(batch), self.smoothed))

    def end(self, batch: SegmentBatch) -> None:
        found = torch.stack(self._passed, 1).double()  # [batch, layers, heads, statistics]
        self._passed.clear()
        half = batch.index % 2
        self._of_heads.update(half, found)
        self._of_layers.update(half, found.nanmean(2))
        self._of_model.update(half, found.nanmean((1, 2)))
        masks, of_layers = self._encoder.allowed(batch.mask)
        whole = batch.mask[:, None, None].expand(-1, 1, masks.size(-1), -1)
        even = uniform_attention(torch.cat([masks, whole], 1)).float()
        places = [*of_layers.tolist(), masks.size(1)]
        self._of_uniform.update(half, surface_statistics(even, _tokens(batch), self.smoothed)[:, places])

    def by_head(self) -> Mapping[str, HeadNumbers]:
        found = self.statistics()
        bound = np.broadcast_to(self._broad_from()[:, None], found["entropy"].over().value.shape)
        return {name: found[name] for name in PLAIN} | {"broad_from": without_interval(bound, "nats")}

    def statistics(self) -> Mapping[str, Means]:
        """Every statistic of `metrics.attention_mass`, with its sink and without; every process takes part."""
        means = self._of_heads.compute()
        return {name: means.at(place) for place, name in enumerate(STATISTICS)}

    def classes(self) -> Mapping[str, list[str]]:
        """What each head does most, by the thresholds with which the paper colours its clusters."""
        means = _by_name(self._of_heads)
        names = np.where(means["entropy"].value > self._broad_from()[:, None], "broad", "other").astype(object)
        for name, (statistic, least) in reversed(BEHAVIOURS.items()):  # the first that fits counts
            names[means[statistic].value > least] = name
        return {"behaviour": names.ravel().tolist()}

    def _broad_from(self) -> Floats:
        """Entropy above which a head of each layer is broad, in nats `[layers]`."""
        even = self._of_uniform.compute().at(STATISTICS.index("entropy")).over().value
        bounds: Floats = BROAD * (even[:-1] / even[-1])
        return bounds

    def result(self, others: Mapping[str, Analysis]) -> Result:
        """Tables `surface`, by head, and `layers`; scores of the whole model; figures by layer and by head."""
        heads, layers, model, uniform = (
            _by_name(moments) for moments in (self._of_heads, self._of_layers, self._of_model, self._of_uniform)
        )
        rows = head_rows({name: heads[name] for name in STATISTICS})
        numbers = np.arange(1, len(layers["self"].value) + 1)
        # No column of uniform attention is the heaviest, so that removing one would remove any.
        compared = [name for name in STATISTICS if not name.endswith("_without_heaviest")]
        of_layers = rows["layer"].to_numpy() - 1
        even = {f"uniform.{name}": uniform[name].value[of_layers] for name in compared}
        units = UNITS | {f"uniform.{name}": UNITS[name] for name in compared}
        tables = {
            "surface": Table(rows.assign(**even), units),
            "layers": Table(pd.DataFrame({"layer": numbers} | _columns(layers)), UNITS, answer=("layer", *ASKED)),
        }
        scores = {f"surface.{name}": model[name][()] for name in PLAIN}
        counts = {name: int(model[name].inputs) for name in ("first", "start", "end", "punctuation")}
        audit = {"inputs": counts.pop("first")} | {f"inputs with {name}": count for name, count in counts.items()}
        figures = _figures(heads, layers, uniform)
        return Result("surface", scores, tables, figures, audit, headline=[f"surface.{name}" for name in ASKED])


def _tokens(batch: SegmentBatch) -> TokenKinds:
    return TokenKinds(batch.mask, batch.start, batch.end, batch.punctuation)


def _by_name(moments: Moments) -> dict[str, Estimate[Floats]]:
    """Return the mean of each statistic, which are on the last axis."""
    means = moments.compute()
    return {name: means.at(place).over() for place, name in enumerate(STATISTICS)}


def _columns(found: Mapping[str, Estimate[Floats]]) -> dict[str, Floats]:
    return {end: numbers for name in STATISTICS for end, numbers in found[name].named(name).items()}


def _figures(
    heads: Mapping[str, Estimate[Floats]],
    layers: Mapping[str, Estimate[Floats]],
    uniform: Mapping[str, Estimate[Floats]],
) -> dict[str, Figure]:
    """As in the paper's figures 2 to 4: every head a point over its layer, the mean of the layer a line; and maps."""
    number, width = heads["self"].value.shape
    rows, places = np.arange(1, number + 1), np.arange(1, number + 1).repeat(width)
    figures: dict[str, Figure] = {}
    for file, (title, names) in _BY_LAYER.items():
        known = [name for name in names if not np.isnan(heads[name].value).all()]
        if not known:
            continue  # an encoder without delimiters
        scale, label = (1.0, "entropy (nats)") if file == "entropy" else (100.0, "share of attention (%)")
        lines, points = {}, {}
        for at, name in enumerate(known):
            shown = _LABELS.get(name) or _LABELS[name.removesuffix("_without_first")]
            lines[shown] = (rows.tolist(), (scale * layers[name].value).tolist())
            beside = 0.14 * (at - (len(known) - 1) / 2)  # so that no points hide those of another name
            points[shown] = ((places + beside).tolist(), (scale * heads[name].value).ravel().tolist())
        if file == "entropy":
            lines["uniform attention"] = (rows.tolist(), uniform["entropy"].value[:-1].tolist())
        figures[file] = Curves(title, "layer", label, lines, points, y_range=(0.0, scale / 100))
    maps = {
        f"{name}_by_head": head_map(
            f"Attention to the {_LABELS[name].removeprefix('the ')}", heads[name].value, "share of attention"
        )
        for name in _BY_HEAD
    }
    return figures | dict(on_one_scale(maps))
