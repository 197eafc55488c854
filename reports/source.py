"""What lies in the folder of a run or a sweep, read for its page; what is missing or damaged is kept as a fault."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from corpora.registry import CORPORA
from reports.reader import Record, RecordError, find_record
from reports.runs import rows_of
from results.errors import UserError
from training.config import leaves, read_yaml

PLANS = Path(__file__).resolve().parent.parent / "configs"
CORPUS_OPTIONS = ("corpus", "treebank", "documents")


@dataclass(frozen=True)
class Source:
    """The files of a run or a sweep.

    Attributes:
        content: What its `results.json` holds.
        faults: Files that cannot be read, and why; grows while they are read.
    """

    folder: Path
    record: Record
    content: Mapping[str, Any]
    faults: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, run: Path) -> "Source":
        """Read `results.json`; a RecordError where there is none, or it is not what a run writes."""
        record = find_record(run)
        content = json.loads(record.path.read_text(encoding="utf-8"))
        for name in ("tables", "figures", "captions", "audit", "encoder", "data", "versions", "columns", "figure_data"):
            if not isinstance(content.get(name), Mapping):
                raise RecordError(f"{record.path} is there, but its `{name}` is not what a run writes there")
        return cls(record.path.parent, record, content)

    @property
    def experiment(self) -> str:
        """Its name."""
        return str(self.content["experiment"])

    def files(self, kind: str) -> list[tuple[str, str]]:
        """Names and files of the tables or the figures."""
        return [(str(name), str(file)) for name, file in self.content[kind].items()]

    def bytes(self, file: str) -> bytes:
        """The content of a file of the folder; nothing where it cannot be read."""
        try:
            return (self.folder / file).read_bytes()
        except OSError as error:
            self.faults.append(f"{file}: {error.strerror or error}")
            return b""

    def text(self, file: str) -> str:
        """The text of a file of the folder; empty where it cannot be read."""
        try:
            return self.bytes(file).decode()
        except UnicodeDecodeError as error:
            self.faults.append(f"{file}: {error}")
            return ""

    def csv(self, file: str) -> pd.DataFrame | None:
        """The cells of a CSV file as they are written there; None where it cannot be read."""
        try:
            return pd.read_csv(self.folder / file, dtype=str, keep_default_na=False)
        except (OSError, ValueError) as error:
            self.faults.append(f"{file}: {' '.join(str(error).split())}")
            return None

    @cached_property
    def runs(self) -> list[Path]:
        """Folders of the runs of a sweep; none of a run."""
        if not self.is_sweep:
            return []
        try:
            return [run for seeds in rows_of(self.folder).values() for runs in seeds.values() for run in runs]
        except RecordError as error:
            self.faults.append(str(error))
            return []

    @property
    def is_sweep(self) -> bool:
        """Whether this is the folder of a sweep."""
        return self.record.is_sweep

    @property
    def problems(self) -> list[str]:
        """Faults and warnings of a sweep."""
        found = [self.content["audit"].get(kind) for kind in ("faults", "warnings")] if self.is_sweep else []
        return [str(line) for lines in found if isinstance(lines, list) for line in lines]

    @cached_property
    def config_text(self) -> str:
        """What `config.yaml` holds; empty where the run has none."""
        return self.text("config.yaml") if self.content.get("config") else ""

    @cached_property
    def configs(self) -> list[Mapping[str, Any]]:
        """The config of the run, or those of all runs of a sweep."""
        folders = self.runs if self.is_sweep else [self.folder] if self.content.get("config") else []
        found = []
        for folder in folders:
            try:
                config = read_yaml(folder / "config.yaml")
            except (UserError, OSError) as error:
                self.faults.append(str(error))
                continue
            if isinstance(config, Mapping):
                found.append(config)
        return found

    @cached_property
    def classes(self) -> list[str]:
        """Short names of all classes that the configs name, those of the models first."""
        named = [str(value) for config in self.configs for name, value in leaves(config) if _ends(name, "class_path")]
        models = [name for config in self.configs if (name := _model(config))]
        return list(dict.fromkeys(name.rpartition(".")[2] for name in (*models, *named)))

    @cached_property
    def corpora(self) -> list[str]:
        """Corpora that the configs name: by their names, or by their files."""
        found = dict[str, None]()
        for config in self.configs:
            for name, value in leaves({key: config.get(key) for key in ("data", "model")}):
                option = name.startswith("data.") and _ends(name, *CORPUS_OPTIONS)
                if isinstance(value, str) and (option or value in CORPORA):
                    found[value] = None
        return list(found)

    @property
    def run_on(self) -> str:
        """What was run on what: model class, encoder, corpora."""
        models = list(dict.fromkeys(name.rpartition(".")[2] for config in self.configs if (name := _model(config))))
        on = [str(self.content["encoder"].get("name") or "")]
        shape = [self.content["encoder"].get(name) for name in ("layers", "heads")]
        if all(isinstance(size, int) for size in shape):
            on[0] += f" ({shape[0]} layers × {shape[1]} heads)"
        on += self.corpora or list(dict.fromkeys(str(said.get("file")) for _, said in self._parts))
        given = ", ".join(filter(None, on))
        what = ", ".join(models) + (f" in {len(self.runs)} runs" if self.is_sweep else "")
        return " on ".join(filter(None, (what, given)))

    @property
    def _parts(self) -> list[tuple[str, Mapping[str, Any]]]:
        return list(_parts(self.content["data"]))

    def commands(self) -> list[str]:
        """The commands that repeat it."""
        folder = self.folder
        place = folder.resolve()
        here = Path.cwd().resolve()
        shown = place.relative_to(here) if place.is_relative_to(here) else place
        config = shlex.quote(str(shown / "config.yaml"))
        if self.is_sweep:
            plan = next((path for path in sorted(PLANS.rglob("*.yaml")) if self._is_plan(path)), None)
            named = "PLAN.yaml" if plan is None else plan.relative_to(PLANS.parent).as_posix()
            return [f"python -m sweeps.run {named} --out {shlex.quote(str(shown))}"]
        if not self.content.get("config"):
            return []
        checkpoints = sorted((folder / "checkpoints").glob("*.ckpt"), key=lambda path: (path.stem == "last", path.name))
        if not checkpoints:
            return [f"python train.py test --config {config}"]
        checkpoint = shlex.quote(str(shown / "checkpoints" / checkpoints[0].name))
        return [
            f"python train.py fit --config {config}",
            f"python train.py test --config {config} --ckpt_path {checkpoint}",
        ]

    def _is_plan(self, path: Path) -> bool:
        return bool(self.config_text) and path.read_text(encoding="utf-8") == self.config_text

    def files_of_data(self) -> pd.DataFrame:
        """One row per file of the data, with what is known of it, in words."""
        rows = [{"data": name, **{key: str(value) for key, value in said.items()}} for name, said in self._parts]
        return pd.DataFrame(rows).fillna("") if rows else pd.DataFrame()


def _model(config: Mapping[str, Any]) -> str:
    model = config.get("model")
    return str(model.get("class_path", "")) if isinstance(model, Mapping) else str(model or "")


def _ends(name: str, *options: str) -> bool:
    """Whether a dotted name is of one of the options, or of an entry of a list or mapping that it holds."""
    return name.rpartition(".")[2] in options


def _parts(data: Mapping[str, Any], above: Sequence[str] = ()) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Descriptions of single files, by the dotted names under which they stand."""
    plain = {key: value for key, value in data.items() if not isinstance(value, Mapping)}
    if plain:
        yield ".".join(above) or "all", plain
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _parts(value, (*above, str(key)))
