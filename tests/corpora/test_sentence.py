import random
from pathlib import Path

import networkx as nx
import pytest

from corpora.sentence import CorpusError, Sentence, Treebank, find_cycle


def test_a_sentence_has_the_length_of_its_words() -> None:
    sentence = Sentence("a", ("The", "dog", "barks"), (2, 3, 0), ("det", "nsubj", "root"), ("DET", "NOUN", "VERB"))
    assert len(sentence) == 3
    assert len(Treebank((sentence,), {"sentences": 1})) == 1


@pytest.mark.parametrize("short", ["heads", "relations", "upos"])
def test_columns_of_other_lengths_are_refused_with_their_lengths(short: str) -> None:
    heads, relations, upos = (2, 0), ("det", "root"), ("DET", "NOUN")
    with pytest.raises(ValueError, match=f"'s1' has 2 words.* 1 {short}"):
        Sentence(
            "s1",
            ("a", "dog"),
            heads[:1] if short == "heads" else heads,
            relations[:1] if short == "relations" else relations,
            upos[:1] if short == "upos" else upos,
        )


def test_a_sentence_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match="'empty' has no words"):
        Sentence("empty", (), (), (), ())


def test_an_error_names_path_and_line_when_there_is_one() -> None:
    assert str(CorpusError.at(Path("a.conllu"), 7, "wrong", "Do this")) == "a.conllu:7: wrong. Do this."
    assert str(CorpusError.at("a.conllu", None, "wrong", "Do this")) == "a.conllu: wrong. Do this."


def test_find_cycle_agrees_with_networkx_on_random_heads() -> None:
    draw = random.Random(0)
    cyclic = 0
    for _ in range(500):
        n = draw.randint(1, 8)
        heads = [draw.randint(0, n) for _ in range(n)]
        graph = nx.DiGraph((i, head) for i, head in enumerate(heads, start=1) if head)
        cycle = find_cycle(heads)
        assert bool(cycle) == (not nx.is_directed_acyclic_graph(graph))
        for word, following in zip(cycle, (*cycle[1:], *cycle[:1]), strict=True):
            assert heads[word - 1] == following
        cyclic += bool(cycle)
    assert 100 < cyclic < 400
