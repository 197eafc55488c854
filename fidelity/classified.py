"""A batch of texts with a classifier's decisions, which can be repeated with other attention or with fewer words."""

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

    A *position* is a token or a sentence that may get attention weight. The attention of all tested levels is replaced
    together. The levels are: the words of a flat model; the sentences of a hierarchical model, or its words by option;
    the heads of a transformer, each a level.

    Attributes:
        checkpoint: the classifier.
        batch: the texts.
        output: output of the classifier, without gradients.
        names: names of the tested levels.
        seed: seed of all random numbers.
        pad: id of the padding in the vocabulary.
    """

    checkpoint: Checkpoint
    batch: TextBatch
    output: Output
    names: tuple[str, ...]
    seed: int
    pad: int

    @cached_property
    def weights(self) -> Tensor:
        """Attention of the classifier, `[heads, batch, positions]`, one head for each tested level."""
        return torch.stack([self.output.levels[name].weights for name in self.names])

    @cached_property
    def attention(self) -> Tensor:
        """Attention of the classifier, averaged over the heads, `[batch, positions]`."""
        return self.weights.mean(0)

    @property
    def mask(self) -> Tensor:
        """Bool `[batch, positions]`, True for positions that may get weight."""
        return self.output.levels[self.names[0]].mask

    @cached_property
    def groups(self) -> Tensor:
        """Index of the distribution that each position belongs to, int64 `[batch, positions]`; -1 outside the mask.

        The weights of one group sum to one. A group is the whole text, or one sentence at the word level of a
        hierarchical model.
        """
        groups = self.output.levels[self.names[0]].groups
        return (~self.mask).long().neg() if groups is None else groups

    @cached_property
    def token_to_position(self) -> Tensor:
        """Index of the position that each token belongs to, int64 `[batch, time]`; -1 for delimiters and padding."""
        return token_to_position(self.batch, self.names[0])

    @cached_property
    def words(self) -> Tensor:
        """Bool `[batch, positions]`, True for positions that contain a word: only these can be removed from a text."""
        return self.to_positions(torch.ones_like(self.token_to_position, dtype=torch.float32)) > 0

    @cached_property
    def probabilities(self) -> Tensor:
        """Probabilities of the classes for the unchanged texts, `[batch, classes]`."""
        return self.output.logits.softmax(-1)

    @cached_property
    def predicted(self) -> Tensor:
        """Class predicted for each unchanged text, int64 `[batch]`."""
        return self.probabilities.argmax(-1)

    @cached_property
    def confidence(self) -> Tensor:
        """Probability of the predicted class for each unchanged text, `[batch]`."""
        return self.of_predicted(self.probabilities)

    def of_predicted(self, probabilities: Tensor) -> Tensor:
        """Pick from `[..., batch, classes]` the probability of the class that is predicted for the unchanged text.

        Returns:
            Probabilities `[..., batch]`.
        """
        places = self.predicted[:, None].expand(*probabilities.shape[:-1], 1)
        return probabilities.gather(-1, places).squeeze(-1)

    def to_positions(self, values: Tensor) -> Tensor:
        """Sum values of tokens `[batch, time]` over the tokens of each position; return `[batch, positions]`."""
        there = self.token_to_position >= 0
        sums = values.new_zeros(self.mask.shape)
        return sums.scatter_add(1, self.token_to_position.clamp(min=0), values.masked_fill(~there, 0))

    def decide(self, weights: Tensor) -> Tensor:
        """Return the class probabilities if attention is replaced by `weights`.

        Args:
            weights: attention of the tested levels, `[..., heads, batch, positions]`; hidden states stay.

        Returns:
            Probabilities `[..., batch, classes]`.
        """
        return self.logits(weights).softmax(-1)

    def logits(self, weights: Tensor) -> Tensor:
        """Return the logits if attention is replaced, as `decide` does before the softmax.

        Args:
            weights: attention `[..., heads, batch, positions]`, in the order of `names`.

        Returns:
            Logits `[..., batch, classes]`.
        """
        imposed = {name: weights[..., head, :, :] for head, name in enumerate(self.names)}
        return self.checkpoint.model.decide(self.output, imposed)

    @torch.no_grad()
    def reread(self, keep: Tensor) -> Tensor:
        """Encode and classify copies of the texts with fewer words.

        Args:
            keep: bool `[copies, batch, positions]`, True for words that stay in each copy of a text; delimiters always
                stay.

        Returns:
            Probabilities `[copies, batch, classes]`, nan for copies without a word.
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
        """Return uniform random numbers in [0, 1), float64 `[draws, batch, positions]`; 2 outside the mask.

        The numbers of a text depend on the seed, on `purpose`, which separates independent draws, and on the index of
        the text in its split, not on the batch.
        """
        found = np.full((draws, *self.mask.shape), OUTSIDE)
        rows = zip(self.batch.index.tolist(), self.mask.cpu().numpy(), strict=True)
        for place, (text, mask) in enumerate(rows):
            random = np.random.default_rng((self.seed, crc32(purpose.encode()), text))
            found[:, place, mask] = random.random((draws, int(mask.sum())))
        return torch.from_numpy(found).to(self.mask.device)


def require_one_distribution(classified: ClassifiedBatch, test: str) -> None:
    """Raise a UserError if the texts have one distribution for each sentence; `test` is the name of the test.

    Only the word level of a hierarchical model has such attention.
    """
    if bool((classified.groups > 0).any()):
        raise UserError(
            f"{test} needs one attention distribution per text, but {classified.checkpoint.name} at level "
            f"{classified.names[0]} has one per sentence. Give --model.init_args.level {SENTENCE}, or remove {test} "
            f"from --model.init_args.tests."
        )


def to_tokens(values: Tensor, token_to_position: Tensor) -> Tensor:
    """Copy the value of each position to its tokens.

    Args:
        values: `[..., batch, positions]`.
        token_to_position: position of each token, int64 `[batch, time]`; -1 for none.

    Returns:
        Values of the tokens `[..., batch, time]`, 0 for tokens without a position.
    """
    places = token_to_position.clamp(min=0).expand(*values.shape[:-1], token_to_position.size(1))
    return values.gather(-1, places).masked_fill(token_to_position < 0, 0)


def token_to_position(batch: TextBatch, level: str) -> Tensor:
    """Return the position of each token at a level of attention, int64 `[batch, time]`.

    A position is the index of the sentence at the level `sentence`, else the index of the token; -1 for delimiters and
    padding.
    """
    if level == SENTENCE:
        return batch.sentences
    places = torch.arange(batch.tokens.size(1), device=batch.tokens.device)
    return torch.where(batch.words, places, -1)


def levels_of(output: Output, wanted: str | None) -> tuple[str, ...]:
    """Return the names of the attention levels to test.

    Args:
        output: output of the classifier, with its levels.
        wanted: name of a level; None for the sentence level, or for all levels if the model has none.

    Raises:
        UserError: the model has no level of this name.
    """
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
    """Classify a batch; return the output for all texts, and the texts that can be tested.

    Args:
        checkpoint: the classifier.
        batch: the texts.
        level: level of attention to test; None for the default of `levels_of`.
        seed: seed of all random numbers of the tests.
        pad: id of the padding in the vocabulary.

    Returns:
        The output, and the texts with at least two positions, words or, at that level, sentences; None if there are
        none.
    """
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
    """Return some texts of a `TextBatch`, an `Output` or a `Level`; `rows` is int64 `[rows]` or bool `[batch]`."""
    chosen: dict[str, Any] = {}
    for field in fields(texts):
        value = getattr(texts, field.name)
        if isinstance(value, Tensor):
            chosen[field.name] = value[rows]
        elif field.name == "levels":
            chosen[field.name] = {name: select_texts(level, rows) for name, level in value.items()}
    return replace(texts, **chosen)


def shortened(batch: TextBatch, rows: Tensor, keep: Tensor, pad: int) -> TextBatch:
    """Return texts with only some of their tokens; sentences left empty are dropped.

    Args:
        batch: the texts.
        rows: indices of the texts to return, int64 `[rows]`; an index may occur several times.
        keep: bool `[rows, time]`, True for tokens that stay.
        pad: id of the padding in the vocabulary.
    """
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
    """Divide texts into passes of similar length; yield the indices of each pass, int64 `[texts]`, longest first.

    A pass has at most `PASS` tokens, padding included, or one text.

    Args:
        lengths: number of tokens of each text, `[texts]`.
    """
    order = lengths.argsort(dim=0, descending=True, stable=True)
    while len(order):
        size = max(PASS // max(int(lengths[order[0]]), 1), 1)
        yield order[:size]
        order = order[size:]


def renormalised(weights: Tensor, groups: Tensor) -> Tensor:
    """Scale weights so that they sum to one in each group; a group without weight stays 0.

    Args:
        weights: attention `[..., batch, positions]`.
        groups: index of the group of each position, int64 `[batch, positions]`; -1 for none.

    Returns:
        Scaled weights `[..., batch, positions]`.
    """
    count = int(groups.max()) + 1
    if count <= 1:
        sums = weights.sum(-1, keepdim=True)
    else:
        places = groups.clamp(min=0).expand(weights.shape)
        sums = weights.new_zeros(*weights.shape[:-1], count).scatter_add(-1, places, weights).gather(-1, places)
    # A group without weight is divided by 1, so that no gradient is NaN.
    return torch.where(sums > 0, weights / torch.where(sums > 0, sums, 1), 0)
