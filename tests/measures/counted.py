"""Gold edges and trees of a split, counted in its file and in the store of its attention."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Literal, Self

import networkx as nx

from attention_probing.corpora.conllu import read_treebank
from attention_probing.corpora.sentence import Sentence
from attention_probing.datamodules import DependencyDataModule

MakeData = Callable[..., DependencyDataModule]
Edges = set[frozenset[int]]


class CountedSplit:
    """A split, and the attention of every head in it, read off the store sentence by sentence."""

    def __init__(
        self, module: DependencyDataModule, corpus: str, name: Literal["dev", "test"], random: bool = False
    ) -> None:
        path = Path(corpus.replace("{split}", name))
        self.sentences: tuple[Sentence, ...] = read_treebank(path).sentences
        store = (module.random_splits if random else module.splits)[name].store
        self.weights = [store.read("attention", item).flatten(0, 1).double().numpy() for item in range(len(store))]

    @classmethod
    def of_dev_and_test(cls, make_data: MakeData, corpus: str, random: bool = False) -> tuple[Self, Self]:
        module = make_data(random_init=random)
        module.setup("test")
        return cls(module, corpus, "dev", random), cls(module, corpus, "test", random)

    def plain(self, item: int) -> list[int]:
        """Positions of the words other than punctuation."""
        return [word for word, label in enumerate(self.sentences[item].relations, 1) if label != "punct"]

    def edges(self, item: int, relation: str = "all") -> list[tuple[int, int]]:
        """Word and governor of each gold edge that counts."""
        sentence = self.sentences[item]
        plain = self.plain(item)
        found = []
        for word, (governor, label) in enumerate(zip(sentence.heads, sentence.relations, strict=True), 1):
            if word in plain and governor in plain and relation in ("all", label):
                found.append((word, governor))
        return found

    def undirected(self, item: int, head: int) -> Edges:
        """Edges of the maximum spanning tree of a head."""
        weights = self.weights[item][head]
        graph: nx.Graph[int] = nx.Graph()
        for one, other in combinations(self.plain(item), 2):
            graph.add_edge(one, other, weight=weights[one, other] + weights[other, one])
        return {frozenset(edge) for edge in nx.maximum_spanning_tree(graph).edges}
