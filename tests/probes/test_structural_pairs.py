import pytest
import torch

from heads.experiment import ExperimentError
from probes.structural import Pair, StructuralSizes, describe, start, sweep_pairs
from training import Origin


def test_every_layer_goes_with_every_rank() -> None:
    assert sweep_pairs(None, None, (0, 4), 16) == (Pair(0, 16), Pair(4, 16))
    assert sweep_pairs((4,), (2, 16), (0, 4), 16) == (Pair(4, 2), Pair(4, 16))


@pytest.mark.parametrize(
    ("layers", "ranks", "held", "message"),
    [
        (None, None, (), r"needs hidden states: --data\.init_args\.hidden '\[1,2,3\]'"),
        ((3,), None, (1, 2), r"layer 3, only of 1, 2\. Name it in --data\.init_args\.hidden too"),
        (None, (17,), (1,), r"ranks: 17 is not from 1 to 16"),
        (None, (0,), (1,), r"ranks: 0 is not from 1 to 16"),
        (None, (2, 2), (1,), r"ranks \[2, 2\]: give at least one of each, and none twice"),
        ((), None, (1,), r"layers \[\] .*: give at least one"),
    ],
)
def test_what_cannot_be_swept_is_refused(
    layers: tuple[int, ...] | None, ranks: tuple[int, ...] | None, held: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ExperimentError, match=message):
        sweep_pairs(layers, ranks, held, 16)


def test_each_pair_starts_from_numbers_of_its_own_within_the_bound() -> None:
    pairs = [Pair(1, 40), Pair(2, 40), Pair(1, 39)]
    starts = [start(pair, 30, seed) for seed in (0, 1) for pair in pairs]
    assert [tuple(matrix.shape) for matrix in starts[:3]] == [(40, 30), (40, 30), (39, 30)]
    assert len({float(matrix[0, 0]) for matrix in starts}) == 6
    for matrix in starts:
        assert 0.049 < float(matrix.abs().max()) <= 0.05
        assert abs(float(matrix.mean())) < 0.004
    assert torch.equal(starts[0], start(Pair(1, 40), 30, 0))


def test_what_was_trained_is_told_in_words() -> None:
    source = {"weights": "pretrained", "weights_sha256": "0123456789abcdef"}
    told = describe(Origin(StructuralSizes((Pair(1, 4), Pair(1, 8), Pair(3, 4), Pair(3, 8)), 8), source))
    assert told == "pretrained weights 0123456789ab…, hidden states of layers 1, 3, at ranks 4, 8"
