from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.attention.extractions import Extraction
from tests.attention.reference import ENCODERS
from tests.tiny import save_bert


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run on one thread: the models are too small for more, and the same bytes need the same number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny encoder of each kind in a folder."""
    return {name: save(tmp_path_factory.mktemp(name)) for name, (save, _) in ENCODERS.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a tiny BERT, for each test anew."""
    return save_bert(tmp_path / "bert")


@pytest.fixture
def extraction(bert: Path, tmp_path: Path) -> Extraction:
    """Ten sentences through the tiny BERT, in three shards."""
    return Extraction(tmp_path / "run", bert)


@pytest.fixture
def undisturbed(bert: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files of the same store, made in one go."""
    other = Extraction(tmp_path / "undisturbed", bert)
    other.prepare()
    return other.files()
