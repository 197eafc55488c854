from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.texts import HALVES, Link, Passage, read_enhanced, read_links
from tests.corpora.conftest import writer

HEADER = "sentence\tlabel\tfrom\tto\n"
FOX = "The fox saw the dog ."

write = writer("links.tsv")


def test_rows_of_one_sentence_are_one_passage(tmp_path: Path) -> None:
    content = (
        f"note\t{HEADER.strip()}\nx\t{FOX}\tAgent\tsaw\t1,2\n\nx\t{FOX}\tTheme\t3\t5, 4\nx\tIt slept .\tAgent\t2\tIt\n"
    )
    assert list(read_links(write(tmp_path, content), Counter())) == [
        (Passage("2", tuple(FOX.split()), 2, links=(Link("Agent", (2,), (0, 1)), Link("Theme", (2,), (3, 4)))),),
        (Passage("5", ("It", "slept", "."), 5, links=(Link("Agent", (1,), (0,)),)),),
    ]


def test_halves_keep_equal_sentences_and_documents_together(tmp_path: Path) -> None:
    rows = [(f"the fox {number // 2}", f"the dog {number}", str(number // 4)) for number in range(80)]
    texts = "".join(f"{text}\tA\t1\t2\nit slept\tA\t1\t2\n" for text, _, _ in rows)
    path = write(tmp_path, HEADER + texts)
    halves = [[passage.words for (passage,) in read_links(path, Counter(), half)] for half in HALVES]
    assert not set(halves[0]) & set(halves[1])
    assert set(Counter(halves[0] + halves[1]).values()) == {2, 80}  # a sentence twice, and the one between them
    assert all(len(set(half)) > 10 for half in halves)

    documents = "".join(f"{text}\tA\t1\t2\t{document}\n" for _, text, document in rows)
    path = write(tmp_path, HEADER.strip() + "\tdocument\n" + documents)
    by_half = [Counter(passage.document for (passage,) in read_links(path, Counter(), half)) for half in HALVES]
    assert not set(by_half[0]) & set(by_half[1])
    assert by_half[0] + by_half[1] == {str(number): 4 for number in range(20)}
    assert all(by_half)


def test_a_mark_without_a_width_makes_no_other_link(tmp_path: Path) -> None:
    audit: Counter[str] = Counter()
    content = HEADER.replace("to", "to\u200b") + f"{FOX}\tA\ufeff\tsaw\t1\n\ufeff{FOX}\tA\tsaw\t2\n"
    [(passage,)] = read_links(write(tmp_path, content), audit)
    assert passage.links == (Link("A", (2,), (0,)), Link("A", (2,), (1,)))
    assert audit == {"invisible_characters": 3}


def test_the_counts_of_a_half_are_those_of_its_sentences(tmp_path: Path) -> None:
    rows = [f'"the ""fox"" {number}"\tA\ufeff\t1\t2\t{number // 2}\n' for number in range(40)]
    path = write(tmp_path, HEADER.strip() + "\tdocument\n" + "".join(rows))
    whole: Counter[str] = Counter()
    assert len(list(read_links(path, whole))) == 40
    assert whole == {"quoted_texts": 40, "invisible_characters": 40}
    for half in HALVES:
        audit: Counter[str] = Counter()
        read = len(list(read_links(path, audit, half)))
        assert 5 < read < 35
        assert audit == {"quoted_texts": read, "invisible_characters": read}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"{HEADER}{FOX}\tAgent\tsaw\tcat\n", r":2: column 'to': the word 'cat' is not in the sentence\. Write"),
        (f"{HEADER}the fox saw the dog\tA\tthe\t2\n", ":2: column 'from': .* 'the' is in .* 2 times.*number: 1 or 4"),
        (f"{HEADER}{FOX}\tA\t3\t2\n{FOX}\tA\t3\t2,7\n", r":3: column 'to' contains word number 7, but"),
        (f"{HEADER}{FOX}\tA\t0\t2\n", r":2: column 'from' contains word number 0, "),
        (f"{HEADER}{FOX}\tA\t\t2\n", r":2: column 'from' is empty\."),
        (f"{HEADER}{FOX}\tA\t1\n", r":2: the row has 3 fields, but the first row has 4\."),
        (
            "sentence\tlabel\tstart\tto\n",
            r":1: the header has no column 'from'\. Name the columns sentence, label, from, to ",
        ),
        (b"\xff\xfes\0\n", r":1: byte 0xff .*UTF-16"),
    ],
)
def test_a_faulty_row_is_named_by_its_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(CorpusError, match=rf"links\.tsv{message}"):
        list(read_links(write(tmp_path, content), Counter()))


def row(word: str, form: str, head: int | str, deps: str) -> str:
    relation = "root" if head == 0 else "dep"
    return f"{word}\t{form}\t_\tX\t_\t_\t{head}\t{relation if head != '_' else '_'}\t{deps}\t_\n"


SHARED_SUBJECT = (
    row("1", "Foxes", 2, "2:nsubj|4:nsubj")
    + row("2", "run", 0, "0:root")
    + row("3", "and", 4, "4:cc")
    + row("4", "jump", 2, "2:conj:and|4.1:dep")
    + row("4.1", "jump", "_", "2:conj:and|4:dep")
)


def test_enhanced_edges_lead_from_the_dependent_to_its_heads(tmp_path: Path) -> None:
    audit: Counter[str] = Counter()
    [(passage,)] = read_enhanced(write(tmp_path, SHARED_SUBJECT + "\n", "a.conllu"), audit)
    assert passage.words == ("Foxes", "run", "and", "jump")
    assert passage.links == (
        Link("nsubj", (0,), (1,)),
        Link("nsubj", (0,), (3,)),
        Link("cc", (2,), (3,)),
        Link("conj:and", (3,), (1,)),
    )
    assert passage.sentence is not None
    assert passage.sentence.heads == (2, 0, 4, 2)
    assert audit == {"range_rows": 0, "empty_rows": 1, "multiple_roots": 0, "root_edges": 1, "empty_node_edges": 3}


@pytest.mark.parametrize(
    ("deps", "message"),
    [
        ("_", r":1: word 1 \(Fox\) has no enhanced dependency: its column DEPS is '_'\."),
        ("nsubj", r":1: column DEPS of word 1 \(Fox\) is 'nsubj', which is malformed\."),
        ("9:nsubj", r":1: word 1 \(Fox\) has the enhanced head 9, but the last word is number 1\."),
    ],
)
def test_a_treebank_without_enhanced_edges_is_refused(tmp_path: Path, deps: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        list(read_enhanced(write(tmp_path, row("1", "Fox", 0, deps) + "\n", "a.conllu"), Counter()))


def test_every_edge_of_ewt_is_read_or_counted(public_data: Callable[..., Path]) -> None:
    path = public_data("ud", "en_ewt-ud-dev.conllu")
    audit: Counter[str] = Counter()
    links = sum(len(passage.links or ()) for (passage,) in read_enhanced(path, audit))
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if "\t" in line]
    assert links + audit["root_edges"] + audit["empty_node_edges"] == sum(
        columns[8].count("|") + 1 for columns in rows if "-" not in columns[0]
    )
