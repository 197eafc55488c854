"""What fine-tuning changes in attention: every map, and every number of a head, before and after.

Kovaleva et al. (2019, §4.3) compare the maps; the differences of the other analyses are those of §4.4 for all of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from analysis.base import Analysis, of_corpora
from analysis.tables import head_map, head_rows, name_of
from attention import Encoder
from datamodules import SegmentBatch, TextDataModule
from metrics.bootstrap import holm
from metrics.distributions import map_cosines, map_divergences
from metrics.moments import CONFIDENCE, Means, Moments
from results import Curves, Estimate, Figure, Floats, HeatMap, Result, Table, Unit, on_one_scale
from results.errors import UserError

MEASURES: Mapping[str, Unit] = {"cosine": "fraction", "divergence": "nats"}
_FORMULAS = map_cosines, map_divergences


class Change(Analysis):
    """How much each head's attention differs from that of the same head before the fine-tuning (`before` of the data).

    Of an input it takes the cosine of both maps, flattened, and the mean Jensen–Shannon divergence of their rows. Both
    are over its real tokens, delimiters included. The mean of a layer is that of its heads, and intervals are over
    inputs. The weights of a batch are kept until it was read by both: at most 4 bytes for each head and each cell of
    `max_cells`.

    Raises:
        UserError: the data have no encoder `before`.
    """

    name = "change"
    compares = True

    def begin(self, data: TextDataModule, encoder: Encoder) -> None:
        if "before" not in data.encoders:
            raise UserError(
                f"{type(self).__name__}: it compares {encoder.source.spec.name} with what it was before its "
                f"fine-tuning. Name that encoder: --data.init_args.before.name NAME_OR_FOLDER."
            )
        shape = encoder.layers, encoder.heads, len(MEASURES)
        bounds = 0, [1.0, math.log(2)]  # of MEASURES
        units = tuple(MEASURES.values())
        self._of_heads, self._of_layers, self._of_model = (
            Moments(2, of, units, bounds=bounds) for of in (shape, shape[::2], shape[2:])
        )
        self._after: list[Tensor] = []
        self._passed: list[Tensor] = []

    def update(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        if batch.encoder == "given":
            self._after.append(weights.clone())
            return
        after, self._after[layer] = self._after[layer], weights.new_empty(0)
        self._passed.append(torch.stack([measure(after, weights, batch.mask) for measure in _FORMULAS], -1))

    def end(self, batch: SegmentBatch) -> None:
        found = torch.stack(self._passed, 1)  # [batch, layers, heads, measures]
        self._after.clear()
        self._passed.clear()
        half = batch.index % 2
        self._of_heads.update(half, found)
        self._of_layers.update(half, found.mean(2))
        self._of_model.update(half, found.mean((1, 2)))

    def by_head(self) -> Mapping[str, Means]:
        means = self._of_heads.compute()
        return {f"change_{name}": means.at(place) for place, name in enumerate(MEASURES)}

    def result(self, others: Mapping[str, Analysis]) -> Result:
        """Tables `change`, by head, and `change_layers`; the scores of the model and of its layers; maps and curves."""
        heads, layers, model = (
            {name: means.at(place).over() for place, name in enumerate(MEASURES)}
            for means in (self._of_heads.compute(), self._of_layers.compute(), self._of_model.compute())
        )
        scores = {f"change.{name}": model[name][()] for name in MEASURES}
        for name in MEASURES:
            for layer in range(len(layers[name].value)):
                scores[f"change.{name}.layer_{layer + 1}"] = layers[name][layer]
        order, most_apart = np.argsort(layers["cosine"].value), int(layers["divergence"].value.argmax())
        by = _said(layers["cosine"], order[0], 100), _said(layers["divergence"], most_apart, 1)
        most = np.unravel_index(heads["cosine"].value.argmin(), heads["cosine"].value.shape)
        return Result(
            experiment=self.name,
            scores=scores,
            headline=[f"change.{name}" for name in MEASURES],
            tables={
                "change": _table(head_rows({name: heads[name] for name in MEASURES})),
                "change_layers": _table(_layer_rows(layers), ("layer", *MEASURES)),
            },
            figures=_figures(heads, layers),
            audit={
                "inputs": int(model["cosine"].inputs),
                "sentence": f"Layer {order[0] + 1} has the lowest cosine with what it was ({by[0]} %), layer "
                f"{most_apart + 1} the largest divergence ({by[1]} nats).",
                "layers, the most changed first": " ".join(str(layer + 1) for layer in order),
                "most changed head": name_of(*map(int, most)),
            },
        )


def _said(found: Estimate[Floats], place: int, scale: float) -> str:
    value, low, high = (scale * float(number) for number in found[place].named("").values())
    return f"{value:.3g} [{low:.3g}, {high:.3g}]"


def _table(frame: pd.DataFrame, answer: Sequence[str] = ()) -> Table:
    """With the ends of the cosine as plain `low` and `high`."""
    frame = frame.rename(columns={"cosine.low": "low", "cosine.high": "high"})
    return Table(frame, dict(MEASURES), interval="cosine", answer=answer)


def _layer_rows(layers: Mapping[str, Estimate[Floats]]) -> pd.DataFrame:
    columns: dict[str, object] = {"layer": np.arange(1, len(layers["cosine"].value) + 1)}
    for name, found in layers.items():
        columns |= found.named(name)
    return pd.DataFrame(columns)


def _figures(heads: Mapping[str, Estimate[Floats]], layers: Mapping[str, Estimate[Floats]]) -> dict[str, Figure]:
    """Maps of all heads, and every head a point over its layer, the mean of the layer a line: high where it changed."""
    shown: Mapping[str, tuple[str, Floats, Floats, Unit]] = {
        "change_cosine": ("1 − cosine (%)", 1 - heads["cosine"].value, 1 - layers["cosine"].value, "fraction"),
        "change_divergence": ("divergence (nats)", heads["divergence"].value, layers["divergence"].value, "nats"),
    }
    figures: dict[str, Figure] = {}
    for name, (label, of_heads, of_layers, unit) in shown.items():
        number, width = of_heads.shape
        title, scale = "Change of attention by fine-tuning", 100.0 if unit == "fraction" else 1.0
        figures[name] = head_map(title, of_heads, label, unit)
        points = (np.arange(1, number + 1).repeat(width).tolist(), (scale * of_heads).ravel().tolist())
        line = (list(range(1, number + 1)), (scale * of_layers).tolist())
        figures[f"{name}_layers"] = Curves(title, "layer", label, {"mean": line}, {"heads": points})
    return figures


def differences(
    after: Mapping[str, Analysis], before: Mapping[str, Analysis], corpora: Mapping[str, Sequence[str]]
) -> Result:
    """Every number of each head after the fine-tuning less that before, by analyses that were made of both encoders.

    `corpora` are those that an analysis reads, if not all.

    The differences are paired: of each input, and then their mean with Student's interval and p-value, which Holm's
    method corrects over the heads. Both take the inputs as independent.

    Returns:
        Tables `differences`, by quantity and head, and `differences_by_quantity`, with the means over all heads, how
        many `heads` differ after the correction, and the one that differs most; the scores `differences.<quantity>`,
        these counts; and maps `difference_<quantity>`, those of one analysis and unit on one scale.
    """
    tables, rows = [], []
    scores, figures = dict[str, Estimate](), dict[str, Figure]()
    units: list[Unit] = []
    for name, analysis in before.items():
        maps: dict[Unit, dict[str, HeatMap]] = {}
        old = analysis.by_head()
        for quantity, new in after[name].by_head().items():
            earlier = old[quantity]
            if isinstance(new, Estimate) or isinstance(earlier, Estimate):  # a bound, not a mean over inputs
                continue
            assert new.differences is not None
            difference = replace(new.differences.over(), p=new.differences.p())
            frame, row = _compared(quantity, earlier.over().value, new.over().value, difference)
            tables.append(frame)
            rows.append(row)
            units.append(difference.unit)
            scores[f"differences.{quantity}"] = Estimate(float(row["heads"]), unit="count")
            if (found := _difference_map(quantity, difference)) is not None:
                maps.setdefault(difference.unit, {})[f"difference_{quantity}"] = found
        for same in maps.values():
            figures |= of_corpora(on_one_scale(same), corpora.get(name, ()))
    if not tables:
        return Result("differences", {})
    numbers = ("before", "after", "difference")
    of_rows = [unit for frame, unit in zip(tables, units, strict=True) for _ in range(len(frame))]
    whole = Table(
        pd.concat(tables, ignore_index=True),
        {**dict.fromkeys(numbers, of_rows), "p": "p", "p_holm": "p"},
        interval="difference",
    )
    answer = ("quantity", *numbers, "heads")
    by_quantity = Table(pd.DataFrame(rows), dict.fromkeys((*numbers, "largest_difference"), units), answer=answer)
    return Result("differences", scores, {"differences": whole, "differences_by_quantity": by_quantity}, figures)


def _compared(
    quantity: str, before: Floats, after: Floats, difference: Estimate[Floats]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return a row for each head, and one for all heads together."""
    assert difference.p is not None
    adjusted = holm(difference.p.ravel().tolist())
    frame = head_rows({"before": before, "after": after, "difference": difference}, quantity=quantity)
    frame = frame.rename(columns={f"difference.{end}": end for end in ("low", "high", "p")}).assign(p_holm=adjusted)
    columns = ["quantity", "layer", "head", "before", "after", "difference", "low", "high", "p", "p_holm"]
    largest = _largest(difference.value)
    return frame[columns], {
        "quantity": quantity,
        "before": _mean(before),
        "after": _mean(after),
        "difference": _mean(difference.value),
        "heads": int((adjusted < 1 - CONFIDENCE).sum()),
        "largest": "–" if largest is None else name_of(*largest),
        "largest_difference": np.nan if largest is None else difference.value[largest],
    }


def _difference_map(quantity: str, difference: Estimate[Floats]) -> HeatMap | None:
    """Return None where no head differs, or no input has the quantity."""
    if (largest := _largest(difference.value)) is None:
        return None
    title = f"{quantity.replace('_', ' ').capitalize()}, after − before fine-tuning"
    label = "difference" if difference.unit == "fraction" else f"difference ({difference.unit})"  # drawn in %
    return replace(head_map(title, difference.value, label, difference.unit, largest), diverging=True)


def _largest(values: Floats) -> tuple[int, int] | None:
    """The place of the largest magnitude; None where all are 0 or nan."""
    if not np.nan_to_num(values).any():
        return None
    layer, head = np.unravel_index(np.nanargmax(np.abs(values)), values.shape)
    return int(layer), int(head)


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
