import re
from html import escape
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from attention_probing.results import ColouredText, ColouredTexts
from attention_probing.results.texts import html_page

NAN = float("nan")
FIGURE = ColouredTexts(
    "Attention & <others>",
    (
        ColouredText(
            "sst2 7",
            'gold "1" <b>',
            ("a", "<script>", "film", "&"),
            {"attention": [0.1, 0.4, 0.0, 0.2], "gradient": [-2.0, 1.0, NAN, 0.5]},
        ),
        ColouredText("8", "", ("זה", "x" * 400), {"attention": [0.0, 0.0], "adversary": [NAN, NAN]}),
    ),
)


def page_of(figure: ColouredTexts) -> Element:
    """The content of the page; every element that opens has to close, in order."""
    page = html_page(figure)
    assert ("<title>" + escape(figure.title, quote=False) + "</title>") in page
    return ElementTree.fromstring(page[page.index("<main") : page.index("</main>") + len("</main>")])


def text_of(element: Element | None) -> str:
    assert element is not None
    return "".join(element.itertext())


def rows_of(section: Element) -> dict[str, list[Element]]:
    """The words of each row, by the row's name and note."""
    return {text_of(row.find("th")): row.findall("td/span") for row in section.iter("tr")}


def background(word: Element) -> tuple[str, float] | None:
    """The colour of a word and its share of the full colour."""
    match = re.fullmatch(r"--share: ([\d.]+)", word.get("style") or "")
    return match and (word.attrib["class"], float(match[1]))


def test_each_text_is_shown_once_per_row() -> None:
    sections = page_of(FIGURE).findall("section")
    assert [text_of(section.find("h2")) for section in sections] == ['sst2 7: gold "1" <b>', "8"]
    first, second = map(rows_of, sections)
    assert list(first) == ["attentionlargest 0.4, 2.29× even", "gradientlargest 2, 1.71× even"]
    assert list(second) == ["attentionlargest 0", "adversaryno values"]
    for words in first.values():
        assert [text_of(word) for word in words] == ["a", "<script>", "film", "&"]
    # Words are apart, so that lines can break between them.
    assert text_of(sections[0].find(".//td")) == "a <script> film &"


def test_nothing_of_a_corpus_becomes_markup() -> None:
    main = page_of(FIGURE)
    assert {element.tag for element in main.iter()}.isdisjoint({"script", "others", "b"})
    assert text_of(main.find("h1")) == "Attention & <others>"
    quoted = ColouredTexts("t", (ColouredText('"n"', "", ("a",), {'" onclick="x': [1.0]}),))
    (word,) = page_of(quoted).iterfind("section//span")
    assert word.attrib["title"] == '" onclick="x: 1'
    assert set(word.attrib) == {"class", "title", "style"}


def test_a_background_is_as_strong_as_the_share_of_the_row_beside_the_even_one() -> None:
    first, second = map(rows_of, page_of(FIGURE).findall("section"))
    attention = [background(word) for word in first["attentionlargest 0.4, 2.29× even"]]
    gradient = [background(word) for word in first["gradientlargest 2, 1.71× even"]]
    (above,) = {name for name, _ in filter(None, attention)}
    # Four words, a tenth of whose even share has a hundredth of the full colour.
    expected = [(value / 0.7) / (1 / 4) / 10 for value in (0.1, 0.4, 0.0, 0.2)]
    assert [strength for _, strength in filter(None, attention)] == pytest.approx(expected, abs=1e-3)
    # Three have a value.
    assert gradient[0] is not None
    below, strongest = gradient[0]
    assert below != above
    assert strongest == pytest.approx((2 / 3.5) / (1 / 3) / 10, abs=1e-3)
    assert gradient[1:] == [(above, 0.086), None, (above, 0.043)]
    # A row of zeros has no colour, and no division by its sum.
    assert [background(word) for word in second["attentionlargest 0"]] == [(above, 0.0)] * 2
