import html
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from axe_playwright_python.base import AXE_FILE_PATH
from playwright.sync_api import Browser, Page

from attention_probing.results import (
    Bars,
    ColouredText,
    ColouredTexts,
    Curves,
    Estimate,
    Figure,
    HeatMap,
    Provenance,
    Result,
    Table,
    page as module,
)
from attention_probing.results.citations import format_citations
from attention_probing.results.writer import write

Open = Callable[..., Page]

ATTACK, WORD = '"><img src=x onerror=alert(1)>', "<script>alert(1)</script>"
RANDOM = np.random.default_rng(0)
NAN = float("nan")


def heads(rows: int) -> Table:
    """A table of heads, out of order, with intervals, words that would be markup, and numbers that are missing."""
    values = RANDOM.normal(size=rows)
    values[RANDOM.random(rows) < 0.1] = NAN
    frame = pd.DataFrame(
        {
            "head": [f"{1 + place % 12}-{1 + place // 12}" for place in RANDOM.permutation(rows)],
            "word": [WORD if place % 7 == 0 else f'a "quoted" {place}, word' for place in range(rows)],
            "n": RANDOM.integers(0, 1000, rows),
            "accuracy": values,
            "accuracy.low": values - 0.1,
            "accuracy.high": values + 0.1,
        }
    )
    return Table(frame, {"accuracy": "fraction"})


SMALL, LARGE = heads(20), heads(80)
FIGURES: Mapping[str, Figure] = {
    "weights": HeatMap("Weights " + WORD, np.eye(3), list("123"), list("123"), "Layer", "Head", "Weight", unit="ratio"),
    "bars": Bars("Bars", ("det", WORD), {"probe": [0.5, 0.6]}, "Accuracy", unit="fraction"),
    "curve": Curves("Curve", "ε", "JSD", {"base": ([0.01, 0.1], [0.2, NAN])}),
    "examples": ColouredTexts(
        "Examples",
        (ColouredText("7", WORD, ("ein", WORD, "schöner"), {"attention": [0.1, -0.5, NAN], "other": [0.0, 1.0, 2.0]}),),
    ),
}
RESULT = Result(
    "probe",
    {
        "uas": Estimate(0.543, 0.5, 0.6, unit="fraction", p=0.01),
        "loss": Estimate(1.5, unit="nats"),
        "codelength_bits": Estimate(NAN, unit="bits"),
    },
    {"large": LARGE, "small": replace(SMALL, main=("head", "accuracy"))},
    FIGURES,
    {"dropped": {"long": 3, "empty": 0}, "word": WORD},
)
PROVENANCE = Provenance({"name": WORD, "layers": 6}, {"train": {"file": ATTACK, "sha256": "ab" * 32, "n": 3}}, {})
CONFIG = {
    "seed_everything": 0,
    "model": {"class_path": "AttentionOnlyProbe", "init_args": {"note": WORD}},
    "data": {"class_path": "DependencyDataModule", "init_args": {"corpus": "ud_english_ewt"}},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, whose name and words would be markup."""
    folder = tmp_path_factory.mktemp("runs") / ATTACK
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    assert write(folder, RESULT, PROVENANCE) == {}
    return folder


def test_the_citation_is_that_of_the_classes_and_corpora_of_the_config(run: Path) -> None:
    bibliography = (run / "results.bib").read_text(encoding="utf-8")
    assert bibliography == format_citations(["AttentionOnlyProbe", "ud_english_ewt"])
    assert bibliography in html.unescape((run / "page.html").read_text(encoding="utf-8"))


def table(page: Page, name: str) -> Any:  # noqa: ANN401
    return page.locator(f".table[data-name='{name}']").first


def column(page: Page, name: str, place: int) -> list[str]:
    cells = table(page, name).locator(f"tbody tr > :nth-child({place})")
    return [text.strip().rstrip("*") for text in cells.all_text_contents()]  # fewer than 20 items are marked


def clipboard(page: Page) -> str:
    text = page.evaluate("navigator.clipboard.readText()")
    assert isinstance(text, str)
    return text


def press(page: Page, name: str, button: str) -> None:
    table(page, name).get_by_role("button", name=button).click()


class TestTables:
    def test_it_sorts_as_pandas_does_and_goes_back(self, run: Path, open_page: Open) -> None:
        page = open_page(run / "page.html")
        numbers = [str(number) for number in LARGE.frame["n"]]
        assert column(page, "large", 3) == numbers
        head = table(page, "large").get_by_role("columnheader", name="accuracy")
        missing = int(LARGE.frame["accuracy"].isna().sum())
        for said, ascending in (("ascending", True), ("descending", False)):
            head.get_by_role("button").press("Enter")  # the keyboard
            assert head.get_attribute("aria-sort") == said
            expected = LARGE.frame.sort_values("accuracy", ascending=ascending, kind="stable")["n"]
            assert column(page, "large", 3) == [str(number) for number in expected]
            # Missing numbers are last in both directions.
            assert missing
            assert column(page, "large", 4)[-missing:] == ["–"] * missing
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == "none"
        assert column(page, "large", 3) == numbers
        # Heads are in the order of their numbers, not of their letters.
        table(page, "small").get_by_role("columnheader", name="head").get_by_role("button").click()
        ordered = sorted(SMALL.frame["head"], key=lambda head: [*map(int, head.split("-"))])
        assert column(page, "small", 1) == ordered

    def test_it_filters_and_copies_what_is_left(self, run: Path, open_page: Open) -> None:
        page = open_page(run / "page.html", permissions=["clipboard-read", "clipboard-write"])
        table(page, "large").get_by_role("searchbox").fill("QUOTED 3-1")
        left = LARGE.frame[LARGE.frame["word"].str.contains("quoted") & LARGE.frame["head"].str.contains("3-1")]
        assert (
            table(page, "large").locator("tbody tr:visible > :first-child").all_inner_texts() == left["head"].tolist()
        )
        press(page, "large", "Copy as TSV")
        table(page, "large").get_by_text("Copied.").wait_for()
        # To the last digit.
        read = pd.read_csv(io.StringIO(clipboard(page)), sep="\t")
        pd.testing.assert_frame_equal(read, left.reset_index(drop=True))
        with page.expect_download() as download:
            press(page, "large", "Save as CSV")
        pd.testing.assert_frame_equal(pd.read_csv(download.value.path()), left.reset_index(drop=True))
        press(page, "small", "Copy as LaTeX")
        table(page, "small").get_by_text("Copied.").wait_for()
        assert clipboard(page) == (run / "small.tex").read_text(encoding="utf-8")

    def test_scores_have_units_and_intervals(self, run: Path, open_page: Open) -> None:
        page = open_page(run / "page.html")
        rows = [column(page, "scores", place) for place in (1, 2, 3, 4)]
        assert rows == [
            ["uas", "loss", "codelength_bits"],
            ["54.3 [50.0, 60.0]", "1.5†", "–"],
            [".010", "–", "–"],
            ["fraction", "nats", "bits"],
        ]


def test_a_printed_table_stands_above_the_fold_before_all_scores_and_figures(run: Path, open_page: Open) -> None:
    page = open_page(run / "page.html", viewport={"width": 1280, "height": 720})
    places = [
        page.locator(f"{name} >> nth=0").bounding_box()
        for name in ("#table-small", "#scores", "#figures", "#table-large")
    ]
    tops = [place["y"] for place in places if place]
    assert tops == sorted(tops)
    assert len(tops) == 4
    assert tops[0] < 360  # half of the window
    assert page.locator("[data-name=small]").count() == 1


def test_what_the_answer_rests_on_is_in_sight_and_names_stay(tmp_path: Path, open_page: Open) -> None:
    """As in best_heads: the columns that answer stand among 20 others."""
    others = {f"another_number_{place}": [0.5] for place in range(20)}
    frame = pd.DataFrame({"relation": ["all"], **others, "test": [0.5], "low": [0.4], "high": [0.6], "p_holm": [0.01]})
    units = {**dict.fromkeys([*others, "test"], "fraction"), "p_holm": "p"}
    best = Table(frame, units, "test", main=("relation", "test"), note="Of `all` words.")  # type: ignore[arg-type]
    assert not write(tmp_path, Result("heads", {}, {"best": best}, answer="In `obj`."), Provenance({}, {}, {}))
    page = open_page(tmp_path / "page.html", viewport={"width": 1280, "height": 720})
    names = table(page, "best").locator("thead th").all_inner_texts()
    assert [name.rstrip("↕") for name in names][:4] == ["relation", "test", "p_holm", "another_number_0"]
    assert column(page, "best", 2) == ["50.0 [40.0, 60.0]"]
    for name in ("test", "p_holm"):
        place = table(page, "best").get_by_role("columnheader", name=name).bounding_box()
        assert place["x"] + place["width"] < 1280
    # The name of a row stays where the others are scrolled away.
    table(page, "best").locator(".scroll").evaluate("one => { one.scrollLeft = 400; }")
    assert table(page, "best").locator("tbody th").bounding_box()["x"] < 30
    assert table(page, "best").locator("tbody td").first.bounding_box()["x"] < 0
    assert page.locator(".answer code").inner_text() == "obj"
    assert table(page, "best").locator("caption").inner_text() == "1 row. Of all words."
    assert "`" not in page.inner_text("main")


def test_nothing_that_a_file_holds_becomes_markup(run: Path, open_page: Open) -> None:
    page = open_page(run / "page.html")  # which fails on a dialog that was asked for, as on a request
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    images = page.locator("main img")
    assert images.evaluate_all("all => all.map(one => one.naturalWidth > 100)") == [True] * 3
    captions = json.loads((run / "results.json").read_text(encoding="utf-8"))["captions"]
    assert images.evaluate_all("all => all.map(one => one.alt)") == [captions[name] for name in list(FIGURES)[:3]]
    words = page.frame_locator("#figure-examples iframe").locator(".text tr").first.locator("span")
    assert words.all_text_contents() == ["ein", WORD, "schöner"]
    assert page.locator("main script").count() == 0
    for summary in page.locator("summary:visible").all():
        summary.click()
    page.wait_for_timeout(100)
    assert page.locator("main script").count() == 0
    assert column(page, "small", 4)[0] == WORD
    assert page.title() == f"probe ({WORD.rpartition('/')[2]})"
    assert ATTACK in page.inner_text("main")
    assert WORD in page.locator("pre[aria-label='config.yaml']").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_barrier_is_serious(run: Path, scheme: str, browser: Browser) -> None:
    context = browser.new_context(color_scheme=scheme, bypass_csp=True, offline=True)  # type: ignore[arg-type]
    page = context.new_page()
    for file in ("page.html", "figures/examples.html"):
        page.goto((run / file).as_uri())
        for summary in page.locator("main summary").all():
            summary.click()
        page.wait_for_timeout(200)
        page.evaluate(Path(AXE_FILE_PATH).read_text(encoding="utf-8"))
        found = page.evaluate("axe.run()")["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert not [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in serious]
    context.close()


def test_of_a_sweep_with_its_problems_and_links_to_its_runs(tmp_path: Path, open_page: Open) -> None:
    out = tmp_path / "a sweep"
    folders = ["one/Probe/version_0", "two/Probe/version_0"]
    for folder in folders:
        run = out / "runs" / folder
        run.mkdir(parents=True)
        (run / "config.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
        write(run, Result("probe", {"uas": Estimate(0.5, unit="fraction")}), PROVENANCE)
    (out / "runs" / folders[1] / "page.html").unlink()
    scores = pd.DataFrame(
        {"probe": ["a", "b"], "seeds": [1, 1], "uas": [0.5, 0.25], "low": [0.4, NAN], "high": [0.6, NAN]}
    )
    runs = pd.DataFrame({"probe": ["a", "b"], "seed": 0, "command": "fit", "config": "a.yaml", "folder": folders})
    tables = {"table": Table(scores, {"uas": "fraction"}, "uas"), "table_runs": Table(runs)}
    (out / "config.yaml").write_text("name: table\n", encoding="utf-8")
    audit = {"runs": 3, "done": 2, "faults": [f"failed: {ATTACK}"], "warnings": ["other items"]}
    assert write(out, Result("table", {}, tables, audit=audit), Provenance({}, {}, {})) == {}
    page = open_page(out / "page.html")
    entries = re.findall(r"^@\w+\{([\w-]+),", page.inner_text("pre[aria-label=BibTeX]"), re.MULTILINE)
    assert entries == ["clark2019", "ud_english_ewt", "attention-probing"]
    assert page.locator(".notice li").all_inner_texts() == [f"failed: {ATTACK}", "other items"]
    assert [column(page, "table", place) for place in (1, 2, 3)] == [
        ["a", "b"],
        ["1", "1"],
        ["50.0 [40.0, 60.0]", "25.0†"],
    ]
    assert page.locator("[data-name=table_runs] tbody a").count() == 1
    link = page.locator("[data-name=table_runs] tbody a").get_attribute("href")
    assert (out / "runs" / folders[0] / "page.html").as_uri() == page.evaluate(
        "link => new URL(link, location).href", link
    )


def test_only_the_first_rows_of_a_table_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_ROWS", 30)
    none = Table(SMALL.frame.head(0), SMALL.units)
    assert not write(tmp_path, Result("probe", {}, {"large": LARGE, "nothing": none}), Provenance({}, {}, {}))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "80 rows, 30 shown; the others are in tables/large.csv" in page
    assert page.count("<tr data-raw=") == 30
    assert "<caption>0 rows</caption>" in page
