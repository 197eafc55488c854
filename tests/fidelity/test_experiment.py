"""All tests together, as users run them over checkpoints."""

import inspect
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from torch import Tensor

from attention_probing import commands, fidelity, measures
from attention_probing.commands import CONFIGS, launch
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity import Fidelity, FidelityTest, Score, proportions
from attention_probing.fidelity.classified import ClassifiedBatch
from attention_probing.fidelity.comparison import SECONDS
from attention_probing.fidelity.contract import CheckpointResult
from attention_probing.fidelity.explanations import write_explanations
from attention_probing.fidelity.saliency import MEASURES, RANKINGS, Saliency
from attention_probing.results import Result
from attention_probing.results.digests import file_digest
from attention_probing.results.errors import UserError
from tests.fidelity.tiny import prepared
from tests.fidelity.trained import fitted
from tests.glossary import unexplained
from tests.rooms import exports

SCORES = [
    "perturbation.uniform_drop",
    "perturbation.permuted_drop",
    "permutation.median_tvd",
    "adversary.max_jsd",
    "consistent_adversary.area",
    "single_weight.flips_top",
    "single_weight.flips_random",
    "single_token.spread",
    "rationale.random.comprehensiveness",
    "rationale.leave_one_out.sufficiency",
    *(f"rationale.attention.{score}" for score in ("auprc", "average_precision")),
    *(f"erasure.{ranking}.{score}" for ranking in RANKINGS for score in ("median_fraction", "never_flips")),
    *(f"correlation.{measure}.{score}" for measure in MEASURES for score in ("kendall", "pearson")),
]
"""Names that others read."""
FEWER = (
    "--model.tests=[{class_path: Perturbation}, {class_path: Permutation}, {class_path: SetErasure}, "
    "{class_path: Adversary, init_args: {steps: 20}}, {class_path: SingleWeight}, "
    "{class_path: SingleToken}, {class_path: Correlation}, {class_path: Rationale}, {class_path: SoftErasure}, "
    "{class_path: Effects, init_args: {texts: 20, draws: 2}}, "
    "{class_path: ConsistentAdversary, init_args: {strengths: [0, 0.1], max_epochs: 1}}, "
    "{class_path: GuidedMLP, init_args: {max_epochs: 1}}]"
)


def test_without_data_the_texts_are_those_of_the_first_checkpoint(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBING_CACHE", str(runs.parent / "stores"))
    tests: list[FidelityTest] = [fidelity.SingleWeight()]
    implied = measures.measure(measurements=Fidelity(str(runs / "base-0"), tests))
    texts = ClassificationDataModule(str(runs.parent / "texts/{split}.tsv"), positive="good")
    given = measures.measure(texts, measurements=Fidelity(str(runs / "base-0"), tests))
    assert implied.numbers == pytest.approx(given.numbers, rel=0, abs=0, nan_ok=True)
    assert 0 <= implied.numbers["single_weight.flips_top"] <= 1


def test_a_test_gives_the_total_of_its_work_or_says_that_it_has_none(
    runs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("attention_probing.results.progress.FIRST", 0)
    monkeypatch.setattr("attention_probing.results.progress.EVERY", 0)
    monkeypatch.setenv("PROBING_CACHE", str(runs.parent / "stores"))
    adversary = fidelity.Adversary("published", steps=3)
    tests: list[FidelityTest] = [adversary, fidelity.Permutation()]
    with caplog.at_level("INFO", "attention_probing.progress"):
        result = measures.measure(measurements=Fidelity(str(runs / "base-0"), tests, texts=10))
    assert result.tables["fidelity"].note == "n = 10 of the 29 texts of test."
    (first, *_) = re.findall(r"adversary, changed copies of 10 texts: (.*)", caplog.text)
    assert re.fullmatch(r"50 of 200 \(25%\) in .* a second, about 0:\d\d:\d\d to go\.", first)
    assert re.search(r"permutation, changed copies .* time left unknown: this test does not count", caplog.text)


def run_over(
    checkpoints: list[Path], config: str, *options: str, folder: Path
) -> tuple[Result | None, Path, dict[str, Any]]:
    """A run over the checkpoints, its folder and its `results.json`."""
    # One needs no brackets.
    given = f"[{','.join(map(str, checkpoints))}]" if len(checkpoints) > 1 else str(checkpoints[0])
    command = ["measure", config, f"--model.checkpoints={given}", f"--trainer.default_root_dir={folder}"]
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.devices=1"]
    with pytest.MonkeyPatch.context() as patch:  # a checkpoint does not say where the cache is
        patch.setenv("PROBING_CACHE", str(checkpoints[0].parents[1] / "stores"))
        cli = launch.main([*command, *quiet, *options])
    (path,) = folder.rglob("results.json")
    return cli, path.parent, json.loads(path.read_text(encoding="utf-8"))


ALL, QUICK = (f"--config={CONFIGS / 'fidelity' / name}.yaml" for name in ("all", "quick"))
TESTS = "--model.tests=[Perturbation, Permutation]"
SHORT = (QUICK, TESTS)


def test_every_test_over_several_checkpoints_leaves_whole_results(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, gradients = Fidelity.result, list[object]()

    def watched(self: Fidelity) -> Result:
        gradients.extend(parameter.grad for parameter in self.parameters())
        return result(self)

    monkeypatch.setattr(Fidelity, "result", watched)
    names = [runs / "base-1", runs / "tying", runs / "base-0"]
    _, run, found = run_over(names, ALL, FEWER, folder=tmp_path)
    scores = found["scores"]
    for name in SCORES:
        for variant in ("", "tying."):
            assert f"{variant}{name}.low" in scores, name
            # No deciding words are named, no decision flips, and none needs its words: such means are of nothing.
        if not name.endswith(("auprc", "average_precision", "median_fraction", "equal_comprehensiveness")):
            assert np.isfinite(scores[f"{variant}{name}"]), name
    items = pd.read_parquet(run / found["items"])
    assert len(items) == 3 * 29
    first = items[items["checkpoint"] == "base, seed 0"]
    assert first["id"].tolist() == [str(line) for line in range(2, 31)]
    means = items.groupby("checkpoint")["permutation.median_tvd"].mean()
    assert list(means.index) == ["base, seed 0", "base, seed 1", "tying, seed 0"]
    assert scores["permutation.median_tvd"] == pytest.approx(means[["base, seed 0", "base, seed 1"]].mean(), abs=1e-6)
    assert scores["tying.permutation.median_tvd"] == pytest.approx(means["tying, seed 0"], abs=1e-6)
    table = pd.read_csv(run / found["tables"]["fidelity"])
    for variant, prefix in (("base", ""), ("tying", "tying.")):
        # The decisions of tying need no words: soft erasure has no number, which is null in JSON.
        expected = np.array([scores[f"{prefix}{name}"] for name in table["score"]], np.float64)
        assert table[variant].tolist() == pytest.approx(expected, nan_ok=True)
    assert "rationale.attention.token_f1" not in pd.read_csv(run / found["tables"]["comparison"])["score"].tolist()
    for kind in ("tables", "latex", "figures"):
        for name in found[kind].values():
            assert (run / name).stat().st_size > 0
    page = (run / found["figures"]["examples"]).read_text(encoding="utf-8")
    assert "adversary" in page
    assert found["audit"]["checkpoints"]["tying, seed 0"]["skipped_texts"] == 0
    # The data are those of the first checkpoint, though no option names them.
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    assert config["data"]["init_args"]["corpus"] == str(runs.parent / "texts" / "{split}.tsv")
    assert found["data"]["test"]["file"] == "test.tsv"
    assert gradients
    assert set(gradients) == {None}


def test_explanations_of_a_file_are_a_ranking_like_others(runs: Path, tmp_path: Path) -> None:
    path, texts = tmp_path / "lengths.jsonl", pd.read_csv(runs.parent / "texts" / "test.tsv", sep="\t")["text"]
    words = {line: text.split() for line, text in enumerate(texts, 2)}
    lengths = ({"id": line, "words": own, "scores": list(map(len, own))} for line, own in words.items())
    write_explanations(path, lengths)
    ranking = f"[attention, 'file:{path}']"
    tests = (
        f"--model.tests=[{{class_path: Rationale, init_args: {{rankings: {ranking}, "
        "every_length: {exact: 6, beam: 2}}}, "
        f"{{class_path: SetErasure, init_args: {{rankings: {ranking}}}}}]"
    )
    _, run, found = run_over([runs / "base-0"], QUICK, tests, folder=tmp_path / "out")
    for name in (
        "rationale.lengths.naopc",
        "rationale.attention.naopc_ascending",
        "erasure.lengths.never_flips",
    ):
        assert 0 <= found["scores"][name] <= 1
    assert found["audit"]["explanations"] == {"lengths": {"file": str(path), "sha256": file_digest(path)}}
    items = pd.read_parquet(run / found["items"])
    assert found["scores"]["rationale.exact"] == pytest.approx((items["words"] <= 6).mean())


@pytest.mark.parametrize(
    ("paper", "tests"),
    [("jain2019", 3), ("serrano2019", 2), ("tutek2020", 2), pytest.param("wiegreffe2019", 2, marks=pytest.mark.slow)],
)
def test_the_configs_of_the_papers_run_as_they_are(paper: str, tests: int, runs: Path, tmp_path: Path) -> None:
    path = CONFIGS / paper / "fidelity.yaml"
    _, _, found = run_over([runs / "base-0"], f"--config={path}", folder=tmp_path)
    named = [
        test["class_path"] for test in yaml.safe_load(path.read_text(encoding="utf-8"))["model"]["init_args"]["tests"]
    ]
    assert len(set(named)) == tests
    for name in named:
        assert any(score.startswith(f"{getattr(fidelity, name).name}.") for score in found["scores"])


def test_all_is_every_test_there_is_and_quick_all_that_train_nothing() -> None:
    named = {}
    for name in ("fidelity/all", "fidelity/quick"):
        config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
        named[name] = {test["class_path"] for test in config["model"]["init_args"]["tests"]}
    every = {
        one.__name__ for one in exports(fidelity).values() if isinstance(one, type) and issubclass(one, FidelityTest)
    }
    # They take hours, or other data: configs/madsen2022/roar.yaml and configs/bastings2022/shortcuts.yaml.
    assert named["fidelity/all"] == every - {"FidelityTest", "Roar", "Shortcut"}
    begin = {name: inspect.getsource(getattr(fidelity, name).begin) for name in named["fidelity/all"]}
    trains = {name for name, text in begin.items() if "run_trainings(" in text or 'splits["train"]' in text}
    # Kept runs of sweeps are found by the bytes of `fidelity/quick`, which is older than soft erasure.
    assert named["fidelity/all"] - named["fidelity/quick"] == trains | {"SoftErasure"}
    for name in named["fidelity/all"]:
        test = getattr(fidelity, name)()
        if isinstance(test, fidelity.Perturbation | fidelity.ConsistentAdversary | fidelity.GuidedMLP):
            prepared(test, 2, 1)
        scores = test.scores()
        units = {f"{getattr(fidelity, name).name}.{score}": one.unit for score, one in scores.items()}
        assert not unexplained("fidelity", units), "docs/glossary.md does not explain these"


def write(folder: Path, rows: list[str]) -> None:
    """Texts of few rows, the same in all splits."""
    (folder / "texts").mkdir()
    for split in ("train", "dev", "test"):
        (folder / "texts" / f"{split}.tsv").write_text("\n".join(["label\ttext", *rows, ""]), encoding="utf-8")


def test_texts_of_one_sentence_are_classified_hierarchically_but_counted_as_skipped(tmp_path: Path) -> None:
    write(
        tmp_path, ["bad\tdull film . a cast", "good\tgreat", "good\tfine cast . story . it is", "bad\tawful plot"] * 6
    )
    parts = [f"--model.{part}" for part in ("", "sentence_")]
    han = [f"{part}encoder=AverageEncoder" for part in parts] + [f"{part}attention=AdditiveAttention" for part in parts]
    path = fitted(tmp_path, "han", "--model=HierarchicalClassifier", *han, epochs=1)
    with pytest.warns(UserWarning, match="hierarchical, seed 0 predicts '.*, so there is hardly a decision to explain"):
        _, run, found = run_over([path], *SHORT, folder=tmp_path / "runs")
    known = found["audit"]["checkpoints"]["hierarchical, seed 0"]
    assert known["skipped_texts"] == 12
    assert known["one_label"].endswith("% of the texts, which is the label of 50%")
    assert found["answer"] == (
        "The classifier is right on 50.0 % [25.0, 75.0] of 24 texts, not significantly better than always giving "
        "the most frequent label (50.0 %), and predicts one class: nothing can be concluded "
        "about attention in it, and no ranking is named."
    )
    items = pd.read_parquet(run / "items.parquet")
    assert items["permutation.median_tvd"].isna().tolist() == [False, True] * 12
    assert items["predicted"].notna().all()


SMALL = "--model.eval_tokens=40"
PARTS = ((SMALL, "--trainer.limit_test_batches=2"), (SMALL, "--model.texts=8"))


@pytest.mark.parametrize("some", PARTS, ids=["batches", "texts"])
def test_a_part_of_the_texts_can_be_read_and_classes_are_those_of_the_classifiers_own_test(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], some: tuple[str, ...]
) -> None:
    _, part, told = run_over([runs / "base-0"], *SHORT, *some, folder=tmp_path / "part")
    _, whole, all_told = run_over([runs / "base-0"], *SHORT, folder=tmp_path / "whole")
    assert "fidelity: scores" not in capsys.readouterr().out  # they are in the table
    (own,) = (runs / "base-0").rglob("results.json")
    expected = json.loads(own.read_text(encoding="utf-8"))["scores"]
    assert [all_told["scores"][name] for name in ("f1", "accuracy")] == pytest.approx(
        [expected[name] for name in ("f1", "accuracy")]
    )
    found, every = (pd.read_parquet(path / "items.parquet").set_index("id") for path in (part, whole))
    assert 0 < len(found) < len(every) == 29
    assert told["audit"]["texts"] == f"{len(found)} of 29"
    if "texts" in some[1]:  # a random draw, where batches have the shortest texts
        assert len(found) == 8
        assert sorted(found["words"]) != sorted(every["words"])[:8]
    assert "texts" not in all_told["audit"]
    column = "permutation.median_tvd"
    np.testing.assert_allclose(found[column], every.loc[found.index, column], atol=1e-5)
    predicted = pd.read_parquet(own.parent / "items.parquet")["predicted"]
    assert every["predicted"].tolist() == predicted.map({"bad": 0, "good": 1}).tolist()


def test_a_classifier_is_told_from_chance_by_texts_that_are_not_tested(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[CheckpointResult] = []

    def keep(results: Sequence[CheckpointResult], *_: object) -> str:
        kept.extend(results)
        return "1 answer."

    monkeypatch.setattr("attention_probing.fidelity.experiment.answer", keep)
    run_over([runs / "base-0"], *SHORT, "--model.texts=8", folder=tmp_path)
    (found,) = kept
    assert len(found.values) == 8
    (own,) = (runs / "base-0").rglob("items.parquet")
    items = pd.read_parquet(own)
    decisions = found.decisions.sort_index()
    assert len(decisions) == 29
    assert decisions["predicted"].tolist() == items["predicted"].map({"bad": 0, "good": 1}).tolist()


TRAINED = (
    "--model.tests=[Permutation, "
    "{class_path: ConsistentAdversary, init_args: {strengths: [0, 0.1], max_epochs: 2}}, "
    "{class_path: GuidedMLP, init_args: {max_epochs: 2, adversary_epochs: 1}}]"
)


@pytest.mark.slow
def test_two_processes_find_what_one_does(runs: Path, tmp_path: Path) -> None:
    _, _, one = run_over([runs / "base-0"], QUICK, TRAINED, "--model.texts=20", folder=tmp_path / "one")
    for kind in ("adversaries", "diagnostics"):  # where other runs would find what this one has trained
        shutil.rmtree(runs.parent / "stores" / kind)
    forked = ("--trainer.devices=2", "--trainer.strategy=ddp_fork")
    _, _, two = run_over([runs / "base-0"], QUICK, TRAINED, "--model.texts=20", *forked, folder=tmp_path / "two")
    assert two["scores"] == pytest.approx(one["scores"], nan_ok=True)
    trained = {name for name in one["scores"] if name.startswith(("consistent_adversary", "guided_mlp"))}
    assert {name: two["scores"][name] for name in trained} == {name: one["scores"][name] for name in trained}
    assert two["audit"] == one["audit"]
    pages = [next((tmp_path / name).rglob("examples.html")).read_text(encoding="utf-8") for name in ("one", "two")]
    assert pages[0] == pages[1]


class WrongColumn(FidelityTest):
    """Its score reads another column than it measures."""

    name = "wrong"

    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Mapping[str, Tensor]:
        return {"flip": classified.confidence}

    def scores(self) -> Mapping[str, Score]:
        return proportions(["flips"])


def test_a_score_of_a_column_that_is_not_measured_is_refused(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBING_CACHE", str(runs.parent / "stores"))
    fault = r"WrongColumn: scores\(\) reads the column 'flips', but measure\(\) returned 'flip'\."
    with pytest.raises(UserError, match=fault):
        measures.measure(measurements=Fidelity(str(runs / "base-0"), [WrongColumn()]))


NOWHERE = "--model.checkpoints=[nowhere.ckpt]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["measure"], r"No checkpoint is given\. Give one or more with --checkpoints\."),
        (["measure", NOWHERE], r"nowhere\.ckpt: there is no such checkpoint"),
    ],
)
def test_bad_input_is_told_in_a_line_and_leaves_no_run(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"state_dict": {}}, tmp_path / "trained.ckpt")
    subcommand, *rest = (option.replace("{folder}", str(tmp_path)) for option in options)
    assert commands.main([subcommand, QUICK, *rest, f"--trainer.default_root_dir={tmp_path / 'runs'}"]) == 1
    *_, told = capsys.readouterr().err.strip().splitlines()
    assert re.search(f"^Error: {message}", told)
    assert not list((tmp_path / "runs").rglob("*.*"))


def test_the_config_judges_every_ranking_on_one_page(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = [runs / "base-1", runs / "tying", runs / "base-0"]
    config = f"--config={CONFIGS / 'judge.yaml'}"
    _, run, found = run_over(checkpoints, config, folder=tmp_path)
    table = pd.read_csv(run / found["tables"]["judge"])
    assert len(table) == 2 * 7
    scores = found["scores"]
    for row in table.to_dict("records"):
        prefix = "" if row["variant"] == "base" else f"{row['variant']}."
        for column, name in (("rationale.naopc ↑", "naopc"), ("rationale.sufficiency ↓", "sufficiency")):
            assert row[column] == pytest.approx(scores[f"{prefix}rationale.{row['ranking']}.{name}"])
        assert row[SECONDS] >= 0
    assert not [name for name in map(str, table) if "auprc" in name]  # no words are marked
    main = pd.read_csv(run / found["tables"]["fidelity"])
    assert main["test"].str.startswith("NAOPC ↑, ").sum() == 7
    assert r"NAOPC $\uparrow$, attention $\times$ gradient" in (run / found["latex"]["fidelity"]).read_text("utf-8")
    with (run / "page.html").open(encoding="utf-8") as file:
        page = file.read()
    assert page.index(found["answer"]) < page.index('data-name="fidelity"') < page.index('data-name="judge"')
    printed = capsys.readouterr().out
    assert " ".join(printed.split()).startswith(found["answer"])
