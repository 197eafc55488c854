"""Results of the fidelity tests for each checkpoint, and tables that compare variants over texts and seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from metrics.bootstrap import difference, holm, pooled
from results import Estimate, Table, Unit, numbers


@dataclass(frozen=True, eq=False)
class CheckpointResult:
    """Measurements and scores of one checkpoint.

    Attributes:
        name: Name of the checkpoint, as in `Checkpoint`.
        variant: Name shared by checkpoints that differ only in the seed.
        seed: Seed of the training run; -1 if unknown.
        classes: Number of classes.
        positive: Class whose F1 is reported; None for the mean over the classes.
        values: One row per test text, by its index in the split; columns are `<test>.<column>`, nan for skipped texts.
        scores: Estimates by `<test>.<score>`.
    """

    name: str
    variant: str
    seed: int
    classes: int
    positive: int | None
    values: pd.DataFrame
    scores: Mapping[str, Estimate]

    def columns(self, test: str) -> pd.DataFrame:
        """Return the measurements of a test, one row per text; columns are named without the prefix `<test>.`."""
        return self.values.filter(regex=rf"^{test}\.").rename(columns=lambda column: column.removeprefix(f"{test}."))

    @property
    def tested(self) -> "pd.Series[bool]":
        """Bool for each text, True if at least one test has a value for it."""
        return self.values.filter(like=".").notna().any(axis=1)


def by_variant(results: Sequence[CheckpointResult]) -> dict[str, list[CheckpointResult]]:
    """Group results by variant; variants and checkpoints keep the order of `results`."""
    variants: dict[str, list[CheckpointResult]] = {}
    for result in results:
        variants.setdefault(result.variant, []).append(result)
    return variants


def over_seeds(results: Sequence[CheckpointResult], test: str) -> dict[str, pd.DataFrame]:
    """Return the measurements of a test by variant, with the checkpoints of all seeds in one frame.

    A variant is the name shared by checkpoints that differ only in the seed. Its frame has the rows of
    its checkpoints one after another: one row per checkpoint and test text, nan for skipped texts.

    Args:
        results: Results of all checkpoints.
        test: Name of the test.
    """
    return {variant: pd.concat([one.columns(test) for one in ours]) for variant, ours in by_variant(results).items()}


def fidelity_table(results: Sequence[CheckpointResult]) -> Table:
    """Return one row per checkpoint: the number of tested and of skipped texts, and all scores, nan if missing."""
    rows = []
    for result in results:
        texts = int(result.tested.sum())
        row: dict[str, object] = {"checkpoint": result.name, "variant": result.variant, "seed": result.seed}
        row |= {"texts": texts, "skipped": len(result.values) - texts}
        rows.append(row | numbers(result.scores))
    units = {name: score.unit for result in results for name, score in result.scores.items()}
    return Table(pd.DataFrame(rows), units)


def comparison_table(results: Sequence[CheckpointResult]) -> Table:
    """Return one row per score and variant: the mean over seeds, and its difference from the first variant.

    `mean` is over the seeds of the variant, `sd` the standard deviation over them, `seeds` their
    number. `low` and `high` are the bootstrap interval of `mean` over texts. `difference` has its own
    interval and the p-value `p`; both variants use the same resamples of the texts. `p_holm` is `p`
    after Holm's correction for the number of variants compared on the score. The columns of the
    difference are nan for the first variant.
    """
    rows: list[dict[str, object]] = []
    units: list[Unit] = []
    for score, variants in by_score(results).items():
        means = {variant: pooled(seeds) for variant, seeds in variants.items()}
        first = means.get(results[0].variant)
        nothing = Estimate(math.nan, math.nan, math.nan, unit=_unit(variants), p=math.nan)
        against = [difference(mean, first) if first and mean is not first else nothing for mean in means.values()]
        adjusted = holm([math.nan if apart.p is None else apart.p for apart in against])
        for (variant, seeds), apart, p in zip(variants.items(), against, adjusted.tolist(), strict=True):
            names = {"score": score, "variant": variant, "seeds": len(seeds)}
            rows.append(names | means[variant].named("mean") | apart.named("difference") | {"p_holm": p})
            units.append(nothing.unit)
    short = {"mean.low": "low", "mean.high": "high", "mean.sd": "sd", "difference.p": "p"}
    frame = pd.DataFrame(rows).rename(columns=short)
    return Table(frame, {"mean": units, "difference": units, "p": "p", "p_holm": "p"}, interval="mean")


def summary_table(results: Sequence[CheckpointResult], first: Sequence[str] = ()) -> Table:
    """Return one row per score and one column per variant: the mean over seeds, with its interval.

    The ends of the interval are in the columns `<variant>.low` and `<variant>.high`.

    Args:
        results: Results of all checkpoints.
        first: Names of the scores in the first rows.
    """
    scores = by_score(results)
    found = {name: scores[name] for name in dict.fromkeys((*first, *scores))}
    rows = [
        {"score": score} | numbers({variant: _mean(seeds) for variant, seeds in variants.items()})
        for score, variants in found.items()
    ]
    units, names = [_unit(variants) for variants in found.values()], by_variant(results)
    # For one variant it repeats the scores.
    return Table(pd.DataFrame(rows), dict.fromkeys(names, units), answer=("score", *names) if len(names) > 1 else ())


def result_scores(results: Sequence[CheckpointResult]) -> dict[str, Estimate]:
    """Return the mean over seeds of every score.

    Names are `<variant>.<score>`, or `<score>` alone for the first variant.
    """
    found = by_score(results)
    scores: dict[str, Estimate] = {}
    for variant in by_variant(results):
        prefix = "" if variant == results[0].variant else f"{variant}."
        scores |= {f"{prefix}{name}": _mean(seeds[variant]) for name, seeds in found.items() if variant in seeds}
    return scores


def by_score(results: Sequence[CheckpointResult]) -> dict[str, dict[str, list[Estimate]]]:
    """Return the estimates of all seeds, by score and then by variant.

    Seeds whose estimate is nan are left out, unless all seeds of the variant are nan.
    """
    found: dict[str, dict[str, list[Estimate]]] = {}
    for variant, ours in by_variant(results).items():
        for name in dict.fromkeys(name for result in ours for name in result.scores):
            seeds = [result.scores[name] for result in ours if name in result.scores]
            found.setdefault(name, {})[variant] = [one for one in seeds if not math.isnan(one.value)] or seeds
    return found


def _unit(variants: Mapping[str, Sequence[Estimate]]) -> Unit:
    return next(iter(variants.values()))[0].unit


def _mean(seeds: Sequence[Estimate]) -> Estimate:
    return replace(pooled(seeds), sd=None)
