"""How often the tests of this application find what is there, and what is not: on models whose answers are known."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from datamodules import AttentionBatch
from heads.arc_evaluation import DependencyExperiment
from metrics.bootstrap import share_interval
from results import Estimate, Result, Table, Unit
from results.errors import UserError, check_numbers, near
from results.progress import LOGGER as PROGRESS
from results.progress import Progress
from studies.known_cases import CASES, Case, Trial, promised
from training import alone, gathered, kept_file, kept_tensors, quiet, recorded_gradients

_LEAST = 5  # effects of each kind for an AUC
COLUMNS = {"power": ("low", "high"), "false_positive": ("false_positive.low", "false_positive.high")}
OF_ROW = ["experiment", "test", "model", "truth"]


class KnownAnswers(DependencyExperiment):
    """Experiment that runs the tests of this application on models with planted heads, and on null models.

    The *power* of a test is the share of its verdicts that find what is there, its *false-positive rate* the share
    that find something where nothing is. Each seed draws a model of every kind, a treebank and reviews from the
    sample grammar. Intervals are over seeds, as several verdicts of one model are not independent.

    The processes of a distributed run divide the seeds among them.

    Args:
        seeds: Number of seeds of an experiment, by its name; others keep their own. 0 leaves it out.
    """

    experiment = "known_answers"
    reads = frozenset()  # the models are made here

    def __init__(self, seeds: dict[str, int] | None = None) -> None:
        super().__init__()
        if strange := [name for name in seeds or {} if name not in CASES]:
            raise UserError(
                f"--model.init_args.seeds: there is no experiment {strange[0]!r}{near(strange[0], CASES)}; the "
                f"experiments are {', '.join(CASES)}."
            )
        check_numbers(self, least=0, **{f"seeds.{name}": number for name, number in (seeds or {}).items()})
        self.numbers = {name: own for name, (_, own) in CASES.items()} | (seeds or {})
        if not any(self.numbers.values()):
            raise UserError("--model.init_args.seeds leaves every experiment out. Give one of them at least 1.")

    def update(self, batch: AttentionBatch) -> None:
        """Ignore the batch: every seed has corpora of its own."""

    def outcome(self) -> Result:
        ranks, own = self.data.ranks, list[tuple[int, Trial]]()
        seeds = range(ranks.rank, max(self.numbers.values()), ranks.world)
        progress = Progress("Models with known answers", len(seeds))
        with TemporaryDirectory() as folder:
            for seed in seeds:
                kept, _ = kept_tensors(
                    kept_file(self.trainer, f"answers-{seed}.pt"),
                    lambda seed=seed: {"trials": [tuple(one) for one in self._trials(seed, Path(folder))]},  # type: ignore[misc]
                )
                own += [(seed, Trial(*one)) for one in kept["trials"]]
                progress.advance()
        trials = pd.DataFrame([(seed, *trial) for seed, trial in gathered(own)], columns=["seed", *Trial._fields])
        table, separated = rates(trials), separation(trials)
        scores = {"right": right(trials)}
        scores |= {f"{name}.auc": Estimate(value, unit="fraction") for name, value in separated.items()}
        audit = {"seeds": self.numbers, "verdicts": len(trials)}
        return Result(self.experiment, scores, {"known_answers": table}, audit=audit, headline=tuple(scores))

    def _trials(self, seed: int, folder: Path) -> list[Trial]:
        # The progress of the seeds is logged, and not that of every store.
        with TemporaryDirectory(dir=folder) as own, alone(), quiet(), quiet(PROGRESS), recorded_gradients():
            case = Case(seed, Path(own), folder / "stores")
            found = [
                trial for name, (trials, _) in CASES.items() if seed < self.numbers[name] for trial in trials(case)
            ]
        # Plain values: what is kept is read again as data.
        return [
            one._replace(positive=bool(one.positive), found=bool(one.found), effect=float(one.effect)) for one in found
        ]


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
    for row, own in trials.groupby(OF_ROW, sort=False):
        by_seed = own.groupby("seed")["found"].agg(["sum", "size"])
        share = share_interval(by_seed["sum"].to_numpy(), by_seed["size"].to_numpy())
        kind = "power" if own["positive"].iloc[0] else "false_positive"
        line = dict(zip(OF_ROW, row, strict=True))
        for name, ends in COLUMNS.items():
            known = share if name == kind else (np.nan,) * 3
            line |= dict(zip((name, *ends), known, strict=True))
        lines.append(line | {"promised": promised(str(line["test"])), "verdicts": len(own), "seeds": len(by_seed)})
    units: dict[str, Unit] = dict.fromkeys(("power", "false_positive", "promised"), "fraction")
    return Table(pd.DataFrame(lines), units, "power", ("experiment", "test", "truth", "power", "false_positive"))


def separation(trials: pd.DataFrame) -> dict[str, float]:
    """Return the AUC with which the effects of each test separate positive from negative verdicts.

    Args:
        trials: The columns of `Trial`.

    Returns:
        The AUC by `<experiment>.<test>`, with `_` for spaces, of tests with at least five effects of each kind.
    """
    known = trials[trials["effect"].notna()]
    return {
        ".".join(map(str, name)).replace(" ", "_"): float(roc_auc_score(own["positive"], own["effect"]))
        for name, own in known.groupby(["experiment", "test"], sort=False)
        if min(own["positive"].sum(), (~own["positive"]).sum()) >= _LEAST
    }
