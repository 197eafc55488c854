"""Null twins: the same measurement in a world without the finding, beside the real one.

The twin of a run has the same settings but for one option, so its config runs by itself.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isnan
from typing import Literal

from jsonargparse import Namespace

from attention_probing.datamodules.corpus import CorpusDataModule
from attention_probing.models.configs import settings_class
from attention_probing.results import Estimate, Result
from attention_probing.results.errors import UserError, setting
from attention_probing.results.reader import TWINS
from attention_probing.results.sentences import format_estimate

TwinName = Literal["random", "shuffled"]
TwinOption = Literal["random", "shuffled", "both"]
"""Values of `--twin`."""
WORLDS: Mapping[TwinName, str] = {
    "random": "With weights drawn anew",
    "shuffled": "With shuffled gold",
}
"""What differs in a twin; the beginning of a sentence."""
USE = (
    "Measure the same in a world without the finding too: `random` with weights drawn anew, each parameter with its "
    "own mean and standard deviation; `shuffled` with the gold of other items; `both`."
)

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
            f"--twin shuffled gives items the gold of others, but {_short_name(settings.data)} has no gold. Give "
            "--twin random."
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


def add_twin(result: Result, name: TwinName, twin: Result) -> Result:
    """Return a result with the headline scores of its twin, and a sentence on the first of them that differs.

    Scores that the twin does not change, such as baselines that no model enters, are not printed again.

    Args:
        result: The result.
        name: Name of the twin.
        twin: Result of the twin.
    """
    scores = dict(result.scores)
    headline = list(result.headline)
    for score in result.headline:
        if score not in twin.scores or score.startswith(f"{TWINS}."):
            continue
        of_twin = f"{TWINS}.{name}.{score}"
        known = twin.scores[score]
        scores[of_twin] = Estimate(known.value, known.low, known.high, unit=known.unit, inputs=known.inputs)
        if known.value != result.scores[score].value:
            headline.append(of_twin)
    answer = f"{result.answer} {_describe_twin(result, name, twin)}".strip()
    audit = {**result.audit, f"{TWINS}.{name}": f"{TWINS}/{name}"}
    return replace(result, scores=scores, headline=headline, answer=answer, audit=audit)


def _describe_twin(result: Result, name: TwinName, twin: Result) -> str:
    """Return a sentence on the first headline score that differs in the twin."""
    world = WORLDS[name]
    undefined = []
    for score in result.headline:
        if score not in twin.scores:
            continue
        known = twin.scores[score]
        if isnan(known.value):
            undefined.append(score)
        elif known.value != result.scores[score].value:
            return f"{world} `{score}` is {format_estimate(known)}."
    if undefined:
        return f"{world} `{undefined[0]}` is undefined."
    return f"{world} no headline score differs."
