"""The tables of several models, from a sweep of a stand-in for probing."""

import json
import shutil
from pathlib import Path

import pytest

from attention_probing.commands import sweep
from attention_probing.results import UserError
from studies.models import findings, questions, runs_of
from studies.paper import Finding
from tests.commands.sweeps import nothing_wrong, write_program
from tests.studies.test_paper import plan_of

QUESTIONS = ("probe", "probe again", "probe streamed", "no paper")
MODELS = """name: models
scores: [score, beside]
seeds: [0, 1]
grid:
  command: measure
  axes:
    question:
      probe: {config: a.yaml, command: fit, scores: {score: uas, beside: offset.uas}}
      probe again: {config: a.yaml, command: fit, scores: {score: uas, beside: null}, set: {model.x: 1}}
      probe streamed:
        {config: a.yaml, command: fit, scores: {score: uas, beside: null}, set: {data.init_args.store: stream}}
      no paper: {config: c.yaml, scores: {score: uas, beside: null}}
    model:
      small: {}
      large: {set: {data.init_args.encoder.name: large}}
"""


def test_questions_and_findings_have_a_column_for_each_model(tmp_path: Path) -> None:
    papers, plan, out = plan_of(tmp_path), tmp_path / "models.yaml", tmp_path / "out"
    plan.write_text(MODELS, encoding="utf-8")
    (tmp_path / "c.yaml").write_text("c", encoding="utf-8")
    asked = [str(plan), "--out", str(out)]
    assert sweep.main(asked, program=write_program(tmp_path), check=nothing_wrong) == 0

    rows = [(question, model) for question in QUESTIONS for model in ("small", "large")]
    found = questions(out, rows)
    assert found["question"].tolist() == [*QUESTIONS]
    assert found["small"].tolist() == found["large"].tolist() == ["55.0† (25.0)", "55.0†", "55.0†", "55.0†"]

    notes: list[str] = []
    runs = runs_of(out, plan, papers, notes)
    assert {model: list(rows) for model, rows in runs.items()} == {"small": ["probe"], "large": ["probe"]}
    for one in runs.values():  # of the first of the questions with this config, both seeds
        calls = [json.loads((run.path.parents[2] / "run.json").read_text(encoding="utf-8")) for run in one["probe"]]
        assert [{"model.init_args.x", "data.init_args.store"} & {*dict(call["options"])} for call in calls] == [
            set()
        ] * 2
    with pytest.raises(UserError, match=r"no run of .*models\.yaml is finished\. Run `probing sweep "):
        runs_of(tmp_path / "nothing", plan, papers, notes)

    published = [
        Finding("a", "better", "Table 1", 61, "BERT", "probe@uas", seen="> offset.uas"),
        Finding("a", "much better", "Table 1", 61, "BERT", "probe@uas", seen="> 0.9"),
        Finding("a", "of another row", "Table 1", 61, "BERT", "words@uas", seen="> 0.9"),
        Finding("a", "of no score", "Table 1", 61, "BERT", "probe@las", seen="> 0.9"),
        Finding("b", "lost", "Table 1", "much", "BERT", cannot="the corpus is lost"),
    ]
    judged = findings(runs | {"third": {}}, published, notes)
    assert judged["item"].tolist() == ["better", "much better"]
    for model in ("small", "large"):
        assert judged[model].tolist() == ["55.0 seen", "55.0 not seen"]
    assert [note.partition(":")[0] for note in notes] == ["small, of no score", "large, of no score"]
    assert judged["third"].tolist() == ["–", "–"]

    # A question with one seed stands for nothing: the next with equal runs does, or none.
    for store, left in ((None, 1), ("stream", 0)):
        left_runs = runs_of(out, plan, papers, notes)["small"]["probe"]
        call = json.loads((left_runs[0].path.parents[2] / "run.json").read_text(encoding="utf-8"))
        assert dict(call["options"]).get("data.init_args.store") == store
        shutil.rmtree(left_runs[0].path.parents[2])
        assert len(runs_of(out, plan, papers, notes)["small"]) == left
