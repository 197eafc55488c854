"""Trained classifiers, from checkpoints or from Hugging Face files; variants differ in more than the seed."""

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
from pytorch_lightning.utilities.seed import isolate_rng

from attention_probing.attention.inputs import TextTokenizer
from attention_probing.attention.loading import load_config
from attention_probing.attention.source import MODELS, EncoderSpec, folder_of_models, resolve
from attention_probing.corpora.registry import CORPORA
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.datamodules.tokenization import piece_vocabulary
from attention_probing.models import AttentionClassifier, Origin, TextClassifier, TransformerClassifier
from attention_probing.models.checkpoints import (
    NO_CHECKPOINT,
    checkpoint_file,
    checkpoints_at,
    config_of,
    data_settings,
    instantiate,
    only_checkpoint,
    read_checkpoint,
    training_fault,
)
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
        path: Checkpoint file; for a Hugging Face model, its folder, or its name in `$PROBING_MODELS` or on the hub.
        digest: SHA-256 of the file, or of the weights; empty for a classifier of `load_one`, which is not recorded.
        config: Configuration of the training run; for a Hugging Face model, only its class and tokenizer.
        name: Unique name, for instance `tying, seed 1`, or the name of the folder.
        variant: Name shared by checkpoints that differ only in the seed, for instance `tying`.
        model: The classifier in evaluation mode; its parameters have no gradients.
        level: Level of attention to test, see `Fidelity`; None for the classifier's own.
        fault: Warning that the training has not ended; empty if it has, or if that is not known.
    """

    path: Path
    digest: str
    config: Config
    name: str
    variant: str
    model: TextClassifier
    level: str | None = None
    fault: str = ""

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

    def make_untrained(self, data: ClassificationDataModule, seed: int) -> TextClassifier:
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

    def make_random(self, data: ClassificationDataModule, seed: int) -> TextClassifier:
        """Return a classifier of the same architecture with random weights, in evaluation mode, on the CPU.

        Unlike `make_untrained`, it draws the weights of a pretrained transformer too. Word embeddings and word vectors
        stay those of the files.

        Args:
            data: Datamodule with the vocabulary and the labels.
            seed: Seed of the random weights.
        """
        if data.tokenizer is not None and isinstance(self.model, TransformerClassifier):
            assert self.model.sizes.tokenizer is not None
            data = copy(data)
            data.tokenizer = replace(self.model.sizes.tokenizer, weights="random", seed=seed)
        return self.make_untrained(data, seed).eval().requires_grad_(False)


def paths_of(checkpoints: Sequence[str] | str) -> list[Path]:
    """Return the paths of one or several checkpoints, as a measurement takes them."""
    names = [checkpoints] if isinstance(checkpoints, str) else checkpoints
    return [Path(name).expanduser() for name in names]


def check_paths(paths: Sequence[Path]) -> None:
    """Raise a UserError if no checkpoint is given, or if there is no classifier at one of the paths."""
    if not paths:
        raise UserError(f"No checkpoint is given. Give one or more with {setting('checkpoints')}.")
    for path in paths:
        files_of(path)


def data_of_checkpoints(paths: Sequence[Path], given: Namespace | None) -> Namespace | None:
    """Return the given data settings; without `--data`, those stored in the first checkpoint of a run.

    Without a given tokenizer, that of the first Hugging Face model is used.

    Args:
        paths: Checkpoint files, folders, and names of models on the hub.
        given: Settings of `--data`; None if it is not given.

    Returns:
        The settings; None if neither they nor a checkpoint are given.

    Raises:
        UserError: There is no such checkpoint, it is not one of a text classifier, or no settings are given and no
            checkpoint has any.
    """
    files = []
    for path in paths:
        files += files_of(path)
    models = [file for file in files if is_model(file)]
    if given is not None:
        options: Any = given.get("init_args") or {}
        if models and "tokenizer" in options and options.tokenizer is None:
            tokenizer = EncoderSpec(str(models[0]))
            options.tokenizer = Namespace(vars(tokenizer))  # type: ignore[no-untyped-call]
        return given
    trained_here = [file for file in files if not is_model(file)]
    if trained_here:
        first = trained_here[0]
        return data_settings(first, read_run(first)[1])
    if files:
        raise UserError(
            f"{files[0]}: a Hugging Face classifier does not say which texts to test on. Give "
            f"{setting('data', 'ClassificationDataModule')}, and its corpus with {setting('corpus')}."
        )
    return None


def seed_of(config: Config) -> int:
    """Return the seed in the configuration of a run; -1 if unknown."""
    seed = config["seed_everything"]
    # `true` draws a seed that the run does not record; `false` sets none.
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else -1


def read_run(path: Path) -> tuple[Config, Mapping[str, Any]]:
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
    """Return True for the folder of a Hugging Face model, its name in `$PROBING_MODELS`, or `owner/name` on the hub."""
    if path.exists() or path.is_absolute():
        return _has_model(path)
    folder = folder_of_models(str(path))
    if folder is not None and _has_model(folder):
        return True
    return len(path.parts) == 2 and path.suffix != ".ckpt" and not path.parent.exists()


def _has_model(folder: Path) -> bool:
    """Return True if a folder has a Hugging Face model, or an adapter alone, which is refused as what it is."""
    return any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))


def files_of(path: Path) -> list[Path]:
    """Return the classifiers at `path`: the file or Hugging Face model itself, or all `*.ckpt` files below a folder.

    Raises:
        UserError: There is no such file or folder, or the folder has no checkpoint.
    """
    if is_model(path):
        return [path]
    if not path.exists():
        folder = folder_of_models(str(path))
        in_models = "" if folder is None else f", and no model {folder} (${MODELS})"
        raise UserError(
            f"{path}: there is no such checkpoint{in_models}. Give {setting('checkpoints')} files that `probing fit` "
            "has written to checkpoints/ of its run, or folders of Hugging Face classifiers: '[a.ckpt, b/]'."
        )
    files = checkpoints_at(path)
    if not files:
        raise UserError(
            f"{path}: the folder and its subfolders {NO_CHECKPOINT}, and the folder has no config.json of a Hugging "
            "Face model. Name another folder or a checkpoint, or train a classifier with `probing fit`."
        )
    return files


def load_checkpoints(
    paths: Sequence[Path], data: ClassificationDataModule, level: str | None = None
) -> list[Checkpoint]:
    """Load the classifiers of checkpoint files, of all checkpoints below folders, and of Hugging Face models.

    Checkpoints that differ only in the seed are one variant. The result has one variant after the other,
    each sorted by seed. Variants are in the order in which `paths` first names one of their files; variants
    found in one folder are sorted by name.

    Args:
        paths: Checkpoint files, folders, and names of models in `$PROBING_MODELS` or on the hub.
        data: Datamodule with the data of the training, set up.
        level: Heads of transformers to test, see `Fidelity`; None for the heads in their configurations.

    Raises:
        UserError: A file is damaged, is not a text classifier, is named twice, was trained on other data,
            or comes from the same training as another file; a Hugging Face model has another tokenizer
            than the data, or no classification head for their labels; a transformer lacks the heads of `level`.
    """
    loaded: list[_Loaded] = []
    for place, path in enumerate(paths):
        for file in files_of(path):
            loaded.append(_load_file(file, place, data, level, first=not loaded))
            _refuse_same_content(loaded)
    checkpoints = _name_checkpoints(loaded, level)
    places: dict[str, int] = {}
    for one, checkpoint in zip(loaded, checkpoints, strict=True):
        places.setdefault(checkpoint.variant, one.place)
    return sorted(checkpoints, key=lambda one: (places[one.variant], one.variant, one.seed))


@dataclass(frozen=True, eq=False)
class _Loaded:
    """Classifier that is loaded, but not yet named.

    Attributes:
        path: Its file or folder.
        place: Index of the argument of `load_checkpoints` that names it.
        config: Configuration of the training run.
        model: The classifier.
        digest: SHA-256 of the file, or of the weights.
        fault: Warning that the training has not ended; see `Checkpoint`.
    """

    path: Path
    place: int
    config: Config
    model: TextClassifier
    digest: str
    fault: str = ""


def _load_file(path: Path, place: int, data: ClassificationDataModule, level: str | None, *, first: bool) -> _Loaded:
    fault = ""
    if is_model(path):
        config, model, digest = _from_transformers(path, data)
    else:
        config, content = read_run(path)
        fault = training_fault(path, content)
        model, digest = _from_run(path, config, content, data, first=first)
    if level is not None and isinstance(model, TransformerClassifier):
        model.expose([level], "model.level")
    model.eval().requires_grad_(False)
    return _Loaded(path, place, config, model, digest, fault)


def _refuse_same_content(loaded: Sequence[_Loaded]) -> None:
    """Raise UserError if the last of these classifiers is the same as an earlier one."""
    *earlier, last = loaded
    for one in earlier:
        if one.digest == last.digest:
            raise UserError(f"{last.path} and {one.path} are the same checkpoint. Give only one of them.")


def _name_checkpoints(loaded: Sequence[_Loaded], level: str | None) -> list[Checkpoint]:
    """Return the checkpoints with their names.

    Raises:
        UserError: Two have the same settings and seed.
    """
    paths = [one.path for one in loaded]
    configs = [one.config for one in loaded]
    variants = _variants(paths, configs, [one.model for one in loaded])
    checkpoints: dict[str, Checkpoint] = {}
    for one, variant in zip(loaded, variants, strict=True):
        name = _name_with_seed(variant, one.config)
        twin = checkpoints.get(name)
        if twin is not None:
            raise UserError(
                f"{one.path} and {twin.path} have the same settings and seed ({name}). Give only one of them."
            )
        checkpoints[name] = Checkpoint(one.path, one.digest, one.config, name, variant, one.model, level, one.fault)
    return list(checkpoints.values())


def _name_with_seed(variant: str, config: Config) -> str:
    seed = seed_of(config)
    return variant if seed < 0 else f"{variant}, seed {seed}"


def load_one(path: Path | str) -> Checkpoint:
    """Load one classifier without the data of its training, to decide single texts.

    Args:
        path: The checkpoint, the folder of a run that has only one, or a Hugging Face model.

    Raises:
        UserError: The folder has several checkpoints, the file is damaged or none of a text classifier, or the
            Hugging Face model has no trained classification head.
    """
    given = Path(path).expanduser()
    file = only_checkpoint(given, files_of(given))
    if is_model(file):
        model, config = _model_alone(file)
    else:
        config, _ = read_run(file)  # raises an error for anything but a checkpoint of a classifier
        model = TextClassifier.load_from_checkpoint(file)
    model.eval().requires_grad_(False)
    (variant,) = _variants([file], [config], [model])
    return Checkpoint(file, "", config, _name_with_seed(variant, config), variant, model)


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


def _from_run(
    path: Path, config: Config, content: Mapping[str, Any], data: ClassificationDataModule, *, first: bool
) -> tuple[TextClassifier, str]:
    model = classifier_of(path, config)
    try:
        with isolate_rng():
            model.make_for(data)
        model.on_load_checkpoint(dict(content))
    except UserError as error:
        elsewhere = "" if first else " Test classifiers of different data in separate runs."
        raise UserError(f"{path}: {error}{elsewhere}") from None
    model.load_state_dict(content["state_dict"])
    return model, Digests(data.cache).of_file(path)


def _from_transformers(path: Path, data: ClassificationDataModule) -> tuple[Config, TextClassifier, str]:
    spec = EncoderSpec(str(path))
    is_tokenizer_of_data = data.tokenizer is not None and Path(data.tokenizer.name).expanduser() == path
    if data.tokenizer is not None and is_tokenizer_of_data:
        spec = data.tokenizer
    source = resolve(spec)
    identity = source.identity(Digests(data.cache))
    fault = data.tokenizer_fault(source)
    if fault and not is_tokenizer_of_data:
        of_data = setting("data.tokenizer.name", path)
        raise UserError(f"{path}: {fault}. Test it in a run of its own, and give {of_data} to its datamodule.")
    data_of_model = copy(data)
    data_of_model.tokenizer = spec
    data_of_model.tokenizer_source = source
    model = TransformerClassifier()
    with isolate_rng():
        model.make_for(data_of_model)
    _refuse_drawn(path, model)
    return _config_of_model(spec), model, str(identity["weights_sha256"])


def _refuse_drawn(path: Path, model: TransformerClassifier) -> None:
    """Raise UserError if the files of a Hugging Face model lack weights of the classifier."""
    drawn = model.classifier.drawn
    if drawn:
        raise UserError(
            f"{path}: the files lack {', '.join(drawn)} of {type(model.classifier.model).__name__}, so these weights "
            "would be random. Give a fine-tuned classifier, for instance a folder from `probing export`; "
            "`probing fit devlin2019/finetune` fine-tunes an encoder."
        )


def _config_of_model(spec: EncoderSpec) -> Config:
    """Return the known settings of the training of a Hugging Face model, in the form of a run's configuration."""
    return {
        "seed_everything": None,
        "model": {"class_path": "TransformerClassifier", "init_args": {}},
        "data": {"class_path": "ClassificationDataModule", "init_args": {"tokenizer": vars(spec)}},
    }


def _variants(paths: Sequence[Path], configs: Sequence[Config], models: Sequence[TextClassifier]) -> list[str]:
    """Return a name for each checkpoint: its regularisers, kind or folder, and the options that distinguish it."""
    names = []
    options = []
    alike: dict[str, list[dict[str, object]]] = {}
    for path, config, model in zip(paths, configs, models, strict=True):
        name = _folder(path) if is_model(path) else _kind(model)
        options_of_one = _options(config)
        names.append(name)
        options.append(options_of_one)
        alike.setdefault(name, []).append(options_of_one)
    variants = []
    for name, options_of_one in zip(names, options, strict=True):
        parts = [name]
        for key in _distinguishing_options(options_of_one, alike[name]):
            parts.append(_describe_option(key, options_of_one.get(key)))
        variants.append(", ".join(parts))
    return variants


def _distinguishing_options(options: Mapping[str, object], alike: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the options of a checkpoint that distinguish it from others of the same name.

    Args:
        options: Options of the checkpoint.
        alike: Options of all checkpoints of this name, itself among them.
    """
    every_key = set[str]().union(*alike)
    differing = [key for key in sorted(every_key) if _count([key], alike) > 1]
    model_first = sorted(differing, key=lambda key: not key.startswith("init_args"))
    chosen: list[str] = []
    for key in model_first:
        # An option that varies only together with chosen options distinguishes no more checkpoints.
        if _count([*chosen, key], alike) > _count(chosen, alike):
            chosen.append(key)
    # Arguments of a class that differs belong to some of the checkpoints only.
    classes = [key for key in differing if key.endswith("class_path")]
    arguments = tuple(f"{key.removesuffix('class_path')}init_args" for key in classes)
    return [key for key in chosen if key in options or not key.startswith(arguments)]


def _count(keys: Sequence[str], options: Sequence[Mapping[str, object]]) -> int:
    """Return the number of different combinations of some options."""
    combinations = set()
    for of_checkpoint in options:
        combinations.add(tuple(repr(of_checkpoint.get(key)) for key in keys))
    return len(combinations)


def _options(config: Config) -> dict[str, object]:
    """Return the options that a training depends on, apart from the seed, by dotted names."""
    options: dict[str, object] = {}
    for name, value in settings_without_seeds(config).items():
        part, _, option = name.partition(".")
        first, _, rest = option.partition(".")
        if part == "model":
            options[option] = value
        elif part == "data" and first == "init_args":
            options[rest] = value
        elif part == "trainer" and first in TRAINING and value is not None:
            options[option] = value
    return options


def _folder(path: Path) -> str:
    """Return the name of a folder, with that of its parent if it is the name of another column of the main table."""
    folder = path.absolute()
    if folder.name in ("test", "score"):
        return f"{folder.parent.name} {folder.name}"
    return folder.name


def _kind(model: TextClassifier) -> str:
    if isinstance(model, AttentionClassifier):
        return "+".join(str(regularizer.name) for regularizer in model.regularizers) or "base"
    return type(model).__name__.removesuffix("Classifier").lower()


def _describe_option(key: str, value: object) -> str:
    parts = [part for part in key.split(".") if part not in ("init_args", "class_path")]
    text = str(value)
    if key.endswith("class_path"):
        text = text.rpartition(".")[2]
    return f"{'.'.join(parts)} {text}"
