"""Plan of a sweep, read from YAML: the rows of its table, their runs, and the columns. docs/sweeps.md describes it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse.typing import NonNegativeInt

from attention_probing.commands import CONFIGS
from attention_probing.commands.shorthand import config_name
from attention_probing.commands.sweep_languages import AXIS, Corpora, fill_in_source, find_source, make_language_axis
from attention_probing.commands.sweep_options import Options, long_names, options_of_run
from attention_probing.commands.sweep_rows import Need, Row, Run, Sweep
from attention_probing.models.configs import command_of
from attention_probing.results.digests import file_digest
from attention_probing.results.errors import UserError, near, pluralize
from attention_probing.results.settings import parse_mapping, read_yaml

NEEDS = ("checkpoints", "encoder", "model.ablation")
"""Options that get what other runs made: checkpoints, the exported transformer, the folder of a `HeadAblation`."""
_FORMER_KEYS = {
    "checkpoints": "checkpoints",
    "checkpoint": "checkpoints",
    "encoder": "encoder",
    "ablation": "model.ablation",
}
"""Option in `needs` by the key that it had before version 3."""

STATISTICS = ("low", "high", "sd")
RUN_COLUMNS = ("seed", "command", "config", "folder", "epochs")
"""Columns of the table of runs, between the labels and the scores."""
MOST = 5_000
"""Largest number of rows of a plan, which takes seconds to read."""
MOST_RUNS = 10_000
"""Largest number of runs of a plan: of its rows, by their seeds."""
_TOO_MANY = f"the plan has more than {MOST:,} rows. Divide it into several plans"

_Content = Mapping[str, Any]


@dataclass
class RowPart:
    """Settings of one of several runs of a row, in the YAML file of a plan.

    Attributes:
        config: Config file of the command.
        command: Command of the program.
        set: Options of the program, values by name.
        needs: Rows whose runs are read, by the option in `NEEDS` that gets what they made. A row is `PLAN:ROW`, with
            the path of another plan relative to this one, or `:ROW` for an earlier row of this plan. Each run reads
            the run with its own seed; of a list of rows, or of all rows of a `PLAN`, it reads all runs.
    """

    config: str = ""
    command: Literal["fit", "test", "measure"] = "fit"
    set: dict = field(default_factory=dict)  # type: ignore[type-arg]
    needs: dict[str, str | list[str]] = field(default_factory=dict)


@dataclass
class Entry(RowPart):
    """Settings of a row, a grid, or one value on an axis of a grid, in the YAML file of a plan.

    Attributes:
        scores: Name of the score in the results, by column of the table; None if the row has no such
            score.
        seeds: Seeds of the runs.
        rename: Other names of options that are given for all runs, after `--`; None if the runs of the row
            do not have the option.
        runs: Settings of each run, in the form of a `RowPart`, if the row has several runs for a seed.
    """

    scores: dict[str, str | None] = field(default_factory=dict)
    seeds: list[NonNegativeInt] = field(default_factory=list)
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
        languages: Corpus of each language, in the form of the option `corpus`, for a grid whose first axis they become;
            see `commands.sweep_languages`.
        source: Language whose heads and probes are transferred to the others; empty for the first.
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
    languages: dict = field(default_factory=dict)  # type: ignore[type-arg]
    source: str = ""
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
    plan = with_languages(read_plan(path), path, None, "")
    return make_sweep(plan, path, extra, above)


def make_sweep(plan: Plan, path: Path, extra: Options | None = None, above: Sequence[Path] = ()) -> Sweep:
    """Return the sweep that a plan describes.

    Args:
        plan: The plan; if it has languages, with its source language (`with_languages`).
        path: Its file. Its folder is where configs and other plans are looked for.
        extra: Options of the program for every run.
        above: Plans that are being read and refer to this one, to detect circular references.

    Raises:
        UserError: The plan names missing files, or contradicts itself.
    """
    return _PlanReader(path, plan, extra or {}, above).read()


def with_languages(plan: Plan, path: Path, languages: Corpora | None, source: str) -> Plan:
    """Return a plan with other languages or another source language, or with the source that it has by default.

    Args:
        plan: The plan.
        path: Its file, for messages.
        languages: Corpus of each language; None for those of the plan.
        source: Source language; empty for the first of `languages`, or that of the plan.

    Raises:
        UserError: The plan has no languages, or the source language is none of them.
    """
    if not plan.languages and (languages or source):
        option = "--languages" if languages else "--source"
        raise UserError(
            f"{option}: the plan {path} has no `languages`. Give it to a plan that has them, such as `languages`"
        )
    if not plan.languages:
        return plan
    if languages:
        return replace(plan, languages=dict(languages), source=find_source(languages, source, "--source"))
    where = "--source" if source else f"{path}: `source`"
    return replace(plan, source=find_source(plan.languages, source or plan.source, where))


def read_plan(path: Path) -> Plan:
    """Read the content of the YAML file of a plan, with the name of the sweep; its rows are not checked.

    Raises:
        SettingsError: The file is missing or malformed.
        UserError: It is the config of a run, or its name cannot be that of a file.
    """
    content = read_yaml(path)
    if isinstance(content, Mapping) and "model" in content:
        import_module("attention_probing.commands.lightning")  # imports the classes, which takes seconds
        model = content["model"]
        name = model.get("class_path") if isinstance(model, Mapping) else model
        command = command_of(str(name).rpartition(".")[2])
        raise UserError(
            f"{path} is the config of one run, not a plan. Run it with `probing {command} --config {config_name(path)}`"
        )
    plan = parse_mapping(Plan, content, str(path))
    name = plan.name or path.stem
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name):
        raise UserError(
            f"{path}: the sweep is called {name!r}, but its name becomes a file name. Set `name` to letters, digits "
            "and . _ + -, with a letter or digit first"
        )
    return replace(plan, name=name)


class _PlanReader:
    """Reader that makes a sweep of a plan, row by row.

    Args:
        path: File of the plan.
        plan: Its content.
        extra: Options of the program for every run.
        above: Plans that are being read and refer to this one.
    """

    def __init__(self, path: Path, plan: Plan, extra: Options, above: Sequence[Path]) -> None:
        self.path = path
        self.plan = plan
        self.extra = extra
        self.above = above
        self.rows: list[Row] = []  # those that are read; a row may need earlier ones
        self.planned = 0  # number of runs

    def read(self) -> Sweep:
        """Return the sweep."""
        plan = self.plan
        axes, entries_of_rows = self._list_entries()
        for labels, entries in entries_of_rows.items():
            self.rows.append(self._read_row(labels, entries))
        columns = columns_of(axes, plan.scores, plan.columns, f"{self.path}: `columns`")
        sweep = Sweep(plan.name, axes, tuple(self.rows), columns, plan.reference, plan.source)
        if plan.reference and not any(sweep.compared()):
            values = zip(axes, self.rows[0].labels, strict=True)
            example = ", ".join(f"{label}: {value}" for label, value in values)
            raise UserError(
                f"{self.path}: `reference` is {plan.reference}, but no row has these values and the same other labels "
                "as another row, so there is nothing to compare. Give a label and one of its values, such as "
                f"`{example}`"
            )
        return sweep

    def _list_entries(self) -> tuple[tuple[str, ...], dict[tuple[str, ...], list[Any]]]:
        """Return the names of the label columns, and the entries to merge for each row, by its labels.

        Raises:
            UserError: The plan has both rows and a grid, or neither, or too many rows, or the grid is malformed.
        """
        plan = self.plan
        if bool(plan.rows) == bool(plan.grid):
            raise UserError(f"{self.path}: a plan has either `rows` or a `grid`. Give one of them")
        if plan.languages:
            return self._list_entries_of_languages()
        if plan.grid:
            return _list_entries_of_grid(plan.grid, f"{self.path}: `grid`", self.extra)
        if len(plan.rows) > MOST:
            raise UserError(f"{self.path}: {_TOO_MANY}")
        return (plan.label or "row",), {(row,): [entry] for row, entry in plan.rows.items()}

    def _list_entries_of_languages(self) -> tuple[tuple[str, ...], dict[tuple[str, ...], list[Any]]]:
        """Return the names of the two axes, of which the first is that of the languages, and the entries of each row.

        Raises:
            UserError: The grid has an axis of languages itself, or not exactly one further axis.
        """
        plan = self.plan
        axes = plan.grid.get("axes")
        if not isinstance(axes, dict) or AXIS in axes:
            raise UserError(
                f"{self.path}: `languages` are the axis `{AXIS}` of a grid with one further axis. Give it a `grid` "
                "whose `axes` has another one"
            )
        if len(axes) != 1:
            number = f"{len(axes)}: {', '.join(map(str, axes))}" if axes else "none"
            raise UserError(
                f"{self.path}: beside `languages`, the `axes` of the `grid` have one further axis, whose values are "
                f"compared within a language, but here it has {number}. Keep one, and make a sweep for each value of "
                "the others, with its options after `--`"
            )
        grid = {**plan.grid, "axes": {AXIS: make_language_axis(plan.languages, plan.source), **axes}}
        names, entries = _list_entries_of_grid(grid, f"{self.path}: `grid`", self.extra)
        return names, fill_in_source(entries, plan.languages, plan.source)

    def _read_row(self, labels: tuple[str, ...], entries: Sequence[_Content]) -> Row:
        """Return a row from its entries, of which later ones override earlier ones."""
        where = f"{self.path}: row `{' × '.join(labels)}`"
        content = _merge(entries, where)
        entry = parse_mapping(Entry, content, where)
        columns = self.plan.scores
        strange = sorted(entry.scores.keys() - set(columns))
        if strange:
            raise UserError(
                f"{where}: `scores` has `{strange[0]}`{near(strange[0], columns)}, which is not among the plan's "
                f"`scores`: {', '.join(columns)}. Correct the name, or add it there"
            )
        parts = _list_parts(entry, content, where)
        seeds = entry.seeds or self.plan.seeds
        self.planned += len(seeds) * len(parts)
        if self.planned > MOST_RUNS:
            raise UserError(f"{self.path}: the plan has more than {MOST_RUNS:,} runs. Divide it into several plans")
        of_any_seed = [self._read_run(part, where) for part in parts]
        runs = {}
        for seed in seeds:
            runs[seed] = tuple(_choose_seed(run, seed, where) for run in of_any_seed)
        scores = {column: entry.scores.get(column, column) or "" for column in columns}
        return Row(labels, runs, scores)

    def _read_run(self, part: Entry, where: str) -> Run:
        """Return a run of a row, as yet without a seed: it needs the runs of the other rows with any seed."""
        needs = tuple(self._read_need(option, rows, where) for option, rows in part.needs.items())
        config = self._find_config(part.config, where)
        options = options_of_run(part.command, config, part.set, self.extra, part.rename, where)
        return Run(part.command, config, file_digest(config), options, seed=0, needs=needs)

    def _find_config(self, name: str, where: str) -> Path:
        """Return the path of a config: beside the plan, or of a shipped one."""
        beside = self.path.parent / name
        if beside.is_file():
            return beside
        shipped = CONFIGS / f"{name}.yaml"
        if shipped.is_file():
            return shipped
        raise UserError(
            f"{where}: there is no config {beside} (paths are relative to the folder of {self.path.name}), and none of "
            "this name is shipped"
        )

    def _read_need(self, option: str, rows: str | list[str], where: str) -> Need:
        """Return the need of an option of a run, with the runs of all seeds."""
        if option not in NEEDS:
            raise UserError(
                f"{where}: `needs` has `{option}`{near(option, NEEDS)}, but only {', '.join(NEEDS)} get what another "
                "row made. Name one of them, or give the option under `set`"
            )
        is_list = isinstance(rows, list)
        if is_list and option != "checkpoints":
            raise UserError(f"{where}: `needs` gives `{option}` a list, but it takes one row. Give it, such as ':ROW'")
        names = rows if isinstance(rows, list) else [rows]
        if not names:
            raise UserError(f"{where}: `{option}` names no row. Name one, or leave the option out")
        runs = []
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"{where}: `{option}` names {name} more than once. Name it once")
            runs += self._runs_named(name, option, where)
        return Need(option, tuple(runs), is_list)

    def _runs_named(self, name: str, option: str, where: str) -> list[Run]:
        """Return the runs that `PLAN`, `PLAN:ROW` or `:ROW` names; only trainings, but for `model.ablation`."""
        plan, _, wanted = name.partition(":")
        rows = self.rows
        if plan:
            path = self.path.parent / plan
            rows = list(read_sweep(path, self.extra, [*self.above, self.path.resolve()]).rows)
        runs = []
        for row in rows:
            if wanted in ("", row.name):
                runs += row.all_runs()
        kind = "run"
        if option != "model.ablation":
            kind = "training"
            runs = [run for run in runs if run.command == "fit"]
        if not runs:
            names = [row.name for row in rows]
            raise UserError(
                f"{where}: `{option}` needs {name}{near(wanted, names)}, but no {kind} was found there. Write `:ROW` "
                f"for an earlier row of this plan, or `PLAN:ROW` for a row of another plan; the rows are "
                f"{', '.join(names)}"
            )
        return runs


def _choose_seed(run: Run, seed: int, where: str) -> Run:
    """Return a run with a seed, which needs the runs of other rows with the same seed, or all runs of a list."""
    needs = []
    for need in run.needs:
        runs = need.runs
        if not need.is_list:
            runs = tuple(other for other in runs if other.seed == seed)
            if len(runs) != 1:
                raise UserError(
                    f"{where}: `{need.option}` needs {pluralize(len(runs), 'run')} with seed {seed}, but must name "
                    "exactly one for each seed of this row. Name a row with the same `seeds` and one run for each of "
                    "them"
                )
        needs.append(replace(need, runs=runs))
    return replace(run, seed=seed, needs=tuple(needs))


def _merge(entries: Sequence[_Content], where: str) -> dict[str, Any]:
    """Return the entry that several entries of a row are together; later ones override earlier ones."""
    content: dict[str, Any] = {}
    for entry in entries:
        _refuse_former_keys(entry, where)
        if len(entries) > 1 or not isinstance(entry, Mapping):  # of one alone, the caller checks the merged entry
            parse_mapping(Entry, entry, where)
        content = _override(content, entry)
    return content


def _list_parts(entry: Entry, content: _Content, where: str) -> list[Entry]:
    """Return the settings of each run that a row has for a seed, with those of the row under them."""
    if not entry.runs:
        return [entry]
    for place, part in enumerate(entry.runs, 1):
        _refuse_former_keys(part, f"{where}, run {place}")
        parse_mapping(RowPart, part, f"{where}, run {place}")
    return [parse_mapping(Entry, _override(content, part), where) for part in entry.runs]


def _override(below: _Content, above: _Content) -> dict[str, Any]:
    """Return the entry `below` with the values of the entry `above`; some mappings are merged."""
    content = {**below, **above}
    for name in ("set", "scores", "needs"):
        if name in below and name in above:
            content[name] = {**below[name], **above[name]}
    return content


def _refuse_former_keys(entry: object, where: str) -> None:
    """Raise UserError for a key that became a part of `needs`."""
    if not isinstance(entry, Mapping):
        return
    for key, option in _FORMER_KEYS.items():
        if key in entry:
            needs = {"needs": {option: entry[key]}}
            text = yaml.safe_dump(needs, default_flow_style=True, allow_unicode=True, width=1_000_000)
            raise UserError(f"{where}: `{key}` is a part of `needs` since version 3. Write `{text.strip()[1:-1]}`")


def _list_entries_of_grid(
    grid: dict[str, Any], where: str, extra: Options
) -> tuple[tuple[str, ...], dict[tuple[str, ...], list[Any]]]:
    """Return the names of the axes, and for each combination of their values the entries to merge.

    Raises:
        UserError: There are no axes, too many rows, or an option for every run that an axis sets.
    """
    shared = {name: value for name, value in grid.items() if name != "axes"}
    axes: Any = grid.get("axes")
    is_mapping = isinstance(axes, dict) and bool(axes)
    if not is_mapping or not all(isinstance(values, dict) and values for values in axes.values()):
        raise UserError(
            f"{where}: `axes` is no mapping of axes to their values. Give it, such as `axes: {{encoder: {{lstm: {{}}, "
            "gru: {}}}`"
        )
    if prod(map(len, axes.values())) > MOST:
        raise UserError(f"{where}: {_TOO_MANY}")
    _refuse_options_of_axes(axes, where, extra)
    entries: dict[tuple[str, ...], list[Any]] = {}
    for labels in product(*axes.values()):
        entries[labels] = [shared]
        for values, label in zip(axes.values(), labels, strict=True):
            entries[labels].append(values[label])
    return tuple(axes), entries


def _refuse_options_of_axes(axes: Mapping[str, dict[str, Any]], where: str, extra: Options) -> None:
    """Raise UserError for an option for every run that an axis sets: every row would have its value."""
    given = set[str]().union(*map(long_names, extra))
    for axis, values in axes.items():
        for entry in values.values():
            options = entry.get("set") if isinstance(entry, dict) else None
            for name in options or {}:
                if long_names(name) & given:
                    remedy = "Choose rows with --row or edit the plan"
                    if axis == AXIS:
                        remedy = f"Name the languages and their corpora with --languages, or {remedy.lower()}"
                    raise UserError(f"{where}: `--{name}` is set by the axis `{axis}`. {remedy}")


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
    everything = [*labels, "seeds", "epochs"]
    for score in scores:
        everything.append(score)
        everything += [f"{score}.{statistic}" for statistic in STATISTICS]
    names = everything
    if len(scores) == 1:
        names = [*labels, "seeds", "epochs", *scores, *STATISTICS]
    for table in (everything, [*labels, *RUN_COLUMNS, *scores]):
        twice = [name for name in table if table.count(name) > 1]
        if twice:
            raise UserError(
                f"{where}: two columns would be called `{twice[0]}`. Rename the label, the axis or the score"
            )
    columns = {}
    for name in chosen or names:
        columns[name] = f"{scores[0]}.{name}" if name in STATISTICS else name
        if columns[name] not in everything:
            raise UserError(
                f"{where}: there is no column `{name}`{near(name, everything)}; there are {', '.join(everything)}"
            )
    return columns
