"""Results of the fidelity tests for each checkpoint, and tables that compare variants over texts and seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from metrics.bootstrap import difference, holm, p_units, pooled, ratio
from results import Estimate, Floats, Table, Unit, numbers


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
    """Group results by variant, the name shared by checkpoints that differ only in the seed.

    Variants, and the checkpoints of a variant, keep the order of `results`.
    """
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


def column_means(values: Floats, weights: Floats) -> Floats:
    """Return the mean of each column in each draw, `[draws, columns]`; nan for a draw of no text.

    Args:
        values: Values of the texts, `[texts, columns]`.
        weights: Number of times that each text was drawn, `[draws, texts]`.
    """
    return ratio(weights @ values, weights.sum(axis=1, keepdims=True))


def fidelity_table(results: Sequence[CheckpointResult]) -> Table:
    """Return a table of all scores, one row per checkpoint.

    Columns: `checkpoint`, `variant` and `seed`; `texts` and `skipped`, the numbers of tested and of
    skipped texts; and each score with the ends of its interval, `<score>.low` and `<score>.high`.
    Missing and undefined scores are nan.
    """
    rows = []
    for result in results:
        texts = int(result.tested.sum())
        row: dict[str, object] = {"checkpoint": result.name, "variant": result.variant, "seed": result.seed}
        row |= {"texts": texts, "skipped": len(result.values) - texts}
        rows.append(row | numbers(result.scores))
    units = {name: score.unit for result in results for name, score in result.scores.items()}
    return Table(pd.DataFrame(rows), units)


def comparison_table(results: Sequence[CheckpointResult]) -> Table:
    """Return a table that compares the variants with the first variant, one row per score and variant.

    A variant is the name shared by checkpoints that differ only in the seed. Columns:

    - `mean`: mean of the score over the seeds of the variant; `low` and `high`: its bootstrap interval
      over texts;
    - `sd`: standard deviation over the seeds; `seeds`: their number;
    - `difference`: mean minus the mean of the first variant, with its interval `difference.low` and
      `difference.high` and the p-value `p`; both variants use the same resamples of the texts;
    - `p_holm`: `p` after Holm's correction for the number of variants compared on the score.

    `difference`, its interval, `p` and `p_holm` are nan for the first variant.
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
    of_p = p_units(frame["p"], least_p(results))
    return Table(frame, {"mean": units, "difference": units, "p": of_p, "p_holm": of_p}, interval="mean")


def least_p(results: Sequence[CheckpointResult]) -> float:
    """Return the smallest p-value of the differences between the scores, by the number of their bootstrap draws."""
    return 2 / (1 + max(len(score.draws) for result in results for score in result.scores.values()))


def summary_table(results: Sequence[CheckpointResult], first: Sequence[str] = ()) -> Table:
    """Return a table of the mean scores, one row per score and one column per variant.

    A variant is the name shared by checkpoints that differ only in the seed. Its column has the mean
    over these seeds; the ends of the bootstrap interval are in the columns `<variant>.low` and
    `<variant>.high`.

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
    """Return, for each variant, the mean of every score over its seeds, with a bootstrap interval.

    A variant is the name shared by checkpoints that differ only in the seed. The names of the means are
    `<variant>.<score>`, or `<score>` alone for the first variant.
    """
    found = by_score(results)
    scores: dict[str, Estimate] = {}
    for variant in by_variant(results):
        prefix = "" if variant == results[0].variant else f"{variant}."
        scores |= {f"{prefix}{name}": _mean(seeds[variant]) for name, seeds in found.items() if variant in seeds}
    return scores


def by_score(results: Sequence[CheckpointResult]) -> dict[str, dict[str, list[Estimate]]]:
    """Return the estimates of each score by variant: a mapping from scores to variants to lists.

    A variant is the name shared by checkpoints that differ only in the seed; its list has one estimate
    per seed. Estimates that are nan are left out, unless all estimates of the list are nan.
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
