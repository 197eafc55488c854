"""Short command lines, beside the long ones that they stand for."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from attention_probing import commands
from attention_probing.commands import CONFIGS, launch
from attention_probing.commands.command_line import CommandLine
from attention_probing.commands.lightning import CheckedCLI
from attention_probing.commands.shorthand import config_file, config_name
from attention_probing.commands.sweep_options import options_of
from attention_probing.commands.sweep_plan import read_sweep
from attention_probing.commands.sweep_run import PROGRAM
from attention_probing.results.errors import UserError
from tests.commands.sweeps import write_spec

HEADS = "configs/clark2019/heads.yaml"


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CONFIGS.parent)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("measure --config clark2019/heads", f"measure --config {HEADS}"),
        ("measure -c=clark2019/heads --quiet", f"measure -c={HEADS} --quiet"),
        ("fit --config demo --config trainer/cpu", "fit --config configs/demo.yaml --config configs/trainer/cpu.yaml"),
        (f"measure --config {HEADS}", f"measure --config {HEADS}"),
        # They override the config, wherever they stand.
        (
            "measure --corpus sample --config clark2019/heads --encoder=x",
            f"measure --config {HEADS} --data.corpus=sample --data.encoder.name=x",
        ),
        (
            "measure --config clark2019/clusters --corpus a-{split}.txt",
            "measure --config configs/clark2019/clusters.yaml --data.corpora=a-{split}.txt",
        ),
        ("fit --config devlin2019/finetune --encoder x", "fit --config {devlin} --data.tokenizer.name=x"),
        ("fit --model my.TransformerClassifier --encoder x", "fit --model my.TransformerClassifier {tokenizer}"),
        ("measure --config judge --checkpoints a b", 'measure --config configs/judge.yaml {checkpoints}["a", "b"]'),
        (
            "measure --config judge --checkpoints=a --quiet",
            "measure --config configs/judge.yaml --quiet {checkpoints}a",
        ),
        ("measure --config judge --checkpoints [a,b]", "measure --config configs/judge.yaml {checkpoints}[a,b]"),
        ("measure --config michel2019/pruning --checkpoints a", "measure --config {pruning} --model.checkpoint=a"),
        ("test --config demo --checkpoints a", "test --config configs/demo.yaml --ckpt_path=a"),
    ],
)
def test_short_and_long_forms(short: str, long: str) -> None:
    files = {name: f"configs/{name}.yaml" for name in ("devlin2019/finetune", "michel2019/pruning")}
    long = long.replace("{devlin}", files["devlin2019/finetune"]).replace("{pruning}", files["michel2019/pruning"])
    long = long.replace("{tokenizer}", "--data.tokenizer.name=x").replace("{checkpoints}", "--model.checkpoints=")
    words = CommandLine.from_words(short.split()).words
    assert " ".join(words) == long
    assert CommandLine.from_words(words).words == words


def test_a_file_that_exists_goes_before_a_config_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_file("demo") == str(CONFIGS / "demo.yaml")  # of any folder
    (tmp_path / "demo").mkdir()  # no file
    assert config_file("demo") == str(CONFIGS / "demo.yaml")
    (tmp_path / "clark2019").mkdir()
    (tmp_path / "clark2019" / "heads").write_text("model: Baselines\n", encoding="utf-8")
    assert config_file("clark2019/heads") == "clark2019/heads"
    assert config_file("model: {class_path: X}") == "model: {class_path: X}"
    assert config_name("clark2019/heads") == "clark2019/heads"
    assert [config_name(CONFIGS.parent / HEADS), config_name("my.yaml")] == ["clark2019/heads", "my.yaml"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "measure --config clark2019/head",
            r"there is no such file or config \(did you mean `clark2019/heads`\?\)\. `probing",
        ),
        ("measure --config configs/clark2019/head.yaml", r"configs/clark2019/head\.yaml: .* `clark2019/heads`\?"),
        ("measure --config=heads", r"^heads: .* \(did you mean `clark2019/heads` or `decoders/heads`\?\)"),
        ("measure --config demo --config zzz", r"^zzz: there is no such file or config\. "),
        ("test --config demo --checkpoints", "^--checkpoints has 0 values, but --ckpt_path takes one"),
        (
            "measure --config michel2019/pruning --checkpoints a b",
            r"^--checkpoints has 2 values, but --model\.checkpoint t",
        ),
        (
            "fit --config demo_classifier --encoder x",
            "^--encoder: AttentionClassifier has no pretrained encoder. Give",
        ),
        (
            "measure --config clark2019/heads --config hewitt2019/control",
            "^--config hewitt2019/control: its model, ControlTask, replaces SingleHeads of --config clark2019/heads",
        ),
    ],
)
def test_mistakes_are_told_in_a_line(words: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        CommandLine.from_words(words.split())
    assert "\n" not in str(error.value)


def test_a_checkpoint_in_the_place_of_a_config_is_told(tmp_path: Path) -> None:
    path = tmp_path / "best.ckpt"
    path.touch()
    with pytest.raises(UserError, match=r"best\.ckpt is a checkpoint, not a config\. Give it with --checkpoints"):
        CommandLine.from_words(["test", str(path)])


def test_a_config_may_change_the_model_of_another(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("model: {init_args: {trees: false}}\ndata: {init_args: {relations: base}}\n", encoding="utf-8")
    words = ["measure", "--config", HEADS, "--config", str(own), "--config=trainer/cpu"]
    assert CommandLine.from_words(words).words == (*words[:-1], "--config=configs/trainer/cpu.yaml")
    own.write_text("model: attention_probing.measures.SingleHeads\ndata: TextDataModule\n", encoding="utf-8")
    line = CommandLine.from_words([*words[:-1], "--corpus=a.txt"])
    assert line.words == (*words[:-1], "--data.corpora=a.txt")


def test_a_file_of_data_names_their_class(tmp_path: Path) -> None:
    data = tmp_path / "data.yaml"
    data.write_text("class_path: TextDataModule\n", encoding="utf-8")
    line = CommandLine.from_words(["measure", "clark2019/heads", f"--data={data}", "--corpus=a.txt"])
    assert line.words[-1] == "--data.corpora=a.txt"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("measure --config clark2019/head", "(did you mean `clark2019/heads`?)"),
        ("measure --config michel2019/pruning --checkpoints a b", "2 values, but --model.checkpoint takes one."),
        ("fit --config demo --checkpoints a b", "--checkpoints has 2 values, but --ckpt_path takes one."),
    ],
)
def test_a_mistake_is_reported_before_pytorch_is_imported(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-X", "importtime", PROGRAM[1], *words.split()]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    loaded = set(re.findall(r"([\w.]+)$", ended.stderr, re.MULTILINE))
    assert "attention_probing.results" in loaded
    assert not {"torch", "pytorch_lightning", "jsonargparse", "transformers"} & loaded
    assert commands.main(words.split()) == ended.returncode == 1
    assert message in ended.stderr.splitlines()[-1]
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_python_names_arguments_where_a_command_names_options(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("label\tsentence\n1\tgood\n", encoding="utf-8")
    program = (
        "from pathlib import Path\n"
        "from attention_probing.corpora.labelled import read_labelled\n"
        "read_labelled(Path('a.tsv'))"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Name the right column with `text`; if" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("measure --config clark2019/heads --corpus ewt", "`ud_english_ewt`"),
        ("fit --config demo --data.corpus ud_english_ewtt", "`ud_english_ewt`"),
        ("fit --config demo_classifier --corpus sst", "`sst2` or `"),
    ],
)
def test_a_corpus_is_suggested_before_anything_is_imported(words: str, meant: str) -> None:
    with pytest.raises(UserError, match=rf"^\w+: no corpus has this name \(did you mean {meant}"):
        CommandLine.from_words(words.split())


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("fit --config demo --epochs 3", "--trainer.max_epochs"),
        ("fit --config demo --seed 3", "--seed_everything"),
        ("fit --config demo --trainer.gpus 1", "--trainer.devices"),
        ("fit --config demo --data.model bert", "encoder"),
        ("measure --config clark2019/clusters --data.corpus sst2", "corpora"),
        ("measure --config atlas --corpus sample", "treebank"),
        ("measure --config judge --checkpoint a", "--checkpoints"),
        ("measure --config judge --ckpt_path a", "--checkpoints"),
        ("measure --config sashida2026/pairs --data.limit 3", "per_paradigm"),
        ("measure --config michel2019/pruning --model.checkpoints a", "checkpoint"),
    ],
)
def test_an_option_is_suggested_by_its_meaning(words: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        launch.start(CommandLine.from_words(words.split()), cli=CheckedCLI)
    assert capsys.readouterr().err.endswith(f"(did you mean `{meant}`?)\n")


def test_an_encoder_given_for_a_class_names_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        launch.start(CommandLine.from_words(["fit", "demo", "--data.encoder", "bert"]), cli=CheckedCLI)
    assert "bert is no class. Name an encoder with --data.encoder.name\n" in capsys.readouterr().err


GRID = """scores: [uas]
grid:
  axes:
    what:
      heads: {config: heads.yaml, command: measure}
      text:
        config: texts.yaml
        command: measure
        set: {encoder: small}
        rename: {data.init_args.corpus: data.init_args.corpora}
      classifier: {config: classifier.yaml, rename: {encoder: null}}
"""


def test_short_options_of_a_sweep_are_those_of_each_run(tmp_path: Path) -> None:
    spec = write_spec(
        tmp_path, GRID, heads="", texts="data: TextDataModule\n", classifier="model: AttentionClassifier\n"
    )
    rows = read_sweep(spec, options_of(["--corpus=sample"])).rows
    found = [dict(row.all_runs()[0].options) for row in rows]
    encoder, corpus = "data.init_args.encoder.name", {"data.init_args.corpus": "sample"}
    assert found == [corpus, {encoder: "small", "data.init_args.corpora": "sample"}, corpus]
    long = read_sweep(spec, options_of(["--data.corpus", "sample"])).rows
    assert long[0].all_runs()[0].key == rows[0].all_runs()[0].key
    for same in ("--encoder=x", "--data.encoder.name=x", "--data.tokenizer.name=x"):
        with pytest.raises(UserError, match="`--encoder` is set by the axis `what`"):
            read_sweep(spec, options_of([same]))
    (tmp_path / "spec.yaml").write_text(GRID.replace("rename: {encoder: null}", "set: {encoder: x}"), encoding="utf-8")
    with pytest.raises(UserError, match=r"its classifier has no pretrained encoder\. Give the row `rename: {enco"):
        read_sweep(spec, options_of([]))
    renamed = GRID.replace("{data.init_args.corpus: data.init_args.corpora}", "{data.before.name: corpus}")
    (tmp_path / "spec.yaml").write_text(renamed, encoding="utf-8")
    rows = read_sweep(spec, options_of(["--data.before.name=b"])).rows
    assert dict(rows[1].all_runs()[0].options) == {encoder: "small", "data.init_args.corpora": "b"}
    (tmp_path / "spec.yaml").write_text(GRID.replace("{encoder: small}", "{}"), encoding="utf-8")
    rows = read_sweep(spec, options_of(["--encoder=x"])).rows
    assert [dict(row.all_runs()[0].options) for row in rows] == [{encoder: "x"}, {encoder: "x"}, {}]


CLASSES = """scores: [accuracy]
grid:
  axes:
    what:
      tuned: {config: tuned.yaml, set: {encoder: a}}
      judged: {config: judged.yaml, command: measure, set: {checkpoints: [b, c], encoder: d}}
      ablated: {config: ablated.yaml, command: measure, set: {checkpoints: b}}
      texts: {config: texts.yaml, command: measure, set: {encoder: e}}
      changed: {config: texts.yaml, command: measure, set: {data: DependencyDataModule}}
"""


def test_short_options_of_a_sweep_are_those_of_the_classes_of_each_row(tmp_path: Path) -> None:
    configs = {
        "tuned": "model: {class_path: TransformerClassifier}\ndata: ClassificationDataModule\n",
        "judged": "model: attention_probing.fidelity.Fidelity\n",
        "ablated": "model: Pruning\n",
        "texts": "model: Surface\ndata: {class_path: attention_probing.datamodules.TextDataModule}\n",
    }
    spec = write_spec(tmp_path, CLASSES, **configs)
    rows = read_sweep(spec, options_of(["--corpus", "x"])).rows
    corpus, tokenizer = ("data.init_args.corpus", "x"), "data.init_args.tokenizer.name"
    assert [row.all_runs()[0].options for row in rows] == [
        (corpus, (tokenizer, "a")),
        (corpus, (tokenizer, "d"), ("model.init_args.checkpoints", '["b", "c"]')),
        (corpus, ("model.init_args.checkpoint", "b")),
        (("data.init_args.corpora", "x"), ("data.init_args.encoder.name", "e")),
        (("data", "DependencyDataModule"), corpus),
    ]
