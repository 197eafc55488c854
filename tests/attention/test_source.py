"""Where an encoder comes from: a folder, the bundle or the hub; its identity, and what is not read in silence."""

import importlib.util
import json
import os
import shutil
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from attention_probing.attention import Encoder
from attention_probing.attention.source import (
    BUNDLE,
    BUNDLE_SHA256,
    DEFAULT_NAME,
    EncoderError,
    EncoderSpec,
    resolve,
)
from attention_probing.results.digests import Digests, digest
from tests.attention.folders import (
    QUERY,
    WEIGHTS,
    Change,
    classifier,
    configure,
    halve,
    reweigh,
    source,
    tokenizer,
    write,
)
from tests.attention.reference import load
from tests.endless import Endless, make_endless

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
    (tmp_path / "model.Q4_1.gguf").touch()
    with pytest.raises(EncoderError, match=r"no config\.json.* It has GGUF weights: write them out as plain ones"):
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


def test_a_name_that_is_not_found_is_refused_at_once_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROBING_MODELS", raising=False)
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


@pytest.fixture
def models(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`$PROBING_MODELS`, with the folder of one model; the working folder is another, and there is no hub."""
    root = tmp_path / "models"
    shutil.copytree(folder, root / "multilingual-e5-small")
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)
    monkeypatch.setenv("PROBING_MODELS", str(root))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "/nonexistent")
    return root


def test_a_name_is_found_among_the_models_behind_a_folder_of_that_name(
    models: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = "multilingual-e5-small"
    found = resolve(EncoderSpec(name))
    assert (found.origin, found.folder) == ("folder", models / name)
    assert f"{name} is read from {models / name} ($PROBING_MODELS)." in caplog.text
    assert Encoder(found).description == Encoder(str(models / name)).description  # so that they share stores
    with pytest.raises(EncoderError, match=rf"^\./{name}: there is no such folder"):
        resolve(EncoderSpec(f"./{name}"))
    shutil.copytree(folder, name)
    assert resolve(EncoderSpec(name)).folder == Path(name)


@pytest.mark.usefixtures("models")
def test_a_command_that_downloads_a_model_has_the_name_that_the_hub_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EncoderError) as refusal:
        resolve(EncoderSpec("smollm2-135m"))
    into = Path(os.environ["PROBING_MODELS"], "smollm2-135m")
    command = f"`hf download HuggingFaceTB/SmolLM2-135M-Instruct --local-dir {into}`"
    assert f"neither as a local folder, nor as {into} ($PROBING_MODELS), nor on the hub" in str(refusal.value)
    assert "Its name on the hub is HuggingFaceTB/SmolLM2-135M-Instruct: give that, or dow" in str(refusal.value)
    assert command in str(refusal.value)
    with pytest.raises(
        EncoderError, match=r"^multi-e5-small: not found \(did you mean `multilingual-e5-small`\?\), nei"
    ):
        resolve(EncoderSpec("multi-e5-small"))
    monkeypatch.delenv("PROBING_MODELS")
    with pytest.raises(EncoderError, match=r"`hf download google/gemma-3-270m --local-dir gemma-3-270m`"):
        resolve(EncoderSpec("gemma-3-270m"))
    with pytest.raises(EncoderError, match=r"`hf download gpt2`; most names on the hub have an owner, OWNER/gpt2\)"):
        resolve(EncoderSpec("gpt2"))


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
    monkeypatch.delenv("PROBING_MODELS", raising=False)
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


def test_no_weights_are_downloaded_where_none_are_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / WEIGHTS).unlink()
    download = Mock(return_value=str(folder))
    monkeypatch.setattr("attention_probing.attention.source.snapshot_download", download)
    assert resolve(EncoderSpec("some/encoder"), weights=False).weights == []
    [call] = download.mock_calls
    assert not {"model*.safetensors", "pytorch_model*.bin"} & {*call.kwargs["allow_patterns"]}


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin"])
def test_files_without_an_end_are_refused_before_they_are_opened(name: str, kind: Endless, folder: Path) -> None:
    path = make_endless(folder / name, kind)
    with pytest.raises(EncoderError, match=rf"^{path}: the file cannot be read \(it is a {kind}, not a regular file"):
        source(folder)
