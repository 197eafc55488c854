"""What a classifier decides on a batch of texts, and what it would decide with other attention or with fewer words."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from datamodules import TextBatch
from fidelity.checkpoints import Checkpoint
from models import TextClassifier
from models.interface import SENTENCE, Level, Output
from results.errors import UserError

OUTSIDE = 2.0  # noise of positions that get no weight: behind all others
PASS = 16384  # most tokens of one pass, padding included

Texts = TypeVar("Texts", TextBatch, Output, Level)


@dataclass(frozen=True, eq=False)
class ClassifiedBatch:
    """Texts of at least two words each, and what one classifier says of them.

    The tested levels of attention are replaced together: the words of a flat model; the sentences of a hierarchical
    model, or its words where they are asked for; all heads that a transformer shows. A *position* is a token or a
    sentence that may get weight.
    """

    checkpoint: Checkpoint
    batch: TextBatch
    output: Output  # without gradients
    names: tuple[str, ...]  # of the tested levels
    seed: int  # of everything that is drawn
    pad: int  # number of the padding in the vocabulary

    @property
    def model(self) -> TextClassifier:
        return self.checkpoint.model

    @cached_property
    def weights(self) -> Tensor:
        """Attention `[heads, batch, positions]`, one head for each of the levels."""
        return torch.stack([self.output.levels[name].weights for name in self.names])

    @cached_property
    def attention(self) -> Tensor:
        """Attention `[batch, positions]`, the mean over the heads."""
        return self.weights.mean(0)

    @property
    def mask(self) -> Tensor:
        """Bool `[batch, positions]`, positions that may get weight."""
        return self.output.levels[self.names[0]].mask

    @cached_property
    def groups(self) -> Tensor:
        """Int64 `[batch, positions]`, positions among which the weights sum to one; -1 for those that get none."""
        groups = self.output.levels[self.names[0]].groups
        return (~self.mask).long().neg() if groups is None else groups

    @cached_property
    def token_to_position(self) -> Tensor:
        """Int64 `[batch, time]`, the position that each token belongs to; -1 for delimiters and padding."""
        return token_to_position(self.batch, self.names[0])

    @cached_property
    def words(self) -> Tensor:
        """Bool `[batch, positions]`, positions that hold a word: what a text can lose."""
        return self.to_positions(torch.ones_like(self.token_to_position, dtype=torch.float32)) > 0

    @cached_property
    def probabilities(self) -> Tensor:
        """`[batch, classes]`."""
        return self.output.logits.softmax(-1)

    @cached_property
    def predicted(self) -> Tensor:
        """The class of the highest probability, int64 `[batch]`."""
        return self.probabilities.argmax(-1)

    @cached_property
    def confidence(self) -> Tensor:
        """Probability of the predicted class, `[batch]`."""
        return self.of_predicted(self.probabilities)

    def require_one_distribution(self, test: str) -> None:
        """Raise UserError where a text has several distributions, as the words of a hierarchical model have."""
        if bool((self.groups > 0).any()):
            raise UserError(
                f"{test} compares one distribution a text, and {self.checkpoint.name} has one for each sentence at "
                f"level {self.names[0]}: --model.init_args.level {SENTENCE}, or leave {test} out of "
                f"--model.init_args.tests."
            )

    def of_predicted(self, probabilities: Tensor) -> Tensor:
        """Of probabilities `[..., batch, classes]` that of the class that the whole text gets, `[..., batch]`."""
        places = self.predicted[:, None].expand(*probabilities.shape[:-1], 1)
        return probabilities.gather(-1, places).squeeze(-1)

    def to_positions(self, values: Tensor) -> Tensor:
        """Values of tokens `[batch, time]` summed over the tokens of every position, `[batch, positions]`."""
        there = self.token_to_position >= 0
        sums = values.new_zeros(self.mask.shape)
        return sums.scatter_add(1, self.token_to_position.clamp(min=0), values.masked_fill(~there, 0))

    def to_tokens(self, values: Tensor) -> Tensor:
        """Values of positions `[..., batch, positions]` copied to their tokens, `[..., batch, time]`; 0 elsewhere."""
        places = self.token_to_position.clamp(min=0).expand(*values.shape[:-1], self.token_to_position.size(1))
        return values.gather(-1, places).masked_fill(self.token_to_position < 0, 0)

    def decide(self, weights: Tensor) -> Tensor:
        """Probabilities `[..., batch, classes]` with weights as for `logits`."""
        return self.logits(weights).softmax(-1)

    def logits(self, weights: Tensor) -> Tensor:
        """Logits `[..., batch, classes]` with weights `[..., heads, batch, positions]` over the same hidden states."""
        imposed = {name: weights[..., head, :, :] for head, name in enumerate(self.names)}
        return self.model.decide(self.output, imposed)

    @torch.no_grad()
    def reread(self, keep: Tensor) -> Tensor:
        """Probabilities `[copies, batch, classes]` of the texts reduced to some of their words, encoded anew.

        The words of `keep`, bool `[copies, batch, positions]`, and delimiters stay; nan where no word stays.
        """
        copies, texts = keep.shape[:2]
        tokens = self.to_tokens(keep)
        found = self.probabilities.new_full((copies * texts, self.probabilities.size(1)), torch.nan)
        something = tokens.any(-1).flatten().nonzero().squeeze(1)
        tokens = (tokens | (self.batch.mask & (self.token_to_position < 0))).flatten(0, 1)
        for some in passes(tokens[something].sum(1)):
            places = something[some]
            batch = shortened(self.batch, places % texts, tokens[places], self.pad)
            found[places] = self.model(batch).logits.softmax(-1)
        return found.view(copies, texts, -1)

    def noise(self, purpose: str, draws: int) -> Tensor:
        """Numbers in [0, 1) for the positions, float64 `[draws, batch, positions]`, and 2 for those that get no weight.

        They depend on the seed, the purpose and the place of the text in its split alone, and not on the batch.
        """
        found = np.full((draws, *self.mask.shape), OUTSIDE)
        rows = zip(self.batch.index.tolist(), self.mask.cpu().numpy(), strict=True)
        for place, (text, mask) in enumerate(rows):
            random = np.random.default_rng((self.seed, crc32(purpose.encode()), text))
            found[:, place, mask] = random.random((draws, int(mask.sum())))
        return torch.from_numpy(found).to(self.mask.device)


def token_to_position(batch: TextBatch, level: str) -> Tensor:
    """Int64 `[batch, time]`, the position of a level that each token belongs to; -1 for delimiters and padding."""
    if level == SENTENCE:
        return batch.sentences
    places = torch.arange(batch.tokens.size(1), device=batch.tokens.device)
    return torch.where(batch.words, places, -1)


def levels_of(output: Output, wanted: str | None) -> tuple[str, ...]:
    """The levels that are tested together: the wanted one; without, sentences, or where there are none, all levels."""
    if wanted is None:
        return (SENTENCE,) if SENTENCE in output.levels else tuple(output.levels)
    if wanted not in output.levels:
        raise UserError(f"--model.init_args.level: there is no {wanted}, only {', '.join(output.levels)}.")
    return (wanted,)


def classify(
    checkpoint: Checkpoint, batch: TextBatch, level: str | None, *, seed: int, pad: int
) -> tuple[Output, ClassifiedBatch | None]:
    """Output of a classifier for all texts, and a copy of those of at least two words, or sentences where tested."""
    with torch.no_grad():
        output: Output = checkpoint.model(batch)
    names = levels_of(output, level)
    positions = token_to_position(batch, names[0])
    # More than one position: the highest is not the lowest.
    several = positions.max(1).values > torch.where(positions < 0, positions.size(1), positions).min(1).values
    if not bool(several.any()):
        return output, None
    batch, tested = select_texts(batch, several), select_texts(output, several)
    return output, ClassifiedBatch(checkpoint, batch, tested, names, seed, pad)


def select_texts(texts: Texts, rows: Tensor) -> Texts:
    """Some texts of a batch or of an output: int64 `[rows]` places, or bool `[batch]`."""
    chosen: dict[str, Any] = {}
    for field in fields(texts):
        value = getattr(texts, field.name)
        if isinstance(value, Tensor):
            chosen[field.name] = value[rows]
        elif field.name == "levels":
            chosen[field.name] = {name: select_texts(level, rows) for name, level in value.items()}
    return replace(texts, **chosen)


def shortened(batch: TextBatch, rows: Tensor, keep: Tensor, pad: int) -> TextBatch:
    """Texts, by their places int64 `[rows]`, of the tokens of `keep`, bool `[rows, time]`; empty sentences go."""
    lengths = keep.sum(1)
    time = int(lengths.max())
    places = (~keep).to(torch.int8).argsort(dim=1, stable=True)[:, :time]
    real = torch.arange(time, device=keep.device) < lengths[:, None]

    def moved(values: Tensor, blank: int) -> Tensor:
        return values[rows].gather(1, places).masked_fill(~real, blank)

    sentences = moved(batch.sentences, -1)
    # They ascend: a token begins a sentence where it is higher than all before it.
    highest = torch.cat([sentences.new_full((len(sentences), 1), -1), sentences.cummax(1).values[:, :-1]], 1)
    return TextBatch(
        index=batch.index[rows],
        lengths=lengths,
        tokens=moved(batch.tokens, pad),
        special=moved(batch.special, 0),
        sentences=((sentences > highest).cumsum(1) - 1).masked_fill(sentences < 0, -1),
        segments=moved(batch.segments, 0),
        labels=batch.labels[rows],
        rationale=moved(batch.rationale, 0),
        split=batch.split,
    )


def passes(lengths: Tensor) -> Iterator[Tensor]:
    """Places int64 of texts of these lengths, the longest first, in passes of at most `PASS` tokens or of one text."""
    order = lengths.argsort(dim=0, descending=True, stable=True)
    while len(order):
        size = max(PASS // max(int(lengths[order[0]]), 1), 1)
        yield order[:size]
        order = order[size:]


def group_sums(values: Tensor, groups: Tensor) -> Tensor:
    """Sums `[..., batch, positions]` of values over the group of each position; values are 0 outside of groups."""
    count = int(groups.max()) + 1
    if count <= 1:
        return values.sum(-1, keepdim=True).expand(values.shape)
    places = groups.clamp(min=0).expand(values.shape)
    return values.new_zeros(*values.shape[:-1], count).scatter_add(-1, places, values).gather(-1, places)


def renormalised(weights: Tensor, groups: Tensor) -> Tensor:
    """Weights `[..., batch, positions]` scaled so that every group sums to one; a group with nothing left stays 0."""
    sums = group_sums(weights, groups)
    left = sums > 0
    # The division is by 1 where nothing is left, so that no gradient is NaN.
    return torch.where(left, weights / torch.where(left, sums, 1), 0)


def uniform_weights(groups: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The same weight `[batch, positions]` on every position of a group."""
    return renormalised((groups >= 0).to(dtype), groups)


def permuted(weights: Tensor, noise: Tensor, groups: Tensor) -> Tensor:
    """Weights `[heads, batch, positions]` shuffled within their groups, `[draws, heads, batch, positions]`.

    All heads are shuffled alike, in the order of the noise, `[draws, batch, positions]`. Positions of no group, -1,
    keep what they have.
    """
    positions = groups.argsort(dim=-1, stable=True).expand(noise.shape)
    by_noise = noise.argsort(-1)
    # Sorted by group and by noise within each: the n-th of these gives its weight to the n-th position of the group.
    givers = by_noise.gather(-1, groups.expand(noise.shape).gather(-1, by_noise).argsort(dim=-1, stable=True))
    source = torch.empty_like(givers).scatter_(-1, positions, givers)
    outside = groups < 0
    source = torch.where(outside, torch.arange(groups.size(-1), device=groups.device), source)
    shape = (noise.size(0), *weights.shape)
    return weights.expand(shape).gather(-1, source[:, None].expand(shape))
