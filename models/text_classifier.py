"""Base of the text classifiers: their output, their sizes, loss, optimiser, validation, test and prediction."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from attention_probing.attention.inputs import TextTokenizer
from attention_probing.attention.source import EncoderSpec, resolve
from attention_probing.corpora.labelled import LabelledText
from attention_probing.datamodules import ClassificationDataModule, TextBatch
from attention_probing.datamodules.classification import EVAL_TOKENS
from attention_probing.datamodules.text_split import TextSplit
from attention_probing.datamodules.tokenization import TokenOptions, Vocabulary, tokenize
from attention_probing.metrics.gathered import gather_items
from attention_probing.models.checkpoints import TrainingError
from attention_probing.models.decisions import SplitDecisions, TermMeans, classification_result
from attention_probing.models.layers import EntmaxAttention
from attention_probing.models.losses import Mean, no_loss, over_devices
from attention_probing.models.predictions import Prediction, prediction_table
from attention_probing.models.trained import Origin, TrainedModule, other_model, refuse_untrained, training_audit
from attention_probing.results import Result
from attention_probing.results.errors import UserError, new_items, setting
from attention_probing.results.options import Factor, Rate

WORD = "word"
"""Name of the level of attention over words."""
SENTENCE = "sentence"
"""Name of the level of attention over the sentences of a hierarchical model."""


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


def check_levels(imposed: Mapping[str, Tensor], levels: Collection[str], remedy: str = "") -> Mapping[str, Tensor]:
    """Check the names of attention levels (see `Level`), and return the given weights unchanged.

    Args:
        imposed: Attention weights by name of the level.
        levels: Names of the levels of the model.
        remedy: Last sentence of the error message.

    Raises:
        UserError: The model has no such level.
    """
    unknown = sorted(imposed.keys() - set(levels))
    if unknown:
        fault = f"No weights can be imposed on level {unknown[0]!r}"
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
        vectors, has_vector = data.word_vectors() or (None, None)
        return cls(
            classes=len(data.labels) or 1,
            vocabulary=data.vocabulary,
            vectors=vectors,
            known=has_vector,
            tokenizer=data.tokenizer,
            labels=tuple(data.labels),
            vector_size=None if vectors is None else vectors.size(1),
            options=data.token_options,
            regression=data.regression,
        )

    @classmethod
    def origin_of(cls, data: ClassificationDataModule) -> "Origin[TextSizes]":
        """Return the sizes that a classifier of the datamodule's texts has, and the identity of the texts."""
        return Origin(cls.from_data(data), data.identity)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "TextSizes":
        """Return the sizes from the output of `dataclasses.asdict`, as a checkpoint stores them.

        A checkpoint permits nothing: code that comes with the tokenizer is not run.
        """
        tokenizer = None
        if plain["tokenizer"]:
            tokenizer = EncoderSpec(**{**plain["tokenizer"], "trust_remote_code": False})
        vocabulary = Vocabulary(**plain["vocabulary"])
        options = TokenOptions(**plain["options"])
        return cls(**{**plain, "vocabulary": vocabulary, "options": options, "tokenizer": tokenizer})

    def tokenize(self, texts: Sequence[str | tuple[str, str]]) -> TextSplit:
        """Tokenize new texts, or pairs of texts, and return them as a split `test`; the labels are placeholders, 0."""
        labelled = []
        for number, item in enumerate(texts):
            text, pair = (item, None) if isinstance(item, str) else item
            labelled.append(LabelledText(str(number), text, "", number, pair))
        pieces = None
        if self.tokenizer is not None:
            pieces = TextTokenizer(resolve(self.tokenizer))
        words, tokens, lost = tokenize(labelled, pieces, self.options)
        labels = np.zeros(len(labelled), np.int64)
        return TextSplit("test", labelled, labels, words, tokens, lost, self.vocabulary, pieces)


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
        learning_rate: Rate = 1e-3,
        optimizer: Literal["adam", "amsgrad", "adamw"] = "adam",
        weight_decay: Rate = 0.0,
        decay: Factor = 1.0,
    ) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.optimizer = optimizer
        self.weight_decay = weight_decay
        self.decay = decay
        self.audit: dict[str, object] = {}
        self._predicted: list[Prediction] = []

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

    def make_for(self, data: ClassificationDataModule) -> None:
        if data.regression and not self.regresses:
            raise UserError(
                f"{type(self).__name__} decides between classes, but the labels are numbers "
                f"({setting('data.regression')}). Use TransformerClassifier, or data whose labels are classes."
            )
        super().make_for(data)
        self.sizes = replace(self.sizes, vectors=None, known=None)  # they are parameters now
        main_term = "squared_error" if self.sizes.regression else "cross_entropy"
        names = (main_term, *self.term_names)
        self._train_losses = TermMeans(names)
        self._dev = SplitDecisions(self.sizes.regression, names)
        self._test = SplitDecisions(self.sizes.regression, names)

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
        trained = checkpoint[self.checkpoint_key].get("modules", [])
        modules = _modules(self)
        # Dropout has no part in a decision.
        missing = [module for module in modules if module not in trained and " Dropout" not in module]
        further = [module for module in trained if module not in modules and " Dropout" not in module]
        if missing:
            raise TrainingError(other_model(f"which has no {missing[0]}"))
        if further:
            raise TrainingError(other_model(f"which has a {further[0]}"))

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
            decisions = self._test if batch.split == "test" else self._dev
            decisions.add(batch, output.logits, terms)

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        """Log `val_loss`, and the scores on dev as `val_<name>`.

        The scores are `accuracy`, `f1`, `auroc` and `mcc`, or in a regression `pearson`, `spearman` and `mse`.
        """
        scores = self._dev.decisions().scores(self.data.positive, prefix="val_", draws=0)
        loss = sum(self._dev.losses.take().values())
        # The same on every device: they are joined already.
        self.log_dict({name: score.value for name, score in scores.items()})
        self.log("val_loss", loss)

    def outcome(self) -> Result:
        self._dev.losses.take()
        audit = {**self.audit, **training_audit(self), **learned_alphas(self)}
        dev = self._dev.decisions()
        test = self._test.decisions()
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
        refuse_untrained(self)
        split = self.sizes.tokenize(given)
        split.warn_of_unknown("texts")
        predictions: list[Prediction] = []
        training = self.training
        self.eval()
        with torch.no_grad():
            for batch in split.batches(eval_tokens):
                batch = batch.to(self.device)
                predictions.extend(predict_batch(batch, self(batch), self.sizes))
        self.train(training)
        return prediction_table(predictions, split, self.sizes.labels).drop(columns="gold")

    def predict_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        """Return probabilities `[batch, classes]`, or in a regression predicted numbers `[batch, 1]`.

        They are also collected, with the attention, for the table `predictions`.
        """
        if not len(batch.index):
            return batch.index.new_zeros(0, self.sizes.classes, dtype=torch.float32)
        output: Output = self(batch)
        self._predicted.extend(predict_batch(batch, output, self.sizes))
        return probabilities_of(output, self.sizes)

    def on_predict_epoch_end(self) -> None:
        """Fill `predictions` with the table of all predictions, made by `prediction_table`."""
        predictions = gather_items(self._predicted)
        self._predicted = []
        self.predictions = prediction_table(predictions, self.data.splits["test"], self.sizes.labels)

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
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            group = decayed if decays(name, parameter) else others
            group.append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def learned_alphas(model: nn.Module) -> dict[str, float]:
    """Return each learned α of `EntmaxAttention` in a model, as `attention.alpha` or `sentence_attention.alpha`."""
    alphas = {}
    for name, module in model.named_modules():
        if isinstance(module, EntmaxAttention) and module.learned:
            alphas[f"{name}.alpha"] = torch.as_tensor(module.alpha).item()
    return alphas


def probabilities_of(output: Output, sizes: TextSizes) -> Tensor:
    """Return the probabilities of the classes `[batch, classes]`, or in a regression the numbers `[batch, 1]`."""
    return output.logits if sizes.regression else output.logits.softmax(-1)


def predict_batch(batch: TextBatch, output: Output, sizes: TextSizes) -> list[Prediction]:
    """Return the predictions for the texts of a batch, one for each text."""
    predictions = []
    for text, probabilities in zip(batch.index.tolist(), probabilities_of(output, sizes).tolist(), strict=True):
        predictions.append(Prediction(text, probabilities, {}))
    for name, level in output.levels.items():
        # Levels over tokens have a weight for each token, delimiters too, as the columns of the table have.
        lengths = level.mask.sum(1) if name == SENTENCE else batch.lengths
        rows = level.weights.float().cpu().numpy()
        for prediction, row, length in zip(predictions, rows, lengths.tolist(), strict=True):
            prediction.weights[name] = row[:length].copy()
    return predictions


def all_terms(model: TextClassifier, batch: TextBatch) -> tuple[Output, Mapping[str, Mean]]:
    """Return the output of `forward`, and all terms of the loss, each times its weight, by name."""
    output, further = model.loss_terms(batch)
    if model.sizes.regression:
        name = "squared_error"
        loss = nn.functional.mse_loss(output.logits[:, 0], batch.labels)
    else:
        name = "cross_entropy"
        loss = nn.functional.cross_entropy(output.logits, batch.labels)
    return output, {name: Mean(loss, len(batch.labels)), **further}


def _modules(model: nn.Module) -> list[str]:
    """Return name and class of the model and each of its modules; metrics, named `_…`, have no trained parameters."""
    names = []
    for name, part in model.named_modules():
        if not name.startswith("_"):
            names.append(f"{name or 'model'} {type(part).__name__}")
    return names
