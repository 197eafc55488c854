"""Trained probes that select the head of every word among all candidates (Clark et al. 2019, §5).

Their two formulas score pairs of words by the attention between them: a dependent with a candidate governor, or, in
`probes.antecedent`, a mention with a candidate antecedent. Shapes of attention have K, the number of attention heads of
all layers, and the axes from and to.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from attention_probing.attention import EncoderSpec, Options
from attention_probing.datamodules import AttentionBatch, DependencyDataModule, VectorSpec
from attention_probing.datamodules.dependency import DependencySplit, Field, read_fields
from attention_probing.metrics.attachment import add_arcs, attached, take_arcs
from attention_probing.metrics.rows import Rows
from attention_probing.metrics.trees import tree_heads
from attention_probing.models import Origin, TrainedModule, device_count, training_audit
from attention_probing.models.losses import Average
from attention_probing.probes.arc_evaluation import PredictedArcs, evaluate_arcs
from attention_probing.probes.frozen import MonitorMode, Sizes, on_sentences, probe_origin, weight_maps
from attention_probing.results import Result, Unit
from attention_probing.results.options import Factor, Rate


class HeadSelectionProbe(TrainedModule[DependencyDataModule, Sizes]):
    """A trained probe that scores every candidate governor of every word.

    Subclasses implement `build`, which creates the parameters once the sizes are known, and `forward`, which returns
    the scores of the candidate governors of every word, `[batch, n, n+1]`, ROOT first; −inf for positions that are no
    candidates.

    Args:
        learning_rate: Learning rate of Adam.
        decay: Factor of the learning rate; 1 keeps it, as Clark et al. (2019) do.
        schedule: `epoch` decays the learning rate after every epoch, `plateau` after each epoch that does not lower
            the loss on dev. Several epochs count as one until they have 50 optimizer steps (`TrainedModule.every`).

    Attributes:
        monitor: Name of a score on dev, and `min` or `max`: the best epoch has its lowest or its highest value.
        loss_unit: Unit of `val_loss`.
        headline: Name of the main score of the result, a ratio of two sums over sentences.
        reads: Names of the fields of a batch that the probe reads.
        predictions: Table of the predicted heads of the test split, filled by `Trainer.predict`, with the columns
            that `predict_sentences` returns; None before.
    """

    takes = DependencyDataModule
    sizes_type = Sizes
    monitor: ClassVar[tuple[str, MonitorMode]] = ("val_uas", "max")
    loss_unit: ClassVar[Unit] = "nats"
    headline: ClassVar[str] = "uas"
    reads: Collection[Field] = frozenset(("attention",))

    def __init__(
        self, learning_rate: Rate = 2e-3, decay: Factor = 1.0, schedule: Literal["epoch", "plateau"] = "epoch"
    ) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.decay = decay
        self.schedule = schedule
        self._dev = Rows()
        self._test = Rows()
        # Summed here and logged once an epoch: Lightning's `log` costs more than the forward pass of such a probe.
        self._loss = Average()
        self._val_loss = Average()
        self._val = Rows()
        self._predicted = Rows()
        self.predictions: pd.DataFrame | None = None

    def origin_of(self, data: DependencyDataModule) -> Origin[Sizes]:
        read_fields(data, self.reads, type(self).__name__)
        return probe_origin(data, self.reads, type(self).__name__)

    def cross_entropy(self, batch: AttentionBatch) -> Tensor:
        """Return −ln p(gold governor) of every word, nats `[batch, n]`; 0 in the padding."""
        return _head_cross_entropy(self(batch), batch)

    def training_step(self, batch: AttentionBatch, batch_idx: int) -> Tensor:
        """Return the cross-entropy over the candidate governors, summed over the words, as in Clark et al. (2019, §5).

        In a distributed run it is multiplied by the number of devices, because their gradients are averaged.
        """
        loss = self.cross_entropy(batch).sum()
        self._loss.update(loss.detach(), batch.lengths.sum())
        return device_count(self) * loss  # a sum over all devices, whose gradients are averaged

    def on_train_epoch_end(self) -> None:
        """Log `train_loss`, the mean loss of the epoch in nats per word."""
        self.log("train_loss", self._loss.take())

    def predict(self, batch: AttentionBatch, tree: bool = True) -> PredictedArcs:
        """Return the candidate governor with the best score for every word, and the tree with the best score.

        Args:
            batch: Sentences with the input of the probe.
            tree: False leaves out the tree.
        """
        scores = self(batch)
        return PredictedArcs(scores.argmax(-1), tree_heads(scores, batch.lengths) if tree else None)

    def test_step(self, batch: AttentionBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        if batch.split == "dev":  # the baselines are chosen there
            add_arcs(self._dev, batch)
        else:
            _add_predicted(self._test, batch, self.predict(batch))

    def outcome(self) -> Result:
        return evaluate_arcs(self.experiment, self.data, self._dev, self._test, audit=training_audit(self))

    def predict_step(self, batch: AttentionBatch, batch_idx: int) -> Tensor:
        """Return the predicted heads of a batch, int64 `[batch, n]`, −1 in the padding.

        They are also collected for the table `predictions`.
        """
        predicted = self.predict(batch)
        _add_predicted(self._predicted, batch, predicted)
        return predicted.heads.masked_fill(~batch.mask, -1)

    def on_predict_epoch_end(self) -> None:
        """Fill `predictions` with the table of all predicted heads; its columns are those of `predict_sentences`."""
        self.predictions = _predictions(self._predicted, self.data.splits["test"])

    def predict_sentences(
        self,
        sentences: str | Sequence[str | Sequence[str]],
        encoder: EncoderSpec | None = None,
        *,
        options: Options | None = None,
        vectors: VectorSpec | None = None,
        root: str | None = None,
    ) -> pd.DataFrame:
        """Return a table of predicted heads of new sentences, as `probing predict` does, without a Trainer.

        A probe from a checkpoint of `probing` knows its encoder, options and word vectors. A probe that was trained
        otherwise needs them as arguments, unless it uses the default encoder with all layers and heads.

        Args:
            sentences: Sentences, each a string that is split at white space, or a sequence of words.
            encoder: The encoder of the training; None for the encoder that the checkpoint names.
            options: Layers and heads, and treatment of long sentences; None for the options of the training.
            vectors: The word vectors; None for the vectors of the training.
            root: Folder of the word vectors; None for `$PROBING_DATA`, or else `./data`.

        Returns:
            Table with columns `id, word, form, head, tree_head`. `id` counts the
            sentences, and `word` the words of a sentence, both from 1. `head` is the candidate with the best score,
            `tree_head` the head in the tree with the best score; 0 is ROOT.

        Raises:
            TrainingError: The probe is not trained, or was trained on another encoder or other word vectors.
            UserError: There is no sentence, or one has no words.
        """
        with on_sentences(self, self.reads, sentences, encoder, options, vectors, root) as data:
            rows = Rows()
            for batch in data.batches("test"):
                batch = batch.to(self.device)
                _add_predicted(rows, batch, self.predict(batch))
            return _predictions(rows, data.splits["test"])

    def validation_step(self, batch: AttentionBatch, batch_idx: int) -> None:
        scores = self(batch)
        self._val_loss.update(_head_cross_entropy(scores, batch).sum(), batch.lengths.sum())
        add_arcs(self._val, batch, heads=scores.argmax(-1))

    def on_validation_epoch_end(self) -> None:
        """Log `val_uas`, the UAS on dev without punctuation (nan without such words), and `val_loss`, nats per word."""
        arcs, predicted = take_arcs(self._val)
        right = attached(arcs, predicted["heads"])[~arcs.punctuation]
        self.log("val_uas", float(right.mean()) if len(right) else math.nan, prog_bar=True)
        self.log("val_loss", self._val_loss.take())

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return Adam, as in Clark et al. (2019), with the schedule of the options `decay` and `schedule`."""
        adam = torch.optim.Adam(self.parameters(), self.learning_rate, fused=True)
        if self.schedule == "epoch":
            return {"optimizer": adam, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(adam, self.decay)}
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(adam, factor=self.decay, patience=0, threshold=0)
        return {"optimizer": adam, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


def _add_predicted(rows: Rows, batch: AttentionBatch, predicted: PredictedArcs) -> None:
    """Add the words of a batch with their predicted governors, also those in the tree."""
    assert predicted.tree is not None
    add_arcs(rows, batch, heads=predicted.heads, tree=predicted.tree)


def _predictions(rows: Rows, split: DependencySplit) -> pd.DataFrame:
    """Return the table of `predict_sentences`."""
    arcs, predicted = take_arcs(rows)
    columns = {
        "id": [split.ids[index] for index in arcs.sentence],
        "word": arcs.word,
        "form": [form for index in np.unique(arcs.sentence) for form in split.words(int(index))],
        "head": predicted["heads"],
        "tree_head": predicted["tree"],
    }
    return pd.DataFrame(columns)


def _head_cross_entropy(scores: Tensor, batch: AttentionBatch) -> Tensor:
    """Return the cross-entropy of the gold governors over the candidates, `[batch, n]`; 0 in the padding."""
    words = nn.functional.cross_entropy(scores.flatten(0, 1), batch.heads.flatten(), ignore_index=-1, reduction="none")
    return words.view_as(batch.heads)


def attention_scores(attention: Tensor, weight: Tensor) -> Tensor:
    """Return `score[x, y] = Σ_k weight[0, k] α^k[x, y] + weight[1, k] α^k[y, x]`, `[batch, positions, positions]`.

    Args:
        attention: Attention α of K heads, `[batch, K, positions, positions]`, any floating-point type.
        weight: `[2, K]`, weights of the attention of each head from x to y, and from y to x.
    """
    batch = attention.size(0)
    positions = attention.size(-1)
    # A batched product, because the gradient of a broadcast product is twenty times as slow on a CPU.
    scores = torch.bmm(weight.expand(batch, -1, -1), attention.flatten(2).float())
    out, back = scores.view(-1, 2, positions, positions).unbind(1)
    return out + back.mT


def weighted_scores(attention: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return scores of pairs of positions: a sum over attention heads, weighted by terms of x and of y.

    The result is `score[x, y] = Σ_k a_k α^k[x, y] + b_k α^k[y, x]`, with the weights
    `a_k = first[x,0,k] + second[y,0,k]` and `b_k = first[x,1,k] + second[y,1,k]`.

    A weight `W_k·(v_x ⊕ v_y)`, with word vectors v, is such a sum: one half of W_k gives the term of x,
    the other half the term of y. So no tensor `[positions, positions, 2·dim]` is needed. The sums are
    computed as matrix products, which need less memory traffic than elementwise products.

    Args:
        attention: Attention α of K heads, `[batch, K, positions, positions]`, any floating-point type.
        first: `[batch, positions, 2, K]`, terms of x in the weights of attention from x to y, and from y
            to x.
        second: `[batch, positions, 2, K]`, terms of y in the same weights.

    Returns:
        Scores `[batch, positions, positions]`.
    """
    sent = attention.permute(0, 2, 1, 3).contiguous().to(first.dtype)
    received = attention.permute(0, 3, 1, 2).contiguous().to(first.dtype)
    first_out, first_back = first.unbind(2)
    second_out, second_back = second.unbind(2)
    # Attention from x to y is sent by x and received by y; attention from y to x the other way round.
    sums = torch.stack([first_out, second_back], 2) @ sent
    sums = sums + torch.stack([first_back, second_out], 2) @ received
    of_first, of_second = sums.unbind(2)
    return of_first + of_second.mT


def candidates(scores: Tensor, lengths: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Return the score of each candidate governor for each word: ROOT first, then the words of the sentence.

    The score of ROOT is `start` times the score of the start delimiter plus `end` times that of the end
    delimiter.

    Args:
        scores: Score of each position as the head of each position, `[batch, n+2, n+2]`, dependents ×
            heads. The delimiters stand before the first and after the last word.
        lengths: Number of words of each sentence, `[batch]`.
        start: Scalar, factor of the score of the start delimiter.
        end: Scalar, factor of the score of the end delimiter.

    Returns:
        Scores `[batch, n, n+1]`, dependents × candidates; -inf for candidates after the last word.
    """
    ends = (lengths + 1)[:, None, None].expand(-1, scores.size(1), 1)
    root = start * scores[:, :, :1] + end * scores.gather(2, ends)
    return with_root(root[:, 1:-1, 0], scores, lengths)


def with_root(root: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    """Return the scores of the candidate governors of every word: the given scores of ROOT, then those of the words.

    Args:
        root: `[batch, n]`, score of ROOT as the head of each word.
        scores: `[batch, n+2, n+2]`, dependents × heads, with the delimiters before the first and after the last word.
        lengths: `[batch]`, words of each sentence.

    Returns:
        Scores `[batch, n, n+1]`, dependents × candidates, ROOT first; -inf for positions that are no candidates.
    """
    return without_padding(torch.cat([root[:, :, None], scores[:, 1:-1, 1:-1]], dim=2), lengths)


def without_padding(scores: Tensor, lengths: Tensor) -> Tensor:
    """Return scores of candidate governors with -inf for candidates after the last word of the sentence.

    Args:
        scores: `[batch, n, n+1]`, score of each candidate governor (last axis, ROOT first) for each word.
        lengths: Number of words of each sentence, `[batch]`.
    """
    absent = torch.arange(scores.size(2), device=scores.device) > lengths[:, None]
    return scores.masked_fill(absent[:, None], -torch.inf)


def root_scores(attention: Tensor, weight: Tensor, lengths: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Return the scores of ROOT as the governor of each word, from the attention to and from the delimiters.

    Word j of a sentence of l words gets the score
    `Σ_k weight[0,k] (start·α^k[j,0] + end·α^k[j,l+1]) + weight[1,k] (start·α^k[0,j] + end·α^k[l+1,j])`.
    `candidates` computes the same scores of ROOT from the result of `attention_scores`, but needs the
    attention between all positions.

    Args:
        attention: Attention α of K heads, `[batch, K, n+2, n+2]`, with the delimiters before the first
            and after the last word.
        weight: `[2, K]`, weights of the attention from a word to the delimiters, and from the delimiters
            to the word.
        lengths: `[batch]`, words of each sentence.
        start: Scalar, factor of the attention to and from the start delimiter.
        end: Scalar, factor of the attention to and from the end delimiter.

    Returns:
        Scores `[batch, n]`; those in the padding have no meaning.
    """
    sentences = torch.arange(len(lengths), device=lengths.device)
    to_start = attention[:, :, :, 0]
    from_start = attention[:, :, 0]
    to_end = attention[sentences, :, :, lengths + 1]
    from_end = attention[sentences, :, lengths + 1]
    starts = torch.stack([to_start, from_start], 1).float()
    ends = torch.stack([to_end, from_end], 1).float()
    scores = ((start * starts + end * ends) * weight[:, :, None]).sum((1, 2))
    return scores[:, 1:-1]


class AttentionOnlyProbe(HeadSelectionProbe):
    """A probe that scores word i as the governor of word j by a weighted sum over attention heads.

    The score is `Σ_k w_k α^k[j,i] + u_k α^k[i,j]`. For ROOT, computed from the delimiters, two learned scalars that all
    attention heads share replace attention: `start·α[j,0] + end·α[j,n+1]` stands for α[j,i], and
    `start·α[0,j] + end·α[n+1,j]` for α[i,j]. The word itself stays a candidate, as in Clark et al. (2019, §5). With L
    layers of H heads there are `2LH + 2` parameters.

    Clark et al. train for one epoch on batches of one sentence; here the configuration sets both.
    """

    experiment = "attention_only"

    def build(self, sizes: Sizes) -> None:
        # From the dependent to the head, and back.
        self.weight = nn.Parameter(torch.zeros(2, len(sizes.layers), len(sizes.heads)))
        self.start = nn.Parameter(torch.ones(()))
        self.end = nn.Parameter(torch.ones(()))

    def forward(self, batch: AttentionBatch) -> Tensor:
        scores = attention_scores(batch.attention.flatten(1, 2), self.weight.flatten(1))
        return candidates(scores, batch.lengths, self.start, self.end)

    def outcome(self) -> Result:
        result = super().outcome()
        maps = weight_maps(self.weight, ("dependent → head", "head → dependent"), self.sizes)
        return replace(result, figures={**result.figures, **maps})


class AttentionWordsProbe(HeadSelectionProbe):
    """A probe that scores word i as the governor of word j by attention, with weights that depend on both words.

    The weights are linear in the vectors of both words. The score is
    `Σ_k (W_k·(v_j ⊕ v_i) + b_k) α^k[j,i] + (U_k·(v_j ⊕ v_i) + c_k) α^k[i,j]`; here α^k[j,i] is the
    attention of attention head k from word j to word i, v are frozen word vectors, and ⊕ is
    concatenation. The score of ROOT is computed from the delimiters, with learned scalars `start` and
    `end`, as in `AttentionOnlyProbe`. Two details follow the code of Clark et al. (2019): the biases b
    and c, which the paper's formula lacks; and v_j ⊕ v_i = 0 for ROOT, so that its weights are the
    biases alone. With L layers of H heads there are `4·LH·dim` parameters, `2·LH` biases, and the two
    scalars.

    `HeadSelectionProbe` lists the other options.
    """

    experiment = "attention_words"
    reads = frozenset(("attention", "vectors"))

    def build(self, sizes: Sizes) -> None:
        # `[dim, 2·LH]`: first for attention from the dependent, then for that back.
        heads = len(sizes.layers) * len(sizes.heads)
        self.dependent = nn.Parameter(torch.zeros(sizes.vectors, 2 * heads))
        self.head = nn.Parameter(torch.zeros(sizes.vectors, 2 * heads))
        self.bias = nn.Parameter(torch.zeros(2, heads))
        self.start = nn.Parameter(torch.ones(()))
        self.end = nn.Parameter(torch.ones(()))

    def forward(self, batch: AttentionBatch) -> Tensor:
        attention = batch.attention.flatten(1, 2)
        heads = attention.size(1)
        # Without vectors, ROOT adds nothing to the weights.
        head = nn.functional.pad(batch.vectors @ self.head, (0, 0, 1, 1))
        dependent = nn.functional.pad(batch.vectors @ self.dependent + self.bias.flatten(), (0, 0, 1, 1))
        by_direction = (*dependent.shape[:2], 2, heads)
        scores = weighted_scores(attention, dependent.reshape(by_direction), head.reshape(by_direction))
        root = root_scores(attention, self.bias, batch.lengths, self.start, self.end)
        return with_root(root, scores, batch.lengths)


NEAR = 2
"""Greatest distance with an indicator of its own."""
FEATURES = 2 + 2 * NEAR + 1 + 1
HIDDEN_UNITS = 256
"""Number of tanh units in the hidden layer."""


class DistancesWordsProbe(HeadSelectionProbe):
    """A probe that scores word i as the governor of word j by distance and word vectors, through one hidden layer.

    The input is the two word vectors, `v_j ⊕ v_i`, and eight features: how far i is after j, and how far
    before j, as fractions of the sentence's length (0 in the other direction); an indicator for each of
    the distances −2 to +2; and an indicator of ROOT, whose vector and distances are zero.

    The scores do not depend on attention, so the datamodule's encoder may be null. `HeadSelectionProbe` lists the
    options.
    """

    experiment = "distances_words"
    reads = frozenset(("vectors",))

    def build(self, sizes: Sizes) -> None:
        self.dependent = nn.Linear(sizes.vectors, HIDDEN_UNITS)
        self.head = nn.Linear(sizes.vectors, HIDDEN_UNITS, bias=False)
        self.distance = nn.Linear(FEATURES, HIDDEN_UNITS, bias=False)
        self.score = nn.Linear(HIDDEN_UNITS, 1, bias=False)

    def forward(self, batch: AttentionBatch) -> Tensor:
        # The first layer is a sum of terms of the dependent, the head and their distance, so that the concatenation
        # of the three is not made for every pair.
        head = nn.functional.pad(self.head(batch.vectors), (0, 0, 1, 0))
        apart = self.distance(distances(batch.lengths, batch.heads.size(1)))
        units = self.dependent(batch.vectors)[:, :, None] + head[:, None] + apart
        scores: Tensor = self.score(units.tanh_()).squeeze(-1)
        return without_padding(scores, batch.lengths)


def distances(lengths: Tensor, n: int) -> Tensor:
    """Return eight features of the distance between every word and every candidate governor, in this order.

    They are: how far the candidate is after the word, and how far before it, as fractions of the sentence's length (0
    in the other direction); an indicator for each of the distances −2 to +2; and an indicator of ROOT, for which all
    others are 0.

    Args:
        lengths: `[batch]`, number of words of each sentence.
        n: Greatest length; 0 for a batch without a sentence.

    Returns:
        float32 `[batch, n, n+1, FEATURES]`: dependents × candidate governors, ROOT first.
    """
    words = torch.arange(1, n + 1, device=lengths.device)
    heads = torch.arange(n + 1, device=lengths.device)
    offsets = heads - words[:, None]
    root = (heads == 0).expand_as(offsets)
    near = offsets[..., None] == torch.arange(-NEAR, NEAR + 1, device=lengths.device)
    flags = torch.cat([near & ~root[..., None], root[..., None]], dim=-1).float()
    far = torch.stack([offsets.clamp(min=0), (-offsets).clamp(min=0)], dim=-1).masked_fill(root[..., None], 0)
    share = far / lengths[:, None, None, None]
    return torch.cat([share, flags.expand(len(lengths), -1, -1, -1)], dim=-1)
