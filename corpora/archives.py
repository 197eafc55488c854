"""Readers of the archives of public corpora: the labelled texts of 20 Newsgroups and IMDB, by split."""

import hashlib
import logging
import re
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attention_probing.corpora.sentence import CorpusError

_GROUPS = re.compile(r"20news-bydate-(train|test)/rec\.sport\.(baseball|hockey)/[0-9]+")
_REVIEWS = re.compile(r"aclImdb/(train|test)/(neg|pos)/[0-9]+_[0-9]+\.txt")
_LABELS = {"baseball": "0", "hockey": "1", "neg": "0", "pos": "1"}
_QUOTED = re.compile(r"^[>|]|^(In article|Quoted from)|writes in|(writes|wrote|says|said):")
_TOKEN = re.compile(r"\w+|[^\w\s]+")
_TOKENS = (6, 500)  # fewest and most tokens of a post
_DEV = 10  # every tenth text of train becomes dev

_log = logging.getLogger(__name__)


def read_newsgroups(archive: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the posts on baseball (label 0) and hockey (1) in 20news-bydate.tar.gz, by split.

    As in Jain & Wallace 2019, §3, headers, footers and quotes are removed, by the rules of
    scikit-learn's `fetch_20newsgroups`. Posts that are then empty are left out, and their number is
    logged.

    The archive divides the posts by date into train and test, and this division is kept; a tenth of
    train becomes dev. Jain & Wallace instead draw their splits at random from all posts, as does
    `read_random_newsgroups`.

    Returns:
        (Label, text) pairs by split.

    Raises:
        CorpusError: The file is not this archive.
    """
    texts = _read_members(archive, _GROUPS, "latin-1", _strip_post)
    return _make_splits(archive, texts)


def read_random_newsgroups(archive: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the posts on baseball (label 0) and hockey (1) in 20news-bydate.tar.gz, in splits drawn at random.

    The posts are cleaned as in `read_newsgroups`. Posts of fewer than 6 or more than 500 tokens (words, and runs of
    other characters) are left out, and their number is logged. As in Jain & Wallace 2019, of all posts of a group a
    fifth is test, a fifth of the others dev, and the rest train. The draw is the order of the SHA-1 of the text: their
    own splits are not published, but drawn by scikit-learn from posts that spaCy has cleaned.

    Returns:
        (Label, text) pairs by split.

    Raises:
        CorpusError: The file is not this archive.
    """
    texts = _read_members(archive, _GROUPS, "latin-1", _strip_post)
    posts = [*texts["train"], *texts["test"]]
    chosen = [(label, text) for label, text in posts if _has_length_of_sports(text)]
    left_out = len(posts) - len(chosen)
    if left_out:
        least, most = _TOKENS
        _log.warning(
            "%s: %d of %d texts have fewer than %d or more than %d tokens and were left out.",
            archive.name,
            left_out,
            len(posts),
            least,
            most,
        )
    splits: dict[str, list[tuple[str, str]]] = {"train": [], "dev": [], "test": []}
    for label in ("0", "1"):
        group = _sort_texts([(label, text) for label_of_text, text in chosen if label_of_text == label])
        test = round(len(group) / 5)
        dev = test + round((len(group) - test) / 5)
        splits["test"] += group[:test]
        splits["dev"] += group[test:dev]
        splits["train"] += group[dev:]
    _check_splits(archive, splits)
    return {split: _sort_texts(texts) for split, texts in splits.items()}


def _has_length_of_sports(text: str) -> bool:
    """Return True if the number of tokens of a post is as in the released code of Jain & Wallace (2019)."""
    least, most = _TOKENS
    return least <= len(_TOKEN.findall(text)) <= most


def read_imdb(archive: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the negative (label 0) and positive (1) reviews in aclImdb_v1.tar.gz, as (label, text) pairs by split.

    Source: Maas et al. 2011, "Learning Word Vectors for Sentiment Analysis". `<br />` becomes a blank, and a tenth
    of train becomes dev. Reviews of all lengths are kept; Jain & Wallace 2019 leave out reviews of 400 words and
    more.

    Raises:
        CorpusError: The file is not this archive.
    """
    texts = _read_members(archive, _REVIEWS, "utf-8", _strip_line_breaks)
    return _make_splits(archive, texts)


def _strip_line_breaks(review: str) -> str:
    return review.replace("<br />", " ")


def _read_members(
    archive: Path, names: re.Pattern[str], encoding: str, clean: Callable[[str], str]
) -> dict[str, list[tuple[str, str]]]:
    """Return label and text, with single blanks, of the members whose name matches, by split.

    The archive is not unpacked: its names never become names of files.
    """
    texts: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    try:
        with tarfile.open(archive, "r:gz") as members:
            for member in members:
                name = names.fullmatch(member.name)
                # A link could point anywhere; the archives have none among these names.
                if name is None or not member.isfile():
                    continue
                file = members.extractfile(member)
                if file is None:
                    continue
                text = clean(file.read().decode(encoding)).replace("\0", " ")
                split, group = name.groups()
                texts[split].append((_LABELS[group], " ".join(text.split())))
    except (OSError, EOFError, zlib.error, tarfile.TarError, UnicodeDecodeError) as error:
        wrong = f"the archive cannot be read ({error})"
        raise CorpusError.at(archive, None, wrong, "Delete it and fetch it again") from None
    return texts


def _make_splits(archive: Path, texts: Mapping[str, list[tuple[str, str]]]) -> dict[str, list[tuple[str, str]]]:
    """Return train, dev and test without empty texts, in the order of the SHA-1 of the text.

    No archive has a dev split: every tenth text of train becomes dev.
    """
    total = len(texts["train"]) + len(texts["test"])
    train = _sort_texts(texts["train"])
    test = _sort_texts(texts["test"])
    empty = total - len(train) - len(test)
    if empty:
        _log.warning("%s: %d of %d texts are empty and were left out.", archive.name, empty, total)
    dev = train[_DEV - 1 :: _DEV]
    _check_splits(archive, {"train": train, "dev": dev, "test": test})
    del train[_DEV - 1 :: _DEV]
    return {"train": train, "dev": dev, "test": test}


def _check_splits(archive: Path, splits: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Raise a CorpusError if a split has no text."""
    if not all(splits.values()):
        train = len(splits["train"])
        test = len(splits["test"])
        wrong = f"the archive is incomplete: it has only {train} train and {test} test texts of this corpus"
        raise CorpusError.at(archive, None, wrong, "Delete it and fetch it again")


def _sort_texts(texts: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the texts that are not empty, with their labels, in the order of the SHA-1 of the text."""
    keys = []
    for label, text in texts:
        if text:
            sha1 = hashlib.sha1(text.encode()).digest()
            keys.append((sha1, label, text))
    return [(label, text) for _, label, text in sorted(keys)]


def _strip_post(text: str) -> str:
    """Return a post without headers, footer and quotes.

    The footer follows the last line that is blank or has only hyphens, but is never the whole post.
    """
    body = text.partition("\n\n")[2]
    lines = body.split("\n")
    stripped = body.strip().split("\n")
    for number in range(len(stripped) - 1, 0, -1):
        if not stripped[number].strip().strip("-"):
            lines = stripped[:number]
            break
    return "\n".join(line for line in lines if not _QUOTED.search(line))
