"""The structural probes of Hewitt & Manning (2019): trees in the geometry of hidden states."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
import xarray as xr
from numpy.typing import NDArray
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.nn.functional import pad

from attention_probing.attention import EncoderSpec, Options
from attention_probing.datamodules import AttentionBatch, DependencyDataModule
from attention_probing.datamodules.dependency import DependencySplit, Field, read_fields
from attention_probing.metrics import trees
from attention_probing.metrics.attachment import ratio_scores, sums_by
from attention_probing.metrics.bootstrap import bootstrap_ratio
from attention_probing.metrics.rows import ITEM, Rows
from attention_probing.metrics.statistics import ratio
from attention_probing.models import (
    Mean,
    Origin,
    TrainedModule,
    over_devices,
    refuse_untrained,
    training_warnings,
)
from attention_probing.models.losses import Average
from attention_probing.probes.frozen import MonitorMode, Sizes, on_sentences, probe_origin
from attention_probing.results import Estimate, Floats, HeatMap, Integers, Result, Table, Unit, fill_sentence
from attention_probing.results.errors import UserError, check_names, setting
from attention_probing.results.options import Rate

BOUND = 0.05
"""The matrices start uniform within ±BOUND, as in Hewitt & Manning (2019)."""
GAIN = 1e-4
"""Least decrease of the loss on dev by which an epoch counts as better."""
PATIENCE = 5
"""Consecutive epochs without improvement after which a matrix stops."""
DECAY = 0.1
"""Factor of the learning rate after an epoch that was not better, as in Hewitt & Manning (2019)."""


class Pair(NamedTuple):
    """Layer and rank of one probe matrix, in a sweep over layers and ranks.

    Attributes:
        layer: Layer of the hidden states, 0 for the embeddings.
        rank: Number of rows of the matrix, the dimension that it projects to.
    """

    layer: int
    rank: int


def sweep_pairs(
    layers: Sequence[int] | None, ranks: Sequence[int] | None, held: Sequence[int], size: int
) -> tuple[Pair, ...]:
    """Return all combinations of the layers and the ranks of a sweep.

    Args:
        layers: Layers to sweep; None for all layers in the data.
        ranks: Ranks to sweep; None for the size of a hidden state.
        held: Layers whose hidden states are in the data.
        size: Size of a hidden state.

    Raises:
        UserError: There is no layer or rank, one is repeated, a layer is not in the data, or a rank exceeds the size.
    """
    if not held:
        raise UserError(
            f"A structural probe needs hidden states: {setting('data.hidden', '[0,1]')} for the embeddings and "
            f"layer 1, for instance."
        )
    layers = held if layers is None else layers
    ranks = (size,) if ranks is None else ranks
    absent = [layer for layer in layers if layer not in held]
    if absent:
        raise UserError(
            f"{setting('model.layers')}: the data hold hidden states of the layers {', '.join(map(str, held))}, but "
            f"not of {absent[0]}. Add it to {setting('data.hidden')}."
        )
    wrong = [rank for rank in ranks if not 1 <= rank <= size]
    if wrong:
        raise UserError(
            f"{setting('model.ranks')} contains {wrong[0]}, but ranks go from 1 to {size}, the size of a state."
        )
    check_names(setting("model.layers"), layers)
    check_names(setting("model.ranks"), ranks)
    return tuple(Pair(layer, rank) for layer, rank in product(layers, ranks))


def initial_matrix(pair: Pair, size: int, seed: int) -> Tensor:
    """Return the random initial matrix `[rank, size]` for one pair of layer and rank.

    The matrix depends only on the pair, the size and the seed, so it is the same in every sweep.
    """
    random = torch.Generator().manual_seed(seed * 1_000_003 + pair.layer * 65_537 + pair.rank)
    return torch.empty(pair.rank, size).uniform_(-BOUND, BOUND, generator=random)


def score_counts(rows: Mapping[str, Floats], words: Integers) -> tuple[tuple[Floats, Floats], ...]:
    """Return numerators and denominators of two scores of k probes, for each sentence.

    A score is the sum of its numerators over sentences, divided by the sum of its denominators:

    - The share is the fraction of edges (or roots) that a probe finds.
    - The mean correlation averages over the sentences of each length from 5 to 50 words, then over
        these lengths.

    For the mean correlation, only sentences of these lengths with a defined correlation count. Each has
    the weight 1 / (number of lengths × number of sentences of its length). Its denominator is this
    weight, and its numerator is the weight times its correlation; both are 0 for all other sentences.
    The weights are computed once: a bootstrap keeps them in all resamples, so its interval also covers
    the variation of sentence lengths.

    Args:
        rows: Three arrays by name: `total` `[sentences]`, number of edges or roots to find; `right`
            `[sentences, k]`, number found; `correlation` `[sentences, k]`, rank correlation, nan where
            it is undefined.
        words: `[sentences]`, number of words of each sentence.

    Returns:
        The share's numerators and denominators, then the mean correlation's, each `[sentences, k]`.
    """
    right = rows["right"]
    correlation = rows["correlation"]
    total = np.broadcast_to(rows["total"][:, None], right.shape)
    is_defined = ~np.isnan(correlation)
    weights = np.stack([trees.length_weights(words, column) for column in is_defined.T], axis=1)
    weighted = np.where(is_defined, correlation, 0.0) * weights
    return (right, total), (weighted, weights)


def sweep_table(
    pairs: Sequence[Pair],
    epochs: Sequence[int],
    dev: tuple[Floats, Floats],
    test: tuple[Floats, Floats],
    units: Integers,
    *,
    share: bool,
) -> Table:
    """Return the table of a sweep's scores, with a row for each pair of layer and rank.

    Args:
        pairs: The k pairs.
        epochs: Epoch of each pair's lowest loss on dev.
        dev: Numerators and denominators of the score on dev, each `[sentences, k]`.
        test: Numerators and denominators of the score on test, each `[sentences, k]`.
        units: Number of the unit of each sentence of test, such as its document, `[sentences]`.
        share: True if the score is a share of edges or roots, False for a mean correlation.

    Returns:
        Table with columns `layer, rank, epochs, dev, test, low, high`; `low` and `high` are the interval of the score
        on test.
    """
    right, total = (sums_by(units, counts) for counts in test)
    on_test = bootstrap_ratio(right, total, share=share, of_units=not share)
    frame = pd.DataFrame(pairs)
    frame["epochs"] = epochs
    frame["dev"] = ratio(dev[0].sum(axis=0), dev[1].sum(axis=0))
    frame["test"] = on_test.value
    frame["low"], frame["high"] = on_test.interval
    return Table(frame, dict.fromkeys(("dev", "test"), "fraction"), interval="test", main=("layer", "rank", "test"))


def sweep_map(table: pd.DataFrame, chosen: int, score: str) -> HeatMap:
    """Return a heat map, layers × ranks, of the test scores of a sweep.

    Args:
        table: Data frame of the table that `sweep_table` returns.
        chosen: Index of the row whose cell is framed.
        score: Name of the score.
    """
    values = table.pivot(index="layer", columns="rank", values="test")
    layers = values.index.tolist()
    ranks = values.columns.tolist()
    return HeatMap(
        title=f"{score} on test, by layer and rank",
        title_says="split",
        values=values.to_numpy(dtype=np.float64),
        row_labels=[str(layer) for layer in layers],
        column_labels=[str(rank) for rank in ranks],
        row_label="layer",
        column_label="rank",
        value_label=score,
        unit="fraction",
        marked=(layers.index(table["layer"][chosen]), ranks.index(table["rank"][chosen])),
    )


class StructuralProbe(TrainedModule[DependencyDataModule, Sizes]):
    """Structural probe (Hewitt & Manning 2019): a matrix B under which squared norms are tree distances or depths.

    There is a matrix for every layer and rank, which projects the hidden states of the layer to as many dimensions as
    the rank. All are trained on the same batches but independently of each other, each from its own random start and
    with its own learning rate, which falls tenfold after every epoch that does not lower the matrix's loss on dev. The
    weights of the matrix's best epoch are kept. A matrix stops after `PATIENCE` epochs without improvement, and the
    training ends when all have stopped. The result reports the pair of layer and rank with the best score on dev.

    The paper trains with Adam at 1e-3, batches of 20 sentences and at most 40 epochs. Here an epoch is an improvement
    if it lowers the loss on dev by more than 1e-4. This absolute threshold decides both when the learning rate falls
    and when training stops; torch's own schedule would take it as relative.

    Subclasses implement `states`, `predict`, `losses` and `found`.

    Args:
        layers: Layers of the hidden states, 0 for the embeddings, k for layer k; None for all layers in the data.
        ranks: Numbers of rows of B; None for the size of the hidden states.
        learning_rate: Initial learning rate of Adam.

    Attributes:
        monitor: Name of a loss on dev, and `min`: the best epoch has its lowest value.
        loss_unit: Unit of `val_loss`, a mean absolute error.
        headline: Name of the main score of the result, a ratio of two sums over sentences.
        share: Three names: the score that is the share of edges or roots found, the column with its
            numerator, and the column with its denominator.
        correlation: Name of the score that is a rank correlation.
        pairs: Layer and rank of each matrix; empty before `build`.
        matrices: One matrix `[rank, size]` for each pair.
        kept: The same matrices with their weights of the best epoch.
        best_loss: float32 `[pairs]`, lowest loss of each matrix on dev.
        best_epoch: int64 `[pairs]`, epoch of this loss, from 1; 0 before.
        stale: int64 `[pairs]`, number of epochs since the last improvement.
    """

    takes = DependencyDataModule
    sizes_type = Sizes
    reads: Collection[Field] = frozenset(("hidden",))
    monitor: ClassVar[tuple[str, MonitorMode]] = ("val_loss", "min")
    loss_unit: ClassVar[Unit] = "ratio"
    headline: ClassVar[str]
    share: ClassVar[tuple[str, str, str]]
    correlation: ClassVar[str]
    pairs: tuple[Pair, ...] = ()
    matrices: nn.ParameterList
    kept: nn.ParameterList
    best_loss: Tensor
    best_epoch: Tensor
    stale: Tensor

    def __init__(
        self, layers: tuple[int, ...] | None = None, ranks: tuple[int, ...] | None = None, learning_rate: Rate = 1e-3
    ) -> None:
        super().__init__()
        self.layers = layers
        self.ranks = ranks
        self.learning_rate = learning_rate
        self._places: dict[int, int] = {}
        self._loss = Average()

    @abstractmethod
    def states(self, batch: AttentionBatch) -> Tensor:
        """Return the hidden states that the matrices project, float32 `[batch, stored layers, n, size]`."""

    @abstractmethod
    def predict(self, projected: Tensor) -> Tensor:
        """Return the predictions of one matrix from the hidden states that it has projected.

        Args:
            projected: Projected hidden states `[batch, n, rank]`.

        Returns:
            Distances `[batch, n, n]` or depths `[batch, n]`.
        """

    @abstractmethod
    def losses(self, predicted: Tensor, batch: AttentionBatch) -> Tensor:
        """Return the loss of every sentence under k matrices, `[batch, k]`.

        Args:
            predicted: Predictions of the matrices: distances `[batch, k, n, n]` or depths `[batch, k, n]`.
            batch: Sentences with their gold trees.
        """

    @abstractmethod
    def score_sentences(self, predicted: Tensor, batch: AttentionBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Count the gold edges (or roots) that are found, and correlate predictions with gold trees.

        Args:
            predicted: Predictions of k matrices: distances `[batch, k, n, n]`, or depths
                `[batch, k, n]`.
            batch: Sentences with their gold trees.

        Returns:
            Three tensors with a row for each sentence:

            - the number of edges or roots to find, `[batch]`;
            - the number found, `[batch, k]`;
            - the rank correlation of predicted and gold distances or depths, `[batch, k]`; nan where it
                is undefined.
        """

    def origin_of(self, data: DependencyDataModule) -> Origin[Sizes]:
        read_fields(data, self.reads, type(self).__name__)
        self._places = {layer: place for place, layer in enumerate(data.hidden_layers)}  # of these data's batches
        pairs = sweep_pairs(self.layers, self.ranks, data.hidden_layers, data.hidden_size)
        sizes = Sizes(hidden=data.hidden_size, pairs=tuple((pair.layer, pair.rank) for pair in pairs))
        return probe_origin(data, self.reads, type(self).__name__, sizes)

    def build(self, sizes: Sizes) -> None:
        """Create two matrices for every pair of layer and rank: one to train, and one to keep its best weights."""
        pairs = tuple(Pair(*pair) for pair in sizes.pairs)
        self.pairs = pairs
        if not self._places:
            layers = dict.fromkeys(pair.layer for pair in pairs)
            self._places = {layer: place for place, layer in enumerate(layers)}
        seed = int(torch.randint(2**31, ()))  # one draw, so that a pair starts from the same numbers in any sweep
        self.matrices = nn.ParameterList()
        self.kept = nn.ParameterList()  # not buffers: DDP would send them to all processes before every batch
        for pair in pairs:
            matrix = initial_matrix(pair, sizes.hidden, seed)
            self.matrices.append(nn.Parameter(matrix))
            self.kept.append(nn.Parameter(matrix.clone(), requires_grad=False))
        self.register_buffer("best_loss", torch.full((len(pairs),), torch.inf))
        self.register_buffer("best_epoch", torch.zeros(len(pairs), dtype=torch.int64))
        self.register_buffer("stale", torch.zeros(len(pairs), dtype=torch.int64))
        self._val = Rows()
        self._dev = Rows()
        self._test = Rows()

    def forward(self, batch: AttentionBatch) -> Tensor:
        """Return the predictions of every matrix, each with the weights of its best epoch.

        Returns:
            Distances `[batch, pairs, n, n]` or depths `[batch, pairs, n]`.

        Raises:
            TrainingError: The probe is not trained.
            UserError: The loss of a matrix on dev was never a finite number, so it has no best epoch.
        """
        refuse_untrained(self)
        for pair, epoch in zip(self.pairs, self.best_epoch.tolist(), strict=True):
            if epoch == 0:
                raise UserError(
                    f"The loss on dev of layer {pair.layer} at rank {pair.rank} was never a finite number: lower "
                    f"{setting('model.learning_rate')}, or leave the layer out of {setting('model.layers')}."
                )
        return _predictions(self, batch, self.kept, range(len(self.pairs)))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with one parameter group for the matrix of each pair, so that each has its own learning rate."""
        groups = [{"params": [matrix]} for matrix in self.matrices]
        return torch.optim.Adam(groups, self.learning_rate, fused=True)

    def training_step(self, batch: AttentionBatch, batch_idx: int) -> Tensor:
        """Return the loss of a batch: the mean over sentences, summed over the matrices that have not stopped."""
        active = (self.stale < PATIENCE).nonzero().flatten().tolist()
        # Several processes wait for the gradients of all matrices. All have stopped if a run that had ended is resumed.
        if self.trainer.world_size > 1 or not active:
            active = list(range(len(self.pairs)))
        losses = self.losses(_predictions(self, batch, self.matrices, active), batch)
        self._loss.update(losses.detach().mean(1).sum(), len(losses))
        # The mean over no sentence, on a device without one, would be nan.
        total = losses.mean(0).sum() if len(losses) else losses.sum()
        [loss] = over_devices([Mean(total, len(losses))], self)
        return loss.value

    def on_train_epoch_end(self) -> None:
        """Log `train_loss`: the mean loss over sentences, summed over matrices.

        In a training without validation, the current weights are kept as the best ones.
        """
        self.log("train_loss", self._loss.take())
        if not self.trainer.enable_validation:
            for pair in range(len(self.pairs)):
                _keep(self, pair)

    def validation_step(self, batch: AttentionBatch, batch_idx: int) -> None:
        """Collect the losses of all matrices on a batch of dev.

        During training they are computed with the current weights of the matrices, otherwise with the weights of
        their best epochs.
        """
        fitting = self.trainer.state.fn == TrainerFn.FITTING
        if fitting:
            predicted = _predictions(self, batch, self.matrices, range(len(self.pairs)))
            losses = self.losses(predicted, batch)
        else:
            losses = self.losses(self(batch), batch)
        self._val.add(batch.index, losses=losses)

    def on_validation_epoch_end(self) -> None:
        """Keep the weights of matrices that improved on dev, and lower the learning rate of the others.

        When every matrix has stopped (`PATIENCE` epochs without improvement), the training ends.

        If there are several pairs of layer and rank, the dev loss of each is logged. In training, `val_loss` is the
        lowest loss of each pair so far, averaged over pairs. It falls whenever a pair improves, so the checkpoint
        with the lowest `val_loss` holds the best matrix of every pair. Outside training, `val_loss` is the mean of
        the current losses.
        """
        by_sentence = self._val.take()["losses"]
        losses = torch.from_numpy(by_sentence.mean(axis=0)).float().to(self.device)
        if len(self.pairs) > 1:
            for pair, loss in zip(self.pairs, losses, strict=True):
                self.log(f"val_loss_layer{pair.layer}_rank{pair.rank}", loss)
        fitting = self.trainer.state.fn == TrainerFn.FITTING
        if fitting and not self.trainer.sanity_checking:
            _judge(self, losses)
        self.log("val_loss", (self.best_loss if fitting else losses).mean(), prog_bar=True)

    def predict_sentences(
        self,
        sentences: str | Sequence[str | Sequence[str]],
        encoder: EncoderSpec | None = None,
        *,
        options: Options | None = None,
    ) -> list[xr.DataArray]:
        """Return predicted tree distances, or depths, of the words of new sentences, without a Trainer.

        Args:
            sentences: Sentences, each a string that is split at white space, or a sequence of words.
            encoder: The encoder of the training; None for the encoder that the checkpoint names.
            options: Treatment of long sentences; None for the treatment of the training.

        Returns:
            One array per sentence: distances `[probe, from, to]`, or depths `[probe, word]`. A probe is one matrix,
            with its `layer` and `rank` as coordinates.

        Raises:
            TrainingError: The probe is not trained, or was trained on another encoder.
            UserError: There is no sentence, or one has no words.
        """
        layers = tuple(sorted({pair.layer for pair in self.pairs}))
        by_sentence: dict[int, xr.DataArray] = {}
        with on_sentences(self, self.reads, sentences, encoder, options, hidden=layers) as data:
            self._places = {layer: place for place, layer in enumerate(layers)}
            split = data.splits["test"]
            for batch in data.batches("test"):
                predicted = self(batch.to(self.device)).cpu().numpy()
                for of_sentence, index in zip(predicted, batch.index.tolist(), strict=True):
                    by_sentence[index] = _label_axes(of_sentence, split.words(index), self.pairs)
        return [by_sentence[index] for index in sorted(by_sentence)]

    def test_step(self, batch: AttentionBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        total, right, correlation = self.score_sentences(self(batch), batch)
        rows = self._test if batch.split == "test" else self._dev
        rows.add(batch.index, total=total, right=right, correlation=correlation)

    def outcome(self) -> Result:
        """Choose the pair of layer and rank with the best score on dev, and return its scores on test."""
        dev = self._dev.take()
        test = self._test.take()
        share, right, total = self.share
        split = self.data.splits["test"]
        words = split.lengths[test[ITEM]]
        words_of_dev = self.data.splits["dev"].lengths[dev[ITEM]]
        names = (share, self.correlation)
        on_dev = dict(zip(names, score_counts(dev, words_of_dev), strict=True))
        on_test = dict(zip(names, score_counts(test, words), strict=True))
        table = sweep_table(
            self.pairs,
            self.best_epoch.tolist(),
            on_dev[self.headline],
            on_test[self.headline],
            split.units[test[ITEM]],
            share=self.headline == share,
        )
        if len(self.pairs) > 1 and table.frame["dev"].isna().all():
            raise UserError(
                f"No sentence of dev has a {self.headline}, by which one of {len(self.pairs)} pairs is "
                "chosen. Give a dev split with longer sentences, or a single layer and rank."
            )
        chosen = int(table.frame["dev"].fillna(-1).argmax())
        layer, rank = self.pairs[chosen]
        epochs = int(self.best_epoch[chosen])
        items = _sentences(split, test[ITEM])
        items[total] = test["total"].astype(np.int64)
        items[right] = test["right"][:, chosen].astype(np.int64)
        weighted, weights = on_test[self.correlation]
        items["spearman"] = test["correlation"][:, chosen]
        items["spearman_weighted"] = weighted[:, chosen]
        items["spearman_weight"] = weights[:, chosen]
        ratios = {share: (right, total), self.correlation: ("spearman_weighted", "spearman_weight")}
        scores = ratio_scores(items, {share: ratios[share]})
        scores |= ratio_scores(items, {self.correlation: ratios[self.correlation]}, share=False, of_units=True)
        figures = {}
        if len(table.frame) > 1:
            figures["sweep"] = sweep_map(table.frame, chosen, self.headline)
        return Result(
            experiment=self.experiment,
            scores=scores,
            answer=_answer(self, table, chosen, scores, int(test["total"].sum())),
            tables={"sweep": table},
            figures=figures,
            audit={
                "epochs": epochs,
                "layer": layer,
                "rank": rank,
                "units": split.describe_units(),
                **self.trained_on,
                **training_warnings(self, epochs),
            },
            items=items,
            ratios=ratios,
            shares=(share,),
            headline=tuple(ratios),
        )


def _answer(probe: StructuralProbe, table: Table, chosen: int, scores: Mapping[str, Estimate], edges: int) -> str:
    """Return the answer: the scores of the chosen pair, beside the lowest layer at the same rank.

    Args:
        probe: The probe.
        table: The table `sweep`.
        chosen: Index of the chosen pair.
        scores: Scores of the chosen pair on test.
        edges: Number of edges or roots to find.
    """
    share, _, total = probe.share
    layer, rank = probe.pairs[chosen]
    lowest = probe.pairs.index(min(pair for pair in probe.pairs if pair.rank == rank))
    best = ""
    if len(probe.pairs) > 1:
        best = f", best of {len(probe.pairs)} on dev,"
    text = f"layer {layer} at rank {rank}{best} finds {{{share}}} of {{n}} {total}; "
    text += f"Spearman's ρ of {probe.correlation.removeprefix('spearman_')} is {{{probe.correlation}:ratio}}"
    if probe.pairs[lowest].layer < layer:
        unit = ":ratio" if probe.headline == probe.correlation else ""
        text += f"; {probe.headline} of layer {probe.pairs[lowest].layer} is {{lowest{unit}}}"
    return fill_sentence(text, scores, n=edges, lowest=table.estimate(lowest, "test"))


def _sentences(split: DependencySplit, indices: Integers) -> pd.DataFrame:
    """Return a row for each of these sentences: its document if documents are marked, its index, id and length."""
    frame = pd.DataFrame({"sentence": indices, "id": [split.ids[index] for index in indices]})
    frame["words"] = split.lengths[indices]
    if (split.documents >= 0).all():
        frame.insert(0, "document", split.documents[indices])
    return frame


def _predictions(
    probe: StructuralProbe, batch: AttentionBatch, matrices: nn.ParameterList, pairs: Sequence[int]
) -> Tensor:
    """Return the predictions of some pairs, `[batch, pairs, …]`."""
    states = probe.states(batch)
    predictions = []
    for pair in pairs:
        of_layer = states[:, probe._places[probe.pairs[pair].layer]]
        predictions.append(probe.predict(of_layer @ matrices[pair].T))
    return torch.stack(predictions, dim=1)


def _keep(probe: StructuralProbe, pair: int) -> None:
    """Keep the weights of a pair as its best."""
    with torch.no_grad():
        probe.kept[pair].copy_(probe.matrices[pair])
    probe.best_epoch[pair] = probe.current_epoch + 1


def _judge(probe: StructuralProbe, losses: Tensor) -> None:
    """Compare the losses of the pairs on dev `[pairs]` with their best ones."""
    groups = probe.trainer.optimizers[0].param_groups
    extra = probe.every > 0 and (probe.current_epoch + 1) % probe.every > 0  # it may only keep better weights
    running = probe.stale < PATIENCE
    better = running & (losses < probe.best_loss - GAIN)
    # In place, because a tensor made in the inference mode of validation could not be written to afterwards.
    probe.best_loss.copy_(torch.where(better, losses, probe.best_loss))
    for pair, (improved, group) in enumerate(zip(better.tolist(), groups, strict=True)):
        if improved:
            _keep(probe, pair)
        elif not extra:
            group["lr"] *= DECAY
    if extra:
        return
    probe.stale.copy_(torch.where(better, 0, probe.stale + running))
    probe.trainer.should_stop = probe.trainer.should_stop or bool((probe.stale >= PATIENCE).all())


def _label_axes(predicted: NDArray[np.float32], words: Sequence[str], pairs: Sequence[Pair]) -> xr.DataArray:
    """Return the predictions of a sentence without padding, with the names of its axes."""
    axes = ("from", "to") if predicted.ndim == 3 else ("word",)
    coords: dict[str, Any] = {
        "layer": ("probe", [pair.layer for pair in pairs]),
        "rank": ("probe", [pair.rank for pair in pairs]),
    }
    for axis in axes:
        coords[axis] = list(words)
    inside = [slice(len(words))] * len(axes)
    return xr.DataArray(predicted[(slice(None), *inside)], coords, ("probe", *axes))


class StructuralDistanceProbe(StructuralProbe):
    """A probe of tree distances: squared distances of projected hidden states, `d(i, j) = ‖B(h_i − h_j)‖²`.

    See Hewitt & Manning (2019, §2). The score `uuas` is the share of gold edges in the minimum spanning tree of the
    predicted distances, without punctuation. `spearman_distance` is the rank correlation of a word's predicted
    distances and its tree distances to all words of the sentence, itself included. The correlation is averaged over
    the words of a sentence, then over the sentences of each length, then over lengths from 5 to 50.
    """

    experiment = "structural_distance"
    headline = "uuas"
    share = ("uuas", "edges_found", "edges")
    correlation = "spearman_distance"

    def states(self, batch: AttentionBatch) -> Tensor:
        """Return the hidden states minus their mean over the sentence, float32 `[batch, stored layers, n, size]`.

        This leaves distances unchanged, but reduces the rounding errors of differences between large numbers.
        """
        states = batch.hidden.float()
        return states - (states.sum(2) / batch.lengths[:, None, None])[:, :, None]

    def predict(self, projected: Tensor) -> Tensor:
        """Return the squared distances `[batch, n, n]` between projected hidden states `[batch, n, rank]`.

        They are computed from inner products, without a tensor `[batch, n, n, rank]`.
        """
        inner = projected @ projected.mT
        norms = inner.diagonal(dim1=1, dim2=2)
        return norms[:, :, None] + norms[:, None, :] - 2 * inner

    def losses(self, predicted: Tensor, batch: AttentionBatch) -> Tensor:
        return trees.distance_losses(predicted, trees.tree_distances(batch.heads, batch.lengths), batch.lengths)

    def score_sentences(self, predicted: Tensor, batch: AttentionBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Count the gold edges in the trees predicted for each sentence, and correlate the distances.

        A predicted tree is the minimum spanning tree of the predicted distances between words, punctuation
        left out.

        Args:
            predicted: Distances predicted by k matrices, `[batch, k, n, n]`.
            batch: Sentences with their gold trees.

        Returns:
            Three tensors with a row for each sentence:

            - the number of gold edges, without punctuation, `[batch]`;
            - the number of these edges that are in the predicted trees, `[batch, k]`;
            - the rank correlation of a word's predicted and gold distances to all words, averaged over
                the words of the sentence, `[batch, k]`; nan for a sentence of one word.
        """
        drawn = trees.gold_in_trees(
            pad(-predicted, (1, 1, 1, 1))[:, :, None], batch.heads, batch.punctuation, batch.lengths
        )
        gold = trees.tree_distances(batch.heads, batch.lengths)[:, None]
        of_words = trees.masked_rank_correlations(predicted, gold, batch.mask[:, None, None, :])
        # A sentence of one word has no correlation; in others every word has one, as no word is as near as itself.
        is_scored = batch.mask & (batch.lengths > 1)[:, None]
        correlation = of_words.masked_fill(~is_scored[:, None], 0.0).sum(-1) / is_scored.sum(-1)[:, None]
        return (drawn[:, :, 0] >= 0).sum(1), (drawn == 1).sum(1), correlation

    def cross_entropy(self, batch: AttentionBatch) -> Tensor:
        """Return −ln p(gold governor | word) over the n + 1 candidate governors, nats `[batch, n]`; 0 in the padding.

        This package defines the probability as follows. ROOT and the word itself, about which distances say nothing,
        have the probability 1/(n+1) each, as in the uniform code. The other words share the rest in proportion to
        exp(−d(i, j)). Equal distances give the uniform code, so all compression is due to the probe.

        Raises:
            UserError: There are several pairs of layer and rank, each of which would have its own code.
        """
        if len(self.pairs) != 1:
            raise UserError(
                f"{type(self).__name__} trains {len(self.pairs)} probes, one for each layer and rank, but a "
                f"description length is of one probe. Give one layer with {setting('model.probe.init_args.layers')}, "
                f"and one rank with {setting('model.probe.init_args.ranks')}."
            )
        distances = self(batch)[:, 0]
        lengths = batch.lengths[:, None]
        itself = torch.eye(distances.size(1), dtype=torch.bool, device=distances.device)
        among = (-distances).masked_fill(itself | ~batch.mask[:, None], -torch.inf).log_softmax(-1)
        gold = (batch.heads - 1).clamp(min=0)
        of_gold = among.gather(2, gold[:, :, None])[:, :, 0]
        even = torch.log1p(lengths).expand_as(batch.heads)
        to_other = even - (lengths - 1).log() - of_gold
        words = torch.arange(1, batch.heads.size(1) + 1, device=batch.heads.device)
        unranked = (batch.heads == 0) | (batch.heads == words)
        return torch.where(unranked, even, to_other).masked_fill(~batch.mask, 0)


class StructuralDepthProbe(StructuralProbe):
    """A probe of tree depths: squared norms of projected hidden states, `‖B h_i‖²`.

    See Hewitt & Manning (2019, §2). The score `root_accuracy` is the share of sentences in which the word of least
    predicted depth is a root; punctuation is left out. `spearman_depth` is the rank correlation of predicted and gold
    depths over the words of a sentence, averaged over the sentences of each length, then over lengths from 5 to 50.
    """

    experiment = "structural_depth"
    headline = "spearman_depth"
    share = ("root_accuracy", "root_correct", "roots")
    correlation = "spearman_depth"

    def states(self, batch: AttentionBatch) -> Tensor:
        return batch.hidden.float()

    def predict(self, projected: Tensor) -> Tensor:
        """Return depths `[batch, n]`: the squared norms of projected hidden states `[batch, n, rank]`."""
        return projected.square().sum(-1)

    def losses(self, predicted: Tensor, batch: AttentionBatch) -> Tensor:
        return trees.depth_losses(predicted, trees.tree_depths(batch.heads, batch.lengths), batch.lengths)

    def score_sentences(self, predicted: Tensor, batch: AttentionBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Find the sentences whose word of least predicted depth is a root, and correlate the depths.

        Args:
            predicted: Depths predicted by k matrices, `[batch, k, n]`.
            batch: Sentences with their gold trees.

        Returns:
            Three tensors with a row for each sentence:

            - bool `[batch]`, True if the sentence has a word other than punctuation;
            - bool `[batch, k]`, True if the word of least predicted depth is a root, punctuation left out;
            - the rank correlation of predicted and gold depths over the words, `[batch, k]`; nan if all
                gold depths are equal, as in a sentence of one word.
        """
        plain = batch.mask & ~batch.punctuation
        has_words = plain.any(1)
        right = torch.zeros(predicted.shape[:2], dtype=torch.bool, device=predicted.device)
        if predicted.size(2):
            least = predicted.masked_fill(~plain[:, None], torch.inf).argmin(-1)
            right = (batch.heads.gather(1, least) == 0) & has_words[:, None]
        depths = trees.tree_depths(batch.heads, batch.lengths)[:, None]
        return has_words, right, trees.masked_rank_correlations(predicted, depths, batch.mask[:, None])
