from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from reports.figures import draw
from reports.style import COLUMN, PAGE
from results import AttentionLines, Bars, HeatMap, on_one_scale
from results import Figure as Data

RELATIONS = tuple(f"relation:{number}" for number in range(30))
NAN = float("nan")
BLUE, RED = (sns.color_palette("colorblind")[place] for place in (0, 3))


def bars(categories: Sequence[str], series: int = 1, **changes: object) -> Bars:
    values = {f"system {index}": np.linspace(0.1, 0.9, len(categories)).tolist() for index in range(series)}
    changes = {"unit": "fraction", **changes}
    return Bars("Accuracy", tuple(categories), values, "Accuracy", **changes)  # type: ignore[arg-type]


def heat_map(rows: int, columns: int, **changes: object) -> HeatMap:
    values = np.random.default_rng(0).uniform(-0.2, 0.8, (rows, columns))
    names = ([str(row + 1) for row in range(rows)], [str(column + 1) for column in range(columns)])
    changes = {"unit": "ratio", **changes}
    return HeatMap("Weights", values, *names, "Layer", "Head", "Weight", **changes)  # type: ignore[arg-type]


def sentence(words: int, arcs: int = 0, **changes: object) -> AttentionLines:
    """Words that attend at random, with gold arcs from the first ones to the next word."""
    weights = np.random.default_rng(0).dirichlet(np.full(words, 0.1), words)
    names = tuple(f"word{place}" for place in range(words))
    fields = {"arcs": frozenset((place, place + 1) for place in range(arcs)), **changes}
    return AttentionLines("Head 3-9", names, weights, **fields)  # type: ignore[arg-type]


def main_axes(canvas: Figure) -> Axes:
    return canvas.axes[0]


def containers(axes: Axes) -> list[BarContainer]:
    return [container for container in axes.containers if isinstance(container, BarContainer)]


def shown(axes: Axes) -> np.ndarray:
    values = axes.images[0].get_array()
    assert values is not None
    return values


def texts(labels: Sequence[Text]) -> list[str]:
    return [label.get_text() for label in labels]


def assert_readable(canvas: Figure) -> None:
    """No label of an axis touches the next, and nothing leaves the page."""
    canvas.draw_without_rendering()
    axes = main_axes(canvas)
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        boxes = [label.get_window_extent() for label in labels if label.get_text()]
        for one, other in pairwise(boxes):
            assert not one.overlaps(other)
    tight = canvas.get_tightbbox()
    width, height = canvas.get_size_inches()
    assert tight.x0 >= -0.01
    assert tight.y0 >= -0.01
    assert tight.x1 <= width + 0.01
    assert tight.y1 <= height + 0.01


@pytest.mark.parametrize(
    "figure",
    [
        bars(RELATIONS, 3),
        bars(RELATIONS, 1),
        bars(("probe", "offset"), 5),
        bars([str(layer) for layer in range(1, 13)], 2),
        bars(["attention-only probe", "best fixed offset", "right-branching"]),
        heat_map(6, 12),
        heat_map(24, 16, diverging=True),
        heat_map(32, 64),
        heat_map(2, 2),
        heat_map(48, 3),
        heat_map(6, 12, marked=(0, 11)),
        sentence(1),
        sentence(20, 15, from_label="the words that attend", to_label="the words attended to"),
        sentence(60, 50),
        sentence(90, 3),
        AttentionLines("Long words and a title that is far too long", ("W" * 16, "http" * 20), np.eye(2)),
        HeatMap(
            "A title that is far too long for a small map",
            np.eye(9),
            RELATIONS[:9],
            RELATIONS[:9],
            "",
            "",
            "",
            unit="ratio",
        ),
    ],
    ids=lambda figure: f"{type(figure).__name__}-{figure.title}"[:20],
)
def test_figures_are_readable_at_their_printed_size(figure: Data) -> None:
    canvas = draw(figure)
    assert_readable(canvas)
    assert canvas.get_size_inches()[0] <= (COLUMN if isinstance(figure, Bars) else PAGE)


def test_drawing_leaves_nothing_behind() -> None:
    before = dict(mpl.rcParams)
    draw(bars(RELATIONS, 3))
    draw(heat_map(6, 12))
    draw(sentence(5))
    assert plt.get_fignums() == []
    assert dict(mpl.rcParams) == before


def test_another_kind_of_figure_is_refused() -> None:
    with pytest.raises(TypeError, match="no drawing is known for dict"):
        draw({"title": "Accuracy"})


def test_a_price_is_no_formula() -> None:
    for figure in (bars(("$a$", "b")), AttentionLines("$5", ("$", "$x$"), np.eye(2), from_label="$a$")):
        canvas = draw(figure)
        canvas.draw_without_rendering()
        labels = [text for text in canvas.findobj(Text) if isinstance(text, Text) and "$" in text.get_text()]
        assert labels
        assert not any(label.get_parse_math() for label in labels)


class TestBars:
    def test_fractions_are_percent(self) -> None:
        axes = main_axes(draw(bars(("a", "b", "c"))))
        assert [bar.get_height() for bar in containers(axes)[0]] == pytest.approx([10, 50, 90])
        assert axes.get_ylabel() == "Accuracy (%)"
        assert texts(axes.get_xticklabels()) == ["a", "b", "c"]

    def test_other_values_stay(self) -> None:
        axes = main_axes(draw(bars(("a", "b", "c"), unit="ratio")))
        assert [bar.get_height() for bar in containers(axes)[0]] == pytest.approx([0.1, 0.5, 0.9])
        assert axes.get_ylabel() == "Accuracy"

    def test_many_relations_lie_and_the_first_is_on_top(self) -> None:
        axes = main_axes(draw(bars(RELATIONS, 3)))
        series = containers(axes)
        assert [bar.get_width() for bar in series[1]] == pytest.approx(np.linspace(10, 90, 30).tolist())
        assert texts(axes.get_yticklabels()) == list(RELATIONS)
        assert axes.yaxis_inverted()
        # Side by side in the order of the legend, centred on the tick.
        middles = [part[4].get_y() + part[4].get_height() / 2 for part in series]
        assert middles == sorted(middles)
        assert middles[1] == pytest.approx(4.0)
        legend = axes.get_legend()
        assert legend is not None
        assert texts(legend.get_texts()) == ["system 0", "system 1", "system 2"]

    @pytest.mark.parametrize("lying", [False, True])
    def test_the_axis_says_what_the_categories_are(self, lying: bool) -> None:
        figure = bars(RELATIONS if lying else ("a", "b"), category_label="relation and its best head (layer-head)")
        canvas = draw(figure)
        assert_readable(canvas)
        labels = main_axes(canvas).get_ylabel(), main_axes(canvas).get_xlabel()
        wanted = ("relation and its best head (layer-head)", "Accuracy (%)")
        assert labels == (wanted if lying else wanted[::-1])

    def test_one_series_needs_no_legend(self) -> None:
        assert main_axes(draw(bars(RELATIONS))).get_legend() is None

    @pytest.mark.parametrize("lying", [False, True])
    def test_intervals_run_from_end_to_end(self, lying: bool) -> None:
        names = RELATIONS[:8] if lying else ("a", "b")
        low, high = [0.05] * len(names), [0.95] * len(names)
        low[1] = NAN
        axes = main_axes(draw(bars(names, 2, intervals={"system 1": (low, high)})))
        lines = [part for part in axes.collections if isinstance(part, LineCollection)]
        assert len(lines) == 1
        segments = np.array(lines[0].get_segments())
        along, across = (0, 1) if lying else (1, 0)
        assert len(segments) == len(names) - 1
        np.testing.assert_allclose(segments[:, :, along], [[5, 95]] * (len(names) - 1))
        bar = containers(axes)[1][0]
        middle = bar.get_y() + bar.get_height() / 2 if lying else bar.get_x() + bar.get_width() / 2
        np.testing.assert_allclose(segments[0, :, across], middle)


class TestHeatMap:
    def test_cells_are_the_values_and_the_first_row_is_on_top(self) -> None:
        figure = heat_map(6, 12)
        axes = main_axes(draw(figure))
        np.testing.assert_array_equal(shown(axes), figure.values)
        assert axes.yaxis_inverted()
        assert texts(axes.get_yticklabels()) == list("123456")
        assert texts(axes.get_xticklabels()) == [str(head) for head in range(1, 13)]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("Head", "Layer")

    def test_zero_is_the_middle_of_a_diverging_map(self) -> None:
        figure = heat_map(6, 12, diverging=True)
        low, high = main_axes(draw(figure)).images[0].get_clim()
        assert -low == high == np.abs(figure.values).max()
        assert main_axes(draw(heat_map(6, 12))).images[0].get_clim() == (figure.values.min(), figure.values.max())

    def test_percent(self) -> None:
        figure = heat_map(6, 12, unit="fraction")
        canvas = draw(figure)
        np.testing.assert_allclose(shown(main_axes(canvas)), 100 * figure.values)
        bar = main_axes(canvas).child_axes[0]
        assert bar.get_ylabel() == "Weight (%)"

    def test_shares_begin_at_zero_unless_one_is_below(self) -> None:
        for rows, columns in ((6, 12), (3, 4)):
            figure = heat_map(rows, columns, unit="fraction")
            figure.values[:] = np.abs(figure.values) + 0.1
            low, high = main_axes(draw(figure)).images[0].get_clim()
            assert low == 0
            assert high == pytest.approx(100 * figure.values.max())
            figure.values[0, 0] = -0.3
            assert main_axes(draw(figure)).images[0].get_clim()[0] == pytest.approx(-30)

    def test_maps_of_one_quantity_share_their_colours(self) -> None:
        maps = {name: heat_map(6, 12, unit="fraction") for name in ("nsubj", "obj", "det")}
        for place, figure in enumerate(maps.values(), 1):
            figure.values[:] = np.abs(figure.values) / place
        maps["obj"].values[0, 0] = NAN
        highest = max(np.nanmax(figure.values) for figure in maps.values())
        drawn = [main_axes(draw(figure)) for figure in on_one_scale(maps).values()]
        for axes in drawn:
            assert axes.images[0].get_clim() == pytest.approx((0, 100 * highest))
            assert axes.child_axes[0].get_ylabel() == "Weight (%)"
        # The same value has the same colour in each.
        assert len({axes.images[0].to_rgba(np.array([[10.0]])).tobytes() for axes in drawn}) == 1
        signed = {name: heat_map(6, 12, diverging=True) for name in "ab"}
        signed["b"].values[0, 0] = -2.0
        for figure in on_one_scale(signed).values():
            assert main_axes(draw(figure)).images[0].get_clim() == (-2.0, 2.0)
        assert on_one_scale({}) == {}

    def test_few_cells_have_their_numbers_in_them_and_many_have_none(self) -> None:
        figure = heat_map(2, 3, unit="fraction")
        figure.values[1, 2] = NAN
        axes = main_axes(draw(figure))
        written = {label.get_position(): label.get_text() for label in axes.texts}
        cells = [(column, row) for row in range(2) for column in range(3) if (row, column) != (1, 2)]
        assert written == {(column, row): f"{100 * figure.values[row, column]:.0f}" for column, row in cells}
        assert not list(main_axes(draw(heat_map(9, 2))).texts)
        figure.values[:] = NAN
        assert not list(main_axes(draw(figure)).texts)

    def test_missing_values_are_grey_and_do_not_count(self) -> None:
        figure = heat_map(6, 12)
        figure.values[2, 3] = NAN
        axes = main_axes(draw(figure))
        assert np.argwhere(np.ma.getmaskarray(shown(axes))).tolist() == [[2, 3]]
        assert axes.images[0].get_clim() == (np.nanmin(figure.values), np.nanmax(figure.values))
        red, green, blue, _ = axes.images[0].to_rgba(shown(axes))[2, 3]
        assert red == green == blue
        figure.values[:] = NAN
        assert_readable(draw(figure))

    def test_wide_maps_take_both_columns_and_skip_labels(self) -> None:
        canvas = draw(heat_map(32, 64))
        assert COLUMN < canvas.get_size_inches()[0] <= PAGE
        labels = texts(main_axes(canvas).get_xticklabels())
        assert labels[0] == "1"
        assert 8 < len(labels) < 64

    def test_no_cell_is_framed_unasked(self) -> None:
        assert not main_axes(draw(heat_map(6, 12))).patches

    def test_the_marked_cell_is_framed_and_keeps_its_colour(self) -> None:
        axes = main_axes(draw(heat_map(6, 12, marked=(2, 10))))
        (frame,) = axes.patches
        assert isinstance(frame, Rectangle)
        assert frame.get_xy() == (9.5, 1.5)
        assert (frame.get_width(), frame.get_height()) == (1, 1)
        assert not frame.get_fill()
        # At the edge of the map, half of the frame lies outside.
        assert not frame.get_clip_on()


class TestAttentionLines:
    WORDS = ("[CLS]", "She", "left", "[SEP]")
    WEIGHTS = np.array([[0.0, 0.0, 0.2, 0.8], [0.005, 0.015, 0.6, 0.38], [0.0, 0.95, 0.0, 0.05], [0.2, 0.2, 0.1, 0.5]])

    def drawn(self, *arcs: tuple[int, int]) -> dict[str, LineCollection]:
        axes = main_axes(draw(AttentionLines("Head 3-9", self.WORDS, self.WEIGHTS, frozenset(arcs))))
        parts = [part for part in axes.collections if isinstance(part, LineCollection)]
        return {str(part.get_label()): part for part in parts}

    def pairs(self, lines: LineCollection) -> list[tuple[int, int]]:
        segments = np.array(lines.get_segments())
        assert (segments[:, 0, 0] < 0.05).all()
        assert (segments[:, 1, 0] > 0.95).all()
        return [(int(one), int(two)) for one, two in segments[:, :, 1]]

    def test_every_pair_that_is_seen_is_a_line_as_opaque_as_its_weight(self) -> None:
        kinds = self.drawn()
        assert list(kinds) == ["attention"]
        pairs = self.pairs(kinds["attention"])
        assert set(pairs) == {(int(one), int(two)) for one, two in np.argwhere(self.WEIGHTS >= 0.01)}
        assert len(pairs) == 11
        colours = np.asarray(kinds["attention"].get_colors())
        np.testing.assert_allclose(colours[:, 3], [self.WEIGHTS[pair] for pair in pairs])
        np.testing.assert_allclose(colours[:, :3], np.tile(BLUE, (11, 1)))
        assert list(colours[:, 3]) == sorted(colours[:, 3])

    def test_gold_arcs_lie_on_top_in_their_own_colour(self) -> None:
        # One with much attention, one with some, one with little and one with none.
        kinds = self.drawn((1, 2), (3, 2), (2, 3), (0, 1))
        assert list(kinds) == ["attention", "gold arc", "gold arc, below 0.1"]
        assert self.pairs(kinds["gold arc"]) == [(3, 2), (1, 2)]
        assert self.pairs(kinds["gold arc, below 0.1"]) == [(0, 1), (2, 3)]
        assert len(self.pairs(kinds["attention"])) == 11 - 3
        np.testing.assert_allclose(np.asarray(kinds["gold arc"].get_colors()), [(*RED, 0.4), (*RED, 0.6)])
        np.testing.assert_allclose(np.asarray(kinds["gold arc, below 0.1"].get_colors()), [(*RED, 0.9)] * 2)
        widths = {name: np.asarray(part.get_linewidth()).item() for name, part in kinds.items()}
        assert widths["gold arc"] > widths["attention"] > widths["gold arc, below 0.1"]
        # The offset and the lengths on and off, which are None for a solid line.
        styles = {
            name: cast(list[tuple[float, list[float] | None]], part.get_linestyle()) for name, part in kinds.items()
        }
        dashes = {name: lengths for name, ((_, lengths),) in styles.items()}
        assert dashes["gold arc, below 0.1"]
        assert not dashes["gold arc"]
        assert not dashes["attention"]

    def test_the_legend_names_what_is_drawn(self) -> None:
        canvas = draw(AttentionLines("Head 3-9", self.WORDS, self.WEIGHTS, frozenset({(1, 2)})))
        (legend,) = canvas.legends
        assert texts(legend.get_texts()) == ["attention", "gold arc"]
        assert [line.get_color() for line in legend.get_lines()] == [BLUE, RED]
        assert not draw(AttentionLines("None", ("a",), np.zeros((1, 1)))).legends

    def test_words_stand_on_both_sides_from_top_to_bottom(self) -> None:
        canvas = draw(AttentionLines("Head 3-9", self.WORDS, self.WEIGHTS, from_label="dependent", to_label="head"))
        left, right = canvas.axes
        for axes, label in ((left, "dependent"), (right, "head")):
            assert texts(axes.get_yticklabels()) == list(self.WORDS)
            assert axes.yaxis_inverted()
            assert texts(axes.texts) == [label]
        assert left.get_ylim() == right.get_ylim()
        assert right.yaxis.get_ticks_position() == "right"

    def test_a_word_that_is_too_long_ends_in_an_ellipsis(self) -> None:
        axes = main_axes(draw(AttentionLines("t", ("a" * 16, "b" * 17), np.eye(2))))
        assert texts(axes.get_yticklabels()) == ["a" * 16, "b" * 15 + "…"]

    def test_more_words_are_smaller_and_fit_a_page(self) -> None:
        few, many = draw(sentence(20)), draw(sentence(60))
        sizes = [float(canvas.axes[0].get_yticklabels()[0].get_fontsize()) for canvas in (few, many)]
        assert sizes[0] == 7.5
        assert 5.5 < sizes[1] < 6.5
        assert few.get_size_inches()[1] < 5
        assert many.get_size_inches()[1] < 9
