"""Text classifiers whose attention can be read, and replaced by other weights."""

from models.classifiers import AttentionClassifier, HierarchicalClassifier
from models.layers import (
    AdditiveAttention,
    AverageEncoder,
    ConvolutionEncoder,
    DotAttention,
    EmbeddingSpec,
    EntmaxAttention,
    NoEncoder,
    RecurrentEncoder,
    UniformAttention,
)
from models.regularizers import Concat, MaskedLanguageModel, Residual, Tying
from models.text_classifier import TextClassifier
from models.transformer import TransformerClassifier
