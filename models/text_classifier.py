"""Base of the text classifiers: output and predictions, loss, optimiser, validation, scores on test."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from numpy.typing import NDArray
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from attention_probing.attention.inputs import TextTokenizer
from attention_probing.attention.source import EncoderSpec, resolve
from attention_probing.corpora.labelled import LabelledText
from attention_probing.datamodules import ClassificationDataModule, TextBatch
from attention_probing.datamodules.classification import EVAL_TOKENS, class_counts
from attention_probing.datamodules.text_split import TextSplit
from attention_probing.datamodules.tokenization import TokenOptions, Vocabulary, tokenize
from attention_probing.metrics.classification import (
    CLASSIFICATION_RATIOS,
    class_table,
    classification_scores,
    confusion,
    majority_scores,
    mostly_one_label,
    ratio_columns,
    regression_scores,
)
from attention_probing.metrics.gathered import gather_items
from attention_probing.metrics.rows import ITEM, Rows
from attention_probing.models.checkpoints import TrainingError
from attention_probing.models.layers import EntmaxAttention
from attention_probing.models.trained import (
    Average,
    Mean,
    Origin,
    TrainedModule,
    no_loss,
    other_model,
    over_devices,
    training_audit,
)
from attention_probing.results import Estimate, Floats, HeatMap, Integers, Result, Unit, fill_sentence
from attention_probing.results.errors import UserError, check_numbers, new_items, setting

WORD, SENTENCE = "word", "sentence"  # attention over words, and over the sentences of a hierarchical model


@dataclass(frozen=True)
class Level:
    """Attention of one level of a classifier on a batch of texts.

    A level is the attention over words, the attention over sentences (in a hierarchical model), or the attention of
    one head of a transformer.

    Attributes:
        weights: `[batch, positions]`; they sum to one over the positions in the mask, or over each group, and are 0
            elsewhere.
        mask: Bool `[batch, positions]`, True for positions that may get weight.
        hidden: `[batch, positions, dim]`, the vectors that the weights average.
        groups: int64 `[batch, positions]`, group of each position, -1 outside the mask. A group is for instance the
            words of a sentence in a hierarchical model. None if all positions of a text are one group.
    """

    weights: Tensor
    mask: Tensor
    hidden: Tensor
    groups: Tensor | None = None


@dataclass(frozen=True)
class Output:
    """Logits and attention of a classifier on a batch.

    Attributes:
        logits: `[batch, classes]`.
        levels: Attention by name of the level, lowest first: `word`; in a hierarchical model `word` and `sentence`;
            in a transformer names such as `6-1`, layer and head counted from 1.
        embedded: Embedded words `[batch, time, size]`, input of the encoder.
    """

    logits: Tensor
    levels: Mapping[str, Level]
    embedded: Tensor


def checked_levels(imposed: Mapping[str, Tensor], levels: Collection[str], remedy: str = "") -> Mapping[str, Tensor]:
    """Check the names of attention levels (see `Level`), and return the given weights unchanged.

    Args:
        imposed: Attention weights by name of the level.
        levels: Names of the levels of the model.
        remedy: Last sentence of the error message.

    Raises:
        UserError: The model has no such level.
    """
    if strange := sorted(imposed.keys() - set(levels)):
        fault = f"No weights can be imposed on level {strange[0]!r}"
        raise UserError(f"{fault}; the model's attention levels are {', '.join(levels)}. {remedy}".strip())
    return imposed


@dataclass(frozen=True)
class TextSizes:
    """Sizes of the parameters of a classifier, and the settings that convert texts into its tokens.

    Attributes:
        classes: Number of classes; 1 in a regression.
        vocabulary: Tokens of the model; the numbers in a batch are indices into it.
        vectors: float32 `[vocabulary, vector_size]`, word vectors; None without word vectors, or if the parameters
            come from a checkpoint.
        known: Bool `[vocabulary]`, True for words that have a vector; None if `vectors` is None.
        tokenizer: Pretrained model whose tokenizer cuts the texts into tokens; None if tokens are the words between
            white space.
        labels: Names of the classes; empty in a regression.
        vector_size: Size of a word vector; None without word vectors.
        options: Options of the conversion into tokens.
        regression: True if the model predicts one number for each text.
    """

    classes: int
    vocabulary: Vocabulary
    vectors: Tensor | None = None
    known: Tensor | None = None
    tokenizer: EncoderSpec | None = None
    labels: tuple[str, ...] = ()
    vector_size: int | None = None
    options: TokenOptions = field(default_factory=TokenOptions)
    regression: bool = False

    @classmethod
    def from_data(cls, data: ClassificationDataModule) -> "TextSizes":
        """Return the sizes and settings of a classifier for the texts of a datamodule, after its `setup`.

        Classes, vocabulary, word vectors and tokenizer are those of the datamodule.
        """
        vectors, known = data.word_vectors() or (None, None)
        size = None if vectors is None else vectors.size(1)
        made = (vectors, known, data.tokenizer, tuple(data.labels), size, data.token_options, data.regression)
        return cls(len(data.labels) or 1, data.vocabulary, *made)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "TextSizes":
        """Return the sizes from the output of `dataclasses.asdict`, as a checkpoint stores them.

        A checkpoint permits nothing: code that comes with the tokenizer is not run.
        """
        parts = {"vocabulary": Vocabulary(**plain["vocabulary"]), "options": TokenOptions(**plain["options"])}
        tokenizer = plain["tokenizer"] and EncoderSpec(**{**plain["tokenizer"], "trust_remote_code": False})
        return cls(**{**plain, **parts, "tokenizer": tokenizer})

    def tokenize(self, texts: Sequence[str | tuple[str, str]]) -> TextSplit:
        """Tokenize new texts, or pairs of texts, and return them as a split `test`; the labels are placeholders, 0."""
        pairs = [(text, None) if isinstance(text, str) else text for text in texts]
        read = [LabelledText(str(place), text, "", place, pair) for place, (text, pair) in enumerate(pairs)]
        pieces = None if self.tokenizer is None else TextTokenizer(resolve(self.tokenizer))
        words, tokens, lost = tokenize(read, pieces, self.options)
        return TextSplit("test", read, np.zeros(len(read), np.int64), words, tokens, lost, self.vocabulary, pieces)


class Prediction(NamedTuple):
    """Prediction of a classifier for one text.

    Attributes:
        text: Index of the text in its split.
        probabilities: Probability of each class; in a regression a list of the predicted number alone.
        weights: Attention weights `[positions]` by name of the attention level, such as `word`.
    """

    text: int
    probabilities: list[float]
    weights: dict[str, NDArray[np.float32]]


def predictions_of(batch: TextBatch, output: Output, regression: bool) -> list[Prediction]:
    """Return the predictions of a classifier for the texts of a batch, one for each text.

    Args:
        batch: The texts.
        output: Output of the classifier.
        regression: True if the classifier predicts numbers.
    """
    probabilities = (output.logits if regression else output.logits.softmax(-1)).tolist()
    levels = {}
    for name, level in output.levels.items():
        # Levels over tokens have a weight for each token, delimiters too, as the columns of the table have.
        lengths = (level.mask.sum(1) if name == SENTENCE else batch.lengths).tolist()
        rows = level.weights.float().cpu().numpy()
        levels[name] = [row[:length].copy() for row, length in zip(rows, lengths, strict=True)]
    of_texts = [{name: rows[place] for name, rows in levels.items()} for place in range(len(probabilities))]
    return list(map(Prediction, batch.index.tolist(), probabilities, of_texts))


def prediction_table(found: Sequence[Prediction], split: TextSplit, labels: Sequence[str]) -> pd.DataFrame:
    """Return a table of the predictions for a split, with a row for each predicted text, in the order of the split.

    Args:
        found: Predictions for some or all texts of the split, in any order.
        split: The split.
        labels: Names of the classes; empty in a regression.

    Returns:
        Table with the columns `id`, `gold`, `predicted`, and `probability.<label>`. Further columns hold lists with
        an entry for each token: `words`, the word of the text that the token belongs to (None for delimiters);
        `tokens`, the token as it is read; `sentences`, the index of its sentence, from 0 (−1 for delimiters).
        `attention.<level>` has the attention weight of each token or, for the level `sentence`, of each sentence.
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
                f"probability.{label}": [one.probabilities[place] for one in found]
                for place, label in enumerate(labels)
            },
            "words": [split.forms(text) for text in texts],
            "tokens": [split.readable(text) for text in texts],
            "sentences": [split.sentences(text) for text in texts],
            **{f"attention.{level}": [prediction.weights[level] for prediction in found] for level in levels},
        }
    )


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


class Evaluated(nn.Module):
    """Losses and decisions of a classifier on the texts of a split.

    Args:
        regression: True if outputs and labels are numbers.
        names: Names of the terms of the loss.
    """

    def __init__(self, regression: bool, names: Sequence[str]) -> None:
        super().__init__()
        self.regression = regression
        self.losses = TermMeans(names)
        self.rows = Rows()

    def add(self, batch: TextBatch, logits: Tensor, terms: Mapping[str, Mean]) -> None:
        """Add a batch: its labels, the output for it, `[batch, classes]`, and the terms of its loss by name."""
        outputs = logits.detach()
        if not self.regression:
            # Logarithms, taken in double precision on the CPU: as float32 near 1 probabilities would tie.
            outputs = outputs.cpu().double().log_softmax(-1)
        self.rows.add(batch.index, gold=batch.labels, outputs=outputs)
        self.losses.add(terms)

    def decisions(self) -> Decisions:
        """Return the labels and outputs of all devices, and forget them."""
        rows = self.rows.take()
        if self.regression:
            return Decisions(rows[ITEM], rows["gold"], rows["outputs"][:, 0])
        return Decisions(rows[ITEM], rows["gold"].astype(np.int64), np.exp(rows["outputs"]))


class TextClassifier(TrainedModule[ClassificationDataModule, TextSizes]):
    """Base class of text classifiers whose attention can be read and replaced.

    A model from `load_from_checkpoint` classifies new texts with `predict_texts`, without a Trainer or a datamodule.

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
        decay: Factor of the learning rate after every epoch; 1 keeps it. Several epochs count as one until they have
            50 optimizer steps (`TrainedModule.every`).

    Attributes:
        term_names: Names of the terms of the loss beside the cross-entropy.
        audit: Facts about the parameters that a result reports, by name.
        regresses: True if models of this class can be regressions, which predict one number for a text.
        predictions: Table filled by `Trainer.predict`, in the form of `prediction_table`; None before.
    """

    checkpoint_key = "classifier"
    takes = ClassificationDataModule
    sizes_type = TextSizes
    experiment = "classification"
    regresses: ClassVar[bool] = False
    predictions: pd.DataFrame | None = None
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
        self._found: list[Prediction] = []

    @abstractmethod
    def forward(
        self, batch: TextBatch, *, embedded: Tensor | None = None, imposed: Mapping[str, Tensor] | None = None
    ) -> Output:
        """Encode the texts of a batch, attend, and return logits and attention.

        Args:
            batch: At least one text.
            embedded: `[batch, time, size]`, replaces the embeddings of the batch.
            imposed: Attention weights `[batch, positions]` by name of the attention level, see `Level`.
                They replace the model's own attention without being normalised.
        """

    @abstractmethod
    def decide(self, output: Output, imposed: Mapping[str, Tensor]) -> Tensor:
        """Return the logits `[..., batch, classes]` of texts with other attention than the model's own.

        Attention levels (see `Level`) below the lowest replaced level keep their weights. Levels above
        it recompute theirs, unless they are replaced too.

        Args:
            output: Output of `forward` for the texts.
            imposed: Attention weights `[..., batch, positions]` by name of the level, used without
                being normalised. The leading axes `...` are alternative weights for the same texts.
        """

    def origin_of(self, data: ClassificationDataModule) -> Origin[TextSizes]:
        if data.regression and not self.regresses:
            raise UserError(
                f"{type(self).__name__} decides between classes, but the labels are numbers "
                f"({setting('data.regression')}). Use TransformerClassifier, or data whose labels are classes."
            )
        return Origin(TextSizes.from_data(data), data.identity)

    def make_for(self, data: ClassificationDataModule) -> None:
        super().make_for(data)
        assert self.origin is not None
        sizes = replace(self.sizes, vectors=None, known=None)  # they are parameters now
        self.origin = replace(self.origin, sizes=sizes)
        main_term = "squared_error" if sizes.regression else "cross_entropy"
        names = (main_term, *self.term_names)
        self._train_losses = TermMeans(names)
        self._dev = Evaluated(sizes.regression, names)
        self._test = Evaluated(sizes.regression, names)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the class of every submodule too, to tell apart models that differ in submodules without parameters."""
        super().on_save_checkpoint(checkpoint)
        checkpoint[self.checkpoint_key]["modules"] = _modules(self)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint is of a model with the same submodules, and build or check the parameters.

        Raises:
            TrainingError: The checkpoint is of another class or model, or does not fit the data of the run.
        """
        super().on_load_checkpoint(checkpoint)
        found = checkpoint[self.checkpoint_key].get("modules", []), _modules(self)
        trained, here = ([one for one in modules if " Dropout" not in one] for modules in found)  # it decides nothing
        for ours, theirs, has in ((here, trained, "no"), (trained, here, "a")):
            if strange := [one for one in ours if one not in theirs]:
                raise TrainingError(other_model(f"which has {has} {strange[0]}"))

    def loss_terms(self, batch: TextBatch) -> tuple[Output, Mapping[str, Mean]]:
        """Return the output of `forward`, and the additional terms of the loss by name; none by default.

        Each additional term is already multiplied by its weight, and is a mean over texts or words with
        their number. The main term of the loss is not among them: the cross-entropy or, in a regression,
        the squared error.
        """
        return self(batch), {}

    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        if len(batch.labels):
            terms = all_terms(self, batch)[1]
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
        self.log_dict(learned_alphas(self))

    def validation_step(self, batch: TextBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Gather the losses and decisions of a batch of dev or test, which may be empty."""
        if len(batch.labels):
            output, terms = all_terms(self, batch)
            evaluated = self._test if batch.split == "test" else self._dev
            evaluated.add(batch, output.logits, terms)

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        """Log `val_loss`, and the scores on dev as `val_<name>`.

        The scores are `accuracy`, `f1`, `auroc` and `mcc`, or in a regression `pearson`, `spearman` and `mse`.
        """
        scores = self._dev.decisions().scores(self.data.positive, prefix="val_", draws=0)
        means = {name: score.value for name, score in scores.items()}
        # The same on every device: they are joined already.
        self.log_dict({**means, "val_loss": sum(self._dev.losses.take().values())})

    def outcome(self) -> Result:
        self._dev.losses.take()
        audit = {**self.audit, **training_audit(self), **learned_alphas(self)}
        dev, test = self._dev.decisions(), self._test.decisions()
        return classification_result(self.data, dev, test, self._test.losses.take(), audit)

    def predict_texts(
        self, texts: str | Sequence[str | tuple[str, str]], *, eval_tokens: int = EVAL_TOKENS
    ) -> pd.DataFrame:
        """Classify new texts, or pairs of texts, with the same results as `probing predict`.

        Args:
            texts: Texts in the form of the training corpus; a single text may be given as a string.
            eval_tokens: Largest size of a batch, the number of its texts times the number of tokens of the longest.

        Returns:
            A row for each text, with the columns of `prediction_table` except `gold`; `id` counts from 0.

        Raises:
            TrainingError: The classifier is not trained.
            UserError: There is no text, or one is empty.
        """
        given = new_items("texts", texts)
        self.refuse_untrained()
        split = self.sizes.tokenize(given)
        split.warn_of_unknown("texts")
        training, found = self.training, list[Prediction]()
        self.eval()
        with torch.no_grad():
            for batch in split.batches(eval_tokens):
                batch = batch.to(self.device)
                found += predictions_of(batch, self(batch), self.sizes.regression)
        self.train(training)
        return prediction_table(found, split, self.sizes.labels).drop(columns="gold")

    def predict_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        """Return probabilities `[batch, classes]`, or in a regression predicted numbers `[batch, 1]`.

        They are also collected, with the attention, for the table `predictions`.
        """
        if not len(batch.index):
            return batch.index.new_zeros(0, self.sizes.classes, dtype=torch.float32)
        output: Output = self(batch)
        self._found += predictions_of(batch, output, self.sizes.regression)
        return output.logits if self.sizes.regression else output.logits.softmax(-1)

    def on_predict_epoch_end(self) -> None:
        """Fill `predictions` with the table of all predictions, made by `prediction_table`."""
        found, self._found = gather_items(self._found), []
        self.predictions = prediction_table(found, self.data.splits["test"], self.sizes.labels)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        kind = torch.optim.AdamW if self.optimizer == "adamw" else torch.optim.Adam
        amsgrad = self.optimizer == "amsgrad"
        groups = parameter_groups(self, self.weight_decay, lambda name, _: not name.startswith(_ATTENTION))
        adam = kind(groups, self.learning_rate, amsgrad=amsgrad, fused=True)
        return {"optimizer": adam, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(adam, self.decay)}


_ATTENTION = ("attention.", "sentence_attention.")
"""Beginnings of the names of parameters of attention."""


def parameter_groups(
    model: nn.Module, weight_decay: float, decays: Callable[[str, nn.Parameter], bool]
) -> list[dict[str, Any]]:
    """Return the trained parameters of a model as two groups for the optimiser: with and without weight decay.

    Args:
        model: The model.
        weight_decay: Weight decay of the first group.
        decays: Function that returns True for a parameter of the first group, given with its name in the model.
    """
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[decays(name, parameter)].append(parameter)
    decay = {True: weight_decay, False: 0.0}
    return [{"params": found, "weight_decay": decay[key]} for key, found in groups.items() if found]


def learned_alphas(model: nn.Module) -> dict[str, float]:
    """Return each learned α of `EntmaxAttention` in a model, as `attention.alpha` or `sentence_attention.alpha`."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, EntmaxAttention)}
    learned = {name: module.alpha for name, module in found.items() if module.learned}
    return {f"{name}.alpha": torch.as_tensor(alpha).item() for name, alpha in learned.items()}


def all_terms(model: TextClassifier, batch: TextBatch) -> tuple[Output, Mapping[str, Mean]]:
    """Return the output of `forward`, and all terms of the loss, each times its weight, by name."""
    output, extra = model.loss_terms(batch)
    if model.sizes.regression:
        name, loss = "squared_error", nn.functional.mse_loss(output.logits[:, 0], batch.labels)
    else:
        name, loss = "cross_entropy", nn.functional.cross_entropy(output.logits, batch.labels)
    return output, {name: Mean(loss, len(batch.labels)), **extra}


def _modules(model: nn.Module) -> list[str]:
    # Metrics, whose names begin with _, have no trained parameters.
    return [f"{name or 'model'} {type(part).__name__}" for name, part in model.named_modules() if name[:1] != "_"]


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
        answer = "Pearson's r of predicted and gold numbers of {n} texts is {pearson:ratio}; the mean squared error is "
        answer = fill_sentence(answer + "{mse}, that of the mean of train {mean.mse}", scores, n=len(items))
        return Result("regression", scores, audit=audit, items=items, ratios=ratios, headline=headline, answer=answer)
    labels, gold, predicted = data.labels, test.gold, test.outputs.argmax(axis=1)
    names = np.array(labels, dtype=object)
    columns = {**texts, "gold": names[gold], "predicted": names[predicted], **ratio_columns(gold, predicted, positive)}
    probabilities = {f"probability.{label}": test.outputs[:, place] for place, label in enumerate(labels)}
    items = pd.DataFrame({**columns, **probabilities})
    table = confusion(gold, predicted, len(labels))
    if one_label := mostly_one_label(gold, predicted, labels):
        rank_zero_warn(f"The classifier {one_label}: compare its scores with those of `majority`. Train it again.")
    scores |= majority_scores(class_counts(data), gold, positive)
    answer = "the classifier is right on {accuracy} of {n} texts; always the most frequent label on {majority.accuracy}"
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    axes = ("gold", "predicted", "share of the class")
    return Result(
        TextClassifier.experiment,
        scores=scores,
        answer=fill_sentence(answer + (f"; it {one_label}" if one_label else ""), scores, n=len(items)),
        tables={"classes": class_table(gold, predicted, labels)},
        figures={"confusion": HeatMap("Confusion", shares, labels, labels, *axes, unit="fraction")},
        audit=audit,
        items=items,
        ratios={name: pair for name, pair in CLASSIFICATION_RATIOS.items() if set(pair) <= set(items)},
        shares=("accuracy",),
        headline=("accuracy", "f1", "majority.accuracy"),
    )
