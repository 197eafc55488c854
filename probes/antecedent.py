"""Trained probes of coreference: the two scorers of Clark et al. (2019, §5) over antecedents instead of heads."""

from collections.abc import Mapping
from functools import partial

import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from datamodules import AntecedentBatch, CoreferenceDataModule
from heads.antecedent import AntecedentEvaluation, check_coreference, links_of
from metrics.antecedent_selection import ANTECEDENT_DIRECTIONS, Links
from probes.base import FrozenProbe, Sizes, weight_maps
from probes.scorers import attention_scores, weighted_scores
from results import Figure, Result
from results.errors import UserError, check_numbers
from training import Average, device_count, no_loss


def candidate_scores(scores: Tensor, links: Links) -> Tensor:
    """Scores `[U, U]` of mentions × antecedents to those of the candidates of every link, `[links, U]`, else -inf."""
    source = torch.tensor(links.source, device=scores.device)
    barred = torch.tensor(~links.candidates, device=scores.device)
    return scores[source].masked_fill(barred, -torch.inf)


def antecedent_loss(scores: Tensor, links: Links) -> Tensor:
    """`-ln Σ p(j)` over the gold candidates j of every link, p being the softmax over all its candidates.

    A cluster may have many earlier mentions, and it does not matter which of them is found: the probability of all of
    them is learned, as in the mention ranking of Durrett & Klein (2013).

    Takes scores `[U, U]` of mentions × antecedents; gives nats `[links]`, 0 where all candidates are gold.
    """
    among = candidate_scores(scores, links)
    wrong = torch.tensor(~links.gold, device=scores.device)
    return among.logsumexp(-1) - among.masked_fill(wrong, -torch.inf).logsumexp(-1)


class TrainedAntecedentProbe(FrozenProbe[CoreferenceDataModule]):
    """A trained probe that gives every earlier head word a score as the antecedent of a mention.

    It sees what a single head sees: attention between the head words of two mentions, in both directions. It is
    scored on test beside the best single head, chosen on dev, and beside the baselines, on the same links.
    Subclasses fill `build`, which makes the parameters once the sizes are known, and `forward`, which gives scores
    `[U, U]`: of every head word's mention × every head word as its antecedent.

    Args:
        learning_rate: of Adam.
        decay: factor of the learning rate after every epoch; 1 keeps it.
        seed: of the bootstrap.
    """

    takes = CoreferenceDataModule

    def __init__(self, learning_rate: float = 1e-2, decay: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        check_numbers(self, least=0, learning_rate=learning_rate, seed=seed)
        check_numbers(self, above=0, decay=decay)
        self.learning_rate, self.decay = learning_rate, decay
        self.evaluation = AntecedentEvaluation(seed=seed, trained=True)
        self._val_accuracy = Average()

    def figures(self) -> Mapping[str, Figure]:
        """Return figures of the probe's own."""
        return {}

    def setup(self, stage: str) -> None:
        data = self.data
        check_coreference(data, type(self).__name__)
        if stage == "test":
            self.evaluation.prepare(data)
        if data.candidates != "mentions":
            raise UserError(
                f"{type(self).__name__} chooses among mentions: --data.init_args.candidates must be mentions, not "
                f"{data.candidates}."
            )
        self.bind_to(data, self.reads)

    def training_step(self, batch: AntecedentBatch, batch_idx: int) -> Tensor:
        if not len(batch.index):
            self._loss.update(torch.zeros((), device=self.device), 0)
            return no_loss(self)
        links = links_of(batch)
        loss = antecedent_loss(self(batch), links).sum()
        self._loss.update(loss.detach(), len(links))
        return device_count(self) * loss  # a sum over all devices, whose gradients are averaged

    def choose(self, batch: AntecedentBatch, links: Links) -> Tensor:
        """Return the candidate of the highest score for every link, int64 `[links]`; of equals the later one."""
        return _choice(candidate_scores(self(batch), links))

    def update(self, batch: AntecedentBatch) -> None:
        self.evaluation.update(batch, partial(self.choose, batch))

    def outcome(self) -> Result:
        return self.evaluation.result(self.experiment, self.figures(), self.trained_for)

    def validation_step(self, batch: AntecedentBatch, batch_idx: int) -> None:
        right = loss = torch.zeros((), device=self.device)
        count = 0
        if batch.window is not None:  # else this device has none: it adds nothing, but must not be found empty
            links, scores = links_of(batch), self(batch)
            chosen = _choice(candidate_scores(scores, links))
            right = torch.tensor(links.gold, device=scores.device).gather(1, chosen[:, None]).sum()
            loss, count = antecedent_loss(scores, links).sum(), len(links)
        self._val_accuracy.update(right, count)
        self._val_loss.update(loss, count)

    def on_validation_epoch_end(self) -> None:
        """Log `val_accuracy`, over all links of dev, and `val_loss`, nats per link."""
        self.log("val_accuracy", self._val_accuracy.take(), prog_bar=True)
        self.log("val_loss", self._val_loss.take())

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        adam = torch.optim.Adam(self.parameters(), self.learning_rate)
        return {"optimizer": adam, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(adam, self.decay)}


def _choice(scores: Tensor) -> Tensor:
    """Of `[links, U]` the last of the greatest in every row."""
    return scores.size(-1) - 1 - scores.flip(-1).argmax(-1)


class AntecedentAttentionProbe(TrainedAntecedentProbe):
    """Scores antecedent j of mention i by a weighted sum over attention heads: `Σ_k w_k α^k[i,j] + u_k α^k[j,i]`.

    i and j are the head words of the two mentions. `2LH` parameters: there is no ROOT, a mention without an antecedent
    being no link.
    """

    experiment = "antecedent_attention"

    def build(self, sizes: Sizes) -> None:
        # From the mention to the antecedent, and back.
        self.weight = nn.Parameter(torch.zeros(2, len(sizes.layers), len(sizes.heads)))

    def forward(self, batch: AntecedentBatch) -> Tensor:
        return attention_scores(batch.weights.flatten(0, 1)[None], self.weight.flatten(1))[0]

    def figures(self) -> Mapping[str, Figure]:
        return weight_maps(self.weight, ANTECEDENT_DIRECTIONS, self.sizes)


class AntecedentWordsProbe(TrainedAntecedentProbe):
    """As `AntecedentAttentionProbe`, with weights that the two head words decide: `w_k = W_k·(v_i ⊕ v_j) + b_k`.

    v are fixed word vectors, zeros for unknown words; U and c give the other direction its weights u_k likewise.
    `2LH·(2d + 1)` parameters.
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
