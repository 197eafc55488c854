"""Results of classifiers that are written out, and their numbers by loops."""

import numpy as np
import pandas as pd
from scipy.stats import norm

from attention_probing.fidelity.contract import CheckpointResult
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.draws import resamples
from attention_probing.metrics.seeds import pool_seeds
from attention_probing.metrics.statistics import mean, median
from attention_probing.results import Estimate
from tests.fidelity.tiny import Described

TEXTS = 40
CLASSES_OF_TEXTS = np.arange(TEXTS) % 2


def result(variant: str, seed: int, gain: float, *, skipped: int = 3, extra: bool = False) -> CheckpointResult:
    """Values that differ by a gain; the first texts are too short."""
    common = np.random.default_rng(0).normal(size=TEXTS)
    spread = gain + common + 0.3 * np.random.default_rng([seed, len(variant)]).normal(size=TEXTS)
    spread[:skipped] = np.nan
    frame = pd.DataFrame({"words": 5.0, "correct": 1.0, "single_token.spread": spread, "erasure.x": np.nan})
    frame = frame.assign(gold=CLASSES_OF_TEXTS, predicted=CLASSES_OF_TEXTS)
    values = spread[:, None]
    scores = {
        "single_token.spread": resample(mean, values, "ratio"),
        "erasure.middle": resample(median, values, "fraction"),
    }
    if extra:
        scores["adversary.max_jsd"] = resample(mean, np.abs(values), "nats")
    return CheckpointResult(f"{variant}, seed {seed}", variant, seed, frame, scores)


SEVERAL = [
    result("base", 0, 0.0, extra=True),
    result("tying", 0, 0.9),
    result("base", 1, 0.1, extra=True),
    result("mlm", 0, 0.05, extra=True),
    result("tying", 1, 1.1),
    result("tying", 2, 1.0),
]


def slow_ends(draws: np.ndarray, tail: float = 0.025) -> list[float]:
    """Ends of the interval that leaves a tail of the draws, and the empty subset, beyond each end."""
    beyond = int(tail * (1 + len(draws)) + 1e-9) - 1
    ascending = sorted(draws.tolist())
    return [ascending[beyond], ascending[-1 - beyond]]


def level_tail(texts: int) -> float:
    """Tail of a number that is not compared, whose interval is wider for few texts."""
    return float(norm.sf(1.959964 * (1 + 1.5 / texts)))


def over_texts_and_seeds(seeds: list[CheckpointResult]) -> Estimate:
    """Mean spread over texts and seeds, from the values of the texts."""
    columns = [one.values["single_token.spread"].to_numpy()[:, None] for one in seeds]
    return pool_seeds([resample(mean, column, "ratio") for column in columns])


def slow_means(seeds: list[CheckpointResult]) -> np.ndarray:
    """Mean spread of each resample over all seeds of a variant: the texts are drawn once for all."""
    rows = []
    for row in np.concatenate(list(resamples(TEXTS))).astype(int):
        picks = [text for text in range(3, TEXTS) for _ in range(row[text])]
        rows.append(np.mean([one.values["single_token.spread"].to_numpy()[picks].mean() for one in seeds]))
    return np.array(rows)


JUDGED_RANKINGS = ("random", "attention", "file.v2")
GAINS = {"random": 0.0, "attention": 0.4, "file.v2": -0.3}


JUDGED = [
    Described("soft", JUDGED_RANKINGS, {}),
    Described("rationale", JUDGED_RANKINGS, {"sufficiency": "↓", "naopc": "↑", "auprc": "↑"}),
]


def of_rankings(variant: str, seed: int) -> CheckpointResult:
    """Values of three rankings that differ by a gain; `auprc` is undefined, and `soft.only` is of attention alone."""
    frame = pd.DataFrame(index=range(TEXTS))
    for ranking, gain in GAINS.items():
        for measure in ("sufficiency", "naopc"):
            random = np.random.default_rng([seed, len(ranking), len(measure), len(variant)])
            frame[f"rationale.{ranking}.{measure}"] = gain + random.normal(size=TEXTS) / 3
    frame["rationale.attention.aopc"] = 0.5  # without a direction
    frame["soft.attention.only"] = np.arange(TEXTS, dtype=float)
    frame["soft.other.only"] = 0.0  # of no ranking
    scores = {name: resample(mean, frame[[name]], "fraction") for name in map(str, frame)}
    nowhere = Estimate(np.nan, np.nan, np.nan, unit="fraction", draws=np.full(1000, np.nan))
    scores |= {f"rationale.{ranking}.auprc": nowhere for ranking in JUDGED_RANKINGS}
    frame = frame.assign(gold=CLASSES_OF_TEXTS, predicted=CLASSES_OF_TEXTS)
    return CheckpointResult(f"{variant}, seed {seed}", variant, seed, frame, scores)


RESULTS = [of_rankings("base", 0), of_rankings("base", 1), of_rankings("tying", 0)]
MAIN = ("rationale.attention.sufficiency", "rationale.attention.naopc", "rationale.attention.auprc")


def slow(variant: str, ranking: str, measure: str) -> tuple[float, np.ndarray]:
    """Mean over texts and seeds, and that of each resample."""
    values = np.mean(
        [one.values[f"rationale.{ranking}.{measure}"] for one in RESULTS if one.variant == variant], axis=0
    )
    weights = np.concatenate(list(resamples(TEXTS)))
    return values.mean(), weights @ values / weights.sum(1)


def over_seeds_of(variant: str, ranking: str, measure: str) -> Estimate:
    """Mean over texts and seeds, from the values of the texts."""
    column = f"rationale.{ranking}.{measure}"
    return pool_seeds([resample(mean, one.values[[column]], "fraction") for one in RESULTS if one.variant == variant])


def slow_p(apart: np.ndarray) -> float:
    return min(1.0, 2 * (1 + int(min((apart <= 0).sum(), (apart >= 0).sum()))) / (1 + len(apart)))
