"""Arcs made for tests, and slow, obvious versions of what is tested."""

from collections.abc import Sequence

import numpy as np

from metrics.attachment import Arcs, Integers


def arcs(
    heads: Sequence[Sequence[int]],
    *,
    relations: Sequence[Sequence[int]] | None = None,
    punctuation: Sequence[Sequence[bool]] | None = None,
    sentences: Sequence[int] | None = None,
) -> Arcs:
    """Columns from one list per sentence."""
    numbers = range(len(heads)) if sentences is None else sentences
    lengths = [len(sentence) for sentence in heads]
    return Arcs(
        sentence=np.repeat(np.array(numbers, dtype=np.int64), lengths),
        word=column([list(range(1, n + 1)) for n in lengths]),
        length=np.repeat(np.array(lengths, dtype=np.int64), lengths),
        head=column(heads),
        relation=column(relations or [[0] * n for n in lengths]),
        punctuation=column(punctuation or [[False] * n for n in lengths]).astype(np.bool_),
    )


def column(sentences: Sequence[Sequence[int]]) -> Integers:
    return np.array([value for sentence in sentences for value in sentence], dtype=np.int64)


def random_arcs(sentences: int, seed: int, relations: int = 5) -> Arcs:
    """Random trees of 1 to 12 words: words are attached in random order, each to one attached before it."""
    rng = np.random.default_rng(seed)
    heads: list[list[int]] = []
    for _ in range(sentences):
        order = rng.permutation(int(rng.integers(1, 13))) + 1
        tree = [0] * order.size
        for place, word in enumerate(order[1:], start=1):
            tree[word - 1] = int(order[rng.integers(place)])
        heads.append(tree)
    return arcs(
        heads,
        relations=[rng.integers(relations, size=len(tree)).tolist() for tree in heads],
        punctuation=[(rng.random(len(tree)) < 0.2).tolist() for tree in heads],
        sentences=sorted(rng.choice(sentences * 3, size=sentences, replace=False).tolist()),
    )


def slow_edges_found(arcs: Arcs, predicted: Integers) -> list[float]:
    """Undirected edges as sets of two words, sentence by sentence."""
    found = []
    for row in range(len(arcs)):
        same = [other for other in range(len(arcs)) if arcs.sentence[other] == arcs.sentence[row]]
        drawn = {
            frozenset((int(arcs.word[other]), int(predicted[other])))
            for other in same
            if not arcs.punctuation[other]
            and 1 <= predicted[other] <= len(same)
            and predicted[other] != arcs.word[other]
        }
        if arcs.head[row] == 0 or arcs.punctuation[row]:
            found.append(float("nan"))
        else:
            found.append(float(frozenset((int(arcs.word[row]), int(arcs.head[row]))) in drawn))
    return found
