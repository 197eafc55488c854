"""Public corpora by name, each file at a pinned address with its hash.

`python -m corpora.registry NAME` fetches one into the data root, `python -m corpora.registry --list` shows them all. To
add a corpus, add an entry to `corpora/public.yaml`: an address that names a revision, and the SHA-256 of what lies
there; a file made from others has no address, and its entry says how it is made.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from corpora.archives import Row, read_imdb, read_newsgroups
from corpora.sentence import CorpusError
from corpora.tables import tables
from results.errors import near
from results.files import write_atomically

Split = Literal["train", "dev", "test", "all"]  # all: the corpus comes as one piece
Score = Literal["accuracy", "f1", "auroc", "mcc", "pearson", "spearman"]


@dataclass(frozen=True)
class RemoteFile:
    """One file of a corpus: where it lies under the data root, whence it comes, and its SHA-256 in hexadecimal.

    Without `url` no address holds exactly these bytes, and the file must be made. Without `sha256` too it is made here,
    from the archive of the corpus, or it is any file that is read as the corpus is.
    """

    path: str
    url: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Archive:
    """What the files of a corpus are made from, and the function that reads the labels and texts of its splits."""

    file: RemoteFile
    read: Callable[[Path], Mapping[str, list[Row]]]


@dataclass(frozen=True)
class Corpus:
    """A public corpus: its files by split, whom to thank, files that lie beside, how what has no address is made.

    Of labelled texts:

    Attributes:
        columns: By the fields of `Columns`; empty for its defaults.
        header: Whether the columns have names.
        labels: All labels that there are; empty where they are not checked. `positive` is the one that F1 is about.
        regression: Whether labels are numbers.
        score: What the task is scored by.
        skip: Records that are left out, and counted: those with an `empty` text, and `malformed` ones, which have more
            or fewer fields than the header.
    """

    name: str
    splits: Mapping[Split, RemoteFile]
    licence: str
    citation: str
    homepage: str
    beside: tuple[RemoteFile, ...] = ()
    recipe: str = ""
    archive: Archive | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    header: bool = True
    labels: tuple[str, ...] = ()
    positive: str | None = None
    regression: bool = False
    score: Score | None = None
    skip: tuple[Literal["empty", "malformed"], ...] = ()

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """Those of the splits and those beside, each once."""
        return tuple(dict.fromkeys((*self.splits.values(), *self.beside)))

    @property
    def can_be_fetched(self) -> bool:
        """Whether every file has an address, or an archive that has one."""
        return self.archive is not None or all(remote.url for remote in self.files)


def _corpus(name: str, entry: dict[str, Any]) -> Corpus:
    splits = {split: RemoteFile(**file) for split, file in entry["splits"].items()}
    beside = tuple(RemoteFile(**file) for file in entry.get("beside", ()))
    archive = None
    if file := dict(entry.get("archive", {})):
        archive = Archive(read=_READERS[file.pop("read")], file=RemoteFile(**file))
    flags = {"header": entry.get("header") != "none", "regression": entry.get("regression") == "true"}
    several = {option: tuple(entry.get(option, ())) for option in ("labels", "skip")}
    return Corpus(name, **entry | {"splits": splits, "beside": beside, "archive": archive, **flags, **several})


_READERS = {"read_imdb": read_imdb, "read_newsgroups": read_newsgroups}
CORPORA: Mapping[str, Corpus] = {name: _corpus(name, entry) for name, entry in tables("public.yaml").items()}


def data_root(root: str | Path | None) -> Path:
    """Return the folder of all corpora: `root` if given, else `$PROBING_DATA`, else `./data`."""
    return Path(root or os.environ.get("PROBING_DATA") or "data")


def find(name: str) -> Corpus:
    """Return the corpus of that name; a CorpusError lists those there are."""
    if name not in CORPORA:
        known = ", ".join(sorted(CORPORA))
        raise CorpusError(f"{name}: no corpus has this name{near(name, CORPORA)}. The registry knows: {known}.")
    return CORPORA[name]


def remedy_for(path: Path) -> str:
    """Return what to do about a file that is missing: fetch it, make it, or look for it.

    It belongs to the corpus whose folders it lies in, else to the one that has a file of its name; `train.tsv` is a
    name in many.
    """
    owners = [(corpus, Path(remote.path).parts) for corpus in CORPORA.values() for remote in corpus.files]
    for corpus, parts in owners:
        if path.absolute().parts[-len(parts) :] == parts:
            return _remedy(corpus, path.absolute().parents[len(parts) - 1])
    named = [corpus for corpus, parts in owners if parts[-1] == path.name]
    return _remedy(named[0], None) if len(named) == 1 else "Check the path"


def no_file(path: Path, otherwise: str = "") -> CorpusError:
    """A fault for a path where no file is: what to do about it, or `otherwise`."""
    if path.is_dir():
        return CorpusError.at(path, None, "this is a folder", f"Name a file in it{otherwise}")
    return CorpusError.at(path, None, "there is no such file", f"{remedy_for(path)}{otherwise}")


def _remedy(corpus: Corpus, root: Path | None) -> str:
    if corpus.can_be_fetched:
        place = f" --root {shlex.quote(str(root))}" if root else ""
        return f"Fetch it: `python -m corpora.registry {corpus.name}{place}`"
    return f"It cannot be fetched, as no address holds exactly this file; to make {corpus.name}, {corpus.recipe}"


def locate(name: str, root: str | Path | None) -> dict[str, Path]:
    """Return the path of each split of a corpus that lies under the data root (see `data_root`).

    Raises:
        CorpusError: The name is unknown, or a file is absent; the message says how to get it.
    """
    base = data_root(root)
    corpus = find(name)
    for remote in corpus.files:
        if not (path := base / remote.path).is_file():
            raise CorpusError.at(path, None, "there is no such file", _remedy(corpus, base))
    return {split: base / remote.path for split, remote in corpus.splits.items()}


def fetch(name: str, root: str | Path | None) -> dict[str, Path]:
    """Download the files of a corpus that are not yet under the data root, with a progress bar; return all paths.

    A file is moved to its place only after its hash was found right. Of a corpus that comes as an archive, the archive
    is kept beside the files, and those that are absent are made from it.

    Raises:
        CorpusError: The name is unknown, a file that is there has another hash (it is not touched), one that is absent
            has no address, an address cannot be reached, what came from it has another hash, or the disk is full.
    """
    base = data_root(root)
    corpus = find(name)
    paths: dict[str, Path] = {split: base / remote.path for split, remote in corpus.splits.items()}
    if corpus.archive is None:
        _download(corpus, corpus.files, base)
    elif absent := [split for split, path in paths.items() if not path.is_file()]:
        _download(corpus, (corpus.archive.file,), base)
        texts = corpus.archive.read(base / corpus.archive.file.path)
        for split in absent:
            try:
                rows = "".join(f"{label}\t{text}\n" for label, text in texts[split])
                write_atomically(paths[split], f"label\ttext\n{rows}")
            except OSError as error:
                wrong = f"the file cannot be written ({error.strerror})"
                raise CorpusError.at(paths[split], None, wrong, "Check the folder and the disk") from None
    return paths


def _download(corpus: Corpus, files: Sequence[RemoteFile], base: Path) -> None:
    """Bring those files of a corpus to their places that are not there; check all of them."""
    import pooch  # imported here: it loads an HTTP client, and most runs fetch nothing

    for remote in files:
        path = base / remote.path
        if remote.sha256 is None:
            continue
        if path.exists() and not (path.is_file() and pooch.file_hash(str(path)) == remote.sha256):
            other = f"its SHA-256 is not {remote.sha256}"
            wrong = f"the file is there already, but is not the one of {corpus.name} ({other})"
            raise CorpusError.at(path, None, wrong, "Move or delete it, or choose another --root; then fetch again")
    for remote in files:
        path = base / remote.path
        if remote.url is None:
            if not path.exists():
                raise CorpusError.at(path, None, "there is no such file", _remedy(corpus, base))
            continue
        try:
            pooch.retrieve(remote.url, f"sha256:{remote.sha256}", fname=path.name, path=path.parent, progressbar=True)
        except OSError as error:  # every failure of the HTTP client is one, and so is a full disk
            wrong = f"fetching {remote.url} failed ({error})"
            remedy = "Check the network and the disk, or put the file there by other means"
            raise CorpusError.at(path, None, wrong, remedy) from None
        except ValueError:
            wrong = f"what came from {remote.url} is not the registered file (its SHA-256 is not {remote.sha256})"
            raise CorpusError.at(path, None, wrong, "Nothing was kept; fetch again later") from None


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
            facts = [", ".join(corpus.splits), corpus.licence, corpus.citation, corpus.homepage]
            if not corpus.can_be_fetched:
                facts.append("made, not fetched")
            print(f"{corpus.name}: {'; '.join(facts)}")
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
    if recipe := find(given.name).recipe:
        print(f"made, not fetched: {recipe}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
