import subprocess
import sys
from pathlib import Path

import corpora

ROOT = Path(__file__).resolve().parents[2]


def test_the_package_lies_in_the_checkout_and_exports_what_it_lists() -> None:
    assert Path(corpora.__file__).is_relative_to(ROOT)
    assert {"CorpusError", "Sentence", "Treebank", "read_treebank", "write_sample_treebank"} <= set(corpora.__all__)
    assert all(vars(corpora)[name].__module__.startswith("corpora.") for name in corpora.__all__ if not name.isupper())


def test_corpora_are_read_without_torch_or_a_network_client() -> None:
    code = "import sys, corpora; print(*({'torch', 'transformers', 'pooch', 'requests'} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout == "\n"
