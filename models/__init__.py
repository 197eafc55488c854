"""Text classifiers whose attention can be read, and replaced by another."""

from models.base import TextClassifier
from models.classifier import AttentionClassifier
from models.hierarchical import HierarchicalClassifier
from models.interface import ModelError
from models.layers import (
    AdditiveAttention,
    AverageEncoder,
    ConvolutionEncoder,
    DotAttention,
    EmbeddingSpec,
    NoEncoder,
    RecurrentEncoder,
    UniformAttention,
)
from models.regularizers import Concat, Conicity, MaskedLanguageModel, Residual, Tying
from models.transformer import TransformerClassifier
