import json
from dataclasses import replace
from pathlib import Path

import pytest

from attention_probing.corpora.conllu import read_treebank
from attention_probing.corpora.registry import locate
from attention_probing.corpora.sample import write_sample_treebank
from attention_probing.corpora.sentence import CorpusError
from benchmarks.harness import Report, Settings, Treebanks, first_sentences, run


@pytest.mark.slow
def test_first_sentences_are_the_first_ones_across_files(tmp_path: Path) -> None:
    files = write_sample_treebank(tmp_path)
    dev, test = (read_treebank(files[split]).sentences for split in ("dev", "test"))
    both = read_treebank(first_sentences([files["dev"], files["test"]], tmp_path / "some.conllu", len(dev) + 3))
    documents = dev[-1].document + 1
    assert both.sentences == (*dev, *(replace(one, document=one.document + documents) for one in test[:3]))
    fewer = read_treebank(first_sentences([files["dev"]], tmp_path / "few.conllu", 7))
    assert fewer.sentences == dev[:7]
    all_there_are = first_sentences([files["dev"]], tmp_path / "all.conllu", 10**6)
    assert all_there_are.read_bytes() == files["dev"].read_bytes()


@pytest.mark.slow
def test_without_data_the_sample_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBING_DATA", str(tmp_path / "nothing"))
    report = Report("storing")
    chosen = Treebanks.choose(Settings(), tmp_path, report, "its dev split")
    assert report.figures == {"corpus": "sample"}
    small, large, dev = (read_treebank(path).sentences for path in (chosen.small, chosen.large, chosen.dev))
    assert (len(small), len(large), len(dev)) == (2000, 12544, 1750)
    assert [s.words for s in large[:2000]] == [s.words for s in small]
    with pytest.raises(CorpusError, match=r"probing fetch ud_english_ewt"):
        Treebanks.choose(Settings(corpus="ud_english_ewt"), tmp_path, report, "")


def test_ewt_is_chosen_where_it_lies(tmp_path: Path) -> None:
    try:
        files = locate("ud_english_ewt", None)
    except CorpusError as error:
        pytest.skip(f"needs UD English EWT: {error}")
    report = Report("storing")
    chosen = Treebanks.choose(Settings(limit=9), tmp_path, report, "its dev split")
    assert report.figures == {"corpus": "ud_english_ewt"}
    assert read_treebank(chosen.dev).sentences == read_treebank(files["dev"]).sentences[:9]


def test_a_report_says_the_same_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders: list[Path] = []

    def measure(settings: Settings, folder: Path, report: Report) -> None:
        """Measure."""
        folders.append(folder)
        report.figure("corpus", "some corpus", "which")
        report.ratio("over_it", [3.0, 1.0, 2.0], [0.5, 1.0, 0.8], "this ÷ that", wanted="≥ 2")
        report.ratio("bytes", [1004], [1000], "these ÷ those")
        report.figure("sentences", 12544, "how many")
        report.seconds("epoch_s", [0.5, 0.25, 0.75], "how long")

    assert run("storing", measure, ["--json", str(tmp_path / "out.json")]) == 0
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["benchmark"] == "storing"
    assert content["ratios"] == {"over_it": 2.0, "bytes": 1.004}
    assert content["figures"] == {
        "corpus": "some corpus",
        "over_it_rounds": [6.0, 1.0, 2.5],
        "sentences": 12544,
        "epoch_s": 0.25,
        "epoch_s_rounds": [0.5, 0.25, 0.75],
    }
    assert {"cpu", "cores", "threads", "torch", "python", "device"} <= content["machine"].keys()
    printed = capsys.readouterr().out
    assert "storing on some corpus" in printed
    rows = {
        cells[0]: cells[1:]
        for line in printed.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("│").split("│")]) == 5
    }
    assert rows == {
        "over_it": ["2.000", "1 – 6", "≥ 2", "this ÷ that"],
        "bytes": ["1.004", "", "", "these ÷ those"],
        "corpus": ["some corpus", "", "", "which"],
        "sentences": ["12,544", "", "", "how many"],
        "epoch_s": ["0.25", "0.25 – 0.75", "", "how long"],
    }
    assert not folders[0].exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "must be 1 or more"),
        (["--json", "nowhere/out.json"], "there is no folder"),
    ],
)
def test_a_wrong_option_is_told_before_anything_is_measured(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(settings: Settings, folder: Path, report: Report) -> None:
        raise AssertionError("measured")

    with pytest.raises(SystemExit, match="2"):
        run("storing", measure, arguments)
    assert message in capsys.readouterr().err
