"""All tests together, as users run them over checkpoints, and the tables that compare variants and judge rankings."""

import inspect
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from scipy.stats import norm

from attention_probing import commands, fidelity, measures
from attention_probing.commands import CONFIGS, launch
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity import Fidelity, FidelityTest
from attention_probing.fidelity.answer import answer
from attention_probing.fidelity.comparison import (
    PRINTED,
    SECONDS,
    comparison_table,
    fidelity_table,
    judge_tables,
    result_scores,
)
from attention_probing.fidelity.contract import CheckpointResult
from attention_probing.fidelity.examples import Example, example_page, examples_of
from attention_probing.fidelity.explanations import write_explanations
from attention_probing.fidelity.saliency import MEASURES, RANKINGS, Saliency, decision_gradient
from attention_probing.metrics.bootstrap import difference, pool_seeds, resample, resamples, with_interval_and_p
from attention_probing.metrics.statistics import mean, median, proportion
from attention_probing.results import Estimate, Result
from attention_probing.results.digests import file_digest
from attention_probing.results.tables import format_number
from tests.fidelity.tiny import KINDS, Described, Kind, classified, prepared
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
    "{class_path: SingleToken}, {class_path: Correlation}, {class_path: Rationale}, "
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
        measures.measure(measurements=Fidelity(str(runs / "base-0"), tests, texts=10))
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
    assert table["base"].tolist() == pytest.approx([scores[name] for name in table["score"]])
    assert table["tying"].tolist() == pytest.approx([scores[f"tying.{name}"] for name in table["score"]])
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
    assert named["fidelity/all"] - named["fidelity/quick"] == trains
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
        "The classifier is right on 50.0 % [25.0, 75.0], not significantly above always the most frequent label "
        "(50.0 %), and predicts one class: no ranking is named. On 12 texts, uniform attention changes F1 by 0.0 "
        "points."
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


# Tables of all scores, against numpy over seeds that are written out; and the page of example texts

TEXTS = 40
CLASSES_OF_TEXTS = np.arange(TEXTS) % 2


def result(variant: str, seed: int, gain: float, *, skipped: int = 3, extra: bool = False) -> CheckpointResult:
    """Values that differ by a gain; the first texts are too short."""
    common = np.random.default_rng(0).normal(size=TEXTS)
    spread = gain + common + 0.3 * np.random.default_rng([seed, len(variant)]).normal(size=TEXTS)
    spread[:skipped] = np.nan
    frame = pd.DataFrame({"words": 5.0, "correct": 1.0, "single_token.spread": spread, "erasure.x": np.nan})
    frame = frame.assign(gold=CLASSES_OF_TEXTS, predicted=CLASSES_OF_TEXTS)
    values = spread[:, None]
    scores = {
        "single_token.spread": resample(mean, values, "ratio"),
        "erasure.middle": resample(median, values, "fraction"),
    }
    if extra:
        scores["adversary.max_jsd"] = resample(mean, np.abs(values), "nats")
    return CheckpointResult(f"{variant}, seed {seed}", variant, seed, frame, scores)


SEVERAL = [
    result("base", 0, 0.0, extra=True),
    result("tying", 0, 0.9),
    result("base", 1, 0.1, extra=True),
    result("mlm", 0, 0.05, extra=True),
    result("tying", 1, 1.1),
    result("tying", 2, 1.0),
]


def slow_ends(draws: np.ndarray, tail: float = 0.025) -> list[float]:
    """Ends of the interval that leaves a tail of the draws, and the empty subset, beyond each end."""
    beyond = int(tail * (1 + len(draws)) + 1e-9) - 1
    ascending = sorted(draws.tolist())
    return [ascending[beyond], ascending[-1 - beyond]]


def level_tail(texts: int) -> float:
    """Tail of a number that is not compared, whose interval is wider for few texts."""
    return float(norm.sf(1.959964 * (1 + 1.5 / texts)))


def over_texts_and_seeds(seeds: list[CheckpointResult]) -> Estimate:
    """Mean spread over texts and seeds, from the values of the texts."""
    columns = [one.values["single_token.spread"].to_numpy()[:, None] for one in seeds]
    return pool_seeds([resample(mean, column, "ratio") for column in columns])


def slow_means(seeds: list[CheckpointResult]) -> np.ndarray:
    """Mean spread of each resample over all seeds of a variant: the texts are drawn once for all."""
    rows = []
    for row in np.concatenate(list(resamples(TEXTS))).astype(int):
        picks = [text for text in range(3, TEXTS) for _ in range(row[text])]
        rows.append(np.mean([one.values["single_token.spread"].to_numpy()[picks].mean() for one in seeds]))
    return np.array(rows)


def test_variants_are_compared_with_the_first_over_their_seeds() -> None:
    table = comparison_table(SEVERAL).frame
    assert table["score"].tolist() == [
        *["single_token.spread"] * 3, *["erasure.middle"] * 3, *["adversary.max_jsd"] * 2,
    ]  # fmt: skip
    assert table["variant"].tolist() == ["base", "tying", "mlm", "base", "tying", "mlm", "base", "mlm"]
    assert table["seeds"].tolist() == [2, 3, 1, 2, 3, 1, 2, 1]
    groups = {name: [one for one in SEVERAL if one.variant == name] for name in ("base", "tying", "mlm")}
    means = {name: slow_means(ours) for name, ours in groups.items()}
    rows = {row["variant"]: row for row in table[table["score"] == "single_token.spread"].to_dict("records")}
    for name, ours in groups.items():
        values = [float(one.values["single_token.spread"].mean()) for one in ours]
        assert rows[name]["mean"] == pytest.approx(np.mean(values))
        ends = [rows[name]["low"], rows[name]["high"]]
        of_texts = slow_ends(means[name], level_tail(TEXTS - 3))
        assert ends == pytest.approx(list(over_texts_and_seeds(ours).interval), nan_ok=True)
        if len(values) > 1:
            assert rows[name]["sd"] == pytest.approx(np.std(values, ddof=1))
            two = len(values) == 2  # which leave the mean without an interval, as they differ
            assert np.isnan(ends).all() == two
            assert two or ends[0] <= of_texts[0] < of_texts[1] <= ends[1]  # seeds add to the variation of texts
        else:
            assert np.isnan(rows[name]["sd"])
            assert ends == pytest.approx(of_texts)
    for name in ("tying", "mlm"):
        apart = means[name] - means["base"]
        assert rows[name]["difference"] == pytest.approx(rows[name]["mean"] - rows["base"]["mean"])
        found = [rows[name]["difference.low"], rows[name]["difference.high"]]
        of_texts = slow_ends(apart)
        expected = difference(over_texts_and_seeds(groups[name]), over_texts_and_seeds(groups["base"]))
        assert [*found, rows[name]["p"]] == pytest.approx([*expected.interval, expected.p])
        assert found[0] <= of_texts[0] < of_texts[1] <= found[1]
        assert rows[name]["p"] >= slow_p(apart) - 1e-9
    # Of the two p-values of a score the smaller is doubled.
    assert rows["tying"]["p"] < rows["mlm"]["p"] < 1
    assert rows["tying"]["p_holm"] == pytest.approx(2 * rows["tying"]["p"])
    assert rows["mlm"]["p_holm"] == pytest.approx(max(rows["mlm"]["p"], 2 * rows["tying"]["p"]))
    alone = ["difference", "difference.low", "difference.high", "p", "p_holm"]
    assert np.isnan([rows["base"][column] for column in alone]).all()
    # One against one other: nothing to adjust for.
    (last,) = table[table["score"] == "adversary.max_jsd"].to_dict("records")[1:]
    assert last["p"] == last["p_holm"] < 1


def test_scores_and_main_table_have_the_means_of_the_comparison() -> None:
    alone = SEVERAL[0]
    assert result_scores([alone]) == alone.scores
    rows = comparison_table(SEVERAL).frame
    names = rows["score"].drop_duplicates().tolist()
    tests = [Described(name.partition(".")[0], (), {}) for name in names]
    scores, main = result_scores(SEVERAL), fidelity_table(SEVERAL, tests, names).frame
    assert main["score"].tolist() == names
    assert len(scores) == len(rows)
    for row in rows.to_dict("records"):
        found = scores[f"{row['variant']}.{row['score']}".removeprefix("base.")]
        (line,) = main[main["score"] == row["score"]].to_dict("records")
        for end, column, value in (
            ("", "mean", found.value),
            (".low", "low", found.low),
            (".high", "high", found.high),
        ):
            assert [line[f"{row['variant']}{end}"], row[column]] == pytest.approx(
                [value, value], rel=0, abs=0, nan_ok=True
            )


@pytest.mark.parametrize("kind", KINDS)
def test_a_chosen_text_has_a_number_for_each_token_that_of_its_position(kind: Kind) -> None:
    found = classified(kind, time=12)
    positions = torch.arange(found.mask.numel(), dtype=torch.float64).view(found.mask.shape)
    examples = examples_of(found, {"places": positions}, [2, 4])
    assert [example.text for example in examples] == [2, 4]
    for row, example in zip((2, 4), examples, strict=True):
        units = found.token_to_position[row, : int(found.batch.lengths[row])].tolist()
        expected = [float(positions[row, unit]) if unit >= 0 else 0.0 for unit in units]
        assert list(example.rows["places"]) == expected
        assert example.predicted == int(found.predicted[row])
        assert example.confidence == pytest.approx(float(found.confidence[row]))


def test_a_heading_names_the_text_its_class_and_what_each_variant_predicts() -> None:
    split = SimpleNamespace(
        ids=("3", "17"), labels=[0, 1], forms=lambda text: [None, "Xyz"], readable=lambda text: ["a", "<unk>"]
    )
    data: Any = SimpleNamespace(splits={"test": split}, labels=("bad", "good"), tokenizer=None)
    found = [
        Example(1, "tying", 1, 0.9, {"attention": [0.2, 0.8]}),
        Example(1, "base", 0, 0.75124, {"attention": [0.5, 0.5]}),
    ]
    (text,) = example_page(found, data, ["base", "tying"]).texts
    assert text.name == "Text 17 of test"
    assert text.caption == "gold good, base predicts bad (P = 0.751), tying predicts good (P = 0.900)"
    assert text.words == ("a", "Xyz")
    assert text.rows == {"base: attention": [0.5, 0.5], "tying: attention": [0.2, 0.8]}


JUDGED_RANKINGS = ("random", "attention", "file.v2")
GAINS = {"random": 0.0, "attention": 0.4, "file.v2": -0.3}
JUDGED = [
    Described("soft", JUDGED_RANKINGS, {}),
    Described("rationale", JUDGED_RANKINGS, {"sufficiency": "↓", "naopc": "↑", "auprc": "↑"}),
]


def of_rankings(variant: str, seed: int) -> CheckpointResult:
    """Values of three rankings that differ by a gain; `auprc` is undefined, and `soft.only` is of attention alone."""
    frame = pd.DataFrame(index=range(TEXTS))
    for ranking, gain in GAINS.items():
        for measure in ("sufficiency", "naopc"):
            random = np.random.default_rng([seed, len(ranking), len(measure), len(variant)])
            frame[f"rationale.{ranking}.{measure}"] = gain + random.normal(size=TEXTS) / 3
    frame["rationale.attention.aopc"] = 0.5  # without a direction
    frame["soft.attention.only"] = np.arange(TEXTS, dtype=float)
    frame["soft.other.only"] = 0.0  # of no ranking
    scores = {name: resample(mean, frame[[name]], "fraction") for name in map(str, frame)}
    nowhere = Estimate(np.nan, np.nan, np.nan, unit="fraction", draws=np.full(1000, np.nan))
    scores |= {f"rationale.{ranking}.auprc": nowhere for ranking in JUDGED_RANKINGS}
    frame = frame.assign(gold=CLASSES_OF_TEXTS, predicted=CLASSES_OF_TEXTS)
    return CheckpointResult(f"{variant}, seed {seed}", variant, seed, frame, scores)


RESULTS = [of_rankings("base", 0), of_rankings("base", 1), of_rankings("tying", 0)]
MAIN = ("rationale.attention.sufficiency", "rationale.attention.naopc", "rationale.attention.auprc")


def slow(variant: str, ranking: str, measure: str) -> tuple[float, np.ndarray]:
    """Mean over texts and seeds, and that of each resample."""
    values = np.mean(
        [one.values[f"rationale.{ranking}.{measure}"] for one in RESULTS if one.variant == variant], axis=0
    )
    weights = np.concatenate(list(resamples(TEXTS)))
    return values.mean(), weights @ values / weights.sum(1)


def over_seeds_of(variant: str, ranking: str, measure: str) -> Estimate:
    """Mean over texts and seeds, from the values of the texts."""
    column = f"rationale.{ranking}.{measure}"
    return pool_seeds([resample(mean, one.values[[column]], "fraction") for one in RESULTS if one.variant == variant])


def slow_p(apart: np.ndarray) -> float:
    return min(1.0, 2 * (1 + int(min((apart <= 0).sum(), (apart >= 0).sum()))) / (1 + len(apart)))


def test_every_ranking_of_every_variant_has_a_row_and_every_measure_a_column_with_its_direction() -> None:
    table = judge_tables(RESULTS, JUDGED, {("base", "attention"): 0.25})["judge"]
    columns = ["soft.only", "rationale.sufficiency ↓", "rationale.naopc ↑"]
    assert [name for name in map(str, table.frame) if not name.endswith((".low", ".high"))] == [
        "variant", "ranking", *columns, SECONDS,
    ]  # fmt: skip
    rows = table.frame.set_index(["variant", "ranking"])
    assert list(rows.index) == [(variant, ranking) for variant in ("base", "tying") for ranking in JUDGED_RANKINGS]
    for row in table.frame.to_dict("records"):
        variant, ranking = row["variant"], row["ranking"]
        for measure, column in (("sufficiency", columns[1]), ("naopc", columns[2])):
            value, draws = slow(variant, ranking, measure)
            assert row[column] == pytest.approx(value)
            ends = [row[f"{column}.low"], row[f"{column}.high"]]
            assert ends == pytest.approx(list(over_seeds_of(variant, ranking, measure).interval), nan_ok=True)
            if variant == "tying":  # one seed
                assert ends == pytest.approx(slow_ends(draws, level_tail(TEXTS)))
        assert (row["soft.only"] == 19.5) == (ranking == "attention")
    assert rows[SECONDS].dropna().to_dict() == {("base", "attention"): 0.25}


def test_differences_to_random_are_corrected_over_the_rankings_of_the_variant() -> None:
    table = judge_tables(RESULTS, JUDGED, {})["judge_random"].frame
    assert len(table) == 2 * 2 * 2
    for key, rows in table.groupby(["variant", "measure"]):
        variant, measure = map(str, key)
        own = measure.split(".")[1].split(" ")[0]
        value, draws = slow(variant, "random", own)
        ps = []
        for row in rows.to_dict("records"):
            theirs, of_theirs = slow(variant, row["ranking"], own)
            assert row["difference"] == pytest.approx(theirs - value)
            apart = difference(
                over_seeds_of(variant, row["ranking"], own), over_seeds_of(variant, "random", own), same_runs=True
            )
            ends = [row["difference.low"], row["difference.high"]]
            assert ends == pytest.approx(list(apart.interval))
            assert apart.p is not None
            ps.append(apart.p)
            if variant == "tying":  # one seed
                assert ends == pytest.approx(slow_ends(of_theirs - draws))
                assert ps[-1] == pytest.approx(slow_p(of_theirs - draws))
        assert rows["p"].tolist() == pytest.approx(ps)
        low, high = sorted(ps)
        corrected = {low: min(1, 2 * low), high: min(1, max(2 * low, high))}
        assert rows["p_holm"].tolist() == pytest.approx([corrected[p] for p in ps])


def test_without_rankings_there_is_no_table() -> None:
    assert judge_tables(RESULTS, [Described("rationale", (), {"naopc": "↑"})], {}) == {}
    assert list(judge_tables(RESULTS, [Described("soft", JUDGED_RANKINGS, {})], {})) == ["judge"]  # random has no score


def test_columns_without_any_value_are_left_out() -> None:
    alone = [Described("rationale", ("attention",), {"naopc": "↑"})]  # not compared with random, and not timed
    table = judge_tables(RESULTS, alone, {})["judge"]
    assert list(table.frame) == ["variant", "ranking", *(f"rationale.naopc ↑{end}" for end in ("", ".low", ".high"))]


def test_a_ranking_without_a_measure_that_has_a_direction_has_no_row() -> None:
    results = [replace(one, scores={**one.scores, "soft.late.only": one.scores["soft.other.only"]}) for one in RESULTS]
    soft = Described("soft", (*JUDGED_RANKINGS, "late"), {})
    table = judge_tables(results, [soft, JUDGED[1]], {})["judge"].frame
    assert table["ranking"].unique().tolist() == list(JUDGED_RANKINGS)
    assert judge_tables(results, [soft], {})["judge"].frame["ranking"].unique().tolist() == ["attention", "late"]


def test_the_main_table_has_a_row_for_a_score_and_the_best_ranking_first(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"f1": "fraction", "erasure.middle": "ratio", "erasure.flips_top": "fraction"}
    own = {name: resample(mean, np.arange(4.0)[:, None] / 4, unit) for name, unit in plain.items()}  # type: ignore[arg-type]
    nowhere = {"erasure.none": Estimate(np.nan, np.nan, np.nan, unit="fraction")}
    results = [replace(one, scores={**own, **nowhere, **one.scores}) for one in RESULTS]
    tests = [Described("erasure", (), {"middle": "↓"}), *JUDGED]
    asked = [*own, *nowhere, *MAIN, *(f"rationale.{ranking}.naopc" for ranking in ("random", "file.v2"))]
    table = fidelity_table(results, tests, asked)
    ends = [f"{variant}{end}" for variant in ("base", "tying") for end in ("", ".low", ".high")]
    assert list(table.frame) == ["test", *ends, "score"]
    assert table.main == ("test", "base", "tying")
    # Of the rankings only the last measure; the best one by base is first.
    rows = {
        "F1": "f1",
        "erasure: middle ↓": "erasure.middle",
        "erasure: flips top": "erasure.flips_top",
        "NAOPC ↑, attention": "rationale.attention.naopc",
        "NAOPC ↑, random": "rationale.random.naopc",
        "NAOPC ↑, file.v2": "rationale.file.v2.naopc",
    }
    assert dict(zip(table.frame["test"], table.frame["score"], strict=True)) == rows
    values = {ranking: slow("base", ranking, "naopc")[0] for ranking in ("attention", "random", "file.v2")}
    assert sorted(values, key=values.__getitem__, reverse=True) == list(values)
    assert table.frame["base"].tolist()[3:] == pytest.approx(list(values.values()))
    monkeypatch.setattr("attention_probing.fidelity.comparison.PRINTED", 5)
    assert fidelity_table(results, tests, asked).frame["test"].tolist() == list(rows)[:5]
    down = [Described("rationale", JUDGED_RANKINGS, {"naopc": "↓"})]
    assert fidelity_table(RESULTS, down, ["rationale.random.naopc"]).frame["test"].tolist() == [
        f"NAOPC ↓, {ranking}" for ranking in reversed(values)
    ]


def test_the_answer_compares_the_best_ranking_with_attention_and_random() -> None:
    assert PRINTED >= 20  # seven rankings by two measures, and six other scores
    down = Described("rationale", JUDGED_RANKINGS, {"naopc": "↓"}, {"naopc": "is lowest"})
    said = answer(RESULTS, [down], MAIN)
    value, _ = slow("base", "file.v2", "naopc")
    start = "On 40 texts (means of up to 2 seeds), of 3 rankings for base, file.v2 is lowest: "
    start += f"{100 * value:.1f} %; "  # its interval would not hold for the best of several
    for baseline in ("attention", "random"):
        theirs, _ = slow("base", baseline, "naopc")
        apart = difference(
            over_seeds_of("base", "file.v2", "naopc"), over_seeds_of("base", baseline, "naopc"), same_runs=True
        )
        # For two differences at once.
        both = with_interval_and_p(apart, 2)
        assert apart.p is not None
        assert both.p == min(1, 2 * apart.p)
        low, high = (100 * end for end in both.interval)
        sign = "≤" if apart.p < 3 / 1001 else "="
        start += f"difference to {baseline} {100 * (value - theirs):+.1f} points [{low:.1f}, {high:.1f}], "
        start += f"p {sign} {format_number(both.p, 'p', missing='')}; "
    assert said == f"{start.removesuffix('; ')}."
    # Attention is best, and compared with random alone; without a claim the measure is named; one variant has no name.
    up = answer(RESULTS[:2], JUDGED, MAIN)
    assert up.startswith("On 40 texts (means of 2 seeds), of 3 rankings, attention has the best NAOPC: ")
    assert "difference to attention" not in up
    assert "difference to random" in up


def test_of_rankings_that_share_the_best_value_none_is_named() -> None:
    same = {"rationale.file.v2.naopc": RESULTS[0].scores["rationale.attention.naopc"]}
    equal = answer([replace(RESULTS[0], scores={**RESULTS[0].scores, **same})], JUDGED, MAIN)
    value = RESULTS[0].scores["rationale.attention.naopc"].value
    assert equal == f"On 40 texts, of 3 rankings, 2 share the best NAOPC (attention, file.v2): {100 * value:.1f} %."


def shifted(attention: float, file: float) -> CheckpointResult:
    """NAOPC of two rankings that differ from random by a mean; the texts vary alike."""
    random = np.random.default_rng(3).normal(size=TEXTS) / 3
    spread = np.random.default_rng(4).normal(size=TEXTS) / 3
    values = {"random": random, "attention": random + attention + spread - spread.mean(), "file.v2": random + file}
    found = {f"rationale.{name}.naopc": resample(mean, column[:, None], "fraction") for name, column in values.items()}
    return replace(RESULTS[0], scores=found)


def test_a_ranking_that_is_not_significantly_better_than_random_is_not_named() -> None:
    none = "On 40 texts, of 3 rankings, none is better than random by NAOPC (p < .05, all at once)."
    ps = {}
    for attention in np.arange(0.005, 0.3, 0.005).tolist():
        one = shifted(attention, -0.5)
        apart = difference(one.scores["rationale.attention.naopc"], one.scores["rationale.random.naopc"])
        assert apart.p is not None
        ps[apart.p] = said = answer([one], JUDGED, MAIN)
        if 2 * apart.p < 0.05:
            assert said.startswith("On 40 texts, of 3 rankings, attention has the best NAOPC: ")
        else:
            assert said == none
    # Between: alone it would be significant, as the best of two it is not.
    assert [p for p in ps if 0.025 < p < 0.05]
    assert min(ps) < 0.025
    assert answer([shifted(-0.2, -0.5)], JUDGED, MAIN) == none  # random is best


@pytest.mark.parametrize("kind", ["one class", "as often right", "somewhat better", "clearly better"])
def test_rankings_of_a_classifier_at_chance_are_not_praised(kind: str) -> None:
    gold = np.array([0] * 22 + [1] * 18)
    predicted = np.zeros(TEXTS, dtype=int)
    if kind == "as often right":
        predicted[[0, 1, 22, 23]] = [1, 1, 1, 1]
    if kind == "somewhat better":  # five texts more: p = .06
        predicted[22:27] = 1
    if kind == "clearly better":
        predicted[22:] = 1
    values = RESULTS[0].values.assign(gold=gold, predicted=predicted)
    claims = Described("soft", (), {}, {"attention.only": "{} alone"})
    said = answer([replace(RESULTS[0], values=values)], [claims, JUDGED[1]], MAIN)
    if kind == "clearly better":
        assert "attention has the best NAOPC" in said
        assert "most frequent label" not in said
        return
    right = 100 * (gold == predicted).mean()
    assert said.startswith(f"The classifier is right on {right:.1f} % [")
    one_class = ", and predicts one class" * (kind == "one class")
    assert (
        f"], not significantly above always the most frequent label (55.0 %){one_class}: no ranking is named. On"
        in said
    )
    assert "best" not in said
    assert said.endswith(" alone.")


def test_each_variant_at_chance_is_named_and_the_answer_stays_short() -> None:
    chance = {"predicted": 0}
    both = [replace(one, values=one.values.assign(**chance)) for one in RESULTS]
    said = answer(both, [JUDGED[1]], MAIN)
    right = resample(proportion, (CLASSES_OF_TEXTS == 0)[:, None], "fraction")
    low, high = (100 * end for end in pool_seeds([right, right]).interval)
    assert said == (
        f"Base is right on 50.0 % [{low:.1f}, {high:.1f}], not significantly above always the most frequent label "
        "(50.0 %), and predicts one class: no ranking is named. Nor is tying above it."
    )
    # Of a variant above chance rankings are named.
    said = answer([*RESULTS[:2], both[2]], [JUDGED[1]], MAIN)
    assert said.startswith("Tying is right on 50.0 % [")
    assert "attention has the best NAOPC" in said


def test_measures_to_read_together_with_a_main_measure_have_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = {"naopc": ("sufficiency", "absent")}
    judged = [Described("rationale", JUDGED_RANKINGS, {"sufficiency": "↓", "naopc": "↑"}, {}, beside)]
    table = fidelity_table(RESULTS, judged, MAIN).frame
    order = ("attention", "random", "file.v2")
    best = [f"NAOPC ↑, {ranking}" for ranking in order]
    assert table["test"].tolist() == [*best, "sufficiency ↓, attention", "sufficiency ↓, random"]
    value, _ = slow("base", "random", "sufficiency")
    assert table["base"].tolist()[-1] == pytest.approx(value)
    monkeypatch.setattr("attention_probing.fidelity.comparison.PRINTED", 4)  # they count among the rows
    assert fidelity_table(RESULTS, judged, MAIN).frame["test"].tolist() == [
        *best[:2], "sufficiency ↓, attention", "sufficiency ↓, random",
    ]  # fmt: skip
    assert fidelity.SetErasure.readings["median_fraction"].beside == ("never_flips", "last_flips")
    assert "sufficiency" in fidelity.Rationale.readings["comprehensiveness"].beside


@pytest.mark.parametrize(("lost", "said"), [(0.05, "-5.0 points"), (-0.05, "+5.0 points"), (0.0, "0.0 points")])
def test_the_answer_says_in_which_direction_uniform_attention_changes_f1(lost: float, said: str) -> None:
    """`uniform_drop` is F1 of the classifier minus F1 with uniform attention."""
    drop = Estimate(lost, lost - 0.02, lost + 0.03, unit="fraction", draws=np.full(1000, lost), units=TEXTS)
    judged = [fidelity.Perturbation()]
    found = answer([replace(RESULTS[0], scores={"perturbation.uniform_drop": drop})], judged, ())
    ends = f"[{-100 * (lost + 0.03):.1f}, {-100 * (lost - 0.02):.1f}]"
    assert found == f"On 40 texts, uniform attention changes F1 by {said} {ends}."


def test_a_measure_that_the_first_variant_lacks_is_answered_for_the_first_that_has_it() -> None:
    f1 = {"f1": RESULTS[0].scores["rationale.attention.naopc"]}
    other = {name: score for name, score in RESULTS[0].scores.items() if name.endswith(".sufficiency")}
    tying, bare = replace(RESULTS[2], scores={**RESULTS[2].scores, **f1}), replace(RESULTS[0], scores=f1 | other)
    alone, both = answer([tying], JUDGED, MAIN), answer([bare, tying], JUDGED, MAIN)
    assert both == alone.replace(" of 3 rankings,", " of 3 rankings for tying,")
    assert both != alone
    of_both, of_one = (fidelity_table(some, JUDGED, ["f1", *MAIN]).frame for some in ([bare, tying], [tying]))
    assert of_both["test"].tolist() == of_one["test"].tolist()
    assert of_both["base"].notna().tolist() == (of_both["test"] == "F1").tolist()


def test_the_answer_compares_a_claim_between_the_variants() -> None:
    claims = [
        Described("adversary", (), {}, {"absent": "never {}"}),
        Described("single_token", (), {}, {"spread": "single words spread by {}"}),
    ]
    rows = comparison_table(SEVERAL).frame.query("score == 'single_token.spread'").set_index("variant")
    base = rows.to_dict("index")["base"]
    tying = rows.to_dict("index")["tying"]
    groups = {name: [one for one in SEVERAL if one.variant == name] for name in ("base", "tying")}
    apart = difference(over_texts_and_seeds(groups["tying"]), over_texts_and_seeds(groups["base"]))
    at_once = with_interval_and_p(apart, 2)  # the largest of two differences
    ends = f"[{at_once.interval[0]:.4g}, {at_once.interval[1]:.4g}]"
    assert rows["p_holm"]["tying"] < 0.05 < rows["p_holm"]["mlm"]
    assert at_once.p is not None
    assert answer(SEVERAL, claims, ()) == (
        f"On 37 texts (means of up to 3 seeds), single words spread by {base['mean']:.4g} "
        f"(base); 1 of 2 variants differ from base (p < .05 after Holm); the largest difference "
        f"is that of tying, {tying['difference']:+.4g} {ends}, p = {format_number(at_once.p, 'p', missing='')}."
    )
    alone = SEVERAL[0].scores["single_token.spread"]
    said = f"{alone.value:.4g} [{alone.low:.4g}, {alone.high:.4g}]"
    assert answer(SEVERAL[:1], claims, ()) == f"On 37 texts, single words spread by {said}."
    # A difference of shares is in points, and a variant without the score is not compared.
    share = replace(alone, unit="fraction")
    drop = replace(SEVERAL[0], scores={"x.drop": share})
    lacking = replace(SEVERAL[1], scores={"x.drop": replace(share, value=np.nan, draws=share.draws * np.nan)})
    changes = [Described("x", (), {}, {"drop": "it changes F1 by {change}"})]
    low, high = (100 * end for end in share.interval)
    changed = f"it changes F1 by {-100 * share.value:+.1f} points [{-high:.1f}, {-low:.1f}]"
    assert answer([drop], changes, ()) == f"On 37 texts, {changed}."
    for both in ([drop, lacking], [lacking, drop]):
        assert answer(both, changes, ()) == f"On 37 texts, {changed} (base)."
    # The claims of tests behind the first that ranks are left to it, if it has an answer.
    claim = Described("soft", (), {}, {"attention.only": "{} alone"})
    assert answer(RESULTS, [claim, JUDGED[1]], MAIN).startswith("On 40 texts (means of up to 2 seeds), 1950.0 %")
    assert answer(RESULTS, [JUDGED[1], claim], MAIN).startswith(
        "On 40 texts (means of up to 2 seeds), of 3 rankings for "
    )
    assert answer(RESULTS, [JUDGED[0], claim], MAIN).startswith("On 40 texts (means of up to 2 seeds), 1950.0 %")
    assert answer(RESULTS, [JUDGED[0]], MAIN) == ""


def test_each_ranking_is_timed_once_and_shared_work_counts_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Mock(wraps=decision_gradient)
    monkeypatch.setattr("attention_probing.fidelity.saliency.decision_gradient", passes)
    saliency = Saliency(classified("flat"))
    for ranking in ("random", "attention", "leave_one_out", "attention_gradient"):
        saliency.rankings(ranking, 2)
    first = dict(saliency.seconds)
    assert list(first) == ["random", "attention", "leave_one_out", "attention_gradient"]
    assert min(first.values()) > 0
    saliency.magnitude("leave_one_out")
    saliency.rankings("random", 5)
    assert saliency.seconds == first
    saliency.signed_values("attention_times_gradient")
    assert saliency.seconds["attention_times_gradient"] > 0
    assert passes.call_count == 1
    measured = Saliency(classified("flat"))
    measured.magnitude("leave_one_out")  # which reads another column of the same pass
    assert measured.seconds["leave_one_out"] > 0


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
