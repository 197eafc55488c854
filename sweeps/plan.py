"""The plan of a sweep, its runs and its table, read from YAML.

    name: table3                 # name of the sweep and of its table
    label: probe                 # name of the first column
    scores: [uas]                # scores in the table
    seeds: [0, 1, 2]
    rows:
      attention: {config: attention_only.yaml}
      right branching: {config: baselines.yaml, command: test, seeds: [0], scores: {uas: right_branching.uas}}
      two runs in a row: {runs: [{config: control.yaml}, {config: mdl.yaml}]}

A row has a `config`, a `command` of train.py (`fit`, the default, or `test`), options to `set` and its own `seeds`. Its
`scores` map columns to the names of scores in the results of its runs (null: the row has no such score). In a row with
several `runs` the first run that has a score gives it; settings of the row hold for all of its runs.

Instead of `rows`, a `grid` has one row for each combination of its axes, which become the first columns:

    grid:
      config: base.yaml
      axes:
        encoder: {lstm: {}, gru: {set: {model.init_args.encoder.cell: gru}}}
        regularizer: {base: {}, tying: {config: tying.yaml}}

`columns` chooses and orders the columns; plain `low`, `high` and `sd` belong to the first score. Paths of configs are
relative to the folder of the file; options to `set` are passed to train.py as they are.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from results.errors import UserError, near

STATISTICS = ("low", "high", "sd")
COUNTS = ("seeds", "epochs")

_NEUTRAL = {"data.init_args.cache", "trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.logger"}
"""Options that change places or what is printed, but no number."""


class SweepError(UserError):
    """A sweep that cannot be run, or whose results cannot be read."""


@dataclass(frozen=True)
class Run:
    """One call of train.py.

    Attributes:
        command: `fit`, `test`, …
        config: Path of its config.
        digest: SHA-256 of the config's bytes when the sweep was read.
        options: Names and values of the options on the command line, sorted, so that parents precede their parts.
        seed: Its seed.
    """

    command: str
    config: Path
    digest: str
    options: tuple[tuple[str, str], ...]
    seed: int

    @property
    def arguments(self) -> list[str]:
        """The arguments of train.py without the output folder."""
        options = [f"--{name}={value}" for name, value in self.options]
        return [self.command, f"--config={self.config}", f"--seed_everything={self.seed}", *options]

    @property
    def identity(self) -> dict[str, object]:
        """All that determines the numbers of the run; names of configs and rows do not."""
        options = [pair for pair in self.options if pair[0] not in _NEUTRAL]
        return {"command": self.command, "config_sha256": self.digest, "options": options, "seed": self.seed}

    @property
    def key(self) -> str:
        """Name of the run's folder; runs with the same identity share it."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        labels: Its first cells.
        runs: Its runs, by seed.
        scores: Names of the scores in the results of its runs, by their names in the table; None where it has none.
    """

    labels: tuple[str, ...]
    runs: Mapping[int, tuple[Run, ...]]
    scores: Mapping[str, str | None]

    @property
    def name(self) -> str:
        """The row in a message."""
        return " × ".join(self.labels)


@dataclass(frozen=True)
class Sweep:
    """Rows of runs and the columns of their table.

    Attributes:
        name: Name of the sweep and of its table.
        labels: Names of the first columns.
        scores: The scores, by their names in the table.
        rows: The rows, in order.
        columns: The columns of the table, in order.
    """

    name: str
    labels: tuple[str, ...]
    scores: tuple[str, ...]
    rows: tuple[Row, ...]
    columns: tuple[str, ...]

    def column(self, score: str, statistic: str) -> str:
        """Column of a statistic: plain `low`, `high`, `sd` in a sweep with one score, else `score.low`, …."""
        return statistic if len(self.scores) == 1 else f"{score}.{statistic}"

    def source(self, column: str) -> str:
        """Resolve a name in `columns`: plain statistics belong to the first score."""
        return self.column(self.scores[0], column) if column in STATISTICS else column


def load(path: Path) -> object:
    """Read a YAML file; a repeated key in a mapping is an error.

    Raises:
        SweepError: The file cannot be read, is not UTF-8, or not YAML.
    """
    try:
        content = path.read_text(encoding="utf-8")
        twins = list(_twins(yaml.compose(content, Loader=yaml.SafeLoader)))
        found: object = yaml.safe_load(content)
    except OSError as error:
        raise SweepError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SweepError(f"{path} is not UTF-8: {error}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date
        raise SweepError(f"{path} is not YAML: {error}") from None
    for line, name in twins:
        raise SweepError(f"{path}:{line}: `{name}` stands twice in one mapping")
    return found


def _twins(node: object) -> Iterator[tuple[int, str]]:
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    yield key.start_mark.line + 1, key.value
                seen.add(key.value)
            yield from _twins(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _twins(value)


def mapping(value: object, where: str, *, empty: bool = False) -> Mapping[str, object]:
    """Check for a mapping with text keys."""
    if not isinstance(value, dict) or (not value and not empty):
        raise SweepError(f"{where} is a mapping{'' if empty else ' of at least one'}, `name: …`, not {value!r}")
    for name in value:
        if not isinstance(name, str):
            raise SweepError(f"{where}: the name {name!r} is read as {type(name).__name__}: write it in quotes")
    return value


def fields(value: object, known: Collection[str], where: str) -> Mapping[str, object]:
    """Check for a mapping with known keys."""
    found = mapping(value, where, empty=True)
    for name in found:
        if name not in known:
            raise SweepError(f"{where}: there is no `{name}`{near(name, known)}; there are {', '.join(sorted(known))}")
    return found


def text(value: object, where: str) -> str:
    """Check for text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise SweepError(f"{where} is text, not {value!r}{'' if isinstance(value, str) else ': write it in quotes'}")
    return value


def texts(value: object, where: str) -> tuple[str, ...]:
    """Check for a list of different texts."""
    if not isinstance(value, list) or not value:
        raise SweepError(f"{where} is a list of names, such as [uas], not {value!r}")
    found = tuple(text(name, f"{where}, item {place}") for place, name in enumerate(value, 1))
    if len(set(found)) < len(found):
        raise SweepError(f"{where} names something twice: {', '.join(found)}")
    return found


def integers(value: object, where: str) -> tuple[int, ...]:
    """Check for a list of different whole numbers from 0."""
    whole = isinstance(value, list) and all(
        isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in value
    )
    if not isinstance(value, list) or not whole or not value or len(set(value)) < len(value):
        raise SweepError(f"{where} is a list of different whole numbers from 0, such as [0, 1, 2], not {value!r}")
    return tuple(value)


COMMANDS = ("fit", "test")

_OWN = {
    "config": "`config` names the one config of a run",
    "seed_everything": "`seeds` are the seeds of the runs",
    "trainer.default_root_dir": "`--out` is where the runs are kept",
    "ckpt_path": "every run of a sweep begins anew",
}


def read_sweep(path: Path, extra: Sequence[str] = ()) -> Sweep:
    """Read a sweep; `extra` are arguments for every run, `--name=value` or `--name value`, which override the file.

    Raises:
        SweepError: The file or a config is missing or invalid; the message says where and why.
    """
    content = fields(load(path), {"name", "label", "scores", "seeds", "rows", "grid", "columns"}, str(path))
    name = content.get("name", path.stem)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name):
        raise SweepError(f"{path}: `name` becomes a file name: letters, digits and any of . _ + -, not {name!r}")
    scores = texts(content.get("scores"), f"{path}: `scores`")
    seeds = integers(content.get("seeds", [0]), f"{path}: `seeds`")
    if ("rows" in content) == ("grid" in content):
        raise SweepError(f"{path}: a sweep has either `rows` or a `grid`")
    if "grid" in content:
        if "label" in content:
            raise SweepError(f"{path}: `label` is for `rows`; the first columns of a `grid` are called as its axes")
        labels, entries = _grid(content["grid"], f"{path}: `grid`")
    else:
        labels = (text(content.get("label", "row"), f"{path}: `label`"),)
        rows = mapping(content["rows"], f"{path}: `rows`")
        entries = {(row,): [_entry(value, f"{path}: row `{row}`", runs=True)] for row, value in rows.items()}
    options = _arguments(extra)
    made = tuple(_row(path, row, layers, scores, seeds, options) for row, layers in entries.items())
    sweep = Sweep(name, labels, scores, made, ())
    return replace(sweep, columns=_columns(sweep, content.get("columns"), f"{path}: `columns`"))


@dataclass(frozen=True)
class _Entry:
    """Settings of a row, of a run of a row, or of a value of an axis."""

    config: str | None = None
    command: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, str | None] = field(default_factory=dict)
    seeds: tuple[int, ...] | None = None
    runs: tuple["_Entry", ...] = ()

    def over(self, below: "_Entry") -> "_Entry":
        """Merge two entries; this one overrides the one below."""
        return _Entry(
            self.config or below.config,
            self.command or below.command,
            {**below.options, **self.options},
            {**below.scores, **self.scores},
            self.seeds or below.seeds,
            self.runs or below.runs,
        )


def _entry(value: object, where: str, *, runs: bool = False, part: bool = False) -> _Entry:
    known = {"config", "command", "set"} | (set() if part else {"scores", "seeds"}) | ({"runs"} if runs else set())
    content = fields({} if value is None else value, known, where)
    command = content.get("command")
    if "command" in content and command not in COMMANDS:
        raise SweepError(f"{where}: `command` is one of {', '.join(COMMANDS)}, not {command!r}")
    scores = mapping(content["scores"], f"{where}, `scores`") if "scores" in content else {}
    parts = content.get("runs", [])
    if not isinstance(parts, list) or ("runs" in content and not parts):
        raise SweepError(f"{where}: `runs` is a list of runs, each with its `config`")
    return _Entry(
        text(content["config"], f"{where}: `config`") if "config" in content else None,
        str(command) if command else None,
        {
            _option(option, where): _text(given, f"{where}, `set`: {option}")
            for option, given in mapping(content.get("set", {}), f"{where}, `set`", empty=True).items()
        },
        {name: None if score is None else text(score, f"{where}, `scores`: {name}") for name, score in scores.items()},
        integers(content["seeds"], f"{where}: `seeds`") if "seeds" in content else None,
        tuple(_entry(one, f"{where}, run {place}", part=True) for place, one in enumerate(parts, 1)),
    )


def _grid(value: object, where: str) -> tuple[tuple[str, ...], dict[tuple[str, ...], list[_Entry]]]:
    content = dict(fields(value, {"config", "command", "set", "axes"}, where))
    axes = {
        text(axis, f"{where}, axis"): {
            label: _entry(entry, f"{where}, {axis} `{label}`")
            for label, entry in mapping(entries, f"{where}, axis `{axis}`").items()
        }
        for axis, entries in mapping(content.pop("axes", None), f"{where}, `axes`").items()
    }
    base = _entry(content, where)
    cells = itertools.product(*(entries.items() for entries in axes.values()))
    return tuple(axes), {tuple(label for label, _ in cell): [base, *(entry for _, entry in cell)] for cell in cells}


def _row(
    path: Path,
    labels: tuple[str, ...],
    layers: Sequence[_Entry],
    scores: Sequence[str],
    seeds: tuple[int, ...],
    extra: Mapping[str, str],
) -> Row:
    """Merge the layers of a row; later ones override earlier ones."""
    entry = _Entry()
    for layer in layers:
        entry = layer.over(entry)
    where = f"{path}: row `{' × '.join(labels)}`"
    if strange := sorted(entry.scores.keys() - set(scores)):
        raise SweepError(f"{where}: `{strange[0]}` is none of the table's `scores`: {', '.join(scores)}")
    runs: dict[int, list[Run]] = {seed: [] for seed in entry.seeds or seeds}
    for one in entry.runs or (_Entry(),):
        part = one.over(entry)
        if part.config is None:
            raise SweepError(f"{where} has no `config`")
        config = path.parent / part.config
        if not config.is_file():
            raise SweepError(f"{where}: there is no config {config} (paths are relative to the folder of {path.name})")
        digest = hashlib.sha256(config.read_bytes()).hexdigest()
        options = tuple(sorted({**part.options, **extra}.items()))
        for seed, found in runs.items():
            found.append(Run(part.command or "fit", config, digest, options, seed))
    names = {score: entry.scores.get(score, score) for score in scores}
    return Row(labels, {seed: tuple(found) for seed, found in runs.items()}, names)


def _columns(sweep: Sweep, chosen: object, where: str) -> tuple[str, ...]:
    scores = [(score, *(sweep.column(score, name) for name in STATISTICS)) for score in sweep.scores]
    everything = (*sweep.labels, *COUNTS, *itertools.chain.from_iterable(scores))
    if twice := sorted({name for name in everything if everything.count(name) > 1}):
        raise SweepError(f"{where}: `{twice[0]}` would be the name of two columns: rename the label or the axis")
    if chosen is None:
        return everything
    names = texts(chosen, where)
    for name in names:
        if sweep.source(name) not in everything:
            there = ", ".join(everything)
            raise SweepError(f"{where}: there is no `{name}`{near(name, everything)}; there are {there}")
    return names


def _arguments(extra: Sequence[str]) -> dict[str, str]:
    """Parse the options on a command line."""
    found: dict[str, str] = {}
    rest = list(extra)
    while rest:
        name, given, value = rest.pop(0).partition("=")
        if not name.startswith("--") or (not given and (not rest or rest[0].startswith("--"))):
            raise SweepError(f"behind `--` come options of train.py, each with its value: --name=value, not {name!r}")
        found[_option(name[2:], "behind `--`")] = value if given else rest.pop(0)
    return found


def _option(name: str, where: str) -> str:
    if name in _OWN:
        raise SweepError(f"{where}: `{name}` cannot be set: {_OWN[name]}")
    if name.startswith("-"):
        raise SweepError(f"{where}: options are named without dashes: `{name.lstrip('-')}`, not `{name}`")
    return name


def _text(value: object, where: str) -> str:
    """Write a value for the command line of train.py."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SweepError(f"{where} has no form on a command line ({error}): write it as text, in quotes") from None
