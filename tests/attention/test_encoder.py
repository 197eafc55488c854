import gc
import importlib.util
import io
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.machinery import ModuleSpec
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    ByT5Tokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    T5Config,
)

from attention_probing.attention import Encoder
from attention_probing.attention.checks import ForwardPass, read_attention
from attention_probing.attention.inputs import TextTokenizer
from attention_probing.attention.loading import architecture, load_classifier, load_tokenizer
from attention_probing.attention.masks import find_masks
from attention_probing.attention.source import (
    BUNDLE,
    BUNDLE_SHA256,
    DEFAULT_NAME,
    EncoderError,
    EncoderSource,
    EncoderSpec,
    resolve,
)
from attention_probing.attention.word_embeddings import embed_words
from attention_probing.results.digests import Digests, digest
from attention_probing.results.errors import UserError
from tests import tiny
from tests.attention.reference import ENCODERS, load
from tests.endless import Endless, make_endless
from tests.measures import passes

SIZES: dict[str, object] = {**tiny.SIZES, "max_position_embeddings": 64}
WEIGHTS, QUERY = "model.safetensors", "encoder.layer.1.attention.self.query"
LAST = "encoder.layer.1.output.dense.weight"  # behind all attention


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.save_bert(tmp_path / "bert")


def source(folder: Path, **spec: object) -> EncoderSource:
    return resolve(EncoderSpec(str(folder), **spec))  # type: ignore[arg-type]


def captured(encoder: Encoder, ids: list[int]) -> list[Tensor]:
    found: dict[int, Tensor] = {}
    layers = frozenset(range(encoder.layers))
    encoder.capture({"input_ids": torch.tensor([ids])}, found.__setitem__, layers)
    return [found[layer] for layer in sorted(found)]


def test_positions_that_start_late_shorten_what_fits(tmp_path: Path) -> None:
    folder = tiny.save_roberta(tmp_path, max_length=20)
    assert AutoConfig.from_pretrained(folder).max_position_embeddings == 22
    encoder = load(folder)
    assert encoder.max_length == 20
    assert captured(encoder, [5] * 20)[0].shape == (1, 4, 20, 20)
    with pytest.raises((IndexError, RuntimeError)):
        captured(encoder, [5] * 21)


def test_the_shorter_of_the_two_limits_holds(folder: Path, tmp_path: Path) -> None:
    configure("tokenizer_config.json", model_max_length=30)(folder)
    assert load(folder).max_length == 30
    size = len(tiny.bert_tokenizer())  # a vocabulary as large as the table of positions is not taken for one
    assert load(tiny.save_bert(tmp_path / "large", max_length=size)).max_length == size


def test_captured_attention_that_differs_from_the_models_own_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slightly_off(*args: Any, **options: Any) -> ForwardPass:  # noqa: ANN401
        found = read_attention(*args, **options)
        return replace(found, weights=[one * 1.001 for one in found.weights])

    monkeypatch.setattr("attention_probing.attention.checks.read_attention", slightly_off)
    with pytest.raises(EncoderError, match=r"BertModel.*differs from the model's own.*weights by \d"):
        load(folder)


def test_of_a_model_that_takes_no_registered_function_the_own_weights_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [2, 7, 9, 8, 3]
    before = captured(load(folder), ids)
    refused = Mock(side_effect=ValueError("probing is not supported"))
    monkeypatch.setattr(PreTrainedModel, "set_attn_implementation", refused)
    encoder = load(folder)
    assert encoder.tapped
    torch.testing.assert_close(captured(encoder, ids), before, rtol=0, atol=1e-6)
    with pytest.raises(EncoderError, match=r"BertModel.*it can be read, but Bags would have to change it"):
        encoder.require_interface("Bags")
    with pytest.raises(EncoderError, match=r"BertModel.*cannot be captured with scores float32"):
        Encoder(source(folder, scores="float32"))


def test_a_tokenizer_without_alignment_is_refused(tmp_path: Path) -> None:
    T5Config(d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4).save_pretrained(tmp_path)
    ByT5Tokenizer().save_pretrained(tmp_path)
    with pytest.raises(EncoderError, match=r"ByT5Tokenizer is not a fast tokenizer.*tokenizer\.json"):
        load_tokenizer(source(tmp_path))


Change = Callable[[Path], object]


def write(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def remove(*names: str) -> Change:
    return lambda folder: [(folder / name).rename(folder / f"no {name}") for name in names]


def configure(name: str = "config.json", /, **values: Any) -> Change:  # noqa: ANN401
    return lambda folder: (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | values))


def reweigh(change: Callable[[dict[str, Tensor]], object]) -> Change:
    """Load the weights, change them, and write them back."""

    def alter(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS)
        change(weights)
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})

    return alter


def without(part: str) -> Change:
    return reweigh(lambda weights: [weights.pop(name) for name in list(weights) if part in name])


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


def classifier(folder: Path) -> object:
    return load_classifier(source(folder), 2)


def halve(folder: Path) -> tuple[Path, Path]:
    """Write the weights to two files, every second one to the second."""
    weights, halves = load_file(folder / WEIGHTS), [f"model-0000{place}-of-00002.safetensors" for place in (1, 2)]
    for place, name in enumerate(halves):
        save_file(dict(list(weights.items())[place::2]), folder / name)
    index = {name: halves[place % 2] for place, name in enumerate(weights)}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / WEIGHTS).unlink()
    return folder / halves[0], folder / halves[1]


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


def test_models_of_images_are_refused(tmp_path: Path) -> None:
    tiny.build("vit", 0, **tiny.SIZES, image_size=8, patch_size=4).save_pretrained(tmp_path)
    tiny.bert_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(EncoderError, match=r"ViTModel.* cannot be run on token ids"):
        load(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", "gpu"])
def test_a_device_that_there_is_not_is_refused(device: str, folder: Path) -> None:
    with pytest.raises(UserError, match=f"PyTorch cannot use the device {device} on this machine. Give cpu."):
        Encoder(str(folder), device)


def in_memory(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


class TestFromModel:
    """An encoder of a model and a tokenizer in memory."""

    def test_it_is_that_of_the_same_model_in_a_folder(self, folder: Path, tmp_path: Path) -> None:
        model, tokenizer = in_memory(folder)
        model.save_pretrained(tmp_path / "saved")
        tokenizer.save_pretrained(tmp_path / "saved")
        saved, made = Encoder(str(tmp_path / "saved")), Encoder.from_model(model, tokenizer, name="mine")
        for one, other in zip(captured(saved, [2, 5, 6, 3]), captured(made, [2, 5, 6, 3]), strict=True):
            assert torch.equal(one, other)
        digests = Digests(tmp_path)
        assert made.source.identity(digests) == saved.source.identity(digests)
        assert made.description == {**saved.description, "name": "mine"}

    def test_the_model_itself_stays_as_it_is(self, folder: Path) -> None:
        model = AutoModel.from_pretrained(folder, dtype=torch.bfloat16).train()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        made = Encoder.from_model(model, AutoTokenizer.from_pretrained(folder))
        assert model.training
        assert model.config._attn_implementation == "sdpa"
        assert all(parameter.requires_grad for parameter in model.parameters())
        nn.init.zeros_(model.get_input_embeddings().weight)
        assert torch.equal(made.embeddings, before["embeddings.word_embeddings.weight"].float())

    def test_its_files_go_with_it(self, folder: Path) -> None:
        made = Encoder.from_model(*in_memory(folder))
        place = Path(made.source.spec.name)
        assert Encoder(made.source.spec).layers == 2
        del made
        gc.collect()
        assert not place.parent.exists()

    @pytest.mark.parametrize("name", ["{folder}", "../mine"])
    def test_its_name_leads_nowhere_else(self, folder: Path, name: str) -> None:
        before = (folder / "model.safetensors").read_bytes()
        model, tokenizer = in_memory(folder)
        nn.init.zeros_(model.get_input_embeddings().weight)  # type: ignore[arg-type]
        made = Encoder.from_model(model, tokenizer, name=name.format(folder=folder))
        assert (folder / "model.safetensors").read_bytes() == before
        assert Path(made.source.spec.name).parent.name.startswith("encoder-")

    def test_a_head_for_language_modelling_comes_along(self, folder: Path) -> None:
        model = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder))  # type: ignore[no-untyped-call]
        made = Encoder.from_model(model, AutoTokenizer.from_pretrained(folder))
        assert made.language_model is not None
        inputs = {"input_ids": torch.tensor([[2, 5, 6, 3]])}
        torch.testing.assert_close(made.language_model(**inputs).logits, model.eval()(**inputs).logits)


def test_it_says_what_it_is(folder: Path) -> None:
    size = sum(weight.numel() for weight in load_file(folder / WEIGHTS).values())
    assert repr(load(folder)) == f"<Encoder bert: 2 layers × 4 heads, {size:,} parameters, cpu, float32>"


def tokenizer(folder: Path) -> object:
    return TextTokenizer(source(folder))


OWN = "own.Own"  # in own.py, beside the config


@pytest.mark.parametrize(
    ("read", "model_type", "auto"),
    [
        (load, "strange", "AutoConfig"),
        (tokenizer, "strange", "AutoConfig"),
        (classifier, "strange", "AutoConfig"),
        # Types that transformers knows, and has no such model of.
        (tokenizer, "blip_text_model", "AutoModel"),
        (classifier, "clip_text_model", "AutoModelForSequenceClassification"),
        (tokenizer, "vit", "AutoTokenizer"),
    ],
)
def test_a_program_among_the_files_is_refused_and_nobody_is_asked(
    read: Callable[[Path], object], model_type: str, auto: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers itself asks at the terminal."""
    monkeypatch.setattr("builtins.input", asked := Mock(return_value="n"))
    (folder / "own.py").write_text("raise SystemExit('the program ran')")
    if auto == "AutoTokenizer":
        file, said = "tokenizer_config.json", {"tokenizer_class": "Own", "auto_map": {auto: [None, OWN]}}
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    else:
        file, said = "config.json", {"model_type": model_type, "auto_map": {auto: OWN}}
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | said))
    with pytest.raises(EncoderError) as refusal:
        read(folder)
    assert not asked.called
    assert str(folder) in str(refusal.value)
    assert "its files contain code (auto_map), which is not run. If you trust its author, " in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_folder_without_config_or_weights_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match=rf"{tmp_path}: the folder has no config\.json.*save_pretrained"):
        resolve(EncoderSpec(str(tmp_path)))
    (folder / WEIGHTS).unlink()
    with pytest.raises(EncoderError, match=rf"{folder}: the folder has no weights \(model\*\.safetensors or pyt"):
        source(folder).identity(Digests(tmp_path))


MERGE = r"\.merge_and_unload\(\)\.save_pretrained\(FOLDER\), save the tokenizer there too, and give FOLDER"


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize(
    ("config", "weights", "reason"),
    [
        (
            {"peft_type": "LORA", "base_model_name_or_path": "some/base", "r": 2},
            "adapter_model.safetensors",
            rf"an adapter \(adapter_config\.json, adapter_model\.s\S+\) of kind 'LORA' of the model 'some/b.*{MERGE}",
        ),
        (
            {"peft_type": "PREFIX_TUNING", "base_model_name_or_path": "some/base"},
            "adapter_model.bin",
            r"an adapter .* of kind 'PREFIX_TUNING' .* cannot be merged into the weights of the model, so it cannot ",
        ),
        # Of AdapterHub's package, whose config has other keys.
        (
            {"config": {"reduction_factor": 16}, "model_name": "some/base", "version": "1.0"},
            "pytorch_adapter.bin",
            rf"an adapter \(adapter_config\.json, pytorch_adapter\.bin\) of the model 'some/.* merge_adapter.*{MERGE}",
        ),
        (None, "pytorch_lora_weights.safetensors", r"an adapter \(pytorch_lora_weights\.safetensors\), whose weights"),
        (None, "adapter_model.safetensors", f"an adapter .*{MERGE}"),
    ],
)  # fmt: skip
def test_an_adapter_is_never_left_out_in_silence(
    config: object, weights: str, reason: str, beside: bool, folder: Path
) -> None:
    """Neither in the folder of its whole base, nor alone."""
    if not beside:
        for file in ("config.json", WEIGHTS):
            (folder / file).unlink()
    save_file({"a.lora_A.weight": torch.ones(2)}, folder / weights)
    if config is not None:
        (folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(EncoderError, match=rf"^{folder}: the files hold {reason}") as refusal:
        load(folder)
    assert "To read the model without it, give a folder without these files." in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_adapters_in_folders_of_a_model_are_warned_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(4):
        (folder / f"checkpoint-{number}").mkdir()
        (folder / f"checkpoint-{number}" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    told = "4 adapters in its folders (checkpoint-0, checkpoint-1, checkpoint-2, …). To read it with one, give that"
    for loaded in (load, classifier):
        loaded(folder)
        assert f"Left out of {folder}: {told}" in caplog.text
        caplog.clear()
    (folder / "config.json").unlink()
    with pytest.raises(EncoderError, match=r"has no config\.json.* Its folder checkpoint-0 has an adapter: give that"):
        load(folder)


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


def test_a_name_that_is_not_found_is_refused_at_once_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    started = time.monotonic()
    with pytest.raises(
        EncoderError, match=r"no/such/folder: not found, neither as a local folder nor on the hub.*save_pre"
    ):
        resolve(EncoderSpec("no/such/folder"))
    assert time.monotonic() - started < 5
    monkeypatch.setattr("attention_probing.attention.source.snapshot_download", Mock(side_effect=ConnectionError))
    with pytest.raises(EncoderError, match=r"some/encoder.*ConnectionError: no reason given"):
        resolve(EncoderSpec("some/encoder"))


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


@pytest.mark.parametrize("weights", ["pretrained", "random"])
@pytest.mark.parametrize("pooler", [True, False], ids=["whole", "without a pooler"])
def test_loading_leaves_the_callers_random_numbers_alone(weights: str, pooler: bool, folder: Path) -> None:
    if not pooler:
        without("pooler")(folder)
    before = torch.random.get_rng_state()
    load(folder, weights=weights)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        (lambda folder: os.utime(folder / WEIGHTS, ns=(1, 1)), set()),
        (write("README.md", "About."), set()),
        (write("tokenizer.json", "{}"), {"texts_sha256"}),
        (configure(layer_norm_eps=0.1), {"texts_sha256"}),
        (write("vocab.txt", "the\n"), {"texts_sha256"}),
        (reweigh(lambda w: w[f"{QUERY}.bias"].add_(1e-3)), {"weights_sha256"}),
    ],
)
def test_identity_is_that_of_the_files_that_matter(
    change: Change, changed: set[str], folder: Path, tmp_path: Path
) -> None:
    digests = Digests(tmp_path)
    before = source(folder).identity(digests)
    change(folder)
    after = source(folder).identity(digests)
    assert {name for name in before if before[name] != after[name]} == changed
    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere")
    assert source(elsewhere).identity(digests) == after


def test_weights_in_several_files_all_count(folder: Path, tmp_path: Path) -> None:
    digests, (first, second) = Digests(tmp_path), halve(folder)
    before = source(folder).identity(digests)["weights_sha256"]
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    assert source(folder).identity(digests)["weights_sha256"] != before


@pytest.fixture
def bundle(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that stands in the place of the bundle; returns its folder of the model."""
    package = tmp_path / BUNDLE
    shutil.copytree(folder, package / "model")
    find_spec = importlib.util.find_spec

    def find(name: str, package_name: str | None = None) -> ModuleSpec | None:
        if name == BUNDLE:
            return ModuleSpec(BUNDLE, None, origin=str(package / "__init__.py"))
        return find_spec(name, package_name)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    return package / "model"


def test_the_default_encoder_comes_from_the_bundle_if_its_weights_are_the_pinned_ones(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, path = resolve(EncoderSpec()), bundle / WEIGHTS
    assert (found.origin, found.folder) == ("bundle", bundle)
    assert Encoder(found).description["origin"] == "bundle"
    pinned = digest(path.read_bytes())
    with pytest.raises(EncoderError, match=f"{path}: .*SHA-256 is {pinned}; that of {DEFAULT_NAME} is {BUNDLE_SHA256}"):
        found.identity(Digests(tmp_path))
    monkeypatch.setattr("attention_probing.attention.source.BUNDLE_SHA256", pinned)
    assert found.identity(Digests(tmp_path))["weights_sha256"] == pinned


@pytest.mark.usefixtures("bundle")
def test_the_bundle_stands_for_the_default_encoder_alone_and_behind_a_folder_of_its_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "/nonexistent")
    with pytest.raises(EncoderError, match="not found, neither as a local folder nor on the hub"):
        resolve(EncoderSpec("bert-base-uncased"))
    shutil.copytree(folder, tmp_path / DEFAULT_NAME)
    monkeypatch.chdir(tmp_path)
    assert resolve(EncoderSpec()).origin == "folder"


@pytest.mark.skipif(importlib.util.find_spec(BUNDLE) is None, reason="the extra `demo` is not installed")
def test_the_installed_bundle_is_the_pinned_one(tmp_path: Path) -> None:
    found = resolve(EncoderSpec())
    assert found.origin == "bundle"
    assert found.identity(Digests(tmp_path))["weights_sha256"] == BUNDLE_SHA256
    encoder = Encoder(found)
    assert (encoder.layers, encoder.heads, encoder.max_length) == (6, 12, 512)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_the_hub_gives_a_snapshot_with_weights(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "bin":
        torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
        (folder / WEIGHTS).unlink()
    download = Mock(return_value=str(folder))
    monkeypatch.setattr("attention_probing.attention.source.snapshot_download", download)
    found = resolve(EncoderSpec("some/encoder"))
    assert (found.origin, found.folder) == ("hub", folder)
    assert {call.args for call in download.mock_calls} == {("some/encoder",)}
    # The second kind of weights is asked for only when there is nothing of the first.
    patterns = [call.kwargs["allow_patterns"] for call in download.mock_calls]
    assert ["pytorch_model*.bin" in some for some in patterns] == ([False, True] if kind == "bin" else [False])
    assert found.identity(Digests(tmp_path))["weights"] == "pretrained"
    assert Encoder(found).layers == 2


# Word embeddings

WORDS = (*tiny.FAMILIAR, *tiny.BROKEN, "The", "café", "fox")


@pytest.mark.parametrize("name", ENCODERS)
def test_a_word_is_the_mean_of_its_pieces_rows_of_the_table(name: str, folders: dict[str, Path]) -> None:
    folder, blank = folders[name], ENCODERS[name][1]
    found = embed_words(load(folder), WORDS)
    table = load(folder).embeddings.numpy()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for place, word in enumerate(WORDS):
        ids = tokenizer(blank + word, add_special_tokens=False)["input_ids"]
        expected = sum(table[piece].astype(np.float64) for piece in ids) / len(ids)
        np.testing.assert_allclose(found.vectors[place], expected, atol=1e-6)
        assert found.pieces[place] == len(ids)
    assert (found.pieces > 1).any()
    assert found.vectors.dtype == np.float32


def test_words_that_the_tokenizer_does_not_know(bert: Path) -> None:
    bert_encoder = load(bert)
    found = embed_words(bert_encoder, ["fox", "\u200d", "漢", "fox漢"])
    assert found.pieces.tolist() == [1, 0, 1, 2]  # a word without any piece, a word that is the unknown token
    assert found.unknown.tolist() == [False, False, True, False]
    assert not found.vectors[1].any()
    table = bert_encoder.embeddings.numpy()
    np.testing.assert_array_equal(found.vectors[2], table[bert_encoder.tokenizer.convert_tokens_to_ids("[UNK]")])


def test_input_that_is_not_embedded_by_a_table_is_refused(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load(bert)
    monkeypatch.setattr(encoder.model, "get_input_embeddings", lambda: nn.Linear(2, 2))
    with pytest.raises(
        EncoderError, match=r"bert.*are a Linear, not a table of vectors\. Name other vectors with `vectors`"
    ):
        embed_words(encoder, ["fox"])


def _keep(found: list[Tensor], _: int, weights: Tensor) -> None:
    found.append(weights.clone())


@pytest.mark.parametrize("kind", [*passes.ENCODERS, "gemma2"])
def test_positions_that_are_allowed_are_those_that_get_weight(kind: str, tmp_path: Path) -> None:
    encoder = Encoder(str({**passes.ENCODERS, "gemma2": tiny.save_gemma2}[kind](tmp_path)))
    assert encoder.causal == ("bert" not in kind)
    for lengths in ((6, 3), (14, 9), (11, 11)):
        real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        allowed, weights = encoder.allowed(real), list[Tensor]()
        tokens = torch.arange(real.numel()).view(real.shape) + 3
        inputs = encoder.inputs(tokens, real, torch.zeros_like(tokens))
        encoder.capture(inputs, partial(_keep, weights), frozenset((0, 1)))
        for layer, item in product(range(2), range(2)):
            own = allowed.at(layer)[item, 0, : lengths[item]]
            for row, column in product(range(lengths[item]), range(max(lengths))):
                expected = column < lengths[item] and passes.sees(kind, layer, row, column)
                assert bool(own[row, column]) == expected
                assert (weights[layer][item, :, row, column] > 0).all() == expected


def test_masks_are_not_read_anew_for_every_input_that_is_a_little_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder(str(tiny.save_bert(tmp_path, max_length=300)))
    read = Mock(side_effect=find_masks)
    monkeypatch.setattr("attention_probing.attention.encoder.find_masks", read)
    for pieces in range(3, 301):
        assert encoder.allowed(torch.ones(1, pieces, dtype=torch.bool)).at(0).shape[-2:] == (pieces, pieces)
    assert [call.args[1] for call in read.mock_calls] == [131, 260, 300]


SIZES_OF_FILES = {
    "num_labels": (10**8, "num_labels is 100,000,000, but the weights are of at most 1,000"),
    "num_hidden_layers": (10**6, "num_hidden_layers is 1,000,000, but the weights are of at most 1,000"),
    "vocab_size": (10**9, "names 32,0.* parameters, but the weight files have at most 100,"),
    "hidden_size": (10**6, "names 9,000,.* parameters"),
    "intermediate_size": (10**9, "names 130,0.* parameters"),
    "max_position_embeddings": (10**9, "names 3.* parameters"),
}


@pytest.mark.parametrize("name", SIZES_OF_FILES)
def test_sizes_beyond_the_weights_are_refused_before_anything_is_made(name: str, folder: Path) -> None:
    value, message = SIZES_OF_FILES[name]
    configure("config.json", **{name: value})(folder)
    before = time.process_time()
    for reader in (Encoder, partial(load_classifier, classes=2)):
        with pytest.raises(EncoderError, match=message):
            reader(source(folder))
    assert time.process_time() - before < 5


def test_replacements_that_make_a_text_much_longer_are_refused(folder: Path) -> None:
    step = {"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * 100}
    configure("tokenizer.json", normalizer={"type": "Sequence", "normalizers": [step] * 5})(folder)
    with pytest.raises(EncoderError, match=r"tokenizer.json replaces a character by up to 10,510,100,501, but at most"):
        Encoder(source(folder))
    configure("tokenizer.json", normalizer={"type": "Sequence", "normalizers": [step]})(folder)
    assert Encoder(source(folder)).layers == 2
    quotes = [{"type": "Replace", "pattern": {"String": chr(8208 + one)}, "content": "-"} for one in range(40)]
    configure("tokenizer.json", normalizer={"type": "Sequence", "normalizers": quotes})(folder)
    assert Encoder(source(folder)).layers == 2  # characters for characters


@pytest.mark.parametrize("value", ["flash_attention_2", "owner/repo", {"": "owner/repo"}, 3])
@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_the_attention_that_files_ask_for_is_not_followed(key: str, value: object, folder: Path) -> None:
    configure("config.json", **{key: value})(folder)
    assert architecture(source(folder)).config._attn_implementation == "eager"
    assert Encoder(source(folder)).layers == 2


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("config.json", {"num_attention_heads": 0}, "ZeroDivisionError"),
        ("config.json", {"hidden_act": "unknown"}, "KeyError: 'unknown'"),
        ("tokenizer_config.json", {"model_max_length": "x"}, "model_max_length is 'x', but must be a number above 0"),
        ("tokenizer_config.json", {"model_max_length": -1}, "model_max_length is -1"),
    ],
)
def test_values_that_no_model_has_are_refused_in_a_line(
    file: str, values: dict[str, object], message: str, folder: Path
) -> None:
    configure(file, **values)(folder)
    with pytest.raises(EncoderError, match=message) as told:
        Encoder(source(folder))
    assert "\n" not in str(told.value)
    if file == "config.json":
        with pytest.raises(EncoderError, match=message):
            architecture(source(folder))


def test_files_that_are_not_read_do_not_matter(folder: Path) -> None:
    with (folder / "nbest_predictions.json").open("wb") as file:
        file.truncate(1 << 27)  # as long answers of other programs beside a model
    (folder / "old.json").symlink_to("/nowhere")
    assert Encoder(source(folder)).layers


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin"])
def test_files_without_an_end_are_refused_before_they_are_opened(name: str, kind: Endless, folder: Path) -> None:
    path = make_endless(folder / name, kind)
    with pytest.raises(EncoderError, match=rf"^{path}: the file cannot be read \(it is a {kind}, not a regular file"):
        source(folder)


def test_weights_in_another_folder_are_refused(folder: Path) -> None:
    index = {"metadata": {}, "weight_map": {"a": f"../{WEIGHTS}"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(EncoderError, match=r"names weights in another folder \(\.\./model\.safetensors\)"):
        Encoder(source(folder))


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
