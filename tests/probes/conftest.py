from collections.abc import Callable

import pytest

from attention_probing.datamodules import DependencyDataModule


@pytest.fixture
def data(make_data: Callable[..., DependencyDataModule]) -> DependencyDataModule:
    """The tiny treebank, all splits open."""
    module = make_data(seed=0)
    module.setup("fit")
    module.setup("test")
    return module
