"""Two processes of a run, of which one is slow, frozen, or finds what the other finds too."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.test_train import ROOT, arguments

SCRIPT = """
import os, signal, time
from processes import preemption

preemption.install()
import train
from probes import AttentionOnlyProbe

def validate(self, *_):
    if self.global_rank == 1 and self.current_epoch == 0 and not self.trainer.sanity_checking:
        time.sleep(1.5 * self.trainer.datamodule.rank_timeout)

def backward(self, _):
    if self.global_rank == 1 and self.current_epoch == 1:
        os.kill(os.getpid(), signal.SIGSTOP)

AttentionOnlyProbe.on_validation_batch_start = validate
AttentionOnlyProbe.on_before_backward = backward
raise SystemExit(train.run())
"""


def on_two(arguments: list[str], script: Path | str = "train.py") -> subprocess.CompletedProcess[str]:
    command = [*arguments, "--trainer.devices=2", "--trainer.strategy=ddp"]
    environment = {name: value for name, value in os.environ.items() if name != "PL_GLOBAL_SEED"}
    return subprocess.run(
        [sys.executable, script, *command],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.slow
def test_a_slow_validation_is_waited_for_and_a_rank_frozen_in_backward_is_named(
    corpus: str, bert: Path, cache: str, tmp_path: Path
) -> None:
    config = ROOT / "configs/clark2019/attention_only.yaml"
    command = arguments(config, corpus, bert, cache, tmp_path / "runs")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    began = time.monotonic()
    done = on_two([*command, "--data.init_args.rank_timeout=6"], tmp_path / "script.py")
    assert done.returncode == 1, done.stderr
    assert time.monotonic() - began < 200, "the limit of torch is half an hour"
    (folder,) = (tmp_path / "runs").glob("*/version_0")
    assert list(folder.glob("checkpoints/*.ckpt")), "the first epoch has ended"
    assert done.stderr.splitlines()[-1] == (
        f"Error: {folder}: rank 1 gives no sign of life; the others have waited for 6 s "
        f"(--data.init_args.rank_timeout). Look at its output; the same command continues the run."
    )
    end = time.monotonic() + 10
    while str(tmp_path) in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout:
        assert time.monotonic() < end, "the frozen process ends with the first one"
        time.sleep(0.2)


@pytest.mark.slow
def test_what_all_ranks_find_is_told_once(bert: Path, cache: str, tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.conllu").write_text("1\tof\ttoo\tfew\n\n", encoding="utf-8")
    config = ROOT / "configs/clark2019/attention_only.yaml"
    done = on_two(arguments(config, str(tmp_path / "{split}.conllu"), bert, cache, tmp_path / "runs"))
    assert done.returncode == 1
    assert done.stderr.count("train.conllu:1: ") == 1, done.stderr
