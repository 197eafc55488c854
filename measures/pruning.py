"""Score of a classifier as attention heads are pruned, least important first (Michel et al. 2019)."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor, nn

from attention.ablation import Ablation
from attention.capture import Head, Heads, Mixture, intervening, replacing
from measures.ablation import DRAWS, TaskMeasure, compared
from measures.by_head import head_rows
from measures.task import Classification, TaskOutputs
from metrics.bootstrap import draws_for, holm, p_units
from metrics.moments import Moments
from models import recorded_gradients
from results import Curves, Estimate, Figure, Floats, Result, Table, Unit
from results.errors import check_names, check_numbers, check_values, counted
from results.heads import head_map

_STEPS = 10
SHARES = tuple(step / _STEPS for step in range(_STEPS + 1))
"""Shares of the heads that are pruned (Michel et al. 2019, §4)."""

Ranking = Literal["importance", "confidence", "random"]


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
        factor[:, [head for of, head in off if of == layer]] = 0
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
    words, found = inputs["words"], list[Tensor]()

    def see(layer: int, weights: Tensor, values: Tensor) -> tuple[Tensor, None]:
        largest = weights.masked_fill(~words[:, None, None], 0.0).amax(3)
        found.append(largest.masked_fill(~words[:, None], torch.nan).transpose(1, 2))
        return weights, None

    with torch.inference_mode(), intervening(see):
        run(inputs)
    return torch.stack(found, 2)


def normalised(importance: Floats) -> Floats:
    """Divide the importance of heads, `[layers, heads]`, by the ℓ2 norm of their layer (Michel et al. 2019, §4.1)."""
    norm = np.sqrt(np.square(importance).sum(1, keepdims=True))
    shares: Floats = np.divide(importance, norm, out=np.zeros_like(importance), where=norm > 0)
    return shares


class Pruning(TaskMeasure):
    """Scores of a classifier as its heads are pruned, a tenth at a time, without training.

    Heads are pruned in the order of a ranking. `importance` is E_x |∂L(x)/∂ξ_h| over texts of train, divided by
    the ℓ2 norm of the layer, lowest first (Michel et al. 2019). `confidence` is a head's largest attention weight,
    averaged over the words of the same texts, lowest first (Voita et al. 2019). `random` is a random order. A layer
    may lose all its heads, as by default in the released code of Michel et al.

    The outputs of pruned heads are set to zero, which gives the same scores as a model without them.

    Args:
        checkpoint: Checkpoint of a `TransformerClassifier`; `--data` defaults to the texts it was
            trained on.
        rankings: Rankings of the heads.
        exact: True to estimate importance again after each step, with the heads pruned so far off.
        texts: Number of random texts of train for importance and confidence.
        seeds: Number of random orders, whose scores are averaged.
        split: Split that is scored.

    Raises:
        UserError: An option is out of range, or data and checkpoint do not fit.
    """

    experiment = "pruning"
    task: Classification

    def __init__(
        self,
        checkpoint: str,
        rankings: Sequence[Ranking] = ("importance", "confidence", "random"),
        exact: bool = False,
        texts: int = 1000,
        seeds: int = 5,
        split: Literal["dev", "test"] = "test",
    ) -> None:
        super().__init__(checkpoint, split)
        check_values(self, rankings=rankings)
        check_numbers(self, least=1, texts=texts, seeds=seeds)
        check_names("--model.init_args.rankings", rankings)
        self.rankings, self.exact, self.texts, self.seeds = tuple(rankings), exact, texts, seeds

    def sets(self) -> Mapping[Ablation, Sequence[Heads]]:
        """Rank the heads, and return the sets of heads to prune for the points of all pruning curves.

        At a point the first heads of an order are pruned, from none to all in steps of a tenth; `random`
        has several orders. A set that several points share is returned once. The only key of the mapping
        is the ablation `zero`.
        """
        total = self.task.layers * self.task.heads
        self._counts = [total * step // _STEPS for step in range(_STEPS + 1)]
        # Every process has the same batches, and sums some of them.
        self._train = self.drawn("train", self.texts)[self.ranks.rank :: self.ranks.world]
        self._heads: list[Head] = list(product(range(self.task.layers), range(self.task.heads)))
        self._importance = self._important(frozenset())
        # Over all words of the texts.
        self._confidence = self._mean(lambda inputs: head_confidences(self.task.outputs, inputs), "fraction", 1).value
        self._order = self._by_importance()
        random = [np.random.default_rng([self.seed, place]).permutation(total) for place in range(self.seeds)]
        orders: dict[Ranking, list[list[Head]]] = {
            "importance": [self._order],
            "confidence": [sorted(self._heads, key=lambda head: self._confidence[head])],
            "random": [[self._heads[place] for place in order.tolist()] for order in random],
        }
        self._orders = {name: orders[name] for name in self.rankings}
        self._sets = list(dict.fromkeys(one for name in self._orders for sets in self._off(name) for one in sets))
        removed = counted(len(self._sets), "set")
        rank_zero_info(f"Pruning curve: scoring the model with {removed} of its {counted(total, 'head')} ablated.")
        return {Ablation("zero"): self._sets}

    def _off(self, name: Ranking) -> list[list[Heads]]:
        """Return the heads that are off at each share, for each order of a ranking."""
        return [[frozenset(order[:count]) for order in self._orders[name]] for count in self._counts]

    def _important(self, off: Heads) -> Estimate[Floats]:
        """Return mean |∂L/∂ξ| over texts of train, `[layers, heads]`, with some heads off."""
        unit = self.task.loss_unit
        return self._mean(lambda inputs: head_derivatives(self._losses, inputs, off).abs(), unit, np.inf)

    def _mean(self, values: Callable[[Mapping[str, Tensor]], Tensor], unit: Unit, most: float) -> Estimate[Floats]:
        """Return the mean of numbers in 0…most of the texts of train, `[…, layers, heads]`, with its interval."""
        found = Moments(1, (self.task.layers, self.task.heads), unit, (0, most)).to(self.device)
        for inputs in self._train:
            rows = values(inputs).flatten(0, -3)
            found.update(torch.zeros(len(rows), dtype=torch.int64, device=self.device), rows)
        return found.compute().over()

    def _losses(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return self.task.losses(self.task.outputs(inputs), self.task.gold(inputs))

    def _by_importance(self) -> list[Head]:
        order: list[Head] = []
        importance = self._importance.value
        for count in self._counts[1:]:
            if self.exact and order:
                importance = self._important(frozenset(order)).value
                importance[tuple(np.transpose(order))] = 0  # heads that are gone are in no norm
            ranked = normalised(importance)
            left = sorted((head for head in self._heads if head not in order), key=lambda head: float(ranked[head]))
            order += left[: count - len(order)]
        return order

    def summary(self, outputs: TaskOutputs) -> Result:
        task, draws = self.task, draws_for(len(self._orders) * len(SHARES), len(outputs), DRAWS)
        found = {heads: outputs.score("zero", heads, draws) for heads in self._sets}
        outputs.warn_of_one_label("zero")
        whole = found[frozenset()]
        frame = pd.DataFrame(
            [
                {
                    "ranking": name,
                    "pruned": share,
                    **compared([found[heads] for heads in sets], whole),
                    "heads": len(sets[0]),
                }
                for name in self._orders
                for share, sets in zip(SHARES, self._off(name), strict=True)
            ]
        )
        frame["p_holm"] = holm(frame["p"].where(frame["heads"] > 0).tolist())
        scores = {task.score: whole}
        for name, own in frame.groupby("ranking", sort=False):
            # The least share whose score lies below the interval of the whole model; nan for none.
            least = own.loc[own["score"] < whole.interval[0], "pruned"].min()
            scores[f"pruning.{name}.leaves_at"] = Estimate(float(least), unit="fraction")
        audit = {
            "texts": len(outputs),
            "draws": draws,
            "importance": f"over {counted(int(self._importance.inputs.max()), 'text')} of train",
        }
        tables, figures = self._tables(frame, p_units(frame["p"], 2 / (1 + draws))), self._figures(frame, whole)
        return Result(self.experiment, scores, tables, figures, audit, headline=list(scores))

    def _tables(self, frame: pd.DataFrame, of_p: Sequence[Unit]) -> dict[str, Table]:
        unit = self.task.unit
        units: dict[str, Unit | Sequence[Unit]] = {"pruned": "fraction", "score": unit, "difference": unit}
        units |= {"p": of_p, "p_holm": of_p}
        order = np.empty((self.task.layers, self.task.heads), np.int64)
        order[tuple(np.transpose(self._order))] = range(1, order.size + 1)
        columns: dict[str, Estimate[Floats] | NDArray[Any]] = {
            "importance": self._importance,
            "normalised": normalised(self._importance.value),
            "confidence": self._confidence,
            "order": order,
        }
        of_heads: dict[str, Unit] = {"importance": self.task.loss_unit, "normalised": "ratio", "confidence": "fraction"}
        return {
            "pruning": Table(frame, units, interval="score", answer=("ranking", *units)),
            "importance": Table(head_rows(columns), of_heads),
        }

    def _figures(self, frame: pd.DataFrame, whole: Estimate) -> dict[str, Figure]:
        scale = 100 if self.task.unit == "fraction" else 1
        lines = {
            str(name): ((100 * own["pruned"]).tolist(), (scale * own["score"]).tolist())
            for name, own in frame.groupby("ranking", sort=False)
        }
        low, high = (scale * end for end in whole.interval)
        ends = [0.0, 100.0, np.nan, 0.0, 100.0], [low, low, np.nan, high, high]
        importance = normalised(self._importance.value)
        return {
            "pruning": Curves(
                title="Score as heads are pruned",
                x_label="heads pruned (%)",
                y_label=f"{self.task.score} (%)" if scale > 1 else self.task.score,
                lines={**lines, "interval of the whole model": ends},
            ),
            "importance": head_map(
                "Importance of heads", importance, value_label="normalised importance", unit="ratio"
            ),
            "confidence": head_map("Confidence of heads", self._confidence, value_label="mean of the largest weight"),
        }
