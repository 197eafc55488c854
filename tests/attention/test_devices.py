"""Models that are divided among devices or quantised."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from torch import nn
from transformers import AutoModel

from attention_probing.attention import EncoderError, EncoderSpec
from attention_probing.attention.loading import load_classifier
from attention_probing.attention.source import resolve
from attention_probing.results import UserError
from tests import tiny
from tests.attention.reference import load

MODULES = {
    "bert": ("embeddings", "encoder.layer.0", "encoder.layer.1", "pooler"),
    "llama": ("embed_tokens", "layers.0", "layers.1", "norm", "rotary_emb"),
}


@pytest.mark.parametrize("kind", MODULES)
def test_a_divided_model_has_the_same_attention(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = {"bert": tiny.save_bert, "llama": tiny.save_llama}[kind](tmp_path / kind)
    sentence = "The fox sleeps unbelievably"
    whole = load(folder)
    layer = {"bert": "encoder.layer.1", "llama": "layers.1"}[kind]
    places = {name: "disk" if name == layer else "cpu" for name in MODULES[kind]}
    from_pretrained = AutoModel.from_pretrained

    # The disk is the only other device of a machine without GPU.
    def divide_with_the_disk(folder: Path, *, device_map: str, **options: object) -> nn.Module:
        assert device_map == "auto"
        model: nn.Module = from_pretrained(folder, device_map=places, offload_folder=tmp_path / "disk", **options)
        return model

    monkeypatch.setattr(AutoModel, "from_pretrained", divide_with_the_disk)
    divided = load(folder, device_map="auto")
    assert any(parameter.is_meta for parameter in divided.model.parameters())
    assert (divided.attention([sentence])[0] == whole.attention([sentence])[0]).all()
    with pytest.raises(UserError, match=r"device_map may put its layers on several devices"):
        divided.attention([sentence], quantity="norms")


def test_on_one_device_nothing_is_divided(bert: Path) -> None:
    sentence = "The fox sleeps unbelievably"
    assert (load(bert, device_map="auto").attention([sentence])[0] == load(bert).attention([sentence])[0]).all()


def test_random_weights_cannot_be_divided(bert: Path) -> None:
    with pytest.raises(UserError, match=r"^`device_map` divides weights while it reads them"):
        EncoderSpec(str(bert), weights="random", device_map="auto")


def test_a_classifier_is_not_divided(bert: Path) -> None:
    with pytest.raises(EncoderError, match=r"not for classifiers"):
        load_classifier(resolve(EncoderSpec(str(bert), device_map="auto")), 2)


def test_a_quantised_model_without_its_package_is_refused(tmp_path: Path) -> None:
    folder = tiny.save_llama(tmp_path / "quantised")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(EncoderError, match=r"bitsandbytes"):
        load(folder)


def test_a_quantised_model_is_named_in_results(bert: Path) -> None:
    encoder = load(bert)
    assert "quantised" not in encoder.description
    encoder.model.config.quantization_config = Mock(quant_method="gptq")
    assert encoder.description["quantised"] == "gptq"
