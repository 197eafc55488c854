import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import reports
from reports.reader import RecordError
from reports.writer import write
from results import Estimate, Provenance, Result, Table

SCORES = {
    "uas": Estimate(0.5, 0.4, 0.6, unit="fraction"),
    "loss": Estimate(2.5, unit="nats"),
    "las": Estimate(float("nan"), float("nan"), float("nan"), unit="fraction", p=0.25),
}


def run(folder: Path, rate: float, **scores: Estimate) -> None:
    folder.mkdir(parents=True)
    config = {
        "seed_everything": 3,
        "checkpoint": {"monitor": "val_uas"},
        "trainer": {"max_epochs": 2, "default_root_dir": "runs"},
        "model": {"class_path": "probes.AttentionOnlyProbe", "init_args": {"learning_rate": rate}},
        "data": {
            "class_path": "datamodules.DependencyDataModule",
            "init_args": {"cache": "stores", "options": {"layers": [3, 4]}, "encoder": {"name": "bert"}},
        },
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    encoder = {"name": "bert", "weights": "pretrained"}
    write(folder, Result("probe", scores or SCORES, audit={"epochs": 2}), Provenance(encoder, {}, {}))


def test_every_score_is_a_row_with_its_interval_unit_and_options(tmp_path: Path) -> None:
    run(tmp_path / "a" / "version_0", 0.1)
    run(tmp_path / "b [1]" / "version_0", 0.2, uas=Estimate(0.75, unit="fraction"))
    frame = reports.load(str(tmp_path / "**"))
    assert frame["score"].tolist() == ["uas", "loss", "las", "uas"]
    assert frame["value"].tolist() == pytest.approx([0.5, 2.5, float("nan"), 0.75], nan_ok=True)
    first, loss, las, other = frame.to_dict("records")
    assert (first["low"], first["high"], first["unit"]) == (0.4, 0.6, "fraction")
    assert (loss["unit"], las["p"]) == ("nats", 0.25)
    assert pd.isna([loss["low"], loss["sd"], other["high"]]).all()
    assert frame["model.learning_rate"].tolist() == [0.1, 0.1, 0.1, 0.2]
    assert set(frame["model"]) == {"probes.AttentionOnlyProbe"}
    assert first["data.options.layers.1"] == 4
    assert (first["trainer.max_epochs"], first["epochs"], first["encoder"]) == (2, 2, "bert")
    strange = {"data.cache", "trainer.default_root_dir", "checkpoint.monitor"}  # they change no number
    assert not strange & set(frame)
    assert frame["run"].unique().tolist() == [str(tmp_path / name / "version_0") for name in ("a", "b [1]")]
    both: list[str | Path] = [tmp_path / "a", str(tmp_path / "*" / "*" / "results.json")]
    same_runs: list[str | Path | list[str | Path]] = [tmp_path, both, [tmp_path / "a", tmp_path / "b [1]"]]
    for same in same_runs:
        pd.testing.assert_frame_equal(reports.load(same), frame)


def test_tables_of_sweeps_are_not_read_beside_their_runs(tmp_path: Path) -> None:
    run(tmp_path / "runs" / "one", 0.1)
    whole = Result("table", SCORES, {"table": Table(pd.DataFrame({"row": ["x"]})), "table_runs": Table(pd.DataFrame())})
    write(tmp_path, whole, Provenance({}, {}, {}))
    assert reports.load(tmp_path)["experiment"].unique().tolist() == ["probe"]


def test_a_damaged_run_is_told_and_left_out(tmp_path: Path) -> None:
    run(tmp_path / "a", 0.1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "results.json").write_text("{", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"left out: .*b.results\.json is damaged: it is not valid JSON"):
        assert reports.load(tmp_path)["run"].unique().tolist() == [str(tmp_path / "a")]
    with pytest.raises(RecordError, match=r"no run has a results\.json that can be read"):
        reports.load(tmp_path / "nowhere")


def test_one_table_of_all_runs_that_have_it(tmp_path: Path) -> None:
    for name, heads in (("a", ["3-1", "2-5"]), ("b", ["1-2", "4-4"])):
        best = Table(
            pd.DataFrame({"relation": ["obj", "None"], "head": heads, "test": [0.5, np.nan]}), {"test": "fraction"}
        )
        (tmp_path / name).mkdir()
        encoder = {"name": f"bert-{name}", "weights": "pretrained"}
        write(tmp_path / name, Result("heads", SCORES, {"best_heads": best}), Provenance(encoder, {}, {}))
    run(tmp_path / "probe", 0.1)
    frame = reports.load(tmp_path, table="best_heads")
    assert frame.columns.tolist() == ["run", "seed", "encoder", "weights", "relation", "head", "test"]
    assert frame.query("relation == 'obj'")["head"].tolist() == ["3-1", "1-2"]
    assert frame["relation"].tolist() == ["obj", "None"] * 2, "a word, and no missing number"
    assert frame["test"].isna().tolist() == [False, True] * 2
    assert frame["encoder"].tolist() == ["bert-a", "bert-a", "bert-b", "bert-b"]
    with pytest.raises(RecordError, match=r"no run has a table best_head \(did you mean `?best_heads`?\?\)"):
        reports.load(tmp_path, table="best_head")
    with pytest.raises(RecordError, match=r"no run has a table best_heads; the runs have no tables$"):
        reports.load(tmp_path / "probe", table="best_heads")
