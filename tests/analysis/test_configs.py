"""The shipped configs of analyses on the embedded text and a tiny encoder."""

import json
from pathlib import Path

import pandas as pd
import pytest

import train
from tests.tiny import save_bert

CLARK = Path(__file__).parents[2] / "configs" / "clark2019"
SURFACE = {"surface": ["layer", "head", "start", "start.low", "entropy_without_first", "uniform.entropy"]}
SURFACE |= {"layers": ["layer", "previous", "previous.high", "first", "heaviest"]}
DISTANCES = {"head_distances": ["layer", "head", "other_layer", "other_head", "distance"]}
DISTANCES |= {"clusters": ["layer", "head", "x", "y", "cluster", "behaviour"]}


@pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning")
@pytest.mark.filterwarnings("ignore:The '.*' does not have many workers")
@pytest.mark.filterwarnings("ignore:LightningCLI's args parameter is intended")
@pytest.mark.parametrize(
    ("config", "tables", "scores"),
    [
        ("surface", SURFACE, ["surface.start", "surface.entropy"]),
        ("clusters", {**SURFACE, **DISTANCES}, ["within_layer", "between_layer", "p"]),
    ],
)
def test_a_config_writes_what_others_read(
    config: str, tables: dict[str, list[str]], scores: list[str], tmp_path: Path
) -> None:
    train.main(
        [
            "test",
            f"--config={CLARK / config}.yaml",
            "--data.init_args.corpora=sample",
            f"--data.init_args.encoder.name={save_bert(tmp_path / 'bert')}",
            f"--data.init_args.cache={tmp_path / 'cache'}",
            f"--trainer.default_root_dir={tmp_path / 'runs'}",
            "--trainer.enable_progress_bar=false",
            "--trainer.accelerator=cpu",
        ]
    )
    [record] = tmp_path.rglob("results.json")
    found = json.loads(record.read_text(encoding="utf-8"))
    assert {*scores} <= found["scores"].keys()
    for table, columns in tables.items():
        assert {*columns} <= {*pd.read_csv(record.parent / found["tables"][table])}
    assert len(found["figures"]) >= (7 if config == "surface" else 10)
    assert all((record.parent / name).stat().st_size for name in found["figures"].values())
