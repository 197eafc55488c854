"""Words masked in the order of a ranking and models trained anew, against lists and loops over single texts."""

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from datamodules.corpus import SPLITS
from fidelity.checkpoints import Checkpoint
from fidelity.classified import ClassifiedBatch, classify
from fidelity.consistent_adversary import Recipe
from fidelity.roar import Chain, Roar, over_seeds, rank_words, relative_area, top_words
from fidelity.saliency import Saliency
from models import TextClassifier
from results import UserError
from tests.fidelity import tiny
from tests.fidelity.tiny import checkpoint_result, measurements
from tests.fidelity.trained import CPU, Checkpoints, Data, refuse_training, result_of, texts_in

SHARES = (0, 0.3, 0.6, 1)
PERCENTS = (0, 30, 60, 100)
OPTIONS: dict[str, Any] = {"shares": SHARES, "max_epochs": 2, "rankings": ("random", "input_x_gradient")}
RANDOM = (0.82, 0.81, 0.80, 0.79, 0.77, 0.75, 0.72, 0.68, 0.63, 0.57, 0.50)
MEASURE = (0.82, 0.78, 0.75, 0.72, 0.70, 0.67, 0.64, 0.61, 0.58, 0.54, 0.50)
Words = dict[str, list[list[bool]]]
"""For each split and text, the tokens that are masked."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """The texts, with a cache of their own; one of train has a single word."""
    folder = tmp_path_factory.mktemp("roar")
    texts_in(folder)
    with (folder / "train.tsv").open("a", encoding="utf-8") as file:
        file.write("good\tfine\n")
    found = Data(
        str(folder / "{split}.tsv"), positive="good", cache=str(folder / "stores"), delimiters=True, batch_size=7, seed=3
    )
    found.setup("test")
    return found


def begun(checkpoints: Checkpoints, data: Data, **options: Any) -> Roar:  # noqa: ANN401
    test = Roar(**OPTIONS | options)
    test.begin(checkpoints, data, CPU, 0)
    return test


@pytest.fixture(scope="module")
def test(checkpoints: Checkpoints, data: Data) -> Roar:
    return begun(checkpoints[:2], data)


def recipe_of(checkpoint: Checkpoint, data: Data) -> Recipe:
    return Recipe(checkpoint, data, CPU, 2, 2, 0)


def racu(random: Iterable[float], measure: Iterable[float], percents: Iterable[float] = range(0, 101, 10)) -> float:
    """RACU by trapezoids, one after the other."""
    random, measure, x = list(random), list(measure), list(percents)
    areas = [0.0, 0.0]
    for place, other in enumerate((measure, [random[-1]] * len(random))):
        for i in range(len(x) - 1):
            here, there = random[i] - other[i], random[i + 1] - other[i + 1]
            areas[place] += 0.5 * (x[i + 1] - x[i]) * (here + there)
    return min(1.0, max(-1.0, areas[0] / areas[1]))


def test_racu_is_the_published_area_between_the_curves() -> None:
    percents = list(range(0, 101, 10))
    found = relative_area(np.array([RANDOM, MEASURE]), np.array([MEASURE, RANDOM]), percents)
    assert found[0] == pytest.approx(0.243119, abs=1e-6)
    assert found.tolist() == pytest.approx([racu(RANDOM, MEASURE), racu(MEASURE, RANDOM)])
    short = relative_area(np.array(RANDOM[:-1]), np.array(MEASURE[:-1]), percents[:-1])
    assert float(short) == pytest.approx(0.339934, abs=1e-6)  # another grid is another number
    lowest = np.array([RANDOM[0], *[RANDOM[-1] - 0.1] * 9, RANDOM[-1]])
    assert relative_area(np.array(RANDOM), lowest, percents) == 1
    assert relative_area(np.array(RANDOM), np.array([0.9] * 10 + [0.5]), percents) == -1
    assert np.isnan(relative_area(np.full(11, 0.5), np.array(MEASURE), percents))


def test_intervals_over_seeds_are_bca_and_need_three_seeds() -> None:
    values = [0.1, 0.25, 0.2, 0.4, 0.32]
    found = over_seeds(values)
    assert found.value == pytest.approx(sum(values) / 5)
    assert found.sd == pytest.approx(np.std(values, ddof=1))
    # Bias and acceleration by hand, from the same resamples.
    rng = np.random.default_rng(0)
    means = np.sort(stats.bootstrap((values,), np.mean, method="percentile", random_state=rng).bootstrap_distribution)
    left_out = np.array([np.mean(np.delete(values, seed)) for seed in range(5)])
    apart = left_out.mean() - left_out
    acceleration = (apart**3).sum() / (6 * (apart**2).sum() ** 1.5)
    below = ((means < np.mean(values)).mean() + (means <= np.mean(values)).mean()) / 2
    bias = stats.norm.ppf(below)
    for quantile, end in ((0.025, found.low), (0.975, found.high)):
        shifted = bias + stats.norm.ppf(quantile)
        place = stats.norm.cdf(bias + shifted / (1 - acceleration * shifted))
        assert end == pytest.approx(np.quantile(means, place), abs=2e-3)
    for few in (values[:2], [0.2, 0.2, 0.2], [0.1, math.nan, 0.3]):
        assert np.isnan(over_seeds(few).interval).all()


def importance(model: TextClassifier, text: Any, ranking: str, seed: int) -> list[float]:  # noqa: ANN401 # a batch
    """Importance of each token of one text, or the random numbers that rank them."""
    if ranking == "random":
        found = [0.0] * text.tokens.size(1)
        words = text.words[0].nonzero().flatten().tolist()
        own = ClassifiedBatch.noise(_classified(model, text, seed), "ranking", 1)[0, 0]
        for place in words:
            found[place] = float(own[place])
        return found
    embedded = model(text).embedded.detach().requires_grad_()
    weights = {"word": model(text).levels["word"].weights.detach()}
    logits = model(text, embedded=embedded, imposed=weights).logits.double()[0]
    (gradient,) = torch.autograd.grad(logits.softmax(-1)[logits.argmax()], embedded)
    return [abs(float((embedded[0, place] * gradient[0, place]).sum())) for place in range(text.tokens.size(1))]


def _classified(model: TextClassifier, text: Any, seed: int) -> ClassifiedBatch:  # noqa: ANN401 # a batch
    checkpoint = Checkpoint(Path("x.ckpt"), "0", {}, "x", "x", model)
    found = classify(checkpoint, text, None, seed=seed, vocabulary=text.vocabulary)[1]
    assert found is not None
    return found
