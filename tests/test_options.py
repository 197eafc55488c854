"""Every number and choice that a command line or a program can give: constructors refuse it before anything is read."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from pytorch_lightning import LightningDataModule
from torch import nn

from attention_probing import datamodules, fidelity, measures, models, probes
from attention_probing.attention import Encoder, EncoderSpec
from attention_probing.attention.ablation import Ablation
from attention_probing.attention.specification import Options
from attention_probing.corpora.labelled import read_labelled
from attention_probing.corpora.shortcuts import Planting
from attention_probing.datamodules.text_sources import TextSource
from attention_probing.datamodules.vectors import VectorSpec
from attention_probing.models.layers import EmbeddingSpec
from attention_probing.results import UserError
from tests.rooms import exports

OPTIONS = (nn.Module, LightningDataModule, fidelity.FidelityTest)
"""What a command line makes: experiments, models and their parts, data, tests."""
ROOMS = (datamodules, fidelity, measures, models, probes)
REQUIRED: dict[str, Any] = {
    "ablation": "run",
    **{name: models.NoEncoder() for name in ("encoder", "sentence_encoder")},
    **{name: models.DotAttention() for name in ("attention", "sentence_attention")},
    "checkpoints": ["a.ckpt"],
    "tests": [fidelity.Perturbation()],
    "analyses": [measures.Surface()],
    "probe": probes.AttentionOnlyProbe(),
    "checkpoint": __file__,  # any file: it is not read yet
    "head": "1-1",
    "sentence": "s",
    "path": Path("a.conllu"),
}
"""Values for arguments that a class cannot be made without, by name."""


def required(kind: Callable[..., Any]) -> dict[str, Any]:
    own = inspect.signature(kind).parameters.items()
    return {name: REQUIRED[name] for name, one in own if one.default is one.empty and name in REQUIRED}


def classes() -> Iterator[type]:
    """What the rooms export, apart from classes to derive from, and the options that are classes themselves."""
    bases = (datamodules.AttentionDataModule, datamodules.CorpusDataModule)
    for _, kind in sorted(exports(*ROOMS).items()):
        if kind in bases or not isinstance(kind, type):
            continue
        if issubclass(kind, OPTIONS) and not inspect.isabstract(kind):
            yield kind
    yield from (TextSource, VectorSpec, EmbeddingSpec, EncoderSpec, Planting)


def hints_of(kind: Any) -> dict[str, Any]:  # noqa: ANN401
    """Annotations of its options by name; those that the classes above pass on among them."""
    hints: dict[str, Any] = {}
    for function in [vars(base).get("__init__") for base in kind.__mro__] if isinstance(kind, type) else [kind]:
        if function is not None and function is not nn.Module.__init__:
            passed_on = {
                name for name, one in inspect.signature(function).parameters.items() if one.kind is one.VAR_KEYWORD
            }
            own = get_type_hints(function)
            hints = {name: own[name] for name in own if name not in passed_on} | hints
            if not passed_on:
                break
    return hints


def options(kind: type) -> Iterator[tuple[str, type]]:
    """Options that are a number, by name, with its type."""
    for name, hint in hints_of(kind).items():
        for number in (int, float):
            if number in (hint, *get_args(hint)) and get_origin(hint) not in (tuple, Sequence):
                yield name, number


def choices(kind: Callable[..., Any]) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Options that are a choice: name, values, and whether it takes several."""
    for name, hint in hints_of(kind).items():
        for one in (hint, *get_args(hint)):
            if get_origin(one) is Literal:
                yield name, get_args(one), get_origin(hint) in (tuple, Sequence)


CASES = [(kind, name, number) for kind in dict.fromkeys(classes()) for name, number in options(kind)]


def test_numbers_are_found() -> None:
    found = {(kind.__name__, name) for kind, name, _ in CASES}
    assert {("AttentionOnlyProbe", "learning_rate"), ("TextSource", "limit"), ("CausalCheck", "max_epochs")} <= found
    assert len(found) > 70


@pytest.mark.parametrize(("kind", "name", "number"), CASES, ids=lambda one: getattr(one, "__name__", one))
def test_no_number_below_zero_is_taken(kind: type, name: str, number: type) -> None:
    with pytest.raises(UserError, match=name):
        kind(**{**required(kind), name: number(-1)})


OTHERS: tuple[Callable[..., Any], ...] = (Options, Ablation, read_labelled)
KINDS: tuple[Callable[..., Any], ...] = (*dict.fromkeys(classes()), *OTHERS)
CHOICES = [(kind, *choice) for kind in KINDS for choice in choices(kind)]


def test_choices_are_found() -> None:
    found = {(getattr(kind, "__name__", ""), name) for kind, name, *_ in CHOICES}
    assert {("Options", "too_long"), ("Options", "from_pieces"), ("Options", "precision")} <= found
    assert {("Pruning", "rankings"), ("AttentionWordsProbe", "schedule"), ("SetErasure", "last")} <= found
    assert len(CHOICES) > 40


@pytest.mark.parametrize(("kind", "name", "known", "several"), CHOICES, ids=lambda one: getattr(one, "__name__", one))
def test_no_choice_is_taken_that_there_is_not(
    kind: Callable[..., object], name: str, known: tuple[str, ...], several: bool
) -> None:
    """Those that there are are named, unless they depend on the labels, as scores do."""
    wrong = f"{known[0]}x"
    given = {**required(kind), name: [wrong] if several else wrong}
    with pytest.raises(UserError, match=name) as error:
        kind(**given)
    assert wrong in str(error.value)
    assert name == "score" or all(one in str(error.value) for one in known)


def test_attention_is_over_words_or_pieces(bert: Path) -> None:
    message = r"^attention: over is 'piece', but must be one of words, pieces \(did you mean `pieces`\?\)\.$"
    with pytest.raises(UserError, match=message):
        Encoder(str(bert)).attention(["the fox"], over="piece")  # type: ignore[arg-type]
