from .atlas import AtlasDataModule as AtlasDataModule
from .attention import AttentionDataModule as AttentionDataModule
from .batches import (
    AntecedentBatch as AntecedentBatch,
    AttentionBatch as AttentionBatch,
    PairBatch as PairBatch,
    SegmentBatch as SegmentBatch,
    TextBatch as TextBatch,
)
from .classification import ClassificationDataModule as ClassificationDataModule
from .coreference import CoreferenceDataModule as CoreferenceDataModule
from .corpus import CorpusDataModule as CorpusDataModule
from .dependency import DependencyDataModule as DependencyDataModule
from .pairs import PairDataModule as PairDataModule, PairSplit as PairSplit
from .text import TextDataModule as TextDataModule
from .text_sources import TextSource as TextSource
from .tokenization import Vocabulary as Vocabulary
from .vectors import VectorSpec as VectorSpec
