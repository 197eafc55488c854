"""Tokenizers, configs and models from the files of an encoder; all calls of transformers' `from_pretrained`."""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.auto import modeling_auto
from transformers.utils.logging import disable_progress_bar, get_verbosity, set_verbosity

from attention_probing.attention.file_checks import (
    check_growth,
    check_parameters,
    check_sizes,
    read_named_values,
    read_shapes,
)
from attention_probing.attention.source import EncoderError, EncoderSource, advise_on_own_code, warn_of_unread_files
from attention_probing.results.errors import UserError, pluralize, refuse_lack_of_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_AutoClass: TypeAlias = Any
"""A class such as AutoModel, which has no common base in transformers."""

# Without `trust_remote_code` transformers asks at the terminal whether to run code that comes with the files.
_NO_CODE: Mapping[str, Any] = {"trust_remote_code": False}


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' table of missing weights and its progress bar of weights."""
    disable_progress_bar()  # type: ignore[no-untyped-call]  # ours shows the sentences
    level = get_verbosity()
    set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        set_verbosity(level)


@contextmanager
def _explain_errors(source: EncoderSource, fault: str, weights: Sequence[Path] = ()) -> Iterator[None]:
    """Convert any error in a `with` block to an EncoderError that says what failed, and names a damaged file.

    Args:
        source: Files of the encoder.
        fault: What failed, after the name of the encoder.
        weights: Files of weights that may be damaged.
    """
    try:
        yield
    except Exception as error:  # of any kind, by the value that is wrong
        refuse_lack_of_memory(error, source.spec.name)
        # transformers advises to run code that comes with the files.
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        reason = f"{reason.rstrip('.')}. Choose another encoder, or save this one again with save_pretrained."
        if "trust_remote_code" in str(error) and not source.spec.trust_remote_code:
            reason = f"{advise_on_own_code()}; else choose an architecture that transformers has."
        for path in weights:
            try:
                read_shapes(path)
            except Exception as damage:  # the unpickler raises almost anything on bytes that are not its own
                reason = (
                    f"{path.name} is damaged or cut short, or holds something else than weights "
                    f"({type(damage).__name__}). Copy or download the encoder again, or save it with save_pretrained."
                )
        raise EncoderError(f"{source.spec.name}{fault}: {reason}") from error


def usable_device(name: torch.device | str) -> torch.device:
    """Return the PyTorch device called `name`.

    Raises:
        UserError: PyTorch cannot use the device on this machine.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter from a PyTorch without CUDA
        usable = ["cpu"]
        for number in range(torch.cuda.device_count()):
            usable.append(f"cuda:{number}")
        raise UserError(f"PyTorch cannot use the device {name} on this machine. Give {' or '.join(usable)}.") from error
    return device


def quantisation_of(model: "PreTrainedModel") -> str:
    """Return how the weights of a model are quantised, such as `bitsandbytes`; empty if they are not."""
    quantisation = getattr(model.config, "quantization_config", None)
    method = getattr(quantisation, "quant_method", None)
    if method is None:
        return ""
    return str(getattr(method, "value", method))


def load_tokenizer(source: EncoderSource) -> PreTrainedTokenizerFast:
    """Return the tokenizer of an encoder.

    Raises:
        EncoderError: The tokenizer is missing, damaged, or not a fast tokenizer.
    """
    with _explain_errors(source, ": its tokenizer cannot be loaded"):
        check_sizes(source.folder, source.weights)
        check_growth(source.folder / "tokenizer.json")
        tokenizer = AutoTokenizer.from_pretrained(source.folder, **source.code_options)
        longest = tokenizer.model_max_length
        if not isinstance(longest, int | float) or not longest > 0:
            raise ValueError(f"model_max_length is {longest!r}, but must be a number above 0")
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise EncoderError(
            f"{source.spec.name}: {type(tokenizer).__name__} is not a fast tokenizer, so its pieces cannot be "
            f"aligned with words. Choose an encoder with a tokenizer.json."
        )
    if not source.vocabularies:
        # transformers has made up a tokenizer that knows its special tokens alone.
        raise EncoderError(
            f"{source.folder}: the folder has no tokenizer (tokenizer.json, vocab*, *.model). Save it there with "
            "save_pretrained."
        )
    return tokenizer


def is_segmented(model: "PreTrainedModel", tokenizer: PreTrainedTokenizerFast) -> bool:
    """Return True if the model was trained on pairs of segments with different segment ids, as BERT was.

    RoBERTa was not, even if its configuration has two segment embeddings.
    """
    return "token_type_ids" in tokenizer.model_input_names and getattr(model.config, "type_vocab_size", 0) > 1


def longest_input(model: "PreTrainedModel", tokenizer: PreTrainedTokenizerFast) -> int:
    """Return the largest number of pieces that one input of a model may have, delimiters included.

    Only the configuration and the sizes of the embeddings are read, so the model may be on the meta device.
    """
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is None or positions <= 0:  # XLNet says -1, for any length
        return int(tokenizer.model_max_length)
    # RoBERTa and its kin count positions from padding_idx + 1 on.
    first = 0
    words = model.get_input_embeddings()
    for table in model.modules():
        if not isinstance(table, nn.Embedding) or table is words:
            continue
        if table.num_embeddings == positions and table.padding_idx is not None:
            first = max(first, table.padding_idx + 1)
    return int(min(tokenizer.model_max_length, positions - first))


def refuse_surplus(tokenizer: PreTrainedTokenizerFast, model: "PreTrainedModel", source: EncoderSource) -> None:
    """Raise EncoderError if the tokenizer has pieces for which the model has no input embedding."""
    table = model.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        return
    surplus = []
    for piece, place in tokenizer.get_vocab().items():
        if place >= table.num_embeddings:
            surplus.append((place, piece))
    if surplus:
        _, first_piece = min(surplus)
        last_place, _ = max(surplus)
        raise EncoderError(
            f"{source.spec.name}: the model has {table.num_embeddings} embeddings, but none for "
            f"{pluralize(len(surplus), 'piece')} of its tokenizer, such as {first_piece!r}. Save the model with the "
            f"tokenizer it was trained with, or call resize_token_embeddings({last_place + 1}) on the model and "
            "train the new embeddings."
        )


def load_config(source: EncoderSource) -> PreTrainedConfig:
    """Return the config of an encoder.

    Raises:
        EncoderError: The config cannot be read, or heads of the model were pruned.
    """
    for name, value in read_named_values(source.folder / "config.json"):
        if name == "pruned_heads" and value:
            raise EncoderError(
                f"{source.spec.name}: heads of the model were removed (`pruned_heads` {json.dumps(value)[:100]} in "
                "config.json), which only transformers 4 can read. Give the model as it was before the pruning: the "
                "measurements of ablation switch heads off."
            )
    with _explain_errors(source, ": its config.json cannot be loaded"):
        check_sizes(source.folder, source.weights)
        config: PreTrainedConfig = AutoConfig.from_pretrained(source.folder, **source.code_options)
        config._attn_implementation = "eager"  # the files may name another one, even code on the hub
    return config


def architecture(source: EncoderSource) -> "PreTrainedModel":
    """Build the encoder without weights, on the meta device, from its config alone, with eager attention.

    Of an encoder-decoder, the encoder is returned. The parameters have the type of `EncoderSpec.dtype`.

    Raises:
        EncoderError: The config cannot be read, or does not describe an encoder.
    """
    config = load_config(source)
    with _explain_errors(source, ": transformers cannot build an encoder from its config.json"), torch.device("meta"):
        model = _build(AutoModel, source, config, attn_implementation="eager", dtype=source.spec.dtype)
    return model.get_encoder() if config.is_encoder_decoder else model


def load_encoder(source: EncoderSource) -> "PreTrainedModel":
    """Load an encoder or a decoder with eager attention; of an encoder-decoder, the encoder.

    Raises:
        EncoderError: The model cannot be loaded, weights are missing, or the encoder of an encoder-decoder is no model.
    """
    model = load_whole(source, needs_decoder=False)
    if not model.config.is_encoder_decoder:
        return model
    from transformers import PreTrainedModel

    encoder = model.get_encoder()
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
    warn_of_unread_files(source)
    model, report = _load_pretrained(AutoModel, source, config)
    _refuse_mismatched(model, source, report)
    unused: tuple[str, ...] = ("pooler.",)
    if config.is_encoder_decoder and not needs_decoder:
        unused = ("pooler.", "decoder.")
    missing = [name for name in report["missing_keys"] if not name.startswith(unused)]
    _refuse_missing(model, source, missing)
    if source.spec.weights == "pretrained":
        return model
    return _randomise(model, source)


def load_language_model(source: EncoderSource, body: "PreTrainedModel", *, causal: bool) -> "PreTrainedModel | None":
    """Load the language modelling head of an encoder; return None if its files have no such head.

    Args:
        source: Files of the encoder.
        body: The loaded encoder, which the language model shares.
        causal: True for the head of a decoder, False for a masked one.

    Returns:
        The encoder with its head, in eval mode, without gradients of parameters.
    """
    config = load_config(source)
    auto_class: _AutoClass = AutoModelForMaskedLM
    model_types = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if causal:
        auto_class = AutoModelForCausalLM
        model_types = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if config.model_type not in model_types and not _has_own_class(auto_class, source, config):
        return None
    model, report = _load_pretrained(auto_class, source, config, " as a language model")
    _refuse_mismatched(model, source, report)
    if report["missing_keys"] or type(model.base_model) is not type(body):
        return None
    if source.spec.weights != "pretrained":
        model = _draw_weights(auto_class, model, source)
        # A head that is tied to the embeddings shares their memory, and changes with them.
        model.base_model.load_state_dict(body.state_dict(), strict=False)  # the body may also have a pooler
    setattr(model, model.base_model_prefix, body)
    model.eval().requires_grad_(False)  # type: ignore[no-untyped-call]
    if source.spec.device_map is None:
        model.to(body.device)  # type: ignore[arg-type]
    return model


def load_classifier(source: EncoderSource, classes: int) -> "tuple[PreTrainedModel, tuple[str, ...]]":
    """Load a sequence classifier with eager attention, in eval mode.

    A classification head in the files is loaded; otherwise the head is initialised at random. With `weights: random`
    or `redrawn` the head is always random.

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
    auto_class = AutoModelForSequenceClassification
    warn_of_unread_files(source)
    model, report = _load_pretrained(auto_class, source, config, f" as a classifier of {classes} classes")
    if config.is_encoder_decoder:
        raise EncoderError(
            f"{source.spec.name} ({type(model).__name__}) is an encoder-decoder, but only classifiers with "
            f"one attention in each layer can be read. Choose an encoder or a decoder."
        )
    body = f"{model.base_model_prefix}."
    pooler = f"{body}pooler."
    missing = [name for name in report["missing_keys"] if name.startswith(body) and not name.startswith(pooler)]
    _refuse_missing(model, source, missing)
    for name, shape, shape_of_model in sorted(report["mismatched_keys"]):
        raise EncoderError(
            f"{source.spec.name}: the data have {classes} classes, but the model's classification head is for another "
            f"number ({name} has shape {tuple(shape)} instead of {tuple(shape_of_model)}). Give the texts that it was "
            "fine-tuned on or, to train a new head, the encoder before its fine-tuning."
        )
    refuse_surplus(load_tokenizer(source), model, source)
    if source.spec.weights == "pretrained":
        return model, tuple(sorted(report["missing_keys"]))
    random_body = _randomise(model.base_model, source)  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        model = _build(auto_class, source, config, attn_implementation="eager", dtype=model.dtype)
    model.eval()  # type: ignore[no-untyped-call]
    model.base_model.load_state_dict(random_body.state_dict(), strict=False)  # the drawn body may also have a pooler
    return model, tuple(name for name in model.state_dict() if not name.startswith(body))


def _has_own_class(auto_class: _AutoClass, source: EncoderSource, config: PreTrainedConfig) -> bool:
    """Return True if the model of an auto class is one of the code that comes with the files, and that may be run."""
    own_classes = getattr(config, "auto_map", None) or {}
    return source.spec.trust_remote_code and auto_class.__name__ in own_classes


def _build(
    auto_class: _AutoClass,
    source: EncoderSource,
    config: PreTrainedConfig,
    **options: Any,  # noqa: ANN401 # of from_config
) -> "PreTrainedModel":
    """Build a model from a config alone, its weights at random."""
    code = _NO_CODE
    if _has_own_class(auto_class, source, config):
        code = source.code_options
    model: PreTrainedModel = auto_class.from_config(config, **code, **options)
    return model


def _load_pretrained(
    auto_class: _AutoClass,
    source: EncoderSource,
    config: PreTrainedConfig,
    purpose: str = "",
) -> "tuple[PreTrainedModel, Mapping[str, Any]]":
    """Return the model in the files, and transformers' report of missing and mismatched weights."""
    options: dict[str, Any] = {
        "config": config,
        "attn_implementation": "eager",
        "dtype": source.spec.dtype,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # they are refused by the caller, by name
        **source.code_options,
    }
    if source.spec.device_map is not None:
        options["device_map"] = source.spec.device_map
    weights = source.weights
    # Weights that the files lack, a pooler or a head, are drawn from the run's seed; the caller's state stays.
    with (
        _explain_errors(source, f" cannot be loaded{purpose}", weights),
        quiet_transformers(),
        torch.random.fork_rng(devices=[]),
    ):
        with torch.device("meta"):
            empty = _build(auto_class, source, config)
        parameters = sum(tensor.numel() for tensor in chain(empty.parameters(), empty.buffers()))
        check_parameters(parameters, weights)
        model, report = auto_class.from_pretrained(source.folder, **options)
    for name, weight in model.named_parameters():  # those that no short text reads too
        if not weight.is_meta and not _is_finite(weight):  # a device_map may leave weights on the disk
            raise EncoderError(f"{source.spec.name}: its {name} has infinite or undefined numbers. Choose another.")
    return model, report


def _is_finite(weight: Tensor) -> bool:
    """Return True if all numbers are finite; their sum tells without a copy of the largest table of the model."""
    return bool(weight.sum().isfinite()) or bool(weight.isfinite().all())


def _refuse_missing(model: "PreTrainedModel", source: EncoderSource, missing: list[str]) -> None:
    if missing:
        raise EncoderError(
            f"{source.spec.name}: its files lack {pluralize(len(missing), 'weight')} of {type(model).__name__}, for "
            f"instance {min(missing)}. Save the whole encoder with save_pretrained."
        )


def _refuse_mismatched(model: "PreTrainedModel", source: EncoderSource, report: Mapping[str, Any]) -> None:
    for name, shape, shape_of_model in sorted(report["mismatched_keys"]):
        raise EncoderError(
            f"{source.spec.name}: {name} has the shape {list(shape)} in its files, but {type(model).__name__} of its "
            f"config.json needs {list(shape_of_model)}. Copy or download both again, or save the model with "
            "save_pretrained."
        )


def _draw_weights(auto_class: _AutoClass, model: "PreTrainedModel", source: EncoderSource) -> "PreTrainedModel":
    """Return a model whose weights are drawn anew, with the config and the type of parameters of another.

    With `weights: random` it is an untrained model, with `redrawn` the same model with other numbers. They are drawn in
    single precision, so that they are the same for every type, but for rounding.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(source.spec.seed)
        if source.spec.weights == "redrawn":
            _redraw(model, source)
            return model
        random_model = _build(auto_class, source, model.config, attn_implementation="eager", dtype=torch.float32)
    return random_model.to(model.dtype)  # type: ignore[arg-type, no-any-return]


def _redraw(model: "PreTrainedModel", source: EncoderSource) -> None:
    """Draw every parameter of a model from a normal distribution with the parameter's own mean and standard deviation.

    A parameter is a whole tensor: a matrix of queries, keys and values in one has one mean. Tied matrices stay tied,
    and a parameter whose numbers are all equal, such as biases of zero, stays as it is.
    """
    for name, weight in model.named_parameters():
        if not weight.is_floating_point():
            raise EncoderError(
                f"{source.spec.name}: its {name} is quantised, so no numbers of its distribution can be drawn. Write "
                "the model out in half precision with transformers (dequantize), or give `weights: random`."
            )
        spread, centre = torch.std_mean(weight.detach().float(), correction=0)
        drawn = centre + spread * torch.randn(weight.shape)
        # New memory: that of the parameter may be the file itself.
        weight.data = drawn.to(weight.dtype)


def _randomise(pretrained: "PreTrainedModel", source: EncoderSource) -> "PreTrainedModel":
    """Return a model with the random weights that are asked for.

    With `weights: random` it has the pretrained embeddings: the control of Clark et al. (2019, §5).
    """
    if source.spec.weights == "redrawn":
        return _draw_weights(AutoModel, pretrained, source)
    weights = pretrained.state_dict()
    random_model = _draw_weights(AutoModel, pretrained, source)
    embeddings = {name: tensor for name, tensor in weights.items() if _is_embedding(name, pretrained)}
    random_model.load_state_dict(embeddings, strict=False)
    return random_model


def _is_embedding(name: str, model: "PreTrainedModel") -> bool:
    """Return True for a parameter in the block of the input embeddings, or in a root-level table."""
    table = model.get_input_embeddings()
    path = next(path for path, module in model.named_modules() if module is table)
    block = path.rpartition(".")[0]
    if block:
        return name.startswith(f"{block}.")
    child = name.partition(".")[0]
    return isinstance(getattr(model, child), nn.Embedding)


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
    with new_model_folder(folder) as partial:
        model.save_pretrained(partial)
        config.save_pretrained(partial)
        for path in [*source.tokenizer_files, *source.code]:
            shutil.copyfile(path, partial / path.name)


@contextmanager
def new_model_folder(folder: Path) -> Iterator[Path]:
    """Yield the path of a folder in which a model is written; it becomes `folder` at the end, complete or not at all.

    Raises:
        EncoderError: The path exists, or the folder cannot be written.
    """
    if folder.exists() or folder.is_symlink():
        raise EncoderError(f"{folder} exists already and is not overwritten. Name a folder that does not exist.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary, quiet_transformers():
            partial = Path(temporary) / "model"
            yield partial
            partial.rename(folder)
    except OSError as error:
        why = error.strerror or error
        raise EncoderError(f"{folder} cannot be written ({why}). Check the path and the disk.") from error
