"""Score of a classifier as its heads are pruned, one after the other (Michel et al. 2019)."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from jsonargparse import Namespace
from numpy.typing import NDArray
from torch import Tensor, nn

from attention_probing.attention.ablation import Ablation
from attention_probing.attention.capture import Mixture, intervening, replacing
from attention_probing.attention.heads import Head, Heads
from attention_probing.datamodules import TextBatch
from attention_probing.datamodules.corpus import CorpusDataModule
from attention_probing.measures.by_head import head_rows
from attention_probing.measures.contract import Measure
from attention_probing.measures.head_sets import DRAWS, WHOLE, AblatedOutputs
from attention_probing.measures.task_loading import data_of_checkpoint, draw_texts, load_task
from attention_probing.metrics.differences import difference
from attention_probing.metrics.moments import Moments
from attention_probing.metrics.p_values import draws_for, holm, least_p, p_units
from attention_probing.metrics.rows import ITEM, Rows
from attention_probing.metrics.seeds import pool_seeds
from attention_probing.metrics.stability import resampled_shares, set_overlap
from attention_probing.models import recorded_gradients
from attention_probing.models.checkpoints import checkpoint_file
from attention_probing.results import Curves, Estimate, Figure, Finding, Floats, Result, Table, Unit, numbers
from attention_probing.results.errors import check_names, pluralize, setting
from attention_probing.results.heads import head_map
from attention_probing.results.options import Positive, checked
from attention_probing.results.progress import inform
from attention_probing.results.sentences import UNDEFINED, fill_sentence, format_estimate

_STEPS = 10
PRUNED_SHARES = tuple(step / _STEPS for step in range(_STEPS + 1))
"""Shares of the heads that are pruned (Michel et al. 2019, §4)."""

Ranking = Literal["importance", "confidence", "random"]

_SHORT_NAMES = {"score.low": "low", "score.high": "high", "score.sd": "sd", "difference.p": "p"}


def head_derivatives(
    losses: Callable[[Mapping[str, Tensor]], Tensor], inputs: Mapping[str, Tensor], off: Heads = frozenset()
) -> Tensor:
    """Return ∂L/∂ξ for every text and attention head, `[batch, layers, heads]` (Michel et al. 2019, §4.1).

    ξ is a factor that multiplies the output of a head. It is 0 for the heads in `off`, and 1 for all
    others. One backward pass gives the derivatives of all texts.

    Args:
        losses: Function that returns the loss of each text, `[batch]`, given inputs; each loss must depend
            on one text alone.
        inputs: Inputs of a batch.
        off: Heads that are pruned, as pairs of 0-based layer and head.
    """
    factors: list[Tensor] = []

    def scale(layer: int, module: nn.Module, mixture: Mixture) -> Tensor:
        outputs = mixture.outputs
        factor = outputs.new_ones(outputs.shape[:2])
        heads_off = [head for layer_off, head in off if layer_off == layer]
        factor[:, heads_off] = 0
        factors.append(factor.requires_grad_())
        return outputs * factor[:, :, None, None]

    with recorded_gradients(), replacing(scale):
        total = losses({name: tensor.clone() for name, tensor in inputs.items()}).sum()
        return torch.stack(torch.autograd.grad(total, factors), 1)


def head_confidences(run: Callable[[Mapping[str, Tensor]], Tensor], inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the largest attention weight of each head from each piece to any piece of a word.

    Pieces that belong to no word, such as delimiters, do not count as targets, and their own values are
    nan. Voita et al. (2019, §4) leave out only the end-of-sentence symbol.

    Args:
        run: Function that runs the model on inputs; what it returns is not used.
        inputs: Inputs of a batch, with `words`, bool `[batch, pieces]`, True for pieces of words.

    Returns:
        `[batch, pieces, layers, heads]`, where `pieces` are the pieces that attend.
    """
    words = inputs["words"]
    largest_of_layers: list[Tensor] = []

    def keep_largest(layer: int, weights: Tensor, values: Tensor) -> tuple[Tensor, None]:
        largest = weights.masked_fill(~words[:, None, None], 0.0).amax(3)
        largest_of_layers.append(largest.masked_fill(~words[:, None], torch.nan).transpose(1, 2))
        return weights, None

    with torch.inference_mode(), intervening(keep_largest):
        run(inputs)
    return torch.stack(largest_of_layers, 2)


def normalise(importance: Floats) -> Floats:
    """Divide importances of heads, `[…, layers, heads]`, by the ℓ2 norm of their layer (Michel et al. 2019, §4.1)."""
    norm = np.sqrt(np.square(importance).sum(-1, keepdims=True))
    shares: Floats = np.divide(importance, norm, out=np.zeros_like(importance), where=norm > 0)
    return shares


class Pruning(Measure[CorpusDataModule[Any]]):
    """Scores of a classifier as its heads are pruned, a tenth at a time, without training.

    Heads are pruned in the order of a ranking. `importance` is E_x |∂L(x)/∂ξ_h| over texts of train, divided by
    the ℓ2 norm of the layer, lowest first (Michel et al. 2019). `confidence` is a head's largest attention weight,
    averaged over the words of the same texts, lowest first (Voita et al. 2019). `random` is a random order. A layer
    may lose all its heads, as by default in the released code of Michel et al.

    The outputs of pruned heads are set to zero, which gives the same scores as a model without them. The column
    `overlap` is that of the pruned heads with those that are pruned by importance, or confidence, on resamples of the
    texts of train (`metrics.stability.set_overlap`); it is blank for `random`, and for importance with `exact`.

    Args:
        checkpoint: Checkpoint of a `TransformerClassifier`, or a folder with only one; `--data` defaults to the
            texts it was trained on.
        rankings: Rankings of the heads.
        exact: True to estimate importance again after each step, with the heads pruned so far off.
        texts: Number of random texts of train for importance and confidence.
        seeds: Number of random orders, whose scores are averaged.
        split: Split that is scored.

    Raises:
        UserError: An option is out of range, or data and checkpoint do not fit.
    """

    experiment = "pruning"
    takes = CorpusDataModule

    @checked
    def __init__(
        self,
        checkpoint: str,
        rankings: Sequence[Ranking] = ("importance", "confidence", "random"),
        exact: bool = False,
        texts: Positive = 1000,
        seeds: Positive = 5,
        split: Literal["dev", "test"] = "test",
    ) -> None:
        super().__init__()
        check_names(setting("model.rankings"), rankings)
        self.checkpoint = checkpoint_file(checkpoint)
        self.rankings = tuple(rankings)
        self.exact = exact
        self.texts = texts
        self.seeds = seeds
        self.split = split

    @classmethod
    def data_of(cls, arguments: Namespace | Self, given: Namespace | None) -> Namespace | None:
        return data_of_checkpoint(arguments, given)

    def begin(self) -> None:
        self.task = load_task(type(self).__name__, self.checkpoint, self.data, self.device, self.seed)
        with torch.inference_mode():
            self._rank_heads()

    def _rank_heads(self) -> None:
        """Rank the heads, and choose the sets of heads to prune at the points of all curves.

        At a point the first heads of an order are pruned, from none to all in steps of a tenth; `random`
        has several orders. A set that several points share is scored once.
        """
        self._heads: list[Head] = list(product(range(self.task.layers), range(self.task.heads)))
        self._counts = [len(self._heads) * step // _STEPS for step in range(_STEPS + 1)]
        # Every process has the same batches, and sums some of them.
        batches = draw_texts(self.task, self.data, "train", self.texts, self.seed)
        self._train = batches[self.ranks.rank :: self.ranks.world]
        self._importance, importances = self._measure_importance(WHOLE)
        confidence, confidences = self._measure_confidence()
        self._confidence = confidence.value
        self._resampled = {"importance": normalise(importances), "confidence": confidences}
        self._by_importance = self._order_by_importance()
        self._orders = {ranking: self._orders_of(ranking) for ranking in self.rankings}
        sets: dict[Heads, None] = {}
        for ranking in self.rankings:
            for sets_of_point in self._points(ranking):
                sets.update(dict.fromkeys(sets_of_point))
        self._sets = list(sets)
        self._outputs = AblatedOutputs(self.task, {Ablation("zero"): self._sets}, self.split)
        inform(
            f"Pruning curve: scoring the model with {pluralize(len(sets), 'set')} of its "
            f"{pluralize(len(self._heads), 'head')} ablated."
        )

    def _orders_of(self, ranking: Ranking) -> list[list[Head]]:
        """Return the orders in which heads are pruned: one, or several random ones."""
        if ranking == "importance":
            return [self._by_importance]
        if ranking == "confidence":
            return [sorted(self._heads, key=lambda head: self._confidence[head])]
        orders = []
        for place in range(self.seeds):
            order = np.random.default_rng([self.seed, place]).permutation(len(self._heads))
            orders.append([self._heads[head] for head in order.tolist()])
        return orders

    def _points(self, ranking: Ranking) -> list[list[Heads]]:
        """Return the heads that are off at each share, for each order of a ranking."""
        points = []
        for count in self._counts:
            points.append([frozenset(order[:count]) for order in self._orders[ranking]])
        return points

    def _measure_importance(self, off: Heads) -> tuple[Estimate[Floats], Floats]:
        """Return mean |∂L/∂ξ| over texts of train, with some heads off; see `_mean`."""

        def derivatives(inputs: Mapping[str, Tensor]) -> Tensor:
            return head_derivatives(self._losses, inputs, off).abs()

        return self._mean(derivatives, self.task.loss_unit, np.inf)

    def _measure_confidence(self) -> tuple[Estimate[Floats], Floats]:
        """Return the largest weight of a head, averaged over all words of texts of train; see `_mean`."""

        def confidences(inputs: Mapping[str, Tensor]) -> Tensor:
            return head_confidences(self.task.outputs, inputs)

        return self._mean(confidences, "fraction", 1)

    def _mean(
        self, values: Callable[[Mapping[str, Tensor]], Tensor], unit: Unit, most: float
    ) -> tuple[Estimate[Floats], Floats]:
        """Return the mean of numbers of the texts of train, and its values on resamples of the texts.

        Args:
            values: Function that returns the numbers of a batch, `[batch, …, layers, heads]`; nan is left out.
            unit: Unit of the numbers.
            most: Largest possible number; the least is 0.

        Returns:
            The mean with its interval, `[layers, heads]`, and `[resamples, layers, heads]`.
        """
        shape = (self.task.layers, self.task.heads)
        moments = Moments(1, shape, unit, (0, most)).to(self.device)
        texts = Rows()
        for number, inputs in enumerate(self._train):
            numbers_of_texts = values(inputs)
            rows = numbers_of_texts.flatten(0, -3)
            moments.update(torch.zeros(len(rows), dtype=torch.int64, device=self.device), rows)
            size = len(numbers_of_texts)
            by_text = numbers_of_texts.reshape(size, -1, *shape).float()
            batch = torch.full((size,), number * self.ranks.world + self.ranks.rank)
            items = torch.stack([batch, torch.arange(size)], dim=1)
            texts.add(items, sums=by_text.nansum(1), counts=(~by_text.isnan()).sum(1))
        columns = texts.take()
        number_of_texts = len(columns[ITEM])
        sums = columns["sums"].reshape(number_of_texts, -1)
        counts = columns["counts"].reshape(number_of_texts, -1).astype(np.float64)
        resampled = resampled_shares(sums, counts, self.seed)
        return moments.compute().over(), resampled.reshape(-1, *shape)

    def _overlap(self, ranking: Ranking, pruned: Heads) -> float:
        """Return the mean overlap of pruned heads with as many on resamples of the texts; nan if it is not measured."""
        is_measured_anew = ranking == "importance" and self.exact
        if ranking == "random" or is_measured_anew or self._importance.inputs.max() < 2:
            return np.nan
        numbers_of_heads = self._resampled[ranking].reshape(-1, len(self._heads))
        lowest = np.argsort(numbers_of_heads, axis=1, kind="stable")[:, : len(pruned)]
        resampled = np.zeros(numbers_of_heads.shape, np.bool_)
        np.put_along_axis(resampled, lowest, True, axis=1)
        chosen = np.array([head in pruned for head in self._heads])
        return set_overlap(chosen, resampled)

    def _losses(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return self.task.losses(self.task.outputs(inputs), self.task.gold(inputs))

    def _order_by_importance(self) -> list[Head]:
        """Return the heads, the least important first; `exact` measures again after each step."""
        order: list[Head] = []
        importance = self._importance.value
        for count in self._counts[1:]:
            if self.exact and order:
                measured, _ = self._measure_importance(frozenset(order))
                importance = measured.value
                importance[tuple(np.transpose(order))] = 0  # heads that are gone are in no norm
            normalised = normalise(importance)
            others = [head for head in self._heads if head not in order]
            others.sort(key=lambda head: float(normalised[head]))
            order += others[: count - len(order)]
        return order

    def update(self, batch: TextBatch) -> None:
        self._outputs.add(batch, self.advance)

    def result(self) -> Result:
        outputs = self._outputs.take()
        outputs.warn_of_one_label("zero")
        draws = draws_for(len(self.rankings) * len(PRUNED_SHARES), len(outputs), DRAWS)
        scores_of_sets = {heads: outputs.score("zero", heads, draws) for heads in self._sets}
        whole = scores_of_sets[WHOLE]
        rows = []
        for ranking in self.rankings:
            for share, sets in zip(PRUNED_SHARES, self._points(ranking), strict=True):
                # Random orders vary like seeds.
                score = pool_seeds([scores_of_sets[heads] for heads in sets])
                change = difference(score, whole, fixed=True)
                row: dict[str, object] = {"ranking": ranking, "pruned": share}
                row |= numbers({"score": score, "difference": change})
                row["heads"] = len(sets[0])
                row["overlap"] = self._overlap(ranking, sets[0])
                rows.append(row)
        frame = pd.DataFrame(rows).rename(columns=_SHORT_NAMES)
        frame["p_holm"] = holm(frame["p"].where(frame["heads"] > 0).tolist())
        scores = {self.task.score: whole}
        falls = []
        for ranking in self.rankings:
            points = frame[frame["ranking"] == ranking]
            # The least share whose score lies below the interval of the whole model; nan for none, or no interval.
            below = points.loc[points["score"] < whole.interval[0], "pruned"]
            share_of_fall = Estimate(float(below.min()), unit="fraction")
            scores[f"pruning.{ranking}.leaves_at"] = share_of_fall
            falls.append(f"{_format_fall(share_of_fall, whole)} by {ranking}")
        audit = {
            "texts": len(outputs),
            "draws": draws,
            "importance": f"over {pluralize(int(self._importance.inputs.max()), 'text')} of train",
        }
        answer = f"the {self.task.score} of the intact model is {{{self.task.score}}} over {{n}} texts; "
        answer += f"heads pruned when it falls below this interval: {', '.join(falls)}"
        answer = fill_sentence(answer, scores, n=len(outputs))
        tables = self._tables(frame, least_p(whole.units or 0, draws))
        figures = self._figures(frame, whole)
        first = self.rankings[0]
        words = f"heads pruned by {first} when the {self.task.score} falls below its interval (undefined if never)"
        finding = Finding(f"pruning.{first}.leaves_at", words)
        return Result(
            self.experiment, scores, tables, figures, audit, headline=list(scores), answer=answer, finding=finding
        )

    def _tables(self, frame: pd.DataFrame, least: float) -> dict[str, Table]:
        """Return the table of the points of all curves, and that of the rankings of heads."""
        units: dict[str, Unit | Sequence[Unit]] = {"pruned": "fraction"}
        units["score"] = self.task.unit
        units["difference"] = self.task.unit
        units["p"] = p_units(frame["p"], least)
        units["p_holm"] = units["p"]
        main = ("ranking", *units)
        units["overlap"] = "fraction"
        order = np.empty((self.task.layers, self.task.heads), np.int64)
        order[tuple(np.transpose(self._by_importance))] = range(1, order.size + 1)
        columns: dict[str, Estimate[Floats] | NDArray[Any]] = {
            "importance": self._importance,
            "normalised": normalise(self._importance.value),
            "confidence": self._confidence,
            "order": order,
        }
        units_of_columns: dict[str, Unit] = {
            "importance": self.task.loss_unit,
            "normalised": "ratio",
            "confidence": "fraction",
        }
        return {
            "pruning": Table(frame, units, interval="score", main=main),
            "importance": Table(head_rows(columns), units_of_columns),
        }

    def _figures(self, frame: pd.DataFrame, whole: Estimate) -> dict[str, Figure]:
        """Return the pruning curves, and maps of importance and confidence."""
        scale = 1
        label = self.task.score
        if self.task.unit == "fraction":
            scale = 100
            label = f"{self.task.score} (%)"
        lines = {}
        for ranking, points in frame.groupby("ranking", sort=False):
            lines[str(ranking)] = ((100 * points["pruned"]).tolist(), (scale * points["score"]).tolist())
        low, high = [scale * end for end in whole.interval]
        lines["interval of the whole model"] = ([0.0, 100.0, np.nan, 0.0, 100.0], [low, low, np.nan, high, high])
        curves = Curves(
            title="Score as heads are pruned",
            x_label="heads pruned (%)",
            y_label=label,
            lines=lines,
        )
        importance = normalise(self._importance.value)
        map_of_importance = head_map(
            "Importance of heads", importance, value_label="normalised importance", unit="ratio"
        )
        map_of_confidence = head_map("Confidence of heads", self._confidence, value_label="mean of the largest weight")
        return {"pruning": curves, "importance": map_of_importance, "confidence": map_of_confidence}


def _format_fall(share: Estimate, whole: Estimate) -> str:
    """Return the share of the heads that are pruned when the score falls below the interval of the whole model."""
    if share.value == share.value:
        return format_estimate(share)
    return UNDEFINED if np.isnan(whole.interval[0]) else "never"
