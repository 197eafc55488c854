"""`measure --twin`: the same result of a world without the finding, beside the real one."""

import json
import re
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from attention_probing.attention import Encoder, EncoderSpec
from attention_probing.commands import compare, launch, main, measure
from attention_probing.commands.command_line import CommandLine
from attention_probing.commands.dry import predict
from attention_probing.commands.measure import make_parser
from attention_probing.commands.twins import TwinName, add_twins, describe_twins, twins_of
from attention_probing.datamodules import DependencyDataModule, attention
from attention_probing.measures import loop
from attention_probing.results import Estimate, Finding, Result, UserError
from attention_probing.results.digests import RECORD
from attention_probing.results.reader import load
from attention_probing.results.record import read_record
from attention_probing.results.settings import score_settings
from attention_probing.results.tables import format_cells, lacks_interval
from studies.known_cases import write_pair_errors
from studies.planted_agreement import agreement_model, write_agreement_pairs

Options = list[str]


@pytest.fixture
def options(tmp_path: Path, bert: Path, corpus: str, cache: str) -> Options:
    """Options of a run of single heads on the tiny treebank and BERT."""
    return [
        "measure",
        "clark2019/heads",
        f"--corpus={corpus}",
        f"--encoder={bert}",
        f"--data.cache={cache}",
        f"--trainer.default_root_dir={tmp_path / 'runs'}",
        "--trainer.accelerator=cpu",
        "--figures.formats=[]",
        "--data.random_init=false",
    ]


def scores_of(folder: Path) -> dict[str, Any]:
    scores: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))["scores"]
    return scores


def test_twins_are_runs_of_one_other_option(
    options: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real scores are those of a run without twins, the twins' those of runs with `redrawn` and `shuffled`."""
    runs = tmp_path / "runs/SingleHeads"
    launch.main([*options, "--twin", "both"])
    said = capsys.readouterr().out
    launch.main(options)
    launch.main([*options, "--data.encoder.weights=redrawn"])
    launch.main([*options, "--data.gold=shuffled"])
    whole, *alone = (scores_of(runs / f"version_{number}") for number in range(4))
    real = {name: value for name, value in whole.items() if not name.startswith("twin.")}
    assert real == alone[0]
    for twin, scores in zip(("random", "shuffled"), alone[1:], strict=True):
        assert scores_of(runs / "version_0/twin" / twin) == scores
        for name in ("heads.uas", "heads.uas.low", "heads.uas.high"):
            assert whole[f"twin.{twin}.{name}"] == scores[name]
        assert scores != alone[0]
    assert whole["twin.random.offset.uas"] == whole["offset.uas"]
    plain = " ".join(said.split())
    assert plain.count("finds the governors of") == 1
    assert re.search(r"; with redrawn weights \d[^;]*; with shuffled gold \d", plain)
    assert [line.split()[0] for line in said.splitlines() if re.match("(best_heads|twins) *$", line)] == [
        "twins",
        "best_heads",
    ]
    folders = [str(runs / "version_0" / part) for part in ("", "twin/random", "twin/shuffled")]
    assert [line for line in said.splitlines() if "Written to" in line] == [f"Written to {path}" for path in folders]
    assert f"probing compare {' '.join(folders)}" in said
    assert not list(runs.rglob("state-*"))

    config = runs / "version_0/twin/shuffled/config.yaml"
    launch.main(["measure", str(config)])
    assert scores_of(runs / "version_4") == alone[2]
    record = read_record(runs / "version_0/twin/random/results.json")
    assert record.encoder["weights"] == "redrawn"
    assert "weights_sha256" not in record.encoder
    assert read_record(runs / "version_0/results.json").audit["twin.random"] == "twin/random"


def test_twins_are_read_only_where_they_are_named(options: Options, tmp_path: Path) -> None:
    launch.main([*options, "--twin", "shuffled"])
    runs = tmp_path / "runs"
    for place in (runs, runs / "**", runs / "SingleHeads/version_0", runs / "*/version_0/results.json"):
        assert set(load(place)["run"]) == {str(runs / "SingleHeads/version_0")}
    for place in (runs / "SingleHeads/version_0/twin", runs / "**/twin/*"):
        assert set(load(place)["data.gold"]) == {"shuffled"}


def test_a_twin_that_fails_loses_nothing(options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    run = loop.run_measurement

    def fail_at_the_second(*given: Any, **named: Any) -> Result | None:  # noqa: ANN401
        calls.append(given)
        if len(calls) == 2:
            raise UserError("the twin fails")
        return run(*given, **named)

    monkeypatch.setattr(measure, "run_measurement", fail_at_the_second)
    with pytest.raises(UserError, match="the twin fails"):
        launch.main([*options, "--twin", "both"])
    scores = scores_of(tmp_path / "runs/SingleHeads/version_0")
    assert "heads.uas" in scores
    assert not [name for name in scores if name.startswith("twin.")]


def test_the_encoder_is_gone_before_a_twin_loads_its_own(
    options: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded: list[weakref.ref[Any]] = []
    alive = []
    make = Encoder

    def watched(*given: Any) -> Any:  # noqa: ANN401
        alive.append(sum(one() is not None for one in loaded))
        encoder = make(*given)
        loaded.append(weakref.ref(encoder))
        return encoder

    monkeypatch.setattr(attention, "Encoder", watched)
    launch.main([*options, "--twin", "random", "--data.store=stream"])
    assert alive == [0, 0]


TREEBANK = {
    "control": ("hewitt2019/control", "--model.max_epochs=1", "Selectivity of the probe: [^;]* points"),
    "mdl": ("voita2020/mdl", "--model.max_epochs=1", "Uniform code divided by the online code: "),
    "trees": ("htut2019/trees", "--data.random_init=false", "Edges in the trees of the best head: "),
    "causal": ("clark2019/causal", "--model.max_epochs=1", "Change of the probe's accuracy on `det` without its heads"),
}
"""Config, an option, and the beginning of the sentence on the twins, of measurements of a treebank."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TREEBANK)
def test_measurements_of_a_treebank_have_twins(name: str, bert: Path, corpus: str, cache: str, tmp_path: Path) -> None:
    config, option, sentence = TREEBANK[name]
    data = [f"--corpus={corpus}", f"--encoder={bert}", f"--data.cache={cache}"]
    run_twins(tmp_path, config, sentence, option, "--twin=both", *data)


@pytest.mark.slow
def test_minimal_pairs_have_twins(tmp_path: Path) -> None:
    folder = Path(write_pair_errors(tmp_path / "told", 0, told=1.0, pairs=120))
    data = [f"--data.corpus={folder / 'pairs.jsonl'}", f"--encoder={folder / 'model'}", f"--data.cache={tmp_path}"]
    sentence = "Acceptable sentences at least as probable as their pair: "
    pairs = run_twins(tmp_path, "sashida2026/pairs", sentence, "--twin=both", *data)
    assert 0.6 < scores_of(pairs)["pairs.accuracy"] < 0.9
    assert 0.3 < scores_of(pairs)["twin.shuffled.pairs.accuracy"] < 0.7
    sentence = "AUROC that attention adds to confidence and paradigm: "
    small = ["--model.halves=4", "--model.shuffles=3"]
    errors = run_twins(tmp_path, "ostmeier2026/pair_errors", sentence, "--twin=both", *data, *small)
    gain = "attention_paradigm_confidence.minus_paradigm_confidence"
    assert scores_of(errors)[gain] > 0.2
    assert abs(scores_of(errors / "twin/shuffled")[gain]) < 0.2


@pytest.mark.slow
def test_a_planted_head_of_grammar_is_in_no_twin(tmp_path: Path) -> None:
    agreement_model(1).save(tmp_path / "model")
    pairs = write_agreement_pairs(tmp_path / "pairs.jsonl", "verb")
    data = [f"--data.corpus={pairs}", f"--encoder={tmp_path / 'model'}", f"--data.cache={tmp_path}"]
    sentence = "Paradigms that are above chance and have a head that costs log-ratio, switched off "
    sentence += r"\(p < \.05 after Holm\), of 1: "
    folder = run_twins(tmp_path, "grammar", sentence, "--twin=both", *data)
    assert scores_of(folder)["zero.with_head"] == 1
    for name in ("random", "shuffled"):
        twin = scores_of(folder / "twin" / name)
        assert twin["zero.with_head"] == 0
        assert twin["zero.tested"] == 0  # neither is above chance, so that no head is tested


@pytest.mark.slow
def test_the_atlas_has_a_twin_with_redrawn_weights(bert: Path, corpus: str, cache: str, tmp_path: Path) -> None:
    data = [f"--data.treebank={corpus}", "--data.documents=null", f"--encoder={bert}", f"--data.cache={cache}"]
    options = ["--data.text=sample", "--data.max_length=48", "--model.analyses=[{class_path: Linguistic}]"]
    folder = run_twins(tmp_path, "atlas", "Heads without a role: ", "--twin=random", *data, *options)
    assert scores_of(folder / "twin/random")["role.none"] == scores_of(folder)["twin.random.role.none"]


def run_twins(folder: Path, config: str, sentence: str, *options: str) -> Path:
    """Measure with twins, check that the answer compares them in a sentence, and return the folder of the run.

    Where there are counts, `compare` tests the difference.
    """
    runs = folder / config
    given = ["--trainer.accelerator=cpu", "--figures.formats=[]", f"--trainer.default_root_dir={runs}"]
    result = launch.main(["measure", config, *options, *given])
    twins = r"; with redrawn weights [^;]*\d[^;]*"
    if "--twin=both" in options:
        twins += r"; with shuffled gold [^;]*\d[^;]*"
    assert re.search(rf"{sentence}[^;]*\d[^;]*{twins}\.$", result.answer), result.answer
    [run] = runs.glob("*/version_0")
    if result.ratios:
        assert compare.main([str(run), str(run / "twin/random")]) == 0
    return run


REFUSED = {
    "a classifier": (
        ["measure", "tutek2020/fidelity", "--twin", "random"],
        r"--twin random: Fidelity measures a trained classifier \(--model.checkpoints\).* give --twin shuffled",
    ),
    "a classifier that has random weights beside it": (
        ["measure", "ostmeier2026/errors", "--twin", "random"],
        r"--twin random: ErrorPrediction .* compares it with random weights already",
    ),
    "texts": (
        ["measure", "clark2019/surface", "--twin", "shuffled"],
        r"--twin shuffled .* TextDataModule cannot\. Give --twin random\.",
    ),
    "the atlas": (
        ["measure", "atlas", "--twin", "both"],
        r"--twin shuffled .* AtlasDataModule cannot\. Give --twin random\.",
    ),
    "two encoders": (
        ["measure", "clark2019/surface", "--data.before.name=a", "--twin", "random"],
        r"one encoder anew, but --data.before names a second one",
    ),
    "a run that is its own twin": (
        ["measure", "clark2019/heads", "--data.encoder.weights=redrawn", "--twin", "random"],
        r"--data.encoder.weights is redrawn already",
    ),
    "gold that is shuffled": (
        ["measure", "clark2019/heads", "--data.gold=shuffled", "--twin", "shuffled"],
        r"--data.gold is shuffled already",
    ),
    "no encoder": (
        ["measure", "clark2019/heads", "--data.encoder=null", "--twin", "random"],
        r"DependencyDataModule reads none",
    ),
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_has_no_twin_is_told_in_a_line(line: str) -> None:
    words, message = REFUSED[line]
    settings = make_parser().parse_line(CommandLine.from_words([*words, *_checkpoints(words)]))
    with pytest.raises(UserError, match=message):
        twins_of(settings)


def _checkpoints(words: Options) -> Options:
    names = {"tutek2020/fidelity", "ostmeier2026/errors"}
    return ["--checkpoints", "a.ckpt"] if names & {*words} else []


def test_a_wrong_name_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "clark2019/heads", "--twins", "random"]) == 2
    assert "did you mean `--twin`" in capsys.readouterr().err
    assert main(["fit", "demo", "--twin", "random"]) == 2
    assert "unrecognized arguments: --twin random" in capsys.readouterr().err


def some_result(finding: Finding | None = None, **values: float) -> Result:
    scores = {name: Estimate(value, value - 0.1, value + 0.1, unit="fraction") for name, value in values.items()}
    return Result("heads", scores, headline=list(values), answer="The real answer is 1.", finding=finding)


def test_one_sentence_compares_the_finding_with_that_of_the_twins() -> None:
    found = Finding("uas", "governors that the best head finds")
    real = some_result(found, offset=0.5, uas=0.7)
    twins: dict[TwinName, Result] = {
        "random": some_result(offset=0.5, uas=0.2),
        "shuffled": some_result(offset=0.5, uas=float("nan")),
    }
    assert add_twins(real, twins).answer == (
        "The real answer is 1. Governors that the best head finds: 70.0 % [60.0, 80.0]; with redrawn weights 20.0 % "
        "[10.0, 30.0]; with shuffled gold undefined."
    )
    gain = replace(real, finding=Finding("uas", "gain", is_difference=True))
    assert describe_twins(gain, {"random": real}) == (
        "Gain: +70.0 points [60.0, 80.0]; with redrawn weights +70.0 points [60.0, 80.0]."
    )
    assert describe_twins(real, {"random": some_result(offset=0.5)}).endswith("; with redrawn weights undefined.")
    assert add_twins(real, {}) is real


def test_without_a_finding_the_first_headline_score_is_compared() -> None:
    real = some_result(offset=0.5, uas=0.7)
    assert describe_twins(real, {"shuffled": some_result(offset=0.4)}).startswith("`offset`: 50.0 % [40.0, 60.0]; ")
    bare = add_twins(Result("own", {}, answer="None."), {"random": Result("own", {})})
    assert bare.answer == "None."
    assert not bare.tables


def test_the_headline_scores_stand_side_by_side() -> None:
    real = replace(some_result(uas=0.7), scores={"uas": Estimate(0.7, 0.6, 0.8, unit="fraction", inputs=9)})
    count = Estimate(3, unit="count")
    real = replace(real, scores={**real.scores, "above": count}, headline=["uas", "above"])
    both = add_twins(real, {"random": some_result(uas=0.2), "shuffled": replace(real, headline=[])})
    table = both.tables["twins"]
    cells = format_cells(table, missing="–")
    assert cells == {
        "score": ["uas", "above"],
        "real": ["70.0 [60.0, 80.0]*", "3"],
        "redrawn_weights": ["20.0 [10.0, 30.0]", "–"],
        "shuffled_gold": ["70.0 [60.0, 80.0]*", "3"],
    }
    assert not lacks_interval(table)
    assert table.note == "All tables of the null twins are in twin/random and twin/shuffled."
    assert both.headline == real.headline
    assert both.scores["twin.random.uas"].value == 0.2
    assert "twin.random.above" not in both.scores


def test_scores_of_untrained_layers_are_no_row_beside_twins() -> None:
    """They are a control, of which a twin would be a control."""
    real = some_result(None, **{"uas": 0.7, "random_init.uas": 0.1})
    both = add_twins(real, {"random": real})
    assert both.tables["twins"].frame["score"].tolist() == ["uas"]
    assert both.scores["twin.random.random_init.uas"].value == 0.1


def test_dry_counts_the_passes_of_twins(corpus: str, bert: Path) -> None:
    def passes(twins: tuple[Any, ...], **options: Any) -> tuple[int, int]:  # noqa: ANN401
        data = DependencyDataModule(corpus, encoder=EncoderSpec(str(bert)), **options)
        costs = predict(data, "test", "cpu", twins)
        return costs.passes, costs.disk

    once, disk = passes(())
    assert passes(("random",)) == (2 * once, 2 * disk)
    assert passes(("shuffled",)) == (once, disk)
    assert passes(("random", "shuffled"), random_init=True) == (3 * once, 3 * disk)
    assert passes(("random", "shuffled"), store="stream") == (3 * once, 0)
    assert passes(("shuffled",), store="stream", random_init=True) == (4 * once, 0)


def test_dry_takes_the_option(
    options: Options, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    predicted = Mock(side_effect=predict)
    monkeypatch.setattr("attention_probing.commands.dry.predict", predicted)
    assert main([*options, "--twin", "both", "--dry"]) == 0
    assert list(predicted.call_args.args[3]) == ["random", "shuffled"]
    assert "Nothing was computed or stored" in capsys.readouterr().out
    assert main([*options, "--twin", "shuffled", "--data.gold=shuffled", "--dry"]) == 1


def test_runs_of_earlier_versions_stay_comparable() -> None:
    """An option that is not given, and was not there before, is no difference."""
    old = {"data": {"class_path": "DependencyDataModule", "init_args": {"corpus": "sample"}}}
    new: dict[str, Any] = {"data": {"class_path": "DependencyDataModule", "init_args": {"corpus": "sample"}}}
    new["data"]["init_args"]["gold"] = "given"
    new["twin"] = None
    assert score_settings(new) == score_settings(old)
    new["twin"] = "random"
    assert score_settings(new) != score_settings(old)
