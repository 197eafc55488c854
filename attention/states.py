"""Hidden states: where in a model each of them passes, so that the pass that gives its attention gives them too.

transformers returns hidden states only at the end of a whole pass, and all at once. Here a first pass finds the module
that each of them enters or leaves; from then on a hook at that place hands it over, and the pass may stop there.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from attention.interface import capture_attention, pass_state
from attention.options import StoreError

Place = tuple[nn.Module, Literal["in", "out"]]
"""A module, and whether the tensor enters or leaves it."""

_TOLERANCE = 1e-5


class States:
    """The hidden states of a model as transformers counts them: 0 leaves the embeddings, k leaves layer k.

    As there, the last one has gone through the normalisation behind the last layer, where a model has one. Making it
    leaves hooks in the model, which do nothing but in a capture.

    Args:
        model: captures attention, in eval mode.
        layers: how many attention layers it has.
        name: what it is called in messages.

    Attributes:
        count: how many there are, one more than layers.
        size: numbers in each.

    Raises:
        StoreError: they are not one for each layer and all of one size, or pass no module.
    """

    def __init__(self, model: PreTrainedModel, layers: int, name: str) -> None:
        inputs = {"input_ids": torch.arange(1, 7, device=model.device)[None]}
        passed, own = _record(model, inputs)
        shapes = {tuple(state.shape) for state in own}
        if len(own) != layers + 1 or len(shapes) > 1 or own[0].shape[:2] != inputs["input_ids"].shape:
            raise StoreError(
                f"{name} has {len(own)} hidden states of shapes {shapes} to its {layers} layers. Only one of each "
                f"layer and one of the embeddings, all of one size, can be kept."
            )
        self.count, self.size = len(own), own[0].size(2)
        _hook([passed.get(_memory(state)) for state in own])
        found: dict[int, Tensor] = {}
        capture_attention(model, inputs, lambda *_: None, frozenset(), found.__setitem__, frozenset(range(self.count)))
        for number, state in enumerate(own):
            gap = float((found[number] - state).abs().max()) if number in found else float("nan")
            if not gap <= _TOLERANCE * max(1.0, float(state.abs().max())):
                raise StoreError(
                    f"{name}: hidden state {number} cannot be captured (it differs from its own by {gap:.1e}). Choose "
                    f"another architecture (BERT, RoBERTa, ELECTRA, GPT-2, Llama, ModernBERT, …)."
                )


def _record(
    model: PreTrainedModel, inputs: Mapping[str, Tensor]
) -> tuple[dict[tuple[object, ...], tuple[Place, int]], tuple[Tensor, ...]]:
    """Run a model: the place and call at which each tensor was first seen, by its memory, and the hidden states."""
    first: dict[tuple[object, ...], tuple[Place, int]] = {}
    calls: Counter[Place] = Counter()
    alive: list[Tensor] = []  # so that no memory is used twice

    def see(place: Place, tensor: Tensor | None) -> None:
        if tensor is not None:
            alive.append(tensor)
            first.setdefault(_memory(tensor), (place, calls[place]))
        calls[place] += 1

    def enter(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        see((module, "in"), _entering(args, kwargs))

    def leave(module: nn.Module, args: tuple[object, ...], output: object) -> None:
        see((module, "out"), _leaving(output))

    hooks = [module.register_forward_pre_hook(enter, with_kwargs=True) for module in model.modules()]
    hooks += [module.register_forward_hook(leave) for module in model.modules()]
    try:
        with torch.inference_mode():
            own = model(**inputs, output_hidden_states=True).hidden_states
    finally:
        for hook in hooks:
            hook.remove()
    return first, tuple(own or ())


def _memory(tensor: Tensor) -> tuple[object, ...]:
    """What a tensor shares with its views of the same shape, and with nothing else."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _entering(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Tensor | None:
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)


def _leaving(output: object) -> Tensor | None:
    values = output if isinstance(output, tuple) else (output,)
    return next((value for value in values if isinstance(value, Tensor)), None)


def _hook(places: list[tuple[Place, int] | None]) -> None:
    """Have each hidden state handed over at its place; a module that serves several layers is called several times."""
    numbers: defaultdict[Place, dict[int, int]] = defaultdict(dict)
    for number, found in enumerate(places):
        if found is not None:
            place, call = found
            numbers[place][call] = number
    for place, of_call in numbers.items():
        module, side = place
        if side == "in":
            module.register_forward_pre_hook(partial(_enter, place, of_call), with_kwargs=True)
        else:
            module.register_forward_hook(partial(_leave, place, of_call))


def _enter(
    place: Place, of_call: Mapping[int, int], _: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> None:
    pass_state(place, of_call, _entering(args, kwargs))


def _leave(place: Place, of_call: Mapping[int, int], _: nn.Module, args: tuple[object, ...], output: object) -> None:
    pass_state(place, of_call, _leaving(output))
