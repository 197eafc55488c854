import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import xarray as xr

from attention_probing.commands import CONFIGS, launch
from tests.notebooks import INSTALL, NOTEBOOKS, executed, read, results
from tests.trainers import CONTINUES

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "howto" / "python.md"
FIRST = "single_heads"
"""The notebook that a user meets first: it can be run as it is on a fresh kernel."""


@pytest.mark.checkout
@pytest.mark.slow
@CONTINUES
def test_the_python_of_the_documentation_runs(cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block after block, as in one notebook, in a folder with the runs that the page names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBING_CACHE", cache)
    for config in ("demo", "demo_classifier"):
        launch.main(["fit", f"--config={CONFIGS / config}.yaml", "--trainer.max_epochs=1"])
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert isinstance(names["attention"][0], xr.DataArray)
    assert names["attention"][0].sel(layer=3, head=9).sum("to").to_numpy() == pytest.approx(1, abs=1e-5)
    assert names["heads"]["form"].tolist() == names["sentences"][0].split()
    scores = names["scores"]
    assert isinstance(scores, pd.DataFrame)
    assert {"uas", "accuracy"} <= set(scores["score"])
    assert (scores["low"] <= scores["value"]).sum() > 5
    assert (tmp_path / "head.pdf").read_bytes().startswith(b"%PDF")
    assert "<iframe" in names["page"]._repr_html_()
    assert names["explanation"].rankings == ["attention", "integrated_gradients"]
    assert names["result"].scores
    assert names["logits"].shape[1] == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*without encryption")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_of_the_examples_gives_the_results_that_it_shows(path: Path, tmp_path: Path) -> None:
    shown, now = results(read(path)), results(executed(path, tmp_path))
    assert shown
    assert [words for words, _ in shown] == [words for words, _ in now]
    for (words, before), (_, after) in zip(shown, now, strict=True):  # trained models differ a little between machines
        assert before == pytest.approx(after, rel=0.02, abs=0.02), " ".join(words)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_of_the_examples_installs_first_and_names_no_folder_of_this_machine(path: Path) -> None:
    notebook = read(path)
    first = notebook.cells[0].source
    if path.stem == FIRST:
        assert first == INSTALL
    else:
        assert first.endswith(f"\n# {INSTALL}")
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert set(re.findall(r"^from (attention_probing[\w.]*) import", code, re.MULTILINE)) == {"attention_probing"}
    texts = [
        text if isinstance(text, str) else "".join(text)
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        for kind, text in output["data"].items()
        if not kind.startswith("image/")
    ]
    plain = [re.sub(r'src="data:[^"]*"', "", text) for text in texts]
    assert not [text for text in plain if re.search(r"/(home|root|tmp|work|Users)/", text)]


@pytest.mark.checkout
def test_no_notebook_is_missing() -> None:
    names = [
        "classifier_fidelity",
        "generated_attention",
        "judge_captum",
        "own_classifier",
        "own_language",
        "probe_with_control",
        "single_heads",
    ]
    assert [path.stem for path in NOTEBOOKS] == names
