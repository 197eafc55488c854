"""Tiny corpora of labelled texts, made in code."""

from pathlib import Path

import numpy as np

WORDS = {"good": ("fine", "great", "lovely"), "bad": ("poor", "awful", "dull"), "odd": ("weird", "strange", "uncanny")}
NEUTRAL = ("the", "film", "plot", "is", "and", "a", "cast", "of", "story", ".")


def write_texts(
    folder: Path, labels: tuple[str, ...] = ("bad", "good"), sizes: tuple[int, int, int] = (61, 23, 29)
) -> str:
    """Texts whose label is that of one word in them; returns their path with `{split}` in it."""
    random = np.random.default_rng(0)
    for split, size in zip(("train", "dev", "test"), sizes, strict=True):
        rows = ["label\ttext\n"]
        for number in range(size):
            label = labels[number % len(labels)]
            words = random.choice(NEUTRAL, size=int(random.integers(2, 12))).tolist()
            words.insert(int(random.integers(len(words) + 1)), random.choice(WORDS[label]))
            rows.append(f"{label}\t{' '.join(words)}\n")
        (folder / f"{split}.tsv").write_text("".join(rows), encoding="utf-8")
    return str(folder / "{split}.tsv")


def write_vectors(path: Path, size: int = 5) -> str:
    """Vectors of most of the words, as a text file."""
    random = np.random.default_rng(1)
    known = [*NEUTRAL, *(word for words in WORDS.values() for word in words[:2])]
    rows = (f"{word} {' '.join(map(str, random.normal(size=size).round(4)))}\n" for word in known)
    path.write_text("".join(rows), encoding="utf-8")
    return str(path)
