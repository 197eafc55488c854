"""Token-wise models with imposed attention: does attention help without context? (Wiegreffe & Pinter 2019, §3.4)."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal, get_args

import pandas as pd
import torch
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor

from datamodules import ClassificationDataModule, TextBatch
from fidelity.checkpoints import Checkpoint
from fidelity.classified import ClassifiedBatch
from fidelity.comparison import CheckpointResult
from fidelity.consistent_adversary import Recipe, adversary_training, has_uniform_attention, trained_adversary
from fidelity.experiment import FidelityTest, Measurements, Score
from fidelity.saliency import Saliency
from measures.trainings import Best, Training, share
from metrics.classification import f1_score
from models import AttentionClassifier, AverageEncoder, TextClassifier, UniformAttention
from models.text_classifier import WORD
from results import Table
from results.digests import Digests
from results.errors import check_numbers

Source = Literal["uniform", "own", "base", "adversary"]
"""Source of attention: uniform, learned by the token-wise model itself, the checkpoint's, or its adversary's."""
SOURCES: tuple[Source, ...] = get_args(Source)


def guided(guide: TextClassifier, **parts: Any) -> AttentionClassifier:  # noqa: ANN401
    """Return a flat classifier that uses the attention of another model instead of learning its own.

    Args:
        guide: Model whose attention is used; it is not trained.
        **parts: Options of `AttentionClassifier`.
    """

    def weights(batch: TextBatch) -> dict[str, Tensor]:
        with torch.no_grad():
            return {WORD: guide(batch).levels[WORD].weights}

    model = AttentionClassifier(attention=UniformAttention(), **parts)
    model.guide = weights
    return model


class GuidedMLP(FidelityTest):
    """F1 of a token-wise MLP with imposed attention, by source (Wiegreffe & Pinter 2019).

    The MLP maps each word by itself, so context can enter only through the attention. It is trained on
    the labels.

    If the checkpoint's attention helps the MLP more than uniform attention, and more than attention
    that the MLP learns itself, it carries information about the text that is useful beyond the
    checkpoint. This does not follow if an adversary's attention helps as much.

    Embeddings and optimisation of the MLP are those of the checkpoint, without its regularisers. The
    best epoch is chosen on dev. Hierarchical classifiers and transformers are left out, because they
    have no single distribution of attention over words. Scores: `<source>.f1`, the F1 on test.

    Args:
        max_epochs: Largest number of epochs of a training of the MLP.
        adversary_epochs: Largest number of epochs of the adversary's training. An adversary that
            `ConsistentAdversary` has trained with λ = .01 and the same epochs, patience and seed is used again.
    """

    name = "guided_mlp"
    headline = (".f1",)
    strength = 1e-2  # weight λ of the KL term in the adversary's loss
    size = 256  # of the hidden states of the MLP
    patience = 5  # epochs without a higher F1 on dev before a training of the MLP ends
    adversary_patience = 10  # as `patience` of `ConsistentAdversary`

    def __init__(self, max_epochs: int = 20, adversary_epochs: int = 80) -> None:
        check_numbers(self, least=1, max_epochs=max_epochs, adversary_epochs=adversary_epochs)
        self.max_epochs, self.adversary_epochs = max_epochs, adversary_epochs
        self._models: dict[str, dict[str, TextClassifier]] = {}
        self._cut_off = self._left_out = 0

    def begin(
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        flat = [checkpoint for checkpoint in checkpoints if isinstance(checkpoint.model, AttentionClassifier)]
        self._models, self._cut_off, self._left_out = {}, 0, len(checkpoints) - len(flat)
        wanted: list[tuple[Recipe, Source]] = []
        for checkpoint in flat:
            recipe = Recipe(checkpoint, data, device, self.max_epochs, self.patience, seed)
            uniform = has_uniform_attention(checkpoint)
            wanted += [(recipe, source) for source in SOURCES if source != "adversary" or not uniform]
        with isolate_rng():
            found = share([self._training(recipe, source) for recipe, source in wanted])
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
            options += [self.strength, self.adversary_epochs]
            before = self.adversary_epochs

        def train() -> Best:
            return recipe.fit(self._untrained(recipe, source), "val_f1", "max", datamodule=recipe.own_data)

        return recipe.training("diagnostics", options, f"Token-wise model with attention `{source}`", train, before)

    def _untrained(self, recipe: Recipe, source: Source) -> AttentionClassifier:
        """Return the model of a source; the guiding adversary is trained unless it is kept."""
        base = recipe.checkpoint.model.to(recipe.device)
        assert isinstance(base, AttentionClassifier)
        optimisation = ("learning_rate", "optimizer", "weight_decay", "decay")
        parts: dict[str, Any] = {name: getattr(base, name) for name in optimisation}
        parts |= {"encoder": AverageEncoder(self.size), "embedding": base.spec, "dropout": base.dropout.p}
        parts = deepcopy(parts)
        if source == "uniform":
            return AttentionClassifier(attention=UniformAttention(), **parts)
        if source == "own":  # the checkpoint's kind of attention, with parameters for states of this size
            return AttentionClassifier(attention=deepcopy(base.attention).train(), **parts)
        guide: TextClassifier = base
        if source == "adversary":
            own = replace(recipe, max_epochs=self.adversary_epochs, patience=self.adversary_patience)
            guide = trained_adversary(own, *share([adversary_training(own, self.strength)])).model
        return guided(guide, **parts)

    def columns(self, classes: int) -> Sequence[str]:
        return ["gold", *(f"predicted_{source}" for source in SOURCES)]

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Measurements:
        models = self._models.get(classified.checkpoint.name, {})
        numbers = {f"predicted_{name}": model(classified.batch).logits.argmax(-1) for name, model in models.items()}
        return Measurements(numbers | {"gold": classified.batch.labels})

    def scores(self, classes: int, positive: int | None) -> Mapping[str, Score]:
        f1 = f1_score(positive, classes)
        return {f"{source}.f1": Score(("gold", f"predicted_{source}"), f1, "fraction") for source in SOURCES}

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return the table `guided_mlp`: the F1 of the MLP for each checkpoint and source of attention.

        Columns: `variant` and `checkpoint`; `attention`, the source of the attention; `f1`, with the
        ends of its interval, `f1.low` and `f1.high`. They are nan if the checkpoint has no MLP with this
        source.
        """
        rows = [
            {"variant": result.variant, "checkpoint": result.name, "attention": source}
            | result.scores[f"{self.name}.{source}.f1"].named("f1")
            for result in results
            for source in SOURCES
        ]
        return {self.name: Table(pd.DataFrame(rows), {"f1": "fraction"})}

    def audit(self) -> Mapping[str, object]:
        """Return three counts over all checkpoints.

        They are `models`, the trained MLPs; `cut_off`, the MLPs whose training was ended by `max_epochs`;
        and `checkpoints_left_out`, the checkpoints that are not flat classifiers.
        """
        models = sum(len(models) for models in self._models.values())
        return {"models": models, "cut_off": self._cut_off, "checkpoints_left_out": self._left_out}
