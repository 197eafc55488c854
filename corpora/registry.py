"""Registry of public corpora: names, pinned addresses, and a checksum of every file.

`probing fetch NAME` downloads a corpus into the data root, `probing fetch --list` lists all.
To add a corpus, add an entry to `corpora/public.yaml` with an address that contains a revision, and the SHA-256 of the
file. A file that is made from others has no address; its entry describes the steps. A treebank of Universal
Dependencies is one line of `corpora/treebanks.yaml`.
"""

import errno
import hashlib
import logging
import os
import re
import shlex
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml

from attention_probing.corpora.sentence import CorpusError
from attention_probing.results.digests import file_digest
from attention_probing.results.errors import near
from attention_probing.results.files import check_regular, write_atomically

Split = Literal["train", "dev", "test", "all"]  # all: the corpus comes as one piece
Score = Literal["accuracy", "f1", "auroc", "mcc", "pearson", "spearman"]
Row = tuple[str, str]  # label and text

_GROUPS = re.compile(r"20news-bydate-(train|test)/rec\.sport\.(baseball|hockey)/[0-9]+")
_REVIEWS = re.compile(r"aclImdb/(train|test)/(neg|pos)/[0-9]+_[0-9]+\.txt")
_LABELS = {"baseball": "0", "hockey": "1", "neg": "0", "pos": "1"}
_QUOTED = re.compile(r"^[>|]|^(In article|Quoted from)|writes in|(writes|wrote|says|said):")
_DEV = 10

_log = logging.getLogger(__name__)


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
    read: Callable[[Path], Mapping[str, list[Row]]] | None = None
    blob: str | None = None

    def fault(self, path: Path) -> str:
        """Return how the bytes of a path differ from the registered ones; empty if they do not, or are not checked."""
        for name, wanted, computed in (("SHA-256", self.sha256, file_digest), ("git id", self.blob, _git_id)):
            if wanted and not (path.is_file() and computed(path) == wanted):
                return f"its {name} is not {wanted}"
        return ""


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
        regression: True if labels are numbers to predict.
        score: Main score of the task, for instance `mcc`; None if the registry names none.
        skip: Records to leave out and count: `empty` texts, and `malformed` records with more or fewer
            fields than the header.
    """

    name: str
    splits: Mapping[Split, RemoteFile]
    licence: str
    citation: str
    homepage: str
    beside: tuple[RemoteFile, ...] = ()
    recipe: str = ""
    archive: RemoteFile | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    positive: str | None = None
    regression: bool = False
    score: Score | None = None
    skip: tuple[Literal["empty", "malformed"], ...] = ()

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """Files of the splits, followed by the files of `beside`, each once; the archive is not among them."""
        return tuple(dict.fromkeys((*self.splits.values(), *self.beside)))

    @property
    def can_be_fetched(self) -> bool:
        """True if every file of the corpus has an address or is made from an archive."""
        return self.archive is not None or all(remote.url for remote in self.files)


def read_newsgroups(archive: Path) -> dict[str, list[Row]]:
    """Return the posts on baseball (label 0) and hockey (1) in 20news-bydate.tar.gz, by split.

    As in Jain & Wallace 2019, §3, headers, footers and quotes are removed, by the rules of
    scikit-learn's `fetch_20newsgroups`. Posts that are then empty are left out, and their number is
    logged.

    The archive divides the posts by date into train and test, and this division is kept; a tenth of
    train becomes dev. Jain & Wallace instead draw their splits at random from all posts.

    Returns:
        (Label, text) pairs by split.

    Raises:
        CorpusError: The file is not this archive.
    """
    return _split(archive, _members(archive, _GROUPS, "latin-1", _post))


def read_imdb(archive: Path) -> dict[str, list[Row]]:
    """Return the negative (label 0) and positive (1) reviews in aclImdb_v1.tar.gz, as (label, text) pairs by split.

    Source: Maas et al. 2011, "Learning Word Vectors for Sentiment Analysis". `<br />` becomes a blank, and a tenth
    of train becomes dev. Reviews of all lengths are kept; Jain & Wallace 2019 leave out reviews of 400 words and
    more.

    Raises:
        CorpusError: The file is not this archive.
    """
    return _split(archive, _members(archive, _REVIEWS, "utf-8", lambda text: text.replace("<br />", " ")))


def _members(
    archive: Path, wanted: re.Pattern[str], encoding: str, clean: Callable[[str], str]
) -> dict[str, list[Row]]:
    """Return label and text, with single blanks, of the members whose name matches, by split.

    The archive is not unpacked: its names never become names of files.
    """
    found: dict[str, list[Row]] = {"train": [], "test": []}
    try:
        with tarfile.open(archive, "r:gz") as members:
            for member in members:
                name = wanted.fullmatch(member.name)
                # A link could point anywhere; the archives have none among these names.
                if name is None or not member.isfile() or (file := members.extractfile(member)) is None:
                    continue
                text = clean(file.read().decode(encoding)).replace("\0", " ")
                found[name[1]].append((_LABELS[name[2]], " ".join(text.split())))
    except (OSError, EOFError, zlib.error, tarfile.TarError, UnicodeDecodeError) as error:
        wrong = f"the archive cannot be read ({error})"
        raise CorpusError.at(archive, None, wrong, "Delete it and fetch it again") from None
    return found


def _split(archive: Path, found: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Return train, dev and test without empty texts, in the order of the SHA-1 of the text.

    No archive has a dev split: every tenth text of train becomes dev.
    """
    empty = sum(not text for rows in found.values() for _, text in rows)
    total = sum(map(len, found.values()))
    if empty:
        _log.warning("%s: %d of %d texts are empty and were left out.", archive.name, empty, total)
    train, test = (
        sorted((row for row in found[split] if row[1]), key=lambda row: (hashlib.sha1(row[1].encode()).digest(), row))
        for split in ("train", "test")
    )
    dev = train[_DEV - 1 :: _DEV]
    del train[_DEV - 1 :: _DEV]
    if not (train and dev and test):
        there = f"{len(train) + len(dev)} train and {len(test)} test texts of this corpus"
        wrong = f"the archive is incomplete: it has only {there}"
        raise CorpusError.at(archive, None, wrong, "Delete it and fetch it again")
    return {"train": train, "dev": dev, "test": test}


def _post(text: str) -> str:
    """Return a post without headers, footer and quotes.

    The footer follows the last line that is blank or has only hyphens, but is never the whole post.
    """
    body = text.partition("\n\n")[2]
    lines = body.strip().split("\n")
    last = next((i for i in range(len(lines) - 1, 0, -1) if not lines[i].strip().strip("-")), 0)
    kept = lines[:last] if last else body.split("\n")
    return "\n".join(line for line in kept if not _QUOTED.search(line))


def _corpus(name: str, entry: dict[str, Any]) -> Corpus:
    splits = {split: RemoteFile(**file) for split, file in entry["splits"].items()}
    beside = tuple(RemoteFile(**file) for file in entry.get("beside", ()))
    archive = None
    if file := entry.get("archive"):
        archive = RemoteFile(**file | {"read": _READERS[file["read"]]})
    flags = {"regression": entry.get("regression") == "true"}
    several = {option: tuple(entry.get(option, ())) for option in ("labels", "skip")}
    return Corpus(name, **entry | {"splits": splits, "beside": beside, "archive": archive, **flags, **several})


def _git_id(path: Path) -> str:
    """Return the id that git gives the bytes of a file (`git hash-object`); git itself need not be installed."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _treebank(repository: str, entry: dict[str, str]) -> Corpus:
    """Return a treebank of Universal Dependencies from its line in `treebanks.yaml`."""
    code, address = entry["code"], f"https://raw.githubusercontent.com/UniversalDependencies/{repository}"
    splits: dict[Split, RemoteFile] = {}
    for split in (split for split in _UD_SPLITS if split in entry):
        file = f"{code}-ud-{split}.conllu"
        splits[split] = RemoteFile(f"ud/{file}", f"{address}/{entry['commit']}/{file}", blob=entry[split])
    page = f"https://universaldependencies.org/treebanks/{code}/"
    return Corpus(repository.lower().replace("-", "_"), splits, entry["licence"], _UD_PAPER, page)


_UD_SPLITS: tuple[Split, ...] = ("train", "dev", "test")
_UD_PAPER = "Nivre et al. 2020, Universal Dependencies v2: An Evergrowing Multilingual Treebank Collection, LREC"
_READERS = {"read_imdb": read_imdb, "read_newsgroups": read_newsgroups}
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the C library may not be there; all values stay text
_ENTRIES = yaml.load(files("attention_probing.corpora").joinpath("public.yaml").read_text("utf-8"), _LOADER)
_LINES = yaml.load(files("attention_probing.corpora").joinpath("treebanks.yaml").read_text("utf-8"), _LOADER)
_TREEBANKS = {corpus.name: corpus for corpus in map(_treebank, _LINES, _LINES.values())}
CORPORA: Mapping[str, Corpus] = {name: _corpus(name, entry) for name, entry in _ENTRIES.items()} | _TREEBANKS


def data_root(root: str | Path | None) -> Path:
    """Return the data root: `root` if given, else `$PROBING_DATA`, else `./data`."""
    return Path(root or os.environ.get("PROBING_DATA") or "data")


def find(name: str) -> Corpus:
    """Return the public corpus of this name.

    Raises:
        CorpusError: There is no such corpus.
    """
    if name not in CORPORA:
        wrong = "this is one file, but a corpus has a file a split" if "." in name else "no corpus has this name"
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
    owners = [(corpus, Path(remote.path).parts) for corpus in CORPORA.values() for remote in corpus.files]
    for corpus, parts in owners:
        if path.absolute().parts[-len(parts) :] == parts:
            return _remedy(corpus, path.absolute().parents[len(parts) - 1])
    named = [corpus for corpus, parts in owners if parts[-1] == path.name]
    if len(named) != 1:
        return "Check the path"
    name, does = named[0].name, "fetches" if named[0].can_be_fetched else "says how to make"
    return f"Check the path, or name the corpus {name}, which `probing fetch {name}` {does}"


def no_file(path: Path, otherwise: str = "") -> CorpusError:
    """Return the CorpusError for a file that is missing or not a regular one, with advice on how to get the file.

    Args:
        path: The file.
        otherwise: Further advice, added at the end of the message.
    """
    try:
        check_regular(path)
    except OSError as error:
        return unreadable(path, error, otherwise)
    return unreadable(path, FileNotFoundError(), otherwise)  # another process has made it since


def unreadable(path: Path, error: OSError, otherwise: str = "") -> CorpusError:
    """Return the CorpusError for a file that could not be opened or read.

    Args:
        path: The file.
        error: Error of `results.files.check_regular` or of the system.
        otherwise: Further advice, added at the end of the message.
    """
    if isinstance(error, FileNotFoundError):
        return CorpusError.at(path, None, "there is no such file", f"{remedy_for(path)}{otherwise}")
    if isinstance(error, IsADirectoryError):
        return CorpusError.at(path, None, "this is a folder", f"Name a file in it{otherwise}")
    remedy = "Check the path and its permissions"
    if error.errno == errno.EINVAL:  # of check_regular: a pipe, a device or a socket
        remedy = "Save its content in a file, and name that"
    wrong = f"the file cannot be read ({error.strerror})"
    return CorpusError.at(path, None, wrong, f"{remedy}{otherwise}")


def _remedy(corpus: Corpus, root: Path) -> str:
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
        if not (path := base / remote.path).is_file():
            raise CorpusError.at(path, None, "there is no such file", _remedy(corpus, base))
    return {split: base / remote.path for split, remote in corpus.splits.items()}


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
    elif absent := [split for split, path in paths.items() if not path.is_file()]:
        _download(corpus, (corpus.archive,), base)
        assert corpus.archive.read is not None
        texts = corpus.archive.read(base / corpus.archive.path)
        for split in absent:
            try:
                rows = "".join(f"{label}\t{text}\n" for label, text in texts[split])
                write_atomically(paths[split], f"label\ttext\n{rows}")
            except OSError as error:
                wrong = f"the file cannot be written ({error.strerror})"
                raise CorpusError.at(paths[split], None, wrong, "Check the folder and the disk") from None
    return paths


def _download(corpus: Corpus, files: Sequence[RemoteFile], base: Path) -> None:
    """Download missing files of a corpus and verify all checksums."""
    import pooch  # imported here: it loads an HTTP client, and most runs fetch nothing

    for remote in files:
        path = base / remote.path
        if path.exists() and (fault := remote.fault(path)):
            wrong = f"the file exists already, but it is not the registered file of {corpus.name} ({fault})"
            remedy = "Move or delete it, or choose another --root; then fetch again. Runs read the file that is there"
            raise CorpusError.at(path, None, wrong, remedy)
    pooch.get_logger().setLevel(logging.WARNING)  # it would advise to register a SHA-256
    for remote in files:
        path = base / remote.path
        if path.exists():
            continue
        if remote.url is None:
            raise CorpusError.at(path, None, "there is no such file", _remedy(corpus, base))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                found = Path(pooch.retrieve(remote.url, None, fname=path.name, path=folder, progressbar=True))
                if fault := remote.fault(found):
                    wrong = f"the file at {remote.url} is not the registered one: {fault}"
                    raise CorpusError.at(path, None, wrong, "Nothing was saved; try again later")
                found.replace(path)
        except OSError as error:  # every failure of the HTTP client is one, and so is a full disk
            wrong = f"fetching {remote.url} failed ({error})"
            remedy = "Check the network and the disk, or copy the file to this path yourself"
            raise CorpusError.at(path, None, wrong, remedy) from None
