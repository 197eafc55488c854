"""The baselines of Clark et al. (2019, §5): of word order alone, and of distances with the words themselves."""

from typing import Literal

import torch
from torch import Tensor, nn

from datamodules import AttentionBatch
from probes.arc_probe import ArcProbe
from probes.base import ArcExperiment
from probes.bound import Sizes

NEAR = 2
"""Distances up to this one have a feature each."""
FEATURES = 2 + 2 * NEAR + 1 + 1


class Baselines(ArcExperiment):
    """Best fixed offset per relation and overall, right- and left-branching, and uniform attention.

    The offsets are chosen on dev and scored on test. Uniform attention is scored by expectation: every word's head is
    equally likely to be ROOT or any other word. Nothing is trained, so `python train.py test` runs it.

    Args:
        relations: relations in the table and the figure, in this order, beside all words; by default all of them.
    """

    experiment = "baselines"


class DistancesWordsProbe(ArcProbe):
    """Scores head i of word j by their distance and their word vectors, through one hidden layer.

    The input is `v_j ⊕ v_i` and eight features: how far i lies behind j and how far before it, both as a share of the
    sentence's length (0 on the other side), an indicator for each of the distances −2…+2, and one for ROOT, whose
    vector and distances are zero. It needs no attention; the encoder may be null.

    Args:
        learning_rate: of Adam.
        decay: factor of the learning rate.
        schedule: when it falls: after every `epoch`, or on a `plateau` of the loss on dev.
        labels: whether relations are classified too, for `las`; they need attention.
        hidden: tanh units of the hidden layer.
        relations: relations in the table and the figure, in this order, beside all words; by default all of them.
    """

    experiment = "distances_words"
    reads = frozenset(("vectors",))

    def __init__(
        self,
        learning_rate: float = 2e-3,
        decay: float = 1.0,
        schedule: Literal["epoch", "plateau"] = "epoch",
        labels: bool = False,
        hidden: int = 256,
        relations: tuple[str, ...] = (),
    ) -> None:
        super().__init__(learning_rate, decay, schedule, labels, relations)
        self.hidden = hidden

    def build(self, sizes: Sizes) -> None:
        """One linear layer for each part of the input, and one for what comes of their sum."""
        self.dependent = nn.Linear(sizes.vectors, self.hidden)
        self.head = nn.Linear(sizes.vectors, self.hidden, bias=False)
        self.distance = nn.Linear(FEATURES, self.hidden, bias=False)
        self.score = nn.Linear(self.hidden, 1, bias=False)

    def forward(self, batch: AttentionBatch) -> Tensor:
        """Scores `[batch, n, n+1]` of the candidates of every word, ROOT first; -inf where there is no candidate."""
        # The first layer is a sum of a term of the dependent, one of the head and one of their distance: the
        # concatenation of all three, for every pair, is never made.
        head = nn.functional.pad(self.head(batch.vectors), (0, 0, 1, 0))
        units = (
            self.dependent(batch.vectors)[:, :, None]
            + head[:, None]
            + self.distance(distances(batch.lengths, batch.heads.size(1)))
        )
        scores: Tensor = self.score(units.tanh_()).squeeze(-1)
        absent = torch.arange(scores.size(2), device=scores.device) > batch.lengths[:, None]
        return scores.masked_fill(absent[:, None], -torch.inf)


def distances(lengths: Tensor, n: int) -> Tensor:
    """Features of every pair, float32 `[batch, n, n+1, FEATURES]`: dependents × candidate heads, ROOT first.

    Args:
        lengths: int64 `[batch]`, words of each sentence.
        n: the greatest of them; 0 in a batch without a sentence.
    """
    words = torch.arange(1, n + 1, device=lengths.device)
    heads = torch.arange(n + 1, device=lengths.device)
    apart = heads - words[:, None]
    root = (heads == 0).expand_as(apart)
    near = apart[..., None] == torch.arange(-NEAR, NEAR + 1, device=lengths.device)
    flags = torch.cat([near & ~root[..., None], root[..., None]], dim=-1).float()
    far = torch.stack([apart.clamp(min=0), (-apart).clamp(min=0)], dim=-1).masked_fill(root[..., None], 0)
    share = far / lengths[:, None, None, None]
    return torch.cat([share, flags.expand(len(lengths), -1, -1, -1)], dim=-1)
