from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from attention_probing.commands.sweep_plan import read_sweep
from attention_probing.metrics.differences import paired_bootstrap
from attention_probing.metrics.p_values import holm
from attention_probing.results import Estimate, Provenance, Result, Table, UserError
from attention_probing.results.figure_files import FigureFiles
from attention_probing.results.writer import write
from studies.languages import ENGLISH, ENGLISH_PROBE, KINDS, OWN, PROBE, main, read_runs, result, shared_heads

WORDS = 4  # of each relation in a sentence
SENTENCES = 30
RIGHT = {  # share of words right on test, by language and kind
    ("English", OWN): 0.75, ("English", ENGLISH): 0.75, ("English", PROBE): 0.75, ("English", ENGLISH_PROBE): 0.75,
    ("German", OWN): 0.75, ("German", ENGLISH): 0.25, ("German", PROBE): 0.75, ("German", ENGLISH_PROBE): 0.5,
    ("Hebrew", OWN): 0.5, ("Hebrew", ENGLISH): 0.5, ("Hebrew", PROBE): 0.5, ("Hebrew", ENGLISH_PROBE): 0.5,
    ("Basque", OWN): 0.5, ("Basque", ENGLISH): 0.5, ("Basque", PROBE): 0.25, ("Basque", ENGLISH_PROBE): 0.75,
}  # fmt: skip


def found_by(language: str, kind: str) -> list[int]:
    """Right words of each sentence: exact in the mean, and other ones in each run."""
    rng = np.random.default_rng(sum(map(ord, language + kind)))
    right: list[int] = rng.multivariate_hypergeometric([WORDS] * SENTENCES, round(RIGHT[language, kind] * 120)).tolist()
    return right


def run(language: str, kind: str) -> Result:
    right, share = found_by(language, kind), RIGHT[language, kind]
    items = pd.DataFrame({"id": [f"s{i}" for i in range(SENTENCES)], "right": right, "words": WORDS})
    scores = {
        name: Estimate(share, share - 0.05, share + 0.05, unit="fraction")
        for name in ("uas", "heads.all", "heads.obj", "heads.det", "right_branching.uas", "left_branching.uas")
    }
    ratios = dict.fromkeys(("uas", "heads.all", "heads.obj", "heads.det"), ("right", "words"))
    best = pd.DataFrame(
        {
            "relation": ["all", "all (no punctuation)", "obj", "det"],
            "n": [120, 100, 120, 49 if language == "Basque" else 120],
            "head": ["1-1", "1-1", "2-2", "2-3" if language == "Basque" else "3-1"],
            "direction": "dependent→head",
            **dict.fromkeys(("dev", "test"), share),
            **{"low": share - 0.05, "high": share + 0.05, "offset": 0.2, "best_offset": 1, "random_init": np.nan},
            **{"over_offset": share - 0.2, "over_offset.low": share - 0.3, "over_offset.high": share - 0.1},
            **{"p_offset": 0.5, "p_shuffled": 0.5},
        }
    )
    if language == "Hebrew":  # its dev has no det, and that of English no obj, so that no head was chosen
        best.loc[best["relation"] == ("det" if kind == OWN else "obj"), "head"] = np.nan
    shares = ("dev", "test", "offset", "random_init", "over_offset", "p_offset", "p_shuffled")
    tables = {} if "probe" in kind else {"best_heads": Table(best, dict.fromkeys(shares, "fraction"), "test")}
    return Result(kind.replace(" ", "_"), scores, tables, items=items, ratios=ratios, shares=tuple(ratios))


def write_sweep(folder: Path, languages: Sequence[str]) -> Path:
    rows = []
    for language in languages:
        for kind in KINDS:
            name = f"{language}-{kind}".replace(" ", "-")
            data = {"train": {"file": "a.conllu", "sentences": 7}}
            write(
                folder / "runs" / name,
                run(language, kind),
                Provenance({"name": "tiny"}, data, {}),
                figures=FigureFiles(formats=()),
            )
            rows.append((language, kind, 0, "fit", "a.yaml", name))
    frame = pd.DataFrame(rows, columns=["language", "learned", "seed", "command", "config", "folder"])
    write(
        folder,
        Result("languages", {}, {"languages_runs": Table(frame)}),
        Provenance({}, {}, {}),
        figures=FigureFiles(formats=()),
    )
    return folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, pd.DataFrame]:
    folder = write_sweep(tmp_path_factory.mktemp("sweep"), ["English", "German", "Basque"])
    return {name: table.frame for name, table in result(read_runs(folder)).tables.items()}


def test_what_english_chose_is_compared_by_sentence_with_holm_over_the_other_languages(
    tables: Mapping[str, pd.DataFrame],
) -> None:
    heads: Any = tables["heads"].set_index(["relation", "language"])
    assert sorted(heads.index) == [
        *(("all", language) for language in ("Basque", "English", "German")),
        *(("det", language) for language in ("English", "German")),  # Basque has 49 words
        *(("obj", language) for language in ("Basque", "English", "German")),
    ]
    p = []
    for language in ("German", "Basque"):
        one, other = (found_by(language, kind) for kind in (ENGLISH, OWN))
        counts = one, [WORDS] * SENTENCES, other, [WORDS] * SENTENCES
        expected, row = paired_bootstrap(*counts, share=True), heads.loc[("obj", language)]
        assert row["difference"] == pytest.approx(RIGHT[language, ENGLISH] - RIGHT[language, OWN])
        assert row["english"] == RIGHT[language, ENGLISH]
        assert (row["difference.low"], row["difference.high"]) == (expected.low, expected.high)
        assert expected.p is not None
        p.append(expected.p)
    assert heads.loc["obj"].loc[["German", "Basque"], "p_holm"].tolist() == holm(p).tolist()
    assert np.isnan(heads.loc[("obj", "English"), "p_holm"])
    of_probes = tables["probes"].set_index("language")
    assert of_probes["sentences"].tolist() == [7, 7, 7]
    assert of_probes["difference"].tolist() == pytest.approx([0, -0.25, 0.5])
    assert of_probes["p_holm"].isna().tolist() == [True, False, False]


def test_where_no_head_was_chosen_none_is_compared_or_shared(tmp_path: Path) -> None:
    tables = result(read_runs(write_sweep(tmp_path, ["English", "Hebrew"]))).tables
    heads: Any = tables["heads"].frame.set_index(["language", "relation"])
    assert [relation for language, relation in heads.index if language == "Hebrew"] == ["all", "obj"]
    assert heads.loc[("Hebrew", "obj"), ["english", "difference", "p_holm"]].isna().tolist() == [False, True, True]
    shared = tables["shared"].frame.set_index("relation")
    assert shared["languages"].to_dict() == {"obj": 2, "det": 1}
    assert shared["head"].fillna("").to_dict() == {"obj": "2-2 dependent→head", "det": ""}


def test_languages_that_differ_are_counted_by_the_sign_of_the_difference(tables: Mapping[str, pd.DataFrame]) -> None:
    shared: Any = tables["shared"].set_index("relation")
    assert shared.loc["obj", ["head", "languages", "on_one_head"]].tolist() == ["2-2 dependent→head", 3, 3]
    assert shared.loc["det", ["head", "languages", "on_one_head"]].tolist() == ["3-1 dependent→head", 2, 2]
    assert shared.loc["obj", ["english_worse", "english_better"]].tolist() == [1, 0]


def test_one_head_in_all_languages_is_more_than_good_heads_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    relations, languages = ("obj", "det", "amod", "case"), "abcdefghi"
    own = {  # obj: the same head everywhere; the others share three heads in turn
        (language, relation): "1-1" if relation == "obj" else f"2-{(place + k) % 3}"
        for place, language in enumerate(languages)
        for k, relation in enumerate(relations)
    }
    frame = pd.DataFrame([(*key, head) for key, head in own.items()], columns=["language", "relation", "head"])
    frame = frame.assign(direction="dependent→head", difference=0.0, p_holm=1.0)
    shared = shared_heads(frame).set_index("relation")
    assert shared["on_one_head"].tolist() == [9, 3, 3, 3]
    alike = ", ".join(f"2-{number} dependent→head" for number in range(3))
    assert shared["head"].tolist() == ["1-1 dependent→head", alike, alike, alike]
    assert shared["p"].iloc[0] < 0.001
    assert shared["p"].iloc[1:].min() > 0.3
    assert shared["p_holm"].tolist() == holm(shared["p"].tolist()).tolist()
    monkeypatch.setattr("studies.languages.DEALS", 40)
    small = shared_heads(frame[frame["language"].isin(["a", "b"])].query("relation in ('obj', 'det')"))
    # Two languages with two relations: obj is alike where both are dealt as they are, or both the other way round.
    assert small["p"].min() > 0.2


def test_the_command_writes_tables_and_figure_and_prints_markdown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_sweep(tmp_path, ["English", "German"])
    assert main([str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| relation | English | German |"
    assert "| obj | 2-2 75.0 (20.0) | 2-2 75.0 (20.0) |" in lines
    assert any(line.startswith("| obj | 2-2 | **-50.0 [") for line in lines)
    tables = (folder / "compared/tables").glob("*.csv")
    assert {path.name for path in tables} == {"heads.csv", "shared.csv", "probes.csv"}
    assert (folder / "compared/figures/gain.png").is_file()


def test_a_sweep_without_english_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not all runs of English .* sweep languages`"):
        read_runs(write_sweep(tmp_path, ["German"]))


def test_the_plan_has_the_kinds_that_are_compared() -> None:
    sweep = read_sweep(Path(__file__).parents[2] / "configs" / "languages.yaml")
    assert sweep.labels == ("language", "learned")
    assert {row.labels[1] for row in sweep.rows} == {*KINDS}
    assert len(sweep.rows) == 9 * len(KINDS)
    (trained,) = {needed.key for row in sweep.rows for run in row.all_runs() for needed in run.needed}
    english = next(row for row in sweep.rows if row.labels == ("English", PROBE))
    assert [run.key for run in english.all_runs()] == [trained]
