from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from attention.encoder import EncoderError, EncoderSpec, resolve
from models.transformer import Head, SequenceClassifier
from tests import tiny

CLASSES, HEADS, DIM = 3, 4, 8
LENGTHS = (9, 5, 7)


@dataclass(frozen=True)
class Architecture:
    """Where a model keeps what the slow reference needs.

    Attributes:
        save: writes the bare transformer.
        mixed: the module, by layer, that takes what attention has mixed: `[batch, pieces, heads · dim]`.
        projection: the module, by layer, whose output ends with the values: `[batch, pieces, … + key heads · dim]`.
        key_heads: each serves as many heads as there are more of those.
        last: whether the decision is read from the last piece.
    """

    save: Callable[[Path], Path]
    mixed: str
    projection: str
    key_heads: int = HEADS
    last: bool = False


def save_distilbert(folder: Path) -> Path:
    tokenizer = tiny.bert_tokenizer()
    sizes = {"dim": 32, "n_layers": 2, "n_heads": HEADS, "hidden_dim": 40, "max_position_embeddings": 64}
    return tiny.save(folder, tiny.build("distilbert", 0, vocab_size=len(tokenizer), **sizes), tokenizer)


ARCHITECTURES = {
    "bert": Architecture(
        tiny.save_bert, "bert.encoder.layer.{}.attention.output.dense", "bert.encoder.layer.{}.attention.self.value"
    ),
    "roberta": Architecture(
        tiny.save_roberta,
        "roberta.encoder.layer.{}.attention.output.dense",
        "roberta.encoder.layer.{}.attention.self.value",
    ),
    "distilbert": Architecture(
        save_distilbert,
        "distilbert.transformer.layer.{}.attention.out_lin",
        "distilbert.transformer.layer.{}.attention.v_lin",
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
    return {name: save_classifier(tmp_path_factory.mktemp(name), name) for name in ARCHITECTURES}


def save_classifier(folder: Path, name: str) -> Path:
    ARCHITECTURES[name].save(folder)
    return tiny.add_head(folder, CLASSES)


def load(folder: Path, classes: int = CLASSES, **spec: object) -> SequenceClassifier:
    return SequenceClassifier(resolve(EncoderSpec(str(folder), **spec)), classes)  # type: ignore[arg-type]


@pytest.fixture
def classifier(folders: Mapping[str, Path], name: str) -> SequenceClassifier:
    return load(folders[name]).eval()


@pytest.fixture
def own(folders: Mapping[str, Path], name: str) -> PreTrainedModel:
    return own_model(folders[name])


def own_model(folder: Path) -> PreTrainedModel:
    """The same classifier with its own eager attention."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager")
    assert isinstance(model, PreTrainedModel)
    model.train(False)
    return model


def texts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, 60, (length,), generator=generator).tolist() for length in LENGTHS]


def inputs(classifier: SequenceClassifier) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings, mask and segments of the texts, padded."""
    tokens = torch.full((len(LENGTHS), max(LENGTHS) + 2), 7)  # a piece like others: the mask alone says that it pads
    for place, text in enumerate(texts()):
        tokens[place, : len(text)] = torch.tensor(text)
    mask = torch.arange(tokens.size(1)) < torch.tensor(LENGTHS)[:, None]
    return classifier.embed(tokens), mask, torch.zeros_like(tokens)


def other_rows(heads: Sequence[Head], total: float = 1.0) -> dict[Head, Tensor]:
    """Rows `[texts, pieces]` that no softmax has made, each summing to `total`, with nothing in the padding."""
    generator = torch.Generator().manual_seed(2)
    _, length = len(LENGTHS), max(LENGTHS) + 2
    rows = {}
    for head in heads:
        row = torch.rand(len(LENGTHS), length, generator=generator) * (
            torch.arange(length) < torch.tensor(LENGTHS)[:, None]
        )
        rows[head] = total * row / row.sum(1, keepdim=True)
    return rows


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
    for place, text in enumerate(texts()):
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
    for place, text in enumerate(texts()):
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


@each_architecture
def test_gradients_of_its_own_rows_are_those_of_the_same_rows_imposed(classifier: SequenceClassifier) -> None:
    embedded, mask, segments = inputs(classifier)
    found = classifier(embedded, mask, segments, EVERY)
    own = torch.autograd.grad(found.logits[:, 0].sum(), list(found.weights.values()))
    for head, gradient in zip(EVERY, own, strict=True):
        row = found.weights[head].detach().requires_grad_()
        logits = classifier(embedded, mask, segments, [head], {head: row}).logits
        [expected] = torch.autograd.grad(logits[:, 0].sum(), row)
        assert expected.abs().max() > 0
        close(gradient, expected)


# Training


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
    some = {head: imposed[head] for head in heads[:3]}
    assert not torch.allclose(classifier(*inputs(classifier), heads, some).logits, expected, atol=1e-4)
    torch.manual_seed(0)
    found = classifier(*inputs(classifier), heads)
    for row in found.weights.values():  # what is read comes before the dropout
        close(row.sum(1), torch.ones(len(LENGTHS)))


# Texts and pairs


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


# Where the weights come from


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


@each_architecture
def test_random_weights_keep_the_embeddings_alone(folders: Mapping[str, Path], name: str) -> None:
    pretrained = load(folders[name]).model.state_dict()
    drawn = load(folders[name], weights="random", seed=1)
    other = load(folders[name], weights="random", seed=2).model.state_dict()
    found = drawn.model.state_dict()
    assert drawn.drawn
    assert {name for name in found if "classifier" in name or name.startswith("score")} == set(drawn.drawn)
    equal = {name for name in found if torch.equal(found[name], pretrained[name])}
    assert equal
    assert all("embed" in name or "wte" in name or "wpe" in name for name in equal)
    changed = [name for name in found if not torch.equal(found[name], other[name])]
    assert changed
    assert not set(changed) & (equal | set(drawn.drawn))


# What is refused


@pytest.mark.parametrize(
    ("damage", "classes", "message"),
    [
        (None, 2, r"classifier\.\w+ has the shape \(3.*, and 2 classes need \(2"),
        (leave_out_a_layer, CLASSES, r"lack 16 weights of BertForSequenceClassification, bert\.encoder\.layer\.1"),
        (name_no_activation, CLASSES, r"as a classifier of 3 classes: KeyError: .*nonsense"),
    ],
)
def test_files_of_another_head_or_that_are_damaged_are_refused_by_name(
    damage: Callable[[Path], None] | None, classes: int, message: str, tmp_path: Path
) -> None:
    folder = save_classifier(tmp_path, "bert")
    if damage is not None:
        damage(folder)
    with pytest.raises(EncoderError, match=message) as refusal:
        load(folder, classes)
    assert str(folder) in str(refusal.value)


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "deberta-v2": ({}, "outside transformers' attention interface"),
    "mamba": ({"state_size": 4}, "cannot be loaded as a classifier of 3 classes"),
    "t5": ({"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4}, "is an encoder-decoder"),
    "modernbert": (
        {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
        | {"classifier_pooling": "mean"},
        r"decides by the pieces \[0, 1, 2, 3, 4, 5\] of 6",
    ),
}
SIZES: dict[str, object] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize("model_type", REFUSED)
def test_an_architecture_whose_decision_has_no_row_is_refused_by_name(model_type: str, tmp_path: Path) -> None:
    further, reason = REFUSED[model_type]
    sizes = further if model_type == "t5" else SIZES | further
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
    with pytest.raises(EncoderError, match=r"GPT2.*differs from its own by"):
        load(folders["gpt2"])
