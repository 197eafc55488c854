"""Runs that are compared by one of their scores: read, grouped by seed, and restricted to the same items."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import pandas as pd

from attention_probing.commands.comparison import check_matching, limit_of
from attention_probing.results.errors import list_first, near, pluralize
from attention_probing.results.reader import find_runs, read_config
from attention_probing.results.record import Record, RecordError, compute_ratio, find_record
from attention_probing.results.settings import seeds, settings_without_seeds

OF_PREDICTIONS = ("f1", "compression")
"""Scores whose denominators depend on the predictions, so that they differ between any two runs."""

GOLD = "data.init_args.gold"
"""Setting that tells whether items have their own gold."""


@dataclass(frozen=True, eq=False)
class ScoredRun:
    """Run with one of its scores, by which it is compared with other runs.

    Attributes:
        record: Results of the run.
        name: Name of the score.
        counts: Numerator and denominator of the score for each item, one row per item.
        config: Config of the run; None without a `config.yaml`.
        row: Folder of the sweep and name of the row that it is named by; None for a run named by itself.
    """

    record: Record
    name: str
    counts: pd.DataFrame
    config: object
    row: tuple[Path, str] | None = None

    @property
    def label(self) -> str:
        """Name of the run in the table; empty for the name of its folder."""
        if self.row is None:
            return ""
        sweep, row = self.row
        return f"{sweep.name}:{row}"

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.record.path.parent

    @property
    def value(self) -> float:
        """Score of the run: sum of the numerators in `counts` / sum of the denominators."""
        return compute_ratio(self.counts)

    @property
    def has_shuffled_gold(self) -> bool:
        """True if items have the gold of others, as in the twin `shuffled`."""
        return self.config is not None and settings_without_seeds(self.config).get(GOLD) == "shuffled"

    def other_data(self, other: "ScoredRun") -> list[str]:
        """Return the names of the splits that two runs read from different files, plant differently or limit."""
        files = _files_of(self.record)
        files_of_other = _files_of(other.record)
        differing = []
        for split, file in files.items():
            if split in files_of_other and file != files_of_other[split]:
                differing.append(split)
        return differing

    def is_alike(self, other: "ScoredRun") -> bool:
        """Return True if two runs have different seeds, and are of one row of a sweep or differ in nothing else."""
        if self.row is not None and self.row == other.row:
            return seeds(self.config) != seeds(other.config)
        if self.config is None or other.config is None or self.other_data(other):
            return False
        same = settings_without_seeds(self.config) == settings_without_seeds(other.config)
        return same and seeds(self.config) != seeds(other.config)


def _files_of(record: Record) -> Mapping[str, tuple[object, ...]]:
    """Return the SHA-256 of the file of each split, if it is known, with its planted shortcut and its limit."""
    files = {}
    for split, description in record.splits:
        if description.get("sha256"):
            files[split] = description["sha256"], description.get("shortcut"), limit_of(description)
    return files


def select_score(record: Record, score: str | None, beside: Record | None = None) -> ScoredRun:
    """Select a score of a run, and read its counts: a numerator and a denominator for each test item.

    Args:
        record: Results of the run.
        score: Name of the score; None takes the first score that has counts.
        beside: The first run, which has this score.

    Raises:
        RecordError: The score has no counts.
        SettingsError: The config cannot be read.
    """
    name = score or next(iter(record.ratios), "uas")
    if beside is not None and name not in record.ratios:
        shared = [other for other in beside.ratios if other in record.ratios]
        remedy = "Compare runs of the same experiment"
        if shared:
            remedy = f"Give --score {' or '.join(shared)}"
        names = [f"{one.path.parent} has {list_first(list(one.ratios)) or 'none'}" for one in (beside, record)]
        raise RecordError(f"{name} has counts per item in one run alone: {' and '.join(names)}. {remedy}")
    counts = record.counts(name, by_id=True)
    return ScoredRun(record, name, counts, read_config(record))


def read_runs(name: str, score: str | None, beside: Record | None = None) -> list[ScoredRun]:
    """Read the runs that one argument of the command line names, and one score of each run.

    The score is read with its counts: its numerator and denominator for each test item.

    Args:
        name: A run folder or a `results.json`; or `SWEEP_DIR:ROW` for the runs of all seeds in a row of
            a sweep.
        score: Name of the score; None takes the first score of the run that has counts.
        beside: The first run, which has this score.

    Raises:
        RecordError: There is no such run, or it has no counts of the score.
    """
    folder, _, row = name.partition(":")
    if Path(name).exists() or not Path(folder).is_dir():
        if (Path(name) / "runs").is_dir():
            raise RecordError(f"{name} is a sweep. Name a row as {name}:ROW, one of {', '.join(find_runs(Path(name)))}")
        return [_read_run([Path(name)], score, beside)]
    rows = find_runs(Path(folder))
    if row not in rows:
        raise RecordError(f"{folder} has no row {row!r}{near(row, rows)}; there are: {', '.join(rows)}")
    sweep = Path(folder).resolve()
    of_seeds: list[ScoredRun] = []
    for runs in rows[row].values():
        run = replace(_read_run(runs, score, beside), row=(sweep, row))
        of_seeds.append(run)
        score = run.name
    return of_seeds


def _read_run(runs: Sequence[Path], score: str | None, beside: Record | None) -> ScoredRun:
    """Return the first run of a row and seed that has the score, as in the table of the sweep."""
    for run in runs[:-1]:
        with suppress(RecordError):
            return select_score(find_record(run), score, beside)
    try:
        record = find_record(runs[-1])
    except RecordError as error:
        raise RecordError(f"{error}. Give a run folder, a results.json, or SWEEP_DIR:ROW") from None
    return select_score(record, score, beside)


def read_groups(names: Sequence[str], score: str | None, common: bool) -> tuple[list[list[ScoredRun]], list[str]]:
    """Return the runs that a command line names, on the same items, by group of seeds; and warnings.

    Args:
        names: The runs, as on the command line.
        score: Name of the score; None takes the first that has counts.
        common: True to drop items that some run lacks.

    Raises:
        RecordError: The runs cannot be compared.
    """
    runs = read_runs(names[0], score)
    first = runs[0]
    for name in names[1:]:
        runs += read_runs(name, first.name, first.record)
    folders = set[Path]()
    for run in runs:
        if run.folder.resolve() in folders:
            raise RecordError(f"{run.folder} is named twice. Name each run once")
        folders.add(run.folder.resolve())
    groups = group_seeds(runs)
    restricted, cautions = restrict_to_same_items(list(chain.from_iterable(groups)), common)
    cautions += list_cautions(restricted)
    following = iter(restricted)
    restricted_groups = [list(islice(following, len(group))) for group in groups]
    return restricted_groups, cautions


def group_seeds(runs: Sequence[ScoredRun]) -> list[list[ScoredRun]]:
    """Group runs that differ only in their seeds, and return the runs of each group.

    The seeds of a group are different: a second run with the same seed begins a group of its own.
    """
    groups: list[list[ScoredRun]] = []
    for run in runs:
        for group in groups:
            if all(run.is_alike(other) for other in group):
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def restrict_to_same_items(runs: Sequence[ScoredRun], common: bool) -> tuple[list[ScoredRun], list[str]]:
    """Restrict all runs to the same items, in the order of the first run.

    Args:
        runs: The runs.
        common: True to drop items that some run lacks.

    Returns:
        The runs, and a warning for each run that has lost items.

    Raises:
        RecordError: The runs have different items and `common` is False, or they share no item.
    """
    first = runs[0]
    order = first.counts.index
    shared = order
    for run in runs:
        names = run.counts.index
        check_matching(first.record, order, run.record, names)
        missing = order.difference(names)
        added = names.difference(order)
        if len(missing) == len(order):
            raise RecordError(
                f"{first.folder} and {run.folder} have no item in common. Compare runs that were scored on the same "
                "data"
            )
        if len(missing) + len(added) and not common:
            raise RecordError(
                f"{first.folder} and {run.folder} were not scored on the same items: {_describe(missing)} only in the "
                f"former, {_describe(added)} only in the latter, {len(order) - len(missing)} in both; --common "
                "compares them on the items that all runs have"
            )
        shared = shared[shared.isin(names)]
    if not len(shared):
        folders = ", ".join(str(run.folder) for run in runs)
        raise RecordError(f"{folders} have no item in common. Compare runs that were scored on the same data")
    restricted = []
    losses = []
    for run in runs:
        on_shared = replace(run, counts=run.counts.loc[shared])
        restricted.append(on_shared)
        left_out = run.counts.index.difference(shared)
        if len(left_out):
            losses.append(
                f"{run.label or run.folder}: {_describe(left_out)} of {len(run.counts)} items are left out, because "
                f"not all runs have them; its {run.name} is {on_shared.value:.4g} without and {run.value:.4g} with them"
            )
    return restricted, losses


def _describe(items: pd.Index) -> str:
    """Return the number of items, and the names of the first ones."""
    if not len(items):
        return "0"
    return f"{len(items)} ({list_first(list(map(str, items)))})"


def list_cautions(runs: Sequence[ScoredRun]) -> list[str]:
    """Return warnings about runs that cannot be compared fully with the first run, or with other seeds.

    There is a warning for each run that

    - has no config, so that it is not grouped with other seeds;
    - read other files than the first run, or other items of them, for one of the splits;
    - has another denominator of its score than the first run in some items. F1 and the compression of a description
        length are exempt, because their denominators depend on the predictions.
    """
    reference = runs[0]
    messages = []
    for run in runs:
        if run.config is None:
            messages.append(f"{run.folder} has no config.yaml, so it is not grouped with other seeds")
        splits = run.other_data(reference)
        if splits:
            messages.append(
                f"{run.folder} and {reference.folder} read different files, or items of them, for "
                f"{' and '.join(splits)}, so their scores may differ for this reason alone"
            )
        differing = int((run.counts["denominator"] != reference.counts["denominator"]).sum())
        if run.name not in OF_PREDICTIONS and differing:
            expected = ""
            if run.has_shuffled_gold != reference.has_shuffled_gold:
                expected = ", as expected with shuffled gold"
            messages.append(
                f"in {pluralize(differing, 'item')} the denominators of {run.folder} and {reference.folder} differ, so "
                f"the two scores are not over the same words or mentions{expected}"
            )
    return messages


def describe_options(run: ScoredRun, first: ScoredRun) -> str:
    """Return the options of a run that differ from those of the first run, seeds apart, with both values."""
    if run.config is None or first.config is None:
        return ""
    options = settings_without_seeds(run.config)
    options_of_first = settings_without_seeds(first.config)
    differing = []
    for name in {**options, **options_of_first}:
        value = options.get(name)
        value_of_first = options_of_first.get(name)
        # A run with `--twin` and its twin differ in it by name; the numbers that are compared do not.
        if value != value_of_first and name != "twin":
            differing.append(f"{name.replace('.init_args', '')} {value} (not {value_of_first})")
    return list_first(differing)
