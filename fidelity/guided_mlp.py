"""Whether attention is of use to a model that sees no context (Wiegreffe & Pinter 2019, §3.4)."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal

import pandas as pd
import torch
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor

from datamodules import ClassificationDataModule, TextBatch
from fidelity.base import CheckpointResult, FidelityTest, Measurements, Score
from fidelity.checkpoints import Checkpoint
from fidelity.classified import ClassifiedBatch
from fidelity.consistent_adversary import Adversaries, has_uniform_attention
from fidelity.recipe import Recipe
from fidelity.saliency import Saliency
from metrics.classification import f1_score
from models import AttentionClassifier, AverageEncoder, TextClassifier, UniformAttention
from models.interface import WORD, Output
from models.regularizers import Encoded
from results import Table
from results.digests import Digests
from results.errors import UserError, check_numbers, check_values
from training import Best, Training, share

Source = Literal["uniform", "own", "base", "adversary"]
"""Whose attention: even, learned by the token-wise model itself, the checkpoint's, or its adversary's."""


class GuidedClassifier(AttentionClassifier):
    """A flat classifier, made of `parts`, that attends as its guide does; the guide is read and never trained."""

    objects = (*AttentionClassifier.objects, "guide")

    def __init__(self, guide: TextClassifier, **parts: Any) -> None:  # noqa: ANN401 # those of AttentionClassifier
        super().__init__(attention=UniformAttention(), **parts)
        # Not as a submodule: it would be trained and saved.
        self._guide = (guide,)

    def _run(
        self, batch: TextBatch, embedded: Tensor | None = None, imposed: Mapping[str, Tensor] | None = None
    ) -> tuple[Output, Encoded]:
        if imposed is None:
            with torch.no_grad():
                imposed = {WORD: self._guide[0](batch).levels[WORD].weights}
        return super()._run(batch, embedded, imposed)


class GuidedMLP(FidelityTest):
    """F1 of a token-wise MLP that is trained on the labels with imposed attention, for several sources of attention.

    The MLP maps each word by itself, so that only attention knows of the context. Attention that helps it more than
    uniform attention and more than what it learns itself says something of the text beyond the model it comes from,
    unless that of an adversary helps as much. Embeddings and optimisation are the checkpoint's, its regularisers are
    left out; the epoch is chosen on dev. Hierarchical classifiers and transformers have no single distribution over
    words, and are left out.

    Args:
        sources: whose attention is imposed, each once: `uniform`, `own`, `base` or `adversary`.
        strength: λ of the adversary; see `ConsistentAdversary`, whose adversary is taken where it has this λ, the same
            epochs, patience and seed, and no terms of regularisers.
        size: of the hidden states.
        max_epochs: after which a training ends at the latest.
        patience: epochs without a higher F1 on dev after which it ends.
        adversary_epochs: `max_epochs` of the adversary.
        adversary_patience: `patience` of the adversary.
    """

    name = "guided_mlp"
    headline = (".f1",)

    def __init__(
        self,
        sources: tuple[Source, ...] = ("uniform", "own", "base", "adversary"),
        strength: float = 1e-2,
        size: int = 256,
        max_epochs: int = 20,
        patience: int = 5,
        adversary_epochs: int = 80,
        adversary_patience: int = 10,
    ) -> None:
        check_values(self, sources=sources)
        if not sources or len(set(sources)) < len(sources):
            raise UserError(f"GuidedMLP: name one or more sources of attention, each once, and not {list(sources)}.")
        check_numbers(self, least=0, strength=strength)
        check_numbers(self, least=1, size=size, max_epochs=max_epochs, patience=patience)
        check_numbers(self, least=1, adversary_epochs=adversary_epochs, adversary_patience=adversary_patience)
        self.sources, self.strength, self.size = sources, strength, size
        self.max_epochs, self.patience = max_epochs, patience
        self.adversary_epochs, self.adversary_patience = adversary_epochs, adversary_patience
        self._models: dict[str, dict[str, TextClassifier]] = {}
        self._cut_off = self._left_out = 0

    def begin(
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        # One distribution over the words of a text is imposed: classifiers that have none are left out, and counted.
        flat = [checkpoint for checkpoint in checkpoints if isinstance(checkpoint.model, AttentionClassifier)]
        self._models, self._cut_off, self._left_out = {}, 0, len(checkpoints) - len(flat)
        wanted: list[tuple[Recipe, Source]] = []
        for checkpoint in flat:
            recipe = Recipe(checkpoint, data, device, self.max_epochs, self.patience, seed)
            uniform = has_uniform_attention(checkpoint)
            wanted += [(recipe, source) for source in self.sources if source != "adversary" or not uniform]
        with isolate_rng():
            found = share([self._training(recipe, source) for recipe, source in wanted], data.ranks)
            for (recipe, source), best in zip(wanted, found, strict=True):
                model = self._untrained(recipe, source)
                model.make_for(data)
                model.load_state_dict(best.state)
                model.to(device).eval().requires_grad_(False)
                self._models.setdefault(recipe.checkpoint.name, {})[source] = model
                self._cut_off += not best.stopped

    def _training(self, recipe: Recipe, source: Source) -> Training:
        dev = Digests(recipe.data.cache).one(recipe.data.files()["dev"])
        options: list[object] = [source, self.size, dev]
        before = 0
        if source == "adversary":
            before = self.adversary_epochs
            options += [self.strength, self.adversary_epochs, self.adversary_patience]

        def train() -> Best:
            return recipe.fit(self._untrained(recipe, source), "val_f1", "max", datamodule=recipe.own_data)

        # In the folder where former versions kept them.
        return recipe.training("diagnostics", options, f"Token-wise model with attention `{source}`", train, before)

    def _untrained(self, recipe: Recipe, source: Source) -> AttentionClassifier:
        """The model of a source; the adversary that guides it is trained where it is not found."""
        base = recipe.checkpoint.model.to(recipe.device)
        assert isinstance(base, AttentionClassifier)
        optimisation = ("learning_rate", "optimizer", "weight_decay", "decay", "class_weights")
        parts: dict[str, Any] = {name: getattr(base, name) for name in optimisation}
        parts |= {"encoder": AverageEncoder(self.size), "embedding": base.spec, "dropout": base.dropout.p}
        parts = deepcopy(parts)
        if source == "uniform":
            return AttentionClassifier(attention=UniformAttention(), **parts)
        if source == "own":  # of the kind of the checkpoint's: it is made anew for the size of these states
            return AttentionClassifier(attention=deepcopy(base.attention).train(), **parts)
        guide: TextClassifier = base
        if source == "adversary":
            own = replace(recipe, max_epochs=self.adversary_epochs, patience=self.adversary_patience)
            guide = Adversaries(own).of(self.strength).model
        return GuidedClassifier(guide, **parts)

    def columns(self, classes: int) -> Sequence[str]:
        return ["gold", *(f"predicted_{source}" for source in self.sources)]

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        batch, models = classified.batch, self._models.get(classified.checkpoint.name, {})
        nothing = torch.full((len(batch.index),), torch.nan, device=batch.index.device)
        numbers = dict.fromkeys(self.columns(classified.probabilities.size(-1)), nothing)
        numbers |= {f"predicted_{source}": model(batch).logits.argmax(-1).float() for source, model in models.items()}
        return Measurements(numbers | {"gold": batch.labels.float()})

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        f1 = f1_score(positive, classes)
        return {f"{source}.f1": Score(("gold", f"predicted_{source}"), f1, "fraction") for source in self.sources}

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        rows = [
            {"variant": result.variant, "checkpoint": result.name, "attention": source}
            | result.scores[f"{self.name}.{source}.f1"].named("f1")
            for result in results
            for source in self.sources
        ]
        return {self.name: Table(pd.DataFrame(rows), {"f1": "fraction"})}

    def audit(self) -> Mapping[str, object]:
        """How many models there are, how many were cut off by max_epochs, and who has none."""
        models = sum(len(models) for models in self._models.values())
        return {"models": models, "cut_off": self._cut_off, "checkpoints_left_out": self._left_out}
