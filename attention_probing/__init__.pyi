from .attention import Encoder as Encoder, view as view
from .fidelity import Explanation as Explanation, explain as explain

__version__: str
