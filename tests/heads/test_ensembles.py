from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from attention.store import Store
from heads.ensembles import Ensemble, _right, choose, hits
from metrics.attachment import Arcs, Flags
from tests.attention.extractions import Extraction
from tests.metrics.samples import arcs

RELATIONS = ("nsubj", "obj", "det", "punct", "root")
HEADS = 8


@pytest.fixture(scope="module")
def split(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Arcs]:
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


@pytest.fixture(params=[1 << 22, 100])
def _chunks(request: pytest.FixtureRequest) -> Iterator[None]:
    """All words at once, or a few at a time."""
    with patch("heads.ensembles._CELLS", request.param):
        yield


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


def chosen_by_hand(store: Store, gold: Arcs, words: Flags, direction: int, most: int) -> Ensemble:
    """Try every head that is not in yet."""
    heads: tuple[int, ...] = ()
    reached = -1.0
    while len(heads) < most:
        tried = {
            head: sum(found_by(store, gold, words, direction, (*heads, head)))
            for head in range(HEADS)
            if head not in heads
        }
        best = max(tried, key=lambda head: (tried[head], -head)) if tried else -1
        if best < 0 or tried[best] <= reached:
            break
        heads, reached = (*heads, best), tried[best]
    return Ensemble(direction, heads, int(reached))


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("relation", [*RELATIONS, "all"])
def test_the_choice_equals_trying_all_heads(split: tuple[Store, Arcs], relation: str, direction: int) -> None:
    store, gold = split
    every = np.ones(len(gold), dtype=np.bool_)
    words = every if relation == "all" else gold.relation == RELATIONS.index(relation)
    for most in (1, 4):
        found = choose(store, gold, words, direction, most)
        assert found == chosen_by_hand(store, gold, words, direction, most)
        right = hits(store, gold, words, found)
        assert right.tolist() == found_by(store, gold, words, direction, found.heads)
        assert right.sum() == found.hits
    # On words it was not chosen on.
    assert hits(store, gold, every, found).tolist() == found_by(store, gold, every, direction, found.heads)


def test_some_ensembles_are_better_than_their_first_head(split: tuple[Store, Arcs]) -> None:
    store, gold = split
    words = np.ones(len(gold), dtype=np.bool_)
    alone, together = (choose(store, gold, words, 0, most) for most in (1, 4))
    assert together.heads[0] == alone.heads[0]
    assert 1 < len(together.heads) <= 4
    assert together.hits > alone.hits


def test_no_head_is_taken_twice(split: tuple[Store, Arcs]) -> None:
    store, gold = split
    for relation in range(len(RELATIONS)):
        for direction in (0, 1):
            heads = choose(store, gold, gold.relation == relation, direction, 99).heads
            assert len(set(heads)) == len(heads) <= HEADS


def test_a_word_alone_has_no_head_to_find(split: tuple[Store, Arcs]) -> None:
    store, gold = split
    words = gold.length == 1
    assert words.sum() == 1
    assert choose(store, gold, words, 0, 4) == Ensemble(0, (0,), 0)
    assert hits(store, gold, words, Ensemble(1, (2, 5), 0)).tolist() == [0]


def test_where_nothing_has_any_weight_nothing_is_found() -> None:
    weights = torch.tensor([[-torch.inf, 0.0, 0.0], [0.0, -torch.inf, 0.5]])
    assert _right(weights, torch.tensor([2, 3])).tolist() == [False, True]
