"""Models and tokenizers from files: what is damaged, missing or of another shape is named."""

import io
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, ByT5Tokenizer, T5Config

from attention_probing.attention import Encoder
from attention_probing.attention.loading import architecture, load_tokenizer
from attention_probing.attention.source import EncoderError
from attention_probing.results.errors import UserError
from tests.attention.folders import (
    LAST,
    QUERY,
    WEIGHTS,
    Change,
    classifier,
    configure,
    halve,
    remove,
    reweigh,
    source,
    without,
    write,
)
from tests.attention.reference import load


def test_a_tokenizer_without_alignment_is_refused(tmp_path: Path) -> None:
    T5Config(d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4).save_pretrained(tmp_path)
    ByT5Tokenizer().save_pretrained(tmp_path)
    with pytest.raises(EncoderError, match=r"ByT5Tokenizer is not a fast tokenizer.*tokenizer\.json"):
        load_tokenizer(source(tmp_path))


def saved(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


PICKLED = (b"", bytes(5000), saved({"weight": torch.zeros(5000)})[:10000], saved(nn.Linear(2, 2)))


def pickled(content: bytes) -> Change:
    """Weights in the older format."""

    def damage(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "pytorch_model.bin").write_bytes(content)

    return damage


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        *((pickled(content), r"pytorch_model\.bin is damaged.*save_pretrained\.$") for content in PICKLED),
        (write("config.json", "{"), "not a valid JSON file"),
        (write("config.json", '{"model_type": "nonesuch"}'), "nonesuch"),
        (write("tokenizer.json", "{"), "its tokenizer cannot be loaded"),
        (remove("tokenizer.json", "tokenizer_config.json"), "no tokenizer"),
        (lambda folder: os.truncate(folder / WEIGHTS, 1000), "cannot be loaded"),
        (remove(WEIGHTS), "cannot be loaded"),
        (without("layer.1."), r"lack 16 weights of BertModel, for instance encoder\.layer\.1"),
        (
            reweigh(lambda w: w.update({f"{QUERY}.weight": torch.zeros(5, 5)})),
            rf"{QUERY}\.weight has the shape \[5, 5\] .*\[32, 32\]",
        ),
        (
            reweigh(lambda w: w[f"{QUERY}.bias"].fill_(torch.nan)),
            rf"its {QUERY}\.bias has infinite or undefined numbers",
        ),
        (reweigh(lambda w: w[LAST][3, 4].fill_(torch.inf)), rf"its {LAST} has infinite or undefined numbers"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(damage: Change, reason: str, folder: Path) -> None:
    damage(folder)
    with pytest.raises(EncoderError, match=reason) as refusal:
        load(folder)
    assert str(folder) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_weights_whose_sum_is_infinite_are_finite(folder: Path) -> None:
    reweigh(lambda w: w["embeddings.word_embeddings.weight"][-2:].fill_(3e38))(folder)  # of words in no text
    load(folder)


@pytest.mark.parametrize("read", [load, classifier])
def test_a_file_of_weights_that_was_cut_short_is_named(read: Change, folder: Path) -> None:
    _, second = halve(folder)
    os.truncate(second, second.stat().st_size - 8)
    with pytest.raises(
        EncoderError, match=r"-00002-of-00002\.safetensors is damaged or cut short.* Copy or download the"
    ):
        read(folder)


@pytest.mark.parametrize("read", [load, classifier])
def test_a_tokenizer_with_more_pieces_than_embeddings_is_refused(read: Change, folder: Path) -> None:
    """The first text with such a piece would end the extraction."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = len(tokenizer)
    tokenizer.add_tokens(["unlazy", "foxglove"])
    tokenizer.save_pretrained(folder)
    wanted = rf"has {rows} embeddings, but none for 2 pieces .*, such as 'unlazy'\. .*\({rows + 2}\) on the model"
    with pytest.raises(EncoderError, match=wanted):
        read(folder)
    model = AutoModel.from_pretrained(folder)
    model.resize_token_embeddings(rows + 2)
    model.save_pretrained(folder)
    read(folder)


def test_a_model_whose_heads_were_pruned_is_refused_by_that(folder: Path) -> None:
    configure(pruned_heads={})(folder)
    assert load(folder).heads == 4

    def prune(weights: dict[str, Tensor]) -> None:
        for part in ("query", "key", "value"):
            for kind in ("weight", "bias"):
                name = f"encoder.layer.0.attention.self.{part}.{kind}"
                weights[name] = weights[name][8:].clone()
        name = "encoder.layer.0.attention.output.dense.weight"
        weights[name] = weights[name][:, 8:].clone()

    reweigh(prune)(folder)
    configure(pruned_heads={"0": [0]})(folder)
    with pytest.raises(
        EncoderError, match=r'`pruned_heads` \{"0": \[0\]\} in config\.json.* as it was before the prun'
    ):
        load(folder)
    configure(pruned_heads={})(folder)
    with pytest.raises(EncoderError, match=r"layer\.0\.\S+ has the shape \[\d+(, \d+)?\] in its files, but BertModel"):
        load(folder)


def weights_of(encoder: Encoder) -> dict[str, Tensor]:
    return dict(encoder.model.named_parameters())


@pytest.mark.parametrize(
    ("name", "embeddings"),
    [("bert", "embeddings."), ("roberta", "embeddings."), ("gpt2", ("wte.", "wpe.")), ("llama", "embed_tokens.")],
)
def test_random_weights_keep_the_embeddings_alone(
    name: str, embeddings: str | tuple[str, ...], folders: dict[str, Path]
) -> None:
    folder = folders[name]
    pretrained, drawn = weights_of(load(folder)), weights_of(load(folder, weights="random"))
    assert pretrained.keys() == drawn.keys()
    equal = {name for name in pretrained if torch.equal(pretrained[name], drawn[name])}
    assert equal == {name for name in pretrained if name.startswith(embeddings)}
    assert equal


def test_the_seed_decides_the_random_weights(folder: Path) -> None:
    first, again, other = (weights_of(load(folder, weights="random", seed=seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    drawn = [name for name in first if name.endswith("weight") and first[name].dim() == 2 and "embedd" not in name]
    assert len(drawn) == 13  # six matrices a layer and the pooler's
    assert not any(torch.equal(first[name], other[name]) for name in drawn)


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "llama"])
def test_redrawn_weights_keep_mean_and_spread_of_each_parameter(name: str, folders: dict[str, Path]) -> None:
    pretrained = weights_of(load(folders[name]))
    drawn = weights_of(load(folders[name], weights="redrawn", seed=1))
    again = weights_of(load(folders[name], weights="redrawn", seed=1))
    other = weights_of(load(folders[name], weights="redrawn", seed=2))
    assert pretrained.keys() == drawn.keys()
    for key, weight in pretrained.items():
        assert torch.equal(drawn[key], again[key]), key
        assert not torch.equal(drawn[key], weight), key
        assert not torch.equal(drawn[key], other[key]), key
        # The mean and the spread of n numbers vary by σ / √n and by about σ / √2n.
        error = 5 * float(weight.std()) / weight.numel() ** 0.5
        assert abs(float(drawn[key].mean() - weight.mean())) < error, key
        assert abs(float(drawn[key].std() - weight.std())) < error, key


def test_redrawing_leaves_the_files_and_equal_numbers_alone(folder: Path) -> None:
    query = f"{QUERY}.weight"

    def level(weights: dict[str, Tensor]) -> None:
        weights[query] = torch.full_like(weights[query], 0.5)

    reweigh(level)(folder)
    before = (folder / WEIGHTS).read_bytes()
    drawn = weights_of(load(folder, weights="redrawn"))
    assert (folder / WEIGHTS).read_bytes() == before
    assert torch.equal(drawn[query], torch.full_like(drawn[query], 0.5))


def test_a_head_of_a_redrawn_language_model_is_tied_to_its_embeddings(folders: dict[str, Path]) -> None:
    encoder = load(folders["gpt2"], weights="redrawn")
    model = encoder.language_model
    assert model is not None
    weights = model.state_dict()
    table = encoder.model.state_dict()["wte.weight"]
    assert torch.equal(weights["transformer.wte.weight"], table)
    assert torch.equal(weights["lm_head.weight"], table)
    assert not torch.equal(table, load(folders["gpt2"]).model.state_dict()["wte.weight"])


@pytest.mark.parametrize("weights", ["pretrained", "random", "redrawn"])
@pytest.mark.parametrize("pooler", [True, False], ids=["whole", "without a pooler"])
def test_loading_leaves_the_callers_random_numbers_alone(weights: str, pooler: bool, folder: Path) -> None:
    if not pooler:
        without("pooler")(folder)
    before = torch.random.get_rng_state()
    load(folder, weights=weights)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("value", ["flash_attention_2", "owner/repo", {"": "owner/repo"}, 3])
@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_the_attention_that_files_ask_for_is_not_followed(key: str, value: object, folder: Path) -> None:
    configure("config.json", **{key: value})(folder)
    assert architecture(source(folder)).config._attn_implementation == "eager"
    assert Encoder(source(folder)).layers == 2


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("[enforce fail] not enough memory: you tried to allocate 9 bytes"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_a_lack_of_memory_is_not_told_as_damage(
    error: Exception, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AutoModel, "from_pretrained", Mock(side_effect=error))
    with pytest.raises(UserError, match=rf"^{folder}: there is not enough memory\. Free some"):
        Encoder(source(folder))
