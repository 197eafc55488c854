import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from attention_probing.corpora.conll2012 import read_documents
from attention_probing.corpora.document import Documents, Mention, MentionType
from attention_probing.corpora.mentions import (
    MentionHead,
    TaggedSentence,
    constituent_head,
    find_head,
    find_meanings,
    find_type,
    read_constituents,
)
from attention_probing.corpora.sentence import CorpusError, Sentence


def tokens(text: str, heads: tuple[int, ...] = (), upos: tuple[str, ...] = ()) -> TaggedSentence:
    """`the/DT lid/NN` or `the lid` → a sentence; with heads it has a dependency tree."""
    pairs = [word.rpartition("/") if "/" in word else (word, "/", "_") for word in text.split()]
    words, tags = tuple(word for word, _, _ in pairs), tuple(tag for _, _, tag in pairs)
    n = len(words)
    parse = Sentence("s", words, heads, ("dep",) * n, upos or ("X",) * n, ("_",) * n) if heads else None
    return TaggedSentence(words, tags, ("-",) * n, tuple(range(1, n + 1)), parse)


TEXTBOOK = (2, 6, 5, 5, 2, 0)  # the lid of the box closed


@pytest.mark.parametrize(
    ("heads", "span", "expected"),
    [
        *((TEXTBOOK, (start, 5), MentionHead(word, "parse")) for start, word in ((0, 1), (3, 4))),
        (TEXTBOOK, (0, 6), MentionHead(5, "parse")),  # the root's head lies outside every span
        (TEXTBOOK, (2, 4), MentionHead(2, "parse", 2)),
        ((0, 1, 1, 1, 1, 1), (1, 5), MentionHead(1, "parse", 4)),
    ],
)
def test_the_head_by_parse_is_the_leftmost_whose_own_head_lies_outside(
    heads: tuple[int, ...], span: tuple[int, int], expected: MentionHead
) -> None:
    assert find_head(tokens("the/DT lid/NN of/IN the/DT box/NN closed/VBD", heads), *span) == expected


@pytest.mark.parametrize(
    ("text", "head", "way"),
    [
        ("the/DT lid/NN of/IN the/DT box/NN", "box", "last_noun"),
        ("Mr./NNP Bennet/NNP himself/PRP", "Bennet", "last_noun"),
        ("his/PRP$ own/JJ", "his", "last_noun"),
        ("das/DET Haus/NOUN dort/ADV", "Haus", "last_noun"),
        ("the/DT very/RB poor/JJ", "poor", "last_word"),
        # One word without a tag is enough for the heuristic.
        ("the/DT lid/_ of/IN the/DT box/NN", "lid", "heuristic"),
    ],
)
def test_heads_by_part_of_speech(text: str, head: str, way: str) -> None:
    sentence = tokens(text)
    found = find_head(sentence, 0, len(sentence.words))
    assert (sentence.words[found.word], found.method, found.candidates) == (head, way, 1)


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("the lid of the box", "lid"),
        ("Mr. Bennet , the father", "Bennet"),
        ("He that hath ears", "He"),
        ("Of all men", "men"),  # a preposition at the beginning ends nothing
        ("the grocer 's", "grocer"),
        ("the “ Pequod ”", "Pequod"),
        ("_ Speaker _", "Speaker"),
        ("you . ”", "you"),
        ("' '", "last"),
    ],
)
def test_heads_without_parts_of_speech(text: str, head: str) -> None:
    sentence = tokens(f"Then {text} went")
    found = find_head(sentence, 1, len(sentence.words) - 1)
    expected = len(sentence.words) - 2 if head == "last" else sentence.words.index(head)
    assert found == MentionHead(expected, "heuristic")


@pytest.mark.parametrize(
    ("text", "head", "expected"),
    [
        ("he/PRP himself/PRP", 0, ("pronoun", False)),
        ("his/PRP$", 0, ("pronoun", False)),
        ("who/WP", 0, ("pronoun", False)),
        ("This/DT", 0, ("pronoun", False)),
        ("those/DT two/CD", 0, ("nominal", False)),
        ("the/DT Alps/NNPS", 1, ("proper", False)),
        ("The/DT Lid/NN", 1, ("nominal", False)),
        ("He", 0, ("pronoun", True)),
        ("That", 0, ("pronoun", True)),
        ("Old Anna", 1, ("proper", True)),
        ("Anna", 0, ("nominal", True)),  # the first word of its sentence tells nothing
    ],
)
def test_types(text: str, head: int, expected: tuple[str, bool]) -> None:
    sentence = tokens(text)
    assert find_type(sentence, 0, len(sentence.words), head) == expected


def test_the_tree_tells_the_type_where_the_corpus_has_no_tag() -> None:
    sentence = tokens("er Anna Haus x", (0, 1, 1, 1), ("PRON", "PROPN", "NOUN", "_"))
    tagged = tokens("somebody/NN", (0,), ("PRON",))
    strange = tokens("er/PPER Anna/NE", (0, 1), ("PRON", "_"))
    find_meanings([sentence, tagged, strange], {})
    found = [find_type(sentence, word, word + 1, word) for word in range(4)]
    assert found == [("pronoun", False), ("proper", False), ("nominal", False), ("nominal", True)]
    assert find_type(tagged, 0, 1, 0) == ("nominal", False)  # the corpus's own tag first
    assert [find_type(strange, word, word + 1, word)[0] for word in range(2)] == ["pronoun", "unknown"]


# Sentences of four tag sets, beside a mapping; the types that their heads have, without the mapping and with it.
STTS = "Mara/NE verkaufte/VVFIN das/ART alte/ADJA Boot/NN ,/$, sie/PPER mag/VVFIN Kapitän/NN Otto/NE"
CHINESE = "玛丽/NR 卖/VV 了/AS 那/DT 条/M 旧/JJ 船/NN ，/PU 她/PN 想念/VV 船长/NN 王/NR"
SETS = [
    (STTS, {"NE": "PROPN", "PPER": "PRON", "NN": "NOUN"}, [(0, 1), (2, 5), (6, 7), (8, 10)], 0),
    (CHINESE, {"NR": "PROPN", "PN": "PRP", "NN": "NN"}, [(0, 1), (3, 7), (8, 9), (10, 12)], 0),
    # One tag of eight is not Penn's: the others are.
    (
        "Anna/NNP sold/VBD the/DT old/JJ boat/NN ,/, hers/PPX Otto/NNP",
        {"PPX": "PRP"},
        [(0, 1), (2, 5), (6, 7), (7, 8)],
        7,
    ),
]


@pytest.mark.parametrize(("text", "mapping", "spans", "known"), SETS, ids=["STTS", "Chinese", "Penn and one other"])
def test_tags_of_another_set_are_unknown_unless_a_mapping_says_what_they_mean(
    text: str, mapping: dict[str, str], spans: list[tuple[int, int]], known: int
) -> None:
    def found(meanings: dict[str, str]) -> tuple[list[str], list[MentionType], TaggedSentence]:
        sentence = tokens(text)
        find_meanings([sentence], meanings)
        heads = [find_head(sentence, *span).word for span in spans]
        types = [find_type(sentence, *span, head)[0] for span, head in zip(spans, heads, strict=True)]
        return [sentence.words[head] for head in heads], types, sentence

    _, types, sentence = found({})
    assert sum(not tag.startswith("?") for tag in sentence.tags) == known
    assert types == ["unknown"] * 4 if not known else ["proper", "nominal", "unknown", "proper"]
    heads, types, sentence = found(mapping)
    words = sentence.words
    assert heads == [words[0], words[4] if known or words[2] == "das" else words[6], words[spans[2][0]], words[-1]]
    assert types == ["proper", "nominal", "pronoun", "proper"]


def taken_apart(bracketed: str) -> tuple[list[str], list[str], list[str]]:
    """Take `(NP (DT the) (NN lid))` apart into words, tags and parse bits."""
    bits, words, tags = [""], [], []
    for opening, closing, tag, word in re.findall(r"\((\S+)(?= \()|(\))|\((\S+) ([^()]+)\)", bracketed):
        if opening:
            bits[-1] += f"({opening}"
        elif closing:
            bits[-2] += ")"
        else:
            words.append(word)
            tags.append(tag)
            bits[-1] += "*"
            bits.append("")
    return words, tags, bits[:-1]


# The span is marked by the words it begins and ends with; the last column is the head worked out by hand.
HEADS = [
    ("(NP (DT the) (JJ red) (NN car))", "the car", "car"),
    ("(NP (NP-SBJ (DT the) (NN lid)) (PP (IN of) (NP (DT the) (NN box))))", "the box", "lid"),
    (
        "(NP (NP (NP (DT the) (NN man) (POS 's)) (NN dog)) (SBAR (WHNP (WDT that)) (S (VP (VBD ran)))))",
        "the ran",
        "dog",
    ),
    ("(NP (PRP we) (DT all))", "we all", "we"),
    ("(NP (NNS cats) (, ,) (NNS dogs) (, ,) (CC and) (NNS mice))", "cats mice", "cats"),
    ("(NP (NN research) (CC and) (NN development) (NNS costs))", "research costs", "costs"),
    ("(NP (NP (NNP Paris)) (, ,) (NP (NNP Texas)))", "Paris Texas", "Paris"),
    ("(NP (DT the) (JJ poor) (PP (IN of) (NP (NNP Rome))))", "the Rome", "poor"),
    ("(NP (CD two) (PP (IN of)) (CD three))", "two three", "two"),
    ("(NP (DT the) (NML (NN tax) (NN payer)))", "the payer", "payer"),
    ("(NP (`` ``) (DT this) ('' ''))", "`` ''", "this"),
    ("(PP (IN in) (NP (NNP Rome)))", "in Rome", "Rome"),
    ("(S (NP (NNS prices)) (VP (VBD rose)))", "prices rose", "rose"),
    ("(SBAR (IN that) (S (NP (PRP it)) (VP (VBD broke))))", "that broke", "broke"),
    # Spans that are no constituent: what lies outside is cut off.
    ("(NP (NNP New) (NNP York) (NNP City))", "New York", "York"),
    ("(S (NP (NNP John)) (, ,) (S (ADJP (JJ unable) (S (VP (TO to) (VP (VB bear)))))))", "John unable", "John"),
    ("(NP (NP (DT the) (NN lid)) (PP (IN of) (NP (DT the) (JJ old) (NN box))))", "the old", "lid"),
    # No tags: the last word before the postmodifier.
    ("(NP (_ the) (_ lid) (PP (_ of) (NP (_ the) (_ box))))", "the box", "lid"),
]


@pytest.mark.parametrize(("bracketed", "span", "head"), HEADS)
def test_heads_equal_those_worked_by_hand(bracketed: str, span: str, head: str) -> None:
    words, tags, bits = taken_apart(f"(TOP {bracketed} (. .))")
    first, last = span.split(" ")
    start, end = words.index(first), len(words) - words[::-1].index(last)
    assert words[constituent_head(read_constituents(bits), tags, start, end)] == head


def test_every_span_has_its_head_inside() -> None:
    for bracketed, _, _ in HEADS:
        _, tags, bits = taken_apart(bracketed)
        tree = read_constituents(bits)
        for start, end in combinations(range(len(tags) + 1), 2):
            assert start <= constituent_head(tree, tags, start, end) < end


def test_several_trees_in_a_sentence_have_one_root() -> None:
    words, tags, bits = taken_apart("(NP (NNP Oslo)) (NP (NNP Rome))")
    assert words[constituent_head(read_constituents(bits), tags, 0, 2)] == "Oslo"
    words, tags, bits = taken_apart("(, ,) (. .)")
    assert bits == ["*", "*"]
    assert constituent_head(read_constituents(bits), tags, 0, 2) == 1


# Files: the same sentences as documents and as trees.

BITS = ("(TOP(S(NP(NP*", "*)", "(PP*", "(NP*", "*)))", "(VP*)))")
WORDS = ("The", "lid", "of", "the", "box", "closed")
COREF = ("(1", "-", "-", "(2", "2)|1)", "-")
TAGS = ("DT", "NN", "IN", "DT", "NN", "VBD")
CONLLU = (
    "# sent_id = 1\n"
    + "".join(
        f"{i}\t{word}\t_\tX\t_\t_\t{head}\tdep\t_\t_\n"
        for i, (word, head) in enumerate(zip(WORDS, (2, 6, 5, 5, 2, 0), strict=True), start=1)
    )
    + "\n# sent_id = 2\n1-2\tIt's\t_\t_\t_\t_\t_\t_\t_\t_\n"
    + "1\tIt\t_\tPRON\t_\t_\t2\tdep\t_\t_\n2\t's\t_\tX\t_\t_\t0\troot\t_\t_\n\n"
)


def documents(bits: bool = True, tags: bool = True) -> str:
    columns = zip(WORDS, TAGS if tags else "_" * 6, BITS if bits else "-" * 6, COREF, strict=True)
    blocks = [
        "".join("\t".join(["d", "0", str(i), *row[:3], *"-----", row[3]]) + "\n" for i, row in enumerate(rows))
        for rows in (columns, [("It", "_", "-", "(1)"), ("'s", "_", "-", "-")])
    ]
    return "\n".join(["#begin document (d); part 0", *blocks, "#end document\n"])


def heads(found: Documents) -> list[int]:
    return [mention.head for mention in found.documents[0].mentions]


def ways(found: Documents) -> dict[str, int]:
    return {key: n for key, n in found.audit.items() if n and key.startswith(("heads", "several", "types"))}


def test_the_best_evidence_is_taken_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "c.conll"
    for content, expected, counted in (
        (documents(), [1, 4, 0], {"heads_by_constituents": 2, "heads_by_heuristic": 1, "types_by_heuristic": 1}),
        (documents(bits=False), [4, 4, 0], {"heads_by_last_noun": 2, "heads_by_heuristic": 1, "types_by_heuristic": 1}),
        (documents(bits=False, tags=False), [1, 4, 0], {"heads_by_heuristic": 3, "types_by_heuristic": 3}),
    ):
        path.write_text(content)
        found = read_documents(path)
        assert heads(found) == expected
        assert ways(found) == counted
    path.with_suffix(".conllu").write_text(CONLLU)
    found = read_documents(path)
    assert ways(found) == {"heads_by_parse": 3}
    assert found.documents[0].mentions == (
        Mention(0, 0, 5, 1, "nominal", 0),
        Mention(0, 3, 5, 4, "nominal", 1),
        Mention(1, 0, 1, 0, "pronoun", 0),
    )


def test_a_treebank_of_the_same_name_beside_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "c.conll2012"
    path.write_text(documents())
    first, _, second = CONLLU.partition("\n\n")
    flat = re.sub(r"\t[1-5]\tdep", "\t6\tdep", first)  # every word hangs on `closed`
    (tmp_path / "c.conllu").write_text(f"{flat}\n\n{second}")
    found = read_documents(path)
    assert heads(found) == [0, 3, 0]
    assert ways(found) == {"heads_by_parse": 3, "several_heads": 2}


X, END = "X\t_\tX\t_\t_", "\t_\t_\n\n"


@pytest.mark.parametrize(
    ("trees", "line", "wrong"),
    [
        (CONLLU.replace("box", "cup"), 6, "word 5 of sentence 1 is 'box', but 'cup' in the parses ({trees}:6)"),
        (
            f"{CONLLU[:-1]}3\t{X}\t2\tdep{END}",
            10,
            "word 3 of sentence 2 is missing, but 'X' in the parses ({trees}:13)",
        ),
        (
            CONLLU.partition("# sent_id = 2")[0],
            9,
            "word 1 of sentence 2 is 'It', but missing in the parses ({trees}:2)",
        ),
        (
            f"{CONLLU}# more\n1\t{X}\t0\troot{END}",
            10,
            "word 1 of sentence 3 is missing, but 'X' in the parses ({trees}:15)",
        ),
    ],
)
def test_trees_of_another_text_are_refused_with_both_places(tmp_path: Path, trees: str, line: int, wrong: str) -> None:
    path, beside = tmp_path / "c.conll", tmp_path / "c.conllu"
    path.write_text(documents())
    beside.write_text(trees)
    with pytest.raises(CorpusError) as caught:
        read_documents(path)
    assert str(caught.value) == (
        f"{path}:{line}: {wrong.format(trees=beside)}. Correct one of the files: both must have the same "
        "sentences and words. To use no parses, rename the .conllu file."
    )


def test_a_broken_treebank_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "c.conll"
    path.write_text(documents())
    (tmp_path / "c.conllu").write_text(CONLLU.replace("\t0\troot", "\t0\t_"))
    with pytest.raises(CorpusError, match=f"^{tmp_path}/c.conllu:12: .*Fill column DEPREL"):
        read_documents(path)


@pytest.mark.slow
def test_the_ways_agree_on_ontogum(tmp_path: Path, public_data: Callable[..., Path]) -> None:
    path = public_data("coref", "ontogum", "ontogum.train40.conll2012")
    gold = read_documents(path)
    assert gold.audit["several_heads"] == 43  # about 1 % of 4030
    alone = Path(shutil.copy(path, tmp_path))
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n")]
    bare = tmp_path / "bare.conll"
    bare.write_text("\n".join("\t".join([*row[:4], "_", "-", *row[6:]][: len(row)]) for row in rows), encoding="utf-8")
    # Names apart, whose head is the first word in UD and the last one in Collins, little is left.
    for other, key, heads_alike, types_alike in (
        (alone, "heads_by_constituents", 0.91, 0.99),
        (bare, "heads_by_heuristic", 0.88, 0.92),
    ):
        found = read_documents(other)
        assert found.audit[key] == found.audit["mentions"] == 4030
        ours, theirs = ([m for document in read.documents for m in document.mentions] for read in (gold, found))
        pairs = list(zip(ours, theirs, strict=True))
        assert all(replace(a, head=b.head, type=b.type) == b for a, b in pairs)
        assert sum(a.head == b.head for a, b in pairs) / len(pairs) > heads_alike
        assert sum(a.type == b.type for a, b in pairs) / len(pairs) > types_alike
