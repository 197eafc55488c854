"""Attention that predicts what removing words does to a decision (after Cohen-Wang, Chuang & Madry 2025)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar
from zlib import crc32

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity.checkpoints import Checkpoint
from attention_probing.fidelity.classified import ClassifiedBatch, classify, ranks_of
from attention_probing.fidelity.contract import CheckpointResult, FidelityTest, Reading, Score, by_variant, means
from attention_probing.fidelity.correlation import ROUNDING, without_rounding
from attention_probing.fidelity.saliency import KNOWN, Explainer, Saliency, check_rankings, mean_over_orders
from attention_probing.metrics.gathered import gather_items
from attention_probing.metrics.statistics import mean, rank_correlations, ratio
from attention_probing.results import Figure, Floats, HeatMap, Integers, Table, Unit
from attention_probing.results.errors import UserError
from attention_probing.results.options import Positive, checked
from attention_probing.results.progress import Progress

LEARNED = ("learned", "learned_norms", "learned_shuffled", "best_head")
"""Rankings that are fitted on train."""
EFFECT_RANKINGS = (
    *LEARNED, "attention", "attention_norm", "input_x_gradient", "integrated_gradients", "leave_one_out", "random",
)  # fmt: skip
EFFECT_QUANTITIES = ("attention", "norms")
RANK = 1e-10  # smallest eigenvalue of independent heads, relative to the largest: below is rounding of float32
RIDGE = 1e-6  # penalty where heads depend on each other, for features of unit length
EFFECT_TIE = 1e-5  # effects in nats that differ by no more are equal: logits in float32 are rounded
SMALLEST = float(torch.finfo(torch.float32).tiny)


@dataclass(frozen=True)
class EffectProbe:
    """Linear probe of the effect of removing words, with one weight per head.

    A word i has the score Σ_h w_h a_hi, where a_hi is its attention, or another feature, under head h. The
    predicted effect of removing several words is the sum of their scores. It has no intercept: where nothing
    is removed, nothing changes.

    Attributes:
        weights: Weights `[fits, heads]`, float64: one row per series of effects.
        ridge: True if the heads depend on each other, and a ridge penalty chose one of many solutions.
    """

    weights: Tensor
    ridge: bool

    @staticmethod
    def equations(design: Tensor, effects: Tensor) -> tuple[Floats, Floats]:
        """Return the two sides of the normal equations of some texts, float64 `[heads, heads]` and `[fits, heads]`.

        The features of each text are centred over its removals. This is least squares with an intercept for
        each text, so the weights explain the differences between the removals of one text. The equations of
        several batches, or devices, are added.

        Args:
            design: Sum of the features of the removed words, `[batch, removals, heads]`.
            effects: Effect of each removal, `[fits, batch, removals]`.
        """
        centred = (design - design.mean(1, keepdim=True)).double()
        gram = torch.einsum("brh,brg->hg", centred, centred)
        cross = torch.einsum("fbr,brh->fh", effects.double(), centred)
        return gram.cpu().numpy(), cross.cpu().numpy()

    @classmethod
    def fit(cls, gram: Floats, cross: Floats) -> "EffectProbe":
        """Solve the normal equations in closed form.

        If the heads are linearly dependent, the ridge penalty `RIDGE` on the weights of the features, scaled to
        unit length, makes the solution unique. A head whose features are all 0 gets the weight 0.

        Args:
            gram: Sum of the first result of `equations` over the batches.
            cross: Sum of the second result.
        """
        scale = np.sqrt(np.diag(gram))
        scale[scale == 0] = 1
        scaled = gram / np.outer(scale, scale)
        values = np.linalg.eigvalsh(scaled)
        ridge = bool(values[0] <= RANK * values[-1])
        if ridge:
            scaled += RIDGE * np.eye(len(scaled))
        weights = np.linalg.solve(scaled, (cross / scale).T).T / scale
        return cls(torch.from_numpy(weights), ridge)

    def scores(self, features: Tensor) -> Tensor:
        """Return the scores of the positions, float64 `[fits, batch, positions]`.

        Args:
            features: Features of the positions under each head, `[heads, batch, positions]`.
        """
        return torch.einsum("fh,hbp->fbp", self.weights.to(features.device), features.double())


@dataclass(frozen=True)
class _Equations:
    """Sums over the texts of a batch of train, from which probes are fitted.

    Attributes:
        heads: Names of the heads.
        texts: Number of texts.
        gram: Left side of the normal equations by quantity, `[heads, heads]`.
        cross: Right side of the normal equations by quantity, `[fits, heads]`.
        lds_sums: Sum of the LDS of each head alone by quantity, `[heads]`.
        lds_counts: Number of texts with an LDS by quantity, `[heads]`.
    """

    heads: tuple[str, ...]
    texts: int
    gram: dict[str, Floats] = field(default_factory=dict)
    cross: dict[str, Floats] = field(default_factory=dict)
    lds_sums: dict[str, Floats] = field(default_factory=dict)
    lds_counts: dict[str, Integers] = field(default_factory=dict)


@dataclass(frozen=True)
class _Fitted:
    """Probes of a checkpoint by quantity, with their statistics for each head.

    Attributes:
        probes: By quantity; the first row of weights is of the effects, the others of shuffled effects.
        heads: By quantity, a row for each head: its name as `head`, and the columns of the table `effects.weights`.
        texts: Number of texts of train.
    """

    probes: Mapping[str, EffectProbe]
    heads: Mapping[str, pd.DataFrame]
    texts: int


class Effects(FidelityTest):
    """Test of how well the attention of each head predicts the effect of removing random words on the decision.

    After AT2 (Cohen-Wang, Chuang & Madry 2025, "Learning to Attribute with Attention"). The effect of a removal
    is the fall of the log-odds log(p/(1 − p)) of the predicted class, in nats. A removal keeps each word with
    the probability ½, and at least one; there are 32 of each text. On texts of train, an `EffectProbe` learns one
    weight per head; on the texts of test its scores of the words cost no further pass through the classifier. AT2
    maximises the mean correlation within a text by gradient descent. Here the weights are those of least squares,
    centred within each text, in closed form; texts with larger effects therefore count more. AT2 hides tokens from
    attention; here they are deleted. Words are pieces in a
    transformer, and sentences if the tested level is `sentence`.

    Rankings of the words, each with two columns and scores:

    - `learned` and `learned_norms`: scores of a probe of the attention, and of the norms of what each head adds
      (`AttentionSaliency.head_norms`).
    - `learned_shuffled`: the control. The effects of a text are shuffled among its removals before the fit. It
      is the mean over `draws` shuffles, because one shuffle gives weights with a random direction (with a single
      head, a random sign).
    - `best_head`: attention of the head with the highest mean LDS on train.
    - the rankings of other tests, with the sign of their values; `random` is the mean over `draws` orders.

    `<ranking>.lds` is the linear datamodeling score: over the random removals of a text, Spearman's ρ of the
    effects and of the sums of the scores of the removed words. It is nan, and counted in the table `effects`,
    where either is constant. Scores that are never negative, such as attention and `random`, have some LDS
    because removing more words changes more. `<ranking>.topk_drop` is the effect of removing the three words with
    the highest scores; at least one word of a text stays. The score `learned.over_attention` is the LDS of `learned`
    minus that of `attention`, paired by text.

    A high LDS shows only that attention predicts the effects of removals like those that the probe was trained
    on. Weights can be negative, a head that predicts an effect need not cause it, and other kinds of removal
    may have other effects. A flat classifier has one head: `learned` is its attention times a number.

    Args:
        rankings: Rankings of the words, each once: those above, of `fidelity.saliency`, or `file:PATH`.
        texts: Number of texts of train, drawn at random; all if there are fewer.
        draws: Number of orders of `random`, and of shuffles. Intervals describe only the variation over
            texts: over ten shuffles, the LDS of the control may differ from 0 by .02 by chance.
    """

    name = "effects"
    readings: ClassVar = {"topk_drop": Reading("↑"), "lds": Reading("↑")}
    removals = 32
    keep = 0.5
    k = 3

    @checked
    def __init__(
        self, rankings: Sequence[str | Explainer] = EFFECT_RANKINGS, texts: Positive = 1000, draws: Positive = 10
    ) -> None:
        known = tuple(dict.fromkeys((*LEARNED, *KNOWN)))
        self.rankings = check_rankings("effects: rankings", rankings, known)
        self.texts = texts
        self.draws = draws
        self.quantities = EFFECT_QUANTITIES if "learned_norms" in self.rankings else EFFECT_QUANTITIES[:1]
        self._fitted: dict[str, _Fitted] = {}

    def begin(
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        """Fit the probes; the texts of train are divided among the devices."""
        self._fitted = {}
        if not set(LEARNED).intersection(self.rankings):
            return
        train = data.splits["train"]
        random = np.random.default_rng((seed, crc32(b"effects texts")))
        chosen = random.permutation(len(train))[: self.texts]
        of_device = np.sort(chosen[data.ranks.rank :: data.ranks.world]).tolist()
        progress = Progress("Effects of removals, texts of train", len(of_device) * len(checkpoints))
        for checkpoint in checkpoints:
            parts = []
            for batch in train.batches(data.eval_tokens, of_device):
                _, classified = classify(checkpoint, batch.to(device), seed=seed, vocabulary=data.vocabulary)
                if classified is not None:
                    parts.append(self._equations(classified))
                    progress.advance(parts[-1].texts)
            self._fitted[checkpoint.name] = self._fit(gather_items(parts))

    def _fit(self, parts: Sequence[_Equations]) -> _Fitted:
        """Return the probes of a checkpoint, fitted on the batches of all devices.

        Raises:
            UserError: No text has two words.
        """
        if not parts:
            raise UserError(
                "effects: none of the texts drawn from train has two words. Raise `texts`, or leave out the rankings "
                "that are learned."
            )
        texts = sum(part.texts for part in parts)
        probes = {}
        heads = {}
        for quantity in self.quantities:
            gram = np.sum([part.gram[quantity] for part in parts], axis=0)
            cross = np.sum([part.cross[quantity] for part in parts], axis=0)
            probe = EffectProbe.fit(gram, cross)
            weight = probe.weights[0].numpy()
            spread = np.sqrt(np.diag(gram) / (texts * self.removals))
            lds_sums = np.sum([part.lds_sums[quantity] for part in parts], axis=0)
            lds_counts = np.sum([part.lds_counts[quantity] for part in parts], axis=0)
            probes[quantity] = probe
            heads[quantity] = pd.DataFrame(
                {
                    "head": parts[0].heads,
                    "weight": weight,
                    "contribution": weight * spread,
                    "lds": ratio(lds_sums, lds_counts),
                }
            )
        return _Fitted(probes, heads, texts)

    def _equations(self, classified: ClassifiedBatch) -> _Equations:
        """Return the normal equations of a batch, and the LDS of each head."""
        stays = self._draw_removals(classified, "train")
        effects = self._effects(classified, stays).T  # [batch, removals]
        noise = classified.noise("effects shuffle", self.draws * self.removals).amin(-1)
        order = noise.view(self.draws, self.removals, -1).argsort(1).transpose(1, 2)
        shuffled = effects.expand(order.shape).gather(2, order)
        series = torch.cat([effects[None], shuffled])  # [1 + draws, batch, removals]
        equations = _Equations(classified.names, len(classified.batch.index))
        for quantity in self.quantities:
            features = features_of(Saliency(classified), quantity)
            design = predicted_effects(features, classified.words & ~stays)
            gram, cross = EffectProbe.equations(design.permute(1, 2, 0), series)
            lds = effect_correlations(design, effects)
            equations.gram[quantity] = gram
            equations.cross[quantity] = cross
            equations.lds_sums[quantity] = np.nansum(lds, axis=1)
            equations.lds_counts[quantity] = (~np.isnan(lds)).sum(1)
        return equations

    def _draw_removals(self, classified: ClassifiedBatch, split: str) -> Tensor:
        """Return random removals: bool `[removals, batch, positions]`, True for the words that stay, at least one."""
        words = classified.words
        stays = torch.zeros((self.removals, *words.shape), dtype=torch.bool, device=words.device)
        is_empty = ~stays.any(-1, keepdim=True)
        draw = 0
        while bool(is_empty.any()):
            drawn = classified.noise(f"effects {split} {draw}", self.removals) < self.keep
            stays = torch.where(is_empty, drawn & words, stays)
            is_empty = ~stays.any(-1, keepdim=True)
            draw += 1
        return stays

    def _effects(self, classified: ClassifiedBatch, stays: Tensor) -> Tensor:
        """Return the fall of the log-odds if only some words stay, `[copies, batch]`.

        Args:
            classified: The full texts.
            stays: True for the words that stay, as `keep` of `ClassifiedBatch.reread`.
        """
        without = classified.reread(stays)
        return log_odds(classified, classified.probabilities) - log_odds(classified, without)

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Mapping[str, Tensor]:
        words = classified.words
        stays = self._draw_removals(classified, "test")
        effects = self._effects(classified, stays).T
        orders = {}
        for name, ranking in self.rankings.items():
            orders[name] = self._scores(ranking, classified, saliency)
        scores = torch.cat([order.detach().double() for order in orders.values()])  # [orders, batch, positions]
        lds = effect_correlations(predicted_effects(scores, words & ~stays), effects)
        ranks = ranks_of(scores.masked_fill(~words, -torch.inf))
        most = (words.sum(1) - 1).clamp(max=self.k)[:, None]
        drops = self._effects(classified, words & (ranks >= most))
        return mean_over_orders(orders, {"lds": torch.from_numpy(lds), "topk_drop": drops})

    def _scores(self, ranking: str | Explainer, classified: ClassifiedBatch, saliency: Saliency) -> Tensor:
        """Return the scores of the positions under a ranking, `[orders, batch, positions]`."""
        if ranking not in LEARNED:
            return saliency.rankings(ranking, self.draws)
        fitted = self._fitted[classified.checkpoint.name]
        if ranking == "best_head":
            best = int(fitted.heads["attention"]["lds"].fillna(-np.inf).argmax())
            return classified.weights[[best]]
        quantity = "norms" if ranking == "learned_norms" else "attention"
        scores = fitted.probes[quantity].scores(features_of(saliency, quantity))
        return scores[1:] if ranking == "learned_shuffled" else scores[:1]

    def scores(self) -> Mapping[str, Score]:
        scores = means([f"{name}.lds" for name in self.rankings], main=True)
        scores |= means([f"{name}.topk_drop" for name in self.rankings], "nats")
        if {"learned", "attention"} <= self.rankings.keys():
            columns = ("learned.lds", "attention.lds")
            scores["learned.over_attention"] = Score(columns, _mean_difference, "fraction", main=True)
        return scores

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return the tables `effects` and `effects.weights`.

        `effects` has a row for each checkpoint and ranking: `texts`, the number of texts with an LDS;
        `undefined`, the number of tested texts without one; and the means `lds` and `topk_drop`.
        `effects.weights` has a row for each checkpoint, quantity and head: `weight`, in nats per unit of the
        feature; `contribution`, the weight times the standard deviation, within a text, of the feature summed
        over the removed words, in nats; and `lds`, that of the head alone on train. It is missing if nothing is
        learned.
        """
        rows = []
        for result, name in product(results, self.rankings):
            texts = result.columns(self.name)
            lds = texts[f"{name}.lds"]
            drops = texts[f"{name}.topk_drop"]
            row = {
                "checkpoint": result.name,
                "ranking": name,
                "texts": lds.count(),
                "undefined": drops.count() - lds.count(),
                "lds": lds.mean(),
                "topk_drop": drops.mean(),
            }
            rows.append(row)
        tables = {self.name: Table(pd.DataFrame(rows), {"lds": "fraction", "topk_drop": "nats"})}
        if self._fitted:
            units: dict[str, Unit] = {"weight": "nats", "contribution": "nats", "lds": "fraction"}
            tables[f"{self.name}.weights"] = Table(self._weights(results), units)
        return tables

    def _weights(self, results: Sequence[CheckpointResult]) -> pd.DataFrame:
        """Return the table of weights of some checkpoints."""
        frames = []
        for result in results:
            for quantity, heads in self._fitted[result.name].heads.items():
                frame = heads.copy()
                frame.insert(0, "checkpoint", result.name)
                frame.insert(1, "quantity", quantity)
                frames.append(frame)
        return pd.concat(frames, ignore_index=True)

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return a figure `effects.<quantity>` for each quantity: layers × heads, coloured by the contribution.

        The contributions, as in the table `effects.weights`, are those of the first checkpoint, or means over
        the checkpoints of its variant with the same heads. There is no figure if the levels are not heads of
        layers.
        """
        if not self._fitted:
            return {}
        first_variant = next(iter(by_variant(results).values()))
        frame = self._weights(first_variant)
        if not frame["head"].str.fullmatch(r"\d+-\d+").all():
            return {}
        frame[["layer", "number"]] = frame["head"].str.split("-", expand=True).astype(int)
        figures: dict[str, Figure] = {}
        for quantity, heads in frame.groupby("quantity", sort=False):
            grid = heads.pivot_table("contribution", "layer", "number")
            figures[f"{self.name}.{quantity}"] = HeatMap(
                f"Effects of removals: {quantity} of each head",
                grid.to_numpy(),
                [str(layer) for layer in grid.index],
                [str(number) for number in grid.columns],
                "layer",
                "head",
                "contribution (nats)",
                diverging=True,
                unit="nats",
            )
        return figures

    def audit(self) -> Mapping[str, object]:
        """Return, by checkpoint, the number of texts of train, and the number of fits that needed a ridge penalty."""
        if not self._fitted:
            return {}
        ridge = 0
        for fitted in self._fitted.values():
            ridge += sum(probe.ridge for probe in fitted.probes.values())
        texts = {name: fitted.texts for name, fitted in self._fitted.items()}
        return {"train_texts": texts, "ridge": ridge}


def features_of(saliency: Saliency, quantity: str) -> Tensor:
    """Return the features of the positions under each head, `[heads, batch, positions]`.

    Args:
        saliency: Importance of the words of the texts.
        quantity: `attention` for the weights, `norms` for the norms of what they add.
    """
    if quantity == "norms":
        return saliency.of_attention.head_norms.detach()
    return saliency.classified.weights.detach()


def predicted_effects(scores: Tensor, removed: Tensor) -> Tensor:
    """Return the sum of the scores of the removed words, float64 `[orders, batch, removals]`.

    Args:
        scores: Scores of the positions, `[orders, batch, positions]`; any value where nothing is ever removed.
        removed: Bool `[removals, batch, positions]`, True for removed words.
    """
    scores = scores.double().masked_fill(~removed.any(0), 0)
    return torch.einsum("obp,rbp->obr", scores, removed.double())


def log_odds(classified: ClassifiedBatch, probabilities: Tensor) -> Tensor:
    """Return the log-odds log(p/(1 − p)) of the class predicted for the full text, float64 `[..., batch]`, in nats.

    1 − p is the sum over the other classes, which is exact where p is nearly 1.

    Args:
        classified: The full texts.
        probabilities: Class probabilities `[..., batch, classes]`, for instance of shortened texts.
    """
    label = classified.predicted[:, None].expand(*probabilities.shape[:-1], 1)
    p = classified.of_predicted(probabilities).double().clamp(min=SMALLEST)
    others = probabilities.double().scatter(-1, label, 0).sum(-1).clamp(min=SMALLEST)
    return p.log() - others.log()


def effect_correlations(predicted: Tensor, effects: Tensor) -> Floats:
    """Return Spearman's ρ of predicted and true effects over the removals of each text, `[orders, batch]`.

    Values that differ only by rounding are tied: effects that differ by at most `EFFECT_TIE`, and predictions that
    differ by at most `ROUNDING` times the largest absolute prediction for the text. ρ is nan if all predictions or all
    effects of a text are tied.

    Args:
        predicted: Predicted effects, `[orders, batch, removals]`.
        effects: True effects in nats, `[batch, removals]`.
    """
    sums = predicted.cpu().numpy()
    truth = effects.cpu().numpy()
    tolerance = np.broadcast_to(ROUNDING * np.abs(sums).max(-1, keepdims=True), sums.shape)
    tied_sums = without_rounding(sums, tolerance)
    tied_truth = without_rounding(truth, np.full(truth.shape, EFFECT_TIE))
    return rank_correlations(tied_sums, tied_truth)


def _mean_difference(values: Floats, weights: Floats) -> Floats:
    """Return the mean of the first column minus the second, over texts, in each draw."""
    return mean(values[:, :1] - values[:, 1:], weights)
