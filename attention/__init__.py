"""A pretrained transformer's attention as tensors over words; the only door to `transformers`."""

from attention.alignment import AlignmentError
from attention.encoder import DEFAULT, Encoder, EncoderError, EncoderSpec, resolve
from attention.extraction import Ranks, prepare
from attention.request import Options, Request, StoreError
from attention.store import Store

__all__ = [
    "DEFAULT",
    "AlignmentError",
    "Encoder",
    "EncoderError",
    "EncoderSpec",
    "Options",
    "Ranks",
    "Request",
    "Store",
    "StoreError",
    "prepare",
    "resolve",
]
