"""Download of public corpora: files are fetched from pinned addresses, and their hashes are checked."""

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attention_probing.corpora.registry import Corpus, RemoteFile, data_root, fetch_remedy, find
from attention_probing.corpora.sentence import CorpusError
from attention_probing.results.files import write_atomically


def fetch(name: str, root: str | Path | None) -> dict[str, Path]:
    """Download the missing files of a corpus into the data root, with a progress bar; return the paths of its splits.

    A file is moved to its place only after its hash has been checked. If the files of the splits are made from an
    archive, the archive is kept too.

    Args:
        name: Name of the corpus.
        root: Data root, as for `data_root`.

    Raises:
        CorpusError: The name is unknown, an existing file has another hash (it is not touched), a missing file has
            no address, a download fails or has another hash, or the disk is full.
    """
    base = data_root(root)
    corpus = find(name)
    paths: dict[str, Path] = {split: base / remote.path for split, remote in corpus.splits.items()}
    if corpus.archive is None:
        _download(corpus, corpus.files, base)
        return paths
    absent = [split for split, path in paths.items() if not path.is_file()]
    if absent:
        _download(corpus, (corpus.archive,), base)
        assert corpus.archive.read is not None
        texts = corpus.archive.read(base / corpus.archive.path)
        for split in absent:
            _write_texts(paths[split], texts[split])
    return paths


def _write_texts(path: Path, texts: Sequence[tuple[str, str]]) -> None:
    """Write labels and texts as a TSV file."""
    rows = "".join(f"{label}\t{text}\n" for label, text in texts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)  # the archive may lie in the folder of another corpus
        write_atomically(path, f"label\ttext\n{rows}")
    except OSError as error:
        wrong = f"the file cannot be written ({error.strerror})"
        raise CorpusError.at(path, None, wrong, "Check the folder and the disk") from None


def _download(corpus: Corpus, files: Sequence[RemoteFile], base: Path) -> None:
    """Download missing files of a corpus and verify all checksums."""
    import pooch  # imported here: it loads an HTTP client, and most runs fetch nothing

    for remote in files:
        path = base / remote.path
        fault = remote.fault(path) if path.exists() else ""
        if fault:
            wrong = f"the file exists already, but it is not the registered file of {corpus.name} ({fault})"
            remedy = "Move or delete it, or choose another --root; then fetch again. Runs read the file that is there"
            raise CorpusError.at(path, None, wrong, remedy)
    pooch.get_logger().setLevel(logging.WARNING)  # it would advise to register a SHA-256
    for remote in files:
        path = base / remote.path
        if path.exists():
            continue
        if remote.url is None:
            raise CorpusError.at(path, None, "there is no such file", fetch_remedy(corpus, base))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                downloaded = Path(pooch.retrieve(remote.url, None, fname=path.name, path=folder, progressbar=True))
                fault = remote.fault(downloaded)
                if fault:
                    wrong = f"the file at {remote.url} is not the registered one: {fault}"
                    raise CorpusError.at(path, None, wrong, "Nothing was saved; try again later")
                downloaded.replace(path)
        except OSError as error:  # every failure of the HTTP client is one, and so is a full disk
            wrong = f"fetching {remote.url} failed ({error})"
            remedy = "Check the network and the disk, or copy the file to this path yourself"
            raise CorpusError.at(path, None, wrong, remedy) from None
