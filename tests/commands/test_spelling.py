"""Options that nothing takes, told from the source of the classes; the parser that imports them has the last word."""

import inspect
import subprocess
import sys
from argparse import SUPPRESS

import jsonargparse
import pytest
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from attention_probing import commands
from attention_probing.commands import RUNS, launch, lightning, measure, spelling
from attention_probing.commands.command_line import CommandLine
from attention_probing.datamodules import CorpusDataModule
from attention_probing.measures import Measure
from attention_probing.models.configs import class_of
from attention_probing.results.figure_files import FigureFiles
from attention_probing.results.settings import exported_classes


def arguments_of(kind: type) -> set[str]:
    """The names of the options of a class, as jsonargparse finds them in the imported class."""
    parser = jsonargparse.ArgumentParser()
    parser.add_class_arguments(kind, "of", fail_untyped=False)
    names = (action.dest.partition(".")[2].partition(".")[0] for action in parser._actions)
    return {name for name in names if name}


CLASSES = [
    kind
    for kind in map(class_of, exported_classes())
    if isinstance(kind, type)
    and issubclass(kind, (LightningModule, CorpusDataModule, Measure))
    and not inspect.isabstract(kind)
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_the_arguments_in_the_source_are_those_of_the_class(kind: type) -> None:
    assert set(spelling._arguments_of(kind.__name__) or ()) == arguments_of(kind)


@pytest.mark.parametrize("command", RUNS)
def test_the_options_of_fixed_names_are_those_of_the_parser(command: str) -> None:
    groups = {name: set(known or ()) for name, known in spelling._groups(command).items()}
    parser: jsonargparse.ArgumentParser = measure.make_parser()
    if command == "measure":
        assert groups == {"trainer": arguments_of(measure.Devices), "figures": arguments_of(FigureFiles)}
        plain = {*spelling.OF_ALL, "twin"}
    else:
        parser = lightning.CheckedCLI(CommandLine.from_words(["fit", "demo"])).parser_of(command)
        classes = {"trainer": Trainer, "checkpoint": ModelCheckpoint, "figures": FigureFiles}
        assert groups == {name: arguments_of(kind) for name, kind in classes.items()}
        plain = {*spelling.OF_ALL, *spelling.OF_TRAINER}
    shown = [action for action in parser._actions if action.help != SUPPRESS]  # not of jsonargparse
    names = {action.dest.partition(".")[0] for action in shown}
    assert names <= plain | groups.keys()


WRONG = [
    ("measure clark2019/heads --model.mod paper", "model (SingleHeads): Option 'mod' is not accepted (did you mean"),
    ("measure clark2019/heads --trainer.device 2", "--trainer.device 2 (did you mean `--trainer.devices`?)"),
    ("measure clark2019/heads --nosuch 1", "unrecognized arguments: --nosuch 1"),
    ("fit demo --trainer.max_epoch=3", "(did you mean `--trainer.max_epochs`?)"),
    (
        "fit demo --data.init_args.corpsu=x",
        "data (DependencyDataModule): Option 'corpsu' is not accepted (did you mean",
    ),
    ("fit demo --checkpoint.monitr x", "--checkpoint.monitr x (did you mean `--checkpoint.monitor`?)"),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_a_wrong_option_is_told_as_the_parser_tells_it(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(words.split()) == 2
    early = capsys.readouterr().err
    assert early.startswith("Error: ")
    assert message in early
    with pytest.raises(SystemExit, match="2"):
        launch.main(words.split())
    late = capsys.readouterr().err
    assert late.replace("=", " ").replace("init_args.", "") == early.replace("=", " ").replace("init_args.", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fit clark2019/heads", "model: SingleHeads is a measurement. Run it with `probing measure`"),
        ("measure demo", "model: AttentionOnlyProbe is a model that is trained. Run it with `probing fit`"),
    ],
)
def test_a_model_of_another_command_is_told_as_the_parser_tells_it(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(words.split()) == 2
    assert capsys.readouterr().err == f"Error: {message}\n"
    with pytest.raises(SystemExit, match="2"):
        launch.main(words.split())
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "measure clark2019/heads --model.help --data.help",
        "measure clark2019/surface --model.analyses+=near.Near --model.analyses.distance 3",
        "fit demo --model near.AttentionOnlyProbe --model.extra 2",
        "fit demo --model probes.AttentionOnlyProbe --trust probes --model.extra 2",
        "fit demo --model own.Probe --model.anything 1 --data.transfer_from.x 1",
        "fit demo --trainer.callbacks+=X --trainer.callbacks.patience 3 --optimizer.lr 1 --seed_everything -1",
        "fit demo -c other.yaml --print_config --figures.formats [] --trainer.limit_test_batches -1",
    ],
)
def test_what_the_source_does_not_decide_is_left_to_the_parser(words: str) -> None:
    assert spelling.wrong_option(CommandLine.from_long(words.split())) is None


def test_a_wrong_option_is_told_before_anything_is_imported() -> None:
    lines = [words.split() for words, _ in WRONG]
    code = f"from attention_probing import commands\nfor words in {lines}: assert commands.main(words) == 2"
    command = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "attention_probing.commands.spelling" in loaded
    assert not {"torch", "pytorch_lightning", "jsonargparse", "transformers"} & set(loaded)
