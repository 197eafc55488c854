"""Codes whose length is known, and an online code computed sentence by sentence."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attention_probing.commands import CONFIGS
from attention_probing.datamodules import AttentionBatch, DependencyDataModule
from attention_probing.measures.nested import DescriptionLength, borders
from attention_probing.probes import AttentionOnlyProbe
from attention_probing.probes.frozen import Sizes
from attention_probing.probes.head_selection import HeadSelectionProbe
from attention_probing.results.errors import UserError
from tests.printed import share
from tests.trainers import changed, scored, trained

CONFIG = CONFIGS / "voita2020" / "mdl.yaml"
RunConfig = Callable[..., tuple[Any, dict[str, Any], Path]]


TO_ITS_OPTIMUM: dict[str, Any] = {"monitor": "val_loss", "mode": "min", "max_epochs": 2, "patience": 1, "seed": 4}


class Uniform(HeadSelectionProbe):
    """All candidates are alike to it; keeps which sentences each copy coded, by those that it was trained on."""

    experiment = "uniform"
    coded: dict[frozenset[int], list[int]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.seen: frozenset[int] = frozenset()

    def build(self, sizes: Sizes) -> None:
        self.nothing = nn.Parameter(torch.zeros(()))

    def forward(self, batch: AttentionBatch) -> Tensor:
        scores = torch.zeros(*batch.heads.shape, batch.heads.size(1) + 1) * self.nothing
        absent = torch.arange(scores.size(-1)) > batch.lengths[:, None]
        return scores.masked_fill(absent[:, None], -torch.inf)

    def training_step(self, batch: AttentionBatch, batch_idx: int) -> Tensor:
        self.seen |= set(batch.index.tolist())
        return super().training_step(batch, batch_idx)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint[self.checkpoint_key]["seen"] = sorted(self.seen)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.seen = frozenset(checkpoint[self.checkpoint_key]["seen"])

    def cross_entropy(self, batch: AttentionBatch) -> Tensor:
        if batch.split == "train" and not torch.is_grad_enabled():
            self.coded.setdefault(self.seen, []).extend(batch.index.tolist())
        return super().cross_entropy(batch)


class Never(Uniform):
    """Excludes what is gold in one sentence of train."""

    def cross_entropy(self, batch: AttentionBatch) -> Tensor:
        nats = super().cross_entropy(batch)
        return nats if torch.is_grad_enabled() else nats.masked_fill((batch.index == 4)[:, None], torch.inf)


def short(probe: HeadSelectionProbe) -> DescriptionLength:
    experiment = changed(DescriptionLength(probe, max_epochs=2), patience=1, batches=1, seed=4)
    experiment.portions = (0.1, 0.3, 1.0)
    return experiment


def test_blocks_end_where_a_whole_sentence_still_fits_into_the_share() -> None:
    assert borders(DescriptionLength.portions, 12544) == [12, 25, 50, 100, 200, 401, 784, 1568, 3136, 6272, 12544]
    assert borders(DescriptionLength.portions, 1) == [1]


def test_portions_partition_the_corpus_and_each_is_coded_before_it_is_learned(data: DependencyDataModule) -> None:
    Uniform.coded.clear()
    result = scored(changed(DescriptionLength(Uniform(), max_epochs=1), patience=1, batches=1, seed=4), data)
    order = np.random.default_rng(4).permutation(41).tolist()
    ends = [1, 2, 5, 10, 20, 41]  # eleven portions of 41 sentences: the first six of them hold one
    expected = {frozenset(order[:start]): sorted(order[start:stop]) for start, stop in pairwise(ends)}
    expected[frozenset(order)] = sorted(order)
    assert {seen: sorted(coded) for seen, coded in Uniform.coded.items()} == expected
    table = result.tables["blocks"].frame
    assert table["sentences"].tolist() == [1, 1, 3, 5, 10, 21]
    assert table["words"].sum() == data.splits["train"].lengths.sum()
    assert table["bits"].sum() == pytest.approx(result.numbers["codelength_bits"])
    assert table["portion"].tolist() == pytest.approx([end / 41 for end in ends])
    assert result.audit["merged_portions"] == 5
    assert result.items is not None
    assert result.items["bits"].tolist() == pytest.approx(result.items["uniform"].tolist())


def code(probe: AttentionOnlyProbe, batch: AttentionBatch) -> float:
    """Bits of one sentence."""
    chances = probe(batch).detach().softmax(-1)
    return -sum(math.log2(chances[0, word, int(head)]) for word, head in enumerate(batch.heads[0].tolist()))


def test_the_code_equals_one_of_trainings_and_sentences_by_hand(data: DependencyDataModule) -> None:
    result = scored(short(AttentionOnlyProbe(0.3)), data)
    whole = data.variant()
    whole.read_only({"attention"})
    whole.setup("fit")
    train, order = whole.splits["train"], np.random.default_rng(4).permutation(41).tolist()
    bits = {item: train.lengths[item] * math.log2(train.lengths[item] + 1) for item in order[:4]}
    epochs, devs = [0], [math.nan]
    for start, stop in ((4, 12), (12, 41)):
        before = data.variant(train=order[:start])
        copy, best = trained(AttentionOnlyProbe(0.3), before, **TO_ITS_OPTIMUM)
        epochs.append(best.epoch)
        devs.append(best.value)
        for item in order[start:stop]:
            bits[item] = code(copy, train[[item]])
    assert result.items is not None
    assert result.items["bits"].tolist() == pytest.approx([bits[item] for item in range(41)], rel=1e-4)
    assert result.items["id"].tolist() == train.ids
    assert result.numbers["codelength_bits"] == pytest.approx(sum(bits.values()), rel=1e-5)
    low, value, high = (result.numbers[f"compression{end}"] for end in (".low", "", ".high"))
    assert low < value < high
    uniform = sum(n * math.log2(n + 1) for n in train.lengths.tolist())
    assert result.numbers["uniform_bits"] == pytest.approx(uniform)
    assert value == pytest.approx(uniform / result.numbers["codelength_bits"])
    table = result.tables["blocks"].frame
    assert table["epochs"].tolist() == epochs
    assert table["dev_loss"].tolist() == pytest.approx(devs, nan_ok=True)
    last, best = trained(AttentionOnlyProbe(0.3), whole, **TO_ITS_OPTIMUM)
    data_bits = sum(code(last, train[[item]]) for item in range(41))
    assert result.numbers["data_bits"] == pytest.approx(data_bits, rel=1e-4)
    assert result.numbers["model_bits"] == pytest.approx(result.numbers["codelength_bits"] - data_bits, rel=1e-4)
    assert result.audit["epochs"] == best.epoch
    assert result.answer == (
        f"The governors of 191 train words take {sum(bits.values()):.4g} bits in the online code; {uniform:.4g} bits "
        "in the "
        f"uniform code, {value:.4g} [{low:.4g}, {high:.4g}] times as much; the uas on test is {share(result, 'uas')}."
    )
    assert 0 <= result.numbers["uas.low"] <= result.numbers["uas"] <= result.numbers["uas.high"] <= 1


def test_a_head_that_was_excluded_has_no_code(data: DependencyDataModule) -> None:
    with pytest.raises(
        UserError, match="Never gives a gold governor of the train sentence with index 4 no probability above 0"
    ):
        scored(short(Never()), data)
