"""A batch of texts with a classifier's decisions, which can be repeated with other attention or with fewer words."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, Literal, TypeVar
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from attention_probing.datamodules import TextBatch
from attention_probing.datamodules.classification import EVAL_TOKENS
from attention_probing.datamodules.tokenization import Vocabulary
from attention_probing.fidelity.checkpoints import Checkpoint
from attention_probing.models import TransformerClassifier
from attention_probing.models.text_classifier import SENTENCE, Level, Output
from attention_probing.results.errors import UserError, setting
from attention_probing.results.progress import Progress

OUTSIDE = 2.0  # noise of positions that get no weight: above all other noise
ON_GPU = 16  # a GPU is busy with as many times more

UNCOUNTED = "this test does not count them beforehand"
"""Reason that a line of progress has no total of changed copies; see `FidelityTest.changed_copies`."""

Removal = Literal["delete", "mask"]
"""Treatment of removed words; see `ClassifiedBatch.reread`."""

Texts = TypeVar("Texts", TextBatch, Output, Level)


@dataclass(frozen=True, eq=False)
class ClassifiedBatch:
    """Batch of texts, each with at least two words or sentences to attend to, and the output of one classifier.

    A *position* is a token or a sentence that may get attention weight. A *level* is a place of the
    model with attention that the tests can replace. A flat model has one level, the attention over
    words. A hierarchical model has two, over words and over sentences; one of them is tested, by
    default the one over sentences. In a transformer each tested head is a level. All tested levels are
    replaced together, and form the axis `heads` of tensors.

    Attributes:
        checkpoint: The classifier.
        batch: The texts.
        output: Output of the classifier, without gradients.
        names: Names of the tested levels.
        seed: Seed of all random numbers.
        vocabulary: Vocabulary of the texts.
        progress: Counts the changed copies of the texts that were classified: a long text may take minutes.
        highlights: Values of the words, `[batch, positions]`, by name; they colour example texts. Tests add theirs.
    """

    checkpoint: Checkpoint
    batch: TextBatch
    output: Output
    names: tuple[str, ...]
    seed: int
    vocabulary: Vocabulary
    progress: Progress = field(default_factory=partial(Progress, "Changed copies of texts", math.inf, UNCOUNTED))
    highlights: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def weights(self) -> Tensor:
        """Attention weights of the classifier, `[heads, batch, positions]`.

        The axis `heads` has one entry for each tested level, in the order of `names`.
        """
        return torch.stack([self.output.levels[name].weights for name in self.names])

    @cached_property
    def attention(self) -> Tensor:
        """Attention of the classifier, averaged over the heads, `[batch, positions]`."""
        return self.weights.mean(0)

    @property
    def mask(self) -> Tensor:
        """Mask of the positions that may get attention weight, bool `[batch, positions]`; True for such positions."""
        return self.output.levels[self.names[0]].mask

    @cached_property
    def groups(self) -> Tensor:
        """Index of the attention distribution that each position belongs to, int64 `[batch, positions]`.

        The weights of one distribution sum to one. Usually a text has a single distribution, with index
        0. At the word level of a hierarchical model every sentence has its own. Positions outside the
        mask have -1.
        """
        groups = self.output.levels[self.names[0]].groups
        return (~self.mask).long().neg() if groups is None else groups

    @cached_property
    def token_to_position(self) -> Tensor:
        """Index of the position that each token belongs to, int64 `[batch, time]`; -1 for delimiters and padding."""
        return token_to_position(self.batch, self.names[0])

    @cached_property
    def words(self) -> Tensor:
        """Mask of the positions that contain a word, bool `[batch, positions]`; True for such positions.

        Only these positions can be removed from a text.
        """
        return self.to_positions(torch.ones_like(self.token_to_position, dtype=torch.float32)) > 0

    @cached_property
    def probabilities(self) -> Tensor:
        """Probabilities of the classes for the unchanged texts, `[batch, classes]`."""
        return self.output.logits.softmax(-1, dtype=torch.float64)

    @cached_property
    def predicted(self) -> Tensor:
        """Class that the classifier predicts for each text before any change, int64 `[batch]`."""
        return self.probabilities.argmax(-1)

    @cached_property
    def confidence(self) -> Tensor:
        """Probability of the predicted class of each text before any change, `[batch]`."""
        return self.of_predicted(self.probabilities)

    def of_predicted(self, probabilities: Tensor) -> Tensor:
        """Return the probability of the class that is predicted for the unchanged text.

        Args:
            probabilities: Class probabilities, `[..., batch, classes]`, for instance of a changed text.

        Returns:
            Probabilities `[..., batch]`.
        """
        places = self.predicted[:, None].expand(*probabilities.shape[:-1], 1)
        return probabilities.gather(-1, places).squeeze(-1)

    def to_positions(self, values: Tensor) -> Tensor:
        """Return the sum of the values of the tokens of each position.

        A position is a token or a sentence that may get attention weight. Values of delimiters and of the
        padding are left out.

        Args:
            values: Values of the tokens, `[batch, time]`.

        Returns:
            Sums `[batch, positions]`.
        """
        has_position = self.token_to_position >= 0
        inside = values.masked_fill(~has_position, 0)
        sums = values.new_zeros(self.mask.shape)
        return sums.scatter_add(1, self.token_to_position.clamp(min=0), inside)

    def decide(self, weights: Tensor) -> Tensor:
        """Return the class probabilities of the classifier if its attention is replaced by `weights`.

        The hidden states below the lowest of the tested levels stay the same. Everything above is computed
        again.

        Args:
            weights: Attention `[..., heads, batch, positions]`; the axis `heads` has one entry for each
                tested level, in the order of `names`.

        Returns:
            Probabilities `[..., batch, classes]`.
        """
        return logits_under(self, weights).softmax(-1)

    def reread(self, keep: Tensor, removal: Removal = "delete") -> Tensor:
        """Remove words from copies of the texts, and encode and classify what is left.

        Different copies of a text may lose different words. Delimiters always stay.

        Args:
            keep: Bool `[copies, batch, positions]`, True for the positions whose words stay in a copy of
                a text.
            removal: `delete` closes the gap, `mask` puts the mask token into the place of each token.

        Returns:
            Probabilities `[copies, batch, classes]`; if words are deleted, nan for copies without a word.

        Raises:
            UserError: The vocabulary has no mask token.
        """
        copies, texts = keep.shape[:2]
        rows = torch.arange(texts, device=keep.device).repeat(copies)
        return self.reread_rows(rows, keep.flatten(0, 1), removal).view(copies, texts, -1)

    @torch.no_grad()
    def reread_rows(self, rows: Tensor, keep: Tensor, removal: Removal = "delete") -> Tensor:
        """Remove words as `reread` does, with any number of copies of each text; return `[copies, classes]`.

        Args:
            rows: Text of each copy, int64 `[copies]`.
            keep: Bool `[copies, positions]`; see `reread`.
            removal: See `reread`.
        """
        mask_token = self.vocabulary.mask
        if removal == "mask" and mask_token is None:
            raise UserError("removal: mask needs a mask token, which the tokenizer lacks. Give removal: delete.")
        words = to_tokens(keep, self.token_to_position[rows])
        delimiters = self.batch.mask & (self.token_to_position < 0)
        stays = words | delimiters[rows]
        if removal == "delete":
            is_read = stays
            readable = words.any(-1)
        else:
            is_read = self.batch.mask[rows]
            readable = torch.ones_like(words[:, 0])
        places = readable.nonzero().squeeze(1)
        probabilities = self.probabilities.new_full((len(rows), self.probabilities.size(1)), torch.nan)
        for one_pass in passes(is_read[places].sum(1), EVAL_TOKENS):
            chosen = places[one_pass]
            batch = shorten_texts(self.batch, rows[chosen], is_read[chosen], self.vocabulary.pad)
            if removal == "mask":
                gone = batch.mask & ~stays[chosen, : batch.tokens.size(1)]
                batch = replace(batch, tokens=batch.tokens.masked_fill(gone, mask_token))  # type: ignore[arg-type]
            logits = self.checkpoint.model(batch).logits
            probabilities[chosen] = logits.softmax(-1, dtype=torch.float64)
            self.progress.advance(len(chosen))
        return probabilities

    def noise(self, purpose: str, draws: int) -> Tensor:
        """Return uniform random numbers in [0, 1), float64 `[draws, batch, positions]`; 2 outside the mask.

        The numbers of a text depend on the seed, `purpose` and the index of the text in its split, but not
        on the batch.

        Args:
            purpose: Any string; different strings give independent numbers.
            draws: Number of draws.
        """
        mask = self.mask.cpu().numpy()
        noise = np.full((draws, *mask.shape), OUTSIDE)
        for row, text in enumerate(self.batch.index.tolist()):
            inside = mask[row]
            random = np.random.default_rng((self.seed, crc32(purpose.encode()), text))
            noise[:, row, inside] = random.random((draws, int(inside.sum())))
        return torch.from_numpy(noise).to(self.mask.device)


def select_classified(classified: ClassifiedBatch, rows: Tensor) -> ClassifiedBatch:
    """Return some of the texts; `rows` as in `select_texts`."""
    batch = select_texts(classified.batch, rows)
    output = select_texts(classified.output, rows)
    return replace(classified, batch=batch, output=output)


def logits_under(classified: ClassifiedBatch, weights: Tensor) -> Tensor:
    """Return the logits of the classifier if its attention is replaced by `weights`; `decide` is their softmax.

    Args:
        classified: The texts.
        weights: Attention `[..., heads, batch, positions]`; the axis `heads` has one entry for each tested
            level, in the order of `names`.

    Returns:
        Logits `[..., batch, classes]`.
    """
    classified.progress.advance(weights[..., 0, :, 0].numel())
    imposed = {name: weights[..., head, :, :] for head, name in enumerate(classified.names)}
    return classified.checkpoint.model.decide(classified.output, imposed)


def require_one_distribution(classified: ClassifiedBatch, test: str) -> None:
    """Raise a UserError if each sentence of the texts has its own attention distribution.

    Only the word level of a hierarchical model has such attention.

    Args:
        classified: The texts.
        test: Name of the test that needs one distribution per text, for the message.
    """
    if bool((classified.groups > 0).any()):
        raise UserError(
            f"{test} needs one attention distribution per text, but {classified.checkpoint.name} at level "
            f"{classified.names[0]} has one per sentence. Give {setting('model.level', SENTENCE)}, or leave {test} out."
        )


def to_tokens(values: Tensor, token_to_position: Tensor) -> Tensor:
    """Copy the value of each position to its tokens.

    Args:
        values: `[..., batch, positions]`.
        token_to_position: Position of each token, int64 `[batch, time]`; -1 for none.

    Returns:
        Values of the tokens `[..., batch, time]`, 0 for tokens without a position.
    """
    places = token_to_position.clamp(min=0).expand(*values.shape[:-1], token_to_position.size(1))
    return values.gather(-1, places).masked_fill(token_to_position < 0, 0)


def token_to_position(batch: TextBatch, level: str) -> Tensor:
    """Return the position that each token of a batch belongs to, int64 `[batch, time]`.

    At the level `sentence` a position is the index of the token's sentence, at other levels the index of
    the token. Delimiters and padding have -1.
    """
    if level == SENTENCE:
        return batch.sentences
    places = torch.arange(batch.tokens.size(1), device=batch.tokens.device)
    return torch.where(batch.words, places, -1)


def levels_of(output: Output, wanted: str | None) -> tuple[str, ...]:
    """Return the names of the attention levels to test.

    Args:
        output: Output of the classifier, with its levels.
        wanted: Name of the level to test. None tests the sentence level, or all levels if there is no
            sentence level.

    Raises:
        UserError: The model has no level of this name.
    """
    if wanted is None:
        return (SENTENCE,) if SENTENCE in output.levels else tuple(output.levels)
    if wanted not in output.levels:
        raise UserError(
            f"{setting('model.level')}: {wanted!r} is no attention level of this classifier. Choose "
            f"{' or '.join(output.levels)}."
        )
    return (wanted,)


def classify(
    checkpoint: Checkpoint, batch: TextBatch, *, seed: int, vocabulary: Vocabulary
) -> tuple[Output, ClassifiedBatch | None]:
    """Classify a batch, and select the texts that can be tested.

    A text can be tested if attention has a choice: at least two words, or at the level `sentence` two
    sentences.

    Args:
        checkpoint: The classifier.
        batch: The texts.
        seed: Seed of all random numbers of the tests.
        vocabulary: Vocabulary of the texts.

    Returns:
        The output for all texts; and the texts that can be tested, None if there are none.
    """
    with torch.no_grad():
        output: Output = checkpoint.model(batch)
    names = levels_of(output, _level_in_output(checkpoint))
    positions = token_to_position(batch, names[0])
    # More than one position: the highest is not the lowest.
    highest = positions.max(1).values
    lowest = torch.where(positions < 0, positions.size(1), positions).min(1).values
    several = (highest > lowest).nonzero().squeeze(1)
    if not len(several):
        return output, None
    tested_batch = select_texts(batch, several)
    tested_output = select_texts(output, several)
    return output, ClassifiedBatch(checkpoint, tested_batch, tested_output, names, seed, vocabulary)


def _level_in_output(checkpoint: Checkpoint) -> str | None:
    """Return the level of a checkpoint as `levels_of` takes it.

    A layer of a transformer, or `all`, stands for all of its levels, which are then the heads of these layers
    (`TransformerClassifier.expose`).
    """
    level = checkpoint.level
    if level is None or "-" in level or not isinstance(checkpoint.model, TransformerClassifier):
        return level
    return None


def select_texts(texts: Texts, rows: Tensor) -> Texts:
    """Return some texts of a `TextBatch`, an `Output` or a `Level`.

    Args:
        texts: Object whose tensors have the texts as their first axis.
        rows: Indices of the texts to return, int64 `[rows]`: for a mask, a GPU would wait at each tensor.
    """
    chosen: dict[str, Any] = {}
    for field_of_texts in fields(texts):
        name = field_of_texts.name
        value = getattr(texts, name)
        if isinstance(value, Tensor):
            chosen[name] = value[rows]
        elif name == "levels":
            chosen[name] = {level: select_texts(of_level, rows) for level, of_level in value.items()}
    return replace(texts, **chosen)


def shorten_texts(batch: TextBatch, rows: Tensor, keep: Tensor, pad: int) -> TextBatch:
    """Return texts with only some of their tokens; sentences left empty are dropped.

    Args:
        batch: The texts.
        rows: Indices of the texts to return, int64 `[rows]`; an index may occur several times.
        keep: Bool `[rows, time]`, True for the tokens that stay in each returned text.
        pad: Id of the padding in the vocabulary.
    """
    lengths = keep.sum(1)
    time = int(lengths.max())
    places = (~keep).to(torch.int8).argsort(dim=1, stable=True)[:, :time]
    real = torch.arange(time, device=keep.device) < lengths[:, None]

    def select_tokens(values: Tensor, padding: int) -> Tensor:
        return values[rows].gather(1, places).masked_fill(~real, padding)

    old_sentences = select_tokens(batch.sentences, -1)
    # Sentences ascend: a token begins one if its number is higher than all before it.
    before_first = old_sentences.new_full((len(old_sentences), 1), -1)
    highest_before = torch.cat([before_first, old_sentences.cummax(1).values[:, :-1]], 1)
    sentences = (old_sentences > highest_before).cumsum(1) - 1
    return TextBatch(
        index=batch.index[rows],
        lengths=lengths,
        tokens=select_tokens(batch.tokens, pad),
        special=select_tokens(batch.special, 0),
        sentences=sentences.masked_fill(old_sentences < 0, -1),
        segments=select_tokens(batch.segments, 0),
        labels=batch.labels[rows],
        rationale=select_tokens(batch.rationale, 0),
        split=batch.split,
    )


def passes(lengths: Tensor, tokens: int) -> Iterator[Tensor]:
    """Divide texts into passes through the model, and yield the indices of the texts of each pass, int64 `[texts]`.

    Texts of a pass have similar lengths; the longest texts come first.

    Args:
        lengths: Number of tokens of each text, `[texts]`.
        tokens: Most tokens of a pass, with padding; on a GPU `ON_GPU` times as many. A longer text is a pass by itself.
    """
    order = lengths.argsort(dim=0, descending=True, stable=True)
    most = tokens if lengths.device.type == "cpu" else tokens * ON_GPU
    while len(order):
        size = max(most // max(int(lengths[order[0]]), 1), 1)
        yield order[:size]
        order = order[size:]


def ranks_of(keys: Tensor) -> Tensor:
    """Return the rank of each position, int64: 0 for the highest key; of equal keys, the earlier comes first.

    Args:
        keys: Sort keys `[..., positions]`, -inf for positions that come last.
    """
    return keys.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)


def renormalise(weights: Tensor, groups: Tensor) -> Tensor:
    """Scale attention weights so that they sum to one in each distribution.

    A distribution in which all weights are 0 stays 0.

    Args:
        weights: Attention `[..., batch, positions]`.
        groups: Index of the distribution that each position belongs to, int64 `[batch, positions]`; -1
            for none.

    Returns:
        Scaled weights `[..., batch, positions]`.
    """
    count = int(groups.max()) + 1
    if count <= 1:
        sums = weights.sum(-1, keepdim=True)
    else:
        places = groups.clamp(min=0).expand(weights.shape)
        sums_by_group = weights.new_zeros(*weights.shape[:-1], count).scatter_add(-1, places, weights)
        sums = sums_by_group.gather(-1, places)
    # A group without weight is divided by 1, so that no gradient is NaN.
    return torch.where(sums > 0, weights / torch.where(sums > 0, sums, 1), 0)
