"""Attention of a pretrained transformer as tensors over words; all use of `transformers` models goes through here."""

from attention.alignment import AlignmentError
from attention.checks import EncoderError
from attention.encoder import EncoderSpec, resolve
from attention.extraction import make_store
from attention.specification import Extraction, Items, Options, cut_sentences
from attention.store import Store
from attention.words import Encoder, WordAttention
