"""What every text classifier shares: training, choice on dev, scores on test, predictions, and imposed attention."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torchmetrics import MetricCollection

from attention.encoder import EncoderSpec, resolve
from attention.inputs import TextTokenizer
from corpora.labelled import LabelledText
from datamodules import ClassificationDataModule, TextBatch
from datamodules.classification import TextSplit
from datamodules.tokenization import TokenOptions, Vocabulary, tokenize
from metrics.classification import (
    CLASSIFICATION_RATIOS,
    class_table,
    classification_scores,
    confusion,
    majority_scores,
    ratio_columns,
    regression_scores,
)
from metrics.rows import ItemRows
from models.interface import SENTENCE, ModelError, Output
from results import Estimate, Floats, HeatMap, Integers, Result, Unit
from results.errors import check_numbers, new_items
from training import Average, Mean, Origin, TrainedModule, TrainingError, no_loss, over_devices
from training.lifecycle import other_model

CROSS_ENTROPY = "cross_entropy"  # the term that every classifier has
SQUARED_ERROR = "squared_error"  # that of a regression, in its place
_DEFAULT_TOKENS = TokenOptions()

Item = TypeVar("Item")


@dataclass(frozen=True)
class TextSizes:
    """What a classifier's parameters are made for, and how texts become its tokens."""

    classes: int
    vocabulary: Vocabulary  # what the tokens of a batch are numbers of
    vectors: Tensor | None = None
    """Float32 `[vocabulary, vector_size]`; None without, and for parameters that are loaded."""
    known: Tensor | None = None
    """Bool `[vocabulary]`, words that have a vector; None likewise."""
    tokenizer: EncoderSpec | None = None
    """The pretrained model whose pieces the tokens are; None for words."""
    labels: tuple[str, ...] = ()
    vector_size: int | None = None
    options: TokenOptions = _DEFAULT_TOKENS
    regression: bool = False
    """Whether one number is predicted: there is one class then, and no label."""

    @classmethod
    def from_data(cls, data: ClassificationDataModule) -> "TextSizes":
        """Take the sizes of a datamodule that is set up."""
        vectors, known = data.word_vectors() or (None, None)
        size = None if vectors is None else vectors.size(1)
        labels = tuple(data.labels)
        return cls(
            len(labels) or 1,
            data.vocabulary,
            vectors,
            known,
            data.tokenizer,
            labels,
            size,
            data.token_options,
            data.regression,
        )


class Classified(NamedTuple):
    """The texts of a split: their places in it and classes, `[texts]`, and probabilities `[texts, classes]`."""

    texts: Integers
    gold: Integers
    probabilities: Floats

    @property
    def predicted(self) -> Integers:
        """Class of the highest probability, `[texts]`."""
        predicted: Integers = self.probabilities.argmax(axis=1)
        return predicted


class Regressed(NamedTuple):
    """The texts of a split: their places in it, their labels, and the numbers that are predicted, each `[texts]`."""

    texts: Integers
    gold: Floats
    predicted: Floats


class Prediction(NamedTuple):
    """Of one text: its place in the split, and by level a weight, float32, of each of its positions."""

    text: int
    probabilities: list[float]  # of the classes; of a regression the one number
    weights: dict[str, NDArray[np.float32]]


class TextClassifier(TrainedModule[ClassificationDataModule, TextSizes]):
    """A classifier whose attention can be read, and replaced by another.

    One that comes from `load_from_checkpoint` applies to new texts by `predict_texts`, without Trainer and datamodule.

    Subclasses fill `build`, `forward` and `decide`; those with terms of their own in the loss also `term_names` and
    `loss_terms`. The loss is the sum of its terms, each logged as `loss.<name>` with its weight. For a split it is the
    mean over its texts or words (with `class_weights` Σ w·loss / Σ w), however they are batched. A regression, in
    classifiers that support it (`regresses`), has the squared error in place of the cross-entropy.

    Args:
        learning_rate: of the optimiser.
        optimizer: `amsgrad` is Adam with the maximum of Reddi et al. (2018), as Jain & Wallace (2019) train.
        weight_decay: of all parameters but those of the attention (Jain & Wallace 2019); decoupled with `adamw`.
        decay: factor of the learning rate after every epoch; 1 keeps it.
        class_weights: whether a class counts in the loss as much as any other: texts are weighted by
            `texts / (classes · texts of the class)` of the train split.
    """

    checkpoint_key = "classifier"
    checkpoint_entry = "modules"
    experiment = "classification"
    takes = ClassificationDataModule
    term_names: Sequence[str] = ()  # beside the cross-entropy
    regresses: ClassVar[bool] = False

    def __init__(
        self,
        learning_rate: float = 1e-3,
        optimizer: Literal["adam", "amsgrad", "adamw"] = "adam",
        weight_decay: float = 0.0,
        decay: float = 1.0,
        class_weights: bool = False,
    ) -> None:
        super().__init__()
        check_numbers(self, least=0, learning_rate=learning_rate, weight_decay=weight_decay)
        check_numbers(self, above=0, decay=decay)
        self.learning_rate, self.optimizer = learning_rate, optimizer
        self.weight_decay, self.decay = weight_decay, decay
        self.class_weights = class_weights
        self.predictions: pd.DataFrame | None = None
        self._audit: dict[str, object] = {}
        self._weights: Tensor | None = None

    @abstractmethod
    def forward(
        self, batch: TextBatch, *, embedded: Tensor | None = None, imposed: Mapping[str, Tensor] | None = None
    ) -> Output:
        """Read the texts, attend and decide.

        Args:
            batch: of at least one text.
            embedded: `[batch, time, size]`, in the place of the batch's own embeddings.
            imposed: weights `[batch, positions]` by level, in the place of the model's own; used as they are.
        """

    @abstractmethod
    def decide(self, output: Output, imposed: Mapping[str, Tensor]) -> Tensor:
        """Logits `[..., batch, classes]` of the same texts with other attention.

        Args:
            output: of `forward`.
            imposed: weights `[..., batch, positions]` by level, used as they are. Of the other levels, those below keep
                their weights, and those above the lowest replaced level recompute their attention.
        """

    def loss_terms(self, batch: TextBatch) -> tuple[Output, Mapping[str, Mean]]:
        """What `forward` says, and the terms of the loss beside the cross-entropy, each a mean times its weight."""
        return self(batch), {}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Parameters with weight decay, and those without."""
        groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                groups[self.decays(name, parameter)].append(parameter)
        decays = {True: self.weight_decay, False: 0.0}
        return [{"params": found, "weight_decay": decays[key]} for key, found in groups.items() if found]

    def decays(self, name: str, parameter: nn.Parameter) -> bool:
        """Whether a parameter has weight decay: not where it belongs to an attention module."""
        return not name.startswith(("attention.", "sentence_attention."))

    def prepare(self) -> None:
        self.make_for(self.data)

    def make_for(self, data: ClassificationDataModule) -> None:
        """Make the parameters for a datamodule that is set up; a ModelError or TrainingError if they do not fit it."""
        if data.regression and not (self.regresses and not self.class_weights):
            refused = "weighs classes (class_weights)" if self.regresses else "decides between classes"
            raise ModelError(
                f"{type(self).__name__} {refused}, and the labels are numbers (--data.init_args.regression). Use "
                f"TransformerClassifier without class_weights, or data whose labels are classes."
            )
        self.bind(TextSizes.from_data(data), data.identity)
        if self.class_weights:
            counts = torch.from_numpy(data.class_counts).float()
            self._weights = counts.sum() / (len(counts) * counts)

    def bind(self, sizes: TextSizes, source: Mapping[str, object]) -> None:
        first = self.origin is None
        super().bind(sizes, source)
        if first:
            self.origin = Origin(replace(sizes, vectors=None, known=None), source)  # they are parameters now
            columns = {"gold": None, "outputs": sizes.classes}
            self._val, self._dev, self._test = ItemRows(columns), ItemRows(columns), ItemRows(columns)
            self._train_losses, self._eval_losses = (
                MetricCollection({name: Average() for name in self._names}, compute_groups=False) for _ in range(2)
            )

    @property
    def _regression(self) -> bool:
        return self.origin is not None and self.sizes.regression

    @property
    def _names(self) -> Sequence[str]:
        return (SQUARED_ERROR if self._regression else CROSS_ENTROPY, *self.term_names)

    def _terms(self, batch: TextBatch) -> tuple[Output, Mapping[str, Mean]]:
        output, extra = self.loss_terms(batch)
        if self._regression:
            error = nn.functional.mse_loss(output.logits[:, 0], batch.labels)
            return output, {SQUARED_ERROR: Mean(error, len(batch.labels)), **extra}
        weights = None if self._weights is None else self._weights.to(output.logits)
        count = len(batch.labels) if weights is None else weights[batch.labels].sum()
        loss = nn.functional.cross_entropy(output.logits, batch.labels, weights)
        return output, {CROSS_ENTROPY: Mean(loss, count), **extra}

    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        terms = self._terms(batch)[1] if len(batch.labels) else dict.fromkeys(self._names, Mean(no_loss(self), 0))
        means = over_devices(list(terms.values()), self)
        for name, mean in zip(terms, means, strict=True):
            self._train_losses[name].update(mean.value.detach() * mean.count, mean.count)
        return torch.stack([mean.value for mean in means]).sum()

    def _evaluate(self, batch: TextBatch, rows: ItemRows) -> None:
        """Gather the losses and probabilities of a batch, which may be empty."""
        terms: Mapping[str, Mean] = dict.fromkeys(self._names, Mean(torch.zeros((), device=self.device), 0))
        if len(batch.labels):
            output, terms = self._terms(batch)
            self._gather(rows, batch, output.logits)
        for name, term in terms.items():
            self._eval_losses[name].update(term.value * term.count, term.count)

    def on_train_epoch_end(self) -> None:
        """Log `train_loss` and each of its terms as `train_loss.<name>`."""
        losses = self._means(self._train_losses)
        self.log("train_loss", sum(losses.values()), sync_dist=True)
        self.log_dict({f"train_loss.{name}": value for name, value in losses.items()}, sync_dist=True)

    def _means(self, losses: MetricCollection) -> dict[str, float]:
        means = losses.compute()
        losses.reset()
        return {name: float(means[name]) for name in self._names}

    def _gather(self, metric: ItemRows, batch: TextBatch, logits: Tensor) -> None:
        values = logits.detach()
        if not self._regression:
            # Logarithms, taken in double precision on the CPU: as float32 near 1 probabilities would tie.
            values = values.cpu().double().log_softmax(-1).float().to(logits.device)
        metric.update(index=batch.index, gold=batch.labels, outputs=values)

    def validation_step(self, batch: TextBatch, batch_idx: int) -> None:
        self._evaluate(batch, self._val)

    def on_validation_epoch_end(self) -> None:
        """Log `val_loss`, and as `val_<name>` accuracy, F1, AUROC and MCC, or those of a regression."""
        scores = scores_of(self._joined(self._val), self.data.positive, prefix="val_", draws=0)
        means = {name: score.value for name, score in scores.items()}
        # The same on every device: they are joined already.
        self.log_dict({**means, "val_loss": sum(self._means(self._eval_losses).values())}, sync_dist=True)

    def update(self, batch: TextBatch) -> None:
        if batch.split == "test":
            self._evaluate(batch, self._test)
        elif len(batch.labels):
            self._gather(self._dev, batch, self(batch).logits)

    def outcome(self) -> Result:
        losses = self._means(self._eval_losses)
        dev, test = self._joined(self._dev), self._joined(self._test)
        audit = {**self._audit, **self.trained_for}
        return classification_result(self.experiment, self.data, dev, test, losses, audit)

    def _joined(self, metric: ItemRows) -> Classified | Regressed:
        found = metric.take()
        if self._regression:
            return Regressed(found["index"], found["gold"], found["outputs"][:, 0])
        return Classified(found["index"], found["gold"].astype(np.int64), np.exp(found["outputs"]))

    def on_predict_epoch_start(self) -> None:
        self._found: list[Prediction] = []

    def predict_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        """Probabilities `[batch, classes]` or numbers `[batch, 1]`; gathered for `predictions`, with the attention."""
        if not len(batch.index):
            return batch.index.new_zeros(0, self.sizes.classes, dtype=torch.float32)
        output: Output = self(batch)
        self._found += predictions_of(batch, output, self._regression)
        return output.logits if self._regression else output.logits.softmax(-1)

    def on_predict_epoch_end(self) -> None:
        """Fill `predictions`; see `prediction_table`."""
        data = self.data
        self.predictions = prediction_table(gathered(self._found), data.splits["test"], data.labels, data.vocabulary)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        kind = torch.optim.AdamW if self.optimizer == "adamw" else torch.optim.Adam
        amsgrad = self.optimizer == "amsgrad"
        adam = kind(self.parameter_groups(), self.learning_rate, amsgrad=amsgrad, fused=True)
        return {"optimizer": adam, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(adam, self.decay)}

    def predict_texts(self, texts: str | Sequence[str | tuple[str, str]], *, eval_tokens: int = 16384) -> pd.DataFrame:
        """Classify new texts, or pairs of texts; the figures are those of `train.py predict`.

        The texts, or one string, are as the corpus of the training has them; a batch has at most `eval_tokens`,
        padding included. The table has a row for each, see `prediction_table`; `id` counts them from 0.

        Raises:
            TrainingError: the classifier is not trained.
            UserError: there is no text, or one is empty.
        """
        given = new_items("texts", texts)
        self.on_predict_start()
        split = tokenized(given, self.sizes.vocabulary, self.sizes.tokenizer, self.sizes.options)
        split.warn_of_unknown("texts")
        training, found = self.training, list[Prediction]()
        self.eval()
        with torch.no_grad():
            for batch in split.batches(eval_tokens):
                batch = batch.to(self.device)
                found += predictions_of(batch, self(batch), self._regression)
        self.train(training)
        return prediction_table(found, split, self.sizes.labels, self.sizes.vocabulary).drop(columns="gold")

    def checkpoint_part(self) -> dict[str, Any]:
        # With the class of every part: some, such as a residual connection, have no parameters.
        part = super().checkpoint_part()
        for plain, name in ((part["sizes"], "labels"), (part["sizes"]["vocabulary"], "words")):
            plain[name] = list(plain[name])
        return {**part, "modules": _modules(self)}

    def sizes_from(self, part: Mapping[str, Any]) -> TextSizes:
        # A file of a former version has none: they are those of the run.
        if "sizes" not in part:
            if self.origin is None:
                raise TrainingError(
                    f"This checkpoint of {type(self).__name__} was written by a former version, which kept no "
                    f"vocabulary: give it to `python train.py`, with the --config of its run, or train again."
                )
            return self.sizes
        kept = dict(part["sizes"])
        words, tokenizer = kept["vocabulary"], kept["tokenizer"]
        kept |= {
            "vocabulary": Vocabulary(**{**words, "words": tuple(words["words"])}),
            "tokenizer": None if tokenizer is None else EncoderSpec(**tokenizer),
            "labels": tuple(kept["labels"]),
            "options": TokenOptions(**kept["options"]),
        }
        return TextSizes(**kept)

    def difference(self, trained: Origin[TextSizes], run: Origin[TextSizes]) -> str | None:
        other = [name for name, value in run.source.items() if trained.source.get(name) != value]
        if not other:
            return None
        return (
            f"The checkpoint was trained on other data ({' and '.join(other)} differ): give --data the corpus and the "
            f"options that it was trained with."
        )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # Files of a former version have their source under another name.
        part = checkpoint.get(self.checkpoint_key)
        if isinstance(part, Mapping) and "data" in part:
            checkpoint = {**checkpoint, self.checkpoint_key: {**part, "source": part["data"]}}
        super().on_load_checkpoint(checkpoint)

    def restore(self, part: Mapping[str, Any]) -> None:
        # Metrics, whose names begin with _, hold nothing that is trained.
        trained, here = ([one for one in names if one[0] != "_"] for names in (part["modules"], _modules(self)))
        for ours, theirs in ((here, trained), (trained, here)):
            if strange := [one for one in ours if one not in theirs]:
                raise TrainingError(other_model(f"which has {'no' if ours is here else 'a'} {strange[0]}"))


def _modules(model: nn.Module) -> list[str]:
    return [f"{name or 'model'} {type(module).__name__}" for name, module in model.named_modules()]


def classification_result(
    experiment: str,
    data: ClassificationDataModule,
    dev: Classified | Regressed,
    test: Classified | Regressed,
    losses: Mapping[str, float],
    audit: Mapping[str, object],
) -> Result:
    """The result of a classifier, from what it said of dev, where the epoch was chosen, and of test.

    The loss is the sum of its terms `losses` on test.

    Returns:
        `accuracy`, `f1`, `auroc` and `mcc` on test, and on dev as `dev.<name>`, with intervals; `loss` and
        `loss.<name>`; the `majority` baseline. Table `classes`, figure `confusion`, and a row for each text of test.
        Of a regression `pearson`, `spearman` and `mse`, that of always saying the mean of train as `mean.mse`, and the
        rows alone.
    """
    positive = data.positive
    unit: Unit = "ratio" if isinstance(test, Regressed) else "nats"
    scores = {
        **scores_of(test, positive),
        "loss": Estimate(sum(losses.values()), unit=unit),
        **{f"loss.{name}": Estimate(value, unit=unit) for name, value in losses.items()},
        **scores_of(dev, positive, prefix="dev."),
    }
    texts = {"text": test.texts, "id": [data.splits["test"].ids[text] for text in test.texts.tolist()]}
    if isinstance(test, Regressed):
        errors = {"squared_error": (test.gold - test.predicted) ** 2, "scored": np.ones_like(test.texts)}
        items = pd.DataFrame({**texts, "gold": test.gold, "predicted": test.predicted, **errors})
        constant = float(((test.gold - data.splits["train"].labels.mean()) ** 2).mean())
        scores["mean.mse"] = Estimate(constant, unit="ratio")
        ratios = {"mse": ("squared_error", "scored")}
        headline = ("pearson", "spearman", "mse")
        return Result("regression", scores, audit=audit, items=items, ratios=ratios, headline=headline)
    labels, gold, predicted = data.labels, test.gold, test.predicted
    names = np.array(labels, dtype=object)
    items = pd.DataFrame(
        {
            **texts,
            "gold": names[gold],
            "predicted": names[predicted],
            **ratio_columns(gold, predicted, positive),
            **{f"probability.{label}": test.probabilities[:, place] for place, label in enumerate(labels)},
        }
    )
    table = confusion(gold, predicted, len(labels))
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    return Result(
        experiment=experiment,
        scores={**scores, **majority_scores(data.class_counts, gold, positive)},
        tables={"classes": class_table(gold, predicted, labels)},
        figures={
            "confusion": HeatMap(
                "Confusion", shares, labels, labels, "gold", "predicted", "share of the class", unit="fraction"
            )
        },
        audit=audit,
        items=items,
        ratios={name: pair for name, pair in CLASSIFICATION_RATIOS.items() if set(pair) <= set(items)},
        headline=("accuracy", "f1", "majority.accuracy"),
    )


def scores_of(
    found: Classified | Regressed, positive: int | None, *, prefix: str = "", draws: int = 1000
) -> dict[str, Estimate]:
    """The scores of a split with their intervals; see `classification_scores` and `regression_scores`."""
    if isinstance(found, Regressed):
        return regression_scores(found.gold, found.predicted, prefix=prefix, draws=draws)
    return classification_scores(found.gold, found.probabilities, positive, prefix=prefix, draws=draws)


def predictions_of(batch: TextBatch, output: Output, regression: bool = False) -> list[Prediction]:
    """What an output says of each text of the batch."""
    probabilities = (output.logits if regression else output.logits.softmax(-1)).tolist()
    # A level over tokens has a position for each, delimiters too, so that weights and tokens stand side by side.
    weights = {
        name: _rows(level.weights, level.mask.sum(1) if name == SENTENCE else batch.lengths)
        for name, level in output.levels.items()
    }
    return [
        Prediction(text, probabilities[place], {name: rows[place] for name, rows in weights.items()})
        for place, text in enumerate(batch.index.tolist())
    ]


def _rows(weights: Tensor, lengths: Tensor) -> list[NDArray[np.float32]]:
    rows = weights.float().cpu().numpy()
    return [row[:length].copy() for row, length in zip(rows, lengths.tolist(), strict=True)]


def gathered(found: Sequence[Item]) -> list[Item]:
    """The items of all devices."""
    parts: list[Any] = [list(found)]
    if dist.is_available() and dist.is_initialized():
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, list(found))
    return [item for part in parts for item in part]


def prediction_table(
    found: Sequence[Prediction], split: TextSplit, labels: Sequence[str], vocabulary: Vocabulary
) -> pd.DataFrame:
    """Predictions on the texts of a split, in its order; without `labels` those of a regression.

    Returns:
        `id`, `gold`, `predicted`, `probability.<label>`; lists with an entry for each token: `words`, the word of the
        text that it is or is a piece of (None for delimiters), `tokens`, as the model knows it, `sentences`, its
        sentence from 0 (-1 for delimiters); `attention.<level>`, weights of each token, or of each sentence.
    """
    found = sorted(found, key=lambda prediction: prediction.text)
    texts = [prediction.text for prediction in found]
    best = [int(np.argmax(prediction.probabilities)) for prediction in found]
    gold = split.labels[texts].tolist()
    levels = found[0].weights if found else ()
    return pd.DataFrame(
        {
            "id": [split.ids[text] for text in texts],
            "gold": [labels[place] for place in gold] if labels else gold,
            "predicted": [labels[place] for place in best] if labels else [one.probabilities[0] for one in found],
            **{
                f"probability.{label}": [prediction.probabilities[place] for prediction in found]
                for place, label in enumerate(labels)
            },
            "words": [split.forms(text) for text in texts],
            "tokens": [[vocabulary.words[number] for number in split.tokens(text)] for text in texts],
            "sentences": [split.sentences(text) for text in texts],
            **{f"attention.{level}": [prediction.weights[level] for prediction in found] for level in levels},
        }
    )


def tokenized(
    texts: Sequence[str | tuple[str, str]], vocabulary: Vocabulary, tokenizer: EncoderSpec | None, options: TokenOptions
) -> TextSplit:
    """New texts, or pairs of texts, as a split without labels: each has the first one."""
    pairs = [(text, None) if isinstance(text, str) else text for text in texts]
    read = [LabelledText(str(place), text, "", place, pair) for place, (text, pair) in enumerate(pairs)]
    pieces = None if tokenizer is None else TextTokenizer(resolve(tokenizer))
    words, tokens, lost = tokenize(Path("texts"), read, pieces, options)
    return TextSplit("test", read, np.zeros(len(read), np.int64), words, tokens, lost, vocabulary)
