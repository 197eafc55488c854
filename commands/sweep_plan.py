"""Plan of a sweep: the rows of its table, their runs, and the columns. docs/sweeps.md describes the YAML."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args

from jsonargparse.typing import NonNegativeInt

from attention_probing.commands import CONFIGS
from attention_probing.commands.command_line import CommandLine, values_of
from attention_probing.commands.shorthand import SHORT, config_name, option_of
from attention_probing.commands.trust import trusted_modules
from attention_probing.models.configs import PERMISSIONS, command_of
from attention_probing.results.digests import digest, file_digest
from attention_probing.results.errors import UserError, near, pluralize
from attention_probing.results.record import Record
from attention_probing.results.settings import leaves, read_yaml, score_settings, typed

OWN = ("config", "seed_everything", "trainer.default_root_dir", "ckpt_path")
"""Options that the sweep itself sets."""

Options = Mapping[str, object]
Reads = Literal["checkpoints", "checkpoint", "encoder", "ablation"]
STATISTICS = ("low", "high", "sd")
MOST = 5_000
"""Largest number of rows of a plan, which takes seconds to read."""
MOST_RUNS = 10_000
"""Largest number of runs of a plan: of its rows, by their seeds."""
_TOO_MANY = f"the plan has more than {MOST:,} rows. Divide it into several plans"
RUN_COLUMNS = ("seed", "command", "config", "folder", "epochs")
"""Columns of the table of runs, between the labels and the scores."""


@dataclass(frozen=True)
class Run:
    """Run of the program in a sweep.

    Attributes:
        command: `fit`, `test` or `measure`.
        config: The config file.
        digest: SHA-256 of the config file at the time when the sweep was read.
        options: Names and values of options of the program, sorted by name, so that a mapping (`data.vectors`)
            precedes its keys (`data.vectors.name`).
        seed: Seed of the run.
        trained: Runs whose trained models or results this run reads.
        reads: How this run reads them: as the list of `checkpoints` of the model, as its `checkpoint`, as
            the `encoder` of the data, or as the finished `ablation` of the model.
    """

    command: str
    config: Path
    digest: str
    options: tuple[tuple[str, str], ...]
    seed: int
    trained: tuple["Run", ...] = ()
    reads: Reads = "checkpoints"

    @property
    def arguments(self) -> list[str]:
        """Arguments of the program for this run, without the output folder and the checkpoints."""
        options = [f"--{name}={value}" for name, value in self.options]
        return [self.command, f"--config={self.config}", f"--seed_everything={self.seed}", *options]

    @property
    def identity(self) -> dict[str, object]:
        """Values that determine the scores of the run, by name.

        They are the command, the SHA-256 of the config file, the options that affect scores, the seed,
        and the keys of the runs whose trained models are read. The names of config file and row are not
        among them.
        """
        options = list(score_settings(dict(self.options)).items())
        known = {"command": self.command, "config_sha256": self.digest, "options": options, "seed": self.seed}
        return {**known, self.reads: [run.key for run in self.trained]} if self.trained else known

    @property
    def key(self) -> str:
        """Hash of `identity`. It names the run's folder, so runs with the same identity share one folder."""
        return digest(json.dumps(self.identity, sort_keys=True).encode())[:16]

    def needed(self) -> Iterator["Run"]:
        """Yield the runs that must finish before this run, then this run."""
        for run in self.trained:
            yield from run.needed()
        yield self


@dataclass(frozen=True)
class Row:
    """Row of the table of a sweep, with the runs that it is computed from.

    Attributes:
        labels: Values of the label columns.
        runs: Runs of the row by seed.
        scores: Name of the score in the results of the runs, by column of the table; empty for a column
            without a score.
    """

    labels: tuple[str, ...]
    runs: Mapping[int, Sequence[Run]]
    scores: Mapping[str, str]

    @property
    def name(self) -> str:
        """Name of the row in messages: its labels, joined by ` × `."""
        return " × ".join(self.labels)

    def all_runs(self) -> list[Run]:
        """Return the runs of the row, seed by seed."""
        return [run for runs in self.runs.values() for run in runs]

    def finished(self, records: Mapping[str, Record]) -> list[Record]:
        """Return the results of the runs of this row that are finished.

        Args:
            records: Results of all finished runs of the sweep, by key of the run.
        """
        return [records[run.key] for run in self.all_runs() if run.key in records]

    def done(self, records: Mapping[str, Record]) -> dict[int, list[Record]]:
        """Return the results of this row by seed, for the seeds whose runs are all finished.

        Args:
            records: Results of all finished runs of the sweep, by key of the run.
        """
        whole = {seed: runs for seed, runs in self.runs.items() if all(run.key in records for run in runs)}
        return {seed: [records[run.key] for run in runs] for seed, runs in whole.items()}


@dataclass(frozen=True)
class Sweep:
    """Sweep that a plan describes: the runs to execute, and the table to make of their results.

    Attributes:
        name: Name of the sweep.
        labels: Names of the label columns.
        rows: Rows of the table.
        columns: Full name of each column, by the name that it has in the table: `low`, for instance, is
            short for `<first score>.low`.
        reference: Value of a label column, by name of the column: each row is compared with the row that
            has this value and otherwise the same labels. Empty for no comparisons.
    """

    name: str
    labels: tuple[str, ...]
    rows: tuple[Row, ...]
    columns: Mapping[str, str]
    reference: Mapping[str, str] = field(default_factory=dict)

    def compared(self) -> Iterator[tuple[Row, Row]]:
        """Yield each row with the row that it is compared with."""
        rows = {row.labels: row for row in self.rows}
        for row in self.rows if self.reference else ():
            own = dict(zip(self.labels, row.labels, strict=True))
            if (other := rows.get(tuple({**own, **self.reference}.values()))) not in (None, row):
                yield row, other


@dataclass
class RowPart:
    """Settings of one of several runs of a row, in the YAML file of a plan.

    Attributes:
        config: Config file of the command.
        command: Command of the program.
        set: Options of the program, values by name.
        ablation: Run of `HeadAblation`, in the form of `Entry.checkpoints`; the run reads its result with its own
            seed, as `model.init_args.ablation`.
    """

    config: str = ""
    command: Literal["fit", "test", "measure"] = "fit"
    set: dict = field(default_factory=dict)  # type: ignore[type-arg]
    ablation: str = ""


@dataclass
class Entry(RowPart):
    """Settings of a row, a grid, or one value on an axis of a grid, in the YAML file of a plan.

    Attributes:
        scores: Name of the score in the results, by column of the table; None if the row has no such
            score.
        seeds: Seeds of the runs.
        checkpoints: Trainings whose checkpoints are tested: `PLAN` for all trainings of another plan, a
            path relative to this one; `PLAN:ROW` for one row of it; `:ROW` for an earlier row of this
            plan.
        checkpoint: Training in the same form; each run reads the checkpoint with its own seed, as the
            option `model.init_args.checkpoint`; the command `test` reads it as `--ckpt_path`.
        encoder: Training in the same form; each run reads the fine-tuned encoder with its own seed, as
            `data.init_args.encoder.name`.
        rename: Other names of options that are given for all runs, after `--`; None if the runs of the row
            do not have the option.
        runs: Settings of each run, in the form of a `RowPart`, if the row has several runs for a seed.
    """

    scores: dict[str, str | None] = field(default_factory=dict)
    seeds: list[NonNegativeInt] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)
    checkpoint: str = ""
    encoder: str = ""
    rename: dict[str, str | None] = field(default_factory=dict)
    runs: list[dict] = field(default_factory=list)  # type: ignore[type-arg]


@dataclass
class Plan:
    """Content of the YAML file of a plan; see docs/sweeps.md for examples.

    Attributes:
        scores: Names of the score columns of the table.
        name: Name of the sweep and of its table; empty for the name of the file.
        label: Name of the first column, if the plan has `rows`; empty for `row`.
        seeds: Seeds of the rows without `seeds` of their own.
        rows: Settings of each row, in the form of an `Entry`, by the name of the row.
        grid: Given in place of `rows`: settings that all rows share, and `axes`, a mapping from the name
            of each axis to its values with their settings. Each combination of values is a row.
        columns: Columns to show, in this order; empty for all.
        reference: Row to compare others with, as values by name of the label columns: `{quantity: attention}`
            compares each row with the row that differs from it only in this value.
    """

    scores: list[str]
    name: str = ""
    label: str = ""
    seeds: list[NonNegativeInt] = field(default_factory=lambda: [0])
    rows: dict[str, dict] = field(default_factory=dict)  # type: ignore[type-arg]
    grid: dict = field(default_factory=dict)  # type: ignore[type-arg]
    columns: list[str] = field(default_factory=list)
    reference: dict[str, str] = field(default_factory=dict)


def read_sweep(path: Path, extra: Options | None = None, above: Sequence[Path] = ()) -> Sweep:
    """Read a plan from a YAML file, and return the sweep that it describes.

    Args:
        path: The YAML file.
        extra: Options of the program for every run.
        above: Plans that are being read and refer to this one, to detect circular references.

    Raises:
        SettingsError: The file is missing or malformed.
        UserError: The plan names missing files, or contradicts itself.
    """
    if path.resolve() in above:
        raise UserError(f"{above[-1]}: the reference to {path} is circular. Write `:ROW` for a row of the same plan")
    plan = typed(Plan, _content(path), str(path))
    name = plan.name or path.stem
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name):
        raise UserError(
            f"{path}: the sweep is called {name!r}, but its name becomes a file name. Set `name` to letters, digits "
            "and . _ + -, with a letter or digit first"
        )
    labels, entries = _entries(plan, path, extra or {})
    rows: list[Row] = []
    planned = 0
    for row, layers in entries.items():
        where = f"{path}: row `{' × '.join(row)}`"
        content = _merged(layers, where)
        entry = typed(Entry, content, where)
        if strange := sorted(entry.scores.keys() - set(plan.scores)):
            raise UserError(
                f"{where}: `scores` has `{strange[0]}`{near(strange[0], plan.scores)}, which is not among the plan's "
                f"`scores`: {', '.join(plan.scores)}. Correct the name, or add it there"
            )
        for place, part in enumerate(entry.runs, 1):
            typed(RowPart, part, f"{where}, run {place}")
        parts = [typed(Entry, _over(content, part), where) for part in entry.runs] or [entry]
        seeds = entry.seeds or plan.seeds
        planned += len(seeds) * len(parts)
        if planned > MOST_RUNS:
            raise UserError(f"{path}: the plan has more than {MOST_RUNS:,} runs. Divide it into several plans")
        read = [_read(part, path, where, rows, extra, above) for part in parts]
        runs = {
            seed: tuple(
                _run(part, seed, path, where, extra or {}, *known) for part, known in zip(parts, read, strict=True)
            )
            for seed in seeds
        }
        rows.append(Row(row, runs, {score: entry.scores.get(score, score) or "" for score in plan.scores}))
    columns = columns_of(labels, plan.scores, plan.columns, f"{path}: `columns`")
    sweep = Sweep(name, labels, tuple(rows), columns, plan.reference)
    if plan.reference and not any(sweep.compared()):
        there = ", ".join(f"{label}: {value}" for label, value in zip(labels, rows[0].labels, strict=True))
        raise UserError(
            f"{path}: `reference` is {plan.reference}, but no row has these values and the same other labels as "
            f"another row, so there is nothing to compare. Give a label and one of its values, such as `{there}`"
        )
    return sweep


def _content(path: Path) -> object:
    """Return the content of the YAML file of a plan; raise UserError for the config of a run."""
    content = read_yaml(path)
    if isinstance(content, Mapping) and "model" in content:
        import_module("attention_probing.commands.lightning")  # imports the classes, which takes seconds
        model = content["model"]
        kind = str(model.get("class_path") if isinstance(model, Mapping) else model).rpartition(".")[2]
        raise UserError(
            f"{path} is the config of one run, not a plan. Run it with `probing {command_of(kind)} "
            f"--config {config_name(path)}`"
        )
    return content


def columns_of(labels: Sequence[str], scores: Sequence[str], chosen: Sequence[str], where: str) -> dict[str, str]:
    """Return the columns of the table of a sweep: their full names, by the names shown in the table.

    The two differ only for `low`, `high` and `sd`, which are short for `<first score>.low` and so on.

    Args:
        labels: Names of the label columns.
        scores: Names of the scores.
        chosen: Names of the columns to show; if empty, all: labels, `seeds`, `epochs`, and scores with
            their statistics.
        where: Location of `chosen` in the file, for messages.

    Raises:
        UserError: Two columns have the same name, or a chosen column does not exist.
    """
    ends = [score + end for score in scores for end in ("", *(f".{end}" for end in STATISTICS))]
    everything = [*labels, "seeds", "epochs", *ends]
    listed = [*labels, *RUN_COLUMNS, *scores]
    if twice := [name for table in (everything, listed) for name in table if table.count(name) > 1]:
        raise UserError(f"{where}: two columns would be called `{twice[0]}`. Rename the label, the axis or the score")
    names = chosen or ([*everything[: -len(STATISTICS)], *STATISTICS] if len(scores) == 1 else everything)
    found = {name: f"{scores[0]}.{name}" if name in STATISTICS else name for name in names}
    for name, full in found.items():
        if full not in everything:
            there = ", ".join(everything)
            raise UserError(f"{where}: there is no column `{name}`{near(name, everything)}; there are {there}")
    return found


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry `below` updated by the entry `above`."""
    both = {name: {**below.get(name, {}), **above.get(name, {})} for name in ("set", "scores")}
    return {**below, **above, **{name: content for name, content in both.items() if content}}


def _merged(layers: Sequence[Mapping[str, Any]], where: str) -> dict[str, Any]:
    """Return the entry of the settings of a row, given as one or several entries, the later ones over the others."""
    content: dict[str, Any] = {}
    for layer in layers:
        if len(layers) > 1 or not isinstance(layer, Mapping):  # of one alone, the caller checks the merged entry
            typed(Entry, layer, where)
        content = _over(content, layer)
    return content


def _entries(plan: Plan, path: Path, extra: Options) -> tuple[tuple[str, ...], dict[tuple[str, ...], list[Any]]]:
    """Return the names of the label columns, and the entries to merge for each row, by its labels.

    Raises:
        UserError: The plan has both rows and a grid, or neither, or too many rows; see also `_grid`.
    """
    if bool(plan.rows) == bool(plan.grid):
        raise UserError(f"{path}: a plan has either `rows` or a `grid`. Give one of them")
    if plan.grid:
        return _grid(plan.grid, f"{path}: `grid`", extra)
    if len(plan.rows) > MOST:
        raise UserError(f"{path}: {_TOO_MANY}")
    return (plan.label or "row",), {(row,): [entry] for row, entry in plan.rows.items()}


def _grid(
    grid: dict[str, Any], where: str, extra: Options
) -> tuple[tuple[str, ...], dict[tuple[str, ...], list[dict[str, Any]]]]:
    """Return the names of the axes, and for each combination of their values the entries to merge.

    Raises:
        UserError: There are no axes, too many rows, or an option for every run that an axis sets.
    """
    base = {name: value for name, value in grid.items() if name != "axes"}
    axes = grid.get("axes")
    if not isinstance(axes, dict) or not axes or not all(isinstance(one, dict) and one for one in axes.values()):
        raise UserError(
            f"{where}: `axes` is no mapping of axes to their values. Give it, such as `axes: {{encoder: {{lstm: {{}}, "
            "gru: {}}}`"
        )
    if prod(map(len, axes.values())) > MOST:
        raise UserError(f"{where}: {_TOO_MANY}")
    entries = [(axis, entry) for axis, values in axes.items() for entry in values.values() if isinstance(entry, dict)]
    given = set[str]().union(*map(_meanings, extra))
    for axis, name in ((axis, name) for axis, entry in entries for name in entry.get("set") or {}):
        if _meanings(name) & given:  # every row would have the value, under the names of all
            raise UserError(f"{where}: `--{name}` is set by the axis `{axis}`. Choose rows with --row or edit the plan")
    cells = product(*(values.items() for values in axes.values()))
    return tuple(axes), {tuple(label for label, _ in cell): [base, *(entry for _, entry in cell)] for cell in cells}


def _run(entry: Entry, seed: int, path: Path, where: str, extra: Options, trained: Sequence[Run], reads: Reads) -> Run:
    """Return a run of a row; of `trained` it reads the runs with its own seed, or all as `checkpoints`."""
    if reads != "checkpoints":
        trained = [run for run in trained if run.seed == seed]
        if len(trained) != 1:
            raise UserError(
                f"{where}: `{reads}` names {pluralize(len(trained), 'run')} with seed {seed}, but must name exactly "
                "one for each seed of this row. Name a row with the same `seeds` and one run for each of them"
            )
    config = path.parent / entry.config
    if not config.is_file():
        config = CONFIGS / f"{entry.config}.yaml"
    if not config.is_file():
        raise UserError(
            f"{where}: there is no config {path.parent / entry.config} (paths are relative to the folder of "
            f"{path.name}), and none of this name is shipped"
        )
    others = {in_full(name): new for name, new in entry.rename.items()}
    renamed = {new: extra[name] for name in extra if (new := others.get(in_full(name), name)) is not None}
    given = [f"--{name}={value}" for name, value in {**entry.set, **renamed}.items()]
    has_short = any(word.partition("=")[0] in SHORT for word in given)  # only they need the config to be read
    kinds = set[str]()
    if has_short:
        kinds = CommandLine.from_long([entry.command, f"--config={config}", *given]).kinds
    if "AttentionClassifier" in kinds and "encoder" in {**entry.set, **renamed}:
        raise UserError(f"{where}: its classifier has no pretrained encoder. Give the row `rename: {{encoder: null}}`")
    planned, own = ({in_full(name, kinds): value for name, value in some.items()} for some in (entry.set, renamed))
    _refuse_permissions([f"--{name}={_text(name, value, where)}" for name, value in planned.items()], extra, where)
    options = sorted((name, _text(name, value, where)) for name, value in {**planned, **own}.items())
    return Run(entry.command, config, file_digest(config), tuple(options), seed, tuple(trained), reads)


def _refuse_permissions(words: Sequence[str], extra: Options, where: str) -> None:
    """Raise UserError if a plan grants a permission or names a class of another program.

    Only the command line may do so, because somebody else may have written the plan.

    Args:
        words: Options of the plan, as on a command line.
        extra: Options that the user gives for every run.
        where: Location in the plan, for messages.
    """
    values = list(values_of(words))
    granted = [name for option, value in values for name, leaf in leaves(value, option) if leaf is True]
    granted = [name for name in granted if name.rpartition(".")[2] in PERMISSIONS]
    trusted_by_user = trusted_modules(values_of([f"--{name}={value}" for name, value in extra.items()]))
    trusted = trusted_modules(values) - trusted_by_user
    asked = [
        *(f"--{name} true" for name in granted),
        *(f"--trust {name}" for name in sorted(trusted) if find_spec(name.partition(".")[0])),
    ]
    if asked:
        raise UserError(
            f"{where}: only the command line may set {asked[0]}. If you trust the plan, add `-- {asked[0]}` to the "
            "command line"
        )


def _text(name: str, value: object, where: str) -> str:
    """Return the value of an option as text for the command line."""
    if name in OWN:
        raise UserError(
            f"{where}: `{name}`{' (checkpoints)' * (name == 'ckpt_path')} is set by the sweep itself. Leave it out"
        )
    try:
        return value if isinstance(value, str) else json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise UserError(
            f"{where}: `set` gives {name} the value {value}, which cannot be written on a command line. Write it as "
            "text, in quotes"
        ) from None


def _read(
    entry: Entry, path: Path, where: str, rows: Sequence[Row], extra: Options | None, above: Sequence[Path]
) -> tuple[list[Run], Reads]:
    """Return the earlier runs that a run reads, and how it reads them."""
    reads: Reads
    reads, *others = [name for name in get_args(Reads) if getattr(entry, name)] or ["checkpoints"]
    if others:
        raise UserError(f"{where} has both `{reads}` and `{others[0]}`. Remove one of them")
    sources = entry.checkpoints or [one for one in (entry.checkpoint, entry.encoder, entry.ablation) if one]
    return [run for one in sources for run in _trained(one, path, where, reads, rows, extra, above)], reads


def _trained(
    source: str, path: Path, where: str, key: str, rows: Sequence[Row], extra: Options | None, above: Sequence[Path]
) -> list[Run]:
    """Return the trainings named by `PLAN`, `PLAN:ROW` or `:ROW`; of an `ablation`, the runs of any command."""
    plan, _, wanted = source.partition(":")
    rows = read_sweep(path.parent / plan, extra, [*above, path.resolve()]).rows if plan else rows
    found = [run for row in rows if wanted in ("", row.name) for run in row.all_runs()]
    found = [run for run in found if run.command == "fit" or key == "ablation"]
    if not found:
        names = [row.name for row in rows]
        raise UserError(
            f"{where}: `{key}` names {source}{near(wanted, names)}, but no {'run' if key == 'ablation' else 'training'}"
            " was found there. Write `:ROW` for an earlier row of this plan, or `PLAN:ROW` for a row of another plan; "
            f"the rows are {', '.join(names)}"
        )
    return found


def in_full(name: str, kinds: Collection[str] = ()) -> str:
    """Return the long form of an option's name, as `data.init_args.corpus` for `data.corpus` or `corpus`.

    Args:
        name: The name, without dashes.
        kinds: Command and classes of the run, which say what a short name stands for; see `CommandLine.kinds`.
    """
    option = option_of(f"--{name}", kinds)
    return re.sub(r"^(data|model)\.(?!(init_args|class_path|dict_kwargs)\b)", r"\1.init_args.", option)


def _meanings(name: str) -> set[str]:
    """Return the long forms of an option's name in the runs of any class."""
    return {in_full(option) for option in SHORT.get(f"--{name}", {"": name}).values()}


def options_of(words: Sequence[str]) -> dict[str, str]:
    """Parse options of a command line, written `--name=value` or `--name value`; return their values by name.

    Args:
        words: Words of the command line.

    Raises:
        UserError: An option has no value.
    """
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        name, given, value = rest.pop(0).partition("=")
        if not name.startswith("--") or (not given and (not rest or rest[0].startswith("--"))):
            raise UserError(f"options after `--` need their values: --name=value, not {name!r}")
        found[name[2:]] = value if given else rest.pop(0)
    return found
