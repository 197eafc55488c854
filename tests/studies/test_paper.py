"""The table of published findings, from sweeps of a stand-in for probing."""

import html
import json
import math
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import markdown  # type: ignore[import-untyped]
import pandas as pd
import pytest
import yaml

from attention_probing.commands import sweep
from attention_probing.commands.seeds import over_seeds
from attention_probing.commands.sweep_options import options_of
from attention_probing.commands.sweep_plan import read_sweep
from attention_probing.results import Estimate, Provenance, Result, Table
from attention_probing.results.digests import checksums
from attention_probing.results.errors import UserError
from attention_probing.results.record import read_record
from attention_probing.results.writer import write
from studies.findings import CANNOT, MISSING, NOT_SEEN, SEEN, Finding, judge, read_published
from studies.numbers import ENCODER, Number, Numbers, read_numbers, write_numbers
from studies.paper import PAGE, PUBLISHED, escaped, judge_on_all, main, write_page
from tests.commands.sweeps import nothing_wrong, write_program

ROWS = """name: p
label: row
scores: [uas]
rows:
  probe: {config: a.yaml, seeds: [0, 1]}
  words:
    config: b.yaml
    command: measure
    set: {data.init_args.corpus: c}
    rename: {data.init_args.encoder.name: null}
"""
HEAD = {"source": "Table 1", "of": "BERT, WSJ"}
FINDINGS: list[dict[str, object]] = [
    {"paper": "a", "item": "better", **HEAD, "published": 61, "ours": "probe@uas", "seen": "> offset.uas"},
    {"paper": "a", "item": "close", **HEAD, "published": 58, "ours": "probe@uas", "seen": "±"},
    {"paper": "a", "item": "far", **HEAD, "published": 61, "ours": "words@uas", "seen": "±", "why": "no words"},
    {"paper": "b", "item": "lost", **HEAD, "published": "much", "cannot": "the corpus is lost"},
]


def plan_of(folder: Path) -> Path:
    for name, text in {"a.yaml": "a", "b.yaml": "b", "plan.yaml": ROWS}.items():
        (folder / name).write_text(text, encoding="utf-8")
    published = {"plan": "plan.yaml", "about": "# Found", "findings": FINDINGS}
    (folder / "published.yaml").write_text(yaml.safe_dump(published), encoding="utf-8")
    return folder / "plan.yaml"


def swept(folder: Path, *options: str, out: str = "out", plan: Path | None = None) -> int:
    """Run the sweep of a plan, and write the page of its findings into its folder."""
    words = [str(plan or plan_of(folder)), "--out", str(folder / out), *options]
    code = sweep.main(words, program=write_program(folder), check=nothing_wrong)
    given = options_of(options[options.index("--") + 1 :] if "--" in options else [])
    given = {name: value for name, value in given.items() if name != ENCODER}
    for message in write_page(folder / "published.yaml", folder / out, folder / out / "index.md", given):
        print(message)
    return code


def table(page: Path, part: str) -> pd.DataFrame:
    """The rows of the table in the part of a page with this heading, without those that only repeat the headings."""
    text = page.read_text(encoding="utf-8").split(f"\n## {part}", 1)[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| **")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]
    return pd.DataFrame(rows, columns=[cell.strip() for cell in lines[0][2:-2].split(" | ")])


def cells(page: Path, model: str = "ours") -> list[str]:
    """The cells of a model in the table of paper `a`."""
    return table(page, "[a]")[model].tolist()


def test_a_sweep_writes_the_table_of_its_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert swept(tmp_path) == 0
    said = capsys.readouterr().out
    assert "default encoder: 2 seen, 1 not seen, 1 cannot be seen here, 0 not run" in said
    found = table(tmp_path / "out" / "index.md", "[a]")
    assert list(found) == ["BERT, WSJ", "seen if", "published", "ours"]
    assert found["BERT, WSJ"].tolist() == ["better", "close", "far"]
    assert found["seen if"].tolist() == ["higher", "±", "±"]
    assert found["published"].tolist() == ["61 (Table 1)", "58 (Table 1)", "61 (Table 1)"]
    better, close, far = found["ours"]
    assert re.fullmatch(r"✓ 55\.0.* vs 25\.0", better)
    assert re.fullmatch(r"✓ 55\.0.*", close)
    assert re.fullmatch(r"✗ 50\.0.* \(1\)", far)
    page = (tmp_path / "out" / "index.md").read_text(encoding="utf-8")
    assert "\n\nRows: `probe`, `words`\n" in page
    assert "## [b](b.md)\n\nCannot be seen here:\n\n- lost: much (Table 1): the corpus is lost\n" in page
    assert "## Most likely reasons\n\n1. no words\n" in page
    assert "## Where models differ" not in page


def test_a_group_of_findings_repeats_the_headings(tmp_path: Path) -> None:
    plan_of(tmp_path)
    text = (tmp_path / "published.yaml").read_text(encoding="utf-8")
    changed = [*FINDINGS, {**FINDINGS[0], "of": "BERT, CoNLL", "item": "of another group"}]
    published = {**yaml.safe_load(text), "findings": changed}
    (tmp_path / "published.yaml").write_text(yaml.safe_dump(published), encoding="utf-8")
    write_page(tmp_path / "published.yaml", tmp_path, tmp_path / "index.md")
    page = (tmp_path / "index.md").read_text(encoding="utf-8").splitlines()
    place = page.index("| **BERT, CoNLL** | **seen if** | **published** | **ours** |")
    assert page[place + 1].startswith("| of another group | ")


@pytest.mark.parametrize(
    ("published", "seen", "ours", "verdict", "shown"),
    [
        (30, "±", 0.23, NOT_SEEN, "27.0 to 33.0"),
        (83, "±", 0.789, SEEN, "78.0 to 88.0"),
        (83, "±", 0.77, NOT_SEEN, "78.0 to 88.0"),
        (2.3, "±", 0.021, SEEN, "2.1 to 2.5"),
        (-2.3, "±", -0.021, SEEN, "-2.5 to -2.1"),
        ("32 to 61", "0.32 to 0.61", 0.5, SEEN, "32.0 to 61.0"),
        ("32 to 61", "0.32 to 0.61", 0.33, NOT_SEEN, "32.0 to 61.0"),  # its interval begins at 31.5
    ],
)
def test_a_plain_score_is_seen_near_the_published_number_or_inside_the_published_range(
    published: str | float, seen: str, ours: float, verdict: str, shown: str
) -> None:
    finding = Finding("a", "x", "Table 1", published, "BERT", "probe@uas", seen=seen)
    kept = {"probe@uas": Number(ours, ours - 0.015, ours + 0.015, "fraction", "k", "3.0.0")}
    found, limit, judged, _ = judge(finding, Numbers({}, {"probe": "k"}, kept))
    assert found is not None
    assert judged == verdict
    assert limit is not None
    assert limit.low is not None
    assert f"{100 * limit.low:.1f} to {100 * (limit.high or 0):.1f}" == shown


def test_the_page_of_the_findings_has_the_kept_numbers(tmp_path: Path) -> None:
    """docs/papers/index.md follows from index.json and published.yaml: written again without runs it is the same."""
    page = tmp_path / "index.md"
    shutil.copy(PAGE.with_suffix(".json"), tmp_path)
    runs = tmp_path / "runs"
    runs.mkdir()
    notes = write_page(PUBLISHED, runs, page)
    assert not [note for note in notes if note.startswith("no longer in")]
    assert page.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "begins", "place"),
    [
        ("jain2019", "| SST-2 | BiLSTM |", "SST-2 saliency@correlation.input_x_gradient.kendall"),
        ("jain2019", "| IMDB | BiLSTM |", "IMDB saliency@correlation.input_x_gradient.kendall"),
        ("serrano2019", "| flat, recurrent |", "IMDB flat erasure@erasure.attention.median_fraction"),
        ("serrano2019", "| flat, no encoder |", "IMDB flat noenc erasure@erasure.random.median_fraction"),
        ("tutek2020", "| SST-2 | additive | base |", "SST-2 base@f1"),
        ("tutek2020", "| SST-2 | additive | tying |", "SST-2 tying@f1"),
        ("tutek2020", "| IMDB | base |", "IMDB base@f1"),
        ("tutek2020", "| IMDB | tying |", "IMDB tying@f1"),
    ],
)
def test_tables_of_the_pages_have_the_kept_numbers(page: str, begins: str, place: str) -> None:
    value, low, high, unit, *_ = read_numbers(PAGE.with_suffix(".json"))[""][place]
    lines = PAGE.with_name(f"{page}.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith(begins)]
    points = unit == "fraction" and "kendall" not in place
    assert low is not None
    assert high is not None
    shown = [f"{100 * one:.1f}" if points else f"{one:.3f}".replace("0.", ".") for one in (value, low, high)]
    assert any(f"| {shown[0]} [{shown[1]}, {shown[2]}]" in row for row in rows), (shown, rows)


def test_the_findings_of_each_paper_are_counted(tmp_path: Path) -> None:
    swept(tmp_path, "--row", "words")
    counts = table(tmp_path / "out" / "index.md", "Counts")
    assert list(counts) == ["paper", "default encoder", CANNOT, MISSING]
    assert counts.to_numpy().tolist() == [["[a](a.md)", "0 ✓, 1 ✗", "0", "2"], ["[b](b.md)", "", "1", "0"]]


def test_a_number_that_is_not_there_costs_only_its_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_of(tmp_path)
    swept(tmp_path)
    capsys.readouterr()
    published, runs = tmp_path / "published.yaml", ["--runs", str(tmp_path / "out")]
    text = published.read_text(encoding="utf-8")
    published.write_text(text.replace("words@uas", "words@uaz"), encoding="utf-8")
    assert main([*runs, "--published", str(published)]) == 0
    assert "a, far: " in (said := " ".join(capsys.readouterr().out.split()))
    assert "has no `uaz` (did you mean `uas`?)" in said
    assert [cell[0] for cell in cells(tmp_path / "index.md")] == ["✓", "✓"]
    page = (tmp_path / "index.md").read_text(encoding="utf-8")
    assert "- far: 61 (Table 1): the results have no such number\n" in page
    published.write_text(text.replace("words@uas", "wrods@uas"), encoding="utf-8")
    with pytest.raises(UserError, match=r"plan\.yaml has no row 'wrods' \(did you mean `words`\?\), which 'wrods@uas'"):
        main([*runs, "--published", str(published)])


def test_rows_can_be_chosen_and_the_others_stay_in_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert swept(tmp_path, "--row", "words") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("words ", "probe "))] == ["words"]
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 1  # probe has no folders
    assert [cell[:7] for cell in cells(tmp_path / "out" / "index.md")] == ["not run", "not run", "✗ 50.0 "]
    assert swept(tmp_path, "--row", "probe") == 0
    assert pd.read_csv(tmp_path / "out" / "p.csv")["uas"].tolist() == [0.55, 0.5]
    capsys.readouterr()
    with pytest.raises(UserError, match=r"--row: the plan has no row 'wrods' \(did you mean `words`\?\)"):
        swept(tmp_path, "--row", "wrods")


def test_runs_of_another_encoder_have_a_column_of_their_own(tmp_path: Path) -> None:
    swept(tmp_path)
    assert swept(tmp_path, "--", "--data.init_args.encoder.name=bert") == 0
    page = tmp_path / "out" / "index.md"
    found = table(page, "[a]")
    assert list(found) == ["BERT, WSJ", "seen if", "published", "default encoder", "bert"]
    assert [cell[0] for cell in found["default encoder"]] == ["✓", "✓", "✗"]
    assert [cell[:1] for cell in found["bert"]] == ["✓", "✓", ""]  # words needs no encoder
    assert table(page, "Counts")["bert"].tolist() == ["2 ✓, 0 ✗", ""]
    calls = (tmp_path / "calls.txt").read_text(encoding="utf-8").splitlines()
    assert len(calls) == 5


def test_a_model_may_have_another_row_in_place_of_one(tmp_path: Path) -> None:
    swept(tmp_path)
    swept(tmp_path, "--", "--data.init_args.encoder.name=bert")
    file = tmp_path / "published.yaml"
    published = {**yaml.safe_load(file.read_text(encoding="utf-8")), "instead": {"bert": {"words": "probe"}}}
    file.write_text(yaml.safe_dump(published), encoding="utf-8")
    write_page(file, tmp_path / "out", tmp_path / "index.md")
    found = table(tmp_path / "index.md", "[a]")
    assert found["BERT, WSJ"].tolist()[2] == "far"
    assert found["default encoder"].tolist()[2].startswith("✗ 50.0")
    assert found["bert"].tolist()[2].startswith("✗ 55.0")
    published["instead"] = {"bert": {"words": "prob"}}
    file.write_text(yaml.safe_dump(published), encoding="utf-8")
    with pytest.raises(UserError, match=r"`instead`, bert: plan\.yaml has no row 'prob' \(did you mean `probe`\?\)"):
        read_published(file)


def test_findings_on_which_models_differ_begin_the_page(tmp_path: Path) -> None:
    swept(tmp_path)
    swept(tmp_path, "--", "--data.init_args.encoder.name=bert")
    file = tmp_path / "published.yaml"
    published = {**yaml.safe_load(file.read_text(encoding="utf-8")), "differences": "What it <b>means</b>."}
    published["models"] = {"": "small", "never run": "none", "bert": "large"}
    file.write_text(yaml.safe_dump(published), encoding="utf-8")
    for path in (tmp_path / "out").rglob("version_0/results.json"):
        if "encoder.name=bert" in (path.parents[2] / "run.json").read_text(encoding="utf-8"):
            content = json.loads(path.read_text(encoding="utf-8"))
            content["scores"]["uas"] = 0.75
            content["checksums"] = checksums(path.parent, content)
            path.write_text(json.dumps(content), encoding="utf-8")
    write_page(file, tmp_path / "out", tmp_path / "index.md")
    page = (tmp_path / "index.md").read_text(encoding="utf-8")
    assert page.startswith("# Found\n\n## Where models differ\n\nWhat it &lt;b>means&lt;/b>.\n")
    assert "2 findings can be judged on more than one model; the verdicts differ on 1.\n" in page
    assert "\nOn 1 the models lie apart: " in page
    differ = table(tmp_path / "index.md", "Where models differ")
    assert list(differ) == ["paper", "item", "seen if", "published", "small", "large"]
    (line,) = differ.to_numpy().tolist()
    assert line[:4] == ["[a](a.md)", "close", "±", "58 (Table 1)"]
    assert [cell[:6] for cell in line[4:]] == ["✓ 55.0", "✗ 75.0"]


@pytest.mark.parametrize(
    ("seen", "bounds", "ends", "verdicts", "is_clear"),
    [
        ("> other", (0.3, 0.7), (0.4, 0.6), (SEEN, NOT_SEEN), True),  # 10 to 30 above, 10 to 30 below
        ("> other", (0.38, 0.45), (0.4, 0.6), (SEEN, NOT_SEEN), False),  # 2 to 22 above, 5 below to 15 above
        ("< other", (0.7, 0.3), (0.4, 0.6), (SEEN, NOT_SEEN), True),
        ("> 0.39", (0.0, 0.0), (0.4, 0.6), (SEEN, SEEN), False),
    ],
)
def test_models_differ_clearly_if_the_deciding_intervals_lie_apart(
    seen: str, bounds: tuple[float, float], ends: tuple[float, float], verdicts: tuple[str, str], is_clear: bool
) -> None:
    finding = Finding("a", "x", "Table 1", 61, "BERT", "probe@uas", seen=seen)
    models = {}
    for encoder, bound in zip(("", "bert"), bounds, strict=True):
        kept = {
            "probe@uas": Number(0.5, *ends, "fraction", f"{encoder}k", "3.0.0"),
            "probe@other": Number(bound, None, None, "fraction", f"{encoder}k", "3.0.0"),
        }
        models[encoder] = Numbers({}, {"probe": f"{encoder}k"}, kept)
    line = judge_on_all(finding, models, [])
    assert tuple(judgement.verdict for judgement in line.judgements.values()) == verdicts
    assert line.differs == (verdicts[0] != verdicts[1])
    assert line.is_clear == is_clear


def test_an_encoder_under_another_name_has_a_column(tmp_path: Path) -> None:
    plan, published = plan_of(tmp_path), tmp_path / "published.yaml"
    renamed = "probe: {rename: {data.init_args.encoder.name: data.init_args.tokenizer.name}, "
    plan.write_text(ROWS.replace("probe: {", renamed), encoding="utf-8")
    words = ["--row", "probe", "--", "--data.init_args.encoder.name=bert", "--data.init_args.corpora=[{corpus: c}]"]
    assert swept(tmp_path, *words, plan=plan) == 0
    page = tmp_path / "out" / "index.md"
    assert [cell[:1] for cell in cells(page, "bert")] == ["✓", "✓", ""]  # words needs no encoder
    assert "plan.yaml --row ROW -- '--data.init_args.corpora=[{corpus: c}]'`" in page.read_text(encoding="utf-8")
    notes = write_page(published, tmp_path / "out", tmp_path / "index.md")
    assert any("of another config, corpus or option than the rows of plan.yaml" in note for note in notes)


def test_runs_of_another_corpus_are_not_taken_for_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert swept(tmp_path, "--", "--data.corpus=other") == 0
    assert [cell[0] for cell in cells(tmp_path / "out" / "index.md")] == ["✓", "✓", "✗"]  # the sweep's own
    assert main(["--runs", str(tmp_path), "--published", str(tmp_path / "published.yaml")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "3 runs below" in said
    assert "of another config, corpus or option than the rows of plan.yaml, not used" in said
    assert cells(tmp_path / "index.md") == ["not run"] * 3  # beside published.yaml


def test_of_two_runs_of_a_row_the_later_counts(tmp_path: Path) -> None:
    swept(tmp_path)
    swept(tmp_path, out="second")
    for path in (tmp_path / "second").rglob("version_0/results.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        content["scores"]["uas"] = 0.75
        content["checksums"] = checksums(path.parent, content)
        path.write_text(json.dumps(content), encoding="utf-8")
        os.utime(path, (2e9, 2e9))
    notes = write_page(tmp_path / "published.yaml", tmp_path, tmp_path / "index.md")
    assert sum("is used, it is later than" in note and "second" in note for note in notes) == 3
    assert cells(tmp_path / "index.md")[0].startswith("✓ 75.0")


def test_numbers_whose_runs_are_gone_are_kept_while_the_plan_has_these_runs(tmp_path: Path) -> None:
    swept(tmp_path)
    swept(tmp_path, "--", "--data.init_args.encoder.name=bert")
    published, page, runs = tmp_path / "published.yaml", tmp_path / "index.md", tmp_path / "out"
    write_page(published, runs, page)
    whole = page.read_text(encoding="utf-8")
    shutil.move(runs, tmp_path / "moved")
    runs.mkdir()
    notes = write_page(published, runs, page)
    assert page.read_text(encoding="utf-8") == whole
    assert any(note.endswith("the numbers of 2 rows: probe, words") for note in notes)
    (tmp_path / "b.yaml").write_text("# A comment is not what a config says.\nb", encoding="utf-8")
    write_page(published, runs, page)
    assert page.read_text(encoding="utf-8") == whole
    (tmp_path / "b.yaml").write_text("another config", encoding="utf-8")
    notes = write_page(published, runs, page)
    assert any(
        "no longer in" in note
        and note.endswith("1 number of rows whose runs the plan has changed, or that no finding names: words@uas")
        for note in notes
    )
    assert [cell[:7] for cell in cells(page, "default encoder")] == ["✓ 55.0 ", "✓ 55.0", "not run"]
    (tmp_path / "b.yaml").write_text("b", encoding="utf-8")
    write_page(published, runs, page)  # what is not used is not kept
    assert cells(page, "default encoder")[2] == "not run"
    write_page(published, tmp_path / "moved", page)
    assert page.read_text(encoding="utf-8") == whole


def test_the_page_says_which_version_made_the_results(tmp_path: Path) -> None:
    swept(tmp_path)
    page = tmp_path / "out" / "index.md"
    file = page.with_suffix(".json")
    kept = read_numbers(file)
    kept[""]["words@uas"] = kept[""]["words@uas"]._replace(version="1.0")
    write_numbers(file, kept)
    (tmp_path / "none").mkdir()
    write_page(tmp_path / "published.yaml", tmp_path / "none", page)
    assert page.read_text(encoding="utf-8").endswith(
        "\n\n- 1.0, default encoder: `words`\n- unknown, default encoder: `probe`\n"
    )


def test_numbers_that_were_changed_are_refused(tmp_path: Path) -> None:
    swept(tmp_path)
    page = tmp_path / "out" / "index.md"
    numbers = page.with_suffix(".json")
    text = numbers.read_text(encoding="utf-8")
    for wrong in (text.replace("0.55", "0.95"), text[:99], "[]", '{"numbers": {"": {}}}'):
        numbers.write_text(wrong, encoding="utf-8")
        with pytest.raises(UserError, match=r"index\.json is damaged \(.*\)\. Restore it"):
            write_page(tmp_path / "published.yaml", tmp_path / "out", page)


def test_a_run_that_is_not_finished_is_not_read(tmp_path: Path) -> None:
    swept(tmp_path)
    (tmp_path / "out" / "runs" / "begun").mkdir()
    (tmp_path / "out" / "runs" / "begun" / "run.json").write_text("{", encoding="utf-8")
    notes = write_page(tmp_path / "published.yaml", tmp_path / "out", tmp_path / "index.md")
    assert notes == ["default encoder: 2 seen, 1 not seen, 1 cannot be seen here, 0 not run"]


def test_without_counts_the_interval_joins_those_of_the_runs_and_of_the_seeds(tmp_path: Path) -> None:
    records = []
    for seed, low in enumerate((0.2, 0.4, 0.3)):
        result = Result("t", {"mcc": Estimate(low + 0.1, low, low + 0.3, unit="fraction")})
        write(tmp_path / str(seed), result, Provenance({}, {}, {}))
        records.append(read_record(tmp_path / str(seed) / "results.json"))
    found = over_seeds(records, "mcc")
    margin = 4.302653 * 0.1 / 3**0.5  # of Student's t with two degrees of freedom, and a standard deviation of .1
    expected = [0.4, 0.4 - (0.1**2 + margin**2) ** 0.5, 0.4 + (0.2**2 + margin**2) ** 0.5]
    assert [found.value, found.low, found.high] == pytest.approx(expected)
    assert all(map(math.isnan, over_seeds(records[:2], "mcc").interval))
    assert found.sd == pytest.approx(0.1)


def test_damaged_results_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    swept(tmp_path)
    (one,) = [path for path in (tmp_path / "out").rglob("version_0/results.json") if '"seed": 1' in path.read_text()]
    one.write_text("{", encoding="utf-8")
    capsys.readouterr()
    assert (
        main(["--runs", str(tmp_path), "--published", str(tmp_path / "published.yaml"), "--out", str(tmp_path / "x")])
        == 0
    )
    said = capsys.readouterr().out
    assert "is damaged: it is not valid JSON" in said
    assert "row `probe` is not used: 1 of its 2 runs are finished" in said
    assert cells(tmp_path / "x")[0] == "not run"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": None}, r"finding 1 \(a: close\): `source` is missing"),
        ({"source": ""}, "`source` has no value"),
        ({"sauce": 1}, "unknown key `sauce`"),
        ({"seen": "above 7"}, "give either `cannot`, or `ours` and `seen`"),
        ({"cannot": "x"}, "give either `cannot`, or `ours` and `seen`"),
        ({"published": "61 UAS"}, "'±' for a number as `published`"),
        ({"seen": "± probe@uas"}, "give either `cannot`, or `ours` and `seen`"),
        ({"ours": "probe@heads:test[layer=1"}, r"'probe@heads:test\[layer=1' is no place of a number: write ROW@SCORE"),
    ],
)
def test_a_published_value_must_be_complete(change: dict[str, object], message: str, tmp_path: Path) -> None:
    plan_of(tmp_path)
    finding = {name: one for name, one in {**FINDINGS[1], **change}.items() if one is not None}
    path = tmp_path / "published.yaml"
    path.write_text(yaml.safe_dump({"plan": "plan.yaml", "about": "# Found", "findings": [finding]}), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_published(path)


def test_cells_and_paired_differences(tmp_path: Path) -> None:
    frame = pd.DataFrame({"layer": [1, 2], "test": [0.25, 0.5], "low": [0.2, 0.4], "high": [0.3, 0.6]})
    items = pd.DataFrame({"id": ["x", "y", "z"], "a": [1, 2, 3], "b": [0, 1, 2], "n": [3, 3, 3]})
    scores = {"a": Estimate(2 / 3, 0.1, 0.9, unit="fraction"), "b": Estimate(1 / 3, 0.1, 0.9, unit="fraction")}
    tables = {"heads": Table(frame, {"test": "fraction"}, interval="test")}
    result = Result("t", scores, tables, items=items, ratios={"a": ("a", "n"), "b": ("b", "n")})
    write(tmp_path, result, Provenance({}, {}, {}))
    runs = Numbers({"row": [read_record(tmp_path / "results.json")]}, {"row": "key"})
    finding = Finding("a", "b", "Table 1", 61, "BERT")

    ends = {0.25: (0.2, 0.3), 0.5: (0.4, 0.6)}

    def judged(**change: str) -> tuple[Estimate | None, str]:
        judgement = judge(replace(finding, **change), runs)
        return judgement.ours, judgement.verdict

    for where, value in {
        "layer=1": 0.25,
        "layer=last": 0.5,
        "layer=last-1": 0.25,
        "layer=middle": 0.25,
        "max": 0.5,
    }.items():
        ours, verdict = judged(ours=f"row@heads:test[{where}]", seen="> a")
        assert ours is not None
        assert (ours.value, ours.low, ours.high, ours.unit) == (value, *ends[value], "fraction")
        assert verdict == "not seen"
    for bound in ("> .45", "< .55"):  # the number is on that side, its interval is not
        assert judged(ours="row@heads:test[layer=2]", seen=bound)[1] == "not seen"
    assert judged(ours="row@heads:test[layer=2]", seen="> .39")[1] == "seen"
    assert judged(ours="row@heads:test[layer=2]", seen="< .61")[1] == "seen"
    ours, verdict = judged(ours="row@a", minus="b", seen="> 0")
    assert ours is not None
    # Three items are too few for an interval of a difference, so nothing is seen.
    assert ours.value == pytest.approx(1 / 3)
    assert ours.low is None
    assert verdict == "cannot be seen here"
    with pytest.raises(UserError, match="`heads` has not one row with a number in `test` where layer=7: 0 rows"):
        judged(ours="row@heads:test[layer=7]", seen="> 0")
    (tmp_path / "tables/heads.csv").unlink()
    with pytest.raises(UserError, match=r"heads\.csv cannot be read"):
        judged(ours="row@heads:test[layer=1]", seen="> 0")


def test_every_finding_that_is_shipped_is_of_a_row_of_the_plan() -> None:
    plan, _, findings = read_published(PUBLISHED)  # which reads the plan
    assert read_sweep(plan, options_of(["--data.init_args.encoder.name=bert"])).rows
    assert len(findings) >= 60
    assert {one.paper for one in findings} <= {path.stem for path in PAGE.parent.glob("*.md")}


HOSTILE = "<img src=x onerror=alert(1)> [a](javascript:b) `c` {: onclick=d } | e **f**"


def test_names_reach_the_site_as_text(tmp_path: Path) -> None:
    swept(tmp_path)
    swept(tmp_path, "--", f"--data.init_args.encoder.name={HOSTILE}")
    told = {"paper": HOSTILE, "item": HOSTILE, "source": HOSTILE, "of": HOSTILE, "published": 61}
    judged = {"ours": "probe@uas", "seen": "> 0.9", "why": HOSTILE}
    published = {
        "plan": "plan.yaml",
        "about": "# Found <script>",
        "models": {"": HOSTILE},
        "findings": [{**told, "cannot": HOSTILE}, {**told, **judged}],
    }
    (tmp_path / "published.yaml").write_text(yaml.safe_dump(published), encoding="utf-8")
    write_page(tmp_path / "published.yaml", tmp_path / "out", tmp_path / "index.md")
    page = (tmp_path / "index.md").read_text(encoding="utf-8")
    shown = markdown.markdown(page, extensions=["tables", "attr_list", "toc"])
    tags = set(re.findall(r"<[^>]*>", shown))
    assert not [tag for tag in tags if re.search(r"<(img|script|em|strong)|\son\w+=|javascript:", tag)], tags
    of_findings = 2 * len(("item", "source")) + len(("cannot", "of", "why"))
    of_papers = len(("counts", "heading"))
    of_models = 2 * len(("counts", "table", "version"))
    assert html.unescape(shown).count(HOSTILE) == of_findings + of_papers + of_models


def test_an_interval_is_not_broken_and_a_text_is_one_line() -> None:
    assert escaped(" 55.0 [54.0,\N{NO-BREAK SPACE}56.0]\n  <b> ") == "55.0 [54.0,\N{NO-BREAK SPACE}56.0] &#60;b>"


@pytest.mark.parametrize("name", ["plain", "a`b", "a|b"])
def test_a_command_is_code_whatever_it_contains(name: str, tmp_path: Path) -> None:
    swept(tmp_path, "--", f"--data.x={name}")
    write_page(tmp_path / "published.yaml", tmp_path / "out", tmp_path / "x.md", options_of([f"--data.x={name}"]))
    shown = markdown.markdown((tmp_path / "x.md").read_text(encoding="utf-8"), extensions=["tables"])
    codes = [html.unescape(one) for one in re.findall(r"<code>(.*?)</code>", shown)]
    assert [code for code in codes if f"--data.x={name}" in code.replace("'", "")]
