"""Comparison of the languages of a sweep: what the source language has learned, and what each language learns itself.

Heads and probe that were chosen or trained on the source language are compared with those of each other language on the
same sentences: paired bootstrap, random swaps of sentences, Holm's correction over the languages. A relation counts in
a language with at least `LEAST` words in test, and a head with at least `FEW` words in the dev split on which it was
chosen. Of several seeds only the first is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from attention_probing.commands.comparison import Side, shared_items
from attention_probing.commands.sweep_languages import AXIS
from attention_probing.commands.sweep_rows import Sweep
from attention_probing.corpora.splits import SPLITS
from attention_probing.metrics.attachment import ALL, PLAIN
from attention_probing.metrics.differences import paired_bootstrap
from attention_probing.metrics.draws import TEST_DRAWS
from attention_probing.metrics.p_values import holm, p_units
from attention_probing.results import Estimate, HeatMap, Provenance, Result, Table, Unit
from attention_probing.results.errors import list_first, pluralize
from attention_probing.results.estimates import FEW
from attention_probing.results.record import NAN, Record, RecordError
from attention_probing.results.sentences import LEVEL, fill_sentence
from attention_probing.results.tables import DASH, format_number

LEAST = 50
"""Least number of words of a relation in test for it to count in a language."""
DEALS = 10_000
"""Draws of the test in `find_shared_heads`, which is one-sided."""
LEAST_P = 2 / (1 + TEST_DRAWS)
"""Smallest possible p of the differences, whose test is two-sided."""
KINDS = OWN, TRANSFERRED, PROBE, TRANSFERRED_PROBE = "own heads", "transferred heads", "own probe", "transferred probe"
"""Second label of the rows that are compared."""

Runs = Mapping[str, Mapping[str, Record]]
"""Finished runs by language and kind."""
Refusals = Mapping[tuple[str, str], Sequence[str]]
"""Scores by which two runs could not be compared, by language and reason."""


@dataclass(frozen=True)
class Languages:
    """Finished runs of the languages of a sweep.

    Attributes:
        source: Name of the source language.
        runs: Result of the first seed, by language and kind, of the rows that are finished. A language without any has
            an entry too.
        test_alone: Languages without rows of their own heads and probe, because they have a test split alone.
    """

    source: str
    runs: Runs
    test_alone: Sequence[str] = ()

    @classmethod
    def from_sweep(cls, sweep: Sweep, records: Mapping[str, Record]) -> "Languages":
        """Take the runs of the rows of a sweep.

        Args:
            sweep: The sweep. Its rows have two labels, the language and the kind.
            records: Results of its finished runs, by key of the run.
        """
        runs: dict[str, dict[str, Record]] = {}
        kinds: dict[str, set[str]] = {}
        for row in sweep.rows:
            language, kind = row.labels
            kinds.setdefault(language, set()).add(kind)
            of_language = runs.setdefault(language, {})
            done = row.done(records)
            if kind in KINDS and done:
                of_first_seed = next(iter(done.values()))
                if _can_be_compared(of_first_seed[-1], kind):
                    of_language[kind] = of_first_seed[-1]
        test_alone = [language for language in kinds if not kinds[language] & {OWN, PROBE}]
        return cls(sweep.source, runs, test_alone)

    def find_own(self, language: str, kind: str) -> Record | None:
        """Return the run that has learned on a language itself, by `OWN` or `PROBE`; None if it is not finished."""
        return self.runs[language].get(kind)

    def find_transferred(self, language: str, kind: str) -> Record | None:
        """Return the run that has learned on the source and is scored on a language; None if it is not finished.

        Args:
            language: The language; for the source, it is the own run.
            kind: `OWN` or `PROBE`.
        """
        if language == self.source:
            return self.find_own(language, kind)
        of_source = TRANSFERRED if kind == OWN else TRANSFERRED_PROBE
        return self.runs[language].get(of_source)


def _can_be_compared(run: Record, kind: str) -> bool:
    """Return True if a run has what is compared: the row of another plan may have the same name."""
    if kind in (OWN, TRANSFERRED):
        return "best_heads" in run.tables
    return {"uas", "right_branching.uas", "left_branching.uas"} <= run.scores.keys()


def compare_transfer(own: Record | None, transferred: Record | None, score: str) -> dict[str, float]:
    """Return `difference`, transferred − own, with `.low` and `.high`, and `p`, paired by sentence or document.

    All are nan if a run is missing, or if both are one run, of the source.

    Raises:
        RecordError: The runs were not scored on the same items, or a run has no counts by which they could be matched.
    """
    if own is None or transferred is None or own is transferred:
        return dict(_NOT_COMPARED)
    side_of_own = Side.from_records(score, [own])
    side = Side.from_records(score, [transferred])
    items = shared_items([side_of_own, side])
    alone_in_own = len(side_of_own.counts[0]) - len(items)
    alone_in_transferred = len(side.counts[0]) - len(items)
    if alone_in_own or alone_in_transferred:
        raise RecordError(
            f"{own.path.parent} and {transferred.path.parent} were not scored on the same items: {alone_in_own} only "
            f"in the former, {alone_in_transferred} only in the latter, {len(items)} in both. If the test file has "
            "changed since, remove the folder of the older run, and give the command again"
        )
    [counts_of_own] = side_of_own.on(items).counts
    [counts] = side.on(items).counts
    estimate = paired_bootstrap(
        counts["numerator"],
        counts["denominator"],
        counts_of_own["numerator"],
        counts_of_own["denominator"],
        share=side_of_own.is_share and side.is_share,
        units=counts_of_own["unit"],
    )
    columns = replace(estimate, p=None).columns("difference")
    columns["p"] = NAN if estimate.p is None else estimate.p
    return columns


_DIFFERENCE = ("difference", "difference.low", "difference.high", "p")
_NOT_COMPARED = dict.fromkeys(_DIFFERENCE, NAN)


def compare_heads(languages: Languages) -> tuple[pd.DataFrame, Refusals]:
    """Return the best head of each language and relation, that of the source, and their difference on test.

    A relation has a row if it counts in the language and one of the two heads was chosen on enough words of dev.

    Returns:
        The relations by which two runs could not be compared, by language and reason, after a table with these columns:

        - `language`, `relation`, `n`;
        - `head`, `direction`, `dev`, `test`, `low`, `high`, `offset`, and `over_offset` with its interval, of the own
          head;
        - `source_head` and `transferred`, the accuracy of the head of the source;
        - `difference` with its interval, `p` and `p_holm`.
    """
    rows: list[dict[str, Any]] = []
    refusals: dict[tuple[str, str], list[str]] = {}
    for language in languages.runs:
        own = languages.find_own(language, OWN)
        transferred = languages.find_transferred(language, OWN)
        heads = _rows_of_heads(own)
        heads_of_source = _rows_of_heads(transferred)
        for relation in {**heads, **heads_of_source}:
            head = heads.get(relation)
            head_of_source = heads_of_source.get(relation)
            row = {"language": language, "relation": relation, **_describe_head(head, head_of_source)}
            row |= _NOT_COMPARED
            if head is not None and head_of_source is not None:
                try:
                    row |= compare_transfer(own, transferred, f"heads.{relation}")
                except RecordError as error:
                    refusals.setdefault((language, str(error)), []).append(relation)
            rows.append(row)
    frame = pd.DataFrame(rows, columns=_COLUMNS_OF_HEADS)
    frame = frame.astype(dict.fromkeys(("head", "direction", "source_head"), object))  # also without any head
    frame["p_holm"] = frame.groupby("relation", sort=False)["p"].transform(lambda p: holm(p.tolist()))
    return frame, refusals


_OF_OWN = ("head", "direction", "dev", "test", "low", "high", "offset")
_OVER_OFFSET = ("over_offset", "over_offset.low", "over_offset.high")
_COLUMNS_OF_HEADS = ["language", "relation", "n", *_OF_OWN, *_OVER_OFFSET, "source_head", "transferred", *_DIFFERENCE]


def _records_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table by name of column."""
    return frame.rename(columns=str).to_dict("records")  # type: ignore[return-value]


def _rows_of_heads(run: Record | None) -> dict[str, Mapping[str, Any]]:
    """Return the rows of the best heads of a run, by relation, that count and whose head was chosen on enough words."""
    if run is None:
        return {}
    rows: dict[str, Mapping[str, Any]] = {}
    for row in _records_of(run.table("best_heads")):
        if row["relation"] != PLAIN and row["n"] >= LEAST and row["n_dev"] >= FEW:
            rows[str(row["relation"])] = row
    return rows


def _describe_head(own: Mapping[str, Any] | None, transferred: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the columns of the own head and of that of the source."""
    row: dict[str, Any] = {}
    if own is not None:
        for name in ("n", *_OF_OWN, *_OVER_OFFSET):
            row[name] = own[name]
    if transferred is not None:
        row["n"] = transferred["n"]
        row["source_head"] = transferred["head"]
        row["transferred"] = transferred["test"]
    return row


def find_shared_heads(best: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Return for each relation the heads that most languages choose, if it is more than one, their number, and p.

    Null hypothesis: languages have the same good heads, but not for the same relations. Each draw deals the chosen
    heads of each language out anew among its relations; p is the share of draws, the observed choice among them, in
    which as many languages have one head for the relation. Holm's correction is over the relations. `source_worse` and
    `source_better` count the languages in which the head of the source differs with p < .05 after Holm's correction.

    Args:
        best: Table of `compare_heads`.
        seed: Seed of the draws.
    """
    best = best[(best["relation"] != ALL) & best["head"].notna()]
    names = (best["head"] + " " + best["direction"]).astype("category")
    codes = best.assign(code=names.cat.codes).pivot(index="language", columns="relation", values="code")
    deals = _deal_heads(codes.to_numpy(np.float64), np.random.default_rng(seed))
    # [draws, languages, relations]: number of languages with the head that this language has; nan equals nothing
    alike = (deals[:, :, None] == deals[:, None]).sum(2)
    most = alike.max(1)
    heads: list[str | None] = []
    for (_, column), count in zip(codes.items(), most[0], strict=True):
        numbers = column.value_counts().sort_index()
        chosen = names.cat.categories[numbers.index[numbers == numbers.max()].astype(int)]
        heads.append(", ".join(chosen) if count > 1 else None)
    sign = np.sign(best["difference"]).where(best["p_holm"] < LEVEL)
    frame = pd.DataFrame({"relation": codes.columns, "head": heads})
    frame["languages"] = codes.notna().sum().to_numpy()
    frame["on_one_head"] = most[0]
    frame["p"] = (most >= most[0]).mean(0)
    frame["source_worse"] = frame["relation"].map((sign < 0).groupby(best["relation"]).sum())
    frame["source_better"] = frame["relation"].map((sign > 0).groupby(best["relation"]).sum())
    frame = frame.set_index("relation").loc[best["relation"].unique()].reset_index()
    return frame.assign(p_holm=holm(frame["p"].tolist()))


def _deal_heads(codes: Any, rng: np.random.Generator) -> Any:  # noqa: ANN401 # arrays
    """Return the chosen heads and `DEALS` deals of them, `[1 + draws, languages, relations]`; nan for no head."""
    deals = np.full((1 + DEALS, *codes.shape), np.nan)
    for language, row in enumerate(codes):
        chosen = ~np.isnan(row)
        deals[0, language, chosen] = row[chosen]
        deals[1:, language, chosen] = rng.permuted(np.tile(row[chosen], (DEALS, 1)), axis=1)
    return deals


def compare_probes(languages: Languages) -> tuple[pd.DataFrame, Refusals]:
    """Return UAS of the probe of each language, of both branchings, and of the probe of the source on its test.

    A language without a finished probe of either kind has no row.

    Returns:
        The table, and the score by which two runs could not be compared, by language and reason.
    """
    rows: list[dict[str, Any]] = []
    refusals: dict[tuple[str, str], list[str]] = {}
    for language in languages.runs:
        own = languages.find_own(language, PROBE)
        transferred = languages.find_transferred(language, PROBE)
        scored = own or transferred
        if scored is None:
            continue
        row: dict[str, Any] = {"language": language}
        uas = Estimate(NAN, NAN, NAN, unit="fraction")
        if own is not None:
            row["sentences"] = int(own.data["train"]["sentences"])
            uas = own.scores["uas"]
        row |= replace(uas, sd=None, p=None).columns("uas")
        row["right"] = scored.scores["right_branching.uas"].value
        row["left"] = scored.scores["left_branching.uas"].value
        row["transferred"] = NAN if transferred is None else transferred.scores["uas"].value
        try:
            row |= compare_transfer(own, transferred, "uas")
        except RecordError as error:
            row |= _NOT_COMPARED
            refusals[language, str(error)] = ["uas"]
        rows.append(row)
    frame = pd.DataFrame(rows, columns=_COLUMNS_OF_PROBES)
    frame["sentences"] = frame["sentences"].astype("Int64")
    return frame.assign(p_holm=holm(frame["p"].tolist())), refusals


_COLUMNS_OF_PROBES = [
    *("language", "sentences", "uas", "uas.low", "uas.high", "right", "left", "transferred"),
    *_DIFFERENCE,
]


def compare_languages(languages: Languages) -> tuple[Result, Provenance] | None:
    """Return the tables of heads and probes of the languages, and the map of what the best head gains over offsets.

    Returns:
        The result and its provenance; None if neither heads nor a probe of any language are finished. The tables are

        - `probes` (`compare_probes`) and `shared` (`find_shared_heads`);
        - `own`: head and accuracy by relation and language, with ↑ if it is above the best offset with its whole
          interval;
        - `transfer`: accuracy of the head of the source minus that of the own head, in points, with ↑ or ↓ for p < .05
          after Holm's correction. In a language without an own head, or whose runs cannot be compared, the accuracy
          itself stands in parentheses, in the source the head;
        - `heads` (`compare_heads`), with all numbers.

        The audit has `blank`, sentences for each language with blank cells or without a comparison, and `warnings`, on
        languages with the same files.
    """
    best, refusals_of_heads = compare_heads(languages)
    of_probes, refusals_of_probes = compare_probes(languages)
    if best.empty and of_probes.empty:
        return None
    tables = {}
    figures = {}
    answers = []
    if not of_probes.empty:
        shares: tuple[str, ...] = ("uas", "right", "left", "transferred", "difference")
        main = ("language", "uas", "right", "left", "transferred", "difference", "p_holm")
        tables["probes"] = _make_table(of_probes, shares, LEAST_P, main)
        answers.append(_answer_of_probes(of_probes, languages.source))
    own = best[best["head"].notna()]
    if (own["relation"] != ALL).any():
        shared = find_shared_heads(best)
        main_of_shared = ("relation", "head", "languages", "on_one_head", "p_holm", "source_worse", "source_better")
        tables["shared"] = _make_table(shared, (), 1 / (1 + DEALS), main_of_shared)
        answers.append(_answer_of_shared(shared))
    if not own.empty:
        tables["own"] = _make_wide(own, _format_own(own))
        figures["gain"] = _draw_gain(own)
    if not best.empty:
        of_source = best[best["source_head"].notna()]
        tables["transfer"] = _make_wide(of_source, _format_transfer(of_source, languages.source))
        shares = ("dev", "test", "offset", "over_offset", "transferred", "difference")
        tables["heads"] = _make_table(best, shares, LEAST_P)
        answers.append(_answer_of_heads(best, languages.source))
    parts = [part for part in answers if part]
    answer = ""
    if parts:
        answer = fill_sentence("; ".join(parts), {})
    blank = describe_blanks(languages)
    blank += _describe_refusals(refusals_of_heads, languages.source, "head")
    blank += _describe_refusals(refusals_of_probes, languages.source, "probe")
    audit = {"blank": blank, "warnings": _find_same_files(languages)}
    result = Result("transfer", {}, tables, figures, audit=audit, answer=answer)
    record = next(run for runs in languages.runs.values() for run in runs.values())
    return result, Provenance(record.encoder, {}, {})


def _make_table(frame: pd.DataFrame, shares: Sequence[str], least: float, main: Sequence[str] = ()) -> Table:
    """Return a table with p-values, of which `least` is the smallest possible one."""
    units: dict[str, Unit | Sequence[Unit]] = dict.fromkeys(shares, "fraction")
    units["p"] = p_units(frame["p"], least)
    units["p_holm"] = units["p"]
    return Table(frame, units, "test" if "test" in frame else None, main)


def widen(best: pd.DataFrame, cells: "pd.Series[Any]") -> pd.DataFrame:
    """Return the cells, one for each row of `compare_heads`, with a row a relation and a column a language."""
    wide = best.assign(cell=cells).pivot(index="relation", columns="language", values="cell")
    return wide.reindex(index=best["relation"].unique(), columns=best["language"].unique())


def _make_wide(best: pd.DataFrame, cells: "pd.Series[Any]") -> Table:
    frame = widen(best, cells).fillna(DASH).reset_index()
    return Table(frame, main=list(frame.columns))


def _format_own(best: pd.DataFrame) -> "pd.Series[Any]":
    """Return `8-5 62.7↑` for each own head, with the arrow if it is above the best offset with its whole interval."""
    cells = []
    for head, test, low in zip(best["head"], best["test"], best["over_offset.low"], strict=True):
        arrow = "↑" if low > 0 else ""
        cells.append(f"{head} {_format_points(test)}{arrow}")
    return pd.Series(cells, index=best.index, dtype=object)


def _format_transfer(best: pd.DataFrame, source: str) -> "pd.Series[Any]":
    """Return `-20.8↓` for the difference of each head of the source, `(41.3)` for its accuracy, and its name."""
    cells = []
    for row in _records_of(best):
        cell = f"({_format_points(row['transferred'])})"
        if row["language"] == source:
            cell = row["source_head"]
        elif not np.isnan(row["difference"]):
            cell = _format_points(row["difference"])
            if row["p_holm"] < LEVEL:
                cell += "↓" if row["difference"] < 0 else "↑"
        cells.append(cell)
    return pd.Series(cells, index=best.index, dtype=object)


def _format_points(share: float) -> str:
    return format_number(share, "fraction", missing=DASH)


def _draw_gain(best: pd.DataFrame) -> HeatMap:
    gains = widen(best, best["over_offset"])
    return HeatMap(
        "Best head of each relation: accuracy above that of the best offset",
        gains.to_numpy(np.float64),
        [str(relation) for relation in gains.index],
        [str(language) for language in gains.columns],
        "relation",
        AXIS,
        "above the best offset",
        diverging=True,
        unit="fraction",
    )


def _answer_of_probes(frame: pd.DataFrame, source: str) -> str:
    """Return how many points the probe of the source loses in the other languages; empty without another language."""
    tested = frame[frame["p"].notna()].sort_values("difference")
    if tested.empty:
        return ""
    worse = int(((tested["p_holm"] < LEVEL) & (tested["difference"] < 0)).sum())
    ends = []
    for place in (0, -1):
        row = tested.iloc[place]
        ends.append(f"{_format_points(row['difference'])} ({row['language']})")
    differences = ends[0] if len(tested) == 1 else " to ".join(ends)
    return (
        f"the UAS of the probe of {source} minus that of the own one is {differences} points, and it is worse in "
        f"{worse} of {pluralize(len(tested), 'language')} (p < .05 after Holm)"
    )


def _answer_of_heads(best: pd.DataFrame, source: str) -> str:
    """Return in how many cells the head of the source is worse or better than the own one; empty without any."""
    tested = best[best["p"].notna() & (best["relation"] != ALL)]
    if tested.empty:
        return ""
    clear = tested[tested["p_holm"] < LEVEL]
    worse = int((clear["difference"] < 0).sum())
    better = int((clear["difference"] > 0).sum())
    return (
        f"the head of {source} for a relation is worse than the own one in {worse} of "
        f"{pluralize(len(tested), 'cell')}, and better "
        f"in {better} (p < .05 after Holm over the languages, by relation)"
    )


def _answer_of_shared(shared: pd.DataFrame) -> str:
    """Return the relation with one head in most languages; empty if no two languages share one."""
    first = shared.sort_values(["on_one_head", "p"], ascending=[False, True], kind="stable").iloc[0]
    if first["on_one_head"] < 2:
        return ""
    head = str(first["head"]).partition(",")[0].partition(" ")[0]
    return (
        f"most languages share a head for {first['relation']}: {head} in {first['on_one_head']} of {first['languages']}"
    )


def describe_blanks(languages: Languages) -> list[str]:
    """Return sentences on blank cells: languages without own heads, rare relations, heads chosen on few words.

    A relation counts with at least `LEAST` words in test, and a head with at least `FEW` words in the dev split on
    which it was chosen.
    """
    sentences = []
    for language in languages.test_alone:
        sentences.append(f"{language} has a test split alone, so it has no own heads and no own probe.")
    numbers = _count_words(languages)
    relations: dict[str, None] = {}  # those of any language, in the order of the tables
    for of_language in numbers.values():
        relations |= dict.fromkeys(of_language)
    for language, of_language in numbers.items():
        reasons = []
        for relation in relations:
            in_test, in_dev = of_language.get(relation, (0, 0))
            if in_test < LEAST:
                reasons.append(f"{relation} ({in_test or 'none'})")
            elif in_dev < FEW:
                reasons.append(f"{relation} ({in_dev or 'none'} in dev)")
        if reasons:
            few = f"relations with fewer than {LEAST} words in test, or {FEW} in dev, are blank"
            sentences.append(f"{language}: {few}: {', '.join(reasons)}.")
    not_transferred = _describe_rare_in_source(languages)
    if not_transferred:
        sentences.append(not_transferred)
    return sentences


def _count_words(languages: Languages) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the numbers of words in test and in dev of each relation, by language with own heads."""
    numbers: dict[str, dict[str, tuple[int, int]]] = {}
    for language in languages.runs:
        own = languages.find_own(language, OWN)
        if own is None:
            continue
        numbers[language] = {}
        for row in _records_of(own.table("best_heads")):
            in_test = int(row["n"])
            in_dev = int(row["n_dev"]) if in_test else 0  # the row of a relation that test does not have is blank
            numbers[language][str(row["relation"])] = (in_test, in_dev)
    return numbers


def _describe_rare_in_source(languages: Languages) -> str:
    """Return a sentence on relations of other languages whose head was chosen on too few words of the source."""
    rare: dict[str, int] = {}  # words in dev of the source, by relation
    for language in languages.runs:
        transferred = languages.find_transferred(language, OWN)
        if transferred is None or language == languages.source:
            continue
        for row in _records_of(transferred.table("best_heads")):
            if row["n"] >= LEAST and row["n_dev"] < FEW:
                rare[str(row["relation"])] = int(row["n_dev"])
    if not rare:
        return ""
    reasons = ", ".join(f"{relation} ({number or 'none'})" for relation, number in rare.items())
    return (
        f"{languages.source}: the heads of relations with fewer than {FEW} words in its dev split are not transferred: "
        f"{reasons}."
    )


def _describe_refusals(refusals: Refusals, source: str, learned: str) -> list[str]:
    """Return a sentence for each language whose `learned`, head or probe, is not compared with that of the source."""
    sentences = []
    for (language, reason), scores in refusals.items():
        by = list_first(scores)
        sentences.append(f"{language}: the {learned} of {source} is not compared with the own one by {by}: {reason}.")
    return sentences


def _find_same_files(languages: Languages) -> list[str]:
    """Return a warning for each group of languages with the same file, by its SHA-256, as train, dev or test."""
    groups: dict[tuple[str, str], dict[str, None]] = {}  # languages, by split and SHA-256
    for language, runs in languages.runs.items():
        for kind, run in runs.items():
            for split, description in run.splits:
                is_of_source = kind in (TRANSFERRED, TRANSFERRED_PROBE) and split != "test"
                sha256 = description.get("sha256")
                if sha256 and split in SPLITS and not is_of_source:
                    groups.setdefault((split, str(sha256)), {})[language] = None
    splits: dict[tuple[str, ...], list[str]] = {}  # by languages
    for (split, _), names in groups.items():
        if len(names) > 1:
            splits.setdefault(tuple(names), []).append(split)
    warnings = []
    for same, of_same in splits.items():
        files = ", ".join(split for split in SPLITS if split in of_same)
        warnings.append(
            f"{', '.join(same)} have the same file as {files}, but count as {len(same)} languages. Leave all but one "
            "out, or correct the paths"
        )
    return warnings
