"""Classifiers that decide as another one does, with attention as different as it can be (Wiegreffe & Pinter 2019)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from datamodules import ClassificationDataModule, TextBatch
from datamodules.sampling import LengthBatches
from fidelity.checkpoints import Checkpoint
from fidelity.reading import levels_of
from fidelity.training import Best, Recipe
from metrics.distributions import kl, tvd
from models import AttentionClassifier, HierarchicalClassifier, TextClassifier, UniformAttention
from models.interface import Output


@dataclass(frozen=True)
class Told:
    """What a classifier says of every text of train, and with which attention.

    Attributes:
        probabilities: `[texts, classes]`.
        weights: `[slots of all texts, heads]`, one text after another.
        starts: int64 `[texts]`, where each text begins.
        sizes: int64 `[texts]`, how many slots it has, up to the last that may get weight.
    """

    probabilities: Tensor
    weights: Tensor
    starts: Tensor
    sizes: Tensor

    def of(self, texts: Tensor, slots: int) -> tuple[Tensor, Tensor]:
        """Probabilities `[batch, classes]` and attention `[heads, batch, slots]` of texts int64 `[batch]`."""
        places = torch.arange(slots, device=texts.device)
        real = places < self.sizes[texts, None]
        rows = torch.where(real, self.starts[texts, None] + places, 0)
        return self.probabilities[texts], self.weights[rows].masked_fill(~real[..., None], 0).permute(2, 0, 1)


@torch.no_grad()
def told(model: TextClassifier, data: ClassificationDataModule, device: torch.device) -> Told:
    """Let a classifier read every text of train once."""
    split = data.splits["train"]
    batches = LengthBatches(
        split.lengths, max_cells=data.eval_tokens, max_sentences=len(split), shuffle=False, cells="tokens"
    )
    index, probabilities, weights, sizes = [], [], [], []
    for items in batches:
        batch = split[items].to(device)
        output: Output = model(batch)
        names = levels_of(output, None)
        mask, own = output.levels[names[0]].mask, attention_of(output, names)
        places = torch.arange(1, mask.size(1) + 1, device=device)
        index.append(batch.index)
        probabilities.append(output.logits.softmax(-1))
        sizes.append((mask * places).amax(1))
        weights.append(own.permute(1, 2, 0)[places <= sizes[-1][:, None]])
    order = torch.cat(index).argsort()
    lengths = torch.cat(sizes)
    starts = lengths.cumsum(0) - lengths
    return Told(torch.cat(probabilities)[order], torch.cat(weights), starts[order], lengths[order])


def attention_of(output: Output, names: Sequence[str]) -> Tensor:
    """The weights of these levels, `[levels, batch, slots]`."""
    return torch.stack([output.levels[name].weights for name in names])


def imitation_loss(
    probabilities: Tensor, weights: Tensor, base_probabilities: Tensor, base_weights: Tensor, strength: float
) -> Tensor:
    """TVD(ŷ_a, ŷ_b) − λ · KL(α_a ‖ α_b), the mean over the texts (Wiegreffe & Pinter 2019, §4).

    Several heads count with the mean of their divergences.

    Args:
        probabilities: ŷ_a `[batch, classes]`.
        weights: α_a `[heads, batch, slots]`.
        base_probabilities: ŷ_b `[batch, classes]`.
        base_weights: α_b `[heads, batch, slots]`.
        strength: λ.
    """
    # Their code takes the TVD of one sigmoid, which is half of that of its two classes: their λ is half of this one.
    return (tvd(probabilities, base_probabilities) - strength * kl(weights, base_weights).mean(0)).mean()


class Imitation(LightningModule):
    """A classifier that learns to decide as another does, with attention as different as it can be.

    Args:
        model: what is trained, by its own optimiser.
        base: what the other says of train.
        strength: λ of the loss; see `imitation_loss`.
        regularized: whether the terms of the model's regularisers are added to it.
    """

    def __init__(self, model: TextClassifier, base: Told, strength: float, regularized: bool = False) -> None:
        super().__init__()
        self.model = model
        self.base, self.strength, self.regularized = base, strength, regularized

    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        """The loss; the labels play no part."""
        terms: Mapping[str, Tensor] = {}
        if self.regularized:
            output, terms = self.model.outcome(batch)
        else:
            output = self.model(batch)
        weights = attention_of(output, levels_of(output, None))
        told_of = self.base.of(batch.index, weights.size(-1))
        loss = imitation_loss(output.logits.softmax(-1), weights, *told_of, self.strength)
        loss = loss + sum(terms.values())
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch.index))
        return loss

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """That of the model."""
        return self.model.configure_optimizers()


@dataclass(frozen=True, eq=False)
class Adversaries:
    """The model-consistent adversaries of one trained classifier, each trained from an initialisation of its own.

    All have the same initialisation. Nothing of it is chosen on test, nor was the base (in Wiegreffe & Pinter's code it
    was): an adversary is that of the epoch with the lowest training loss.

    Attributes:
        recipe: of the trainings.
        regularized: see `Imitation`.
    """

    recipe: Recipe
    regularized: bool = False

    @cached_property
    def _base(self) -> Told:
        recipe = self.recipe
        return told(recipe.checkpoint.model.to(recipe.device), recipe.data, recipe.device)

    def of(self, strength: float) -> tuple[TextClassifier, Best]:
        """The adversary of one λ, on the device, in evaluation mode and without gradients; and how it was trained."""
        recipe = self.recipe

        def train() -> Best:
            fresh = recipe.checkpoint.fresh(recipe.own_data, recipe.drawn).train()
            module = Imitation(fresh, self._base, strength, self.regularized)
            found = recipe.fit(module, "train_loss", "min", train_dataloaders=recipe.own_data.train_dataloader())
            return found._replace(state={name.removeprefix("model."): of for name, of in found.state.items()})

        with torch.inference_mode(False):
            name = f"Adversary λ = {strength:g}"
            best = recipe.kept("adversaries", ["adversary", strength, self.regularized], name, train)
            model = recipe.checkpoint.fresh(recipe.data, recipe.drawn)
            model.load_state_dict(best.state)
        return model.to(recipe.device).eval().requires_grad_(False), best


def uniform(checkpoint: Checkpoint) -> bool:
    """Whether its attention is uniform, so that no model of its kind has another."""
    model = checkpoint.model
    if isinstance(model, HierarchicalClassifier):
        return isinstance(model.sentence_attention, UniformAttention)
    return isinstance(model, AttentionClassifier) and isinstance(model.attention, UniformAttention)
