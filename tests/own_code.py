"""A tiny encoder whose code comes with its files, as that of models of the hub outside transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import save_file

from tests import tiny

CODE = """
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput, SequenceClassifierOutput

from .sharpness import SHARPNESS


class OwnConfig(PreTrainedConfig):
    model_type = "own_little"

    def __init__(self, vocab_size=10, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, **options):
        super().__init__(**options)
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.max_position_embeddings = 64


class OwnAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_attention_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)

    def forward(self, states, mask):
        batch, length, size = states.shape
        split = self.qkv(states).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = SHARPNESS * split[0] @ split[1].mT / split.size(-1) ** 0.5
        weights = scores.masked_fill(mask[:, None, None, :] == 0, -torch.inf).softmax(-1)
        return (weights @ split[2]).transpose(1, 2).reshape(batch, length, size), weights


class OwnPreTrained(PreTrainedModel):
    config_class, base_model_prefix = OwnConfig, "own"


class OwnModel(OwnPreTrained):
    def __init__(self, config):
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.places = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(OwnAttention(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    def get_input_embeddings(self):
        return self.words

    def forward(self, input_ids, attention_mask=None, output_attentions=False, **options):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        places = (mask.cumsum(1) - 1).clamp_min(0)
        states, attentions = self.words(input_ids) + self.places(places), []
        for layer in self.layers:
            new, weights = layer(states, mask)
            states = states + new
            attentions.append(weights)
        return BaseModelOutput(last_hidden_state=states, attentions=tuple(attentions) if output_attentions else None)


class OwnForMaskedLM(OwnPreTrained):
    def __init__(self, config):
        super().__init__(config)
        self.own, self.head = OwnModel(config), nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, **options):
        found = self.own(input_ids, attention_mask, **options)
        return MaskedLMOutput(logits=self.head(found.last_hidden_state), attentions=found.attentions)


class OwnForSequenceClassification(OwnPreTrained):
    def __init__(self, config):
        super().__init__(config)
        self.own, self.head = OwnModel(config), nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, **options):
        found = self.own(input_ids, attention_mask, **options)
        return SequenceClassifierOutput(logits=self.head(found.last_hidden_state[:, 0]), attentions=found.attentions)
"""
MODULE = "modeling_own"
KINDS = ("AutoModel", "AutoModelForMaskedLM", "AutoModelForSequenceClassification")


def save_own(folder: Path, ran: Path, repository: str = "", replaced: Mapping[str, str] = MappingProxyType({})) -> Path:
    """Write a tiny encoder with its own code.

    Args:
        folder: Its folder.
        ran: File that the code makes when it is run.
        repository: Repository of the hub that config.json names for the code; by default the folder itself.
        replaced: New texts of the code, by those that they replace.

    Returns:
        The folder.
    """
    tokenizer = tiny.bert_tokenizer()
    tokenizer.save_pretrained(folder)
    code = f"from pathlib import Path\nPath({str(ran)!r}).touch()\n{CODE}"
    for old, new in replaced.items():
        assert code.count(old) == 1
        code = code.replace(old, new)
    (folder / f"{MODULE}.py").write_text(code)
    (folder / "sharpness.py").write_text("SHARPNESS = 2.0\n")
    before = f"{repository}--{MODULE}" if repository else MODULE
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    classes = {kind: f"{before}.{kind.replace('Auto', 'Own').replace('OwnModelFor', 'OwnFor')}" for kind in KINDS}
    own = {"model_type": "own_little", "auto_map": {"AutoConfig": f"{before}.OwnConfig", **classes}}
    (folder / "config.json").write_text(json.dumps({**own, **sizes}))
    generator = torch.Generator().manual_seed(0)
    shapes = {"words.weight": (len(tokenizer), 32), "places.weight": (64, 32)}
    for layer in range(2):
        shapes |= {f"layers.{layer}.qkv.weight": (96, 32), f"layers.{layer}.qkv.bias": (96,)}  # type: ignore[dict-item]
    weights = {f"own.{name}": 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    weights |= {"head.weight": torch.randn(len(tokenizer), 32, generator=generator)}
    weights |= {"head.bias": torch.randn(len(tokenizer), generator=generator)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
