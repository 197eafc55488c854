"""Files that ask for too much, refused before anything is made."""

import json
import time
from functools import partial
from pathlib import Path

import pytest

from attention_probing.attention import Encoder
from attention_probing.attention.loading import architecture, load_classifier
from attention_probing.attention.source import EncoderError
from tests.attention.folders import WEIGHTS, configure, source

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


def test_weights_in_another_folder_are_refused(folder: Path) -> None:
    index = {"metadata": {}, "weight_map": {"a": f"../{WEIGHTS}"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(EncoderError, match=r"names weights in another folder \(\.\./model\.safetensors\)"):
        Encoder(source(folder))
