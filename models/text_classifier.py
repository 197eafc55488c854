"""Base of the text classifiers of train.py: loss, optimiser, validation, and scores on test."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_warn
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from datamodules import ClassificationDataModule, TextBatch
from datamodules.classification import class_counts
from metrics.classification import (
    CLASSIFICATION_RATIOS,
    class_table,
    classification_scores,
    confusion,
    majority_scores,
    mostly_one_label,
    ratio_columns,
    regression_scores,
)
from metrics.rows import ItemRows
from models.layers import EntmaxAttention
from models.text_model import Output, TextModel, TextSizes
from models.trained import Average, Mean, Origin, no_loss, over_devices, training_audit
from results import Estimate, Floats, HeatMap, Integers, Result, Unit
from results.errors import UserError, check_numbers


class Decisions(NamedTuple):
    """Gold labels and outputs of a classifier for the texts of a split, in the order of the split.

    Attributes:
        texts: Index of each text in the split, `[texts]`.
        gold: Gold class of each text or, in a regression, gold number, `[texts]`.
        outputs: Probabilities `[texts, classes]` or, in a regression, predicted numbers `[texts]`.
    """

    texts: Integers
    gold: NDArray[Any]
    outputs: Floats

    def scores(self, positive: int | None, prefix: str = "", draws: int = 1000) -> dict[str, Estimate]:
        """Return the scores of the outputs against the gold labels, with 95 % intervals, by name.

        They are `accuracy`, `f1`, `auroc` and `mcc`, or in a regression `pearson`, `spearman` and `mse`.

        Args:
            positive: Index of the positive class of F1 and AUROC; None for macro means.
            prefix: Beginning of the names of the scores.
            draws: Number of bootstrap draws; 0 for no intervals.
        """
        if self.outputs.ndim == 1:
            return regression_scores(self.gold, self.outputs, prefix=prefix, draws=draws)
        return classification_scores(self.gold, self.outputs, positive, prefix=prefix, draws=draws)


class DecisionRows(ItemRows):
    """Metric that gathers the gold label and the output of every text of a split.

    Args:
        classes: Number of classes; 1 in a regression.
        regression: True if outputs and labels are numbers.
    """

    def __init__(self, classes: int, regression: bool) -> None:
        super().__init__({"gold": None, "outputs": classes})
        self.regression = regression

    def add(self, batch: TextBatch, logits: Tensor) -> None:
        """Add the labels of a batch, and the logits of a classifier for it, `[batch, classes]`."""
        values = logits.detach()
        if not self.regression:
            # Logarithms, taken in double precision on the CPU: as float32 near 1 probabilities would tie.
            values = values.cpu().double().log_softmax(-1).float().to(logits.device)
        self.update(index=batch.index, gold=batch.labels, outputs=values)

    def decisions(self) -> Decisions:
        """Return the labels and outputs of all devices, and reset the metric."""
        found = self.take()
        if self.regression:
            return Decisions(found["index"], found["gold"], found["outputs"][:, 0])
        return Decisions(found["index"], found["gold"].astype(np.int64), np.exp(found["outputs"]))


class TermMeans(nn.Module):
    """Metric that averages each term of a loss over the texts or words of all batches and devices.

    Args:
        names: Names of the terms.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.averages = nn.ModuleDict({name: Average() for name in names})

    def add(self, terms: Mapping[str, Mean]) -> None:
        """Add the terms of the loss of one batch.

        Args:
            terms: By name of the term, its mean over the batch, and the number of texts or words in
                this mean.
        """
        for name, term in terms.items():
            self.averages[name].update(term.value.detach() * term.count, term.count)  # type: ignore[operator]

    def take(self) -> dict[str, float]:
        """Return the mean of each term by name, and reset the metric."""
        return {name: float(average.take()) for name, average in self.averages.items()}  # type: ignore[operator]


class TextClassifier(TextModel):
    """Base class of text classifiers whose attention can be read and replaced.

    Subclasses implement `build`, `forward` and `decide`. Those with additional terms in the loss
    also define `term_names` and `loss_terms`. Those with `regresses` also support regression, with
    the squared error in place of the cross-entropy.

    The loss is the sum of its terms, each times its weight. Each term is logged as
    `train_loss.<name>`, and reported on test as `loss.<name>`. The loss of a split is the mean over
    its texts, so it does not depend on the batches; an additional term may be a mean over words.

    Args:
        learning_rate: Learning rate of the optimiser.
        optimizer: `adam`, `adamw`, or `amsgrad`, the variant of Adam by Reddi et al. (2018) that
            Jain & Wallace (2019) use.
        weight_decay: Weight decay of all parameters but the attention's (Jain & Wallace 2019);
            decoupled with `adamw`.
        decay: Factor of the learning rate after every epoch, or after as many as have 50 optimizer steps; 1 keeps it.

    Attributes:
        term_names: Names of the terms of the loss beside the cross-entropy.
        audit: Facts about the parameters that a result reports, by name.
    """

    experiment = "classification"
    term_names: Sequence[str] = ()

    def __init__(
        self,
        learning_rate: float = 1e-3,
        optimizer: Literal["adam", "amsgrad", "adamw"] = "adam",
        weight_decay: float = 0.0,
        decay: float = 1.0,
    ) -> None:
        super().__init__()
        check_numbers(self, least=0, learning_rate=learning_rate, weight_decay=weight_decay)
        check_numbers(self, above=0, decay=decay)
        self.learning_rate, self.optimizer = learning_rate, optimizer
        self.weight_decay, self.decay = weight_decay, decay
        self.audit: dict[str, object] = {}

    def make_for(self, data: ClassificationDataModule) -> None:
        if data.regression and not self.regresses:
            raise UserError(
                f"{type(self).__name__} decides between classes, but the labels are numbers "
                f"(--data.init_args.regression). Use TransformerClassifier, or data whose labels are classes."
            )
        super().make_for(data)

    def bind(self, sizes: TextSizes, source: Mapping[str, object]) -> None:
        first = self.origin is None
        super().bind(sizes, source)
        if first:
            self.origin = Origin(replace(sizes, vectors=None, known=None), source)  # they are parameters now
            names = ("squared_error" if sizes.regression else "cross_entropy", *self.term_names)
            self._train_losses, self._eval_losses = TermMeans(names), TermMeans(names)
            self._val, self._dev, self._test = (DecisionRows(sizes.classes, sizes.regression) for _ in range(3))

    def loss_terms(self, batch: TextBatch) -> tuple[Output, Mapping[str, Mean]]:
        """Return the output of `forward`, and the additional terms of the loss by name; none by default.

        Each additional term is already multiplied by its weight, and is a mean over texts or words with
        their number. The main term of the loss is not among them: the cross-entropy or, in a regression,
        the squared error.
        """
        return self(batch), {}

    def all_terms(self, batch: TextBatch) -> tuple[Output, Mapping[str, Mean]]:
        """Return the output of `forward`, and all terms of the loss, each times its weight, by name."""
        output, extra = self.loss_terms(batch)
        if self.sizes.regression:
            name, loss = "squared_error", nn.functional.mse_loss(output.logits[:, 0], batch.labels)
        else:
            name, loss = "cross_entropy", nn.functional.cross_entropy(output.logits, batch.labels)
        return output, {name: Mean(loss, len(batch.labels)), **extra}

    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        if len(batch.labels):
            terms = self.all_terms(batch)[1]
        else:  # the share of a device that has no text
            terms = dict.fromkeys(self._train_losses.averages, Mean(no_loss(self), 0))
        means = over_devices(list(terms.values()), self)
        self._train_losses.add(dict(zip(terms, means, strict=True)))
        return torch.stack([mean.value for mean in means]).sum()

    def on_train_epoch_end(self) -> None:
        """Log `train_loss`, each of its terms as `train_loss.<name>`, and each learned α as `<attention>.alpha`."""
        losses = self._train_losses.take()
        self.log("train_loss", sum(losses.values()), sync_dist=True)
        self.log_dict({f"train_loss.{name}": value for name, value in losses.items()}, sync_dist=True)
        self.log_dict(self.learned_alphas)

    @property
    def learned_alphas(self) -> dict[str, float]:
        """Each learned α of `EntmaxAttention`, as `attention.alpha` or `sentence_attention.alpha`."""
        found = {name: module for name, module in self.named_modules() if isinstance(module, EntmaxAttention)}
        learned = {name: module.alpha for name, module in found.items() if module.learned}
        return {f"{name}.alpha": torch.as_tensor(alpha).item() for name, alpha in learned.items()}

    def validation_step(self, batch: TextBatch, batch_idx: int) -> None:
        self._evaluate(batch, self._val)

    def _evaluate(self, batch: TextBatch, rows: DecisionRows) -> None:
        """Gather the losses and decisions of a batch, which may be empty."""
        if len(batch.labels):
            output, terms = self.all_terms(batch)
            rows.add(batch, output.logits)
            self._eval_losses.add(terms)

    def on_validation_epoch_end(self) -> None:
        """Log `val_loss`, and the scores on dev as `val_<name>`.

        The scores are `accuracy`, `f1`, `auroc` and `mcc`, or in a regression `pearson`, `spearman` and `mse`.
        """
        scores = self._val.decisions().scores(self.data.positive, prefix="val_", draws=0)
        means = {name: score.value for name, score in scores.items()}
        # The same on every device: they are joined already.
        self.log_dict({**means, "val_loss": sum(self._eval_losses.take().values())}, sync_dist=True)

    def test_step(self, batch: TextBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        if batch.split == "test":
            self._evaluate(batch, self._test)
        elif len(batch.labels):
            self._dev.add(batch, self(batch).logits)

    def outcome(self) -> Result:
        losses = self._eval_losses.take()
        audit = {**self.audit, **training_audit(self), **self.learned_alphas}
        return classification_result(self.data, self._dev.decisions(), self._test.decisions(), losses, audit)

    def decays(self, name: str, parameter: nn.Parameter) -> bool:
        """Return True if a parameter, given with its name in the model, has weight decay.

        All have weight decay except the parameters of attention modules.
        """
        return not name.startswith(("attention.", "sentence_attention."))

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the trained parameters as two groups for the optimiser: with and without weight decay."""
        groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                groups[self.decays(name, parameter)].append(parameter)
        decays = {True: self.weight_decay, False: 0.0}
        return [{"params": found, "weight_decay": decays[key]} for key, found in groups.items() if found]

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        kind = torch.optim.AdamW if self.optimizer == "adamw" else torch.optim.Adam
        amsgrad = self.optimizer == "amsgrad"
        adam = kind(self.parameter_groups(), self.learning_rate, amsgrad=amsgrad, fused=True)
        return {"optimizer": adam, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(adam, self.decay)}


def classification_result(
    data: ClassificationDataModule,
    dev: Decisions,
    test: Decisions,
    losses: Mapping[str, float],
    audit: Mapping[str, object],
) -> Result:
    """Return the result of a classifier: scores, table and figure from its decisions on dev and test.

    Args:
        data: The datamodule.
        dev: Gold labels and outputs on dev.
        test: Gold labels and outputs on test.
        losses: Terms of the loss on test, by name of the term.
        audit: Facts about the run to report with the result, by name.

    Returns:
        `accuracy`, `f1`, `auroc` and `mcc` on test, and on dev as `dev.<name>`, with intervals; `loss` and its terms
        `loss.<name>` on test; the `majority` baseline; the table `classes`, the figure `confusion`, and a row for
        each test text. In a regression the scores are `pearson`, `spearman` and `mse`, the baseline is `mean.mse`,
        the error of always predicting the mean of train, and there is no table or figure.
    """
    positive = data.positive
    unit: Unit = "ratio" if data.regression else "nats"
    scores = {
        **test.scores(positive),
        "loss": Estimate(sum(losses.values()), unit=unit),
        **{f"loss.{name}": Estimate(value, unit=unit) for name, value in losses.items()},
        **dev.scores(positive, prefix="dev."),
    }
    texts = {"text": test.texts, "id": [data.splits["test"].ids[text] for text in test.texts.tolist()]}
    if data.regression:
        errors = {"squared_error": (test.gold - test.outputs) ** 2, "scored": np.ones_like(test.texts)}
        items = pd.DataFrame({**texts, "gold": test.gold, "predicted": test.outputs, **errors})
        constant = float(((test.gold - data.splits["train"].labels.mean()) ** 2).mean())
        scores["mean.mse"] = Estimate(constant, unit="ratio")
        ratios = {"mse": ("squared_error", "scored")}
        headline = ("pearson", "spearman", "mse")
        return Result("regression", scores, audit=audit, items=items, ratios=ratios, headline=headline)
    labels, gold, predicted = data.labels, test.gold, test.outputs.argmax(axis=1)
    names = np.array(labels, dtype=object)
    columns = {**texts, "gold": names[gold], "predicted": names[predicted], **ratio_columns(gold, predicted, positive)}
    probabilities = {f"probability.{label}": test.outputs[:, place] for place, label in enumerate(labels)}
    items = pd.DataFrame({**columns, **probabilities})
    table = confusion(gold, predicted, len(labels))
    if one_label := mostly_one_label(gold, predicted, labels):
        rank_zero_warn(f"The classifier {one_label}: compare its scores with those of `majority`. Train it longer.")
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    axes = ("gold", "predicted", "share of the class")
    return Result(
        TextClassifier.experiment,
        scores={**scores, **majority_scores(class_counts(data), gold, positive)},
        tables={"classes": class_table(gold, predicted, labels)},
        figures={"confusion": HeatMap("Confusion", shares, labels, labels, *axes, unit="fraction")},
        audit=audit,
        items=items,
        ratios={name: pair for name, pair in CLASSIFICATION_RATIOS.items() if set(pair) <= set(items)},
        headline=("accuracy", "f1", "majority.accuracy"),
    )
