"""The base of all trained modules and their checkpoints, and text classifiers whose attention can be replaced."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
