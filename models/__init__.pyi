from .checkpoints import TrainingError as TrainingError
from .classifiers import AttentionClassifier as AttentionClassifier, HierarchicalClassifier as HierarchicalClassifier
from .layers import (
    AdditiveAttention as AdditiveAttention,
    AverageEncoder as AverageEncoder,
    ConvolutionEncoder as ConvolutionEncoder,
    DotAttention as DotAttention,
    EmbeddingSpec as EmbeddingSpec,
    EntmaxAttention as EntmaxAttention,
    NoEncoder as NoEncoder,
    RecurrentEncoder as RecurrentEncoder,
    UniformAttention as UniformAttention,
)
from .losses import (
    Mean as Mean,
    device_count as device_count,
    no_loss as no_loss,
    over_devices as over_devices,
)
from .regularizers import (
    Concat as Concat,
    MaskedLanguageModel as MaskedLanguageModel,
    Residual as Residual,
    Tying as Tying,
)
from .stopping import EarlyStoppingBySteps as EarlyStoppingBySteps
from .text_classifier import TextClassifier as TextClassifier
from .trained import (
    Origin as Origin,
    TrainedModule as TrainedModule,
    ignore_signals as ignore_signals,
    recorded_gradients as recorded_gradients,
    refuse_untrained as refuse_untrained,
    training_audit as training_audit,
    training_warnings as training_warnings,
)
from .transformer import TransformerClassifier as TransformerClassifier
