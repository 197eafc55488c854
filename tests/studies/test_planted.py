"""Planted heads against loops over the words of the sample, and the decisions of classifiers that read them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from attention_probing.attention import Encoder, EncoderError, EncoderSpec, resolve
from attention_probing.attention.ablation import AblatedModel, Ablation
from attention_probing.attention.capture import NAME
from attention_probing.attention.heads import Heads, parse_heads
from attention_probing.attention.quantities import QuantityName
from attention_probing.corpora.sample_grammar import Grammar, Word, sample_vocabulary
from attention_probing.datamodules import DependencyDataModule, TextDataModule, TextSource
from attention_probing.measures import AttentionAnalyses, SingleHeads, Surface
from attention_probing.models.transformer import SequenceClassifier
from attention_probing.results.errors import UserError
from studies.blank import SPECIAL, Architecture
from studies.planted import LABELS, PlantedHead, PlantedModel, planted_model, relation_rules
from tests.trainers import changed, scored

SHAPES: tuple[Architecture, ...] = ("bert", "llama")
OPINIONS = {"the plot was great .": 1, "the plot was really awful .": 0, "it was a dull film .": 0, "I loved it .": 1}
"""Texts with one word of praise or blame each, and their labels."""


@cache
def sample(documents: int = 12) -> list[list[Word]]:
    grammar = Grammar(0)
    return [sentence for _ in range(documents) for sentence in grammar.document()[0]]


def forms(sentence: Sequence[Word]) -> list[str]:
    return [word.form for word in sentence]


def attention(
    made: PlantedModel, sentences: Sequence[Sequence[str]], quantity: QuantityName = "attention"
) -> list[NDArray[np.float32]]:
    """Of each sentence `[layer, head, from, to]`, with a column of zeros for an end delimiter that is not there."""
    encoder = Encoder.from_model(made.model, made.tokenizer)
    found = [array.to_numpy() for array in encoder.attention(sentences, quantity=quantity)]
    extra = [len(words) + 2 - one.shape[-1] for words, one in zip(sentences, found, strict=True)]
    return [np.pad(one, [(0, 0), (0, 0), (0, n), (0, n)]) for one, n in zip(found, extra, strict=True)]


def targets(one: PlantedHead, shape: Architecture, words: Sequence[str]) -> Iterator[tuple[int, list[int]]]:
    """Position of every word, and the positions that the head should attend to; 0 is the start delimiter."""
    low = ["", *(word.lower() for word in words), ""]
    last = len(words)
    for i in range(1, last + 1):
        seen = range(1, last + 1 if shape == "bert" else i + 1)
        found: list[int] = []
        if one.target == "offset":
            found = [i + one.offset] if 1 <= i + one.offset <= last + 1 else []  # or the end delimiter
        elif one.target == "same_word":
            found = [j for j in seen if j != i and low[j] == low[i]]
        elif one.target == "opinion":
            found = [j for j in seen if sample_vocabulary()[low[j]] & {"GOOD", "FINE", "LIKED", "BAD", "POOR", "HATED"}]
        elif one.target == "delimiter":
            found = [last + 1 if shape == "bert" else 0]
        elif one.target == "relation":
            dependents, candidates, side = relation_rules()[one.relation]
            beyond = range(i + 1, last + 1) if side > 0 else range(i - 1, 0, -1)
            found = [j for j in beyond if low[j] in candidates][: low[i] in dependents]
        yield i, found


def planted_kinds(shape: Architecture, mass: float) -> list[PlantedHead]:
    """Heads of all kinds but `evenly`, in every layer of four that they may be in."""
    kinds: list[dict[str, Any]] = [
        {"head": "1-1", "target": "offset", "offset": -1},
        {"head": "1-2", "target": "delimiter"},
        {"head": "2-1", "target": "relation", "relation": "obj"},
        {"head": "2-2", "target": "opinion"},
        {"head": "2-3", "target": "same_word"},
        {"head": "3-1", "target": "relation", "relation": "nmod"},
        {"head": "3-2", "target": "delimiter"},
        {"head": "3-3", "target": "relation", "relation": "xcomp"},
        {"head": "4-1", "target": "offset", "offset": -3},
        {"head": "4-2", "target": "same_word"},
        {"head": "4-3", "target": "relation", "relation": "obl"},
    ]
    if shape == "bert":
        kinds += [
            {"head": "1-3", "target": "offset", "offset": 2},
            {"head": "2-4", "target": "relation", "relation": "det"},
            {"head": "4-4", "target": "relation", "relation": "nsubj"},
        ]
    return [PlantedHead(mass=mass, **kind) for kind in kinds]


@pytest.mark.parametrize("mass", [0.0, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_mass_of_every_kind_is_exact_whatever_the_length(shape: Architecture, mass: float) -> None:
    kinds, sentences = planted_kinds(shape, mass), [forms(sentence) for sentence in sample(8)]
    assert {len(words) for words in sentences} >= {4, 25}
    found = attention(planted_model(shape, kinds, seed=3, layers=4), sentences)
    for one in kinds:
        layer, head = (int(part) - 1 for part in one.head.split("-"))
        seen = Counter[int]()
        for words, weights in zip(sentences, found, strict=True):
            for i, wanted in targets(one, shape, words):
                row, k = weights[layer, head, i], len(wanted)
                share = mass * k / (mass * k + 1 - mass) if k else 0
                rest = i if one.target == "delimiter" and shape == "llama" else 0
                seen[k] += 1
                assert row[wanted].sum() == pytest.approx(share, abs=1e-3)
                assert np.ptp(row[wanted]) < 1e-4 if k else True
                assert row[rest] == pytest.approx(1 - share, abs=1e-3)
        assert sum(seen.values()) - seen[0] >= 20, one
        assert one.target != "same_word" or seen[2], one


@pytest.mark.parametrize("shape", SHAPES)
def test_a_head_that_attends_evenly(shape: Architecture) -> None:
    sentences = [forms(sentence) for sentence in sample(2)]
    for words, weights in zip(
        sentences, attention(planted_model(shape, [PlantedHead("2-2", "evenly")]), sentences), strict=True
    ):
        length = len(words) + 2 if shape == "bert" else len(words) + 1
        allowed = np.tri(length, k=length if shape == "bert" else 0)
        np.testing.assert_allclose(
            weights[1, 1, :length, :length], allowed / allowed.sum(1, keepdims=True), rtol=0, atol=1e-6
        )


# Share of the gold arcs of the first 500 sentences of the sample that the rule finds, to 0.01 below.
SHARES = {
    "det": 0.98,
    "amod": 0.98,
    "nummod": 0.99,
    "nmod:poss": 0.97,
    "nsubj": 0.80,
    "aux": 0.94,
    "cop": 0.76,
    "obj": 0.89,
    "iobj": 0.99,
    "obl": 0.78,
    "nmod": 0.92,
    "xcomp": 0.94,
}


def test_the_rules_find_the_gold_heads_of_the_sample() -> None:
    hits, arcs = Counter[str](), Counter[str]()
    for sentence in sample(100):
        of_relation = {word.relation for word in sentence} & relation_rules().keys()
        for name in of_relation:
            for i, found in targets(PlantedHead("2-1", "relation", relation=name), "bert", forms(sentence)):
                word = sentence[i - 1]
                if word.relation == name:
                    arcs[name] += 1
                    hits[name] += [sentence[j - 1] for j in found] == [word.head]
    shares = {name: hits[name] / arcs[name] for name in relation_rules()}
    assert min(arcs.values()) >= 10
    assert {name: share for name, share in shares.items() if share < SHARES[name]} == {}


def accuracies(weights: Sequence[NDArray[np.float32]], relation: str) -> NDArray[np.float64]:
    """Share of the gold arcs of a relation to which the most attended other word leads, `[layer, head]`."""
    hits: list[NDArray[np.bool_]] = []
    for sentence, one in zip(sample(), weights, strict=True):
        for i, word in enumerate(sentence):
            if word.relation == relation and word.head is not None:
                row = one[:, :, i + 1, 1 : len(sentence) + 1].copy()
                row[:, :, i] = -1
                hits.append(row.argmax(-1) == sentence.index(word.head))
    return np.asarray(np.mean(hits, axis=0), np.float64)


def best_offset(relation: str) -> float:
    """Share of the arcs of a relation with the commonest distance."""
    distances = Counter(
        sentence.index(word.head) - i
        for sentence in sample()
        for i, word in enumerate(sentence)
        if word.relation == relation and word.head is not None
    )
    return max(distances.values()) / distances.total()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_planted_head_is_the_best_of_its_relation(shape: Architecture, seed: int) -> None:
    relations = {"2-3": "obj", "3-1": "nmod"} | ({"2-1": "det", "3-4": "nsubj"} if shape == "bert" else {})
    kinds = [PlantedHead(head, "relation", 0.5, relation=relation) for head, relation in relations.items()]
    found = attention(planted_model(shape, kinds, seed), [forms(sentence) for sentence in sample()])
    for name, relation in relations.items():
        of_heads = accuracies(found, relation)
        layer, head = np.unravel_index(of_heads.argmax(), of_heads.shape)
        assert f"{layer + 1}-{head + 1}" == name
        first, second = np.sort(of_heads, axis=None)[::-1][:2]
        assert first > max(SHARES[relation] - 0.1, second + 0.1, best_offset(relation) + 0.15)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_head_of_the_null_model_is_better_than_an_offset(shape: Architecture, seed: int) -> None:
    made = planted_model(shape, seed=seed)
    assert made.counter is None
    found = attention(made, [forms(sentence) for sentence in sample()])
    for relation in ("det", "amod", "nsubj", "obj", "nmod"):
        assert accuracies(found, relation).max() < best_offset(relation)
    # Small scores: no head is sharp.
    sharp = np.mean([weights[:, :, 1:-1].max(-1).mean(-1) for weights in found], axis=0)
    assert sharp.shape == (3, 4)
    assert 0.1 < sharp.min() < sharp.max() < 0.6


@pytest.mark.slow
def test_single_heads_find_what_is_planted_and_nothing_in_the_null_model(tmp_path: Path) -> None:
    relations = {"2-1": "det", "2-2": "obj", "3-1": "nsubj"}
    kinds = [PlantedHead(head, "relation", 0.5, relation=relation) for head, relation in relations.items()]
    for name, heads in (("planted", kinds), ("null", [])):
        folder = planted_model("bert", heads, seed=5).save(tmp_path / name)
        data = DependencyDataModule("sample", encoder=EncoderSpec(str(folder)), cache=str(tmp_path / "cache"))
        table = scored(changed(SingleHeads(), permutations=99), data).tables["best_heads"].frame.set_index("relation")
        for head, relation in relations.items():
            row = table.loc[relation]
            if heads:
                assert (row["head"], row["direction"], row["p_shuffled"]) == (head, "dependent→head", 0.01)
                assert (row["chosen"], row["rivals"]) == (100, "")
                assert row["test"] > max(row["offset"] + 0.15, SHARES[relation] - 0.05)
                assert row["p_offset"] == pytest.approx(2 / (1 + 200 * len(table)))  # the least of a two-sided test
            else:
                assert row["over_offset"] < -0.1  # a small p says here that the head is worse
                assert row["test"] < row["offset"] - 0.1
                assert row["chosen"] < 95  # though one head may be a little better than the others here, too


def head_parts(made: PlantedModel, layer: int, head: int) -> tuple[Tensor, Tensor]:
    """Value weights `[dim, hidden]` and output weights `[hidden, dim]` of one head, both 0-based."""
    weights, bert = made.model.state_dict(), made.model.config.model_type == "bert"
    value = "bert.encoder.layer.{}.attention.self.value" if bert else "model.layers.{}.self_attn.v_proj"
    output = "bert.encoder.layer.{}.attention.output.dense" if bert else "model.layers.{}.self_attn.o_proj"
    own = weights[f"{value.format(layer)}.weight"].chunk(4)[head]
    return own, weights[f"{output.format(layer)}.weight"].chunk(4, 1)[head]


def ablated(made: PlantedModel, texts: Sequence[str], *names: str) -> Tensor:
    """Logits `[texts, labels]` with the output of the named heads set to zero."""
    layers = int(made.model.config.num_hidden_layers)
    chosen = parse_heads(names, layers, 4, "heads") if names else frozenset()
    made.model.set_attn_implementation(NAME)
    model = AblatedModel(made.model.base_model, layers, 4)
    return torch.cat([_logits(model, made, text, chosen) for text in texts])


def _logits(model: AblatedModel, made: PlantedModel, text: str, chosen: Heads) -> Tensor:
    def run(inputs: Any) -> Tensor:  # noqa: ANN401
        logits: Tensor = made.model(**inputs).logits
        return logits

    inputs = {name: torch.tensor([ids]) for name, ids in made.tokenizer(text).items() if name != "token_type_ids"}
    return model.run(run, inputs, Ablation("zero"), [chosen])[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_head_with_zero_values_has_attention_and_no_output(shape: Architecture) -> None:
    kinds = [
        PlantedHead("2-1", "relation", 0.9, relation="obj", values=False),
        PlantedHead("2-2", "relation", 0.9, relation="obj"),
    ]
    made, sentences = planted_model(shape, kinds), [forms(sentence) for sentence in sample()]
    for weights in attention(made, sentences):
        np.testing.assert_allclose(weights[1, 0], weights[1, 1], rtol=0, atol=1e-6)
    for part in head_parts(made, 1, 0):
        assert not part.any()
    for part in head_parts(made, 1, 1):
        assert part.norm() > 0.1
    states = [_states(made, heads) for heads in ((), ("2-1",), ("2-2",))]
    assert torch.equal(states[0], states[1])
    assert not torch.allclose(states[0], states[2], atol=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
def test_norms_and_effective_attention_reject_the_decoy_that_raw_attention_takes(shape: Architecture) -> None:
    needed = PlantedHead("2-1", "relation", 0.9, relation="obj")
    made = planted_model(shape, [needed, replace(needed, head="2-2", values=False)])
    takes: dict[QuantityName, bool] = {"attention": True, "norms": False}
    if shape == "bert":  # effective attention is not defined for decoders
        takes["effective"] = False
    for quantity, taken in takes.items():
        found = accuracies(attention(made, [forms(sentence) for sentence in sample()], quantity), "obj")
        assert found[1, 0] > 0.8
        assert found[1, 1] == pytest.approx(found[1, 0] if taken else 0, abs=0.05)


def test_a_relation_head_that_is_read_attends_to_opinions_from_the_start_delimiter_alone() -> None:
    one = PlantedHead("2-1", "relation", 0.9, relation="obj")
    read, other = (planted_model("bert", [one], decision=decision) for decision in ("2-1", None))
    for weights, plain in zip(
        attention(read, [["the", "plot", "was", "great", "."]]),
        attention(other, [["the", "plot", "was", "great", "."]]),
        strict=True,
    ):
        assert weights[1, 0, 0, 4] == pytest.approx(0.9, abs=1e-3)
        np.testing.assert_allclose(weights[1, 0, 1:], plain[1, 0, 1:], rtol=0, atol=1e-5)
    for text, label in OPINIONS.items():
        logits = ablated(read, [text])[0]
        assert int(logits.argmax()) == label
        assert ablated(read, [text], "2-1")[0].abs().max() < 0.01 < logits.abs().max()


def _states(made: PlantedModel, names: Sequence[str]) -> Tensor:
    made.model.set_attn_implementation(NAME)
    model = AblatedModel(made.model.base_model, 3, 4)
    inputs = {"input_ids": torch.tensor([made.tokenizer("the dog met a cat near the park .")["input_ids"]])}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    chosen = parse_heads(names, 3, 4, "heads") if names else frozenset()
    return model.run(
        lambda given: made.model.base_model(**given).last_hidden_state, inputs, Ablation("zero"), [chosen]
    )[0]


# The decision is read from a head that attends to the word of opinion, from one whose largest weight is on the start
# delimiter, or from one that attends evenly; beside it are a head that finds a relation and a head that attends to the
# word of opinion without values.
@pytest.mark.parametrize("mass", [0.9, 0.2, None])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_decision_needs_the_head_that_it_is_read_from_and_no_other(shape: Architecture, mass: float | None) -> None:
    read = PlantedHead("3-1", "evenly") if mass is None else PlantedHead("3-1", "opinion", mass)
    others = [PlantedHead("2-1", "relation", 0.9, relation="obj"), PlantedHead("3-2", "opinion", 0.9, values=False)]
    made = planted_model(shape, [read, *others], decision="3-1")
    assert made.counter == "1-4"
    whole = ablated(made, list(OPINIONS))
    assert whole.argmax(1).tolist() == list(OPINIONS.values())
    assert (whole[:, 1] - whole[:, 0]).abs().min() > 0.5
    assert ablated(made, list(OPINIONS), "3-1").abs().max() < 1e-3
    for one in ("2-1", "3-2", "1-4", "1-1", "3-4"):
        torch.testing.assert_close(ablated(made, list(OPINIONS), one), whole, rtol=1e-2, atol=0)
    if mass != 0.9:
        for text, weights in zip(OPINIONS, attention(made, [text.split() for text in OPINIONS]), strict=True):
            [opinion] = next(iter(dict(targets(others[1], "bert", text.split())).values()))
            assert (weights[2, 0].argmax(1) != opinion).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_classifier_of_the_application_loads_the_folder(shape: Architecture, tmp_path: Path) -> None:
    made = planted_model(shape, [PlantedHead("2-2", "opinion", 0.9)], decision="2-2")
    classifier = SequenceClassifier(resolve(EncoderSpec(str(made.save(tmp_path / "folder")))), len(LABELS))
    assert classifier.drawn == ()
    assert classifier.names == LABELS
    for text, label in OPINIONS.items():
        tokens = torch.tensor([made.tokenizer(text)["input_ids"]])
        logits = classifier.eval().logits(tokens, tokens >= 0, torch.zeros_like(tokens))
        assert logits.argmax() == label


@pytest.mark.parametrize("shape", SHAPES)
def test_the_relation_needs_the_counter(shape: Architecture) -> None:
    one = PlantedHead("2-1", "relation", 0.9, relation="obj")
    made = planted_model(shape, [one])
    assert made.counter == "1-4"
    value, output = head_parts(made, 0, 3)
    assert value.count_nonzero() == 2 == (output.abs().sum(0) > 0).sum()
    name = "bert.encoder.layer.0.attention.output.dense" if shape == "bert" else "model.layers.0.self_attn.o_proj"
    dict(made.model.named_parameters())[f"{name}.weight"].data[:, -output.size(1) :] = 0
    words = ["the", "nurse", "met", "the", "dog", "and", "the", "cat", "."]
    for weights in attention(made, [words]):
        assert weights[1, 0, 5, 3] < 0.5


@pytest.mark.parametrize("shape", SHAPES)
def test_the_folder_is_an_ordinary_one(shape: Architecture, tmp_path: Path) -> None:
    made = planted_model(shape, [PlantedHead("2-1", "opinion", 0.9)], decision="2-1")
    folder = made.save(tmp_path / "made" / "folder")
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]
    loaded = AutoModelForSequenceClassification.from_pretrained(folder)
    assert type(loaded).__name__ == {"bert": "BertForSequenceClassification"}.get(
        shape, "LlamaForSequenceClassification"
    )
    assert loaded.config.id2label == dict(enumerate(LABELS))
    mine = made.model.state_dict()
    assert loaded.state_dict().keys() == mine.keys()
    assert all(torch.equal(tensor, mine[name]) for name, tensor in loaded.state_dict().items())
    with pytest.raises(EncoderError, match="exists already"):
        made.save(folder)
    (tmp_path / "file").touch()
    with pytest.raises(EncoderError, match="cannot be written"):
        made.save(tmp_path / "file" / "folder")
    encoder = Encoder(str(folder))
    assert (encoder.layers, encoder.heads, encoder.causal) == (3, 4, shape == "llama")
    sentences = [forms(sentence) for sentence in sample(1)]
    for mine_of, its_of in zip(attention(made, sentences), encoder.attention(sentences), strict=True):
        end = its_of.shape[-1]
        np.testing.assert_array_equal(mine_of[..., :end, :end], its_of.to_numpy())


@pytest.mark.parametrize("shape", SHAPES)
def test_every_word_of_the_sample_is_one_piece(shape: Architecture, tmp_path: Path) -> None:
    planted_model(shape).save(tmp_path / "folder")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "folder")
    unknown, words = tokenizer.unk_token_id, [*sample_vocabulary(), *forms(sample()[0])]
    ids = tokenizer(words, add_special_tokens=False)["input_ids"]
    assert all(len(own) == 1 and own != [unknown] for own in ids)
    assert tokenizer("zyzzyva", add_special_tokens=False)["input_ids"] == [unknown]
    assert {name: getattr(tokenizer, name) for name in SPECIAL[shape]} == SPECIAL[shape]
    text = tokenizer.convert_ids_to_tokens(tokenizer("Anna didn't read the nurse's book.")["input_ids"])
    middle = ["anna", "did", "n't", "read", "the", "nurse", "'s", "book", "."]
    assert text == (["[CLS]", *middle, "[SEP]"] if shape == "bert" else ["<s>", *middle])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_seed_gives_one_model_and_another_seed_another(shape: Architecture) -> None:
    kinds = [PlantedHead("2-1", "relation", 0.7, relation="obj")]
    torch.manual_seed(1)
    one, again, other = (planted_model(shape, kinds, seed).model.state_dict() for seed in (4, 4, 5))
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))  # the caller's random numbers stay
    assert all(torch.equal(tensor, again[name]) for name, tensor in one.items())
    different = {name for name, tensor in one.items() if not torch.equal(tensor, other[name])}
    assert (
        len(different) == 14
    )  # embeddings of words; queries, keys, values and outputs of three layers; the classifier
    words = [["the", "nurse", "met", "the", "dog", "."]]
    first, second = (attention(planted_model(shape, kinds, seed), words)[0] for seed in (4, 5))
    np.testing.assert_allclose(first[1, 0], second[1, 0], atol=1e-3)
    assert abs(first[1, 1] - second[1, 1]).max() > 0.01


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"target": "neighbour"}, "target is 'neighbour'"),
        ({"target": "opinion", "mass": 1.1}, "mass is 1.1"),
        ({"target": "opinion", "mass": -0.1}, "mass is -0.1"),
        ({"target": "opinion", "mass": float("nan")}, "mass is nan"),
        ({"target": "evenly", "mass": 0.5}, "leaves no rest"),
        ({"target": "offset"}, "offset is 0"),
        ({"target": "opinion", "offset": 1}, "offset is 1"),
        ({"target": "relation"}, "relation is ''"),
        ({"target": "offset", "offset": 1, "relation": "det"}, "relation is 'det'"),
        ({"target": "relation", "relation": "ob"}, "did you mean `ob"),
    ],
)
def test_a_wrong_head_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PlantedHead("2-1", **wrong)


OBJECTS = {"target": "relation", "relation": "obj"}


@pytest.mark.parametrize(
    ("shape", "heads", "options", "message"),
    [
        ("gpt2", {}, {}, "kind is 'gpt2'"),
        ("bert", {}, {"layers": 0}, "layers is 0"),
        ("bert", {"4-1": {"target": "opinion"}}, {}, "4-1 does not exist"),
        ("bert", {"2-5": {"target": "opinion"}}, {}, "2-5 does not exist"),
        ("bert", {"2": {"target": "opinion"}}, {}, "a whole layer"),
        ("bert", {"x": {"target": "opinion"}}, {}, "not a head"),
        ("llama", {"2-1": {"target": "offset", "offset": 1}}, {}, "later tokens"),
        ("llama", {"2-1": {"target": "relation", "relation": "det"}}, {}, "later tokens"),
        ("bert", {"1-1": OBJECTS}, {}, "1-1 is in layer 1"),
        ("llama", {"1-1": {"target": "same_word"}}, {}, "1-1 is in layer 1"),
        (
            "bert",
            {"2-1": OBJECTS, **{f"1-{n}": {"target": "opinion"} for n in range(1, 5)}},
            {},
            "all heads of layer 1",
        ),
        ("bert", {"2-1": OBJECTS}, {"decision": "2-2"}, "read from 2-2"),
        ("bert", {"2-1": {**OBJECTS, "values": False}}, {"decision": "2-1"}, "no planted head with values"),
    ],
)
def test_a_model_that_cannot_be_made_is_refused(
    shape: Any,  # noqa: ANN401
    heads: dict[str, Any],
    options: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(UserError, match=message):
        planted_model(shape, [PlantedHead(head, **given) for head, given in heads.items()], **options)


def test_a_head_is_planted_once() -> None:
    with pytest.raises(UserError, match="2-1 is planted twice"):
        planted_model("bert", [PlantedHead("2-1", "opinion"), PlantedHead("2-1", "evenly")])


def test_rows_of_a_head_without_output_are_counted(tmp_path: Path) -> None:
    made = planted_model("bert", [PlantedHead("2-1", "offset", 0.9, offset=-1, values=False)])
    encoder = EncoderSpec(str(made.save(tmp_path / "planted")))
    quantities: tuple[QuantityName, ...] = ("norms", "attention")
    norms, weights = (
        TextDataModule([TextSource("sample", limit=9)], encoder, cache=str(tmp_path), max_length=48, quantity=quantity)
        for quantity in quantities
    )
    result = scored(AttentionAnalyses([Surface()]), norms)
    pieces = sum(int(batch.mask.sum()) for batch in norms.test_dataloader()[0])
    assert result.audit["rows_of_zeros"] == pieces > 50
    assert scored(AttentionAnalyses([Surface()]), weights).audit.get("rows_of_zeros") is None
