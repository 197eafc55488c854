"""Test on planted shortcuts, where the deciding words are known (Bastings et al. 2022), and a table of other tests."""

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity.checkpoints import Checkpoint
from attention_probing.fidelity.classified import ClassifiedBatch, ranks_of
from attention_probing.fidelity.contract import (
    CheckpointResult,
    FidelityTest,
    Reading,
    Score,
    by_variant,
    column_means,
    means,
    proportions,
)
from attention_probing.fidelity.saliency import RANKINGS, Explainer, Saliency, check_rankings, mean_over_orders
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.seeds import pool_seeds
from attention_probing.metrics.statistics import ratio
from attention_probing.results import TIE, Floats, Table, Unit
from attention_probing.results.errors import UserError, setting
from attention_probing.results.options import checked
from attention_probing.results.progress import warn

LEARNT = 0.99
"""Lowest accuracy on planted texts of a classifier that has learnt the shortcut; the bound is ours."""
BETTER: Mapping[str, int] = {
    **dict.fromkeys(("rationale.comprehensiveness", "rationale.aopc", "rationale.naopc"), 1),
    **dict.fromkeys(("rationale.sufficiency", "rationale.naopc_ascending", "erasure.fraction", "erasure.mass"), -1),
    **{"correlation.kendall": 1, "effects.*": 1, "roar.*": -1},
}
"""Direction of each metric, 1 if higher is better and -1 if lower is, by a pattern of `<test>.<measure>`; the first
pattern that fits counts. τ between attention and a measure judges the measure by its agreement with attention."""
CHANCE = "chance"


class Shortcut(FidelityTest):
    """Places of planted words in rankings, on data with a planted shortcut (Bastings et al. 2022).

    A classifier that has learnt the shortcut decides by the planted words alone, so a faithful ranking puts them
    first. `learnt`, the accuracy on the planted texts, says if it has; below 99 % the run warns, and the other scores
    then say little. Accuracy does not show that the context word of the kind `context` is needed.

    Scores, means over the texts:

    - `<ranking>.precision_at_k`: share of planted words among the first k words, where k is the number of planted
      words in the text;
    - `<ranking>.mean_rank`: mean rank of the planted words, from 1;
    - `chance.precision_at_k` and `chance.mean_rank`: their expected values for a random order, k/n and (n + 1)/2 of
      n words;
    - `learnt`.

    Rankings keep their signs, as in the other tests that rank, and of equal words the earlier comes first. If tokens
    are pieces, all pieces of a planted word count as planted words; if the tested attention is over sentences, a
    sentence with a planted word does.

    Args:
        rankings: Rankings of the words, each once; `file:PATH` reads one (`fidelity.explanations`). `planted` is an
            oracle, which puts the planted words first. The columns of `random` are means over five orders.
    """

    name = "shortcut"
    readings: ClassVar = {"precision_at_k": Reading("↑"), "mean_rank": Reading("↓")}

    @checked
    def __init__(self, rankings: Sequence[str | Explainer] = RANKINGS) -> None:
        self.rankings = check_rankings("shortcut: rankings", rankings)
        self._not_learnt: dict[str, float] = {}

    def begin(
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        if data.shortcut is None:
            raise UserError(
                "shortcut needs data with a planted shortcut, but these have none. Train the classifiers with "
                f"{setting('data.shortcut.kind')}, or remove shortcut from {setting('model.tests')}."
            )

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Mapping[str, Tensor]:
        words = classified.words
        planted = classified.to_positions(classified.batch.rationale.float()) > 0
        count = planted.sum(1).double()
        total = words.sum(1)
        orders = {}
        for name, ranking in self.rankings.items():
            orders[name] = saliency.rankings(ranking, self.draws)
        keys = torch.cat(list(orders.values())).masked_fill(~words, -torch.inf)
        ranks = ranks_of(keys)  # [orders, batch, positions]
        is_first = ranks < count[:, None]
        measures = {
            "precision_at_k": (planted & is_first).sum(-1) / count,
            "mean_rank": ((ranks + 1) * planted).sum(-1) / count,
        }
        return {
            **mean_over_orders(orders, measures),
            f"{CHANCE}.precision_at_k": count / total,
            f"{CHANCE}.mean_rank": (total.double() + 1) / 2,
            "learnt": (classified.predicted == classified.batch.labels).double(),
        }

    def scores(self) -> Mapping[str, Score]:
        names = [*self.rankings, CHANCE]
        precision = proportions([f"{name}.precision_at_k" for name in names], main=True)
        mean_rank = means([f"{name}.mean_rank" for name in names], "count")
        learnt = proportions(["learnt"], main=True)
        return precision | mean_rank | learnt

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return the table `shortcut.judges`: agreement of the metrics of other tests with the known truth.

        It has a row for each variant and each metric in `BETTER` that another test of the run measured on at least
        two rankings of this test. A variant is the name shared by checkpoints that differ only in the seed. Columns:

        - `metric`, such as `rationale.comprehensiveness`, and `better`, whether `higher` or `lower` values are better;
        - `rankings`: number of the rankings on which both the metric and precision at k were measured;
        - `texts`: number of texts, summed over seeds, in which neither of the two is nan for any of these rankings;
        - `tau`: Kendall's τ_b over the rankings, between the mean over texts of the metric and of precision at k; the
          sign of a metric whose lower values are better is reversed, so that 1 is full agreement; mean over seeds,
          with its bootstrap interval over texts;
        - `reachable`: highest τ_b that a metric without ties between rankings can have; it is below 1 if precision at
          k has ties;
        - `first`: share of the best rankings by the metric that are also best by precision at k; mean over bootstrap
          draws and seeds. There are several best rankings only if they tie;
        - `best` and `truth`: names of the best rankings by the metric, and by precision at k.

        If a ranking has several numbered columns, such as `fraction_1` of random orders, their mean is used. The table
        shows whether a metric prefers rankings that find the planted words. It says nothing about the order of the
        other words, which precision at k ignores: the ranking `planted` has them in random order, so a metric of the
        whole order may rightly prefer another ranking that finds all planted words. Nor does it show that a metric is
        right where decisions depend on many words. Over few rankings τ has few possible values, and rankings that all
        find the planted words cannot be told apart. If the shortcut is not learnt, the truth is unknown.
        """
        self._warn_of_classifiers_that_did_not_learn(results)
        variants = by_variant(results)
        rows = []
        for variant, seeds in variants.items():
            for row in judge(seeds, list(self.rankings)):
                rows.append({"variant": variant, **row})
        if not rows:
            return {}
        main = ["metric", "tau", "reachable", "first", "best"]
        if len(variants) > 1:
            main = ["variant", *main]
        units: dict[str, Unit] = dict.fromkeys(("tau", "reachable", "first"), "fraction")
        return {f"{self.name}.judges": Table(pd.DataFrame(rows), units, main=tuple(main))}

    def _warn_of_classifiers_that_did_not_learn(self, results: Sequence[CheckpointResult]) -> None:
        self._not_learnt = {}
        for result in results:
            accuracy = result.scores[f"{self.name}.learnt"].value
            if not accuracy >= LEARNT:
                self._not_learnt[result.name] = accuracy
        if not self._not_learnt:
            return
        accuracies = ", ".join(f"{name} ({value:.1%})" for name, value in self._not_learnt.items())
        warn(
            f"Shortcut not learnt: accuracy on planted texts is below {LEARNT:.0%} for {accuracies}. The planted words "
            "are not all that these classifiers decide by. Train longer, or raise "
            f"{setting('data.shortcut.share')}; only an encoder that reads the order of words learns a pair."
        )

    def audit(self) -> Mapping[str, object]:
        """Return the accuracies on planted texts that are below `LEARNT`, by checkpoint."""
        return {"not_learnt": self._not_learnt}


def judge(results: Sequence[CheckpointResult], rankings: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yield a row of the table `shortcut.judges` for each metric; see `Shortcut.tables`.

    Args:
        results: Results of checkpoints that differ only in the seed.
        rankings: Names of the rankings with a precision at k.
    """
    names = [str(column) for column in results[0].values]
    for metric, columns in metric_columns(names, rankings).items():
        sign = _direction(metric)
        if not sign or len(columns) < 2:
            continue
        texts = 0
        means = []
        tau_of_seeds = []
        first_of_seeds = []
        for result in results:
            values = _judged_values(result, columns, sign)
            tau_of_seeds.append(resample(agreement, values, "fraction"))
            first_of_seeds.append(resample(finds_best, values, "fraction"))
            defined = values[~np.isnan(values).any(axis=1)]
            texts += len(defined)
            means.append(defined.mean(axis=0))
        tau = pool_seeds(tau_of_seeds)
        first = pool_seeds(first_of_seeds).draws
        by_metric, by_truth = np.split(np.mean(means, axis=0), 2)
        is_untied = _signs(by_truth[None]) != 0
        yield {
            "metric": metric,
            "better": "higher" if sign > 0 else "lower",
            "rankings": len(columns),
            "texts": texts,
            **tau.columns("tau"),
            "reachable": float(np.sqrt(is_untied.mean())),
            "first": float(np.nanmean(first)) if np.isfinite(first).any() else np.nan,
            "best": _best(by_metric, list(columns)),
            "truth": _best(by_truth, list(columns)),
        }


def _direction(metric: str) -> int:
    """Return 1 if higher values of a metric are better, -1 if lower ones are, 0 if it judges no ranking."""
    for pattern, sign in BETTER.items():
        if fnmatchcase(metric, pattern):
            return sign
    return 0


def _judged_values(result: CheckpointResult, columns: Mapping[str, Sequence[str]], sign: int) -> Floats:
    """Return a metric of all rankings, and then their precision at k, `[texts, 2 · rankings]`; higher is better.

    Args:
        result: Result of a checkpoint.
        columns: Columns of the metric by ranking.
        sign: Direction of the metric.
    """
    values = []
    for names in columns.values():
        values.append(sign * result.values[list(names)].mean(axis=1, skipna=False))
    for ranking in columns:
        values.append(result.values[f"{Shortcut.name}.{ranking}.precision_at_k"])
    return np.stack(values, axis=1)


def metric_columns(columns: Sequence[str], rankings: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """Return the columns of each metric `<test>.<measure>` by ranking, from names `<test>.<ranking>.<measure>`.

    Args:
        columns: Names of columns of all tests; those of this test and those without a ranking are left out.
        rankings: Names of rankings.
    """
    names = "|".join(map(re.escape, sorted(rankings, key=len, reverse=True)))
    pattern = re.compile(rf"(?!{Shortcut.name}\.)([^.]+)\.({names})\.(.+?)(?:_\d+)?")
    metrics: dict[str, dict[str, list[str]]] = {}
    for column in columns:
        match = pattern.fullmatch(column)
        if match:
            test, ranking, measure = match.groups()
            metrics.setdefault(f"{test}.{measure}", {}).setdefault(ranking, []).append(column)
    return metrics


def agreement(values: Floats, weights: Floats) -> Floats:
    """Return Kendall's τ_b over rankings, between the means over texts of two measures, `[draws]`.

    Args:
        values: One measure of all rankings, then the other, `[texts, 2 · rankings]`.
        weights: How often each text was drawn, `[draws, texts]`.

    Returns:
        τ_b; nan if one measure is the same for all rankings.
    """
    one_means, other_means = np.split(column_means(values, weights), 2, axis=1)
    one = _signs(one_means)
    other = _signs(other_means)
    untied = (one**2).sum(1) * (other**2).sum(1)
    return ratio((one * other).sum(1), np.sqrt(untied))


def finds_best(values: Floats, weights: Floats) -> Floats:
    """Return the share of the rankings with the highest first measure that also have the highest second, `[draws]`.

    Args:
        values: As in `agreement`; higher is better in both.
        weights: As in `agreement`.
    """
    one_means, other_means = np.split(column_means(values, weights), 2, axis=1)
    is_best = one_means >= one_means.max(axis=1, keepdims=True) - TIE
    is_truly_best = other_means >= other_means.max(axis=1, keepdims=True) - TIE
    return ratio((is_best & is_truly_best).sum(axis=1), is_best.sum(axis=1))


def _signs(means: Floats) -> Floats:
    """Return the sign of the difference of each pair of rankings, `[draws, pairs]`; 0 for ties."""
    one, other = np.triu_indices(means.shape[1], 1)
    apart = means[:, one] - means[:, other]
    return np.where(np.abs(apart) > TIE, np.sign(apart), 0.0)


def _best(means: Floats, rankings: Sequence[str]) -> str:
    best = [name for name, mean in zip(rankings, means, strict=True) if mean >= means.max() - TIE]
    return ", ".join(best)
