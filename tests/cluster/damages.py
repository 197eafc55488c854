"""Random damages to kept files: `python -m tests.cluster.damages [--count 73] [--seed 0]`.

Each trial takes what a run that was stopped or has ended left on the disk, damages one file of it, gives the same
command again, and compares scores and tables with those of the undamaged files. One row a trial; exit code 1 if any
number differs without a word, or anything ends in a traceback.
"""

import argparse
import io
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attention_probing import commands
from attention_probing.commands import CONFIGS
from attention_probing.measures import HeadAblation, trainings
from attention_probing.probes import AttentionWordsProbe
from attention_probing.results import writer
from tests.measures.classifiers import data_arguments, fitted
from tests.test_train import arguments, classifier_arguments
from tests.tiny import save_bert, write_splits

ADVERSARIES = "[{class_path: ConsistentAdversary, init_args: {strengths: [0.0, 0.01], max_epochs: 2}}]"


class Killed(BaseException):
    """Leaves everything as SIGKILL does."""


@dataclass(frozen=True)
class Scene:
    """What lies on the disk before a command is given again.

    Attributes:
        folder: all of it.
        command: without `--trainer.default_root_dir`.
        kinds: patterns of the kept files, below the folder, by what they are.
        undamaged: the outcome of the command without any damage.
    """

    folder: Path
    command: Sequence[str]
    kinds: Mapping[str, str]
    undamaged: Mapping[str, object]

    @property
    def saved(self) -> Path:
        """A copy of the folder."""
        return self.folder.with_name(f"{self.folder.name}-saved")

    def restore(self) -> None:
        """Have everything lie there as it was."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.saved, self.folder, symlinks=True)


def flip(path: Path, other: Path, draw: random.Random) -> None:
    """Change one bit."""
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, other: Path, draw: random.Random) -> None:
    """Cut it off."""
    os.truncate(path, draw.randrange(1, path.stat().st_size))


def zero(path: Path, other: Path, draw: random.Random) -> None:
    """Fill a block with zeros, as a disk does that was interrupted."""
    content = bytearray(path.read_bytes())
    start = draw.randrange(len(content))
    length = min(draw.choice((64, 512, 4096)), len(content) - start)
    content[start : start + length] = bytes(length)
    path.write_bytes(content)


def empty(path: Path, other: Path, draw: random.Random) -> None:
    """Leave nothing in it."""
    path.write_bytes(b"")


def delete(path: Path, other: Path, draw: random.Random) -> None:
    """Remove it."""
    path.unlink()


def swap(path: Path, other: Path, draw: random.Random) -> None:
    """Put another valid file in its place."""
    path.write_bytes(other.read_bytes())


DAMAGES = (flip, truncate, zero, empty, delete, swap)


def give(command: Sequence[str], folder: Path) -> tuple[int | str, str]:
    """Give a command in this process; return its exit code, or `traceback`, and all that it has said."""
    said = io.StringIO()
    told = logging.StreamHandler(said)
    logging.getLogger().addHandler(told)
    code: int | str
    try:
        with redirect_stdout(said), redirect_stderr(said):
            code = commands.main([*command, f"--trainer.default_root_dir={folder / 'runs'}"])
    except Killed:
        code = "killed"
    except BaseException:
        code = "traceback"
        said.write(traceback.format_exc())
    finally:
        logging.getLogger().removeHandler(told)
    return code, said.getvalue()


def outcome(folder: Path) -> dict[str, object]:
    """Scores, units and tables of the latest run."""
    record = max((folder / "runs").rglob("results.json"), key=lambda path: path.stat().st_mtime_ns)
    content = json.loads(record.read_text(encoding="utf-8"))
    tables = {name: (record.parent / file).read_bytes() for name, file in content["tables"].items()}
    return {**{name: content[name] for name in ("scores", "units")}, **tables}


@contextmanager
def killed_before_the_test() -> Iterator[None]:
    """Have a run end before its test, as SIGKILL ends it."""
    with patch.object(AttentionWordsProbe, "on_test_start", side_effect=Killed):
        yield


@contextmanager
def killed_in_the_second_epoch() -> Iterator[None]:
    """Have a training end once it has a best checkpoint."""
    step = AttentionWordsProbe.training_step

    def kill(module: AttentionWordsProbe, *given: Any) -> Any:  # noqa: ANN401
        if module.current_epoch == 1:
            raise Killed
        return step(module, *given)

    with patch.object(AttentionWordsProbe, "training_step", kill):
        yield


@contextmanager
def killed_after_the_first_copy() -> Iterator[None]:
    """Have nested trainings end when the first is kept."""
    save = trainings.save_tensors

    def kill(file: Path, tensors: Mapping[str, Any]) -> None:
        save(file, tensors)
        raise Killed

    with patch.object(trainings, "save_tensors", kill):
        yield


@contextmanager
def killed_before_the_sum() -> Iterator[None]:
    """Have an ablation end when it has scored all batches."""
    with patch.object(HeadAblation, "result", side_effect=Killed):
        yield


def scene(
    folder: Path,
    command: Sequence[str],
    kinds: Mapping[str, str],
    until: Callable[[], AbstractContextManager[None]] | None = None,
) -> Scene:
    """Run a command until something happens, or to its end, and keep what it leaves."""
    with ExitStack() as stack:
        if until is not None:
            stack.enter_context(until())
        code, said = give(command, folder)
    if (code == 0) != (until is None):
        raise RuntimeError(said[-3000:])
    for left in () if until else (folder / "runs").glob("*/version_*"):
        shutil.rmtree(left)  # what it keeps lies elsewhere
    made = Scene(folder, command, kinds, {})
    shutil.copytree(folder, made.saved, symlinks=True)
    code, said = give(command, folder)
    if code != 0:
        raise RuntimeError(said[-3000:])
    return Scene(folder, command, kinds, outcome(folder))


def scenes(work: Path) -> Iterator[Scene]:
    """All that is kept, in the smallest runs that keep it."""
    bert, corpus = save_bert(work / "bert"), write_splits(work)

    def command_of(folder: Path, config: str, *more: str) -> list[str]:
        usual = arguments(CONFIGS / config, corpus, bert, str(folder / "stores"), folder / "runs")
        return [word for word in usual if "default_root_dir" not in word] + [*more]

    of_store = {
        "manifest": "stores/*/manifest.json",
        "shard": "stores/*/*.safetensors",
        "labels": "stores/*/labels-*.parquet",
        "digests": "stores/digests/index.json",
        "word vectors": "stores/vectors/*.pt",
    }
    words = work / "words"
    command = command_of(words, "clark2019/attention_glove.yaml")
    state = {
        "state of a training": "runs/*/*/state-*/last.ckpt",
        "its best checkpoint": "runs/*/*/checkpoints/*.ckpt",
    }
    yield scene(words, command, {**state, **of_store}, killed_in_the_second_epoch)
    ended = work / "ended"
    command = command_of(ended, "clark2019/attention_glove.yaml")
    kinds = {"best checkpoint": "runs/*/*/checkpoints/*.ckpt"}
    yield scene(ended, command, kinds, killed_before_the_test)
    copies = work / "copies"
    command = command_of(copies, "hewitt2019/control.yaml", "--model.max_epochs=1")
    yield scene(copies, command, {"nested training": "stores/trained/*/*/copy-*.ckpt"}, killed_after_the_first_copy)
    sample = work / "sample"
    own = ("--data.corpus=sample", "--data.options.too_long=skip")
    command = command_of(sample, "clark2019/heads.yaml", *own)
    yield scene(sample, command, {"sample corpus": "stores/sample-*/*.conllu"})
    rows = work / "rows"
    (work / "fitted").mkdir()
    checkpoint = fitted(work / "fitted", bert)
    (rows / "named").mkdir(parents=True)
    named = shutil.copy(checkpoint, rows / "named" / "classifier.ckpt")
    texts = str(checkpoint.parents[4] / "{split}.tsv")
    given = [f"--model.checkpoint={named}", *data_arguments(texts, bert, rows / "stores")]
    command = [
        "measure",
        f"--config={CONFIGS}/kovaleva2019/ablation.yaml",
        *given,
        "--trainer.enable_progress_bar=false",
    ]
    kinds = {"named checkpoint": "named/*.ckpt"}
    yield scene(rows, [*command, "--trainer.accelerator=cpu"], kinds, killed_before_the_sum)
    adversaries = work / "adversaries"
    adversaries.mkdir()
    train_it = classifier_arguments(CONFIGS / "demo_classifier.yaml", adversaries, bert)
    code, said = give([word for word in train_it if "default_root_dir" not in word], work / "classifier")
    if code != 0:
        raise RuntimeError(said[-3000:])
    command = ["measure", f"--config={CONFIGS}/wiegreffe2019/fidelity.yaml", f"--model.tests={ADVERSARIES}"]
    command += [f"--model.checkpoints={work}/classifier/runs", "--trainer.accelerator=cpu"]
    command += ["--trainer.enable_progress_bar=false", f"--data.cache={adversaries}/cache"]
    yield scene(adversaries, command, {"adversary": "cache/adversaries/*.ckpt"})


def trial(one: Scene, kind: str, damage: Callable[[Path, Path, random.Random], None], draw: random.Random) -> str:
    """Damage a file, give the command again, and say what came of it."""
    one.restore()
    path = draw.choice(sorted(one.folder.glob(one.kinds[kind])))
    others = sorted(other for pattern in one.kinds.values() for other in one.folder.glob(pattern) if other != path)
    alike = [other for other in others if other.suffix == path.suffix]
    other = draw.choice(alike or others or [one.folder / one.command[1].partition("=")[2]])
    if damage is swap and path.read_bytes() == other.read_bytes():
        damage = flip
    damage(path, other, draw)
    code, said = give(one.command, one.folder)
    names = (path.name, f"{path.parent.name}: ")  # a store is named by its folder where all of it is another's
    named = any(
        any(name in line for name in names) and ("again" in line or "rebuilt" in line) for line in said.splitlines()
    )
    if code == "traceback" or "Traceback" in said:
        return f"TRACEBACK: {said.strip().splitlines()[-1]}"
    if code != 0:
        errors = [line for line in said.splitlines() if line.startswith("Error: ")]
        return "refused in one line" if len(errors) == 1 and path.name in errors[0] else f"FAILS: {errors}"
    if outcome(one.folder) != one.undamaged:
        return "DIFFERENT, named" if named else "DIFFERENT IN SILENCE"
    if any((one.folder / "runs").rglob("state-*")):
        return "LEAVES ITS STATE"
    made = "made again" if damage is delete else "unread"
    return "named and made again" if named else made


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.damages", description=__doc__)
    parser.add_argument("--count", type=int, default=73)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(given)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    draw, rows = random.Random(options.seed), list[dict[str, str]]()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="damages-")))
        stack.enter_context(patch.object(sys, "argv", sys.argv[:1]))  # Lightning warns of the arguments of others
        stack.enter_context(patch.object(writer, "write_figures", return_value={}))  # they take most of the time
        stack.enter_context(patch.object(writer, "write_page"))
        kinds = [(one, kind) for one in scenes(work) for kind in one.kinds]
        for number in range(options.count):
            one, kind = kinds[number % len(kinds)]
            possible = [damage for damage in DAMAGES if kind != "named checkpoint" or damage is not swap]
            damage = draw.choice(possible)  # another checkpoint that the user names is another checkpoint
            what = trial(one, kind, damage, draw)
            rows.append({"kind": kind, "damage": damage.__name__, "outcome": what})
            print(f"{number + 1:3} {kind:24} {damage.__name__:9} {what}", flush=True)
    for (kind, what), count in sorted(Counter((row["kind"], row["outcome"]) for row in rows).items()):
        print(f"{kind:24} {what:24} {count}")
    faults = sum(row["outcome"] != row["outcome"].lower() for row in rows)
    print(f"{len(rows)} damages, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
