"""Score of a classifier as attention heads are pruned, least important first (Michel et al. 2019)."""

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor, nn

from analysis.by_head import head_rows
from attention.ablation import Ablation
from attention.capture import Head, Heads, Mixture, intervening, replacing
from attention.encoder import refuse_existing, save_model
from attention.modeling_pruned import LAYOUTS, RemovedHeads, is_prunable, prune
from heads.single_heads import head_map
from interventions.ablation import DRAWS, TaskExperiment, compared
from interventions.task import Classification, TaskOutputs
from metrics.bootstrap import draws_for, holm, p_units
from metrics.moments import Moments
from models.transformer import SequenceClassifier
from processes.progress import Progress
from results import Curves, Estimate, Figure, Floats, Result, Table, Unit
from results.errors import UserError, check_numbers, check_values, counted
from training import recorded_gradients
from training.experiment import check_names

_STEPS = 10
SHARES = tuple(step / _STEPS for step in range(_STEPS + 1))
"""Shares of the heads that are pruned (Michel et al. 2019, §4)."""
TIMED = 256
"""Texts of a timed pass, drawn at random from the scored texts."""
_ROUNDS = 3  # the fastest pass counts: other load makes a pass slower, never faster
_BITS = 44  # behind the point of importance: derivatives of a confident classifier are tiny

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


class Pruning(TaskExperiment):
    """Experiment that scores a classifier as its heads are pruned, a tenth at a time, without training.

    Heads are pruned in the order of a ranking. `importance` is E_x |∂L(x)/∂ξ_h| over texts of train,
    lowest first (Michel et al. 2019). `confidence` is a head's largest attention weight, averaged over
    the words of the same texts, lowest first (Voita et al. 2019). `random` is a random order. A layer
    may lose all its heads, as by default in the released code of Michel et al.

    For the score, the outputs of pruned heads are set to zero. The column `seconds` is the time of a
    pass over up to 256 texts, by a model from which these heads have been removed; see
    `attention.modeling_pruned.prune`.

    Args:
        checkpoint: Checkpoint of a `TransformerClassifier`; `--data` defaults to the texts it was
            trained on.
        rankings: Rankings of the heads.
        normalise: True to divide importance by the ℓ2 norm of its layer.
        exact: True to estimate importance again after each step, with the heads pruned so far off.
        texts: Number of random texts of train for importance and confidence.
        seeds: Number of random orders, whose scores are averaged.
        split: Split that is scored.
        score: Name of the score; by default the default score of the data.
        save: Folder to save a model to, without its least important heads; needs `share`.
        share: Share of the heads that the saved model lacks; needs `save`.
        seed: Seed of random draws; by default the seed of the run.

    Raises:
        UserError: An option is out of range, data and checkpoint do not fit, or heads of the model to
            save cannot be removed.
    """

    experiment = "pruning"
    task: Classification

    def __init__(
        self,
        checkpoint: str,
        rankings: Sequence[Ranking] = ("importance", "confidence", "random"),
        normalise: bool = True,
        exact: bool = False,
        texts: int = 1000,
        seeds: int = 5,
        split: Literal["dev", "test"] = "test",
        score: str | None = None,
        save: str | None = None,
        share: float | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(checkpoint, split, score, seed)
        check_values(self, rankings=rankings)
        check_numbers(self, least=1, texts=texts, seeds=seeds)
        check_numbers(self, above=0, most=1, share=share)
        check_names("--model.init_args.rankings", rankings)
        if (save is None) != (share is None):
            raise UserError(
                f"--model.init_args.save is {save} and --model.init_args.share is {share}: give both or neither."
            )
        self.rankings, self.normalise, self.exact = tuple(rankings), normalise, exact
        self.texts, self.seeds = texts, seeds
        self.folder, self.share = None if save is None else Path(save).expanduser(), share

    def prepare(self) -> None:
        super().prepare()
        if self.folder is not None:
            model = self.task.classifier.model
            if not is_prunable(model):
                raise UserError(
                    f"--model.init_args.save: heads cannot be removed from this {type(model).__name__}, only from "
                    f"models of the types {', '.join(sorted(LAYOUTS))} without cross-attention. Leave out save and "
                    "share to get the pruning curve alone."
                )
            refuse_existing(self.folder)

    def sets(self) -> Mapping[Ablation, Sequence[Heads]]:
        """Rank the heads, and return the sets of heads to prune for the points of all pruning curves.

        At a point the first heads of an order are pruned, from none to all in steps of a tenth; `random`
        has several orders. A set that several points share is returned once. The only key of the mapping
        is the ablation `zero`.
        """
        total = self.task.layers * self.task.heads
        self._counts = [total * step // _STEPS for step in range(_STEPS + 1)]
        # Every process has the same batches, and sums some of them.
        self._train = self.drawn("train", self.texts)[self.trainer.global_rank :: self.trainer.world_size]
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
        return self._mean(lambda inputs: head_derivatives(self._losses, inputs, off).abs(), unit, np.inf, _BITS)

    def _mean(
        self, values: Callable[[Mapping[str, Tensor]], Tensor], unit: Unit, most: float, bits: int = 32
    ) -> Estimate[Floats]:
        """Return the mean of numbers in 0…most of the texts of train, `[…, layers, heads]`, with its interval."""
        found = Moments(1, (self.task.layers, self.task.heads), unit, bits, (0, most)).to(self.device)
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
            ranked = normalised(importance) if self.normalise else importance
            left = sorted((head for head in self._heads if head not in order), key=lambda head: float(ranked[head]))
            order += left[: count - len(order)]
        return order

    def summary(self, outputs: TaskOutputs) -> Result:
        """Measure the speed of the pruned models, and return the result.

        With the option `save`, also save the classifier without its least important heads; `share`
        says how many of them are removed.
        """
        removed: dict[Heads, dict[str, float]] = self._remove() if self.trainer.is_global_zero else {}
        removed = self.trainer.strategy.broadcast(removed)  # every process has the same result
        if self.folder is not None and self.trainer.is_global_zero:
            self._save(self.folder)
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
                    **removed[sets[0]],
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
        timed = f"fastest of {_ROUNDS} passes over {counted(min(TIMED, len(outputs)), 'text')}"
        if not is_prunable(self.task.classifier.model):
            timed = f"{timed} of the whole model: heads of this architecture cannot be removed"
        audit = {
            "texts": len(outputs),
            "draws": draws,
            "kept_batches": self.kept_batches,
            "importance": f"over {counted(int(self._importance.inputs.max()), 'text')} of train",
            "seconds": timed,
        }
        tables, figures = self._tables(frame, p_units(frame["p"], 2 / (1 + draws))), self._figures(frame, whole)
        return Result(self.experiment, scores, tables, figures, audit, headline=list(scores))

    def _remove(self) -> dict[Heads, dict[str, float]]:
        """Measure the model without each set of heads; a random ranking stands for its first order."""
        classifier = self.task.classifier
        timed = self.drawn(self.split, TIMED)
        sets = list(dict.fromkeys(one for name in self._orders for one, *_ in self._off(name)))
        if not is_prunable(classifier.model):
            seconds = min(self._seconds(classifier, timed) for _ in range(_ROUNDS))
            return dict.fromkeys(sets, _columns(RemovedHeads(), classifier, seconds))
        found: dict[Heads, dict[str, float]] = {}
        progress = Progress("Passes without heads", _ROUNDS * len(sets))
        for _ in range(_ROUNDS):  # rounds over all sets, so that a slow minute of the machine hits no single set
            for heads in sets:
                smaller, counts = _without(classifier, heads)
                columns = _columns(counts, smaller, self._seconds(smaller, timed))
                found[heads] = min(found.get(heads, columns), columns, key=lambda one: one["seconds"])
                progress.advance()
        return found

    def _seconds(self, classifier: SequenceClassifier, timed: Sequence[Mapping[str, Tensor]]) -> float:
        """Return the wall time of a pass over texts, behind one batch that warms up."""

        def run(inputs: Mapping[str, Tensor]) -> None:
            with torch.inference_mode():
                classifier.logits(inputs["input_ids"], inputs["attention_mask"].bool(), inputs["segments"])
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)

        run(timed[0])
        start = time.perf_counter()
        for inputs in timed:
            run(inputs)
        return time.perf_counter() - start

    def _save(self, folder: Path) -> None:
        assert self.share is not None
        heads = frozenset(self._order[: int(self.share * len(self._heads) + 1e-9)])  # .7 of 10 are 7
        smaller, counts = _without(self.task.classifier, heads)
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        assert data.tokenizer_source is not None
        save_model(smaller.model, data.tokenizer_source, folder, data.labels)
        rank_zero_info(
            f"{folder}: {counted(counts.removed, 'head')} removed, {counted(counts.zeroed, 'head')} zeroed. Load: "
            f"AutoModelForSequenceClassification.from_pretrained({str(folder)!r}, trust_remote_code=True)."
        )

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
            "pruning": Table(frame, {**units, "seconds": "ratio"}, interval="score", answer=("ranking", *units)),
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
        importance = normalised(self._importance.value) if self.normalise else self._importance.value
        unit: Unit = "ratio" if self.normalise else self.task.loss_unit
        label = "normalised importance" if self.normalise else f"mean |∂L/∂ξ| ({self.task.loss_unit})"
        return {
            "pruning": Curves(
                title="Score as heads are pruned",
                x_label="heads pruned (%)",
                y_label=f"{self.task.score} (%)" if scale > 1 else self.task.score,
                lines={**lines, "interval of the whole model": ends},
            ),
            "importance": head_map("Importance of heads", importance, value_label=label, unit=unit),
            "confidence": head_map("Confidence of heads", self._confidence, value_label="mean of the largest weight"),
        }


def _without(classifier: SequenceClassifier, heads: Heads) -> tuple[SequenceClassifier, RemovedHeads]:
    """Return a copy whose heads are removed, with the attention that transformers has by default."""
    smaller = deepcopy(classifier)
    counts = prune(smaller.model, heads)
    smaller.model.set_attn_implementation("sdpa")
    return smaller, counts


def _columns(counts: RemovedHeads, classifier: SequenceClassifier, seconds: float) -> dict[str, float]:
    parameters = sum(parameter.numel() for parameter in classifier.parameters())
    return {"removed": counts.removed, "zeroed": counts.zeroed, "parameters": parameters, "seconds": seconds}
