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
from results.errors import UserError, new_items
from training import Origin, TrainedModule, TrainingError, gathered
from training.lifecycle import other_model

WORD, SENTENCE = "word", "sentence"  # attention over words, and over the sentences of a hierarchical model


@dataclass(frozen=True)
class Level:
    """Attention of one level of a classifier over a batch.

    A level is attention over words, over sentences (in a hierarchical model), or of one head of a transformer.

    Attributes:
        weights: `[batch, positions]`; they sum to one over the mask, or over each group of positions, and are 0
            elsewhere.
        mask: bool `[batch, positions]`, True for positions that may get weight.
        hidden: `[batch, positions, dim]`, the vectors that the weights average.
        groups: int64 `[batch, positions]`, group of each position, -1 outside the mask. Weights sum to one over a
            group, for instance over the words of a sentence in a hierarchical model. None if all positions of a text
            are one group.
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
        levels: attention by level, lowest first: `word`; in a hierarchical model `word` and `sentence`; in a
            transformer `6-1`, layer and head counted from 1.
        embedded: `[batch, time, size]`, input of the encoder.
    """

    logits: Tensor
    levels: Mapping[str, Level]
    embedded: Tensor


def checked_levels(imposed: Mapping[str, Tensor], levels: Collection[str], remedy: str = "") -> Mapping[str, Tensor]:
    """Return `imposed`, attention weights by level, unchanged, after a check of the names of the levels.

    Args:
        imposed: attention weights by level.
        levels: names of the levels of the model.
        remedy: last sentence of the error message.

    Raises:
        UserError: the model has no such level.
    """
    if strange := sorted(imposed.keys() - set(levels)):
        fault = (
            f"No weights can be imposed on level {strange[0]!r}; the model's attention levels are {', '.join(levels)}."
        )
        raise UserError(f"{fault} {remedy}".strip())
    return imposed


@dataclass(frozen=True)
class TextSizes:
    """Sizes of the parameters of a classifier, and the conversion of texts into its tokens.

    Attributes:
        classes: number of classes; 1 in a regression.
        vocabulary: tokens of the model; the tokens of a batch are indices into it.
        vectors: float32 `[vocabulary, vector_size]`, word vectors; None without word vectors, and for parameters from a
            checkpoint.
        known: bool `[vocabulary]`, words that have a vector; None if `vectors` is None.
        tokenizer: pretrained model whose tokenizer makes the tokens; None for whitespace words.
        labels: names of the classes; empty in a regression.
        vector_size: size of a word vector; None without word vectors.
        options: options of the conversion into tokens.
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
        """Return the sizes of the parameters for a datamodule that is set up."""
        vectors, known = data.word_vectors() or (None, None)
        size = None if vectors is None else vectors.size(1)
        made = (vectors, known, data.tokenizer, tuple(data.labels), size, data.token_options, data.regression)
        return cls(len(data.labels) or 1, data.vocabulary, *made)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "TextSizes":
        """Return the sizes of the parameters from their plain form, the result of `dataclasses.asdict`."""
        tokenizer = plain["tokenizer"]
        parts = {
            "vocabulary": Vocabulary(**plain["vocabulary"]),
            "tokenizer": None if tokenizer is None else EncoderSpec(**tokenizer),
            "options": TokenOptions(**plain["options"]),
        }
        return cls(**{**plain, **parts})

    def tokenize(self, texts: Sequence[str | tuple[str, str]]) -> TextSplit:
        """Return new texts, or pairs of texts, as a tokenized split `test`; each label is a placeholder, 0."""
        pairs = [(text, None) if isinstance(text, str) else text for text in texts]
        read = [LabelledText(str(place), text, "", place, pair) for place, (text, pair) in enumerate(pairs)]
        pieces = None if self.tokenizer is None else TextTokenizer(resolve(self.tokenizer))
        words, tokens, lost = tokenize(Path("texts"), read, pieces, self.options)
        return TextSplit("test", read, np.zeros(len(read), np.int64), words, tokens, lost, self.vocabulary)


class TextModel(TrainedModule[ClassificationDataModule, TextSizes]):
    """A text classifier whose attention can be read and replaced, with its checkpoint and its predictions.

    A model from `load_from_checkpoint` classifies new texts by `predict_texts`, without Trainer and datamodule.

    Attributes:
        regresses: True if the class of models can predict numbers.
        predictions: table filled by `Trainer.predict`; see `prediction_table`.
    """

    checkpoint_key = "classifier"
    checkpoint_entry = "modules"
    takes = ClassificationDataModule
    regresses: ClassVar[bool] = False
    predictions: pd.DataFrame | None = None

    @abstractmethod
    def forward(
        self, batch: TextBatch, *, embedded: Tensor | None = None, imposed: Mapping[str, Tensor] | None = None
    ) -> Output:
        """Encode the texts of a batch, attend, and return logits and attention.

        Args:
            batch: at least one text.
            embedded: `[batch, time, size]`, replaces the embeddings of the batch.
            imposed: attention weights `[batch, positions]` by level, which replace the model's attention; used as they
                are.
        """

    @abstractmethod
    def decide(self, output: Output, imposed: Mapping[str, Tensor]) -> Tensor:
        """Return logits `[..., batch, classes]` of the texts of an output under other attention.

        Args:
            output: output of `forward`.
            imposed: attention weights `[..., batch, positions]` by level, used as they are. Levels below the lowest
                replaced level keep their weights; levels above it recompute theirs.
        """

    def prepare(self) -> None:
        """Make the parameters of the model for the data of the run."""
        self.make_for(self.data)

    def make_for(self, data: ClassificationDataModule) -> None:
        """Make the parameters of the model for a datamodule that is set up.

        Raises:
            UserError: model and data do not fit.
        """
        self.bind(TextSizes.from_data(data), data.identity)

    def checkpoint_part(self) -> dict[str, Any]:
        """Return the model's part of a checkpoint: the origin of the parameters, and the class of every submodule.

        Classes are stored because some submodules have no parameters.
        """
        return {**super().checkpoint_part(), "modules": _modules(self)}

    def sizes_from(self, part: Mapping[str, Any]) -> TextSizes:
        """Return the sizes of the parameters from the model's part of a checkpoint."""
        return TextSizes.from_plain(part["sizes"])

    def difference(self, trained: Origin[TextSizes], run: Origin[TextSizes]) -> str | None:
        """Return a message if corpus, vocabulary or labels differ between training and run; None if they are equal."""
        other = [name for name, value in run.source.items() if trained.source.get(name) != value]
        if not other:
            return None
        return (
            f"The checkpoint was trained on other data ({' and '.join(other)} differ): give --data the corpus and the "
            f"options that it was trained with."
        )

    def restore(self, part: Mapping[str, Any]) -> None:
        """Raise TrainingError if the checkpoint was made by a model with other submodules."""
        trained, here = part["modules"], _modules(self)
        for ours, theirs, has in ((here, trained, "no"), (trained, here, "a")):
            if strange := [one for one in ours if one not in theirs]:
                raise TrainingError(other_model(f"which has {has} {strange[0]}"))

    def predict_texts(self, texts: str | Sequence[str | tuple[str, str]], *, eval_tokens: int = 16384) -> pd.DataFrame:
        """Classify new texts, or pairs of texts, with the same numbers as `train.py predict`.

        Args:
            texts: texts in the form of the training corpus; one text may be a string.
            eval_tokens: largest size of a batch: texts × tokens of the longest.

        Returns:
            A row for each text, with the columns of `prediction_table` except `gold`; `id` counts from 0.

        Raises:
            TrainingError: the classifier is not trained.
            UserError: there is no text, or one is empty.
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
        """Return probabilities `[batch, classes]`, or in a regression `[batch, 1]`; keep them and the attention."""
        if not len(batch.index):
            return batch.index.new_zeros(0, self.sizes.classes, dtype=torch.float32)
        output: Output = self(batch)
        self._found += predictions_of(batch, output, self.sizes.regression)
        return output.logits if self.sizes.regression else output.logits.softmax(-1)

    def on_predict_epoch_end(self) -> None:
        """Fill `predictions`, the table of all predictions; see `prediction_table`."""
        data = self.data
        self.predictions = prediction_table(gathered(self._found), data.splits["test"], data.labels, data.vocabulary)


def _modules(model: nn.Module) -> list[str]:
    # Metrics, whose names begin with _, have no trained parameters.
    return [f"{name or 'model'} {type(part).__name__}" for name, part in model.named_modules() if name[:1] != "_"]


class Prediction(NamedTuple):
    """Prediction of a classifier for one text.

    Attributes:
        text: index of the text in its split.
        probabilities: probability of each class; in a regression the one predicted number.
        weights: attention weights `[positions]` by level.
    """

    text: int
    probabilities: list[float]
    weights: dict[str, NDArray[np.float32]]


def predictions_of(batch: TextBatch, output: Output, regression: bool) -> list[Prediction]:
    """Return the predictions of a classifier for the texts of a batch, one for each text.

    Args:
        batch: the texts.
        output: output of the classifier.
        regression: True if the classifier predicts numbers.
    """
    probabilities = (output.logits if regression else output.logits.softmax(-1)).tolist()
    levels = {}
    for name, level in output.levels.items():
        # Levels over tokens have a weight for each token, delimiters too, as the columns of the table have.
        lengths = (level.mask.sum(1) if name == SENTENCE else batch.lengths).tolist()
        rows = level.weights.float().cpu().numpy()
        levels[name] = [row[:length].copy() for row, length in zip(rows, lengths, strict=True)]
    return [
        Prediction(text, probabilities[place], {name: rows[place] for name, rows in levels.items()})
        for place, text in enumerate(batch.index.tolist())
    ]


def prediction_table(
    found: Sequence[Prediction], split: TextSplit, labels: Sequence[str], vocabulary: Vocabulary
) -> pd.DataFrame:
    """Return a table of the predictions for a split, a row for each text, in the order of the split.

    Args:
        found: predictions for some or all texts of the split, in any order.
        split: the split.
        labels: names of the classes; empty in a regression.
        vocabulary: tokens of the model.

    Returns:
        Columns `id`, `gold`, `predicted`, `probability.<label>`; lists with an entry for each token: `words`, the word
        of the text that the token belongs to (None for delimiters), `tokens`, the token in the vocabulary, `sentences`,
        its sentence from 0 (-1 for delimiters); `attention.<level>`, weights of each token, or of each sentence.
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
