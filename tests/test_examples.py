"""The programs of docs/howto/add.md, in the files that they name, run by the commands below them."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from docs.reference import ROOT

PAGE = (ROOT / "docs/howto/add.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = [
    line
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if "RUN/" not in line
]
SCORES = {
    "OneDirectionProbe": "uas",
    "PreviousWord": "previous_word",
    "AttentionAnalyses": "near.share",
    "Fidelity": "sharpened.flips",
}


@pytest.mark.slow
def test_the_programs_of_the_page_run_in_any_folder_by_its_commands(cache: str, tmp_path: Path) -> None:
    assert len(FILES) == 4
    for name, code in FILES.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    assert len(COMMANDS) == 5
    lines = [shlex.split(command)[1:] for command in COMMANDS]
    lines = [[*words, "--trainer.max_epochs=1"] if words[0] == "fit" else words for words in lines]
    code = f"from attention_probing.commands import main as run\nfor words in {lines}: assert run(words) == 0, words"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PROBING_CACHE": cache}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400
    )
    assert ended.returncode == 0, ended.stderr
    for experiment, score in SCORES.items():
        found = json.loads((tmp_path / "runs" / experiment / "version_0/results.json").read_text(encoding="utf-8"))
        assert 0 <= found["scores"][f"{score}.low"] <= found["scores"][score] <= found["scores"][f"{score}.high"] <= 1
