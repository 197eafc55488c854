"""Every shipped config of an analysis, on tiny data and a tiny encoder, on one process and on two."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from attention_probing.commands import CONFIGS
from tests import documents
from tests.tiny import BROKEN, FAMILIAR, save_bert

ANALYSES = [
    path
    for path in sorted(CONFIGS.rglob("*.yaml"))
    if "class_path: AttentionAnalyses" in path.read_text(encoding="utf-8")
]
MARKED = [pytest.param(path, marks=[pytest.mark.core] if path.stem == "surface" else []) for path in ANALYSES]
ATLAS = CONFIGS / "atlas.yaml"


def texts(config: Path, folder: Path, corpus: str) -> list[dict[str, Any]]:
    """The corpora of a config, each replaced by a small one of its kind."""
    words = [*FAMILIAR, *BROKEN]
    rows = [f"{number % 2}\t{' '.join((words * 2)[number % 9 : number % 9 + 7])}" for number in range(23)]
    for split in ("train", "test"):
        (folder / f"labelled-{split}.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n", encoding="utf-8")
    pairs = [f"1\t{' '.join(words[:5])}\t{' '.join(words[number % 5 :])}" for number in range(11)]
    (folder / "pairs.tsv").write_text("\n".join(["label\ttext\tother", *pairs]) + "\n", encoding="utf-8")
    plain = [" ".join((words * 9)[number : number + 40]) for number in range(9)]
    (folder / "plain.txt").write_text("\n\n".join(plain) + "\n", encoding="utf-8")
    labelled = {"corpus": str(folder / "labelled-{split}.tsv"), "columns": {"text": "text", "label": "label"}}
    small: dict[str, dict[str, Any]] = {
        "sst2": labelled,
        "cola": labelled,
        "wnli": {"corpus": str(folder / "pairs.tsv"), "columns": {"pair": "other"}},
        "wikitext": {"corpus": str(folder / "plain.txt"), "packing": "pairs"},
        "ud_english_ewt": {"corpus": corpus.replace("{split}", "test")},
    }
    found = yaml.safe_load(config.read_text(encoding="utf-8"))["data"]["init_args"]["corpora"]
    given = list[dict[str, Any]]()
    for one in found if isinstance(found, list) else [found]:
        options = one if isinstance(one, dict) else {"corpus": one}
        kind = {"format": "conllu"} if "format" in options else {}
        given.append(small[options["corpus"]] | kind | {"name": options.get("name", options["corpus"])})
    return given


def assert_same(one: dict[str, Any], at_one: Path, two: dict[str, Any], at_two: Path) -> None:
    """Compare scores and tables up to the order in which two processes add."""
    scores, others = (pd.Series(run["scores"], dtype=float) for run in (one, two))
    pd.testing.assert_series_equal(scores, others, rtol=1e-9, atol=1e-12)
    assert one["tables"] == two["tables"]
    for file in one["tables"].values():
        frame, other = (pd.read_csv(folder / file) for folder in (at_one, at_two))
        pd.testing.assert_frame_equal(frame, other, rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def atlas_arguments(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("atlas")
    files = documents.write_splits(folder, [[6, 3, 5, 7], [8, 5, 9]] * 4)
    return [
        "measure",
        f"--config={ATLAS}",
        f"--data.text={json.dumps(texts(CONFIGS / 'clark2019/surface.yaml', folder, corpus))}",
        f"--data.treebank={corpus}",
        f"--data.documents={json.dumps(files)}",
        "--data.max_length=48",
    ]


TWICE = ("change", "surface")
"""Configs whose measurements gather from their processes what two encoders give, or one. The atlas has the others."""


@pytest.mark.slow
@pytest.mark.parametrize("config", MARKED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_config_runs_and_some_write_the_same_on_one_and_on_two_processes(
    run_config: Callable[..., Any], config: Path, corpus: str, tmp_path: Path
) -> None:
    given = texts(config, tmp_path, corpus)
    arguments = ["measure", f"--config={config}", f"--data.corpora={json.dumps(given)}"]
    arguments += ["--data.max_length=48", "--data.max_cells=9000"]
    if config.name == "change.yaml":
        arguments.append(f"--data.before.name={save_bert(tmp_path / 'before', seed=1)}")
    _, one, at_one = run_config(*arguments, figures=True)

    if config.name == "change.yaml":  # analyses that each read one of two corpora
        captions = [caption for name, caption in one["captions"].items() if name.startswith(("change", "difference"))]
        assert {("sst2" in caption, "treebank" in caption) for caption in captions} == {(True, False), (False, True)}
    if config.stem in TWICE:
        _, two, at_two = run_config(*arguments, processes=2)
        assert_same(one, at_one, two, at_two)


@pytest.mark.slow
def test_the_atlas_is_the_same_on_one_and_on_two_processes(
    run_config: Callable[..., Any], atlas_arguments: list[str]
) -> None:
    _, one, at_one = run_config(*atlas_arguments, figures=True)
    _, two, at_two = run_config(*atlas_arguments, processes=2)
    assert_same(one, at_one, two, at_two)
    assert len(pd.read_csv(at_one / "atlas.csv")) == 8
    assert "roles" in one["figures"]
