"""The structural probes of Hewitt & Manning (2019): trees in the geometry of hidden states."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from datamodules import AttentionBatch
from metrics.structural import depth_losses, distance_losses, spearman, tree_depths, tree_distances
from metrics.trees import gold_in_trees
from probes.base import ProbeError
from probes.structural_sweep import StructuralProbe


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
        """L1 to the distances in the tree."""
        return distance_losses(predicted, tree_distances(batch.heads, batch.lengths), batch.lengths)

    def found(self, predicted: Tensor, batch: AttentionBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Gold edges, those that the spanning trees draw, and the correlation."""
        drawn = gold_in_trees(pad(-predicted, (1, 1, 1, 1))[:, :, None], batch.heads, batch.punctuation, batch.lengths)
        gold = tree_distances(batch.heads, batch.lengths)[:, None]
        of_words = spearman(predicted, gold, batch.mask[:, None, None, :])
        # Of a word alone there is none; of any other every word's is defined, for no word is as near as itself.
        known = batch.mask & (batch.lengths > 1)[:, None]
        correlation = of_words.masked_fill(~known[:, None], 0.0).sum(-1) / known.sum(-1)[:, None]
        return (drawn[:, :, 0] >= 0).sum(1), (drawn == 1).sum(1), correlation

    def nats(self, batch: AttentionBatch) -> Tensor:
        """−ln p(gold head | word) under a code over the n + 1 candidate heads, `[batch, n]`; 0 in the padding.

        Ours: distances say nothing of ROOT and of the word itself, which get 1/(n+1) each, as in the uniform code; the
        rest is shared by `p(j|i) ∝ exp(−d(i, j))` over the other words. Where all distances are equal it is the uniform
        code, so that what is compressed was learned.

        Raises:
            ProbeError: there are several layers or ranks, or the probe was not trained.
        """
        if len(self.pairs) != 1:
            raise ProbeError(
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
        """As they are: the origin is what depth is measured from."""
        return batch.hidden.float()

    def predict(self, projected: Tensor) -> Tensor:
        """Squared norms `[batch, n]`."""
        return projected.square().sum(-1)

    def losses(self, predicted: Tensor, batch: AttentionBatch) -> Tensor:
        """L1 to the depths in the tree."""
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
        return some, right, spearman(predicted, depths, batch.mask[:, None])
