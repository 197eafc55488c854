"""Tiny documents with coreference, made in code and written as CoNLL-2012."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attention_probing.corpora.document import MENTION_TYPES, Document, Documents, Mention
from tests.tiny import BROKEN, FAMILIAR

GENRES = ("news", "fiction")


def document(
    name: str,
    sentences: Sequence[str],
    mentions: Sequence[tuple[int, int, int, int, int]] = (),
    genre: str = "",
    tag: str = "NN",
) -> Document:
    """Of sentences with a blank between words, and (sentence, start, end, head, cluster) of each mention."""
    words = tuple(tuple(sentence.split()) for sentence in sentences)
    found = tuple(
        Mention(sentence, start, end, head, MENTION_TYPES[head % 3], cluster)
        for sentence, start, end, head, cluster in sorted(mentions, key=lambda m: (m[0], m[1], -m[2], m[4]))
    )
    return Document(name, genre, words, tuple(tuple(tag for _ in sentence) for sentence in words), found)


def corpus(lengths: Sequence[Sequence[int]], seed: int = 0, genres: Sequence[str] = GENRES) -> Documents:
    """Documents of sentences of these lengths, every third word in several pieces, with random mentions."""
    random = np.random.default_rng(seed)
    documents = tuple(_random(f"d{number}", sizes, genres[number % len(genres)], random)
                      for number, sizes in enumerate(lengths))  # fmt: skip
    return Documents(documents, {"documents": len(documents)})


def _random(name: str, lengths: Sequence[int], genre: str, random: np.random.Generator) -> Document:
    sentences = [
        " ".join(str(random.choice(BROKEN if place % 3 == 1 else FAMILIAR)) for place in range(n)) for n in lengths
    ]
    mentions = set()
    for sentence, n in enumerate(lengths):
        for _ in range(int(random.integers(4))):
            start = int(random.integers(n))
            end = int(random.integers(start, min(n, start + 4))) + 1
            mentions.add((sentence, start, end, int(random.integers(start, end)), int(random.integers(4))))
    return document(name, sentences, sorted(mentions), genre)


def write(path: Path, documents: Documents) -> Path:
    """Write them as CoNLL-2012, without parts of speech and parses."""
    lines = []
    for text in documents.documents:
        lines.append(f"#begin document ({text.id}); part 000")
        for number, words in enumerate(text.sentences):
            cells: list[list[str]] = [[] for _ in words]
            for m in text.mentions:
                if m.sentence == number and m.end == m.start + 1:
                    cells[m.start].append(f"({m.cluster})")
                elif m.sentence == number:
                    cells[m.start].append(f"({m.cluster}")
                    cells[m.end - 1].append(f"{m.cluster})")
            lines += [
                "\t".join([text.id, "0", str(place), word, *"-" * 7, "|".join(cell) or "-"])
                for place, (word, cell) in enumerate(zip(words, cells, strict=True))
            ]
            lines.append("")
        lines.append("#end document")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_splits(
    folder: Path, lengths: Sequence[Sequence[int]], splits: Sequence[str] = ("dev", "test")
) -> dict[str, str]:
    """Write splits, each with documents of sentences of these lengths; returns the file of each."""
    return {split: str(write(folder / f"{split}.conll", corpus(lengths, seed))) for seed, split in enumerate(splits)}
