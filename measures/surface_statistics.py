"""Surface statistics of every head (Clark et al. 2019, §3): neighbours, delimiters, punctuation, sinks, and breadth."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from attention_probing.attention.masks import uniform_attention
from attention_probing.datamodules import SegmentBatch
from attention_probing.measures.by_head import HeadMeans, HeadNumbers, by_name, head_rows, without_interval
from attention_probing.measures.contract import MapMeasure
from attention_probing.metrics.attention_mass import PLAIN, STATISTICS, UNITS, VARIED, TokenKinds, surface_statistics
from attention_probing.results import (
    Curves,
    Estimate,
    Figure,
    Floats,
    Result,
    Table,
    fill_sentence,
    format_estimate,
    on_one_scale,
)
from attention_probing.results.heads import head_map
from attention_probing.results.sentences import clear_largest
from attention_probing.results.tables import DASH, format_number

ASKED = ("start", "first", "end", "punctuation", "entropy")
"""Statistics that are printed, of each layer and of the model; `first` only if no input has a start delimiter."""

BEHAVIOURS = {
    "previous token": ("previous", 0.5),
    "next token": ("next", 0.5),
    "start delimiter": ("start", 0.6),
    "first token": ("first", 0.6),
    "end delimiters": ("end", 0.6),
    "punctuation": ("punctuation", 0.6),
}
"""A head's behaviour is the first whose statistic is above its bound (Clark et al. 2019, figure 6)."""
BROAD = 3.8
"""Entropy in nats above which a head without such a behaviour is broad (ibid.), if every token sees the whole input.

With a window or a causal mask uniform attention has a lower entropy. The bound of such a layer is the same share of the
entropy of uniform attention.
"""

_BY_LAYER = {
    "delimiters": ("Attention to delimiters and punctuation", ("start", "first", "end", "punctuation")),
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
    "first": "first token",
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


class Surface(MapMeasure):
    """Surface statistics of each head: the kinds of tokens it attends to, and how broadly (Clark et al. 2019, §3).

    The statistics are the `STATISTICS` of `metrics.attention_mass`. Tables show them beside the same
    statistics of uniform attention over the positions that each token may attend to in the layer. A statistic
    that can only be 0 is left blank, such as the attention of a decoder to the next token, or the entropy of its
    first.

    Args:
        smoothed: Compute entropies of smoothed weights, as the code released with the paper does.
    """

    experiment = "surface"

    def __init__(self, smoothed: bool = False) -> None:
        super().__init__()
        self.smoothed = smoothed

    def begin(self) -> None:
        bounds = 0, [1.0 if unit == "fraction" else np.inf for unit in UNITS.values()]
        # One row of uniform attention for each layer, and one over the whole input.
        self.numbers = HeadMeans(self.encoder, UNITS, bounds, uniform=self.encoder.layers + 1)

    def update_layer(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        self.numbers.add(self._statistics(batch, weights))

    def _statistics(self, batch: SegmentBatch, weights: Tensor) -> Tensor:
        tokens = TokenKinds(batch.mask, batch.start, batch.end, batch.punctuation)
        return surface_statistics(weights, tokens, self.smoothed)

    def update(self, batch: SegmentBatch) -> None:
        masks, of_layers = self.encoder.allowed(batch.mask)
        whole = batch.mask[:, None, None].expand(-1, 1, masks.size(-1), -1)
        uniform = self._statistics(batch, uniform_attention(torch.cat([masks, whole], 1)).float())
        uniform = uniform[:, [*of_layers.tolist(), masks.size(1)]]
        # Another column of the heads may be the heaviest than of uniform attention.
        possible = torch.cat([uniform[..., : -len(VARIED)], uniform[..., : len(VARIED)]], -1)
        self.numbers.close(batch.index % 2, uniform, possible)

    def by_head(self) -> Mapping[str, HeadNumbers]:
        found = self.numbers.by_head()
        bound = np.broadcast_to(self._broad_from()[:, None], found["entropy"].over().value.shape)
        return {name: found[name] for name in PLAIN} | {"broad_from": without_interval(bound, "nats")}

    def classes(self) -> Mapping[str, list[str]]:
        """Return `{"behaviour": …}`: a list of the behaviour of each attention head, layer by layer.

        The behaviours are `previous token`, `next token`, `start delimiter`, `first token` (of inputs without a start
        delimiter), `end delimiters`, `punctuation`, `broad` and `other`; a head has the first that fits. The
        thresholds are those of the colours in Clark et al.'s (2019) Fig. 6; `other` is a head below all of them.
        """
        means = self.numbers.over()
        names = np.where(means["entropy"].value > self._broad_from()[:, None], "broad", "other").astype(object)
        for name, (statistic, least) in reversed(BEHAVIOURS.items()):  # the first that fits counts
            names[means[statistic].value > least] = name
        names[np.isnan(means["entropy"].value)] = "–"  # of a layer without attention
        return {"behaviour": names.ravel().tolist()}

    def _broad_from(self) -> Floats:
        """Return the entropy above which a head of each layer is broad, in nats `[layers]`."""
        uniform = by_name(self.numbers.means("uniform"), STATISTICS)["entropy"].value
        bounds: Floats = BROAD * (uniform[:-1] / uniform[-1])
        return bounds

    def result(self) -> Result:
        """Return the statistics as tables, scores and figures.

        The tables are `surface`, with a row for each head, and `layers`, with a row for each layer and
        means over its heads. They have a column for each statistic; `surface` also has columns
        `uniform.<statistic>` for uniform attention, except for statistics whose names end in
        `_without_heaviest`. The scores are means over all heads of the model. There are figures by layer
        and by head.
        """
        heads, layers, model = (self.numbers.over(level) for level in ("heads", "layers", "model"))
        uniform = {name: one.value for name, one in by_name(self.numbers.means("uniform"), STATISTICS).items()}
        rows = head_rows(heads)
        # No column of uniform attention is the heaviest: removing one would remove any.
        compared = [name for name in STATISTICS if not name.endswith("_without_heaviest")]
        beside = {f"uniform.{name}": uniform[name][rows["layer"] - 1] for name in compared}
        units = UNITS | {f"uniform.{name}": UNITS[name] for name in compared}
        counts = {name: int(model[name].inputs) for name in ("first", "start", "end", "punctuation")}
        asked = [name for name in ASKED if counts.get(name, 1) and (name != "first" or not counts["start"])]
        kinds = [name for name in asked if name != "entropy"]
        number_of_layers = len(layers["entropy"].value)
        at_once = self.numbers.over("layers", tests=len(kinds) * number_of_layers)
        shares = {name: self.numbers.over("model", tests=len(kinds))[name] for name in kinds}
        numbers = range(number_of_layers)
        by_layer = {name: {str(layer + 1): at_once[name][layer] for layer in numbers} for name in shares}
        inputs = {name: counts.get(name, counts["first"]) for name in shares}
        text = surface_answer(shares, by_layer, {name: uniform[name] for name in shares}, inputs)
        answer = fill_sentence(f"{text}; entropy is {{entropy}}", model)
        return Result(
            experiment=self.experiment,
            scores={f"surface.{name}": model[name] for name in PLAIN},
            tables={
                "surface": Table(rows.assign(**beside), units),
                "layers": Table(head_rows(layers), UNITS, main=("layer", *asked)),
            },
            figures=_figures(heads, layers, uniform["entropy"][:-1]),
            audit={"inputs": counts.pop("first")} | {f"inputs with {name}": count for name, count in counts.items()},
            headline=[f"surface.{name}" for name in asked],
            answer=answer,
        )


def surface_answer(
    shares: Mapping[str, Estimate],
    layers: Mapping[str, Mapping[str, Estimate]],
    uniform: Mapping[str, Floats],
    inputs: Mapping[str, int],
) -> str:
    """Return the kind of token with the largest share of attention, and the layer where this is clearly largest.

    Args:
        shares: Share of attention over all heads, by kind of token.
        layers: The same by layer, by its number from 1, with intervals that hold for all layers at once.
        uniform: Share of uniform attention in each layer, `[layers]`, by kind of token.
        inputs: Number of inputs, by kind of token.
    """
    top = max(shares, key=lambda name: shares[name].value)
    text = f"on {inputs[top]:,} inputs {format_estimate(shares[top])} of attention goes to the {_LABELS[top]}"
    layer = clear_largest(layers[top])
    if layer is None:
        return text
    alike = format_number(float(uniform[top][int(layer) - 1]), "fraction", missing=DASH)
    return f"{text}, most in layer {layer}, {format_estimate(layers[top][layer])} (uniform {alike} %)"


def _figures(
    heads: Mapping[str, Estimate[Floats]], layers: Mapping[str, Estimate[Floats]], uniform_entropy: Floats
) -> dict[str, Figure]:
    """Draw the paper's figures 2 to 4, and maps of all heads.

    Every head is a point over its layer, and the mean of a layer is a point of a line.
    """
    number, width = heads["self"].value.shape
    heads = {name: one for name, one in heads.items() if not np.isnan(one.value).all()}
    rows, places = np.arange(1, number + 1), np.arange(1, number + 1).repeat(width)
    figures: dict[str, Figure] = {}
    for file, (title, names) in _BY_LAYER.items():
        known = [name for name in names if name in heads and (name, "start" in heads) != ("first", True)]
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
            lines["uniform attention"] = (rows.tolist(), uniform_entropy.tolist())
        figures[file] = Curves(title, "layer", label, lines, points, y_range=(0.0, scale / 100))
    maps = {
        f"{name}_by_head": head_map(
            f"Attention to the {_LABELS[name].removeprefix('the ')}",
            heads[name].value,
            value_label="share of attention",
        )
        for name in _BY_HEAD
        if name in heads
    }
    return figures | dict(on_one_scale(maps))
