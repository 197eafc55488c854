import threads  # noqa: F401 # before torch

# isort: split
from pathlib import Path

import pytest

from tests.tiny import save_bert
from tests.treebanks import write_splits


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT, 2 layers × 4 heads, at most 64 pieces."""
    return save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a tiny treebank, with `{split}` in it: 41, 13 and 17 sentences."""
    return write_splits(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One folder of stores for all tests that only read them."""
    return str(tmp_path_factory.mktemp("stores"))
