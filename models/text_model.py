"""Text classifiers whose attention can be read and replaced: their outputs, sizes and predictions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from attention.encoder import EncoderSpec, resolve
from attention.inputs import TextTokenizer
from corpora.labelled import LabelledText
from datamodules import ClassificationDataModule, TextBatch
from datamodules.classification import TextSplit
from datamodules.tokenization import TokenOptions, Vocabulary, tokenize
from results.errors import UserError

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
        words, tokens, lost = tokenize(read, pieces, self.options)
        return TextSplit("test", read, np.zeros(len(read), np.int64), words, tokens, lost, self.vocabulary)


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
