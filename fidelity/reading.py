"""What a classifier says of a batch of texts, and what it would say if its attention or the texts were otherwise."""

from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from datamodules import TextBatch
from fidelity.checkpoints import Checkpoint, FidelityError
from fidelity.edits import passes, rows_of, shortened
from fidelity.saliency import Saliency
from models import TextClassifier
from models.interface import SENTENCE, Output

OUTSIDE = 2.0
"""Noise of slots that get no weight: behind all others."""


@dataclass(frozen=True, eq=False)
class Reading:
    """Texts of at least two words each, under one classifier.

    The levels of attention that are tested are replaced together: of a flat model the words', of a hierarchical one the
    sentences' unless the words' are asked for, of a transformer all heads that it shows. A *slot* is what may get
    weight, a token or a sentence; its *words* are the tokens that it is made of.

    Attributes:
        checkpoint: where the classifier comes from.
        batch: the texts.
        output: what the classifier says of them; without gradients.
        names: the levels that are tested.
        seed: of everything that is drawn.
        pad: number of the padding in the vocabulary.
        steps: of integrated gradients.
    """

    checkpoint: Checkpoint
    batch: TextBatch
    output: Output
    names: tuple[str, ...]
    seed: int
    pad: int
    steps: int = 50

    @property
    def model(self) -> TextClassifier:
        """The classifier, in evaluation mode."""
        return self.checkpoint.model

    @cached_property
    def weights(self) -> Tensor:
        """Attention `[heads, batch, slots]`, one head for each of the levels."""
        return torch.stack([self.output.levels[name].weights for name in self.names])

    @cached_property
    def attention(self) -> Tensor:
        """Attention `[batch, slots]`, the mean over the heads."""
        return self.weights.mean(0)

    @property
    def mask(self) -> Tensor:
        """Bool `[batch, slots]`, slots that may get weight."""
        return self.output.levels[self.names[0]].mask

    @cached_property
    def groups(self) -> Tensor:
        """Int64 `[batch, slots]`, slots among which the weights sum to one; -1 for those that get none."""
        groups = self.output.levels[self.names[0]].groups
        return (~self.mask).long().neg() if groups is None else groups

    @cached_property
    def units(self) -> Tensor:
        """Int64 `[batch, time]`, the slot that each token is of; -1 for delimiters and padding."""
        return units(self.batch, self.names[0])

    @cached_property
    def words(self) -> Tensor:
        """Bool `[batch, slots]`, slots that hold a word: what a text can lose."""
        return self.over_slots(torch.ones_like(self.units, dtype=torch.float32)) > 0

    @cached_property
    def probabilities(self) -> Tensor:
        """Of each class, `[batch, classes]`."""
        return self.output.logits.softmax(-1)

    @cached_property
    def predicted(self) -> Tensor:
        """The class of the highest probability, int64 `[batch]`."""
        return self.probabilities.argmax(-1)

    @cached_property
    def confidence(self) -> Tensor:
        """Probability of the predicted class, `[batch]`."""
        return self.of_predicted(self.probabilities)

    @cached_property
    def saliency(self) -> Saliency:
        """How much each slot matters to the decision, by several definitions."""
        return Saliency(self, self.steps)

    def one_distribution(self, test: str) -> None:
        """Refuse weights that sum to one in more than one group a text.

        Raises:
            FidelityError: they do, as those of words in a hierarchical model.
        """
        if bool((self.groups > 0).any()):
            raise FidelityError(
                f"{test} compares one distribution a text, and {self.checkpoint.name} has one for each sentence at "
                f"level {self.names[0]}: --model.init_args.level {SENTENCE}, or leave {test} out of "
                f"--model.init_args.tests."
            )

    def of_predicted(self, probabilities: Tensor) -> Tensor:
        """Of probabilities `[..., batch, classes]` that of the class that the whole text gets, `[..., batch]`."""
        places = self.predicted[:, None].expand(*probabilities.shape[:-1], 1)
        return probabilities.gather(-1, places).squeeze(-1)

    def over_slots(self, values: Tensor) -> Tensor:
        """Values of tokens `[batch, time]` summed over the tokens of every slot, `[batch, slots]`."""
        there = self.units >= 0
        sums = values.new_zeros(self.mask.shape)
        return sums.scatter_add(1, self.units.clamp(min=0), values.masked_fill(~there, 0))

    def over_tokens(self, values: Tensor) -> Tensor:
        """Values of slots `[..., batch, slots]` for each token of them, `[..., batch, time]`; 0 (False) elsewhere."""
        places = self.units.clamp(min=0).expand(*values.shape[:-1], self.units.size(1))
        return values.gather(-1, places).masked_fill(self.units < 0, 0)

    def decide(self, weights: Tensor) -> Tensor:
        """Probabilities `[..., batch, classes]` with other attention over the same hidden states; differentiable.

        Args:
            weights: `[..., heads, batch, slots]`, used as they are.
        """
        return self.logits(weights).softmax(-1)

    def logits(self, weights: Tensor) -> Tensor:
        """Logits of the same."""
        imposed = {name: weights[..., head, :, :] for head, name in enumerate(self.names)}
        return self.model.decide(self.output, imposed)

    @torch.no_grad()
    def reread(self, keep: Tensor) -> Tensor:
        """Probabilities `[copies, batch, classes]` of the texts with some of their words only, read anew.

        Args:
            keep: bool `[copies, batch, slots]`, whose words stay; delimiters stay always.

        Returns:
            nan for a text of which no word stays.
        """
        copies, texts = keep.shape[:2]
        tokens = self.over_tokens(keep)
        found = self.probabilities.new_full((copies * texts, self.probabilities.size(1)), torch.nan)
        something = tokens.any(-1).flatten().nonzero().squeeze(1)
        tokens = (tokens | (self.batch.mask & (self.units < 0))).flatten(0, 1)
        for some in passes(tokens[something].sum(1)):
            places = something[some]
            batch = shortened(self.batch, places % texts, tokens[places], self.pad)
            found[places] = self.model(batch).logits.softmax(-1)
        return found.view(copies, texts, -1)

    def noise(self, purpose: str, draws: int) -> Tensor:
        """Numbers in [0, 1) for the slots, float64 `[draws, batch, slots]`, and 2 for those that get no weight.

        They depend on the seed, the purpose and the place of the text in its split alone, and not on the batch.
        """
        found = np.full((draws, *self.mask.shape), OUTSIDE)
        rows = zip(self.batch.index.tolist(), self.mask.cpu().numpy(), strict=True)
        for place, (text, mask) in enumerate(rows):
            random = np.random.default_rng((self.seed, crc32(purpose.encode()), text))
            found[:, place, mask] = random.random((draws, int(mask.sum())))
        return torch.from_numpy(found).to(self.mask.device)


def units(batch: TextBatch, level: str) -> Tensor:
    """Int64 `[batch, time]`, the slot of a level that each token is of; -1 for delimiters and padding."""
    if level == SENTENCE:
        return batch.sentences
    places = torch.arange(batch.tokens.size(1), device=batch.tokens.device)
    return torch.where(batch.words, places, -1)


def levels_of(output: Output, wanted: str | None) -> tuple[str, ...]:
    """The levels that are tested together.

    Args:
        output: of the classifier.
        wanted: one of its levels; None for the sentences of a hierarchical model, else for all there are.

    Raises:
        FidelityError: it has no such level.
    """
    if wanted is not None:
        if wanted not in output.levels:
            raise FidelityError(f"--model.init_args.level: there is no {wanted}, only {', '.join(output.levels)}.")
        return (wanted,)
    return (SENTENCE,) if SENTENCE in output.levels else tuple(output.levels)


def read(
    checkpoint: Checkpoint, batch: TextBatch, level: str | None, *, seed: int, pad: int, steps: int = 50
) -> tuple[Output, Reading | None]:
    """Run a classifier once over a batch.

    Returns:
        What it says of all texts; and, of those with at least two words (at the level of sentences: two sentences),
        what tests read: None where there is none.
    """
    with torch.no_grad():
        output: Output = checkpoint.model(batch)
    names = levels_of(output, level)
    slots = units(batch, names[0])
    # More than one slot: the highest is not the lowest.
    several = slots.max(1).values > torch.where(slots < 0, slots.size(1), slots).min(1).values
    if not bool(several.any()):
        return output, None
    if not bool(several.all()):
        return output, Reading(checkpoint, rows_of(batch, several), rows_of(output, several), names, seed, pad, steps)
    return output, Reading(checkpoint, batch, output, names, seed, pad, steps)
