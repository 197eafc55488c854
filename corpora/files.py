"""Files of a corpus of the user: the path of each split, and the errors of files that cannot be read."""

import errno
from collections.abc import Mapping
from pathlib import Path

from attention_probing.corpora.registry import remedy_for
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.splits import SPLITS
from attention_probing.results.errors import setting
from attention_probing.results.files import check_regular


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


def files_by_split(corpus: str | Mapping[str, str], option: str = "corpus") -> dict[str, Path]:
    """Return the path of the file of each split.

    Args:
        corpus: A path that contains `{split}`, which is replaced by train, dev and test; or a mapping
            from splits to paths.
        option: Option of the data that holds `corpus`, for messages.

    Raises:
        CorpusError: The mapping has a key that is not a split, or names a file that does not exist.
            Files of a path with `{split}` are not checked.
    """
    files: dict[str, Path] = {}
    if isinstance(corpus, str):
        for split in SPLITS:
            files[split] = Path(corpus.replace("{split}", split)).expanduser()
        return files
    unknown = sorted(set(corpus) - set(SPLITS))
    if unknown:
        raise CorpusError(f"{setting(option)} has unknown splits {unknown}. The splits are {', '.join(SPLITS)}.")
    for split in SPLITS:
        if split not in corpus:
            continue
        path = Path(corpus[split]).expanduser()
        if not path.is_file():  # rather than when it is read: the test split may be hours later
            raise no_file(path, f", or leave {split} out of the corpus")
        files[split] = path
    return files
