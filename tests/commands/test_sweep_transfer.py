from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from attention_probing.commands.sweep_transfer import (
    KINDS,
    OWN,
    PROBE,
    TRANSFERRED,
    TRANSFERRED_PROBE,
    Languages,
    compare_languages,
    find_shared_heads,
)
from attention_probing.metrics.differences import paired_bootstrap
from attention_probing.metrics.p_values import holm
from attention_probing.results import Estimate, Provenance, Result, Table
from attention_probing.results.figure_files import FigureFiles
from attention_probing.results.record import Record, find_record
from attention_probing.results.writer import write
from studies.languages import main

WORDS = 4  # of each relation in a sentence
SENTENCES = 30
RIGHT = {  # share of words right on test, by language and kind
    ("English", OWN): 0.75, ("English", PROBE): 0.75,
    ("German", OWN): 0.75, ("German", TRANSFERRED): 0.25, ("German", PROBE): 0.75, ("German", TRANSFERRED_PROBE): 0.5,
    ("Hebrew", OWN): 0.5, ("Hebrew", TRANSFERRED): 0.5, ("Hebrew", PROBE): 0.5, ("Hebrew", TRANSFERRED_PROBE): 0.5,
    ("Basque", OWN): 0.5, ("Basque", TRANSFERRED): 0.5, ("Basque", PROBE): 0.25, ("Basque", TRANSFERRED_PROBE): 0.75,
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
            **{"n_dev": 100, "dev_gap": 0.1, "p_offset": 0.5, "p_holm": 0.5, "p_shuffled": 0.5},
        }
    )
    if language == "Hebrew":  # its dev has no det, and that of English no obj, so that no head was chosen
        unseen = best["relation"] == ("det" if kind == OWN else "obj")
        best.loc[unseen, "head"] = np.nan
        best.loc[unseen, "n_dev"] = 0
    shares = ("dev", "test", "offset", "random_init", "over_offset", "dev_gap", "p_offset", "p_holm", "p_shuffled")
    tables = {} if "probe" in kind else {"best_heads": Table(best, dict.fromkeys(shares, "fraction"), "test")}
    return Result(kind.replace(" ", "_"), scores, tables, items=items, ratios=ratios, shares=tuple(ratios))


def write_run(folder: Path, language: str, kind: str, left_out: int = 0) -> Path:
    """Write the results of a run without its first sentences, and return its folder."""
    result = run(language, kind)
    assert result.items is not None
    result = replace(result, items=result.items.iloc[left_out:])
    path = folder / "runs" / f"{language}-{kind}".replace(" ", "-")
    data = {"train": {"file": "a.conllu", "sentences": 7}}
    write(path, result, Provenance({"name": "tiny"}, data, {}), figures=FigureFiles(formats=()))
    return path


def languages_of(
    folder: Path, languages: Sequence[str], kinds: Sequence[str] = KINDS, source: str = "English"
) -> Languages:
    """Write the runs of languages; those of the source have learned on it."""
    runs: dict[str, dict[str, Record]] = {}
    for language in languages:
        runs[language] = {}
        for kind in kinds:
            if language != source or kind in (OWN, PROBE):
                runs[language][kind] = find_record(write_run(folder, language, kind))
    return Languages(source, runs)


def compare(languages: Languages) -> Result:
    compared = compare_languages(languages)
    assert compared is not None
    return compared[0]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return compare(languages_of(tmp_path_factory.mktemp("sweep"), ["English", "German", "Basque"]))


@pytest.fixture(scope="module")
def tables(result: Result) -> Mapping[str, pd.DataFrame]:
    return {name: table.frame for name, table in result.tables.items()}


def test_what_the_source_chose_is_compared_by_sentence_with_holm_over_the_other_languages(
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
        one, other = (found_by(language, kind) for kind in (TRANSFERRED, OWN))
        counts = one, [WORDS] * SENTENCES, other, [WORDS] * SENTENCES
        expected, row = paired_bootstrap(*counts, share=True), heads.loc[("obj", language)]
        assert row["difference"] == pytest.approx(RIGHT[language, TRANSFERRED] - RIGHT[language, OWN])
        assert row["transferred"] == RIGHT[language, TRANSFERRED]
        assert (row["difference.low"], row["difference.high"]) == (expected.low, expected.high)
        assert expected.p is not None
        p.append(expected.p)
    assert heads.loc["obj"].loc[["German", "Basque"], "p_holm"].tolist() == holm(p).tolist()
    assert np.isnan(heads.loc[("obj", "English"), "p_holm"])
    of_probes = tables["probes"].set_index("language")
    assert of_probes["sentences"].tolist() == [7, 7, 7]
    assert of_probes["difference"].tolist() == pytest.approx([np.nan, -0.25, 0.5], nan_ok=True)
    assert of_probes["p_holm"].isna().tolist() == [True, False, False]


def test_where_no_head_was_chosen_none_is_compared_or_shared(tmp_path: Path) -> None:
    result = compare(languages_of(tmp_path, ["English", "Hebrew"]))
    heads: Any = result.tables["heads"].frame.set_index(["language", "relation"])
    assert [relation for language, relation in heads.index if language == "Hebrew"] == ["all", "obj", "det"]
    assert heads.loc[("Hebrew", "obj"), ["transferred", "difference", "p_holm"]].isna().tolist() == [True] * 3
    assert heads.loc[("Hebrew", "det"), ["head", "difference", "p_holm"]].isna().tolist() == [True] * 3
    assert heads.loc[("Hebrew", "det"), "transferred"] == RIGHT["Hebrew", TRANSFERRED]
    shared = result.tables["shared"].frame.set_index("relation")
    assert shared["languages"].to_dict() == {"obj": 2, "det": 1}
    assert shared["head"].fillna("").to_dict() == {"obj": "2-2 dependent→head", "det": ""}
    transfer = result.tables["transfer"].frame.set_index("relation")["Hebrew"]
    assert transfer.to_dict() == {"all": "0.0", "obj": "–", "det": "(50.0)"}


def test_blank_cells_have_their_reasons(result: Result, tmp_path: Path) -> None:
    few = "relations with fewer than 50 words in test, or 20 in dev, are blank"
    assert result.audit["blank"] == [f"Basque: {few}: det (49)."]
    languages = languages_of(tmp_path, ["English", "Hebrew"])
    assert compare(languages).audit["blank"] == [
        f"Hebrew: {few}: det (none in dev).",
        "English: the heads of relations with fewer than 20 words in its dev split are not transferred: obj (none).",
    ]


@pytest.mark.parametrize(("words", "counts"), [(19, False), (20, True)])
def test_a_head_that_was_chosen_on_few_words_of_dev_is_neither_shown_nor_compared(
    words: int, counts: bool, tmp_path: Path
) -> None:
    languages = languages_of(tmp_path, ["English", "German", "Basque"])
    learned_on_english = [languages.runs["English"][OWN]]
    learned_on_english += [languages.runs[language][TRANSFERRED] for language in ("German", "Basque")]
    for record in learned_on_english:
        for path in record.path.parent.rglob("best_heads.csv"):
            frame = pd.read_csv(path)
            frame.loc[frame["relation"] == "obj", "n_dev"] = words
            frame.to_csv(path, index=False)
    result = compare(languages)
    transfer = result.tables["transfer"].frame.set_index("relation")
    assert ("obj" in transfer.index) == counts
    assert ("English" in result.tables["heads"].frame.query("relation == 'obj'")["language"].tolist()) == counts
    assert result.tables["own"].frame.set_index("relation").loc["obj", "German"] == "2-2 75.0↑"
    cells = "2 of 3 cells" if counts else "1 of 1 cell,"
    assert f"worse than the own one in {cells}" in result.answer
    reasons = [
        "English: relations with fewer than 50 words in test, or 20 in dev, are blank: obj (19 in dev).",
        "English: the heads of relations with fewer than 20 words in its dev split are not transferred: obj (19).",
    ]
    blank = cast(list[str], result.audit["blank"])
    assert [reason in blank for reason in reasons] == [not counts] * 2


def test_a_relation_that_test_does_not_have_is_none(tmp_path: Path) -> None:
    languages = languages_of(tmp_path, ["English", "German"])
    (path,) = languages.runs["German"][OWN].path.parent.rglob("best_heads.csv")
    frame = pd.read_csv(path)
    row = frame["relation"] == "det"
    frame.loc[row, frame.columns != "relation"] = np.nan  # as `keep_relations` leaves it
    frame.loc[row, "n"] = 0
    frame.to_csv(path, index=False)
    (blank,) = cast(list[str], compare(languages).audit["blank"])
    assert blank.endswith(": det (none).")


def test_languages_with_the_same_files_are_told(tmp_path: Path) -> None:
    languages = languages_of(tmp_path, ["English", "German", "Basque"])
    files = {"English": ("1", "2"), "German": ("3", "4"), "Basque": ("1", "2")}
    runs: dict[str, dict[str, Record]] = {}
    for language, of_language in languages.runs.items():
        runs[language] = {}
        for kind, record in of_language.items():
            dev, test = files[language]
            if kind in (TRANSFERRED, TRANSFERRED_PROBE):
                dev, _ = files["English"]  # that of the source is no file of the language
            data = {"dev": {"file": "d", "sha256": dev}, "test": {"file": "t", "sha256": test}}
            runs[language][kind] = record.model_copy(update={"data": {**record.data, **data}})
    assert compare(Languages("English", runs)).audit["warnings"] == [
        "English, Basque have the same file as dev, test, but count as 2 languages. Leave all but one out, or correct "
        "the paths"
    ]
    assert compare(languages).audit["warnings"] == []


@pytest.mark.parametrize("shorter", [TRANSFERRED, OWN])
def test_runs_with_other_sentences_are_not_compared_and_the_other_languages_are(shorter: str, tmp_path: Path) -> None:
    languages = languages_of(tmp_path, ["English", "German", "Basque"])
    probe = PROBE if shorter == OWN else TRANSFERRED_PROBE
    basque = dict(languages.runs["Basque"])
    for kind, left_out in ((shorter, 1), (probe, 2)):
        folder = write_run(tmp_path / "shorter", "Basque", kind, left_out)
        basque[kind] = find_record(folder)
    result = compare(Languages("English", {**languages.runs, "Basque": basque}))
    heads: Any = result.tables["heads"].frame.set_index(["language", "relation"])
    assert heads.loc[("Basque", "obj"), ["difference", "difference.low", "p", "p_holm"]].isna().all()
    assert heads.loc[("German", "obj"), "p_holm"] == heads.loc[("German", "obj"), "p"] < 0.05
    transfer = result.tables["transfer"].frame.set_index("relation")
    assert transfer.loc["obj"].to_dict() == {"English": "2-2", "German": "-50.0↓", "Basque": "(50.0)"}
    probes: Any = result.tables["probes"].frame.set_index("language")
    assert probes["difference"].isna().to_dict() == {"English": True, "German": False, "Basque": True}
    assert probes.loc["Basque", "transferred"] == RIGHT["Basque", TRANSFERRED_PROBE]
    few, of_heads, of_probes = cast(list[str], result.audit["blank"])
    assert few.startswith("Basque: relations with fewer than 50 words")
    folders = f"{basque[OWN].path.parent} and {basque[TRANSFERRED].path.parent}"
    sides = "1 only in the former, 0 only" if shorter == TRANSFERRED else "0 only in the former, 1 only"
    assert of_heads == (
        f"Basque: the head of English is not compared with the own one by all, obj: {folders} were not scored on the "
        f"same items: {sides} in the latter, 29 in both. If the test file has changed since, remove the folder of the "
        "older run, and give the command again."
    )
    assert of_probes.startswith("Basque: the probe of English is not compared with the own one by uas: ")
    assert "28 in both" in of_probes


def test_a_language_with_a_test_split_alone_shows_what_the_source_finds_in_it(tmp_path: Path) -> None:
    languages = languages_of(tmp_path, ["English", "German"])
    german = {kind: languages.runs["German"][kind] for kind in (TRANSFERRED, TRANSFERRED_PROBE)}
    languages = Languages("English", {**languages.runs, "German": german}, test_alone=["German"])
    result = compare(languages)
    assert result.audit["blank"] == ["German has a test split alone, so it has no own heads and no own probe."]
    assert list(result.tables["own"].frame) == ["relation", "English"]
    transfer = result.tables["transfer"].frame.set_index("relation")
    assert transfer.loc["obj"].to_dict() == {"English": "2-2", "German": "(25.0)"}
    probes: Any = result.tables["probes"].frame.set_index("language")
    assert probes.loc["German", ["uas", "sentences", "difference", "p_holm"]].isna().all()
    assert probes.loc["German", "transferred"] == RIGHT["German", TRANSFERRED_PROBE]


def test_without_the_source_the_own_heads_of_the_others_are_shown(tmp_path: Path) -> None:
    languages = languages_of(tmp_path, ["German", "Basque"], kinds=(OWN,))
    result = compare(Languages("English", {"English": {}, **languages.runs}))
    assert list(result.tables["own"].frame) == ["relation", "German", "Basque"]
    assert "probes" not in result.tables
    assert result.answer == "Most languages share a head for obj: 2-2 in 2 of 2."
    assert compare_languages(Languages("English", {"English": {}, "German": {}})) is None


def test_of_relations_that_are_all_too_rare_the_head_of_all_words_remains(tmp_path: Path) -> None:
    languages = languages_of(tmp_path, ["English", "German"])
    for record in (record for kinds in languages.runs.values() for record in kinds.values()):
        for path in record.path.parent.rglob("best_heads.csv"):
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace("obj,120", "obj,3").replace("det,120", "det,3"), encoding="utf-8")
    result = compare(languages)
    assert result.tables["own"].frame["relation"].tolist() == ["all"]
    assert "shared" not in result.tables
    assert "share a head" not in result.answer
    blank = result.audit["blank"]
    assert isinstance(blank, list)
    assert len(blank) == 2


def test_arrows_say_what_is_above_the_offset_and_what_differs(result: Result) -> None:
    own = result.tables["own"].frame.set_index("relation")
    assert own.loc["obj"].to_dict() == {"English": "2-2 75.0↑", "German": "2-2 75.0↑", "Basque": "2-2 50.0↑"}
    transfer = result.tables["transfer"].frame.set_index("relation")
    assert transfer.loc["obj"].to_dict() == {"English": "2-2", "German": "-50.0↓", "Basque": "0.0"}


def test_the_answer_says_what_is_lost_and_what_is_shared(result: Result) -> None:
    assert result.answer == (
        "The UAS of the probe of English minus that of the own one is -25.0 (German) to 50.0 (Basque) points, and it "
        "is worse in 1 of 2 languages (p < .05 after Holm); most languages share a head for obj: 2-2 in 3 of 3; the "
        "head of English for a relation is worse than the own one in 2 of 3 cells, and better in 0 "
        "(p < .05 after Holm over the languages, by relation)."
    )


def test_languages_that_differ_are_counted_by_the_sign_of_the_difference(tables: Mapping[str, pd.DataFrame]) -> None:
    shared: Any = tables["shared"].set_index("relation")
    assert shared.loc["obj", ["head", "languages", "on_one_head"]].tolist() == ["2-2 dependent→head", 3, 3]
    assert shared.loc["det", ["head", "languages", "on_one_head"]].tolist() == ["3-1 dependent→head", 2, 2]
    assert shared.loc["obj", ["source_worse", "source_better"]].tolist() == [1, 0]


def test_one_head_in_all_languages_is_more_than_good_heads_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    relations, languages = ("obj", "det", "amod", "case"), "abcdefghi"
    own = {  # obj: the same head everywhere; the others share three heads in turn
        (language, relation): "1-1" if relation == "obj" else f"2-{(place + k) % 3}"
        for place, language in enumerate(languages)
        for k, relation in enumerate(relations)
    }
    frame = pd.DataFrame([(*key, head) for key, head in own.items()], columns=["language", "relation", "head"])
    frame = frame.assign(direction="dependent→head", difference=0.0, p_holm=1.0)
    shared = find_shared_heads(frame).set_index("relation")
    assert shared["on_one_head"].tolist() == [9, 3, 3, 3]
    alike = ", ".join(f"2-{number} dependent→head" for number in range(3))
    assert shared["head"].tolist() == ["1-1 dependent→head", alike, alike, alike]
    assert shared["p"].iloc[0] < 0.001
    assert shared["p"].iloc[1:].min() > 0.3
    assert shared["p_holm"].tolist() == holm(shared["p"].tolist()).tolist()
    monkeypatch.setattr("attention_probing.commands.sweep_transfer.DEALS", 40)
    small = find_shared_heads(frame[frame["language"].isin(["a", "b"])].query("relation in ('obj', 'det')"))
    # Two languages with two relations: obj is alike where both are dealt as they are, or both the other way round.
    assert small["p"].min() > 0.2


def test_only_the_smallest_p_of_the_one_sided_test_has_the_sign_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attention_probing.commands.sweep_transfer.DEALS", 3)
    table = compare(languages_of(tmp_path, ["English", "German"])).tables["shared"]
    assert table.frame["p"].tolist() == [0.5, 0.5]  # of 3 deals one is as they chose; the smallest p would be 1 / 4
    assert table.units["p"] == table.units["p_holm"] == ["p", "p"]


def test_the_page_of_the_documentation_is_made_of_a_finished_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    languages_of(tmp_path, ["English", "German"])
    rows = []
    for path in sorted((tmp_path / "runs").iterdir()):
        language, *kind = path.name.split("-")
        rows.append((language, " ".join(kind), 0, "fit", "a.yaml", path.name))
    frame = pd.DataFrame(rows, columns=["language", "learned", "seed", "command", "config", "folder"])
    plan = "scores: [uas]\nsource: English\nlanguages: {English: a, German: b}\ngrid: {config: a.yaml, axes: {}}\n"
    (tmp_path / "config.yaml").write_text(plan, encoding="utf-8")
    sweep = Result("languages", {}, {"languages_runs": Table(frame)})
    write(tmp_path, sweep, Provenance({}, {}, {}), figures=FigureFiles(formats=()))
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| relation | English | German |"
    assert "| obj | 2-2 75.0 (20.0) | 2-2 75.0 (20.0) |" in lines
    assert any(line.startswith("| obj | 2-2 | **-50.0 [") for line in lines)
