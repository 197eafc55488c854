"""Words masked in the order of a ranking and models trained anew, against lists and loops over single texts."""

import math
import re
from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from attention_probing.corpora.splits import SPLITS
from attention_probing.datamodules import TextBatch
from attention_probing.fidelity.checkpoints import Checkpoint
from attention_probing.fidelity.classified import classify
from attention_probing.fidelity.recipe import Recipe
from attention_probing.fidelity.roar import Roar, relative_area
from attention_probing.metrics.seeds import mean_over_seeds
from attention_probing.results import Curves, UserError
from tests.fidelity import tiny
from tests.fidelity.tiny import measurements
from tests.fidelity.trained import (
    CPU,
    Checkpoints,
    Data,
    checkpoint_of,
    config_of,
    refuse_training,
    result_of,
    texts_in,
)

SHARES = (0, 0.3, 0.6, 1)
PERCENTS = (0, 30, 60, 100)
OPTIONS: dict[str, Any] = {"shares": SHARES, "rankings": ("random", "input_x_gradient")}
RANDOM = (0.82, 0.81, 0.80, 0.79, 0.77, 0.75, 0.72, 0.68, 0.63, 0.57, 0.50)
MEASURE = (0.82, 0.78, 0.75, 0.72, 0.70, 0.67, 0.64, 0.61, 0.58, 0.54, 0.50)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """The texts, with a cache of their own; one of train has a single word."""
    return texts_in(tmp_path_factory.mktemp("roar"), "good\tfine\n")


@pytest.fixture(scope="module")
def checkpoints(data: Data) -> Checkpoints:
    return [checkpoint_of(data, config_of(seed)) for seed in (0, 1)]


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
    assert relative_area(np.array(RANDOM), np.array([0.99] * 10 + [0.5]), percents) == -1
    assert np.isnan(relative_area(np.full(11, 0.5), np.array(MEASURE), percents))


def test_intervals_over_seeds_need_three_seeds_that_differ() -> None:
    values = [0.1, 0.25, 0.2, 0.4, 0.32]
    found = mean_over_seeds(values, "ratio")
    assert found.unit == "ratio"
    assert found.value == pytest.approx(sum(values) / 5)
    assert found.sd == pytest.approx(np.std(values, ddof=1))
    margin = 2.776445 * np.std(values, ddof=1) / 5**0.5  # Student's t of 4 degrees
    assert found.interval == pytest.approx((found.value - margin, found.value + margin), rel=1e-6)
    for few in (values[:2], [0.2, 0.2, 0.2], [0.1, math.nan, 0.3]):
        assert np.isnan(mean_over_seeds(few, "ratio").interval).all()


Masks = dict[str, list[list[bool]]]
"""For each split and text, the tokens that are masked."""


def importance(checkpoint: Checkpoint, text: TextBatch, ranking: str, seed: int, data: Data) -> list[float]:
    """Importance of each token of one text, or the random numbers that rank them."""
    model = checkpoint.model
    if ranking == "random":
        found = classify(checkpoint, text, seed=seed, vocabulary=data.vocabulary)[1]
        assert found is not None
        return found.noise("ranking", 1)[0, 0].tolist()
    output = model(text)
    embedded = output.embedded.detach().requires_grad_()
    logits = model(text, embedded=embedded, imposed={"word": output.levels["word"].weights.detach()}).logits.double()[0]
    (gradient,) = torch.autograd.grad(logits.softmax(-1)[logits.argmax()], embedded)
    return [
        abs(float((embedded[0, place].detach() * gradient[0, place]).sum())) for place in range(text.tokens.size(1))
    ]


def slow_masks(checkpoint: Checkpoint, data: Data, ranking: str, percent: int, before: Masks, recipe: Recipe) -> Masks:
    """The masks at a percentage, text by text: the words that are masked already, then the most important others."""
    found: Masks = {}
    for number, split in enumerate(SPLITS):
        found[split] = []
        for text, gone in enumerate(before[split]):
            batch = data.splits[split][[text]]
            tokens = [data.vocabulary.mask if one else token for one, token in zip(gone, batch.tokens[0], strict=True)]
            batch = replace(batch, tokens=torch.tensor([tokens]))
            words = batch.words[0].nonzero().flatten().tolist()
            wanted = [place for place in words if gone[place]]
            if len(words) > 1:
                values = importance(checkpoint, batch, ranking, recipe.training_seed + number, data)
                wanted += sorted((place for place in words if not gone[place]), key=lambda place: -values[place])
            else:
                wanted = words
            kept = wanted[: math.floor(len(words) * percent / 100 + 1e-9)]
            found[split].append([place in kept for place in range(batch.tokens.size(1))])
    return found


def nothing(data: Data) -> Masks:
    return {split: [[False] * int(length) for length in data.splits[split].lengths] for split in SPLITS}


def retrained(recipe: Recipe, masks: Masks) -> tuple[Checkpoint, list[int]]:
    """A classifier trained on texts with these masks, and its decisions on test, text by text."""
    data = copy(recipe.training_data)
    data.splits = {}
    for split in SPLITS:
        texts = data.splits[split] = copy(recipe.data.splits[split])
        flat = [one for text in masks[split] for one in text]
        texts._tokens = np.array(
            [data.vocabulary.mask if one else int(t) for one, t in zip(flat, texts._tokens, strict=True)], np.int32
        )
    model = recipe.checkpoint.make_untrained(data, recipe.training_seed)
    best = recipe.fit(model, "val_f1", "max", datamodule=data)
    model.load_state_dict(best.state)
    model.eval().requires_grad_(False)
    test = data.splits["test"]
    decisions = [int(model(test[[text]]).logits.argmax()) for text in range(len(test))]
    return replace(recipe.checkpoint, model=model), decisions


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("ranking", ["random", "input_x_gradient"])
def test_masks_and_decisions_are_those_of_a_loop_over_texts(
    checkpoints: Checkpoints, data: Data, recursive: bool, ranking: str
) -> None:
    test = begun(checkpoints[:1], data, recursive=recursive, rankings=[ranking])
    correct = result_of(test, checkpoints[0], data).columns("roar")
    recipe = recipe_of(checkpoints[0], data)
    gold = data.splits["test"].labels.tolist()
    model, before = checkpoints[0], nothing(data)
    for percent in PERCENTS[1:]:
        masks = slow_masks(model, data, ranking, percent, before, recipe)
        last, decisions = retrained(recipe, masks)
        expected = [float(own == one) for own, one in zip(decisions, gold, strict=True)]
        assert correct[f"{ranking}.correct_{percent}"].tolist() == expected
        if recursive:
            for split in SPLITS:  # what is masked stays masked
                pairs = zip(before[split], masks[split], strict=True)
                assert all(new >= old for was, now in pairs for old, new in zip(was, now, strict=True))
            model, before = last, masks
    assert test.audit() == {"trainings": 3, "cut_off": 3, "checkpoints_left_out": 0, "short_texts": 1}
    assert sum(map(sum, masks["train"])) == data.splits["train"].real.sum()


def test_a_killed_run_is_continued_and_nothing_is_trained_twice(
    checkpoints: Checkpoints, data: Data, test: Roar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = copy(data)
    own.cache = tmp_path
    with monkeypatch.context() as killed:
        refuse_training(killed, after=4)
        with pytest.raises(KeyboardInterrupt):
            begun(checkpoints[:2], own)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "roar").iterdir()}
    assert len(kept) == 4
    whole = begun(checkpoints[:2], own)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "roar").iterdir()}
    # Two of each of two rankings, and one without words, for each of two checkpoints.
    assert len(files) == whole.audit()["trainings"] == test.audit()["trainings"] == 10
    assert {path: files[path] for path in kept} == kept
    for checkpoint in checkpoints[:2]:
        expected = result_of(test, checkpoint, data)
        pd.testing.assert_frame_equal(result_of(whole, checkpoint, own).values, expected.values)
    refuse_training(monkeypatch)
    # Single rankings and checkpoints, in any order, find the same files.
    for checkpoint, ranking in product(checkpoints[1::-1], ("input_x_gradient", "random")):
        alone = begun([checkpoint], own, rankings=[ranking])
        columns = [f"{ranking}.correct_{percent}" for percent in PERCENTS]
        found = result_of(alone, checkpoint, own).columns("roar")
        assert found.equals(result_of(test, checkpoint, data).columns("roar")[columns])
    begun(checkpoints[:1], own, recursive=False, rankings=["random"])  # random words need no model
    for change in ({"recursive": False}, {"shares": (0, 0.4, 1)}, {"patience": 1}):
        with pytest.raises(KeyboardInterrupt):
            begun(checkpoints[:1], own, **change)
    assert sum(path.stat().st_size for path in files) < 10 * 5000


def test_scores_tables_and_figure_are_of_the_columns(test: Roar, checkpoints: Checkpoints, data: Data) -> None:
    results = [result_of(test, checkpoint, data) for checkpoint in checkpoints[:2]]
    tables = test.tables(results)
    areas = []
    for result in results:
        means = result.columns("roar").mean()
        random, ranked = ([means[f"{name}.correct_{percent}"] for percent in PERCENTS] for name in OPTIONS["rankings"])
        areas.append(racu(random, ranked, PERCENTS))
        assert result.scores["roar.input_x_gradient.racu"].value == pytest.approx(areas[-1])
    frame = tables["roar.racu"].frame
    assert frame["ranking"].tolist() == ["input_x_gradient"]
    assert frame["racu"].tolist() == pytest.approx([np.mean(areas)])
    assert frame[["racu.low", "racu.high"]].isna().all(axis=None)  # two seeds
    table = tables["roar"].frame
    assert table["masked"].tolist() == [*PERCENTS, *PERCENTS]
    figure = test.figures(results)["roar"]
    assert isinstance(figure, Curves)
    for name in OPTIONS["rankings"]:
        column = [np.mean([r.columns("roar")[f"{name}.correct_{p}"].mean() for r in results]) for p in PERCENTS]
        assert table[table["ranking"] == name]["accuracy"].tolist() == pytest.approx(column)
        x, y = figure.lines[name]
        assert x == list(map(float, PERCENTS))
        assert y == pytest.approx(column)
    # Share 0 is the checkpoint itself, and without words all rankings are the same.
    for result, checkpoint in zip(results, checkpoints, strict=False):
        values, texts = result.columns("roar"), data.splits["test"]
        own = [float(checkpoint.model(texts[[i]]).logits.argmax() == texts.labels[i]) for i in range(len(texts))]
        for name in OPTIONS["rankings"]:
            assert values[f"{name}.correct_0"].tolist() == own
        assert values["random.correct_100"].equals(values["input_x_gradient.correct_100"])


def test_hierarchical_classifiers_are_left_out_and_counted(data: Data) -> None:
    test = Roar()
    test.begin([tiny.checkpoint("han")], data, CPU, 0)
    assert test.audit() == {"trainings": 0, "cut_off": 0, "checkpoints_left_out": 1, "short_texts": 1}
    assert all(column.isnan().all() for column in measurements(test, tiny.classified("han")).values())


def test_epochs_and_patience_are_the_checkpoint_s(checkpoints: Checkpoints, data: Data) -> None:
    stop = {"class_path": "EarlyStopping", "init_args": {"patience": 4}}

    def recipe(trainer: object, patience: int | None = None) -> tuple[int, int]:
        checkpoint = replace(checkpoints[0], config={**checkpoints[0].config, "trainer": trainer})
        found = Roar(patience=patience)._recipe(checkpoint, data, CPU, 0)
        return found.max_epochs, found.patience

    assert recipe({"max_epochs": 9, "callbacks": [stop]}) == (9, 4)
    assert recipe({"max_epochs": 9, "callbacks": {**stop, "init_args": None}}) == (9, 3)
    assert recipe({"max_epochs": 9, "callbacks": None}) == (9, 9)
    assert recipe({"max_epochs": 9, "callbacks": [stop]}, patience=2) == (9, 2)
    with pytest.raises(UserError, match=r"roar: base, seed 0 was trained without a limit of epochs"):
        recipe({"max_epochs": -1})


def test_a_tokenizer_without_a_mask_token_is_refused(checkpoints: Checkpoints, data: Data) -> None:
    own = copy(data)
    own.vocabulary = replace(data.vocabulary, mask=None)
    with pytest.raises(
        UserError, match=r"roar replaces words by the mask token, but the tokenizer of the data has none"
    ):
        begun(checkpoints[:1], own)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shares": (0, 0.5)}, "roar: shares is [0, 0.5], but must ascend from 0 to 1 in whole percent"),
        ({"shares": (0, 0.5, 0.5, 1)}, "shares is [0, 0.5, 0.5, 1]"),
        ({"shares": (0, 0.005, 1)}, "shares is [0, 0.005, 1]"),
        ({"shares": ()}, "shares is []"),
        ({"rankings": ["random", "file:scores.jsonl"]}, "roar: rankings has file:scores.jsonl, but a file ranks"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        Roar(**options)
