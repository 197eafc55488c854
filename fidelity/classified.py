"""Decisions of a classifier on a batch of texts, also under other attention and on texts with fewer words."""

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
from models.text_model import SENTENCE, Level, Output
from results.errors import UserError

OUTSIDE = 2.0  # noise of positions that get no weight: above all other noise
PASS = 16384  # most tokens of one pass, padding included

Texts = TypeVar("Texts", TextBatch, Output, Level)


@dataclass(frozen=True, eq=False)
class ClassifiedBatch:
    """Texts of at least two words each, with the output of one classifier.

    The tested levels of attention are replaced together: the words of a flat model; the sentences of a hierarchical
    model, or its words by option; all heads of a transformer that are levels. A *position* is a token or a sentence
    that may get weight.
    """

    checkpoint: Checkpoint
    batch: TextBatch
    output: Output  # without gradients
    names: tuple[str, ...]  # names of the tested levels
    seed: int  # seed of everything that is drawn
    pad: int  # id of the padding in the vocabulary

    @cached_property
    def weights(self) -> Tensor:
        """Attention `[heads, batch, positions]`, one head for each tested level."""
        return torch.stack([self.output.levels[name].weights for name in self.names])

    @cached_property
    def attention(self) -> Tensor:
        """Mean of the attention over the heads, `[batch, positions]`."""
        return self.weights.mean(0)

    @property
    def mask(self) -> Tensor:
        """Positions that may get weight, bool `[batch, positions]`."""
        return self.output.levels[self.names[0]].mask

    @cached_property
    def groups(self) -> Tensor:
        """Group of each position, int64 `[batch, positions]`; weights sum to one over a group; -1 outside the mask."""
        groups = self.output.levels[self.names[0]].groups
        return (~self.mask).long().neg() if groups is None else groups

    @cached_property
    def token_to_position(self) -> Tensor:
        """Position of each token, int64 `[batch, time]`; -1 for delimiters and padding."""
        return token_to_position(self.batch, self.names[0])

    @cached_property
    def words(self) -> Tensor:
        """Positions with a word, bool `[batch, positions]`: only they can be removed from a text."""
        return self.to_positions(torch.ones_like(self.token_to_position, dtype=torch.float32)) > 0

    @cached_property
    def probabilities(self) -> Tensor:
        """Probabilities of the classes, `[batch, classes]`."""
        return self.output.logits.softmax(-1)

    @cached_property
    def predicted(self) -> Tensor:
        """Class with the highest probability, int64 `[batch]`."""
        return self.probabilities.argmax(-1)

    @cached_property
    def confidence(self) -> Tensor:
        """Probability of the predicted class, `[batch]`."""
        return self.of_predicted(self.probabilities)

    def of_predicted(self, probabilities: Tensor) -> Tensor:
        """Return the probability `[..., batch]` of the class of the whole text, from `[..., batch, classes]`."""
        places = self.predicted[:, None].expand(*probabilities.shape[:-1], 1)
        return probabilities.gather(-1, places).squeeze(-1)

    def to_positions(self, values: Tensor) -> Tensor:
        """Return values of tokens `[batch, time]` summed over the tokens of each position, `[batch, positions]`."""
        there = self.token_to_position >= 0
        sums = values.new_zeros(self.mask.shape)
        return sums.scatter_add(1, self.token_to_position.clamp(min=0), values.masked_fill(~there, 0))

    def decide(self, weights: Tensor) -> Tensor:
        """Return probabilities `[..., batch, classes]` under other attention; see `logits`."""
        return self.logits(weights).softmax(-1)

    def logits(self, weights: Tensor) -> Tensor:
        """Return logits `[..., batch, classes]` with weights `[..., heads, batch, positions]` and the same states."""
        imposed = {name: weights[..., head, :, :] for head, name in enumerate(self.names)}
        return self.checkpoint.model.decide(self.output, imposed)

    @torch.no_grad()
    def reread(self, keep: Tensor) -> Tensor:
        """Return probabilities `[copies, batch, classes]` of texts with fewer words, which are encoded again.

        The words of `keep`, bool `[copies, batch, positions]`, and delimiters stay; nan if no word stays.
        """
        copies, texts = keep.shape[:2]
        tokens = to_tokens(keep, self.token_to_position)
        found = self.probabilities.new_full((copies * texts, self.probabilities.size(1)), torch.nan)
        something = tokens.any(-1).flatten().nonzero().squeeze(1)
        tokens = (tokens | (self.batch.mask & (self.token_to_position < 0))).flatten(0, 1)
        for some in passes(tokens[something].sum(1)):
            places = something[some]
            batch = shortened(self.batch, places % texts, tokens[places], self.pad)
            found[places] = self.checkpoint.model(batch).logits.softmax(-1)
        return found.view(copies, texts, -1)

    def noise(self, purpose: str, draws: int) -> Tensor:
        """Return random numbers in [0, 1), float64 `[draws, batch, positions]`; 2 at positions outside the mask.

        They depend on the seed, the purpose and the index of the text in its split, and not on the batch.
        """
        found = np.full((draws, *self.mask.shape), OUTSIDE)
        rows = zip(self.batch.index.tolist(), self.mask.cpu().numpy(), strict=True)
        for place, (text, mask) in enumerate(rows):
            random = np.random.default_rng((self.seed, crc32(purpose.encode()), text))
            found[:, place, mask] = random.random((draws, int(mask.sum())))
        return torch.from_numpy(found).to(self.mask.device)


def require_one_distribution(classified: ClassifiedBatch, test: str) -> None:
    """Raise UserError if a text has several distributions, one for each sentence of a hierarchical model."""
    if bool((classified.groups > 0).any()):
        raise UserError(
            f"{test} needs one attention distribution per text, but {classified.checkpoint.name} at level "
            f"{classified.names[0]} has one per sentence. Give --model.init_args.level {SENTENCE}, or remove {test} "
            f"from --model.init_args.tests."
        )


def to_tokens(values: Tensor, token_to_position: Tensor) -> Tensor:
    """Return values `[..., batch, positions]` copied to the tokens of each position, `[..., batch, time]`, else 0."""
    places = token_to_position.clamp(min=0).expand(*values.shape[:-1], token_to_position.size(1))
    return values.gather(-1, places).masked_fill(token_to_position < 0, 0)


def token_to_position(batch: TextBatch, level: str) -> Tensor:
    """Return the position of each token at a level, int64 `[batch, time]`; -1 for delimiters and padding."""
    if level == SENTENCE:
        return batch.sentences
    places = torch.arange(batch.tokens.size(1), device=batch.tokens.device)
    return torch.where(batch.words, places, -1)


def levels_of(output: Output, wanted: str | None) -> tuple[str, ...]:
    """Return the tested levels: the wanted one; by default sentences, or all levels of a model without sentences."""
    if wanted is None:
        return (SENTENCE,) if SENTENCE in output.levels else tuple(output.levels)
    if wanted not in output.levels:
        raise UserError(
            f"--model.init_args.level: {wanted!r} is not an attention level of this classifier; choose one of "
            f"{', '.join(output.levels)}."
        )
    return (wanted,)


def classify(
    checkpoint: Checkpoint, batch: TextBatch, level: str | None, *, seed: int, pad: int
) -> tuple[Output, ClassifiedBatch | None]:
    """Return the output for all texts, and a batch of the texts with at least two words, or sentences if tested."""
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
    """Return some texts of a batch or of an output, chosen by index int64 `[rows]` or by bool `[batch]`."""
    chosen: dict[str, Any] = {}
    for field in fields(texts):
        value = getattr(texts, field.name)
        if isinstance(value, Tensor):
            chosen[field.name] = value[rows]
        elif field.name == "levels":
            chosen[field.name] = {name: select_texts(level, rows) for name, level in value.items()}
    return replace(texts, **chosen)


def shortened(batch: TextBatch, rows: Tensor, keep: Tensor, pad: int) -> TextBatch:
    """Return texts, by index int64 `[rows]`, with the tokens `keep`, bool `[rows, time]`; empty sentences vanish."""
    lengths = keep.sum(1)
    time = int(lengths.max())
    places = (~keep).to(torch.int8).argsort(dim=1, stable=True)[:, :time]
    real = torch.arange(time, device=keep.device) < lengths[:, None]

    def moved(values: Tensor, blank: int) -> Tensor:
        return values[rows].gather(1, places).masked_fill(~real, blank)

    sentences = moved(batch.sentences, -1)
    # Sentences ascend: a token begins one if its number is higher than all before it.
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
    """Yield indices of texts of these lengths, longest first, in passes of at most `PASS` tokens or of one text."""
    order = lengths.argsort(dim=0, descending=True, stable=True)
    while len(order):
        size = max(PASS // max(int(lengths[order[0]]), 1), 1)
        yield order[:size]
        order = order[size:]


def renormalised(weights: Tensor, groups: Tensor) -> Tensor:
    """Return weights `[..., batch, positions]` scaled to sum to one in each group; a group without weight stays 0."""
    count = int(groups.max()) + 1
    if count <= 1:
        sums = weights.sum(-1, keepdim=True)
    else:
        places = groups.clamp(min=0).expand(weights.shape)
        sums = weights.new_zeros(*weights.shape[:-1], count).scatter_add(-1, places, weights).gather(-1, places)
    # A group without weight is divided by 1, so that no gradient is NaN.
    return torch.where(sums > 0, weights / torch.where(sums > 0, sums, 1), 0)
