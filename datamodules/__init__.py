"""Corpora and their attention, as batches."""

from datamodules.base import AttentionDataModule
from datamodules.batch import AttentionBatch
from datamodules.dependency import DependencyDataModule

__all__ = ["AttentionBatch", "AttentionDataModule", "DependencyDataModule"]
