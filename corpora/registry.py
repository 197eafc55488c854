"""Public corpora by name, each file at a pinned address with its hash.

`python -m corpora.registry NAME` fetches one into the data root, `python -m corpora.registry --list` shows them all. To
add a corpus, add an entry to `CORPORA`: an address that names a revision, and the SHA-256 of what lies there.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from corpora.sentence import CorpusError

Split = Literal["train", "dev", "test"]


@dataclass(frozen=True)
class RemoteFile:
    """One file of a corpus: where it lies under the data root, whence it comes, and its SHA-256 in hexadecimal."""

    path: str
    url: str
    sha256: str


@dataclass(frozen=True)
class Corpus:
    """A public corpus: its files by split, and whom to thank."""

    name: str
    splits: Mapping[Split, RemoteFile]
    licence: str
    citation: str
    homepage: str


def _ud_files(repository: str, revision: str, stem: str, hashes: Mapping[Split, str]) -> dict[Split, RemoteFile]:
    """Return the splits of one Universal Dependencies treebank at one revision of its repository."""
    address = f"https://raw.githubusercontent.com/UniversalDependencies/{repository}/{revision}"
    return {
        split: RemoteFile(f"ud/{stem}-ud-{split}.conllu", f"{address}/{stem}-ud-{split}.conllu", sha256)
        for split, sha256 in hashes.items()
    }


CORPORA: Mapping[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            name="ud_english_ewt",
            splits=_ud_files(
                "UD_English-EWT",
                "15d613d8447b3478787d4c278730a1e48a945efb",
                "en_ewt",
                {
                    "train": "3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b",
                    "dev": "531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6",
                    "test": "e266e515a0a7547657ed3d90d9ba46487d6bd251f27ad4269d4e8a427c8555cd",
                },
            ),
            licence="CC BY-SA 4.0",
            citation="Silveira et al. 2014, A Gold Standard Dependency Corpus for English, LREC",
            homepage="https://universaldependencies.org/treebanks/en_ewt/",
        ),
    )
}


def data_root(root: str | Path | None) -> Path:
    """Return the folder of all corpora: `root` if given, else `$PROBING_DATA`, else `./data`."""
    return Path(root or os.environ.get("PROBING_DATA") or "data")


def find(name: str) -> Corpus:
    """Return the corpus of that name.

    Raises:
        CorpusError: There is none; the message lists those there are.

    """
    if name not in CORPORA:
        raise CorpusError(f"{name}: no corpus has this name. The registry knows: {', '.join(sorted(CORPORA))}.")
    return CORPORA[name]


def command_for(path: Path) -> str | None:
    """Return the command that fetches the corpus to which a file at `path` would belong, None if there is none."""
    for corpus in CORPORA.values():
        for remote in corpus.splits.values():
            parts = Path(remote.path).parts
            if path.absolute().parts[-len(parts) :] == parts:
                return _command(corpus.name, path.absolute().parents[len(parts) - 1])
            if path.name == parts[-1]:
                return _command(corpus.name, None)
    return None


def _command(name: str, root: Path | None) -> str:
    return f"python -m corpora.registry {name}" + (f" --root {shlex.quote(str(root))}" if root else "")


def locate(name: str, root: str | Path | None) -> dict[str, Path]:
    """Return the path of each split of a corpus that lies under the data root (see `data_root`).

    Raises:
        CorpusError: The name is unknown, or a file is absent; the message then has the command that fetches it.

    """
    base = data_root(root)
    paths: dict[str, Path] = {split: base / remote.path for split, remote in find(name).splits.items()}
    for path in paths.values():
        if not path.is_file():
            raise CorpusError.at(path, None, "there is no such file", f"Fetch it: `{_command(name, base)}`")
    return paths


def fetch(name: str, root: str | Path | None) -> dict[str, Path]:
    """Download the files of a corpus that are not yet under the data root, with a progress bar; return all paths.

    A file is moved to its place only after its hash was found right; one that is already there and right is left alone.

    Raises:
        CorpusError: The name is unknown, a file that is there has another hash (it is not touched), an address cannot
            be reached, or what came from it has another hash.

    """
    import pooch  # imported here: it loads an HTTP client, and most runs fetch nothing

    base = data_root(root)
    files = {split: (base / remote.path, remote) for split, remote in find(name).splits.items()}
    for path, remote in files.values():
        if path.exists() and not (path.is_file() and pooch.file_hash(str(path)) == remote.sha256):
            raise CorpusError.at(
                path,
                None,
                f"the file is there already, but is not the one of {name} (its SHA-256 is not {remote.sha256})",
                "Move or delete it, or choose another --root; then fetch again",
            )
    for path, remote in files.values():
        try:
            pooch.retrieve(remote.url, f"sha256:{remote.sha256}", fname=path.name, path=path.parent, progressbar=True)
        except OSError as error:  # every failure of the HTTP client is one, and so is a full disk
            wrong = f"fetching {remote.url} failed ({error})"
            remedy = "Check the network and the disk, or put the file there by other means"
            raise CorpusError.at(path, None, wrong, remedy) from None
        except ValueError:
            wrong = f"what came from {remote.url} is not the registered file (its SHA-256 is not {remote.sha256})"
            raise CorpusError.at(path, None, wrong, "Nothing was kept; fetch again later") from None
    return {split: path for split, (path, _) in files.items()}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m corpora.registry", description="Fetch a public corpus by its name."
    )
    parser.add_argument("name", nargs="?", help="the corpus")
    parser.add_argument("--root", help="data root; default $PROBING_DATA, else ./data")
    parser.add_argument("--list", action="store_true", help="list the corpora and leave")
    given = parser.parse_args(arguments)
    if given.list:
        for corpus in CORPORA.values():
            print(f"{corpus.name}: {', '.join(corpus.splits)}; {corpus.licence}; {corpus.citation}; {corpus.homepage}")
        return 0
    if given.name is None:
        parser.error("name a corpus, or --list them")
    try:
        paths = fetch(given.name, given.root)
    except CorpusError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for split, path in paths.items():
        print(f"{split}: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
