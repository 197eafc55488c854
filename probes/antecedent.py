"""Trained probes of coreference: the two scorers of Clark et al. (2019, §5) over antecedents instead of heads."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial

import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from attention_probing.datamodules import AntecedentBatch, CoreferenceDataModule
from attention_probing.datamodules.dependency import Field
from attention_probing.metrics.antecedent_selection import ANTECEDENT_DIRECTIONS, Links
from attention_probing.models import Origin, TrainedModule, device_count, no_loss, training_audit
from attention_probing.models.losses import Average
from attention_probing.probes.antecedent_evaluation import (
    add_links,
    check_coreference,
    evaluate_links,
    links_of,
    make_rows,
)
from attention_probing.probes.frozen import Sizes, probe_origin, weight_maps
from attention_probing.probes.head_selection import attention_scores, weighted_scores
from attention_probing.results import Result
from attention_probing.results.errors import UserError, setting
from attention_probing.results.options import Factor, Rate


def candidate_scores(scores: Tensor, links: Links) -> Tensor:
    """Return the scores of the candidate antecedents of every link, `[links, U]`; −inf for other words.

    Args:
        scores: `[U, U]`, score of every head word (column) as the antecedent of every head word (row).
        links: Links of the window, whose mentions have U different head words.
    """
    source = torch.tensor(links.source, device=scores.device)
    barred = torch.tensor(~links.candidates, device=scores.device)
    return scores[source].masked_fill(barred, -torch.inf)


def antecedent_loss(scores: Tensor, links: Links) -> Tensor:
    """Return `-ln Σ p(j)` over the gold candidates j of every link; p is the softmax over all candidates.

    Any earlier mention of the cluster is right, so the loss is the marginal likelihood of the mention ranking of
    Durrett & Klein (2013).

    Args:
        scores: `[U, U]`, score of every head word (column) as the antecedent of every head word (row).
        links: Links of the window, whose mentions have U different head words.

    Returns:
        Loss of each link, nats `[links]`; 0 if all candidates are gold.
    """
    among = candidate_scores(scores, links)
    wrong = torch.tensor(~links.gold, device=scores.device)
    return among.logsumexp(-1) - among.masked_fill(wrong, -torch.inf).logsumexp(-1)


class TrainedAntecedentProbe(TrainedModule[CoreferenceDataModule, Sizes]):
    """A trained probe that scores the head words of earlier mentions as antecedents of a mention.

    The input is the attention of all attention heads between the head words of two mentions, in both
    directions; subclasses may also read word vectors. The probe is scored on links: mentions that have
    an antecedent in the same window. Its result also has the accuracies, on the same links, of the
    baselines and of the attention head that is best on dev.

    Subclasses implement `build`, which creates the parameters once the sizes are known, and `forward`,
    which returns scores `[U, U]` of every head word (column) as the antecedent of every head word (row).

    Args:
        learning_rate: Learning rate of Adam.
        decay: Factor of the learning rate after every epoch; 1 keeps it. Several epochs count as one until they have
            50 optimizer steps (`TrainedModule.every`).
    """

    takes = CoreferenceDataModule
    sizes_type = Sizes
    reads: Collection[Field] = frozenset(("attention",))

    def __init__(self, learning_rate: Rate = 1e-2, decay: Factor = 1.0) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.decay = decay
        self._loss = Average()
        self._val_loss = Average()
        self._val_accuracy = Average()

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage == "test":
            self._rows = make_rows(self.data)

    def origin_of(self, data: CoreferenceDataModule) -> Origin[Sizes]:
        check_coreference(data, type(self).__name__)
        if data.candidates != "mentions":
            raise UserError(
                f"{type(self).__name__} chooses antecedents among mentions, but {setting('data.candidates')} is "
                f"{data.candidates}. Set it to mentions."
            )
        return probe_origin(data, self.reads, type(self).__name__)

    def training_step(self, batch: AntecedentBatch, batch_idx: int) -> Tensor:
        if not len(batch.index):
            self._loss.update(torch.zeros((), device=self.device), 0)
            return no_loss(self)
        links = links_of(batch)
        loss = antecedent_loss(self(batch), links).sum()
        self._loss.update(loss.detach(), len(links))
        return device_count(self) * loss  # a sum over all devices, whose gradients are averaged

    def on_train_epoch_end(self) -> None:
        """Log `train_loss`, the mean loss of the epoch in nats per link."""
        self.log("train_loss", self._loss.take())

    def choose(self, batch: AntecedentBatch, links: Links) -> Tensor:
        """Return the candidate antecedent with the best score for every link.

        On a tie it is the later candidate.

        Args:
            batch: One window of a document.
            links: Mentions of the window that have an antecedent in it, with the candidates of each.

        Returns:
            Index of the candidate in `links.heads`, int64 `[links]`.
        """
        return _choice(candidate_scores(self(batch), links))

    def test_step(self, batch: AntecedentBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        add_links(self._rows, batch, self.data.candidates, partial(self.choose, batch))

    def outcome(self) -> Result:
        return evaluate_links(self.experiment, self.data, self._rows, audit=training_audit(self))

    def validation_step(self, batch: AntecedentBatch, batch_idx: int) -> None:
        right = loss = torch.zeros((), device=self.device)
        count = 0
        if batch.window is not None:  # a device without a window adds 0, as a metric without an update warns
            links = links_of(batch)
            scores = self(batch)
            chosen = _choice(candidate_scores(scores, links))
            right = torch.tensor(links.gold, device=scores.device).gather(1, chosen[:, None]).sum()
            loss = antecedent_loss(scores, links).sum()
            count = len(links)
        self._val_accuracy.update(right, count)
        self._val_loss.update(loss, count)

    def on_validation_epoch_end(self) -> None:
        """Log `val_accuracy`, the share of dev links with a right choice, and `val_loss`, nats per link."""
        self.log("val_accuracy", self._val_accuracy.take(), prog_bar=True)
        self.log("val_loss", self._val_loss.take())

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        adam = torch.optim.Adam(self.parameters(), self.learning_rate)
        return {"optimizer": adam, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(adam, self.decay)}


def _choice(scores: Tensor) -> Tensor:
    """Return the last position of the greatest score in every row of `[links, U]`."""
    return scores.size(-1) - 1 - scores.flip(-1).argmax(-1)


class AntecedentAttentionProbe(TrainedAntecedentProbe):
    """A probe that scores antecedent j of mention i by attention: `Σ_k w_k α^k[i,j] + u_k α^k[j,i]`.

    α^k[i,j] is the attention of attention head k from the head word of mention i to the head word of
    mention j, and the sum is over all attention heads. With L layers of H heads there are `2LH`
    parameters. Unlike probes of governors, the probe has no candidate ROOT, because it is applied
    only to mentions that have an antecedent.
    """

    experiment = "antecedent_attention"

    def build(self, sizes: Sizes) -> None:
        # From the mention to the antecedent, and back.
        self.weight = nn.Parameter(torch.zeros(2, len(sizes.layers), len(sizes.heads)))

    def forward(self, batch: AntecedentBatch) -> Tensor:
        return attention_scores(batch.weights.flatten(0, 1)[None], self.weight.flatten(1))[0]

    def outcome(self) -> Result:
        result = super().outcome()
        maps = weight_maps(self.weight, ANTECEDENT_DIRECTIONS, self.sizes)
        return replace(result, figures={**result.figures, **maps})


class AntecedentWordsProbe(TrainedAntecedentProbe):
    """A probe that scores antecedent j of mention i by attention, with weights that depend on both words.

    The score is `Σ_k w_k α^k[i,j] + u_k α^k[j,i]` over attention heads k, as in
    `AntecedentAttentionProbe`, but with `w_k = W_k·(v_i ⊕ v_j) + b_k` and `u_k = U_k·(v_i ⊕ v_j) + c_k`.
    v_i and v_j are the frozen word vectors, of size d, of the head words of the two mentions, zeros for
    unknown words; ⊕ is concatenation. With L layers of H heads there are `2LH·(2d + 1)` parameters.
    """

    experiment = "antecedent_words"
    reads = frozenset(("attention", "vectors"))

    def build(self, sizes: Sizes) -> None:
        # `[dim, 2·LH]`: first for attention to the antecedent, then for that back.
        heads = len(sizes.layers) * len(sizes.heads)
        self.mention = nn.Parameter(torch.zeros(sizes.vectors, 2 * heads))
        self.antecedent = nn.Parameter(torch.zeros(sizes.vectors, 2 * heads))
        self.bias = nn.Parameter(torch.zeros(2 * heads))

    def forward(self, batch: AntecedentBatch) -> Tensor:
        attention = batch.weights.flatten(0, 1)
        terms = batch.vectors @ self.mention + self.bias, batch.vectors @ self.antecedent
        first, second = (term.view(1, -1, 2, len(attention)) for term in terms)
        return weighted_scores(attention[None], first, second)[0]
