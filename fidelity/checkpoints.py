"""Trained classifiers, from checkpoints or from Hugging Face files; variants differ in more than the seed."""

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.utilities.seed import isolate_rng

from attention_probing.attention.inputs import TextTokenizer
from attention_probing.attention.loading import load_config
from attention_probing.attention.source import EncoderSpec, resolve
from attention_probing.corpora.registry import CORPORA
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.datamodules.tokenization import piece_vocabulary
from attention_probing.models import AttentionClassifier, Origin, TextClassifier, TransformerClassifier
from attention_probing.models.checkpoints import checkpoint_file, config_of, instantiate, read_checkpoint
from attention_probing.models.text_classifier import TextSizes
from attention_probing.results.digests import Digests
from attention_probing.results.errors import UserError, setting
from attention_probing.results.settings import settings_without_seeds

Config = Mapping[str, Any]

OPTIMISATION = ("gradient_clip_val", "gradient_clip_algorithm", "accumulate_grad_batches")
"""Options of the trainer that are part of a recipe."""
TRAINING = ("max_epochs", "max_steps", "precision", "limit_train_batches", *OPTIMISATION)
"""Options of the trainer that change the trained model."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A trained classifier.

    Attributes:
        path: Checkpoint file; for a Hugging Face model, its folder, or its name on the hub.
        digest: SHA-256 of the file, or of the weights; empty for a classifier of `load_one`, which is not recorded.
        config: Configuration of the training run; for a Hugging Face model, only its class and tokenizer.
        name: Unique name, for instance `tying, seed 1`, or the name of the folder.
        variant: Name shared by checkpoints that differ only in the seed, for instance `tying`.
        model: The classifier in evaluation mode; its parameters have no gradients.
    """

    path: Path
    digest: str
    config: Config
    name: str
    variant: str
    model: TextClassifier

    @property
    def seed(self) -> int:
        """Seed of the training run; -1 if unknown."""
        return seed_of(self.config)

    @property
    def has_recipe(self) -> bool:
        """True if the settings of the training are known; False for a Hugging Face model."""
        return not is_model(self.path)

    @property
    def reads_pairs(self) -> bool | None:
        """True if the classifier was trained on pairs of texts; None if unknown, for a Hugging Face model."""
        if not self.has_recipe:
            return None
        options = self.config["data"].get("init_args") or {}
        columns = options.get("columns")
        if columns is None:
            known = CORPORA.get(str(options.get("corpus")))
            columns = known.columns if known is not None else {}
        return columns.get("pair") is not None

    def untrained(self, data: ClassificationDataModule, seed: int) -> TextClassifier:
        """Return an untrained classifier with the checkpoint's configuration, on the CPU.

        Word vectors and the files of a pretrained transformer are loaded; all other parameters are
        random.

        Args:
            data: Datamodule with the vocabulary and the labels.
            seed: Seed of the random initial parameters.
        """
        with isolate_rng():
            torch.manual_seed(seed)
            model = classifier_of(self.path, self.config)
            model.make_for(data)
        if isinstance(model, TransformerClassifier) and isinstance(self.model, TransformerClassifier):
            model.levels = self.model.levels
        return model


def seed_of(config: Config) -> int:
    """Return the seed in the configuration of a run; -1 if unknown."""
    seed = config["seed_everything"]
    # `true` draws a seed that the run does not record; `false` sets none.
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else -1


def read(path: Path) -> tuple[Config, Mapping[str, Any]]:
    """Read a checkpoint; return the configuration of its training run and the content of the file.

    Raises:
        UserError: The file is not a checkpoint of a text classifier, or has no configuration.
    """
    content = read_checkpoint(checkpoint_file(path))
    if TextClassifier.checkpoint_key not in content or "config" not in content:
        raise UserError(
            f"{path}: this is not a checkpoint of a text classifier. `probing fit tutek2020/base` writes one to "
            "checkpoints/ of its run."
        )
    config = config_of(content)
    known = {"model", "data", "seed_everything"} <= config.keys()
    if not known or not all(isinstance(config[name], Mapping) for name in ("model", "data")):
        raise UserError(
            f"{path}: the checkpoint does not contain the configuration of its model and its data, which `probing "
            "fit` writes. Train the classifier again with that command."
        )
    return config, content


def classifier_of(path: Path, config: Config) -> TextClassifier:
    """Create the classifier that a configuration describes, still without parameters.

    `TextClassifier.make_for` creates the parameters for a datamodule.

    Args:
        path: Checkpoint of the configuration, named in error messages.
        config: Configuration of the training run.
    """
    # The parser changes the lists of its argument.
    return instantiate(TextClassifier, path, deepcopy(config["model"]))  # type: ignore[type-abstract]


def is_model(path: Path) -> bool:
    """Return True for the folder of a Hugging Face model, and for a name of the hub, `owner/name`."""
    if path.exists() or path.is_absolute():
        # An adapter alone is one too: it is refused as what it is.
        return any((path / name).is_file() for name in ("config.json", "adapter_config.json"))
    return len(path.parts) == 2 and path.suffix != ".ckpt" and not path.parent.exists()


def files_of(path: Path) -> list[Path]:
    """Return the classifiers at `path`: the file or Hugging Face model itself, or all `*.ckpt` files below a folder.

    Raises:
        UserError: There is no such file or folder, or the folder has no checkpoint.
    """
    if is_model(path):
        return [path]
    if not path.exists():
        raise UserError(
            f"{path}: there is no such checkpoint. Give {setting('checkpoints')} files that `probing fit` "
            "has written to checkpoints/ of its run, or folders of Hugging Face classifiers: '[a.ckpt, b/]'."
        )
    found = sorted(path.rglob("*.ckpt")) if path.is_dir() else [path]
    found = [file for file in found if not any(part.startswith("state-") for part in file.parts)]  # of unfinished runs
    if not found:
        raise UserError(
            f"{path}: the folder and its subfolders contain no checkpoint (*.ckpt) of a finished training, and the "
            "folder has no config.json of a Hugging Face model. Name another folder or a checkpoint, or train a "
            "classifier with `probing fit`."
        )
    return found


def load(paths: Sequence[Path], data: ClassificationDataModule, level: str | None = None) -> list[Checkpoint]:
    """Load the classifiers of checkpoint files, of all checkpoints below folders, and of Hugging Face models.

    Checkpoints that differ only in the seed are one variant. The result has one variant after the other,
    each sorted by seed. Variants are in the order in which `paths` first names one of their files; variants
    found in one folder are sorted by name.

    Args:
        paths: Checkpoint files, folders, and names of models on the hub.
        data: Datamodule with the data of the training, set up.
        level: Heads of transformers to test, see `Fidelity`; None for the heads in their configurations.

    Raises:
        UserError: A file is damaged, is not a text classifier, is named twice, was trained on other data,
            or comes from the same training as another file; a Hugging Face model has another tokenizer
            than the data, or no classification head for their labels; a transformer lacks the heads of `level`.
    """
    files = [(file, place) for place, path in enumerate(paths) for file in files_of(path)]
    digests: dict[str, Path] = {}
    configs: list[Config] = []
    models: list[TextClassifier] = []
    for path, _ in files:
        loaded = _from_transformers(path, data) if is_model(path) else _from_run(path, data, first=not models)
        config, model, sha256 = loaded
        if level is not None and isinstance(model, TransformerClassifier):
            model.expose([level], "model.level")
        models.append(model.eval().requires_grad_(False))
        configs.append(config)
        if twice := digests.get(sha256):
            raise UserError(f"{path} and {twice} are the same checkpoint. Give only one of them.")
        digests[sha256] = path
    found: dict[str, Checkpoint] = {}
    first: dict[str, int] = {}
    variants = _variants([path for path, _ in files], configs, models)
    for (path, place), sha256, config, model, variant in zip(files, digests, configs, models, variants, strict=True):
        name = variant if seed_of(config) < 0 else f"{variant}, seed {seed_of(config)}"
        if twin := found.get(name):
            raise UserError(f"{path} and {twin.path} have the same settings and seed ({name}). Give only one of them.")
        found[name] = Checkpoint(path, sha256, config, name, variant, model)
        first.setdefault(variant, place)
    return sorted(found.values(), key=lambda one: (first[one.variant], one.variant, one.seed))


def load_one(path: Path | str) -> Checkpoint:
    """Load one classifier without the data of its training, to decide single texts.

    Args:
        path: The checkpoint, the folder of a run that has only one, or a Hugging Face model.

    Raises:
        UserError: The folder has several checkpoints, the file is damaged or none of a text classifier, or the
            Hugging Face model has no trained classification head.
    """
    given = Path(path).expanduser()
    file, *others = files_of(given)
    if others:
        names = ", ".join(str(one.relative_to(given)) for one in (file, *others))
        raise UserError(f"{given}: the folder has several checkpoints, {names}. Name one of them.")
    if is_model(file):
        model, config = _model_alone(file)
    else:
        config, _ = read(file)  # raises an error for anything but a checkpoint of a classifier
        model = TextClassifier.load_from_checkpoint(file)
    model.eval().requires_grad_(False)
    [variant] = _variants([file], [config], [model])
    name = variant if seed_of(config) < 0 else f"{variant}, seed {seed_of(config)}"
    return Checkpoint(file, "", config, name, variant, model)


def _model_alone(path: Path) -> tuple[TextClassifier, Config]:
    """Load a Hugging Face classifier with the classes of its own files."""
    spec = EncoderSpec(str(path))
    source = resolve(spec)
    names = load_config(source).id2label or {}
    labels = tuple(str(name) for _, name in sorted(names.items()))
    vocabulary = piece_vocabulary(TextTokenizer(source))
    sizes = TextSizes(len(labels), vocabulary, tokenizer=spec, labels=labels, regression=len(labels) == 1)
    model = TransformerClassifier()
    with isolate_rng():
        model.bind(Origin(sizes))
    _refuse_drawn(path, model)
    return model, _config_of_model(spec)


def _from_run(path: Path, data: ClassificationDataModule, *, first: bool) -> tuple[Config, TextClassifier, str]:
    config, content = read(path)
    model = classifier_of(path, config)
    try:
        with isolate_rng():
            model.make_for(data)
        model.on_load_checkpoint(dict(content))
    except UserError as error:
        elsewhere = "" if first else " Test classifiers of different data in separate runs."
        raise UserError(f"{path}: {error}{elsewhere}") from None
    model.load_state_dict(content["state_dict"])
    return config, model, Digests(data.cache).one(path)


def _from_transformers(path: Path, data: ClassificationDataModule) -> tuple[Config, TextClassifier, str]:
    named = data.tokenizer is not None and Path(data.tokenizer.name).expanduser() == path
    spec = data.tokenizer if data.tokenizer is not None and named else EncoderSpec(str(path))
    source, own = resolve(spec), copy(data)
    sha256 = str(source.identity(Digests(data.cache))["weights_sha256"])
    if not named and (fault := data.tokenizer_fault(source)):
        raise UserError(
            f"{path}: {fault}. Test it in a run of its own, with {setting('encoder')} {path} or without the option."
        )
    own.tokenizer, own.tokenizer_source = spec, source
    model = TransformerClassifier()
    with isolate_rng():
        model.make_for(own)
    _refuse_drawn(path, model)
    return _config_of_model(spec), model, sha256


def _refuse_drawn(path: Path, model: TransformerClassifier) -> None:
    """Raise UserError if the files of a Hugging Face model lack weights of the classifier."""
    if drawn := model.classifier.drawn:
        raise UserError(
            f"{path}: the files lack {', '.join(drawn)} of {type(model.classifier.model).__name__}, so these weights "
            "would be random. Give a fine-tuned classifier, for instance a folder from `probing export`; "
            "`probing fit devlin2019/finetune` fine-tunes an encoder."
        )


def _config_of_model(spec: EncoderSpec) -> Config:
    """Return what is known of the training of a Hugging Face model, in the form of a run's configuration."""
    return {
        "seed_everything": None,
        "model": {"class_path": "TransformerClassifier", "init_args": {}},
        "data": {"class_path": "ClassificationDataModule", "init_args": {"tokenizer": vars(spec)}},
    }


def _variants(paths: Sequence[Path], configs: Sequence[Config], models: Sequence[TextClassifier]) -> list[str]:
    """Return a name for each checkpoint: its regularisers, kind or folder, and the options that distinguish it."""
    options = [_options(config) for config in configs]
    names = [_folder(path) if is_model(path) else _kind(model) for path, model in zip(paths, models, strict=True)]
    found = []
    for name, own in zip(names, options, strict=True):
        alike = [other for other_name, other in zip(names, options, strict=True) if other_name == name]
        differing = sorted({key for other in alike for key in other if _count([key], alike) > 1})
        # Arguments of a class that differs belong to some of the checkpoints only.
        classes = tuple(f"{key.removesuffix('class_path')}init_args" for key in differing if key.endswith("class_path"))
        chosen: list[str] = []
        for key in sorted(differing, key=lambda key: not key.startswith("init_args")):  # the model's options first
            # An option that varies only together with chosen options distinguishes no more checkpoints.
            if _count([*chosen, key], alike) > _count(chosen, alike):
                chosen.append(key)
        shown = [_shown(key, own.get(key)) for key in chosen if key in own or not key.startswith(classes)]
        found.append(", ".join([name, *shown]))
    return found


def _count(keys: Sequence[str], options: Sequence[Mapping[str, object]]) -> int:
    """Return the number of different combinations of some options."""
    return len({tuple(repr(one.get(key)) for key in keys) for one in options})


def _options(config: Config) -> dict[str, object]:
    """Return the options that a training depends on, apart from the seed, by dotted names."""
    found: dict[str, object] = {}
    for name, value in settings_without_seeds(config).items():
        part, _, option = name.partition(".")
        first, _, rest = option.partition(".")
        if part == "model":
            found[option] = value
        elif part == "data" and first == "init_args":
            found[rest] = value
        elif part == "trainer" and first in TRAINING and value is not None:
            found[option] = value
    return found


def _folder(path: Path) -> str:
    """Return the name of a folder, with that of its parent if it is the name of another column of the main table."""
    own = path.absolute()
    return f"{own.parent.name} {own.name}" if own.name in ("test", "score") else own.name


def _kind(model: TextClassifier) -> str:
    if isinstance(model, AttentionClassifier):
        return "+".join(str(regularizer.name) for regularizer in model.regularizers) or "base"
    return type(model).__name__.removesuffix("Classifier").lower()


def _shown(key: str, value: object) -> str:
    plain = ".".join(part for part in key.split(".") if part not in ("init_args", "class_path"))
    return f"{plain} {str(value).rpartition('.')[2] if key.endswith('class_path') else value}"
