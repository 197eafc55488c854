"""Ensembles of heads, against trying every head of the store."""

from pathlib import Path

import numpy as np
import pytest
import torch

from attention_probing.attention.store import Store
from attention_probing.measures.ensembles import choose_ensembles, ensemble_hits, find_governors
from attention_probing.metrics.attachment import Arcs
from attention_probing.results import Flags
from tests.attention.extractions import Extraction
from tests.metrics.samples import arcs

RELATIONS = ("nsubj", "obj", "det", "punct", "root")
HEADS = 8


@pytest.fixture(scope="module")
def store(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Arcs]:
    """Ten sentences of 1 to 12 words through the tiny BERT; arcs that three of its heads know between them."""
    extraction = Extraction(tmp_path_factory.mktemp("ensembles"), bert)
    sentences, store = extraction.treebank.sentences, extraction.prepare()
    heads = []
    for item, sentence in enumerate(sentences):
        weights = store.read("attention", item).flatten(0, 1)[[1, 4, 6], 1:-1, 1:-1].float().sum(0)
        known = (weights - 9 * torch.eye(len(sentence))).argmax(-1) + 1
        # Roots stay as they are in the treebank, and about a quarter of the other words do.
        heads.append(
            [head if head == 0 or head % 4 == 1 else int(known[place]) for place, head in enumerate(sentence.heads)]
        )
    relations = [[RELATIONS.index(name) for name in sentence.relations] for sentence in sentences]
    return store, arcs(heads, relations=relations)


def found_by(store: Store, gold: Arcs, words: Flags, direction: int, heads: tuple[int, ...]) -> list[float]:
    """One word after the other, and among all other words in turn."""
    right = []
    for row in np.flatnonzero(words):
        word, n = int(gold.word[row]), int(gold.length[row])
        weights = store.read("attention", int(gold.sentence[row])).flatten(0, 1).double()
        best, most = -1, -1.0
        for other in range(1, n + 1):
            pairs = [weights[head, word, other] if direction == 0 else weights[head, other, word] for head in heads]
            mean = sum(map(float, pairs)) / len(heads)
            if other != word and mean > most:
                best, most = other, mean
        right.append(float(best == gold.head[row]))
    return right


def chosen_by_hand(store: Store, gold: Arcs, words: Flags, direction: int, most: int) -> tuple[tuple[int, ...], int]:
    """Try every head that is not in yet."""
    heads: tuple[int, ...] = ()
    reached = -1.0
    while len(heads) < most:
        others = [head for head in range(HEADS) if head not in heads]
        tried = {head: sum(found_by(store, gold, words, direction, (*heads, head))) for head in others}
        best = max(tried, key=lambda head: (tried[head], -head))
        if tried[best] <= reached:
            break
        heads, reached = (*heads, best), tried[best]
    return heads, int(reached)


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("relation", [*RELATIONS, "all"])
def test_the_choice_equals_trying_all_heads(store: tuple[Store, Arcs], relation: str, direction: int) -> None:
    attention, gold = store
    every = np.ones(len(gold), dtype=np.bool_)
    words = every if relation == "all" else gold.relation == RELATIONS.index(relation)
    group = (words, direction)
    [alone] = [found] = choose_ensembles(attention, gold, [group], 1)
    for most in (1, 4):
        [found] = choose_ensembles(attention, gold, [group], most)
        assert found == chosen_by_hand(attention, gold, words, direction, most)
        [right] = ensemble_hits(attention, gold, [group], [found[0]])
        assert right.tolist() == found_by(attention, gold, words, direction, found[0])
        assert right.sum() == found[1]
    # On words it was not chosen on.
    [right] = ensemble_hits(attention, gold, [(every, direction)], [found[0]])
    assert right.tolist() == found_by(attention, gold, every, direction, found[0])
    if relation == "all" and direction == 0:  # there are ensembles better than their first head
        assert found[0][0] == alone[0][0]
        assert found[1] > alone[1]
    [(heads, _)] = choose_ensembles(attention, gold, [group], 99)
    assert len(set(heads)) == len(heads) <= HEADS


def test_ensembles_of_several_relations_are_those_of_each_alone(store: tuple[Store, Arcs]) -> None:
    attention, gold = store
    groups = [(gold.relation == code, direction) for code in range(len(RELATIONS)) for direction in (0, 1)]
    together = choose_ensembles(attention, gold, groups, 4)
    assert together == [choose_ensembles(attention, gold, [group], 4)[0] for group in groups]
    assert len({heads for heads, _ in together}) > 2
    hits = ensemble_hits(attention, gold, groups, [heads for heads, _ in together])
    assert [right.sum() for right in hits] == [found for _, found in together]


def test_a_word_alone_has_no_head_to_find(store: tuple[Store, Arcs]) -> None:
    attention, gold = store
    words = gold.length == 1
    assert words.sum() == 1
    assert choose_ensembles(attention, gold, [(words, 0)], 4) == [((0,), 0)]
    [right] = ensemble_hits(attention, gold, [(words, 1)], [(2, 5)])
    assert right.tolist() == [0]

    # Nor has one to which nothing has any weight.
    weights = torch.tensor([[-torch.inf, 0.0, 0.0], [0.0, -torch.inf, 0.5]])
    assert find_governors(weights, torch.tensor([2, 3])).tolist() == [False, True]
