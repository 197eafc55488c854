"""Two splits of a treebank drawn by hand, with the attention of 2 layers × 2 heads in which one sees who is right.

1-1 mostly looks at the next word; 1-2 looks from subjects and objects at their verb; 2-1 from nouns at their
determiner, so that it is right the other way round; 2-2 looks nowhere. Whoever looks nowhere in particular gives all
words the same weight, and the first of them counts.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from heads.single_heads import Names, Predictions
from metrics.attachment import Arcs
from metrics.heads import most_attended

RELATIONS = ("amod", "det", "nsubj", "obj", "punct", "root")
NAMES = Names((0, 1), (0, 1))


@dataclass(frozen=True)
class Drawn:
    """A sentence with its arcs, and who looks at whom, `from>to`, in 1-1, 1-2, 2-1 and 2-2."""

    words: str
    looks: tuple[str, str, str, str]

    @property
    def arcs(self) -> list[tuple[int, str]]:
        """Head and relation of each word."""
        ends = [word.partition("→")[2].split("/") for word in self.words.split()]
        return [(int(head), relation) for head, relation in ends]

    @property
    def attention(self) -> Tensor:
        """`[2, 2, n+2, n+2]`, most of it on the end delimiter and on the word itself."""
        n = len(self.arcs)
        weights = torch.full((4, n + 2, n + 2), 0.001)
        weights[:, :, n + 1] = 0.4
        weights[:, n + 1] = 0.4
        weights[:, range(n + 2), range(n + 2)] = 0.3
        for head, looks in enumerate(self.looks):
            for look in looks.split():
                start, end = map(int, look.split(">"))
                weights[head, start, end] = 0.2
        return weights.view(2, 2, n + 2, n + 2)


DEV = (
    Drawn("the→2/det dog→3/nsubj barks→0/root", ("1>2 2>3 3>2", "2>3", "2>1", "")),
    Drawn(
        "a→2/det cat→3/nsubj sees→0/root the→5/det dog→3/obj .→3/punct",
        ("1>2 2>3 3>4 4>3 5>6 6>5", "2>3 5>3 6>3", "2>1 5>4", ""),
    ),
)
TEST = (
    Drawn(
        "dogs→2/nsubj see→0/root the→5/det old→5/amod cat→2/obj",
        ("1>2 2>3 3>4 4>5 5>4", "1>3 5>2", "5>3", ""),
    ),
    Drawn("he→2/nsubj runs→0/root", ("1>2 2>1", "", "", "")),
    Drawn("Go→0/root", ("", "", "", "")),
)


def predictions(sentences: tuple[Drawn, ...]) -> Predictions:
    """All sentences in one batch, padded, through the kernel."""
    lengths = [len(sentence.arcs) for sentence in sentences]
    size = max(lengths) + 2
    attention = torch.zeros(len(sentences), 2, 2, size, size)
    for row, (sentence, n) in enumerate(zip(sentences, lengths, strict=True)):
        attention[row, ..., : n + 2, : n + 2] = sentence.attention
    found = most_attended(attention, torch.tensor(lengths)).flatten(2).numpy()
    rows = [
        (index, place, n, head, RELATIONS.index(relation), relation == "punct")
        for index, (sentence, n) in enumerate(zip(sentences, lengths, strict=True))
        for place, (head, relation) in enumerate(sentence.arcs, start=1)
    ]
    sentence_, word, length, head_, relation_, punctuation = np.array(rows, dtype=np.int64).T
    predicted = np.concatenate([found[row, :n] for row, n in enumerate(lengths)])
    arcs = Arcs(sentence_, word, length, head_, relation_, punctuation.astype(np.bool_))
    return Predictions(arcs, RELATIONS, predicted)


def counted(
    sentences: tuple[Drawn, ...], relation: str, predictor: int, longer: int = 0, shorter: int = 99
) -> tuple[int, int]:
    """Words of a relation whose head a predictor names, and all of them, counted in the drawings one by one.

    With bounds, only those whose head is a word at such a distance count.
    """
    right = total = 0
    transposed, head = divmod(predictor, 4)
    for sentence in sentences:
        weights = sentence.attention.flatten(0, 1)[head].tolist()
        n = len(sentence.arcs)
        for word, (gold, label) in enumerate(sentence.arcs, start=1):
            if relation not in ("all", label) and (relation != "all (no punctuation)" or label == "punct"):
                continue
            if (longer or shorter < 99) and not (gold and longer <= abs(gold - word) <= shorter):
                continue
            total += 1
            best, most = -1, -1.0
            for other in range(1, n + 1):
                weight = weights[other][word] if transposed else weights[word][other]
                if other != word and weight > most:
                    best, most = other, weight
            right += best == gold
    return right, total
