"""Datamodules: corpora, with the attention of an encoder or as tokens, served as batches."""

from datamodules.atlas import AtlasDataModule
from datamodules.batches import AntecedentBatch, AttentionBatch, PairBatch, SegmentBatch, TextBatch
from datamodules.classification import ClassificationDataModule
from datamodules.coreference import CoreferenceDataModule
from datamodules.corpus import AttentionDataModule, CorpusDataModule
from datamodules.dependency import DependencyDataModule
from datamodules.pairs import PairDataModule, PairSplit
from datamodules.text import TextDataModule, TextSource
from datamodules.tokenization import Vocabulary
from datamodules.vectors import VectorSpec
