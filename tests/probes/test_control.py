"""Control heads by their definition, and selectivity against two trainings and counts of one's own."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from datamodules import AttentionBatch, DependencyDataModule
from heads.experiment import DependencyExperiment
from metrics.bootstrap import paired_bootstrap
from probes import AttentionOnlyProbe
from probes.base import Sizes
from probes.control import ControlTask, behaviour, control_arcs, control_tree
from probes.head_selection import HeadSelectionProbe
from probes.nested import result_of, trained
from results import Estimate, Result
from tests.trainers import trainer

CONFIG = Path(__file__).parent.parent.parent / "configs" / "hewitt2019" / "control.yaml"
TYPES = [f"{stem}{ending}" for stem in ("dog", "Dog", "café", "_", "run", "x") for ending in range(500)]


class AlwaysFirst(HeadSelectionProbe):
    """Takes the first word for every head, whatever it is trained on."""

    experiment = "always_first"

    def build(self, sizes: Sizes) -> None:
        self.nothing = nn.Parameter(torch.zeros(()))

    def forward(self, batch: AttentionBatch) -> Tensor:
        scores = torch.zeros(*batch.heads.shape, batch.heads.size(1) + 1) + self.nothing
        scores[..., 1] = 1.0
        return scores


class AllUnderRoot(DependencyExperiment):
    """Stands for a probe of trees: it says that every word is a root, and scores by a mean that is no ratio."""

    experiment = "all_under_root"
    monitor = ("val_loss", "min")
    headline = "mean_share"

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(()))
        self.rows: list[tuple[int, int, int]] = []

    def cross_entropy(self, batch: AttentionBatch) -> Tensor:
        return torch.zeros(batch.heads.shape)

    def training_step(self, batch: AttentionBatch, batch_idx: int) -> Tensor:
        return self.nothing**2

    def validation_step(self, batch: AttentionBatch, batch_idx: int) -> None:
        self.log("val_loss", 1.0, batch_size=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())

    def test_step(self, batch: AttentionBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        for index, n, heads in zip(batch.index, batch.lengths, batch.heads, strict=True):
            if dataloader_idx == 1:
                self.rows.append((int(index), int((heads == 0).sum()), int(n)))

    def on_test_epoch_end(self) -> None:
        items = pd.DataFrame(sorted(self.rows), columns=["sentence", "roots", "all"])
        items.insert(1, "id", self.data.splits["test"].ids)
        share = items["roots"].sum() / items["all"].sum()
        mean = (items["roots"] / items["all"]).mean()
        self.result = Result(
            self.experiment,
            {name: Estimate(x, unit="fraction") for name, x in (("mean_share", mean), ("root_share", share))},
            items=items,
            ratios={"root_share": ("roots", "all")},
        )


def run(experiment: ControlTask, data: DependencyDataModule) -> Result:
    trainer().test(experiment, datamodule=data, verbose=False)
    assert experiment.result is not None
    return experiment.result


def test_a_type_has_one_of_three_behaviours_equally_often() -> None:
    counts = Counter(behaviour(word, 0) for word in TYPES)
    assert set(counts) == {"self", "first", "last"}
    assert all(abs(count / len(TYPES) - 1 / 3) < 0.04 for count in counts.values())


def test_behaviours_depend_on_the_form_and_the_seed_alone() -> None:
    def of(seed: int) -> list[str]:
        return [behaviour(word, seed) for word in TYPES]

    assert of(0) == of(0)
    agree = [sum(a == b for a, b in zip(of(0), of(seed), strict=True)) / len(TYPES) for seed in (1, 10)]
    assert all(abs(share - 1 / 3) < 0.04 for share in agree)
    capitals = [behaviour(f"Dog{place}", 0) == behaviour(f"dog{place}", 0) for place in range(500)]
    assert abs(sum(capitals) / 500 - 1 / 3) < 0.08
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


def test_the_control_of_trees_has_no_cycle_and_a_root() -> None:
    for n in range(1, 12):
        for start in range(0, 400, 13):
            heads = control_tree(TYPES[start : start + n], 0)
            assert 0 in heads
            for word in range(1, n + 1):
                steps = 0
                while word:
                    word, steps = heads[word - 1], steps + 1
                    assert steps <= 2


def test_selectivity_is_what_two_trainings_of_ones_own_say(data: DependencyDataModule) -> None:
    result = run(ControlTask(AttentionOnlyProbe(0.3), max_epochs=4, patience=2, batches=1, seed=3), data)
    own = {}
    for name, heads in {"task": None, "control": lambda words: control_arcs(words, 3)}.items():
        variant = data.variant(heads=heads)
        found = trained(
            AttentionOnlyProbe(0.3), variant, monitor="val_uas", mode="max", max_epochs=4, patience=2, seed=3
        )
        own[name] = found.epochs, result_of(found.probe, variant, torch.device("cpu"))
    (epochs, task), (control_epochs, control) = own["task"], own["control"]
    for end in ("", ".low", ".high"):
        assert result.numbers[f"uas{end}"] == task.numbers[f"uas{end}"]
        assert result.numbers[f"control.uas{end}"] == control.numbers[f"uas{end}"]
    assert result.numbers["selectivity"] == task.numbers["uas"] - control.numbers["uas"]
    assert task.items is not None
    assert control.items is not None
    interval = paired_bootstrap(
        task.items["correct"], task.items["scored"], control.items["correct"], control.items["scored"]
    )
    assert (result.numbers["selectivity.low"], result.numbers["selectivity.high"]) == (interval.low, interval.high)
    assert (result.audit["epochs"], result.audit["control_epochs"]) == (epochs, control_epochs)
    assert result.items is not None
    for name, (numerator, denominator) in result.ratios.items():
        found_score = result.items[numerator].sum() / result.items[denominator].sum()
        assert found_score == pytest.approx(result.numbers[name]), name
    assert set(result.ratios) == {"uas", "control.uas", "selectivity"}
    table = result.tables["selectivity"].frame
    assert list(table["score"]) == ["uas"]
    assert table.loc[0, "selectivity"] == result.numbers["selectivity"]


def test_the_control_is_trained_and_scored_on_control_heads(data: DependencyDataModule) -> None:
    result = run(ControlTask(AlwaysFirst(), max_epochs=1, patience=1, seed=2), data)
    test, train = data.splits["test"], data.splits["train"]
    gold = control = scored = unseen = 0
    seen = {word for item in range(len(train)) for word in train.words(item)}
    for item in range(len(test)):
        batch, words = test[[item]], test.words(item)
        unseen += sum(word not in seen for word in words)
        for place, word in enumerate(words):
            if not batch.punctuation[0, place]:
                scored += 1
                gold += int(batch.heads[0, place] == 1)
                named = behaviour(word, 2)
                control += named == "first" or (named == "self" and place == 0) or (named == "last" and len(words) == 1)
    assert result.numbers["uas"] == gold / scored
    assert result.numbers["control.uas"] == control / scored
    assert result.audit["test_words_not_in_train"] == unseen
    assert result.audit["test_words"] == int(test.lengths.sum())


def test_a_probe_of_trees_gets_trees_and_every_ratio_of_its_own(data: DependencyDataModule) -> None:
    result = run(ControlTask(AllUnderRoot(), max_epochs=1, patience=1, seed=2), data)
    test = data.splits["test"]
    shares = []
    for item in range(len(test)):
        words = test.words(item)
        shares.append((sum(head == 0 for head in control_tree(words, 2)), len(words)))
    by_hand = sum(roots for roots, _ in shares) / sum(n for _, n in shares)
    mean = sum(roots / n for roots, n in shares) / len(shares)
    assert result.numbers["control.root_share"] == by_hand
    assert result.numbers["control.mean_share"] == pytest.approx(mean)
    assert result.numbers["selectivity"] == result.numbers["mean_share"] - result.numbers["control.mean_share"]
    difference = result.numbers["root_share"] - result.numbers["control.root_share"]
    assert result.numbers["root_share.selectivity"] == difference
    table = result.tables["selectivity"].frame.set_index("score")
    assert list(table.index) == ["mean_share", "root_share"]
    low, high = table["selectivity.low"].to_numpy(float), table["selectivity.high"].to_numpy(float)
    assert np.isnan([low[0], high[0]]).all()  # no ratio, and nothing to resample
    assert low[1] <= difference <= high[1]
    assert set(result.ratios) == {"root_share", "control.root_share"}


@pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning")
@pytest.mark.filterwarnings("ignore:LightningCLI's args parameter is intended")
def test_the_shipped_config_builds_its_probe_and_writes_the_result(
    corpus: str, run_config: Callable[..., tuple[Any, dict[str, Any], Path]]
) -> None:
    options = ("--model.init_args.max_epochs=1", "--model.init_args.batches=1", f"--data.init_args.corpus={corpus}")
    cli, found, folder = run_config("test", f"--config={CONFIG}", *options)
    assert isinstance(cli.model, ControlTask)
    assert isinstance(cli.model.probe, AttentionOnlyProbe)
    assert found["experiment"] == "control"
    assert found["scores"]["selectivity"] == found["scores"]["uas"] - found["scores"]["control.uas"]
    assert found["audit"]["cut_off"] == 2
    assert pd.read_csv(folder / found["tables"]["selectivity"])["score"].tolist() == ["uas"]
    assert len(pd.read_parquet(folder / found["items"])) == 17
