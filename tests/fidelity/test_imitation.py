"""AdversarialTraining against loops in double precision and texts that are read one by one."""

import math
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from datamodules import ClassificationDataModule, TextBatch
from datamodules.sampling import BatchLoader, LengthBatches
from fidelity.classified import levels_of
from fidelity.consistent_adversary import (
    AdversarialTraining,
    Adversaries,
    adversarial_loss,
    attention_of,
    collect_outputs,
)
from models.interface import SENTENCE
from tests.fidelity import tiny
from tests.fidelity.recipes import CPU, WARNINGS, checkpoint_of, config_of, recipe_of, texts_in
from tests.fidelity.tiny import Kind

pytestmark = [pytest.mark.filterwarnings(warning) for warning in WARNINGS]
KINDS: tuple[Kind, ...] = ("flat", "han", "transformer")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ClassificationDataModule:
    return texts_in(tmp_path_factory.mktemp("texts"))


class Texts:
    """The tiny texts as a split."""

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind = kind
        self.lengths = tiny.texts(kind).lengths.numpy()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, items: list[int]) -> TextBatch:
        return tiny.texts(self.kind, items)


def stand_in(kind: Kind) -> Any:  # noqa: ANN401
    """A datamodule whose train split they are, in several batches."""
    return SimpleNamespace(splits={"train": Texts(kind)}, eval_tokens=14)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_classifier_says_of_a_text_is_found_by_its_place_in_any_batch(kind: Kind) -> None:
    model = tiny.classifier(kind)
    found = collect_outputs(model, stand_in(kind), CPU)
    rows = [4, 0, 2, 5]
    batch = tiny.texts(kind, rows, time=12)
    with torch.no_grad():
        together = model(batch)
        positions = together.levels[levels_of(together, None)[0]].weights.size(1)
        probabilities, weights = found.of(batch.index, positions)
        for place, row in enumerate(rows):
            output = model(tiny.texts(kind, [row]))
            names = levels_of(output, None)
            alone = torch.stack([output.levels[name].weights[0] for name in names])
            size = alone.size(1)
            tiny.close(probabilities[place], output.logits[0].softmax(-1), 1e-6)
            tiny.close(weights[:, place, :size], alone, 1e-6)
            assert not weights[:, place, size:].any()
    assert names == ((SENTENCE,) if kind == "han" else tuple(output.levels))
    assert weights.shape == (len(names), len(rows), positions)


def test_delimiters_that_get_no_attention_keep_their_place(data: ClassificationDataModule) -> None:
    model = checkpoint_of(data, config_of(), epochs=1).model
    found = collect_outputs(model, data, CPU)
    items = [3, 60, 17]
    batch = data.splits["train"][items]
    with torch.no_grad():
        output = model(batch)
    probabilities, weights = found.of(batch.index, batch.tokens.size(1))
    tiny.close(probabilities, output.logits.softmax(-1), 1e-6)
    tiny.close(weights, attention_of(output, ["word"]), 1e-6)
    assert not weights[:, :, 0].any()
    assert not weights.requires_grad


def slow_loss(p: Tensor, w: Tensor, base_p: Tensor, base_w: Tensor, strength: float) -> float:
    """The formula in loops over Python's floats."""
    heads, texts, positions = w.shape
    total = 0.0
    for text in range(texts):
        total += sum(abs(float(a) - float(b)) for a, b in zip(p[text], base_p[text], strict=True)) / 2
        divergence = 0.0
        for head in range(heads):
            for position in range(positions):
                ours, theirs = float(w[head, text, position]), float(base_w[head, text, position])
                if ours > 0:
                    divergence += ours * math.log(ours / theirs)
        total -= strength * divergence / heads
    return total / texts


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("strength", [0.0, 0.02, 1.5])
def test_the_loss_is_the_formula(heads: int, strength: float) -> None:
    random = np.random.default_rng(0)

    def distributions(*shape: int) -> Tensor:
        values = random.dirichlet([0.7] * shape[-1], shape[:-1])
        return torch.from_numpy(values)

    p, base_p = distributions(5, 3), distributions(5, 3)
    w, base_w = distributions(heads, 5, 6), distributions(heads, 5, 6)
    for weights in (w, base_w):  # padding, and a weight of the adversary that is exactly 0
        weights[:, 1, 4:] = 0
    w[:, 2, 3] = 0
    found = float(adversarial_loss(p, w, base_p, base_w, strength))
    assert found == pytest.approx(slow_loss(p, w, base_p, base_w, strength), rel=1e-12)
    p.requires_grad_(), w.requires_grad_()
    assert torch.autograd.gradcheck(lambda p, w: adversarial_loss(p, w + 0.01, base_p, base_w + 0.01, strength), (p, w))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_the_adversary_alone_and_labels_play_no_part(kind: Kind) -> None:
    model = tiny.classifier(kind)
    base = collect_outputs(model, stand_in(kind), CPU)
    adversary = _copy(kind)
    module = AdversarialTraining(adversary, base, 0.1)
    module.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
    batch = tiny.texts(kind, [1, 2, 3])
    loss = module.training_step(batch, 0)
    loss.backward()  # type: ignore[no-untyped-call]
    value = float(loss.detach())
    with torch.no_grad():
        output = adversary(batch)
    names = levels_of(output, None)
    expected = slow_loss(
        output.logits.softmax(-1),
        attention_of(output, names),
        *base.of(batch.index, attention_of(output, names).size(-1)),
        0.1,
    )
    assert value == pytest.approx(expected, rel=1e-6)
    moved = [name for name, one in adversary.named_parameters() if one.grad is not None and one.grad.any()]
    assert any("attention" in name for name in moved)
    assert any("decision" in name or "classifier" in name for name in moved)
    assert all(one.grad is None for one in model.parameters())
    assert not any(tensor.requires_grad for tensor in (base.probabilities, base.weights))
    other = TextBatch(**{**vars(batch), "labels": (batch.labels + 1) % tiny.CLASSES})
    assert float(module.training_step(other, 0).detach()) == value


def _copy(kind: Kind) -> Any:  # noqa: ANN401
    adversary = deepcopy(tiny.classifier(kind)).requires_grad_(True)
    with torch.no_grad():
        for parameter in adversary.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.1)
    return adversary


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_classifier_learns_by_its_own_optimiser(kind: Kind, data: ClassificationDataModule) -> None:
    base = collect_outputs(tiny.classifier(kind), stand_in(kind), CPU)
    checkpoint = tiny.checkpoint(kind)
    module = AdversarialTraining(_copy(kind).train(), base, 0.0)
    module.model.learning_rate = 0.003
    losses = []
    module.on_train_epoch_end = lambda: losses.append(float(module.trainer.callback_metrics["train_loss"]))  # type: ignore[method-assign]
    recipe = recipe_of(checkpoint, data, max_epochs=10, patience=10)
    texts: Any = Texts(kind)
    batches = LengthBatches(texts.lengths, max_cells=None, max_sentences=3, shuffle=True)
    best = recipe.fit(module, "train_loss", "min", train_dataloaders=BatchLoader(texts, batches, 0))
    assert best.value == min(losses)
    assert best.value < losses[0] * 0.9


def test_the_terms_of_regularisers_are_added_where_they_are_asked_for(data: ClassificationDataModule) -> None:
    tying = {"class_path": "models.Tying", "init_args": {"weight": 0.5}}
    checkpoint = checkpoint_of(
        data, config_of(regularizers=[tying], embedding={"size": 8}, dropout=0.0), "tying", epochs=1
    )
    base = collect_outputs(checkpoint.model, data, CPU)
    batch = data.splits["train"][[5, 6, 7]]
    losses = []
    for regularized in (False, True):
        module = AdversarialTraining(checkpoint.untrained(data, 1), base, 0.1, regularized)
        module.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
        losses.append(float(module.training_step(batch, 0).detach()))
    _, terms = checkpoint.untrained(data, 1).outcome(batch)
    assert losses[1] - losses[0] == pytest.approx(float(terms["tying"].detach()), rel=1e-4)
    assert losses[1] > losses[0]


def test_an_adversary_is_that_of_the_lowest_loss_and_the_same_when_it_is_found_again(
    data: ClassificationDataModule, tmp_path: Path
) -> None:
    checkpoint = checkpoint_of(data, config_of())
    recipe = recipe_of(checkpoint, data, max_epochs=4)
    recipe.data.cache = tmp_path
    before = {name: value.clone() for name, value in checkpoint.model.state_dict().items()}
    model, best = Adversaries(recipe).of(0.01)
    again, found = Adversaries(recipe_of(checkpoint, data, max_epochs=4)).of(0.01)
    assert best[1:] == found[1:]
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
        assert torch.equal(value, best.state[name]), name
        assert torch.equal(checkpoint.model.state_dict()[name], before[name]), name
    assert not torch.equal(model.state_dict()["decision.weight"], before["decision.weight"])
    # Trained again, in a folder of its own, it is the same in every bit.
    recipe = recipe_of(checkpoint, data, max_epochs=4)
    data.cache = tmp_path / "other"
    third, _ = Adversaries(recipe).of(0.01)
    for name, value in third.state_dict().items():
        assert torch.equal(value, best.state[name]), name


def test_epochs_go_on_learning_to_decide_as_the_base(data: ClassificationDataModule, tmp_path: Path) -> None:
    data.cache = tmp_path
    checkpoint = checkpoint_of(data, config_of())
    short = Adversaries(recipe_of(checkpoint, data, max_epochs=1)).of(0.0)[1]
    long = Adversaries(recipe_of(checkpoint, data, max_epochs=12, patience=12)).of(0.0)[1]
    assert long.value < short.value / 2
