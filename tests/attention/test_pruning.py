"""Models without some heads: against the whole model with zeros in their place, and loaded by transformers alone."""

import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel

from attention import Encoder, EncoderError, EncoderSpec, resolve
from attention.ablation import AblatedModel, Ablation
from attention.capture import Heads
from attention.checks import check
from attention.encoder import save_model
from attention.modeling_pruned import RemovedHeads, prune
from tests import tiny
from tests.attention.architectures import HEADS, LAYERS, build

NAMES = ("bert", "roberta", "electra", "distilbert", "gpt2", "llama")
MASK = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
INPUTS = {"input_ids": torch.arange(5, 19).view(2, 7), "attention_mask": MASK}


def whole(name: str) -> PreTrainedModel:
    """Every parameter is drawn, and heads go through the registered function."""
    model = build(name, 1)
    check(model, name)
    return model


def said(model: PreTrainedModel) -> torch.Tensor:
    """Hidden states of the real tokens."""
    with torch.inference_mode():
        found: torch.Tensor = model(**INPUTS)[0] * MASK[:, :, None]
    return found


def of_layer(layer: int, *heads: int) -> Heads:
    return frozenset((layer, head) for head in heads)


# Two heads that share a key, one of each of two keys, three with an odd one; a whole layer; none. For models with a key
# to each head, and for Llama with one to two heads.
CASES = {
    "group": (of_layer(0, 2, 3), RemovedHeads(2, 0, 2), RemovedHeads(2, 0, 1)),
    "one of each": (of_layer(1, 0, 3), RemovedHeads(2, 0, 2), RemovedHeads(2, 0, 0)),
    "odd": (of_layer(0, 1) | of_layer(2, 0, 2, 3), RemovedHeads(4, 0, 4), RemovedHeads(3, 1, 1)),
    "layer": (of_layer(1, 0, 1, 2, 3) | of_layer(2, 1, 2), RemovedHeads(5, 1, 5), RemovedHeads(5, 1, 1)),
    "all": (
        frozenset((layer, head) for layer in range(LAYERS) for head in range(HEADS)),
        RemovedHeads(9, 3, 9),
        RemovedHeads(9, 3, 3),
    ),
    "none": (frozenset[tuple[int, int]](), RemovedHeads(), RemovedHeads()),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_pruned_model_says_what_the_whole_one_says_with_zeros(name: str) -> None:
    model = whole(name)
    for case in CASES.values():
        compare(name, model, *case)


def compare(name: str, model: PreTrainedModel, heads: Heads, plain: RemovedHeads, grouped: RemovedHeads) -> None:
    [zeroed] = AblatedModel(model, LAYERS, HEADS, share=False).run(
        lambda inputs: model(**inputs)[0] * MASK[:, :, None], INPUTS, Ablation("zero"), [heads]
    )
    pruned = deepcopy(model)
    counts = prune(pruned, heads)
    assert counts == (grouped if name == "llama" else plain)
    for implementation in ("probing", "sdpa", "eager"):
        pruned.set_attn_implementation(implementation)
        torch.testing.assert_close(said(pruned), zeroed, atol=1e-5, rtol=0)
    if heads:
        assert (zeroed - said(model)).abs().max() > 1e-2
    size = 8  # of a head; its query and output rows, then its key and value rows
    gone = counts.removed * 2 * size * 32 + counts.key_heads * 2 * size * 32
    biases = 0 if name == "llama" else size * (counts.removed + 2 * counts.key_heads)
    assert pruned.num_parameters() == model.num_parameters() - gone - biases


LOAD = """
import sys
sys.modules.update(dict.fromkeys(["attention", "results"]))  # to import one of them is an error
import torch, transformers
for folder, auto in zip(sys.argv[1::2], sys.argv[2::2]):
    model = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True).eval()
    found = torch.load(folder + "/said.pt")
    with torch.inference_mode():
        torch.testing.assert_close(model(**found["inputs"]).logits, found["logits"], atol=1e-5, rtol=0)
        body = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
        own = model.base_model(**found["inputs"])[0]
        torch.testing.assert_close(body(**found["inputs"])[0], own, atol=1e-5, rtol=0)
    assert sum(one.numel() for one in model.parameters()) == found["parameters"]
    assert transformers.AutoTokenizer.from_pretrained(folder)("the fox")["input_ids"]
"""


@pytest.mark.slow
def test_transformers_loads_what_is_saved_without_this_package(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-c", LOAD]
    kinds: dict[str, Any] = dict.fromkeys(("bert", "distilbert", "llama"), AutoModelForSequenceClassification)
    for name, auto in {**kinds, "gpt2": AutoModelForCausalLM}.items():
        before, folder = tmp_path / name, tmp_path / f"pruned-{name}"
        tiny.save(before, whole(name), tiny.bert_tokenizer())
        model = auto.from_pretrained(before, pad_token_id=0, dtype=torch.float32).eval()
        prune(model, CASES["odd"][0] | CASES["layer"][0])
        save_model(model, resolve(EncoderSpec(str(before))), folder)
        inputs = {"input_ids": INPUTS["input_ids"][:1]}
        with torch.inference_mode():
            logits = model(**inputs).logits
        torch.save({"inputs": inputs, "logits": logits, "parameters": model.num_parameters()}, folder / "said.pt")
        command += [str(folder), auto.__name__]
    done = subprocess.run(
        command, cwd=tmp_path, env={"HF_HOME": str(tmp_path / "hub")}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_pruned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="AlbertModel: no heads can be removed"):
        prune(build("albert"), of_layer(0, 1))
    bert = whole("bert")
    for heads, name in ((of_layer(0, 1, HEADS), "1-5"), (of_layer(LAYERS, 0), "4-1"), (of_layer(1, -1), "2-0")):
        with pytest.raises(ValueError, match=f"BertModel has no head {name}; it has 3 layers of 4 heads, counted from"):
            prune(bert, heads)
    prune(bert, of_layer(0, 1))
    with pytest.raises(ValueError, match="BertModel: no heads"):  # they were removed before
        prune(bert, of_layer(0, 1))
    source, folder = resolve(EncoderSpec(str(tiny.save_bert(tmp_path / "whole")))), tmp_path / "pruned"
    save_model(bert, source, folder)
    with pytest.raises(EncoderError, match=r"this model is pruned.*Name the unpruned model"):
        Encoder(resolve(EncoderSpec(str(folder))))
