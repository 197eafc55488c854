"""First-order estimates of what replacing the outputs of attention heads changes (attribution patching).

The estimate is the gradient times the change of the output, of each head (Nanda 2023, "Attribution patching"). One pass
forward and back estimates the effects of all heads; the exact effects need a pass for each head. For `patch` the change
leads to the output in the other sentence of a pair, as with Nanda's prompts that differ in a detail. `zero` needs no
second input: the estimate is the gradient times the output, with its sign; Michel et al. (2019, §4.1) take the absolute
value of this product. Syed et al. (2023, arXiv 2310.10348) estimate effects of the edges between components in the same
way; edges are not scored here.

Kramár et al. (2024, arXiv 2403.00745) name two reasons why an estimate can miss what matters: a saturated softmax, and
direct and indirect effects that cancel. Their corrections of both (AtP*) are not applied.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from attention_probing.attention.ablation import Ablation, RunModel, Sources
from attention_probing.attention.capture import Mixture, replacing
from attention_probing.models import recorded_gradients

Total = Callable[[Tensor], Tensor]
"""Function that returns the number of each item, given the outputs of the model; its gradient is taken."""


def head_gradients(
    run: RunModel, total: Total, inputs: Mapping[str, Tensor]
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Run a model once, and return the outputs of its heads with the gradients of a number with respect to them.

    Args:
        run: Function that runs the model on inputs.
        total: Function of the outputs of the model, whose sum over items is differentiated; every number must depend on
            its own item alone.
        inputs: Inputs of a batch.

    Returns:
        The outputs of the model; and for each layer the outputs of the heads, and the gradients, each
        `[batch, heads, pieces, dim]`.
    """
    by_layer: list[Tensor] = []

    def keep(layer: int, module: nn.Module, mixture: Mixture) -> Tensor:
        outputs = mixture.outputs
        if layer == 0:
            outputs = outputs.detach().requires_grad_()
        by_layer.append(outputs)
        return outputs

    with recorded_gradients(), replacing(keep):
        # Tensors of inference mode have no gradient; their copies do.
        outputs = run({name: tensor.clone() for name, tensor in inputs.items()})
        gradients = torch.autograd.grad(total(outputs).sum(), by_layer)
    outputs_of_heads = [outputs_of_layer.detach() for outputs_of_layer in by_layer]
    return outputs.detach(), outputs_of_heads, list(gradients)


def estimate_effects(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor], ablation: Ablation, sources: Sources
) -> Tensor:
    """Return the estimated effect of replacing each head alone on the number of each text, `[batch, layers, heads]`.

    The effect is the number of the intact model minus that of the changed one: −Σ ∂number/∂output · (replacement −
    output), over positions and dimensions. Products and sums are float32, also of a model in bfloat16.

    Args:
        outputs: Outputs of the heads of each layer, from `head_gradients`.
        gradients: Gradients of the number, from the same.
        ablation: Replacement of the outputs; one of those that need no other texts than the batch.
        sources: Where `patch` takes the outputs from, see `Ablation.outputs`.
    """
    by_layer = []
    for layer, (intact, gradient) in enumerate(zip(outputs, gradients, strict=True)):
        heads = torch.arange(intact.size(1), device=intact.device)
        replacement = ablation.outputs(layer, heads, intact, sources)
        change = (replacement - intact).float()
        by_layer.append(-(gradient.float() * change).sum((2, 3)))
    return torch.stack(by_layer, 1)
