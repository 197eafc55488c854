"""The table of several models, from a sweep of a stand-in for probing."""

from pathlib import Path

from attention_probing.commands import sweep
from studies.models import questions
from tests.commands.sweeps import nothing_wrong, write_program

MODELS = """name: models
scores: [score, beside]
seeds: [0, 1]
grid:
  command: measure
  axes:
    question:
      probe: {config: a.yaml, command: fit, scores: {score: uas, beside: offset.uas}}
      probe again: {config: a.yaml, command: fit, scores: {score: uas, beside: null}, set: {model.x: 1}}
    model:
      small: {}
      large: {set: {data.init_args.encoder.name: large}}
"""


def test_questions_have_a_column_for_each_model(tmp_path: Path) -> None:
    plan, out = tmp_path / "models.yaml", tmp_path / "out"
    plan.write_text(MODELS, encoding="utf-8")
    (tmp_path / "a.yaml").write_text("a", encoding="utf-8")
    assert sweep.main([str(plan), "--out", str(out)], program=write_program(tmp_path), check=nothing_wrong) == 0
    asked = ("probe", "probe again", "not asked")
    rows = [(question, model) for question in asked for model in ("small", "large")]
    found = questions(out, rows)
    assert list(found) == ["question", "small", "large"]
    assert found["question"].tolist() == [*asked]
    assert found["small"].tolist() == found["large"].tolist() == ["55.0† (25.0)", "55.0†", "–"]
