"""Heads that are replaced: what a model says, against loops over texts that change what its projections read."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from attention_probing.attention.ablation import AblatedModel, Ablation, Kind, ReferenceOutputs, partners_of_pairs
from attention_probing.attention.capture import NAME
from attention_probing.attention.heads import Head, Heads, parse_heads
from attention_probing.attention.source import EncoderError
from attention_probing.results.errors import UserError
from tests.attention.architectures import DIM, HEADS, build, projections

MODELS = ("bert", "roberta", "electra", "distilbert", "gpt2", "llama", "gpt_neox", "gemma3_text")
SETS: Sequence[Heads] = (
    frozenset(),
    *(frozenset({(layer, head)}) for layer in range(3) for head in (0, 3)),
    frozenset({(0, 1), (0, 2)}),
    frozenset({(1, 0), (2, 1), (2, 3)}),
    frozenset((layer, head) for layer in range(3) for head in range(4)),
)
LENGTHS = (7, 3, 5, 11)


def made(name: str) -> PreTrainedModel:
    model = build(name, 1)
    model.set_attn_implementation(NAME)
    return model


def texts(seed: int = 0, lengths: Sequence[int] = LENGTHS) -> dict[str, Tensor]:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    tokens = torch.randint(3, 40, mask.shape, generator=torch.Generator().manual_seed(seed))
    return {"input_ids": tokens * mask, "attention_mask": mask.long()}


def measure_of(model: PreTrainedModel) -> Callable[[Mapping[str, Tensor]], Tensor]:
    """The sum of the last hidden states of the real positions of each text."""

    def measure(inputs: Mapping[str, Tensor]) -> Tensor:
        hidden: Tensor = model(**inputs).last_hidden_state
        return (hidden * inputs["attention_mask"][:, :, None]).sum(1)

    return measure


def alone(inputs: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    """One text without padding."""
    length = int(inputs["attention_mask"][row].sum())
    return {name: tensor[row : row + 1, :length] for name, tensor in inputs.items()}


def read_by(model: PreTrainedModel, name: str, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """What the projection of each layer reads of one text, `[length, heads, dim]`."""
    found: list[Tensor] = []
    hooks = [
        one.register_forward_pre_hook(lambda _, args: found.append(args[0][0].unflatten(-1, (HEADS, DIM)).clone()))
        for one in projections(model, name)
    ]
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return found


def hooked(model: PreTrainedModel, inputs: Mapping[str, Tensor], hooks: Sequence[RemovableHandle]) -> Tensor:
    """What `measure_of` says of the first text under these hooks, which are then removed."""
    with torch.no_grad():
        found = measure_of(model)(inputs)[0]
    for hook in hooks:
        hook.remove()
    return found


def changed(model: PreTrainedModel, name: str, inputs: Mapping[str, Tensor], given: Mapping[Head, Tensor]) -> Tensor:
    """What `measure_of` says of one text whose projections read these numbers `[length, dim]` of some heads.

    A number that is nan is not changed.
    """

    def change(layer: int) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            read = args[0].clone()
            for (of, head), own in given.items():
                if of == layer:
                    columns = read[0, :, DIM * head : DIM * (head + 1)]
                    columns.copy_(own.where(~own.isnan(), columns))
            return (read, *args[1:])

        return hook

    hooks = [one.register_forward_pre_hook(change(layer)) for layer, one in enumerate(projections(model, name))]
    return hooked(model, inputs, hooks)


@pytest.mark.parametrize("name", MODELS)
def test_zeros_are_columns_of_the_output_projection_that_read_nothing(name: str) -> None:
    model, inputs = made(name), texts()
    ablated = AblatedModel(model, 3, HEADS)
    assert ablated.shares
    found = ablated.run(measure_of(model), inputs, Ablation("zero"), SETS)
    for place, heads in enumerate(SETS):
        for row in range(len(LENGTHS)):
            expected = changed(model, name, alone(inputs, row), dict.fromkeys(heads, torch.zeros(())))
            torch.testing.assert_close(found[place, row], expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 2.0])
def test_scaled_heads_are_columns_of_the_output_projection_that_read_them_times_a_factor(
    name: str, factor: float
) -> None:
    model, inputs = made(name), texts(0, (7, 4))
    sets = SETS[:8]  # of which each has heads of one layer, whose outputs are those of the intact model
    found = AblatedModel(model, 3, HEADS).run(measure_of(model), inputs, Ablation("scale", factor=factor), sets)
    for row in range(2):
        text = alone(inputs, row)
        read = read_by(model, name, text)
        for place, heads in enumerate(sets):
            given = {(layer, head): factor * read[layer][:, head] for layer, head in heads}
            torch.testing.assert_close(found[place, row], changed(model, name, text, given), atol=2e-5, rtol=1e-5)


def test_a_scaled_head_above_another_is_scaled_after_the_other() -> None:
    model, inputs = made("llama"), texts(0, (7,))
    both = frozenset({(0, 1), (2, 3)})
    [found] = AblatedModel(model, 3, HEADS).run(measure_of(model), inputs, Ablation("scale", factor=0.5), [both])

    def halve(layer: int, head: int) -> RemovableHandle:
        columns = slice(DIM * head, DIM * (head + 1))

        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            read = args[0].clone()
            read[..., columns] *= 0.5
            return (read,)

        return projections(model, "llama")[layer].register_forward_pre_hook(hook)

    expected = hooked(model, inputs, [halve(layer, head) for layer, head in sorted(both)])
    torch.testing.assert_close(found[0], expected, atol=2e-5, rtol=1e-5)


PAIRS = (("abcdef", "abxdef"), ("abcdef", "abxyzdef"), ("aab", "aaab"), ("abc", "abc"), ("abcd", "xyz"), ("ab", "abc"))


def pairs_of_letters(pairs: Sequence[tuple[str, str]]) -> tuple[Tensor, Tensor]:
    """Tokens `[2 · pairs, longest]` and lengths of some pairs of texts, a letter a token."""
    both = [text for pair in pairs for text in pair]
    longest = max(map(len, both))
    tokens = torch.tensor([[ord(letter) - 90 for letter in text] + [0] * (longest - len(text)) for text in both])
    return tokens, torch.tensor([len(text) for text in both])


def slow_partner(own: Sequence[int], other: Sequence[int], place: int) -> int | None:
    """Position of the partner of a token in the other text; None if it has none."""
    shorter, start, end = min(len(own), len(other)), 0, 0
    while start < shorter and own[start] == other[start]:
        start += 1
    while end < shorter - start and own[-1 - end] == other[-1 - end]:
        end += 1
    if place >= len(own) - end:
        return len(other) - (len(own) - place)
    return place if place < len(other) - end else None


def test_partners_are_those_of_a_loop_over_tokens() -> None:
    random = np.random.default_rng(0)
    drawn = [tuple("".join(random.choice([*"ab"], random.integers(1, 8))) for _ in range(2)) for _ in range(200)]
    pairs = [*PAIRS, *drawn]
    tokens, lengths = pairs_of_letters(pairs)  # type: ignore[arg-type]
    rows, places = partners_of_pairs(tokens, lengths)
    for row in range(len(tokens)):
        own, other = (tokens[one, : lengths[one]].tolist() for one in (row, row ^ 1))
        for place in range(tokens.size(1)):
            partner = slow_partner(own, other, place) if place < len(own) else None
            assert int(places[row, place]) == (-1 if partner is None else partner)
    assert (rows == torch.arange(len(tokens))[:, None] ^ 1).all()
    # By hand: c and x are partners, as is what follows; y and z of the longer text have none.
    assert places[2].tolist() == [0, 1, 2, 5, 6, 7, -1, -1]
    assert places[3].tolist() == [0, 1, 2, -1, -1, 3, 4, 5]


@pytest.mark.parametrize("name", MODELS)
def test_patched_heads_write_what_they_write_in_the_partner(name: str) -> None:
    model = made(name)
    tokens, lengths = pairs_of_letters(PAIRS)
    inputs = {"input_ids": tokens, "attention_mask": (torch.arange(tokens.size(1)) < lengths[:, None]).long()}
    partners = partners_of_pairs(tokens, lengths)
    found = AblatedModel(model, 3, HEADS).run(measure_of(model), inputs, Ablation("patch"), SETS, partners=partners)
    read = [read_by(model, name, alone(inputs, row)) for row in range(len(tokens))]
    for row in range(len(tokens)):
        own, other = (tokens[one, : lengths[one]].tolist() for one in (row, row ^ 1))
        matched = [slow_partner(own, other, place) for place in range(len(own))]
        for place, heads in enumerate(SETS):
            given: dict[Head, Tensor] = {}
            for layer, head in heads:
                outputs = torch.full_like(read[row][layer][:, head], torch.nan)
                for at, partner in enumerate(matched):
                    if partner is not None:
                        outputs[at] = read[row ^ 1][layer][partner, head]
                given[layer, head] = outputs
            expected = changed(model, name, alone(inputs, row), given)
            torch.testing.assert_close(found[place, row], expected, atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["scale", "patch"])
def test_a_model_that_its_own_outputs_change_is_refused(kind: Kind) -> None:
    model = made("gpt2").train()  # with dropout no pass is the same
    inputs = texts()
    partners = partners_of_pairs(inputs["input_ids"], inputs["attention_mask"].sum(1))
    with pytest.raises(EncoderError, match=rf"^GPT2Model cannot be changed by `{kind}`: with the heads' own outputs"):
        AblatedModel(model, 3, HEADS).run(measure_of(model), inputs, Ablation(kind), SETS, partners=partners)


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_projections_whose_outputs_are_known_are_not_computed_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = made(name), texts()
    ablated = AblatedModel(model, 3, HEADS)
    names = {module: path for path, module in model.named_modules()}
    computed: Counter[str] = Counter()
    forward = nn.Linear.forward

    def count(self: nn.Linear, given: Tensor) -> Tensor:
        computed[names[self].partition("layers.")[2]] += 1
        return forward(self, given)

    monkeypatch.setattr(nn.Linear, "forward", count)
    ablated.run(measure_of(model), inputs, Ablation("zero"), [frozenset({(1, 0)})])
    for layer, times in enumerate((1, 1, 2)):  # the intact pass, and the pass from the second layer on
        assert computed[f"{layer}.self_attn.q_proj"] == times
        assert computed[f"{layer}.self_attn.o_proj"] == (2 if layer else 1)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("kind", ["mean", "resample"])
def test_means_and_other_texts_are_those_of_a_loop_over_texts(name: str, kind: Kind) -> None:
    model, inputs = made(name), texts()
    others = [texts(1, (2, 9)), texts(2, (4, 1, 6))]
    measure = measure_of(model)
    reference = ReferenceOutputs.from_batches(measure, others, 256)
    index = [5, 11, 2, 30]
    read = sorted(
        (read_by(model, name, alone(batch, row)) for batch in others for row in range(len(batch["input_ids"]))),
        key=lambda one: len(one[0]),
    )
    found = AblatedModel(model, 3, HEADS).run(measure, inputs, Ablation(kind, reference=reference, seed=3), SETS, index)
    for row, number in enumerate(index):
        order = np.random.default_rng([3, number]).permutation(len(read)).tolist()
        given: dict[Head, Tensor] = {}
        for layer, head in SETS[-1]:
            if kind == "mean":
                at = [
                    torch.stack([one[layer][i, head] for one in read if len(one[layer]) > i]).mean(0)
                    for i in range(min(LENGTHS[row], 9))
                ]
                overall = torch.cat([one[layer][:, head] for one in read]).mean(0)
                given[layer, head] = torch.stack([*at, *[overall] * (LENGTHS[row] - len(at))])
            else:
                length = LENGTHS[row]
                texts_of = [next((text for text in order if len(read[text][layer]) > i), -1) for i in range(length)]
                given[layer, head] = torch.stack(
                    [read[text][layer][min(i, 8), head] for i, text in enumerate(texts_of)]
                )
        for place, heads in enumerate(SETS):
            expected = changed(model, name, alone(inputs, row), {one: given[one] for one in heads})
            torch.testing.assert_close(found[place, row], expected, atol=2e-5, rtol=1e-5)


def test_a_position_that_no_kept_text_has_gets_the_end_of_the_longest() -> None:
    reference = ReferenceOutputs(torch.zeros(1), 2, torch.zeros(2, 1), torch.tensor([2, 4]))
    chosen, places = reference.positions([0], 6, 0)
    assert chosen[0, 2:].tolist() == [1, 1, 1, 1]
    assert places[0].tolist() == [0, 1, 2, 3, 3, 3]


def test_no_text_is_replaced_by_itself() -> None:
    numbers = torch.tensor([4, 7])
    reference = ReferenceOutputs(torch.zeros(1), 2, torch.zeros(2, 1), torch.tensor([5, 6]), numbers)
    for seed in range(5):
        chosen, _ = reference.positions([4, 7], 3, seed)
        assert chosen.tolist() == [[1, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize("bytes_of_a_text", [1, 2.5])
def test_what_is_kept_fits_into_memory(bytes_of_a_text: float) -> None:
    model = made("bert")
    one = 9 * 3 * HEADS * DIM * 4
    reference = ReferenceOutputs.from_batches(
        measure_of(model), [texts(1, (2, 9)), texts(2, (4, 1, 6))], 5, most=int(bytes_of_a_text * one)
    )
    assert len(reference.outputs) == max(int(bytes_of_a_text), 1)
    assert reference.texts == 5


VALUES = {
    "bert": "attention.self.value",
    "gpt2": "attn.c_attn",
    "llama": "self_attn.v_proj",
    "gemma2": "self_attn.v_proj",
}
"""Modules of the values; the joint module of GPT-2 gives queries, keys and values."""
WINDOW = 4


def allowed_by_hand(name: str, layer: int, length: int) -> Tensor:
    """What each position may attend to, bool `[from, to]`; every other layer of Gemma, from the first, has a window."""
    rows = []
    for one in range(length):
        first = max(one - WINDOW + 1, 0) if name == "gemma2" and layer % 2 == 0 else 0
        last = length - 1 if name == "bert" else one
        rows.append([first <= other <= last for other in range(length)])
    return torch.tensor(rows)


def uniform_by_hand(model: PreTrainedModel, name: str, inputs: Mapping[str, Tensor], off: Heads) -> Tensor:
    """What `measure_of` says of one text if the projections read, of some heads, means of the values of this pass."""
    values: list[Tensor] = []  # of each layer [length, heads, dim]

    def keep(_: nn.Module, args: object, output: Tensor) -> None:
        own = output[0][:, -HEADS * DIM if name == "gpt2" else 0 :].reshape(len(output[0]), -1, DIM)
        values.append(own.repeat_interleave(HEADS // own.size(1), 1))

    def mix(layer: int) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            read, own = args[0].clone(), values[layer]
            for head in (head for of, head in off if of == layer):
                means = [own[seen, head].mean(0) for seen in allowed_by_hand(name, layer, len(own))]
                read[0, :, DIM * head : DIM * (head + 1)] = torch.stack(means)
            return (read, *args[1:])

        return hook

    modules = [module for path, module in model.named_modules() if path.endswith(VALUES[name])]
    hooks = [module.register_forward_hook(keep) for module in modules]
    hooks += [one.register_forward_pre_hook(mix(layer)) for layer, one in enumerate(projections(model, name))]
    return hooked(model, inputs, hooks)


@pytest.mark.parametrize("name", VALUES)
def test_uniform_attention_is_the_mean_of_all_values_of_those_before_a_position_or_of_those_in_a_window(
    name: str,
) -> None:
    model, eager, inputs = made(name), build(name, 1), texts()
    found = AblatedModel(model, 3, HEADS).run(measure_of(model), inputs, Ablation("uniform"), SETS)
    for (place, heads), row in product(enumerate(SETS), range(len(LENGTHS))):
        expected = uniform_by_hand(eager, name, alone(inputs, row), heads)
        torch.testing.assert_close(found[place, row], expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", get_args(Kind))
def test_shared_layers_change_nothing(name: str, kind: Kind) -> None:
    model, inputs = made(name), texts()
    measure = measure_of(model)
    ablation = Ablation(kind, ReferenceOutputs.from_batches(measure, [texts(4, (8, 6))], 2), factor=1.5)
    partners = partners_of_pairs(inputs["input_ids"], inputs["attention_mask"].sum(1))
    shared = AblatedModel(model, 3, HEADS).run(measure, inputs, ablation, SETS, partners=partners)
    whole = AblatedModel(model, 3, HEADS, share=False).run(measure, inputs, ablation, SETS, partners=partners)
    torch.testing.assert_close(shared, whole, atol=1e-5, rtol=1e-5)
    with torch.inference_mode():
        assert torch.equal(shared[0], measure(inputs))  # nothing ablated: not a bit is changed
    assert not torch.allclose(shared[1], shared[0])


def test_a_module_that_serves_all_layers_is_run_as_a_whole() -> None:
    model = made("albert")
    ablated, measure = AblatedModel(model, 3, HEADS), measure_of(model)
    assert not ablated.shares
    found = ablated.run(measure, texts(), Ablation("zero"), SETS)
    assert all(not torch.allclose(one, found[0]) for one in found[1:])


def test_heads_by_their_names() -> None:
    assert parse_heads(["2-1", "1"], 2, 2, "") == {(1, 0), (0, 0), (0, 1)}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("0-1", r"--x: '0-1' is not a head\. Write layer-head, both from 1"),
        ("3-1", "--x: 3-1 does not exist; there are 2 layers of 4 heads"),
        ("2-5", "2-5 does not exist"),
        ("last", "'last' is not a head"),
    ],
)
def test_a_head_that_does_not_exist_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_heads(["1-1", name], 2, 4, "--x")
