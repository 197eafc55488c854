"""Text classifiers whose attention can be read and replaced: their outputs, checkpoints and predictions."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attention.encoder import EncoderSpec, resolve
from attention.inputs import TextTokenizer
from corpora.labelled import LabelledText
from datamodules import ClassificationDataModule, TextBatch
from datamodules.classification import TextSplit
from datamodules.tokenization import TokenOptions, Vocabulary, tokenize
from models.checkpoints import TrainingError
from models.trained import Origin, TrainedModule, gathered, other_model
from results.errors import UserError, new_items

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
        """Return the sizes from the output of `dataclasses.asdict`, as a checkpoint stores them."""
        parts = {"vocabulary": Vocabulary(**plain["vocabulary"]), "options": TokenOptions(**plain["options"])}
        tokenizer = plain["tokenizer"] and EncoderSpec(**plain["tokenizer"])
        return cls(**{**plain, **parts, "tokenizer": tokenizer})

    def tokenize(self, texts: Sequence[str | tuple[str, str]]) -> TextSplit:
        """Tokenize new texts, or pairs of texts, and return them as a split `test`; the labels are placeholders, 0."""
        pairs = [(text, None) if isinstance(text, str) else text for text in texts]
        read = [LabelledText(str(place), text, "", place, pair) for place, (text, pair) in enumerate(pairs)]
        pieces = None if self.tokenizer is None else TextTokenizer(resolve(self.tokenizer))
        words, tokens, lost = tokenize(Path("texts"), read, pieces, self.options)
        return TextSplit("test", read, np.zeros(len(read), np.int64), words, tokens, lost, self.vocabulary)


class TextModel(TrainedModule[ClassificationDataModule, TextSizes]):
    """Base class of text classifiers whose attention can be read and replaced.

    It loads checkpoints and predicts; `TextClassifier` adds the training on labelled texts. A model
    from `load_from_checkpoint` classifies new texts with `predict_texts`, without a Trainer or a
    datamodule.

    Attributes:
        regresses: True if models of this class can be regressions, which predict one number for a
            text.
        predictions: Table filled by `Trainer.predict`, in the form of `prediction_table`; None before.
    """

    checkpoint_key = "classifier"
    checkpoint_entry = "modules"
    takes = ClassificationDataModule
    sizes_type = TextSizes
    regresses: ClassVar[bool] = False
    predictions: pd.DataFrame | None = None

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

    def value_norms(self, output: Output, level: str) -> Tensor | None:
        """Return the norm of what each position adds under an attention weight of 1, `[batch, positions]`.

        It is None where the logits themselves are linear in the weights, so that their gradient gives it.

        Args:
            output: Output of `forward` for the texts.
            level: Name of a level of attention.
        """
        return None

    def setup(self, stage: str) -> None:
        """Create the parameters of the model for the datamodule of the run."""
        self.make_for(self.data)

    def make_for(self, data: ClassificationDataModule) -> None:
        """Create the parameters of the model for a datamodule, after its `setup`.

        Raises:
            UserError: The model does not support these data.
        """
        self.bind(TextSizes.from_data(data), data.identity)

    def checkpoint_part(self) -> dict[str, Any]:
        """Return the entries of a checkpoint that describe the model; its weights are stored apart.

        The entries are the training data, the sizes of the parameters, and the class of every submodule. The
        classes also tell apart models that differ in submodules without parameters.
        """
        return {**super().checkpoint_part(), "modules": _modules(self)}

    def difference(self, trained: Origin[TextSizes], run: Origin[TextSizes]) -> str | None:
        """Return a message if vocabulary, labels, tokenizer or delimiters differ from the training's.

        Args:
            trained: Data and sizes of the training.
            run: Data and sizes of this run.

        Returns:
            The message; None if they are equal.
        """
        other = [name for name, value in run.source.items() if trained.source.get(name) != value]
        if not other:
            return None
        return (
            f"The checkpoint was trained on other data (difference in {' and '.join(other)}): give --data the corpus "
            f"and the options that it was trained with."
        )

    def restore(self, part: Mapping[str, Any]) -> None:
        """Check that the checkpoint is of a model with the same submodules; nothing is loaded.

        Args:
            part: Part of the checkpoint that `checkpoint_part` has made.

        Raises:
            TrainingError: The checkpoint is of a model with other submodules.
        """
        trained, here = part["modules"], _modules(self)
        for ours, theirs, has in ((here, trained, "no"), (trained, here, "a")):
            if strange := [one for one in ours if one not in theirs]:
                raise TrainingError(other_model(f"which has {has} {strange[0]}"))

    def predict_texts(self, texts: str | Sequence[str | tuple[str, str]], *, eval_tokens: int = 16384) -> pd.DataFrame:
        """Classify new texts, or pairs of texts, with the same results as `train.py predict`.

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
        self.on_predict_start()
        split = self.sizes.tokenize(given)
        split.warn_of_unknown("texts")
        training, found = self.training, list[Prediction]()
        self.eval()
        with torch.no_grad():
            for batch in split.batches(eval_tokens):
                batch = batch.to(self.device)
                found += predictions_of(batch, self(batch), self.sizes.regression)
        self.train(training)
        return prediction_table(found, split, self.sizes.labels, self.sizes.vocabulary).drop(columns="gold")

    def on_predict_epoch_start(self) -> None:
        self._found: list[Prediction] = []

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
        data = self.data
        self.predictions = prediction_table(gathered(self._found), data.splits["test"], data.labels, data.vocabulary)


def _modules(model: nn.Module) -> list[str]:
    # Metrics, whose names begin with _, have no trained parameters.
    return [f"{name or 'model'} {type(part).__name__}" for name, part in model.named_modules() if name[:1] != "_"]


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


def prediction_table(
    found: Sequence[Prediction], split: TextSplit, labels: Sequence[str], vocabulary: Vocabulary
) -> pd.DataFrame:
    """Return a table of the predictions for a split, with a row for each predicted text, in the order of the split.

    Args:
        found: Predictions for some or all texts of the split, in any order.
        split: The split.
        labels: Names of the classes; empty in a regression.
        vocabulary: Tokens of the model.

    Returns:
        Table with the columns `id`, `gold`, `predicted`, and `probability.<label>`. Further columns hold lists with
        an entry for each token: `words`, the word of the text that the token belongs to (None for delimiters);
        `tokens`, the token in the vocabulary; `sentences`, the index of its sentence, from 0 (−1 for delimiters).
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
            "tokens": [[vocabulary.words[number] for number in split.tokens(text)] for text in texts],
            "sentences": [split.sentences(text) for text in texts],
            **{f"attention.{level}": [prediction.weights[level] for prediction in found] for level in levels},
        }
    )
