"""A pretrained transformer's attention as tensors over words; the only door to `transformers`."""

from attention.alignment import AlignmentError
from attention.encoder import EncoderError, EncoderSpec, resolve
from attention.extraction import make_store
from attention.specification import Extraction, Items, Options, cut_sentences
from attention.store import Store
from attention.words import Encoder, WordAttention
