"""A classifier that was fine-tuned on a few texts, and these texts."""

from pathlib import Path

import pytest

from attention_probing.attention import EncoderSpec
from attention_probing.datamodules import ClassificationDataModule
from tests.measures.classifiers import fitted


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, bert: Path) -> Path:
    return fitted(tmp_path_factory.mktemp("fitted"), bert)


@pytest.fixture(scope="session")
def data(checkpoint: Path, bert: Path) -> ClassificationDataModule:
    """The texts that the checkpoint was trained on."""
    folder = checkpoint.parents[4]
    data = ClassificationDataModule(
        str(folder / "{split}.tsv"), tokenizer=EncoderSpec(str(bert)), positive="good", cache=str(folder / "stores")
    )
    data.setup("test")
    return data
