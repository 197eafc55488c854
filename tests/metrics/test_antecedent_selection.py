import numpy as np
import pytest
import torch
from torch import Tensor

from attention_probing.metrics.antecedent_selection import (
    accuracies,
    antecedent_hits,
    antecedent_hits_among_words,
    choose_predictors_again,
    count_by_type,
    find_links,
)
from attention_probing.metrics.bootstrap import bootstrap_ratio
from attention_probing.results import Integers
from tests.resampled import choose_by_hand

Window = tuple[Integers, Integers, Integers]


def window(head_words: list[int], clusters: list[int], types: list[int]) -> Window:
    return np.array(head_words, dtype=np.int64), np.array(clusters, dtype=np.int64), np.array(types, dtype=np.int64)


def random_window(seed: int, mentions: int = 25) -> Window:
    """Few words and clusters, so that mentions share head words within clusters and across them."""
    rng = np.random.default_rng(seed)
    head_words = np.sort(rng.integers(30, size=mentions)) - rng.integers(4, size=mentions)  # not quite in order
    return head_words.clip(0), rng.integers(7, size=mentions) * 3, rng.integers(3, size=mentions)


def slow_candidates(window: Window, mention: int) -> tuple[set[int], set[int]]:
    """Candidates and gold candidates of a mention, as words."""
    words, clusters, _ = (column.tolist() for column in window)
    earlier = [other for other in range(mention) if words[other] != words[mention]]
    gold = {words[other] for other in earlier if clusters[other] == clusters[mention]}
    return {words[other] for other in earlier}, gold


def random_weights(*shape: int, seed: int) -> Tensor:
    """A dozen different values, so that ties are common."""
    return torch.tensor(np.random.default_rng(seed).integers(12, size=shape) / 16)


def slow_hit(weights: dict[int, float], gold: set[int]) -> bool:
    """Whether the candidate of greatest weight is gold; the later of equals; none if all are zero."""
    best = -1
    for word in sorted(weights):
        if best < 0 or weights[word] >= weights[best]:
            best = word
    return best in gold and weights[best] > 0


class TestFindLinks:
    def test_against_pairs_one_by_one(self) -> None:
        unlinked = 0
        for seed in range(20):
            drawn = random_window(seed)
            links = find_links(*drawn)
            expected = [m for m in range(drawn[0].size) if slow_candidates(drawn, m)[1]]
            assert links.mention.tolist() == expected
            assert links.heads.tolist() == sorted(set(drawn[0].tolist()))
            assert links.heads[links.source].tolist() == drawn[0][expected].tolist()
            assert links.type.tolist() == drawn[2][expected].tolist()
            for mention, candidates, gold in zip(links.mention, links.candidates, links.gold, strict=True):
                assert (set(links.heads[candidates]), set(links.heads[gold])) == slow_candidates(drawn, int(mention))
            # Mentions that are not the first of their cluster.
            anaphors = drawn[1].size - np.unique(drawn[1]).size
            assert 5 < len(links) <= anaphors <= 24
            unlinked += anaphors - len(links)
        assert unlinked > 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
class TestHits:
    @pytest.mark.parametrize("seed", range(3))
    def test_against_loops(self, dtype: torch.dtype, seed: int) -> None:
        drawn = random_window(seed)
        links = find_links(*drawn)
        size = links.heads.size
        weights = random_weights(2, 3, size, size, seed=seed).to(dtype)
        weights[1, 2] = weights[1, 2].tril()  # behind a causal mask
        hits, without_weight = antecedent_hits(weights, links)
        place = {int(word): index for index, word in enumerate(links.heads)}
        values = weights.tolist()
        for at, mention in enumerate(links.mention):
            candidates, gold = slow_candidates(drawn, int(mention))
            own = place[int(drawn[0][mention])]
            for layer in range(2):
                for head in range(3):
                    out = {word: values[layer][head][own][place[word]] for word in candidates}
                    back = {word: values[layer][head][place[word]][own] for word in candidates}
                    assert hits[:, layer, head, at].tolist() == [slow_hit(out, gold), slow_hit(back, gold)]
                    none = [not any(out.values()), not any(back.values())]
                    assert without_weight[:, layer, head, at].tolist() == none
        assert without_weight[1, 1, 2].any()
        assert 0 < hits.float().mean() < 1

    @pytest.mark.parametrize("seed", range(3))
    def test_among_words_against_loops(self, dtype: torch.dtype, seed: int) -> None:
        drawn = random_window(seed)
        links = find_links(*drawn)
        rows, columns = (random_weights(2, 2, links.heads.size, 30, seed=seed + k).to(dtype) for k in (0, 99))
        rows[:, :, :, :15] = 0
        hits, without_weight = antecedent_hits_among_words(rows, columns, links)
        assert hits.shape == without_weight.shape == (2, 2, 2, len(links))
        for at, mention in enumerate(links.mention):
            word = int(drawn[0][mention])
            gold = {other for other in slow_candidates(drawn, int(mention))[1] if other < word}
            for direction, weights in enumerate((rows, columns)):
                for layer in range(2):
                    for head in range(2):
                        values = dict(enumerate(weights[layer, head, links.source[at], :word].tolist()))
                        place = direction, layer, head, at
                        assert hits[place].item() == slow_hit(values, gold)
                        assert without_weight[place].item() == (bool(values) and not any(values.values()))
        assert hits.any()
        assert without_weight.any()

    @pytest.mark.parametrize("mentions", [([], [], []), ([4], [0], [1]), ([4, 4], [0, 0], [1, 1])])
    def test_no_links(self, dtype: torch.dtype, mentions: tuple[list[int], list[int], list[int]]) -> None:
        links = find_links(*window(*mentions))
        size = links.heads.size
        assert len(links) == 0
        assert links.gold.shape == links.candidates.shape == (0, size)
        weights, rows = torch.ones(3, 4, size, size, dtype=dtype), torch.ones(3, 4, size, 5, dtype=dtype)
        for hits in (*antecedent_hits(weights, links), *antecedent_hits_among_words(rows, rows, links)):
            assert hits.shape == (2, 3, 4, 0)
            assert hits.dtype == torch.bool


@pytest.mark.parametrize("links", [0, 1, 9])
def test_flags_of_links_are_counted_by_type(links: int) -> None:
    rng = np.random.default_rng(links)
    types = torch.tensor(rng.integers(4, size=links))
    flags = torch.tensor(rng.random((2, 3, links)) < 0.4)
    counts = count_by_type(flags, types)
    assert (tuple(counts.shape), counts.dtype) == ((2, 3, 4), torch.int64)
    for *predictor, code in np.ndindex(2, 3, 4):
        pairs = zip(types.tolist(), flags[tuple(predictor)].tolist(), strict=True)
        assert counts[(*predictor, code)] == sum(flag for kind, flag in pairs if kind == code)


@pytest.mark.parametrize("divided", [False, True])
def test_accuracies_have_intervals_over_whole_documents(divided: bool) -> None:
    rng = np.random.default_rng(0)
    links = rng.integers(2, 9, (24, 4))
    hits = rng.binomial(links[:, None], 0.6, (24, 3, 4))
    names = [f"d{9 - part // 3}" for part in range(24)]
    found = accuracies(hits, links, names if divided else None, draws=300, seed=2)
    wholes = sorted(set(names)) if divided else range(24)
    of_wholes = [[part for part in range(24) if (names[part] if divided else part) == whole] for whole in wholes]
    for predictor in range(3):
        for group in range(4):
            types = slice(None) if group == 0 else slice(group - 1, group)
            right = [hits[parts, predictor, types].sum() for parts in of_wholes]
            of = [links[parts, types].sum() for parts in of_wholes]
            expected = bootstrap_ratio(right, of, share=True, draws=300, seed=2)
            assert found.value[predictor, group] == pytest.approx(expected.value)
            ends = tuple(end[predictor, group] for end in found.interval)
            assert ends == pytest.approx(expected.interval)


def test_predictors_are_chosen_again_on_whole_documents() -> None:
    """Two of the seven documents are parts of one; the fourth type counts among all alone."""
    rng = np.random.default_rng(0)
    links = rng.integers(0, 6, (7, 4))
    hits = rng.binomial(links[:, None], 0.4, (7, 3, 4))
    units = ["a", "b", "b", "c", "d", "e", "f"]
    merge = np.array([[name == unit for unit in units] for name in "abcdef"], np.int64)
    of_groups = choose_predictors_again(hits, links, units, seed=2)
    assert len(of_groups) == 4
    for group, again in enumerate(of_groups):
        kinds = list(range(4)) if group == 0 else [group - 1]
        found = merge @ hits[..., kinds].sum(axis=-1)
        counted = merge @ links[:, kinds].sum(axis=-1)
        times, tied, without = choose_by_hand(found.tolist(), [[n] * 3 for n in counted.tolist()], seed=2)
        assert (again.times.tolist(), again.tied.tolist()) == (times, tied)
        assert sum(times) + without == 100
