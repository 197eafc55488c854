import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import xarray as xr

import train
from tests.trainers import CONTINUES

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "howto" / "python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@CONTINUES
def test_the_python_of_the_documentation_runs(cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block after block, as in one notebook, in a folder with the runs that the page names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBING_CACHE", cache)
    for config in ("demo", "demo_classifier"):
        train.main(["fit", f"--config={ROOT / 'configs' / config}.yaml", "--trainer.max_epochs=1"])
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(block, names)
    assert len([line for line in BLOCKS[0].splitlines() if line and not line.startswith(("import", "from"))]) <= 10
    assert isinstance(names["attention"][0], xr.DataArray)
    assert names["attention"][0].sel(layer=3, head=9).sum("to").to_numpy() == pytest.approx(1, abs=1e-5)
    assert names["heads"]["form"].tolist() == names["sentences"][0].split()
    scores = names["scores"]
    assert isinstance(scores, pd.DataFrame)
    assert {"uas", "accuracy"} <= set(scores["score"])
    assert (scores["low"] <= scores["value"]).sum() > 5
    assert (tmp_path / "head.pdf").read_bytes().startswith(b"%PDF")
    assert "<iframe" in names["view"]._repr_html_()
    assert names["result"].scores
    assert names["logits"].shape[1] == 2
