"""The scores of all tests side by side: of every checkpoint, and of the variants that they are of."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from fidelity.base import Subject
from metrics.resampling import Estimate, Pooled, difference, pooled
from metrics.significance import PairedDifference, holm


def fidelity_table(subjects: Sequence[Subject]) -> pd.DataFrame:
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
        rows.append(row | _named(subject.scores))
    return pd.DataFrame(rows)


def comparison_table(subjects: Sequence[Subject]) -> pd.DataFrame:
    """A row for each score and variant.

    Columns: `score, variant, seeds, mean, low, high, sd`, the mean over the seeds, its interval and the standard
    deviation over them; and against the first variant, under the same resamples of the texts, `difference,
    difference_low, difference_high, p` and `p_holm`, adjusted for the variants of the score: nan in its own row. The
    intervals and the p-values are about the texts; how far other seeds would be is for `sd` to say.
    """
    variants = by_variant(subjects)
    rows: list[tuple[str | float, ...]] = []
    for score in dict.fromkeys(name for subject in subjects for name in subject.scores):
        found = {variant: _estimates(ours, score) for variant, ours in variants.items()}
        first = found[subjects[0].variant]
        tested = {variant: estimates for variant, estimates in found.items() if estimates}
        against = [
            difference(estimates, first) if first and estimates is not first else PairedDifference(*[math.nan] * 4)
            for estimates in tested.values()
        ]
        adjusted = holm([one.p for one in against])
        for (variant, estimates), apart, p in zip(tested.items(), against, adjusted.tolist(), strict=True):
            rows.append((score, variant, len(estimates), *pooled(estimates), *apart, p))
    columns = ["score", "variant", "seeds", "mean", "low", "high", "sd"]
    columns += ["difference", "difference_low", "difference_high", "p", "p_holm"]
    return pd.DataFrame(rows, columns=columns)


def summary_table(subjects: Sequence[Subject]) -> pd.DataFrame:
    """A row for each score, a column for each variant: the mean over its seeds, with `.low` and `.high`."""
    variants = by_variant(subjects)
    rows = []
    for score in dict.fromkeys(name for subject in subjects for name in subject.scores):
        found = {
            variant: pooled(_estimates(ours, score)) for variant, ours in variants.items() if _estimates(ours, score)
        }
        rows.append({"score": score, **_named(found)})
    return pd.DataFrame(rows)


def result_scores(subjects: Sequence[Subject]) -> dict[str, float]:
    """Every score with `.low` and `.high`: of each variant the mean over its seeds and the interval of that mean.

    Those of the first variant, which the others are compared with, go by their own names; the names of the others begin
    with the variant, as `tying.erasure.…`.
    """
    variants = by_variant(subjects)
    scores: dict[str, float] = {}
    for variant, ours in variants.items():
        prefix = "" if variant == subjects[0].variant else f"{variant}."
        names = dict.fromkeys(name for subject in ours for name in subject.scores)
        scores |= _named({f"{prefix}{name}": pooled(_estimates(ours, name)) for name in names})
    return scores


def by_variant(subjects: Sequence[Subject]) -> dict[str, list[Subject]]:
    """The checkpoints of each variant, both in the order in which they were given."""
    variants: dict[str, list[Subject]] = {}
    for subject in subjects:
        variants.setdefault(subject.variant, []).append(subject)
    return variants


def _estimates(subjects: Sequence[Subject], score: str) -> list[Estimate]:
    """Of the seeds that have the score: some tests leave seeds out. Where none has it, what they have, undefined."""
    found = [subject.scores[score] for subject in subjects if score in subject.scores]
    return [one for one in found if not math.isnan(one.value)] or found


def _named(estimates: Mapping[str, Estimate | Pooled]) -> dict[str, float]:
    """Value and interval of each by name."""
    return {
        f"{name}{end}": number
        for name, one in estimates.items()
        for end, number in (("", one.value), (".low", one.low), (".high", one.high))
    }
