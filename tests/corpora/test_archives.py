import hashlib
import io
import logging
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from corpora import registry
from corpora.archives import Row, read_imdb, read_newsgroups
from corpora.labelled import read_labelled
from corpora.registry import CORPORA, Archive, fetch, locate, main
from corpora.sentence import CorpusError
from tests.corpora.conftest import Quiet

POST = """\
From: ann@example.org
Subject: Re: last night

In article <1@example.org> bob writes:
> Nobody saw\tit.

The goalie did.
| a bar
Carl said: no.
  He stood\t\tstill.

-- 
Ann, café owner
"""
IMDB = {
    **{f"aclImdb/train/pos/{i}_9.txt": f"Fine film number {i} ." for i in range(15)},
    **{f"aclImdb/train/neg/{i}_1.txt": f"Dull film number {i} ." for i in range(15)},
    "aclImdb/test/pos/0_10.txt": "Café<br /><br />\tscenes\u00a0 win .",
    "aclImdb/test/neg/0_2.txt": "No\nscenes .",
}
OTHERS = {
    "aclImdb/README": "Read me.",
    "aclImdb/train/unsup/0_0.txt": "Unlabelled.",
    "aclImdb/train/pos/urls.txt": "http://example.org",
    "../aclImdb/train/pos/90_9.txt": "From outside.",
    "/aclImdb/train/pos/91_9.txt": "From the root.",
    "aclImdb/train/pos/../../../92_9.txt": "Up and out.",
    "x/aclImdb/train/pos/93_9.txt": "Deeper.",
}


def pack(path: Path, files: Mapping[str, str], encoding: str = "utf-8", link: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            content = text.encode(encoding)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        if link:
            member = tarfile.TarInfo(link)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
            archive.addfile(member)
    return path


def news(name: str, text: str) -> dict[str, str]:
    return {f"20news-bydate-{name}": f"From: x\nSubject: y\n\n{text}\n\n--\nx\n"}


NEWS = {
    **news("train/rec.sport.hockey/1", "the goalie"),
    **{k: v for i in range(12) for k, v in news(f"train/rec.sport.baseball/{i}", f"inning {i}").items()},
    **news("train/rec.autos/1", "a car"),
    **news("test/rec.sport.baseball/7", "the pitcher"),
    "20news-bydate-test/rec.sport.hockey/8": POST,
}


def test_reviews_get_their_labels_and_plain_white_space(tmp_path: Path) -> None:
    found = read_imdb(pack(tmp_path / "a.tar.gz", IMDB | OTHERS, link="aclImdb/train/pos/99_9.txt"))
    assert sorted(found["test"]) == [("0", "No scenes ."), ("1", "Café scenes win .")]
    assert sorted(found["train"] + found["dev"]) == sorted(
        [("1", f"Fine film number {i} .") for i in range(15)] + [("0", f"Dull film number {i} .") for i in range(15)]
    )


def test_dev_is_every_tenth_text_of_train_by_sha1_whatever_the_order_of_the_archive(tmp_path: Path) -> None:
    found = read_imdb(pack(tmp_path / "a.tar.gz", IMDB))
    backwards = read_imdb(pack(tmp_path / "b.tar.gz", dict(reversed(IMDB.items()))))
    assert found == backwards
    ranked = sorted(
        (hashlib.sha1(text.encode()).hexdigest(), text)
        for name, text in IMDB.items()
        if name.startswith("aclImdb/train")
    )
    assert [text for _, text in found["dev"]] == [ranked[9][1], ranked[19][1], ranked[29][1]]
    assert [text for _, text in found["train"]] == [text for i, (_, text) in enumerate(ranked) if i % 10 != 9]


def test_posts_lose_headers_footer_and_quotes(tmp_path: Path) -> None:
    found = read_newsgroups(pack(tmp_path / "a.tar.gz", NEWS, "latin-1"))
    assert sorted(found["test"]) == [("0", "the pitcher"), ("1", "The goalie did. He stood still.")]
    assert sorted(found["train"] + found["dev"]) == sorted(
        [("1", "the goalie")] + [("0", f"inning {i}") for i in range(12)]
    )


@pytest.mark.parametrize(
    "text",
    [
        POST,
        "H: 1\n\none line",
        "H: 1\n\n\n  \nafter blanks\n\nmore\n\n\n",
        "H: 1\n\nall\n---\n> quoted\nIn article 3\nof an In article\n----",
        "H: 1\n\n---\nbelow a line of hyphens",
        "H: 1\n\nx writes in y\nQuoted from z\n >kept\n> not",
        "no empty line\nat all",
    ],
)
def test_posts_are_those_of_scikit_learn(tmp_path: Path, text: str) -> None:
    theirs = pytest.importorskip("sklearn.datasets._twenty_newsgroups")
    expected = theirs.strip_newsgroup_header(text)
    expected = theirs.strip_newsgroup_footer(expected) if expected else expected
    expected = " ".join(theirs.strip_newsgroup_quoting(expected).split())
    found = read_newsgroups(pack(tmp_path / "a.tar.gz", NEWS | {"20news-bydate-test/rec.sport.hockey/8": text}))
    assert [text for label, text in found["test"] if label == "1"] == [expected] * bool(expected)


def test_posts_of_which_nothing_is_left_are_counted_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    empty = {"20news-bydate-train/rec.sport.hockey/2": "From: x\n\n> only a quote\n"}
    with caplog.at_level(logging.WARNING):
        found = read_newsgroups(pack(tmp_path / "a.tar.gz", NEWS | empty, "latin-1"))
    assert caplog.messages == ["a.tar.gz: 1 of 16 texts are empty and were left out."]
    assert all(text for rows in found.values() for _, text in rows)


def no_archive(path: Path) -> Path:
    path.write_bytes(b"this is no archive")
    return path


def cut(path: Path) -> Path:
    noise = {f"aclImdb/train/pos/{i}_9.txt": hashlib.sha512(bytes([i])).hexdigest() for i in range(200)}
    whole = pack(path, noise).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (no_archive, "cannot be read"),
        (cut, "cannot be read"),
        (lambda path: pack(path, IMDB, "utf-16"), "cannot be read"),
        (lambda path: pack(path, NEWS), "has 0 train and 0 test texts"),
        (lambda path: pack(path, {"aclImdb/test/pos/0_9.txt": "one"}), "has 0 train and 1 test texts"),
    ],
    ids=["no archive", "cut off", "another encoding", "another archive", "a part of it"],
)
def test_a_damaged_or_other_archive_is_named(tmp_path: Path, make: Callable[[Path], Path], words: str) -> None:
    path = make(tmp_path / "a.tar.gz")
    with pytest.raises(CorpusError, match=f"^{path}: the archive {words}.*fetch it again"):
        read_imdb(path)


@pytest.fixture
def imdb(server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a small archive under the registry's own name."""
    address, folder = server
    content = pack(folder / "aclImdb_v1.tar.gz", IMDB | OTHERS).read_bytes()
    entry = CORPORA["imdb"]
    assert entry.archive is not None
    url = f"{address}/aclImdb_v1.tar.gz"
    file = replace(entry.archive.file, url=url, sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(registry, "CORPORA", {"imdb": replace(entry, archive=Archive(file, entry.archive.read))})
    return url


@pytest.mark.usefixtures("imdb")
def test_a_fetched_archive_becomes_files_that_the_reader_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    with pytest.raises(CorpusError, match=rf"Fetch it: `python -m corpora\.registry imdb --root {root}`"):
        locate("imdb", root)
    assert main(["imdb", "--root", str(root)]) == 0
    folder = root / "cls" / "imdb"
    assert capsys.readouterr().out.splitlines() == [
        f"{split}: {folder}/{split}.tsv" for split in ("train", "dev", "test")
    ]
    assert sorted(path.relative_to(tmp_path).as_posix() for path in root.rglob("*") if path.is_file()) == [
        f"data/cls/imdb/{name}" for name in ("aclImdb_v1.tar.gz", "dev.tsv", "test.tsv", "train.tsv")
    ]
    expected = read_imdb(folder / "aclImdb_v1.tar.gz")
    for split, path in locate("imdb", root).items():
        rows: list[Row] = [(text.label, text.text) for text in read_labelled(path).texts]
        assert rows == expected[split]


@pytest.mark.usefixtures("imdb")
def test_files_that_are_there_are_neither_fetched_nor_made_again(tmp_path: Path) -> None:
    paths = fetch("imdb", tmp_path)
    paths["train"].write_text("label\ttext\n1\tmy own\n")
    (tmp_path / "cls" / "imdb" / "aclImdb_v1.tar.gz").unlink()
    Quiet.asked.clear()
    assert fetch("imdb", tmp_path) == paths
    assert Quiet.asked == []
    expected = paths["dev"].read_bytes()
    paths["dev"].unlink()
    fetch("imdb", tmp_path)
    assert Quiet.asked == ["/aclImdb_v1.tar.gz"]
    assert paths["dev"].read_bytes() == expected
    assert paths["train"].read_text() == "label\ttext\n1\tmy own\n"


def test_another_archive_in_its_place_or_at_the_address_is_refused(
    imdb: str, tmp_path: Path, server: tuple[str, Path]
) -> None:
    own = tmp_path / "cls" / "imdb" / "aclImdb_v1.tar.gz"
    pack(own, {"x": "y"})
    with pytest.raises(CorpusError, match=f"^{own}: the file is there already, but is not the one of imdb"):
        fetch("imdb", tmp_path)
    own.unlink()
    pack(server[1] / own.name, {"x": "y"})
    with pytest.raises(CorpusError, match=f"what came from {imdb} is not the registered file"):
        fetch("imdb", tmp_path)
    assert list(own.parent.iterdir()) == []


@pytest.mark.usefixtures("imdb")
def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    place = tmp_path / "cls" / "imdb" / "dev.tsv"
    place.mkdir(parents=True)
    with pytest.raises(CorpusError, match=rf"^{place}: the file cannot be written \("):
        fetch("imdb", tmp_path)
