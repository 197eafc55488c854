"""Files as somebody might send them: none takes more than a gigabyte, or more than ten seconds of an idle core.

Each is given to the command that reads it, in a process of its own, which must end by itself with one line that names
the file. The tests give the largest file of each reader and do not look at the time, which depends on what else runs.
As a script it prints a table of all files, with their times:

    python -m tests.test_received
"""

import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from attention_probing.commands.sweep_run import PROGRAM
from tests.endless import Endless, make_endless
from tests.tiny import save_bert

SECONDS, GIGABYTES = 10.0, 1.0
ENOUGH = 120  # seconds after which a process is killed: a machine may have much else to do


@dataclass(frozen=True)
class Received:
    """A received file, and the command that reads it.

    Attributes:
        make: Function that makes the file in a folder, and returns its path.
        words: Command line, in which {path} and {folder} stand for the file and its folder.
        says: Text that the message contains.
    """

    make: Callable[[Path], Path]
    words: Sequence[str]
    says: str


def text(name: str, content: Callable[[], str]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_text(content(), encoding="utf-8")
        return path

    return make


def endless(name: str, kind: Endless) -> Callable[[Path], Path]:
    return lambda folder: make_endless(folder / name, kind)


def of_encoder(name: str, kind: Endless) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        encoder = folder / "bert"
        save_bert(encoder)
        make_endless(encoder / name, kind)
        return encoder

    return make


def compressed(name: str, content: Callable[[], bytes]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content())
        return path

    return make


def long_checkpoint(folder: Path) -> Path:
    """A checkpoint of 3 MB whose only part has 3 GB of zeros."""
    path = folder / "long.ckpt"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("archive/data.pkl", "w", force_zip64=True) as part,
    ):
        for _ in range(96):
            part.write(bytes(1 << 25))
    return path


def conllu(word: str, position: str = "1", head: str = "0") -> str:
    return f"{position}\t{word}\t_\tNOUN\t_\t_\t{head}\troot\t_\t_\n\n"


CONFIG = ("measure", "--config={path}")
PLAN = ("sweep", "{path}")
OUT = ("--trainer.accelerator=cpu", "--trainer.default_root_dir={folder}/runs", "--data.cache={folder}/cache")
TREES = ("measure", "--config=clark2019/heads", "--corpus={{train: {path}, dev: {path}, test: {path}}}", *OUT)
ENCODER = ("measure", "--config=clark2019/heads", "--corpus=sample", "--encoder={path}", *OUT)
TEXTS = ("measure", "--config=clark2019/surface", "--corpus={path}", *OUT)
CHECKPOINT = ("measure", "--config=fidelity/quick", "--checkpoints={path}", "--trainer.accelerator=cpu")
VECTORS = ("fit", "--config=demo_classifier", "--data.vectors.name={path}", *OUT)

FILES = {
    "config: list of 2 million": Received(
        text("a.yaml", lambda: f"model: [{'7,' * 2_000_000}]"), CONFIG, "20,000 values"
    ),
    "config: rows of 1.3 million": Received(text("a.yaml", lambda: "- 12\n" * 1_300_000), CONFIG, "at most"),
    "config: 900,000 short values": Received(text("a.yaml", lambda: f"model: [{'7,' * 900_000}]"), CONFIG, "20,000"),
    "config: 35,000 brackets": Received(text("a.yaml", lambda: "a: " + "[" * 35_000 + "]" * 35_000), CONFIG, "deep"),
    "config: 1,500 levels": Received(
        text("a.yaml", lambda: "".join(f"{' ' * level}a:\n" for level in range(1_500))), CONFIG, "deep"
    ),
    "config: 150,000 parts": Received(text("a.yaml", lambda: "model: " + "59:" * 150_000 + "1"), CONFIG, "digits"),
    "config: 19,900 values": Received(
        text("a.yaml", lambda: f"model: {{class_path: SingleHeads, init_args: {{mode: [{'7,' * 19_900}]}}}}"),
        CONFIG,
        "mode",
    ),
    "config: device": Received(endless("a.yaml", "device"), CONFIG, "device"),
    "plan: 13,000 rows": Received(
        text("a.yaml", lambda: "scores: [a]\nrows:\n" + "".join(f"  r{one}: {{}}\n" for one in range(13_000))),
        PLAN,
        "20,000",
    ),
    "plan: 6,000 rows": Received(
        text("a.yaml", lambda: "scores: [a]\nrows:\n" + "".join(f"  r{one}: {{}}\n" for one in range(6_000))),
        PLAN,
        "5,000 rows",
    ),
    "plan: pipe": Received(endless("a.yaml", "pipe"), PLAN, "pipe"),
    "CoNLL-U: word of 45 MB": Received(text("a.conllu", lambda: conllu("ab" * 22_500_000)), TREES, "bytes or more"),
    "CoNLL-U: word of 160 kB": Received(text("a.conllu", lambda: conllu("ab" * 80_000)), TREES, "characters or more"),
    "CoNLL-U: id of 9,000 digits": Received(text("a.conllu", lambda: conllu("a", "1" * 9_000)), TREES, "digits"),
    "CoNLL-U: head of 90,000 digits": Received(
        text("a.conllu", lambda: conllu("a", head="2" * 90_000)), TREES, "digits"
    ),
    "CoNLL-U: device": Received(endless("a.conllu", "device"), TREES, "device"),
    "text: line of 25 MB": Received(text("a.txt", lambda: "word " * 5_000_000), TEXTS, "bytes or more"),
    "text: word of 1.5 MB": Received(text("a.txt", lambda: "ab" * 750_000), TEXTS, "a word has"),
    "TSV: word of 2 MB": Received(
        text("a.tsv", lambda: f"text\tlabel\n{'ab' * 1_000_000}\t1\n"), TEXTS, "a word has 2,000,000"
    ),
    "encoder: pipe as tokenizer.json": Received(of_encoder("tokenizer.json", "pipe"), ENCODER, "pipe"),
    "encoder: device as tokenizer.json": Received(of_encoder("tokenizer.json", "device"), ENCODER, "device"),
    "encoder: pipe as weights": Received(of_encoder("model.safetensors", "pipe"), ENCODER, "pipe"),
    "encoder: device as weights": Received(of_encoder("model.safetensors", "device"), ENCODER, "device"),
    "encoder: pipe as config.json": Received(of_encoder("config.json", "pipe"), ENCODER, "pipe"),
    "checkpoint: pipe": Received(endless("a.ckpt", "pipe"), CHECKPOINT, "pipe"),
    "checkpoint: 3 GB of zeros in 3 MB": Received(long_checkpoint, CHECKPOINT, "not a checkpoint"),
    # Word vectors.
    "vectors: header of 2·10⁹ × 10⁵": Received(
        text("v.txt", lambda: "2000000000 100000\nthe 1 2 3\n"), VECTORS, "16,384"
    ),
    "vectors: line of 2 million numbers": Received(
        text("v.txt", lambda: "the" + " 0.5" * 2_000_000 + "\n"), VECTORS, "bytes"
    ),
    "vectors: 4 million equal words in gzip": Received(
        compressed("v.txt.gz", lambda: gzip.compress(b"the 0.5 0.25\n" * 4_000_000, 1)), VECTORS, "20 times"
    ),
    "vectors: one letter of gzip": Received(compressed("v.txt.gz", lambda: b"\x1f"), VECTORS, "damaged"),
    "vectors: pipe": Received(endless("v.txt", "pipe"), VECTORS, "pipe"),
}

TESTED = (
    "config: list of 2 million",
    "config: 150,000 parts",
    "plan: 6,000 rows",
    "CoNLL-U: word of 45 MB",
    "text: line of 25 MB",
    "encoder: device as weights",
    "checkpoint: 3 GB of zeros in 3 MB",
    "vectors: 4 million equal words in gzip",
)


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code, seconds of the processor, peak memory in GB, and standard error."""

    code: int
    seconds: float
    gigabytes: float
    error: str


LAUNCHER = """
import json, os, resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))  # so that a machine survives
code = subprocess.call(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "w") as file:
    json.dump([code, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9], file)
"""
"""Program that starts the command: the peak of a process is at least the memory of the one that started it."""


def run(received: Received, folder: Path) -> Ended:
    """Make the file in a folder and give it to its command."""
    path = received.make(folder)
    words = [word.format(path=path, folder=folder) for word in received.words]
    used, error = folder / "used.json", folder / "stderr"
    with error.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(used), *PROGRAM, *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    try:
        process.wait(ENOUGH)  # a pipe takes no time of the processor
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return Ended(-1, ENOUGH, 0, "")
    code, seconds, gigabytes = json.loads(used.read_text(encoding="utf-8"))
    return Ended(code, seconds, gigabytes, error.read_text(encoding="utf-8", errors="replace"))


def fault(received: Received, ended: Ended) -> str:
    """Return what is wrong with how a command ended; empty if nothing is."""
    lines = [line for line in ended.error.splitlines() if "rror: " in line]
    if ended.code not in (1, 2):
        return f"exit code {ended.code}"
    if "Traceback" in ended.error or len(lines) != 1 or received.says not in lines[0] or len(lines[0]) > 2_000:
        return f"not the message: {ended.error[-300:]}"
    return "" if ended.gigabytes <= GIGABYTES else f"{ended.gigabytes:.2f} GB"


@pytest.mark.slow
@pytest.mark.parametrize("name", TESTED)
def test_a_received_file_ends_its_command_in_a_line(name: str, tmp_path: Path) -> None:
    ended = run(FILES[name], tmp_path)
    assert not fault(FILES[name], ended)


def main() -> None:
    """Print how the command of each file ended."""
    wrong = 0
    for name, received in FILES.items():
        with tempfile.TemporaryDirectory() as folder:
            ended = run(received, Path(folder))
        found = fault(received, ended)
        if not found and ended.seconds > SECONDS:
            found = f"more than {SECONDS:.0f} s"
        wrong += bool(found)
        print(f"{name:45} {ended.seconds:6.1f} s {ended.gigabytes:6.2f} GB  {found or 'refused in a line'}", flush=True)
    print(f"{len(FILES)} files, {wrong} not refused as they should be")


if __name__ == "__main__":
    main()
