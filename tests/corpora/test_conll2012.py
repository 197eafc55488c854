import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from attention_probing.corpora.conll2012 import read_documents
from attention_probing.corpora.document import Document, Mention
from attention_probing.corpora.sentence import CorpusError
from tests.corpora.conftest import writer

BEGIN, END = "#begin document (d); part 000\n", "#end document\n"


def row(place: int, word: str, coref: str = "-", tag: str = "NN", bit: str = "-", columns: int = 12) -> str:
    fill = ["-"] * (columns - 7)
    return "\t".join(["d", "0", str(place), word, tag, bit, *fill, coref]) + "\n"


def sentence(text: str, columns: int = 12) -> str:
    """Write `the/DT/(1 lid/NN/1) .` as rows and a blank line; tag and coreference may be missing."""
    lines = []
    for place, item in enumerate(text.split()):
        word, *rest = item.split("/")
        tag, coref = [*rest, *("NN", "-")[len(rest) :]]
        lines.append(row(place, word, coref, tag, columns=columns))
    return "".join(lines) + "\n"


write = writer("corpus.conll2012")


def spans(document: Document) -> set[tuple[int, int, int, int]]:
    return {(m.sentence, m.start, m.end, m.cluster) for m in document.mentions}


GOOD = (
    "#begin document (bc/cctv/00/cctv_0001); part 000\n"
    + sentence("The/DT/(12 lid/NN/- of/IN/- his/PRP$/(7) box/NN/12) _/SYM")
    + sentence("It/PRP/(12) broke/VBD ./.", columns=15)
    + END
    + "#begin document (LITBANK_brat); part 0\n"
    + sentence("Nothing/NN here/RB", columns=17)
    + END
)


def test_documents_sentences_tags_and_mentions_are_read(tmp_path: Path) -> None:
    found = read_documents(write(tmp_path, GOOD))
    assert len(found) == 2
    assert found.documents == (
        Document(
            "bc/cctv/00/cctv_0001",
            "bc",
            (("The", "lid", "of", "his", "box", "_"), ("It", "broke", ".")),
            (("DT", "NN", "IN", "PRP$", "NN", "SYM"), ("PRP", "VBD", ".")),
            (
                Mention(0, 0, 5, 4, "nominal", 0),  # the last noun
                Mention(0, 3, 4, 3, "pronoun", 1),
                Mention(1, 0, 1, 0, "pronoun", 0),
            ),
        ),
        Document("LITBANK_brat", "", (("Nothing", "here"),), (("NN", "RB"),), ()),
    )
    counted = {"documents": 2, "sentences": 3, "words": 11, "mentions": 3, "clusters": 2, "singletons": 1}
    counted |= {"documents_without_mentions": 1, "heads_by_last_noun": 3}
    assert {name: n for name, n in found.audit.items() if n} == counted
    assert len(found.audit) == 20


def test_unknown_tags_are_counted_and_a_mapping_gives_their_meaning(tmp_path: Path) -> None:
    # A name behind the known noun may be the head; the article before it is not.
    body = "Mara/NE/(1) mag/VVFIN das/ART/(2 Boot/NN/2) Kapitän/NN/(3 Otto/NE/3) ./$."
    path = write(tmp_path, BEGIN + sentence(body) + END)
    found = read_documents(path)
    assert [mention.type for mention in found.documents[0].mentions] == ["unknown"] * 3
    names = ("unknown_tags", "types_unknown", "heads_by_unknown_tags", "heads_by_last_noun", "heads_by_last_word")
    assert [found.audit[name] for name in names] == [7, 3, 3, 0, 3]
    assert found.documents[0].tags[0][:2] == ("?NE", "?VVFIN")
    some = read_documents(path, tags={"NN": "NOUN"})
    assert [mention.type for mention in some.documents[0].mentions] == ["unknown", "nominal", "nominal"]
    assert [some.audit[name] for name in names] == [5, 1, 2, 2, 1]
    every = read_documents(path, tags={"NN": "NOUN", "NE": "PROPN"})
    assert [(mention.type, mention.head) for mention in every.documents[0].mentions] == [
        ("proper", 0),
        ("nominal", 3),
        ("proper", 5),
    ]
    assert [every.audit[name] for name in names] == [3, 0, 0, 3, 0]
    # A tree gives the head, and the type of a word without a known tag.
    rows = [f"{place}\t{word}\t_\t{upos}\t_\t_\t{head}\tdep\t_\t_\n" for place, (word, upos, head) in enumerate(
        (("Mara", "PROPN", 2), ("mag", "VERB", 0), ("das", "DET", 4), ("Boot", "NOUN", 2), ("Kapitän", "NOUN", 2),
         ("Otto", "PROPN", 5), (".", "PUNCT", 2)), 1)]  # fmt: skip
    path.with_suffix(".conllu").write_text("".join(rows) + "\n", encoding="utf-8")
    parsed = read_documents(path)
    assert [mention.type for mention in parsed.documents[0].mentions] == ["proper", "nominal", "nominal"]
    assert [parsed.audit[name] for name in names] == [0] * 5


LAYOUTS = {
    "no blank line before the end, none behind": GOOD.replace("\n\n#end", "\n#end").rstrip("\n"),
    "more blank lines": "\n\n" + GOOD.replace("\n\n", "\n  \n\n\n"),
    "runs of blanks": "\n".join(re.sub("\t", "  " * (1 + i % 3), line) for i, line in enumerate(GOOD.split("\n"))),
    "comments": GOOD.replace("\n\n", "\n\n# a comment\n\n"),
    "_ for no coreference": GOOD.replace("\t-\n", "\t_\n"),
    "nothing for no coreference": GOOD.replace("\t-\n", "\t\n"),
    "numbers written otherwise": GOOD.replace("(7)", "(7|7)").replace("(12)", " (012) "),
}


@pytest.mark.parametrize("content", LAYOUTS.values(), ids=LAYOUTS)
def test_harmless_differences_of_layout_change_nothing(tmp_path: Path, content: str) -> None:
    expected = read_documents(write(tmp_path, GOOD))
    assert read_documents(write(tmp_path, content)) == expected


def test_nested_crossing_and_doubly_marked_spans_are_kept_and_counted(tmp_path: Path) -> None:
    text = "a/NN/(1|(2 b/NN/(3|(1) c/NN/2) d/NN/1)|(4)|(5)|(4) e/NN/3)"
    found = read_documents(write(tmp_path, BEGIN + sentence(text) + END))
    (document,) = found.documents
    # Clusters 1, 2, 3, 4, 5 of the file by their first mentions, longer ones first.
    expected = [(0, 4, 0), (0, 3, 1), (1, 5, 2), (1, 2, 0), (3, 4, 3), (3, 4, 4)]
    assert [(m.start, m.end, m.cluster) for m in document.mentions] == expected
    audit = found.audit
    assert audit["crossing"] == 2  # (0, 4) and (0, 3), each with (1, 5)
    assert audit["spans_in_two_clusters"] == 1
    assert audit["repeated_mentions"] == 1
    assert (audit["mentions"], audit["clusters"], audit["singletons"]) == (6, 5, 4)
    # From left to right: one mention of a cluster ends at the word where the next begins.
    (document,) = read_documents(write(tmp_path, BEGIN + sentence("a/NN/(5 b/NN/5)|(5 c/NN/5)") + END)).documents
    assert spans(document) == {(0, 0, 2, 0), (0, 1, 3, 0)}


def test_clusters_belong_to_their_document_and_parts_name_it_when_there_are_several(tmp_path: Path) -> None:
    body = sentence("It/PRP/(3)") + END
    marks = ("d); part 000", "GUM_academic_art); part 000", "d); part 001", "wb/a (b)/c); part 7", "GUM_x); part 0")
    found = read_documents(write(tmp_path, "".join(f"#begin document ({mark}\n{body}" for mark in marks)))
    assert [d.id for d in found.documents] == ["d:000", "GUM_academic_art", "d:001", "wb/a (b)/c", "GUM_x"]
    assert [d.genre for d in found.documents] == ["", "academic", "", "wb", ""]
    assert [spans(d) for d in found.documents] == [{(0, 0, 1, 0)}] * 5
    assert found.audit["clusters"] == found.audit["singletons"] == 5


def random_spans(draw: random.Random, words: int) -> set[tuple[int, int, int]]:
    """Draw spans (start, end, cluster); those of one cluster nest or lie apart, as brackets can say no more."""
    chosen: set[tuple[int, int, int]] = set()
    for _ in range(draw.randrange(12)):
        start = draw.randrange(words)
        end = draw.randint(start + 1, words)
        cluster = draw.randrange(4)
        if not any(c == cluster and (a < start < b < end or start < a < end < b) for a, b, c in chosen):
            chosen.add((start, end, cluster))
    return chosen


def test_random_spans_written_as_brackets_are_read_back(tmp_path: Path) -> None:
    draw = random.Random(0)
    content, expected, crossing, doubles = "", [], 0, 0
    for number in range(60):
        content += f"#begin document (d{number}); part 000\n"
        document: list[set[tuple[int, int, int]]] = []
        for _ in range(draw.randint(1, 4)):
            words, columns = draw.randint(1, 9), draw.randint(12, 17)
            drawn = random_spans(draw, words)
            for word in range(words):
                cells = [f"({c})" for a, b, c in drawn if (a, b) == (word, word + 1)]
                cells += [f"({c}" for a, b, c in drawn if a == word < b - 1]
                cells += [f"{c})" for a, b, c in drawn if a < word == b - 1]
                draw.shuffle(cells)
                content += row(word, f"w{word}", "|".join(cells) or draw.choice("-_"), columns=columns)
            content += "\n"
            document.append(drawn)
            places = sorted({(a, b) for a, b, _ in drawn})
            doubles += sum(len({c for *place, c in drawn if tuple(place) == wanted}) > 1 for wanted in places)
            crossing += sum(a < c < b < d for a, b in places for c, d in places)
        content += END
        expected.append(document)
    found = read_documents(write(tmp_path, content))
    assert found.audit["crossing"] == crossing > 20
    assert found.audit["spans_in_two_clusters"] == doubles > 20
    for document, read in zip(expected, found.documents, strict=True):
        drawn_spans = {(i, a, b, c) for i, drawn in enumerate(document) for a, b, c in drawn}
        assert len(read.mentions) == len(drawn_spans)
        # The same spans in the same clusters: only the clusters' numbers may differ.
        ours, theirs = (
            {frozenset(span[:3] for span in of if span[3] == c) for c in {span[3] for span in of}}
            for of in (spans(read), drawn_spans)
        )
        assert ours == theirs
        order = [(m.sentence, m.start, -m.end, m.cluster) for m in read.mentions]
        assert order == sorted(order)
        firsts = list(dict.fromkeys(m.cluster for m in read.mentions))
        assert firsts == list(range(len(firsts)))


ONE = sentence("a")
OTHER = BEGIN.replace("(d)", "(e)")
NAMED = "".join(f"#begin document ({mark}\n{ONE}{END}" for mark in ("d); part 0", "d); part 1", "d:1); part 0"))
# The file, the line at which it is wrong, what is wrong, and the remedy.
ERRORS = [
    (BEGIN + sentence("a/NN/(1 b/NN/2)|1)") + END, 3, r"2\) closes a mention of cluster 2, but none is", r"Write \(2 "),
    (
        BEGIN + sentence("a/NN/(1") + sentence("b/NN/1)") + END,
        2,
        r"\(1 opens here, but is not closed .*2",
        r"Write 1\)",
    ),
    (BEGIN + sentence("a b/NN/(1|(1 c/NN/1) d") + END, 3, r"\(1 opens here, but is not closed .*line 5", r"Write 1\)"),
    (
        BEGIN + sentence("a/NN/(x)") + END,
        2,
        r"coreference column contains '\(x\)', which is malformed",
        r"Examples: `\(5` opens",
    ),
    (BEGIN + sentence("a", columns=11) + END, 2, "has 11 columns, but the format needs at least 12", "Separate"),
    (BEGIN + row(0, "a", columns=13) + row(1, "b") + END, 3, "has 12 columns, but the rows before it .* 13", "tabs"),
    (BEGIN + row(0, "a") + row(2, "b") + END, 3, "number '2' in column 3 instead of 1", "Number the words"),
    (BEGIN + row(0, " ") + END, 2, "the word, is empty", "Fill it"),
    (
        BEGIN + row(0, "a", "(1)", bit="(NP*") + END,
        2,
        "constituent NP that opens here is never",
        "write - in this column",
    ),
    (
        BEGIN + row(0, "a", "(1)", bit="(NP*))") + END,
        2,
        "closes a constituent that was never opened",
        "Correct column 6",
    ),
    (
        BEGIN + row(0, "a", "(1)", bit="(NP*)") + row(1, "b") + END,
        3,
        "parse bit '-' is malformed",
        "Correct column 6, the parse",
    ),
    ("\n" + ONE + BEGIN + ONE + END, 2, "text outside a document", "Put `#begin document"),
    (BEGIN + ONE + END + END, 5, "has not begun", "Remove the line"),
    (BEGIN + ONE + OTHER + ONE + END, 4, "begins here, but d of line 1 has not ended", "Write `#end"),
    ((BEGIN + ONE + END) * 2, 5, "d, part 000, occurs already at line 1", "Remove"),
    (NAMED, 9, "this document and that at line 5 are both called d:1", "Rename"),
    (BEGIN + ONE + END + OTHER + ONE, 5, "the document e begins here, but has no", "cut off"),
    (BEGIN + ONE + END + OTHER + "\n# nothing\n" + END, 5, "document e, .* has no sentence", "Remove it"),
    ("#begin document d\n" + ONE + END, 1, "line '#begin document d' is malformed", "Write `#begin"),
    ("\n\n# only a comment\n", None, "holds no document", "Check that it is the file"),
]


@pytest.mark.parametrize(("content", "line", "wrong", "remedy"), ERRORS)
def test_errors_name_file_line_and_remedy(
    tmp_path: Path, content: str | bytes, line: int | None, wrong: str, remedy: str
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(CorpusError) as caught:
        read_documents(path)
    place, _, rest = str(caught.value).partition(": ")
    assert place == (f"{path}:{line}" if line else str(path))
    assert re.search(rf"{wrong}.*\. .*{remedy}", rest)
    assert rest.endswith(".")


# documents, sentences, words, mentions, clusters, singletons, pairs that cross, spans in two clusters
REAL = {
    "litbank/litbank.train.conll": (80, 6755, 169456, 23218, 6344, 4635, 3, 0),
    "litbank/litbank.dev.conll": (10, 927, 20438, 3053, 776, 563, 0, 0),
    "litbank/litbank.test.conll": (10, 880, 20638, 2832, 807, 565, 0, 0),
    "ontogum/ontogum.train40.conll2012": (40, 1630, 34765, 4030, 1036, 1, 2, 2),
}
COUNTED = ["documents", "sentences", "words", "mentions", "clusters", "singletons", "crossing", "spans_in_two_clusters"]


@pytest.mark.parametrize("name", REAL)
def test_real_corpora_have_their_published_counts(name: str, public_data: Callable[..., Path]) -> None:
    found = read_documents(public_data("coref", name))
    audit, litbank = found.audit, name.startswith("litbank")
    assert tuple(audit[key] for key in COUNTED) == REAL[name]
    assert audit["repeated_mentions"] == audit["documents_without_mentions"] == 0
    assert audit["heads_by_heuristic" if litbank else "heads_by_parse"] == audit["mentions"]
    assert audit["types_by_heuristic"] == (audit["mentions"] if litbank else 0)
    genres = {""} if litbank else {"academic", "bio", "interview", "news", "voyage"}
    assert {document.genre for document in found.documents} == genres
    mentions = [mention for document in found.documents for mention in document.mentions]
    assert all(mention.start <= mention.head < mention.end for mention in mentions)
