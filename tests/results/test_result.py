from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from attention_probing.results import Estimate, HeatMap, Result, Table, Unit, merge_results, numbers

HEADS = HeatMap("Heads", np.zeros((2, 3)), ["1", "2"], ["1", "2", "3"], "Layer", "Head", "Weight", unit="fraction")


def uas(value: float) -> dict[str, Estimate]:
    return {"uas": Estimate(value, unit="fraction")}


class TestEstimate:
    def test_what_is_there_is_named(self) -> None:
        whole = Estimate(0.5, 0.4, 0.6, unit="fraction", sd=0.1, p=0.01)
        assert whole.columns("f1") == {"f1": 0.5, "f1.low": 0.4, "f1.high": 0.6, "f1.sd": 0.1, "f1.p": 0.01}
        assert Estimate(3.0, unit="count").columns("n") == {"n": 3.0}
        assert numbers({"a": Estimate(1.0, unit="bits"), "b": Estimate(0.5, 0.4, 0.6, unit="p")}) == {
            "a": 1.0,
            "b": 0.5,
            "b.low": 0.4,
            "b.high": 0.6,
        }

    def test_a_unit_that_is_none_and_half_an_interval_are_refused(self) -> None:
        with pytest.raises(ValueError, match="'percent' is not a unit: use one of fraction, nats"):
            Estimate(0.5, unit="percent")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="both ends or neither, not"):
            Estimate(0.5, 0.4, unit="fraction")


class TestTable:
    FRAME = pd.DataFrame(
        {"name": ["a"], "n": [1], "x": [0.5], "x.low": [0.4], "x.high": [0.6], "y": [2.0], "low": [1.0]}
    )

    def test_every_column_of_floats_has_a_unit(self) -> None:
        known: dict[str, Unit | list[Unit]] = {"x": "fraction", "y": "bits"}
        with pytest.raises(ValueError, match="columns without a unit: low"):
            Table(self.FRAME, known)
        with pytest.raises(ValueError, match="name columns that the table lacks: z"):
            Table(self.FRAME, {**known, "z": "p"}, interval="y")
        with pytest.raises(ValueError, match="'x' has units"):
            Table(self.FRAME, {**known, "x": ["fraction", "p"]}, interval="y")

    def test_ends_and_deviations_have_the_unit_of_their_column(self) -> None:
        frame = self.FRAME.assign(high=3.0, sd=0.1)
        table = Table(frame, {"x": ["fraction"], "y": "bits"}, interval="y")
        assert table.intervals() == {"x": ("x.low", "x.high"), "y": ("low", "high")}
        assert table.unit_rows() == {
            **{name: ["fraction"] for name in ("x", "x.low", "x.high")},
            **{name: ["bits"] for name in ("y", "low", "high", "sd")},
        }


class TestResult:
    @pytest.mark.parametrize(("name", "score"), [("", 0.5), (" ", 0.5), ("uas", float("inf")), ("uas", -float("inf"))])
    def test_bad_scores_are_refused(self, name: str, score: float) -> None:
        with pytest.raises(ValueError, match="empty name" if not name.strip() else "'uas' of 'probe' is infinite"):
            Result("probe", {name: Estimate(score, unit="fraction")})

    @pytest.mark.parametrize("name", ["a/b", "..", "", ".hidden", "with space"])
    def test_names_that_are_no_file_names_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="cannot be a file name"):
            Result("probe", {}, figures={name: HEADS})

    @pytest.mark.parametrize(
        ("ratios", "fault"),
        [
            ({"las": ("right", "all")}, "`ratios` has 'las', which is not among `scores`"),
            ({"uas": ("right", "of")}, r"ratios\['uas'\] is .*, but must name two columns"),
        ],
    )
    def test_a_ratio_is_a_score_and_two_columns(self, ratios: dict[str, tuple[str, str]], fault: str) -> None:
        items = pd.DataFrame({"right": [1], "all": [2]})
        assert Result("probe", uas(0.5), items=items, ratios={"uas": ("right", "all")}).ratios
        with pytest.raises(ValueError, match=fault):
            Result("probe", uas(0.5), items=items, ratios=ratios)

    def test_a_share_is_a_score(self) -> None:
        assert Result("probe", uas(0.5), shares=("uas",)).shares == ("uas",)
        with pytest.raises(ValueError, match="`shares` has 'las', which is not among `scores`"):
            Result("probe", uas(0.5), shares=("las",))


def test_results_are_merged_and_keep_what_another_has_taken() -> None:
    frame = pd.DataFrame({"layer": [1]})
    one = Result("a", {"uas": Estimate(0.5, unit="fraction")}, {"layers": Table(frame)}, audit={"cut": 1})
    two = Result(
        "b", {"uas": Estimate(0.6, unit="fraction"), "p": Estimate(0.1, unit="p")}, {"layers": Table(frame)}, audit={}
    )
    found = merge_results("all", {"a": one, "b": two, "c": replace(one, tables={})})
    assert found.numbers == {"uas": 0.5, "b.uas": 0.6, "p": 0.1}
    assert list(found.tables) == ["layers", "b.layers"]
    assert found.audit == {"a.cut": 1, "c.cut": 1}


def test_an_undefined_score_of_two_results_stands_once() -> None:
    one, other = (Result(name, {"uas": Estimate(float("nan"), unit="fraction")}) for name in "ab")
    assert list(merge_results("all", {"a": one, "b": other}).scores) == ["uas"]
