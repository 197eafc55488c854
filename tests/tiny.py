"""Tiny encoders and treebanks, made in code: tests need neither a network nor data."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from string import ascii_lowercase, digits

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import Metaspace
from tokenizers.trainers import BpeTrainer
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    BertTokenizer,
    GemmaTokenizer,
    GPT2Tokenizer,
    LlamaTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
)

from attention_probing.corpora.sentence import Sentence, Treebank

TEXTS = (
    "The quick brown fox jumps over the lazy dogs .",
    "A small café serves naïve guests unbelievably strong coffee , hourly .",
    "The fox and the dogs sleep while the guests drink coffee .",
    "He overslept yesterday , unquestionably , and missed the guests .",
)
"""What the tokenizers are made from."""

FAMILIAR = ("the", "fox", "dogs", "coffee", "guests", ".", ",")
BROKEN = ("foxglove", "dogged", "overdrinks", "Jumpsuit", "unlazy", "smallest")
"""Words that every tokenizer here knows whole, and words that each cuts into pieces."""


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}


def build(model_type: str, seed: int, **sizes: object) -> PreTrainedModel:
    """Make a model with eager attention, in eval mode; of an encoder-decoder both.

    Every parameter is drawn from the seed, layer norms and biases among them: no two are equal by initialisation.
    """
    config = AutoConfig.for_model(model_type, **sizes)
    config.architectures = []  # AutoModel wants to see a list
    model: PreTrainedModel = AutoModel.from_config(  # type: ignore[no-untyped-call]
        config, attn_implementation="eager"
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    model.train(False)
    return model


@cache
def bert_tokenizer() -> PreTrainedTokenizerFast:
    """WordPiece, lower-cased and without accents, `[CLS] … [SEP]`: the words of `TEXTS`, and every letter."""
    words = BertNormalizer().normalize_str(" ".join(TEXTS)).split()  # the trainer's order changes from run to run
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *ascii_lowercase, *digits]
    pieces += [f"##{letter}" for letter in ascii_lowercase + digits]
    return BertTokenizer({piece: number for number, piece in enumerate(dict.fromkeys(pieces))})


@cache
def roberta_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE whose pieces carry the blank before a word, `<s> … </s>`."""
    return _trained(RobertaTokenizer(), 320)


@cache
def gpt2_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE without delimiters and without padding."""
    return _trained(GPT2Tokenizer(), 320)


@cache
def llama_tokenizer() -> PreTrainedTokenizerFast:
    """Metaspace BPE with a start delimiter and no end delimiter."""
    words = [word for text in TEXTS for word in text.split()]  # it merges across blanks
    return _trained(LlamaTokenizer(add_bos_token=True), 160, words)


@cache
def gemma_tokenizer() -> PreTrainedTokenizerFast:
    """BPE that turns the blank before a word into ▁, and writes none at the beginning of a text."""
    made = Tokenizer(BPE(unk_token="<unk>"))
    made.pre_tokenizer = Metaspace(prepend_scheme="always")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    alphabet = [*ascii_lowercase, *digits]
    made.train_from_iterator(
        TEXTS, BpeTrainer(vocab_size=260, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    )
    merges = [tuple(merge) for merge in json.loads(made.to_str())["model"]["merges"]]
    return GemmaTokenizer(vocab=made.get_vocab(), merges=merges)  # type: ignore[arg-type]


def _trained(untrained: PreTrainedTokenizerFast, size: int, texts: Sequence[str] = TEXTS) -> PreTrainedTokenizerFast:
    trained: PreTrainedTokenizerFast = untrained.train_new_from_iterator(  # type: ignore[no-untyped-call]
        [texts], size, show_progress=False
    )
    return trained


def save(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Path:
    """Write an encoder as its authors would publish it; returns the folder."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_bert(folder: Path, *, layers: int = 2, heads: int = 4, max_length: int = 64, seed: int = 0) -> Path:
    """Write a tiny BERT that takes inputs of `max_length` pieces; returns the folder."""
    tokenizer = bert_tokenizer()
    sizes = {"hidden_size": 8 * heads, "num_hidden_layers": layers, "num_attention_heads": heads}
    sizes = {**SIZES, **sizes, "max_position_embeddings": max_length}
    return save(folder, build("bert", seed, vocab_size=len(tokenizer), **sizes), tokenizer)


def save_roberta(folder: Path, *, max_length: int = 64, seed: int = 0) -> Path:
    """Write a tiny RoBERTa, whose positions count from 2 on; returns the folder."""
    tokenizer = roberta_tokenizer()
    sizes = {**SIZES, "max_position_embeddings": max_length + 2, "pad_token_id": 1}
    return save(folder, build("roberta", seed, vocab_size=len(tokenizer), **sizes), tokenizer)


def save_gpt2(folder: Path, *, seed: int = 0) -> Path:
    tokenizer = gpt2_tokenizer()
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
    return save(folder, build("gpt2", seed, vocab_size=len(tokenizer), **sizes), tokenizer)


def save_llama(folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny Llama with two key heads for four query heads; returns the folder."""
    tokenizer = llama_tokenizer()
    sizes = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return save(folder, build("llama", seed, vocab_size=len(tokenizer), **sizes), tokenizer)


WINDOW = 5
"""Pieces that a row of a windowed layer sees: of a decoder itself and four before, of an encoder two on either side."""


def save_mistral(folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny Mistral, whose layers all have the `WINDOW`; returns the folder."""
    return _save_windowed(folder, "mistral", seed)


def save_gemma2(folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny Gemma 2, whose first layer has the `WINDOW`; returns the folder."""
    return _save_windowed(folder, "gemma2", seed, head_dim=8)


def save_gemma(folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny Gemma with a tokenizer of its kind; returns the folder."""
    tokenizer = gemma_tokenizer()
    sizes = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 8}
    return save(folder, build("gemma", seed, vocab_size=len(tokenizer), **sizes), tokenizer)


def save_gemma3(folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny Gemma 3, whose second layer has the `WINDOW`; returns the folder."""
    return _save_windowed(folder, "gemma3_text", seed, head_dim=8, layer_types=["full_attention", "sliding_attention"])


def _save_windowed(folder: Path, kind: str, seed: int, **options: object) -> Path:
    tokenizer = llama_tokenizer()
    sizes = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 64, "sliding_window": WINDOW}
    return save(folder, build(kind, seed, vocab_size=len(tokenizer), **sizes, **options), tokenizer)


def save_modernbert(folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny ModernBERT, whose second layer has the `WINDOW`; returns the folder."""
    tokenizer = bert_tokenizer()
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "cls", "sep")}
    special |= {"bos_token_id": None, "eos_token_id": None}
    windows = {"local_attention": WINDOW - 1, "global_attn_every_n_layers": 2, "max_position_embeddings": 64}
    return save(folder, build("modernbert", seed, vocab_size=len(tokenizer), **SIZES, **windows, **special), tokenizer)


def random_tree(n: int, random: np.random.Generator) -> list[int]:
    """Heads of n words, 0 for ROOT: in random order, each word is attached to one that came before it."""
    order = random.permutation(n)
    heads = [0] * n
    for place in range(1, n):
        heads[order[place]] = int(order[random.integers(place)]) + 1
    return heads


def treebank(lengths: Sequence[int], seed: int = 0) -> Treebank:
    """Sentences of these lengths, every third word in several pieces, each with a random tree."""
    random = np.random.default_rng(seed)
    sentences = tuple(_sentence(f"s{number}", n, random) for number, n in enumerate(lengths))
    return Treebank(sentences, {"sentences": len(sentences), "words": sum(lengths)})


def _sentence(name: str, n: int, random: np.random.Generator) -> Sentence:
    words = [str(random.choice(BROKEN if place % 3 == 1 else FAMILIAR)) for place in range(n)]
    heads = random_tree(n, random)
    relations = ["root" if head == 0 else str(random.choice(["nsubj", "obj", "det", "punct"])) for head in heads]
    upos = [str(random.choice(["NOUN", "VERB", "DET", "PUNCT"])) for _ in words]
    return Sentence(name, tuple(words), tuple(heads), tuple(relations), tuple(upos), ("_",) * n)


def add_head(folder: Path, classes: int) -> Path:
    """Turn a saved encoder into a classifier, with no weight near its initialisation."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=classes)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    model.save_pretrained(folder)
    return folder


RELATIONS = ("det", "nsubj", "obj", "nmod:poss", "punct")
TAGS = ("NN", ",", "HYPH", "VB", "-LRB-")


def write_treebank(path: Path, sentences: int, seed: int = 0) -> Path:
    """Write that many random trees over words the tiny tokenizers know; returns the path."""
    random = np.random.default_rng(seed)
    lines = []
    for index in range(sentences):
        words = [
            (random.choice([*FAMILIAR, *BROKEN]), head, random.choice(RELATIONS) if head else "root")
            for head in random_tree(int(random.integers(1, 9)), random)
        ]
        tags = tuple(TAGS[(word + index) % len(TAGS)] for word in range(1, len(words) + 1))
        forms, heads, relations = zip(*words, strict=True)
        sentence = Sentence(f"{path.stem}-{index}", forms, heads, relations, ("X",) * len(words), tags)
        lines.append(sentence.conllu())
    path.write_text("".join(lines), encoding="utf-8")
    return path


def write_splits(folder: Path) -> str:
    """Write train, dev and test; returns the path with `{split}` in it."""
    for seed, (split, sentences) in enumerate({"train": 41, "dev": 13, "test": 17}.items()):
        write_treebank(folder / f"tiny-{split}.conllu", sentences, seed)
    return str(folder / "tiny-{split}.conllu")
