"""Options that had another name in version 3.0: refused with the new name, and still read in files of that version."""

from pathlib import Path

import pytest
import torch
import yaml

from attention_probing import commands
from attention_probing.commands import launch, lightning
from attention_probing.commands.command_line import CommandLine
from attention_probing.commands.parser import Parser
from attention_probing.datamodules import DependencyDataModule
from attention_probing.models.checkpoints import data_settings, datamodule_from, read_checkpoint
from attention_probing.results import Provenance, Result
from attention_probing.results.errors import UserError
from attention_probing.results.reader import read_config
from attention_probing.results.record import read_record
from attention_probing.results.settings import with_new_names
from attention_probing.results.writer import write

OLD = {
    "model": {"class_path": "AttentionOnlyProbe"},
    "data": {"class_path": "DependencyDataModule", "init_args": {"max_sentences": 7}},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config of version 3.0."""
    path = tmp_path / "old.yaml"
    path.write_text(yaml.safe_dump(OLD))
    return path


def test_the_command_line_says_the_new_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["fit", "demo", "--data.max_sentences", "20"]) == 2
    message = (
        "data (DependencyDataModule): --data.max_sentences is now --data.batch_size, the size of a training batch. To "
        "read fewer sentences, give --data.limit."
    )
    assert capsys.readouterr().err == f"Error: {message}\n"
    assert launch.check(["fit", "demo", "--data.max_sentences", "20"]) == message  # as for the row of a plan


def test_a_config_goes_on_with_a_warning(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    line = CommandLine.from_words(["fit", "--config", str(config), "--data.max_cells", "99"])
    data = lightning.CheckedCLI(line).datamodule
    assert (data.batch_size, data.max_cells) == (7, 99)
    told = [record.message for record in caplog.records if "max_sentences" in record.message]
    assert told == [
        f"{config}: data.init_args.max_sentences is now data.init_args.batch_size. It is read all the same; write the "
        "new name there."
    ]


@pytest.mark.parametrize("dotted", [False, True])
def test_an_option_under_both_names_is_refused_wherever_it_stands(
    dotted: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data: dict[str, object] = {"class_path": "DependencyDataModule", "init_args": {"max_sentences": 7}}
    if dotted:
        data["init_args.batch_size"] = 8
    else:
        data["init_args"] = {"max_sentences": 7, "batch_size": 8}
    text = yaml.safe_dump({**OLD, "data": data})
    message = "data has both max_sentences and batch_size, its new name. Remove max_sentences."

    config = tmp_path / "config.yaml"
    config.write_text(text)
    assert commands.main(["fit", "--config", str(config)]) == 1
    assert capsys.readouterr().err == f"Error: {config}: {message}\n"
    assert launch.check(["fit", "--config", str(config)]) == f"{config}: {message}"  # as for the row of a plan
    with pytest.raises(UserError, match=f"^{message}$"):
        Parser().parse_string(text)

    with pytest.raises(UserError, match=f"^{message}$"):
        data_settings(Path("a.ckpt"), {"config": text})
    checkpoint = tmp_path / "a.ckpt"
    torch.save({"state_dict": {}, "epoch": 0, "pytorch-lightning_version": "2.6", "config": text}, checkpoint)
    with pytest.raises(UserError, match=f"^{checkpoint}: {message}$"):
        read_checkpoint(checkpoint)

    write(tmp_path, Result("trees", {}), Provenance({}, {}, {}))
    with pytest.raises(UserError, match=f"^{config}: {message}$"):
        read_config(read_record(tmp_path / "results.json"))


def test_the_settings_in_a_checkpoint_are_read(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = datamodule_from(data_settings(Path("a.ckpt"), {"config": config.read_text()}))
    assert isinstance(data, DependencyDataModule)
    assert data.batch_size == 7
    assert "max_sentences" not in caplog.text  # there is nothing to write in a checkpoint


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ({"class_path": "DependencyDataModule", "init_args.max_sentences": 7}, {"init_args.batch_size"}),
        ({"class_path": "near.Own", "max_sentences": 7}, {"max_sentences"}),
        ({"class_path": "ClassificationDataModule", "max_sentences": 7}, {"max_sentences"}),
        ({"max_sentences": 7}, {"max_sentences"}),
    ],
)
def test_only_the_class_that_had_the_option_is_renamed(data: dict[str, object], names: set[str]) -> None:
    renamed = with_new_names({"data": data})
    assert isinstance(renamed, dict)
    assert renamed["data"].keys() - {"class_path"} == names


@pytest.mark.parametrize("config", [None, [], "text", {}, {"data": None}, {"model": {"max_sentences": 2}}])
def test_settings_without_old_names_stay_the_same_object(config: object) -> None:
    assert with_new_names(config) is config
