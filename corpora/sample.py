"""The embedded sample corpora in English, for runs without any other corpus.

`sample.tar.xz` holds 500 documents, as a treebank in the style of Universal Dependencies, as a coreference corpus and
as running text, and 3,500 reviews with labels and rationales. A grammar of this project generated them: see
`studies/sample.py`, which makes the archive.
"""

import tarfile
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from io import BytesIO
from pathlib import Path

from results.files import set_aside, write_atomically

# Raise it with every change of the files.
SAMPLE_VERSION: int = 2


@cache
def _contents() -> Mapping[str, bytes]:
    with tarfile.open(fileobj=BytesIO(files("corpora").joinpath("sample.tar.xz").read_bytes())) as archive:
        read = {member.name: archive.extractfile(member) for member in archive}
        return {name: file.read() for name, file in read.items() if file is not None}


def _write(folder: Path, corpus: str, suffix: str) -> dict[str, Path]:
    """Write those files of a corpus that are absent or damaged; return the file of each split with this suffix."""
    for name, content in _contents().items():
        path = Path(folder) / name
        if name.startswith(corpus) and not (path.is_file() and path.read_bytes() == content):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file():
                set_aside(path)
            write_atomically(path, content)
    return {split: Path(folder) / f"{corpus}-{split}{suffix}" for split in ("train", "dev", "test")}


def write_sample_treebank(folder: Path) -> dict[str, Path]:
    """Write the sample documents in three formats, and return the CoNLL-U file of each split.

    The folder gets a CoNLL-U file (dependency trees) and a CoNLL-2012 file (coreference) for each split,
    and one plain-text file with the documents of dev and test. A damaged file is set aside.

    Args:
        folder: The folder.
    """
    return _write(folder, "sample", ".conllu")


def write_sample_documents(folder: Path) -> dict[str, Path]:
    """Write the same files as `write_sample_treebank`, but return the CoNLL-2012 file of each split.

    Args:
        folder: The folder.
    """
    return _write(folder, "sample", ".conll")


def write_sample_text(folder: Path) -> Path:
    """Write all files of `write_sample_treebank`; return the path of the plain-text file, `sample.txt`.

    It has the dev and test documents, one per line.
    """
    return _write(folder, "sample", ".conllu")["dev"].with_name("sample.txt")


def write_sample_reviews(folder: Path) -> dict[str, Path]:
    """Write the sample reviews with labels and rationales into a folder; return the TSV file of each split.

    Args:
        folder: The folder.
    """
    return _write(folder, "reviews", ".tsv")
