"""An exported classifier, loaded where nothing of this package can be imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pytorch_lightning import seed_everything

from attention_probing.attention import Encoder, EncoderSpec
from attention_probing.attention.source import EncoderError, resolve
from attention_probing.commands.export import export, main
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.models import TrainingError, TransformerClassifier
from attention_probing.results import UserError
from tests import tiny
from tests.models.corpora import write_texts
from tests.trainers import trainer

LOAD = """
import json, sys
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer
text, *folders = sys.argv[1:]
for folder in folders:
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    logits = model(**inputs).logits
    body = AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state
    same = torch.equal(body, model.base_model(**inputs).last_hidden_state)
    print(json.dumps([logits.softmax(-1)[0].tolist(), model.config.id2label, same, "attention" in sys.modules]))
"""


@pytest.mark.slow
def test_plain_transformers_decides_as_the_checkpoint_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts").mkdir()
    corpus, text = write_texts(tmp_path / "texts"), "the fox drinks coffee ."
    trained = {}
    for save in (tiny.save_bert, tiny.save_roberta, tiny.save_gpt2):
        seed_everything(0, verbose=False)
        bare, folder = save(tmp_path / save.__name__), tmp_path / "new" / save.__name__
        data = ClassificationDataModule(corpus, tokenizer=EncoderSpec(str(bare)), positive="good", cache=str(tmp_path))
        model, fitting = TransformerClassifier(learning_rate=3e-3), trainer()
        with pytest.raises(TrainingError, match="was not trained"):
            export(model, tmp_path / "untrained")
        fitting.fit(model, datamodule=data)
        fitting.save_checkpoint(checkpoint := tmp_path / f"{save.__name__}.ckpt", weights_only=True)
        assert main([str(checkpoint), str(folder)]) == 0
        trained[folder] = data, model, checkpoint
    command = [sys.executable, "-I", "-c", LOAD, text, *map(str, trained)]
    told = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120).stdout

    for (folder, (data, model, checkpoint)), line in zip(trained.items(), told.splitlines(), strict=True):
        probabilities, names, same, ours = json.loads(line)
        expected = model.eval().predict_texts([text])
        assert probabilities == pytest.approx([expected[f"probability.{label}"][0] for label in data.labels], abs=1e-6)
        assert (names, same, ours) == ({"0": "bad", "1": "good"}, True, False)

        assert {path.name for path in folder.iterdir()} >= {"config.json", "model.safetensors", "tokenizer_config.json"}
        assert "implementation" not in (folder / "config.json").read_text(encoding="utf-8")
        own = model.classifier.model.base_model.state_dict()
        kept = Encoder(resolve(EncoderSpec(str(folder)))).model.state_dict()
        assert all(torch.equal(kept[name], own[name]) for name in own)
        spec = EncoderSpec(str(folder))
        again = ClassificationDataModule(corpus, tokenizer=spec, positive="good", cache=str(tmp_path))
        fresh = TransformerClassifier()
        trainer().test(fresh, datamodule=again, verbose=False)  # a head that comes with the files needs no training
        trainer().test(model, datamodule=data, verbose=False)
        assert fresh.result is not None
        assert model.result is not None
        assert fresh.result.numbers["loss"] == pytest.approx(model.result.numbers["loss"], abs=1e-6)
        assert fresh.result.audit["classes_of_the_head"] == "bad = bad, good = good"

        with pytest.raises(UserError, match="exists already and is not overwritten"):
            main([str(checkpoint), str(folder)])


def test_what_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = tiny.add_head(tiny.save_bert(tmp_path / "tuned"), 2)
    (tmp_path / "texts").mkdir()
    spec = EncoderSpec(str(tuned))
    data = ClassificationDataModule(
        write_texts(tmp_path / "texts"), tokenizer=spec, positive="good", cache=str(tmp_path)
    )
    data.setup("test")
    model = TransformerClassifier()
    model.make_for(data)
    before = {path.name for path in tmp_path.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(EncoderError, match=r"model cannot be written \(No space left on device\)\. Check the path"):
        export(model, tmp_path / "model")
    assert {path.name for path in tmp_path.iterdir()} == before
    monkeypatch.undo()
    export(model, tmp_path / "model")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for taken in ("model", "link", "texts"):
        with pytest.raises(EncoderError, match="exists already and is not overwritten"):
            export(model, tmp_path / taken)
