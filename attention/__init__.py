"""Attention of a pretrained transformer as tensors over words; all use of `transformers` models goes through here."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
