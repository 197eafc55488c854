"""The view of attention, driven as a reader drives it; what is drawn is compared with NumPy on the same values."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page

from attention_probing.results import UserError
from attention_probing.results.view import PieceValues, View, view_page

Opened = Callable[..., Page]
WORDS = ("[CLS]", "the", "foxglove", "sleeps", "the", "fox", ".", "[SEP]")
ARCS = ((1, 2, "det"), (2, 3, "nsubj"), (4, 5, "det"))
SVG = "{http://www.w3.org/2000/svg}"


def attention(layers: int, heads: int, n: int, seed: int = 0, sharpness: float = 2.5) -> NDArray[np.float32]:
    scores = np.exp(sharpness * np.random.default_rng(seed).standard_normal((layers, heads, n, n)))
    weights: NDArray[np.float32] = (scores / scores.sum(-1, keepdims=True)).astype(np.float32)
    return weights


def make(**changes: Any) -> View:  # noqa: ANN401
    names = ("[CLS]", "the", "fox", "##glove", "sleeps", "the", "fox", ".", "[SEP]")
    view = View(
        "The foxglove",
        WORDS,
        attention(3, 4, len(WORDS)),
        layers=(1, 2, 5),
        heads=(1, 2, 3, 4),
        delimiters=(0, 7),
        arcs=ARCS,
        clusters=([(1, 3)], [(4, 6), (5, 6)]),
        saliency={"gradient": (0.0, 0.1, 0.9, -0.4, 0.0, 0.2, 0.0, 0.0)},
        pieces=PieceValues(names, (0, 1, 2, 2, 3, 4, 5, 6, 7), attention(3, 4, len(names), seed=1)),
        notes=("Two sentences were left out.",),
    )
    return replace(view, **changes)


@pytest.fixture
def show(tmp_path: Path, open_page: Opened) -> Callable[..., Page]:
    """Opens the page of views, once it is drawn; `address` is what stands behind the # of its address."""

    def shown(*views: View, address: str = "", **options: Any) -> Page:  # noqa: ANN401
        file = tmp_path / "view.html"
        file.write_text(view_page(*(views or (make(),))), encoding="utf-8")
        page = open_page(file, **options)
        page.wait_for_selector("html[data-drawn]")
        if address:
            act(page, lambda: page.evaluate("address => { location.hash = address; }", address))
        return page

    return shown


def act(page: Page, do: Callable[[], object]) -> None:
    """Do something, and wait until it is drawn."""
    before = page.get_attribute("html", "data-drawn")
    do()
    page.wait_for_function("before => document.documentElement.dataset.drawn !== before", arg=before)
    settle(page)


def settle(page: Page) -> None:
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def lines(page: Page, kind: str = "weight") -> list[tuple[Any, ...]]:
    """(head, from, to, value) of the lines as they were painted last."""
    found = page.evaluate(
        "kind => view.drawing.items.flatMap(item => item.items ?? [item]).filter(item => item.class === kind)"
        ".map(item => [item.head, item.from, item.to, item.value])",
        kind,
    )
    return sorted(map(tuple, found), key=str)


def expected(values: NDArray[np.floating], threshold: float, most: int | None = None) -> set[tuple[int, int]]:
    """Pairs that are to be drawn, by a loop."""
    found = set()
    for start, row in enumerate(values):
        order = sorted(range(len(row)), key=lambda end: (-row[end], end))[:most]
        found |= {(start, end) for end in order if row[end] >= threshold}
    return found


def pairs(page: Page, head: str = "1-1") -> set[tuple[int, int]]:
    return {(start, end) for name, start, end, _ in lines(page) if name == head}


def head(page: Page, layer: int, number: int) -> Any:  # noqa: ANN401
    return page.get_by_role("button", name=f"layer {layer}, head {number}", exact=True)


def decoded(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """What a page holds of the values of a head."""
    top = values.max()
    found: NDArray[np.floating] = top * (np.rint(255 * np.sqrt(values / top)) / 255) ** 2
    return found


def test_decoder_gives_back_every_head_within_the_error_that_the_page_names(show: Callable[..., Page]) -> None:
    view = make()
    page = show(view)
    said = float(re.findall(r"largest error is ([\d.e-]+)\.", page.inner_text("footer"))[0])
    errors = []
    for place in range(12):
        found = np.array(page.evaluate("place => values(place).then(found => Array.from(found))", place))
        original = view.values[divmod(place, 4)]
        errors.append(np.abs(found.reshape(original.shape) - original).max())
        assert errors[-1] <= original.max() / 255
    assert max(errors) == pytest.approx(said, rel=0.05)


@pytest.mark.core
def test_heads_are_chosen_by_click_keys_and_several_at_once(show: Callable[..., Page]) -> None:
    view = make()
    page = show(view)
    assert page.inner_text("#large-title") == "Layer 1, head 1"
    act(page, head(page, 2, 3).click)
    assert pairs(page, "2-3") == expected(decoded(view.values[1, 2]), 0.01 * view.values.max())
    act(page, lambda: page.keyboard.press("ArrowDown"))
    assert page.inner_text("#large-title") == "Layer 5, head 3"  # the third layer is the encoder's fifth
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "layer 5, head 3"
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "layer 5, head 3"
    act(page, lambda: head(page, 1, 4).click(modifiers=["Shift"]))
    assert {line[0] for line in lines(page)} == {"5-3", "1-4"}
    assert head(page, 5, 3).get_attribute("aria-pressed") == "true"
    colours = page.evaluate(
        "[...new Set(view.drawing.items[0].items.filter(i => i.class === 'weight').map(i => i.stroke))]"
    )
    assert len(colours) == 2
    page.keyboard.press("ArrowLeft")  # moves, but takes no head away
    act(page, lambda: page.keyboard.press(" "))
    assert {line[0] for line in lines(page)} == {"5-3", "1-4", "1-3"}
    act(page, lambda: page.keyboard.press(" "))
    assert {line[0] for line in lines(page)} == {"5-3", "1-4"}
    act(page, lambda: page.keyboard.press("Enter"))
    assert page.inner_text("#large-title") == "Layer 1, head 3"
    act(page, page.get_by_role("button", name="all heads of layer 2").click)
    assert {line[0] for line in lines(page)} == {"2-1", "2-2", "2-3", "2-4"}


def test_mean_of_the_chosen_heads(show: Callable[..., Page]) -> None:
    view = make()
    page = show(view, address="heads=1-1.1-2.2-4&together=mean&threshold=0")
    wanted = np.stack([decoded(view.values[at]) for at in ((0, 0), (0, 1), (1, 3))]).mean(0)
    found = np.zeros_like(wanted)
    for _, start, end, value in lines(page):
        found[start, end] = value
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_threshold_and_most_per_word_and_what_they_hide(show: Callable[..., Page]) -> None:
    view = make()
    page = show(view)
    values = decoded(view.values[0, 0])
    act(page, lambda: page.locator("#threshold").fill("30"))
    threshold = 0.3**2 * float(view.values.max())
    assert pairs(page) == expected(values, threshold)
    act(page, lambda: page.select_option("#top", "2"))
    kept = expected(values, threshold, 2)
    assert pairs(page) == kept != expected(values, threshold)
    share = sum(values[pair] for pair in kept) / values.sum()
    assert f"{len(kept)} of 64 values are shown, {100 * share:.1f} % of the attention" in page.inner_text("#shown")


def test_each_head_has_its_own_thumbnail(show: Callable[..., Page]) -> None:
    """The only value of head k lies in cell (k, k)."""
    values = np.zeros((2, 3, 8, 8), np.float32)
    for place in range(6):
        values[place // 3, place % 3, place, place] = 1
    page = show(make(values=values, layers=(1, 2), heads=(1, 2, 3), pieces=None), device_scale_factor=1)
    brightest = page.evaluate(
        """() => { const side = view.side, canvas = document.getElementById("sprite");
        const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const value = (head, cell) => { const at = Math.floor((cell + .5) * (side - 3) / 8 + 1.5);
            return data[4 * ((Math.floor(head / 3) * side + at) * width + head % 3 * side + at) + 3]; };
        return [0, 1, 2, 3, 4, 5].map(head => [...Array(8).keys()].filter(cell => value(head, cell) > 128)); }"""
    )
    assert brightest == [[place] for place in range(6)]


def test_delimiters_are_hidden_and_rows_sum_to_one_again(show: Callable[..., Page]) -> None:
    view = make()
    page = show(view, address="threshold=0")
    values = decoded(view.values[0, 0])
    act(page, lambda: page.select_option("#delimiters", "hidden"))
    inner = values[1:-1, 1:-1]
    np.testing.assert_allclose(sorted(line[3] for line in lines(page)), np.sort(inner, axis=None), rtol=1e-5)
    lost = 1 - inner.sum() / values[1:-1].sum()
    assert f"{100 * lost:.1f} % of it goes to delimiters" in page.inner_text("#shown")
    act(page, lambda: page.select_option("#delimiters", "renormalised"))
    sums = np.zeros(6)
    for _, start, _, value in lines(page):
        sums[start] += value
    np.testing.assert_allclose(sums, 1, atol=1e-6)


def test_a_decoder_begins_without_its_first_token(show: Callable[..., Page]) -> None:
    page = show(make(sink=True, delimiters=(7,)), address="threshold=0")
    assert page.input_value("#delimiters") == "renormalised"
    assert page.inner_text("#delimiters-name") == "Delimiters and first token"
    assert {end for _, _, end, _ in lines(page)} == set(range(6))  # of the words that are left
    act(page, lambda: page.select_option("#delimiters", "shown"))
    assert len({end for _, _, end, _ in lines(page)}) == 8


def test_pointing_at_a_word_shows_its_row_with_numbers(show: Callable[..., Page]) -> None:
    view = make()
    page = show(view, address="threshold=0")
    values = decoded(view.values[0, 0])
    word = page.locator("#words button").nth(5)
    word.hover()
    settle(page)
    assert pairs(page) == {(5, end) for end in range(8)}
    table = page.locator("#numbers tbody tr").first.inner_text().split()
    best = int(values[5].argmax())
    assert table == [WORDS[best], str(best), f"{values[5].max():.3f}".lstrip("0")]
    box = page.locator("#figure").bounding_box()
    assert box is not None
    y = page.evaluate("view.drawing.frame.top + 2.5 * view.drawing.frame.size")
    page.mouse.move(box["x"] + box["width"] - 10, box["y"] + y)  # the third word on the right
    settle(page)
    assert pairs(page) == {(start, 2) for start in range(8)}
    page.mouse.move(1, 1)
    settle(page)
    assert len(pairs(page)) == 64
    word.focus()
    page.keyboard.press("ArrowRight")
    settle(page)
    assert pairs(page) == {(6, end) for end in range(8)}
    act(page, lambda: page.keyboard.press("Enter"))
    assert "word=6" in page.url
    act(page, lambda: page.keyboard.press("Escape"))
    assert "word=" not in page.url


def test_second_layer_arcs_clusters_and_saliency(show: Callable[..., Page]) -> None:
    view = make()
    page = show(view)
    assert [line[1:3] for line in lines(page, "gold")] == [arc[:2] for arc in ARCS]
    hit = sum(int(view.values[0, 0, start].argmax()) == end for start, end, _ in ARCS)
    assert f"in {hit} of 3" in page.inner_text("#shown")
    act(page, lambda: page.select_option("#arcs", "reversed"))
    assert sorted(line[1:3] for line in lines(page, "gold")) == sorted((end, start) for start, end, _ in ARCS)
    act(page, lambda: page.select_option("#arcs", "off"))
    assert not lines(page, "gold")
    assert page.locator("#words sup").all_inner_texts() == ["1", "1", "2", "2"]
    assert len(lines(page, "cluster")) == 2 * 4
    page.get_by_label("clusters").uncheck()
    assert page.locator("#words sup").count() == len(lines(page, "cluster")) == 0
    page.select_option("#saliency", "gradient")
    backgrounds = page.locator("#words button").evaluate_all(
        "all => all.map(one => Number(getComputedStyle(one).backgroundColor.match(/([\\d.]+)\\)$/)[1]))"
    )
    assert np.argsort(backgrounds)[-3:].tolist() == [5, 3, 2]
    assert len(lines(page, "saliency")) == 2 * 4


def test_pieces_on_demand(show: Callable[..., Page]) -> None:
    view = make()
    assert view.pieces is not None
    page = show(view, address="threshold=0")
    act(page, page.get_by_label("pieces of words").check)
    assert page.locator("#words button").evaluate_all("all => all.map(one => one.firstChild.data)") == list(
        view.pieces.names
    )
    found = np.zeros((9, 9))
    for _, start, end, value in lines(page):
        found[start, end] = value
    np.testing.assert_allclose(found, decoded(view.pieces.values[0, 0]), atol=1e-6)
    assert [line[1:3] for line in lines(page, "gold")] == [(1, 2), (2, 4), (5, 6)]  # first pieces


def test_export_holds_what_is_seen(tmp_path: Path, show: Callable[..., Page]) -> None:
    view = make()
    page = show(view, address="drawing=matrix&threshold=21&heads=1-2.2-2")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save as SVG").click()
    file = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(file)
    root = ET.parse(file).getroot()
    threshold = 0.21**2 * float(view.values.max())
    count = sum(len(expected(decoded(view.values[at]), threshold)) for at in ((0, 1), (1, 1)))
    assert len(root.findall(f".//{SVG}rect[@class='cell']")) == count
    assert len(root.findall(f".//{SVG}*[@class='gold']")) == 3
    assert [text.text for text in root.iter(f"{SVG}text")].count("foxglove") == 2
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save as PNG").click()
    assert waiting.value.path().read_bytes().startswith(b"\x89PNG")


def test_view_of_a_notebook(tmp_path: Path, browser: Browser) -> None:
    """In a frame of its own, which has no address and may not reach the notebook."""
    file = tmp_path / "notebook.html"
    file.write_text(f"<!DOCTYPE html><title>n</title>{make()._repr_html_()}", encoding="utf-8")
    page = browser.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text))
    page.goto(file.as_uri())
    frame = page.frame_locator("iframe")
    frame.get_by_role("button", name="layer 2, head 2", exact=True).click(timeout=5000)
    frame.get_by_text("Layer 2, head 2", exact=True).wait_for(timeout=5000)
    assert not faults
    page.close()


def test_text_is_never_markup(show: Callable[..., Page]) -> None:
    evil = ("[CLS]", "<script>alert(1)</script>", "</script>", "<b>x</b>", "&amp;", "'\"", ".", "[SEP]")
    title = '"><img src=x onerror=alert(1)>'
    page = show(make(words=evil, title=title, notes=[title], saliency={title: [1.0] * 8}, quantity=title))
    assert page.evaluate("document.querySelectorAll('img, b, script:not([type])').length") == 2  # the two of the page
    assert page.inner_text("h1") == page.title() == title
    assert page.locator("#words button").nth(1).evaluate("one => one.firstChild.data") == evil[1]
    page.locator("#words button").nth(1).hover()
    settle(page)
    assert (
        page.evaluate("new DOMParser().parseFromString(svg(view.drawing), 'image/svg+xml').querySelector('img')")
        is None
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_readers_out(scheme: str, show: Callable[..., Page]) -> None:
    page = show(make(), make(title="b"), address="drawing=matrix&word=2&saliency=gradient", color_scheme=scheme)
    found = [one for one in Axe().run(page).response["violations"] if one["impact"] in ("serious", "critical")]
    assert not found, [(one["id"], one["nodes"][0]["html"]) for one in found]


def test_narrow_screens_and_scripts_from_right_to_left(show: Callable[..., Page]) -> None:
    names = ("[CLS]", *["هذا", "كتاب", "كبير", "جدا", "في", "البيت"], "[SEP]")
    view = make(words=names, clusters=(), arcs=(), pieces=None)
    page = show(view, viewport={"width": 400, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.get_attribute("#words", "dir") == "rtl"


def test_long_texts_draw_what_can_be_seen_and_scroll(show: Callable[..., Page]) -> None:
    n = 300
    words = [f"w{at}" for at in range(n)]
    view = View("long", words, attention(1, 2, n, sharpness=4), [1], [1, 2])
    page = show(view, address="threshold=41")
    everything = expected(decoded(view.values[0, 0]), 0.41**2 * float(view.values.max()))
    rows = page.evaluate("span(view.drawing.frame, 'y')")
    assert rows[1] < n // 2
    assert pairs(page) == {pair for pair in everything if min(pair) <= rows[1]}
    act(page, lambda: page.locator("#words button").nth(250).click())
    settle(page)
    first, last = page.evaluate("span(view.drawing.frame, 'y')")
    assert first < 250 < last
    assert pairs(page) == {pair for pair in everything if pair[0] == 250}
    assert page.evaluate("document.getElementById('figure').height / devicePixelRatio") < 2000


def test_budget_is_kept_by_a_threshold_and_the_page_says_so(show: Callable[..., Page]) -> None:
    view = View("big", [f"w{at}" for at in range(60)], attention(2, 4, 60), [1, 2], [1, 2, 3, 4])
    whole, smaller = view_page(view), view_page(view, budget=100_000)
    assert len(smaller.encode()) <= 100_000 < len(whole.encode())
    threshold = float(re.findall(r'"threshold": ([\d.e-]+)', smaller)[0])
    share = float(view.values[view.values < threshold].sum() / view.values.sum())
    assert share == pytest.approx(float(re.findall(r'"droppedOfAll": ([\d.e-]+)', smaller)[0]))
    assert 0 < share < 0.5
    assert re.findall(r'"threshold": ([\d.]+)', whole) == ["0.0"]
    with pytest.raises(UserError, match="fewer texts"):
        view_page(view, budget=1000)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"values": np.zeros((3, 4, 8, 7), np.float32)}, r"values has shape \[3, 4, 8, 7\]"),
        ({"values": np.full((3, 4, 8, 8), np.nan, np.float32)}, "values contains nan"),
        ({"values": np.full((3, 4, 8, 8), -1, np.float32)}, "values contains -1"),
        ({"layers": (1, 2)}, r"must have \[2, 4, 8, 8\]: \[layers, heads, from, to\]"),
        ({"arcs": [(1, 8, "obj")]}, "arcs: position 8 is not among 0 to 7"),
        ({"clusters": [[(3, 9)]]}, "clusters: position 8 is not among 0 to 7"),
        ({"saliency": {"a": [1.0]}}, "saliency 'a' must have 8 finite numbers"),
        ({"delimiters": [-1]}, "delimiters: position -1"),
    ],
)
def test_views_that_cannot_be(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        make(**changes)
