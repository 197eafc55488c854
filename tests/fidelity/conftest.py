from pathlib import Path

import pytest

from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity.checkpoints import Checkpoint
from tests.fidelity.trained import checkpoint_of, config_of, fitted, texts_in

TYING = "--model.regularizers=[{class_path: Tying, init_args: {weight: 0.1}}]"


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> ClassificationDataModule:
    return texts_in(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def checkpoints(data: ClassificationDataModule) -> list[Checkpoint]:
    """Two seeds of one configuration, and one of uniform attention, trained on `data`."""
    uniform = checkpoint_of(data, config_of(0, "UniformAttention"), "uniform")
    return [checkpoint_of(data, config_of(0)), checkpoint_of(data, config_of(1)), uniform]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of `train.py fit` on `../texts`: base with two seeds, tying with two weights, and other attention."""
    folder = tmp_path_factory.mktemp("trained")
    fitted(folder, "runs/base-1", seed=1)
    fitted(folder, "runs/base-0")
    fitted(folder, "runs/tying", TYING)
    fitted(folder, "runs/stronger", TYING.replace("0.1", "1.0"))
    fitted(folder, "runs/dot", "--model.attention=DotAttention")
    return folder / "runs"
