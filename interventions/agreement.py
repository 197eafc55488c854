"""Agreement of two rankings of heads: by how well they find syntactic heads, and by what is lost without them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attention.ablation import Kind
from datamodules import AttentionBatch
from heads.arc_evaluation import DependencyExperiment
from heads.single_heads import Names, Predictions
from metrics.attachment import ALL, ratio_scores
from metrics.heads import most_attended
from metrics.rows import ArcRows
from results import Floats, Result, Table
from results.errors import UserError, check_values, near, one_of

WHAT = "--model.init_args.ablation"


class HeadAgreement(DependencyExperiment):
    """Experiment that correlates the accuracy of single heads with what a model loses when they are ablated.

    The accuracy of a head is that of `SingleHeads` on test, in its better direction. The loss is the change
    of a score in an earlier run of `HeadAblation` on a model with the same heads; it does not depend on the
    quantity. The correlation is Kendall's τ-a over all heads, which counts a pair with a tie as 0. Its items are the
    heads, each with its jackknife pseudo-value H·τ − (H−1)·τ₋ₕ for H heads: their mean is τ, and their spread is that
    of τ (Arvesen 1969), so that runs can be compared head by head.

    Args:
        ablation: Folder of the run of `HeadAblation`, or its `results.json`.
        kind: Kind of ablation in this run.
        relation: Relation whose words are predicted; by default all words.
    """

    experiment = "head_agreement"

    def __init__(self, ablation: str, kind: Kind = "uniform", relation: str = ALL) -> None:
        super().__init__()
        check_values(self, kind=kind)
        self.ablation, self.kind, self.relation = Path(ablation), kind, relation

    def prepare(self) -> None:
        data = self.data
        if not data.options.measured.has_heads:
            raise UserError(
                f"--data.init_args.options.quantity: {data.options.quantity} has one map for each layer, and no number "
                "for each head to compare with its ablation. Choose attention, norms or effective."
            )
        self._names = Names(data.layers, data.heads)
        self._lost = lost_without(self.ablation, self.kind)
        if strange := [name for name in map(self._names.head, range(len(self._names))) if name not in self._lost.index]:
            raise UserError(
                f"{WHAT}: {self.ablation} has no head {strange[0]}, so its model has other heads than the encoder. "
                "Name a run on a model fine-tuned from the same encoder."
            )
        self._rows = ArcRows(heads=2 * len(self._names))

    def update(self, batch: AttentionBatch) -> None:
        if batch.split == "test":
            self._rows.add(batch, heads=most_attended(batch.attention, batch.lengths).flatten(2))

    def outcome(self) -> Result:
        arcs, columns = self._rows.arcs()
        found = Predictions(arcs, self.data.relations, columns["heads"])
        if self.relation not in found.groups:
            raise UserError(
                f"--model.init_args.relation: no word of test has the relation {self.relation!r}"
                f"{near(self.relation, found.groups)}; there are {', '.join(found.groups)}."
            )
        names = [self._names.head(place) for place in range(len(self._names))]
        accuracy = found.accuracies(self.relation).reshape(2, -1).max(0)
        lost = self._lost.loc[names].to_numpy()
        tau = pd.DataFrame({"id": names, "pseudo_value": pseudo_values(accuracy, lost), "heads": 1})
        ratios = {"ablation_tau": ("pseudo_value", "heads")}
        scores = ratio_scores(tau, ratios, seed=self.seed)
        frame = pd.DataFrame({"head": names, "accuracy": accuracy, "lost": lost})
        units: dict[str, Any] = {"accuracy": "fraction", "lost": self._lost.attrs["unit"]}
        audit = {"ablation": str(self.ablation), "kind": self.kind, "ties": int(len(lost) - len(np.unique(lost)))}
        return Result(
            self.experiment, scores, {"head_agreement": Table(frame, units)}, {}, audit, tau, ratios, ["ablation_tau"]
        )


def lost_without(run: Path, kind: str) -> pd.Series:
    """Return what a score loses when one head is ablated, by name of the head, from a run of `HeadAblation`.

    Args:
        run: Folder of the run, or its `results.json`.
        kind: Kind of ablation.

    Returns:
        The losses, above 0 if the model is worse without the head; `attrs["unit"]` is their unit.

    Raises:
        UserError: There is no such run, or it ablated no single heads in this way.
    """
    path = run / "results.json" if run.is_dir() else run
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        frame = pd.read_csv(path.parent / content["tables"]["ablation"])
        unit = next(iter(content["units"].values()))
        kinds = frame["kind"].unique().tolist()
        own = frame[frame["kind"] == kind]
        names = own["layer"].astype(str) + "-" + own["head"].astype(str)
        worse = own["difference"] if unit == "nats" else -own["difference"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise UserError(
            f"{WHAT}: {path} is not the result of an ablation of single heads ({type(error).__name__}: {error}). Name "
            "a run of configs/kovaleva2019/ablation.yaml."
        ) from None
    if own.empty:
        raise UserError(f"{WHAT}: {run} has no ablation of the kind {kind!r}; kind must be {one_of(kind, kinds)}.")
    found = worse.set_axis(names)
    found.attrs["unit"] = unit
    return found


def pseudo_values(one: Floats, other: Floats) -> Floats:
    """Return the jackknife pseudo-values of Kendall's τ-a; their mean is τ-a.

    Args:
        one: A number for each item, `[n]`.
        other: Another number for each item, `[n]`.
    """
    agree = np.sign(one[:, None] - one) * np.sign(other[:, None] - other)
    n, total, own = len(one), agree.sum(), agree.sum(1)
    found: Floats = n * total / (n * (n - 1)) - (n - 1) * (total - 2 * own) / ((n - 1) * (n - 2))
    return found
