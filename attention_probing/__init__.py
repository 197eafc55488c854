"""What a transformer's attention knows, and whether attention explains a model's decision.

All names are imported when they are used: `import attention_probing` alone loads no PyTorch.
"""

import lazy_loader

__version__ = "3.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
