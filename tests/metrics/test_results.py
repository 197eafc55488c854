import dataclasses

import numpy as np
import pandas as pd
import pytest

from metrics.results import AttentionLines, Bars, HeatMap, Result

HEADS = HeatMap("Heads", np.zeros((2, 3)), ["1", "2"], ["1", "2", "3"], "Layer", "Head", "Weight")
BARS = Bars("Relations", ("det", "obj"), {"probe": [0.5, 0.6]}, "Accuracy", {"probe": ([0.4, 0.5], [0.6, 0.7])})
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


class TestResult:
    def test_an_undefined_score_is_allowed(self) -> None:
        assert np.isnan(Result("probe", {"uas": float("nan")}).scores["uas"])

    @pytest.mark.parametrize(("name", "score"), [("", 0.5), (" ", 0.5), ("uas", float("inf")), ("uas", -float("inf"))])
    def test_bad_scores_are_refused(self, name: str, score: float) -> None:
        with pytest.raises(ValueError, match="empty name" if not name.strip() else "'uas' of 'probe' is infinite"):
            Result("probe", {name: score})

    @pytest.mark.parametrize("name", ["a/b", "..", "", ".hidden", "with space"])
    def test_names_that_are_no_file_names_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="cannot be a file name"):
            Result("probe", {}, figures={name: HEADS})

    @pytest.mark.parametrize("ratios", [{"las": ("right", "all")}, {"uas": ("right", "of")}])
    def test_a_ratio_is_a_score_and_two_columns(self, ratios: dict[str, tuple[str, str]]) -> None:
        items = pd.DataFrame({"right": [1], "all": [2]})
        assert Result("probe", {"uas": 0.5}, items=items, ratios={"uas": ("right", "all")}).ratios
        with pytest.raises(ValueError, match=r"is no score, or .* are no columns of its items"):
            Result("probe", {"uas": 0.5}, items=items, ratios=ratios)

    def test_it_cannot_be_changed(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            Result("probe", {}).experiment = "other"  # type: ignore[misc]
