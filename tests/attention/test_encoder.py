import gc
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from attention_probing.attention import Encoder
from attention_probing.attention.checks import ForwardPass, read_attention
from attention_probing.attention.masks import find_masks
from attention_probing.attention.source import EncoderError
from attention_probing.results.digests import Digests
from attention_probing.results.errors import UserError
from tests import tiny
from tests.attention.folders import WEIGHTS, configure, source
from tests.attention.reference import load
from tests.measures import passes


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
