import dataclasses
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.colors import to_rgb
from matplotlib.container import BarContainer
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from attention_probing.results import (
    AttentionLines,
    Bars,
    Curves,
    Figure as Data,
    HeatMap,
    Maps,
    Provenance,
    Result,
    Spreads,
    on_one_scale,
)
from attention_probing.results.drawing import COLUMN_WIDTH, PAGE_WIDTH, draw, print_area
from attention_probing.results.figure_files import FigureFiles
from attention_probing.results.writer import write

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


def maps(rows: int, columns: int, size: int, **changes: object) -> Maps:
    random = np.random.default_rng(0)
    drawn = [[random.dirichlet(np.full(size, 0.1), size) for _ in range(columns)] for _ in range(rows)]
    names = ([str(row + 1) for row in range(rows)], [str(column + 1) for column in range(columns)])
    figure = Maps("Maps of all heads", drawn, *names, "Layer", "Head", "Weight", unit="fraction")
    return dataclasses.replace(figure, **changes)  # type: ignore[arg-type]


def roles(rows: int, columns: int, glyphs: dict[str, str]) -> HeatMap:
    names = (list(glyphs) * rows * columns)[: rows * columns]
    cells = [names[row * columns : (row + 1) * columns] for row in range(rows)]
    labels = ([str(row + 1) for row in range(rows)], [str(column + 1) for column in range(columns)])
    return HeatMap.from_categories("Roles", cells, glyphs, *labels, "Layer", "Head")


def plane(count: int, each: int, name: str = "{}", **changes: object) -> Curves:
    """Groups of points at random."""
    points = np.random.default_rng(0).standard_normal((count, 2, each)).tolist()
    groups = {name.format(1 + place): (x, y) for place, (x, y) in enumerate(points)}
    figure = Curves("Heads", "", "", points=groups, plane=True)
    return dataclasses.replace(figure, **changes)  # type: ignore[arg-type]


def sentence(words: int, arcs: int = 0, **changes: object) -> AttentionLines:
    """Words that attend at random, with gold arcs from the first ones to the next word."""
    weights = np.random.default_rng(0).dirichlet(np.full(words, 0.1), words)
    names = tuple(f"word{place}" for place in range(words))
    fields = {"arcs": frozenset((place, place + 1) for place in range(arcs)), **changes}
    return AttentionLines("Head 3-9", names, weights, **fields)  # type: ignore[arg-type]


def axes_of(figure: Data) -> Axes:
    """The main axes of the drawing."""
    return draw(figure).axes[0]


def containers(axes: Axes) -> list[BarContainer]:
    return [container for container in axes.containers if isinstance(container, BarContainer)]


def mesh(axes: Axes) -> QuadMesh:
    """The cells of a heat map."""
    [found] = [part for part in axes.collections if isinstance(part, QuadMesh)]
    return found


def cells(axes: Axes) -> np.ndarray:
    """The numbers of a heat map, nan where none is drawn."""
    rows, columns = (size - 1 for size in np.shape(mesh(axes).get_coordinates())[:2])
    return np.ma.filled(np.ma.asarray(mesh(axes).get_array(), dtype=float), NAN).reshape(rows, columns)


def limits(axes: Axes) -> object:
    return mesh(axes).get_clim()


def rectangles(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def texts(labels: Iterable[Text]) -> list[str]:
    return [label.get_text() for label in labels]


VARIANTS = ("base", "concat", "residual", "tying", "MLM")
BINS = ("0–.25", ".25–.5", ".5–.75", ".75–1")
RANKINGS = ("random", "attention", "attention_gradient", "attention_times_gradient", "leave_one_out", "ig")
LONG = "additive attention over a BiLSTM with residual and tying, λ = 0.1"
SPLIT = "Donaudampfschifffahrtsgesellschaftskapitänspatent"
TITLE = f"{LONG}: accuracy of each head on {SPLIT}, chosen on dev (all-MiniLM-L6-v2; en_ewt-ud, test)"


def values(number: int, seed: int = 0) -> list[float]:
    return cast(list[float], np.random.default_rng(seed).beta(2, 5, number).tolist())


def spreads(categories: Sequence[str], series: Sequence[str], rates: bool = False, **changes: object) -> Spreads:
    """A different number of values in each category of each series."""
    sizes = range(40, 1000, 7)
    data = {
        name: [values(sizes[row * len(categories) + place], row) for place in range(len(categories))]
        for row, name in enumerate(series)
    }
    shares = {name: values(len(categories), row) for row, name in enumerate(series)} if rates else {}
    labels = {"category_label": "highest attention weight of the text", "rate_label": "never flips"}
    label = "standard deviation of P(class) over the words of a text"
    changes = {"unit": "ratio", **labels, **changes}
    return Spreads("Spread of all", tuple(categories), data, label, rates=shares, **changes)  # type: ignore[arg-type]


def scatter(series: Sequence[str], number: int, **changes: object) -> Curves:
    points = {name: (values(number, row), values(number, row + 9)) for row, name in enumerate(series)}
    labels = ("difference of the two weights, of each text once", "difference of the two JSD, in nats")
    return Curves("Points", *labels, points=points, **changes)  # type: ignore[arg-type]


def lines(series: Sequence[str], number: int, **changes: object) -> Curves:
    x = np.geomspace(0.001, 0.3, number).tolist()
    drawn = {name: (x, np.linspace(0.0, 0.1 * (row + 1), number).tolist()) for row, name in enumerate(series)}
    return Curves("Lines", "ε", "ε-max JSD", drawn, **changes)  # type: ignore[arg-type]


def renamed(figure: Data, **changes: Any) -> Data:  # noqa: ANN401 # of any field
    """A figure with a title of four lines and other names."""
    return dataclasses.replace(figure, title=TITLE, **changes)


def colours(series: int) -> list[tuple[float, float, float]]:
    return list(sns.color_palette("colorblind", series))


def legend_of(canvas: Canvas) -> list[str]:
    return [text for legend in canvas.legends for text in texts(legend.get_texts())]


def assert_readable(canvas: Canvas) -> None:
    """No text touches another, in the axes, the legend, or around them; and nothing leaves the page."""
    canvas.draw_without_rendering()
    # An axis keeps ticks beyond its ends, which are not drawn.
    beyond = {
        id(label)
        for axes in canvas.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
        for label in (tick.label1, tick.label2)
    }
    shown = [
        text
        for text in cast(list[Text], canvas.findobj(lambda artist: isinstance(artist, Text)))
        if text.get_text().strip() and text.get_visible() and id(text) not in beyond
    ]
    assert len(shown) > 3
    size = canvas.get_size_inches() * canvas.dpi
    boxes = {id(text): text.get_window_extent() for text in shown}
    for text in shown:
        box = boxes[id(text)]
        assert min(box.x0, box.y0) >= -1, text
        assert box.x1 <= size[0] + 1, text
        assert box.y1 <= size[1] + 1, text
    for one, other in combinations(shown, 2):
        assert not boxes[id(one)].padded(-0.5).overlaps(boxes[id(other)].padded(-0.5)), (one, other)


@pytest.mark.parametrize(
    "figure",
    [
        bars(RELATIONS, 3),
        bars(("probe", "offset"), 5),
        bars(["attention-only probe", "best fixed offset", "right-branching"]),
        heat_map(24, 16, diverging=True),
        heat_map(32, 64),
        heat_map(6, 12, marked=(0, 11)),
        dataclasses.replace(heat_map(6, 12), values=np.full((6, 12), NAN)),
        renamed(heat_map(9, 9), row_labels=RELATIONS[:9], column_labels=RELATIONS[:9]),
        maps(1, 1, 1),
        maps(5, 6, 30, names=[["12-16 a_corpus_of_a_long_name"] * 6] * 5, row_labels=("vertical_diagonal", *"2345")),
        roles(1, 1, {"broad": "B"}),
        roles(12, 12, {f"a role of a head {one}": f"{one}x" for one in range(10)}),
        plane(7, 3, "a behaviour of heads {}"),
        plane(32, 32, bar_label="layer", title="Far too long a title " * 3),
        sentence(1),
        sentence(20, 15, from_label="the words that attend", to_label="the words attended to"),
        sentence(90, 3),
        AttentionLines("Long words and a title that is far too long", ("W" * 16, "http" * 20), np.eye(2) * 1.0001),
        renamed(bars([LONG, SPLIT, "kurz"], 3), category_label="kind"),
        renamed(spreads(BINS, ["base", "tying"], rates=True)),
        spreads(RANKINGS, VARIANTS, rates=True),
        Spreads("One value over and over", ("a", "b"), {"base": [[0.0] * 9, [0.2] * 3]}, "x", unit="ratio"),
        Spreads("Nothing", ("all",), {"b": [[]]}, "x", rates={"b": [NAN]}, rate_label="never flips", unit="ratio"),
        scatter(["base"], 0, log_x=True),
        renamed(scatter(VARIANTS, 300)),
        lines([LONG, "tying"], 50, y_range=(0, 0.7)),
    ],
    ids=lambda figure: f"{type(figure).__name__}-{figure.title}"[:20],
)
def test_figures_are_readable_at_their_printed_size(figure: Data) -> None:
    canvas = draw(figure)
    assert_readable(canvas)
    width, height = canvas.get_size_inches()
    assert width <= (PAGE_WIDTH if isinstance(figure, HeatMap | Maps | AttentionLines) else COLUMN_WIDTH) + 0.01
    assert height <= (13.5 if isinstance(figure, AttentionLines) else 11)


@pytest.mark.parametrize(
    ("figure", "width"),
    [
        (bars("ab"), COLUMN_WIDTH),
        (heat_map(2, 2), COLUMN_WIDTH),
        (heat_map(6, 40), PAGE_WIDTH),
        (heat_map(24, 16), PAGE_WIDTH),
        (maps(1, 1, 3), COLUMN_WIDTH),
        (sentence(40), PAGE_WIDTH),
        (spreads("ab", "cd", rates=True), COLUMN_WIDTH),
        (plane(3, 3), COLUMN_WIDTH),
    ],
)
def test_a_pdf_is_as_wide_as_a_column_or_a_page_and_cuts_nothing(figure: Data, width: float) -> None:
    canvas = draw(figure)
    area = print_area(canvas)
    assert area.width == pytest.approx(width)
    drawn = canvas.get_tightbbox()
    assert area.x0 <= drawn.x0 < drawn.x1 <= area.x1
    assert drawn.height < area.height < drawn.height + 0.1


def test_a_pdf_of_a_figure_wider_than_a_page_cuts_nothing() -> None:
    canvas = draw(bars("ab"))
    canvas.set_figwidth(2 * PAGE_WIDTH)
    assert print_area(canvas).width == pytest.approx(canvas.get_tightbbox().width)


def test_drawing_leaves_nothing_behind() -> None:
    before = dict(mpl.rcParams)
    charts = spreads("ab", "c", rates=True), lines("a", 8), plane(2, 2)
    for figure in (bars("ab"), heat_map(2, 3), maps(2, 2, 3), roles(1, 2, {"a": "A"}), sentence(5), *charts):
        draw(figure)
    assert plt.get_fignums() == []
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("figure", [bars(("$a$", "b")), AttentionLines("$5", ("$", "$x$"), np.eye(2))])
def test_a_price_is_no_formula(figure: Data) -> None:
    labels = [text for text in draw(figure).findobj(Text) if isinstance(text, Text) and "$" in text.get_text()]
    assert labels
    assert not any(label.get_parse_math() for label in labels)


def test_series_differ_in_more_than_colour() -> None:
    names = list("abcdefghij")
    hatches = [container.patches[0].get_hatch() for container in containers(axes_of(bars("ab", 10)))]
    curves = [(line._dash_pattern, line.get_marker()) for line in axes_of(lines(names, 50)).lines]  # type: ignore[attr-defined]
    points = [line.get_marker() for line in axes_of(scatter(names, 300)).lines]
    for channel in (hatches, curves, points):
        assert len(channel) == len({*map(str, channel)}) == 10


def test_a_pdf_has_its_fonts_and_no_text_is_small(tmp_path: Path) -> None:
    figures = (bars("ab", 2), heat_map(9, 9), maps(2, 2, 3, names=["ab", "cd"]), roles(2, 2, {"a": "A"}), sentence(60))
    for figure in (*figures, plane(3, 3), spreads("ab", "cd"), lines("ab", 9)):
        written = [text for text in draw(figure).findobj(Text) if isinstance(text, Text) and text.get_text()]
        assert min(float(text.get_fontsize()) for text in written) >= 7
    assert not write(
        tmp_path,
        Result("probe", {}, figures={"figure": bars("ab", 2)}),
        Provenance({}, {}, {}),
        figures=FigureFiles(formats=("pdf",)),
    )
    pdf = (tmp_path / "figures/figure.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


class TestBars:
    @pytest.mark.parametrize(
        ("unit", "heights", "label"),
        [("fraction", [10, 50, 90], "Accuracy (%)"), ("ratio", [0.1, 0.5, 0.9], "Accuracy")],
    )
    def test_only_fractions_are_percent(self, unit: str, heights: list[float], label: str) -> None:
        canvas = draw(bars("abc", unit=unit))
        [axes] = canvas.axes
        assert [bar.get_height() for bar in containers(axes)[0]] == pytest.approx(heights)
        assert axes.get_ylabel() == label
        assert texts(axes.get_xticklabels()) == ["a", "b", "c"]
        assert not canvas.legends  # one series needs none

    @pytest.mark.parametrize("lying", [False, True])
    def test_intervals_run_from_end_to_end(self, lying: bool) -> None:
        names = RELATIONS[:8] if lying else ("a", "b")
        low, high = [0.05] * len(names), [0.95] * len(names)
        low[1] = NAN
        axes = axes_of(bars(names, 2, intervals={"system 1": (low, high)}))
        [lines] = [part for part in axes.collections if isinstance(part, LineCollection)]
        segments = np.array(lines.get_segments())
        along, across = (0, 1) if lying else (1, 0)
        np.testing.assert_allclose(segments[:, :, along], [[5, 95]] * (len(names) - 1))
        bar = containers(axes)[1][0]
        middle = bar.get_y() + bar.get_height() / 2 if lying else bar.get_x() + bar.get_width() / 2
        np.testing.assert_allclose(segments[0, :, across], middle)


class TestHeatMap:
    def test_cells_are_the_values_and_the_first_row_is_on_top(self) -> None:
        figure = heat_map(6, 12)
        axes = axes_of(figure)
        np.testing.assert_array_equal(cells(axes), figure.values)
        assert axes.yaxis_inverted()
        assert texts(axes.get_yticklabels()) == list("123456")
        assert texts(axes.get_xticklabels()) == [str(head) for head in range(1, 13)]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("Head", "Layer")
        assert limits(axes) == (figure.values.min(), figure.values.max())
        assert not axes.patches  # no cell is framed unasked
        [frame] = rectangles(axes_of(heat_map(6, 12, marked=(2, 9))))
        assert frame.get_xy() == (9, 2)

    def test_fractions_are_percent_and_begin_at_zero_unless_one_is_below(self) -> None:
        figure = heat_map(6, 12, unit="fraction")
        figure.values[:] = np.abs(figure.values) + 0.1
        axes, bar = draw(figure).axes
        np.testing.assert_allclose(cells(axes), 100 * figure.values)
        assert bar.get_ylabel() == "Weight (%)"
        assert limits(axes) == pytest.approx((0, 100 * figure.values.max()))
        figure.values[0, 0] = -0.3
        assert mesh(axes_of(figure)).get_clim()[0] == pytest.approx(-30)

    def test_maps_of_one_quantity_share_their_colours(self) -> None:
        signed = {name: heat_map(6, 12, diverging=True) for name in "ab"}
        signed["b"].values[:2, 0] = -2.0, NAN
        for figure in on_one_scale(signed).values():
            assert limits(axes_of(figure)) == (-2.0, 2.0)
        assert on_one_scale({}) == {}

    def test_cells_have_the_colour_and_the_letter_of_their_category(self) -> None:
        glyphs = {"previous": "P", "next": "N", "broad": "B"}
        given: list[list[str | None]] = [["next", "previous", None], ["broad", "next", "next"]]
        canvas = draw(HeatMap.from_categories("Roles", given, glyphs, "12", "123", "Layer", "Head"))
        [axes] = canvas.axes
        np.testing.assert_array_equal(cells(axes), [[1, 0, NAN], [2, 1, 1]])
        written = {(label.get_position()[1] - 0.5, label.get_position()[0] - 0.5): label for label in axes.texts}
        assert {place: label.get_text() for place, label in written.items()} == {
            (y, x): glyphs[name] for y, row in enumerate(given) for x, name in enumerate(row) if name
        }
        assert legend_of(canvas) == ["P  previous", "N  next", "B  broad"]
        patches = canvas.legends[0].get_patches()
        assert [to_rgb(patch.get_facecolor()) for patch in patches] == [to_rgb(one) for one in colours(3)]


class TestMaps:
    def test_a_large_map_is_made_small_and_keeps_every_line(self) -> None:
        large = np.eye(700) / 2
        large[:, 333] = 0.9
        [image] = axes_of(dataclasses.replace(maps(1, 1, 1), maps=[[large]])).images
        small = np.asarray(image.get_array())[:192, :192]
        assert (small == 90).any(axis=0).sum() == 1
        assert (small == 90).all(axis=0).sum() == 1
        assert (small.diagonal() >= 50).all()


class TestPlane:
    def test_points_have_the_colour_of_their_group(self) -> None:
        figure = plane(3, 4)
        canvas = draw(figure)
        [axes] = canvas.axes
        for line, points in zip(axes.lines, figure.points.values(), strict=True):
            np.testing.assert_array_equal(np.array(line.get_data()), points)
        assert [to_rgb(line.get_color()) for line in axes.lines] == [to_rgb(one) for one in colours(3)]
        assert legend_of(canvas) == list("123")
        assert axes.get_aspect() == 1
        assert not [*axes.get_xticks(), *axes.get_yticks()]
        # Steps of a scale go from light to dark.
        steps = draw(plane(6, 2, bar_label="layer"))
        brightness = [sum(to_rgb(line.get_color())) for line in steps.axes[0].lines]
        assert brightness == sorted(brightness, reverse=True)
        assert steps.legends[0].get_title().get_text() == "layer"


class TestAttentionLines:
    WORDS = ("[CLS]", "She", "left", "[SEP]")
    WEIGHTS = np.array([[0.0, 0.0, 0.2, 0.8], [0.005, 0.015, 0.6, 0.38], [0.0, 0.95, 0.0, 0.05], [0.2, 0.2, 0.1, 0.5]])

    def drawn(self, *arcs: tuple[int, int]) -> dict[str, LineCollection]:
        axes = axes_of(AttentionLines("Head 3-9", self.WORDS, self.WEIGHTS, frozenset(arcs)))
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

    def test_gold_arcs_lie_on_top_in_their_own_colour(self) -> None:
        kinds = self.drawn((1, 2), (3, 2), (2, 3), (0, 1))
        assert list(kinds) == ["attention", "gold arc", "gold arc, below 0.1"]
        assert self.pairs(kinds["gold arc"]) == [(3, 2), (1, 2)]
        assert self.pairs(kinds["gold arc, below 0.1"]) == [(0, 1), (2, 3)]
        assert len(self.pairs(kinds["attention"])) == 11 - 3
        np.testing.assert_allclose(np.asarray(kinds["gold arc"].get_colors()), [(*RED, 0.4), (*RED, 0.6)])
        np.testing.assert_allclose(np.asarray(kinds["gold arc, below 0.1"].get_colors()), [(*RED, 0.9)] * 2)
        widths = {name: np.asarray(part.get_linewidth()).item() for name, part in kinds.items()}
        assert widths["gold arc"] > widths["attention"] > widths["gold arc, below 0.1"]


class TestSpreads:
    FIGURE = Spreads(
        "Spread",
        ("first", "second", "third"),
        {"base": [values(100), [], [0.1, 0.2, 0.3, 0.4, 0.5, NAN]], "tying": [values(60, 1), [0.7, NAN, 0.6], [0.9]]},
        "TVD",
        unit="ratio",
    )

    def test_rates_are_bars_in_the_same_rows(self) -> None:
        figure = dataclasses.replace(
            self.FIGURE, rates={"tying": [0.25, 0.5, NAN], "base": [0.0, 0.1, 1.0]}, rate_label="never flips"
        )
        canvas = draw(figure)
        axes, rates = canvas.axes
        assert (axes.get_xlabel().split("\n")[0], rates.get_xlabel()) == ("TVD", "never flips\n(%)")
        drawn = {
            (round(bar.get_y() + bar.get_height() / 2, 2), round(bar.get_width(), 6), to_rgb(bar.get_facecolor()))
            for bar in rectangles(rates)
            if bar.get_width() > 0
        }
        blue, orange = (to_rgb(colour) for colour in colours(2))
        rows = {blue: [(0.8, 10.0), (1.8, 100.0)], orange: [(0.2, 25.0), (1.2, 50.0)]}
        assert drawn == {(*place, colour) for colour, places in rows.items() for place in places}
        assert texts(axes.get_yticklabels()) == ["first", "second", "third"]
        assert legend_of(canvas) == ["base", "tying"]


class TestCurves:
    def test_lines_and_points_lie_at_their_coordinates(self) -> None:
        figure = Curves(
            "Adversaries",
            "TVD",
            "JSD",
            {"base": ([0.0, 0.1, 0.2], [0.0, 0.4, NAN]), "MLM": ([0.0, 0.3], [0.0, 0.1])},
            {"base": ([0.05, 0.06], [0.1, 0.2]), "uniform": ([0.1], [0.3])},
        )
        canvas = draw(figure)
        [axes] = canvas.axes
        drawn = axes.get_lines()
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("TVD", "JSD")
        parts = [figure.lines["base"], figure.points["base"], figure.lines["MLM"], figure.points["uniform"]]
        for line, coordinates in zip(drawn, parts, strict=True):
            np.testing.assert_array_equal(np.array(line.get_data()), np.array(coordinates))
        assert [line.get_linestyle() for line in drawn] == ["-", "None", "--", "None"]
        blue, orange, green = colours(3)
        # One name, one colour, and once in the legend.
        assert [line.get_color() for line in drawn] == [blue, blue, orange, green]
        assert legend_of(canvas) == ["base", "MLM", "uniform"]
        assert drawn[1].get_zorder() > drawn[2].get_zorder()
        assert len({line.get_marker() for line in drawn}) == 3
