"""The structural probes of Hewitt & Manning (2019): trees in the geometry of hidden states."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
import xarray as xr
from numpy.typing import NDArray
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.nn.functional import pad

from attention import EncoderSpec, Options
from datamodules import AttentionBatch, DependencyDataModule
from datamodules.dependency import Field
from heads.experiment import read_fields
from metrics.attachment import ratio_scores
from metrics.bootstrap import bootstrap_ratio, ratio
from metrics.rows import ItemRows
from metrics.trees import (
    depth_losses,
    distance_losses,
    gold_in_trees,
    length_weights,
    rank_correlations,
    tree_depths,
    tree_distances,
)
from probes.sentences import data_of_sentences
from results import Floats, HeatMap, Integers, Result, Table
from results.errors import UserError, check_numbers
from training import Average, Mean, Origin, TrainedModule, over_devices

BOUND = 0.05
"""The matrices start uniform within ±BOUND as in Hewitt & Manning (2019)."""


class Pair(NamedTuple):
    """A probe of a sweep: the layer whose hidden states it reads, 0 for those of the embeddings, and its rank."""

    layer: int
    rank: int


@dataclass(frozen=True)
class StructuralSizes:
    """What the matrices of a sweep are shaped by: one for each pair, and the size of a hidden state."""

    pairs: tuple[Pair, ...]
    size: int


def sweep_pairs(
    layers: Sequence[int] | None, ranks: Sequence[int] | None, held: Sequence[int], size: int
) -> tuple[Pair, ...]:
    """Every layer that is asked for, by default all that the data hold, with every rank, by default the whole size.

    Raises:
        UserError: nothing is held or asked for, or a layer is not held, or a rank exceeds the size.
    """
    if not held:
        raise UserError(
            "A structural probe needs hidden states: --data.init_args.hidden '[1,2,3]', 0 for those of the embeddings, "
            "k for those of layer k."
        )
    layers = held if layers is None else layers
    ranks = (size,) if ranks is None else ranks
    if absent := [layer for layer in layers if layer not in held]:
        raise UserError(
            f"layers: the data hold no hidden states of layer {absent[0]}, only of {', '.join(map(str, held))}. Name "
            f"it in --data.init_args.hidden too."
        )
    if wrong := [rank for rank in ranks if not 1 <= rank <= size]:
        raise UserError(f"ranks: {wrong[0]} is not from 1 to {size}, the size of a hidden state.")
    pairs = tuple(Pair(layer, rank) for layer in layers for rank in ranks)
    if not pairs or len(set(pairs)) < len(pairs):
        raise UserError(f"layers {list(layers)} and ranks {list(ranks)}: give at least one of each, and none twice.")
    return pairs


def start(pair: Pair, size: int, seed: int) -> Tensor:
    """The matrix `[rank, size]` a pair starts from: drawn for it alone, so that it is the same in every sweep."""
    random = torch.Generator().manual_seed(seed * 1_000_003 + pair.layer * 65_537 + pair.rank)
    return torch.empty(pair.rank, size).uniform_(-BOUND, BOUND, generator=random)


def _describe(origin: Origin[StructuralSizes]) -> str:
    pairs, source = origin.sizes.pairs, origin.source
    layers, ranks = (", ".join(str(number) for number in dict.fromkeys(column)) for column in zip(*pairs, strict=True))
    return (
        f"{source['weights']} weights {str(source['weights_sha256'])[:12]}…, hidden states of layers {layers}, at "
        f"ranks {ranks}"
    )


@dataclass(frozen=True, eq=False)
class Found:
    """What k probes found in the sentences of a split, by their index in it.

    `total` `[sentences]` is what there was to find, `right` `[sentences, k]` how much of it was found, and
    `correlation` `[sentences, k]` Spearman's, nan where there is none.
    """

    sentence: Integers
    words: Integers
    total: Floats
    right: Floats
    correlation: Floats

    @classmethod
    def from_rows(cls, rows: ItemRows, lengths: Integers) -> "Found":
        """Take the gathered rows of a split whose sentences have these lengths."""
        found = rows.take()
        return cls(found["index"], lengths[found["index"]], found["total"], found["right"], found["correlation"])

    def counts(self, share: bool) -> tuple[Floats, Floats]:
        """Numerators and denominators `[sentences, k]` of the share that was found, or of the mean correlation."""
        if share:
            return self.right, np.broadcast_to(self.total[:, None], self.right.shape)
        return self.mean_correlation()

    def mean_correlation(self) -> tuple[Floats, Floats]:
        """Numerators and denominators `[sentences, k]` of the mean over lengths of the mean correlation per length.

        The correlation of a sentence counts with a weight that is the same in all resamples of a bootstrap: 1 / (the
        lengths that occur × the sentences of its length). A resample may have more of one length than of another,
        so that the interval also allows for a sample with other lengths.
        """
        known = ~np.isnan(self.correlation)
        weights = np.stack([length_weights(self.words, column) for column in known.T], axis=1)
        return np.where(known, self.correlation, 0.0) * weights, weights

    def items(self, ids: Sequence[str], probe: int, total: str, right: str) -> pd.DataFrame:
        """One row per sentence, of one probe: `sentence, id, words`, what there was to find, and what was found.

        Then the correlation, `spearman`, and its share in the mean, `spearman_weighted` and `spearman_weight`.
        """
        weighted, weight = self.mean_correlation()
        return pd.DataFrame(
            {
                "sentence": self.sentence,
                "id": [ids[index] for index in self.sentence],
                "words": self.words,
                total: self.total.astype(np.int64),
                right: self.right[:, probe].astype(np.int64),
                "spearman": self.correlation[:, probe],
                "spearman_weighted": weighted[:, probe],
                "spearman_weight": weight[:, probe],
            }
        )


def sweep_table(
    pairs: Sequence[Pair], epochs: Sequence[int], dev: tuple[Floats, Floats], test: tuple[Floats, Floats]
) -> Table:
    """A row for each probe: columns `layer, rank, epochs, dev, test, low, high`, the interval that of `test`.

    Takes the epoch of each one's best loss, and numerators and denominators `[sentences, k]` of the score.
    """
    found = bootstrap_ratio(*test)
    frame = pd.DataFrame(
        {
            "layer": [pair.layer for pair in pairs],
            "rank": [pair.rank for pair in pairs],
            "epochs": list(epochs),
            "dev": ratio(dev[0].sum(axis=0), dev[1].sum(axis=0)),
            "test": found.value,
            "low": found.low,
            "high": found.high,
        }
    )
    return Table(frame, dict.fromkeys(("dev", "test"), "fraction"), interval="test", answer=("layer", "rank", "test"))


def sweep_map(table: pd.DataFrame, chosen: int, score: str) -> HeatMap:
    """The scores of a sweep on test, layers × ranks, with a frame around that of the row `chosen`."""
    values = table.pivot(index="layer", columns="rank", values="test")
    layers, ranks = values.index.tolist(), values.columns.tolist()
    return HeatMap(
        title=f"{score} on test, by layer and rank",
        values=values.to_numpy(dtype=np.float64),
        row_labels=[str(layer) for layer in layers],
        column_labels=[str(rank) for rank in ranks],
        row_label="layer",
        column_label="rank",
        value_label=score,
        unit="fraction",
        marked=(layers.index(table["layer"][chosen]), ranks.index(table["rank"][chosen])),
    )


GAIN = 1e-4
"""By how much the loss on dev must fall for an epoch to count as better."""


class StructuralProbe(TrainedModule[DependencyDataModule, StructuralSizes]):
    """A matrix B for every layer and rank, under which squared norms are distances or depths in the tree.

    All are trained at once, on the same batches, and none feels the others: each starts from random numbers of its
    own, has its own learning rate, lowered tenfold after every epoch that did not lower its loss on dev, keeps its
    weights of the best epoch, and stops after `patience` epochs without a better one. Training ends when all have
    stopped. The one with the best score on dev is reported.

    The paper's recipe is Adam at 1e-3, batches of 20 sentences and at most 40 epochs. One threshold, a gain of
    1e-4, says here both when the rate falls and when to stop; torch's own schedule would take it as a relative one.

    Args:
        layers: whose hidden states are read, out of those that the data hold: 0 for the embeddings', k for those of
            layer k; None for all.
        ranks: rows of B; None for the size of the hidden states.
        learning_rate: of Adam, at the start.
        decay: factor of the learning rate after an epoch that was not better.
        patience: epochs in a row that are not better, after which a probe stops.
    """

    takes = DependencyDataModule
    reads: ClassVar[Collection[Field]] = frozenset(("hidden",))
    monitor: ClassVar[tuple[str, Literal["min", "max"]]] = ("val_loss", "min")
    checkpoint_entry = "pairs"
    headline: ClassVar[str]
    """The main score, by which layer and rank are chosen."""
    ratio: ClassVar[tuple[str, str, str]]
    """The score that is a share, and the columns of what was found and of what there was to find."""
    correlation: ClassVar[str]
    """The rank correlation."""
    matrices: nn.ParameterList
    kept: nn.ParameterList
    best_loss: Tensor
    best_epoch: Tensor
    stale: Tensor

    def __init__(
        self,
        layers: tuple[int, ...] | None = None,
        ranks: tuple[int, ...] | None = None,
        learning_rate: float = 1e-3,
        decay: float = 0.1,
        patience: int = 5,
    ) -> None:
        super().__init__()
        check_numbers(self, least=0, learning_rate=learning_rate)
        check_numbers(self, above=0, decay=decay)
        check_numbers(self, least=1, patience=patience)
        self.layers, self.ranks = layers, ranks
        self.learning_rate, self.decay, self.patience = learning_rate, decay, patience
        self._places: dict[int, int] = {}
        self._active: list[int] = []
        self._loss = Average()

    @abstractmethod
    def states(self, batch: AttentionBatch) -> Tensor:
        """Hidden states as B is applied to them, float32 `[batch, layers', n, size]`."""

    @abstractmethod
    def predict(self, projected: Tensor) -> Tensor:
        """Predictions `[batch, …]` from the projected states `[batch, n, rank]`."""

    @abstractmethod
    def losses(self, predicted: Tensor, batch: AttentionBatch) -> Tensor:
        """Loss of every sentence `[batch, k]`, from the predictions of k probes `[batch, k, …]`."""

    @abstractmethod
    def found(self, predicted: Tensor, batch: AttentionBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Of every sentence: what there was to find `[batch]`, what was found, and rank correlations, `[batch, k]`."""

    def prepare(self) -> None:
        data = self.data
        read_fields(data, self.reads, type(self).__name__)
        held, size = data.hidden_layers, data.hidden_size
        self._places = {layer: place for place, layer in enumerate(held)}
        pairs = sweep_pairs(self.layers, self.ranks, held, size)
        self.bind(StructuralSizes(pairs, size), data.encoder_identity or {})

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Layers and ranks; none before there are data."""
        return () if self.origin is None else self.sizes.pairs

    def build(self, sizes: StructuralSizes) -> None:
        """A matrix for every pair, twice: as it is trained, and as it was after its best epoch."""
        pairs, size = sizes.pairs, sizes.size
        layers = dict.fromkeys(pair.layer for pair in pairs)
        self._places = self._places or {layer: place for place, layer in enumerate(layers)}
        # One draw, whatever the pairs: a pair starts from the same numbers in a sweep as alone.
        seed = int(torch.randint(2**31, ()))
        starts = [start(pair, size, seed) for pair in pairs]
        self.matrices = nn.ParameterList(nn.Parameter(matrix) for matrix in starts)
        # Not buffers: DDP would send them to all processes before every batch.
        self.kept = nn.ParameterList(nn.Parameter(matrix.clone(), requires_grad=False) for matrix in starts)
        self.register_buffer("best_loss", torch.full((len(pairs),), torch.inf))
        self.register_buffer("best_epoch", torch.zeros(len(pairs), dtype=torch.int64))
        self.register_buffer("stale", torch.zeros(len(pairs), dtype=torch.int64))
        self._val = ItemRows({"losses": len(pairs)})
        scores = {"total": None, "right": len(pairs), "correlation": len(pairs)}
        self._dev, self._test = ItemRows(scores), ItemRows(scores)

    def _predictions(self, batch: AttentionBatch, matrices: nn.ParameterList, pairs: Sequence[int]) -> Tensor:
        """Predictions of some pairs `[batch, pairs, …]`."""
        states = self.states(batch)
        return torch.stack(
            [self.predict(states[:, self._places[self.pairs[pair].layer]] @ matrices[pair].T) for pair in pairs], dim=1
        )

    def forward(self, batch: AttentionBatch) -> Tensor:
        """What every pair predicts of a batch `[batch, pairs, …]`, with its weights of the best epoch."""
        self._require_training()
        return self._predictions(batch, self.kept, range(len(self.pairs)))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One Adam, with a group, and so a learning rate, for every pair."""
        return torch.optim.Adam([{"params": [matrix]} for matrix in self.matrices], self.learning_rate, fused=True)

    def on_train_start(self) -> None:
        """Leave out the pairs that have stopped."""
        stopped = (self.stale >= self.patience).tolist()
        # Several processes wait for the gradients of all matrices.
        everything = self.trainer.world_size > 1 or all(stopped)  # all: a run that had ended was resumed
        self._active = [pair for pair in range(len(self.pairs)) if everything or not stopped[pair]]

    on_train_epoch_start = on_train_start  # which a run that is resumed in the middle of an epoch does not call

    def training_step(self, batch: AttentionBatch, batch_idx: int) -> Tensor:
        """The loss of every pair, averaged over the sentences; their sum, since none feels the others."""
        losses = self.losses(self._predictions(batch, self.matrices, self._active), batch)
        self._loss.update(losses.detach().mean(1).sum(), len(losses))
        loss = Mean(losses.mean(0).sum() if len(losses) else losses.sum(), len(losses))
        return over_devices([loss], self)[0].value

    def on_train_epoch_end(self) -> None:
        """Log `train_loss`, the mean over sentences and pairs; without a dev split, keep the last weights."""
        self.log("train_loss", self._loss.take())
        if not self.trainer.enable_validation:
            for pair in range(len(self.pairs)):
                self._keep(pair)

    def _keep(self, pair: int) -> None:
        with torch.no_grad():
            self.kept[pair].copy_(self.matrices[pair])
        self.best_epoch[pair] = self.current_epoch + 1

    def validation_step(self, batch: AttentionBatch, batch_idx: int) -> None:
        """Gather the losses on dev: while training those of the weights of now, else those of the best epochs."""
        fitting = self.trainer.state.fn == TrainerFn.FITTING
        predicted = self._predictions(batch, self.matrices, range(len(self.pairs))) if fitting else self(batch)
        self._val.update(index=batch.index, losses=self.losses(predicted, batch))

    def on_validation_epoch_end(self) -> None:
        """Keep the weights that are better, lower the rate of the others, and stop when all have stopped.

        Logs the loss of each pair, where there are several, and as `val_loss` the mean over the pairs of their best
        ones: a checkpoint that watches it is the first that has the best weights of all.
        """
        losses = torch.from_numpy(self._val.take()["losses"].mean(axis=0)).float().to(self.device)
        if len(self.pairs) > 1:
            names = [f"val_loss_layer{pair.layer}_rank{pair.rank}" for pair in self.pairs]
            self.log_dict(dict(zip(names, losses, strict=True)))
        fitting = self.trainer.state.fn == TrainerFn.FITTING
        if fitting and not self.trainer.sanity_checking:
            self._judge(losses)
        self.log("val_loss", (self.best_loss if fitting else losses).mean(), prog_bar=True)

    def _judge(self, losses: Tensor) -> None:
        groups = self.trainer.optimizers[0].param_groups
        running = self.stale < self.patience
        better = running & (losses < self.best_loss - GAIN)
        # In place: a tensor made during validation could not be written to afterwards.
        self.best_loss.copy_(torch.where(better, losses, self.best_loss))
        for pair, (improved, group) in enumerate(zip(better.tolist(), groups, strict=True)):
            if improved:
                self._keep(pair)
            elif not self.extra_check:
                group["lr"] *= self.decay
        if self.extra_check:
            return
        self.stale.copy_(torch.where(better, 0, self.stale + running))
        self.trainer.should_stop = self.trainer.should_stop or bool((self.stale >= self.patience).all())

    def _require_training(self) -> None:
        """Refuse to score what has learned nothing."""
        self.on_validation_start()
        untrained = [pair for pair, epoch in zip(self.pairs, self.best_epoch.tolist(), strict=True) if not epoch]
        if untrained:
            raise UserError(
                f"The loss on dev of layer {untrained[0].layer} at rank {untrained[0].rank} was never a finite number: "
                f"lower --model.init_args.learning_rate, or leave out the layer."
            )

    def predict_sentences(
        self,
        sentences: str | Sequence[str | Sequence[str]],
        encoder: EncoderSpec | None = None,
        *,
        options: Options | None = None,
    ) -> list[xr.DataArray]:
        """Squared distances between the words of new sentences, or their depths; no Trainer is needed.

        Args:
            sentences: each a string, which is cut at white space, or its words.
            encoder: that of the training, where the checkpoint does not say or it lies elsewhere now.
            options: what is done with long sentences; by default as in the training.

        Returns:
            Of each sentence `[probe, from, to]`, or `[probe, word]` of depths: the coordinates `layer` and `rank` are
            those of the probes.

        Raises:
            TrainingError: the probe is not trained, or was trained on another encoder.
            UserError: there is no sentence, or one has no words.
        """
        layers = tuple(sorted({pair.layer for pair in self.pairs}))
        found: dict[int, xr.DataArray] = {}
        with data_of_sentences(self, sentences, self.reads, encoder, options, None, None, layers) as data:
            self.bind(StructuralSizes(self.pairs, data.hidden_size), data.encoder_identity or {})
            self._places = {layer: place for place, layer in enumerate(layers)}
            split = data.splits["test"]
            for batch in data.batches("test"):
                for row, index in zip(self(batch.to(self.device)).cpu().numpy(), batch.index.tolist(), strict=True):
                    found[index] = self._labelled(row, split.words(index))
        return [found[index] for index in sorted(found)]

    def _labelled(self, predicted: NDArray[np.float32], words: Sequence[str]) -> xr.DataArray:
        axes = ("from", "to") if predicted.ndim == 3 else ("word",)
        layers, ranks = zip(*self.pairs, strict=True)
        names = {axis: list(words) for axis in axes}
        coords = {"layer": ("probe", list(layers)), "rank": ("probe", list(ranks)), **names}
        real = (slice(None), *[slice(len(words))] * len(axes))
        return xr.DataArray(predicted[real], coords, ("probe", *axes))

    def on_predict_start(self) -> None:
        raise UserError(f"{type(self).__name__} predicts distances or depths, no heads: `test` scores them.")

    def cross_entropy(self, batch: AttentionBatch) -> Tensor:
        raise UserError(f"{type(self).__name__} gives candidate heads no probabilities: it has no code length.")

    def update(self, batch: AttentionBatch) -> None:
        total, right, correlation = self.found(self(batch), batch)
        metric = self._test if batch.split == "test" else self._dev
        metric.update(index=batch.index, total=total, right=right, correlation=correlation)

    def outcome(self) -> Result:
        """Choose a pair on dev, and score it on test."""
        splits = self.data.splits
        dev = Found.from_rows(self._dev, splits["dev"].lengths)
        test = Found.from_rows(self._test, splits["test"].lengths)
        share, right, total = self.ratio
        by_share = self.headline == share
        table = sweep_table(self.pairs, self.best_epoch.tolist(), dev.counts(by_share), test.counts(by_share))
        chosen = int(table.frame["dev"].fillna(-1).argmax())
        items = test.items(splits["test"].ids, chosen, total, right)
        ratios = {share: (right, total), self.correlation: ("spearman_weighted", "spearman_weight")}
        layer, rank = self.pairs[chosen]
        return Result(
            experiment=self.experiment,
            scores=ratio_scores(items, ratios),
            tables={"sweep": table},
            figures={"sweep": sweep_map(table.frame, chosen, self.headline)} if len(table.frame) > 1 else {},
            audit={"epochs": int(self.best_epoch[chosen]), "layer": layer, "rank": rank, **self.trained_on},
            items=items,
            ratios=ratios,
            headline=tuple(ratios),
        )

    def checkpoint_part(self) -> dict[str, Any]:
        pairs = [tuple(pair) for pair in self.pairs]
        return {"source": dict(self.origin.source) if self.origin else {}, "pairs": pairs, "size": self.sizes.size}

    def sizes_from(self, part: Mapping[str, Any]) -> StructuralSizes:
        return StructuralSizes(tuple(Pair(*pair) for pair in part["pairs"]), part["size"])

    def difference(self, trained: Origin[StructuralSizes], run: Origin[StructuralSizes]) -> str | None:
        if trained == run:
            return None
        return (
            f"The matrices were trained on {_describe(trained)}, and this run has {_describe(run)}. Give "
            f"--data.init_args.encoder, --data.init_args.hidden, --model.init_args.layers and --model.init_args.ranks "
            f"those of the training."
        )


class StructuralDistanceProbe(StructuralProbe):
    """Distances in the tree as squared distances of projected hidden states, `d(i, j) = ‖B(h_i − h_j)‖²` (§2).

    `uuas` is the share of gold edges in the minimum spanning tree of the predicted distances, without punctuation.
    `spearman_distance` is the correlation of the predicted distances of a word with those in the tree, from the word
    to all words of the sentence, itself included; averaged over the words of a sentence, then over the sentences of
    each length, then over lengths from 5 to 50.
    """

    experiment = "structural_distance"
    headline = "uuas"
    ratio = ("uuas", "edges_found", "edges")
    correlation = "spearman_distance"

    def states(self, batch: AttentionBatch) -> Tensor:
        """Less their mean over the sentence: no distance changes, and large ones no longer drown small ones."""
        states = batch.hidden.float()
        return states - (states.sum(2) / batch.lengths[:, None, None])[:, :, None]

    def predict(self, projected: Tensor) -> Tensor:
        """Squared distances `[batch, n, n]`, by way of inner products: never a tensor `[batch, n, n, rank]`."""
        inner = projected @ projected.mT
        norms = inner.diagonal(dim1=1, dim2=2)
        return norms[:, :, None] + norms[:, None, :] - 2 * inner

    def losses(self, predicted: Tensor, batch: AttentionBatch) -> Tensor:
        return distance_losses(predicted, tree_distances(batch.heads, batch.lengths), batch.lengths)

    def found(self, predicted: Tensor, batch: AttentionBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Gold edges, those that the spanning trees draw, and the correlation."""
        drawn = gold_in_trees(pad(-predicted, (1, 1, 1, 1))[:, :, None], batch.heads, batch.punctuation, batch.lengths)
        gold = tree_distances(batch.heads, batch.lengths)[:, None]
        of_words = rank_correlations(predicted, gold, batch.mask[:, None, None, :])
        # Of a word alone there is none; of any other every word's is defined, for no word is as near as itself.
        known = batch.mask & (batch.lengths > 1)[:, None]
        correlation = of_words.masked_fill(~known[:, None], 0.0).sum(-1) / known.sum(-1)[:, None]
        return (drawn[:, :, 0] >= 0).sum(1), (drawn == 1).sum(1), correlation

    def cross_entropy(self, batch: AttentionBatch) -> Tensor:
        """−ln p(gold head | word) under a code over the n + 1 candidate heads, `[batch, n]`; 0 in the padding.

        Ours: distances say nothing of ROOT and of the word itself, which get 1/(n+1) each, as in the uniform code; the
        rest is shared by `p(j|i) ∝ exp(−d(i, j))` over the other words. Where all distances are equal it is the uniform
        code, so that what is compressed was learned. Several layers or ranks are refused: each would have a code.
        """
        if len(self.pairs) != 1:
            raise UserError(
                f"{type(self).__name__} has {len(self.pairs)} pairs of layer and rank, and each would have a code of "
                f"its own: give one layer (layers, or --data.init_args.hidden) and one rank (ranks)."
            )
        distances, lengths = self(batch)[:, 0], batch.lengths[:, None]
        itself = torch.eye(distances.size(1), dtype=torch.bool, device=distances.device)
        among = (-distances).masked_fill(itself | ~batch.mask[:, None], -torch.inf).log_softmax(-1)
        even = torch.log1p(lengths).expand_as(batch.heads)
        to_other = even - (lengths - 1).log() - among.gather(2, (batch.heads - 1).clamp(min=0)[:, :, None])[:, :, 0]
        words = torch.arange(1, batch.heads.size(1) + 1, device=batch.heads.device)
        silent = (batch.heads == 0) | (batch.heads == words)  # what the distances say nothing of
        return torch.where(silent, even, to_other).masked_fill(~batch.mask, 0)


class StructuralDepthProbe(StructuralProbe):
    """Depths in the tree as squared norms of projected hidden states, `‖B h_i‖²` (§2).

    `root_accuracy` is the share of sentences whose root is the word of the least predicted depth, punctuation left
    out. `spearman_depth` is the correlation of predicted and gold depths over the words of a sentence, averaged over
    the sentences of each length, then over lengths from 5 to 50.
    """

    experiment = "structural_depth"
    headline = "spearman_depth"
    ratio = ("root_accuracy", "root_correct", "roots")
    correlation = "spearman_depth"

    def states(self, batch: AttentionBatch) -> Tensor:
        return batch.hidden.float()

    def predict(self, projected: Tensor) -> Tensor:
        return projected.square().sum(-1)

    def losses(self, predicted: Tensor, batch: AttentionBatch) -> Tensor:
        return depth_losses(predicted, tree_depths(batch.heads, batch.lengths), batch.lengths)

    def found(self, predicted: Tensor, batch: AttentionBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Whether there is a word to choose, whether the chosen one is a root, and the correlation."""
        plain = batch.mask & ~batch.punctuation
        some = plain.any(1)
        right = torch.zeros(predicted.shape[:2], dtype=torch.bool, device=predicted.device)
        if predicted.size(2):
            least = predicted.masked_fill(~plain[:, None], torch.inf).argmin(-1)
            right = (batch.heads.gather(1, least) == 0) & some[:, None]
        depths = tree_depths(batch.heads, batch.lengths)[:, None]
        return some, right, rank_correlations(predicted, depths, batch.mask[:, None])
