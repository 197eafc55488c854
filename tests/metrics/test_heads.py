from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_probing.metrics.attachment import Arcs, groups_of
from attention_probing.metrics.heads import (
    MostAttended,
    Predictions,
    confidence,
    hit_counts,
    most_attended,
    offset_shares,
    permutation_p,
)
from attention_probing.results import Flags, Integers
from attention_probing.results.progress import Progress
from tests.metrics.samples import arcs, random_arcs


def random_attention(lengths: Sequence[int], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Few different weights, so that there are ties, and the greatest of all to delimiters and to the word itself."""
    random = np.random.default_rng(seed)
    size = max(lengths) + 2
    attention = torch.zeros(len(lengths), 2, 3, size, size, dtype=dtype)
    for row, n in enumerate(lengths):
        weights = random.integers(0, 6, (2, 3, n + 2, n + 2)) / 16
        weights[..., [0, n + 1]] = 0.75
        weights[..., [0, n + 1], :] = 0.75
        weights[..., range(n + 2), range(n + 2)] = 0.75
        attention[row, ..., : n + 2, : n + 2] = torch.from_numpy(weights)
    return attention


def slowly_most_attended(matrix: Tensor, n: int, word: int) -> tuple[int, int]:
    """Over all other words in turn; matrix `[n+2, n+2]`, word from 1."""
    to, by = -1, -1
    for other in range(1, n + 1):
        if other != word and (to < 0 or float(matrix[word, other]) > float(matrix[word, to])):
            to = other
        if other != word and (by < 0 or float(matrix[other, word]) > float(matrix[by, word])):
            by = other
    return (to if to > 0 and matrix[word, to] > 0 else -1), (by if by > 0 and matrix[by, word] > 0 else -1)


class TestMostAttended:
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
    def test_it_equals_a_loop_over_all_pairs_of_words(self, dtype: torch.dtype, causal: bool) -> None:
        lengths = (5, 1, 7, 2, 3)
        attention = random_attention(lengths, dtype)
        attention = attention.tril() if causal else attention
        attention[2, 0, 0] = 0
        before = attention.clone()
        found = most_attended(attention, torch.tensor(lengths))
        assert torch.equal(attention, before)
        assert (found.dtype, found.shape) == (torch.int64, (5, 7, 2, 2, 3))
        ties = 0
        for row, layer, head in np.ndindex(5, 2, 3):
            n, matrix = lengths[row], attention[row, layer, head]
            for word in range(1, n + 1):
                expected = slowly_most_attended(matrix, n, word)
                assert tuple(found[row, word - 1, :, layer, head].tolist()) == expected
                others = [float(matrix[word, other]) for other in range(1, n + 1) if other != word]
                ties += others.count(max(others, default=0)) > 1
        assert ties > 20

    @pytest.mark.parametrize("size", [1, 2, 4, 8])
    def test_blocks_of_rows_equal_the_whole(self, size: int) -> None:
        lengths = torch.tensor((5, 1, 7, 2, 3))
        attention = random_attention(lengths.tolist(), torch.float32)
        whole, blocks = MostAttended(lengths), MostAttended(lengths)
        whole.add(attention)
        for first in range(0, attention.size(3), size):
            blocks.add(attention[..., first : first + size, :], first)
        real = (torch.arange(7) < lengths[:, None])[..., None, None, None]
        assert torch.equal(blocks.positions * real, whole.positions * real)
        assert torch.equal(blocks.peaks, whole.peaks)


class TestConfidence:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
    def test_it_equals_a_loop(self, dtype: torch.dtype) -> None:
        lengths = (5, 1, 7, 2, 3)
        attention = random_attention(lengths, dtype, seed=1)
        most = MostAttended(torch.tensor(lengths))
        most.add(attention)
        means = confidence(most.peaks.double().sum(-1).numpy(), np.array(lengths))
        for layer, head in np.ndindex(2, 3):
            total = 0.0
            for row, n in enumerate(lengths):
                for word in range(1, n + 1):
                    total += max(float(attention[row, layer, head, word, other]) for other in range(1, n + 1))
            assert means[layer, head] == pytest.approx(total / sum(lengths), abs=1e-7)


class TestCounts:
    def test_hits_equal_counting_one_by_one(self) -> None:
        gold = random_arcs(20, seed=1)
        predicted = random_predictions(gold, 6, seed=2)
        groups = groups_of(gold, tuple("abcde"))
        found = hit_counts(gold, predicted, groups)
        assert found.dtype == np.int64
        for row, words in enumerate(groups.values()):
            for k in range(6):
                rows = [i for i in range(len(gold)) if words[i]]
                assert found[row, k] == sum(int(predicted[i, k]) == int(gold.head[i]) for i in rows)

    def test_the_commonest_offset_by_hand(self) -> None:
        gold = arcs([[2, 0, 2, 3], [0], [0], [0]])
        # The first looks one ahead twice of four times, the second one back three times; of lone words neither.
        predicted = np.array([[2, 3], [1, 1], [4, 2], [1, 3], [-1, -1], [-1, -1], [-1, -1]])
        offsets, shares = offset_shares(gold, predicted)
        assert offsets.tolist() == [1, -1]
        assert shares.tolist() == [0.5, 0.75]
        nothing = offset_shares(gold, np.full((len(gold), 1), -1))
        assert [numbers.tolist() for numbers in nothing] == [[0], [0]]


def random_predictions(gold: Arcs, predictors: int, seed: int) -> Integers:
    """Another word of the sentence, each as likely."""
    random = np.random.default_rng(seed)
    drawn = np.empty((len(gold), predictors), dtype=np.int64)
    for row, (word, n) in enumerate(zip(gold.word.tolist(), gold.length.tolist(), strict=True)):
        others = [other for other in range(1, n + 1) if other != word]
        drawn[row] = random.choice(others, predictors) if others else -1
    return drawn


ROOM = (1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 28, 36, 46)


def slowly_shuffled(split: Predictions, words: Flags, random: np.random.Generator | None) -> list[int] | None:
    """Hits of each predictor with shuffled offsets; without `random` None where no shuffle changes anything."""
    gold = split.arcs
    room = [
        tuple(sum(side >= start for start in ROOM) for side in (word - 1, n - word))
        for word, n in zip(gold.word.tolist(), gold.length.tolist(), strict=True)
    ]
    offset = (gold.head - gold.word).tolist()
    looks = (split.predicted - gold.word[:, None]).T.tolist()
    rows = sorted(np.flatnonzero(words).tolist(), key=room.__getitem__)
    kinds = {room[row] for row in rows}
    if random is None:
        same = len({(room[row], offset[row] if gold.head[row] else 0) for row in rows}) == len(kinds)
        return None if same else []
    drawn = dict(zip(rows, random.random(len(rows)), strict=True))
    taken: dict[int, int] = {}
    for kind in kinds:
        alike = [row for row in rows if room[row] == kind]
        taken |= dict(zip(alike, sorted(alike, key=drawn.__getitem__), strict=True))
    hits = [0] * len(looks)
    for row in rows:
        giver = taken[row]
        for k, column in enumerate(looks):
            if gold.head[giver] > 0 and split.predicted[row, k] > 0:
                hits[k] += column[row] == offset[giver]
    return hits


def slow_p(dev: Predictions, scored: Predictions, chosen: Sequence[int], permutations: int, seed: int) -> list[float]:
    """The heads are chosen anew on shuffled dev, and counted on the shuffled scored split."""
    random, values = np.random.default_rng(seed), []
    for (group, words), k in zip(scored.groups.items(), chosen, strict=True):
        if slowly_shuffled(scored, words, None) is None:
            values.append(np.nan)
            continue
        reached = int((scored.predicted[words, k] == scored.arcs.head[words]).sum())
        beaten = 0
        for _ in range(permutations):
            best = k
            if dev is not scored and group in dev.groups:
                on_dev = slowly_shuffled(dev, dev.groups[group], random) or []
                best = on_dev.index(max(on_dev))
            hits = slowly_shuffled(scored, words, random) or []
            beaten += (max(hits) if dev is scored else hits[best]) >= reached
        values.append((1 + beaten) / (1 + permutations))
    return values


def test_permutation_equals_a_slow_one_with_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Progress] = []

    def progress(what: str, total: float) -> Progress:
        made.append(Progress(what, total))
        return made[-1]

    monkeypatch.setattr("attention_probing.metrics.heads.Progress", progress)
    gold = random_arcs(25, seed=8, relations=3)
    predicted = random_predictions(gold, 4, seed=1)
    # In the last two nothing that could be shuffled differs: there is nothing to test.
    groups = {**groups_of(gold, tuple("abc")), "root": gold.head == 0, "lone": gold.length == 1}
    scored = Predictions(gold, tuple("abc"), predicted)
    vars(scored)["groups"] = groups
    of_dev = random_arcs(20, seed=9, relations=3)
    dev = Predictions(of_dev, tuple("abx"), random_predictions(of_dev, 4, seed=2))
    best = hit_counts(gold, predicted, groups).argmax(axis=1).tolist()
    for choice, chosen in ((scored, best), *((dev, [k] * len(groups)) for k in range(4))):
        found = permutation_p(choice, scored, chosen, permutations=19, seed=5)
        np.testing.assert_array_equal(found, slow_p(choice, scored, chosen, 19, 5))
        assert np.isnan(found).tolist() == [False] * (len(groups) - 2) + [True, True]
        assert len(set(found[:-2])) > 2
        others = permutation_p(choice, scored, chosen, permutations=19, seed=6)
        assert others[:-2].tolist() != found[:-2].tolist()
        of_choice = choice.groups if choice is dev else groups
        words = sum(np.count_nonzero(of_choice.get(name, groups[name])) for name in list(groups)[:-2])
        assert made[-1]._done == made[-1]._total == 19 * words  # nothing is counted that takes no time


def test_permutation_of_a_long_text_equals_a_slow_one() -> None:
    """More than 255 words are hit, and gold heads have more than 255 offsets."""
    random, n = np.random.default_rng(0), 800
    heads = [word + 1 if random.random() < 0.5 else int(random.integers(1, n + 1)) for word in range(1, n)]
    gold = arcs([[*heads, 0]])
    near = np.where(random.random((n, 3)) < 0.9, gold.word[:, None] + 1, random_predictions(gold, 3, seed=1))
    both = Predictions(gold, tuple("a"), np.where(near > n, -1, near))
    chosen = [both.best(group) for group in both.groups]
    assert both.counts["all"].min() > 255 < len(set((gold.head - gold.word).tolist()))
    found = permutation_p(both, both, chosen, permutations=9, seed=5)
    np.testing.assert_array_equal(found, slow_p(both, both, chosen, 9, 5))
    assert found[0] < 1
