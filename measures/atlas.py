"""One table with all numbers of each attention head: attention, predictions, and a comparison with random weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
import pandas as pd
from lightning_utilities.core.rank_zero import rank_zero_warn
from numpy.typing import NDArray
from torch import nn

from attention_probing.datamodules import CoreferenceDataModule, DependencyDataModule, TextDataModule
from attention_probing.datamodules.atlas import TREEBANK, AtlasDataModule
from attention_probing.datamodules.batches import EncoderOf
from attention_probing.measures.antecedents import AntecedentHeads
from attention_probing.measures.attention_analyses import AttentionAnalyses
from attention_probing.measures.by_head import HeadNumbers, class_map, head_rows, without_interval
from attention_probing.measures.contract import Measure
from attention_probing.measures.head_roles import MARGIN
from attention_probing.measures.single_heads import SingleHeads
from attention_probing.measures.surface_statistics import BEHAVIOURS
from attention_probing.metrics.moments import Means
from attention_probing.results import (
    Estimate,
    Figure,
    Finding,
    Floats,
    Result,
    Table,
    Unit,
    fill_sentence,
    merge_results,
)
from attention_probing.results.errors import setting
from attention_probing.results.heads import head_name

ANNOTATED = ("linguistic", "relations")
"""Analyses that read the treebank."""
REPEATS = 0.4
"""Share of the second copy's attention above which a head is an induction or a duplicate-token head; from no paper."""

HeadRow = Mapping[str, Any]


def _above(column: str, threshold: float) -> Callable[[HeadRow], bool]:
    return lambda row: bool(row.get(column, np.nan) > threshold)


def _is_syntactic(row: HeadRow) -> bool:
    """Return True 10 points above the best fixed offset on dev (Voita et al. 2019, §5), and surely above it on test."""
    return bool(row.get("syntactic") and row["relation_accuracy.low"] > row["fixed_offset"])


def _is_coreference(row: HeadRow) -> bool:
    """Return True with the same margin above the nearest mention, and surely above it."""
    accuracy = row.get("antecedent", np.nan)
    nearest = row.get("nearest_mention", np.nan)
    return bool(accuracy >= nearest + MARGIN and row["antecedent.low"] > nearest)


def _attends_to_start(row: HeadRow) -> bool:
    """Return True for attention to the start delimiter, or to the first token where there is none."""
    to_delimiter = _above(*BEHAVIOURS["start delimiter"])
    to_first_token = _above(*BEHAVIOURS["first token"])
    return to_delimiter(row) or to_first_token(row)


def _is_broad(row: HeadRow) -> bool:
    return bool(row.get("entropy", np.nan) > row.get("broad_from", np.nan))


ROLES: Mapping[str, tuple[str, Callable[[HeadRow], bool]]] = {
    "syntactic": ("S", _is_syntactic),
    "coreference": ("C", _is_coreference),
    "induction": ("I", _above("induction", REPEATS)),
    "duplicate": ("D", _above("duplicate", REPEATS)),
    "previous": ("←", _above(*BEHAVIOURS["previous token"])),
    "next": ("→", _above(*BEHAVIOURS["next token"])),
    "start": ("[", _attends_to_start),
    "end": ("]", _above(*BEHAVIOURS["end delimiters"])),
    "punctuation": (".", _above(*BEHAVIOURS["punctuation"])),
    "broad": ("b", _is_broad),
}
"""The roles with their letters in the figure and their conditions; the first that fits is the head's main role."""
NO_ROLE = "–"

_MAIN = ("layer", "head", "role", "roles")

_ENCODERS: Mapping[EncoderOf, str] = {
    "given": "",
    "before": ", before fine-tuning",
    "random_init": ", untrained layers",
}
"""Ends of the titles of figures."""


def roles_of(row: HeadRow) -> list[str]:
    """Return the names of all roles that an attention head has, in the order of `ROLES`; empty if none.

    Args:
        row: Numbers and classes of the head by name, such as a row of the table `atlas`.
    """
    return [role for role, (_, fits) in ROLES.items() if fits(row)]


@dataclass(frozen=True, eq=False)
class HeadSummary:
    """Statistics of all attention heads of one encoder, from which the table `atlas` is made.

    Attributes:
        numbers: Numerical statistics by name, such as the entropy; each is `[layers, heads]` with
            intervals.
        classes: Categorical statistics by name, such as the pattern; each is a list with one entry for
            each head, layer by layer.
    """

    numbers: Mapping[str, HeadNumbers]
    classes: Mapping[str, Sequence[Any]]

    def estimates(self, half: int | None = None) -> dict[str, Estimate[Floats]]:
        """Return the numbers of the heads with their intervals, `[layers, heads]` by name.

        `half` has no effect on numbers that come from arcs of the treebank or from documents.

        Args:
            half: 0 for the half of the inputs with an even index, 1 for the half with an odd index; None
                for all inputs.
        """
        groups = slice(None) if half is None else slice(half, None, 2)
        estimates = {}
        for name, number in self.numbers.items():
            estimates[name] = number.over(groups) if isinstance(number, Means) else number
        return estimates

    def rows(self, half: int | None = None) -> pd.DataFrame:
        """Return a table with a row for each attention head, layer by layer.

        The columns are:

        - `layer` and `head`, from 1;
        - `role`, the main role, which is the first of `ROLES` that the head has; `–` if it has none;
        - `roles`, all roles of the head, joined by spaces;
        - one column for each entry of `classes`;
        - one column for each entry of `numbers`, followed by the ends of its interval, `<name>.low` and
            `<name>.high`.

        Args:
            half: 0 for the half of the inputs with an even index, 1 for the half with an odd index; None
                for all inputs.
        """
        frame = head_rows(self.estimates(half))
        for name, column in self.classes.items():
            frame.insert(2, name, list(column))
        main_roles = []
        all_roles = []
        for row in frame.to_dict("records"):
            roles = roles_of(row)  # type: ignore[arg-type]
            main_roles.append(roles[0] if roles else NO_ROLE)
            all_roles.append(" ".join(roles))
        frame.insert(2, "role", main_roles)
        frame.insert(3, "roles", all_roles)
        return frame


def outside(
    given: Mapping[str, Estimate[Floats]], random: Mapping[str, Estimate[Floats]]
) -> dict[str, NDArray[np.bool_]]:
    """Find the heads whose interval lies outside the range of all heads with random weights.

    The range goes from the lowest lower end to the highest upper end of the intervals of the random heads.

    Args:
        given: Numbers of the given encoder, `[layers, heads]` by name.
        random: Numbers of the encoder with random weights, `[layers, heads]` by name.

    Returns:
        For each number a mask of such heads, bool `[layers, heads]`; numbers without intervals are left
        out.
    """
    masks = {}
    for name, number in given.items():
        if name not in random:
            continue
        low, high = number.interval
        lowest, highest = _range(random[name])
        if not (np.isnan(low).all() or np.isnan(lowest)):
            masks[name] = (low > highest) | (high < lowest)
    return masks


def _range(random: Estimate[Floats]) -> tuple[float, float]:
    """Return the lowest and the highest end of the intervals of all heads."""
    low, high = random.interval
    return float(np.fmin.reduce(low, axis=None)), float(np.fmax.reduce(high, axis=None))


def control_table(given: HeadSummary, random: HeadSummary) -> Table:
    """Compare each number of the heads with that of the heads of an encoder with random weights.

    Args:
        given: Heads of the given encoder.
        random: Heads of the encoder with random weights.

    Returns:
        Table with a row for each number that has intervals in both encoders, and these columns:

        - `statistic`: name of the number;
        - `mean`, `random_mean`: its mean over all heads of the given and of the random encoder;
        - `random_low`, `random_high`: lowest and highest end of the intervals of all random heads;
        - `heads`, `share`: number and share of the given heads with an interval outside this range;
        - `outside`: names of these heads, separated by spaces.
    """
    numbers = given.estimates()
    random_numbers = random.estimates()
    rows = []
    units = []
    for name, heads in outside(numbers, random_numbers).items():
        low, high = _range(random_numbers[name])
        names = [head_name(*place) for place in np.argwhere(heads).tolist()]
        units.append(numbers[name].unit)
        rows.append(
            {
                "statistic": name,
                "mean": pd.Series(numbers[name].value.ravel()).mean(),
                "random_mean": pd.Series(random_numbers[name].value.ravel()).mean(),
                "random_low": low,
                "random_high": high,
                "heads": int(heads.sum()),
                "share": float(heads.mean()),
                "outside": " ".join(names),
            }
        )
    columns = ("mean", "random_mean", "random_low", "random_high")
    return Table(pd.DataFrame(rows), {**dict.fromkeys(columns, units), "share": "fraction"})


def stability_table(summary: HeadSummary) -> tuple[Table, dict[str, Estimate]]:
    """Compare each statistic of the heads between two halves of the inputs.

    One half is the inputs with even index, the other the inputs with odd index.

    Args:
        summary: Statistics and roles of the heads of one encoder.

    Returns:
        The table `stability`, and the score `stability.role`. The table has a row for each statistic
        that is computed for halves, and three columns:

        - `statistic`: name of the statistic;
        - `correlation`: Pearson's correlation of the two halves over heads; nan if a half has one value
            for all heads;
        - `difference`: mean over heads of the absolute difference of the halves.

        The score is the share of heads with the same main role in both halves. The roles `syntactic` and
        `coreference` are always the same in both, because arcs and documents are not halved.
    """
    rows = []
    units: list[Unit] = []
    for name, number in summary.numbers.items():
        if not isinstance(number, Means):
            continue
        even = number.over(slice(0, None, 2))
        odd = number.over(slice(1, None, 2))
        halves = pd.DataFrame({"even": even.value.ravel(), "odd": odd.value.ravel()}).dropna()
        correlation = np.nan
        if (halves.nunique() > 1).all():
            correlation = float(np.corrcoef(halves["even"], halves["odd"])[0, 1])
        difference = (halves["even"] - halves["odd"]).abs().mean()
        rows.append({"statistic": name, "correlation": correlation, "difference": difference})
        units.append(even.unit)
    frame = pd.DataFrame(rows, columns=["statistic", "correlation", "difference"])
    is_same = summary.rows(0)["role"] == summary.rows(1)["role"]
    share = Estimate(float(is_same.mean()), unit="fraction")
    return Table(frame, {"correlation": "fraction", "difference": units}), {"stability.role": share}


def of_dependencies(result: Result, prefix: str, shape: tuple[int, int]) -> HeadSummary:
    """Read what `SingleHeads` found for each head, from its table `roles`.

    Args:
        result: Result of `SingleHeads`.
        prefix: Beginning of the names of the encoder's tables in the result: empty for the given
            encoder, or for instance `random_init.`.
        shape: Number of layers, and number of heads of each layer.

    Returns:
        Numbers and classes of each head. The relation of a head is the one for which its accuracy on dev
        is furthest above the accuracy of the best fixed offset.

        - `relation`, `direction`: this relation, and the direction of attention that finds it.
        - `syntactic`: True if the accuracy on dev is at least 10 points above the offset's.
        - `relation_accuracy`: accuracy of the head on this relation, with its interval.
        - `fixed_offset`: accuracy of the best fixed offset on this relation.
        - `confidence`: mean over words of the largest attention weight in a word's row.
        - `offset`: the offset to which the head attends most often.
        - `offset_share`: share of the words from which the head attends to this offset.

        Both accuracies are those in the split that `SingleHeads` scores.
    """
    table = result.tables[f"{prefix}roles"].frame

    def number(column: str) -> Floats:
        return table[column].to_numpy(np.float64).reshape(shape)

    accuracy = Estimate(number("accuracy"), number("low"), number("high"), unit="fraction")
    numbers: dict[str, HeadNumbers] = {"relation_accuracy": accuracy}
    for name in ("fixed_offset", "confidence", "offset_share"):
        numbers[name] = without_interval(number(name), "fraction")
    classes = {name: table[name].tolist() for name in ("relation", "direction", "syntactic", "offset")}
    return HeadSummary(numbers, classes)


def of_antecedents(result: Result, prefix: str, shape: tuple[int, int]) -> HeadSummary:
    """Read the antecedent selection accuracy of each head from a result of `AntecedentHeads`.

    Args:
        result: Result of `AntecedentHeads`.
        prefix: Beginning of the names of the encoder's tables in the result: empty for the given
            encoder, or for instance `random_init.`.
        shape: Number of layers, and number of heads of each layer.

    Returns:
        Two numbers for each head, both over all mentions: its accuracy (`antecedent`), on test, or on
        dev if there is no test; and the accuracy of the baseline that predicts the nearest mention
        (`nearest_mention`). A head is scored in the direction, to or from the antecedent, that is better
        on dev.
    """
    table = result.tables[f"{prefix}heads"].frame
    table = table[table["mentions"] == "all"]
    split = "test" if table["test"].notna().any() else "dev"
    best = table.loc[table.groupby("head", sort=False)["dev"].idxmax()]

    def number(column: str) -> Floats:
        return best[column].to_numpy(np.float64).reshape(shape)

    accuracy = Estimate(number(split), number("low"), number("high"), unit="fraction")
    nearest = without_interval(np.full(shape, result.numbers["nearest.all"]), "fraction")
    return HeadSummary({"antecedent": accuracy, "nearest_mention": nearest}, {})


class Atlas(Measure[AtlasDataModule]):
    """Description of each attention head in one row of a table, `atlas`.

    The row has surface statistics, pattern, cluster, roles, the relation that the head finds best, and
    its accuracy on antecedents. It runs the given analyses, `SingleHeads` on the treebank,
    and `AntecedentHeads` on the documents; without a treebank or documents it leaves these out. Further
    tables describe the heads of an encoder with random weights, compare the two encoders, and give the
    stability of each number over two halves of the texts.

    Args:
        analyses: Analyses of attention. `Linguistic` and `Relations` read the treebank, and are left out
            without one; the others read the texts.
    """

    experiment = "atlas"
    takes = AtlasDataModule

    def __init__(self, analyses: list[Measure]) -> None:  # type: ignore[type-arg]
        super().__init__()
        self.seed = 0  # of resamples, as in its parts
        self._analyses = analyses
        self.parts = nn.ModuleList()

    def begin(self) -> None:
        """Prepare the analyses, and the measurements on treebank and documents if the data have them."""
        data_of: dict[type, Any] = {type(data): data for data in self.data.parts}
        self.texts: TextDataModule = data_of[TextDataModule]
        self.attention = self._make_analyses()
        parts: list[Measure[Any]] = [self.attention]
        if DependencyDataModule in data_of:
            heads = SingleHeads()
            # Its p-values and ensembles are left out; see `_keep_single_heads`.
            heads.permutations = 1
            heads.ensemble = 1
            parts.append(heads)
        if CoreferenceDataModule in data_of:
            parts.append(AntecedentHeads())
        for part in parts:
            part.data = data_of[part.takes]
            part.device = self.device
            part.ranks = self.ranks
            part.seed = self.seed
            part.begin()
        self.parts = nn.ModuleList(parts)

    def _make_analyses(self) -> AttentionAnalyses:
        """Return the analyses, each with the corpora that it reads; without a treebank some are left out."""
        analyses: list[Measure[Any]] = []
        corpora: dict[str, list[str]] = {}
        for analysis in self._analyses:
            name = analysis.experiment
            reads_treebank = name in ANNOTATED
            names = [corpus for corpus in self.texts.names if (corpus == TREEBANK) == reads_treebank]
            if names:
                analyses.append(analysis)
                corpora[name] = names
            else:
                remedy = f"To include it, give one with {setting('data.treebank')}."
                rank_zero_warn(f"The atlas omits {name}, which needs a treebank. {remedy}")
        return AttentionAnalyses(analyses, corpora)

    def update(self, batch: object) -> None:
        """Give a batch to the part that reads its kind."""
        for part in self._measures():
            if isinstance(batch, part.takes.batch):
                part.update(batch)

    def result(self) -> Result:
        attention = self.attention.result()
        results_of_parts: dict[str, Result] = {}
        for part in self._measures():
            if part is not self.attention:
                result = part.result()  # every process asks all of them
                if result is not None:
                    results_of_parts[part.experiment] = result
        summaries = {encoder: self._summary(encoder, results_of_parts) for encoder in self.texts.encoders}
        atlas = atlas_of(summaries)
        results = {"atlas": atlas, "attention": attention}
        for name, result in results_of_parts.items():
            results[name] = _keep_single_heads(result)
        merged = merge_results(self.experiment, results)
        tables = dict(merged.tables)
        for name in tables.keys() - atlas.tables.keys():
            tables[name] = replace(tables[name], main=())
        return replace(merged, tables=tables, headline=atlas.headline, answer=atlas.answer)

    def _measures(self) -> Iterator[Measure[Any]]:
        yield from self.parts  # type: ignore[misc]

    def _summary(self, encoder: EncoderOf, results: Mapping[str, Result]) -> HeadSummary:
        """Join the numbers and classes of the heads of an encoder, from the analyses and the results of other parts."""
        numbers, classes = self.attention.of_heads(encoder)
        model = self.texts.encoders[encoder]
        shape = (model.layers, model.heads)
        prefix = "" if encoder == "given" else f"{encoder}."
        for name, summarise in (("heads", of_dependencies), ("antecedent", of_antecedents)):
            if name in results:
                summary = summarise(results[name], prefix, shape)
                numbers |= summary.numbers
                classes |= summary.classes
        return HeadSummary(numbers, classes)


def _keep_single_heads(result: Result) -> Result:
    """Keep the scores of a measurement, and its tables of single heads."""
    tables = {}
    for name, table in result.tables.items():
        if name.split(".")[-1] in ("heads", "roles"):
            tables[name] = table
    return replace(result, figures={}, tables=tables)


def atlas_of(summaries: Mapping[EncoderOf, HeadSummary]) -> Result:
    """Return tables, maps of the roles, and scores: the share of heads with each main role.

    The tables are:

    - `atlas` for the given encoder, and `<encoder>.atlas` for each other one, with a row for each
        head;
    - `stability`, which compares two halves of the inputs; see `stability_table`, whose score is
        added;
    - `control`, only with an encoder with random weights; see `control_table`.

    With an encoder with random weights, `atlas` also has the column `outside_random`: the names of the
    numbers in which a head lies outside the range of the random heads, by the function `outside`.

    Args:
        summaries: Numbers and classes of the attention heads, by encoder; `given` must be among them.
    """
    scores: dict[str, Estimate] = {}
    tables: dict[str, Table] = {}
    figures: dict[str, Figure] = {}
    given = summaries["given"]
    random = summaries.get("random_init")
    for encoder, summary in summaries.items():
        prefix = "" if encoder == "given" else f"{encoder}."
        frame = summary.rows()
        if encoder == "given" and random is not None:
            frame["outside_random"] = _names_outside(given, random)
        units = {name: number.unit for name, number in summary.estimates().items()}
        tables[f"{prefix}atlas"] = Table(frame, units, main=_MAIN if encoder == "given" else ())
        figures[f"{prefix}roles"] = _role_map(frame, f"Roles of heads{_ENCODERS[encoder]}")
        for role in (*ROLES, NO_ROLE):
            share = float((frame["role"] == role).mean())
            name = "none" if role == NO_ROLE else role
            scores[f"{prefix}role.{name}"] = Estimate(share, unit="fraction")
    headline = [name for name in scores if name.startswith("role.")]
    tables["stability"], same_roles = stability_table(given)
    scores |= same_roles
    if random is not None:
        tables["control"] = control_table(given, random)
    answer = _atlas_answer(scores, len(tables["atlas"].frame))
    finding = Finding("role.none", "heads without a role")
    return Result("atlas", scores, tables, figures, headline=headline, answer=answer, finding=finding)


def _names_outside(given: HeadSummary, random: HeadSummary) -> list[str]:
    """Return for each head, layer by layer, the names of the numbers in which no random head comes near it."""
    masks = outside(given.estimates(), random.estimates())
    is_outside = np.stack([mask.ravel() for mask in masks.values()], 1)  # [heads, numbers]
    names_of_heads = []
    for flags in is_outside:
        names_of_heads.append(" ".join(compress(masks, flags)))
    return names_of_heads


def _role_map(frame: pd.DataFrame, title: str) -> Figure:
    """Return the map of the main role of each head."""
    cells: list[list[str | None]] = []
    for _, rows in frame.groupby("layer"):
        cells.append([None if role == NO_ROLE else role for role in rows["role"]])
    glyphs = {role: glyph for role, (glyph, _) in ROLES.items()}
    return class_map(title, cells, glyphs)


def _atlas_answer(scores: Mapping[str, Estimate], heads: int) -> str:
    """Return the answer: the shares of the three most frequent roles, and of heads without a role."""
    shares = [(scores[f"role.{role}"].value, role) for role in ROLES]
    parts = []
    for share, role in sorted(shares, reverse=True)[:3]:
        if share:
            parts.append(f"{{role.{role}}} have the role {role}")
    parts.append("{role.none} have no role")
    clauses = [f"of {heads} heads {', '.join(parts)}"]
    if "random_init.role.none" in scores:
        clauses.append("{random_init.role.none} have none with untrained layers")
    clauses.append("{stability.role} have the same role in both halves of the texts")
    return fill_sentence("; ".join(clauses), scores)
