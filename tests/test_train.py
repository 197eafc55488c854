import json
import os
import re
import subprocess
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from pytorch_lightning.utilities import rank_zero_only

from attention_probing import commands, models
from attention_probing.commands import CONFIGS, launch
from attention_probing.commands.command_line import CommandLine
from attention_probing.commands.faults import find_user_error
from attention_probing.commands.launch import check
from attention_probing.commands.lightning import CheckedCLI
from attention_probing.commands.sweep_run import PROGRAM
from attention_probing.corpora.conllu import read_treebank
from attention_probing.corpora.sentence import CorpusError
from attention_probing.models import TrainingError
from attention_probing.models.regularizers import Regularizer
from attention_probing.results.errors import UserError
from attention_probing.results.settings import own_class
from tests.glue import write as write_glue
from tests.models.corpora import write_texts, write_vectors
from tests.tiny import BROKEN, FAMILIAR
from tests.trainers import CONTINUES

pytestmark = CONTINUES

Given = Callable[..., list[str]]
HEADS = "clark2019/heads.yaml"
# Those on documents, the sweeps, and those that train inside a test are tried where these are tested.
NESTED = ("control.yaml", "mdl.yaml", "causal.yaml")
YAMLS = {path: path.read_text(encoding="utf-8") for path in sorted(CONFIGS.rglob("*.yaml"))}
PROBES = [path for path in YAMLS if "class_path: DependencyData" in YAMLS[path] and path.name not in NESTED]
CLASSIFIERS = [path for path in YAMLS if "class_path: ClassificationDataModule" in YAMLS[path]]


QUICK = ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--figures.formats=[]")


def arguments(config: Path, corpus: str, bert: Path, cache: str, runs: Path) -> list[str]:
    """The command line of a shipped config on the tiny treebank, the tiny encoder, and vectors for its words."""
    vectors = Path(cache) / "vectors.txt"
    if not vectors.exists():
        vectors.parent.mkdir(parents=True, exist_ok=True)
        forms = sorted({word.lower() for word in (*FAMILIAR, *BROKEN)})
        rows = (f"{form} {number % 3} {number % 5} 1\n" for number, form in enumerate(forms))
        vectors.write_text("".join(rows), encoding="utf-8")
    text = YAMLS[config]
    trains = "probing fit" in text
    encoder = [] if "encoder: null" in text else ["name", str(bert)]
    return [
        "fit" if trains else "measure",
        f"--config={config}",
        f"--data.corpus={corpus}",
        f"--data.cache={cache}",
        f"--trainer.default_root_dir={runs}",
        *QUICK,
        *([f"--data.encoder.{encoder[0]}={encoder[1]}"] if encoder else []),
        *(["--trainer.max_epochs=2"] if trains else []),
        *([f"--data.vectors.name={vectors}"] if "vectors:" in text else []),
        *(["--data.hidden=[1,2]"] if "hidden:" in text else []),
    ]


@pytest.fixture
def of_config(corpus: str, bert: Path, cache: str, tmp_path: Path) -> Given:
    """Gives the command line of a shipped config on tiny data, or with other arguments of `arguments`."""

    def given(config: str = "demo.yaml", **changed: object) -> list[str]:
        parts: dict[str, Any] = {"corpus": corpus, "bert": bert, "cache": cache, "runs": tmp_path, **changed}
        return arguments(CONFIGS / config, **parts)

    return given


def results(runs: Path) -> tuple[Path, dict[str, Any]]:
    found = sorted(runs.rglob("results.json"))
    assert found
    return found[-1].parent, json.loads(found[-1].read_text(encoding="utf-8"))


def assert_all_files_are_there(folder: Path, found: dict[str, Any]) -> None:
    for kind in ("tables", "latex", "figures"):
        assert all((folder / name).stat().st_size for name in found[kind].values())


@pytest.mark.parametrize("config", PROBES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_config_runs_and_leaves_whole_results(config: Path, of_config: Given, tmp_path: Path) -> None:
    drawn = config.stem in ("attention_only", "heads", "structural", "depth")  # the figures of the others are such, too
    launch.main([*of_config(config), f"--figures.formats={'[png]' if drawn else []}"])
    folder, found = results(tmp_path)
    assert_all_files_are_there(folder, found)
    assert (folder / found["config"]).stat().st_size
    scores = found["scores"]
    for name in [name for name in scores if f"{name}.low" in scores]:
        bottom = -1 if name.startswith("spearman") or "_over_" in name else 0
        if name.startswith("spearman") and scores[f"{name}.low"] is None:
            assert scores[f"{name}.high"] is None  # too few sentences are as long as it asks
            continue
        assert bottom <= scores[f"{name}.low"] <= scores[name] <= scores[f"{name}.high"] <= 1
    main, columns, names = EXPERIMENTS.get(found["experiment"], PROBE)
    table = pd.read_csv(folder / found["tables"][main])
    assert {*columns} <= {*table}
    controlled = "random_init: true" in YAMLS[config]
    assert {name for name in names if controlled or not name.startswith("random_init")} <= scores.keys()
    if main != "sweep":
        if main != "best_trees":  # which counts edges
            assert found["audit"]["test"]["words"] == table["n"][0]
        for prefix in ("offset.", "right_branching.", "left_branching.", "uniform."):
            assert {f"{prefix}{score}.low" for score in ("uas", "uuas", "uas_with_punctuation")} <= scores.keys()


_SWEEP = ("sweep", ["layer", "rank", "epochs", "dev", "test", "low", "high"])
_HEADS = ["relation", "n", "head", "direction", "dev", "test", "offset", "random_init", "p_offset", "p_holm"]
_RELATIONS = ("relations", ["relation", "n", "probe", "offset", "best_offset"])
# The main table of an experiment, columns of it, and scores.
PROBE = (*_RELATIONS, ["uas.low", "uuas.low", "uas_with_punctuation.low", "tree.uas.low"])
EXPERIMENTS: dict[str, tuple[str, list[str], list[str]]] = {
    "baselines": (*_RELATIONS, []),
    "heads": ("best_heads", _HEADS, ["heads.uas.low", "heads.uuas.low", "random_init.uas.low"]),
    "trees": (
        "best_trees",
        ["tree", "n", "head", "direction", "dev", "test", "right_branching", "random_init", "p", "p_holm"],
        ["heads.tree_uuas.low", "heads.rooted_tree_uuas.low", "right_branching.tree_uuas.low"],
    ),
    "structural_distance": (*_SWEEP, ["uuas.low", "spearman_distance.low"]),
    "structural_depth": (*_SWEEP, ["root_accuracy.low", "spearman_depth.low"]),
}


def classifier_arguments(config: Path, folder: Path, bert: Path, *extra: str) -> list[str]:
    """The command line of a shipped config on tiny texts, with vectors for their words and a tiny encoder."""
    text = YAMLS[config]
    vectors = write_vectors(folder / "vectors.txt")
    return [
        "fit",
        f"--config={config}",
        f"--data.corpus={write_texts(folder)}",
        "--data.positive=good",
        f"--data.cache={folder / 'cache'}",
        *([f"--data.vectors.name={vectors}"] if "vectors:" in text else []),
        *([f"--data.tokenizer.name={bert}"] if "tokenizer:" in text else []),
        f"--trainer.default_root_dir={folder / 'runs'}",
        *QUICK,
        "--trainer.max_epochs=2",
        *extra,
    ]


@pytest.mark.parametrize("config", CLASSIFIERS, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_classifier_runs_and_leaves_whole_results(config: Path, bert: Path, tmp_path: Path) -> None:
    drawn = config.stem in ("demo_classifier", "han_rnn")  # the figures of the others are such, too
    formats = f"--figures.formats={'[png]' if drawn else []}"
    launch.main(classifier_arguments(config, tmp_path, bert, formats, "--trainer.max_epochs=1"))
    folder, found = results(tmp_path / "runs")
    assert found["experiment"] == "classification"
    assert_all_files_are_there(folder, found)
    scores = found["scores"]
    for name in ("accuracy", "f1", "auroc", "dev.f1"):
        assert 0 <= scores[f"{name}.low"] <= scores[name] <= scores[f"{name}.high"] <= 1
    given = yaml.safe_load(YAMLS[config])["model"]["init_args"].get("regularizers", [])
    used = [getattr(models, one["class_path"]) for one in given]
    names = {"cross_entropy", *(one.name for one in used if one.term is not Regularizer.term)}
    assert {name.removeprefix("loss.") for name in scores if name.startswith("loss.")} == names
    assert scores["loss"] == pytest.approx(sum(scores[f"loss.{name}"] for name in names))
    items = pd.read_parquet(folder / found["items"])
    assert len(items) == 29
    assert scores["accuracy"] == pytest.approx(items["correct"].sum() / items["scored"].sum())
    assert found["audit"]["train"]["labels"] == {"bad": 31, "good": 30}
    (checkpoint,) = folder.glob("checkpoints/*.ckpt")
    assert torch.load(checkpoint, weights_only=True)["config"] == (folder / "config.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("task", ["cola", "stsb"])
def test_a_task_of_glue_runs_by_its_name_and_reports_dev_at_the_last_epoch(
    task: str, bert: Path, tmp_path: Path
) -> None:
    write_glue(tmp_path, task, rows=12)
    options = {"corpus": task, "root": tmp_path, "cache": tmp_path / "cache", "tokenizer.name": bert}
    arguments = [f"--config={CONFIGS / 'kovaleva2019' / 'finetuning.yaml'}", "--trainer.max_epochs=2", *QUICK]
    arguments += [f"--data.{name}={value}" for name, value in options.items()]
    arguments += [f"--trainer.default_root_dir={tmp_path / 'runs'}", "--checkpoint.monitor=null"]
    launch.main(["fit", *arguments])
    folder, found = results(tmp_path / "runs")
    scores, items = found["scores"], pd.read_parquet(folder / found["items"])
    assert found["audit"]["epochs"] == 2
    assert len(items) == 12
    if task == "cola":
        assert {"mcc", "mcc.low", "dev.mcc.high"} <= scores.keys()
        assert scores["accuracy"] == scores["dev.accuracy"] == items["correct"].mean()
    else:
        assert {"pearson", "pearson.low", "spearman.high", "dev.mse.low", "loss.squared_error"} <= scores.keys()
        assert scores["mse"] == scores["dev.mse"] == pytest.approx(items["squared_error"].mean())
        (checkpoint,) = folder.glob("checkpoints/*.ckpt")
        launch.main(["predict", *arguments, f"--ckpt_path={checkpoint}"])
        (predictions,) = (tmp_path / "runs").rglob("predictions.parquet")
        assert pd.read_parquet(predictions)["predicted"].tolist() == pytest.approx(
            items["predicted"].tolist(), abs=1e-5
        )


def test_variants_of_tutek_differ_in_what_they_say_and_nothing_else() -> None:
    names = ("base", "concat", "residual", "tying", "mlm")
    base, *others = (yaml.safe_load(YAMLS[CONFIGS / "tutek2020" / f"{name}.yaml"]) for name in names)
    for other, project in zip(others, (None, 300, 300, None), strict=True):
        assert len(other["model"]["init_args"].pop("regularizers")) == 1
        assert other["model"]["init_args"]["embedding"].pop("project", None) == project
        assert other == base


def test_command_lines_are_checked_before_anything_is_computed(of_config: Given, corpus: str, tmp_path: Path) -> None:
    good = of_config("clark2019/attention_only.yaml", cache=str(tmp_path / "cache"), runs=tmp_path / "runs")
    files = {split: corpus.replace("{split}", split) for split in ("train", "dev")}
    faults = {
        "max_epoch": "--trainer.max_epoch=2",
        "learning_rate": "--model.learning_rate=fast",
        "absent-train.conllu: there is no such file. Check the path.": "--data.corpus=absent-{split}.conllu",
        "--corpus) has no test split, but the command needs one": f"--data.corpus={json.dumps(files)}",
        "there is no such checkpoint": "--ckpt_path=absent.ckpt",
        "absent.yaml": "--config=absent.yaml",
    }
    found = [check(line) for line in (good, *([*good, option] for option in faults.values()), good)]
    assert found[0] is found[-1] is None
    for told, expected in zip(found[1:-1], faults, strict=True):
        assert told is not None
        assert expected in told
    assert not (tmp_path / "runs").exists()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["vectors.txt"]


@pytest.mark.core
@pytest.mark.slow
def test_the_demo_runs_with_the_options_of_one_and_of_several_devices(of_config: Given, tmp_path: Path) -> None:
    cpu, ddp = (
        [*of_config(runs=tmp_path / name), f"--config={CONFIGS / 'trainer' / name}.yaml"] for name in ("cpu", "ddp")
    )
    launch.main(cpu)
    environment = {key: value for key, value in os.environ.items() if key != "PL_GLOBAL_SEED"}
    command = [*PROGRAM, *ddp, "--trainer.devices=2"]
    subprocess.run(command, check=True, env=environment, timeout=240)
    one, two = (results(tmp_path / name)[1]["scores"] for name in ("cpu", "ddp"))
    assert two == pytest.approx(one, rel=1e-3)


@pytest.mark.slow
def test_a_classifier_on_two_processes_scores_as_on_one(bert: Path, tmp_path: Path) -> None:
    """The same checkpoint, tested and predicted with: no text is left out, and none counts twice."""
    config = CONFIGS / "demo_classifier.yaml"
    command = classifier_arguments(config, tmp_path, bert)
    launch.main(command)
    folder, alone = results(tmp_path / "runs")
    (checkpoint,) = (folder / "checkpoints").glob("*.ckpt")
    together = [part for part in command[1:] if "default_root_dir" not in part]
    together += [f"--trainer.default_root_dir={tmp_path / 'two'}", f"--ckpt_path={checkpoint}"]
    for stage in ("test", "predict"):
        launch.main([stage, *together, "--trainer.devices=2", "--trainer.strategy=ddp_fork"])
    scores = results(tmp_path / "two")[1]["scores"]
    exact = [name for name in scores if not name.startswith("loss")]  # the loss is a mean of means of batches
    assert {name: scores[name] for name in exact} == {name: alone["scores"][name] for name in exact}
    assert scores["loss"] == pytest.approx(alone["scores"]["loss"], rel=1e-5)
    (predictions,) = (tmp_path / "two").rglob("predictions.parquet")
    frame = pd.read_parquet(predictions)
    assert frame["id"].tolist() == [str(line) for line in range(2, 31)]
    items = pd.read_parquet(folder / "items.parquet")
    assert frame["predicted"].tolist() == items["predicted"].tolist()
    assert [len(weights) for weights in frame["attention.word"]] == [len(tokens) for tokens in frame["tokens"]]


@pytest.fixture(scope="module")
def checkpoint(corpus: str, bert: Path, cache: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the probe of `configs/demo.yaml`."""
    runs = tmp_path_factory.mktemp("runs")
    launch.main(arguments(CONFIGS / "demo.yaml", corpus, bert, cache, runs))
    (path,) = runs.rglob("*.ckpt")
    return path


def test_a_checkpoint_holds_the_settings_of_its_class(checkpoint: Path) -> None:
    """Of the class in the settings, and not the arguments that it gives to its base."""
    parameters = torch.load(checkpoint, weights_only=True)["hyper_parameters"]
    assert own_class(parameters.pop("_class_path")) == "AttentionOnlyProbe"
    assert parameters.pop("_instantiator") == "pytorch_lightning.cli.instantiate_module"
    assert parameters == {"learning_rate": 0.04, "decay": 0.7, "schedule": "epoch"}


def test_a_second_run_has_a_folder_of_its_own_and_the_same_scores(
    of_config: Given, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level("INFO", "pytorch_lightning"):
        runs = [launch.main(of_config()) for _ in range(2)]
    first, second = (tmp_path / "AttentionOnlyProbe" / f"version_{number}" for number in (0, 1))
    scores = [json.loads((folder / "results.json").read_text())["scores"] for folder in (first, second)]
    assert scores[0] == scores[1]
    printed = caplog.text + "".join(capfd.readouterr())
    for folder, run in zip((first, second), runs, strict=True):
        assert list((folder / "tensorboard").glob("events.*"))
        assert (folder / "metrics.csv").exists()
        assert not any(logger.version for logger in run.trainer.loggers)  # which the progress bar would show
        # A weight for each head and direction, one for each offset, and biases: as the checkpoint has them.
        state = torch.load(next(folder.glob("checkpoints/*.ckpt")), weights_only=True)["state_dict"]
        count = sum(value.numel() for value in state.values())
        assert f"Training AttentionOnlyProbe, {count:,} parameters, on 1 × cpu, in {folder}" in printed
    assert not [word for word in ("Tip", "litlogger", "litmodels", "TPU", "ArcPredictions") if word in printed]


def test_a_new_store_and_a_kept_one_give_the_same_files_byte_for_byte(
    corpus: str, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = arguments(CONFIGS / HEADS, corpus, bert, str(tmp_path / "stores"), Path("runs"))
    contents = []
    for name in ("new", "kept"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert commands.main(command) == 0
        run = Path("runs/SingleHeads/version_0")
        contents.append({path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()})
    new, kept = contents
    assert {"page.html", "results.json"} <= new.keys()
    assert [name for name in new.keys() | kept.keys() if new.get(name) != kept.get(name)] == []


def test_predictions_are_written(checkpoint: Path, corpus: str, of_config: Given, tmp_path: Path) -> None:
    command = of_config()
    launch.main(["predict", *command[1:-1], f"--ckpt_path={checkpoint}"])
    _, found = results(checkpoint.parent.parent)
    predictions = pd.read_parquet(next(tmp_path.rglob("predictions.parquet")))
    assert list(predictions) == ["id", "word", "form", "head", "tree_head"]
    assert len(predictions) == found["audit"]["test"]["words"]
    gold = {sentence.id: sentence for sentence in read_treebank(Path(corpus.replace("{split}", "test"))).sentences}
    rows = list(zip(predictions["id"], predictions["word"], predictions["form"], predictions["head"], strict=True))
    assert all(gold[name].words[word - 1] == form for name, word, form, _ in rows)
    right = [gold[name].heads[word - 1] == head for name, word, _, head in rows]
    assert sum(right) / len(right) == pytest.approx(found["scores"]["uas_with_punctuation"])


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_a_probe_without_training_is_refused_before_anything_is_extracted(
    stage: str, of_config: Given, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match=r"AttentionOnlyProbe was not trained.*--ckpt_path"):
        launch.main([stage, *of_config(cache=str(tmp_path / "cache"), runs=tmp_path / "runs")[1:]])
    assert [path.name for path in tmp_path.rglob("*")] == ["cache", "vectors.txt"]


def test_a_corpus_without_a_test_split_is_trained_on(
    corpus: str, of_config: Given, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    splits = {split: corpus.replace("{split}", split) for split in ("train", "dev")}
    command = of_config(corpus=json.dumps(splits))
    with caplog.at_level("INFO", "pytorch_lightning"):
        launch.main(command)
    assert "Not tested: the data have no test split" in caplog.text
    assert list(tmp_path.rglob("*.ckpt"))
    assert not list(tmp_path.rglob("results.json"))


@pytest.mark.parametrize(("logger", "rank"), [("true", 0), ("false", 0), ("true", 1)])
def test_bad_input_removes_the_folder_of_its_own_run_alone(
    logger: str, rank: int, finished_run: list[Path], of_config: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rank:  # Lightning takes no notice of SLURM in a job of that name, and its `rank_zero_only` does.
        for name, value in slurm(2, rank=1, JOB_NAME="interactive").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(rank_zero_only, "rank", rank)
    with pytest.raises(CorpusError):
        launch.main([*of_config(corpus="absent"), f"--trainer.logger={logger}"])
    assert sorted(tmp_path.rglob("*")) == finished_run


@pytest.mark.parametrize("text", ["1\tfox\t_\tX\n\n", ""])
def test_a_bad_test_file_is_found_before_the_training(text: str, corpus: str, of_config: Given, tmp_path: Path) -> None:
    bad = tmp_path / "test.conllu"
    files = {split: corpus.replace("{split}", split) for split in ("train", "dev")} | {"test": str(bad)}
    command = of_config(corpus=json.dumps(files), cache=str(tmp_path / "stores"), runs=tmp_path / "runs")
    bad.write_text(text, encoding="utf-8")
    with pytest.raises(CorpusError) as found:
        launch.main(command)
    assert str(found.value).startswith(str(bad))
    assert "\n" not in str(found.value)
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert not list(tmp_path.rglob("*.safetensors"))


UNKNOWN = {
    # Not cut short in secret, inside a class either.
    "--data.encoder.nam=x": "data.encoder (EncoderSpec): Option 'nam' is not accepted (did you mean `na",
    "--model=own_prob.MyProbe": "model (MyProbe): No module named 'own_prob'. It was sought in the working folder",
    "--model=AttentionOnlyProb": "model: there is no class AttentionOnlyProb (did you mean `AttentionOnlyProbe`?)",
    "--model=tests.rooms.Exports": "model (Exports): tests.rooms has no class Exports (did you mean `exports`?)",
    "--model=pathlib.Path": "model: pathlib.Path is no LightningModule. If it is a measurement, run it with `probing m",
    "--data.max_cells=many": "data.max_cells (DependencyDataModule): Expected a int. Got value: many\n",
    "learning_rate: -> learning_rat:": "typo.yaml: model (AttentionOnlyProbe): Option 'learning_rat' is not acc",
}


@pytest.mark.parametrize("command", ["fit", "measure"])
def test_a_plan_is_told_from_a_config(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("scores: [uas]\nrows: {a: {config: a.yaml}}\n", encoding="utf-8")
    assert commands.main([command, f"--config={plan}"]) == 1
    said = f"{plan} is the plan of a sweep. Run it with `probing sweep {plan}`."
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("option", ["data.options.minutes", "trainer.frobnicate", "model.labels"])
def test_nothing_is_suggested_for_an_option_that_is_like_no_other(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        launch.start(CommandLine.from_words(["fit", f"--config={CONFIGS}/demo.yaml", f"--{option}=3"]), cli=CheckedCLI)
    told = capsys.readouterr().err
    assert option.rpartition(".")[2] in told
    assert "did you mean" not in told


@pytest.mark.parametrize("typo", UNKNOWN)
def test_a_typo_is_told_in_a_line_with_what_is_closest(
    typo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the command line, or in a config, where `a -> b` replaces a by b."""
    config, text = tmp_path / "typo.yaml", YAMLS[CONFIGS / "demo.yaml"]
    right, arrow, wrong = typo.partition(" -> ")
    config.write_text(text.replace(right, wrong) if arrow else text, encoding="utf-8")
    assert (config.read_text(encoding="utf-8") == text) == (not arrow)
    with pytest.raises(SystemExit) as end:
        launch.start(CommandLine.from_words(["fit", f"--config={config}", *([] if arrow else [typo])]), cli=CheckedCLI)
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("Error: ")
    assert UNKNOWN[typo] in told
    assert len(told.splitlines()) == 1


def test_options_of_a_config_that_another_class_does_not_take_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Those that it takes stay."""
    cli = launch.start(CommandLine.from_words(["fit", "demo", "--model=StructuralDistanceProbe"]), cli=CheckedCLI)
    assert cli.model.learning_rate == 4e-2
    left_out = [record.message for record in caplog.records if "left out" in record.message]
    assert left_out == [
        "StructuralDistanceProbe does not take these options of the config demo, which are left out: decay."
    ]


def test_options_in_a_wrong_order_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    config = f"--config={CONFIGS}/demo.yaml"
    for args, message in (
        (["fit"], "Error: no model is named: give --config one of `probing --help`, or --model\n"),
        (
            ["fit", "--model.decay=1", config],
            "'decay' is not accepted: give --config or --model first, and its arguments under `init_args`",
        ),
        (
            ["measure", "--model.trees=false", f"--config={CONFIGS}/clark2019/heads.yaml"],
            "'trees' is not accepted: give --config or --model first, and its arguments under `init_args`",
        ),
    ):
        with pytest.raises(SystemExit, match="2"):
            launch.main(args)
        assert message in capsys.readouterr().err


def test_a_fraction_that_leaves_no_batch_is_told_and_leaves_no_run(of_config: Given, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--trainer\.limit_test_batches=0\.001 selects none of \d+ batches"):
        launch.main([*of_config("clark2019/baselines.yaml"), "--trainer.limit_test_batches=0.001"])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_quiet_run_says_its_answer_its_headline_and_its_folder_alone(
    of_config: Given, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    launch.main([*of_config("clark2019/baselines.yaml"), "--quiet"])
    folder, found = results(tmp_path)
    said = capfd.readouterr()
    names = ["offset.uas", "uniform.uas"]
    numbers = [[100 * found["scores"][f"{name}{end}"] for end in ("", ".low", ".high")] for name in names]
    headline = [
        f"{name} {{:.1f}} [{{:.1f}}, {{:.1f}}]".format(*each) for name, each in zip(names, numbers, strict=True)
    ]
    assert (said.out.splitlines(), said.err) == ([found["answer"], *headline, f"Written to {folder}"], "")
    assert found["figures"] == {}
    assert not list(folder.glob("*.png"))
    assert found["tables"].keys() == {"relations"}


def slurm(tasks: int, rank: int = 0, **other: str) -> dict[str, str]:
    """The environment of a task as `srun --ntasks-per-node=<tasks>` starts it on one node."""
    values = {"JOB_ID": 4242, "JOB_NAME": "probe", "NNODES": 1, "NODEID": 0, "PROCID": rank, "LOCALID": rank}
    values |= {"NTASKS": tasks, "NTASKS_PER_NODE": tasks, **other}
    return {f"SLURM_{name}": str(value) for name, value in values.items()}


@pytest.fixture
def finished_run(tmp_path: Path) -> list[Path]:
    """An earlier run in the folder of runs; what it left."""
    result = tmp_path / "Baselines" / "version_0" / "results.json"
    result.parent.mkdir(parents=True)
    result.write_text("{}", encoding="utf-8")
    return sorted(tmp_path.rglob("*"))


DDP = ["--trainer.devices=2", "--trainer.strategy=ddp"]


@pytest.mark.parametrize(
    ("environment", "options", "message"),
    [
        (slurm(4), DDP, r"SLURM has 4 tasks, .* needs 2 \(2 devices × 1 node\)"),
        # No number of devices gives this on each of the nodes.
        (slurm(3, NNODES="2"), [], r"1 node\)\. Start it with srun --nodes 1 --ntasks-per-node 1\.$"),
        (slurm(2, NTASKS_PER_NODE=""), ["--trainer.devices=2"], r"`--ntasks=2`.*Use `--ntasks-per-node=2`"),
        (slurm(4, JOB_NAME="bash", STEP_NUM_TASKS="4"), [], "4 tasks, .* in a job named 'bash'"),
        ({"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "probe"}, DDP, "not in a task. Start it with srun"),
        (slurm(2), ["--trainer.devices=two"], "options of --trainer cannot be used: .devices. selected"),
    ],
)
def test_tasks_of_slurm_that_the_trainer_does_not_want_are_refused_before_anything_is_made(
    environment: dict[str, str],
    options: list[str],
    message: str,
    finished_run: list[Path],
    of_config: Given,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        if value:
            monkeypatch.setenv(name, value)
    command = of_config("clark2019/baselines.yaml", corpus="absent-{split}.conllu")
    assert commands.main([*command, *(options or ["--trainer.devices=1"])]) == 1
    *_, told = capsys.readouterr().err.splitlines()
    assert told.startswith("Error: ")
    assert re.search(message, told)
    assert sorted(tmp_path.rglob("*")) == finished_run


def altered(checkpoint: Path, copy: Path, **parts: object) -> Path:
    """A checkpoint with other parts."""
    torch.save({**torch.load(checkpoint, weights_only=True), **parts}, copy)
    return copy


@pytest.mark.slow
def test_a_file_that_is_no_checkpoint_is_told_in_a_line(checkpoint: Path, of_config: Given, tmp_path: Path) -> None:
    content, path = checkpoint.read_bytes(), tmp_path / "given.ckpt"
    command = of_config(runs=tmp_path / "runs")[1:]
    stages = cycle(("fit", "test"))

    def refused(message: str) -> str:
        with pytest.raises(TrainingError, match=rf"given\.ckpt: {message}") as refusal:
            launch.main([next(stages), *command, f"--ckpt_path={path}"])
        return str(refusal.value)

    flipped = bytearray(content)
    weight = torch.load(checkpoint, weights_only=True)["state_dict"]["weight"]
    flipped[content.index(weight.numpy().tobytes())] ^= 1
    for damaged in (content[: len(content) // 2], bytes(flipped)):
        path.write_bytes(damaged)
        refused("the checkpoint is damaged: it")
    for other in (b"", b"text"):
        path.write_bytes(other)
        refused("this is not a checkpoint of a run")
    torch.save(torch.nn.Linear(2, 2), path)
    assert "weights_only" not in refused("this is not a checkpoint of a run")
    for foreign in ([1, 2], {"weight": weight}):
        torch.save(foreign, path)
        refused("this is not a checkpoint of a run")
    configs: list[Any] = ["- a", "a: [b", "model: {class_path: 3}", {"model": {}}, None]
    for config in configs:
        altered(checkpoint, path, config=config)
        refused("this is not a checkpoint of a run")
    for parameters in ([1], {"_class_path": 3}):
        altered(checkpoint, path, hyper_parameters=parameters)
        refused("this is not a checkpoint of a run")
    assert not (tmp_path / "runs").exists()


def test_a_checkpoint_of_something_else_is_refused(checkpoint: Path, of_config: Given, tmp_path: Path) -> None:
    """Of another class, or made with other hyperparameters, which Lightning would take instead of those configured."""
    runs, copy = tmp_path / "runs", tmp_path / "copy.ckpt"
    command = of_config(runs=runs)[1:]
    altered(checkpoint, copy, hyper_parameters={"_class_path": "attention_probing.probes.AttentionWordsProbe"})
    with pytest.raises(UserError, match=r"copy\.ckpt: this is a checkpoint of AttentionWordsProbe, but --mod"):
        launch.main(["test", *command, f"--ckpt_path={copy}"])
    altered(
        checkpoint, copy, hyper_parameters={"_class_path": "attention_probing.probes.AttentionOnlyProbe", "decay": 0.5}
    )
    with pytest.raises(UserError, match=r"trained with --model\.decay 0\.5, but here it is 0\.7"):
        launch.main(["fit", *command, f"--ckpt_path={copy}"])
    # Without such parameters: what its configuration says, which the state of the optimiser would hide in a training.
    with pytest.raises(UserError, match=r"learning_rate 0\.04, but here it is 9\.0"):
        launch.main(["fit", *command, f"--ckpt_path={checkpoint}", "--model.learning_rate=9"])
    words = ["test", *of_config("clark2019/distances_glove.yaml", runs=runs)[1:]]
    with pytest.raises(UserError, match=r"this is a checkpoint of AttentionOnlyProbe, but --model is Distances"):
        launch.main([*words, f"--ckpt_path={checkpoint}"])
    assert not runs.exists()
    content = torch.load(checkpoint, weights_only=True)
    del content["config"], content["probe"]
    torch.save(content, copy)
    with pytest.raises(TrainingError, match=r"This is no checkpoint of AttentionOnlyProbe\. Give a file"):
        launch.main(["test", *command, f"--ckpt_path={copy}"])


def test_a_checkpoint_of_an_older_version_is_refused_by_the_option_that_there_is_no_more(
    checkpoint: Path, of_config: Given, tmp_path: Path
) -> None:
    copy, content = tmp_path / "copy.ckpt", torch.load(checkpoint, weights_only=True)
    del content["format"]
    torch.save(content, copy)
    with pytest.raises(TrainingError, match=rf"^{copy}: version 0\.x of this program wrote the checkpoint\. Train the"):
        launch.main(["test", *of_config()[1:], f"--ckpt_path={copy}"])
    content["config"] = content["config"].replace("learning_rate:", "rate:")
    torch.save(content, copy)
    with pytest.raises(TrainingError, match=rf"^{copy}: the settings of --model .* 'rate' is not .*or train again\.$"):
        launch.main(["test", *of_config()[1:], f"--ckpt_path={copy}"])


@pytest.mark.parametrize(
    ("stage", "config", "option", "message"),
    [
        ("test", "demo.yaml", "--ckpt_path=best", "--ckpt_path best: a new run has no checkpoint yet"),
        ("measure", HEADS, "--trainer.accelerator=tpu", r"The options of --trainer cannot be used: .*torch_xla"),
        ("measure", HEADS, "--trainer.devices=0", r"The options of --trainer cannot be used: .*devices"),
        ("measure", HEADS, "--data.options.layers=[0]", r"layers is \[0\], but must be one or more distinct"),
        ("measure", HEADS, "--trainer.default_root_dir={checkpoint}", r"\.ckpt/SingleHeads: no folder"),
    ],
)
def test_an_option_that_cannot_be_met_is_told_before_anything_is_made(
    stage: str, config: str, option: str, message: str, checkpoint: Path, of_config: Given, tmp_path: Path
) -> None:
    command = of_config(config, runs=tmp_path / "runs")[1:]
    with pytest.raises((RuntimeError, ValueError)) as refusal:
        launch.main([stage, *command, option.replace("{checkpoint}", str(checkpoint))])
    assert re.search(message, str(find_user_error(refusal.value)))  # the command line's parser wraps some of them
    assert not (tmp_path / "runs").exists()


def test_a_bug_of_the_program_is_no_fault_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that shows while a fault of the input is handled has its traceback; what is raised from a fault is told."""

    def start(line: CommandLine) -> None:
        try:
            raise CorpusError("a fault of the input")
        except CorpusError as error:
            if line.words:
                raise ValueError("wrapped") from error
            raise KeyError("absent")  # noqa: B904

    monkeypatch.setattr("attention_probing.commands.launch.start", start)
    with pytest.raises(KeyError, match="absent"):
        launch.run(CommandLine((), {}))
    assert launch.run(CommandLine(("wrapped",), {})) == 1
