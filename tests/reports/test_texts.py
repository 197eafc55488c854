import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

import pytest

from reports.page import html_page
from results import ColouredText, ColouredTexts

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
VOID = {"meta"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    children: "list[Element | str]" = field(default_factory=list)

    def every(self, tag: str) -> "list[Element]":
        below = [child for child in self.children if isinstance(child, Element)]
        return [child for child in below if child.tag == tag] + [one for child in below for one in child.every(tag)]

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


class Tree(HTMLParser):
    """The elements of a page; every one that opens has to close, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack = [Element("", {})]
        self.feed(page)
        self.close()
        assert len(self.stack) == 1

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.stack[-1].children.append(element)
        if tag not in VOID:
            self.stack.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.stack[-1].children.append(data)


def page_of(figure: ColouredTexts) -> Element:
    return Tree(html_page(figure)).stack[0]


def one_row(values: list[float]) -> ColouredTexts:
    return ColouredTexts("t", (ColouredText("n", "", tuple("a" * len(values)), {"row": values}),))


def rows_of(section: Element) -> dict[str, list[Element]]:
    """The words of each row, by the row's name and note."""
    return {row.every("th")[0].text: row.every("td")[0].every("span") for row in section.every("tr")}


def background(word: Element) -> tuple[str, float] | None:
    """The colour of a word and its share of the full colour."""
    match = re.fullmatch(r"--share: ([\d.]+)", word.attributes.get("style") or "")
    return match and (word.attributes["class"] or "", float(match[1]))


def test_each_text_is_shown_once_per_row() -> None:
    sections = page_of(FIGURE).every("section")
    assert [section.every("h2")[0].text for section in sections] == ['sst2 7: gold "1" <b>', "8"]
    first, second = map(rows_of, sections)
    assert list(first) == ["attentionlargest 0.4, 2.29× even", "gradientlargest 2, 1.71× even"]
    assert list(second) == ["attentionlargest 0", "adversaryno values"]
    for words in first.values():
        assert [word.text for word in words] == ["a", "<script>", "film", "&"]
    # Words are apart, so that lines can break between them.
    assert sections[0].every("td")[0].text == "a <script> film &"


def test_nothing_of_a_corpus_becomes_markup() -> None:
    page = page_of(FIGURE)
    (main,) = page.every("main")
    assert not main.every("script")
    assert not main.every("b")
    assert page.every("h1")[0].text == page.every("title")[0].text == "Attention & <others>"
    quoted = ColouredTexts("t", (ColouredText('"n"', "", ("a",), {'" onclick="x': [1.0]}),))
    (word,) = page_of(quoted).every("section")[0].every("span")
    assert word.attributes["title"] == '" onclick="x: 1'
    assert set(word.attributes) == {"class", "title", "style"}


def test_a_background_is_as_strong_as_the_share_of_the_row_beside_the_even_one() -> None:
    first, second = map(rows_of, page_of(FIGURE).every("section"))
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


@pytest.mark.parametrize("length", [2, 20, 300])
def test_even_attention_is_pale_and_a_sharp_peak_has_the_full_colour(length: int) -> None:
    def strengths(values: list[float]) -> list[float]:
        ((_, row),) = rows_of(page_of(one_row(values)).every("section")[0]).items()
        return [strength for word in row if (found := background(word)) for strength in found[1:]]

    even = strengths([1 / length + 1e-6 * place / length for place in range(length)])
    assert even == pytest.approx([0.1] * length, abs=1e-3)
    sharp = strengths([1.0, *[0.0] * (length - 1)])
    assert sharp == pytest.approx([min(1.0, 0.1 * length), *[0.0] * (length - 1)])


def test_the_numbers_are_in_the_titles() -> None:
    first, second = map(rows_of, page_of(FIGURE).every("section"))
    gradient = first["gradientlargest 2, 1.71× even"]
    numbers = ["−2", "1", "no value", "0.5"]
    assert [word.attributes["title"] for word in gradient] == [f"gradient: {number}" for number in numbers]
    assert gradient[2].attributes["class"] == "missing"
    assert {word.attributes["title"] for word in second["adversaryno values"]} == {"adversary: no value"}
    small = page_of(one_row([-1.234e-7, 1234.5])).every("section")[0].every("span")
    assert [word.attributes["title"] for word in small] == ["row: −1.23e-07", "row: 1.23e+03"]
