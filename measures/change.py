"""Change of attention maps by fine-tuning (Kovaleva et al. 2019, §4.3)."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from attention_probing.datamodules import SegmentBatch
from attention_probing.measures.by_head import HeadMeans, head_rows
from attention_probing.measures.contract import MapMeasure
from attention_probing.metrics.distributions import map_cosines, map_divergences
from attention_probing.metrics.moments import Means
from attention_probing.results import Curves, Estimate, Figure, Floats, Result, Table, Unit, fill_sentence
from attention_probing.results.errors import UserError, setting
from attention_probing.results.heads import head_map, head_name
from attention_probing.results.sentences import clear_largest, clear_smallest

CHANGE_UNITS: Mapping[str, Unit] = {"cosine": "fraction", "divergence": "nats"}
_FORMULAS = (map_cosines, map_divergences)


class Change(MapMeasure):
    """Difference between each head's attention before and after fine-tuning.

    The datamodule's option `before` names the encoder before fine-tuning. For each input and head two
    measures compare the two attention maps, without the padding: the cosine of the flattened maps, and
    the Jensen–Shannon divergence averaged over rows. The value of a layer is the mean over its heads;
    intervals are over inputs.

    The attention maps of a batch from the fine-tuned encoder stay in memory until the other encoder has
    read the same batch. They take at most 4 · layers · heads · `max_cells` bytes.

    Raises:
        UserError: The data have no encoder `before`.
    """

    experiment = "change"
    compares = True

    def begin(self) -> None:
        if "before" not in self.data.encoders:
            name = self.encoder.source.spec.name
            raise UserError(
                f"{type(self).__name__} compares {name} with the encoder before its fine-tuning. "
                f"Name that encoder with {setting('data.before.name')}."
            )
        self.numbers = HeadMeans(self.encoder, CHANGE_UNITS, (0, [1.0, math.log(2)]))
        self._after: list[Tensor] = []

    def update_layer(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        if batch.encoder == "given":
            self._after.append(weights.clone())
            return
        after = self._after[layer]
        self._after[layer] = weights.new_empty(0)  # not needed again
        changes = [compute(after, weights, batch.mask) for compute in _FORMULAS]
        self.numbers.add(torch.stack(changes, -1))

    def update(self, batch: SegmentBatch) -> None:
        self._after.clear()
        self.numbers.close(batch.index % 2)

    def by_head(self) -> Mapping[str, Means]:
        return self.numbers.by_head("change_")

    def result(self) -> Result:
        """Return the change of attention by fine-tuning: tables, scores and figures.

        The tables are `change`, with a row for each head, and `change_layers`, with a row for each
        layer. Their columns are `cosine` with its interval `low` and `high`, and `divergence` (in nats)
        with `divergence.low` and `divergence.high`. There are scores for the model and for each layer.
        The figures are maps of all heads, and curves over layers.
        """
        heads = self.numbers.over("heads")
        layers = self.numbers.over("layers")
        model = self.numbers.over("model")
        scores = {f"change.{name}": estimate for name, estimate in model.items()}
        headline = list(scores)
        for name, estimate in layers.items():
            for layer in range(len(estimate.value)):
                scores[f"change.{name}.layer_{layer + 1}"] = estimate[layer]
        order = np.argsort(layers["cosine"].value)
        cosines = heads["cosine"].value
        most = np.unravel_index(cosines.argmin(), cosines.shape)
        at_once = self.numbers.over_at_once("layers")["cosine"]
        answer = change_answer({str(layer + 1): at_once[layer] for layer in range(len(order))})
        return Result(
            experiment=self.experiment,
            scores=scores,
            headline=headline,
            answer=fill_sentence(answer, scores, n=int(model["cosine"].inputs)),
            tables={"change": _table(heads), "change_layers": _table(layers, ("layer", *CHANGE_UNITS))},
            figures=_figures(heads, layers),
            audit={
                "inputs": int(model["cosine"].inputs),
                "layers, the most changed first": " ".join(str(layer + 1) for layer in order),
                "most changed head": head_name(*map(int, most)),
            },
        )


def change_answer(layers: Mapping[str, Estimate]) -> str:
    """Return the answer, for `fill_sentence`: the mean cosine, and the layers where it is clearly smallest and largest.

    Args:
        layers: Mean cosine of each layer, by its number, with intervals that hold for all layers at once.
    """
    answer = "fine-tuning leaves attention with a cosine of {change.cosine:ratio} over {n} inputs"
    least, most = clear_smallest(layers), clear_largest(layers)
    ends = []
    if least is not None:
        ends.append(f"least in layer {least} ({layers[least].value:.2f})")
    if most is not None:
        ends.append(f"most in layer {most} ({layers[most].value:.2f})")
    return ", ".join([answer, *ends])


def _table(numbers: Mapping[str, Estimate[Floats]], main: tuple[str, ...] = ()) -> Table:
    """Make a table with the ends of the cosine as plain `low` and `high`."""
    frame = head_rows(numbers).rename(columns={"cosine.low": "low", "cosine.high": "high"})
    return Table(frame, dict(CHANGE_UNITS), interval="cosine", main=main)


def _figures(heads: Mapping[str, Estimate[Floats]], layers: Mapping[str, Estimate[Floats]]) -> dict[str, Figure]:
    """Draw maps of all heads, and curves, which are high where attention changed: they show 1 − cosine."""
    title = "Change of attention by fine-tuning"
    distance = 1 - heads["cosine"].value
    distance_of_layers = 1 - layers["cosine"].value
    divergence = heads["divergence"].value
    divergence_of_layers = layers["divergence"].value
    cosine_label = "1 − cosine (%)"
    divergence_label = "divergence (nats)"
    return {
        "change_cosine": head_map(title, distance, value_label=cosine_label, unit="fraction"),
        "change_cosine_layers": _curves(title, cosine_label, 100 * distance, 100 * distance_of_layers),
        "change_divergence": head_map(title, divergence, value_label=divergence_label, unit="nats"),
        "change_divergence_layers": _curves(title, divergence_label, divergence, divergence_of_layers),
    }


def _curves(title: str, label: str, heads: Floats, layers: Floats) -> Curves:
    """Draw every head `[layers, heads]` as a point over its layer, and the means of the layers as a line."""
    numbers = np.arange(1, len(layers) + 1)
    points = (numbers.repeat(heads.shape[1]).tolist(), heads.ravel().tolist())
    line = (numbers.tolist(), layers.tolist())
    return Curves(title, "layer", label, {"mean": line}, {"heads": points})
