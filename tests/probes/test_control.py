"""Control heads by their definition, and selectivity against two trainings and counts of one's own."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from attention_probing.commands import CONFIGS
from attention_probing.datamodules import DependencyDataModule
from attention_probing.measures.nested import ControlTask, behaviour, control_arcs, control_tree
from attention_probing.measures.trainings import result_of
from attention_probing.metrics.differences import paired_bootstrap
from attention_probing.probes import AttentionOnlyProbe, StructuralDistanceProbe
from tests.printed import share
from tests.trainers import changed, scored, trained

CONFIG = CONFIGS / "hewitt2019" / "control.yaml"
TYPES = [f"{stem}{ending}" for stem in ("dog", "Dog", "café", "_", "run", "x") for ending in range(500)]
RunConfig = Callable[..., tuple[Any, dict[str, Any], Path]]
MakeData = Callable[..., DependencyDataModule]


def test_a_type_has_one_of_three_behaviours_equally_often() -> None:
    counts = Counter(behaviour(word, 0) for word in TYPES)
    assert set(counts) == {"self", "first", "last"}
    assert all(abs(count / len(TYPES) - 1 / 3) < 0.04 for count in counts.values())


def test_behaviours_depend_on_the_form_and_the_seed_alone() -> None:
    for seed in (1, 10):
        agree = sum(behaviour(word, 0) == behaviour(word, seed) for word in TYPES)
        assert abs(agree / len(TYPES) - 1 / 3) < 0.04
    # For ever: a published number must be reproduced.
    found = [behaviour(word, 0) for word in ("the", "fox", "dogs", "coffee", ".")]
    assert found == ["last", "self", "last", "self", "self"]


@pytest.mark.parametrize("n", range(1, 9))
def test_control_heads_are_self_first_or_last(n: int) -> None:
    words = TYPES[7 * n : 8 * n]
    arcs, tree = control_arcs(words, 3), control_tree(words, 3)
    for place, word in enumerate(words, start=1):
        named = behaviour(word, 3)
        assert arcs[place - 1] == {"self": place, "first": 1, "last": n}[named]
        outer = place in (1, n)
        assert tree[place - 1] == (0 if outer or named == "self" else {"first": 1, "last": n}[named])


@pytest.mark.parametrize(
    ("probe", "control_heads", "scores"),
    [
        (AttentionOnlyProbe(0.3), control_arcs, ["uas"]),
        (StructuralDistanceProbe(ranks=(4,)), control_tree, ["uuas", "spearman_distance"]),
    ],
)
def test_selectivity_is_what_two_trainings_of_ones_own_say(
    probe: AttentionOnlyProbe | StructuralDistanceProbe,
    control_heads: Callable[[Sequence[str], int], list[int]],
    scores: list[str],
    make_data: MakeData,
) -> None:
    data = make_data(seed=0, hidden=(1,))
    experiment = changed(ControlTask(probe, max_epochs=4), patience=2, batches=1, seed=3)
    result, copies = scored(experiment, data), []
    for heads in (None, lambda words: control_heads(words, 3)):
        variant = data.variant(heads=heads)
        monitor, mode = probe.monitor
        found, best = trained(probe, variant, monitor=monitor, mode=mode, max_epochs=4, patience=2, seed=3)
        copies.append((best.epoch, result_of(found, variant, torch.device("cpu"))))
    (epochs, task), (control_epochs, control) = copies
    assert (result.audit["epochs"], result.audit["control_epochs"]) == (epochs, control_epochs)
    assert task.items is not None
    assert control.items is not None
    table = result.tables["selectivity"].frame.set_index("score")
    assert list(table.index) == scores
    for name in scores:
        for end in ("", ".low", ".high"):
            both = [result.numbers[f"{part}{name}{end}"] for part in ("", "control.")]
            np.testing.assert_array_equal(both, [one.numbers[f"{name}{end}"] for one in (task, control)])
        selectivity = "selectivity" if name == scores[0] else f"{name}.selectivity"
        assert result.numbers[selectivity] == task.numbers[name] - control.numbers[name]
        assert table.loc[name, "selectivity"] == result.numbers[selectivity]
        columns = [items[column] for items in (task.items, control.items) for column in task.ratios[name]]
        interval = paired_bootstrap(*columns)
        found_interval = result.numbers[f"{selectivity}.low"], result.numbers[f"{selectivity}.high"]
        np.testing.assert_array_equal(found_interval, (interval.low, interval.high))
    assert result.items is not None
    for name, (numerator, denominator) in result.ratios.items():
        found_score = result.items[numerator].sum() / result.items[denominator].sum()
        assert found_score == pytest.approx(result.numbers[name]), name
    # Where both count the same words, selectivity is a ratio too.
    expected = {*scores, *(f"control.{name}" for name in scores), *(["selectivity"] if scores == ["uas"] else [])}
    assert set(result.ratios) == expected
    splits = (data.splits["train"], data.splits["test"])
    train, test = ([split.words(item) for item in range(len(split))] for split in splits)
    seen = {word for words in train for word in words}
    shown = {name: share(result, name) for name in (scores[0], f"control.{scores[0]}", "selectivity")}
    sign = "+" * int(result.numbers["selectivity"] > 0)
    assert result.answer == (
        f"On 17 sentences the {scores[0]} of the probe is {shown[scores[0]]}; on the control task, with random "
        "governors by "
        f"word type, {shown['control.' + scores[0]]}; the selectivity is "
        f"{sign}{shown['selectivity'].replace('%', 'points')}."
    )
    assert result.audit["test_words"] == sum(map(len, test))
    assert result.audit["test_words_not_in_train"] == sum(word not in seen for words in test for word in words)


def test_the_shipped_config_builds_its_probe_and_writes_the_result(
    corpus: str, run_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ControlTask, "batches", 1)
    options = ("--model.max_epochs=1", f"--data.corpus={corpus}")
    _, found, folder = run_config("measure", f"--config={CONFIG}", *options)
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["model"]
    assert config["class_path"].endswith("ControlTask")
    assert config["init_args"]["probe"]["class_path"].endswith("AttentionOnlyProbe")
    assert found["experiment"] == "control"
    assert found["scores"]["selectivity"] == found["scores"]["uas"] - found["scores"]["control.uas"]
    assert found["audit"]["cut_off"] == 2
    assert pd.read_csv(folder / found["tables"]["selectivity"])["score"].tolist() == ["uas"]
    assert len(pd.read_parquet(folder / found["items"])) == 17
