"""A pretrained transformer's attention as tensors over words; the only door to `transformers`."""

from attention.alignment import AlignmentError
from attention.encoder import DEFAULT, Encoder, EncoderError, EncoderSpec, resolve
from attention.extraction import Ranks, make_store, open_store
from attention.specification import Candidates, Extraction, Items, Options, cut_sentences
from attention.store import Store, StoreError

__all__ = [
    "DEFAULT",
    "AlignmentError",
    "Candidates",
    "Encoder",
    "EncoderError",
    "EncoderSpec",
    "Extraction",
    "Items",
    "Options",
    "Ranks",
    "Store",
    "StoreError",
    "cut_sentences",
    "make_store",
    "open_store",
    "resolve",
]
