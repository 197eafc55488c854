"""Public corpora by name, each file at a pinned address with its hash.

`python -m corpora.registry NAME` fetches one into the data root, `python -m corpora.registry --list` shows them all. To
add a corpus, add an entry to `CORPORA`: an address that names a revision, and the SHA-256 of what lies there. A file
made from others has no address; its entry says how it is made.
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

Split = Literal["train", "dev", "test", "all"]  # all: the corpus comes as one piece


@dataclass(frozen=True)
class RemoteFile:
    """One file of a corpus: where it lies under the data root, whence it comes, and its SHA-256 in hexadecimal.

    Without `url` no address holds exactly these bytes, and the file must be made.
    """

    path: str
    url: str | None
    sha256: str


@dataclass(frozen=True)
class Corpus:
    """A public corpus: its files by split, whom to thank, files that lie beside, how what has no address is made."""

    name: str
    splits: Mapping[Split, RemoteFile]
    licence: str
    citation: str
    homepage: str
    beside: tuple[RemoteFile, ...] = ()
    recipe: str = ""

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """All its files."""
        return (*self.splits.values(), *self.beside)

    @property
    def can_be_fetched(self) -> bool:
        """Whether every file has an address."""
        return all(remote.url for remote in self.files)


def _ud_files(repository: str, revision: str, stem: str, hashes: Mapping[Split, str]) -> dict[Split, RemoteFile]:
    """Return the splits of one Universal Dependencies treebank at one revision of its repository."""
    address = f"https://raw.githubusercontent.com/UniversalDependencies/{repository}/{revision}"
    return {
        split: RemoteFile(f"ud/{stem}-ud-{split}.conllu", f"{address}/{stem}-ud-{split}.conllu", sha256)
        for split, sha256 in hashes.items()
    }


_LITBANK_HASHES: Mapping[Split, str] = {
    "train": "1b8417c115ca17f9bfa8c1f3c1bf148e39d7a9476270e733a8feef4567dd5592",
    "dev": "a522b2b05214eeb4cb3c1bfd8ac9039b04049fb3bbd58da214b6423b094c3f82",
    "test": "66ef4f1b08f2e7952b4ea4e944ce8ed76798e02a7d133e278f5249f4d40c45dc",
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
        Corpus(
            name="ontogum",
            splits={
                "all": RemoteFile(
                    "coref/ontogum/ontogum.train40.conll2012",
                    None,
                    "3ff1d1dc9362e3c7577880a85020fc7e99f532081dccd75821333d5fdbb0ea42",
                )
            },
            beside=(
                RemoteFile(
                    "coref/ontogum/ontogum.train40.conllu",
                    None,
                    "6e3ae881915b053c5be781a867d1f5eae3f7e8843e1dcb02149459f9bce6a6d5",
                ),
            ),
            licence="annotations CC BY 4.0, texts CC BY 2.5 to CC BY-SA 3.0 by genre",
            citation="Zhu et al. 2021, OntoGUM: Evaluating Contextualized SOTA Coreference Resolution on 12 More "
            "Genres, ACL",
            homepage="https://github.com/amir-zeldes/gum",
            recipe="take https://github.com/amir-zeldes/gum at 72ce5ac14978a324c2fd18d49484e65292cbe316, and of its "
            "train split the first eight documents by name of each of academic, bio, interview, news and voyage; "
            "concatenate their coref/ontogum/conllu files to the .conllu; convert the words, XPOS, lemmas, speakers "
            "and Entity= of these and the brackets of const/*.ptb to the .conll2012, 12 columns with one tab between",
        ),
        Corpus(
            name="litbank",
            splits={
                split: RemoteFile(f"coref/litbank/litbank.{split}.conll", None, sha256)
                for split, sha256 in _LITBANK_HASHES.items()
            },
            licence="CC BY 4.0",
            citation="Bamman et al. 2020, An Annotated Dataset of Coreference in English Literature, LREC",
            homepage="https://github.com/dbamman/litbank",
            recipe="concatenate, bytes untouched, the files of coref/conll in https://github.com/dbamman/litbank at "
            "3e50db0ffc033d7ccbb94f4d88f6b99210328ed8, in the order of train, dev and test of fold 0 in "
            "https://github.com/dbamman/lrec2020-coref at e30de53743d36d1ea2c9e7292c69477fa332713c",
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
    corpus, root = _owner(path)
    return _command(corpus.name, root) if corpus and corpus.can_be_fetched else None


def remedy_for(path: Path) -> str:
    """Return what to do about a file that is missing: fetch it, make it, or look for it."""
    corpus, root = _owner(path)
    return _remedy(corpus, root) if corpus else "Check the path"


def _owner(path: Path) -> tuple[Corpus | None, Path | None]:
    """Return the corpus to which a file at `path` would belong, and the data root if its folders are the corpus's."""
    for corpus in CORPORA.values():
        for remote in corpus.files:
            parts = Path(remote.path).parts
            if path.absolute().parts[-len(parts) :] == parts:
                return corpus, path.absolute().parents[len(parts) - 1]
            if path.name == parts[-1]:
                return corpus, None
    return None, None


def _remedy(corpus: Corpus, root: Path | None) -> str:
    if corpus.can_be_fetched:
        return f"Fetch it: `{_command(corpus.name, root)}`"
    return f"It cannot be fetched, as no address holds exactly this file; to make {corpus.name}, {corpus.recipe}"


def _command(name: str, root: Path | None) -> str:
    return f"python -m corpora.registry {name}" + (f" --root {shlex.quote(str(root))}" if root else "")


def locate(name: str, root: str | Path | None) -> dict[str, Path]:
    """Return the path of each split of a corpus that lies under the data root (see `data_root`).

    Raises:
        CorpusError: The name is unknown, or a file is absent; the message then has the command that fetches it, or says
            how it is made.

    """
    base = data_root(root)
    corpus = find(name)
    for remote in corpus.files:
        if not (path := base / remote.path).is_file():
            raise CorpusError.at(path, None, "there is no such file", _remedy(corpus, base))
    return {split: base / remote.path for split, remote in corpus.splits.items()}


def fetch(name: str, root: str | Path | None) -> dict[str, Path]:
    """Download the files of a corpus that are not yet under the data root, with a progress bar; return all paths.

    A file is moved to its place only after its hash was found right; one that is already there and right is left alone.

    Raises:
        CorpusError: The name is unknown, a file that is there has another hash (it is not touched), one that is absent
            has no address, an address cannot be reached, or what came from it has another hash.

    """
    import pooch  # imported here: it loads an HTTP client, and most runs fetch nothing

    base = data_root(root)
    corpus = find(name)
    for remote in corpus.files:
        path = base / remote.path
        if path.exists() and not (path.is_file() and pooch.file_hash(str(path)) == remote.sha256):
            raise CorpusError.at(
                path,
                None,
                f"the file is there already, but is not the one of {name} (its SHA-256 is not {remote.sha256})",
                "Move or delete it, or choose another --root; then fetch again",
            )
    for remote in corpus.files:
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
    return {split: base / remote.path for split, remote in corpus.splits.items()}


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
    return 0


if __name__ == "__main__":
    sys.exit(main())
