"""Models that are divided among devices or quantised."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from attention_probing.attention import EncoderError, EncoderSpec, encoder as encoder_module
from attention_probing.attention.encoder import load_classifier, resolve
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
    sentence, one = "The fox sleeps unbelievably", load(folder)
    eager, layer = encoder_module._eager, {"bert": "encoder.layer.1", "llama": "layers.1"}[kind]
    places = {name: "disk" if name == layer else "cpu" for name in MODULES[kind]}

    def divided_with_the_disk(spec: EncoderSpec) -> dict[str, Any]:  # the only other device of a machine without GPU
        assert eager(spec)["device_map"] == "auto"
        return eager(spec) | {"device_map": places, "offload_folder": str(tmp_path / "disk")}

    monkeypatch.setattr(encoder_module, "_eager", divided_with_the_disk)
    divided = load(folder, device_map="auto")
    assert any(parameter.is_meta for parameter in divided.model.parameters())
    assert (divided.attention([sentence])[0] == one.attention([sentence])[0]).all()
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
