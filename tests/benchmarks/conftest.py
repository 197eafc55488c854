import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attention_probing.attention import EncoderError, EncoderSpec, resolve
from attention_probing.corpora.sample import write_sample_treebank
from benchmarks.harness import first_sentences

Numbers = dict[str, Any]
Measured = Callable[..., tuple[str, Numbers, Numbers]]


@pytest.fixture(autouse=True)
def _heard_again() -> Iterator[None]:
    """A benchmark silences Lightning, which later tests of the same process read."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric", "attention_probing")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def _bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default encoder on disk; a hub is never asked."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PROBING_MODELS", "none")  # the real models take minutes
    try:
        resolve(EncoderSpec())
    except EncoderError as error:
        pytest.skip(f"needs the default encoder, which the extra `demo` installs: {error}")


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    """Runs a benchmark on the sample as the command line does; gives its name, ratios and figures."""

    def run(main: Callable[[list[str]], int], *options: str) -> tuple[str, Numbers, Numbers]:
        target = tmp_path / "out.json"
        assert main(["--json", str(target), "--corpus", "sample", "--rounds", "1", *options]) == 0
        content = json.loads(target.read_text())
        assert content.keys() == {"benchmark", "machine", "ratios", "figures"}
        return content["benchmark"], content["ratios"], content["figures"]

    return run


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """The first six sentences of the sample."""
    return first_sentences([write_sample_treebank(tmp_path)["dev"]], tmp_path / "few.conllu", 6)
