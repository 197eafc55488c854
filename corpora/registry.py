"""Registry of public corpora: names, pinned addresses, and a checksum of every file.

`probing fetch NAME` downloads a corpus into the data root, `probing fetch --list` lists all.
To add a corpus, add an entry to `corpora/public.yaml` with an address that contains a revision, and the SHA-256 of the
file. A file that is made from others has no address; its entry describes the steps. A treebank of Universal
Dependencies is one line of `corpora/treebanks.yaml`.
"""

import hashlib
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml

from attention_probing.corpora.archives import read_imdb, read_newsgroups, read_random_newsgroups
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.splits import SPLITS, Split
from attention_probing.results.digests import file_digest
from attention_probing.results.errors import near

SplitOrAll = Split | Literal["all"]  # all: the corpus comes as one piece
MainScore = Literal["accuracy", "f1", "auroc", "mcc", "pearson", "spearman"]


_UD_PAPER = "Nivre et al. 2020, Universal Dependencies v2: An Evergrowing Multilingual Treebank Collection, LREC"
_ARCHIVE_READERS = {
    "read_imdb": read_imdb,
    "read_newsgroups": read_newsgroups,
    "read_random_newsgroups": read_random_newsgroups,
}


@dataclass(frozen=True)
class RemoteFile:
    """One file of a public corpus.

    A file with `url` is downloaded. A file without `url` is made from the corpus's archive by this
    package, if the corpus has one. Otherwise users make the file themselves, as `Corpus.recipe` says:
    with `sha256`, `fetch` rejects a file with other bytes; without it, any file of the same format will
    do.

    Attributes:
        path: Path under the data root.
        url: Address from which the file is downloaded; None if it has to be made.
        sha256: SHA-256 of its bytes, in hexadecimal; None for none.
        blob: The id of its bytes in git, in hexadecimal: SHA-1 of `blob`, their number and the bytes; None for none.
            Without either of the two, the bytes are not checked.
        read: For an archive, the function that takes its path and returns (label, text) pairs by split;
            None for other files.
    """

    path: str
    url: str | None = None
    sha256: str | None = None
    read: Callable[[Path], Mapping[str, list[tuple[str, str]]]] | None = None
    blob: str | None = None

    def fault(self, path: Path) -> str:
        """Return how the bytes of a path differ from the registered ones; empty if they do not, or are not checked."""
        if self.sha256 and not (path.is_file() and file_digest(path) == self.sha256):
            return f"its SHA-256 is not {self.sha256}"
        if self.blob and not (path.is_file() and _compute_git_id(path) == self.blob):
            return f"its git id is not {self.blob}"
        return ""


def _compute_git_id(path: Path) -> str:
    """Return the id that git gives the bytes of a file (`git hash-object`); git itself need not be installed."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass(frozen=True)
class Corpus:
    """A public corpus: its files, licence and citation, and the columns and labels of its texts.

    Attributes:
        name: Name in the registry.
        splits: The file of each split.
        licence: Licence of the data.
        citation: Reference to cite.
        homepage: Address of the corpus's web page.
        beside: Files needed besides the splits, for instance parses.
        recipe: Instructions for users to make the files that can neither be downloaded nor made from an
            archive.
        archive: Archive from which this package makes the files; None if there is none.
        columns: For a corpus of labelled texts, the name or number of each column by field of
            `corpora.labelled.Columns`; empty for the defaults of `Columns`.
        labels: All labels; empty if labels are not checked.
        positive: Label for which F1 is computed; None if the registry names none.
        format: Format of texts that the suffix of the files does not imply, such as `links`; None if it does.
        regression: True if labels are numbers to predict.
        score: Main score of the task, for instance `mcc`; None if the registry names none.
        skip: Records to leave out and count: `empty` texts, and `malformed` records with more or fewer
            fields than the header.
    """

    name: str
    splits: Mapping[SplitOrAll, RemoteFile]
    licence: str
    citation: str
    homepage: str
    beside: tuple[RemoteFile, ...] = ()
    recipe: str = ""
    archive: RemoteFile | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    positive: str | None = None
    format: str | None = None
    regression: bool = False
    score: MainScore | None = None
    skip: tuple[Literal["empty", "malformed"], ...] = ()

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """Files of the splits, followed by the files of `beside`, each once; the archive is not among them."""
        return tuple(dict.fromkeys((*self.splits.values(), *self.beside)))

    @property
    def can_be_fetched(self) -> bool:
        """True if every file of the corpus has an address or is made from an archive."""
        return self.archive is not None or all(remote.url for remote in self.files)


def _read_registry() -> dict[str, Corpus]:
    """Return the corpora of `public.yaml` and the treebanks of `treebanks.yaml`, by name."""
    corpora = {}
    for name, entry in _load("public.yaml").items():
        corpora[name] = _corpus_of(name, entry)
    for repository, line in _load("treebanks.yaml").items():
        treebank = _treebank_of(repository, line)
        corpora[treebank.name] = treebank
    return corpora


def _load(name: str) -> Mapping[str, dict[str, Any]]:
    """Return the entries of a YAML file of the package; all values are strings."""
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the C library may not be there
    text = files("attention_probing.corpora").joinpath(name).read_text("utf-8")
    entries: Mapping[str, dict[str, Any]] = yaml.load(text, loader)
    return entries


def _corpus_of(name: str, entry: Mapping[str, Any]) -> Corpus:
    """Return a corpus from its entry in `public.yaml`."""
    options = dict(entry)
    options["splits"] = {split: RemoteFile(**file) for split, file in entry["splits"].items()}
    options["beside"] = tuple(RemoteFile(**file) for file in entry.get("beside", ()))
    if "archive" in entry:
        archive = dict(entry["archive"])
        read = _ARCHIVE_READERS[archive.pop("read")]
        options["archive"] = RemoteFile(**archive, read=read)
    options["regression"] = entry.get("regression") == "true"
    options["labels"] = tuple(entry.get("labels", ()))
    options["skip"] = tuple(entry.get("skip", ()))
    return Corpus(name, **options)


def _treebank_of(repository: str, entry: Mapping[str, str]) -> Corpus:
    """Return a treebank of Universal Dependencies from its line in `treebanks.yaml`."""
    code = entry["code"]
    address = f"https://raw.githubusercontent.com/UniversalDependencies/{repository}/{entry['commit']}"
    splits: dict[SplitOrAll, RemoteFile] = {}
    for split in SPLITS:
        if split in entry:
            file = f"{code}-ud-{split}.conllu"
            splits[split] = RemoteFile(f"ud/{file}", f"{address}/{file}", blob=entry[split])
    return Corpus(
        name=repository.lower().replace("-", "_"),
        splits=splits,
        licence=entry["licence"],
        citation=_UD_PAPER,
        homepage=f"https://universaldependencies.org/treebanks/{code}/",
    )


CORPORA: Mapping[str, Corpus] = _read_registry()


def data_root(root: str | Path | None) -> Path:
    """Return the data root: `root` if given, else `$PROBING_DATA`, else `./data`."""
    return Path(root or os.environ.get("PROBING_DATA") or "data")


def find(name: str) -> Corpus:
    """Return the public corpus of this name.

    Raises:
        CorpusError: There is no such corpus.
    """
    if name not in CORPORA:
        wrong = "no corpus has this name"
        if "." in name:
            wrong = "this is one file, but a corpus has a file for each split"
        raise CorpusError(
            f"{name}: {wrong}{near(name, ('sample', *CORPORA))}. `probing fetch --list` lists the public "
            "corpora. For files of your own give a path with `{split}` in the place of train, dev and test, or a "
            "mapping: '{train: a.conllu, dev: b.conllu, test: c.conllu}'."
        )
    return CORPORA[name]


def remedy_for(path: Path) -> str:
    """Return the advice for a missing file, for error messages: download it, make it, or check the path.

    The advice depends on the corpus to which the file belongs. The registry gives the path of each
    corpus file under the data root. If the missing path ends with one of these paths, the file belongs to
    that corpus. Otherwise, if exactly one registered file has the same name, the missing file belongs to
    the corpus of the registered one. If no corpus is found, the advice is to check the path.
    """
    absolute = path.absolute()
    same_name: list[Corpus] = []
    for corpus in CORPORA.values():
        for remote in corpus.files:
            parts = Path(remote.path).parts
            if absolute.parts[-len(parts) :] == parts:
                return fetch_remedy(corpus, root=absolute.parents[len(parts) - 1])
            if parts[-1] == path.name:
                same_name.append(corpus)
    if len(same_name) != 1:
        return "Check the path"
    [corpus] = same_name
    does = "fetches" if corpus.can_be_fetched else "says how to make"
    return f"Check the path, or name the corpus {corpus.name}, which `probing fetch {corpus.name}` {does}"


def fetch_remedy(corpus: Corpus, root: Path) -> str:
    """Return the advice to fetch a corpus, or how to make it if it cannot be fetched, for error messages.

    Args:
        corpus: The corpus.
        root: The data root.
    """
    if corpus.can_be_fetched:
        return f"Fetch it: `probing fetch {corpus.name} --root {shlex.quote(str(root))}`"
    why = "It cannot be downloaded, because no public address has exactly this file"
    return f"{why}. To make {corpus.name}: {corpus.recipe}"


def locate(name: str, root: str | Path | None) -> dict[str, Path]:
    """Return the path of each split of a corpus.

    Args:
        name: Name of the corpus.
        root: Data root, as for `data_root`.

    Raises:
        CorpusError: The name is unknown, or a file is missing; the message says how to get it.
    """
    base = data_root(root)
    corpus = find(name)
    for remote in corpus.files:
        path = base / remote.path
        if not path.is_file():
            raise CorpusError.at(path, None, "there is no such file", fetch_remedy(corpus, base))
    return {split: base / remote.path for split, remote in corpus.splits.items()}
