from .attention import (
    Encoder as Encoder,
    EncoderSpec as EncoderSpec,
    Options as Options,
    WordAttention as WordAttention,
    view as view,
)
from .commands.launch import main as main
from .datamodules import (
    AtlasDataModule as AtlasDataModule,
    ClassificationDataModule as ClassificationDataModule,
    CoreferenceDataModule as CoreferenceDataModule,
    DependencyDataModule as DependencyDataModule,
    PairDataModule as PairDataModule,
    TextDataModule as TextDataModule,
    TextSource as TextSource,
    VectorSpec as VectorSpec,
)
from .fidelity import (
    Adversary as Adversary,
    ConsistentAdversary as ConsistentAdversary,
    Correlation as Correlation,
    EffectProbe as EffectProbe,
    Effects as Effects,
    Explainer as Explainer,
    Explanation as Explanation,
    Fidelity as Fidelity,
    FidelityTest as FidelityTest,
    GuidedMLP as GuidedMLP,
    Permutation as Permutation,
    Perturbation as Perturbation,
    Rationale as Rationale,
    Roar as Roar,
    SetErasure as SetErasure,
    Shortcut as Shortcut,
    SingleToken as SingleToken,
    SingleWeight as SingleWeight,
    explain as explain,
)
from .fidelity.explanations import write_explanations as write_explanations
from .measures import (
    AntecedentHeads as AntecedentHeads,
    Atlas as Atlas,
    AttentionAnalyses as AttentionAnalyses,
    Bags as Bags,
    Baselines as Baselines,
    CausalCheck as CausalCheck,
    Change as Change,
    Clusters as Clusters,
    ControlTask as ControlTask,
    DescriptionLength as DescriptionLength,
    HeadAblation as HeadAblation,
    Importance as Importance,
    Linguistic as Linguistic,
    Measure as Measure,
    MinimalPairAccuracy as MinimalPairAccuracy,
    Patterns as Patterns,
    Pruning as Pruning,
    RawMaps as RawMaps,
    Relations as Relations,
    RepeatedSequences as RepeatedSequences,
    SingleHeads as SingleHeads,
    Surface as Surface,
    lookback_ratio as lookback_ratio,
    measure as measure,
    retrieval_scores as retrieval_scores,
)
from .models import (
    AdditiveAttention as AdditiveAttention,
    AttentionClassifier as AttentionClassifier,
    AverageEncoder as AverageEncoder,
    Concat as Concat,
    ConvolutionEncoder as ConvolutionEncoder,
    DotAttention as DotAttention,
    EarlyStoppingBySteps as EarlyStoppingBySteps,
    EmbeddingSpec as EmbeddingSpec,
    EntmaxAttention as EntmaxAttention,
    HierarchicalClassifier as HierarchicalClassifier,
    MaskedLanguageModel as MaskedLanguageModel,
    NoEncoder as NoEncoder,
    RecurrentEncoder as RecurrentEncoder,
    Residual as Residual,
    TextClassifier as TextClassifier,
    TransformerClassifier as TransformerClassifier,
    Tying as Tying,
    UniformAttention as UniformAttention,
)
from .probes import (
    AntecedentAttentionProbe as AntecedentAttentionProbe,
    AntecedentWordsProbe as AntecedentWordsProbe,
    AttentionOnlyProbe as AttentionOnlyProbe,
    AttentionWordsProbe as AttentionWordsProbe,
    DistancesWordsProbe as DistancesWordsProbe,
    HeadSelectionProbe as HeadSelectionProbe,
    StructuralDepthProbe as StructuralDepthProbe,
    StructuralDistanceProbe as StructuralDistanceProbe,
    StructuralProbe as StructuralProbe,
)
from .results import Estimate as Estimate, HeatMap as HeatMap, Result as Result, UserError as UserError
from .results.drawing import draw as draw
from .results.reader import load as load
from .results.view import View as View

__version__: str
