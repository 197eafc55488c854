import re

import pytest

from corpora.mentions import Constituent, ParseBitError, constituent_head, read_constituents


def parse(bracketed: str) -> tuple[list[str], list[str], list[str]]:
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
    words, tags, bits = parse("(TOP (S (NP-SBJ (DT The) (NN lid)) (VP (VBD closed)) (. .)))")
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
    words, tags, bits = parse(f"(TOP {bracketed} (. .))")
    first, last = span.split(" ")
    start, end = words.index(first), len(words) - words[::-1].index(last)
    assert words[constituent_head(read_constituents(bits), tags, start, end)] == head


def test_every_span_has_its_head_inside() -> None:
    for bracketed, _, _ in HEADS:
        _, tags, bits = parse(bracketed)
        tree = read_constituents(bits)
        for start in range(len(tags)):
            for end in range(start + 1, len(tags) + 1):
                assert start <= constituent_head(tree, tags, start, end) < end


def test_several_trees_in_a_sentence_have_one_root() -> None:
    words, tags, bits = parse("(NP (NNP Oslo)) (NP (NNP Rome))")
    assert words[constituent_head(read_constituents(bits), tags, 0, 2)] == "Oslo"
    words, tags, bits = parse("(, ,) (. .)")
    assert bits == ["*", "*"]
    assert constituent_head(read_constituents(bits), tags, 0, 2) == 1
