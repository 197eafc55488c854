import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from attention_probing.attention import Encoder, EncoderSpec, resolve
from attention_probing.attention.capture import intervening
from attention_probing.corpora.texts import Passage
from attention_probing.datamodules import SegmentBatch
from attention_probing.measures import Importance
from attention_probing.measures.importance import (
    TOKEN_CLASSES,
    attention_gradients,
    importance_answer,
    integrated_attention,
)
from attention_probing.measures.task import LanguageModelling, MeanStateClassification, Task
from attention_probing.models import TransformerClassifier
from attention_probing.results import Estimate, UserError
from tests import tiny
from tests.measures.intervals import at_once_by_hand
from tests.measures.passes import ENCODERS, batch_of, batches, begin, encoder, sees

TEXTS = SimpleNamespace(names=("texts",))  # encoders with a head for language modelling read none beforehand


def language_model(kind: str, folder: Path, weights: str = "pretrained") -> Encoder:
    """A tiny encoder whose files hold a head for language modelling."""
    getattr(tiny, f"save_{kind}")(folder)
    model = (AutoModelForMaskedLM if "bert" in kind else AutoModelForCausalLM).from_pretrained(folder)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith(model.base_model_prefix):
                parameter.normal_(0, 0.3, generator=generator)
    model.save_pretrained(folder)
    return Encoder(resolve(EncoderSpec(str(folder), weights=weights)))  # type: ignore[arg-type]


def labelled(encoder: Encoder, first: int = 0, labels: Sequence[str] = "pq") -> SegmentBatch:
    """Eight texts of two labels."""
    words = ("the fox jumps", "coffee , strong", "dogs sleep .", "he missed the guests", "lazy", "guests drink coffee",
             "brown fox .", "the dogs , lazy")  # fmt: skip
    passages = [Passage(text, tuple(text.split()), 1, label=labels[place % 2]) for place, text in enumerate(words)]
    return batch_of(encoder, *passages, first=first)


def losses_of(task: Task, inputs: Mapping[str, Tensor]) -> Tensor:
    return task.losses(task.outputs(inputs), task.gold(inputs))


def alone(batch: SegmentBatch, inputs: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    """One input without padding."""
    n = int(batch.lengths[row])
    return {name: one[row : row + 1, :n] if one.dim() > 1 else one[row : row + 1] for name, one in inputs.items()}


def double(encoder: Encoder) -> Encoder:
    (encoder.language_model or encoder.model).double()
    return encoder


@pytest.mark.parametrize("kind", ["bert", "gpt2", "labels"])  # a Llama normalises in float32, too coarse for this
def test_gradients_are_finite_differences(kind: str, tmp_path: Path) -> None:
    if kind == "labels":
        one = encoder("bert", tmp_path)
        task: Task = MeanStateClassification(one, [labelled(one)])
        batch = labelled(double(one))
    else:
        one = double(language_model(kind, tmp_path))
        task, batch = LanguageModelling(one, 0), batches(one)[0]
    inputs = task.inputs(batch)
    assert not batch.mask.all()

    losses, _, found = attention_gradients(task, inputs)
    random = np.random.default_rng(0)
    step = 1e-5
    for layer in range(one.layers):
        for row in range(len(batch.index)):
            head = int(random.integers(one.heads))
            i, j = random.integers(int(batch.lengths[row]), size=2).tolist()
            i, j = (max(i, j), min(i, j)) if one.causal else (i, j)

            def moved(by: float, at: tuple[int, ...] = (layer, row, head, i, j)) -> float:
                def move(number: int, weights: Tensor, values: Tensor) -> tuple[Tensor, None]:
                    weights = weights.clone()
                    if number == at[0]:
                        weights[at[1:]] += by
                    return weights, None

                with torch.no_grad(), intervening(move):
                    return float(losses_of(task, inputs)[at[1]])

            difference = (moved(step) - moved(-step)) / (2 * step)
            assert float(found[layer][row, head, i, j]) == pytest.approx(difference, abs=1e-8, rel=1e-6)
    assert losses.shape == batch.index.shape


def members(batch: SegmentBatch, row: int) -> dict[str, list[int]]:
    """Places of the tokens of each class in one input."""
    found: dict[str, list[int]] = {name: [] for name in TOKEN_CLASSES}
    for place in range(int(batch.lengths[row])):
        named = [name for name in TOKEN_CLASSES[:3] if getattr(batch, name)[row, place]]
        found[named[0] if named else "rest" if place else "first"].append(place)
    return found


@pytest.mark.parametrize("kind", ENCODERS)
def test_means_are_those_of_a_loop_over_weights(kind: str, tmp_path: Path) -> None:
    one = language_model(kind, tmp_path)
    analysis, seen = Importance(), batches(one)
    begin(analysis, one, TEXTS)
    for batch in seen:
        analysis.update(batch)

    task = LanguageModelling(one, 0)
    expected: dict[str, list[list[list[float]]]] = {name: [] for name in TOKEN_CLASSES}
    losses = []
    for batch in seen:
        inputs = task.inputs(batch)
        for row, n in enumerate(batch.lengths.tolist()):
            each, _, found = attention_gradients(task, alone(batch, inputs, row))
            losses.append(float(each))
            for name, places in members(batch, row).items():
                if not places:
                    continue
                of_layers = []
                for layer, g in enumerate(found):
                    cells = [(i, j) for i in range(n) for j in places if sees(kind, layer, i, j)]
                    sums = [sum(abs(float(g[0, h, i, j])) for i, j in cells) for h in range(one.heads)]
                    of_layers.append([one_head / len(cells) for one_head in sums])
                expected[name].append(of_layers)

    result = analysis.result()
    by_head = analysis.by_head()
    frame = result.tables["importance_layers"].frame
    assert set(frame["class"]) == {name for name in TOKEN_CLASSES if expected[name]}
    assert ("first" in set(frame["class"])) == (kind == "gpt2")  # it alone writes no start delimiter
    for name in TOKEN_CLASSES:
        means = by_head[f"importance_{name}"].over()
        assert (means.inputs == len(expected[name])).all()
        if expected[name]:
            layers = frame[frame["class"] == name]
            numbers = np.array(expected[name])
            assert np.allclose(means.value, numbers.mean(0), rtol=1e-3, atol=1e-7)
            assert np.allclose(layers["importance"], numbers.mean((0, 2)), rtol=1e-3, atol=1e-7)
            apart = np.log((layers["high"] / layers["low"]).to_numpy(dtype=np.float64)) / 2
            if len(numbers) == 7:  # Student's t of 6 degrees, of logs
                spread = numbers.mean(2).std(0, ddof=1) / np.sqrt(7)
                assert np.allclose(apart, 2.446912 * spread / numbers.mean((0, 2)), rtol=1e-3)
    assert result.scores["importance.loss"].value == pytest.approx(np.mean(losses), rel=1e-4)
    for name, highest in (("loss", np.inf), ("accuracy", 1.0)):
        score = result.scores[f"importance.{name}"]
        assert score.low is not None
        assert score.high is not None
        assert 0 <= score.low <= score.value <= score.high <= highest
    # Intervals that hold for all classes and layers at once tell if one of them is ahead.
    ends = []
    for line in frame.to_dict("records"):
        own = line["low"], line["high"]
        at_once = at_once_by_hand(line["importance"], own, int(line["inputs"]), len(frame), share=False)
        ends.append((line["importance"], *at_once, f"attention to {line['class']} in layer {line['layer']} has most"))
    (_, low, _, first), *others = sorted(ends, reverse=True)
    clear = all(low > high for _, _, high, _ in others)
    start = first if clear else "on 7 inputs attention to no class in a layer clearly has most"
    assert result.answer.startswith(f"{start[0].upper()}{start[1:]} |∂L/∂α|")
    assert f"; the loss is {result.numbers['importance.loss']:.4g} nats [" in result.answer


def test_a_class_and_layer_are_named_if_they_are_clearly_ahead() -> None:
    candidates = {
        "end in layer 1": Estimate(0.02, 0.015, 0.03, unit="nats"),
        "start in layer 2": Estimate(0.5, 0.4, 0.6, unit="nats"),
    }
    named = "attention to start in layer 2 has most |∂L/∂α|, 0.5 nats [0.4, 0.6] over {n} inputs"
    assert importance_answer(candidates) == f"{named}; the loss is {{importance.loss}}"
    candidates["rest in layer 2"] = Estimate(0.35, 0.3, 0.41, unit="nats")
    none = "on {n} inputs attention to no class in a layer clearly has most |∂L/∂α|"
    assert importance_answer(candidates) == f"{none}; the loss is {{importance.loss}}"


def test_masks_are_those_of_bert(tmp_path: Path) -> None:
    one = language_model("bert", tmp_path)
    task = LanguageModelling(one, 0)
    text = " ".join(["the fox drinks coffee ,"] * 8)
    batch = batch_of(one, *[text] * 200)
    inputs = task.inputs(batch)
    tokens, targets = inputs["input_ids"], inputs["targets"]
    chosen = targets >= 0

    assert (chosen.sum(1) == round(0.15 * int((batch.words[0] >= 0).sum()))).all()
    assert not (chosen & (batch.words < 0)).any()
    assert (targets[chosen] == batch.tokens[chosen]).all()
    assert (tokens[~chosen] == batch.tokens[~chosen]).all()
    masked = tokens[chosen] == one.tokenizer.mask_token_id
    assert float(masked.float().mean()) == pytest.approx(0.8, abs=0.04)
    assert float((tokens[chosen] == batch.tokens[chosen]).float().mean()) == pytest.approx(0.1, abs=0.03)
    assert (task.inputs(batch_of(one, text, first=17))["input_ids"][0] == tokens[17]).all()  # whatever batch it is in


def test_the_classifier_is_a_logistic_regression_on_mean_hidden_states(tmp_path: Path) -> None:
    one = encoder("bert", tmp_path)
    batch = labelled(one, first=3)
    hidden = []
    for row, n in enumerate(batch.lengths.tolist()):
        inputs = one.inputs(
            batch.tokens[row : row + 1, :n], batch.mask[row : row + 1, :n], batch.segments[row : row + 1, :n]
        )
        hidden.append(one.last_hidden(inputs)[0].double().mean(0).numpy())
    labels = [passages[0].label for passages in batch.passages]
    expected = make_pipeline(StandardScaler(), LogisticRegression(C=0.01)).fit(hidden, labels)

    task = MeanStateClassification(one, [batch])
    inputs = task.inputs(batch)
    outputs, gold = task.outputs(inputs), task.gold(inputs)
    probabilities = expected.predict_proba(hidden)[range(8), ["pq".index(str(label)) for label in labels]]
    assert np.allclose(task.losses(outputs, gold), -np.log(probabilities), atol=1e-4)
    assert (task.accuracies(outputs, gold).numpy() == (expected.predict(hidden) == labels)).all()


def test_a_checkpoint_is_a_loss(checkpoint: Path, bert: Path, tmp_path: Path) -> None:
    one, names = Encoder(resolve(EncoderSpec(str(bert)))), ("bad", "good")
    analysis = Importance(classifier=str(checkpoint))
    begin(analysis, one, TEXTS)
    batch = labelled(one, labels=names)
    analysis.update(batch)

    own = TransformerClassifier.load_from_checkpoint(checkpoint).eval().classifier.model
    inputs = one.inputs(batch.tokens, batch.mask, batch.segments)
    labels = torch.tensor([names.index(str(passages[0].label)) for passages in batch.passages])
    attention: list[Tensor] = []

    def keep(_: int, weights: Tensor, values: Tensor) -> tuple[Tensor, None]:
        attention.append(weights)
        return weights, None

    with intervening(keep):
        losses = torch.nn.functional.cross_entropy(own(**inputs).logits, labels, reduction="none")
    gradient = torch.autograd.grad(losses.sum(), attention)
    result = analysis.result()
    assert result.scores["importance.loss"].value == pytest.approx(losses.mean().item(), abs=1e-5)
    starts = torch.stack(
        [(each.abs() * batch.mask[:, None, :, None]).sum(2)[..., 0] / batch.lengths[:, None] for each in gradient]
    )
    found = analysis.by_head()["importance_start"].over().value
    assert np.allclose(found, starts.mean(1), rtol=1e-3, atol=1e-7)

    other = EncoderSpec(str(tiny.save_bert(tmp_path, heads=2)))
    with pytest.raises(UserError, match="The classifier was not fine-tuned from"):
        begin(analysis, Encoder(resolve(other)), TEXTS)


def test_texts_that_give_no_loss_are_refused(tmp_path: Path) -> None:
    one = encoder("bert", tmp_path)

    def begin_on(*texts: SegmentBatch, names: tuple[str, ...] = ("texts",)) -> Importance:
        def drawn(*_: object) -> Iterator[SegmentBatch]:
            return iter(texts)

        analysis = Importance()
        data = SimpleNamespace(names=names, draw_segments=drawn, has_split=lambda _: True)
        begin(analysis, one, data)
        return analysis

    with pytest.raises(UserError, match=r"has no language-modelling head.*0 labels, and 2 of them have no label"):
        begin_on(batch_of(one, "the fox", "the dogs"))
    with pytest.raises(UserError, match="Give one labelled corpus with a train split"):
        begin_on(names=("a", "b"))
    analysis = begin_on(labelled(one))
    stranger = replace(labelled(one), passages=(((Passage("1", ("fox",), 1, label="r"),),) * 8))
    with pytest.raises(UserError, match="trained on the labels p, q, but test also has r"):
        analysis.update(stranger)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "labels"])
def test_integrated_gradients_are_a_sum_along_the_path_of_one_layer(kind: str, tmp_path: Path) -> None:
    if kind == "labels":
        one = encoder("bert", tmp_path)
        task: Task = MeanStateClassification(one, [labelled(one)])
        batch = labelled(double(one))
    else:
        one = double(language_model(kind, tmp_path))
        task, batch = LanguageModelling(one, 0), batches(one)[0]
    inputs = task.inputs(batch)
    real = weights_of(task, inputs)

    def loss_and_gradient(layer: int, share: float) -> tuple[Tensor, Tensor]:
        """Losses with this share of the weights of a layer, and their gradient by these weights."""
        scaled = (share * real[layer]).requires_grad_()

        def scale(number: int, weights: Tensor, values: Tensor) -> tuple[Tensor, None]:
            return (scaled if number == layer else weights), None

        with intervening(scale):
            losses = losses_of(task, inputs)
        (gradient,) = torch.autograd.grad(losses.sum(), scaled)
        return losses.detach(), gradient

    middles = (np.arange(100) + 0.5) / 100
    for layer in range(one.layers):
        expected = real[layer] * torch.stack([loss_and_gradient(layer, float(at))[1] for at in middles]).mean(0)
        found = integrated_attention(task, inputs, real[layer], layer, points=30)
        assert torch.allclose(found.attributions, expected, atol=2e-4 * float(expected.abs().max()))
        change = loss_and_gradient(layer, 1.0)[0] - loss_and_gradient(layer, 0.0)[0]
        assert torch.allclose(found.change, change, atol=1e-12)
        assert float(change.abs().min()) > 1e-6
        assert torch.allclose(found.attributions.sum((1, 2, 3)), change, rtol=1e-6)
        assert torch.allclose(found.errors, found.attributions.sum((1, 2, 3)) - change, atol=1e-12)


def weights_of(task: Task, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    found: list[Tensor] = []

    def keep(_: int, weights: Tensor, values: Tensor) -> tuple[Tensor, None]:
        found.append(weights.detach())
        return weights, None

    with torch.no_grad(), intervening(keep):
        task.outputs(inputs)
    return found


def test_integrated_gradients_come_with_their_completeness(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    one = language_model("bert", tmp_path)
    analysis, seen = Importance(method="integrated_gradients", ig_steps=12), batches(one)
    begin(analysis, one, TEXTS)
    for batch in seen:
        analysis.update(batch)

    task = LanguageModelling(one, 0)
    starts, changes, errors = [], [], []
    for batch in seen:
        inputs = task.inputs(batch)
        for row, n in enumerate(batch.lengths.tolist()):
            own = alone(batch, inputs, row)
            of_layers = [
                integrated_attention(task, own, weights, layer, points=12)
                for layer, weights in enumerate(weights_of(task, own))
            ]
            starts.append([part.attributions[0, :, :, 0].abs().sum(1) / n for part in of_layers])
            changes.append([float(part.change.abs()) for part in of_layers])
            errors.append([float(part.errors.abs()) for part in of_layers])
    found = analysis.by_head()["importance_start"].over().value
    assert np.allclose(found, torch.stack([torch.stack(one) for one in starts]).mean(0), rtol=1e-3, atol=1e-7)
    result = analysis.result()
    table = result.tables["completeness"].frame
    assert list(table["layer"]) == list(range(1, one.layers + 1))
    assert np.allclose(table["change"], np.mean(changes, 0), rtol=1e-3)
    assert np.allclose(table["incompleteness"], np.mean(errors, 0), atol=1e-5)
    assert result.scores["importance.change"].value == pytest.approx(np.mean(changes), rel=1e-3)
    assert result.scores["importance.incompleteness"].value == pytest.approx(np.mean(errors), abs=1e-5)
    assert result.scores["importance.incompleteness"].value < 0.01 * np.mean(changes)
    assert result.audit["ig_steps"] == 12
    assert "|α ∫ ∂L/∂α|" in result.answer
    assert "the attributions miss changes of the loss of " in result.answer
    assert not [one for one in recwarn if "integrated gradients" in str(one.message)]


def test_integrated_gradients_of_a_long_batch_say_how_far_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("attention_probing.results.progress.FIRST", 0)
    monkeypatch.setattr("attention_probing.results.progress.EVERY", 0)
    one = language_model("bert", tmp_path)
    for method, lines in (("gradient", 0), ("integrated_gradients", one.layers - 1)):  # none where all is done
        caplog.clear()
        found = begin(Importance(method=method, ig_steps=2), one, TEXTS)  # type: ignore[arg-type]
        with caplog.at_level("INFO", "attention_probing.progress"):
            found.update(labelled(one))
        assert caplog.text.count("Integrated gradients of a batch, inputs in each layer: ") == lines
    assert re.search(r"inputs in each layer: 8 of 16 \(50%\) in .* a second, about 0:\d\d:\d\d to go\.", caplog.text)


def test_too_few_points_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = language_model("bert", tmp_path)
    analysis = Importance(method="integrated_gradients", ig_steps=1)
    begin(analysis, one, TEXTS)
    analysis.update(batches(one)[0])
    monkeypatch.setattr("attention_probing.measures.importance.INCOMPLETE", 1e-9)
    with pytest.warns(UserWarning, match=r"integrated gradients miss the change of the loss by .*%.*ig_steps"):
        analysis.result()


def test_the_method_is_one_of_two() -> None:
    with pytest.raises(UserError, match="method"):
        Importance(method="saliency")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="ig_steps"):
        Importance(ig_steps=0)
