"""The base of all trained modules and their checkpoints, and text classifiers whose attention can be replaced."""

from models.checkpoints import TrainingError
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
from models.stopping import EarlyStoppingBySteps
from models.text_classifier import TextClassifier
from models.trained import (
    Mean,
    Origin,
    TrainedModule,
    device_count,
    gathered,
    ignore_signals,
    no_loss,
    over_devices,
    quiet,
    recorded_gradients,
    training_audit,
    training_warnings,
)
from models.transformer import TransformerClassifier
