"""What is imported before a command does anything: modules are counted, not seconds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attention_probing.commands import CONFIGS, launch
from attention_probing.datamodules import DependencyDataModule
from attention_probing.datamodules.lightning import DataModule
from tests.test_train import arguments

SLOW = {"lightning_fabric", "pytorch_lightning", "torchmetrics", "torch._dynamo", "transformers.modeling_utils"}
"""Packages that take seconds."""
LATER = {"captum", "entmax", "gensim", "matplotlib", "scipy.stats", "seaborn", "sklearn", "submitit", "tensorboard"}
"""Packages that only some commands, or only the end of a command, use."""


def loaded_by(code: str, **environment: str) -> set[str]:
    """The modules that a new process has imported after some code."""
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint('LOADED', *sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return set(done.stdout.partition("LOADED")[2].split())


def test_a_measurement_imports_no_lightning_and_no_model_before_its_first_batch(
    bert: Path, corpus: str, cache: str, tmp_path: Path
) -> None:
    words = arguments(CONFIGS / "clark2019/heads.yaml", corpus, bert, cache, tmp_path)
    launch.main(words)  # keeps the stores
    code = f"""
import sys
from attention_probing import commands
from attention_probing.measures import loop

batches = loop._batches

def begin(*args):
    print("FIRST", *sys.modules)
    return batches(*args)

loop._batches = begin
assert commands.main({words}) == 0
print("AFTER")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.partition("FIRST ")[2].partition("\n")[0].split())
    assert "attention_probing.measures.single_heads" in loaded
    assert not loaded & (SLOW | LATER)
    assert len(loaded) < 3000
    assert "AFTER" in done.stdout


def test_a_datamodule_is_lightnings_from_its_import_on() -> None:
    code = """
from attention_probing.datamodules import DependencyDataModule
before = DependencyDataModule("sample")
import sys
assert "pytorch_lightning" not in sys.modules
from pytorch_lightning import LightningDataModule
after = DependencyDataModule("sample")
assert isinstance(before, LightningDataModule) and isinstance(after, LightningDataModule)
assert vars(before).keys() == vars(after).keys(), vars(before).keys() ^ vars(after).keys()
"""
    assert "pytorch_lightning" in loaded_by(code)
    assert issubclass(DependencyDataModule, DataModule)


@pytest.mark.parametrize("name", ["probes", "models"])
def test_what_is_trained_imports_lightning(name: str) -> None:
    kind = {"probes": "AttentionOnlyProbe", "models": "AttentionClassifier"}[name]
    loaded = loaded_by(f"from attention_probing.{name} import {kind}")
    assert "pytorch_lightning" in loaded
