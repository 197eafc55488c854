from collections.abc import Iterator

import pytest

from attention_probing.results.errors import command_line


@pytest.fixture(autouse=True)
def _in_a_command_line() -> Iterator[None]:
    """Messages name options, as in the commands that call these functions."""
    with command_line():
        yield
