import dataclasses
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import cast

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.container import BarContainer
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation, Text

from results import AttentionLines, Bars, Curves, HeatMap, Maps, Provenance, Result, Spreads, on_one_scale
from results import Figure as Data
from results.drawing import COLUMN, PAGE, draw
from results.writer import write

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


def shown(axes: Axes) -> np.ndarray:
    values = axes.images[0].get_array()
    assert values is not None
    return values


def texts(labels: Iterable[Text]) -> list[str]:
    return [label.get_text() for label in labels]


VARIANTS = ("base", "concat", "residual", "tying", "MLM")
BINS = ("0–.25", ".25–.5", ".5–.75", ".75–1")
RANKINGS = ("random", "attention", "attention_gradient", "attention_times_gradient", "leave_one_out", "ig")
LONG = "additive attention over a BiLSTM with residual and tying, λ = 0.1"
SPLIT = "Donaudampfschifffahrtsgesellschaftskapitänspatent"
TITLE = f"{LONG}: accuracy of each head on {SPLIT}, chosen on dev (all-MiniLM-L6-v2; en_ewt-ud, test)"
TEXTS = 1821


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


def renamed(figure: Data, **changes: object) -> Data:
    """A figure with a title of four lines and other names."""
    return dataclasses.replace(figure, title=TITLE, **changes)


def colours(series: int) -> list[tuple[float, float, float]]:
    return list(sns.color_palette("colorblind", series))


def legend_of(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    return texts(legend.get_texts()) if legend else []


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
    for axes in canvas.axes:
        for axis in (axes.xaxis, axes.yaxis):
            ticks = [boxes[id(label)] for label in axis.get_ticklabels() if id(label) in boxes]
            apart = min(
                (
                    max(two.x0 - one.x1, one.x0 - two.x1, two.y0 - one.y1, one.y0 - two.y1)
                    for one, two in combinations(ticks, 2)
                ),
                default=9.0,
            )
            assert apart >= (2 if axis is axes.xaxis else 0), axis
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
        dataclasses.replace(
            heat_map(9, 9), title="Far too long a title " * 2, row_labels=RELATIONS[:9], column_labels=RELATIONS[:9]
        ),
        maps(1, 1, 1),
        maps(
            5,
            6,
            30,
            names=[["12-16 a_corpus_of_a_long_name"] * 6] * 5,
            row_labels=("vertical", "vertical_diagonal", *"345"),
        ),
        maps(24, 16, 8, top=0.5, title="Far too long a title " * 8),
        roles(1, 1, {"broad": "B"}),
        roles(24, 16, {f"a role of a head {one}": f"{one}x" for one in range(10)}),
        roles(32, 32, {"broad": "B", "next": "N"}),
        plane(7, 3, "a behaviour of heads {}"),
        plane(32, 32, bar_label="layer", title="Far too long a title " * 3),
        plane(2, 1, bar_label="layer"),
        sentence(1),
        sentence(20, 15, from_label="the words that attend", to_label="the words attended to"),
        sentence(90, 3),
        AttentionLines("Long words and a title that is far too long", ("W" * 16, "http" * 20), np.eye(2) * 1.0001),
        renamed(bars([LONG, SPLIT, "kurz"], 3), category_label=LONG, label=LONG),
        renamed(bars("ab", 10), category_label=LONG, label=LONG),
        renamed(heat_map(3, 2), row_labels=[LONG, SPLIT, "b"], column_labels=[SPLIT, LONG], value_label=LONG),
        renamed(heat_map(12, 30), row_labels=[LONG] * 12, column_labels=[SPLIT] * 30, row_label=LONG),
        renamed(maps(2, 3, 8), row_labels=[LONG, SPLIT], column_labels=["a", SPLIT, LONG], value_label=LONG),
        renamed(roles(2, 2, {LONG: "a", SPLIT: "b"}), row_labels=[LONG, SPLIT]),
        renamed(plane(12, 3, f"{LONG} {{}}")),
        renamed(sentence(6, 4), from_label=LONG, to_label=SPLIT),
        renamed(spreads([LONG, SPLIT], [LONG, SPLIT, "c"], rates=True), label=LONG, rate_label=LONG),
        renamed(lines([LONG, SPLIT, *"abcdefgh"], 50), x_label=LONG, y_label=LONG),
        renamed(scatter(VARIANTS, 300), x_label=LONG, y_label=SPLIT),
        spreads(RANKINGS, VARIANTS, rates=True),
        Spreads("One value over and over", ("a", "b"), {"base": [[0.0] * 9, [0.2] * 3]}, "x", unit="ratio"),
        spreads(RANKINGS[:3], [f"{name}, seed {seed}" for name in VARIANTS for seed in range(3)]),
        spreads([LONG, "tying", "a_name_that_no_line_can_hold_as_it_is"], ["spread"]),
        spreads(BINS, [LONG, "tying"], rates=True),
        Spreads("Nothing", ("all",), {"b": [[]]}, "x", rates={"b": [NAN]}, rate_label="never flips", unit="ratio"),
        scatter(["base"], 0, log_x=True),
        lines([LONG, "tying"], 50, y_range=(0, 0.7)),
    ],
    ids=lambda figure: f"{type(figure).__name__}-{figure.title}"[:20],
)
def test_figures_are_readable_at_their_printed_size(figure: Data) -> None:
    canvas = draw(figure)
    assert_readable(canvas)
    width, height = canvas.get_size_inches()
    assert width <= (PAGE if isinstance(figure, HeatMap | Maps | AttentionLines) else COLUMN)
    assert height <= (13.5 if isinstance(figure, AttentionLines) else 11)


def test_drawing_leaves_nothing_behind() -> None:
    before = dict(mpl.rcParams)
    charts = spreads("ab", "c", rates=True), lines("a", 8), plane(2, 2)
    for figure in (bars("ab"), heat_map(2, 3), maps(2, 2, 3), roles(1, 2, {"a": "A"}), sentence(5), *charts):
        draw(figure)
    assert plt.get_fignums() == []
    assert dict(mpl.rcParams) == before


def test_another_kind_of_figure_is_refused() -> None:
    with pytest.raises(TypeError, match="no drawing function for dict"):
        draw({"title": "Accuracy"})


@pytest.mark.parametrize("figure", [bars(("$a$", "b")), AttentionLines("$5", ("$", "$x$"), np.eye(2))])
def test_a_price_is_no_formula(figure: Data) -> None:
    canvas = draw(figure)
    canvas.draw_without_rendering()
    labels = [text for text in canvas.findobj(Text) if isinstance(text, Text) and "$" in text.get_text()]
    assert labels
    assert not any(label.get_parse_math() for label in labels)


# What deuteranopes and protanopes see of linear red, green and blue: Machado et al. 2009, severity 1.
SEEN = {
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "all colours": np.eye(3).tolist(),
}


def lightness(colour: Sequence[float], eye: str = "all colours") -> float:
    """L* of a colour, 0–100."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]]
    red, green, blue = np.clip(np.array(SEEN[eye]) @ linear, 0, 1)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return float(116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance)


class TestWithoutColour:
    @pytest.mark.parametrize("eye", SEEN)
    def test_maps_go_from_light_to_dark(self, eye: str) -> None:
        for figure in (heat_map(9, 9), maps(2, 2, 3)):
            shades = [lightness(colour, eye) for colour in axes_of(figure).images[0].cmap(np.linspace(0, 1, 64))]
            assert all(one > two for one, two in pairwise(shades))
            assert shades[0] - shades[-1] > 80
        signed = axes_of(heat_map(9, 9, diverging=True)).images[0].cmap(np.linspace(0, 1, 65))
        shades = [lightness(colour, eye) for colour in signed]
        assert all(one < two for one, two in pairwise(shades[:33]))
        assert all(one > two for one, two in pairwise(shades[32:]))

    def test_cells_below_zero_have_a_minus_sign(self) -> None:
        figure = heat_map(9, 12, diverging=True)
        axes = axes_of(figure)
        marked = {(np.asarray(line.get_ydata()).item(), np.asarray(line.get_xdata()).item()) for line in axes.lines}
        assert {line.get_marker() for line in axes.lines} == {"_"}
        most = np.abs(figure.values).max()
        assert marked == {(y, x) for y, x in np.ndindex(9, 12) if figure.values[y, x] < -0.05 * most}
        assert 0 < len(marked) < 9 * 12
        assert not axes_of(heat_map(9, 12)).lines
        assert not axes_of(heat_map(3, 3, diverging=True)).lines  # these have numbers

    def test_ten_series_differ_in_more_than_colour(self) -> None:
        names = list("abcdefghij")
        hatches = [container.patches[0].get_hatch() for container in containers(axes_of(bars("ab", 10)))]
        axes, rates = draw(spreads("ab", names, rates=True)).axes
        drawn = [part.get_hatch() for part in axes.collections if isinstance(part, PolyCollection)]
        assert drawn == [hatch for hatch in hatches for _ in "ab"]
        assert [patch.get_hatch() for patch in rates.patches] == drawn
        legend = rates.get_legend()
        assert legend is not None
        assert [patch.get_hatch() for patch in legend.get_patches()] == hatches
        curves = [(line._dash_pattern, line.get_marker()) for line in axes_of(lines(names, 50)).lines]  # type: ignore[attr-defined]
        points = [line.get_marker() for line in axes_of(scatter(names, 300)).lines]
        heads = [line.get_marker() for line in axes_of(plane(10, 2)).lines]
        for channel in (hatches, curves, points, heads):
            assert len(channel) >= 7
            assert all(one != two for one, two in combinations(channel, 2))


def test_a_pdf_has_its_fonts_and_no_text_is_small(tmp_path: Path) -> None:
    figures = (bars("ab", 2), heat_map(9, 9), maps(2, 2, 3, names=["ab", "cd"]), roles(2, 2, {"a": "A"}), sentence(60))
    for figure in (*figures, plane(3, 3), spreads("ab", "cd"), lines("ab", 9)):
        canvas = draw(figure)
        written = [text for text in canvas.findobj(Text) if isinstance(text, Text) and text.get_text()]
        assert min(float(text.get_fontsize()) for text in written) >= 6
        assert not write(tmp_path, Result("probe", {}, figures={"figure": figure}), Provenance({}, {}, {}))
        pdf = (tmp_path / "figure.pdf").read_bytes()
        assert b"/FontFile2" in pdf
        assert b"/Type3" not in pdf


class TestBars:
    @pytest.mark.parametrize(
        ("unit", "heights", "label"),
        [("fraction", [10, 50, 90], "Accuracy (%)"), ("ratio", [0.1, 0.5, 0.9], "Accuracy")],
    )
    def test_only_fractions_are_percent(self, unit: str, heights: list[float], label: str) -> None:
        axes = axes_of(bars("abc", unit=unit))
        assert [bar.get_height() for bar in containers(axes)[0]] == pytest.approx(heights)
        assert axes.get_ylabel() == label
        assert texts(axes.get_xticklabels()) == ["a", "b", "c"]
        assert axes.get_legend() is None  # one series needs none

    def test_many_relations_lie_and_the_first_is_on_top(self) -> None:
        axes = axes_of(bars(RELATIONS, 3, category_label="relation"))
        series = containers(axes)
        assert [bar.get_width() for bar in series[1]] == pytest.approx(np.linspace(10, 90, 30).tolist())
        assert texts(axes.get_yticklabels()) == list(RELATIONS)
        assert axes.yaxis_inverted()
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("Accuracy (%)", "relation")
        # Side by side in the order of the legend, centred on the tick.
        middles = [part[4].get_y() + part[4].get_height() / 2 for part in series]
        assert middles == sorted(middles)
        assert middles[1] == pytest.approx(4.0)
        assert legend_of(axes) == ["system 0", "system 1", "system 2"]

    @pytest.mark.parametrize("lying", [False, True])
    def test_intervals_run_from_end_to_end(self, lying: bool) -> None:
        names = RELATIONS[:8] if lying else ("a", "b")
        low, high = [0.05] * len(names), [0.95] * len(names)
        low[1] = NAN
        axes = axes_of(bars(names, 2, intervals={"system 1": (low, high)}))
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
        axes = axes_of(figure)
        np.testing.assert_array_equal(shown(axes), figure.values)
        assert axes.yaxis_inverted()
        assert texts(axes.get_yticklabels()) == list("123456")
        assert texts(axes.get_xticklabels()) == [str(head) for head in range(1, 13)]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("Head", "Layer")

        assert axes.images[0].get_clim() == (figure.values.min(), figure.values.max())
        assert not axes.patches  # no cell is framed unasked

    def test_fractions_are_percent_and_begin_at_zero_unless_one_is_below(self) -> None:
        figure = heat_map(6, 12, unit="fraction")
        figure.values[:] = np.abs(figure.values) + 0.1
        axes = axes_of(figure)
        np.testing.assert_allclose(shown(axes), 100 * figure.values)
        assert axes.child_axes[0].get_ylabel() == "Weight (%)"
        assert axes.images[0].get_clim() == pytest.approx((0, 100 * figure.values.max()))
        figure.values[0, 0] = -0.3
        assert axes_of(figure).images[0].get_clim()[0] == pytest.approx(-30)

    def test_maps_of_one_quantity_share_their_colours(self) -> None:
        maps = {name: heat_map(6, 12, unit="fraction") for name in ("nsubj", "obj")}
        maps["obj"].values[:2, 0] = 2, NAN
        lowest = maps["obj"].values[np.isfinite(maps["obj"].values)].min()
        for figure in on_one_scale(maps).values():
            assert axes_of(figure).images[0].get_clim() == pytest.approx((100 * lowest, 200))
        signed = {name: heat_map(6, 12, diverging=True) for name in "ab"}
        signed["b"].values[0, 0] = -2.0
        for figure in on_one_scale(signed).values():
            assert axes_of(figure).images[0].get_clim() == (-2.0, 2.0)
        assert on_one_scale({}) == {}

    def test_few_cells_have_their_numbers_in_them_and_many_have_none(self) -> None:
        figure = heat_map(2, 3, unit="fraction")
        figure.values[1, 2] = NAN
        axes = axes_of(figure)
        written = {label.get_position(): label.get_text() for label in axes.texts}
        cells = [(column, row) for row in range(2) for column in range(3) if (row, column) != (1, 2)]
        assert written == {(column, row): f"{100 * figure.values[row, column]:.0f}" for column, row in cells}
        assert not list(axes_of(heat_map(9, 2)).texts)


class TestMaps:
    def test_pictures_lie_in_their_rows_and_columns_on_one_scale(self) -> None:
        figure = maps(2, 3, 4)
        figure = dataclasses.replace(figure, maps=[figure.maps[0], [None, *figure.maps[1][1:]]], names=["abc", "def"])
        axes = axes_of(figure)
        drawn = [one for row in figure.maps for one in row if one is not None]
        assert len(axes.images) == len(drawn) == 5
        places = []
        for image, one in zip(axes.images, drawn, strict=True):
            np.testing.assert_allclose(np.asarray(image.get_array()), 100 * one)
            left, right, bottom, upper = image.get_extent()
            assert (right - left, bottom - upper) == pytest.approx((1, 1))  # the first row on top
            places.append(((left + right) / 2, (upper + bottom) / 2))
            assert image.get_clim() == pytest.approx((0, 100 * max(map(np.max, drawn))))
        columns, rows = axes.get_xticks(), axes.get_yticks()
        expected = [(columns[x], rows[y]) for y, x in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2))]
        np.testing.assert_allclose(places, expected)
        assert axes.yaxis_inverted()
        assert (texts(axes.get_yticklabels()), texts(axes.get_xticklabels())) == (["1", "2"], ["1", "2", "3"])
        assert texts(axes.texts) == ["a", "b", "c", "e", "f"]
        assert axes.child_axes[0].get_ylabel() == "Weight (%)"
        assert axes_of(dataclasses.replace(figure, top=0.25)).images[0].get_clim() == (0, 25)

    def test_a_large_map_is_made_small_and_keeps_every_line(self) -> None:
        large = np.zeros((700, 700))
        large[np.arange(1, 700), np.arange(699)] = 0.5
        large[:, 333] = 0.9
        [image] = axes_of(dataclasses.replace(maps(1, 1, 1), maps=[[large]])).images
        small = np.asarray(image.get_array())
        assert small.shape == (200, 200)
        assert (small[:, 333 * 200 // 700] == 90).all()
        assert (small.diagonal() >= 50).all()
        assert set(np.unique(small)) == {0, 50, 90}


class TestCategories:
    def test_cells_have_the_colour_and_the_letter_of_their_category(self) -> None:
        glyphs = {"previous": "P", "next": "N", "broad": "B"}
        cells: list[list[str | None]] = [["next", "previous", None], ["broad", "next", "next"]]
        canvas = draw(HeatMap.from_categories("Roles", cells, glyphs, "12", "123", "Layer", "Head"))
        [axes] = canvas.axes
        drawn = axes.images[0].to_rgba(shown(axes))
        for y, x in np.ndindex(2, 3):
            name = cells[y][x]
            expected = (1.0, 1.0, 1.0) if name is None else colours(3)[list(glyphs).index(name)]
            assert tuple(drawn[y, x, :3]) == pytest.approx(expected)
        written = {(int(label.get_position()[1]), int(label.get_position()[0])): label for label in axes.texts}
        assert {place: label.get_text() for place, label in written.items()} == {
            (y, x): glyphs[name] for y, row in enumerate(cells) for x, name in enumerate(row) if name
        }
        assert axes.yaxis_inverted()
        [legend] = canvas.legends
        assert texts(legend.get_texts()) == ["P  previous", "N  next", "B  broad"]
        assert [to_rgb(patch.get_facecolor()) for patch in legend.get_patches()] == [to_rgb(one) for one in colours(3)]


class TestPlane:
    def test_points_have_the_colour_of_their_group(self) -> None:
        figure = plane(3, 4)
        axes = axes_of(figure)
        for line, (name, points) in zip(axes.lines, figure.points.items(), strict=True):
            assert line.get_label() == name
            np.testing.assert_array_equal(np.array(line.get_data()), points)
        assert [to_rgb(line.get_color()) for line in axes.lines] == [to_rgb(one) for one in colours(3)]
        assert legend_of(axes) == list("123")
        assert axes.get_aspect() == 1
        assert not [*axes.get_xticks(), *axes.get_yticks()]

    def test_points_fill_their_frame(self) -> None:
        """Alike in both directions, and no wider than the points need in one of them."""
        figure = plane(6, 12, bar_label="layer", title="Heads by distance and layer " * 3)
        canvas = draw(figure)
        canvas.draw_without_rendering()
        axes, points = canvas.axes[0], np.concatenate([np.array(points).T for points in figure.points.values()])
        room = [span[1] - span[0] for span in (axes.get_xlim(), axes.get_ylim())]
        assert 1 < min(room / np.ptp(points, axis=0)) < 1.2

    def test_steps_of_a_scale_go_from_light_to_dark_beside_a_bar(self) -> None:
        axes, bar = draw(plane(6, 2, bar_label="layer")).axes
        brightness = [sum(to_rgb(line.get_color())) for line in axes.lines]
        assert brightness == sorted(brightness, reverse=True)
        assert texts(bar.get_yticklabels()) == list("123456")
        assert bar.get_ylabel() == "layer"


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
    AT = {"base": (-0.21, 0.79, 1.79), "tying": (0.21, 1.21, 2.21)}
    """Half a row above and below the ticks: two rows in each category, .42 of it tall."""

    def test_a_violin_runs_from_the_least_to_the_greatest_value_in_its_row(self) -> None:
        axes = axes_of(self.FIGURE)
        bodies = [part for part in axes.collections if isinstance(part, PolyCollection)]
        rows = [("base", 0), ("base", 2), ("tying", 0)]  # those with values enough
        assert len(bodies) == len(rows)
        for body, (name, place) in zip(bodies, rows, strict=True):
            corners = np.concatenate([path.vertices for path in body.get_paths()])
            data = self.FIGURE.series[name][place]
            assert corners[:, 0].min() == pytest.approx(np.nanmin(data))
            assert corners[:, 0].max() == pytest.approx(np.nanmax(data))
            assert (corners[:, 1].min() + corners[:, 1].max()) / 2 == pytest.approx(self.AT[name][place])
            assert np.ptp(corners[:, 1]) == pytest.approx(0.85 * 0.42)
            assert np.asarray(body.get_facecolor())[0, :3] == pytest.approx(colours(2)[name == "tying"])

    def test_each_row_has_its_number_of_values_beside_it(self) -> None:
        figure = dataclasses.replace(self.FIGURE, series={**self.FIGURE.series, "base": [values(1821), [], [0.5, NAN]]})
        axes = axes_of(figure)
        notes = [note for note in axes.texts if isinstance(note, Annotation)]
        numbers = {(note.get_text(), round(note.xy[1], 2)) for note in notes}
        assert numbers == {("1,821", -0.21), ("0", 0.79), ("1", 1.79), ("60", 0.21), ("2", 1.21), ("1", 2.21)}

    def test_the_quartiles_are_a_bar_and_the_median_a_dot(self) -> None:
        data = [values(TEXTS), [*values(TEXTS, 1), 0.0]]
        canvas = draw(Spreads("t", ("a", "b"), {"base": data}, "x", unit="fraction"))
        axes = canvas.axes[0]
        [bars] = [part for part in axes.collections if isinstance(part, LineCollection)]
        [dots] = axes.get_lines()
        for place, group in enumerate(data):
            first, median, third = 100 * np.percentile(group, (25, 50, 75))
            np.testing.assert_allclose(bars.get_segments()[place], [(first, place), (third, place)])
            assert dots.get_xydata()[place] == pytest.approx((median, place))  # type: ignore[index]
        assert axes.get_xlabel() == "x (%)"
        assert canvas.get_supxlabel() == "bar: quartiles, dot: median, numbers: n of each row"

    def test_rates_are_bars_in_the_same_rows(self) -> None:
        figure = dataclasses.replace(
            self.FIGURE, rates={"tying": [0.25, 0.5, NAN], "base": [0.0, 0.1, 1.0]}, rate_label="never flips"
        )
        axes, rates = draw(figure).axes
        assert (axes.get_xlabel(), rates.get_xlabel()) == ("TVD", "never flips\n(%)")
        assert axes.get_ylim() == rates.get_ylim() == (2.5, -0.5)
        bars = [bar for bar in rates.patches if isinstance(bar, Rectangle)]
        drawn = {
            (round(bar.get_y() + bar.get_height() / 2, 2), round(bar.get_width(), 6), to_rgb(bar.get_facecolor()))
            for bar in bars
            if not np.isnan(bar.get_width())
        }
        blue, orange = (to_rgb(colour) for colour in colours(2))
        rows = {blue: [(-0.21, 0.0), (0.79, 10.0), (1.79, 100.0)], orange: [(0.21, 25.0), (1.21, 50.0)]}
        assert drawn == {(*place, colour) for colour, places in rows.items() for place in places}
        assert texts(axes.get_yticklabels()) == ["first", "second", "third"]
        assert axes.get_xlim()[0] == 0
        assert rates.get_xlim()[0] == 0
        assert legend_of(rates) == ["base", "tying"]


class TestCurves:
    def test_lines_and_points_lie_at_their_coordinates(self) -> None:
        figure = Curves(
            "Adversaries",
            "TVD",
            "JSD",
            {"base": ([0.0, 0.1, 0.2], [0.0, 0.4, NAN]), "MLM": ([0.0, 0.3], [0.0, 0.1])},
            {"base": ([0.05, 0.06], [0.1, 0.2]), "uniform": ([0.1], [0.3])},
        )
        axes = axes_of(figure)
        drawn = axes.get_lines()
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("TVD", "JSD")
        parts = [figure.lines["base"], figure.points["base"], figure.lines["MLM"], figure.points["uniform"]]
        for line, coordinates in zip(drawn, parts, strict=True):
            np.testing.assert_array_equal(np.array(line.get_data()), np.array(coordinates))
        assert [line.get_linestyle() for line in drawn] == ["-", "None", "--", "None"]
        blue, orange, green = colours(3)
        # One name, one colour, and once in the legend.
        assert [line.get_color() for line in drawn] == [blue, blue, orange, green]
        assert legend_of(axes) == ["base", "MLM", "uniform"]
        assert drawn[1].get_zorder() > drawn[2].get_zorder()
        assert len({line.get_marker() for line in drawn}) == 3
