"""Classifiers that come back from their checkpoints alone, and folders of transformers as classifiers of every test."""

import io
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pytorch_lightning import Trainer
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from attention_probing import commands
from attention_probing.attention import EncoderSpec
from attention_probing.commands import CONFIGS, launch
from attention_probing.commands.training import Resume
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity import Fidelity, Roar, SingleWeight
from attention_probing.fidelity.checkpoints import files_of, load_checkpoints, read_run
from attention_probing.measures import measure
from attention_probing.models import TextClassifier
from attention_probing.models.checkpoints import CHECKPOINTS, read_checkpoint, training_fault
from attention_probing.results.errors import UserError
from tests import tiny
from tests.fidelity.trained import Data, fitted, recipe_of


@pytest.fixture(scope="module")
def texts(runs: Path) -> Data:
    """What the runs were trained on, set up for a test."""
    corpus, cache = runs.parent / "texts" / "{split}.tsv", runs.parent / "stores"
    data = ClassificationDataModule(str(corpus), positive="good", cache=str(cache))
    data.setup("test")
    return data


def one(runs: Path, name: str) -> Path:
    (found,) = (runs / name).rglob("*.ckpt")
    return found


def test_a_classifier_says_what_it_said_when_it_was_tested(runs: Path, texts: Data) -> None:
    (found,) = load_checkpoints([one(runs, "base-0")], texts)
    expected = pd.read_parquet(next((runs / "base-0").rglob("items.parquet")))["probability.good"]
    with torch.no_grad():
        probabilities = found.model(texts.splits["test"][list(range(len(expected)))]).logits.softmax(-1)
    torch.testing.assert_close(probabilities[:, 1].numpy(), expected.to_numpy("float32"), atol=1e-6, rtol=0)
    assert not found.model.training
    assert not any(parameter.requires_grad for parameter in found.model.parameters())


def test_variants_of_one_name_are_told_apart_by_what_differs(runs: Path, texts: Data) -> None:
    found = load_checkpoints([runs], texts)
    assert [checkpoint.name for checkpoint in found] == [
        "base, attention AdditiveAttention, seed 0",
        "base, attention AdditiveAttention, seed 1",
        "base, attention DotAttention, seed 0",
        "tying, regularizers.0.weight 0.1, seed 0",
        "tying, regularizers.0.weight 1.0, seed 0",
    ]


def test_options_of_a_class_tell_apart_those_that_have_it(runs: Path, texts: Data) -> None:
    """α is an option of sparse attention alone, and its other options are equal."""
    sparse = [
        fitted(
            runs.parent,
            f"sparse-{alpha}",
            f"--model.attention={{class_path: EntmaxAttention, init_args: {{alpha: {alpha}}}}}",
        )
        for alpha in (1.5, 2)
    ]
    assert [checkpoint.variant for checkpoint in load_checkpoints([one(runs, "base-0"), *sparse], texts)] == [
        "base, attention AdditiveAttention",
        "base, attention EntmaxAttention, attention.alpha 1.5",
        "base, attention EntmaxAttention, attention.alpha 2.0",
    ]


def test_two_checkpoints_of_one_training_are_no_two_seeds(runs: Path, texts: Data, tmp_path: Path) -> None:
    first, last, copy = one(runs, "base-0"), tmp_path / "last.ckpt", tmp_path / "copy.ckpt"
    torch.save({**torch.load(first, weights_only=True), "epoch": 7}, last)
    with pytest.raises(
        UserError, match=r"last\.ckpt and .* have the same settings and seed \(base, seed 0\)\. Give only one"
    ):
        load_checkpoints([first, last], texts)
    shutil.copy(first, copy)
    with pytest.raises(UserError, match=r"copy\.ckpt and .*are the same checkpoint\. Give only one"):
        load_checkpoints([first, copy], texts)


def saved(**content: object) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def of_config(config: object) -> Callable[[bytes], bytes]:
    """The checkpoint of a classifier that says this of its run."""
    run = {"state_dict": {}, "epoch": 0, "pytorch-lightning_version": "2.6"}
    return lambda whole: saved(**run, **{TextClassifier.checkpoint_key: {}, "config": config})


def flipped(whole: bytes) -> bytes:
    """One bit of a weight: PyTorch would load it."""
    content = bytearray(whole)
    weights = torch.load(io.BytesIO(whole), weights_only=True)["state_dict"]["decision.weight"]
    content[content.index(weights.numpy().tobytes())] ^= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (of_config("- a"), "the checkpoint does not contain the configuration of its model"),
        (
            of_config("model: 3\ndata: {}\nseed_everything: 0"),
            "the checkpoint does not contain the configuration of its model",
        ),
        (lambda whole: b"no checkpoint", "this is not a checkpoint of a run"),
        (lambda whole: whole[:2000], "the checkpoint is damaged: it cannot be read as a zip archive"),
        (flipped, r"the checkpoint is damaged: its part .*data/\d+ has a wrong checksum"),
        (lambda whole: saved(state_dict={}), "this is not a checkpoint of a run"),
        (
            lambda whole: saved(**{"state_dict": {}, "epoch": 0, "pytorch-lightning_version": "2.6"}),
            r"this is not a checkpoint of a text classifier.*probing fit",
        ),
    ],
)
def test_what_is_no_checkpoint_is_named(
    made: Callable[[bytes], bytes], message: str, runs: Path, texts: Data, tmp_path: Path
) -> None:
    path = tmp_path / "given.ckpt"
    path.write_bytes(made(one(runs, "base-0").read_bytes()))
    with pytest.raises(UserError, match=rf"given\.ckpt: {message}"):
        load_checkpoints([path], texts)


def test_data_that_it_was_not_trained_on_are_refused_by_the_name_of_the_file(runs: Path, tmp_path: Path) -> None:
    other = ClassificationDataModule(
        str(runs.parent / "texts" / "{split}.tsv"), positive="good", min_count=12, cache=str(tmp_path)
    )
    other.setup("test")
    with pytest.raises(UserError, match=r"\.ckpt: The checkpoint was trained on other data \(difference in vocabulary"):
        load_checkpoints([one(runs, "base-0")], other)


QUICK = f"--config={CONFIGS / 'fidelity' / 'quick.yaml'}"
LABELS = ("drink", "other")


def write(folder: Path) -> str:
    """Texts of words that the tokenizers know; returns their path with `{split}` in it."""
    random = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)

    def text(number: int) -> str:
        words = random.choice([*tiny.FAMILIAR[:5], *tiny.BROKEN[:2]], random.integers(2, 7)).tolist()
        return " ".join([*words, "dogs" if number % 2 else "coffee"])

    for split, texts in (("train", 48), ("dev", 8), ("test", 14)):
        lines = ["label\ttext", *(f"{LABELS[number % 2]}\t{text(number)}" for number in range(texts))]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "{split}.tsv")


def save_distilbert(folder: Path) -> Path:
    tokenizer = tiny.bert_tokenizer()
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 64}
    return tiny.save(folder, tiny.build("distilbert", 0, vocab_size=len(tokenizer), **sizes), tokenizer)


SAVE: Mapping[str, Callable[[Path], Path]] = {
    "bert": tiny.save_bert,
    "roberta": tiny.save_roberta,
    "distilbert": save_distilbert,
    "gpt2": tiny.save_gpt2,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Classifiers of two classes, as others would have written them."""
    home = tmp_path_factory.mktemp("models")
    return {name: tiny.add_head(save(home / f"my-{name}"), 2) for name, save in SAVE.items()}


def options(corpus: str, cache: Path) -> list[str]:
    named = ["--data=ClassificationDataModule", f"--data.corpus={corpus}"]
    return [*named, "--data.positive=drink", f"--data.cache={cache}"]


QUIET = ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.devices=1")


def command(checkpoints: list[Path | str], *further: str, folder: Path) -> list[str]:
    given = f"--model.checkpoints=[{','.join(map(str, checkpoints))}]"
    return ["measure", QUICK, given, f"--trainer.default_root_dir={folder}", "--figures.formats=[]", *QUIET, *further]


def run_over(checkpoints: list[Path | str], *further: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of a run over the classifiers, and its `results.json`."""
    launch.main(command(checkpoints, *further, folder=folder))
    (path,) = folder.rglob("results.json")
    return path.parent, json.loads(path.read_text(encoding="utf-8"))


def only(*names: str) -> str:
    return f"--model.tests=[{','.join(f'{{class_path: {name}}}' for name in names)}]"


def data_of(corpus: str, tokenizer: Path | None, cache: Path, **further: Any) -> ClassificationDataModule:  # noqa: ANN401
    spec = None if tokenizer is None else EncoderSpec(str(tokenizer))
    data = ClassificationDataModule(corpus, tokenizer=spec, positive="drink", cache=str(cache), **further)
    data.setup("test")
    return data


@pytest.fixture(scope="module")
def checkpoint(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT that `train.py fit` has fine-tuned."""
    home = tmp_path_factory.mktemp("fit")
    bare = tiny.save_bert(home / "bare")
    words = ["fit", "--model=TransformerClassifier", "--model.learning_rate=3e-3", *QUIET]
    words += [*options(corpus, home / "stores"), f"--data.tokenizer.name={bare}", "--trainer.max_epochs=2"]
    launch.main([*words, "--checkpoint.monitor=val_f1", f"--trainer.default_root_dir={home / 'runs'}"])
    (found,) = home.rglob("epoch*.ckpt")
    return found


def test_a_folder_with_the_name_of_a_column_of_the_main_table_is_named_with_its_parent(
    folders: Mapping[str, Path], corpus: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["bert"], tmp_path / "mine" / "test")
    (found,) = load_checkpoints([folder], data_of(corpus, folder, tmp_path / "cache"))
    assert (found.name, found.variant) == ("mine test", "mine test")


def test_folders_of_any_shape_are_compared_and_named_after_themselves(
    folders: Mapping[str, Path], corpus: str, tmp_path: Path
) -> None:
    """BERT and DistilBERT have one tokenizer; the others run alone."""
    test = only("Rationale", "Correlation")
    for names in (("bert", "distilbert"), ("roberta",), ("gpt2",)):
        home = tmp_path / names[0]
        run, found = run_over([folders[name] for name in names], test, *options(corpus, home), folder=home)
        table = pd.read_csv(run / found["tables"]["fidelity"]).set_index("score")
        assert list(table)[1::3] == [f"my-{name}" for name in names]
        assert pd.read_parquet(run / found["items"])["checkpoint"].unique().tolist() == list(table)[1::3]
        for score in ("rationale.leave_one_out.comprehensiveness", "correlation.input_x_gradient.kendall"):
            own = [table[f"my-{name}"][score] for name in names]
            assert all(-1 <= value <= 1 for value in own)
            assert len({*own}) == len(names)
        accuracies = [accuracy_of(folders[name], corpus) for name in names]
        scores = [found["scores"][f"{prefix}accuracy"] for prefix in ("", *(f"my-{name}." for name in names[1:]))]
        assert scores == pytest.approx(accuracies)


def accuracy_of(folder: Path, corpus: str) -> float:
    """Of transformers' own model, text by text."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    test = pd.read_csv(corpus.format(split="test"), sep="\t")
    right = []
    for text, label in zip(test["text"], test["label"], strict=True):
        inputs = {"input_ids": torch.tensor([tokenizer(text)["input_ids"]])}
        if model.config.pad_token_id is None:
            model.config.pad_token_id = 10**6  # GPT-2 asks for one; none of a single text is
        right.append(LABELS[int(model(**inputs).logits.argmax())] == label)
    return float(np.mean(right))


@pytest.mark.parametrize(
    ("level", "names"),
    [
        (None, ["2-1", "2-2", "2-3", "2-4"]),
        ("1-3", ["1-3"]),
        ("1", ["1-1", "1-2", "1-3", "1-4"]),
        ("all", [f"{layer}-{head}" for layer in (1, 2) for head in (1, 2, 3, 4)]),
    ],
)
def test_the_level_is_a_head_a_layer_or_all(
    level: str | None, names: list[str], folders: Mapping[str, Path], corpus: str, tmp_path: Path
) -> None:
    """The highest weight of a text, averaged over the heads, is that of the model's own eager attention."""
    folder = folders["bert"]
    chosen = [] if level is None else [f"--model.level={level}"]
    run, _ = run_over([folder], only("Permutation"), *options(corpus, tmp_path), *chosen, folder=tmp_path)
    found = pd.read_parquet(run / "items.parquet")["permutation.max_attention"]
    own = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    split = data_of(corpus, folder, tmp_path).splits["test"]
    for text in range(len(split)):
        with torch.no_grad():
            layers = own(torch.tensor([split.tokens(text)]), output_attentions=True).attentions
        rows = [layers[int(name[0]) - 1][0, int(name[2]) - 1, 0] for name in names]
        assert found[text] == pytest.approx(float(torch.stack(rows).mean(0).max()), abs=1e-6)


def test_in_python_texts_and_their_tokenizer_may_be_given_by_name(
    folders: Mapping[str, Path], corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBING_CACHE", str(tmp_path))
    for split in ("train", "dev", "test"):
        frame = pd.read_csv(corpus.replace("{split}", split), sep="\t", quoting=3)
        frame.assign(label=(frame["label"] != "drink").astype(int)).to_csv(
            f"{tmp_path}/{split}.tsv", sep="\t", index=False
        )
    folder = str(folders["bert"])
    named, given = (Fidelity(folder, [SingleWeight()]) for _ in range(2))
    result = measure(tmp_path / "{split}.tsv", folder, named)
    expected = measure(data_of(corpus, folders["bert"], tmp_path), measurements=given)
    one, other = ({n: v for n, v in found.numbers.items() if not n.startswith("f1")} for found in (result, expected))
    assert one == pytest.approx(other, nan_ok=True)  # F1 is of the other label
    assert 0 <= result.numbers["single_weight.flips_top"] <= 1


def test_roar_leaves_out_a_folder_whose_training_is_not_known(
    folders: Mapping[str, Path], corpus: str, tmp_path: Path
) -> None:
    data = data_of(corpus, folders["bert"], tmp_path)
    test = Roar(("random",), shares=[0, 1])
    test.begin(load_checkpoints([folders["bert"]], data), data, torch.device("cpu"), 0)
    assert test.audit()["checkpoints_left_out"] == 1
    assert test.audit()["trainings"] == 0


def test_a_checkpoint_of_a_run_takes_the_level_and_keeps_it_untrained(
    checkpoint: Path, corpus: str, tmp_path: Path
) -> None:
    bare = read_run(checkpoint)[0]["data"]["init_args"]["tokenizer"]["name"]
    data = data_of(corpus, Path(bare), tmp_path)
    for level, names in (("1-2", ["1-2"]), (None, ["2-1", "2-2", "2-3", "2-4"])):
        (found,) = load_checkpoints([checkpoint], data, level)
        for model in (found.model, found.make_untrained(data, 0)):
            assert list(model.levels) == names  # type: ignore[arg-type]
    assert recipe_of(found, data)._identity != recipe_of(load_checkpoints([checkpoint], data, "1-2")[0], data)._identity


def test_folders_of_one_name_are_told_apart_and_copies_are_refused(
    folders: Mapping[str, Path], corpus: str, tmp_path: Path
) -> None:
    names = [tmp_path / "a" / "last", tmp_path / "b" / "last"]
    for path, kind in zip(names, ("bert", "distilbert"), strict=True):
        shutil.copytree(folders[kind], path)
    data = data_of(corpus, names[0], tmp_path)
    assert [one.variant for one in load_checkpoints(names, data)] == [f"last, tokenizer.name {path}" for path in names]
    shutil.copytree(names[0], tmp_path / "copy")
    with pytest.raises(UserError, match=r"copy and .*a/last are the same checkpoint\. Give only one"):
        load_checkpoints([names[0], tmp_path / "copy"], data)


def message(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a command line that fails."""
    capsys.readouterr()
    assert commands.main(words) == 1
    *_, told = capsys.readouterr().err.strip().splitlines()
    return told


def relabelled(folder: Path, to: Path, *names: str) -> Path:
    shutil.copytree(folder, to)
    config = AutoConfig.from_pretrained(to)
    config.id2label = dict(enumerate(names))
    config.save_pretrained(to)
    return to


def test_what_cannot_be_tested_is_told_with_the_folder_and_a_remedy(
    folders: Mapping[str, Path], corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tiny.save_bert(tmp_path / "bare")
    without = "--data.tokenizer.name="
    relabelled(folders["bert"], tmp_path / "swapped", "OTHER", "DRINK")
    three = tiny.add_head(tiny.save_bert(tmp_path / "three"), 3)
    sizes = tiny.SIZES | {"max_position_embeddings": 64}
    tokenizer = tiny.bert_tokenizer()
    model = tiny.build("deberta-v2", 0, vocab_size=len(tokenizer), **sizes)
    deberta = tiny.add_head(tiny.save(tmp_path / "deberta", model, tokenizer), 2)
    (tmp_path / "empty").mkdir()
    bert, roberta = folders["bert"], folders["roberta"]
    told: dict[str, tuple[list[Path | str], list[str], str]] = {
        "no head": ([bare], [], rf"{bare}: the files lack classifier\.bias, classifier\.weight of BertFor.*random"),
        "classes": ([three], [], rf"{three}: the data have 2 classes.*classification head is for another number"),
        "order": ([tmp_path / "swapped"], [], r"swapped: the classification head has the classes in the order OTHER, "
                  r"DRINK, but the data have drink, other \(sorted by name\)\. Rename the labels .* OTHER to 0_OTHER"),
        "nowhere": ([tmp_path / "nowhere"], [], r"nowhere: there is no such checkpoint\. Give .* folders of Hugging"),
        "empty": ([tmp_path / "empty"], [], r"empty: the folder .* no checkpoint .* no config\.json of a Hugging Face"),
        "adapter": ([tmp_path / "adapter"], [], r"adapter: the files hold an adapter .*merge_and_unload\(\)"),
        "attention": ([deberta], [], rf"{deberta} .*outside transformers' attention interface"),
        "head": ([bert], ["--model.level=3-1"], r"--model\.level: 3-1 does not exist; there are"),
        "level": ([bert], ["--model.level=word"], r"model\.level: 'word' is not a head.*or all\."),
        "tokenizer": ([bert], [f"{without}{roberta}"], rf"{bert}: its tokenizer is not the tokenizer of the data, "
                      rf"{roberta}\. Test it in a run of its own, and give --data\.tokenizer\.name={bert} to"),
        "two": ([bert, roberta], [], rf"{roberta}: its tokenizer is not the tokenizer of the data, {bert}\. Test it"),
    }  # fmt: skip
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    for name, (checkpoints, more, expected) in told.items():
        words = command(checkpoints, only("Perturbation"), *options(corpus, tmp_path), *more, folder=tmp_path / name)
        found = message(words, capsys)
        assert re.search(f"^Error: .*{expected}", found), found
    found = message(command([bert], folder=tmp_path / "without"), capsys)
    assert re.search(rf"{bert}: a Hugging Face classifier does not say which texts .* Give --data Classif", found), (
        found
    )


def test_a_name_without_a_path_is_a_folder_of_models(
    folders: Mapping[str, Path], corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("PROBING_MODELS", str(folders["bert"].parent))
    _, by_path = run_over([folders["bert"]], only("Perturbation"), *options(corpus, tmp_path), folder=tmp_path / "path")
    _, by_name = run_over(["my-bert"], only("Perturbation"), *options(corpus, tmp_path), folder=tmp_path / "name")
    assert by_name["scores"] == by_path["scores"]
    assert list(by_name["audit"]["checkpoints"]) == ["my-bert"]
    nowhere = folders["bert"].parent / "nowhere"
    with pytest.raises(
        UserError, match=rf"nowhere: there is no such checkpoint, and no model {nowhere} \(\$PROBING_MODELS\)"
    ):
        files_of(Path("nowhere"))
    monkeypatch.delenv("PROBING_MODELS")
    with pytest.raises(UserError, match=r"my-bert: there is no such checkpoint\. Give"):
        files_of(Path("my-bert"))


def test_a_name_of_the_hub_is_one_that_is_no_path(
    folders: Mapping[str, Path], corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name in ("runs/nowhere", "owner/a.ckpt", "nowhere", "/owner/name", "a/b/c"):
        with pytest.raises(UserError, match=f"{name}: there is no such checkpoint"):
            files_of(Path(name))
    assert files_of(Path("owner/name")) == [Path("owner/name")]
    data = data_of(corpus, folders["bert"], tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.delenv("PROBING_MODELS", raising=False)
    with pytest.raises(UserError, match=r"owner/name: not found, neither as a local folder nor on the hub"):
        load_checkpoints([Path("owner/name")], data)
    monkeypatch.setattr(
        "attention_probing.attention.source.snapshot_download", lambda name, **_: {"owner/name": folders["bert"]}[name]
    )
    _, found = run_over(["owner/name"], only("Perturbation"), *options(corpus, tmp_path), folder=tmp_path / "out")
    assert list(found["audit"]["checkpoints"]) == ["name"]
    assert found["encoder"]["origin"] == "hub"
    assert found["encoder"]["name"] == "owner/name"


class Killed(BaseException):
    """The end of a process from outside."""


@pytest.mark.parametrize(("hook", "is_interrupted"), [("on_train_epoch_start", True), ("on_train_end", False)])
def test_a_training_that_has_not_ended_is_named_with_the_answer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    hook: str,
    is_interrupted: bool,
) -> None:
    whole = getattr(Resume, hook)

    def kill(self: Resume, trainer: Trainer, module: TextClassifier) -> None:
        whole(self, trainer, module)
        if trainer.current_epoch >= 2:
            raise Killed

    monkeypatch.setattr(Resume, hook, kill)
    with pytest.raises(Killed):
        fitted(tmp_path, "run", epochs=3)
    monkeypatch.undo()
    assert list((tmp_path / "run").rglob("last.ckpt"))
    (file,) = files_of(tmp_path / "run")
    epochs = 2 if is_interrupted else 3
    said = f"{file}: the training of this checkpoint was interrupted or still goes on (epoch {epochs} of at most 3; "
    data = ClassificationDataModule(
        str(tmp_path / "texts" / "{split}.tsv"), positive="good", cache=str(tmp_path / "stores")
    )
    warnings = measure(data, measurements=Fidelity([str(file)], [SingleWeight()])).audit.get("warnings", [])
    assert [warning.startswith(said) for warning in warnings] == [True] * is_interrupted  # type: ignore[attr-defined]
    TextClassifier.load_from_checkpoint(file)
    assert (said in caplog.text) == is_interrupted


def test_an_ended_training_has_no_fault(runs: Path) -> None:
    file = one(runs, "base-0")
    assert file.parent.name == CHECKPOINTS
    assert training_fault(file, read_checkpoint(file)) == ""
