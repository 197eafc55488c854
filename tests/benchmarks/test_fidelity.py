"""Both sides of the ratio do the same, and it would be seen if they did not."""

import pytest
import torch

from benchmarks import adversary
from benchmarks.adversary import OneText, sampled, trajectory_difference
from benchmarks.erasure import one_by_one as erased_one_by_one
from benchmarks.erasure import rankings_of
from fidelity.adversary import Adversary
from fidelity.classified import ClassifiedBatch
from fidelity.erasure import SetErasure, first_flips
from metrics.distributions import tvd
from tests.fidelity.tiny import TEXTS, classified, measurements, one_by_one, with_constants


def test_the_first_steps_of_both_sides_are_the_same() -> None:
    assert (
        trajectory_difference(with_constants(Adversary(), copies=3, learning_rate=0.1), classified("flat"), 12) < 1e-9
    )


@pytest.mark.parametrize("changed", ["penalty", "diversity"])
def test_a_side_that_walks_otherwise_is_seen(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    search = OneText.search

    def otherwise(self: OneText, text: ClassifiedBatch, steps: int) -> list[torch.Tensor]:
        monkeypatch.setattr(self._ours, changed, 2 * getattr(self._ours, changed))
        return search(self, text, steps)

    monkeypatch.setattr(OneText, "search", otherwise)
    assert (
        trajectory_difference(with_constants(Adversary(), copies=3, learning_rate=0.1), classified("flat"), 12) > 1e-6
    )


def test_the_reference_chooses_the_farthest_copy_whose_output_is_near() -> None:
    options = with_constants(Adversary("published", 3), copies=4, learning_rate=0.1)
    ours = measurements(options, classified("flat")).numbers["max_jsd"]
    theirs = [OneText(options).max_jsd(text) for text in one_by_one("flat")]
    assert theirs == pytest.approx(ours.tolist(), abs=1e-9)
    far = [tvd(text.decide(options.published(text)), text.probabilities).max() > 0.1 for text in one_by_one("flat")]
    assert any(far)


def test_the_sample_is_spread_over_the_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adversary, "SAMPLE", 3)
    alone = sampled(
        [classified("flat", [0, 1, 2], dtype=torch.float32), classified("flat", [3, 4, 5], dtype=torch.float32)]
    )
    assert [text.batch.tokens.size(1) for text in alone] == sorted(map(len, TEXTS))[::2]
    for text in alone:
        (row,) = text.batch.index.tolist()
        torch.testing.assert_close(text.weights, classified("flat", [row], dtype=torch.float32).weights)


@pytest.mark.parametrize("whole_model", [False, True])
def test_both_sides_find_the_same_flips(whole_model: bool) -> None:
    batch = classified("flat", time=9)
    rankings = rankings_of(batch, SetErasure())
    assert rankings.shape == (11, len(TEXTS), 9)
    found = [
        erased_one_by_one(classified("flat", [row]), rankings[:, row : row + 1, : len(text)], whole_model=whole_model)
        for row, text in enumerate(TEXTS)
    ]
    assert {0, 1, 2} < {flip for flips in found for flip in flips}
    torch.testing.assert_close(torch.tensor(found).T, first_flips(batch, rankings))
