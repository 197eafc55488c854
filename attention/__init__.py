"""A pretrained transformer's attention as tensors over words; the only door to `transformers`."""

from attention.alignment import AlignmentError
from attention.classification import SequenceClassifier
from attention.encoder import DEFAULT, Encoder, EncoderError, EncoderSpec, resolve
from attention.extraction import Ranks, prepare
from attention.options import Options, StoreError
from attention.quantity import Antecedent, Candidates
from attention.request import Request
from attention.store import Store

__all__ = [
    "DEFAULT",
    "AlignmentError",
    "Antecedent",
    "Candidates",
    "Encoder",
    "EncoderError",
    "EncoderSpec",
    "Options",
    "Ranks",
    "Request",
    "SequenceClassifier",
    "Store",
    "StoreError",
    "prepare",
    "resolve",
]
