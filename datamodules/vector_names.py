"""Word vectors by name: a path, GloVe under the data root, or gensim's downloader."""

import logging
from pathlib import Path

from pytorch_lightning.utilities import rank_zero_info

from datamodules.vector_files import ACCEPTED, VectorError

SUBSET = ".subset.txt.gz"
"""How the name of a file ends that holds some rows of a larger one."""


def find_vectors(name: str, root: Path) -> Path:
    """The file of a name: a path, `glove.*` under the data root (else its subset there), or gensim's downloader.

    Raises:
        VectorError: there is none, or it cannot be downloaded.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if name.startswith("glove.") and not name.endswith((".txt", ".gz")):
        places = [root / "glove" / f"{name}{suffix}" for suffix in (".txt", ".txt.gz", SUBSET)]
        for place in places:
            if place.is_file():
                return place
        raise VectorError.at(
            places[0],
            None,
            f"there is no such file, nor one packed by gzip, nor a subset ({SUBSET})",
            "Unpack the archive from https://nlp.stanford.edu/projects/glove/ there, or name other vectors: `encoder` "
            "are the encoder's own, glove-wiki-gigaword-50 is fetched by gensim",
        )
    if path.suffix or len(path.parts) > 1 or path.exists():
        raise VectorError.at(path, None, "there is no such file of word vectors", ACCEPTED)
    return _download(name)


def _download(name: str) -> Path:
    from gensim import downloader

    folder = Path(downloader.BASE_DIR) / name
    if there := sorted(folder.glob("*.gz")):
        return there[0]  # gensim would ask the network for its index again
    rank_zero_info(f"{name}: asking gensim's downloader for it.")
    log = logging.getLogger(downloader.__name__)
    level = log.level
    log.setLevel(logging.CRITICAL)  # without a network it logs a whole traceback
    try:
        known = sorted(model for model in downloader.info()["models"] if not model.startswith("__"))
        if name in known:
            return Path(downloader.load(name, return_path=True))
    except Exception as error:  # it raises nothing narrower
        if there := sorted(folder.glob("*.gz")):  # another process was first, which makes gensim stumble
            return there[0]
        raise VectorError.at(
            name,
            None,
            f"no file has this name, and gensim's downloader failed ({type(error).__name__}: {error})",
            f"Check the name and the network, or put the file into {folder}. {ACCEPTED}",
        ) from error
    finally:
        log.setLevel(level)
    raise VectorError.at(
        name, None, f"no file has this name, and gensim's downloader has only {', '.join(known)}", ACCEPTED
    )
