"""Each private part of Lightning, torch and torchmetrics that a run uses does what it is used for."""

import csv
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning_fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.cli import LightningCLI
from torch import Tensor
from torch.multiprocessing.spawn import ProcessExitedException, start_processes

import attention_probing.commands.launch  # noqa: F401 # changes what Lightning says
from attention_probing.commands.faults import RankLocks, fault, how_rank_ended, is_of_another
from attention_probing.commands.lightning_private import (
    CommandLine,
    ContinuedCSVLogger,
    continue_training,
    repeat_batch,
    set_root,
    steps_of,
)
from attention_probing.models import ignore_signals
from attention_probing.models.trained import Average

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}
BATCHES, EPOCHS = 3, 2


class Tiny(LightningModule):
    """One weight; notes the batches that it has seen, and who would handle SIGTERM."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[tuple[int, int]] = []
        self.handler: object = None
        self.metric = Average()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.seen.append((self.current_epoch, int(batch)))
        self.handler = signal.getsignal(signal.SIGTERM)
        self.metric.update(self.weight.detach(), 1)
        return (self.weight - 1).square()

    def on_train_epoch_end(self) -> None:
        self.log("loss", self.metric.take())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> "Loader":
        return Loader(self)


class Loader:
    """The batches of an epoch that were not seen; it has a state, as Lightning asks where a training goes on."""

    def __init__(self, module: Tiny) -> None:
        self.module = module

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[Tensor]:
        seen = self.module.trainer.fit_loop.epoch_loop.batch_progress.current.ready
        yield from map(torch.tensor, range(seen % BATCHES, BATCHES))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class SaveBefore(Callback):
    """Saves a checkpoint before a batch, which is repeated."""

    def __init__(self, epoch: int, batch: int, path: Path) -> None:
        self.place, self.path, self.steps = (epoch, batch), path, 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == self.place:
            self.steps = steps_of(trainer)
            trainer.save_checkpoint(self.path)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        repeat_batch(checkpoint)


class Continue(Callback):
    """Corrects the count of steps before the first batch."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_start(self, trainer: Trainer, *_: object) -> None:
        if self.steps >= 0:
            continue_training(trainer, self.steps)
            self.steps = -1


@pytest.mark.parametrize("place", [(0, 1), (1, 0), (1, 2)])
def test_a_training_goes_on_with_the_batch_before_which_it_was_saved(place: tuple[int, int], tmp_path: Path) -> None:
    save = SaveBefore(*place, tmp_path / "tiny.ckpt")
    whole, continued = Tiny(), Tiny()
    trainer = Trainer(**QUIET, max_epochs=EPOCHS, callbacks=[save])
    trainer.fit(whole)
    again = Trainer(**QUIET, max_epochs=EPOCHS, callbacks=[Continue(save.steps)])
    again.fit(continued, ckpt_path=save.path)
    assert whole.seen == [(epoch, batch) for epoch in range(EPOCHS) for batch in range(BATCHES)]
    assert continued.seen == whole.seen[whole.seen.index(place) :]
    assert (steps_of(again), again.global_step) == (steps_of(trainer), trainer.global_step) == (EPOCHS * BATCHES,) * 2
    assert torch.equal(continued.weight, whole.weight)


@pytest.mark.parametrize("ignored", [True, False])
def test_lightning_handles_no_signal_of_a_trainer_that_ignores_them(ignored: bool, tmp_path: Path) -> None:
    trainer, module = Trainer(**QUIET, max_steps=1, default_root_dir=tmp_path), Tiny()
    if ignored:
        ignore_signals(trainer)
    trainer.fit(module)
    assert (module.handler == signal.getsignal(signal.SIGTERM)) == ignored


def test_a_trainer_continues_from_files_of_its_root_alone(tmp_path: Path) -> None:
    trainer = Trainer(**QUIET)
    set_root(trainer, tmp_path)
    assert trainer.default_root_dir == str(tmp_path)
    assert trainer._checkpoint_connector._hpc_resume_path is None
    trainer.strategy.connect(Tiny())
    trainer.save_checkpoint(tmp_path / "hpc_ckpt_1.ckpt")
    assert trainer._checkpoint_connector._hpc_resume_path == str(tmp_path / "hpc_ckpt_1.ckpt")


def test_a_log_is_continued_and_not_removed(tmp_path: Path) -> None:
    logger = ContinuedCSVLogger(tmp_path, lambda: "epoch,val_uas,step\n0,0.5,1\n")
    logger.log_metrics({"val_uas": 0.75}, step=2)
    logger.save()
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["step"], row["val_uas"]) for row in rows] == [("1", "0.5"), ("2", "0.75")]


def test_private_steps_of_the_command_line_are_those_of_lightning() -> None:
    own = {name for name in vars(CommandLine) if name.startswith("_") and not name.startswith("__")}
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


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_rank_that_ended_is_named(group: Callable[..., None], tmp_path: Path) -> None:
    group(lambda: RankLocks(tmp_path / "locks", 1, 2))
    locks = RankLocks(tmp_path / "locks", 0, 2)
    with pytest.raises(RuntimeError) as error:
        dist.all_reduce(torch.ones(()))
    locks.explain(error.value)
    said = str(fault(error.value))
    assert said.startswith(
        "Rank 1 of the run has ended: look at its output. The same command goes on from what is kept."
    )


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_rank_that_is_killed_gives_its_lock_back(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()

    def work() -> None:
        locks = RankLocks(tmp_path, 2, 3)
        ready.set()
        time.sleep(60)
        locks.ended()

    other = context.Process(target=work)
    other.start()
    assert ready.wait(60)
    locks = RankLocks(tmp_path, 0, 3)
    own = RankLocks(tmp_path, 1, 3)
    assert locks.ended() == []
    assert own.ended() == []
    other.kill()
    other.join()
    assert locks.ended() == [2]


def test_an_error_of_this_process_gets_no_note(tmp_path: Path) -> None:
    error = RuntimeError("shapes differ")
    RankLocks(tmp_path, 0, 2).explain(error)
    assert not hasattr(error, "__notes__")


def test_what_torch_says_of_a_forked_rank_is_told_in_a_line() -> None:
    with pytest.raises(ProcessExitedException) as error:
        start_processes(_end_rank_1, nprocs=2, start_method="fork")  # type: ignore[no-untyped-call]
    said = "Rank 1 of the run was ended by SIGKILL (often: out of memory). The same command goes on from what is kept."
    assert str(fault(error.value)) == said


@pytest.mark.parametrize(
    ("code", "said"),
    [(1, "Rank 2 of the run ended with exit code 1."), (-64, "Rank 2 of the run was ended by SIGRTMAX.")],
)
def test_how_a_rank_ended(code: int, said: str) -> None:
    assert how_rank_ended(2, code) == said


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    assert how_rank_ended(0, -40) == "Rank 0 of the run was ended by signal 40."


def test_a_lack_of_memory_is_a_line() -> None:
    assert str(fault(MemoryError())) == "There is not enough memory. Free some, or give something smaller."
    assert str(fault(MemoryError("8 GB"))).endswith("something smaller. (8 GB)")


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
