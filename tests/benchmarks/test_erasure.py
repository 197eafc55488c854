import json
from pathlib import Path

import pytest
import torch

from benchmarks import erasure
from benchmarks.erasure import one_by_one, rankings_of
from fidelity.erasure import SetErasure, first_flips
from tests.fidelity.tiny import TEXTS, classified


@pytest.mark.slow
def test_it_runs_as_the_command_line_runs_it(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    options = ["--corpus", "sample", "--limit", "30", "--rounds", "1", "--no-memory"]
    assert erasure.main(["--json", str(target), *options]) == 0
    content = json.loads(target.read_text())
    ratios, figures = content["ratios"], content["figures"]
    assert content["benchmark"] == "erasure"
    assert ratios.keys() == {"over_reference", "over_forwards"}
    assert ratios["over_reference"] == pytest.approx(figures["reference_s"] / figures["erasure_s"])
    assert ratios["over_forwards"] == pytest.approx(figures["forwards_s"] / figures["erasure_s"])
    assert (figures["corpus"], figures["texts"], figures["orders"]) == ("sample", 30, 10)
    assert figures["different_flips"] == 0
    assert figures["erased_weights"] >= 30 * 10


@pytest.mark.parametrize("whole_model", [False, True])
def test_both_sides_find_the_same_flips(whole_model: bool) -> None:
    batch = classified("flat", time=9)
    rankings = rankings_of(batch, SetErasure())
    assert rankings.shape == (10, len(TEXTS), 9)
    found = [
        one_by_one(classified("flat", [row]), rankings[:, row : row + 1, : len(text)], whole_model=whole_model)
        for row, text in enumerate(TEXTS)
    ]
    assert {0, 1, 2} < {flip for flips in found for flip in flips}
    torch.testing.assert_close(torch.tensor(found).T, first_flips(batch, rankings))
