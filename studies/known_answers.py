"""Power and false-positive rates of the tests of this application, on models whose answers are known."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from attention_probing.datamodules import AttentionBatch, DependencyDataModule
from attention_probing.datamodules.dependency import read_fields
from attention_probing.measures.contract import Measure
from attention_probing.metrics.shares import share_interval
from attention_probing.models import recorded_gradients
from attention_probing.results import Estimate, Result, Table, Unit, fill_sentence
from attention_probing.results.errors import UserError, near, setting
from attention_probing.results.options import NonNegative, Positive, checked
from attention_probing.results.progress import Progress, quiet
from studies.known_cases import CASES, Case, Trial, promised

_LEAST = 5  # effects of each kind for an AUC
COLUMNS = {"power": ("low", "high"), "false_positive": ("false_positive.low", "false_positive.high")}
OF_ROW = ["experiment", "test", "model", "truth"]


class KnownAnswers(Measure[DependencyDataModule]):
    """Verdicts of the tests of this application on models with planted heads, and on null models.

    The *power* of a test is the share of its verdicts that find what is there, its *false-positive rate* the share
    that find something where nothing is. Each seed draws a model of every kind, a treebank and reviews from the
    sample grammar. Intervals are over seeds, as several verdicts of one model are not independent.

    Args:
        seeds: Number of seeds of an experiment, by its name; others keep their own. 0 leaves it out.
        processes: Number of processes that divide the seeds among them.
    """

    experiment = "known_answers"
    takes = DependencyDataModule

    @checked
    def __init__(self, seeds: dict[str, NonNegative] | None = None, processes: Positive = 1) -> None:
        super().__init__()
        self.numbers: dict[str, int] = {}
        for name, (_, number) in CASES.items():
            self.numbers[name] = number
        for name, number in (seeds or {}).items():
            if name not in CASES:
                raise UserError(
                    f"{setting('model.seeds')}: there is no experiment {name!r}{near(name, CASES)}; the experiments "
                    f"are {', '.join(CASES)}."
                )
            self.numbers[name] = number
        self.processes = processes
        if not any(self.numbers.values()):
            raise UserError(f"{setting('model.seeds')} leaves every experiment out. Give one of them at least 1.")

    def begin(self) -> None:
        read_fields(self.data, (), type(self).__name__)  # the models are made here

    def update(self, batch: AttentionBatch) -> None:
        """Ignore the batch: every seed has corpora of its own."""

    def result(self) -> Result:
        trials = self._trials()
        scores = {"right": right(trials)}
        for name, area in separation(trials).items():
            scores[f"{name}.auc"] = Estimate(area, unit="fraction")
        return Result(
            self.experiment,
            scores,
            {"known_answers": rates(trials)},
            audit={"seeds": self.numbers, "verdicts": len(trials)},
            headline=tuple(scores),
            answer=fill_sentence("{right} of {n} verdicts are right", scores, n=len(trials)),
        )

    def _trials(self) -> pd.DataFrame:
        """Return the verdicts of all seeds, with the columns of `Trial` and `seed`, sorted by seed."""
        wanted: dict[int, list[str]] = {}
        for seed in range(max(self.numbers.values())):
            wanted[seed] = [name for name, number in self.numbers.items() if seed < number]
        progress = Progress("Models with known answers", len(wanted))
        by_seed: dict[int, list[Trial]] = {}
        with TemporaryDirectory() as folder, recorded_gradients():
            for seed, trials in self._over_processes(wanted, Path(folder)):
                by_seed[seed] = trials
                progress.advance()
        rows = []
        for seed in wanted:
            for trial in by_seed[seed]:
                rows.append((seed, *trial))
        return pd.DataFrame(rows, columns=["seed", *Trial._fields])

    def _over_processes(self, wanted: Mapping[int, list[str]], folder: Path) -> Iterator[tuple[int, list[Trial]]]:
        """Yield each seed with its verdicts, as they are finished; `wanted` has the experiments of each seed."""
        if self.processes == 1:
            for seed, names in wanted.items():
                yield seed, trials_of(seed, names, folder)
            return
        with ProcessPoolExecutor(self.processes, get_context("spawn")) as pool:
            seed_of = {}
            for seed, names in wanted.items():
                future = pool.submit(trials_of, seed, names, folder)
                seed_of[future] = seed
            for future in as_completed(seed_of):
                yield seed_of[future], future.result()


def trials_of(seed: int, names: Sequence[str], folder: Path) -> list[Trial]:
    """Return the verdicts of some experiments on the models and corpora of one seed.

    Args:
        seed: The seed.
        names: Names of the experiments.
        folder: Folder for the corpora of the seed, and for stores.
    """
    # The progress of the seeds is logged, and not that of every store.
    with TemporaryDirectory(dir=folder) as folder_of_seed, quiet(progress=True):
        case = Case(seed, Path(folder_of_seed), folder / "stores")
        trials: list[Trial] = []
        for name in names:
            experiment, _ = CASES[name]
            trials += experiment(case)
        return trials


def right(trials: pd.DataFrame) -> Estimate:
    """Return the share of verdicts that are right, with its interval over seeds (`share_interval`).

    Args:
        trials: The columns of `Trial`, and `seed`.
    """
    by_seed = (trials["found"] == trials["positive"]).groupby(trials["seed"]).agg(["sum", "size"])
    return Estimate(*share_interval(by_seed["sum"].to_numpy(), by_seed["size"].to_numpy()), unit="fraction")


def rates(trials: pd.DataFrame) -> Table:
    """Return the power and the false-positive rate of every test, with 95 % intervals over seeds.

    The intervals are those of `share_interval`.

    Args:
        trials: The columns of `Trial`, and `seed`.

    Returns:
        Table with a row for each experiment, test, model and truth, and these columns:

        - `power`, `low`, `high`: share of verdicts that find what is there; nan if there is nothing to find;
        - `false_positive` with its interval: share of verdicts that find something; nan if there is something;
        - `promised`: false-positive rate that the test promises; nan if it promises none;
        - `verdicts`, `seeds`: number of verdicts, and of seeds.
    """
    lines = []
    for row, verdicts in trials.groupby(OF_ROW, sort=False):
        by_seed = verdicts.groupby("seed")["found"].agg(["sum", "size"])
        share = share_interval(by_seed["sum"].to_numpy(), by_seed["size"].to_numpy())
        kind = "power" if verdicts["positive"].iloc[0] else "false_positive"
        line: dict[str, Any] = dict(zip(OF_ROW, row, strict=True))
        for name, ends in COLUMNS.items():
            value_and_ends = share if name == kind else (np.nan, np.nan, np.nan)
            line.update(zip((name, *ends), value_and_ends, strict=True))
        line["promised"] = promised(str(line["test"]))
        line["verdicts"] = len(verdicts)
        line["seeds"] = len(by_seed)
        lines.append(line)
    units: dict[str, Unit] = dict.fromkeys(("power", "false_positive", "promised"), "fraction")
    return Table(pd.DataFrame(lines), units, "power", ("experiment", "test", "truth", "power", "false_positive"))


def separation(trials: pd.DataFrame) -> dict[str, float]:
    """Return the AUC with which the effects of each test separate positive from negative verdicts.

    Args:
        trials: The columns of `Trial`.

    Returns:
        The AUC by `<experiment>.<test>`, with `_` for spaces, of tests with at least five effects of each kind.
    """
    ranked = trials[trials["effect"].notna()]
    areas = {}
    for (experiment, test), verdicts in ranked.groupby(["experiment", "test"], sort=False):
        is_positive = verdicts["positive"]
        if min(is_positive.sum(), (~is_positive).sum()) < _LEAST:
            continue
        name = f"{experiment}.{test}".replace(" ", "_")
        areas[name] = float(roc_auc_score(is_positive, verdicts["effect"]))
    return areas
