"""The entries of the registry: public corpora, each file at a pinned address, or how it is made.

Archives are not unpacked: the members that a corpus is made of are read one by one, and no name out of an archive
becomes the name of a file. White space is one blank everywhere. No archive has a dev split: it is every tenth of the
train texts, in the order of the SHA-1 of the text, and the files are in that order.
"""

import hashlib
import logging
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from corpora.sentence import CorpusError
from results.files import write_atomically

Split = Literal["train", "dev", "test", "all"]  # all: the corpus comes as one piece
Row = tuple[str, str]  # label and text

_GROUPS = re.compile(r"20news-bydate-(train|test)/rec\.sport\.(baseball|hockey)/[0-9]+")
_REVIEWS = re.compile(r"aclImdb/(train|test)/(neg|pos)/[0-9]+_[0-9]+\.txt")
_LABELS = {"baseball": "0", "hockey": "1", "neg": "0", "pos": "1"}
_QUOTED = re.compile(r"^[>|]|^(In article|Quoted from)|writes in|(writes|wrote|says|said):")
_DEV = 10

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteFile:
    """One file of a corpus: where it lies under the data root, whence it comes, and its SHA-256 in hexadecimal.

    Without `url` no address holds exactly these bytes, and the file must be made; without `sha256` too it is made here,
    from the archive of the corpus.
    """

    path: str
    url: str | None
    sha256: str | None


@dataclass(frozen=True)
class Archive:
    """What the files of a corpus are made from, and the function that reads the labels and texts of its splits."""

    file: RemoteFile
    read: Callable[[Path], Mapping[str, list[Row]]]


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
    archive: Archive | None = None

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """All its files."""
        return (*self.splits.values(), *self.beside)

    @property
    def can_be_fetched(self) -> bool:
        """Whether every file has an address, or an archive that has one."""
        return self.archive is not None or all(remote.url for remote in self.files)


def read_newsgroups(archive: Path) -> dict[str, list[Row]]:
    """Read baseball (label 0) and hockey (1) of 20news-bydate.tar.gz: the texts of train, dev and test.

    Jain & Wallace 2019, §3. As theirs, the posts are without headers, footers and quotes, by the rules of
    scikit-learn's `fetch_20newsgroups`; posts of which nothing is left are left out, and their number is logged. Train
    and test are those of the archive, by date; Jain & Wallace draw theirs at random from both.

    Raises:
        CorpusError: The file is no such archive.
    """
    return _split(archive, _members(archive, _GROUPS, "latin-1", _post))


def read_imdb(archive: Path) -> dict[str, list[Row]]:
    """Read the negative (label 0) and positive (1) reviews of aclImdb_v1.tar.gz: the texts of train, dev and test.

    Maas et al. 2011, "Learning Word Vectors for Sentiment Analysis". `<br />` is a blank here. All lengths are kept;
    Jain & Wallace 2019 leave out reviews of 400 words and more.

    Raises:
        CorpusError: The file is no such archive.
    """
    return _split(archive, _members(archive, _REVIEWS, "utf-8", lambda text: text.replace("<br />", " ")))


def write_table(path: Path, rows: Iterable[Row]) -> None:
    """Write label and text as a TSV file with a header, whole or not at all; its folder must exist."""
    write_atomically(path, "label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in rows))


def _members(
    archive: Path, wanted: re.Pattern[str], encoding: str, clean: Callable[[str], str]
) -> dict[str, list[Row]]:
    """Read label and text of the members whose whole name fits, by the folder they are in; a text may be empty."""
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
    """Leave out empty texts, put the others in their order and take dev from train."""
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
        wrong = f"the archive has {len(train) + len(dev)} train and {len(test)} test texts of this corpus"
        raise CorpusError.at(archive, None, wrong, "Delete it and fetch it again")
    return {"train": train, "dev": dev, "test": test}


def _post(text: str) -> str:
    """Return a post without headers, footer and quotes, in this order.

    Headers end at the first empty line. The footer is what follows the last line that is blank or of hyphens alone,
    but never all of the post. A quote is a line with the mark of one, or one that says who is quoted.
    """
    body = text.partition("\n\n")[2]
    lines = body.strip().split("\n")
    last = next((i for i in range(len(lines) - 1, 0, -1) if not lines[i].strip().strip("-")), 0)
    kept = lines[:last] if last else body.split("\n")
    return "\n".join(line for line in kept if not _QUOTED.search(line))


def _ud_files(repository: str, revision: str, stem: str, hashes: Mapping[Split, str]) -> dict[Split, RemoteFile]:
    """Return the splits of one Universal Dependencies treebank at one revision of its repository."""
    address = f"https://raw.githubusercontent.com/UniversalDependencies/{repository}/{revision}"
    return {
        split: RemoteFile(f"ud/{stem}-ud-{split}.conllu", f"{address}/{stem}-ud-{split}.conllu", sha256)
        for split, sha256 in hashes.items()
    }


def _tables(name: str, hashes: Mapping[Split, str | None]) -> dict[Split, RemoteFile]:
    """Return the splits of labelled texts that have no address."""
    return {split: RemoteFile(f"cls/{name}/{split}.tsv", None, sha256) for split, sha256 in hashes.items()}


_LAYOUT = "with one tab between, under the header label, tab, text"
_FROM_ARCHIVE: Mapping[Split, None] = {"train": None, "dev": None, "test": None}
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
        Corpus(
            name="sst2",
            splits=_tables(
                "sst2",
                {
                    "train": "c08beb842dc1b9790f0f793a3e2f9a41d72535aa3221d3a4d99f06b7e9e57afd",
                    "dev": "3cfa0adc710b6f495eee5577dfc2b6cdf5e47ec493064a33a349d750e5aea465",
                    "test": "e2969f688d418970a52a05f9d1695a073540c0e65aa14665d9ca1f77807ae075",
                },
            ),
            licence="none stated, distributed for research",
            citation="Socher et al. 2013, Recursive Deep Models for Semantic Compositionality Over a Sentiment "
            "Treebank, EMNLP",
            homepage="https://nlp.stanford.edu/sentiment/",
            recipe="take the trees train.txt, dev.txt and test.txt of preprocess/SST in "
            "https://github.com/successar/AttentionExplanation at 425a89a49a8b3bffc3f5e8338287e2ecd0cf1fa2, leave out "
            "those with root 2, and of each other write label (1 for roots 3 and 4, else 0) and leaves, one blank "
            f"between, brackets for -LRB- and -RRB-, {_LAYOUT}",
        ),
        Corpus(
            name="ag_news",
            splits=_tables(
                "ag_news",
                {
                    "train": "2202324326efba5f40987c04a72992b61f20f3d7f4aaefe60efa82e23ab28216",
                    "dev": "da95a1c9ee9574785890930d245633327f34aa74b3384285c71855ee43178611",
                    "test": "cf6e2119e2a4d7eefdcc873ebcf638deeb65922a356662bb4206cb87ce3b8a87",
                },
            ),
            licence="research and any other non-commercial activity",
            citation="Zhang et al. 2015, Character-level Convolutional Networks for Text Classification, NIPS",
            homepage="http://groups.di.unipi.it/~gulli/AG_corpus_of_news_articles.html",
            recipe="take preprocess/ag_news/test.csv in https://github.com/successar/AttentionExplanation at "
            "425a89a49a8b3bffc3f5e8338287e2ecd0cf1fa2, join title and description by ' . ', decode HTML entities, also "
            "those without their &, and put one blank for a backslash; of each class the 250 texts of lowest SHA-1 are "
            "test, the next 250 dev and the others train, in their order; write the name of the class and the text "
            f"{_LAYOUT}",
        ),
        Corpus(
            name="trec",
            splits=_tables(
                "trec",
                {
                    "train": "7877665438b8202fb972eaecd938b7c8e5a6fc7fba994a1a5c0bf591c8cbb7ad",
                    "dev": "1becdf33279c748f867f7e1c0bcbc6e067f403028ff3dddcd39d15cf17a59545",
                    "test": "3e9bbc87a2dc91258d51e53ef50e17e28c354dfd88816ebfb293fca5999ef72d",
                },
            ),
            licence="none stated, public research data",
            citation="Li & Roth 2002, Learning Question Classifiers, COLING",
            homepage="https://cogcomp.seas.upenn.edu/Data/QA/QC/",
            recipe="take data/TREC in https://github.com/FreedomIntelligence/qnn at "
            "77f549372d4371e7f2d52e77bc18df5096dd4779, from LATIN-1; TREC_10.label is test; of train_5500.label remove "
            "repeated questions and those of test, order them by the SHA-1 of the question, and take the first 500 "
            f"for dev, the others for train; write the coarse label and the question {_LAYOUT}",
        ),
        Corpus(
            name="20newsgroups",
            splits=_tables("20newsgroups", _FROM_ARCHIVE),
            licence="none stated, posts of their authors",
            citation="Lang 1995, NewsWeeder: Learning to Filter Netnews, ICML; baseball against hockey as in Jain & "
            "Wallace 2019",
            homepage="http://qwone.com/~jason/20Newsgroups/",
            archive=Archive(
                RemoteFile(
                    "cls/20newsgroups/20news-bydate.tar.gz",
                    "https://ndownloader.figshare.com/files/5975967",
                    "8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
                ),
                read_newsgroups,
            ),
        ),
        Corpus(
            name="imdb",
            splits=_tables("imdb", _FROM_ARCHIVE),
            licence="none stated, distributed for research",
            citation="Maas et al. 2011, Learning Word Vectors for Sentiment Analysis, ACL",
            homepage="https://ai.stanford.edu/~amaas/data/sentiment/",
            archive=Archive(
                RemoteFile(
                    "cls/imdb/aclImdb_v1.tar.gz",
                    "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                    "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
                ),
                read_imdb,
            ),
        ),
    )
}
