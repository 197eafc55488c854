"""The control of Clark et al. (2019, §5): all weights of an encoder but its embeddings are drawn anew."""

import torch
from torch import nn
from transformers import AutoModel, PreTrainedModel


def drawn_anew(pretrained: PreTrainedModel, seed: int) -> PreTrainedModel:
    """A model of the same architecture with weights drawn from `seed`, and the embeddings of the pretrained one.

    The caller's random numbers stay where they are.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn: PreTrainedModel = AutoModel.from_config(  # type: ignore[no-untyped-call]
            pretrained.config, attn_implementation="eager", dtype=torch.float32
        )
    kept = {name: tensor for name, tensor in pretrained.state_dict().items() if _is_embedding(name, pretrained)}
    drawn.load_state_dict(kept, strict=False)
    return drawn


def _is_embedding(name: str, model: PreTrainedModel) -> bool:
    """Whether a parameter belongs to the embeddings: the block of the input embeddings, or root-level tables."""
    table = model.get_input_embeddings()
    block = next(path for path, module in model.named_modules() if module is table).rpartition(".")[0]
    if block:
        return name.startswith(f"{block}.")
    child = name.partition(".")[0]
    return isinstance(getattr(model, child), nn.Embedding)
