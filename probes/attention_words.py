"""The attention-and-words probe of Clark et al. (2019, §5)."""

from typing import Literal

import torch
from torch import Tensor, nn

from datamodules import AttentionBatch
from probes.arc_probe import ArcProbe
from probes.bound import Sizes
from probes.scorers import candidates, root_scores, weighted_scores, with_root


class AttentionWordsProbe(ArcProbe):
    """Scores head i of word j by attention whose weights the two words' vectors decide.

    `Σ_k (W_k·(v_j ⊕ v_i) + b_k) α^k[j,i] + (U_k·(v_j ⊕ v_i) + c_k) α^k[i,j]`; v are frozen word vectors. ROOT is scored
    by the delimiters, with the learned scalars `start` and `end`, as in the attention-only probe. The biases b and c
    are those of the authors' code, and the paper's formula has none. In that code the whole of v_j ⊕ v_i is zero for
    ROOT, so that only the biases remain of its weights. `4·LH·dim` parameters, `2·LH` biases, and the two scalars.

    Args:
        learning_rate: of Adam.
        decay: factor of the learning rate.
        schedule: when it falls: after every `epoch`, or on a `plateau` of the loss on dev.
        labels: whether relations are classified too, for `las`.
        bias: whether there are b and c.
        root: whether for ROOT the words are `zero`, as in the authors' code, or ROOT has a `learned` vector of its own,
            beside that of the dependent.
        relations: relations in the table and the figure, in this order, beside all words; by default all of them.
    """

    experiment = "attention_words"
    reads = frozenset(("attention", "vectors"))

    def __init__(
        self,
        learning_rate: float = 2e-3,
        decay: float = 1.0,
        schedule: Literal["epoch", "plateau"] = "epoch",
        labels: bool = False,
        bias: bool = True,
        root: Literal["zero", "learned"] = "zero",
        relations: tuple[str, ...] = (),
    ) -> None:
        super().__init__(learning_rate, decay, schedule, labels, relations)
        self.has_bias, self.root = bias, root

    def build(self, sizes: Sizes) -> None:
        """`dependent` and `head` are `[dim, 2·LH]`: first for attention from the dependent, then for that back."""
        heads = len(sizes.layers) * len(sizes.heads)
        self.dependent = nn.Parameter(torch.zeros(sizes.vectors, 2 * heads))
        self.head = nn.Parameter(torch.zeros(sizes.vectors, 2 * heads))
        self.bias = nn.Parameter(torch.zeros(2, heads), requires_grad=self.has_bias)
        self.start, self.end = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))
        if self.root == "learned":
            self.root_vector = nn.Parameter(torch.randn(sizes.vectors))  # of zeros neither it nor `head` would move

    def forward(self, batch: AttentionBatch) -> Tensor:
        """Scores `[batch, n, n+1]` of the candidates of every word, ROOT first; -inf where there is no candidate."""
        attention = batch.attention.flatten(1, 2)
        heads = attention.size(1)
        dependent, head = batch.vectors @ self.dependent, batch.vectors @ self.head
        if self.root == "learned":
            root = (self.root_vector @ self.head).expand(len(head), 1, -1)
            # Behind the last word, where the end delimiter of shorter sentences lies, the slots are ROOT's as well.
            head = torch.cat([root, torch.where(batch.mask[..., None], head, root), root], dim=1)
        else:
            head = nn.functional.pad(head, (0, 0, 1, 1))
        dependent = nn.functional.pad(dependent + self.bias.flatten(), (0, 0, 1, 1))
        first, second = (of.view(*of.shape[:2], 2, heads) for of in (dependent, head))
        scores = weighted_scores(attention, first, second)
        if self.root == "learned":
            return candidates(scores, batch.lengths, self.start, self.end)
        return with_root(root_scores(attention, self.bias, batch.lengths, self.start, self.end), scores, batch.lengths)
