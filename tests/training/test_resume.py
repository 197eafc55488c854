"""An interrupted run, continued by the same command, ends with the numbers of one that was not interrupted."""

import errno
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial, partialmethod
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from pytorch_lightning.utilities import rank_zero_only

import train
from fidelity.checkpoints import files_of
from probes import AttentionOnlyProbe
from processes import preemption
from processes.jobs import results_of
from processes.ranks import LostRank
from results.errors import UserError
from results.files import keep
from tests.test_train import ROOT, arguments, classifier_arguments
from tests.trainers import CONTINUES
from training.checkpoints import read_checkpoint
from training.lightning_private import random_states, set_random_states
from training.parsing import Parser
from training.resume import save_tensors
from training.run import Left, RunState, run_digest

pytestmark = CONTINUES

Command = Callable[[Path], list[str]]


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


def outcome(runs: Path) -> tuple[dict[str, object], str]:
    """Scores and audit of the one run there is, and what it logged."""
    (record,) = runs.rglob("results.json")
    content = json.loads(record.read_text())
    log = record.parent / "metrics.csv"
    return {name: content[name] for name in ("scores", "audit", "units")}, log.read_text() if log.exists() else ""


def interrupt_everywhere(command: Command, signalled: Callable[[int], None], folder: Path, every: int = 4) -> int:
    """Stop a run at every fourth place where it asks for a signal, continue it, and compare; return how often."""
    assert train.run(command(folder / "whole")) == 0
    whole, place, times, code = outcome(folder / "whole"), 1, 0, -1
    while code != 0:
        runs = folder / str(place)
        signalled(place)
        code = train.run(command(runs))
        if code != 0:
            assert code == 128 + signal.SIGUSR1
            assert not list(runs.rglob("results.json"))
            signalled(0)
            assert train.run(command(runs)) == 0
            times += 1
        assert outcome(runs) == whole
        assert not list(runs.rglob("*state-*"))
        place += every
    return times


SHORT = ("--trainer.max_epochs=2", "--data.init_args.max_sentences=21")


@pytest.fixture(scope="module")
def probe(corpus: str, bert: Path, cache: str) -> Command:
    """Makes the command line of a short training of a probe, from the folder of its runs."""
    config = ROOT / "configs/clark2019/attention_only.yaml"
    return lambda runs: [*arguments(config, corpus, bert, cache, runs), *SHORT]


@pytest.fixture(scope="module")
def whole(probe: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of `probe` without an interruption; its stores are made."""
    runs = tmp_path_factory.mktemp("whole")
    assert train.run(probe(runs)) == 0
    return runs


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [pytest.param("attention_only.yaml", marks=pytest.mark.core), "attention_glove.yaml"]
)
def test_a_probe_stopped_anywhere_ends_as_if_it_had_not(
    config: str, corpus: str, bert: Path, cache: str, signalled: Callable[[int], None], tmp_path: Path
) -> None:
    path = ROOT / "configs" / "clark2019" / config
    command = lambda runs: [*arguments(path, corpus, bert, cache, runs), *SHORT]  # noqa: E731
    assert interrupt_everywhere(command, signalled, tmp_path) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("config", ["base.yaml", "mlm.yaml"])
def test_a_classifier_stopped_anywhere_draws_the_same_random_numbers(
    config: str, bert: Path, signalled: Callable[[int], None], tmp_path: Path
) -> None:
    path = ROOT / "configs" / "tutek2020" / config
    usual = classifier_arguments(path, tmp_path, bert)
    command = lambda runs: [*usual, f"--trainer.default_root_dir={runs}"]  # noqa: E731
    assert interrupt_everywhere(command, signalled, tmp_path) >= 2


@pytest.mark.slow
def test_an_experiment_stopped_within_its_trainings_keeps_those_that_have_ended(
    corpus: str,
    bert: Path,
    cache: str,
    signalled: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    path = ROOT / "configs/hewitt2019/control.yaml"
    short = ("--model.init_args.max_epochs=3", "--model.init_args.batches=1")
    ended: list[Path] = []

    def saved(kept: Path, best: dict[str, object]) -> None:
        ended.append(kept)
        save_tensors(kept, best)

    monkeypatch.setattr("training.resume.save_tensors", saved)
    times = interrupt_everywhere(
        lambda runs: [*arguments(path, corpus, bert, cache, runs), *short], signalled, tmp_path
    )
    assert times >= 2
    assert len(ended) == len(set(ended)) == 2 * (times + 2)  # each of two trainings ends once in every run


def test_what_is_killed_before_there_is_a_state_begins_again_in_its_folder(
    probe: Command, whole: Path, signalled: Callable[[int], None], tmp_path: Path
) -> None:
    command = probe(tmp_path)
    signalled(4)  # before the second batch
    assert train.run(command) != 0
    (state,) = tmp_path.rglob("state-*")
    (state / "training.ckpt").unlink()
    checkpoints = state.parent / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    RunState(state).checkpoints.note(checkpoints / "epoch=0-step=2.ckpt")
    (checkpoints / "epoch=0-step=2.ckpt").write_bytes(b"of the killed process")
    users = [state.parent / "notes.txt", checkpoints / "mine.ckpt", checkpoints / "notes.md"]
    for path in users:
        path.write_text("years of work")
    signalled(0)
    assert train.run(command) == 0
    assert [path.name for path in (tmp_path / "AttentionOnlyProbe").glob("version_*")] == ["version_0"]
    assert [path.read_text() for path in users] == ["years of work"] * 3
    (own,) = (path for path in checkpoints.glob("*.ckpt") if path not in users)
    assert own.stat().st_size > 100


def test_a_run_that_is_refused_leaves_nothing_but_the_users_files(
    probe: Command, signalled: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = probe(tmp_path)
    monkeypatch.setattr(AttentionOnlyProbe, "on_fit_start", Mock(side_effect=UserError("the data do not fit")))
    assert train.run(command) == 1
    assert not (tmp_path / "AttentionOnlyProbe").exists()
    with monkeypatch.context() as patched:
        for callback in ("training.resume.Resume", "training.run.RunConfig"):
            patched.setattr(f"{callback}.on_exception", lambda *_: None)  # as if it had been killed
        assert train.run(command) == 1
    (run,) = (path.parent for path in tmp_path.rglob("config.yaml"))
    (run / "notes.txt").write_text("years of work")
    assert train.run(command) == 1
    assert list(run.rglob("*")) == [run / "notes.txt"]


def test_another_run_is_not_continued(
    probe: Command, whole: Path, signalled: Callable[[int], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = probe(tmp_path)
    signalled(4)
    assert train.run(command) != 0
    signalled(0)
    assert train.run([*command, "--model.init_args.learning_rate=0.5"]) == 0
    assert train.run([*command, "--resume=never"]) == 0
    folder = tmp_path / "AttentionOnlyProbe"
    assert sorted(path.parent.name for path in folder.glob("*/results.json")) == ["version_1", "version_2"]
    state = RunState(next(folder.glob("version_0/state-*")))
    lock = state.lock()
    assert train.run(command) == 1
    assert "another process is working on this run" in " ".join(capsys.readouterr().err.split())
    os.close(lock)
    assert train.run(command) == 0
    assert not list(folder.rglob("state-*"))


def test_the_digest_of_a_run_leaves_out_where_it_lies() -> None:
    config = {
        "trainer": {"max_epochs": 2, "default_root_dir": "a"},
        "model": {"init_args": {"seed": 1}},
        "resume": "auto",
    }
    digest = run_digest("fit", config, 1)
    assert digest == run_digest("fit", {**config, "trainer": {"max_epochs": 2, "default_root_dir": "b"}}, 1)
    assert digest == run_digest("fit", {**config, "trust": ["my_probes"]}, 1)
    others = [
        run_digest("test", config, 1),
        run_digest("fit", config, 2),
        run_digest("fit", {**config, "model": {"init_args": {"seed": 2}}}, 1),
        run_digest("fit", {**config, "trainer": {"max_epochs": 3}}, 1),
        run_digest("fit", {**config, "model": {"init_args": {"seed": 1, "root": "learned"}}}, 1),
    ]
    assert len({digest, *others}) == 6


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "note damaged"])
def test_checkpoints_are_put_back_as_they_were_in_the_state(noted: bool, tmp_path: Path) -> None:
    state = RunState(tmp_path / "version_0" / "state-1")
    state.folder.mkdir(parents=True)
    os.close(state.lock())
    best, later, users = (tmp_path / "version_0" / "checkpoints" / f"epoch={epoch}.ckpt" for epoch in (1, 2, 3))
    best.parent.mkdir()
    for path in (best, later, users):
        path.write_text(path.name)
        if path != users:
            state.checkpoints.note(path)
    kept_best = state.checkpoints.keep_best([str(best)])
    state.checkpoints.drop_others(kept_best.values())
    content = io.BytesIO()
    torch.save({"resume": {"best": kept_best, "log": "step\n1\n"}}, content)
    keep(state.training, content.getbuffer())
    best.unlink()  # as its callback does when another is better
    if not noted:
        best.write_text("of another attempt")
        later.unlink()
        flip(state.folder / ".written.json")
    assert state.holds_work
    moved = (tmp_path / "version_0").rename(tmp_path / "version_1")
    state = RunState(moved / "state-1")
    state.tidy()
    assert state.left == Left(state.training, best=kept_best, log="step\n1\n")
    left = {path.name: path.read_text() for path in (moved / "checkpoints").iterdir()}
    assert left == {path.name: path.name for path in (best, users)}
    with pytest.raises(UserError, match="contain no checkpoint"):
        files_of(state.folder)  # nothing of an unfinished run is taken for a trained classifier


def test_a_state_that_cannot_be_read_now_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = RunState(tmp_path / "version_0" / "state-1")
    state.folder.mkdir(parents=True)
    content = io.BytesIO()
    torch.save({"resume": {"best": {}, "log": "step\n1\n"}}, content)
    keep(state.training, content.getbuffer())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
        with pytest.raises(PermissionError):
            state.tidy()
    state.tidy()
    assert state.left == Left(state.training, log="step\n1\n")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("during", "pattern"),
    [
        ("training", "state-*/training.ckpt"),
        ("training", "state-*/checkpoints/*.ckpt"),
        ("test", "state-*/trained.json"),
        ("test", "checkpoints/*.ckpt"),
    ],
)
def test_what_is_damaged_of_an_unfinished_run_is_named_and_made_again(
    during: str,
    pattern: str,
    probe: Command,
    whole: Path,
    signalled: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    interrupted = tmp_path / "interrupted"
    with monkeypatch.context() as patched:
        if during == "test":
            patched.setattr(AttentionOnlyProbe, "on_test_start", Mock(side_effect=Killed))
            with pytest.raises(Killed):
                train.run(probe(interrupted))
        else:
            epochs = AttentionOnlyProbe.on_train_epoch_start

            def stop(module: AttentionOnlyProbe) -> None:
                if module.current_epoch == 1:
                    preemption._process.received = signal.SIGUSR1
                epochs(module)

            patched.setattr(AttentionOnlyProbe, "on_train_epoch_start", stop)
            assert train.run(probe(interrupted)) == 128 + signal.SIGUSR1
    for damage in (flip, cut, empty, Path.unlink):
        runs = shutil.copytree(interrupted, tmp_path / damage.__name__, copy_function=shutil.copy)
        (path,) = runs.glob(f"*/version_0/{pattern}")
        damage(path)
        signalled(0)
        caplog.clear()
        assert train.run(probe(runs)) == 0
        assert outcome(runs) == outcome(whole)
        assert len([line for line in caplog.messages if str(path) in line and "again" in line]) == (
            path.name not in ("training.ckpt", "trained.json") or damage is not Path.unlink
        )
        assert not list(runs.rglob("state-*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["config.yaml", "epoch=*.ckpt", "training.ckpt", "trained.json", "*.csv", "results.json", "*.png", "page.html"],
)
def test_a_full_disk_is_told_in_one_line_and_the_same_command_goes_on(
    name: str,
    probe: Command,
    whole: Path,
    signalled: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    drawing = name in ("*.png", "page.html")
    full = [*probe(tmp_path / "full"), f"--figures.draw={drawing}"]
    if drawing:
        whole = tmp_path / "whole"
        assert train.run([*probe(whole), "--figures.draw=true"]) == 0
    with monkeypatch.context() as patched:
        patched.setattr("training.resume.EVERY", 0.0)  # a state before every batch
        patched.setattr(os, "fsync", partial(no_space, os.fsync, name))
        patched.setattr(Figure, "savefig", partialmethod(no_space_for, Figure.savefig, name))
        patched.setattr(Parser, "save", partialmethod(no_space_for, Parser.save, name))
        capsys.readouterr()
        assert train.run(full) == 1
    (run,) = (tmp_path / "full").rglob("version_*")
    said = capsys.readouterr().err
    errors = [line for line in said.splitlines() if line.startswith("Error: ")]
    missing = "The scores are written: only figures or the page are missing. " if drawing else ""
    assert "Traceback" not in said
    assert len(errors) == 1
    assert errors[0].endswith(
        f": No space left on device. {missing}Free some space, then repeat the command: it continues the run in {run}."
    )
    assert drawing == (run / "results.json").exists()
    assert not list(run.rglob("*.tmp"))
    for path in run.glob("checkpoints/*.ckpt"):
        read_checkpoint(path)
    with monkeypatch.context() as patched:
        if drawing or name in ("*.csv", "results.json"):
            patched.setattr(AttentionOnlyProbe, "on_fit_start", Mock(side_effect=AssertionError("trained again")))
        assert train.run(full) == 0
    assert [path.name for path in run.parent.iterdir()] == ["version_0"]
    assert outcome(tmp_path / "full") == outcome(whole)
    files, others = ({path.name for path in runs.rglob("*")} for runs in (tmp_path / "full", whole))
    assert {one for one in files ^ others if "tfevents" not in one} == set()


def no_space(fsync: Callable[[int], None], name: str, descriptor: int) -> None:
    """`os.fsync` on a disk that has no room for a file of this name."""
    written = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
    if fnmatch(written, f".{name}.*.tmp"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    fsync(descriptor)


def no_space_for(one: object, write: Callable[..., None], name: str, *given: Any, **options: Any) -> None:  # noqa: ANN401
    """A method of `one` that writes a file, on a disk that has no room for one of this name."""
    if any(fnmatch(str(path), f"*{name}") for path in given if isinstance(path, str | Path)):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    write(one, *given, **options)


def test_a_run_that_fails_is_not_continued(probe: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = probe(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(AttentionOnlyProbe, "on_train_epoch_end", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train.run(command)
    assert not list(tmp_path.rglob("state-*"))
    assert train.run(command) == 0
    assert [path.parent.name for path in tmp_path.rglob("results.json")] == ["version_1"]


class Killed(BaseException):
    """Leaves everything as SIGKILL does."""


@pytest.mark.slow
@pytest.mark.parametrize("config", ["attention_only.yaml", "heads.yaml"])
def test_a_run_killed_while_it_draws_is_completed(
    config: str, corpus: str, bert: Path, cache: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = [*arguments(ROOT / "configs/clark2019" / config, corpus, bert, cache, tmp_path), "--figures.draw=true"]
    with monkeypatch.context() as patched:
        patched.setattr("results.writer._save_figure", Mock(side_effect=Killed))
        patched.setattr("training.resume.Resume.on_exception", lambda *_: None)
        with pytest.raises(Killed):
            train.run(command)
    (record,) = tmp_path.rglob("results.json")
    first = json.loads(record.read_text())
    assert results_of(tmp_path) is None, "a sweep has it run again"
    assert train.run(command) == 0
    (record,) = tmp_path.rglob("results.json")
    whole = json.loads(record.read_text())
    assert results_of(tmp_path) == record
    assert all((record.parent / file).stat().st_size for file in whole["figures"].values())
    assert whole.pop("figures").keys() >= whole.pop("figure_data").keys() > set()
    assert (first.pop("figures"), first.pop("figure_data")) == ({}, {})
    drawn = whole["columns"].keys() - first["columns"].keys()  # the columns of the numbers of figures
    assert drawn == {name for name in whole["columns"] if name.endswith(".data")}
    whole["columns"] = {name: whole["columns"][name] for name in first["columns"]}
    sums = [one.pop("checksums") for one in (whole, first)]  # those of tables and items alone are the same
    assert {name for name in sums[1] if sums[0].get(name) != sums[1][name]} == {"results.json"}
    assert whole == first
    assert not list(tmp_path.rglob("*state-*"))


def test_the_state_outlives_the_loss_of_another_process(
    probe: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = probe(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(AttentionOnlyProbe, "on_train_epoch_end", Mock(side_effect=LostRank("rank 1")))
        assert train.run(command) == 1
    assert list(tmp_path.rglob("state-*"))
    assert train.run(command) == 0
    assert [path.parent.name for path in tmp_path.rglob("results.json")] == ["version_0"]


def test_random_numbers_go_on_where_they_were() -> None:
    def drawn() -> list[float]:
        return [random.random(), random.gauss(0, 1), float(np.random.normal()), float(torch.rand(()))]

    random.gauss(0, 1)  # of two that are made at once, one is kept for the next call
    states = random_states()
    first = drawn()
    buffer = io.BytesIO()
    torch.save(states, buffer)
    buffer.seek(0)
    set_random_states(torch.load(buffer, weights_only=True))
    assert drawn() == first


SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in what it starts in the background
from processes import preemption
preemption.install()
preemption.share({marker!r}, None)
print("ready", flush=True)
try:
    while True:
        preemption.check()
        time.sleep(0.01)
except preemption.Interrupted as stop:
    sys.exit(100 + stop.signal)
"""


@pytest.mark.parametrize("number", preemption.SIGNALS)
def test_a_signal_stops_at_the_next_question_and_the_others_of_the_run_too(
    number: signal.Signals, tmp_path: Path
) -> None:
    marker = tmp_path / "stop"
    script = SCRIPT.replace("{marker!r}", f"__import__('pathlib').Path({str(marker)!r})")
    marker.touch()
    os.utime(marker, (0, 0))  # of an earlier run
    pair = [
        subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in pair:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    pair[0].send_signal(number)
    try:
        said = [process.communicate(timeout=60)[1].decode() for process in pair]
    finally:
        for process in pair:
            process.kill()
    assert [process.returncode for process in pair] == [100 + number, 100 + signal.SIGTERM]
    assert number.name in said[0]


LATE = """
import os, signal
from processes import preemption

class Late:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

preemption.install()
late = Late()  # until the modules are taken down
preemption.ignore()
"""


def test_a_signal_after_the_end_of_the_run_does_not_make_it_a_failure() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], cwd=ROOT, check=False)
    assert done.returncode == 0
    without = LATE.replace("preemption.ignore()", "")
    assert subprocess.run([sys.executable, "-c", without], cwd=ROOT, check=False).returncode == -signal.SIGTERM


TEST = """
import os, signal, sys, time
from datetime import timedelta
from pathlib import Path
import torch
from pytorch_lightning import LightningModule, Trainer
from processes import preemption
from training.lightning_private import ignore_signals
from training.resume import Resume
from training.run import RunState

folder, interrupted = Path(sys.argv[1]), sys.argv[2] == "interrupted"

class Gather(LightningModule):
    def setup(self, stage):
        self.group = torch.distributed.new_group(timeout=timedelta(seconds=1))

    def test_dataloader(self):
        return [0, 1, 2]

    def test_step(self, batch, batch_idx):
        if self.global_rank == 1 and batch == 1:
            time.sleep(4)
            if interrupted:
                os.kill(os.getpid(), signal.SIGUSR1)

    def on_test_epoch_end(self):
        total = torch.ones(())
        torch.distributed.all_reduce(total, group=self.group)
        (folder / f"sum-{self.global_rank}").write_text(str(int(total)))

preemption.install()
preemption.share(folder / ".stop", None)
trainer = Trainer(
    accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_progress_bar=False,
    use_distributed_sampler=False, callbacks=[Resume(RunState(folder / f"state-of-{os.environ.get('LOCAL_RANK', 0)}"))],
)
ignore_signals(trainer)
if trainer.is_global_zero:
    (folder / "state-of-0").mkdir()
try:
    trainer.test(Gather(), verbose=False)
except preemption.Interrupted as stop:
    sys.exit(100 if trainer.is_global_zero else 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code", "sums"), [("slow", 0, ["2", "2"]), ("interrupted", 100, [])])
def test_ranks_of_a_test_wait_for_a_slower_one_and_not_for_one_that_has_stopped(
    how: str, code: int, sums: list[str], tmp_path: Path
) -> None:
    """Beyond the time after which a collective gives up."""
    script = tmp_path / "script.py"
    script.write_text(TEST, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script, tmp_path, how],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert [path.read_text() for path in sorted(tmp_path.glob("sum-*"))] == sums
    assert not list(tmp_path.glob("state-*/.alive-*"))


@pytest.mark.parametrize(("asked", "rank", "code"), [(True, 0, 128 + signal.SIGTERM), (True, 1, 0), (False, 0, 1)])
def test_a_lost_connection_is_an_interruption_where_another_process_was_asked_to_stop(
    asked: bool,
    rank: int,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lost = RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:7059. This is typically …\nmore")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(rank_zero_only, "rank", rank)
    monkeypatch.setattr("training.cli.main", Mock(side_effect=lost))
    with pytest.raises(RuntimeError):
        train.run([])  # there are no other processes
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    preemption.share(tmp_path / "stop", None)
    if asked:
        (tmp_path / "stop").touch()  # by the process that has got the signal
    assert train.run([]) == code
    said = capsys.readouterr().err
    assert said.startswith(
        {0: "", 1: "Error: Another process of the run has ended", 143: "Interrupted by SIGTERM"}[code]
    )
    assert len(said.splitlines()) == (code != 0)


def test_only_a_job_that_runs_is_requeued(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, ...]] = []

    def scontrol(*arguments: str) -> str | None:
        called.append(arguments)
        return f"JobId=7 JobState={state} Reason=None" if arguments[0] == "show" else ""

    monkeypatch.setattr(preemption, "_scontrol", scontrol)
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    assert preemption.requeue() is None
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for name, requeued in (("RUNNING", True), ("CANCELLED", False), ("PREEMPTED", False), ("TIMEOUT", False)):
        state = name
        called.clear()
        said = preemption.requeue()
        assert said is not None
        assert (("requeue", "7") in called) == requeued == ("is requeued" in said)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "5")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    state = "RUNNING"
    assert preemption.requeue() == "SLURM job 5_3 is requeued."
