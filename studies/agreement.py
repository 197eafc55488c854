"""Agreement of two rankings of heads: by how well they find syntactic heads, and by what is lost without them."""

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from lightning_utilities.core.rank_zero import rank_zero_warn

from attention_probing.attention.ablation import OffKind
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import AttentionBatch, DependencyDataModule
from attention_probing.datamodules.corpus import STAGES
from attention_probing.datamodules.dependency import read_fields
from attention_probing.measures.contract import Measure
from attention_probing.metrics.attachment import ALL, add_arcs, ratio_scores, take_arcs
from attention_probing.metrics.heads import Predictions, most_attended
from attention_probing.metrics.rows import Rows
from attention_probing.results import Floats, Result, Table, Unit, fill_sentence
from attention_probing.results.digests import find_alteration
from attention_probing.results.errors import UserError, near, one_of, setting
from attention_probing.results.files import path_below, read_csv
from attention_probing.results.heads import HeadNames
from attention_probing.results.options import checked

WHAT = "model.ablation"
_LEAST = 3  # heads, for the spread of τ


class HeadAgreement(Measure[DependencyDataModule]):
    """Correlation of the accuracy of single heads with what a model loses when they are ablated.

    The accuracy of a head is that of `SingleHeads` on test, in the direction that is better on dev. The loss is the
    change of a score in an earlier run of `HeadAblation` on a model with the same heads; it does not depend on the
    quantity. The correlation is Kendall's τ-a over all heads, which counts a pair with a tie as 0. Its items are the
    heads, each with its jackknife pseudo-value H·τ − (H−1)·τ₋ₕ for H heads: their mean is τ, and their spread is that
    of τ (Arvesen 1969), so that runs can be compared head by head.

    Args:
        ablation: Folder of the run of `HeadAblation`, or its `results.json`.
        kind: Kind of ablation in this run.
        relation: Relation whose words are predicted; by default all words.

    Raises:
        UserError: There is no such run. In `begin`: the run has other heads than the encoder, or the quantity has one
            map for each layer. In `result`: no word has the relation.
    """

    experiment = "head_agreement"
    takes = DependencyDataModule

    @checked
    def __init__(self, ablation: str, kind: Literal[OffKind, "patch"] = "uniform", relation: str = ALL) -> None:
        super().__init__()
        self.lost = lost_without(Path(ablation).expanduser(), kind)
        self.ablation = ablation
        self.kind = kind
        self.relation = relation

    def begin(self) -> None:
        data = self.data
        read_fields(data, ("attention",), type(self).__name__)
        if not data.options.measured.has_heads:
            raise UserError(
                f"{setting('data.options.quantity')}: {data.options.quantity} has one map for each layer, and no "
                "number for each head to compare with its ablation. Choose attention, norms or effective."
            )
        names = HeadNames(data.layers, data.heads)
        self._names = [names.head(place) for place in range(len(names))]
        self._check_heads(reads_all=data.options.layers is None and data.options.heads is None)
        ablated = str(self.lost.attrs["encoder"])
        encoder = str(data.provenance.encoder.get("name", ""))
        if ablated != encoder:
            rank_zero_warn(
                f"{self.ablation} ablates heads of {ablated or 'a model without a name'}, and the accuracies are those "
                f"of {encoder}: τ compares the same heads only if one was fine-tuned from the other."
            )
        self._rows: dict[Split, Rows] = {split: Rows() for split in STAGES["test"]}

    def _check_heads(self, *, reads_all: bool) -> None:
        """Raise UserError if the heads are not those of the ablation, or if they are too few.

        Args:
            reads_all: True if all heads of the encoder are read; else some heads of the ablation may be missing.
        """
        heads = set(self._names)
        ablated = set(self.lost.index)
        strange = heads - ablated
        if reads_all:
            strange = heads ^ ablated
        if strange:
            fault = f"head {min(strange)} is in only one of the two"
        elif len(heads) < _LEAST:
            fault = f"there are only {len(heads)} heads"
        else:
            return
        raise UserError(
            f"{setting(WHAT)}: {self.ablation} and the encoder do not fit: {fault}. Name a run on a model fine-tuned "
            "from the same encoder, and keep at least three heads."
        )

    def update(self, batch: AttentionBatch) -> None:
        predicted = most_attended(batch.attention, batch.lengths).flatten(2)
        add_arcs(self._rows[batch.split], batch, heads=predicted)

    def result(self) -> Result:
        dev = self._accuracies("dev")
        test = self._accuracies("test")
        best_direction = dev.argmax(0)
        accuracy = np.take_along_axis(test, best_direction[None], 0)[0]
        lost = self.lost.loc[self._names].to_numpy()
        items = pd.DataFrame({"id": self._names, "pseudo_value": pseudo_values(accuracy, lost), "heads": 1})
        ratios = {"ablation_tau": ("pseudo_value", "heads")}
        scores = ratio_scores(items, ratios, share=False, seed=self.seed)
        frame = pd.DataFrame({"head": self._names, "accuracy": accuracy, "lost": lost})
        units: dict[str, Unit] = {"accuracy": "fraction", "lost": self.lost.attrs["unit"]}
        answer = "over {n} heads Kendall's τ of accuracy and of what ablating them loses is {ablation_tau:ratio}"
        return Result(
            self.experiment,
            scores,
            {"head_agreement": Table(frame, units)},
            audit={
                "ablation": self.ablation,
                "kind": self.kind,
                "score": self.lost.attrs["score"],
                "encoder_of_ablation": self.lost.attrs["encoder"],
            },
            items=items,
            ratios=ratios,
            headline=["ablation_tau"],
            answer=fill_sentence(answer, scores, n=len(self._names)),
        )

    def _accuracies(self, split: Split) -> Floats:
        """Return the accuracy of each head on the words of the relation, `[directions, heads]`."""
        arcs, columns = take_arcs(self._rows[split])
        predictions = Predictions(arcs, self.data.relations, columns["heads"])
        if self.relation not in predictions.groups:
            raise UserError(
                f"{setting('model.relation')}: no word of {split} has the relation {self.relation!r}"
                f"{near(self.relation, predictions.groups)}; there are {', '.join(predictions.groups)}."
            )
        return predictions.accuracies(self.relation).reshape(2, -1)


def lost_without(run: Path, kind: str) -> pd.Series:
    """Return the loss of a score when one head is ablated, by name of the head, from a run of `HeadAblation`.

    Args:
        run: Folder of the run, or its `results.json`.
        kind: Kind of ablation.

    Returns:
        The losses, above 0 if the model is worse without the head. In `attrs` are the name of the `score`, its `unit`,
        and the name of the `encoder`.

    Raises:
        UserError: There is no such run, it ablated no single heads in this way, or a loss is not a finite number.
    """
    path = run / "results.json" if run.is_dir() else run
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        fault = find_alteration(path, content)
        score = content["audit"]["score"]
        attributes = {"score": score, "unit": content["units"][score], "encoder": content["encoder"].get("name", "")}
        frame = read_csv(path_below(path.parent, content["tables"]["ablation"]), na_values=[""])
        kinds = frame["kind"].unique().tolist()
        ablated = frame[frame["kind"] == kind]
        names = ablated["layer"].astype(str) + "-" + ablated["head"].astype(str)
        losses = ablated["difference"].set_axis(names).astype(np.float64)
        if not content["audit"]["lower_is_better"]:
            losses = -losses
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{setting(WHAT)}: {path} is not the result of an ablation of single heads ({type(error).__name__}: "
            f"{error}). Name a run of configs/kovaleva2019/ablation.yaml."
        ) from None
    if fault:
        raise UserError(f"{setting(WHAT)}: {fault}.")
    if losses.empty:
        raise UserError(
            f"{setting(WHAT)}: {run} has no ablation of the kind {kind!r}; kind must be {one_of(kind, kinds)}."
        )
    if not np.isfinite(losses).all():
        raise UserError(f"{setting(WHAT)}: {run} has a loss that is not a finite number. Run the ablation again.")
    losses.attrs |= attributes
    return losses


def pseudo_values(one: Floats, other: Floats) -> Floats:
    """Return the jackknife pseudo-values of Kendall's τ-a; their mean is τ-a.

    Args:
        one: A number for each item, `[n]`, with n at least 3.
        other: Another number for each item, `[n]`.
    """
    agree = np.sign(one[:, None] - one) * np.sign(other[:, None] - other)
    n = len(one)
    total = agree.sum()
    of_item = agree.sum(1)
    values: Floats = total / (n - 1) - (total - 2 * of_item) / (n - 2)
    return values
