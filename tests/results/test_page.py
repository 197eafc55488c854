import io
import json
import os
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from axe_playwright_python.base import AXE_FILE_PATH
from playwright.sync_api import Browser, Page

from commands.page import main
from results import Bars, ColouredText, ColouredTexts, Curves, Estimate, Figure, HeatMap, Provenance, Result, Table
from results import page as module
from results.errors import UserError
from results.page import write_page
from results.writer import write

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


SMALL, LARGE = heads(40), heads(700)
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
    {"small": SMALL, "large": LARGE},
    FIGURES,
    {"dropped": {"long": 3, "empty": 0}, "word": WORD},
)
PROVENANCE = Provenance({"name": WORD, "layers": 6}, {"train": {"file": ATTACK, "sha256": "ab" * 32, "n": 3}}, {})
CONFIG = {
    "seed_everything": 0,
    "model": {"class_path": "probes.AttentionOnlyProbe", "init_args": {"note": WORD}},
    "data": {"class_path": "datamodules.DependencyDataModule", "init_args": {"corpus": "ud_english_ewt"}},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, whose name and words would be markup."""
    folder = tmp_path_factory.mktemp("runs") / ATTACK
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "epoch=1.ckpt").touch()
    assert write(folder, RESULT, PROVENANCE) == {}
    return folder


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
            ["54.3 [50.0, 60.0]", "1.5", "–"],
            ["0.01", "–", "–"],
            ["fraction", "nats", "bits"],
        ]


def test_figures_are_drawn_and_their_numbers_are_behind_them(run: Path, open_page: Open) -> None:
    page = open_page(run / "page.html")
    page.wait_for_function("() => document.querySelector('#figure-curve img').naturalWidth > 0")
    images = page.locator("figure img")
    assert images.evaluate_all("all => all.map(one => one.naturalWidth > 100)") == [True] * 3
    captions = json.loads((run / "results.json").read_text(encoding="utf-8"))["captions"]
    assert images.evaluate_all("all => all.map(one => one.alt)") == [
        captions[name] for name in ("weights", "bars", "curve")
    ]
    for name, figure in FIGURES.items():
        box = page.locator(f"#figure-{name}")
        box.locator("summary").click()
        with page.expect_download() as download:
            box.get_by_role("button", name="Save as CSV").click()
        expected = figure.data()
        assert expected is not None
        words = dict.fromkeys(expected.frame.select_dtypes(exclude="number"), "str")
        pd.testing.assert_frame_equal(pd.read_csv(download.value.path(), dtype=words), expected.frame)


def test_texts_are_coloured_on_the_page_itself(run: Path, open_page: Open) -> None:
    page = open_page(run / "page.html")
    words = page.frame_locator("#figure-examples iframe").locator(".text tr").first.locator("span")
    assert words.all_text_contents() == ["ein", WORD, "schöner"]
    for scheme in ("light", "dark"):
        page = open_page(run / "examples.html", color_scheme=scheme)
        # The fullest colour leaves the letters readable on it.
        page.evaluate("document.querySelector('.text span').style.setProperty('--share', 1)")
        assert contrast(page, ".text span") >= 4.5


def contrast(page: Page, selector: str) -> float:
    """Contrast of an element's letters and its background over the page, by WCAG's formula."""
    found = page.evaluate(
        """selector => {
            const colours = [getComputedStyle(document.querySelector(selector)), getComputedStyle(document.body)];
            return [colours[0].color, colours[0].backgroundColor, colours[1].backgroundColor];
        }""",
        selector,
    )
    ink, colour, paper = [[float(part) for part in re.findall(r"[\d.]+", text)] for text in found]
    share = colour[3] if len(colour) > 3 else 1.0
    under = [share * one + (1 - share) * two for one, two in zip(colour[:3], paper, strict=True)]

    def light(colours: list[float]) -> float:
        linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in np.divide(colours, 255)]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    low, high = sorted([light(ink[:3]), light(under)])
    return (high + 0.05) / (low + 0.05)


def test_nothing_that_a_file_holds_becomes_markup(run: Path, open_page: Open) -> None:
    page = open_page(run / "page.html")  # which fails on a dialog that was asked for, as on a request
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.wait_for_function("() => document.querySelector('#figure-curve img').naturalWidth > 0")
    assert page.locator("main img").count() == 3
    assert page.locator("main script").count() == 0
    for summary in page.locator("summary:visible").all():
        summary.click()
    page.wait_for_timeout(100)
    assert page.locator("main script").count() == 0
    assert column(page, "small", 2)[0] == WORD
    assert page.title() == f"probe: AttentionOnlyProbe on {WORD}, ud_english_ewt"
    assert ATTACK in page.inner_text("main")
    assert WORD in page.locator("pre[aria-label='config.yaml']").inner_text()


def test_what_was_run_is_named_cited_and_can_be_repeated(run: Path, open_page: Open) -> None:
    page = open_page(run / "page.html", permissions=["clipboard-read", "clipboard-write"])
    assert page.inner_text(".on") == f"AttentionOnlyProbe on {WORD}, ud_english_ewt"
    commands = page.locator(".copied pre").all_inner_texts()
    folder = f"'{os.path.relpath(run) if run.is_relative_to(Path.cwd()) else run}/"
    assert commands[0].startswith(f"python train.py fit --config {folder}config.yaml'")
    assert commands[1].endswith("/checkpoints/epoch=1.ckpt'")
    page.locator(".copied").last.get_by_role("button").click()
    page.wait_for_timeout(100)
    entries = re.findall(r"^@\w+\{([\w-]+),", clipboard(page), re.MULTILINE)
    assert entries == ["clark2019", "ud_english_ewt", "attention-probing"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_barrier_is_serious(run: Path, scheme: str, browser: Browser) -> None:
    context = browser.new_context(color_scheme=scheme, bypass_csp=True, offline=True)  # type: ignore[arg-type]
    page = context.new_page()
    for file in ("page.html", "examples.html"):
        page.goto((run / file).as_uri())
        for summary in page.locator("main summary").all():
            summary.click()
        page.wait_for_timeout(200)
        page.evaluate(Path(AXE_FILE_PATH).read_text(encoding="utf-8"))
        found = page.evaluate("axe.run()")["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert not [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in serious]
    context.close()


def test_a_narrow_window_does_not_scroll_sideways(run: Path, open_page: Open) -> None:
    page = open_page(run / "page.html", viewport={"width": 400, "height": 800})
    for summary in page.locator("main summary").all():
        summary.click()
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_paper_has_all_rows_and_no_buttons(run: Path, open_page: Open) -> None:
    page = open_page(run / "page.html")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("pre[aria-label='config.yaml']").is_visible()
    assert not page.locator(".tools:visible, .copied button:visible, nav:visible, .numbers:visible").count()
    box = table(page, "large").locator(".scroll")
    assert box.evaluate("box => box.scrollHeight <= box.clientHeight + 1")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert not page.locator("pre[aria-label='config.yaml']").is_visible()


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
    assert page.inner_text(".on") == "AttentionOnlyProbe in 2 runs on ud_english_ewt"
    assert page.locator(".notice li").all_inner_texts() == [f"failed: {ATTACK}", "other items"]
    assert [column(page, "table", place) for place in (1, 2, 3)] == [
        ["a", "b"],
        ["1", "1"],
        ["50.0 [40.0, 60.0]", "25.0"],
    ]
    assert page.locator("[data-name=table_runs] tbody a").count() == 1
    assert "Without a page: 1 of 2 runs" in page.inner_text("main")
    assert page.locator(".copied pre").first.inner_text().startswith("python train.py sweep PLAN.yaml --out ")
    link = page.locator("[data-name=table_runs] tbody a").get_attribute("href")
    assert (out / "runs" / folders[0] / "page.html").as_uri() == page.evaluate(
        "link => new URL(link, location).href", link
    )
    # Also from elsewhere.
    elsewhere = open_page(write_page(out, tmp_path / "elsewhere.html"))
    assert (
        elsewhere.locator("[data-name=table_runs] tbody a").evaluate("link => link.href")
        == (out / "runs" / folders[0] / "page.html").as_uri()
    )


class TestSize:
    def test_what_is_left_out_is_named_in_order(
        self, run: Path, tmp_path: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = (run / "page.html").stat().st_size
        left = []
        for share in (1.1, 0.95, 0.85, 0.75):
            monkeypatch.setattr(module, "LIMIT", int(share * whole))
            assert write_page(run, tmp_path / "page.html").stat().st_size <= module.LIMIT
            page = open_page(tmp_path / "page.html")
            left.append(page.locator(".notice li").all_inner_texts())
        assert left[0] == []
        kinds = [[line.split(" ")[0] for line in lines] for lines in left]
        order = ["numbers", "figure", "rows"]
        assert all(set(shorter) <= set(longer) for shorter, longer in pairwise(left))
        assert all(sorted(one, key=order.index) == one for one in kinds)
        assert left[-1][-1] == "rows of the table large: large.csv"
        assert column(page, "large", 3) == [str(number) for number in LARGE.frame["n"][:100]]
        assert "700 rows, 100 shown; the others are in large.csv" in table(page, "large").inner_text()

    def test_tables_of_very_many_rows_are_shown_by_their_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(module.ROWS, "rows", 300)
        write(tmp_path, Result("probe", {}, {"large": LARGE}), Provenance({}, {}, {}))
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert "700 rows, 300 shown; the others are in large.csv" in page
        assert page.count("<tr data-raw=") == 300

    def test_a_table_without_rows_is_listed(self, tmp_path: Path) -> None:
        none = Table(SMALL.frame.head(0), SMALL.units)
        assert write(tmp_path, Result("none", {}, {"nothing": none}), Provenance({}, {}, {})) == {}
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert page.index('id="table-nothing"') < page.index("0 rows") < page.index('id="audit"')

    def test_files_that_are_missing_or_damaged_are_named(self, run: Path, tmp_path: Path, open_page: Open) -> None:
        for file in run.iterdir():
            if file.is_file():
                (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / "small.csv").unlink()
        (tmp_path / "curve.svg").unlink()
        (tmp_path / "config.yaml").write_text("model: [", encoding="utf-8")
        page = open_page(write_page(tmp_path))
        lines = "\n".join(page.locator(".notice li").all_inner_texts())
        assert all(name in lines for name in ("small.csv", "curve.svg", "config.yaml"))
        page.wait_for_function("() => document.querySelector('#figure-weights img').naturalWidth > 0")

    def test_a_folder_without_results_is_refused_in_a_line(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"has no results\.json: no test has ended in it"):
            main([str(tmp_path)])


def test_the_command_prints_the_path_and_nothing_else(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run / "page.html").read_bytes()
    assert main([str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'page.html'}\n"
    assert (run / "page.html").read_bytes() == before
    assert main([str(run / "results.json"), "--out", str(tmp_path / "other.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'other.html'}\n"
