"""Small random treebanks as ordinary CoNLL-U files."""

from pathlib import Path

import numpy as np

from tests.tiny import BROKEN, FAMILIAR

RELATIONS = ("det", "nsubj", "obj", "nmod:poss", "punct")


def write_treebank(path: Path, sentences: int, seed: int = 0) -> Path:
    """Write that many random trees over words the tiny tokenizers know; returns the path."""
    random = np.random.default_rng(seed)
    lines = []
    for index in range(sentences):
        n = int(random.integers(1, 9))
        order = random.permutation(n)
        heads = {int(word): int(order[random.integers(0, place)]) for place, word in enumerate(order) if place}
        lines.append(f"# sent_id = {path.stem}-{index}")
        for word in range(n):
            form = random.choice([*FAMILIAR, *BROKEN])
            head = heads.get(word, -1) + 1
            relation = random.choice(RELATIONS) if head else "root"
            lines.append(f"{word + 1}\t{form}\t_\tX\t_\t_\t{head}\t{relation}\t_\t_")
        lines.append("")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_splits(folder: Path) -> str:
    """Write train, dev and test; returns the path with `{split}` in it."""
    for seed, (split, sentences) in enumerate({"train": 41, "dev": 13, "test": 17}.items()):
        write_treebank(folder / f"tiny-{split}.conllu", sentences, seed)
    return str(folder / "tiny-{split}.conllu")
