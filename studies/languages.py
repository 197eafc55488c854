"""Comparison of the languages of a finished sweep: `python -m studies.languages RUNS`.

RUNS is the folder of the sweep `configs/languages.yaml`. Heads and probe that were chosen or trained on English are
compared with those of each other language on the same sentences: paired bootstrap, random swaps of sentences, Holm's
correction over the languages. A relation counts in a language with at least `LEAST` words in test. Of several seeds
only the first is read.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attention_probing.measures import SingleHeads
from attention_probing.metrics.attachment import ALL, PLAIN
from attention_probing.metrics.differences import paired_bootstrap
from attention_probing.metrics.draws import TEST_DRAWS
from attention_probing.metrics.p_values import holm, p_units
from attention_probing.results import HeatMap, Provenance, Result, Table, Unit, UserError, command
from attention_probing.results.reader import find_runs
from attention_probing.results.record import Record, find_record
from attention_probing.results.tables import DASH, format_cells, format_markdown
from attention_probing.results.writer import write

LEAST, DEALS, ALPHA = 50, 10_000, 0.05
KINDS = OWN, ENGLISH, PROBE, ENGLISH_PROBE = "own heads", "English heads", "own probe", "English probe"
Runs = Mapping[str, Mapping[str, Record]]


def read_runs(folder: Path) -> Runs:
    """Return the runs of the languages whose heads or probes are finished, by language and kind; of the first seed.

    Raises:
        UserError: English is not finished.
    """
    found: dict[str, dict[str, Record]] = {}
    for row, runs in find_runs(folder).items():
        language, _, kind = row.partition(" × ")
        found.setdefault(language, {})[kind] = find_record(next(iter(runs.values()))[-1])
    if not {*KINDS} <= found.get("English", {}).keys():
        remedy = "Give the command of the sweep again: `probing sweep languages`"
        raise UserError(f"{folder}: not all runs of English are finished, with which others are compared. {remedy}")
    return found


def with_both(runs: Runs, own: str, english: str) -> Iterator[tuple[str, Mapping[str, Record]]]:
    """Yield the languages, with their runs, that have finished runs of two kinds."""
    yield from ((language, kinds) for language, kinds in runs.items() if {own, english} <= kinds.keys())


def transferred(own: Record, english: Record, score: str) -> dict[str, float]:
    """Return `difference`, English − own, with `.low` and `.high`, and `p`; all paired by sentence or document."""
    sides = [run.counts(score, by_id=True) for run in (english, own)]
    items = sides[1].index
    counts = [side.loc[items][name] for side in sides for name in ("numerator", "denominator")]
    share = all(score in run.shares for run in (english, own))
    found = paired_bootstrap(*counts, share=share, units=sides[1]["unit"])
    p = np.nan if own is english or found.p is None else found.p
    return {**replace(found, p=None).columns("difference"), "p": p}


def best_heads(runs: Runs) -> pd.DataFrame:
    """Return the best head of each language and relation, that of English, and their difference on test."""
    parts = []
    for language, kinds in with_both(runs, OWN, ENGLISH):
        own, english = (kinds[kind].table("best_heads") for kind in (OWN, ENGLISH))
        of_english = english[["relation", "head", "test"]].set_axis(["relation", "english_head", "english"], axis=1)
        frame = own.merge(of_english, on="relation", how="left", validate="1:1").assign(language=language)
        # A head is chosen where dev has the relation.
        frame = frame[(frame["n"] >= LEAST) & (frame["relation"] != PLAIN) & frame["head"].notna()].reset_index(
            drop=True
        )
        other = kinds[ENGLISH if language != "English" else OWN]
        there = zip(frame["relation"], frame["english_head"].notna(), strict=True)
        found = [transferred(kinds[OWN], other, f"heads.{relation}") if known else {} for relation, known in there]
        parts.append(frame.join(pd.DataFrame(found)))
    frame = pd.concat(parts, ignore_index=True)
    frame["p_holm"] = frame.groupby("relation", sort=False)["p"].transform(lambda p: holm(p.tolist()))
    return frame


def shared_heads(best: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Return for each relation the heads that most languages choose, if it is more than one, their number, and p.

    Null hypothesis: languages have the same good heads, but not for the same relations. Each draw deals the chosen
    heads of each language out anew among its relations; p is the share of draws, the observed choice among them, in
    which as many languages have one head for the relation. Holm's correction is over the relations.
    """
    best = best[best["relation"] != ALL]
    names = (best["head"] + " " + best["direction"]).astype("category")
    codes = best.assign(code=names.cat.codes).pivot(index="language", columns="relation", values="code")
    rng, deals = np.random.default_rng(seed), np.full((1 + DEALS, *codes.shape), np.nan)
    for language, row in enumerate(codes.to_numpy()):
        there = ~np.isnan(row)
        deals[0, language, there] = row[there]
        deals[1:, language, there] = rng.permuted(np.tile(row[there], (DEALS, 1)), axis=1)
    # [draws, languages, relations]: number of languages with the head that this language has; nan equals nothing
    alike = (deals[:, :, None] == deals[:, None]).sum(2)
    most = alike.max(1)
    chosen = [column.value_counts().sort_index() for _, column in codes.items()]
    heads = [", ".join(names.cat.categories[[*map(int, one.index[one == one.max()])]]) for one in chosen]
    changed = np.sign(best["difference"]).where(best["p_holm"] < ALPHA).groupby(best["relation"])
    found = {
        "head": [head if count > 1 else None for head, count in zip(heads, most[0], strict=True)],
        "languages": codes.notna().sum(),
        "on_one_head": most[0],
        "p": (most >= most[0]).mean(0),
        "english_worse": changed.agg(lambda sign: int((sign < 0).sum())),
        "english_better": changed.agg(lambda sign: int((sign > 0).sum())),
    }
    frame = pd.DataFrame(found, index=codes.columns).loc[best["relation"].unique()].reset_index()
    return frame.assign(p_holm=holm(frame["p"].tolist()))


def probes(runs: Runs) -> pd.DataFrame:
    """Return UAS of the probe of each language, of both branchings, and of the probe of English on its test."""
    rows = dict[str, dict[str, object]]()
    for language, kinds in with_both(runs, PROBE, ENGLISH_PROBE):
        own, other = kinds[PROBE], kinds[ENGLISH_PROBE if language != "English" else PROBE]
        rows[language] = {
            "language": language,
            "sentences": int(own.data["train"]["sentences"]),
            **own.scores["uas"].columns("uas"),
            "right": own.scores["right_branching.uas"].value,
            "left": own.scores["left_branching.uas"].value,
            "english": other.scores["uas"].value,
            **transferred(own, other, "uas"),
        }
    frame = pd.DataFrame(rows.values())
    return frame.assign(p_holm=holm(frame["p"].tolist()))


def result(runs: Runs) -> Result:
    """Return the three tables, and the map of what the best head gains over the best offset."""
    best, of_probes = best_heads(runs), probes(runs)
    gains = _wide(best, best["over_offset"])
    title, label = "Best head of each relation: accuracy above that of the best offset", "above the best offset"
    values, axes = gains.to_numpy(np.float64), ("relation", "language", label)
    relations, languages = (list(map(str, axis)) for axis in gains.axes)
    figure = HeatMap(title, values, relations, languages, *axes, diverging=True, unit="fraction")
    heads = best.drop(columns=["random_init", "p_shuffled", "best_offset"])
    shares = ("dev", "test", "offset", "over_offset", "english", "difference")
    tables = {
        "heads": _table(heads, shares, TEST_DRAWS, p_offset=1 / (1 + SingleHeads.permutations)),
        "shared": _table(shared_heads(best), (), DEALS),
        "probes": _table(of_probes, ("uas", "right", "left", "english", "difference"), TEST_DRAWS),
    }
    return Result("languages", {}, tables, {"gain": figure})


def _table(frame: pd.DataFrame, shares: Sequence[str], draws: int, **least: float) -> Table:
    least = {"p": 2 / (1 + draws), **least}
    units: dict[str, Unit | Sequence[Unit]] = dict.fromkeys(shares, "fraction")
    units |= {name: p_units(frame[name], bound) for name, bound in least.items()}
    return Table(frame, {**units, "p_holm": units["p"]}, "test" if "test" in frame else None)


def _wide(rows: pd.DataFrame, cells: "pd.Series[Any]") -> pd.DataFrame:
    """Return the cells, one for each row, with a row for each relation and a column for each language."""
    wide = rows.assign(cell=cells).pivot(index="relation", columns="language", values="cell")
    return wide.reindex(index=rows["relation"].unique(), columns=rows["language"].unique())


def main(args: Sequence[str]) -> int:
    """Write tables and figure to RUNS/compared, print the tables of docs/languages.md, and return the exit code.

    Raises:
        UserError: The sweep is not finished.
    """
    parser = argparse.ArgumentParser(prog="python -m studies.languages", description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, help="folder of the sweep")
    folder = parser.parse_args(list(args)).runs
    runs = read_runs(folder)
    found = result(runs)
    write(folder / "compared", found, Provenance(runs["English"][OWN].encoder, {}, {}))
    cells = {name: pd.DataFrame(format_cells(table, missing=DASH)) for name, table in found.tables.items()}
    heads, below = cells["heads"], found.tables["heads"].frame["p_holm"] < ALPHA
    # Significant differences are bold; English has its head in their place.
    transfer = heads["difference"].mask(below, "**" + heads["difference"] + "**")
    transfer = transfer.mask(heads["p_holm"] == DASH, heads["english_head"])
    own = heads["head"] + " " + heads["test"].str.partition(" ")[0] + " (" + heads["offset"] + ")"
    blocks = [_wide(heads, one).fillna(DASH).reset_index() for one in (own, transfer)]
    blocks += [cells["shared"], cells["probes"]]
    print("\n\n".join([*map(format_markdown, blocks), f"Written to {folder / 'compared'}"]))
    return 0


if __name__ == "__main__":
    command.run(main)
