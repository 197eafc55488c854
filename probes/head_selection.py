"""Trained probes that select the head of every word among all candidates (Clark et al. 2019, §5)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from attention import EncoderSpec, Options
from datamodules import AttentionBatch, DependencyDataModule, VectorSpec
from datamodules.dependency import DependencySplit, Field
from heads.experiment import ArcEvaluation, PredictedArcs, check_relations, predicted_arcs, read_fields
from metrics.attachment import attached
from metrics.rows import ArcRows
from metrics.trees import tree_heads
from probes.base import FrozenProbe, Sizes, weight_maps
from probes.scorers import attention_scores, candidates, root_scores, weighted_scores, with_root
from probes.sentences import data_of_sentences
from results import Figure, Result
from results.errors import check_numbers
from training import device_count
from training.lightning_private import attached_trainer


class RelationClassifier(nn.Module):
    """The relation of a word to its head, linear in all attention between the two, as `Linear(2k+1, relations)`.

    Beside the attention of all k heads from the word to its head, and back, there is one feature for ROOT, which is
    attended to at the start delimiter. It is trained at the gold heads, and asked at the predicted ones. Data may
    number the relations otherwise, and may lack some, or have more: they are known by their names.
    """

    def __init__(self, heads: int, relations: Sequence[str]) -> None:
        super().__init__()
        self.relations = tuple(relations)
        self.linear = nn.Linear(2 * heads + 1, len(relations))

    def forward(self, batch: AttentionBatch, heads: Tensor) -> Tensor:
        """Logits `[batch, n, relations]` of the arcs to these heads, int64 `[batch, n]`, 0 = ROOT."""
        attention = batch.attention.flatten(1, 2)
        rows = torch.arange(heads.size(0), device=heads.device)[:, None]
        words = torch.arange(1, heads.size(1) + 1, device=heads.device).expand_as(heads)
        there, back = attention[rows, :, words, heads], attention[rows, :, heads, words]
        root = (heads == 0)[..., None]
        logits: Tensor = self.linear(torch.cat([there, back, root.to(there.dtype)], dim=-1).float())
        return logits

    def predict(self, batch: AttentionBatch, heads: Tensor, names: Sequence[str]) -> Tensor:
        """Place in `names` of the relation of the arcs to these heads, int64 `[batch, n]`; -1 where it is not there."""
        return self._places(names).to(heads.device)[self(batch, heads).argmax(-1)]

    def loss(self, batch: AttentionBatch, names: Sequence[str]) -> Tensor:
        """Cross-entropy of the relations, which are places in `names`, at the gold heads, summed over the words."""
        places = self._places(names)
        own = torch.full((len(names) + 1,), -1)  # the last place is that of the padding, -1
        own[places] = torch.where(places >= 0, torch.arange(len(places)), -1)
        own[-1] = -1
        logits = self(batch, batch.heads.clamp(min=0))
        gold = own.to(logits.device)[batch.relations]
        return nn.functional.cross_entropy(logits.flatten(0, 1), gold.flatten(), ignore_index=-1, reduction="sum")

    def _places(self, names: Sequence[str]) -> Tensor:
        known = {name: place for place, name in enumerate(names)}
        return torch.tensor([known.get(name, -1) for name in self.relations])


class HeadSelectionProbe(FrozenProbe[DependencyDataModule]):
    """A trained probe that gives every word a score for every candidate head.

    Subclasses fill `build`, which makes the parameters once the sizes are known, and `forward`, which gives scores
    `[batch, n, n+1]` of the candidates of every word, ROOT first; -inf where there is no candidate.

    Args:
        learning_rate: of Adam.
        decay: factor of the learning rate; 1 keeps it, as the original does.
        schedule: whether the rate falls after every `epoch`, or on a `plateau`: after an epoch that did not lower the
            loss on dev.
        labels: whether a classifier of relations is trained beside, for `las`; see `RelationClassifier`.
        relations: relations in the table and the figure, in this order, beside all words; by default all of them.
    """

    takes = DependencyDataModule
    monitor: ClassVar[tuple[str, Literal["min", "max"]]] = ("val_uas", "max")
    headline: ClassVar[str] = "uas"

    def __init__(
        self,
        learning_rate: float = 2e-3,
        decay: float = 1.0,
        schedule: Literal["epoch", "plateau"] = "epoch",
        labels: bool = False,
        relations: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        check_numbers(self, least=0, learning_rate=learning_rate)
        check_numbers(self, above=0, decay=decay)
        self.learning_rate, self.decay, self.schedule, self.labels = learning_rate, decay, schedule, labels
        self.evaluation = ArcEvaluation(relations)
        self._val, self._found = ArcRows(heads=None), predicted_arcs()
        self._relations: tuple[str, ...] = ()
        self.predictions: pd.DataFrame | None = None

    def prepare(self) -> None:
        reads = self._needs
        read_fields(self.data, reads, type(self).__name__)
        check_relations(self.evaluation.relations, self.data.relations)
        self.bind_to(self.data, reads)
        if not self._relations:
            self._classify(self.data.relations)

    @property
    def _needs(self) -> frozenset[Field]:
        return frozenset(self.reads) | ({"attention"} if self.labels else set())

    def figures(self) -> Mapping[str, Figure]:
        """Return figures of the probe's own."""
        return {}

    def _classify(self, relations: tuple[str, ...]) -> None:
        self._relations = relations
        if self.labels:
            heads = len(self.sizes.layers) * len(self.sizes.heads)
            self.classifier = RelationClassifier(heads, relations)

    def cross_entropy(self, batch: AttentionBatch) -> Tensor:
        """Cross-entropy of the gold head of every word over its candidates, `[batch, n]`; 0 in the padding."""
        return _head_cross_entropy(self(batch), batch)

    def training_step(self, batch: AttentionBatch, batch_idx: int) -> Tensor:
        """Cross-entropy over the candidate heads, summed over the words, as in Clark et al. (2019, §5)."""
        loss = self.cross_entropy(batch).sum()
        self._loss.update(loss.detach(), batch.lengths.sum())
        if self.labels:
            loss = loss + self.classifier.loss(batch, self.data.relations)
        return device_count(self) * loss  # a sum over all devices, whose gradients are averaged

    def predict(self, batch: AttentionBatch, tree: bool = True) -> PredictedArcs:
        """Return the candidate of the highest score for every word and, if asked for, the tree of the highest score."""
        scores = self(batch)
        heads = scores.argmax(-1)
        relations = self.classifier.predict(batch, heads, self._names) if self.labels else None
        return PredictedArcs(heads, tree_heads(scores, batch.lengths) if tree else None, relations)

    def update(self, batch: AttentionBatch) -> None:
        self.evaluation.update(batch, self.predict(batch) if batch.split == "test" else None)

    def outcome(self) -> Result:
        return self.evaluation.result(self.experiment, self.data, self.figures(), self.trained_for)

    @property
    def _names(self) -> tuple[str, ...]:
        """Relation names by label id: the datamodule's ids under a trainer, else those of the training run."""
        return self._relations if attached_trainer(self) is None else self.data.relations

    def predict_step(self, batch: AttentionBatch, batch_idx: int) -> Tensor:
        """Predicted heads `[batch, n]`, -1 in the padding; gathered for `predictions` too."""
        predicted = self.predict(batch)
        self._found.add(batch, **predicted.columns())
        return predicted.heads.masked_fill(~batch.mask, -1)

    def on_predict_epoch_end(self) -> None:
        """Fill `predictions`, the table of `predict_sentences` for the sentences of the data."""
        self.predictions = self._table(self._found, self.data.splits["test"])

    def _table(self, found: ArcRows, split: DependencySplit) -> pd.DataFrame:
        arcs, predicted = found.arcs()
        columns = {
            "id": [split.ids[index] for index in arcs.sentence],
            "word": arcs.word,
            "form": [form for index in np.unique(arcs.sentence) for form in split.words(int(index))],
            "head": predicted["heads"],
            "tree_head": predicted["tree"],
        }
        if self.labels:
            names = (*self._names, None)  # the last, -1, is a relation that these data do not have
            columns["relation"] = [names[number] for number in predicted["relations"].tolist()]
        return pd.DataFrame(columns)

    def predict_sentences(
        self,
        sentences: str | Sequence[str | Sequence[str]],
        encoder: EncoderSpec | None = None,
        *,
        options: Options | None = None,
        vectors: VectorSpec | None = None,
        root: str | None = None,
    ) -> pd.DataFrame:
        """The heads of new sentences, as `python train.py predict` finds them; no Trainer is needed.

        A checkpoint of `train.py` knows its encoder, options and word vectors. For a probe that a program has trained
        they are named here; the default encoder, read whole, need not be.

        Args:
            sentences: each a string, which is cut at white space, or its words.
            encoder: that of the training, where it lies elsewhere now, as are the next two.
            options: layers and heads, and what is done with long sentences.
            vectors: the word vectors.
            root: folder of the word vectors; else `$PROBING_DATA`, else `./data`.

        Returns:
            Columns `id, word, form, head, tree_head` and, with labels, `relation`: `id` counts the sentences from 1,
            `word` the words of each; 0 is the root.

        Raises:
            TrainingError: the probe is not trained, or was trained on another encoder or other word vectors.
            UserError: there is no sentence, or one has no words.
        """
        with data_of_sentences(self, sentences, self._needs, encoder, options, vectors, root) as data:
            self.bind_to(data, self._needs)
            found = predicted_arcs()
            for batch in data.batches("test"):
                batch = batch.to(self.device)
                found.add(batch, **self.predict(batch).columns())
            return self._table(found, data.splits["test"])

    def validation_step(self, batch: AttentionBatch, batch_idx: int) -> None:
        scores = self(batch)
        self._val_loss.update(_head_cross_entropy(scores, batch).sum(), batch.lengths.sum())
        self._val.add(batch, heads=scores.argmax(-1))

    def on_validation_epoch_end(self) -> None:
        """Log `val_uas`, UAS on dev without punctuation, and `val_loss`, nats per word."""
        arcs, predicted = self._val.arcs()
        right = attached(arcs, predicted["heads"].astype(np.int64))[~arcs.punctuation]
        self.log("val_uas", float(right.mean()) if len(right) else 0.0, prog_bar=True)
        self.log("val_loss", self._val_loss.take())

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Adam, as in Clark et al. (2019)."""
        adam = torch.optim.Adam(self.parameters(), self.learning_rate, fused=True)
        if self.schedule == "epoch":
            return {"optimizer": adam, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(adam, self.decay)}
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(adam, factor=self.decay, patience=0, threshold=0)
        return {"optimizer": adam, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}

    def checkpoint_part(self) -> dict[str, Any]:
        return {**super().checkpoint_part(), "relations": self._relations}

    def restore(self, part: Mapping[str, Any]) -> None:
        """Make the classifier of the relations that were trained: other splits may have others."""
        relations = tuple(part["relations"])
        if self._relations != relations:
            self._classify(relations)


def _head_cross_entropy(scores: Tensor, batch: AttentionBatch) -> Tensor:
    words = nn.functional.cross_entropy(scores.flatten(0, 1), batch.heads.flatten(), ignore_index=-1, reduction="none")
    return words.view_as(batch.heads)


class AttentionOnlyProbe(HeadSelectionProbe):
    """Scores head i of word j by a weighted sum over attention heads: `Σ_k w_k α^k[j,i] + u_k α^k[i,j]`.

    ROOT is scored by the delimiters, `start` and `end` being two learned scalars that all heads share:
    `start·α[j,0] + end·α[j,n+1]` in the place of α[j,i], and `start·α[0,j] + end·α[n+1,j]` in the place of α[i,j].
    The word itself stays a candidate, as in the paper. `2LH + 2` parameters.

    The original trains one epoch on batches of one sentence; the batches here are larger, and the epochs are the
    configuration's.
    """

    experiment = "attention_only"

    def build(self, sizes: Sizes) -> None:
        # From the dependent to the head, and back.
        self.weight = nn.Parameter(torch.zeros(2, len(sizes.layers), len(sizes.heads)))
        self.start, self.end = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))

    def forward(self, batch: AttentionBatch) -> Tensor:
        scores = attention_scores(batch.attention.flatten(1, 2), self.weight.flatten(1))
        return candidates(scores, batch.lengths, self.start, self.end)

    def figures(self) -> Mapping[str, Figure]:
        return weight_maps(self.weight, ("dependent → head", "head → dependent"), self.sizes)


class AttentionWordsProbe(HeadSelectionProbe):
    """Scores head i of word j by attention whose weights the two words' vectors decide.

    `Σ_k (W_k·(v_j ⊕ v_i) + b_k) α^k[j,i] + (U_k·(v_j ⊕ v_i) + c_k) α^k[i,j]`; v are frozen word vectors. ROOT is scored
    by the delimiters, with the learned scalars `start` and `end`, as in the attention-only probe. The biases b and c
    are those of the authors' code, and the paper's formula has none. In that code the whole of v_j ⊕ v_i is zero for
    ROOT, so that only the biases remain of its weights. `4·LH·dim` parameters, `2·LH` biases, and the two scalars.

    The other options are those of `HeadSelectionProbe`.

    Args:
        bias: whether there are b and c.
        root: whether for ROOT the words are `zero`, as in the authors' code, or ROOT has a `learned` vector of its own,
            beside that of the dependent.
    """

    experiment = "attention_words"
    reads = frozenset(("attention", "vectors"))

    def __init__(
        self,
        bias: bool = True,
        root: Literal["zero", "learned"] = "zero",
        **training: Any,  # noqa: ANN401 # those of HeadSelectionProbe
    ) -> None:
        super().__init__(**training)
        self.has_bias, self.root = bias, root

    def build(self, sizes: Sizes) -> None:
        # `[dim, 2·LH]`: first for attention from the dependent, then for that back.
        heads = len(sizes.layers) * len(sizes.heads)
        self.dependent = nn.Parameter(torch.zeros(sizes.vectors, 2 * heads))
        self.head = nn.Parameter(torch.zeros(sizes.vectors, 2 * heads))
        self.bias = nn.Parameter(torch.zeros(2, heads), requires_grad=self.has_bias)
        self.start, self.end = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))
        if self.root == "learned":
            self.root_vector = nn.Parameter(torch.randn(sizes.vectors))  # of zeros neither it nor `head` would move

    def forward(self, batch: AttentionBatch) -> Tensor:
        attention = batch.attention.flatten(1, 2)
        heads = attention.size(1)
        dependent, head = batch.vectors @ self.dependent, batch.vectors @ self.head
        if self.root == "learned":
            root = (self.root_vector @ self.head).expand(len(head), 1, -1)
            # Behind the last word, where the end delimiter of shorter sentences lies, the positions are ROOT's as well.
            head = torch.cat([root, torch.where(batch.mask[..., None], head, root), root], dim=1)
        else:
            head = nn.functional.pad(head, (0, 0, 1, 1))
        dependent = nn.functional.pad(dependent + self.bias.flatten(), (0, 0, 1, 1))
        first, second = (of.view(*of.shape[:2], 2, heads) for of in (dependent, head))
        scores = weighted_scores(attention, first, second)
        if self.root == "learned":
            return candidates(scores, batch.lengths, self.start, self.end)
        return with_root(root_scores(attention, self.bias, batch.lengths, self.start, self.end), scores, batch.lengths)


NEAR = 2
"""Distances up to this one have a feature each."""
FEATURES = 2 + 2 * NEAR + 1 + 1


class DistancesWordsProbe(HeadSelectionProbe):
    """Scores head i of word j by their distance and their word vectors, through one hidden layer.

    The input is `v_j ⊕ v_i` and eight features: how far i lies behind j and how far before it, both as a share of the
    sentence's length (0 on the other side), an indicator for each of the distances −2…+2, and one for ROOT, whose
    vector and distances are zero. It needs no attention; the encoder may be null.

    The other options are those of `HeadSelectionProbe`; `labels` need attention.

    Args:
        hidden: tanh units of the hidden layer.
    """

    experiment = "distances_words"
    reads = frozenset(("vectors",))

    def __init__(
        self,
        hidden: int = 256,
        **training: Any,  # noqa: ANN401 # those of HeadSelectionProbe
    ) -> None:
        super().__init__(**training)
        check_numbers(self, least=1, hidden=hidden)
        self.hidden = hidden

    def build(self, sizes: Sizes) -> None:
        self.dependent = nn.Linear(sizes.vectors, self.hidden)
        self.head = nn.Linear(sizes.vectors, self.hidden, bias=False)
        self.distance = nn.Linear(FEATURES, self.hidden, bias=False)
        self.score = nn.Linear(self.hidden, 1, bias=False)

    def forward(self, batch: AttentionBatch) -> Tensor:
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

    Takes the lengths `[batch]` of the sentences, and the greatest of them; 0 in a batch without a sentence.
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
