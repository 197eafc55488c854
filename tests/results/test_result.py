import dataclasses

import numpy as np
import pandas as pd
import pytest

from results import AttentionLines, Bars, Estimate, HeatMap, Result, Table, numbers

HEADS = HeatMap("Heads", np.zeros((2, 3)), ["1", "2"], ["1", "2", "3"], "Layer", "Head", "Weight", unit="fraction")
BARS = Bars(
    "Relations", ("det", "obj"), {"probe": [0.5, 0.6]}, "Accuracy", {"probe": ([0.4, 0.5], [0.6, 0.7])}, unit="fraction"
)
LINES = AttentionLines("Head 3-9", ("[CLS]", "Go", "[SEP]"), np.eye(3), frozenset({(1, 0)}), "dependent", "head")


class TestBars:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"categories": ()}, "no categories or no series"),
            ({"series": {}, "intervals": {}}, "no categories or no series"),
            ({"series": {"probe": [0.5]}}, "series 'probe' has 1 values, not 2"),
            ({"intervals": {"probe": ([0.4, 0.5], [0.6])}}, "high end of 'probe' has 1 values, not 2"),
            ({"intervals": {"probe": ([0.4] * 3, [0.6] * 2)}}, "low end of 'probe' has 3 values, not 2"),
            ({"intervals": {"offset": ([0.4] * 2, [0.6] * 2)}}, r"intervals without a series: \['offset'\]"),
        ],
    )
    def test_misfits_are_refused(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=f"'Relations'.*{message}"):
            dataclasses.replace(BARS, **change)  # type: ignore[arg-type]


class TestHeatMap:
    @pytest.mark.parametrize("values", [np.zeros((3, 2)), np.zeros(6), np.zeros((2, 3, 1))])
    def test_misfits_are_refused(self, values: np.ndarray) -> None:
        with pytest.raises(ValueError, match=r"'Heads' has values of shape .* for 2 row labels and 3 column labels"):
            dataclasses.replace(HEADS, values=values)

    def test_an_empty_map_is_refused(self) -> None:
        with pytest.raises(ValueError, match="for 0 row labels"):
            dataclasses.replace(HEADS, values=np.zeros((0, 3)), row_labels=[])

    @pytest.mark.parametrize("cell", [(2, 0), (0, 3), (-1, 0), (0, -1)])
    def test_a_mark_beside_the_map_is_refused(self, cell: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match=r"'Heads' of shape \(2, 3\) has no cell .* to mark"):
            dataclasses.replace(HEADS, marked=cell)

    @pytest.mark.parametrize("limits", [(1.0, 2.0), (-2.0, -1.0), (0.0, float("nan")), (1.0, -1.0)])
    def test_values_beyond_the_scale_are_refused(self, limits: tuple[float, float]) -> None:
        with pytest.raises(ValueError, match="'Heads' has values that do not lie within"):
            dataclasses.replace(HEADS, limits=limits)

    def test_a_mark_may_stand_in_any_corner(self) -> None:
        assert dataclasses.replace(HEADS, marked=(1, 2)).marked == (1, 2)


class TestAttentionLines:
    @pytest.mark.parametrize("weights", [np.eye(2), np.zeros(3), np.zeros((3, 4)), np.zeros((3, 3, 1))])
    def test_misfits_are_refused(self, weights: np.ndarray) -> None:
        with pytest.raises(ValueError, match=r"'Head 3-9' have weights of shape .* for 3 words"):
            dataclasses.replace(LINES, weights=weights)

    def test_a_sentence_without_words_is_refused(self) -> None:
        with pytest.raises(ValueError, match="for 0 words"):
            dataclasses.replace(LINES, words=(), weights=np.zeros((0, 0)), arcs=frozenset())

    @pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan"), float("inf")])
    def test_what_is_no_attention_is_refused(self, weight: float) -> None:
        weights = np.eye(3)
        weights[1, 2] = weight
        with pytest.raises(ValueError, match=r"'Head 3-9' have weights from .* to .*, not within 0–1"):
            dataclasses.replace(LINES, weights=weights)

    def test_a_rounding_error_is_no_misfit(self) -> None:
        assert dataclasses.replace(LINES, weights=np.eye(3, dtype=np.float32) * np.float32(1.0001)).words[1] == "Go"

    @pytest.mark.parametrize("arc", [(3, 0), (0, 3), (-1, 0), (0, -1)])
    def test_an_arc_outside_the_words_is_refused(self, arc: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match=r"'Head 3-9' of 3 words have arcs outside them: \[\("):
            dataclasses.replace(LINES, arcs=frozenset({(1, 0), arc}))


def uas(value: float) -> dict[str, Estimate]:
    return {"uas": Estimate(value, unit="fraction")}


class TestEstimate:
    def test_what_is_there_is_named(self) -> None:
        whole = Estimate(0.5, 0.4, 0.6, unit="fraction", sd=0.1, p=0.01)
        assert whole.named("f1") == {"f1": 0.5, "f1.low": 0.4, "f1.high": 0.6, "f1.sd": 0.1, "f1.p": 0.01}
        assert Estimate(3.0, unit="count").named("n") == {"n": 3.0}
        assert numbers({"a": Estimate(1.0, unit="bits"), "b": Estimate(0.5, 0.4, 0.6, unit="p")}) == {
            "a": 1.0,
            "b": 0.5,
            "b.low": 0.4,
            "b.high": 0.6,
        }

    def test_a_unit_that_is_none_and_half_an_interval_are_refused(self) -> None:
        with pytest.raises(ValueError, match="no unit 'percent': use one of fraction, nats"):
            Estimate(0.5, unit="percent")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="two ends, not"):
            Estimate(0.5, 0.4, unit="fraction")


class TestTable:
    FRAME = pd.DataFrame(
        {"name": ["a"], "n": [1], "x": [0.5], "x.low": [0.4], "x.high": [0.6], "y": [2.0], "low": [1.0]}
    )

    def test_every_column_of_floats_has_a_unit(self) -> None:
        with pytest.raises(ValueError, match="columns without a unit: low"):
            Table(self.FRAME, {"x": "fraction", "y": "bits"})
        with pytest.raises(ValueError, match="columns that are not there: z"):
            Table(self.FRAME, {"x": "fraction", "y": "bits", "z": "p"}, interval="y")
        with pytest.raises(ValueError, match="'x' has units"):
            Table(self.FRAME, {"x": ["fraction", "p"], "y": "bits"}, interval="y")

    def test_ends_and_deviations_have_the_unit_of_their_column(self) -> None:
        frame = self.FRAME.assign(high=3.0, sd=0.1)
        table = Table(frame, {"x": ["fraction"], "y": "bits"}, interval="y")
        assert table.intervals() == {"x": ("x.low", "x.high"), "y": ("low", "high")}
        assert table.unit_rows() == {
            **{name: ["fraction"] for name in ("x", "x.low", "x.high")},
            **{name: ["bits"] for name in ("y", "low", "high", "sd")},
        }


class TestResult:
    def test_an_undefined_score_is_allowed(self) -> None:
        assert np.isnan(Result("probe", uas(float("nan"))).numbers["uas"])

    @pytest.mark.parametrize(("name", "score"), [("", 0.5), (" ", 0.5), ("uas", float("inf")), ("uas", -float("inf"))])
    def test_bad_scores_are_refused(self, name: str, score: float) -> None:
        with pytest.raises(ValueError, match="empty name" if not name.strip() else "'uas' of 'probe' is infinite"):
            Result("probe", {name: Estimate(score, unit="fraction")})

    @pytest.mark.parametrize("name", ["a/b", "..", "", ".hidden", "with space"])
    def test_names_that_are_no_file_names_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="cannot be a file name"):
            Result("probe", {}, figures={name: HEADS})

    @pytest.mark.parametrize("ratios", [{"las": ("right", "all")}, {"uas": ("right", "of")}])
    def test_a_ratio_is_a_score_and_two_columns(self, ratios: dict[str, tuple[str, str]]) -> None:
        items = pd.DataFrame({"right": [1], "all": [2]})
        assert Result("probe", uas(0.5), items=items, ratios={"uas": ("right", "all")}).ratios
        with pytest.raises(ValueError, match=r"is no score, or .* are no columns of its items"):
            Result("probe", uas(0.5), items=items, ratios=ratios)

    def test_it_cannot_be_changed(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            Result("probe", {}).experiment = "other"  # type: ignore[misc]
