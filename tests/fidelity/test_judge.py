"""The tables that judge rankings, against numpy over scores that are written out, and their config."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from fidelity.comparison import SECONDS, CheckpointResult, Judged, judge_tables
from fidelity.saliency import Saliency, decision_gradient
from metrics.bootstrap import mean, resample, resamples
from results import Estimate
from tests.fidelity.test_experiment import run_over
from tests.fidelity.tiny import classified
from tests.fidelity.trained import ROOT

TEXTS = 40
RANKINGS = ("random", "attention", "file.v2")
GAINS = {"random": 0.0, "attention": 0.15, "file.v2": -0.3}
JUDGED = [
    Judged("soft", RANKINGS, {}),
    Judged("rationale", RANKINGS, {"sufficiency": "↓", "naopc": "↑", "auprc": "↑"}),
]


def result(variant: str, seed: int) -> CheckpointResult:
    """Values of three rankings that differ by a gain; `auprc` is undefined, and `soft.only` is of attention alone."""
    frame = pd.DataFrame(index=range(TEXTS))
    for ranking, gain in GAINS.items():
        for measure in ("sufficiency", "naopc"):
            random = np.random.default_rng([seed, len(ranking), len(measure), len(variant)])
            frame[f"rationale.{ranking}.{measure}"] = gain + random.normal(size=TEXTS) / 3
    frame["rationale.attention.aopc"] = 0.5  # without a direction
    frame["soft.attention.only"] = np.arange(TEXTS, dtype=float)
    frame["soft.other.only"] = 0.0  # of no ranking
    scores = {name: resample(mean, frame[[name]], "fraction") for name in map(str, frame)}
    nowhere = Estimate(np.nan, np.nan, np.nan, unit="fraction", draws=np.full(1000, np.nan))
    scores |= {f"rationale.{ranking}.auprc": nowhere for ranking in RANKINGS}
    return CheckpointResult(f"{variant}, seed {seed}", variant, seed, 2, 1, frame, scores)


RESULTS = [result("base", 0), result("base", 1), result("tying", 0)]
MAIN = ("rationale.attention.sufficiency", "rationale.attention.naopc", "rationale.attention.auprc")


def slow(variant: str, ranking: str, measure: str) -> tuple[float, np.ndarray]:
    """Mean over texts and seeds, and that of each resample."""
    values = np.mean(
        [one.values[f"rationale.{ranking}.{measure}"] for one in RESULTS if one.variant == variant], axis=0
    )
    weights = np.concatenate(list(resamples(TEXTS)))
    return values.mean(), weights @ values / weights.sum(1)


def slow_p(apart: np.ndarray) -> float:
    return min(1.0, 2 * (1 + int(min((apart <= 0).sum(), (apart >= 0).sum()))) / (1 + len(apart)))


def test_every_ranking_of_every_variant_has_a_row_and_every_measure_a_column_with_its_direction() -> None:
    table = judge_tables(RESULTS, JUDGED, MAIN, {("base", "attention"): 0.25})["judge"]
    columns = ["soft.only", "rationale.sufficiency ↓", "rationale.naopc ↑"]
    counts = ["better than random", "worse than random"]
    assert [name for name in map(str, table.frame) if not name.endswith((".low", ".high"))] == [
        "variant", "ranking", *columns, *counts, SECONDS,
    ]  # fmt: skip
    assert list(table.answer) == ["variant", "ranking", "rationale.naopc ↑", *counts]
    rows = table.frame.set_index(["variant", "ranking"])
    assert list(rows.index) == [(variant, ranking) for variant in ("base", "tying") for ranking in RANKINGS]
    for row in table.frame.to_dict("records"):
        variant, ranking = row["variant"], row["ranking"]
        for measure, column in (("sufficiency", columns[1]), ("naopc", columns[2])):
            value, draws = slow(variant, ranking, measure)
            assert row[column] == pytest.approx(value)
            assert [row[f"{column}.low"], row[f"{column}.high"]] == pytest.approx(np.quantile(draws, [0.025, 0.975]))
        assert (row["soft.only"] == 19.5) == (ranking == "attention")
    assert rows[SECONDS].dropna().to_dict() == {("base", "attention"): 0.25}
    # More is better on one measure and worse on the other: a sure difference is once the one, once the other.
    assert list(rows.loc[("base", "file.v2"), counts]) == [1, 1]
    assert rows.loc["base"].loc["random", counts].isna().all()


def test_differences_to_random_are_corrected_over_the_rankings_of_the_variant() -> None:
    table = judge_tables(RESULTS, JUDGED, MAIN, {})["judge_random"].frame
    assert len(table) == 2 * 2 * 2
    for key, rows in table.groupby(["variant", "measure"]):
        variant, measure = map(str, key)
        own = measure.split(".")[1].split(" ")[0]
        value, draws = slow(variant, "random", own)
        ps = []
        for row in rows.to_dict("records"):
            theirs, of_theirs = slow(variant, row["ranking"], own)
            assert row["difference"] == pytest.approx(theirs - value)
            ends = np.quantile(of_theirs - draws, [0.025, 0.975])
            assert [row["difference.low"], row["difference.high"]] == pytest.approx(ends)
            ps.append(slow_p(of_theirs - draws))
        assert rows["p"].tolist() == pytest.approx(ps)
        low, high = sorted(ps)
        corrected = {low: min(1, 2 * low), high: min(1, max(2 * low, high))}
        assert rows["p_holm"].tolist() == pytest.approx([corrected[p] for p in ps])


def test_one_variant_has_no_column_and_without_rankings_there_is_no_table() -> None:
    tables = judge_tables(RESULTS[:2], JUDGED, MAIN, {})
    assert all("variant" not in table.frame for table in tables.values())
    assert judge_tables(RESULTS, [Judged("rationale", (), {"naopc": "↑"})], MAIN, {}) == {}
    assert list(judge_tables(RESULTS, [Judged("soft", RANKINGS, {})], MAIN, {})) == ["judge"]  # random has no score


def test_columns_without_any_value_are_left_out() -> None:
    alone = [Judged("rationale", ("attention",), {"naopc": "↑"})]  # not compared with random, and not timed
    table = judge_tables(RESULTS, alone, MAIN, {})["judge"]
    assert list(table.frame) == ["variant", "ranking", *(f"rationale.naopc ↑{end}" for end in ("", ".low", ".high"))]
    assert list(table.answer) == ["variant", "ranking", "rationale.naopc ↑"]


def test_each_ranking_is_timed_once_and_shared_work_counts_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Mock(wraps=decision_gradient)
    monkeypatch.setattr("fidelity.saliency.decision_gradient", passes)
    saliency = Saliency(classified("flat"))
    for ranking in ("random", "attention", "leave_one_out", "attention_gradient"):
        saliency.rankings(ranking, 2)
    first = dict(saliency.seconds)
    assert list(first) == ["random", "attention", "leave_one_out", "attention_gradient"]
    assert min(first.values()) > 0
    saliency.magnitude("leave_one_out")
    saliency.rankings("random", 5)
    assert saliency.seconds == first
    saliency.signed("attention_times_gradient")
    assert saliency.seconds["attention_times_gradient"] > 0
    assert passes.call_count == 1
    measured = Saliency(classified("flat"))
    measured.magnitude("leave_one_out")  # which reads another column of the same pass
    assert measured.seconds["leave_one_out"] > 0


def test_the_config_judges_every_ranking_on_one_page(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    checkpoints = [runs / "base-1", runs / "tying", runs / "base-0"]
    config = f"--config={ROOT / 'configs' / 'judge.yaml'}"
    _, run, found = run_over(checkpoints, config, folder=tmp_path)
    table = pd.read_csv(run / found["tables"]["judge"])
    assert len(table) == 2 * 7
    scores = found["scores"]
    for row in table.to_dict("records"):
        prefix = "" if row["variant"] == "base" else f"{row['variant']}."
        for column, name in (("rationale.naopc ↑", "naopc"), ("rationale.sufficiency ↓", "sufficiency")):
            assert row[column] == pytest.approx(scores[f"{prefix}rationale.{row['ranking']}.{name}"])
        assert row[SECONDS] >= 0
    assert not [name for name in map(str, table) if "auprc" in name]  # no words are marked
    assert r"naopc\\$\uparrow$" in (run / found["latex"]["judge"]).read_text(encoding="utf-8")
    shown = pd.read_csv(run / found["figure_data"]["examples"])
    rankings = table["ranking"].unique()
    assert {f"{variant}: {ranking}" for variant in ("base", "tying") for ranking in rankings} <= set(shown["row"])
    assert "judge_random" in (run / "page.html").read_text(encoding="utf-8")
    block = capsys.readouterr().out.split("\njudge ")[1].split("\n\n")[0].splitlines()
    assert max(map(len, block)) <= 80
    (heads,) = [line.split() for line in block if "ranking" in line]  # columns beside each other
    assert heads[:2] == ["variant", "ranking"]
