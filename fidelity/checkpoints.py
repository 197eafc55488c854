"""Trained classifiers from their checkpoints alone: what they are, and which of them differ by the seed only."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.utilities.seed import isolate_rng

from datamodules import ClassificationDataModule
from models import AttentionClassifier, ModelError, TextClassifier
from results.digests import Digests
from results.errors import UserError
from training import TrainingError
from training.checkpoints import config_of, instantiate, read_checkpoint
from training.config import settings

Config = Mapping[str, Any]

# Options of the trainer that belong to the recipe of a training, and all that it depends on.
OPTIMISATION = ("gradient_clip_val", "gradient_clip_algorithm", "accumulate_grad_batches")
TRAINING = ("max_epochs", "max_steps", "precision", "limit_train_batches", *OPTIMISATION)
READING = ("eval_tokens",)  # options of the data that it does not depend on


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A trained classifier."""

    path: Path
    digest: str  # SHA-256 of the file
    config: Config  # of its run
    name: str
    """Unique among those that are tested, as `tying, seed 1`."""
    variant: str
    """Shared with those that differ from it in nothing but the seed, as `tying`."""
    model: TextClassifier
    """On the CPU as it was loaded, in evaluation mode, its parameters without gradients."""

    @property
    def seed(self) -> int:
        return seed_of(self.config)

    def untrained(self, data: ClassificationDataModule, seed: int) -> TextClassifier:
        """A classifier of the same configuration for the same data, drawn from a seed and untrained, on the CPU."""
        with isolate_rng():
            torch.manual_seed(seed)
            model = classifier_of(self.path, self.config)
            model.make_for(data)
        return model


def seed_of(config: Config) -> int:
    """The seed that a run was made with; -1 where it is not known."""
    seed = config["seed_everything"]
    # `true` draws one, which the run does not keep; `false` sets none.
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else -1


def read(path: Path) -> tuple[Config, Mapping[str, Any]]:
    """How the run of a checkpoint was made, and the content of its file; a UserError if it is no classifier's."""
    try:
        content = read_checkpoint(path)
    except TrainingError as error:
        raise UserError(str(error)) from None
    if TextClassifier.checkpoint_key not in content or "config" not in content:
        raise UserError(
            f"{path}: this is no checkpoint of a text classifier. `python train.py fit --config "
            f"configs/tutek2020/base.yaml` leaves one in checkpoints/ of its run."
        )
    config = config_of(content)
    known = {"model", "data", "seed_everything"} <= config.keys()
    if not known or not all(isinstance(config[name], Mapping) for name in ("model", "data")):
        raise UserError(f"{path}: the checkpoint does not say how its model and its data were made.")
    return config, content


def classifier_of(path: Path, config: Config) -> TextClassifier:
    """The classifier of a run, as its configuration constructs it: without parameters yet."""
    # The parser writes into lists that it is given.
    return instantiate(TextClassifier, path, deepcopy(config["model"]))  # type: ignore[type-abstract]


def files_of(path: Path) -> list[Path]:
    """The checkpoint itself, or all below a folder; raises UserError where there is none."""
    if not path.exists():
        raise UserError(
            f"{path}: there is no such checkpoint. Training leaves them in checkpoints/ of its run; name them with "
            f"--model.init_args.checkpoints '[a.ckpt, b.ckpt]'."
        )
    found = sorted(path.rglob("*.ckpt")) if path.is_dir() else [path]
    found = [file for file in found if not any(part.startswith("state-") for part in file.parts)]  # of unfinished runs
    if not found:
        raise UserError(f"{path}: there is no checkpoint (*.ckpt) in this folder or below.")
    return found


def load(paths: Sequence[Path], data: ClassificationDataModule) -> list[Checkpoint]:
    """The classifiers of files, and of folders that stand for all checkpoints below them, for data that are set up.

    Those of one variant come together, by their seeds; variants in the order of their first files, and those of one
    folder by their names. A file that is damaged, of something else, there twice, of the same training as another, or
    trained on other data raises UserError.
    """
    files = [(file, place) for place, path in enumerate(paths) for file in files_of(path)]
    digests: dict[str, Path] = {}
    configs: list[Config] = []
    models: list[TextClassifier] = []
    for path, _ in files:
        config, content = read(path)
        models.append(_restored(path, config, content, data, first=not models))
        configs.append(config)
        sha256 = Digests(data.cache).one(path)
        if twice := digests.get(sha256):
            raise UserError(f"{path} and {twice} are the same checkpoint: name it once.")
        digests[sha256] = path
    found: dict[str, Checkpoint] = {}
    first: dict[str, int] = {}
    trained = zip(files, digests, configs, models, _variants(configs, models), strict=True)
    for (path, place), sha256, config, model, variant in trained:
        name = f"{variant}, seed {seed_of(config)}"
        if twin := found.get(name):
            raise UserError(
                f"{path} and {twin.path} are both {name}, and count as two seeds of one configuration: name one "
                f"checkpoint of each training."
            )
        found[name] = Checkpoint(path, sha256, config, name, variant, model)
        first.setdefault(variant, place)
    return sorted(found.values(), key=lambda one: (first[one.variant], one.variant, one.seed))


def _restored(
    path: Path, config: Config, content: Mapping[str, Any], data: ClassificationDataModule, *, first: bool
) -> TextClassifier:
    model = classifier_of(path, config)
    try:
        with isolate_rng():
            model.make_for(data)
        model.on_load_checkpoint(dict(content))
    except (ModelError, TrainingError) as error:
        elsewhere = "" if first else " Classifiers of different data are tested in runs of their own."
        raise UserError(f"{path}: {error}{elsewhere}") from None
    model.load_state_dict(content["state_dict"])
    return model.eval().requires_grad_(False)


def _variants(configs: Sequence[Config], models: Sequence[TextClassifier]) -> list[str]:
    """A name for each: its regularisers, or what kind it is, and the options that tell it from others of that name."""
    names = [_kind(model) for model in models]
    made = [_settings(config) for config in configs]
    found = []
    for name, own in zip(names, made, strict=True):
        alike = [other for other_name, other in zip(names, made, strict=True) if other_name == name]
        apart = sorted({key for other in alike for key in other if _count([key], alike) > 1})
        # Where a class differs, its arguments do anyhow.
        classes = [f"{key.removesuffix('class_path')}init_args" for key in apart if key.endswith("class_path")]
        keys = [key for key in apart if not key.startswith(tuple(classes))]
        told: list[str] = []
        for key in sorted(keys, key=lambda key: not key.startswith("init_args")):  # the model's first
            # An option that changes with others tells no more apart than they do.
            if _count([*told, key], alike) > _count(told, alike):
                told.append(key)
        found.append(", ".join([name, *(_told(key, own.get(key)) for key in told)]))
    return found


def _count(keys: Sequence[str], settings: Sequence[Mapping[str, object]]) -> int:
    """How many settings differ in some of these options."""
    return len({tuple(repr(one.get(key)) for key in keys) for one in settings})


def _settings(config: Config) -> dict[str, object]:
    """What a training depends on but the seed, by dotted names."""
    found: dict[str, object] = {}
    for name, value in settings(config).items():
        part, _, option = name.partition(".")
        first, _, rest = option.partition(".")
        if part == "model":
            found[option] = value
        elif part == "data" and first == "init_args" and rest.partition(".")[0] not in READING:
            found[rest] = value
        elif part == "trainer" and first in TRAINING and value is not None:
            found[option] = value
    return found


def _kind(model: TextClassifier) -> str:
    if isinstance(model, AttentionClassifier):
        return "+".join(str(regularizer.name) for regularizer in model.regularizers) or "base"
    return type(model).__name__.removesuffix("Classifier").lower()


def _told(key: str, value: object) -> str:
    plain = ".".join(part for part in key.split(".") if part not in ("init_args", "class_path"))
    return f"{plain} {str(value).rpartition('.')[2] if key.endswith('class_path') else value}"
