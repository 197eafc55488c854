"""Splits of a corpus, and the files that hold them."""

import re
from pathlib import Path
from typing import Literal

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
"""Splits in the order in which experiments use them: train on the first, choose on the second, report on the third."""

_NAME_WITH_SPLIT = re.compile(r"(?:(.+)[-_.])?(train|dev|val|test)")
"""File name without suffix that ends in a split; `val` is dev."""


def corpus_of(path: Path) -> dict[str, str]:
    """Return the corpus and the split to which a file belongs, derived from the file name.

    `en_ewt-ud-dev.conllu` is the split dev of `en_ewt-ud`. A file whose name is only a split, such as
    `sst2/dev.tsv`, takes the corpus name from its folder.

    Returns:
        The name of the corpus under the key `corpus`; the split under the key `split`, which is absent
        if the file name does not end in a split.
    """
    match = _NAME_WITH_SPLIT.fullmatch(path.stem)
    if match is None:
        return {"corpus": path.stem}
    name, split = match.groups()
    if not name:
        name = path.resolve().parent.name
    return {"corpus": name, "split": "dev" if split == "val" else split}
