"""Files that were received: what they name is not imported, and what they permit is not permitted."""

import importlib
import json
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pandas as pd
import pytest
import torch
import yaml
from jsonargparse import ArgumentError, ArgumentParser
from jsonargparse._common import parsing_settings

from attention_probing import commands
from attention_probing.attention import EncoderSpec
from attention_probing.commands import CONFIGS, launch
from attention_probing.commands.command_line import values_of
from attention_probing.commands.launch import check
from attention_probing.commands.sweep_plan import read_sweep
from attention_probing.commands.trust import trusted_modules
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.models import AttentionClassifier, TextClassifier, TrainingError
from attention_probing.models.checkpoints import config_of, data_settings, datamodule_from, read_checkpoint
from attention_probing.models.configs import IS_FILE, only_known_classes, only_named_files
from attention_probing.models.parser_messages import explain_error
from attention_probing.results.errors import UserError, command_line
from attention_probing.results.settings import PACKAGE, PIPES, exported_classes, score_settings
from tests.own_code import save_own
from tests.test_train import classifier_arguments
from tests.trainers import CONTINUES

pytestmark = CONTINUES

QUICK = f"--config={CONFIGS}/fidelity/quick.yaml"
CPU = "--trainer.accelerator=cpu"
IS_OF_ANOTHER = r"evil\.\w+ is in an external package, which only the command line may allow"
EVIL = "STRANGE.evil.X"  # STRANGE stands for the module


@pytest.fixture
def evil() -> str:
    """A module of its own for each test: classes of earlier ones stay known."""
    return f"strange_{uuid4().hex}"


@pytest.fixture
def ran(evil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that is there once the module was imported, or the pickle opened."""
    mark = tmp_path / "ran"
    module = tmp_path / "path" / evil / "evil.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
        "from attention_probing.datamodules import ClassificationDataModule\n"
        "from attention_probing.models import AttentionClassifier\n"
        "class X(ClassificationDataModule): pass\nclass Own(AttentionClassifier): pass\n"
    )
    monkeypatch.syspath_prepend(str(module.parent.parent))
    return mark


@pytest.fixture(scope="module")
def trained(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of `configs/demo_classifier.yaml`."""
    folder = tmp_path_factory.mktemp("trained")
    launch.main(classifier_arguments(CONFIGS / "demo_classifier.yaml", folder, bert))
    (path,) = folder.rglob("*.ckpt")
    return path


Change = Callable[[dict[str, Any]], object]


def forged(checkpoint: Path, copy: Path, change: Change, evil: str = "", **parameters: Any) -> Path:  # noqa: ANN401
    """A checkpoint with another config, or other parameters."""
    content = torch.load(checkpoint, weights_only=True)
    config = yaml.safe_load(content["config"])
    change(config)
    text = yaml.safe_dump(config).replace("STRANGE", evil)
    torch.save({**content, "config": text, "hyper_parameters": parameters}, copy)
    return copy


class Opened:
    """What a pickle of it does when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


# Places of a config where a class is named.
PLACES: dict[str, Change] = {
    "data": lambda config: config["data"].update(class_path=EVIL),
    "data, by what each object has": lambda config: config["data"].update(class_path="STRANGE.evil.__class__"),
    "data as text": lambda config: config.update(data=EVIL),
    "model": lambda config: config["model"].update(class_path="STRANGE.evil.AttentionClassifier"),
    "encoder": lambda config: config["model"]["init_args"].update(encoder={"class_path": EVIL, "init_args": {}}),
    "attention as text": lambda config: config["model"]["init_args"].update(attention=EVIL),
    "in a list": lambda config: config["model"]["init_args"].update(regularizers=[{"class_path": EVIL}]),
    "in a list as text": lambda config: config["model"]["init_args"].update(regularizers=[EVIL]),
    "in text": lambda config: config["model"]["init_args"].update(regularizers=f"[{{class_path: {EVIL}}}]"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_checkpoint_imports_nothing(place: str, trained: Path, evil: str, ran: Path, tmp_path: Path) -> None:
    # `hyper_parameters` of Lightning name the class too, and go before the config.
    parameters = {"_class_path": f"{evil}.evil.AttentionClassifier"} if place == "model" else {}
    path = forged(trained, tmp_path / "evil.ckpt", PLACES[place], evil, **parameters)

    def load() -> object:
        content = read_checkpoint(path)
        return data_settings(path, content) if "data" in place else TextClassifier.load_from_checkpoint(path)

    runs = f"--trainer.default_root_dir={tmp_path / 'runs'}"
    assert commands.main(["measure", QUICK, f"--model.checkpoints=[{path}]", runs, CPU]) == 1
    with pytest.raises(
        TrainingError, match=IS_OF_ANOTHER if place != "data as text" else "settings of its data"
    ) as told:
        load()
    assert str(told.value).startswith(f"{path}: ")
    assert "\n" not in str(told.value)
    assert not ran.exists()
    assert not [file for file in (tmp_path / "runs").rglob("*") if file.is_file()]


@pytest.mark.parametrize(
    "given",
    [
        ["--checkpoints={path}"],
        ["--model.checkpoints=[{path}]"],
        ["--model.checkpoints+={path}"],
        ["--model={{class_path: Fidelity, init_args: {{checkpoints: [{path}]}}}}"],
        ["--config={folder}/nested.yaml"],
        ["--config={folder}/dotted.yaml"],
        ["--model={folder}/part.yaml"],
    ],
)
def test_options_change_the_data_that_a_checkpoint_implies(
    given: list[str], trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = {"class_path": "Fidelity", "init_args": {"checkpoints": [str(trained)]}}
    dotted = {"class_path": "Fidelity", "init_args.checkpoints": str(trained)}
    contents = {"nested": {"model": part}, "dotted": {"model": dotted}, "part": part}
    for name, content in contents.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    words = [word.format(path=trained, folder=tmp_path) for word in given]
    with pytest.raises(SystemExit, match="0"):
        commands.main(["measure", QUICK, *words, "--data.max_length=40", "--print_config"])
    data = yaml.safe_load(capsys.readouterr().out)["data"]["init_args"]
    implied = data_settings(trained, read_checkpoint(trained)).init_args
    assert data["corpus"] == implied.corpus
    assert data["max_length"] == 40 != implied.max_length


def of_places(folder: Path) -> dict[str, Any]:
    """Options of data that say where the program writes."""
    return {"cache": str(folder), "root": str(folder)}


@pytest.mark.parametrize("flat", [True, False])
def test_a_checkpoint_says_nothing_of_places_and_resources(
    flat: bool, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBING_CACHE", str(tmp_path / "own"))
    own = of_places(tmp_path / "theirs")
    given: dict[str, object] = {
        **own,
        "tokenizer": {"name": "some", "device_map": "auto"},
    }
    if flat:
        given = {f"init_args.{name}": value for name, value in given.items()}

    def change(config: dict[str, Any]) -> None:
        (config["data"] if flat else config["data"]["init_args"]).update(given)

    path = forged(trained, tmp_path / "forged.ckpt", change)
    data = datamodule_from(data_settings(path, read_checkpoint(path)))
    assert isinstance(data, ClassificationDataModule)
    plain = ClassificationDataModule(data.corpus)
    assert {name: getattr(data, name) for name in own} == {name: getattr(plain, name) for name in own}
    assert data.tokenizer is not None
    assert (data.tokenizer.name, data.tokenizer.device_map) == ("some", None)


@pytest.mark.parametrize("value", [[1], "text", 3])
def test_arguments_that_are_no_mapping_are_refused_in_a_line(value: object, trained: Path, tmp_path: Path) -> None:
    path = forged(trained, tmp_path / "forged.ckpt", lambda config: config["model"].update(init_args=value))
    with pytest.raises(TrainingError, match=rf"^{path}: this is not a checkpoint of a run"):
        read_checkpoint(path)


@pytest.mark.parametrize("option", ["hidden", "layers"])
def test_sizes_beyond_the_parameters_are_refused_before_anything_is_made(
    option: str, trained: Path, tmp_path: Path
) -> None:
    encoder = {"class_path": "RecurrentEncoder", "init_args": {option: 10**6}}
    path = forged(
        trained, tmp_path / "forged.ckpt", lambda config: config["model"]["init_args"].update(encoder=encoder)
    )
    with pytest.raises(TrainingError, match=rf"^{path}: .*{option} is 1,000,000, but the weights allow at most 10"):
        read_checkpoint(path)


NINE = "".join(f"{one}: &{one} [{', '.join(['*' + before] * 9)}]\n" for before, one in pairwise("abcdefghij"))
ALIASES = {
    "nine levels of nine": f"a: &a [1]\n{NINE}",
    "in itself": "a: &a {b: *a}\n",
    "merged": "a: &a {x: 1}\n" + NINE.replace("[", "{<<: [").replace("]", "]}"),
}


@pytest.mark.parametrize("place", ["config", "text in a config", "checkpoint", "plan", "command line"])
@pytest.mark.parametrize("kind", ALIASES)
def test_aliases_without_end_are_refused_at_once(kind: str, place: str, tmp_path: Path) -> None:
    text, path = ALIASES[kind], tmp_path / "received.yaml"
    path.write_text(text if place != "text in a config" else yaml.safe_dump({"model": text}), encoding="utf-8")
    before = time.process_time()
    if place == "checkpoint":
        assert config_of({"config": text}) == {"model": None}
    elif place == "command line":
        assert list(values_of(["--a", text])) == [("a", text)]
    elif place == "plan":
        with pytest.raises(UserError, match=rf"^{path} is not valid YAML in UTF-8: it has more than 20,000 values"):
            read_sweep(path)
    else:
        told = check(["measure", f"--config={path}"])
        assert told is not None
        assert str(path) in told
        assert len(told) < 2000
        assert "\n" not in told
        assert place == "text in a config" or "it has more than 20,000 values" in told
    assert time.process_time() - before < 5


ROUTES = {
    "fidelity": ["measure", QUICK, "--model.checkpoints={path}", "--model.tests=[Permutation]"],
    "ablation": ["measure", f"--config={CONFIGS}/kovaleva2019/ablation.yaml", "--model.checkpoint={path}"],
    "pruning": ["measure", f"--config={CONFIGS}/michel2019/pruning.yaml", "--model.checkpoint={path}"],
}


def of_route(route: str, path: Path) -> list[str]:
    return [word.replace("{path}", str(path)) for word in (*ROUTES[route], CPU, "--trainer.fast_dev_run=true")]


def of_transformer(route: str) -> dict[str, Any]:
    """Heads are those of such a classifier, which is found out once the data are known."""
    return {} if route == "fidelity" else {"_class_path": "TransformerClassifier"}


@pytest.mark.parametrize("route", ROUTES)
def test_what_tests_a_checkpoint_imports_nothing_of_its_data(
    route: str, trained: Path, evil: str, ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = forged(trained, tmp_path / "evil.ckpt", PLACES["data"], evil, **of_transformer(route))
    assert commands.main(of_route(route, path)) == 1
    *_, told = capsys.readouterr().err.splitlines()
    fault = f"{evil}.evil.X is in an external package, which only the command line may allow. If you trust it, "
    fault += f"add --trust {evil}.evil"
    assert fault in told
    assert not ran.exists()


@pytest.mark.parametrize("route", ROUTES)
def test_what_tests_a_checkpoint_opens_the_pickles_of_its_data_by_the_users_word_alone(
    route: str, trained: Path, ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors = tmp_path / "vectors.kv"
    vectors.write_bytes(pickle.dumps(Opened(ran)))

    def change(config: dict[str, Any]) -> None:
        config["data"]["init_args"]["vectors"] = {"name": str(vectors), "allow_pickle": True}

    path = forged(trained, tmp_path / "evil.ckpt", change, **of_transformer(route))
    assert commands.main(of_route(route, path)) == 1
    *_, told = capsys.readouterr().err.splitlines()
    assert "--data.vectors.allow_pickle=true" in told
    assert not ran.exists()
    assert commands.main([*of_route(route, path), "--data.vectors.allow_pickle", "true"]) == 1
    assert "vectors.kv: the word vectors cannot be read" in capsys.readouterr().err.splitlines()[-1]
    assert ran.exists()


@pytest.mark.parametrize("stage", ["fit", "validate", "test"])
def test_a_checkpoint_that_a_run_begins_with_imports_nothing(
    stage: str, trained: Path, evil: str, ran: Path, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(config: dict[str, Any]) -> None:
        for place in ("data", "encoder", "in a list"):
            PLACES[place](config)

    path = forged(trained, tmp_path / "evil.ckpt", change, evil)
    _, *command = classifier_arguments(CONFIGS / "demo_classifier.yaml", tmp_path, bert)
    # Only the parameters of the checkpoint are used; its training is not continued with another encoder.
    code = commands.main([stage, *command, f"--ckpt_path={path}"])
    assert code == (1 if stage == "fit" else 0)
    assert ("encoder.class_path strange_" in capsys.readouterr().err) == bool(code)
    assert not ran.exists()


@pytest.mark.parametrize("option", ["--config", "--data"])
@pytest.mark.parametrize("kind", ["class", "pickle"])
def test_a_config_imports_and_permits_nothing(
    kind: str, option: str, evil: str, ran: Path, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the config of a run that was received, nor a file with a part of one."""
    config = yaml.safe_load((CONFIGS / "demo_classifier.yaml").read_text(encoding="utf-8"))
    if kind == "class":
        config["data"]["class_path"] = f"{evil}.evil.X"
    else:
        config["data"]["init_args"]["vectors"] = {"name": "x.kv", "allow_pickle": True}
    given = tmp_path / "given.yaml"
    given.write_text(yaml.safe_dump(config if option == "--config" else config["data"]), encoding="utf-8")
    command = classifier_arguments(CONFIGS / "demo_classifier.yaml", tmp_path, bert, "--trainer.fast_dev_run=true")
    command.insert(2, f"{option}={given}")

    def told(*more: str) -> str:
        with suppress(SystemExit):
            commands.main([*command, *more])
        return capsys.readouterr().err

    if kind == "class":
        assert (
            f"{evil}.evil.X is in an external package, which only the command line may allow. If you trust it, add "
            f"--tru" in told()
        )
        assert not ran.exists()
        told(f"--trust={evil}.evil")
        assert ran.exists()
    else:
        allow = "data.init_args.vectors.allow_pickle"
        assert f"Error: {allow} is true in a config file, but only the command line may allow that. " in told()
        command.insert(2, f"--{allow}=false")
        assert f"add --{allow} true." in told()
        command.pop(2)
        assert "x.kv: there is no such file of word vectors" in told(f"--{allow}=true")


@pytest.mark.parametrize("option", ["--config", "--data", "neither"])
def test_code_among_the_files_of_an_encoder_is_run_by_the_users_word_alone(
    option: str, own_code_cache: None, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, ran = save_own(tmp_path / "own", tmp_path / "ran"), tmp_path / "ran"
    config = yaml.safe_load((CONFIGS / "clark2019" / "heads.yaml").read_text(encoding="utf-8"))
    config["data"]["init_args"] |= {"corpus": corpus, "random_init": False, "encoder": {"name": str(folder)}}
    if option != "neither":
        config["data"]["init_args"]["encoder"]["trust_remote_code"] = True
    given = {"config.yaml": config, "data.yaml": config["data"]}
    for name, content in given.items():
        (tmp_path / name).write_text(yaml.safe_dump(content), encoding="utf-8")
    command = ["measure", f"--config={CONFIGS}/clark2019/heads.yaml", f"--data={tmp_path}/data.yaml"]
    command = ["measure", f"--config={tmp_path}/config.yaml"] if option == "--config" else command
    command += [f"--data.cache={tmp_path}/stores", f"--trainer.default_root_dir={tmp_path}/runs", CPU]

    def told(*more: str) -> str:
        assert commands.main([*command, *more]) == 1
        assert not ran.exists()
        return capsys.readouterr().err

    if option == "neither":
        assert "it with --data.encoder.trust_remote_code=true (for a classifier" in told()
    else:
        allow = "data.init_args.encoder.trust_remote_code"
        assert f"{allow} is true in a config file, but only the command line may allow that" in told()
        assert f"add --{allow} true." in told("--data.encoder.dtype=float32")
        assert "files contain code (auto_map), which is not run" in told("--data.encoder.trust_remote_code=false")
    assert commands.main([*command, "--data.encoder.trust_remote_code", "true"]) == 0
    assert ran.exists()
    (record,) = (tmp_path / "runs").rglob("results.json")
    assert json.loads(record.read_text())["encoder"]["code_sha256"]
    # The config of the run permits nothing either.
    ran.unlink()
    command = ["measure", f"--config={record.parent}/config.yaml"]
    assert "encoder.trust_remote_code is true in a config file" in told()


def test_a_checkpoint_lets_no_code_of_an_encoder_run(trained: Path, tmp_path: Path) -> None:
    spec = {"name": "some", "trust_remote_code": True}
    change: Change = lambda config: config["data"]["init_args"].update(tokenizer=spec)  # noqa: E731
    path = forged(trained, tmp_path / "forged.ckpt", change)
    data = datamodule_from(data_settings(path, read_checkpoint(path)))
    assert isinstance(data, ClassificationDataModule)
    content = torch.load(path, weights_only=True)
    content[AttentionClassifier.checkpoint_key]["sizes"]["tokenizer"] = spec
    torch.save(content, path)
    assert AttentionClassifier.load_from_checkpoint(path).sizes.tokenizer == data.tokenizer == EncoderSpec("some")


@pytest.mark.slow
def test_a_class_of_ones_own_is_named_on_the_command_line(
    evil: str, ran: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its module is the user's word there; its checkpoint is read by that, or where it was imported."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    command = classifier_arguments(CONFIGS / "demo_classifier.yaml", tmp_path, bert, f"--model={evil}.evil.Own")
    assert commands.main(command) == 0
    (path,) = tmp_path.rglob("*.ckpt")
    own = importlib.import_module(f"{evil}.evil").Own
    assert isinstance(own.load_from_checkpoint(path), own)
    words = of_route("fidelity", path)
    trusting = [*words, f"--trust={evil}.evil"]
    code = f"from attention_probing.commands import main as run; print(run({words}), run({trusting}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "1 0"
    assert done.stderr.count(f"is a class of your own, add --trust {evil}.evil.") == 1


def test_a_checkpoint_whose_config_cannot_be_read_is_refused(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "nested.ckpt"
    torch.save({**torch.load(trained, weights_only=True), "config": "[" * 100_000, "hyper_parameters": {}}, path)
    with pytest.raises(TrainingError, match=r"nested\.ckpt: this is not a checkpoint of a run"):
        TextClassifier.load_from_checkpoint(path)


def test_what_tells_that_an_import_was_denied_stands_where_it_is_set() -> None:
    """`only_known_classes` puts back these entries, which jsonargparse has no public way to read."""
    before = dict(parsing_settings)
    with only_known_classes(["strange"]):
        changed = {name for name, value in parsing_settings.items() if value != before[name]}
        verdicts = parsing_settings["import_path_verdicts"]
        assert (verdicts["*"], verdicts["strange"]) == (False, True)
    assert changed == {"import_path_verdicts", "import_paths_enforced", "instantiate_subclass_spec_in_any"}
    assert "*" not in parsing_settings["import_path_verdicts"]


@pytest.mark.parametrize(
    ("words", "trusted"),
    [
        (["--model", "my.probe"], {"my"}),
        (["--data=my.data.Corpus"], {"my"}),
        (["--model.encoder.class_path=my.encoder"], {"my"}),
        (["--model.tests=[{class_path: my.test}, own.Test]"], {"my", "own"}),
        (["--trust", "my.module"], {"my.module"}),
        (["--data.corpus", "my.corpus"], set()),
        (["--data.corpus", "x" * 300], set()),
        (["--optimizer=torch.optim.AdamW"], set()),
        (["--trainer.callbacks=pytorch_lightning.callbacks.Timer"], set()),
        (["--model=torch.nn.Linear"], {"torch"}),
        (["--model.checkpoints=[evil.ckpt]"], set()),
    ],
)
def test_the_classes_of_a_command_line_are_trusted_and_its_files_are_not(words: list[str], trusted: set[str]) -> None:
    assert trusted_modules(values_of(words)) == trusted


def test_a_package_whose_folder_lies_here_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    for words in (["test", "--trust", "mine"], ["test", "--trust=[mine]"]):
        assert trusted_modules(values_of(words)) == {"mine"}


def test_python_is_told_of_no_option() -> None:
    denied = "Importing 'my.probe.X' is not allowed"
    assert str(UserError(explain_error(denied))).endswith("If you trust it, import my.probe first")
    with command_line():
        assert str(UserError(explain_error(denied))).endswith("If you trust it, add --trust my.probe")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--config=" + str(CONFIGS / "michel2019/pruning.yaml")], r"--checkpoints must be given\n$"),
        (
            ["--config=" + str(CONFIGS / "clark2019/heads.yaml"), "--data.options.quantity=norm"],
            r"Expected one of 'attention', 'attention_without_first', .*\. Got value: norm\n$",
        ),
    ],
)
def test_what_is_missing_and_what_can_be_chosen_is_named_plainly(
    words: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        launch.main(["measure", *words])
    assert re.search(fault, told := capsys.readouterr().err), told


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("learning_rat", 1, r"Option 'learning_rat' is not accepted"),
        ("learning_rate", "fast", r"learning_rate .*: Expected a float. Got value: fast"),
    ],
)
def test_a_stored_option_that_no_longer_fits_is_told_in_a_sentence(
    name: str, value: str | int, fault: str, trained: Path, tmp_path: Path
) -> None:
    """It ends no notebook by SystemExit."""
    path = forged(trained, tmp_path / "old.ckpt", lambda _: None, "", **{name: value})
    with pytest.raises(TrainingError, match=rf"old\.ckpt: .*{fault}") as told:
        TextClassifier.load_from_checkpoint(path)
    assert "\n" not in str(told.value)


def as_in_version_1(node: Any) -> Any:  # noqa: ANN401
    """A config in which version 1 would name the classes: by their room, without the package."""
    if isinstance(node, list):
        return [as_in_version_1(one) for one in node]
    if not isinstance(node, dict):
        return node
    found = {key: as_in_version_1(value) for key, value in node.items()}
    name = str(node.get("class_path")).rpartition(".")[2]
    if name in exported_classes():
        found["class_path"] = f"{exported_classes()[name].rpartition('.')[2]}.{name}"
    return found


def test_a_checkpoint_and_a_config_of_version_1_are_read(trained: Path, tmp_path: Path) -> None:
    before = torch.load(trained, weights_only=True)
    old = as_in_version_1(yaml.safe_load(before["config"]))
    text = yaml.safe_dump(old)
    assert PACKAGE not in text
    kinds = ("AttentionClassifier", "RecurrentEncoder", "AdditiveAttention", "EarlyStoppingBySteps")
    named = [*(f"models.{kind}" for kind in kinds), f"datamodules.{ClassificationDataModule.__name__}"]
    assert sorted(re.findall(r"class_path: (\S+)", text)) == sorted(named)
    path, config = tmp_path / "old.ckpt", tmp_path / "old.yaml"
    parameters = {"_class_path": named[0]}
    torch.save({**before, "config": text, "hyper_parameters": {**before["hyper_parameters"], **parameters}}, path)
    config.write_text(text, encoding="utf-8")
    read, known = TextClassifier.load_from_checkpoint(path), TextClassifier.load_from_checkpoint(trained)
    assert type(read) is type(known) is AttentionClassifier
    texts = ["a fine film", "a dull plot"]
    pd.testing.assert_frame_equal(read.predict_texts(texts), known.predict_texts(texts))
    assert data_settings(path, read_checkpoint(path)) == data_settings(trained, read_checkpoint(trained))
    assert check(["test", f"--config={config}", f"--ckpt_path={path}"]) is None
    assert check(["measure", QUICK, f"--model.checkpoints=[{path}]"]) is None
    # In a comparison of runs they are the same settings.
    assert score_settings(old) == score_settings(yaml.safe_load(before["config"]))


@pytest.mark.parametrize("name", ["clark2019/heads", "fidelity/quick", "hewitt2019/control"])
def test_a_measurement_of_version_1_is_read(name: str, trained: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
    old = as_in_version_1(config)
    assert old != config
    path = tmp_path / "old.yaml"
    path.write_text(yaml.safe_dump(old), encoding="utf-8")
    words = [f"--model.checkpoints=[{trained}]"] if "fidelity" in name else ["--data.corpus=sample"]
    assert check(["measure", f"--config={path}", *words]) is None
    assert score_settings(old) == score_settings(config)


def test_a_class_of_a_users_package_with_the_name_of_a_room_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.py").write_text(
        "from attention_probing import AttentionOnlyProbe\nclass Mine(AttentionOnlyProbe):\n    pass\n",
        encoding="utf-8",
    )
    (tmp_path / "models" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    words = ["fit", f"--config={CONFIGS}/demo.yaml", "--model=models.mine.Mine"]
    assert check(words) is None
    config = tmp_path / "own.yaml"
    config.write_text((CONFIGS / "demo.yaml").read_text("utf-8").replace("AttentionOnlyProbe", "models.mine.Mine"))
    refused = str(check(["fit", f"--config={config}"]))
    assert "models.mine.Mine is in an external package" in refused
    assert refused.endswith("add --trust models.mine")
    assert check(["fit", f"--config={config}", "--trust=models.mine"]) is None


def test_options_that_are_dataclasses_of_a_reader_are_of_this_program(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.csv").write_text("review,stars\nfine,5\n", encoding="utf-8")
    words = ["fit", "--config=configs/demo_classifier.yaml", f"--data.corpus={tmp_path}/{{split}}.csv"]
    words += ["--data.columns.text=review", "--data.columns.label=stars"]
    found = check(words)
    assert found is None


@pytest.mark.parametrize("option", ["device_map"])
@pytest.mark.parametrize("form", ["{} null", "{}=null"])
def test_the_default_null_may_be_given(option: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = form.format(f"--data.encoder.{option}").split()
    with suppress(SystemExit):
        launch.main(["measure", f"--config={CONFIGS}/clark2019/heads.yaml", *words, "--print_config"])
    settings = yaml.safe_load(capsys.readouterr().out)
    assert settings["data"]["init_args"]["encoder"][option] is None


@pytest.mark.parametrize("route", ROUTES)
def test_data_of_another_package_in_a_checkpoint_are_refused_in_a_line(
    route: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    boring = "pytorch_lightning.demos.boring_classes.BoringDataModule"
    path = forged(
        trained,
        tmp_path / "forged.ckpt",
        lambda config: config.update(data={"class_path": boring}),
        **of_transformer(route),
    )
    assert commands.main(of_route(route, path)) == 1
    *_, told = capsys.readouterr().err.splitlines()
    assert "BoringDataModule" in told


def test_data_of_another_package_can_be_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    boring = "pytorch_lightning.demos.boring_classes.BoringDataModule"
    path.write_text(f"model: AttentionOnlyProbe\ndata: {boring}\n", encoding="utf-8")
    assert check(["fit", f"--config={path}", CPU]) is None


@pytest.mark.parametrize("command", ["measure", "fit"])
@pytest.mark.parametrize("key", ["config", "data", "model", "data.init_args.encoder", "trainer.callbacks"])
def test_a_config_reads_no_file_that_the_command_line_does_not_name(key: str, command: str, tmp_path: Path) -> None:
    """Neither as a config, nor in place of a class or a list."""
    secret = tmp_path / "secret"
    secret.write_text("{class_path: secret-of-the-user}\n", encoding="utf-8")
    content = {
        "model": {"class_path": "SingleHeads" if command == "measure" else "AttentionOnlyProbe"},
        "data": {"class_path": "DependencyDataModule", "init_args": {"corpus": "sample"}},
        "trainer": {"max_epochs": 1} if command == "fit" else {"devices": 1},
    }
    if key == "trainer.callbacks" and command == "measure":
        pytest.skip("a measurement has no callbacks")
    place: Any = content
    *outer, last = key.split(".")
    for name in outer:
        place = place[name]
    place[last] = str(secret)
    path = tmp_path / "received.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    told = check([command, f"--config={path}"])
    assert told is not None
    assert f"{secret} is the path of a file, and only the command line may name a file of settings" in told
    assert "secret-of-the-user" not in told
    assert "\n" not in told


def test_a_file_of_settings_that_the_command_line_names_is_read(tmp_path: Path) -> None:
    part = tmp_path / "data.yaml"
    part.write_text("{class_path: DependencyDataModule, init_args: {corpus: sample}}\n", encoding="utf-8")
    path = tmp_path / "model.yaml"
    path.write_text("model: SingleHeads\n", encoding="utf-8")
    assert check(["measure", f"--config={path}", f"--data={part}"]) is None


def test_a_logger_that_is_not_installed_is_said_in_a_line(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = "--trainer.logger=pytorch_lightning.loggers.WandbLogger"
    assert commands.main(classifier_arguments(CONFIGS / "demo_classifier.yaml", tmp_path, bert, logger)) == 1
    *_, told = capsys.readouterr().err.splitlines()
    assert "pytorch_lightning.loggers.WandbLogger needs the package wandb" in told
    assert told.endswith("which is not installed. Install it, or leave the class out.")


def more_groups(state: dict[str, Any]) -> None:
    state["param_groups"] *= 2


@pytest.mark.parametrize("change", [more_groups, dict.clear], ids=["other groups", "no groups"])
def test_a_training_goes_on_from_no_other_optimizer(
    change: Callable[[dict[str, Any]], object],
    trained: Path,
    bert: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = torch.load(trained, weights_only=True)
    change(content["optimizer_states"][0])
    path = tmp_path / "other.ckpt"
    torch.save(content, path)
    command = classifier_arguments(CONFIGS / "demo_classifier.yaml", tmp_path, bert, f"--ckpt_path={path}")
    assert commands.main([*command, "--trainer.max_epochs=3"]) == 1
    *_, told = capsys.readouterr().err.splitlines()
    assert f"{path}: training cannot be continued from this checkpoint" in told
    assert not [*(tmp_path / "runs").rglob("*")], "no folder of a run is left"


def test_parsers_of_other_programs_in_the_process_read_their_own_files(tmp_path: Path) -> None:
    path = tmp_path / "theirs.yaml"
    path.write_text("rate: 2\n", encoding="utf-8")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--rate", type=int)
    assert parser.parse_args([f"--config={path}"]).rate == 2
    with only_named_files(()), pytest.raises(ArgumentError, match=IS_FILE):
        parser.parse_args([f"--config={path}"])


@pytest.mark.parametrize("prefix", PIPES)
def test_a_pipe_of_the_shell_is_a_config(prefix: str) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"rate: 2\n")
    os.close(writing)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--rate", type=int)
    with only_named_files([f"{prefix}{reading}"]):
        assert parser.parse_args([f"--config={prefix}{reading}"]).rate == 2
    os.close(reading)
