"""A decoder in which one head carries the number of the subject to the verb, written by hand, and pairs that need it.

A sentence has a subject, two nouns of the other number (*distractors*), and a verb. In the paradigm `verb` the two
sentences of a pair differ in the verb, in `subject` they differ in the subject. A word's form says its number.

The residual stream has dimensions for a one, for being a subject, for the number of the word, for the ballast that
gives all words the same norm, for the number of the subject, which the verb is predicted from, and for codes of words.
The heads of layer 2 are, in an order that the seed draws:

- the *agreement head* attends to the subject and writes its number where the verb is predicted from;
- the *silent decoy* attends to the subject in the same way and has no output;
- the *other decoy* attends to the subject and writes its number where nothing reads it;
- the *idle head* attends evenly and has no output.

The heads of layer 1 attend evenly and write noise, a thousand times smaller, into the dimension that the verb is
predicted from. Without the agreement head, the noise decides.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from studies.blank import WordModel, blank_model

Paradigm = Literal["verb", "subject"]
PARADIGMS: tuple[Paradigm, ...] = ("verb", "subject")

_HEADS, _DIM, _SIZE = 4, 8, 32
_ONE, _SUBJECT, _NUMBER, _BALLAST, _PREDICTED, _CODES = range(6)  # dimensions of the residual stream
_UNREAD = 30  # dimension that no weight reads
_NORM = 4.0  # of a word in the residual stream
_SHARP, _LOGIT, _NOISE, _CODE = 10.0, 9.0, 1e-3, 0.1
_NOUNS = 12  # of each kind and number
_VERBS = {"g": "runs", "p": "run"}
_OTHER = {"g": "p", "p": "g"}


@dataclass(frozen=True, eq=False)
class AgreementModel(WordModel):
    """A decoder with an agreement head.

    Attributes:
        needed: Name of the agreement head, such as `2-3`.
        decoys: Names of the other heads of layer 2: the silent one, the other decoy, and the idle one.
    """

    needed: str
    decoys: tuple[str, ...]


def agreement_model(seed: int = 0) -> AgreementModel:
    """Write a decoder with an agreement head.

    Args:
        seed: Seed of the noise, of the codes of words, and of the places of the heads.
    """
    random = torch.Generator().manual_seed(seed)
    nouns = {f"{kind}{number}{name}": (kind, number) for kind, number, name in product("sd", _OTHER, range(_NOUNS))}
    sizes: dict[str, object] = {
        "hidden_size": _SIZE,
        "num_hidden_layers": 2,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "head_dim": _DIM,
        "intermediate_size": 8,
        "max_position_embeddings": 32,
    }
    tokenizer = blank_model("llama", [*nouns, *_VERBS.values()], sizes, ["no", "yes"]).tokenizer
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    theta = {"rope_theta": 1e38, "rope_type": "default"}  # the other dimensions of a head than 0 and 4 do not rotate
    config: Any = AutoConfig.for_model(
        "llama", vocab_size=len(tokenizer), tie_word_embeddings=False, rope_parameters=theta, **ids, **sizes
    )
    with torch.random.fork_rng(devices=[]):
        model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    _clear(model)

    embeddings = torch.zeros(len(tokenizer), _SIZE)
    embeddings[:, _ONE] = 1
    embeddings[:, _CODES:] = _CODE * torch.randn(len(tokenizer), _SIZE - _CODES, generator=random)
    for word, (kind, number) in nouns.items():
        row = tokenizer.convert_tokens_to_ids(word)
        embeddings[row, _SUBJECT] = float(kind == "s")
        embeddings[row, _NUMBER] = 1 if number == "g" else -1
    embeddings[:, _BALLAST] = (_NORM**2 - embeddings.square().sum(1)).sqrt()
    places = torch.randperm(_HEADS, generator=random).tolist()
    agreement, silent, other, _ = places
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(embeddings)
        for head in range(_HEADS):
            _write_noise(model.model.layers[0].self_attn, head, random)
        for head in (agreement, silent, other):
            _read_subject(model.model.layers[1].self_attn, head)
        _write_number(model.model.layers[1].self_attn, agreement, _PREDICTED)
        _write_number(model.model.layers[1].self_attn, other, _UNREAD)
        for number, verb in _VERBS.items():
            sign = 1 if number == "g" else -1
            model.lm_head.weight[tokenizer.convert_tokens_to_ids(verb), _PREDICTED] = _LOGIT * sign
    needed, *decoys = [f"2-{place + 1}" for place in places]
    return AgreementModel(model.eval(), tokenizer, needed, tuple(decoys))


def _clear(model: PreTrainedModel) -> None:
    """Set the weights of norms to one, and all others to zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)


def _columns(head: int) -> slice:
    """Return the dimensions of a head among those of its layer."""
    return slice(_DIM * head, _DIM * (head + 1))


def _write_noise(attention: Any, head: int, random: torch.Generator) -> None:  # noqa: ANN401
    """Let a head write random numbers of the words that it reads into the dimension that the verb is predicted from."""
    values: Tensor = attention.v_proj.weight
    values[_columns(head), _CODES:] = torch.randn(_DIM, _SIZE - _CODES, generator=random)
    attention.o_proj.weight[_PREDICTED, _columns(head)] = _NOISE * torch.randn(_DIM, generator=random)


def _read_subject(attention: Any, head: int) -> None:  # noqa: ANN401
    """Let a head attend to the subject, and take its number."""
    attention.q_proj.weight[_DIM * head + 1, _ONE] = _SHARP
    attention.k_proj.weight[_DIM * head + 1, _SUBJECT] = _SHARP
    attention.v_proj.weight[_DIM * head, _NUMBER] = 1


def _write_number(attention: Any, head: int, dimension: int) -> None:  # noqa: ANN401
    """Let a head write the number that it takes into a dimension of the residual stream."""
    attention.o_proj.weight[dimension, _DIM * head] = 1


def write_agreement_pairs(path: Path, paradigm: Paradigm, seed: int = 0, number: int = 60) -> Path:
    """Write minimal pairs in BLiMP's format, half of them with a singular verb in the acceptable sentence.

    Args:
        path: The file.
        paradigm: Word in which the sentences of a pair differ.
        seed: Seed of the nouns.
        number: Number of pairs.
    """
    rows = []
    for place, (good, bad) in enumerate(_sentences(paradigm, seed, number)):
        names = {"UID": paradigm, "field": "morphology", "pairID": str(place)}
        rows.append(json.dumps({**names, "sentence_good": good, "sentence_bad": bad}))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def _sentences(paradigm: Paradigm, seed: int, number: int) -> Iterator[tuple[str, str]]:
    """Yield the acceptable and the other sentence of each pair."""
    random = np.random.default_rng(seed)
    for place in range(number):
        number_of_subject = "gp"[place % 2]
        other = _OTHER[number_of_subject]
        subject, first, second = random.integers(_NOUNS, size=3)
        distractors = f"d{other}{first} d{other}{second}"
        good = f"s{number_of_subject}{subject} {distractors} {_VERBS[number_of_subject]}"
        bad = f"s{number_of_subject}{subject} {distractors} {_VERBS[other]}"
        if paradigm == "subject":
            bad = f"s{other}{subject} {distractors} {_VERBS[number_of_subject]}"
        yield good, bad
