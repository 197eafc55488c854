"""Encoders with code of their own: run by the user's word alone, and held to the same check as all others."""

import json
import re
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from attention_probing.attention import Encoder
from attention_probing.attention.inputs import TextTokenizer
from attention_probing.attention.loading import load_classifier
from attention_probing.attention.source import EncoderError, EncoderSource, EncoderSpec, resolve
from attention_probing.attention.specification import Extraction
from attention_probing.attention.store import store_key
from attention_probing.results.digests import Digests
from attention_probing.results.errors import command_line
from tests import tiny
from tests.own_code import MODULE, save_own

WORDS = ["the", "fox", "overdrinks", "coffee"]


@pytest.fixture
def own(own_code_cache: None, tmp_path: Path) -> Path:
    return save_own(tmp_path / "own", tmp_path / "ran")


def trusted(folder: Path | str, **spec: Any) -> EncoderSource:  # noqa: ANN401
    return resolve(EncoderSpec(str(folder), trust_remote_code=True, **spec))


def test_code_is_not_run_without_permission_and_the_refusal_names_the_option(own: Path, tmp_path: Path) -> None:
    source = resolve(EncoderSpec(str(own)))
    for read in (Encoder, TextTokenizer, lambda one: load_classifier(one, 2)):
        with (
            command_line(),
            pytest.raises(EncoderError, match=r"files contain code \(auto_map\), which is not") as told,
        ):
            read(source)
        assert "with --data.encoder.trust_remote_code=true (for a classifier --data.tokenizer.trust" in str(told.value)
        assert "\n" not in str(told.value)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(EncoderError, match=r"`trust_remote_code=True`"):
        Encoder(source)


def test_the_attention_of_code_that_is_permitted_is_that_of_its_formula(own: Path, tmp_path: Path) -> None:
    encoder = Encoder(trusted(own))
    assert (tmp_path / "ran").exists()
    assert (encoder.layers, encoder.heads, encoder.tapped, encoder.causal) == (2, 4, True, False)
    ids = encoder.tokenizer(" ".join(WORDS), return_tensors="pt")["input_ids"]
    weights = encoder.model.state_dict()
    states = weights["words.weight"][ids] + weights["places.weight"][: ids.size(1)]
    found: dict[int, torch.Tensor] = {}
    encoder.capture({"input_ids": ids}, found.__setitem__, frozenset({0, 1}))
    for layer in range(2):
        qkv = states @ weights[f"layers.{layer}.qkv.weight"].T + weights[f"layers.{layer}.qkv.bias"]
        queries, keys, values = (part.view(1, -1, 4, 8).transpose(1, 2) for part in qkv.split(32, -1))
        right = (2 * queries @ keys.mT / 8**0.5).softmax(-1)
        torch.testing.assert_close(found[layer], right, rtol=0, atol=1e-5)
        states = states + (right @ values).transpose(1, 2).flatten(2)


def test_the_language_model_and_the_random_weights_of_own_code(own: Path) -> None:
    encoder, drawn = Encoder(trusted(own)), Encoder(trusted(own, weights="random"))
    assert encoder.language_model is not None
    inputs = {"input_ids": torch.tensor([[2, 5, 6, 3]])}
    head = encoder.language_model.head
    assert isinstance(head, torch.nn.Module)
    torch.testing.assert_close(encoder.language_model(**inputs).logits, head(encoder.last_hidden(inputs)))
    names = [name for name, one in encoder.model.named_parameters() if torch.equal(one, drawn.model.state_dict()[name])]
    assert names == ["words.weight", "places.weight"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        # What the eager pass returns is not what its modules multiply with the values.
        ("attentions.append(weights)", "attentions.append(weights.sqrt() / weights.sqrt().sum(-1, True))", "no module"),
        ("attentions.append(weights)", "attentions.append(weights.mean(1))", "returns attention of the shapes"),
        ("attentions.append(weights)", "pass", "returns no attention weights"),
        ("[:, None, None, :] == 0", "[:, None, None, :] < 0", "mixes padding into the text"),
        ("states = states + new", "raise RuntimeError('of its own')", "RuntimeError: of its own"),
    ],
)
def test_code_whose_attention_is_not_that_of_its_eager_pass_is_refused(
    old: str, new: str, reason: str, own_code_cache: None, tmp_path: Path
) -> None:
    folder = save_own(tmp_path / "own", tmp_path / "ran", replaced={old: new})
    with pytest.raises(EncoderError, match=rf"{folder} \(OwnModel\).*{reason}"):
        Encoder(trusted(folder))


@pytest.mark.parametrize("sharpness", [1, 2])
def test_an_attention_function_of_its_own_is_read_where_it_is_not_the_standard_one(
    sharpness: int, own_code_cache: None, tmp_path: Path
) -> None:
    """The code calls the interface of transformers, whose standard function lacks the factor of its own function."""
    of_interface = {
        "class OwnAttention": """
def own_eager(module, query, key, value, mask, scaling, **options):
    weights = (SHARPNESS * scaling * query @ key.mT + mask).softmax(-1)
    return (weights @ value).transpose(1, 2), weights


class OwnAttention""",
        "self.heads = config": "self.config, self.is_causal, self.heads = config, False, config",
        "scores = SHARPNESS * split[0] @ split[1].mT / split.size(-1) ** 0.5": """
        hidden = torch.zeros_like(mask, dtype=states.dtype).masked_fill(mask == 0, -1e30)[:, None, None, :]
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, own_eager)
""".strip(),
        "weights = scores.masked_fill(mask[:, None, None, :] == 0, -torch.inf).softmax(-1)": """
        found, weights = attend(self, *split, hidden.expand(-1, -1, length, -1), scaling=split.size(-1) ** -0.5)
""".strip(),
        "(weights @ split[2]).transpose(1, 2).reshape": "found.reshape",
        "import torch\n": "import torch\nfrom transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS\n",
    }
    right = save_own(tmp_path / "right", tmp_path / "ran")
    folder = save_own(tmp_path / "own", tmp_path / "ran", replaced=of_interface)
    for one in (right, folder):
        (one / "sharpness.py").write_text(f"SHARPNESS = {sharpness}")
    encoder = Encoder(trusted(folder))
    assert encoder.tapped == (sharpness == 2)
    found, expected = (one.attention([WORDS])[0].to_numpy() for one in (encoder, Encoder(trusted(right))))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_code_that_may_be_run_belongs_to_the_identity_of_an_encoder(own: Path, tmp_path: Path) -> None:
    digests = Digests(tmp_path / "cache")
    corpus = tmp_path / "a.conllu"
    corpus.write_text("1\ta\n")

    def keys(folder: Path) -> tuple[str, str]:
        sources = (resolve(EncoderSpec(str(folder), trust_remote_code=trust)) for trust in (False, True))
        without, code = (store_key(Extraction(corpus, {}, source).identity(digests)) for source in sources)
        return without, code

    without, code = keys(own)
    assert without != code
    for file in (f"{MODULE}.py", "sharpness.py"):
        other = tmp_path / f"changed {file}"
        shutil.copytree(own, other)
        (other / file).write_text((own / file).read_text() + "# changed\n")
        assert keys(other)[0] == without
        assert keys(other)[1] != code
    (tmp_path / "bert").mkdir()
    bert = tiny.save_bert(tmp_path / "bert")
    (bert / "train.py").write_text("raise SystemExit")  # names no code for the model
    assert len(set(keys(bert))) == 1
    assert "code_sha256" not in trusted(bert).identity(digests)


def test_a_model_in_memory_with_own_code_is_read_without_being_asked_for(own: Path) -> None:
    model = AutoModel.from_pretrained(own, trust_remote_code=True)
    made = Encoder.from_model(model, AutoTokenizer.from_pretrained(own))
    assert (made.attention([WORDS])[0] == Encoder(trusted(own)).attention([WORDS])[0]).all()
    bert = Encoder(str(tiny.save_bert(own.parent / "bert")))
    assert not Encoder.from_model(bert.model, bert.tokenizer).source.spec.trust_remote_code


def test_code_of_another_repository_is_read_in_one_revision_and_belongs_to_the_identity(
    own_code_cache: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it lies in the cache of the hub, offline."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    whole = save_own(tmp_path / "whole", tmp_path / "ran")
    folder = save_own(tmp_path / "own", tmp_path / "ran", repository="some/code")
    for file in folder.glob("*.py"):
        file.unlink()
    with pytest.raises(
        EncoderError, match=r"name code \(auto_map\) of some/code on the hub, which was not found \(off"
    ):
        trusted(folder)
    assert resolve(EncoderSpec(str(folder))).code == []  # nothing is asked for where nothing may be run
    revisions = ("a" * 40, "b" * 40)
    for revision in revisions:
        snapshot = tmp_path / "hub" / "models--some--code" / "snapshots" / revision
        snapshot.mkdir(parents=True)
        for file in whole.glob("*.py"):
            shutil.copy(file, snapshot)
    (snapshot / "sharpness.py").write_text("SHARPNESS = 3.0\n")
    refs = tmp_path / "hub" / "models--some--code" / "refs"
    refs.mkdir()
    (refs / "main").write_text(revisions[0])
    source = trusted(folder)
    assert source.code_options == {"trust_remote_code": True, "code_revision": revisions[0]}
    assert {path.name for path in source.code} == {f"{MODULE}.py", "sharpness.py"}
    (refs / "main").write_text(revisions[1])  # as if it was changed before the model is loaded
    right, other = Encoder(trusted(whole)).attention([WORDS])[0], Encoder(trusted(folder)).attention([WORDS])[0]
    assert (Encoder(source).attention([WORDS])[0] == right).all()
    assert not (other == right).all()
    digests = Digests(tmp_path / "cache")
    assert source.identity(digests)["code_sha256"] != trusted(folder).identity(digests)["code_sha256"]
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"]["AutoModel"] = f"another/code--{MODULE}.OwnModel"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(EncoderError, match=r"another/code and some/code on the hub, but only that of one"):
        trusted(folder)


def test_own_code_of_a_model_of_the_hub_comes_with_its_snapshot(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    download = Mock(return_value=str(own))
    monkeypatch.setattr("attention_probing.attention.source.snapshot_download", download)
    resolve(EncoderSpec("some/encoder"))
    assert not any("*.py" in call.kwargs["allow_patterns"] for call in download.mock_calls)
    source = trusted("some/encoder")
    assert download.mock_calls[-1].kwargs == {"revision": own.name, "allow_patterns": ["*.py"]}
    assert {path.name for path in source.code} == {f"{MODULE}.py", "sharpness.py"}


def test_a_package_that_the_code_needs_is_named(own_code_cache: None, tmp_path: Path) -> None:
    needs = {"import torch\n": "import torch\nimport not_installed_here\n"}
    folder = save_own(tmp_path / "own", tmp_path / "ran", replaced=needs)
    with pytest.raises(EncoderError, match=re.escape("pip install not_installed_here")):
        Encoder(trusted(folder))


def test_code_beside_a_model_that_transformers_has_is_said_to_be_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny.save_bert(tmp_path / "bert")
    path = folder / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["auto_map"] = {"AutoModel": "modeling_own.OwnModel"}
    path.write_text(json.dumps(settings), encoding="utf-8")
    assert Encoder(resolve(EncoderSpec(str(folder)))).layers
    assert f"{folder}: its files contain code (auto_map), which is not run" in caplog.text
