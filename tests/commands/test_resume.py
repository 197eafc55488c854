"""A run that is killed, continued by the same command, ends with the numbers of one that was not killed."""

import errno
import io
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Sequence
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

from attention_probing import commands
from attention_probing.commands import CONFIGS, launch
from attention_probing.commands.command_line import CommandLine
from attention_probing.commands.parser import Parser
from attention_probing.commands.state import RunState, SavedTraining, check_new_folder, new_folder, run_digest
from attention_probing.commands.sweep_jobs import results_of
from attention_probing.commands.training import Resume, RunConfig, random_states, set_random_states
from attention_probing.measures.grammar_heads import GrammarHeads
from attention_probing.measures.trainings import save_tensors
from attention_probing.models.checkpoints import read_checkpoint
from attention_probing.probes import AttentionOnlyProbe
from attention_probing.results.errors import UserError
from attention_probing.results.locks import try_lock
from studies.planted_agreement import agreement_model, write_agreement_pairs
from tests.test_train import arguments, classifier_arguments
from tests.trainers import CONTINUES

pytestmark = CONTINUES

Command = Callable[[Path], list[str]]


class Killed(BaseException):
    """Leaves everything as SIGKILL does."""


HOOKS = ("on_train_batch_start", "on_validation_end", "on_train_epoch_end", "on_train_end", "on_test_batch_start")


class Kill:
    """Kills a run at a place where a callback is called, and counts these places."""

    def __init__(self) -> None:
        self.places = 0
        self.place = 0

    def __call__(self, place: int) -> None:
        """Let the next run be killed at the n-th place; 0 for never."""
        self.places = 0
        self.place = place

    def count(self, hook: Callable[..., None], *given: Any) -> None:  # noqa: ANN401
        hook(*given)
        self.places += 1
        if self.places == self.place:
            raise Killed


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Kill:
    kill = Kill()
    for hook in HOOKS:
        monkeypatch.setattr(Resume, hook, partialmethod(partial(kill.count, getattr(Resume, hook))))
    for callback in (Resume, RunConfig):
        whole = callback.on_exception
        monkeypatch.setattr(callback, "on_exception", lambda *given, whole=whole: None if kill.place else whole(*given))
    return kill


def outcome(runs: Path) -> tuple[dict[str, object], str]:
    """Scores and audit of the one run there is, and what it logged."""
    (record,) = runs.rglob("results.json")
    content = json.loads(record.read_text())
    log = record.parent / "metrics.csv"
    return {name: content[name] for name in ("scores", "audit", "units")}, log.read_text() if log.exists() else ""


def kill_everywhere(command: Command, killed: Kill, folder: Path, every: int) -> None:
    """Kill a run at every n-th place where a callback is called, continue it, and compare."""
    killed(0)
    assert commands.main(command(folder / "whole")) == 0
    whole, places = outcome(folder / "whole"), killed.places
    assert places > every
    for place in range(1, places + 1, every):
        runs = folder / str(place)
        killed(place)
        with pytest.raises(Killed):
            commands.main(command(runs))
        assert not list(runs.rglob("results.json"))
        killed(0)
        assert commands.main(command(runs)) == 0
        assert outcome(runs) == whole
        assert not list(runs.rglob("*state-*"))


SHORT = ("--trainer.max_epochs=2", "--data.batch_size=21")


@pytest.fixture(scope="module")
def probe(corpus: str, bert: Path, cache: str) -> Command:
    """Makes the command line of a short training of a probe, from the folder of its runs."""
    config = CONFIGS / "clark2019/attention_only.yaml"
    return lambda runs: [*arguments(config, corpus, bert, cache, runs), *SHORT]


@pytest.fixture(scope="module")
def whole(probe: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of `probe` without an interruption; its stores are made."""
    runs = tmp_path_factory.mktemp("whole")
    assert commands.main(probe(runs)) == 0
    return runs


@pytest.fixture(scope="module")
def drawn(probe: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with figures."""
    runs = tmp_path_factory.mktemp("drawn")
    assert commands.main([*probe(runs), "--figures.formats=[png]"]) == 0
    return runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "option"),
    [
        pytest.param("attention_only.yaml", "--trainer.max_epochs=2", marks=pytest.mark.core),
        ("attention_only.yaml", "--trainer.max_steps=1000"),  # counted by steps, of which there are fewer
        ("attention_glove.yaml", "--trainer.accumulate_grad_batches=2"),  # its schedule monitors a score on dev
    ],
)
def test_a_probe_killed_anywhere_ends_as_if_it_had_not(
    config: str, option: str, corpus: str, bert: Path, cache: str, killed: Kill, tmp_path: Path
) -> None:
    path = CONFIGS / "clark2019" / config

    def command(runs: Path) -> list[str]:
        return [*arguments(path, corpus, bert, cache, runs), *SHORT, option]

    kill_everywhere(command, killed, tmp_path, every=4)


@pytest.mark.slow
@pytest.mark.parametrize("config", ["base.yaml", "mlm.yaml"])
def test_a_classifier_killed_anywhere_draws_the_same_random_numbers(
    config: str, bert: Path, killed: Kill, tmp_path: Path
) -> None:
    usual = classifier_arguments(CONFIGS / "tutek2020" / config, tmp_path, bert)
    kill_everywhere(lambda runs: [*usual, f"--trainer.default_root_dir={runs}"], killed, tmp_path, every=6)


def test_what_a_killed_run_had_trained_within_its_test_is_kept(
    corpus: str,
    bert: Path,
    cache: str,
    killed: Kill,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    path = CONFIGS / "hewitt2019/control.yaml"
    command = [*arguments(path, corpus, bert, cache, tmp_path), "--model.max_epochs=1"]
    ended: list[str] = []

    def saved(kept: Path, best: dict[str, object]) -> None:
        save_tensors(kept, best)
        ended.append(kept.name)
        if len(ended) == 1:
            raise Killed

    monkeypatch.setattr("attention_probing.measures.trainings.save_tensors", saved)
    monkeypatch.setattr(Resume, "on_exception", lambda *_: None)
    with pytest.raises(Killed):
        commands.main(command)
    assert commands.main(command) == 0
    assert len(ended) == len(set(ended)) == 2  # each of two trainings ends once


def test_what_is_killed_before_there_is_a_state_begins_again_in_its_folder(
    probe: Command, whole: Path, killed: Kill, tmp_path: Path
) -> None:
    command = probe(tmp_path)
    killed(2)
    with pytest.raises(Killed):
        commands.main(command)
    (state,) = tmp_path.rglob("state-*")
    assert not (state / "last.ckpt").exists()
    checkpoints = state.parent / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    users = [state.parent / "notes.txt", checkpoints / "mine.ckpt", checkpoints / "notes.md"]
    for path in users:
        path.write_text("years of work")
    killed(0)
    assert commands.main(command) == 0
    assert [path.name for path in (tmp_path / "AttentionOnlyProbe").glob("version_*")] == ["version_0"]
    assert [path.read_text() for path in users] == ["years of work"] * 3
    (own,) = (path for path in checkpoints.glob("*.ckpt") if path not in users)
    assert own.stat().st_size > 100


def test_a_run_that_is_refused_leaves_nothing_but_the_users_files(
    probe: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = probe(tmp_path)
    monkeypatch.setattr(AttentionOnlyProbe, "on_fit_start", Mock(side_effect=UserError("the data do not fit")))
    assert commands.main(command) == 1
    assert not (tmp_path / "AttentionOnlyProbe").exists()
    with monkeypatch.context() as patched:
        for callback in (Resume, RunConfig):
            patched.setattr(callback, "on_exception", lambda *_: None)  # as if it had been killed
        assert commands.main(command) == 1
    (run,) = (path.parent for path in tmp_path.rglob("config.yaml"))
    (run / "notes.txt").write_text("years of work")
    assert commands.main(command) == 1
    assert list(run.rglob("*")) == [run / "notes.txt"]


def test_another_run_is_not_continued(
    probe: Command, whole: Path, killed: Kill, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = probe(tmp_path)
    killed(2)
    with pytest.raises(Killed):
        commands.main(command)
    killed(0)
    assert commands.main([*command, "--model.learning_rate=0.5"]) == 0
    assert commands.main([*command, "--resume=never"]) == 0
    folder = tmp_path / "AttentionOnlyProbe"
    assert sorted(path.parent.name for path in folder.glob("*/results.json")) == ["version_1", "version_2"]
    state = RunState(next(folder.glob("version_0/state-*")))
    lock = try_lock(state.folder / "lock")
    assert lock is not None
    assert commands.main(command) == 1
    assert "another process works on this run" in " ".join(capsys.readouterr().err.split())
    lock.release()
    assert commands.main(command) == 0
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


def test_a_state_that_cannot_be_read_now_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = RunState(tmp_path / "version_0" / "state-1")
    state.folder.mkdir(parents=True)
    resume = {"ended": False, "best": "", "checkpoints": [], "log": "step\n1\n"}
    torch.save({"epoch": 3, "resume": resume}, state.checkpoint)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
        with pytest.raises(PermissionError):
            state.prepare()
    state.prepare()
    assert state.training == SavedTraining(state.checkpoint, epochs=3, ended=False, best="", log="step\n1\n")
    assert state.log.read_text() == "step\n1\n"


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
    ("during", "pattern", "damages"),
    [
        ("training", "state-*/last.ckpt", (flip, Path.unlink)),
        ("training", "checkpoints/*.ckpt", (cut, Path.unlink)),
        ("test", "state-*/last.ckpt", (cut, empty)),
        ("test", "checkpoints/*.ckpt", (flip, empty)),
    ],
    ids=["state in training", "best in training", "state in test", "best in test"],
)
def test_what_is_damaged_of_an_unfinished_run_is_named_and_made_again(
    during: str,
    pattern: str,
    damages: Sequence[Callable[[Path], None]],
    probe: Command,
    whole: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    runs = tmp_path / "runs"
    with monkeypatch.context() as patched:
        steps = AttentionOnlyProbe.training_step

        def stop(module: AttentionOnlyProbe, *given: Any) -> Any:  # noqa: ANN401
            if module.current_epoch == 1:
                raise Killed
            return steps(module, *given)

        patched.setattr(Resume, "on_exception", lambda *_: None)
        if during == "test":
            patched.setattr(AttentionOnlyProbe, "on_test_start", Mock(side_effect=Killed))
        else:
            patched.setattr(AttentionOnlyProbe, "training_step", stop)
        with pytest.raises(Killed):
            commands.main(probe(runs))
    runs.rename(tmp_path / "kept")
    for damage in damages:
        shutil.copytree(tmp_path / "kept", runs, copy_function=shutil.copy)
        (path,) = runs.glob(f"*/version_0/{pattern}")
        damage(path)
        caplog.clear()
        assert commands.main(probe(runs)) == 0
        assert outcome(runs) == outcome(whole)
        assert len({line for line in caplog.messages if str(path) in line and "again" in line}) == (
            path.name != "last.ckpt" or damage is not Path.unlink
        )
        assert not list(runs.rglob("state-*"))
        shutil.rmtree(runs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["config.yaml", "epoch=*.ckpt", "last.ckpt", "metrics.csv", "results.json", "*.png", "page.html"],
)
def test_a_full_disk_is_told_in_one_line_and_the_same_command_goes_on(
    name: str,
    probe: Command,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    drawing = name in ("*.png", "page.html")
    full = [*probe(tmp_path / "full"), f"--figures.formats={'[png]' if drawing else []}"]
    whole: Path = request.getfixturevalue("drawn" if drawing else "whole")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", partial(no_space, os.fsync, name))
        patched.setattr(Figure, "savefig", partialmethod(no_space_for, Figure.savefig, name))
        patched.setattr(Parser, "save", partialmethod(no_space_for, Parser.save, name))
        capsys.readouterr()
        assert commands.main(full) == 1
    (run,) = (tmp_path / "full").rglob("version_*")
    said = capsys.readouterr().err
    errors = [line for line in said.splitlines() if line.startswith("Error: ")]
    missing = "The scores are written: only figures or the page are missing. " if drawing else ""
    assert "Traceback" not in said
    assert len(errors) == 1
    assert errors[0].endswith(
        f": No space left on device. {missing}Free some space, then repeat the command; what it has kept lies in {run} "
        "and in the cache."
    )
    assert drawing == (run / "results.json").exists()
    assert not list(run.rglob("*.tmp"))
    for path in run.glob("checkpoints/*.ckpt"):
        read_checkpoint(path)
    with monkeypatch.context() as patched:
        if drawing or name == "results.json":
            patched.setattr(AttentionOnlyProbe, "on_fit_start", Mock(side_effect=AssertionError("trained again")))
        assert commands.main(full) == 0
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
            commands.main(command)
    assert not list(tmp_path.rglob("state-*"))
    assert commands.main(command) == 0
    assert [path.parent.name for path in tmp_path.rglob("results.json")] == ["version_1"]


@pytest.mark.slow
@pytest.mark.parametrize("config", ["attention_only.yaml", "heads.yaml"])
def test_a_run_killed_while_it_draws_is_completed(
    config: str, corpus: str, bert: Path, cache: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = [
        *arguments(CONFIGS / "clark2019" / config, corpus, bert, cache, tmp_path),
        "--figures.formats=[png, csv]",
    ]
    with monkeypatch.context() as patched:
        patched.setattr("attention_probing.results.figure_files._draw_figure", Mock(side_effect=Killed))
        patched.setattr("attention_probing.commands.training.Resume.on_exception", lambda *_: None)
        with pytest.raises(Killed):
            commands.main(command)
    (record,) = tmp_path.rglob("results.json")
    first = json.loads(record.read_text())
    assert results_of(tmp_path) is None, "a sweep has it run again"
    assert commands.main(command) == 0
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


def interrupt(probe: AttentionOnlyProbe, batch: object) -> None:
    """As Ctrl-C does."""
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("clark2019/attention_only.yaml", "goes on from what is kept."),
        (
            "hewitt2019/control.yaml",
            "starts again. It uses what is kept: stores of attention, trained models.",
        ),
    ],
)
def test_ctrl_c_in_a_training_says_what_the_same_command_keeps(
    config: str,
    said: str,
    corpus: str,
    bert: Path,
    cache: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = arguments(CONFIGS / config, corpus, bert, cache, tmp_path)
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        patched.setattr(AttentionOnlyProbe, "training_step", interrupt)
        assert commands.main(command) == 130
    signal.signal(signal.SIGINT, handler)  # Lightning ignores it from now on
    assert capsys.readouterr().err.endswith(f"Interrupted. The same command {said}\n")
    assert commands.main(command) == 0


def test_ctrl_c_in_heads_and_grammar_says_that_finished_batches_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The passes are timed first, which keeps their seconds; then it is interrupted."""
    agreement_model(1).save(tmp_path / "model")
    pairs = write_agreement_pairs(tmp_path / "pairs.jsonl", "verb")
    command = ["measure", "grammar", f"--data.corpus={pairs}", f"--encoder={tmp_path / 'model'}"]
    command += [f"--data.cache={tmp_path}", f"--trainer.default_root_dir={tmp_path}", "--trainer.accelerator=cpu"]
    monkeypatch.setattr(GrammarHeads, "update", Mock(side_effect=KeyboardInterrupt))
    assert commands.main(command) == 130
    assert capsys.readouterr().err.endswith("Interrupted. The same command goes on from what is kept.\n")
    shutil.rmtree(tmp_path / "trained")
    monkeypatch.setattr(GrammarHeads, "begin", Mock(side_effect=KeyboardInterrupt))
    assert commands.main(command) == 130
    assert "Interrupted. The same command starts again." in capsys.readouterr().err


def test_other_exits_keep_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attention_probing.commands.launch.start", Mock(side_effect=SystemExit(2)))
    with pytest.raises(SystemExit) as end:
        commands.main(["fit", "--config=demo"])
    assert end.value.code == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_connection_is_told_in_a_line(
    rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:7059. This is typically …\nmore")
    monkeypatch.setattr(rank_zero_only, "rank", rank)
    monkeypatch.setattr("attention_probing.results.progress.FAULT_SECONDS", 0.0)
    monkeypatch.setattr("attention_probing.commands.launch.start", Mock(side_effect=lost))
    with pytest.raises(RuntimeError):
        launch.run(CommandLine((), {}))  # there are no other processes
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert launch.run(CommandLine((), {})) == 1
    said = capsys.readouterr().err
    assert said.startswith("Error: Another process of the run has ended")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("kind", ["link to nothing", "long name", "file", "below a file"])
def test_a_folder_that_cannot_be_made_is_told_before_the_work(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/nowhere/at/all")
    places = {"link to nothing": "link", "long name": "n" * 300, "file": "file", "below a file": "file/runs"}
    parent = tmp_path / places[kind]
    for make in (check_new_folder, new_folder):
        with pytest.raises(UserError, match=rf"^{parent}: no folder can be made there for the run \(.+\)\. Give"):
            make(parent)


def test_a_folder_that_can_be_made_is_not_left(tmp_path: Path) -> None:
    check_new_folder(tmp_path / "runs" / "SingleHeads")
    assert not [*tmp_path.iterdir()]
    (tmp_path / "runs").mkdir()
    check_new_folder(tmp_path / "runs" / "SingleHeads")
    assert [path.name for path in tmp_path.rglob("*")] == ["runs"]
    assert new_folder(tmp_path / "runs" / "SingleHeads").name == "version_0"
