"""What is known of each head, in one table: how it looks, what it predicts, and which of it random weights share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_warn

from analysis.base import Analysis, HeadNumbers, without_interval
from analysis.experiment import AttentionAnalyses
from analysis.surface import BEHAVIOURS
from analysis.tables import head_rows, name_of
from datamodules import CoreferenceDataModule, DependencyDataModule, TextDataModule
from datamodules.atlas import TREEBANK
from datamodules.batches import EncoderOf
from datamodules.corpus import part_of
from heads import AntecedentHeads, SingleHeads
from heads.single_heads import MARGIN
from metrics.moments import Means
from results import Estimate, Figure, Floats, HeatMap, Result, Table, Unit, merged
from results.errors import check_numbers
from training.experiment import CompositeExperiment

ANNOTATED = ("linguistic", "relations")
"""Analyses that read the treebank."""
REPEATS = 0.4
"""Share of attention on repeated tokens from which a head is an induction or a duplicate-token head; our choice."""

Row = Mapping[str, Any]


def _above(column: str, threshold: float) -> Callable[[Row], bool]:
    return lambda row: bool(row.get(column, np.nan) > threshold)


ROLES: Mapping[str, tuple[str, Callable[[Row], bool]]] = {
    # On dev 10 points better than the best fixed offset (Voita et al. 2019, §5), and better on test beyond chance.
    "syntactic": ("S", lambda row: bool(row.get("syntactic")) and row["relation_accuracy.low"] > row["fixed_offset"]),
    # As much better than the nearest mention, and better beyond chance.
    "coreference": (
        "C",
        lambda row: (
            row.get("antecedent", np.nan) >= row.get("nearest_mention", np.nan) + MARGIN
            and row["antecedent.low"] > row["nearest_mention"]
        ),
    ),
    "induction": ("I", _above("induction", REPEATS)),
    "duplicate": ("D", _above("duplicate", REPEATS)),
    "previous": ("←", _above(*BEHAVIOURS["previous token"])),
    "next": ("→", _above(*BEHAVIOURS["next token"])),
    "start": ("[", _above(*BEHAVIOURS["start delimiter"])),
    "end": ("]", _above(*BEHAVIOURS["end delimiters"])),
    "punctuation": (".", _above(*BEHAVIOURS["punctuation"])),
    "broad": ("b", lambda row: bool(row.get("entropy", np.nan) > row.get("broad_from", np.nan))),
}
"""The roles in the order in which the first that fits is a head's own, each with its letter in the figure."""
NO_ROLE = "–"

_ANSWER = ("layer", "head", "role", "roles")

_ENCODERS: Mapping[EncoderOf, str] = {"given": "", "before": "before fine-tuning", "random_init": "random weights"}


def roles_of(row: Row) -> list[str]:
    """The roles of a head, of a row of the atlas."""
    return [role for role, (_, fits) in ROLES.items() if fits(row)]


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of the heads of one encoder: numbers with intervals, and classes, layer by layer."""

    numbers: Mapping[str, HeadNumbers]
    classes: Mapping[str, Sequence[Any]]

    def rows(self, half: int | None = None) -> pd.DataFrame:
        """A row for each head; with the numbers of one half of the inputs, where they were taken apart.

        Numbers without halves, those of the treebank's arcs and of the documents, are of all inputs in either half.
        """
        frame = head_rows(self.estimates(half))
        for name, column in self.classes.items():
            frame.insert(2, name, list(column))
        found = [roles_of(row) for row in frame.to_dict("records")]  # type: ignore[arg-type]
        frame.insert(2, "role", [roles[0] if roles else NO_ROLE for roles in found])
        frame.insert(3, "roles", [" ".join(roles) for roles in found])
        return frame

    def estimates(self, half: int | None = None) -> dict[str, Estimate[Floats]]:
        """Return the numbers of all inputs, or of one half of them where they can be taken apart."""
        groups = slice(None) if half is None else slice(half, None, 2)
        return {name: one.over(groups) if isinstance(one, Means) else one for name, one in self.numbers.items()}

    @property
    def units(self) -> dict[str, Unit]:
        """Units of the numbers."""
        return {name: one.unit for name, one in self.estimates().items()}


def outside(
    given: Mapping[str, Estimate[Floats]], random: Mapping[str, Estimate[Floats]]
) -> dict[str, NDArray[np.bool_]]:
    """Heads whose interval lies wholly outside what all heads of random weights span, by number, `[layers, heads]`.

    What they span is from the lowest to the highest end of all their intervals. Numbers without intervals are left out.
    """
    found = {}
    for name in given.keys() & random.keys():
        (low, high), span = given[name].interval, _span(random[name])
        if not (np.isnan(low).all() or np.isnan(span).any()):
            found[name] = (low > span[1]) | (high < span[0])
    return {name: found[name] for name in given if name in found}


def control_table(given: Known, random: Known) -> Table:
    """How each number differs from random weights.

    Columns: `statistic, unit, mean, random_mean, random_low, random_high, heads, share, outside`: the means over heads;
    what the random heads span; and how many heads lie `outside` of it, by name.
    """
    own, others, rows = given.estimates(), random.estimates(), []
    apart = outside(own, others)
    for name, flags in apart.items():
        low, high = _span(others[name])
        rows.append(
            {
                "statistic": name,
                "mean": _mean(own[name].value),
                "random_mean": _mean(others[name].value),
                "random_low": low,
                "random_high": high,
                "heads": int(flags.sum()),
                "share": float(flags.mean()),
                "outside": " ".join(name_of(*place) for place in np.argwhere(flags).tolist()),
            }
        )
    units = [own[name].unit for name in apart]
    columns = ("mean", "random_mean", "random_low", "random_high")
    return Table(pd.DataFrame(rows), {**dict.fromkeys(columns, units), "share": "fraction"})


def _span(estimate: Estimate[Floats]) -> tuple[float, float]:
    """Return the lowest and the highest end of all intervals."""
    low, high = estimate.interval
    return float(np.fmin.reduce(low, axis=None)), float(np.fmax.reduce(high, axis=None))


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def stability_table(known: Known) -> tuple[Table, dict[str, Estimate]]:
    """How alike the numbers of the heads are in two halves of the inputs.

    Returns:
        `statistic, correlation, difference`: Pearson's correlation over heads, and the mean |difference|; and the score
        `stability.role`, the share of heads whose role is the same in both halves. The roles `syntactic` and
        `coreference` are always the same in both: arcs and documents are not halved.
    """
    rows, units = [], list[Unit]()
    for name, one in known.numbers.items():
        if not isinstance(one, Means):
            continue
        halves = [one.over(slice(half, None, 2)) for half in (0, 1)]
        first, second = (half.value.ravel() for half in halves)
        sound = np.isfinite(first) & np.isfinite(second)
        varies = sound.any() and np.ptp(first[sound]) > 0 and np.ptp(second[sound]) > 0
        correlation = float(np.corrcoef(first[sound], second[sound])[0, 1]) if varies else float("nan")
        apart = float(np.abs(first - second)[sound].mean()) if sound.any() else float("nan")
        rows.append({"statistic": name, "correlation": correlation, "difference": apart})
        units.append(halves[0].unit)
    frame = pd.DataFrame(rows, columns=["statistic", "correlation", "difference"])
    roles = [known.rows(half)["role"] for half in (0, 1)]
    same = Estimate(float((roles[0] == roles[1]).mean()), unit="fraction")
    return Table(frame, {"correlation": "fraction", "difference": units}), {"stability.role": same}


def of_dependencies(result: Result, prefix: str, shape: tuple[int, int]) -> Known:
    """What `SingleHeads` knows of each head: its own relation, its confidence, and the offset that it looks at."""
    table = result.tables[f"{prefix}roles"].frame

    def number(column: str) -> Floats:
        return table[column].to_numpy(np.float64).reshape(shape)

    accuracy = Estimate(number("accuracy"), number("low"), number("high"), unit="fraction")
    others = ("fixed_offset", "confidence", "offset_share")
    numbers: dict[str, HeadNumbers] = {"relation_accuracy": accuracy}
    numbers |= {name: without_interval(number(name), "fraction") for name in others}
    names = {"relation": "relation", "direction": "direction", "syntactic": "syntactic", "offset": "offset"}
    return Known(numbers, {name: table[column].tolist() for name, column in names.items()})


def of_antecedents(result: Result, prefix: str, shape: tuple[int, int]) -> Known:
    """What `AntecedentHeads` knows of each head: its accuracy in the direction that is better on dev."""
    table = result.tables[f"{prefix}heads"].frame
    table = table[table["mentions"] == "all"]
    own = "test" if table["test"].notna().any() else "dev"
    best = table.loc[table.groupby("head", sort=False)["dev"].idxmax()]
    value, low, high = (best[name].to_numpy(np.float64).reshape(shape) for name in (own, "low", "high"))
    nearest = np.full(shape, result.numbers["nearest.all"])
    numbers = {
        "antecedent": Estimate(value, low, high, unit="fraction"),
        "nearest_mention": without_interval(nearest, "fraction"),
    }
    return Known(numbers, {})


class Atlas(CompositeExperiment[TextDataModule]):
    """One table with a row for each head: surface, pattern, cluster, roles, its own relation, antecedents.

    Beside the analyses it runs `SingleHeads` on the treebank and `AntecedentHeads` on the documents, where the data
    have them. The same table is made of random weights, with a table of what differs, and one of how stable each number
    is over two halves of the texts. Run it with `python train.py test`.

    Args:
        analyses: what is analysed. `Linguistic` and `Relations` read the treebank, and are left out without one; the
            others read the texts.
        minimum: words of a relation on dev that make it count for the role of a head.
        seed: of intervals.
    """

    experiment = "atlas"
    takes = TextDataModule

    def __init__(self, analyses: list[Analysis], minimum: int = 50, seed: int = 0) -> None:
        super().__init__(seed=seed)
        check_numbers(self, least=1, minimum=minimum)
        self.minimum = minimum
        self.attention = AttentionAnalyses(analyses)

    def prepare(self) -> None:
        """Add the experiments whose data there are."""
        if self.parts:
            return
        names = self.data.names
        texts = [name for name in names if name != TREEBANK]
        corpora = {name: [TREEBANK] if name in ANNOTATED else texts for name in self.attention.names}
        for name in [name for name in corpora if name in ANNOTATED and TREEBANK not in names]:
            del corpora[name]
            rank_zero_warn(f"{name} is left out of the atlas, as it reads the treebank, and there is none.")
        self.attention.restrict(corpora)
        self.add(self.attention)
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if part_of(data, DependencyDataModule) is not None:
            # Tables with p-values and ensembles are left out; see `_of_each_head`.
            self.add(SingleHeads(permutations=1, ensemble=1, minimum=self.minimum, seed=self.seed))
        if part_of(data, CoreferenceDataModule) is not None:
            self.add(AntecedentHeads(seed=self.seed))
        super().prepare()

    def outcome(self) -> Result:
        found = {name: result for name, result in self.results().items() if result is not None}
        attention = found.pop(self.attention.experiment)
        known = {encoder: self._known(encoder, found) for encoder in self.data.encoders}
        plain = {name: _of_each_head(result) for name, result in found.items()}
        whole = merged(self.experiment, {"atlas": (own := atlas_of(known)), "attention": attention} | plain)
        others = {name: replace(table, answer=()) for name, table in whole.tables.items() if name not in own.tables}
        return replace(whole, tables={**whole.tables, **others}, headline=own.headline)

    def _known(self, encoder: EncoderOf, results: Mapping[str, Result]) -> Known:
        numbers, classes = self.attention.of_heads(encoder)
        shape = self.data.encoders[encoder].layers, self.data.encoders[encoder].heads
        prefix = "" if encoder == "given" else f"{encoder}."
        for name, read in (("heads", of_dependencies), ("antecedent", of_antecedents)):
            if name in results:
                found = read(results[name], prefix, shape)
                numbers |= found.numbers
                classes |= found.classes
        return Known(numbers, classes)


def _of_each_head(result: Result) -> Result:
    """The scores of an experiment, and its tables of single heads; the rest is for its own config."""
    tables = {name: table for name, table in result.tables.items() if name.split(".")[-1] in ("heads", "roles")}
    return replace(result, figures={}, tables=tables)


def atlas_of(known: Mapping[EncoderOf, Known]) -> Result:
    """The tables `atlas`, `stability`, and where there are random weights `random_init.atlas` and `control`."""
    scores, tables, figures = dict[str, Estimate](), dict[str, Table](), dict[str, Figure]()
    given, random = known["given"], known.get("random_init")
    for encoder, one in known.items():
        prefix = "" if encoder == "given" else f"{encoder}."
        frame = one.rows()
        if encoder == "given" and random is not None:
            flags = outside(given.estimates(), random.estimates())
            frame["outside_random"] = [
                " ".join(name for name, of in flags.items() if of.ravel()[row]) for row in range(len(frame))
            ]
        tables[f"{prefix}atlas"] = Table(frame, one.units, answer=_ANSWER if encoder == "given" else ())
        figures[f"{prefix}roles"] = role_figure(frame, _ENCODERS[encoder])
        for role in (*ROLES, NO_ROLE):
            share = float((frame["role"] == role).mean())
            scores[f"{prefix}role.{'none' if role == NO_ROLE else role}"] = Estimate(share, unit="fraction")
    tables["stability"], same = stability_table(given)
    if random is not None:
        tables["control"] = control_table(given, random)
    headline = [name for name in scores if name.startswith("role.")]
    return Result("atlas", scores | same, tables, figures, headline=headline)


def role_figure(atlas: pd.DataFrame, of: str) -> HeatMap:
    """The role of each head, of a table `atlas`; heads without one are left empty."""
    grid = atlas.pivot(index="layer", columns="head", values="role")
    return HeatMap.from_categories(
        title="Roles of heads" + (f", {of}" if of else ""),
        cells=[[None if role == NO_ROLE else role for role in row] for row in grid.to_numpy().tolist()],
        glyphs={role: glyph for role, (glyph, _) in ROLES.items()},
        row_labels=[str(layer) for layer in grid.index],
        column_labels=[str(head) for head in grid.columns],
        row_label="layer",
        column_label="head",
    )
