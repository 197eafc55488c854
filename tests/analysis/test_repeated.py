from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModel

from analysis import RepeatedSequences
from attention import Encoder
from processes.ranks import Ranks
from results.errors import UserError
from tests.analysis.passes import ENCODERS, encoder, summed
from tests.metrics.samples import student_of_log_odds

ALONE = Ranks()

Maps = list[NDArray[np.float32]]


def begun(analysis: RepeatedSequences, encoder: Encoder, ranks: Ranks = ALONE) -> RepeatedSequences:
    analysis.begin(SimpleNamespace(ranks=ranks), encoder)  # type: ignore[arg-type] # it reads no texts
    return analysis


def maps_of(encoder: Encoder, tokens: Tensor) -> Maps:
    """Attention of one input alone, `[heads, from, to]` for each layer."""
    found: Maps = []
    encoder.capture(
        {"input_ids": tokens[None]},
        lambda _, weights: found.append(weights[0].numpy().copy()),
        frozenset(range(encoder.layers)),
    )
    return found


def by_hand(weights: NDArray[np.float32], tokens: list[int]) -> list[tuple[float, float]]:
    """Both measures of one head for each role, pair of tokens by pair of tokens."""
    n = len(tokens)
    looks: list[Callable[[int, int], bool]] = [
        lambda i, j: j == i - 1,
        lambda i, j: j < i and tokens[j] == tokens[i],
        lambda i, j: 0 < j <= i and tokens[j - 1] == tokens[i] and j - 1 < i,
    ]
    found = []
    for look in looks:
        mass = on = apart = 0.0
        for i in range(n):
            for j in range(n):
                mass += float(weights[i, j])
                on += float(weights[i, j]) * look(i, j)
                apart += abs(float(weights[i, j]) - look(i, j))
        found.append((on / mass, 1 - apart / n))
    return found


@pytest.mark.parametrize("kind", ENCODERS)
def test_scores_are_those_of_a_loop_over_pairs_of_tokens(kind: str, tmp_path: Path) -> None:
    one = encoder(kind, tmp_path)
    analysis = begun(RepeatedSequences(sequences=12, length=6, seed=3), one)

    tokens = analysis.tokens(one)
    expected = np.array(
        [[[by_hand(head, row.tolist()) for head in layer] for layer in maps_of(one, row)] for row in tokens]
    )
    assert (tokens[:, -12:-6] == tokens[:, -6:]).all()
    assert len(tokens[0]) == (12 if kind == "gpt2" else 13)  # it alone writes no start delimiter
    for place, measure in enumerate(("mul", "abs")):
        for role, found in zip(range(3), analysis.scores(measure).values(), strict=True):  # type: ignore[arg-type]
            values = expected[..., role, place]
            low, high = student_of_log_odds(values, -float(place), 1.0)
            mean = found.over()
            ends = mean.interval
            assert np.allclose(mean.value, values.mean(0), atol=1e-6)
            # Of inputs that all have nothing, as behind a window, the interval has no width.
            assert np.allclose(ends[0], np.where(np.isnan(low), mean.value, low), atol=1e-6)
            assert np.allclose(ends[1], np.where(np.isnan(high), mean.value, high), atol=1e-6)


def test_two_processes_sum_what_one_does(tmp_path: Path) -> None:
    one = encoder("bert", tmp_path)
    alone = begun(RepeatedSequences(sequences=25, length=5), one)
    shares = [begun(RepeatedSequences(sequences=25, length=5), one, Ranks(rank, 2)) for rank in range(2)]

    for whole, first, second in zip(*map(summed, (alone, *shares)), strict=True):
        assert whole.any()
        assert torch.equal(whole, first + second)


def test_best_heads_are_named(tmp_path: Path) -> None:
    analysis = begun(RepeatedSequences(sequences=4, length=5), encoder("llama", tmp_path))
    result = analysis.result({})
    frame = result.tables["repeated"].frame

    for role in ("previous", "duplicate", "induction"):
        best = frame.sort_values(role).iloc[-1]
        assert result.scores[f"repeated.{role}"].value == best[role] > 0
        assert result.scores[f"repeated.{role}"].low == best[f"{role}.low"] < best[role]
        assert result.audit[f"best_{role}"] == f"{int(best['layer'])}-{int(best['head'])}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequences": 1}, "sequences is 1, and must be at least 2"),
        ({"length": 40}, "make an input of 80 tokens, and .* takes 64"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    one = encoder("gpt2", tmp_path)
    with pytest.raises(UserError, match=message):
        begun(RepeatedSequences(**options), one)


def test_scores_are_those_of_transformer_lens(tmp_path: Path) -> None:
    detector = pytest.importorskip("transformer_lens.head_detector", reason="transformer_lens is not installed")
    one = encoder("gpt2", tmp_path)
    analysis = begun(RepeatedSequences(sequences=5, length=20, start="always"), one)
    tokens = analysis.tokens(one)
    model = AutoModel.from_pretrained(tmp_path, attn_implementation="eager")
    config = SimpleNamespace(device="cpu", n_ctx=64, n_layers=2, n_heads=4, dtype=torch.float32)

    def detected(role: str, measure: str, row: Tensor) -> NDArray[np.float32]:
        with torch.no_grad():
            own = model(row[None], output_attentions=True).attentions
        cache = {("pattern", layer, "attn"): weights[0] for layer, weights in enumerate(own)}
        lens = SimpleNamespace(cfg=config, to_tokens=lambda _: row[None])
        found: NDArray[np.float32] = detector.detect_head(
            lens, "", f"{role}_head", cache=cache, error_measure=measure
        ).numpy()
        return found

    names = {"previous": "previous_token", "duplicate": "duplicate_token", "induction": "induction"}
    # Theirs is rounded to three digits where it compares elementwise.
    for measure, tolerance in (("mul", 1e-4), ("abs", 6e-4)):
        for role, ours in analysis.scores(measure).items():  # type: ignore[arg-type]
            theirs = np.mean([detected(names[role], measure, row) for row in tokens], axis=0)
            assert np.abs(theirs - ours.over().value).max() < tolerance
