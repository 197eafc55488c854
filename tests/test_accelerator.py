"""What crosses between host and device in a batch, counted on a stand-in accelerator; see `tests.standin`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.standin import NAME
from tests.standin_run import HEADS, LAYERS

pytestmark = [pytest.mark.slow, pytest.mark.core]

Run = dict[str, dict[str, Any]]

FIELDS = 8
"""Most tensors of a batch; each is one copy to the device."""
INPUTS = 6
"""Copies to the device of a forward pass: pieces, mask, lengths, and what reduces pieces to words."""
WAITS_OF_PASS = 2
"""Reads of one number in a forward pass: transformers asks whether there is padding, we whether rows sum to one."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Scores and events of each run, on the CPU and on the stand-in; its process has no other accelerator."""
    folder = tmp_path_factory.mktemp("standin")
    command = [sys.executable, "-m", "tests.standin_run", str(folder)]
    root = Path(__file__).resolve().parents[1]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Run] = json.loads(ended.stdout.splitlines()[-1])
    return found


def per_batch(run: Run, kind: str) -> float:
    """Number of events of a kind for each batch."""
    loop = run[NAME]
    events = [event for event in loop["events"] if event["kind"] == kind]
    return float(len(events) / loop["batches"])


def largest(run: Run, kind: str) -> int:
    """Most numbers of one copy."""
    return max((event["numbers"] for event in run[NAME]["events"] if event["kind"] == kind), default=0)


ALL = ("heads, streamed", "trees, streamed", "trees, stored", "fit", "fidelity")


@pytest.mark.parametrize("name", ALL)
def test_the_device_computes_what_the_cpu_computes(name: str, runs: dict[str, Run]) -> None:
    scores = {device: runs[name][device]["scores"] for device in ("cpu", NAME)}
    assert scores[NAME] == pytest.approx(scores["cpu"], abs=1e-6, nan_ok=True)
    assert runs[name][NAME]["batches"] > 1
    assert runs[name][NAME]["events"]
    assert not runs[name]["cpu"]["events"]


def test_streamed_heads_leave_the_device_as_a_result_alone(runs: dict[str, Run]) -> None:
    run = runs["heads, streamed"]
    assert per_batch(run, "to host") == 0
    assert per_batch(run, "wait") <= WAITS_OF_PASS
    assert per_batch(run, "to device") <= FIELDS + INPUTS


def test_streamed_attention_does_not_come_back_to_the_device(runs: dict[str, Run]) -> None:
    """It is computed there; SciPy, which finds the trees, gets one copy of each batch on the host."""
    run = runs["trees, streamed"]
    maps = largest(run, "to host")
    assert maps % (LAYERS * HEADS) == 0
    copies = [event for event in run[NAME]["events"] if event["numbers"] > maps / 2]
    assert {event["kind"] for event in copies} == {"to host"}
    assert all("metrics.trees:" in event["place"] for event in copies)
    assert per_batch(run, "wait") <= WAITS_OF_PASS


def test_stored_attention_is_copied_once(runs: dict[str, Run]) -> None:
    run = runs["trees, stored"]
    assert per_batch(run, "to device") <= FIELDS + 1
    assert per_batch(run, "wait") == 0
    to_host = [event for event in run[NAME]["events"] if event["kind"] == "to host"]
    assert all("metrics.trees:" in event["place"] for event in to_host)
    assert len(to_host) == 4 * run[NAME]["batches"]


def test_a_training_step_never_waits(runs: dict[str, Run]) -> None:
    run = runs["fit"]
    assert per_batch(run, "wait") == per_batch(run, "to host") == 0
    assert per_batch(run, "to device") <= FIELDS


def test_fidelity_copies_no_maps(runs: dict[str, Run]) -> None:
    """All that goes to the host is of the size of the texts; of ten example texts, values go one by one."""
    run = runs["fidelity"]
    assert largest(run, "to host") <= 60  # tokens of a batch
    of_tests = [event for event in run[NAME]["events"] if "example" not in event["place"]]
    batches = run[NAME]["batches"]
    assert sum(event["kind"] == "to host" for event in of_tests) <= 5 * batches
    assert sum(event["kind"] == "wait" for event in of_tests) <= 6 * batches
