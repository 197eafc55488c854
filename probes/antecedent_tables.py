"""Tables and figures of antecedent selection: one head beside a trained probe and the baselines, and all heads."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from metrics.antecedent import ANTECEDENT_DIRECTIONS, ANTECEDENT_GROUPS, Accuracies
from probes.head_figures import head_map
from probes.head_tables import Names
from results import Bars, Estimate, Figure, HeatMap, Table, estimates, on_one_scale

TRAINED = "antecedent_trained"
"""What the scores of a trained probe are called; its column in the tables is `trained`."""


def best(accuracy: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> int:
    """The best of all heads in both directions, the first of equals; the first of all where there is no link."""
    return int(np.nan_to_num(accuracy, nan=-1.0).argmax())


def scores_of(name: str, found: Accuracies, place: int) -> dict[str, Estimate]:
    """`name.all`, `name.pronoun`, … of one predictor of many, each with its interval."""
    values, low, high = (numbers[place] for numbers in found)
    return estimates([f"{name}.{of_mentions}" for of_mentions in ANTECEDENT_GROUPS], values, low, high, "fraction")


def antecedent_table(
    chosen: Sequence[int],
    dev: Accuracies,
    heads: Accuracies,
    others: Mapping[str, Accuracies],
    totals: Sequence[int],
    names: Names,
    *,
    paper: bool,
) -> Table:
    """`mentions, n, head, direction, dev, test, low, high` of one head for each group of mentions, and the others.

    In `paper` mode `test` is nan, and the interval is that of `dev`. The others are
    columns `name, name.low, name.high`: those of a trained probe, `trained`, before the head's, the baselines' behind.

    Args:
        chosen: the head of each group, in both directions counted through.
        dev: of all heads `[2·heads, 4]`, on dev.
        heads: of all heads, on the split that is scored.
        others: of each predictor beside the heads `[4]`, on the split that is scored.
        totals: links of each group.
        names: of the heads.
        paper: whether the split that is scored is dev.
    """
    groups = range(len(ANTECEDENT_GROUPS))
    head = {
        "head": [names.head(names.split(k)[1]) for k in chosen],
        "direction": [ANTECEDENT_DIRECTIONS[names.split(k)[0]] for k in chosen],
    }
    on_dev = [dev[0][k, group] for group, k in zip(groups, chosen, strict=True)]
    scored, low, high = ([numbers[k, group] for group, k in zip(groups, chosen, strict=True)] for numbers in heads)
    on_test = [float("nan")] * len(scored) if paper else scored
    of_head = {**head, "dev": on_dev, "test": on_test, "low": low, "high": high}
    trained = _columns("trained", others[TRAINED]) if TRAINED in others else {}
    baselines: dict[str, object] = {}
    for name, found in others.items():
        baselines |= {} if name == TRAINED else _columns(name, found)
    frame = pd.DataFrame({"mentions": ANTECEDENT_GROUPS, "n": totals, **trained, **of_head, **baselines})
    predictors = ["trained" if name == TRAINED else name for name in others]
    return Table(frame, dict.fromkeys(("dev", "test", *predictors), "fraction"), interval="dev" if paper else "test")


def _columns(name: str, found: Accuracies) -> dict[str, object]:
    return dict(zip((name, f"{name}.low", f"{name}.high"), found, strict=True))


def all_heads(dev: Accuracies, heads: Accuracies, totals: Sequence[int], names: Names, *, paper: bool) -> Table:
    """One row per head, direction and group of mentions: `mentions, n, direction, head, dev, test`."""
    frames = [
        pd.DataFrame(
            {
                "mentions": of_mentions,
                "n": totals[group],
                "direction": np.repeat(ANTECEDENT_DIRECTIONS, len(names)),
                "head": [names.head(head) for head in range(len(names))] * 2,
                "dev": dev[0][:, group],
                "test": np.full(2 * len(names), np.nan) if paper else heads[0][:, group],
            }
        )
        for group, of_mentions in enumerate(ANTECEDENT_GROUPS)
    ]
    return Table(pd.concat(frames, ignore_index=True), dict.fromkeys(("dev", "test"), "fraction"))


def antecedent_figures(
    table: pd.DataFrame, heads: Accuracies, names: Names, own: Sequence[int], *, paper: bool
) -> Mapping[str, Figure]:
    """Bars of an `antecedent_table`, and a map of all heads for each group of mentions, its best head marked."""
    scored, chosen = ("dev", "chosen and scored on dev") if paper else ("test", "chosen on dev")
    series = {"best head": scored, "nearest mention": "nearest", "same head word": "head_match", "sieve": "sieve"}
    intervals = {"best head": (table["low"].tolist(), table["high"].tolist())}
    if "trained" in table:
        series = {"trained probe": "trained", **series}
        intervals["trained probe"] = (table["trained.low"].tolist(), table["trained.high"].tolist())
    bars = Bars(
        title=f"Antecedent selection: head {table['head'][0]} (layer-head), {table['direction'][0]}, {chosen}",
        categories=ANTECEDENT_GROUPS,
        series={name: table[column].tolist() for name, column in series.items()},
        label="accuracy (%)",
        intervals=intervals,
        unit="fraction",
    )
    maps: dict[str, HeatMap] = {}
    shape = 2, len(names.layers), len(names.heads)
    for group, of_mentions in enumerate(ANTECEDENT_GROUPS):
        direction, layer, head = (int(place) for place in np.unravel_index(own[group], shape))
        title = f"Antecedents, {of_mentions}, {ANTECEDENT_DIRECTIONS[direction]}"
        accuracy = heads[0][:, group].reshape(shape)[direction]
        maps[f"heads_{of_mentions}"] = head_map(title, accuracy, names, (layer, head))
    return {"antecedent": bars, **on_one_scale(maps)}
