"""Roles of heads on repeated tokens and in generated text, against loops over pairs of tokens and steps."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from attention_probing.attention import Encoder
from attention_probing.datamodules.batches import Ranks
from attention_probing.measures import RepeatedSequences, lookback_ratio, retrieval_scores
from attention_probing.measures.repeated import role_patterns, role_scores
from attention_probing.results.errors import UserError
from tests.attention.test_checks import save
from tests.measures.intervals import at_once_by_hand
from tests.measures.passes import ENCODERS, begin, encoder, uniform
from tests.metrics.samples import student_of_log_odds

ALONE = Ranks()
ROLES = ("previous", "duplicate", "induction")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attention_probing.measures.repeated.SEQUENCES", 12)


Maps = list[NDArray[np.float32]]


def begun(analysis: RepeatedSequences, encoder: Encoder, ranks: Ranks = ALONE) -> RepeatedSequences:
    analysis.ranks = ranks
    begin(analysis, encoder)
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


def looks_of(tokens: list[int]) -> list[Callable[[int, int], bool]]:
    """For each role, whether a token attends to another one."""
    return [
        lambda i, j: j == i - 1,
        lambda i, j: j < i and tokens[j] == tokens[i],
        lambda i, j: 0 < j <= i and tokens[j - 1] == tokens[i] and j - 1 < i,
    ]


def most_tokens(sequences: list[list[int]], role: int, copy: int) -> int:
    """The largest number of tokens that one token of a copy attends to."""
    most = 1
    for tokens in sequences:
        look = looks_of(tokens)[role]
        places = range(len(tokens))
        most = max(most, *(sum(look(i, j) for j in places) for i in places[-copy:]))
    return most


def by_hand(weights: NDArray[np.float32], tokens: list[int], copy: int) -> list[tuple[float, float]]:
    """Both measures of one head for each role, pair of tokens by pair of tokens, from the last `copy` tokens."""
    n = len(tokens)
    found = []
    for look in looks_of(tokens):
        mass = on = apart = 0.0
        for i in range(n - copy, n):
            for j in range(n):
                mass += float(weights[i, j])
                on += float(weights[i, j]) * look(i, j)
                apart += abs(float(weights[i, j]) - look(i, j))
        found.append((on / mass, 1 - apart / copy))
    return found


@pytest.mark.parametrize("kind", ENCODERS)
def test_scores_are_those_of_a_loop_over_pairs_of_tokens(kind: str, tmp_path: Path) -> None:
    one = encoder(kind, tmp_path)
    analysis = begun(RepeatedSequences(length=6), one)

    tokens = analysis.tokens(one)
    expected = np.array(
        [[[by_hand(head, row.tolist(), 6) for head in layer] for layer in maps_of(one, row)] for row in tokens]
    )
    assert (tokens[:, -12:-6] == tokens[:, -6:]).all()
    assert len(tokens[0]) == (12 if kind == "gpt2" else 13)  # it alone writes no start delimiter
    # Behind a window that is shorter than the sequence there is nothing, but where a token was drawn twice.
    maps = [np.array(uniform(kind, layer, len(tokens[0])), np.float32) for layer in range(one.layers)]
    even = np.array([[[by_hand(layer, row.tolist(), 6)] for layer in maps] for row in tokens])
    expected[np.broadcast_to(even[..., :1] == 0, expected.shape)] = np.nan
    table = analysis.result().tables["repeated"].frame
    for (place, end), (number, role) in product(enumerate(("", "_abs")), enumerate(ROLES)):
        for row, values in zip(table.to_dict("records"), expected[..., number, place].reshape(12, -1).T, strict=True):
            known = values[~np.isnan(values)]
            if not len(known):
                assert np.isnan([row[f"{role}{end}{ending}"] for ending in ("", ".low", ".high")]).all()
                continue
            assert row[role + end] == pytest.approx(known.mean(), abs=1e-6)
            if len(known) > 1:
                lowest = -float(place * most_tokens(tokens.tolist(), number, 6))
                low, high = student_of_log_odds(known[:, None], lowest, 1.0)
                assert row[f"{role}{end}.low"] == pytest.approx(low[0], abs=1e-6)
                assert row[f"{role}{end}.high"] == pytest.approx(high[0], abs=1e-6)


def test_rows_with_a_sink_are_divided_by_their_sums(tmp_path: Path) -> None:
    one = Encoder(str(save(tmp_path, "gpt_oss")))
    analysis = begun(RepeatedSequences(length=5), one)
    tokens = analysis.tokens(one)
    every = [[np.array(layer) for layer in maps_of(one, row)] for row in tokens]
    assert min(float(layer[..., -5:, :].sum(-1).min()) for maps in every for layer in maps) < 0.99
    shares = [[layer / layer.sum(-1, keepdims=True) for layer in maps] for maps in every]
    found = np.array(
        [
            [[by_hand(head, row.tolist(), 5) for head in layer] for layer in maps]
            for maps, row in zip(shares, tokens, strict=True)
        ]
    )
    table = analysis.result().tables["repeated"].frame
    for (place, end), (number, role) in product(enumerate(("", "_abs")), enumerate(ROLES)):
        expected = found[..., number, place].mean(0).ravel()
        assert table[f"{role}{end}"].tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_best_heads_are_named(tmp_path: Path) -> None:
    analysis = begun(RepeatedSequences(length=5), encoder("llama", tmp_path))
    result = analysis.result()
    frame = result.tables["repeated"].frame

    for role in ROLES:
        best = frame.sort_values(role).iloc[-1]
        assert result.scores[f"repeated.{role}"].value == best[role] > 0
        alone = best[f"{role}.low"], best[f"{role}.high"]
        at_once = at_once_by_hand(best[role], alone, 12, len(frame))
        assert result.scores[f"repeated.{role}"].interval == pytest.approx(at_once)
        assert at_once[0] < alone[0] < alone[1] < at_once[1]
        assert result.audit[f"best_{role}"] == f"{int(best['layer'])}-{int(best['head'])}"
    table = result.tables["repeated_roles"].frame.set_index("role")
    tokens = analysis.tokens(encoder("llama", tmp_path))
    alike = np.tril(np.ones((tokens.size(1),) * 2)) / np.arange(1, tokens.size(1) + 1)[:, None]
    by_row = [by_hand(alike.astype(np.float32), row.tolist(), 5) for row in tokens]
    for number, role in enumerate(ROLES):
        assert table.loc[role, "head"] == result.audit[f"best_{role}"]
        assert table.loc[role, "score"] == result.scores[f"repeated.{role}"].value
        assert table.loc[role, "uniform"] == pytest.approx(np.mean([one[number][0] for one in by_row]), abs=1e-6)


def test_a_head_that_copies_perfectly_has_a_score_of_one() -> None:
    tokens = torch.arange(8).repeat(1, 2)
    patterns = role_patterns(tokens)
    for copy, best in ((slice(-8, None), 1.0), (slice(None), 0.5)):
        # A head without anything to copy attends to the first token.
        weights = patterns[:, :, copy].clone()
        weights[..., 0] += 1 - weights.sum(-1)
        scores = role_scores(weights, patterns[:, :, copy])[0]
        assert scores[[1, 2], [1, 2]].tolist() == [best, best]


def test_sequences_longer_than_the_encoder_allows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"make an input of 80 tokens, but .* at most 64"):
        begun(RepeatedSequences(length=40), encoder("gpt2", tmp_path))


TO = ["a", "b", "c", "b", "x", "b", "c"]
FROM = ["x", "b", "c", "y"]


@pytest.fixture
def attention() -> xr.DataArray:
    """Four steps behind a prompt of four tokens."""
    values = np.random.default_rng(0).random((2, 3, 4, 7)).astype(np.float32)
    for step in range(4):
        values[..., step, 4 + step :] = 0
    values[0, 0, 1, 1], values[0, 0, 2, 2] = 5, 5  # copies b and c
    values[0, 1, 1, 3], values[0, 1, 2, 5] = 5, 5  # copies the other b; then looks at what it has generated
    values /= values.sum(-1, keepdims=True)
    coords = {"layer": [1, 2], "head": [1, 2, 3], "from": FROM, "to": TO, "generated": ("to", np.arange(7) >= 4)}
    return xr.DataArray(values, coords, ("layer", "head", "from", "to"))


def test_lookback_ratio_equals_a_loop(attention: xr.DataArray) -> None:
    found = lookback_ratio(attention)
    assert found.dims == ("layer", "head", "from")
    assert np.isnan(found.to_numpy()[..., 0]).all()
    for layer, head, step in np.ndindex(2, 3, 4):
        if step:
            row = attention.to_numpy()[layer, head, step]
            prompt, own = row[:4].mean(), row[4 : 4 + step].mean()
            assert found.to_numpy()[layer, head, step] == pytest.approx(prompt / (prompt + own))


def test_retrieval_scores_equal_a_loop(attention: xr.DataArray) -> None:
    found = retrieval_scores(attention, 1, 4)
    for layer, head in np.ndindex(2, 3):
        copied = set()
        for step, token in enumerate(FROM):
            most = int(attention.to_numpy()[layer, head, step].argmax())
            if 1 <= most < 4 and TO[most] == token:
                copied.add(most)
        assert found.to_numpy()[layer, head] == pytest.approx(len(copied) / 3)
    assert found.sel(layer=1, head=1) == pytest.approx(2 / 3)
    assert found.sel(layer=1, head=2) == pytest.approx(1 / 3)


@pytest.mark.parametrize(("start", "end"), [(2, 2), (-1, 2), (3, 5)])
def test_a_passage_outside_of_the_prompt_is_refused(attention: xr.DataArray, start: int, end: int) -> None:
    with pytest.raises(IndexError, match="the prompt, which has 4 tokens"):
        retrieval_scores(attention, start, end)
