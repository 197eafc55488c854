from collections import Counter
from pathlib import Path

from attention_probing.corpora.conllu import read_treebank
from attention_probing.corpora.labelled import Columns
from attention_probing.corpora.texts import Passage, read_plain, read_sentences, read_texts
from tests.corpora.conftest import writer
from tests.tiny import write_treebank

write = writer("corpus.txt")


def test_a_paragraph_is_a_line_and_headings_of_wikitext_are_counted(tmp_path: Path) -> None:
    content = " = Fox = \n \n The fox , =  sleeps = . \n\n = = Early life = = \nx = y\n = \n"
    audit: Counter[str] = Counter()
    assert list(read_plain(write(tmp_path, content), audit)) == [
        (Passage("3", ("The", "fox", ",", "=", "sleeps", "=", "."), 3),),
        (Passage("6", ("x", "=", "y"), 6),),
        (Passage("7", ("=",), 7),),
    ]
    assert audit == {"headings": 2, "empty_lines": 2}


def test_byte_order_marks_of_joined_files_are_dropped_and_counted(tmp_path: Path) -> None:
    audit: Counter[str] = Counter()
    found = list(read_plain(write(tmp_path, "\ufeffA fox .\n\ufeffIt sleeps .\nSo\ufeff .\n"), audit))
    assert [passage.words for (passage,) in found] == [("A", "fox", "."), ("It", "sleeps", "."), ("So\ufeff", ".")]
    assert audit == {"invisible_characters": 1}


def test_texts_of_a_table_have_labels_pairs_or_neither(tmp_path: Path) -> None:
    path = write(tmp_path, "title\ttext\tother\tlabel\nT\tThe  fox .\tIt sleeps .\t1\nT\t \tx\t0\n", "corpus.tsv")
    audit: Counter[str] = Counter()
    single, pair = Columns(), Columns(pair="other")
    fox = Passage("2", ("The", "fox", "."), 2, "1")
    assert list(read_texts(path, audit, columns=single)) == [(fox,)]
    [both] = read_texts(path, audit, columns=pair)
    assert both == (fox, Passage("2", ("It", "sleeps", "."), 2, "1"))
    [(unlabelled,)] = read_texts(path, audit, columns=Columns(label=None))
    assert unlabelled == Passage("2", fox.words, 2, None)
    assert audit == {"empty_texts": 3}


def test_sentences_of_a_treebank_bring_their_trees(tmp_path: Path) -> None:
    path = write_treebank(tmp_path / "tiny.conllu", 20)
    with path.open("a", encoding="utf-8") as file:
        file.write("1\tIt\t_\tX\t_\t_\t2\tx\t_\t_\n2-3\tisn't" + "\t_" * 8 + "\n")
        file.write("2\tis\t_\tX\t_\t_\t0\troot\t_\t_\n3\tn't\t_\tX\t_\t_\t2\tx\t_\t_\n\n")
    lines = path.read_text(encoding="utf-8").splitlines()
    audit: Counter[str] = Counter()
    passages = [passage for (passage,) in read_sentences(path, audit, "conllu")]
    assert audit == {"range_rows": 1, "empty_rows": 0, "multiple_roots": 0}
    assert tuple(passage.sentence for passage in passages) == read_treebank(path).sentences
    assert all(passage.sentence and passage.words == passage.sentence.words for passage in passages)
    assert [lines[passage.line - 1].split("\t")[:2] for passage in passages] == [
        ["1", passage.words[0]] for passage in passages
    ]
