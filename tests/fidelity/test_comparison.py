"""Tables that compare variants and judge rankings, against numpy over seeds that are written out."""

from dataclasses import replace

import numpy as np
import pytest

from attention_probing import fidelity
from attention_probing.fidelity.comparison import (
    SECONDS,
    comparison_table,
    fidelity_table,
    judge_tables,
    result_scores,
)
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.differences import difference
from attention_probing.metrics.statistics import mean
from attention_probing.results import Estimate
from attention_probing.results.tables import DASH, format_cells
from tests.fidelity.tiny import Described
from tests.fidelity.written_out import (
    JUDGED,
    JUDGED_RANKINGS,
    MAIN,
    RESULTS,
    SEVERAL,
    TEXTS,
    level_tail,
    over_seeds_of,
    over_texts_and_seeds,
    slow,
    slow_ends,
    slow_means,
    slow_p,
)


def test_variants_are_compared_with_the_first_over_their_seeds() -> None:
    table = comparison_table(SEVERAL).frame
    assert table["score"].tolist() == [
        *["single_token.spread"] * 3, *["erasure.middle"] * 3, *["adversary.max_jsd"] * 2,
    ]  # fmt: skip
    assert table["variant"].tolist() == ["base", "tying", "mlm", "base", "tying", "mlm", "base", "mlm"]
    assert table["seeds"].tolist() == [2, 3, 1, 2, 3, 1, 2, 1]
    groups = {name: [one for one in SEVERAL if one.variant == name] for name in ("base", "tying", "mlm")}
    means = {name: slow_means(ours) for name, ours in groups.items()}
    rows = {row["variant"]: row for row in table[table["score"] == "single_token.spread"].to_dict("records")}
    for name, ours in groups.items():
        values = [float(one.values["single_token.spread"].mean()) for one in ours]
        assert rows[name]["mean"] == pytest.approx(np.mean(values))
        ends = [rows[name]["low"], rows[name]["high"]]
        of_texts = slow_ends(means[name], level_tail(TEXTS - 3))
        assert ends == pytest.approx(list(over_texts_and_seeds(ours).interval), nan_ok=True)
        if len(values) > 1:
            assert rows[name]["sd"] == pytest.approx(np.std(values, ddof=1))
            two = len(values) == 2  # which leave the mean without an interval, as they differ
            assert np.isnan(ends).all() == two
            assert two or ends[0] <= of_texts[0] < of_texts[1] <= ends[1]  # seeds add to the variation of texts
        else:
            assert np.isnan(rows[name]["sd"])
            assert ends == pytest.approx(of_texts)
    for name in ("tying", "mlm"):
        apart = means[name] - means["base"]
        assert rows[name]["difference"] == pytest.approx(rows[name]["mean"] - rows["base"]["mean"])
        found = [rows[name]["difference.low"], rows[name]["difference.high"]]
        of_texts = slow_ends(apart)
        expected = difference(over_texts_and_seeds(groups[name]), over_texts_and_seeds(groups["base"]))
        assert [*found, rows[name]["p"]] == pytest.approx([*expected.interval, expected.p])
        assert found[0] <= of_texts[0] < of_texts[1] <= found[1]
        assert rows[name]["p"] >= slow_p(apart) - 1e-9
    # Of the two p-values of a score the smaller is doubled.
    assert rows["tying"]["p"] < rows["mlm"]["p"] < 1
    assert rows["tying"]["p_holm"] == pytest.approx(2 * rows["tying"]["p"])
    assert rows["mlm"]["p_holm"] == pytest.approx(max(rows["mlm"]["p"], 2 * rows["tying"]["p"]))
    alone = ["difference", "difference.low", "difference.high", "p", "p_holm"]
    assert np.isnan([rows["base"][column] for column in alone]).all()
    # One against one other: nothing to adjust for.
    (last,) = table[table["score"] == "adversary.max_jsd"].to_dict("records")[1:]
    assert last["p"] == last["p_holm"] < 1


def test_scores_and_main_table_have_the_means_of_the_comparison() -> None:
    alone = SEVERAL[0]
    assert result_scores([alone]) == alone.scores
    rows = comparison_table(SEVERAL).frame
    names = rows["score"].drop_duplicates().tolist()
    tests = [Described(name.partition(".")[0], (), {}) for name in names]
    scores, main = result_scores(SEVERAL), fidelity_table(SEVERAL, tests, names).frame
    assert main["score"].tolist() == names
    assert len(scores) == len(rows)
    for row in rows.to_dict("records"):
        found = scores[f"{row['variant']}.{row['score']}".removeprefix("base.")]
        (line,) = main[main["score"] == row["score"]].to_dict("records")
        for end, column, value in (
            ("", "mean", found.value),
            (".low", "low", found.low),
            (".high", "high", found.high),
        ):
            assert [line[f"{row['variant']}{end}"], row[column]] == pytest.approx(
                [value, value], rel=0, abs=0, nan_ok=True
            )


def test_every_ranking_of_every_variant_has_a_row_and_every_measure_a_column_with_its_direction() -> None:
    table = judge_tables(RESULTS, JUDGED, {("base", "attention"): 0.25})["judge"]
    columns = ["soft.only", "rationale.sufficiency ↓", "rationale.naopc ↑"]
    assert [name for name in map(str, table.frame) if not name.endswith((".low", ".high"))] == [
        "variant", "ranking", *columns, SECONDS,
    ]  # fmt: skip
    rows = table.frame.set_index(["variant", "ranking"])
    assert list(rows.index) == [(variant, ranking) for variant in ("base", "tying") for ranking in JUDGED_RANKINGS]
    for row in table.frame.to_dict("records"):
        variant, ranking = row["variant"], row["ranking"]
        for measure, column in (("sufficiency", columns[1]), ("naopc", columns[2])):
            value, draws = slow(variant, ranking, measure)
            assert row[column] == pytest.approx(value)
            ends = [row[f"{column}.low"], row[f"{column}.high"]]
            assert ends == pytest.approx(list(over_seeds_of(variant, ranking, measure).interval), nan_ok=True)
            if variant == "tying":  # one seed
                assert ends == pytest.approx(slow_ends(draws, level_tail(TEXTS)))
        assert (row["soft.only"] == 19.5) == (ranking == "attention")
    assert rows[SECONDS].dropna().to_dict() == {("base", "attention"): 0.25}


def test_differences_to_random_are_corrected_over_the_rankings_of_the_variant() -> None:
    table = judge_tables(RESULTS, JUDGED, {})["judge_random"].frame
    assert len(table) == 2 * 2 * 2
    for key, rows in table.groupby(["variant", "measure"]):
        variant, measure = map(str, key)
        own = measure.split(".")[1].split(" ")[0]
        value, draws = slow(variant, "random", own)
        ps = []
        for row in rows.to_dict("records"):
            theirs, of_theirs = slow(variant, row["ranking"], own)
            assert row["difference"] == pytest.approx(theirs - value)
            apart = difference(
                over_seeds_of(variant, row["ranking"], own), over_seeds_of(variant, "random", own), same_runs=True
            )
            ends = [row["difference.low"], row["difference.high"]]
            assert ends == pytest.approx(list(apart.interval))
            assert apart.p is not None
            ps.append(apart.p)
            if variant == "tying":  # one seed
                assert ends == pytest.approx(slow_ends(of_theirs - draws))
                assert ps[-1] == pytest.approx(slow_p(of_theirs - draws))
        assert rows["p"].tolist() == pytest.approx(ps)
        low, high = sorted(ps)
        corrected = {low: min(1, 2 * low), high: min(1, max(2 * low, high))}
        assert rows["p_holm"].tolist() == pytest.approx([corrected[p] for p in ps])


def test_without_rankings_there_is_no_table() -> None:
    assert judge_tables(RESULTS, [Described("rationale", (), {"naopc": "↑"})], {}) == {}
    assert list(judge_tables(RESULTS, [Described("soft", JUDGED_RANKINGS, {})], {})) == ["judge"]  # random has no score


def test_columns_without_any_value_are_left_out() -> None:
    alone = [Described("rationale", ("attention",), {"naopc": "↑"})]  # not compared with random, and not timed
    table = judge_tables(RESULTS, alone, {})["judge"]
    assert list(table.frame) == ["variant", "ranking", *(f"rationale.naopc ↑{end}" for end in ("", ".low", ".high"))]


def test_a_ranking_without_a_measure_that_has_a_direction_has_no_row() -> None:
    results = [replace(one, scores={**one.scores, "soft.late.only": one.scores["soft.other.only"]}) for one in RESULTS]
    soft = Described("soft", (*JUDGED_RANKINGS, "late"), {})
    table = judge_tables(results, [soft, JUDGED[1]], {})["judge"].frame
    assert table["ranking"].unique().tolist() == list(JUDGED_RANKINGS)
    assert judge_tables(results, [soft], {})["judge"].frame["ranking"].unique().tolist() == ["attention", "late"]


def test_the_main_table_has_a_row_for_a_score_and_the_best_ranking_first(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"f1": "fraction", "erasure.middle": "ratio", "erasure.flips_top": "fraction"}
    own = {name: resample(mean, np.arange(4.0)[:, None] / 4, unit) for name, unit in plain.items()}  # type: ignore[arg-type]
    nowhere = {"erasure.none": Estimate(np.nan, np.nan, np.nan, unit="fraction")}
    results = [replace(one, scores={**own, **nowhere, **one.scores}) for one in RESULTS]
    tests = [Described("erasure", (), {"middle": "↓"}), *JUDGED]
    asked = [*own, *nowhere, *MAIN, *(f"rationale.{ranking}.naopc" for ranking in ("random", "file.v2"))]
    table = fidelity_table(results, tests, asked)
    ends = [f"{variant}{end}" for variant in ("base", "tying") for end in ("", ".low", ".high")]
    assert list(table.frame) == ["test", *ends, "score"]
    assert table.main == ("test", "base", "tying")
    # Of the rankings only the last measure; the best one by base is first.
    rows = {
        "F1": "f1",
        "erasure: middle ↓": "erasure.middle",
        "erasure: flips top": "erasure.flips_top",
        "NAOPC ↑, attention": "rationale.attention.naopc",
        "NAOPC ↑, random": "rationale.random.naopc",
        "NAOPC ↑, file.v2": "rationale.file.v2.naopc",
    }
    assert dict(zip(table.frame["test"], table.frame["score"], strict=True)) == rows
    values = {ranking: slow("base", ranking, "naopc")[0] for ranking in ("attention", "random", "file.v2")}
    assert sorted(values, key=values.__getitem__, reverse=True) == list(values)
    assert table.frame["base"].tolist()[3:] == pytest.approx(list(values.values()))
    monkeypatch.setattr("attention_probing.fidelity.comparison.PRINTED", 5)
    assert fidelity_table(results, tests, asked).frame["test"].tolist() == list(rows)[:5]
    down = [Described("rationale", JUDGED_RANKINGS, {"naopc": "↓"})]
    assert fidelity_table(RESULTS, down, ["rationale.random.naopc"]).frame["test"].tolist() == [
        f"NAOPC ↓, {ranking}" for ranking in reversed(values)
    ]


def test_scores_of_few_texts_have_a_star_in_the_main_table() -> None:
    few = [replace(RESULTS[0], scores={name: replace(s, inputs=19) for name, s in RESULTS[0].scores.items()})]
    for results, star in ((few, "*"), (RESULTS[:1], "")):
        cells = format_cells(fidelity_table(results, JUDGED, MAIN), missing=DASH)["base"]
        assert len(cells) == 3
        assert all(cell.endswith(f"]{star}") for cell in cells)


def test_measures_to_read_together_with_a_main_measure_have_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = {"naopc": ("sufficiency", "absent")}
    judged = [Described("rationale", JUDGED_RANKINGS, {"sufficiency": "↓", "naopc": "↑"}, {}, beside)]
    table = fidelity_table(RESULTS, judged, MAIN).frame
    order = ("attention", "random", "file.v2")
    best = [f"NAOPC ↑, {ranking}" for ranking in order]
    assert table["test"].tolist() == [*best, "sufficiency ↓, attention", "sufficiency ↓, random"]
    value, _ = slow("base", "random", "sufficiency")
    assert table["base"].tolist()[-1] == pytest.approx(value)
    monkeypatch.setattr("attention_probing.fidelity.comparison.PRINTED", 4)  # they count among the rows
    assert fidelity_table(RESULTS, judged, MAIN).frame["test"].tolist() == [
        *best[:2], "sufficiency ↓, attention", "sufficiency ↓, random",
    ]  # fmt: skip
    assert fidelity.SetErasure.readings["median_fraction"].beside == ("never_flips", "last_flips")
    assert "sufficiency" in fidelity.Rationale.readings["comprehensiveness"].beside
