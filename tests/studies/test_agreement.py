"""The agreement of heads' accuracies with what is lost without them, against counts of pairs."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from attention_probing.attention import EncoderSpec, Options
from attention_probing.attention.quantities import QuantityName
from attention_probing.datamodules import ClassificationDataModule, DependencyDataModule
from attention_probing.measures import HeadAblation, SingleHeads
from attention_probing.results import Floats, UserError
from attention_probing.results.digests import checksums
from attention_probing.results.writer import write
from studies import HeadAgreement
from studies.agreement import lost_without, pseudo_values
from tests.measures.classifiers import fitted
from tests.trainers import changed, scored


def tau(one: Floats, other: Floats) -> float:
    """Concordant minus discordant pairs, of all pairs."""
    pairs = list(combinations(range(len(one)), 2))
    return sum(float(np.sign(one[i] - one[j]) * np.sign(other[i] - other[j])) for i, j in pairs) / len(pairs)


def ablated(folder: Path, layers: int = 2, unit: str = "fraction", encoder: str = "bert0") -> Path:
    """What an ablation of single heads leaves: a difference for each of four heads a layer."""
    places = [(layer + 1, head + 1) for layer in range(layers) for head in range(4)]
    random = np.random.default_rng(0).normal(size=len(places))
    rows = [
        {"kind": "uniform", "layer": i, "head": j, "difference": d} for (i, j), d in zip(places, random, strict=True)
    ]
    folder.mkdir()
    pd.DataFrame(rows).to_csv(folder / "ablation.csv", index=False)
    audit = {"score": "score", "lower_is_better": unit == "nats"}
    content = {
        "units": {"score": unit},
        "tables": {"ablation": "ablation.csv"},
        "audit": audit,
        "encoder": {"name": encoder},
    }
    content |= {"items": None, "checksums": {}}
    content["checksums"] = checksums(folder, content)
    (folder / "results.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_a_changed_table_of_losses_is_refused(tmp_path: Path) -> None:
    run = ablated(tmp_path / "run")
    content = json.loads((run / "results.json").read_text(encoding="utf-8")) | {"items": None}
    content["checksums"] = checksums(run, content)
    (run / "results.json").write_text(json.dumps(content), encoding="utf-8")
    assert len(lost_without(run, "uniform")) == 8
    table = (run / "ablation.csv").read_text(encoding="utf-8")
    (run / "ablation.csv").write_text(table.replace("uniform,1,1,0", "uniform,1,1,1"), encoding="utf-8")
    with pytest.raises(UserError, match=r"ablation\.csv was changed after the run"):
        lost_without(run, "uniform")


def treebank(bert: Path, cache: Path, quantity: QuantityName = "attention") -> DependencyDataModule:
    return DependencyDataModule(
        "sample", encoder=EncoderSpec(str(bert)), options=Options(quantity=quantity, too_long="skip"), cache=str(cache)
    )


def test_pseudo_values_are_those_of_leaving_one_item_out() -> None:
    random = np.random.default_rng(1)
    one, other = random.normal(size=9), random.integers(4, size=9).astype(float)  # with ties
    found = pseudo_values(one, other)
    assert found.mean() == pytest.approx(tau(one, other))
    for left in range(9):
        without = np.delete(one, left), np.delete(other, left)
        assert found[left] == pytest.approx(9 * tau(one, other) - 8 * tau(*without))


@pytest.mark.slow
def test_the_config_runs(run_config: Callable[..., Any], corpus: str, tmp_path: Path) -> None:
    run = ablated(tmp_path / "run")
    config = Path(__file__).parents[2] / "studies" / "ablation_tau.yaml"
    arguments = ["measure", f"--config={config}", "--trust=studies", f"--data.corpus={corpus}"]
    arguments += [f"--model.ablation={run}"]
    _, found, folder = run_config(*arguments, figures=True)
    assert -1 < found["scores"]["ablation_tau"] < 1
    assert found["tables"].keys() >= {"head_agreement"}
    assert all((folder / figure).stat().st_size for figure in found["figures"].values())


def chosen_on_dev(heads: pd.DataFrame) -> pd.Series:
    """The accuracy of each head on test, in the direction that is better on dev."""
    ways = heads.sort_values("dev", kind="stable", ascending=False)
    return ways.groupby("head", sort=False)["test"].first().sort_index()


def test_the_correlation_is_that_of_two_earlier_runs(bert: Path, tmp_path: Path) -> None:
    run = ablated(tmp_path / "run")
    heads = (
        scored(changed(SingleHeads(), ensemble=1), treebank(bert, tmp_path / "cache")).tables["heads"].frame.dropna()
    )
    # Of some relation, a direction that is better on dev is worse on test.
    relation = next(
        name
        for name, own in heads.groupby("relation", sort=False)
        if (chosen_on_dev(own) < own.groupby("head")["test"].max()).any()
    )
    best = chosen_on_dev(heads[heads["relation"] == relation])
    result = scored(HeadAgreement(str(run), relation=str(relation)), treebank(bert, tmp_path / "cache"))
    lost = -pd.read_csv(run / "ablation.csv")["difference"].to_numpy()
    table = result.tables["head_agreement"].frame
    np.testing.assert_allclose(table["accuracy"], best)
    np.testing.assert_allclose(table["lost"], lost)
    assert result.scores["ablation_tau"].value == pytest.approx(tau(best.to_numpy(), lost))
    assert result.items is not None
    assert result.items["id"].tolist() == [f"{i}-{j}" for i in (1, 2) for j in (1, 2, 3, 4)]
    assert result.audit["encoder_of_ablation"] == bert.name


def test_full_agreement_has_no_interval(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pseudo-values are 1: they do not vary, and they are no share, as if all of eight heads were found."""
    monkeypatch.setattr("studies.agreement.pseudo_values", lambda one, _: np.ones(len(one)))
    result = scored(HeadAgreement(str(ablated(tmp_path / "run"))), treebank(bert, tmp_path / "cache"))
    assert np.isnan(result.scores["ablation_tau"].interval).all()


def test_an_ablation_of_another_model_is_warned_of(bert: Path, tmp_path: Path) -> None:
    run = ablated(tmp_path / "run", encoder="other")
    with pytest.warns(UserWarning, match=r"run ablates heads of other, and the accuracies are those of bert0: τ"):
        scored(HeadAgreement(str(run)), treebank(bert, tmp_path / "cache"))


def test_results_name_another_quantity_than_attention(bert: Path, tmp_path: Path) -> None:
    for quantity, named in (("norms", "norms"), ("attention", None)):
        data = treebank(bert, tmp_path / "cache", quantity)  # type: ignore[arg-type]
        scored(HeadAgreement(str(ablated(tmp_path / quantity))), data)
        assert data.provenance.audit.get("quantity") == data.provenance.encoder.get("quantity") == named


def test_a_real_ablation_is_read(bert: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "fitted").mkdir()
    checkpoint, texts = fitted(folder, bert), str(folder / "{split}.tsv")
    data = ClassificationDataModule(texts, tokenizer=EncoderSpec(str(bert)), positive="good", cache=str(folder))
    data.setup("test")
    result = scored(HeadAblation(str(checkpoint), kinds=["uniform"]), data)
    write(tmp_path, result, data.provenance)
    found, table = lost_without(tmp_path, "uniform"), result.tables["ablation"].frame
    np.testing.assert_allclose(found, -table["difference"])
    assert found.index.tolist() == [f"{layer}-{head}" for layer in (1, 2) for head in (1, 2, 3, 4)]
    assert (found.attrs["score"], found.attrs["unit"]) == ("accuracy", "fraction")


def test_a_loss_that_rises_is_a_loss(tmp_path: Path) -> None:
    differences = pd.read_csv(ablated(tmp_path / "run", unit="nats") / "ablation.csv")["difference"]
    assert lost_without(tmp_path / "run" / "results.json", "uniform").tolist() == differences.tolist()


def test_other_runs_and_quantities_are_refused(bert: Path, tmp_path: Path) -> None:
    run, cache = ablated(tmp_path / "run"), tmp_path / "cache"
    with pytest.raises(UserError, match=r"norms_summed has one map for each layer.* Choose attention, norms or"):
        scored(HeadAgreement(str(run)), treebank(bert, cache, "norms_summed"))
    for layers, name in ((1, "2-1"), (3, "3-1")):
        with pytest.raises(UserError, match=rf"do not fit: head {name} is in only one of the two. Name a run"):
            scored(HeadAgreement(str(ablated(tmp_path / f"run-{layers}", layers=layers))), treebank(bert, cache))
    few = treebank(bert, cache)
    few.options = replace(few.options, layers=(2,), heads=(1, 2))
    with pytest.raises(UserError, match=r"do not fit: there are only 2 heads"):
        scored(HeadAgreement(str(run)), few)
    table = pd.read_csv(run / "ablation.csv")
    table.loc[0, "difference"] = np.nan
    table.to_csv(tmp_path / "run-1" / "ablation.csv", index=False)
    record = tmp_path / "run-1" / "results.json"
    content = json.loads(record.read_text(encoding="utf-8"))
    record.write_text(json.dumps({**content, "checksums": checksums(record.parent, content)}), encoding="utf-8")
    with pytest.raises(UserError, match=r"has a loss that is not a finite number"):
        lost_without(tmp_path / "run-1", "uniform")
    with pytest.raises(UserError, match=r"no ablation of the kind 'zero'; kind must be one of uniform"):
        lost_without(run, "zero")
    with pytest.raises(UserError, match=r"is not the result of an ablation of single heads"):
        lost_without(tmp_path / "none", "zero")
    with pytest.raises(UserError, match=r"no word of dev has the relation 'objj' \(did you mean `obj`"):
        scored(HeadAgreement(str(run), relation="objj"), treebank(bert, cache))
