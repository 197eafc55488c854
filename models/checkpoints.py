"""Reading of checkpoints: a received file is data, and may name only classes of this program."""

import inspect
import re
import warnings
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace

from attention_probing.datamodules.corpus import CorpusDataModule
from attention_probing.models.configs import (
    class_of,
    imported_classes,
    only_known_classes,
    only_named_files,
    without_permissions,
)
from attention_probing.models.parser_messages import explain_error
from attention_probing.results.errors import UserError, refuse_lack_of_memory
from attention_probing.results.files import check_regular
from attention_probing.results.progress import warn
from attention_probing.results.settings import PACKAGE, ROOMS, BoundedLoader, leaves, with_new_names

if TYPE_CHECKING:
    from pytorch_lightning import LightningModule

CHECKPOINT_FORMAT = 1
"""Version of the content of checkpoints, which those of 0.x lack; raise it when older ones cannot be read."""
LOCAL = frozenset({"root", "cache", "device_map"})
"""Options of data, and of encoders in them, that name places or resources of a machine; the command line has its own,
and takes no other's."""
CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints in the folder of a run."""
LAST = "last.ckpt"
"""File with the saved training in the folder `state-…` of an unfinished run."""
_SIZE = re.compile(r"\b(layers|hidden|size|filters|kernels|project|ranks|vocabulary|vectors|classes)\b")
NOT_OF_A_RUN = "this is not a checkpoint of a run. Give a file that `probing fit` has written to checkpoints/."
NO_CHECKPOINT = "contain no checkpoint (*.ckpt) of a finished training"
_OTHER_FILE = "Give a file that `probing fit` has written to checkpoints/ of its run, or train again."


class TrainingError(UserError):
    """Error for an untrained module, a failed training, or a checkpoint that cannot be used."""


def checkpoint_file(path: str | Path) -> Path:
    """Return the path of a checkpoint file, with `~` expanded to the home folder.

    Args:
        path: The file, or a folder with only one checkpoint below it.

    Raises:
        TrainingError: There is no such file, or the folder has no checkpoint or several.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        return only_checkpoint(file, checkpoints_at(file))
    try:
        check_regular(file)
    except OSError as error:
        fault = f"the checkpoint cannot be read ({error.strerror})"
        if isinstance(error, FileNotFoundError):
            fault = "there is no such checkpoint"
        raise TrainingError(
            f"{file}: {fault}. Give a file that `probing fit` has written to checkpoints/ of its run."
        ) from None
    return file


def checkpoints_at(path: Path) -> list[Path]:
    """Return the file itself, or all checkpoints below a folder; saved states of unfinished runs are left out."""
    if not path.is_dir():
        return [path]
    files = []
    for file in sorted(path.rglob("*.ckpt")):
        folders = file.relative_to(path).parts[:-1]  # not those above, of any name
        if not any(folder.startswith("state-") for folder in folders):
            files.append(file)
    return files


def only_checkpoint(folder: Path, files: Sequence[Path]) -> Path:
    """Return the checkpoint of a folder that has only one.

    Args:
        folder: The folder.
        files: All checkpoints below it.

    Raises:
        TrainingError: There is none, or there are several.
    """
    if not files:
        raise TrainingError(f"{folder}: the folder and its subfolders {NO_CHECKPOINT}. {_OTHER_FILE}")
    if len(files) > 1:
        names = ", ".join(str(file.relative_to(folder)) for file in files)
        raise TrainingError(f"{folder}: the folder has several checkpoints, {names}. Name one of them.")
    return files[0]


def read_checkpoint(path: Path) -> Mapping[str, Any]:
    """Return the content of a checkpoint file; its tensors are memory-mapped.

    Raises:
        TrainingError: The file is damaged, or it is not a checkpoint of a run.
    """
    try:
        fault = damage(path)
    except OSError as error:
        raise TrainingError(
            f"{path}: the checkpoint cannot be read ({error.strerror or error}). Check its permissions."
        ) from None
    if fault is not None:
        raise TrainingError(f"{path}: {fault}. {_OTHER_FILE}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # the unpickler raises almost any exception on foreign bytes
        refuse_lack_of_memory(error, path)
        content = None
    if not isinstance(content, dict) or not {"state_dict", "epoch", "pytorch-lightning_version"} <= content.keys():
        raise TrainingError(f"{path}: {NOT_OF_A_RUN}")
    model = config_of(content, f"{path}: ").get("model")
    parts = [content["state_dict"], (model.get("init_args") if isinstance(model, Mapping) else None) or {}]
    if not all(isinstance(part, Mapping) for part in parts):
        raise TrainingError(f"{path}: {NOT_OF_A_RUN}")
    _refuse_sizes(path, content)
    if "trained_on" in content and content.get("format") != CHECKPOINT_FORMAT:
        from pytorch_lightning import LightningModule

        _parse(LightningModule, "model", path, model or {})  # names an option that there is no more
        raise TrainingError(f"{path}: version 0.x of this program wrote the checkpoint. Train the model again.")
    return content


def training_fault(path: Path, content: Mapping[str, Any]) -> str:
    """Return a warning if the run in whose folder a checkpoint lies has not ended its training; else an empty string.

    Such a run keeps its saved state in the folder `state-…` beside `checkpoints/` until its test has ended. A
    checkpoint that was moved elsewhere does not tell.

    Args:
        path: The checkpoint.
        content: Its content, from `read_checkpoint`.
    """
    run = path.absolute().parent.parent
    states = sorted(run.glob("state-*")) if path.absolute().parent.name == CHECKPOINTS else []
    if not states:
        return ""
    epochs = content["epoch"] + 1
    last = states[-1] / LAST
    if last.is_file() and damage(last) is None:
        saved = torch.load(last, map_location="cpu", weights_only=True, mmap=True)
        if saved["resume"]["ended"]:
            return ""
        epochs = max(epochs, saved["epoch"])
    trainer = config_of(content).get("trainer")
    most = trainer.get("max_epochs") if isinstance(trainer, Mapping) else None
    of_epochs = f" of at most {most}" if isinstance(most, int) and most > 0 else ""
    return (
        f"{path}: the training of this checkpoint was interrupted or still goes on (epoch {epochs}{of_epochs}; no "
        "results.json), so its scores are not those of a trained model. The same `fit` command goes on from there"
    )


def warn_of_interrupted_training(path: Path, content: Mapping[str, Any]) -> None:
    """Log the warning of `training_fault`, if there is one."""
    fault = training_fault(path, content)
    if fault:
        warn(f"{fault}.")


def _refuse_sizes(path: Path, content: Mapping[str, Any]) -> None:
    """Raise TrainingError if a size of the model is larger than every size of its parameters, before it is made."""
    parameters = [value for value in dict(content["state_dict"]).values() if isinstance(value, torch.Tensor)]
    most_layers = max(100, len(parameters))
    most = 10_000
    for parameter in parameters:
        most = max(most, *parameter.shape, 0)
    settings = [config_of(content).get("model"), content.get("hyper_parameters")]
    for part in content.values():
        if isinstance(part, Mapping):
            settings.append(part.get("sizes"))
    for name, number in leaves(settings):
        bound = most_layers if ".layers" in name else most
        if isinstance(number, int) and number > bound and _SIZE.search(name):
            fault = f"{name.partition('.')[2]} is {number:,}, but the weights allow at most {bound:,}."
            raise TrainingError(f"{path}: {fault}")


def damage(path: Path) -> str | None:
    """Return why a file is not a whole checkpoint, which is a zip archive; None if it is one.

    Raises:
        OSError: The file cannot be opened.
    """
    try:
        with check_regular(path).open("rb") as file:
            magic = file.read(2)
    except FileNotFoundError:
        return "the checkpoint is missing"
    if magic != b"PK":
        return "this is not a checkpoint of a run"
    try:
        with zipfile.ZipFile(path) as archive:
            # PyTorch compresses nothing. What is compressed may be a thousand times as long as the file.
            if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
                return "this is not a checkpoint of a run"
            damaged_part = archive.testzip()  # PyTorch compares no checksum: a flipped weight would be loaded
    except Exception as error:  # zipfile raises almost any exception on a damaged archive
        refuse_lack_of_memory(error, path)
        return "the checkpoint is damaged: it cannot be read as a zip archive"
    if damaged_part is None:
        return None
    return f"the checkpoint is damaged: its part {damaged_part} has a wrong checksum"


def configured_model(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return `class_path` and `init_args` of the module in a checkpoint.

    `class_path` is empty if the checkpoint does not name the class of its module.

    Args:
        path: Path of the checkpoint, for error messages.
        content: Content of the checkpoint, from `read_checkpoint`.

    Raises:
        TrainingError: The entries for the class and its arguments do not have the form that a run writes.
    """
    model = (config_of(content) if "config" in content else {}).get("model", {})
    parameters = content.get("hyper_parameters") or {}
    if not isinstance(model, Mapping) or not isinstance(parameters, Mapping):
        raise TrainingError(f"{path}: {NOT_OF_A_RUN}")
    name = ""
    for named in (model.get("class_path"), parameters.get("_class_path")):
        if named is not None and not isinstance(named, str):
            raise TrainingError(f"{path}: {NOT_OF_A_RUN}")
        name = named or name
    arguments = dict(model.get("init_args") or {})
    for key, value in parameters.items():
        if not str(key).startswith("_"):
            arguments[key] = value
    return {"class_path": name, "init_args": arguments}


def data_settings(path: Path, content: Mapping[str, Any]) -> Namespace:
    """Return the settings of the datamodule on which the module in a checkpoint was trained.

    Options that name a folder or a device, such as `cache` and `device_map`, have their defaults, also in nested
    settings.

    Args:
        path: Path of the checkpoint, for error messages.
        content: Content of the checkpoint, from `read_checkpoint`.

    Raises:
        TrainingError: The checkpoint has no settings of a datamodule, or this program cannot use them.
    """
    data = config_of(content).get("data")
    if not isinstance(data, Mapping):
        raise TrainingError(
            f"{path}: the checkpoint does not contain the settings of its data, which `probing fit` writes. "
            f"Train the model again with that command."
        )
    # Parsed twice, because settings in a file may be text or have dotted names, and lack their defaults afterwards.
    complete = _parse(CorpusDataModule, "data", path, data)
    return _parse(CorpusDataModule, "data", path, _without(LOCAL, complete))


def _without(options: Collection[str], settings: Any) -> Any:  # noqa: ANN401 # of any kind
    """Return settings without the options of these names, at every depth."""
    if isinstance(settings, Namespace):
        settings = vars(settings)
    if isinstance(settings, list | tuple):
        return [_without(options, value) for value in settings]
    if not isinstance(settings, dict):
        return settings
    others = {}
    for name, value in settings.items():
        if str(name).rpartition(".")[2] not in options:
            others[name] = _without(options, value)
    return others


def datamodule_from(settings: Namespace) -> CorpusDataModule[Any]:
    """Construct the datamodule that settings describe; its `setup` is not called."""
    data = _make(CorpusDataModule, "data", settings)
    assert isinstance(data, CorpusDataModule)
    return data


def config_of(content: Mapping[str, Any], place: str = "") -> Mapping[str, Any]:
    """Return the config of the run that wrote a checkpoint; `{"model": None}` if it is missing or unreadable.

    Options that had other names in version 3.0 have their new names.

    Args:
        content: Content of the checkpoint.
        place: Beginning of an error message, such as `my.ckpt: `.

    Raises:
        SettingsError: An option of the data is given under its old and its new name.
    """
    unreadable: Mapping[str, Any] = {"model": None}
    text = content.get("config")
    if not isinstance(text, str):
        return unreadable
    try:
        config = yaml.load(text, BoundedLoader)
    except (yaml.YAMLError, ValueError, RecursionError):  # of an impossible date; of brackets without end
        return unreadable
    config = with_new_names(config, place)
    return config if isinstance(config, Mapping) else unreadable


Module = TypeVar("Module", bound="LightningModule")


def instantiate(
    base: type[Module], path: Path, model: Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> Module:
    """Construct a module from the settings in a checkpoint, without loading its parameters.

    Args:
        base: Class of the module, or one of its base classes.
        path: Path of the checkpoint, for error messages.
        model: `class_path` and `init_args` of the module, from `configured_model`.
        options: Constructor arguments that override the settings of the checkpoint.

    Raises:
        TrainingError: The module is not a `base`, its class is not known, or this program cannot use the
            settings.
    """
    name = model.get("class_path", "")
    arguments = {**model.get("init_args", {}), **(options or {})}
    if not name:  # trained by a program, not by a command
        if getattr(getattr(base, "build", None), "__isabstractmethod__", False):
            raise TrainingError(
                f"{path}: the checkpoint does not name its class, and {base.__name__} is only a base class. Load it "
                "with load_from_checkpoint of the class that was trained."
            )
        parameters = inspect.signature(base).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        if not takes_all:
            arguments = {name: value for name, value in arguments.items() if name in parameters}
        return base(**arguments)
    kind = name.rpartition(".")[2]
    class_of(kind)  # imports a class of this program
    if kind not in _names_below(base):
        message = (
            f"{path} is a checkpoint of {kind}, not of {base.__name__}. Give a checkpoint of {base.__name__}, or load "
            f"this one in Python with {kind}.load_from_checkpoint."
        )
        package = name.rpartition(".")[0]
        if package.partition(".")[0] not in (PACKAGE, *ROOMS):
            message += f" If it is a class of your own, add --trust {package}."
        raise TrainingError(message)
    settings = _parse(base, "model", path, {"class_path": name, "init_args": arguments})
    module = _make(base, "model", settings)
    assert isinstance(module, base)
    return module


def _parse(base: type, part: str, path: Path, settings: Mapping[str, Any]) -> Namespace:
    """Parse the settings in a received file, and set all permissions to False.

    Raises:
        TrainingError: They name a class of another program or an invalid option.
    """
    parser = _parser(base, part)
    try:
        with only_known_classes(imported_classes(settings)), only_named_files(()):
            parsed = parser.parse_object({part: settings})
    except ArgumentError as error:
        fault = explain_error(str(error))
        advice = "" if "If you trust it" in fault else " Use the version of this program that wrote it, or train again."
        raise TrainingError(
            f"{path}: the settings of --{part} in the checkpoint cannot be used here: {fault}.{advice}"
        ) from None
    return without_permissions(parsed[part])


def _make(base: type, part: str, settings: Namespace) -> object:
    """Return the object described by settings."""
    with only_known_classes(imported_classes(settings.as_dict())), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # jsonargparse 4.49 has another name for it
        return _parser(base, part).instantiate_classes(Namespace({part: settings}))[part]  # type: ignore[no-untyped-call]


def _parser(base: type, part: str) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(base, part, fail_untyped=False, required=True)
    return parser


def _names_below(base: type) -> set[str]:
    """Return the names of a class and of all its imported subclasses; import none."""
    below: list[type] = base.__subclasses__()
    return {base.__name__}.union(*map(_names_below, below))
