"""Each private part of Lightning, torch and torchmetrics that a run uses does what it is used for."""

import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from lightning_fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.cli import LightningCLI
from torch import Tensor
from torch.multiprocessing.spawn import ProcessExitedException, start_processes
from torch.utils.data import DataLoader, TensorDataset

import attention_probing.commands.launch  # noqa: F401 # changes what Lightning says
from attention_probing import commands
from attention_probing.commands.faults import find_user_error, how_rank_ended, is_of_another
from attention_probing.commands.lightning_private import PublicCLI
from attention_probing.models import ignore_signals

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


class Tiny(LightningModule):
    """One weight; notes who would handle SIGTERM."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.handler: object = None

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.handler = signal.getsignal(signal.SIGTERM)
        return (self.weight - 1).square()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.zeros(1)))


@pytest.mark.parametrize("ignored", [True, False])
def test_lightning_handles_no_signal_of_a_trainer_that_ignores_them(ignored: bool, tmp_path: Path) -> None:
    trainer, module = Trainer(**QUIET, max_steps=1, default_root_dir=tmp_path), Tiny()
    if ignored:
        ignore_signals(trainer)
    trainer.fit(module)
    assert (module.handler == signal.getsignal(signal.SIGTERM)) == ignored


def test_private_steps_of_the_command_line_are_those_of_lightning() -> None:
    own = {name for name in vars(PublicCLI) if name.startswith("_") and not name.startswith("__")}
    assert own == {"_run_subcommand", "_parse_ckpt_path"}
    assert own <= vars(LightningCLI).keys()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Joins two processes by gloo, of which the other one does something else than a collective."""
    others: list[multiprocessing.process.BaseProcess] = []
    context = multiprocessing.get_context("fork")
    joined = context.Event()

    def join(rank: int) -> None:
        where = f"file://{tmp_path / 'group'}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=timedelta(seconds=60))

    def other(does: Callable[[], object]) -> None:
        join(1)
        joined.wait(60)  # the first process connects a little later
        does()
        os._exit(0)

    def begin(does: Callable[[], object]) -> None:
        others.append(context.Process(target=other, args=(does,)))
        others[0].start()
        join(0)
        joined.set()

    yield begin
    dist.destroy_process_group()
    for process in others:
        process.kill()
        process.join()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_what_gloo_says_of_a_lost_process_is_understood(group: Callable[..., None]) -> None:
    group(lambda: None)
    with pytest.raises(RuntimeError) as error:
        dist.all_reduce(torch.ones(()))
    assert is_of_another(error.value), str(error.value)


def test_what_torch_says_of_a_forked_rank_is_told_in_a_line() -> None:
    with pytest.raises(ProcessExitedException) as error:
        start_processes(_end_rank_1, nprocs=2, start_method="fork")  # type: ignore[no-untyped-call]
    said = "Rank 1 of the run was ended by SIGKILL (often: out of memory). The same command goes on from what is kept."
    assert str(find_user_error(error.value)) == said


@pytest.mark.parametrize(
    ("code", "said"),
    [(1, "Rank 2 of the run ended with exit code 1."), (-64, "Rank 2 of the run was ended by SIGRTMAX.")],
)
def test_how_a_rank_ended(code: int, said: str) -> None:
    assert how_rank_ended(2, code) == said


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    assert how_rank_ended(0, -40) == "Rank 0 of the run was ended by signal 40."


def test_a_lack_of_memory_is_a_line() -> None:
    assert str(find_user_error(MemoryError())) == "There is not enough memory. Free some, or give something smaller."
    assert str(find_user_error(MemoryError("8 GB"))).endswith("something smaller. (8 GB)")


def _end_rank_1(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_lightning_says_of_a_process_that_it_started_is_reworded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = subprocess.Popen(["sleep", "60"])
    process.kill()
    process.wait()
    observer = _ChildProcessObserver(os.getpid(), [process])
    monkeypatch.setattr(observer, "_terminate_all", lambda: None)
    with caplog.at_level("INFO", "lightning_fabric"):
        assert observer._run()
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("Error: Rank 1 of the run was ended by SIGKILL")


@pytest.mark.parametrize("command", ["fit", "predict"])
def test_the_parser_of_a_command_prints_its_settings(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Not the parser of all commands, which would parse the words again."""
    with pytest.raises(SystemExit, match="0"):
        commands.main([command, "demo", "--trainer.max_epochs=7", "--print_config"])
    settings = yaml.safe_load(capsys.readouterr().out)
    assert settings["trainer"]["max_epochs"] == 7
