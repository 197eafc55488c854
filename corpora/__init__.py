"""Files → typed sentences and documents: readers, the embedded sample, the registry of public corpora. No torch here.

`corpora.registry` is not imported here, so that `python -m corpora.registry` runs it once.
"""

from corpora.conll2012 import DOCUMENTS_VERSION, read_documents
from corpora.conllu import READER_VERSION, read_treebank
from corpora.document import MENTION_TYPES, Document, Documents, Mention
from corpora.sample import SAMPLE_VERSION, write_sample_treebank
from corpora.sentence import CorpusError, Sentence, Treebank, to_table

__all__ = [
    "DOCUMENTS_VERSION",
    "MENTION_TYPES",
    "READER_VERSION",
    "SAMPLE_VERSION",
    "CorpusError",
    "Document",
    "Documents",
    "Mention",
    "Sentence",
    "Treebank",
    "read_documents",
    "read_treebank",
    "to_table",
    "write_sample_treebank",
]
