import hashlib
import io
import logging
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from corpora import registry
from corpora.archives import Row, read_imdb, read_newsgroups
from corpora.conllu import read_treebank
from corpora.labelled import read_labelled
from corpora.registry import CORPORA, Archive, Corpus, RemoteFile, Split, data_root, fetch, locate, main, remedy_for
from corpora.sentence import CorpusError
from tests.corpora.conftest import Quiet

ROW = "1\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\t_\n\n"
KNOWN = "20newsgroups, ag_news, imdb, litbank, ontogum, sst2, trec, ud_english_ewt"
FILES: dict[Split, str] = {"train": ROW * 3, "dev": ROW * 2, "test": ROW}


@pytest.fixture
def tiny(server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """A corpus of three small files in the registry."""
    address, folder = server
    for split, text in FILES.items():
        (folder / f"{split}.conllu").write_bytes(text.encode())
    corpus = Corpus(
        name="tiny",
        splits={
            split: RemoteFile(f"ud/tiny-{split}.conllu", f"{address}/{split}.conllu", sha256(text))
            for split, text in FILES.items()
        },
        licence="CC0",
        citation="Nobody 2000",
        homepage=address,
    )
    monkeypatch.setattr(registry, "CORPORA", {"tiny": corpus})
    return corpus


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_entries_are_pinned_and_have_their_own_places() -> None:
    files = [remote for corpus in CORPORA.values() for remote in corpus.files]
    archives = [corpus.archive.file for corpus in CORPORA.values() if corpus.archive]
    pinned = [remote for corpus in CORPORA.values() if not corpus.archive for remote in corpus.files] + archives
    assert all(name == corpus.name for name, corpus in CORPORA.items())
    assert len({remote.path for remote in files + archives}) == len(files + archives)
    assert len({remote.sha256 for remote in pinned}) == len(pinned)
    for remote in files + archives:
        assert remote.url is None or remote.url.startswith("https://")
        assert not Path(remote.path).is_absolute()
    for remote in pinned:
        assert remote.sha256 is not None
        assert len(bytes.fromhex(remote.sha256)) == 32
    assert all(archive.url for archive in archives)
    ewt = CORPORA["ud_english_ewt"].splits["dev"]
    assert ewt.path == "ud/en_ewt-ud-dev.conllu"
    assert ewt.url == (
        "https://raw.githubusercontent.com/UniversalDependencies/UD_English-EWT/"
        "15d613d8447b3478787d4c278730a1e48a945efb/en_ewt-ud-dev.conllu"
    )


def test_the_data_root_is_the_option_or_the_variable_or_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBING_DATA", "/from/variable")
    assert data_root("/from/option") == Path("/from/option")
    assert data_root(None) == Path("/from/variable")
    monkeypatch.setenv("PROBING_DATA", "")
    assert data_root(None) == Path("data")
    monkeypatch.delenv("PROBING_DATA")
    assert data_root(None) == Path("data")


@pytest.mark.usefixtures("tiny")
def test_fetched_files_are_located_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "data"
    paths = fetch("tiny", root)
    assert {split: path.read_text() for split, path in paths.items()} == FILES
    assert paths == locate("tiny", root)
    assert paths["train"] == root / "ud" / "tiny-train.conllu"
    assert len(read_treebank(paths["train"])) == 3
    assert sorted(path.name for path in (root / "ud").iterdir()) == sorted(path.name for path in paths.values())
    assert "100%" in capsys.readouterr().err  # the progress bar


@pytest.mark.usefixtures("tiny")
def test_only_what_is_missing_is_fetched_again(tmp_path: Path) -> None:
    paths = fetch("tiny", tmp_path)
    paths["dev"].unlink()
    Quiet.asked.clear()
    assert fetch("tiny", tmp_path) == paths
    assert Quiet.asked == ["/dev.conllu"]


@pytest.mark.usefixtures("tiny")
def test_another_file_in_its_place_is_named_and_kept(tmp_path: Path) -> None:
    own = tmp_path / "ud" / "tiny-test.conllu"
    own.parent.mkdir()
    own.write_text("my own work")
    with pytest.raises(CorpusError, match=f"^{own}: the file is there already, but is not the one of tiny .*Move"):
        fetch("tiny", tmp_path)
    assert own.read_text() == "my own work"
    assert Quiet.asked == []
    own.unlink()
    own.mkdir()
    with pytest.raises(CorpusError, match=f"^{own}: the file is there already"):
        fetch("tiny", tmp_path)


@pytest.mark.usefixtures("tiny")
def test_a_changed_file_at_the_address_is_refused_and_not_kept(server: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = server
    (folder / "train.conllu").write_text("changed")
    root = tmp_path / "data"
    with pytest.raises(CorpusError, match=f"what came from {address}/train.conllu is not the registered file"):
        fetch("tiny", root)
    assert list((root / "ud").iterdir()) == []


def test_an_address_out_of_reach_is_named(tiny: Corpus, server: tuple[str, Path], tmp_path: Path) -> None:
    (server[1] / "train.conllu").unlink()
    with pytest.raises(CorpusError, match=rf"fetching {tiny.splits['train'].url} failed \(404"):
        fetch("tiny", tmp_path)


def test_a_dead_server_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as closed:
        address = f"http://127.0.0.1:{closed.server_port}"
    dead = Corpus("dead", {"train": RemoteFile("ud/dead.conllu", f"{address}/dead.conllu", "0" * 64)}, "", "", "")
    monkeypatch.setattr(registry, "CORPORA", {"dead": dead})
    assert main(["dead", "--root", str(tmp_path)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {tmp_path}/ud/dead.conllu: fetching {address}/dead.conllu failed (")
    assert "Check the network" in last


def test_absent_files_are_named_with_the_command_that_fetches_them(tmp_path: Path) -> None:
    root = tmp_path / "my data"
    with pytest.raises(CorpusError) as caught:
        locate("ud_english_ewt", root)
    assert str(caught.value) == (
        f"{root}/ud/en_ewt-ud-train.conllu: there is no such file. "
        f"Fetch it: `python -m corpora.registry ud_english_ewt --root '{root}'`."
    )
    for function in (locate, fetch):
        with pytest.raises(CorpusError, match=rf"^ewt: no corpus has this name.*knows: {KNOWN}\.$"):
            function("ewt", root)


def test_a_path_tells_the_corpus_it_would_belong_to() -> None:
    assert remedy_for(Path("/d/ud/my.conllu")) == "Check the path"
    assert remedy_for(Path("/d/ud/en_ewt-ud-dev.conllu")) == (
        "Fetch it: `python -m corpora.registry ud_english_ewt --root /d`"
    )
    assert "to make litbank, " in remedy_for(Path("/elsewhere/litbank.dev.conll"))


@pytest.mark.usefixtures("tiny")
def test_the_command_prints_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{split}: {tmp_path}/ud/tiny-{split}.conllu" for split in ("train", "dev", "test")
    ]
    with pytest.raises(SystemExit, match="2"):
        main([])


@pytest.mark.slow
def test_the_module_runs_as_a_command() -> None:
    command = [sys.executable, "-W", "error", "-m", "corpora.registry"]
    root = Path(__file__).parents[2]
    listed = subprocess.run([*command, "--list"], cwd=root, capture_output=True, text=True, check=True)
    assert listed.stderr == ""
    assert listed.stdout.startswith("ud_english_ewt: train, dev, test; CC BY-SA 4.0; Silveira et al. 2014")
    unknown = subprocess.run([*command, "nothing"], cwd=root, capture_output=True, text=True, check=False)
    assert unknown.returncode == 1
    assert unknown.stderr == f"error: nothing: no corpus has this name. The registry knows: {KNOWN}.\n"


def test_made_corpora_are_listed_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    made = {
        line.partition(":")[0]: line.endswith("; made, not fetched") for line in capsys.readouterr().out.splitlines()
    }
    assert [name for name, is_made in made.items() if not is_made] == ["ud_english_ewt", "20newsgroups", "imdb"]
    assert sorted(made) == KNOWN.split(", ")
    for name, is_made in made.items():
        assert CORPORA[name].can_be_fetched is not is_made
        assert bool(CORPORA[name].recipe) is is_made


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("ontogum", "coref/ontogum/ontogum.train40.conll2012"),
        ("litbank", "coref/litbank/litbank.train.conll"),
        *((name, f"cls/{name}/train.tsv") for name in ("sst2", "ag_news", "trec")),
    ],
)
def test_absent_files_without_an_address_say_how_they_are_made(
    name: str, first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = (
        f"{tmp_path}/{first}: there is no such file. It cannot be fetched, as no address holds "
        f"exactly this file; to make {name}, {CORPORA[name].recipe}."
    )
    for function in (locate, fetch):
        with pytest.raises(CorpusError) as caught:
            function(name, tmp_path)
        assert str(caught.value) == expected
    assert main([name, "--root", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"error: {expected}\n"
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / first
    assert f"{path}: there is no such file. {remedy_for(path)}." == expected


def test_made_files_are_located_and_checked_with_those_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main_file, beside = (RemoteFile(f"coref/own.{suffix}", None, sha256(suffix)) for suffix in ("conll2012", "conllu"))
    own = Corpus("own", {"all": main_file}, "CC0", "Nobody 2000", "", (beside,), "write both by hand")
    monkeypatch.setattr(registry, "CORPORA", {"own": own})
    (tmp_path / "coref").mkdir()
    (tmp_path / main_file.path).write_text("conll2012")
    for function in (locate, fetch):
        with pytest.raises(
            CorpusError, match=r"own\.conllu: there is no such file.*to make own, write both by hand\.$"
        ):
            function("own", tmp_path)
    (tmp_path / beside.path).write_text("conllu")
    assert locate("own", tmp_path) == fetch("own", tmp_path) == {"all": tmp_path / main_file.path}
    assert main(["own", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"all: {tmp_path}/coref/own.conll2012\nmade, not fetched: write both by hand\n"
    (tmp_path / beside.path).write_text("something else")
    with pytest.raises(CorpusError, match=r"own\.conllu: the file is there already, but is not the one of own"):
        fetch("own", tmp_path)


def test_a_name_that_many_corpora_use_tells_none_of_them() -> None:
    assert remedy_for(Path("/elsewhere/train.tsv")) == "Check the path"
    assert remedy_for(Path("/d/cls/imdb/train.tsv")) == "Fetch it: `python -m corpora.registry imdb --root /d`"
    assert "to make trec, " in remedy_for(Path("/d/cls/trec/train.tsv"))


@pytest.mark.parametrize("name", ["ontogum", "litbank", "sst2", "ag_news", "trec"])
def test_real_made_files_have_the_registered_hashes(name: str, public_data: Callable[..., Path]) -> None:
    public_data()
    try:
        paths = locate(name, None)
    except CorpusError as error:
        pytest.skip(str(error))
    assert fetch(name, None) == paths


# Archives

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
