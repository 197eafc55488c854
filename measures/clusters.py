"""Distances between attention heads, a map of them on a plane, and clusters (Clark et al. 2019, §6)."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
from scipy.spatial.distance import squareform
from sklearn.manifold import MDS
from torch import Tensor

from attention_probing.attention.extraction import in_order
from attention_probing.datamodules import SegmentBatch
from attention_probing.measures.contract import MapMeasure
from attention_probing.metrics.distributions import HeadDistances, scaled_rows, summed_divergences
from attention_probing.metrics.p_values import p_units
from attention_probing.results import (
    Curves,
    Estimate,
    Figure,
    Finding,
    Floats,
    HeatMap,
    Result,
    Table,
    fill_sentence,
    format_p,
)

CLUSTERS = 8
"""Number of clusters that the tree of heads is cut into; the paper draws no borders."""
PERMUTATIONS = 1000


class Clusters(MapMeasure):
    """Distances between attention heads, and clusters of heads that are close to each other (Clark et al. 2019, §6).

    The distance of two heads is the Jensen–Shannon divergence of their attention rows, averaged over
    tokens. A permutation test compares distances within a layer with distances between layers, and
    figures show all heads on a plane. If `Surface` shares the pass, they also show its behaviours.
    Memory grows with the square of the number of heads, and not with the texts.
    """

    experiment = "clusters"

    def begin(self) -> None:
        self.encoder.require_every_layer(type(self).__name__)
        self._shape = (self.encoder.layers, self.encoder.heads)
        self._rows: list[Tensor] = []  # of each input of the batch, `[all heads, n · n]`
        self._sums = HeadDistances(self.encoder.layers * self.encoder.heads)

    def update_layer(self, batch: SegmentBatch, layer: int, weights: Tensor) -> None:
        layers, heads = self._shape
        lengths = batch.lengths.tolist()
        if layer == 0:
            self._rows = [weights.new_empty(layers * heads, n * n) for n in lengths]
        for item, (rows, n) in enumerate(zip(self._rows, lengths, strict=True)):
            scaled_rows(weights[item, :, :n, :n], rows[layer * heads : (layer + 1) * heads])

    def update(self, batch: SegmentBatch) -> None:
        inputs = list(zip(self._rows, batch.lengths.tolist(), strict=True))
        workers = 1
        if batch.lengths.device.type == "cpu":
            # One input on each core: the threads of a single one would wait for each other at every small block.
            workers = min(len(inputs), torch.get_num_threads())
        for (_, n), sums in in_order(lambda each: summed_divergences(*each), inputs, workers):
            self._sums.update(sums, n)
        self._rows = []

    def distances(self) -> Floats:
        """Return the distance between every two heads, in nats, `[layers · heads, layers · heads]`.

        The distance is the Jensen–Shannon divergence of their attention rows, averaged over tokens.

        Every process must call this method, because it gathers from all processes.
        """
        return self._sums.compute()

    def classes(self) -> Mapping[str, list[str]]:
        """Return the cluster of each attention head, layer by layer, under the key `cluster`.

        A cluster is a number from 1, as text.
        """
        return {"cluster": [str(number) for number in cut_tree(tree_of(self.distances()))]}

    def result(self) -> Result:
        """Return the tables `head_distances` and `clusters`, three scores, and figures.

        `head_distances` has a row for each pair of heads, with their distance in nats. `clusters` has a
        row for each head: its coordinates `x` and `y` on the plane, its cluster, and its behaviour if
        `Surface` shares the pass. The scores are the results of `layer_test`: `within_layer`, `between_layer` and `p`.
        """
        distances = self.distances()
        tree = tree_of(distances)
        points = places(distances)
        layers, numbers = np.indices(self._shape).reshape(2, -1)
        heads = pd.DataFrame({"layer": layers + 1, "head": numbers + 1, "x": points[:, 0], "y": points[:, 1]})
        heads["cluster"] = cut_tree(tree)
        surface = self.together.get("surface")
        if surface is not None:
            heads = heads.assign(**surface.classes())
        within, between, p = layer_test(distances, layers, self.seed)
        scores = {
            "within_layer": Estimate(within, unit="nats"),
            "between_layer": Estimate(between, unit="nats"),
            "p": Estimate(p, unit=p_units([p], 1 / (1 + PERMUTATIONS))[0]),
        }
        main = [str(name) for name in heads if name not in ("x", "y")]
        tables = {
            "head_distances": Table(_pairs(heads, distances), {"distance": "nats"}),
            "clusters": Table(heads, {"x": "nats", "y": "nats"}, main=main),
        }
        figures = _figures(heads, distances, leaves_list(tree))
        answer = "{n} heads are {within_layer} apart on average within a layer, {between_layer} between layers; {test}"
        answer = fill_sentence(answer, scores, n=len(heads), test=format_p(p, scores["p"].unit))
        finding = Finding("within_layer", "mean distance of two heads of a layer")
        return Result("clusters", scores, tables, figures, headline=tuple(scores), answer=answer, finding=finding)


def _pairs(heads: pd.DataFrame, distances: Floats) -> pd.DataFrame:
    """Return a row for each pair of heads, with the distance between them."""
    first, second = np.triu_indices(len(distances), 1)
    layers = heads["layer"].to_numpy()
    numbers = heads["head"].to_numpy()
    return pd.DataFrame(
        {
            "layer": layers[first],
            "head": numbers[first],
            "other_layer": layers[second],
            "other_head": numbers[second],
            "distance": distances[first, second],
        }
    )


def tree_of(distances: Floats) -> Floats:
    """Cluster heads hierarchically by average linkage, and return the tree in scipy's linkage format.

    Args:
        distances: Distances between the heads, `[heads, heads]`.
    """
    tree: Floats = linkage(squareform(distances, checks=False), "average")
    return tree


def cut_tree(tree: Floats) -> NDArray[np.int64]:
    """Cut a tree of heads into clusters, and return the cluster of each head, int64 `[heads]`, from 1.

    There are at most `CLUSTERS` clusters, and at most one for every three heads. There are fewer if the
    tree cannot be cut into as many, because several of its merges are at the same distance.

    Args:
        tree: Tree from `tree_of`.
    """
    numbers: NDArray[np.int64] = fcluster(tree, min(CLUSTERS, (len(tree) + 1) // 3), "maxclust").astype(np.int64)
    return numbers


def places(distances: Floats) -> Floats:
    """Place heads on a plane by multidimensional scaling; return their coordinates, `[heads, 2]`.

    Args:
        distances: Distances between the heads, `[heads, heads]`.
    """
    if not distances.any():
        return np.zeros((len(distances), 2))  # the scaling divides by their sum
    scaling = MDS(2, metric="precomputed", init="classical_mds", n_init=1, random_state=0)
    points: Floats = scaling.fit_transform(distances)
    return points


def layer_test(distances: Floats, layers: NDArray[np.int64], seed: int) -> tuple[float, float, float]:
    """Test by permutation whether heads of one layer are closer than heads of different layers.

    The layers are assigned to the heads anew, in random order, `PERMUTATIONS` times. The p-value is the
    share of assignments, the observed one included, in which the mean distance of heads of one layer is
    at most the observed mean.

    Args:
        distances: Distances between the heads, `[heads, heads]`.
        layers: Layer of each head, `[heads]`.
        seed: Seed of the permutations.

    Returns:
        The mean distance of pairs of heads in one layer, the mean distance of pairs in different layers,
        and the p-value. If there are no pairs of one kind, their mean and the p-value are nan.
    """
    first, second = np.triu_indices(len(layers), 1)
    distances_of_pairs = distances[first, second]
    mean = float(distances_of_pairs.mean())
    same = layers[first] == layers[second]
    if same.all():
        return mean, np.nan, np.nan
    if not same.any():
        return np.nan, mean, np.nan

    def mean_within(order: NDArray[np.int64]) -> float:
        return float(distances_of_pairs[order[first] == order[second]].mean())

    observed = mean_within(layers)
    random = np.random.default_rng(seed)
    # The number of pairs within a layer is the same in any order: a mean that is no greater is a difference no smaller.
    least = observed * (1 + 1e-12)  # the same pairs summed in another order are as good
    hits = 0
    for _ in range(PERMUTATIONS):
        hits += mean_within(random.permutation(layers)) <= least
    between = float(distances_of_pairs[~same].mean())
    return observed, between, (1 + hits) / (1 + PERMUTATIONS)


def _figures(heads: pd.DataFrame, distances: Floats, order: NDArray[np.int64]) -> dict[str, Figure]:
    """Draw the heads on a plane, and a map of all distances in the order of the tree."""
    names = [f"{layer}-{head}" for layer, head in zip(heads["layer"], heads["head"], strict=True)]
    ordered = [names[place] for place in order]
    figures: dict[str, Figure] = {
        "clusters_by_layer": _plane("Heads by distance and layer", heads, "layer", bar_label="layer")
    }
    if "behaviour" in heads:
        figures["clusters_by_behaviour"] = _plane("Heads by distance and behaviour", heads, "behaviour")
    figures["head_distances"] = HeatMap(
        "Distances between heads, in the order of the tree",
        distances[np.ix_(order, order)],
        ordered,
        ordered,
        "layer-head",
        "layer-head",
        "distance (nats)",
        unit="nats",
    )
    return figures


def _plane(title: str, heads: pd.DataFrame, groups: str, bar_label: str = "") -> Curves:
    """Return the heads as points on a plane, with a colour for each value of a column."""
    points = {}
    for name, group in heads.groupby(groups, sort=False):
        points[str(name)] = (group["x"].tolist(), group["y"].tolist())
    return Curves(title, "", "", points=points, plane=True, bar_label=bar_label)
