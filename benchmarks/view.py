"""The view of attention: seconds to its first drawing in Chromium, its size, and seconds to write it.

`python -m benchmarks.view [--json FILE]`
"""

import shutil
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Browser, sync_playwright

from attention.checks import EncoderError
from benchmarks.harness import Report, Settings, command
from results.view import View, view_page

SHAPES = ((100, 12, 12, 1.0, "≤ 2", "< 1"), (512, 32, 32, 4.0, "≤ 40", "< 4"))
"""Words, layers, heads, spread of the random scores that the softmax is over, and what is wanted in MB and seconds.

A `--limit` leaves out the large one."""
MEGABYTE = 1e6


def drawn(words: int, layers: int, heads: int, spread: float) -> NDArray[np.float32]:
    """The softmax of normal scores, `[layers, heads, from, to]`: of spread 1 it hardly compresses."""
    random = np.random.default_rng(0)
    values = np.empty((layers, heads, words, words), np.float32)
    for layer in values:
        np.exp(spread * random.standard_normal(layer.shape, dtype=np.float32), out=layer)
        layer /= layer.sum(-1, keepdims=True)
    return values


def first_drawing(browser: Browser, file: Path) -> float:
    """Seconds from the start of the navigation to the first complete drawing."""
    page = browser.new_page()
    page.goto(file.as_uri())
    page.wait_for_function("performance.getEntriesByName('drawn').length")
    found = float(page.evaluate("performance.getEntriesByName('drawn')[0].startTime")) / 1000
    page.close()
    return found


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """The view of attention: seconds to its first drawing in Chromium, its size, and seconds to write it."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise EncoderError("There is no chromium: `make browser` installs it.")
    report.figure("corpus", "random attention", "softmax of normal scores")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        for words, layers, heads, spread, most, soon in SHAPES[: 1 if settings.limit else None]:
            values = drawn(words, layers, heads, spread)
            names = [f"word{place}" for place in range(words)]
            view = View("Random attention", names, values, range(1, layers + 1), range(1, heads + 1))
            start = time.perf_counter()
            page = view_page(view)
            seconds = time.perf_counter() - start
            file = folder / "view.html"
            file.write_text(page, encoding="utf-8")
            size, shape = len(page.encode()) / MEGABYTE, f"{words}_words_{layers * heads}_heads"
            rounds = [first_drawing(browser, file) for _ in range(settings.rounds)]
            meaning = "from the start of the navigation to the first drawing"
            report.seconds(f"{shape}_drawn_s", rounds, meaning, wanted=soon)
            report.figure(f"{shape}_mb", size, "size of the page in MB", wanted=most)
            report.figure(f"{shape}_written_s", seconds, "to write the page in Python, once")
        browser.close()


main = command("view", measure)
