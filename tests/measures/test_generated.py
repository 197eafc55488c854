"""Roles of heads in generated text, against loops over steps."""

import numpy as np
import pytest
import xarray as xr

from measures import lookback_ratio, retrieval_scores

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
