"""A run of each real pretrained model, as the command line makes it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from attention_probing.commands import CONFIGS
from benchmarks.harness import first_sentences

CONFIG = CONFIGS / "clark2019/heads.yaml"
HEADS = {"gemma-3-270m": (18, 4), "multilingual-e5-small": (12, 12), "smollm2-135m": (30, 9)}


@pytest.mark.parametrize("name", HEADS)
def test_heads_of_a_real_model_find_objects_better_than_any_offset(
    name: str,
    pretrained: Callable[[str], Path],
    public_data: Callable[..., Path],
    tmp_path: Path,
    run_config: Callable[..., tuple[Any, dict[str, Any], Path]],
) -> None:
    folder, corpus = pretrained(name), tmp_path / "ewt-{split}.conllu"
    for split in ("dev", "test"):
        file = public_data("ud", f"en_ewt-ud-{split}.conllu")
        first_sentences([file], Path(str(corpus).format(split=split)), 60)
    data = [f"--data.corpus={corpus}", f"--data.encoder.name={folder}", f"--data.cache={tmp_path}"]
    light = ["--data.store=stream", "--data.random_init=false", "--model.trees=false", "--model.relations=[obj]"]
    _, written, run = run_config("measure", f"--config={CONFIG}", *data, *light, own_data=True)
    heads = pd.read_csv(run / written["tables"]["heads"])
    assert heads["head"].nunique() == HEADS[name][0] * HEADS[name][1]
    best = pd.read_csv(run / written["tables"]["best_heads"]).set_index("relation").loc["obj"]
    found = heads[heads["relation"] == "obj"].set_index(["head", "direction"])
    assert found.loc[(best["head"], best["direction"]), "test"] == best["test"]
    assert best["over_offset.low"] > 0
