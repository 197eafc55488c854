"""Heads that average the whole input: their outputs beside the mean of their values (Clark et al. 2019, §3)."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from attention_probing.attention.ablation import uniform_outputs
from attention_probing.attention.capture import Mixture, replacing
from attention_probing.datamodules import SegmentBatch
from attention_probing.measures.by_head import HeadMeans, head_rows
from attention_probing.measures.contract import MapMeasure
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.distributions import divided_by_sums, entropy
from attention_probing.metrics.moments import Means
from attention_probing.metrics.statistics import spearman
from attention_probing.results import Curves, Estimate, Figure, Floats, Result, Table, Unit, fill_sentence

BAG_UNITS: Mapping[str, Unit] = {"cosine": "fraction", "single": "fraction", "entropy": "nats"}


class Bags(MapMeasure):
    """Cosine of each head's output with the mean of its values, which is the output under uniform attention.

    A head with broad attention outputs a bag of vectors: nearly the mean of the values of all tokens, at
    every position (Clark et al. 2019, §3). For each head and input:

    - `cosine`: mean over positions of the cosine of the head's output with the mean of the values that
      the position may attend to;
    - `single`: the same for a head that attends to one token, averaged over the tokens. All values of a
      head have a part in common, so this baseline is above 0;
    - `entropy`: mean entropy of the rows, in nats. In a model with attention sinks, each row is first divided by
      its sum.

    This analysis reads its inputs in an additional forward pass, because the pass of the other analyses does not
    provide values.
    """

    experiment = "bags"
    quantities = ("attention",)  # computed in passes of its own

    def begin(self) -> None:
        self.encoder.require_interface(type(self).__name__)
        self.numbers = HeadMeans(self.encoder, BAG_UNITS, ([-1, -1, 0], [1, 1, np.inf]))

    def update(self, batch: SegmentBatch) -> None:
        def add_statistics(_: int, module: nn.Module, mixture: Mixture) -> Tensor:
            self.numbers.add(bag_statistics(mixture, batch.mask))
            return mixture.outputs

        inputs = self.encoder.inputs(batch.tokens, batch.mask, batch.segments)
        with torch.inference_mode(), replacing(add_statistics):
            self.encoder.model(**inputs)
        self.numbers.close(batch.index % 2)

    def by_head(self) -> Mapping[str, Means]:
        return self.numbers.by_head("bags_")

    def result(self) -> Result:
        """Return the statistics by head and by layer.

        The tables are `bags`, with a row for each head, and `bags_layers`, with means over the heads of a
        layer. The scores are the means over all heads, and `bags.rank_correlation`, Spearman's ρ of
        cosine and entropy over the heads, with an interval over the heads. The figure `bags` plots the
        cosine of every head against its entropy.
        """
        heads = self.numbers.over("heads")
        layers = self.numbers.over("layers")
        model = self.numbers.over("model")
        pairs = np.stack([heads["entropy"].value.ravel(), heads["cosine"].value.ravel()], 1)
        scores = {f"bags.{name}": estimate for name, estimate in model.items()}
        scores["bags.rank_correlation"] = resample(spearman, pairs, "fraction")
        answer = "on {n} inputs a head's output and the mean of its values have a cosine of {bags.cosine:ratio}, or of "
        answer += "{bags.single:ratio} if it attends to one token; "
        answer += "over heads ρ with entropy is {bags.rank_correlation:ratio}"
        return Result(
            experiment=self.experiment,
            scores=scores,
            headline=list(scores),
            answer=fill_sentence(answer, scores, n=int(model["cosine"].inputs)),
            tables={
                "bags": Table(head_rows(heads), BAG_UNITS),
                "bags_layers": Table(head_rows(layers), BAG_UNITS, main=("layer", *BAG_UNITS)),
            },
            figures={"bags": _figure(heads)},
            audit={"inputs": int(model["cosine"].inputs)},
        )


def bag_statistics(mixture: Mixture, real: Tensor) -> Tensor:
    """Return `cosine`, `single` and `entropy` of each head of one layer, `[batch, heads, 3]`; see `Bags`.

    Args:
        mixture: Weights and values of the layer.
        real: Bool `[batch, positions]`, False in the padding.
    """
    bags = uniform_outputs(mixture, real)
    rows = real[:, None, :].to(bags.dtype)
    allowed = mixture.allowed(real)
    # cos(v_j, bag_i) for all pairs, averaged over the values j that position i may attend to.
    pairs = normalize(bags, dim=-1) @ normalize(mixture.values, dim=-1).transpose(2, 3)
    single = pairs.masked_fill(~allowed, 0).sum(-1) / allowed.sum(-1).clamp_min(1)
    weights = mixture.weights
    if mixture.sink is not None:
        weights = divided_by_sums(weights)
    cosine = cosine_similarity(mixture.outputs, bags, dim=-1)
    means = []
    for statistic in (cosine, single, entropy(weights)):
        means.append((statistic * rows).sum(-1) / rows.sum(-1))
    return torch.stack(means, -1)


def _figure(heads: Mapping[str, Estimate[Floats]]) -> Figure:
    """Plot the cosine of every head against its entropy, with one kind of point for each layer."""
    points = {}
    for layer, (entropies, cosines) in enumerate(zip(heads["entropy"].value, heads["cosine"].value, strict=True)):
        points[f"layer {layer + 1}"] = (entropies.tolist(), cosines.tolist())
    return Curves(
        "Outputs of heads as bags of vectors",
        "entropy of attention (nats)",
        "cosine of output and mean of the values",
        points=points,
    )
