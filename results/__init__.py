"""Results of experiments as plain data: estimates with units, tables and figures; no drawing and no files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
