"""`train.py … --preflight`: every fault is told, and nothing is left behind."""

import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest
from huggingface_hub import constants

import train
from attention import EncoderSpec, resolve
from attention.encoder import offline
from datamodules import DependencyDataModule
from processes.ranks import Ranks
from results.errors import UserError
from tests import documents
from tests.fidelity.trained import fitted
from tests.test_train import ROOT, arguments, classifier_arguments, slurm
from training.preflight import Needs, see_folder

Said = tuple[int, str, str]


@pytest.fixture
def flown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], Said]:
    """Gives the exit code of a preflight, its table, and its errors; it starts no process and asks no network."""

    def refused(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a process is started, or the network is asked")

    monkeypatch.setattr(subprocess, "Popen", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)

    def fly(command: list[str]) -> Said:
        capsys.readouterr()
        code = train.run([*command, "--preflight"])
        found = capsys.readouterr()
        return code, " ".join(found.out.split()), found.err.partition("Error: ")[2]

    return fly


def left(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


DDP = ["--trainer.devices=2", "--trainer.strategy=ddp"]


@pytest.mark.parametrize("devices", [[], DDP])
def test_a_good_run_of_the_sample_leaves_nothing(
    devices: list[str], flown: Callable[[list[str]], Said], bert: Path, tmp_path: Path
) -> None:
    cache, runs = tmp_path / "stores", tmp_path / "runs"
    command = arguments(ROOT / "configs" / "demo.yaml", "sample", bert, str(cache), runs)
    code, table, errors = flown([*command, *devices, "--data.init_args.options.too_long=window"])
    assert (code, errors) == (0, "")
    assert f"devices {len(devices) or 1} × cpu on 1 node" in table
    assert "training batches an epoch, max_epochs 2" in table
    assert "MB to be written" in table
    assert f"of extraction on {len(devices) or 1} × cpu" in table
    sample = {
        f"stores/sample-2/sample-{split}.{end}" for split in ("train", "dev", "test") for end in ("conllu", "conll")
    }
    assert left(tmp_path) == {*sample, "stores/sample-2/sample.txt", "stores/digests/index.json", "stores/vectors.txt"}
    assert not runs.exists()


def test_all_faults_are_told_at_once(
    flown: Callable[[list[str]], Said], corpus: str, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm(1, NNODES="2").items():
        monkeypatch.setenv(name, value)
    there = tmp_path / "c-dev.conllu"
    shutil.copy(corpus.replace("{split}", "dev"), there)
    config = ROOT / "configs" / "clark2019" / "attention_glove.yaml"
    command = arguments(config, str(tmp_path / "c-{split}.conllu"), bert, str(tmp_path), tmp_path / "runs")
    options = ["vectors.name=absent.txt", "encoder.name=some/encoder", f"cache={there}"]
    code, _, errors = flown([*command, *DDP, *(f"--data.init_args.{option}" for option in options)])
    faults = errors.splitlines()
    assert code == 1
    for fault, expected in zip(
        faults,
        (
            "SLURM has 1 task, but the trainer needs 2",
            "c-train.conllu: there is no such file",
            "some/encoder: not found, neither as a local folder nor on the hub (offline, and not downloaded before)",
            "absent.txt: there is no such file of word vectors",
            "c-dev.conllu",
        ),
        strict=True,
    ):
        assert expected in fault
    assert left(tmp_path) == {"c-dev.conllu", "vectors.txt"}


def test_a_probe_that_was_not_trained_or_on_other_data_does_not_fit(
    flown: Callable[[list[str]], Said], corpus: str, bert: Path, cache: str, tmp_path: Path
) -> None:
    config = ROOT / "configs" / "clark2019" / "attention_only.yaml"
    _, *options = arguments(config, corpus, bert, cache, tmp_path / "runs")
    code, table, errors = flown(["test", *options])
    assert code == 1
    assert errors == (
        "AttentionOnlyProbe was not trained: train it with `fit`, or give a checkpoint with --ckpt_path.\n"
    )
    assert "fits the data" not in table
    assert train.run(["fit", *options, "--trainer.max_epochs=1"]) == 0
    (checkpoint,) = (tmp_path / "runs").rglob("*.ckpt")
    tested = ["test", *options, f"--ckpt_path={checkpoint}"]
    assert "AttentionOnlyProbe fits the data" in assert_good(flown(tested))
    code, table, errors = flown([*tested, "--data.init_args.options.layers=[1]"])
    assert code == 1
    assert "layers" in errors
    assert "fits the data" not in table


def test_what_gensim_would_fetch_is_told(
    flown: Callable[[list[str]], Said], corpus: str, bert: Path, tmp_path: Path
) -> None:
    config = ROOT / "configs" / "clark2019" / "attention_glove.yaml"
    command = arguments(config, corpus, bert, str(tmp_path), tmp_path / "runs")
    code, _, errors = flown([*command, "--data.init_args.vectors.name=glove-wiki-gigaword-50"])
    assert code == 1
    assert "Download it first: `python -m gensim.downloader --download glove-wiki-gigaword-50`" in errors


def test_an_encoder_that_was_fetched_before_is_found(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--some--encoder"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("a" * 40)
    shutil.copytree(bert, folder / "snapshots" / ("a" * 40))
    with offline():
        assert resolve(EncoderSpec("some/encoder")).folder == folder / "snapshots" / ("a" * 40)


def test_a_disk_that_is_too_full_is_told_with_what_is_missing(
    flown: Callable[[list[str]], Said], corpus: str, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm(1, NNODES="2").items():
        monkeypatch.setenv(name, value)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=1000))
    command = arguments(ROOT / "configs" / "demo.yaml", corpus, bert, str(tmp_path / "stores"), tmp_path / "runs")
    code, _, errors = flown([*command, *DDP])
    assert code == 1
    assert "SLURM has 1 task, but the trainer needs 2" in errors
    assert "kB, but only 1.0 kB are free. Free " in errors


def shards(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.safetensors"))


@pytest.mark.slow
def test_a_stream_needs_time_and_no_disk(
    flown: Callable[[list[str]], Said], bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    command = arguments(
        ROOT / "configs/decoders/heads.yaml", "sample", bert, str(tmp_path / "stores"), tmp_path / "runs"
    )
    code, table, errors = flown([*command, "--data.init_args.options.too_long=window"])
    assert (code, errors) == (0, "")
    assert "are not written. One pass over all splits takes about 0:00:" in table
    assert not any(name.endswith(".safetensors") for name in left(tmp_path))


@pytest.mark.parametrize("random_init", [False, True])
def test_the_bytes_that_are_missing_are_those_that_are_written(
    random_init: bool, make_data: Callable[..., DependencyDataModule], tmp_path: Path
) -> None:
    options = {"cache": str(tmp_path), "hidden": (0, 2), "random_init": random_init}

    def needs() -> int:
        data = make_data(**options)
        data.make = found = Needs()
        for stage in ("fit", "test"):
            data.setup(stage)
        return found.bytes

    before = needs()
    assert not shards(tmp_path)
    data = make_data(**options)
    for stage in ("fit", "test"):
        data.setup(stage)
    made = shards(tmp_path)
    assert len({path.parent for path in made}) == 3 + 2 * random_init
    assert before == pytest.approx(sum(path.stat().st_size for path in made), rel=0.05)
    assert needs() == 0
    lost = made[0].stat().st_size
    made[0].unlink()
    assert needs() == pytest.approx(lost, rel=0.05)


class Met(NamedTuple):
    said: str
    faults: list[str]


@pytest.fixture
def meet(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Met]]:
    """Runs the tasks of a job, each on a node of its own, n0, n1, …; each has a folder and faults of its own."""
    monkeypatch.setattr("platform.node", lambda: threading.current_thread().name)
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def met(folders: list[Path], faults: Mapping[int, list[str]], patience: float = 30.0) -> list[Met]:
        found = [Met("", list(faults.get(rank, []))) for rank in range(len(folders))]

        def task(rank: int) -> None:
            try:
                said = see_folder(folders[rank], Ranks(rank, len(folders), patience), found[rank].faults)
            except (UserError, OSError) as error:
                said = str(error)
            found[rank] = found[rank]._replace(said=said)

        threads = [threading.Thread(target=task, args=(rank,), name=f"n{rank}") for rank in range(len(folders))]
        for thread in reversed(threads):
            thread.start()
        for thread in threads:
            thread.join()
        return found

    return met


def test_the_first_task_tells_what_the_others_find(meet: Callable[..., list[Met]], tmp_path: Path) -> None:
    folder = tmp_path / "stores"
    first, *others = meet([folder] * 3, {0: ["no data"], 1: ["no data", "no vectors"], 2: ["no data"]})
    assert first == (f"{folder}, seen by 3 tasks on n0, n1, n2", ["no data", "node n1: no vectors"])
    assert others == [("", [])] * 2
    assert not list(folder.iterdir())


def test_a_task_that_sees_another_folder_is_named_with_its_node(
    meet: Callable[..., list[Met]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    own.mkdir()
    first, second, third = meet([shared, shared, own], {1: ["no vectors"]}, patience=1.0)
    assert first.faults == ["node n1: no vectors"]  # which the second task no longer reports
    assert f"{shared}: node n0 and task 2 do not see each other's files (within 1 s" in first.said
    assert second == ("", [])
    assert f"{own}: node n2 and task 0 do not see each other's files" in third.said
    assert not left(tmp_path)
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[0-3]")
    (scontrol := tmp_path / "scontrol").write_text('#!/bin/sh\n[ "$3" = "n[0-3]" ] && printf "n0\\nn1\\nn2\\nn3\\n"\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    first, *_ = meet([shared, own, shared, shared], {}, patience=1.0)
    assert f"{shared}: node n0 and task 1 on node n1 do not see each other's files (within 1 s" in first.said


def test_a_node_that_cannot_write_the_folder_says_so_itself(meet: Callable[..., list[Met]], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    first, second = meet([tmp_path, file / "stores"], {}, patience=1.0)
    assert "Not a directory" in second.said
    assert "node n0 and task 1 do not see" in first.said


def test_documents_texts_and_fidelity_are_gone_through(
    flown: Callable[[list[str]], Said], bert: Path, tmp_path: Path
) -> None:
    lengths = [[4, 6, 5], [7, 3], [5, 5, 5, 4], [6, 2], [4, 4], [8, 3]]
    for split in ("train", "dev", "test"):
        documents.write(tmp_path / f"{split}.conll", documents.corpus(lengths, seed=1))
    config = ROOT / "configs" / "clark2019" / "coreference_attention.yaml"
    command = arguments(config, str(tmp_path / "{split}.conll"), bert, str(tmp_path / "stores"), tmp_path / "runs")
    assert "kB to be written" in assert_good(flown(command))
    config = ROOT / "configs" / "devlin2019" / "finetune.yaml"
    assert "2 training batches an epoch" in assert_good(flown(classifier_arguments(config, tmp_path, bert)))
    checkpoints = fitted(tmp_path, "trained")
    before = left(tmp_path)
    command = [
        "test",
        f"--config={ROOT / 'configs' / 'fidelity' / 'quick.yaml'}",
        f"--trainer.default_root_dir={tmp_path}",
    ]
    table = assert_good(flown([*command, f"--model.init_args.checkpoints={checkpoints}"]))
    assert "Fidelity fits the data" in table
    (checkpoint,) = checkpoints.rglob("*.ckpt")
    shutil.copy(checkpoint, tmp_path / "twin.ckpt")
    code, _, errors = flown([*command, f"--model.init_args.checkpoints=[{checkpoint}, {tmp_path / 'twin.ckpt'}]"])
    assert code == 1
    assert "are the same checkpoint. Give only one" in errors
    assert left(tmp_path) == before | {"twin.ckpt"}


def assert_good(said: Said) -> str:
    code, table, errors = said
    assert (code, errors) == (0, "")
    return table
