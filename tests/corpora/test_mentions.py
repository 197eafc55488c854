import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from corpora.conll2012 import read_documents
from corpora.document import Documents, Mention
from corpora.mentions import (
    Constituent,
    Head,
    ParseBitError,
    Tokens,
    constituent_head,
    find_head,
    find_type,
    read_constituents,
)
from corpora.sentence import CorpusError, Sentence


def tokens(text: str, heads: tuple[int, ...] = (), upos: tuple[str, ...] = ()) -> Tokens:
    """`the/DT lid/NN` or `the lid` → a sentence; with heads it has a dependency tree."""
    pairs = [word.rpartition("/") if "/" in word else (word, "/", "_") for word in text.split()]
    words, tags = tuple(word for word, _, _ in pairs), tuple(tag for _, _, tag in pairs)
    n = len(words)
    parse = Sentence("s", words, heads, ("dep",) * n, upos or ("X",) * n) if heads else None
    return Tokens(words, tags, ("-",) * n, tuple(range(1, n + 1)), parse)


@pytest.mark.parametrize(
    ("heads", "span", "expected"),
    [
        # the lid of the box closed: the tree of a textbook
        ((2, 6, 5, 5, 2, 0), (0, 5), Head(1, "parse")),
        ((2, 6, 5, 5, 2, 0), (3, 5), Head(4, "parse")),
        ((2, 6, 5, 5, 2, 0), (2, 3), Head(2, "parse")),
        ((2, 6, 5, 5, 2, 0), (0, 6), Head(5, "parse")),  # the root's head lies outside every span
        ((2, 6, 5, 5, 2, 0), (2, 4), Head(2, "parse", 2)),
        ((0, 1, 1, 1, 1, 1), (1, 5), Head(1, "parse", 4)),
        ((6, 6, 6, 6, 6, 0), (0, 6), Head(5, "parse")),
    ],
)
def test_the_head_by_parse_is_the_leftmost_whose_own_head_lies_outside(
    heads: tuple[int, ...], span: tuple[int, int], expected: Head
) -> None:
    assert find_head(tokens("the/DT lid/NN of/IN the/DT box/NN closed/VBD", heads), *span) == expected


@pytest.mark.parametrize(
    ("text", "head", "way"),
    [
        ("the/DT lid/NN of/IN the/DT box/NN", "box", "last_noun"),
        ("Mr./NNP Bennet/NNP himself/PRP", "Bennet", "last_noun"),
        ("all/DT of/IN them/PRP", "them", "last_noun"),
        ("his/PRP$ own/JJ", "his", "last_noun"),
        ("who/WP ever/RB", "who", "last_noun"),
        ("das/DET Haus/NOUN dort/ADV", "Haus", "last_noun"),
        ("Anna/PROPN selbst/ADV", "Anna", "last_noun"),
        ("er/PRON selbst/ADV", "er", "last_noun"),
        ("the/DT very/RB poor/JJ", "poor", "last_word"),
        ("that/DT", "that", "last_word"),
        # One word without a tag is enough for the heuristic.
        ("the/DT lid/_ of/IN the/DT box/NN", "lid", "heuristic"),
    ],
)
def test_heads_by_part_of_speech(text: str, head: str, way: str) -> None:
    sentence = tokens(text)
    found = find_head(sentence, 0, len(sentence.words))
    assert (sentence.words[found.word], found.way, found.candidates) == (head, way, 1)


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("the lid of the box", "lid"),
        ("the old man", "man"),
        ("the man who knew", "man"),
        ("Mr. Bennet , the father", "Bennet"),
        ("He that hath ears", "He"),
        ("A GUEST AT THE INN", "GUEST"),
        ("Of all men", "men"),  # a preposition at the beginning ends nothing
        ("in the house of God", "house"),
        ("that man which I saw", "man"),
        ("the grocer 's", "grocer"),
        ("Hunter ’s", "Hunter"),
        ("the “ Pequod ”", "Pequod"),
        ("_ Speaker _", "Speaker"),
        ("you . ”", "you"),
        ("' '", "last"),
        ("'s", "last"),
    ],
)
def test_heads_without_parts_of_speech(text: str, head: str) -> None:
    sentence = tokens(f"Then {text} went")
    found = find_head(sentence, 1, len(sentence.words) - 1)
    expected = len(sentence.words) - 2 if head == "last" else sentence.words.index(head)
    assert found == Head(expected, "heuristic")


@pytest.mark.parametrize(
    ("text", "head", "expected"),
    [
        ("he/PRP himself/PRP", 0, ("pronoun", False)),
        ("his/PRP$", 0, ("pronoun", False)),
        ("who/WP", 0, ("pronoun", False)),
        ("whose/WP$", 0, ("pronoun", False)),
        ("er/PRON", 0, ("pronoun", False)),
        ("This/DT", 0, ("pronoun", False)),
        ("those/DT", 0, ("pronoun", False)),
        ("those/DT two/CD", 0, ("nominal", False)),
        ("all/DT", 0, ("nominal", False)),
        ("the/DT Hague/NNP", 1, ("proper", False)),
        ("the/DT Alps/NNPS", 1, ("proper", False)),
        ("Anna/PROPN", 0, ("proper", False)),
        ("The/DT Lid/NN", 1, ("nominal", False)),
        ("He", 0, ("pronoun", True)),
        ("thyself", 0, ("pronoun", True)),
        ("he who reads", 0, ("pronoun", True)),
        ("That", 0, ("pronoun", True)),
        ("Old Anna", 1, ("proper", True)),
        ("Anna", 0, ("nominal", True)),  # the first word of its sentence tells nothing
        ("old anna", 1, ("nominal", True)),
        ("somebody", 0, ("nominal", True)),
    ],
)
def test_types(text: str, head: int, expected: tuple[str, bool]) -> None:
    sentence = tokens(text)
    assert find_type(sentence, 0, len(sentence.words), head) == expected


def test_the_tree_tells_the_type_where_the_corpus_has_no_tag() -> None:
    sentence = tokens("er Anna Haus x", (0, 1, 1, 1), ("PRON", "PROPN", "NOUN", "_"))
    found = [find_type(sentence, word, word + 1, word) for word in range(4)]
    assert found == [("pronoun", False), ("proper", False), ("nominal", False), ("nominal", True)]
    tagged = tokens("somebody/NN", (0,), ("PRON",))
    assert find_type(tagged, 0, 1, 0) == ("nominal", False)  # the corpus's own tag first


# Constituents


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


def test_bits_become_a_tree() -> None:
    words, tags, bits = taken_apart("(TOP (S (NP-SBJ (DT The) (NN lid)) (VP (VBD closed)) (. .)))")
    assert (words, tags) == (["The", "lid", "closed", "."], ["DT", "NN", "VBD", "."])
    assert bits == ["(TOP(S(NP-SBJ*", "*)", "(VP*)", "*))"]
    clause = Constituent("S", 0, 4, [Constituent("NP", 0, 2, [0, 1]), Constituent("VP", 2, 3, [2]), 3])
    assert read_constituents(bits) == Constituent("", 0, 4, [Constituent("TOP", 0, 4, [clause])])


@pytest.mark.parametrize(
    ("bits", "word", "wrong"),
    [
        (["(NP*", "-", "*)"], 1, "'-' is malformed"),
        (["(NP*", "(X", "*)"], 1, r"'\(X' is malformed"),
        (["(NP*", "*))"], 1, r"'\*\)\)' closes a constituent that was never opened"),
        (["*", "(NP(NX*", "*)"], 1, "the constituent NP that opens here is never closed"),
    ],
)
def test_bits_that_are_no_tree_are_refused(bits: list[str], word: int, wrong: str) -> None:
    with pytest.raises(ParseBitError, match=wrong) as caught:
        read_constituents(bits)
    assert caught.value.word == word


# The span is marked by the words it begins and ends with; the last column is the head worked out by hand.
HEADS = [
    ("(NP (DT the) (JJ red) (NN car))", "the car", "car"),
    ("(NP (NP (DT the) (NN lid)) (PP (IN of) (NP (DT the) (NN box))))", "the box", "lid"),
    (
        "(NP (NP (NP (DT the) (NN man) (POS 's)) (NN dog)) (SBAR (WHNP (WDT that)) (S (VP (VBD ran)))))",
        "the ran",
        "dog",
    ),
    ("(NP (NP (DT the) (NN man) (POS 's)) (NN dog))", "the 's", "man"),
    ("(NP (PRP$ his) (NN dog))", "his his", "his"),
    ("(NP (PRP we) (DT all))", "we all", "we"),
    ("(NP (NNS cats) (CC and) (NNS dogs))", "cats dogs", "cats"),
    ("(NP (NNS cats) (, ,) (NNS dogs) (, ,) (CC and) (NNS mice))", "cats mice", "cats"),
    ("(NP (NN research) (CC and) (NN development) (NNS costs))", "research costs", "costs"),
    ("(NP (JJ big) (, ,) (JJ red) (NN car))", "big car", "car"),
    ("(NP (NP (NNP Paris)) (, ,) (NP (NNP Texas)))", "Paris Texas", "Paris"),
    ("(NP (NP (CD three)) (PP (IN of) (NP (PRP them))))", "three them", "three"),
    ("(NP (NN page) (CD 3))", "page 3", "page"),
    ("(NP (QP (IN about) (CD 300)))", "about 300", "300"),
    ("(NP (DT the) (JJ poor) (PP (IN of) (NP (NNP Rome))))", "the Rome", "poor"),
    ("(NP (DT the) (NN lid) (PRN (, ,) (JJ old) (, ,)) (NN part))", "the part", "lid"),
    ("(NP (CD two) (PP (IN of)) (CD three))", "two three", "two"),
    ("(NP (DT the) (NML (NN tax) (NN payer)))", "the payer", "payer"),
    ("(NP (`` ``) (DT this) ('' ''))", "`` ''", "this"),
    ("(PP (IN in) (NP (NNP Rome)))", "in Rome", "Rome"),
    ("(VP (MD will) (VP (VB grow) (ADVP (RB fast))))", "will fast", "grow"),
    ("(S (NP (NNS prices)) (VP (VBD rose)))", "prices rose", "rose"),
    ("(SBAR (IN that) (S (NP (PRP it)) (VP (VBD broke))))", "that broke", "broke"),
    ("(VP (VBD said) (SBAR (S (NP (PRP it)) (VP (VBD broke)))))", "said broke", "said"),
    ("(S (NP (NN day)))", "day day", "day"),
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
        for start in range(len(tags)):
            for end in range(start + 1, len(tags) + 1):
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
    rows = [
        f"d\t0\t{i}\t{word}\t{tag if tags else '_'}\t{bit if bits else '-'}" + "\t-" * 5 + f"\t{coref}\n"
        for i, (word, tag, bit, coref) in enumerate(zip(WORDS, TAGS, BITS, COREF, strict=True))
    ]
    second = "".join(
        f"d\t0\t{i}\t{word}\t_\t-" + "\t-" * 5 + f"\t{c}\n" for i, word, c in ((0, "It", "(1)"), (1, "'s", "-"))
    )
    return "#begin document (d); part 0\n" + "".join(rows) + "\n" + second + "\n#end document\n"


def heads(found: Documents) -> list[int]:
    return [mention.head for mention in found.documents[0].mentions]


def ways(found: Documents) -> dict[str, int]:
    return {key: n for key, n in found.audit.items() if n and key.startswith(("heads", "several", "types"))}


def test_the_best_evidence_is_taken_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "c.conll"
    path.write_text(documents())
    found = read_documents(path)
    assert heads(found) == [1, 4, 0]
    assert ways(found) == {"heads_by_constituents": 2, "heads_by_heuristic": 1, "types_by_heuristic": 1}
    path.write_text(documents(bits=False))
    found = read_documents(path)
    assert heads(found) == [4, 4, 0]
    assert ways(found) == {"heads_by_last_noun": 2, "heads_by_heuristic": 1, "types_by_heuristic": 1}
    path.write_text(documents(bits=False, tags=False))
    found = read_documents(path)
    assert heads(found) == [1, 4, 0]
    assert ways(found) == {"heads_by_heuristic": 3, "types_by_heuristic": 3}
    elsewhere = tmp_path / "trees.conllu"
    elsewhere.write_text(CONLLU)
    found = read_documents(path, elsewhere)
    assert ways(found) == {"heads_by_parse": 3}
    assert found.documents[0].mentions == (
        Mention(0, 0, 5, 1, "nominal", 0),
        Mention(0, 3, 5, 4, "nominal", 1),
        Mention(1, 0, 1, 0, "pronoun", 0),
    )


def test_a_treebank_of_the_same_name_beside_is_taken_unless_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.conll2012"
    path.write_text(documents())
    first, _, second = CONLLU.partition("\n\n")
    flat = re.sub(r"\t[1-5]\tdep", "\t6\tdep", first)  # every word hangs on `closed`
    (tmp_path / "c.conllu").write_text(f"{flat}\n\n{second}")
    found = read_documents(path)
    assert heads(found) == [0, 3, 0]
    assert ways(found) == {"heads_by_parse": 3, "several_heads": 2}
    (tmp_path / "other.conllu").write_text(CONLLU)
    found = read_documents(path, tmp_path / "other.conllu")
    assert heads(found) == [1, 4, 0]
    assert ways(found) == {"heads_by_parse": 3}


@pytest.mark.parametrize(
    ("trees", "line", "wrong"),
    [
        (CONLLU.replace("box", "cup"), 6, "word 5 of sentence 1 is 'box', but is 'cup' in {trees}:6"),
        (CONLLU.replace("\tIt\t", "\tHe\t"), 9, "word 1 of sentence 2 is 'It', but is 'He' in {trees}:11"),
        (
            CONLLU[:-1] + "3\tX\t_\tX\t_\t_\t2\tdep\t_\t_\n\n",
            10,
            "word 3 of sentence 2 is missing behind \"'s\", but is 'X' in {trees}:13",
        ),
        (
            CONLLU.replace("2\t's\t_\tX\t_\t_\t0\troot\t_\t_\n", "")
            .replace("1-2\tIt's\t_\t_\t_\t_\t_\t_\t_\t_\n", "")
            .replace("PRON\t_\t_\t2", "PRON\t_\t_\t0"),
            10,
            "word 2 of sentence 2 is \"'s\", but is missing behind 'It' in {trees}:10",
        ),
        (CONLLU.partition("# sent_id = 2")[0], 9, "sentence 2 has no parse: {trees}:7 is the end of the last"),
        (
            CONLLU + "# more\n1\tX\t_\tX\t_\t_\t0\troot\t_\t_\n\n",
            10,
            "this is the end of the last sentence, but {trees}:15 begins sentence 3",
        ),
    ],
)
def test_trees_of_another_text_are_refused_with_both_places(tmp_path: Path, trees: str, line: int, wrong: str) -> None:
    path, beside = tmp_path / "c.conll", tmp_path / "c.conllu"
    path.write_text(documents())
    beside.write_text(trees)
    for given in (None, beside):
        with pytest.raises(CorpusError) as caught:
            read_documents(path, given)
        assert str(caught.value) == (
            f"{path}:{line}: {wrong.format(trees=beside)}. Heads are taken from the parses of the very same sentences "
            "and words: correct one file, or move it away."
        )


def test_a_missing_or_broken_treebank_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "c.conll"
    path.write_text(documents())
    with pytest.raises(CorpusError, match=f"^{tmp_path}/no.conllu: there is no such file. Check the path"):
        read_documents(path, tmp_path / "no.conllu")
    with pytest.raises(CorpusError, match=r"ontogum\.train40\.conllu: there is no such file. It cannot be fetched"):
        read_documents(path, tmp_path / "ontogum.train40.conllu")
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
        pairs = [
            (ours, theirs)
            for document, same in zip(gold.documents, found.documents, strict=True)
            for ours, theirs in zip(document.mentions, same.mentions, strict=True)
        ]
        assert all((a.sentence, a.start, a.end, a.cluster) == (b.sentence, b.start, b.end, b.cluster) for a, b in pairs)
        assert sum(a.head == b.head for a, b in pairs) / len(pairs) > heads_alike
        assert sum(a.type == b.type for a, b in pairs) / len(pairs) > types_alike
