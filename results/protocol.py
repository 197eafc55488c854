"""Protocol of a run or a sweep by its configs: models, corpora, the commands that repeat it, and what to cite."""

import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from results.errors import UserError
from results.files import checkpoints_in
from results.reader import Record, RecordError, rows_of
from results.settings import leaves, read_yaml

APPLICATION = "attention-probing"
ROOT = Path(__file__).resolve().parents[1]
CONFIGS, REGISTRY = ROOT / "configs", ROOT / "corpora" / "public.yaml"
CORPUS_OPTIONS = ("corpus", "treebank", "documents")


def _runs(record: Record, faults: list[str]) -> list[Path]:
    """Return the folders of the runs of a sweep, or the folder of a run; none, with a message, if it has no table."""
    if not record.is_sweep:
        return [record.path.parent]
    try:
        return [run for seeds in rows_of(record.path.parent).values() for runs in seeds.values() for run in runs]
    except RecordError as error:
        faults.append(str(error))
        return []


def texts_of_configs(record: Record, faults: list[str]) -> list[tuple[str, str]]:
    """Return the settings whose values are texts, of a run or of all runs of a sweep, by dotted name.

    Args:
        record: The results.
        faults: Takes a message for each config that cannot be read.
    """
    found: list[tuple[str, object]] = []
    for folder in _runs(record, faults) if record.content["config"] or record.is_sweep else ():
        try:
            found += leaves(read_yaml(folder / "config.yaml"))
        except (UserError, OSError) as error:
            faults.append(str(error))
    return [(name, value) for name, value in found if isinstance(value, str)]


def classes(settings: Sequence[tuple[str, str]]) -> list[str]:
    """Return the names of the classes in configs, models first."""
    others = (_last(value) for name, value in settings if _last(name) == "class_path")
    return list(dict.fromkeys([*_models(settings), *others]))


def _models(settings: Sequence[tuple[str, str]]) -> list[str]:
    return list(dict.fromkeys(_last(value) for name, value in settings if name in ("model", "model.class_path")))


def corpora(settings: Sequence[tuple[str, str]]) -> list[str]:
    """Return the corpora in configs, as registered names or as files."""
    options = [value for name, value in settings if name.startswith("data.") and _last(name) in CORPUS_OPTIONS]
    named = [value for name, value in settings if name.startswith(("data.", "model.")) and value in registered()]
    return list(dict.fromkeys(options + named))


def phrase(record: Record, settings: Sequence[tuple[str, str]]) -> str:
    """Return a phrase that names the models, the encoder and the corpora of a run or sweep."""
    encoder = record.content["encoder"]
    on = [str(encoder.get("name") or "")]
    shape = [encoder.get(name) for name in ("layers", "heads")]
    if all(isinstance(size, int) for size in shape):
        on[0] += f" ({shape[0]} layers × {shape[1]} heads)"
    on += corpora(settings) or dict.fromkeys(str(said["file"]) for _, said in record.splits)
    what = ", ".join(_models(settings)) + (f" in {len(_runs(record, []))} runs" if record.is_sweep else "")
    return " on ".join(filter(None, (what, ", ".join(filter(None, on)))))


def commands(record: Record) -> list[str]:
    """Return the shell commands that repeat a run or a sweep; none if a run has no config."""
    folder, here = record.path.parent.resolve(), Path.cwd().resolve()
    shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
    own, config = folder / "config.yaml", shlex.quote(str(shown / "config.yaml"))
    if record.is_sweep:
        plans = (
            path for path in sorted(CONFIGS.rglob("*.yaml")) if own.is_file() and path.read_bytes() == own.read_bytes()
        )
        plan = next((path.relative_to(ROOT).as_posix() for path in plans), "PLAN.yaml")
        return [f"python train.py sweep {plan} --out {shlex.quote(str(shown))}"]
    if not record.content["config"]:
        return []
    if not (checkpoints := checkpoints_in(folder)):
        verb = "test" if "ckpt_path:" in own.read_text(encoding="utf-8") else "measure"
        return [f"python train.py {verb} --config {config}"]
    checkpoint = shlex.quote(str(shown / "checkpoints" / checkpoints[0].name))
    return [
        f"python train.py fit --config {config}",
        f"python train.py test --config {config} --ckpt_path {checkpoint}",
    ]


def _last(name: str) -> str:
    """Return the last part of a dotted name."""
    return name.rpartition(".")[2]


def _read(path: Path) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C library may not be there
    found: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), loader)
    return found


@cache
def citations() -> dict[str, Any]:
    """Return the content of `citations.yaml`.

    It has three parts: `entries`, BibTeX entries by key; `classes`, the keys to cite for each class; and
    `own`, classes without entries, because they only combine other classes or are new in this application.
    """
    return _read(Path(__file__).with_name("citations.yaml"))


@cache
def registered() -> dict[str, Any]:
    """Return the registry of corpora as data, since the room of its classes lies above this one."""
    return _read(REGISTRY)


def cited(classes: Iterable[str], corpora: Iterable[str]) -> str:
    """Return the BibTeX entries to cite for some classes and corpora, each once.

    Names without an entry are skipped. The last entry is this application.

    Args:
        classes: Names of classes, without their modules.
        corpora: Registered names of corpora.
    """
    known = citations()
    keys = dict.fromkeys(key for name in classes for key in known["classes"].get(name, ()))
    entries = [known["entries"][key].strip() for key in (*keys, APPLICATION)]
    entries[-1:-1] = [_corpus(name) for name in dict.fromkeys(corpora) if name in registered()]
    return "\n\n".join(entries) + "\n"


def _corpus(name: str) -> str:
    """Return the entry of a corpus, whose paper the registry names in one line."""
    corpus = registered()[name]
    title, note = name.replace("_", r"\_"), " ".join(corpus["citation"].split()).replace("&", r"\&")
    lines = [f"  title = {{{title}}},", f"  note = {{{note}}},", f"  url = {{{corpus['homepage']}}}"]
    return "\n".join([f"@misc{{{name},", *lines, "}"])
