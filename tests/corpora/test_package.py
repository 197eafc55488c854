import subprocess
import sys
from pathlib import Path

import corpora

ROOT = Path(__file__).resolve().parents[2]


def test_corpora_are_read_without_torch_or_a_network_client() -> None:
    modules = ", ".join(f"corpora.{path.stem}" for path in Path(corpora.__path__[0]).glob("*.py"))
    code = f"import sys, {modules}; print(*({{'torch', 'transformers', 'pooch', 'requests'}} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout == "\n"
