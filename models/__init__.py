"""Text classifiers whose attention can be read, and replaced by another."""

from models.attention import AdditiveAttention, DotAttention, UniformAttention
from models.base import TextClassifier
from models.classifier import AttentionClassifier
from models.embedding import EmbeddingSpec
from models.encoder import AverageEncoder, ConvolutionEncoder, NoEncoder, RecurrentEncoder
from models.hierarchical import HierarchicalClassifier
from models.interface import Level, ModelError, Output
from models.regularizers import Concat, Conicity, MaskedLanguageModel, Residual, Tying
from models.transformer import TransformerClassifier

__all__ = [
    "AdditiveAttention",
    "AttentionClassifier",
    "AverageEncoder",
    "Concat",
    "Conicity",
    "ConvolutionEncoder",
    "DotAttention",
    "EmbeddingSpec",
    "HierarchicalClassifier",
    "Level",
    "MaskedLanguageModel",
    "ModelError",
    "NoEncoder",
    "Output",
    "RecurrentEncoder",
    "Residual",
    "TextClassifier",
    "TransformerClassifier",
    "Tying",
    "UniformAttention",
]
