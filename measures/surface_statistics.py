"""Surface statistics of every head (Clark et al. 2019, §3): neighbours, delimiters, punctuation, sinks, and breadth."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from attention_probing.attention.masks import uniform_attention
from attention_probing.datamodules import SegmentBatch
from attention_probing.measures.by_head import HeadMeans, HeadNumbers, by_name, head_rows, without_interval
from attention_probing.measures.contract import MapMeasure
from attention_probing.metrics.attention_mass import (
    EPSILON,
    PLAIN,
    STATISTICS,
    UNITS,
    VARIED,
    TokenKinds,
    surface_statistics,
)
from attention_probing.metrics.shares import share_interval
from attention_probing.results import (
    Curves,
    Estimate,
    Figure,
    Finding,
    Floats,
    Result,
    Table,
    fill_sentence,
    format_estimate,
    on_one_scale,
)
from attention_probing.results.heads import head_map
from attention_probing.results.options import Probability, checked
from attention_probing.results.sentences import clear_largest
from attention_probing.results.tables import DASH, format_number

HEADLINE = ("start", "first", "end", "punctuation", "entropy")
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
_OF_EACH = "Intervals are of each number alone; those of shares in the answer hold for all kinds of tokens and layers."
_FIRST = STATISTICS.index("first")
_SINK = STATISTICS.index("sink")


class Surface(MapMeasure):
    """Surface statistics of each head: the kinds of tokens it attends to, and how broadly (Clark et al. 2019, §3).

    The statistics are the `STATISTICS` of `metrics.attention_mass`. Tables show them beside the same
    statistics of uniform attention over the positions that each token may attend to in the layer. A statistic
    that can only be 0 is left blank, such as the attention of a decoder to the next token, or the entropy of its
    first.

    Among them is the sink rate (Gu et al. 2025, §3.2): the share of inputs on which the rows of a head attend to the
    first position with a mean weight above ε; for a layer and the model, the mean share over their heads. The paper has
    inputs of 64 tokens; here they have their own lengths.

    Args:
        smoothed: Compute entropies of smoothed weights, as the code released with the paper does.
        epsilon: Threshold ε of the sink rate.
    """

    experiment = "surface"

    @checked
    def __init__(self, smoothed: bool = False, epsilon: Probability = EPSILON) -> None:
        super().__init__()
        self.smoothed = smoothed
        self.epsilon = epsilon

    def begin(self) -> None:
        highest = [1.0 if unit == "fraction" else np.inf for unit in UNITS.values()]
        # One row of uniform attention for each layer, and one over the whole input.
        self.numbers = HeadMeans(self.encoder, UNITS, (0, highest), baselines=self.encoder.layers + 1)

    def update_layer(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        self.numbers.add(self._statistics(batch, weights))

    def _statistics(self, batch: SegmentBatch, weights: Tensor) -> Tensor:
        tokens = TokenKinds(batch.mask, batch.start, batch.end, batch.punctuation)
        return surface_statistics(weights, tokens, self.smoothed, self.epsilon)

    def update(self, batch: SegmentBatch) -> None:
        masks, mask_of_layer = self.encoder.allowed(batch.mask)
        whole = batch.mask[:, None, None].expand(-1, 1, masks.size(-1), -1)
        masks_and_whole = torch.cat([masks, whole], 1)
        uniform = self._statistics(batch, uniform_attention(masks_and_whole).float())
        uniform = uniform[:, [*mask_of_layer.tolist(), masks.size(1)]]
        # Another column of the heads may be the heaviest than of uniform attention.
        possible = torch.cat([uniform[..., : -len(VARIED)], uniform[..., : len(VARIED)]], -1)
        # Heads may be sinks wherever they can attend to the first position, also where uniform attention is none.
        possible[..., _SINK] = uniform[..., _FIRST]
        self.numbers.close(batch.index % 2, uniform, possible)

    def by_head(self) -> Mapping[str, HeadNumbers]:
        statistics = self.numbers.by_head()
        numbers: dict[str, HeadNumbers] = {name: statistics[name] for name in PLAIN if name != "sink"}
        shape = statistics["entropy"].over().value.shape
        bound = np.broadcast_to(self._broad_from()[:, None], shape)
        numbers["broad_from"] = without_interval(bound, "nats")
        return numbers

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

    def _uniform(self) -> dict[str, Floats]:
        """Return the statistics of uniform attention: one number for each layer, and last one over the whole input."""
        estimates = by_name(self.numbers.means("baselines"), STATISTICS)
        return {name: estimate.value for name, estimate in estimates.items()}

    def _broad_from(self) -> Floats:
        """Return the entropy above which a head of each layer is broad, in nats `[layers]`."""
        entropy = self._uniform()["entropy"]
        bounds: Floats = BROAD * (entropy[:-1] / entropy[-1])
        return bounds

    def result(self) -> Result:
        """Return the statistics as tables, scores and figures.

        The tables are `surface`, with a row for each head, and `layers`, with a row for each layer and
        means over its heads. They have a column for each statistic; `surface` also has columns
        `uniform.<statistic>` for uniform attention, except for statistics whose names end in
        `_without_heaviest`. The scores are means over all heads of the model. There are figures by layer
        and by head.
        """
        heads = {**self.numbers.over("heads"), "sink": self._sink_rates("heads")}
        layers = {**self.numbers.over("layers"), "sink": self._sink_rates("layers")}
        model = {**self.numbers.over("model"), "sink": self._sink_rates("model")}
        uniform = self._uniform()
        inputs = {name: int(model[name].inputs) for name in ("first", "start", "end", "punctuation")}
        headline = _headline(inputs)
        # Named by the tokens of the inputs: the largest of several shares would favour the run over its twins.
        first = headline[0]
        audit = {"inputs": inputs["first"]}
        for name in ("start", "end", "punctuation"):
            audit[f"inputs with {name}"] = inputs[name]
        return Result(
            experiment=self.experiment,
            scores={f"surface.{name}": model[name] for name in PLAIN},
            tables={
                "surface": _head_table(heads, uniform),
                "layers": Table(head_rows(layers), UNITS, main=("layer", *headline, "sink"), note=_OF_EACH),
            },
            figures=_figures(heads, layers, uniform["entropy"][:-1]),
            audit=audit,
            headline=[f"surface.{name}" for name in (*headline, "sink")],
            answer=fill_sentence(f"{self._answer(headline, inputs, uniform)}; entropy is {{entropy}}", model),
            finding=Finding(f"surface.{first}", f"attention to the {_LABELS[first]}"),
        )

    def _sink_rates(self, level: Literal["heads", "layers", "model"]) -> Estimate[Any]:
        """Return the sink rate of each head or layer, or of the model.

        If a rate is 0 or 1 on all inputs, its interval is exact, with the inputs as trials.
        """
        means = self.numbers.means(level).at(_SINK)
        rates = means.over()
        inputs = means.counts.sum(0)
        sinks = means.sums.sum(0)
        at_bound = (inputs > 0) & ((sinks == 0) | (sinks == inputs))
        _, exact_low, exact_high = share_interval(sinks[None], inputs[None])
        student_low, student_high = rates.interval
        low: Floats = np.where(at_bound, exact_low, student_low)
        high: Floats = np.where(at_bound, exact_high, student_high)
        return replace(rates, low=low, high=high)[()]

    def _answer(self, headline: Sequence[str], inputs: Mapping[str, int], uniform: Mapping[str, Floats]) -> str:
        """Return `surface_answer` with intervals that hold for all kinds of tokens, and all layers, at once.

        Args:
            headline: Statistics that are printed.
            inputs: Number of inputs with each kind of token.
            uniform: Statistics of uniform attention, `[layers + 1]`.
        """
        kinds = [name for name in headline if name != "entropy"]
        layers = range(self.encoder.layers)
        shares = self.numbers.over("model", tests=len(kinds))
        shares_of_layers = self.numbers.over("layers", tests=len(kinds) * len(layers))
        by_kind = {}
        by_layer = {}
        for name in kinds:
            by_kind[name] = shares[name]
            by_layer[name] = {str(layer + 1): shares_of_layers[name][layer] for layer in layers}
        return surface_answer(by_kind, by_layer, uniform, inputs)


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
    by_chance = format_number(float(uniform[top][int(layer) - 1]), "fraction", missing=DASH)
    return f"{text}, most in layer {layer}, {format_estimate(layers[top][layer])} (uniform {by_chance} %)"


def _headline(inputs: Mapping[str, int]) -> list[str]:
    """Return the statistics of `HEADLINE` that the inputs have, given the number of inputs with each kind of token."""
    names = []
    for name in HEADLINE:
        if name == "first" and inputs["start"]:
            continue
        if name == "entropy" or inputs[name]:
            names.append(name)
    return names


def _head_table(heads: Mapping[str, Estimate[Floats]], uniform: Mapping[str, Floats]) -> Table:
    """Return the statistics of each head, beside those of uniform attention in its layer."""
    frame = head_rows(heads)
    layers = frame["layer"] - 1
    units = dict(UNITS)
    columns = {}
    for name in STATISTICS:
        # No column of uniform attention is the heaviest: removing one would remove any.
        if not name.endswith("_without_heaviest"):
            columns[f"uniform.{name}"] = uniform[name][layers]
            units[f"uniform.{name}"] = UNITS[name]
    return Table(frame.assign(**columns), units)


def _figures(
    heads: Mapping[str, Estimate[Floats]], layers: Mapping[str, Estimate[Floats]], uniform_entropy: Floats
) -> dict[str, Figure]:
    """Draw the paper's figures 2 to 4, and maps of all heads."""
    defined = {name for name, estimate in heads.items() if not np.isnan(estimate.value).all()}
    if "start" in defined:
        defined.discard("first")
    figures: dict[str, Figure] = {}
    for file, (title, names) in _BY_LAYER.items():
        defined_names = [name for name in names if name in defined]
        uniform = uniform_entropy if file == "entropy" else None
        if defined_names:  # else an encoder without delimiters
            figures[file] = _curves(title, defined_names, heads, layers, uniform)
    maps = {}
    for name in _BY_HEAD:
        if name in defined:
            title = f"Attention to the {_LABELS[name].removeprefix('the ')}"
            maps[f"{name}_by_head"] = head_map(title, heads[name].value, value_label="share of attention")
    figures.update(on_one_scale(maps))
    figures["sinks_by_head"] = head_map("Sinks", heads["sink"].value, value_label="share of inputs")
    return figures


def _curves(
    title: str,
    names: Sequence[str],
    heads: Mapping[str, Estimate[Floats]],
    layers: Mapping[str, Estimate[Floats]],
    uniform_entropy: Floats | None,
) -> Curves:
    """Draw some statistics: every head is a point over its layer, and the mean of a layer is a point of a line.

    Args:
        title: Title of the figure.
        names: The statistics.
        heads: Statistics of the heads, `[layers, heads]`.
        layers: Statistics of the layers, `[layers]`.
        uniform_entropy: Entropy of uniform attention, `[layers]`, if the statistics are entropies.
    """
    scale = 100.0
    label = "share of attention (%)"
    if uniform_entropy is not None:
        scale = 1.0
        label = "entropy (nats)"
    count, width = heads[names[0]].value.shape
    numbers = np.arange(1, count + 1)
    lines = {}
    points = {}
    for place, name in enumerate(names):
        series = _LABELS.get(name) or _LABELS[name.removesuffix("_without_first")]
        lines[series] = (numbers.tolist(), (scale * layers[name].value).tolist())
        shift = 0.14 * (place - (len(names) - 1) / 2)  # so that no points hide those of another name
        positions = numbers.repeat(width) + shift
        points[series] = (positions.tolist(), (scale * heads[name].value).ravel().tolist())
    if uniform_entropy is not None:
        lines["uniform attention"] = (numbers.tolist(), uniform_entropy.tolist())
    return Curves(title, "layer", label, lines, points, y_range=(0.0, scale / 100))
