"""Every task of GLUE in its own files: their headers, rows and traps, in little."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from attention_probing.attention import EncoderSpec
from attention_probing.corpora.download import fetch
from attention_probing.corpora.sentence import CorpusError
from attention_probing.datamodules import ClassificationDataModule, TextDataModule
from tests.glue import SCORES, TASKS, TEXTS, write


def module(root: Path, task: str, **options: Any) -> ClassificationDataModule:  # noqa: ANN401 # those of the datamodule
    made = ClassificationDataModule(task, root=str(root), cache=str(root / "cache"), **options)
    made.setup("fit")
    made.setup("test")
    return made


@pytest.mark.parametrize("task", [*TASKS, "mnli_mismatched"])
def test_a_task_is_read_by_its_name_alone(task: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = write(tmp_path, task)
    data = module(tmp_path, task)
    labels = TASKS["mnli" if task == "mnli_mismatched" else task][-1]
    assert data.files() == {**files, "test": files["dev"]}
    assert data.score == SCORES.get(task, "accuracy")
    assert data.regression == (task == "stsb")
    for split in ("train", "dev", "test"):
        found = data.splits[split]
        assert len(found) == 6
        name = "train" if split == "train" else "dev"
        paired = () if task in {"cola", "glue_sst2"} else ("<sep>", *TEXTS[1].lower().split())
        words = ("the", '"', "fox", name if name == "train" else "<unk>", "2", *paired)
        assert data.text(split, 2)[1] == words
        given = [labels[number % len(labels)] for number in range(6)]
        if data.regression:
            assert found.labels.tolist() == [float(label) for label in given]
        else:
            assert [data.labels[label] for label in found.labels] == given
    assert data.labels == (() if data.regression else tuple(sorted(labels)))
    assert data.positive == ({"qnli": 0, "rte": 0}.get(task, 1) if len(data.labels) == 2 else None)
    audit = cast(dict[str, Any], data.provenance.audit["test"])
    assert "also_in_dev" not in audit  # they are the same file
    assert audit["also_in_train"] == 0
    assert not [message for message in caplog.messages if "stand in" in message]


def test_records_of_qqp_that_lack_a_field_or_a_question_are_counted(tmp_path: Path, bert: Path) -> None:
    train = write(tmp_path, "qqp")["train"]
    broken = "10\t1\t2\tWhy ?\n" + "11\t1\t2\t\tWhat ?\t0\n" + "and the rest\tof a question\t1\n"
    train.write_text(train.read_text(encoding="utf-8") + broken, encoding="utf-8")
    data = module(tmp_path, "qqp")
    audit = cast(dict[str, Any], data.provenance.audit["train"])
    assert {name: audit[name] for name in ("texts", "empty", "malformed")} == {"texts": 6, "empty": 1, "malformed": 2}
    folders: dict[str, Any] = {"root": str(tmp_path), "cache": str(tmp_path)}
    texts = TextDataModule({"corpus": "qqp", "split": "train"}, EncoderSpec(str(bert)), **folders)
    texts.setup("test")
    assert sum(len(batch.index) for loader in texts.test_dataloader() for batch in loader) == 6
    other = write(tmp_path, "rte")["train"]
    other.write_text(other.read_text(encoding="utf-8") + "8\tone field too few\t0\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=rf"{other}:8: the row has 3 fields, but the first row has 4"):
        module(tmp_path, "rte")


@pytest.mark.parametrize(
    ("task", "given", "message"),
    [
        ("qnli", "rte", r"train\.tsv:1: the header has no column 'question'; its columns are index, .*`text`"),
        (
            "rte",
            "wnli",
            r"train\.tsv:2: label '0' is not a label of rte \(entailment, not_entailment\).*Replace .*RTE\.zip",
        ),
        ("glue_sst2", "qnli", r"train\.tsv:2: label 'entailment' is not a label of glue_sst2 \(0, 1\)"),
        ("cola", "glue_sst2", r"train\.tsv:1: the columns are numbered from 1 to 2, and none is 4\."),
        ("stsb", "rte", r"train\.tsv:1: the header has no column 'score'"),
        ("mrpc", "qqp", r"train\.tsv:1: the header has no column '#1 String'"),
    ],
)
def test_a_file_of_another_task_is_refused(task: str, given: str, message: str, tmp_path: Path) -> None:
    files, other = write(tmp_path, task), write(tmp_path / "other", given)
    for split, path in files.items():
        shutil.copy(other[split], path)
    with pytest.raises(CorpusError, match=message):
        module(tmp_path, task)


def test_labels_that_do_not_fit_the_task_are_refused_by_line(tmp_path: Path) -> None:
    dev = write(tmp_path, "stsb")["dev"]
    for label in ("high", "nan", "1e999"):
        dev.write_text(dev.read_text(encoding="utf-8").replace("\t0.5\n", f"\t{label}\n", 1), encoding="utf-8")
        with pytest.raises(CorpusError, match=rf"{dev}:3: the label '{label}' is not a finite number"):
            module(tmp_path, "stsb")
        write(tmp_path, "stsb")
    train = write(tmp_path, "mnli")["train"]
    train.write_text(train.read_text(encoding="utf-8").replace("\tcontradiction\n", "\tneutral\n"), encoding="utf-8")
    with pytest.raises(
        CorpusError, match=r"dev_matched\.tsv:4: no text of train has the label 'contradiction'; train has"
    ):
        module(tmp_path, "mnli", positive="neutral")


def test_a_task_that_is_absent_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"RTE/train\.tsv: there is no such file.*glue/data/RTE\.zip"):
        module(tmp_path, "rte")
    files = write(tmp_path, "rte")
    assert fetch("rte", tmp_path) == {**files, "test": files["dev"]}  # whatever they hold: no hash is known


@pytest.mark.parametrize("task", ["cola", "rte", "wnli"])
def test_the_public_files_are_read_by_name(task: str, tmp_path: Path, public_data: Callable[..., Path]) -> None:
    public_data("glue", {"cola": "CoLA", "rte": "RTE", "wnli": "WNLI"}[task])
    data = ClassificationDataModule(task, root=str(public_data()), cache=str(tmp_path))
    data.setup("test")
    texts = {"cola": (8551, 1043), "rte": (2490, 277), "wnli": (634, 71)}[task]
    assert tuple(len(data.splits[split]) for split in ("train", "dev", "test")) == (*texts, texts[1])
