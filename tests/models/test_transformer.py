"""The transformer classifier against transformers' own, and `decide` against `forward`, text by text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    get_linear_schedule_with_warmup,
)

from attention_probing.attention import EncoderSpec
from attention_probing.attention.heads import Head
from attention_probing.attention.source import EncoderError, resolve
from attention_probing.datamodules import ClassificationDataModule, TextBatch
from attention_probing.models import TrainingError
from attention_probing.models.text_classifier import TextSizes
from attention_probing.models.transformer import SequenceClassifier, TransformerClassifier
from attention_probing.results.errors import UserError
from tests import tiny
from tests.models.batches import VOCABULARY, batch_of
from tests.trainers import trainer

TEXTS = ([2, 7, 8, 9, 3, 21, 3], [2, 10, 3], [2, 11, 12, 7, 7, 13, 3])
HEADS, CLASSES, DIM = 4, 3, 8


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The models are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def batch(time: int | None = None) -> TextBatch:
    """Three texts between delimiters, the first with a pair."""
    made = batch_of(TEXTS, time=time)
    made.segments[0, 5:7] = 1
    return made


def rows(*shape: int, time: int | None = None) -> Tensor:
    """Weights `[..., texts, positions]` for `batch`."""
    mask = batch(time).mask
    return torch.rand(*shape, *mask.shape, generator=torch.Generator().manual_seed(1)) * mask


@dataclass(frozen=True)
class Architecture:
    """Where a model keeps what the slow reference needs, with the number of the layer to be filled in."""

    save: Callable[[Path], Path]
    mixed: str  # the module that takes what attention has mixed: `[batch, pieces, heads · dim]`
    projection: str  # the module whose output ends with the values: `[batch, pieces, … + key heads · dim]`
    key_heads: int = HEADS
    last: bool = False  # whether the decision is read from the last piece


ARCHITECTURES = {
    "bert": Architecture(
        tiny.save_bert, "bert.encoder.layer.{}.attention.output.dense", "bert.encoder.layer.{}.attention.self.value"
    ),
    "roberta": Architecture(
        tiny.save_roberta,
        "roberta.encoder.layer.{}.attention.output.dense",
        "roberta.encoder.layer.{}.attention.self.value",
    ),
    "gpt2": Architecture(tiny.save_gpt2, "transformer.h.{}.attn.c_proj", "transformer.h.{}.attn.c_attn", last=True),
    "llama": Architecture(
        tiny.save_llama,
        "model.layers.{}.self_attn.o_proj",
        "model.layers.{}.self_attn.v_proj",
        key_heads=2,
        last=True,
    ),
}
each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Fine-tuned classifiers, as it were: each with a head of its own, and no weight near its initialisation."""
    return {
        name: tiny.add_head(architecture.save(tmp_path_factory.mktemp(name)), CLASSES)
        for name, architecture in ARCHITECTURES.items()
    }


@pytest.fixture
def folder(folders: Mapping[str, Path]) -> Path:
    """A BERT."""
    return folders["bert"]


def load(folder: Path, classes: int = CLASSES, **spec: object) -> SequenceClassifier:
    return SequenceClassifier(resolve(EncoderSpec(str(folder), **spec)), classes)  # type: ignore[arg-type]


@pytest.fixture
def classifier(folders: Mapping[str, Path], name: str) -> SequenceClassifier:
    return load(folders[name]).eval()


def own_model(folder: Path) -> PreTrainedModel:
    """The same classifier with its own eager attention."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager")
    assert isinstance(model, PreTrainedModel)
    model.train(False)
    return model


@pytest.fixture
def own(folders: Mapping[str, Path], name: str) -> PreTrainedModel:
    return own_model(folders[name])


def inputs(classifier: SequenceClassifier) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings, mask and segments of the texts, padded."""
    made = batch(time=9)
    tokens = made.tokens.masked_fill(~made.mask, 7)  # a piece like others: the mask alone says that it pads
    read_as_zero = classifier.model.config.model_type != "bert"  # the others have no segments
    return classifier.embed(tokens), made.mask, torch.full_like(tokens, int(read_as_zero))


def other_rows(heads: Sequence[Head], total: float = 1.0) -> dict[Head, Tensor]:
    """Rows `[texts, pieces]` that no softmax has made, each summing to `total`, with nothing in the padding."""
    drawn = rows(len(heads), time=9)
    return dict(zip(heads, total * drawn / drawn.sum(-1, keepdim=True), strict=True))


@contextmanager
def rows_replaced(
    model: PreTrainedModel, name: str, rows: Mapping[Head, Tensor], seen: dict[Head, Tensor]
) -> Iterator[None]:
    """While one text runs through its own eager attention, put `row @ values` in the place of what a head has mixed.

    Rows are `[pieces]`; `seen` gets the values `[pieces, dim]` of every head.
    """
    architecture = ARCHITECTURES[name]
    size = architecture.key_heads * DIM

    def keep(layer: int) -> Callable[..., None]:
        def hook(module: object, args: object, output: Tensor) -> None:
            for head in range(HEADS):
                key_head = head * architecture.key_heads // HEADS
                seen[layer, head] = output[0, :, output.size(2) - size :][:, key_head * DIM : (key_head + 1) * DIM]

        return hook

    def replace(layer: int) -> Callable[..., tuple[Tensor]]:
        def hook(module: object, args: tuple[Tensor]) -> tuple[Tensor]:
            mixed = args[0].clone()
            for head in range(HEADS):
                if (layer, head) in rows:
                    position = mixed.size(1) - 1 if architecture.last else 0
                    mixed[0, position, head * DIM : (head + 1) * DIM] = rows[layer, head] @ seen[layer, head]
            return (mixed,)

        return hook

    hooks = []
    for layer in range(2):
        hooks.append(model.get_submodule(architecture.projection.format(layer)).register_forward_hook(keep(layer)))
        hooks.append(model.get_submodule(architecture.mixed.format(layer)).register_forward_pre_hook(replace(layer)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6 * max(1, float(expected.detach().abs().max())))


EVERY: list[Head] = [(layer, head) for layer in range(2) for head in range(HEADS)]


@each_architecture
@torch.no_grad()
def test_rows_and_values_are_those_of_each_text_alone_through_its_own_attention(
    classifier: SequenceClassifier, own: PreTrainedModel, name: str
) -> None:
    found = classifier(*inputs(classifier), EVERY)
    for place, text in enumerate(TEXTS):
        values: dict[Head, Tensor] = {}
        with rows_replaced(own, name, {}, values):
            alone = own(torch.tensor([text]), output_attentions=True)
        close(found.logits[place], alone.logits[0])
        position = len(text) - 1 if ARCHITECTURES[name].last else 0
        for layer, head in EVERY:
            close(found.weights[layer, head][place, : len(text)], alone.attentions[layer][0, head, position])
            close(found.values[layer, head][place, : len(text)], values[layer, head])
            assert not found.weights[layer, head][place, len(text) :].any()


@each_architecture
@pytest.mark.parametrize("heads", [[(1, 2)], [(0, 1)], [(0, 0), (0, 3), (1, 1)], EVERY])
@pytest.mark.parametrize("total", [1.0, 0.4])
@torch.no_grad()
def test_imposed_rows_give_what_the_mixed_values_of_a_head_would_be(
    classifier: SequenceClassifier, own: PreTrainedModel, name: str, heads: list[Head], total: float
) -> None:
    imposed = other_rows(heads, total)
    found = classifier(*inputs(classifier), EVERY, imposed)
    without = classifier(*inputs(classifier))
    for place, text in enumerate(TEXTS):
        rows = {head: row[place, : len(text)] for head, row in imposed.items()}
        with rows_replaced(own, name, rows, {}):
            alone = own(torch.tensor([text])).logits[0]
        close(found.logits[place], alone)
        assert (alone - without.logits[place]).abs().max() > 5e-5
    for head, row in imposed.items():
        assert torch.equal(found.weights[head], row)


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "llama"])  # it normalises in fp32 always
def test_gradients_of_imposed_rows_and_embeddings_are_finite_differences(
    classifier: SequenceClassifier, name: str
) -> None:
    classifier.double()
    embedded, mask, segments = inputs(classifier)
    heads: list[Head] = [(0, 1), (1, 2)]
    rows = [row.double().requires_grad_() for row in other_rows(heads).values()]

    def logits(embedded: Tensor, *rows: Tensor) -> Tensor:
        found: Tensor = classifier(embedded, mask, segments, heads, dict(zip(heads, rows, strict=True))).logits
        return found

    assert torch.autograd.gradcheck(logits, (embedded.detach().requires_grad_(), *rows), fast_mode=True)


def test_dropout_spares_what_is_imposed(tmp_path: Path) -> None:
    tokenizer = tiny.bert_tokenizer()
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": HEADS, "intermediate_size": 40}
    dropout = {"attention_probs_dropout_prob": 0.5, "hidden_dropout_prob": 0.0}
    model = tiny.build("bert", 0, vocab_size=len(tokenizer), **sizes, **dropout)
    classifier = load(tiny.save(tmp_path, model, tokenizer))
    heads: list[Head] = [(0, head) for head in range(HEADS)]
    imposed = other_rows(heads)
    expected = classifier.eval()(*inputs(classifier), heads, imposed).logits
    classifier.train()
    close(classifier(*inputs(classifier), heads, imposed).logits, expected)  # in one layer, no other row is read
    found = classifier(*inputs(classifier), heads)
    for row in found.weights.values():  # what is read comes before the dropout
        close(row.sum(1), torch.ones(len(TEXTS)))


@torch.no_grad()
def test_a_decoder_reads_its_last_piece_even_where_that_is_the_one_that_pads(folders: Mapping[str, Path]) -> None:
    classifier, own = load(folders["gpt2"]).eval(), own_model(folders["gpt2"])
    assert own.config.pad_token_id is None
    classifier.model.config.pad_token_id = 7  # by which transformers would look for the end
    tokens = torch.tensor([[9, 8, 7, 7], [9, 8, 6, 7]])
    mask = torch.tensor([[True, True, True, False], [True, True, True, True]])
    found = classifier(classifier.embed(tokens), mask, torch.zeros_like(tokens))
    close(found.logits[0], own(tokens[:1, :3]).logits[0])
    close(found.logits[1], own(tokens[1:]).logits[0])


def test_a_head_that_comes_with_the_files_is_kept_and_another_is_drawn_from_the_runs_seed(
    folders: Mapping[str, Path], tmp_path: Path
) -> None:
    assert load(folders["bert"]).drawn == ()
    bare = tiny.save_bert(tmp_path)

    def drawn(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        classifier = load(bare)
        assert torch.equal(torch.random.get_rng_state(), before)
        assert classifier.drawn == ("classifier.bias", "classifier.weight")
        return classifier.model.state_dict()

    first, again, other = drawn(1), drawn(1), drawn(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert [name for name in first if not torch.equal(first[name], other[name])] == ["classifier.weight"]


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "deberta-v2": ({}, "outside transformers' attention interface"),
    "mamba": ({"state_size": 4}, "cannot be loaded as a classifier of 3 classes"),
    "t5": ({"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4}, "is an encoder-decoder"),
    "modernbert": (
        {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
        | {"classifier_pooling": "mean"},
        r"head reads the positions \[0, 1, 2, 3, 4, 5\], from 0, of a 6-token input",
    ),
}


@pytest.mark.parametrize("model_type", REFUSED)
def test_an_architecture_whose_decision_has_no_row_is_refused_by_name(model_type: str, tmp_path: Path) -> None:
    further, reason = REFUSED[model_type]
    sizes = further if model_type == "t5" else tiny.SIZES | {"max_position_embeddings": 64} | further
    tokenizer = tiny.bert_tokenizer()
    folder = tiny.save(tmp_path, tiny.build(model_type, 0, vocab_size=len(tokenizer), **sizes), tokenizer)
    with pytest.raises(EncoderError, match=reason) as refusal:
        load(folder)
    assert str(folder) in str(refusal.value)


def test_a_decision_that_embeddings_do_not_give_is_refused(
    folders: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    embed = SequenceClassifier.embed
    monkeypatch.setattr(SequenceClassifier, "embed", lambda self, tokens: 2 * embed(self, tokens))
    with pytest.raises(EncoderError, match=r"GPT2.*gives other logits for padded input embeddings"):
        load(folders["gpt2"])


def built(folder: Path, heads: list[str] | None = None) -> TransformerClassifier:
    model = TransformerClassifier(heads)
    model.build(sizes(folder))
    return model.eval()


def sizes(folder: Path) -> TextSizes:
    return TextSizes(CLASSES, VOCABULARY, tokenizer=EncoderSpec(str(folder)))


@pytest.mark.parametrize(
    ("heads", "levels"),
    [
        (None, ["2-1", "2-2", "2-3", "2-4"]),
        (["2-3", "1-4", "2-3"], ["1-4", "2-3"]),
        (["1", "2-2", "1-1"], ["1-1", "1-2", "1-3", "1-4", "2-2"]),
    ],
)
@torch.no_grad()
def test_levels_are_the_rows_of_the_named_heads_lowest_first(
    heads: list[str] | None, levels: list[str], folder: Path
) -> None:
    model, given = built(folder, heads), batch(time=11)
    output = model(given)
    rows = model.classifier(output.embedded, given.mask, given.segments, EVERY)
    assert list(output.levels) == levels
    assert torch.equal(output.logits, rows.logits)
    for name, level in output.levels.items():
        layer, head = (int(number) - 1 for number in name.split("-"))
        assert torch.equal(level.weights, rows.weights[layer, head])
        assert torch.equal(level.mask, given.mask)
    assert output.embedded.shape == (3, 11, 32)


@pytest.mark.parametrize("head", ["3-1", "3", "1-5"])
def test_a_head_that_the_transformer_has_not_is_refused(head: str, folder: Path) -> None:
    with pytest.raises(UserError, match=rf"^`heads`: {head} does not exist; there are 2 layers of 4 heads"):
        built(folder, [head])


def test_texts_that_are_cut_into_words_are_refused() -> None:
    with pytest.raises(UserError, match=r"but the data have words.*Set `tokenizer` to the name"):
        TransformerClassifier().build(TextSizes(CLASSES, VOCABULARY))


@pytest.mark.parametrize("pieces", [1, 15, 16384], ids=["a text a pass", "two texts a pass", "one pass"])
@torch.no_grad()
def test_decide_is_forward_with_each_of_the_imposed_weights(
    pieces: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attention_probing.models.transformer.PIECES_OF_PASS", pieces)
    model = built(folder, ["1", "2"])
    embedded = model(batch()).embedded * 1.5
    output = model(batch(), embedded=embedded)
    imposed = {"1-3": rows(4, 1), "2-1": rows(2)}
    logits = model.decide(output, imposed)
    assert logits.shape == (4, 2, 3, CLASSES)
    for first in range(4):
        for second in range(2):
            here = {"1-3": imposed["1-3"][first, 0], "2-1": imposed["2-1"][second]}
            expected = model(batch(), embedded=embedded, imposed=here).logits
            torch.testing.assert_close(logits[first, second], expected, atol=1e-6, rtol=1e-6)
    assert model.decide(output, {"2-1": rows(0)}).shape == (0, 3, CLASSES)


def configured(model: TransformerClassifier, steps: float = 40) -> Any:  # noqa: ANN401
    with patch.object(model, "_trainer", Mock(estimated_stepping_batches=steps)):
        return model.configure_optimizers()


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.25])
def test_the_rate_is_that_of_a_linear_schedule_with_warmup(warmup: float, folder: Path) -> None:
    model = TransformerClassifier(learning_rate=0.5, warmup=warmup)
    model.build(sizes(folder))
    found = configured(model)
    schedule, adam = found["lr_scheduler"]["scheduler"], found["optimizer"]
    assert found["lr_scheduler"]["interval"] == "step"
    other = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    theirs = get_linear_schedule_with_warmup(other, round(40 * warmup), 40)  # type: ignore[no-untyped-call]
    for _ in range(41):
        assert schedule.get_last_lr() == pytest.approx(theirs.get_last_lr() * 2)
        for each in (adam, other, schedule, theirs):
            each.step()


def test_biases_and_normalisations_have_no_weight_decay(folder: Path) -> None:
    model = built(folder)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {
        group["weight_decay"]: {names[id(parameter)] for parameter in group["params"]}
        for group in configured(model)["optimizer"].param_groups
    }
    assert groups.keys() == {0.01, 0.0}
    assert {name for name in names.values() if name.endswith(".bias") or "LayerNorm" in name} == groups[0.0]
    assert set(names.values()) == groups[0.0] | groups[0.01]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Texts about coffee, and others: one word decides."""
    folder, random = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    for split, texts in (("train", 96), ("dev", 24), ("test", 24)):
        lines = ["text\tlabel"]
        for place in range(texts):
            words = random.choice(["the", "fox", "dogs", "guests", "sleep"], 5)
            words[random.integers(5)] = "coffee" if place % 2 else "dogs"
            lines.append(f"{' '.join(words)}\t{'drink' if place % 2 else 'other'}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return str(folder / "{split}.tsv")


def data(corpus: str, folder: Path, cache: Path) -> ClassificationDataModule:
    encoder = EncoderSpec(str(folder))
    return ClassificationDataModule(corpus, tokenizer=encoder, positive="drink", batch_size=8, cache=str(cache), seed=0)


class Modes(Callback):
    """Whether every module trains where training goes on, and none where dev is scored."""

    def __init__(self) -> None:
        self.train: set[bool] = set()
        self.dev: set[bool] = set()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        self.train |= {module.training for module in pl_module.classifier.modules()}  # type: ignore[union-attr]

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        self.dev |= {module.training for module in pl_module.classifier.modules()}  # type: ignore[union-attr]


def test_it_learns_what_decides_and_comes_back_from_its_checkpoint(corpus: str, tmp_path: Path) -> None:
    bare = tiny.save_bert(tmp_path / "bert")
    seed_everything(0, verbose=False)
    model, modes = TransformerClassifier(["1-1", "2"], learning_rate=3e-3), Modes()
    first = trainer(8, modes)
    module = data(corpus, bare, tmp_path)
    first.fit(model, datamodule=module)
    assert (modes.train, modes.dev) == ({True}, {False})  # else it would be fine-tuned without dropout
    first.test(model, datamodule=module, verbose=False)
    assert model.result is not None
    assert model.result.numbers["accuracy"] >= 0.95
    assert "classifier.weight" in str(model.result.audit["drawn_weights"])
    assert first.optimizers[0].param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)

    path = tmp_path / "trained.ckpt"
    first.save_checkpoint(path, weights_only=True)
    seed_everything(1, verbose=False)
    again = TransformerClassifier(["1-1", "2"])
    trainer().test(again, datamodule=data(corpus, bare, tmp_path), ckpt_path=path, verbose=False)
    assert again.result is not None
    assert again.result.items is not None
    assert again.result.numbers["loss"] == model.result.numbers["loss"]
    assert model.result.items is not None
    assert again.result.items.equals(model.result.items)


@each_architecture
def test_a_frozen_transformer_trains_what_was_drawn_and_nothing_else(name: str, corpus: str, tmp_path: Path) -> None:
    bare, modes = ARCHITECTURES[name].save(tmp_path / "bare"), Modes()
    model, module = TransformerClassifier(learning_rate=0.01, frozen=True), data(corpus, bare, tmp_path)
    before: dict[str, Tensor] = {}

    class Before(Callback):
        def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            before.update({name: tensor.clone() for name, tensor in model.classifier.model.state_dict().items()})

    fitting = trainer(2, Before(), modes)
    fitting.fit(model, datamodule=module)
    after = model.classifier.model.state_dict()
    assert {name for name in after if not torch.equal(before[name], after[name])} == set(model.classifier.drawn)
    assert (modes.train, modes.dev) == ({True, False}, {False})  # no dropout in what is frozen
    assert not any(one.training for one in model.classifier.model.base_model.modules())

    tuned = tiny.add_head(ARCHITECTURES[name].save(tmp_path / "tuned"), 2)
    with pytest.raises(UserError, match=r"^`frozen` is true, but the files of the model include a classification head"):
        trainer().fit(TransformerClassifier(frozen=True), datamodule=data(corpus, tuned, tmp_path))


def test_a_head_that_comes_with_the_files_is_tested_without_training_and_another_is_not(
    corpus: str, tmp_path: Path
) -> None:
    tuned = tiny.add_head(tiny.save_bert(tmp_path / "tuned"), 2)
    model = TransformerClassifier()
    with pytest.warns(
        UserWarning, match="The classifier predicts 'drink' for 100% of the texts, which is the label of 50%"
    ):
        trainer().test(model, datamodule=data(corpus, tuned, tmp_path), verbose=False)
    assert model.result is not None
    assert model.result.items is not None
    split = model.data
    own = own_model(tuned)
    for batch in split.test_dataloader()[1]:
        for place, text in enumerate(batch.index.tolist()):
            with torch.no_grad():
                logits = own(batch.tokens[place : place + 1, : batch.lengths[place]]).logits[0]
            row = model.result.items.iloc[text]
            found = [row[f"probability.{label}"] for label in split.labels]
            assert found == pytest.approx(logits.softmax(-1).tolist(), abs=1e-6)

    assert model.result.audit == {"classes_of_the_head": "drink = LABEL_0, other = LABEL_1"}

    bare = tiny.save_bert(tmp_path / "bare")
    with pytest.raises(TrainingError, match="TransformerClassifier was not trained"):
        trainer().test(TransformerClassifier(), datamodule=data(corpus, bare, tmp_path), verbose=False)


def test_a_head_whose_classes_are_in_another_order_is_refused(corpus: str, tmp_path: Path) -> None:
    """Its first class would be taken for the first label."""
    tuned = tiny.add_head(tiny.save_bert(tmp_path / "tuned"), 2)
    config = AutoConfig.from_pretrained(tuned)
    for names, fits in ((("OTHER", "DRINK"), False), (("Drink", "Other"), True)):
        config.id2label = dict(enumerate(names))
        config.save_pretrained(tuned)
        model, module = TransformerClassifier(), data(corpus, tuned, tmp_path)
        if fits:
            trainer().test(model, datamodule=module, verbose=False)
            assert model.result is not None
            assert model.result.audit == {"classes_of_the_head": "drink = Drink, other = Other"}
        else:
            with pytest.raises(UserError, match=r"order OTHER, DRINK, but the data have drink, other \(sorted"):
                trainer().test(model, datamodule=module, verbose=False)
