"""Transformers without knowledge, with a tokenizer whose pieces are whole words: weights of zero, or random ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from attention_probing.attention.loading import new_model_folder

Architecture = Literal["bert", "llama"]

SPECIAL: Mapping[Architecture, Mapping[str, str]] = {
    "bert": {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    },
    "llama": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"},
}
"""Special tokens of each architecture, by their names in transformers, in the order of their ids."""

_TEMPLATES = {
    "bert": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    "llama": ("<s> $A", "<s> $A <s> $B"),
}
_WORDS = r"\w+?(?=n't\b)|n't\b|'s\b|\w+|[^\w\s]"  # "didn't." is did n't .


@dataclass(frozen=True, eq=False)
class WordModel:
    """A model of transformers with a tokenizer of whole words, in memory.

    Attributes:
        model: The model, in eval mode.
        tokenizer: Fast tokenizer. It lower-cases words, and replaces words outside its vocabulary by the unknown token.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast

    def save(self, folder: str | Path) -> Path:
        """Write model and tokenizer to a new folder as plain files of transformers, and return the folder.

        The folder appears complete or not at all.

        Raises:
            EncoderError: The folder exists, or cannot be written.
        """
        path = Path(folder).expanduser()
        with new_model_folder(path) as partial:
            self.model.save_pretrained(partial)
            self.tokenizer.save_pretrained(partial)
        return path


def blank_model(
    kind: Architecture, words: Sequence[str], sizes: Mapping[str, object], labels: Sequence[str]
) -> WordModel:
    """Return a classifier all of whose parameters are zero, with a tokenizer of the given words.

    Args:
        kind: Architecture.
        words: Vocabulary in lower case. Its ids follow those of the special tokens.
        sizes: Options of the config; `max_position_embeddings` is also the limit of the tokenizer.
        labels: Names of the classes in order.
    """
    config, tokenizer = _config_and_tokenizer(kind, words, sizes)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: number for number, label in enumerate(labels)}
    with torch.random.fork_rng(devices=[]):
        model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return WordModel(model.eval(), tokenizer)  # type: ignore[no-untyped-call]


def language_model(kind: Architecture, words: Sequence[str], sizes: Mapping[str, object]) -> WordModel:
    """Return a BERT that predicts masked words, or a Llama that predicts next words, with random weights.

    The weights are drawn from torch's generator.

    Args:
        kind: Architecture.
        words: Vocabulary in lower case.
        sizes: Options of the config, as in `blank_model`.
    """
    config, tokenizer = _config_and_tokenizer(kind, words, sizes)
    auto_class = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM
    model: PreTrainedModel = auto_class.from_config(config)  # type: ignore[no-untyped-call]
    return WordModel(model.eval(), tokenizer)  # type: ignore[no-untyped-call]


def random_decoder(words: Sequence[str], sizes: Mapping[str, object]) -> WordModel:
    """Return a Llama for language modelling with random weights, drawn from torch's generator.

    Args:
        words: Vocabulary in lower case.
        sizes: Options of the config, as in `blank_model`.
    """
    config, tokenizer = _config_and_tokenizer("llama", words, sizes)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return WordModel(model.eval(), tokenizer)  # type: ignore[no-untyped-call]


def _config_and_tokenizer(
    kind: Architecture, words: Sequence[str], sizes: Mapping[str, object]
) -> tuple[PreTrainedConfig, PreTrainedTokenizerFast]:
    tokenizer = _word_tokenizer(kind, words, sizes["max_position_embeddings"])
    ids = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("pad_token", "bos_token", "eos_token")}
    return AutoConfig.for_model(kind, vocab_size=len(tokenizer), **ids, **sizes), tokenizer


def set_weights(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Overwrite some parameters of a model, by name."""
    unknown = model.load_state_dict(dict(weights), strict=False).unexpected_keys
    assert not unknown, unknown


def _word_tokenizer(kind: Architecture, words: Sequence[str], longest: object) -> PreTrainedTokenizerFast:
    special = SPECIAL[kind]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys([*special.values(), *words]))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=special["unk_token"]))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = Split(Regex(_WORDS), behavior="removed", invert=True)
    single, pair = _TEMPLATES[kind]
    used = [(piece, vocabulary[piece]) for piece in special.values() if piece in pair]
    tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=used)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, model_max_length=longest, **special
    )
