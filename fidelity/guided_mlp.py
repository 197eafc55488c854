"""Token-wise models with imposed attention (Wiegreffe & Pinter 2019, §3.4)."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import Any, Literal, get_args

import pandas as pd
import torch
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor

from attention_probing.datamodules import ClassificationDataModule, TextBatch
from attention_probing.fidelity.checkpoints import Checkpoint
from attention_probing.fidelity.classified import ClassifiedBatch
from attention_probing.fidelity.consistent_adversary import adversary_training, has_uniform_attention, load_adversary
from attention_probing.fidelity.contract import CheckpointResult, FidelityTest, Score
from attention_probing.fidelity.recipe import Recipe
from attention_probing.fidelity.saliency import Saliency
from attention_probing.measures.trainings import Best, Training, run_trainings
from attention_probing.metrics.classification import f1_score
from attention_probing.models import (
    AttentionClassifier,
    AverageEncoder,
    TextClassifier,
    UniformAttention,
)
from attention_probing.models.text_classifier import WORD
from attention_probing.results import Table
from attention_probing.results.digests import Digests
from attention_probing.results.options import Positive, checked

GuideSource = Literal["uniform", "own", "base", "adversary"]
"""Source of attention: uniform, learned by the token-wise model itself, the checkpoint's, or its adversary's."""
SOURCES: tuple[GuideSource, ...] = get_args(GuideSource)


def make_guided(guide: TextClassifier, **parts: Any) -> AttentionClassifier:  # noqa: ANN401
    """Return a flat classifier that uses the attention of another model instead of learning its own.

    Args:
        guide: Model whose attention is used; it is not trained.
        **parts: Options of `AttentionClassifier`.
    """

    def attention_of_guide(batch: TextBatch) -> dict[str, Tensor]:
        with torch.no_grad():
            return {WORD: guide(batch).levels[WORD].weights}

    model = AttentionClassifier(attention=UniformAttention(), **parts)
    model.guide = attention_of_guide
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
    strength = 1e-2  # weight λ of the KL term in the adversary's loss
    size = 256  # of the hidden states of the MLP
    patience = 5  # epochs without a higher F1 on dev before a training of the MLP ends
    adversary_patience = 10  # as `patience` of `ConsistentAdversary`

    @checked
    def __init__(self, max_epochs: Positive = 20, adversary_epochs: Positive = 80) -> None:
        self.max_epochs = max_epochs
        self.adversary_epochs = adversary_epochs
        self._models: dict[str, dict[str, TextClassifier]] = {}
        self._cut_off = 0
        self._left_out = 0

    def begin(
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        flat = [checkpoint for checkpoint in checkpoints if isinstance(checkpoint.model, AttentionClassifier)]
        self._f1 = f1_score(data.positive, len(data.labels))
        self._models = {}
        self._cut_off = 0
        self._left_out = len(checkpoints) - len(flat)
        wanted: list[tuple[Recipe, GuideSource]] = []
        for checkpoint in flat:
            recipe = Recipe(checkpoint, data, device, self.max_epochs, self.patience, seed)
            for source in SOURCES:
                if source != "adversary" or not has_uniform_attention(checkpoint):
                    wanted.append((recipe, source))
        with isolate_rng():
            trained = run_trainings([self._training(recipe, source) for recipe, source in wanted])
            for (recipe, source), best in zip(wanted, trained, strict=True):
                model = self._make_untrained(recipe, source)
                model.make_for(data)
                model.load_state_dict(best.state)
                model.to(device).eval().requires_grad_(False)
                self._models.setdefault(recipe.checkpoint.name, {})[source] = model
                self._cut_off += not best.stopped

    def _training(self, recipe: Recipe, source: GuideSource) -> Training:
        dev = Digests(recipe.data.cache).of_file(recipe.data.files()["dev"])
        options: list[object] = [source, self.size, dev]
        before = 0
        if source == "adversary":
            options += [self.strength, self.adversary_epochs]
            before = self.adversary_epochs

        def train() -> Best:
            return recipe.fit(self._make_untrained(recipe, source), "val_f1", "max", datamodule=recipe.training_data)

        return recipe.training("diagnostics", options, f"Token-wise model with attention `{source}`", train, before)

    def _make_untrained(self, recipe: Recipe, source: GuideSource) -> AttentionClassifier:
        """Return the model of a source; the guiding adversary is trained unless it is kept."""
        base = recipe.checkpoint.model.to(recipe.device)
        assert isinstance(base, AttentionClassifier)
        optimisation = ("learning_rate", "optimizer", "weight_decay", "decay")
        options: dict[str, Any] = {name: getattr(base, name) for name in optimisation}
        options |= {"encoder": AverageEncoder(self.size), "embedding": base.spec, "dropout": base.dropout.p}
        parts = deepcopy(options)
        if source == "uniform":
            return AttentionClassifier(attention=UniformAttention(), **parts)
        if source == "own":  # the checkpoint's kind of attention, with parameters for states of this size
            return AttentionClassifier(attention=deepcopy(base.attention).train(), **parts)
        guide: TextClassifier = base
        if source == "adversary":
            of_adversary = replace(recipe, max_epochs=self.adversary_epochs, patience=self.adversary_patience)
            (best,) = run_trainings([adversary_training(of_adversary, self.strength)])
            guide = load_adversary(of_adversary, best).model
        return make_guided(guide, **parts)

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Mapping[str, Tensor]:
        columns = {"gold": classified.batch.labels}
        models = self._models.get(classified.checkpoint.name, {})
        for source in SOURCES:
            if source in models:
                predicted = models[source](classified.batch).logits.argmax(-1)
            else:
                predicted = torch.full_like(classified.confidence, torch.nan)
            columns[f"predicted_{source}"] = predicted
        return columns

    def scores(self) -> Mapping[str, Score]:
        scores = {}
        for source in SOURCES:
            columns = ("gold", f"predicted_{source}")
            scores[f"{source}.f1"] = Score(columns, self._f1, "fraction", main=True)
        return scores

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return the table `guided_mlp`: the F1 of the MLP for each checkpoint and source of attention.

        Columns: `variant` and `checkpoint`; `attention`, the source of the attention; `f1`, with the
        ends of its interval, `f1.low` and `f1.high`. They are nan if the checkpoint has no MLP with this
        source.
        """
        rows = []
        for result, source in product(results, SOURCES):
            f1 = result.scores[f"{self.name}.{source}.f1"].columns("f1")
            rows.append({"variant": result.variant, "checkpoint": result.name, "attention": source, **f1})
        return {self.name: Table(pd.DataFrame(rows), {"f1": "fraction"})}

    def audit(self) -> Mapping[str, object]:
        """Return three counts over all checkpoints.

        They are `models`, the trained MLPs; `cut_off`, the MLPs whose training was ended by `max_epochs`;
        and `checkpoints_left_out`, the checkpoints that are not flat classifiers.
        """
        models = sum(map(len, self._models.values()))
        return {"models": models, "cut_off": self._cut_off, "checkpoints_left_out": self._left_out}
