"""The scores of all tests side by side: of every checkpoint, and of the variants that they are of."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from fidelity.base import Subject
from metrics.bootstrap import Resampled, difference, holm, pooled
from results import Estimate, Table, Unit

_SHORT = {"mean.low": "low", "mean.high": "high", "mean.sd": "sd", "difference.p": "p"}


def fidelity_table(subjects: Sequence[Subject]) -> Table:
    """A row for each checkpoint.

    Columns: `checkpoint, variant, seed, texts` (that were tested), `skipped` (that were too short), and every score as
    `<score>, <score>.low, <score>.high`; nan for what it was not tested by.
    """
    rows = []
    for subject in subjects:
        tested = subject.values.filter(like=".").notna().any(axis=1)  # of columns that belong to a test
        row: dict[str, object] = {
            "checkpoint": subject.name,
            "variant": subject.variant,
            "seed": subject.seed,
            "texts": int(tested.sum()),
            "skipped": int((~tested).sum()),
        }
        for name, score in subject.scores.items():
            row |= score.estimate.named(name)
        rows.append(row)
    units = {name: score.unit for subject in subjects for name, score in subject.scores.items()}
    return Table(pd.DataFrame(rows), units)


def comparison_table(subjects: Sequence[Subject]) -> Table:
    """A row for each score and variant.

    Columns: `score, variant, seeds, mean, low, high, sd`, the mean over the seeds, its interval and the standard
    deviation over them; and against the first variant, under the same resamples of the texts, `difference,
    difference.low, difference.high, p` and `p_holm`, adjusted for the variants of the score: nan in its own row. The
    intervals and the p-values are about the texts; how far other seeds would be is for `sd` to say.
    """
    variants = by_variant(subjects)
    rows: list[dict[str, object]] = []
    units: list[Unit] = []
    for score in dict.fromkeys(name for subject in subjects for name in subject.scores):
        found = {variant: _seeds(ours, score) for variant, ours in variants.items()}
        first = found[subjects[0].variant]
        tested = {variant: seeds for variant, seeds in found.items() if seeds}
        against = [difference(seeds, first) if first and seeds is not first else None for seeds in tested.values()]
        adjusted = holm([math.nan if apart is None or apart.p is None else apart.p for apart in against])
        for (variant, seeds), apart, p in zip(tested.items(), against, adjusted.tolist(), strict=True):
            mean = pooled(seeds)
            units.append(mean.unit)
            nothing = Estimate(math.nan, math.nan, math.nan, unit=mean.unit, p=math.nan)
            rows.append(
                {"score": score, "variant": variant, "seeds": len(seeds)}
                | mean.named("mean")
                | (apart or nothing).named("difference")
                | {"p_holm": p}
            )
    frame = pd.DataFrame(rows).rename(columns=_SHORT)
    return Table(frame, {"mean": units, "difference": units, "p": "p", "p_holm": "p"}, interval="mean")


def summary_table(subjects: Sequence[Subject]) -> Table:
    """A row for each score, a column for each variant: the mean over its seeds, with `.low` and `.high`."""
    variants = by_variant(subjects)
    rows, units = [], []
    for score in dict.fromkeys(name for subject in subjects for name in subject.scores):
        found = {variant: pooled(seeds) for variant, ours in variants.items() if (seeds := _seeds(ours, score))}
        row: dict[str, object] = {"score": score}
        for variant, mean in found.items():
            row |= replace(mean, sd=None).named(variant)
        rows.append(row)
        units.append(next(iter(found.values())).unit)
    return Table(pd.DataFrame(rows), dict.fromkeys(variants, units))


def result_scores(subjects: Sequence[Subject]) -> dict[str, Estimate]:
    """Every score: of each variant the mean over its seeds and the interval of that mean.

    Those of the first variant, which the others are compared with, go by their own names; the names of the others begin
    with the variant, as `tying.erasure.…`.
    """
    variants = by_variant(subjects)
    scores: dict[str, Estimate] = {}
    for variant, ours in variants.items():
        prefix = "" if variant == subjects[0].variant else f"{variant}."
        names = dict.fromkeys(name for subject in ours for name in subject.scores)
        scores |= {f"{prefix}{name}": replace(pooled(_seeds(ours, name)), sd=None) for name in names}
    return scores


def by_variant(subjects: Sequence[Subject]) -> dict[str, list[Subject]]:
    """The checkpoints of each variant, both in the order in which they were given."""
    variants: dict[str, list[Subject]] = {}
    for subject in subjects:
        variants.setdefault(subject.variant, []).append(subject)
    return variants


def _seeds(subjects: Sequence[Subject], score: str) -> list[Resampled]:
    """Of the seeds that have the score: some tests leave seeds out. Where none has it, what they have, undefined."""
    found = [subject.scores[score] for subject in subjects if score in subject.scores]
    return [one for one in found if not math.isnan(one.value)] or found
