from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import get_data_path
from matplotlib.font_manager import fontManager

from results import AttentionLines, Bars, Figure, Provenance, Result
from results.writer import write

JAPANESE = ("本", "を", "読んだ", "。")
CHINESE = ("读", "了", "书", "。")
LETTERS = "".join((*JAPANESE, *CHINESE))


@pytest.fixture(autouse=True)
def fonts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Only matplotlib's own fonts are known; those in the list are found beside them."""
    own = [entry for entry in fontManager.ttflist if entry.fname.startswith(get_data_path())]
    monkeypatch.setattr(fontManager, "ttflist", own)
    found: list[str] = []
    monkeypatch.setattr("results.drawing.findSystemFonts", lambda: found)
    return found


def font(path: Path, family: str, letters: str) -> str:
    """A font that has a square for each of the letters."""
    pen = TTGlyphPen(None)
    pen.moveTo((100, 0))
    for corner in ((100, 800), (900, 800), (900, 0)):
        pen.lineTo(corner)
    pen.closePath()
    names = {ord(letter): f"u{ord(letter):04X}" for letter in letters}
    glyphs = [".notdef", *names.values()]
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(glyphs)
    builder.setupCharacterMap(names)
    builder.setupGlyf(dict.fromkeys(glyphs, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (1000, 100)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": family, "styleName": "Regular", "psName": family.replace(" ", "")})
    builder.setupOS2(usWeightClass=400)
    builder.setupPost()
    builder.save(path / f"{family}.ttf")
    return str(path / f"{family}.ttf")


def sentence(words: Sequence[str]) -> AttentionLines:
    return AttentionLines("Head 1-1", tuple(words), np.eye(len(words)))


def written(folder: Path, *figures: Figure) -> list[bytes]:
    """The PDF of each figure."""
    names = [f"figure{number}" for number in range(len(figures))]
    result = Result("probe", {}, figures=dict(zip(names, figures, strict=True)))
    write(folder, result, Provenance({}, {}, {}))
    return [(folder / f"{name}.pdf").read_bytes() for name in names]


def test_an_installed_font_draws_what_the_usual_one_lacks(tmp_path: Path, fonts: list[str]) -> None:
    fonts += [font(tmp_path, "Tiny Serif", LETTERS[:3]), font(tmp_path, "Tiny Sans", LETTERS)]
    foreign, english = written(tmp_path / "run", sentence(JAPANESE), sentence(("read", "books")))
    found = [name in foreign for name in (b"+TinySans", b"+DejaVuSans", b"TinySerif")]
    assert found == [True, True, False]
    assert b"Tiny" not in english
    # Text stays text: no publisher takes a font of type 3.
    assert b"/FontFile2" in foreign
    assert b"/Type3" not in foreign
    # Several fonts, where none has all characters.
    fonts[:] = [font(tmp_path, "Tiny One", LETTERS[:4]), font(tmp_path, "Tiny Two", LETTERS[4:])]
    fontManager.ttflist[:] = [entry for entry in fontManager.ttflist if not entry.name.startswith("Tiny")]
    (pdf,) = written(tmp_path / "run", sentence(JAPANESE))
    assert b"+TinyOne" in pdf
    assert b"+TinyTwo" in pdf


@pytest.mark.parametrize(
    ("words", "family"), [(JAPANESE, "Tiny JP"), (CHINESE, "Tiny SC"), (("한국", "書"), "Tiny KR")]
)
def test_the_shapes_are_those_of_the_language(
    words: Sequence[str], family: str, tmp_path: Path, fonts: list[str]
) -> None:
    fonts += [font(tmp_path, f"Tiny {region}", LETTERS + "한국書") for region in ("HK", "JP", "KR", "SC", "TC")]
    (pdf,) = written(tmp_path / "run", sentence(words))
    assert f"+{family.replace(' ', '')}".encode() in pdf


@pytest.mark.slow
def test_one_warning_names_a_package_where_no_font_has_the_characters(tmp_path: Path, fonts: list[str]) -> None:
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    fonts += [font(tmp_path, "Tiny Half", "本書"), str(tmp_path / "broken.ttf")]
    bars = Bars("書", ("新", "古"), {"本": [0.1, 0.2], "を": [0.3, 0.4]}, "率", unit="fraction")
    with pytest.warns(UserWarning, match="Debian's fonts-noto-cjk") as caught:
        written(tmp_path / "run", sentence(JAPANESE), bars, sentence(CHINESE))
    assert len(caught) == 1
    missing = set(LETTERS) | set("新古率")
    assert f"has {len(missing - set('本書'))} characters of the figures (cjk, hiragana, ideographic)" in str(
        caught[0].message
    )
    assert caught[0].filename == write.__code__.co_filename
