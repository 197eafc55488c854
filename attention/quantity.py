"""What a store can keep of every item of a corpus."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from attention.antecedent import plan_windows
from attention.encoder import Encoder
from attention.options import Options
from attention.plan import Plan, plan
from corpora.document import Documents
from corpora.sentence import Treebank

Candidates = Literal["mentions", "words"]


class Quantity(ABC):
    """What is kept of every item, of which kind of corpus."""

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, object]:
        """What is added to the key of a store."""

    @abstractmethod
    def plan(self, corpus: Treebank | Documents, encoder: Encoder | None, options: Options) -> Plan:
        """What becomes of a corpus; see `attention.plan.plan` and `attention.antecedent.plan_windows`.

        Raises:
            TypeError: another kind of corpus.
        """


@dataclass(frozen=True)
class Attention(Quantity):
    """All attention within each sentence of a treebank, and hidden states of its words.

    Args:
        hidden: layers whose hidden states are kept, in ascending order: 0 for those that leave the embeddings, k for
            those that leave layer k. That of a word in several pieces is their mean, or the first's, as the options
            say of rows of attention.
    """

    hidden: tuple[int, ...] = ()

    @property
    def identity(self) -> Mapping[str, object]:
        """The names of the quantities, and the layers of the hidden states."""
        if not self.hidden:
            return {"quantities": ["attention"]}
        return {"quantities": ["attention", "hidden"], "hidden": list(self.hidden)}

    def plan(self, corpus: Treebank | Documents, encoder: Encoder | None, options: Options) -> Plan:
        """An item is a sentence."""
        if not isinstance(corpus, Treebank):
            raise TypeError(f"The quantity attention is taken of a treebank, not of {type(corpus).__name__}.")
        return plan(corpus, encoder, options, self.hidden)


@dataclass(frozen=True)
class Antecedent(Quantity):
    """Attention between the heads of mentions, within windows of a document.

    Args:
        candidates: the other end of the attention: the heads of the `mentions`, or all `words` of the window.
    """

    candidates: Candidates = "mentions"

    @property
    def identity(self) -> Mapping[str, object]:
        """The name of the quantity, and the candidates."""
        return {"quantities": ["antecedent"], "candidates": self.candidates}

    def plan(self, corpus: Treebank | Documents, encoder: Encoder | None, options: Options) -> Plan:
        """An item is a window of whole sentences."""
        if not isinstance(corpus, Documents):
            raise TypeError(f"The quantity antecedent is taken of documents, not of {type(corpus).__name__}.")
        return plan_windows(corpus, self.candidates == "words", encoder, options)


ATTENTION = Attention()
