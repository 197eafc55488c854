"""Corpora and their attention, as batches."""

from datamodules.atlas import AtlasDataModule
from datamodules.base import AttentionDataModule
from datamodules.batch import AntecedentBatch, AttentionBatch, SegmentBatch, TextBatch
from datamodules.classification import ClassificationDataModule
from datamodules.coreference import CoreferenceDataModule
from datamodules.dependency import DependencyDataModule
from datamodules.text import TextDataModule, TextSource
from datamodules.tokenization import Vocabulary
from datamodules.vectors import VectorError, VectorSpec
