"""Labelled texts out of the archives of public corpora.

Archives are not unpacked: the members that a corpus is made of are read one by one, and no name out of an archive
becomes the name of a file. White space is one blank everywhere. No archive has a dev split: it is every tenth of the
train texts, in the order of the SHA-1 of the text, and the files are in that order.
"""

import hashlib
import logging
import re
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

from corpora.sentence import CorpusError

Row = tuple[str, str]  # label and text

_GROUPS = re.compile(r"20news-bydate-(train|test)/rec\.sport\.(baseball|hockey)/[0-9]+")
_REVIEWS = re.compile(r"aclImdb/(train|test)/(neg|pos)/[0-9]+_[0-9]+\.txt")
_LABELS = {"baseball": "0", "hockey": "1", "neg": "0", "pos": "1"}
_QUOTED = re.compile(r"^[>|]|^(In article|Quoted from)|writes in|(writes|wrote|says|said):")
_DEV = 10

_log = logging.getLogger(__name__)


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


def _members(
    archive: Path, wanted: re.Pattern[str], encoding: str, clean: Callable[[str], str]
) -> dict[str, list[Row]]:
    """Read label and text, maybe empty, of the members whose whole name fits, by split."""
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
    """Return a post without headers, footer and quotes.

    The footer follows the last line that is blank or of hyphens alone, but is never all of the post.
    """
    body = text.partition("\n\n")[2]
    lines = body.strip().split("\n")
    last = next((i for i in range(len(lines) - 1, 0, -1) if not lines[i].strip().strip("-")), 0)
    kept = lines[:last] if last else body.split("\n")
    return "\n".join(line for line in kept if not _QUOTED.search(line))
