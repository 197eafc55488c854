from .alignment import AlignmentError as AlignmentError
from .extraction import make_store as make_store
from .source import EncoderError as EncoderError, EncoderSpec as EncoderSpec, resolve as resolve
from .specification import Extraction as Extraction, Items as Items, Options as Options, cut_sentences as cut_sentences
from .store import Store as Store
from .views import view as view
from .words import Encoder as Encoder, WordAttention as WordAttention
