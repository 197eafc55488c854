"""Null twins: the same measurement in a world without the finding, beside the real one.

The twin of a run has the same settings but for one option, so its config runs by itself.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import nan
from typing import Literal

import pandas as pd
from jsonargparse import Namespace

from attention_probing.datamodules.corpus import CorpusDataModule
from attention_probing.models.configs import settings_class
from attention_probing.results import (
    Estimate,
    Finding,
    Result,
    Table,
    Unit,
    format_difference,
    format_estimate,
    number_of_items,
)
from attention_probing.results.errors import UserError, list_first, setting
from attention_probing.results.reader import TWINS

TwinName = Literal["random", "shuffled"]
TwinOption = Literal["random", "shuffled", "both"]
"""Values of `--twin`."""
WORLDS: Mapping[TwinName, str] = {"random": "with redrawn weights", "shuffled": "with shuffled gold"}
"""What differs in a twin; the end of a sentence."""
COLUMNS: Mapping[TwinName, str] = {"random": "redrawn_weights", "shuffled": "shuffled_gold"}
"""Columns of the twins in the table `TABLE`."""
USE = (
    "Measure the same in a world without the finding too: `random` with redrawn weights, each parameter with its own "
    "mean and standard deviation; `shuffled` with the gold of other items; `both`."
)

TABLE = "twins"
"""Name of the table of the headline scores of a run and its twins."""

_TRAINED = ("checkpoint", "checkpoints", "classifier")
"""Arguments of measurements that name trained classifiers."""


def twins_of(settings: Namespace) -> dict[TwinName, Namespace]:
    """Return the settings of the twins of a run, by their names; empty without `--twin`.

    Args:
        settings: Settings of `measure`.

    Raises:
        UserError: The measurement or its data have no such twin.
    """
    option: TwinOption | None = settings.twin
    settings_of_twins: dict[TwinName, Namespace] = {}
    if option in ("random", "both"):
        settings_of_twins["random"] = _with_redrawn_weights(settings)
    if option in ("shuffled", "both"):
        settings_of_twins["shuffled"] = _with_shuffled_gold(settings)
    return settings_of_twins


def _with_redrawn_weights(settings: Namespace) -> Namespace:
    """Return the settings of a run with `data.encoder.weights: redrawn`."""
    twin = settings.clone()
    twin.twin = None
    measurement = _short_name(settings.model)
    for name in _TRAINED:
        if _arguments_of(settings.model).get(name) is not None:
            raise UserError(_refuse_trained(measurement, name))
    arguments = _arguments_of(twin.data)
    encoder = arguments.get("encoder")
    if encoder is None:
        raise UserError(
            f"--twin random draws the weights of an encoder anew, but {_short_name(settings.data)} reads none. Leave "
            "it out."
        )
    if encoder.weights != "pretrained":
        raise UserError(
            f"--twin random: {setting('data.encoder.weights')} is {encoder.weights} already, so the run is itself what "
            "its twin would be. Leave one of the two out."
        )
    if arguments.get("before") is not None:
        raise UserError(
            f"--twin random draws the weights of one encoder anew, but {setting('data.before')} names a second one, "
            "from which the first was fine-tuned. Leave one of the two options out."
        )
    encoder.weights = "redrawn"
    return twin


def _refuse_trained(measurement: str, argument: str) -> str:
    """Return the message that the weights of a trained classifier cannot be drawn anew."""
    fault = f"--twin random: {measurement} measures a trained classifier ({setting(f'model.{argument}')})"
    if measurement == "ErrorPrediction":
        return (
            f"{fault}, and compares it with random weights already: the rows `random_weights` of its table. Leave it "
            "out, or give --twin shuffled."
        )
    return (
        f"{fault}, which has learnt nothing if its weights are drawn anew. Train one over such weights (`probing fit … "
        "--data.tokenizer.weights redrawn`) and measure its checkpoint, or give --twin shuffled."
    )


def _with_shuffled_gold(settings: Namespace) -> Namespace:
    """Return the settings of a run with `data.gold: shuffled`."""
    kind = settings_class(CorpusDataModule, settings.data.class_path)
    if not getattr(kind, "exchanges", ""):
        raise UserError(
            f"--twin shuffled gives items the gold of others, which {_short_name(settings.data)} cannot. Give --twin "
            "random."
        )
    twin = settings.clone()
    twin.twin = None
    arguments = _arguments_of(twin.data)
    if arguments.get("gold") == "shuffled":
        raise UserError(
            f"--twin shuffled: {setting('data.gold')} is shuffled already, so the run is itself what its twin would "
            "be. Leave one of the two out."
        )
    arguments.gold = "shuffled"
    return twin


def _arguments_of(part: Namespace) -> Namespace:
    """Return the arguments in the settings of a class, which are empty for a class without any."""
    if "init_args" not in part:
        part.init_args = Namespace()  # type: ignore[no-untyped-call]
    arguments: Namespace = part.init_args
    return arguments


def _short_name(part: Namespace) -> str:
    """Return the name of the class in the settings of a class."""
    return str(part.class_path).rpartition(".")[2]


def add_twins(result: Result, twins: Mapping[TwinName, Result]) -> Result:
    """Return a result with the headline scores of its twins, a table of them side by side, and a sentence.

    Args:
        result: The result.
        twins: Results of its twins, by name.
    """
    if not twins:
        return result
    scores = dict(result.scores)
    audit = dict(result.audit)
    for name, twin in twins.items():
        for score in result.headline:
            if score in twin.scores:
                # Draws and runs are left to the twin's own result.
                known = twin.scores[score]
                scores[f"{TWINS}.{name}.{score}"] = Estimate(
                    known.value, known.low, known.high, unit=known.unit, inputs=known.inputs
                )
        audit[f"{TWINS}.{name}"] = f"{TWINS}/{name}"
    tables = dict(result.tables)
    if _compared_scores(result):
        tables = {TABLE: _side_by_side(result, twins), **tables}
    answer = f"{result.answer} {describe_twins(result, twins)}".strip()
    return replace(result, scores=scores, tables=tables, answer=answer, audit=audit)


def _compared_scores(result: Result) -> list[str]:
    """Return the headline scores that are compared with twins: those with random weights are controls themselves."""
    return [score for score in result.headline if not score.startswith("random_init.")]


def _side_by_side(result: Result, twins: Mapping[TwinName, Result]) -> Table:
    """Return a table with a row for each compared score, and columns for the run and each twin, with intervals."""
    worlds: dict[str, Mapping[str, Estimate]] = {"real": result.scores}
    for name, twin in twins.items():
        worlds[COLUMNS[name]] = twin.scores
    rows = []
    units: list[Unit] = []
    without_interval = []
    items: dict[str, list[float]] = {world: [] for world in worlds}
    for score in _compared_scores(result):
        row: dict[str, object] = {"score": score}
        unit = result.scores[score].unit
        for world, scores in worlds.items():
            estimate = scores.get(score, Estimate(nan, unit=unit))
            row[world] = float(estimate.value)
            row[f"{world}.low"] = nan if estimate.low is None else estimate.low
            row[f"{world}.high"] = nan if estimate.high is None else estimate.high
            items[world].append(number_of_items(estimate))
        rows.append(row)
        units.append(unit)
        if result.scores[score].low is None and unit != "count":
            without_interval.append(score)
    folders = " and ".join(f"{TWINS}/{name}" for name in twins)
    note = f"All tables of the null twins are in {folders}."
    if without_interval:
        note += f" No interval is computed of {list_first(without_interval)}."
    return Table(pd.DataFrame(rows), dict.fromkeys(worlds, units), main=("score", *worlds), note=note, items=items)


def describe_twins(result: Result, twins: Mapping[TwinName, Result]) -> str:
    """Return a sentence with the finding of a result, and what its twins reach.

    Args:
        result: The result. Without a finding it is the first score of the headline.
        twins: Results of its twins, by name.
    """
    finding = result.finding
    if finding is None:
        if not result.headline:
            return ""
        finding = Finding(result.headline[0], f"`{result.headline[0]}`")
    form = format_difference if finding.is_difference else format_estimate
    parts = [f"{finding.words[0].upper()}{finding.words[1:]}: {form(result.scores[finding.score])}"]
    for name, twin in twins.items():
        reached = "undefined"
        if finding.score in twin.scores:
            reached = form(twin.scores[finding.score])
        parts.append(f"{WORLDS[name]} {reached}")
    return f"{'; '.join(parts)}."
