from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import conllu
import pytest

from attention_probing.corpora.conllu import TreebankFormat, read_treebank
from attention_probing.corpora.sentence import CorpusError, Sentence
from tests.corpora.conftest import writer

GOOD = """\
# newdoc id = d
# sent_id = s-1
# text = Dogs didn't bark.
1	Dogs	dog	NOUN	NNS	Number=Plur	4	nsubj	_	_
2-3	didn't	_	_	_	_	_	_	_	_
2	did	do	AUX	VBD	_	4	aux	_	_
3	n't	not	PART	RB	_	4	advmod	_	_
4	bark	bark	VERB	VB	_	0	root	_	SpaceAfter=No
4.1	bark	bark	VERB	VB	_	_	_	4:conj	_
5	.	.	PUNCT	.	_	4	punct	_	_

1	_	_	SYM	_	_	0	root	_	_

"""
ROW = "1\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\t_\n"


def row(position: object, form: str, head: object, relation: str = "dep", tag: str = "X") -> str:
    return f"{position}\t{form}\t_\t{tag}\t_\t_\t{head}\t{relation}\t_\t_\n"


write = writer("corpus.conllu")


def test_words_heads_relations_and_tags_are_read_and_other_rows_counted(tmp_path: Path) -> None:
    found = read_treebank(write(tmp_path, GOOD))
    assert found.sentences == (
        Sentence(
            "s-1",
            ("Dogs", "did", "n't", "bark", "."),
            (4, 4, 4, 0, 4),
            ("nsubj", "aux", "advmod", "root", "punct"),
            ("NOUN", "AUX", "PART", "VERB", "PUNCT"),
            ("NNS", "VBD", "RB", "VB", "."),
            document=0,
        ),
        # "_" is a word here, and the sentence is named by the file and its place in it.
        Sentence("corpus-2", ("_",), (0,), ("root",), ("SYM",), ("_",), document=0),
    )
    counted = {"sentences": 2, "words": 6, "range_rows": 1, "empty_rows": 1, "generated_ids": 1, "documents": 1}
    assert {name: n for name, n in found.audit.items() if n} == counted
    assert len(found.audit) == 10


def test_forms_keep_blanks_and_rare_characters(tmp_path: Path) -> None:
    forms = ("New  York", "a\u2028b", "👩\u200d🔬", "#", "10\u202f000")
    rows = "".join(row(i, form, i - 1) for i, form in enumerate(forms, start=1))
    assert read_treebank(write(tmp_path, rows)).sentences[0].words == forms


def test_conllx_takes_both_tags_and_the_first_head(tmp_path: Path) -> None:
    content = "1\tRuns\trun\tV\tVBZ\tx=y\t0\tROOT\t_\t_\n2\tit\tit\tP\tPRP\t_\t1\tSBJ\t0\tDEP\n"
    expected = Sentence("wsj-1", ("Runs", "it"), (0, 1), ("ROOT", "SBJ"), ("V", "P"), ("VBZ", "PRP"))
    for name in ("wsj.conll", "wsj.conllx", "wsj.CONLL"):
        assert read_treebank(write(tmp_path, content, name)).sentences == (expected,)


@pytest.mark.parametrize(
    ("tokens", "text", "parts", "respelled"),
    [
        ([("He", ()), ("didn't|", ("did", "n't")), (".", ())], "He didn't.", "He |did|n't|.", 0),
        ([("Zum", ("zu", "dem")), ("Haus|", ()), (".|", ())], "Zum Haus.", "Z|um |Haus|.", 2),
        ([("geht", ()), ("im|", ("in", "dem")), (",", ()), ("ja", ())], "geht im, ja", "geht |i|m|, |ja", 2),
        ([("zu", ("zu", "dem")), ("ja", ())], "zu ja", "zu| |ja", 2),
        ([("Xyz|", ("a", "a", "b")), (".", ())], "Xyz.", "X||yz|.", 3),
        ([("בבית|", ("ב", "ה", "בית")), (".", ())], "בבית.", "ב||בית|.", 3),
        ([("我|", ()), ("喜欢|", ()), ("猫|", ()), ("。|", ())], "我喜欢猫。", "我|喜欢|猫|。", 0),
        ([("1 000", ()), ("عامية|", ()), ("؟", ())], "1 000 عامية؟", "1 000 |عامية|؟", 0),
    ],
)  # fmt: skip
def test_running_text_has_the_blanks_of_the_file_and_the_words_divide_it(
    tokens: list[tuple[str, tuple[str, ...]]], text: str, parts: str, respelled: int, tmp_path: Path
) -> None:
    rows, place = "", 0
    for form, words in tokens:
        misc = "Typo=Yes|SpaceAfter=No" if form.endswith("|") else "_"
        form = form.rstrip("|")
        if words:
            rows += f"{place + 1}-{place + len(words)}\t{form}" + "\t_" * 7 + f"\t{misc}\n"
        for word in words or (form,):
            rows += row(place + 1, word, place).removesuffix("_\n") + ("_" if words else misc) + "\n"
            place += 1
        rows += f"{place}.1\tgone" + "\t_" * 8 + "\n"
    [sentence] = read_treebank(write(tmp_path, rows), texts=True).sentences
    assert sentence.running is not None
    assert (sentence.running.text, sentence.running.parts) == (text, tuple(parts.split("|")))
    assert sentence.running.respelled == respelled
    [without] = read_treebank(tmp_path / "corpus.conllu").sentences
    assert without == replace(sentence, running=None)


@pytest.mark.parametrize(
    ("comments", "differs"),
    [
        ("", False),
        ("# text = He didn't.\n", False),
        ("#text=He didn't. \n", False),
        ("# text_en = Another.\n# text = He didn't.\n", False),
        ("# text = He did n't.\n", True),
        ("# text = He\u00a0didn't.\n", False),
        ("# text = He didn't\n# sent_id = a\n", True),
        ("# text =\n", True),
    ],
)
def test_running_text_is_compared_with_the_comment_that_has_it(comments: str, differs: bool, tmp_path: Path) -> None:
    tokens = [("He", "_"), ("did", "SpaceAfter=No"), ("n't", "SpaceAfter=No"), (".", "_")]
    rows = "".join(
        row(place, form, place - 1).removesuffix("_\n") + f"{misc}\n" for place, (form, misc) in enumerate(tokens, 1)
    )
    [sentence] = read_treebank(write(tmp_path, comments + rows), texts=True).sentences
    assert sentence.running is not None
    assert (sentence.running.text, sentence.running.unlike_comment) == ("He didn't.", differs)


def test_a_format_without_blanks_has_no_running_text(tmp_path: Path) -> None:
    path = write(tmp_path, ROW, "wsj.conllx")
    with pytest.raises(
        CorpusError, match=r"wsj\.conllx: the format does not say where a blank stands.*CoNLL-U file, or"
    ):
        read_treebank(path, texts=True)


def test_several_roots_and_repeated_sentences_are_counted(tmp_path: Path) -> None:
    content = row(1, "Yes", 0) + row(2, "no", 0) + "\n" + row(1, "Yes", 0) + row(2, "no", 1) + "\n" + ROW
    found = read_treebank(write(tmp_path, content))
    assert (found.audit["multiple_roots"], found.audit["duplicates"], found.audit["sentences"]) == (1, 1, 3)
    assert found.sentences[0].heads == (0, 0)


def test_names_are_made_unique_and_comments_without_rows_are_no_sentence(tmp_path: Path) -> None:
    names = ["a", "a", "a.2", "a", None, "corpus-5"]
    content = "\n".join((f"# sent_id = {name}\n" if name else "# sent_id\n") + ROW for name in names)
    found = read_treebank(write(tmp_path, f"# licence\n\n{content}\n# end\n"))
    assert [s.id for s in found.sentences] == ["a", "a.2", "a.2.2", "a.3", "corpus-5", "corpus-5.2"]
    audit = found.audit
    assert (audit["repeated_ids"], audit["generated_ids"], audit["comment_blocks"]) == (4, 1, 2)


@pytest.mark.parametrize(
    ("blocks", "documents"),
    [
        (["S", "S"], [-1, -1]),
        (["# newdoc\nS", "S", "# newdoc id = b\nS"], [0, 0, 1]),
        (["S", "S", "#newdoc\nS", "S"], [0, 0, 1, 1]),  # those before the first mark are a document of their own
        (["# newdoc id = a", "S", "# licence\n#  newdoc id = b\n# end", "S", "S"], [0, 1, 1]),  # without rows
        (["# sent_id = x\n# newdoc\nS", "# newdoc\nS"], [0, 1]),  # the mark is not the first comment
        (["S", "# newdocument\nS", "# newpar\nS", "# a newdoc\nS"], [-1] * 4),
        (["# newdoc id = a", "# newdoc id = b\nS", "S"], [1, 1]),  # a has no sentence
        (["S", "# newdoc id = empty"], [-1]),
    ],
)
def test_documents_begin_at_their_marks(blocks: list[str], documents: list[int], tmp_path: Path) -> None:
    content = "\n".join(block.replace("S", ROW).rstrip("\n") + "\n" for block in blocks)
    found = read_treebank(write(tmp_path, content))
    assert [sentence.document for sentence in found.sentences] == documents
    assert found.audit["documents"] == len({one for one in documents if one >= 0})


# What is wrong, the format, the file, the line at which it is found, and words of the message.
CYCLE = row(1, "a", 0) + row(2, "b", 4) + row(3, "c", 2) + row(4, "d", 3)
BAD: list[tuple[str, TreebankFormat, str | bytes, int | None, str]] = [
    ("too few columns", "conllu", ROW + "\n1\tGo\tgo\tVERB\t0\troot\n", 3, "6 columns instead of 10.*tab"),
    ("blanks for tabs", "conllu", ROW.replace("\t", "  "), 1, "the row has no tab, but must have 10 columns"),
    ("no blank line between", "conllu", ROW + ROW, 2, "the id is 1 after word 1"),
    ("NUL in a form", "conllu", ROW + "\n" + row(1, "Y\0es", 0), 3, "the line holds a NUL byte"),
    (
        "control character",
        "conllu",
        ROW + "\n" + row(1, "Y\x01es", 0),
        3,
        r"character 4 of the line is the control .* U\+0001",
    ),
    ("control character", "conllx", row(1, "a\x7f", 0), 1, r"is the control character U\+007F"),
    ("C1 control character", "conllu", row(1, "a\x92s", 0), 1, r"is the control character U\+0092"),
    ("id missing", "conllu", row("_", "a", 0), 1, "the id is _ after"),
    ("id padded", "conllu", row(" 1", "a", 0), 1, "id ' 1' is not valid"),
    ("head no number", "conllu", row(1, "a", "root"), 1, "head 'root' is not a number.*0 for a root"),
    ("head missing", "conllu", row(1, "a", 0) + row(2, "b", "_"), 2, r"word 2 \(b\) has no head"),
    (
        "head too large",
        "conllu",
        row(1, "a", 0) + row(2, "b", 3),
        2,
        r"word 2 \(b\) has head 3, but the sentence has 2 words\. .* 0 \(the root\) to 2",
    ),
    ("own head", "conllu", row(1, "a", 0) + row(2, "b", 2), 2, r"word 2 \(b\) is its own head"),
    ("cycle", "conllu", CYCLE, 2, r"cycle: 2 \(b\) → 4 \(d\) → 3 \(c\) → 2 \(b\)"),
    ("no root", "conllu", ROW + "\n" + row(1, "a", 2) + row(2, "b", 1), 3, "no root; .*cycle.*root must have head 0"),
    ("form blank", "conllu", row(1, " ", 0), 1, "column FORM is empty"),
    ("tag empty", "conllu", row(1, "a", 0, tag=""), 1, "column UPOS is empty"),
    (
        "own tag empty",
        "conllu",
        ROW.replace("VB\t", "\t"),
        1,
        r"column XPOS is empty\. Fill the column, or write _ for no ",
    ),
    ("relation missing", "conllu", row(1, "a", 0, "_"), 1, r"word 1 \(a\) has no relation"),
    ("range out of place", "conllu", row("2-3", "ab", "_", "_") + ROW, 1, "the id is 2-3 after word 0"),
    ("range too long", "conllu", row("1-2", "ab", "_", "_") + ROW, 1, r"ends at word 2, but the sentence has 1 word"),
    ("range backwards", "conllu", row("2-1", "ab", "_", "_") + ROW, 1, "id '2-1' is not valid"),
    ("empty node out of place", "conllu", ROW + row("3.1", "a", "_", "_"), 2, "the id is 3.1 after word 1"),
    (
        "empty nodes alone",
        "conllu",
        row("0.1", "a", "_", "_"),
        1,
        "the sentence has no words, only rows with ids such as 0.1",
    ),
    (
        "range in CoNLL-X",
        "conllx",
        row("1-2", "ab", "_", "_") + ROW,
        1,
        "id 1-2 is that of a multiword token, but .*CoNLL-X.*`format` to conllu",
    ),
    ("tag empty in CoNLL-X", "conllx", row(1, "a", 0, tag=""), 1, "column CPOSTAG is empty"),
    ("empty file", "conllu", "", None, "holds no sentence"),
]


@pytest.mark.parametrize(
    ("format", "content", "line", "message"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD]
)
def test_bad_input_is_an_error_with_file_line_and_remedy(
    tmp_path: Path, format: TreebankFormat, content: str | bytes, line: int | None, message: str
) -> None:
    path = write(tmp_path, content, f"corpus.{format}")
    with pytest.raises(CorpusError, match=message) as caught:
        read_treebank(path)
    place, _, rest = str(caught.value).partition(": ")
    assert place == (f"{path}:{line}" if line else str(path))
    wrong, _, remedy = rest.partition(". ")
    assert wrong
    assert remedy.endswith(".")


# sentences, words, multiword tokens, empty nodes, as the corpus' own documentation counts them
EWT = {"train": (12544, 204577, 2614, 37), "dev": (2001, 25147, 359, 4), "test": (2077, 25094, 354, 2)}


@pytest.mark.parametrize("split", EWT)
@pytest.mark.slow
def test_english_ewt_has_its_published_counts(split: str, public_data: Callable[..., Path]) -> None:
    path = public_data("ud", f"en_ewt-ud-{split}.conllu")
    found = read_treebank(path)
    audit = found.audit
    assert (audit["sentences"], audit["words"], audit["range_rows"], audit["empty_rows"]) == EWT[split]
    assert audit["multiple_roots"] == audit["generated_ids"] == audit["repeated_ids"] == 0
    marks = sum(line.startswith("# newdoc") for line in path.read_text(encoding="utf-8").splitlines())
    assert audit["documents"] == len({sentence.document for sentence in found.sentences}) == marks > 100
    if split == "dev":  # word for word as the library reads the whole file
        with path.open(encoding="utf-8") as file:
            for sentence, tokens in zip(found.sentences, conllu.parse_incr(file), strict=True):
                rows = [token for token in tokens if isinstance(token["id"], int)]
                assert sentence.id == tokens.metadata["sent_id"]
                columns = (sentence.words, sentence.heads, sentence.relations, sentence.upos, sentence.xpos)
                for ours, name in zip(columns, ("form", "head", "deprel", "upos", "xpos"), strict=True):
                    assert list(ours) == ["_" if token[name] is None else token[name] for token in rows]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (row("1" * 5000, "a", 0), "the line has a number of 1,000 digits or more"),
        (row(1, "a", "2" * 5000), "the line has a number of 1,000 digits or more"),
        (row(1, "a", "0").replace("_\t_\n", f"{'3' * 5000}:dep\t_\n"), "the line has a number of 1,000 digits or more"),
        (row(1, "a" * (1 << 17), 0), "the row has 131,072 characters or more"),
    ],
    ids=["id", "head", "enhanced head", "word"],
)
def test_a_number_and_a_word_have_a_bound(content: str, fault: str, tmp_path: Path) -> None:
    path = write(tmp_path, ROW + "\n" + content)
    with pytest.raises(CorpusError, match=rf"^{path}:3: {fault}\. .*\.$"):
        read_treebank(path)


def test_a_comment_may_be_longer_than_a_row(tmp_path: Path) -> None:
    comment = f"# text = {'word ' * 60_000}{'1' * 2_000}\n# sent_id = long\n"
    [sentence] = read_treebank(write(tmp_path, comment + ROW)).sentences
    assert (sentence.id, sentence.words) == ("long", read_treebank(write(tmp_path, ROW)).sentences[0].words)
