"""The transformer classifier against transformers' own, and `decide` against `forward`, text by text."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, get_linear_schedule_with_warmup

from attention import EncoderSpec
from datamodules import ClassificationDataModule, TextBatch
from models.base import TextSizes
from models.interface import ModelError
from models.transformer import TransformerClassifier
from tests import tiny
from tests.models.batches import VOCABULARY, batch_of
from training import TrainingError

TEXTS = ([2, 7, 8, 9, 3, 21, 3], [2, 10, 3], [2, 11, 12, 7, 7, 13, 3])
LAYERS, HEADS, CLASSES = 2, 4, 3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The models are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with a head for three classes, and no weight near its initialisation."""
    return with_head(tmp_path_factory.mktemp("bert"), CLASSES)


def with_head(folder: Path, classes: int) -> Path:
    return tiny.add_head(tiny.save_bert(folder), classes)


def classifier(folder: Path, heads: list[str] | None = None) -> TransformerClassifier:
    model = TransformerClassifier(heads)
    model.build(sizes(folder))
    return model.eval()


def sizes(folder: Path, classes: int = CLASSES) -> TextSizes:
    return TextSizes(classes, VOCABULARY, tokenizer=EncoderSpec(str(folder)))


def batch(time: int | None = None) -> TextBatch:
    """Three texts between delimiters, the first with a pair."""
    made = batch_of(TEXTS, time=time)
    made.segments[0, 5:7] = 1
    return made


def rows(*shape: int) -> Tensor:
    """Weights `[..., texts, positions]` for `batch`."""
    mask = batch().mask
    return torch.rand(*shape, *mask.shape, generator=torch.Generator().manual_seed(1)) * mask


# Levels


@pytest.mark.parametrize(
    ("heads", "levels"),
    [
        (None, ["2-1", "2-2", "2-3", "2-4"]),
        (["2-3", "1-4", "2-3"], ["1-4", "2-3"]),
        (["1", "2-2", "1-1"], ["1-1", "1-2", "1-3", "1-4", "2-2"]),
    ],
)
@torch.no_grad()
def test_levels_are_the_rows_of_the_first_piece_lowest_first(
    heads: list[str] | None, levels: list[str], folder: Path
) -> None:
    model = classifier(folder, heads)
    output = model(batch(time=11))
    own = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    assert list(output.levels) == levels
    for place, text in enumerate(TEXTS):
        segments = batch().segments[place : place + 1, : len(text)]
        alone = own(torch.tensor([text]), token_type_ids=segments, output_attentions=True)
        torch.testing.assert_close(output.logits[place], alone.logits[0], atol=1e-6, rtol=1e-6)
        for name, level in output.levels.items():
            layer, head = (int(number) - 1 for number in name.split("-"))
            row = alone.attentions[layer][0, head, 0]
            torch.testing.assert_close(level.weights[place, : len(text)], row, atol=1e-6, rtol=0)
            assert not level.weights[place, len(text) :].any()
            assert level.mask[place].tolist() == [True] * len(text) + [False] * (11 - len(text))
            assert level.groups is None
    assert output.embedded.shape == (3, 11, 32)


@pytest.mark.parametrize("heads", [["6_1"], ["0-1"], ["1-0"], ["last"], ["1-2-3"], [""]])
def test_a_head_that_is_written_otherwise_is_refused(heads: list[str]) -> None:
    with pytest.raises(ModelError, match=r"--model\.init_args\.heads.*is no head.*6-1"):
        TransformerClassifier(heads)


@pytest.mark.parametrize("head", ["3-1", "3", "1-5"])
def test_a_head_that_the_transformer_has_not_is_refused(head: str, folder: Path) -> None:
    with pytest.raises(ModelError, match=rf"there is no {head} in .*bert.*2 layers of 4 heads"):
        classifier(folder, [head])


def test_texts_that_are_cut_into_words_are_refused() -> None:
    with pytest.raises(ModelError, match=r"cut into words: --data\.init_args\.tokenizer\.name"):
        TransformerClassifier().build(TextSizes(CLASSES, VOCABULARY))


@pytest.mark.parametrize("warmup", [-0.1, 1.0])
def test_a_warmup_that_is_no_share_is_refused(warmup: float) -> None:
    with pytest.raises(ModelError, match=r"--model\.init_args\.warmup"):
        TransformerClassifier(warmup=warmup)


# Imposed attention


@torch.no_grad()
def test_imposed_weights_are_used_exactly_and_its_own_change_nothing(folder: Path) -> None:
    model = classifier(folder, ["1", "2"])
    output = model(batch())
    own = {name: level.weights for name, level in output.levels.items()}
    assert torch.equal(model(batch(), imposed=own).logits, output.logits)
    torch.testing.assert_close(model.decide(output, own), output.logits, atol=1e-6, rtol=0)
    torch.testing.assert_close(model.decide(output, {}), output.logits, atol=1e-6, rtol=0)
    imposed = {"1-2": rows(), "2-4": 0.5 * rows()}
    changed = model(batch(), imposed=imposed)
    assert all(torch.equal(changed.levels[name].weights, row) for name, row in imposed.items())
    assert all(torch.equal(changed.levels[f"1-{head}"].weights, own[f"1-{head}"]) for head in (1, 3, 4))
    assert not torch.allclose(changed.levels["2-1"].weights, own["2-1"], atol=1e-5)  # it attends to what has changed
    assert not torch.allclose(changed.logits, output.logits, atol=1e-4)


@pytest.mark.parametrize("pieces", [1, 15, 16384], ids=["a text a pass", "two texts a pass", "one pass"])
@torch.no_grad()
def test_decide_is_forward_with_each_of_the_imposed_weights(
    pieces: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.transformer.PIECES", pieces)
    model = classifier(folder, ["1", "2"])
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


def test_gradients_of_decide_are_those_of_forward(folder: Path) -> None:
    model = classifier(folder, ["2-1"])
    output = model(batch())
    own = output.levels["2-1"].weights
    [expected] = torch.autograd.grad(output.logits.square().sum(), own, retain_graph=True)
    weights = own.detach().requires_grad_()
    [found] = torch.autograd.grad(model.decide(output, {"2-1": weights}).square().sum(), weights)
    assert expected.abs().max() > 0
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_a_level_that_there_is_not_is_refused(folder: Path) -> None:
    model = classifier(folder)
    with pytest.raises(ModelError, match=r"no attention 1-1 .* there is 2-1, 2-2, 2-3, 2-4\."):
        model(batch(), imposed={"1-1": rows()})
    with pytest.raises(ModelError, match=r"no attention word.*--model\.init_args\.heads"):
        model.decide(model(batch()), {"word": rows()})


# Training


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.25])
def test_the_rate_is_that_of_a_linear_schedule_with_warmup(warmup: float, folder: Path) -> None:
    model = TransformerClassifier(learning_rate=0.5, warmup=warmup)
    model.build(sizes(folder))
    with patch.object(model, "_trainer", Mock(estimated_stepping_batches=40)):
        configured = model.configure_optimizers()
    schedule, adam = configured["lr_scheduler"]["scheduler"], configured["optimizer"]  # type: ignore[index]
    assert configured["lr_scheduler"]["interval"] == "step"  # type: ignore[index]
    other = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    theirs = get_linear_schedule_with_warmup(other, round(40 * warmup), 40)  # type: ignore[no-untyped-call]
    for _ in range(41):
        assert schedule.get_last_lr() == pytest.approx(theirs.get_last_lr() * 2)
        for each in (adam, other, schedule, theirs):
            each.step()


def test_a_training_without_end_is_refused(folder: Path) -> None:
    model = TransformerClassifier()
    model.build(sizes(folder))
    with (
        patch.object(model, "_trainer", Mock(estimated_stepping_batches=float("inf"))),
        pytest.raises(ModelError, match=r"--trainer\.max_epochs 3"),
    ):
        model.configure_optimizers()


def test_biases_and_normalisations_have_no_weight_decay(folder: Path) -> None:
    model = classifier(folder)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {
        group["weight_decay"]: {names[id(parameter)] for parameter in group["params"]}
        for group in model.parameter_groups()
    }
    assert groups.keys() == {0.01, 0.0}
    assert {name for name in names.values() if name.endswith(".bias") or "LayerNorm" in name} == groups[0.0]
    assert set(names.values()) == groups[0.0] | groups[0.01]


# Runs


def write_corpus(folder: Path) -> dict[str, str]:
    """Texts about coffee, and others: one word decides."""
    words = [word for text in tiny.TEXTS for word in text.lower().split() if word.isalpha() and word != "coffee"]
    random = torch.Generator().manual_seed(0)
    paths = {}
    for split, texts in (("train", 96), ("dev", 24), ("test", 24)):
        lines = ["text\tlabel"]
        for place in range(texts):
            drawn = [words[number] for number in torch.randint(len(words), (5,), generator=random).tolist()]
            drawn[int(torch.randint(5, (), generator=random))] = "coffee" if place % 2 else "dogs"
            lines.append(f"{' '.join(drawn)}\t{'drink' if place % 2 else 'other'}")
        path = folder / f"{split}.tsv"
        path.write_text("\n".join(lines) + "\n")
        paths[split] = str(path)
    return paths


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def data(corpus: Mapping[str, str], folder: Path, cache: Path) -> ClassificationDataModule:
    return ClassificationDataModule(
        dict(corpus), tokenizer=EncoderSpec(str(folder)), positive="drink", batch_size=8, cache=str(cache), seed=0
    )


def trainer(folder: Path, epochs: int = 1, *callbacks: Callback) -> Trainer:
    return Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        default_root_dir=folder,
        callbacks=list(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )


class Modes(Callback):
    """Whether every module trains where training goes on, and none where dev is scored."""

    def __init__(self) -> None:
        self.train: set[bool] = set()
        self.dev: set[bool] = set()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        self.train |= {module.training for module in pl_module.classifier.modules()}  # type: ignore[union-attr]

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        self.dev |= {module.training for module in pl_module.classifier.modules()}  # type: ignore[union-attr]


def test_it_learns_what_decides_and_comes_back_from_its_checkpoint(corpus: Mapping[str, str], tmp_path: Path) -> None:
    bare = tiny.save_bert(tmp_path / "bert")
    seed_everything(0, verbose=False)
    model, modes = TransformerClassifier(["1-1", "2"], learning_rate=3e-3), Modes()
    first = trainer(tmp_path, 8, modes)
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
    trainer(tmp_path).test(again, datamodule=data(corpus, bare, tmp_path), ckpt_path=path, verbose=False)
    assert again.result is not None
    assert again.result.items is not None
    assert again.result.numbers["loss"] == model.result.numbers["loss"]
    assert model.result.items is not None
    assert again.result.items.equals(model.result.items)


def test_a_head_that_comes_with_the_files_is_tested_without_training_and_another_is_not(
    corpus: Mapping[str, str], tmp_path: Path
) -> None:
    tuned = with_head(tmp_path / "tuned", 2)
    model = TransformerClassifier()
    trainer(tmp_path).test(model, datamodule=data(corpus, tuned, tmp_path), verbose=False)
    assert model.result is not None
    assert model.result.items is not None
    split = model.data
    own = AutoModelForSequenceClassification.from_pretrained(tuned).eval()
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
        trainer(tmp_path).test(TransformerClassifier(), datamodule=data(corpus, bare, tmp_path), verbose=False)


def test_a_head_whose_classes_are_in_another_order_is_refused(corpus: Mapping[str, str], tmp_path: Path) -> None:
    """Its first class would be taken for the first label."""
    tuned = with_head(tmp_path / "tuned", 2)
    config = AutoConfig.from_pretrained(tuned)
    for names, fits in ((("OTHER", "DRINK"), False), (("Drink", "Other"), True)):
        config.id2label = dict(enumerate(names))
        config.save_pretrained(tuned)
        model, module = TransformerClassifier(), data(corpus, tuned, tmp_path)
        if fits:
            trainer(tmp_path).test(model, datamodule=module, verbose=False)
            assert model.result is not None
            assert model.result.audit == {"classes_of_the_head": "drink = Drink, other = Other"}
        else:
            with pytest.raises(ModelError, match=r"has the classes OTHER, DRINK in this order.* sorted: drink, other"):
                trainer(tmp_path).test(model, datamodule=module, verbose=False)
