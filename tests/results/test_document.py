from collections.abc import Callable
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from playwright.sync_api import Browser, Page

from attention_probing.results.document import Packed, document, mark_code, render

SHOW = "document.querySelector('output').textContent = page.json('said').word;"


def test_data_reach_the_scripts_and_cannot_end_their_element(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    word = "</script><img src=x onerror=alert(1)>\u2028"
    file = tmp_path / "page.html"
    raw = bytes(range(256)) * 40
    file.write_text(
        document("<b>", "<output></output>", scripts=[SHOW], data={"said": {"word": word}, "raw": Packed(raw)}),
        encoding="utf-8",
    )
    assert len(file.read_text(encoding="utf-8")) < len(raw)  # compressed
    page = open_page(file)
    assert page.title() == "<b>"
    assert page.inner_text("output", timeout=1000).strip() == word.strip()
    assert page.locator("img").count() == 0
    read = page.evaluate("page.unpacked('raw').then(bytes => Array.from(new Uint8Array(bytes)))")
    assert bytes(read) == raw


def test_no_script_runs_that_the_page_did_not_come_with(tmp_path: Path, browser: Browser) -> None:
    """Even where a text is not escaped."""
    file = tmp_path / "page.html"
    body = "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title = 'taken over'\">"
    file.write_text(document("safe", body), encoding="utf-8")
    page = browser.new_page()
    refused: list[str] = []
    page.on("console", lambda said: refused.append(said.text))
    page.goto(file.as_uri())
    assert page.title() == "safe"
    assert any("Content Security Policy" in text for text in refused)
    page.close()


def test_templates_escape_text_and_refuse_a_missing_value() -> None:
    assert "<h1>&lt;b&gt;</h1>" in render("texts.html", title="<b>", texts=[], full=10, steps=[], missing=0)
    with pytest.raises(UndefinedError, match="'full' is undefined"):
        render("texts.html", title="t", texts=[], steps=[], missing=False)


def test_what_stands_between_backticks_is_code_and_nothing_else() -> None:
    assert mark_code("in `obj`: `a b` of <b>") == "in <code>obj</code>: <code>a b</code> of &lt;b&gt;"
    for text in ("a `", "`` quoted '' and `` again ''", "no ` code `", ""):
        assert "<code>" not in mark_code(text), text
