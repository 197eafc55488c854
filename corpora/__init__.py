"""Files → typed sentences: readers, the embedded sample, and the registry of public corpora. No torch here.

`corpora.registry` is not imported here, so that `python -m corpora.registry` runs it once.
"""

from corpora.conllu import READER_VERSION, read_treebank
from corpora.sample import SAMPLE_VERSION, write_sample_treebank
from corpora.sentence import CorpusError, Sentence, Treebank
from corpora.table import from_table, to_table

__all__ = [
    "READER_VERSION",
    "SAMPLE_VERSION",
    "CorpusError",
    "Sentence",
    "Treebank",
    "from_table",
    "read_treebank",
    "to_table",
    "write_sample_treebank",
]
