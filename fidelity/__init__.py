"""Published tests of whether attention explains the decisions of trained text classifiers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
