"""All tests together, as users run them: `train.py test` over checkpoints that `train.py fit` has left."""

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import fidelity
import train
from fidelity import Fidelity, FidelityError, FidelityTest, Permutation, Perturbation
from fidelity.saliency import RANKINGS
from metrics import progress
from tests.fidelity.trained import ROOT, WARNINGS, fitted

pytestmark = [pytest.mark.filterwarnings(warning) for warning in WARNINGS]
TYING = "--model.init_args.regularizers=[{class_path: Tying, init_args: {weight: 0.1}}]"
SHORT = "[{class_path: Perturbation}, {class_path: Permutation, init_args: {permutations: 7}}]"
SCORES = (
    "perturbation.uniform_drop",
    "perturbation.permuted_drop",
    "permutation.median_tvd",
    "adversary.max_jsd",
    "consistent_adversary.area",
    *(f"erasure.{ranking}.{score}" for ranking in RANKINGS for score in ("median_fraction", "never_flips")),
    "single_weight.flips_top",
    "single_weight.flips_random",
    *(
        f"correlation.{saliency}.{score}"
        for saliency in ("input_x_gradient", "gradient_norm", "integrated_gradients", "leave_one_out")
        for score in ("kendall", "pearson")
    ),
    "single_token.spread",
    "rationale.random.comprehensiveness",
    "rationale.leave_one_out.sufficiency",
    "rationale.attention.auprc",
    "rationale.attention.average_precision",
)
"""Names that others read."""


FEWER = (
    "--model.init_args.tests=[{class_path: Perturbation}, {class_path: Permutation}, {class_path: SetErasure}, "
    "{class_path: Adversary, init_args: {steps: 20}}, {class_path: SingleWeight}, {class_path: SingleToken}, "
    "{class_path: Correlation}, {class_path: Rationale}, "
    "{class_path: ConsistentAdversary, init_args: {strengths: [0, 0.1], max_epochs: 1}}, "
    "{class_path: GuidedMLP, init_args: {max_epochs: 1}}]"
)
"""All, in short."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base with two seeds, and tying."""
    folder = tmp_path_factory.mktemp("trained")
    fitted(folder, "base-0")
    fitted(folder, "base-1", seed=1)
    fitted(folder, "tying", TYING)
    return folder


def run_over(
    runs: Path, checkpoints: list[Path], config: str, *options: str
) -> tuple[train.ProbingCLI, Path, dict[str, Any]]:
    """A run over the checkpoints, its folder and its `results.json`."""
    cli = train.main(
        [
            "test",
            config,
            # One needs no brackets.
            f"--model.init_args.checkpoints={checkpoints[0]}"
            if len(checkpoints) == 1
            else f"--model.init_args.checkpoints=[{','.join(map(str, checkpoints))}]",
            f"--trainer.default_root_dir={runs}",
            "--trainer.enable_progress_bar=false",
            "--trainer.accelerator=cpu",
            "--trainer.devices=1",
            *options,
        ]
    )
    (path,) = runs.rglob("results.json")
    return cli, path.parent, json.loads(path.read_text(encoding="utf-8"))


ALL, QUICK = (f"--config={ROOT / 'configs' / 'fidelity' / name}.yaml" for name in ("all", "quick"))


def test_every_test_over_several_checkpoints_leaves_whole_results(folder: Path, tmp_path: Path) -> None:
    names = [folder / "base-0", folder / "base-1", folder / "tying"]
    cli, run, found = run_over(tmp_path, names, ALL, FEWER, "--model.init_args.ig_steps=5")
    scores = found["scores"]
    for name in SCORES:
        for variant in ("", "tying."):
            assert f"{variant}{name}.low" in scores, name
            # No deciding words are named, and no decision flips: such medians are of nothing.
        if not name.endswith(("auprc", "average_precision", "median_fraction")):  # there are no rationales here
            assert np.isfinite(scores[f"{variant}{name}"]), name
    table = pd.read_csv(run / found["tables"]["fidelity"])
    assert table["checkpoint"].tolist() == ["base, seed 0", "base, seed 1", "tying, seed 0"]
    assert set(SCORES) <= set(table)
    items = pd.read_parquet(run / found["items"])
    assert len(items) == 3 * 29
    first = items[items["checkpoint"] == "base, seed 0"]
    assert first["id"].tolist() == [str(line) for line in range(2, 31)]
    value = first["permutation.median_tvd"].mean()
    assert table["permutation.median_tvd"][0] == pytest.approx(value, abs=1e-6)
    assert scores["permutation.median_tvd"] == pytest.approx(table["permutation.median_tvd"][:2].mean())
    for kind in ("tables", "latex", "figures"):
        for name in found[kind].values():
            assert (run / name).stat().st_size > 0
    page = (run / found["figures"]["examples"]).read_text(encoding="utf-8")
    assert "adversary" in page
    assert found["audit"]["checkpoints"]["tying, seed 0"]["skipped_texts"] == 0
    # The data are those of the first checkpoint, though no option names them.
    assert cli.datamodule.corpus == str(folder / "texts" / "{split}.tsv")
    assert found["data"]["test"]["file"] == "test.tsv"


@pytest.mark.parametrize("paper", ["jain2019", "serrano2019", "tutek2020"])
def test_the_configs_of_the_papers_run_as_they_are(paper: str, folder: Path, tmp_path: Path) -> None:
    path = ROOT / "configs" / paper / "fidelity.yaml"
    _, _, found = run_over(tmp_path, [folder / "base-0"], f"--config={path}")
    named = [
        test["class_path"] for test in yaml.safe_load(path.read_text(encoding="utf-8"))["model"]["init_args"]["tests"]
    ]
    assert len(named) > 1
    for name in named:
        assert any(score.startswith(f"{getattr(fidelity, name).name}.") for score in found["scores"])


def test_all_is_every_test_there_is_and_quick_all_that_train_nothing() -> None:
    named = {}
    for name in ("fidelity/all", "fidelity/quick", "wiegreffe2019/fidelity"):
        config = yaml.safe_load((ROOT / "configs" / f"{name}.yaml").read_text(encoding="utf-8"))
        named[name] = {test["class_path"] for test in config["model"]["init_args"]["tests"]}
    every = {one.__name__ for one in vars(fidelity).values() if isinstance(one, type) and issubclass(one, FidelityTest)}
    assert named["fidelity/all"] == every - {"FidelityTest"}
    assert named["fidelity/all"] - named["fidelity/quick"] == named["wiegreffe2019/fidelity"]
    trains = {name for name in named["fidelity/all"] if getattr(fidelity, name).begin is not FidelityTest.begin}
    assert trains == named["wiegreffe2019/fidelity"]


def test_classes_and_scores_are_those_of_the_classifiers_own_test(folder: Path, tmp_path: Path) -> None:
    _, run, found = run_over(tmp_path, [folder / "base-1"], QUICK, f"--model.init_args.tests={SHORT}")
    (own,) = (folder / "base-1").rglob("results.json")
    expected = json.loads(own.read_text(encoding="utf-8"))["scores"]
    for name in ("f1", "accuracy"):
        assert found["scores"][name] == pytest.approx(expected[name])
    items = pd.read_parquet(run / found["items"])
    assert items["predicted"].tolist() == [
        {"bad": 0, "good": 1}[label] for label in pd.read_parquet(own.parent / "items.parquet")["predicted"]
    ]


def test_the_size_of_the_batches_changes_nothing(folder: Path, tmp_path: Path) -> None:
    found = []
    for tokens in (1, 100_000):
        _, run, _ = run_over(
            tmp_path / str(tokens),
            [folder / "base-0"],
            QUICK,
            f"--model.init_args.eval_tokens={tokens}",
            "--model.init_args.ig_steps=5",
        )
        found.append(pd.read_parquet(run / "items.parquet"))
    one, all_at_once = found
    for column in one.columns.drop(["checkpoint", "id"]):
        # A correlation of numbers that hardly differ makes their rounding larger.
        atol = {"adversary": 5e-3, "correlation": 1e-4}.get(column.partition(".")[0], 1e-5)
        np.testing.assert_allclose(one[column], all_at_once[column], atol=atol, rtol=0, err_msg=column)


def test_every_test_runs_on_a_hierarchical_classifier(folder: Path, tmp_path: Path) -> None:
    """Its sentences are tested; what has no sense there is left out, and counted."""
    texts = tmp_path / "texts"
    texts.mkdir()
    rows = ["bad\tdull film . a cast", "good\tthe film is great . it is fine . story", "bad\tawful . the plot"] * 8
    for split in ("train", "dev", "test"):
        (texts / f"{split}.tsv").write_text("label\ttext\n" + "\n".join(rows) + "\n", encoding="utf-8")
    parts = ("", "sentence_")
    han = [
        "--model=HierarchicalClassifier",
        *(f"--model.init_args.{part}encoder=AverageEncoder" for part in parts),
        *(f"--model.init_args.{part}attention=AdditiveAttention" for part in parts),
    ]
    path = fitted(tmp_path, "han", *han, epochs=1)
    _, run, found = run_over(tmp_path / "runs", [path], ALL, FEWER, "--model.init_args.ig_steps=5")
    assert found["audit"]["guided_mlp.checkpoints_left_out"] == 1
    assert found["audit"]["checkpoints"]["hierarchical, seed 0"]["skipped_texts"] == 0
    for name in SCORES:
        # No deciding words are named, and no decision flips: such medians are of nothing.
        if not name.endswith(("auprc", "average_precision", "median_fraction")):
            assert np.isfinite(found["scores"][name]), name
    assert (run / found["figures"]["examples"]).stat().st_size > 0


def test_texts_of_one_word_are_classified_but_counted_as_skipped(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    rows = ["bad\tdull film", "good\tgreat", "good\tfine cast", "bad\tawful"] * 6
    for split in ("train", "dev", "test"):
        (texts / f"{split}.tsv").write_text("label\ttext\n" + "\n".join(rows) + "\n", encoding="utf-8")
    path = fitted(tmp_path, "base", epochs=1)
    _, run, found = run_over(tmp_path / "runs", [path], QUICK, f"--model.init_args.tests={SHORT}")
    assert found["audit"]["checkpoints"]["base, seed 0"]["skipped_texts"] == 12
    table = pd.read_csv(run / found["tables"]["fidelity"])
    assert table[["texts", "skipped"]].to_numpy().tolist() == [[12, 12]]
    items = pd.read_parquet(run / "items.parquet")
    assert items["permutation.median_tvd"].isna().tolist() == [False, True] * 12
    assert items["predicted"].notna().all()


def test_a_part_of_the_texts_can_be_read(folder: Path, tmp_path: Path) -> None:
    part = ["--model.init_args.eval_tokens=40", "--trainer.limit_test_batches=2"]
    _, run, told = run_over(tmp_path / "part", [folder / "base-0"], QUICK, f"--model.init_args.tests={SHORT}", *part)
    _, whole, all_told = run_over(tmp_path / "whole", [folder / "base-0"], QUICK, f"--model.init_args.tests={SHORT}")
    found, every = (pd.read_parquet(path / "items.parquet").set_index("id") for path in (run, whole))
    assert 0 < len(found) < len(every) == 29
    assert told["audit"]["texts"] == f"{len(found)} of 29"
    assert "texts" not in all_told["audit"]
    column = "permutation.median_tvd"
    np.testing.assert_allclose(found[column], every.loc[found.index, column], atol=1e-5)


def test_what_is_to_come_and_how_long_it_takes_is_told(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("pytorch_lightning"), "propagate", True)
    caplog.set_level("INFO", "pytorch_lightning")  # a benchmark of another test may have raised it
    monkeypatch.setattr(progress, "EVERY", 0.0)
    pair = ["--model.init_args.eval_tokens=40", "--trainer.limit_test_batches=2"]
    options = [QUICK, f"--model.init_args.tests={SHORT}", *pair]
    checkpoints = [folder / "base-0", folder / "base-1"]
    run_over(tmp_path / "two", checkpoints, *options)
    assert "29 texts in the test split, 2 batches to read, 2 classifiers, 2 tests." in caplog.messages
    # A logger that is watched twice has every line twice.
    told = dict.fromkeys(line for line in caplog.messages if line.startswith("Fidelity: "))
    # After each classifier of each batch; of what is left out nothing is waited for.
    assert [line.split()[1] for line in told] == ["25%", "50%", "75%"]
    assert all(re.fullmatch(r".* in \d:\d\d:\d\d, about \d:\d\d:\d\d to go\.", line) for line in told)
    caplog.clear()
    run_over(tmp_path / "one", checkpoints[:1], *options)
    assert "29 texts in the test split, 2 batches to read, 1 classifier, 2 tests." in caplog.messages


def test_two_processes_find_what_one_does(folder: Path, tmp_path: Path) -> None:
    options = [QUICK, f"--model.init_args.tests={SHORT}"]
    _, _, one = run_over(tmp_path / "one", [folder / "base-0"], *options)
    command = [
        sys.executable,
        "train.py",
        "test",
        *options,
        f"--model.init_args.checkpoints=[{folder / 'base-0'}]",
        f"--trainer.default_root_dir={tmp_path / 'two'}",
        "--trainer.enable_progress_bar=false",
        "--trainer.accelerator=cpu",
        "--trainer.devices=2",
        "--trainer.strategy=ddp",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "two").rglob("results.json")
    two = json.loads(path.read_text(encoding="utf-8"))
    assert two["scores"] == pytest.approx(one["scores"], nan_ok=True)
    pages = [next((tmp_path / name).rglob("examples.html")).read_text(encoding="utf-8") for name in ("one", "two")]
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["test", QUICK], r"There is no checkpoint: name one or more with --model\.init_args\.check"),
        (
            ["test", QUICK, "--model.init_args.checkpoints=[nowhere.ckpt]"],
            r"nowhere\.ckpt: there is no such checkpoint",
        ),
        (
            [
                "test",
                QUICK,
                "--data=ClassificationDataModule",
                "--model.init_args.checkpoints=[nowhere.ckpt]",
                "--ckpt_path={folder}/trained.ckpt",
            ],
            r"Fidelity trains nothing, and takes no --ckpt_path: leave it out",
        ),
        (
            ["fit", QUICK, "--model.init_args.checkpoints=[nowhere.ckpt]"],
            r"Fidelity trains nothing\. Run it with `python train\.py test`",
        ),
    ],
)
def test_bad_input_is_told_in_a_line_and_leaves_no_run(options: list[str], message: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    torch.save({"state_dict": {}}, tmp_path / "trained.ckpt")
    options = [option.replace("{folder}", str(tmp_path)) for option in options]
    done = subprocess.run(
        [sys.executable, "train.py", *options, f"--trainer.default_root_dir={runs}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: ")
    assert re.search(message, last)
    assert "Traceback" not in done.stderr
    assert not list(runs.rglob("*.*"))


def test_a_test_that_is_named_twice_is_refused() -> None:
    with pytest.raises(FidelityError, match=r"name one or more, each once, and not \['perturbation', 'perturbation'\]"):
        Fidelity(["a.ckpt"], [Perturbation(), Perturbation()])
    with pytest.raises(FidelityError, match="name one or more"):
        Fidelity(["a.ckpt"], [])
    with pytest.raises(FidelityError, match="examples -1, ig_steps 50 and eval_tokens None: give examples 0 or more"):
        Fidelity(["a.ckpt"], [Perturbation()], examples=-1)
    assert Fidelity(["a.ckpt"], [Permutation()]).tests[0].name == "permutation"


def test_gradients_are_there_though_the_trainer_infers_and_parameters_have_none(folder: Path, tmp_path: Path) -> None:
    tests = "[{class_path: Correlation, init_args: {saliencies: [input_x_gradient]}}]"
    cli, _, found = run_over(tmp_path, [folder / "base-0"], QUICK, f"--model.init_args.tests={tests}")
    assert cli.trainer.strategy.root_device == torch.device("cpu")
    assert -1 <= found["scores"]["correlation.input_x_gradient.kendall"] <= 1
    assert all(parameter.grad is None for parameter in cli.model.parameters())
