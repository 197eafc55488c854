"""Training of structural probes: all layers and ranks at once, each as if it were alone."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn
from torchmetrics import SumMetric

from datamodules import AttentionBatch
from metrics.attachment import ratio_scores
from metrics.rows import ItemRows
from probes.base import DependencyExperiment, ProbeError
from probes.structural_pairs import Pair, StructuralSizes, describe, start, sweep_pairs
from probes.structural_tables import Found, sweep_map, sweep_table
from results import Result
from training import Origin, TrainedModule

GAIN = 1e-4
"""By how much the loss on dev must fall for an epoch to count as better."""


class StructuralProbe(TrainedModule[StructuralSizes], DependencyExperiment):
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

    reads = frozenset(("hidden",))
    monitor: ClassVar[tuple[str, Literal["min", "max"]]] = ("val_loss", "min")
    """What is best at the dev optimum."""
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
        if patience < 1:
            raise ProbeError(f"patience: {patience}. Give at least one epoch.")
        self.layers, self.ranks = layers, ranks
        self.learning_rate, self.decay, self.patience = learning_rate, decay, patience
        self._places: dict[int, int] = {}
        self._active: list[int] = []
        self._loss, self._sentences = SumMetric(nan_strategy="disable"), SumMetric()

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

    def setup(self, stage: str) -> None:
        """Make the matrices for the hidden states that the data hold.

        Raises:
            ProbeError: there are none, or not those of a layer, or a rank exceeds their size.
        """
        super().setup(stage)
        data = self.attention
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
        self._val = ItemRows(len(pairs))
        self._dev, self._test = ItemRows(1 + 2 * len(pairs)), ItemRows(1 + 2 * len(pairs))

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
        self._loss.update(losses.detach().mean(1).sum())
        self._sentences.update(len(losses))
        return losses.mean(0).sum()

    def on_train_epoch_end(self) -> None:
        """Log `train_loss`, the mean over sentences and pairs; without a dev split, keep the last weights."""
        self.log("train_loss", self._loss.compute() / self._sentences.compute())
        self._loss.reset()
        self._sentences.reset()
        if not self.trainer.enable_validation:
            for pair in range(len(self.pairs)):
                self._keep(pair)

    def _keep(self, pair: int) -> None:
        with torch.no_grad():
            self.kept[pair].copy_(self.matrices[pair])
        self.best_epoch[pair] = self.current_epoch + 1

    @property
    def _fitting(self) -> bool:
        return self._trainer is not None and self.trainer.state.fn == TrainerFn.FITTING

    def validation_step(self, batch: AttentionBatch, batch_idx: int) -> None:
        """Gather the losses on dev: while training those of the weights of now, else those of the best epochs."""
        everything = range(len(self.pairs))
        predicted = self._predictions(batch, self.matrices, everything) if self._fitting else self(batch)
        self._val.update(batch.index, self.losses(predicted, batch))

    def on_validation_epoch_end(self) -> None:
        """Keep the weights that are better, lower the rate of the others, and stop when all have stopped.

        Logs the loss of each pair, where there are several, and as `val_loss` the mean over the pairs of their best
        ones: a checkpoint that watches it is the first that has the best weights of all.
        """
        losses = torch.from_numpy(self._val.compute()[1].mean(axis=0)).float().to(self.device)
        self._val.reset()
        if len(self.pairs) > 1:
            names = [f"val_loss_layer{pair.layer}_rank{pair.rank}" for pair in self.pairs]
            self.log_dict(dict(zip(names, losses, strict=True)))
        if self._fitting and not self.trainer.sanity_checking:
            self._judge(losses)
        self.log("val_loss", (self.best_loss if self._fitting else losses).mean(), prog_bar=True)

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
        """Refuse to score what has learned nothing.

        Raises:
            TrainingError: it was not trained.
            ProbeError: the loss of a pair was never a finite number.
        """
        self.on_validation_start()
        untrained = [pair for pair, epoch in zip(self.pairs, self.best_epoch.tolist(), strict=True) if not epoch]
        if untrained:
            raise ProbeError(
                f"The loss on dev of layer {untrained[0].layer} at rank {untrained[0].rank} was never a finite number: "
                f"lower --model.init_args.learning_rate, or leave out the layer."
            )

    def on_predict_start(self) -> None:
        """Refuse: what it predicts are no heads."""
        raise ProbeError(f"{type(self).__name__} predicts distances or depths, no heads: `test` scores them.")

    def nats(self, batch: AttentionBatch) -> Tensor:
        """−ln p of the gold head of every word, for a code of the tree.

        Raises:
            ProbeError: there is no such code.
        """
        raise ProbeError(f"{type(self).__name__} gives candidate heads no probabilities: it has no code length.")

    def test_step(self, batch: AttentionBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Gather what is found on dev and on test.

        Raises:
            TrainingError: the probe was not trained.
        """
        total, right, correlation = self.found(self(batch), batch)
        metric = self._test if batch.split == "test" else self._dev
        metric.update(batch.index, torch.cat([total[:, None], right, correlation], dim=1))

    def on_test_epoch_end(self) -> None:
        """Choose a pair on dev, score it on test, and fill `result`."""
        splits = self.data.splits
        dev = Found.of(*self._dev.compute(), splits["dev"].lengths)
        test = Found.of(*self._test.compute(), splits["test"].lengths)
        self._dev.reset()
        self._test.reset()
        self.result = self._result(dev, test, splits["test"].ids)

    def _result(self, dev: Found, test: Found, ids: Sequence[str]) -> Result:
        share, right, total = self.ratio
        by_share = self.headline == share
        table = sweep_table(self.pairs, self.best_epoch.tolist(), dev.counts(by_share), test.counts(by_share))
        chosen = int(table.frame["dev"].fillna(-1).argmax())
        items = test.items(ids, chosen, total, right)
        ratios = {share: (right, total), self.correlation: ("spearman_weighted", "spearman_weight")}
        layer, rank = self.pairs[chosen]
        return Result(
            experiment=self.experiment,
            scores=ratio_scores(items, ratios),
            tables={"sweep": table},
            figures={"sweep": sweep_map(table.frame, chosen, self.headline)} if len(table.frame) > 1 else {},
            audit={"epochs": int(self.best_epoch[chosen]), "layer": layer, "rank": rank},
            items=items,
            ratios=ratios,
        )

    def checkpoint_part(self) -> dict[str, Any]:
        """What the matrices belong to."""
        pairs = [tuple(pair) for pair in self.pairs]
        return {"source": dict(self.origin.source) if self.origin else {}, "pairs": pairs, "size": self.sizes.size}

    def wrote(self, part: Mapping[str, Any]) -> bool:
        """Whether a part of a checkpoint is one of a structural probe."""
        return "pairs" in part

    def sizes_from(self, part: Mapping[str, Any]) -> StructuralSizes:
        """Layers, ranks, and the size of a hidden state."""
        return StructuralSizes(tuple(Pair(*pair) for pair in part["pairs"]), part["size"])

    def difference(self, trained: Origin[StructuralSizes], run: Origin[StructuralSizes]) -> str | None:
        """Another encoder, or other layers or ranks."""
        if trained == run:
            return None
        return (
            f"The matrices were trained on {describe(trained)}, and this run has {describe(run)}. Give "
            f"--data.init_args.encoder, --data.init_args.hidden, --model.init_args.layers and --model.init_args.ranks "
            f"those of the training."
        )
