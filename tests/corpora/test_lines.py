"""What the readers of all formats share: lines, missing files, encodings; and what they may not import."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from attention_probing import corpora
from attention_probing.corpora.conll2012 import read_documents
from attention_probing.corpora.conllu import read_treebank
from attention_probing.corpora.labelled import Columns, read_labelled
from attention_probing.corpora.lines import read_lines
from attention_probing.corpora.pairs import read_pairs
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.texts import read_links, read_plain
from tests.corpora.conftest import writer
from tests.endless import Endless, make_endless

write = writer("corpus.txt")


@dataclass
class Reader:
    """A reader and a file with one é."""

    read: Callable[[Path], object]
    name: str
    content: str


READERS = {
    "conllu": Reader(
        read_treebank,
        "corpus.conllu",
        "# sent_id = 1\n1\tGo\t_\tVERB\t_\t_\t0\troot\t_\t_\n2\tcafé\t_\tNOUN\t_\t_\t1\tobj\t_\t_\n\n"
        "# sent_id = 2\n1\tGo\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n",
    ),
    "conll2012": Reader(
        read_documents,
        "corpus.conll2012",
        "#begin document (d); part 0\nd 0 0 café NN - - - - - - (1)\n\nd 0 0 I PRP - - - - - - -\n\n#end document\n",
    ),
    "plain": Reader(
        lambda path: list(read_plain(path, Counter())),
        "corpus.txt",
        "A café .\nDull .\n",
    ),
    "labelled": Reader(
        read_labelled,
        "corpus.tsv",
        "label\ttext\n1\tA café .\n0\t Dull . \n",
    ),
}
every_reader = pytest.mark.parametrize("reader", READERS.values(), ids=READERS)


@every_reader
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n\n", "\n  \n\n\n") + "\n  \n",
    ],
    ids=["no final line end", "CRLF", "byte-order mark", "more blank lines"],
)
def test_harmless_differences_of_layout_change_nothing(
    reader: Reader, change: Callable[[str], str], tmp_path: Path
) -> None:
    expected = reader.read(write(tmp_path, reader.content, reader.name))
    assert reader.read(write(tmp_path, change(reader.content), reader.name)) == expected


@every_reader
def test_files_that_cannot_be_read_say_what_to_do(reader: Reader, tmp_path: Path) -> None:
    suffix = Path(reader.name).suffix
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    for path, wrong in [
        (tmp_path / f"my{suffix}", r"there is no such file\. Check the path\.$"),
        (tmp_path, "this is a folder"),
        (folder, "this is a folder"),
        (tmp_path / f"{'x' * 300}{suffix}", r"the file cannot be read \(.*Check the path and its permissions\.$"),
    ]:
        with pytest.raises(CorpusError, match=f"^{path}: {wrong}"):
            reader.read(path)
    with pytest.raises(CorpusError, match=r"\\x00.*: the path contains a NUL character\. Remove it"):
        reader.read(tmp_path / f"my\0corpus{suffix}")


@every_reader
def test_other_encodings_are_named_with_the_command_that_converts(reader: Reader, tmp_path: Path) -> None:
    line = next(i for i, text in enumerate(reader.content.split("\n"), start=1) if "é" in text)
    path = write(tmp_path, reader.content.encode("latin-1"), reader.name)
    with pytest.raises(
        CorpusError, match=f"^{path}:{line}: byte 0xe9 at position .* is not valid UTF-8.*iconv -f LATIN1"
    ):
        reader.read(path)
    write(tmp_path, reader.content.encode("utf-16"), reader.name)
    with pytest.raises(CorpusError, match=f"^{path}:1: .*iconv -f UTF-16"):
        reader.read(path)


def test_registered_files_and_unknown_suffixes_have_their_own_remedies(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no such file.*probing fetch ud_english_ewt --root "):
        read_treebank(tmp_path / "ud" / "en_ewt-ud-dev.conllu")
    for read, remedy in (
        (read_treebank, r"the suffix \.conllu, \.conll or \.conllx\. Another format .* docs/howto/add\.md"),
        (read_labelled, r"with `format`: tsv, csv or jsonl"),
    ):
        with pytest.raises(CorpusError, match=rf"corpus\.txt: .* inferred from the suffix '\.txt'\. .*{remedy}\.$"):
            read(write(tmp_path, "some text\n"))
        with pytest.raises(CorpusError, match=rf"corpus: .*, because the file name has no suffix\. .*{remedy}\.$"):
            read(write(tmp_path, "some text\n", "corpus"))
        with pytest.raises(CorpusError, match=r"nothing: there is no such file\."):
            read(tmp_path / "nothing")


def test_corpora_are_read_without_torch_or_a_network_client() -> None:
    modules = ", ".join(f"attention_probing.corpora.{path.stem}" for path in Path(corpora.__path__[0]).glob("*.py"))
    code = f"import sys, {modules}; print(*({{'torch', 'transformers', 'pooch', 'requests'}} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout == "\n"


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("six 12\n" + "x" * 7 + "\n")
    assert list(read_lines(path, longest=9)) == [(1, "six 12"), (2, "xxxxxxx")]
    with pytest.raises(CorpusError, match=rf"^{path}:2: the line has 8 bytes or more\. Check"):
        list(read_lines(path, longest=8))
    book = "word " * 400_000
    path.write_text(book)
    assert list(read_lines(path)) == [(1, book)]
    path.write_text("x" * (1 << 21))
    wrong = r"the line has 2,097,152 bytes or more\. Check that it is the text file you meant; if it is, break its text"
    with pytest.raises(CorpusError, match=rf"^{path}:1: {wrong} into lines\.$"):
        list(read_lines(path))


@pytest.mark.parametrize(
    ("read", "name", "content"),
    [
        (lambda path: list(read_plain(path, Counter())), "a.txt", "the fox\nthe {}\n"),
        (lambda path: list(read_links(path, Counter())), "a.tsv", "sentence\tlabel\tfrom\tto\nthe {}\tdet\t1\t2\n"),
        (read_labelled, "a.tsv", "text\tlabel\nthe {}\t1\n"),
        (read_labelled, "a.csv", "text,label\nthe {},1\n"),
        (lambda path: read_labelled(path, columns=Columns(pair="other")), "a.tsv", "text\tother\tlabel\na\t{}\t1\n"),
        (read_pairs, "a.csv", "sentence_good,sentence_bad,UID,field,pairID\nI sleep,I {},a,b,c\n"),
    ],
    ids=["plain", "links", "TSV", "CSV", "pair of texts", "minimal pair"],
)
def test_a_word_without_end_is_refused(read: Callable[[Path], object], name: str, content: str, tmp_path: Path) -> None:
    word = "x" * (1 << 20)
    read(write(tmp_path, content.format(word[1:]), name))
    path = write(tmp_path, content.format(word), name)
    wrong = r"a word has 1,048,576 characters, but must have fewer than 1,048,576\. Separate the words"
    with pytest.raises(CorpusError, match=rf"^{path}:2: {wrong}"):
        read(path)


@every_reader
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_has_no_end_is_refused_before_it_is_opened(kind: Endless, reader: Reader, tmp_path: Path) -> None:
    path = make_endless(tmp_path / reader.name, kind)
    wrong = rf"the file cannot be read \(it is a {kind}, not a regular file\)"
    with pytest.raises(CorpusError, match=rf"^{path}: {wrong}\. Save its content in a file, and name that\.$"):
        reader.read(path)
