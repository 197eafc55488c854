from .attention import Encoder as Encoder

__version__: str
