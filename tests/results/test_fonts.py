"""Letters that no font has, and fonts that matplotlib's list lacks."""

import shutil
import warnings
from pathlib import Path
from typing import Literal

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import font_manager

from attention_probing.results import AttentionLines, Provenance, Result
from attention_probing.results.drawing import draw
from attention_probing.results.fonts import FONTS, installed_fonts, one_warning_for_letters
from attention_probing.results.writer import write

# Characters of private use are in no font, Chinese ones perhaps in one of this machine.
NOWHERE = "\ue123\ue124"


def lines(*words: str) -> AttentionLines:
    return AttentionLines("Attention", words, np.full((len(words), len(words)), 0.25))


def test_all_figures_of_a_run_give_one_warning(tmp_path: Path) -> None:
    figures = {"one": lines("a", NOWHERE), "two": lines("b", NOWHERE, "c")}
    with pytest.warns(UserWarning, match="No installed font") as caught:
        assert write(tmp_path, Result("probe", {}, figures=figures), Provenance({}, {}, {})) == {}
    assert len(caught) == 1
    assert str(caught[0].message) == (
        f"No installed font has 2 letters of the figures ({' '.join(NOWHERE)}), and boxes stand for them. Install "
        "fonts-noto-core of Debian."
    )


def test_a_notebook_shows_one_warning() -> None:
    with pytest.warns(UserWarning, match="No installed font") as caught:
        draw(lines("a", NOWHERE))._repr_png_()
    assert len(caught) == 1


@one_warning_for_letters()
def warn_of(letters: str) -> None:
    """Warn as matplotlib does, of each letter twice."""
    for letter in 2 * letters:
        warnings.warn(f"Glyph {ord(letter)} (\\N{{LETTER}}) missing from font(s) DejaVu Sans.", stacklevel=2)


@pytest.mark.parametrize(
    ("letters", "message"),
    [
        ("我", r"has 1 letter of .*\(我\).*Install fonts-noto-cjk of Debian or font-ttf-noto-cjk of conda-forge\.$"),
        ("한かカ。", r"has 4 letters .*\(한 か カ 。\).*Install fonts-noto-cjk of Debian or"),
        ("मदलनक", r"has 5 letters .*Install fonts-noto-core of Debian\.$"),
        ("我मदलनक", r"\(我 म द ल न …\).*conda-forge, and fonts-noto-core of Debian\.$"),
    ],
)
def test_the_packages_are_those_of_the_script(letters: str, message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        warn_of(letters)


def test_other_warnings_stay() -> None:
    with pytest.warns(FutureWarning, match="other") as caught, one_warning_for_letters():
        warnings.warn("other", FutureWarning, stacklevel=1)
    assert len(caught) == 1


@one_warning_for_letters()
def warn_in_a_drawing() -> None:
    """Warn twice at one line, as a library does."""
    for _ in range(2):
        warnings.warn("The layout is tight.", stacklevel=1)


@pytest.mark.parametrize(
    ("action", "shown"), [("default", 1), ("module", 1), ("once", 1), ("always", 6), ("ignore", 0), ("error", 0)]
)
def test_other_warnings_are_shown_as_often_as_the_filters_say(
    action: Literal["default", "module", "once", "always", "ignore", "error"], shown: int
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        for _ in range(3):
            if action == "error":
                with pytest.raises(UserWarning, match="tight"):
                    warn_in_a_drawing()
            else:
                warn_in_a_drawing()
    assert len(caught) == shown


def test_a_font_that_was_installed_after_the_first_start_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {}
    for name in ("NotoSansThai-Regular.ttf", "Other-Regular.ttf"):
        files[name] = str(tmp_path / name)
        shutil.copy(Path(mpl.get_data_path()) / "fonts/ttf/DejaVuSans.ttf", files[name])
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: list(files.values()))
    monkeypatch.setattr(font_manager.fontManager, "ttflist", list(font_manager.fontManager.ttflist))
    assert installed_fonts()[0] == FONTS[0]
    added = {font.fname for font in font_manager.fontManager.ttflist}
    assert [path in added for path in files.values()] == [True, False]
