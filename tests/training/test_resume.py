"""An interrupted run, continued by the same command, ends with the numbers of one that was not interrupted."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import preemption
import train
from tests.test_train import ROOT, arguments, pytestmark  # noqa: F401 # the warnings of Lightning that are expected
from training import resume
from training.resume import RunState, random_states, run_digest, set_random_states


@pytest.fixture(autouse=True)
def signalled(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Begin a process anew that is sent a signal before it asks for one for the n-th time; 0 for never."""
    requested = preemption.requested

    def arm(number: int) -> None:
        asked = 0
        monkeypatch.setattr(preemption, "_process", preemption._Process())

        def counted() -> signal.Signals | None:
            nonlocal asked
            asked += 1
            if asked == number:
                preemption._process.received = signal.SIGUSR1
            return requested()

        monkeypatch.setattr(preemption, "requested", counted)

    arm(0)
    return arm


@pytest.fixture
def command(corpus: str, bert: Path, cache: str) -> Callable[..., list[str]]:
    def made(config: str, runs: Path, *extra: str) -> list[str]:
        return [*arguments(ROOT / "configs" / config, corpus, bert, cache, runs), *extra]

    return made


def outcome(runs: Path) -> tuple[dict[str, object], str]:
    """Scores and audit of the one run there is, and what it logged."""
    (record,) = runs.rglob("results.json")
    content = json.loads(record.read_text())
    log = record.parent / "metrics.csv"
    return {name: content[name] for name in ("scores", "audit", "units")}, log.read_text() if log.exists() else ""


@pytest.mark.parametrize(
    "config", ["clark2019/attention_only.yaml", "clark2019/attention_glove.yaml", "clark2019/coreference_trained.yaml"]
)
def test_a_training_stopped_before_any_batch_ends_as_if_it_had_not(
    config: str,
    command: Callable[..., list[str]],
    signalled: Callable[[int], None],
    tmp_path: Path,
) -> None:
    shorter = ["--trainer.max_epochs=3", "--data.init_args.max_sentences=16"]
    assert train.run(command(config, tmp_path / "whole", *shorter)) == 0
    whole, asked, code = outcome(tmp_path / "whole"), 0, -1
    while code != 0:  # stop once at every place where the run asks for a signal
        asked += 1
        runs = tmp_path / str(asked)
        signalled(asked)
        code = train.run(command(config, runs, *shorter))
        if code != 0:
            assert code == 128 + signal.SIGUSR1
            assert not list(runs.rglob("results.json"))
            signalled(0)
            assert train.run(command(config, runs, *shorter)) == 0
        assert outcome(runs) == whole
        assert not list(runs.rglob("state-*"))
    assert asked > 10
