"""Token-wise models under imposed attention, against a slow one that reads texts word by word."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fidelity.consistent_adversary import ConsistentAdversary, GuidedMLP, Source, guided
from models import AttentionClassifier, AverageEncoder, TextClassifier
from tests.fidelity import tiny
from tests.fidelity.tiny import with_constants
from tests.fidelity.trained import CPU, Checkpoints, Data, refuse_training, result_of

SOURCES: tuple[Source, ...] = ("uniform", "own", "base", "adversary")


@pytest.fixture(scope="module")
def both(checkpoints: Checkpoints) -> Checkpoints:
    """One with attention of its own, and one with uniform attention."""
    return checkpoints[::2]


def begun(checkpoints: Checkpoints, data: Data, **options: Any) -> GuidedMLP:  # noqa: ANN401
    test = with_constants(GuidedMLP(4, 3), **{"strength": 0.3, "size": 5, "patience": 4, **options})
    test.begin(checkpoints, data, CPU, 0)
    return test


@pytest.fixture(scope="module")
def test(both: Checkpoints, data: Data) -> GuidedMLP:
    return begun(both, data)


def by_hand(model: AttentionClassifier, tokens: list[int], weights: list[float]) -> Tensor:
    """Logits: the weighted sum of tanh(linear(word)), word by word."""
    encoder = model.encoder
    assert isinstance(encoder, AverageEncoder)
    states = [torch.tanh(encoder.linear(model.embedding(torch.tensor([token]))[0])) for token in tokens]
    logits: Tensor = model.decision(torch.stack([w * h for w, h in zip(weights, states, strict=True)]).sum(0))
    return logits


@torch.no_grad()
def test_every_model_averages_words_by_the_attention_of_its_source(
    test: GuidedMLP, checkpoints: Checkpoints, data: Data
) -> None:
    adversary = ConsistentAdversary((0.3,), max_epochs=3, patience=10)
    adversary.begin(checkpoints[:1], data, CPU, 0)
    guides: dict[str, TextClassifier] = {
        "base": checkpoints[0].model,
        "adversary": adversary._adversaries[checkpoints[0].name]["0.3"].model,
    }
    models = test._models[checkpoints[0].name]
    assert list(models) == list(SOURCES)
    values = result_of(test, checkpoints[0], data).columns("guided_mlp")
    for text in (2, 11, 20):
        batch = data.splits["test"][[text]]
        tokens, words = batch.tokens[0].tolist(), batch.words[0]
        for source, model in models.items():
            assert isinstance(model, AttentionClassifier)
            if source == "uniform":
                weights = words / words.sum()
            elif source == "own":
                weights = model(batch).levels["word"].weights[0]
                assert weights[words].std() > 1e-4
            else:
                weights = guides[source](batch).levels["word"].weights[0]
            expected = by_hand(model, tokens, weights.tolist())
            torch.testing.assert_close(model(batch).logits[0], expected, atol=1e-5, rtol=1e-5)
            assert values[f"predicted_{source}"][text] == int(expected.argmax())
        assert values["gold"][text] == int(batch.labels)


def test_a_guide_is_read_and_neither_trained_nor_saved() -> None:
    guide = tiny.classifier("flat", torch.float32)
    model = guided(guide, encoder=AverageEncoder(3))
    model.train()
    assert not guide.training
    assert not list(model.parameters())
    assert model.state_dict() == {}


def test_scores_and_table_are_f1_with_intervals(test: GuidedMLP, both: Checkpoints, data: Data) -> None:
    results = [result_of(test, checkpoint, data) for checkpoint in both]
    table = test.tables(results)["guided_mlp"].frame
    assert table["attention"].tolist() == [*SOURCES, *SOURCES]
    values, positive = results[0].columns("guided_mlp"), data.positive
    gold = values["gold"]
    for source, row in zip(SOURCES, table.itertuples(), strict=False):
        predicted = values[f"predicted_{source}"]
        right = ((gold == positive) & (predicted == positive)).sum()
        expected = 2 * right / ((gold == positive).sum() + (predicted == positive).sum())
        assert row.f1 == pytest.approx(expected)
        assert results[0].scores[f"guided_mlp.{source}.f1"].value == pytest.approx(expected)
    # Uniform attention has no adversary.
    assert table["f1"].isna().tolist() == [False] * 7 + [True]
    assert test.audit()["models"] == 7


def test_a_second_run_trains_nothing_and_other_options_are_other_models(
    test: GuidedMLP, both: Checkpoints, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_training(monkeypatch)
    for name, models in begun(both, data)._models.items():
        for source, model in models.items():
            state = test._models[name][source].state_dict()
            assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    for change in ({"size": 6}, {"strength": 0.2}):
        with pytest.raises(KeyboardInterrupt):
            begun(both, data, **change)
